/*
 * Several processes, on one machine or many, that do the same work together: MPI, where the build has it and mpirun has
 * started them. Without, every process is alone.
 */
#ifndef WEIR_CLI_RANKS_H
#define WEIR_CLI_RANKS_H

#include <stdbool.h>

#include "offline/parallel.h"

/* Fills in who this is, and how results are shared. Once per program. */
void weir_cli_ranks_begin(weir__parallel *team);

/* Whether it happened to anyone: all of them ask. */
bool weir_cli_ranks_any(const weir__parallel *team, bool here);

/* The counterpart of begin. With a failure that the others do not know of, they are ended too. */
void weir_cli_ranks_end(const weir__parallel *team, bool failed_alone);

#endif

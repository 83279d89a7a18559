/*
 * Several processes, on one machine or many, that share work through MPI, if the build has it and mpirun started them.
 * Otherwise there is one process.
 */
#ifndef WEIR_CLI_RANKS_H
#define WEIR_CLI_RANKS_H

#include <stdbool.h>

#include "offline/parallel.h"

/* Fills in the rank of this process, and how results are shared. Once per program. */
void weir_cli_ranks_begin(weir__parallel *parallel);

/* Whether the condition holds in any process. All processes must call it. */
bool weir_cli_ranks_any(const weir__parallel *parallel, bool here);

/* Undoes weir_cli_ranks_begin(). After a failure in this process alone, it ends the others as well. */
void weir_cli_ranks_end(const weir__parallel *parallel, bool failed_alone);

#endif

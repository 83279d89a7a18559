/*
 * The page of `weir ranks --page`.
 */
#pragma once

#include "offline/analyse/ranks.h"

/* Returns an exit code. */
int weir_cli_ranks_page(const weir__ranks *ranks, const char *path);

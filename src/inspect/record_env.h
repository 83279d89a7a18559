/*
 * Recording from the environment.
 */
#pragma once

#include <stdint.h>

/* The rank of this process as set by the launcher, or -1. */
int64_t weir__rank_from_env(void);

/*
 * Runs many independent jobs on all cores. The results do not depend on the distribution.
 */
#pragma once

#include <stddef.h>

/* All zero for all cores and no progress. */
typedef struct weir__parallel {
  unsigned threads;                                           /* 0 for one per core */
  void (*progress)(void *context, size_t done, size_t count); /* called by one thread at a time; may be NULL */
  void *progress_context;
} weir__parallel;

/* Runs jobs 0 to count - 1, each once, in any order. A job writes to `results` + its number * `size`, which is zero
 * before. All results are there when this returns. */
void weir__parallel_run(const weir__parallel *parallel, size_t count,
                        void (*job)(void *context, size_t index, void *result), void *context, void *results,
                        size_t size);

/*
 * Runs many independent jobs on all cores, and on other machines. The results do not depend on the distribution.
 */
#ifndef WEIR_OFFLINE_PARALLEL_H
#define WEIR_OFFLINE_PARALLEL_H

#include <stddef.h>

#include "weir/status.h"

/* All zero for this process alone, all of its cores, and no progress. */
typedef struct weir__parallel {
  unsigned threads; /* 0 for one per core */
  int rank, ranks;  /* this process among all that run the jobs; ranks is 0 or 1 if it is alone */
  /* With more than one process: combines the bytes of all by "or", in place in each of them. Each has written its own
   * part, and zeros elsewhere. */
  weir_status (*share)(void *context, void *bytes, size_t size);
  void *share_context;
  void (*progress)(void *context, size_t done, size_t count); /* called by one thread at a time; may be NULL */
  void *progress_context;
} weir__parallel;

/* Runs jobs 0 to count - 1, each once, in any order. A job writes to `results` + its number * `size`, which is zero
 * before. All results are there when this returns. Every process makes the same calls. */
weir_status weir__parallel_run(const weir__parallel *parallel, size_t count,
                               void (*job)(void *context, size_t index, void *result), void *context, void *results,
                               size_t size);

#endif

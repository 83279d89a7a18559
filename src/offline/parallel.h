/*
 * Many independent jobs on all cores, and on other machines: the same results whoever does which.
 */
#ifndef WEIR_OFFLINE_PARALLEL_H
#define WEIR_OFFLINE_PARALLEL_H

#include <stddef.h>

#include "weir/status.h"

/* All zero: this process alone, all of its cores, and silence. */
typedef struct weir__parallel {
  unsigned threads; /* 0: one for each core */
  int rank, ranks;  /* this process among those that do the same; ranks 0 and 1: it is alone */
  /* With more than one: combines the bytes of all processes by "or", in place and for all of them. Each has written its own
   * part, and zeros elsewhere. */
  weir_status (*share)(void *context, void *bytes, size_t size);
  void *share_context;
  void (*progress)(void *context, size_t done, size_t count); /* called by one thread at a time; may be NULL */
  void *progress_context;
} weir__parallel;

/* Does job 0 to count - 1, each once, and in no order. A job writes to `results` + its number * `size`, which is zero before;
 * all of them are there when this returns. Every process of a team makes the same calls. */
weir_status weir__parallel_run(const weir__parallel *parallel, size_t count,
                               void (*job)(void *context, size_t index, void *result), void *context, void *results,
                               size_t size);

#endif

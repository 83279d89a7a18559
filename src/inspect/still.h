/*
 * A device at one moment: all of its segments, and the locks of all arenas that have memory. Snapshots and checkpoints
 * copy the blocks under these locks, so that the copy is consistent in itself and with the events recorded before it.
 */
#ifndef WEIR_INSPECT_STILL_H
#define WEIR_INSPECT_STILL_H

#include <stddef.h>

#include "alloc/heap.h"

/* A segment on the way: where its blocks are in the copy. */
typedef struct weir__still_part {
  const weir__segment *segment;
  size_t first, count; /* blocks */
} weir__still_part;

/* The heap's lock is held, here and below. The segments of a heap, or of one of its pools unless that is {0, 0}, those
 * of an arena side by side, in an array that the caller frees. false: no host memory. */
bool weir__still_list(const weir__heap *heap, weir_pool_id pool, weir__still_part **parts, size_t *count);

/* Whether a part is the first of its arena. */
static inline bool weir__still_is_first(const weir__still_part *parts, size_t i) {
  return i == 0 || parts[i].segment->arena != parts[i - 1].segment->arena;
}

/* Locks the arenas of all parts, and holds their gauges still: see gauges.h. */
void weir__still_lock(const weir__still_part *parts, size_t count);
void weir__still_unlock(const weir__still_part *parts, size_t count);

#endif

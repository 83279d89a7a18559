/*
 * Sizes: rounding of requests, sizes of segments, and when a block is split.
 */
#ifndef WEIR_ALLOC_SIZES_H
#define WEIR_ALLOC_SIZES_H

#include "alloc/heap.h"

uint64_t weir__round_to_division(const weir__settings *settings, uint64_t bytes);

static inline uint64_t weir__round_bytes(const weir__settings *settings, uint64_t bytes) {
  uint64_t divisions[2]; /* tests all intervals at once: usually none is set */
  _Static_assert(sizeof divisions == sizeof settings->roundup_divisions, "two words");
  memcpy(divisions, settings->roundup_divisions, sizeof divisions);
  return divisions[0] | divisions[1] ? weir__round_to_division(settings, bytes) : weir__round_up(bytes, WEIR__UNIT);
}

/* Size of the segment that is obtained for a rounded request. */
uint64_t weir__segment_bytes(const weir__settings *settings, uint64_t bytes);

/* Whether a block is split, so that its remainder becomes free. */
static inline bool weir__should_split(const weir__settings *settings, const weir__pool *pool, uint64_t have,
                                      uint64_t bytes) {
  uint64_t rest = have - bytes;
  if (pool->owner && atomic_load_explicit(&pool->owner->no_split, memory_order_relaxed))
    return false;
  if (pool->is_small || settings->expandable_segments)
    return rest >= WEIR__UNIT;
  return bytes < settings->max_split_size && rest > WEIR__SMALL_MAX;
}

#endif

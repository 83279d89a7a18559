/*
 * Growth: what a pool obtains memory by, when no cached block serves a request. It is a property of the pool, by its
 * own options or else by the settings, and is decided here alone. A segment keeps the growth that made it, whatever the
 * settings become.
 */
#pragma once

#include "alloc/cache/heap.h"

/* What the pool's options say, else the settings. */
static inline weir__growth_kind weir__growth_of(const weir__settings *settings, const weir__pool *pool) {
  if (pool->owner && pool->owner->growth != WEIR__GROWTH_BY_SETTINGS)
    return pool->owner->growth;
  if (settings->guard == WEIR__GUARD_FULL && !(pool->owner && pool->owner->pins & WEIR__PIN_GRAPH))
    return WEIR__GROWTH_APART;
  return settings->moving_pages          ? WEIR__GROWTH_MOVING
         : settings->expandable_segments ? WEIR__GROWTH_EXPANDABLE
                                         : WEIR__GROWTH_FIXED;
}

/* Whether the pool has functions for its memory. */
static inline bool weir__is_provided(const weir__pool *pool) {
  return pool->owner && pool->owner->growth == WEIR__GROWTH_PROVIDED;
}

/* Whether a request may be served by pages that the pool has, at another address: then it is known only afterwards how
 * much new memory it needs. */
static inline bool weir__growth_reuses(const weir__settings *settings, const weir__pool *pool) {
  return weir__growth_of(settings, pool) == WEIR__GROWTH_MOVING;
}

/* Whether the settings ask for reservations of addresses. */
static inline bool weir__growth_reserves(const weir__settings *settings) { return settings->expandable_segments; }

/* Whether a private pool has reservations by its own options; NULL for the default pool. */
static inline bool weir__growth_is_paged(const weir__private_pool *owner) {
  return owner && owner->growth >= WEIR__GROWTH_EXPANDABLE;
}

/* Turns off what a device of the allocator cannot do, with a warning. */
void weir__growth_fit(const weir_allocator *allocator, weir__settings *settings);

/* That of a new private pool. Pools of a tag have pages that stay, so that they can sleep. */
weir__growth_kind weir__growth_of_options(const weir__heap *heap, const weir_pool_options *options,
                                          const weir_tag *tag);

/* ---- What follows from it for segments and blocks ---- */

/* The memory that a segment of that size holds. */
static inline uint64_t weir__growth_held(const weir__heap *heap, weir__growth_kind growth, uint64_t bytes) {
  return growth == WEIR__GROWTH_APART ? weir__round_up(bytes, heap->pages.granularity) : bytes;
}

/* Whether a segment is a reservation into which pages are mapped. */
static inline bool weir__has_pages(const weir__segment *segment) { return segment->memory.slot != 0; }

/* Whether the pages of a segment may move, and differ in size. */
static inline bool weir__pages_move(const weir__segment *segment) { return segment->growth == WEIR__GROWTH_MOVING; }

/* Marks a new block of pages of its own, which end with it. */
static inline void weir__growth_mark(const weir__settings *settings, const weir__arena *arena, weir__block *block) {
  if (settings->guard == WEIR__GUARD_FULL && weir__growth_of(settings, arena->pool) == WEIR__GROWTH_APART)
    weir__block_mark(block, WEIR__MARK_APART, true);
}

/* Whether a block is split, so that its remainder becomes free. */
static inline bool weir__should_split(const weir__settings *settings, const weir__pool *pool, uint64_t have,
                                      uint64_t bytes) {
  uint64_t rest = have - bytes;
  const weir__private_pool *owner = pool->owner;
  if (owner && atomic_load_explicit(&owner->no_split, memory_order_relaxed))
    return false;
  if (pool->is_small || weir__growth_reserves(settings) || weir__growth_is_paged(owner))
    return rest >= WEIR__UNIT;
  return bytes < settings->max_split_size && rest > WEIR__SMALL_MAX;
}

/* weir__growth_choose where more than a look is needed. */
weir__block *weir__growth_choose_among(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                       uint64_t bytes, bool bare);

/* Called when the best fit is a block of pages: returns a better candidate if there is one, or NULL if no block may be
 * used, or if its pages were taken, unless `bare`. */
static inline weir__block *weir__growth_choose(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                               uint64_t bytes, bool bare) {
  bool is_special = block->paged != WEIR__PAGED || !settings->expandable_segments;
  return __builtin_expect(is_special, 0) ? weir__growth_choose_among(arena, settings, block, bytes, bare) : block;
}

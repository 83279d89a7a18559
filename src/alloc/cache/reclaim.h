/*
 * Releasing cached memory to the driver. The heap's lock is held, and no arena's, unless a comment says otherwise.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Whether a free block is a whole fixed segment. */
static inline bool weir__is_whole_segment(const weir__block *block) {
  return !weir__block_is_split(block) && !block->paged;
}

/* Releases the free memory of one arena. */
void weir__release_arena(weir__heap *heap, weir__arena *arena);

/* Releases the free memory of all released pools and, with `default_pool`, of the default pool. */
void weir__release_cached(weir__heap *heap, bool default_pool);

/* Releases the free memory of an account: everything for the device, or what a pool may spare. Graphs may write to the
 * free memory of a pool that they use. */
void weir__release_account(weir__heap *heap, const weir__account *account);

/* The same for one private pool, which has to be released or that of a tag; {0, 0} stands for all pools. */
void weir__release_by_id(weir__heap *heap, weir_pool_id id, bool default_pool);

/* Releases the heap's lock, and reports heap->pages.failure if there is one. */
weir_status weir__unlock_with_driver_error(const char *caller, weir__heap *heap);

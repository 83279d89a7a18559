/*
 * Arenas: creating and locking them (arena.c), and the operations on their blocks (alloc.c). The arena's
 * lock is held unless a comment says otherwise.
 */
#pragma once

#include "alloc/cache/heap.h"

/* The arena of a pool for a stream, created if there is none. NULL without host memory. */
weir__arena *weir__arena_get(weir__pool *pool, weir_cu_stream stream);

/* Completes the free of the last allocation (weir__last_alloc). Every operation but a plain allocation or free begins
 * with it; weir__arena_lock includes it. */
void weir__arena_flush(weir__arena *arena);
static inline void weir__arena_lock(weir__arena *arena) {
  weir__biased_acquire(&arena->lock);
  weir__arena_flush(arena);
}
static inline void weir__arena_unlock(weir__arena *arena) { weir__biased_release(&arena->lock); }

/* ---- Arenas of a pool. No arena's lock is held ---- */

/* Flushes every arena of the pool. */
void weir__pool_flush(weir__pool *pool);
void weir__pool_clear(weir__pool *pool);

/* ---- The two steps of an allocation, in a flushed arena ---- */

/* Takes the best free block for a rounded size out of the index; NULL if none serves. With `bare`, also one whose pages
 * were taken, which the caller gives pages. */
weir__block *weir__arena_take(weir__arena *arena, const weir__settings *settings, uint64_t bytes, bool bare);

/* Allocates a block that is outside of the index: splits off what is not needed, with `exact` even where the rules
 * would not split. NULL without host memory: the block is free again. */
weir__block *weir__arena_hand_out(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                  uint64_t bytes, uint64_t requested, bool exact);

/* ---- The two steps of a free, in a flushed arena ---- */

/* Marks a block as freed by its owner. It stays active while other streams use it. */
void weir__arena_begin_free(weir__arena *arena, weir__block *block);

/* Returns an unused block to the index, merged with its neighbours. Returns the resulting free block. */
weir__block *weir__arena_release(weir__arena *arena, weir__block *block);

/* ---- Blocks ---- */

weir__block *weir__arena_new_block(weir__arena *arena, weir__segment *segment, uint64_t address, uint64_t bytes);

/* Puts a free block into the index. */
void weir__arena_insert(weir__arena *arena, weir__block *block);

/* Merges a neighbour into `block` if both are free, or both unmapped. */
void weir__arena_merge(weir__arena *arena, weir__segment *segment, weir__block *block, weir__block *neighbour);

/* Forgets that other streams use the block. */
void weir__arena_drop_uses(weir__arena *arena, weir__block *block);

/* Searches are the clock by which block ages are measured, while collection by age is on. Needs no lock. */
static inline void weir__count_search(weir__pool *pool) {
  atomic_fetch_add_explicit(&pool->searches, 1, memory_order_relaxed);
}

#include "alloc/cache/arena.h"

#include <stdlib.h>
#include <string.h>

/* Arenas are never removed while their pool exists, so lookups take no lock. If two threads create the same arena, the
 * compare-and-swap in the list of the pool decides, and the loser uses the winner's. */
weir__arena *weir__arena_get(weir__pool *pool, weir_cu_stream stream) {
  weir__arena *arena = weir__arena_find(pool, stream);
  if (arena)
    return arena;
  arena = aligned_alloc(64, (size_t)weir__round_up(sizeof *arena, 64));
  if (!arena)
    return NULL;
  memset(arena, 0, sizeof *arena);
  arena->pool = pool;
  arena->stream = stream;
  arena->blocks.in_region = true;
  weir__account_begin_arena(&arena->account, &pool->heap->accounts, pool->account,
                            pool->is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL, &arena->lock, stream);
  _Atomic(weir__arena *) *at = &pool->arenas;
  weir__arena *next = weir__arena_first(pool);
  do {
    for (; next && (uintptr_t)next->stream < (uintptr_t)stream; next = weir__arena_after(next))
      at = &next->after;
    if (next && next->stream == stream) {
      free(arena);
      return next;
    }
    atomic_store_explicit(&arena->after, next, memory_order_relaxed);
  } while (!atomic_compare_exchange_strong_explicit(at, &next, arena, memory_order_acq_rel, memory_order_acquire));
  _Atomic(weir__arena *) *bucket = weir__arena_bucket(pool, stream);
  weir__arena *first = atomic_load_explicit(bucket, memory_order_relaxed);
  do
    atomic_store_explicit(&arena->next, first, memory_order_relaxed);
  while (!atomic_compare_exchange_strong_explicit(bucket, &first, arena, memory_order_release, memory_order_relaxed));
  return arena;
}

void weir__pool_flush(weir__pool *pool) {
  for (weir__arena *arena = weir__arena_first(pool); arena; arena = weir__arena_after(arena)) {
    weir__arena_lock(arena);
    weir__arena_unlock(arena);
  }
}

void weir__pool_clear(weir__pool *pool) {
  weir__accounts_revoke(&pool->heap->accounts);
  weir__arena *arena = atomic_exchange(&pool->arenas, NULL);
  for (int i = 0; i < WEIR__ARENA_BUCKETS; i++)
    atomic_store(&pool->buckets[i], NULL);
  while (arena) {
    weir__arena *next = weir__arena_after(arena);
    weir__writer_delete(arena->writer);
    weir__index_clear(&arena->free);
    weir__live_clear(&arena->live);
    weir__slab_clear(&arena->blocks);
    weir__slab_clear(&arena->uses);
    free(arena);
    arena = next;
  }
}

/*
 * The arenas of a pool: creation, listing and destruction.
 */
#include "alloc/cache/arena.h"

#include <stdlib.h>
#include <string.h>

/* Arenas are never removed while their pool exists, so lookups take no lock. If two threads create the same arena, the
 * compare-and-swap at the bucket decides, and the loser uses the winner's. */
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
  _Atomic(weir__arena *) *bucket = weir__arena_bucket(pool, stream);
  weir__arena *first = atomic_load_explicit(bucket, memory_order_acquire);
  do {
    weir__arena *other = weir__arena_find(pool, stream);
    if (other) {
      free(arena);
      return other;
    }
    atomic_store_explicit(&arena->next, first, memory_order_relaxed);
  } while (!atomic_compare_exchange_strong_explicit(bucket, &first, arena, memory_order_release, memory_order_acquire));
  return arena;
}

static int by_stream(const void *a, const void *b) {
  uintptr_t x = (uintptr_t)(*(weir__arena *const *)a)->stream, y = (uintptr_t)(*(weir__arena *const *)b)->stream;
  return (x > y) - (x < y);
}

size_t weir__pool_arenas(const weir__pool *pool, weir__arena ***arenas) {
  size_t count = 0;
  *arenas = NULL;
  for (int pass = 0; pass < 2; pass++) {
    size_t n = 0;
    for (int i = 0; i < WEIR__ARENA_BUCKETS; i++)
      for (weir__arena *a = atomic_load_explicit(&pool->buckets[i], memory_order_acquire); a;
           a = atomic_load_explicit(&a->next, memory_order_acquire)) {
        if (pass && n < count)
          (*arenas)[n] = a;
        n++;
      }
    if (pass)
      break;
    count = n;
    *arenas = count ? malloc(count * sizeof **arenas) : NULL;
    if (!*arenas)
      return 0;
  }
  qsort(*arenas, count, sizeof **arenas, by_stream);
  return count;
}

void weir__pool_flush(weir__pool *pool) {
  for (int i = 0; i < WEIR__ARENA_BUCKETS; i++)
    for (weir__arena *a = atomic_load_explicit(&pool->buckets[i], memory_order_acquire); a;
         a = atomic_load_explicit(&a->next, memory_order_acquire)) {
      weir__arena_lock(a);
      weir__arena_unlock(a);
    }
}

void weir__pool_clear(weir__pool *pool) {
  weir__accounts_revoke(&pool->heap->accounts);
  for (int i = 0; i < WEIR__ARENA_BUCKETS; i++) {
    weir__arena *arena = atomic_load(&pool->buckets[i]);
    atomic_store(&pool->buckets[i], NULL);
    while (arena) {
      weir__arena *next = atomic_load(&arena->next);
      weir__index_clear(&arena->free);
      weir__live_clear(&arena->live);
      weir__slab_clear(&arena->blocks);
      weir__slab_clear(&arena->uses);
      free(arena);
      arena = next;
    }
  }
}

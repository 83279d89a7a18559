/*
 * Running short: what is tried, in which order, before a request fails. The heap's lock is held.
 */
#include <stdlib.h>

#include "alloc/heap.h"
#include "alloc/reclaim.h"
#include "record/this_thread.h"

/* A free block that can go back to the driver by itself. */
static bool is_whole_segment(const weir__block *block) { return !weir__block_is_split(block) && !block->expandable; }

/* ---- Collection by age: unsplit large blocks that were not used for long go back before the device is full ---- */

static uint32_t age_of(const weir__arena *arena, const weir__block *block) {
  uint32_t now = atomic_load_explicit(&arena->pool->searches, memory_order_relaxed);
  return block->has_age ? now - weir__block_aside_of(block)->idle_since : now;
}

static void collect(weir__heap *heap, const weir__settings *settings) {
  uint64_t threshold = (uint64_t)(settings->garbage_collection_threshold * (double)heap->limit);
  if (heap->reserved <= threshold)
    return;
  uint64_t target = heap->reserved - threshold, reclaimed = 0, total_age = 0;
  size_t candidates = 0;
  weir__arena **arenas;
  size_t count = weir__pool_arenas(&heap->large, &arenas);
  for (size_t i = 0; i < count; i++) {
    weir__arena_lock(arenas[i]);
    for (weir__block *b = weir__index_first(&arenas[i]->free); b; b = weir__index_next(&arenas[i]->free, b))
      if (!weir__block_is_split(b)) {
        total_age += age_of(arenas[i], b);
        candidates++;
      }
    weir__arena_unlock(arenas[i]);
  }
  for (bool freed = true; reclaimed < target && freed && candidates;) {
    double mean = (double)total_age / (double)candidates;
    freed = false;
    for (size_t i = 0; i < count; i++) {
      weir__arena_lock(arenas[i]);
      for (weir__block *b = weir__index_first(&arenas[i]->free), *next; b; b = next) {
        next = weir__index_next(&arenas[i]->free, b);
        uint64_t bytes = weir__block_bytes(b), age = age_of(arenas[i], b);
        if (!is_whole_segment(b) || (double)age < mean || !weir__release_segment(heap, b))
          continue;
        freed = true;
        reclaimed += bytes;
        total_age -= age;
        candidates--;
      }
      weir__arena_unlock(arenas[i]);
    }
  }
  free(arenas);
}

/* ---- Oversize blocks: with a split limit, just enough of them goes back ---- */

static bool release_oversize(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  /* Not of a private pool: a graph may write to what is free there. */
  if (settings->max_split_size == UINT64_MAX || arena->pool->owner)
    return false;
  uint64_t need = bytes < settings->max_split_size ? settings->max_split_size : bytes, released = 0;
  weir__arena_lock(arena);
  weir__block *block = weir__index_at_least(&arena->free, need);
  if (block && is_whole_segment(block) && weir__release_segment(heap, block)) {
    weir__arena_unlock(arena);
    return true;
  }
  /* None is large enough: several, the largest first. One that is split is there when the limit was higher before: its
   * segment is in use. */
  block = block ? weir__index_previous(&arena->free, block) : weir__index_last(&arena->free);
  while (block && released < need && weir__block_bytes(block) >= settings->max_split_size) {
    weir__block *smaller = weir__index_previous(&arena->free, block);
    uint64_t bytes = weir__block_bytes(block);
    if (is_whole_segment(block) && weir__release_segment(heap, block))
      released += bytes;
    block = smaller;
  }
  weir__arena_unlock(arena);
  return released >= need;
}

/* ---- Everything that is cached ---- */

/* Whole segments, and whole pages of expandable ones. These are gathered first: taking pages out changes the index. */
void weir__release_arena(weir__heap *heap, weir__arena *arena) {
  weir__block **expandable = NULL;
  size_t found = 0, room = 0;
  if (!arena->segments) /* of many streams that were used once, most have none */
    return;
  weir__arena_lock(arena);
  for (weir__block *b = weir__index_first(&arena->free), *next; b; b = next) {
    next = weir__index_next(&arena->free, b);
    if (!b->expandable) {
      if (is_whole_segment(b))
        weir__release_segment(heap, b);
      continue;
    }
    if (!weir__has_whole_pages(heap, b))
      continue;
    if (found == room) {
      size_t more = room ? 2 * room : 64;
      weir__block **grown = realloc(expandable, more * sizeof *grown);
      if (!grown)
        break;
      expandable = grown;
      room = more;
    }
    expandable[found++] = b;
  }
  /* A block is free in the stream's order; its pages may go only when the stream got there. */
  bool ready = found && weir__wait_for_stream(heap, arena->stream);
  for (size_t k = 0; ready && k < found; k++)
    weir__release_pages(heap, expandable[k]);
  weir__release_reservations(heap, arena);
  weir__arena_unlock(arena);
  free(expandable);
}

static void release_pool(weir__heap *heap, weir__pool *pool) {
  weir__arena **arenas;
  size_t count = weir__pool_arenas(pool, &arenas);
  for (size_t i = 0; i < count; i++)
    weir__release_arena(heap, arenas[i]);
  free(arenas);
}

static bool has_route(const weir__heap *heap, const weir__private_pool *pool) {
  const weir__route *route = atomic_load(&heap->routes);
  while (route && route->pool != pool)
    route = route->next;
  return route != NULL;
}

void weir__pool_drop(weir__heap *heap, weir__private_pool *pool) {
  if (pool->segments || has_route(heap, pool) || atomic_load_explicit(&pool->in_flight, memory_order_acquire))
    return;
  weir__private_pool **at = &heap->private_pools;
  while (*at != pool)
    at = &(*at)->next;
  *at = pool->next;
  pool->record->has_pool = false;
  weir__writers_delete(&pool->small);
  weir__writers_delete(&pool->large);
  weir__pool_clear(&pool->small);
  weir__pool_clear(&pool->large);
  if (pool->destroy) {
    pool->next = atomic_load(&heap->dropped_pools);
    atomic_store(&heap->dropped_pools, pool);
  } else
    free(pool);
}

/* Of all pools that nobody holds, or of one. */
static void drop_pools_that_are_over(weir__heap *heap, const weir__private_pool *only) {
  for (weir__private_pool *pool = heap->private_pools, *next; pool; pool = next) {
    next = pool->next;
    if (!pool->is_released || (only && pool != only))
      continue;
    release_pool(heap, &pool->small);
    release_pool(heap, &pool->large);
    weir__pool_drop(heap, pool);
  }
}

void weir__pools_finalize(weir__heap *heap) {
  if (!atomic_load_explicit(&heap->dropped_pools, memory_order_relaxed))
    return;
  pthread_mutex_lock(&heap->lock);
  weir__private_pool *pool = atomic_exchange(&heap->dropped_pools, NULL);
  pthread_mutex_unlock(&heap->lock);
  while (pool) {
    weir__private_pool *next = pool->next;
    pool->destroy(pool->context);
    free(pool);
    pool = next;
  }
}

void weir__release_cached(weir__heap *heap, bool default_pool) {
  if (default_pool) {
    weir__release_orphans(heap);
    weir__wait_for_events(heap);
    release_pool(heap, &heap->large);
    release_pool(heap, &heap->small);
  }
  drop_pools_that_are_over(heap, NULL);
}

void weir__release_pool(weir__heap *heap, weir__private_pool *pool) {
  if (!pool->is_released)
    return;
  if (!atomic_load(&heap->captures))
    weir__wait_for_events(heap);
  drop_pools_that_are_over(heap, pool);
}

/* ---- The chain ---- */

bool weir__run_callbacks(weir__heap *heap) {
  weir_allocator *allocator = heap->allocator;
  int count = atomic_load(&allocator->callback_count), freed = 0;
  if (!count)
    return false;
  pthread_mutex_unlock(&heap->lock);
  weir__op_tell(); /* before what the callbacks do */
  bool is_for_request = weir__this_thread.is_for_request;
  weir__this_thread.is_for_request = false;
  for (int i = 0; i < count; i++)
    freed |= allocator->callbacks[i].call(allocator->callbacks[i].context, heap->device);
  weir__this_thread.is_for_request = is_for_request;
  pthread_mutex_lock(&heap->lock);
  return freed;
}

static weir__block *search(weir__arena *arena, const weir__settings *settings, uint64_t bytes, bool counted) {
  if (counted)
    weir__count_search(arena->pool);
  weir__arena_lock(arena);
  weir__block *block = weir__arena_take(arena, settings, bytes);
  if (block)
    weir__block_hold(block); /* nobody may merge it before it is handed out */
  weir__arena_unlock(arena);
  return block;
}

/* Pools that lend their free blocks before a request fails. */
static weir__block *borrow(weir__heap *heap, const weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  if (arena->pool->owner)
    return NULL;
  for (weir__private_pool *pool = heap->private_pools; pool; pool = pool->next) {
    if (!pool->use_on_oom)
      continue;
    weir__arena *lender = weir__arena_get(arena->pool->is_small ? &pool->small : &pool->large, arena->stream);
    weir__block *block = lender ? search(lender, settings, bytes, false) : NULL;
    if (block)
      return block;
  }
  return NULL;
}

static weir__block *refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  uint64_t segment_bytes = weir__segment_bytes(settings, bytes);
  bool collects = weir__slow_reasons(heap) & WEIR__SLOW_AGING;
  weir__block *block = NULL;
  if (weir__run_callbacks(heap) && (block = search(arena, settings, bytes, collects)))
    return block;
  if (collects)
    collect(heap, settings);
  if ((block = weir__heap_grow(heap, arena, settings, bytes, segment_bytes)) || heap->driver_error)
    return block;
  if ((block = borrow(heap, arena, settings, bytes)))
    return block;
  if (release_oversize(heap, arena, settings, bytes) &&
      ((block = weir__heap_grow(heap, arena, settings, bytes, segment_bytes)) || heap->driver_error))
    return block;
  if (atomic_load(&heap->captures))
    return NULL;
  weir__release_cached(heap, true);
  heap->stats.num_alloc_retries++;
  if ((block = weir__heap_grow(heap, arena, settings, bytes, segment_bytes)) || heap->driver_error)
    return block;
  /* Waiting for events may have set the very block free, here or where it can be borrowed. */
  if ((block = search(arena, settings, bytes, false)))
    return block;
  return borrow(heap, arena, settings, bytes);
}

/* Whoever reads what was recorded can tell it from what the program gave back itself. */
weir__block *weir__refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  weir__this_thread.is_for_request = true;
  weir__block *block = refill(heap, arena, settings, bytes);
  weir__this_thread.is_for_request = false;
  weir__this_thread.has_missed = weir__slow_reasons(heap) & WEIR__SLOW_TRACED;
  return block;
}

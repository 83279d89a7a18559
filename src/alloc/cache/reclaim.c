#include "alloc/cache/reclaim.h"

#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "base/array.h"
#include "base/thread.h"
#include "driver/call.h"
#include "record/this_thread.h"

/* ---- Cached memory ---- */

/* Other arenas do not wait for this one meanwhile: its lock is held, but its counts are frozen. */
static bool wait_for_stream_of(weir__arena *arena) {
  weir__account_freeze(&arena->account);
  bool done = weir__wait_for_stream(arena->pool->heap, arena->stream);
  weir__account_unfreeze(&arena->account);
  return done;
}

/* Releases whole segments, and whole pages of expandable segments. The blocks are collected first, because releasing
 * pages changes the index. */
void weir__release_arena(weir__heap *heap, weir__arena *arena) {
  weir__block **paged = NULL;
  size_t found = 0, room = 0;
  if (!arena->segments) /* common with many streams that were used once */
    return;
  weir__arena_lock(arena);
  for (weir__block *b = weir__index_first(&arena->free), *next; b; b = next) {
    next = weir__index_next(&arena->free, b);
    if (!b->paged) {
      if (weir__is_whole_segment(b))
        weir__release_segment(heap, b);
      continue;
    }
    if (!weir__has_whole_pages(heap, b))
      continue;
    if (!WEIR__RESERVE(paged, room, found + 1))
      break;
    paged[found++] = b;
  }
  /* A free block is free in stream order only: its pages may be unmapped after the stream has passed that point. */
  bool ready = (found || weir__has_left_reservations(heap, arena)) && wait_for_stream_of(arena);
  for (size_t k = 0; ready && k < found; k++)
    weir__release_pages(heap, paged[k]);
  weir__release_reservations(heap, arena, ready);
  weir__arena_unlock(arena);
  free(paged);
}

static void release_pool(weir__heap *heap, weir__pool *pool) {
  for (weir__arena *arena = weir__arena_first(pool); arena; arena = weir__arena_after(arena))
    weir__release_arena(heap, arena);
}

static void release_both(weir__heap *heap, weir__private_pool *pool) {
  release_pool(heap, &pool->small);
  release_pool(heap, &pool->large);
}

static void release_private_pool(weir__heap *heap, weir__private_pool *pool) {
  release_both(heap, pool);
  weir__pool_drop(heap, pool);
}

/* Whether the free memory of a pool that is not released is only cached: that of a tag, unless graphs write to it. */
static bool is_cache(const weir__private_pool *pool) {
  return weir__is_own_pool(pool) && !(pool->pins & WEIR__PIN_GRAPH);
}

void weir__release_cached(weir__heap *heap, bool default_pool) {
  if (default_pool) {
    weir__release_orphans(&heap->pages);
    weir__wait_for_events(heap);
    release_pool(heap, &heap->large);
    release_pool(heap, &heap->small);
  }
  for (weir__private_pool *pool = heap->private_pools, *next; pool; pool = next) {
    next = pool->next;
    if (pool->is_released)
      release_private_pool(heap, pool);
    else if (default_pool && is_cache(pool))
      release_both(heap, pool);
  }
}

void weir__release_account(weir__heap *heap, const weir__account *account) {
  weir__private_pool *pool = weir__pool_find(heap, account->id);
  if (!account->parent) {
    weir__release_cached(heap, true);
    return;
  }
  weir__wait_for_events(heap);
  if (account->is_tag) {
    for (weir__private_pool *p = heap->private_pools; p; p = p->next)
      if (p->small.account->parent == account && !p->pins)
        release_both(heap, p);
  } else if (!pool || !pool->pins) {
    release_pool(heap, pool ? &pool->large : &heap->large);
    release_pool(heap, pool ? &pool->small : &heap->small);
  }
}

void weir__release_by_id(weir__heap *heap, weir_pool_id id, bool default_pool) {
  weir__private_pool *pool = weir__pool_find(heap, id);
  if (!id.first && !id.second)
    weir__release_cached(heap, default_pool);
  if (!pool || (!pool->is_released && !is_cache(pool)))
    return;
  if (!atomic_load(&heap->captures))
    weir__wait_for_events(heap);
  if (pool->is_released)
    release_private_pool(heap, pool);
  else
    release_both(heap, pool);
}

/* ---- Emptying the cache ---- */

weir_status weir__unlock_with_driver_error(const char *caller, weir__heap *heap) {
  weir_cu_result r = heap->pages.failure;
  const char *call = heap->pages.failed_call;
  weir__mutex_unlock(&heap->lock);
  return weir__driver_status(heap->allocator->driver, r, caller, call);
}

/* Pool {0, 0} means all. A heap that was never used has no memory but may have pools. */
static weir_status empty_heap(const char *caller, weir__heap *heap, weir_pool_id id) {
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  bool was_used = heap->cu_context != NULL;
  weir_cu_result r = was_used ? weir__heap_enter(heap, &previous) : WEIR_CU_SUCCESS;
  heap->pages.failure = r;
  heap->pages.failed_call = "cuCtxSetCurrent";
  if (!r) {
    weir__release_by_id(heap, id, !atomic_load(&heap->captures));
    if (was_used)
      weir__heap_leave(heap, previous);
  }
  weir_status status = weir__unlock_with_driver_error(caller, heap);
  weir__pools_finalize(heap);
  return status;
}

static weir_status empty(const char *caller, weir_allocator *allocator, weir_pool_id id) {
  weir_status first = WEIR_OK;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_ALL);
  weir__this_thread.reason = WEIR__REASON_PROGRAM;
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__heap *heap = &allocator->heaps[i];
    weir_status status =
        allocator->backend ? allocator->backend->calls->empty(caller, heap, id) : empty_heap(caller, heap, id);
    if (!first)
      first = status;
  }
  if (allocator->backend && allocator->backend->program.reset)
    allocator->backend->program.reset(allocator->backend->program.context);
  weir__this_thread.reason = WEIR__REASON_UNKNOWN;
  weir__op_end(&op);
  return first;
}

weir_status weir_allocator_empty_cache(weir_allocator *allocator) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return empty(__func__, allocator, (weir_pool_id){0, 0});
}

weir_status weir_allocator_empty_pool(weir_allocator *allocator, weir_pool_id pool) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return empty(__func__, allocator, pool);
}

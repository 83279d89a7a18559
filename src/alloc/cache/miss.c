/*
 * A cache miss: everything that is tried, in order, for a request that no free block serves. The heap's lock is held.
 */
#include "alloc/cache/miss.h"
#include "alloc/cache/observers.h"

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/move.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/sizes.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"
#include "driver/call.h"
#include "record/probes.h"
#include "record/this_thread.h"

/* ---- Collection by age: releases unsplit large blocks that were unused for long, before the device is full ---- */

static uint32_t age_of(const weir__arena *arena, const weir__block *block) {
  uint32_t now = atomic_load_explicit(&arena->pool->searches, memory_order_relaxed);
  return block->has_age ? now - weir__block_cold_of(block)->idle_since : now;
}

static void collect(weir__heap *heap, const weir__settings *settings) {
  uint64_t threshold =
      (uint64_t)(settings->garbage_collection_threshold * (double)heap->accounts.device.limit[WEIR__LIMIT_HARD]);
  if (weir__reserved(heap) <= threshold)
    return;
  uint64_t target = weir__reserved(heap) - threshold, reclaimed = 0, total_age = 0;
  size_t candidates = 0;
  for (weir__arena *arena = weir__arena_first(&heap->large); arena; arena = weir__arena_after(arena)) {
    weir__arena_lock(arena);
    for (weir__block *b = weir__index_first(&arena->free); b; b = weir__index_next(&arena->free, b))
      if (!weir__block_is_split(b)) {
        total_age += age_of(arena, b);
        candidates++;
      }
    weir__arena_unlock(arena);
  }
  for (bool freed = true; reclaimed < target && freed && candidates;) {
    double mean = (double)total_age / (double)candidates;
    freed = false;
    for (weir__arena *arena = weir__arena_first(&heap->large); arena; arena = weir__arena_after(arena)) {
      weir__arena_lock(arena);
      for (weir__block *b = weir__index_first(&arena->free), *next; b; b = next) {
        next = weir__index_next(&arena->free, b);
        uint64_t bytes = weir__block_bytes(b), age = age_of(arena, b);
        if (!weir__is_whole_segment(b) || (double)age < mean || !weir__release_segment(heap, b))
          continue;
        freed = true;
        reclaimed += bytes;
        total_age -= age;
        candidates--;
      }
      weir__arena_unlock(arena);
    }
  }
}

/* ---- Oversize blocks: with max_split_size set, releases just enough of them ---- */

static bool release_oversize(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  /* Not in a private pool: a graph may write to its free memory. */
  if (settings->max_split_size == UINT64_MAX || arena->pool->owner)
    return false;
  uint64_t need = bytes < settings->max_split_size ? settings->max_split_size : bytes, released = 0;
  weir__arena_lock(arena);
  weir__block *block = weir__index_at_least(&arena->free, need);
  if (block && weir__is_whole_segment(block) && weir__release_segment(heap, block)) {
    weir__arena_unlock(arena);
    return true;
  }
  /* No single block is large enough: releases several, largest first. A split one exists only if the limit was higher
   * before; its segment is in use. */
  block = block ? weir__index_previous(&arena->free, block) : weir__index_last(&arena->free);
  while (block && released < need && weir__block_bytes(block) >= settings->max_split_size) {
    weir__block *smaller = weir__index_previous(&arena->free, block);
    uint64_t bytes = weir__block_bytes(block);
    if (weir__is_whole_segment(block) && weir__release_segment(heap, block))
      released += bytes;
    block = smaller;
  }
  weir__arena_unlock(arena);
  return released >= need;
}

/* ---- The sequence of attempts ---- */

bool weir__run_callbacks(weir__heap *heap) {
  weir_allocator *allocator = heap->allocator;
  if (!atomic_load(&allocator->memory_freers))
    return false;
  weir__mutex_unlock(&heap->lock);
  weir__op_notify(); /* trackers get earlier entries before the callbacks run */
  uint8_t reason = weir__this_thread.reason;
  weir__this_thread.reason = WEIR__REASON_UNKNOWN;
  bool freed = weir__observe_free_memory(allocator, heap->device);
  weir__this_thread.reason = reason;
  weir__mutex_lock(&heap->lock);
  return freed;
}

/* A block of the cache; where pages move, also one whose pages were taken, with pages again. */
static weir__block *search(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                           bool counted) {
  bool reuses = weir__growth_reuses(settings, arena->pool);
  if (counted)
    weir__count_search(arena->pool);
  weir__arena_lock(arena);
  weir__block *block = weir__arena_take(arena, settings, bytes, reuses);
  if (block && reuses && weir__pages_move(weir__segment_of(heap, block)))
    block = weir__move_to_cached(heap, arena, settings, block, bytes);
  else if (block)
    weir__block_hold(block); /* keeps other threads from merging it before it is handed out */
  weir__arena_unlock(arena);
  return block;
}

/* Borrows a free block from pools with use_on_oom, before a request fails. */
static weir__block *borrow(weir__heap *heap, const weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  if (arena->pool->owner)
    return NULL;
  for (weir__private_pool *pool = heap->private_pools; pool; pool = pool->next) {
    if (!pool->use_on_oom)
      continue;
    weir__arena *lender = weir__arena_get(arena->pool->is_small ? &pool->small : &pool->large, arena->stream);
    weir__block *block = lender ? search(heap, lender, settings, bytes, false) : NULL;
    if (block)
      return block;
  }
  return NULL;
}

/* Tells the program, which may free memory, without the heap's lock. Returns whether it was told. */
static bool tell_soft_limit(weir__heap *heap, const weir__arena *arena, uint64_t bytes) {
  const weir__account *by;
  char name[96];
  if (!atomic_load(&heap->allocator->limit_watchers) ||
      weir__account_headroom(&arena->account.account, WEIR__LIMIT_SOFT, &by) >= bytes)
    return false;
  weir__account_name(by, heap->device, name, sizeof name);
  const weir_soft_limit limit = {.size = sizeof limit,
                                 .device = heap->device,
                                 .account = name,
                                 .limit = by->limit[WEIR__LIMIT_SOFT],
                                 .bytes = (uint64_t)by->reserved[WEIR_STAT_ALL].current,
                                 .wanted = bytes};
  weir__mutex_unlock(&heap->lock);
  weir__op_notify();
  uint8_t reason = weir__this_thread.reason;
  weir__this_thread.reason = WEIR__REASON_UNKNOWN;
  weir__observe_soft_limit(heap->allocator, &limit);
  weir__this_thread.reason = reason;
  weir__mutex_lock(&heap->lock);
  return true;
}

/* A soft limit refuses nothing: what is only cached goes back first. A pool whose pages move takes from what is cached
 * anyway. */
static void give_back_above_soft_limit(weir__heap *heap, const weir__arena *arena, const weir__settings *settings,
                                       uint64_t bytes) {
  const weir__account *by;
  if (weir__account_headroom(&arena->account.account, WEIR__LIMIT_SOFT, &by) >= bytes ||
      weir__growth_reuses(settings, arena->pool) || atomic_load(&heap->captures))
    return;
  weir__this_thread.reason = WEIR__REASON_LIMIT;
  weir__release_account(heap, by);
  weir__this_thread.reason = WEIR__REASON_REQUEST;
}

/* What is obtained from the driver for a request, at least. */
static uint64_t growth_bytes(const weir__pool *pool, const weir__settings *settings, uint64_t bytes) {
  bool has_tag = pool->owner && pool->owner->tag && weir__growth_is_paged(pool->owner);
  return has_tag ? weir__round_up(bytes, WEIR__SMALL_SEGMENT) : weir__segment_bytes(settings, bytes);
}

/* New memory. Where pages move, a free block without pages comes first, and what a limit refuses there is not asked
 * again. */
static weir__block *grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                         uint64_t segment_bytes) {
  heap->pages.failure = WEIR_CU_SUCCESS;
  heap->refused_by = NULL;
  weir__block *block = weir__growth_reuses(settings, arena->pool) ? search(heap, arena, settings, bytes, false) : NULL;
  return block || heap->pages.failure || heap->refused_by
             ? block
             : weir__heap_grow(heap, arena, settings, bytes, segment_bytes);
}

static weir__block *refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  uint64_t segment_bytes = growth_bytes(arena->pool, settings, bytes);
  bool collects = weir__slow_reasons(heap) & WEIR__SLOW_AGING;
  weir__block *block = NULL;
  heap->pages.failure = WEIR_CU_SUCCESS;
  if (weir__growth_reuses(settings, arena->pool) &&
      ((block = search(heap, arena, settings, bytes, false)) || heap->pages.failure))
    return block;
  if (heap->sent.limbo && heap->sent.collect(heap) && (block = search(heap, arena, settings, bytes, collects)))
    return block;
  if (weir__run_callbacks(heap) && (block = search(heap, arena, settings, bytes, collects)))
    return block;
  if (collects) {
    weir__this_thread.reason = WEIR__REASON_COLLECTION;
    collect(heap, settings);
    weir__this_thread.reason = WEIR__REASON_REQUEST;
  }
  if (tell_soft_limit(heap, arena, segment_bytes) && (block = search(heap, arena, settings, bytes, collects)))
    return block;
  give_back_above_soft_limit(heap, arena, settings, segment_bytes);
  if ((block = grow(heap, arena, settings, bytes, segment_bytes)) || heap->pages.failure)
    return block;
  if (settings->throw_on_oom && weir__growth_reuses(settings, arena->pool))
    return NULL; /* is rejected */
  if ((block = borrow(heap, arena, settings, bytes)))
    return block;
  const weir__account *over = heap->refused_by ? heap->refused_by : &heap->accounts.device;
  uint8_t reason = heap->refused_by ? WEIR__REASON_LIMIT : WEIR__REASON_REQUEST;
  weir__this_thread.reason = reason;
  bool has_released = release_oversize(heap, arena, settings, bytes);
  weir__this_thread.reason = WEIR__REASON_REQUEST;
  if (has_released && ((block = grow(heap, arena, settings, bytes, segment_bytes)) || heap->pages.failure))
    return block;
  if (atomic_load(&heap->captures))
    return NULL;
  weir__this_thread.reason = reason;
  weir__release_account(heap, over);
  weir__this_thread.reason = WEIR__REASON_REQUEST;
  heap->stats.num_alloc_retries++;
  if ((block = grow(heap, arena, settings, bytes, segment_bytes)) || heap->pages.failure)
    return block;
  /* Waiting for events may have freed a suitable block, here or in a pool that lends blocks. */
  if ((block = search(heap, arena, settings, bytes, false)))
    return block;
  return borrow(heap, arena, settings, bytes);
}

/* Marks the recorded releases as the allocator's own, apart from those that the program requested. */
weir__block *weir__refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  weir__this_thread.reason = WEIR__REASON_REQUEST;
  weir__block *block = refill(heap, arena, settings, bytes);
  weir__this_thread.reason = WEIR__REASON_UNKNOWN;
  weir__this_thread.has_missed = weir__slow_reasons(heap) & WEIR__SLOW_TRACED;
  return block;
}

/* Calls the driver. NULL if there is no memory: the heap's lock is then released, and *status is set. */
static weir__block *refill_with_driver(const char *caller, weir__heap *heap, weir__arena *arena,
                                       const weir__settings *settings, uint64_t size, uint64_t requested,
                                       weir_status *status) {
  uint64_t segment_bytes = growth_bytes(arena->pool, settings, size);
  bool reuses = weir__growth_reuses(settings, arena->pool);
  weir_cu_context previous;
  weir__block *block = NULL;
  weir_cu_result r = weir__heap_enter(heap, &previous);
  if (r) {
    weir__mutex_unlock(&heap->lock);
    *status = weir__driver_status(heap->allocator->driver, r, caller, "cuDevicePrimaryCtxRetain");
    return NULL;
  }
  if (!reuses)
    *status = weir__reject(caller, heap, arena->stream, settings, segment_bytes, requested);
  if (!*status && !(block = weir__refill(heap, arena, settings, size))) {
    if (!weir__is_awake(arena->pool->owner)) { /* a callback has put it to sleep */
      *status = weir__not_awake(caller, arena->pool->owner->tag);
      weir__mutex_unlock(&heap->lock);
    } else if (heap->pages.failure)
      *status = weir__unlock_with_driver_error(caller, heap);
    else if (!reuses || !(*status = weir__reject(caller, heap, arena->stream, settings, segment_bytes, requested)))
      *status = weir__out_of_memory(caller, heap, arena, size, segment_bytes);
  }
  weir__heap_leave(heap, previous);
  return block;
}

weir_status weir__alloc_miss(const char *caller, weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                             uint64_t size, uint64_t requested, uint64_t *address) {
  weir_status status = weir__driver_check_stream(caller, heap->allocator->driver, arena->stream);
  if (status)
    return status;
  weir__mutex_lock(&heap->lock);
  weir__block *block = NULL;
  if (!weir__is_awake(arena->pool->owner)) {
    status = weir__not_awake(caller, arena->pool->owner->tag);
    weir__mutex_unlock(&heap->lock);
  } else
    block = refill_with_driver(caller, heap, arena, settings, size, requested, &status);
  if (!block) {
    weir__pools_finalize(heap);
    return status;
  }
  arena = weir__block_arena(heap, block); /* another pool may have lent it */
  weir__arena_lock(arena);
  block = weir__arena_hand_out(arena, settings, block, size, requested, false);
  if (block)
    weir__growth_mark(settings, arena, block);
  weir__account_publish(&arena->account);
  weir__arena_unlock(arena);
  weir__mutex_unlock(&heap->lock);
  weir__pools_finalize(heap);
  if (!block)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the block", caller);
  *address = block->address;
  WEIR__PROBE_MALLOC(*address, heap->device, requested, arena->stream);
  return WEIR_OK;
}

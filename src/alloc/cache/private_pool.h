/*
 * Private pools, and which of them serves a request. pools/ has the calls that create them and open
 * scopes. The heap's lock is held, unless a comment says otherwise.
 */
#pragma once

#include "alloc/cache/heap.h"
#include "record/this_thread.h"
#include "weir/pool.h"

static inline bool weir__same_pool(weir_pool_id a, weir_pool_id b) {
  return a.first == b.first && a.second == b.second;
}

/* NULL if there is no such pool. */
weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id);

/* Fails a call for a pool that does not exist. */
weir_status weir__no_pool(const char *caller, weir_pool_id id);

/* Whether a pool is the one that its tag was created with. */
static inline bool weir__is_own_pool(const weir__private_pool *pool) { return pool->tag && pool->tag->pool == pool; }

/* Whether a pool may grow: it has no tag, or one that is awake. NULL for the default pool. */
static inline bool weir__is_awake(const weir__private_pool *pool) {
  return !pool || !pool->tag || pool->tag->state == WEIR_TAG_AWAKE;
}

/* Fails a call that needs the memory of a tag which is not awake. */
weir_status weir__not_awake(const char *caller, const weir_tag *tag);

/* The tag of the thread's innermost scope on this device; NULL if it has none. Needs no lock. */
weir_tag *weir__thread_tag(const weir__heap *heap);

/* Finds or creates a pool, and adds a use. A new one belongs to `tag`, or to none. NULL without host memory. */
weir__private_pool *weir__pool_hold(weir__heap *heap, weir_pool_id id, const weir_pool_options *options, weir_tag *tag);

/* Deletes a released pool that has no memory, no scope and no allocation in progress. */
void weir__pool_drop(weir__heap *heap, weir__private_pool *pool);

/* Calls the destroy functions of pools that were dropped. No lock is held. */
void weir__pools_finalize(weir__heap *heap);

/* ---- Which pool serves a request. No lock is held ---- */

/* The thread's innermost scope, and its pool; NULL if it has none on this device. */
static inline const weir__scope *weir__thread_scope(const weir__heap *heap) {
  const weir__scope *scope = weir__this_thread.scope;
  while (scope && atomic_load_explicit(&scope->heap, memory_order_relaxed) != heap)
    scope = scope->outer;
  return scope;
}
static inline weir__private_pool *weir__thread_pool(const weir__heap *heap) {
  const weir__scope *scope = weir__thread_scope(heap);
  return scope ? scope->pool : NULL;
}

/* The private pool that a scope selects for an allocation on a stream: the thread's innermost scope, else the newest
 * one whose filter takes the stream; by PyTorch's rules the newest of all of these. NULL for the default pool. Until
 * weir__route_leave, the pool stays, even if the scope is closed and the pool released meanwhile. */
weir__private_pool *weir__route_enter(weir__heap *heap, unsigned reasons, weir_cu_stream stream);

/* The same for a pool that the thread's scope has selected; NULL is allowed in both calls. */
static inline void weir__route_stay(weir__private_pool *pool) {
  if (pool)
    atomic_fetch_add_explicit(&pool->holds, 1, memory_order_relaxed);
}
static inline void weir__route_leave(weir__private_pool *pool) {
  if (pool)
    atomic_fetch_sub_explicit(&pool->holds, 1, memory_order_release);
}

/* Whether a stream belongs to a capture: its first stream, and streams that have joined it. */
bool weir__stream_joined(weir_driver *driver, weir_cu_stream origin, weir_cu_stream stream);

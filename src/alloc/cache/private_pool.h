/*
 * Private pools and their records, and which of them serves a request. pools/ has the calls that create them and open
 * scopes. The heap's lock is held, unless a comment says otherwise.
 */
#ifndef WEIR_ALLOC_CACHE_PRIVATE_POOL_H
#define WEIR_ALLOC_CACHE_PRIVATE_POOL_H

#include "alloc/cache/heap.h"
#include "weir/pool.h"

static inline bool weir__same_pool(weir_pool_id a, weir_pool_id b) {
  return a.first == b.first && a.second == b.second;
}

/* NULL if there is no such pool. */
weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id);

/* Also finds the record of a deleted pool; NULL if there is none. */
weir__pool_record *weir__pool_record_find(const weir__heap *heap, weir_pool_id id);

/* Fails a call for a pool that does not exist. */
weir_status weir__no_pool(const char *caller, weir_pool_id id);

/* Finds or creates a pool, and adds a use. NULL without host memory. */
weir__private_pool *weir__pool_hold(weir__heap *heap, weir_pool_id id, const weir_pool_options *options);

/* Deletes a released pool that has no memory, no scope and no allocation in progress. */
void weir__pool_drop(weir__heap *heap, weir__private_pool *pool);

/* Calls the destroy functions of pools that were dropped. No lock is held. */
void weir__pools_finalize(weir__heap *heap);

/* The end of a heap. */
void weir__pool_records_clear(weir__heap *heap);

/* The private pool that a scope selects for an allocation on a stream; NULL for the default pool. Until
 * weir__route_leave, the pool stays, even if the scope is closed and the pool released meanwhile. No lock is held. */
weir__private_pool *weir__route_enter(weir__heap *heap, weir_cu_stream stream);
void weir__route_leave(weir__private_pool *pool);

/* Whether a stream belongs to a capture: its first stream, and streams that have joined it. */
bool weir__stream_joined(weir_driver *driver, weir_cu_stream origin, weir_cu_stream stream);

#endif

/*
 * Private pools, and the scopes that route allocations to them.
 */
#ifndef WEIR_ALLOC_POOLS_POOL_H
#define WEIR_ALLOC_POOLS_POOL_H

#include "alloc/cache/heap.h"

/* The heap's lock is held. NULL if there is no such pool. */
weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id);

/* Also finds the record of a deleted pool; NULL if there is none. The heap's lock is held. */
weir__pool_record *weir__pool_record_find(const weir__heap *heap, weir_pool_id id);

/* Fails a call for a pool that does not exist. */
weir_status weir__no_pool(const char *caller, weir_pool_id id);

/* The private pool that a scope selects for an allocation on a stream; NULL for the default pool. Until
 * weir__route_leave, the pool stays, even if the scope is closed and the pool released meanwhile. No lock is held. */
weir__private_pool *weir__route_enter(weir__heap *heap, weir_cu_stream stream);
void weir__route_leave(weir__private_pool *pool);

/* Deletes a released pool that has no memory, no scope and no allocation in progress. The heap's lock is held. */
void weir__pool_drop(weir__heap *heap, weir__private_pool *pool);

/* Calls the destroy functions of pools that were dropped. No lock is held. */
void weir__pools_finalize(weir__heap *heap);

/* Deletes the scopes and the pool records of a heap that is being destroyed. */
void weir__routes_clear(weir__heap *heap);

/* Open and close the scope of a capture of the runtime: allocations on its streams come from the pool. */
weir_status weir__capture_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_cu_stream stream);
void weir__capture_end(weir_allocator *allocator, int device, weir_pool_id id);

#endif

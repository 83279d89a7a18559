/*
 * Private pools, and the scopes that route allocations to them.
 */
#ifndef WEIR_ALLOC_POOL_H
#define WEIR_ALLOC_POOL_H

#include "alloc/heap.h"

/* The heap's lock is held. NULL if there is no such pool. */
weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id);

/* Also of a pool that has gone; NULL if nothing is known of it. The heap's lock is held. */
weir__pool_record *weir__pool_record_find(const weir__heap *heap, weir_pool_id id);

/* The private pool that a scope selects for an allocation on a stream; NULL for the default pool. Until weir__route_leave,
 * the pool stays, even if the scope is closed and the pool released meanwhile. No lock is held. */
weir__private_pool *weir__route_enter(weir__heap *heap, weir_cu_stream stream);
void weir__route_leave(weir__private_pool *pool);

/* Deletes a released pool, unless it has memory or a scope, or an allocation is under way in it. The heap's lock is held. */
void weir__pool_drop(weir__heap *heap, weir__private_pool *pool);

/* Calls the destroy functions of pools that were dropped. No lock is held. */
void weir__pools_finalize(weir__heap *heap);

/* The end of a heap: its scopes and the records of its pools. */
void weir__routes_clear(weir__heap *heap);

/* Open and close the scope of a capture of the runtime: allocations on its streams come from the pool. */
weir_status weir__capture_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_cu_stream stream);
void weir__capture_end(weir_allocator *allocator, int device, weir_pool_id id);

#endif

/*
 * The parts of giving memory back, for those who do not want all of it at once. The heap's lock is held, no arena's.
 */
#ifndef WEIR_ALLOC_RECLAIM_H
#define WEIR_ALLOC_RECLAIM_H

#include "alloc/heap.h"

/* Gives back what is free of one arena: what emptying the cache does with each. */
void weir__release_arena(weir__heap *heap, weir__arena *arena);

/* A pool that nobody holds goes, if it has no memory and nobody is just about to use it. */
void weir__pool_drop(weir__heap *heap, weir__private_pool *pool);

#endif

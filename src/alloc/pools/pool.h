/*
 * The public calls of private pools, and the scopes that route allocations to them.
 */
#pragma once

#include "alloc/cache/private_pool.h"

/* A released pool stays until the cache is emptied; it is listed as long as it has memory. */
static inline bool weir__pool_is_listed(const weir__private_pool *pool) { return !pool->is_released || pool->segments; }

/* Deletes the scopes of a heap that is being destroyed. A thread's own stay until it opens
 * another one or ends. */
void weir__scopes_clear(weir__heap *heap);

/* Guard heap->thread_scopes. */
void weir__scopes_lock(void);
void weir__scopes_unlock(void);

/* Open a scope of the calling thread for a pool, and close its innermost one. Scopes of one pool may nest here. The
 * heap's lock is held to open one. */
weir_status weir__thread_scope_open(weir__heap *heap, weir__private_pool *pool);
bool weir__thread_scope_close(const weir__private_pool *pool);

/* Fails, with both names, if the thread is in the scope of a tag and the pool belongs to another one, or to none. NULL
 * stands for a pool that is going to be created. The heap's lock is held. */
weir_status weir__tag_check(const char *caller, const weir__heap *heap, const weir__private_pool *pool);

/* Gives a pool that was created for a replay the tag that it had, which gets no pool of its own. The heap's lock is
 * held. */
weir_status weir__tag_adopt(weir__private_pool *pool, const char *name);

/* Deletes the tags of a heap that is being destroyed, and before that, with its context current, what they keep. */
void weir__tags_clear(weir__heap *heap);
void weir__tags_end_sleep(weir__heap *heap);

/* Hooks of the runtime's graphs: open and close the scope of a capture, whose streams allocate from the pool. */
weir_status weir__capture_begin(void *allocator, int device, weir_pool_id id, weir_cu_stream stream);
void weir__capture_end(void *allocator, int device, weir_pool_id id);

/*
 * Private pools: memory that is kept apart, for captured graphs and for whoever wants a pool of their own.
 *
 * A pool is named by a weir_pool_id and lives as long as somebody holds it: each create and each begin holds it once, each
 * release lets go. When nobody holds it its free memory may go, at the next empty_cache or when memory runs short; memory
 * that is still in use goes when it is freed.
 */
#ifndef WEIR_POOL_H
#define WEIR_POOL_H

#include <stddef.h>
#include <stdint.h>

#include "weir/driver.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of weir/alloc.h, which includes this header. */
typedef struct weir_allocator weir_allocator;
typedef struct weir_stat weir_stat;

/* Names a pool. {0, 0} is the default pool, or none. The id of a pool that a graph creates is {n, 0}, that of
 * weir_graph_pool_handle {0, n}. */
typedef struct weir_pool_id {
  uint64_t first, second;
} weir_pool_id;

typedef struct weir_pool_options {
  size_t size;    /* sizeof(weir_pool_options) */
  int use_on_oom; /* 1: free blocks of it serve others before a request fails */
  int no_split;   /* 1: each segment serves one allocation */
  /* Where its segments come from, instead of the driver. NULL from alloc means out of memory. */
  void *(*alloc)(void *context, size_t bytes, int device, weir_cu_stream stream);
  void (*free)(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream);
  void *context;
  void (*destroy)(void *context); /* optional: the pool is gone, and calls neither of them any more. No lock is held */
} weir_pool_options;

void weir_pool_options_init(weir_pool_options *options);

/* Makes the pool, or holds the one of that id once more; options are only for a new one. */
weir_status weir_pool_create(weir_allocator *allocator, int device, weir_pool_id id, const weir_pool_options *options);
weir_status weir_pool_release(weir_allocator *allocator, int device, weir_pool_id id);
weir_status weir_pool_use_count(weir_allocator *allocator, int device, weir_pool_id id, int *count);

/* The bytes that the pool holds from the driver, by kind: reserved_bytes has room for WEIR_STAT_KINDS values. The counts of
 * the most recent 128 pools that had memory are kept when the pool is gone, and continue if a pool of the same id is created. */
weir_status weir_pool_get_stats(weir_allocator *allocator, int device, weir_pool_id id, weir_stat *reserved_bytes);
weir_status weir_pool_set_use_on_oom(weir_allocator *allocator, int device, weir_pool_id id, int use);
weir_status weir_pool_set_no_split(weir_allocator *allocator, int device, weir_pool_id id, int no_split);

/* From here on allocations on streams for which `filter` returns 1 come from the pool; filter NULL: those of the calling
 * thread. Scopes may be nested: the innermost that wants an allocation gets it. Makes the pool if need be, and holds it. */
typedef int (*weir_pool_filter)(void *context, weir_cu_stream stream);
weir_status weir_pool_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_pool_filter filter,
                            void *context);

/* Closes the scope. The pool stays held until weir_pool_release. */
weir_status weir_pool_end(weir_allocator *allocator, int device, weir_pool_id id);

/* A capture that is not the runtime's (weir_graph_...) is under way on a device: until the end of it the allocator calls
 * nothing that would disturb it. For those who capture by the driver's own calls; they nest. What is allocated meanwhile goes
 * to a pool only where a scope sends it there. */
weir_status weir_allocator_begin_capture(weir_allocator *allocator, int device);
weir_status weir_allocator_end_capture(weir_allocator *allocator, int device);

/* *equal is 1 when the pool's live allocations are exactly these. */
weir_status weir_pool_check_live(weir_allocator *allocator, int device, weir_pool_id id, void *const *pointers,
                                 size_t count, int *equal);

/* A pool's state: which blocks there are, and which are in use. Restoring it frees what was allocated since, and makes what
 * was in use then live again, at the same addresses. */
typedef struct weir_checkpoint weir_checkpoint;

/* Waits until no other stream uses a block of the pool, freed or live: as long as one does, its state can neither be taken nor
 * restored. Not during a capture: WEIR_ERROR_BAD_STATE. */
weir_status weir_pool_wait(weir_allocator *allocator, int device, weir_pool_id id);
weir_status weir_pool_checkpoint(weir_allocator *allocator, int device, weir_pool_id id, weir_checkpoint **checkpoint);
void weir_checkpoint_destroy(weir_checkpoint *checkpoint);

/* What restoring changed; the arrays belong to it. */
typedef struct weir_checkpoint_delta {
  void **freed, **allocated;
  size_t freed_count, allocated_count;
} weir_checkpoint_delta;
weir_status weir_pool_restore(weir_allocator *allocator, const weir_checkpoint *checkpoint,
                              weir_checkpoint_delta *delta);
void weir_checkpoint_delta_clear(weir_checkpoint_delta *delta);

/* The allocator serves the runtime's graphs: what is allocated during a capture comes from the graph's pool. NULL ends it. */
weir_status weir_graph_use_allocator(weir_allocator *allocator);

#ifdef __cplusplus
}
#endif
#endif

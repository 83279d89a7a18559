/*
 * Private pools: memory that is kept apart from the default pool, for captured graphs or for uses of the program.
 *
 * A pool is named by a weir_pool_id and has a use count: each create and each begin adds one, each release subtracts
 * one. At zero, its free memory is returned to the driver by the next empty_cache or when memory runs short, and memory
 * that is still allocated after its free.
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
  int use_on_oom; /* 1: its free blocks serve the default pool before a request fails */
  int no_split;   /* 1: each segment serves one allocation */
  /* Functions that provide its segments in place of the driver. alloc returns NULL if out of memory. */
  void *(*alloc)(void *context, uint64_t bytes, int device, weir_cu_stream stream);
  void (*free)(void *context, void *pointer, uint64_t bytes, int device, weir_cu_stream stream);
  void *context;
  void (*destroy)(void *context); /* optional; called without a lock when the pool is gone */
  /* 1: its free pages move to where they are needed, within the pool (the setting moving_pages). Otherwise they stay,
   * whatever the setting: the pool suits memory that is registered with NCCL or a network card. Pages of a pool that
   * graphs were captured into always stay. */
  int moving_pages;
} weir_pool_options;

/* Sets `size` and the defaults. */
static inline void weir_pool_options_init(weir_pool_options *options) { WEIR__INIT(options); }

/* Creates the pool, or adds one use to the existing pool of that id, which ignores the options. */
weir_status weir_pool_create(weir_allocator *allocator, int device, weir_pool_id id, const weir_pool_options *options);
weir_status weir_pool_release(weir_allocator *allocator, int device, weir_pool_id id);
weir_status weir_pool_use_count(weir_allocator *allocator, int device, weir_pool_id id, int *count);

/* The ids of a device's private pools that are in use, or released and still have memory; with_gone 1: of all whose
 * statistics are known (weir_pool_reserved_bytes), which are also the most recent 128 that had memory and are gone.
 * PyTorch's statistics by pool include those too. *count is their number, even if `room` is smaller. */
weir_status weir_allocator_pools(weir_allocator *allocator, int device, int with_gone, weir_pool_id *pools, size_t room,
                                 size_t *count);

/* The bytes that the pool holds from the driver, by kind: reserved_bytes has room for WEIR_STAT_KINDS values. The
 * counts of the most recent 128 pools that had memory are kept when the pool is gone, and continue if a pool of the
 * same id is created. */
weir_status weir_pool_reserved_bytes(weir_allocator *allocator, int device, weir_pool_id id, weir_stat *reserved_bytes);

/* Limits what the pool may hold from the driver, in bytes; UINT64_MAX means no limit. Beyond the soft limit, observers
 * are told and cached memory of the pool is given back; beyond the hard one, a request fails with
 * WEIR_ERROR_OUT_OF_MEMORY, and the text names the pool. Pool {0, 0} is the default one. The limits last as long as the
 * pool's statistics are known. WEIR_ERROR_INVALID_ARGUMENT if the soft limit is above the hard one. */
weir_status weir_pool_set_limits(weir_allocator *allocator, int device, weir_pool_id id, uint64_t soft, uint64_t hard);
weir_status weir_pool_set_use_on_oom(weir_allocator *allocator, int device, weir_pool_id id, int use);
weir_status weir_pool_set_no_split(weir_allocator *allocator, int device, weir_pool_id id, int no_split);

/* Opens a scope: allocations on streams for which `filter` returns 1, by any thread, come from the pool. A NULL filter
 * selects the allocations of the calling thread instead. The innermost scope of the thread comes first, then those with
 * a filter and those of captures, newest first. Creates the pool if there is none, and adds one use. Several threads
 * may have a scope of one pool; WEIR_ERROR_BAD_STATE if the calling thread has one already, or if there is one with a
 * filter.
 *
 * Allocations in a thread's scope need no lock that they would not need outside. The scope ends with the thread at the
 * latest. Until its end, a pool that is released stays. */
typedef int (*weir_pool_filter_fn)(void *context, weir_cu_stream stream);
weir_status weir_pool_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_pool_filter_fn filter,
                            void *context);

/* Closes the scope: that of the calling thread, or else the one with a filter. Another thread's scope cannot be closed,
 * unless the allocator has PyTorch's rules (weir_allocator_options.scopes_as_pytorch).
 * The use lasts until weir_pool_release. */
weir_status weir_pool_end(weir_allocator *allocator, int device, weir_pool_id id);

/* For programs that capture with the driver's own calls in place of weir_graph_...: between these two calls, which
 * nest, the allocator makes no driver call that would invalidate a capture on the device. Allocations come from a
 * private pool only inside a scope. */
weir_status weir_allocator_begin_capture(weir_allocator *allocator, int device);
weir_status weir_allocator_end_capture(weir_allocator *allocator, int device);

/* *equal is 1 if the pool's allocations are exactly these, otherwise 0. */
weir_status weir_pool_has_exactly(weir_allocator *allocator, int device, weir_pool_id id, void *const *pointers,
                                  size_t count, int *equal);

/* The state of a pool: its blocks, and which of them are allocated. Restoring it frees what was allocated since, and
 * allocates what was allocated then at the same addresses. */
typedef struct weir_checkpoint weir_checkpoint;

/* Waits until no other stream uses a block of the pool, freed or allocated. While one does, a checkpoint can be
 * neither taken nor restored. WEIR_ERROR_BAD_STATE during a capture. */
weir_status weir_pool_wait(weir_allocator *allocator, int device, weir_pool_id id);
weir_status weir_pool_checkpoint(weir_allocator *allocator, int device, weir_pool_id id, weir_checkpoint **checkpoint);
void weir_checkpoint_destroy(weir_checkpoint *checkpoint);

/* What restoring changed. weir_checkpoint_delta_clear frees the arrays. */
typedef struct weir_checkpoint_delta {
  size_t size; /* sizeof(weir_checkpoint_delta) */
  void **freed, **allocated;
  size_t freed_count, allocated_count;
} weir_checkpoint_delta;

/* Sets `size` and makes the rest zero, for weir_pool_restore. */
static inline void weir_checkpoint_delta_init(weir_checkpoint_delta *delta) { WEIR__INIT(delta); }

/* Restores the state of the pool. The caller sets delta->size. */
weir_status weir_pool_restore(weir_allocator *allocator, const weir_checkpoint *checkpoint,
                              weir_checkpoint_delta *delta);

/* Keeps `size`. NULL is allowed. */
void weir_checkpoint_delta_clear(weir_checkpoint_delta *delta);

#ifdef __cplusplus
}
#endif
#endif

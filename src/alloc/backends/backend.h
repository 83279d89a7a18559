/*
 * Back ends other than the cache: each allocation and each free is a call of the back end.
 *
 * The bookkeeping is shared with the cache. Each allocation is a segment with one block in the arena of its stream, so
 * counters, traces, history, snapshots, limits and waiting for other streams use the same code. Three things differ:
 * blocks are found in a range map, because one granule of the page map could hold thousands of them; blocks are never
 * in the free index; and every allocation takes the slow path (WEIR__SLOW_BACKEND).
 *
 * Functions of the program are called with no lock held. A segment leaves all lists before it is returned to them;
 * where that happens under a lock, it is queued on heap->returning first. Stream-ordered memory of the driver (async.c)
 * is called with the heap's lock held instead: its calls can fail, and the bookkeeping then stays unchanged.
 */
#ifndef WEIR_ALLOC_BACKENDS_BACKEND_H
#define WEIR_ALLOC_BACKENDS_BACKEND_H

#include <stdbool.h>

#include "alloc/cache/heap.h"
#include "base/rangemap.h"
#include "base/thread.h"
#include "weir/alloc.h"

/* Stream-ordered memory of one device. Guarded by the heap's lock. */
typedef struct weir__async_device {
  weir_cu_mempool pool;   /* NULL until first used */
  weir_cu_stream joining; /* frees memory that several streams used; NULL until first used */
  bool has_warned;        /* about memory of a graph that was freed outside of the capture */
} weir__async_device;

struct weir__backend_state {
  weir_backend calls; /* alloc is NULL for the driver's stream-ordered memory */
  char *name;
  weir__mutex lock;
  weir__rangemap pointers; /* live memory -> its arena; guarded by the lock, which is a leaf */
  weir__async_device *devices;
};

/* ---- The back end (backend.c). No lock is held, unless a comment says otherwise ---- */

/* `backend` is that of the options; NULL selects the driver's stream-ordered memory. */
weir_status weir__backend_new(const char *caller, weir_allocator *allocator, const weir_backend *backend);
void weir__backend_delete(weir__backend_state *backend);
weir_status weir__backend_alloc(const char *caller, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                                weir_cu_stream stream, uint64_t *address);
weir_status weir__backend_free(const char *caller, weir_allocator *allocator, uint64_t address);

/* Returns memory whose last use has ended to its owner. */
void weir__backend_return_segments(weir__heap *heap);

/* The arena of a live pointer of the back end; NULL if it is not live. */
weir__arena *weir__backend_arena(weir_allocator *allocator, uint64_t address);

/* The arena of a pointer, with the cache or with a back end. */
static inline weir__arena *weir__arena_of(weir_allocator *allocator, uint64_t address) {
  return allocator->backend ? weir__backend_arena(allocator, address)
                            : weir__page_map_find(allocator->page_map, address);
}
static inline weir__arena *weir__block_arena(const weir__heap *heap, const weir__block *block) {
  return weir__arena_of(heap->allocator, block->address);
}

/* Whether the back end is the driver's stream-ordered memory. */
bool weir__backend_is_async(const weir_allocator *allocator);

/* Forwards to a back end that tracks streams itself. Returns false if it does not. */
bool weir__backend_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream);
void *weir__backend_base(weir_allocator *allocator, void *pointer, uint64_t *bytes);

/* Completes the free of a block whose streams have all finished. The heap's lock and the arena's are held. */
void weir__backend_block_done(weir__heap *heap, weir__block *block);

/* Frees a block in stream order, after all streams that use it; *done says whether that succeeded. Returns false if the
 * back end is not stream-ordered. The heap's lock is held. */
bool weir__backend_join_streams(weir__heap *heap, weir__block *block, bool *done);

/* Releases cached memory of one pool, or of all if the id is {0, 0}. */
weir_status weir__backend_empty(const char *caller, weir__heap *heap, weir_pool_id id);
void weir__backend_reset(weir_allocator *allocator);

/* Returns all memory of a heap that is being destroyed. */
void weir__backend_clear(weir__heap *heap);
void weir__backend_read_stats(weir__heap *heap, weir_allocator_stats *stats);
void weir__backend_reset_peaks(weir__heap *heap);
uint64_t weir__backend_spare(weir__heap *heap);

/* Forward limits and the scopes of private pools to the back end. */
void weir__backend_set_fraction(weir__heap *heap, double fraction);
void weir__backend_begin_pool(weir__heap *heap, weir_pool_id id, int (*filter)(void *context, weir_cu_stream stream),
                              void *context);
void weir__backend_end_pool(weir__heap *heap, weir_pool_id id);
void weir__backend_release_pool(weir__heap *heap, weir_pool_id id);
weir_cu_result weir__backend_share(weir__heap *heap, int device);

/* ---- The driver's stream-ordered memory (async.c). The heap's lock is held, and its context is current ---- */

/* Whether the driver supports stream-ordered memory. */
bool weir__async_is_supported(const weir_driver *driver);

/* *captured says whether the memory belongs to a graph. */
weir_cu_result weir__async_alloc(weir__heap *heap, weir_cu_stream stream, uint64_t bytes, weir_cu_deviceptr *memory,
                                 bool *captured);

/* Whether the segment can be freed now: during a capture, only memory of the graph can. */
bool weir__async_can_free(weir__heap *heap, const weir__segment *segment);

/* Frees the block after the work of all streams that use it. */
weir_cu_result weir__async_free(weir__heap *heap, const weir__block *block);

/* Waits for a stream, or with `all` for the whole device, and returns unused memory of the pool to the device. */
weir_cu_result weir__async_trim(weir__heap *heap, weir_cu_stream stream, bool all);

void weir__async_read_stats(weir__heap *heap, weir_allocator_stats *stats);
void weir__async_reset_peaks(weir__heap *heap);

/* Bytes that the pool holds and that are not allocated. */
uint64_t weir__async_spare(weir__heap *heap);
weir_cu_result weir__async_share(weir__heap *heap, int device);

/* Destroys the pool and the stream. No memory of the pool is in use. */
void weir__async_close(weir__heap *heap);

#endif

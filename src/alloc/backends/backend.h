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
#pragma once

#include <stdbool.h>

#include "alloc/cache/backend_port.h"
#include "weir/alloc.h"

/* Stream-ordered memory of one device. Guarded by the heap's lock. */
typedef struct weir__async_device {
  weir_cu_mempool pool;   /* NULL until first used */
  weir_cu_stream joining; /* frees memory that several streams used; NULL until first used */
  bool has_warned;        /* about memory of a graph that was freed outside of the capture */
} weir__async_device;

/* ---- The back end (backend.c): what is not in the port. No lock is held, unless a comment says otherwise ---- */

/* `backend` is that of the options; NULL selects the driver's stream-ordered memory. */
weir_status weir__backend_new(const char *caller, weir_allocator *allocator, const weir_backend *backend);
void weir__backend_delete(weir_allocator *allocator);

/* Returns all memory of a heap that is being destroyed. */
void weir__backend_clear(weir__heap *heap);

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
weir_cu_result weir__async_share(weir__heap *heap, int device);

/* Bytes that the pool holds and that are not allocated. */
uint64_t weir__async_spare(weir__heap *heap);

/* Destroys the pool and the stream. No memory of the pool is in use. */
void weir__async_close(weir__heap *heap);

/*
 * Other back ends: every allocation is a call of theirs, and so is every free. Nothing is cached here.
 *
 * The books are those of the cache: each allocation is a segment with one block, in the arena of its stream, so that counters,
 * traces, history, snapshots, limits and the wait for other streams are the same code. Only three things differ. Blocks are
 * found by a map of their own, since a granule of the page map would be shared by thousands of them; they never come into
 * the index; and an allocation always takes the long way (WEIR__SLOW_BACKEND).
 *
 * Functions of the program's are called with no lock held. Memory that goes back to them has left the books before; that a
 * stream was waited for is noticed with locks held, and so it is put on a list then. The driver's stream-ordered memory
 * (async.c) is asked with the heap's lock held instead: its calls can fail, and then the books stay as they are.
 */
#ifndef WEIR_ALLOC_BACKEND_H
#define WEIR_ALLOC_BACKEND_H

#include <stdbool.h>

#include "alloc/heap.h"
#include "base/rangemap.h"
#include "base/thread.h"
#include "weir/alloc.h"

/* Stream-ordered memory of one device. Guarded by the heap's lock. */
typedef struct weir__async_device {
  weir_cu_mempool pool;   /* NULL: not made yet */
  weir_cu_stream joining; /* in which memory that several streams used is freed; NULL: not made yet */
  bool has_warned;        /* of a graph's memory that is freed outside of it */
} weir__async_device;

struct weir__backend_state {
  weir_backend calls; /* `alloc` NULL: the driver's stream-ordered memory */
  char *name;
  weir__mutex lock;
  weir__rangemap pointers; /* live memory -> its arena; guarded by the lock, which is taken last */
  weir__async_device *devices;
};

/* ---- The calls (backend.c). No lock is held, unless a comment says otherwise ---- */

/* `backend` is that of the options; NULL selects the driver's stream-ordered memory. */
weir_status weir__backend_new(const char *who, weir_allocator *allocator, const weir_backend *backend);
void weir__backend_delete(weir__backend_state *backend);
weir_status weir__backend_alloc(const char *who, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                                weir_cu_stream stream, void **pointer);
weir_status weir__backend_free(const char *who, weir_allocator *allocator, void *pointer);

/* The arena of a live pointer of the back end; NULL if it is not live. */
weir__arena *weir__backend_arena(weir_allocator *allocator, const void *pointer);

/* The same, with the cache or with a back end. */
static inline weir__arena *weir__arena_of(weir_allocator *allocator, const void *pointer) {
  return allocator->backend ? weir__backend_arena(allocator, pointer)
                            : weir__page_map_find(allocator->pages, (uint64_t)pointer);
}
static inline weir__arena *weir__block_arena(const weir__heap *heap, const weir__block *block) {
  return weir__arena_of(heap->allocator, (const void *)block->address);
}

/* Whether it is the driver's stream-ordered memory. */
bool weir__backend_is_async(const weir_allocator *allocator);

/* True if the back end tracks streams itself, and was called. */
bool weir__backend_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream);
void *weir__backend_base(weir_allocator *allocator, void *pointer, uint64_t *bytes);

/* No other stream uses the freed block any more. The heap's lock and the arena's are held. */
void weir__backend_block_done(weir__heap *heap, weir__block *block);

/* Frees a block behind all streams that use it, so that there is nothing to wait for; *done: it succeeded. False if the back
 * end cannot do that. The heap's lock is held. */
bool weir__backend_join_streams(weir__heap *heap, weir__block *block, bool *done);

/* Pool {0, 0} means all. */
weir_status weir__backend_empty(const char *who, weir__heap *heap, weir_pool_id id);
void weir__backend_reset(weir_allocator *allocator);

/* The end of a heap whose work is done. */
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

/* ---- The driver's stream-ordered memory (async.c). The heap's lock is held, and its context is the thread's ---- */

/* Whether the driver has such memory. */
bool weir__async_is_there(const weir_driver *driver);

/* *captured: it is memory of a graph. */
weir_cu_result weir__async_alloc(weir__heap *heap, weir_cu_stream stream, uint64_t bytes, weir_cu_deviceptr *memory,
                                 bool *captured);

/* During a capture only memory that is the graph's can be freed. */
bool weir__async_can_free(weir__heap *heap, const weir__segment *segment);

/* After all streams that use the block. */
weir_cu_result weir__async_free(weir__heap *heap, const weir__block *block);

/* Gives back to the device what is free once a stream, or with `all` every one, got to where it is now. */
weir_cu_result weir__async_trim(weir__heap *heap, weir_cu_stream stream, bool all);

void weir__async_read_stats(weir__heap *heap, weir_allocator_stats *stats);
void weir__async_reset_peaks(weir__heap *heap);

/* What the pool holds, and nobody uses. */
uint64_t weir__async_spare(weir__heap *heap);
weir_cu_result weir__async_share(weir__heap *heap, int device);

/* The end: nothing of it is in use any more. */
void weir__async_close(weir__heap *heap);

#endif

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

#include <pthread.h>
#include <stdbool.h>

#include "alloc/heap.h"
#include "base/rangemap.h"
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
  pthread_mutex_t lock;
  weir__rangemap pointers; /* live memory -> its arena; guarded by the lock, which is taken last */
  weir__async_device *devices;
};

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

/*
 * Pinned host memory, cached.
 *
 * Memory that a device reaches by itself has to be locked in place, which takes the driver far longer than an allocation may.
 * So it is kept when it is freed, and used again for requests of its size: sizes are rounded up to powers of two, and a block
 * is never cut. A copy that a stream still has to make is waited for: whoever gives the memory to a stream says so
 * (weir_host_record_stream), and when it is freed it is not used again before that stream got there.
 *
 *     void *pointer;
 *     weir_host_alloc(host, bytes, &pointer);
 *     weir_copy_async(...);                                      from or to it, on a stream of device 0
 *     weir_host_record_stream(host, pointer, 0, stream);
 *     weir_host_free(host, pointer);                             at once: nobody has to wait
 *
 * An allocator is an object; a program can have many. Every call may be made from any thread, but not in a forked
 * child: WEIR_ERROR_BAD_FORK.
 */
#ifndef WEIR_HOST_H
#define WEIR_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "weir/alloc.h"
#include "weir/driver.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_host_allocator weir_host_allocator;

/* An allocator over a driver whose Init was called. The driver stays the caller's, and outlives it. conf has settings as those
 * of a weir_allocator, of which the pinned_... ones apply; NULL reads WEIR_ALLOC_CONF or PyTorch's variables. No device is
 * touched before the first allocation. */
weir_status weir_host_allocator_create(weir_driver *driver, const char *conf, weir_host_allocator **host);

/* Gives all memory back to the driver, also what is still in use, after the devices' work is done. NULL is allowed. */
void weir_host_allocator_destroy(weir_host_allocator *host);

/* 0 bytes give NULL. WEIR_ERROR_HOST_OUT_OF_MEMORY when the driver has no more: weir_last_error() says how much is held. */
weir_status weir_host_alloc(weir_host_allocator *host, size_t bytes, void **pointer);

/* NULL is allowed. A pointer that is not live here is WEIR_ERROR_INVALID_ARGUMENT. Memory that is too large to be kept goes back
 * to the driver at once: an error of that is reported, and the memory is free all the same. */
weir_status weir_host_free(weir_host_allocator *host, void *pointer);

/* A stream of a device uses the memory that the pointer is in, from its start or anywhere: when it is freed, it is not used
 * again before the stream got to what it has now. What a stream records into a graph uses its memory at every launch: such
 * memory is not used again. */
weir_status weir_host_record_stream(weir_host_allocator *host, void *pointer, int device, weir_cu_stream stream);

/* The same for a stream of the runtime. */
weir_status weir_host_record_stream_on(weir_host_allocator *host, void *pointer, weir_stream stream);

/* Gives memory that is not in use back to the driver. */
weir_status weir_host_empty_cache(weir_host_allocator *host);

/* Changes settings; keys that are not named stay as they are. On an error nothing changes. */
weir_status weir_host_configure(weir_host_allocator *host, const char *conf);

/* *owns becomes 1 when the pointer lies in memory that was allocated here and not freed. */
weir_status weir_host_owns(weir_host_allocator *host, const void *pointer, int *owns);

/* ---- Statistics: the names are those of torch.cuda.host_memory_stats() ---- */

/* Times of calls of the driver, in microseconds. */
typedef struct weir_host_time {
  int64_t total, max, min, count; /* all 0: there was no call */
} weir_host_time;

typedef struct weir_host_stats {
  size_t size;               /* sizeof(weir_host_stats) */
  weir_stat allocations;     /* blocks that are held, in use or not */
  weir_stat active_requests; /* of them in use, or freed and waiting for a stream */
  weir_stat allocated_bytes; /* of blocks that are held */
  weir_stat active_bytes;    /* of those in use or waiting */
  int64_t num_host_alloc;    /* calls of the driver that got memory */
  int64_t num_host_free;     /* calls that gave it back */
  weir_host_time host_alloc_time, host_free_time;
} weir_host_stats;

void weir_host_stats_init(weir_host_stats *stats);

/* stats->size is set by the caller. */
weir_status weir_host_get_stats(weir_host_allocator *host, weir_host_stats *stats);
weir_status weir_host_reset_peak_stats(weir_host_allocator *host);
weir_status weir_host_reset_accumulated_stats(weir_host_allocator *host);

#ifdef __cplusplus
}
#endif
#endif

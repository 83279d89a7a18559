/*
 * Cached pinned host memory.
 *
 * Pinning memory, so that devices can access it, takes the driver far longer than an allocation should. Freed memory is
 * therefore kept and reused for requests of its size: sizes are rounded up to powers of two, and blocks are not split.
 * A program that gives the memory to a stream says so (weir_host_record_stream); after the free the memory is not
 * reused before that stream has finished with it.
 *
 *     void *pointer;
 *     weir_host_alloc(host, bytes, &pointer);
 *     weir_copy_async(...);                                      from or to it, on a stream of device 0
 *     weir_host_record_stream(host, pointer, 0, stream);
 *     weir_host_free(host, pointer);                             no need to wait for the stream
 *
 * An allocator is an object, and a program can have many. Every call is thread-safe. In a forked child every call
 * returns WEIR_ERROR_BAD_FORK.
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

typedef struct weir_host_allocator_options {
  size_t size;      /* sizeof(weir_host_allocator_options) */
  const char *conf; /* settings of a weir_allocator, of which the pinned_... ones apply; NULL reads WEIR_ALLOC_CONF or
                     * PyTorch's variables */
} weir_host_allocator_options;

/* Sets `size` and the defaults. */
static inline void weir_host_allocator_options_init(weir_host_allocator_options *options) { WEIR__INIT(options); }

/* Creates an allocator on a driver whose Init has been called. The caller keeps the driver, which must outlive the
 * allocator. NULL options are the defaults. Devices are used from the first allocation on. */
weir_status weir_host_allocator_create(weir_driver *driver, const weir_host_allocator_options *options,
                                       weir_host_allocator **host);

/* Returns all memory to the driver, including memory that is still allocated; if memory is allocated, or was freed
 * while a stream or a graph uses it, waits for the devices first. NULL is allowed. */
void weir_host_allocator_destroy(weir_host_allocator *host);

/* 0 bytes give NULL. WEIR_ERROR_HOST_OUT_OF_MEMORY if the driver has no more: weir_last_error() says how much is
 * held. */
weir_status weir_host_alloc(weir_host_allocator *host, uint64_t bytes, void **pointer);

/* NULL is allowed. A pointer that is not allocated here is WEIR_ERROR_INVALID_ARGUMENT. Memory that is too large to
 * be kept is returned to the driver at once; if that fails, the error is returned and the memory counts as free. */
weir_status weir_host_free(weir_host_allocator *host, void *pointer);

/* Says that a stream of a device uses the memory that contains the pointer. After the free, the memory is not reused
 * before that stream has done the work that it had when the memory was freed. Memory that a capture uses is used
 * again at every launch of the graph: it is reused when the graph and its executables have been destroyed and their
 * launches are done or, if the driver has no user objects, never. The capture must not end during the call.
 *
 * The stream must exist until the memory is freed: NVIDIA's driver may crash when it is asked about a stream that was
 * destroyed. If the driver answers with an error instead, as the software device does, weir_host_empty_cache makes the
 * memory free again. */
weir_status weir_host_record_stream(weir_host_allocator *host, void *pointer, int device, weir_cu_stream stream);

/* Returns unused memory to the driver. Waits for a device if a stream that was destroyed used memory which has been
 * freed since; then no stream of that device may capture. */
weir_status weir_host_empty_cache(weir_host_allocator *host);

/* Changes settings; keys that are not named keep their values. On an error nothing changes. */
weir_status weir_host_configure(weir_host_allocator *host, const char *conf);

/* *owns is 1 if the pointer lies in memory that is allocated here, otherwise 0. */
weir_status weir_host_owns(weir_host_allocator *host, const void *pointer, int *owns);

/* ---- Statistics: the names are those of torch.cuda.host_memory_stats() ---- */

/* Times of driver calls, in microseconds. */
typedef struct weir_host_time {
  int64_t total, max, min, count; /* all 0 if there was no call */
} weir_host_time;

typedef struct weir_host_stats {
  size_t size;               /* sizeof(weir_host_stats) */
  weir_stat allocations;     /* blocks held from the driver */
  weir_stat active_requests; /* blocks that are allocated, or freed and waiting for a stream */
  weir_stat allocated_bytes; /* bytes held from the driver */
  weir_stat active_bytes;    /* bytes of blocks that are allocated or waiting */
  int64_t num_host_alloc;    /* driver calls that obtained memory */
  int64_t num_host_free;     /* driver calls that returned memory */
  weir_host_time host_alloc_time, host_free_time;
} weir_host_stats;

/* Sets `size` and makes the rest zero, for weir_host_get_stats. */
static inline void weir_host_stats_init(weir_host_stats *stats) { WEIR__INIT(stats); }

/* The caller sets stats->size. */
weir_status weir_host_get_stats(weir_host_allocator *host, weir_host_stats *stats);
weir_status weir_host_reset_peak_stats(weir_host_allocator *host);
weir_status weir_host_reset_accumulated_stats(weir_host_allocator *host);

#ifdef __cplusplus
}
#endif
#endif

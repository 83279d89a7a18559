/*
 * Device memory from the process default allocator.
 *
 *     void *pointer;
 *     weir_malloc(bytes, stream, &pointer);
 *     ...                                     use it on the stream
 *     weir_free(pointer);                     no need to wait for the stream
 *
 * The process default is an ordinary weir_allocator (weir/alloc.h) on the driver of the runtime and on all its devices.
 * The first call that needs it creates it, from any thread, with the settings of the environment (WEIR_ALLOC_CONF, or
 * PyTorch's variables). It serves the allocations of the runtime's graphs, unless the program has set memory hooks of
 * its own (weir/graph.h).
 *
 * weir_shutdown destroys it, and returns WEIR_ERROR_BAD_STATE while memory of it is allocated. In a forked child the
 * calls below return WEIR_ERROR_BAD_FORK.
 */
#ifndef WEIR_MEMORY_H
#define WEIR_MEMORY_H

#include <stddef.h>

#include "weir/alloc.h"
#include "weir/device.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Allocates memory on the stream's device for use on the stream. 0 bytes give NULL. WEIR_ERROR_OUT_OF_MEMORY if the
 * device has no more: weir_last_error() says where the memory is, and the program can continue.
 *
 * The first allocation of a process must not be made during a capture: WEIR_ERROR_BAD_STATE. */
weir_status weir_malloc(uint64_t bytes, weir_stream stream, void **pointer);

/* Frees memory of weir_malloc. Work that is already in the stream may still use it; later allocations on that stream
 * reuse it without a wait. NULL is allowed. WEIR_ERROR_INVALID_ARGUMENT for any other pointer that is not allocated
 * here. */
weir_status weir_free(void *pointer);

/* Says that another stream uses the memory too. After weir_free, the memory is not reused before that stream has done
 * the work that it had at the time of the free. */
weir_status weir_memory_record_stream(void *pointer, weir_stream stream);

/* The process default allocator, for all other calls that take a weir_allocator. It belongs to the runtime: do not
 * destroy it, and do not use it after weir_shutdown. */
weir_status weir_default_allocator(weir_allocator **allocator);

/* The counters of a device; device -1 is the current one. Initialize stats with weir_allocator_stats_init. */
static inline weir_status weir_memory_get_stats(int device, weir_allocator_stats *stats) {
  weir_allocator *allocator;
  weir_status status = weir_default_allocator(&allocator);
  if (!status && device == -1)
    status = weir_device_get_current(&device);
  return weir_report_as(__func__, status ? status : weir_allocator_get_stats(allocator, device, stats));
}

/* Returns unused memory of all devices to the driver. */
static inline weir_status weir_memory_empty_cache(void) {
  weir_allocator *allocator;
  weir_status status = weir_default_allocator(&allocator);
  return weir_report_as(__func__, status ? status : weir_allocator_empty_cache(allocator));
}

#ifdef __cplusplus
}
#endif
#endif

/*
 * Pinned host memory: the driver's part.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/host.h"
#include "base/base.h"
#include "base/thread.h"
#include "driver/context.h"

/* ---- Contexts ---- */

static weir_cu_result retain(weir_host_allocator *host, int device, weir_cu_context *context) {
  weir_driver *driver = host->driver;
  weir__mutex_lock(&host->context_lock);
  weir_cu_result r = weir__context_retain(driver, device, &host->devices[device].context);
  *context = host->devices[device].context;
  weir__mutex_unlock(&host->context_lock);
  return r;
}

/* A device that has a context already: to make one takes memory there. The first, where none has. */
static int any_device(weir_host_allocator *host) {
  weir_driver *driver = host->driver;
  for (int i = 0; i < host->device_count; i++) {
    unsigned flags;
    int active = 0;
    if (!driver->DevicePrimaryCtxGetState(driver, i, &flags, &active) && active)
      return i;
  }
  return 0;
}

weir_cu_result weir__host_enter(weir_host_allocator *host, int device, weir__host_visit *visit) {
  weir_driver *driver = host->driver;
  weir_cu_context context;
  visit->changed = false;
  weir_cu_result r = driver->CtxGetCurrent(driver, &visit->previous);
  if (!r && (device >= 0 || !visit->previous)) {
    r = retain(host, device >= 0 ? device : any_device(host), &context);
    if (!r)
      r = weir__context_switch(driver, visit->previous, context);
    visit->changed = !r && context != visit->previous;
  }
  if (r)
    return r;
  visit->mode = WEIR_CU_CAPTURE_RELAXED;
  r = driver->ThreadExchangeStreamCaptureMode(driver, &visit->mode);
  if (r && visit->changed)
    driver->CtxSetCurrent(driver, visit->previous);
  return r;
}

void weir__host_leave(weir_host_allocator *host, const weir__host_visit *visit) {
  weir_driver *driver = host->driver;
  int mode = visit->mode;
  if (mode != WEIR_CU_CAPTURE_RELAXED)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
  if (visit->changed)
    driver->CtxSetCurrent(driver, visit->previous);
}

/* ---- Memory that is registered ---- */

/* A part of it, touched so that the system finds memory for it: the driver would do so page by page. */
typedef struct touched {
  char *from;
  uint64_t bytes;
  weir__thread_id thread;
  bool has_thread;
} touched;

static void *touch(void *argument) {
  const touched *part = argument;
  for (uint64_t i = 0; i < part->bytes; i += WEIR__HOST_UNIT)
    ((volatile char *)part->from)[i] = 0;
  return NULL;
}

/* A thread that cannot be started is not missed: the part is touched here. */
static void touch_all(char *memory, uint64_t bytes, uint64_t threads) {
  touched parts[128];
  uint64_t pages = (bytes + WEIR__HOST_UNIT - 1) / WEIR__HOST_UNIT;
  uint64_t count = threads < pages ? threads : pages, begin = 0;
  if (count > WEIR_COUNT_OF(parts))
    count = WEIR_COUNT_OF(parts);
  for (uint64_t i = 0; i < count; i++) {
    uint64_t end = i + 1 == count ? bytes : pages * (i + 1) / count * WEIR__HOST_UNIT;
    parts[i] = (touched){.from = memory + begin, .bytes = end - begin};
    begin = end;
    if (i + 1 < count)
      parts[i].has_thread = !weir__thread_start(&parts[i].thread, touch, &parts[i]);
    if (!parts[i].has_thread)
      touch(&parts[i]);
  }
  for (uint64_t i = 0; i < count; i++)
    if (parts[i].has_thread)
      weir__thread_join(parts[i].thread);
}

static weir_cu_result get_registered(weir_driver *driver, uint64_t bytes, uint64_t threads, void **pointer) {
  void *memory = bytes <= SIZE_MAX - WEIR__HOST_UNIT
                     ? aligned_alloc(WEIR__HOST_UNIT, (size_t)weir__round_up(bytes, WEIR__HOST_UNIT))
                     : NULL;
  if (!memory)
    return WEIR_CU_OUT_OF_MEMORY;
  touch_all(memory, bytes, threads);
  weir_cu_result r = driver->MemHostRegister(driver, memory, bytes, WEIR_CU_MEMHOSTREGISTER_PORTABLE);
  if (r)
    free(memory);
  else
    *pointer = memory;
  return r;
}

/* ---- Memory ---- */

weir_cu_result weir__host_get(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes, void **pointer,
                              weir__host_kind *kind) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  weir_cu_result r = weir__host_enter(host, -1, &visit);
  if (r)
    return r;
  *kind = settings->pinned_use_host_register ? WEIR__HOST_REGISTERED : WEIR__HOST_DRIVER;
  r = *kind == WEIR__HOST_REGISTERED ? get_registered(driver, bytes, settings->pinned_num_register_threads, pointer)
                                     : driver->MemHostAlloc(driver, pointer, bytes, WEIR_CU_MEMHOSTALLOC_PORTABLE);
  weir__host_leave(host, &visit);
  return r;
}

weir_cu_result weir__host_give(weir_host_allocator *host, void *pointer, weir__host_kind kind) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  weir_cu_result r = weir__host_enter(host, -1, &visit);
  if (r)
    return r;
  r = kind == WEIR__HOST_REGISTERED ? driver->MemHostUnregister(driver, pointer) : driver->MemFreeHost(driver, pointer);
  if (!r && kind == WEIR__HOST_REGISTERED)
    free(pointer);
  weir__host_leave(host, &visit);
  return r;
}

void *weir__host_reserved(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes) {
  if (!settings->pinned_reserve_segment_size)
    return NULL;
  void *pointer = NULL;
  uint64_t size = weir__round_up(bytes, WEIR__HOST_UNIT);
  weir__mutex_lock(&host->reserve_lock);
  if (!host->reserve &&
      !weir__host_get(host, settings, settings->pinned_reserve_segment_size, &pointer, &host->reserve_kind)) {
    host->reserve = pointer;
    host->reserve_bytes = settings->pinned_reserve_segment_size;
  }
  pointer = NULL;
  if (host->reserve && size <= host->reserve_bytes - host->reserve_used) {
    pointer = host->reserve + host->reserve_used;
    host->reserve_used += size;
  }
  weir__mutex_unlock(&host->reserve_lock);
  return pointer;
}

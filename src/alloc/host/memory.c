/*
 * Pinned host memory: calls of the driver and of the system.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/host/host.h"
#include "base/base.h"
#include "base/memory_map.h"
#include "base/system.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/context.h"
#include "driver/pieces.h"

/* ---- Contexts ---- */

static weir_cu_result retain(weir_host_allocator *host, int device, weir_cu_context *context) {
  weir_driver *driver = host->driver;
  weir__mutex_lock(&host->context_lock);
  weir_cu_result r = weir__context_retain(driver, device, &host->devices[device].context);
  *context = host->devices[device].context;
  weir__mutex_unlock(&host->context_lock);
  return r;
}

/* A device that has a context already, since creating one takes device memory; the first device if there is none. */
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

/* ---- Registered memory ---- */

enum {
  LARGE_PAGE = 2 << 20,
  STEP = 32 << 20, /* a thread touches so much at a time: the system's lock on address space is free in between */
  MAX_THREADS = 128
};

/* Memory is mapped in large pages, and below their size taken from the heap. */
static bool is_mapped(uint64_t bytes) { return bytes >= LARGE_PAGE; }

static uint64_t mapped_bytes(uint64_t bytes) { return weir__round_up(bytes, weir__map_page_size()); }

static void *get_memory(uint64_t bytes) {
  if (bytes > SIZE_MAX - LARGE_PAGE)
    return NULL;
  return is_mapped(bytes) ? weir__map_aligned_memory((size_t)mapped_bytes(bytes), LARGE_PAGE)
                          : aligned_alloc(WEIR__HOST_UNIT, (size_t)weir__round_up(bytes, WEIR__HOST_UNIT));
}

static void give_memory(void *memory, uint64_t bytes) {
  if (is_mapped(bytes))
    weir__unmap(memory, (size_t)mapped_bytes(bytes));
  else
    free(memory);
}

/* Memory that several threads touch, so that the system backs it. In a call of the driver this would happen page by
 * page, with locks held that all other calls need. */
typedef struct touched {
  char *memory;
  uint64_t bytes, step;
  atomic_uint_fast64_t next; /* offset of the first byte that no thread has taken on */
} touched;

static void touch(char *memory, uint64_t bytes) {
  if (is_mapped(bytes) && weir__map_populate(memory, (size_t)mapped_bytes(bytes)))
    return;
  for (uint64_t i = 0; i < bytes; i += WEIR__HOST_UNIT)
    ((volatile char *)memory)[i] = 0;
}

static void *touch_steps(void *argument) {
  touched *all = argument;
  uint64_t at;
  while ((at = atomic_fetch_add(&all->next, all->step)) < all->bytes)
    touch(all->memory + at, all->bytes - at < all->step ? all->bytes - at : all->step);
  return NULL;
}

/* If threads cannot be started, the calling one does their part. */
static void touch_all(void *memory, uint64_t bytes, uint64_t threads) {
  weir__thread_id ids[MAX_THREADS];
  touched all = {.memory = memory, .bytes = bytes, .step = STEP};
  uint64_t share = weir__round_up(bytes / threads + 1, is_mapped(bytes) ? LARGE_PAGE : WEIR__HOST_UNIT);
  if (share < all.step)
    all.step = share;
  uint64_t steps = (bytes + all.step - 1) / all.step, started = 0;
  if (threads > steps)
    threads = steps;
  while (started + 1 < threads && started < MAX_THREADS && !weir__thread_start(&ids[started], touch_steps, &all))
    started++;
  touch_steps(&all);
  while (started)
    weir__thread_join(ids[--started]);
}

/* For large memory at least half of the processors, up to 16: the program has other work for the rest. */
static uint64_t touching_threads(const weir__settings *settings, uint64_t bytes) {
  uint64_t threads = settings->pinned_num_register_threads, half = weir__processor_count() / 2;
  if (half > 16)
    half = 16;
  return bytes >= settings->pinned_register_min_size && half > threads ? half : threads;
}

/* Unregisters pieces from the end of `bytes`, and returns how many bytes are still registered: 0 unless the driver
 * refuses. */
static uint64_t unregister(weir_driver *driver, char *memory, uint64_t bytes, uint64_t piece, weir_cu_result *r) {
  while (bytes) {
    uint64_t last = piece && bytes > piece ? (bytes - 1) / piece * piece : 0;
    *r = driver->MemHostUnregister(driver, memory + last);
    if (*r)
      return bytes;
    bytes = last;
  }
  return 0;
}

/* Registers the bytes from `begin` on. If that fails, those before are still registered. */
static weir_cu_result register_from(weir_driver *driver, char *memory, uint64_t begin, uint64_t bytes, uint64_t piece) {
  weir_cu_result r = WEIR_CU_SUCCESS;
  for (uint64_t at = begin; !r && at < bytes;) {
    uint64_t size = piece && bytes - at > piece ? piece : bytes - at;
    r = driver->MemHostRegister(driver, memory + at, size, WEIR_CU_MEMHOSTREGISTER_PORTABLE);
    weir_cu_result ignored;
    if (r && unregister(driver, memory + begin, at - begin, piece, &ignored))
      weir__log(WEIR_LOG_WARN, "the driver refused to unregister pinned memory after a failure");
    at += size;
  }
  return r;
}

static weir_cu_result get_registered(weir_driver *driver, const weir__settings *settings, uint64_t bytes,
                                     weir__host_memory *memory) {
  *memory = (weir__host_memory){.pointer = get_memory(bytes), .bytes = bytes, .kind = WEIR__HOST_REGISTERED};
  if (!memory->pointer)
    return WEIR_CU_OUT_OF_MEMORY;
  if (settings->pinned_register_piece_size && bytes > settings->pinned_register_piece_size)
    memory->piece = settings->pinned_register_piece_size;
  touch_all(memory->pointer, bytes, touching_threads(settings, bytes));
  weir_cu_result r = WEIR_CU_OUT_OF_MEMORY;
  if (memory->piece && !weir__pieces_add(memory->pointer, bytes, memory->piece))
    goto give_memory;
  r = register_from(driver, memory->pointer, 0, bytes, memory->piece);
  if (!r)
    return r;
  if (memory->piece)
    weir__pieces_remove(memory->pointer);
give_memory:
  give_memory(memory->pointer, bytes);
  return r;
}

/* If the driver refuses a piece, those that it has already unregistered are registered again: a block that the driver
 * does not take back stays in use. Without that, its memory is lost. */
static weir_cu_result give_registered(weir_driver *driver, const weir__host_memory *memory) {
  weir_cu_result r = WEIR_CU_SUCCESS;
  uint64_t left = unregister(driver, memory->pointer, memory->bytes, memory->piece, &r);
  if (!left) {
    if (memory->piece)
      weir__pieces_remove(memory->pointer);
    give_memory(memory->pointer, memory->bytes);
  } else if (left < memory->bytes && register_from(driver, memory->pointer, left, memory->bytes, memory->piece)) {
    weir__log(WEIR_LOG_WARN, "the driver refused to unregister pinned memory; it is lost");
    return WEIR_CU_SUCCESS;
  }
  return r;
}

/* ---- Memory ---- */

/* Whether memory of this size is registered for its size. Touching more than there is would end the process, while the
 * driver refuses; and tables without data, such as the ledger, have addresses without memory. */
static bool is_large(const weir_host_allocator *host, const weir__settings *settings, uint64_t bytes) {
  return bytes >= settings->pinned_register_min_size &&
         weir__driver_can(host->driver, WEIR_DRIVER_NVIDIA | WEIR_DRIVER_HOST_ACCESS) &&
         bytes < weir__memory_available();
}

weir_cu_result weir__host_get(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes,
                              weir__host_memory *memory) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  weir_cu_result r = weir__host_enter(host, -1, &visit);
  if (r)
    return r;
  bool registers = settings->pinned_use_host_register || is_large(host, settings, bytes);
  if (registers)
    r = get_registered(driver, settings, bytes, memory);
  if (!registers || (r && !settings->pinned_use_host_register)) {
    *memory = (weir__host_memory){.bytes = bytes, .kind = WEIR__HOST_DRIVER};
    r = driver->MemHostAlloc(driver, &memory->pointer, bytes, WEIR_CU_MEMHOSTALLOC_PORTABLE);
  }
  weir__host_leave(host, &visit);
  return r;
}

weir_cu_result weir__host_give(weir_host_allocator *host, const weir__host_memory *memory) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  weir_cu_result r = weir__host_enter(host, -1, &visit);
  if (r)
    return r;
  r = memory->kind == WEIR__HOST_REGISTERED ? give_registered(driver, memory)
                                            : driver->MemFreeHost(driver, memory->pointer);
  weir__host_leave(host, &visit);
  return r;
}

void *weir__host_reserved(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes) {
  if (!settings->pinned_reserve_segment_size)
    return NULL;
  void *pointer = NULL;
  uint64_t size = weir__round_up(bytes, WEIR__HOST_UNIT);
  weir__mutex_lock(&host->reserve_lock);
  if (!host->reserve.pointer) {
    weir__host_memory reserve;
    if (!weir__host_get(host, settings, settings->pinned_reserve_segment_size, &reserve))
      host->reserve = reserve;
  }
  if (host->reserve.pointer && size <= host->reserve.bytes - host->reserve_used) {
    pointer = (char *)host->reserve.pointer + host->reserve_used;
    host->reserve_used += size;
  }
  weir__mutex_unlock(&host->reserve_lock);
  return pointer;
}

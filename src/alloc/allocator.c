#include "alloc/allocator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backends/backend.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/guard_port.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uncached.h"
#include "alloc/cache/uses.h"
#include "alloc/ipc/ipc.h"
#include "alloc/ipc/sent.h"
#include "alloc/pools/pool.h"
#include "base/region.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/context.h"

/* ---- Creation and destruction ---- */

static void heap_init(weir__heap *heap, weir_allocator *allocator, int device, uint64_t total) {
  *heap = (weir__heap){.allocator = allocator, .device = device, .total = total};
  heap->scoped_reasons = ~(unsigned)(WEIR__SLOW_SCOPED | (allocator->scopes_as_pytorch ? 0 : WEIR__SLOW_ROUTED));
  weir__accounts_begin(&heap->accounts);
  weir__mutex_init(&heap->lock);
  heap->small = (weir__pool){.heap = heap, .account = &heap->accounts.default_pool, .is_small = true};
  heap->large = (weir__pool){.heap = heap, .account = &heap->accounts.default_pool};
}

static void heap_end(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  if (heap->allocator->backend)
    weir__backend_clear(heap);
  if (heap->cu_context) {
    bool entered = !weir__heap_enter(heap, &previous); /* on failure, everything that needs no context is still freed */
    driver->CtxSynchronize(driver);
    weir__sent_clear(heap, entered);
    weir__events_clear(heap);
    weir__heap_free_segments(heap);
    weir__tags_end_sleep(heap);
    if (entered)
      weir__heap_leave(heap, previous);
    driver->DevicePrimaryCtxRelease(driver, heap->device);
  }
  weir__scopes_clear(heap);
  weir__pool_clear(&heap->small);
  weir__pool_clear(&heap->large);
  while (heap->private_pools) {
    atomic_store(&heap->private_pools->holds, 0); /* of threads that did not close a scope */
    weir__pool_drop(heap, heap->private_pools);
  }
  weir__pools_finalize(heap);
  weir__tags_clear(heap);
  weir__accounts_end(&heap->accounts);
  while (heap->classes) {
    weir__stream_class *class = heap->classes;
    heap->classes = class->next;
    free(class);
  }
  weir__mutex_destroy(&heap->lock);
}

weir_status weir__check_backend(const weir__settings *settings) {
  if (settings->backend == WEIR__BACKEND_NATIVE)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "backend:cudaMallocAsync is another allocator and cannot be replayed; expected backend:native");
}

/* Ten times the compute capability of a device; 0 if it is not known. */
static uint64_t capability_of(weir_driver *driver, int device) {
  int major = 0, minor = 0;
  bool is_known = !driver->DeviceGetAttribute(driver, &major, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR, device) &&
                  !driver->DeviceGetAttribute(driver, &minor, WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR, device) &&
                  major > 0;
  return is_known ? (uint64_t)major * 10 + (uint64_t)minor : 0;
}

static weir_status read_settings(const char *caller, const weir_allocator_options *options, weir__settings *settings) {
  weir__settings_default(settings);
  weir_status status =
      options->conf ? weir__settings_parse(NULL, options->conf, settings) : weir__settings_from_env(settings, NULL);
  return status ? weir__fail(status, "%s: %s", caller, weir_last_error()) : WEIR_OK;
}

static void describe(const weir__client *client, char *text, size_t size) {
  const weir_allocator *allocator = client->object;
  snprintf(text, size, "device memory, back end %.64s, %d device%s", weir__backend_name(allocator),
           allocator->heap_count, allocator->heap_count == 1 ? "" : "s");
}

static bool owns(const weir__client *client, uint64_t address) {
  int is_owner = 0;
  weir_allocator_owns((weir_allocator *)client->object, (const void *)address, &is_owner);
  return is_owner != 0;
}

/* In the child of a fork. The fast path needs no extra check: without heaps every allocation takes the slow path, and
 * with an empty page map so does every free. The old structures are not freed, because the fork may have happened
 * within a callback of the allocator, which still uses them. */
static void invalidate(weir__client *client) {
  weir_allocator *allocator = (weir_allocator *)client->object;
  allocator->is_forked = true;
  allocator->heap_count = 0;
  allocator->page_map = &weir__page_map_empty;
}

weir_status weir__allocator_new(const char *caller, weir_driver *driver, const weir_allocator_options *given,
                                weir_allocator **allocator) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  weir_status status = weir__read_options(caller, "options", &options, sizeof options, given);
  if (status)
    return status;

  weir_allocator *a = calloc(1, sizeof *a);
  weir__settings *settings = calloc(1, sizeof *settings);
  if (!a || !settings) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
    goto free_both;
  }
  status = read_settings(caller, &options, settings);
  if (status)
    goto free_both;
  int count;
  status = WEIR__CALL_FOR(caller, driver, DeviceGetCount(driver, &count));
  if (status)
    goto free_both;
  if (options.devices < 0 || options.devices > count) {
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d devices requested, but the driver has %d", caller,
                        options.devices, count);
    goto free_both;
  }
  if (options.devices)
    count = options.devices;
  if (!weir__region_prepare()) { /* else each request would fail, as if the device had no memory */
    status =
        weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY,
                   "%s: too little address space for metadata; raise the limit of the process (ulimit -v)", caller);
    goto free_both;
  }
  weir__biased_prepare();
  snprintf(a->owner, sizeof a->owner, "%s", options.owner ? options.owner : "Weir");
  a->advice = options.advice ? strdup(options.advice) : NULL;
  a->driver = driver;
  a->streams_may_end = options.streams_may_end;
  a->scopes_as_pytorch = options.scopes_as_pytorch;
  a->ipc_version = options.ipc_version == 3 ? 3 : 2;
  a->heaps = calloc((size_t)count + 1, sizeof *a->heaps);
  a->page_map = weir__page_map_new();
  if (!a->heaps || !a->page_map || (options.advice && !a->advice)) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
    goto free_parts;
  }
  for (int i = 0; i < count; i++) {
    uint64_t total;
    status = WEIR__CALL_FOR(caller, driver, DeviceTotalMem(driver, &total, i));
    if (status)
      goto free_parts;
    heap_init(&a->heaps[i], a, i, total);
    weir__ipc_prepare(&a->heaps[i]);
    weir__pages_begin(&a->heaps[i].pages, driver, i, a->heaps[i].shares_pages);
    a->heaps[i].received = (weir__pages){.driver = driver, .device = i};
    a->heaps[i].capability = capability_of(driver, i);
    a->heap_count = i + 1;
  }
  if (options.backend || settings->backend != WEIR__BACKEND_NATIVE) {
    status = weir__backend_new(caller, a, options.backend);
    if (status)
      goto free_parts;
  }
  weir__mutex_init(&a->configure_lock);
  weir__growth_fit(a, settings);
  atomic_store(&a->settings, settings);
  weir__mutex_init(&a->uncached_lock);
  weir__mutex_init(&a->ipc_lock);
  weir_allocator_set_caching(a, weir__caching_from_env());
  for (int i = 0; i < count; i++)
    if (settings->memory_fraction < 1)
      weir_allocator_set_fraction(a, i, settings->memory_fraction);
  a->client =
      (weir__client){.driver = driver, .object = a, .describe = describe, .invalidate = invalidate, .owns = owns};
  weir__client_add(&a->client);
  *allocator = a;
  return WEIR_OK;

free_parts:
  for (int i = 0; i < a->heap_count; i++)
    weir__mutex_destroy(&a->heaps[i].lock);
  if (a->page_map)
    weir__page_map_delete(a->page_map);
  free(a->heaps);
  free(a->advice);
free_both:
  free(settings);
  free(a);
  return status;
}

void weir_allocator_destroy(weir_allocator *allocator) {
  if (!allocator || allocator->is_forked) /* the parent owns its memory, and its locks may stay held forever */
    return;
  weir__client_remove(&allocator->client);
  if (allocator->unpublish)
    allocator->unpublish(allocator);
  const weir__recording_hooks *hooks = atomic_load(&allocator->hooks);
  if (hooks)
    hooks->end(allocator);
  void (*forget_graphs)(weir_allocator *) = atomic_load(&allocator->forget_graphs);
  if (forget_graphs)
    forget_graphs(allocator);
  if (allocator->guard)
    allocator->guard->calls->end(allocator);
  weir__uncached_clear(allocator);
  weir__ipc_clear(allocator);
  weir__received_clear(allocator);
  for (int i = 0; i < allocator->heap_count; i++)
    heap_end(&allocator->heaps[i]);
  weir__references_delete(allocator->references, allocator->references_file);
  weir__backend_delete(allocator);
  weir__recorder_delete(atomic_load(&allocator->history));
  weir__page_map_delete(allocator->page_map);
  for (const weir__settings *s = atomic_load(&allocator->settings), *older; s; s = older) {
    older = s->older;
    free((void *)s);
  }
  weir__mutex_destroy(&allocator->ipc_lock);
  weir__mutex_destroy(&allocator->uncached_lock);
  weir__mutex_destroy(&allocator->configure_lock);
  free(allocator->heaps);
  free(allocator->advice);
  free(allocator);
}

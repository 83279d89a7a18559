/*
 * The allocator's calls.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "alloc/heap.h"
#include "driver/call.h"
#include "driver/context.h"
#include "driver/nvml.h"
#include "record/probes.h"

/* ---- Making and ending ---- */

static void heap_init(weir__heap *heap, weir_allocator *allocator, int device, uint64_t total) {
  *heap = (weir__heap){.allocator = allocator, .device = device, .total = total, .limit = UINT64_MAX, .fraction = 1};
  pthread_mutex_init(&heap->lock, NULL);
  heap->small = (weir__pool){.heap = heap, .is_small = true};
  heap->large = (weir__pool){.heap = heap};
}

static void pool_end(weir__private_pool *pool) {
  weir__writers_delete(&pool->small);
  weir__writers_delete(&pool->large);
  weir__pool_clear(&pool->small);
  weir__pool_clear(&pool->large);
  if (pool->destroy)
    pool->destroy(pool->context);
  free(pool);
}

static void heap_end(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  if (heap->allocator->plug)
    weir__plug_clear(heap);
  if (heap->cu_context) {
    bool entered = !weir__heap_enter(heap, &previous); /* if not, what can be given back without it is */
    driver->CtxSynchronize(driver);
    weir__events_clear(heap);
    weir__heap_free_segments(heap);
    if (entered)
      weir__heap_leave(heap, previous);
    driver->DevicePrimaryCtxRelease(driver, heap->device);
  }
  weir__routes_clear(heap);
  weir__writers_delete(&heap->small);
  weir__writers_delete(&heap->large);
  weir__pool_clear(&heap->small);
  weir__pool_clear(&heap->large);
  while (heap->private_pools) {
    weir__private_pool *pool = heap->private_pools;
    heap->private_pools = pool->next;
    pool_end(pool);
  }
  while (heap->classes) {
    weir__stream_class *class = heap->classes;
    heap->classes = class->next;
    free(class);
  }
  pthread_mutex_destroy(&heap->lock);
}

/* The heap's lock is held. */
weir_cu_result weir__heap_enter(weir__heap *heap, weir_cu_context *previous) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_result r = weir__context_retain(driver, heap->device, &heap->cu_context);
  return r ? r : weir__context_enter(driver, heap->cu_context, previous);
}

void weir__heap_leave(weir__heap *heap, weir_cu_context previous) {
  weir__context_switch(heap->allocator->driver, heap->cu_context, previous);
}

void weir_allocator_options_init(weir_allocator_options *options) {
  if (!options)
    return;
  *options = (weir_allocator_options){.size = sizeof *options};
}

weir_status weir__check_backend(const weir__settings *settings) {
  if (settings->backend == WEIR__BACKEND_NATIVE)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                    "backend:cudaMallocAsync is another allocator; this one is backend:native, or no backend at all");
}

static weir_status read_settings(const char *who, const weir_allocator_options *options, weir__settings *settings) {
  weir__settings_default(settings);
  weir_status status =
      options->conf ? weir__settings_parse(NULL, options->conf, settings) : weir__settings_from_env(settings, NULL);
  return status ? weir__fail(status, "%s: %s", who, weir_last_error()) : WEIR_OK;
}

static void describe(const weir__client *client, char *text, size_t size) {
  const weir_allocator *allocator = client->object;
  snprintf(text, size, "device memory, back end %.64s, %d device%s", weir_allocator_backend(allocator),
           allocator->heap_count, allocator->heap_count == 1 ? "" : "s");
}

/* The two calls of the fast path read nothing more for this: without devices an allocation takes the slow path, and
 * without pages a free does. Nothing is freed: it may be in use, since the fork can be within a callback of the
 * allocator's. */
static void invalidate(weir__client *client) {
  weir_allocator *allocator = (weir_allocator *)client->object;
  allocator->is_forked = true;
  allocator->heap_count = 0;
  allocator->pages = &weir__page_map_empty;
}

weir_status weir__allocator_check(const char *who, const weir_allocator *allocator) {
  if (!allocator)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the allocator is NULL", who);
  return allocator->is_forked ? weir__bad_fork(who) : WEIR_OK;
}

weir_status weir_allocator_create(weir_driver *driver, const weir_allocator_options *given,
                                  weir_allocator **allocator) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  if (!driver || !allocator)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", __func__, driver ? "allocator" : "driver");
  weir_status status = weir__read_options(__func__, "options", &options, sizeof options, given);
  if (status)
    return status;

  weir_allocator *a = calloc(1, sizeof *a);
  weir__settings *settings = calloc(1, sizeof *settings);
  if (!a || !settings) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory", __func__);
    goto free_both;
  }
  status = read_settings(__func__, &options, settings);
  if (status)
    goto free_both;
  int count;
  status = WEIR__CALL(driver, DeviceGetCount(driver, &count));
  if (status)
    goto free_both;
  if (options.devices < 0 || options.devices > count) {
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d devices asked for, the driver has %d", __func__,
                        options.devices, count);
    goto free_both;
  }
  if (options.devices)
    count = options.devices;
  weir__biased_prepare();
  a->driver = driver;
  a->streams_may_end = options.streams_may_end;
  a->ipc_version = options.ipc_version == 3 ? 3 : 2;
  a->heaps = calloc((size_t)count + 1, sizeof *a->heaps);
  a->pages = weir__page_map_new();
  if (!a->heaps || !a->pages) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory", __func__);
    goto free_parts;
  }
  for (int i = 0; i < count; i++) {
    size_t total;
    status = WEIR__CALL(driver, DeviceTotalMem(driver, &total, i));
    if (status)
      goto free_parts;
    heap_init(&a->heaps[i], a, i, total);
    weir__ipc_prepare(&a->heaps[i]);
    weir__pages_prepare(&a->heaps[i]);
    a->heap_count = i + 1;
  }
  if (options.backend || settings->backend != WEIR__BACKEND_NATIVE) {
    status = weir__plug_new(__func__, a, options.backend);
    if (status)
      goto free_parts;
  }
  pthread_mutex_init(&a->configure_lock, NULL);
  weir__settings_fit(a, settings);
  atomic_store(&a->settings, settings);
  pthread_mutex_init(&a->uncached_lock, NULL);
  pthread_mutex_init(&a->ipc_lock, NULL);
  weir_allocator_set_caching(a, weir__caching_from_env());
  for (int i = 0; i < count; i++)
    if (settings->memory_fraction < 1)
      weir_allocator_set_fraction(a, i, settings->memory_fraction);
  weir__record_from_env(a);
  a->client = (weir__client){.driver = driver, .object = a, .describe = describe, .invalidate = invalidate};
  weir__client_add(&a->client);
  *allocator = a;
  return WEIR_OK;

free_parts:
  for (int i = 0; i < a->heap_count; i++)
    pthread_mutex_destroy(&a->heaps[i].lock);
  if (a->pages)
    weir__page_map_delete(a->pages);
  free(a->heaps);
free_both:
  free(settings);
  free(a);
  return status;
}

void weir_allocator_destroy(weir_allocator *allocator) {
  if (!allocator || allocator->is_forked) /* its memory is the parent's, and its locks may be held for ever */
    return;
  weir__client_remove(&allocator->client);
  weir__record_end(allocator);
  weir__graphs_forget(allocator);
  weir__uncached_clear(allocator);
  weir__ipc_clear(allocator);
  for (int i = 0; i < allocator->heap_count; i++)
    heap_end(&allocator->heaps[i]);
  weir__plug_delete(allocator->plug);
  weir__recorder_delete(atomic_load(&allocator->history));
  weir__page_map_delete(allocator->pages);
  for (const weir__settings *s = atomic_load(&allocator->settings), *older; s; s = older) {
    older = s->older;
    free((void *)s);
  }
  pthread_mutex_destroy(&allocator->ipc_lock);
  pthread_mutex_destroy(&allocator->uncached_lock);
  pthread_mutex_destroy(&allocator->configure_lock);
  free(allocator->heaps);
  free(allocator);
}

weir__heap *weir__heap_get(const char *who, weir_allocator *allocator, int device) {
  if (device >= 0 && device < allocator->heap_count)
    return &allocator->heaps[device];
  weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device %d, there are %d", who, device, allocator->heap_count);
  return NULL;
}

/* ---- Out of memory ---- */

static uint64_t free_bytes_of(const weir__pool *pool) {
  weir__arena **arenas;
  size_t count = weir__pool_arenas(pool, &arenas);
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    weir__arena_lock(arenas[i]);
    for (weir__block *b = weir__index_first(&arenas[i]->free); b; b = weir__index_next(&arenas[i]->free, b))
      bytes += weir__block_bytes(b);
    weir__arena_unlock(arenas[i]);
  }
  free(arenas);
  return bytes;
}

/* "Process 12 has 1.00 GiB memory in use. " for each that is known. */
static void list_processes(weir__heap *heap, char *text, size_t size) {
  weir__nvml_process processes[8];
  size_t count = weir__device_processes(heap->allocator->driver, heap->device, processes, WEIR_COUNT_OF(processes));
  *text = 0;
  for (size_t i = 0, length = 0; i < count && length < size; i++) {
    char who[64] = "Including non-Weir memory, this process", bytes[32];
    if (processes[i].pid != (unsigned)getpid())
      snprintf(who, sizeof who, "Process %u", processes[i].pid);
    length += (size_t)snprintf(text + length, size - length, "%s has %s memory in use. ", who,
                               weir__format_bytes_as_pytorch(processes[i].bytes, bytes));
  }
}

/* What to try, as far as the settings tell. */
static void advise(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream, uint64_t bytes,
                   char *text, size_t size) {
  char reserve[32], wanted[32];
  uint64_t room = weir__reserve_bytes(heap, settings, stream);
  if (heap->allocator->plug)
    *text = 0;
  else if (!settings->expandable_segments)
    snprintf(text, size,
             " If reserved but unallocated memory is large, fragmentation is the cause: try "
             "WEIR_ALLOC_CONF=expandable_segments:True.");
  else if (room < bytes && bytes <= heap->total)
    snprintf(
        text, size,
        " This allocation exceeds the expandable-segment reserve of %s for this stream, and a single allocation "
        "cannot span expandable segments. Raise expandable_segments_reserve or expandable_segments_reserve_by_class "
        "so that a segment is at least %s.",
        weir__format_bytes_as_pytorch(room, reserve), weir__format_bytes_as_pytorch(bytes, wanted));
  else
    snprintf(text, size,
             " expandable_segments is enabled. If instead the process runs out of address space, the reserves are too "
             "large: reduce them by expandable_segments_reserve or expandable_segments_reserve_by_class.");
}

/* The heap's lock is given back on the way: observers run without it. */
weir_status weir__out_of_memory(const char *who, weir__heap *heap, weir__arena *arena, uint64_t bytes,
                                uint64_t segment_bytes) {
  weir_allocator *allocator = heap->allocator;
  weir_driver *driver = allocator->driver;
  const weir__settings *settings = weir__settings_of(heap);
  size_t device_free = 0, device_total = heap->total;
  driver->MemGetInfo(driver, &device_free, &device_total);
  uint64_t in_private = 0;
  for (weir__private_pool *p = heap->private_pools; p; p = p->next)
    in_private += free_bytes_of(&p->small) + free_bytes_of(&p->large);
  heap->stats.num_ooms++;
  weir_allocator_stats stats;
  weir__gauges_read(heap, &stats);
  uint64_t allocated = (uint64_t)stats.allocated_bytes[WEIR_STAT_ALL].current + in_private;
  uint64_t reserved = heap->reserved;
  uint64_t limit = heap->has_limit ? heap->limit : device_total;
  bool has_limit = heap->has_limit && heap->limit < device_total;
  char advice[320], processes[400];
  advise(heap, settings, arena->stream, segment_bytes, advice, sizeof advice);
  weir__biased_take(&arena->lock);
  weir__trace(heap, WEIR_TRACE_OOM, arena->pool, device_free, bytes, arena->stream);
  weir__biased_give(&arena->lock);
  pthread_mutex_unlock(&heap->lock);
  weir__op_tell();

  int observers = atomic_load(&allocator->observer_count);
  for (int i = 0; i < observers; i++)
    allocator->observers[i].call(allocator->observers[i].context, heap->device, segment_bytes, limit, device_free);
  weir__record_oom(allocator);

  char text[6][32], allowed[64] = "", private_part[96] = "";
  if (weir__plug_is_async(allocator)) /* PyTorch's programs and tests look for these words */
    return weir__fail(
        WEIR_ERROR_OUT_OF_MEMORY,
        "%s: Allocation on device %d would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : %s\n"
        "Requested               : %s\n"
        "Device limit            : %s\n"
        "Free (according to CUDA): %s\n"
        "Weir limit (set by user-supplied memory fraction)\n"
        "                        : %s",
        who, heap->device, weir__format_bytes_as_pytorch(allocated, text[0]),
        weir__format_bytes_as_pytorch(bytes, text[1]), weir__format_bytes_as_pytorch(device_total, text[2]),
        weir__format_bytes_as_pytorch(device_free, text[3]), weir__format_bytes_as_pytorch(limit, text[4]));
  list_processes(heap, processes, sizeof processes);
  if (has_limit)
    snprintf(allowed, sizeof allowed, "%s allowed; ", weir__format_bytes_as_pytorch(limit, text[0]));
  if (in_private)
    snprintf(private_part, sizeof private_part, "with %s allocated in private pools (e.g., CUDA Graphs), ",
             weir__format_bytes_as_pytorch(in_private, text[1]));
  return weir__fail(
      WEIR_ERROR_OUT_OF_MEMORY,
      "%s: CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. %s%sOf the "
      "allocated memory %s is allocated by Weir, %sand %s is reserved by Weir but unallocated.%s",
      who, weir__format_bytes_as_pytorch(segment_bytes, text[0]), heap->device,
      weir__format_bytes_as_pytorch(device_total, text[1]), weir__format_bytes_as_pytorch(device_free, text[2]),
      processes, allowed, weir__format_bytes_as_pytorch(allocated, text[3]), private_part,
      weir__format_bytes_as_pytorch(reserved > allocated ? reserved - allocated : 0, text[4]), advice);
}

/* ---- Allocating ---- */

weir_status weir__reject(const char *who, weir__heap *heap, const weir__settings *settings, uint64_t segment_bytes,
                         uint64_t requested) {
  char text[32];
  weir_allocator *allocator = heap->allocator;
  uint64_t reserved = heap->reserved;
  if (!settings->throw_on_oom ||
      reserved + segment_bytes <= (uint64_t)(settings->memory_fraction * (double)heap->total))
    return WEIR_OK;
  heap->stats.num_oom_rejections++;
  pthread_mutex_unlock(&heap->lock);
  int observers = atomic_load(&allocator->rejection_observer_count);
  for (int i = 0; i < observers; i++)
    allocator->rejection_observers[i].call(allocator->rejection_observers[i].context, heap->device, segment_bytes,
                                           reserved, heap->total);
  return weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
                    "%s: CUDA out of memory. Allocation was preemptively rejected because it would exceed "
                    "per_process_memory_fraction limit. Requested size: %s",
                    who, weir__format_bytes_as_pytorch(requested, text));
}

/* WEIR_OK: there was none. */
static weir_status unlock_in_trouble(const char *who, weir__heap *heap) {
  weir_cu_result r = heap->trouble;
  const char *call = heap->trouble_call;
  pthread_mutex_unlock(&heap->lock);
  return weir__driver_status(heap->allocator->driver, r, who, call);
}

/* What the index could not serve. */
weir_status weir__alloc_new(const char *who, weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                            uint64_t size, uint64_t requested, void **pointer) {
  weir_cu_context previous;
  weir__block *block = NULL;
  weir_status status = weir__driver_check_stream(who, heap->allocator->driver, arena->stream);
  if (status)
    return status;
  pthread_mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &previous);
  if (r) {
    pthread_mutex_unlock(&heap->lock);
    return weir__driver_status(heap->allocator->driver, r, who, "cuDevicePrimaryCtxRetain");
  }
  status = weir__reject(who, heap, settings, weir__segment_bytes(settings, size), requested);
  if (status) {
    weir__heap_leave(heap, previous);
    return status;
  }
  block = weir__refill(heap, arena, settings, size);
  if (!block) {
    status = heap->trouble ? unlock_in_trouble(who, heap)
                           : weir__out_of_memory(who, heap, arena, size, weir__segment_bytes(settings, size));
    weir__heap_leave(heap, previous);
    weir__pools_bury(heap);
    return status;
  }
  weir__heap_leave(heap, previous);
  arena = weir__block_arena(heap, block); /* it may be lent by another pool */
  weir__arena_lock(arena);
  block = weir__arena_hand_out(arena, settings, block, size, requested, false);
  weir__arena_unlock(arena);
  pthread_mutex_unlock(&heap->lock);
  weir__pools_bury(heap);
  if (!block)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory for the block", who);
  *pointer = (void *)block->address;
  WEIR__PROBE_MALLOC(*pointer, heap->device, requested, arena->stream);
  return WEIR_OK;
}

/* Blocks that waited for other streams may have become free. */
static void poll_events(weir__heap *heap, weir_cu_stream stream) {
  weir_cu_context previous;
  pthread_mutex_lock(&heap->lock);
  if (!weir__heap_enter(heap, &previous)) {
    weir__poll_events(heap, stream);
    weir__heap_leave(heap, previous);
  }
  pthread_mutex_unlock(&heap->lock);
}

static weir__pool *pool_for(weir__heap *heap, weir__private_pool *owner, uint64_t bytes) {
  bool small = bytes <= WEIR__SMALL_MAX;
  return owner ? small ? &owner->small : &owner->large : small ? &heap->small : &heap->large;
}

static weir_status alloc_from(const char *who, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                              weir_cu_stream stream, unsigned attention, void **pointer) {
  const weir__settings *settings = weir__settings_of(heap);
  if (attention & WEIR__FOREIGN)
    return weir__plug_alloc(who, heap, owner, bytes, stream, pointer);
  if (attention & WEIR__PENDING)
    poll_events(heap, stream);
  uint64_t size = weir__round_bytes(settings, bytes);
  weir__pool *pool = pool_for(heap, owner, size);
  weir__arena *arena = weir__arena_find(pool, stream);
  if (!arena) {
    weir_status status = weir__driver_check_stream(who, heap->allocator->driver, stream);
    if (status)
      return status;
    arena = weir__arena_get(pool, stream);
  }
  if (!arena)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory", who);

  weir__biased_take(&arena->lock);
  if (attention & WEIR__AGEING) { /* a block is as old as it is: nothing is put off */
    weir__arena_settle(arena);
    weir__count_search(arena->pool);
  }
  weir__block *block = weir__arena_alloc(arena, settings, size, bytes);
  if (block && attention & WEIR__WATCHED)
    weir__trace_arena(arena, WEIR_TRACE_ALLOC, block->address, bytes, 0);
  weir__arena_unlock(arena);
  if (!block)
    return weir__alloc_new(who, heap, arena, settings, size, bytes, pointer);
  *pointer = (void *)block->address;
  WEIR__PROBE_MALLOC(*pointer, heap->device, bytes, stream);
  return WEIR_OK;
}

weir_status weir__alloc(const char *who, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                        weir_cu_stream stream, void **pointer) {
  unsigned attention = weir__attention_of(heap);
  if (!(attention & WEIR__WATCHED))
    return alloc_from(who, heap, owner, bytes, stream, attention, pointer);
  weir__op op;
  weir__op_begin(&op, heap->allocator, WEIR_CONTEXT_STATE);
  weir_status status = alloc_from(who, heap, owner, bytes, stream, attention, pointer);
  weir__op_end(&op);
  return status;
}

/* The long way: whatever is wrong, unusual or not cached. */
weir_status weir__alloc_generic(weir_allocator *allocator, int device, size_t bytes, weir_cu_stream stream,
                                void **pointer) {
  const char *who = "weir_allocator_alloc";
  weir_status status = weir__allocator_check(who, allocator);
  if (status)
    return status;
  if (!pointer)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the pointer is NULL", who);
  weir__heap *heap = weir__heap_get(who, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  if (!bytes) {
    *pointer = NULL;
    return WEIR_OK;
  }
  if (bytes >= WEIR__MOST_BYTES)
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "%s: CUDA out of memory. Tried to allocate more than 1EB memory.", who);
  unsigned attention = weir__attention_of(heap);
  if (attention & WEIR__DUE) {
    weir__record_due(heap);
    attention = weir__attention_of(heap);
  }
  if (attention & WEIR__UNCACHED) {
    status = weir__uncached_alloc(who, heap, bytes, pointer);
    if (!status)
      WEIR__PROBE_MALLOC(*pointer, device, bytes, stream);
    return status;
  }
  weir__private_pool *owner = attention & WEIR__ROUTED ? weir__route_of(heap, stream) : NULL;
  status = weir__alloc(who, heap, owner, bytes, stream, pointer);
  if (owner)
    atomic_fetch_sub_explicit(&owner->visitors, 1, memory_order_release);
  return status;
}

/* ---- Freeing ---- */

weir_status weir__no_block(const char *who, const void *pointer) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid device pointer: %p", who, pointer);
}

weir__block *weir__block_lock(weir_allocator *allocator, const void *pointer, weir__arena **arena) {
  weir__live_place place;
  *arena = weir__arena_of(allocator, pointer);
  if (*arena) {
    weir__arena_lock(*arena);
    weir__block *block = weir__live_find(&(*arena)->live, (uint64_t)pointer, &place);
    if (block && block->state == WEIR__ALLOCATED)
      return block;
    weir__arena_unlock(*arena);
  }
  return NULL;
}

static weir_status free_block(const char *who, weir_allocator *allocator, void *pointer) {
  if (allocator->plug)
    return weir__plug_free(who, allocator, pointer);
  weir__arena *arena = weir__page_map_find(allocator->pages, (uint64_t)pointer);
  weir__block *block = NULL;
  weir__live_place place;
  if (arena) {
    weir__biased_take(&arena->lock);
    block = weir__live_find(&arena->live, (uint64_t)pointer, &place);
    if (!block || block->state != WEIR__ALLOCATED) {
      weir__biased_give(&arena->lock);
      block = NULL;
    }
  }
  if (!block) {
    weir_status status;
    size_t bytes = 0;
    if (weir__uncached_has(allocator, pointer, &bytes))
      WEIR__PROBE_FREE(pointer, -1, bytes, (void *)0);
    return weir__uncached_free(who, allocator, pointer, &status) ? status
                                                                 : weir__no_block_because(who, allocator, pointer);
  }
  weir__heap *heap = arena->pool->heap;
  WEIR__PROBE_FREE(pointer, heap->device, block->requested, arena->stream);
  bool later = block->marks.has_uses;
  if (later || weir__attention_of(heap) & WEIR__AGEING) /* a block is as old as it is: nothing is put off */
    weir__arena_settle(arena);
  if (later)
    weir__arena_let_go(arena, block);
  else {
    if (weir__attention_of(heap) & WEIR__WATCHED)
      weir__trace_freed(arena, block);
    weir__arena_free(arena, block, place);
  }
  weir__arena_unlock(arena);
  if (!later)
    return WEIR_OK;

  weir_cu_context previous;
  pthread_mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &previous);
  weir__free_later(heap, block, !r);
  if (!r)
    weir__heap_leave(heap, previous);
  pthread_mutex_unlock(&heap->lock);
  return WEIR_OK;
}

/* The long way: whatever is wrong, watched, or in use by other streams. */
weir_status weir__free_generic(weir_allocator *allocator, void *pointer) {
  const char *who = "weir_allocator_free";
  weir_status status = weir__allocator_check(who, allocator);
  if (status || !pointer)
    return status;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_ALL);
  status = free_block(who, allocator, pointer);
  weir__op_end(&op);
  return status;
}

weir_status weir_allocator_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!pointer)
    return WEIR_OK;
  weir_status status = weir__driver_check_stream(__func__, allocator->driver, stream);
  if (status || (allocator->plug && weir__plug_record_stream(allocator, pointer, stream)))
    return status;
  weir__arena *arena;
  weir__block *block = weir__block_lock(allocator, pointer, &arena);
  /* What was allocated without the cache is freed by the driver, which waits for all streams anyway. */
  if (!block)
    return weir__uncached_has(allocator, pointer, NULL) ? WEIR_OK
                                                        : weir__no_block_because(__func__, allocator, pointer);
  weir__use *use = weir__block_uses(block);
  while (use && use->stream != stream)
    use = use->next;
  if (!use && stream != arena->stream) {
    use = weir__slab_take(&arena->uses, sizeof *use);
    if (use) {
      *use = (weir__use){stream, weir__capture_of(arena->pool->heap, stream), weir__block_uses(block)};
      weir__block_set_uses(block, use);
    } else
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory", __func__);
  }
  weir__arena_unlock(arena);
  return status;
}

/* ---- The cache ---- */

/* Pool {0, 0} is all. A heap that was never used has no memory, but it may have pools. */
static weir_status empty_heap(const char *who, weir__heap *heap, weir_pool_id id) {
  weir_cu_context previous;
  pthread_mutex_lock(&heap->lock);
  bool was_used = heap->cu_context != NULL;
  weir_cu_result r = was_used ? weir__heap_enter(heap, &previous) : WEIR_CU_SUCCESS;
  heap->trouble = r;
  heap->trouble_call = "cuCtxSetCurrent";
  if (!r) {
    weir__private_pool *pool = weir__pool_find(heap, id);
    if (!id.first && !id.second)
      weir__release_cached(heap, !atomic_load(&heap->captures));
    else if (pool)
      weir__release_pool(heap, pool);
    if (was_used)
      weir__heap_leave(heap, previous);
  }
  weir_status status = unlock_in_trouble(who, heap);
  weir__pools_bury(heap);
  return status;
}

static weir_status empty(const char *who, weir_allocator *allocator, weir_pool_id id) {
  weir_status first = WEIR_OK;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_ALL);
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__heap *heap = &allocator->heaps[i];
    weir_status status = allocator->plug ? weir__plug_empty(who, heap, id) : empty_heap(who, heap, id);
    if (!first)
      first = status;
  }
  if (allocator->plug)
    weir__plug_reset(allocator);
  weir__op_end(&op);
  return first;
}

weir_status weir_allocator_empty_cache(weir_allocator *allocator) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return empty(__func__, allocator, (weir_pool_id){0, 0});
}

weir_status weir_allocator_empty_pool(weir_allocator *allocator, weir_pool_id pool) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return empty(__func__, allocator, pool);
}

weir_status weir_allocator_base(weir_allocator *allocator, void *pointer, void **base, size_t *bytes) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!base || !bytes)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: base or bytes is NULL", __func__);
  weir__arena *arena;
  weir__block *block = weir__block_lock(allocator, pointer, &arena);
  if (!block) {
    if (!weir__uncached_has(allocator, pointer, bytes))
      return weir__no_block(__func__, pointer);
    *base = pointer;
    return WEIR_OK;
  }
  weir__arena_unlock(arena); /* it is live, so its segment stays */
  const weir__segment *segment = weir__segment_lookup(arena->pool->heap, block);
  if (!segment)
    return weir__no_block(__func__, pointer);
  if (segment->page)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: memory of expandable segments has no base that another process could open; turn "
                      "expandable_segments off where memory is shared",
                      __func__);
  if (allocator->plug && (*base = weir__plug_base(allocator, pointer, bytes)))
    return WEIR_OK;
  *base = (void *)segment->base;
  *bytes = segment->bytes;
  return WEIR_OK;
}

/*
 * The allocator's settings, limits, statistics, watchers, and its dealings with other devices.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/heap.h"
#include "driver/call.h"
#include "driver/context.h"
#include "inspect/record_env.h"

#define CHECK_OUTPUT(output)                                                                                           \
  do {                                                                                                                 \
    if (!(output))                                                                                                     \
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", __func__, #output);                             \
  } while (0)

/* ---- Settings ---- */

void weir__settings_fit(const weir_allocator *allocator, weir__settings *settings) {
  int device = 0;
  while (device < allocator->heap_count && allocator->heaps[device].granularity)
    device++;
  if (!settings->expandable_segments || device == allocator->heap_count)
    return;
  weir__log(WEIR_LOG_WARN, "expandable_segments not supported on this platform: device %d has no virtual memory",
            device);
  settings->expandable_segments = false;
}

/* Collection by age needs a threshold and a limit: one of them has changed. Blocks that were freed and put off (weir__repeat)
 * are as old as the others that were free before it began. */
static void note_ageing(weir__heap *heap) {
  bool is_on = weir__settings_of(heap)->garbage_collection_threshold > 0 && atomic_load(&heap->has_limit);
  if (is_on)
    weir__pool_settle(&heap->large);
  weir__attention_set(heap, WEIR__AGEING, is_on);
}

/* An allocator is what it was made as. */
static weir_status check_backend(const weir_allocator *allocator, const weir__settings *old,
                                 const weir__settings *changed) {
  if (changed->backend == old->backend)
    return WEIR_OK;
  return weir__fail(
      WEIR_ERROR_NOT_SUPPORTED,
      "backend:%s is another allocator; this one is backend:%s, and stays it: the back end is chosen when "
      "an allocator is made",
      changed->backend == WEIR__BACKEND_NATIVE ? "native" : "cudaMallocAsync", weir_allocator_backend(allocator));
}

/* Readers take the settings as a whole and without a lock, so a change is a new set; the old ones stay for those who still
 * read them. */
weir_status weir_allocator_configure(weir_allocator *allocator, const char *conf) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(conf);
  weir__settings *changed = calloc(1, sizeof *changed);
  if (!changed)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory", __func__);
  pthread_mutex_lock(&allocator->configure_lock);
  const weir__settings *old = atomic_load(&allocator->settings);
  weir_status status = weir__settings_parse(old, conf, changed);
  if (!status)
    status = check_backend(allocator, old, changed);
  if (status) {
    free(changed);
    weir__fail(status, "%s: %s", __func__, weir_last_error());
  } else {
    weir__settings_fit(allocator, changed);
    changed->older = (weir__settings *)old;
    atomic_store_explicit(&allocator->settings, changed, memory_order_release);
    for (int i = 0; i < allocator->heap_count; i++)
      note_ageing(&allocator->heaps[i]);
    weir__record_settings(allocator);
  }
  pthread_mutex_unlock(&allocator->configure_lock);
  return status;
}

size_t weir_allocator_settings(weir_allocator *allocator, char *text, size_t size) {
  return allocator ? weir__settings_format(atomic_load(&allocator->settings), text, text ? size : 0) : 0;
}

weir_status weir_allocator_set_reserve_class(weir_allocator *allocator, int device, weir_cu_stream stream,
                                             const char *reserve_class) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  if (reserve_class && strlen(reserve_class) >= WEIR__RESERVE_CLASS_NAME)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: a class has a name of up to %d bytes", __func__,
                      WEIR__RESERVE_CLASS_NAME - 1);
  weir_status status = WEIR_OK;
  pthread_mutex_lock(&heap->lock);
  weir__stream_class **at = &heap->classes;
  while (*at && (*at)->stream != stream)
    at = &(*at)->next;
  weir__stream_class *class = *at;
  if (!reserve_class || !*reserve_class) {
    if (class)
      *at = class->next;
    free(class);
  } else if (class || (class = *at = calloc(1, sizeof *class))) {
    class->stream = stream;
    memcpy(class->name, reserve_class, strlen(reserve_class) + 1);
  } else
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no host memory", __func__);
  pthread_mutex_unlock(&heap->lock);
  return status;
}

/* ---- Limits ---- */

static void set_limit(weir__heap *heap, uint64_t bytes) {
  heap->limit = bytes;
  atomic_store(&heap->has_limit, bytes != UINT64_MAX);
  note_ageing(heap);
  weir__record_limit(heap);
}

weir_status weir_allocator_set_fraction(weir_allocator *allocator, int device, double fraction) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  if (!(fraction >= 0 && fraction <= 1))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid fraction:%g. Please set within [0, 1].", __func__,
                      fraction);
  pthread_mutex_lock(&heap->lock);
  heap->fraction = fraction;
  set_limit(heap, fraction < 1 ? (uint64_t)(fraction * (double)heap->total + 0.5) : UINT64_MAX);
  pthread_mutex_unlock(&heap->lock);
  if (allocator->plug)
    weir__plug_set_fraction(heap, fraction);
  return WEIR_OK;
}

weir_status weir_allocator_set_limit(weir_allocator *allocator, int device, size_t bytes) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&heap->lock);
  set_limit(heap, bytes);
  pthread_mutex_unlock(&heap->lock);
  return WEIR_OK;
}

weir_status weir_allocator_get_fraction(weir_allocator *allocator, int device, double *fraction) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(fraction);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&heap->lock);
  *fraction = heap->fraction;
  pthread_mutex_unlock(&heap->lock);
  return WEIR_OK;
}

static uint64_t largest_of(const weir__pool *pool) {
  weir__arena **arenas;
  size_t count = weir__pool_arenas(pool, &arenas);
  uint64_t largest = 0;
  for (size_t i = 0; i < count; i++) {
    weir__arena_lock(arenas[i]);
    const weir__block *last = weir__index_last(&arenas[i]->free);
    if (last && weir__block_bytes(last) > largest)
      largest = weir__block_bytes(last);
    weir__arena_unlock(arenas[i]);
  }
  free(arenas);
  return largest;
}

weir_status weir_allocator_largest_block(weir_allocator *allocator, int device, size_t *bytes) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(bytes);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  weir_driver *driver = allocator->driver;
  weir_cu_context previous;
  size_t largest = 0, total;
  pthread_mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, &previous);
  if (!r) {
    r = driver->MemGetInfo(driver, &largest, &total);
    if (allocator->plug)
      largest += weir__plug_spare(heap);
    weir__heap_leave(heap, previous);
  }
  const weir__pool *pools[] = {&heap->large, &heap->small};
  for (int i = 0; i < 2; i++) {
    uint64_t found = largest_of(pools[i]);
    if (found > largest)
      largest = found;
  }
  for (weir__private_pool *p = heap->private_pools; p; p = p->next)
    for (int i = 0; i < 2; i++) {
      uint64_t found = largest_of(i ? &p->small : &p->large);
      if (found > largest)
        largest = found;
    }
  pthread_mutex_unlock(&heap->lock);
  if (r)
    return weir__driver_status(driver, r, __func__, "cuMemGetInfo");
  *bytes = largest;
  return WEIR_OK;
}

/* ---- Other devices ---- */

weir_status weir_allocator_enable_peer_access(weir_allocator *allocator, int owner, int device) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, owner);
  if (!heap || !weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  if (owner == device)
    return WEIR_OK;
  pthread_mutex_lock(&allocator->ipc_lock);
  pthread_mutex_lock(&heap->lock);
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (!(heap->peers >> device & 1)) {
    r = allocator->plug ? weir__plug_share(heap, device) : weir__share_segments(heap, device);
    if (!r)
      r = weir__ipc_share_open(heap, device);
  }
  if (!r)
    heap->peers |= 1ull << device;
  pthread_mutex_unlock(&heap->lock);
  pthread_mutex_unlock(&allocator->ipc_lock);
  return r ? weir__driver_status(allocator->driver, r, __func__, "cuMemSetAccess") : WEIR_OK;
}

/* One of the two devices may not have been used through the allocator yet. */
static weir_cu_result context_of(weir__heap *heap, weir_cu_context *context) {
  pthread_mutex_lock(&heap->lock);
  weir_cu_result r = weir__context_retain(heap->allocator->driver, heap->device, &heap->cu_context);
  *context = heap->cu_context;
  pthread_mutex_unlock(&heap->lock);
  return r;
}

weir_status weir_allocator_copy_async(weir_allocator *allocator, void *to, int to_device, const void *from,
                                      int from_device, size_t bytes, weir_cu_stream stream, int peer_access) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *target = weir__heap_get(__func__, allocator, to_device);
  weir__heap *source = target ? weir__heap_get(__func__, allocator, from_device) : NULL;
  if (!source)
    return WEIR_ERROR_INVALID_DEVICE;
  weir_driver *driver = allocator->driver;
  bool plain = to_device == from_device || peer_access ||
               (!atomic_load(&target->had_expandable) && !atomic_load(&source->had_expandable));
  /* The null stream is that of the thread's context. A thread that has none gets the source's meanwhile. */
  weir_cu_context to_context, from_context, current = NULL;
  weir_cu_result r = driver->CtxGetCurrent(driver, &current);
  bool has_none = !r && !current;
  if (!r && (has_none || !plain))
    r = context_of(source, &from_context);
  if (!r && has_none)
    r = driver->CtxSetCurrent(driver, from_context);
  if (!r && plain)
    r = driver->MemcpyAsync(driver, (weir_cu_deviceptr)to, (weir_cu_deviceptr)from, bytes, stream);
  else if (!r && !(r = context_of(target, &to_context)))
    r = driver->MemcpyPeerAsync(driver, (weir_cu_deviceptr)to, to_context, (weir_cu_deviceptr)from, from_context, bytes,
                                stream);
  if (has_none)
    driver->CtxSetCurrent(driver, NULL);
  return weir__driver_status(driver, r, __func__, plain ? "cuMemcpyAsync" : "cuMemcpyPeerAsync");
}

/* ---- Statistics ---- */

void weir_allocator_stats_init(weir_allocator_stats *stats) {
  if (stats)
    *stats = (weir_allocator_stats){.size = sizeof *stats};
}

weir_status weir_allocator_get_stats(weir_allocator *allocator, int device, weir_allocator_stats *stats) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  if (!stats || stats->size < sizeof stats->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stats is NULL, or its size is not set", __func__);
  uint64_t split = weir__settings_of(heap)->max_split_size;
  pthread_mutex_lock(&heap->lock);
  weir_allocator_stats now = heap->stats;
  if (allocator->plug)
    weir__plug_read_stats(heap, &now);
  weir__gauges_read(heap, &now); /* under the lock, so that no more is allocated than was reserved */
  pthread_mutex_unlock(&heap->lock);
  now.size = stats->size;
  now.max_split_size = split == UINT64_MAX ? -1 : (int64_t)split;
  weir__copy_sized(stats, stats->size, &now, sizeof now);
  return WEIR_OK;
}

static void reset_peak(weir_stat *stat) { stat->peak = stat->current; }
static void reset_accumulated(weir_stat *stat) { stat->allocated = stat->freed = 0; }

/* Calls `change` for every statistic of segments, and of pools. */
static void for_each_stat(weir__heap *heap, void (*change)(weir_stat *)) {
  weir_allocator_stats *stats = &heap->stats;
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    change(&stats->segment[kind]);
    change(&stats->reserved_bytes[kind]);
    for (weir__pool_record *record = heap->pool_records; record; record = record->next)
      change(&record->reserved_bytes[kind]);
  }
  change(&stats->oversize_segments);
}

weir_status weir_allocator_reset_peak_stats(weir_allocator *allocator, int device) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&heap->lock);
  for_each_stat(heap, reset_peak);
  if (allocator->plug)
    weir__plug_reset_peaks(heap);
  weir__gauges_reset_peaks(heap);
  pthread_mutex_unlock(&heap->lock);
  return WEIR_OK;
}

weir_status weir_allocator_reset_accumulated_stats(weir_allocator *allocator, int device) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  pthread_mutex_lock(&heap->lock);
  weir_allocator_stats *stats = &heap->stats;
  for_each_stat(heap, reset_accumulated);
  stats->num_alloc_retries = stats->num_ooms = stats->num_sync_all_streams = 0;
  stats->num_device_alloc = stats->num_device_free = stats->num_oom_rejections = 0;
  weir__gauges_reset_added(heap);
  pthread_mutex_unlock(&heap->lock);
  return WEIR_OK;
}

/* ---- Watchers: they are added under a lock, and read without one, up to the count ---- */

static weir_status full(const char *who) {
  return weir__fail(WEIR_ERROR_BAD_STATE, "%s: there are %d already, which is all there is room for", who,
                    WEIR__MAX_WATCHERS);
}

weir_status weir_allocator_attach_tracker(weir_allocator *allocator, weir_trace_tracker tracker, void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(tracker);
  weir__lock_take(&allocator->tracker_lock);
  int count = atomic_load(&allocator->tracker_count);
  bool room = count < WEIR__MAX_WATCHERS;
  if (room) {
    allocator->trackers[count].call = tracker;
    allocator->trackers[count].context = context;
    atomic_store(&allocator->tracker_count, count + 1);
  }
  weir__lock_give(&allocator->tracker_lock);
  weir__watch(allocator);
  return room ? WEIR_OK : full(__func__);
}

weir_status weir_allocator_attach_oom_observer(weir_allocator *allocator, weir_oom_observer observer, void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(observer);
  pthread_mutex_lock(&allocator->configure_lock);
  int count = atomic_load(&allocator->observer_count);
  bool room = count < WEIR__MAX_WATCHERS;
  if (room) {
    allocator->observers[count].call = observer;
    allocator->observers[count].context = context;
    atomic_store(&allocator->observer_count, count + 1);
  }
  pthread_mutex_unlock(&allocator->configure_lock);
  return room ? WEIR_OK : full(__func__);
}

weir_status weir_allocator_attach_rejection_observer(weir_allocator *allocator, weir_rejection_observer observer,
                                                     void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(observer);
  pthread_mutex_lock(&allocator->configure_lock);
  int count = atomic_load(&allocator->rejection_observer_count);
  bool room = count < WEIR__MAX_WATCHERS;
  if (room) {
    allocator->rejection_observers[count].call = observer;
    allocator->rejection_observers[count].context = context;
    atomic_store(&allocator->rejection_observer_count, count + 1);
  }
  pthread_mutex_unlock(&allocator->configure_lock);
  return room ? WEIR_OK : full(__func__);
}

weir_status weir_allocator_attach_free_callback(weir_allocator *allocator, weir_free_memory_callback callback,
                                                void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  CHECK_OUTPUT(callback);
  pthread_mutex_lock(&allocator->configure_lock);
  int count = atomic_load(&allocator->callback_count);
  bool room = count < WEIR__MAX_WATCHERS;
  if (room) {
    allocator->callbacks[count].call = callback;
    allocator->callbacks[count].context = context;
    atomic_store(&allocator->callback_count, count + 1);
  }
  pthread_mutex_unlock(&allocator->configure_lock);
  return room ? WEIR_OK : full(__func__);
}

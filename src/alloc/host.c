#include "alloc/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/stat.h"
#include "base/base.h"
#include "base/thread.h"
#include "driver/call.h"

#define CHECK(host)                                                                                                    \
  do {                                                                                                                 \
    WEIR__CHECK_ARGUMENT(host);                                                                                        \
    if ((host)->is_forked)                                                                                             \
      return weir__bad_fork(__func__);                                                                                 \
  } while (0)

/* ---- Settings ---- */

/* As in PyTorch: sizes that are never cached are never rounded. */
static void check_thresholds(const weir__settings *settings) {
  if (settings->pinned_max_cached_size != UINT64_MAX && settings->pinned_max_round_threshold != UINT64_MAX &&
      settings->pinned_max_round_threshold > settings->pinned_max_cached_size)
    weir__log(
        WEIR_LOG_WARN,
        "pinned_max_round_threshold_mb is above pinned_max_cached_size_mb: sizes above the latter are never cached, "
        "so they are not rounded up");
}

weir_status weir_host_configure(weir_host_allocator *host, const char *conf) {
  CHECK(host);
  WEIR__CHECK_ARGUMENT(conf);
  weir__settings *changed = malloc(sizeof *changed);
  if (!changed)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir__biased_take(&host->lock);
  weir_status status = weir__settings_parse(&host->settings, conf, changed);
  if (!status)
    host->settings = *changed;
  weir__biased_give(&host->lock);
  if (status)
    weir__fail(status, "%s: %s", __func__, weir_last_error());
  else
    check_thresholds(changed);
  free(changed);
  return status;
}

/* ---- Statistics. `lock` is held ---- */

static int64_t microseconds(void) { return (int64_t)(weir__monotonic_ns() / 1000); }

static void add_time(weir_host_time *time, int64_t took) {
  time->total += took;
  if (took > time->max)
    time->max = took;
  if (!time->count || took < time->min)
    time->min = took;
  time->count++;
}

/* Counts a block that becomes active or, with sign -1, inactive. */
static inline void count_active(weir_host_allocator *host, const weir__host_block *block, int sign) {
  int64_t bytes = (int64_t)block->bytes;
  weir__stat_add(&host->stats.active_requests, sign);
  weir__stat_add(&host->stats.active_bytes, sign < 0 ? -bytes : bytes);
}

static void count_held(weir_host_allocator *host, const weir__host_block *block, int sign) {
  int64_t bytes = (int64_t)block->bytes;
  weir__stat_add(&host->stats.allocations, sign);
  weir__stat_add(&host->stats.allocated_bytes, sign < 0 ? -bytes : bytes);
}

void weir_host_stats_init(weir_host_stats *stats) {
  if (stats)
    *stats = (weir_host_stats){.size = sizeof *stats};
}

weir_status weir_host_get_stats(weir_host_allocator *host, weir_host_stats *stats) {
  CHECK(host);
  if (!stats || stats->size < sizeof stats->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stats is NULL, or its size is not set", __func__);
  weir__biased_take(&host->lock);
  weir_host_stats now = host->stats;
  weir__biased_give(&host->lock);
  now.size = stats->size;
  weir__copy_sized(stats, stats->size, &now, sizeof now);
  return WEIR_OK;
}

static void for_each_stat(weir_host_stats *stats, void (*change)(weir_stat *)) {
  change(&stats->allocations);
  change(&stats->active_requests);
  change(&stats->allocated_bytes);
  change(&stats->active_bytes);
}

weir_status weir_host_reset_peak_stats(weir_host_allocator *host) {
  CHECK(host);
  weir__biased_take(&host->lock);
  for_each_stat(&host->stats, weir__stat_reset_peak);
  host->stats.host_alloc_time.max = host->stats.host_alloc_time.min = 0;
  host->stats.host_free_time.max = host->stats.host_free_time.min = 0;
  weir__biased_give(&host->lock);
  return WEIR_OK;
}

weir_status weir_host_reset_accumulated_stats(weir_host_allocator *host) {
  CHECK(host);
  weir__biased_take(&host->lock);
  for_each_stat(&host->stats, weir__stat_reset_accumulated);
  host->stats.num_host_alloc = host->stats.num_host_free = 0;
  host->stats.host_alloc_time = host->stats.host_free_time = (weir_host_time){0};
  weir__biased_give(&host->lock);
  return WEIR_OK;
}

/* ---- Sizes ---- */

static unsigned bucket_of(uint64_t bytes) { return bytes > 1 ? 64 - (unsigned)__builtin_clzll(bytes - 1) : 0; }

/* Rounds up to a power of two, unless the size is above the threshold. `bytes` is below 2^60. */
static uint64_t round_up(const weir__settings *settings, uint64_t bytes) {
  if (bytes > settings->pinned_max_cached_size || bytes > settings->pinned_max_round_threshold)
    return bytes;
  return 1ull << bucket_of(bytes);
}

/* ---- Blocks ---- */

/* Where a block that begins at the address is in `recent`. */
static inline weir__host_block **recent_place(weir_host_allocator *host, const void *pointer) {
  return &host->recent[(uintptr_t)pointer * 0x9e3779b97f4a7c15u >> 58];
}

/* `lock` is held. */
static void forget_recent(weir_host_allocator *host, const weir__host_block *block) {
  weir__host_block **place = recent_place(host, block->pointer);
  if (*place == block)
    *place = NULL;
}

/* The first block of a bucket that is large enough; sizes differ because some were not rounded. `lock` is held. */
static weir__host_block *take_free(weir_host_allocator *host, uint64_t bytes) {
  weir__host_block **at = &host->free[bucket_of(bytes)];
  while (*at && (*at)->bytes < bytes)
    at = &(*at)->next;
  weir__host_block *block = *at;
  if (block)
    *at = block->next;
  return block;
}

static void put_free(weir_host_allocator *host, weir__host_block *block) {
  weir__host_block **bucket = &host->free[bucket_of(block->bytes)];
  block->state = WEIR__HOST_FREE;
  block->next = *bucket;
  *bucket = block;
}

static weir__host_memory memory_of(const weir__host_block *block) {
  return (weir__host_memory){
      .pointer = block->pointer, .bytes = block->bytes, .piece = block->piece, .kind = (weir__host_kind)block->kind};
}

/* Returns blocks that are in no bucket to the driver. Blocks that the driver refuses stay free. Returns the first
 * error. */
static weir_cu_result return_to_driver(weir_host_allocator *host, weir__host_block *blocks) {
  weir_cu_result first = WEIR_CU_SUCCESS;
  while (blocks) {
    weir__host_block *block = blocks;
    blocks = block->next;
    /* The address is removed first: once the driver has the memory, another thread may get the same address. */
    weir__biased_take(&host->lock);
    weir__rangemap_remove(&host->blocks, (uint64_t)block->pointer);
    forget_recent(host, block);
    weir__biased_give(&host->lock);
    int64_t begin = microseconds();
    weir__host_memory memory = memory_of(block);
    weir_cu_result r = weir__host_give(host, &memory);
    int64_t took = microseconds() - begin;
    weir__biased_take(&host->lock);
    if (!r) {
      count_held(host, block, -1);
      host->stats.num_host_free++;
      add_time(&host->stats.host_free_time, took);
      weir__slab_give(&host->block_slab, block, sizeof *block);
    } else if (weir__rangemap_insert(&host->blocks, (uint64_t)block->pointer, block->bytes, block))
      put_free(host, block);
    else
      block->state = WEIR__HOST_KEPT; /* the driver still has the memory, but it can no longer be found */
    weir__biased_give(&host->lock);
    if (r && !first)
      first = r;
  }
  return first;
}

/* Makes an unused block free. If it is too large to be cached, it is returned, for the driver. `lock` is held. */
static weir__host_block *release_block(weir_host_allocator *host, weir__host_block *block) {
  count_active(host, block, -1);
  if (block->bytes <= host->settings.pinned_max_cached_size || block->kind == WEIR__HOST_RESERVED) {
    put_free(host, block);
    return NULL;
  }
  block->state = WEIR__HOST_FREE;
  block->next = NULL;
  return block;
}

void weir__host_block_done(weir_host_allocator *host, weir__host_block *block) {
  weir__biased_take(&host->lock);
  block = release_block(host, block);
  weir__biased_give(&host->lock);
  return_to_driver(host, block);
}

/* ---- Allocation ---- */

static weir_status out_of_memory(const char *who, weir_host_allocator *host, weir_cu_result r, uint64_t bytes) {
  char text[3][32];
  if (r != WEIR_CU_OUT_OF_MEMORY)
    return weir__driver_status(host->driver, r, who, "cuMemHostAlloc");
  weir__biased_take(&host->lock);
  weir_host_stats stats = host->stats;
  weir__biased_give(&host->lock);
  return weir__fail_result(WEIR_ERROR_HOST_OUT_OF_MEMORY, r,
                           "%s: no pinned host memory. Tried to allocate %s; %s are held, of which %s are in use", who,
                           weir__format_bytes_as_pytorch(bytes, text[0]),
                           weir__format_bytes_as_pytorch((unsigned long long)stats.allocated_bytes.current, text[1]),
                           weir__format_bytes_as_pytorch((unsigned long long)stats.active_bytes.current, text[2]));
}

static weir_status alloc_new(const char *who, weir_host_allocator *host, uint64_t bytes, void **pointer) {
  weir__settings *settings = malloc(sizeof *settings);
  if (!settings)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", who);
  weir__biased_take(&host->lock);
  *settings = host->settings;
  weir__biased_give(&host->lock);
  weir_status status = WEIR_OK;
  int64_t begin = microseconds();
  weir__host_memory memory = {
      .pointer = weir__host_reserved(host, settings, bytes), .bytes = bytes, .kind = WEIR__HOST_RESERVED};
  if (!memory.pointer) {
    weir_cu_result r = weir__host_get(host, settings, bytes, &memory);
    if (r == WEIR_CU_OUT_OF_MEMORY && !weir_host_empty_cache(host))
      r = weir__host_get(host, settings, bytes, &memory);
    if (r) {
      status = out_of_memory(who, host, r, bytes);
      goto free_settings;
    }
  }
  int64_t took = microseconds() - begin;
  weir__biased_take(&host->lock);
  weir__host_block *block = weir__slab_take(&host->block_slab, sizeof *block);
  if (block) {
    *block = (weir__host_block){.pointer = memory.pointer,
                                .bytes = bytes,
                                .piece = memory.piece,
                                .state = WEIR__HOST_ALLOCATED,
                                .kind = (uint8_t)memory.kind};
    if (!weir__rangemap_insert(&host->blocks, (uint64_t)memory.pointer, bytes, block)) {
      weir__slab_give(&host->block_slab, block, sizeof *block);
      block = NULL;
    }
  }
  if (block) {
    count_held(host, block, 1);
    count_active(host, block, 1);
    host->stats.num_host_alloc += memory.kind != WEIR__HOST_RESERVED;
    if (memory.kind != WEIR__HOST_RESERVED)
      add_time(&host->stats.host_alloc_time, took);
    *pointer = memory.pointer;
  } else
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", who);
  weir__biased_give(&host->lock);
  if (status && memory.kind != WEIR__HOST_RESERVED) /* a part of the reserve is lost */
    weir__host_give(host, &memory);

free_settings:
  free(settings);
  return status;
}

weir_status weir_host_alloc(weir_host_allocator *host, uint64_t bytes, void **pointer) {
  CHECK(host);
  WEIR__CHECK_ARGUMENT(pointer);
  if (!bytes) {
    *pointer = NULL;
    return WEIR_OK;
  }
  if (bytes >= 1ull << 60)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: tried to allocate more than 1EB of host memory", __func__);
  if (__builtin_expect(atomic_load_explicit(&host->pending, memory_order_relaxed) != 0, 0) &&
      !atomic_load(&host->has_thread))
    weir__host_poll(host, false);
  weir__biased_take(&host->lock);
  uint64_t size = round_up(&host->settings, bytes);
  weir__host_block *block = take_free(host, size);
  if (block) {
    block->state = WEIR__HOST_ALLOCATED;
    *recent_place(host, block->pointer) = block;
    count_active(host, block, 1);
    *pointer = block->pointer;
  }
  weir__biased_give(&host->lock);
  return block ? WEIR_OK : alloc_new(__func__, host, size, pointer);
}

/* ---- Free ---- */

static weir_status no_block(const char *who, const void *pointer) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %p is not allocated by this host allocator", who, pointer);
}

/* The allocated block that contains an address or, with `exact`, begins there; NULL if there is none. `lock` is held.
 * */
static weir__host_block *find(const weir_host_allocator *host, const void *pointer, bool exact) {
  weir__host_block *block = weir__rangemap_find(&host->blocks, (uint64_t)pointer, NULL, NULL);
  return block && block->state == WEIR__HOST_ALLOCATED && (!exact || block->pointer == pointer) ? block : NULL;
}

static inline weir__host_block *find_to_free(weir_host_allocator *host, const void *pointer) {
  weir__host_block *block = *recent_place(host, pointer);
  return __builtin_expect(block && block->pointer == pointer && block->state == WEIR__HOST_ALLOCATED, 1)
             ? block
             : find(host, pointer, true);
}

weir_status weir_host_free(weir_host_allocator *host, void *pointer) {
  CHECK(host);
  if (!pointer)
    return WEIR_OK;
  weir__host_block *uncached = NULL, *waiting = NULL;
  weir__biased_take(&host->lock);
  weir__host_block *block = find_to_free(host, pointer);
  if (!block) {
    weir__biased_give(&host->lock);
    return no_block(__func__, pointer);
  }
  if (__builtin_expect(!block->uses && !block->captured, 1))
    uncached = release_block(host, block);
  else if (block->captured)
    block->state = WEIR__HOST_KEPT;
  else {
    block->state = WEIR__HOST_WAITING;
    waiting = block;
  }
  bool catches = host->settings.pinned_free_catch_all;
  weir__biased_give(&host->lock);
  if (waiting)
    weir__host_free_later(host, waiting);
  if (!uncached)
    return WEIR_OK;
  weir_cu_result r = return_to_driver(host, uncached);
  return r && !catches ? weir__driver_status(host->driver, r, __func__, "cuMemFreeHost") : WEIR_OK;
}

/* Whether the stream is capturing; then a graph uses the memory at every launch. */
static weir_cu_result is_capturing(weir_host_allocator *host, int device, weir_cu_stream stream, bool *captures) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  weir_cu_result r = weir__host_enter(host, device, &visit);
  if (r)
    return r;
  r = driver->StreamIsCapturing(driver, stream, &status);
  weir__host_leave(host, &visit);
  *captures = r == WEIR_CU_STREAM_CAPTURE_IMPLICIT || status != WEIR_CU_CAPTURE_STATUS_NONE;
  return *captures ? WEIR_CU_SUCCESS : r;
}

/* Returns false if out of host memory. `lock` is held. */
static bool add_use(weir_host_allocator *host, weir__host_block *block, int device, weir_cu_stream stream) {
  for (const weir__host_use *use = block->uses; use; use = use->next)
    if (use->stream == stream && use->device == device)
      return true;
  weir__host_use *use = weir__slab_take(&host->use_slab, sizeof *use);
  if (!use)
    return false;
  *use = (weir__host_use){device, stream, block->uses};
  block->uses = use;
  return true;
}

weir_status weir_host_record_stream(weir_host_allocator *host, void *pointer, int device, weir_cu_stream stream) {
  CHECK(host);
  if (!pointer)
    return WEIR_OK;
  if (device < 0 || device >= host->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: invalid device %d: there are %d", __func__, device,
                      host->device_count);
  bool captures = false;
  weir_cu_result r = is_capturing(host, device, stream, &captures);
  if (r)
    return weir__driver_status(host->driver, r, __func__, "cuStreamIsCapturing");
  weir_status status = WEIR_OK;
  weir__biased_take(&host->lock);
  weir__host_block *block = find(host, pointer, false);
  if (!block)
    status = no_block(__func__, pointer);
  else if (captures)
    block->captured = true;
  else if (!add_use(host, block, device, stream))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir__biased_give(&host->lock);
  return status;
}

weir_status weir_host_owns(weir_host_allocator *host, const void *pointer, int *owns) {
  CHECK(host);
  WEIR__CHECK_ARGUMENT(owns);
  weir__biased_take(&host->lock);
  *owns = find(host, pointer, false) != NULL;
  weir__biased_give(&host->lock);
  return WEIR_OK;
}

weir_status weir_host_empty_cache(weir_host_allocator *host) {
  CHECK(host);
  if (atomic_load(&host->pending))
    weir__host_poll(host, true);
  weir__host_block *blocks = NULL;
  weir__biased_take(&host->lock);
  for (int i = 0; i < WEIR__HOST_BUCKETS; i++)
    for (weir__host_block **at = &host->free[i]; *at;) {
      weir__host_block *block = *at;
      if (block->kind == WEIR__HOST_RESERVED) {
        at = &block->next;
        continue;
      }
      *at = block->next;
      block->next = blocks;
      blocks = block;
    }
  bool catches = host->settings.pinned_free_catch_all;
  weir__biased_give(&host->lock);
  weir_cu_result r = return_to_driver(host, blocks);
  return r && !catches ? weir__driver_status(host->driver, r, __func__, "cuMemFreeHost") : WEIR_OK;
}

/* ---- Creation and destruction ---- */

static void describe(const weir__client *client, char *text, size_t size) {
  (void)client;
  snprintf(text, size, "pinned host memory");
}

static void invalidate(weir__client *client) { ((weir_host_allocator *)client->object)->is_forked = true; }

weir_status weir_host_allocator_create(weir_driver *driver, const char *conf, weir_host_allocator **host) {
  WEIR__CHECK_ARGUMENT(driver);
  WEIR__CHECK_ARGUMENT(host);
  weir_host_allocator *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir__settings_default(&made->settings);
  weir_status status =
      conf ? weir__settings_parse(NULL, conf, &made->settings) : weir__settings_from_env(&made->settings, NULL);
  if (status) {
    weir__fail(status, "%s: %s", __func__, weir_last_error());
    goto free_made;
  }
  status = WEIR__CALL(driver, DeviceGetCount(driver, &made->device_count));
  if (status)
    goto free_made;
  made->devices = calloc((size_t)made->device_count + 1, sizeof *made->devices);
  if (!made->devices) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
    goto free_made;
  }
  made->driver = driver;
  weir__biased_prepare();
  check_thresholds(&made->settings);
  weir__mutex_init(&made->context_lock);
  weir__mutex_init(&made->reserve_lock);
  weir__mutex_init(&made->events_lock);
  weir__cond_init(&made->thread_wakeup);
  made->client = (weir__client){.driver = driver, .object = made, .describe = describe, .invalidate = invalidate};
  weir__client_add(&made->client);
  *host = made;
  return WEIR_OK;

free_made:
  free(made);
  return status;
}

/* Waits for all work of a device that may use the memory. */
static void finish_device(weir_host_allocator *host, int device) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  if (!host->devices[device].context || weir__host_enter(host, device, &visit))
    return;
  driver->CtxSynchronize(driver);
  weir__host_leave(host, &visit);
}

void weir_host_allocator_destroy(weir_host_allocator *host) {
  if (!host || host->is_forked) /* the parent owns its memory, and its locks may stay held forever */
    return;
  weir__client_remove(&host->client);
  weir_driver *driver = host->driver;
  for (int i = 0; i < host->device_count; i++)
    finish_device(host, i);
  weir__host_events_end(host);
  weir__host_block *block;
  uint64_t address;
  while ((block = weir__rangemap_at_or_after(&host->blocks, 0, &address, NULL))) {
    weir__rangemap_remove(&host->blocks, address);
    weir__host_memory memory = memory_of(block);
    if (memory.kind != WEIR__HOST_RESERVED)
      weir__host_give(host, &memory);
  }
  if (host->reserve.pointer)
    weir__host_give(host, &host->reserve);
  for (int i = 0; i < host->device_count; i++)
    if (host->devices[i].context)
      driver->DevicePrimaryCtxRelease(driver, i);
  weir__rangemap_clear(&host->blocks);
  weir__slab_clear(&host->block_slab);
  weir__slab_clear(&host->use_slab);
  weir__cond_destroy(&host->thread_wakeup);
  weir__mutex_destroy(&host->events_lock);
  weir__mutex_destroy(&host->reserve_lock);
  weir__mutex_destroy(&host->context_lock);
  free(host->devices);
  free(host);
}

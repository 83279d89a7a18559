#include "alloc/host/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/memory/stat.h"
#include "base/base.h"
#include "base/thread.h"
#include "driver/call.h"

#define CHECK(host)                                                                                                    \
  do {                                                                                                                 \
    WEIR__CHECK_ARGUMENT(host);                                                                                        \
    if ((host)->is_forked)                                                                                             \
      return weir__bad_fork(__func__);                                                                                 \
  } while (0)

#define MAX_BYTES ((1ull << 60) - 1)

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

/* Follows a change of the settings or the witness. `lock` is held, or no other thread knows the allocator. */
static void apply_settings(weir_host_allocator *host) {
  const weir__settings *settings = &host->settings;
  uint64_t limit = 0;
  if (settings->pinned_max_cached_size)
    limit = 1ull << (63 - __builtin_clzll(settings->pinned_max_cached_size));
  if (limit > settings->pinned_max_round_threshold)
    limit = settings->pinned_max_round_threshold;
  host->fast_limit = host->witness ? 0 : limit < MAX_BYTES ? limit : MAX_BYTES;
  host->last = NULL; /* blocks may be too large by now */
  memset(host->recent, 0, sizeof host->recent);
}

weir_status weir_host_configure(weir_host_allocator *host, const char *conf) {
  CHECK(host);
  WEIR__CHECK_ARGUMENT(conf);
  weir__settings changed;
  weir__biased_acquire(&host->lock);
  weir_status status = weir__settings_parse(&host->settings, conf, &changed);
  if (!status) {
    host->settings = changed;
    apply_settings(host);
  }
  weir__biased_release(&host->lock);
  if (status)
    return weir__fail(status, "%s: %s", __func__, weir_last_error());
  check_thresholds(&changed);
  return WEIR_OK;
}

/* ---- Statistics. `lock` is held ---- */

static int64_t microseconds(void) { return (int64_t)(weir__monotonic_ns() / 1000); }

static void add_time(weir_host_time *time, int64_t took) {
  time->total += took;
  if (took > time->max)
    time->max = took;
  if (!time->min || took < time->min) /* 0 since the last reset */
    time->min = took;
  time->count++;
}

static inline void count_up(weir__host_count *count, int64_t by) {
  count->allocated += by;
  count->headroom -= by;
  if (__builtin_expect(count->headroom < 0, 0)) {
    /* Loaded again: otherwise gcc keeps the value in a register for this rare case, which takes two instructions
     * more. */
    count->peak -= *(volatile int64_t *)&count->headroom;
    count->headroom = 0;
  }
}

static int64_t current(const weir__host_count *count) { return count->peak - count->headroom; }

static weir_stat stat_of(const weir__host_count *count) {
  return (weir_stat){.current = current(count),
                     .peak = count->peak,
                     .allocated = count->allocated,
                     .freed = count->base + count->allocated - current(count)};
}

static void reset_peak(weir__host_count *count) {
  count->peak = current(count);
  count->headroom = 0;
}

static void reset_accumulated(weir__host_count *count) {
  count->base = current(count);
  count->allocated = 0;
}

static inline void count_active(weir_host_allocator *host, const weir__host_block *block) {
  count_up(&host->active_requests, 1);
  count_up(&host->active_bytes, (int64_t)block->bytes);
}

static inline void count_inactive(weir_host_allocator *host, const weir__host_block *block) {
  host->active_requests.headroom++;
  host->active_bytes.headroom += (int64_t)block->bytes;
}

static void count_held(weir_host_allocator *host, const weir__host_block *block, int sign) {
  int64_t bytes = (int64_t)block->bytes;
  weir__stat_add(&host->stats.allocations, sign);
  weir__stat_add(&host->stats.allocated_bytes, sign < 0 ? -bytes : bytes);
}

static weir_host_stats stats_of(weir_host_allocator *host) {
  weir__biased_acquire(&host->lock);
  weir_host_stats stats = host->stats;
  stats.active_requests = stat_of(&host->active_requests);
  stats.active_bytes = stat_of(&host->active_bytes);
  weir__biased_release(&host->lock);
  return stats;
}

weir_status weir_host_get_stats(weir_host_allocator *host, weir_host_stats *stats) {
  CHECK(host);
  if (!stats || stats->size < sizeof stats->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stats is NULL, or its size is not set", __func__);
  weir_host_stats now = stats_of(host);
  now.size = stats->size;
  weir__copy_sized(stats, stats->size, &now, sizeof now);
  return WEIR_OK;
}

weir_status weir_host_reset_peak_stats(weir_host_allocator *host) {
  CHECK(host);
  weir__biased_acquire(&host->lock);
  weir__stat_reset_peak(&host->stats.allocations);
  weir__stat_reset_peak(&host->stats.allocated_bytes);
  reset_peak(&host->active_requests);
  reset_peak(&host->active_bytes);
  host->stats.host_alloc_time.max = host->stats.host_alloc_time.min = 0;
  host->stats.host_free_time.max = host->stats.host_free_time.min = 0;
  weir__biased_release(&host->lock);
  return WEIR_OK;
}

weir_status weir_host_reset_accumulated_stats(weir_host_allocator *host) {
  CHECK(host);
  weir__biased_acquire(&host->lock);
  weir__stat_reset_accumulated(&host->stats.allocations);
  weir__stat_reset_accumulated(&host->stats.allocated_bytes);
  reset_accumulated(&host->active_requests);
  reset_accumulated(&host->active_bytes);
  host->stats.num_host_alloc = host->stats.num_host_free = 0;
  host->stats.host_alloc_time = host->stats.host_free_time = (weir_host_time){0};
  weir__biased_release(&host->lock);
  return WEIR_OK;
}

/* ---- Sizes ---- */

/* The logarithm of the size, rounded up. `bytes` is at least 1, and below 2^63. */
static inline unsigned bucket_of(uint64_t bytes) { return 63 - (unsigned)__builtin_clzll(2 * bytes - 1); }

/* Rounds up to a power of two, unless the size is above the threshold. */
static uint64_t round_up(const weir__settings *settings, uint64_t bytes) {
  if (bytes > settings->pinned_max_cached_size || bytes > settings->pinned_max_round_threshold)
    return bytes;
  return 1ull << bucket_of(bytes);
}

/* ---- The witness. `lock` is held ---- */

static void tell(weir_host_allocator *host, weir_trace_action action, const weir__host_block *block) {
  if (!host->witness)
    return;
  weir_trace_entry entry = {.size = sizeof entry,
                            .action = action,
                            .device = -1,
                            .address = (uintptr_t)block->pointer,
                            .bytes = block->bytes};
  host->witness(host->witness_context, &entry);
}

/* What brought the block into its state. */
static void tell_present(weir_host_allocator *host, const weir__host_block *block) {
  tell(host, WEIR_TRACE_SEGMENT_ALLOC, block);
  if (block->state != WEIR__HOST_FREE)
    tell(host, WEIR_TRACE_ALLOC, block);
  if (block->state == WEIR__HOST_WAITING || block->state == WEIR__HOST_KEPT)
    tell(host, WEIR_TRACE_FREE_REQUESTED, block);
}

weir_status weir_host_set_witness(weir_host_allocator *host, weir_witness_fn witness, void *context) {
  CHECK(host);
  weir__biased_acquire(&host->lock);
  bool is_first = witness && !host->witness;
  bool is_taken = witness && host->witness && (witness != host->witness || context != host->witness_context);
  if (!is_taken) {
    host->witness = witness;
    host->witness_context = context;
    apply_settings(host); /* the fast paths tell nothing */
  }
  const weir__host_block *block;
  uint64_t address = 0, bytes;
  while (is_first && (block = weir__rangemap_at_or_after(&host->blocks, address, &address, &bytes))) {
    tell_present(host, block);
    address += bytes;
  }
  weir__biased_release(&host->lock);
  if (is_taken)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: there is another witness; remove it first", __func__);
  return WEIR_OK;
}

/* ---- Blocks ---- */

static inline weir__host_block **recent_place(weir_host_allocator *host, const void *pointer) {
  return &host->recent[(uintptr_t)pointer * 0x9e3779b97f4a7c15u >> 58];
}

/* `lock` is held, as for all that follow. */
static inline void remember(weir_host_allocator *host, weir__host_block *block) {
  weir__host_block *last = host->last;
  if (last)
    *recent_place(host, last->pointer) = last;
  host->last = block;
}

static void forget(weir_host_allocator *host, const weir__host_block *block) {
  weir__host_block **place = recent_place(host, block->pointer);
  if (*place == block)
    *place = NULL;
  if (host->last == block)
    host->last = NULL;
}

/* Finds the block if it is remembered, and forgets it. */
static inline weir__host_block *recall(weir_host_allocator *host, const void *pointer) {
  weir__host_block *block = host->last;
  if (__builtin_expect(block && block->pointer == pointer, 1)) {
    host->last = NULL;
    return block;
  }
  weir__host_block **place = recent_place(host, pointer);
  block = *place;
  if (!block || block->pointer != pointer)
    return NULL;
  *place = NULL;
  return block;
}

static bool is_cached(const weir_host_allocator *host, const weir__host_block *block) {
  return block->bytes <= host->settings.pinned_max_cached_size || block->kind == WEIR__HOST_RESERVED;
}

/* The first block of a bucket that is large enough; sizes differ because some were not rounded. */
static weir__host_block *take_free(weir_host_allocator *host, uint64_t bytes) {
  weir__host_block **at = &host->free[bucket_of(bytes)];
  while (*at && (*at)->bytes < bytes)
    at = &(*at)->next;
  weir__host_block *block = *at;
  if (block)
    *at = block->next;
  return block;
}

static inline void put_free(weir_host_allocator *host, weir__host_block *block) {
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
    weir__biased_acquire(&host->lock);
    tell(host, WEIR_TRACE_SEGMENT_FREE, block);
    weir__rangemap_remove(&host->blocks, (uint64_t)block->pointer);
    weir__biased_release(&host->lock);
    int64_t begin = microseconds();
    weir__host_memory memory = memory_of(block);
    weir_cu_result r = weir__host_give(host, &memory);
    int64_t took = microseconds() - begin;
    weir__biased_acquire(&host->lock);
    if (!r) {
      count_held(host, block, -1);
      host->stats.num_host_free++;
      add_time(&host->stats.host_free_time, took);
      weir__slab_free(&host->block_slab, block, sizeof *block);
    } else if (weir__rangemap_insert(&host->blocks, (uint64_t)block->pointer, block->bytes, block)) {
      put_free(host, block);
      tell(host, WEIR_TRACE_SEGMENT_ALLOC, block);
    } else
      block->state = WEIR__HOST_KEPT; /* the driver still has the memory, but it can no longer be found */
    weir__biased_release(&host->lock);
    if (r && !first)
      first = r;
  }
  return first;
}

/* Makes an unused block free. If it is too large to be cached, it is returned, for the driver. `lock` is held. */
static weir__host_block *release_block(weir_host_allocator *host, weir__host_block *block) {
  count_inactive(host, block);
  tell(host, WEIR_TRACE_FREE_COMPLETED, block);
  if (is_cached(host, block)) {
    put_free(host, block);
    return NULL;
  }
  block->state = WEIR__HOST_FREE;
  block->next = NULL;
  return block;
}

void weir__host_block_done(weir_host_allocator *host, weir__host_block *block) {
  weir__biased_acquire(&host->lock);
  block = release_block(host, block);
  weir__biased_release(&host->lock);
  return_to_driver(host, block);
}

/* ---- Allocation ---- */

static weir_status out_of_memory(const char *caller, weir_host_allocator *host, weir_cu_result r, uint64_t bytes) {
  char text[3][32];
  if (r != WEIR_CU_OUT_OF_MEMORY)
    return weir__driver_status(host->driver, r, caller, "cuMemHostAlloc");
  weir_host_stats stats = stats_of(host);
  return weir__fail_result(WEIR_ERROR_HOST_OUT_OF_MEMORY, r,
                           "%s: no pinned host memory. Tried to allocate %s; %s are held, of which %s are in use",
                           caller, weir__format_bytes_as_pytorch(bytes, text[0]),
                           weir__format_bytes_as_pytorch((unsigned long long)stats.allocated_bytes.current, text[1]),
                           weir__format_bytes_as_pytorch((unsigned long long)stats.active_bytes.current, text[2]));
}

/* Returns what is free to the driver, but not parts of the reserve. */
static weir_status return_cache(const char *caller, weir_host_allocator *host) {
  if (atomic_load(&host->pending))
    weir__host_poll(host, true);
  weir__host_block *blocks = NULL;
  weir__biased_acquire(&host->lock);
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
  weir__biased_release(&host->lock);
  weir_cu_result r = return_to_driver(host, blocks);
  return r && !catches ? weir__driver_status(host->driver, r, caller, "cuMemFreeHost") : WEIR_OK;
}

static weir_status alloc_new(const char *caller, weir_host_allocator *host, uint64_t bytes, void **pointer) {
  weir__biased_acquire(&host->lock);
  const weir__settings settings = host->settings;
  weir__biased_release(&host->lock);
  weir_status status = WEIR_OK;
  int64_t begin = microseconds();
  weir__host_memory memory = {
      .pointer = weir__host_reserved(host, &settings, bytes), .bytes = bytes, .kind = WEIR__HOST_RESERVED};
  if (!memory.pointer) {
    weir_cu_result r = weir__host_get(host, &settings, bytes, &memory);
    if (r == WEIR_CU_OUT_OF_MEMORY) {
      return_cache(caller, host); /* if the driver refuses a block, the others may be enough */
      r = weir__host_get(host, &settings, bytes, &memory);
    }
    if (r)
      return out_of_memory(caller, host, r, bytes);
  }
  int64_t took = microseconds() - begin;
  weir__biased_acquire(&host->lock);
  weir__host_block *block = weir__slab_alloc(&host->block_slab, sizeof *block);
  if (block) {
    *block = (weir__host_block){.pointer = memory.pointer,
                                .bytes = bytes,
                                .piece = memory.piece,
                                .state = WEIR__HOST_ALLOCATED,
                                .kind = (uint8_t)memory.kind};
    if (!weir__rangemap_insert(&host->blocks, (uint64_t)memory.pointer, bytes, block)) {
      weir__slab_free(&host->block_slab, block, sizeof *block);
      block = NULL;
    }
  }
  if (block) {
    count_held(host, block, 1);
    count_active(host, block);
    tell_present(host, block);
    host->stats.num_host_alloc += memory.kind != WEIR__HOST_RESERVED;
    if (memory.kind != WEIR__HOST_RESERVED)
      add_time(&host->stats.host_alloc_time, took);
    *pointer = memory.pointer;
  } else
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  weir__biased_release(&host->lock);
  if (status && memory.kind != WEIR__HOST_RESERVED) /* a part of the reserve is lost */
    weir__host_give(host, &memory);
  return status;
}

static __attribute__((noinline)) weir_status alloc_generic(const char *caller, weir_host_allocator *host,
                                                           uint64_t bytes, void **pointer) {
  if (host->is_forked)
    return weir__bad_fork(caller);
  if (!bytes) {
    *pointer = NULL;
    return WEIR_OK;
  }
  if (bytes > MAX_BYTES)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: tried to allocate more than 1EB of host memory", caller);
  /* The end of a graph does not wake the polling task. */
  if (atomic_load_explicit(&host->pending, memory_order_relaxed) &&
      (!atomic_load(&host->has_task) || atomic_load(&host->ended)))
    weir__host_poll(host, false);
  weir__biased_acquire(&host->lock);
  uint64_t size = round_up(&host->settings, bytes);
  weir__host_block *block = take_free(host, size);
  if (block) {
    block->state = WEIR__HOST_ALLOCATED;
    count_active(host, block);
    if (host->witness)
      tell(host, WEIR_TRACE_ALLOC, block);
    else if (is_cached(host, block))
      remember(host, block);
    *pointer = block->pointer;
  }
  weir__biased_release(&host->lock);
  return block ? WEIR_OK : alloc_new(caller, host, size, pointer);
}

/* The fast path of an allocation: the first block of the bucket, if it will do. `lock` is held. */
static inline weir__host_block *take_first(weir_host_allocator *host, uint64_t bytes) {
  if (__builtin_expect(bytes - 1 >= host->fast_limit, 0)) /* or `bytes` is 0 */
    return NULL;
  unsigned bucket = bucket_of(bytes);
  weir__host_block *block = host->free[bucket];
  if (__builtin_expect(!block || !(block->bytes >> bucket), 0)) /* none, or smaller than the rounded size */
    return NULL;
  host->free[bucket] = block->next;
  block->state = WEIR__HOST_ALLOCATED;
  count_active(host, block);
  remember(host, block);
  return block;
}

weir_status weir_host_alloc(weir_host_allocator *host, uint64_t bytes, void **pointer) {
  WEIR__CHECK_ARGUMENT(host);
  WEIR__CHECK_ARGUMENT(pointer);
  weir__lock_owner *mine = weir__this_lock_owner;
  if (__builtin_expect(!atomic_load_explicit(&host->pending, memory_order_relaxed), 1) &&
      weir__biased_acquire_fast(&host->lock, mine)) {
    weir__host_block *block = take_first(host, bytes);
    if (block)
      *pointer = block->pointer;
    weir__biased_release_fast(mine);
    if (__builtin_expect(block != NULL, 1))
      return WEIR_OK;
  }
  return alloc_generic(__func__, host, bytes, pointer);
}

/* ---- Free ---- */

static weir_status no_block(const char *caller, const void *pointer) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %p is not allocated by this host allocator", caller, pointer);
}

/* The allocated block that contains an address or, with `exact`, begins there; NULL if there is none. `lock` is held.
 * */
static weir__host_block *find(const weir_host_allocator *host, const void *pointer, bool exact) {
  weir__host_block *block = weir__rangemap_find(&host->blocks, (uint64_t)pointer, NULL, NULL);
  return block && block->state == WEIR__HOST_ALLOCATED && (!exact || block->pointer == pointer) ? block : NULL;
}

static __attribute__((noinline)) weir_status free_generic(const char *caller, weir_host_allocator *host,
                                                          void *pointer) {
  weir__host_block *uncached = NULL, *waiting = NULL;
  if (host->is_forked)
    return weir__bad_fork(caller);
  if (!pointer)
    return WEIR_OK;
  weir__biased_acquire(&host->lock);
  weir__host_block *block = find(host, pointer, true);
  if (!block) {
    weir__biased_release(&host->lock);
    return no_block(caller, pointer);
  }
  forget(host, block);
  tell(host, WEIR_TRACE_FREE_REQUESTED, block);
  if (block->captured || block->graphs)
    block->state = WEIR__HOST_KEPT;
  else if (block->uses) {
    block->state = WEIR__HOST_WAITING;
    waiting = block;
  } else
    uncached = release_block(host, block);
  bool catches = host->settings.pinned_free_catch_all;
  weir__biased_release(&host->lock);
  if (waiting)
    weir__host_free_later(host, waiting);
  if (!uncached)
    return WEIR_OK;
  weir_cu_result r = return_to_driver(host, uncached);
  return r && !catches ? weir__driver_status(host->driver, r, caller, "cuMemFreeHost") : WEIR_OK;
}

weir_status weir_host_free(weir_host_allocator *host, void *pointer) {
  WEIR__CHECK_ARGUMENT(host);
  weir__lock_owner *mine = weir__this_lock_owner;
  if (__builtin_expect(pointer && weir__biased_acquire_fast(&host->lock, mine), 1)) {
    weir__host_block *block = recall(host, pointer);
    if (block) {
      count_inactive(host, block);
      put_free(host, block);
    }
    weir__biased_release_fast(mine);
    if (__builtin_expect(block != NULL, 1))
      return WEIR_OK;
  }
  return free_generic(__func__, host, pointer);
}

/* The capture of a stream; then a graph uses the memory at every launch. */
typedef struct capture {
  unsigned long long id; /* 0, and the graph is NULL, if there is none */
  weir_cu_graph graph;
} capture;

static weir_cu_result find_capture(weir_host_allocator *host, int device, weir_cu_stream stream, capture *found) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  unsigned long long id = 0;
  weir_cu_graph graph = NULL;
  weir_cu_result r = weir__host_enter(host, device, &visit);
  if (r)
    return r;
  r = driver->StreamGetCaptureInfo(driver, stream, &status, &id, &graph, NULL, NULL);
  weir__host_leave(host, &visit);
  /* An invalid capture makes no graph, and the legacy stream gets no work while a blocking stream captures: the memory
   * is used by earlier work, and waits for it when the capture has ended. */
  bool is_active = !r && status == WEIR_CU_CAPTURE_STATUS_ACTIVE;
  *found = is_active ? (capture){id, graph} : (capture){0};
  return r == WEIR_CU_STREAM_CAPTURE_IMPLICIT ? WEIR_CU_SUCCESS : r;
}

/* Returns false if out of host memory. `lock` is held. */
static bool add_use(weir_host_allocator *host, weir__host_block *block, int device, weir_cu_stream stream) {
  for (const weir__host_use *use = block->uses; use; use = use->next)
    if (use->stream == stream && use->device == device)
      return true;
  weir__host_use *use = weir__slab_alloc(&host->use_slab, sizeof *use);
  if (!use)
    return false;
  *use = (weir__host_use){.device = device, .stream = stream, .next = block->uses};
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
  capture capture;
  weir_cu_result r = find_capture(host, device, stream, &capture);
  if (r)
    return weir__driver_status(host->driver, r, __func__, "cuStreamGetCaptureInfo");
  weir_status status = WEIR_OK;
  bool is_new = false;
  weir__biased_acquire(&host->lock);
  weir__host_block *block = find(host, pointer, false);
  if (!block)
    status = no_block(__func__, pointer);
  else if (capture.id) {
    is_new = block->capture != capture.id;
    block->capture = capture.id;
    block->graphs += is_new;
  } else if (!add_use(host, block, device, stream))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  if (block)
    forget(host, block);
  weir__biased_release(&host->lock);
  if (is_new) /* if another thread frees the block now, it is kept */
    weir__host_tie(host, block, device, capture.graph);
  return status;
}

weir_status weir_host_owns(weir_host_allocator *host, const void *pointer, int *owns) {
  CHECK(host);
  WEIR__CHECK_ARGUMENT(owns);
  weir__biased_acquire(&host->lock);
  *owns = find(host, pointer, false) != NULL;
  weir__biased_release(&host->lock);
  return WEIR_OK;
}

weir_status weir_host_empty_cache(weir_host_allocator *host) {
  CHECK(host);
  weir__host_reclaim_orphans(host);
  return return_cache(__func__, host);
}

size_t weir__host_list(weir_host_allocator *host, weir__host_item *items, size_t room) {
  uint64_t at = 0, bytes;
  size_t count = 0;
  weir__biased_acquire(&host->lock);
  for (const weir__host_block *block; (block = weir__rangemap_at_or_after(&host->blocks, at, &at, &bytes)); at += bytes)
    if (count++ < room)
      items[count - 1] = (weir__host_item){at, block->bytes, (weir__host_state)block->state};
  weir__biased_release(&host->lock);
  return count;
}

/* ---- Creation and destruction ---- */

static bool owns(const weir__client *client, uint64_t address) {
  weir_host_allocator *host = (weir_host_allocator *)client->object;
  weir__biased_acquire(&host->lock);
  bool is_owner = weir__rangemap_find(&host->blocks, address, NULL, NULL) != NULL;
  weir__biased_release(&host->lock);
  return is_owner;
}

static void describe(const weir__client *client, char *text, size_t size) {
  (void)client;
  snprintf(text, size, "pinned host memory");
}

/* In the child of a fork. The fast paths need no extra check: they do not take a lock that is biased to no thread. */
static void invalidate(weir__client *client) {
  weir_host_allocator *host = (weir_host_allocator *)client->object;
  host->is_forked = true;
  weir__biased_forget(&host->lock);
}

weir_status weir_host_allocator_create(weir_driver *driver, const weir_host_allocator_options *given,
                                       weir_host_allocator **host) {
  weir_host_allocator_options options;
  WEIR__CHECK_ARGUMENT(driver);
  WEIR__CHECK_ARGUMENT(host);
  weir_host_allocator_options_init(&options);
  weir_status status = weir__read_options(__func__, "options", &options, sizeof options, given);
  if (status)
    return status;
  weir_host_allocator *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  weir__settings_default(&made->settings);
  status = options.conf ? weir__settings_parse(NULL, options.conf, &made->settings)
                        : weir__settings_from_env(&made->settings, NULL);
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
  atomic_init(&made->references, 1);
  apply_settings(made);
  weir__biased_prepare();
  check_thresholds(&made->settings);
  weir__mutex_init(&made->context_lock);
  weir__mutex_init(&made->reserve_lock);
  weir__mutex_init(&made->events_lock);
  made->client =
      (weir__client){.driver = driver, .object = made, .describe = describe, .invalidate = invalidate, .owns = owns};
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
  if (atomic_load(&host->pending))
    weir__host_poll(host, true);
  weir__biased_acquire(&host->lock);
  bool is_used = current(&host->active_requests) > 0;
  weir__biased_release(&host->lock);
  for (int i = 0; i < host->device_count && is_used; i++) /* only then: a wait would invalidate captures */
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
  weir__mutex_destroy(&host->events_lock);
  weir__mutex_destroy(&host->reserve_lock);
  weir__mutex_destroy(&host->context_lock);
  free(host->devices);
  weir__host_unref(host);
}

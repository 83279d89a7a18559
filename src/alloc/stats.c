/*
 * Statistics.
 */
#include "alloc/backends/backend.h"
#include "alloc/cache/arena.h"
#include "alloc/memory/stat.h"
#include "base/thread.h"
#include "driver/call.h"

weir_status weir_allocator_get_stats(weir_allocator *allocator, int device, weir_allocator_stats *stats) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  if (!stats || stats->size < sizeof stats->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: stats is NULL, or its size is not set", __func__);
  uint64_t split = weir__settings_of(heap)->max_split_size;
  weir__mutex_lock(&heap->lock);
  weir_allocator_stats now = heap->stats;
  now.moving_aliases = (int64_t)heap->pages.aliases.count;
  now.moving_aliases_unmapped = heap->pages.aliases.unmapped;
  weir__accounts_read(&heap->accounts, &now); /* under the lock, so that allocated never exceeds reserved */
  if (weir__backend_is_async(allocator))
    weir__async_read_stats(heap, &now);
  weir__mutex_unlock(&heap->lock);
  now.size = stats->size;
  now.max_split_size = split == UINT64_MAX ? -1 : (int64_t)split;
  weir__copy_sized(stats, stats->size, &now, sizeof now);
  return WEIR_OK;
}

weir_status weir_allocator_reset_peak_stats(weir_allocator *allocator, int device) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__mutex_lock(&heap->lock);
  weir__stat_reset_peak(&heap->stats.oversize_segments);
  heap->stats.moving_aliases_peak = (int64_t)heap->pages.aliases.count;
  heap->stats.ipc_limbo_bytes_peak = heap->stats.ipc_limbo_bytes;
  if (weir__backend_is_async(allocator))
    weir__async_reset_peaks(heap);
  weir__accounts_reset_peaks(&heap->accounts);
  weir__mutex_unlock(&heap->lock);
  return WEIR_OK;
}

weir_status weir_allocator_reset_accumulated_stats(weir_allocator *allocator, int device) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__mutex_lock(&heap->lock);
  weir_allocator_stats *stats = &heap->stats;
  weir__stat_reset_accumulated(&stats->oversize_segments);
  stats->num_alloc_retries = stats->num_ooms = stats->num_sync_all_streams = 0;
  stats->num_device_alloc = stats->num_device_free = stats->num_oom_rejections = 0;
  stats->moving_pages_made = stats->moving_pages_moved = stats->moving_moved_bytes = 0;
  stats->moving_pages_returned = heap->pages.aliases.unmapped = 0;
  stats->ipc_lost_references = 0;
  weir__accounts_reset_added(&heap->accounts);
  weir__mutex_unlock(&heap->lock);
  return WEIR_OK;
}

/* The largest free block of two pools, or `largest`. */
static uint64_t largest_of(const weir__pool pools[2], uint64_t largest) {
  for (int i = 0; i < 2; i++)
    for (weir__arena *arena = weir__arena_first(&pools[i]); arena; arena = weir__arena_after(arena)) {
      weir__arena_lock(arena);
      const weir__block *last = weir__index_last(&arena->free);
      if (last && weir__block_bytes(last) > largest)
        largest = weir__block_bytes(last);
      weir__arena_unlock(arena);
    }
  return largest;
}

weir_status weir_allocator_largest_block(weir_allocator *allocator, int device, uint64_t *bytes) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(bytes);
  weir_driver *driver = allocator->driver;
  weir_cu_context previous;
  uint64_t largest = 0, total;
  weir_cu_result r = weir__heap_open(heap, &previous);
  if (!r) {
    r = driver->MemGetInfo(driver, &largest, &total);
    if (weir__backend_is_async(allocator))
      largest += weir__async_spare(heap);
    largest = largest_of(heap->pools, largest);
    for (const weir__private_pool *p = heap->private_pools; p; p = p->next)
      largest = largest_of(p->pools, largest);
    weir__heap_close(heap, previous);
  }
  if (r)
    return weir__driver_status(driver, r, __func__, "cuMemGetInfo");
  *bytes = largest;
  return WEIR_OK;
}

/*
 * Statistics and traces.
 */
#include "alloc/heap.h"

static void add(weir_stat *stat, int64_t by) {
  if (!by)
    return;
  stat->current += by;
  if (stat->current > stat->peak)
    stat->peak = stat->current;
  if (by > 0)
    stat->allocated += by;
  else
    stat->freed -= by;
}

static void add_both(weir_stat *stats, weir_stat_kind kind, int64_t by) {
  add(&stats[WEIR_STAT_ALL], by);
  add(&stats[kind], by);
}

void weir__count(weir__heap *heap, const weir__change *change) {
  weir_stat_kind kind = change->is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL;
  weir_allocator_stats *stats = &heap->stats;
  weir__lock_take(&heap->stats_lock);
  add_both(stats->allocation, kind, change->allocation);
  add_both(stats->allocated_bytes, kind, change->allocated_bytes);
  add_both(stats->active, kind, change->active);
  add_both(stats->active_bytes, kind, change->active_bytes);
  add_both(stats->requested_bytes, kind, change->requested_bytes);
  add_both(stats->inactive_split, kind, change->inactive_split);
  add_both(stats->inactive_split_bytes, kind, change->inactive_split_bytes);
  if (change->reserved_bytes) {
    add_both(stats->segment, kind, change->segment);
    add_both(stats->reserved_bytes, kind, change->reserved_bytes);
    add(&stats->oversize_segments, change->oversize_segments);
  }
  add(&stats->oversize_allocations, change->oversize_allocations);
  weir__lock_give(&heap->stats_lock);
}

void weir__count_pool(weir__heap *heap, weir__private_pool *pool, bool is_small, int64_t reserved_bytes) {
  weir__lock_take(&heap->stats_lock);
  add_both(pool->reserved_bytes, is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL, reserved_bytes);
  weir__lock_give(&heap->stats_lock);
}

void weir__count_event(weir__heap *heap, int64_t *counter) {
  weir__lock_take(&heap->stats_lock);
  ++*counter;
  weir__lock_give(&heap->stats_lock);
}

void weir__trace_slow(weir__heap *heap, const weir_trace_entry *entry) {
  weir_allocator *allocator = heap->allocator;
  weir__lock_take(&allocator->tracker_lock);
  int count = atomic_load(&allocator->tracker_count);
  for (int i = 0; i < count; i++)
    allocator->trackers[i].call(allocator->trackers[i].context, entry);
  weir__lock_give(&allocator->tracker_lock);
}

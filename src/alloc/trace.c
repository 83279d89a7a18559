/*
 * Traces: telling those who watch.
 */
#include "alloc/heap.h"

void weir__trace_slow(weir__heap *heap, const weir_trace_entry *entry) {
  weir_allocator *allocator = heap->allocator;
  weir__lock_take(&allocator->tracker_lock);
  int count = atomic_load(&allocator->tracker_count);
  for (int i = 0; i < count; i++)
    allocator->trackers[i].call(allocator->trackers[i].context, entry);
  weir__lock_give(&allocator->tracker_lock);
}

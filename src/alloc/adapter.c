/*
 * What an adapter to a framework asks for.
 */
#include "weir/adapter.h"

#include <stdatomic.h>

#include "alloc/heap.h"

weir_status weir_allocator_set_witness(weir_allocator *allocator, weir_trace_tracker witness, void *context,
                                       weir_witness_scope scope) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if ((unsigned)scope > WEIR_WITNESS_SEGMENTS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no scope has the number %d", __func__, (int)scope);
  weir__lock_take(&allocator->tracker_lock);
  weir_trace_tracker before = atomic_load(&allocator->observe);
  /* A call of the one before it may be under way: it must not get another's context. */
  bool taken = witness && before && (before != witness || allocator->observe_context != context);
  if (!taken) {
    if (witness)
      allocator->observe_context = context;
    atomic_store(&allocator->observes_segments, scope == WEIR_WITNESS_SEGMENTS);
    atomic_store(&allocator->observe, witness);
  }
  weir__lock_give(&allocator->tracker_lock);
  if (taken)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: there is another witness; take it away first", __func__);
  weir__watch(allocator);
  return WEIR_OK;
}

weir_status weir_bytes_parse(const char *text, unsigned long long *bytes) {
  if (!text || !bytes)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", __func__, text ? "bytes" : "text");
  if (!weir__parse_bytes(text, bytes))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: \"%s\" is not a size: expected bytes, such as 1024 or 8GiB",
                      __func__, text);
  return WEIR_OK;
}

weir_status weir_allocator_pools_ever(weir_allocator *allocator, int device, weir_pool_id *pools, size_t room,
                                      size_t *count) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!count || (room && !pools))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL", __func__);
  weir__heap *heap = weir__heap_get(__func__, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  size_t n = 0;
  pthread_mutex_lock(&heap->lock);
  for (const weir__pool_record *record = heap->pool_records; record; record = record->next, n++)
    if (n < room)
      pools[n] = record->id;
  pthread_mutex_unlock(&heap->lock);
  *count = n;
  return WEIR_OK;
}

/*
 * Memory of a device that no allocator of Weir has, as its owners report it.
 */
#include <string.h>

#include "alloc/allocator.h"
#include "base/base.h"
#include "base/thread.h"
#include "inspect/checkpoint.h"
#include "record/ring_file.h"
#include "weir/snapshot.h"

enum { MAX_REPORTERS = 16 };

static weir__mutex lock = WEIR__MUTEX_INIT; /* guards both */
static struct {
  weir_outside_memory_fn fn;
  void *context;
} reporters[MAX_REPORTERS];
static size_t reporter_count;

weir_status weir_outside_memory_add(weir_outside_memory_fn fn, void *context) {
  WEIR__CHECK_ARGUMENT(fn);
  weir__mutex_lock(&lock);
  bool is_known = false;
  for (size_t i = 0; i < reporter_count; i++)
    is_known = is_known || (reporters[i].fn == fn && reporters[i].context == context);
  bool is_full = !is_known && reporter_count == MAX_REPORTERS;
  if (!is_known && !is_full) {
    reporters[reporter_count].fn = fn;
    reporters[reporter_count++].context = context;
  }
  weir__mutex_unlock(&lock);
  return is_full ? weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: there are %d functions already", __func__, MAX_REPORTERS)
                 : WEIR_OK;
}

/* The functions are called without the lock: they may take locks of their own. */
weir_status weir_outside_memory_list(int device, weir_outside_memory *list, size_t room, size_t *count) {
  WEIR__CHECK_ARGUMENT(count);
  if (room && !list)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the list is NULL", __func__);
  size_t found = 0;
  for (size_t i = 0;; i++) {
    weir__mutex_lock(&lock);
    bool is_last = i >= reporter_count;
    weir_outside_memory_fn fn = is_last ? NULL : reporters[i].fn;
    void *context = is_last ? NULL : reporters[i].context;
    weir__mutex_unlock(&lock);
    if (is_last)
      break;
    size_t left = found < room ? room - found : 0;
    found += fn(context, device, left ? list + found : NULL, left);
  }
  *count = found;
  return WEIR_OK;
}

weir_status weir_outside_memory_record(weir_allocator *allocator, int device, uint64_t bytes) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__recorder *history;
  weir__ring_file *file = weir__checkpoint_file(heap, &history);
  if (!file)
    return WEIR_OK;
  _Atomic uint64_t *peak = &file->header->outside[device].peak;
  uint64_t before = atomic_load(peak);
  atomic_store(&file->header->outside[device].bytes, bytes);
  while (before < bytes && !atomic_compare_exchange_weak(peak, &before, bytes)) {
  }
  return WEIR_OK;
}

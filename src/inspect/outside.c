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
static struct reporter {
  weir_outside_reporter_fn fn;
  void *context;
} reporters[MAX_REPORTERS];
static size_t reporter_count;

/* The index of a reporter, or reporter_count. The lock is held. */
static size_t find_reporter(weir_outside_reporter_fn fn, const void *context) {
  size_t i = 0;
  while (i < reporter_count && (reporters[i].fn != fn || reporters[i].context != context))
    i++;
  return i;
}

weir_status weir_outside_memory_add(weir_outside_reporter_fn reporter, void *context) {
  WEIR__CHECK_ARGUMENT(reporter);
  weir__mutex_lock(&lock);
  size_t i = find_reporter(reporter, context);
  bool is_full = i == MAX_REPORTERS;
  if (i == reporter_count && !is_full)
    reporters[reporter_count++] = (struct reporter){reporter, context};
  weir__mutex_unlock(&lock);
  return is_full ? weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: there are %d functions already", __func__, MAX_REPORTERS)
                 : WEIR_OK;
}

weir_status weir_outside_memory_remove(weir_outside_reporter_fn reporter, void *context) {
  WEIR__CHECK_ARGUMENT(reporter);
  weir__mutex_lock(&lock);
  size_t i = find_reporter(reporter, context);
  bool is_known = i < reporter_count;
  if (is_known)
    reporters[i] = reporters[--reporter_count];
  weir__mutex_unlock(&lock);
  return is_known ? WEIR_OK
                  : weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: this function and context were not added", __func__);
}

/* The functions are called without the lock: they may take locks of their own. */
weir_status weir_outside_memory_visit(int device, weir_outside_memory_fn visit, void *context) {
  struct reporter known[MAX_REPORTERS];
  WEIR__CHECK_ARGUMENT(visit);
  weir__mutex_lock(&lock);
  size_t count = reporter_count;
  memcpy(known, reporters, sizeof known);
  weir__mutex_unlock(&lock);
  for (size_t i = 0; i < count; i++)
    known[i].fn(known[i].context, device, visit, context);
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

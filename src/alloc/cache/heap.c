#include "alloc/cache/heap.h"

#include "driver/call.h"
#include "driver/context.h"

/* ---- Calls on an allocator and its heaps ---- */

weir_status weir__allocator_check(const char *caller, const weir_allocator *allocator) {
  if (!allocator)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: allocator is NULL", caller);
  return allocator->is_forked ? weir__bad_fork(caller) : WEIR_OK;
}

weir__heap *weir__heap_get(const char *caller, weir_allocator *allocator, int device) {
  if (device >= 0 && device < allocator->heap_count)
    return &allocator->heaps[device];
  weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: invalid device %d: there are %d", caller, device, allocator->heap_count);
  return NULL;
}

/* ---- Calls of the driver ---- */

weir_cu_result weir__heap_enter(weir__heap *heap, weir_cu_context *previous) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_result r = weir__context_retain(driver, heap->device, &heap->cu_context);
  return r ? r : weir__context_enter(driver, heap->cu_context, previous);
}

void weir__heap_leave(weir__heap *heap, weir_cu_context previous) {
  weir__context_switch(heap->allocator->driver, heap->cu_context, previous);
}

weir_cu_result weir__heap_open(weir__heap *heap, weir_cu_context *previous) {
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__heap_enter(heap, previous);
  if (r)
    weir__mutex_unlock(&heap->lock);
  return r;
}

void weir__heap_close(weir__heap *heap, weir_cu_context previous) {
  weir__heap_leave(heap, previous);
  weir__mutex_unlock(&heap->lock);
}

bool weir__heap_ok(weir__heap *heap, weir_cu_result result, const char *call) {
  return weir__pages_ok(&heap->pages, result, call);
}

unsigned long long weir__active_capture(weir_driver *driver, weir_cu_stream stream) {
  int status;
  unsigned long long id;
  weir_cu_result r = driver->StreamGetCaptureInfo(driver, stream, &status, &id, NULL, NULL, NULL);
  return !r && status == WEIR_CU_CAPTURE_STATUS_ACTIVE ? id : 0;
}

static bool has_captures(const weir_allocator *allocator) {
  for (int i = 0; i < allocator->heap_count; i++)
    if (atomic_load(&allocator->heaps[i].captures))
      return true;
  return false;
}

bool weir__capture_relax(weir__heap *heap, int *mode) {
  weir_driver *driver = heap->allocator->driver;
  *mode = WEIR_CU_CAPTURE_RELAXED; /* nothing to restore */
  return !has_captures(heap->allocator) || !driver->ThreadExchangeStreamCaptureMode(driver, mode);
}

void weir__capture_restore(weir__heap *heap, int mode) {
  weir_driver *driver = heap->allocator->driver;
  if (mode != WEIR_CU_CAPTURE_RELAXED)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
}

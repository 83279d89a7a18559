/*
 * Access to memory of other devices.
 */
#include "alloc/backends/backend.h"
#include "alloc/cache/segment.h"
#include "alloc/ipc/ipc.h"
#include "base/thread.h"
#include "driver/call.h"
#include "driver/context.h"

weir_status weir_allocator_enable_peer_access(weir_allocator *allocator, int owner, int device) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *heap = weir__heap_get(__func__, allocator, owner);
  if (!heap || !weir__heap_get(__func__, allocator, device))
    return WEIR_ERROR_INVALID_DEVICE;
  if (owner == device)
    return WEIR_OK;
  weir__mutex_lock(&allocator->ipc_lock);
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (!(heap->pages.peers >> device & 1)) {
    if (weir__backend_is_async(allocator))
      r = weir__async_share(heap, device);
    else if (!allocator->backend)
      r = weir__pages_share(&heap->pages, device);
    if (!r)
      r = weir__pages_share(&heap->received, device);
  }
  if (!r) {
    heap->pages.peers |= 1ull << device;
    heap->received.peers |= 1ull << device;
  }
  weir__mutex_unlock(&heap->lock);
  weir__mutex_unlock(&allocator->ipc_lock);
  return r ? weir__driver_status(allocator->driver, r, __func__, "cuMemSetAccess") : WEIR_OK;
}

/* A device that the allocator has not used yet has no context. */
static weir_cu_result context_of(weir__heap *heap, weir_cu_context *context) {
  weir__mutex_lock(&heap->lock);
  weir_cu_result r = weir__context_retain(heap->allocator->driver, heap->device, &heap->cu_context);
  *context = heap->cu_context;
  weir__mutex_unlock(&heap->lock);
  return r;
}

weir_status weir_allocator_copy_async(weir_allocator *allocator, void *to, int to_device, const void *from,
                                      int from_device, uint64_t bytes, weir_cu_stream stream, int peer_access) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__heap *target = weir__heap_get(__func__, allocator, to_device);
  weir__heap *source = target ? weir__heap_get(__func__, allocator, from_device) : NULL;
  if (!source)
    return WEIR_ERROR_INVALID_DEVICE;
  weir_driver *driver = allocator->driver;
  bool plain =
      to_device == from_device || peer_access || (!atomic_load(&target->had_pages) && !atomic_load(&source->had_pages));
  /* The null stream belongs to the current context. A thread without a context uses that of the source device
   * meanwhile. */
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

/*
 * The driver's stream-ordered memory as a back end: backend:cudaMallocAsync.
 *
 * Each device has a private driver pool, which keeps all of its memory until it is trimmed. Memory that one stream used
 * is freed in that stream, and is available to the stream's later work at once. Memory that several streams used is
 * freed in an internal stream that waits for all of them, so no polling is needed.
 *
 * During a capture an allocation becomes a graph node, and the graph owns the memory. Freeing it within the capture
 * adds a node as well; other memory that is freed during the capture is kept until the capture ends.
 */
#include "alloc/backends/backend.h"
#include "alloc/cache/segment.h"

static weir__async_device *device_of(const weir__heap *heap) {
  return &heap->allocator->backend->devices[heap->device];
}

bool weir__async_is_supported(const weir_driver *driver) {
  return driver->MemAllocFromPoolAsync && driver->MemFreeAsync && driver->MemPoolCreate && driver->MemPoolDestroy &&
         driver->MemPoolSetAttribute && driver->MemPoolGetAttribute && driver->MemPoolTrimTo;
}

/* The driver's pool, created on first use. */
static weir_cu_result pool_of(weir__heap *heap, weir_cu_mempool *pool) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED,
                                 .location = {.type = WEIR_CU_LOCATION_DEVICE, .id = heap->device}};
  uint64_t all = UINT64_MAX;
  *pool = device->pool;
  if (*pool)
    return WEIR_CU_SUCCESS;
  weir_cu_result r = driver->MemPoolCreate(driver, pool, &props);
  if (r)
    return r;
  r = driver->MemPoolSetAttribute(driver, *pool, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
  for (int i = 0; i < 64 && !r; i++) {
    weir_cu_mem_access access = {.location = {WEIR_CU_LOCATION_DEVICE, i}, .flags = WEIR_CU_ACCESS_READWRITE};
    if (heap->pages.peers >> i & 1)
      r = driver->MemPoolSetAccess(driver, *pool, &access, 1);
  }
  if (r)
    driver->MemPoolDestroy(driver, *pool);
  else
    device->pool = *pool;
  return r;
}

static weir_cu_result is_capturing(weir_driver *driver, weir_cu_stream stream, bool *captures) {
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  weir_cu_result r = driver->StreamIsCapturing(driver, stream, &status);
  *captures = status != WEIR_CU_CAPTURE_STATUS_NONE;
  return r;
}

weir_cu_result weir__async_alloc(weir__heap *heap, weir_cu_stream stream, uint64_t bytes, weir_cu_deviceptr *memory,
                                 bool *captured) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mempool pool;
  int mode;
  if (!weir__capture_relax(heap, &mode))
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  weir_cu_result r = is_capturing(driver, stream, captured);
  if (!r)
    r = pool_of(heap, &pool);
  if (!r)
    r = driver->MemAllocFromPoolAsync(driver, memory, bytes, pool, stream);
  weir__capture_restore(heap, mode);
  return r;
}

bool weir__async_can_free(weir__heap *heap, const weir__segment *segment) {
  bool captures;
  return !atomic_load(&heap->captures) ||
         (segment->captured && !is_capturing(heap->allocator->driver, segment->arena->stream, &captures) && captures);
}

/* Makes `stream` wait for the work that `other` has now. */
static weir_cu_result wait_for(weir__heap *heap, weir_cu_stream stream, weir_cu_stream other) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_event event;
  weir_cu_result r = weir__event_acquire(&heap->fences, driver, &event);
  if (r)
    return r;
  r = driver->EventRecord(driver, event, other);
  if (!r)
    r = driver->StreamWaitEvent(driver, stream, event, 0);
  weir__event_release(&heap->fences, driver, event);
  return r;
}

/* Makes a stream wait for all streams that use the block, and returns it in *stream. In a capture that is the stream of
 * the block itself, because the internal stream would join the capture and never be joined back. */
static weir_cu_result join(weir__heap *heap, const weir__block *block, bool in_capture, weir_cu_stream *stream) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (!in_capture) {
    if (!device->joining)
      r = driver->StreamCreateWithPriority(driver, &device->joining, WEIR_CU_STREAM_NON_BLOCKING, 0);
    if (!r)
      r = wait_for(heap, device->joining, *stream);
    *stream = device->joining;
  }
  for (const weir__use *use = weir__block_uses(block); use && !r; use = use->next)
    r = wait_for(heap, *stream, use->stream);
  return r;
}

weir_cu_result weir__async_free(weir__heap *heap, const weir__block *block) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  const weir__segment *segment = weir__segment_of(heap, block);
  bool captured = segment->captured;
  weir_cu_stream stream = segment->arena->stream;
  bool in_capture = false;
  weir_cu_result r = captured ? is_capturing(driver, stream, &in_capture) : WEIR_CU_SUCCESS;
  if (!r && (block->marks & WEIR__MARK_USES))
    r = join(heap, block, in_capture, &stream);
  if (!r)
    r = driver->MemFreeAsync(driver, block->address, stream);
  if (!captured || in_capture)
    return r;
  if (!device->has_warned)
    weir__log(WEIR_LOG_WARN,
              "memory %p was allocated in a capture and is freed outside of it: data that later launches of the graph "
              "write there can no longer be read",
              (void *)block->address);
  device->has_warned = true;
  /* A graph that was never launched has no memory yet, so there is nothing to free. */
  return r == WEIR_CU_INVALID_VALUE ? WEIR_CU_SUCCESS : r;
}

weir_cu_result weir__async_trim(weir__heap *heap, weir_cu_stream stream, bool all) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  int mode;
  if (!device->pool)
    return WEIR_CU_SUCCESS;
  if (!weir__capture_relax(heap, &mode))
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  weir_cu_result r = all ? driver->CtxSynchronize(driver) : driver->StreamSynchronize(driver, stream);
  if (!r)
    r = driver->MemPoolTrimTo(driver, device->pool, 0);
  if (!r && all && driver->DeviceGraphMemTrim)
    r = driver->DeviceGraphMemTrim(driver, heap->device);
  weir__capture_restore(heap, mode);
  return r;
}

/* ---- Statistics of the driver ---- */

/* An attribute of the pool plus, unless `graphs` is -1, one of the device's graph memory. Captures are relaxed
 * meanwhile, since the query alone would invalidate them. Values that the driver cannot report count as 0. */
static uint64_t read_values(weir__heap *heap, int attribute, int graphs) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  uint64_t value = 0, more = 0;
  int mode;
  if (!device->pool || !weir__capture_relax(heap, &mode))
    return 0;
  if (driver->MemPoolGetAttribute(driver, device->pool, attribute, &value))
    value = 0;
  if (graphs >= 0 && driver->DeviceGetGraphMemAttribute &&
      driver->DeviceGetGraphMemAttribute(driver, heap->device, graphs, &more))
    more = 0;
  weir__capture_restore(heap, mode);
  return value + more;
}

/* Reserved memory is that of the pool and that of graphs. The two peaks may belong to different moments, and the peak
 * of graphs is never reset, so their sum is an upper bound. */
void weir__async_read_stats(weir__heap *heap, weir_allocator_stats *stats) {
  weir_stat *reserved = &stats->reserved_bytes[WEIR_STAT_ALL];
  reserved->current =
      (int64_t)read_values(heap, WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT, WEIR_CU_GRAPH_MEM_ATTR_RESERVED_CURRENT);
  reserved->peak = (int64_t)read_values(heap, WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH, WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH);
}

void weir__async_reset_peaks(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  uint64_t zero = 0;
  int mode;
  if (!device->pool || !weir__capture_relax(heap, &mode))
    return;
  driver->MemPoolSetAttribute(driver, device->pool, WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH, &zero);
  weir__capture_restore(heap, mode);
}

uint64_t weir__async_spare(weir__heap *heap) {
  uint64_t reserved = read_values(heap, WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT, -1);
  uint64_t used = read_values(heap, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, -1);
  return reserved > used ? reserved - used : 0;
}

weir_cu_result weir__async_share(weir__heap *heap, int device) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mem_access access = {.location = {WEIR_CU_LOCATION_DEVICE, device}, .flags = WEIR_CU_ACCESS_READWRITE};
  weir_cu_mempool pool = device_of(heap)->pool; /* a pool that is created later reads heap->pages.peers */
  int mode;
  if (!driver->MemPoolSetAccess)
    return WEIR_CU_NOT_SUPPORTED;
  if (!pool)
    return WEIR_CU_SUCCESS;
  if (!weir__capture_relax(heap, &mode))
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  weir_cu_result r = driver->MemPoolSetAccess(driver, pool, &access, 1);
  weir__capture_restore(heap, mode);
  return r;
}

void weir__async_close(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  if (device->joining)
    driver->StreamDestroy(driver, device->joining);
  if (device->pool)
    driver->MemPoolDestroy(driver, device->pool);
  *device = (weir__async_device){0};
}

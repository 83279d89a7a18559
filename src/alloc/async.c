/*
 * The driver's stream-ordered memory as a back end: backend:cudaMallocAsync.
 *
 * Each device has a pool of its own at the driver, which keeps all that it has until it is trimmed. What one stream used is
 * freed in that stream, and is there again for what the stream does next. What several used is freed in a stream of ours that
 * waits for all of them: nobody polls.
 *
 * Within a capture an allocation is a node, and the memory the graph's. It is freed there by a node too; other memory that is
 * freed meanwhile waits for the end of the capture.
 */
#include "alloc/backend.h"
#include "alloc/segment.h"

static weir__async_device *device_of(const weir__heap *heap) {
  return &heap->allocator->backend->devices[heap->device];
}

bool weir__async_is_there(const weir_driver *driver) {
  return driver->MemAllocFromPoolAsync && driver->MemFreeAsync && driver->MemPoolCreate && driver->MemPoolDestroy &&
         driver->MemPoolSetAttribute && driver->MemPoolGetAttribute && driver->MemPoolTrimTo;
}

/* The pool, made if need be. */
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
    if (heap->peers >> i & 1)
      r = driver->MemPoolSetAccess(driver, *pool, &access, 1);
  }
  if (r)
    driver->MemPoolDestroy(driver, *pool);
  else
    device->pool = *pool;
  return r;
}

static weir_cu_result ask_capturing(weir_driver *driver, weir_cu_stream stream, bool *captures) {
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
  weir_cu_result r = ask_capturing(driver, stream, captured);
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
         (segment->captured && !ask_capturing(heap->allocator->driver, segment->arena->stream, &captures) && captures);
}

/* `stream` goes on when the other one got to where it is now. */
static weir_cu_result wait_for(weir__heap *heap, weir_cu_stream stream, weir_cu_stream other) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_event event;
  weir_cu_result r = weir__event_take(&heap->events, driver, &event);
  if (r)
    return r;
  r = driver->EventRecord(driver, event, other);
  if (!r)
    r = driver->StreamWaitEvent(driver, stream, event, 0);
  weir__event_give(&heap->events, driver, event);
  return r;
}

/* The stream in which memory that several streams use is freed; it waits for all of them. In a capture that is the memory's own:
 * another one would be left behind there. */
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
  weir_cu_result r = captured ? ask_capturing(driver, stream, &in_capture) : WEIR_CU_SUCCESS;
  if (!r && block->marks.has_uses)
    r = join(heap, block, in_capture, &stream);
  if (!r)
    r = driver->MemFreeAsync(driver, block->address, stream);
  if (!captured || in_capture)
    return r;
  if (!device->has_warned)
    weir__log(WEIR_LOG_WARN,
              "memory %p was allocated in a capture, and is freed outside of it: what the graph writes there at later "
              "launches can no longer be read",
              (void *)block->address);
  device->has_warned = true;
  /* A graph that never ran has no memory to free yet, and needs none. */
  return r == WEIR_CU_INVALID_VALUE ? WEIR_CU_SUCCESS : r;
}

weir_cu_result weir__async_trim(weir__heap *heap, weir_cu_stream stream, bool all) {
  weir_driver *driver = heap->allocator->driver;
  weir__async_device *device = device_of(heap);
  if (!device->pool)
    return WEIR_CU_SUCCESS;
  weir_cu_result r = all ? driver->CtxSynchronize(driver) : driver->StreamSynchronize(driver, stream);
  if (!r)
    r = driver->MemPoolTrimTo(driver, device->pool, 0);
  if (!r && all && driver->DeviceGraphMemTrim)
    r = driver->DeviceGraphMemTrim(driver, heap->device);
  return r;
}

/* ---- What the driver counts ---- */

/* One of the pool, plus one of what graphs hold where `graphs` is not -1. Even to ask disturbs a capture. What the driver does
 * not tell is 0. */
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

/* The pool holds more than it has given out, and what graphs hold is their own. The two peaks need not have been at the same
 * time, and that of the graphs is never reset: their sum is never too low. */
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
  weir_cu_mempool pool = device_of(heap)->pool; /* one that is made later asks who has access */
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

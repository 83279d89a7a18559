/*
 * Stream-ordered memory: pools and their attributes, and memory that belongs to graphs.
 *
 * Memory that is asked for in a capture belongs to the graph: its range lives as long as the graph, an executable of
 * it, or work of a launch. NVIDIA's driver takes the memory only while a launch needs it; here the graph holds it all
 * the time.
 */
#include "driver/model/model.h"

static model_pool *new_pool(model *m, model_device *device, uint64_t max_bytes) {
  model_pool *pool = weir__handles_make(&m->pools);
  if (!pool)
    return NULL;
  pool->device = device;
  pool->max_bytes = max_bytes;
  for (size_t i = 0; i < WEIR_COUNT_OF(pool->reuse); i++)
    pool->reuse[i] = 1;
  return pool;
}

static model_pool *default_pool(model *m, model_device *device) {
  if (!device->default_pool)
    device->default_pool = new_pool(m, device, 0);
  if (!device->pool)
    device->pool = device->default_pool;
  return device->default_pool;
}

static weir_cu_mempool handle_of(const model *m, const model_pool *pool) {
  return (weir_cu_mempool)(uintptr_t)weir__handle_of(&m->pools, pool);
}

/* The pool of a handle that was not destroyed, or NULL. */
static model_pool *find_pool(const model *m, weir_cu_mempool handle) {
  model_pool *pool = weir__handles_get(&m->pools, (uintptr_t)handle);
  return pool && !pool->destroyed ? pool : NULL;
}

/* For the calls about one pool that are unsafe in a capture. */
static weir_cu_result enter(model *m, weir_cu_mempool handle, model_pool **pool) {
  weir_cu_result r = weir__model_unsafe(m);
  if (r)
    return r;
  *pool = find_pool(m, handle);
  return *pool ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

void weir__model_settle_pools(model *m, const model_device *device) {
  uint32_t index = 0;
  for (model_pool *pool; (pool = weir__handles_next(&m->pools, &index));)
    if (!device || pool->device == device)
      m->hooks->pool_trim(m, pool, pool->threshold);
}

void weir__model_drop_pool(model *m, model_pool *pool) {
  if (!pool->destroyed)
    return;
  m->hooks->pool_trim(m, pool, 0);
  if (!pool->reserved)
    weir__handles_drop(&m->pools, pool);
}

void weir__model_end_pools(model *m, model_device *device) {
  uint32_t index = 0;
  for (model_pool *pool; (pool = weir__handles_next(&m->pools, &index));) {
    if (pool->device != device)
      continue;
    m->hooks->pool_close(m, pool);
    if (pool != device->default_pool)
      weir__handles_drop(&m->pools, pool);
  }
  device->pool = device->default_pool;
}

/* ---- Allocating and freeing ---- */

void weir__model_unref_range(model *m, model_range *range) {
  if (--range->refs || range->pool)
    return;
  range->device->graph_used -= range->room;
  weir__model_free_range(m, range);
}

static weir_cu_result alloc_in_capture(model *m, model_stream *stream, uint64_t bytes, model_range **range) {
  model_device *device = stream->device;
  if (stream->capture->invalid)
    return WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  weir_cu_result r = m->hooks->new_range(m, &(model_request){MODEL_RANGE_POOLED, device, bytes, 0, 0}, range);
  if (r)
    return r;
  (*range)->refs = 1;
  device->graph_used += (*range)->room;
  if (device->graph_used > device->graph_used_high)
    device->graph_used_high = device->graph_used;
  model_work work = {.kind = MODEL_WORK_ALLOC, .as.memory.range = *range};
  return weir__model_submit(m, stream, &work);
}

static weir_cu_result alloc(model *m, model_pool *pool, model_stream *stream, uint64_t bytes,
                            weir_cu_deviceptr *pointer) {
  if (!pointer)
    return WEIR_CU_INVALID_VALUE;
  if (!bytes) { /* NVIDIA's driver answers so */
    *pointer = 0;
    return WEIR_CU_SUCCESS;
  }
  if (bytes > m->bytes)
    return WEIR_CU_OUT_OF_MEMORY;
  model_range *range = NULL;
  weir_cu_result r;
  if (stream->capture)
    r = alloc_in_capture(m, stream, bytes, &range);
  else if (!(r = weir__model_unsafe(m)) && !(r = weir__model_implicit(m, stream)))
    r = m->hooks->pool_alloc(m, pool, stream, bytes, &range);
  if (!r && range)
    *pointer = range->base;
  return r;
}

weir_cu_result weir__model_MemAllocAsync(model *m, weir_cu_deviceptr *pointer, uint64_t bytes, weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  return default_pool(m, s->device) ? alloc(m, s->device->pool, s, bytes, pointer) : WEIR_CU_OUT_OF_MEMORY;
}

weir_cu_result weir__model_MemAllocFromPoolAsync(model *m, weir_cu_deviceptr *pointer, uint64_t bytes,
                                                 weir_cu_mempool pool, weir_cu_stream stream) {
  model_stream *s;
  model_pool *p = find_pool(m, pool);
  if (!p)
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  return r ? r : alloc(m, p, s, bytes, pointer);
}

weir_cu_result weir__model_MemFreeAsync(model *m, weir_cu_deviceptr pointer, weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r || !pointer)
    return r;
  model_range *range = weir__model_range_at(m, pointer);
  bool pooled = range && range->kind == MODEL_RANGE_POOLED;
  if (!range || (s->capture && !(pooled && !range->pool)))
    return WEIR_CU_INVALID_VALUE; /* a capture can free only what it allocated */
  if (!s->capture && ((r = weir__model_unsafe(m)) || (r = weir__model_implicit(m, s))))
    return r;
  if (pooled && range->idle)
    return WEIR_CU_INVALID_VALUE;
  if (pooled && range->pool)
    return m->hooks->pool_free(m, range, s);
  if (pooled) {
    model_work work = {.kind = MODEL_WORK_FREE, .as.memory = {range, range->turn}};
    range->refs++;
    return weir__model_submit(m, s, &work);
  }
  if (range->kind != MODEL_RANGE_PLAIN)
    return WEIR_CU_INVALID_VALUE;
  /* Plain memory is allowed here too. It has no pool to go back to: it goes once the stream has got here. */
  uint64_t id = range->id;
  if (m->hooks->is_busy)
    r = m->hooks->wait_stream(m, s);
  range = weir__model_range_at(m, pointer);
  if (!range || range->id != id)
    return WEIR_CU_INVALID_VALUE;
  weir__model_free_range(m, range);
  return r;
}

/* ---- Pools ---- */

weir_cu_result weir__model_DeviceGetDefaultMemPool(model *m, weir_cu_mempool *pool, weir_cu_device number) {
  model_device *device = weir__model_device(m, number);
  if (!pool)
    return WEIR_CU_INVALID_VALUE;
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  if (!default_pool(m, device))
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = handle_of(m, device->default_pool);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_DeviceGetMemPool(model *m, weir_cu_mempool *pool, weir_cu_device number) {
  model_device *device = weir__model_device(m, number);
  if (!pool || !device)
    return WEIR_CU_INVALID_VALUE; /* not INVALID_DEVICE, as NVIDIA's driver */
  if (!default_pool(m, device))
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = handle_of(m, device->pool);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_DeviceSetMemPool(model *m, weir_cu_device number, weir_cu_mempool pool) {
  model_device *device = weir__model_device(m, number);
  model_pool *p = find_pool(m, pool);
  weir_cu_result r = weir__model_unsafe(m);
  if (r)
    return r;
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  if (!p || p->device != device)
    return WEIR_CU_INVALID_VALUE;
  device->pool = p;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemPoolCreate(model *m, weir_cu_mempool *pool, const weir_cu_mempool_props *props) {
  weir_cu_result r = weir__model_unsafe(m);
  if (r)
    return r;
  model_device *device = props ? weir__model_device(m, props->location.id) : NULL;
  if (!pool || !device || props->type != WEIR_CU_ALLOCATION_PINNED || props->location.type != WEIR_CU_LOCATION_DEVICE)
    return WEIR_CU_INVALID_VALUE;
  if (props->handle_types != WEIR_CU_HANDLE_NONE)
    return WEIR_CU_NOT_SUPPORTED;
  model_pool *p = new_pool(m, device, props->max_size);
  if (!p)
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = handle_of(m, p);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemPoolDestroy(model *m, weir_cu_mempool pool) {
  model_pool *p;
  weir_cu_result r = enter(m, pool, &p);
  if (r)
    return r;
  if (p == p->device->default_pool)
    return WEIR_CU_INVALID_VALUE;
  if (p->device->pool == p)
    p->device->pool = p->device->default_pool;
  p->destroyed = true;
  weir__model_drop_pool(m, p);
  return WEIR_CU_SUCCESS;
}

/* Where an attribute of 64 bits is kept, or NULL. */
static uint64_t *number_of(model_pool *pool, int attribute) {
  switch (attribute) {
  case WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    return &pool->threshold;
  case WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT:
    return &pool->reserved;
  case WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH:
    return &pool->reserved_high;
  case WEIR_CU_MEMPOOL_ATTR_USED_CURRENT:
    return &pool->used;
  case WEIR_CU_MEMPOOL_ATTR_USED_HIGH:
    return &pool->used_high;
  }
  return NULL;
}

/* The same for an attribute that is an int. */
static int *switch_of(model_pool *pool, int attribute) {
  bool is_one = attribute >= WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
                attribute <= WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  return is_one ? &pool->reuse[attribute - WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] : NULL;
}

weir_cu_result weir__model_MemPoolGetAttribute(model *m, weir_cu_mempool pool, int attribute, void *value) {
  model_pool *p;
  weir_cu_result r = enter(m, pool, &p);
  if (r)
    return r;
  if (value && switch_of(p, attribute))
    *(int *)value = *switch_of(p, attribute);
  else if (value && number_of(p, attribute))
    *(uint64_t *)value = *number_of(p, attribute);
  else
    return WEIR_CU_INVALID_VALUE;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemPoolSetAttribute(model *m, weir_cu_mempool pool, int attribute, void *value) {
  model_pool *p;
  weir_cu_result r = enter(m, pool, &p);
  if (r)
    return r;
  if (!value)
    return WEIR_CU_INVALID_VALUE;
  if (switch_of(p, attribute))
    *switch_of(p, attribute) = *(int *)value != 0;
  else if (attribute == WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    p->threshold = *(uint64_t *)value;
  else if (attribute == WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH && !*(uint64_t *)value)
    p->reserved_high = p->reserved;
  else if (attribute == WEIR_CU_MEMPOOL_ATTR_USED_HIGH && !*(uint64_t *)value)
    p->used_high = p->used;
  else
    return WEIR_CU_INVALID_VALUE;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemPoolTrimTo(model *m, weir_cu_mempool pool, uint64_t keep) {
  model_pool *p;
  weir_cu_result r = enter(m, pool, &p);
  if (!r)
    m->hooks->pool_trim(m, p, keep);
  return r;
}

/* Checked and not kept: every device can reach the memory of a pool. */
weir_cu_result weir__model_MemPoolSetAccess(model *m, weir_cu_mempool pool, const weir_cu_mem_access *access,
                                            size_t count) {
  model_pool *p;
  weir_cu_result r = enter(m, pool, &p);
  if (r)
    return r;
  if (!access && count)
    return WEIR_CU_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    const model_device *device = weir__model_device(m, access[i].location.id);
    int flags = access[i].flags;
    if (flags != WEIR_CU_ACCESS_NONE && flags != WEIR_CU_ACCESS_READ && flags != WEIR_CU_ACCESS_READWRITE)
      return WEIR_CU_INVALID_VALUE;
    if (access[i].location.type != WEIR_CU_LOCATION_DEVICE || !device)
      return WEIR_CU_INVALID_DEVICE;
    if (device == p->device && flags != WEIR_CU_ACCESS_READWRITE)
      return WEIR_CU_INVALID_VALUE; /* the pool's own device always has access */
  }
  return WEIR_CU_SUCCESS;
}

/* ---- Memory of graphs ---- */

weir_cu_result weir__model_DeviceGetGraphMemAttribute(model *m, weir_cu_device number, int attribute, void *value) {
  const model_device *device = weir__model_device(m, number);
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  if (!value || attribute < WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT || attribute > WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH)
    return WEIR_CU_INVALID_VALUE;
  bool high = attribute == WEIR_CU_GRAPH_MEM_ATTR_USED_HIGH || attribute == WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH;
  *(uint64_t *)value = high ? device->graph_used_high : device->graph_used;
  return WEIR_CU_SUCCESS;
}

/* Memory of a graph goes with the graph; none is held that is not used. */
weir_cu_result weir__model_DeviceGraphMemTrim(model *m, weir_cu_device number) {
  return weir__model_device(m, number) ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_DEVICE;
}

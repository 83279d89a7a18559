/*
 * Stream-ordered pools. Work is done the moment it is enqueued, so what was freed in a stream is free at once, for all.
 */
#include "driver/ledger/ledger.h"

ledger_pool *weir__ledger_make_pool(ledger *l, ledger_device *device, uint64_t max_bytes) {
  ledger_pool *pool = weir__handles_make(&l->pools);
  if (pool == NULL)
    return NULL;
  pool->device = device;
  pool->max_bytes = max_bytes;
  for (size_t i = 0; i < WEIR_COUNT_OF(pool->reuse); i++)
    pool->reuse[i] = 1;
  return pool;
}

static weir_cu_mempool handle_of(const ledger *l, const ledger_pool *pool) {
  return (weir_cu_mempool)(uintptr_t)weir__handle_of(&l->pools, pool);
}

/* The pool of a handle that was not destroyed, or NULL. */
static ledger_pool *find_pool(const ledger *l, weir_cu_mempool handle) {
  ledger_pool *pool = weir__handles_get(&l->pools, (uintptr_t)handle);
  return pool != NULL && !pool->destroyed ? pool : NULL;
}

/* For the calls about one pool, which are all unsafe in a capture. */
static weir_cu_result enter(ledger *l, weir_cu_mempool handle, ledger_pool **pool) {
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  weir_cu_result result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  *pool = find_pool(l, handle);
  return *pool != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

/* Gives back what is not used until the pool holds `keep` bytes. */
static void trim(ledger_pool *pool, uint64_t keep) {
  if (keep < pool->used)
    keep = pool->used;
  if (pool->reserved <= keep)
    return;
  pool->device->used -= pool->reserved - keep;
  pool->reserved = keep;
}

void weir__ledger_settle_pools(ledger *l) {
  uint32_t index = 0;
  ledger_pool *pool;
  while ((pool = weir__handles_next(&l->pools, &index)) != NULL)
    trim(pool, pool->threshold);
}

/* A pool that was destroyed goes when all that it handed out is back. */
static void destroy_pool(ledger *l, ledger_pool *pool) {
  pool->destroyed = true;
  trim(pool, 0);
  if (pool->used == 0)
    weir__handles_drop(&l->pools, pool);
}

void weir__ledger_drop_context_pools(ledger *l, ledger_device *device) {
  device->pool = device->default_pool;
  trim(device->default_pool, 0);
  uint32_t index = 0;
  ledger_pool *pool;
  while ((pool = weir__handles_next(&l->pools, &index)) != NULL)
    if (pool->device == device && pool != device->default_pool && !pool->destroyed)
      destroy_pool(l, pool);
}

/* ---- Allocations ---- */

static weir_cu_result alloc_from(ledger *l, ledger_pool *pool, weir_cu_deviceptr *pointer, uint64_t bytes) {
  uint64_t unused = pool->reserved - pool->used;
  uint64_t more = bytes > unused ? bytes - unused : 0;
  if (pool->max_bytes != 0 && more > pool->max_bytes - pool->reserved)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__ledger_take_bytes(l, pool->device, more))
    return WEIR_CU_OUT_OF_MEMORY;
  ledger_range *range;
  weir_cu_result result = weir__ledger_add_range(l, LEDGER_RANGE_POOLED, 0, bytes, 0, pool->device, &range);
  if (result != WEIR_CU_SUCCESS) {
    pool->device->used -= more;
    return result;
  }
  range->pool = pool;
  pool->reserved += more;
  pool->used += bytes;
  if (pool->reserved > pool->reserved_high)
    pool->reserved_high = pool->reserved;
  if (pool->used > pool->used_high)
    pool->used_high = pool->used;
  *pointer = range->base;
  return WEIR_CU_SUCCESS;
}

void weir__ledger_free_pooled(ledger *l, ledger_range *range) {
  ledger_pool *pool = range->pool;
  pool->used -= range->bytes;
  weir__ledger_drop_range(l, range);
  if (pool->destroyed)
    destroy_pool(l, pool);
}

/* `from` NULL: the current pool of the stream's device. */
static weir_cu_result alloc_async(ledger *l, weir_cu_deviceptr *pointer, size_t bytes, ledger_pool *from,
                                  weir_cu_stream stream) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  /* A graph that owns memory would need books of its own: the ledger captures none. */
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_may_not_capture(l, s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (pointer == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (bytes == 0) {
    /* NVIDIA's driver answers so. */
    *pointer = 0;
    return WEIR_CU_SUCCESS;
  }
  return alloc_from(l, from != NULL ? from : s->device->pool, pointer, bytes);
}

static weir_cu_result MemAllocAsync(weir_driver *self, weir_cu_deviceptr *pointer, size_t bytes,
                                    weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  return alloc_async(l, pointer, bytes, NULL, stream);
}

static weir_cu_result MemAllocFromPoolAsync(weir_driver *self, weir_cu_deviceptr *pointer, size_t bytes,
                                            weir_cu_mempool pool, weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_pool *from = find_pool(l, pool);
  if (from == NULL)
    return WEIR_CU_INVALID_VALUE;
  return alloc_async(l, pointer, bytes, from, stream);
}

static weir_cu_result MemFreeAsync(weir_driver *self, weir_cu_deviceptr pointer, weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_may_enqueue(l, s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  /* A capture can free only what it allocated, and the ledger's allocate nothing. */
  if (s->capture != NULL)
    return WEIR_CU_INVALID_VALUE;
  result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (pointer == 0)
    return WEIR_CU_SUCCESS;
  ledger_range *range = weir__ledger_range_at(l, pointer);
  if (range == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (range->kind == LEDGER_RANGE_POOLED) {
    weir__ledger_free_pooled(l, range);
  } else if (range->kind == LEDGER_RANGE_PLAIN) {
    range->device->used -= range->bytes;
    weir__ledger_drop_range(l, range);
  } else {
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

/* ---- Pools ---- */

static weir_cu_result DeviceGetDefaultMemPool(weir_driver *self, weir_cu_mempool *pool, weir_cu_device number) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  const ledger_device *device = weir__ledger_device(l, number);
  if (device == NULL)
    return WEIR_CU_INVALID_DEVICE;
  if (pool == NULL)
    return WEIR_CU_INVALID_VALUE;
  *pool = handle_of(l, device->default_pool);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceGetMemPool(weir_driver *self, weir_cu_mempool *pool, weir_cu_device number) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  const ledger_device *device = weir__ledger_device(l, number);
  if (device == NULL || pool == NULL)
    return WEIR_CU_INVALID_VALUE; /* not INVALID_DEVICE, as of NVIDIA's driver */
  *pool = handle_of(l, device->pool);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceSetMemPool(weir_driver *self, weir_cu_device number, weir_cu_mempool pool) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_device *device = weir__ledger_device(l, number);
  if (device == NULL)
    return WEIR_CU_INVALID_DEVICE;
  ledger_pool *p;
  weir_cu_result result = enter(l, pool, &p);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (p->device != device)
    return WEIR_CU_INVALID_VALUE;
  device->pool = p;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemPoolCreate(weir_driver *self, weir_cu_mempool *pool, const weir_cu_mempool_props *props) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  weir_cu_result result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (pool == NULL || props == NULL)
    return WEIR_CU_INVALID_VALUE;
  ledger_device *device = weir__ledger_device(l, props->location.id);
  if (props->type != WEIR_CU_ALLOCATION_PINNED || props->location.type != WEIR_CU_LOCATION_DEVICE || device == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (props->handle_types != WEIR_CU_HANDLE_NONE)
    return WEIR_CU_NOT_SUPPORTED;
  ledger_pool *p = weir__ledger_make_pool(l, device, props->max_size);
  if (p == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = handle_of(l, p);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemPoolDestroy(weir_driver *self, weir_cu_mempool pool) {
  ledger *l = weir__ledger_of(self);
  ledger_pool *p;
  weir_cu_result result = enter(l, pool, &p);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (p == p->device->default_pool)
    return WEIR_CU_INVALID_VALUE;
  if (p->device->pool == p)
    p->device->pool = p->device->default_pool;
  destroy_pool(l, p);
  return WEIR_CU_SUCCESS;
}

/* Where an attribute of 64 bits is kept, or NULL. */
static uint64_t *number_of(ledger_pool *pool, int attribute) {
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
static int *switch_of(ledger_pool *pool, int attribute) {
  bool is_one = attribute >= WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES &&
                attribute <= WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
  return is_one ? &pool->reuse[attribute - WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] : NULL;
}

static weir_cu_result MemPoolGetAttribute(weir_driver *self, weir_cu_mempool pool, int attribute, void *value) {
  ledger_pool *p;
  weir_cu_result result = enter(weir__ledger_of(self), pool, &p);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (value != NULL && switch_of(p, attribute) != NULL)
    *(int *)value = *switch_of(p, attribute);
  else if (value != NULL && number_of(p, attribute) != NULL)
    *(uint64_t *)value = *number_of(p, attribute);
  else
    return WEIR_CU_INVALID_VALUE;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemPoolSetAttribute(weir_driver *self, weir_cu_mempool pool, int attribute, void *value) {
  ledger_pool *p;
  weir_cu_result result = enter(weir__ledger_of(self), pool, &p);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (value == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (switch_of(p, attribute) != NULL)
    *switch_of(p, attribute) = *(int *)value != 0;
  else if (attribute == WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
    p->threshold = *(uint64_t *)value;
  else if (attribute == WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH && *(uint64_t *)value == 0)
    p->reserved_high = p->reserved;
  else if (attribute == WEIR_CU_MEMPOOL_ATTR_USED_HIGH && *(uint64_t *)value == 0)
    p->used_high = p->used;
  else
    return WEIR_CU_INVALID_VALUE;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemPoolTrimTo(weir_driver *self, weir_cu_mempool pool, size_t keep) {
  ledger_pool *p;
  weir_cu_result result = enter(weir__ledger_of(self), pool, &p);
  if (result == WEIR_CU_SUCCESS)
    trim(p, keep);
  return result;
}

/* Checked and not kept: copies reach the memory of any device, and nothing else touches a pool's memory here. */
static weir_cu_result MemPoolSetAccess(weir_driver *self, weir_cu_mempool pool, const weir_cu_mem_access *access,
                                       size_t count) {
  ledger *l = weir__ledger_of(self);
  ledger_pool *p;
  weir_cu_result result = enter(l, pool, &p);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (access == NULL && count != 0)
    return WEIR_CU_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    const ledger_device *device = weir__ledger_device(l, access[i].location.id);
    bool readwrite = access[i].flags == WEIR_CU_ACCESS_READWRITE;
    bool flags_known = readwrite || access[i].flags == WEIR_CU_ACCESS_NONE || access[i].flags == WEIR_CU_ACCESS_READ;
    if (access[i].location.type != WEIR_CU_LOCATION_DEVICE || !flags_known)
      return WEIR_CU_INVALID_VALUE;
    if (device == NULL)
      return WEIR_CU_INVALID_DEVICE;
    /* The pool's own device always has access. */
    if (device == p->device && !readwrite)
      return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

void weir__ledger_add_pools(weir_driver *table) {
  table->MemAllocAsync = MemAllocAsync;
  table->MemAllocFromPoolAsync = MemAllocFromPoolAsync;
  table->MemFreeAsync = MemFreeAsync;
  table->DeviceGetDefaultMemPool = DeviceGetDefaultMemPool;
  table->DeviceGetMemPool = DeviceGetMemPool;
  table->DeviceSetMemPool = DeviceSetMemPool;
  table->MemPoolCreate = MemPoolCreate;
  table->MemPoolDestroy = MemPoolDestroy;
  table->MemPoolSetAttribute = MemPoolSetAttribute;
  table->MemPoolGetAttribute = MemPoolGetAttribute;
  table->MemPoolTrimTo = MemPoolTrimTo;
  table->MemPoolSetAccess = MemPoolSetAccess;
}

/*
 * Stream-ordered memory.
 *
 * A pool holds chunks, each with memory of its own. A chunk that was freed in a stream serves that stream again at once, and
 * others when the stream got there. A synchronization gives back what is free beyond the pool's threshold.
 *
 * Memory that is asked for in a capture belongs to the graph: its chunk lives, address and memory, as long as the graph, an
 * executable of it, or a launch is there. NVIDIA's driver takes the memory only while a launch needs it; the software device
 * holds it all the time.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "driver/soft/soft.h"

static struct soft_pool *pool_new(struct soft *soft, struct soft_device *device) {
  struct soft_pool *pool = calloc(1, sizeof *pool);
  if (!pool)
    return NULL;
  pool->handle = weir__soft_handle_new(soft, SOFT_POOL, pool);
  if (!pool->handle) {
    free(pool);
    return NULL;
  }
  pool->device = device;
  pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
  pool->next = device->pools;
  device->pools = pool;
  return pool;
}

static struct soft_pool *default_pool(struct soft *soft, struct soft_device *device) {
  if (!device->default_pool) {
    device->default_pool = pool_new(soft, device);
    if (device->default_pool)
      device->default_pool->is_default = true;
  }
  if (!device->pool)
    device->pool = device->default_pool;
  return device->default_pool;
}

/* ---- Chunks ---- */

static void raise(uint64_t *high, uint64_t current) {
  if (current > *high)
    *high = current;
}

static weir_cu_result chunk_new(struct soft_device *device, uint64_t bytes, struct soft_chunk **made) {
  uint64_t base, room = weir__round_up(bytes, SOFT_GRANULE);
  struct soft_extent extent;
  struct soft_chunk *chunk = calloc(1, sizeof *chunk);
  if (!chunk)
    return WEIR_CU_OUT_OF_MEMORY;
  weir_cu_result r = weir__soft_extent_new(device, room, false, &extent);
  if (r)
    goto free_chunk;
  r = weir__soft_map_extent(&extent, room, &base);
  if (r)
    goto free_extent;
  chunk->range = weir__soft_range_new(device->soft, SOFT_RANGE_CHUNK, base, bytes, room, device);
  if (!chunk->range) {
    r = WEIR_CU_OUT_OF_MEMORY;
    goto unmap;
  }
  chunk->range->extent = extent;
  chunk->range->chunk = chunk;
  chunk->bytes = room;
  *made = chunk;
  return WEIR_CU_SUCCESS;

unmap:
  munmap((void *)base, room);
free_extent:
  weir__soft_extent_free(&extent);
free_chunk:
  free(chunk);
  return r;
}

/* Frees chunks that nobody uses, as long as `keep` bytes stay. */
static void trim(struct soft *soft, struct soft_pool *pool, uint64_t keep) {
  for (struct soft_chunk **at = &pool->chunks; *at && pool->reserved > keep;) {
    struct soft_chunk *chunk = *at;
    if (chunk->in_use || chunk->refs || pool->reserved - chunk->bytes < keep) {
      at = &chunk->next;
      continue;
    }
    *at = chunk->next;
    pool->reserved -= chunk->bytes;
    weir__soft_range_free(soft, chunk->range); /* and the chunk with it */
  }
}

/* A destroyed pool goes with its last chunk. */
static void free_if_over(struct soft *soft, struct soft_pool *pool) {
  if (!pool->destroyed)
    return;
  trim(soft, pool, 0);
  if (pool->chunks)
    return;
  struct soft_pool **at = &pool->device->pools;
  while (*at != pool)
    at = &(*at)->next;
  *at = pool->next;
  free(pool);
}

void weir__soft_chunk_release(struct soft *soft, struct soft_chunk *chunk) {
  struct soft_pool *pool = chunk->pool;
  pool->used -= chunk->range->bytes;
  chunk->in_use = false;
  chunk->freeing = NULL;
  chunk->turn++;
  free_if_over(soft, pool);
}

void weir__soft_chunk_unref(struct soft_chunk *chunk) {
  if (--chunk->refs || chunk->pool)
    return;
  struct soft_device *device = chunk->range->device;
  device->graph_used -= chunk->bytes;
  weir__soft_range_free(device->soft, chunk->range);
}

void weir__soft_pools_settle(struct soft *soft, struct soft_device *device) {
  for (struct soft_pool *pool = device->pools; pool; pool = pool->next)
    trim(soft, pool, pool->threshold);
}

void weir__soft_pools_close(struct soft *soft, struct soft_device *device) {
  while (device->pools) {
    struct soft_pool *pool = device->pools;
    device->pools = pool->next;
    while (pool->chunks) {
      struct soft_chunk *chunk = pool->chunks;
      pool->chunks = chunk->next;
      if (chunk->refs) { /* freed in a stream of another device: belongs to that work now */
        chunk->pool = NULL;
        device->graph_used += chunk->bytes;
      } else
        weir__soft_range_free(soft, chunk->range);
    }
    if (!pool->destroyed)
      weir__soft_handle_free(soft, pool->handle);
    free(pool);
  }
  device->default_pool = device->pool = NULL;
}

/* ---- Allocating and freeing ---- */

static weir_cu_result alloc_in_capture(struct soft *soft, struct soft_stream *stream, size_t bytes,
                                       weir_cu_deviceptr *pointer) {
  struct soft_chunk *chunk;
  struct soft_device *device = stream->device;
  if (stream->capture->status == WEIR_CU_CAPTURE_STATUS_INVALIDATED)
    return WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_ALLOC);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  weir_cu_result r = chunk_new(device, bytes, &chunk);
  if (r) {
    free(work); /* it names no chunk yet */
    return r;
  }
  chunk->in_use = true;
  chunk->refs = 1;
  device->graph_used += chunk->bytes;
  raise(&device->graph_used_high, device->graph_used);
  work->as.chunk.chunk = chunk;
  uint64_t base = chunk->range->base;
  r = weir__soft_submit(soft, stream, work);
  if (!r)
    *pointer = base;
  return r;
}

/* The smallest chunk that fits, is not more than twice as large, and is free in the stream's order. */
static struct soft_chunk *find_chunk(const struct soft_pool *pool, const struct soft_stream *stream, uint64_t room) {
  struct soft_chunk *best = NULL;
  for (struct soft_chunk *c = pool->chunks; c; c = c->next)
    if (!c->in_use && (!c->freeing || c->freeing == stream) && c->bytes >= room && c->bytes / 2 <= room &&
        (!best || c->bytes < best->bytes))
      best = c;
  return best;
}

static weir_cu_result grow(struct soft *soft, struct soft_pool *pool, uint64_t bytes, struct soft_chunk **chunk) {
  weir_cu_result r = chunk_new(pool->device, bytes, chunk);
  if (r == WEIR_CU_OUT_OF_MEMORY) {
    trim(soft, pool, 0);
    r = chunk_new(pool->device, bytes, chunk);
  }
  if (r == WEIR_CU_OUT_OF_MEMORY && pool->chunks) {
    uintptr_t handle = pool->handle;
    weir__soft_wait_device(soft, pool->device); /* what was freed in other streams becomes free */
    if (weir__soft_handle_get(soft, SOFT_POOL, handle) != pool)
      return r; /* another thread destroyed it meanwhile */
    trim(soft, pool, 0);
    r = chunk_new(pool->device, bytes, chunk);
  }
  if (r)
    return r;
  (*chunk)->pool = pool;
  (*chunk)->next = pool->chunks;
  pool->chunks = *chunk;
  pool->reserved += (*chunk)->bytes;
  raise(&pool->reserved_high, pool->reserved);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result alloc(struct soft *soft, struct soft_pool *pool, struct soft_stream *stream, size_t bytes,
                            weir_cu_deviceptr *pointer) {
  if (!pointer)
    return WEIR_CU_INVALID_VALUE;
  if (!bytes) {
    *pointer = 0;
    return WEIR_CU_SUCCESS;
  }
  if (bytes > soft->options.bytes)
    return WEIR_CU_OUT_OF_MEMORY;
  if (stream->capture)
    return alloc_in_capture(soft, stream, bytes, pointer);
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  struct soft_chunk *chunk = find_chunk(pool, stream, weir__round_up(bytes, SOFT_GRANULE));
  if (!chunk && (r = grow(soft, pool, bytes, &chunk)))
    return r;
  if (chunk->freeing)
    pool->used -= chunk->range->bytes; /* its free, still in the queue, comes too late to count */
  chunk->freeing = NULL;
  chunk->turn++;
  chunk->in_use = true;
  chunk->range->bytes = bytes;
  pool->used += bytes;
  raise(&pool->used_high, pool->used);
  *pointer = chunk->range->base;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemAllocAsync(struct soft *soft, weir_cu_deviceptr *pointer, size_t bytes,
                                        weir_cu_stream stream) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!default_pool(soft, s->device))
    return WEIR_CU_OUT_OF_MEMORY;
  return alloc(soft, s->device->pool, s, bytes, pointer);
}

weir_cu_result weir__soft_MemAllocFromPoolAsync(struct soft *soft, weir_cu_deviceptr *pointer, size_t bytes,
                                                weir_cu_mempool pool, weir_cu_stream stream) {
  struct soft_stream *s;
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  if (!p)
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  return r ? r : alloc(soft, p, s, bytes, pointer);
}

static weir_cu_result enqueue_free(struct soft *soft, struct soft_stream *stream, struct soft_chunk *chunk) {
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_FREE);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->as.chunk.chunk = chunk;
  work->as.chunk.turn = chunk->turn;
  chunk->refs++;
  weir_cu_result r = weir__soft_submit(soft, stream, work);
  if (r || !chunk->pool)
    return r;
  chunk->in_use = false;
  chunk->freeing = stream;
  return r;
}

weir_cu_result weir__soft_MemFreeAsync(struct soft *soft, weir_cu_deviceptr pointer, weir_cu_stream stream) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r || !pointer)
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->base != pointer)
    return WEIR_CU_INVALID_VALUE;
  bool is_graphs = range->kind == SOFT_RANGE_CHUNK && !range->chunk->pool;
  if (s->capture && !is_graphs)
    return WEIR_CU_INVALID_VALUE;
  if (!s->capture && (r = weir__soft_unsafe(soft)))
    return r;
  if (range->kind == SOFT_RANGE_CHUNK)
    return range->chunk->in_use ? enqueue_free(soft, s, range->chunk) : WEIR_CU_INVALID_VALUE;
  if (range->kind != SOFT_RANGE_PLAIN)
    return WEIR_CU_INVALID_VALUE;
  /* Plain memory is allowed here too. It has no pool to go back to: it goes when the stream got here. */
  uint64_t id = range->id;
  r = weir__soft_wait_stream(soft, s);
  range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->id != id)
    return WEIR_CU_INVALID_VALUE;
  weir__soft_range_free(soft, range);
  return r;
}

/* ---- Pools ---- */

static struct soft_device *device_get(struct soft *soft, weir_cu_device device) {
  return device >= 0 && device < soft->device_count ? &soft->devices[device] : NULL;
}

weir_cu_result weir__soft_DeviceGetDefaultMemPool(struct soft *soft, weir_cu_mempool *pool, weir_cu_device device) {
  struct soft_device *d = device_get(soft, device);
  if (!pool)
    return WEIR_CU_INVALID_VALUE;
  if (!d)
    return WEIR_CU_INVALID_DEVICE;
  struct soft_pool *p = default_pool(soft, d);
  if (!p)
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = (weir_cu_mempool)p->handle;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceGetMemPool(struct soft *soft, weir_cu_mempool *pool, weir_cu_device device) {
  struct soft_device *d = device_get(soft, device);
  if (!pool || !d)
    return WEIR_CU_INVALID_VALUE; /* not INVALID_DEVICE, as of NVIDIA's driver */
  if (!default_pool(soft, d))
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = (weir_cu_mempool)d->pool->handle;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceSetMemPool(struct soft *soft, weir_cu_device device, weir_cu_mempool pool) {
  struct soft_device *d = device_get(soft, device);
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  if (!d)
    return WEIR_CU_INVALID_DEVICE;
  if (!p || p->device != d)
    return WEIR_CU_INVALID_VALUE;
  d->pool = p;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemPoolCreate(struct soft *soft, weir_cu_mempool *pool, const weir_cu_mempool_props *props) {
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  if (!pool || !props || props->type != WEIR_CU_ALLOCATION_PINNED || props->location.type != WEIR_CU_LOCATION_DEVICE ||
      !device_get(soft, props->location.id))
    return WEIR_CU_INVALID_VALUE;
  if (props->handle_types != WEIR_CU_HANDLE_NONE)
    return WEIR_CU_NOT_SUPPORTED;
  struct soft_device *device = device_get(soft, props->location.id);
  struct soft_pool *p = pool_new(soft, device);
  if (!p)
    return WEIR_CU_OUT_OF_MEMORY;
  *pool = (weir_cu_mempool)p->handle;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemPoolDestroy(struct soft *soft, weir_cu_mempool pool) {
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  if (!p || p->is_default)
    return WEIR_CU_INVALID_VALUE;
  if (p->device->pool == p)
    p->device->pool = p->device->default_pool;
  weir__soft_handle_free(soft, p->handle);
  p->destroyed = true;
  free_if_over(soft, p);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemPoolGetAttribute(struct soft *soft, weir_cu_mempool pool, int attribute, void *value) {
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  if (!p || !value)
    return WEIR_CU_INVALID_VALUE;
  switch (attribute) {
  case WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    *(int *)value = p->reuse[attribute - WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES];
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    *(uint64_t *)value = p->threshold;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT:
    *(uint64_t *)value = p->reserved;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH:
    *(uint64_t *)value = p->reserved_high;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_USED_CURRENT:
    *(uint64_t *)value = p->used;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_USED_HIGH:
    *(uint64_t *)value = p->used_high;
    return WEIR_CU_SUCCESS;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
}

weir_cu_result weir__soft_MemPoolSetAttribute(struct soft *soft, weir_cu_mempool pool, int attribute, void *value) {
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  if (!p || !value)
    return WEIR_CU_INVALID_VALUE;
  switch (attribute) {
  case WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
  case WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
  case WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
    p->reuse[attribute - WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES] = *(int *)value != 0;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    p->threshold = *(uint64_t *)value;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH:
    if (*(uint64_t *)value)
      return WEIR_CU_INVALID_VALUE;
    p->reserved_high = p->reserved;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_MEMPOOL_ATTR_USED_HIGH:
    if (*(uint64_t *)value)
      return WEIR_CU_INVALID_VALUE;
    p->used_high = p->used;
    return WEIR_CU_SUCCESS;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
}

weir_cu_result weir__soft_MemPoolTrimTo(struct soft *soft, weir_cu_mempool pool, size_t keep) {
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r)
    return r;
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  if (!p)
    return WEIR_CU_INVALID_VALUE;
  trim(soft, p, keep);
  return WEIR_CU_SUCCESS;
}

/* All devices see all memory of the host's: there is nothing to do but to check. */
weir_cu_result weir__soft_MemPoolSetAccess(struct soft *soft, weir_cu_mempool pool, const weir_cu_mem_access *access,
                                           size_t count) {
  struct soft_pool *p = weir__soft_handle_get(soft, SOFT_POOL, (uintptr_t)pool);
  if (!p || !access)
    return WEIR_CU_INVALID_VALUE;
  for (size_t i = 0; i < count; i++) {
    struct soft_device *device = device_get(soft, access[i].location.id);
    if (access[i].location.type != WEIR_CU_LOCATION_DEVICE || !device)
      return WEIR_CU_INVALID_DEVICE;
    if (device == p->device && access[i].flags != WEIR_CU_ACCESS_READWRITE)
      return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

/* ---- Memory of graphs ---- */

weir_cu_result weir__soft_DeviceGetGraphMemAttribute(struct soft *soft, weir_cu_device device, int attribute,
                                                     void *value) {
  struct soft_device *d = device_get(soft, device);
  if (!d)
    return WEIR_CU_INVALID_DEVICE;
  if (!value)
    return WEIR_CU_INVALID_VALUE;
  switch (attribute) {
  case WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT:
  case WEIR_CU_GRAPH_MEM_ATTR_RESERVED_CURRENT:
    *(uint64_t *)value = d->graph_used;
    return WEIR_CU_SUCCESS;
  case WEIR_CU_GRAPH_MEM_ATTR_USED_HIGH:
  case WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH:
    *(uint64_t *)value = d->graph_used_high;
    return WEIR_CU_SUCCESS;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
}

/* A graph's memory goes with the graph; none is held that is not used. */
weir_cu_result weir__soft_DeviceGraphMemTrim(struct soft *soft, weir_cu_device device) {
  return device_get(soft, device) ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_DEVICE;
}

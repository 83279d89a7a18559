#include "alloc/cache/private_pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"

/* ---- Records, by id. The heap's lock is held ---- */

typedef struct record_entry {
  uint64_t key;
  weir__pool_record *first; /* different ids may have the same key */
} record_entry;

static uint64_t key_of(weir_pool_id id) {
  uint64_t key = id.first * 0x9e3779b97f4a7c15u + id.second;
  return key ? key : 1;
}

weir__pool_record *weir__pool_record_find(const weir__heap *heap, weir_pool_id id) {
  const record_entry *entry = weir__hash_map_find(&heap->pools_by_id, sizeof *entry, key_of(id));
  weir__pool_record *record = entry ? entry->first : NULL;
  while (record && !weir__same_pool(record->id, id))
    record = record->same;
  return record;
}

weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id) {
  const weir__pool_record *record = weir__pool_record_find(heap, id);
  return record ? record->pool : NULL;
}

static void delete_record(weir__heap *heap, weir__pool_record *record) {
  record_entry *entry = weir__hash_map_find(&heap->pools_by_id, sizeof *entry, key_of(record->id));
  weir__pool_record **at = &entry->first;
  while (*at != record)
    at = &(*at)->same;
  *at = record->same;
  if (!entry->first)
    weir__hash_map_remove(&heap->pools_by_id, sizeof *entry, entry);
  if (record->previous)
    record->previous->next = record->next;
  else
    heap->pool_records = record->next;
  if (record->next)
    record->next->previous = record->previous;
  free(record);
}

/* The record of an id, created if there is none. NULL without host memory. */
static weir__pool_record *get_record(weir__heap *heap, weir_pool_id id) {
  weir__pool_record *record = weir__pool_record_find(heap, id);
  if (record) { /* the id was used by an earlier pool */
    weir__pool_record **at = &heap->gone_records;
    while (*at != record)
      at = &(*at)->next_gone;
    *at = record->next_gone;
    return record;
  }
  record = calloc(1, sizeof *record);
  record_entry *entry = record ? weir__hash_map_put(&heap->pools_by_id, sizeof *entry, key_of(id)) : NULL;
  if (!entry) {
    free(record);
    return NULL;
  }
  *record = (weir__pool_record){.id = id, .same = entry->first, .next = heap->pool_records};
  entry->first = record;
  if (record->next)
    record->next->previous = record;
  heap->pool_records = record;
  return record;
}

/* Keeps the record of a deleted pool, if the pool had memory. A program may create pools by the hundred thousand, so
 * only the most recent records are kept. */
static void retire_record(weir__heap *heap, weir__pool_record *record) {
  enum { MAX = 128 };
  const weir_stat *all = &record->reserved_bytes[WEIR_STAT_ALL];
  record->pool = NULL;
  record->next_gone = NULL;
  if (!all->peak && !all->allocated && !all->freed) {
    delete_record(heap, record);
    return;
  }
  int count = 1;
  weir__pool_record **at = &heap->gone_records;
  for (; *at; at = &(*at)->next_gone)
    count++;
  *at = record;
  if (count > MAX) {
    weir__pool_record *oldest = heap->gone_records;
    heap->gone_records = oldest->next_gone;
    delete_record(heap, oldest);
  }
}

/* ---- Pools ---- */

static weir__private_pool *pool_new(weir__heap *heap, weir_pool_id id, const weir_pool_options *options) {
  weir__private_pool *pool = calloc(1, sizeof *pool);
  weir__pool_record *record = pool ? get_record(heap, id) : NULL;
  if (!record) {
    free(pool);
    return NULL;
  }
  pool->id = id;
  pool->record = record;
  record->pool = pool;
  pool->small = (weir__pool){.heap = heap, .is_small = true, .owner = pool};
  pool->large = (weir__pool){.heap = heap, .owner = pool};
  pool->use_on_oom = options->use_on_oom;
  pool->growth = weir__growth_of_options(heap, options);
  atomic_init(&pool->no_split, options->no_split != 0);
  pool->alloc = options->alloc;
  pool->free = options->free;
  pool->context = options->context;
  pool->destroy = options->destroy;
  pool->next = heap->private_pools;
  if (pool->next)
    pool->next->previous = pool;
  heap->private_pools = pool;
  heap->pool_count++;
  heap->pools_since_sweep++;
  return pool;
}

void weir__pool_drop(weir__heap *heap, weir__private_pool *pool) {
  if (pool->segments || atomic_load_explicit(&pool->holds, memory_order_acquire))
    return;
  if (pool->previous)
    pool->previous->next = pool->next;
  else
    heap->private_pools = pool->next;
  if (pool->next)
    pool->next->previous = pool->previous;
  heap->pool_count--;
  retire_record(heap, pool->record);
  weir__writers_delete(&pool->small);
  weir__writers_delete(&pool->large);
  weir__pool_clear(&pool->small);
  weir__pool_clear(&pool->large);
  if (pool->destroy) {
    pool->next = atomic_load(&heap->dropped_pools);
    atomic_store(&heap->dropped_pools, pool);
  } else
    free(pool);
}

void weir__pools_finalize(weir__heap *heap) {
  if (!atomic_load_explicit(&heap->dropped_pools, memory_order_relaxed))
    return;
  weir__mutex_lock(&heap->lock);
  weir__private_pool *pool = atomic_exchange(&heap->dropped_pools, NULL);
  weir__mutex_unlock(&heap->lock);
  while (pool) {
    weir__private_pool *next = pool->next;
    pool->destroy(pool->context);
    free(pool);
    pool = next;
  }
}

/* Released pools stay until the cache is emptied. Pools without memory are also dropped from time to time, for programs
 * that create pools and never empty the cache. The sweeps are rare enough to cost almost nothing per pool. */
static void sweep_pools(weir__heap *heap) {
  enum { MANY = 256 };
  if (heap->pools_since_sweep < MANY || heap->pools_since_sweep < heap->pool_count / 2)
    return;
  heap->pools_since_sweep = 0;
  for (weir__private_pool *pool = heap->private_pools, *next; pool; pool = next) {
    next = pool->next;
    if (pool->is_released)
      weir__pool_drop(heap, pool);
  }
}

weir__private_pool *weir__pool_hold(weir__heap *heap, weir_pool_id id, const weir_pool_options *options) {
  weir__private_pool *pool = weir__pool_find(heap, id);
  if (!pool) {
    sweep_pools(heap);
    pool = pool_new(heap, id, options);
  }
  if (!pool)
    return NULL;
  pool->uses++;
  pool->is_released = false;
  return pool;
}

weir_status weir__no_pool(const char *caller, weir_pool_id id) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Could not find pool of id {%llu, %llu}", caller,
                    (unsigned long long)id.first, (unsigned long long)id.second);
}

void weir__pool_records_clear(weir__heap *heap) {
  while (heap->pool_records) {
    weir__pool_record *record = heap->pool_records;
    heap->pool_records = record->next;
    free(record);
  }
  weir__hash_map_clear(&heap->pools_by_id);
}

/* ---- Which pool serves a request ---- */

bool weir__stream_joined(weir_driver *driver, weir_cu_stream origin, weir_cu_stream stream) {
  int status;
  unsigned long long mine, theirs;
  if (stream == origin)
    return true;
  if (driver->StreamGetCaptureInfo(driver, stream, &status, &theirs, NULL, NULL, NULL) ||
      status != WEIR_CU_CAPTURE_STATUS_ACTIVE)
    return false;
  return !driver->StreamGetCaptureInfo(driver, origin, &status, &mine, NULL, NULL, NULL) &&
         status == WEIR_CU_CAPTURE_STATUS_ACTIVE && mine == theirs;
}

/* Graphs write to the pool from now on, whenever they are launched. */
static void pin_to_graph(weir__heap *heap, weir__private_pool *pool) {
  if (pool->pins & WEIR__PIN_GRAPH)
    return;
  pool->pins |= WEIR__PIN_GRAPH;
  for (weir__segment *segment = heap->segments; segment; segment = segment->next)
    if (segment->arena->pool->owner == pool)
      segment->memory.pins |= WEIR__PIN_GRAPH;
}

static bool takes(const weir__heap *heap, const weir__scope *scope, weir_cu_stream stream) {
  return scope->is_capture ? weir__stream_joined(heap->allocator->driver, scope->origin, stream)
                           : scope->filter(scope->context, stream);
}

weir__private_pool *weir__route_enter(weir__heap *heap, unsigned reasons, weir_cu_stream stream) {
  weir__private_pool *pool = reasons & WEIR__SLOW_SCOPED ? weir__thread_pool(heap) : NULL;
  bool is_captured = atomic_load(&heap->captures);
  if (pool ? is_captured : (reasons & WEIR__SLOW_ROUTED) != 0) {
    weir__mutex_lock(&heap->lock);
    for (const weir__scope *s = heap->stream_scopes; s && !pool; s = s->next)
      if (takes(heap, s, stream))
        pool = s->pool;
    weir__route_stay(pool);
    if (pool && is_captured)
      pin_to_graph(heap, pool);
    weir__mutex_unlock(&heap->lock);
  } else
    weir__route_stay(pool);
  return pool;
}

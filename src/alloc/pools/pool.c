/*
 * Private pools: creation and release, and the scopes that route allocations to them.
 */
#include "alloc/pools/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/backends/backend.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"
#include "weir/adapter.h"
#include "weir/pool.h"

static bool same_id(weir_pool_id a, weir_pool_id b) { return a.first == b.first && a.second == b.second; }

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
  while (record && !same_id(record->id, id))
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
  pool->moves = options->moving_pages && !options->alloc && heap->pages.granularity && /* otherwise it has no pages */
                heap->capability >= weir__settings_of(heap)->moving_pages_min_capability;
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
  const weir__route *route = atomic_load(&heap->routes);
  while (route && route->pool != pool)
    route = route->next;
  if (route || pool->segments || atomic_load_explicit(&pool->in_flight, memory_order_acquire))
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

/* Finds or creates a pool, and adds a use. The heap's lock is held. */
static weir__private_pool *hold(weir__heap *heap, weir_pool_id id, const weir_pool_options *options) {
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

/* Checks the arguments that all calls here share, and takes the heap's lock. Returns NULL on failure. */
static weir__heap *enter(const char *caller, weir_allocator *allocator, int device, weir_pool_id id,
                         weir_status *status) {
  *status = weir__allocator_check(caller, allocator);
  if (*status)
    return NULL;
  *status = WEIR_ERROR_INVALID_ARGUMENT;
  if (!id.first && !id.second) {
    weir__fail(*status, "%s: {0, 0} is the default pool, not a private one", caller);
    return NULL;
  }
  weir__heap *heap = weir__heap_get(caller, allocator, device);
  if (!heap) {
    *status = WEIR_ERROR_INVALID_DEVICE;
    return NULL;
  }
  weir__mutex_lock(&heap->lock);
  *status = WEIR_OK;
  return heap;
}

static weir_status leave(weir__heap *heap, weir_status status) {
  weir__mutex_unlock(&heap->lock);
  weir__pools_finalize(heap); /* of pools dropped by the sweep */
  return status;
}

weir_status weir__no_pool(const char *caller, weir_pool_id id) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Could not find pool of id {%llu, %llu}", caller,
                    (unsigned long long)id.first, (unsigned long long)id.second);
}

/* The same for a pool that exists. Returns NULL, with no lock held, on failure. */
static weir__private_pool *enter_pool(const char *caller, weir_allocator *allocator, int device, weir_pool_id id,
                                      weir_status *status) {
  weir__heap *heap = enter(caller, allocator, device, id, status);
  weir__private_pool *pool = heap ? weir__pool_find(heap, id) : NULL;
  if (heap && !pool)
    *status = leave(heap, weir__no_pool(caller, id));
  return pool;
}

weir_status weir_pool_create(weir_allocator *allocator, int device, weir_pool_id id, const weir_pool_options *given) {
  weir_pool_options options;
  weir_pool_options_init(&options);
  weir_status status = weir__read_options(__func__, "options", &options, sizeof options, given);
  if (status)
    return status;
  if (!options.alloc != !options.free)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: alloc and free must be given together", __func__);
  weir__heap *heap = enter(__func__, allocator, device, id, &status);
  if (!heap)
    return status;
  if (options.alloc && weir__pool_find(heap, id))
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: the pool already exists; its allocator cannot be changed", __func__);
  else if (!hold(heap, id, &options))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  return leave(heap, status);
}

/* Flushes the arenas, whose most recent allocation was chosen under the old rule. */
static void set_no_split(weir__private_pool *pool, bool no_split) {
  if (atomic_exchange_explicit(&pool->no_split, no_split, memory_order_relaxed) == no_split)
    return;
  weir__pool_flush(&pool->small);
  weir__pool_flush(&pool->large);
}

weir_status weir_pool_release(weir_allocator *allocator, int device, weir_pool_id id) {
  weir_status status;
  weir__heap *heap = enter(__func__, allocator, device, id, &status);
  if (!heap)
    return status;
  weir__private_pool *pool = weir__pool_find(heap, id);
  if (!pool || !pool->uses)
    status = weir__no_pool(__func__, id);
  else if (--pool->uses == 0) {
    pool->is_released = true;
    pool->use_on_oom = false;
    set_no_split(pool, false);
  }
  leave(heap, status);
  if (!status && allocator->backend)
    weir__backend_release_pool(heap, id);
  return status;
}

weir_status weir_pool_use_count(weir_allocator *allocator, int device, weir_pool_id id, int *count) {
  weir_status status;
  WEIR__CHECK_ARGUMENT(count);
  weir__private_pool *pool = enter_pool(__func__, allocator, device, id, &status);
  if (!pool)
    return status;
  *count = pool->uses;
  return leave(pool->small.heap, WEIR_OK);
}

weir_status weir_pool_get_stats(weir_allocator *allocator, int device, weir_pool_id id, weir_stat *reserved_bytes) {
  weir_status status;
  WEIR__CHECK_ARGUMENT(reserved_bytes);
  weir__heap *heap = enter(__func__, allocator, device, id, &status);
  if (!heap)
    return status;
  const weir__pool_record *record = weir__pool_record_find(heap, id);
  if (record)
    memcpy(reserved_bytes, record->reserved_bytes, sizeof record->reserved_bytes);
  else
    status = weir__no_pool(__func__, id);
  return leave(heap, status);
}

weir_status weir_pool_set_use_on_oom(weir_allocator *allocator, int device, weir_pool_id id, int use) {
  weir_status status;
  weir__private_pool *pool = enter_pool(__func__, allocator, device, id, &status);
  if (!pool)
    return status;
  pool->use_on_oom = use;
  return leave(pool->small.heap, WEIR_OK);
}

weir_status weir_pool_set_no_split(weir_allocator *allocator, int device, weir_pool_id id, int no_split) {
  weir_status status;
  weir__private_pool *pool = enter_pool(__func__, allocator, device, id, &status);
  if (!pool)
    return status;
  set_no_split(pool, no_split != 0);
  return leave(pool->small.heap, WEIR_OK);
}

/* ---- Scopes ---- */

/* Whether a stream belongs to a capture: its first stream, and streams that have joined it. */
static bool is_in_capture(weir_driver *driver, weir_cu_stream origin, weir_cu_stream stream) {
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

/* The same as a filter function, for back ends that are notified of scopes. */
static int route_takes(void *context, weir_cu_stream stream) {
  const weir__route *route = context;
  return is_in_capture(route->pool->small.heap->allocator->driver, route->origin, stream);
}

/* `wanted` is a route without pool, thread and next. */
static weir_status begin(const char *caller, weir_allocator *allocator, int device, weir_pool_id id,
                         const weir__route *wanted) {
  weir_status status;
  weir_pool_options options;
  weir_pool_options_init(&options);
  weir__heap *heap = enter(caller, allocator, device, id, &status);
  if (!heap)
    return status;
  for (weir__route *r = atomic_load(&heap->routes); r; r = r->next)
    if (same_id(r->pool->id, id) && r->is_capture == wanted->is_capture)
      return leave(heap, weir__fail(WEIR_ERROR_BAD_STATE, "%s: already recording to mempool_id {%llu, %llu}", caller,
                                    (unsigned long long)id.first, (unsigned long long)id.second));
  weir__route *route = calloc(1, sizeof *route);
  weir__private_pool *pool = route ? hold(heap, id, &options) : NULL;
  if (!pool) {
    free(route);
    return leave(heap, weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller));
  }
  *route = *wanted;
  route->pool = pool;
  route->thread = weir__thread_self();
  route->next = atomic_load(&heap->routes);
  atomic_store(&heap->routes, route);
  weir__slow_reason_set(heap, WEIR__SLOW_ROUTED, true);
  if (route->is_capture)
    atomic_fetch_add(&heap->captures, 1);
  leave(heap, WEIR_OK);
  if (allocator->backend)
    weir__backend_begin_pool(heap, id, wanted->is_capture ? route_takes : wanted->filter,
                             wanted->is_capture ? route : wanted->context);
  return WEIR_OK;
}

weir_status weir_pool_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_pool_filter filter,
                            void *context) {
  weir__route route = {.filter = filter, .context = context};
  return begin(__func__, allocator, device, id, &route);
}

/* A scope of a capture and one that the program opened may select the same pool; each is closed by the matching call.
 * */
static weir_status end(const char *caller, weir_allocator *allocator, int device, weir_pool_id id, bool is_capture) {
  weir_status status;
  weir__heap *heap = enter(caller, allocator, device, id, &status);
  if (!heap)
    return status;
  weir__route *inner = NULL, *route = atomic_load(&heap->routes);
  while (route && (!same_id(route->pool->id, id) || route->is_capture != is_capture)) {
    inner = route;
    route = route->next;
  }
  if (!route)
    return leave(heap, weir__fail(WEIR_ERROR_BAD_STATE, "%s: not currently recording to mempool_id {%llu, %llu}",
                                  caller, (unsigned long long)id.first, (unsigned long long)id.second));
  if (inner)
    inner->next = route->next;
  else
    atomic_store(&heap->routes, route->next);
  weir__slow_reason_set(heap, WEIR__SLOW_ROUTED, atomic_load(&heap->routes) != NULL);
  if (route->is_capture)
    atomic_fetch_sub(&heap->captures, 1);
  leave(heap, WEIR_OK);
  if (allocator->backend)
    weir__backend_end_pool(heap, id); /* it may still call the route's filter */
  free(route);
  return WEIR_OK;
}

weir_status weir_pool_end(weir_allocator *allocator, int device, weir_pool_id id) {
  return end(__func__, allocator, device, id, false);
}

weir_status weir__capture_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_cu_stream stream) {
  weir__route route = {.is_capture = true, .origin = stream};
  return begin("weir_graph_capture_begin", allocator, device, id, &route);
}

void weir__capture_end(weir_allocator *allocator, int device, weir_pool_id id) {
  end("weir_graph_capture_end", allocator, device, id, true);
}

weir_status weir_allocator_pools_ever(weir_allocator *allocator, int device, weir_pool_id *pools, size_t room,
                                      size_t *count) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(count);
  if (room && !pools)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pools is NULL and room is %zu", __func__, room);
  size_t n = 0;
  weir__mutex_lock(&heap->lock);
  for (const weir__pool_record *record = heap->pool_records; record; record = record->next, n++)
    if (n < room)
      pools[n] = record->id;
  weir__mutex_unlock(&heap->lock);
  *count = n;
  return WEIR_OK;
}

/* ---- Captures of other libraries ---- */

weir_status weir_allocator_begin_capture(weir_allocator *allocator, int device) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__mutex_lock(&heap->lock);
  heap->foreign_captures++;
  atomic_fetch_add(&heap->captures, 1);
  return leave(heap, WEIR_OK);
}

weir_status weir_allocator_end_capture(weir_allocator *allocator, int device) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir__mutex_lock(&heap->lock);
  if (!heap->foreign_captures)
    return leave(heap, weir__fail(WEIR_ERROR_BAD_STATE, "%s: no capture was begun on device %d", __func__, device));
  heap->foreign_captures--;
  atomic_fetch_sub(&heap->captures, 1);
  return leave(heap, WEIR_OK);
}

/* ---- Selection of a pool ---- */

static bool takes(const weir__heap *heap, const weir__route *route, weir_cu_stream stream) {
  if (route->is_capture)
    return is_in_capture(heap->allocator->driver, route->origin, stream);
  return route->filter ? route->filter(route->context, stream) : weir__thread_equal(route->thread, weir__thread_self());
}

weir__private_pool *weir__route_enter(weir__heap *heap, weir_cu_stream stream) {
  weir__private_pool *pool = NULL;
  weir__mutex_lock(&heap->lock);
  for (weir__route *r = atomic_load(&heap->routes); r && !pool; r = r->next)
    if (takes(heap, r, stream))
      pool = r->pool;
  if (pool) {
    atomic_fetch_add_explicit(&pool->in_flight, 1, memory_order_relaxed);
    pool->is_graph |= atomic_load(&heap->captures) != 0;
  }
  weir__mutex_unlock(&heap->lock);
  return pool;
}

void weir__route_leave(weir__private_pool *pool) {
  if (pool)
    atomic_fetch_sub_explicit(&pool->in_flight, 1, memory_order_release);
}

void weir__routes_clear(weir__heap *heap) {
  weir__route *route = atomic_load(&heap->routes);
  atomic_store(&heap->routes, NULL);
  while (route) {
    weir__route *next = route->next;
    free(route);
    route = next;
  }
  while (heap->pool_records) {
    weir__pool_record *record = heap->pool_records;
    heap->pool_records = record->next;
    free(record);
  }
  weir__hash_map_clear(&heap->pools_by_id);
}

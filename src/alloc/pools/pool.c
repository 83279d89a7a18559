/*
 * The public calls of private pools, and the scopes that route allocations to them.
 */
#include "alloc/pools/pool.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "base/thread.h"
#include "weir/adapter.h"
#include "weir/pool.h"

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
  else if (!weir__pool_hold(heap, id, &options))
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
    allocator->backend->calls->release_pool(heap, id);
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

/* The same as a filter function, for back ends that are notified of scopes. */
static int route_takes(void *context, weir_cu_stream stream) {
  const weir__route *route = context;
  return weir__stream_joined(route->pool->small.heap->allocator->driver, route->origin, stream);
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
    if (weir__same_pool(r->pool->id, id) && r->is_capture == wanted->is_capture)
      return leave(heap, weir__fail(WEIR_ERROR_BAD_STATE, "%s: already recording to mempool_id {%llu, %llu}", caller,
                                    (unsigned long long)id.first, (unsigned long long)id.second));
  weir__route *route = calloc(1, sizeof *route);
  weir__private_pool *pool = route ? weir__pool_hold(heap, id, &options) : NULL;
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
    allocator->backend->calls->begin_pool(heap, id, wanted->is_capture ? route_takes : wanted->filter,
                                          wanted->is_capture ? route : wanted->context);
  return WEIR_OK;
}

weir_status weir_pool_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_pool_filter_fn filter,
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
  while (route && (!weir__same_pool(route->pool->id, id) || route->is_capture != is_capture)) {
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
    allocator->backend->calls->end_pool(heap, id); /* it may still call the route's filter */
  free(route);
  return WEIR_OK;
}

weir_status weir_pool_end(weir_allocator *allocator, int device, weir_pool_id id) {
  return end(__func__, allocator, device, id, false);
}

weir_status weir__capture_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_cu_stream stream) {
  weir__route route = {.is_capture = true, .origin = stream};
  return begin("weir_graph_begin_capture", allocator, device, id, &route);
}

void weir__capture_end(weir_allocator *allocator, int device, weir_pool_id id) {
  end("weir_graph_end_capture", allocator, device, id, true);
}

weir_status weir_allocator_pools(weir_allocator *allocator, int device, int with_gone, weir_pool_id *pools, size_t room,
                                 size_t *count) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(count);
  if (room && !pools)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pools is NULL and room is %zu", __func__, room);
  size_t n = 0;
  weir__mutex_lock(&heap->lock);
  for (const weir__pool_record *record = heap->pool_records; with_gone && record; record = record->next)
    if (n++ < room)
      pools[n - 1] = record->id;
  for (const weir__private_pool *p = heap->private_pools; !with_gone && p; p = p->next)
    if (weir__pool_is_listed(p) && n++ < room)
      pools[n - 1] = p->id;
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

void weir__routes_clear(weir__heap *heap) {
  weir__route *route = atomic_load(&heap->routes);
  atomic_store(&heap->routes, NULL);
  while (route) {
    weir__route *next = route->next;
    free(route);
    route = next;
  }
  weir__pool_records_clear(heap);
}

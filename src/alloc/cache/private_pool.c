#include "alloc/cache/private_pool.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/trace.h"
#include "base/thread.h"

weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id) {
  const weir__account *account = weir__account_find(&heap->accounts, id);
  return account ? account->pool : NULL;
}

weir_tag *weir__thread_tag(const weir__heap *heap) {
  const weir__private_pool *pool = weir__thread_pool(heap);
  return pool ? pool->tag : NULL;
}

static weir__private_pool *pool_new(weir__heap *heap, weir_pool_id id, const weir_pool_options *options,
                                    weir_tag *tag) {
  weir__private_pool *pool = calloc(1, sizeof *pool);
  weir__account *account = pool ? weir__account_open(&heap->accounts, id, pool) : NULL;
  if (!account) {
    free(pool);
    return NULL;
  }
  pool->id = id;
  pool->small = (weir__pool){.heap = heap, .account = account, .is_small = true, .owner = pool};
  pool->large = (weir__pool){.heap = heap, .account = account, .owner = pool};
  pool->use_on_oom = options->use_on_oom;
  pool->tag = tag;
  weir__account_set_tag(&heap->accounts, account, tag ? &tag->account : NULL);
  pool->growth = weir__growth_of_options(heap, options, tag);
  atomic_init(&pool->no_split, options->no_split != 0);
  pool->alloc = options->alloc;
  pool->free = options->free;
  pool->context = options->context;
  pool->destroy = options->destroy;
  WEIR__LIST_ADD(heap->private_pools, pool);
  weir__trace_tag(heap, pool);
  heap->pool_count++;
  heap->pools_since_sweep++;
  return pool;
}

void weir__pool_drop(weir__heap *heap, weir__private_pool *pool) {
  if (pool->segments || atomic_load_explicit(&pool->holds, memory_order_acquire))
    return;
  WEIR__LIST_REMOVE(heap->private_pools, pool);
  heap->pool_count--;
  weir__pool_clear(&pool->small);
  weir__pool_clear(&pool->large);
  weir__account_close(&heap->accounts, pool->small.account);
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

weir__private_pool *weir__pool_hold(weir__heap *heap, weir_pool_id id, const weir_pool_options *options,
                                    weir_tag *tag) {
  weir__private_pool *pool = weir__pool_find(heap, id);
  if (!pool) {
    sweep_pools(heap);
    pool = pool_new(heap, id, options, tag);
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

weir_status weir__not_awake(const char *caller, const weir_tag *tag) {
  return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the tag '%s' is %s; wake it first", caller, tag->name,
                    weir_tag_state_name(tag->state));
}

/* ---- Which pool serves a request ---- */

bool weir__stream_joined(weir_driver *driver, weir_cu_stream origin, weir_cu_stream stream) {
  unsigned long long capture = stream == origin ? 0 : weir__active_capture(driver, stream);
  return stream == origin || (capture && capture == weir__active_capture(driver, origin));
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

/* The pool of the newest scope of streams that takes this one, of those opened after a scope with a number; NULL if
 * none does. */
static weir__private_pool *stream_pool(const weir__heap *heap, weir_cu_stream stream, uint64_t after) {
  const weir__scope *scope = heap->stream_scopes;
  while (scope && scope->number > after && !takes(heap, scope, stream))
    scope = scope->next;
  return scope && scope->number > after ? scope->pool : NULL;
}

/* A graph may write to all that was freed during its capture. Other requests in the scope of a tag would get that
 * memory if it came from the tag's own pool, so a capture's pool comes first there. */
weir__private_pool *weir__route_enter(weir__heap *heap, unsigned reasons, weir_cu_stream stream) {
  const weir__scope *own = reasons & WEIR__SLOW_SCOPED ? weir__thread_scope(heap) : NULL;
  weir__private_pool *pool = own ? own->pool : NULL, *routed;
  bool is_captured = atomic_load(&heap->captures), is_routed = reasons & WEIR__SLOW_ROUTED;
  bool by_age = is_routed && heap->allocator->scopes_as_pytorch;
  if (pool ? is_captured || by_age : is_routed) {
    uint64_t after = !pool || weir__is_own_pool(pool) ? 0 : by_age ? own->number : UINT64_MAX;
    weir__mutex_lock(&heap->lock);
    if ((routed = stream_pool(heap, stream, after)))
      pool = routed;
    weir__route_stay(pool);
    if (pool && is_captured)
      pin_to_graph(heap, pool);
    weir__mutex_unlock(&heap->lock);
  } else
    weir__route_stay(pool);
  return pool;
}

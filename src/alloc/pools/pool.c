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
  const weir__private_pool *pool = weir__pool_find(heap, id);
  if (options.alloc && pool)
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: the pool already exists; its allocator cannot be changed", __func__);
  else if ((status = weir__tag_check(__func__, heap, pool)))
    ;
  else if (!weir__pool_hold(heap, id, &options, weir__thread_tag(heap)))
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
  else if (weir__is_own_pool(pool) && pool->uses == 1)
    status =
        weir__fail(WEIR_ERROR_BAD_STATE, "%s: the pool is that of the tag '%s', which lasts as long as the allocator",
                   __func__, pool->tag->name);
  else if (--pool->uses == 0) {
    pool->is_released = true;
    pool->use_on_oom = false;
    set_no_split(pool, false);
  }
  leave(heap, status);
  if (!status && allocator->backend && allocator->backend->program.release_pool)
    allocator->backend->program.release_pool(allocator->backend->program.context, device, id);
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

weir_status weir_pool_reserved_bytes(weir_allocator *allocator, int device, weir_pool_id id,
                                     weir_stat *reserved_bytes) {
  weir_status status;
  WEIR__CHECK_ARGUMENT(reserved_bytes);
  weir__heap *heap = enter(__func__, allocator, device, id, &status);
  if (!heap)
    return status;
  const weir__account *account = weir__account_find(&heap->accounts, id);
  if (account)
    memcpy(reserved_bytes, account->reserved, sizeof account->reserved);
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

/* ---- Scopes of threads ---- */

static weir__mutex scopes_lock = WEIR__MUTEX_INIT; /* of the lists of heaps; a leaf */

void weir__scopes_lock(void) { weir__mutex_lock(&scopes_lock); }
void weir__scopes_unlock(void) { weir__mutex_unlock(&scopes_lock); }
WEIR__AT_LOAD(WEIR__LOAD_MEMORY) void watch_forks(void) {
  weir__at_fork(weir__scopes_lock, weir__scopes_unlock, weir__scopes_unlock);
}

/* Deletes a scope of this thread. Its heap exists while the scope is in its list. */
static void delete_thread_scope(weir__scope *scope) {
  weir__scope **link = &weir__this_thread.scope;
  while (*link != scope)
    link = &(*link)->outer;
  *link = scope->outer;
  weir__scopes_lock();
  weir__heap *heap = scope->listed;
  if (heap) {
    WEIR__LIST_REMOVE(heap->thread_scopes, scope);
    if (!heap->thread_scopes) /* else all threads would read that word again */
      weir__slow_reason_set(heap, WEIR__SLOW_SCOPED, false);
    weir__route_leave(scope->pool);
  }
  weir__scopes_unlock();
  free(scope);
}

static void end_thread(void *unused) {
  (void)unused;
  while (weir__this_thread.scope)
    delete_thread_scope(weir__this_thread.scope);
}

WEIR__AT_THREAD_END(scopes_key, end_thread)

/* Makes sure that the thread's scopes end with it. Also deletes those that select nothing any more. */
static bool prepare_thread(void) {
  for (weir__scope *s = weir__this_thread.scope, *outer; s; s = outer) {
    outer = s->outer;
    if (!atomic_load(&s->heap))
      delete_thread_scope(s);
  }
  return has_scopes_key && !weir__thread_key_set(scopes_key, &scopes_key);
}

static void add_thread_scope(weir__heap *heap, weir__scope *scope) {
  scope->number = ++heap->scopes;
  scope->outer = weir__this_thread.scope;
  weir__this_thread.scope = scope;
  weir__scopes_lock();
  atomic_store(&scope->heap, heap);
  scope->listed = heap;
  if (!heap->thread_scopes)
    weir__slow_reason_set(heap, WEIR__SLOW_SCOPED, true);
  WEIR__LIST_ADD(heap->thread_scopes, scope);
  weir__scopes_unlock();
}

weir_status weir__thread_scope_open(weir__heap *heap, weir__private_pool *pool) {
  weir__scope *scope = prepare_thread() ? calloc(1, sizeof *scope) : NULL;
  if (!scope)
    return WEIR_ERROR_HOST_OUT_OF_MEMORY;
  scope->pool = pool;
  weir__route_stay(pool);
  add_thread_scope(heap, scope);
  return WEIR_OK;
}

static weir__scope *find_thread_scope(const weir__heap *heap, weir_pool_id id) {
  weir__scope *scope = weir__this_thread.scope;
  while (scope && (atomic_load(&scope->heap) != heap || !weir__same_pool(scope->pool->id, id)))
    scope = scope->outer;
  return scope;
}

/* Closes a scope of another thread. It holds its pool until that thread deletes it, since the thread may be in an
 * allocation. */
static bool close_for_thread(const weir__heap *heap, weir_pool_id id) {
  weir__scopes_lock();
  weir__scope *scope = heap->thread_scopes;
  while (scope && (!atomic_load(&scope->heap) || !weir__same_pool(scope->pool->id, id)))
    scope = scope->next;
  if (scope)
    atomic_store(&scope->heap, NULL);
  weir__scopes_unlock();
  return scope != NULL;
}

bool weir__thread_scope_close(const weir__private_pool *pool) {
  weir__scope *scope = find_thread_scope(pool->small.heap, pool->id);
  if (scope)
    delete_thread_scope(scope);
  return scope != NULL;
}

/* ---- Scopes of streams ---- */

static weir__scope *find_stream_scope(const weir__heap *heap, weir_pool_id id, bool is_capture) {
  weir__scope *scope = heap->stream_scopes;
  while (scope && (!weir__same_pool(scope->pool->id, id) || scope->is_capture != is_capture))
    scope = scope->next;
  return scope;
}

static void add_stream_scope(weir__heap *heap, weir__scope *scope) {
  scope->number = ++heap->scopes;
  scope->next = heap->stream_scopes;
  heap->stream_scopes = scope;
  weir__slow_reason_set(heap, WEIR__SLOW_ROUTED, true);
  if (scope->is_capture)
    atomic_fetch_add(&heap->captures, 1);
}

/* Does not delete it: a back end may still call its filter. */
static void remove_stream_scope(weir__heap *heap, weir__scope *scope) {
  weir__scope **link = &heap->stream_scopes;
  while (*link != scope)
    link = &(*link)->next;
  *link = scope->next;
  weir__slow_reason_set(heap, WEIR__SLOW_ROUTED, heap->stream_scopes != NULL);
  if (scope->is_capture)
    atomic_fetch_sub(&heap->captures, 1);
  weir__route_leave(scope->pool);
}

/* The same as a filter function, for back ends that are notified of scopes. */
static int capture_takes(void *context, weir_cu_stream stream) {
  const weir__scope *scope = context;
  return weir__stream_joined(scope->pool->small.heap->allocator->driver, scope->origin, stream);
}

/* ---- Opening and closing scopes ---- */

/* `wanted` has the capture or the filter, and is otherwise zero. */
static weir_status begin(const char *caller, weir_allocator *allocator, int device, weir_pool_id id,
                         const weir__scope *wanted) {
  weir_status status;
  weir_pool_options options;
  weir_pool_options_init(&options);
  weir__heap *heap = enter(caller, allocator, device, id, &status);
  if (!heap)
    return status;
  bool is_capture = wanted->is_capture, of_thread = !is_capture && !wanted->filter;
  if (find_stream_scope(heap, id, is_capture) || (!is_capture && find_thread_scope(heap, id)))
    return leave(heap, weir__fail(WEIR_ERROR_BAD_STATE, "%s: already recording to mempool_id {%llu, %llu}", caller,
                                  (unsigned long long)id.first, (unsigned long long)id.second));
  if ((status = weir__tag_check(caller, heap, weir__pool_find(heap, id))))
    return leave(heap, status);
  weir__scope *scope = of_thread && !prepare_thread() ? NULL : calloc(1, sizeof *scope);
  weir__private_pool *pool = scope ? weir__pool_hold(heap, id, &options, weir__thread_tag(heap)) : NULL;
  if (!pool) {
    free(scope);
    return leave(heap, weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller));
  }
  *scope = *wanted;
  scope->pool = pool;
  weir__route_stay(pool);
  if (of_thread)
    add_thread_scope(heap, scope);
  else
    add_stream_scope(heap, scope);
  leave(heap, WEIR_OK);
  if (allocator->backend && allocator->backend->program.begin_pool)
    allocator->backend->program.begin_pool(allocator->backend->program.context, device, id,
                                           is_capture ? capture_takes : wanted->filter,
                                           is_capture ? scope : wanted->context);
  return WEIR_OK;
}

weir_status weir_pool_begin(weir_allocator *allocator, int device, weir_pool_id id, weir_pool_filter_fn filter,
                            void *context) {
  weir__scope scope = {.filter = filter, .context = context};
  return begin(__func__, allocator, device, id, &scope);
}

/* A scope of a capture and one that the program opened may select the same pool; each is closed by the matching
 * call. */
static weir_status end(const char *caller, weir_allocator *allocator, int device, weir_pool_id id, bool is_capture) {
  weir_status status;
  weir__heap *heap = enter(caller, allocator, device, id, &status);
  if (!heap)
    return status;
  weir__scope *own = is_capture ? NULL : find_thread_scope(heap, id);
  weir__scope *scope = own ? NULL : find_stream_scope(heap, id, is_capture);
  if (own)
    delete_thread_scope(own);
  else if (scope)
    remove_stream_scope(heap, scope);
  else if (is_capture || !allocator->scopes_as_pytorch || !close_for_thread(heap, id))
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: not currently recording to mempool_id {%llu, %llu}", caller,
                        (unsigned long long)id.first, (unsigned long long)id.second);
  leave(heap, status);
  if (!status && allocator->backend && allocator->backend->program.end_pool)
    allocator->backend->program.end_pool(allocator->backend->program.context, device, id);
  free(scope);
  return status;
}

weir_status weir_pool_end(weir_allocator *allocator, int device, weir_pool_id id) {
  return end(__func__, allocator, device, id, false);
}

weir_status weir__capture_begin(void *allocator, int device, weir_pool_id id, weir_cu_stream stream) {
  weir__scope scope = {.is_capture = true, .origin = stream};
  return begin("weir_graph_begin_capture", allocator, device, id, &scope);
}

void weir__capture_end(void *allocator, int device, weir_pool_id id) {
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
  for (const weir__account *a = heap->accounts.default_pool.next; with_gone && a; a = a->next)
    if (n++ < room)
      pools[n - 1] = a->id;
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

void weir__scopes_clear(weir__heap *heap) {
  while (heap->stream_scopes) {
    weir__scope *scope = heap->stream_scopes;
    heap->stream_scopes = scope->next;
    free(scope);
  }
  weir__scopes_lock();
  for (weir__scope *scope = heap->thread_scopes; scope; scope = scope->next) {
    atomic_store(&scope->heap, NULL);
    scope->listed = NULL;
  }
  weir__scopes_unlock();
}

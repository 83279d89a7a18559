#include "alloc/cache/observers.h"

#include "alloc/cache/trace.h"
#include "base/base.h"
#include "base/thread.h"
#include "record/this_thread.h"

/* ---- Calling them ---- */

/* A call of an observer by this thread. Calls nest, since an observer may call the allocator. */
typedef struct weir__observer_call {
  weir__observer_place *observer;
  struct weir__observer_call *outer;
} weir__observer_call;

static bool begin_call(weir__observer_call *call, weir__observer_place *observer) {
  if (!atomic_load_explicit(&observer->is_attached, memory_order_relaxed))
    return false;
  atomic_fetch_add(&observer->calls, 1);
  if (!atomic_load(&observer->is_attached)) { /* detached in the meantime, by a thread that waits for no new calls */
    atomic_fetch_sub(&observer->calls, 1);
    return false;
  }
  *call = (weir__observer_call){observer, weir__this_thread.observer_call};
  weir__this_thread.observer_call = call;
  return true;
}

static void end_call(weir__observer_call *call) {
  weir__this_thread.observer_call = call->outer;
  atomic_fetch_sub(&call->observer->calls, 1);
}

/* Ends a call, and begins that of the next observer. The first one is all zero. NULL if there are no more. */
static const weir_observer *next_call(weir_allocator *allocator, weir__observer_call *call) {
  weir__observer_place *o = call->observer ? call->observer + 1 : allocator->observers;
  if (call->observer)
    end_call(call);
  while (o < allocator->observers + WEIR__MAX_OBSERVERS && !begin_call(call, o))
    o++;
  return o < allocator->observers + WEIR__MAX_OBSERVERS ? &o->functions : NULL;
}

void weir__observe_entry(weir_allocator *allocator, const weir_trace_entry *entry) {
  weir__observer_call call = {0};
  for (const weir_observer *o; (o = next_call(allocator, &call));)
    if (o->entry)
      o->entry(o->context, entry);
}

void weir__observe_shortage(weir_allocator *allocator, const weir_shortage *shortage) {
  weir__observer_call call = {0};
  for (const weir_observer *o; (o = next_call(allocator, &call));)
    if (shortage->is_rejection ? o->rejection : o->out_of_memory)
      (shortage->is_rejection ? o->rejection : o->out_of_memory)(o->context, shortage);
}

void weir__observe_soft_limit(weir_allocator *allocator, const weir_soft_limit *limit) {
  weir__observer_call call;
  for (weir__observer_place *o = allocator->observers; o < allocator->observers + WEIR__MAX_OBSERVERS; o++)
    if (begin_call(&call, o)) {
      if (o->functions.soft_limit)
        o->functions.soft_limit(o->functions.context, limit);
      end_call(&call);
    }
}

bool weir__observe_free_memory(weir_allocator *allocator, int device) {
  weir__observer_call call = {0};
  int freed = 0;
  for (const weir_observer *o; (o = next_call(allocator, &call));)
    if (o->free_memory)
      freed |= o->free_memory(o->context, device);
  return freed != 0;
}

/* ---- Attaching and detaching ---- */

static weir_status read_observer(const char *caller, const weir_observer *given, weir_observer *observer) {
  weir_observer_init(observer);
  if (!given)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: observer is NULL", caller);
  weir_status status = weir__read_options(caller, "observer", observer, sizeof *observer, given);
  observer->size = sizeof *observer;
  return status;
}

/* configure_lock is held. */
static void set_attached(weir_allocator *allocator, weir__observer_place *observer, bool on) {
  int change = on ? 1 : -1;
  if (observer->functions.entry)
    atomic_fetch_add(&allocator->trackers, change);
  if (observer->functions.free_memory)
    atomic_fetch_add(&allocator->memory_freers, change);
  if (observer->functions.soft_limit)
    atomic_fetch_add(&allocator->limit_watchers, change);
  atomic_store(&observer->is_attached, on);
}

weir_status weir_allocator_attach(weir_allocator *allocator, const weir_observer *given) {
  weir_observer functions;
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_status status = read_observer(__func__, given, &functions);
  if (status)
    return status;
  if (!functions.entry && !functions.out_of_memory && !functions.rejection && !functions.free_memory &&
      !functions.soft_limit)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: all functions of the observer are NULL", __func__);
  weir__observer_place *end = allocator->observers + WEIR__MAX_OBSERVERS, *place = allocator->observers;
  weir__mutex_lock(&allocator->configure_lock);
  while (place < end && (atomic_load(&place->is_attached) || atomic_load(&place->calls)))
    place++;
  if (place < end) {
    place->functions = functions;
    set_attached(allocator, place, true);
  }
  weir__mutex_unlock(&allocator->configure_lock);
  if (place == end)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: at most %d observers can be attached", __func__, WEIR__MAX_OBSERVERS);
  weir__update_tracing(allocator);
  return WEIR_OK;
}

/* The calls of an observer that this thread is in. */
static int own_calls(const weir__observer_place *observer) {
  int count = 0;
  for (const weir__observer_call *c = weir__this_thread.observer_call; c; c = c->outer)
    count += c->observer == observer;
  return count;
}

weir_status weir_allocator_detach(weir_allocator *allocator, const weir_observer *given) {
  weir_observer functions;
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_status status = read_observer(__func__, given, &functions);
  if (status)
    return status;
  weir__observer_place *end = allocator->observers + WEIR__MAX_OBSERVERS, *place = allocator->observers;
  weir__mutex_lock(&allocator->configure_lock);
  while (place < end &&
         (!atomic_load(&place->is_attached) || memcmp(&place->functions, &functions, sizeof functions) != 0))
    place++;
  if (place < end)
    set_attached(allocator, place, false);
  weir__mutex_unlock(&allocator->configure_lock);
  if (place == end)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: no observer with these functions and this context is attached",
                      __func__);
  weir__update_tracing(allocator);
  /* Another observer may get the place, but only when all calls of this one have returned. */
  while (atomic_load(&place->calls) > own_calls(place) && !atomic_load(&place->is_attached))
    weir__thread_yield();
  return WEIR_OK;
}

/* ---- The witness ---- */

weir_status weir_allocator_set_witness(weir_allocator *allocator, weir_witness_fn witness, void *context,
                                       weir_witness_scope scope) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if ((unsigned)scope > WEIR_WITNESS_SEGMENTS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: unknown scope %d", __func__, (int)scope);
  weir__lock_acquire(&allocator->witness_lock);
  weir_witness_fn before = atomic_load(&allocator->witness);
  /* A call of the previous witness may be under way: it must not get another context. */
  bool taken = witness && before && (before != witness || allocator->witness_context != context);
  if (!taken) {
    if (witness)
      allocator->witness_context = context;
    atomic_store(&allocator->witnesses_segments, scope == WEIR_WITNESS_SEGMENTS);
    atomic_store(&allocator->witness, witness);
  }
  weir__lock_release(&allocator->witness_lock);
  if (taken)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: there is another witness; remove it first", __func__);
  weir__update_tracing(allocator);
  return WEIR_OK;
}

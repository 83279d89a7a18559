/*
 * Trackers, observers, callbacks, and the witness of an adapter.
 */
#include "alloc/cache/trace.h"
#include "base/thread.h"
#include "weir/adapter.h"

static weir_status attach(const char *caller, weir_allocator *allocator, weir__observers *observers,
                          weir__observer observer) {
  if (!observer.call.track)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: function is NULL", caller);
  weir__mutex_lock(&allocator->configure_lock);
  int count = atomic_load(&observers->count);
  bool has_room = count < WEIR__MAX_OBSERVERS;
  if (has_room) {
    observers->at[count] = observer;
    atomic_store(&observers->count, count + 1);
  }
  weir__mutex_unlock(&allocator->configure_lock);
  return has_room ? WEIR_OK
                  : weir__fail(WEIR_ERROR_BAD_STATE, "%s: at most %d can be attached", caller, WEIR__MAX_OBSERVERS);
}

weir_status weir_allocator_attach_tracker(weir_allocator *allocator, weir_trace_tracker tracker, void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir_status status =
      attach(__func__, allocator, &allocator->trackers, (weir__observer){.call.track = tracker, .context = context});
  weir__update_tracing(allocator);
  return status;
}

weir_status weir_allocator_attach_oom_observer(weir_allocator *allocator, weir_oom_observer observer, void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return attach(__func__, allocator, &allocator->oom_observers,
                (weir__observer){.call.oom = observer, .context = context});
}

weir_status weir_allocator_attach_rejection_observer(weir_allocator *allocator, weir_rejection_observer observer,
                                                     void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return attach(__func__, allocator, &allocator->rejection_observers,
                (weir__observer){.call.rejection = observer, .context = context});
}

weir_status weir_allocator_attach_free_callback(weir_allocator *allocator, weir_free_memory_callback callback,
                                                void *context) {
  WEIR__CHECK_ALLOCATOR(allocator);
  return attach(__func__, allocator, &allocator->free_callbacks,
                (weir__observer){.call.free_memory = callback, .context = context});
}

weir_status weir_allocator_set_witness(weir_allocator *allocator, weir_trace_tracker witness, void *context,
                                       weir_witness_scope scope) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if ((unsigned)scope > WEIR_WITNESS_SEGMENTS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: unknown scope %d", __func__, (int)scope);
  weir__lock_acquire(&allocator->witness_lock);
  weir_trace_tracker before = atomic_load(&allocator->witness);
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

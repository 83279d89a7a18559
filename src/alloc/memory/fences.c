#include "alloc/memory/fences.h"

#include <stdlib.h>

#include "base/array.h"

typedef struct entry {
  uint64_t key;
  weir__fence_queue *queue;
} entry;

/* The null stream is 0, which is not a key. */
static uint64_t key_of(weir_cu_stream stream) { return (uint64_t)(uintptr_t)stream + 1; }

/* ---- Events ---- */

weir_cu_result weir__event_acquire(weir__fences *fences, weir_driver *driver, weir_cu_event *event) {
  if (!fences->idle_count)
    return driver->EventCreate(driver, event, WEIR_CU_EVENT_DISABLE_TIMING);
  *event = fences->idle[--fences->idle_count];
  return WEIR_CU_SUCCESS;
}

void weir__event_release(weir__fences *fences, weir_driver *driver, weir_cu_event event) {
  if (WEIR__RESERVE(fences->idle, fences->idle_room, fences->idle_count + 1))
    fences->idle[fences->idle_count++] = event;
  else
    driver->EventDestroy(driver, event);
}

/* ---- Queues ---- */

/* The queue of a stream, created if there is none. NULL if out of host memory. */
static weir__fence_queue *get_queue(weir__fences *fences, weir_cu_stream stream) {
  entry *known = weir__hash_map_put(&fences->by_stream, sizeof *known, key_of(stream));
  if (!known || known->queue)
    return known ? known->queue : NULL;
  weir__fence_queue *queue = weir__slab_alloc(&fences->queues, sizeof *queue);
  if (!queue) {
    weir__hash_map_remove(&fences->by_stream, sizeof *known, known);
    return NULL;
  }
  *queue = (weir__fence_queue){.stream = stream};
  queue->last = &queue->first;
  if (fences->last)
    fences->last->next = queue;
  else
    fences->first = queue;
  fences->last = queue;
  known->queue = queue;
  return queue;
}

/* Removes an empty queue, which follows `previous`; NULL if it is the first. */
static void remove_queue(weir__fences *fences, weir__fence_queue *queue, weir__fence_queue *previous) {
  if (previous)
    previous->next = queue->next;
  else
    fences->first = queue->next;
  if (fences->last == queue)
    fences->last = previous;
  entry *known = weir__hash_map_find(&fences->by_stream, sizeof *known, key_of(queue->stream));
  weir__hash_map_remove(&fences->by_stream, sizeof *known, known);
  weir__slab_free(&fences->queues, queue, sizeof *queue);
}

/* A new queue is the last one. Its predecessor is searched for, since this happens only after a failure. */
static void remove_if_empty(weir__fences *fences, weir__fence_queue *queue) {
  weir__fence_queue *previous = fences->first;
  if (queue->first)
    return;
  while (previous != queue && previous->next != queue)
    previous = previous->next;
  remove_queue(fences, queue, previous == queue ? NULL : previous);
}

bool weir__fences_add(weir__fences *fences, weir_driver *driver, weir_cu_stream stream, void *waiter) {
  weir__fence_queue *queue = get_queue(fences, stream);
  if (!queue)
    return false;
  weir__fence *fence = weir__slab_alloc(&fences->slab, sizeof *fence);
  if (!fence)
    goto remove_queue;
  *fence = (weir__fence){.waiter = waiter};
  if (weir__event_acquire(fences, driver, &fence->event))
    goto give_pending;
  if (driver->EventRecord(driver, fence->event, stream))
    goto release_event;
  *queue->last = fence;
  queue->last = &fence->next;
  return true;

release_event:
  weir__event_release(fences, driver, fence->event);
give_pending:
  weir__slab_free(&fences->slab, fence, sizeof *fence);
remove_queue:
  remove_if_empty(fences, queue);
  return false;
}

/* ---- Polling ---- */

weir_cu_result weir__fences_poll(weir__fences *fences, weir_driver *driver, bool wait,
                                 void (*passed)(void *context, void *waiter), void *context) {
  weir_cu_result (*ask)(weir_driver *, weir_cu_event) = wait ? driver->EventSynchronize : driver->EventQuery;
  weir_cu_result first_failure = WEIR_CU_SUCCESS;
  for (weir__fence_queue *queue = fences->first, *previous = NULL, *next; queue; queue = next) {
    weir_cu_result r = WEIR_CU_SUCCESS;
    next = queue->next;
    while (queue->first && !(r = ask(driver, queue->first->event))) {
      weir__fence *fence = queue->first;
      void *waiter = fence->waiter;
      queue->first = fence->next;
      weir__event_release(fences, driver, fence->event);
      weir__slab_free(&fences->slab, fence, sizeof *fence);
      passed(context, waiter);
    }
    if (r && r != WEIR_CU_NOT_READY && !first_failure)
      first_failure = r;
    if (queue->first)
      previous = queue;
    else
      remove_queue(fences, queue, previous);
  }
  return first_failure;
}

void weir__fences_clear(weir__fences *fences, weir_driver *driver) {
  for (const weir__fence_queue *queue = fences->first; queue; queue = queue->next)
    for (const weir__fence *fence = queue->first; fence; fence = fence->next)
      driver->EventDestroy(driver, fence->event);
  while (fences->idle_count)
    driver->EventDestroy(driver, fences->idle[--fences->idle_count]);
  free(fences->idle);
  weir__slab_clear(&fences->queues);
  weir__slab_clear(&fences->slab);
  weir__hash_map_clear(&fences->by_stream);
  *fences = (weir__fences){0};
}

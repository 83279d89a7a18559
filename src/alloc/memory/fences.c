#include "alloc/memory/fences.h"

#include <stdlib.h>

#include "base/array.h"

typedef struct entry {
  uint64_t key;
  weir__event_queue *queue;
} entry;

/* The null stream is 0, which is not a key. */
static uint64_t key_of(weir_cu_stream stream) { return (uint64_t)(uintptr_t)stream + 1; }

/* ---- Events ---- */

weir_cu_result weir__event_acquire(weir__event_queues *queues, weir_driver *driver, weir_cu_event *event) {
  if (!queues->idle_count)
    return driver->EventCreate(driver, event, WEIR_CU_EVENT_DISABLE_TIMING);
  *event = queues->idle[--queues->idle_count];
  return WEIR_CU_SUCCESS;
}

void weir__event_release(weir__event_queues *queues, weir_driver *driver, weir_cu_event event) {
  if (WEIR__RESERVE(queues->idle, queues->idle_room, queues->idle_count + 1))
    queues->idle[queues->idle_count++] = event;
  else
    driver->EventDestroy(driver, event);
}

/* ---- Queues ---- */

/* The queue of a stream, created if there is none. NULL if out of host memory. */
static weir__event_queue *get_queue(weir__event_queues *queues, weir_cu_stream stream) {
  entry *known = weir__hash_map_put(&queues->by_stream, sizeof *known, key_of(stream));
  if (!known || known->queue)
    return known ? known->queue : NULL;
  weir__event_queue *queue = weir__slab_alloc(&queues->queues, sizeof *queue);
  if (!queue) {
    weir__hash_map_remove(&queues->by_stream, sizeof *known, known);
    return NULL;
  }
  *queue = (weir__event_queue){.stream = stream};
  queue->last = &queue->first;
  if (queues->last)
    queues->last->next = queue;
  else
    queues->first = queue;
  queues->last = queue;
  known->queue = queue;
  return queue;
}

/* Removes an empty queue, which follows `previous`; NULL if it is the first. */
static void remove_queue(weir__event_queues *queues, weir__event_queue *queue, weir__event_queue *previous) {
  if (previous)
    previous->next = queue->next;
  else
    queues->first = queue->next;
  if (queues->last == queue)
    queues->last = previous;
  entry *known = weir__hash_map_find(&queues->by_stream, sizeof *known, key_of(queue->stream));
  weir__hash_map_remove(&queues->by_stream, sizeof *known, known);
  weir__slab_free(&queues->queues, queue, sizeof *queue);
}

/* A new queue is the last one. Its predecessor is searched for, since this happens only after a failure. */
static void remove_if_empty(weir__event_queues *queues, weir__event_queue *queue) {
  weir__event_queue *previous = queues->first;
  if (queue->first)
    return;
  while (previous != queue && previous->next != queue)
    previous = previous->next;
  remove_queue(queues, queue, previous == queue ? NULL : previous);
}

bool weir__event_queues_add(weir__event_queues *queues, weir_driver *driver, weir_cu_stream stream, void *block) {
  weir__event_queue *queue = get_queue(queues, stream);
  if (!queue)
    return false;
  weir__pending *pending = weir__slab_alloc(&queues->pendings, sizeof *pending);
  if (!pending)
    goto remove_queue;
  *pending = (weir__pending){.block = block};
  if (weir__event_acquire(queues, driver, &pending->event))
    goto give_pending;
  if (driver->EventRecord(driver, pending->event, stream))
    goto give_event;
  *queue->last = pending;
  queue->last = &pending->next;
  return true;

give_event:
  weir__event_release(queues, driver, pending->event);
give_pending:
  weir__slab_free(&queues->pendings, pending, sizeof *pending);
remove_queue:
  remove_if_empty(queues, queue);
  return false;
}

/* ---- Polling ---- */

weir_cu_result weir__event_queues_poll(weir__event_queues *queues, weir_driver *driver, bool wait,
                                       void (*done)(void *context, void *block), void *context) {
  weir_cu_result (*ask)(weir_driver *, weir_cu_event) = wait ? driver->EventSynchronize : driver->EventQuery;
  weir_cu_result first_failure = WEIR_CU_SUCCESS;
  for (weir__event_queue *queue = queues->first, *previous = NULL, *next; queue; queue = next) {
    weir_cu_result r = WEIR_CU_SUCCESS;
    next = queue->next;
    while (queue->first && !(r = ask(driver, queue->first->event))) {
      weir__pending *pending = queue->first;
      void *block = pending->block;
      queue->first = pending->next;
      weir__event_release(queues, driver, pending->event);
      weir__slab_free(&queues->pendings, pending, sizeof *pending);
      done(context, block);
    }
    if (r && r != WEIR_CU_NOT_READY && !first_failure)
      first_failure = r;
    if (queue->first)
      previous = queue;
    else
      remove_queue(queues, queue, previous);
  }
  return first_failure;
}

void weir__event_queues_clear(weir__event_queues *queues, weir_driver *driver) {
  for (const weir__event_queue *queue = queues->first; queue; queue = queue->next)
    for (const weir__pending *pending = queue->first; pending; pending = pending->next)
      driver->EventDestroy(driver, pending->event);
  while (queues->idle_count)
    driver->EventDestroy(driver, queues->idle[--queues->idle_count]);
  free(queues->idle);
  weir__slab_clear(&queues->queues);
  weir__slab_clear(&queues->pendings);
  weir__hash_map_clear(&queues->by_stream);
  *queues = (weir__event_queues){0};
}

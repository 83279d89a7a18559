/*
 * Events by which freed memory waits for streams, of device memory and of pinned memory alike.
 *
 * A stream reaches its events in order, so each stream has a queue and only the first event of a queue is polled: a
 * slow stream delays no other. Only streams with pending events have a queue, so a poll costs one query for each of
 * these. The owner guards the queues, and the device's context is current.
 */
#ifndef WEIR_ALLOC_MEMORY_FENCES_H
#define WEIR_ALLOC_MEMORY_FENCES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/hash_map.h"
#include "base/slab.h"
#include "weir/driver.h"

typedef struct weir__pending weir__pending;
struct weir__pending {
  weir_cu_event event;
  void *block; /* that waits for it */
  weir__pending *next;
};

typedef struct weir__event_queue weir__event_queue;
struct weir__event_queue {
  weir_cu_stream stream;
  weir__pending *first, **last;
  weir__event_queue *next;
};

/* All zero is empty. */
typedef struct weir__event_queues {
  weir__hash_map by_stream;
  weir__event_queue *first, *last;
  weir__slab queues, pendings;
  weir_cu_event *idle; /* for reuse */
  size_t idle_count, idle_room;
} weir__event_queues;

/* An event without timing, from the idle ones if there is one. */
weir_cu_result weir__event_acquire(weir__event_queues *queues, weir_driver *driver, weir_cu_event *event);
void weir__event_release(weir__event_queues *queues, weir_driver *driver, weir_cu_event event);

/* Records an event in a stream, for a block to wait for. False without host memory, or if the driver fails. */
bool weir__event_queues_add(weir__event_queues *queues, weir_driver *driver, weir_cu_stream stream, void *block);

/* Calls `done` for the block of each event that has completed; with `wait`, waits for all events. Returns the first
 * failure of the driver; the events behind it in its queue stay. */
weir_cu_result weir__event_queues_poll(weir__event_queues *queues, weir_driver *driver, bool wait,
                                       void (*done)(void *context, void *block), void *context);

/* Destroys all events, and leaves the queues empty. */
void weir__event_queues_clear(weir__event_queues *queues, weir_driver *driver);

#endif

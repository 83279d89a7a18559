/*
 * Fences: points in streams, and what waits until they have been passed: freed memory, of the device and pinned memory
 * alike, and aliases that retire. Memory in limbo waits for other processes (ipc/references.h), and for fences of the
 * streams that use it. Memory freed in a capture waits for positions in the graph (capture_reuse.c).
 *
 * A stream reaches its fences in order, so each stream has a queue and only the first fence of a queue is polled: a
 * slow stream delays no other. Only streams with fences have a queue, so a poll costs one query for each of these. The
 * owner guards the fences, and the device's context is current.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/hash_map.h"
#include "base/slab.h"
#include "weir/driver.h"

typedef struct weir__fence weir__fence;
struct weir__fence {
  weir_cu_event event; /* recorded at the point */
  void *waiter;
  weir__fence *next;
};

typedef struct weir__fence_queue weir__fence_queue;
struct weir__fence_queue {
  weir_cu_stream stream;
  weir__fence *first, **last;
  weir__fence_queue *next;
};

/* All zero is empty. */
typedef struct weir__fences {
  weir__hash_map by_stream;
  weir__fence_queue *first, *last;
  weir__slab queues, slab;
  weir_cu_event *idle; /* for reuse */
  size_t idle_count, idle_room;
} weir__fences;

/* An event without timing, from the idle ones if there is one. */
weir_cu_result weir__event_acquire(weir__fences *fences, weir_driver *driver, weir_cu_event *event);
void weir__event_release(weir__fences *fences, weir_driver *driver, weir_cu_event event);

/* Adds a fence behind the work that a stream has now. False without host memory, or if the driver fails. */
bool weir__fences_add(weir__fences *fences, weir_driver *driver, weir_cu_stream stream, void *waiter);

/* Calls `passed` for the waiter of each fence that has been passed; with `wait`, waits for all of them. Returns the
 * first failure of the driver; the fences behind it in its queue stay. */
weir_cu_result weir__fences_poll(weir__fences *fences, weir_driver *driver, bool wait,
                                 void (*passed)(void *context, void *waiter), void *context);

/* Destroys all events, and leaves no fence. */
void weir__fences_clear(weir__fences *fences, weir_driver *driver);

/*
 * Pinned memory that was freed while a stream uses it: one event for each such stream, polled until all are done.
 *
 * As for device memory a stream reaches its events in order, so each has a queue, and only the first of a queue is asked.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "alloc/host.h"
#include "base/base.h"

/* ---- Events ---- */

static weir_cu_result event_take(weir_host_allocator *host, int device, weir_cu_event *event) {
  weir__host_device *of = &host->devices[device];
  weir_driver *driver = host->driver;
  if (!of->idle_count)
    return driver->EventCreate(driver, event, WEIR_CU_EVENT_DISABLE_TIMING);
  *event = of->idle[--of->idle_count];
  return WEIR_CU_SUCCESS;
}

static void event_give(weir_host_allocator *host, int device, weir_cu_event event) {
  weir__host_device *of = &host->devices[device];
  weir_driver *driver = host->driver;
  if (of->idle_count == of->idle_room) {
    size_t room = of->idle_room ? 2 * of->idle_room : 32;
    weir_cu_event *grown = realloc(of->idle, room * sizeof *grown);
    if (!grown) {
      driver->EventDestroy(driver, event);
      return;
    }
    of->idle = grown;
    of->idle_room = room;
  }
  of->idle[of->idle_count++] = event;
}

static weir__host_queue *queue_of(weir_host_allocator *host, const weir__host_use *use) {
  weir__host_queue **at = &host->queues;
  while (*at && ((*at)->stream != use->stream || (*at)->device != use->device))
    at = &(*at)->next;
  if (!*at && (*at = calloc(1, sizeof **at))) {
    (*at)->device = use->device;
    (*at)->stream = use->stream;
    (*at)->last = &(*at)->first;
  }
  return *at;
}

/* ---- The thread that polls ---- */

static void *poller(void *argument) {
  weir_host_allocator *host = argument;
  const struct timespec interval = {.tv_nsec = 100000};
  pthread_mutex_lock(&host->events_lock);
  while (!host->thread_ends) {
    if (!atomic_load(&host->pending)) {
      pthread_cond_wait(&host->thread_wakes, &host->events_lock);
      continue;
    }
    pthread_mutex_unlock(&host->events_lock);
    nanosleep(&interval, NULL);
    weir__host_poll(host, true);
    pthread_mutex_lock(&host->events_lock);
  }
  pthread_mutex_unlock(&host->events_lock);
  return NULL;
}

/* Wakes the thread, or starts it. Should that fail allocations poll, as they do without it. */
static void look_after(weir_host_allocator *host) {
  weir__lock_take(&host->lock);
  bool wanted = host->settings.pinned_use_background_threads;
  weir__lock_give(&host->lock);
  if (atomic_load(&host->has_thread))
    pthread_cond_signal(&host->thread_wakes);
  else if (wanted)
    atomic_store(&host->has_thread, !pthread_create(&host->thread, NULL, poller, host));
}

/* ---- Waiting ---- */

/* Lets the block wait for a stream by an event. false: no host memory, or a driver that fails. */
static bool insert_event(weir_host_allocator *host, weir__host_block *block, const weir__host_use *use) {
  weir_driver *driver = host->driver;
  weir__host_queue *queue = queue_of(host, use);
  weir__host_pending *pending = queue ? weir__slab_take(&host->pendings, sizeof *pending) : NULL;
  if (!pending)
    return false;
  *pending = (weir__host_pending){.block = block};
  if (event_take(host, use->device, &pending->event))
    goto give_pending;
  if (driver->EventRecord(driver, pending->event, use->stream))
    goto give_event;
  *queue->last = pending;
  queue->last = &pending->next;
  block->events++;
  atomic_fetch_add(&host->pending, 1);
  return true;

give_event:
  event_give(host, use->device, pending->event);
give_pending:
  weir__slab_give(&host->pendings, pending, sizeof *pending);
  return false;
}

/* By an event, or where that cannot be, with the host: slow and safe. A stream that was given to a capture meanwhile can be
 * neither asked nor waited for. */
static bool take_care_of(weir_host_allocator *host, weir__host_block *block, const weir__host_use *use) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  if (weir__host_enter(host, use->device, &visit))
    return false;
  bool done = !driver->StreamIsCapturing(driver, use->stream, &status) && status == WEIR_CU_CAPTURE_STATUS_NONE &&
              (insert_event(host, block, use) || !driver->StreamSynchronize(driver, use->stream));
  weir__host_leave(host, &visit);
  return done;
}

/* An event for each use. What cannot be done now is tried again at the next poll. */
static void insert_events(weir_host_allocator *host, weir__host_block *block) {
  weir__host_use *left = NULL;
  block->events++; /* ours, until all are in their queues */
  for (weir__host_use *use = block->uses, *next; use; use = next) {
    next = use->next;
    if (take_care_of(host, block, use)) {
      weir__lock_take(&host->lock);
      weir__slab_give(&host->use_slab, use, sizeof *use);
      weir__lock_give(&host->lock);
    } else {
      use->next = left;
      left = use;
    }
  }
  block->uses = left;
  if (left) {
    block->next = host->deferred;
    host->deferred = block;
    atomic_fetch_add(&host->pending, 1);
  }
  if (--block->events == 0 && !left)
    weir__host_block_done(host, block);
}

void weir__host_free_later(weir_host_allocator *host, weir__host_block *block) {
  pthread_mutex_lock(&host->events_lock);
  insert_events(host, block);
  if (atomic_load(&host->pending))
    look_after(host);
  pthread_mutex_unlock(&host->events_lock);
}

static void insert_deferred(weir_host_allocator *host) {
  weir__host_block *block = host->deferred;
  host->deferred = NULL;
  while (block) {
    weir__host_block *next = block->next;
    atomic_fetch_sub(&host->pending, 1);
    insert_events(host, block);
    block = next;
  }
}

static void poll_queue(weir_host_allocator *host, weir__host_queue *queue) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  if (!queue->first || weir__host_enter(host, queue->device, &visit))
    return;
  while (queue->first && driver->EventQuery(driver, queue->first->event) == WEIR_CU_SUCCESS) {
    weir__host_pending *pending = queue->first;
    weir__host_block *block = pending->block;
    queue->first = pending->next;
    if (!queue->first)
      queue->last = &queue->first;
    event_give(host, queue->device, pending->event);
    weir__slab_give(&host->pendings, pending, sizeof *pending);
    atomic_fetch_sub(&host->pending, 1);
    if (--block->events == 0 && !block->uses)
      weir__host_block_done(host, block);
  }
  weir__host_leave(host, &visit);
}

void weir__host_poll(weir_host_allocator *host, bool wait) {
  if (wait)
    pthread_mutex_lock(&host->events_lock);
  else if (pthread_mutex_trylock(&host->events_lock))
    return;
  insert_deferred(host);
  for (weir__host_queue *queue = host->queues; queue; queue = queue->next)
    poll_queue(host, queue);
  pthread_mutex_unlock(&host->events_lock);
}

void weir__host_events_end(weir_host_allocator *host) {
  weir_driver *driver = host->driver;
  if (atomic_load(&host->has_thread)) {
    pthread_mutex_lock(&host->events_lock);
    host->thread_ends = true;
    pthread_cond_signal(&host->thread_wakes);
    pthread_mutex_unlock(&host->events_lock);
    pthread_join(host->thread, NULL);
  }
  while (host->queues) {
    weir__host_queue *queue = host->queues;
    host->queues = queue->next;
    for (weir__host_pending *pending = queue->first; pending; pending = pending->next)
      driver->EventDestroy(driver, pending->event);
    free(queue);
  }
  for (int i = 0; i < host->device_count; i++) {
    weir__host_device *device = &host->devices[i];
    while (device->idle_count)
      driver->EventDestroy(driver, device->idle[--device->idle_count]);
    free(device->idle);
  }
  weir__slab_clear(&host->pendings);
}

/*
 * Pinned memory that was freed while streams use it. It becomes free when an event in each of these streams has
 * completed (fences.h).
 */
#include <stdlib.h>

#include "alloc/host/host.h"
#include "base/base.h"
#include "base/clock.h"
#include "base/thread.h"

/* ---- The polling task ---- */

static void poll(weir_host_allocator *host);

static uint64_t run_poller(void *context, uint64_t now) {
  enum { interval_ns = 100000 };
  weir_host_allocator *host = context;
  if (atomic_load(&host->pending)) {
    weir__mutex_lock(&host->events_lock);
    poll(host);
    weir__mutex_unlock(&host->events_lock);
  }
  return atomic_load(&host->pending) ? now + interval_ns : WEIR__NO_DEADLINE;
}

/* Wakes the task, or adds it. If it has no worker, allocations poll. */
static void wake_poller(weir_host_allocator *host) {
  weir__biased_acquire(&host->lock);
  bool wanted = host->settings.pinned_use_background_threads;
  weir__biased_release(&host->lock);
  if (wanted && !atomic_load(&host->has_task)) {
    host->task = (weir__task){.run = run_poller, .context = host};
    atomic_store(&host->has_task, weir__task_add(&host->task));
  }
  if (atomic_load(&host->has_task))
    weir__task_wake(&host->task);
}

/* ---- Waiting ---- */

/* Makes the block wait for an event in a stream. Returns false if out of host memory, or if the driver fails. */
static bool insert_event(weir_host_allocator *host, weir__host_block *block, const weir__host_use *use) {
  if (!weir__fences_add(&host->devices[use->device].events, host->driver, use->stream, block))
    return false;
  block->events++;
  atomic_fetch_add(&host->pending, 1);
  return true;
}

/* Makes the block wait for a stream with an event or, if that fails, synchronizes the stream. Returns false if neither
 * is possible now: the stream, or another one on which the legacy stream depends, may be capturing. */
static bool wait_for_use(weir_host_allocator *host, weir__host_block *block, weir__host_use *use) {
  weir_driver *driver = host->driver;
  weir__host_visit visit;
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  if (use->is_destroyed || weir__host_enter(host, use->device, &visit))
    return false;
  weir_cu_result r = driver->StreamIsCapturing(driver, use->stream, &status);
  use->is_destroyed = r == WEIR_CU_INVALID_HANDLE;
  bool done = !r && status == WEIR_CU_CAPTURE_STATUS_NONE &&
              (insert_event(host, block, use) || !driver->StreamSynchronize(driver, use->stream));
  weir__host_leave(host, &visit);
  return done;
}

/* Removes the uses for which `is_done` is true. Returns whether all that are left are of streams that were
 * destroyed. */
static bool remove_uses(weir_host_allocator *host, weir__host_block *block,
                        bool (*is_done)(weir_host_allocator *host, weir__host_block *block, weir__host_use *use)) {
  bool are_destroyed = true;
  for (weir__host_use **at = &block->uses; *at;) {
    weir__host_use *use = *at;
    if (is_done(host, block, use)) {
      *at = use->next;
      weir__biased_acquire(&host->lock);
      weir__slab_free(&host->use_slab, use, sizeof *use);
      weir__biased_release(&host->lock);
    } else {
      at = &use->next;
      are_destroyed &= use->is_destroyed;
    }
  }
  return are_destroyed;
}

/* Inserts an event for each use. Uses for which that fails are tried again at the next poll, but for those of streams
 * that were destroyed. */
static void insert_events(weir_host_allocator *host, weir__host_block *block) {
  block->events++; /* keeps the block waiting until all events are in their queues */
  bool are_destroyed = remove_uses(host, block, wait_for_use);
  block->events--;
  if (!block->uses) {
    if (!block->events)
      weir__host_block_done(host, block);
  } else if (are_destroyed) {
    block->next = host->orphaned;
    host->orphaned = block;
  } else {
    block->next = host->deferred;
    host->deferred = block;
    atomic_fetch_add(&host->pending, 1);
  }
}

/* The work of a destroyed stream is done when that of the whole device is. */
static bool wait_for_device(weir_host_allocator *host, weir__host_block *block, weir__host_use *use) {
  weir__host_visit visit;
  (void)block;
  if (weir__host_enter(host, use->device, &visit))
    return false;
  bool done = !host->driver->CtxSynchronize(host->driver);
  weir__host_leave(host, &visit);
  return done;
}

void weir__host_reclaim_orphans(weir_host_allocator *host) {
  weir__mutex_lock(&host->events_lock);
  weir__host_block *block = host->orphaned;
  host->orphaned = NULL;
  while (block) {
    weir__host_block *next = block->next;
    remove_uses(host, block, wait_for_device);
    if (block->uses) {
      block->next = host->orphaned;
      host->orphaned = block;
    } else if (!block->events)
      weir__host_block_done(host, block);
    block = next;
  }
  weir__mutex_unlock(&host->events_lock);
}

void weir__host_free_later(weir_host_allocator *host, weir__host_block *block) {
  weir__mutex_lock(&host->events_lock);
  insert_events(host, block);
  if (atomic_load(&host->pending))
    wake_poller(host);
  weir__mutex_unlock(&host->events_lock);
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

/* A block that no graph uses any more, and that the program has freed, waits for its streams. */
static void free_ended(weir_host_allocator *host) {
  for (weir__host_graph *graph = weir__host_take_ended(host), *next; graph; graph = next) {
    weir__host_block *block = graph->block;
    next = graph->next;
    free(graph);
    if (!block)
      continue;
    weir__biased_acquire(&host->lock);
    bool is_unused = --block->graphs == 0 && block->state == WEIR__HOST_KEPT && !block->captured;
    if (is_unused)
      block->state = WEIR__HOST_WAITING;
    weir__biased_release(&host->lock);
    if (is_unused)
      insert_events(host, block);
  }
}

static void event_done(void *context, void *waiting) {
  weir_host_allocator *host = context;
  weir__host_block *block = waiting;
  atomic_fetch_sub(&host->pending, 1);
  if (--block->events == 0 && !block->uses)
    weir__host_block_done(host, block);
}

static void poll_device(weir_host_allocator *host, int device) {
  weir__fences *events = &host->devices[device].events;
  weir__host_visit visit;
  if (!events->first || weir__host_enter(host, device, &visit))
    return;
  weir__fences_poll(events, host->driver, false, event_done, host);
  weir__host_leave(host, &visit);
}

/* The events_lock is held. */
static void poll(weir_host_allocator *host) {
  free_ended(host);
  insert_deferred(host);
  for (int i = 0; i < host->device_count; i++)
    poll_device(host, i);
}

void weir__host_poll(weir_host_allocator *host, bool wait) {
  if (wait)
    weir__mutex_lock(&host->events_lock);
  else if (!weir__mutex_trylock(&host->events_lock))
    return;
  poll(host);
  /* Blocks of graphs that have ended may wait for their streams now, and the task may be asleep. */
  if (atomic_load(&host->pending) && atomic_load(&host->has_task))
    weir__task_wake(&host->task);
  weir__mutex_unlock(&host->events_lock);
}

void weir__host_events_end(weir_host_allocator *host) {
  if (atomic_load(&host->has_task))
    weir__task_remove(&host->task);
  for (int i = 0; i < host->device_count; i++)
    weir__fences_clear(&host->devices[i].events, host->driver);
}

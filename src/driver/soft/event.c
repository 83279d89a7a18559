/*
 * Events, and waiting for them.
 *
 * Recording an event enqueues an empty work item, and points the event at the signal of that item. A wait refers to the
 * signal, not to the event, so recording or destroying the event later does not affect the wait.
 */
#include <unistd.h>

#include "base/thread.h"
#include "driver/soft/soft.h"

static weir_cu_result new_event(model *m, model_event *event) {
  struct soft_event *e = (struct soft_event *)event;
  (void)m;
  if (event->flags & WEIR_CU_EVENT_INTERPROCESS && !(e->shared = weir__soft_shared_event_new()))
    return WEIR_CU_OPERATING_SYSTEM;
  return WEIR_CU_SUCCESS;
}

static void forget_record(model_event *event) {
  struct soft_event *e = (struct soft_event *)event;
  weir__soft_signal_unref(e->signal);
  e->signal = NULL;
}

static void end_event(model *m, model_event *event) {
  (void)m;
  forget_record(event);
  weir__soft_shared_event_unref(((struct soft_event *)event)->shared);
}

static weir_cu_result record(model *m, model_event *event, model_stream *stream, weir_cu_stream handle) {
  struct soft_event *e = (struct soft_event *)event;
  struct soft *soft = (struct soft *)m;
  (void)handle;
  struct soft_work *work = weir__soft_work_new_sync(SOFT_RECORD);
  if (!work || !(work->end = weir__soft_signal_new())) {
    weir__soft_work_free(soft, work);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  struct soft_signal *signal = weir__soft_signal_ref(work->end);
  weir_cu_result r = weir__soft_enqueue(soft, (struct soft_stream *)stream, work);
  if (r) {
    weir__soft_signal_unref(signal);
    return r;
  }
  forget_record(event);
  e->signal = signal;
  if (e->shared) {
    atomic_store(&e->shared->page->recorder, weir__process_id());
    e->shared_count = atomic_fetch_add(&e->shared->page->recorded, 1) + 1;
    work->shared = e->shared; /* the queue owns the item, which cannot run before the lock is released */
    work->shared->refs++;
    work->shared_count = e->shared_count;
  }
  return WEIR_CU_SUCCESS;
}

/* Whether another process made the latest record. */
static bool recorded_elsewhere(const struct soft_event *e) {
  return e->shared && atomic_load(&e->shared->page->recorded) != e->shared_count;
}

static bool was_recorded(const model_event *event) {
  const struct soft_event *e = (const struct soft_event *)event;
  return e->signal || recorded_elsewhere(e);
}

/* Work of a process that has exited is missing, which breaks the context. */
static weir_cu_result break_if_lost(model_device *device, weir_cu_result r) {
  if (r == WEIR_CU_EXTERNAL_DEVICE && !device->error)
    device->error = r;
  return r;
}

static weir_cu_result query(model *m, model_event *event) {
  const struct soft_event *e = (struct soft_event *)event;
  (void)m;
  if (recorded_elsewhere(e))
    return break_if_lost(e->e.device,
                         weir__soft_shared_event_query(e->shared, atomic_load(&e->shared->page->recorded)));
  return !e->signal || e->signal->done ? WEIR_CU_SUCCESS : WEIR_CU_NOT_READY;
}

static weir_cu_result wait_event(model *m, model_event *event) {
  struct soft_event *e = (struct soft_event *)event;
  struct soft *soft = (struct soft *)m;
  if (!recorded_elsewhere(e))
    return weir__soft_wait_signal(soft, e->signal);
  /* The other process cannot wake this one, so poll. */
  struct soft_shared_event *shared = e->shared;
  model_thread *thread = m->thread;
  uint64_t count = atomic_load(&shared->page->recorded);
  model_device *device = e->e.device;
  weir_cu_result r;
  shared->refs++;
  while ((r = weir__soft_shared_event_query(shared, count)) == WEIR_CU_NOT_READY)
    weir__soft_pause(soft);
  m->thread = thread;
  weir__soft_shared_event_unref(shared);
  return break_if_lost(device, r);
}

static weir_cu_result elapsed(model *m, model_event *start, model_event *end, float *milliseconds) {
  const struct soft_signal *a = ((struct soft_event *)start)->signal, *b = ((struct soft_event *)end)->signal;
  (void)m;
  if (!a->done || !b->done)
    return WEIR_CU_NOT_READY;
  *milliseconds = (float)((double)(int64_t)(b->time_ns - a->time_ns) / 1e6);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result stream_wait(model *m, model_stream *stream, model_event *event) {
  struct soft_event *e = (struct soft_event *)event;
  struct soft *soft = (struct soft *)m;
  if (!recorded_elsewhere(e))
    return weir__soft_enqueue_wait(soft, (struct soft_stream *)stream, e->signal);
  uint64_t count = atomic_load(&e->shared->page->recorded);
  if (weir__soft_shared_event_query(e->shared, count) == WEIR_CU_SUCCESS)
    return WEIR_CU_SUCCESS;
  struct soft_work *work = weir__soft_work_new_sync(SOFT_WAIT_SHARED);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->shared = e->shared;
  work->shared->refs++;
  work->shared_count = count;
  return weir__soft_enqueue(soft, (struct soft_stream *)stream, work);
}

void weir__soft_add_event_hooks(model_hooks *hooks) {
  hooks->new_event = new_event;
  hooks->end_event = end_event;
  hooks->forget_record = forget_record;
  hooks->record = record;
  hooks->was_recorded = was_recorded;
  hooks->query = query;
  hooks->wait_event = wait_event;
  hooks->elapsed = elapsed;
  hooks->stream_wait = stream_wait;
}

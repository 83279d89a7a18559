/*
 * Events, and waiting for them.
 *
 * An event is a name for the end of a piece of work: recording it enqueues an empty piece and points the event at that
 * piece's signal. A wait keeps the signal, not the event, so recording or destroying the event later changes nothing for it.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver/soft/soft.h"

static struct soft_event *event_get(struct soft *soft, weir_cu_event event) {
  return weir__soft_handle_get(soft, SOFT_EVENT, (uintptr_t)event);
}

static void forget_record(struct soft_event *event) {
  weir__soft_signal_unref(event->signal);
  free(event->tips);
  event->signal = NULL;
  event->tips = NULL;
  event->tip_count = 0;
  event->capture_id = 0;
}

void weir__soft_event_free(struct soft *soft, struct soft_event *event) {
  forget_record(event);
  weir__soft_shared_event_unref(event->shared);
  weir__soft_handle_free(soft, event->handle);
  free(event);
}

weir_cu_result weir__soft_EventCreate(struct soft *soft, weir_cu_event *event, unsigned flags) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  bool bad_ipc = flags & WEIR_CU_EVENT_INTERPROCESS && !(flags & WEIR_CU_EVENT_DISABLE_TIMING);
  if (!event || flags & ~7u || bad_ipc)
    return WEIR_CU_INVALID_VALUE;
  struct soft_event *e = calloc(1, sizeof *e);
  if (!e)
    return WEIR_CU_OUT_OF_MEMORY;
  e->device = device;
  e->flags = flags;
  if (flags & WEIR_CU_EVENT_INTERPROCESS && !(e->shared = weir__soft_shared_event_new())) {
    free(e);
    return WEIR_CU_OPERATING_SYSTEM;
  }
  e->handle = weir__soft_handle_new(soft, SOFT_EVENT, e);
  if (!e->handle) {
    weir__soft_shared_event_unref(e->shared);
    free(e);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *event = (weir_cu_event)e->handle;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_EventDestroy(struct soft *soft, weir_cu_event event) {
  struct soft_event *e = event_get(soft, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = e->device->error;
  weir__soft_event_free(soft, e);
  return r;
}

static weir_cu_result record_in_capture(struct soft_event *event, const struct soft_stream *stream) {
  struct soft_node **tips = NULL;
  if (stream->tip_count) {
    tips = malloc(stream->tip_count * sizeof *tips);
    if (!tips)
      return WEIR_CU_OUT_OF_MEMORY;
    memcpy(tips, stream->tips, stream->tip_count * sizeof *tips);
  }
  forget_record(event);
  event->capture_id = stream->capture->id;
  event->tips = tips;
  event->tip_count = stream->tip_count;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_EventRecord(struct soft *soft, weir_cu_event event, weir_cu_stream stream) {
  struct soft_event *e = event_get(soft, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (s->device != e->device)
    return WEIR_CU_INVALID_HANDLE;
  if (s->capture)
    return s->capture->status == WEIR_CU_CAPTURE_STATUS_INVALIDATED ? WEIR_CU_STREAM_CAPTURE_INVALIDATED
                                                                    : record_in_capture(e, s);
  if (s->is_legacy && (r = weir__soft_implicit(soft, s->device)))
    return r;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_RECORD);
  if (!work || !(work->end = weir__soft_signal_new())) {
    weir__soft_work_free(work);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  struct soft_signal *signal = weir__soft_signal_ref(work->end);
  r = weir__soft_enqueue(soft, s, work);
  if (r) {
    weir__soft_signal_unref(signal);
    return r;
  }
  forget_record(e);
  e->signal = signal;
  if (e->shared) {
    atomic_store(&e->shared->page->recorder, getpid());
    e->shared_count = atomic_fetch_add(&e->shared->page->recorded, 1) + 1;
    work->shared = e->shared; /* the work is in the queue, but nobody takes it from there while we have the lock */
    work->shared->refs++;
    work->shared_count = e->shared_count;
  }
  return WEIR_CU_SUCCESS;
}

static struct soft_capture *capture_by_id(const struct soft *soft, uint64_t id) {
  for (struct soft_capture *c = soft->captures; c; c = c->next)
    if (c->id == id)
      return c;
  return NULL;
}

/* What query, synchronize and elapsed refuse of an event that was last recorded in a capture. */
static weir_cu_result check_captured(struct soft *soft, const struct soft_event *event, bool invalidate) {
  if (!event->capture_id)
    return WEIR_CU_SUCCESS;
  struct soft_capture *capture = capture_by_id(soft, event->capture_id);
  if (!capture)
    return WEIR_CU_INVALID_VALUE;
  if (invalidate)
    weir__soft_invalidate(capture);
  return WEIR_CU_CAPTURED_EVENT;
}

/* Whether the last record was another process's. */
static bool is_theirs(const struct soft_event *event) {
  return event->shared && atomic_load(&event->shared->page->recorded) != event->shared_count;
}

static bool is_done(const struct soft_event *event) {
  if (is_theirs(event))
    return weir__soft_shared_event_done(event->shared, atomic_load(&event->shared->page->recorded));
  return !event->signal || event->signal->done;
}

weir_cu_result weir__soft_EventQuery(struct soft *soft, weir_cu_event event) {
  struct soft_event *e = event_get(soft, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  if (e->device->error)
    return e->device->error;
  weir_cu_result r = check_captured(soft, e, true);
  if (r || (r = weir__soft_unsafe(soft)))
    return r;
  return is_done(e) ? WEIR_CU_SUCCESS : WEIR_CU_NOT_READY;
}

weir_cu_result weir__soft_EventSynchronize(struct soft *soft, weir_cu_event event) {
  struct soft_event *e = event_get(soft, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  if (e->device->error)
    return e->device->error;
  weir_cu_result r = check_captured(soft, e, true);
  if (r || (r = weir__soft_unsafe(soft)))
    return r;
  if (!is_theirs(e))
    return weir__soft_wait_signal(soft, e->signal);
  /* The other process does not wake us: look again and again. */
  struct soft_shared_event *shared = e->shared;
  uint64_t count = atomic_load(&shared->page->recorded);
  shared->refs++;
  while (!weir__soft_shared_event_done(shared, count)) {
    struct timespec pause = {0, 50000};
    pthread_mutex_unlock(&soft->lock);
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&soft->lock);
  }
  weir__soft_shared_event_unref(shared);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_EventElapsedTime(struct soft *soft, float *milliseconds, weir_cu_event start,
                                           weir_cu_event end) {
  struct soft_event *a = event_get(soft, start), *b = event_get(soft, end);
  if (!a || !b)
    return WEIR_CU_INVALID_HANDLE;
  if (a->device->error || b->device->error)
    return a->device->error ? a->device->error : b->device->error;
  weir_cu_result r = check_captured(soft, a, false);
  if (r || (r = check_captured(soft, b, false)))
    return r;
  if (!a->signal || !b->signal || (a->flags | b->flags) & WEIR_CU_EVENT_DISABLE_TIMING || a->device != b->device)
    return WEIR_CU_INVALID_HANDLE;
  if (!milliseconds)
    return WEIR_CU_INVALID_HANDLE; /* so says NVIDIA's driver */
  if (!a->signal->done || !b->signal->done)
    return WEIR_CU_NOT_READY;
  *milliseconds = (float)((double)(int64_t)(b->signal->time_ns - a->signal->time_ns) / 1e6);
  return WEIR_CU_SUCCESS;
}

/* ---- Waiting in a stream ---- */

static weir_cu_result add_tips(struct soft_stream *stream, struct soft_node *const *tips, size_t count) {
  struct soft_node **all = realloc(stream->tips, (stream->tip_count + count + 1) * sizeof *all);
  if (!all)
    return WEIR_CU_OUT_OF_MEMORY;
  stream->tips = all;
  for (size_t i = 0; i < count; i++) {
    size_t k = 0;
    while (k < stream->tip_count && all[k] != tips[i])
      k++;
    if (k == stream->tip_count)
      all[stream->tip_count++] = tips[i];
  }
  return WEIR_CU_SUCCESS;
}

/* The event was recorded in a capture: the stream joins it, or depends on more of it. */
static weir_cu_result wait_for_captured(struct soft *soft, struct soft_stream *stream, const struct soft_event *event) {
  struct soft_capture *capture = capture_by_id(soft, event->capture_id);
  if (!capture)
    return WEIR_CU_INVALID_VALUE;
  if (stream->is_legacy) {
    weir__soft_invalidate(capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture && stream->capture != capture) {
    weir__soft_invalidate(stream->capture);
    weir__soft_invalidate(capture);
    return WEIR_CU_STREAM_CAPTURE_MERGE;
  }
  if (capture->status == WEIR_CU_CAPTURE_STATUS_INVALIDATED)
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = add_tips(stream, event->tips, event->tip_count);
  if (!r)
    stream->capture = capture;
  return r;
}

static weir_cu_result wait_for_theirs(struct soft *soft, struct soft_stream *stream, struct soft_event *event) {
  uint64_t count = atomic_load(&event->shared->page->recorded);
  if (weir__soft_shared_event_done(event->shared, count))
    return WEIR_CU_SUCCESS;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_WAIT_SHARED);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->shared = event->shared;
  work->shared->refs++;
  work->shared_count = count;
  return weir__soft_enqueue(soft, stream, work);
}

weir_cu_result weir__soft_StreamWaitEvent(struct soft *soft, weir_cu_stream stream, weir_cu_event event,
                                          unsigned flags) {
  struct soft_event *e = event_get(soft, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (flags)
    return WEIR_CU_INVALID_VALUE;
  if (e->capture_id)
    return wait_for_captured(soft, s, e);
  if (s->capture) {
    if (!e->signal && !is_theirs(e))
      return WEIR_CU_SUCCESS;
    weir__soft_invalidate(s->capture);
    return WEIR_CU_STREAM_CAPTURE_ISOLATION;
  }
  if (s->is_legacy && (r = weir__soft_implicit(soft, s->device)))
    return r;
  return is_theirs(e) ? wait_for_theirs(soft, s, e) : weir__soft_enqueue_wait(soft, s, e->signal);
}

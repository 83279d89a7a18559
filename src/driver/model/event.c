/*
 * Events. An event that was recorded in a capture marks a place in a graph, not a time.
 */
#include "driver/model/model.h"

weir_cu_result weir__model_EventCreate(model *m, weir_cu_event *event, unsigned flags) {
  const unsigned allowed = WEIR_CU_EVENT_BLOCKING_SYNC | WEIR_CU_EVENT_DISABLE_TIMING | WEIR_CU_EVENT_INTERPROCESS;
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  bool timed_interprocess = flags & WEIR_CU_EVENT_INTERPROCESS && !(flags & WEIR_CU_EVENT_DISABLE_TIMING);
  if (!event || flags & ~allowed || timed_interprocess)
    return WEIR_CU_INVALID_VALUE;
  model_event *e = weir__handles_make(&m->events);
  if (!e)
    return WEIR_CU_OUT_OF_MEMORY;
  e->device = device;
  e->flags = flags;
  if (m->hooks->new_event && (r = m->hooks->new_event(m, e))) {
    weir__handles_drop(&m->events, e);
    return r;
  }
  *event = (weir_cu_event)(uintptr_t)weir__handle_of(&m->events, e);
  return WEIR_CU_SUCCESS;
}

void weir__model_drop_event(model *m, model_event *event) {
  if (m->hooks->end_event)
    m->hooks->end_event(m, event);
  weir__model_nodes_free(&event->at);
  weir__handles_drop(&m->events, event);
}

weir_cu_result weir__model_EventDestroy(model *m, weir_cu_event event) {
  model_event *e = weir__model_event(m, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = e->device->error;
  weir__model_drop_event(m, e);
  return r;
}

static weir_cu_result record_in_capture(model *m, model_event *event, const model_stream *stream) {
  if (stream->capture->invalid)
    return WEIR_CU_STREAM_CAPTURE_INVALIDATED;
  if (!weir__model_nodes_copy(&event->at, &stream->at))
    return WEIR_CU_OUT_OF_MEMORY;
  if (m->hooks->forget_record)
    m->hooks->forget_record(event);
  event->capture = stream->capture->id;
  event->recorded = false;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result record_now(model *m, model_event *event, model_stream *stream, weir_cu_stream handle) {
  weir_cu_result r = m->hooks->record(m, event, stream, handle);
  if (r)
    return r;
  event->capture = 0;
  event->recorded = true;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_EventRecord(model *m, weir_cu_event event, weir_cu_stream stream) {
  model_event *e = weir__model_event(m, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (s->device != e->device)
    return WEIR_CU_INVALID_HANDLE;
  if (s->capture)
    return record_in_capture(m, e, s);
  r = weir__model_implicit(m, s);
  return r ? r : record_now(m, e, s, stream);
}

/* An external record or wait becomes a node of the graph, and the event stays outside of the capture. */
static weir_cu_result add_external(model *m, model_stream *stream, model_work_kind kind, weir_cu_event event) {
  if (!stream->capture)
    return WEIR_CU_INVALID_VALUE;
  return weir__model_submit(m, stream, &(model_work){.kind = kind, .as.event = event});
}

weir_cu_result weir__model_EventRecordWithFlags(model *m, weir_cu_event event, weir_cu_stream stream, unsigned flags) {
  if (!flags)
    return weir__model_EventRecord(m, event, stream);
  const model_event *e = weir__model_event(m, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (s->device != e->device)
    return WEIR_CU_INVALID_HANDLE;
  if (flags != WEIR_CU_EVENT_RECORD_EXTERNAL)
    return WEIR_CU_INVALID_VALUE;
  return add_external(m, s, MODEL_WORK_RECORD, event);
}

weir_cu_result weir__model_launch_event(model *m, const model_work *work, model_stream *stream) {
  model_event *e = weir__model_event(m, work->as.event);
  if (work->kind == MODEL_WORK_RECORD)
    return record_now(m, e, stream, NULL);
  return m->hooks->stream_wait && !e->capture ? m->hooks->stream_wait(m, stream, e) : WEIR_CU_SUCCESS;
}

/* What query, synchronize and elapsed refuse of an event that was last recorded in a capture. */
static weir_cu_result check_captured(const model *m, const model_event *event, bool invalidate) {
  if (!event->capture)
    return WEIR_CU_SUCCESS;
  model_capture *capture = weir__model_capture(m, event->capture);
  if (!capture)
    return WEIR_CU_INVALID_VALUE;
  capture->invalid |= invalidate;
  return WEIR_CU_CAPTURED_EVENT;
}

static weir_cu_result enter(model *m, weir_cu_event event, model_event **e) {
  *e = weir__model_event(m, event);
  if (!*e)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = (*e)->device->error;
  if (r || (r = check_captured(m, *e, true)))
    return r;
  return weir__model_unsafe(m);
}

weir_cu_result weir__model_EventQuery(model *m, weir_cu_event event) {
  model_event *e;
  weir_cu_result r = enter(m, event, &e);
  return r ? r : m->hooks->query(m, e);
}

weir_cu_result weir__model_EventSynchronize(model *m, weir_cu_event event) {
  model_event *e;
  weir_cu_result r = enter(m, event, &e);
  return r ? r : m->hooks->wait_event(m, e);
}

weir_cu_result weir__model_EventElapsedTime(model *m, float *milliseconds, weir_cu_event start, weir_cu_event end) {
  model_event *a = weir__model_event(m, start), *b = weir__model_event(m, end);
  if (!a || !b)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = a->device->error ? a->device->error : b->device->error;
  if (r || (r = check_captured(m, a, false)) || (r = check_captured(m, b, false)))
    return r;
  bool untimed = (a->flags | b->flags) & WEIR_CU_EVENT_DISABLE_TIMING;
  if (!milliseconds || untimed || !a->recorded || !b->recorded || a->device != b->device)
    return WEIR_CU_INVALID_HANDLE; /* of `milliseconds` too: so says NVIDIA's driver */
  return m->hooks->elapsed(m, a, b, milliseconds);
}

weir_cu_result weir__model_StreamWaitEvent(model *m, weir_cu_stream stream, weir_cu_event event, unsigned flags) {
  model_event *e = weir__model_event(m, event);
  if (!e)
    return WEIR_CU_INVALID_HANDLE;
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (flags)
    return flags == WEIR_CU_EVENT_WAIT_EXTERNAL ? add_external(m, s, MODEL_WORK_WAIT, event) : WEIR_CU_INVALID_VALUE;
  if (e->capture) {
    model_capture *capture = weir__model_capture(m, e->capture);
    return capture ? weir__model_join(capture, s, &e->at) : WEIR_CU_INVALID_VALUE;
  }
  if (s->capture) {
    if (!(m->hooks->was_recorded ? m->hooks->was_recorded(e) : e->recorded))
      return WEIR_CU_SUCCESS;
    s->capture->invalid = true;
    return WEIR_CU_STREAM_CAPTURE_ISOLATION;
  }
  r = weir__model_implicit(m, s);
  return r || !m->hooks->stream_wait ? r : m->hooks->stream_wait(m, s, e);
}

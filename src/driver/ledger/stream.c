/*
 * Streams, events, copies and fills. Work is done the moment it is enqueued, so a stream is never busy and an event
 * that was recorded has happened. The clock counts pieces of work: each takes a microsecond of the ledger's time.
 *
 * With options.is_done there are also the streams of a recorded history, known by the handles that they had. Each
 * stands for the legacy stream, but how far it got is the owner's to say.
 */
#include "driver/ledger/ledger.h"

weir_cu_result weir__ledger_stream(ledger *l, weir_cu_stream handle, ledger_stream **stream) {
  if (handle == NULL || handle == WEIR_CU_STREAM_LEGACY || handle == WEIR_CU_STREAM_PER_THREAD) {
    ledger_device *device;
    weir_cu_result result = weir__ledger_context(l, &device);
    if (result != WEIR_CU_SUCCESS)
      return result;
    *stream = handle == WEIR_CU_STREAM_PER_THREAD ? &device->per_thread : &device->legacy;
    return WEIR_CU_SUCCESS;
  }
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (l->options.is_done != NULL && !weir__handles_made(&l->streams, (uintptr_t)handle))
    return weir__ledger_stream(l, WEIR_CU_STREAM_LEGACY, stream);
  *stream = weir__handles_get(&l->streams, (uintptr_t)handle);
  return *stream != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_HANDLE;
}

static weir_cu_result find_event(const ledger *l, weir_cu_event handle, ledger_event **event) {
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  *event = weir__handles_get(&l->events, (uintptr_t)handle);
  return *event != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_HANDLE;
}

/* A stream that goes takes its capture with it, when the capture is its own. */
static void drop_stream(ledger *l, ledger_stream *stream) {
  ledger_capture *capture = stream->capture;
  if (capture != NULL && capture->origin == stream) {
    weir__ledger_abandon(l, capture);
  } else if (capture != NULL) {
    weir__ledger_invalidate(capture);
    ledger_stream **link = &capture->members;
    while (*link != stream)
      link = &(*link)->member_next;
    *link = stream->member_next;
  }
  weir__ledger_nodes_free(&stream->at);
  weir__handles_drop(&l->streams, stream);
}

static void drop_event(ledger *l, ledger_event *event) {
  weir__ledger_nodes_free(&event->at);
  weir__handles_drop(&l->events, event);
}

void weir__ledger_drop_context_streams(ledger *l, ledger_device *device) {
  if (device->per_thread.capture != NULL)
    weir__ledger_abandon(l, device->per_thread.capture);
  uint32_t index = 0;
  ledger_stream *stream;
  while ((stream = weir__handles_next(&l->streams, &index)) != NULL)
    if (stream->device == device)
      drop_stream(l, stream);
  index = 0;
  ledger_event *event;
  while ((event = weir__handles_next(&l->events, &index)) != NULL)
    if (event->device == device)
      drop_event(l, event);
}

/* ---- Streams ---- */

static weir_cu_result StreamCreateWithPriority(weir_driver *self, weir_cu_stream *stream, unsigned flags,
                                               int priority) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (stream == NULL || (flags & ~(unsigned)WEIR_CU_STREAM_NON_BLOCKING) != 0)
    return WEIR_CU_INVALID_VALUE;
  ledger_stream *s = weir__handles_make(&l->streams);
  if (s == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  if (priority > LEDGER_LEAST_PRIORITY)
    priority = LEDGER_LEAST_PRIORITY;
  if (priority < LEDGER_GREATEST_PRIORITY)
    priority = LEDGER_GREATEST_PRIORITY;
  s->device = device;
  s->flags = flags;
  s->priority = priority;
  *stream = (weir_cu_stream)(uintptr_t)weir__handle_of(&l->streams, s);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result StreamDestroy(weir_driver *self, weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_stream *s = weir__handles_get(&l->streams, (uintptr_t)stream);
  if (s == NULL)
    return WEIR_CU_INVALID_HANDLE;
  drop_stream(l, s);
  return WEIR_CU_SUCCESS;
}

/* For the calls that ask or wait for a stream's work. */
static weir_cu_result settle_stream(ledger *l, weir_cu_stream stream) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_may_not_capture(l, s);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  return result;
}

static weir_cu_result StreamQuery(weir_driver *self, weir_cu_stream stream) {
  return settle_stream(weir__ledger_of(self), stream);
}

static weir_cu_result StreamSynchronize(weir_driver *self, weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  weir_cu_result result = settle_stream(l, stream);
  if (result == WEIR_CU_SUCCESS)
    weir__ledger_settle_pools(l);
  return result;
}

static weir_cu_result LaunchHostFunc(weir_driver *self, weir_cu_stream stream, weir_cu_host_fn fn, void *data) {
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (fn == NULL)
    return WEIR_CU_INVALID_VALUE;
  return weir__ledger_enqueue(l, s, LEDGER_NODE_HOST, fn, data);
}

static weir_cu_result StreamGetPriority(weir_driver *self, weir_cu_stream stream, int *priority) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(weir__ledger_of(self), stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (priority == NULL)
    return WEIR_CU_INVALID_VALUE;
  *priority = s->priority;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result StreamGetFlags(weir_driver *self, weir_cu_stream stream, unsigned *flags) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(weir__ledger_of(self), stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (flags == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (s->capture != NULL) { /* odd, but so is NVIDIA's driver 580 */
    weir__ledger_invalidate(s->capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  *flags = s->flags;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result StreamGetCtx(weir_driver *self, weir_cu_stream stream, weir_cu_context *context) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(weir__ledger_of(self), stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (context == NULL)
    return WEIR_CU_INVALID_VALUE;
  *context = weir__ledger_context_handle(s->device);
  return WEIR_CU_SUCCESS;
}

/* ---- Events ---- */

static weir_cu_result EventCreate(weir_driver *self, weir_cu_event *event, unsigned flags) {
  const unsigned allowed = WEIR_CU_EVENT_BLOCKING_SYNC | WEIR_CU_EVENT_DISABLE_TIMING | WEIR_CU_EVENT_INTERPROCESS;
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  bool timed_interprocess = (flags & WEIR_CU_EVENT_INTERPROCESS) != 0 && (flags & WEIR_CU_EVENT_DISABLE_TIMING) == 0;
  if (event == NULL || (flags & ~allowed) != 0 || timed_interprocess)
    return WEIR_CU_INVALID_VALUE;
  ledger_event *e = weir__handles_make(&l->events);
  if (e == NULL)
    return WEIR_CU_OUT_OF_MEMORY;
  e->device = device;
  e->flags = flags;
  *event = (weir_cu_event)(uintptr_t)weir__handle_of(&l->events, e);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result EventRecord(weir_driver *self, weir_cu_event event, weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  ledger_event *e;
  ledger_stream *s;
  weir_cu_result result = find_event(l, event, &e);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (e->device != s->device)
    return WEIR_CU_INVALID_HANDLE;
  result = weir__ledger_may_enqueue(l, s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (s->capture != NULL) {
    if (!weir__ledger_nodes_copy(&e->at, &s->at))
      return WEIR_CU_OUT_OF_MEMORY;
    e->capture = s->capture->id;
  } else {
    e->capture = 0;
  }
  e->recorded = true;
  e->tick = l->clock;
  e->foreign = s->legacy && stream != WEIR_CU_STREAM_LEGACY ? stream : NULL;
  return WEIR_CU_SUCCESS;
}

/* An event that was recorded in a capture marks a place in a graph, not a time. */
static weir_cu_result outside_of_capture(const ledger *l, const ledger_event *event) {
  if (event->capture == 0)
    return WEIR_CU_SUCCESS;
  return weir__ledger_capture(l, event->capture) != NULL ? WEIR_CU_CAPTURED_EVENT : WEIR_CU_INVALID_VALUE;
}

static weir_cu_result settle_event(ledger *l, weir_cu_event event, ledger_event **e) {
  weir_cu_result result = find_event(l, event, e);
  if (result == WEIR_CU_SUCCESS)
    result = outside_of_capture(l, *e);
  if (result == WEIR_CU_CAPTURED_EVENT)
    weir__ledger_invalidate(weir__ledger_capture(l, (*e)->capture));
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  return result;
}

/* Of a stream that was not made here, only the owner of the ledger knows how far it got. What was done once stays so,
 * whatever the stream does next. */
static bool is_done(const ledger *l, ledger_event *event) {
  if (event->foreign != NULL && l->options.is_done(l->options.is_done_context, event->foreign))
    event->foreign = NULL;
  return event->foreign == NULL;
}

static weir_cu_result EventQuery(weir_driver *self, weir_cu_event event) {
  ledger *l = weir__ledger_of(self);
  ledger_event *e;
  weir_cu_result result = settle_event(l, event, &e);
  return result == WEIR_CU_SUCCESS && !is_done(l, e) ? WEIR_CU_NOT_READY : result;
}

static weir_cu_result EventSynchronize(weir_driver *self, weir_cu_event event) {
  ledger *l = weir__ledger_of(self);
  ledger_event *e;
  weir_cu_result result = settle_event(l, event, &e);
  if (result != WEIR_CU_SUCCESS)
    return result;
  e->foreign = NULL; /* it was waited for */
  weir__ledger_settle_pools(l);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result EventElapsedTime(weir_driver *self, float *milliseconds, weir_cu_event start, weir_cu_event end) {
  const ledger *l = weir__ledger_of(self);
  ledger_event *a, *b;
  weir_cu_result result = find_event(l, start, &a);
  if (result == WEIR_CU_SUCCESS)
    result = find_event(l, end, &b);
  if (result == WEIR_CU_SUCCESS)
    result = outside_of_capture(l, a);
  if (result == WEIR_CU_SUCCESS)
    result = outside_of_capture(l, b);
  if (result != WEIR_CU_SUCCESS)
    return result;
  bool untimed = ((a->flags | b->flags) & WEIR_CU_EVENT_DISABLE_TIMING) != 0;
  if (milliseconds == NULL || untimed || !a->recorded || !b->recorded || a->device != b->device)
    return WEIR_CU_INVALID_HANDLE;
  if (!is_done(l, a) || !is_done(l, b))
    return WEIR_CU_NOT_READY;
  *milliseconds = (float)((double)(int64_t)(b->tick - a->tick) / 1000.0);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result EventDestroy(weir_driver *self, weir_cu_event event) {
  ledger *l = weir__ledger_of(self);
  ledger_event *e;
  weir_cu_result result = find_event(l, event, &e);
  if (result == WEIR_CU_SUCCESS)
    drop_event(l, e);
  return result;
}

static weir_cu_result StreamWaitEvent(weir_driver *self, weir_cu_stream stream, weir_cu_event event, unsigned flags) {
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  ledger_event *e;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result == WEIR_CU_SUCCESS)
    result = find_event(l, event, &e);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (flags != 0)
    return WEIR_CU_INVALID_VALUE;
  if (e->capture != 0) {
    ledger_capture *capture = weir__ledger_capture(l, e->capture);
    return capture != NULL ? weir__ledger_join(capture, s, &e->at) : WEIR_CU_INVALID_VALUE;
  }
  result = weir__ledger_may_enqueue(l, s);
  if (result != WEIR_CU_SUCCESS || !e->recorded)
    return result;
  if (s->capture != NULL) {
    weir__ledger_invalidate(s->capture);
    return WEIR_CU_STREAM_CAPTURE_ISOLATION;
  }
  return WEIR_CU_SUCCESS;
}

/* ---- Copies and fills ---- */

static weir_cu_result copy(ledger *l, ledger_stream *stream, weir_cu_deviceptr to, weir_cu_deviceptr from,
                           size_t bytes) {
  if (bytes == 0)
    return weir__ledger_may_enqueue(l, stream);
  if (!weir__ledger_reachable(l, stream->device, from, bytes, false, true) ||
      !weir__ledger_reachable(l, stream->device, to, bytes, true, true))
    return WEIR_CU_INVALID_VALUE;
  return weir__ledger_enqueue(l, stream, LEDGER_NODE_COPY, NULL, NULL);
}

static weir_cu_result Memcpy(weir_driver *self, weir_cu_deviceptr to, weir_cu_deviceptr from, size_t bytes) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  return result == WEIR_CU_SUCCESS ? copy(l, &device->legacy, to, from, bytes) : result;
}

static weir_cu_result MemcpyAsync(weir_driver *self, weir_cu_deviceptr to, weir_cu_deviceptr from, size_t bytes,
                                  weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  return result == WEIR_CU_SUCCESS ? copy(l, s, to, from, bytes) : result;
}

/* Whether a device can reach a range is asked of the device whose memory it is. */
static weir_cu_result MemcpyPeerAsync(weir_driver *self, weir_cu_deviceptr to, weir_cu_context to_context,
                                      weir_cu_deviceptr from, weir_cu_context from_context, size_t bytes,
                                      weir_cu_stream stream) {
  ledger *l = weir__ledger_of(self);
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  const ledger_device *target = weir__ledger_device_of(l, to_context);
  const ledger_device *source = weir__ledger_device_of(l, from_context);
  if (target == NULL || source == NULL)
    return WEIR_CU_INVALID_CONTEXT;
  result = weir__ledger_may_not_capture(l, s);
  if (result != WEIR_CU_SUCCESS || bytes == 0)
    return result;
  if (!weir__ledger_reachable(l, source, from, bytes, false, false) ||
      !weir__ledger_reachable(l, target, to, bytes, true, false))
    return WEIR_CU_INVALID_VALUE;
  return weir__ledger_enqueue(l, s, LEDGER_NODE_COPY, NULL, NULL);
}

static weir_cu_result fill(ledger *l, weir_cu_deviceptr to, size_t bytes, weir_cu_stream stream) {
  ledger_stream *s;
  weir_cu_result result = weir__ledger_stream(l, stream, &s);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (bytes == 0)
    return weir__ledger_may_enqueue(l, s);
  /* A captured fill takes the address as it is, as NVIDIA's driver does: something may be there at the launch. */
  if (s->capture == NULL && !weir__ledger_reachable(l, s->device, to, bytes, true, false))
    return WEIR_CU_INVALID_VALUE;
  return weir__ledger_enqueue(l, s, LEDGER_NODE_FILL, NULL, NULL);
}

static weir_cu_result MemsetD8Async(weir_driver *self, weir_cu_deviceptr to, unsigned char value, size_t count,
                                    weir_cu_stream stream) {
  (void)value;
  return fill(weir__ledger_of(self), to, count, stream);
}

static weir_cu_result MemsetD32Async(weir_driver *self, weir_cu_deviceptr to, unsigned value, size_t count,
                                     weir_cu_stream stream) {
  (void)value;
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (to % 4 != 0 || count > SIZE_MAX / 4)
    return WEIR_CU_INVALID_VALUE;
  return fill(l, to, count * 4, stream);
}

void weir__ledger_add_streams(weir_driver *table) {
  table->StreamCreateWithPriority = StreamCreateWithPriority;
  table->StreamDestroy = StreamDestroy;
  table->StreamQuery = StreamQuery;
  table->StreamSynchronize = StreamSynchronize;
  table->StreamWaitEvent = StreamWaitEvent;
  table->LaunchHostFunc = LaunchHostFunc;
  table->StreamGetPriority = StreamGetPriority;
  table->StreamGetFlags = StreamGetFlags;
  table->StreamGetCtx = StreamGetCtx;
  table->EventCreate = EventCreate;
  table->EventRecord = EventRecord;
  table->EventQuery = EventQuery;
  table->EventSynchronize = EventSynchronize;
  table->EventElapsedTime = EventElapsedTime;
  table->EventDestroy = EventDestroy;
  table->Memcpy = Memcpy;
  table->MemcpyAsync = MemcpyAsync;
  table->MemcpyPeerAsync = MemcpyPeerAsync;
  table->MemsetD8Async = MemsetD8Async;
  table->MemsetD32Async = MemsetD32Async;
}

/*
 * Streams, and the calls that put work into them.
 */
#include "driver/model/model.h"

/* The thread's own default stream on a device. It waits for the legacy stream, and the other way round. */
static model_stream *per_thread(model *m, model_device *device) {
  weir_cu_stream *handle = &m->thread->streams[device->ordinal];
  model_stream *stream = weir__handles_get(&m->streams, (uintptr_t)*handle);
  if (!stream && (stream = weir__model_new_stream(m, device, WEIR_CU_STREAM_DEFAULT, 0))) {
    stream->is_default = true;
    *handle = weir__model_stream_handle(m, stream);
  }
  return stream;
}

static weir_cu_result default_stream(model *m, bool legacy, model_stream **stream) {
  model_device *device = NULL;
  weir_cu_result r = weir__model_context(m, &device);
  if (!device)
    return r;
  *stream = legacy ? device->legacy : per_thread(m, device);
  return *stream ? r : WEIR_CU_OUT_OF_MEMORY;
}

static model_stream *made_stream(const model *m, weir_cu_stream handle) {
  model_stream *stream = weir__handles_get(&m->streams, (uintptr_t)handle);
  return stream && !stream->dropped && !stream->is_default ? stream : NULL;
}

weir_cu_result weir__model_stream(model *m, weir_cu_stream handle, model_stream **stream) {
  if (!handle || handle == WEIR_CU_STREAM_LEGACY || handle == WEIR_CU_STREAM_PER_THREAD)
    return default_stream(m, handle != WEIR_CU_STREAM_PER_THREAD, stream);
  if (m->takes_foreign && !weir__handles_made(&m->streams, (uintptr_t)handle))
    return default_stream(m, true, stream);
  model_stream *found = made_stream(m, handle);
  if (!found)
    return WEIR_CU_INVALID_HANDLE;
  *stream = found;
  return found->device->error;
}

model_stream *weir__model_new_stream(model *m, model_device *device, unsigned flags, int priority) {
  model_stream *stream = weir__handles_make(&m->streams);
  if (!stream)
    return NULL;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority < MODEL_GREATEST_PRIORITY ? MODEL_GREATEST_PRIORITY
                     : priority > MODEL_LOWEST_PRIORITY ? MODEL_LOWEST_PRIORITY
                                                        : priority;
  if (m->hooks->new_stream)
    m->hooks->new_stream(m, stream);
  return stream;
}

void weir__model_drop_stream(model *m, model_stream *stream) {
  model_capture *capture = stream->capture;
  if (capture && capture->origin == stream)
    weir__model_abandon(m, capture);
  else if (capture) {
    capture->invalid = true;
    model_stream **link = &capture->members;
    while (*link != stream)
      link = &(*link)->member_next;
    *link = stream->member_next;
    stream->capture = NULL;
  }
  stream->dropped = true;
  if (m->hooks->drop_stream)
    m->hooks->drop_stream(m, stream);
  else
    weir__model_free_stream(m, stream);
}

void weir__model_free_stream(model *m, model_stream *stream) {
  weir__model_nodes_free(&stream->at);
  weir__handles_drop(&m->streams, stream);
}

weir_cu_result weir__model_StreamCreateWithPriority(model *m, weir_cu_stream *stream, unsigned flags, int priority) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (!stream || flags & ~(unsigned)WEIR_CU_STREAM_NON_BLOCKING)
    return WEIR_CU_INVALID_VALUE;
  const model_stream *s = weir__model_new_stream(m, device, flags, priority);
  if (!s)
    return WEIR_CU_OUT_OF_MEMORY;
  *stream = weir__model_stream_handle(m, s);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_StreamDestroy(model *m, weir_cu_stream stream) {
  model_stream *s = made_stream(m, stream);
  if (!s)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = s->device->error;
  weir__model_drop_stream(m, s);
  return r;
}

/* For the calls that ask or wait for a stream's work. */
static weir_cu_result enter_wait(model *m, weir_cu_stream stream, model_stream **s) {
  weir_cu_result r = weir__model_stream(m, stream, s);
  if (r || (r = weir__model_refuse_capture(m, *s)) || (r = weir__model_unsafe(m)))
    return r;
  return weir__model_implicit(m, *s);
}

weir_cu_result weir__model_StreamQuery(model *m, weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = enter_wait(m, stream, &s);
  return r || !m->hooks->is_busy || !m->hooks->is_busy(m, s) ? r : WEIR_CU_NOT_READY;
}

weir_cu_result weir__model_StreamSynchronize(model *m, weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = enter_wait(m, stream, &s);
  return r ? r : m->hooks->wait_stream(m, s);
}

/* For the calls that tell something about a stream. */
static weir_cu_result enter_tell(model *m, weir_cu_stream stream, const void *output, model_stream **s) {
  weir_cu_result r = weir__model_stream(m, stream, s);
  return r || output ? r : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__model_StreamGetPriority(model *m, weir_cu_stream stream, int *priority) {
  model_stream *s;
  weir_cu_result r = enter_tell(m, stream, priority, &s);
  if (!r)
    *priority = s->priority;
  return r;
}

/* That a capturing stream refuses is odd, but so does NVIDIA's driver 580. */
weir_cu_result weir__model_StreamGetFlags(model *m, weir_cu_stream stream, unsigned *flags) {
  model_stream *s;
  weir_cu_result r = enter_tell(m, stream, flags, &s);
  if (!r && !(r = weir__model_refuse_capture(m, s)))
    *flags = s->flags;
  return r;
}

weir_cu_result weir__model_StreamGetCtx(model *m, weir_cu_stream stream, weir_cu_context *context) {
  model_stream *s;
  weir_cu_result r = enter_tell(m, stream, context, &s);
  if (!r)
    *context = weir__model_context_of(m, s->device);
  return r;
}

weir_cu_result weir__model_LaunchHostFunc(model *m, weir_cu_stream stream, weir_cu_host_fn fn, void *data) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (!fn)
    return WEIR_CU_INVALID_VALUE;
  model_work work = {.kind = MODEL_WORK_HOST, .as.host = {fn, data}};
  return weir__model_submit(m, s, &work);
}

/* ---- Copies and fills ---- */

/* Pageable memory is read before the call returns, so that the caller may write to it again; a copy back to it is
 * waited for, so that the caller may read it, as is every copy with `wait`. In a capture neither is possible, and the
 * addresses are taken as they are. */
static weir_cu_result copy(model *m, model_stream *stream, uint64_t to, uint64_t from, uint64_t bytes, bool wait) {
  model_range *target, *source;
  if (!bytes) {
    weir_cu_result r = weir__model_implicit(m, stream);
    return !r && wait ? m->hooks->wait_stream(m, stream) : r;
  }
  weir_cu_result r = weir__model_check(m, stream->device, to, bytes, true, &target);
  if (!r)
    r = weir__model_check(m, stream->device, from, bytes, false, &source);
  if (r)
    return r;
  model_work work = {.kind = MODEL_WORK_COPY, .as.copy = {to, from, bytes, NULL}};
  bool now = !stream->capture;
  if (now && !source && m->hooks->stage && (r = m->hooks->stage(&work)))
    return r;
  r = weir__model_submit(m, stream, &work);
  return !r && (wait || (now && !target)) ? m->hooks->wait_stream(m, stream) : r;
}

weir_cu_result weir__model_Memcpy(model *m, weir_cu_deviceptr to, weir_cu_deviceptr from, uint64_t bytes) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, NULL, &s);
  return r ? r : copy(m, s, to, from, bytes, true);
}

weir_cu_result weir__model_MemcpyAsync(model *m, weir_cu_deviceptr to, weir_cu_deviceptr from, uint64_t bytes,
                                       weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  return r ? r : copy(m, s, to, from, bytes, false);
}

/* The memory of a context, checked for its own device: that is what the peer variant is for. */
static weir_cu_result check_peer(const model *m, const model_device *device, uint64_t address, uint64_t bytes,
                                 bool write) {
  model_range *range;
  weir_cu_result r = weir__model_check(m, device, address, bytes, write, &range);
  return r || range ? r : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__model_MemcpyPeerAsync(model *m, weir_cu_deviceptr to, weir_cu_context to_context,
                                           weir_cu_deviceptr from, weir_cu_context from_context, uint64_t bytes,
                                           weir_cu_stream stream) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  const model_device *target = weir__model_device_of(m, to_context), *source = weir__model_device_of(m, from_context);
  if (!target || !source)
    return WEIR_CU_INVALID_CONTEXT;
  if ((r = weir__model_refuse_capture(m, s)) || !bytes || (r = check_peer(m, target, to, bytes, true)) ||
      (r = check_peer(m, source, from, bytes, false)))
    return r;
  model_work work = {.kind = MODEL_WORK_COPY, .as.copy = {to, from, bytes, NULL}};
  return weir__model_submit(m, s, &work);
}

static weir_cu_result fill(model *m, weir_cu_stream stream, uint64_t to, uint32_t value, unsigned width,
                           uint64_t count) {
  model_stream *s;
  weir_cu_result r = weir__model_stream(m, stream, &s);
  if (r)
    return r;
  if (!count)
    return weir__model_implicit(m, s);
  if (to % width || count > SIZE_MAX / width)
    return WEIR_CU_INVALID_VALUE;
  /* A capture takes any address: each launch looks whether memory is there. */
  if (!s->capture && (r = check_peer(m, s->device, to, count * width, true)))
    return r;
  model_work work = {.kind = MODEL_WORK_FILL, .as.fill = {to, count, value, width}};
  return weir__model_submit(m, s, &work);
}

weir_cu_result weir__model_MemsetD8Async(model *m, weir_cu_deviceptr to, unsigned char value, uint64_t count,
                                         weir_cu_stream stream) {
  return fill(m, stream, to, value, 1, count);
}

weir_cu_result weir__model_MemsetD32Async(model *m, weir_cu_deviceptr to, unsigned value, uint64_t count,
                                          weir_cu_stream stream) {
  return fill(m, stream, to, value, 4, count);
}

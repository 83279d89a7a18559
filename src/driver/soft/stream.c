/*
 * Streams, and the calls that put work into them.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/soft/soft.h"

/* The thread's own default stream on a device. It waits for the legacy stream, and the other way round. */
static struct soft_stream *per_thread(struct soft *soft, struct soft_device *device) {
  struct soft_stream **stream = &weir__soft_thread(soft)->streams[device->ordinal];
  if (!*stream)
    *stream = weir__soft_stream_new(soft, device, WEIR_CU_STREAM_DEFAULT, 0);
  return *stream;
}

weir_cu_result weir__soft_stream_get(struct soft *soft, weir_cu_stream handle, struct soft_stream **stream) {
  struct soft_device *device = NULL;
  if (!weir__soft_thread(soft))
    return WEIR_CU_OUT_OF_MEMORY;
  if (handle && handle != WEIR_CU_STREAM_LEGACY && handle != WEIR_CU_STREAM_PER_THREAD) {
    struct soft_stream *s = weir__soft_handle_get(soft, SOFT_STREAM, (uintptr_t)handle);
    if (!s)
      return WEIR_CU_INVALID_HANDLE;
    *stream = s;
    return s->device->error;
  }
  weir_cu_result r = weir__soft_current(soft, &device);
  if (!device)
    return r ? r : WEIR_CU_INVALID_CONTEXT;
  *stream = handle == WEIR_CU_STREAM_PER_THREAD ? per_thread(soft, device) : device->legacy;
  return *stream ? r : WEIR_CU_OUT_OF_MEMORY;
}

weir_cu_result weir__soft_StreamCreateWithPriority(struct soft *soft, weir_cu_stream *stream, unsigned flags,
                                                   int priority) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  if (!stream || flags & ~(unsigned)WEIR_CU_STREAM_NON_BLOCKING)
    return WEIR_CU_INVALID_VALUE;
  struct soft_stream *s = weir__soft_stream_new(soft, device, flags, priority);
  if (!s)
    return WEIR_CU_OUT_OF_MEMORY;
  s->handle = weir__soft_handle_new(soft, SOFT_STREAM, s);
  if (!s->handle) {
    weir__soft_stream_drop(soft, s);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *stream = (weir_cu_stream)s->handle;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_StreamDestroy(struct soft *soft, weir_cu_stream stream) {
  struct soft_stream *s = weir__soft_handle_get(soft, SOFT_STREAM, (uintptr_t)stream);
  if (!s)
    return WEIR_CU_INVALID_HANDLE;
  weir_cu_result r = s->device->error;
  weir__soft_stream_drop(soft, s);
  return r;
}

/* What query and synchronize refuse. */
static weir_cu_result check_host_wait(struct soft *soft, struct soft_stream *stream) {
  if (stream->capture) {
    weir__soft_invalidate(stream->capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  weir_cu_result r = weir__soft_unsafe(soft);
  if (!r && stream->is_legacy)
    r = weir__soft_implicit(soft, stream->device);
  return r;
}

weir_cu_result weir__soft_StreamQuery(struct soft *soft, weir_cu_stream stream) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r || (r = check_host_wait(soft, s)))
    return r;
  return weir__soft_is_busy(soft, s) ? WEIR_CU_NOT_READY : WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_StreamSynchronize(struct soft *soft, weir_cu_stream stream) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r || (r = check_host_wait(soft, s)))
    return r;
  return weir__soft_wait_stream(soft, s);
}

weir_cu_result weir__soft_StreamGetPriority(struct soft *soft, weir_cu_stream stream, int *priority) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!priority)
    return WEIR_CU_INVALID_VALUE;
  *priority = s->priority;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_StreamGetFlags(struct soft *soft, weir_cu_stream stream, unsigned *flags) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!flags)
    return WEIR_CU_INVALID_VALUE;
  if (s->capture) { /* odd, but so is NVIDIA's driver 580 */
    weir__soft_invalidate(s->capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  *flags = s->flags;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_StreamGetCtx(struct soft *soft, weir_cu_stream stream, weir_cu_context *context) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!context)
    return WEIR_CU_INVALID_VALUE;
  *context = (weir_cu_context)s->device->context;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_LaunchHostFunc(struct soft *soft, weir_cu_stream stream, weir_cu_host_fn fn, void *data) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!fn)
    return WEIR_CU_INVALID_VALUE;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_HOST);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->as.host.fn = fn;
  work->as.host.data = data;
  return weir__soft_submit(soft, s, work);
}

/* ---- Copies and fills ---- */

static bool is_pageable(const struct soft_range *range) { return !range; }

/* Pageable memory is read before the call returns, so that the caller may write to it again; a copy back to it is waited for,
 * so that the caller may read it, as is every copy with `wait`. In a capture neither is possible, and the addresses are taken
 * as they are. */
static weir_cu_result copy(struct soft *soft, struct soft_stream *stream, uint64_t to, uint64_t from, size_t bytes,
                           bool wait) {
  struct soft_range *target, *source;
  if (!bytes)
    return wait ? weir__soft_wait_stream(soft, stream) : WEIR_CU_SUCCESS;
  if (!to || !from)
    return WEIR_CU_INVALID_VALUE;
  weir_cu_result r = weir__soft_check(soft, stream->device, to, bytes, true, &target);
  if (!r)
    r = weir__soft_check(soft, stream->device, from, bytes, false, &source);
  if (r)
    return r;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_COPY);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->as.copy.to = to;
  work->as.copy.from = from;
  work->as.copy.bytes = bytes;
  if (!stream->capture && is_pageable(source)) {
    work->as.copy.staged = malloc(bytes);
    if (!work->as.copy.staged) {
      weir__soft_work_free(work);
      return WEIR_CU_OUT_OF_MEMORY;
    }
    memcpy(work->as.copy.staged, (const void *)from, bytes);
  }
  wait = wait || (!stream->capture && is_pageable(target));
  r = weir__soft_submit(soft, stream, work);
  return !r && wait ? weir__soft_wait_stream(soft, stream) : r;
}

weir_cu_result weir__soft_Memcpy(struct soft *soft, weir_cu_deviceptr to, weir_cu_deviceptr from, size_t bytes) {
  struct soft_stream *stream;
  weir_cu_result r = weir__soft_stream_get(soft, NULL, &stream);
  return r ? r : copy(soft, stream, to, from, bytes, true);
}

weir_cu_result weir__soft_MemcpyAsync(struct soft *soft, weir_cu_deviceptr to, weir_cu_deviceptr from, size_t bytes,
                                      weir_cu_stream stream) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  return r ? r : copy(soft, s, to, from, bytes, false);
}

weir_cu_result weir__soft_MemcpyPeerAsync(struct soft *soft, weir_cu_deviceptr to, weir_cu_context to_context,
                                          weir_cu_deviceptr from, weir_cu_context from_context, size_t bytes,
                                          weir_cu_stream stream) {
  struct soft_stream *s;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  const struct soft_device *to_device = weir__soft_handle_get(soft, SOFT_CONTEXT, (uintptr_t)to_context);
  const struct soft_device *from_device = weir__soft_handle_get(soft, SOFT_CONTEXT, (uintptr_t)from_context);
  if (!to_device || !from_device)
    return WEIR_CU_INVALID_CONTEXT;
  if (s->capture) {
    weir__soft_invalidate(s->capture);
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (!bytes)
    return WEIR_CU_SUCCESS;
  /* Each side is checked for its own device: that is what the peer variant is for. */
  struct soft_range *range;
  if (weir__soft_check(soft, to_device, to, bytes, true, &range) || !range)
    return WEIR_CU_INVALID_VALUE;
  if (weir__soft_check(soft, from_device, from, bytes, false, &range) || !range)
    return WEIR_CU_INVALID_VALUE;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_COPY);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->as.copy.to = to;
  work->as.copy.from = from;
  work->as.copy.bytes = bytes;
  return weir__soft_submit(soft, s, work);
}

static weir_cu_result fill(struct soft *soft, weir_cu_stream stream, uint64_t to, uint32_t value, unsigned width,
                           size_t count) {
  struct soft_stream *s;
  struct soft_range *range;
  weir_cu_result r = weir__soft_stream_get(soft, stream, &s);
  if (r)
    return r;
  if (!count)
    return WEIR_CU_SUCCESS;
  if (to % width || count > SIZE_MAX / width)
    return WEIR_CU_INVALID_VALUE;
  /* A capture takes any address: each launch looks whether memory is there. */
  if (!s->capture && (weir__soft_check(soft, s->device, to, count * width, true, &range) || !range))
    return WEIR_CU_INVALID_VALUE;
  struct soft_work *work = weir__soft_work_new(SOFT_WORK_FILL);
  if (!work)
    return WEIR_CU_OUT_OF_MEMORY;
  work->as.fill.to = to;
  work->as.fill.value = value;
  work->as.fill.width = width;
  work->as.fill.count = count;
  return weir__soft_submit(soft, s, work);
}

weir_cu_result weir__soft_MemsetD8Async(struct soft *soft, weir_cu_deviceptr to, unsigned char value, size_t count,
                                        weir_cu_stream stream) {
  return fill(soft, stream, to, value, 1, count);
}

weir_cu_result weir__soft_MemsetD32Async(struct soft *soft, weir_cu_deviceptr to, unsigned value, size_t count,
                                         weir_cu_stream stream) {
  return fill(soft, stream, to, value, 4, count);
}

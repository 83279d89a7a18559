/*
 * Streams: queues of work on a device.
 *
 * A weir_stream is a value: copy it, compare it with weir_stream_equal, keep it as long as you like. Streams come from a
 * pool and are never destroyed before the runtime is.
 */
#ifndef WEIR_STREAM_H
#define WEIR_STREAM_H

#include <stddef.h>
#include <stdint.h>

#include "weir/driver.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
  WEIR_STREAMS_PER_POOL = 32, /* of each priority, on each device */
  WEIR_DEVICE_TYPE_GPU = 1
};

typedef struct weir_stream {
  int64_t id;     /* which stream: 0 the default one, odd for one of the pools, else the external stream's address */
  int32_t device; /* its device */
  int32_t device_type; /* WEIR_DEVICE_TYPE_GPU */
} weir_stream;

/* A stream from the pool of its priority, in turn: the 33rd is the first again. Priorities below 0 are more urgent, as far
 * as weir_stream_priority_range goes; others are moved into the range. device -1: the current one. */
weir_status weir_stream_create(int device, int priority, weir_stream *stream);

/* *least is 0; *greatest is the most urgent, negative. */
weir_status weir_stream_priority_range(int *least, int *greatest);

weir_status weir_stream_default(int device, weir_stream *stream);

/* A stream that was made elsewhere. It stays its maker's, and must live as long as it is used here. NULL is the default
 * stream. */
weir_status weir_stream_external(int device, weir_cu_stream raw, weir_stream *stream);

/* The plain CUstream behind it; NULL for the default stream. */
weir_status weir_stream_raw(weir_stream stream, weir_cu_stream *raw);
weir_status weir_stream_priority(weir_stream stream, int *priority);

/* The three numbers that name a stream, and back. A wrong id, device or type is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_stream_pack(weir_stream stream, int64_t *id, int64_t *device, int64_t *device_type);
weir_status weir_stream_unpack(int64_t id, int64_t device, int64_t device_type, weir_stream *stream);

int weir_stream_equal(weir_stream a, weir_stream b);
uint64_t weir_stream_hash(weir_stream stream);

/* "<weir.stream device=0 stream=0x0>". Returns the length that the whole text has, as snprintf. */
int weir_stream_describe(weir_stream stream, char *text, size_t size);

/* The calling thread's current stream on a device; the default stream until set. */
weir_status weir_stream_current(int device, weir_stream *stream);

/* Makes it the current stream of its device, and its device the current one. */
weir_status weir_stream_set_current(weir_stream stream);

/* WEIR_OK when all its work is done, WEIR_ERROR_NOT_READY (which is no failure, and sets no text) while it is not. */
weir_status weir_stream_query(weir_stream stream);

/* Waits on the host. Sync debug mode has a say. */
weir_status weir_stream_synchronize(weir_stream stream);

/* Later work of `stream` waits for all that is in `other` now. They may be on two devices. */
weir_status weir_stream_wait_stream(weir_stream stream, weir_stream other);

/* Calls fn(data) on another thread when the stream gets there. fn calls no device function. */
weir_status weir_stream_host_function(weir_stream stream, weir_cu_host_fn fn, void *data);

/* Keeps the stream busy for so many cycles of the device's clock. */
weir_status weir_stream_spin(weir_stream stream, uint64_t cycles);

/* A scope: enter makes a stream (and its device) current, leave restores device and streams as they were.
 *
 *     weir_stream_scope scope;
 *     weir_stream_scope_enter(stream, &scope);
 *     ...
 *     weir_stream_scope_leave(&scope);
 */
typedef struct weir_stream_scope {
  weir_stream outer;    /* what was current on the device that was current */
  weir_stream replaced; /* what was current on the stream's device */
} weir_stream_scope;
weir_status weir_stream_scope_enter(weir_stream stream, weir_stream_scope *scope);
weir_status weir_stream_scope_leave(const weir_stream_scope *scope);

#ifdef __cplusplus
}
#endif
#endif

/*
 * Streams: queues of work on a device.
 *
 * A weir_stream is a value: it can be copied, and compared with weir_stream_equal. Streams come from pools and live
 * until the runtime is shut down.
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
  int64_t id;          /* 0: the default stream; odd: a stream of a pool; else the address of an external one */
  int32_t device;      /* its device */
  int32_t device_type; /* WEIR_DEVICE_TYPE_GPU */
} weir_stream;

/* Returns the streams of the pool for a priority in turn: the 33rd is the first again. Priorities below 0 are more
 * urgent; values outside weir_stream_priority_range are moved into it. device -1 is the current one. */
weir_status weir_stream_create(int device, int priority, weir_stream *stream);

/* *least is 0; *greatest, the most urgent priority, is negative or 0. */
weir_status weir_stream_priority_range(int *least, int *greatest);

/* The default stream of a device; -1 is the current one. */
weir_status weir_stream_default(int device, weir_stream *stream);

/* The weir_stream of a raw stream (a CUstream); makes no driver call once the runtime has started. NULL is the
 * default stream, and a handle of a pool's stream gives that stream. Any other stream stays the caller's, and must
 * live as long as it is used here. */
weir_status weir_stream_external(int device, weir_cu_stream raw, weir_stream *stream);

/* The raw stream, NULL for the default stream. Makes no driver call for a stream that a call above has returned. */
weir_status weir_stream_raw(weir_stream stream, weir_cu_stream *raw);
weir_status weir_stream_priority(weir_stream stream, int *priority);

/* Makes a stream from the numbers of its fields. An invalid id, device or type is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_stream_unpack(int64_t id, int64_t device, int64_t device_type, weir_stream *stream);

/* Whether two values are the same stream. */
static inline int weir_stream_equal(weir_stream a, weir_stream b) {
  return a.id == b.id && a.device == b.device && a.device_type == b.device_type;
}

/* Equal for equal streams. Spreads the few bits in which streams differ over the whole word, as the end of
 * splitmix64. */
static inline uint64_t weir_stream_hash(weir_stream stream) {
  uint64_t h =
      (uint64_t)stream.id ^ (uint64_t)(uint32_t)stream.device << 48 ^ (uint64_t)(uint32_t)stream.device_type << 56;
  h = (h ^ h >> 30) * 0xbf58476d1ce4e5b9u;
  h = (h ^ h >> 27) * 0x94d049bb133111ebu;
  return h ^ h >> 31;
}

/* The calling thread's current stream on a device; the default stream until set. */
weir_status weir_stream_get_current(int device, weir_stream *stream);

/* Makes the stream the current stream of its device, and its device the current device. */
weir_status weir_stream_set_current(weir_stream stream);

/* WEIR_OK if all work of the stream is done, otherwise WEIR_ERROR_NOT_READY, which sets no text. */
weir_status weir_stream_query(weir_stream stream);

/* Waits on the host. The sync debug mode applies (weir/runtime.h). */
weir_status weir_stream_synchronize(weir_stream stream);

/* Later work of `stream` waits for the work that `other` has now. The devices may differ. */
weir_status weir_stream_wait_stream(weir_stream stream, weir_stream other);

/* Calls fn(data) on another thread when the stream reaches this point. fn must not call the device. */
weir_status weir_stream_host_function(weir_stream stream, weir_cu_host_fn fn, void *data);

/* Keeps the stream busy for a number of cycles of the device clock. */
weir_status weir_stream_spin(weir_stream stream, uint64_t cycles);

/* A scope: enter makes a stream and its device current, leave restores the previous device and streams.
 *
 *     weir_stream_scope scope;
 *     weir_stream_scope_enter(stream, &scope);
 *     ...
 *     weir_stream_scope_leave(&scope);
 */
typedef struct weir_stream_scope {
  weir_stream outer;    /* the current stream of the device that was current */
  weir_stream replaced; /* the current stream of the new stream's device */
} weir_stream_scope;
weir_status weir_stream_scope_enter(weir_stream stream, weir_stream_scope *scope);
weir_status weir_stream_scope_leave(const weir_stream_scope *scope);

#ifdef __cplusplus
}
#endif
#endif

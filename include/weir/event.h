/*
 * Events: points in streams that can be waited for, and that measure time.
 */
#ifndef WEIR_EVENT_H
#define WEIR_EVENT_H

#include <stddef.h>

#include "weir/driver.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_event weir_event;

enum {
  WEIR_EVENT_TIMING = 1,       /* for weir_event_elapsed */
  WEIR_EVENT_BLOCKING = 2,     /* synchronize sleeps instead of spinning */
  WEIR_EVENT_INTERPROCESS = 4, /* can be shared with other processes; excludes timing */
  WEIR_EVENT_EXTERNAL = 8      /* in a capture, records and waits are nodes of the graph: each replay does them */
};

/* The CUDA event is created by the first record, on the device of that stream. */
weir_status weir_event_create(unsigned flags, weir_event **event);

/* NULL is allowed. */
void weir_event_destroy(weir_event *event);

/* Records the event. Once it has a device, the stream must be of that device. */
weir_status weir_event_record(weir_event *event, weir_stream stream);

/* WEIR_OK if the event has completed or was never recorded, otherwise WEIR_ERROR_NOT_READY, which sets no text. */
weir_status weir_event_query(const weir_event *event);

/* Later work of the stream waits for the event. No effect if it was never recorded. */
weir_status weir_event_wait(const weir_event *event, weir_stream stream);

/* Waits on the host. Returns at once if the event was never recorded. */
weir_status weir_event_synchronize(const weir_event *event);

/* The time between two events. WEIR_ERROR_INVALID_ARGUMENT unless both have been recorded with timing,
 * WEIR_ERROR_NOT_READY unless both have completed. */
weir_status weir_event_elapsed(const weir_event *start, const weir_event *end, double *milliseconds);

/* The device of the event, or -1 until the CUDA event exists. */
weir_status weir_event_device(const weir_event *event, int *device);

/* The CUevent, or NULL until it exists. */
weir_status weir_event_raw(const weir_event *event, weir_cu_event *raw);

/* A handle for another process. Creates the CUDA event on the current device if there is none yet. */
weir_status weir_event_ipc_handle(weir_event *event, weir_cu_ipc_event_handle *handle);
weir_status weir_event_from_ipc_handle(int device, const weir_cu_ipc_event_handle *handle, weir_event **event);

#ifdef __cplusplus
}
#endif
#endif

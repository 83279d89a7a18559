/*
 * Events: marks in streams that others wait for and that measure time.
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
  WEIR_EVENT_TIMING = 1,      /* may be used in weir_event_elapsed */
  WEIR_EVENT_BLOCKING = 2,    /* synchronize sleeps instead of spinning */
  WEIR_EVENT_INTERPROCESS = 4 /* may be shared; not together with timing */
};

/* The device's event is made when it is first recorded, on that stream's device. */
weir_status weir_event_create(unsigned flags, weir_event **event);

/* NULL is allowed. */
void weir_event_destroy(weir_event *event);

/* On the stream's device only, once the event is made. */
weir_status weir_event_record(weir_event *event, weir_stream stream);

/* Records unless it was recorded before. */
weir_status weir_event_record_once(weir_event *event, weir_stream stream);

/* WEIR_OK when done or never recorded, else WEIR_ERROR_NOT_READY, which sets no text. */
weir_status weir_event_query(const weir_event *event);

/* Later work of the stream waits for it. Nothing happens if it was never recorded. */
weir_status weir_event_wait(const weir_event *event, weir_stream stream);

/* Waits on the host; returns at once if it was never recorded. */
weir_status weir_event_synchronize(const weir_event *event);

/* Both recorded, both with timing, else WEIR_ERROR_INVALID_ARGUMENT; both done, else WEIR_ERROR_NOT_READY. */
weir_status weir_event_elapsed(const weir_event *start, const weir_event *end, double *milliseconds);

/* 0 until the device's event exists. */
int weir_event_is_created(const weir_event *event);

/* The event's device, -1 until the device's event exists. */
int weir_event_device(const weir_event *event);

/* The plain CUevent, NULL until it exists. */
weir_cu_event weir_event_raw(const weir_event *event);

/* A name for another process. Makes the device's event, on the current device, if need be. */
weir_status weir_event_ipc_handle(weir_event *event, weir_cu_ipc_event_handle *handle);
weir_status weir_event_from_ipc_handle(int device, const weir_cu_ipc_event_handle *handle, weir_event **event);

int weir_event_describe(const weir_event *event, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif

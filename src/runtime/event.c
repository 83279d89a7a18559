/*
 * Events. The event of the driver is created by the first record, because its device is known only then.
 */
#include "weir/event.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/thread.h"
#include "runtime/runtime.h"

struct weir_event {
  weir__object object; /* first, so that a weir__object * can be cast to a weir_event * */
  unsigned flags;
  weir__mutex lock;           /* held while `raw` is created */
  _Atomic(weir_cu_event) raw; /* NULL until created */
  int device;                 /* written before `raw`, and valid once that is set */
  atomic_bool recorded;
};

static bool has_handle(weir__object *object) { return ((weir_event *)object)->raw; }

static void release(weir__object *object) {
  weir_event *event = (weir_event *)object;
  weir_driver *driver = weir__rt.driver;
  weir_cu_event raw = event->raw;
  weir__guard guard;
  bool entered = weir__try_enter_device(event->device, &guard);
  driver->EventDestroy(driver, raw);
  if (entered)
    weir__leave_device(&guard);
  event->raw = NULL;
}

/* NULL if out of host memory. */
static weir_event *create(unsigned flags) {
  weir_event *created = calloc(1, sizeof *created);
  if (!created)
    return NULL;
  created->object.release = release;
  created->object.has_handle = has_handle;
  created->flags = flags;
  weir__mutex_init(&created->lock);
  weir__object_add(&created->object);
  return created;
}

static weir_status no_memory(const char *caller) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the event", caller);
}

weir_status weir_event_create(unsigned flags, weir_event **event) {
  WEIR__CHECK_ARGUMENT(event);
  weir_status status = weir__check_fork(__func__);
  if (status)
    return status;
  if (flags & ~(unsigned)(WEIR_EVENT_TIMING | WEIR_EVENT_BLOCKING | WEIR_EVENT_INTERPROCESS | WEIR_EVENT_EXTERNAL))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: flags is 0x%x; allowed are WEIR_EVENT_TIMING (1), WEIR_EVENT_BLOCKING (2), "
                      "WEIR_EVENT_INTERPROCESS (4) and WEIR_EVENT_EXTERNAL (8)",
                      __func__, flags);
  if (flags & WEIR_EVENT_TIMING && flags & WEIR_EVENT_INTERPROCESS)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "%s: WEIR_EVENT_INTERPROCESS and WEIR_EVENT_TIMING exclude each other: CUDA does not time events that are "
        "shared between processes",
        __func__);
  weir_event *created = create(flags);
  if (!created)
    return no_memory(__func__);
  *event = created;
  return WEIR_OK;
}

void weir_event_destroy(weir_event *event) {
  if (!event || !weir__object_remove(__func__, &event->object, "event"))
    return;
  if (event->raw && weir__is_running())
    release(&event->object);
  weir__mutex_destroy(&event->lock);
  weir__object_free(&event->object, "event");
}

static weir_status check(const char *caller, const weir_event *event) {
  weir_status status = weir__check_fork(caller);
  return status ? status : weir__object_check(caller, &event->object, "event");
}

static weir_status make_raw(const char *caller, const weir_event *event, weir_cu_event *raw) {
  weir_driver *driver = weir__rt.driver;
  unsigned flags = 0;
  if (!(event->flags & WEIR_EVENT_TIMING))
    flags |= WEIR_CU_EVENT_DISABLE_TIMING;
  if (event->flags & WEIR_EVENT_BLOCKING)
    flags |= WEIR_CU_EVENT_BLOCKING_SYNC;
  if (event->flags & WEIR_EVENT_INTERPROCESS)
    flags |= WEIR_CU_EVENT_INTERPROCESS;
  return WEIR__CALL_FOR(caller, driver, EventCreate(driver, raw, flags));
}

/* Whether a record or a wait in the stream is a node of a graph. */
static weir_status is_node(const char *caller, const weir_event *event, weir_cu_stream stream, bool *found) {
  int capturing = WEIR_CU_CAPTURE_STATUS_NONE;
  weir_status status = WEIR_OK;
  if (event->flags & WEIR_EVENT_EXTERNAL)
    status = WEIR__CALL_FOR(caller, weir__rt.driver, StreamIsCapturing(weir__rt.driver, stream, &capturing));
  *found = capturing != WEIR_CU_CAPTURE_STATUS_NONE;
  return status;
}

/* The lock of the event is held. If recording fails, an event that was created for it is destroyed again. */
static weir_status record(const char *caller, weir_event *event, weir_stream stream) {
  weir__guard guard;
  weir_cu_stream raw_stream;
  weir_status status = weir__enter_stream(caller, stream, &guard, &raw_stream);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  weir_cu_event raw = event->raw;
  bool is_new = !raw;
  if (is_new)
    status = make_raw(caller, event, &raw);
  else if (event->device != stream.device)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: Event device %d does not match recording stream's device %" PRId32 ".", caller,
                        event->device, stream.device);
  if (status)
    goto leave_device;

  bool external;
  status = is_node(caller, event, raw_stream, &external);
  if (!status && external)
    status =
        WEIR__CALL_FOR(caller, driver, EventRecordWithFlags(driver, raw, raw_stream, WEIR_CU_EVENT_RECORD_EXTERNAL));
  else if (!status)
    status = WEIR__CALL_FOR(caller, driver, EventRecord(driver, raw, raw_stream));
  if (!status) {
    if (is_new) {
      event->device = stream.device;
      event->raw = raw;
    }
    event->recorded = true;
  } else if (is_new) {
    driver->EventDestroy(driver, raw);
  }

leave_device:
  weir__leave_device(&guard);
  return status;
}

weir_status weir_event_record(weir_event *event, weir_stream stream) {
  WEIR__CHECK_ARGUMENT(event);
  weir_status status = check(__func__, event);
  if (status)
    return status;
  weir__mutex_lock(&event->lock);
  status = record(__func__, event, stream);
  weir__mutex_unlock(&event->lock);
  return status;
}

weir_status weir_event_query(const weir_event *event) {
  WEIR__CHECK_ARGUMENT(event);
  weir_status status = check(__func__, event);
  if (status || !event->raw)
    return status;
  weir__guard guard;
  status = weir__enter_device(__func__, event->device, &guard);
  if (status)
    return status;
  weir_cu_event raw = event->raw;
  status = WEIR__CALL(weir__rt.driver, EventQuery(weir__rt.driver, raw));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_event_wait(const weir_event *event, weir_stream stream) {
  WEIR__CHECK_ARGUMENT(event);
  weir__guard guard;
  weir_cu_stream raw_stream;
  weir_status status = check(__func__, event);
  if (!status)
    status = weir__enter_stream(__func__, stream, &guard, &raw_stream);
  if (status)
    return status;
  weir_cu_event raw = event->raw;
  bool external = false;
  if (raw)
    status = is_node(__func__, event, raw_stream, &external);
  unsigned flags = external ? WEIR_CU_EVENT_WAIT_EXTERNAL : 0;
  if (raw && !status)
    status = WEIR__CALL(weir__rt.driver, StreamWaitEvent(weir__rt.driver, raw_stream, raw, flags));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_event_synchronize(const weir_event *event) {
  WEIR__CHECK_ARGUMENT(event);
  weir_status status = check(__func__, event);
  if (status || !event->raw)
    return status;
  weir__guard guard;
  status = weir__enter_device(__func__, event->device, &guard);
  if (status)
    return status;
  weir_cu_event raw = event->raw;
  status = WEIR__CALL(weir__rt.driver, EventSynchronize(weir__rt.driver, raw));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_event_elapsed(const weir_event *start, const weir_event *end, double *milliseconds) {
  WEIR__CHECK_ARGUMENT(start);
  WEIR__CHECK_ARGUMENT(end);
  WEIR__CHECK_ARGUMENT(milliseconds);
  weir_status status = check(__func__, start);
  if (!status)
    status = check(__func__, end);
  if (status)
    return status;
  if (!(start->flags & WEIR_EVENT_TIMING) || !(end->flags & WEIR_EVENT_TIMING))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Both events must be created with the flag WEIR_EVENT_TIMING.",
                      __func__);
  if (!start->recorded || !end->recorded)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Both events must be recorded before calculating elapsed time.",
                      __func__);

  weir__guard guard;
  status = weir__enter_device(__func__, start->device, &guard);
  if (status)
    return status;
  weir_cu_event first = start->raw, second = end->raw;
  float elapsed;
  status = WEIR__CALL(weir__rt.driver, EventElapsedTime(weir__rt.driver, &elapsed, first, second));
  weir__leave_device(&guard);
  if (!status)
    *milliseconds = (double)elapsed;
  if (status == WEIR_ERROR_NOT_READY)
    return weir__fail_result(status, WEIR_CU_NOT_READY,
                             "%s: the device has not reached both events; synchronize with them first", __func__);
  return status;
}

weir_status weir_event_device(const weir_event *event, int *device) {
  WEIR__CHECK_ARGUMENT(event);
  WEIR__CHECK_ARGUMENT(device);
  *device = event->raw ? event->device : -1;
  return WEIR_OK;
}

weir_status weir_event_raw(const weir_event *event, weir_cu_event *raw) {
  WEIR__CHECK_ARGUMENT(event);
  WEIR__CHECK_ARGUMENT(raw);
  *raw = event->raw;
  return WEIR_OK;
}

/* ---- IPC ---- */

weir_status weir_event_ipc_handle(weir_event *event, weir_cu_ipc_event_handle *handle) {
  WEIR__CHECK_ARGUMENT(event);
  WEIR__CHECK_ARGUMENT(handle);
  weir_status status = check(__func__, event);
  if (status)
    return status;
  if (!(event->flags & WEIR_EVENT_INTERPROCESS))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the event was created without WEIR_EVENT_INTERPROCESS",
                      __func__);
  int device;
  status = weir__resolve_device(__func__, -1, &device);
  if (status)
    return status;

  weir_driver *driver = weir__rt.driver;
  weir__mutex_lock(&event->lock);
  weir_cu_event raw = event->raw;
  bool is_new = !raw;
  if (!is_new)
    device = event->device;
  weir__guard guard;
  status = weir__enter_device(__func__, device, &guard);
  if (status)
    goto unlock;
  if (is_new)
    status = make_raw(__func__, event, &raw);
  if (status)
    goto leave_device;

  weir_cu_ipc_event_handle created;
  status = WEIR__CALL(driver, IpcGetEventHandle(driver, &created, raw));
  if (!status) {
    *handle = created;
    if (is_new) {
      event->device = device;
      event->raw = raw;
    }
  } else if (is_new) {
    driver->EventDestroy(driver, raw);
  }

leave_device:
  weir__leave_device(&guard);
unlock:
  weir__mutex_unlock(&event->lock);
  return status;
}

weir_status weir_event_from_ipc_handle(int device, const weir_cu_ipc_event_handle *handle, weir_event **event) {
  WEIR__CHECK_ARGUMENT(handle);
  WEIR__CHECK_ARGUMENT(event);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (status)
    return status;
  weir_event *created = create(WEIR_EVENT_INTERPROCESS);
  if (!created)
    return no_memory(__func__);

  weir_driver *driver = weir__rt.driver;
  weir__guard guard;
  weir_cu_event raw;
  status = weir__enter_device(__func__, device, &guard);
  if (!status) {
    status = WEIR__CALL(driver, IpcOpenEventHandle(driver, &raw, *handle));
    weir__leave_device(&guard);
  }
  if (status) {
    weir_event_destroy(created);
    return status;
  }
  created->device = device;
  created->raw = raw;
  *event = created;
  return WEIR_OK;
}

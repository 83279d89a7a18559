/*
 * Streams: the pools, the ids, and the current streams.
 *
 * The id encodes the kind of the stream:
 *   0            the default stream
 *   odd          a pooled stream: bit 0 is 1, bits 1 to 4 are the pool number plus 1, the rest is the index in the pool
 *   even, not 0  the address of a stream that was created elsewhere; such addresses are even
 */
#include "weir/stream.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/thread.h"
#include "runtime/runtime.h"
#include "weir/runtime.h"

enum { POOL_SHIFT = 1, POOL_BITS = 4, INDEX_SHIFT = POOL_SHIFT + POOL_BITS };

static int64_t pool_id(int pool, int index) {
  return (int64_t)index << INDEX_SHIFT | (int64_t)(pool + 1) << POOL_SHIFT | 1;
}
static bool is_pooled(int64_t id) { return id & 1; }
static int pool_of(int64_t id) { return (int)(id >> POOL_SHIFT & ((1 << POOL_BITS) - 1)) - 1; }
static int64_t index_of(int64_t id) { return id >> INDEX_SHIFT; }

static weir_stream make_stream(int device, int64_t id) {
  return (weir_stream){.id = id, .device = device, .device_type = WEIR_DEVICE_TYPE_GPU};
}

weir_stream weir__current_stream(int device) { return make_stream(device, weir__thread_state()->streams[device]); }

/* ---- Pools ---- */

/* Queries the priorities of the entered device, once. */
static weir_status init_priorities(const char *caller, weir__device *device) {
  if (device->priorities)
    return WEIR_OK;
  weir_driver *driver = weir__rt.driver;
  int least, greatest;
  weir_status status = WEIR__CALL_FOR(caller, driver, CtxGetStreamPriorityRange(driver, &least, &greatest));
  if (status)
    return status;
  int number = least - greatest + 1;
  device->least_priority = least;
  device->priorities = number < 1 ? 1 : number > WEIR__PRIORITIES ? WEIR__PRIORITIES : number;
  return WEIR_OK;
}

/* A pooled stream of the entered device, created on first use. */
static weir_status get_pooled_stream(const char *caller, weir__device *device, int pool, int index,
                                     weir_cu_stream *raw) {
  weir_driver *driver = weir__rt.driver;
  weir_status status = WEIR_OK;
  weir_cu_stream stream = device->streams[pool][index];
  if (!stream) {
    int priority = device->least_priority - pool;
    weir__mutex_lock(&device->lock);
    stream = device->streams[pool][index];
    if (!stream) {
      status = WEIR__CALL_FOR(caller, driver,
                              StreamCreateWithPriority(driver, &stream, WEIR_CU_STREAM_NON_BLOCKING, priority));
      if (!status)
        device->streams[pool][index] = stream;
    }
    weir__mutex_unlock(&device->lock);
  }
  if (!status)
    *raw = stream;
  return status;
}

/* The reason why a stream is invalid, as far as it shows without the device. NULL if it is valid. */
static const char *why_invalid(weir_stream stream) {
  if (stream.device_type != WEIR_DEVICE_TYPE_GPU)
    return "the device type must be 1";
  if (stream.device < 0 || stream.device >= weir__rt.device_count)
    return "there is no such device";
  if (stream.id < 0)
    return "the id is negative";
  if (is_pooled(stream.id) && (pool_of(stream.id) < 0 || pool_of(stream.id) >= WEIR__PRIORITIES ||
                               index_of(stream.id) >= WEIR_STREAMS_PER_POOL))
    return "no pool has this id";
  return NULL;
}

static weir_status invalid_stream(const char *caller, weir_stream stream, const char *reason) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "%s: no stream has id %" PRId64 ", device %" PRId32 " and device type %" PRId32 ": %s", caller,
                    stream.id, stream.device, stream.device_type, reason);
}

static weir_status check_stream(const char *caller, weir_stream stream) {
  weir_status status = weir__start(caller);
  if (status)
    return status;
  const char *reason = why_invalid(stream);
  return reason ? invalid_stream(caller, stream, reason) : WEIR_OK;
}

weir_status weir__enter_stream(const char *caller, weir_stream stream, weir__guard *guard, weir_cu_stream *raw) {
  weir_status status = check_stream(caller, stream);
  if (!status)
    status = weir__enter_device(caller, stream.device, guard);
  if (status)
    return status;
  if (!is_pooled(stream.id)) {
    *raw = (weir_cu_stream)(uintptr_t)stream.id;
    return WEIR_OK;
  }

  weir__device *device = &weir__rt.devices[stream.device];
  int pool = pool_of(stream.id);
  status = init_priorities(caller, device);
  if (!status && pool >= device->priorities)
    status = invalid_stream(caller, stream, "the device has fewer priorities");
  if (!status)
    status = get_pooled_stream(caller, device, pool, (int)index_of(stream.id), raw);
  if (status)
    weir__leave_device(guard);
  return status;
}

weir_status weir_stream_create(int device, int priority, weir_stream *stream) {
  WEIR__CHECK_ARGUMENT(stream);
  weir__guard guard;
  weir_status status = weir__resolve_and_enter(__func__, device, &guard);
  if (status)
    return status;
  weir__device *d = &weir__rt.devices[guard.device];
  status = init_priorities(__func__, d);
  if (!status) {
    int pool = priority >= 0 ? 0 : priority <= -d->priorities ? d->priorities - 1 : -priority;
    int index = (int)(atomic_fetch_add(&d->next[pool], 1) % WEIR_STREAMS_PER_POOL);
    weir_cu_stream raw;
    status = get_pooled_stream(__func__, d, pool, index, &raw);
    if (!status)
      *stream = make_stream(guard.device, pool_id(pool, index));
  }
  weir__leave_device(&guard);
  return status;
}

weir_status weir_stream_priority_range(int *least, int *greatest) {
  WEIR__CHECK_ARGUMENT(least);
  WEIR__CHECK_ARGUMENT(greatest);
  weir__guard guard;
  weir_status status = weir__resolve_and_enter(__func__, -1, &guard);
  if (status)
    return status;
  weir__device *device = &weir__rt.devices[guard.device];
  status = init_priorities(__func__, device);
  weir__leave_device(&guard);
  if (!status) {
    *least = 0;
    *greatest = 1 - device->priorities;
  }
  return status;
}

/* ---- Values ---- */

weir_status weir_stream_default(int device, weir_stream *stream) {
  WEIR__CHECK_ARGUMENT(stream);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (!status)
    *stream = make_stream(device, 0);
  return status;
}

/* The id of a stream of the device's pools, or 0 if the handle is not one of theirs. */
static int64_t find_in_pools(const weir__device *device, weir_cu_stream raw) {
  for (int pool = 0; raw && pool < WEIR__PRIORITIES; pool++)
    for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++)
      if (atomic_load_explicit(&device->streams[pool][i], memory_order_relaxed) == raw)
        return pool_id(pool, i);
  return 0;
}

weir_status weir_stream_external(int device, weir_cu_stream raw, weir_stream *stream) {
  WEIR__CHECK_ARGUMENT(stream);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (status)
    return status;
  if (raw == WEIR_CU_STREAM_LEGACY) /* another handle of the default stream */
    raw = NULL;
  int64_t id = (int64_t)(intptr_t)raw;
  if (id < 0 || is_pooled(id))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: raw is %p, which is not the address of a stream", __func__,
                      (void *)raw);
  int64_t own = find_in_pools(&weir__rt.devices[device], raw);
  *stream = make_stream(device, own ? own : id);
  return WEIR_OK;
}

/* Only a stream of a pool that was never used has to be made, by the driver: one whose id was put together by hand. */
weir_status weir_stream_raw(weir_stream stream, weir_cu_stream *raw) {
  WEIR__CHECK_ARGUMENT(raw);
  weir_status status = check_stream(__func__, stream);
  if (status)
    return status;
  weir_cu_stream found = (weir_cu_stream)(uintptr_t)stream.id;
  if (is_pooled(stream.id))
    found = weir__rt.devices[stream.device].streams[pool_of(stream.id)][index_of(stream.id)];
  if (!found && stream.id) {
    weir__guard guard;
    status = weir__enter_stream(__func__, stream, &guard, &found);
    if (status)
      return status;
    weir__leave_device(&guard);
  }
  *raw = found;
  return WEIR_OK;
}

weir_status weir_stream_priority(weir_stream stream, int *priority) {
  WEIR__CHECK_ARGUMENT(priority);
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  int found = -pool_of(stream.id);
  if (!is_pooled(stream.id))
    status = WEIR__CALL(weir__rt.driver, StreamGetPriority(weir__rt.driver, raw, &found));
  weir__leave_device(&guard);
  if (!status)
    *priority = found;
  return status;
}

/* Checks the parts of an id that depend on the device too. */
static weir_status check_whole_stream(const char *caller, weir_stream stream) {
  weir_status status = check_stream(caller, stream);
  if (status || !is_pooled(stream.id))
    return status;
  weir__guard guard;
  weir_cu_stream raw;
  status = weir__enter_stream(caller, stream, &guard, &raw);
  if (!status)
    weir__leave_device(&guard);
  return status;
}

weir_status weir_stream_unpack(int64_t id, int64_t device, int64_t device_type, weir_stream *stream) {
  WEIR__CHECK_ARGUMENT(stream);
  weir_stream created = {.id = id, .device = (int32_t)device, .device_type = (int32_t)device_type};
  if (created.device != device || created.device_type != device_type)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there is no device %" PRId64 " of type %" PRId64, __func__,
                      device, device_type);
  weir_status status = check_whole_stream(__func__, created);
  if (!status)
    *stream = created;
  return status;
}

/* ---- The current stream ---- */

weir_status weir_stream_get_current(int device, weir_stream *stream) {
  WEIR__CHECK_ARGUMENT(stream);
  weir_status status = weir__resolve_device(__func__, device, &device);
  if (!status)
    *stream = weir__current_stream(device);
  return status;
}

static weir_status set_current(const char *caller, weir_stream stream, bool make_context) {
  weir_status status = check_whole_stream(caller, stream);
  if (!status)
    status = weir__set_device(caller, stream.device, make_context);
  if (!status)
    weir__thread_state()->streams[stream.device] = stream.id;
  return status;
}

weir_status weir_stream_set_current(weir_stream stream) { return set_current(__func__, stream, true); }

weir_status weir_stream_scope_enter(weir_stream stream, weir_stream_scope *scope) {
  WEIR__CHECK_ARGUMENT(scope);
  weir_status status = check_whole_stream(__func__, stream);
  if (status)
    return status;
  weir_stream_scope before = {.outer = weir__current_stream(weir__thread_state()->device),
                              .replaced = weir__current_stream(stream.device)};
  status = set_current(__func__, stream, true);
  if (!status)
    *scope = before;
  return status;
}

/* Leaving the scope creates no context. */
weir_status weir_stream_scope_leave(const weir_stream_scope *scope) {
  WEIR__CHECK_ARGUMENT(scope);
  weir_status status = check_whole_stream(__func__, scope->replaced);
  if (!status)
    status = set_current(__func__, scope->outer, false);
  if (!status)
    weir__thread_state()->streams[scope->replaced.device] = scope->replaced.id;
  return status;
}

/* ---- Work ---- */

weir_status weir_stream_query(weir_stream stream) {
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  status = WEIR__CALL(weir__rt.driver, StreamQuery(weir__rt.driver, raw));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_stream_synchronize(weir_stream stream) {
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  status = weir__check_sync(__func__);
  if (!status)
    status = WEIR__CALL(weir__rt.driver, StreamSynchronize(weir__rt.driver, raw));
  weir__leave_device(&guard);
  return status;
}

/* Orders the streams by a temporary event. The driver keeps a destroyed event until the wait is over. */
weir_status weir_stream_wait_stream(weir_stream stream, weir_stream other) {
  weir_driver *driver;
  weir__guard outer, inner;
  weir_cu_stream raw, other_raw;
  weir_cu_event event;
  weir_status status = check_whole_stream(__func__, stream);
  if (!status)
    status = weir__enter_stream(__func__, other, &outer, &other_raw);
  if (status)
    return status;
  if (weir_stream_equal(stream, other)) /* a stream is always in order with itself */
    goto leave_other;

  driver = weir__rt.driver;
  status = WEIR__CALL(driver, EventCreate(driver, &event, WEIR_CU_EVENT_DISABLE_TIMING));
  if (status)
    goto leave_other;
  status = WEIR__CALL(driver, EventRecord(driver, event, other_raw));
  if (!status)
    status = weir__enter_stream(__func__, stream, &inner, &raw);
  if (!status) {
    status = WEIR__CALL(driver, StreamWaitEvent(driver, raw, event, 0));
    weir__leave_device(&inner);
  }
  driver->EventDestroy(driver, event);

leave_other:
  weir__leave_device(&outer);
  return status;
}

weir_status weir_stream_host_function(weir_stream stream, weir_cu_host_fn fn, void *data) {
  WEIR__CHECK_ARGUMENT(fn);
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  status = WEIR__CALL(weir__rt.driver, LaunchHostFunc(weir__rt.driver, raw, fn, data));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_stream_spin(weir_stream stream, uint64_t cycles) {
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  status = weir__spin(__func__, &weir__rt.devices[stream.device], raw, cycles);
  weir__leave_device(&guard);
  return status;
}

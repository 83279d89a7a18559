/*
 * Copies and fills.
 */
#include "weir/copy.h"

#include <limits.h>

#include "driver/pieces.h"
#include "runtime/runtime.h"

static weir_cu_deviceptr address_of(const void *pointer) { return (weir_cu_deviceptr)(uintptr_t)pointer; }

/* The device that the memory is on; -1 for host memory. */
static int device_of(const void *pointer) {
  weir_driver *driver = weir__rt.driver;
  unsigned type = 0;
  int ordinal;
  if (driver->PointerGetAttribute(driver, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(pointer)) ||
      type != WEIR_CU_MEMORY_TYPE_DEVICE ||
      driver->PointerGetAttribute(driver, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, address_of(pointer)))
    return -1;
  for (int i = 0; i < weir__rt.device_count; i++)
    if (weir__rt.devices[i].handle == ordinal)
      return i;
  return -1;
}

static bool are_peers(int a, int b) { return weir__rt.devices[a].peers >> b & 1 || weir__rt.devices[b].peers >> a & 1; }

static weir_status copy_between(const char *caller, void *to, int to_device, const void *from, int from_device,
                                size_t bytes, weir_cu_stream raw) {
  weir_driver *driver = weir__rt.driver;
  weir_cu_context to_context, from_context;
  weir_status status = weir__device_context(caller, to_device, &to_context);
  if (!status)
    status = weir__device_context(caller, from_device, &from_context);
  if (status)
    return status;
  return WEIR__CALL_FOR(
      caller, driver, MemcpyPeerAsync(driver, address_of(to), to_context, address_of(from), from_context, bytes, raw));
}

/* One copy of the driver. */
static weir_status copy_piece(const char *caller, void *to, const void *from, size_t bytes, weir_cu_stream raw) {
  weir_driver *driver = weir__rt.driver;
  if (weir__rt.device_count > 1) {
    int to_device = device_of(to);
    int from_device = to_device == -1 ? -1 : device_of(from);
    if (from_device != -1 && from_device != to_device && !are_peers(from_device, to_device))
      return copy_between(caller, to, to_device, from, from_device, bytes, raw);
  }
  return WEIR__CALL_FOR(caller, driver, MemcpyAsync(driver, address_of(to), address_of(from), bytes, raw));
}

/* The device of the stream must have been entered. */
static weir_status copy(const char *caller, void *to, const void *from, size_t bytes, weir_cu_stream raw) {
  weir_status status = WEIR_OK;
  while (!status && bytes > 0) {
    size_t run = weir__pieces_run(to, weir__pieces_run(from, bytes));
    status = copy_piece(caller, to, from, run, raw);
    to = (char *)to + run;
    from = (const char *)from + run;
    bytes -= run;
  }
  return status;
}

static weir_status check_pointers(const char *caller, const void *to, const void *from, size_t bytes) {
  if (bytes > 0 && (!to || !from))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL, but bytes is %zu", caller, to ? "from" : "to",
                      bytes);
  return WEIR_OK;
}

static weir_status copy_and_wait(const char *caller, void *to, const void *from, size_t bytes, weir_stream stream,
                                 bool wait) {
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = check_pointers(caller, to, from, bytes);
  if (!status)
    status = weir__enter_stream(caller, stream, &guard, &raw);
  if (status)
    return status;
  if (wait && bytes > 0)
    status = weir__check_sync(caller);
  if (!status && bytes > 0)
    status = copy(caller, to, from, bytes, raw);
  if (!status && wait && bytes > 0)
    status = WEIR__CALL_FOR(caller, weir__rt.driver, StreamSynchronize(weir__rt.driver, raw));
  weir__leave_device(&guard);
  return status;
}

weir_status weir_copy_async(void *to, const void *from, size_t bytes, weir_stream stream) {
  return copy_and_wait(__func__, to, from, bytes, stream, false);
}

weir_status weir_copy(void *to, const void *from, size_t bytes, weir_stream stream) {
  return copy_and_wait(__func__, to, from, bytes, stream, true);
}

weir_status weir_copy_peer_async(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                 weir_stream stream) {
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = check_pointers(__func__, to, from, bytes);
  if (!status)
    status = weir__check_device(__func__, to_device);
  if (!status)
    status = weir__check_device(__func__, from_device);
  if (!status)
    status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  if (bytes > 0)
    status = copy_between(__func__, to, to_device, from, from_device, bytes, raw);
  weir__leave_device(&guard);
  return status;
}

weir_status weir_fill_async(void *to, uint8_t value, size_t bytes, weir_stream stream) {
  if (bytes > 0)
    WEIR__CHECK_ARGUMENT(to);
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  while (!status && bytes > 0) {
    size_t run = weir__pieces_run(to, bytes);
    status = WEIR__CALL(driver, MemsetD8Async(driver, address_of(to), value, run, raw));
    to = (char *)to + run;
    bytes -= run;
  }
  weir__leave_device(&guard);
  return status;
}

weir_status weir_fill32_async(void *to, uint32_t value, size_t words, weir_stream stream) {
  if (words > 0)
    WEIR__CHECK_ARGUMENT(to);
  if ((uintptr_t)to % 4 != 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: to is %p, which is not aligned to 4", __func__, to);
  if (words > SIZE_MAX / 4)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: words is %zu; the size in bytes overflows", __func__, words);
  weir__guard guard;
  weir_cu_stream raw;
  weir_status status = weir__enter_stream(__func__, stream, &guard, &raw);
  if (status)
    return status;
  weir_driver *driver = weir__rt.driver;
  while (!status && words > 0) {
    size_t run = weir__pieces_run(to, words * 4) / 4; /* seams are at multiples of the page size */
    status = WEIR__CALL(driver, MemsetD32Async(driver, address_of(to), value, run, raw));
    to = (char *)to + run * 4;
    words -= run;
  }
  weir__leave_device(&guard);
  return status;
}

/*
 * Maps driver results to statuses and error texts.
 */
#include "driver/call.h"
#include "driver/access.h"
#include "weir/adapter.h"

_Atomic(weir__access_observer_fn) weir__access_observer, weir__undefined_observer;
_Atomic(weir__lost_observer_fn) weir__lost_observer;
_Atomic(weir__destroyed_observer_fn) weir__destroyed_observer;

weir_status weir__status_of_result(weir_cu_result result) {
  switch (result) {
  case WEIR_CU_SUCCESS:
    return WEIR_OK;
  case WEIR_CU_INVALID_VALUE:
    return WEIR_ERROR_INVALID_ARGUMENT;
  case WEIR_CU_OUT_OF_MEMORY:
    return WEIR_ERROR_OUT_OF_MEMORY;
  case WEIR_CU_STUB_LIBRARY:
    return WEIR_ERROR_NO_DRIVER;
  case WEIR_CU_NO_DEVICE:
    return WEIR_ERROR_NO_DEVICE;
  case WEIR_CU_INVALID_DEVICE:
    return WEIR_ERROR_INVALID_DEVICE;
  case WEIR_CU_INVALID_CONTEXT:
  case WEIR_CU_CONTEXT_IS_DESTROYED:
  case WEIR_CU_INVALID_HANDLE:
    return WEIR_ERROR_INVALID_HANDLE;
  case WEIR_CU_NOT_READY:
    return WEIR_ERROR_NOT_READY;
  case WEIR_CU_PEER_ACCESS_UNSUPPORTED:
  case WEIR_CU_NOT_SUPPORTED:
    return WEIR_ERROR_NOT_SUPPORTED;
  case WEIR_CU_STREAM_CAPTURE_UNSUPPORTED:
  case WEIR_CU_STREAM_CAPTURE_INVALIDATED:
  case WEIR_CU_STREAM_CAPTURE_MERGE:
  case WEIR_CU_STREAM_CAPTURE_UNMATCHED:
  case WEIR_CU_STREAM_CAPTURE_UNJOINED:
  case WEIR_CU_STREAM_CAPTURE_ISOLATION:
  case WEIR_CU_STREAM_CAPTURE_IMPLICIT:
  case WEIR_CU_CAPTURED_EVENT:
  case WEIR_CU_STREAM_CAPTURE_WRONG_THREAD:
    return WEIR_ERROR_CAPTURE;
  case WEIR_CU_ECC_UNCORRECTABLE:
  case WEIR_CU_NVLINK_UNCORRECTABLE:
  case WEIR_CU_CONTAINED:
  case WEIR_CU_ILLEGAL_ADDRESS:
  case WEIR_CU_LAUNCH_TIMEOUT:
  case WEIR_CU_ASSERT:
  case WEIR_CU_HARDWARE_STACK_ERROR:
  case WEIR_CU_ILLEGAL_INSTRUCTION:
  case WEIR_CU_MISALIGNED_ADDRESS:
  case WEIR_CU_INVALID_ADDRESS_SPACE:
  case WEIR_CU_INVALID_PC:
  case WEIR_CU_LAUNCH_FAILED:
  case WEIR_CU_TENSOR_MEMORY_LEAK:
  case WEIR_CU_MPS_CLIENT_TERMINATED:
  case WEIR_CU_EXTERNAL_DEVICE:
    return WEIR_ERROR_DEVICE_FAULT;
  default:
    return WEIR_ERROR_DRIVER;
  }
}

/* What the user can do; "" if the text of the driver says enough. */
static const char *advice(weir_cu_result result) {
  if (weir__status_of_result(result) == WEIR_ERROR_DEVICE_FAULT)
    return "; earlier work on the device may be the cause; restart the process to use the device again";
  switch (result) {
  case WEIR_CU_STUB_LIBRARY:
    return "; the library is for linking only, install NVIDIA's driver";
  case WEIR_CU_OPERATING_SYSTEM:
    return "; a limit of the system may be too low, such as that of open files (ulimit -n) or of mapped ranges "
           "(vm.max_map_count)";
  case WEIR_CU_STREAM_CAPTURE_UNSUPPORTED:
    return "; make the call before or after the capture";
  case WEIR_CU_STREAM_CAPTURE_INVALIDATED:
    return "; end the capture, and begin a new one without the call that failed";
  case WEIR_CU_STREAM_CAPTURE_MERGE:
    return "; a stream can take part in one capture at a time";
  case WEIR_CU_STREAM_CAPTURE_UNMATCHED:
    return "; end the capture on the stream that began it";
  case WEIR_CU_STREAM_CAPTURE_UNJOINED:
    return "; the stream that began the capture must wait for every stream that joined it";
  case WEIR_CU_STREAM_CAPTURE_ISOLATION:
    return "; a captured stream can wait only for events that were recorded in the same capture";
  case WEIR_CU_STREAM_CAPTURE_IMPLICIT:
    return "; use a stream other than the default one, or capture on a non-blocking stream";
  case WEIR_CU_CAPTURED_EVENT:
    return "; record the event again outside the capture";
  case WEIR_CU_STREAM_CAPTURE_WRONG_THREAD:
    return "; end the capture on the thread that began it, or begin it in relaxed mode";
  default:
    return "";
  }
}

bool weir__result_is_known(weir_cu_result result) {
  switch (result) {
#define X(code, name, text) case code:
    WEIR_CU_RESULT_MAP(X)
#undef X
    return true;
  default:
    return false;
  }
}

weir_status weir__driver_status(weir_driver *driver, weir_cu_result result, const char *caller, const char *call) {
  if (!result)
    return WEIR_OK;
  weir_status status = weir__status_of_result(result);
  if (status == WEIR_ERROR_NOT_READY)
    return status;
  weir__lost_observer_fn lost =
      status == WEIR_ERROR_DEVICE_FAULT ? atomic_load_explicit(&weir__lost_observer, memory_order_acquire) : NULL;
  if (lost)
    lost(driver, result);

  const char *name = NULL, *text = NULL;
  if (!weir__result_is_known(result)) {
    /* A newer driver has results that driver.h does not list. */
    if (driver->GetErrorName(driver, result, &name))
      name = NULL;
    if (driver->GetErrorString(driver, result, &text))
      text = NULL;
  }
  return weir__fail_result(status, result, "%s: %s failed: %s (%d): %s%s", caller, call,
                           name ? name : weir_cu_result_name(result), result,
                           text ? text : weir_cu_result_string(result), advice(result));
}

weir_status weir__driver_check_stream(const char *caller, weir_driver *driver, weir_cu_stream stream) {
  int priority;
  bool is_special = !stream || stream == WEIR_CU_STREAM_LEGACY || stream == WEIR_CU_STREAM_PER_THREAD;
  if (is_special || !weir__driver_can(driver, WEIR_DRIVER_CHECKS_STREAMS) ||
      driver->StreamGetPriority(driver, stream, &priority) != WEIR_CU_INVALID_HANDLE)
    return WEIR_OK; /* the calls that follow report other errors */
  weir__destroyed_observer_fn observer = atomic_load_explicit(&weir__destroyed_observer, memory_order_acquire);
  if (observer)
    observer("stream", caller, (uint64_t)stream, 0);
  return weir__fail_result(WEIR_ERROR_INVALID_HANDLE, WEIR_CU_INVALID_HANDLE,
                           "%s: %p is not a stream; it was never created, or it was destroyed", caller, (void *)stream);
}

weir_status weir_report_result(weir_driver *driver, weir_cu_result result, const char *caller, const char *call) {
  WEIR__CHECK_ARGUMENT(driver);
  WEIR__CHECK_ARGUMENT(caller);
  WEIR__CHECK_ARGUMENT(call);
  return weir__driver_status(driver, result, caller, call);
}

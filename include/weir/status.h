/*
 * The status that calls return, and the error text of a thread.
 */
#ifndef WEIR_STATUS_H
#define WEIR_STATUS_H

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* number, name, text. Numbers never change; new ones go at the end. */
#define WEIR_STATUS_MAP(X)                                                                                             \
  X(0, OK, "success")                                                                                                  \
  X(1, ERROR_INVALID_ARGUMENT, "invalid argument")                                                                     \
  X(2, ERROR_OUT_OF_MEMORY, "out of device memory")                                                                    \
  X(3, ERROR_HOST_OUT_OF_MEMORY, "out of host memory")                                                                 \
  X(4, ERROR_NO_DRIVER, "no device driver could be loaded")                                                            \
  X(5, ERROR_NO_DEVICE, "there is no device")                                                                          \
  X(6, ERROR_INVALID_DEVICE, "invalid device number")                                                                  \
  X(7, ERROR_INVALID_HANDLE, "invalid handle")                                                                         \
  X(8, ERROR_NOT_READY, "the work is not complete yet")                                                                \
  X(9, ERROR_NOT_SUPPORTED, "not supported by the device or driver")                                                   \
  X(10, ERROR_BAD_STATE, "the call is not allowed in the present state")                                               \
  X(11, ERROR_BAD_FORK, "the process was forked after the start of the runtime")                                       \
  X(12, ERROR_CAPTURE, "not allowed during a capture, or the capture failed")                                          \
  X(13, ERROR_SYNC_FORBIDDEN, "a synchronizing call in sync debug mode \"error\"")                                     \
  X(14, ERROR_DEFERRED_CALL, "a call that was queued for the start failed")                                            \
  X(15, ERROR_DEVICE_FAULT, "the device has an error that the process cannot recover from")                            \
  X(16, ERROR_DRIVER, "the driver reported an error")                                                                  \
  X(17, ERROR_SYSTEM, "the operating system reported an error")                                                        \
  X(18, ERROR_BAD_DATA, "the data is damaged or has another format")                                                   \
  X(19, ERROR_TIMEOUT, "another rank did not arrive within the time limit")                                            \
  X(20, ERROR_REMOTE, "another rank failed, ended or left")

typedef enum weir_status {
#define X(number, name, text) WEIR_##name = number,
  WEIR_STATUS_MAP(X)
#undef X
} weir_status;

/* The body of the _init functions of structs that begin with `size`. They are inline, so that they set the size that
 * the program was compiled with. */
#define WEIR__INIT(it)                                                                                                 \
  do {                                                                                                                 \
    if (it) {                                                                                                          \
      memset((it), 0, sizeof *(it));                                                                                   \
      (it)->size = sizeof *(it);                                                                                       \
    }                                                                                                                  \
  } while (0)

/* "WEIR_ERROR_OUT_OF_MEMORY"; "WEIR_ERROR_UNKNOWN" for an invalid number. */
const char *weir_status_name(weir_status status);

/* One line that describes the status. */
const char *weir_status_string(weir_status status);

/* Describes the most recent failure of this thread: which call, on what, and why. "" if there was none, never NULL.
 * Valid until the next failing call of the thread. */
const char *weir_last_error(void);

/* The driver's code for that failure (a CUresult), or 0 if it did not come from the driver. */
int weir_last_driver_result(void);

/* Replaces the name of the inner call in the last error by `caller`, unless `status` is WEIR_OK. Returns `status`. */
weir_status weir_report_as(const char *caller, weir_status status);

#ifdef __cplusplus
}
#endif
#endif

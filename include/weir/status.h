/*
 * What calls return, and the text behind it.
 */
#ifndef WEIR_STATUS_H
#define WEIR_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* number, name, text. Numbers never change; new ones go at the end. */
#define WEIR_STATUS_MAP(X)                                                                                             \
  X(0, OK, "success")                                                                                                  \
  X(1, ERROR_INVALID_ARGUMENT, "an argument is not allowed")                                                           \
  X(2, ERROR_OUT_OF_MEMORY, "the device has not enough memory")                                                        \
  X(3, ERROR_HOST_OUT_OF_MEMORY, "the host has not enough memory")                                                     \
  X(4, ERROR_NO_DRIVER, "no device driver could be loaded")                                                            \
  X(5, ERROR_NO_DEVICE, "there is no device")                                                                          \
  X(6, ERROR_INVALID_DEVICE, "there is no device of that number")                                                      \
  X(7, ERROR_INVALID_HANDLE, "the object is not valid here")                                                           \
  X(8, ERROR_NOT_READY, "the device has not got that far")                                                             \
  X(9, ERROR_NOT_SUPPORTED, "the device or driver cannot do this")                                                     \
  X(10, ERROR_BAD_STATE, "the call is not allowed now")                                                                \
  X(11, ERROR_BAD_FORK, "the process was forked after the runtime had started")                                        \
  X(12, ERROR_CAPTURE, "stream capture does not allow this, or failed")                                                \
  X(13, ERROR_SYNC_FORBIDDEN, "a synchronizing call was made in sync debug mode \"error\"")                            \
  X(14, ERROR_DEFERRED_CALL, "a call that was queued for initialization failed")                                       \
  X(15, ERROR_DEVICE_FAULT, "the device hit an error that the process cannot recover from")                            \
  X(16, ERROR_DRIVER, "the driver reported an error")                                                                  \
  X(17, ERROR_SYSTEM, "the operating system reported an error")                                                        \
  X(18, ERROR_BAD_DATA, "the data is damaged or not of this format")

typedef enum weir_status {
#define X(number, name, text) WEIR_##name = number,
  WEIR_STATUS_MAP(X)
#undef X
} weir_status;

/* "WEIR_ERROR_OUT_OF_MEMORY"; "WEIR_ERROR_UNKNOWN" for a number that is none. */
const char *weir_status_name(weir_status status);

/* One line that explains the status in general. */
const char *weir_status_string(weir_status status);

/* What went wrong in the last call of this thread that did not return WEIR_OK: which call, on what, and why. Never NULL;
 * "" when nothing did. It stays valid until the thread's next failing call. */
const char *weir_last_error(void);

/* The driver's code behind it (a CUresult), 0 when the driver was not the cause. */
int weir_last_driver_result(void);

#ifdef __cplusplus
}
#endif
#endif

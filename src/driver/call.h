/*
 * Calling the driver from the layers above: one macro, one place where a driver's code becomes a status.
 */
#ifndef WEIR_DRIVER_CALL_H
#define WEIR_DRIVER_CALL_H

#include "base/base.h"
#include "weir/driver.h"

/* WEIR__CALL(d, StreamQuery(d, stream)): makes the call and turns its result into a status. On failure the thread's
 * last error names the public call (__func__), the driver's call with its arguments as written, and the driver's
 * reason. */
#define WEIR__CALL(driver, call) WEIR__CALL_FOR(__func__, driver, call)

/* The same in a function that works on behalf of the public call `caller`. */
#define WEIR__CALL_FOR(caller, driver, call) weir__driver_status((driver), (driver)->call, (caller), "cu" #call)

weir_status weir__driver_status(weir_driver *driver, weir_cu_result result, const char *caller, const char *call);

/* Whether the code is one of WEIR_CU_RESULT_MAP. A newer driver knows more. */
bool weir__result_is_known(weir_cu_result result);

/* Whether the table states a capability. */
static inline bool weir__driver_can(const weir_driver *driver, uint64_t capability) {
  return driver->size >= offsetof(weir_driver, capabilities) + sizeof driver->capabilities &&
         (driver->capabilities & capability) != 0;
}

/* Only the mapping: what status a code is. */
weir_status weir__status_of_result(weir_cu_result result);

/* Fails with WEIR_ERROR_INVALID_HANDLE on behalf of the public call `caller` for a stream that the driver does not have.
 * Only the software device can be asked: NVIDIA's driver may crash on a handle that is none, and the ledger takes any
 * number. */
weir_status weir__driver_check_stream(const char *caller, weir_driver *driver, weir_cu_stream stream);

#endif

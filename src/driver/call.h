/*
 * Calling the driver from the layers above: one macro makes the call, and one function turns the result into a status.
 */
#pragma once

#include <stddef.h>

#include "base/base.h"
#include "weir/driver.h"

/* WEIR__CALL(d, StreamQuery(d, stream)) makes the call and turns its result into a status. On failure the last error
 * names the public call (__func__), the driver call with its arguments as written, and the reason that the driver
 * gives. */
#define WEIR__CALL(driver, call) WEIR__CALL_FOR(__func__, driver, call)

/* The same in a function that serves the public call `caller`. */
#define WEIR__CALL_FOR(caller, driver, call) weir__driver_status((driver), (driver)->call, (caller), "cu" #call)

weir_status weir__driver_status(weir_driver *driver, weir_cu_result result, const char *caller, const char *call);

/* Whether driver.h lists the result. A newer driver may have others. */
bool weir__result_is_known(weir_cu_result result);

/* Whether the table states a capability. */
static inline bool weir__driver_can(const weir_driver *driver, uint64_t capability) {
  return (driver->capabilities & capability) != 0;
}

/* Whether the table has an optional entry. One that was compiled with an older header may end before it. */
#define WEIR__DRIVER_HAS(driver, name)                                                                                 \
  ((driver)->size >= offsetof(weir_driver, name) + sizeof(driver)->name && (driver)->name)

/* What every table has: the entries before those that were added at the end. */
#define WEIR__DRIVER_MIN_SIZE offsetof(weir_driver, UserObjectCreate)

/* The status for a result. Sets no last error. */
weir_status weir__status_of_result(weir_cu_result result);

/* Fails with WEIR_ERROR_INVALID_HANDLE if the driver has no such stream. Only tables that state
 * WEIR_DRIVER_CHECKS_STREAMS are asked: NVIDIA's driver may crash on an invalid handle, and the ledger accepts any
 * number. */
weir_status weir__driver_check_stream(const char *caller, weir_driver *driver, weir_cu_stream stream);

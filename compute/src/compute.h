/*
 * What the files of libweir_compute share. The library uses libweir through its public headers only.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>

#include "src/base.h"
#include "weir/compute/kernel.h"
#include "weir/device.h"
#include "weir/runtime.h"

/* WEIR__CALL(d, StreamQuery(d, stream)) makes the call and turns its result into a status. On failure the last error
 * names the public call (__func__), the driver call with its arguments as written, and the reason that the driver
 * gives. */
#define WEIR__CALL(driver, call) WEIR__CALL_FOR(__func__, driver, call)

/* The same in a function that serves the public call `caller`. */
#define WEIR__CALL_FOR(caller, driver, call) weir__driver_status((driver), (driver)->call, (caller), "cu" #call)

static inline weir_status weir__driver_status(weir_driver *driver, weir_cu_result result, const char *caller,
                                              const char *call) {
  return result ? weir_report_result(driver, result, caller, call) : WEIR_OK;
}

/* Whether the driver states a capability. */
static inline bool weir__driver_can(const weir_driver *driver, uint64_t capability) {
  return (driver->capabilities & capability) != 0;
}

/* Incremented at each shutdown of the runtime: handles of an earlier epoch are gone. 0 before the first use. */
extern atomic_ulong weir__compute_epoch;

typedef struct weir__on_device {
  weir_driver *driver;
  int device, previous;
} weir__on_device;

/* Starts the runtime and makes a device current, -1 being the current one. Between the two calls the driver works on
 * that device. */
weir_status weir__compute_enter(const char *caller, int device, weir__on_device *on);
void weir__compute_leave(const weir__on_device *on);

/* Allows this thread the calls that captures of other streams forbid, such as waits; restore takes what relax
 * returned. */
int weir__compute_relax(weir_driver *driver);
void weir__compute_restore(weir_driver *driver, int mode);

/* The text of this thread's latest failure, without the name of the call that it begins with. */
const char *weir__last_reason(void);

/* Unloads a module of a device, also during a capture, when an unload needs the relaxed mode. */
void weir__compute_unload(int device, weir_cu_module module);

/* Called at the shutdown of the runtime, while the driver still works. */
void weir__builtins_end(void);
void weir__modules_end(void);
void weir__nccl_end(void);

/*
 * Switching the calling thread's context. A module enters the context of the device that it is about to use, and
 * afterwards restores the one that the program had:
 *
 *     weir_cu_context previous;
 *     if (!weir__context_enter(driver, context, &previous)) {
 *       ...
 *       weir__context_switch(driver, context, previous);
 *     }
 *
 * The current context is queried on each entry, because the program may change it between two calls.
 */
#pragma once

#include "weir/driver.h"

/* Retains the primary context of a device unless *context has been set already. The caller serializes calls for the
 * same *context. */
static inline weir_cu_result weir__context_retain(weir_driver *driver, weir_cu_device device,
                                                  weir_cu_context *context) {
  return *context ? WEIR_CU_SUCCESS : driver->DevicePrimaryCtxRetain(driver, context, device);
}

/* Makes `to` current on a thread whose current context is `from`. */
static inline weir_cu_result weir__context_switch(weir_driver *driver, weir_cu_context from, weir_cu_context to) {
  return from == to ? WEIR_CU_SUCCESS : driver->CtxSetCurrent(driver, to);
}

/* Makes `context` current. *previous is the context to restore. */
static inline weir_cu_result weir__context_enter(weir_driver *driver, weir_cu_context context,
                                                 weir_cu_context *previous) {
  weir_cu_result result = driver->CtxGetCurrent(driver, previous);
  return result ? result : weir__context_switch(driver, *previous, context);
}

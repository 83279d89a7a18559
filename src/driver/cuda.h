/*
 * How NVIDIA's driver becomes a table, apart from where its symbols come from: a test can be the library.
 *
 * These calls set no last error, since a caller may only be trying. They write a reason, which needs "caller: " in front.
 */
#ifndef WEIR_DRIVER_CUDA_H
#define WEIR_DRIVER_CUDA_H

#include "base/base.h"
#include "weir/driver.h"

enum { WEIR__CUDA_REASON = 1024 };

/* Finds an exported symbol as dlsym does: NULL when there is none. */
typedef void *(*weir__cuda_lookup)(void *library, const char *symbol);

/* Makes a table of a library's symbols. `name` is the library's in the reason. WEIR_ERROR_NO_DRIVER when a required
 * symbol is missing. */
weir_status weir__cuda_load(weir__cuda_lookup lookup, void *library, const char *name, char reason[WEIR__CUDA_REASON],
                            weir_driver **driver);

/* The same with libcuda.so.1, or the library that WEIR_CUDA_LIBRARY names. */
weir_status weir__cuda_open(char reason[WEIR__CUDA_REASON], weir_driver **driver);

/* Logs that the software device is taken instead, on behalf of the public call `caller`. A library that WEIR_CUDA_LIBRARY
 * names and that does not serve is worth a warning; a machine without a GPU is not. */
void weir__cuda_log_fallback(const char *caller, const char *reason);

/* Starts a driver and sees whether it has a device. */
bool weir__cuda_has_device(weir_driver *driver, char reason[WEIR__CUDA_REASON]);

#endif

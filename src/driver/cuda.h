/*
 * Builds the table of NVIDIA's driver. The lookup of symbols is a parameter, so that a test can stand in for the
 * library.
 *
 * These calls set no last error, because the caller may fall back to another driver. They write a reason, which the
 * caller prefixes with the name of the public call.
 */
#pragma once

#include "base/base.h"
#include "weir/driver.h"

enum { WEIR__CUDA_REASON = 1024 };

/* Finds an exported symbol as dlsym does. NULL if there is none. */
typedef void *(*weir__cuda_lookup)(void *library, const char *symbol);

/* Makes a table from the symbols of a library. `name` is the name of the library in the reason. WEIR_ERROR_NO_DRIVER if
 * a required symbol is missing. */
weir_status weir__cuda_load(weir__cuda_lookup lookup, void *library, const char *name, char reason[WEIR__CUDA_REASON],
                            weir_driver **driver);

/* The same for libcuda.so.1, or for the library that WEIR_CUDA_LIBRARY names. */
weir_status weir__cuda_open(char reason[WEIR__CUDA_REASON], weir_driver **driver);

/* Logs that the software device is used instead: as a warning if the user named a library in WEIR_CUDA_LIBRARY,
 * otherwise as information. */
void weir__cuda_log_fallback(const char *caller, const char *reason);

/* Initializes a driver. True if it has a device. */
bool weir__cuda_has_device(weir_driver *driver, char reason[WEIR__CUDA_REASON]);

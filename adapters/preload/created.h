/*
 * Memory that the program creates itself, with cuMemCreate: the driver serves it, and it is only counted.
 *
 * Such memory exists while it has a handle or a mapping. Each function follows a driver call that has succeeded, except
 * that a handle is released here first, since another thread may get the same one for other memory. Memory that was
 * imported from another process is not known here, so it does not count.
 */
#pragma once

#include <stdint.h>

#include "weir/driver.h"

/* Called with the bytes of a device whenever they change, in the order of the changes. It must not call back. */
typedef void (*preload_created_fn)(int device, uint64_t bytes);

void preload_created_report(preload_created_fn report);

void preload_created_add(weir_cu_mem_handle handle, int device, uint64_t bytes);
void preload_created_release(weir_cu_mem_handle handle);
void preload_created_map(weir_cu_deviceptr address, uint64_t bytes, weir_cu_mem_handle handle);
void preload_created_unmap(weir_cu_deviceptr address, uint64_t bytes);
void preload_created_retain(weir_cu_mem_handle handle, weir_cu_deviceptr address);

/* Calls the function above with the present bytes of a device, if there are any. */
void preload_created_repeat(int device);

/* Locks may be held by a thread that is not in the child. */
void preload_created_after_fork(void);

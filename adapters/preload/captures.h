/*
 * Captures in progress: the allocator of a device has to know of each, and no free may wait for the device meanwhile.
 */
#pragma once

#include "weir/driver.h"

/* Once, before the driver is used. */
void preload_captures_prepare(void);

/* The stream is destroyed, or about to be, and its capture with it. */
void preload_captures_forget(const void *origin);

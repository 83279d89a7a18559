/*
 * CUDA_VISIBLE_DEVICES is applied below the table: NVIDIA's driver and the software device list only visible devices,
 * so that a device number means the same in every module above.
 */
#pragma once

#include "weir/device.h"
#include "weir/driver.h"

enum { WEIR__VISIBLE_MIG = -1 };

/* The number of devices that the text makes visible; their ordinals go to ordinals[0..WEIR_MAX_DEVICES). The text has
 * the syntax of weir_visible_devices. WEIR__VISIBLE_MIG if it names MIG devices, which only NVIDIA's driver can
 * resolve. */
int weir__visible_ordinals(const char *text, const char *const *uuids, int count, int *ordinals);

/* "GPU-..." with the terminating NUL. */
enum { WEIR__UUID_SIZE = 41 };
void weir__format_uuid(const weir_cu_uuid *uuid, char text[WEIR__UUID_SIZE]);

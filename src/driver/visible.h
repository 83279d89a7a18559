/*
 * CUDA_VISIBLE_DEVICES. A driver table applies it, if any does: NVIDIA's driver and the software device list visible
 * devices only, so that a device number means the same in every module above the table.
 */
#ifndef WEIR_DRIVER_VISIBLE_H
#define WEIR_DRIVER_VISIBLE_H

#include "weir/device.h"
#include "weir/driver.h"

enum { WEIR__VISIBLE_MIG = -1 };

/* The number of devices that the text leaves; their ordinals go to ordinals[0..WEIR_MAX_DEVICES). The text is what
 * weir_visible_devices takes. WEIR__VISIBLE_MIG if it names MIG devices, which only NVIDIA's driver knows. */
int weir__visible_ordinals(const char *text, const char *const *uuids, int count, int *ordinals);

/* "GPU-..." and the NUL. */
enum { WEIR__UUID_SIZE = 41 };
void weir__format_uuid(const weir_cu_uuid *uuid, char text[WEIR__UUID_SIZE]);

#endif

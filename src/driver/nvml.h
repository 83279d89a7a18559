/*
 * NVIDIA's management library, loaded at run time. It tells about devices without starting the driver, which a process
 * that wants to fork must not do.
 */
#ifndef WEIR_DRIVER_NVML_H
#define WEIR_DRIVER_NVML_H

#include <stdbool.h>

enum { WEIR__NVML_UUID_SIZE = 96 };

typedef struct weir__nvml_device *weir__nvml_handle;

/* The library's functions under its names without "nvml". All return 0 for success. One that it lacks is NULL. */
typedef struct weir__nvml {
  void *library;
  int (*Init)(void);
  int (*Shutdown)(void);
  int (*DeviceGetCount)(unsigned *count);
  int (*DeviceGetHandleByIndex)(unsigned index, weir__nvml_handle *device);
  int (*DeviceGetUUID)(weir__nvml_handle device, char *uuid, unsigned size);
} weir__nvml;

/* Loads libnvidia-ml.so.1, or the library that WEIR_NVML_LIBRARY names, and starts it. False where it cannot. */
bool weir__nvml_open(weir__nvml *nvml);
void weir__nvml_close(weir__nvml *nvml);

/* The uuid texts of the machine's devices, `room` of them at most. False when the library cannot tell. */
bool weir__nvml_uuids(const weir__nvml *nvml, char uuids[][WEIR__NVML_UUID_SIZE], int room, int *count);

#endif

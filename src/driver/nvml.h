/*
 * NVIDIA's management library, loaded at run time. It reports on devices without starting the driver, which a process
 * that forks later must not do.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "weir/driver.h"

enum { WEIR__NVML_UUID_SIZE = 96 };

typedef struct weir__nvml_device *weir__nvml_handle;

/* nvmlProcessInfo_v2_t. */
typedef struct weir__nvml_process {
  unsigned pid;
  unsigned long long bytes;
  unsigned gpu_instance, compute_instance;
} weir__nvml_process;

/* nvmlMemory_v2_t: version is sizeof | 2 << 24. What the driver keeps for itself is not in `used`. */
typedef struct weir__nvml_memory {
  unsigned version;
  unsigned long long total, reserved, free, used;
} weir__nvml_memory;

/* nvmlMemory_t, of older libraries: it is. */
typedef struct weir__nvml_memory_v1 {
  unsigned long long total, free, used;
} weir__nvml_memory_v1;

/* Percent of the last sample period in which kernels ran, and in which memory was read or written. */
typedef struct weir__nvml_rates {
  unsigned gpu, memory;
} weir__nvml_rates;

/* nvmlTemperature_v1_t: version is sizeof | 1 << 24. */
typedef struct weir__nvml_temperature {
  unsigned version;
  int sensor; /* WEIR__NVML_GPU_SENSOR */
  int celsius;
} weir__nvml_temperature;

enum { WEIR__NVML_GPU_SENSOR = 0, WEIR__NVML_CLOCK_SM = 1 };

/* The functions of the library, named without "nvml". All return 0 on success. NULL if the library lacks a function. */
typedef struct weir__nvml {
  void *library;
  int (*Init)(void);
  int (*Shutdown)(void);
  int (*DeviceGetCount)(unsigned *count);
  int (*DeviceGetHandleByIndex)(unsigned index, weir__nvml_handle *device);
  int (*DeviceGetUUID)(weir__nvml_handle device, char *uuid, unsigned size);
  int (*DeviceGetHandleByPciBusId)(const char *id, weir__nvml_handle *device);
  int (*DeviceGetMemoryInfoV2)(weir__nvml_handle device, weir__nvml_memory *memory);
  int (*DeviceGetMemoryInfo)(weir__nvml_handle device, weir__nvml_memory_v1 *memory);
  int (*DeviceGetComputeRunningProcesses)(weir__nvml_handle device, unsigned *count, weir__nvml_process *processes);
  int (*DeviceGetUtilizationRates)(weir__nvml_handle device, weir__nvml_rates *rates);
  int (*DeviceGetTemperatureV)(weir__nvml_handle device, weir__nvml_temperature *temperature); /* since 570 */
  int (*DeviceGetTemperature)(weir__nvml_handle device, int sensor, unsigned *celsius);
  int (*DeviceGetPowerUsage)(weir__nvml_handle device, unsigned *milliwatts);
  int (*DeviceGetClockInfo)(weir__nvml_handle device, int clock, unsigned *megahertz);
  const char *(*ErrorString)(int result);
} weir__nvml;

/* Loads and initializes libnvidia-ml.so.1, or the library that WEIR_NVML_LIBRARY names. False on failure. */
bool weir__nvml_open(weir__nvml *nvml);
void weir__nvml_close(weir__nvml *nvml);

/* The UUIDs of the devices of the machine, at most `room` of them. False if the library does not report them. */
bool weir__nvml_uuids(const weir__nvml *nvml, char uuids[][WEIR__NVML_UUID_SIZE], int room, int *count);

/* The memory of a device, by its PCI bus id, and the processes that have some, at most `room` of them: *count is their
 * number. A process whose memory is not known has ~0. False if the library does not report the memory; *count is -1 if
 * it does not report the processes. */
bool weir__nvml_card(const weir__nvml *nvml, const char *bus, weir__nvml_memory *memory, weir__nvml_process *processes,
                     int room, int *count);

/* Lists the processes that use a device. *count is the capacity, and on return the number of processes. Returns NULL,
 * or the reason for failing. */
const char *weir__nvml_list_processes(weir_driver *driver, weir_cu_device device, weir__nvml_process *processes,
                                      unsigned *count);

/* The processes that have memory on a device, at most `room` of them; none if they are not known. Takes no lock and
 * cannot fail. */
size_t weir__device_processes(weir_driver *driver, weir_cu_device device, weir__nvml_process *processes, size_t room);

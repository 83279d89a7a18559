/*
 * Devices: their number, the current one, their properties.
 */
#ifndef WEIR_DEVICE_H
#define WEIR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIR_MAX_DEVICES = 64 };

/* The number of visible devices, 0 without a driver. Creates no context and does not start the runtime. It follows
 * changes of CUDA_VISIBLE_DEVICES until the runtime starts, and is fixed then. In a child that was forked after the
 * start it is the parent's number. */
weir_status weir_device_count(int *count);

/* 1 if there is a device. Never fails, and creates no context. */
static inline int weir_device_is_available(void) {
  int count;
  return !weir_device_count(&count) && count > 0;
}

/* The calling thread's current device; 0 until the thread sets another. */
weir_status weir_device_get_current(int *device);

/* Makes a device current and creates its context. WEIR_ERROR_INVALID_DEVICE if there is no such device. */
weir_status weir_device_set_current(int device);

/* Makes a device current and returns the previous one. A negative number changes nothing, and *previous is -1. */
weir_status weir_device_exchange(int device, int *previous);

/* The same, but creates no context: for a device without one, the change only takes effect when the device is used. */
weir_status weir_device_maybe_exchange(int device, int *previous);

typedef struct weir_device_properties {
  size_t size; /* sizeof(weir_device_properties) */
  char name[256];
  char uuid[48];       /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
  char pci_bus_id[32]; /* "0000:17:00.0" */
  int major, minor;    /* compute capability */
  uint64_t total_memory;
  int multiprocessor_count;
  int clock_khz;
  int warp_size;
  int max_threads_per_block;
  int max_threads_per_multiprocessor;
  int regs_per_multiprocessor;
  int shared_memory_per_block;
  int shared_memory_per_block_optin;
  int shared_memory_per_multiprocessor;
  int l2_cache_size;
  int is_integrated;
  int is_multi_gpu_board;
  int virtual_memory; /* 1 if expandable segments are possible */
  int memory_pools;   /* 1 if the driver has stream-ordered memory pools */
} weir_device_properties;

/* Sets `size` and makes the rest zero, for weir_device_get_properties. */
static inline void weir_device_properties_init(weir_device_properties *properties) { WEIR__INIT(properties); }

/* In all calls below, device -1 is the current one. */
weir_status weir_device_get_properties(int device, weir_device_properties *properties);
weir_status weir_device_capability(int device, int *major, int *minor);

/* Free and total bytes; the memory of other processes counts as used. */
weir_status weir_device_memory_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Waits for all work of the device. */
weir_status weir_device_synchronize(int device);

/* *can is 1 if `device` can access memory of `peer`. It is 0 for a device and itself. */
weir_status weir_device_can_access_peer(int device, int peer, int *can);

/* Lets `device` access memory of `peer`. May be called again. */
weir_status weir_device_enable_peer_access(int device, int peer);

/* 1 if the device has a context in this process. Creates none, and does not start the runtime. */
weir_status weir_device_has_primary_context(int device, int *has);

/* ---- Metrics ----
 *
 * They come from NVIDIA's management library (NVML), which is loaded on first use. A metric that is not available is
 * WEIR_ERROR_NOT_SUPPORTED, never 0, and the text says why. The software device reports its clock, and 100 or 0 percent
 * for whether it works at this moment; it has no temperature and no power draw. */

typedef enum weir_metric {
  WEIR_METRIC_UTILIZATION,  /* percent of the last sample period, a second or less, in which kernels ran */
  WEIR_METRIC_MEMORY_USAGE, /* percent of it in which memory was read or written */
  WEIR_METRIC_TEMPERATURE,  /* degrees Celsius */
  WEIR_METRIC_POWER_DRAW,   /* milliwatts */
  WEIR_METRIC_CLOCK_RATE    /* megahertz */
} weir_metric;

/* The value of a metric at this moment, in the unit named above. */
weir_status weir_device_metric(int device, weir_metric metric, int *value);

/* The devices that a value of CUDA_VISIBLE_DEVICES leaves visible, out of `count` devices with the UUIDs
 * uuids[0..count). NULL stands for an unset variable: all. Entries are numbers, or unique prefixes of GPU- names.
 * Parsing ends at the first entry that names no device, and a duplicate makes all devices invisible. Writes up to
 * WEIR_MAX_DEVICES ordinals, and their number to *visible. MIG- names need the driver: WEIR_ERROR_NOT_SUPPORTED. */
weir_status weir_visible_devices(const char *text, const char *const *uuids, int count, int *ordinals, int *visible);

#ifdef __cplusplus
}
#endif
#endif

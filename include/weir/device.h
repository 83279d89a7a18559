/*
 * Devices: how many, which is current, what they are.
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

/* 1 when there is a device to work with. Never fails, and makes no context. */
int weir_device_is_available(void);

/* The number of visible devices: 0 without a driver. Makes no context, and does not start the runtime; before the start
 * it follows changes of CUDA_VISIBLE_DEVICES, after it the number stays. In a child that was forked after the start it
 * is the parent's number. */
weir_status weir_device_count(int *count);

/* The calling thread's current device; 0 until the thread sets another. */
weir_status weir_device_get(int *device);

/* WEIR_ERROR_INVALID_DEVICE, and no change, for a number that is none. Makes the device's context. */
weir_status weir_device_set(int device);

/* Sets a device and tells which was current. A negative number changes nothing, and *previous is -1. */
weir_status weir_device_exchange(int device, int *previous);

/* The same, but a device without a context stays without: the switch is then only remembered. */
weir_status weir_device_maybe_exchange(int device, int *previous);

typedef struct weir_device_properties {
  size_t size; /* sizeof(weir_device_properties) */
  char name[256];
  char uuid[48];       /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
  char pci_bus_id[32]; /* "0000:17:00.0" */
  int major, minor;    /* compute capability */
  unsigned long long total_memory;
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
  int virtual_memory; /* 1: expandable segments are possible */
  int memory_pools;   /* 1: stream-ordered pools are there */
} weir_device_properties;

void weir_device_properties_init(weir_device_properties *properties);

/* In all these device -1 is the current one. */
weir_status weir_device_get_properties(int device, weir_device_properties *properties);
weir_status weir_device_name(int device, char *name, size_t size);
weir_status weir_device_capability(int device, int *major, int *minor);

/* "GPU-" and the 32 hexadecimal digits in their usual groups; 41 bytes with the NUL. */
weir_status weir_device_uuid(int device, char *text, size_t size);

/* Bytes free and in all, for every process. */
weir_status weir_device_memory_info(int device, uint64_t *free_bytes, uint64_t *total_bytes);

/* Waits for all work of the device. */
weir_status weir_device_synchronize(int device);

weir_status weir_device_can_access_peer(int device, int peer, int *can);

/* Lets `device` touch memory of `peer`. Doing it twice is fine. */
weir_status weir_device_enable_peer_access(int device, int peer);

/* 1 when the device has a context in this process. Never makes one, and never starts the runtime. */
weir_status weir_device_has_primary_context(int device, int *has);

/* ---- How busy, how warm ----
 *
 * NVIDIA's management library is asked, which is loaded for it. What it cannot tell is WEIR_ERROR_NOT_SUPPORTED, never 0, and
 * the text says why. The software device tells its own clock, and whether it is at work at this moment: 100 or 0 percent. It
 * has no temperature and draws no power. */

/* Percent of the last sample period, a second or less, in which kernels ran, and in which memory was read or written. */
weir_status weir_device_utilization(int device, int *percent);
weir_status weir_device_memory_usage(int device, int *percent);
weir_status weir_device_temperature(int device, int *celsius);
weir_status weir_device_power_draw(int device, int *milliwatts);
weir_status weir_device_clock_rate(int device, int *megahertz);

/* Which devices a CUDA_VISIBLE_DEVICES text leaves, of `count` devices whose uuid texts are uuids[0..count). NULL means
 * unset: all. Numbers, or unique beginnings of GPU- names; parsing ends at the first entry that names no device; a
 * duplicate leaves nothing. Up to WEIR_MAX_DEVICES ordinals are written to `ordinals`, their number to *visible. MIG- names
 * cannot be told from uuids alone: WEIR_ERROR_NOT_SUPPORTED, and the driver has to be asked. */
weir_status weir_visible_devices(const char *text, const char *const *uuids, int count, int *ordinals, int *visible);

#ifdef __cplusplus
}
#endif
#endif

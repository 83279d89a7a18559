/*
 * Devices, their primary contexts, peers, errors.
 */
#include <stdio.h>
#include <stdlib.h>

#include "driver/call.h"
#include "driver/soft/soft.h"
#include "driver/visible.h"

static struct soft_device *device_get(struct soft *soft, weir_cu_device device) {
  return device >= 0 && device < soft->device_count ? &soft->devices[device] : NULL;
}

/* The physical number stands in the first bytes, so that a beginning of the text already tells devices apart. */
static weir_cu_uuid uuid_of(int physical) {
  return (weir_cu_uuid){.bytes = {0x50, (char)0xf7, 0x00, (char)physical, 0x77, 0x65, 0x40, 0x69, (char)0x80, 0x72,
                                  0x73, 0x6f, 0x66, 0x74}};
}

/* As NVIDIA's driver, Init reads CUDA_VISIBLE_DEVICES. It does so again while no device is in use, so that a program that
 * shuts the runtime down and starts it anew can choose again. */
static void number_devices(struct soft *soft) {
  char texts[WEIR_SOFT_MAX_DEVICES][WEIR__UUID_SIZE];
  const char *uuids[WEIR_SOFT_MAX_DEVICES];
  int ordinals[WEIR_MAX_DEVICES];
  for (int i = 0; i < soft->options.devices; i++) {
    if (soft->devices[i].context || soft->devices[i].used)
      return;
    weir_cu_uuid uuid = uuid_of(i);
    weir__format_uuid(&uuid, texts[i]);
    uuids[i] = texts[i];
  }
  int count = weir__visible_ordinals(getenv("CUDA_VISIBLE_DEVICES"), uuids, soft->options.devices, ordinals);
  soft->device_count = count == WEIR__VISIBLE_MIG ? 0 : count;
  for (int i = 0; i < soft->device_count; i++)
    soft->devices[i].physical = ordinals[i];
}

weir_cu_result weir__soft_Init(struct soft *soft, unsigned flags) {
  if (flags)
    return WEIR_CU_INVALID_VALUE;
  number_devices(soft);
  soft->initialized = soft->device_count > 0;
  return soft->initialized ? WEIR_CU_SUCCESS : WEIR_CU_NO_DEVICE;
}

weir_cu_result weir__soft_DriverGetVersion(struct soft *soft, int *version) {
  (void)soft;
  if (!version)
    return WEIR_CU_INVALID_VALUE;
  *version = 13000;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_GetErrorName(struct soft *soft, weir_cu_result code, const char **name) {
  (void)soft;
  if (!name)
    return WEIR_CU_INVALID_VALUE;
  *name = weir__result_is_known(code) ? weir_cu_result_name(code) : NULL;
  return *name ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

weir_cu_result weir__soft_GetErrorString(struct soft *soft, weir_cu_result code, const char **text) {
  (void)soft;
  if (!text)
    return WEIR_CU_INVALID_VALUE;
  *text = weir__result_is_known(code) ? weir_cu_result_string(code) : NULL;
  return *text ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

/* ---- Devices ---- */

weir_cu_result weir__soft_DeviceGetCount(struct soft *soft, int *count) {
  if (!count)
    return WEIR_CU_INVALID_VALUE;
  *count = soft->device_count;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceGet(struct soft *soft, weir_cu_device *device, int ordinal) {
  if (!device)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, ordinal))
    return WEIR_CU_INVALID_DEVICE;
  *device = ordinal;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceGetName(struct soft *soft, char *name, int size, weir_cu_device device) {
  if (!name || size < 1)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, device))
    return WEIR_CU_INVALID_DEVICE;
  snprintf(name, (size_t)size, "Weir Software Device");
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceGetUuid(struct soft *soft, weir_cu_uuid *uuid, weir_cu_device device) {
  if (!uuid)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, device))
    return WEIR_CU_INVALID_DEVICE;
  *uuid = uuid_of(soft->devices[device].physical);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceGetPCIBusId(struct soft *soft, char *id, int size, weir_cu_device device) {
  if (!id || size < 1)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, device))
    return WEIR_CU_INVALID_DEVICE;
  snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)soft->devices[device].physical + 1);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceGetAttribute(struct soft *soft, int *value, int attribute, weir_cu_device device) {
  if (!value)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, device))
    return WEIR_CU_INVALID_DEVICE;
  switch (attribute) {
  case WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK:
    *value = 1024;
    break;
  case WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK:
    *value = 48 * 1024;
    break;
  case WEIR_CU_ATTR_WARP_SIZE:
    *value = 32;
    break;
  case WEIR_CU_ATTR_CLOCK_RATE:
    *value = soft->options.clock_khz;
    break;
  case WEIR_CU_ATTR_MULTIPROCESSOR_COUNT:
    *value = 1;
    break;
  case WEIR_CU_ATTR_PCI_BUS_ID:
    *value = soft->devices[device].physical + 1;
    break;
  case WEIR_CU_ATTR_L2_CACHE_SIZE:
    *value = 1 << 20;
    break;
  case WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR:
    *value = 2048;
    break;
  case WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR:
    *value = soft->options.capability_major;
    break;
  case WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR:
    *value = soft->options.capability_minor;
    break;
  case WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    *value = 228 * 1024;
    break;
  case WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR:
    *value = 65536;
    break;
  case WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
    *value = 227 * 1024;
    break;
  case WEIR_CU_ATTR_INTEGRATED:
  case WEIR_CU_ATTR_PCI_DEVICE_ID:
  case WEIR_CU_ATTR_PCI_DOMAIN_ID:
  case WEIR_CU_ATTR_MULTI_GPU_BOARD:
  case WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED:
  case WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED:
    *value = 0;
    break;
  case WEIR_CU_ATTR_UNIFIED_ADDRESSING:
  case WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED:
  case WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED:
  case WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED:
  case WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED:
  case WEIR_CU_ATTR_IPC_EVENT_SUPPORTED:
    *value = 1;
    break;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceTotalMem(struct soft *soft, size_t *bytes, weir_cu_device device) {
  if (!bytes)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, device))
    return WEIR_CU_INVALID_DEVICE;
  *bytes = soft->options.bytes;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DeviceCanAccessPeer(struct soft *soft, int *can, weir_cu_device device, weir_cu_device peer) {
  if (!can)
    return WEIR_CU_INVALID_VALUE;
  if (!device_get(soft, device) || !device_get(soft, peer))
    return WEIR_CU_INVALID_DEVICE;
  *can = device != peer;
  return WEIR_CU_SUCCESS;
}

/* ---- Contexts ---- */

weir_cu_result weir__soft_DevicePrimaryCtxRetain(struct soft *soft, weir_cu_context *context, weir_cu_device ordinal) {
  struct soft_device *device = device_get(soft, ordinal);
  if (!context)
    return WEIR_CU_INVALID_VALUE;
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  if (!device->context) {
    struct soft_stream *legacy = weir__soft_stream_new(soft, device, WEIR_CU_STREAM_DEFAULT, 0);
    uintptr_t handle = legacy ? weir__soft_handle_new(soft, SOFT_CONTEXT, device) : 0;
    if (!handle) {
      if (legacy)
        weir__soft_stream_drop(soft, legacy);
      return WEIR_CU_OUT_OF_MEMORY;
    }
    legacy->is_legacy = true;
    device->legacy = legacy;
    device->context = handle;
    device->error = WEIR_CU_SUCCESS;
  }
  device->retains++;
  *context = (weir_cu_context)device->context;
  return WEIR_CU_SUCCESS;
}

/* Frees the objects of one kind that belong to the device. */
static void sweep(struct soft *soft, struct soft_device *device, enum soft_kind kind) {
  for (size_t i = 0; i < soft->slot_count; i++) {
    if (soft->slots[i].kind != kind)
      continue;
    void *object = soft->slots[i].object;
    switch (kind) {
    case SOFT_EVENT:
      if (((struct soft_event *)object)->device == device)
        weir__soft_event_free(soft, object);
      break;
    case SOFT_EXEC:
      if (((struct soft_exec *)object)->device == device)
        weir__soft_exec_free(soft, object);
      break;
    case SOFT_GRAPH:
      if (((struct soft_graph *)object)->device == device)
        weir__soft_graph_free(soft, object);
      break;
    case SOFT_MODULE:
      if (((struct soft_module *)object)->device == device)
        weir__soft_module_free(soft, object);
      break;
    default:
      break;
    }
  }
}

/* The context goes with all that was made in it. No work is left. */
static void context_end(struct soft *soft, struct soft_device *device) {
  for (struct soft_capture *c = soft->captures, *next; c; c = next) {
    next = c->next;
    if (c->origin->device == device)
      weir__soft_capture_end(soft, c, NULL);
  }
  for (struct soft_thread *t = soft->threads; t; t = t->next)
    t->streams[device->ordinal] = NULL;
  for (struct soft_stream *s = device->streams, *next; s; s = next) {
    next = s->next;
    weir__soft_stream_drop(soft, s);
  }
  device->legacy = NULL;
  sweep(soft, device, SOFT_EXEC);
  sweep(soft, device, SOFT_GRAPH);
  sweep(soft, device, SOFT_EVENT);
  sweep(soft, device, SOFT_MODULE);
  weir__soft_pools_close(soft, device);
  uint64_t base = 0, bytes = 0;
  struct soft_range *range;
  while ((range = weir__rangemap_at_or_after(&soft->space, base, &base, &bytes))) {
    base += bytes;
    /* Chunks that are still there belong to graphs or to work of other devices, and go with them. */
    if (range->device == device && range->kind != SOFT_RANGE_RESERVED && range->kind != SOFT_RANGE_CHUNK)
      weir__soft_range_free(soft, range);
  }
  device->peers = 0;
  for (int i = 0; i < soft->device_count; i++)
    soft->devices[i].peers &= ~(1ull << device->ordinal);
  weir__soft_handle_free(soft, device->context);
  device->context = 0;
}

static bool is_busy(const struct soft_device *device) {
  for (const struct soft_stream *s = device->streams; s; s = s->next)
    if (s->pending)
      return true;
  return false;
}

/* The work is done first, as far as a broken context gets. Meanwhile other threads may retain, release and enqueue. */
weir_cu_result weir__soft_DevicePrimaryCtxRelease(struct soft *soft, weir_cu_device ordinal) {
  struct soft_device *device = device_get(soft, ordinal);
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  while (device->retains == 1 && is_busy(device))
    weir__soft_wait_device(soft, device);
  if (!device->retains)
    return WEIR_CU_INVALID_CONTEXT;
  if (--device->retains == 0)
    context_end(soft, device);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_DevicePrimaryCtxGetState(struct soft *soft, weir_cu_device ordinal, unsigned *flags,
                                                   int *active) {
  struct soft_device *device = device_get(soft, ordinal);
  if (!flags || !active)
    return WEIR_CU_INVALID_VALUE;
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  *flags = 0;
  *active = device->context != 0;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_CtxGetCurrent(struct soft *soft, weir_cu_context *context) {
  if (!context)
    return WEIR_CU_INVALID_VALUE;
  *context = (weir_cu_context)weir__soft_thread(soft)->context;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_CtxSetCurrent(struct soft *soft, weir_cu_context context) {
  if (context && !weir__soft_handle_get(soft, SOFT_CONTEXT, (uintptr_t)context))
    return WEIR_CU_INVALID_CONTEXT;
  weir__soft_thread(soft)->context = (uintptr_t)context;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_current(struct soft *soft, struct soft_device **device) {
  uintptr_t context = weir__soft_thread(soft)->context;
  if (!context)
    return WEIR_CU_INVALID_CONTEXT;
  struct soft_device *d = weir__soft_handle_get(soft, SOFT_CONTEXT, context);
  if (!d)
    return WEIR_CU_CONTEXT_IS_DESTROYED;
  *device = d;
  return d->error;
}

weir_cu_result weir__soft_CtxGetDevice(struct soft *soft, weir_cu_device *ordinal) {
  struct soft_device *device = NULL; /* a broken context may still ask */
  weir_cu_result r = weir__soft_current(soft, &device);
  if (!device)
    return r;
  if (!ordinal)
    return WEIR_CU_INVALID_VALUE;
  *ordinal = device->ordinal;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_CtxSynchronize(struct soft *soft) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  for (struct soft_capture *c = soft->captures; c; c = c->next)
    if (c->origin->device == device) {
      weir__soft_invalidate(c);
      r = WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
    }
  return r ? r : weir__soft_wait_device(soft, device);
}

weir_cu_result weir__soft_CtxGetStreamPriorityRange(struct soft *soft, int *least, int *greatest) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  if (least)
    *least = 0;
  if (greatest)
    *greatest = SOFT_PRIORITY_GREATEST;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_CtxEnablePeerAccess(struct soft *soft, weir_cu_context context, unsigned flags) {
  struct soft_device *device, *peer = weir__soft_handle_get(soft, SOFT_CONTEXT, (uintptr_t)context);
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  if (flags)
    return WEIR_CU_INVALID_VALUE;
  if (!peer)
    return WEIR_CU_INVALID_CONTEXT;
  if (peer == device)
    return WEIR_CU_PEER_ACCESS_UNSUPPORTED;
  if (device->peers >> peer->ordinal & 1)
    return WEIR_CU_PEER_ACCESS_ALREADY_ENABLED;
  device->peers |= 1ull << peer->ordinal;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_CtxDisablePeerAccess(struct soft *soft, weir_cu_context context) {
  struct soft_device *device, *peer = weir__soft_handle_get(soft, SOFT_CONTEXT, (uintptr_t)context);
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  if (!peer)
    return WEIR_CU_INVALID_CONTEXT;
  if (!(device->peers >> peer->ordinal & 1))
    return WEIR_CU_PEER_ACCESS_NOT_ENABLED;
  device->peers &= ~(1ull << peer->ordinal);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_ProfilerStart(struct soft *soft) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  return r ? r : weir__soft_unsafe(soft);
}

weir_cu_result weir__soft_ProfilerStop(struct soft *soft) { return weir__soft_ProfilerStart(soft); }

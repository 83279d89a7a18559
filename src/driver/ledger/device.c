/*
 * Devices and their primary contexts.
 */
#include "driver/ledger/ledger.h"

#include <stdio.h>
#include <string.h>

ledger_device *weir__ledger_device(const ledger *l, int number) {
  return number >= 0 && number < l->options.devices ? &l->devices[number] : NULL;
}

/* A context is its device, before and after it exists: what NVIDIA's driver hands out stays the same too. */
weir_cu_context weir__ledger_context_handle(const ledger_device *device) {
  return (weir_cu_context)(uintptr_t)((uint64_t)LEDGER_KIND_CONTEXT << 56 | (uint64_t)device->ordinal);
}

ledger_device *weir__ledger_device_of(const ledger *l, weir_cu_context context) {
  ledger_device *device = weir__ledger_device(l, (int)((uint64_t)(uintptr_t)context & 0xff));
  bool known = device != NULL && device->retains > 0 && weir__ledger_context_handle(device) == context;
  return known ? device : NULL;
}

/* For an entry that asks about a device by number. */
static weir_cu_result find_device(weir_driver *self, int number, ledger_device **device) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  *device = weir__ledger_device(l, number);
  return *device != NULL ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_DEVICE;
}

static weir_cu_result DeviceGetCount(weir_driver *self, int *count) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (count == NULL)
    return WEIR_CU_INVALID_VALUE;
  *count = l->options.devices;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceGet(weir_driver *self, weir_cu_device *number, int ordinal) {
  ledger_device *device;
  weir_cu_result result = find_device(self, ordinal, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (number == NULL)
    return WEIR_CU_INVALID_VALUE;
  *number = ordinal;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceGetName(weir_driver *self, char *name, int size, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (name == NULL || size <= 0)
    return WEIR_CU_INVALID_VALUE;
  snprintf(name, (size_t)size, "Weir ledger");
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceGetUuid(weir_driver *self, weir_cu_uuid *uuid, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (uuid == NULL)
    return WEIR_CU_INVALID_VALUE;
  memcpy(uuid->bytes, "weir-ledger-dev", 15);
  uuid->bytes[15] = (char)number;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceGetPCIBusId(weir_driver *self, char *id, int size, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (id == NULL || size <= 0)
    return WEIR_CU_INVALID_VALUE;
  snprintf(id, (size_t)size, "0000:%02x:00.0", (unsigned)number);
  return WEIR_CU_SUCCESS;
}

/* What the ledger can do is true; what describes a chip is one round figure each, because nothing runs. */
static weir_cu_result DeviceGetAttribute(weir_driver *self, int *value, int attribute, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (value == NULL)
    return WEIR_CU_INVALID_VALUE;
  switch (attribute) {
  case WEIR_CU_ATTR_UNIFIED_ADDRESSING:
  case WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED:
  case WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED:
  case WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED:
    *value = 1;
    break;
  case WEIR_CU_ATTR_INTEGRATED:
  case WEIR_CU_ATTR_MULTI_GPU_BOARD:
  case WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED:
  case WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED:
  case WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED:
  case WEIR_CU_ATTR_IPC_EVENT_SUPPORTED:
  case WEIR_CU_ATTR_PCI_DOMAIN_ID:
  case WEIR_CU_ATTR_PCI_DEVICE_ID:
    *value = 0;
    break;
  case WEIR_CU_ATTR_PCI_BUS_ID:
    *value = number;
    break;
  case WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR:
    *value = 9;
    break;
  case WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR:
    *value = 0;
    break;
  case WEIR_CU_ATTR_WARP_SIZE:
    *value = 32;
    break;
  case WEIR_CU_ATTR_MULTIPROCESSOR_COUNT:
    *value = 1;
    break;
  case WEIR_CU_ATTR_CLOCK_RATE:
    *value = 1000000;
    break;
  case WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK:
    *value = LEDGER_MAX_THREADS;
    break;
  case WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR:
    *value = 2048;
    break;
  case WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR:
    *value = 64 << 10;
    break;
  case WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK:
    *value = 48 << 10;
    break;
  case WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
  case WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
    *value = 228 << 10;
    break;
  case WEIR_CU_ATTR_L2_CACHE_SIZE:
    *value = 50 << 20;
    break;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceTotalMem(weir_driver *self, size_t *bytes, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (bytes == NULL)
    return WEIR_CU_INVALID_VALUE;
  *bytes = weir__ledger_of(self)->options.bytes;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DeviceCanAccessPeer(weir_driver *self, int *can, weir_cu_device number, weir_cu_device peer) {
  ledger_device *device, *other;
  weir_cu_result result = find_device(self, number, &device);
  if (result == WEIR_CU_SUCCESS)
    result = find_device(self, peer, &other);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (can == NULL)
    return WEIR_CU_INVALID_VALUE;
  *can = device != other;
  return WEIR_CU_SUCCESS;
}

/* ---- Contexts ---- */

static weir_cu_result DevicePrimaryCtxRetain(weir_driver *self, weir_cu_context *context, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (context == NULL)
    return WEIR_CU_INVALID_VALUE;
  device->retains++;
  *context = weir__ledger_context_handle(device);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DevicePrimaryCtxRelease(weir_driver *self, weir_cu_device number) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (device->retains == 0)
    return WEIR_CU_INVALID_CONTEXT;
  if (--device->retains > 0)
    return WEIR_CU_SUCCESS;

  ledger *l = weir__ledger_of(self);
  weir__ledger_drop_context_streams(l, device);
  weir__ledger_drop_context_graphs(l, device);
  weir__ledger_drop_context_modules(l, device);
  weir__ledger_drop_context_memory(l, device);
  weir__ledger_drop_context_pools(l, device);
  device->peers = 0;
  for (int i = 0; i < l->options.devices; i++)
    l->devices[i].peers &= ~weir__ledger_bit(device);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result DevicePrimaryCtxGetState(weir_driver *self, weir_cu_device number, unsigned *flags, int *active) {
  ledger_device *device;
  weir_cu_result result = find_device(self, number, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (flags == NULL || active == NULL)
    return WEIR_CU_INVALID_VALUE;
  *flags = 0;
  *active = device->retains > 0;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result CtxGetCurrent(weir_driver *self, weir_cu_context *context) {
  const ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  if (context == NULL)
    return WEIR_CU_INVALID_VALUE;
  *context = l->current != NULL ? weir__ledger_context_handle(l->current) : NULL;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result CtxSetCurrent(weir_driver *self, weir_cu_context context) {
  ledger *l = weir__ledger_of(self);
  if (!l->ready)
    return WEIR_CU_NOT_INITIALIZED;
  ledger_device *device = weir__ledger_device_of(l, context);
  if (context != NULL && device == NULL)
    return WEIR_CU_INVALID_CONTEXT;
  l->current = device;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result CtxGetDevice(weir_driver *self, weir_cu_device *number) {
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(weir__ledger_of(self), &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (number == NULL)
    return WEIR_CU_INVALID_VALUE;
  *number = device->ordinal;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result CtxSynchronize(weir_driver *self) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_no_capture_on(l, device);
  if (result == WEIR_CU_SUCCESS)
    weir__ledger_settle_pools(l);
  return result;
}

static weir_cu_result CtxGetStreamPriorityRange(weir_driver *self, int *least, int *greatest) {
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(weir__ledger_of(self), &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (least != NULL)
    *least = LEDGER_LEAST_PRIORITY;
  if (greatest != NULL)
    *greatest = LEDGER_GREATEST_PRIORITY;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result CtxEnablePeerAccess(weir_driver *self, weir_cu_context peer, unsigned flags) {
  const ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  ledger_device *other = weir__ledger_device_of(l, peer);
  if (other == NULL)
    return WEIR_CU_INVALID_CONTEXT;
  if (flags != 0)
    return WEIR_CU_INVALID_VALUE;
  if (other == device)
    return WEIR_CU_PEER_ACCESS_UNSUPPORTED;
  if (device->peers & weir__ledger_bit(other))
    return WEIR_CU_PEER_ACCESS_ALREADY_ENABLED;
  device->peers |= weir__ledger_bit(other);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result CtxDisablePeerAccess(weir_driver *self, weir_cu_context peer) {
  const ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  ledger_device *other = weir__ledger_device_of(l, peer);
  if (other == NULL)
    return WEIR_CU_INVALID_CONTEXT;
  if (!(device->peers & weir__ledger_bit(other)))
    return WEIR_CU_PEER_ACCESS_NOT_ENABLED;
  device->peers &= ~weir__ledger_bit(other);
  return WEIR_CU_SUCCESS;
}

void weir__ledger_add_devices(weir_driver *table) {
  table->DeviceGetCount = DeviceGetCount;
  table->DeviceGet = DeviceGet;
  table->DeviceGetName = DeviceGetName;
  table->DeviceGetUuid = DeviceGetUuid;
  table->DeviceGetPCIBusId = DeviceGetPCIBusId;
  table->DeviceGetAttribute = DeviceGetAttribute;
  table->DeviceTotalMem = DeviceTotalMem;
  table->DeviceCanAccessPeer = DeviceCanAccessPeer;
  table->DevicePrimaryCtxRetain = DevicePrimaryCtxRetain;
  table->DevicePrimaryCtxRelease = DevicePrimaryCtxRelease;
  table->DevicePrimaryCtxGetState = DevicePrimaryCtxGetState;
  table->CtxGetCurrent = CtxGetCurrent;
  table->CtxSetCurrent = CtxSetCurrent;
  table->CtxGetDevice = CtxGetDevice;
  table->CtxSynchronize = CtxSynchronize;
  table->CtxGetStreamPriorityRange = CtxGetStreamPriorityRange;
  table->CtxEnablePeerAccess = CtxEnablePeerAccess;
  table->CtxDisablePeerAccess = CtxDisablePeerAccess;
}

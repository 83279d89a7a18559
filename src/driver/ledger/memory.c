/*
 * Memory that has an address from the start: plain allocations and host memory. And what is known of an address.
 */
#include "driver/ledger/ledger.h"

static bool is_host(const ledger_range *range) {
  return range->kind == LEDGER_RANGE_HOST || range->kind == LEDGER_RANGE_REGISTERED;
}

static bool mapped_throughout(const ledger_range *reservation, uint64_t device, uint64_t address, uint64_t bytes,
                              bool write) {
  for (uint64_t at = address; at - address < bytes;) {
    const ledger_mapping *mapping = weir__ledger_mapping(reservation, at);
    if (mapping == NULL || !((write ? mapping->writers : mapping->readers) & device))
      return false;
    at = mapping->base + mapping->bytes;
  }
  return true;
}

bool weir__ledger_reachable(const ledger *l, const ledger_device *device, uint64_t address, uint64_t bytes, bool write,
                            bool host) {
  if (bytes == 0)
    return true;
  if (address == 0 || bytes - 1 > UINT64_MAX - address)
    return false;
  const ledger_range *range = weir__ledger_find_range(l, address);
  if (range == NULL) {
    /* Nobody told the ledger of it: memory of the program's own, unless only the ledger gives out such addresses. */
    bool own = address < LEDGER_SPACE_END && address + (bytes - 1) >= LEDGER_SPACE_BEGIN;
    return host && !own && weir__ledger_overlap(l, address, bytes) == NULL;
  }
  if (bytes > range->bytes - (address - range->base))
    return false;
  return range->kind != LEDGER_RANGE_RESERVATION ||
         mapped_throughout(range, weir__ledger_bit(device), address, bytes, write);
}

/* Every range but a reservation was made in the context of its device. */
static void drop_of_context(ledger *l, ledger_range *range, void *data) {
  ledger_device *device = data;
  if (range->device != device)
    return;
  if (range->kind == LEDGER_RANGE_POOLED) {
    weir__ledger_free_pooled(l, range);
    return;
  }
  if (range->kind == LEDGER_RANGE_PLAIN)
    device->used -= range->bytes;
  weir__ledger_drop_range(l, range);
}

void weir__ledger_drop_context_memory(ledger *l, ledger_device *device) {
  weir__ledger_each_range(l, drop_of_context, device);
}

/* ---- Plain memory ---- */

static weir_cu_result MemGetInfo(weir_driver *self, size_t *free_bytes, size_t *total_bytes) {
  const ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (free_bytes == NULL || total_bytes == NULL)
    return WEIR_CU_INVALID_VALUE;
  *free_bytes = l->options.bytes - device->used;
  *total_bytes = l->options.bytes;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemAlloc(weir_driver *self, weir_cu_deviceptr *pointer, size_t bytes) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (pointer == NULL || bytes == 0)
    return WEIR_CU_INVALID_VALUE;
  if (!weir__ledger_take_bytes(l, device, bytes))
    return WEIR_CU_OUT_OF_MEMORY;

  uint64_t address = 0;
  if (l->options.place != NULL)
    address = l->options.place(l->options.place_context, WEIR_CALL_MemAlloc, bytes);
  ledger_range *range;
  result = weir__ledger_add_range(l, LEDGER_RANGE_PLAIN, address, bytes, 0, device, &range);
  if (result != WEIR_CU_SUCCESS) {
    device->used -= bytes;
    return result;
  }
  *pointer = range->base;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemFree(weir_driver *self, weir_cu_deviceptr pointer) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS || pointer == 0)
    return result;
  ledger_range *range = weir__ledger_range_at(l, pointer);
  if (range == NULL)
    return WEIR_CU_INVALID_VALUE;
  if (range->kind == LEDGER_RANGE_PLAIN) {
    range->device->used -= range->bytes;
    weir__ledger_drop_range(l, range);
  } else if (range->kind == LEDGER_RANGE_POOLED) {
    weir__ledger_free_pooled(l, range);
    weir__ledger_settle_pools(l);
  } else {
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

/* ---- Host memory ---- */

static weir_cu_result MemHostAlloc(weir_driver *self, void **pointer, size_t bytes, unsigned flags) {
  const unsigned allowed =
      WEIR_CU_MEMHOSTALLOC_PORTABLE | WEIR_CU_MEMHOSTALLOC_DEVICEMAP | WEIR_CU_MEMHOSTALLOC_WRITECOMBINED;
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (pointer == NULL || (flags & ~allowed) != 0)
    return WEIR_CU_INVALID_VALUE;
  if (bytes == 0) {
    /* NVIDIA's driver answers so. */
    *pointer = NULL;
    return WEIR_CU_SUCCESS;
  }
  ledger_range *range;
  result = weir__ledger_add_range(l, LEDGER_RANGE_HOST, 0, bytes, 0, device, &range);
  if (result == WEIR_CU_SUCCESS)
    *pointer = (void *)(uintptr_t)range->base;
  return result;
}

static weir_cu_result MemFreeHost(weir_driver *self, void *pointer) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS || pointer == NULL)
    return result;
  ledger_range *range = weir__ledger_range_at(l, (uintptr_t)pointer);
  if (range == NULL || range->kind != LEDGER_RANGE_HOST)
    return WEIR_CU_INVALID_VALUE;
  weir__ledger_drop_range(l, range);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemHostRegister(weir_driver *self, void *pointer, size_t bytes, unsigned flags) {
  const unsigned allowed = WEIR_CU_MEMHOSTREGISTER_PORTABLE | WEIR_CU_MEMHOSTREGISTER_DEVICEMAP;
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  if (pointer == NULL || bytes == 0 || (flags & ~allowed) != 0)
    return WEIR_CU_INVALID_VALUE;
  const ledger_range *there = weir__ledger_overlap(l, (uintptr_t)pointer, bytes);
  if (there != NULL && is_host(there))
    return WEIR_CU_HOST_MEMORY_ALREADY_REGISTERED;
  ledger_range *range;
  return weir__ledger_add_range(l, LEDGER_RANGE_REGISTERED, (uintptr_t)pointer, bytes, 0, device, &range);
}

static weir_cu_result MemHostUnregister(weir_driver *self, void *pointer) {
  ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result == WEIR_CU_SUCCESS)
    result = weir__ledger_unsafe(l);
  if (result != WEIR_CU_SUCCESS)
    return result;
  ledger_range *range = weir__ledger_find_range(l, (uintptr_t)pointer);
  if (range == NULL || range->kind != LEDGER_RANGE_REGISTERED)
    return WEIR_CU_HOST_MEMORY_NOT_REGISTERED;
  if (range->base != (uintptr_t)pointer)
    return WEIR_CU_INVALID_VALUE;
  weir__ledger_drop_range(l, range);
  return WEIR_CU_SUCCESS;
}

static weir_cu_result MemHostGetDevicePointer(weir_driver *self, weir_cu_deviceptr *device_pointer, void *pointer,
                                              unsigned flags) {
  const ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  const ledger_range *range = weir__ledger_find_range(l, (uintptr_t)pointer);
  if (device_pointer == NULL || flags != 0 || range == NULL || !is_host(range))
    return WEIR_CU_INVALID_VALUE;
  *device_pointer = (uintptr_t)pointer;
  return WEIR_CU_SUCCESS;
}

/* ---- What lies at an address ---- */

typedef struct spot {
  uint64_t base, bytes, id;
  const ledger_device *device;
  bool host;
} spot;

static bool look_up(const ledger *l, uint64_t address, spot *s) {
  const ledger_range *range = weir__ledger_find_range(l, address);
  if (range == NULL)
    return false;
  if (range->kind == LEDGER_RANGE_RESERVATION) {
    const ledger_mapping *mapping = weir__ledger_mapping(range, address);
    if (mapping == NULL)
      return false;
    *s = (spot){mapping->base, mapping->bytes, mapping->id, mapping->memory->device, false};
  } else {
    *s = (spot){range->base, range->bytes, range->id, range->device, is_host(range)};
  }
  return true;
}

static weir_cu_result MemGetAddressRange(weir_driver *self, weir_cu_deviceptr *base, size_t *bytes,
                                         weir_cu_deviceptr pointer) {
  const ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  spot s;
  if (!look_up(l, pointer, &s))
    return WEIR_CU_NOT_FOUND;
  if (base != NULL)
    *base = s.base;
  if (bytes != NULL)
    *bytes = s.bytes;
  return WEIR_CU_SUCCESS;
}

static weir_cu_result PointerGetAttribute(weir_driver *self, void *value, int attribute, weir_cu_deviceptr pointer) {
  const ledger *l = weir__ledger_of(self);
  ledger_device *device;
  weir_cu_result result = weir__ledger_context(l, &device);
  if (result != WEIR_CU_SUCCESS)
    return result;
  spot s;
  if (value == NULL || !look_up(l, pointer, &s))
    return WEIR_CU_INVALID_VALUE;
  switch (attribute) {
  case WEIR_CU_POINTER_ATTR_CONTEXT:
    *(weir_cu_context *)value = weir__ledger_context_handle(s.device);
    break;
  case WEIR_CU_POINTER_ATTR_MEMORY_TYPE:
    *(unsigned *)value = s.host ? WEIR_CU_MEMORY_TYPE_HOST : WEIR_CU_MEMORY_TYPE_DEVICE;
    break;
  case WEIR_CU_POINTER_ATTR_DEVICE_POINTER:
    *(weir_cu_deviceptr *)value = pointer;
    break;
  case WEIR_CU_POINTER_ATTR_HOST_POINTER:
    if (!s.host)
      return WEIR_CU_INVALID_VALUE;
    *(void **)value = (void *)(uintptr_t)pointer;
    break;
  case WEIR_CU_POINTER_ATTR_BUFFER_ID:
    *(unsigned long long *)value = s.id;
    break;
  case WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL:
    *(int *)value = s.device->ordinal;
    break;
  case WEIR_CU_POINTER_ATTR_RANGE_START:
    *(weir_cu_deviceptr *)value = s.base;
    break;
  case WEIR_CU_POINTER_ATTR_RANGE_SIZE:
    *(size_t *)value = s.bytes;
    break;
  case WEIR_CU_POINTER_ATTR_MAPPED:
    *(unsigned char *)value = 1;
    break;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

void weir__ledger_add_memory(weir_driver *table) {
  table->MemGetInfo = MemGetInfo;
  table->MemAlloc = MemAlloc;
  table->MemFree = MemFree;
  table->MemGetAddressRange = MemGetAddressRange;
  table->MemHostAlloc = MemHostAlloc;
  table->MemFreeHost = MemFreeHost;
  table->MemHostRegister = MemHostRegister;
  table->MemHostUnregister = MemHostUnregister;
  table->MemHostGetDevicePointer = MemHostGetDevicePointer;
  table->PointerGetAttribute = PointerGetAttribute;
}

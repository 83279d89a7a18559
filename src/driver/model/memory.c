/*
 * Memory that has an address from the start: plain allocations and host memory. And what is known of an address.
 */
#include "driver/access.h"
#include "driver/model/model.h"

static bool is_host(const model_range *range) {
  return range->kind == MODEL_RANGE_HOST || range->kind == MODEL_RANGE_REGISTERED;
}

/* A copy or a fill that would fault is refused before it is enqueued. */
static void report_access(uint64_t device, uint64_t address, bool write) {
  weir__access_observer_fn observer = atomic_load_explicit(&weir__access_observer, memory_order_acquire);
  if (observer)
    observer(&(weir__access){.address = address,
                             .is_write = write,
                             .device = __builtin_ctzll(device),
                             .name = write ? "copy or memset" : "copy"});
}

/* Whether every byte is mapped, and the device may touch it so. */
static bool mapped_throughout(const model_range *reservation, uint64_t device, uint64_t address, uint64_t bytes,
                              bool write) {
  for (uint64_t at = address; at - address < bytes;) {
    const model_mapping *mapping = weir__model_mapping(reservation, at);
    if (!mapping || !((write ? mapping->writers : mapping->readers) & device)) {
      report_access(device, at, write);
      return false;
    }
    at = mapping->base + mapping->bytes;
  }
  return true;
}

weir_cu_result weir__model_check(const model *m, const model_device *device, uint64_t address, uint64_t bytes,
                                 bool write, model_range **found) {
  model_range *range = *found = weir__model_find_range(m, address);
  if (!address || bytes - 1 > UINT64_MAX - address)
    return WEIR_CU_INVALID_VALUE;
  if (!range) {
    /* Memory of the program's own, unless only the model gives out such addresses. */
    bool own = address < MODEL_SPACE_END && address + (bytes - 1) >= MODEL_SPACE_BEGIN;
    return own || weir__model_overlap(m, address, bytes) ? WEIR_CU_INVALID_VALUE : WEIR_CU_SUCCESS;
  }
  if (bytes > range->bytes - (address - range->base))
    return WEIR_CU_INVALID_VALUE;
  bool usable = range->kind == MODEL_RANGE_RESERVATION
                    ? mapped_throughout(range, weir__model_bit(device), address, bytes, write)
                    : range->kind != MODEL_RANGE_POOLED || !range->idle;
  return usable ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
}

bool weir__model_wait_for_busy(model *m, const model_range *range) {
  uint64_t base = range->base, id = range->id;
  m->hooks->wait_device(m, range->device);
  const model_range *now = weir__model_range_at(m, base);
  return now && now->id == id;
}

/* For a call that allocates memory: needs a context, and is unsafe in a capture. */
static weir_cu_result enter(model *m, model_device **device) {
  weir_cu_result r = weir__model_context(m, device);
  return r ? r : weir__model_unsafe(m);
}

/* ---- Plain memory ---- */

weir_cu_result weir__model_MemGetInfo(model *m, uint64_t *free_bytes, uint64_t *total_bytes) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (!free_bytes || !total_bytes)
    return WEIR_CU_INVALID_VALUE;
  *free_bytes = m->bytes - device->used;
  *total_bytes = m->bytes;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemAlloc(model *m, weir_cu_deviceptr *pointer, uint64_t bytes) {
  model_device *device;
  model_range *range;
  weir_cu_result r = enter(m, &device);
  if (r)
    return r;
  if (!pointer || !bytes)
    return WEIR_CU_INVALID_VALUE;
  if (bytes > m->bytes)
    return WEIR_CU_OUT_OF_MEMORY;
  r = m->hooks->new_range(m, &(model_request){MODEL_RANGE_PLAIN, device, bytes, 0, 0}, &range);
  if (!r)
    *pointer = range->base;
  return r;
}

weir_cu_result weir__model_MemFree(model *m, weir_cu_deviceptr pointer) {
  model_device *device;
  weir_cu_result r = weir__model_unsafe(m);
  if (r || !pointer || (r = weir__model_context(m, &device)))
    return r;
  model_range *range = weir__model_range_at(m, pointer);
  bool pooled = range && range->kind == MODEL_RANGE_POOLED && !range->idle;
  if (!range || (range->kind != MODEL_RANGE_PLAIN && !pooled))
    return WEIR_CU_INVALID_VALUE;
  uint64_t turn = pooled ? range->turn : 0;
  if (!weir__model_wait_for_range(m, range))
    return WEIR_CU_INVALID_VALUE;
  if (!pooled) {
    weir__model_free_range(m, range);
    return WEIR_CU_SUCCESS;
  }
  if (range->idle || range->turn != turn)
    return WEIR_CU_INVALID_VALUE;                                             /* another thread freed it meanwhile */
  return range->pool ? m->hooks->pool_free(m, range, NULL) : WEIR_CU_SUCCESS; /* memory of a graph stays the graph's */
}

/* ---- Host memory ---- */

weir_cu_result weir__model_MemHostAlloc(model *m, void **pointer, uint64_t bytes, unsigned flags) {
  const unsigned allowed =
      WEIR_CU_MEMHOSTALLOC_PORTABLE | WEIR_CU_MEMHOSTALLOC_DEVICEMAP | WEIR_CU_MEMHOSTALLOC_WRITECOMBINED;
  model_device *device;
  model_range *range;
  weir_cu_result r = enter(m, &device);
  if (r)
    return r;
  if (!pointer || flags & ~allowed)
    return WEIR_CU_INVALID_VALUE;
  if (!bytes) { /* NVIDIA's driver answers so */
    *pointer = NULL;
    return WEIR_CU_SUCCESS;
  }
  r = m->hooks->new_range(m, &(model_request){MODEL_RANGE_HOST, device, bytes, 0, 0}, &range);
  if (!r)
    *pointer = (void *)(uintptr_t)range->base;
  return r;
}

weir_cu_result weir__model_MemFreeHost(model *m, void *pointer) {
  model_device *device;
  weir_cu_result r = weir__model_unsafe(m);
  if (r || !pointer || (r = weir__model_context(m, &device)))
    return r;
  model_range *range = weir__model_range_at(m, (uintptr_t)pointer);
  if (!range || range->kind != MODEL_RANGE_HOST || !weir__model_wait_for_range(m, range))
    return WEIR_CU_INVALID_VALUE;
  weir__model_free_range(m, range);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemHostRegister(model *m, void *pointer, uint64_t bytes, unsigned flags) {
  model_device *device;
  model_range *range;
  weir_cu_result r = enter(m, &device);
  if (r)
    return r;
  if (!pointer || !bytes || flags & ~15u || bytes > UINT64_MAX - (uintptr_t)pointer)
    return WEIR_CU_INVALID_VALUE;
  const model_range *there = weir__model_overlap(m, (uintptr_t)pointer, bytes);
  if (there)
    return is_host(there) ? WEIR_CU_HOST_MEMORY_ALREADY_REGISTERED : WEIR_CU_INVALID_VALUE;
  return weir__model_add_range(m, &(model_request){MODEL_RANGE_REGISTERED, device, bytes, 0, 0}, (uintptr_t)pointer,
                               bytes, &range);
}

weir_cu_result weir__model_MemHostUnregister(model *m, void *pointer) {
  model_device *device;
  weir_cu_result r = enter(m, &device);
  if (r)
    return r;
  model_range *range = weir__model_find_range(m, (uintptr_t)pointer);
  if (!range || range->kind != MODEL_RANGE_REGISTERED)
    return WEIR_CU_HOST_MEMORY_NOT_REGISTERED;
  if (range->base != (uintptr_t)pointer)
    return WEIR_CU_INVALID_VALUE;
  if (!weir__model_wait_for_range(m, range))
    return WEIR_CU_HOST_MEMORY_NOT_REGISTERED;
  weir__model_free_range(m, range);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_MemHostGetDevicePointer(model *m, weir_cu_deviceptr *device_pointer, void *pointer,
                                                   unsigned flags) {
  model_device *device;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  const model_range *range = weir__model_find_range(m, (uintptr_t)pointer);
  if (!device_pointer || flags || !range || !is_host(range))
    return WEIR_CU_INVALID_VALUE;
  *device_pointer = (uintptr_t)pointer;
  return WEIR_CU_SUCCESS;
}

/* ---- What lies at an address ---- */

typedef struct place {
  uint64_t base, bytes, id;
  const model_device *device;
  bool host;
} place;

static bool look_up(const model *m, uint64_t address, place *p) {
  const model_range *range = weir__model_find_range(m, address);
  if (!range)
    return false;
  if (range->kind == MODEL_RANGE_RESERVATION) {
    const model_mapping *mapping = weir__model_mapping(range, address);
    if (!mapping)
      return false;
    *p = (place){mapping->base, mapping->bytes, mapping->id, mapping->memory->device, false};
  } else
    *p = (place){range->base, range->bytes, range->id, range->device, is_host(range)};
  return true;
}

weir_cu_result weir__model_MemGetAddressRange(model *m, weir_cu_deviceptr *base, uint64_t *bytes,
                                              weir_cu_deviceptr pointer) {
  model_device *device;
  place p;
  weir_cu_result r = weir__model_context(m, &device);
  if (r)
    return r;
  if (!look_up(m, pointer, &p))
    return WEIR_CU_NOT_FOUND;
  if (base)
    *base = p.base;
  if (bytes)
    *bytes = p.bytes;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__model_PointerGetAttribute(model *m, void *value, int attribute, weir_cu_deviceptr pointer) {
  place p;
  if (!value || !look_up(m, pointer, &p))
    return WEIR_CU_INVALID_VALUE;
  switch (attribute) {
  case WEIR_CU_POINTER_ATTR_CONTEXT:
    *(weir_cu_context *)value = p.device->retains ? weir__model_context_of(m, p.device) : NULL;
    break;
  case WEIR_CU_POINTER_ATTR_MEMORY_TYPE:
    *(unsigned *)value = p.host ? WEIR_CU_MEMORY_TYPE_HOST : WEIR_CU_MEMORY_TYPE_DEVICE;
    break;
  case WEIR_CU_POINTER_ATTR_DEVICE_POINTER:
    *(weir_cu_deviceptr *)value = pointer;
    break;
  case WEIR_CU_POINTER_ATTR_HOST_POINTER:
    if (!p.host)
      return WEIR_CU_INVALID_VALUE;
    *(void **)value = (void *)(uintptr_t)pointer;
    break;
  case WEIR_CU_POINTER_ATTR_BUFFER_ID:
    *(unsigned long long *)value = p.id;
    break;
  case WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL:
    *(int *)value = p.device->ordinal;
    break;
  case WEIR_CU_POINTER_ATTR_RANGE_START:
    *(weir_cu_deviceptr *)value = p.base;
    break;
  case WEIR_CU_POINTER_ATTR_RANGE_SIZE:
    *(uint64_t *)value = p.bytes;
    break;
  case WEIR_CU_POINTER_ATTR_MAPPED:
    *(unsigned char *)value = 1;
    break;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

/*
 * Physical memory, address space, plain and host allocations.
 *
 * A device's memory is one file in memory (memfd). Offsets in it are handed out once and never again; what is given back is
 * punched out of the file, so the host holds only what was touched. Capacity is counted apart from it. That makes a device
 * far larger than the host possible, and memory that is handed out anew reads as zero.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/soft/soft.h"

/* How much of its file a device can use up over its life. */
static const uint64_t file_bytes = 1ull << 60;

/* ---- Physical memory ---- */

static int open_file(const struct soft_device *device, const char *what, uint64_t bytes) {
  char name[64];
  snprintf(name, sizeof name, "weir-soft-%s-%d", what, device->physical);
  int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
    close(fd);
    return -1;
  }
  return fd;
}

weir_cu_result weir__soft_extent_new(struct soft_device *device, uint64_t bytes, bool shareable,
                                     struct soft_extent *extent) {
  if (bytes > device->soft->options.bytes - device->used)
    return WEIR_CU_OUT_OF_MEMORY;
  struct soft_extent e = {.own_file = shareable, .charged = true, .bytes = bytes, .device = device};
  if (shareable) {
    e.fd = open_file(device, "handle", bytes);
    if (e.fd < 0)
      return WEIR_CU_OPERATING_SYSTEM;
  } else {
    if (device->fd < 0)
      device->fd = open_file(device, "memory", file_bytes);
    if (device->fd < 0 || bytes > file_bytes - device->file_end)
      return WEIR_CU_OPERATING_SYSTEM;
    e.fd = device->fd;
    e.offset = device->file_end;
    device->file_end += bytes;
  }
  device->used += bytes;
  *extent = e;
  return WEIR_CU_SUCCESS;
}

void weir__soft_extent_free(struct soft_extent *extent) {
  if (extent->own_file)
    close(extent->fd);
  else
    fallocate(extent->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)extent->offset, (off_t)extent->bytes);
  if (extent->charged)
    extent->device->used -= extent->bytes;
}

/* Large ranges are aligned to the granule, as the real driver's are. */
weir_cu_result weir__soft_map_extent(const struct soft_extent *extent, uint64_t bytes, uint64_t *base) {
  uint64_t slack = bytes >= SOFT_GRANULE ? SOFT_GRANULE : 0;
  char *space = mmap(NULL, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED)
    return WEIR_CU_OUT_OF_MEMORY;
  char *at = slack ? (char *)weir__round_up((uint64_t)space, SOFT_GRANULE) : space;
  if (at > space)
    munmap(space, (size_t)(at - space));
  if (space + slack > at)
    munmap(at + bytes, (size_t)(space + slack - at));
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, extent->fd, (off_t)extent->offset) ==
      MAP_FAILED) {
    munmap(at, bytes);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *base = (uint64_t)at;
  return WEIR_CU_SUCCESS;
}

/* ---- Address space ---- */

struct soft_range *weir__soft_range_new(struct soft *soft, enum soft_range_kind kind, uint64_t base, uint64_t bytes,
                                        uint64_t mapped_bytes, struct soft_device *device) {
  struct soft_range *range = calloc(1, sizeof *range);
  if (!range)
    return NULL;
  range->kind = kind;
  range->base = base;
  range->bytes = bytes;
  range->mapped_bytes = mapped_bytes;
  range->device = device;
  range->id = ++soft->next_id;
  if (!weir__rangemap_insert(&soft->space, base, mapped_bytes, range)) {
    free(range);
    return NULL;
  }
  soft->range_counts[kind]++;
  return range;
}

static void unmap_all(struct soft *soft, struct soft_range *range) {
  uint64_t base = 0;
  struct soft_mapping *mapping;
  while ((mapping = weir__rangemap_at_or_after(&range->mappings, 0, &base, NULL)))
    weir__soft_MemUnmap(soft, base, mapping->bytes);
}

void weir__soft_range_free(struct soft *soft, struct soft_range *range) {
  if (range->kind == SOFT_RANGE_RESERVED)
    unmap_all(soft, range);
  weir__rangemap_clear(&range->mappings);
  weir__rangemap_remove(&soft->space, range->base);
  soft->range_counts[range->kind]--;
  if (range->exported)
    weir__soft_unexport(range);
  if (range->kind != SOFT_RANGE_REGISTERED)
    munmap((void *)range->base, range->mapped_bytes);
  if (range->kind == SOFT_RANGE_PLAIN || range->kind == SOFT_RANGE_CHUNK || range->kind == SOFT_RANGE_IPC)
    weir__soft_extent_free(&range->extent);
  free(range->chunk);
  free(range);
}

/* Whether every byte of a reserved range is mapped, and the device may touch it so. */
static bool mapped_for(const struct soft_range *range, const struct soft_device *device, uint64_t pointer, uint64_t end,
                       bool write) {
  while (pointer < end) {
    const struct soft_mapping *mapping = weir__rangemap_find(&range->mappings, pointer, NULL, NULL);
    if (!mapping || !((write ? mapping->writable : mapping->readable) >> device->ordinal & 1))
      return false;
    pointer = mapping->base + mapping->bytes;
  }
  return true;
}

weir_cu_result weir__soft_check(struct soft *soft, const struct soft_device *device, uint64_t pointer, uint64_t bytes,
                                bool write, struct soft_range **found) {
  struct soft_range *range = weir__rangemap_overlap(&soft->space, pointer, bytes, NULL, NULL);
  *found = range;
  if (!range)
    return WEIR_CU_SUCCESS;
  uint64_t end = pointer + bytes, limit = range->base + range->bytes;
  if (pointer < range->base || end > limit || end < pointer)
    return WEIR_CU_INVALID_VALUE;
  if (range->kind == SOFT_RANGE_RESERVED && !mapped_for(range, device, pointer, end, write))
    return WEIR_CU_INVALID_VALUE;
  return range->kind == SOFT_RANGE_CHUNK && !range->chunk->in_use ? WEIR_CU_INVALID_VALUE : WEIR_CU_SUCCESS;
}

bool weir__soft_wait_for_range(struct soft *soft, const struct soft_range *range) {
  uint64_t base = range->base, id = range->id;
  weir__soft_wait_device(soft, range->device);
  const struct soft_range *now = weir__rangemap_find(&soft->space, base, NULL, NULL);
  return now && now->id == id;
}

/* ---- Plain memory ---- */

weir_cu_result weir__soft_MemGetInfo(struct soft *soft, size_t *free_bytes, size_t *total_bytes) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  if (!free_bytes || !total_bytes)
    return WEIR_CU_INVALID_VALUE;
  *free_bytes = soft->options.bytes - device->used;
  *total_bytes = soft->options.bytes;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemAlloc(struct soft *soft, weir_cu_deviceptr *pointer, size_t bytes) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r || (r = weir__soft_unsafe(soft)))
    return r;
  if (!pointer || !bytes)
    return WEIR_CU_INVALID_VALUE;
  if (bytes > soft->options.bytes)
    return WEIR_CU_OUT_OF_MEMORY;
  uint64_t base, mapped = weir__round_up(bytes, SOFT_PAGE);
  struct soft_extent extent;
  r = weir__soft_extent_new(device, mapped, false, &extent);
  if (r)
    return r;
  r = weir__soft_map_extent(&extent, mapped, &base);
  if (r)
    goto free_extent;
  struct soft_range *range = weir__soft_range_new(soft, SOFT_RANGE_PLAIN, base, bytes, mapped, device);
  if (!range) {
    r = WEIR_CU_OUT_OF_MEMORY;
    goto unmap;
  }
  range->extent = extent;
  *pointer = base;
  return WEIR_CU_SUCCESS;

unmap:
  munmap((void *)base, mapped);
free_extent:
  weir__soft_extent_free(&extent);
  return r;
}

weir_cu_result weir__soft_MemFree(struct soft *soft, weir_cu_deviceptr pointer) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r || !pointer || (r = weir__soft_current(soft, &device)))
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->base != pointer)
    return WEIR_CU_INVALID_VALUE;
  if (range->kind != SOFT_RANGE_PLAIN && (range->kind != SOFT_RANGE_CHUNK || !range->chunk->in_use))
    return WEIR_CU_INVALID_VALUE;
  uint64_t turn = range->chunk ? range->chunk->turn : 0;
  if (!weir__soft_wait_for_range(soft, range))
    return WEIR_CU_INVALID_VALUE;
  if (range->kind == SOFT_RANGE_PLAIN)
    weir__soft_range_free(soft, range);
  else if (!range->chunk->in_use || range->chunk->turn != turn)
    return WEIR_CU_INVALID_VALUE; /* another thread freed it meanwhile */
  else if (range->chunk->pool)    /* a graph's memory stays its own */
    weir__soft_chunk_release(soft, range->chunk);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemGetAddressRange(struct soft *soft, weir_cu_deviceptr *base, size_t *bytes,
                                             weir_cu_deviceptr pointer) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || pointer >= range->base + range->bytes)
    return WEIR_CU_NOT_FOUND;
  uint64_t found_base = range->base, found_bytes = range->bytes;
  if (range->kind == SOFT_RANGE_RESERVED && !weir__rangemap_find(&range->mappings, pointer, &found_base, &found_bytes))
    return WEIR_CU_NOT_FOUND;
  if (base)
    *base = found_base;
  if (bytes)
    *bytes = found_bytes;
  return WEIR_CU_SUCCESS;
}

/* ---- Host memory ---- */

static bool is_host(const struct soft_range *range) {
  return range->kind == SOFT_RANGE_HOST || range->kind == SOFT_RANGE_REGISTERED;
}

weir_cu_result weir__soft_MemHostAlloc(struct soft *soft, void **pointer, size_t bytes, unsigned flags) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r || (r = weir__soft_unsafe(soft)))
    return r;
  if (!pointer || flags & ~7u)
    return WEIR_CU_INVALID_VALUE;
  if (!bytes) {
    *pointer = NULL;
    return WEIR_CU_SUCCESS;
  }
  if (bytes > SIZE_MAX / 2)
    return WEIR_CU_OUT_OF_MEMORY;
  uint64_t mapped = weir__round_up(bytes, SOFT_PAGE);
  void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__soft_range_new(soft, SOFT_RANGE_HOST, (uint64_t)memory, bytes, mapped, device)) {
    munmap(memory, mapped);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *pointer = memory;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemFreeHost(struct soft *soft, void *pointer) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_unsafe(soft);
  if (r || !pointer || (r = weir__soft_current(soft, &device)))
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, (uint64_t)pointer, NULL, NULL);
  if (!range || range->kind != SOFT_RANGE_HOST || range->base != (uint64_t)pointer)
    return WEIR_CU_INVALID_VALUE;
  if (!weir__soft_wait_for_range(soft, range))
    return WEIR_CU_INVALID_VALUE;
  weir__soft_range_free(soft, range);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemHostRegister(struct soft *soft, void *pointer, size_t bytes, unsigned flags) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r || (r = weir__soft_unsafe(soft)))
    return r;
  if (!pointer || !bytes || flags & ~15u || bytes > UINT64_MAX - (uint64_t)pointer)
    return WEIR_CU_INVALID_VALUE;
  if (weir__rangemap_overlap(&soft->space, (uint64_t)pointer, bytes, NULL, NULL))
    return WEIR_CU_HOST_MEMORY_ALREADY_REGISTERED;
  return weir__soft_range_new(soft, SOFT_RANGE_REGISTERED, (uint64_t)pointer, bytes, bytes, device)
             ? WEIR_CU_SUCCESS
             : WEIR_CU_OUT_OF_MEMORY;
}

weir_cu_result weir__soft_MemHostUnregister(struct soft *soft, void *pointer) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r || (r = weir__soft_unsafe(soft)))
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, (uint64_t)pointer, NULL, NULL);
  if (!range || range->kind != SOFT_RANGE_REGISTERED)
    return WEIR_CU_HOST_MEMORY_NOT_REGISTERED;
  if (range->base != (uint64_t)pointer)
    return WEIR_CU_INVALID_VALUE;
  if (!weir__soft_wait_for_range(soft, range))
    return WEIR_CU_HOST_MEMORY_NOT_REGISTERED;
  weir__soft_range_free(soft, range);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemHostGetDevicePointer(struct soft *soft, weir_cu_deviceptr *device_pointer, void *pointer,
                                                  unsigned flags) {
  struct soft_device *device;
  weir_cu_result r = weir__soft_current(soft, &device);
  if (r)
    return r;
  struct soft_range *range = weir__rangemap_find(&soft->space, (uint64_t)pointer, NULL, NULL);
  if (!device_pointer || flags || !range || !is_host(range))
    return WEIR_CU_INVALID_VALUE;
  *device_pointer = (weir_cu_deviceptr)pointer;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_PointerGetAttribute(struct soft *soft, void *value, int attribute,
                                              weir_cu_deviceptr pointer) {
  if (!value)
    return WEIR_CU_INVALID_VALUE;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || pointer >= range->base + range->bytes)
    return WEIR_CU_INVALID_VALUE;
  struct soft_device *owner = range->device;
  if (range->kind == SOFT_RANGE_RESERVED) {
    struct soft_mapping *mapping = weir__rangemap_find(&range->mappings, pointer, NULL, NULL);
    if (!mapping)
      return WEIR_CU_INVALID_VALUE;
    owner = mapping->memory->extent.device;
  }
  switch (attribute) {
  case WEIR_CU_POINTER_ATTR_CONTEXT:
    *(weir_cu_context *)value = (weir_cu_context)owner->context;
    break;
  case WEIR_CU_POINTER_ATTR_MEMORY_TYPE:
    *(unsigned *)value = is_host(range) ? WEIR_CU_MEMORY_TYPE_HOST : WEIR_CU_MEMORY_TYPE_DEVICE;
    break;
  case WEIR_CU_POINTER_ATTR_DEVICE_POINTER:
    *(weir_cu_deviceptr *)value = pointer;
    break;
  case WEIR_CU_POINTER_ATTR_HOST_POINTER:
    if (!is_host(range))
      return WEIR_CU_INVALID_VALUE;
    *(void **)value = (void *)pointer;
    break;
  case WEIR_CU_POINTER_ATTR_BUFFER_ID:
    *(unsigned long long *)value = range->id;
    break;
  case WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL:
    *(int *)value = owner->ordinal;
    break;
  case WEIR_CU_POINTER_ATTR_RANGE_START:
    *(weir_cu_deviceptr *)value = range->base;
    break;
  case WEIR_CU_POINTER_ATTR_RANGE_SIZE:
    *(size_t *)value = range->bytes;
    break;
  case WEIR_CU_POINTER_ATTR_MAPPED:
    *(unsigned char *)value = 1;
    break;
  default:
    return WEIR_CU_INVALID_VALUE;
  }
  return WEIR_CU_SUCCESS;
}

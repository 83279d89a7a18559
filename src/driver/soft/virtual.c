/*
 * Virtual memory: reservations of address space, handles of physical memory, mappings of one into the other.
 *
 * A reservation is address space without access. A mapping puts the handle's piece of the device's file there, still without
 * access; setting access is mprotect. So a touch too early or too late is a fault of the hardware's, as on a GPU. The host
 * is one address space for all devices: a page is accessible when any device has access, while copies and fills that name it
 * are checked by device.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver/soft/soft.h"

static bool is_granular(uint64_t n) { return n && n % SOFT_GRANULE == 0; }

/* ---- Reservations ---- */

weir_cu_result weir__soft_MemAddressReserve(struct soft *soft, weir_cu_deviceptr *pointer, size_t bytes,
                                            size_t alignment, weir_cu_deviceptr wish, unsigned long long flags) {
  if (!pointer || !is_granular(bytes) || flags || alignment & (alignment - 1))
    return WEIR_CU_INVALID_VALUE;
  if (bytes > 1ull << 47 || alignment > 1ull << 46)
    return WEIR_CU_OUT_OF_MEMORY;
  if (alignment < SOFT_GRANULE)
    alignment = SOFT_GRANULE;
  int protection = PROT_NONE, kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char *space = MAP_FAILED;
  if (wish && wish % alignment == 0) {
    space = mmap((void *)wish, bytes, protection, kind | MAP_FIXED_NOREPLACE, -1, 0);
    if (space != MAP_FAILED && (weir_cu_deviceptr)space != wish) {
      munmap(space, bytes);
      space = MAP_FAILED;
    }
  }
  if (space == MAP_FAILED) {
    char *wide = mmap(NULL, bytes + alignment, protection, kind, -1, 0);
    if (wide == MAP_FAILED)
      return WEIR_CU_OUT_OF_MEMORY;
    space = (char *)weir__round_up((uint64_t)wide, alignment);
    if (space > wide)
      munmap(wide, (size_t)(space - wide));
    if (wide + alignment > space)
      munmap(space + bytes, (size_t)(wide + alignment - space));
  }
  if (!weir__soft_range_new(soft, SOFT_RANGE_RESERVED, (uint64_t)space, bytes, bytes, NULL)) {
    munmap(space, bytes);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *pointer = (weir_cu_deviceptr)space;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemAddressFree(struct soft *soft, weir_cu_deviceptr pointer, size_t bytes) {
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->kind != SOFT_RANGE_RESERVED || range->base != pointer || range->bytes != bytes ||
      weir__rangemap_count(&range->mappings))
    return WEIR_CU_INVALID_VALUE;
  weir__soft_range_free(soft, range);
  return WEIR_CU_SUCCESS;
}

/* ---- Handles ---- */

static void memory_unref(struct soft_memory *memory) {
  if (--memory->refs)
    return;
  weir__soft_extent_free(&memory->extent);
  free(memory);
}

static weir_cu_result check_prop(const struct soft *soft, const weir_cu_mem_prop *prop) {
  if (!prop || prop->type != WEIR_CU_ALLOCATION_PINNED || prop->location.type != WEIR_CU_LOCATION_DEVICE ||
      prop->win32_metadata)
    return WEIR_CU_INVALID_VALUE;
  if (prop->handle_types != WEIR_CU_HANDLE_NONE && prop->handle_types != WEIR_CU_HANDLE_POSIX_FD)
    return WEIR_CU_NOT_SUPPORTED;
  if (prop->location.id < 0 || prop->location.id >= soft->device_count)
    return WEIR_CU_INVALID_DEVICE;
  return WEIR_CU_SUCCESS;
}

static uint64_t inode_of(int fd) {
  struct stat st;
  return fstat(fd, &st) ? 0 : (uint64_t)st.st_ino;
}

weir_cu_result weir__soft_MemCreate(struct soft *soft, weir_cu_mem_handle *handle, size_t bytes,
                                    const weir_cu_mem_prop *prop, unsigned long long flags) {
  weir_cu_result r = check_prop(soft, prop);
  if (r)
    return r;
  if (!handle || !is_granular(bytes) || flags)
    return WEIR_CU_INVALID_VALUE;
  struct soft_memory *memory = calloc(1, sizeof *memory);
  if (!memory)
    return WEIR_CU_OUT_OF_MEMORY;
  bool shareable = prop->handle_types != WEIR_CU_HANDLE_NONE;
  r = weir__soft_extent_new(&soft->devices[prop->location.id], bytes, shareable, &memory->extent);
  if (r) {
    free(memory);
    return r;
  }
  memory->refs = 1;
  memory->handle_types = prop->handle_types;
  if (shareable)
    memory->inode = inode_of(memory->extent.fd);
  uintptr_t h = weir__soft_handle_new(soft, SOFT_HANDLE, memory);
  if (!h) {
    memory_unref(memory);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *handle = h;
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemRelease(struct soft *soft, weir_cu_mem_handle handle) {
  struct soft_memory *memory = weir__soft_handle_get(soft, SOFT_HANDLE, (uintptr_t)handle);
  if (!memory)
    return WEIR_CU_INVALID_VALUE;
  weir__soft_handle_free(soft, (uintptr_t)handle);
  memory_unref(memory);
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemGetAllocationGranularity(struct soft *soft, size_t *bytes, const weir_cu_mem_prop *prop,
                                                      int option) {
  (void)soft;
  if (!bytes || !prop || (option != WEIR_CU_GRANULARITY_MINIMUM && option != WEIR_CU_GRANULARITY_RECOMMENDED))
    return WEIR_CU_INVALID_VALUE;
  *bytes = SOFT_GRANULE;
  return WEIR_CU_SUCCESS;
}

/* ---- Mappings ---- */

weir_cu_result weir__soft_MemMap(struct soft *soft, weir_cu_deviceptr pointer, size_t bytes, size_t offset,
                                 weir_cu_mem_handle handle, unsigned long long flags) {
  struct soft_memory *memory = weir__soft_handle_get(soft, SOFT_HANDLE, (uintptr_t)handle);
  if (!memory || flags || !is_granular(bytes) || pointer % SOFT_GRANULE)
    return WEIR_CU_INVALID_VALUE;
  if (offset || bytes != memory->extent.bytes)
    return WEIR_CU_NOT_SUPPORTED;
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->kind != SOFT_RANGE_RESERVED || bytes > range->base + range->bytes - pointer ||
      weir__rangemap_overlap(&range->mappings, pointer, bytes, NULL, NULL))
    return WEIR_CU_INVALID_VALUE;
  struct soft_mapping *mapping = calloc(1, sizeof *mapping);
  if (!mapping || !weir__rangemap_insert(&range->mappings, pointer, bytes, mapping)) {
    free(mapping);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  if (mmap((void *)pointer, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->extent.fd,
           (off_t)memory->extent.offset) == MAP_FAILED) {
    weir__rangemap_remove(&range->mappings, pointer);
    free(mapping);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *mapping = (struct soft_mapping){.memory = memory, .base = pointer, .bytes = bytes};
  memory->refs++;
  soft->mapping_count++;
  return WEIR_CU_SUCCESS;
}

/* Whether the mappings that touch the range lie wholly inside it; with `no_hole`, whether they fill it too. */
static bool is_whole(const struct soft_range *range, uint64_t pointer, uint64_t bytes, bool no_hole) {
  uint64_t end = pointer + bytes, base, size;
  while (weir__rangemap_overlap(&range->mappings, pointer, end - pointer, &base, &size)) {
    if (base < pointer || base + size > end || (no_hole && base != pointer))
      return false;
    pointer = base + size;
    if (pointer == end)
      return true;
  }
  return !no_hole;
}

/* The reservation that holds the whole range, when that is granular. */
static struct soft_range *reservation_of(struct soft *soft, uint64_t pointer, uint64_t bytes) {
  struct soft_range *range = weir__rangemap_find(&soft->space, pointer, NULL, NULL);
  if (!range || range->kind != SOFT_RANGE_RESERVED || !is_granular(bytes) || pointer % SOFT_GRANULE ||
      bytes > range->base + range->bytes - pointer)
    return NULL;
  return range;
}

weir_cu_result weir__soft_MemUnmap(struct soft *soft, weir_cu_deviceptr pointer, size_t bytes) {
  struct soft_range *range = reservation_of(soft, pointer, bytes);
  if (!range || !is_whole(range, pointer, bytes, false))
    return WEIR_CU_INVALID_VALUE;
  if (mmap((void *)pointer, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    return WEIR_CU_OPERATING_SYSTEM;
  uint64_t base;
  struct soft_mapping *mapping;
  while ((mapping = weir__rangemap_overlap(&range->mappings, pointer, bytes, &base, NULL))) {
    weir__rangemap_remove(&range->mappings, base);
    memory_unref(mapping->memory);
    free(mapping);
    soft->mapping_count--;
  }
  return WEIR_CU_SUCCESS;
}

weir_cu_result weir__soft_MemSetAccess(struct soft *soft, weir_cu_deviceptr pointer, size_t bytes,
                                       const weir_cu_mem_access *access, size_t count) {
  struct soft_range *range = reservation_of(soft, pointer, bytes);
  if (!range || !access || !count || !is_whole(range, pointer, bytes, true))
    return WEIR_CU_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (access[i].location.type != WEIR_CU_LOCATION_DEVICE || access[i].location.id < 0 ||
        access[i].location.id >= soft->device_count ||
        (access[i].flags != WEIR_CU_ACCESS_NONE && access[i].flags != WEIR_CU_ACCESS_READ &&
         access[i].flags != WEIR_CU_ACCESS_READWRITE))
      return WEIR_CU_INVALID_VALUE;
  for (uint64_t at = pointer; at < pointer + bytes;) {
    struct soft_mapping *mapping = weir__rangemap_find(&range->mappings, at, NULL, NULL);
    uint64_t readable = mapping->readable, writable = mapping->writable;
    for (size_t i = 0; i < count; i++) {
      uint64_t bit = 1ull << access[i].location.id;
      readable = access[i].flags & WEIR_CU_ACCESS_READ ? readable | bit : readable & ~bit;
      writable = access[i].flags == WEIR_CU_ACCESS_READWRITE ? writable | bit : writable & ~bit;
    }
    int protection = writable ? PROT_READ | PROT_WRITE : readable ? PROT_READ : PROT_NONE;
    if (mprotect((void *)at, mapping->bytes, protection))
      return WEIR_CU_OPERATING_SYSTEM;
    mapping->readable = readable;
    mapping->writable = writable;
    at += mapping->bytes;
  }
  return WEIR_CU_SUCCESS;
}

/* ---- Sharing ---- */

weir_cu_result weir__soft_MemExportToShareableHandle(struct soft *soft, void *shareable, weir_cu_mem_handle handle,
                                                     int type, unsigned long long flags) {
  struct soft_memory *memory = weir__soft_handle_get(soft, SOFT_HANDLE, (uintptr_t)handle);
  if (!shareable || !memory || flags || type != WEIR_CU_HANDLE_POSIX_FD || memory->handle_types != type)
    return WEIR_CU_INVALID_VALUE;
  int fd = fcntl(memory->extent.fd, F_DUPFD_CLOEXEC, 0);
  if (fd < 0)
    return WEIR_CU_OPERATING_SYSTEM;
  *(int *)shareable = fd;
  return WEIR_CU_SUCCESS;
}

static struct soft_device *device_of_physical(struct soft *soft, int physical) {
  for (int i = 0; i < soft->device_count; i++)
    if (soft->devices[i].physical == physical)
      return &soft->devices[i];
  return NULL;
}

/* The file's name tells whether it is a handle of a software device, and of which. */
static bool read_handle_name(int fd, int *physical) {
  char link[64], name[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, name, sizeof name - 1);
  if (length < 0)
    return false;
  name[length] = 0;
  return sscanf(name, "/memfd:weir-soft-handle-%d", physical) == 1;
}

static struct soft_memory *memory_by_inode(struct soft *soft, uint64_t inode) {
  for (size_t i = 0; i < soft->slot_count; i++) {
    struct soft_memory *memory = soft->slots[i].object;
    if (soft->slots[i].kind == SOFT_HANDLE && memory->inode == inode)
      return memory;
  }
  return NULL;
}

/* Memory that is known here already gets a second handle. Memory of another process is not charged: that process pays. */
weir_cu_result weir__soft_MemImportFromShareableHandle(struct soft *soft, weir_cu_mem_handle *handle, void *shareable,
                                                       int type) {
  int fd = (int)(intptr_t)shareable, physical;
  struct stat st;
  if (!handle || type != WEIR_CU_HANDLE_POSIX_FD || !read_handle_name(fd, &physical) || fstat(fd, &st))
    return WEIR_CU_INVALID_VALUE;
  struct soft_device *device = device_of_physical(soft, physical);
  if (!device)
    return WEIR_CU_INVALID_DEVICE;
  struct soft_memory *memory = memory_by_inode(soft, (uint64_t)st.st_ino);
  if (memory)
    memory->refs++;
  else {
    memory = calloc(1, sizeof *memory);
    if (!memory)
      return WEIR_CU_OUT_OF_MEMORY;
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
      free(memory);
      return WEIR_CU_OPERATING_SYSTEM;
    }
    memory->refs = 1;
    memory->inode = (uint64_t)st.st_ino;
    memory->handle_types = type;
    memory->extent = (struct soft_extent){.fd = own, .own_file = true, .bytes = (uint64_t)st.st_size, .device = device};
  }
  uintptr_t h = weir__soft_handle_new(soft, SOFT_HANDLE, memory);
  if (!h) {
    memory_unref(memory);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *handle = h;
  return WEIR_CU_SUCCESS;
}

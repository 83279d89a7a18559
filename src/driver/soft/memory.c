/*
 * Memory: files, mappings and address space.
 *
 * The memory of a device is one file in memory (memfd). Offsets are handed out once and never reused; freed ranges are
 * punched out of the file, so the host backs only memory that was touched. Capacity is counted separately. A device can
 * therefore be far larger than the host, and new memory reads as zero.
 *
 * A reservation is address space without access. A mapping places the memory of a handle there, still without access,
 * and setting access is mprotect. An access that is too early or too late is a hardware fault, as on a GPU. All devices
 * share the address space of the host: a page is accessible if any device has access to it, while copies and fills are
 * checked by device.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory_map.h"
#include "driver/soft/soft.h"

/* The size of the file: more than a device can use up. */
static const uint64_t file_bytes = 1ull << 60;

/* ---- Physical memory ---- */

static int open_file(const model_device *device, const char *what, uint64_t bytes) {
  char name[64];
  snprintf(name, sizeof name, "weir-soft-%s-%d", what, device->physical);
  return weir__map_memory_file(name, bytes);
}

/* A shareable extent gets a separate file. */
static weir_cu_result new_extent(model_device *device, uint64_t bytes, bool shareable, struct soft_extent *extent) {
  struct soft_device *of = (struct soft_device *)device;
  struct soft_extent e = {.own_file = shareable, .bytes = bytes};
  if (shareable)
    e.fd = open_file(device, "handle", bytes);
  else {
    if (of->fd < 0)
      of->fd = open_file(device, "memory", file_bytes);
    e.fd = bytes > file_bytes - of->file_end ? -1 : of->fd;
    e.offset = of->file_end;
    of->file_end += e.fd < 0 ? 0 : bytes;
  }
  if (e.fd < 0)
    return WEIR_CU_OPERATING_SYSTEM;
  *extent = e;
  return WEIR_CU_SUCCESS;
}

static void end_extent(const struct soft_extent *extent) {
  if (extent->own_file)
    close(extent->fd);
  else
    fallocate(extent->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)extent->offset, (off_t)extent->bytes);
}

/* Large ranges are aligned to the granularity, as in NVIDIA's driver. */
weir_cu_result weir__soft_map_extent(const struct soft_extent *extent, uint64_t bytes, uint64_t *base) {
  char *at = weir__map_reserve(bytes, bytes >= MODEL_GRANULARITY ? MODEL_GRANULARITY : 1);
  if (!at)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__map_shared_file_at(at, bytes, extent->fd, extent->offset) || !weir__map_protect(at, bytes, true, true)) {
    weir__unmap(at, bytes);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *base = (uint64_t)at;
  return WEIR_CU_SUCCESS;
}

/* ---- Ranges ---- */

/* Adds mapped address space to the model. It is unmapped on failure. */
static weir_cu_result add_range(model *m, const model_request *request, void *at, uint64_t room, model_range **range) {
  if (!at)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__model_add_range(m, request, (uint64_t)at, room, range))
    return WEIR_CU_SUCCESS;
  weir__unmap(at, room);
  return WEIR_CU_OUT_OF_MEMORY;
}

static weir_cu_result new_device_range(model *m, const model_request *request, model_range **range) {
  uint64_t unit = request->kind == MODEL_RANGE_PLAIN ? SOFT_PAGE : MODEL_GRANULARITY;
  uint64_t base, room = weir__round_up(request->bytes, unit);
  struct soft_extent extent;
  if (!weir__model_take_bytes(m, request->device, room))
    return WEIR_CU_OUT_OF_MEMORY;
  weir_cu_result r = new_extent(request->device, room, false, &extent);
  if (r)
    goto give_bytes;
  r = weir__soft_map_extent(&extent, room, &base);
  if (!r)
    r = add_range(m, request, (void *)base, room, range);
  if (r)
    goto end_extent;
  ((struct soft_range *)*range)->extent = extent;
  return WEIR_CU_SUCCESS;

end_extent:
  end_extent(&extent);
give_bytes:
  request->device->used -= room;
  return r;
}

static weir_cu_result new_reservation(model *m, const model_request *request, model_range **range) {
  uint64_t bytes = request->bytes, wish = request->wish;
  if (bytes > 1ull << 47 || request->alignment > 1ull << 46)
    return WEIR_CU_OUT_OF_MEMORY;
  bool is_granted = wish && wish % request->alignment == 0 && weir__map_reserve_at((void *)wish, bytes);
  void *space = is_granted ? (void *)wish : weir__map_reserve(bytes, request->alignment);
  return add_range(m, request, space, bytes, range);
}

static weir_cu_result new_range(model *m, const model_request *request, model_range **range) {
  if (request->kind == MODEL_RANGE_PLAIN || request->kind == MODEL_RANGE_POOLED)
    return new_device_range(m, request, range);
  if (request->kind == MODEL_RANGE_RESERVATION)
    return new_reservation(m, request, range);
  if (request->bytes > SIZE_MAX / 2)
    return WEIR_CU_OUT_OF_MEMORY;
  uint64_t room = weir__round_up(request->bytes, SOFT_PAGE);
  void *memory = weir__map_reserve(room, 1);
  if (memory && !weir__map_commit(memory, room)) {
    weir__unmap(memory, room);
    memory = NULL;
  }
  return add_range(m, request, memory, room, range);
}

static void end_range(model *m, model_range *range) {
  struct soft_range *of = (struct soft_range *)range;
  (void)m;
  if (of->exported)
    weir__soft_unexport(of);
  if (range->kind != MODEL_RANGE_REGISTERED)
    weir__unmap((void *)range->base, range->room);
  if (range->kind == MODEL_RANGE_PLAIN || range->kind == MODEL_RANGE_POOLED)
    range->device->used -= range->room;
  if (range->kind == MODEL_RANGE_PLAIN || range->kind == MODEL_RANGE_POOLED || range->kind == MODEL_RANGE_IPC)
    end_extent(&of->extent);
}

/* ---- Handles and mappings ---- */

static weir_cu_result new_memory(model *m, model_memory *memory, int handle_types) {
  struct soft_memory *of = (struct soft_memory *)memory;
  struct stat st;
  (void)m;
  weir_cu_result r = new_extent(memory->device, memory->bytes, handle_types != WEIR_CU_HANDLE_NONE, &of->extent);
  of->handle_types = handle_types;
  if (!r && of->extent.own_file && !fstat(of->extent.fd, &st))
    of->inode = (uint64_t)st.st_ino;
  return r;
}

static void end_memory(model *m, model_memory *memory) {
  const struct soft_memory *of = (struct soft_memory *)memory;
  if (!of->same) {
    end_extent(&of->extent);
    return;
  }
  of->same->m.mappings--;
  weir__model_drop_memory(m, &of->same->m);
}

static weir_cu_result map(model *m, const model_mapping *mapping) {
  const struct soft_extent *extent = &((struct soft_memory *)mapping->memory)->extent;
  (void)m;
  bool is_mapped = weir__map_shared_file_at((void *)mapping->base, mapping->bytes, extent->fd, extent->offset);
  return is_mapped ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY;
}

static weir_cu_result protect(model *m, const model_mapping *mapping, uint64_t readers, uint64_t writers) {
  (void)m;
  bool is_set = weir__map_protect((void *)mapping->base, mapping->bytes, readers != 0, writers != 0);
  return is_set ? WEIR_CU_SUCCESS : WEIR_CU_OPERATING_SYSTEM;
}

/* As NVIDIA's driver, this does not wait for work that uses the memory: that work faults. It is counted, because the
 * program is wrong even if the work happens to complete first. */
static weir_cu_result unmap(model *m, uint64_t base, uint64_t bytes) {
  struct soft *soft = (struct soft *)m;
  if (weir__soft_is_in_use(soft, base, bytes)) {
    soft->unmaps_in_use++;
    weir__log(WEIR_LOG_ERROR, "cuMemUnmap of %llu bytes at %p: work in a stream still uses the memory",
              (unsigned long long)bytes, (void *)base);
  }
  return weir__map_release((void *)base, bytes) ? WEIR_CU_SUCCESS : WEIR_CU_OPERATING_SYSTEM;
}

void weir__soft_add_memory_hooks(model_hooks *hooks) {
  hooks->new_range = new_range;
  hooks->end_range = end_range;
  hooks->new_memory = new_memory;
  hooks->end_memory = end_memory;
  hooks->map = map;
  hooks->protect = protect;
  hooks->unmap = unmap;
}

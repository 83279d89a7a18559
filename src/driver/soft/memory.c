/*
 * Memory: files, mappings and address space.
 *
 * The memory of a device is one file in memory (memfd). Freed memory is punched out of the file, at once or after a
 * while, so the host backs only memory that is touched. Capacity is counted separately. A device can therefore be far
 * larger than the host, and new memory reads as zero.
 *
 * A reservation is address space without access. A mapping places the memory of a handle there, still without access,
 * and setting access is mprotect. An access that is too early or too late is a hardware fault, as on a GPU. All devices
 * share the address space of the host: a page is accessible if any device has access to it, while copies and fills are
 * checked by device.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
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
    if (bytes >= MODEL_GRANULARITY)
      of->file_end = weir__round_up(of->file_end, MODEL_GRANULARITY);
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

static weir_cu_result map_extent_at(char *at, const struct soft_extent *extent, uint64_t bytes, uint64_t *base) {
  if (!at)
    return WEIR_CU_OUT_OF_MEMORY;
  if (!weir__map_shared_file_at(at, bytes, extent->fd, extent->offset) || !weir__map_protect(at, bytes, true, true)) {
    weir__unmap(at, bytes);
    return WEIR_CU_OUT_OF_MEMORY;
  }
  *base = (uint64_t)at;
  return WEIR_CU_SUCCESS;
}

/* Large ranges are aligned to the granularity, as in NVIDIA's driver. */
weir_cu_result weir__soft_map_extent(const struct soft_extent *extent, uint64_t bytes, uint64_t *base) {
  char *at = weir__map_reserve(bytes, bytes >= MODEL_GRANULARITY ? MODEL_GRANULARITY : 1);
  return map_extent_at(at, extent, bytes, base);
}

/* ---- Kept memory ----
 *
 * The system takes ten times as long to back and map a page as to clear one, and a caching allocator that gives memory
 * back often needs as much again. So freed ranges stay mapped, without access, up to a bound and until the device has
 * been idle for a second; new ones are taken from them, and cleared. A range that another process may have mapped is
 * not kept. In stepped time and before the first work of a stream there is no worker to end it, and nothing is kept. */

static const uint64_t kept_ns = 1000000000, most_kept = 1ull << 31, window_bytes = 1ull << 40;

/* Reserves address space for new memory. Neighbours in the file lie side by side, so that kept ones can be joined: in a
 * window of free address space, of which only ranges are reserved. */
static char *reserve_in_window(struct soft_device *device, const struct soft_extent *extent) {
  if (device->window && weir__map_reserve_at((void *)(device->window + extent->offset), extent->bytes))
    return (char *)(device->window + extent->offset);
  char *window = weir__map_reserve(window_bytes, MODEL_GRANULARITY);
  if (window) {
    weir__unmap(window, window_bytes);
    device->window = (uint64_t)window - extent->offset;
    if (weir__map_reserve_at(window, extent->bytes))
      return window;
  }
  return weir__map_reserve(extent->bytes, MODEL_GRANULARITY);
}

static void remove_kept(struct soft_device *device, int index) {
  device->kept_bytes -= device->kept[index].bytes;
  device->kept_count--;
  for (int i = index; i < device->kept_count; i++)
    device->kept[i] = device->kept[i + 1];
}

static void return_kept(struct soft_device *device, int index) {
  const struct soft_kept *kept = &device->kept[index];
  weir__unmap((void *)kept->base, kept->bytes);
  end_extent(&(struct soft_extent){.fd = device->fd, .offset = kept->offset, .bytes = kept->bytes});
  remove_kept(device, index);
}

void weir__soft_return_kept(struct soft *soft) {
  for (int i = 0; i < soft->m.device_count; i++)
    while (((struct soft_device *)soft->m.devices[i])->kept_count)
      return_kept((struct soft_device *)soft->m.devices[i], 0);
  soft->kept_until_ns = 0;
}

void weir__soft_keep_longer(struct soft *soft) { soft->kept_until_ns = weir__monotonic_ns() + kept_ns; }

/* Keeps the memory of a range; false if it is to be returned at once. */
static bool keep(struct soft *soft, const struct soft_range *range) {
  struct soft_device *device = (struct soft_device *)range->r.device;
  struct soft_kept kept = {range->r.base, range->extent.offset, range->r.room};
  uint64_t most = soft->m.bytes / 8 < most_kept ? soft->m.bytes / 8 : most_kept;
  if (!soft->workers || soft->stopping || range->exported || kept.bytes % MODEL_GRANULARITY || kept.bytes > most ||
      !weir__map_protect((void *)kept.base, kept.bytes, false, false))
    return false;
  for (int i = device->kept_count; i-- > 0;) {
    const struct soft_kept other = device->kept[i];
    bool is_before = other.base + other.bytes == kept.base, is_after = kept.base + kept.bytes == other.base;
    if ((!is_before && !is_after) || other.base - other.offset != kept.base - kept.offset)
      continue;
    kept.base = is_before ? other.base : kept.base;
    kept.offset = is_before ? other.offset : kept.offset;
    kept.bytes += other.bytes;
    remove_kept(device, i);
  }
  device->kept_bytes += kept.bytes;
  device->kept[device->kept_count++] = kept;
  while (device->kept_bytes > most || device->kept_count == SOFT_KEPT)
    return_kept(device, 0); /* the oldest */
  if (!soft->kept_until_ns)
    weir__cond_signal(&soft->work); /* a worker waits for that time from now on */
  weir__soft_keep_longer(soft);
  return true;
}

/* Clears the granules of a mapped range of which the file has pages, and no others: they would need memory. */
static void clear_data(char *at, const struct soft_extent *extent) {
  off_t begin = (off_t)extent->offset, end = begin + (off_t)extent->bytes, next;
  for (off_t data = begin; (data = lseek(extent->fd, data, SEEK_DATA)) >= 0 && data < end; data = next) {
    next = data - (data - begin) % MODEL_GRANULARITY + MODEL_GRANULARITY;
    memset(at + (data - begin), 0, (size_t)(next - data));
  }
}

/* Takes the beginning of the smallest kept range that is large enough. */
static bool take_kept(struct soft_device *device, uint64_t bytes, struct soft_extent *extent, uint64_t *base) {
  struct soft_kept *best = NULL;
  for (int i = 0; i < device->kept_count; i++) {
    struct soft_kept *kept = &device->kept[i];
    if (kept->bytes >= bytes && (!best || kept->bytes < best->bytes))
      best = kept;
  }
  if (!best || bytes % MODEL_GRANULARITY || !weir__map_protect((void *)best->base, bytes, true, true))
    return false;
  *extent = (struct soft_extent){.fd = device->fd, .offset = best->offset, .bytes = bytes};
  *base = best->base;
  best->base += bytes;
  best->offset += bytes;
  best->bytes -= bytes;
  device->kept_bytes -= bytes;
  if (!best->bytes)
    remove_kept(device, (int)(best - device->kept));
  clear_data((char *)*base, extent);
  return true;
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
  struct soft_device *device = (struct soft_device *)request->device;
  struct soft_extent extent;
  if (!weir__model_take_bytes(m, request->device, room))
    return WEIR_CU_OUT_OF_MEMORY;
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (!take_kept(device, room, &extent, &base)) {
    r = new_extent(request->device, room, false, &extent);
    if (r)
      goto give_bytes;
    r = room % MODEL_GRANULARITY ? weir__soft_map_extent(&extent, room, &base)
                                 : map_extent_at(reserve_in_window(device, &extent), &extent, room, &base);
  }
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
  bool is_device = range->kind == MODEL_RANGE_PLAIN || range->kind == MODEL_RANGE_POOLED;
  if (is_device)
    range->device->used -= range->room;
  if (is_device && keep((struct soft *)m, of))
    return;
  if (of->exported)
    weir__soft_unexport(of);
  if (range->kind != MODEL_RANGE_REGISTERED)
    weir__unmap((void *)range->base, range->room);
  if (is_device || range->kind == MODEL_RANGE_IPC)
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

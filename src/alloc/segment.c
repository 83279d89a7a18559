/*
 * Segments: obtaining memory from the driver, and returning it.
 *
 * A fixed segment is one allocation of the driver. An expandable segment is a reservation of address space, larger than
 * the device's memory, into which pages are mapped at its growing end and in holes. Its blocks tile the whole
 * reservation: mapped ones are free or active like any other block, and unmapped ones are in a tree by address.
 *
 * Mapping is atomic: if any call fails, the previous ones are undone, and the segment is unchanged.
 */
#include "alloc/segment.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/arena.h"
#include "alloc/ipc.h"
#include "alloc/stat.h"
#include "alloc/trace.h"
#include "base/array.h"
#include "base/thread.h"

/* ---- Segments of a heap ---- */

static void count_of_arena(weir__arena *arena, int by) {
  arena->segments += by;
  if (arena->pool->owner)
    arena->pool->owner->segments += by;
}

static bool note(weir__heap *heap, weir__segment *segment, uint64_t base, uint64_t bytes) {
  weir__lock_take(&heap->segments_lock);
  bool noted = weir__rangemap_insert(&heap->segments_by_address, base, bytes, segment);
  weir__lock_give(&heap->segments_lock);
  return noted;
}

weir__segment *weir__segment_new(weir__heap *heap, weir__arena *arena, uint64_t base, uint64_t bytes, uint64_t page) {
  weir__segment *segment = calloc(1, sizeof *segment);
  if (!segment)
    return NULL;
  if (!note(heap, segment, base, bytes)) {
    free(segment);
    return NULL;
  }
  segment->base = base;
  segment->bytes = bytes;
  segment->page = page;
  segment->arena = arena;
  segment->next = heap->segments;
  if (segment->next)
    segment->next->previous = segment;
  heap->segments = segment;
  count_of_arena(arena, 1);
  return segment;
}

weir__segment *weir__segment_at(const weir__heap *heap, uint64_t address) {
  return weir__rangemap_find(&heap->segments_by_address, address, NULL, NULL);
}

weir__segment *weir__segment_of(const weir__heap *heap, const weir__block *block) {
  return weir__segment_at(heap, block->address);
}

weir__segment *weir__segment_lookup(weir__heap *heap, const weir__block *block) {
  weir__lock_take(&heap->segments_lock);
  weir__segment *segment = weir__segment_of(heap, block);
  weir__lock_give(&heap->segments_lock);
  return segment;
}

void weir__segment_unlink(weir__heap *heap, weir__segment *segment) {
  weir__lock_take(&heap->segments_lock);
  weir__rangemap_remove(&heap->segments_by_address, segment->base);
  weir__lock_give(&heap->segments_lock);
  if (segment->previous)
    segment->previous->next = segment->next;
  else
    heap->segments = segment->next;
  if (segment->next)
    segment->next->previous = segment->previous;
}

void weir__segment_delete(weir__segment *segment) {
  count_of_arena(segment->arena, -1);
  free(segment->files);
  free(segment->handles);
  free(segment);
}

static void segment_delete(weir__heap *heap, weir__segment *segment) {
  weir__segment_unlink(heap, segment);
  weir__segment_delete(segment);
}

static void count_both(weir_stat *stats, const weir__arena *arena, int64_t by) {
  weir__stat_add(&stats[WEIR_STAT_ALL], by);
  weir__stat_add(&stats[arena->pool->is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL], by);
}

void weir__segment_count(weir__heap *heap, weir__segment *segment, int segments, int64_t bytes) {
  weir_allocator_stats *stats = &heap->stats;
  const weir__arena *arena = segment->arena;
  if (segments > 0)
    segment->oversize = segment->bytes >= weir__settings_of(heap)->max_split_size;
  if (segment->oversize)
    weir__stat_add(&stats->oversize_segments, segments);
  heap->reserved += (uint64_t)bytes;
  count_both(stats->segment, arena, segments);
  count_both(stats->reserved_bytes, arena, bytes);
  if (arena->pool->owner)
    count_both(arena->pool->owner->record->reserved_bytes, arena, bytes);
  if (bytes < 0)
    stats->num_device_free++;
  else
    stats->num_device_alloc++;
}

/* ---- Fixed segments ---- */

bool weir__capture_relax(weir__heap *heap, int *mode) {
  weir_driver *driver = heap->allocator->driver;
  *mode = WEIR_CU_CAPTURE_RELAXED; /* nothing to restore */
  return !atomic_load(&heap->captures) || !driver->ThreadExchangeStreamCaptureMode(driver, mode);
}

void weir__capture_restore(weir__heap *heap, int mode) {
  weir_driver *driver = heap->allocator->driver;
  if (mode != WEIR_CU_CAPTURE_RELAXED)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
}

bool weir__heap_ok(weir__heap *heap, weir_cu_result result, const char *call) {
  if (result && result != WEIR_CU_OUT_OF_MEMORY && !heap->driver_error) {
    heap->driver_error = result;
    heap->driver_error_call = call;
  }
  return !result;
}

/* Obtains memory for a fixed segment from the driver, or from the functions of the pool. */
static weir_cu_result get_memory(weir__heap *heap, const weir__arena *arena, uint64_t bytes, weir_cu_deviceptr *base) {
  const weir__private_pool *owner = arena->pool->owner;
  weir_driver *driver = heap->allocator->driver;
  int mode;
  weir_cu_result r;
  if (!weir__capture_relax(heap, &mode))
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  if (owner && owner->alloc) {
    *base = (weir_cu_deviceptr)owner->alloc(owner->context, bytes, heap->device, arena->stream);
    r = *base ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY;
  } else
    r = driver->MemAlloc(driver, base, bytes);
  weir__capture_restore(heap, mode);
  return r;
}

/* Returns false if the driver refuses to free it. */
static bool give_memory(weir__heap *heap, const weir__arena *arena, uint64_t base, uint64_t bytes) {
  const weir__private_pool *owner = arena->pool->owner;
  weir_driver *driver = heap->allocator->driver;
  int mode;
  bool gone = true;
  if (!weir__capture_relax(heap, &mode))
    return false;
  if (owner && owner->alloc)
    owner->free(owner->context, (void *)base, bytes, heap->device, arena->stream);
  else
    gone = weir__heap_ok(heap, driver->MemFree(driver, base), "cuMemFree");
  weir__capture_restore(heap, mode);
  return gone;
}

static weir__block *grow_fixed(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  weir_cu_deviceptr base;
  heap->promised += bytes; /* reserves the bytes against the limit while the lock is released */
  if (settings->release_lock_on_malloc)
    weir__mutex_unlock(&heap->lock);
  weir_cu_result r = get_memory(heap, arena, bytes, &base);
  if (settings->release_lock_on_malloc)
    weir__mutex_lock(&heap->lock);
  heap->promised -= bytes;
  if (!weir__heap_ok(heap, r, "cuMemAlloc"))
    return NULL;

  if (weir__rangemap_overlap(&heap->segments_by_address, base, bytes, NULL,
                             NULL)) { /* memory that is in use must not be freed */
    weir__log(WEIR_LOG_ERROR, "device %d: a function of a pool returned memory at %p that is already in use",
              heap->device, (void *)base);
    return NULL;
  }
  weir__segment *segment = weir__segment_new(heap, arena, base, bytes, 0);
  if (!segment)
    goto free_memory;
  if (!weir__page_map_update(heap->allocator->pages, base, bytes, arena, true))
    goto delete_segment;
  weir__arena_lock(arena);
  bool room = weir__index_prepare(&arena->free, bytes);
  weir__block *block = room ? weir__arena_new_block(arena, segment, base, bytes) : NULL;
  if (block) {
    segment->stack = weir__op_stack();
    weir__trace(heap, WEIR_TRACE_SEGMENT_ALLOC, arena->pool, base, bytes, arena->stream);
  }
  weir__arena_unlock(arena);
  if (!block)
    goto forget_range;
  segment->first = block;
  weir__segment_count(heap, segment, 1, (int64_t)bytes);
  return block;

forget_range:
  weir__page_map_update(heap->allocator->pages, base, bytes, arena, false);
delete_segment:
  segment_delete(heap, segment);
free_memory:
  give_memory(heap, arena, base, bytes);
  return NULL;
}

/* Traces the release of memory. An operation without a stack is recorded with the stack of the segment's allocation. */
static void trace_segment(weir__heap *heap, weir_trace_action action, const weir__segment *segment, uint64_t address,
                          uint64_t bytes) {
  if (weir__is_traced(heap, action))
    weir__trace_arena(segment->arena, action, address, bytes, segment->stack);
}

bool weir__release_segment(weir__heap *heap, weir__block *block) {
  weir__segment *segment = weir__segment_of(heap, block);
  weir__arena *arena = segment->arena;
  /* The range is removed first: once the driver has the memory, another thread may get the same addresses. */
  weir__page_map_update(heap->allocator->pages, segment->base, segment->bytes, arena, false);
  if (!give_memory(heap, arena, segment->base, segment->bytes)) {
    weir__page_map_update(heap->allocator->pages, segment->base, segment->bytes, arena, true);
    return false;
  }
  weir__index_remove(&arena->free, block);
  weir__slab_give(&arena->blocks, block, sizeof *block);
  weir__segment_count(heap, segment, -1, -(int64_t)segment->bytes);
  trace_segment(heap, WEIR_TRACE_SEGMENT_FREE, segment, segment->base, segment->bytes);
  segment_delete(heap, segment);
  return true;
}

/* ---- Expandable segments: pages ---- */

static size_t page_of(const weir__segment *segment, uint64_t address) {
  return (size_t)((address - segment->base) / segment->page);
}

void weir__pages_prepare(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  int can_map = 0, rdma = 0;
  uint64_t granularity = 0;
  if (driver->DeviceGetAttribute(driver, &rdma, WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED, heap->device))
    rdma = 0;
  /* Lets network cards access the pages (GPUDirect RDMA), where the device supports it. */
  heap->page_prop =
      (weir_cu_mem_prop){.type = WEIR_CU_ALLOCATION_PINNED,
                         .handle_types = heap->shares_pages ? WEIR_CU_HANDLE_POSIX_FD : WEIR_CU_HANDLE_NONE,
                         .location = {.type = WEIR_CU_LOCATION_DEVICE, .id = heap->device},
                         .flags.gpu_direct_rdma = rdma != 0};
  if (driver->MemAddressReserve && driver->MemGetAllocationGranularity &&
      !driver->DeviceGetAttribute(driver, &can_map, WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, heap->device) && can_map &&
      !driver->MemGetAllocationGranularity(driver, &granularity, &heap->page_prop, WEIR_CU_GRANULARITY_MINIMUM))
    heap->granularity = granularity;
}

/* Keeps physical memory that the driver refuses to release, so that a later call can try again. */
static void release_handle(weir__heap *heap, weir_cu_mem_handle handle) {
  weir_driver *driver = heap->allocator->driver;
  if (!driver->MemRelease(driver, handle))
    return;
  if (WEIR__RESERVE(heap->orphans, heap->orphan_room, heap->orphan_count + 1))
    heap->orphans[heap->orphan_count++] = handle;
  else
    weir__log(WEIR_LOG_ERROR, "device %d: a page is leaked: the driver refused to release it", heap->device);
}

void weir__release_orphans(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  while (heap->orphan_count && !driver->MemRelease(driver, heap->orphans[heap->orphan_count - 1]))
    heap->orphan_count--;
}

/* Returns false, with nothing changed, if the driver fails. */
static bool unmap_pages(weir__heap *heap, weir__segment *segment, size_t first, size_t count) {
  weir_driver *driver = heap->allocator->driver;
  uint64_t base = segment->base + first * segment->page;
  if (!weir__heap_ok(heap, driver->MemUnmap(driver, base, count * segment->page), "cuMemUnmap"))
    return false;
  for (size_t i = first; i < first + count; i++) {
    weir__ipc_forget_page(segment, i);
    release_handle(heap, segment->handles[i]);
    segment->handles[i] = 0;
  }
  return true;
}

size_t weir__list_access(const weir__heap *heap, weir_cu_mem_access access[64]) {
  size_t count = 0;
  for (int i = 0; i < 64; i++)
    if (i == heap->device || heap->peers >> i & 1)
      access[count++] =
          (weir_cu_mem_access){.location = {WEIR_CU_LOCATION_DEVICE, i}, .flags = WEIR_CU_ACCESS_READWRITE};
  return count;
}

weir_cu_result weir__share_segments(weir__heap *heap, int device) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mem_access access = {.location = {WEIR_CU_LOCATION_DEVICE, device}, .flags = WEIR_CU_ACCESS_READWRITE};
  for (weir__segment *s = heap->segments; s; s = s->next)
    for (size_t i = 0; i < s->room; i++) {
      if (!s->handles[i])
        continue;
      weir_cu_result r = driver->MemSetAccess(driver, s->base + i * s->page, s->page, &access, 1);
      if (r)
        return r;
    }
  return WEIR_CU_SUCCESS;
}

/* Makes room for the handles of a number of pages. Usually only a small part of a reservation is ever mapped. */
static bool make_room(weir__segment *segment, size_t pages) {
  if (pages <= segment->room)
    return true;
  size_t all = (size_t)(segment->bytes / segment->page), twice = 2 * segment->room;
  size_t room = twice > all ? all : twice > pages ? twice : pages;
  weir_cu_mem_handle *grown = realloc(segment->handles, room * sizeof *grown);
  if (!grown)
    return false;
  memset(grown + segment->room, 0, (room - segment->room) * sizeof *grown);
  segment->handles = grown;
  segment->room = room;
  return true;
}

static bool map_pages(weir__heap *heap, weir__segment *segment, size_t first, size_t count) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_mem_access access[64];
  size_t accesses = weir__list_access(heap, access);
  uint64_t base = segment->base + first * segment->page;
  size_t created = 0, mapped = 0, stuck = 0;
  if (!make_room(segment, first + count))
    return false;
  weir__release_orphans(heap);
  for (size_t i = first; i < first + count; i++) /* stuck pages, see below */
    if (segment->handles[i] && !unmap_pages(heap, segment, i, 1))
      return false;
  for (; created < count; created++)
    if (!weir__heap_ok(
            heap, driver->MemCreate(driver, &segment->handles[first + created], segment->page, &heap->page_prop, 0),
            "cuMemCreate"))
      goto undo;
  for (; mapped < count; mapped++)
    if (!weir__heap_ok(heap,
                       driver->MemMap(driver, base + mapped * segment->page, segment->page, 0,
                                      segment->handles[first + mapped], 0),
                       "cuMemMap"))
      goto undo;
  if (!weir__heap_ok(heap, driver->MemSetAccess(driver, base, count * segment->page, access, accesses),
                     "cuMemSetAccess"))
    goto undo;
  segment->mapped += count;
  return true;

undo:
  /* If this fails too, the pages stay mapped, and are unmapped when the range is needed again. */
  if (mapped && driver->MemUnmap(driver, base, mapped * segment->page))
    stuck = mapped;
  while (created-- > stuck) {
    release_handle(heap, segment->handles[first + created]);
    segment->handles[first + created] = 0;
  }
  return false;
}

/* ---- Expandable segments: blocks. The arena's lock is held ---- */

/* Maps the first `bytes`, rounded up to pages, of an unmapped block. The block becomes free, is merged with its
 * neighbours and inserted into the index. *range is what was mapped. */
typedef struct mapped_range {
  uint64_t address, bytes;
} mapped_range;

static bool map_block(weir__heap *heap, weir__segment *segment, weir__block *block, uint64_t bytes,
                      mapped_range *range) {
  weir__arena *arena = segment->arena;
  uint64_t size = weir__round_up(bytes, segment->page);
  weir__block *rest = NULL;
  /* No block can be larger than all that is mapped. Preparing for the whole reservation would waste memory, as there
   * may be thousands of arenas. */
  if (!weir__index_prepare(&arena->free, segment->mapped * segment->page + size))
    return false;
  if (size < weir__block_bytes(block)) {
    rest = weir__arena_new_block(arena, segment, block->address + size, weir__block_bytes(block) - size);
    if (!rest)
      return false;
  }
  if (!weir__page_map_update(heap->allocator->pages, block->address, size, arena, true))
    goto free_rest;
  if (!map_pages(heap, segment, page_of(segment, block->address), (size_t)(size / segment->page)))
    goto forget_range;

  weir__tree_remove(&arena->unmapped, block);
  block->state = WEIR__FREE;
  if (rest) {
    rest->state = WEIR__UNMAPPED;
    weir__block_link(rest, block, weir__block_next(block));
    block->units = (uint32_t)(size / WEIR__UNIT);
    weir__tree_insert(&arena->unmapped, rest);
  }
  *range = (mapped_range){block->address, size};
  weir__arena_merge(arena, segment, block, weir__block_previous(block));
  weir__arena_merge(arena, segment, block, weir__block_next(block));
  weir__arena_insert(arena, block);
  weir__segment_count(heap, segment, 0, (int64_t)size);
  if (!segment->stack)
    segment->stack = weir__op_stack();
  weir__trace(heap, WEIR_TRACE_SEGMENT_MAP, arena->pool, range->address, size, arena->stream);
  return true;

forget_range:
  weir__page_map_update(heap->allocator->pages, block->address, size, arena, false);
free_rest:
  if (rest)
    weir__slab_give(&arena->blocks, rest, sizeof *rest);
  return false;
}

/* Unmaps whole pages of a free block that is in the index; the parts before and after them stay free. The block becomes
 * the unmapped part. Returns false, with nothing changed, if out of host memory or if the driver fails. */
static bool carve(weir__heap *heap, weir__segment *segment, weir__block *block, uint64_t address, uint64_t bytes) {
  weir__arena *arena = segment->arena;
  uint64_t before = address - block->address, after = weir__block_bytes(block) - before - bytes;
  weir__block *low = before ? weir__arena_new_block(arena, segment, block->address, before) : NULL;
  weir__block *high = after ? weir__arena_new_block(arena, segment, address + bytes, after) : NULL;
  size_t first = page_of(segment, address), pages = (size_t)(bytes / segment->page);
  if ((before && !low) || (after && !high) || !unmap_pages(heap, segment, first, pages)) {
    if (low)
      weir__slab_give(&arena->blocks, low, sizeof *low);
    if (high)
      weir__slab_give(&arena->blocks, high, sizeof *high);
    return false;
  }
  segment->mapped -= pages;
  weir__page_map_update(heap->allocator->pages, address, bytes, arena, false);

  weir__index_remove(&arena->free, block);
  if (low) {
    weir__block_link(low, weir__block_previous(block), block);
    if (!low->previous)
      segment->first = low;
    weir__arena_insert(arena, low);
  }
  if (high) {
    weir__block_link(high, block, weir__block_next(block));
    weir__arena_insert(arena, high);
  }
  block->address = address;
  block->units = (uint32_t)(bytes / WEIR__UNIT);
  block->state = WEIR__UNMAPPED;
  weir__arena_merge(arena, segment, block, weir__block_previous(block));
  weir__arena_merge(arena, segment, block, weir__block_next(block));
  weir__tree_insert(&arena->unmapped, block);
  weir__segment_count(heap, segment, 0, -(int64_t)bytes);
  trace_segment(heap, WEIR_TRACE_SEGMENT_UNMAP, segment, address, bytes);
  return true;
}

/* Deletes a segment without mapped pages, unless the driver refuses to free the reservation; the segment is then used
 * again. */
static void drop_if_unmapped(weir__heap *heap, weir__segment *segment) {
  weir_driver *driver = heap->allocator->driver;
  weir__arena *arena = segment->arena;
  weir__block *block = segment->first;
  if (weir__block_is_mapped(block) || block->next || driver->MemAddressFree(driver, segment->base, segment->bytes))
    return;
  weir__tree_remove(&arena->unmapped, block);
  weir__slab_give(&arena->blocks, block, sizeof *block);
  segment_delete(heap, segment);
}

/* The pages that a block contains completely. */
static mapped_range whole_pages(const weir__segment *segment, const weir__block *block) {
  uint64_t first = weir__round_up(block->address - segment->base, segment->page);
  uint64_t end = (block->address + weir__block_bytes(block) - segment->base) / segment->page * segment->page;
  return (mapped_range){segment->base + first, end > first ? end - first : 0};
}

bool weir__has_whole_pages(const weir__heap *heap, const weir__block *block) {
  return whole_pages(weir__segment_of(heap, block), block).bytes > 0;
}

void weir__release_pages(weir__heap *heap, weir__block *block) {
  weir__segment *segment = weir__segment_of(heap, block);
  mapped_range pages = whole_pages(segment, block);
  if (carve(heap, segment, block, pages.address, pages.bytes))
    drop_if_unmapped(heap, segment);
}

void weir__release_reservations(weir__heap *heap, weir__arena *arena) {
  for (weir__block *block = weir__tree_after(arena->unmapped, 0), *next; block; block = next) {
    next = weir__tree_after(arena->unmapped, block->address);
    drop_if_unmapped(heap, weir__segment_of(heap, block));
  }
}

/* Whether a run of free and unmapped blocks, starting with this one, is large enough. */
static bool has_room(const weir__block *block, uint64_t bytes) {
  uint64_t have = 0;
  for (; have < bytes && block && !weir__block_is_active(block); block = weir__block_next(block))
    have += weir__block_bytes(block);
  return have >= bytes;
}

uint64_t weir__reserve_bytes(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream) {
  uint64_t most = heap->total / 8 * 9 + heap->total % 8 * 9 / 8, largest = weir__most_units / 2 * WEIR__UNIT;
  most = most < largest ? most : largest; /* on a larger device a segment covers only a part of the memory */
  weir__reserve wanted = settings->expandable_segments_reserve;
  const weir__stream_class *class = heap->classes;
  while (class && class->stream != stream)
    class = class->next;
  for (int i = 0; class && i < WEIR__RESERVE_CLASSES; i++) {
    const weir__reserve_class *known = &settings->expandable_segments_reserve_by_class[i];
    if (known->name[0] && !strcmp(known->name, class->name))
      wanted = known->reserve;
  }
  uint64_t bytes = wanted.bytes ? wanted.bytes : (uint64_t)(wanted.fraction * (double)heap->total);
  return bytes && bytes < most ? bytes : most;
}

static weir__block *reserve(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  weir_driver *driver = heap->allocator->driver;
  uint64_t page =
      weir__round_up(arena->pool->is_small ? WEIR__SMALL_SEGMENT : settings->large_segment_size, heap->granularity);
  uint64_t size = weir__round_up(weir__reserve_bytes(heap, settings, arena->stream), page);
  weir_cu_deviceptr base;
  if (size < bytes ||
      !weir__heap_ok(heap, driver->MemAddressReserve(driver, &base, size, 0, 0, 0), "cuMemAddressReserve"))
    return NULL;
  weir__segment *segment =
      size / WEIR__UNIT <= weir__most_units ? weir__segment_new(heap, arena, base, size, page) : NULL;
  weir__block *block = segment ? weir__arena_new_block(arena, segment, base, size) : NULL;
  if (!block) {
    if (segment)
      segment_delete(heap, segment);
    driver->MemAddressFree(driver, base, size);
    return NULL;
  }
  atomic_store(&heap->had_expandable, true);
  block->state = WEIR__UNMAPPED;
  segment->first = block;
  weir__tree_insert(&arena->unmapped, block);
  return block;
}

/* The lowest run of blocks where the request fits once its unmapped parts are mapped; it may begin with a free block.
 * */
static weir__block *find_place(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  for (weir__block *block = weir__tree_after(arena->unmapped, 0); block;
       block = weir__tree_after(arena->unmapped, block->address)) {
    weir__block *previous = weir__block_previous(block);
    weir__block *from = previous && !weir__block_is_active(previous) ? previous : block;
    if (has_room(from, bytes))
      return from;
  }
  return reserve(heap, arena, settings, bytes);
}

static weir__block *grow_expandable(weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                                    uint64_t bytes) {
  weir__arena_lock(arena);
  weir__block *block = find_place(heap, arena, settings, bytes), *result = NULL;
  weir__segment *segment = block ? weir__segment_of(heap, block) : NULL;
  mapped_range *done = NULL; /* one per hole of the run */
  size_t count = 0, room = 0;
  if (!block)
    goto unlock;
  while (!weir__block_is_mapped(block) || weir__block_bytes(block) < bytes) {
    bool mapped = weir__block_is_mapped(block);
    weir__block *hole = mapped ? weir__block_next(block) : block;
    uint64_t want = bytes - (mapped ? weir__block_bytes(block) : 0);
    if (!WEIR__RESERVE(done, room, count + 1) ||
        !map_block(heap, segment, hole, want < weir__block_bytes(hole) ? want : weir__block_bytes(hole), &done[count]))
      goto undo;
    block = hole; /* it has absorbed the block before it */
    count++;
  }
  weir__index_remove(&arena->free, block);
  weir__block_hold(block); /* keeps neighbours that are freed meanwhile from merging it */
  result = block;
  if (!count)
    weir__trace_taken(arena, block);
  goto unlock;

undo:
  while (count-- > 0) {
    weir__block *part = block;
    if (!carve(heap, segment, part, done[count].address, done[count].bytes))
      break;
    block = weir__block_previous(part);
  }
  drop_if_unmapped(heap, segment);
unlock:
  weir__arena_unlock(arena);
  free(done);
  return result;
}

weir__block *weir__heap_grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                             uint64_t segment_bytes) {
  uint64_t taken = heap->reserved + heap->promised;
  heap->driver_error = WEIR_CU_SUCCESS;
  if (heap->has_limit && (segment_bytes > heap->limit || taken > heap->limit - segment_bytes))
    return NULL;
  bool own_memory = arena->pool->owner && arena->pool->owner->alloc;
  return settings->expandable_segments && !own_memory ? grow_expandable(heap, arena, settings, bytes)
                                                      : grow_fixed(heap, arena, settings, segment_bytes);
}

void weir__heap_free_segments(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  while (heap->segments) {
    weir__segment *segment = heap->segments;
    if (!segment->page) {
      weir__page_map_update(heap->allocator->pages, segment->base, segment->bytes, segment->arena, false);
      give_memory(heap, segment->arena, segment->base, segment->bytes);
    } else {
      for (size_t i = 0; i < segment->room; i++)
        if (segment->handles[i]) {
          weir__page_map_update(heap->allocator->pages, segment->base + i * segment->page, segment->page,
                                segment->arena, false);
          unmap_pages(heap, segment, i, 1);
        }
      driver->MemAddressFree(driver, segment->base, segment->bytes);
    }
    heap->segments = segment->next; /* all segments are deleted, so the other links do not matter */
    weir__segment_delete(segment);
  }
  weir__rangemap_clear(&heap->segments_by_address);
  weir__release_orphans(heap);
  free(heap->orphans);
}

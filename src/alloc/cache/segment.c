/*
 * Segments: obtaining memory from the driver, and returning it.
 *
 * A fixed segment is one allocation of the driver. An expandable segment is a reservation of address space, larger than
 * the device's memory, into which pages are mapped at its growing end and in holes. Its blocks tile the whole
 * reservation: mapped ones are free or active like any other block, and unmapped ones are in a tree by address.
 *
 * Mapping is atomic: if any call fails, the previous ones are undone, and the segment is unchanged.
 */
#include "alloc/cache/segment.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/move.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "alloc/memory/pages.h"
#include "alloc/memory/stat.h"
#include "base/array.h"
#include "base/thread.h"

typedef struct range {
  uint64_t address, bytes;
} range;

/* ---- Segments of a heap ---- */

static void count_of_arena(weir__arena *arena, int by) {
  arena->segments += by;
  if (arena->pool->owner)
    arena->pool->owner->segments += by;
}

static bool note(weir__heap *heap, weir__segment *segment, uint64_t base, uint64_t bytes) {
  weir__lock_acquire(&heap->segments_lock);
  bool noted = weir__rangemap_insert(&heap->segments_by_address, base, bytes, segment);
  weir__lock_release(&heap->segments_lock);
  return noted;
}

/* Makes a segment known, whose memory is set. False without host memory, or if it overlaps another one. */
static bool add_segment(weir__heap *heap, weir__arena *arena, weir__segment *segment) {
  if (!note(heap, segment, segment->memory.base, segment->memory.bytes))
    return false;
  segment->arena = arena;
  WEIR__LIST_ADD(heap->segments, segment);
  count_of_arena(arena, 1);
  return true;
}

weir__segment *weir__segment_new(weir__heap *heap, weir__arena *arena, uint64_t base, uint64_t bytes) {
  weir__segment *segment = calloc(1, sizeof *segment);
  if (!segment)
    return NULL;
  segment->memory = (weir__reservation){.base = base, .bytes = bytes};
  if (add_segment(heap, arena, segment))
    return segment;
  free(segment);
  return NULL;
}

weir__segment *weir__segment_at(const weir__heap *heap, uint64_t address) {
  return weir__rangemap_find(&heap->segments_by_address, address, NULL, NULL);
}

weir__segment *weir__segment_of(const weir__heap *heap, const weir__block *block) {
  return weir__segment_at(heap, block->address);
}

weir__segment *weir__segment_lookup(weir__heap *heap, const weir__block *block) {
  weir__lock_acquire(&heap->segments_lock);
  weir__segment *segment = weir__segment_of(heap, block);
  weir__lock_release(&heap->segments_lock);
  return segment;
}

void weir__segment_unlink(weir__heap *heap, weir__segment *segment) {
  weir__lock_acquire(&heap->segments_lock);
  weir__rangemap_remove(&heap->segments_by_address, segment->memory.base);
  weir__lock_release(&heap->segments_lock);
  WEIR__LIST_REMOVE(heap->segments, segment);
}

void weir__segment_delete(weir__segment *segment) {
  count_of_arena(segment->arena, -1);
  free(segment->backed);
  free(segment->to_graphs);
  free(segment);
}

static void segment_delete(weir__heap *heap, weir__segment *segment) {
  weir__segment_unlink(heap, segment);
  weir__segment_delete(segment);
}

void weir__segment_count(weir__heap *heap, weir__segment *segment, int segments, int64_t bytes) {
  weir_allocator_stats *stats = &heap->stats;
  if (segments > 0)
    segment->oversize = segment->memory.bytes >= weir__settings_of(heap)->max_split_size;
  if (segment->oversize)
    weir__stat_add(&stats->oversize_segments, segments);
  int64_t held = (int64_t)weir__growth_held(heap, segment->growth, (uint64_t)(bytes < 0 ? -bytes : bytes));
  weir__account_charge(&segment->arena->account, bytes < 0 ? -held : held, segments);
  if (bytes < 0)
    stats->num_device_free++;
  else
    stats->num_device_alloc++;
}

/* ---- Fixed segments ---- */

/* Only a guard that runs needs pages. In a replay, which has none, blocks are placed where they were recorded. */
static bool is_apart(const weir__heap *heap, weir__growth_kind growth) {
  return growth == WEIR__GROWTH_APART && heap->allocator->guard;
}

/* Obtains memory for a segment of one allocation from the driver, or from the functions of the pool. */
static weir_cu_result get_memory(weir__heap *heap, const weir__arena *arena, weir__growth_kind growth, uint64_t bytes,
                                 weir_cu_deviceptr *base) {
  const weir__private_pool *owner = arena->pool->owner;
  weir_driver *driver = heap->allocator->driver;
  int mode;
  weir_cu_result r;
  if (!weir__capture_relax(heap, &mode))
    return WEIR_CU_STREAM_CAPTURE_UNSUPPORTED;
  if (weir__is_provided(arena->pool)) {
    *base = (weir_cu_deviceptr)owner->alloc(owner->context, bytes, heap->device, arena->stream);
    r = *base ? WEIR_CU_SUCCESS : WEIR_CU_OUT_OF_MEMORY;
  } else if (is_apart(heap, growth))
    r = weir__apart_get(&heap->pages, &heap->apart_blocks, heap->total, bytes, base) ? WEIR_CU_SUCCESS
                                                                                     : WEIR_CU_OUT_OF_MEMORY;
  else
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
  if (weir__is_provided(arena->pool))
    owner->free(owner->context, (void *)base, bytes, heap->device, arena->stream);
  else if (weir__apart_has(&heap->apart_blocks, base))
    gone = weir__apart_give(&heap->pages, &heap->apart_blocks, base, bytes);
  else
    gone = weir__heap_ok(heap, driver->MemFree(driver, base), "cuMemFree");
  weir__capture_restore(heap, mode);
  return gone;
}

static weir__block *grow_fixed(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  weir_cu_deviceptr base = 0;
  weir__growth_kind growth = weir__growth_of(settings, arena->pool);
  bool unlocks = settings->release_lock_on_malloc && growth != WEIR__GROWTH_APART;
  weir__account_promise(&arena->account.account, (int64_t)bytes);
  if (unlocks)
    weir__mutex_unlock(&heap->lock);
  weir_cu_result r = get_memory(heap, arena, growth, bytes, &base);
  if (unlocks) {
    weir__mutex_lock(&heap->lock);
    heap->pages.failure = WEIR_CU_SUCCESS; /* another thread's calls may have failed meanwhile */
    heap->refused_by = NULL;
  }
  weir__account_promise(&arena->account.account, -(int64_t)bytes);
  if (!weir__heap_ok(heap, r, "cuMemAlloc"))
    return NULL;

  if (weir__rangemap_overlap(&heap->segments_by_address, base, bytes, NULL,
                             NULL)) { /* memory that is in use must not be freed */
    weir__log(WEIR_LOG_ERROR, "device %d: a function of a pool returned memory at %p that is already in use",
              heap->device, (void *)base);
    return NULL;
  }
  weir__segment *segment = weir__segment_new(heap, arena, base, bytes);
  if (!segment)
    goto free_memory;
  if (!weir__page_map_update(heap->allocator->page_map, base, bytes, arena, true))
    goto delete_segment;
  weir__arena_lock(arena);
  bool room = weir__index_prepare(&arena->free, bytes);
  weir__block *block = room ? weir__arena_new_block(arena, segment, base, bytes) : NULL;
  if (block) {
    segment->first = block;
    segment->growth = growth;
    segment->stack = weir__op_stack();
    weir__segment_count(heap, segment, 1, (int64_t)bytes);
    weir__trace(arena, WEIR_TRACE_SEGMENT_ALLOC, base, bytes, 0);
  }
  weir__arena_unlock(arena);
  if (block)
    return block;

  weir__page_map_update(heap->allocator->page_map, base, bytes, arena, false);
delete_segment:
  segment_delete(heap, segment);
free_memory:
  give_memory(heap, arena, base, bytes);
  return NULL;
}

bool weir__release_segment(weir__heap *heap, weir__block *block) {
  weir__segment *segment = weir__segment_of(heap, block);
  weir__arena *arena = segment->arena;
  /* The range is removed first: once the driver has the memory, another thread may get the same addresses. */
  weir__page_map_update(heap->allocator->page_map, segment->memory.base, segment->memory.bytes, arena, false);
  if (!give_memory(heap, arena, segment->memory.base, segment->memory.bytes)) {
    weir__page_map_update(heap->allocator->page_map, segment->memory.base, segment->memory.bytes, arena, true);
    return false;
  }
  weir__index_remove(&arena->free, block);
  weir__slab_free(&arena->blocks, block, sizeof *block);
  weir__segment_count(heap, segment, -1, -(int64_t)segment->memory.bytes);
  weir__trace(arena, WEIR_TRACE_SEGMENT_FREE, segment->memory.base, segment->memory.bytes, segment->stack);
  segment_delete(heap, segment);
  return true;
}

/* ---- Expandable segments: pages ---- */

/* The driver's calls cost as much for a large page as for a small one, and a tag unmaps all of its pages whenever it
 * sleeps. So the pages of a tag are as large as what they are made for, up to this size. */
#define LARGEST_PAGE (64 * WEIR__MIB)

/* How much such a segment grows by: an eighth, if that is more than what is needed, so that many small requests get
 * large pages too. */
static uint64_t growth_of_large(const weir__segment *segment, uint64_t bytes) {
  uint64_t share = weir__round_up(segment->mapped / 8, segment->step);
  share = share < LARGEST_PAGE ? share : LARGEST_PAGE;
  return bytes > share ? bytes : share;
}

/* Makes pages for an unmapped range: of the segment's size, or as large as possible. */
static bool map_pages(weir__heap *heap, weir__segment *segment, uint64_t address, uint64_t bytes) {
  uint64_t page = segment->has_large_pages ? LARGEST_PAGE : segment->memory.slot;
  size_t count = (size_t)((bytes + page - 1) / page);
  weir__page_change *changes = calloc(count, sizeof *changes);
  for (size_t i = 0; changes && i < count; i++) {
    uint64_t rest = bytes - i * page;
    changes[i] = (weir__page_change){WEIR__PAGE_MAKE, &segment->memory, address + i * page, rest < page ? rest : page,
                                     .page = NULL};
  }
  bool mapped = changes &&
                weir__pages_clear(&heap->pages, &segment->memory, address, bytes) && /* a stuck mapping may be there */
                weir__pages_change(&heap->pages, changes, count);
  free(changes);
  return mapped;
}

void weir__count_pages(weir__segment *segment, uint64_t address, uint64_t bytes, bool arrive) {
  weir__arena *arena = segment->arena;
  weir__account_charge(&arena->account, arrive ? (int64_t)bytes : -(int64_t)bytes, 0);
  if (arrive && !segment->stack)
    segment->stack = weir__op_stack();
  weir__trace(arena, arrive ? WEIR_TRACE_SEGMENT_MAP : WEIR_TRACE_SEGMENT_UNMAP, address, bytes,
              arrive ? 0 : segment->stack);
}

/* ---- Expandable segments: blocks. The arena's lock is held ---- */

static bool range_prepare(weir__heap *heap, weir__segment *segment, uint64_t address, uint64_t bytes) {
  weir__arena *arena = segment->arena;
  /* No block can be larger than all that is mapped. Preparing for the whole reservation would waste memory, as there
   * may be thousands of arenas. */
  return weir__index_prepare(&arena->free, segment->mapped + bytes) &&
         weir__slab_reserve(&arena->blocks, sizeof(weir__block), 2) &&
         weir__page_map_update(heap->allocator->page_map, address, bytes, arena, true);
}

/* Cuts an unmapped block at an address inside it; returns the part that begins there. Host memory was prepared. */
static weir__block *cut_unmapped(weir__segment *segment, weir__block *block, uint64_t address) {
  weir__arena *arena = segment->arena;
  uint64_t before = address - block->address;
  if (!before)
    return block;
  weir__block *rest = weir__arena_new_block(arena, segment, address, weir__block_bytes(block) - before);
  rest->state = WEIR__UNMAPPED;
  weir__block_link(rest, block, weir__block_next(block));
  block->units = (uint32_t)(before / WEIR__UNIT);
  weir__tree_insert(&arena->unmapped, rest);
  return rest;
}

/* A range inside an unmapped block becomes free. Returns the free block that it is merged into. */
static weir__block *become_free(weir__segment *segment, uint64_t address, uint64_t bytes) {
  weir__arena *arena = segment->arena;
  weir__block *block = cut_unmapped(segment, weir__tree_at(arena->unmapped, address), address);
  if (bytes < weir__block_bytes(block))
    cut_unmapped(segment, block, address + bytes);
  weir__tree_remove(&arena->unmapped, block);
  block->state = WEIR__FREE;
  block->paged = WEIR__PAGED | WEIR__PAGED_LAST | (weir__pages_move(segment) ? WEIR__PAGED_BARE : 0);
  weir__arena_merge(arena, segment, block, weir__block_previous(block));
  weir__arena_merge(arena, segment, block, weir__block_next(block));
  weir__arena_insert(arena, block);
  segment->mapped += bytes;
  return block;
}

/* The same, with pages that have been made for it. */
static weir__block *range_map(weir__segment *segment, uint64_t address, uint64_t bytes) {
  weir__block *block = become_free(segment, address, bytes);
  if (!weir__pages_move(segment))
    weir__count_pages(segment, address, bytes, true);
  return block;
}

/* A range of a free block becomes unmapped. Returns the unmapped block that it is merged into. Host memory for two
 * blocks was reserved. */
static weir__block *range_unmap(weir__heap *heap, weir__segment *segment, weir__block *block, uint64_t address,
                                uint64_t bytes) {
  weir__arena *arena = segment->arena;
  uint64_t before = address - block->address, after = weir__block_bytes(block) - before - bytes;
  weir__page_map_update(heap->allocator->page_map, address, bytes, arena, false);
  weir__index_remove(&arena->free, block);
  if (before) {
    weir__block *low = weir__arena_new_block(arena, segment, block->address, before);
    low->paged = block->paged;
    weir__block_link(low, weir__block_previous(block), block);
    if (!low->previous)
      segment->first = low;
    weir__arena_insert(arena, low);
  }
  if (after) {
    weir__block *high = weir__arena_new_block(arena, segment, address + bytes, after);
    high->paged = block->paged;
    weir__block_link(high, block, weir__block_next(block));
    weir__arena_insert(arena, high);
  }
  block->address = address;
  block->units = (uint32_t)(bytes / WEIR__UNIT);
  block->state = WEIR__UNMAPPED;
  weir__arena_merge(arena, segment, block, weir__block_previous(block));
  weir__arena_merge(arena, segment, block, weir__block_next(block));
  weir__tree_insert(&arena->unmapped, block);
  weir__block *last = weir__block_previous(block);
  if (last)
    last->paged |= WEIR__PAGED_LAST;
  segment->mapped -= bytes;
  if (!weir__pages_move(segment))
    weir__count_pages(segment, address, bytes, false);
  return block;
}

/* Maps a range of unmapped steps. Returns the free block that it becomes a part of, or NULL with nothing changed. */
static weir__block *map_exactly(weir__heap *heap, weir__segment *segment, uint64_t address, uint64_t size) {
  if (!range_prepare(heap, segment, address, size))
    return NULL;
  if (!weir__pages_move(segment)) {
    if (!map_pages(heap, segment, address, size)) {
      weir__page_map_update(heap->allocator->page_map, address, size, segment->arena, false);
      return NULL;
    }
    heap->stats.num_device_alloc++;
  }
  return range_map(segment, address, size);
}

/* Maps the first `bytes`, rounded up to steps, of an unmapped block, or more: with new pages, unless pages move there
 * later. Returns the free block that has them, or NULL with nothing changed. */
static weir__block *map_block(weir__heap *heap, weir__segment *segment, weir__block *block, uint64_t bytes,
                              range *done) {
  uint64_t address = block->address, least = weir__round_up(bytes, segment->step), room = weir__block_bytes(block);
  if (least > room) /* a hole need not consist of whole steps */
    least = room;
  uint64_t size = segment->has_large_pages ? growth_of_large(segment, least) : least;
  if (size > room)
    size = room;
  if (size > least) {
    weir__block *grown =
        weir__over_limit(heap, segment->arena, size) ? NULL : map_exactly(heap, segment, address, size);
    if (grown || heap->pages.failure) {
      *done = (range){address, size};
      return grown;
    }
    heap->refused_by = NULL;
  }
  *done = (range){address, least};
  return map_exactly(heap, segment, address, least);
}

/* The reverse, for a range of a free block that is in the index. Returns the unmapped block, or NULL with the blocks
 * unchanged if out of host memory or if the driver fails. */
static weir__block *carve(weir__heap *heap, weir__segment *segment, weir__block *block, range gone) {
  if (!weir__slab_reserve(&segment->arena->blocks, sizeof *block, 2))
    return NULL;
  if (!weir__pages_move(segment)) {
    if (!weir__pages_change(
            &heap->pages,
            &(weir__page_change){WEIR__PAGE_RELEASE, &segment->memory, gone.address, gone.bytes, .page = NULL}, 1))
      return NULL;
    heap->stats.num_device_free++;
  }
  return range_unmap(heap, segment, block, gone.address, gone.bytes);
}

static bool has_no_pages(const weir__segment *segment) {
  return !weir__block_is_mapped(segment->first) && !segment->first->next && !segment->memory.owned;
}

/* Deletes a segment without mapped pages, unless the driver refuses to free the reservation; the segment is then used
 * again. With `is_idle`, its stream has passed the last use of the aliases that are left in it. */
static void drop_if_unmapped(weir__heap *heap, weir__segment *segment, bool is_idle) {
  weir__arena *arena = segment->arena;
  weir__block *block = segment->first;
  if (!has_no_pages(segment) || (segment->memory.room && weir__pages_move(segment) && !is_idle) ||
      weir__reservation_close(&heap->pages, &segment->memory))
    return;
  weir__tree_remove(&arena->unmapped, block);
  weir__slab_free(&arena->blocks, block, sizeof *block);
  segment_delete(heap, segment);
}

/* The pages that a block contains completely. */
static range whole_pages(const weir__segment *segment, uint64_t from, uint64_t to) {
  const weir__mapping *first = weir__mapping_at(&segment->memory, from),
                      *last = weir__mapping_at(&segment->memory, to - 1);
  if (first->address < from)
    from = weir__mapping_end(first);
  if (weir__mapping_end(last) > to)
    to = last->address;
  return (range){from, to > from ? to - from : 0};
}

/* The steps that a block contains completely. */
static range whole_steps(const weir__segment *segment, const weir__block *block) {
  if (segment->has_large_pages)
    return whole_pages(segment, block->address, block->address + weir__block_bytes(block));
  uint64_t from = block->address - segment->memory.base, to = from + weir__block_bytes(block);
  from = weir__round_up(from, segment->step);
  to = to / segment->step * segment->step;
  return (range){segment->memory.base + from, to > from ? to - from : 0};
}

bool weir__has_whole_pages(const weir__heap *heap, const weir__block *block) {
  const weir__segment *segment = weir__segment_of(heap, block);
  return weir__pages_move(segment) || whole_steps(segment, block).bytes > 0;
}

void weir__release_pages(weir__heap *heap, weir__block *block) {
  weir__segment *segment = weir__segment_of(heap, block);
  if (weir__pages_move(segment) && !weir__move_release(heap, segment, block))
    return;
  range steps = whole_steps(segment, block);
  if (steps.bytes && carve(heap, segment, block, steps))
    drop_if_unmapped(heap, segment, true);
}

bool weir__has_left_reservations(const weir__heap *heap, const weir__arena *arena) {
  for (const weir__block *b = weir__tree_after(arena->unmapped, 0); b;
       b = weir__tree_after(arena->unmapped, b->address)) {
    const weir__segment *segment = weir__segment_of(heap, b);
    if (weir__pages_move(segment) && has_no_pages(segment))
      return true;
  }
  return false;
}

void weir__release_reservations(weir__heap *heap, weir__arena *arena, bool is_idle) {
  for (weir__block *block = weir__tree_after(arena->unmapped, 0), *next; block; block = next) {
    next = weir__tree_after(arena->unmapped, block->address);
    drop_if_unmapped(heap, weir__segment_of(heap, block), is_idle);
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
  uint64_t most = heap->total / 8 * 9 + heap->total % 8 * 9 / 8, largest = weir__max_units / 2 * WEIR__UNIT;
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

/* Reserves address space for a new segment: one unmapped block of at least `bytes`. NULL if that fails. */
static weir__block *reserve_segment(weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                                    uint64_t bytes, weir__growth_kind growth) {
  uint64_t small = weir__round_up(WEIR__SMALL_SEGMENT, heap->pages.granularity);
  uint64_t step = arena->pool->is_small ? small : weir__round_up(settings->large_segment_size, heap->pages.granularity);
  bool has_large_pages = growth == WEIR__GROWTH_EXPANDABLE && arena->pool->owner && arena->pool->owner->tag;
  uint64_t slot = growth == WEIR__GROWTH_MOVING || has_large_pages ? small : step;
  step = has_large_pages ? slot : weir__round_up(step, slot);
  uint64_t size = weir__round_up(weir__reserve_bytes(heap, settings, arena->stream), step);
  weir__segment *segment = size >= bytes && size / WEIR__UNIT <= weir__max_units ? calloc(1, sizeof *segment) : NULL;
  if (!segment)
    return NULL;
  if (!weir__heap_ok(heap, weir__reservation_open(&heap->pages, &segment->memory, size, slot), "cuMemAddressReserve")) {
    free(segment);
    return NULL;
  }
  segment->memory.stream = arena->stream;
  segment->memory.pins = arena->pool->owner ? arena->pool->owner->pins : 0;
  bool is_known = add_segment(heap, arena, segment);
  weir__block *block = is_known ? weir__arena_new_block(arena, segment, segment->memory.base, size) : NULL;
  if (!block) {
    weir__reservation_end(&heap->pages, &segment->memory);
    if (is_known)
      segment_delete(heap, segment);
    else
      free(segment);
    return NULL;
  }
  atomic_store(&heap->had_pages, true);
  block->state = WEIR__UNMAPPED;
  segment->first = block;
  segment->growth = growth;
  segment->has_large_pages = has_large_pages;
  segment->step = step;
  weir__tree_insert(&arena->unmapped, block);
  return block;
}

/* The lowest run of blocks in segments of that growth, with an unmapped one behind an address, where a request fits
 * once the unmapped ones are mapped: its first block, which may be free unless `apart`. NULL if there is none. */
static weir__block *find_place(weir__heap *heap, const weir__arena *arena, weir__growth_kind growth, uint64_t bytes,
                               uint64_t behind, bool apart) {
  for (weir__block *block = weir__tree_after(arena->unmapped, behind); block;
       block = weir__tree_after(arena->unmapped, block->address)) {
    weir__block *previous = apart ? NULL : weir__block_previous(block);
    weir__block *from = previous && !weir__block_is_active(previous) ? previous : block;
    if (has_room(from, bytes) && weir__segment_of(heap, from)->growth == growth)
      return from;
  }
  return NULL;
}

/* What was mapped for a request. */
typedef struct cover {
  range *done;
  size_t count, room;
} cover;

static void uncover(weir__heap *heap, weir__segment *segment, weir__block *block, cover *cover) {
  while (cover->count > 0) {
    weir__block *part = carve(heap, segment, block, cover->done[--cover->count]);
    if (!part)
      break;
    block = weir__block_previous(part);
  }
  drop_if_unmapped(heap, segment, false);
}

/* Maps the unmapped parts of the first `bytes` of a run of blocks: with new pages, or as a range that gets pages later
 * where pages move. Returns the free block that it has become, in the index; NULL with nothing changed on failure. */
static weir__block *cover_run(weir__heap *heap, weir__block *block, uint64_t bytes, cover *cover) {
  weir__segment *segment = weir__segment_of(heap, block);
  while (!weir__block_is_mapped(block) || weir__block_bytes(block) < bytes) {
    bool mapped = weir__block_is_mapped(block);
    weir__block *hole = mapped ? weir__block_next(block) : block;
    uint64_t want = bytes - (mapped ? weir__block_bytes(block) : 0);
    weir__block *grown = NULL;
    if (want > weir__block_bytes(hole))
      want = weir__block_bytes(hole);
    if (!WEIR__RESERVE(cover->done, cover->room, cover->count + 1) ||
        !(grown = map_block(heap, segment, hole, want, &cover->done[cover->count]))) {
      uncover(heap, segment, block, cover);
      return NULL;
    }
    block = grown;
    cover->count++;
  }
  return block;
}

/* Takes the place that begins with a block, and holds it, so that neighbours that are freed meanwhile do not merge it.
 * Where pages move, a free block before an unmapped one stays apart, and the place gets pages now. */
static weir__block *take_place(weir__heap *heap, weir__arena *arena, const weir__settings *settings, weir__block *from,
                               uint64_t bytes, bool is_elsewhere, weir__given *given) {
  weir__segment *segment = weir__segment_of(heap, from);
  bool moves = weir__pages_move(segment);
  weir__block *before = moves && !weir__block_is_mapped(from) ? weir__block_previous(from) : NULL;
  cover cover = {0};
  bool is_apart = before && before->state == WEIR__FREE;
  if (is_apart) {
    weir__index_remove(&arena->free, before);
    weir__block_hold(before);
  }
  weir__block *block = cover_run(heap, from, bytes, &cover);
  if (is_apart)
    weir__arena_insert(arena, before);
  *given = block ? WEIR__GIVEN : WEIR__NO_MEMORY;
  if (block) {
    weir__index_remove(&arena->free, block);
    if (moves)
      *given = weir__move_to(heap, arena, settings, block, bytes, is_elsewhere);
    else {
      weir__block_hold(block);
      if (!cover.count)
        weir__trace_taken(arena, block);
    }
  }
  if (block && *given) {
    if (is_apart)
      weir__arena_merge(arena, segment, block, before);
    weir__arena_insert(arena, block);
    uncover(heap, segment, block, &cover);
    block = NULL;
  }
  free(cover.done);
  return block;
}

static weir__block *grow_reservation(weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                                     uint64_t bytes, weir__growth_kind growth) {
  weir__given given = WEIR__IN_THE_WAY;
  weir__block *block = NULL;
  bool is_elsewhere = false;
  weir__arena_lock(arena);
  for (int apart = 0; given == WEIR__IN_THE_WAY && apart <= (growth == WEIR__GROWTH_MOVING); apart++) {
    uint64_t behind = 0;
    for (weir__block *from;
         given == WEIR__IN_THE_WAY && (from = find_place(heap, arena, growth, bytes, behind, apart)) != NULL;) {
      behind = weir__block_is_mapped(from) ? weir__block_next(from)->address : from->address;
      block = take_place(heap, arena, settings, from, bytes, is_elsewhere, &given);
      is_elsewhere = true;
    }
  }
  if (given == WEIR__IN_THE_WAY && (block = reserve_segment(heap, arena, settings, bytes, growth)))
    block = take_place(heap, arena, settings, block, bytes, is_elsewhere, &given);
  weir__arena_unlock(arena);
  return block;
}

/* ---- Sleep ---- */

/* A free block becomes address space without memory, which the counts of reserved bytes do not show. */
static weir__block *hide(weir__segment *segment, weir__block *block) {
  weir__arena *arena = segment->arena;
  segment->mapped -= weir__block_bytes(block);
  weir__index_remove(&arena->free, block);
  block->state = WEIR__UNMAPPED;
  weir__arena_merge(arena, segment, block, weir__block_previous(block));
  weir__arena_merge(arena, segment, block, weir__block_next(block));
  weir__tree_insert(&arena->unmapped, block);
  return block;
}

bool weir__segment_hide(weir__heap *heap, weir__segment *segment) {
  weir__arena *arena = segment->arena;
  bool is_of_graph = segment->memory.pins & WEIR__PIN_GRAPH;
  size_t parts = 0;
  for (weir__block *block = segment->first; block; block = weir__block_next(block))
    parts += block->state == WEIR__FREE;
  /* To show them again, each takes two blocks more; to release pages before that, as well. */
  if (!weir__slab_reserve(&arena->blocks, sizeof(weir__block), 4 * parts + 2))
    return false;
  for (weir__block *block = segment->first; block; block = weir__block_next(block)) {
    range pages = {0, 0};
    if (weir__block_is_active(block))
      weir__block_mark(block, WEIR__MARK_ASLEEP, true);
    if (block->state == WEIR__FREE && !is_of_graph)
      pages = whole_steps(segment, block);
    weir__block *gone = pages.bytes ? carve(heap, segment, block, pages) : NULL;
    block = gone ? gone : block;
  }
  for (weir__block *block = segment->first; block; block = weir__block_next(block))
    if (block->state == WEIR__FREE)
      block = hide(segment, block);
  return true;
}

void weir__segment_settle(weir__segment *segment) {
  for (weir__block *block = segment->first; block; block = weir__block_next(block))
    if (weir__block_is_active(block) && block->marks & WEIR__MARK_LEFT)
      block = hide(segment, weir__arena_release(segment->arena, block));
}

/* The first range of an unmapped block, from an address on, that has memory; 0 bytes if there is none. */
static range backed_part(const weir__segment *segment, const weir__block *block) {
  const weir__reservation *memory = &segment->memory;
  uint64_t end = block->address + weir__block_bytes(block), most = memory->base + memory->room * memory->slot;
  uint64_t from = block->address;
  end = end < most ? end : most;
  while (from < end && !weir__is_owner(weir__mapping_at(memory, from)))
    from = memory->base + ((from - memory->base) / memory->slot + 1) * memory->slot;
  uint64_t to = from;
  while (to < end && weir__is_owner(weir__mapping_at(memory, to)))
    to = weir__mapping_end(weir__mapping_at(memory, to));
  to = to < end ? to : end;
  return (range){from, to > from ? to - from : 0};
}

void weir__segment_show(weir__heap *heap, weir__segment *segment) {
  for (weir__block *block = segment->first; block; block = weir__block_next(block)) {
    range part = {0, 0};
    if (weir__block_is_active(block))
      block = weir__block_wake(heap, segment->arena, block);
    if (block->state == WEIR__UNMAPPED)
      part = backed_part(segment, block);
    if (part.bytes)
      block = become_free(segment, part.address, part.bytes);
  }
}

/* ---- What graphs may use ---- */

static size_t unit_of(const weir__segment *segment, uint64_t address) {
  return (size_t)((address - segment->memory.base) / WEIR__UNIT);
}

/* Without host memory for the bits, the whole segment counts as captured. */
void weir__note_captured(weir__heap *heap, uint64_t address) {
  weir__live_place place;
  weir__mutex_lock(&heap->lock);
  weir__segment *segment = weir__segment_at(heap, address);
  weir__arena_lock(segment->arena);
  const weir__block *block = weir__live_find(&segment->arena->live, address, &place);
  size_t from = unit_of(segment, address), to = from + block->units;
  size_t before = segment->to_graphs_room;
  if (weir__has_pages(segment) && !segment->all_to_graphs) {
    if (WEIR__RESERVE(segment->to_graphs, segment->to_graphs_room, to / 64 + 1)) {
      memset(segment->to_graphs + before, 0, (segment->to_graphs_room - before) * sizeof *segment->to_graphs);
      for (size_t i = from; i < to; i++)
        segment->to_graphs[i / 64] |= 1ull << i % 64;
    } else
      segment->all_to_graphs = true;
  }
  weir__arena_unlock(segment->arena);
  weir__mutex_unlock(&heap->lock);
}

static bool is_captured_at(const weir__segment *segment, uint64_t address) {
  size_t unit = unit_of(segment, address);
  return segment->all_to_graphs ||
         (unit / 64 < segment->to_graphs_room && (segment->to_graphs[unit / 64] >> unit % 64 & 1));
}

uint64_t weir__captured_run(const weir__segment *segment, uint64_t address, uint64_t end, bool *is_captured) {
  *is_captured = is_captured_at(segment, address);
  uint64_t at = address + WEIR__UNIT;
  while (at < end && is_captured_at(segment, at) == *is_captured)
    at += WEIR__UNIT;
  return at;
}

bool weir__over_limit(weir__heap *heap, const weir__arena *arena, uint64_t bytes) {
  const weir__account *by;
  bool is_over = weir__account_headroom(&arena->account.account, WEIR__LIMIT_HARD, &by) < bytes;
  heap->refused_by = is_over ? by : NULL;
  return is_over;
}

/* ---- All kinds ---- */

weir__block *weir__heap_grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                             uint64_t segment_bytes) {
  weir__growth_kind growth = weir__growth_of(settings, arena->pool);
  heap->pages.failure = WEIR_CU_SUCCESS;
  heap->refused_by = NULL;
  if (!weir__is_awake(arena->pool->owner)) /* since the request began */
    return NULL;
  if (growth == WEIR__GROWTH_MOVING) /* how much it needs beyond the pages that move is known only afterwards */
    return grow_reservation(heap, arena, settings, bytes, growth);
  if (growth == WEIR__GROWTH_APART)
    segment_bytes = bytes;
  if (weir__over_limit(heap, arena, weir__growth_held(heap, growth, segment_bytes)))
    return NULL;
  return growth == WEIR__GROWTH_EXPANDABLE ? grow_reservation(heap, arena, settings, bytes, growth)
                                           : grow_fixed(heap, arena, settings, segment_bytes);
}

void weir__heap_free_segments(weir__heap *heap) {
  while (heap->segments) {
    weir__segment *segment = heap->segments;
    if (!weir__has_pages(segment)) {
      weir__page_map_update(heap->allocator->page_map, segment->memory.base, segment->memory.bytes, segment->arena,
                            false);
      give_memory(heap, segment->arena, segment->memory.base, segment->memory.bytes);
    } else {
      for (uint64_t at = segment->memory.base; at < segment->memory.base + segment->memory.room * segment->memory.slot;
           at += segment->memory.slot)
        if (weir__mapping_at(&segment->memory, at) && weir__mapping_at(&segment->memory, at)->page->owner)
          weir__page_map_update(heap->allocator->page_map, at, segment->memory.slot, segment->arena, false);
      weir__reservation_end(&heap->pages, &segment->memory);
    }
    heap->segments = segment->next; /* all segments are deleted, so the other links do not matter */
    weir__segment_delete(segment);
  }
  weir__rangemap_clear(&heap->segments_by_address);
  weir__apart_end(&heap->pages, &heap->apart_blocks);
  weir__retirement_end(&heap->pages, &heap->retirement);
  weir__pages_end(&heap->pages);
}

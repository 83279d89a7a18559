#include "alloc/replay_port.h"

#include <stdlib.h>

#include "alloc/allocator.h"
#include "alloc/backends/backend.h"
#include "alloc/cache/alloc.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/miss.h"
#include "alloc/cache/move.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/sizes.h"
#include "alloc/cache/uses.h"
#include "alloc/pools/pool.h"
#include "weir/pool.h"

/* NOLINTBEGIN(misc-redundant-expression): the same values by different names are the point */
_Static_assert((int)WEIR__STATE_UNIT == (int)WEIR__UNIT && (int)WEIR__PORT_SMALL_MAX == (int)WEIR__SMALL_MAX &&
                   (int)WEIR__PORT_SMALL_SEGMENT == (int)WEIR__SMALL_SEGMENT &&
                   WEIR__STATE_MAX_REQUEST == WEIR__MAX_BYTES &&
                   WEIR__STATE_MAX_BLOCK == (UINT32_MAX + 1ull) * WEIR__UNIT,
               "the port has the allocator's sizes");
/* NOLINTEND(misc-redundant-expression) */

static weir__heap *heap_of(weir_allocator *allocator) { return &allocator->heaps[0]; }

/* ---- Sizes ---- */

uint64_t weir__port_round(const weir__settings *settings, uint64_t bytes) {
  return bytes < WEIR__MAX_BYTES ? weir__served_bytes(settings, bytes) : bytes;
}

uint64_t weir__port_segment_bytes(const weir__settings *settings, uint64_t bytes) {
  return bytes < WEIR__MAX_BYTES ? weir__segment_bytes(settings, weir__served_bytes(settings, bytes)) : bytes;
}

/* ---- Settings ---- */

weir_status weir__port_create(weir_driver *driver, const weir_allocator_options *options, weir_allocator **allocator) {
  return weir__allocator_new("weir_allocator_create", driver, options, allocator);
}

weir_status weir__port_set_settings(weir_allocator *allocator, const weir__settings *settings) {
  weir__heap *heap = heap_of(allocator);
  weir_status status = weir__check_backend(settings);
  if (status)
    return status;
  weir__settings *changed = malloc(sizeof *changed);
  if (!changed)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for settings");
  *changed = *settings;
  changed->older = (weir__settings *)weir__settings_of(heap);
  atomic_store(&allocator->settings, changed);
  return weir_allocator_set_limit(allocator, 0,
                                  heap->accounts.device.limit[WEIR__LIMIT_HARD]); /* collection may begin, or end */
}

/* ---- Requests ---- */

/* The arena that serves a request, of *size bytes then; NULL without host memory. */
static weir__arena *arena_for(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes,
                              weir_cu_stream stream, uint64_t *size) {
  weir__heap *heap = heap_of(allocator);
  *size = weir__served_bytes(weir__settings_of(heap), bytes);
  return weir__arena_get(weir__pool_for(heap, pool, *size), stream);
}

/* Only a damaged recording has such a request. A block of no bytes would break the cache. */
static weir_status no_bytes(void) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "the recording has a request for 0 bytes");
}

weir_status weir__port_create_pool(weir_allocator *allocator, weir_pool_id id, const char *tag) {
  weir__heap *heap = heap_of(allocator);
  weir_status status = weir_pool_create(allocator, heap->device, id, NULL);
  if (status || !tag)
    return status;
  weir__mutex_lock(&heap->lock);
  status = weir__tag_adopt(weir__pool_find(heap, id), tag);
  weir__mutex_unlock(&heap->lock);
  return status;
}

weir__private_pool *weir__port_find_pool(weir_allocator *allocator, weir_pool_id id) {
  weir__heap *heap = heap_of(allocator);
  weir__mutex_lock(&heap->lock);
  weir__private_pool *pool = weir__pool_find(heap, id);
  weir__mutex_unlock(&heap->lock);
  return pool;
}

weir_status weir__port_alloc(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes, weir_cu_stream stream,
                             uint64_t *address) {
  if (!bytes)
    return no_bytes();
  weir__route_stay(pool);
  weir_status status = weir__alloc("replay", heap_of(allocator), pool, bytes, stream, address);
  weir__route_leave(pool);
  return status;
}

bool weir__port_is_cached(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes, weir_cu_stream stream) {
  uint64_t size;
  weir__arena *arena = arena_for(allocator, pool, bytes, stream, &size);
  if (!arena)
    return false;
  weir__arena_lock(arena);
  weir__block *block = weir__arena_take(arena, weir__settings_of(heap_of(allocator)), size, false);
  if (block)
    weir__arena_insert(arena, block);
  weir__arena_unlock(arena);
  return block != NULL;
}

weir_status weir__port_alloc_uncached(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes,
                                      weir_cu_stream stream, uint64_t *address) {
  weir__heap *heap = heap_of(allocator);
  uint64_t size;
  weir__arena *arena = arena_for(allocator, pool, bytes, stream, &size);
  if (!bytes)
    return no_bytes();
  if (!arena)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for an arena");
  return weir__alloc_miss("replay", heap, arena, weir__settings_of(heap), size, bytes, address);
}

weir_status weir__port_free(weir_allocator *allocator, uint64_t address) {
  return weir__free_address(allocator, address);
}

weir_status weir__port_record_stream(weir_allocator *allocator, uint64_t address, weir_cu_stream stream) {
  return weir__record_stream("replay", allocator, address, stream);
}

weir__block *weir__port_take(weir_allocator *allocator, weir__private_pool *pool, uint64_t bytes,
                             weir_cu_stream stream) {
  weir__heap *heap = heap_of(allocator);
  uint64_t size;
  weir__arena *arena = arena_for(allocator, pool, bytes, stream, &size);
  weir_cu_context previous;
  if (!arena || !bytes || weir__heap_open(heap, &previous))
    return NULL;
  weir__block *block = weir__refill(heap, arena, weir__settings_of(heap), size);
  weir__heap_close(heap, previous);
  return block;
}

weir_status weir__port_hand_out(weir_allocator *allocator, weir__block *block, uint64_t bytes, uint64_t *address) {
  weir__heap *heap = heap_of(allocator);
  const weir__settings *settings = weir__settings_of(heap);
  weir__arena *arena = weir__block_arena(heap, block);
  weir__arena_lock(arena);
  block = weir__arena_hand_out(arena, settings, block, weir__served_bytes(settings, bytes), bytes, false);
  if (block)
    weir__growth_mark(settings, arena, block);
  weir__arena_unlock(arena);
  if (!block)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a block");
  *address = block->address;
  return WEIR_OK;
}

void weir__port_follow(weir_allocator *allocator, bool (*has_passed)(void *context, uint64_t address), void *context) {
  heap_of(allocator)->has_passed = has_passed;
  heap_of(allocator)->has_passed_context = context;
}

void weir__port_begin_capture(weir_allocator *allocator, weir_cu_stream stream) {
  weir__heap *heap = heap_of(allocator);
  if (heap->pending)
    weir__poll_heap(heap, stream);
  atomic_store(&heap->captures, 1);
}

void weir__port_end_capture(weir_allocator *allocator) { atomic_store(&heap_of(allocator)->captures, 0); }

/* ---- Releasing ---- */

void weir__port_query_events(weir_allocator *allocator) { weir__poll_heap(heap_of(allocator), NULL); }

void weir__port_release_arena(weir_allocator *allocator, uint64_t address) {
  weir__heap *heap = heap_of(allocator);
  weir__arena *arena = weir__page_map_find(allocator->page_map, address);
  weir_cu_context previous;
  if (!arena || weir__heap_open(heap, &previous))
    return;
  weir__release_arena(heap, arena);
  weir__heap_close(heap, previous);
}

/* ---- Reading a state ---- */

void weir__port_count_state(weir_allocator *allocator, size_t *segments, size_t *blocks) {
  *segments = *blocks = 0;
  for (weir__segment *s = heap_of(allocator)->segments; s; s = s->next) {
    ++*segments;
    weir__arena_lock(s->arena); /* which settles it */
    weir__arena_unlock(s->arena);
    for (weir__piece piece = {0}; weir__next_piece(s, &piece);)
      ++*blocks;
  }
}

static void read_segment(const weir__segment *segment, weir__state *state) {
  static const uint8_t states[] = {[WEIR__FREE] = WEIR_BLOCK_INACTIVE,
                                   [WEIR__UNMAPPED] = WEIR__BLOCK_UNMAPPED,
                                   [WEIR__ALLOCATED] = WEIR_BLOCK_ACTIVE_ALLOCATED,
                                   [WEIR__WAITING] = WEIR_BLOCK_ACTIVE_PENDING_FREE};
  const weir__arena *arena = segment->arena;
  const weir__private_pool *owner = arena->pool->owner;
  weir__state_segment *s = &state->segments[state->segment_count++];
  *s = (weir__state_segment){.address = segment->memory.base,
                             .size = segment->memory.bytes,
                             .stream = (int64_t)(uintptr_t)arena->stream,
                             .pool = {owner ? (int64_t)owner->id.first : 0, owner ? (int64_t)owner->id.second : 0},
                             .first = state->block_count,
                             .is_small = arena->pool->is_small,
                             .is_expandable = weir__has_pages(segment)};
  for (weir__piece b = {0}; weir__next_piece(segment, &b);) {
    uint64_t requested = weir__block_is_active(b.block) ? b.block->requested : 0;
    state->blocks[state->block_count++] = (weir__state_block){b.address, b.bytes, requested, .state = states[b.state]};
    if (b.state != WEIR__UNMAPPED)
      state->reserved += b.bytes;
  }
  s->count = state->block_count - s->first;
  /* There is only address space behind the last page. */
  while (s->count && state->blocks[s->first + s->count - 1].state == WEIR__BLOCK_UNMAPPED) {
    s->size -= state->blocks[s->first + s->count - 1].size;
    s->count--;
    state->block_count--;
  }
}

void weir__port_read_state(weir_allocator *allocator, weir__state *state) {
  for (const weir__segment *s = heap_of(allocator)->segments; s; s = s->next)
    read_segment(s, state);
}

/* ---- Installing a state ---- */

uint64_t weir__port_install_spare(const weir__state *state) {
  uint64_t most = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    uint64_t holes = 0;
    for (size_t k = state->segments[i].first; k < state->segments[i].first + state->segments[i].count; k++)
      if (state->blocks[k].state == WEIR__BLOCK_UNMAPPED)
        holes += state->blocks[k].size;
    most = holes > most ? holes : most;
  }
  return most;
}

/* Creates a private pool that is not there yet; {0, 0} is not private. The heap's lock is not held. */
static weir_status make_pool(weir__heap *heap, const int64_t pool[2]) {
  weir_pool_id id = {(uint64_t)pool[0], (uint64_t)pool[1]};
  return (id.first || id.second) && !weir__pool_find(heap, id)
             ? weir_pool_create(heap->allocator, heap->device, id, NULL)
             : WEIR_OK;
}

/* Memory is released in the order of pools, so those of the state come first, in its order. */
static weir_status make_pools(weir__heap *heap, const weir__state *state) {
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < state->pool_count && !status; i++)
    status = make_pool(heap, state->pools[i]);
  for (size_t i = 0; i < state->segment_count && !status; i++)
    status = make_pool(heap, state->segments[i].pool);
  return status;
}

static weir__pool *pool_of(weir__heap *heap, const weir__state_segment *s) {
  weir__private_pool *owner = s->pool[0] || s->pool[1]
                                  ? weir__pool_find(heap, (weir_pool_id){(uint64_t)s->pool[0], (uint64_t)s->pool[1]})
                                  : NULL;
  return owner ? s->is_small ? &owner->small : &owner->large : s->is_small ? &heap->small : &heap->large;
}

/* Cuts a new block into the blocks of a segment, all of them allocated, and then frees and unmaps those that are not.
 * The arena's lock is held. false if out of host memory. */
static bool cut(weir__arena *arena, const weir__settings *settings, const weir__state *state,
                const weir__state_segment *s, weir__block *rest, uint64_t *blocks) {
  weir__heap *heap = arena->pool->heap;
  uint64_t base = rest->address;
  for (size_t k = s->first; k < s->first + s->count; k++) {
    const weir__state_block *b = &state->blocks[k];
    weir__block *block = weir__arena_hand_out(arena, settings, rest, b->size, b->requested, true);
    if (!block)
      return false;
    if (weir__state_is_active(b))
      *blocks++ = block->address;
    rest = weir__block_next(block);
    if (k + 1 < s->first + s->count)
      weir__index_remove(&arena->free, rest);
  }
  /* Holes come first, while their neighbours are allocated; otherwise they would merge with them. */
  for (int is_hole = 1; is_hole >= 0; is_hole--)
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &state->blocks[k];
      weir__live_place place;
      if (b->state != (is_hole ? (int)WEIR__BLOCK_UNMAPPED : (int)WEIR_BLOCK_INACTIVE))
        continue;
      weir__block *block = weir__live_find(&arena->live, base + (b->address - s->address), &place);
      weir__arena_begin_free(arena, block);
      block = weir__arena_release(arena, block);
      if (is_hole)
        weir__release_pages(heap, block);
      else
        weir__block_make_older(block, b->age);
    }
  return true;
}

/* Makes a segment with a reservation of its own. The rest of the arena's earlier reservations is hidden meanwhile;
 * otherwise the new pages would be mapped there. */
static weir__block *grow_apart(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  weir__ref others = arena->unmapped, made;
  arena->unmapped = 0;
  weir__block *block = weir__heap_grow(heap, arena, settings, bytes, bytes);
  made = arena->unmapped;
  arena->unmapped = others;
  for (weir__block *rest; (rest = weir__tree_after(made, 0));) {
    weir__tree_remove(&made, rest);
    weir__tree_insert(&arena->unmapped, rest);
  }
  return block;
}

static weir_status install_segment(weir__heap *heap, const weir__settings *settings, const weir__state *state,
                                   const weir__state_segment *s, uint64_t *blocks) {
  weir__settings with = *settings;
  with.expandable_segments = s->is_expandable;
  with.moving_pages = false; /* no page of another segment is to move here */
  with.guard = WEIR__GUARD_OFF;
  if (s->reserve)
    with.expandable_segments_reserve = (weir__reserve){.bytes = s->reserve};
  if (s->page && !s->is_small)
    with.large_segment_size = s->page;
  weir__arena *arena = weir__arena_get(pool_of(heap, s), (weir_cu_stream)(uintptr_t)s->stream);
  if (!arena)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a segment from before the recording");
  bool moves = s->is_expandable && weir__growth_of(settings, arena->pool) == WEIR__GROWTH_MOVING;
  if (moves) /* the sizes of its pages are not known: the smallest ones leave all its holes free */
    with.large_segment_size = WEIR__SMALL_SEGMENT;
  weir__block *block = grow_apart(heap, arena, &with, s->size);
  if (!block || block->previous || weir__block_bytes(block) < s->size)
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
                      "a segment of %llu bytes at 0x%llx from before the recording cannot be put back",
                      (unsigned long long)s->size, (unsigned long long)s->address);
  if (moves && !weir__move_from_now(weir__segment_of(heap, block), settings))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a segment from before the recording");
  weir__arena_lock(arena);
  bool is_cut = cut(arena, &with, state, s, block, blocks);
  weir__arena_unlock(arena);
  if (is_cut)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for blocks from before the recording");
}

weir_status weir__port_install_state(weir_allocator *allocator, const weir__settings *settings,
                                     const weir__state *state, uint64_t *place, uint64_t *blocks) {
  weir__heap *heap = heap_of(allocator);
  weir_cu_context previous;
  heap->total -= weir__port_install_spare(state);
  weir_status status = make_pools(heap, state);
  if (status)
    return status;
  if (weir__heap_open(heap, &previous))
    return weir__fail(WEIR_ERROR_DRIVER, "the device's context is not available");
  for (size_t i = 0; i < state->segment_count && !status; i++) {
    const weir__state_segment *s = &state->segments[i];
    *place = s->address;
    status = install_segment(heap, settings, state, s, blocks);
    for (size_t k = s->first; k < s->first + s->count; k++)
      blocks += weir__state_is_active(&state->blocks[k]);
  }
  *place = 0;
  weir__heap_close(heap, previous);
  return status;
}

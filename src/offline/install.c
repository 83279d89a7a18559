#include "offline/install.h"

#include "alloc/arena.h"
#include "alloc/pool.h"
#include "alloc/segment.h"
#include "base/base.h"
#include "weir/pool.h"

uint64_t weir__install_spare(const weir__state *state) {
  uint64_t most = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    uint64_t holes = 0;
    for (size_t k = state->segments[i].first; k < state->segments[i].first + state->segments[i].count; k++)
      if (state->blocks[k].state == WEIR__UNMAPPED)
        holes += state->blocks[k].size;
    most = holes > most ? holes : most;
  }
  return most;
}

static bool is_private(const weir__state_segment *s) { return s->pool[0] || s->pool[1]; }

static weir_pool_id id_of(const weir__state_segment *s) {
  return (weir_pool_id){(uint64_t)s->pool[0], (uint64_t)s->pool[1]};
}

/* The heap's lock is not held. Memory goes back in the order of pools. */
static weir_status make_pools(weir__heap *heap, const weir__state *state) {
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < state->pool_count && !status; i++) {
    weir_pool_id id = {(uint64_t)state->pools[i][0], (uint64_t)state->pools[i][1]};
    if ((id.first || id.second) && !weir__pool_find(heap, id))
      status = weir_pool_create(heap->allocator, heap->device, id, NULL);
  }
  for (size_t i = 0; i < state->segment_count && !status; i++)
    if (is_private(&state->segments[i]) && !weir__pool_find(heap, id_of(&state->segments[i])))
      status = weir_pool_create(heap->allocator, heap->device, id_of(&state->segments[i]), NULL);
  return status;
}

static weir__pool *pool_of(weir__heap *heap, const weir__state_segment *s) {
  if (!is_private(s))
    return s->is_small ? &heap->small : &heap->large;
  weir__private_pool *owner = weir__pool_find(heap, id_of(s));
  return s->is_small ? &owner->small : &owner->large;
}

/* Cuts what was got into the blocks of a segment, all of them in use; those that are free, or not mapped, are let go then. The
 * arena's lock is held. false: no host memory. */
static bool cut(weir__arena *arena, const weir__settings *settings, const weir__state *state,
                const weir__state_segment *s, weir__block *rest, void **blocks) {
  weir__heap *heap = arena->pool->heap;
  uint64_t base = rest->address;
  for (size_t k = s->first; k < s->first + s->count; k++) {
    const weir__state_block *b = &state->blocks[k];
    weir__block *block = weir__arena_hand_out(arena, settings, rest, b->size, b->requested, true);
    if (!block)
      return false;
    if (b->state >= WEIR__ALLOCATED)
      *blocks++ = (void *)block->address;
    rest = weir__block_next(block);
    if (k + 1 < s->first + s->count)
      weir__index_remove(&arena->free, rest);
  }
  /* Holes first, while what lies beside them is in use: else they would merge with it. */
  for (int is_hole = 1; is_hole >= 0; is_hole--)
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &state->blocks[k];
      weir__live_place place;
      if (b->state != (is_hole ? WEIR__UNMAPPED : WEIR__FREE))
        continue;
      weir__block *block = weir__live_find(&arena->live, base + (b->address - s->address), &place);
      weir__arena_let_go(arena, block);
      block = weir__arena_release(arena, block);
      if (is_hole)
        weir__release_pages(heap, block);
      else
        weir__block_make_older(block, b->age);
    }
  return true;
}

/* An arena's segments come one by one, each with its own reservation: what is left of those before it is out of sight
 * meanwhile, or the next would be mapped there. */
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
                                   const weir__state_segment *s, void **blocks) {
  weir__settings with = *settings;
  with.expandable_segments = s->is_expandable;
  if (s->reserve)
    with.expandable_segments_reserve = (weir__reserve){.bytes = s->reserve};
  if (s->page && !s->is_small)
    with.large_segment_size = s->page;
  weir__pool *pool = pool_of(heap, s);
  weir__arena *arena = pool ? weir__arena_get(pool, (weir_cu_stream)(uintptr_t)s->stream) : NULL;
  if (!arena)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for a segment from before the recording");
  weir__block *block = grow_apart(heap, arena, &with, s->size);
  if (!block || block->previous || weir__block_bytes(block) < s->size)
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY,
                      "a segment of %llu bytes at 0x%llx from before the recording cannot be put back",
                      (unsigned long long)s->size, (unsigned long long)s->address);
  weir__arena_lock(arena);
  bool is_cut = cut(arena, &with, state, s, block, blocks);
  weir__arena_unlock(arena);
  if (is_cut)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for blocks from before the recording");
}

weir_status weir__install(weir__heap *heap, const weir__settings *settings, const weir__state *state, uint64_t *place,
                          void **blocks) {
  weir_cu_context previous;
  weir_status status = make_pools(heap, state);
  if (status)
    return status;
  pthread_mutex_lock(&heap->lock);
  if (weir__heap_enter(heap, &previous)) {
    pthread_mutex_unlock(&heap->lock);
    return weir__fail(WEIR_ERROR_DRIVER, "the device's context cannot be had");
  }
  for (size_t i = 0; i < state->segment_count && !status; i++) {
    const weir__state_segment *s = &state->segments[i];
    *place = s->address;
    status = install_segment(heap, settings, state, s, blocks);
    for (size_t k = s->first; k < s->first + s->count; k++)
      blocks += state->blocks[k].state >= WEIR__ALLOCATED;
  }
  *place = 0;
  weir__heap_leave(heap, previous);
  pthread_mutex_unlock(&heap->lock);
  return status;
}

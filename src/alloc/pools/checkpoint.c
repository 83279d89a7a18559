/*
 * Checkpoints of a private pool.
 *
 * A checkpoint lists the blocks of each segment in address order. Restoring one frees every live block of the pool,
 * which leaves a single free block per segment, and splits it as the list says.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/move.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "alloc/pools/pool.h"
#include "base/thread.h"
#include "driver/call.h"
#include "record/state.h"
#include "weir/pool.h"

/* The stream and the kind of a segment identify its arena: another segment may be at its address later. */
struct weir_checkpoint {
  int device;
  weir_pool_id id;
  weir__state state;
};

void weir_checkpoint_destroy(weir_checkpoint *checkpoint) {
  if (checkpoint)
    weir__state_clear(&checkpoint->state);
  free(checkpoint);
}

/* The fields that every program has: without them, the arrays would be lost. */
enum { FIRST_DELTA = offsetof(weir_checkpoint_delta, allocated_count) + sizeof(size_t) };

void weir_checkpoint_delta_clear(weir_checkpoint_delta *delta) {
  if (!delta)
    return;
  free(delta->freed);
  free(delta->allocated);
  weir_checkpoint_delta cleared = {.size = delta->size};
  weir__copy_sized(delta, delta->size, &cleared, sizeof cleared);
}

static bool is_of(const weir__segment *segment, const weir__private_pool *pool) {
  return segment->arena->pool->owner == pool;
}

/* Locks all arenas of a pool that have memory, so that its state is read and changed as a whole. Locking several arenas
 * requires the heap's lock, under which no arena gets its first segment, or loses its last one, until they are
 * unlocked. */
static void lock_pool(const weir__private_pool *pool, bool lock) {
  for (int i = 0; i < 2; i++)
    for (weir__arena *a = weir__arena_first(i ? &pool->large : &pool->small); a; a = weir__arena_after(a)) {
      if (a->segments && lock) {
        weir__arena_lock(a);
        weir__account_freeze(&a->account);
      } else if (a->segments) {
        weir__account_unfreeze(&a->account);
        weir__arena_unlock(a);
      }
    }
}

/* Waits for the other streams that use live blocks of a locked pool, and drops these uses. */
static weir_cu_result end_uses(weir__heap *heap, const weir__private_pool *pool) {
  weir_driver *driver = heap->allocator->driver;
  for (weir__segment *s = heap->segments; s; s = s->next)
    for (weir__block *b = is_of(s, pool) ? s->first : NULL; b; b = weir__block_next(b))
      while (b->state == WEIR__ALLOCATED && (b->marks & WEIR__MARK_USES)) {
        weir__use *use = weir__block_uses(b);
        weir_cu_result r = driver->StreamSynchronize(driver, use->stream);
        if (r)
          return r;
        weir__block_set_uses(b, use->next);
        weir__slab_free(&s->arena->uses, use, sizeof *use);
      }
  return WEIR_CU_SUCCESS;
}

weir_status weir_pool_wait(weir_allocator *allocator, int device, weir_pool_id id) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  weir_status status = WEIR_OK;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_ALL);
  weir__mutex_lock(&heap->lock);
  weir__private_pool *pool = weir__pool_find(heap, id);
  weir_cu_context previous;
  weir_cu_result r = WEIR_CU_SUCCESS;
  if (!pool)
    status = weir__no_pool(__func__, id);
  else if (atomic_load(&heap->captures))
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: cannot wait for streams during a capture", __func__);
  else if (!(r = weir__heap_enter(heap, &previous))) {
    if (heap->pending)
      weir__wait_for_events(heap);
    lock_pool(pool, true);
    r = end_uses(heap, pool);
    lock_pool(pool, false);
    weir__heap_leave(heap, previous);
  }
  weir__mutex_unlock(&heap->lock);
  weir__op_end(&op);
  return r ? weir__driver_status(allocator->driver, r, __func__, "cuStreamSynchronize") : status;
}

/* ---- Creation ---- */

/* Lists the mapped blocks of a segment. Returns false if one of them waits for another stream. */
static bool list_segment(const weir__segment *segment, weir__state *state) {
  weir__state_segment *to = &state->segments[state->segment_count++];
  *to = (weir__state_segment){.address = segment->memory.base,
                              .stream = (int64_t)(uintptr_t)segment->arena->stream,
                              .is_small = segment->arena->pool->is_small,
                              .first = state->block_count};
  for (const weir__block *b = segment->first; b; b = weir__block_next(b)) {
    if (b->state == WEIR__WAITING)
      return false;
    if (b->state == WEIR__UNMAPPED)
      continue;
    state->blocks[state->block_count++] =
        (weir__state_block){.address = b->address,
                            .size = weir__block_bytes(b),
                            .state = b->state == WEIR__ALLOCATED ? WEIR_BLOCK_ACTIVE_ALLOCATED : WEIR_BLOCK_INACTIVE};
    to->count++;
  }
  return true;
}

weir_status weir_pool_checkpoint(weir_allocator *allocator, int device, weir_pool_id id, weir_checkpoint **checkpoint) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(checkpoint);
  if (allocator->backend)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the back end %s does not support checkpoints", __func__,
                      weir__backend_name(allocator));
  weir_checkpoint *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  *made = (weir_checkpoint){.device = device, .id = id};
  weir_status status = WEIR_OK;
  weir__mutex_lock(&heap->lock);
  const weir__private_pool *pool = weir__pool_find(heap, id);
  if (!pool)
    status = weir__no_pool(__func__, id);
  else if (pool->is_released)
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: Not expected to checkpoint freeable graph", __func__);
  else if (!weir__is_awake(pool))
    status = weir__not_awake(__func__, pool->tag);
  else {
    lock_pool(pool, true);
    size_t blocks = 0;
    for (const weir__segment *s = heap->segments; s; s = s->next)
      for (const weir__block *b = is_of(s, pool) ? s->first : NULL; b; b = weir__block_next(b))
        blocks++;
    if (weir__state_make((size_t)pool->segments, blocks, 0, &made->state))
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
    for (const weir__segment *s = heap->segments; s && !status; s = s->next)
      if (is_of(s, pool) && !list_segment(s, &made->state))
        status =
            weir__fail(WEIR_ERROR_BAD_STATE, "%s: Events should have synchronized when checkpointing block", __func__);
    lock_pool(pool, false);
  }
  weir__mutex_unlock(&heap->lock);
  if (status)
    weir_checkpoint_destroy(made);
  else
    *checkpoint = made;
  return status;
}

/* ---- Restore ---- */

/* Counts the live blocks of a segment. Returns false if another stream or process still uses any of them. */
static bool count_live(const weir__segment *segment, size_t *live) {
  for (const weir__block *b = segment->first; b; b = weir__block_next(b)) {
    if (weir__block_is_active(b) && (b->state == WEIR__WAITING || b->marks & WEIR__MARKS_SHARED))
      return false;
    *live += b->state == WEIR__ALLOCATED;
  }
  return true;
}

/* Whether the pieces fit the memory that is mapped now: each one begins at the start of a mapped run or right after the
 * previous piece. A run may have grown since the checkpoint. Pages of pieces that were allocated may have left. */
static bool can_be_cut(const weir__segment *segment, const weir__state_block *pieces, size_t count) {
  const weir__block *b = segment->first;
  uint64_t at = 0, end = 0; /* what is left of a run */
  for (size_t i = 0; i < count; i++) {
    while (b && end <= pieces[i].address) {
      for (; b && !weir__block_is_mapped(b); b = weir__block_next(b))
        continue;
      at = end = b ? b->address : 0;
      for (; b && weir__block_is_mapped(b); b = weir__block_next(b))
        end += weir__block_bytes(b);
    }
    if (at != pieces[i].address || pieces[i].size > end - at)
      return false;
    if (weir__state_is_active(&pieces[i]) && weir__pages_move(segment) && !weir__is_backed(segment, at, pieces[i].size))
      return false;
    at += pieces[i].size;
  }
  return true;
}

/* Frees every live block of a segment, and lists them in `delta`. */
static void free_segment(weir__segment *segment, weir_checkpoint_delta *delta) {
  weir__arena *arena = segment->arena;
  for (weir__block *b = segment->first; b; b = weir__block_next(b)) {
    if (b->state != WEIR__ALLOCATED)
      continue;
    delta->freed[delta->freed_count++] = (void *)b->address;
    weir__arena_begin_free(arena, b);
    b = weir__arena_release(arena, b);
  }
}

/* Splits a segment into its pieces; every piece becomes an allocated block. As in PyTorch, the statistics count a whole
 * block as requested. Returns false if out of host memory. */
static bool cut_segment(weir__heap *heap, weir__segment *segment, const weir__state_block *pieces, size_t count,
                        weir_checkpoint_delta *delta) {
  const weir__settings *settings = weir__settings_of(heap);
  weir__arena *arena = segment->arena;
  weir__block *block = segment->first;
  for (size_t i = 0; i < count; i++, block = weir__block_next(block)) {
    while (block->address < pieces[i].address)
      block = weir__block_next(block);
    weir__index_remove(&arena->free, block);
    block = weir__arena_hand_out(arena, settings, block, pieces[i].size, pieces[i].size, true);
    if (!block)
      return false;
    if (weir__state_is_active(&pieces[i]))
      delta->allocated[delta->allocated_count++] = (void *)block->address;
  }
  return true;
}

/* Frees the pieces that were free in the checkpoint. */
static void free_pieces(weir__arena *arena, const weir__state_block *pieces, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!weir__state_is_active(&pieces[i])) {
      weir__live_place place;
      weir__block *block = weir__live_find(&arena->live, pieces[i].address, &place);
      weir__arena_begin_free(arena, block);
      weir__arena_release(arena, block);
    }
}

static weir__segment *segment_at(const weir__heap *heap, const weir__private_pool *pool,
                                 const weir__state_segment *state) {
  weir__segment *s = weir__segment_at(heap, state->address);
  bool is_same = s && s->memory.base == state->address && is_of(s, pool) &&
                 (int64_t)(uintptr_t)s->arena->stream == state->stream && s->arena->pool->is_small == state->is_small;
  return is_same ? s : NULL;
}

weir_status weir_pool_restore(weir_allocator *allocator, const weir_checkpoint *checkpoint,
                              weir_checkpoint_delta *delta) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(checkpoint);
  WEIR__CHECK_ARGUMENT(delta);
  if (delta->size < FIRST_DELTA)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the size of the delta is not set", __func__);
  weir__heap *heap = weir__heap_get(__func__, allocator, checkpoint->device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  weir_checkpoint_delta made = {.size = delta->size};
  weir_status status = WEIR_OK;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_STATE);
  /* Frees get a stack only if the recorder keeps stacks of frees. */
  const weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  bool frees_have_stacks = history && weir__rings_rules(&history->rings).context >= WEIR_CONTEXT_ALL;
  const uint32_t stack = op.stack, stack_of_frees = frees_have_stacks ? stack : 0;
  weir__mutex_lock(&heap->lock);
  weir__private_pool *pool = weir__pool_find(heap, checkpoint->id);
  if (!pool || pool->is_released) {
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Could not find private pool id {%llu, %llu}", __func__,
                        (unsigned long long)checkpoint->id.first, (unsigned long long)checkpoint->id.second);
    goto unlock;
  }
  if (!weir__is_awake(pool)) {
    status = weir__not_awake(__func__, pool->tag);
    goto unlock;
  }
  /* All checks come first: once the restore begins, only the lack of host memory can stop it. */
  size_t live = 0;
  lock_pool(pool, true);
  for (weir__segment *s = heap->segments; s && !status; s = s->next)
    if (is_of(s, pool) && !count_live(s, &live))
      status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: Events should have synchronized when setting checkpointed block",
                          __func__);
  for (size_t i = 0; i < checkpoint->state.segment_count && !status; i++) {
    const weir__state_segment *state = &checkpoint->state.segments[i];
    weir__segment *s = segment_at(heap, pool, state);
    if (!s || !can_be_cut(s, checkpoint->state.blocks + state->first, state->count))
      status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: could not find %p: the segment %s since the checkpoint", __func__,
                          (void *)state->address, s ? "has changed" : "was freed");
  }
  if (status)
    goto unlock_pool;
  made.freed = malloc((live + 1) * sizeof *made.freed);
  made.allocated = malloc((checkpoint->state.block_count + 1) * sizeof *made.allocated);
  if (!made.freed || !made.allocated) {
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
    goto unlock_pool;
  }

  op.stack = stack_of_frees;
  for (weir__segment *s = heap->segments; s; s = s->next)
    if (is_of(s, pool))
      free_segment(s, &made);
  for (size_t i = 0; i < checkpoint->state.segment_count && !status; i++) {
    const weir__state_segment *state = &checkpoint->state.segments[i];
    const weir__state_block *pieces = checkpoint->state.blocks + state->first;
    weir__segment *s = segment_at(heap, pool, state);
    op.stack = stack;
    if (!cut_segment(heap, s, pieces, state->count, &made))
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
    op.stack = stack_of_frees;
    if (!status)
      free_pieces(s->arena, pieces, state->count);
  }

unlock_pool:
  lock_pool(pool, false);
unlock:
  weir__mutex_unlock(&heap->lock);
  weir__op_end(&op);
  if (status)
    weir_checkpoint_delta_clear(&made);
  else
    weir__copy_sized(delta, delta->size, &made, sizeof made);
  return status;
}

/* ---- Checks ---- */

static int by_value(const void *a, const void *b) {
  uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
  return (x > y) - (x < y);
}

weir_status weir_pool_has_exactly(weir_allocator *allocator, int device, weir_pool_id id, void *const *pointers,
                                  size_t count, int *equal) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(equal);
  if (count && !pointers)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pointers is NULL and count is %zu", __func__, count);
  uintptr_t *sorted = malloc((count + 1) * sizeof *sorted);
  if (!sorted)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  if (count)
    memcpy(sorted, pointers, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, by_value);
  size_t distinct = 0;
  for (size_t i = 0; i < count; i++)
    if (!i || sorted[i] != sorted[i - 1])
      sorted[distinct++] = sorted[i];

  weir_status status = WEIR_OK;
  weir__mutex_lock(&heap->lock);
  weir__private_pool *pool = weir__pool_find(heap, id);
  if (pool) {
    size_t live = 0;
    bool same = true;
    for (weir__segment *s = heap->segments; s; s = s->next) {
      if (!is_of(s, pool))
        continue;
      weir__arena_lock(s->arena);
      for (const weir__block *b = s->first; b; b = weir__block_next(b))
        if (b->state == WEIR__ALLOCATED) {
          live++;
          same &= bsearch(&b->address, sorted, distinct, sizeof *sorted, by_value) != NULL;
        }
      weir__arena_unlock(s->arena);
    }
    *equal = same && live == distinct;
  } else
    status = weir__no_pool(__func__, id);
  weir__mutex_unlock(&heap->lock);
  free(sorted);
  return status;
}

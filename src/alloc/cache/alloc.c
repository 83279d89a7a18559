/*
 * Allocation and free. All of it needs the lock of an arena alone; what needs the heap's lock is called without one.
 *
 * The first half finds, splits and merges cached blocks. The fast path is the two public calls at the end of the file;
 * before them are the variants that also record history, and the slow path, which handles every other case.
 */
#include "alloc/cache/alloc.h"

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/guard_port.h"
#include "alloc/cache/miss.h"
#include "alloc/cache/pointer.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uncached.h"
#include "alloc/cache/uses.h"
#include "driver/call.h"
#include "record/probes.h"
#include "weir/adapter.h"

/* ---- Blocks ---- */

weir__block *weir__arena_new_block(weir__arena *arena, weir__segment *segment, uint64_t address, uint64_t bytes) {
  weir__block *block = weir__slab_alloc(&arena->blocks, sizeof *block);
  if (!block)
    return NULL;
  *block = (weir__block){
      .address = address, .units = (uint32_t)(bytes / WEIR__UNIT), .paged = weir__has_pages(segment) ? WEIR__PAGED : 0};
  return block;
}

/* `head` has the bits of `paged` that the block gets. */
static inline __attribute__((always_inline)) void insert(weir__arena *arena, weir__block *block, uint32_t head) {
  uint32_t searches = atomic_load_explicit(&arena->pool->searches, memory_order_relaxed);
  _Static_assert(WEIR__FREE == 0, "a head without other bits is that of a free block");
  block->head = head & weir__head_paged;
  if (__builtin_expect(searches != 0, 0)) {
    block->has_age = true;
    weir__block_cold_of(block)->idle_since = searches;
  }
  weir__index_insert(&arena->free, block);
}

void weir__arena_insert(weir__arena *arena, weir__block *block) { insert(arena, block, block->head); }

void weir__arena_merge(weir__arena *arena, weir__segment *segment, weir__block *block, weir__block *neighbour) {
  if (!neighbour || neighbour->state != block->state)
    return;
  if (weir__block_is_mapped(neighbour))
    weir__index_remove(&arena->free, neighbour);
  else
    weir__tree_remove(&arena->unmapped, neighbour);
  if (neighbour == weir__block_previous(block)) {
    block->address = neighbour->address;
    weir__block_link(block, weir__block_previous(neighbour), weir__block_next(block));
    if (!block->previous)
      segment->first = block;
  } else
    weir__block_link(block, weir__block_previous(block), weir__block_next(neighbour));
  block->units += neighbour->units;
  block->paged |= neighbour->paged;
  weir__slab_free(&arena->blocks, neighbour, sizeof *neighbour);
}

void weir__arena_drop_uses(weir__arena *arena, weir__block *block) {
  for (weir__use *use = weir__block_uses(block), *next; use; use = next) {
    next = use->next;
    weir__slab_free(&arena->uses, use, sizeof *use);
  }
  weir__block_mark(block, WEIR__MARK_USES, false);
}

/* Functions of their own, so that the fast path does not compute the address of the account. */
static __attribute__((noinline)) void claim(weir__arena *arena) { weir__account_claim(&arena->account); }
static __attribute__((noinline)) void count_change(weir__arena *arena, weir__amounts change) {
  weir__account_count(&arena->account, &change);
}

/* Counts an allocation of a block, or with sign -1 a free that completes at once. Oversize blocks and frozen counts are
 * rare. */
static inline void count(weir__arena *arena, int sign, uint64_t bytes, uint64_t requested, bool oversize,
                         weir__split_change change) {
  if (__builtin_expect(oversize || atomic_load_explicit(&arena->account.is_frozen, memory_order_relaxed), 0))
    count_change(arena, (weir__amounts){.allocations = sign,
                                        .allocated_bytes = sign * (int64_t)bytes,
                                        .requested_bytes = sign * (int64_t)requested,
                                        .splits = change.splits,
                                        .split_bytes = change.bytes,
                                        .oversize = oversize ? sign : 0});
  else if (__builtin_expect(weir__account_count_plain(&arena->account, sign, (int64_t)bytes, (int64_t)requested,
                                                      change.splits, change.bytes),
                            0))
    claim(arena);
}

/* Size of a block of the cache: weir__block_bytes without the case of a back end. */
static inline int64_t whole_bytes(const weir__block *block) { return (int64_t)block->units * WEIR__UNIT; }

/* ---- Allocation ---- */

/* The best fit; with `bare`, also if it has to get pages first. */
static inline __attribute__((always_inline)) weir__block *take(weir__arena *arena, const weir__settings *settings,
                                                               uint64_t bytes, bool bare) {
  weir__block *block = weir__index_at_least(&arena->free, bytes);
  if (block && block->paged)
    block = weir__growth_choose(arena, settings, block, bytes, bare);
  if (!block)
    return NULL;
  uint64_t found = (uint64_t)whole_bytes(block);
  if (bytes < settings->max_split_size && found >= settings->max_split_size)
    return NULL;
  if (bytes >= settings->max_split_size && found >= bytes + settings->max_non_split_rounding)
    return NULL;
  weir__index_remove(&arena->free, block);
  return block;
}

weir__block *weir__arena_take(weir__arena *arena, const weir__settings *settings, uint64_t bytes, bool bare) {
  return take(arena, settings, bytes, bare);
}

/* Merges a block that is no longer in use with its free neighbours and inserts the result, *whole, into the index. A
 * preceding free block absorbs it, so that the neighbours of that block need no update. */
static inline __attribute__((always_inline)) weir__split_change insert_merged(weir__arena *arena, weir__block *block,
                                                                              weir__block **whole) {
  weir__block *previous = weir__index_neighbour(&arena->free, block->previous);
  weir__block *next = weir__index_neighbour(&arena->free, block->next);
  int64_t bytes = whole_bytes(block), splits = 1;
  uint32_t head = block->head;
  if (previous->state == WEIR__FREE) {
    splits--;
    weir__index_remove(&arena->free, previous);
    previous->units += block->units;
    head |= previous->head;
    previous->next = block->next;
    next->previous = block->previous;
    weir__slab_free(&arena->blocks, block, sizeof *block);
    block = previous;
  }
  if (next->state == WEIR__FREE) {
    splits--;
    weir__index_remove(&arena->free, next);
    block->units += next->units;
    head |= next->head;
    block->next = next->next;
    weir__index_neighbour(&arena->free, next->next)->previous = weir__ref_of(block);
    weir__slab_free(&arena->blocks, next, sizeof *next);
  }
  insert(arena, block, head);
  *whole = block;
  /* As in PyTorch, only blocks of fixed segments count as split. Free neighbours were counted before, so the merge adds
   * this block alone; a block without neighbours is a whole segment and no longer split. */
  if (block->paged)
    return (weir__split_change){0, 0};
  int64_t if_whole = -(int64_t)!weir__block_is_split(block); /* 0 or all ones: a branch would be unpredictable */
  return (weir__split_change){splits + if_whole, bytes - (whole_bytes(block) & if_whole)};
}

/* Shrinks a block to `bytes` and inserts the remainder into the index. The first block of a segment therefore stays the
 * same. Returns false if out of host memory. */
static inline bool cut(weir__arena *arena, weir__block *block, uint64_t bytes) {
  uint32_t units = (uint32_t)(bytes / WEIR__UNIT);
  weir__block *rest = weir__slab_alloc(&arena->blocks, sizeof *rest);
  if (!rest)
    return false;
  rest->address = block->address + bytes;
  rest->units = block->units - units;
  rest->previous = weir__ref_of(block);
  rest->next = block->next;
  weir__index_neighbour(&arena->free, block->next)->previous = weir__ref_of(rest);
  block->next = weir__ref_of(rest);
  block->units = units;
  insert(arena, rest, block->head);
  return true;
}

/* Splits a block if it is too large, and marks it as allocated. `last`, unless NULL, receives what a repeated request
 * needs to take the same block. */
static inline __attribute__((always_inline)) weir__block *hand_out(weir__arena *arena, const weir__settings *settings,
                                                                   weir__block *block, uint64_t bytes,
                                                                   uint64_t requested, bool exact,
                                                                   weir__last_alloc *last) {
  bool was_split = weir__block_is_split(block) && !block->paged;
  int64_t before = whole_bytes(block);
  weir__split_change change = {0, 0};
  if (!weir__live_prepare(&arena->live))
    goto no_memory;
  uint64_t hash = weir__live_hash(block->address);
  __builtin_prefetch(&arena->live.buckets[weir__live_home(&arena->live, hash)], 1);
  if (exact ? before > (int64_t)bytes : weir__should_split(settings, arena->pool, (uint64_t)before, bytes)) {
    if (!cut(arena, block, bytes))
      goto no_memory;
    if (!block->paged) {
      change.splits = !was_split;
      change.bytes = (was_split ? 0 : before) - (int64_t)bytes;
    }
  } else if (was_split) {
    change.splits = -1;
    change.bytes = -before;
  }
  block->state = WEIR__ALLOCATED;
  block->requested = requested;
  uint64_t given = weir__block_bytes(block);
  bool oversize = given >= settings->max_split_size;
  block->marks = oversize ? WEIR__MARK_OVERSIZE : 0;
  weir__live_insert(&arena->live, block, hash);
  if (last)
    *last = (weir__last_alloc){block, settings, bytes, change, false};
  count(arena, 1, given, requested, oversize, change);
  return block;

no_memory:
  change = insert_merged(arena, block, &block);
  if (was_split) {
    change.splits--;
    change.bytes -= before;
  }
  count_change(arena, (weir__amounts){.splits = change.splits, .split_bytes = change.bytes});
  return NULL;
}

weir__block *weir__arena_hand_out(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                  uint64_t bytes, uint64_t requested, bool exact) {
  block = hand_out(arena, settings, block, bytes, requested, exact, NULL);
  if (block)
    weir__trace(arena, WEIR_TRACE_ALLOC, block->address, requested, 0);
  return block;
}

/* Serves a request of the same size as before with the block that was just freed. */
static inline weir__block *reuse_last(weir__arena *arena, uint64_t requested) {
  weir__last_alloc *last = &arena->last_alloc;
  weir__block *block = last->block;
  last->is_free = false;
  block->state = WEIR__ALLOCATED;
  block->requested = requested;
  count(arena, 1, (uint64_t)whole_bytes(block), requested, (block->marks & WEIR__MARK_OVERSIZE), last->change);
  return block;
}

static inline __attribute__((always_inline)) weir__block *
alloc_cached(weir__arena *arena, const weir__settings *settings, uint64_t bytes, uint64_t requested) {
  weir__last_alloc *last = &arena->last_alloc;
  if (last->is_free) {
    if (last->bytes == bytes && last->settings == settings)
      return reuse_last(arena, requested);
    weir__arena_flush(arena);
  }
  weir__block *block = take(arena, settings, bytes, false);
  return block ? hand_out(arena, settings, block, bytes, requested, false, last) : NULL;
}

/* ---- Free ---- */

/* Moves a block from the live table, at `place`, to the index. */
static inline __attribute__((always_inline)) weir__split_change release(weir__arena *arena, weir__block *block,
                                                                        weir__live_place place, weir__block **whole) {
  weir__live_remove(&arena->live, block->address, place);
  return insert_merged(arena, block, whole);
}

void weir__arena_flush(weir__arena *arena) {
  weir__last_alloc *last = &arena->last_alloc;
  weir__block *block = last->block;
  bool was_free = block && last->is_free;
  last->block = NULL;
  last->is_free = false;
  if (!was_free)
    return;
  weir__live_place place;
  if (weir__live_find(&arena->live, block->address, &place)) /* always true */
    release(arena, block, place, &block);                    /* it was counted by the free */
}

/* Frees the most recent allocation lazily: the block stays in the live table (weir__last_alloc). */
static inline void free_last(weir__arena *arena, weir__block *block) {
  weir__last_alloc *last = &arena->last_alloc;
  block->state = WEIR__FREE;
  last->is_free = true;
  count(arena, -1, (uint64_t)whole_bytes(block), block->requested, (block->marks & WEIR__MARK_OVERSIZE),
        (weir__split_change){-last->change.splits, -last->change.bytes});
}

static inline __attribute__((always_inline)) void free_cached(weir__arena *arena, weir__block *block,
                                                              weir__live_place place) {
  weir__last_alloc *last = &arena->last_alloc;
  uint64_t requested = block->requested;
  if (last->is_free)
    weir__arena_flush(arena);
  last->block = NULL;
  uint64_t bytes = (uint64_t)whole_bytes(block);
  bool oversize = block->marks & WEIR__MARK_OVERSIZE;
  weir__split_change change = release(arena, block, place, &block);
  count(arena, -1, bytes, requested, oversize, change);
}

void weir__arena_begin_free(weir__arena *arena, weir__block *block) {
  int64_t bytes = (int64_t)weir__block_bytes(block);
  block->state = WEIR__WAITING;
  weir__block_cold_of(block)->events = 0;
  count_change(arena, (weir__amounts){.allocations = -1,
                                      .allocated_bytes = -bytes,
                                      .waiting = 1,
                                      .waiting_bytes = bytes,
                                      .oversize = -(block->marks & WEIR__MARK_OVERSIZE)});
  weir__trace(arena, WEIR_TRACE_FREE_REQUESTED, block->address, block->requested, 0);
}

weir__block *weir__arena_release(weir__arena *arena, weir__block *block) {
  weir__amounts change = {.waiting = -1,
                          .waiting_bytes = -(int64_t)weir__block_bytes(block),
                          .requested_bytes = -(int64_t)block->requested};
  weir__live_place place;
  weir__trace(arena, WEIR_TRACE_FREE_COMPLETED, block->address, block->requested, 0);
  if (weir__live_find(&arena->live, block->address, &place)) { /* always true */
    weir__split_change splits = release(arena, block, place, &block);
    change.splits = splits.splits;
    change.split_bytes = splits.bytes;
  }
  count_change(arena, change);
  return block;
}

/* ---- The slow path ---- */

static __attribute__((noinline)) weir__block *alloc_in(weir__arena *arena, const weir__settings *settings,
                                                       uint64_t bytes, uint64_t requested) {
  return alloc_cached(arena, settings, bytes, requested);
}

static __attribute__((noinline)) void free_in(weir__arena *arena, weir__block *block, weir__live_place place) {
  if (arena->last_alloc.block == block)
    free_last(arena, block);
  else
    free_cached(arena, block, place);
}

static weir_status alloc_from(const char *caller, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                              weir_cu_stream stream, unsigned reasons, uint64_t *address) {
  const weir__settings *settings = weir__settings_of(heap);
  if (reasons & WEIR__SLOW_BACKEND)
    return heap->allocator->backend->calls->alloc(caller, heap, owner, bytes, stream, address);
  if (reasons & WEIR__SLOW_PENDING)
    weir__poll_heap(heap, stream);
  uint64_t size = weir__served_bytes(settings, bytes);
  weir__pool *pool = weir__pool_for(heap, owner, size);
  weir__arena *arena = weir__arena_find(pool, stream);
  if (!arena) {
    weir_status status = weir__driver_check_stream(caller, heap->allocator->driver, stream);
    if (status)
      return status;
    arena = weir__arena_get(pool, stream);
  }
  if (!arena)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);

  weir__biased_acquire(&arena->lock);
  if (reasons & WEIR__SLOW_AGING) { /* ages must be exact: no lazy free */
    weir__arena_flush(arena);
    weir__count_search(arena->pool);
  }
  weir__block *block = alloc_in(arena, settings, size, bytes);
  if (block && reasons & WEIR__SLOW_TRACED)
    weir__trace_arena(arena, WEIR_TRACE_ALLOC, block->address, bytes, 0);
  weir__arena_unlock(arena);
  if (!block)
    return weir__alloc_miss(caller, heap, arena, settings, size, bytes, address);
  *address = block->address;
  WEIR__PROBE_MALLOC(*address, heap->device, bytes, stream);
  return WEIR_OK;
}

weir_status weir__alloc(const char *caller, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                        weir_cu_stream stream, uint64_t *address) {
  unsigned reasons = weir__slow_reasons(heap);
  const weir__guard_port *guard = reasons & WEIR__SLOW_GUARDED ? heap->allocator->guard : NULL;
  weir_status status = guard ? guard->calls->poll(caller, heap->allocator) : WEIR_OK;
  if (status || !(reasons & WEIR__SLOW_TRACED))
    return status ? status : alloc_from(caller, heap, owner, bytes, stream, reasons, address);
  weir__op op;
  bool is_guarded = guard && guard->calls->chooses(heap);
  if (guard && guard->samples && !is_guarded)
    weir__op_begin_with(&op, heap->allocator, 0);
  else
    weir__op_begin(&op, heap->allocator, WEIR_CONTEXT_STATE);
  status = alloc_from(caller, heap, owner, bytes, stream, reasons, address);
  if (!status && is_guarded)
    guard->calls->allocated(heap, *address);
  weir__op_end(&op);
  return status;
}

/* The slow path: invalid arguments, special states, and requests that are not cached. */
static __attribute__((noinline)) weir_status alloc_generic(weir_allocator *allocator, int device, uint64_t bytes,
                                                           weir_cu_stream stream, void **pointer) {
  const char *caller = "weir_allocator_alloc";
  weir_status status = weir__allocator_check(caller, allocator);
  if (status)
    return status;
  if (!pointer)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pointer is NULL", caller);
  weir__heap *heap = weir__heap_get(caller, allocator, device);
  if (!heap)
    return WEIR_ERROR_INVALID_DEVICE;
  if (!bytes) {
    *pointer = NULL;
    return WEIR_OK;
  }
  if (bytes >= WEIR__MAX_BYTES)
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "%s: CUDA out of memory. Tried to allocate more than 1EB memory.",
                      caller);
  unsigned reasons = weir__slow_reasons(heap);
  if (reasons & WEIR__SLOW_CHECKPOINT) {
    atomic_load(&heap->allocator->hooks)->checkpoint(heap);
    reasons = weir__slow_reasons(heap);
  }
  uint64_t address = 0;
  if (reasons & WEIR__SLOW_UNCACHED) {
    status = weir__uncached_alloc(caller, heap, bytes, &address);
    if (!status)
      WEIR__PROBE_MALLOC(address, device, bytes, stream);
  } else {
    weir__private_pool *owner = weir__route_enter(heap, reasons, stream);
    status = weir__alloc(caller, heap, owner, bytes, stream, &address);
    if (!status && owner && owner->tag && atomic_load(&heap->captures))
      weir__note_captured(heap, address);
    weir__route_leave(owner);
  }
  if (!status)
    *pointer = (void *)address;
  return status;
}

static weir_status free_block(const char *caller, weir_allocator *allocator, uint64_t address) {
  if (allocator->backend)
    return allocator->backend->calls->free(caller, allocator, address);
  weir__arena *arena = weir__page_map_find(allocator->page_map, address);
  weir__block *block = NULL;
  weir__live_place place;
  if (arena) {
    weir__biased_acquire(&arena->lock);
    block = weir__live_find(&arena->live, address, &place);
    if (!block || block->state != WEIR__ALLOCATED) {
      weir__biased_release(&arena->lock);
      block = NULL;
    }
  }
  if (!block) {
    weir_status status;
    uint64_t bytes = 0;
    if (weir__uncached_find(allocator, address, &bytes))
      WEIR__PROBE_FREE(address, -1, bytes, (void *)0);
    return weir__uncached_free(caller, allocator, address, &status)
               ? status
               : weir__no_block_because(caller, allocator, address);
  }
  weir__heap *heap = arena->pool->heap;
  WEIR__PROBE_FREE(address, heap->device, block->requested, arena->stream);
  bool later = block->marks & WEIR__MARKS_SLOW;
  if (later || weir__slow_reasons(heap) & WEIR__SLOW_AGING) /* ages must be exact: no lazy free */
    weir__arena_flush(arena);
  if (later)
    weir__arena_begin_free(arena, block);
  else {
    if (weir__slow_reasons(heap) & WEIR__SLOW_TRACED)
      weir__trace_freed(arena, block);
    free_in(arena, block, place);
  }
  weir__arena_unlock(arena);
  if (later) {
    weir__mutex_lock(&heap->lock);
    weir__free_in_heap(heap, block);
    weir__mutex_unlock(&heap->lock);
  }
  return WEIR_OK;
}

/* Whether the free needs a stack although the guard samples: that of a guarded block does. */
static bool is_guarded(weir_allocator *allocator, uint64_t address) {
  weir__live_place place;
  weir__arena *arena = weir__page_map_find(allocator->page_map, address);
  if (!arena)
    return false;
  weir__biased_acquire(&arena->lock);
  const weir__block *block = weir__live_find(&arena->live, address, &place);
  bool is_guarded = block && block->state == WEIR__ALLOCATED && block->marks & WEIR__MARK_GUARDED;
  weir__biased_release(&arena->lock);
  return is_guarded;
}

/* The slow path: invalid pointers, tracing, and blocks that other streams or processes use. */
weir_status weir__free_address(weir_allocator *allocator, uint64_t address) {
  const char *caller = "weir_allocator_free";
  weir_status status = weir__allocator_check(caller, allocator);
  if (status || !allocator || !address) /* without an allocator the check fails */
    return status;
  weir__op op;
  const weir__guard_port *guard = allocator->guard;
  if (guard && guard->samples && !is_guarded(allocator, address))
    weir__op_begin_with(&op, allocator, 0);
  else
    weir__op_begin(&op, allocator, WEIR_CONTEXT_ALL);
  status = free_block(caller, allocator, address);
  if (status && guard)
    guard->calls->refused(caller, allocator, address);
  weir__op_end(&op);
  weir_status found = guard ? guard->calls->poll(caller, allocator) : WEIR_OK;
  return status ? status : found;
}

static __attribute__((noinline)) weir_status free_generic(weir_allocator *allocator, void *pointer) {
  return weir__free_address(allocator, (uint64_t)pointer);
}

/* A miss of the functions below and of the fast path. Callbacks may close the scope that selected the pool. */
static __attribute__((noinline)) weir_status alloc_miss(weir__heap *heap, weir__arena *arena,
                                                        const weir__settings *settings, uint64_t size, uint64_t bytes,
                                                        void **pointer) {
  uint64_t address;
  weir__private_pool *owner = arena->pool->owner;
  weir__route_stay(owner);
  weir_status status = weir__alloc_miss("weir_allocator_alloc", heap, arena, settings, size, bytes, &address);
  weir__route_leave(owner);
  if (!status)
    *pointer = (void *)address;
  return status;
}

/* ---- The fast path with recording ---- */

/* Whether these are the only reasons that rule out the fast path. Where allocations go was decided before. */
static inline bool is_only(const weir__heap *heap, unsigned reasons) {
  return (weir__slow_reasons(heap) & ~(unsigned)(WEIR__SLOW_SCOPED | WEIR__SLOW_ROUTED)) == reasons;
}

/* Allocates and records that. A stack, if `reasons` ask for one, is captured before the lock is acquired, because
 * unwinding may block. */
static __attribute__((noinline)) weir_status alloc_recorded(weir__heap *heap, weir__arena *arena,
                                                            const weir__settings *settings, unsigned reasons,
                                                            uint64_t size, uint64_t bytes, void **pointer) {
  const weir__recorder *history =
      reasons & WEIR__SLOW_STACKS ? atomic_load_explicit(&heap->allocator->history, memory_order_acquire) : NULL;
  uint32_t stack = history ? weir__recorder_stack(history, WEIR_CONTEXT_STATE) : 0;
  uint64_t ticks = weir__clock_ticks();
  weir__biased_acquire(&arena->lock);
  if (!is_only(heap, reasons) || !arena->writer) {
    weir__biased_release(&arena->lock);
    return alloc_generic(heap->allocator, heap->device, bytes, arena->stream, pointer);
  }
  weir__block *block = alloc_cached(arena, settings, size, bytes);
  if (block && history)
    weir__writer_write_at(arena->writer, WEIR_TRACE_ALLOC, block->address, bytes, stack, ticks);
  else if (block)
    weir__writer_alloc(arena->writer, block->address, bytes, ticks);
  weir__biased_release(&arena->lock);
  if (!block) {
    weir__op op;
    weir__op_begin_with(&op, heap->allocator, stack);
    weir_status status = alloc_miss(heap, arena, settings, size, bytes, pointer);
    weir__op_end(&op);
    return status;
  }
  *pointer = (void *)block->address;
  WEIR__PROBE_MALLOC(*pointer, heap->device, bytes, arena->stream);
  return WEIR_OK;
}

/* Some reason rules out the fast path. If recording is the only one, the arena's lock is sufficient. `owner` is the
 * pool of the thread's scope, or NULL. */
static __attribute__((noinline)) weir_status alloc_by_reason(weir__heap *heap, weir__private_pool *owner,
                                                             unsigned reasons, uint64_t bytes, weir_cu_stream stream,
                                                             void **pointer) {
  const weir__settings *settings = weir__settings_of(heap);
  uint64_t size = weir__round_bytes(settings, bytes);
  weir__arena *arena = weir__arena_find(weir__pool_for(heap, owner, size), stream);
  return arena && (reasons | WEIR__SLOW_STACKS) == (WEIR__SLOW_TRACED | WEIR__SLOW_STACKS)
             ? alloc_recorded(heap, arena, settings, reasons, size, bytes, pointer)
             : alloc_generic(heap->allocator, heap->device, bytes, stream, pointer);
}

/* Records the free of a block. The arena's lock is held. */
static inline void free_recorded(weir__arena *arena, weir__block *block, weir__live_place place) {
  WEIR__PROBE_FREE(block->address, arena->pool->heap->device, block->requested, arena->stream);
  weir__writer_freed(arena->writer, block->address, block->requested, weir__clock_ticks());
  free_in(arena, block, place);
}

/* The same for a free, with the arena locked. */
static __attribute__((noinline)) weir_status free_by_reason(weir__arena *arena, weir__block *block,
                                                            weir__live_place place) {
  weir__heap *heap = arena->pool->heap;
  void *pointer = (void *)block->address;
  unsigned reasons = weir__slow_reasons(heap);
  bool is_enough = !(reasons & (WEIR__SLOW_OBSERVED | WEIR__SLOW_AGING | WEIR__SLOW_CHECKPOINT)) && arena->writer &&
                   block->state == WEIR__ALLOCATED && !(block->marks & WEIR__MARKS_SLOW);
  if (is_enough)
    free_recorded(arena, block, place);
  weir__biased_release(&arena->lock);
  if (is_enough)
    return WEIR_OK;
  if (reasons & WEIR__SLOW_CHECKPOINT)
    atomic_load(&heap->allocator->hooks)->checkpoint(heap);
  return free_generic(heap->allocator, pointer);
}

/* ---- The fast path ---- */

/* Whether the fast path can free the block. The two conditions are separate statements so that the compiler does not
 * load state and marks in one access: they are stored byte by byte, and store forwarding would stall. */
static inline bool is_plain(const weir__heap *heap, const weir__block *block) {
  if (block->state != WEIR__ALLOCATED)
    return false;
  return !(block->marks & WEIR__MARKS_SLOW) && !(weir__slow_reasons(heap) & (WEIR__SLOW_TRACED | WEIR__SLOW_AGING));
}

/* The pool of the thread's innermost scope; NULL if it has none. Removes the reasons that are no obstacle then: the
 * scope comes before those of streams, unless PyTorch's rules hold. In a capture the pool is pinned to the graph, which
 * needs the heap's lock. */
static inline weir__private_pool *scope_of_thread(const weir__heap *heap, unsigned *reasons) {
  weir__private_pool *owner = *reasons & WEIR__SLOW_SCOPED ? weir__thread_pool(heap) : NULL;
  if (!owner)
    *reasons &= ~(unsigned)WEIR__SLOW_SCOPED;
  else if (!atomic_load_explicit(&heap->captures, memory_order_relaxed))
    *reasons &= heap->scoped_reasons;
  return owner;
}

weir_status weir_allocator_alloc(weir_allocator *allocator, int device, uint64_t bytes, weir_cu_stream stream,
                                 void **pointer) {
  if (!allocator || !pointer || (unsigned)device >= (unsigned)allocator->heap_count || bytes - 1 >= WEIR__MAX_BYTES - 1)
    return alloc_generic(allocator, device, bytes, stream, pointer);
  weir__heap *heap = &allocator->heaps[device];
  weir__pool *pools = heap->pools;
  unsigned reasons = weir__slow_reasons(heap);
  if (__builtin_expect(reasons != 0, 0)) {
    weir__private_pool *owner = scope_of_thread(heap, &reasons);
    if (reasons)
      return alloc_by_reason(heap, owner, reasons, bytes, stream, pointer);
    pools = owner ? owner->pools : pools;
  }
  const weir__settings *settings = atomic_load_explicit(&allocator->settings, memory_order_acquire);
  uint64_t size = weir__round_bytes(settings, bytes);
  weir__arena *arena = weir__arena_find(&pools[size > WEIR__SMALL_MAX], stream);
  if (!arena)
    return alloc_generic(allocator, device, bytes, stream, pointer);

  weir__biased_acquire(&arena->lock);
  weir__block *block = alloc_cached(arena, settings, size, bytes);
  weir__biased_release(&arena->lock);
  if (!block)
    return alloc_miss(heap, arena, settings, size, bytes, pointer);
  *pointer = (void *)block->address;
  WEIR__PROBE_MALLOC(block->address, heap->device, block->requested, arena->stream);
  return WEIR_OK;
}

weir_status weir_allocator_free(weir_allocator *allocator, void *pointer) {
  weir__arena *arena = allocator ? weir__page_map_find(allocator->page_map, (uint64_t)pointer) : NULL;
  if (!arena)
    return free_generic(allocator, pointer);
  weir__live_place place;
  const weir__heap *heap = arena->pool->heap;
  weir__biased_acquire(&arena->lock);
  weir__block *block = arena->last_alloc.block;
  if (block && block->address == (uint64_t)pointer && is_plain(heap, block)) {
    WEIR__PROBE_FREE(block->address, heap->device, block->requested, arena->stream);
    free_last(arena, block);
    weir__biased_release(&arena->lock);
    return WEIR_OK;
  }
  block = weir__live_find(&arena->live, (uint64_t)pointer, &place);
  if (!block) {
    weir__biased_release(&arena->lock);
    return free_generic(allocator, pointer);
  }
  if (!is_plain(heap, block))
    return free_by_reason(arena, block, place);
  WEIR__PROBE_FREE(block->address, heap->device, block->requested, arena->stream);
  free_cached(arena, block, place);
  weir__biased_release(&arena->lock);
  return WEIR_OK;
}

/* ---- The fast path alone ---- */

/* Takes the arena's lock unless another thread holds it. A revoked bias costs microseconds, but is not a wait. */
static inline bool try_lock(weir__arena *arena) {
  return weir__biased_acquire_fast(&arena->lock, weir__this_lock_owner) || weir__biased_try(&arena->lock);
}

weir_status weir_allocator_try_alloc(weir_allocator *allocator, int device, uint64_t bytes, weir_cu_stream stream,
                                     void **pointer) {
  if (!allocator || !pointer || (unsigned)device >= (unsigned)allocator->heap_count || bytes - 1 >= WEIR__MAX_BYTES - 1)
    return WEIR_ERROR_NOT_READY;
  weir__heap *heap = &allocator->heaps[device];
  const weir__settings *settings = atomic_load_explicit(&allocator->settings, memory_order_acquire);
  uint64_t size = weir__round_bytes(settings, bytes);
  weir__arena *arena = weir__arena_find(weir__pool_for(heap, NULL, size), stream);
  if (!arena || weir__slow_reasons(heap) || !try_lock(arena))
    return WEIR_ERROR_NOT_READY;
  weir__block *block = alloc_in(arena, settings, size, bytes);
  weir__biased_release(&arena->lock);
  if (!block)
    return WEIR_ERROR_NOT_READY;
  *pointer = (void *)block->address;
  WEIR__PROBE_MALLOC(*pointer, heap->device, bytes, stream);
  return WEIR_OK;
}

weir_status weir_allocator_try_free(weir_allocator *allocator, void *pointer) {
  weir__arena *arena = allocator ? weir__page_map_find(allocator->page_map, (uint64_t)pointer) : NULL;
  if (!arena || !try_lock(arena))
    return WEIR_ERROR_NOT_READY;
  weir__live_place place;
  const weir__heap *heap = arena->pool->heap;
  weir__block *block = weir__live_find(&arena->live, (uint64_t)pointer, &place);
  bool is_freed = block && is_plain(heap, block);
  if (is_freed) {
    WEIR__PROBE_FREE(block->address, heap->device, block->requested, arena->stream);
    free_in(arena, block, place);
  }
  weir__biased_release(&arena->lock);
  return is_freed ? WEIR_OK : WEIR_ERROR_NOT_READY;
}

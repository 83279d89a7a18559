#include "alloc/cache/pointer.h"

#include <stdio.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/move.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uncached.h"
#include "base/thread.h"

/* ---- Pointers that are not live ---- */

/* Describes what the heap has at an address; "" if nothing. The heap's lock is held. */
static void describe_place(weir__heap *heap, uint64_t address, char *text, size_t size) {
  weir__segment *segment = weir__segment_at(heap, address);
  *text = 0;
  if (!segment)
    return;
  weir__arena_lock(segment->arena);
  const weir__block *block = segment->first;
  while (block && address - block->address >= weir__block_bytes(block))
    block = weir__block_next(block);
  if (block && block->state == WEIR__ALLOCATED)
    snprintf(text, size, "it is %llu bytes into the live allocation at %p",
             (unsigned long long)(address - block->address), (void *)block->address);
  else if (block && block->state == WEIR__WAITING)
    snprintf(text, size, "it was already freed, and waits for other streams");
  else if (block && weir__block_is_mapped(block))
    snprintf(text, size, "it was already freed, or never allocated: the memory there is free and cached on device %d",
             heap->device);
  weir__arena_unlock(segment->arena);
}

/* A heap whose lock is held is skipped, because this may be a call from within one of its callbacks. */
weir_status weir__no_block_because(const char *caller, weir_allocator *allocator, uint64_t address) {
  char text[160] = "";
  bool asked_all = true;
  for (int i = 0; i < allocator->heap_count && !*text; i++) {
    weir__heap *heap = &allocator->heaps[i];
    if (!weir__mutex_trylock(&heap->lock)) {
      asked_all = false;
      continue;
    }
    describe_place(heap, address, text, sizeof text);
    weir__mutex_unlock(&heap->lock);
  }
  if (!*text && !asked_all)
    return weir__no_block(caller, address);
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid device pointer: %p: %s", caller, (void *)address,
                    *text ? text
                          : "this allocator has no memory there; it was not allocated here, or was freed and returned "
                            "to the driver");
}

/* ---- Live pointers ---- */

weir_status weir__no_block(const char *caller, uint64_t address) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid device pointer: %p", caller, (void *)address);
}

weir__block *weir__block_lock(weir_allocator *allocator, uint64_t address, weir__arena **arena) {
  weir__live_place place;
  *arena = weir__arena_of(allocator, address);
  if (*arena) {
    weir__arena_lock(*arena);
    weir__block *block = weir__live_find(&(*arena)->live, address, &place);
    if (block && block->state == WEIR__ALLOCATED)
      return block;
    weir__arena_unlock(*arena);
  }
  return NULL;
}

weir_status weir_allocator_owns(weir_allocator *allocator, const void *pointer, int *owns) {
  WEIR__CHECK_ARGUMENT(allocator);
  WEIR__CHECK_ARGUMENT(owns);
  bool is_kept = false; /* under full guard, for blocks that are gone */
  for (int i = 0; i < allocator->heap_count; i++)
    is_kept |= weir__apart_has(&allocator->heaps[i].apart_blocks, (uint64_t)pointer);
  *owns = !allocator->is_forked && (is_kept || weir__arena_of(allocator, (uint64_t)pointer) ||
                                    weir__uncached_find(allocator, (uint64_t)pointer, NULL));
  return WEIR_OK;
}

weir_status weir_allocator_describe(weir_allocator *allocator, const void *pointer, weir_pointer_info *info) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!info || info->size < sizeof info->size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: info is NULL, or its size is not set", __func__);
  weir__arena *arena;
  const weir__block *block = weir__block_lock(allocator, (uint64_t)pointer, &arena);
  if (!block)
    return weir__no_block(__func__, (uint64_t)pointer);
  weir_pointer_info known = {.size = info->size,
                             .device = arena->pool->heap->device,
                             .stream = arena->stream,
                             .bytes = weir__block_bytes(block),
                             .requested = block->requested,
                             .is_large = !arena->pool->is_small,
                             .is_expandable = block->paged};
  if (arena->pool->owner)
    known.pool = arena->pool->owner->id;
  known.stack = weir__writer_stack(arena->writer, block->address);
  weir__arena_unlock(arena);
  weir__copy_sized(info, info->size, &known, sizeof known);
  return WEIR_OK;
}

weir_status weir_allocator_fix_pages(weir_allocator *allocator, void *pointer) {
  WEIR__CHECK_ALLOCATOR(allocator);
  weir__arena *arena;
  const weir__block *block = weir__block_lock(allocator, (uint64_t)pointer, &arena);
  if (!block)
    return weir__uncached_find(allocator, (uint64_t)pointer, NULL) ? WEIR_OK
                                                                   : weir__no_block(__func__, (uint64_t)pointer);
  weir__heap *heap = arena->pool->heap;
  uint64_t end = block->address + weir__block_bytes(block);
  bool is_paged = block->paged;
  weir__arena_unlock(arena);
  if (!is_paged)
    return WEIR_OK;
  weir__mutex_lock(&heap->lock);
  weir__segment *segment = weir__segment_at(heap, (uint64_t)pointer); /* a live block keeps it */
  for (const weir__mapping *m = weir__mapping_at(&segment->memory, (uint64_t)pointer); m;) {
    uint64_t next = weir__mapping_end(m);
    m->page->pins |= WEIR__PIN_FIXED;
    m = next < end ? weir__mapping_at(&segment->memory, next) : NULL;
  }
  weir__mutex_unlock(&heap->lock);
  return WEIR_OK;
}

weir_status weir_allocator_expandable_segments(weir_allocator *allocator, int device, weir_expandable_segment *segments,
                                               size_t room, size_t *count) {
  WEIR__CHECK_HEAP(heap, allocator, device);
  WEIR__CHECK_ARGUMENT(count);
  if (room && !segments)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: segments is NULL and room is %zu", __func__, room);
  const size_t size = room ? segments->size : 0;
  if (room && size < sizeof size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the size of the first segment is not set", __func__);
  size_t found = 0;
  weir__mutex_lock(&heap->lock);
  for (const weir__segment *s = heap->segments; s; s = s->next) {
    if (!weir__has_pages(s))
      continue;
    if (found < room) {
      weir_expandable_segment segment = {size, s->arena->stream, s->arena->pool->is_small,
                                         s->memory.owned * s->memory.slot};
      weir__copy_sized((char *)segments + found * size, size, &segment, sizeof segment);
    }
    found++;
  }
  weir__mutex_unlock(&heap->lock);
  *count = found;
  return WEIR_OK;
}

weir_status weir_allocator_base(weir_allocator *allocator, void *pointer, void **base, uint64_t *bytes) {
  WEIR__CHECK_ALLOCATOR(allocator);
  WEIR__CHECK_ARGUMENT(base);
  WEIR__CHECK_ARGUMENT(bytes);
  weir__arena *arena;
  weir__block *block = weir__block_lock(allocator, (uint64_t)pointer, &arena);
  if (!block) {
    if (!weir__uncached_find(allocator, (uint64_t)pointer, bytes))
      return weir__no_block(__func__, (uint64_t)pointer);
    *base = pointer;
    return WEIR_OK;
  }
  weir__arena_unlock(arena); /* a live block keeps its segment */
  const weir__segment *segment = weir__segment_lookup(arena->pool->heap, block);
  if (!segment)
    return weir__no_block(__func__, (uint64_t)pointer);
  if (weir__has_pages(segment))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: memory of expandable segments has no base that another process could open; turn "
                      "expandable_segments off where memory is shared",
                      __func__);
  const weir_backend *program = allocator->backend ? &allocator->backend->program : NULL;
  if (program && program->base && (*base = program->base(program->context, pointer, bytes)))
    return WEIR_OK;
  *base = (void *)segment->memory.base;
  *bytes = segment->memory.bytes;
  return WEIR_OK;
}

/* ---- Allocation at an address ---- */

/* The free block that contains a range, or NULL. There is no index by address, so this walks the blocks of one segment.
 * The heap's lock and the arena's are held. */
static weir__block *free_block_at(const weir__heap *heap, const weir__arena *arena, uint64_t address, uint64_t bytes) {
  const weir__segment *segment = weir__segment_at(heap, address);
  weir__block *block = segment && segment->arena == arena ? segment->first : NULL;
  while (block && address - block->address >= weir__block_bytes(block))
    block = weir__block_next(block);
  bool fits = block && block->state == WEIR__FREE && bytes <= weir__block_bytes(block) - (address - block->address) &&
              (!weir__pages_move(segment) || weir__is_backed(segment, address, bytes));
  return fits ? block : NULL;
}

/* Allocates the part before the address first, and frees it again once the remainder is cut off. Returns false, with
 * nothing changed, if out of host memory. */
static bool take_at(weir__arena *arena, const weir__settings *settings, weir__block *block, uint64_t address,
                    uint64_t size, uint64_t requested) {
  uint64_t before = address - block->address;
  weir__block *first = NULL;
  weir__index_remove(&arena->free, block);
  if (before) {
    first = weir__arena_hand_out(arena, settings, block, before, before, true);
    if (!first)
      return false;
    block = weir__block_next(first);
    weir__index_remove(&arena->free, block);
  }
  bool done = weir__arena_hand_out(arena, settings, block, size, requested, false) != NULL;
  if (first) {
    weir__arena_begin_free(arena, first);
    weir__arena_release(arena, first);
  }
  return done;
}

weir_status weir_allocator_alloc_at(weir_allocator *allocator, int device, uint64_t bytes, weir_cu_stream stream,
                                    void *pointer) {
  uint64_t address = (uint64_t)pointer;
  WEIR__CHECK_HEAP(heap, allocator, device);
  if (!bytes || bytes >= WEIR__MAX_BYTES)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid size of %llu bytes", __func__,
                      (unsigned long long)bytes);
  if (address % WEIR__UNIT)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the address %p is not aligned to %d bytes", __func__, pointer,
                      WEIR__UNIT);
  if (allocator->backend)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the back end %s does not support allocation at an address",
                      __func__, weir__backend_name(allocator));
  const weir__settings *settings = weir__settings_of(heap);
  uint64_t size = weir__served_bytes(settings, bytes);
  weir__private_pool *owner = weir__route_enter(heap, weir__slow_reasons(heap), stream);
  weir__pool *pool = weir__pool_for(heap, owner, size);
  weir__arena *arena = weir__arena_find(pool, stream);
  weir_status status = WEIR_OK;
  weir__op op;
  weir__op_begin(&op, allocator, WEIR_CONTEXT_STATE);
  weir__mutex_lock(&heap->lock);
  if (arena)
    weir__arena_lock(arena);
  weir__block *block = arena ? free_block_at(heap, arena, address, size) : NULL;
  if (!block)
    status = weir__fail(WEIR_ERROR_BAD_STATE, "%s: Could not allocate CUDA storage at exact address %p: %s", __func__,
                        pointer, "there is no free block of this stream and size there");
  else if (!take_at(arena, settings, block, address, size, bytes))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  if (arena)
    weir__arena_unlock(arena);
  weir__mutex_unlock(&heap->lock);
  weir__op_end(&op);
  weir__route_leave(owner);
  return status;
}

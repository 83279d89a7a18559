/*
 * Blocks that other streams use: freeing one records an event in each such stream (fences.h), and the block
 * becomes free when all of them have completed. During a capture, when no event can be recorded, the block is deferred.
 */
#include "alloc/cache/uses.h"

#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/guard_port.h"
#include "alloc/cache/pointer.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/uncached.h"
#include "base/array.h"
#include "driver/call.h"

/* ---- Waiting ---- */

void weir__pending_add(weir__heap *heap, int by) {
  bool before = heap->pending != 0;
  heap->pending += (size_t)by;
  if (before != (heap->pending != 0))
    weir__slow_reason_set(heap, WEIR__SLOW_PENDING, !before);
}

/* A capturing stream can be neither synchronized nor queried, since both would invalidate the capture. A destroyed
 * stream cannot be synchronized either, but its work may still run, so the whole device is synchronized. */
bool weir__wait_for_stream(weir__heap *heap, weir_cu_stream stream) {
  weir_driver *driver = heap->allocator->driver;
  int status = WEIR_CU_CAPTURE_STATUS_NONE, mode;
  bool captures = atomic_load(&heap->captures);
  if (heap->allocator->streams_may_end)
    return !captures && weir__heap_ok(heap, driver->CtxSynchronize(driver), "cuCtxSynchronize");
  if (captures && (driver->StreamIsCapturing(driver, stream, &status) || status != WEIR_CU_CAPTURE_STATUS_NONE))
    return false;
  if (!weir__capture_relax(heap, &mode))
    return false;
  bool done = driver->StreamSynchronize(driver, stream) == WEIR_CU_SUCCESS ||
              (!captures && weir__heap_ok(heap, driver->CtxSynchronize(driver), "cuCtxSynchronize"));
  weir__capture_restore(heap, mode);
  return done;
}

bool weir__stream_is_idle(weir__heap *heap, weir_cu_stream stream) {
  weir_driver *driver = heap->allocator->driver;
  int mode;
  if (weir__is_in_capture(heap, stream) || !weir__capture_relax(heap, &mode))
    return false;
  bool is_idle = driver->StreamQuery(driver, stream) == WEIR_CU_SUCCESS;
  weir__capture_restore(heap, mode);
  return is_idle;
}

static weir__block *end_block(weir__heap *heap, weir__arena *arena, weir__block *block) {
  bool stands_apart = weir__settings_of(heap)->guard == WEIR__GUARD_FULL &&
                      weir__growth_of(weir__settings_of(heap), arena->pool) == WEIR__GROWTH_APART &&
                      weir__segment_of(heap, block)->growth == WEIR__GROWTH_APART;
  block = weir__arena_release(arena, block);
  bool is_gone = stands_apart && !weir__block_is_split(block) && weir__release_segment(heap, block);
  return is_gone ? NULL : block;
}

void weir__end_block(weir__heap *heap, weir__arena *arena, weir__block *block) { end_block(heap, arena, block); }

/* Releases a block of the cache that no stream uses any more, and returns the free one that it becomes a part of; or
 * the block itself if guard keeps it, or NULL if its segment is gone. */
static weir__block *release(weir__heap *heap, weir__arena *arena, weir__block *block) {
  const weir__guard_port *guard = heap->allocator->guard;
  bool is_kept = guard && block->marks & WEIR__MARKS_GUARD && guard->calls->keep(heap, arena, block);
  return is_kept ? block : end_block(heap, arena, block);
}

/* A block that no stream uses any more. The arena's lock is held. */
static void block_done(weir__heap *heap, weir__block *block) {
  if (heap->allocator->backend)
    heap->allocator->backend->calls->block_done(heap, block);
  else if (block->marks & WEIR__MARK_ASLEEP)
    weir__block_mark(block, WEIR__MARK_LEFT, true);
  else
    release(heap, weir__block_arena(heap, block), block);
}

weir__block *weir__block_wake(weir__heap *heap, weir__arena *arena, weir__block *block) {
  bool was_left = block->marks & WEIR__MARK_LEFT;
  weir__block_mark(block, WEIR__MARK_ASLEEP | WEIR__MARK_LEFT, false);
  return was_left ? release(heap, arena, block) : block;
}

void weir__block_collected(weir__heap *heap, weir__block *block) {
  weir__arena *arena = weir__block_arena(heap, block);
  weir__arena_lock(arena);
  if (--weir__block_cold_of(block)->events == 0 && !(block->marks & WEIR__MARK_USES))
    block_done(heap, block);
  weir__arena_unlock(arena);
}

static void event_done(void *context, void *block) {
  weir__pending_add(context, -1);
  weir__block_collected(context, block);
}

/* Makes the block wait for an event in a stream. Returns false if out of host memory, or if the driver fails. */
static bool insert_event(weir__heap *heap, weir__block *block, weir_cu_stream stream) {
  if (!weir__fences_add(&heap->fences, heap->allocator->driver, stream, block))
    return false;
  weir__pending_add(heap, 1);
  weir__arena *arena = weir__block_arena(heap, block);
  weir__arena_lock(arena);
  weir__block_cold_of(block)->events++;
  weir__arena_unlock(arena);
  return true;
}

/* Keeps the block until the next poll. If out of host memory, it is leaked, which is safer than early reuse. */
static void defer(weir__heap *heap, weir__block *block) {
  if (!WEIR__RESERVE(heap->deferred, heap->deferred_room, heap->deferred_count + 1))
    return;
  weir__capture_position_take(heap, block, &heap->deferred[heap->deferred_count++]);
  weir__pending_add(heap, 1);
}

/* An event in a capturing stream would become part of the graph and never complete; one in the legacy stream would
 * invalidate captures of other streams. */
bool weir__is_in_capture(const weir__heap *heap, weir_cu_stream stream) {
  weir_driver *driver = heap->allocator->driver;
  int status = WEIR_CU_CAPTURE_STATUS_NONE;
  weir_cu_result r = driver->StreamIsCapturing(driver, stream, &status);
  return r == WEIR_CU_STREAM_CAPTURE_IMPLICIT || (!r && status != WEIR_CU_CAPTURE_STATUS_NONE);
}

/* Waits for a stream that uses a block, or makes the block wait for an event. `is_late` means that the block was freed
 * earlier. */
static bool wait_for_use(weir__heap *heap, weir__block *block, weir_cu_stream stream, bool is_late) {
  if (is_late && heap->allocator->streams_may_end)
    return weir__wait_for_stream(heap, stream);
  return !weir__is_in_capture(heap, stream) &&
         (insert_event(heap, block, stream) || weir__wait_for_stream(heap, stream));
}

/* Records an event in every stream that uses the block, which then waits for the events. Where no event can be
 * recorded, the stream is synchronized; if that fails too, the use is kept and tried again. */
static void insert_events(weir__heap *heap, weir__block *block, bool is_late) {
  weir__arena *arena = weir__block_arena(heap, block);
  weir__block_cold *cold = weir__block_cold_of(block);
  bool done;
  if (heap->allocator->backend && heap->allocator->backend->calls->join_streams(heap, block, &done)) {
    if (!done)
      defer(heap, block);
    return;
  }
  weir__arena_lock(arena);
  weir__use *uses = weir__block_uses(block), *left = NULL;
  cold->events++; /* keeps the block waiting until all events are in their queues */
  if (block->marks & WEIR__MARK_SENT) {
    weir__block_mark(block, WEIR__MARK_SENT, false);
    cold->events += heap->sent.freed(heap, block); /* until other processes are done */
  }
  weir__arena_unlock(arena);
  for (weir__use *use = uses, *next; use; use = next) {
    next = use->next;
    if (wait_for_use(heap, block, use->stream, is_late)) {
      weir__arena_lock(arena);
      weir__slab_free(&arena->uses, use, sizeof *use);
      weir__arena_unlock(arena);
    } else {
      use->next = left;
      left = use;
    }
  }
  weir__arena_lock(arena);
  weir__block_set_uses(block, left);
  if (--cold->events == 0 && !left)
    block_done(heap, block);
  weir__arena_unlock(arena);
  if (left)
    defer(heap, block);
}

/* Events recorded in a capture cannot be queried, so the block is deferred until the captures end. */
void weir__free_later(weir__heap *heap, weir__block *block, bool entered) {
  if (atomic_load(&heap->captures) || !entered)
    defer(heap, block);
  else
    insert_events(heap, block, false);
}

/* Blocks for which that fails are deferred again, in slots that were already read. */
static void insert_deferred(weir__heap *heap) {
  size_t count = heap->deferred_count;
  heap->deferred_count = 0;
  for (size_t i = 0; i < count; i++) {
    weir__block *block = heap->deferred[i].block;
    free(heap->deferred[i].positions);
    weir__pending_add(heap, -1);
    insert_events(heap, block, true);
  }
}

void weir__poll_events(weir__heap *heap, weir_cu_stream current) {
  weir_driver *driver = heap->allocator->driver;
  int status = WEIR_CU_CAPTURE_STATUS_NONE, mode;
  if (atomic_load(&heap->captures)) {
    weir__capture_positions_poll(heap, current);
    return;
  }
  if (driver->StreamIsCapturing(driver, current, &status) || status != WEIR_CU_CAPTURE_STATUS_NONE ||
      !weir__capture_relax(heap, &mode)) /* another device may be in a capture */
    return;
  insert_deferred(heap);
  weir__fences_poll(&heap->fences, driver, false, event_done, heap);
  weir__capture_restore(heap, mode);
}

void weir__free_in_heap(weir__heap *heap, weir__block *block) {
  weir_cu_context previous;
  weir_cu_result r = weir__heap_enter(heap, &previous);
  weir__free_later(heap, block, !r);
  if (!r)
    weir__heap_leave(heap, previous);
}

void weir__poll_heap(weir__heap *heap, weir_cu_stream current) {
  weir_cu_context previous;
  if (weir__heap_open(heap, &previous))
    return;
  weir__poll_events(heap, current);
  weir__heap_close(heap, previous);
}

void weir__wait_for_events(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  int mode;
  if (!atomic_load(&heap->captures))
    insert_deferred(heap);
  if (heap->sent.collect)
    heap->sent.collect(heap);
  heap->stats.num_sync_all_streams++;
  if (!weir__capture_relax(heap, &mode))
    return;
  weir__heap_ok(heap, weir__fences_poll(&heap->fences, driver, true, event_done, heap), "cuEventSynchronize");
  weir__capture_restore(heap, mode);
  if (heap->quarantined) /* also what has passed its events now */
    heap->allocator->guard->calls->release(heap);
}

void weir__events_clear(weir__heap *heap) {
  weir__fences_clear(&heap->fences, heap->allocator->driver);
  for (size_t i = 0; i < heap->deferred_count; i++)
    free(heap->deferred[i].positions);
  free(heap->deferred);
}

/* ---- Recording a use ---- */

weir_status weir_allocator_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream) {
  WEIR__CHECK_ALLOCATOR(allocator);
  if (!pointer)
    return WEIR_OK;
  weir_status status = weir__driver_check_stream(__func__, allocator->driver, stream);
  if (status)
    return status;
  const weir_backend *program = allocator->backend ? &allocator->backend->program : NULL;
  if (program && program->record_stream) { /* it tracks streams itself, but not those of a pool's own functions */
    const weir__arena *arena = weir__backend_arena(allocator, (uint64_t)pointer);
    if (arena && !weir__is_provided(arena->pool)) {
      program->record_stream(program->context, pointer, stream);
      return WEIR_OK;
    }
  }
  return weir__record_stream(__func__, allocator, (uint64_t)pointer, stream);
}

weir_status weir__record_stream(const char *caller, weir_allocator *allocator, uint64_t address,
                                weir_cu_stream stream) {
  weir_status status = WEIR_OK;
  weir__arena *arena;
  weir__block *block = weir__block_lock(allocator, address, &arena);
  /* Memory allocated with caching off is freed by the driver, which waits for all streams. */
  if (!block)
    return weir__uncached_find(allocator, address, NULL) ? WEIR_OK : weir__no_block_because(caller, allocator, address);
  weir__use *use = weir__block_uses(block);
  while (use && use->stream != stream)
    use = use->next;
  if (!use && stream != arena->stream) {
    use = weir__slab_alloc(&arena->uses, sizeof *use);
    if (use) {
      *use = (weir__use){stream, weir__capture_of(arena->pool->heap, stream), weir__block_uses(block)};
      weir__block_set_uses(block, use);
    } else
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  }
  weir__arena_unlock(arena);
  return status;
}

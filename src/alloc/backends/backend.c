#include "alloc/backends/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/miss.h"
#include "alloc/cache/pointer.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/reclaim.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "base/thread.h"
#include "driver/call.h"
#include "record/probes.h"
#include "record/this_thread.h"

static const weir__backend_calls port_calls;

/* The functions of a private pool take precedence over those of the back end. */
static bool is_stream_ordered(const weir__arena *arena) {
  return arena->pool->heap->allocator->backend->is_async && !weir__is_provided(arena->pool);
}

/* ---- Creation and destruction ---- */

weir_status weir__backend_new(const char *caller, weir_allocator *allocator, const weir_backend *backend) {
  weir_backend calls = {.size = sizeof calls, .name = backend ? "pluggable" : "cudaMallocAsync"};
  weir_status status = weir__read_options(caller, "the back end", &calls, sizeof calls, backend);
  if (status)
    return status;
  if (backend && (!calls.alloc || !calls.free))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: a back end needs both alloc and free", caller);
  if (!backend && !weir__async_is_supported(allocator->driver))
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                      "%s: backend:cudaMallocAsync needs stream-ordered memory, which this driver does not support; "
                      "use backend:native",
                      caller);
  weir__backend_port *state = calloc(1, sizeof *state);
  char *name = strdup(calls.name ? calls.name : "pluggable");
  weir__async_device *devices = calloc((size_t)allocator->heap_count + 1, sizeof *devices);
  if (!state || !name || !devices) {
    free(state);
    free(name);
    free(devices);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  }
  *state = (weir__backend_port){
      .calls = &port_calls, .program = calls, .devices = devices, .name = name, .is_async = !backend};
  weir__mutex_init(&state->lock);
  allocator->backend = state;
  for (int i = 0; i < allocator->heap_count; i++)
    weir__slow_reason_set(&allocator->heaps[i], WEIR__SLOW_BACKEND, true);
  if (calls.init)
    calls.init(calls.context, allocator->heap_count);
  return WEIR_OK;
}

void weir__backend_delete(weir_allocator *allocator) {
  weir__backend_port *backend = allocator->backend;
  if (!backend)
    return;
  weir__rangemap_clear(&backend->pointers);
  weir__mutex_destroy(&backend->lock);
  free(backend->devices);
  free(backend->name);
  free(backend);
}

weir_status weir_allocator_backend(const weir_allocator *allocator, char *text, size_t size, size_t *length) {
  WEIR__CHECK_ARGUMENT(allocator);
  if (size && !text)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the text is NULL", __func__);
  const char *name = weir__backend_name(allocator);
  if (size)
    snprintf(text, size, "%s", name);
  if (length)
    *length = strlen(name);
  return WEIR_OK;
}

/* ---- Bookkeeping. The heap's lock is held ---- */

/* Registers memory of the back end. Returns false if it overlaps registered memory, which *overlaps says, or if out of
 * host memory. */
static bool note(weir__backend_port *backend, uint64_t base, uint64_t bytes, weir__arena *arena, bool *overlaps) {
  weir__mutex_lock(&backend->lock);
  *overlaps = weir__rangemap_overlap(&backend->pointers, base, bytes, NULL, NULL) != NULL;
  bool noted = weir__rangemap_insert(&backend->pointers, base, bytes, arena);
  weir__mutex_unlock(&backend->lock);
  return noted;
}

static void forget(weir__backend_port *backend, uint64_t base) {
  weir__mutex_lock(&backend->lock);
  weir__rangemap_remove(&backend->pointers, base);
  weir__mutex_unlock(&backend->lock);
}

/* Each request obtains a segment, and the program's free of it returns it. */
static void trace_segment(const weir__segment *segment, weir_trace_action action, weir__reason reason, uint32_t stack) {
  uint8_t before = weir__this_thread.reason;
  weir__this_thread.reason = (uint8_t)reason;
  weir__trace(segment->arena, action, segment->memory.base, segment->memory.bytes, stack);
  weir__this_thread.reason = before;
}

/* Registers memory of the back end as a segment with one allocated block. */
static weir_status add_segment(const char *caller, weir__heap *heap, weir__arena *arena, uint64_t base, uint64_t bytes,
                               bool captured) {
  weir__backend_port *backend = heap->allocator->backend;
  const weir__settings *settings = weir__settings_of(heap);
  bool overlaps = false;
  if (!note(backend, base, bytes, arena, &overlaps))
    goto no_memory;
  weir__segment *segment = weir__segment_new(heap, arena, base, bytes);
  if (!segment)
    goto forget_memory;
  segment->captured = captured;
  weir__arena_lock(arena);
  bool room = weir__live_prepare(&arena->live); /* nothing below can fail */
  weir__block *block = room ? weir__arena_new_block(arena, segment, base, 0) : NULL;
  if (block) {
    segment->first = block;
    segment->stack = weir__op_stack();
    weir__segment_count(heap, segment, 1, (int64_t)bytes);
    trace_segment(segment, WEIR_TRACE_SEGMENT_ALLOC, WEIR__REASON_REQUEST, 0);
    weir__arena_hand_out(arena, settings, block, bytes, bytes, true);
  }
  weir__arena_unlock(arena);
  if (block)
    return WEIR_OK;

  weir__segment_unlink(heap, segment);
  weir__segment_delete(segment);
forget_memory:
  forget(backend, base);
no_memory:
  if (overlaps)
    return weir__fail(WEIR_ERROR_BAD_STATE, "%s: the back end %s returned memory at %p that is already in use", caller,
                      backend->name, (void *)base);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
}

/* Removes a block that is no longer in use, and its segment, from all lists; the caller deletes the segment. The
 * arena's lock is held too. */
static weir__segment *remove_segment(weir__heap *heap, weir__block *block) {
  weir__segment *segment = weir__segment_of(heap, block);
  weir__arena *arena = segment->arena;
  int64_t bytes = (int64_t)weir__block_bytes(block), requested = (int64_t)block->requested;
  weir__amounts change = {.requested_bytes = -requested};
  if (block->state == WEIR__ALLOCATED) {
    change.allocations = -1;
    change.allocated_bytes = -bytes;
    change.oversize = -(block->marks & WEIR__MARK_OVERSIZE);
    if (weir__slow_reasons(heap) & WEIR__SLOW_TRACED)
      weir__trace_freed(arena, block);
  } else {
    change.waiting = -1;
    change.waiting_bytes = -bytes;
    weir__trace(arena, WEIR_TRACE_FREE_COMPLETED, block->address, block->requested, 0);
  }
  weir__live_place place;
  if (weir__live_find(&arena->live, block->address, &place)) /* always true */
    weir__live_remove(&arena->live, block->address, place);
  weir__account_count(&arena->account, &change);
  weir__arena_drop_uses(arena, block);
  trace_segment(segment, WEIR_TRACE_SEGMENT_FREE, WEIR__REASON_PROGRAM, segment->stack);
  weir__slab_free(&arena->blocks, block, sizeof *block);
  weir__segment_count(heap, segment, -1, -(int64_t)segment->memory.bytes);
  weir__segment_unlink(heap, segment);
  forget(heap->allocator->backend, segment->memory.base);
  return segment;
}

/* ---- Functions of the program. No lock is held ---- */

static void *call_alloc(weir__heap *heap, const weir__arena *arena, uint64_t bytes) {
  const weir__private_pool *owner = arena->pool->owner;
  const weir_backend *calls = &heap->allocator->backend->program;
  return weir__is_provided(arena->pool) ? owner->alloc(owner->context, bytes, heap->device, arena->stream)
                                        : calls->alloc(calls->context, bytes, heap->device, arena->stream);
}

static void call_free(weir__heap *heap, const weir__arena *arena, uint64_t base, uint64_t bytes) {
  const weir__private_pool *owner = arena->pool->owner;
  const weir_backend *calls = &heap->allocator->backend->program;
  if (weir__is_provided(arena->pool))
    owner->free(owner->context, (void *)base, bytes, heap->device, arena->stream);
  else
    calls->free(calls->context, (void *)base, bytes, heap->device, arena->stream);
}

/* Returns the segments on heap->returning to their owner, with the device's context current where possible. */
static void backend_return_segments(weir__heap *heap) {
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  bool entered = heap->returning && !weir__heap_enter(heap, &previous);
  while (heap->returning) {
    weir__segment *segment = heap->returning;
    heap->returning = segment->next;
    weir__mutex_unlock(&heap->lock);
    call_free(heap, segment->arena, segment->memory.base, segment->memory.bytes);
    weir__mutex_lock(&heap->lock);
    weir__segment_delete(segment);
  }
  if (entered)
    weir__heap_leave(heap, previous);
  weir__mutex_unlock(&heap->lock);
}

static void queue_return(weir__heap *heap, weir__segment *segment) {
  segment->next = heap->returning;
  heap->returning = segment;
}

/* ---- Allocation. The heap's lock is held, and its context is current ---- */

/* Sets no error text for WEIR_ERROR_OUT_OF_MEMORY: the caller retries after memory was freed. */
static weir_status obtain(const char *caller, weir__heap *heap, weir__arena *arena, uint64_t bytes, uint64_t *address) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_deviceptr base = 0;
  bool captured = false;
  if (weir__over_limit(heap, arena, bytes))
    return WEIR_ERROR_OUT_OF_MEMORY;
  if (is_stream_ordered(arena)) {
    weir_cu_result r = weir__async_alloc(heap, arena->stream, bytes, &base, &captured);
    if (r)
      return r == WEIR_CU_OUT_OF_MEMORY ? WEIR_ERROR_OUT_OF_MEMORY
                                        : weir__driver_status(driver, r, caller, "cuMemAllocFromPoolAsync");
  } else {
    weir__account_promise(&arena->account.account, (int64_t)bytes);
    weir__mutex_unlock(&heap->lock);
    base = (weir_cu_deviceptr)call_alloc(heap, arena, bytes);
    weir__mutex_lock(&heap->lock);
    weir__account_promise(&arena->account.account, -(int64_t)bytes);
    if (!base)
      return WEIR_ERROR_OUT_OF_MEMORY;
  }
  weir_status status = add_segment(caller, heap, arena, base, bytes, captured);
  if (!status)
    *address = base;
  else if (is_stream_ordered(arena)) {
    driver->MemFreeAsync(driver, base, arena->stream);
  } else if (status != WEIR_ERROR_BAD_STATE) { /* memory that is in use already must not be freed */
    weir__mutex_unlock(&heap->lock);
    call_free(heap, arena, base, bytes);
    weir__mutex_lock(&heap->lock);
  }
  return status;
}

/* Waits for freed blocks, and returns all memory that the back end can spare. */
static void release_spare(weir__heap *heap, const weir__arena *arena) {
  const weir_backend *calls = &heap->allocator->backend->program;
  weir__wait_for_events(heap);
  if (is_stream_ordered(arena))
    weir__async_trim(heap, arena->stream, false);
  weir__mutex_unlock(&heap->lock);
  backend_return_segments(heap);
  if (calls->reset)
    calls->reset(calls->context);
  weir__mutex_lock(&heap->lock);
  heap->stats.num_alloc_retries++;
}

static weir_status backend_alloc(const char *caller, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                                 weir_cu_stream stream, uint64_t *address) {
  const weir__settings *settings = weir__settings_of(heap);
  weir__pool *pool = weir__pool_for(heap, owner, bytes);
  weir__arena *arena = weir__arena_get(pool, stream);
  weir_cu_context previous;
  uint64_t memory = 0;
  if (!arena)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", caller);
  weir_cu_result r = weir__heap_open(heap, &previous);
  if (r)
    return weir__driver_status(heap->allocator->driver, r, caller, "cuDevicePrimaryCtxRetain");
  if (heap->pending)
    weir__poll_events(heap, stream);
  if (heap->returning) {
    weir__mutex_unlock(&heap->lock);
    backend_return_segments(heap);
    weir__mutex_lock(&heap->lock);
  }
  weir_status status = weir__reject(caller, heap, stream, settings, bytes, bytes);
  if (status) {
    weir__heap_leave(heap, previous);
    return status;
  }
  status = obtain(caller, heap, arena, bytes, &memory);
  if (status == WEIR_ERROR_OUT_OF_MEMORY && weir__run_callbacks(heap))
    status = obtain(caller, heap, arena, bytes, &memory);
  if (status == WEIR_ERROR_OUT_OF_MEMORY && !atomic_load(&heap->captures)) {
    release_spare(heap, arena);
    status = obtain(caller, heap, arena, bytes, &memory);
  }
  if (status == WEIR_ERROR_OUT_OF_MEMORY)
    status = weir__out_of_memory(caller, heap, arena, bytes, bytes);
  else
    weir__mutex_unlock(&heap->lock);
  weir__heap_leave(heap, previous);
  if (status)
    return status;
  *address = memory;
  WEIR__PROBE_MALLOC(memory, heap->device, bytes, stream);
  return WEIR_OK;
}

/* ---- Free ---- */

/* The heap's lock and the arena's are held on entry, and released. */
static weir_status free_in_stream_order(const char *caller, weir__heap *heap, weir__block *block) {
  const weir__segment *segment = weir__segment_of(heap, block);
  weir__arena *arena = segment->arena;
  weir_cu_context previous;
  weir_cu_result r = weir__heap_enter(heap, &previous);
  bool entered = !r;
  if (!r && !weir__async_can_free(heap, segment)) {
    weir__arena_begin_free(arena, block);
    weir__arena_unlock(arena);
    weir__free_later(heap, block, true);
  } else {
    if (!r)
      r = weir__async_free(heap, block);
    if (!r)
      weir__segment_delete(remove_segment(heap, block));
    weir__arena_unlock(arena);
  }
  if (entered)
    weir__heap_leave(heap, previous);
  weir__mutex_unlock(&heap->lock);
  return r ? weir__driver_status(heap->allocator->driver, r, caller, "cuMemFreeAsync") : WEIR_OK;
}

static weir_status backend_free(const char *caller, weir_allocator *allocator, uint64_t address) {
  weir__arena *arena = weir__backend_arena(allocator, address);
  if (!arena)
    return weir__no_block_because(caller, allocator, address);
  weir__heap *heap = arena->pool->heap;
  weir__live_place place;
  weir__mutex_lock(&heap->lock);
  weir__arena_lock(arena);
  weir__block *block = weir__live_find(&arena->live, address, &place);
  if (!block || block->state != WEIR__ALLOCATED) {
    weir__arena_unlock(arena);
    weir__mutex_unlock(&heap->lock);
    return weir__no_block_because(caller, allocator, address);
  }
  WEIR__PROBE_FREE(address, heap->device, block->requested, arena->stream);
  if (is_stream_ordered(arena))
    return free_in_stream_order(caller, heap, block);
  if (block->marks & WEIR__MARKS_SHARED) {
    weir__arena_begin_free(arena, block);
    weir__arena_unlock(arena);
    weir__free_in_heap(heap, block);
  } else {
    queue_return(heap, remove_segment(heap, block));
    weir__arena_unlock(arena);
  }
  weir__mutex_unlock(&heap->lock);
  backend_return_segments(heap);
  return WEIR_OK;
}

static void backend_block_done(weir__heap *heap, weir__block *block) {
  queue_return(heap, remove_segment(heap, block));
}

static bool backend_join_streams(weir__heap *heap, weir__block *block, bool *done) {
  weir__arena *arena = weir__block_arena(heap, block);
  if (!is_stream_ordered(arena))
    return false;
  weir__arena_lock(arena);
  *done = weir__async_free(heap, block) == WEIR_CU_SUCCESS;
  if (*done)
    weir__segment_delete(remove_segment(heap, block));
  weir__arena_unlock(arena);
  return true;
}

/* ---- Other operations ---- */

static weir_status backend_empty(const char *caller, weir__heap *heap, weir_pool_id id) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  weir_cu_result r = WEIR_CU_SUCCESS;
  weir__mutex_lock(&heap->lock);
  bool captures = atomic_load(&heap->captures), entered = false;
  if (heap->cu_context && !captures) {
    r = weir__heap_enter(heap, &previous);
    entered = !r;
    if (entered)
      weir__wait_for_events(heap);
  }
  weir__mutex_unlock(&heap->lock);
  backend_return_segments(heap);
  weir__mutex_lock(&heap->lock);
  weir__release_by_id(heap, id, false);
  if (entered && heap->allocator->backend->is_async)
    r = weir__async_trim(heap, NULL, true);
  if (entered)
    weir__heap_leave(heap, previous);
  weir__mutex_unlock(&heap->lock);
  weir__pools_finalize(heap);
  return r ? weir__driver_status(driver, r, caller, "cuMemPoolTrimTo") : WEIR_OK;
}

/* No other thread uses the heap; locks are taken only because the functions called require them. */
void weir__backend_clear(weir__heap *heap) {
  weir_driver *driver = heap->allocator->driver;
  weir_cu_context previous;
  bool entered = heap->cu_context && !weir__heap_enter(heap, &previous);
  if (entered)
    driver->CtxSynchronize(driver);
  backend_return_segments(heap);
  while (heap->segments) {
    weir__segment *segment = heap->segments;
    if (is_stream_ordered(segment->arena))
      driver->MemFree(
          driver, segment->memory
                      .base); /* the stream may no longer exist; fails for memory of a graph, which the graph frees */
    else
      call_free(heap, segment->arena, segment->memory.base, segment->memory.bytes);
    weir__segment_unlink(heap, segment);
    weir__segment_delete(segment);
  }
  if (heap->allocator->backend->is_async)
    weir__async_close(heap);
  if (entered)
    weir__heap_leave(heap, previous);
}

static const weir__backend_calls port_calls = {
    .alloc = backend_alloc,
    .free = backend_free,
    .return_segments = backend_return_segments,
    .block_done = backend_block_done,
    .join_streams = backend_join_streams,
    .empty = backend_empty,
};

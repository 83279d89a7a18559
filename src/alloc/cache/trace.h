/*
 * Tracing: history entries for the recorder, the witness, and the trackers.
 */
#pragma once

#include "alloc/cache/arena.h"
#include "alloc/cache/heap.h"

/* ---- Operations. No lock is held ---- */

/* A traced operation. It has a stack, and collects the entries that trackers get after it, when no lock is held. Nested
 * operations, such as those of a callback, have separate ones. */
typedef struct weir__op {
  struct weir__op *outer;
  weir_allocator *allocator;
  uint32_t stack;            /* of the caller; 0 if none is recorded */
  bool lost;                 /* an entry was dropped for lack of host memory */
  unsigned count, room;      /* of entries */
  weir_trace_entry *entries; /* `few`, or allocated */
  weir_trace_entry few[4];
} weir__op;

/* `level` is the lowest context under which such an operation records a stack. */
void weir__op_begin(weir__op *op, weir_allocator *allocator, weir_history_context level);

/* The same with a stack that was captured before. */
void weir__op_begin_with(weir__op *op, weir_allocator *allocator, uint32_t stack);

/* Calls the trackers. */
void weir__op_end(weir__op *op);

/* Calls the trackers for the entries so far. */
void weir__op_notify(void);

/* The stack of the operation under way; 0 if there is none. Any locks may be held. */
uint32_t weir__op_stack(void);

/* ---- Entries. The arena's lock is held ---- */

/* `stack` is used when the operation has none. */
void weir__trace_arena(weir__arena *arena, weir_trace_action action, uint64_t address, uint64_t bytes, uint32_t stack);

/* Traces both entries of a block that is freed at once. */
void weir__trace_freed(weir__arena *arena, const weir__block *block);

/* Whether entries of an action are recorded or reported. */
static inline bool weir__is_traced(const weir__heap *heap, weir_trace_action action) {
  bool of_segment = action >= WEIR_TRACE_SEGMENT_ALLOC && action <= WEIR_TRACE_SEGMENT_UNMAP;
  return weir__slow_reasons(heap) & WEIR__SLOW_TRACED ||
         (of_segment && atomic_load_explicit(&heap->allocator->witnesses_segments, memory_order_relaxed));
}

static inline void weir__trace(weir__arena *arena, weir_trace_action action, uint64_t address, uint64_t bytes,
                               uint32_t stack) {
  if (weir__is_traced(arena->pool->heap, action))
    weir__trace_arena(arena, action, address, bytes, stack);
}

/* Creates the arena's writer. Returns NULL if out of host memory; the recorder counts that. */
weir__writer *weir__arena_new_writer(weir__arena *arena, weir__recorder *history);
static inline weir__writer *weir__arena_writer(weir__arena *arena, weir__recorder *history) {
  return __builtin_expect(arena->writer != NULL, 1) ? arena->writer : weir__arena_new_writer(arena, history);
}

/* ---- Ring file data other than entries. These do nothing without a ring file ---- */

/* Logs changed settings; configure_lock is held. */
void weir__trace_settings(weir_allocator *allocator);

/* Logs a changed limit; the heap's lock is held. */
void weir__trace_limit(const weir__heap *heap);

/* Logs the tag of a new pool, if it has one; the heap's lock is held. */
void weir__trace_tag(const weir__heap *heap, const weir__private_pool *pool);

/* Logs that a block of an expandable segment was taken for a request that the cache could not serve: until the block is
 * handed out, other threads may free its neighbours. If memory is mapped for the request, the mapping says so. The
 * arena's lock is held. */
void weir__trace_taken(weir__arena *arena, const weir__block *block);

/* ---- What is traced ---- */

/* Updates the reasons for the slow path after trackers, the witness or the recorder have changed. */
void weir__update_tracing(weir_allocator *allocator);

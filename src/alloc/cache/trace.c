/*
 * Tracing: the recorder, the witness and the trackers.
 *
 * An entry is recorded where the action happens, under the arena's lock, so that the entries of an address are in
 * order. Trackers may call anything, so they are called after the operation, by the thread that performed it.
 */
#include "alloc/cache/trace.h"

#include <stdlib.h>

#include "alloc/cache/observers.h"
#include "record/ring_file.h"
#include "record/this_thread.h"

/* ---- Operations ---- */

void weir__op_begin(weir__op *op, weir_allocator *allocator, weir_history_context level) {
  const weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  weir__op_begin_with(op, allocator, history ? weir__recorder_stack(history, level) : 0);
}

void weir__op_begin_with(weir__op *op, weir_allocator *allocator, uint32_t stack) {
  op->outer = weir__this_thread.op;
  op->allocator = allocator;
  op->stack = stack;
  op->lost = false;
  op->count = 0;
  op->room = WEIR_COUNT_OF(op->few);
  op->entries = op->few;
  weir__this_thread.op = op;
}

uint32_t weir__op_stack(void) { return weir__this_thread.op ? weir__this_thread.op->stack : 0; }

static void collect(weir__op *op, const weir_trace_entry *entry) {
  if (op->count == op->room) {
    weir_trace_entry *grown = malloc(2 * op->room * sizeof *grown);
    if (!grown) {
      op->lost = true;
      return;
    }
    memcpy(grown, op->entries, op->count * sizeof *grown);
    if (op->entries != op->few)
      free(op->entries);
    op->entries = grown;
    op->room *= 2;
  }
  op->entries[op->count++] = *entry;
}

/* Actions of a tracker itself are not reported to trackers, which would recurse without end. */
static void notify_trackers(weir__op *op) {
  weir__this_thread.is_telling = true;
  for (unsigned i = 0; i < op->count; i++)
    weir__observe_entry(op->allocator, &op->entries[i]);
  weir__this_thread.is_telling = false;
  op->count = 0;
  if (op->lost)
    weir__log(WEIR_LOG_ERROR, "trackers missed entries: out of host memory");
  op->lost = false;
}

void weir__op_notify(void) {
  weir__op *op = weir__this_thread.op;
  if (op && (op->count || op->lost))
    notify_trackers(op);
}

void weir__op_end(weir__op *op) {
  if (op->count || op->lost)
    notify_trackers(op);
  weir__this_thread.op = op->outer;
  if (op->entries != op->few)
    free(op->entries);
}

/* ---- Entries ---- */

static void report(weir__arena *arena, weir_trace_action action, uint64_t address, uint64_t bytes) {
  weir_allocator *allocator = arena->pool->heap->allocator;
  weir_trace_entry entry = {.size = sizeof entry,
                            .action = action,
                            .device = arena->pool->heap->device,
                            .address = address,
                            .bytes = bytes,
                            .stream = arena->stream,
                            .pool = arena->pool->owner ? arena->pool->owner->id : (weir_pool_id){0, 0}};
  weir_witness_fn witness = atomic_load_explicit(&allocator->witness, memory_order_acquire);
  if (witness)
    witness(allocator->witness_context, &entry);
  /* Operations that began before tracing was turned on are not reported. */
  weir__op *op = weir__this_thread.op;
  if (op && op->allocator == allocator && !weir__this_thread.is_telling &&
      atomic_load_explicit(&allocator->trackers, memory_order_relaxed))
    collect(op, &entry);
}

static inline bool has_listeners(const weir_allocator *allocator) {
  return atomic_load_explicit(&allocator->witness, memory_order_relaxed) ||
         atomic_load_explicit(&allocator->trackers, memory_order_relaxed);
}

weir__writer *weir__arena_new_writer(weir__arena *arena, weir__recorder *history) {
  const weir__private_pool *owner = arena->pool->owner;
  arena->writer = weir__recorder_writer(history, arena->pool->heap->device, owner ? owner->id : (weir_pool_id){0, 0},
                                        (uint64_t)(uintptr_t)arena->stream);
  if (!arena->writer)
    atomic_fetch_add_explicit(&history->rings.lost, 1, memory_order_relaxed);
  return arena->writer;
}

/* The writer of an arena if its history is recorded. */
static weir__writer *writer_of(weir__arena *arena) {
  weir__recorder *history = atomic_load_explicit(&arena->pool->heap->allocator->history, memory_order_acquire);
  return history && weir__recorder_is_on(history) ? weir__arena_writer(arena, history) : NULL;
}

void weir__trace_arena(weir__arena *arena, weir_trace_action action, uint64_t address, uint64_t bytes, uint32_t stack) {
  weir_allocator *allocator = arena->pool->heap->allocator;
  weir__writer *writer = writer_of(arena);
  uint32_t op_stack = weir__op_stack();
  if (writer)
    weir__writer_write(writer, action, address, bytes, op_stack ? op_stack : stack);
  if (has_listeners(allocator))
    report(arena, action, address, bytes);
}

void weir__trace_freed(weir__arena *arena, const weir__block *block) {
  weir_allocator *allocator = arena->pool->heap->allocator;
  weir__writer *writer = writer_of(arena);
  if (writer)
    weir__writer_write_freed(writer, block->address, block->requested, weir__op_stack(), weir__clock_ticks());
  if (has_listeners(allocator)) {
    report(arena, WEIR_TRACE_FREE_REQUESTED, block->address, block->requested);
    report(arena, WEIR_TRACE_FREE_COMPLETED, block->address, block->requested);
  }
}

/* ---- What is traced ---- */

void weir__update_tracing(weir_allocator *allocator) {
  weir__lock_acquire(&allocator->witness_lock);
  const weir__recorder *history = atomic_load(&allocator->history);
  bool recorded = history && weir__recorder_is_on(history);
  unsigned context = recorded ? weir__rings_rules(&history->rings).context : WEIR_CONTEXT_NONE;
  bool observed = (atomic_load(&allocator->witness) && !atomic_load(&allocator->witnesses_segments)) ||
                  atomic_load(&allocator->trackers) || context == WEIR_CONTEXT_ALL;
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__slow_reason_set(&allocator->heaps[i], WEIR__SLOW_OBSERVED, observed);
    weir__slow_reason_set(&allocator->heaps[i], WEIR__SLOW_STACKS, context != WEIR_CONTEXT_NONE);
    weir__slow_reason_set(&allocator->heaps[i], WEIR__SLOW_TRACED, recorded || observed);
  }
  weir__lock_release(&allocator->witness_lock);
}

/* ---- Ring file data other than entries ---- */

static weir__ring_file *file_of(const weir_allocator *allocator) {
  const weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  return history ? history->file : NULL;
}

void weir__trace_settings(weir_allocator *allocator) {
  weir__ring_file *file = file_of(allocator);
  const weir__settings *settings = atomic_load(&allocator->settings);
  size_t length = file ? weir__settings_format(settings, NULL, 0) : 0;
  char *conf = file ? malloc(length + 1) : NULL;
  if (conf) {
    weir__settings_format(settings, conf, length + 1);
    weir__ring_file_log_settings(file, conf);
  }
  free(conf);
}

void weir__trace_limit(const weir__heap *heap) {
  weir__ring_file *file = file_of(heap->allocator);
  uint64_t limit = heap->accounts.device.limit[WEIR__LIMIT_HARD];
  double fraction = heap->accounts.fraction;
  bool is_fraction = fraction < 1 && limit == (uint64_t)(fraction * (double)heap->total + 0.5);
  if (file)
    weir__ring_file_log_limit(file, heap->device, limit, is_fraction ? fraction : 0);
}

void weir__trace_tag(const weir__heap *heap, const weir__private_pool *pool) {
  weir__ring_file *file = file_of(heap->allocator);
  if (file && pool->tag)
    weir__ring_file_log_tag(file, heap->device, pool->id.first, pool->id.second, pool->tag->name);
}

void weir__trace_taken(weir__arena *arena, const weir__block *block) {
  weir__writer *writer = file_of(arena->pool->heap->allocator) ? writer_of(arena) : NULL;
  if (writer)
    weir__writer_write(writer, WEIR__ACTION_TAKEN, block->address, weir__block_bytes(block), 0);
}

/*
 * Findings, and what the history says about the life of their blocks.
 */
#include <stdlib.h>

#include "alloc/cache/trace.h"
#include "alloc/guard/guard.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/thread.h"

/* ---- The life of a block ---- */

/* Read when the first finding needs it: findings are rare. */
weir__entries weir__guard_read_history(weir_allocator *allocator, int device) {
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  weir__entries read = {NULL, 0};
  uint64_t dropped;
  if (history && device >= 0 && device < history->device_count)
    weir__ring_read(&history->devices[device].ring, UINT64_MAX, &read.all, &read.count, &dropped);
  return read;
}

/* The last allocation at an address up to a time, and the free that followed it; NULL where there is none. */
static const weir__entry *find_alloc(weir__entries read, uint64_t address, uint64_t ticks, const weir__entry **freed) {
  *freed = NULL;
  for (size_t i = read.count; i--;) {
    const weir__entry *entry = &read.all[i];
    if (entry->address != address || entry->time > ticks)
      continue;
    if (entry->action == WEIR_TRACE_FREE_REQUESTED && !*freed)
      *freed = entry;
    if (entry->action == WEIR_TRACE_ALLOC)
      return entry;
  }
  return NULL;
}

void weir__guard_find_life(weir_allocator *allocator, weir_guard_finding *finding, uint64_t ticks) {
  weir__entries read = weir__guard_read_history(allocator, finding->device);
  weir__clock_line line = weir__clock_line_now();
  const weir__entry *freed, *made = find_alloc(read, finding->address, ticks, &freed);
  if (made) {
    finding->alloc_time = weir__clock_unix_us(&line, made->time);
    finding->alloc_stack = made->stack;
    finding->requested = finding->requested ? finding->requested : made->bytes;
    finding->stream = (weir_cu_stream)(uintptr_t)made->stream;
  }
  if (freed) {
    finding->free_time = weir__clock_unix_us(&line, freed->time);
    finding->free_stack = freed->stack;
    finding->requested = finding->requested ? finding->requested : freed->bytes;
    finding->is_freed = 1;
  }
  made = finding->neighbour ? find_alloc(read, finding->neighbour, ticks, &freed) : NULL;
  if (made) {
    finding->neighbour_stack = made->stack;
    finding->neighbour_requested = made->bytes;
  }
  free(read.all);
}

/* ---- Findings ---- */

/* The same bug: found in the same way for blocks of the same origin. Without stacks, of the same block. */
static bool is_same(const weir_guard_finding *a, const weir_guard_finding *b) {
  bool has_stacks = a->alloc_stack && a->alloc_stack == b->alloc_stack;
  bool same_block = has_stacks || (a->alloc_stack == b->alloc_stack && a->address == b->address);
  return a->kind == b->kind && a->device == b->device && same_block && a->free_stack == b->free_stack &&
         a->here_stack == b->here_stack && a->is_freed == b->is_freed;
}

void weir__guard_add(weir_allocator *allocator, weir_guard_finding *finding) {
  weir__guard *guard = weir__guard_of(allocator);
  bool is_new = true;
  finding->size = sizeof *finding;
  finding->count = 1;
  weir__mutex_lock(&guard->lock);
  for (size_t i = 0; i < guard->count && is_new; i++)
    if (is_same(&guard->findings[i], finding)) {
      guard->findings[i].count++;
      is_new = false;
    }
  if (is_new && guard->count < WEIR__GUARD_FINDINGS && WEIR__RESERVE(guard->findings, guard->room, guard->count + 1))
    guard->findings[guard->count++] = *finding;
  weir__mutex_unlock(&guard->lock);
  atomic_fetch_add(&guard->total, 1);
  if (is_new)
    guard->report(allocator, finding);
}

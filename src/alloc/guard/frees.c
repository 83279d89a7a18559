/*
 * Frees that the allocator has refused: what the address is, as exactly as the allocators of the process and the
 * history say.
 */
#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/guard/guard.h"
#include "alloc/ipc/ipc.h"
#include "driver/client.h"

/* Finds the block around an address. A heap whose lock is held is skipped: the call may come from one of its
 * callbacks. */
static bool find_block(weir__heap *heap, uint64_t address, weir_guard_finding *finding) {
  bool is_found = false;
  if (!weir__mutex_trylock(&heap->lock))
    return false;
  const weir__segment *segment = weir__segment_at(heap, address);
  if (segment) {
    weir__arena_lock(segment->arena);
    const weir__block *block = segment->first;
    while (block && address - block->address >= weir__block_bytes(block))
      block = weir__block_next(block);
    if (block && weir__block_is_active(block)) {
      is_found = true;
      finding->kind = block->address == address ? WEIR_GUARD_DOUBLE_FREE : WEIR_GUARD_INTERIOR_FREE;
      finding->address = block->address;
      finding->requested = block->requested;
      finding->is_freed = block->state == WEIR__WAITING;
    }
    weir__arena_unlock(segment->arena);
  }
  weir__mutex_unlock(&heap->lock);
  return is_found;
}

/* The last block of the history that had the address; 0 if there was none. */
static bool find_past_block(weir_allocator *allocator, int device, uint64_t address, weir_guard_finding *finding) {
  weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  weir__entry *entries = NULL;
  size_t count = 0;
  uint64_t dropped;
  bool is_found = false;
  if (!history || device >= history->device_count ||
      !weir__ring_read(&history->devices[device].ring, UINT64_MAX, &entries, &count, &dropped))
    return false;
  for (size_t i = count; i-- && !is_found;)
    if (entries[i].action == WEIR_TRACE_ALLOC && address - entries[i].address < entries[i].bytes) {
      is_found = true;
      finding->kind = entries[i].address == address ? WEIR_GUARD_DOUBLE_FREE : WEIR_GUARD_INTERIOR_FREE;
      finding->address = entries[i].address;
      finding->requested = entries[i].bytes;
      finding->is_freed = 1;
    }
  free(entries);
  return is_found;
}

static void classify(weir_allocator *allocator, uint64_t address, weir_guard_finding *finding) {
  for (int i = 0; i < allocator->heap_count; i++) {
    finding->device = i;
    if (find_block(&allocator->heaps[i], address, finding))
      return;
  }
  finding->device = 0;
  if (weir__clients_own(allocator, address)) {
    finding->kind = WEIR_GUARD_WRONG_ALLOCATOR;
    return;
  }
  if (weir__ipc_owns(allocator, address)) {
    finding->kind = WEIR_GUARD_OTHER_PROCESS;
    return;
  }
  for (int i = 0; i < allocator->heap_count; i++) {
    finding->device = i;
    if (find_past_block(allocator, i, address, finding))
      return;
  }
  finding->device = 0;
}

/* Of the operation, which has none if its block was not guarded. */
static uint32_t stack_here(weir_allocator *allocator) {
  const weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  uint32_t stack = weir__op_stack();
  return stack || !history ? stack : weir__recorder_stack(history, WEIR_CONTEXT_ALL);
}

void weir__guard_refused(const char *caller, weir_allocator *allocator, uint64_t address) {
  weir_guard_finding finding = {
      .kind = WEIR_GUARD_FOREIGN_FREE, .address = address, .here_stack = stack_here(allocator)};
  (void)caller;
  classify(allocator, address, &finding);
  finding.offset = address - finding.address;
  if (finding.requested)
    weir__guard_find_life(allocator, &finding, UINT64_MAX);
  weir__guard_add(allocator, &finding);
}

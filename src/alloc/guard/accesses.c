/*
 * Accesses that a driver reports: which block each was meant for. Those to unmapped memory, under full guard; and reads
 * of bytes that were never written.
 *
 * Of unmapped memory, the software device says what the access was. NVIDIA's driver says only that the context is lost:
 * then the newest blocks are candidates. Both are asked of the history alone, because a fault may come while the heap's
 * lock is held by a thread that waits for the work that faults.
 */
#include <stdio.h>
#include <stdlib.h>

#include "alloc/guard/guard.h"
#include "base/array.h"
#include "base/defined.h"
#include "base/thread.h"
#include "driver/access.h"
#include "driver/call.h"

static weir__mutex list_lock = WEIR__MUTEX_INIT;
static weir__guard *guards; /* guarded by list_lock */

/* ---- The block that an access was meant for ---- */

typedef struct found_block {
  const weir__entry *made; /* its allocation; NULL if none is known */
  uint64_t distance;       /* from the nearest of its bytes; 0 inside */
  bool is_freed;
} found_block;

static uint64_t distance_to(const weir__entry *entry, uint64_t address) {
  if (address < entry->address)
    return entry->address - address;
  return address - entry->address < entry->bytes ? 0 : address - entry->address - entry->bytes + 1;
}

/* Whether the block of allocation `i` was freed later. */
static bool is_freed_after(const weir__entries *read, size_t i) {
  for (size_t k = i + 1; k < read->count; k++)
    if (read->all[k].action == WEIR_TRACE_FREE_REQUESTED && read->all[k].address == read->all[i].address)
      return true;
  return false;
}

/* The newest block that had the address; else the nearest block that lives; else the nearest one. */
static found_block find_block(const weir__entries *read, uint64_t address) {
  found_block best = {.distance = UINT64_MAX, .is_freed = true};
  for (size_t i = read->count; i--;) {
    const weir__entry *entry = &read->all[i];
    if (entry->action != WEIR_TRACE_ALLOC)
      continue;
    uint64_t distance = distance_to(entry, address);
    if (!distance)
      return (found_block){entry, 0, is_freed_after(read, i)};
    if (distance >= best.distance && !best.is_freed)
      continue;
    bool is_freed = is_freed_after(read, i);
    if (!is_freed && best.is_freed ? true : is_freed == best.is_freed && distance < best.distance)
      best = (found_block){entry, distance, is_freed};
  }
  return best;
}

static void report_access(weir_allocator *allocator, const weir__heap *heap, const weir__access *access) {
  weir_guard_finding finding = {.kind = WEIR_GUARD_FAULT,
                                .device = heap->device,
                                .address = access->address,
                                .access = access->is_write ? WEIR_GUARD_WRITE : WEIR_GUARD_READ,
                                .other_stream = access->stream};
  weir__entries read = weir__guard_read_history(allocator, heap->device);
  found_block found = find_block(&read, access->address);
  snprintf(finding.work, sizeof finding.work, "%s", access->name);
  if (found.made) {
    finding.kind = found.distance   ? WEIR_GUARD_OUT_OF_BOUNDS
                   : found.is_freed ? WEIR_GUARD_USE_AFTER_FREE
                                    : WEIR_GUARD_WRONG_DEVICE;
    finding.address = found.made->address;
    finding.requested = found.made->bytes;
    finding.offset = finding.last = access->address - finding.address;
  }
  free(read.all);
  atomic_store(&weir__guard_of(allocator)->has_fault, true);
  weir__guard_find_life(allocator, &finding, UINT64_MAX);
  weir__guard_add(allocator, &finding);
}

static void on_access(const weir__access *access) {
  weir__mutex_lock(&list_lock);
  for (const weir__guard *guard = guards; guard; guard = guard->next)
    for (int i = 0; i < guard->allocator->heap_count; i++)
      if (weir__apart_has(&guard->allocator->heaps[i].apart_blocks, access->address)) {
        report_access(guard->allocator, &guard->allocator->heaps[i], access);
        i = guard->allocator->heap_count;
      }
  weir__mutex_unlock(&list_lock);
}

/* ---- Bytes that were never written ---- */

static void report_undefined(weir_allocator *allocator, int device, const found_block *found,
                             const weir__access *access) {
  uint64_t first = weir__find_undefined(access->address, 1)
                       ? access->address
                       : weir__find_undefined(found->made->address, found->made->bytes);
  weir_guard_finding finding = {.kind = WEIR_GUARD_NEVER_WRITTEN,
                                .device = device,
                                .address = found->made->address,
                                .requested = found->made->bytes,
                                .offset = first - found->made->address,
                                .last = first - found->made->address,
                                .access = WEIR_GUARD_READ,
                                .other_stream = access->stream};
  snprintf(finding.work, sizeof finding.work, "%s", access->name);
  if (!first)
    return; /* a kernel that used others has this pointer too */
  weir__guard_find_life(allocator, &finding, UINT64_MAX);
  weir__guard_add(allocator, &finding);
}

static void on_undefined(const weir__access *access) {
  weir__mutex_lock(&list_lock);
  for (const weir__guard *guard = guards; guard; guard = guard->next)
    for (int i = 0; i < guard->allocator->heap_count; i++) {
      weir__entries read = weir__guard_read_history(guard->allocator, i);
      found_block found = find_block(&read, access->address);
      if (found.made && !found.distance && !found.is_freed)
        report_undefined(guard->allocator, i, &found, access);
      free(read.all);
    }
  weir__mutex_unlock(&list_lock);
}

/* ---- What was destroyed ---- */

static uint32_t stack_here(weir_allocator *allocator) {
  const weir__recorder *history = atomic_load_explicit(&allocator->history, memory_order_acquire);
  return history ? weir__recorder_stack(history, WEIR_CONTEXT_ALL) : 0;
}

static void report_destroyed(weir_allocator *allocator, const char *what, const char *caller, uint64_t handle,
                             uint32_t stack) {
  weir_guard_finding finding = {
      .kind = WEIR_GUARD_DESTROYED, .address = handle, .free_stack = stack, .here_stack = stack_here(allocator)};
  snprintf(finding.work, sizeof finding.work, "%s, in %s", what, caller);
  weir__guard_add(allocator, &finding);
}

/* Objects belong to no allocator: the newest one reports. */
static uint32_t on_destroyed(const char *what, const char *caller, uint64_t handle, uint32_t stack) {
  weir__mutex_lock(&list_lock);
  if (guards && caller)
    report_destroyed(guards->allocator, what, caller, handle, stack);
  else if (guards)
    stack = stack_here(guards->allocator);
  weir__mutex_unlock(&list_lock);
  return stack;
}

void weir__guard_report_orphans(weir_allocator *allocator, weir__guard_heap *of) {
  weir_guard_finding finding = {.kind = WEIR_GUARD_DESTROYED,
                                .device = (int)(of - weir__guard_of(allocator)->heaps),
                                .address = of->orphan.address,
                                .requested = of->orphan.requested,
                                .stream = of->orphan.stream,
                                .other_stream = of->orphan.stream,
                                .here_stack = stack_here(allocator)};
  snprintf(finding.work, sizeof finding.work, "stream of a block, before the block was freed");
  weir__guard_find_life(allocator, &finding, UINT64_MAX);
  weir__guard_add(allocator, &finding);
}

/* ---- A lost context: the candidates ---- */

enum { CANDIDATES = 8 }; /* that live, and as many that were freed */

/* The newest blocks of each kind, those that live first. */
static void find_candidates(weir_allocator *allocator, int device, weir__guard *guard) {
  weir__entries read = weir__guard_read_history(allocator, device);
  size_t of[2] = {0, 0};
  guard->candidates = calloc((size_t)2 * CANDIDATES, sizeof *guard->candidates);
  for (int freed = 0; guard->candidates && freed <= 1; freed++)
    for (size_t i = read.count; i-- && of[freed] < CANDIDATES;) {
      const weir__entry *entry = &read.all[i];
      if (entry->action != WEIR_TRACE_ALLOC || is_freed_after(&read, i) != freed)
        continue;
      weir_guard_finding *to = &guard->candidates[guard->candidate_count++];
      *to = (weir_guard_finding){.size = sizeof *to, .device = device, .address = entry->address, .count = 1};
      weir__guard_find_life(allocator, to, UINT64_MAX);
      to->is_freed = freed;
      of[freed]++;
    }
  free(read.all);
}

static void report_lost(weir__guard *guard, weir_cu_result result) {
  weir_guard_finding finding = {.kind = WEIR_GUARD_FAULT};
  if (atomic_exchange(&guard->has_fault, true))
    return;
  snprintf(finding.work, sizeof finding.work, "%s", weir_cu_result_name(result));
  for (int i = 0; i < guard->allocator->heap_count && !guard->candidate_count; i++) {
    finding.device = i;
    free(guard->candidates);
    find_candidates(guard->allocator, i, guard);
  }
  finding.candidates = guard->candidates;
  finding.candidate_count = guard->candidate_count;
  weir__guard_add(guard->allocator, &finding);
}

static void on_lost(const weir_driver *driver, weir_cu_result result) {
  weir__mutex_lock(&list_lock);
  for (weir__guard *guard = guards; guard; guard = guard->next)
    if (guard->is_full && guard->allocator->driver == driver)
      report_lost(guard, result);
  weir__mutex_unlock(&list_lock);
}

void weir__guard_note_result(const weir__heap *heap, weir_cu_result result) {
  if (result && weir__status_of_result(result) == WEIR_ERROR_DEVICE_FAULT)
    on_lost(heap->allocator->driver, result);
}

/* ---- Beginning and end ---- */

/* Faults are watched for under full guard alone: without it they end the process, as everywhere. The lock is held. */
static void choose_observers(void) {
  bool is_full = false;
  for (const weir__guard *guard = guards; guard; guard = guard->next)
    is_full |= guard->is_full;
  atomic_store(&weir__access_observer, is_full ? on_access : NULL);
  atomic_store(&weir__lost_observer, is_full ? on_lost : NULL);
  atomic_store(&weir__undefined_observer, guards ? on_undefined : NULL);
  atomic_store(&weir__destroyed_observer, guards ? on_destroyed : NULL);
}

static bool is_unlocked(weir_allocator *allocator) {
  bool is = !allocator->is_forked;
  for (int i = 0; i < allocator->heap_count && is; i++) {
    is = weir__mutex_trylock(&allocator->heaps[i].lock);
    if (is)
      weir__mutex_unlock(&allocator->heaps[i].lock);
  }
  return is;
}

/* A program may end without destroying its allocators, and what was found last has not been read then. Locks that are
 * held belong to threads that have ended, or to a parent process. */
static void check_at_exit(void) {
  enum { MOST = 16 };
  weir_allocator *allocators[MOST];
  size_t count = 0;
  if (!weir__mutex_trylock(&list_lock))
    return;
  for (const weir__guard *guard = guards; guard && count < MOST; guard = guard->next)
    if (is_unlocked(guard->allocator))
      allocators[count++] = guard->allocator;
  weir__mutex_unlock(&list_lock);
  for (size_t i = 0; i < count; i++)
    weir__guard_check_all(allocators[i], true);
}

void weir__guard_watch(weir__guard *guard) {
  static bool has_handler;
  weir__mutex_lock(&list_lock);
  if (!has_handler)
    has_handler = !atexit(check_at_exit);
  guard->next = guards;
  guards = guard;
  choose_observers();
  weir__mutex_unlock(&list_lock);
}

void weir__guard_unwatch(weir__guard *guard) {
  weir__mutex_lock(&list_lock);
  weir__guard **at = &guards;
  while (*at && *at != guard)
    at = &(*at)->next;
  if (*at)
    *at = guard->next;
  choose_observers();
  weir__mutex_unlock(&list_lock);
}

/*
 * Slack with a pattern behind each block, freed blocks with the pattern, and their quarantine.
 */
#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/backend_port.h"
#include "alloc/cache/pagemap.h"
#include "alloc/cache/private_pool.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "alloc/guard/guard.h"
#include "base/array.h"
#include "base/thread.h"
#include "driver/call.h"

/* ---- The kernel ---- */

/* Pinned memory has the slots, and the flag behind them. */
static size_t pinned_bytes(void) { return WEIR__GUARD_CHECKS * sizeof(weir__guard_slot) + 64; }

/* Allows the thread calls that a capture forbids, also one that the allocator does not know of; restore with the mode
 * that this returns. */
static int relax(weir_driver *driver) {
  int mode = WEIR_CU_CAPTURE_RELAXED;
  return driver->ThreadExchangeStreamCaptureMode(driver, &mode) ? WEIR_CU_CAPTURE_RELAXED : mode;
}

static void restore(weir_driver *driver, int mode) {
  if (mode != WEIR_CU_CAPTURE_RELAXED)
    driver->ThreadExchangeStreamCaptureMode(driver, &mode);
}

/* A module may be loaded during a capture, but pinned memory cannot be allocated. The heap's context is current. */
static bool prepare(weir__heap *heap) {
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir_driver *driver = heap->allocator->driver;
  void *pinned = NULL;
  if (guard->is_ready || guard->has_failed || atomic_load(&heap->captures))
    return guard->is_ready;
  guard->has_failed = true;
  guard->checks = calloc(WEIR__GUARD_CHECKS, sizeof *guard->checks);
  const char *failed = "calloc";
  weir_cu_result r = WEIR_CU_OUT_OF_MEMORY;
  if (!guard->checks)
    goto failed;
  failed = "cuModuleLoadData";
  if ((r = driver->ModuleLoadData(driver, &guard->module, weir__kernels_ptx)))
    goto free_checks;
  failed = "cuModuleGetFunction";
  if ((r = driver->ModuleGetFunction(driver, &guard->function, guard->module, "weir_guard")))
    goto unload;
  failed = "cuMemHostAlloc";
  if ((r = driver->MemHostAlloc(driver, &pinned, pinned_bytes(),
                                WEIR_CU_MEMHOSTALLOC_PORTABLE | WEIR_CU_MEMHOSTALLOC_DEVICEMAP)))
    goto unload;
  failed = "cuMemHostGetDevicePointer";
  if ((r = driver->MemHostGetDevicePointer(driver, &guard->device, pinned, 0)))
    goto free_pinned;
  memset(pinned, 0, pinned_bytes());
  guard->slots = pinned;
  atomic_store(&guard->flag, (atomic_uint *)(guard->slots + WEIR__GUARD_CHECKS));
  guard->has_failed = false;
  guard->is_ready = true;
  return true;

free_pinned:
  driver->MemFreeHost(driver, pinned);
unload:
  driver->ModuleUnload(driver, guard->module);
free_checks:
  free(guard->checks);
failed:
  guard->checks = NULL;
  weir__log(WEIR_LOG_WARN, "WEIR_GUARD: writes to memory of device %d are not checked: %s failed with result %d",
            heap->device, failed, (int)r);
  return false;
}

/* Fills [start, middle) of a block with the pattern, and checks [middle, end). The heap's lock is held. */
static bool launch(weir__heap *heap, const weir__guarded *of, uint64_t start, uint64_t middle, uint64_t end) {
  /* Of large blocks, both ends and a part of each page count: to write and read all bytes that are freed would take a
   * good part of the time of a training step. */
  const uint64_t LARGE = 16 * WEIR__MIB, ENDS = WEIR__MIB;
  const bool fills_all = middle == end; /* a new block */
  enum { BYTES_PER_BLOCK = 64 * 1024, MAX_BLOCKS = 2048 };
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir_driver *driver = heap->allocator->driver;
  uint64_t number = ++guard->number, index = number % WEIR__GUARD_CHECKS;
  guard->checks[index] = *of;
  guard->checks[index].number = number;
  guard->checks[index].ticks = weir__clock_ticks();
  weir__guard_slot *slot = &guard->slots[index];
  atomic_store(&slot->number, 0);
  slot->first = UINT64_MAX;
  slot->last = slot->count = slot->open = 0;
  weir__guard_params p = {.base = of->address,
                          .start = start,
                          .middle = middle,
                          .end = end,
                          .pattern = WEIR__GUARD_PATTERN,
                          .slot = guard->device + index * sizeof(weir__guard_slot),
                          .flag = guard->device + WEIR__GUARD_CHECKS * sizeof(weir__guard_slot),
                          .number = number,
                          .dense = UINT64_MAX};
  if (!fills_all && of->requested > LARGE) {
    p.dense = ENDS;
    p.sparse = weir__round_up(of->requested, WEIR__UNIT) - ENDS;
  }
  void *params[WEIR__GUARD_PARAMS] = {&p.base, &p.start, &p.middle, &p.end,   &p.pattern,
                                      &p.slot, &p.flag,  &p.number, &p.dense, &p.sparse};
  uint64_t blocks = (end - start) / BYTES_PER_BLOCK + 1;
  weir_cu_result r =
      driver->LaunchKernel(driver, guard->function, (unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS), 1, 1,
                           WEIR__GUARD_THREADS, 1, 1, 0, of->stream, params, NULL);
  weir__guard_note_result(heap, r);
  if (r == WEIR_CU_INVALID_HANDLE) {
    guard->orphan = *of;
    atomic_store(&guard->has_orphan, true);
  }
  return !r;
}

/* The arena's lock is held. */
static weir__guarded describe(const weir__arena *arena, const weir__block *block, weir__guard_moment moment) {
  const weir__block *next = weir__block_next(block);
  return (weir__guarded){.address = block->address,
                         .requested = block->requested,
                         .bytes = weir__block_bytes(block),
                         .neighbour = next && weir__block_is_active(next) ? next->address : 0,
                         .stream = arena->stream,
                         .moment = moment,
                         .is_freed = block->state == WEIR__WAITING};
}

/* Whether the block stands at the end of pages of its own. */
static bool stands_apart(const weir__heap *heap, uint64_t address) {
  return weir__apart_has(&heap->apart_blocks, address);
}

/* Of such a block, what its first page has in front of it, or the last part of that: no fault tells of a write there.
 * */
static weir__guarded front_of(const weir__heap *heap, const weir__guarded *check) {
  enum { MOST = 4096 };
  weir__guarded front = *check;
  uint64_t before = check->address % heap->pages.granularity;
  front.front = before < MOST ? before : MOST;
  front.address -= front.front;
  return front;
}

/* Fills or checks both ends of a block that stands apart. */
static bool launch_ends(weir__heap *heap, const weir__guarded *check, bool fills) {
  weir__guarded front = front_of(heap, check);
  bool is_done = true;
  if (front.front)
    is_done = launch(heap, &front, 0, fills ? front.front : 0, front.front);
  /* Where kernels are functions of the host, a launch that fills nothing says that the block is new. */
  if (check->requested < check->bytes || (fills && weir__driver_can(heap->allocator->driver, WEIR_DRIVER_HOST_KERNELS)))
    is_done &= launch(heap, check, check->requested, fills ? check->bytes : check->requested, check->bytes);
  return is_done;
}

/* A graph may write to all memory of its pool, at any time. */
static bool is_of_graph(const weir__pool *pool) { return pool->owner && pool->owner->pins & WEIR__PIN_GRAPH; }

/* Work in a capture would become part of the graph. The allocator need not know of the capture. */
static bool can_launch(const weir__heap *heap, weir_cu_stream stream) { return !weir__is_in_capture(heap, stream); }

/* ---- What the kernel found ---- */

/* Whether the check whose slot this is has found something; what that is, is known once the kernel has ended. */
static bool is_finding(const weir__guarded *check, const weir__guard_slot *slot) {
  uint64_t number = atomic_load(&slot->number);
  return number && number == check->number;
}

/* Copies and clears the slots that were written to, once their streams have passed. False during a capture. The heap's
 * lock is held, and its context is current. */
static bool take_slots(weir__heap *heap, weir__guarded **checks, weir__guard_slot **slots, size_t *count) {
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  size_t rooms[2] = {0, 0};
  if (atomic_load(&heap->captures))
    return false;
  atomic_store(atomic_load(&guard->flag), 0);
  for (size_t i = 0; i < WEIR__GUARD_CHECKS; i++) {
    if (!is_finding(&guard->checks[i], &guard->slots[i]))
      continue;
    if (!can_launch(heap, guard->checks[i].stream)) {
      atomic_store(atomic_load(&guard->flag), 1); /* later: waiting would end the capture */
      continue;
    }
    weir__wait_for_stream(heap, guard->checks[i].stream); /* other threads of the kernel may still find bytes */
    if (!WEIR__RESERVE(*checks, rooms[0], *count + 1) || !WEIR__RESERVE(*slots, rooms[1], *count + 1))
      return true;
    (*checks)[*count] = guard->checks[i];
    (*slots)[(*count)++] = guard->slots[i];
    atomic_store(&guard->slots[i].number, 0);
  }
  return true;
}

/* A write in front of a block changes the end of the slack of the block before it. */
static bool is_in_front_of_neighbour(const weir__guarded *check, const weir__guard_slot *slot) {
  return check->neighbour && !check->front && slot->last == check->bytes - 1 && slot->first > check->requested;
}

static void add(weir_allocator *allocator, int device, const weir__guarded *check, const weir__guard_slot *slot) {
  weir_guard_finding finding = {.device = device,
                                .address = check->address + check->front,
                                .requested = check->requested,
                                .stream = check->stream,
                                .is_freed = check->is_freed};
  if (slot->open) {
    finding.kind = WEIR_GUARD_STREAM;
    finding.other_stream = (weir_cu_stream)(uintptr_t)slot->open;
    weir__guard_find_life(allocator, &finding, check->ticks);
    weir__guard_add(allocator, &finding);
  }
  if (!slot->count)
    return;
  finding.kind = !check->front && slot->first < check->requested ? WEIR_GUARD_USE_AFTER_FREE : WEIR_GUARD_OUT_OF_BOUNDS;
  finding.other_stream = NULL;
  finding.offset = slot->first - check->front;
  finding.last = slot->last - check->front;
  finding.bytes = slot->count;
  finding.neighbour = check->neighbour;
  if (is_in_front_of_neighbour(check, slot)) {
    finding.address = check->neighbour;
    finding.neighbour = check->address;
    finding.offset = slot->first - check->bytes;
    finding.last = slot->last - check->bytes;
    finding.requested = 0; /* the history has it */
    finding.is_freed = false;
  }
  weir__guard_find_life(allocator, &finding, check->ticks);
  weir__guard_add(allocator, &finding);
}

static void collect(weir__heap *heap) {
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir__guarded *checks = NULL;
  weir__guard_slot *slots = NULL;
  size_t count = 0;
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  if (weir__guard_has_found(guard) && !weir__heap_enter(heap, &previous)) {
    int mode = relax(heap->allocator->driver);
    take_slots(heap, &checks, &slots, &count);
    restore(heap->allocator->driver, mode);
    weir__heap_leave(heap, previous);
  }
  weir__mutex_unlock(&heap->lock);
  for (size_t i = 0; i < count; i++)
    add(heap->allocator, heap->device, &checks[i], &slots[i]);
  free(checks);
  free(slots);
}

/* ---- Quarantine ---- */

/* Waits for the work that may use a block, before its pages are unmapped. False if that fails. */
static bool wait_apart(weir__heap *heap, weir_cu_stream stream) {
  weir_cu_result before = heap->pages.failure;
  heap->pages.failure = WEIR_CU_SUCCESS;
  bool has_waited = weir__wait_for_stream(heap, stream);
  if (!has_waited)
    weir__guard_note_result(heap, heap->pages.failure);
  heap->pages.failure = before;
  return has_waited;
}

static weir__quarantined *oldest(weir__guard_heap *guard) { return &guard->quarantine[guard->first]; }

static void note_oldest(weir__guard_heap *guard) {
  atomic_store(&guard->oldest_ns, guard->count ? oldest(guard)->since_ns : UINT64_MAX);
}

static bool push(weir__guard_heap *guard, weir__block *block) {
  if (guard->count == guard->room) {
    size_t room = guard->room ? 2 * guard->room : 256;
    weir__quarantined *grown = malloc(room * sizeof *grown);
    if (!grown)
      return false;
    for (size_t i = 0; i < guard->count; i++)
      grown[i] = guard->quarantine[(guard->first + i) & (guard->room - 1)];
    free(guard->quarantine);
    guard->quarantine = grown;
    guard->room = room;
    guard->first = 0;
  }
  guard->quarantine[(guard->first + guard->count++) & (guard->room - 1)] =
      (weir__quarantined){block, weir__monotonic_ns()};
  guard->bytes += weir__block_bytes(block);
  note_oldest(guard);
  return true;
}

/* A block that was allocated during a capture has nothing to check. */
static void check_ends(weir__heap *heap, weir__block *block, const weir__guarded *check) {
  if (block->marks & WEIR__MARK_GUARDED)
    launch_ends(heap, check, false);
  weir__block_mark(block, WEIR__MARK_GUARDED, false);
}

/* Makes a block wait until its stream has passed this point. */
static bool wait_with_fence(weir__heap *heap, const weir__arena *arena, weir__block *block) {
  if (!weir__fences_add(&heap->fences, heap->allocator->driver, arena->stream, block))
    return false;
  weir__pending_add(heap, 1);
  weir__block_cold_of(block)->events = 1;
  return true;
}

static bool keep_for_later(weir__heap *heap, weir__guard_heap *of, weir__block *block) {
  if (!push(of, block))
    return false;
  weir__block_cold_of(block)->events = 1;
  heap->quarantined++;
  atomic_store(&of->is_due, true);
  return true;
}

/* The work that used the block has to end: then its pages can be unmapped, and what comes later faults. Where the
 * driver names what faults, it is waited for, so that no later access is missed; elsewhere a fence is enough. In a
 * capture there is neither, so the block stays until it has ended. */
static bool keep_apart(weir__heap *heap, const weir__arena *arena, weir__block *block, const weir__guarded *check) {
  weir__guard_heap *of = weir__guard_heap_of(heap);
  if (is_of_graph(arena->pool))
    return false;
  if (atomic_load(&heap->captures) || !can_launch(heap, arena->stream))
    return keep_for_later(heap, of, block);
  check_ends(heap, block, check);
  if (!weir__driver_can(heap->allocator->driver, WEIR_DRIVER_NAMES_FAULTS) &&
      !weir__stream_is_idle(heap, arena->stream) && wait_with_fence(heap, arena, block))
    return true;
  return !wait_apart(heap, check->stream) && keep_for_later(heap, of, block);
}

static bool keep(weir__heap *heap, weir__arena *arena, weir__block *block) {
  weir__guard *guard = weir__guard_of(heap->allocator);
  weir__guard_heap *of = &guard->heaps[heap->device];
  weir__guarded check = describe(arena, block, WEIR__GUARD_AT_FREE);
  if (block->marks & WEIR__MARK_APART) {
    weir__block_mark(block, WEIR__MARK_APART, false);
    return keep_apart(heap, arena, block, &check);
  }
  weir__block_mark(block, WEIR__MARK_GUARDED, false);
  if (!of->is_ready || is_of_graph(arena->pool) || !can_launch(heap, arena->stream) ||
      !launch(heap, &check, 0, check.requested, check.bytes) || !push(of, block))
    return false;
  weir__block_cold_of(block)->events = 1;
  heap->quarantined++;
  atomic_store(&of->is_due, of->bytes > guard->options.quarantine_bytes && of->count > 1);
  return true;
}

/* Checks the oldest block and makes it free; the pages of one that stands apart go with it. False if it has to stay,
 * because its stream captures. The heap's lock is held, and its context is current. */
static bool release_oldest(weir__heap *heap) {
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir__block *block = oldest(guard)->block;
  weir__arena *arena = weir__block_arena(heap, block);
  if (!can_launch(heap, arena->stream))
    return false;
  weir__arena_lock(arena);
  weir__guarded check = describe(arena, block, WEIR__GUARD_AT_REUSE);
  weir__arena_unlock(arena);
  if (stands_apart(heap, check.address)) {
    if (!is_of_graph(arena->pool))
      check_ends(heap, block, &check);
    if (!wait_apart(heap, check.stream))
      return false;
  } else if (!is_of_graph(arena->pool))
    launch(heap, &check, 0, 0, check.bytes);
  guard->first = (guard->first + 1) & (guard->room - 1);
  guard->count--;
  guard->bytes -= check.bytes;
  note_oldest(guard);
  heap->quarantined--;
  weir__arena_lock(arena);
  weir__block_cold_of(block)->events = 0;
  weir__end_block(heap, arena, block);
  weir__arena_unlock(arena);
  return true;
}

static void release(weir__heap *heap) {
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  while (guard->count && release_oldest(heap))
    continue;
  atomic_store(&guard->is_due, false);
}

/* The newest block stays, whatever its size: memory that is short ends its quarantine. */
static bool is_over(weir__guard_heap *guard, const weir__guard_options *options, uint64_t now_ns) {
  return (guard->bytes > options->quarantine_bytes && guard->count > 1) ||
         now_ns - oldest(guard)->since_ns > options->quarantine_ns;
}

/* Enforces both budgets. */
static void trim(weir__heap *heap, uint64_t now_ns) {
  const weir__guard_options *options = &weir__guard_of(heap->allocator)->options;
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  if (!weir__heap_enter(heap, &previous)) {
    while (guard->count && is_over(guard, options, now_ns) && release_oldest(heap))
      continue;
    weir__heap_leave(heap, previous);
  }
  atomic_store(&guard->is_due, false);
  weir__mutex_unlock(&heap->lock);
}

/* ---- The port ---- */

/* A finding fails one call. */
static weir_status raise(const char *caller, weir_allocator *allocator) {
  weir__guard *guard = weir__guard_of(allocator);
  unsigned long long total = atomic_load(&guard->total), raised = atomic_load(&guard->raised);
  if (!guard->options.is_error || raised >= total || !atomic_compare_exchange_strong(&guard->raised, &raised, total))
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_STATE,
                    "%s: WEIR_GUARD has found misuse of memory (%llu so far); the log names it, and so does "
                    "weir_guard_write",
                    caller, total);
}

static weir_status poll(const char *caller, weir_allocator *allocator) {
  weir__guard *guard = weir__guard_of(allocator);
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__guard_heap *of = &guard->heaps[i];
    uint64_t since = atomic_load_explicit(&of->oldest_ns, memory_order_relaxed);
    uint64_t now = since == UINT64_MAX ? 0 : weir__monotonic_ns();
    if (atomic_load_explicit(&of->is_due, memory_order_relaxed) ||
        (since < now && now - since > guard->options.quarantine_ns))
      trim(&allocator->heaps[i], now);
    if (weir__guard_has_found(of))
      collect(&allocator->heaps[i]);
    if (atomic_exchange(&of->has_orphan, false))
      weir__guard_report_orphans(allocator, of);
  }
  return raise(caller, allocator);
}

/* A new block gets the pattern behind what was requested; with a fill, in front of it too. */
static void fill_new(weir__heap *heap, weir__arena *arena, weir__block *block) {
  const weir__guard_options *options = &weir__guard_of(heap->allocator)->options;
  weir_driver *driver = heap->allocator->driver;
  weir__guarded check = describe(arena, block, WEIR__GUARD_AT_CHECK);
  uint64_t start = options->fill == WEIR__GUARD_FILL_NAN ? 0 : check.requested;
  if (stands_apart(heap, check.address)) {
    if (!launch_ends(heap, &check, true))
      return;
    start = check.requested; /* what is behind has the pattern */
    if (options->fill == WEIR__GUARD_FILL_NAN)
      launch(heap, &check, 0, check.requested, check.requested);
  } else if (!launch(heap, &check, start, check.bytes, check.bytes))
    return;
  if (options->fill >= 0 && options->fill < WEIR__GUARD_FILL_NAN)
    driver->MemsetD8Async(driver, check.address, (unsigned char)options->fill, check.requested, arena->stream);
  weir__block_mark(block, WEIR__MARK_GUARDED, true);
}

static bool chooses(weir__heap *heap) {
  weir__guard *guard = weir__guard_of(heap->allocator);
  if (atomic_load(&heap->captures))
    return false;
  if (guard->options.sample <= 1)
    return true;
  uint64_t number = atomic_fetch_add_explicit(&guard->heaps[heap->device].allocations, 1, memory_order_relaxed);
  return number % guard->options.sample == 0;
}

static void allocated(weir__heap *heap, uint64_t address) {
  const weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir__live_place place;
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  weir__arena *arena = weir__page_map_find(heap->allocator->page_map, address);
  if (arena && !is_of_graph(arena->pool) && !weir__heap_enter(heap, &previous)) {
    int mode = guard->is_ready ? WEIR_CU_CAPTURE_RELAXED : relax(heap->allocator->driver);
    bool is_ready = prepare(heap);
    restore(heap->allocator->driver, mode);
    if (is_ready && can_launch(heap, arena->stream)) {
      weir__arena_lock(arena);
      weir__block *block = weir__live_find(&arena->live, address, &place);
      if (block && block->state == WEIR__ALLOCATED)
        fill_new(heap, arena, block);
      weir__arena_unlock(arena);
    }
    weir__heap_leave(heap, previous);
  }
  weir__mutex_unlock(&heap->lock);
}

/* ---- Checking all ---- */

static void check_arena(weir__heap *heap, weir__arena *arena) {
  if (is_of_graph(arena->pool) || !can_launch(heap, arena->stream))
    return;
  weir__arena_lock(arena);
  for (size_t i = 0; arena->live.buckets && i < (size_t)1 << arena->live.bits; i++)
    for (int slot = 0; slot < WEIR__LIVE_SLOTS; slot++) {
      const weir__live_bucket *bucket = &arena->live.buckets[i];
      const weir__block *block = bucket->tags[slot] ? bucket->blocks[slot] : NULL;
      if (!block || block->state != WEIR__ALLOCATED || !(block->marks & WEIR__MARK_GUARDED) ||
          block->marks & WEIR__MARK_ASLEEP)
        continue;
      weir__guarded check = describe(arena, block, WEIR__GUARD_AT_CHECK);
      if (stands_apart(heap, check.address))
        launch_ends(heap, &check, false);
      else
        launch(heap, &check, check.requested, check.requested, check.bytes);
    }
  weir__arena_unlock(arena);
}

static void check_quarantine(weir__heap *heap) {
  weir__guard_heap *guard = weir__guard_heap_of(heap);
  for (size_t i = 0; i < guard->count; i++) {
    weir__block *block = guard->quarantine[(guard->first + i) & (guard->room - 1)].block;
    weir__arena *arena = weir__block_arena(heap, block);
    if (is_of_graph(arena->pool) || !can_launch(heap, arena->stream))
      continue;
    weir__arena_lock(arena);
    weir__guarded check = describe(arena, block, WEIR__GUARD_AT_CHECK);
    weir__arena_unlock(arena);
    if (!stands_apart(heap, check.address))
      launch(heap, &check, 0, 0, check.bytes);
  }
}

static void check_pools(weir__heap *heap, weir__pool *pools, bool wait) {
  for (int i = 0; i < 2; i++)
    for (weir__arena *arena = weir__arena_first(&pools[i]); arena; arena = weir__arena_after(arena))
      if (wait)
        weir__wait_for_stream(heap, arena->stream);
      else
        check_arena(heap, arena);
}

static void check_heap(weir__heap *heap, bool wait) {
  const weir__guard_heap *guard = weir__guard_heap_of(heap);
  weir_cu_context previous;
  weir__mutex_lock(&heap->lock);
  if (guard->is_ready && !weir__heap_enter(heap, &previous)) {
    check_quarantine(heap);
    for (int pass = 0; pass <= wait; pass++) {
      check_pools(heap, heap->pools, pass);
      for (weir__private_pool *pool = heap->private_pools; pool; pool = pool->next)
        check_pools(heap, pool->pools, pass);
    }
    weir__heap_leave(heap, previous);
  }
  weir__mutex_unlock(&heap->lock);
}

void weir__guard_check_all(weir_allocator *allocator, bool wait) {
  weir__guard *guard = weir__guard_of(allocator);
  for (int i = 0; i < allocator->heap_count; i++) {
    check_heap(&allocator->heaps[i], wait);
    if (wait && weir__guard_has_found(&guard->heaps[i]))
      collect(&allocator->heaps[i]);
  }
}

static void step(weir_allocator *allocator) { weir__guard_check_all(allocator, false); }

/* Blocks in quarantine are freed with their segments. */
static void end(weir_allocator *allocator) {
  weir__guard *guard = weir__guard_of(allocator);
  weir_driver *driver = allocator->driver;
  weir_cu_context previous;
  weir__guard_check_all(allocator, true);
  for (int i = 0; i < allocator->heap_count; i++) {
    weir__heap *heap = &allocator->heaps[i];
    weir__guard_heap *of = &guard->heaps[i];
    if (of->is_ready && !weir__heap_enter(heap, &previous)) {
      driver->CtxSynchronize(driver);
      driver->MemFreeHost(driver, of->slots);
      driver->ModuleUnload(driver, of->module);
      weir__heap_leave(heap, previous);
    }
    free(of->checks);
    free(of->quarantine);
  }
  weir__guard_unwatch(guard);
  weir__mutex_destroy(&guard->lock);
  free(guard->findings);
  free(guard->candidates);
  free(guard);
  allocator->guard = NULL;
}

const weir__guard_calls weir__guard_light = {.poll = poll,
                                             .chooses = chooses,
                                             .allocated = allocated,
                                             .keep = keep,
                                             .refused = weir__guard_refused,
                                             .release = release,
                                             .step = step,
                                             .end = end};

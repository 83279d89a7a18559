/*
 * Replay of a recorded history.
 *
 * What a file tells, and how it is read here:
 * - The segments that an allocation asks for, and those that are given back for it, stand before its alloc entry.
 * - A free_requested that is followed by its free_completed at once was an ordinary free. One that is not was waiting for
 *   another stream: the replay lets a stream of its own use the block, and holds that stream until the free_completed.
 * - The program's own calls of empty_cache are not recorded. Segments that go back, where the allocator has no reason to give
 *   any back for the next allocation, come from such a call, and it is made then.
 * - Up to 2.11 an entry does not name its private pool. The segment list at the end does; a segment that was given back
 *   before belonged to the default pool.
 */
#include "offline/replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/heap.h"
#include "weir/pool.h"

/* Streams that the replay makes up, one for each block that waits. No driver's stream lies there. */
#define HELD_BASE (1ull << 60)
static const uint32_t none = UINT32_MAX;

typedef struct plan_entry {
  uint32_t pool;  /* alloc: in the snapshot's list */
  uint32_t block; /* alloc, free: which allocation it is about; `none`: not known here */
} plan_entry;

typedef struct replay {
  const weir__snapshot *snapshot;
  const weir__snapshot_event *events;
  size_t count;
  plan_entry *plan; /* for each event */
  bool check;
  weir_driver *driver;
  weir_allocator *allocator;
  weir__heap *heap;
  weir__private_pool **pools; /* the allocator's, for each of the snapshot's */
  void **blocks;              /* where each allocation is, unchecked */
  bool *held;                 /* allocations that wait for another stream */
  size_t block_count;
  size_t at;       /* the event under way */
  size_t expected; /* checked: the next segment event that the allocator has to match */
  weir__replay_report *report;
} replay;

static bool is_segment_event(const weir__snapshot_event *event) {
  return event->action >= WEIR__ACTION_SEGMENT_ALLOC && event->action <= WEIR__ACTION_SEGMENT_UNMAP;
}

static bool is_request(const weir__snapshot_event *event) {
  return event->action == WEIR__ACTION_ALLOC || event->action == WEIR__ACTION_OOM;
}

/* ---- Which pool, and which allocation ---- */

/* Backwards through the history: a fixed segment that is freed later is marked, up to where it was made. */
static bool plan_pools(replay *r, const weir__snapshot_device *device) {
  weir__rangemap gone = {0}, at_end = {0};
  static char mark;
  bool ok = true;
  for (size_t i = 0; i < device->segment_count && ok; i++)
    ok = weir__rangemap_insert(&at_end, device->segments[i].address, device->segments[i].size,
                               (void *)&device->segments[i]);
  for (size_t i = r->count; i-- > 0 && ok;) {
    const weir__snapshot_event *e = &r->events[i];
    r->plan[i] = (plan_entry){0, none};
    if (e->action == WEIR__ACTION_SEGMENT_FREE)
      ok = weir__rangemap_insert(&gone, e->address, e->size, &mark) ||
           weir__rangemap_overlap(&gone, e->address, e->size, NULL, NULL);
    else if (e->action == WEIR__ACTION_SEGMENT_ALLOC)
      weir__rangemap_remove(&gone, e->address);
    else if (e->action == WEIR__ACTION_ALLOC) {
      if (e->pool != WEIR__SNAPSHOT_NO_POOL)
        r->plan[i].pool = e->pool;
      else if (!weir__rangemap_find(&gone, e->address, NULL, NULL)) {
        const weir__snapshot_segment *segment = weir__rangemap_find(&at_end, e->address, NULL, NULL);
        if (segment)
          r->plan[i].pool = segment->pool;
      }
    }
  }
  weir__rangemap_clear(&gone);
  weir__rangemap_clear(&at_end);
  return ok;
}

/* Numbers the allocations, so that a free finds its own without a search while the clock runs. */
static bool plan_blocks(replay *r) {
  size_t room = 64;
  while (room < 2 * r->count)
    room *= 2;
  struct {
    uint64_t address;
    uint32_t block;
  } *table = calloc(room, sizeof *table);
  if (!table)
    return false;
  for (size_t i = 0; i < r->count; i++) {
    const weir__snapshot_event *e = &r->events[i];
    if (e->action != WEIR__ACTION_ALLOC && e->action != WEIR__ACTION_FREE_REQUESTED &&
        e->action != WEIR__ACTION_FREE_COMPLETED)
      continue;
    size_t slot = (size_t)((e->address >> 9) * 0x9e3779b97f4a7c15u >> 20) & (room - 1);
    while (table[slot].address && table[slot].address != e->address)
      slot = (slot + 1) & (room - 1);
    if (e->action == WEIR__ACTION_ALLOC) {
      table[slot].address = e->address;
      table[slot].block = (uint32_t)r->block_count++;
      r->plan[i].block = table[slot].block;
    } else
      r->plan[i].block = table[slot].address ? table[slot].block : none;
  }
  free(table);
  r->blocks = calloc(r->block_count + 1, sizeof *r->blocks);
  r->held = calloc(r->block_count + 1, sizeof *r->held);
  return r->blocks && r->held;
}

/* ---- Comparing ---- */

static void differs(replay *r, size_t event, const char *format, ...) WEIR_PRINTF(3, 4);
static void differs(replay *r, size_t event, const char *format, ...) {
  if (r->report->differences++ >= WEIR__REPLAY_SHOWN)
    return;
  char *text = r->report->shown[r->report->differences - 1];
  int length = snprintf(text, WEIR__REPLAY_TEXT, "event %zu: ", event);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + length, WEIR__REPLAY_TEXT - (size_t)length, format, arguments);
  va_end(arguments);
}

/* The next segment event from `expected` on, not behind the request that is under way. */
static const weir__snapshot_event *next_segment(replay *r) {
  while (r->expected < r->count && !is_segment_event(&r->events[r->expected])) {
    if (r->expected > r->at && is_request(&r->events[r->expected]))
      return NULL;
    r->expected++;
  }
  return r->expected < r->count ? &r->events[r->expected] : NULL;
}

/* Where the next new segment is: the recorded address. */
static weir_cu_deviceptr place(void *context, weir_driver_call call, unsigned long long bytes) {
  (void)call;
  (void)bytes;
  replay *r = context;
  for (size_t i = r->expected; i < r->count; i++) {
    if (r->events[i].action == WEIR__ACTION_SEGMENT_ALLOC || r->events[i].action == WEIR__ACTION_SEGMENT_MAP)
      return r->events[i].address;
    if (i > r->at && is_request(&r->events[i]))
      break;
  }
  return 0;
}

static void compare(void *context, const weir_trace_entry *entry) {
  replay *r = context;
  static const uint8_t actions[] = {[WEIR_TRACE_SEGMENT_ALLOC] = WEIR__ACTION_SEGMENT_ALLOC,
                                    [WEIR_TRACE_SEGMENT_FREE] = WEIR__ACTION_SEGMENT_FREE,
                                    [WEIR_TRACE_SEGMENT_MAP] = WEIR__ACTION_SEGMENT_MAP,
                                    [WEIR_TRACE_SEGMENT_UNMAP] = WEIR__ACTION_SEGMENT_UNMAP};
  if (entry->action < WEIR_TRACE_SEGMENT_ALLOC || entry->action > WEIR_TRACE_SEGMENT_UNMAP)
    return;
  uint8_t action = actions[entry->action];
  const weir__snapshot_event *e = next_segment(r);
  if (!e) {
    differs(r, r->at, "%s of %llu bytes, the file has none", weir__snapshot_action_name(action),
            (unsigned long long)entry->bytes);
    return;
  }
  if (e->action != action || e->address != entry->address || e->size != entry->bytes)
    differs(r, r->expected, "%s of %llu bytes at 0x%llx, the file has %s of %llu bytes at 0x%llx",
            weir__snapshot_action_name(action), (unsigned long long)entry->bytes, (unsigned long long)entry->address,
            weir__snapshot_action_name(e->action), (unsigned long long)e->size, (unsigned long long)e->address);
  r->expected++;
}

static int is_done(void *context, weir_cu_stream stream) {
  const replay *r = context;
  uintptr_t value = (uintptr_t)stream;
  return value < HELD_BASE || !r->held[value - HELD_BASE];
}

/* ---- Events ---- */

static weir__private_pool *pool_of(replay *r, uint32_t pool) {
  if (!pool)
    return NULL;
  if (!r->pools[pool]) {
    const int64_t *id = r->snapshot->pools[pool].id;
    weir_pool_id wanted = {(uint64_t)id[0], (uint64_t)id[1]};
    if (weir_pool_create(r->allocator, r->heap->device, wanted, NULL))
      return NULL;
    r->pools[pool] = weir__pool_find(r->heap, wanted);
  }
  return r->pools[pool];
}

static weir_cu_stream stream_of(const replay *r, const weir__snapshot_event *event) {
  return (weir_cu_stream)(uintptr_t)r->snapshot->streams[event->stream];
}

static void request(replay *r, const weir__snapshot_event *event, const plan_entry *plan) {
  void *pointer = NULL;
  weir_status status =
      weir__alloc("replay", r->heap, pool_of(r, plan->pool), event->size, stream_of(r, event), &pointer);
  bool oom = event->action == WEIR__ACTION_OOM;
  if (status) {
    if (!r->report->failures++)
      r->report->first_failure = r->at;
    if (r->check && !(oom && status == WEIR_ERROR_OUT_OF_MEMORY))
      differs(r, r->at, "a request of %llu bytes failed, it did not in the file", (unsigned long long)event->size);
    return;
  }
  if (oom) {
    if (r->check)
      differs(r, r->at, "a request of %llu bytes succeeded, it failed in the file", (unsigned long long)event->size);
    weir_allocator_free(r->allocator, pointer); /* whoever asked did not get it */
    return;
  }
  r->report->allocations++;
  r->blocks[plan->block] = pointer;
  if (!r->check)
    return;
  if ((uint64_t)pointer != event->address)
    differs(r, r->at, "%llu bytes at 0x%llx, in the file at 0x%llx", (unsigned long long)event->size,
            (unsigned long long)(uintptr_t)pointer, (unsigned long long)event->address);
  const weir__snapshot_event *missed;
  while (r->expected < r->at && (missed = next_segment(r)) && r->expected < r->at) {
    differs(r, r->expected, "the file has %s of %llu bytes, the allocator made none",
            weir__snapshot_action_name(missed->action), (unsigned long long)missed->size);
    r->expected++;
  }
}

static void let_go(replay *r, const weir__snapshot_event *event, const plan_entry *plan) {
  if (plan->block == none)
    return; /* it was allocated before the recording began */
  void *pointer = r->blocks[plan->block];
  if (!pointer)
    return; /* its allocation failed here */
  const weir__snapshot_event *next = event + 1;
  bool at_once = r->at + 1 < r->count && next->action == WEIR__ACTION_FREE_COMPLETED && next->address == event->address;
  if (!at_once) {
    r->held[plan->block] = true;
    weir_allocator_record_stream(r->allocator, pointer, (weir_cu_stream)(uintptr_t)(HELD_BASE + plan->block));
  }
  if (weir_allocator_free(r->allocator, pointer))
    differs(r, r->at, "0x%llx could not be freed", (unsigned long long)event->address);
  r->blocks[plan->block] = NULL;
}

/* Whether the allocator would give memory back by itself to serve the request: it has no block, and is over a limit. */
static bool would_release(replay *r, const weir__snapshot_event *event, const plan_entry *plan) {
  const weir__settings *settings = weir__settings_of(r->heap);
  uint64_t bytes = weir__round_bytes(settings, event->size);
  weir__private_pool *owner = pool_of(r, plan->pool);
  weir__pool *pool = bytes <= WEIR__SMALL_MAX ? owner ? &owner->small : &r->heap->small
                     : owner                  ? &owner->large
                                              : &r->heap->large;
  weir__arena *arena = weir__arena_get(pool, stream_of(r, event));
  weir__block *block = arena ? weir__arena_take(arena, settings, bytes, false) : NULL;
  if (block) {
    weir__index_insert(&arena->free, block);
    return false;
  }
  if (!r->heap->has_limit)
    return false;
  uint64_t collect_from = (uint64_t)(settings->garbage_collection_threshold * (double)r->heap->limit);
  return r->heap->reserved + weir__segment_bytes(settings, bytes) > r->heap->limit ||
         (settings->garbage_collection_threshold > 0 && r->heap->reserved > collect_from);
}

static void given_back(replay *r) {
  if (r->check && r->expected > r->at)
    return; /* the allocator has done it already */
  size_t next = r->at;
  while (next < r->count &&
         (is_segment_event(&r->events[next]) || r->events[next].action == WEIR__ACTION_FREE_COMPLETED))
    next++;
  if (next < r->count && is_request(&r->events[next]) && would_release(r, &r->events[next], &r->plan[next]))
    return;
  if (r->check || r->at == 0 || !is_segment_event(&r->events[r->at - 1]))
    weir_allocator_empty_cache(r->allocator);
}

static void run(replay *r) {
  for (r->at = 0; r->at < r->count; r->at++) {
    const weir__snapshot_event *event = &r->events[r->at];
    const plan_entry *plan = &r->plan[r->at];
    switch (event->action) {
    case WEIR__ACTION_ALLOC:
    case WEIR__ACTION_OOM:
      request(r, event, plan);
      break;
    case WEIR__ACTION_FREE_REQUESTED:
      let_go(r, event, plan);
      break;
    case WEIR__ACTION_FREE_COMPLETED:
      if (plan->block != none)
        r->held[plan->block] = false;
      break;
    case WEIR__ACTION_SEGMENT_FREE:
    case WEIR__ACTION_SEGMENT_UNMAP:
      given_back(r);
      break;
    default:
      break;
    }
  }
}

/* ---- The limit, when nobody gave it ---- */

/* From what the file shows: as much as was ever reserved was allowed, and where memory went back for a request that would
 * have gone beyond that, a limit was the reason. With collection by age, the limit is told from where collection did not
 * begin yet. UINT64_MAX: nothing speaks for a limit. */
static uint64_t infer_limit(const replay *r, const weir__settings *settings) {
  uint64_t reserved = 0, most = 0, quiet = 0;
  bool failed = false, collected = false;
  for (size_t i = 0; i < r->count; i++) {
    const weir__snapshot_event *e = &r->events[i];
    if (e->action == WEIR__ACTION_SEGMENT_ALLOC || e->action == WEIR__ACTION_SEGMENT_MAP) {
      bool after_release = i > 0 && (r->events[i - 1].action == WEIR__ACTION_SEGMENT_FREE ||
                                     r->events[i - 1].action == WEIR__ACTION_SEGMENT_UNMAP);
      if (!after_release && reserved > quiet)
        quiet = reserved;
      collected |= after_release;
      reserved += e->size;
      if (reserved > most)
        most = reserved;
    } else if (e->action == WEIR__ACTION_SEGMENT_FREE || e->action == WEIR__ACTION_SEGMENT_UNMAP)
      reserved -= e->size < reserved ? e->size : reserved;
    else if (e->action == WEIR__ACTION_OOM)
      failed = true;
  }
  if (settings->garbage_collection_threshold > 0 && collected) {
    uint64_t limit = (uint64_t)((double)quiet / settings->garbage_collection_threshold) + 1;
    return limit > most ? limit : most;
  }
  if (failed)
    return most;
  reserved = 0;
  uint64_t before_release = 0;
  for (size_t i = 0; i < r->count; i++) {
    const weir__snapshot_event *e = &r->events[i];
    if (e->action == WEIR__ACTION_SEGMENT_FREE || e->action == WEIR__ACTION_SEGMENT_UNMAP) {
      if (i == 0 || !is_segment_event(&r->events[i - 1]))
        before_release = reserved;
      reserved -= e->size < reserved ? e->size : reserved;
    } else if (e->action == WEIR__ACTION_SEGMENT_ALLOC || e->action == WEIR__ACTION_SEGMENT_MAP) {
      if (before_release + e->size > most && before_release)
        return most;
      reserved += e->size;
      before_release = 0;
    } else if (is_request(e))
      before_release = 0;
  }
  return UINT64_MAX;
}

/* A device's memory that is large enough for all that the file shows, and not so large that the address space of one
 * expandable segment would run into the next. */
static uint64_t guess_memory(const replay *r) {
  uint64_t reserved = 0, most = 4ull << 30;
  for (size_t i = 0; i < r->count; i++) {
    const weir__snapshot_event *e = &r->events[i];
    if (e->action == WEIR__ACTION_SEGMENT_ALLOC || e->action == WEIR__ACTION_SEGMENT_MAP)
      reserved += e->size;
    else if (e->action == WEIR__ACTION_SEGMENT_FREE || e->action == WEIR__ACTION_SEGMENT_UNMAP)
      reserved -= e->size < reserved ? e->size : reserved;
    if (reserved > most)
      most = reserved;
  }
  return 2 * most;
}

/* ---- The whole ---- */

static int64_t setting_int(const weir__snapshot *s, const char *key, const char *sub, int64_t otherwise) {
  const weir__snapshot_setting *setting = weir__snapshot_find_setting(s, key, sub);
  return setting && setting->kind <= WEIR__SETTING_FLOAT ? (int64_t)setting->real : otherwise;
}

/* The recorded settings: the numbers, since a program may have changed them after the text was read. */
static void recorded_settings(const weir__snapshot *s, weir__settings *settings) {
  weir__settings_default(settings);
  int64_t split = setting_int(s, "max_split_size", NULL, -1);
  if (split >= 0)
    settings->max_split_size = (uint64_t)split;
  const weir__snapshot_setting *gc = weir__snapshot_find_setting(s, "garbage_collection_threshold", NULL);
  if (gc)
    settings->garbage_collection_threshold = gc->real;
  settings->expandable_segments = setting_int(s, "expandable_segments", NULL, 0) != 0;
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++) {
    char megabytes[16];
    snprintf(megabytes, sizeof megabytes, "%d", 1 << i);
    int64_t divisions = setting_int(s, "roundup_power2_divisions", megabytes, 0);
    settings->roundup_divisions[i] = divisions > 0 ? (uint8_t)(__builtin_ctzll((uint64_t)divisions) + 1) : 0;
  }
}

static weir_status set_up(replay *r, const weir__replay_options *options, uint64_t memory) {
  weir_ledger_options ledger;
  weir_ledger_options_init(&ledger);
  ledger.bytes = memory;
  ledger.place = r->check ? place : NULL;
  ledger.place_context = r;
  ledger.is_done = is_done;
  ledger.is_done_context = r;
  weir_status status = weir_driver_open_ledger(&ledger, &r->driver);
  if (status)
    return status;
  r->driver->Init(r->driver, 0);
  weir_allocator_options allocator;
  weir_allocator_options_init(&allocator);
  allocator.conf = options->conf && !r->check ? options->conf : "";
  status = weir_allocator_create(r->driver, &allocator, &r->allocator);
  if (status)
    return status;
  r->heap = &r->allocator->heaps[0];
  if (!options->conf || r->check) {
    weir__settings *settings = (weir__settings *)weir__settings_of(r->heap); /* nobody reads them yet */
    recorded_settings(r->snapshot, settings);
  }
  return r->check ? weir_allocator_attach_tracker(r->allocator, compare, r) : WEIR_OK;
}

static void set_limit(replay *r, const weir__replay_options *options, weir__replay_report *report) {
  uint64_t limit = UINT64_MAX;
  if (options->memory && options->fraction > 0)
    limit = (uint64_t)(options->fraction * (double)options->memory + 0.5);
  else if (!options->memory) {
    limit = infer_limit(r, weir__settings_of(r->heap));
    report->limit_is_inferred = limit != UINT64_MAX;
  }
  report->limit = limit;
  if (limit == UINT64_MAX)
    return;
  r->heap->limit = limit;
  r->heap->has_limit = true;
}

weir_status weir__replay(const weir__snapshot *snapshot, const weir__replay_options *options,
                         weir__replay_report *report) {
  *report = (weir__replay_report){.stats = {.size = sizeof report->stats}};
  if (options->device < 0 || (size_t)options->device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "replay: device %d, the file has %zu", options->device,
                      snapshot->device_count);
  const weir__snapshot_device *device = &snapshot->devices[options->device];
  if (!device->event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "replay: the file has no history of device %d", options->device);
  replay r = {.snapshot = snapshot,
              .events = device->events,
              .count = device->event_count,
              .check = options->check,
              .report = report};
  r.plan = malloc(r.count * sizeof *r.plan);
  r.pools = calloc(snapshot->pool_count + 1, sizeof *r.pools);
  weir_status status = WEIR_OK;
  if (!r.plan || !r.pools || !plan_pools(&r, device) || !plan_blocks(&r))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "replay: no host memory");
  uint64_t memory = options->memory ? options->memory : guess_memory(&r);
  if (!status)
    status = set_up(&r, options, memory);
  if (!status) {
    set_limit(&r, options, report);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run(&r);
    clock_gettime(CLOCK_MONOTONIC, &end);
    report->seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    report->events = r.count;
    weir_allocator_get_stats(r.allocator, 0, &report->stats);
  }
  weir_allocator_destroy(r.allocator);
  weir_driver_close(r.driver);
  free(r.plan);
  free(r.pools);
  free(r.blocks);
  free(r.held);
  return status;
}

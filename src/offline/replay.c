/*
 * Replay of a recorded history: see offline/replay_plan.h for how a file is read.
 *
 * A block that waits for another stream is used by a stream that the replay makes up, and that is held until the file says
 * that the block is free.
 *
 * A file does not say why memory went back, nor which limit there was. Where more than one answer is possible, a checked
 * replay tries them: it begins anew with another answer for the last release before the first difference, and keeps the one
 * with which it gets furthest. What is compared is always one whole run of the real allocator.
 */
#include "offline/replay.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/heap.h"
#include "offline/replay_plan.h"
#include "weir/pool.h"

/* Streams that the replay makes up, one for each block that waits. No driver's stream lies there. */
#define HELD_BASE (1ull << 60)

/* So often a checked replay begins anew, at most. */
enum { MOST_RUNS = 64 };

typedef struct replay {
  const weir__replay_options *options;
  weir__plan plan;
  const weir__snapshot_event *events; /* the plan's */
  size_t count;
  bool check;
  bool stops; /* at the first difference */
  weir_driver *driver;
  weir_allocator *allocator;
  weir__heap *heap;
  weir__private_pool **pools; /* the allocator's, for each of the snapshot's */
  void **blocks;              /* where each allocation is, while it is in use */
  bool *held;                 /* allocations that wait for another stream */
  size_t at;                  /* the event under way */
  size_t expected;            /* checked: the next segment event that the allocator has to match */
  size_t release;             /* the next of the plan's releases */
  bool grew;                  /* checked: the request under way got memory from the driver */
  weir__replay_report *report;
} replay;

/* ---- Comparing ---- */

static void differs(replay *r, size_t event, const char *format, ...) WEIR_PRINTF(3, 4);
static void differs(replay *r, size_t event, const char *format, ...) {
  if (!r->report->differences)
    r->report->first_difference = r->at;
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
  while (r->expected < r->count && !weir__is_segment_event(&r->events[r->expected])) {
    if (r->expected > r->at && weir__is_request(&r->events[r->expected]))
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
    if (weir__is_growth(&r->events[i]))
      return r->events[i].address;
    if (i > r->at && weir__is_request(&r->events[i]))
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
  r->grew |= entry->action == WEIR_TRACE_SEGMENT_ALLOC || entry->action == WEIR_TRACE_SEGMENT_MAP;
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

/* What the file has before the event under way, and the allocator did not do. */
static void compare_missed(replay *r) {
  const weir__snapshot_event *missed;
  while (r->expected < r->at && (missed = next_segment(r)) && r->expected < r->at) {
    differs(r, r->expected, "the file has %s of %llu bytes, the allocator made none",
            weir__snapshot_action_name(missed->action), (unsigned long long)missed->size);
    r->expected++;
  }
}

static int is_done(void *context, weir_cu_stream stream) {
  const replay *r = context;
  uintptr_t value = (uintptr_t)stream;
  return value < HELD_BASE || value - HELD_BASE >= r->plan.block_count || !r->held[value - HELD_BASE];
}

/* ---- Events ---- */

static weir__private_pool *pool_of(replay *r, uint32_t pool) {
  if (!pool)
    return NULL;
  if (!r->pools[pool]) {
    const int64_t *id = r->plan.snapshot->pools[pool].id;
    weir_pool_id wanted = {(uint64_t)id[0], (uint64_t)id[1]};
    if (weir_pool_create(r->allocator, r->heap->device, wanted, NULL))
      return NULL;
    r->pools[pool] = weir__pool_find(r->heap, wanted);
  }
  return r->pools[pool];
}

/* The allocator asks no event while a capture is under way; what the file has as free by then was asked before. */
static void poll_events(weir__heap *heap, weir_cu_stream stream) {
  weir_cu_context previous;
  pthread_mutex_lock(&heap->lock);
  if (!weir__heap_enter(heap, &previous)) {
    weir__poll_events(heap, stream);
    weir__heap_leave(heap, previous);
  }
  pthread_mutex_unlock(&heap->lock);
}

static weir_status ask(replay *r, const weir__snapshot_event *event, void **pointer) {
  uint32_t pool = r->plan.entries[r->at].pool;
  weir_cu_stream stream = (weir_cu_stream)(uintptr_t)r->plan.snapshot->streams[event->stream];
  if (event->size >= WEIR__MOST_BYTES)
    return WEIR_ERROR_OUT_OF_MEMORY;
  if (!pool)
    return weir__alloc("replay", r->heap, NULL, event->size, stream, pointer);
  bool is_capture = weir__plan_is_capture(&r->plan, r->at);
  if (is_capture && r->heap->pending)
    poll_events(r->heap, stream);
  atomic_store(&r->heap->captures, is_capture);
  weir_status status = weir__alloc("replay", r->heap, pool_of(r, pool), event->size, stream, pointer);
  atomic_store(&r->heap->captures, 0);
  return status;
}

static void request(replay *r, const weir__snapshot_event *event) {
  void *pointer = NULL;
  r->grew = false;
  weir_status status = ask(r, event, &pointer);
  bool oom = event->action == WEIR__ACTION_OOM;
  if (status) {
    if (!r->report->failures++)
      r->report->first_failure = r->at;
    if (r->check && !(oom && status == WEIR_ERROR_OUT_OF_MEMORY))
      differs(r, r->at, "a request of %llu bytes failed, it did not in the file", (unsigned long long)event->size);
  } else if (oom) {
    /* PyTorch does not look for a block again after it has waited for other streams. */
    if (r->check && !r->grew && weir__plan_waited(&r->plan, r->at))
      r->report->rescued++;
    else if (r->check)
      differs(r, r->at, "a request of %llu bytes succeeded, it failed in the file", (unsigned long long)event->size);
    weir_allocator_free(r->allocator, pointer); /* whoever asked did not get it */
  } else {
    r->report->allocations++;
    r->blocks[r->plan.entries[r->at].block] = pointer;
    if (r->check && (uint64_t)pointer != event->address)
      differs(r, r->at, "%llu bytes at 0x%llx, in the file at 0x%llx", (unsigned long long)event->size,
              (unsigned long long)(uintptr_t)pointer, (unsigned long long)event->address);
  }
  if (r->check)
    compare_missed(r);
}

static void let_go(replay *r, const weir__snapshot_event *event) {
  uint32_t block = r->plan.entries[r->at].block;
  if (block == WEIR__NO_BLOCK || !r->blocks[block])
    return; /* it was allocated before the recording began, or could not be here */
  const weir__snapshot_event *next = event + 1;
  bool at_once = r->at + 1 < r->count && next->action == WEIR__ACTION_FREE_COMPLETED && next->address == event->address;
  if (!at_once) {
    r->held[block] = true;
    weir_allocator_record_stream(r->allocator, r->blocks[block], (weir_cu_stream)(uintptr_t)(HELD_BASE + block));
  }
  if (weir_allocator_free(r->allocator, r->blocks[block]))
    differs(r, r->at, "0x%llx could not be freed", (unsigned long long)event->address);
  r->blocks[block] = NULL;
}

static void complete(replay *r, size_t event) {
  uint32_t block = r->plan.entries[event].block;
  if (block != WEIR__NO_BLOCK)
    r->held[block] = false;
}

/* Memory goes back, up to the request that follows. Blocks that became free meanwhile did so because the allocator waited for
 * them: they are held until the request is served. */
static void run_release(replay *r, const weir__plan_release *release) {
  if (release->cause == WEIR__RELEASED_BY_PROGRAM) {
    r->at = release->first;
    weir_allocator_empty_cache(r->allocator);
  }
  size_t from = release->cause == WEIR__RELEASED_AFTER_WAIT ? release->completed : release->first;
  for (size_t i = release->completed; i < from; i++)
    complete(r, i);
  size_t end = from;
  while (end < r->count && !weir__is_request(&r->events[end]) &&
         (weir__is_segment_event(&r->events[end]) || r->events[end].action == WEIR__ACTION_FREE_COMPLETED))
    end++;
  r->at = end;
  if (release->request == end && release->cause != WEIR__RELEASED_BY_PROGRAM)
    request(r, &r->events[end]);
  else
    r->at = end - 1;
  for (size_t i = from; i < end; i++)
    if (r->events[i].action == WEIR__ACTION_FREE_COMPLETED)
      complete(r, i);
}

static void run_events(replay *r) {
  const weir__plan_release *release = r->plan.releases;
  const weir__plan_release *end = r->plan.release_count ? release + r->plan.release_count : release;
  for (r->at = 0; r->at < r->count; r->at++) {
    if (release < end && r->at == release->completed) {
      r->release++;
      run_release(r, release++);
    } else {
      const weir__snapshot_event *event = &r->events[r->at];
      if (event->action == WEIR__ACTION_ALLOC || event->action == WEIR__ACTION_OOM)
        request(r, event);
      else if (event->action == WEIR__ACTION_FREE_REQUESTED)
        let_go(r, event);
      else if (event->action == WEIR__ACTION_FREE_COMPLETED)
        complete(r, r->at);
    }
    if (r->stops && r->report->differences)
      return;
  }
  if (r->check)
    compare_missed(r);
}

/* ---- One run ---- */

static weir_status set_up(replay *r, const weir__plan_limit *limit) {
  weir_ledger_options ledger;
  weir_ledger_options_init(&ledger);
  ledger.bytes = limit->memory;
  ledger.place = r->check ? place : NULL;
  ledger.place_context = r;
  ledger.is_done = is_done;
  ledger.is_done_context = r;
  weir_status status = weir_driver_open_ledger(&ledger, &r->driver);
  if (status)
    return status;
  r->driver->Init(r->driver, 0);
  bool is_recorded = r->check || !r->options->conf;
  weir_allocator_options allocator;
  weir_allocator_options_init(&allocator);
  allocator.conf = is_recorded ? "" : r->options->conf;
  status = weir_allocator_create(r->driver, &allocator, &r->allocator);
  if (status)
    return status;
  r->heap = &r->allocator->heaps[0];
  if (is_recorded)
    *(weir__settings *)weir__settings_of(r->heap) = r->plan.settings; /* nobody reads them yet */
  weir_allocator_set_limit(r->allocator, 0, limit->limit);
  return r->check ? weir_allocator_attach_tracker(r->allocator, compare, r) : WEIR_OK;
}

static weir_status run(replay *r, const weir__plan_limit *limit) {
  weir__replay_report *report = r->report;
  *report = (weir__replay_report){
      .stats = {.size = sizeof report->stats}, .limit = limit->limit, .unknown_frees = r->plan.unknown_frees};
  r->driver = NULL;
  r->allocator = NULL;
  r->expected = r->release = 0;
  memset(r->pools, 0, r->plan.snapshot->pool_count * sizeof *r->pools);
  memset(r->blocks, 0, r->plan.block_count * sizeof *r->blocks);
  memset(r->held, 0, r->plan.block_count * sizeof *r->held);
  weir_status status = set_up(r, limit);
  if (!status) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run_events(r);
    clock_gettime(CLOCK_MONOTONIC, &end);
    report->seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    report->events = r->count;
    weir_allocator_get_stats(r->allocator, 0, &report->stats);
  }
  weir_allocator_destroy(r->allocator);
  weir_driver_close(r->driver);
  return status;
}

/* ---- Runs ---- */

/* Another cause for the release, that was not tried. false: there is none. */
static bool next_cause(const weir__plan *plan, weir__plan_release *release) {
  for (unsigned cause = 0; cause < WEIR__RELEASE_CAUSES; cause++) {
    bool makes_sense =
        cause == WEIR__RELEASED_BY_PROGRAM ||
        (release->request < plan->count && (cause == WEIR__RELEASED_BY_POLICY || release->completed < release->first));
    if (!makes_sense || release->tried >> cause & 1)
      continue;
    release->tried |= (uint8_t)(1u << cause);
    release->cause = (uint8_t)cause;
    return true;
  }
  return false;
}

/* Runs with one limit, until nothing differs or no other cause is left to try. The report is that of the run that got
 * furthest, which ends at its first difference; the plan has its causes. */
static weir_status explain(replay *r, const weir__plan_limit *limit) {
  weir__plan_guess(&r->plan, limit->limit < limit->memory ? limit->limit : limit->memory);
  weir__replay_report *report = r->report, best = {0};
  weir__plan_release *last = NULL; /* the one whose cause was changed last ... */
  uint8_t before = 0;              /* ... and what it was */
  r->stops = true;
  for (int runs = 0; runs < MOST_RUNS; runs++) {
    weir_status status = run(r, limit);
    if (status || !report->differences)
      return status;
    if (runs && report->first_difference <= best.first_difference)
      last->cause = before;
    else {
      best = *report;
      last = r->release ? &r->plan.releases[r->release - 1] : NULL;
      before = last ? last->cause : 0;
    }
    if (!last || !next_cause(&r->plan, last))
      break;
  }
  *report = best;
  return WEIR_OK;
}

/* The limit and the memory that the options give; false: they do not. */
static bool given_limit(const replay *r, weir__plan_limit *limit) {
  const weir__replay_options *options = r->options;
  if (!options->memory)
    return false;
  double fraction = options->fraction > 0 ? options->fraction : r->plan.fraction;
  *limit = (weir__plan_limit){WEIR__NO_LIMIT, options->memory};
  if (options->fraction > 0 || fraction < 1)
    limit->limit = (uint64_t)(fraction * (double)options->memory + 0.5);
  return true;
}

/* Tries the limits that may have been, and keeps the one with which it gets furthest. */
static weir_status find_limit(replay *r, weir__plan_limit *best) {
  weir__plan_limit limits[WEIR__PLAN_LIMITS];
  size_t count = weir__plan_limits(&r->plan, limits), furthest = 0;
  *best = limits[0]; /* there is one */
  for (size_t i = 0; i < count; i++) {
    weir_status status = explain(r, &limits[i]);
    if (status)
      return status;
    if (!r->report->differences) {
      *best = limits[i];
      return WEIR_OK;
    }
    if (r->report->first_difference > furthest) {
      furthest = r->report->first_difference;
      *best = limits[i];
    }
  }
  return count > 1 ? explain(r, best) : WEIR_OK;
}

/* What the file shows is explained first. Unchecked, the causes of releases stay, and all else may be another. */
static weir_status replay_all(replay *r) {
  weir__plan_limit limit = {WEIR__NO_LIMIT, 0}, recorded;
  bool is_given = given_limit(r, &limit), is_checked = r->options->check;
  r->check = true;
  weir_status status = is_given && is_checked ? explain(r, &limit) : find_limit(r, &recorded);
  if (!status && !is_given)
    limit = recorded;
  r->check = is_checked;
  r->stops = false;
  if (!status && (!is_checked || r->report->differences))
    status = run(r, &limit);
  r->report->limit_is_inferred = !is_given && limit.limit != WEIR__NO_LIMIT;
  return status;
}

weir_status weir__replay(const weir__snapshot *snapshot, const weir__replay_options *options,
                         weir__replay_report *report) {
  *report = (weir__replay_report){.stats = {.size = sizeof report->stats}};
  if (options->device < 0 || (size_t)options->device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "replay: device %d, the file has %zu", options->device,
                      snapshot->device_count);
  if (options->memory > WEIR__REPLAY_MOST_MEMORY)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "replay: a device of %llu bytes; at most %llu are allowed",
                      (unsigned long long)options->memory, (unsigned long long)WEIR__REPLAY_MOST_MEMORY);
  const weir__snapshot_device *device = &snapshot->devices[options->device];
  if (!device->event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "replay: the file has no history of device %d", options->device);
  replay r = {.options = options, .report = report};
  weir_status status = weir__plan_make(snapshot, device, &r.plan);
  if (status)
    return status;
  r.events = r.plan.events;
  r.count = r.plan.count;
  r.pools = calloc(snapshot->pool_count + 1, sizeof *r.pools);
  r.blocks = calloc(r.plan.block_count + 1, sizeof *r.blocks);
  r.held = calloc(r.plan.block_count + 1, sizeof *r.held);
  status = r.pools && r.blocks && r.held ? replay_all(&r)
                                         : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "replay: no host memory");
  free(r.pools);
  free(r.blocks);
  free(r.held);
  weir__plan_clear(&r.plan);
  return status;
}

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

#include "alloc/alloc.h"
#include "alloc/allocator.h"
#include "alloc/arena.h"
#include "alloc/backend.h"
#include "alloc/events.h"
#include "alloc/miss.h"
#include "alloc/pool.h"
#include "alloc/reclaim.h"
#include "alloc/sizes.h"
#include "alloc/trace.h"
#include "offline/ages.h"
#include "offline/install.h"
#include "offline/replay_plan.h"
#include "weir/pool.h"

/* Streams that the replay makes up, one for each block that waits. No driver's stream lies there. */
#define HELD_BASE (1ull << 60)

/* So often a checked replay begins anew, at most. */
enum { MOST_RUNS = 64 };

/* Histories of fewer events are timed more than once. */
enum { SHORT = 50000 };

struct weir__replayer {
  weir__plan plan;            /* its causes are those with which the file is explained best */
  weir__plan_limit recorded;  /* likewise */
  bool is_known;              /* it was given, not told from the file */
  weir__replay_report report; /* of the checked replay */
};

/* One run. */
typedef struct replay {
  const weir__plan *plan;
  const weir__settings *settings;
  const weir__recording_entry *events; /* the plan's */
  size_t count;
  bool check;
  bool stops; /* at the first difference */
  bool holds; /* what was there before the recording is held as it was; else it is placed anew */
  weir__replay_watch watch;
  weir_driver *ledger;
  weir_driver *driver; /* a meter around the ledger */
  weir_allocator *allocator;
  weir__heap *heap;
  weir__private_pool **pools; /* the allocator's, for each of the snapshot's */
  void **blocks;              /* where each allocation is, while it is in use */
  bool *held;                 /* allocations that wait for another stream */
  size_t at;                  /* the event under way */
  uint64_t installing;        /* address of the segment from before the recording that is being made; 0: none is */
  size_t expected;            /* checked: the next segment event that the allocator has to match */
  size_t release;             /* the next of the plan's releases */
  size_t race;                /* the next of the plan's races */
  size_t early;               /* the next of the plan's early requests ... */
  weir__block *taken;         /* ... whose block this is, when that was taken */
  size_t taken_for;           /* its event; the number of events: there is none */
  size_t change;              /* the next of the plan's changes */
  bool changes;               /* they are followed, as the limit is the recorded one */
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
static const weir__recording_entry *next_segment(replay *r) {
  while (r->expected < r->count &&
         (!weir__is_segment_event(&r->events[r->expected]) || weir__plan_is_cut_off(r->plan, r->expected))) {
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
  if (r->installing)
    return r->installing;
  for (size_t i = r->expected; i < r->count; i++) {
    if (weir__is_growth(&r->events[i]) && !weir__plan_is_cut_off(r->plan, i))
      return r->events[i].address;
    if (i > r->at && weir__is_request(&r->events[i]))
      break;
  }
  return 0;
}

static void compare(void *context, const weir_trace_entry *entry) {
  replay *r = context;
  static const uint8_t actions[] = {[WEIR_TRACE_SEGMENT_ALLOC] = WEIR_TRACE_SEGMENT_ALLOC,
                                    [WEIR_TRACE_SEGMENT_FREE] = WEIR_TRACE_SEGMENT_FREE,
                                    [WEIR_TRACE_SEGMENT_MAP] = WEIR_TRACE_SEGMENT_MAP,
                                    [WEIR_TRACE_SEGMENT_UNMAP] = WEIR_TRACE_SEGMENT_UNMAP};
  if (entry->action < WEIR_TRACE_SEGMENT_ALLOC || entry->action > WEIR_TRACE_SEGMENT_UNMAP)
    return;
  uint8_t action = actions[entry->action];
  r->grew |= entry->action == WEIR_TRACE_SEGMENT_ALLOC || entry->action == WEIR_TRACE_SEGMENT_MAP;
  const weir__recording_entry *e = next_segment(r);
  bool is_release = entry->action == WEIR_TRACE_SEGMENT_FREE || entry->action == WEIR_TRACE_SEGMENT_UNMAP;
  if (!e && is_release && r->expected == r->count && r->plan->snapshot->is_cut_off)
    return; /* the file ends in the middle of it */
  if (!e) {
    differs(r, r->at, "%s of %llu bytes, the file has none", weir_trace_action_name(action),
            (unsigned long long)entry->bytes);
    return;
  }
  if (e->action != action || e->address != entry->address || e->size != entry->bytes)
    differs(r, r->expected, "%s of %llu bytes at 0x%llx, the file has %s of %llu bytes at 0x%llx",
            weir_trace_action_name(action), (unsigned long long)entry->bytes, (unsigned long long)entry->address,
            weir_trace_action_name(e->action), (unsigned long long)e->size, (unsigned long long)e->address);
  r->expected++;
}

/* What the file has before the event under way, and the allocator did not do. */
static void compare_missed(replay *r) {
  const weir__recording_entry *missed;
  while (r->expected < r->at && (missed = next_segment(r)) && r->expected < r->at) {
    differs(r, r->expected, "the file has %s of %llu bytes, the allocator made none",
            weir_trace_action_name(missed->action), (unsigned long long)missed->size);
    r->expected++;
  }
}

static int is_done(void *context, weir_cu_stream stream) {
  const replay *r = context;
  uintptr_t value = (uintptr_t)stream;
  return value < HELD_BASE || value - HELD_BASE >= r->plan->block_count || !r->held[value - HELD_BASE];
}

/* ---- Events ---- */

static weir__private_pool *pool_of(replay *r, uint32_t pool) {
  if (!pool)
    return NULL;
  if (!r->pools[pool]) {
    const int64_t *id = r->plan->snapshot->pools[pool].id;
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

static weir_cu_stream stream_of(const replay *r, const weir__recording_entry *event) {
  return (weir_cu_stream)(uintptr_t)r->plan->snapshot->streams[event->stream];
}

/* NULL: no host memory. */
static weir__arena *arena_of(replay *r, size_t request, uint64_t size) {
  weir__private_pool *owner = pool_of(r, r->plan->entries[request].pool);
  bool is_small = size <= WEIR__SMALL_MAX;
  weir__pool *pool = owner ? is_small ? &owner->small : &owner->large : is_small ? &r->heap->small : &r->heap->large;
  return weir__arena_get(pool, stream_of(r, &r->events[request]));
}

/* The two halves of a request that the cache could not serve, at the times of which other threads did something in between.
 * First its block is taken. */
static void take_early(replay *r, size_t request) {
  const weir__settings *settings = weir__settings_of(r->heap);
  uint64_t size = weir__round_bytes(settings, r->events[request].size);
  weir__arena *arena = arena_of(r, request, size);
  weir_cu_context previous;
  r->taken = NULL;
  r->taken_for = request;
  if (!arena)
    return;
  pthread_mutex_lock(&r->heap->lock);
  if (!weir__heap_enter(r->heap, &previous)) {
    r->taken = weir__refill(r->heap, arena, settings, size);
    weir__heap_leave(r->heap, previous);
  }
  pthread_mutex_unlock(&r->heap->lock);
}

static weir_status hand_out(replay *r, const weir__recording_entry *event, void **pointer) {
  const weir__settings *settings = weir__settings_of(r->heap);
  weir__block *block = r->taken;
  r->taken_for = r->count;
  if (!block)
    return WEIR_ERROR_OUT_OF_MEMORY;
  weir__arena *arena = weir__block_arena(r->heap, block);
  weir__arena_lock(arena);
  block = weir__arena_hand_out(arena, settings, block, weir__round_bytes(settings, event->size), event->size, false);
  weir__arena_unlock(arena);
  if (!block)
    return WEIR_ERROR_HOST_OUT_OF_MEMORY;
  *pointer = (void *)block->address;
  return WEIR_OK;
}

/* A request that had looked into the cache before another thread put something there. false: there is nothing. */
static bool ask_past_cache(replay *r, const weir__recording_entry *event, void **pointer, weir_status *status) {
  const weir__settings *settings = weir__settings_of(r->heap);
  uint64_t size = weir__round_bytes(settings, event->size);
  weir__arena *arena = arena_of(r, r->at, size);
  if (!arena)
    return false;
  weir__arena_lock(arena);
  weir__block *block = weir__arena_take(arena, settings, size);
  if (block)
    weir__arena_insert(arena, block);
  weir__arena_unlock(arena);
  if (!block)
    return false;
  *status = weir__alloc_miss("replay", r->heap, arena, settings, size, event->size, pointer);
  r->report->raced++;
  return true;
}

/* NULL: from the default pool. Who allocates from a pool keeps it meanwhile, also one that is over, when memory runs short. */
static weir_status alloc_from(replay *r, weir__private_pool *owner, uint64_t bytes, weir_cu_stream stream,
                              void **pointer) {
  if (owner)
    atomic_fetch_add(&owner->in_flight, 1);
  weir_status status = weir__alloc("replay", r->heap, owner, bytes, stream, pointer);
  if (owner)
    atomic_fetch_sub(&owner->in_flight, 1);
  return status;
}

static weir_status ask(replay *r, const weir__recording_entry *event, void **pointer) {
  uint32_t pool = r->plan->entries[r->at].pool;
  weir_cu_stream stream = stream_of(r, event);
  weir_status raced;
  if (event->size >= WEIR__MOST_BYTES)
    return WEIR_ERROR_OUT_OF_MEMORY;
  if (r->taken_for == r->at)
    return hand_out(r, event, pointer);
  while (r->race < r->plan->race_count && r->plan->races[r->race] < r->at)
    r->race++;
  if (r->check && r->race < r->plan->race_count && r->plan->races[r->race] == r->at &&
      ask_past_cache(r, event, pointer, &raced))
    return raced;
  if (!pool)
    return alloc_from(r, NULL, event->size, stream, pointer);
  bool is_capture = weir__plan_is_capture(r->plan, r->at);
  if (is_capture && r->heap->pending)
    poll_events(r->heap, stream);
  atomic_store(&r->heap->captures, is_capture);
  weir_status status = alloc_from(r, pool_of(r, pool), event->size, stream, pointer);
  atomic_store(&r->heap->captures, 0);
  return status;
}

static void note_failure(replay *r, uint64_t bytes) {
  weir_allocator_stats stats = {.size = sizeof stats};
  weir_allocator_get_stats(r->allocator, 0, &stats);
  r->report->first_failure = r->at;
  r->report->failed_bytes = bytes;
  r->report->failed_reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].current;
  r->report->failed_allocated = (uint64_t)stats.allocated_bytes[WEIR_STAT_ALL].current;
}

static void request(replay *r, const weir__recording_entry *event) {
  void *pointer = NULL;
  r->grew = false;
  weir_status status = ask(r, event, &pointer);
  bool oom = event->action == WEIR_TRACE_OOM;
  if (status) {
    if (!r->report->failures++)
      note_failure(r, event->size);
    if (r->check && !(oom && status == WEIR_ERROR_OUT_OF_MEMORY))
      differs(r, r->at, "a request of %llu bytes failed, it did not in the file", (unsigned long long)event->size);
  } else if (oom) {
    /* PyTorch does not look for a block again after it has waited for other streams. */
    if (r->check && !r->grew && weir__plan_waited(r->plan, r->at))
      r->report->rescued++;
    else if (r->check)
      differs(r, r->at, "a request of %llu bytes succeeded, it failed in the file", (unsigned long long)event->size);
    weir_allocator_free(r->allocator, pointer); /* whoever asked did not get it */
  } else {
    r->report->allocations++;
    r->blocks[r->plan->entries[r->at].block] = pointer;
    if (r->check && (uint64_t)pointer != event->address)
      differs(r, r->at, "%llu bytes at 0x%llx, in the file at 0x%llx", (unsigned long long)event->size,
              (unsigned long long)(uintptr_t)pointer, (unsigned long long)event->address);
  }
  if (r->check)
    compare_missed(r);
}

/* It waits for another stream, unless it is free at once. */
static void free_block(replay *r, uint32_t block, bool at_once, uint64_t recorded) {
  if (!at_once) {
    r->held[block] = true;
    weir_allocator_record_stream(r->allocator, r->blocks[block], (weir_cu_stream)(uintptr_t)(HELD_BASE + block));
  }
  if (weir_allocator_free(r->allocator, r->blocks[block]))
    differs(r, r->at, "0x%llx could not be freed", (unsigned long long)recorded);
  r->blocks[block] = NULL;
}

static void let_go(replay *r, const weir__recording_entry *event) {
  uint32_t block = r->plan->entries[r->at].block;
  if (block == WEIR__NO_BLOCK || !r->blocks[block])
    return; /* it was allocated before the recording began, or could not be here */
  const weir__recording_entry *next = event + 1;
  bool at_once = r->at + 1 < r->count && next->action == WEIR_TRACE_FREE_COMPLETED && next->address == event->address;
  free_block(r, block, at_once, event->address);
}

static void complete(replay *r, size_t event) {
  uint32_t block = r->plan->entries[event].block;
  if (block != WEIR__NO_BLOCK)
    r->held[block] = false;
}

/* Private pools of which segments go back are over: nobody holds them for that long. `on` false: they are held again, those
 * that are gone when they are used the next time. */
static void end_pools(replay *r, const weir__plan_release *release, bool on) {
  for (size_t i = release->first; i < release->end; i++) {
    uint32_t pool = r->events[i].pool;
    if (!weir__is_release(&r->events[i]) || !pool || pool == WEIR__RECORDING_NO_POOL || !r->pools[pool])
      continue;
    const int64_t *number = r->plan->snapshot->pools[pool].id;
    weir_pool_id id = {(uint64_t)number[0], (uint64_t)number[1]};
    int uses = 0;
    bool is_there = !weir_pool_use_count(r->allocator, r->heap->device, id, &uses);
    if (on && is_there && uses)
      weir_pool_release(r->allocator, r->heap->device, id);
    else if (!on && is_there && !uses)
      weir_pool_create(r->allocator, r->heap->device, id, NULL);
    else if (!on && !is_there)
      r->pools[pool] = NULL;
  }
}

/* While one thread empties the cache, others use what it has not come to yet: so arena by arena, each in its time. */
static void release_arenas(replay *r, const weir__plan_release *release) {
  poll_events(r->heap, NULL);
  for (size_t i = release->first; i < release->end; i++) {
    if (!weir__is_release(&r->events[i]) || i < r->expected)
      continue;
    weir__arena *arena = weir__page_map_find(r->allocator->pages, r->events[i].address);
    weir_cu_context previous;
    pthread_mutex_lock(&r->heap->lock);
    if (arena && !weir__heap_enter(r->heap, &previous)) {
      weir__release_arena(r->heap, arena);
      weir__heap_leave(r->heap, previous);
    }
    pthread_mutex_unlock(&r->heap->lock);
  }
}

/* The program gave memory back: all that is cached, or that of a few private pools. */
static void empty(replay *r, const weir__plan_release *release) {
  bool is_private = true;
  for (size_t i = release->first; i < release->end && is_private; i++)
    is_private = !weir__is_release(&r->events[i]) ||
                 (r->events[i].pool && r->events[i].pool != WEIR__RECORDING_NO_POOL && r->pools[r->events[i].pool]);
  if (r->check && r->plan->snapshot->has_causes && r->plan->has_threads) {
    release_arenas(r, release);
    return;
  }
  end_pools(r, release, true);
  if (!is_private)
    weir_allocator_empty_cache(r->allocator);
  for (size_t i = release->first; is_private && i < release->end; i++)
    if (weir__is_release(&r->events[i])) {
      const int64_t *id = r->plan->snapshot->pools[r->events[i].pool].id;
      weir_allocator_empty_pool(r->allocator, (weir_pool_id){(uint64_t)id[0], (uint64_t)id[1]});
    }
  end_pools(r, release, false);
}

/* Memory goes back, up to the request that follows. Blocks that became free meanwhile did so because the allocator waited for
 * them: they are held until the request is served. */
static void run_release(replay *r, const weir__plan_release *release) {
  if (release->cause == WEIR__RELEASED_BY_PROGRAM) {
    r->at = release->first;
    empty(r, release);
  }
  size_t from = release->cause == WEIR__RELEASED_AFTER_WAIT ? release->completed : release->first;
  for (size_t i = release->completed; i < from; i++)
    complete(r, i);
  size_t end = release->end;
  r->at = end;
  if (release->request == end && release->cause != WEIR__RELEASED_BY_PROGRAM) {
    end_pools(r, release, true);
    request(r, &r->events[end]);
    end_pools(r, release, false);
  } else
    r->at = end - 1;
  for (size_t i = from; i < end; i++)
    if (r->events[i].action == WEIR_TRACE_FREE_COMPLETED)
      complete(r, i);
}

/* As weir_allocator_configure does it: a new set, so that nobody takes what was chosen under the old one for good. */
static void set_settings(replay *r, const weir__settings *wanted) {
  weir__settings *changed = malloc(sizeof *changed);
  if (!changed)
    return;
  *changed = *wanted;
  changed->older = (weir__settings *)weir__settings_of(r->heap);
  atomic_store(&r->allocator->settings, changed);
}

/* What the program told the allocator before the event under way. */
static void follow_changes(replay *r) {
  for (; r->change < r->plan->change_count && r->plan->changes[r->change].event <= r->at; r->change++) {
    const weir__recording_change *change = &r->plan->changes[r->change];
    weir__settings settings;
    if (!change->conf)
      weir_allocator_set_limit(r->allocator, 0, change->limit);
    else if (weir__plan_change(r->plan, change, &settings)) {
      set_settings(r, &settings);
      weir_allocator_set_limit(r->allocator, 0, r->heap->limit); /* collection may begin, or end */
    }
  }
}

static void run_events(replay *r) {
  const weir__plan_release *release = r->plan->releases;
  const weir__plan_release *end = r->plan->release_count ? release + r->plan->release_count : release;
  for (r->at = r->plan->first; r->at < r->count; r->at++) {
    if (r->changes)
      follow_changes(r);
    for (; r->check && r->early < r->plan->early_count && r->plan->early[r->early].event <= r->at; r->early++)
      take_early(r, r->plan->early[r->early].request);
    if (release < end && r->at == release->completed) {
      r->release++;
      run_release(r, release++);
    } else {
      const weir__recording_entry *event = &r->events[r->at];
      if (event->action == WEIR_TRACE_ALLOC || event->action == WEIR_TRACE_OOM)
        request(r, event);
      else if (event->action == WEIR_TRACE_FREE_REQUESTED)
        let_go(r, event);
      else if (event->action == WEIR_TRACE_FREE_COMPLETED)
        complete(r, r->at);
    }
    if (r->watch.look && !r->watch.look(r->watch.context, r->heap, r->at, r->report))
      return;
    if (r->stops && r->report->differences)
      return;
  }
  if (r->check)
    compare_missed(r);
}

/* ---- What was there before the recording ---- */

/* Takes memory away from the device. */
static bool fill(replay *r, uint64_t bytes) {
  const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {.type = WEIR_CU_LOCATION_DEVICE}};
  weir_cu_mem_handle filler;
  return r->ledger->MemCreate(r->ledger, &filler, bytes, &prop, 0) == WEIR_CU_SUCCESS;
}

/* In the segments that it had. The device has a little more memory meanwhile, which is taken away then. */
static weir_status hold(replay *r) {
  const weir__plan *plan = r->plan;
  uint64_t spare = weir__install_spare(&plan->start);
  r->heap->total -= spare;
  weir_status status = weir__install(r->heap, &plan->settings, &plan->start, &r->installing, r->blocks);
  if (!status && spare && !fill(r, spare))
    status = weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "the device has no room for what was there before the recording");
  if (status != WEIR_ERROR_OUT_OF_MEMORY || !r->check)
    return status;
  differs(r, 0, "%s", weir_last_error());
  return WEIR_OK;
}

/* As requests, under the settings of the run. */
static weir_status place_anew(replay *r) {
  const weir__state *start = &r->plan->start;
  size_t block = 0;
  for (size_t i = 0; i < start->segment_count; i++) {
    const weir__state_segment *s = &start->segments[i];
    weir_pool_id id = {(uint64_t)s->pool[0], (uint64_t)s->pool[1]};
    bool is_private = s->pool[0] || s->pool[1];
    if (is_private && !weir__pool_find(r->heap, id) && weir_pool_create(r->allocator, 0, id, NULL))
      return WEIR_ERROR_HOST_OUT_OF_MEMORY;
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &start->blocks[k];
      if (b->state < WEIR__ALLOCATED)
        continue;
      if (alloc_from(r, is_private ? weir__pool_find(r->heap, id) : NULL, b->requested,
                     (weir_cu_stream)(uintptr_t)s->stream, &r->blocks[block])) {
        r->report->unplaced++;
        if (!r->report->failures++)
          note_failure(r, b->requested);
      }
      block++;
    }
  }
  return WEIR_OK;
}

/* What is counted of the run begins behind it. */
static weir_status begin(replay *r) {
  const weir__state *start = &r->plan->start;
  uint32_t block = 0;
  if (!start->segment_count)
    return WEIR_OK;
  r->report->begin = r->holds ? WEIR__BEGINS_HELD : WEIR__BEGINS_ANEW;
  weir_status status = r->holds ? hold(r) : place_anew(r);
  if (status)
    return status;
  for (size_t i = 1; i < r->plan->snapshot->pool_count; i++) { /* they are held once, as those that come later */
    const int64_t *id = r->plan->snapshot->pools[i].id;
    r->pools[i] = weir__pool_find(r->heap, (weir_pool_id){(uint64_t)id[0], (uint64_t)id[1]});
  }
  for (size_t i = 0; i < start->block_count; i++) {
    if (start->blocks[i].state == WEIR__WAITING && r->blocks[block])
      free_block(r, block, false, start->blocks[i].address);
    block += start->blocks[i].state >= WEIR__ALLOCATED;
  }
  weir_allocator_reset_peak_stats(r->allocator, 0);
  weir_allocator_reset_accumulated_stats(r->allocator, 0);
  weir__meter_reset(r->driver);
  return WEIR_OK;
}

/* ---- One run ---- */

static weir_status set_up(replay *r, const weir__plan_limit *limit) {
  weir_ledger_options ledger;
  weir_ledger_options_init(&ledger);
  ledger.bytes = limit->memory + limit->others + (r->holds ? weir__install_spare(&r->plan->start) : 0);
  ledger.place = r->check ? place : NULL;
  ledger.place_context = r;
  ledger.is_done = is_done;
  ledger.is_done_context = r;
  weir_status status = weir_driver_open_ledger(&ledger, &r->ledger);
  if (!status)
    status = weir__meter_open(r->ledger, &r->driver);
  if (status)
    return status;
  r->driver->Init(r->driver, 0);
  weir_allocator_options allocator;
  weir_allocator_options_init(&allocator);
  allocator.conf = "";
  status = weir_allocator_create(r->driver, &allocator, &r->allocator);
  if (status)
    return status;
  r->heap = &r->allocator->heaps[0];
  *(weir__settings *)weir__settings_of(r->heap) = *r->settings; /* nobody reads them yet */
  if (!r->holds)
    weir_allocator_set_limit(r->allocator, 0, limit->limit);
  if (limit->others && !fill(r, limit->others))
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "replay: the device has no room for what other processes hold");
  status = begin(r);
  if (status)
    return status;
  weir_allocator_set_limit(r->allocator, 0, limit->limit);
  if (r->check) { /* within the operation: where the next segment is placed depends on how many were compared */
    r->allocator->witness = compare;
    r->allocator->witness_context = r;
    weir__update_tracing(r->allocator);
  }
  return WEIR_OK;
}

static weir_status run_once(replay *r, const weir__plan_limit *limit) {
  weir__replay_report *report = r->report;
  *report = (weir__replay_report){.stats = {.size = sizeof report->stats},
                                  .limit = limit->limit,
                                  .unknown_frees = r->plan->unknown_frees,
                                  .dropped = r->plan->dropped};
  r->ledger = r->driver = NULL;
  r->allocator = NULL;
  r->release = r->race = r->early = r->change = 0;
  r->expected = r->at = r->plan->first;
  r->taken_for = r->count;
  r->changes = r->settings == &r->plan->settings && limit->limit == r->plan->limit;
  weir_status status = set_up(r, limit);
  if (!status) {
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    run_events(r);
    clock_gettime(CLOCK_MONOTONIC, &end);
    report->seconds = (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
    report->events = r->count;
    weir_allocator_get_stats(r->allocator, 0, &report->stats);
    report->calls = *weir__meter_read(r->driver);
  }
  weir_allocator_destroy(r->allocator);
  weir_driver_close(r->driver);
  weir_driver_close(r->ledger);
  return status;
}

typedef enum manner {
  CHECK,
  CHECK_UP_TO_FIRST, /* difference */
  RUN_HELD,          /* unchecked, what was there before the recording is held */
  RUN_ANEW
} manner;

/* *release becomes the number of the plan's releases that were begun. */
static weir_status run(const weir__plan *plan, const weir__settings *settings, const weir__plan_limit *limit,
                       manner manner, const weir__replay_watch *watch, size_t *release, weir__replay_report *report) {
  replay r = {.plan = plan,
              .settings = settings,
              .events = plan->events,
              .count = plan->count,
              .check = manner == CHECK || manner == CHECK_UP_TO_FIRST,
              .stops = manner == CHECK_UP_TO_FIRST,
              .holds = manner != RUN_ANEW,
              .report = report};
  if (watch)
    r.watch = *watch;
  r.pools = calloc(plan->snapshot->pool_count + 1, sizeof *r.pools);
  r.blocks = calloc(plan->block_count + 1, sizeof *r.blocks);
  r.held = calloc(plan->block_count + 1, sizeof *r.held);
  weir_status status =
      r.pools && r.blocks && r.held ? run_once(&r, limit) : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory");
  free(r.pools);
  free(r.blocks);
  free(r.held);
  if (release)
    *release = r.release;
  return status;
}

/* ---- Explaining a file ---- */

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
static weir_status explain(weir__replayer *h, const weir__plan_limit *limit) {
  weir__plan_guess(&h->plan, limit->limit < limit->memory ? limit->limit : limit->memory);
  weir__replay_report *report = &h->report, best = {0};
  weir__plan_release *last = NULL; /* the one whose cause was changed last ... */
  uint8_t before = 0;              /* ... and what it was */
  for (int runs = 0; runs < MOST_RUNS; runs++) {
    size_t release;
    weir_status status = run(&h->plan, &h->plan.settings, limit, CHECK_UP_TO_FIRST, NULL, &release, report);
    if (status || !report->differences)
      return status;
    if (runs && report->first_difference <= best.first_difference)
      last->cause = before;
    else {
      best = *report;
      last = release ? &h->plan.releases[release - 1] : NULL;
      before = last ? last->cause : 0;
    }
    if (!last || !next_cause(&h->plan, last))
      break;
  }
  *report = best;
  return WEIR_OK;
}

/* Tries the limits that may have been, and keeps the one with which it gets furthest. */
static weir_status find_limit(weir__replayer *h) {
  weir__plan_limit limits[WEIR__PLAN_LIMITS];
  size_t count = weir__plan_limits(&h->plan, limits), furthest = 0;
  h->recorded = limits[0]; /* there is one */
  for (size_t i = 0; i < count; i++) {
    weir_status status = explain(h, &limits[i]);
    if (status)
      return status;
    if (!h->report.differences) {
      h->recorded = limits[i];
      return WEIR_OK;
    }
    if (h->report.first_difference > furthest) {
      furthest = h->report.first_difference;
      h->recorded = limits[i];
    }
  }
  return count > 1 ? explain(h, &h->recorded) : WEIR_OK;
}

/* The first run of a short history is mostly the system finding memory for it: the speed is that of the next ones. */
static weir_status time_again(weir__replayer *h) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < 3 && !status; i++) {
    weir__replay_report again = {0};
    status = run(&h->plan, &h->plan.settings, &h->recorded, CHECK, NULL, NULL, &again);
    if (!status && again.seconds < h->report.seconds)
      h->report.seconds = again.seconds;
  }
  return status;
}

static weir_status explain_once(weir__replayer *h, const weir__capacity *known) {
  h->recorded = (weir__plan_limit){.limit = known->limit, .memory = known->memory};
  return h->is_known ? explain(h, &h->recorded) : find_limit(h);
}

/* Tries the ages that what was free before the recording may have had, and keeps those with which it gets furthest. */
static weir_status find_ages(weir__replayer *h, const weir__capacity *known) {
  size_t furthest = h->report.first_difference;
  int best = 0;
  for (int guess = 1; guess < WEIR__AGE_GUESSES; guess++) {
    if (!weir__guess_ages(h->plan.events, guess, &h->plan.start))
      return WEIR_OK;
    weir_status status = explain_once(h, known);
    if (status || !h->report.differences)
      return status;
    if (h->report.first_difference > furthest) {
      furthest = h->report.first_difference;
      best = guess;
    }
  }
  weir__guess_ages(h->plan.events, best, &h->plan.start);
  return explain_once(h, known);
}

static weir_status explain_all(weir__replayer *h, const weir__capacity *known) {
  h->is_known = known->memory != 0;
  weir_status status = explain_once(h, known);
  if (!status && h->report.differences && h->plan.settings.garbage_collection_threshold > 0 && !h->plan.has_checkpoint)
    status = find_ages(h, known);
  if (!status && h->report.differences) /* to the end, to count them all */
    status = run(&h->plan, &h->plan.settings, &h->recorded, CHECK, NULL, NULL, &h->report);
  h->report.limit_is_inferred = !h->is_known && h->recorded.limit != WEIR__NO_LIMIT;
  if (!status && h->plan.count < SHORT && !h->report.differences)
    status = time_again(h);
  return status;
}

/* ---- Histories ---- */

static weir_status check_memory(uint64_t memory) {
  if (memory <= WEIR__REPLAY_MOST_MEMORY)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "a device of %llu bytes; at most %llu are allowed",
                    (unsigned long long)memory, (unsigned long long)WEIR__REPLAY_MOST_MEMORY);
}

/* A fraction of 1 that a program sets is a limit, one that the settings have is none. */
static weir__capacity part_of(uint64_t memory, double fraction, double of_settings) {
  weir__capacity capacity = {memory, WEIR__NO_LIMIT};
  if (fraction > 0 || of_settings < 1)
    capacity.limit = (uint64_t)((fraction > 0 ? fraction : of_settings) * (double)memory + 0.5);
  return capacity;
}

static weir_status explain_from(weir__replayer *h, const weir__recording *snapshot, int device, size_t first,
                                uint64_t memory, double fraction) {
  weir_status status = weir__plan_make(snapshot, &snapshot->devices[device], first, &h->plan);
  if (status)
    return status;
  weir__capacity known = part_of(memory, fraction, h->plan.fraction);
  return explain_all(h, &known);
}

/* From event `i` on; the number of events: there is none. */
static size_t next_request(const weir__plan *plan, size_t i) {
  while (i < plan->count && !weir__is_request(&plan->events[i]))
    i++;
  return i;
}

/* A recording that began late may have begun in the middle of a request, of which it has the end: some of the segments that were
 * made or given back for it are missing. If the replay differs there, it begins behind that request. */
weir_status weir__replayer_open(const weir__recording *snapshot, int device, uint64_t memory, double fraction,
                                weir__replayer **history) {
  if (device < 0 || (size_t)device >= snapshot->device_count)
    return weir__fail(WEIR_ERROR_INVALID_DEVICE, "there is no device %d; the file has %zu%s", device,
                      snapshot->device_count, snapshot->device_count ? ", from 0 on" : ": nothing was recorded");
  if (!snapshot->devices[device].event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "the file has no history of device %d; what is to be recorded comes between "
                      "torch.cuda.memory._record_memory_history() and _dump_snapshot()",
                      device);
  if (snapshot->devices[device].lacks_start)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "what was there before the first event of device %d is not known: %llu older events were dropped, "
        "and the file has no checkpoint behind them; a larger WEIR_RECORD_MB has room for both",
        device, (unsigned long long)snapshot->devices[device].dropped);
  weir_status status = check_memory(memory);
  if (status)
    return status;
  weir__replayer *h = calloc(1, sizeof *h);
  if (!h)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory");
  status = explain_from(h, snapshot, device, 0, memory, fraction);
  size_t request = next_request(&h->plan, 0);
  if (!status && h->plan.start.segment_count && !h->plan.has_checkpoint && h->report.differences &&
      h->report.first_difference <= request && next_request(&h->plan, request + 1) < h->plan.count) {
    weir__replayer skipping = {0};
    status = explain_from(&skipping, snapshot, device, request + 1, memory, fraction);
    bool is_better = !status && (!skipping.report.differences || skipping.report.first_difference > request + 1);
    weir__replayer *worse = is_better ? h : &skipping;
    weir__plan_clear(&worse->plan);
    if (is_better)
      *h = skipping;
  }
  if (status) {
    weir__replayer_close(h);
    return status;
  }
  *history = h;
  return WEIR_OK;
}

void weir__replayer_close(weir__replayer *history) {
  if (!history)
    return;
  weir__plan_clear(&history->plan);
  free(history);
}

const weir__replay_report *weir__replayer_check(const weir__replayer *history) { return &history->report; }

weir_status weir__replayer_recheck(const weir__replayer *history, const weir__replay_watch *watch,
                                   weir__replay_report *report) {
  weir_status status = run(&history->plan, &history->plan.settings, &history->recorded, CHECK, watch, NULL, report);
  report->limit_is_inferred = history->report.limit_is_inferred;
  return status;
}

const weir__state *weir__replayer_start(const weir__replayer *history) { return &history->plan.start; }

const weir__settings *weir__replayer_settings(const weir__replayer *history) { return &history->plan.settings; }

double weir__replayer_seconds(const weir__replayer *history) {
  const weir__plan *plan = &history->plan;
  int64_t first = plan->events[0].time_us, last = plan->events[plan->count - 1].time_us;
  return first > 0 && last > first ? (double)(last - first) / 1e6 : 0;
}

weir__capacity weir__replayer_capacity(const weir__replayer *history) {
  const weir__replay_report *report = &history->report;
  weir__capacity capacity = {0, history->recorded.limit};
  bool was_short = report->stats.num_alloc_retries || report->stats.num_ooms;
  /* What is told of a device's memory is room enough for what the file shows; it is a fact only where memory ran short. */
  if (history->is_known || (capacity.limit == WEIR__NO_LIMIT && was_short))
    capacity.memory = history->recorded.memory;
  return capacity;
}

weir_status weir__replayer_capacity_of(const weir__replayer *history, const weir__settings *settings, uint64_t memory,
                                       double fraction, weir__capacity *capacity) {
  bool is_recorded = !settings || settings == &history->plan.settings;
  double of_settings = is_recorded ? history->plan.fraction : settings->memory_fraction;
  if (memory)
    *capacity = part_of(memory, fraction, of_settings);
  else if (of_settings < 1 && of_settings != history->plan.fraction)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "per_process_memory_fraction is a part of the device's memory, which a file does not record: say "
                      "how much it is");
  else
    *capacity = weir__replayer_capacity(history);
  return WEIR_OK;
}

/* Memory for as much as is asked for. Most settings need no more than this, and a small device is replayed faster. */
static uint64_t probably_enough(const weir__plan *plan) {
  if (plan->peak < 4ull << 30)
    return 16ull << 30;
  return plan->peak > WEIR__REPLAY_ENOUGH_MEMORY / 4 ? WEIR__REPLAY_ENOUGH_MEMORY : 4 * plan->peak;
}

static bool was_short(const weir__meter_counts *calls) {
  return calls->of[WEIR__METER_ALLOC].failed || calls->of[WEIR__METER_CREATE].failed ||
         calls->of[WEIR__METER_RESERVE].failed;
}

weir_status weir__replayer_run(const weir__replayer *history, const weir__settings *settings,
                               const weir__capacity *capacity, const weir__replay_watch *watch,
                               weir__replay_report *report) {
  const weir__plan *plan = &history->plan;
  weir__plan_limit limit = {.limit = capacity->limit,
                            .memory = capacity->memory ? capacity->memory : probably_enough(plan)};
  weir_status status = check_memory(capacity->memory);
  if (!status && settings)
    status = weir__check_backend(settings);
  if (status)
    return status;
  bool has_room = plan->start.reserved <= limit.limit && plan->start.reserved <= limit.memory;
  manner manner = settings || !has_room ? RUN_ANEW : RUN_HELD;
  if (!settings)
    settings = &plan->settings;
  bool is_sure = capacity->memory || limit.memory == WEIR__REPLAY_ENOUGH_MEMORY || limit.limit <= limit.memory;
  /* Who watches sees one run only. */
  status = run(plan, settings, &limit, manner, is_sure ? watch : NULL, NULL, report);
  if (status == WEIR_ERROR_OUT_OF_MEMORY && manner == RUN_HELD)
    status = run(plan, settings, &limit, manner = RUN_ANEW, is_sure ? watch : NULL, NULL, report);
  if (status || is_sure || (!was_short(&report->calls) && !watch))
    return status;
  if (was_short(&report->calls))
    limit.memory = WEIR__REPLAY_ENOUGH_MEMORY;
  return run(plan, settings, &limit, manner, watch, NULL, report);
}

/* ---- All in one ---- */

weir_status weir__replay(const weir__recording *snapshot, const weir__replay_options *options,
                         weir__replay_report *report) {
  weir__settings parsed, *settings = NULL;
  weir__capacity capacity = {0};
  weir__replayer *h = NULL;
  *report = (weir__replay_report){.stats = {.size = sizeof report->stats}};
  if (options->conf && !options->check) {
    weir_status status = weir__settings_parse(NULL, options->conf, &parsed);
    if (status)
      return status;
    settings = &parsed;
  }
  /* Checked, the capacity is that of the recording; unchecked, that of the run. */
  weir_status status = weir__replayer_open(snapshot, options->device, options->check ? options->memory : 0,
                                           options->check ? options->fraction : 0, &h);
  if (!h)
    return status;
  if (options->check)
    *report = h->report;
  else {
    status = weir__replayer_capacity_of(h, settings, options->memory, options->fraction, &capacity);
    if (!status)
      status = weir__replayer_run(h, settings, &capacity, NULL, report);
    report->limit_is_inferred = !status && !options->memory && capacity.limit != WEIR__NO_LIMIT;
  }
  weir__replayer_close(h);
  return status;
}

/*
 * Running: feeds a recording to the allocator, event by event, and compares what the allocator does with the recording.
 *
 * A freed block that waits for another stream is in use by a stream of the replay's own, which is busy until the
 * recording says that the block is free.
 */
#include "offline/replay/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "alloc/replay_port.h"
#include "base/base.h"
#include "offline/replay/streams.h"
#include "weir/adapter.h"
#include "weir/pool.h"

/* The replay's own streams, one for each block that waits. No driver has a stream at these addresses. */
#define HELD_BASE (sizeof(void *) < 8 ? 1ull << 31 : 1ull << 60)

enum { SLOT_CLASSES = 16 };

/* Addresses for segments of up to so many bytes. */
typedef struct slots {
  uint64_t base, taken;
  unsigned bits; /* log2 of how many there are */
} slots;

/* One run. */
typedef struct replay {
  const weir__plan *plan;
  const weir__settings *settings;
  const weir__recording_entry *events; /* the plan's */
  size_t count;
  bool check;
  bool stops; /* at the first difference */
  bool holds; /* what was there before the recording is installed as it was; otherwise it is allocated anew */
  weir__replay_callback callback;
  const weir__replay_recorder *recorder; /* or NULL */
  weir_driver *ledger;
  weir_driver *driver; /* a meter around the ledger */
  weir_allocator *allocator;
  weir__private_pool **pools; /* the allocator's, for each of the recording's */
  uint64_t *blocks;           /* where each allocation is, while it is in use */
  bool *held;                 /* allocations that wait for another stream */
  size_t at;                  /* the event under way */
  size_t asks;                /* the request for which the allocator looks for a block: this one or a later */
  uint64_t installing;        /* the address of the segment that is being installed; 0 if none is */
  size_t expected;            /* checked: the next segment event that the allocator has to match */
  size_t release;             /* the next of the plan's releases */
  size_t race;                /* the next of the plan's races */
  size_t early;               /* the next of the plan's early requests */
  weir__block *taken;         /* the block that was taken for the last of them */
  size_t taken_for;           /* its event; the number of events if there is none */
  size_t change;              /* the next of the plan's changes */
  bool follows_settings, follows_limits; /* changes of them are applied, since they begin as the recorded ones */
  bool is_busy;                          /* unchecked: as in weir__capacity */
  unsigned order;                        /* likewise */
  slots slots[SLOT_CLASSES];             /* with an order: by size */
  bool grew;                             /* checked: the request under way got memory from the driver */
  weir_status host_failure;              /* of a request: this process is out of memory, and the replay ends */
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
  int length = snprintf(text, WEIR__REPLAY_TEXT, "entry %zu: ", event);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + length, WEIR__REPLAY_TEXT - (size_t)length, format, arguments);
  va_end(arguments);
}

/* The next segment event from `expected` on, up to the request under way. */
static const weir__recording_entry *next_segment(replay *r) {
  while (r->expected < r->count &&
         (!weir__is_segment_event(&r->events[r->expected]) || weir__plan_is_cut_off(r->plan, r->expected))) {
    if (r->expected > r->at && weir__is_request(&r->events[r->expected]))
      return NULL;
    r->expected++;
  }
  return r->expected < r->count ? &r->events[r->expected] : NULL;
}

/* Places a new segment at the recorded address. */
static weir_cu_deviceptr place(void *context, weir_driver_call call, uint64_t bytes) {
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

/* Addresses in any order begin here, above those that CUDA gives and below those of the ledger. */
#define ORDER_BASE (1ull << 47)

/* Each step is a bijection of the numbers below 2^bits. */
static uint64_t permute(uint64_t number, unsigned bits, uint64_t seed) {
  const uint64_t mask = (1ull << bits) - 1;
  for (int round = 0; round < 3; round++) {
    number = (number * (2 * (seed >> 40) + 1) + (seed & 0xffff)) & mask;
    number ^= number >> (bits + 1) / 2;
    seed = seed * 0xbf58476d1ce4e5b9 + 1;
  }
  return number;
}

/* log2 of the slot for a segment. */
static unsigned class_of(uint64_t bytes) {
  unsigned class = 0;
  while (class < SLOT_CLASSES - 1 && (uint64_t)WEIR__PORT_SMALL_SEGMENT << class < bytes)
    class ++;
  return class;
}

/* Each size of slots has a region, and a few times as many slots as the recording needed: little more than what it
 * reserved, since the allocator's tables take memory in proportion to the addresses that are used. The seed decides the
 * order of regions, too. */
static void make_slots(replay *r) {
  uint64_t count[SLOT_CLASSES] = {0}, at = ORDER_BASE;
  for (size_t i = 0; i < r->count; i++)
    if (weir__is_growth(&r->events[i]))
      count[class_of(r->events[i].size)]++;
  for (unsigned i = 0; i < SLOT_CLASSES; i++) {
    unsigned class = (unsigned)permute(i, 4, r->order);
    slots *s = &r->slots[class];
    *s = (slots){.base = at, .bits = 3};
    while (1ull << s->bits < 3 * count[class] && s->bits < 24)
      s->bits++;
    at += (uint64_t)WEIR__PORT_SMALL_SEGMENT << (class + s->bits);
  }
}

/* Places each new segment in a slot of its own; the slots are taken in an order that the seed decides. */
static weir_cu_deviceptr place_in_order(void *context, weir_driver_call call, uint64_t bytes) {
  replay *r = context;
  const unsigned class = class_of(bytes);
  const uint64_t slot_bytes = (uint64_t)WEIR__PORT_SMALL_SEGMENT << class;
  slots *s = &r->slots[class];
  if (call != WEIR_CALL_MemAlloc || bytes > slot_bytes || s->taken >> s->bits)
    return 0;
  return s->base + slot_bytes * permute(s->taken++, s->bits, r->order * 0x9e3779b97f4a7c15);
}

static void record(void *context, const weir_trace_entry *entry) {
  const replay *r = context;
  r->recorder->entry(r->recorder->context, entry, r->at, NULL);
}

static void compare(void *context, const weir_trace_entry *entry) {
  replay *r = context;
  bool is_segment = entry->action >= WEIR_TRACE_SEGMENT_ALLOC && entry->action <= WEIR_TRACE_SEGMENT_UNMAP;
  if (r->recorder)
    r->recorder->entry(r->recorder->context, entry, r->at, is_segment ? next_segment(r) : NULL);
  if (!is_segment)
    return;
  weir_trace_action action = entry->action;
  r->grew |= entry->action == WEIR_TRACE_SEGMENT_ALLOC || entry->action == WEIR_TRACE_SEGMENT_MAP;
  const weir__recording_entry *e = next_segment(r);
  bool is_release = entry->action == WEIR_TRACE_SEGMENT_FREE || entry->action == WEIR_TRACE_SEGMENT_UNMAP;
  if (!e && is_release && r->expected == r->count && r->plan->recording->is_cut_off)
    return; /* the recording ends in the middle of a release */
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

/* Reports what the recording has before the event under way and the allocator did not do. */
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
  uint64_t value = (uintptr_t)stream;
  return value < HELD_BASE || value - HELD_BASE >= r->plan->block_count || !r->held[value - HELD_BASE];
}

/* Whether a stream has done its work, so that its pages may move. A recording shows it where they did: the request
 * under way unmapped some of them. */
static bool is_idle(void *context, weir_cu_stream stream) {
  const replay *r = context;
  if (!r->check)
    return !r->is_busy;
  for (size_t i = r->expected; i < r->count && (i <= r->at || !weir__is_request(&r->events[i - 1])); i++)
    if (r->events[i].action == WEIR_TRACE_SEGMENT_UNMAP && r->plan->streams.handles[r->events[i].stream] == stream)
      return true;
  return false;
}

/* Whether old mappings in the way of a request at an address had been passed: then it went there. */
static bool has_passed(void *context, uint64_t address) {
  const replay *r = context;
  const weir__recording_entry *event = &r->events[r->asks];
  return event->action != WEIR_TRACE_ALLOC || event->address == address;
}

/* ---- Events ---- */

static weir_pool_id id_of(const replay *r, uint32_t pool) {
  const int64_t *id = r->plan->recording->pools[pool].id;
  return (weir_pool_id){(uint64_t)id[0], (uint64_t)id[1]};
}

static weir_status create_pool(const replay *r, weir_pool_id id) {
  const weir__recording *recording = r->plan->recording;
  const int64_t pool[2] = {(int64_t)id.first, (int64_t)id.second};
  size_t device = 0;
  while (device < recording->device_count && recording->devices[device].events != r->plan->events)
    device++;
  return weir__port_create_pool(r->allocator, id, weir__recording_tag_of(recording, (int)device, pool));
}

/* The pool of the allocator for one of the recording, created if need be; NULL for the default one. */
static weir__private_pool *pool_of(replay *r, uint32_t pool) {
  if (!pool)
    return NULL;
  if (!r->pools[pool]) {
    weir_pool_id id = id_of(r, pool);
    if (create_pool(r, id))
      return NULL;
    r->pools[pool] = weir__port_find_pool(r->allocator, id);
  }
  return r->pools[pool];
}

static weir_cu_stream stream_of(const replay *r, const weir__recording_entry *event) {
  return r->plan->streams.handles[event->stream];
}

/* The first half of a request, before other threads did something: its block is taken. */
static void take_early(replay *r, size_t request) {
  const weir__recording_entry *event = &r->events[request];
  weir__private_pool *pool = pool_of(r, r->plan->entries[request].pool);
  r->asks = request;
  r->taken = weir__port_take(r->allocator, pool, event->size, stream_of(r, event));
  r->taken_for = request;
}

/* The second half of it. */
static weir_status hand_out(replay *r, const weir__recording_entry *event, uint64_t *address) {
  r->taken_for = r->count;
  return r->taken ? weir__port_hand_out(r->allocator, r->taken, event->size, address) : WEIR_ERROR_OUT_OF_MEMORY;
}

/* Whether the request under way looked into the cache before another thread freed a block that would serve it. */
static bool is_raced(replay *r, const weir__recording_entry *event, weir_cu_stream stream) {
  while (r->race < r->plan->race_count && r->plan->races[r->race] < r->at)
    r->race++;
  if (!r->check || r->race == r->plan->race_count || r->plan->races[r->race] != r->at)
    return false;
  weir__port_query_events(r->allocator); /* as the request would: what another thread found done counts as freed too */
  return weir__port_is_cached(r->allocator, pool_of(r, r->plan->entries[r->at].pool), event->size, stream);
}

static weir_status ask(replay *r, const weir__recording_entry *event, uint64_t *address) {
  uint32_t pool = r->plan->entries[r->at].pool;
  weir_cu_stream stream = stream_of(r, event);
  if (event->size >= WEIR__STATE_MAX_REQUEST)
    return WEIR_ERROR_OUT_OF_MEMORY;
  if (r->taken_for == r->at)
    return hand_out(r, event, address);
  if (is_raced(r, event, stream)) {
    r->report->raced++;
    return weir__port_alloc_uncached(r->allocator, pool_of(r, pool), event->size, stream, address);
  }
  bool is_capture = pool && weir__plan_is_capture(r->plan, r->at);
  if (is_capture)
    weir__port_begin_capture(r->allocator, stream);
  weir_status status = weir__port_alloc(r->allocator, pool_of(r, pool), event->size, stream, address);
  if (is_capture)
    weir__port_end_capture(r->allocator);
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
  uint64_t address = 0;
  r->grew = false;
  r->asks = r->at;
  weir_status status = ask(r, event, &address);
  bool oom = event->action == WEIR_TRACE_OOM;
  if (status == WEIR_ERROR_HOST_OUT_OF_MEMORY) { /* of this process; it says nothing about the job */
    r->host_failure = status;
    return;
  }
  if (status) {
    if (!r->report->failures++)
      note_failure(r, event->size);
    if (r->check && !(oom && status == WEIR_ERROR_OUT_OF_MEMORY))
      differs(r, r->at, "a request of %llu bytes failed, it did not in the file", (unsigned long long)event->size);
  } else if (oom) {
    /* PyTorch does not search again after it has waited for other streams. */
    if (r->check && !r->grew && weir__plan_waited(r->plan, r->at))
      r->report->rescued++;
    else if (r->check)
      differs(r, r->at, "a request of %llu bytes succeeded, it failed in the file", (unsigned long long)event->size);
    weir__port_free(r->allocator, address); /* the program did not get it */
  } else {
    r->report->allocations++;
    r->blocks[r->plan->entries[r->at].block] = address;
    if (r->check && address != event->address)
      differs(r, r->at, "%llu bytes at 0x%llx, in the file at 0x%llx", (unsigned long long)event->size,
              (unsigned long long)address, (unsigned long long)event->address);
  }
  if (r->check)
    compare_missed(r);
}

/* Frees an allocation; it waits for another stream unless `at_once`. */
static void free_block(replay *r, uint32_t block, bool at_once, uint64_t recorded) {
  if (!at_once) {
    r->held[block] = true;
    weir__port_record_stream(r->allocator, r->blocks[block], (weir_cu_stream)(uintptr_t)(HELD_BASE + block));
  }
  if (weir__port_free(r->allocator, r->blocks[block]))
    differs(r, r->at, "0x%llx could not be freed", (unsigned long long)recorded);
  r->blocks[block] = 0;
}

static void request_free(replay *r, const weir__recording_entry *event) {
  uint32_t block = r->plan->entries[r->at].block;
  if (block == WEIR__NO_BLOCK || !r->blocks[block])
    return; /* it was allocated before the recording began, or its request failed here */
  const weir__recording_entry *next = event + 1;
  bool at_once = r->at + 1 < r->count && next->action == WEIR_TRACE_FREE_COMPLETED && next->address == event->address;
  free_block(r, block, at_once, event->address);
}

static void complete(replay *r, size_t event) {
  uint32_t block = r->plan->entries[event].block;
  if (block != WEIR__NO_BLOCK)
    r->held[block] = false;
}

/* Releases private pools whose segments are released, since only pools that are not in use release memory. With `on`
 * false the pools are in use again; those that are gone are created when they are used next. */
static void end_pools(replay *r, const weir__plan_release *release, bool on) {
  for (size_t i = release->first; i < release->end; i++) {
    uint32_t pool = r->events[i].pool;
    if (!weir__is_release(&r->events[i]) || !pool || pool == WEIR__RECORDING_NO_POOL || !r->pools[pool])
      continue;
    weir_pool_id id = id_of(r, pool);
    int uses = 0;
    bool is_there = !weir_pool_use_count(r->allocator, 0, id, &uses);
    if (on && is_there && uses)
      weir_pool_release(r->allocator, 0, id);
    else if (!on && is_there && !uses)
      create_pool(r, id);
    else if (!on && !is_there)
      r->pools[pool] = NULL;
  }
}

/* While one thread empties the cache, others use arenas that it has not reached yet; so this goes arena by arena. */
static void release_arenas(replay *r, const weir__plan_release *release) {
  weir__port_query_events(r->allocator);
  for (size_t i = release->first; i < release->end; i++)
    if (weir__is_release(&r->events[i]) && i >= r->expected)
      weir__port_release_arena(r->allocator, r->events[i].address);
}

/* The program released memory: the whole cache, or that of a few private pools. */
static void empty(replay *r, const weir__plan_release *release) {
  bool is_private = true;
  for (size_t i = release->first; i < release->end && is_private; i++)
    is_private = !weir__is_release(&r->events[i]) ||
                 (r->events[i].pool && r->events[i].pool != WEIR__RECORDING_NO_POOL && r->pools[r->events[i].pool]);
  if (r->check && r->plan->recording->has_causes && r->plan->has_threads) {
    release_arenas(r, release);
    return;
  }
  end_pools(r, release, true);
  if (!is_private)
    weir_allocator_empty_cache(r->allocator);
  for (size_t i = release->first; is_private && i < release->end; i++)
    if (weir__is_release(&r->events[i]))
      weir_allocator_empty_pool(r->allocator, id_of(r, r->events[i].pool));
  end_pools(r, release, false);
}

/* Releases memory, up to the request that follows. Blocks that become free in between do so because the allocator waits
 * for them; they stay busy until the request is served. */
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

/* Applies changes of settings and limits that the program made before the event under way. */
static weir_status follow_changes(replay *r) {
  weir_status status = WEIR_OK;
  for (; !status && r->change < r->plan->change_count && r->plan->changes[r->change].event <= r->at; r->change++) {
    const weir__recording_change *change = &r->plan->changes[r->change];
    weir__settings settings;
    if (!change->conf && r->follows_limits)
      status = weir_allocator_set_limit(r->allocator, 0, change->limit);
    else if (r->follows_settings && weir__plan_change(r->plan, change, &settings))
      status = weir__port_set_settings(r->allocator, &settings);
  }
  return status;
}

static weir_status run_events(replay *r) {
  weir_status status;
  const weir__plan_release *release = r->plan->releases;
  const weir__plan_release *end = r->plan->release_count ? release + r->plan->release_count : release;
  for (r->at = r->plan->first; r->at < r->count; r->at++) {
    weir__meter_work(r->driver);
    if ((status = follow_changes(r)))
      return status;
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
        request_free(r, event);
      else if (event->action == WEIR_TRACE_FREE_COMPLETED)
        complete(r, r->at);
      else if (r->recorder && !weir__is_segment_event(event))
        r->recorder->other(r->recorder->context, r->at);
    }
    if (r->host_failure)
      return r->host_failure;
    if (r->callback.call && !r->callback.call(r->callback.context, r->allocator, r->at, r->report))
      return WEIR_OK;
    if (r->stops && r->report->differences)
      return WEIR_OK;
  }
  if (r->check)
    compare_missed(r);
  return WEIR_OK;
}

/* ---- What was there before the recording ---- */

/* Takes memory away from the device. false if there is not enough. */
static bool fill(replay *r, uint64_t bytes) {
  const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {.type = WEIR_CU_LOCATION_DEVICE}};
  weir_cu_mem_handle filler;
  return r->ledger->MemCreate(r->ledger, &filler, bytes, &prop, 0) == WEIR_CU_SUCCESS;
}

/* Installs it in the segments that it had. The device has the spare memory for that, which is taken away afterwards. */
static weir_status hold(replay *r) {
  const weir__plan *plan = r->plan;
  uint64_t spare = weir__port_install_spare(&plan->start);
  weir__state start = plan->start;
  start.segments = malloc((start.segment_count + 1) * sizeof *start.segments);
  if (!start.segments)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu segments", start.segment_count);
  for (size_t i = 0; i < start.segment_count; i++) {
    start.segments[i] = plan->start.segments[i];
    start.segments[i].stream = (int64_t)(uintptr_t)weir__replay_stream_of(&plan->streams, start.segments[i].stream);
  }
  weir_status status = weir__port_install_state(r->allocator, &plan->settings, &start, &r->installing, r->blocks);
  free(start.segments);
  if (!status && spare && !fill(r, spare))
    status = weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "the device has no room for what was there before the recording");
  if (status != WEIR_ERROR_OUT_OF_MEMORY || !r->check)
    return status;
  differs(r, 0, "%s", weir_last_error());
  return WEIR_OK;
}

/* Allocates it with requests, under the settings of the run. */
static weir_status place_anew(replay *r) {
  const weir__state *start = &r->plan->start;
  size_t block = 0;
  for (size_t i = 0; i < start->segment_count; i++) {
    const weir__state_segment *s = &start->segments[i];
    weir_pool_id id = {(uint64_t)s->pool[0], (uint64_t)s->pool[1]};
    weir__private_pool *pool = NULL;
    weir_cu_stream stream = weir__replay_stream_of(&r->plan->streams, s->stream);
    if (s->pool[0] || s->pool[1]) {
      if (!weir__port_find_pool(r->allocator, id) && create_pool(r, id))
        return WEIR_ERROR_HOST_OUT_OF_MEMORY;
      pool = weir__port_find_pool(r->allocator, id);
    }
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &start->blocks[k];
      if (!weir__state_is_active(b))
        continue;
      if (weir__port_alloc(r->allocator, pool, b->requested, stream, &r->blocks[block])) {
        r->report->unplaced++;
        if (!r->report->failures++)
          note_failure(r, b->requested);
      }
      block++;
    }
  }
  return WEIR_OK;
}

/* Statistics of the run begin after it. */
static weir_status begin(replay *r) {
  const weir__state *start = &r->plan->start;
  uint32_t block = 0;
  weir_status status = WEIR_OK;
  if (start->segment_count) {
    r->report->begin = r->holds ? WEIR__BEGINS_HELD : WEIR__BEGINS_ANEW;
    status = r->holds ? hold(r) : place_anew(r);
  }
  if (!status && r->recorder)
    r->recorder->start(r->recorder->context, r->blocks, r->check);
  if (status || !start->segment_count)
    return status;
  for (uint32_t i = 1; i < r->plan->recording->pool_count; i++) /* in use once, as those that come later */
    r->pools[i] = weir__port_find_pool(r->allocator, id_of(r, i));
  for (size_t i = 0; i < start->block_count; i++) {
    if (start->blocks[i].state == WEIR_BLOCK_ACTIVE_PENDING_FREE && r->blocks[block])
      free_block(r, block, false, start->blocks[i].address);
    block += weir__state_is_active(&start->blocks[i]);
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
  ledger.bytes = limit->memory + limit->others + (r->holds ? weir__port_install_spare(&r->plan->start) : 0);
  ledger.place = r->check ? place : r->order ? place_in_order : NULL;
  ledger.place_context = r;
  ledger.is_done = is_done;
  ledger.is_done_context = r;
  weir_status status = weir_driver_open_ledger(&ledger, &r->ledger);
  if (!status)
    status = weir__meter_open(r->ledger, &r->driver);
  if (status)
    return status;
  weir__meter_ask(r->driver, is_idle, r);
  r->driver->Init(r->driver, 0);
  weir_allocator_options allocator;
  weir_allocator_options_init(&allocator);
  allocator.conf = "";
  status = weir__port_create(r->driver, &allocator, &r->allocator);
  if (status)
    return status;
  status = weir__port_set_settings(r->allocator, r->settings);
  if (status)
    return status;
  if (!r->holds)
    weir_allocator_set_limit(r->allocator, 0, limit->limit);
  if (limit->others && !fill(r, limit->others))
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "replay: the device has no room for what other processes hold");
  status = begin(r);
  if (status)
    return status;
  if (r->check)
    weir__port_follow(r->allocator, has_passed, r);
  weir_allocator_set_limit(r->allocator, 0, limit->limit);
  if (r->recorder)
    r->recorder->begin(r->recorder->context, r->allocator);
  /* It is called inside the operation: where the next segment is placed depends on how many were compared. */
  weir_witness_fn witness = r->check ? compare : r->recorder ? record : NULL;
  return witness ? weir_allocator_set_witness(r->allocator, witness, r, WEIR_WITNESS_ALL) : WEIR_OK;
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
  r->host_failure = WEIR_OK;
  r->is_busy = limit->is_busy;
  r->order = r->check ? 0 : limit->order;
  if (r->order)
    make_slots(r);
  bool is_recorded = r->settings == &r->plan->settings && limit->limit == r->plan->limit;
  r->follows_settings = is_recorded;
  r->follows_limits = is_recorded || limit->is_recorded;
  weir_status status = set_up(r, limit);
  if (!status) {
    uint64_t begin = weir__monotonic_ns();
    status = run_events(r);
    report->seconds = (double)(weir__monotonic_ns() - begin) / 1e9;
    report->events = r->count;
    weir_allocator_get_stats(r->allocator, 0, &report->stats);
    report->calls = *weir__meter_read(r->driver);
    if (!status && r->recorder)
      r->recorder->end(r->recorder->context, r->allocator);
  }
  weir_allocator_destroy(r->allocator);
  weir_driver_close(r->driver);
  weir_driver_close(r->ledger);
  return status;
}

weir_status weir__replay_run(const weir__plan *plan, const weir__settings *settings, const weir__plan_limit *limit,
                             weir__run_kind kind, const weir__replay_callback *callback,
                             const weir__replay_recorder *recorder, size_t *release, weir__replay_report *report) {
  replay r = {.plan = plan,
              .settings = settings,
              .events = plan->events,
              .count = plan->count,
              .check = kind == WEIR__RUN_CHECKED || kind == WEIR__RUN_TO_DIFFERENCE,
              .stops = kind == WEIR__RUN_TO_DIFFERENCE,
              .holds = kind != WEIR__RUN_ANEW,
              .recorder = recorder,
              .report = report};
  if (callback)
    r.callback = *callback;
  r.pools = calloc(plan->recording->pool_count + 1, sizeof *r.pools);
  r.blocks = calloc(plan->block_count + 1, sizeof *r.blocks);
  r.held = calloc(plan->block_count + 1, sizeof *r.held);
  weir_status status = r.pools && r.blocks && r.held ? run_once(&r, limit)
                                                     : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  free(r.pools);
  free(r.blocks);
  free(r.held);
  if (release)
    *release = r.release;
  return status;
}

/* ---- Runs under other settings ---- */

weir_status weir__replay_check_memory(uint64_t memory) {
  if (memory <= WEIR__REPLAY_MAX_MEMORY)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "a device of %llu bytes; at most %llu are allowed",
                    (unsigned long long)memory, (unsigned long long)WEIR__REPLAY_MAX_MEMORY);
}

weir_status weir__replayer_recheck(const weir__replayer *replayer, const weir__replay_callback *callback,
                                   weir__replay_report *report) {
  weir_status status = weir__replay_run(&replayer->plan, &replayer->plan.settings, &replayer->recorded,
                                        WEIR__RUN_CHECKED, callback, NULL, NULL, report);
  report->limit_is_inferred = replayer->report.limit_is_inferred;
  return status;
}

uint64_t weir__replayer_limit_at(const weir__replayer *replayer, size_t event) {
  return weir__plan_limit_at(&replayer->plan, event);
}

const weir__state *weir__replayer_start(const weir__replayer *replayer) { return &replayer->plan.start; }

const weir__settings *weir__replayer_settings(const weir__replayer *replayer) { return &replayer->plan.settings; }

double weir__replayer_seconds(const weir__replayer *replayer) {
  const weir__plan *plan = &replayer->plan;
  int64_t first = plan->events[0].time_us, last = plan->events[plan->count - 1].time_us;
  return first > 0 && last > first ? (double)(last - first) / 1e6 : 0;
}

uint64_t weir__replayer_least(const weir__replayer *replayer, size_t last) {
  const weir__plan *plan = &replayer->plan;
  const weir__state *start = weir__replayer_start(replayer);
  uint64_t live = 0; /* may wrap around, since a file may contain any number */
  int64_t peak = 0;
  for (size_t i = 0; i < start->block_count; i++)
    live += start->blocks[i].state == WEIR_BLOCK_ACTIVE_ALLOCATED ? start->blocks[i].requested : 0;
  for (size_t i = 0; i < plan->count && i <= last; i++) {
    bool is_asked =
        plan->events[i].action == WEIR_TRACE_ALLOC || (plan->events[i].action == WEIR_TRACE_OOM && i == last);
    live += is_asked ? plan->events[i].size : 0;
    live -= plan->events[i].action == WEIR_TRACE_FREE_REQUESTED ? plan->events[i].size : 0;
    peak = (int64_t)live > peak ? (int64_t)live : peak;
  }
  return ((uint64_t)peak + WEIR__MIN_PAGE - 1) / WEIR__MIN_PAGE * WEIR__MIN_PAGE;
}

/* A fraction of 1 is a limit if the program sets it, and none if the settings have it. */
weir__capacity weir__replay_part(uint64_t memory, double fraction, double of_settings) {
  weir__capacity capacity = {.memory = memory, .limit = WEIR__NO_LIMIT};
  if (fraction > 0 || of_settings < 1)
    capacity.limit = (uint64_t)((fraction > 0 ? fraction : of_settings) * (double)memory + 0.5);
  return capacity;
}

weir__capacity weir__replayer_capacity(const weir__replayer *replayer) {
  const weir__replay_report *report = &replayer->report;
  weir__capacity capacity = {.limit = replayer->recorded.limit, .is_recorded = replayer->recorded.is_recorded};
  bool was_short = report->stats.num_alloc_retries || report->stats.num_ooms;
  /* Inferred memory of the device is enough for what the recording shows. It is a fact only where memory ran short. */
  if (replayer->is_known || (capacity.limit == WEIR__NO_LIMIT && was_short))
    capacity.memory = replayer->recorded.memory;
  return capacity;
}

bool weir__replayer_is_range(const weir__replayer *replayer, const weir__settings *settings) {
  const weir__plan *plan = &replayer->plan;
  if (!settings)
    settings = &plan->settings;
  return settings->moving_pages && (plan->has_streams || settings->moving_pages_completed_only);
}

bool weir__replayer_depends_on_order(const weir__replayer *replayer, const weir__settings *settings) {
  return !(settings ? settings : &replayer->plan.settings)->expandable_segments;
}

weir_status weir__replayer_capacity_of(const weir__replayer *replayer, const weir__settings *settings, uint64_t memory,
                                       double fraction, weir__capacity *capacity) {
  bool is_recorded = !settings || settings == &replayer->plan.settings;
  double of_settings = is_recorded ? replayer->plan.fraction : settings->memory_fraction;
  if (memory)
    *capacity = weir__replay_part(memory, fraction, of_settings);
  else if (of_settings < 1 && of_settings != replayer->plan.fraction)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "per_process_memory_fraction is a part of the device's memory, which a file does not record: say "
                      "how much it is");
  else
    *capacity = weir__replayer_capacity(replayer);
  return WEIR_OK;
}

/* Enough memory for most settings: replay is faster on a smaller device. */
static uint64_t probably_enough(const weir__plan *plan) {
  if (plan->peak < 4ull << 30)
    return 16ull << 30;
  return plan->peak > WEIR__REPLAY_ENOUGH_MEMORY / 4 ? WEIR__REPLAY_ENOUGH_MEMORY : 4 * plan->peak;
}

static bool was_short(const weir__meter_counts *calls) {
  return calls->of[WEIR__METER_ALLOC].failed || calls->of[WEIR__METER_CREATE].failed ||
         calls->of[WEIR__METER_RESERVE].failed;
}

weir_status weir__replayer_run(const weir__replayer *replayer, const weir__settings *settings,
                               const weir__capacity *capacity, const weir__replay_callback *callback,
                               weir__replay_report *report) {
  return weir__replayer_run_recorded(replayer, settings, capacity, callback, NULL, report);
}

weir_status weir__replayer_run_recorded(const weir__replayer *replayer, const weir__settings *settings,
                                        const weir__capacity *capacity, const weir__replay_callback *callback,
                                        const weir__replay_recorder *recorder, weir__replay_report *report) {
  const weir__plan *plan = &replayer->plan;
  weir__plan_limit limit = {.limit = capacity->limit,
                            .memory = capacity->memory ? capacity->memory : probably_enough(plan),
                            .is_busy = capacity->is_busy,
                            .is_recorded = capacity->is_recorded,
                            .order = capacity->order};
  weir_status status = weir__replay_check_memory(capacity->memory);
  if (status)
    return status;
  bool has_room = plan->start.reserved <= limit.limit && plan->start.reserved <= limit.memory;
  weir__run_kind kind = settings || !has_room ? WEIR__RUN_ANEW : WEIR__RUN_HELD;
  if (!settings)
    settings = &plan->settings;
  bool is_sure = capacity->memory || limit.memory == WEIR__REPLAY_ENOUGH_MEMORY || limit.limit <= limit.memory;
  /* The callback sees one run only. */
  const weir__replay_callback *first = is_sure ? callback : NULL;
  status = weir__replay_run(plan, settings, &limit, kind, first, recorder, NULL, report);
  if (status == WEIR_ERROR_OUT_OF_MEMORY && kind == WEIR__RUN_HELD)
    status = weir__replay_run(plan, settings, &limit, kind = WEIR__RUN_ANEW, first, recorder, NULL, report);
  if (status || is_sure || (!was_short(&report->calls) && !callback))
    return status;
  if (was_short(&report->calls))
    limit.memory = WEIR__REPLAY_ENOUGH_MEMORY;
  return weir__replay_run(plan, settings, &limit, kind, callback, recorder, NULL, report);
}

/* ---- The state of a run ---- */

weir_status weir__state_of_replay(const weir__recording *recording, weir_allocator *allocator, weir__state *state) {
  size_t segments, blocks;
  weir__replay_streams streams;
  weir__port_count_state(allocator, &segments, &blocks);
  weir_status status = weir__state_make(segments, blocks, 0, state);
  if (status)
    return status;
  status = weir__replay_streams_make(recording, &streams);
  if (status) {
    weir__state_clear(state);
    return status;
  }
  weir__port_read_state(allocator, state);
  for (size_t i = 0; i < state->segment_count; i++) {
    weir_cu_stream handle = (weir_cu_stream)(uintptr_t)state->segments[i].stream;
    state->segments[i].stream = weir__replay_stream_raw(&streams, handle);
  }
  weir__replay_streams_clear(&streams);
  for (size_t i = 0; i < state->block_count; i++)
    state->blocks[i].event = WEIR__NO_ENTRY;
  status = weir__state_sort(state);
  if (status)
    weir__state_clear(state);
  return status;
}

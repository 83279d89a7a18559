#include "offline/analyse/whatif_history.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "offline/replay/replay.h"
#include "offline/replay/run.h"

#define NO_EVENT UINT32_MAX

struct weir__whatif_history {
  weir__recording recording; /* shares what is not below */
  weir__recording_device *devices;
  weir__recording_entry *entries;
  size_t count, room;
  uint32_t *origins;
  size_t origin_room;
  weir__recording_segment *segments;
  weir__recording_block *blocks;
  weir__state start;
  weir__recording_setting settings[WEIR__SETTING_LIST];
  char *conf;
};

/* A block by its address in the replay. */
typedef struct at_address {
  uint64_t address;
  uint32_t block; /* the plan's number */
} at_address;

typedef struct builder {
  weir__whatif_history *h;
  const weir__plan *plan;
  int device;
  weir__hash_map waiting;            /* at_address: freed blocks that wait for other streams */
  uint32_t *completed;               /* the recorded free_completed of each block that had to wait; or NO_EVENT */
  const uint64_t *blocks;            /* of the plan's start */
  const weir__recording_entry **run; /* the recorded entries of the last entries, if these are completed frees */
  size_t run_count, run_room;
  int64_t time;   /* of the last entry */
  size_t request; /* the request under way, + 1 */
  bool grew;      /* memory was obtained for it */
  bool is_checked;
  bool is_short; /* of host memory */
  weir_status status;
} builder;

/* ---- Entries ---- */

static void add(builder *b, const weir__recording_entry *entry, size_t event) {
  weir__whatif_history *h = b->h;
  if (h->count == UINT32_MAX - 1 || !WEIR__RESERVE(h->entries, h->room, h->count + 1) ||
      !WEIR__RESERVE(h->origins, h->origin_room, h->count + 1)) {
    b->is_short = true;
    return;
  }
  h->origins[h->count] = (uint32_t)event;
  h->entries[h->count++] = *entry;
}

/* Whether the free at an event of the recording was completed at once. */
static bool is_ordinary(const weir__plan *plan, size_t event) {
  const weir__recording_entry *e = &plan->events[event];
  return e->action == WEIR_TRACE_FREE_REQUESTED && event + 1 < plan->count &&
         e[1].action == WEIR_TRACE_FREE_COMPLETED && e[1].address == e->address;
}

static void note_waiting(builder *b, uint64_t address, uint32_t block) {
  at_address *w = address ? weir__hash_map_put(&b->waiting, sizeof *w, address) : NULL;
  b->is_short |= address && !w;
  if (w)
    w->block = block;
}

/* The recorded entry of a completed free. If the block has waited for other streams, it is its own free_completed,
 * unless the recording ends before that. */
static const weir__recording_entry *completed_of(builder *b, uint64_t address, size_t event) {
  const weir__recording_entry *source = &b->plan->events[event];
  at_address *w = weir__hash_map_find(&b->waiting, sizeof *w, address);
  if (!w)
    return is_ordinary(b->plan, event) ? source + 1 : source;
  uint32_t completed = b->completed[w->block];
  weir__hash_map_remove(&b->waiting, sizeof *w, w);
  return completed == NO_EVENT ? source : &b->plan->events[completed];
}

/* The recorded entry that an entry takes its stack, phase and thread from. */
static const weir__recording_entry *source_of(builder *b, const weir_trace_entry *entry, size_t event,
                                              const weir__recording_entry *recorded) {
  const weir__recording_entry *e = &b->plan->events[event];
  if (entry->action == WEIR_TRACE_FREE_REQUESTED) {
    if (e->action == WEIR_TRACE_FREE_REQUESTED && !is_ordinary(b->plan, event))
      note_waiting(b, entry->address, b->plan->entries[event].block);
    return e;
  }
  if (entry->action == WEIR_TRACE_FREE_COMPLETED)
    return completed_of(b, entry->address, event);
  return recorded ? recorded : e;
}

/* When an entry happened that takes its stack from `source`, while `event` was under way. */
static int64_t time_of(const builder *b, const weir__recording_entry *source, size_t event) {
  const weir__recording_entry *current = &b->plan->events[event];
  int64_t time = (b->is_checked || source <= current + 1 ? source : current)->time_us;
  return time < b->time ? b->time : time;
}

/* Frees that are completed together are in the recorded order: which of them the allocator sees first depends on the
 * streams that they waited for, and the replay has a stream of its own for each. */
static void add_completed(builder *b, const weir__recording_entry *entry, size_t event,
                          const weir__recording_entry *source) {
  weir__whatif_history *h = b->h;
  add(b, entry, event);
  if (b->is_short || !WEIR__RESERVE(b->run, b->run_room, b->run_count + 1)) {
    b->is_short = true;
    return;
  }
  size_t at = b->run_count++, first = h->count - b->run_count;
  for (; at && b->run[at - 1] > source; at--) {
    b->run[at] = b->run[at - 1];
    h->entries[first + at] = h->entries[first + at - 1];
  }
  b->run[at] = source;
  h->entries[first + at] = *entry;
  b->time = first + at ? h->entries[first + at - 1].time_us : 0;
  for (; at < b->run_count; at++)
    b->time = h->entries[first + at].time_us = time_of(b, b->run[at], event);
}

static uint32_t pool_number(const weir__recording *recording, weir_pool_id id) {
  for (size_t i = 0; i < recording->pool_count; i++)
    if ((uint64_t)recording->pools[i].id[0] == id.first && (uint64_t)recording->pools[i].id[1] == id.second)
      return (uint32_t)i;
  return WEIR__RECORDING_NO_POOL;
}

static void on_entry(void *context, const weir_trace_entry *entry, size_t event,
                     const weir__recording_entry *recorded) {
  builder *b = context;
  const weir__plan *plan = b->plan;
  const weir__recording_entry *current = &plan->events[event], *source = source_of(b, entry, event, recorded);
  bool is_segment = entry->action >= WEIR_TRACE_SEGMENT_ALLOC && entry->action <= WEIR_TRACE_SEGMENT_UNMAP;
  bool is_growth = entry->action == WEIR_TRACE_SEGMENT_ALLOC || entry->action == WEIR_TRACE_SEGMENT_MAP;
  if (b->request != event + 1) {
    b->request = event + 1;
    b->grew = false;
  }
  b->grew |= is_growth;
  weir__recording_entry made = {.address = entry->address,
                                .size = entry->bytes,
                                .time_us = time_of(b, source, event),
                                .stack = source->stack,
                                .remark = source->remark,
                                .pool = WEIR__RECORDING_NO_POOL,
                                .stream = weir__replay_stream_number(&plan->streams, entry->stream),
                                .action = (uint8_t)entry->action,
                                .thread = source->thread};
  if (source->action == WEIR__ACTION_UNKNOWN)
    made.remark = 0; /* it has the name of the action */
  if (source->pool != WEIR__RECORDING_NO_POOL)
    made.pool = pool_number(plan->recording, entry->pool);
  if (is_segment)
    made.is_for_request = recorded ? recorded->is_for_request : weir__is_request(current);
  else if (entry->action == WEIR_TRACE_ALLOC || entry->action == WEIR_TRACE_OOM)
    made.is_for_request = b->is_checked ? source->is_for_request : b->grew;
  else
    made.is_for_request = source->is_for_request;
  if (b->is_checked && entry->action == WEIR_TRACE_OOM && source->action == WEIR_TRACE_OOM)
    made.address = source->address; /* the device's free memory: other processes may have had some */
  if (entry->action == WEIR_TRACE_FREE_COMPLETED)
    add_completed(b, &made, event, source);
  else {
    b->run_count = 0;
    b->time = made.time_us;
    add(b, &made, event);
  }
}

static void on_other(void *context, size_t event) {
  builder *b = context;
  weir__recording_entry made = b->plan->events[event];
  b->run_count = 0;
  b->time = made.time_us = made.time_us < b->time ? b->time : made.time_us;
  add(b, &made, event);
}

/* ---- The beginning ---- */

static void on_start(void *context, const uint64_t *blocks, bool is_checked) {
  builder *b = context;
  const weir__state *start = &b->plan->start;
  uint32_t block = 0;
  weir__hash_map_clear(&b->waiting);
  weir__state_clear(&b->h->start);
  b->h->count = 0;
  b->blocks = blocks;
  b->is_checked = is_checked;
  b->time = 0;
  b->run_count = 0;
  b->request = 0;
  for (size_t i = 0; i < start->block_count; i++) {
    if (start->blocks[i].state == WEIR_BLOCK_ACTIVE_PENDING_FREE)
      note_waiting(b, blocks[block], block);
    block += weir__state_is_active(&start->blocks[i]);
  }
}

/* The stacks of the recording's start, wherever its blocks are now. */
static void take_start_stacks(builder *b, weir__state *state, const weir__hash_map *places) {
  for (size_t i = 0; i < state->block_count; i++) {
    const at_address *place = weir__hash_map_find(places, sizeof *place, state->blocks[i].address);
    if (place && weir__state_is_active(&state->blocks[i]))
      state->blocks[i].stack = b->plan->start.blocks[place->block].stack;
  }
}

static void on_begin(void *context, weir_allocator *allocator) {
  builder *b = context;
  const weir__state *start = &b->plan->start;
  weir__hash_map places = {0};
  size_t block = 0;
  if (!start->segment_count || b->status)
    return;
  b->status = weir__state_of_replay(b->plan->recording, allocator, &b->h->start);
  for (size_t i = 0; i < start->block_count && !b->status; i++) {
    if (!weir__state_is_active(&start->blocks[i]))
      continue;
    uint64_t address = b->blocks[block++];
    if (b->is_checked)
      address = start->blocks[i].address;
    at_address *place = address ? weir__hash_map_put(&places, sizeof *place, address) : NULL;
    b->is_short |= address && !place;
    if (place)
      place->block = (uint32_t)i;
  }
  if (!b->status)
    take_start_stacks(b, &b->h->start, &places);
  weir__hash_map_clear(&places);
}

/* ---- The end ---- */

static uint16_t stream_number(const weir__plan *plan, int64_t raw) {
  return weir__replay_stream_number(&plan->streams, weir__replay_stream_of(&plan->streams, raw));
}

static void add_block(weir__recording_segment *segment, weir__recording_block *to, const weir__state_block *from) {
  bool is_active = weir__state_is_active(from);
  *to = (weir__recording_block){.address = from->address,
                                .size = from->size,
                                .requested = from->requested,
                                .stack = from->stack,
                                .state = from->state};
  segment->size += from->size;
  segment->block_count++;
  segment->active += is_active ? from->size : 0;
  segment->requested += is_active ? from->requested : 0;
  segment->allocated += from->state == WEIR_BLOCK_ACTIVE_ALLOCATED ? from->size : 0;
}

/* One segment for each run of mapped pages. */
static void list_segments(builder *b, const weir__state *state, size_t *count) {
  weir__whatif_history *h = b->h;
  weir__recording_block *block = h->blocks;
  weir__recording_segment *to = h->segments;
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    bool is_open = false;
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *from = &state->blocks[k];
      if (from->state == WEIR__BLOCK_UNMAPPED) {
        is_open = false;
        continue;
      }
      if (!is_open)
        *to++ = (weir__recording_segment){
            .address = from->address,
            .blocks = block,
            .pool = pool_number(b->plan->recording, (weir_pool_id){(uint64_t)s->pool[0], (uint64_t)s->pool[1]}),
            .device = b->device,
            .stream = stream_number(b->plan, s->stream),
            .is_large = !s->is_small,
            .is_expandable = s->is_expandable};
      is_open = true;
      add_block(to - 1, block++, from);
    }
  }
  *count = (size_t)(to - h->segments);
}

/* Segments have the stack of the entry that made them. */
static void find_segment_stacks(const weir__whatif_history *h, size_t segment_count) {
  weir__hash_map made = {0};
  for (size_t i = 0; i < h->count; i++) {
    const weir__recording_entry *e = &h->entries[i];
    if (!weir__is_growth(e) || !e->stack || !e->address)
      continue;
    at_address *m = weir__hash_map_put(&made, sizeof *m, e->address);
    if (m)
      m->block = e->stack;
  }
  for (size_t i = 0; i < segment_count; i++) {
    const at_address *m = weir__hash_map_find(&made, sizeof *m, h->segments[i].address);
    h->segments[i].stack = m ? m->block : 0;
  }
  weir__hash_map_clear(&made);
}

static void on_end(void *context, weir_allocator *allocator) {
  builder *b = context;
  weir__whatif_history *h = b->h;
  weir__state state;
  size_t pieces = 0, count = 0;
  if (b->status || b->is_short)
    return;
  b->status = weir__state_of_replay(b->plan->recording, allocator, &state);
  if (b->status)
    return;
  weir__state_take_stacks(&state, &h->start);
  if (h->count)
    weir__state_find_events(&state, h->entries, h->count - 1);
  for (size_t i = 0; i < state.block_count; i++)
    pieces += state.blocks[i].state == WEIR__BLOCK_UNMAPPED;
  free(h->segments);
  free(h->blocks);
  h->segments = calloc(state.segment_count + pieces + 1, sizeof *h->segments);
  h->blocks = calloc(state.block_count + 1, sizeof *h->blocks);
  if (h->segments && h->blocks) {
    list_segments(b, &state, &count);
    find_segment_stacks(h, count);
    h->recording.segment_count = h->devices[b->device].segment_count = count;
    h->recording.block_count = state.block_count;
  } else
    b->is_short = true;
  weir__state_clear(&state);
}

/* ---- The recording ---- */

static weir_status make_settings(weir__whatif_history *h, const weir__settings *settings) {
  size_t length = weir__settings_format(settings, NULL, 0);
  h->conf = malloc(length + 1);
  if (!h->conf)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a predicted history");
  weir__settings_format(settings, h->conf, length + 1);
  weir__setting_list_make(settings, h->conf, h->settings);
  h->recording.settings = h->settings;
  h->recording.setting_count = WEIR__SETTING_LIST;
  h->recording.conf = h->conf;
  h->recording.changes = NULL; /* the settings and the limit stay */
  h->recording.change_count = 0;
  return WEIR_OK;
}

static void finish(weir__whatif_history *h, const weir__plan *plan, int device) {
  weir__recording *r = &h->recording;
  weir__recording_device *d = &h->devices[device];
  d->events = r->events = h->entries;
  d->event_count = r->event_count = h->count;
  d->segments = r->segments = h->segments;
  d->start = h->start.segment_count ? &h->start : NULL;
  d->dropped = plan->recording->devices[device].dropped;
  d->peak_allocated = plan->recording->devices[device].peak_allocated;
  d->peak_reserved = plan->recording->devices[device].peak_reserved;
  r->has_history = true;
  r->is_events_only = false;
  r->is_cut_off = r->was_killed = false;
}

/* The recorded free_completed of each block that waited for other streams. */
static bool find_completed(builder *b) {
  const weir__plan *plan = b->plan;
  b->completed = malloc((plan->block_count + 1) * sizeof *b->completed);
  if (!b->completed)
    return false;
  memset(b->completed, 0xff, (plan->block_count + 1) * sizeof *b->completed);
  for (size_t i = plan->first; i < plan->count; i++)
    if (plan->events[i].action == WEIR_TRACE_FREE_COMPLETED && plan->entries[i].block != WEIR__NO_BLOCK &&
        (!i || !is_ordinary(plan, i - 1)))
      b->completed[plan->entries[i].block] = (uint32_t)i;
  return true;
}

static weir_status run(builder *b, const weir__replayer *replayer, const weir__settings *settings,
                       const weir__capacity *capacity, weir__replay_report *report) {
  const weir__replay_recorder recorder = {
      .start = on_start, .begin = on_begin, .entry = on_entry, .other = on_other, .end = on_end, .context = b};
  weir_status status;
  if (!settings && !replayer->report.differences)
    status = weir__replay_run(b->plan, &b->plan->settings, &replayer->recorded, WEIR__RUN_CHECKED, NULL, &recorder,
                              NULL, report);
  else
    status = weir__replayer_run_recorded(replayer, settings, capacity, NULL, &recorder, report);
  if (!status)
    status = b->status;
  if (!status && b->is_short)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a predicted history of %zu entries",
                        b->h->count);
  return status;
}

weir_status weir__whatif_history_make(const weir__replayer *replayer, const weir__settings *settings,
                                      const weir__capacity *capacity, weir__replay_report *report,
                                      weir__whatif_history **history) {
  const weir__plan *plan = &replayer->plan;
  const weir__recording *from = plan->recording;
  builder b = {.plan = plan, .h = calloc(1, sizeof *b.h)};
  weir__whatif_history *h = b.h;
  while (from->devices[b.device].events != plan->events)
    b.device++;
  if (h) {
    h->recording = *from;
    h->devices = calloc(from->device_count + 1, sizeof *h->devices);
    h->recording.devices = h->devices;
    h->recording.host = (weir__recording_device){0};
    h->recording.has_host = false;
    h->recording.early = NULL;
    h->recording.early_count = 0;
  }
  weir_status status = WEIR_OK;
  /* A history has about as many entries under other settings. */
  if (!h || !h->devices || !WEIR__RESERVE(h->entries, h->room, plan->count + plan->count / 16 + 64) ||
      !WEIR__RESERVE(h->origins, h->origin_room, plan->count + plan->count / 16 + 64) || !find_completed(&b))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a predicted history");
  if (!status)
    status = run(&b, replayer, settings, capacity, report);
  if (!status) {
    if (settings)
      status = make_settings(h, settings);
    else {
      h->recording.early = from->early;
      h->recording.early_count = from->early_count;
    }
    h->devices[b.device].memory = capacity && capacity->memory ? capacity->memory : from->devices[b.device].memory;
    finish(h, plan, b.device);
  }
  weir__hash_map_clear(&b.waiting);
  free(b.completed);
  free(b.run);
  if (status) {
    weir__whatif_history_free(h);
    return status;
  }
  *history = h;
  return WEIR_OK;
}

void weir__whatif_history_free(weir__whatif_history *h) {
  if (!h)
    return;
  free(h->devices);
  free(h->entries);
  free(h->origins);
  free(h->segments);
  free(h->blocks);
  free(h->conf);
  weir__state_clear(&h->start);
  free(h);
}

const weir__recording *weir__whatif_history_recording(const weir__whatif_history *history) {
  return &history->recording;
}

const uint32_t *weir__whatif_history_origins(const weir__whatif_history *history) { return history->origins; }

#include "offline/analyse/explain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "base/base.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/explain_remedies.h"
#include "offline/analyse/leaks.h"
#include "offline/replay/plan.h"

/* What is collected while the history is replayed. */
typedef struct view {
  const weir__recording *recording;
  size_t target;
  bool is_taken;
  size_t rescued;
  bool was_rescued; /* the request at the target */
  uint64_t peak;    /* reserved bytes in the whole recording */
  uint64_t memory;  /* with which the replayer was opened */
  double fraction;
  weir__settings settings;
  weir__state state;
  weir_status status;
} view;

static bool look(void *context, weir_allocator *allocator, size_t event, const weir__replay_report *report) {
  view *v = context;
  if (event < v->target) {
    v->rescued = report->rescued;
    return true;
  }
  v->is_taken = true;
  v->was_rescued = report->rescued > v->rescued;
  v->status = weir__state_of_replay(v->recording, allocator, &v->state);
  return false;
}

/* ---- Which moment ---- */

static weir_status choose(const weir__recording_device *device, const weir__explain_options *options,
                          const weir__summary *summary, weir__explanation *x) {
  bool has_oom = summary->actions[WEIR_TRACE_OOM] > 0;
  x->moment = options->moment;
  if (x->moment == WEIR_OFFLINE_AT_AUTO)
    x->moment = has_oom ? WEIR_OFFLINE_AT_OOM : device->event_count ? WEIR_OFFLINE_AT_PEAK : WEIR_OFFLINE_AT_END;
  switch (x->moment) {
  case WEIR_OFFLINE_AT_OOM:
    if (!has_oom)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "device %d has no request that ran out of memory; --at peak shows "
                        "when most was in use",
                        options->device);
    x->event = summary->first_oom;
    break;
  case WEIR_OFFLINE_AT_PEAK:
    x->event = summary->live.event;
    break;
  case WEIR_OFFLINE_AT_END:
    x->event = device->event_count ? device->event_count - 1 : 0;
    break;
  default:
    x->event = options->event;
    break;
  }
  if (x->moment != WEIR_OFFLINE_AT_END && x->event >= device->event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "device %d has no entry %zu: its history has %zu entries",
                      options->device, x->event, device->event_count);
  if (x->moment == WEIR_OFFLINE_AT_EVENT && device->events[x->event].action == WEIR_TRACE_OOM)
    x->moment = WEIR_OFFLINE_AT_OOM;
  return WEIR_OK;
}

static size_t next_oom(const weir__recording_device *device, size_t first) {
  size_t i = first + 1;
  while (i < device->event_count && device->events[i].action != WEIR_TRACE_OOM)
    i++;
  return i;
}

/* Whether the list of segments shows the state at an event, since nothing happened after it: as in a snapshot that is
 * written when memory runs out. */
static bool is_last(const weir__recording_device *device, size_t event) {
  for (size_t i = event + 1; i < device->event_count; i++)
    if (device->events[i].action <= WEIR_TRACE_SEGMENT_UNMAP)
      return false;
  return true;
}

/* ---- The request ---- */

/* Where a request looks for blocks. */
typedef struct request_place {
  int64_t stream, pool[2];
  bool is_small;
} request_place;

static bool may_get(const request_place *seeker, const weir__state_segment *segment) {
  return segment->stream == seeker->stream && segment->pool[0] == seeker->pool[0] &&
         segment->pool[1] == seeker->pool[1] && segment->is_small == seeker->is_small;
}

/* Before PyTorch 2.12 the pool of a request that failed is not recorded: it is assumed to be that of the last request.
 * */
static void seek(const weir__recording *recording, const weir__recording_device *device, size_t event,
                 const weir__state *state, weir__explanation *x, request_place *seeker) {
  const weir__recording_entry *e = &device->events[event];
  *seeker = (request_place){.stream = recording->streams[e->stream], .is_small = x->is_small};
  if (e->pool != WEIR__RECORDING_NO_POOL) {
    seeker->pool[0] = recording->pools[e->pool].id[0];
    seeker->pool[1] = recording->pools[e->pool].id[1];
  } else {
    size_t i = event;
    while (i > 0 && device->events[i].action != WEIR_TRACE_ALLOC)
      i--;
    const weir__state_segment *s = weir__state_find(state, device->events[i].address);
    if (device->events[i].action == WEIR_TRACE_ALLOC && s)
      memcpy(seeker->pool, s->pool, sizeof seeker->pool);
  }
  x->is_private = seeker->pool[0] || seeker->pool[1];
  x->is_capture = x->is_private && (seeker->pool[0] || e->pool == WEIR__RECORDING_NO_POOL);
}

static void read_request(const weir__recording_entry *e, const weir__settings *settings, weir__explanation *x) {
  x->has_request = true;
  x->request = e->size;
  x->rounded = weir__port_round(settings, e->size);
  x->wanted = weir__port_segment_bytes(settings, e->size);
  x->mapped = x->wanted;
  x->is_small = x->rounded <= WEIR__PORT_SMALL_MAX;
  x->stream = e->stream;
  x->stack = e->stack;
  if (e->action == WEIR_TRACE_OOM) {
    x->has_device_free = true;
    x->device_free = e->address;
  }
}

/* ---- The limit, and what was missing ---- */

/* What an expandable segment would have to map for the request. The allocator takes the lowest unmapped range that is
 * long enough together with the free blocks around it. There is room after the last page. */
static uint64_t bytes_to_map(const weir__state *state, const request_place *seeker, const weir__settings *settings,
                             uint64_t bytes) {
  uint64_t page = seeker->is_small ? WEIR__PORT_SMALL_SEGMENT : settings->large_segment_size;
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    if (!s->is_expandable || !may_get(seeker, s))
      continue;
    uint64_t have = 0, unmapped = 0; /* of the current run of free and unmapped blocks */
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &state->blocks[k];
      if (weir__state_is_active(b)) {
        have = unmapped = 0;
        continue;
      }
      uint64_t take = b->size < bytes - have ? b->size : bytes - have;
      if (b->state == WEIR__BLOCK_UNMAPPED)
        unmapped += (take + page - 1) / page * page;
      have += take;
      if (have == bytes && unmapped)
        return unmapped;
      if (have == bytes) /* a cached block, which the request would have got */
        have = unmapped = 0;
    }
    return unmapped + (bytes - have + page - 1) / page * page;
  }
  return (bytes + page - 1) / page * page;
}

/* The limit at the failure: what the program was allowed, or what the device had. `x->limit` is the replay's. */
static void find_limit(weir__explanation *x) {
  bool is_full = x->has_device_free && x->device_free < x->mapped;
  uint64_t device = x->reserved + x->device_free, refused;
  x->limit_max = x->limit;
  if (is_full && (x->limit == UINT64_MAX || x->limit_is_device || (!x->limit_is_inferred && device < x->limit))) {
    x->limit = x->limit_max = device;
    x->limit_is_device = true;
    x->limit_is_inferred = false;
  } else if (x->limit_is_inferred && !__builtin_add_overflow(x->reserved, x->wanted, &refused) && refused > x->limit)
    x->limit_max = refused - 1;
}

/* How much memory was missing. Not known for a failure that neither a limit nor a full device explains. */
static void find_missing(weir__explanation *x) {
  bool is_full = x->has_device_free && x->device_free < x->mapped;
  uint64_t of_device = is_full ? x->mapped - x->device_free : 0, taken;
  x->missing_max = x->wanted; /* no matter how much was free */
  if (x->limit_is_device) {
    uint64_t room = x->limit > x->reserved ? x->limit - x->reserved : 0;
    x->has_missing = room < x->mapped;
    if (x->has_missing)
      x->missing_min = x->missing_max = x->mapped - room;
    if (x->has_missing && x->limit_is_inferred)
      x->missing_min = 1;
    return;
  }
  if (x->limit == UINT64_MAX || __builtin_add_overflow(x->reserved, x->wanted, &taken))
    return;
  uint64_t least = taken > x->limit_max ? taken - x->limit_max : 0;
  uint64_t most = taken > x->limit ? taken - x->limit : 0;
  x->missing_min = least > of_device ? least : of_device;
  x->missing_max = most > of_device ? most : of_device;
  x->has_missing = x->missing_min > 0;
}

/* ---- Where the bytes are ---- */

static weir__byte_use use_of_free(const weir__state_segment *s, const weir__state_block *b,
                                  const request_place *seeker) {
  bool is_whole = b->size == s->size;
  if (!seeker)
    return s->pool[0] || s->pool[1] ? WEIR__USE_FREE_POOL : is_whole ? WEIR__USE_FREE_WHOLE : WEIR__USE_FREE_SPLIT;
  if (s->pool[0] != seeker->pool[0] || s->pool[1] != seeker->pool[1])
    return WEIR__USE_FREE_POOL;
  if (s->stream != seeker->stream)
    return WEIR__USE_FREE_STREAM;
  if (s->is_small != seeker->is_small)
    return WEIR__USE_FREE_CLASS;
  return is_whole ? WEIR__USE_FREE_WHOLE : WEIR__USE_FREE_SPLIT;
}

static void add(weir__explanation *x, weir__byte_use use, uint64_t bytes) {
  x->bytes[use] += bytes;
  x->blocks[use]++;
}

static void count_bytes(const weir__state *state, const request_place *seeker, weir__explanation *x) {
  x->reserved = state->reserved;
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &state->blocks[k];
      if (b->state == WEIR_BLOCK_ACTIVE_ALLOCATED) {
        uint64_t asked = b->requested < b->size ? b->requested : b->size;
        add(x, WEIR__USE_LIVE, asked);
        if (asked < b->size)
          add(x, WEIR__USE_ROUNDING, b->size - asked);
      } else if (b->state == WEIR_BLOCK_ACTIVE_PENDING_FREE)
        add(x, WEIR__USE_WAITING, b->size);
      else if (b->state == WEIR_BLOCK_INACTIVE) {
        weir__byte_use use = use_of_free(s, b, seeker);
        uint64_t *largest =
            use == WEIR__USE_FREE_WHOLE || use == WEIR__USE_FREE_SPLIT ? &x->largest_hole : &x->largest_elsewhere;
        add(x, use, b->size);
        *largest = b->size > *largest ? b->size : *largest;
      }
    }
  }
}

static int by_size(const void *a, const void *b) {
  const weir__hole *x = a, *y = b;
  return x->size != y->size ? (x->size < y->size) - (x->size > y->size)
                            : (x->address > y->address) - (x->address < y->address);
}

static weir_status find_holes(const weir__state *state, const request_place *seeker, weir__explanation *x) {
  size_t count = 0;
  weir__hole *all = malloc((state->block_count + 1) * sizeof *all);
  if (!all)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu blocks", state->block_count);
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    for (size_t k = s->first; k < s->first + s->count; k++) {
      const weir__state_block *b = &state->blocks[k];
      if (b->state == WEIR_BLOCK_INACTIVE)
        all[count++] = (weir__hole){b->address, b->size, use_of_free(s, b, seeker)};
    }
  }
  qsort(all, count, sizeof *all, by_size);
  x->hole_count = count < WEIR__HOLES ? count : WEIR__HOLES;
  memcpy(x->holes, all, x->hole_count * sizeof *all);
  free(all);
  return WEIR_OK;
}

/* ---- Pins: the live blocks in the way ---- */

static void add_block(weir__pin *pin, const weir__state_block *b) {
  pin->pinned += b->size;
  pin->count++;
  size_t at = pin->block_count < WEIR__PIN_BLOCKS ? pin->block_count++ : WEIR__PIN_BLOCKS - 1;
  if (pin->count > WEIR__PIN_BLOCKS && b->size <= pin->blocks[at].size)
    return;
  for (; at > 0 && pin->blocks[at - 1].size < b->size; at--)
    pin->blocks[at] = pin->blocks[at - 1];
  pin->blocks[at] = (weir__explained_block){b->address, b->size, b->requested, b->event, b->stack};
}

static void fill_pin(const weir__state *state, const weir__state_segment *s, size_t from, size_t to, weir__pin *pin) {
  *pin = (weir__pin){.segment = s->address, .bytes = s->size};
  for (size_t i = s->first; i < s->first + s->count; i++)
    if (state->blocks[i].state == WEIR_BLOCK_INACTIVE)
      pin->free += state->blocks[i].size;
  for (size_t i = from; i < to; i++)
    if (weir__state_is_active(&state->blocks[i]))
      add_block(pin, &state->blocks[i]);
}

/* The run of blocks in a segment that has at least `bytes` bytes and the fewest live ones. false if there is none. */
static bool best_run(const weir__state *state, const weir__state_segment *s, uint64_t bytes, size_t *from, size_t *to,
                     uint64_t *live) {
  uint64_t length = 0, active = 0;
  size_t begin = s->first, end = s->first + s->count;
  bool found = false;
  for (size_t i = begin; i < end; i++) {
    const weir__state_block *b = &state->blocks[i];
    if (b->state == WEIR__BLOCK_UNMAPPED) {
      length = active = 0;
      begin = i + 1;
      continue;
    }
    length += b->size;
    active += weir__state_is_active(b) ? b->size : 0;
    while (begin < i && length - state->blocks[begin].size >= bytes) {
      length -= state->blocks[begin].size;
      active -= weir__state_is_active(&state->blocks[begin]) ? state->blocks[begin].size : 0;
      begin++;
    }
    if (length >= bytes && (!found || active < *live)) {
      found = true;
      *live = active;
      *from = begin;
      *to = i + 1;
    }
  }
  return found;
}

typedef struct candidate {
  size_t segment, from, to; /* blocks */
  uint64_t live, size;
} candidate;

static int by_live(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  return x->live != y->live ? (x->live > y->live) - (x->live < y->live)
                            : (x->segment > y->segment) - (x->segment < y->segment);
}

/* By live bytes in proportion to the size. */
static int by_part(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  double p = (double)x->live / (double)x->size, q = (double)y->live / (double)y->size;
  return p != q ? (p > q) - (p < q) : (x->segment > y->segment) - (x->segment < y->segment);
}

static void keep(const weir__state *state, const candidate *c, size_t count, weir__explanation *x) {
  x->pin_count = count < WEIR__PINS ? count : WEIR__PINS;
  for (size_t i = 0; i < x->pin_count; i++)
    fill_pin(state, &state->segments[c[i].segment], c[i].from, c[i].to, &x->pins[i]);
}

/* Segments that could serve the request. Full ones do not count. */
static size_t find_runs(const weir__state *state, const request_place *seeker, uint64_t bytes, candidate *out) {
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    candidate c = {.segment = i, .size = state->segments[i].size};
    if (may_get(seeker, &state->segments[i]) && best_run(state, &state->segments[i], bytes, &c.from, &c.to, &c.live) &&
        c.live < bytes)
      out[count++] = c;
  }
  qsort(out, count, sizeof *out, by_live);
  return count;
}

/* Segments that could be released: fixed ones of the default pool with free blocks. */
static size_t find_segments(const weir__state *state, candidate *out) {
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    candidate c = {i, s->first, s->first + s->count, 0, s->size};
    for (size_t k = c.from; k < c.to; k++)
      c.live += weir__state_is_active(&state->blocks[k]) ? state->blocks[k].size : 0;
    if (!s->is_expandable && !s->pool[0] && !s->pool[1] && c.live && c.live < s->size)
      out[count++] = c;
  }
  qsort(out, count, sizeof *out, by_part);
  return count;
}

/* There are two ways to make room, a hole in a segment that the request may use, or segments that could be released.
 * The one with fewer live bytes is reported. */
static weir_status find_pins(const weir__state *state, const request_place *seeker, weir__explanation *x) {
  candidate *runs = calloc(2 * state->segment_count + 2, sizeof *runs);
  if (!runs)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu segments", state->segment_count);
  candidate *back = runs + state->segment_count + 1;
  size_t run_count = find_runs(state, seeker, x->rounded, runs), back_count = find_segments(state, back);
  uint64_t missing = x->missing_max;
  uint64_t room = 0, live = 0;
  size_t used = 0;
  while (used < back_count && room < missing) {
    room += back[used].size;
    live += back[used++].live;
  }
  bool goes_back = missing && room >= missing;
  if (run_count && (!goes_back || runs[0].live <= live)) {
    x->pins_serve = true;
    keep(state, runs, run_count, x);
  } else if (goes_back) {
    keep(state, back, used, x);
    x->pin_segments = used;
    x->pin_bytes = live;
    x->pin_room = room;
    for (size_t i = 0; i < used; i++)
      for (size_t k = back[i].from; k < back[i].to; k++)
        x->pin_blocks += weir__state_is_active(&state->blocks[k]);
  }
  free(runs);
  return WEIR_OK;
}

/* ---- The cause ---- */

static weir_offline_cause cause_of(const weir__explanation *x, bool was_rescued) {
  static const struct {
    weir__byte_use use;
    weir_offline_cause cause;
  } stranded[] = {{WEIR__USE_FREE_SPLIT, WEIR_OFFLINE_CAUSE_FRAGMENTED},
                  {WEIR__USE_FREE_STREAM, WEIR_OFFLINE_CAUSE_STREAMS},
                  {WEIR__USE_FREE_POOL, WEIR_OFFLINE_CAUSE_POOLS},
                  {WEIR__USE_FREE_CLASS, WEIR_OFFLINE_CAUSE_CLASS},
                  {WEIR__USE_WAITING, WEIR_OFFLINE_CAUSE_WAITING}};
  if (was_rescued)
    return WEIR_OFFLINE_CAUSE_WAITING;
  uint64_t active = x->bytes[WEIR__USE_LIVE] + x->bytes[WEIR__USE_ROUNDING];
  uint64_t missing = x->missing_max;
  if (x->limit != UINT64_MAX && (x->rounded > x->limit || active > x->limit - x->rounded))
    return WEIR_OFFLINE_CAUSE_EXHAUSTED;
  weir_offline_cause cause = WEIR_OFFLINE_CAUSE_MIXED;
  uint64_t most = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(stranded); i++) {
    uint64_t bytes = x->bytes[stranded[i].use];
    if (stranded[i].use == WEIR__USE_FREE_SPLIT)
      bytes += x->bytes[WEIR__USE_FREE_WHOLE];
    if (bytes >= missing && bytes > most) {
      most = bytes;
      cause = stranded[i].cause;
    }
  }
  return cause;
}

/* ---- The explanation ---- */

static weir_status analyse(const weir__recording *recording, const weir__recording_device *device,
                           const weir__replayer *replayer, view *v, weir__explanation *x) {
  request_place seeker;
  size_t event = x->event;
  bool failed = x->moment == WEIR_OFFLINE_AT_OOM;
  if (x->is_unknown) {
    x->time_us = device->events[event].time_us;
    if (failed)
      read_request(&device->events[event], &v->settings, x);
    return WEIR_OK;
  }
  if (device->event_count) {
    weir__state_find_events(&v->state, device->events, event);
    if (replayer && !x->is_from_file)
      weir__state_take_stacks(&v->state, weir__replayer_start(replayer));
    x->time_us = device->events[event].time_us;
  }
  if (failed) {
    read_request(&device->events[event], &v->settings, x);
    seek(recording, device, event, &v->state, x, &seeker);
    if (v->settings.expandable_segments && x->rounded < WEIR__STATE_MAX_REQUEST)
      x->mapped = bytes_to_map(&v->state, &seeker, &v->settings, x->rounded);
  }
  count_bytes(&v->state, failed ? &seeker : NULL, x);
  if (failed) {
    find_limit(x);
    find_missing(x);
    x->was_rescued = v->was_rescued;
    x->has_missing &= !v->was_rescued;
  }
  weir_status status = find_holes(&v->state, failed ? &seeker : NULL, x);
  status =
      status ? status : weir__summarize_holders(recording, &v->state, x->holders, &x->holder_count, &x->has_stacks);
  if (!status && failed) {
    x->cause = cause_of(x, v->was_rescued);
    status = find_pins(&v->state, &seeker, x);
  }
  return status;
}

static bool is_replayed(const weir__replayer *replayer, size_t event) {
  const weir__replay_report *check = weir__replayer_check(replayer);
  return !check->differences || check->first_difference > event;
}

/* Opens the history with the given memory. If the device's memory alone does not explain the recording, the program had
 * a limit of its own, or other processes used a part of the device, which is then inferred. A given limit that does not
 * explain the recording is an error. */
static weir_status open_history(const weir__recording *recording, const weir__explain_options *options, view *v,
                                weir__explanation *x, weir__replayer **replayer) {
  weir_status status = weir__replayer_open(recording, options->device, v->memory, v->fraction, replayer);
  if (status || !v->memory || is_replayed(*replayer, x->event))
    return status;
  uint64_t limit = weir__replayer_check(*replayer)->limit, peak = v->peak;
  char text[3][32];
  /* Pages of expandable segments may exceed a limit a little, so this alone does not prove it wrong. */
  if (limit < peak)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "--fraction %g of --memory %s is %s, less than the %s that was reserved at the peak: give the "
                      "fraction that the program set, or leave --fraction out",
                      v->fraction, weir__format_bytes(v->memory, text[0]), weir__format_bytes(limit, text[1]),
                      weir__format_bytes(peak, text[2]));
  weir__replayer *inferred = NULL;
  status = weir__replayer_open(recording, options->device, 0, 0, &inferred);
  if (status || !is_replayed(inferred, x->event)) {
    weir__replayer_close(inferred);
    return WEIR_OK; /* nothing explains it */
  }
  if (limit < v->memory) {
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "--memory and --fraction allow %s, with which the recording is not reproduced (%s), but it is "
                        "without them: give the limit that was in force, or leave both out",
                        weir__format_bytes(limit, text[0]), weir__replayer_check(*replayer)->shown[0]);
    weir__replayer_close(inferred);
    return status;
  }
  weir__replayer_close(*replayer);
  *replayer = inferred;
  v->memory = 0;
  v->fraction = 0;
  x->has_other_limit = true;
  return WEIR_OK;
}

/* The limit of the replay. */
static void take_limit(const weir__replayer *replayer, weir__explanation *x) {
  const weir__replay_report *check = weir__replayer_check(replayer);
  weir__capacity capacity = weir__replayer_capacity(replayer);
  x->limit = capacity.is_recorded ? weir__replayer_limit_at(replayer, x->event) : capacity.limit;
  x->limit_is_inferred = check->limit_is_inferred;
  x->limit_is_recorded = capacity.is_recorded;
  if (capacity.memory && capacity.memory < x->limit) {
    x->limit = capacity.memory;
    x->limit_is_device = true;
    x->limit_is_inferred = capacity.memory != x->memory;
  }
}

/* Replays up to the moment. The state is that of the allocator if the replay is exact up to there, or that of the list
 * of segments if it shows the moment. */
static weir_status get_state(const weir__recording *recording, const weir__explain_options *options, view *v,
                             weir__explanation *x, weir__replayer **replayer) {
  const weir__recording_device *device = &recording->devices[options->device];
  bool is_listed = !recording->is_events_only; /* the list of segments shows the end */
  bool in_file = is_listed && (x->moment == WEIR_OFFLINE_AT_END || is_last(device, x->event));
  x->limit = x->limit_max = UINT64_MAX;
  x->memory = options->memory ? options->memory : device->memory;
  v->target = x->event;
  v->memory = options->memory;
  v->fraction = options->fraction;
  weir__settings_default(&v->settings);
  if (!device->event_count && device->start)
    return weir__state_copy(device->start, &v->state);
  if (device->event_count && !(is_listed && x->moment == WEIR_OFFLINE_AT_END)) { /* the list itself shows the end */
    weir_status status = open_history(recording, options, v, x, replayer);
    if (status && (status != WEIR_ERROR_INVALID_ARGUMENT || *replayer))
      return status;
    if (status) { /* the replay cannot use it */
      x->differences = 1;
      snprintf(x->difference, sizeof x->difference, "%.*s", (int)sizeof x->difference - 1, weir_last_error());
    } else {
      const weir__replay_report *check = weir__replayer_check(*replayer);
      v->settings = *weir__replayer_settings(*replayer);
      x->is_moving = v->settings.moving_pages;
      if (!is_replayed(*replayer, x->event)) {
        x->differences = check->differences;
        memcpy(x->difference, check->shown[0], sizeof x->difference);
      } else {
        weir__replay_report report;
        take_limit(*replayer, x);
        status = weir__replayer_recheck(*replayer, &(weir__replay_callback){look, v}, &report);
        if (status || v->status)
          return status ? status : v->status;
      }
    }
  }
  if (v->is_taken)
    return WEIR_OK;
  if (device->lacks_start && options->moment != WEIR_OFFLINE_AT_AUTO)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s", x->difference);
  if (!is_listed && options->moment == WEIR_OFFLINE_AT_AUTO) {
    x->is_unknown = true;
    if (x->moment != WEIR_OFFLINE_AT_OOM) { /* then the peak is not known, either */
      x->moment = WEIR_OFFLINE_AT_END;
      x->event = device->event_count ? device->event_count - 1 : 0;
    }
    return WEIR_OK;
  }
  if (!in_file && options->moment != WEIR_OFFLINE_AT_AUTO && options->moment != WEIR_OFFLINE_AT_END)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "the replay does not reproduce the history up to entry %zu (%s), so the state there is not known%s", x->event,
        x->difference, is_listed ? "; --at end shows what the file itself lists" : "");
  if (!in_file)
    x->moment = WEIR_OFFLINE_AT_END;
  if (x->moment == WEIR_OFFLINE_AT_END)
    x->event = device->event_count ? device->event_count - 1 : 0;
  x->is_from_file = true;
  x->is_unknown = !is_listed;
  return weir__state_of_file(recording, device, &v->state);
}

static void note_start(const weir__state *start, weir__explanation *x) {
  x->rebuilt_segments = start->segment_count;
  for (size_t i = 0; i < start->block_count; i++)
    if (weir__state_is_active(&start->blocks[i])) {
      x->rebuilt_blocks++;
      x->rebuilt_bytes += start->blocks[i].requested;
    }
}

/* Whether the given memory contradicts the recording. */
static weir_status check_memory(const weir__recording_device *device, const weir__explain_options *options,
                                const weir__summary *summary) {
  uint64_t reserved = summary->reserved_before, memory = options->memory;
  char text[3][32];
  if (!memory)
    return WEIR_OK;
  if (device->memory && memory != device->memory)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "--memory %s disagrees with the file, which has recorded that the device has %s: leave it out",
                      weir__format_bytes(memory, text[0]), weir__format_bytes(device->memory, text[1]));
  if (summary->reserved.bytes > memory)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "--memory %s is less than the %s that was reserved at entry %zu: give all of the device's memory, "
        "or leave --memory out",
        weir__format_bytes(memory, text[0]), weir__format_bytes(summary->reserved.bytes, text[1]),
        summary->reserved.event);
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    if (weir__is_growth(e))
      reserved += e->size;
    else if (weir__is_release(e))
      reserved -= e->size < reserved ? e->size : reserved;
    else if (e->action == WEIR_TRACE_OOM && (e->address > memory || reserved > memory - e->address))
      return weir__fail(
          WEIR_ERROR_INVALID_ARGUMENT,
          "--memory %s is too little: at entry %zu the device had %s free, beside the %s that was reserved; "
          "give all of the device's memory, or leave --memory out",
          weir__format_bytes(memory, text[0]), i, weir__format_bytes(e->address, text[1]),
          weir__format_bytes(reserved, text[2]));
  }
  return WEIR_OK;
}

/* What leaked until the request failed is the cause if it is as much as was missing. */
static weir_status find_growth(const weir__recording *recording, weir__explanation *x) {
  weir__leaks leaks;
  uint64_t missing = x->has_missing ? x->missing_max : x->wanted;
  weir_status status =
      weir__leaks_find(recording, x->device, &(weir__leaks_options){.until = (uint32_t)x->event}, &leaks);
  if (status == WEIR_ERROR_NOT_SUPPORTED) /* too many entries */
    return WEIR_OK;
  if (status)
    return status;
  if (leaks.verdict == WEIR__LEAKS_FOUND)
    x->growth = (weir__growth){.is_found = true,
                               .is_cause = leaks.bytes >= missing,
                               .bytes = leaks.bytes,
                               .count = leaks.count,
                               .bytes_per_step = leaks.bytes_per_step,
                               .first_step = leaks.first_step,
                               .steps = leaks.steps.count,
                               .stacks = leaks.leak_count,
                               .stack = leaks.leaks[0].stack,
                               .size = leaks.leaks[0].size,
                               .unit = weir__steps_unit(&leaks.steps)};
  weir__leaks_clear(&leaks);
  return WEIR_OK;
}

weir_status weir__explain(const weir__recording *recording, const weir__explain_options *options,
                          weir__explanation *explanation) {
  weir__explanation x = {.device = options->device};
  weir__summary summary;
  weir_status status = weir__recording_check_device(recording, NULL, options->device);
  if (!status)
    status = weir__summarize(recording, options->device, &summary);
  if (status)
    return status;
  const weir__recording_device *device = &recording->devices[options->device];
  if (!device->event_count && !device->segment_count && !device->start)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "the file has nothing of device %d: record the job between "
                      "torch.cuda.memory._record_memory_history() and _dump_snapshot()",
                      options->device);
  x.completeness = summary.completeness;
  x.event_count = device->event_count;
  x.oom_count = summary.actions[WEIR_TRACE_OOM];
  x.first_oom = summary.first_oom;
  x.next_oom = next_oom(device, summary.first_oom);
  x.first_us = summary.first_us;
  status = choose(device, options, &summary, &x);
  if (!status)
    status = check_memory(device, options, &summary);
  if (status)
    return status;

  weir__replayer *replayer = NULL;
  view v = {.recording = recording, .peak = summary.reserved.bytes};
  status = get_state(recording, options, &v, &x, &replayer);
  x.has_checkpoint = device->start != NULL;
  if (!status && replayer && !x.is_from_file && !x.is_unknown)
    note_start(weir__replayer_start(replayer), &x);
  if (!status)
    status = analyse(recording, device, replayer, &v, &x);
  if (!status && x.moment == WEIR_OFFLINE_AT_OOM && !x.is_from_file && !x.is_unknown && !options->no_trials) {
    bool has_shrunk =
        summary.reserved.bytes > x.limit; /* the device has less free memory than before: other processes use it */
    weir__trial_options trials = {.recording = recording,
                                  .replayer = replayer,
                                  .options = options,
                                  .event = x.event,
                                  .memory = v.memory,
                                  .fraction = v.fraction,
                                  .most = x.limit_is_device && !has_shrunk ? x.limit : UINT64_MAX,
                                  .was_rescued = v.was_rescued};
    status = weir__try_remedies(&trials, &x);
  }
  if (!status && x.moment == WEIR_OFFLINE_AT_OOM && x.has_request)
    status = find_growth(recording, &x);
  weir__state_clear(&v.state);
  weir__replayer_close(replayer);
  if (!status)
    *explanation = x;
  return status;
}

static const struct {
  const char *name, *text, *without; /* a request that failed, if that makes a difference */
} uses[WEIR__USES] = {
    [WEIR__USE_LIVE] = {"live", "in use, as requested", NULL},
    [WEIR__USE_ROUNDING] = {"rounding", "rounding of these blocks", NULL},
    [WEIR__USE_WAITING] = {"waiting", "freed, but still in use by another stream", NULL},
    [WEIR__USE_FREE_WHOLE] = {"free_whole", "free: whole segments", "free: whole segments, which can be released"},
    [WEIR__USE_FREE_SPLIT] = {"free_split", "free: pieces between live blocks", NULL},
    [WEIR__USE_FREE_CLASS] = {"free_class", "free: in segments for the other size class", NULL},
    [WEIR__USE_FREE_STREAM] = {"free_stream", "free: belongs to other streams", NULL},
    [WEIR__USE_FREE_POOL] = {"free_pool", "free: in other pools", "free: in private pools, such as those of graphs"}};

const char *weir__use_name(weir__byte_use use) { return uses[use].name; }

const char *weir__use_text(weir__byte_use use, bool has_request) {
  return !has_request && uses[use].without ? uses[use].without : uses[use].text;
}

const char *weir_offline_cause_name(weir_offline_cause cause) {
  static const char *const names[] = {
#define X(name, text) text,
      WEIR_OFFLINE_CAUSE_MAP(X)
#undef X
  };
  return (unsigned)cause < WEIR_OFFLINE_CAUSES ? names[cause] : "unknown";
}

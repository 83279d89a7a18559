/*
 * Inferring: checked replays find out what a recording does not say.
 *
 * A recording does not say why memory was released, which limit was in force, nor for how long blocks had been free
 * when it began. Where more than one answer is possible, checked replays try them in turn, and the answer that gets
 * furthest before the first difference is kept. What is compared is always one whole run of the real allocator.
 */
#include <stdlib.h>

#include "alloc/replay_port.h"
#include "base/base.h"
#include "base/rangemap.h"
#include "offline/replay/run.h"

enum {
  MAX_RUNS = 64,   /* checked replays under one limit */
  MAX_LIMITS = 30, /* that are tried */
  AGE_GUESSES = 7, /* with the first, all blocks are as old as the recording */
  SHORT = 50000    /* recordings of fewer events are timed more than once */
};

/* ---- Why memory was released ---- */

/* What a request takes from the driver, as a limit counts it. */
static uint64_t segment_bytes(const weir__plan *plan, size_t request) {
  return weir__port_segment_bytes(&plan->settings, plan->events[request].size);
}

/* Whether the allocator may have released this memory for the request that follows. */
static bool is_for_request(const weir__plan *plan, const weir__plan_release *r) {
  /* A fixed segment that is released for a request makes room for another one. Blocks of an expandable segment may
   * merge into one that is large enough when the allocator waits for other streams. */
  return r->request < plan->count && (r->is_aged || !weir__plan_is_capture(plan, r->request)) &&
         (r->grows || plan->settings.expandable_segments || plan->events[r->request].action == WEIR_TRACE_OOM);
}

/* Guesses the cause of each release if at most `limit` bytes could be reserved. */
static void guess_causes(weir__plan *plan, uint64_t limit) {
  double threshold = plan->settings.garbage_collection_threshold;
  for (size_t i = 0; i < plan->release_count; i++) {
    weir__plan_release *r = &plan->releases[i];
    bool is_over = false, is_aged = false;
    const weir__reason reason = (weir__reason)plan->events[r->first].reason;
    if (plan->recording->has_causes || reason != WEIR__REASON_UNKNOWN) {
      bool by_program = r->request == plan->count || reason == WEIR__REASON_PROGRAM;
      r->cause = by_program ? WEIR__RELEASED_BY_PROGRAM : WEIR__RELEASED_BY_POLICY;
      r->tried = (uint8_t)(1u << WEIR__RELEASED_BY_PROGRAM | 1u << r->cause);
      continue;
    }
    if (limit != WEIR__NO_LIMIT && is_for_request(plan, r)) {
      uint64_t bytes = segment_bytes(plan, r->request);
      is_over = (bytes > limit || r->reserved > limit - bytes) && !weir__plan_is_capture(plan, r->request);
      is_aged = r->is_aged && threshold > 0 && (double)r->reserved > threshold * (double)limit;
    }
    bool is_moved = plan->settings.moving_pages && r->grows; /* pages that the request got, most likely */
    r->cause = is_over || is_aged || is_moved ? WEIR__RELEASED_BY_POLICY : WEIR__RELEASED_BY_PROGRAM;
    r->tried = (uint8_t)(1u << r->cause);
  }
}

/* ---- The limit, where it is not given ---- */

/* What requests show about how much could be reserved, counted as a limit counts it. */
typedef struct evidence {
  uint64_t allowed;     /* the most with which a request got memory from the driver */
  uint64_t served;      /* the most with which a request was served after a release, without new memory */
  uint64_t not_allowed; /* the least with which a request failed */
  uint64_t device;      /* what the device had for this process when a request failed for want of it; 0 if none did */
  bool is_certain;      /* a request failed, or memory was released because of a limit, as recorded */
  bool is_limited;      /* that, or memory was released, perhaps for a request that would have exceeded `allowed` */
} evidence;

static void gather(const weir__plan *plan, evidence *found) {
  uint64_t reserved = plan->start.reserved, from = 0;
  bool grew = false, went_back = false;
  *found = (evidence){.allowed = reserved, .not_allowed = UINT64_MAX};
  for (size_t i = plan->first; i < plan->count; i++) {
    const weir__recording_entry *e = &plan->events[i];
    if (weir__is_growth(e) && !grew) {
      grew = true;
      from = reserved;
    } else if (weir__is_release(e)) {
      grew = false;
      went_back = true;
    } else if (weir__is_request(e)) {
      uint64_t wanted = (grew ? from : reserved) + segment_bytes(plan, i);
      if (e->action == WEIR_TRACE_OOM) {
        found->is_limited = found->is_certain = true;
        found->not_allowed = wanted < found->not_allowed ? wanted : found->not_allowed;
        /* The event has the device's free memory where others have an address. If the device had more at another time,
         * other processes took it, and no single size of the device explains the recording. */
        if (e->address < segment_bytes(plan, i) && found->device != UINT64_MAX)
          found->device = reserved + e->address < plan->peak ? UINT64_MAX
                          : found->device                    ? found->device
                                                             : reserved + e->address;
      } else if (grew)
        found->allowed = wanted > found->allowed ? wanted : found->allowed;
      else if (went_back)
        found->served = wanted > found->served ? wanted : found->served;
      grew = went_back = false;
    }
    weir__count_reserved(e, &reserved);
  }
  if (plan->settings.moving_pages) /* pages that move look like a release for the request */
    return;
  for (size_t i = 0; i < plan->release_count && !found->is_limited; i++) {
    const weir__plan_release *r = &plan->releases[i];
    const weir__reason reason = (weir__reason)plan->events[r->first].reason;
    if (reason != WEIR__REASON_UNKNOWN) {
      found->is_limited = found->is_certain = reason == WEIR__REASON_LIMIT;
      continue;
    }
    uint64_t bytes = is_for_request(plan, r) ? segment_bytes(plan, r->request) : 0;
    found->is_limited = bytes && (bytes > found->allowed || r->reserved > found->allowed - bytes);
  }
}

/* Pages of an expandable segment that were mapped together. */
typedef struct piece {
  uint64_t bytes;
  int64_t stream;
  bool is_small;
} piece;

/* Whether a segment_map is of the small pool: its pages have 2 MiB. Pages that move may have that size in either pool,
 * so that the request counts. */
static bool is_small(const weir__plan *plan, size_t event) {
  if (!plan->settings.moving_pages)
    return plan->events[event].size == WEIR__PORT_SMALL_SEGMENT;
  while (event < plan->count && !weir__is_request(&plan->events[event]))
    event++;
  return event < plan->count && weir__port_round(&plan->settings, plan->events[event].size) <= WEIR__PORT_SMALL_MAX;
}

/* The least distance between the beginnings of two expandable segments, and the length of the longest. Segments are
 * told apart by their streams and by their pools. */
static void measure(const weir__plan *plan, uint64_t *distance, uint64_t *length) {
  weir__rangemap map = {0};
  uint64_t at, begin = 0;
  size_t count = 0;
  const piece *first = NULL, *p;
  *distance = UINT64_MAX;
  *length = 0;
  piece *pieces = malloc((plan->count + plan->start.segment_count) * sizeof *pieces);
  if (!pieces)
    return;
  for (size_t i = 0; i < plan->start.segment_count; i++) {
    const weir__state_segment *s = &plan->start.segments[i];
    pieces[count] = (piece){s->size, s->stream, s->is_small};
    if (s->is_expandable)
      weir__rangemap_insert(&map, s->address, 1, &pieces[count++]);
  }
  for (size_t i = 0; i < plan->count; i++) {
    const weir__recording_entry *e = &plan->events[i];
    pieces[count] = (piece){e->size, plan->recording->streams[e->stream], false};
    if (e->action == WEIR_TRACE_SEGMENT_MAP) {
      pieces[count].is_small = is_small(plan, i);
      weir__rangemap_insert(&map, e->address, 1, &pieces[count++]);
    }
  }
  for (uint64_t from = 0; (p = weir__rangemap_at_or_after(&map, from, &at, NULL)); from = at + 1) {
    if (!first || first->stream != p->stream || first->is_small != p->is_small) {
      if (first && at - begin < *distance)
        *distance = at - begin;
      first = p;
      begin = at;
    }
    if (at + p->bytes - begin > *length)
      *length = at + p->bytes - begin;
  }
  weir__rangemap_clear(&map);
  free(pieces);
}

/* A device's memory that is enough for all that the recording shows. The address space of an expandable segment is 9/8
 * of it, and must not overlap the next segment. `roomy` is what is needed if holes were never filled. */
static uint64_t guess_memory(const weir__plan *plan, uint64_t *roomy) {
  uint64_t peak = plan->peak < 4ull << 30 ? 4ull << 30 : plan->peak, memory = 2 * peak, distance, length;
  if (peak > WEIR__PLAN_MAX_MEMORY / 2)
    memory = WEIR__PLAN_MAX_MEMORY;
  *roomy = memory;
  if (!plan->settings.expandable_segments)
    return memory;
  measure(plan, &distance, &length);
  uint64_t page = plan->settings.large_segment_size, most = (distance < page ? 0 : distance - page) / 9 * 8;
  if (length < WEIR__PLAN_MAX_MEMORY && memory < length)
    *roomy = length;
  if (*roomy > most && most > plan->peak)
    *roomy = most;
  return memory < *roomy ? memory : *roomy;
}

static void add_limit(uint64_t limit, uint64_t memory, weir__plan_limit *limits, size_t *count) {
  if (memory > WEIR__PLAN_MAX_MEMORY)
    memory = WEIR__PLAN_MAX_MEMORY;
  for (size_t i = 0; i < *count; i++)
    if (limits[i].limit == limit && limits[i].memory == memory)
      return;
  if (*count < MAX_LIMITS)
    limits[(*count)++] = (weir__plan_limit){.limit = limit, .memory = memory};
}

/* Limits that explain garbage collection, which begins when more than a part of the limit is reserved. Where something
 * was collected, more was reserved; where memory was taken and nothing collected, less was, unless there was nothing to
 * collect. What looks like a collection may have been a call of the program, so the lowest is not always right. */
static void add_collecting(const weir__plan *plan, const evidence *found, uint64_t memory, weir__plan_limit *limits,
                           size_t *count) {
  double threshold = plan->settings.garbage_collection_threshold;
  uint64_t above = 0;
  for (int tried = 0; tried < 6; tried++) {
    uint64_t begin = UINT64_MAX, below = 0, to = 0, reserved = plan->start.reserved;
    for (size_t i = 0; i < plan->release_count; i++) {
      const weir__plan_release *r = &plan->releases[i];
      if (r->is_aged && r->reserved > above && r->reserved < begin && is_for_request(plan, r)) {
        begin = r->reserved;
        to = r->freed < r->reserved ? r->reserved - r->freed : 0;
      }
    }
    if (begin == UINT64_MAX)
      return;
    for (size_t i = plan->first; i < plan->count; i++) {
      if (weir__is_growth(&plan->events[i]) && reserved < begin && reserved > below)
        below = reserved;
      weir__count_reserved(&plan->events[i], &reserved);
    }
    const uint64_t parts[] = {below, begin - 1, below + (begin - 1 - below) / 2, to};
    for (size_t i = 0; i < WEIR_COUNT_OF(parts); i++) {
      double exact = (double)parts[i] / threshold; /* a file may contain any number */
      uint64_t limit = exact < 0x1p63 ? (uint64_t)exact + 1 : UINT64_MAX;
      if (limit >= found->not_allowed)
        limit = found->not_allowed - 1;
      add_limit(limit > found->allowed ? limit : found->allowed, memory, limits, count);
    }
    above = begin;
  }
}

/* Limits that could explain the recording, the likeliest first. There is at least one. A recorded limit is the only
 * one. Memory that was released before a request may have been released by the program, so that a limit is inferred
 * from it only if nothing else explains the recording. */
static size_t list_limits(const weir__plan *plan, weir__plan_limit limits[MAX_LIMITS]) {
  evidence found;
  size_t count = 0;
  gather(plan, &found);
  uint64_t roomy, memory = guess_memory(plan, &roomy);
  const uint64_t known = plan->limit;
  if (plan->memory) /* recorded; but other processes may have used a part of the device */
    add_limit(known, plan->memory, limits, &count);
  if (plan->has_limit)
    add_limit(known, memory, limits, &count);
  if (found.device && found.device < found.not_allowed) { /* never so for UINT64_MAX */
    uint64_t total = plan->memory ? plan->memory : roomy;
    add_limit(known, found.device, limits, &count);
    if (plan->settings.expandable_segments && total > found.device && count < MAX_LIMITS)
      limits[count++] =
          (weir__plan_limit){.limit = known,
                             .memory = found.device,
                             .others = (total - found.device) / WEIR__PORT_SMALL_SEGMENT * WEIR__PORT_SMALL_SEGMENT};
  }
  if (!found.is_certain) {
    add_limit(known, memory, limits, &count);
    add_limit(known, roomy, limits, &count);
  }
  if (found.is_limited && !plan->has_limit) {
    add_limit(found.allowed, memory, limits, &count);
    add_limit(found.allowed, roomy, limits, &count);
    if (found.served > found.allowed && found.served < found.not_allowed)
      add_limit(found.served, memory, limits, &count);
    if (found.not_allowed != UINT64_MAX && found.not_allowed > found.allowed)
      add_limit(found.not_allowed - 1, memory, limits, &count);
    /* Pages are mapped one by one, so a full device does not behave as a limit does. */
    if (plan->settings.expandable_segments)
      add_limit(WEIR__NO_LIMIT, plan->peak, limits, &count);
  }
  if (plan->settings.garbage_collection_threshold > 0 && !plan->has_limit)
    add_collecting(plan, &found, memory, limits, &count);
  add_limit(known, memory, limits, &count);
  add_limit(known, roomy, limits, &count);
  /* Segments may be closer to each other than they seem; no device is smaller than what was reserved on it. */
  if (plan->settings.expandable_segments)
    add_limit(known, plan->peak, limits, &count);
  for (size_t i = 0; i < count; i++)
    limits[i].is_recorded = plan->has_limit;
  return count;
}

/* ---- Ages ---- */

/* Garbage collection takes the segments that have been free for longest. How long they had been free when a recording
 * began is not known; but those that are collected before anything is allocated from them were older than the others.
 * How much older is guessed, and a checked replay shows whether a guess is good enough. */

/* A free segment that garbage collection may take. */
typedef struct idle {
  const weir__state_segment *segment;
  weir__state_block *block;
} idle;

static int by_event(const void *a, const void *b) {
  size_t x = ((const idle *)a)->block->event, y = ((const idle *)b)->block->event;
  return (x > y) - (x < y);
}

/* Whether both were collected in one pass. A pass goes through free segments by stream, size and address, and takes
 * those that are older than the mean; passes are repeated until enough is free. */
static bool is_of_same_pass(const weir__recording_entry *events, const idle *last, const idle *next) {
  const weir__state_segment *x = last->segment, *y = next->segment;
  for (size_t i = last->block->event; i < next->block->event; i++)
    if (events[i].action != WEIR_TRACE_SEGMENT_FREE)
      return false;
  if (x->stream != y->stream)
    return x->stream < y->stream;
  return x->size != y->size ? x->size < y->size : x->address < y->address;
}

/* Sets the ages of the free blocks that a recording begins with. false if there are none, or out of host memory. */
static bool guess_ages(const weir__recording_entry *events, int guess, weir__state *start) {
  static const struct {
    uint32_t first; /* age of what is collected in the first pass */
    uint8_t shift;  /* ages are shifted right by this with each pass */
  } guesses[AGE_GUESSES] = {{0, 0},        {1u << 7, 1},  {1u << 10, 1}, {1u << 13, 1},
                            {1u << 16, 1}, {1u << 19, 1}, {1u << 31, 7}};
  size_t count = 0;
  unsigned pass = 0;
  idle *all = malloc((start->segment_count + 1) * sizeof *all);
  if (!all)
    return false;
  for (size_t i = 0; i < start->segment_count; i++) {
    const weir__state_segment *s = &start->segments[i];
    weir__state_block *b = &start->blocks[s->first];
    if (s->count == 1 && !s->is_small && !s->is_expandable && b->state == WEIR_BLOCK_INACTIVE &&
        b->event != WEIR__NO_ENTRY)
      all[count++] = (idle){s, b};
  }
  qsort(all, count, sizeof *all, by_event);
  for (size_t i = 0; i < count; i++) {
    pass += i && !is_of_same_pass(events, &all[i - 1], &all[i]);
    unsigned bits = pass * guesses[guess].shift;
    all[i].block->age = bits < 32 ? guesses[guess].first >> bits : 0;
  }
  free(all);
  return count > 0;
}

/* ---- Trying answers ---- */

/* Sets a cause of the release that was not tried yet. false if there is none. */
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

/* Runs under one limit until nothing differs or no other cause is left to try for the last release before the
 * difference. The report is that of the run that got furthest, which ended at its first difference; the plan has its
 * causes. */
static weir_status infer_causes(weir__replayer *h, const weir__plan_limit *limit) {
  guess_causes(&h->plan, limit->limit < limit->memory ? limit->limit : limit->memory);
  weir__replay_report *report = &h->report, best = {0};
  weir__plan_release *last = NULL; /* the release whose cause was changed last */
  uint8_t before = 0;              /* its cause before */
  for (int runs = 0; runs < MAX_RUNS; runs++) {
    size_t release;
    weir_status status =
        weir__replay_run(&h->plan, &h->plan.settings, limit, WEIR__RUN_TO_DIFFERENCE, NULL, NULL, &release, report);
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

/* Tries the limits that may have been in force and keeps the one that gets furthest. */
static weir_status infer_limit(weir__replayer *h) {
  weir__plan_limit limits[MAX_LIMITS];
  size_t count = list_limits(&h->plan, limits), furthest = 0;
  h->recorded = limits[0];
  for (size_t i = 0; i < count; i++) {
    weir_status status = infer_causes(h, &limits[i]);
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
  return count > 1 ? infer_causes(h, &h->recorded) : WEIR_OK;
}

/* The first run of a short recording mostly measures page faults, so the best of a few runs counts. */
static weir_status time_again(weir__replayer *h) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < 3 && !status; i++) {
    weir__replay_report again = {0};
    status = weir__replay_run(&h->plan, &h->plan.settings, &h->recorded, WEIR__RUN_CHECKED, NULL, NULL, NULL, &again);
    if (!status && again.seconds < h->report.seconds)
      h->report.seconds = again.seconds;
  }
  return status;
}

/* Infers the causes under the known capacity, or that as well. */
static weir_status infer_capacity(weir__replayer *h, const weir__capacity *known) {
  h->recorded = (weir__plan_limit){.limit = known->limit, .memory = known->memory, .is_recorded = known->is_recorded};
  return h->is_known ? infer_causes(h, &h->recorded) : infer_limit(h);
}

/* Tries ages of what was free before the recording and keeps those that get furthest. */
static weir_status infer_ages(weir__replayer *h, const weir__capacity *known) {
  size_t furthest = h->report.first_difference;
  int best = 0;
  for (int guess = 1; guess < AGE_GUESSES; guess++) {
    if (!guess_ages(h->plan.events, guess, &h->plan.start))
      return WEIR_OK;
    weir_status status = infer_capacity(h, known);
    if (status || !h->report.differences)
      return status;
    if (h->report.first_difference > furthest) {
      furthest = h->report.first_difference;
      best = guess;
    }
  }
  guess_ages(h->plan.events, best, &h->plan.start);
  return infer_capacity(h, known);
}

static weir_status infer(weir__replayer *h, const weir__capacity *known) {
  h->is_known = known->memory != 0;
  weir_status status = infer_capacity(h, known);
  if (!status && h->report.differences && h->plan.settings.garbage_collection_threshold > 0 && !h->plan.has_checkpoint)
    status = infer_ages(h, known);
  if (!status && h->report.differences) /* to the end, to count all of them */
    status =
        weir__replay_run(&h->plan, &h->plan.settings, &h->recorded, WEIR__RUN_CHECKED, NULL, NULL, NULL, &h->report);
  h->report.limit_is_inferred = !h->is_known && !h->plan.has_limit && h->recorded.limit != WEIR__NO_LIMIT;
  if (!status && h->plan.count < SHORT && !h->report.differences)
    status = time_again(h);
  return status;
}

/* ---- Opening a recording ---- */

static weir_status infer_from(weir__replayer *h, const weir__recording *recording, int device, size_t first,
                              uint64_t memory, double fraction) {
  weir_status status = weir__plan_make(recording, &recording->devices[device], first, &h->plan);
  if (status)
    return status;
  weir__capacity known = weir__replay_part(memory, fraction, h->plan.fraction);
  if (!(fraction > 0) && h->plan.has_limit) {
    known.limit = h->plan.limit;
    known.is_recorded = true;
  }
  return infer(h, &known);
}

/* The first request from event `i` on; the number of events if there is none. */
static size_t next_request(const weir__plan *plan, size_t i) {
  while (i < plan->count && !weir__is_request(&plan->events[i]))
    i++;
  return i;
}

/* A recording may begin in the middle of a request, so that some of the segments that were made or released for it are
 * missing. If the replay differs there, it begins after that request. */
weir_status weir__replayer_open(const weir__recording *recording, int device, uint64_t memory, double fraction,
                                weir__replayer **replayer) {
  weir_status status = weir__recording_check_device(recording, NULL, device);
  if (status)
    return status;
  if (!recording->devices[device].event_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "the file has no history of device %d: record the job between "
                      "torch.cuda.memory._record_memory_history() and _dump_snapshot()",
                      device);
  if (recording->devices[device].lacks_start)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "what was there before the first entry of device %d is not known: %llu older entries were dropped, "
        "and the file has no checkpoint after them; a larger WEIR_RECORD_MB has room for both",
        device, (unsigned long long)recording->devices[device].dropped);
  status = weir__replay_check_memory(memory);
  if (status)
    return status;
  weir__replayer *h = calloc(1, sizeof *h);
  if (!h)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  status = infer_from(h, recording, device, 0, memory, fraction);
  size_t request = next_request(&h->plan, 0);
  if (!status && h->plan.start.segment_count && !h->plan.has_checkpoint && h->report.differences &&
      h->report.first_difference <= request && next_request(&h->plan, request + 1) < h->plan.count) {
    weir__replayer skipping = {0};
    status = infer_from(&skipping, recording, device, request + 1, memory, fraction);
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
  *replayer = h;
  return WEIR_OK;
}

void weir__replayer_close(weir__replayer *replayer) {
  if (!replayer)
    return;
  weir__plan_clear(&replayer->plan);
  free(replayer);
}

const weir__replay_report *weir__replayer_check(const weir__replayer *replayer) { return &replayer->report; }

/* ---- All in one ---- */

weir_status weir__replay(const weir__recording *recording, const weir__replay_options *options,
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
  /* The capacity is that of the recording for a checked replay, and that of the run otherwise. */
  weir_status status = weir__replayer_open(recording, options->device, options->check ? options->memory : 0,
                                           options->check ? options->fraction : 0, &h);
  if (!h)
    return status;
  if (options->check)
    *report = h->report;
  else {
    status = weir__replayer_capacity_of(h, settings, options->memory, options->fraction, &capacity);
    if (!status)
      status = weir__replayer_run(h, settings, &capacity, NULL, report);
    report->limit_is_inferred =
        !status && !options->memory && !capacity.is_recorded && capacity.limit != WEIR__NO_LIMIT;
  }
  weir__replayer_close(h);
  return status;
}

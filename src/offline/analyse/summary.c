#include "offline/analyse/summary.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "offline/analyse/describe.h"
#include "offline/read/recording.h"

/* ---- Holders: sums by stack, or by size where there are no stacks ---- */

typedef struct sum {
  uint64_t key; /* + 1 */
  weir__holder of;
} sum;

typedef struct sums {
  weir__hash_map map;    /* of sum; those of which everything was freed stay */
  const uint32_t *alike; /* stacks that are counted as one: see weir__describe_alike */
  size_t stack_count;
} sums;

/* NULL if out of host memory. */
static weir__holder *sums_of(sums *s, uint64_t key) {
  key -= key == UINT64_MAX; /* + 1 is never 0 */
  sum *found = weir__hash_map_put(&s->map, sizeof *found, key + 1);
  return found ? &found->of : NULL;
}

static bool add(sums *s, bool by_stack, uint32_t stack, uint64_t size) {
  stack = stack < s->stack_count ? s->alike[stack] : 0;
  weir__holder *h = sums_of(s, by_stack ? stack : size);
  if (!h)
    return false;
  h->stack = by_stack ? stack : 0;
  h->size = by_stack ? 0 : size;
  h->bytes += size;
  h->count++;
  return true;
}

static void subtract(sums *s, bool by_stack, uint32_t stack, uint64_t size) {
  stack = stack < s->stack_count ? s->alike[stack] : 0;
  weir__holder *h = sums_of(s, by_stack ? stack : size); /* it is there */
  if (h && h->count) {
    h->bytes -= size;
    h->count--;
  }
}

/* Of two that hold as much, the one with the lower stack or size comes first. */
static bool is_larger(const weir__holder *a, const weir__holder *b) {
  if (a->bytes != b->bytes)
    return a->bytes > b->bytes;
  return a->stack != b->stack ? a->stack < b->stack : a->size < b->size;
}

static size_t largest(const sums *s, weir__holder top[WEIR__SUMMARY_HOLDERS]) {
  size_t count = 0, next = 0;
  for (const sum *found; (found = weir__hash_map_next(&s->map, sizeof *found, &next));) {
    const weir__holder *h = &found->of;
    if (!h->count)
      continue;
    size_t at = count < WEIR__SUMMARY_HOLDERS ? count++ : count;
    if (at == WEIR__SUMMARY_HOLDERS && !is_larger(h, &top[--at]))
      continue;
    for (; at > 0 && is_larger(h, &top[at - 1]); at--)
      top[at] = top[at - 1];
    top[at] = *h;
  }
  return count;
}

/* ---- Live allocations by address ---- */

typedef struct live {
  uint64_t address;
  uint64_t size;
  uint32_t stack;
  bool is_waiting; /* it was freed, and other streams may still use it */
} live;

static live *live_find(const weir__hash_map *map, uint64_t address) {
  return address ? weir__hash_map_find(map, sizeof(live), address) : NULL;
}

static bool live_add(weir__hash_map *map, const live *entry) {
  live *added = weir__hash_map_put(map, sizeof *added, entry->address);
  if (added)
    *added = *entry;
  return added != NULL;
}

/* ---- The passes ---- */

/* A level relative to the beginning, which the first pass does not know. */
typedef struct level {
  int64_t now, peak;
  size_t event;
} level;

/* `by` may be the complement of a size. A file may contain any number, so the sum may wrap around. */
static void move(level *l, uint64_t by, size_t event) {
  l->now = (int64_t)((uint64_t)l->now + by);
  if (l->now > l->peak) {
    l->peak = l->now;
    l->event = event;
  }
}

static void count_events(const weir__recording_device *device, weir__summary *s, level *used, level *reserved) {
  s->first_oom = device->event_count;
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    s->actions[e->action]++;
    s->has_stacks |= e->stack != 0;
    if (e->time_us) {
      s->first_us = s->first_us ? s->first_us : e->time_us;
      s->last_us = e->time_us;
    }
    switch (e->action) {
    case WEIR_TRACE_ALLOC:
      move(used, e->size, i);
      break;
    case WEIR_TRACE_FREE_REQUESTED:
      move(used, 0 - e->size, i);
      break;
    case WEIR_TRACE_SEGMENT_ALLOC:
    case WEIR_TRACE_SEGMENT_MAP:
      move(reserved, e->size, i);
      break;
    case WEIR_TRACE_SEGMENT_FREE:
    case WEIR_TRACE_SEGMENT_UNMAP:
      move(reserved, 0 - e->size, i);
      break;
    case WEIR_TRACE_OOM:
      s->first_oom = i < s->first_oom ? i : s->first_oom;
      break;
    default:
      break;
    }
  }
}

static bool count_segments(const weir__recording_device *device, weir__summary *s, sums *holders) {
  for (size_t i = 0; i < device->segment_count; i++)
    for (size_t k = 0; k < device->segments[i].block_count && !s->has_stacks; k++)
      s->has_stacks |= device->segments[i].blocks[k].stack != 0;
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *segment = &device->segments[i];
    *(segment->is_large ? &s->large_segments : &s->small_segments) += 1;
    s->private += segment->pool != 0;
    s->end_reserved += segment->size;
    for (size_t k = 0; k < segment->block_count; k++) {
      const weir__recording_block *b = &segment->blocks[k];
      if (b->state == WEIR_BLOCK_INACTIVE)
        continue;
      s->end_active += b->size;
      if (b->state != WEIR_BLOCK_ACTIVE_ALLOCATED)
        continue;
      s->end_allocated += b->size;
      s->end_requested += b->requested;
      if (!add(holders, s->has_stacks, b->stack, b->requested))
        return false;
    }
  }
  return true;
}

/* What was live before the history, where a checkpoint has it. */
static bool begin_with(const weir__state *start, weir__summary *s, weir__hash_map *lives, sums *holders) {
  bool ok = true;
  s->reserved_before = start->reserved;
  for (size_t i = 0; i < start->block_count; i++)
    s->has_stacks |= start->blocks[i].stack != 0;
  for (size_t i = 0; i < start->block_count && ok; i++) {
    const weir__state_block *b = &start->blocks[i];
    if (!weir__state_is_active(b))
      continue;
    bool is_waiting = b->state == WEIR_BLOCK_ACTIVE_PENDING_FREE;
    ok = live_add(lives, &(live){b->address, b->requested, b->stack, is_waiting});
    if (is_waiting)
      continue;
    s->live_before += b->requested;
    ok = ok && add(holders, s->has_stacks, b->stack, b->requested);
  }
  return ok;
}

/* Goes through the history and keeps track of what is live. What was live before its beginning is known from a
 * checkpoint, or from the end: an allocation in the list of segments that the history does not have. `at_end` gets what
 * is live at the end, unless there is such a list. */
static bool follow(const weir__recording_device *device, weir__summary *s, sums *holders, sums *at_end) {
  weir__hash_map lives = {0};
  bool ok = !device->start || begin_with(device->start, s, &lives, holders);
  for (size_t i = 0; i < device->event_count && ok; i++) {
    const weir__recording_entry *e = &device->events[i];
    if (e->action == WEIR_TRACE_ALLOC) {
      if (!e->address)
        continue;
      /* It replaces one whose free is missing, as in a damaged recording. */
      ok = live_add(&lives, &(live){e->address, e->size, e->stack, false});
      if (i <= s->live.event)
        ok = ok && add(holders, s->has_stacks, e->stack, e->size);
    } else if (e->action == WEIR_TRACE_FREE_REQUESTED) {
      live *entry = live_find(&lives, e->address);
      if (!entry || entry->is_waiting) {
        s->unknown_frees++;
        s->live_before += e->size;
        /* It was live up to here. */
        if (i > s->live.event)
          ok = add(holders, s->has_stacks, e->stack, e->size);
        continue;
      }
      if (i <= s->live.event)
        subtract(holders, s->has_stacks, entry->stack, entry->size);
      entry->is_waiting = true;
    } else if (e->action == WEIR_TRACE_FREE_COMPLETED) {
      live *entry = live_find(&lives, e->address);
      if (entry && entry->is_waiting)
        weir__hash_map_remove(&lives, sizeof *entry, entry);
    }
  }
  /* What is left at the end without having been allocated. */
  for (size_t i = 0; i < device->segment_count && ok; i++)
    for (size_t k = 0; k < device->segments[i].block_count && ok; k++) {
      const weir__recording_block *b = &device->segments[i].blocks[k];
      if (b->state == WEIR_BLOCK_ACTIVE_ALLOCATED && !live_find(&lives, b->address)) {
        s->live_before += b->requested;
        ok = add(holders, s->has_stacks, b->stack, b->requested);
      }
    }
  size_t next = 0;
  for (const live *entry; !device->segment_count && ok && (entry = weir__hash_map_next(&lives, sizeof *entry, &next));)
    if (!entry->is_waiting)
      ok = add(at_end, s->has_stacks, entry->stack, entry->size);
  weir__hash_map_clear(&lives);
  return ok;
}

typedef struct range {
  uint64_t begin, end;
} range;

static int by_begin(const void *a, const void *b) {
  uint64_t x = ((const range *)a)->begin, y = ((const range *)b)->begin;
  return (x > y) - (x < y);
}

/* Counts segments at the end that the history did not allocate. A piece of an expandable one may begin anywhere in the
 * ranges that were mapped. */
static bool count_unknown_segments(const weir__recording_device *device, weir__summary *s) {
  size_t count = 0;
  range *made = malloc((s->actions[WEIR_TRACE_SEGMENT_ALLOC] + s->actions[WEIR_TRACE_SEGMENT_MAP] + 1) * sizeof *made);
  if (!made)
    return false;
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    if (e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP)
      made[count++] = (range){e->address, e->address + e->size};
  }
  qsort(made, count, sizeof *made, by_begin);
  for (size_t i = 1; i < count; i++) /* the end of all that begin up to here */
    if (made[i].end < made[i - 1].end)
      made[i].end = made[i - 1].end;
  for (size_t i = 0; i < device->segment_count; i++) {
    size_t low = 0, high = count;
    while (low < high) {
      size_t middle = low + (high - low) / 2;
      if (made[middle].begin <= device->segments[i].address)
        low = middle + 1;
      else
        high = middle;
    }
    s->unknown_segments += !low || made[low - 1].end <= device->segments[i].address;
  }
  free(made);
  return true;
}

/* A round number, such as 100000 or 65536, is the size of a ring. */
static bool is_round(size_t n) { return n >= 1000 && (n % 1000 == 0 || (n & (n - 1)) == 0); }

static bool count_streams(const weir__recording *recording, const weir__recording_device *device, weir__summary *s) {
  bool *seen = calloc(recording->stream_count + 1, sizeof *seen);
  if (!seen)
    return false;
  for (size_t i = 0; i < device->event_count; i++)
    seen[device->events[i].stream] = true;
  for (size_t i = 0; i < device->segment_count; i++)
    seen[device->segments[i].stream] = true;
  for (size_t i = 0; i < recording->stream_count; i++)
    s->streams += seen[i];
  free(seen);
  return true;
}

weir_status weir__summarize_holders(const weir__recording *recording, const weir__state *state,
                                    weir__holder holders[WEIR__SUMMARY_HOLDERS], size_t *count, bool *has_stacks) {
  uint32_t *alike;
  bool ok = true;
  weir_status status = weir__describe_alike(recording, &alike);
  if (status)
    return status;
  sums by = {.alike = alike, .stack_count = recording->stack_count};
  *has_stacks = false;
  for (size_t i = 0; i < state->block_count; i++)
    *has_stacks |= state->blocks[i].state == WEIR_BLOCK_ACTIVE_ALLOCATED && state->blocks[i].stack;
  for (size_t i = 0; i < state->block_count && ok; i++) {
    const weir__state_block *b = &state->blocks[i];
    if (b->state == WEIR_BLOCK_ACTIVE_ALLOCATED)
      ok = add(&by, *has_stacks, b->stack, b->requested);
  }
  *count = ok ? largest(&by, holders) : 0;
  weir__hash_map_clear(&by.map);
  free(alike);
  return ok ? WEIR_OK
            : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu blocks", state->block_count);
}

weir_status weir__summarize(const weir__recording *recording, int number, weir__summary *summary) {
  const weir__recording_device *device = &recording->devices[number];
  weir__summary s = {0};
  level used = {0}, reserved = {0};
  uint32_t *alike;
  weir_status status = weir__describe_alike(recording, &alike);
  if (status)
    return status;
  sums holders = {.alike = alike, .stack_count = recording->stack_count}, at_end = holders;
  count_events(device, &s, &used, &reserved);
  bool ok = count_segments(device, &s, &at_end) && count_streams(recording, device, &s);
  /* What was reserved before follows from the end. */
  if ((int64_t)s.end_reserved > reserved.now)
    s.reserved_before = s.end_reserved - (uint64_t)reserved.now;
  s.live.event = used.event;
  ok = ok && follow(device, &s, &holders, &at_end) && count_unknown_segments(device, &s);
  s.reserved = (weir__summary_peak){s.reserved_before + (uint64_t)reserved.peak, reserved.event};
  s.live.bytes = s.live_before + (uint64_t)used.peak;
  if (ok) {
    s.holder_count = largest(&holders, s.holders);
    s.at_end_count = largest(&at_end, s.at_end);
  }
  bool has_before = device->start && device->start->segment_count;
  weir__hash_map_clear(&holders.map);
  weir__hash_map_clear(&at_end.map);
  free(alike);
  if (!ok)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu entries", device->event_count);
  bool is_late = s.unknown_frees || s.unknown_segments || s.live_before || has_before;
  s.completeness = !device->event_count            ? WEIR__HISTORY_NONE
                   : device->dropped               ? WEIR__HISTORY_WRAPPED
                   : !is_late                      ? WEIR__HISTORY_COMPLETE
                   : is_round(device->event_count) ? WEIR__HISTORY_WRAPPED
                                                   : WEIR__HISTORY_LATE;
  s.is_unknown = device->lacks_start;
  s.is_end_told =
      recording->is_events_only && !s.is_unknown && (device->start || s.completeness == WEIR__HISTORY_COMPLETE);
  if (s.is_end_told) {
    s.end_reserved = s.reserved_before + (uint64_t)reserved.now;
    s.end_requested = s.live_before + (uint64_t)used.now;
  } else if (recording->is_events_only)
    s.at_end_count = 0;
  *summary = s;
  return WEIR_OK;
}

const char *weir__completeness_name(weir__completeness completeness) {
  static const char *const names[] = {"none", "complete", "late", "wrapped"};
  return names[completeness];
}

/* ---- Beside the passes ---- */

void weir__summary_classes_of(const weir__summary *summary, const weir__lives *lives, const weir__classes *classes,
                              weir__summary_classes *result) {
  weir__classes_sum(lives, classes, summary->live.event, result->classes);
  result->has_classes = classes->is_known;
  result->steps = classes->steps;
}

weir_status weir__summarize_classes(const weir__recording *recording, int device, const weir__summary *summary,
                                    weir__summary_classes *classes) {
  weir__lives lives;
  weir__classes found;
  if (summary->is_unknown || !recording->devices[device].event_count)
    return WEIR_OK;
  weir_status status = weir__lives_make(recording, device, &lives);
  if (status)
    return status;
  status = weir__classes_make(recording, device, &lives, &found);
  if (!status) {
    weir__summary_classes_of(summary, &lives, &found, classes);
    weir__classes_clear(&found);
  }
  weir__lives_clear(&lives);
  return status;
}

weir__summary_host weir__summarize_host(const weir__recording_device *host) {
  weir__summary_host sums = {0};
  for (size_t i = 0; i < host->segment_count; i++) {
    sums.reserved += host->segments[i].size;
    sums.active += host->segments[i].active;
  }
  return sums;
}

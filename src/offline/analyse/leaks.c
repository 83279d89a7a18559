#include "offline/analyse/leaks.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/levels.h"

enum { WINDOWS = 24, WINDOW_ALLOCATIONS = 4, IDLE_ENTRIES = 64 };

/* ---- Groups ---- */

typedef struct group {
  uint32_t stack; /* the first of those that are described alike; 0 for a group by size */
  uint64_t size;
  uint16_t stream;
  uint32_t setup;     /* blocks from before the first step that are alive at the end of the last one */
  weir__ages ages;    /* of blocks of complete steps, at the end of the last one */
  uint64_t end_bytes; /* of all blocks that are alive then */
} group;

typedef struct group_slot {
  uint64_t key;
  uint32_t group; /* + 1 */
} group_slot;

typedef struct finder {
  const weir__recording *recording;
  const weir__recording_device *device;
  const weir__lives *lives;
  const weir__steps *steps;
  uint32_t *alike;
  group *groups;
  size_t group_count, group_room;
  weir__hash_map slots;
  uint32_t *group_of; /* of each block */
  bool *is_leaked;    /* of each block: whether it was reported as part of a leak */
  weir__survivor *survivors;
  size_t survivor_count, survivor_room;
  int64_t count; /* steps that are looked at */
  uint32_t end;  /* the entry at which the last one ends */
  uint64_t peak; /* bytes in use */
  int64_t rare;  /* of groups that have freed nothing, the survivors from this step on are too young to tell */
  weir__leaks *out;
} finder;

static bool is_alive(const weir__life *b, uint32_t entry) {
  return (b->is_before || b->begin < entry) && (b->freed == WEIR__LIFE_OPEN || b->freed >= entry);
}

static uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6))) * 0xbf58476d1ce4e5b9;
  z ^= z >> 29;
  return z ? z : 1;
}

static bool find_group(finder *f, const weir__life *b, uint32_t *number) {
  uint32_t stack = b->stack < f->recording->stack_count ? f->alike[b->stack] : 0;
  uint64_t size = stack ? 0 : b->size;
  group_slot *slot = weir__hash_map_put(&f->slots, sizeof *slot, mix(mix(stack, size), b->stream));
  if (!slot)
    return false;
  if (!slot->group) {
    if (!WEIR__RESERVE(f->groups, f->group_room, f->group_count + 1))
      return false;
    f->groups[f->group_count++] = (group){.stack = stack, .size = size, .stream = b->stream};
    slot->group = (uint32_t)f->group_count;
  }
  *number = slot->group - 1;
  return true;
}

static bool make_groups(finder *f) {
  const weir__lives *l = f->lives;
  f->group_of = malloc((l->block_count + 1) * sizeof *f->group_of);
  f->is_leaked = calloc(l->block_count + 1, sizeof *f->is_leaked);
  bool ok = f->group_of && f->is_leaked;
  for (size_t i = 0; i < l->block_count && ok; i++) {
    const weir__life *b = &l->blocks[i];
    ok = find_group(f, b, &f->group_of[i]);
    if (!ok)
      break;
    group *g = &f->groups[f->group_of[i]];
    int64_t step = b->is_before ? -1 : weir__steps_at(f->steps, b->begin);
    if (is_alive(b, f->end)) {
      g->end_bytes += b->size;
      if (step < 0) {
        g->setup++;
        continue;
      }
      g->ages.alive++;
      ok = WEIR__RESERVE(f->survivors, f->survivor_room, f->survivor_count + 1);
      if (ok)
        f->survivors[f->survivor_count++] = (weir__survivor){f->group_of[i], (uint32_t)i, step};
    } else if (step >= 0 && b->begin < f->end)
      weir__ages_add(&g->ages, weir__steps_at(f->steps, b->freed) - step);
  }
  return ok;
}

static int by_group(const void *a, const void *b) {
  const weir__survivor *x = a, *y = b;
  if (x->group != y->group)
    return x->group < y->group ? -1 : 1;
  return (x->block > y->block) - (x->block < y->block);
}

static int by_block(const void *a, const void *b) {
  uint32_t x = ((const weir__survivor *)a)->block, y = ((const weir__survivor *)b)->block;
  return (x > y) - (x < y);
}

/* ---- Reports ---- */

static void add_level(finder *f, const weir__survivor *s, weir__growth_kind kind) {
  if (kind != WEIR__GROWTH_LEAK)
    return;
  f->out->levels[s->step] += f->lives->blocks[s->block].size;
  f->is_leaked[s->block] = true;
}

static bool report(finder *f, const weir__survivor *s, size_t count, const weir__births *b, int64_t end,
                   bool is_joint) {
  weir__leaks *out = f->out;
  const group *g = &f->groups[s->group];
  weir__leak leak = {.kind = b->kind,
                     .stack = g->stack,
                     .size = g->size,
                     .stream = g->stream,
                     .first_step = b->first_step,
                     .last_step = b->last_step,
                     .every = b->every,
                     .is_joint = is_joint};
  for (size_t i = 0; i < count; i++) {
    const weir__life *block = &f->lives->blocks[s[i].block];
    if (s[i].step < b->first_step || s[i].step >= end)
      continue;
    leak.bytes += block->size;
    leak.count++;
    if (leak.example_count < WEIR__LEAK_EXAMPLES)
      leak.examples[leak.example_count++] = (weir__leak_block){block->address, block->size, block->begin, s[i].step};
    add_level(f, &s[i], b->kind);
  }
  /* The part of the last period belongs to the rate as well: a leak every fifth step has its next one ahead. */
  double over = (double)(end - b->first_step);
  if (b->every > 1 && leak.count > 1)
    over = (double)(b->last_step - b->first_step) + b->every;
  leak.bytes_per_step = (double)leak.bytes / over;
  leak.count_per_step = (double)leak.count / over;
  if (!leak.count)
    return true;
  /* Of those that are too young to tell, as many as the rate says belong to it. */
  double young = leak.count_per_step * (double)(f->count - end);
  for (size_t i = 0; i < count && young >= 0.5; i++)
    if (s[i].step >= end) {
      const weir__life *block = &f->lives->blocks[s[i].block];
      leak.bytes += block->size;
      leak.count++;
      leak.last_step = s[i].step;
      add_level(f, &s[i], b->kind);
      young--;
    }
  weir__leak **list = b->kind == WEIR__GROWTH_LEAK ? &out->leaks : &out->growing;
  size_t *n = b->kind == WEIR__GROWTH_LEAK ? &out->leak_count : &out->growing_count;
  size_t *room = b->kind == WEIR__GROWTH_LEAK ? &out->leak_room : &out->growing_room;
  if (!WEIR__RESERVE(*list, *room, *n + 1))
    return false;
  (*list)[(*n)++] = leak;
  return true;
}

/* The step from which on survivors of a group are too young to tell. */
static int64_t horizon(const finder *f, const weir__ages *ages) {
  int64_t age = weir__ages_usual(ages);
  return f->count - (age >= 2 ? age + (age + 1) / 2 : 1);
}

/* Rare groups tell little about the age of their blocks, so they are put together. */
static int64_t horizon_of_rare(const finder *f, size_t alive) {
  weir__ages all = {.alive = (uint32_t)alive};
  for (size_t i = 0; i < f->group_count; i++) {
    const weir__ages *ages = &f->groups[i].ages;
    if (ages->alive + weir__ages_freed(ages) <= (uint64_t)f->count / 2)
      weir__ages_merge(&all, ages);
  }
  return horizon(f, &all);
}

/* Judges the survivors of groups that have too few each. They are a leak only if they are not negligible. */
static bool judge_jointly(finder *f, weir__survivor *rest, size_t count, int64_t *gaps) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++)
    if (rest[i].step >= (int64_t)f->steps->warm_up && rest[i].step < horizon(f, &f->groups[rest[i].group].ages))
      rest[kept++] = rest[i];
  qsort(rest, kept, sizeof *rest, by_block);
  int64_t end = horizon_of_rare(f, kept);
  weir__births b = weir__births_judge(f->steps, f->count, rest, kept, end, gaps);
  uint64_t bytes = 0;
  for (size_t i = b.first; i < kept; i++)
    bytes += rest[i].step < end ? f->lives->blocks[rest[i].block].size : 0;
  /* Where there are no steps, the setup of a job may take most of the history: then nearly all windows must have some,
   * and the last ones too. */
  bool is_sparse = f->steps->source == WEIR__STEPS_WINDOWS &&
                   (20 * (int64_t)b.steps < 17 * (end - b.first_step) || end - 1 - b.last_step > 1);
  if (b.kind == WEIR__GROWTH_FEW || b.steps < 6 || is_sparse || end - b.first_step < WEIR__TREND_STEPS ||
      (double)bytes < 1e-4 * (double)f->peak * (double)(end - b.first_step))
    return true;
  rest += b.first;
  kept -= b.first;
  qsort(rest, kept, sizeof *rest, by_group);
  bool ok = true;
  for (size_t i = 0, next; i < kept && ok; i = next) {
    for (next = i; next < kept && rest[next].group == rest[i].group; next++)
      ;
    weir__births own = {.kind = b.kind, .first_step = b.first_step, .last_step = rest[next - 1].step};
    own.every = (double)(end - b.first_step) / (double)(next - i);
    ok = report(f, rest + i, next - i, &own, end, true);
    weir__leak *list = b.kind == WEIR__GROWTH_LEAK ? f->out->leaks : f->out->growing;
    size_t n = b.kind == WEIR__GROWTH_LEAK ? f->out->leak_count : f->out->growing_count;
    if (ok && n && list[n - 1].example_count)
      list[n - 1].first_step = list[n - 1].examples[0].step;
  }
  return ok;
}

/* How many of the survivors of a group belong to warm-up: all that were born then, if they are far more than those of
 * the other steps. */
static size_t warm_up_of(const finder *f, const weir__survivor *s, size_t count) {
  int64_t warm_up = (int64_t)f->steps->warm_up;
  size_t early = 0;
  while (early < count && s[early].step < warm_up)
    early++;
  double rate = (double)(count - early) / (double)(f->count - warm_up);
  return early < count && (double)early > 3 * rate * (double)warm_up + 1 ? early : 0;
}

static bool judge_groups(finder *f) {
  weir__survivor *s = f->survivors;
  if (!f->survivor_count)
    return true;
  size_t rest_count = 0;
  weir__survivor *rest = malloc((f->survivor_count + 1) * sizeof *rest);
  int64_t *gaps = malloc((f->survivor_count + 1) * sizeof *gaps);
  bool ok = rest && gaps;
  if (ok) {
    qsort(s, f->survivor_count, sizeof *s, by_group);
    if (weir__steps_are_weak(f->steps))
      f->rare = horizon_of_rare(f, f->survivor_count);
  }
  for (size_t i = 0, next; i < f->survivor_count && ok; i = next) {
    for (next = i; next < f->survivor_count && s[next].group == s[i].group; next++)
      ;
    const group *g = &f->groups[s[i].group];
    int64_t end = horizon(f, &g->ages);
    i += warm_up_of(f, s + i, next - i);
    weir__births b = weir__births_judge(f->steps, f->count, s + i, next - i, end, gaps);
    if (b.kind == WEIR__GROWTH_LEAK && weir__steps_are_weak(f->steps) && b.first_step >= f->rare &&
        !weir__ages_freed(&g->ages))
      b.kind = WEIR__GROWTH_FEW;
    bool has_stopped = b.kind == WEIR__GROWTH_STOPPED && 2 * (end - 1 - b.last_step) > end - b.first_step;
    if (b.kind != WEIR__GROWTH_LEAK && b.steps < 8 && !has_stopped) /* so few may end or slow down by chance */
      b = weir__births_judge_pair(f->count, &g->ages, g->setup, s + i, next - i);
    if (b.kind != WEIR__GROWTH_FEW)
      ok = report(f, s + i, next - i, &b, end, false);
    else {
      memcpy(rest + rest_count, s + i, (next - i) * sizeof *s);
      rest_count += next - i;
    }
  }
  ok = ok && judge_jointly(f, rest, rest_count, gaps);
  free(rest);
  free(gaps);
  return ok;
}

/* ---- Growth by replacement ---- */

enum { LEVEL_GROUPS = 32 };

static int by_end_bytes(const void *a, const void *b) {
  const uint64_t *x = a, *y = b;
  return (x[0] < y[0]) - (x[0] > y[0]);
}

static bool is_reported(const weir__leaks *out, const group *g) {
  for (size_t i = 0; i < out->leak_count; i++)
    if (out->leaks[i].stack == g->stack && out->leaks[i].size == g->size && out->leaks[i].stream == g->stream)
      return true;
  return false;
}

/* Groups by stack, or else all blocks together, that are alive in more and more bytes although each block is freed. */
static bool find_replaced(finder *f) {
  weir__leaks *out = f->out;
  uint64_t(*largest)[2] = malloc((f->group_count + 1) * sizeof *largest); /* bytes, group */
  uint32_t *row_of = malloc((f->group_count + 1) * sizeof *row_of);
  uint64_t *levels = calloc(((size_t)f->count + 1) * (LEVEL_GROUPS + 1), sizeof *levels);
  size_t count = 0, rows = 0;
  bool ok = largest && row_of && levels, has_stacks = false;
  for (size_t i = 0; i < f->group_count && ok; i++) {
    has_stacks |= f->groups[i].stack != 0;
    row_of[i] = UINT32_MAX;
    if (f->groups[i].stack && 100 * f->groups[i].end_bytes >= f->peak && !is_reported(out, &f->groups[i])) {
      largest[count][0] = f->groups[i].end_bytes;
      largest[count++][1] = i;
    }
  }
  if (ok) {
    qsort(largest, count, sizeof *largest, by_end_bytes);
    for (rows = 0; rows < count && rows < LEVEL_GROUPS; rows++)
      row_of[largest[rows][1]] = (uint32_t)rows;
  }
  for (size_t i = 0; i < f->lives->block_count && ok; i++) {
    const weir__life *b = &f->lives->blocks[i];
    uint32_t g = f->group_of[i], row = row_of[g];
    if (has_stacks ? row == UINT32_MAX : is_reported(out, &f->groups[g]))
      continue;
    int64_t from = b->is_before ? 0 : weir__steps_at(f->steps, b->begin);
    int64_t to = b->freed == WEIR__LIFE_OPEN ? f->count : weir__steps_at(f->steps, b->freed);
    uint64_t *level = levels + (size_t)(has_stacks ? row : 0) * ((size_t)f->count + 1);
    from = from < 0 ? 0 : from > f->count ? f->count : from;
    to = to < 0 ? 0 : to > f->count ? f->count : to;
    level[from] += b->size; /* it is in use at the ends of steps from..to-1 */
    level[to] -= b->size;
  }
  for (size_t row = 0; ok && row < (has_stacks ? rows : 1); row++) {
    uint64_t *level = levels + row * ((size_t)f->count + 1);
    for (int64_t k = 1; k < f->count; k++)
      level[k] += level[k - 1];
    int64_t first;
    uint64_t rise = weir__level_rise(level, f->count, (int64_t)f->steps->warm_up, &first);
    if (100 * rise < f->peak || f->count - first < WEIR__TREND_STEPS)
      continue;
    const group *g = has_stacks ? &f->groups[largest[row][1]] : NULL;
    weir__leak leak = {.kind = WEIR__GROWTH_REPLACED,
                       .stack = g ? g->stack : 0,
                       .stream = g ? g->stream : 0,
                       .bytes = level[f->count - 1],
                       .first_step = first,
                       .last_step = f->count - 1,
                       .every = 1,
                       .is_joint = !g};
    leak.bytes_per_step = (double)(level[f->count - 1] - level[first]) / (double)(f->count - 1 - first);
    ok = WEIR__RESERVE(out->growing, out->growing_room, out->growing_count + 1);
    if (ok)
      out->growing[out->growing_count++] = leak;
  }
  free(largest);
  free(row_of);
  free(levels);
  return ok;
}

/* ---- Phases and streams ---- */

static bool find_outliving(finder *f) {
  weir__leaks *out = f->out;
  for (size_t i = 0; i < f->survivor_count && f->recording->remark_count; i++) {
    const weir__survivor *s = &f->survivors[i];
    const weir__life *b = &f->lives->blocks[s->block];
    uint32_t phase = f->recording->remarks[b->remark].phase;
    const group *g = &f->groups[s->group];
    if (!f->recording->strings.items[phase].length || s->step < (int64_t)f->steps->warm_up ||
        s->step >= horizon(f, &g->ages))
      continue;
    size_t k = 0;
    while (k < out->outliving_count && !(out->outliving[k].phase == phase && out->outliving[k].stack == g->stack &&
                                         out->outliving[k].size == g->size))
      k++;
    if (k == out->outliving_count) {
      if (k >= 100)
        continue;
      if (!WEIR__RESERVE(out->outliving, out->outliving_room, k + 1))
        return false;
      out->outliving[out->outliving_count++] =
          (weir__outliving){.phase = phase, .stack = g->stack, .size = g->size, .steps = f->count - s->step};
    }
    weir__outliving *o = &out->outliving[k];
    o->bytes += b->size;
    o->count++;
    o->steps = f->count - s->step > o->steps ? f->count - s->step : o->steps;
  }
  return true;
}

/* A stream is idle if nothing was allocated or freed on it in the last quarter of the history, unless that quarter is
 * too short to tell. */
static bool find_idle(const weir__recording *recording, const weir__recording_device *device, const weir__lives *lives,
                      const weir__steps *steps, weir__leaks *out) {
  if (device->event_count < IDLE_ENTRIES)
    return true;
  size_t streams = recording->stream_count ? recording->stream_count : 1;
  weir__idle_stream *all = calloc(streams, sizeof *all);
  bool ok = all != NULL;
  for (size_t i = 0; i < device->event_count && ok; i++)
    if (device->events[i].action == WEIR_TRACE_ALLOC || device->events[i].action == WEIR_TRACE_FREE_REQUESTED)
      all[device->events[i].stream].last_entry = (uint32_t)i;
  for (size_t i = 0; i < lives->segment_count && ok; i++)
    if (lives->segments[i].end == WEIR__LIFE_OPEN)
      all[lives->segments[i].stream].reserved += lives->segments[i].size;
  for (size_t i = 0; i < lives->block_count && ok; i++)
    if (lives->blocks[i].end == WEIR__LIFE_OPEN)
      all[lives->blocks[i].stream].in_use += lives->blocks[i].size;
  for (size_t i = 0; i < streams && ok; i++) {
    weir__idle_stream *s = &all[i];
    s->stream = (uint16_t)i;
    s->idle_share = 1 - (double)s->last_entry / (double)device->event_count;
    s->idle_steps = steps->count ? (int64_t)steps->count - 1 - weir__steps_at(steps, s->last_entry) : -1;
    if (s->idle_share < 0.25 || s->reserved < s->in_use + (2 << 20))
      continue;
    ok = WEIR__RESERVE(out->idle, out->idle_room, out->idle_count + 1);
    if (ok)
      out->idle[out->idle_count++] = *s;
  }
  free(all);
  return ok;
}

/* ---- When it runs out ---- */

static int by_number(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static bool measure_step(finder *f) {
  const weir__recording_entry *e = f->device->events;
  int64_t *times = malloc((size_t)(f->count + 1) * sizeof *times);
  size_t n = 0;
  if (!times)
    return false;
  for (int64_t k = 0; k < f->count; k++) {
    uint32_t end =
        f->steps->begin[k + 1] < f->device->event_count ? f->steps->begin[k + 1] : f->steps->begin[k + 1] - 1;
    int64_t from = e[f->steps->begin[k]].time_us, to = e[end].time_us;
    if (from > 0 && to > from)
      times[n++] = to - from;
  }
  qsort(times, n, sizeof *times, by_number);
  const size_t half = n / 2;
  f->out->step_us = n ? (double)times[half] : 0;
  free(times);
  return true;
}

/* At the latest when what is in use at the peak of a step reaches the limit, and at the earliest when what is reserved
 * reaches it: free memory in the cache may or may not serve the leak. */
static weir_status find_end(finder *f, const weir__leaks_options *options) {
  weir__leaks *out = f->out;
  const weir__recording *r = f->recording;
  weir__levels levels;
  weir_status status = weir__levels_begin(r, out->device, &levels);
  if (status)
    return status;
  int64_t used = 0, reserved = 0;
  uint32_t from = f->steps->begin[f->count > 3 ? f->count - 3 : 0];
  for (size_t i = 0; i < f->end; i++) {
    weir__levels_move(&levels, &f->device->events[i]);
    if (i < from)
      continue;
    used = levels.allocated > used ? levels.allocated : used;
    reserved = levels.reserved > reserved ? levels.reserved : reserved;
  }
  out->reserved = (uint64_t)reserved;
  out->limit = options && options->memory ? options->memory : 0;
  for (size_t i = 0; i < r->change_count && !(options && options->memory); i++)
    if (r->changes[i].device == out->device && !r->changes[i].conf)
      out->limit = r->changes[i].limit == UINT64_MAX ? 0 : r->changes[i].limit;
  if (!out->limit) {
    out->limit = f->device->memory;
    out->limit_is_device = out->limit != 0;
  }
  if (out->verdict != WEIR__LEAKS_FOUND) {
    out->runs_out = out->verdict == WEIR__LEAKS_NONE ? WEIR__RUNS_OUT_NEVER : WEIR__RUNS_OUT_NOT_KNOWN;
    return WEIR_OK;
  }
  if (!out->limit || f->device->lacks_start || out->bytes_per_step <= 0)
    return WEIR_OK;
  double least = (double)out->limit - (double)reserved, most = (double)out->limit - (double)used;
  out->steps_least = least > 0 ? (uint64_t)(least / out->bytes_per_step) : 0;
  out->steps_most = most > 0 ? (uint64_t)(most / out->bytes_per_step) + 1 : 0;
  out->runs_out = out->steps_least == out->steps_most ? WEIR__RUNS_OUT_EXACT : WEIR__RUNS_OUT_RANGE;
  return WEIR_OK;
}

/* ---- All together ---- */

static int by_rate(const void *a, const void *b) {
  const weir__leak *x = a, *y = b;
  if (x->bytes_per_step != y->bytes_per_step)
    return x->bytes_per_step < y->bytes_per_step ? 1 : -1;
  return (x->examples[0].entry > y->examples[0].entry) - (x->examples[0].entry < y->examples[0].entry);
}

static int by_bytes(const void *a, const void *b) {
  const weir__leak *x = a, *y = b;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static int by_outliving(const void *a, const void *b) {
  const weir__outliving *x = a, *y = b;
  return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static uint64_t peak_of(const weir__lives *lives) {
  uint64_t used = 0, peak = 0;
  uint64_t *freed = calloc(lives->entry_count + 1, sizeof *freed);
  if (!freed)
    return 0;
  for (size_t i = 0; i < lives->block_count; i++) {
    used += lives->blocks[i].is_before ? lives->blocks[i].size : 0;
    if (lives->blocks[i].freed != WEIR__LIFE_OPEN)
      freed[lives->blocks[i].freed] += lives->blocks[i].size;
  }
  size_t k = 0;
  while (k < lives->block_count && lives->blocks[k].is_before)
    k++;
  for (size_t i = 0; i < lives->entry_count; i++) {
    if (k < lives->block_count && lives->blocks[k].begin == i)
      used += lives->blocks[k++].size;
    peak = used > peak ? used : peak;
    used -= freed[i];
  }
  free(freed);
  return peak;
}

static void sum_up(finder *f) {
  weir__leaks *out = f->out;
  if (out->leak_count) {
    qsort(out->leaks, out->leak_count, sizeof *out->leaks, by_rate);
    out->first_step = out->leaks[0].first_step;
  }
  if (out->growing_count)
    qsort(out->growing, out->growing_count, sizeof *out->growing, by_bytes);
  if (out->outliving_count)
    qsort(out->outliving, out->outliving_count, sizeof *out->outliving, by_outliving);
  for (size_t i = 0; i < out->leak_count; i++) {
    out->bytes += out->leaks[i].bytes;
    out->count += out->leaks[i].count;
    out->bytes_per_step += out->leaks[i].bytes_per_step;
    out->count_per_step += out->leaks[i].count_per_step;
    if (out->leaks[i].first_step < out->first_step)
      out->first_step = out->leaks[i].first_step;
  }
  for (int64_t k = 1; k < f->count; k++)
    out->levels[k] += out->levels[k - 1];
  out->verdict = out->leak_count ? WEIR__LEAKS_FOUND : WEIR__LEAKS_NONE;
}

/* How far memory that does not leak rises and falls within a step, on average from step `first` on. freed[i] are the
 * bytes that entry i frees. */
static double swing_of(const finder *f, const uint64_t *freed, int64_t first) {
  const weir__lives *l = f->lives;
  size_t block = 0;
  double swing = 0;
  while (block < l->block_count && (l->blocks[block].is_before || l->blocks[block].begin < f->steps->begin[first]))
    block++;
  for (int64_t k = first; k < f->count; k++) {
    double level = 0, most = 0, least = 0;
    for (uint32_t i = f->steps->begin[k]; i < f->steps->begin[k + 1]; i++) {
      if (block < l->block_count && l->blocks[block].begin == i) {
        level += f->is_leaked[block] ? 0 : (double)l->blocks[block].size;
        block++;
      }
      level -= (double)freed[i];
      most = level > most ? level : most;
      least = level < least ? level : least;
    }
    swing += most - least;
  }
  return swing / (double)(f->count - first);
}

/* Whether what looks like steps is the middle of one: layers of a model recur as well, and gradients grow from layer to
 * layer. From step to step, what is in use for a while comes and goes, and is the same on average at the ends of steps;
 * in the middle of a step it rises or falls by more than what comes and goes meanwhile, or from nearly every layer to
 * the next and by many times what leaks: a backward pass frees the activations of one layer after the other. Of what
 * is allocated, most is freed. */
static bool is_steady(finder *f, bool *ok) {
  const size_t n = (size_t)f->count;
  const int64_t first = f->out->first_step, half = first + (f->count - first) / 2;
  double *at_end = calloc(2 * n + 4, sizeof *at_end), *made = at_end ? at_end + n + 2 : NULL;
  uint64_t *freed = calloc((size_t)f->end + 1, sizeof *freed);
  double swing = 0, sums[2] = {0}, all = 0, blocks = 0;
  int64_t rises = 0, falls = 0;
  *ok = made && freed;
  for (size_t i = 0; i < f->lives->block_count && *ok; i++) {
    const weir__life *b = &f->lives->blocks[i];
    if (!b->is_before && b->begin >= f->end)
      break;
    int64_t from = b->is_before ? 0 : weir__steps_at(f->steps, b->begin);
    from = from < 0 ? 0 : from;
    made[from] += b->is_before ? 0 : (double)b->size;
    blocks += from >= first && !b->is_before;
    if (f->is_leaked[i])
      continue;
    at_end[from] += (double)b->size; /* in use at the ends of steps from..to-1 */
    if (is_alive(b, f->end))
      continue;
    int64_t to = weir__steps_at(f->steps, b->freed);
    at_end[to < 0 ? 0 : to] -= (double)b->size;
    freed[b->freed] += b->size;
  }
  for (int64_t k = 1; k < f->count && *ok; k++)
    at_end[k] += at_end[k - 1];
  if (*ok)
    swing = swing_of(f, freed, first);
  for (int64_t k = first; k < f->count && *ok; k++) {
    all += made[k];
    sums[k >= half] += at_end[k];
    rises += k > first && at_end[k] > at_end[k - 1];
    falls += k > first && at_end[k] < at_end[k - 1];
  }
  free(at_end);
  free(freed);
  if (!*ok)
    return false;
  double change = sums[1] / (double)(f->count - half) - sums[0] / (double)(half - first > 0 ? half - first : 1);
  change = change < 0 ? -change : change;
  bool drifts = 4 * (rises > falls ? rises : falls) >= 3 * (f->count - 1 - first) && change > 4 * (double)f->out->bytes;
  bool is_small_part = (double)f->out->bytes <= 0.45 * all || (double)f->out->count <= 0.3 * blocks;
  return change <= 0.5 * swing && !drifts && is_small_part;
}

/* Takes back what was found. */
static void forget(weir__leaks *out, const char *reason) {
  out->leak_count = 0;
  out->bytes = out->count = 0;
  out->bytes_per_step = out->count_per_step = 0;
  out->first_step = 0;
  out->verdict = WEIR__LEAKS_UNKNOWN;
  snprintf(out->reason, sizeof out->reason, "%s", reason);
}

static weir_status find(finder *f, const weir__leaks_options *options) {
  weir_status status = weir__describe_alike(f->recording, &f->alike);
  if (status)
    return status;
  f->peak = peak_of(f->lives);
  f->out->levels = calloc((size_t)f->count + 1, sizeof *f->out->levels);
  bool ok = f->out->levels && make_groups(f) && judge_groups(f) && find_replaced(f) && find_outliving(f);
  if (ok) {
    sum_up(f);
    ok = measure_step(f);
  }
  bool is_tiny = f->out->bytes_per_step < 2e-4 * (double)f->peak;
  if (ok && weir__steps_are_weak(f->steps) && f->out->verdict == WEIR__LEAKS_FOUND && (is_tiny || !is_steady(f, &ok)))
    forget(f->out, "the history seems to be a part of one step, in which memory grows anyway");
  free(f->alike);
  free(f->groups);
  free(f->group_of);
  free(f->is_leaked);
  free(f->survivors);
  weir__hash_map_clear(&f->slots);
  return ok ? find_end(f, options) : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory to look for leaks");
}

static size_t allocations_of(const weir__lives *lives) {
  size_t before = 0;
  while (before < lives->block_count && lives->blocks[before].is_before)
    before++;
  return lives->block_count - before;
}

/* Looks at steps, or at windows, of which `steps` has at least enough. */
static weir_status find_in(const weir__recording *recording, const weir__lives *lives, weir__steps steps,
                           const weir__leaks_options *options, weir__leaks *out) {
  finder f = {.recording = recording, .device = &recording->devices[out->device], .lives = lives, .out = out};
  uint32_t until = options ? options->until : 0;
  out->steps = steps;
  f.steps = &out->steps;
  f.count = (int64_t)steps.count;
  while (until && f.count && steps.begin[f.count] > until)
    f.count--;
  if (f.count >= WEIR__TREND_STEPS) {
    f.end = steps.begin[f.count];
    return find(&f, options);
  }
  snprintf(out->reason, sizeof out->reason,
           !f.device->event_count ? "there is no history"
           : steps.count          ? "%lld complete steps are too few to tell growth: at least %d are needed"
                                  : "there are no steps in the history, and too few allocations without them",
           (long long)f.count, WEIR__TREND_STEPS);
  return WEIR_OK;
}

/* Inferred steps may be wrong: too long if an evaluation comes now and then, or too short if layers look like steps. A
 * leak that shows in windows, and not in steps, is a leak as well. */
static weir_status look(const weir__recording *recording, const weir__lives *lives, const weir__leaks_options *options,
                        weir__leaks *out) {
  weir__steps steps, windows;
  weir__leaks other = {.device = out->device, .verdict = WEIR__LEAKS_UNKNOWN};
  weir_status status = weir__job_steps_find(recording, out->device, lives, &steps);
  if (!status)
    status = find_in(recording, lives, steps, options, out);
  bool is_recorded = out->steps.count && out->steps.source != WEIR__STEPS_INFERRED;
  bool is_sure = out->verdict == WEIR__LEAKS_FOUND && out->steps.confidence >= 0.8;
  if (status || is_recorded || is_sure || allocations_of(lives) < WINDOWS * WINDOW_ALLOCATIONS)
    return status;
  status = weir__job_steps_windows(lives, WINDOWS, &windows);
  if (!status)
    status = find_in(recording, lives, windows, options, &other);
  bool is_better = other.verdict == WEIR__LEAKS_FOUND && other.bytes > 2 * out->bytes;
  if (!status && (is_better || out->verdict == WEIR__LEAKS_UNKNOWN)) {
    weir__leaks kept = *out;
    *out = other;
    other = kept;
  }
  weir__leaks_clear(&other);
  return status;
}

weir_status weir__leaks_find(const weir__recording *recording, int device, const weir__leaks_options *options,
                             weir__leaks *leaks) {
  weir__lives lives;
  weir__leaks out = {.device = device, .verdict = WEIR__LEAKS_UNKNOWN};
  weir_status status = weir__lives_make(recording, device, &lives);
  if (status)
    return status;
  status = look(recording, &lives, options, &out);
  if (!status && !find_idle(recording, &recording->devices[device], &lives, &out.steps, &out))
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory to look for leaks");
  weir__lives_clear(&lives);
  if (status)
    weir__leaks_clear(&out);
  else
    *leaks = out;
  return status;
}

void weir__leaks_clear(weir__leaks *leaks) {
  weir__steps_clear(&leaks->steps);
  free(leaks->leaks);
  free(leaks->growing);
  free(leaks->outliving);
  free(leaks->idle);
  free(leaks->levels);
  *leaks = (weir__leaks){0};
}

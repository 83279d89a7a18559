#include "offline/replay_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/sizes.h"
#include "base/rangemap.h"
#include "offline/initial_state.h"

/* ---- The recorded settings ---- */

/* The value of a key in the recorded text, as PyTorch reads it: any separator separates. false: it is not there. */
static bool find_in_conf(const char *conf, const char *key, char *value, size_t size) {
  static const char separators[] = ",:[] \t\n";
  bool is_next = false;
  for (size_t length; conf && *conf; conf += length) {
    conf += strspn(conf, separators);
    length = strcspn(conf, separators);
    if (is_next && length && length < size) {
      memcpy(value, conf, length);
      value[length] = 0;
      return true;
    }
    is_next = length == strlen(key) && memcmp(conf, key, length) == 0;
  }
  return false;
}

static int64_t setting_int(const weir__recording *s, const char *key, const char *sub, int64_t otherwise) {
  const weir__recording_setting *setting = weir__recording_find_setting(s, key, sub);
  if (!setting || setting->kind > WEIR__SETTING_FLOAT)
    return otherwise;
  if (setting->kind != WEIR__SETTING_FLOAT)
    return setting->integer;
  return fabs(setting->real) < 9e18 ? (int64_t)setting->real : otherwise;
}

/* The numbers rather than the text, since a program may have changed them after the text was read; the text for what has no
 * number in the file. */
static void read_settings(weir__plan *plan) {
  static const char *const in_text[] = {"large_segment_size_mb", "max_non_split_rounding_mb",
                                        "expandable_segments_reserve"};
  const weir__recording *s = plan->snapshot;
  weir__settings *settings = &plan->settings;
  char value[64], setting[128], *end;
  weir__settings_default(settings);
  for (size_t i = 0; i < WEIR_COUNT_OF(in_text); i++)
    if (find_in_conf(s->conf, in_text[i], value, sizeof value)) {
      snprintf(setting, sizeof setting, "%s:%s", in_text[i], value);
      weir__settings_parse(settings, setting, settings); /* what PyTorch refused was not in force */
    }
  plan->fraction = 1;
  if (find_in_conf(s->conf, "per_process_memory_fraction", value, sizeof value)) {
    double fraction = strtod(value, &end);
    if (!*end && fraction >= 0 && fraction < 1)
      plan->fraction = fraction;
  }
  int64_t split = setting_int(s, "max_split_size", NULL, -1);
  if (split >= 0)
    settings->max_split_size = (uint64_t)split;
  const weir__recording_setting *gc = weir__recording_find_setting(s, "garbage_collection_threshold", NULL);
  if (gc && gc->real > 0 && gc->real < 1)
    settings->garbage_collection_threshold = gc->real;
  settings->expandable_segments = setting_int(s, "expandable_segments", NULL, 0) != 0;
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++) {
    char megabytes[16];
    snprintf(megabytes, sizeof megabytes, "%d", 1 << i);
    int64_t divisions = setting_int(s, "roundup_power2_divisions", megabytes, 0);
    settings->roundup_divisions[i] = divisions > 0 ? (uint8_t)(__builtin_ctzll((uint64_t)divisions) + 1) : 0;
  }
}

bool weir__plan_change(const weir__plan *plan, const weir__recording_change *change, weir__settings *settings) {
  weir__settings parsed;
  if (!change->conf || weir__settings_parse(NULL, change->conf, &parsed))
    return false;
  *settings = plan->settings;
  settings->max_split_size = parsed.max_split_size;
  settings->max_non_split_rounding = parsed.max_non_split_rounding;
  settings->large_segment_size = parsed.large_segment_size;
  settings->garbage_collection_threshold = parsed.garbage_collection_threshold;
  settings->expandable_segments = parsed.expandable_segments;
  settings->expandable_segments_reserve = parsed.expandable_segments_reserve;
  memcpy(settings->roundup_divisions, parsed.roundup_divisions, sizeof settings->roundup_divisions);
  return true;
}

/* What held before the first event is where it begins. */
static void read_changes(weir__plan *plan, int device) {
  const weir__recording *s = plan->snapshot;
  size_t first = 0, end;
  while (first < s->change_count && s->changes[first].device != device)
    first++;
  for (end = first; end < s->change_count && s->changes[end].device == device; end++) {
  }
  for (; first < end && !s->changes[first].event; first++)
    if (!weir__plan_change(plan, &s->changes[first], &plan->settings) && !s->changes[first].conf)
      plan->limit = s->changes[first].limit;
  plan->changes = s->changes ? s->changes + first : NULL;
  plan->change_count = end - first;
}

static void find_early(weir__plan *plan, int device) {
  const weir__recording *s = plan->snapshot;
  size_t first = 0, end;
  while (first < s->early_count && s->early[first].device != device)
    first++;
  for (end = first; end < s->early_count && s->early[end].device == device; end++) {
  }
  plan->early = s->early ? s->early + first : NULL;
  plan->early_count = end - first;
}

/* ---- Which pool, and which allocation ---- */

/* A request that failed has no address. It is taken for one of the pool that the last request before it went to; where there is
 * none, the next. */
static void plan_failures(weir__plan *plan) {
  size_t first = 0;
  while (first < plan->count && plan->events[first].action != WEIR_TRACE_ALLOC)
    first++;
  uint32_t pool = first < plan->count ? plan->entries[first].pool : 0;
  for (size_t i = 0; i < plan->count; i++) {
    const weir__recording_entry *e = &plan->events[i];
    if (e->action == WEIR_TRACE_ALLOC)
      pool = plan->entries[i].pool;
    else if (e->action == WEIR_TRACE_OOM)
      plan->entries[i].pool = e->pool != WEIR__RECORDING_NO_POOL ? e->pool : pool;
  }
}

/* Backwards through the history: a fixed segment that is freed later is marked, up to where it was made. */
static bool plan_pools(weir__plan *plan, const weir__recording_device *device) {
  weir__rangemap gone = {0}, at_end = {0};
  static char mark;
  bool ok = true;
  for (size_t i = 0; i < device->segment_count && ok; i++) {
    const weir__recording_segment *s = &device->segments[i];
    ok = weir__rangemap_insert(&at_end, s->address, s->size, (void *)s) || !s->size ||
         s->address + s->size - 1 < s->address || weir__rangemap_overlap(&at_end, s->address, s->size, NULL, NULL);
  }
  for (size_t i = plan->count; i-- > 0 && ok;) {
    const weir__recording_entry *e = &plan->events[i];
    plan->entries[i] = (weir__plan_entry){0, WEIR__NO_BLOCK};
    if (e->action == WEIR_TRACE_SEGMENT_FREE)
      ok = weir__rangemap_insert(&gone, e->address, e->size, &mark) || !e->size ||
           e->address + e->size - 1 < e->address || weir__rangemap_overlap(&gone, e->address, e->size, NULL, NULL);
    else if (e->action == WEIR_TRACE_SEGMENT_ALLOC)
      weir__rangemap_remove(&gone, e->address);
    else if (e->action == WEIR_TRACE_ALLOC) {
      if (e->pool != WEIR__RECORDING_NO_POOL)
        plan->entries[i].pool = e->pool;
      else if (!weir__rangemap_find(&gone, e->address, NULL, NULL)) {
        const weir__recording_segment *segment = weir__rangemap_find(&at_end, e->address, NULL, NULL);
        if (segment)
          plan->entries[i].pool = segment->pool;
      }
    }
  }
  weir__rangemap_clear(&gone);
  weir__rangemap_clear(&at_end);
  plan_failures(plan);
  return ok;
}

typedef struct numbered {
  uint64_t address; /* 0: empty */
  uint32_t block;
} numbered;

static numbered *slot_of(numbered *table, size_t room, uint64_t address) {
  size_t slot = (size_t)((address >> 9) * 0x9e3779b97f4a7c15u >> 20) & (room - 1);
  while (table[slot].address && table[slot].address != address)
    slot = (slot + 1) & (room - 1);
  return &table[slot];
}

/* Numbers the allocations, so that a free finds its own without a search while the clock runs. */
static bool plan_blocks(weir__plan *plan) {
  const weir__state *start = &plan->start;
  size_t room = 64;
  while (room < 2 * (plan->count + start->block_count))
    room *= 2;
  numbered *table = calloc(room, sizeof *table);
  if (!table)
    return false;
  for (size_t i = 0; i < start->block_count; i++)
    if (start->blocks[i].state >= WEIR__ALLOCATED)
      *slot_of(table, room, start->blocks[i].address) =
          (numbered){start->blocks[i].address, (uint32_t)plan->block_count++};
  for (size_t i = plan->first; i < plan->count; i++) {
    const weir__recording_entry *e = &plan->events[i];
    if (e->action > WEIR_TRACE_FREE_COMPLETED)
      continue;
    numbered *found = slot_of(table, room, e->address);
    if (e->action == WEIR_TRACE_ALLOC) {
      *found = (numbered){e->address, (uint32_t)plan->block_count++};
      plan->entries[i].block = found->block;
    } else if (found->address)
      plan->entries[i].block = found->block;
    else if (e->action == WEIR_TRACE_FREE_REQUESTED)
      plan->unknown_frees++;
  }
  free(table);
  return true;
}

/* ---- Why memory went back ---- */

static void count_reserved(const weir__recording_entry *e, uint64_t *reserved) {
  if (weir__is_growth(e))
    *reserved += e->size;
  else if (weir__is_release(e))
    *reserved -= e->size < *reserved ? e->size : *reserved;
}

/* Whether the free_completed at `i` stands at once behind its free_requested: an ordinary free. */
static bool is_ordinary(const weir__plan *plan, size_t i) {
  return i > 0 && plan->events[i - 1].action == WEIR_TRACE_FREE_REQUESTED &&
         plan->events[i - 1].address == plan->events[i].address;
}

bool weir__plan_waited(const weir__plan *plan, size_t request) {
  size_t i = request;
  while (i > 0 && weir__is_segment_event(&plan->events[i - 1]))
    i--;
  return i > 0 && plan->events[i - 1].action == WEIR_TRACE_FREE_COMPLETED && !is_ordinary(plan, i - 1);
}

/* Whether an event is of the same release as the first of it. */
static bool goes_on(const weir__plan *plan, const weir__recording_entry *first, const weir__recording_entry *e) {
  if (!plan->snapshot->has_causes)
    return weir__is_segment_event(e) || e->action == WEIR_TRACE_FREE_COMPLETED;
  return e->thread == first->thread && (e->action == WEIR_TRACE_FREE_COMPLETED ||
                                        (weir__is_segment_event(e) && e->is_for_request == first->is_for_request));
}

/* Fills in one release that begins at event `first`; where it ends. */
static size_t plan_release(const weir__plan *plan, size_t first, uint64_t reserved, weir__plan_release *release) {
  const weir__recording_entry *events = plan->events;
  size_t i = first;
  *release = (weir__plan_release){.first = first, .completed = first, .request = plan->count, .reserved = reserved};
  release->is_aged = events[first].action == WEIR_TRACE_SEGMENT_FREE && events[first].size > WEIR__SMALL_SEGMENT;
  while (release->completed > plan->first && events[release->completed - 1].action == WEIR_TRACE_FREE_COMPLETED &&
         !is_ordinary(plan, release->completed - 1))
    release->completed--;
  for (; i < plan->count && goes_on(plan, &events[first], &events[i]); i++) {
    if (weir__is_release(&events[i]))
      release->freed += events[i].size;
    release->grows |= weir__is_growth(&events[i]);
  }
  bool is_for_request = !plan->snapshot->has_causes || events[first].is_for_request;
  if (i < plan->count && weir__is_request(&events[i]) && is_for_request)
    release->request = i;
  release->end = i;
  return i;
}

static bool plan_releases(weir__plan *plan) {
  uint64_t reserved = plan->start.reserved;
  size_t room = 0;
  plan->peak = reserved;
  for (size_t i = plan->first; i < plan->count; i++)
    if (weir__is_request(&plan->events[i]))
      plan->last_request[plan->events[i].thread] = i + 1;
  for (size_t i = plan->first; i < plan->count;) {
    if (!weir__is_release(&plan->events[i]) || weir__plan_is_cut_off(plan, i)) {
      count_reserved(&plan->events[i++], &reserved);
      plan->peak = reserved > plan->peak ? reserved : plan->peak;
      continue;
    }
    if (plan->release_count == room) {
      weir__plan_release *grown = realloc(plan->releases, (2 * room + 16) * sizeof *grown);
      if (!grown)
        return false;
      plan->releases = grown;
      room = 2 * room + 16;
    }
    size_t end = plan_release(plan, i, reserved, &plan->releases[plan->release_count++]);
    for (; i < end; i++) {
      count_reserved(&plan->events[i], &reserved);
      plan->peak = reserved > plan->peak ? reserved : plan->peak;
    }
  }
  return true;
}

bool weir__plan_is_capture(const weir__plan *plan, size_t request) {
  uint32_t pool = plan->entries[request].pool;
  /* Up to 2.11, which does not name pools, every private pool in use counted as a capture. */
  return pool && (plan->snapshot->pools[pool].id[0] || plan->events[request].pool == WEIR__RECORDING_NO_POOL);
}

/* What a request takes from the driver, by the rule that a limit is asked with. */
static uint64_t segment_bytes(const weir__plan *plan, size_t request) {
  uint64_t bytes = plan->events[request].size;
  return bytes < WEIR__MOST_BYTES ? weir__segment_bytes(&plan->settings, weir__round_bytes(&plan->settings, bytes))
                                  : bytes;
}

/* Whether the allocator may have given this back for the request that follows. */
static bool is_for_request(const weir__plan *plan, const weir__plan_release *r) {
  /* A fixed segment that goes back for a request makes room for another one. Blocks of an expandable segment may become one
   * that is large enough when the allocator waits for other streams. */
  return r->request < plan->count && (r->is_aged || !weir__plan_is_capture(plan, r->request)) &&
         (r->grows || plan->settings.expandable_segments || plan->events[r->request].action == WEIR_TRACE_OOM);
}

void weir__plan_guess(weir__plan *plan, uint64_t limit) {
  double threshold = plan->settings.garbage_collection_threshold;
  for (size_t i = 0; i < plan->release_count; i++) {
    weir__plan_release *r = &plan->releases[i];
    bool is_over = false, is_aged = false;
    if (plan->snapshot->has_causes) {
      bool by_program = r->request == plan->count;
      r->cause = by_program ? WEIR__RELEASED_BY_PROGRAM : WEIR__RELEASED_BY_POLICY;
      r->tried = (uint8_t)(1u << WEIR__RELEASED_BY_PROGRAM | 1u << r->cause);
      continue;
    }
    if (limit != WEIR__NO_LIMIT && is_for_request(plan, r)) {
      uint64_t bytes = segment_bytes(plan, r->request);
      is_over = (bytes > limit || r->reserved > limit - bytes) && !weir__plan_is_capture(plan, r->request);
      is_aged = r->is_aged && threshold > 0 && (double)r->reserved > threshold * (double)limit;
    }
    r->cause = is_over || is_aged ? WEIR__RELEASED_BY_POLICY : WEIR__RELEASED_BY_PROGRAM;
    r->tried = (uint8_t)(1u << r->cause);
  }
}

/* ---- The limit, when nobody gave it ---- */

/* What requests show about how much could be reserved, counting what each takes as a limit counts it. */
typedef struct evidence {
  uint64_t allowed;     /* so much was: requests got memory from the driver */
  uint64_t served;      /* so much may have been: requests were served after memory had gone back, without new memory */
  uint64_t not_allowed; /* so much was not: requests failed */
  uint64_t device; /* what the device had for this process when it was too little for a request that failed; 0: never */
  bool is_limited; /* a request failed, or memory went back for one that would have gone beyond what was allowed */
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
        found->is_limited = true;
        found->not_allowed = wanted < found->not_allowed ? wanted : found->not_allowed;
        /* The event has the free memory of the device where others have an address. Where that was less than a part of the
         * recording had, other processes came in between, and no one size of the device explains it. */
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
    count_reserved(e, &reserved);
  }
  for (size_t i = 0; i < plan->release_count && !found->is_limited; i++) {
    const weir__plan_release *r = &plan->releases[i];
    uint64_t bytes = is_for_request(plan, r) ? segment_bytes(plan, r->request) : 0;
    found->is_limited = bytes && (bytes > found->allowed || r->reserved > found->allowed - bytes);
  }
}

/* Memory of an expandable segment. */
typedef struct piece {
  uint64_t bytes;
  int64_t stream;
  bool is_small;
} piece;

/* Expandable segments, as far as they are told apart: by their streams, and by their pages, which are of 2 MiB in the small
 * pool. One is mapped from its beginning on. The least distance from one to the next, and the longest that is mapped. */
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
    pieces[count] = (piece){e->size, plan->snapshot->streams[e->stream], e->size == WEIR__SMALL_SEGMENT};
    if (e->action == WEIR_TRACE_SEGMENT_MAP)
      weir__rangemap_insert(&map, e->address, 1, &pieces[count++]);
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

/* Memory that is enough for all that the file shows. The address space of an expandable segment is 9/8 of it, and must not
 * run into the next. `roomy` is as much as seems to be needed if holes were never filled. */
static uint64_t guess_memory(const weir__plan *plan, uint64_t *roomy) {
  uint64_t peak = plan->peak < 4ull << 30 ? 4ull << 30 : plan->peak, memory = 2 * peak, distance, length;
  if (peak > WEIR__REPLAY_MOST_MEMORY / 2)
    memory = WEIR__REPLAY_MOST_MEMORY;
  *roomy = memory;
  if (!plan->settings.expandable_segments)
    return memory;
  measure(plan, &distance, &length);
  uint64_t page = plan->settings.large_segment_size, most = (distance < page ? 0 : distance - page) / 9 * 8;
  if (length < WEIR__REPLAY_MOST_MEMORY && memory < length)
    *roomy = length;
  if (*roomy > most && most > plan->peak)
    *roomy = most;
  return memory < *roomy ? memory : *roomy;
}

static void add_limit(uint64_t limit, uint64_t memory, weir__plan_limit *limits, size_t *count) {
  if (memory > WEIR__REPLAY_MOST_MEMORY)
    memory = WEIR__REPLAY_MOST_MEMORY;
  for (size_t i = 0; i < *count; i++)
    if (limits[i].limit == limit && limits[i].memory == memory)
      return;
  if (*count < WEIR__PLAN_LIMITS)
    limits[(*count)++] = (weir__plan_limit){.limit = limit, .memory = memory};
}

/* Collection begins when more than a part of the limit is reserved. So where something was collected it was above that part;
 * and where memory was taken and nothing collected it was below, unless there was nothing to collect. What looks like a
 * collection may have been the program's call, so the lowest is not always it. */
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
      count_reserved(&plan->events[i], &reserved);
    }
    const uint64_t parts[] = {below, begin - 1, below + (begin - 1 - below) / 2, to};
    for (size_t i = 0; i < WEIR_COUNT_OF(parts); i++) {
      double exact = (double)parts[i] / threshold; /* a file may have any number */
      uint64_t limit = exact < 0x1p63 ? (uint64_t)exact + 1 : UINT64_MAX;
      if (limit >= found->not_allowed)
        limit = found->not_allowed - 1;
      add_limit(limit > found->allowed ? limit : found->allowed, memory, limits, count);
    }
    above = begin;
  }
}

size_t weir__plan_limits(const weir__plan *plan, weir__plan_limit limits[WEIR__PLAN_LIMITS]) {
  evidence found;
  size_t count = 0;
  gather(plan, &found);
  uint64_t roomy, memory = guess_memory(plan, &roomy);
  if (plan->memory) /* what was told; but others may have had a part of the device */
    add_limit(plan->limit, plan->memory, limits, &count);
  if (plan->limit != WEIR__NO_LIMIT)
    add_limit(plan->limit, memory, limits, &count);
  if (found.device && found.device < found.not_allowed) { /* UINT64_MAX is not */
    uint64_t total = plan->memory ? plan->memory : roomy;
    add_limit(WEIR__NO_LIMIT, found.device, limits, &count);
    if (plan->settings.expandable_segments && total > found.device && count < WEIR__PLAN_LIMITS)
      limits[count++] = (weir__plan_limit){WEIR__NO_LIMIT, found.device,
                                           (total - found.device) / WEIR__SMALL_SEGMENT * WEIR__SMALL_SEGMENT};
  }
  if (found.is_limited) {
    add_limit(found.allowed, memory, limits, &count);
    add_limit(found.allowed, roomy, limits, &count);
    if (found.served > found.allowed && found.served < found.not_allowed)
      add_limit(found.served, memory, limits, &count);
    if (found.not_allowed != UINT64_MAX && found.not_allowed > found.allowed)
      add_limit(found.not_allowed - 1, memory, limits, &count);
    /* Pages are mapped one by one, so a device that is full does not act as a limit does. */
    if (plan->settings.expandable_segments)
      add_limit(WEIR__NO_LIMIT, plan->peak, limits, &count);
  }
  if (plan->settings.garbage_collection_threshold > 0)
    add_collecting(plan, &found, memory, limits, &count);
  add_limit(WEIR__NO_LIMIT, memory, limits, &count);
  add_limit(WEIR__NO_LIMIT, roomy, limits, &count);
  /* If segments are closer to each other than it seems: no device is smaller than what was reserved on it. */
  if (plan->settings.expandable_segments)
    add_limit(WEIR__NO_LIMIT, plan->peak, limits, &count);
  return count;
}

/* ---- Several threads ---- */

/* Who used a stream's pool last, and who did before that was another. Places are those of events, from 1 on. */
typedef struct use {
  uint64_t key; /* + 1; 0: empty */
  size_t last, before;
  uint8_t thread;
} use;

static bool note_race(weir__plan *plan, size_t request) {
  if (plan->race_count == plan->race_room) {
    size_t room = 2 * plan->race_room + 64;
    size_t *grown = realloc(plan->races, room * sizeof *grown);
    if (!grown)
      return false;
    plan->races = grown;
    plan->race_room = room;
  }
  plan->races[plan->race_count++] = request;
  return true;
}

static use *use_of(use *uses, size_t room, const weir__recording_entry *e) {
  uint64_t key = ((uint64_t)e->pool << 16 | e->stream) + 1;
  size_t slot = (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & (room - 1);
  while (uses[slot].key && uses[slot].key != key)
    slot = (slot + 1) & (room - 1);
  uses[slot].key = key;
  return &uses[slot];
}

static bool plan_races(weir__plan *plan) {
  const weir__recording_entry *events = plan->events;
  size_t heard[WEIR__RECORDING_MANY_THREADS + 1] = {0}, room = 64;
  for (size_t i = 1; i < plan->count && !plan->has_threads; i++)
    plan->has_threads = events[i].thread != events[0].thread;
  if (!plan->snapshot->has_causes || (!plan->has_threads && !plan->has_checkpoint))
    return true;
  while (room < 2 * plan->snapshot->stream_count * plan->snapshot->pool_count && room < 4 * plan->count)
    room *= 2;
  use *uses = calloc(room, sizeof *uses);
  bool ok = uses != NULL;
  for (size_t i = 0; i < plan->count && ok; i++) {
    const weir__recording_entry *e = &events[i];
    uint8_t thread = e->thread;
    if (weir__is_segment_event(e))
      continue;
    use *u = use_of(uses, room, e);
    bool is_other = u->thread != thread || thread == WEIR__RECORDING_MANY_THREADS;
    size_t others = is_other ? u->last : u->before;
    /* A thread that was not heard of since the checkpoint may have looked before it, and the other one put it back
     * before it. */
    bool may_be_late = others > heard[thread] || (plan->has_checkpoint && !heard[thread]);
    if (e->action == WEIR_TRACE_ALLOC && e->is_for_request && may_be_late)
      ok = note_race(plan, i);
    if (is_other)
      u->before = u->last;
    u->last = i + 1;
    u->thread = thread;
    heard[thread] = thread == WEIR__RECORDING_MANY_THREADS ? 0 : i + 1;
  }
  free(uses);
  return ok;
}

/* ---- The whole ---- */

weir_status weir__plan_make(const weir__recording *snapshot, const weir__recording_device *device, size_t first,
                            weir__plan *plan) {
  *plan = (weir__plan){.snapshot = snapshot,
                       .events = device->events,
                       .count = device->event_count,
                       .first = first,
                       .has_checkpoint = device->start != NULL,
                       .limit = WEIR__NO_LIMIT,
                       .memory = device->memory,
                       .dropped = device->dropped};
  read_settings(plan);
  read_changes(plan, (int)(device - snapshot->devices));
  find_early(plan, (int)(device - snapshot->devices));
  weir_status status = weir__initial_state_make(snapshot, device, first, &plan->settings, &plan->start);
  if (status)
    return status;
  plan->entries = calloc(plan->count, sizeof *plan->entries);
  if (plan->entries && plan_pools(plan, device) && plan_blocks(plan) && plan_releases(plan) && plan_races(plan))
    return WEIR_OK;
  weir__plan_clear(plan);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for %zu events", device->event_count);
}

void weir__plan_clear(weir__plan *plan) {
  free(plan->entries);
  free(plan->releases);
  free(plan->races);
  weir__state_clear(&plan->start);
  plan->entries = NULL;
  plan->releases = NULL;
  plan->races = NULL;
}

#include "offline/replay/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "base/rangemap.h"
#include "offline/replay/initial_state.h"

/* ---- The recorded settings ---- */

/* The value of a key in the recorded text, as PyTorch reads it: any separator separates. false if it is not there. */
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

/* Reads the recorded numbers rather than the text, since a program may have changed them after the text was read, and
 * the text for what has no number in the recording. */
static void read_settings(weir__plan *plan) {
  static const char *const in_text[] = {"large_segment_size_mb",
                                        "max_non_split_rounding_mb",
                                        "expandable_segments_reserve",
                                        "moving_pages",
                                        "moving_pages_max_aliases",
                                        "moving_pages_completed_only",
                                        "moving_pages_across_streams",
                                        "moving_pages_slack",
                                        "guard"};
  const weir__recording *s = plan->recording;
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
  settings->moving_pages &= settings->expandable_segments; /* turned off later */
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
  settings->moving_pages = parsed.moving_pages;
  settings->moving_pages_max_aliases = parsed.moving_pages_max_aliases;
  settings->moving_pages_completed_only = parsed.moving_pages_completed_only;
  settings->moving_pages_across_streams = parsed.moving_pages_across_streams;
  settings->guard = parsed.guard;
  settings->moving_pages_slack = parsed.moving_pages_slack;
  memcpy(settings->roundup_divisions, parsed.roundup_divisions, sizeof settings->roundup_divisions);
  return true;
}

/* Changes before the first event are part of the settings and the limit at the beginning. */
static void read_changes(weir__plan *plan, int device) {
  const weir__recording *s = plan->recording;
  size_t first = 0, end;
  while (first < s->change_count && s->changes[first].device != device)
    first++;
  for (end = first; end < s->change_count && s->changes[end].device == device; end++) {
  }
  for (; first < end && !s->changes[first].event; first++)
    if (!weir__plan_change(plan, &s->changes[first], &plan->settings) && !s->changes[first].conf) {
      plan->limit = s->changes[first].limit;
      plan->has_limit = true;
    }
  plan->changes = s->changes ? s->changes + first : NULL;
  plan->change_count = end - first;
}

uint64_t weir__plan_limit_at(const weir__plan *plan, size_t event) {
  uint64_t limit = plan->limit;
  for (size_t i = 0; i < plan->change_count && plan->changes[i].event <= event; i++)
    limit = plan->changes[i].conf ? limit : plan->changes[i].limit;
  return limit;
}

void weir__plan_settings(const weir__recording *recording, int device, weir__settings *settings) {
  weir__plan plan = {.recording = recording};
  read_settings(&plan);
  read_changes(&plan, device);
  *settings = plan.settings;
}

static void find_early(weir__plan *plan, int device) {
  const weir__recording *s = plan->recording;
  size_t first = 0, end;
  while (first < s->early_count && s->early[first].device != device)
    first++;
  for (end = first; end < s->early_count && s->early[end].device == device; end++) {
  }
  plan->early = s->early ? s->early + first : NULL;
  plan->early_count = end - first;
}

/* ---- Which pool, and which allocation ---- */

/* A request that failed has no address. It counts as one of the pool of the last successful request before it, or of
 * the first one if there is none. */
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

/* The bytes of a segment that an entry maps or unmaps; 0 if they are elsewhere. */
static uint64_t common_bytes(const weir__recording_segment *segment, const weir__recording_entry *e) {
  uint64_t first = e->address > segment->address ? e->address : segment->address;
  uint64_t end = e->address + e->size, segment_end = segment->address + segment->size;
  end = end < segment_end ? end : segment_end;
  return first < end ? end - first : 0;
}

/* Goes backwards over an entry that maps or unmaps pages. A segment of which nothing was mapped before did not exist
 * then: its addresses may have been those of a segment of another pool. `mapped` has the bytes of each segment. */
static void plan_mapping(const weir__recording_device *device, const weir__recording_entry *e, weir__rangemap *at_end,
                         uint64_t *mapped) {
  const weir__recording_segment *segment = weir__rangemap_find(at_end, e->address, NULL, NULL);
  if (!segment)
    segment = weir__rangemap_find(at_end, e->address + e->size - 1, NULL, NULL);
  if (!segment)
    return;
  uint64_t *left = &mapped[segment - device->segments], bytes = common_bytes(segment, e);
  if (e->action == WEIR_TRACE_SEGMENT_UNMAP)
    *left += bytes;
  else if (bytes < *left)
    *left -= bytes;
  else
    weir__rangemap_remove(at_end, segment->address);
}

/* Goes backwards through the history: a fixed segment that is freed later is in `gone`, down to where it was made. */
static bool plan_pools(weir__plan *plan, const weir__recording_device *device) {
  weir__rangemap gone = {0}, at_end = {0};
  static char mark;
  uint64_t *mapped = malloc((device->segment_count + 1) * sizeof *mapped);
  bool ok = mapped != NULL;
  for (size_t i = 0; i < device->segment_count && ok; i++) {
    const weir__recording_segment *s = &device->segments[i];
    mapped[i] = s->size;
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
    else if (e->action == WEIR_TRACE_SEGMENT_MAP || e->action == WEIR_TRACE_SEGMENT_UNMAP)
      plan_mapping(device, e, &at_end, mapped);
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
  free(mapped);
  weir__rangemap_clear(&gone);
  weir__rangemap_clear(&at_end);
  plan_failures(plan);
  return ok;
}

/* An allocation and its number. */
typedef struct numbered {
  uint64_t address;
  uint32_t block;
} numbered;

/* Numbers an allocation. false if out of host memory. One at address 0, as a damaged recording may have, is not
 * found again. */
static bool number_block(weir__plan *plan, weir__hash_map *numbers, uint64_t address, uint32_t *block) {
  numbered *made = address ? weir__hash_map_put(numbers, sizeof *made, address) : NULL;
  *block = (uint32_t)plan->block_count++;
  if (made)
    made->block = *block;
  return made || !address;
}

/* Numbers the allocations, so that a run finds the allocation of a free without a search. */
static bool plan_blocks(weir__plan *plan) {
  const weir__state *start = &plan->start;
  weir__hash_map numbers = {0};
  uint32_t block;
  bool ok = true;
  for (size_t i = 0; i < start->block_count && ok; i++)
    if (weir__state_is_active(&start->blocks[i]))
      ok = number_block(plan, &numbers, start->blocks[i].address, &block);
  for (size_t i = plan->first; i < plan->count && ok; i++) {
    const weir__recording_entry *e = &plan->events[i];
    if (e->action > WEIR_TRACE_FREE_COMPLETED)
      continue;
    if (e->action == WEIR_TRACE_ALLOC) {
      ok = number_block(plan, &numbers, e->address, &plan->entries[i].block);
      continue;
    }
    const numbered *found = e->address ? weir__hash_map_find(&numbers, sizeof *found, e->address) : NULL;
    if (found)
      plan->entries[i].block = found->block;
    else if (e->action == WEIR_TRACE_FREE_REQUESTED)
      plan->unknown_frees++;
  }
  weir__hash_map_clear(&numbers);
  return ok;
}

/* ---- Releases ---- */

/* Whether the free_completed at `i` follows its free_requested at once: an ordinary free. */
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

/* Whether an event belongs to the release that begins with `first`. */
static bool goes_on(const weir__plan *plan, const weir__recording_entry *first, const weir__recording_entry *e) {
  if (!plan->recording->has_causes)
    return weir__is_segment_event(e) || e->action == WEIR_TRACE_FREE_COMPLETED;
  return e->thread == first->thread && (e->action == WEIR_TRACE_FREE_COMPLETED ||
                                        (weir__is_segment_event(e) && e->is_for_request == first->is_for_request));
}

/* Fills in the release that begins at event `first`. Returns its end. */
static size_t plan_release(const weir__plan *plan, size_t first, uint64_t reserved, weir__plan_release *release) {
  const weir__recording_entry *events = plan->events;
  size_t i = first;
  *release = (weir__plan_release){.first = first, .completed = first, .request = plan->count, .reserved = reserved};
  release->is_aged = events[first].action == WEIR_TRACE_SEGMENT_FREE && events[first].size > WEIR__PORT_SMALL_SEGMENT;
  while (release->completed > plan->first && events[release->completed - 1].action == WEIR_TRACE_FREE_COMPLETED &&
         !is_ordinary(plan, release->completed - 1))
    release->completed--;
  for (; i < plan->count && goes_on(plan, &events[first], &events[i]); i++) {
    if (weir__is_release(&events[i]))
      release->freed += events[i].size;
    release->grows |= weir__is_growth(&events[i]);
  }
  bool is_for_request = !plan->recording->has_causes || events[first].is_for_request;
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
      weir__count_reserved(&plan->events[i++], &reserved);
      plan->peak = reserved > plan->peak ? reserved : plan->peak;
      continue;
    }
    if (!WEIR__RESERVE(plan->releases, room, plan->release_count + 1))
      return false;
    size_t end = plan_release(plan, i, reserved, &plan->releases[plan->release_count++]);
    for (; i < end; i++) {
      weir__count_reserved(&plan->events[i], &reserved);
      plan->peak = reserved > plan->peak ? reserved : plan->peak;
    }
  }
  return true;
}

bool weir__plan_is_capture(const weir__plan *plan, size_t request) {
  uint32_t pool = plan->entries[request].pool;
  /* Up to 2.11, which does not name pools, every private pool in use counted as a capture. */
  return pool && (plan->recording->pools[pool].id[0] || plan->events[request].pool == WEIR__RECORDING_NO_POOL);
}

/* ---- Several threads ---- */

/* Which thread used a pool of a stream last. Events are counted from 1. */
typedef struct use {
  uint64_t key;        /* pool and stream, + 1 */
  size_t last, before; /* its last event, and the last one of another thread before that */
  uint8_t thread;
} use;

static bool note_race(weir__plan *plan, size_t request) {
  if (!WEIR__RESERVE(plan->races, plan->race_room, plan->race_count + 1))
    return false;
  plan->races[plan->race_count++] = request;
  return true;
}

static bool plan_races(weir__plan *plan) {
  const weir__recording_entry *events = plan->events;
  size_t heard[WEIR__RECORDING_MANY_THREADS + 1] = {0}; /* the last event of each thread */
  for (size_t i = 1; i < plan->count && !plan->has_threads; i++)
    plan->has_threads = events[i].thread != events[0].thread;
  if (!plan->recording->has_causes || (!plan->has_threads && !plan->has_checkpoint))
    return true;
  weir__hash_map uses = {0};
  bool ok = true;
  for (size_t i = 0; i < plan->count && ok; i++) {
    const weir__recording_entry *e = &events[i];
    uint8_t thread = e->thread;
    if (weir__is_segment_event(e))
      continue;
    use *u = weir__hash_map_put(&uses, sizeof *u, ((uint64_t)e->pool << 16 | e->stream) + 1);
    if (!u) {
      ok = false;
      break;
    }
    bool is_other = u->thread != thread || thread == WEIR__RECORDING_MANY_THREADS;
    size_t others = is_other ? u->last : u->before;
    /* A thread without an entry since the checkpoint may have searched before it, and another may have freed a block
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
  weir__hash_map_clear(&uses);
  return ok;
}

/* Whether pages could move between streams, or to private pools. */
static bool has_streams(const weir__plan *plan) {
  int64_t stream = plan->recording->streams[plan->events[0].stream];
  for (size_t i = 0; i < plan->start.segment_count; i++) {
    const weir__state_segment *s = &plan->start.segments[i];
    if (s->stream != stream || s->pool[0] || s->pool[1])
      return true;
  }
  for (size_t i = 0; i < plan->count; i++)
    if (weir__is_request(&plan->events[i]) &&
        (plan->recording->streams[plan->events[i].stream] != stream || plan->entries[i].pool))
      return true;
  return false;
}

/* ---- Bounds ---- */

/* A replay takes host memory in proportion to the addresses that are reserved, and time in proportion to the bytes, so
 * a file of a few kilobytes could occupy the host for minutes. The bounds, 64 TiB of addresses in regions of 32 GiB,
 * and 1 PiB of bytes, are far above what jobs reserve. */
enum { REGION_BITS = 35, REGIONS = 1 << (53 - REGION_BITS), MAX_REGIONS = 2048 };
#define MAX_RESERVED (1ull << 50)

static weir_status check_bounds(const weir__plan *plan) {
  uint64_t bytes = 0, *seen = calloc(REGIONS / 64, sizeof *seen);
  size_t regions = 0;
  if (!seen)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu entries", plan->count);
  for (size_t i = 0; i < plan->count && bytes <= MAX_RESERVED && regions <= MAX_REGIONS; i++) {
    const weir__recording_entry *e = &plan->events[i];
    if (!weir__is_growth(e) || !e->size || e->size > WEIR__PLAN_MAX_MEMORY) /* a device without so much refuses it */
      continue;
    bytes += e->size;
    uint64_t last = (e->address + (e->size - 1)) >> REGION_BITS;
    for (uint64_t k = e->address >> REGION_BITS; k <= last && k < REGIONS && regions <= MAX_REGIONS; k++) {
      regions += !(seen[k / 64] >> (k % 64) & 1);
      seen[k / 64] |= 1ull << (k % 64);
    }
  }
  free(seen);
  if (bytes <= MAX_RESERVED && regions <= MAX_REGIONS)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_BAD_DATA, "its segments have more than %s in all, which no job reserves",
                    regions > MAX_REGIONS ? "64 TiB of addresses" : "1 PiB");
}

/* ---- The plan ---- */

weir_status weir__plan_make(const weir__recording *recording, const weir__recording_device *device, size_t first,
                            weir__plan *plan) {
  *plan = (weir__plan){.recording = recording,
                       .events = device->events,
                       .count = device->event_count,
                       .first = first,
                       .has_checkpoint = device->start != NULL,
                       .limit = WEIR__NO_LIMIT,
                       .memory = device->memory,
                       .dropped = device->dropped};
  read_settings(plan);
  read_changes(plan, (int)(device - recording->devices));
  find_early(plan, (int)(device - recording->devices));
  weir_status status = check_bounds(plan);
  status = status ? status : weir__initial_state_make(recording, device, first, &plan->settings, &plan->start);
  if (status)
    return status;
  status = weir__replay_streams_make(recording, &plan->streams);
  if (status) {
    weir__plan_clear(plan);
    return status;
  }
  plan->entries = calloc(plan->count, sizeof *plan->entries);
  if (plan->entries && plan_pools(plan, device) && plan_blocks(plan) && plan_releases(plan) && plan_races(plan)) {
    plan->has_streams = has_streams(plan);
    return WEIR_OK;
  }
  weir__plan_clear(plan);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu entries", device->event_count);
}

void weir__plan_clear(weir__plan *plan) {
  free(plan->entries);
  free(plan->releases);
  free(plan->races);
  weir__state_clear(&plan->start);
  weir__replay_streams_clear(&plan->streams);
  plan->entries = NULL;
  plan->releases = NULL;
  plan->races = NULL;
}

#include "offline/analyse/digest_make.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "base/rangemap.h"
#include "base/text.h"
#include "offline/analyse/describe.h"
#include "offline/analyse/digest_counters.h"
#include "offline/analyse/digest_steps.h"
#include "offline/analyse/job_steps.h"
#include "offline/analyse/lives.h"
#include "offline/read/recording_stream.h"
#include "pattern/trend.h"

enum { BATCH = 4096, SIZE_CLASSES = 64, STACKS = 64, OTHERS = 32 };

/* A block that is in use, or waits for other streams. */
typedef struct live_block {
  uint64_t address; /* the key */
  uint64_t size;
  uint32_t stack; /* counters */
  uint32_t phase, text;
  uint32_t pool;
  uint16_t stream;
  bool is_freed;
} live_block;

/* What happens in one pool on one stream is in order. */
typedef struct lane {
  uint64_t key; /* the pool and the stream, + 1 */
  uint64_t shape, sequence;
} lane;

enum { FIXED = 1, EXPANDABLE = 2 };

typedef struct maker {
  weir__recording_stream *source;
  weir__recording *recording;
  int device;
  uint32_t *alike; /* by stack: the first one that is described alike */
  uint64_t entries_in_all;

  /* The beginning, which is read twice: to find the steps, and then like the rest. */
  weir__recording_entry *prefix;
  size_t prefix_count, prefix_room;
  struct mark {
    size_t entry, annotation; /* before which entry it comes */
  } * marks;
  size_t mark_count, mark_room;
  weir__digest_steps steps;

  weir__hash_map live;     /* live_block */
  weir__rangemap segments; /* FIXED or EXPANDABLE */
  weir__hash_map lanes;
  lane *last_lane;

  uint64_t allocated, reserved;
  uint32_t epoch; /* of the peak of all */
  bool has_group;
  uint32_t group; /* of steps: the one that is under way */
  weir__digest_counters stacks, sizes, phases, texts, pools, streams;
  weir__digest_size by_size[SIZE_CLASSES];

  uint64_t shape, sequence; /* the sums of all lanes */
  struct group {
    uint64_t entry, time_us, peak, level, reserved, requests, sequence, shape;
  } groups[WEIR__DIGEST_GROUPS];
  unsigned shift; /* 2^shift steps are a group */

  struct interval {
    uint64_t allocated, reserved, free, hole;
  } intervals[WEIR__DIGEST_INTERVALS + 1];
  uint64_t interval_entries;
  live_block *sorted; /* room for all blocks, to find holes */
  size_t sorted_room;

  uint64_t entry; /* the number of the next one */
  bool is_past_prefix;
  uint32_t oom_stack; /* of the first failure */
  weir__digest digest;
} maker;

static weir_status no_memory(void) { return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for a digest"); }

static uint64_t mix(uint64_t a, uint64_t b) { return weir__hash_mix(a, b); }

/* ---- Counters ---- */

static uint64_t name_of_text(const char *text) {
  char escaped[WEIR__DIGEST_TEXT + 1];
  weir__escape_text(text, strlen(text), escaped, sizeof escaped);
  return weir__digest_hash(escaped);
}

static unsigned size_class(uint64_t size) { return size ? 63 - (unsigned)__builtin_clzll(size) : 0; }

static const char *describe_pool(const maker *m, uint32_t pool, char text[64]) {
  return weir__describe_pool(m->recording, pool, text);
}

/* Streams by their order: handles differ from process to process. */
static const char *describe_stream(uint32_t number, char text[64]) {
  if (number)
    snprintf(text, 64, "stream %u", number);
  else
    snprintf(text, 64, "default stream");
  return text;
}

/* The counter of a stack, or of a class of sizes for blocks without. */
static weir__digest_counter *stack_counter(maker *m, uint32_t stack, uint64_t size) {
  if (!stack) {
    weir__digest_counter *c = weir__digest_counter_at(&m->sizes, size_class(size));
    char text[WEIR__DESCRIBE_TEXT], title[WEIR__DIGEST_TEXT + 1];
    if (c && !c->name) {
      snprintf(title, sizeof title, "blocks of %s", weir__describe_size_class(weir__size_class(size), text));
      c->name = weir__digest_hash(title);
    }
    return c;
  }
  weir__digest_counter *c = weir__digest_counter_at(&m->stacks, stack);
  char text[WEIR__DESCRIBE_TEXT];
  if (c && !c->name)
    c->name = name_of_text(weir__describe_stack(m->recording, stack, text));
  return c;
}

static const char *string_of(const maker *m, uint32_t string) {
  return string < m->recording->strings.count ? m->recording->strings.items[string].text : "";
}

/* The counters of a block; those that it does not have are NULL. */
typedef struct counters {
  weir__digest_counter *of[5];
} counters;

static weir__digest_counter *named_by(maker *m, weir__digest_counters *list, uint32_t string) {
  const char *text = string_of(m, string);
  weir__digest_counter *c = *text ? weir__digest_counter_at(list, string) : NULL;
  if (c && !c->name)
    c->name = name_of_text(text);
  return c;
}

static counters counters_of(maker *m, const live_block *b) {
  char text[64];
  counters c = {{stack_counter(m, b->stack, b->size), b->phase ? named_by(m, &m->phases, b->phase) : NULL,
                 b->text ? named_by(m, &m->texts, b->text) : NULL,
                 b->pool == WEIR__RECORDING_NO_POOL ? NULL : weir__digest_counter_at(&m->pools, b->pool),
                 weir__digest_counter_at(&m->streams, b->stream)}};
  if (c.of[3] && !c.of[3]->name)
    c.of[3]->name = weir__digest_hash(describe_pool(m, b->pool, text));
  if (c.of[4] && !c.of[4]->name)
    c.of[4]->name = weir__digest_hash(describe_stream(b->stream, text));
  return c;
}

/* ---- Blocks ---- */

static lane *lane_of(maker *m, const live_block *b) {
  uint64_t key = ((uint64_t)b->pool << 16 | b->stream) + 1;
  if (m->last_lane && m->last_lane->key == key)
    return m->last_lane;
  m->last_lane = weir__hash_map_put(&m->lanes, sizeof(lane), key);
  return m->last_lane;
}

/* Notes a request or a free in the hashes. The order of lanes does not matter: each has a hash of its own. */
static bool note(maker *m, const live_block *b, uint64_t kind, uint64_t name) {
  lane *l = lane_of(m, b);
  if (!l)
    return false;
  uint64_t shape = mix(l->shape + l->key, kind ^ name), sequence = mix(l->sequence + l->key, mix(kind ^ name, b->size));
  m->shape += shape - l->shape;
  m->sequence += sequence - l->sequence;
  l->shape = shape;
  l->sequence = sequence;
  return true;
}

static bool begin_block(maker *m, const live_block *made, bool is_request) {
  live_block *b = weir__hash_map_put(&m->live, sizeof *b, made->address);
  if (!b)
    return false;
  *b = *made;
  counters c = counters_of(m, b);
  if (!c.of[0] || !c.of[4])
    return false;
  for (size_t i = 0; i < WEIR_COUNT_OF(c.of); i++) {
    if (!c.of[i])
      continue;
    if (!b->is_freed)
      weir__digest_counter_add(c.of[i], b->size, m->epoch, m->group);
    c.of[i]->allocations += is_request;
    c.of[i]->total += is_request ? b->size : 0;
  }
  m->allocated += b->is_freed ? 0 : b->size;
  if (!is_request)
    return true;
  weir__digest_size *s = &m->by_size[size_class(b->size)];
  s->allocations++;
  s->total += b->size;
  m->digest.history.allocations++;
  return note(m, b, 1, b->stack ? c.of[0]->name : 0);
}

static bool free_block(maker *m, live_block *b) {
  if (b->is_freed)
    return true;
  b->is_freed = true;
  counters c = counters_of(m, b);
  for (size_t i = 0; i < WEIR_COUNT_OF(c.of); i++)
    if (c.of[i])
      weir__digest_counter_subtract(c.of[i], b->size, m->epoch, m->group);
  m->allocated -= b->size;
  return note(m, b, 2, 0);
}

static uint32_t remark_string(uint32_t string, const maker *m) { return *string_of(m, string) ? string : 0; }

static live_block block_of(const maker *m, uint64_t address, uint64_t size, uint32_t stack, uint32_t remark,
                           uint32_t pool, uint16_t stream) {
  const weir__recording_remark *r = &m->recording->remarks[remark];
  bool has_stack = stack && stack < m->recording->stack_count && m->recording->stacks[stack].count;
  return (live_block){.address = address,
                      .size = size,
                      .stack = has_stack ? m->alike[stack] : 0,
                      .phase = remark ? remark_string(r->phase, m) : 0,
                      .text = remark ? remark_string(r->user_metadata, m) : 0,
                      .pool = pool,
                      .stream = stream};
}

static bool on_alloc(maker *m, const weir__recording_entry *e) {
  if (!e->address)
    return true;
  live_block *old = weir__hash_map_find(&m->live, sizeof *old, e->address);
  if (old && !free_block(m, old)) /* its free is missing, as in a damaged recording */
    return false;
  live_block made = block_of(m, e->address, e->size, e->stack, e->remark, e->pool, e->stream);
  if (!begin_block(m, &made, true))
    return false;
  if (m->allocated > m->digest.memory.peak_allocated) {
    m->digest.memory.peak_allocated = m->allocated;
    m->digest.memory.peak_entry = m->entry;
    m->digest.memory.peak_step = m->steps.number;
    m->digest.memory.reserved_at_peak = m->reserved;
    m->epoch++;
  }
  return true;
}

static bool on_free(maker *m, const weir__recording_entry *e) {
  live_block *b = e->address ? weir__hash_map_find(&m->live, sizeof *b, e->address) : NULL;
  bool is_complete = e->action == WEIR_TRACE_FREE_COMPLETED;
  m->digest.history.frees += is_complete;
  if (!b) {
    m->digest.history.unknown_frees += is_complete;
    return true;
  }
  if (!free_block(m, b))
    return false;
  if (is_complete)
    weir__hash_map_remove(&m->live, sizeof *b, b);
  return true;
}

/* ---- Segments ---- */

static bool add_range(maker *m, uint64_t address, uint64_t bytes, uintptr_t kind) {
  if (!weir__rangemap_insert(&m->segments, address, bytes, (void *)kind))
    return false;
  m->reserved += bytes;
  return true;
}

/* Takes a range away. Parts of segments that lie outside stay. */
static bool remove_range(maker *m, uint64_t address, uint64_t bytes) {
  uint64_t base, size, end = address + bytes;
  void *kind;
  while ((kind = weir__rangemap_overlap(&m->segments, address, bytes, &base, &size))) {
    weir__rangemap_remove(&m->segments, base);
    m->reserved -= size;
    if ((base < address && !add_range(m, base, address - base, (uintptr_t)kind)) ||
        (base + size > end && !add_range(m, end, base + size - end, (uintptr_t)kind)))
      return false;
  }
  return true;
}

static bool on_segment(maker *m, const weir__recording_entry *e) {
  bool begins = e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP;
  bool is_mapped = e->action == WEIR_TRACE_SEGMENT_MAP || e->action == WEIR_TRACE_SEGMENT_UNMAP;
  m->digest.memory.segments_allocated += begins;
  m->digest.memory.segments_released += !begins;
  if (!e->size || e->address + e->size < e->address) /* as in a damaged recording */
    return true;
  return remove_range(m, e->address, e->size) &&
         (!begins || add_range(m, e->address, e->size, is_mapped ? EXPANDABLE : FIXED));
}

/* ---- Holes ---- */

static int by_address(const void *a, const void *b) {
  uint64_t x = ((const live_block *)a)->address, y = ((const live_block *)b)->address;
  return (x > y) - (x < y);
}

/* The largest piece of segments that no block is in. Pages that were mapped one by one may be neighbours. */
static bool find_hole(maker *m, uint64_t *hole) {
  size_t count = 0, at = 0, next = 0;
  if (!WEIR__RESERVE(m->sorted, m->sorted_room, m->live.count + 1))
    return false;
  for (const live_block *b; (b = weir__hash_map_next(&m->live, sizeof *b, &at));)
    m->sorted[count++] = *b;
  qsort(m->sorted, count, sizeof *m->sorted, by_address);
  uint64_t base, size, free_from = 0, last_end = 0;
  void *kind, *last_kind = NULL;
  *hole = 0;
  for (uint64_t from = 0; (kind = weir__rangemap_at_or_after(&m->segments, from, &base, &size)); from = base + size) {
    uint64_t end = base + size;
    if (base != last_end || kind != last_kind || (uintptr_t)kind == FIXED)
      free_from = base;
    for (; next < count && m->sorted[next].address < end; next++) {
      const live_block *b = &m->sorted[next];
      if (b->address < base)
        continue;
      *hole = b->address > free_from && b->address - free_from > *hole ? b->address - free_from : *hole;
      uint64_t after = b->address + weir__round_up(b->size, 512);
      free_from = after > free_from ? after : free_from;
    }
    *hole = end > free_from && end - free_from > *hole ? end - free_from : *hole;
    last_end = end;
    last_kind = kind;
    if (!end)
      break;
  }
  return true;
}

/* ---- Steps and intervals ---- */

static void end_group(maker *m) {
  struct group *g = &m->groups[m->group];
  g->level = m->allocated;
  g->sequence = m->sequence;
  g->shape = m->shape;
}

static void halve_groups(maker *m) {
  const uint32_t count = WEIR__DIGEST_GROUPS;
  for (uint32_t k = 0; k < count / 2; k++) {
    struct group a = m->groups[2 * k], b = m->groups[2 * k + 1];
    m->groups[k] = (struct group){.entry = a.entry,
                                  .time_us = a.time_us,
                                  .peak = a.peak > b.peak ? a.peak : b.peak,
                                  .level = b.level,
                                  .reserved = a.reserved > b.reserved ? a.reserved : b.reserved,
                                  .requests = a.requests + b.requests,
                                  .sequence = b.sequence,
                                  .shape = b.shape};
  }
  weir__digest_counters_halve(&m->stacks);
  weir__digest_counters_halve(&m->sizes);
  m->shift++;
}

/* A step begins with the entry. */
static void begin_step(maker *m, const weir__recording_entry *e) {
  uint64_t step = m->steps.number;
  if (m->has_group)
    end_group(m);
  if (step >> m->shift >= WEIR__DIGEST_GROUPS)
    halve_groups(m);
  uint32_t group = (uint32_t)(step >> m->shift);
  if (m->has_group && group == m->group)
    return;
  if (!m->has_group) {
    weir__digest_counters_begin(&m->stacks);
    weir__digest_counters_begin(&m->sizes);
  }
  m->group = group;
  m->has_group = true;
  m->groups[group] = (struct group){.entry = m->entry,
                                    .time_us = e->time_us > 0 ? (uint64_t)e->time_us : 0,
                                    .peak = m->allocated,
                                    .reserved = m->reserved};
}

static bool end_interval(maker *m, struct interval *interval) {
  uint64_t hole;
  if (!find_hole(m, &hole))
    return false;
  interval->free = m->reserved > m->allocated ? m->reserved - m->allocated : 0;
  interval->hole = hole;
  return true;
}

static bool note_levels(maker *m) {
  struct interval *i = &m->intervals[m->entry / m->interval_entries];
  i->allocated = m->allocated > i->allocated ? m->allocated : i->allocated;
  i->reserved = m->reserved > i->reserved ? m->reserved : i->reserved;
  if (m->has_group) {
    struct group *g = &m->groups[m->group];
    g->peak = m->allocated > g->peak ? m->allocated : g->peak;
    g->reserved = m->reserved > g->reserved ? m->reserved : g->reserved;
  }
  m->digest.memory.peak_reserved =
      m->reserved > m->digest.memory.peak_reserved ? m->reserved : m->digest.memory.peak_reserved;
  return (m->entry + 1) % m->interval_entries != 0 || end_interval(m, i);
}

static void on_oom(maker *m, const weir__recording_entry *e) {
  weir__digest *d = &m->digest;
  char text[WEIR__DESCRIBE_TEXT];
  if (d->failure.count++)
    return;
  d->failure.entry = m->entry;
  d->failure.step = m->steps.number;
  d->failure.time_us = e->time_us > 0 ? (uint64_t)e->time_us : 0;
  d->failure.bytes = e->size;
  d->failure.free = e->address;
  m->oom_stack = e->stack;
  if (e->stack && e->stack < m->recording->stack_count)
    d->failure.stack = name_of_text(weir__describe_stack(m->recording, e->stack, text));
}

static bool take(maker *m, const weir__recording_entry *e) {
  weir__digest *d = &m->digest;
  bool ok = true;
  if (weir__digest_steps_entry(&m->steps, m->recording, e, m->entry))
    begin_step(m, e);
  if (e->action == WEIR_TRACE_ALLOC) {
    ok = on_alloc(m, e);
    if (m->has_group)
      m->groups[m->group].requests++;
  } else if (e->action == WEIR_TRACE_FREE_REQUESTED || e->action == WEIR_TRACE_FREE_COMPLETED)
    ok = on_free(m, e);
  else if (e->action >= WEIR_TRACE_SEGMENT_ALLOC && e->action <= WEIR_TRACE_SEGMENT_UNMAP)
    ok = on_segment(m, e);
  else if (e->action == WEIR_TRACE_OOM)
    on_oom(m, e);
  if (e->time_us > 0) {
    if (!d->history.first_us)
      d->history.first_us = (uint64_t)e->time_us;
    d->history.last_us = (uint64_t)e->time_us;
  }
  ok = ok && note_levels(m);
  m->entry++;
  return ok;
}

/* ---- The beginning ---- */

/* What was in use before the first entry. */
static bool begin_with(maker *m, const weir__lives *lives) {
  for (size_t i = 0; i < lives->segment_count && lives->segments[i].is_before; i++) {
    const weir__segment_life *s = &lives->segments[i];
    if (!remove_range(m, s->address, s->size) ||
        !add_range(m, s->address, s->size, s->is_expandable ? EXPANDABLE : FIXED))
      return false;
  }
  for (size_t i = 0; i < lives->block_count && lives->blocks[i].is_before; i++) {
    const weir__life *b = &lives->blocks[i];
    uint32_t pool = b->pool == WEIR__LIFE_NO_POOL ? WEIR__RECORDING_NO_POOL : b->pool;
    live_block made = block_of(m, b->address, b->size, b->stack, 0, pool, b->stream);
    if (made.address && !begin_block(m, &made, false))
      return false;
  }
  m->digest.memory.peak_allocated = m->digest.memory.end_allocated = m->allocated;
  m->digest.memory.peak_reserved = m->digest.memory.reserved_at_peak = m->reserved;
  return true;
}

/* Finds the steps in the prefix, and takes it. */
static weir_status take_prefix(maker *m, const weir__recording *r, bool is_all) {
  weir__recording begin = *r;
  weir__recording_device device = r->devices[m->device];
  weir__lives lives = {0};
  weir__steps steps = {0};
  if (m->prefix) {
    device.events = m->prefix;
    device.event_count = m->prefix_count;
  }
  begin.devices = calloc((size_t)m->device + 1, sizeof *begin.devices);
  if (!begin.devices)
    return no_memory();
  begin.devices[m->device] = device;
  begin.device_count = (size_t)m->device + 1;
  weir_status status = weir__lives_make(&begin, m->device, &lives);
  if (!status)
    status = weir__job_steps_find(&begin, m->device, &lives, &steps);
  if (!status && !begin_with(m, &lives))
    status = no_memory();
  weir__lives_clear(&lives);
  if (weir__steps_are_weak(&steps)) /* as for leaks, equal parts of the history tell more */
    weir__steps_clear(&steps);
  if (!status)
    weir__digest_steps_begin(&m->steps, &steps, is_all, m->entries_in_all); /* which has the steps from here on */
  for (size_t i = 0, next = 0; i < device.event_count && !status; i++) {
    for (; next < m->mark_count && m->marks[next].entry <= i; next++)
      weir__digest_steps_annotation(&m->steps, r, m->marks[next].annotation, i);
    if (!take(m, &device.events[i]))
      status = no_memory();
  }
  free(begin.devices);
  free(m->prefix);
  m->prefix = NULL;
  m->prefix_count = m->prefix_room = 0;
  m->is_past_prefix = true;
  return status;
}

/* ---- The end ---- */

static weir_status make_list(maker *m, size_t item_size, size_t count, weir__digest_list *list) {
  weir__budget budget = {.limit = UINT64_MAX};
  *list = (weir__digest_list){NULL, 0};
  if (count && !(list->items = weir__chunks_take(&m->digest.memory_of, &budget, count * item_size, 8)))
    return no_memory();
  list->count = count;
  return WEIR_OK;
}

/* Makes a list of a field of structs of 64-bit numbers. */
static weir_status list_field(maker *m, const void *structs, size_t size, size_t offset, size_t count,
                              weir__digest_list *list) {
  weir_status status = make_list(m, sizeof(uint64_t), count, list);
  for (size_t i = 0; i < count && !status; i++)
    memcpy((uint64_t *)list->items + i, (const char *)structs + i * size + offset, sizeof(uint64_t));
  return status;
}

#define LIST_FIELD(m, structs, count, field, list)                                                                     \
  list_field(m, structs, sizeof *(structs), (size_t)((const char *)&(structs)->field - (const char *)(structs)),       \
             count, list)

static weir_status list_steps(maker *m) {
  weir__digest *d = &m->digest;
  size_t count = m->has_group ? m->group + 1 : 0;
  weir_status status = WEIR_OK;
  if (m->has_group)
    end_group(m);
  const struct {
    const uint64_t *field;
    weir__digest_list *list;
  } lists[] = {{&m->groups->entry, &d->steps.entry},       {&m->groups->time_us, &d->steps.time_us},
               {&m->groups->peak, &d->steps.peak},         {&m->groups->level, &d->steps.level},
               {&m->groups->reserved, &d->steps.reserved}, {&m->groups->requests, &d->steps.requests},
               {&m->groups->sequence, &d->steps.sequence}, {&m->groups->shape, &d->steps.shape}};
  for (size_t i = 0; i < WEIR_COUNT_OF(lists) && !status; i++)
    status = list_field(m, m->groups, sizeof *m->groups,
                        (size_t)((const char *)lists[i].field - (const char *)m->groups), count, lists[i].list);
  d->steps.source = m->steps.found.source;
  d->steps.name = name_of_text(m->steps.found.name);
  d->steps.confidence = (uint64_t)(1000 * m->steps.found.confidence + 0.5);
  d->steps.count = m->has_group ? weir__digest_steps_count(&m->steps) : 0;
  d->steps.width = m->has_group ? 1ull << m->shift : 0;
  d->steps.setup = m->has_group ? m->steps.first_entry : m->entry;
  return status;
}

static weir_status list_time(maker *m) {
  weir__digest *d = &m->digest;
  size_t count = (size_t)((m->entry + m->interval_entries - 1) / m->interval_entries);
  if (m->entry % m->interval_entries && !end_interval(m, &m->intervals[count - 1]))
    return no_memory();
  d->time.width = m->interval_entries;
  weir_status status = LIST_FIELD(m, m->intervals, count, allocated, &d->time.allocated);
  status = status ? status : LIST_FIELD(m, m->intervals, count, reserved, &d->time.reserved);
  status = status ? status : LIST_FIELD(m, m->intervals, count, free, &d->time.free);
  return status ? status : LIST_FIELD(m, m->intervals, count, hole, &d->time.hole);
}

static weir_status list_sizes(maker *m) {
  size_t count = 0;
  for (unsigned i = 0; i < SIZE_CLASSES; i++) {
    m->by_size[i].least = 1ull << i;
    if (m->by_size[i].allocations)
      m->by_size[count++] = m->by_size[i];
  }
  weir_status status = make_list(m, sizeof(weir__digest_size), count, &m->digest.sizes);
  if (!status && count)
    memcpy(m->digest.sizes.items, m->by_size, count * sizeof *m->by_size);
  return status;
}

/* Stacks, and sizes for what has none, in one list. */
static weir_status list_stacks(maker *m, uint32_t groups) {
  size_t first = m->stacks.count;
  for (size_t i = 0; i < m->sizes.count; i++) {
    if (!m->sizes.items[i].peak)
      continue;
    weir__digest_counter *c = weir__digest_counter_at(&m->stacks, first++);
    if (!c)
      return no_memory();
    free(c->peaks);
    *c = m->sizes.items[i];
    m->sizes.items[i].peaks = NULL;
  }
  return weir__digest_counters_list(&m->stacks, m->epoch, groups, &m->digest.memory_of, &m->digest.stacks);
}

static weir_status list_holders(maker *m) {
  weir__digest *d = &m->digest;
  weir__chunks *memory = &d->memory_of;
  weir_status status = list_stacks(m, m->has_group ? m->group + 1 : 0);
  status = status ? status : weir__digest_counters_list(&m->phases, m->epoch, 0, memory, &d->phases);
  status = status ? status : weir__digest_counters_list(&m->texts, m->epoch, 0, memory, &d->texts);
  status = status ? status : weir__digest_counters_list(&m->pools, m->epoch, 0, memory, &d->pools);
  return status ? status : weir__digest_counters_list(&m->streams, m->epoch, 0, memory, &d->streams);
}

static void judge(maker *m) {
  weir__digest *d = &m->digest;
  int64_t first;
  size_t complete = (size_t)(d->steps.width ? d->steps.count / d->steps.width : 0);
  complete = complete < d->steps.level.count ? complete : d->steps.level.count;
  uint64_t from = d->steps.width ? m->steps.found.warm_up / d->steps.width : 0;
  if (complete >= from + WEIR__TREND_STEPS && d->steps.source != WEIR__STEPS_WINDOWS) {
    d->growth.bytes = weir__level_rise(d->steps.level.items, (int64_t)complete, (int64_t)from, &first);
    d->growth.first_step = d->growth.bytes ? (uint64_t)first << m->shift : 0;
  }
  d->history.is_complete = !d->history.unknown_frees && !m->recording->devices[m->device].lacks_start;
  d->verdict = d->failure.count          ? WEIR__DIGEST_RAN_OUT
               : !d->history.is_complete ? WEIR__DIGEST_NO_HISTORY
               : d->growth.bytes         ? WEIR__DIGEST_GROWS
                                         : WEIR__DIGEST_FITS;
}

/* The limit in force at the end; 0 if there is none. */
static uint64_t limit_of(const weir__recording *r, int device) {
  uint64_t limit = 0;
  for (size_t i = 0; i < r->change_count; i++)
    if (r->changes[i].device == device && !r->changes[i].conf)
      limit = r->changes[i].limit == UINT64_MAX ? 0 : r->changes[i].limit;
  return limit;
}

/* ---- Names ---- */

typedef struct namer {
  maker *m;
  weir__digest_name *items;
  size_t count, room;
  weir_status status;
} namer;

static void add_name(namer *n, const char *text) {
  weir__budget budget = {.limit = UINT64_MAX};
  char escaped[WEIR__DIGEST_TEXT + 1];
  size_t length = weir__escape_text(text, strlen(text), escaped, sizeof escaped);
  if (!length || n->status)
    return;
  char *copy = weir__chunks_take(&n->m->digest.memory_of, &budget, length + 1, 1);
  if (!copy || !WEIR__RESERVE(n->items, n->room, n->count + 1)) {
    n->status = no_memory();
    return;
  }
  memcpy(copy, escaped, length + 1);
  n->items[n->count++] = (weir__digest_name){weir__digest_hash(escaped), copy};
}

static int compare_names(const void *a, const void *b) {
  const weir__digest_name *x = a, *y = b;
  return (x->name > y->name) - (x->name < y->name);
}

static void add_strings(namer *n, const weir__digest_counters *of) {
  for (size_t i = 0; i < of->count; i++)
    if (of->items[i].peak)
      add_name(n, string_of(n->m, (uint32_t)i));
}

static weir_status list_names(maker *m, const char *role, const char *file, uint32_t oom_stack) {
  namer n = {.m = m};
  char text[WEIR__DESCRIBE_TEXT], title[WEIR__DIGEST_TEXT + 1];
  add_name(&n, m->recording->host_name);
  add_name(&n, role);
  add_name(&n, file);
  add_name(&n, m->recording->conf ? m->recording->conf : "");
  add_name(&n, m->steps.found.name);
  for (size_t i = 1; i < m->recording->stack_count; i++)
    if ((i < m->stacks.count && m->stacks.items[i].peak) || i == oom_stack)
      add_name(&n, weir__describe_stack(m->recording, (uint32_t)i, text));
  for (unsigned i = 0; i < SIZE_CLASSES; i++)
    if (i < m->sizes.count && m->sizes.items[i].peak) {
      snprintf(title, sizeof title, "blocks of %s", weir__describe_size_class(weir__size_class(1ull << i), text));
      add_name(&n, title);
    }
  add_strings(&n, &m->phases);
  add_strings(&n, &m->texts);
  for (size_t i = 0; i < m->pools.count; i++)
    if (m->pools.items[i].peak)
      add_name(&n, describe_pool(m, (uint32_t)i, text));
  for (size_t i = 0; i < m->streams.count; i++)
    if (m->streams.items[i].peak)
      add_name(&n, describe_stream((uint32_t)i, text));
  weir_status status = n.status;
  size_t count = 0;
  if (n.count)
    qsort(n.items, n.count, sizeof *n.items, compare_names);
  for (size_t i = 0; i < n.count; i++)
    if (!count || n.items[count - 1].name != n.items[i].name)
      n.items[count++] = n.items[i];
  if (!status)
    status = make_list(m, sizeof *n.items, count, &m->digest.names);
  if (!status && count)
    memcpy(m->digest.names.items, n.items, count * sizeof *n.items);
  free(n.items);
  return status;
}

/* ---- A device ---- */

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return strcmp(path, "-") == 0 ? "" : slash ? slash + 1 : path;
}

/* The number behind "rank" in the name of a file; -1 if there is none. */
static int64_t rank_in(const char *name) {
  for (const char *at = name; (at = strstr(at, "rank")); at++) {
    const char *digits = at + strlen("rank");
    digits += *digits == '_' || *digits == '-' || *digits == '.' || *digits == '=';
    if (isdigit((unsigned char)*digits) && strspn(digits, "0123456789") < 10)
      return strtoll(digits, NULL, 10);
  }
  return -1;
}

static weir_status finish(maker *m, const char *path, const weir__digest_options *options) {
  weir__digest *d = &m->digest;
  const weir__recording *r = m->recording;
  const weir__recording_device *device = &r->devices[m->device];
  const char *file = base_name(path), *role = options->role ? options->role : "";
  uint32_t oom_stack = m->oom_stack;
  d->rank = options->rank >= 0 ? options->rank : r->rank >= 0 ? r->rank : rank_in(file);
  d->device = (uint64_t)m->device;
  d->pid = r->pid > 0 ? (uint64_t)r->pid : 0;
  d->host = name_of_text(r->host_name);
  d->role = name_of_text(role);
  d->file = name_of_text(file);
  d->settings = name_of_text(r->conf ? r->conf : "");
  d->history.entries = m->entry;
  d->history.dropped = device->dropped;
  d->history.lost = weir__recording_stream_lost(m->source);
  d->history.ended = !r->is_events_only ? WEIR__DIGEST_END_UNKNOWN
                     : r->was_killed    ? WEIR__DIGEST_KILLED
                     : r->is_cut_off    ? WEIR__DIGEST_EXITED
                                        : WEIR__DIGEST_CLOSED;
  d->memory.device = device->memory;
  d->memory.limit = limit_of(r, m->device);
  d->memory.outside = device->outside;
  d->memory.peak_outside = device->peak_outside;
  d->memory.end_allocated = m->allocated;
  d->memory.end_reserved = m->reserved;
  weir_status status = list_steps(m);
  status = status ? status : list_time(m);
  status = status ? status : list_sizes(m);
  status = status ? status : list_names(m, role, file, oom_stack);
  status = status ? status : list_holders(m);
  if (status)
    return status;
  judge(m);
  weir__digest_trim(d, OTHERS);
  return WEIR_OK;
}

static void clear_maker(maker *m) {
  free(m->prefix);
  free(m->marks);
  free(m->sorted);
  weir__digest_steps_clear(&m->steps);
  weir__hash_map_clear(&m->live);
  weir__hash_map_clear(&m->lanes);
  weir__rangemap_clear(&m->segments);
  weir__digest_counters *const lists[] = {&m->stacks, &m->sizes, &m->phases, &m->texts, &m->pools, &m->streams};
  for (size_t i = 0; i < WEIR_COUNT_OF(lists); i++)
    weir__digest_counters_clear(lists[i]);
  weir__digest_clear(&m->digest);
}

/* ---- A recording ---- */

typedef struct makers {
  weir__recording_stream *source;
  weir__recording *recording;
  maker *of; /* by device */
  uint32_t *alike;
} makers;

/* Whether the prefix of a device is complete. */
static bool is_full(const maker *m) { return m->prefix_count == WEIR__DIGEST_PREFIX; }

static weir_status add_to_prefix(maker *m, const weir__recording_entry *e) {
  if (e->action == WEIR__ACTION_PAIRS) {
    if (!WEIR__RESERVE(m->marks, m->mark_room, m->mark_count + 1))
      return no_memory();
    m->marks[m->mark_count++] = (struct mark){m->prefix_count, e->remark};
    return WEIR_OK;
  }
  if (!WEIR__RESERVE(m->prefix, m->prefix_room, m->prefix_count + 1))
    return no_memory();
  m->prefix[m->prefix_count++] = *e;
  return is_full(m) ? take_prefix(m, m->recording, false) : WEIR_OK;
}

static weir_status take_streamed(makers *all, const weir__streamed_entry *s) {
  maker *m = &all->of[s->device];
  if (!m->is_past_prefix)
    return add_to_prefix(m, &s->entry);
  if (s->entry.action == WEIR__ACTION_PAIRS)
    weir__digest_steps_annotation(&m->steps, m->recording, s->entry.remark, m->entry);
  else if (!take(m, &s->entry))
    return no_memory();
  return WEIR_OK;
}

/* Whether no device, nor one that is still to come, will look for steps among the annotations. */
static bool needs_no_annotations(const makers *all) {
  for (size_t i = 0; i < all->recording->device_count; i++)
    if (!all->of[i].is_past_prefix)
      return false;
  return true;
}

static weir_status read_all(makers *all) {
  weir__streamed_entry *batch = malloc(BATCH * sizeof *batch);
  size_t count = 0;
  weir_status status = batch ? WEIR_OK : no_memory();
  while (!status) {
    status = weir__recording_stream_read(all->source, batch, BATCH, &count);
    if (status || !count)
      break;
    for (size_t i = 0; i < count && !status; i++)
      status = take_streamed(all, &batch[i]);
    if (needs_no_annotations(all))
      weir__recording_stream_forget(all->source);
  }
  free(batch);
  for (size_t i = 0; i < all->recording->device_count && !status; i++)
    if (all->of[i].prefix_count)
      status = take_prefix(&all->of[i], all->recording, true);
  return status;
}

static weir_status read_whole(makers *all) {
  weir_status status = WEIR_OK;
  for (size_t i = 0; i < all->recording->device_count && !status; i++)
    if (all->recording->devices[i].event_count)
      status = take_prefix(&all->of[i], all->recording, true);
  return status;
}

static weir_status make_all(makers *all, const char *path, const weir__digest_options *options, weir__digests *out) {
  weir__recording *r = all->recording = weir__recording_stream_recording(all->source);
  uint64_t entries = weir__recording_stream_entries(all->source);
  weir_status status = r ? weir__describe_alike(r, &all->alike) : no_memory();
  if (status)
    return status;
  all->of = calloc(r->device_count + 1, sizeof *all->of);
  out->items = calloc(r->device_count + 1, sizeof *out->items);
  if (!all->of || !out->items)
    return no_memory();
  for (size_t i = 0; i < r->device_count; i++) {
    maker *m = &all->of[i];
    m->source = all->source;
    m->recording = r;
    m->device = (int)i;
    m->alike = all->alike;
    m->entries_in_all = entries;
    m->interval_entries = entries / WEIR__DIGEST_INTERVALS + 1;
    m->stacks.has_peaks = m->sizes.has_peaks = true;
  }
  status = weir__recording_stream_is_whole(all->source) ? read_whole(all) : read_all(all);
  for (size_t i = 0; i < r->device_count && !status; i++) {
    maker *m = &all->of[i];
    if (!m->is_past_prefix)
      continue;
    status = finish(m, path, options);
    if (!status) {
      out->items[out->count++] = m->digest;
      m->digest = (weir__digest){0};
    }
  }
  return status;
}

weir_status weir__digest_make(const char *path, const weir__digest_options *options, weir__digests *out) {
  makers all = {0};
  *out = (weir__digests){0};
  weir_status status = weir__recording_stream_open(path, options->spool, NULL, &all.source);
  if (!status)
    status = make_all(&all, path, options, out);
  if (!status && !out->count)
    status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: no device has a history", path);
  for (size_t i = 0; all.of && i < all.recording->device_count; i++)
    clear_maker(&all.of[i]);
  free(all.of);
  free(all.alike);
  weir__recording_stream_close(all.source);
  if (status)
    weir__digests_clear(out);
  return status;
}

void weir__digests_clear(weir__digests *digests) {
  for (size_t i = 0; i < digests->count; i++)
    weir__digest_clear(&digests->items[i]);
  free(digests->items);
  *digests = (weir__digests){0};
}

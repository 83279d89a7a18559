#include "support/model.h"

#include <stdlib.h>
#include <string.h>

#define KIB 1024ull
#define MIB (1024 * KIB)

static const uint64_t unit = 512, small_max = 1 * MIB, small_segment = 2 * MIB, own_segment_from = 10 * MIB,
                      large_step = 2 * MIB;

static void *zeroed(size_t bytes) {
  void *memory = calloc(1, bytes);
  if (!memory)
    abort();
  return memory;
}

static uint64_t round_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }
static bool same_id(weir_pool_id a, weir_pool_id b) { return a.first == b.first && a.second == b.second; }

model *model_new(uint64_t device_bytes, uint64_t own_bytes) {
  model *m = zeroed(sizeof *m);
  m->settings = (model_settings){.max_split = MODEL_UNLIMITED, .large_segment = 20 * MIB, .rejection_fraction = 1};
  m->device_bytes = device_bytes;
  m->own_bytes = own_bytes;
  m->limit = MODEL_UNLIMITED;
  return m;
}

/* ---- Traces ---- */

void model_begin(model *m, const weir_trace_entry *trace, size_t count) {
  m->trace = trace;
  m->trace_count = count;
  m->trace_at = 0;
  m->expected_count = 0;
}

static void expect(model *m, weir_trace_action action, uint64_t address, uint64_t bytes, int stream,
                   const model_pool *pool) {
  if (m->expected_count == m->expected_room) {
    m->expected_room = 2 * m->expected_room + 64;
    m->expected = realloc(m->expected, m->expected_room * sizeof *m->expected);
    if (!m->expected)
      abort();
  }
  m->expected[m->expected_count++] = (weir_trace_entry){
      .action = action, .address = address, .bytes = bytes, .stream = m->raw[stream], .pool = pool->id};
}

/* Takes from the trace the address of the next new segment, or of its first pages. Entries that match an expected
 * mapping are skipped: pages may have been mapped elsewhere, and unmapped when there was no memory for the rest. */
static uint64_t next_new_address(model *m, weir_trace_action action, uint64_t bytes) {
  if (m->trace_at < m->expected_count)
    m->trace_at = m->expected_count;
  while (m->trace_at < m->trace_count) {
    const weir_trace_entry *e = &m->trace[m->trace_at++];
    if (e->action == action && e->bytes == bytes)
      return e->address;
    if (e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP) {
      model_wrong(m, "the model takes a segment of %llu bytes by action %d, the allocator one of %llu by %d",
                  (unsigned long long)bytes, action, (unsigned long long)e->bytes, e->action);
      return e->address;
    }
  }
  model_wrong(m, "the model takes a segment of %llu bytes, the allocator none", (unsigned long long)bytes);
  return 1 << 21; /* the trace has no more segments, so any address will do */
}

/* ---- Statistics ---- */

static void add(weir_stat *stat, int64_t by) {
  stat->current += by;
  if (stat->current > stat->peak)
    stat->peak = stat->current;
  if (by > 0)
    stat->allocated += by;
  else
    stat->freed -= by;
}

static void add_kind(weir_stat *stats, bool is_small, int64_t by) {
  add(&stats[WEIR_STAT_ALL], by);
  add(&stats[is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL], by);
}

/* Free parts of fixed segments that are partly in use. */
static void sum_splits(const model_segment *s, int64_t *count, int64_t *bytes) {
  *count = *bytes = 0;
  for (const model_block *b = s->first; b && !s->page; b = b->next)
    if (b->state == MODEL_FREE && (b->previous || b->next)) {
      *count += 1;
      *bytes += (int64_t)b->bytes;
    }
}

static void count_memory(model *m, model_segment *s, int segments, int64_t bytes) {
  m->reserved += (uint64_t)bytes;
  if (s->pool->own_memory)
    m->own_used += (uint64_t)bytes;
  else
    m->used += (uint64_t)bytes;
  add_kind(m->stats.reserved_bytes, s->is_small, bytes);
  if (s->pool->stats)
    add_kind(s->pool->stats->reserved_bytes, s->is_small, bytes);
  if (segments)
    add_kind(m->stats.segment, s->is_small, segments);
  if (segments && s->oversize)
    add(&m->stats.oversize_segments, segments);
  if (bytes > 0)
    m->stats.num_device_alloc++;
  else
    m->stats.num_device_free++;
}

/* ---- Sizes ---- */

uint64_t model_round(const model_settings *settings, uint64_t bytes) {
  int interval = 0;
  uint64_t power = 1;
  while (power <= bytes / 2)
    power *= 2;
  while (interval < MODEL_INTERVALS - 1 && power >> 21 >> interval)
    interval++;
  uint64_t divisions = settings->divisions[interval];
  if (divisions > 1 && bytes > unit * divisions)
    return bytes == power ? bytes : round_up(bytes, power / divisions);
  return bytes < unit ? unit : round_up(bytes, unit);
}

uint64_t model_segment_bytes(const model_settings *settings, uint64_t bytes) {
  if (bytes <= small_max)
    return small_segment;
  return bytes < own_segment_from ? settings->large_segment : round_up(bytes, large_step);
}

uint64_t model_reserve_bytes(const model *m, bool is_small) {
  uint64_t bytes = m->device_bytes * 9 / 8;
  if (m->settings.reserve > 0)
    bytes = (uint64_t)(m->settings.reserve * (double)m->device_bytes);
  return round_up(bytes, is_small ? small_segment : m->settings.large_segment);
}

static bool splits(const model *m, const model_block *b, uint64_t bytes) {
  const model_segment *s = b->segment;
  uint64_t rest = b->bytes - bytes;
  if (s->pool->no_split)
    return false;
  if (s->is_small || m->settings.expandable)
    return rest >= unit;
  return bytes < m->settings.max_split && rest > small_max;
}

/* ---- Blocks ---- */

static model_block *new_block(model_segment *s, uint64_t address, uint64_t bytes, model_state state) {
  model_block *b = zeroed(sizeof *b);
  b->address = address;
  b->bytes = bytes;
  b->state = state;
  b->segment = s;
  return b;
}

/* Splits a block at `address`. Both parts have the same state. */
static model_block *cut(model_block *b, uint64_t address) {
  model_block *rest = new_block(b->segment, address, b->address + b->bytes - address, b->state);
  rest->idle_since = b->idle_since;
  rest->previous = b;
  rest->next = b->next;
  if (rest->next)
    rest->next->previous = rest;
  b->next = rest;
  b->bytes -= rest->bytes;
  return rest;
}

static void absorb(model_block *b, model_block *neighbour) {
  if (!neighbour || neighbour->state != b->state)
    return;
  if (neighbour == b->previous) {
    b->address = neighbour->address;
    b->previous = neighbour->previous;
    if (b->previous)
      b->previous->next = b;
    else
      b->segment->first = b;
  } else {
    b->next = neighbour->next;
    if (b->next)
      b->next->previous = b;
  }
  b->bytes += neighbour->bytes;
  free(neighbour);
}

/* Marks the block as free or unmapped. */
static void put(model_block *b, model_state state) {
  b->state = state;
  b->idle_since = b->segment->pool->searches[b->segment->is_small];
  absorb(b, b->previous);
  absorb(b, b->next);
}

static void release(model *m, model_block *b) {
  model_segment *s = b->segment;
  int64_t count, bytes, count_after, bytes_after;
  sum_splits(s, &count, &bytes);
  expect(m, WEIR_TRACE_FREE_COMPLETED, b->address, b->requested, s->stream, s->pool);
  add_kind(m->stats.active, s->is_small, -1);
  add_kind(m->stats.active_bytes, s->is_small, -(int64_t)b->bytes);
  add_kind(m->stats.requested_bytes, s->is_small, -(int64_t)b->requested);
  m->waiting -= b->state == MODEL_WAITING;
  b->users = 0;
  put(b, MODEL_FREE);
  sum_splits(s, &count_after, &bytes_after);
  add_kind(m->stats.inactive_split, s->is_small, count_after - count);
  add_kind(m->stats.inactive_split_bytes, s->is_small, bytes_after - bytes);
}

static void begin_free(model *m, model_block *b) {
  const model_segment *s = b->segment;
  expect(m, WEIR_TRACE_FREE_REQUESTED, b->address, b->requested, s->stream, s->pool);
  add_kind(m->stats.allocation, s->is_small, -1);
  add_kind(m->stats.allocated_bytes, s->is_small, -(int64_t)b->bytes);
  if (b->oversize)
    add(&m->stats.oversize_allocations, -1);
}

static void hand_out(model *m, model_block *b, uint64_t bytes, uint64_t requested, bool exact) {
  const model_segment *s = b->segment;
  int64_t count, split_bytes, count_after, bytes_after;
  sum_splits(s, &count, &split_bytes);
  if (exact ? b->bytes > bytes : splits(m, b, bytes))
    cut(b, b->address + bytes)->idle_since = s->pool->searches[s->is_small];
  b->state = MODEL_ALLOCATED;
  b->requested = requested;
  b->oversize = b->bytes >= m->settings.max_split;
  sum_splits(s, &count_after, &bytes_after);
  add_kind(m->stats.inactive_split, s->is_small, count_after - count);
  add_kind(m->stats.inactive_split_bytes, s->is_small, bytes_after - split_bytes);
  add_kind(m->stats.allocation, s->is_small, 1);
  add_kind(m->stats.active, s->is_small, 1);
  add_kind(m->stats.allocated_bytes, s->is_small, (int64_t)b->bytes);
  add_kind(m->stats.active_bytes, s->is_small, (int64_t)b->bytes);
  add_kind(m->stats.requested_bytes, s->is_small, (int64_t)requested);
  if (b->oversize)
    add(&m->stats.oversize_allocations, 1);
  expect(m, WEIR_TRACE_ALLOC, b->address, requested, s->stream, s->pool);
}

model_block *model_find(const model *m, uint64_t address) {
  for (const model_segment *s = m->segments; s; s = s->next)
    for (model_block *b = s->first; b && address - s->base < s->bytes; b = b->next)
      if (b->address == address && b->state == MODEL_ALLOCATED)
        return b;
  return NULL;
}

size_t model_block_count(const model *m) {
  size_t count = 0;
  for (const model_segment *s = m->segments; s; s = s->next)
    for (const model_block *b = s->first; b; b = b->next)
      count++;
  return count;
}

/* ---- Segments ---- */

static model_segment *new_segment(model *m, model_pool *pool, bool is_small, int stream, uint64_t base, uint64_t bytes,
                                  uint64_t page) {
  model_segment *s = zeroed(sizeof *s);
  *s = (model_segment){.base = base,
                       .bytes = bytes,
                       .page = page,
                       .pool = pool,
                       .is_small = is_small,
                       .stream = stream,
                       .next = m->segments};
  s->first = new_block(s, base, bytes, page ? MODEL_UNMAPPED : MODEL_FREE);
  s->first->idle_since = pool->searches[is_small];
  m->segments = s;
  return s;
}

static void delete_segment(model *m, model_segment *s) {
  model_segment **at = &m->segments;
  while (*at != s)
    at = &(*at)->next;
  *at = s->next;
  for (model_block *b = s->first, *next; b; b = next) {
    next = b->next;
    free(b);
  }
  free(s);
}

static bool is_whole(const model_block *b) { return !b->previous && !b->next && !b->segment->page; }

static void give_back(model *m, model_segment *s) {
  count_memory(m, s, -1, -(int64_t)s->bytes);
  expect(m, WEIR_TRACE_SEGMENT_FREE, s->base, s->bytes, s->stream, s->pool);
  delete_segment(m, s);
}

static model_block *grow_fixed(model *m, model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  if (pool->own_memory ? bytes > m->own_bytes - m->own_used : bytes > m->device_bytes - m->used)
    return NULL;
  uint64_t base = next_new_address(m, WEIR_TRACE_SEGMENT_ALLOC, bytes);
  model_segment *s = new_segment(m, pool, is_small, stream, base, bytes, 0);
  s->oversize = bytes >= m->settings.max_split;
  count_memory(m, s, 1, (int64_t)bytes);
  expect(m, WEIR_TRACE_SEGMENT_ALLOC, base, bytes, stream, pool);
  return s->first;
}

typedef struct range {
  uint64_t address, bytes;
} range;

/* Maps the first pages of an unmapped block. Returns false if the device has no memory. */
static bool map(model *m, model_block *b, uint64_t bytes, range *mapped) {
  model_segment *s = b->segment;
  uint64_t size = round_up(bytes, s->page);
  if (size > m->device_bytes - m->used)
    return false;
  if (!s->base) /* the address is known once the first pages are mapped */
    s->base = b->address = next_new_address(m, WEIR_TRACE_SEGMENT_MAP, size);
  *mapped = (range){b->address, size};
  if (size < b->bytes)
    cut(b, b->address + size);
  put(b, MODEL_FREE);
  count_memory(m, s, 0, (int64_t)size);
  expect(m, WEIR_TRACE_SEGMENT_MAP, mapped->address, size, s->stream, s->pool);
  return true;
}

/* Unmaps whole pages of a free block. */
static void unmap(model *m, model_block *b, uint64_t address, uint64_t bytes) {
  model_segment *s = b->segment;
  uint32_t now = s->pool->searches[s->is_small];
  if (b->address + b->bytes > address + bytes)
    cut(b, address + bytes)->idle_since = now;
  if (b->address < address) {
    b->idle_since = now;
    b = cut(b, address);
  }
  put(b, MODEL_UNMAPPED);
  count_memory(m, s, 0, -(int64_t)bytes);
  expect(m, WEIR_TRACE_SEGMENT_UNMAP, address, bytes, s->stream, s->pool);
}

static void drop_if_unmapped(model *m, model_segment *s) {
  if (s->first->state == MODEL_UNMAPPED && !s->first->next)
    delete_segment(m, s);
}

static bool is_usable(const model_block *b) { return b && (b->state == MODEL_FREE || b->state == MODEL_UNMAPPED); }

static bool has_room(const model_block *b, uint64_t bytes) {
  uint64_t have = 0;
  for (; have < bytes && is_usable(b); b = b->next)
    have += b->bytes;
  return have >= bytes;
}

/* Finds the lowest unmapped range that fits, together with the free block before it, if any. */
static model_block *find_place(model *m, const model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  model_block *best = NULL;
  for (model_segment *s = m->segments; s; s = s->next)
    for (model_block *b = s->first; b && s->pool == pool && s->is_small == is_small && s->stream == stream; b = b->next)
      if (b->state == MODEL_UNMAPPED) {
        model_block *from = is_usable(b->previous) ? b->previous : b;
        if (has_room(from, bytes) && (!best || from->address < best->address))
          best = from;
      }
  return best;
}

static void undo_maps(model *m, model_segment *s, const range *mapped, size_t count) {
  while (count-- > 0) {
    model_block *b = s->first;
    while (b->address + b->bytes <= mapped[count].address)
      b = b->next;
    unmap(m, b, mapped[count].address, mapped[count].bytes);
  }
  drop_if_unmapped(m, s);
}

static model_block *grow_expandable(model *m, model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  model_block *b = find_place(m, pool, is_small, stream, bytes);
  if (!b) {
    uint64_t page = is_small ? small_segment : m->settings.large_segment, size = model_reserve_bytes(m, is_small);
    if (size < bytes)
      return NULL;
    b = new_segment(m, pool, is_small, stream, 0, size, page)->first;
  }
  model_segment *s = b->segment;
  enum { MAX = 1024 };
  range mapped[MAX];
  size_t count = 0;
  while (b->state == MODEL_UNMAPPED || b->bytes < bytes) {
    model_block *hole = b->state == MODEL_UNMAPPED ? b : b->next;
    uint64_t want = bytes - (b->state == MODEL_UNMAPPED ? 0 : b->bytes);
    if (count == MAX)
      abort();
    if (!map(m, hole, want < hole->bytes ? want : hole->bytes, &mapped[count])) {
      undo_maps(m, s, mapped, count);
      return NULL;
    }
    count++;
    b = hole; /* merged with the block before it */
  }
  return b;
}

static model_block *grow(model *m, model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  uint64_t segment = model_segment_bytes(&m->settings, bytes);
  if (m->limit != MODEL_UNLIMITED && m->reserved + segment > m->limit)
    return NULL;
  return m->settings.expandable && !pool->own_memory ? grow_expandable(m, pool, is_small, stream, bytes)
                                                     : grow_fixed(m, pool, is_small, stream, segment);
}

/* ---- Best fit ---- */

static bool comes_before(const model_block *a, const model_block *b) {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
}

/* The smallest free block of at least `bytes` after `last`, ordered by size and then by address. */
static model_block *next_free(const model *m, const model_pool *pool, bool is_small, int stream, uint64_t bytes,
                              const model_block *last) {
  model_block *best = NULL;
  for (const model_segment *s = m->segments; s; s = s->next)
    for (model_block *b = s->first; b && s->pool == pool && s->is_small == is_small && s->stream == stream; b = b->next)
      if (b->state == MODEL_FREE && b->bytes >= bytes && (!last || comes_before(last, b)) &&
          (!best || comes_before(b, best)))
        best = b;
  return best;
}

static uint64_t could_become(const model_block *b) {
  return b->bytes + (b->next && b->next->state == MODEL_UNMAPPED ? b->next->bytes : 0);
}

static model_block *best_fit(model *m, model_pool *pool, bool is_small, int stream, uint64_t bytes, bool counted) {
  const model_settings *settings = &m->settings;
  uint64_t slack = settings->max_non_split ? settings->max_non_split : settings->large_segment;
  pool->searches[is_small] += counted;
  model_block *b = next_free(m, pool, is_small, stream, bytes, NULL), *next;
  if (b && b->segment->page && settings->expandable) {
    while (b->segment->page && (next = next_free(m, pool, is_small, stream, bytes, b)) &&
           could_become(next) < could_become(b))
      b = next;
  } else
    while (b && b->segment->page)
      b = next_free(m, pool, is_small, stream, bytes, b);
  if (!b || (bytes < settings->max_split && b->bytes >= settings->max_split) ||
      (bytes >= settings->max_split && b->bytes >= bytes + slack))
    return NULL;
  return b;
}

/* ---- Out of memory ---- */

/* Waits for all streams if `done` is NULL. */
static bool is_over(const model_block *b, const unsigned long *done) {
  bool over = b->state == MODEL_WAITING;
  for (int i = 0; i < MODEL_STREAMS && over && done; i++)
    over = done[i] >= b->until[i];
  return over;
}

static model_block *find_waiting(const model *m, uint64_t address) {
  for (const model_segment *s = m->segments; s; s = s->next)
    for (model_block *b = s->first; b && address - s->base < s->bytes; b = b->next)
      if (b->address == address && b->state == MODEL_WAITING)
        return b;
  return NULL;
}

/* The order affects only the peaks, so the model follows the order of the allocator. */
static void poll(model *m, const unsigned long *done) {
  for (size_t i = 0; i < m->trace_count && m->waiting; i++)
    if (m->trace[i].action == WEIR_TRACE_FREE_COMPLETED) {
      model_block *b = find_waiting(m, m->trace[i].address);
      if (b && is_over(b, done))
        release(m, b);
    }
  for (model_segment *s = m->segments; s && m->waiting; s = s->next)
    for (const model_block *b = s->first; b; b = b->next)
      if (is_over(b, done))
        model_wrong(m, "nothing uses %llx any more, and the allocator keeps it", (unsigned long long)b->address);
}

static void wait_for_events(model *m) {
  poll(m, NULL);
  m->stats.num_sync_all_streams++;
}

/* Releases unsplit large blocks whose age is at least the mean, until enough is released. */
static void collect(model *m) {
  uint64_t threshold = (uint64_t)(m->settings.collect_above * (double)m->limit);
  if (m->reserved <= threshold)
    return;
  uint64_t target = m->reserved - threshold, reclaimed = 0;
  for (bool freed = true; freed && reclaimed < target;) {
    uint64_t ages = 0, count = 0;
    uint32_t now = m->default_pool.searches[false];
    freed = false;
    for (model_segment *s = m->segments; s; s = s->next)
      if (s->pool == &m->default_pool && !s->is_small && !s->first->next && s->first->state == MODEL_FREE) {
        ages += now - s->first->idle_since;
        count++;
      }
    for (model_segment *s = m->segments, *next; s && count; s = next) {
      next = s->next;
      if (s->pool != &m->default_pool || s->is_small || s->first->state != MODEL_FREE || !is_whole(s->first) ||
          (double)(now - s->first->idle_since) < (double)ages / (double)count)
        continue;
      reclaimed += s->bytes;
      freed = true;
      give_back(m, s);
    }
  }
}

static model_block *largest_below(const model *m, const model_pool *pool, bool is_small, int stream,
                                  const model_block *above) {
  model_block *best = NULL;
  for (model_block *b = NULL; (b = next_free(m, pool, is_small, stream, 0, b)) && b != above;)
    best = b;
  return best;
}

/* Releases one oversize block that is large enough, or several, the largest first. */
static bool release_oversize(model *m, model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  uint64_t limit = m->settings.max_split, need = bytes < limit ? limit : bytes, released = 0;
  if (limit == MODEL_UNLIMITED || pool != &m->default_pool)
    return false;
  model_block *b = next_free(m, pool, is_small, stream, need, NULL);
  if (b && is_whole(b)) {
    give_back(m, b->segment);
    return true;
  }
  b = largest_below(m, pool, is_small, stream, b);
  while (b && released < need && b->bytes >= limit) {
    model_block *smaller = largest_below(m, pool, is_small, stream, b);
    if (is_whole(b)) {
      released += b->bytes;
      give_back(m, b->segment);
    }
    b = smaller;
  }
  return released >= need;
}

/* The whole pages within a free block. */
static bool release_pages(model *m, model_block *b) {
  const model_segment *s = b->segment;
  uint64_t first = s->base + round_up(b->address - s->base, s->page);
  uint64_t end = s->base + (b->address + b->bytes - s->base) / s->page * s->page;
  if (b->state != MODEL_FREE || first >= end)
    return false;
  unmap(m, b, first, end - first);
  return true;
}

static void release_unused(model *m, const model_pool *pool) {
  for (model_segment *s = m->segments, *next; s; s = next) {
    next = s->next;
    if (s->pool != pool)
      continue;
    if (!s->page) {
      if (s->first->state == MODEL_FREE && is_whole(s->first))
        give_back(m, s);
      continue;
    }
    for (model_block *b = s->first; b;)
      b = release_pages(m, b) ? s->first : b->next;
    drop_if_unmapped(m, s);
  }
}

static bool has_segments(const model *m, const model_pool *pool) {
  const model_segment *s = m->segments;
  while (s && s->pool != pool)
    s = s->next;
  return s != NULL;
}

static void drop_pools(model *m, const model_pool *only) {
  for (model_pool **at = &m->pools; *at;) {
    model_pool *pool = *at;
    bool goes = pool->is_over && (!only || pool == only);
    if (goes)
      release_unused(m, pool);
    if (goes && !has_segments(m, pool) && !pool->scopes) {
      *at = pool->next;
      free(pool);
    } else
      at = &pool->next;
  }
}

static void release_cached(model *m) {
  wait_for_events(m);
  release_unused(m, &m->default_pool);
  drop_pools(m, NULL);
}

static model_block *borrow(model *m, const model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  model_block *b = NULL;
  for (model_pool *p = m->pools; p && !b && pool == &m->default_pool; p = p->next)
    if (p->use_on_oom)
      b = best_fit(m, p, is_small, stream, bytes, false);
  return b;
}

static model_block *refill(model *m, model_pool *pool, bool is_small, int stream, uint64_t bytes) {
  model_block *b;
  if (m->settings.collect_above > 0 && m->limit != MODEL_UNLIMITED)
    collect(m);
  if ((b = grow(m, pool, is_small, stream, bytes)))
    return b;
  if ((b = borrow(m, pool, is_small, stream, bytes)))
    return b;
  if (release_oversize(m, pool, is_small, stream, bytes) && (b = grow(m, pool, is_small, stream, bytes)))
    return b;
  release_cached(m);
  m->stats.num_alloc_retries++;
  if ((b = grow(m, pool, is_small, stream, bytes)))
    return b;
  if ((b = best_fit(m, pool, is_small, stream, bytes, false)))
    return b;
  return borrow(m, pool, is_small, stream, bytes);
}

/* ---- The calls ---- */

weir_status model_alloc(model *m, uint64_t bytes, int stream, const unsigned long *done, uint64_t *address) {
  poll(m, done);
  model_pool *pool = &m->default_pool;
  bool is_of_thread = false; /* the innermost scope of the thread comes before filters, the newest of which takes it */
  for (int i = 0; i < m->scope_count; i++) {
    bool all_streams = m->scopes[i].streams == MODEL_ALL_STREAMS;
    if (all_streams >= is_of_thread && m->scopes[i].streams >> stream & 1) {
      pool = m->scopes[i].pool;
      is_of_thread = all_streams;
    }
  }
  uint64_t size = model_round(&m->settings, bytes);
  bool is_small = size <= small_max;
  bool counted = m->settings.collect_above > 0 && m->limit != MODEL_UNLIMITED;
  model_block *b = best_fit(m, pool, is_small, stream, size, counted);
  if (!b && m->settings.throw_on_oom &&
      m->reserved + model_segment_bytes(&m->settings, size) >
          (uint64_t)(m->settings.rejection_fraction * (double)m->device_bytes)) {
    m->stats.num_oom_rejections++;
    return WEIR_ERROR_OUT_OF_MEMORY;
  }
  if (!b)
    b = refill(m, pool, is_small, stream, size);
  if (!b) {
    m->stats.num_ooms++;
    expect(m, WEIR_TRACE_OOM, m->device_bytes - m->used, size, stream, pool);
    return WEIR_ERROR_OUT_OF_MEMORY;
  }
  hand_out(m, b, size, bytes, false);
  *address = b->address;
  return WEIR_OK;
}

void model_free(model *m, uint64_t address, const unsigned long *until) {
  model_block *b = model_find(m, address);
  if (!b) {
    model_wrong(m, "%llx is freed, and the model has no block there", (unsigned long long)address);
    return;
  }
  begin_free(m, b);
  if (!b->users) {
    release(m, b);
    return;
  }
  b->state = MODEL_WAITING;
  m->waiting++;
  for (int i = 0; i < MODEL_STREAMS; i++)
    b->until[i] = b->users >> i & 1 ? until[i] : 0;
}

void model_record_stream(model *m, uint64_t address, int stream) {
  model_block *b = model_find(m, address);
  if (b && b->segment->stream != stream)
    b->users |= 1u << stream;
}

void model_empty(model *m, weir_pool_id id) {
  const model_pool *pool = model_pool_find(m, id);
  if (!id.first && !id.second)
    release_cached(m);
  else if (pool && pool->is_over) {
    wait_for_events(m);
    drop_pools(m, pool);
  }
}

void model_set_fraction(model *m, double fraction) {
  m->limit = fraction < 1 ? (uint64_t)(fraction * (double)m->device_bytes + 0.5) : MODEL_UNLIMITED;
}

uint64_t model_largest(const model *m) {
  uint64_t largest = m->device_bytes - m->used;
  for (const model_segment *s = m->segments; s; s = s->next)
    for (const model_block *b = s->first; b; b = b->next)
      if (b->state == MODEL_FREE && b->bytes > largest)
        largest = b->bytes;
  return largest;
}

/* ---- Pools ---- */

model_pool *model_pool_find(const model *m, weir_pool_id id) {
  model_pool *pool = m->pools;
  while (pool && !same_id(pool->id, id))
    pool = pool->next;
  return pool;
}

model_pool_stats *model_pool_stats_find(const model *m, weir_pool_id id) {
  model_pool_stats *stats = m->pool_stats;
  while (stats && !same_id(stats->id, id))
    stats = stats->next;
  return stats;
}

static model_pool_stats *pool_stats(model *m, weir_pool_id id) {
  model_pool_stats *stats = model_pool_stats_find(m, id);
  if (stats)
    return stats;
  stats = zeroed(sizeof *stats);
  stats->id = id;
  stats->next = m->pool_stats;
  return m->pool_stats = stats;
}

void model_pool_create(model *m, weir_pool_id id, const weir_pool_options *options) {
  model_pool *pool = model_pool_find(m, id);
  if (!pool) {
    pool = zeroed(sizeof *pool);
    pool->id = id;
    pool->stats = pool_stats(m, id);
    pool->next = m->pools;
    m->pools = pool;
    if (options) {
      pool->use_on_oom = options->use_on_oom;
      pool->no_split = options->no_split;
      pool->own_memory = options->alloc != NULL;
    }
  }
  pool->uses++;
  pool->is_over = false;
}

weir_status model_pool_release(model *m, weir_pool_id id) {
  model_pool *pool = model_pool_find(m, id);
  if (!pool || !pool->uses)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (--pool->uses == 0) {
    pool->is_over = true;
    pool->use_on_oom = pool->no_split = false;
  }
  return WEIR_OK;
}

weir_status model_pool_begin(model *m, weir_pool_id id, unsigned streams) {
  for (int i = 0; i < m->scope_count; i++)
    if (same_id(m->scopes[i].pool->id, id))
      return WEIR_ERROR_BAD_STATE;
  if (m->scope_count == MODEL_SCOPES)
    abort();
  model_pool_create(m, id, NULL);
  model_pool *pool = model_pool_find(m, id);
  pool->scopes++;
  m->scopes[m->scope_count++] = (model_scope){pool, streams};
  return WEIR_OK;
}

weir_status model_pool_end(model *m, weir_pool_id id) {
  int at = m->scope_count;
  while (at-- > 0 && !same_id(m->scopes[at].pool->id, id))
    continue;
  if (at < 0)
    return WEIR_ERROR_BAD_STATE;
  m->scopes[at].pool->scopes--;
  m->scope_count--;
  memmove(&m->scopes[at], &m->scopes[at + 1], (size_t)(m->scope_count - at) * sizeof *m->scopes);
  return WEIR_OK;
}

weir_status model_checkpoint_take(const model *m, weir_pool_id id, model_checkpoint **made) {
  const model_pool *pool = model_pool_find(m, id);
  *made = NULL;
  if (!pool)
    return WEIR_ERROR_INVALID_ARGUMENT;
  if (pool->is_over)
    return WEIR_ERROR_BAD_STATE;
  for (const model_segment *s = m->segments; s; s = s->next)
    for (const model_block *b = s->first; b; b = b->next)
      if (s->pool == pool && b->state == MODEL_WAITING)
        return WEIR_ERROR_BAD_STATE;
  model_checkpoint *c = *made = zeroed(sizeof *c);
  c->id = id;
  c->pieces = zeroed((model_block_count(m) + 1) * sizeof *c->pieces);
  for (const model_segment *s = m->segments; s; s = s->next)
    for (const model_block *b = s->first; b; b = b->next)
      if (s->pool == pool && b->state != MODEL_UNMAPPED) {
        bool allocated = b->state == MODEL_ALLOCATED;
        c->pieces[c->count++] = (model_piece){.segment = s->base,
                                              .address = b->address,
                                              .bytes = b->bytes,
                                              .stream = s->stream,
                                              .is_small = s->is_small,
                                              .allocated = allocated};
      }
  return WEIR_OK;
}

void model_checkpoint_delete(model_checkpoint *checkpoint) {
  if (checkpoint)
    free(checkpoint->pieces);
  free(checkpoint);
}

static model_segment *segment_of(const model *m, const model_pool *pool, const model_piece *piece) {
  model_segment *s = m->segments;
  while (s &&
         (s->base != piece->segment || s->pool != pool || s->stream != piece->stream || s->is_small != piece->is_small))
    s = s->next;
  return s;
}

/* Whether the whole range lies in one segment and is mapped. */
static bool is_mapped(const model_segment *s, uint64_t address, uint64_t bytes) {
  if (address < s->base || address + bytes > s->base + s->bytes)
    return false;
  for (const model_block *b = s->first; b; b = b->next)
    if (b->state == MODEL_UNMAPPED && address < b->address + b->bytes && b->address < address + bytes)
      return false;
  return true;
}

/* The whole piece is mapped, and it follows the piece before it without a gap. */
static bool fits(const model_segment *s, const model_piece *piece, const model_piece *before) {
  return is_mapped(s, piece->address, piece->bytes) &&
         ((before && before->address + before->bytes == piece->address) || !is_mapped(s, piece->address - 1, 1));
}

weir_status model_restore(model *m, const model_checkpoint *checkpoint, uint64_t *freed, size_t *freed_count,
                          uint64_t *allocated, size_t *allocated_count) {
  const model_pool *pool = model_pool_find(m, checkpoint->id);
  if (!pool || pool->is_over)
    return WEIR_ERROR_INVALID_ARGUMENT;
  for (const model_segment *s = m->segments; s; s = s->next)
    for (const model_block *b = s->first; b; b = b->next)
      if (s->pool == pool && (b->state == MODEL_WAITING || b->users))
        return WEIR_ERROR_BAD_STATE;
  for (size_t i = 0; i < checkpoint->count; i++) {
    const model_piece *piece = &checkpoint->pieces[i];
    const model_segment *s = segment_of(m, pool, piece);
    if (!s || !fits(s, piece, i ? piece - 1 : NULL))
      return WEIR_ERROR_BAD_STATE;
  }
  for (model_segment *s = m->segments; s; s = s->next)
    for (model_block *b = s->first; b; b = b->next)
      if (s->pool == pool && b->state == MODEL_ALLOCATED) {
        freed[(*freed_count)++] = b->address;
        begin_free(m, b);
        release(m, b);
      }
  for (size_t i = 0; i < checkpoint->count; i++) {
    const model_piece *piece = &checkpoint->pieces[i];
    model_block *b = segment_of(m, pool, piece)->first;
    while (b->address != piece->address)
      b = b->next;
    hand_out(m, b, piece->bytes, piece->bytes, true);
    if (piece->allocated)
      allocated[(*allocated_count)++] = piece->address;
  }
  for (size_t i = 0; i < checkpoint->count; i++)
    if (!checkpoint->pieces[i].allocated) {
      model_block *b = model_find(m, checkpoint->pieces[i].address);
      begin_free(m, b);
      release(m, b);
    }
  return WEIR_OK;
}

void model_delete(model *m) {
  if (!m)
    return;
  while (m->segments)
    delete_segment(m, m->segments);
  while (m->pools) {
    model_pool *pool = m->pools;
    m->pools = pool->next;
    free(pool);
  }
  while (m->pool_stats) {
    model_pool_stats *stats = m->pool_stats;
    m->pool_stats = stats->next;
    free(stats);
  }
  free(m->expected);
  free(m);
}

#include "offline/analyse/lives.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "base/rangemap.h"
#include "offline/read/recording.h"

typedef struct open_block {
  uint64_t address;
  size_t life;
} open_block;

/* Lives from before the history are found at any time, so they are in lists of their own until the end. */
typedef struct maker {
  const weir__recording *recording;
  const weir__recording_device *device;
  weir__lives of, before;
  weir__hash_map blocks;   /* open_block by address */
  weir__rangemap segments; /* reference + 1 of the open life, by range */
} maker;

/* A life's place: in `before` if the lowest bit is set, otherwise in `of`. */
static size_t reference(size_t number, bool is_before) { return number << 1 | is_before; }

static weir__life *block_at(maker *m, size_t reference) {
  return &(reference & 1 ? &m->before : &m->of)->blocks[reference >> 1];
}

static weir__segment_life *segment_at(maker *m, size_t reference) {
  return &(reference & 1 ? &m->before : &m->of)->segments[reference >> 1];
}

static uint16_t stream_number(const weir__recording *recording, int64_t handle) {
  for (size_t i = 0; i < recording->stream_count; i++)
    if (recording->streams[i] == handle)
      return (uint16_t)i;
  return 0;
}

static uint32_t pool_number(const weir__recording *recording, const int64_t id[2]) {
  for (size_t i = 0; i < recording->pool_count; i++)
    if (recording->pools[i].id[0] == id[0] && recording->pools[i].id[1] == id[1])
      return (uint32_t)i;
  return WEIR__RECORDING_NO_POOL;
}

static uint16_t short_pool(uint32_t pool) { return pool < WEIR__LIFE_NO_POOL ? (uint16_t)pool : WEIR__LIFE_NO_POOL; }

/* ---- Blocks ---- */

static bool add_block(maker *m, const weir__life *life, bool is_open) {
  weir__lives *l = life->is_before ? &m->before : &m->of;
  if (!WEIR__RESERVE(l->blocks, l->block_room, l->block_count + 1))
    return false;
  l->blocks[l->block_count++] = *life;
  if (!is_open)
    return true;
  open_block *open = weir__hash_map_put(&m->blocks, sizeof *open, life->address);
  if (open)
    open->life = reference(l->block_count - 1, life->is_before);
  return open != NULL;
}

static bool on_alloc(maker *m, const weir__recording_entry *e, uint32_t number) {
  if (!e->address)
    return true;
  open_block *open = weir__hash_map_find(&m->blocks, sizeof *open, e->address);
  if (open) { /* its free is missing, as in a damaged recording */
    weir__life *old = block_at(m, open->life);
    old->freed = old->freed == WEIR__LIFE_OPEN ? number : old->freed;
    old->end = number;
  }
  return add_block(m,
                   &(weir__life){.address = e->address,
                                 .size = e->size,
                                 .begin = number,
                                 .freed = WEIR__LIFE_OPEN,
                                 .end = WEIR__LIFE_OPEN,
                                 .stack = e->stack,
                                 .remark = e->remark,
                                 .stream = e->stream,
                                 .pool = short_pool(e->pool)},
                   true);
}

/* A free without an allocation: of a block that was allocated before the history. */
static bool on_free(maker *m, const weir__recording_entry *e, uint32_t number) {
  bool is_request = e->action == WEIR_TRACE_FREE_REQUESTED;
  open_block *open = e->address ? weir__hash_map_find(&m->blocks, sizeof *open, e->address) : NULL;
  if (!e->address)
    return true;
  if (!open)
    return add_block(m,
                     &(weir__life){.address = e->address,
                                   .size = e->size,
                                   .freed = is_request ? number : 0,
                                   .end = is_request ? WEIR__LIFE_OPEN : number,
                                   .stack = e->stack,
                                   .remark = e->remark,
                                   .stream = e->stream,
                                   .pool = short_pool(e->pool),
                                   .is_before = 1},
                     is_request);
  weir__life *life = block_at(m, open->life);
  if (is_request)
    life->freed = life->freed == WEIR__LIFE_OPEN ? number : life->freed;
  else {
    life->freed = life->freed == WEIR__LIFE_OPEN ? number : life->freed;
    life->end = number;
    weir__hash_map_remove(&m->blocks, sizeof *open, open);
  }
  return true;
}

/* ---- Segments ---- */

static bool add_segment(maker *m, const weir__segment_life *life, bool is_open) {
  weir__lives *l = life->is_before ? &m->before : &m->of;
  if (!life->size || life->address + life->size < life->address) /* as in a damaged recording */
    return true;
  if (!WEIR__RESERVE(l->segments, l->segment_room, l->segment_count + 1))
    return false;
  l->segments[l->segment_count++] = *life;
  return !is_open || weir__rangemap_insert(&m->segments, life->address, life->size,
                                           (void *)(uintptr_t)(reference(l->segment_count - 1, life->is_before) + 1));
}

/* Adds the parts of a range that no open life covers. */
static bool add_uncovered(maker *m, weir__segment_life life, bool is_open) {
  uint64_t at = life.address, end = life.address + life.size, base, bytes;
  while (at < end) {
    void *next = weir__rangemap_overlap(&m->segments, at, end - at, &base, &bytes);
    if (!next || base > at) {
      life.address = at;
      life.size = (next ? base : end) - at;
      if (!add_segment(m, &life, is_open))
        return false;
    }
    if (!next)
      return true;
    at = base + bytes;
  }
  return true;
}

/* Ends what is open in a range. If a part of a life lies outside, that part goes on as a life of its own. */
static bool end_range(maker *m, uint64_t address, uint64_t size, uint32_t number) {
  uint64_t base, bytes, end = address + size;
  void *value;
  while ((value = weir__rangemap_overlap(&m->segments, address, size, &base, &bytes))) {
    weir__segment_life *ended = segment_at(m, (uintptr_t)value - 1), rest = *ended;
    ended->end = number;
    weir__rangemap_remove(&m->segments, base);
    rest.begin = number;
    rest.is_before = false;
    if (base < address) {
      rest.address = base;
      rest.size = address - base;
      if (!add_segment(m, &rest, true))
        return false;
    }
    if (base + bytes > end) {
      rest.address = end;
      rest.size = base + bytes - end;
      if (!add_segment(m, &rest, true))
        return false;
    }
  }
  return true;
}

static bool on_segment(maker *m, const weir__recording_entry *e, uint32_t number) {
  bool begins = e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP;
  weir__segment_life life = {.address = e->address,
                             .size = e->size,
                             .begin = begins ? number : 0,
                             .end = begins ? WEIR__LIFE_OPEN : number,
                             .stack = e->stack,
                             .pool = e->pool,
                             .stream = e->stream,
                             .is_before = !begins,
                             .is_expandable =
                                 e->action == WEIR_TRACE_SEGMENT_MAP || e->action == WEIR_TRACE_SEGMENT_UNMAP};
  if (!e->size || e->address + e->size < e->address)
    return true;
  if (begins)
    return end_range(m, e->address, e->size, number) && add_segment(m, &life, true);
  return add_uncovered(m, life, false) && end_range(m, e->address, e->size, number);
}

/* ---- What was there before, and what is there at the end ---- */

static bool begin_with(maker *m, const weir__state *start) {
  for (size_t i = 0; i < start->segment_count; i++) {
    const weir__state_segment *s = &start->segments[i];
    weir__segment_life segment = {.address = s->address,
                                  .end = WEIR__LIFE_OPEN,
                                  .pool = pool_number(m->recording, s->pool),
                                  .stream = stream_number(m->recording, s->stream),
                                  .is_before = true,
                                  .is_expandable = s->is_expandable};
    for (size_t k = 0; k < s->count; k++) {
      const weir__state_block *b = &start->blocks[s->first + k];
      if (b->state == WEIR__BLOCK_UNMAPPED) {
        segment.size = b->address - segment.address;
        if (!add_segment(m, &segment, true))
          return false;
        segment.address = b->address + b->size;
      }
      if (weir__state_is_active(b) &&
          !add_block(m,
                     &(weir__life){.address = b->address,
                                   .size = b->requested,
                                   .freed = b->state == WEIR_BLOCK_ACTIVE_PENDING_FREE ? 0 : WEIR__LIFE_OPEN,
                                   .end = WEIR__LIFE_OPEN,
                                   .stack = b->stack,
                                   .stream = segment.stream,
                                   .pool = short_pool(segment.pool),
                                   .is_before = 1},
                     true))
        return false;
    }
    segment.size = s->address + s->size - segment.address;
    if (!add_segment(m, &segment, true))
      return false;
  }
  return true;
}

/* The list at the end of a pickle has what the history does not mention, and the pools of segments. */
static bool end_with(maker *m) {
  for (size_t i = 0; i < m->device->segment_count; i++) {
    const weir__recording_segment *s = &m->device->segments[i];
    weir__segment_life segment = {.address = s->address,
                                  .size = s->size,
                                  .end = WEIR__LIFE_OPEN,
                                  .stack = s->stack,
                                  .pool = s->pool,
                                  .stream = s->stream,
                                  .is_before = true,
                                  .is_expandable = s->is_expandable};
    if (s->address + s->size < s->address || !add_uncovered(m, segment, true))
      return s->address + s->size < s->address;
    uint64_t base, bytes, at = s->address;
    for (void *value; at < s->address + s->size &&
                      (value = weir__rangemap_overlap(&m->segments, at, s->address + s->size - at, &base, &bytes));
         at = base + bytes)
      segment_at(m, (uintptr_t)value - 1)->pool = s->pool;
    for (size_t k = 0; k < s->block_count; k++) {
      const weir__recording_block *b = &s->blocks[k];
      if (b->state == WEIR_BLOCK_INACTIVE || !b->address ||
          weir__hash_map_find(&m->blocks, sizeof(open_block), b->address))
        continue;
      if (!add_block(m,
                     &(weir__life){.address = b->address,
                                   .size = b->requested,
                                   .freed = b->state == WEIR_BLOCK_ACTIVE_ALLOCATED ? WEIR__LIFE_OPEN : 0,
                                   .end = WEIR__LIFE_OPEN,
                                   .stack = b->stack,
                                   .stream = s->stream,
                                   .pool = short_pool(s->pool),
                                   .is_before = 1},
                     false))
        return false;
    }
  }
  return true;
}

/* The pool of a block is that of its segment. Where entries do not say it, it is known for segments that are in the
 * list at the end, and for all if there is one pool only. */
static void find_pools(maker *m, weir__lives *l) {
  for (size_t i = 0; i < l->block_count; i++) {
    weir__life *life = &l->blocks[i];
    if (life->pool != WEIR__LIFE_NO_POOL)
      continue;
    if (m->recording->pool_count <= 1) {
      life->pool = 0;
      continue;
    }
    void *value = weir__rangemap_find(&m->segments, life->address, NULL, NULL);
    const weir__segment_life *segment = value ? segment_at(m, (uintptr_t)value - 1) : NULL;
    if (segment && (segment->is_before || segment->begin <= life->begin))
      life->pool = short_pool(segment->pool);
  }
}

/* Puts what was there before in front. */
static bool join(maker *m) {
  weir__lives *l = &m->of, *b = &m->before;
  if (!WEIR__RESERVE(l->blocks, l->block_room, l->block_count + b->block_count) ||
      !WEIR__RESERVE(l->segments, l->segment_room, l->segment_count + b->segment_count))
    return false;
  if (b->block_count) {
    memmove(l->blocks + b->block_count, l->blocks, l->block_count * sizeof *l->blocks);
    memcpy(l->blocks, b->blocks, b->block_count * sizeof *l->blocks);
    l->block_count += b->block_count;
  }
  if (b->segment_count) {
    memmove(l->segments + b->segment_count, l->segments, l->segment_count * sizeof *l->segments);
    memcpy(l->segments, b->segments, b->segment_count * sizeof *l->segments);
    l->segment_count += b->segment_count;
  }
  return true;
}

static bool make(maker *m) {
  const weir__recording_device *d = m->device;
  size_t allocations = 0;
  for (size_t i = 0; i < d->event_count; i++)
    allocations += d->events[i].action == WEIR_TRACE_ALLOC;
  if (!WEIR__RESERVE(m->of.blocks, m->of.block_room, allocations + 1) || (d->start && !begin_with(m, d->start)))
    return false;
  for (size_t i = 0; i < d->event_count; i++) {
    const weir__recording_entry *e = &d->events[i];
    bool ok = true;
    switch (e->action) {
    case WEIR_TRACE_ALLOC:
      ok = on_alloc(m, e, (uint32_t)i);
      break;
    case WEIR_TRACE_FREE_REQUESTED:
    case WEIR_TRACE_FREE_COMPLETED:
      ok = on_free(m, e, (uint32_t)i);
      break;
    case WEIR_TRACE_SEGMENT_ALLOC:
    case WEIR_TRACE_SEGMENT_FREE:
    case WEIR_TRACE_SEGMENT_MAP:
    case WEIR_TRACE_SEGMENT_UNMAP:
      ok = on_segment(m, e, (uint32_t)i);
      break;
    default:
      break;
    }
    if (!ok)
      return false;
  }
  if (!end_with(m))
    return false;
  find_pools(m, &m->before);
  find_pools(m, &m->of);
  return join(m);
}

weir_status weir__lives_make(const weir__recording *recording, int device, weir__lives *lives) {
  maker m = {.recording = recording, .device = device < 0 ? &recording->host : &recording->devices[device]};
  if (m.device->event_count >= WEIR__LIFE_OPEN)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%zu entries of one device are more than 4294967294",
                      m.device->event_count);
  bool ok = make(&m);
  m.of.entry_count = m.device->event_count;
  weir__hash_map_clear(&m.blocks);
  weir__rangemap_clear(&m.segments);
  weir__lives_clear(&m.before);
  if (!ok) {
    weir__lives_clear(&m.of);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the lives of %zu entries",
                      m.device->event_count);
  }
  *lives = m.of;
  return WEIR_OK;
}

void weir__lives_clear(weir__lives *lives) {
  free(lives->blocks);
  free(lives->segments);
  *lives = (weir__lives){0};
}

#include "offline/initial_state.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/sizes.h"
#include "base/base.h"
#include "base/rangemap.h"

/* Of a part: not known. */
enum { UNKNOWN = -1 };

/* So many pages at most, mapped or not, are put back: more than any device has, and few enough for a file that says anything. */
enum { MOST_PAGES = 1 << 18 };

/* Memory that came from the driver: a fixed segment, or pages of an expandable one that were mapped or listed together. */
typedef struct part {
  uint64_t address, size;
  int64_t pool;  /* number in the snapshot, or UNKNOWN */
  int8_t small;  /* of the small pool, or UNKNOWN */
  bool is_fixed; /* else pages */
  bool is_ghost; /* pages that are mapped in the history, and were not there at the beginning */
  uint16_t stream;
  size_t
      released; /* a fixed segment from which nothing is allocated any more: the event + 1 with which it goes; else 0 */
} part;

/* An allocation that was there. */
typedef struct thing {
  uint64_t address, size; /* of its block; 0: not known */
  uint64_t requested;
  uint64_t end; /* where something showed it; else 0 */
  uint32_t stack;
  bool is_waiting; /* freed, and not completed */
} thing;

typedef struct list {
  void *items;
  size_t count, room;
} list;

typedef struct builder {
  const weir__recording *snapshot;
  const weir__settings *settings;
  list parts;                   /* part; all that ever were in one of the maps */
  list things;                  /* thing; likewise */
  weir__rangemap memory;        /* parts that are there: number + 1 */
  weir__rangemap blocks;        /* things that are there: number + 1; a block reaches as far as is known */
  uint64_t reserved, peak;      /* at the beginning, and the most that there was */
  uint64_t pages;               /* of expandable segments, holes too */
  list segments, pieces, order; /* of the state: weir__state_segment, weir__state_block; parts by address: part */
  bool has_failed;              /* no host memory */
} builder;

/* A new item, zeroed; NULL: no host memory. */
static void *append(builder *b, list *l, size_t size) {
  if (l->count == l->room) {
    void *grown = realloc(l->items, (2 * l->room + 64) * size);
    if (!grown) {
      b->has_failed = true;
      return NULL;
    }
    l->items = grown;
    l->room = 2 * l->room + 64;
  }
  return memset((char *)l->items + l->count++ * size, 0, size);
}

static part *part_number(const builder *b, const void *number) {
  return (part *)b->parts.items + (uintptr_t)number - 1;
}
static thing *thing_number(const builder *b, const void *number) {
  return (thing *)b->things.items + (uintptr_t)number - 1;
}

/* ---- What was there ---- */

static bool is_sound(uint64_t address, uint64_t size, uint64_t unit) {
  return size && size < WEIR__MOST_BYTES && address < UINT64_MAX - size && address % unit == 0 && size % unit == 0;
}

static bool are_pages(uint64_t address, uint64_t size) { return is_sound(address, size, WEIR__SMALL_SEGMENT); }

/* Two at one place: the file is odd, and the one that is there stays. */
static void put_part(builder *b, const part *p) {
  if (!is_sound(p->address, p->size, p->is_fixed ? WEIR__UNIT : WEIR__SMALL_SEGMENT) ||
      weir__rangemap_overlap(&b->memory, p->address, p->size, NULL, NULL))
    return;
  part *kept = append(b, &b->parts, sizeof *kept);
  if (!kept)
    return;
  *kept = *p;
  b->has_failed |= !weir__rangemap_insert(&b->memory, p->address, p->size, (void *)b->parts.count);
}

static void put_thing(builder *b, const thing *t) {
  uint64_t size = t->size ? t->size : weir__round_up(t->requested, WEIR__UNIT);
  if (!is_sound(t->address, size, WEIR__UNIT) || weir__rangemap_overlap(&b->blocks, t->address, size, NULL, NULL))
    return;
  thing *kept = append(b, &b->things, sizeof *kept);
  if (!kept)
    return;
  *kept = *t;
  b->has_failed |= !weir__rangemap_insert(&b->blocks, t->address, size, (void *)b->things.count);
}

/* Pages go, of whatever parts they are. */
static void take_pages(builder *b, uint64_t address, uint64_t size) {
  uint64_t base, length, end = address + size;
  void *found;
  if (!are_pages(address, size))
    return;
  while ((found = weir__rangemap_overlap(&b->memory, address, size, &base, &length)) && !b->has_failed) {
    part p = *part_number(b, found);
    if (p.is_fixed)
      return;
    weir__rangemap_remove(&b->memory, base);
    if (base < address) {
      p.address = base;
      p.size = address - base;
      put_part(b, &p);
    }
    if (base + length > end) {
      p.address = end;
      p.size = base + length - end;
      put_part(b, &p);
    }
  }
}

static void begin_at_end(builder *b, const weir__recording_device *device) {
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *s = &device->segments[i];
    put_part(b, &(part){.address = s->address,
                        .size = s->size,
                        .pool = s->pool,
                        .small = !s->is_large,
                        .is_fixed = !s->is_expandable,
                        .stream = s->stream});
    for (size_t k = 0; k < s->block_count; k++) {
      const weir__recording_block *block = &s->blocks[k];
      if (block->state != WEIR_BLOCK_INACTIVE)
        put_thing(b, &(thing){.address = block->address,
                              .size = block->size,
                              .requested = block->requested,
                              .stack = block->stack,
                              .is_waiting = block->state == WEIR_BLOCK_ACTIVE_PENDING_FREE});
    }
  }
}

/* A free block is used from its front. So where something is allocated, the block before it ends, if it is of the same segment:
 * up to 1 MiB may have been left on a large one, and since all of those are longer, there is only one to look at. */
static void learn_end(builder *b, uint64_t address) {
  uint64_t window = address < WEIR__SMALL_MAX ? address : WEIR__SMALL_MAX, base, size;
  void *found = window ? weir__rangemap_overlap(&b->blocks, address - window, window, &base, &size) : NULL;
  void *memory = weir__rangemap_find(&b->memory, address, NULL, NULL);
  if (!found || !memory || !part_number(b, memory)->is_fixed || part_number(b, memory)->small ||
      weir__rangemap_find(&b->memory, address - 1, NULL, NULL) != memory)
    return;
  thing *t = thing_number(b, found);
  if (!t->size && base + size < address)
    t->end = address;
}

static int64_t pool_of(const weir__recording_entry *e) {
  return e->pool != WEIR__RECORDING_NO_POOL ? (int64_t)e->pool : UNKNOWN;
}

static void go_back(builder *b, const weir__recording_entry *e, size_t number) {
  uint64_t base;
  void *found;
  switch (e->action) {
  case WEIR_TRACE_ALLOC:
    weir__rangemap_remove(&b->blocks, e->address);
    learn_end(b, e->address);
    found = weir__rangemap_find(&b->memory, e->address, NULL, NULL);
    if (found)
      part_number(b, found)->released = 0;
    break;
  case WEIR_TRACE_FREE_REQUESTED:
    found = weir__rangemap_find(&b->blocks, e->address, &base, NULL);
    if (found && base == e->address)
      thing_number(b, found)->is_waiting = false;
    else
      put_thing(b, &(thing){.address = e->address, .requested = e->size, .stack = e->stack});
    break;
  case WEIR_TRACE_FREE_COMPLETED:
    put_thing(b, &(thing){.address = e->address, .requested = e->size, .stack = e->stack, .is_waiting = true});
    break;
  case WEIR_TRACE_SEGMENT_ALLOC:
    weir__rangemap_remove(&b->memory, e->address);
    break;
  case WEIR_TRACE_SEGMENT_FREE: /* one of the small pool has one size, and no other has it */
    put_part(b, &(part){.address = e->address,
                        .size = e->size,
                        .pool = pool_of(e),
                        .small = e->size == WEIR__SMALL_SEGMENT,
                        .is_fixed = true,
                        .stream = e->stream,
                        .released = number + 1});
    break;
  case WEIR_TRACE_SEGMENT_MAP:
    take_pages(b, e->address, e->size);
    break;
  case WEIR_TRACE_SEGMENT_UNMAP:
    put_part(b, &(part){.address = e->address,
                        .size = e->size,
                        .pool = pool_of(e),
                        .small = e->size % b->settings->large_segment_size ? true : UNKNOWN,
                        .stream = e->stream});
    break;
  default:
    break;
  }
}

/* ---- Which pages belong together ---- */

static int by_address(const void *a, const void *b) {
  const part *x = a, *y = b;
  if (x->address != y->address)
    return x->address < y->address ? -1 : 1;
  return x->is_ghost - y->is_ghost;
}

/* All parts that are there, and pages that were mapped later: those tell where their segment begins, and whose it is. */
static void list_parts(builder *b, const weir__recording_device *device) {
  uint64_t base = 0, size = 0;
  for (const void *found; (found = weir__rangemap_at_or_after(&b->memory, base + size, &base, &size));) {
    part *p = append(b, &b->order, sizeof *p);
    if (!p)
      return;
    *p = *part_number(b, found);
  }
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    if (e->action != WEIR_TRACE_SEGMENT_MAP || !are_pages(e->address, e->size))
      continue;
    part *p = append(b, &b->order, sizeof *p);
    if (!p)
      return;
    *p = (part){.address = e->address,
                .size = e->size,
                .pool = pool_of(e),
                .small =
                    b->settings->large_segment_size == WEIR__SMALL_SEGMENT ? UNKNOWN : e->size == WEIR__SMALL_SEGMENT,
                .is_ghost = true,
                .stream = e->stream};
  }
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *s = &device->segments[i];
    part *p = s->is_expandable && are_pages(s->address, s->size) ? append(b, &b->order, sizeof *p) : NULL;
    if (p)
      *p = (part){.address = s->address,
                  .size = s->size,
                  .pool = s->pool,
                  .small = !s->is_large,
                  .is_ghost = true,
                  .stream = s->stream};
  }
  if (b->order.count)
    qsort(b->order.items, b->order.count, sizeof(part), by_address);
}

static uint64_t distance(const part *low, const part *high) {
  uint64_t end = low->address + low->size;
  return high->address > end ? high->address - end : 0;
}

/* Pages of one segment are no further apart than its reservation is long, which is 9/8 of the device's memory. */
static bool is_near(const builder *b, const part *low, const part *high) {
  return distance(low, high) / 9 * 8 < b->peak;
}

/* The nearest of one stream on either side, by class. */
typedef struct nearest {
  const part *of[2];
} nearest;

static const part *closer(const builder *b, const part *p, const part *found, const part *other) {
  const part *low = other && other->address < p->address ? other : p, *high = low == p ? other : p;
  if (!other || (p->small != UNKNOWN && p->small != other->small) || !is_near(b, low, high))
    return found;
  if (!found)
    return other;
  const part *found_low = found->address < p->address ? found : p, *found_high = found_low == p ? found : p;
  return distance(low, high) < distance(found_low, found_high) ? other : found;
}

/* What is not known of pages is taken from the nearest of their stream of which it is. Fixed segments whose pool is not known go
 * back in the history, so they are of the default pool: see offline/replay_plan.h. */
static void fill_in(builder *b) {
  size_t streams = b->snapshot->stream_count;
  part *parts = b->order.items;
  nearest *last = calloc(streams + 1, sizeof *last);
  const part **found = calloc(b->order.count + 1, sizeof *found);
  if (!last || !found)
    b->has_failed = true;
  for (int is_back = 0; is_back < 2 && !b->has_failed; is_back++) {
    memset(last, 0, streams * sizeof *last);
    for (size_t k = 0; k < b->order.count; k++) {
      size_t i = is_back ? b->order.count - 1 - k : k;
      const part *p = &parts[i];
      if (p->is_fixed || p->stream >= streams)
        continue;
      if (p->pool != UNKNOWN && p->small != UNKNOWN)
        last[p->stream].of[p->small] = p;
      else
        for (int small = 0; small < 2; small++)
          found[i] = closer(b, p, found[i], last[p->stream].of[small]);
    }
  }
  for (size_t i = 0; i < b->order.count && !b->has_failed; i++) {
    part *p = &parts[i];
    if (p->pool == UNKNOWN)
      p->pool = found[i] ? found[i]->pool : 0;
    if (p->small == UNKNOWN)
      p->small = found[i] ? found[i]->small : false;
  }
  free(last);
  free(found);
}

/* ---- The state ---- */

/* Of a file that contradicts itself a block may have less than was asked for: then it was asked for less. */
static void add_piece(builder *b, uint64_t address, uint64_t end, const thing *t, uint8_t state) {
  weir__state_block *piece = end > address ? append(b, &b->pieces, sizeof *piece) : NULL;
  uint64_t requested = t ? t->requested : 0;
  if (!piece)
    return;
  *piece = (weir__state_block){.address = address,
                               .size = end - address,
                               .requested = requested < end - address ? requested : end - address,
                               .event = WEIR__NO_ENTRY,
                               .stack = t ? t->stack : 0,
                               .state = state};
  if (state != WEIR__UNMAPPED)
    b->reserved += end - address;
}

static const thing *next_thing(const builder *b, uint64_t from) {
  const void *found = weir__rangemap_at_or_after(&b->blocks, from, NULL, NULL);
  return found ? thing_number(b, found) : NULL;
}

/* How long the block of an allocation is, if `room` is what there is up to the next one, or the end of the memory. */
static uint64_t block_bytes(const builder *b, const part *p, const thing *t, uint64_t room) {
  uint64_t size = t->size ? t->size : t->end ? t->end - t->address : 0;
  if (size)
    return size < room ? size : room;
  size = t->requested < WEIR__MOST_BYTES ? weir__round_bytes(b->settings, t->requested) : room;
  /* A large block of a fixed segment is not cut for a rest of up to 1 MiB, nor if it is too large to be cut at all. */
  bool is_cut = p->small || (b->settings->expandable_segments && !p->is_fixed) ||
                (size < b->settings->max_split_size && room > size && room - size > WEIR__SMALL_MAX);
  return is_cut && size < room ? size : room;
}

/* Blocks and holes of memory without gaps. What lies before the first block of a range of pages may be of one in the range
 * before: none is, since ranges that touch were put together. */
static void cut(builder *b, const part *p, uint64_t address, uint64_t end) {
  uint64_t at = address;
  for (const thing *t; (t = next_thing(b, at)) && t->address < end;) {
    const thing *after = next_thing(b, t->address + 1);
    uint64_t room = (after && after->address < end ? after->address : end) - t->address;
    add_piece(b, at, t->address, NULL, WEIR__FREE);
    at = t->address + block_bytes(b, p, t, room);
    add_piece(b, t->address, at, t, t->is_waiting ? WEIR__WAITING : WEIR__ALLOCATED);
  }
  add_piece(b, at, end, NULL, WEIR__FREE);
}

static bool is_same(const builder *b, const part *p, const part *next) {
  return !p->is_fixed && !next->is_fixed && p->stream == next->stream && p->pool == next->pool &&
         p->small == next->small && is_near(b, p, next);
}

/* A segment of parts [first, end): if none of them was there, there is none. An expandable one begins with the lowest page that
 * is seen of it. */
static void add_segment(builder *b, size_t first, size_t end) {
  const part *parts = b->order.items;
  size_t from = first, begin = b->pieces.count;
  while (from < end && parts[from].is_ghost)
    from++;
  if (from == end)
    return;
  const int64_t *pool = b->snapshot->pools[parts[from].pool].id;
  uint64_t at = parts[first].address;
  for (size_t i = from; i < end && !b->has_failed; i++) {
    if (parts[i].is_ghost)
      continue;
    uint64_t address = parts[i].address, stop = address + parts[i].size;
    for (; i + 1 < end && (parts[i + 1].is_ghost || parts[i + 1].address == stop); i++) /* pages that touch */
      if (!parts[i + 1].is_ghost)
        stop += parts[i + 1].size;
    add_piece(b, at, address, NULL, WEIR__UNMAPPED);
    cut(b, &parts[from], address, stop);
    at = stop;
  }
  weir__state_block *only = (weir__state_block *)b->pieces.items + begin;
  if (!b->has_failed && b->pieces.count == begin + 1 && only->state == WEIR__FREE && parts[from].released)
    only->event = parts[from].released - 1;
  if (!parts[from].is_fixed)
    b->pages += (at - parts[first].address) /
                (parts[from].small ? (uint64_t)WEIR__SMALL_SEGMENT : b->settings->large_segment_size);
  weir__state_segment *s = append(b, &b->segments, sizeof *s);
  if (s)
    *s = (weir__state_segment){.address = parts[first].address,
                               .size = at - parts[first].address,
                               .stream = b->snapshot->streams[parts[from].stream],
                               .pool = {pool[0], pool[1]},
                               .first = begin,
                               .count = b->pieces.count - begin,
                               .is_small = parts[from].small,
                               .is_expandable = !parts[from].is_fixed};
}

static void build(builder *b, const weir__recording_device *device) {
  list_parts(b, device);
  if (b->has_failed)
    return;
  fill_in(b);
  const part *parts = b->order.items;
  for (size_t first = 0, end; first < b->order.count && !b->has_failed; first = end) {
    for (end = first + 1; end < b->order.count && is_same(b, &parts[end - 1], &parts[end]);)
      end++;
    add_segment(b, first, end);
  }
}

/* Whether there was memory before the first event, and the most that there ever was. A file that does not list its segments
 * does not tell. */
static bool is_late(const weir__recording *snapshot, const weir__recording_device *device, uint64_t *peak) {
  uint64_t now = 0, end = 0;
  int64_t most = 0;
  if (snapshot->is_events_only)
    return false;
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    if (e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP)
      now += e->size;
    else if (e->action == WEIR_TRACE_SEGMENT_FREE || e->action == WEIR_TRACE_SEGMENT_UNMAP)
      now -= e->size;
    most = (int64_t)now > most ? (int64_t)now : most;
  }
  for (size_t i = 0; i < device->segment_count; i++)
    end += device->segments[i].size;
  *peak = end - now + (uint64_t)most;
  return (int64_t)(end - now) > 0;
}

weir_status weir__initial_state_make(const weir__recording *snapshot, const weir__recording_device *device,
                                     size_t first, const weir__settings *settings, weir__state *start) {
  builder b = {.snapshot = snapshot, .settings = settings};
  *start = (weir__state){0};
  if (device->start)
    return weir__state_copy(device->start, start);
  if (!is_late(snapshot, device, &b.peak))
    return WEIR_OK;
  begin_at_end(&b, device);
  for (size_t i = device->event_count; i-- > first && !b.has_failed;)
    go_back(&b, &device->events[i], i);
  build(&b, device);
  weir__rangemap_clear(&b.memory);
  weir__rangemap_clear(&b.blocks);
  free(b.parts.items);
  free(b.things.items);
  free(b.order.items);
  *start = (weir__state){.segments = b.segments.items,
                         .segment_count = b.segments.count,
                         .blocks = b.pieces.items,
                         .block_count = b.pieces.count,
                         .reserved = b.reserved};
  if (b.pages > MOST_PAGES) /* the check will show that it is missing */
    weir__state_clear(start);
  if (!b.has_failed)
    return WEIR_OK;
  weir__state_clear(start);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for what was there before the history");
}

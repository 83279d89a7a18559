#include "offline/replay/initial_state.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "base/array.h"
#include "base/base.h"
#include "base/rangemap.h"

/* Of a region. */
enum { UNKNOWN = -1 };

/* The most pages that are installed, mapped or not: more than any device has, and few enough for a hostile file. */
enum { MAX_PAGES = 1 << 18 };

/* Memory that came from the driver: a fixed segment, or pages of an expandable one that were mapped or listed together.
 * */
typedef struct region {
  uint64_t address, size;
  int64_t pool;  /* number in the recording, or UNKNOWN */
  int8_t small;  /* of the small pool, or UNKNOWN */
  bool is_fixed; /* a fixed segment; otherwise pages */
  bool is_ghost; /* pages that are mapped later in the history */
  uint16_t stream;
  size_t released; /* the event + 1 that frees a fixed segment from which nothing is allocated before; otherwise 0 */
} region;

/* An allocation that existed. */
typedef struct allocation {
  uint64_t address, size; /* of its block; 0 if not known */
  uint64_t requested;
  uint64_t end; /* of its block, if a later allocation showed it; otherwise 0 */
  uint32_t stack;
  bool is_waiting; /* freed, and still in use by another stream */
} allocation;

typedef struct list {
  void *items;
  size_t count, room;
} list;

typedef struct builder {
  const weir__recording *recording;
  const weir__settings *settings;
  list regions;                 /* region; all that were ever in the map */
  list allocations;             /* allocation; likewise */
  weir__rangemap memory;        /* regions that exist: number + 1 */
  weir__rangemap blocks;        /* allocations that exist: number + 1; as long as is known */
  uint64_t reserved, peak;      /* at the beginning, and at most */
  uint64_t pages;               /* of expandable segments, holes too */
  list segments, pieces, order; /* of the state: weir__state_segment and weir__state_block; regions by address */
  bool has_failed;              /* out of host memory */
} builder;

/* A new item, zeroed; NULL if out of host memory. */
static void *append(builder *b, list *l, size_t size) {
  if (!weir__array_reserve(&l->items, &l->room, l->count + 1, size)) {
    b->has_failed = true;
    return NULL;
  }
  return memset((char *)l->items + l->count++ * size, 0, size);
}

static region *region_number(const builder *b, const void *number) {
  return (region *)b->regions.items + (uintptr_t)number - 1;
}
static allocation *allocation_number(const builder *b, const void *number) {
  return (allocation *)b->allocations.items + (uintptr_t)number - 1;
}

/* ---- What was there ---- */

static bool is_sound(uint64_t address, uint64_t size, uint64_t unit) {
  return size && size < WEIR__STATE_MAX_REQUEST && address < UINT64_MAX - size && address % unit == 0 &&
         size % unit == 0;
}

static bool are_pages(uint64_t address, uint64_t size) { return is_sound(address, size, WEIR__PORT_SMALL_SEGMENT); }

/* If two overlap, the recording is damaged, and the existing one stays. */
static void put_region(builder *b, const region *p) {
  if (!is_sound(p->address, p->size, p->is_fixed ? WEIR__STATE_UNIT : WEIR__PORT_SMALL_SEGMENT) ||
      weir__rangemap_overlap(&b->memory, p->address, p->size, NULL, NULL))
    return;
  region *kept = append(b, &b->regions, sizeof *kept);
  if (!kept)
    return;
  *kept = *p;
  b->has_failed |= !weir__rangemap_insert(&b->memory, p->address, p->size, (void *)b->regions.count);
}

static void put_allocation(builder *b, const allocation *t) {
  uint64_t size = t->size ? t->size : weir__round_up(t->requested, WEIR__STATE_UNIT);
  if (!is_sound(t->address, size, WEIR__STATE_UNIT) || weir__rangemap_overlap(&b->blocks, t->address, size, NULL, NULL))
    return;
  allocation *kept = append(b, &b->allocations, sizeof *kept);
  if (!kept)
    return;
  *kept = *t;
  b->has_failed |= !weir__rangemap_insert(&b->blocks, t->address, size, (void *)b->allocations.count);
}

/* Removes pages from all regions that they belong to. */
static void take_pages(builder *b, uint64_t address, uint64_t size) {
  uint64_t base, length, end = address + size;
  void *found;
  if (!are_pages(address, size))
    return;
  while ((found = weir__rangemap_overlap(&b->memory, address, size, &base, &length)) && !b->has_failed) {
    region p = *region_number(b, found);
    if (p.is_fixed)
      return;
    weir__rangemap_remove(&b->memory, base);
    if (base < address) {
      p.address = base;
      p.size = address - base;
      put_region(b, &p);
    }
    if (base + length > end) {
      p.address = end;
      p.size = base + length - end;
      put_region(b, &p);
    }
  }
}

static void begin_at_end(builder *b, const weir__recording_device *device) {
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *s = &device->segments[i];
    put_region(b, &(region){.address = s->address,
                            .size = s->size,
                            .pool = s->pool,
                            .small = !s->is_large,
                            .is_fixed = !s->is_expandable,
                            .stream = s->stream});
    for (size_t k = 0; k < s->block_count; k++) {
      const weir__recording_block *block = &s->blocks[k];
      if (block->state != WEIR_BLOCK_INACTIVE)
        put_allocation(b, &(allocation){.address = block->address,
                                        .size = block->size,
                                        .requested = block->requested,
                                        .stack = block->stack,
                                        .is_waiting = block->state == WEIR_BLOCK_ACTIVE_PENDING_FREE});
    }
  }
}

/* A free block is used from its front, so the block before a new allocation in the same segment ends there. Up to 1 MiB
 * may be left unused at the end of a large block, and large blocks are longer than that, so only one can end there. */
static void learn_end(builder *b, uint64_t address) {
  uint64_t window = address < WEIR__PORT_SMALL_MAX ? address : WEIR__PORT_SMALL_MAX, base, size;
  void *found = window ? weir__rangemap_overlap(&b->blocks, address - window, window, &base, &size) : NULL;
  void *memory = weir__rangemap_find(&b->memory, address, NULL, NULL);
  if (!found || !memory || !region_number(b, memory)->is_fixed || region_number(b, memory)->small ||
      weir__rangemap_find(&b->memory, address - 1, NULL, NULL) != memory)
    return;
  allocation *t = allocation_number(b, found);
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
      region_number(b, found)->released = 0;
    break;
  case WEIR_TRACE_FREE_REQUESTED:
    found = weir__rangemap_find(&b->blocks, e->address, &base, NULL);
    if (found && base == e->address)
      allocation_number(b, found)->is_waiting = false;
    else
      put_allocation(b, &(allocation){.address = e->address, .requested = e->size, .stack = e->stack});
    break;
  case WEIR_TRACE_FREE_COMPLETED:
    put_allocation(b,
                   &(allocation){.address = e->address, .requested = e->size, .stack = e->stack, .is_waiting = true});
    break;
  case WEIR_TRACE_SEGMENT_ALLOC:
    weir__rangemap_remove(&b->memory, e->address);
    break;
  case WEIR_TRACE_SEGMENT_FREE: /* segments of the small pool have a size that no other has */
    put_region(b, &(region){.address = e->address,
                            .size = e->size,
                            .pool = pool_of(e),
                            .small = e->size == WEIR__PORT_SMALL_SEGMENT,
                            .is_fixed = true,
                            .stream = e->stream,
                            .released = number + 1});
    break;
  case WEIR_TRACE_SEGMENT_MAP:
    take_pages(b, e->address, e->size);
    break;
  case WEIR_TRACE_SEGMENT_UNMAP:
    put_region(b, &(region){.address = e->address,
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
  const region *x = a, *y = b;
  if (x->address != y->address)
    return x->address < y->address ? -1 : 1;
  return x->is_ghost - y->is_ghost;
}

/* Lists all regions that exist, and pages that were mapped later, which show where their segment begins and whose it
 * is. */
static void list_regions(builder *b, const weir__recording_device *device) {
  uint64_t base = 0, size = 0;
  for (const void *found; (found = weir__rangemap_at_or_after(&b->memory, base + size, &base, &size));) {
    region *p = append(b, &b->order, sizeof *p);
    if (!p)
      return;
    *p = *region_number(b, found);
  }
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    if (e->action != WEIR_TRACE_SEGMENT_MAP || !are_pages(e->address, e->size))
      continue;
    region *p = append(b, &b->order, sizeof *p);
    if (!p)
      return;
    *p = (region){.address = e->address,
                  .size = e->size,
                  .pool = pool_of(e),
                  .small = b->settings->large_segment_size == WEIR__PORT_SMALL_SEGMENT
                               ? UNKNOWN
                               : e->size == WEIR__PORT_SMALL_SEGMENT,
                  .is_ghost = true,
                  .stream = e->stream};
  }
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__recording_segment *s = &device->segments[i];
    region *p = s->is_expandable && are_pages(s->address, s->size) ? append(b, &b->order, sizeof *p) : NULL;
    if (p)
      *p = (region){.address = s->address,
                    .size = s->size,
                    .pool = s->pool,
                    .small = !s->is_large,
                    .is_ghost = true,
                    .stream = s->stream};
  }
  if (b->order.count)
    qsort(b->order.items, b->order.count, sizeof(region), by_address);
}

static uint64_t distance(const region *low, const region *high) {
  uint64_t end = low->address + low->size;
  return high->address > end ? high->address - end : 0;
}

/* Pages of one segment are no further apart than its reservation, which is 9/8 of the device's memory. */
static bool is_near(const builder *b, const region *low, const region *high) {
  return distance(low, high) / 9 * 8 < b->peak;
}

/* The nearest of one stream on either side, by class. */
typedef struct nearest {
  const region *of[2];
} nearest;

static const region *closer(const builder *b, const region *p, const region *found, const region *other) {
  const region *low = other && other->address < p->address ? other : p, *high = low == p ? other : p;
  if (!other || (p->small != UNKNOWN && p->small != other->small) || !is_near(b, low, high))
    return found;
  if (!found)
    return other;
  const region *found_low = found->address < p->address ? found : p, *found_high = found_low == p ? found : p;
  return distance(low, high) < distance(found_low, found_high) ? other : found;
}

/* Unknown pools and size classes of pages are those of the nearest known pages of their stream. Fixed segments of an
 * unknown pool are released in the history, so they belong to the default pool: see offline/replay/plan.h. */
static void fill_in(builder *b) {
  size_t streams = b->recording->stream_count;
  region *regions = b->order.items;
  nearest *last = calloc(streams + 1, sizeof *last);
  const region **found = calloc(b->order.count + 1, sizeof *found);
  if (!last || !found)
    b->has_failed = true;
  for (int is_back = 0; is_back < 2 && !b->has_failed; is_back++) {
    memset(last, 0, streams * sizeof *last);
    for (size_t k = 0; k < b->order.count; k++) {
      size_t i = is_back ? b->order.count - 1 - k : k;
      const region *p = &regions[i];
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
    region *p = &regions[i];
    if (p->pool == UNKNOWN)
      p->pool = found[i] ? found[i]->pool : 0;
    if (p->small == UNKNOWN)
      p->small = found[i] ? found[i]->small : false;
  }
  free(last);
  free(found);
}

/* ---- The state ---- */

/* In a recording that contradicts itself a block may be smaller than its request: then the request is cut. */
static void add_piece(builder *b, uint64_t address, uint64_t end, const allocation *t, uint8_t state) {
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
  if (state != WEIR__BLOCK_UNMAPPED)
    b->reserved += end - address;
}

static const allocation *next_allocation(const builder *b, uint64_t from) {
  const void *found = weir__rangemap_at_or_after(&b->blocks, from, NULL, NULL);
  return found ? allocation_number(b, found) : NULL;
}

/* The size of an allocation's block, if the next one, or the end of the memory, is `room` bytes away. */
static uint64_t block_bytes(const builder *b, const region *p, const allocation *t, uint64_t room) {
  uint64_t size = t->size ? t->size : t->end ? t->end - t->address : 0;
  if (size)
    return size < room ? size : room;
  size = t->requested < WEIR__STATE_MAX_REQUEST ? weir__port_round(b->settings, t->requested) : room;
  /* A large block of a fixed segment is not split for a remainder of up to 1 MiB, nor above max_split_size. */
  bool is_cut = p->small || (b->settings->expandable_segments && !p->is_fixed) ||
                (size < b->settings->max_split_size && room > size && room - size > WEIR__PORT_SMALL_MAX);
  return is_cut && size < room ? size : room;
}

/* Adds the blocks of contiguous memory. Ranges that touch were joined, so no block crosses their ends. */
static void cut(builder *b, const region *p, uint64_t address, uint64_t end) {
  uint64_t at = address;
  for (const allocation *t; (t = next_allocation(b, at)) && t->address < end;) {
    const allocation *after = next_allocation(b, t->address + 1);
    uint64_t room = (after && after->address < end ? after->address : end) - t->address;
    add_piece(b, at, t->address, NULL, WEIR_BLOCK_INACTIVE);
    at = t->address + block_bytes(b, p, t, room);
    add_piece(b, t->address, at, t, t->is_waiting ? WEIR_BLOCK_ACTIVE_PENDING_FREE : WEIR_BLOCK_ACTIVE_ALLOCATED);
  }
  add_piece(b, at, end, NULL, WEIR_BLOCK_INACTIVE);
}

static bool is_same(const builder *b, const region *p, const region *next) {
  return !p->is_fixed && !next->is_fixed && p->stream == next->stream && p->pool == next->pool &&
         p->small == next->small && is_near(b, p, next);
}

/* Adds the segment of regions [first, end), if any of them existed. An expandable one begins with its lowest page that
 * is ever seen. */
static void add_segment(builder *b, size_t first, size_t end) {
  const region *regions = b->order.items;
  size_t from = first, begin = b->pieces.count;
  while (from < end && regions[from].is_ghost)
    from++;
  if (from == end)
    return;
  const int64_t *pool = b->recording->pools[regions[from].pool].id;
  uint64_t at = regions[first].address;
  for (size_t i = from; i < end && !b->has_failed; i++) {
    if (regions[i].is_ghost)
      continue;
    uint64_t address = regions[i].address, stop = address + regions[i].size;
    for (; i + 1 < end && (regions[i + 1].is_ghost || regions[i + 1].address == stop); i++) /* adjacent pages */
      if (!regions[i + 1].is_ghost)
        stop += regions[i + 1].size;
    add_piece(b, at, address, NULL, WEIR__BLOCK_UNMAPPED);
    cut(b, &regions[from], address, stop);
    at = stop;
  }
  weir__state_block *only = (weir__state_block *)b->pieces.items + begin;
  if (!b->has_failed && b->pieces.count == begin + 1 && only->state == WEIR_BLOCK_INACTIVE && regions[from].released)
    only->event = regions[from].released - 1;
  if (!regions[from].is_fixed)
    b->pages += (at - regions[first].address) /
                (regions[from].small ? (uint64_t)WEIR__PORT_SMALL_SEGMENT : b->settings->large_segment_size);
  weir__state_segment *s = append(b, &b->segments, sizeof *s);
  if (s)
    *s = (weir__state_segment){.address = regions[first].address,
                               .size = at - regions[first].address,
                               .stream = b->recording->streams[regions[from].stream],
                               .pool = {pool[0], pool[1]},
                               .first = begin,
                               .count = b->pieces.count - begin,
                               .is_small = regions[from].small,
                               .is_expandable = !regions[from].is_fixed};
}

static void build(builder *b, const weir__recording_device *device) {
  list_regions(b, device);
  if (b->has_failed)
    return;
  fill_in(b);
  const region *regions = b->order.items;
  for (size_t first = 0, end; first < b->order.count && !b->has_failed; first = end) {
    for (end = first + 1; end < b->order.count && is_same(b, &regions[end - 1], &regions[end]);)
      end++;
    add_segment(b, first, end);
  }
}

/* Whether there was memory before the first event, and the peak of reserved memory. Not known without a list of
 * segments. */
static bool is_late(const weir__recording *recording, const weir__recording_device *device, uint64_t *peak) {
  uint64_t now = 0, end = 0;
  int64_t most = 0;
  if (recording->is_events_only)
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

weir_status weir__initial_state_make(const weir__recording *recording, const weir__recording_device *device,
                                     size_t first, const weir__settings *settings, weir__state *start) {
  builder b = {.recording = recording, .settings = settings};
  *start = (weir__state){0};
  if (device->start)
    return weir__state_copy(device->start, start);
  if (!is_late(recording, device, &b.peak))
    return WEIR_OK;
  begin_at_end(&b, device);
  for (size_t i = device->event_count; i-- > first && !b.has_failed;)
    go_back(&b, &device->events[i], i);
  build(&b, device);
  weir__rangemap_clear(&b.memory);
  weir__rangemap_clear(&b.blocks);
  free(b.regions.items);
  free(b.allocations.items);
  free(b.order.items);
  *start = (weir__state){.segments = b.segments.items,
                         .segment_count = b.segments.count,
                         .blocks = b.pieces.items,
                         .block_count = b.pieces.count,
                         .reserved = b.reserved};
  if (b.pages > MAX_PAGES) /* the checked replay will show that it is missing */
    weir__state_clear(start);
  if (!b.has_failed)
    return WEIR_OK;
  weir__state_clear(start);
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for what was there before the history");
}

#include "offline/prelude.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/heap.h"
#include "base/base.h"
#include "base/rangemap.h"

/* A segment or an allocation that was there. */
typedef struct thing {
  uint64_t address, size; /* of an allocation: of its block; 0: not known */
  uint64_t requested;
  uint64_t end; /* of an allocation, where something showed it; else 0 */
  uint32_t stack;
  uint16_t stream;
  bool is_small;
  bool is_waiting; /* freed, and not completed */
} thing;

typedef struct builder {
  thing *things;
  size_t thing_count, thing_room;
  weir__rangemap segments, blocks; /* number of the thing + 1; a block reaches as far as is known */
  weir__snapshot_event *events;
  size_t count, room;
  bool has_failed; /* no host memory */
} builder;

/* ---- What was there ---- */

static void put(builder *b, weir__rangemap *map, const thing *t) {
  if (b->thing_count == b->thing_room) {
    thing *grown = realloc(b->things, (2 * b->thing_room + 64) * sizeof *grown);
    if (!grown) {
      b->has_failed = true;
      return;
    }
    b->things = grown;
    b->thing_room = 2 * b->thing_room + 64;
  }
  uint64_t size = t->size ? t->size : weir__round_up(t->requested, WEIR__UNIT);
  /* Two at one place: the file is odd, and the one that is there stays. */
  if (weir__rangemap_insert(map, t->address, size ? size : 1, (void *)(uintptr_t)(b->thing_count + 1)))
    b->things[b->thing_count++] = *t;
}

/* The one that begins at an address. */
static thing *find(const builder *b, const weir__rangemap *map, uint64_t address) {
  uint64_t base = 0;
  void *found = weir__rangemap_find(map, address, &base, NULL);
  return found && base == address ? &b->things[(uintptr_t)found - 1] : NULL;
}

static thing *next(const builder *b, const weir__rangemap *map, uint64_t from) {
  void *found = weir__rangemap_at_or_after(map, from, NULL, NULL);
  return found ? &b->things[(uintptr_t)found - 1] : NULL;
}

/* What can be rebuilt: a segment of the small pool has one size. */
static bool is_sound(uint64_t address, uint64_t size, bool is_small) {
  return size && size < WEIR__MOST_BYTES && address < UINT64_MAX - size && (!is_small || size == WEIR__SMALL_SEGMENT);
}

static void begin_at_end(builder *b, const weir__snapshot_device *device) {
  for (size_t i = 0; i < device->segment_count; i++) {
    const weir__snapshot_segment *s = &device->segments[i];
    if (!s->is_expandable && is_sound(s->address, s->size, !s->is_large))
      put(b, &b->segments,
          &(thing){.address = s->address, .size = s->size, .stream = s->stream, .is_small = !s->is_large});
    for (size_t k = 0; k < s->block_count; k++) {
      const weir__snapshot_block *block = &s->blocks[k];
      if (block->state != WEIR__STATE_INACTIVE)
        put(b, &b->blocks,
            &(thing){.address = block->address,
                     .size = block->size,
                     .requested = block->requested,
                     .stack = block->stack,
                     .is_waiting = block->state == WEIR__STATE_PENDING_FREE});
    }
  }
}

/* A free block is used from its front. So where something is allocated, the block before it ends, if it is of the same segment:
 * up to 1 MiB may have been left on a large one, and since all of those are longer, there is only one to look at. */
static void learn_end(builder *b, uint64_t address) {
  uint64_t window = address < WEIR__SMALL_MAX ? address : WEIR__SMALL_MAX, base, size;
  void *found = window ? weir__rangemap_overlap(&b->blocks, address - window, window, &base, &size) : NULL;
  void *segment = weir__rangemap_find(&b->segments, address, NULL, NULL);
  if (!found || !segment || b->things[(uintptr_t)segment - 1].is_small ||
      weir__rangemap_find(&b->segments, address - 1, NULL, NULL) != segment)
    return;
  thing *t = &b->things[(uintptr_t)found - 1];
  if (!t->size && base + size < address)
    t->end = address;
}

static void go_back(builder *b, const weir__snapshot_event *e) {
  thing *t;
  switch (e->action) {
  case WEIR__ACTION_ALLOC:
    weir__rangemap_remove(&b->blocks, e->address);
    learn_end(b, e->address);
    break;
  case WEIR__ACTION_FREE_REQUESTED:
    t = find(b, &b->blocks, e->address);
    if (t)
      t->is_waiting = false;
    else
      put(b, &b->blocks, &(thing){.address = e->address, .requested = e->size, .stack = e->stack});
    break;
  case WEIR__ACTION_FREE_COMPLETED:
    put(b, &b->blocks, &(thing){.address = e->address, .requested = e->size, .stack = e->stack, .is_waiting = true});
    break;
  case WEIR__ACTION_SEGMENT_ALLOC:
    weir__rangemap_remove(&b->segments, e->address);
    break;
  case WEIR__ACTION_SEGMENT_FREE:
    if (is_sound(e->address, e->size, false))
      put(b, &b->segments,
          &(thing){
              .address = e->address, .size = e->size, .stream = e->stream, .is_small = e->size == WEIR__SMALL_SEGMENT});
    break;
  default:
    break;
  }
}

/* ---- Events that lead there ---- */

static void emit(builder *b, uint8_t action, const thing *segment, uint64_t address, uint64_t size, uint32_t stack) {
  if (b->count == b->room) {
    weir__snapshot_event *grown = realloc(b->events, (2 * b->room + 256) * sizeof *grown);
    if (!grown) {
      b->has_failed = true;
      return;
    }
    b->events = grown;
    b->room = 2 * b->room + 256;
  }
  b->events[b->count++] = (weir__snapshot_event){.address = address,
                                                 .size = size,
                                                 .stack = stack,
                                                 .pool = WEIR__SNAPSHOT_NO_POOL,
                                                 .stream = segment->stream,
                                                 .action = action};
}

static void emit_free(builder *b, const thing *segment, uint64_t address, uint64_t size) {
  emit(b, WEIR__ACTION_FREE_REQUESTED, segment, address, size, 0);
  emit(b, WEIR__ACTION_FREE_COMPLETED, segment, address, size, 0);
}

/* Something that holds a gap open, or, once all else is in place, lets it go: in pieces that the pool serves. */
static void fill_gap(builder *b, const thing *segment, uint64_t from, uint64_t to, bool is_end) {
  while (from < to) {
    uint64_t size = segment->is_small && to - from > WEIR__SMALL_MAX ? WEIR__SMALL_MAX : to - from;
    if (is_end)
      emit_free(b, segment, from, size);
    else
      emit(b, WEIR__ACTION_ALLOC, segment, from, size, 0);
    from += size;
  }
}

/* Cuts a segment into its blocks and the gaps between them, from the front; at the end the gaps are let go. All other segments
 * are full meanwhile, so each piece comes to lie behind the one before. */
static void cut(builder *b, const thing *segment, bool is_end) {
  uint64_t at = segment->address, end = segment->address + segment->size;
  for (const thing *t; (t = next(b, &b->blocks, at)) && t->address < end;) {
    const thing *after = next(b, &b->blocks, t->address + 1);
    uint64_t room = (after && after->address < end ? after->address : end) - t->address;
    uint64_t size = t->size ? t->size : t->end ? t->end - t->address : weir__round_up(t->requested, WEIR__UNIT);
    /* A rest of up to 1 MiB is not cut off a large block. */
    if (!size || size > room || (!segment->is_small && room - size <= WEIR__SMALL_MAX && !t->size))
      size = room;
    fill_gap(b, segment, at, t->address, is_end);
    if (!is_end)
      emit(b, WEIR__ACTION_ALLOC, segment, t->address,
           weir__round_up(t->requested, WEIR__UNIT) == size ? t->requested : size, t->stack);
    else if (t->is_waiting)
      emit(b, WEIR__ACTION_FREE_REQUESTED, segment, t->address, t->requested, t->stack);
    at = t->address + size;
  }
  fill_gap(b, segment, at, end, is_end);
}

/* A segment is made by a request for all of it, or for its two halves. */
static void make_segment(builder *b, const thing *segment) {
  uint64_t piece = segment->is_small ? WEIR__SMALL_MAX : segment->size;
  emit(b, WEIR__ACTION_SEGMENT_ALLOC, segment, segment->address, segment->size, 0);
  for (uint64_t at = 0; at < segment->size; at += piece)
    emit(b, WEIR__ACTION_ALLOC, segment, segment->address + at, piece, 0);
  for (uint64_t at = 0; at < segment->size; at += piece)
    emit_free(b, segment, segment->address + at, piece);
}

static void build(builder *b, weir__prelude *prelude) {
  for (int is_end = 0; is_end < 2; is_end++)
    for (uint64_t from = 0;;) {
      const thing *segment = next(b, &b->segments, from);
      if (!segment || b->has_failed)
        break;
      thing copy = *segment;
      from = copy.address + 1;
      if (!is_end) {
        prelude->segment_count++;
        make_segment(b, &copy);
      }
      cut(b, &copy, is_end);
    }
  prelude->block_count = weir__rangemap_count(&b->blocks);
  prelude->event_count = b->count;
}

void weir__prelude_clear(weir__prelude *prelude) {
  if (prelude->snapshot.devices) {
    free(prelude->snapshot.devices);
    free(prelude->snapshot.events);
  }
  *prelude = (weir__prelude){0};
}

weir_status weir__prelude_make(const weir__snapshot *snapshot, int number, weir__prelude *prelude) {
  const weir__snapshot_device *device = &snapshot->devices[number];
  builder b = {0};
  *prelude = (weir__prelude){0};
  begin_at_end(&b, device);
  for (size_t i = device->event_count; i-- > 0 && !b.has_failed;)
    go_back(&b, &device->events[i]);
  build(&b, prelude);
  weir__snapshot_device *devices = malloc(snapshot->device_count * sizeof *devices);
  weir__snapshot_event *events =
      b.has_failed ? NULL : realloc(b.events, (b.count + device->event_count + 1) * sizeof *events);
  b.has_failed |= !devices || !events;
  if (!b.has_failed) {
    memcpy(devices, snapshot->devices, snapshot->device_count * sizeof *devices);
    memcpy(events + b.count, device->events, device->event_count * sizeof *events);
    devices[number].events = events;
    devices[number].event_count += b.count;
    prelude->snapshot = *snapshot;
    prelude->snapshot.devices = devices;
    prelude->snapshot.events = events;
  } else {
    free(devices);
    free(events ? events : b.events);
  }
  weir__rangemap_clear(&b.segments);
  weir__rangemap_clear(&b.blocks);
  free(b.things);
  if (!b.has_failed)
    return WEIR_OK;
  *prelude = (weir__prelude){0};
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no host memory for what was there before the history");
}

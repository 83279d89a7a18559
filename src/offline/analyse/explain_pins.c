/*
 * Pins: the live blocks in the way. There are two ways to make room, a hole in a segment that the request may use, or
 * segments that could be released. The one with fewer live bytes is reported.
 */
#include <stdlib.h>

#include "alloc/replay_port.h"
#include "offline/analyse/explain_parts.h"

static void add_block(weir__pin *pin, const weir__state_block *b) {
  pin->pinned += b->size;
  pin->count++;
  size_t at = pin->block_count < WEIR__PIN_BLOCKS ? pin->block_count++ : WEIR__PIN_BLOCKS - 1;
  if (pin->count > WEIR__PIN_BLOCKS && b->size <= pin->blocks[at].size)
    return;
  for (; at > 0 && pin->blocks[at - 1].size < b->size; at--)
    pin->blocks[at] = pin->blocks[at - 1];
  pin->blocks[at] = (weir__explained_block){b->address, b->size, b->requested, b->event, b->stack};
}

static void fill_pin(const weir__state *state, const weir__state_segment *s, size_t from, size_t to, weir__pin *pin) {
  *pin = (weir__pin){.segment = s->address, .bytes = s->size};
  for (size_t i = s->first; i < s->first + s->count; i++)
    if (state->blocks[i].state == WEIR_BLOCK_INACTIVE)
      pin->free += state->blocks[i].size;
  for (size_t i = from; i < to; i++)
    if (weir__state_is_active(&state->blocks[i]))
      add_block(pin, &state->blocks[i]);
}

/* The run of blocks in a segment that has at least `bytes` bytes and the fewest live ones. false if there is none. */
static bool best_run(const weir__state *state, const weir__state_segment *s, uint64_t bytes, size_t *from, size_t *to,
                     uint64_t *live) {
  uint64_t length = 0, active = 0;
  size_t begin = s->first, end = s->first + s->count;
  bool found = false;
  for (size_t i = begin; i < end; i++) {
    const weir__state_block *b = &state->blocks[i];
    if (b->state == WEIR__BLOCK_UNMAPPED) {
      length = active = 0;
      begin = i + 1;
      continue;
    }
    length += b->size;
    active += weir__state_is_active(b) ? b->size : 0;
    while (begin < i && length - state->blocks[begin].size >= bytes) {
      length -= state->blocks[begin].size;
      active -= weir__state_is_active(&state->blocks[begin]) ? state->blocks[begin].size : 0;
      begin++;
    }
    if (length >= bytes && (!found || active < *live)) {
      found = true;
      *live = active;
      *from = begin;
      *to = i + 1;
    }
  }
  return found;
}

typedef struct candidate {
  size_t segment, from, to; /* blocks */
  uint64_t live, size;
} candidate;

static int by_live(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  return x->live != y->live ? (x->live > y->live) - (x->live < y->live)
                            : (x->segment > y->segment) - (x->segment < y->segment);
}

/* By live bytes in proportion to the size. */
static int by_part(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  double p = (double)x->live / (double)x->size, q = (double)y->live / (double)y->size;
  return p != q ? (p > q) - (p < q) : (x->segment > y->segment) - (x->segment < y->segment);
}

static void keep(const weir__state *state, const candidate *c, size_t count, weir__explanation *x) {
  x->pin_count = count < WEIR__PINS ? count : WEIR__PINS;
  for (size_t i = 0; i < x->pin_count; i++)
    fill_pin(state, &state->segments[c[i].segment], c[i].from, c[i].to, &x->pins[i]);
}

/* Segments that could serve the request. Full ones do not count. */
static size_t find_runs(const weir__state *state, const weir__seeker *seeker, uint64_t bytes, candidate *out) {
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    candidate c = {.segment = i, .size = state->segments[i].size};
    if (weir__may_get(seeker, &state->segments[i]) &&
        best_run(state, &state->segments[i], bytes, &c.from, &c.to, &c.live) && c.live < bytes)
      out[count++] = c;
  }
  qsort(out, count, sizeof *out, by_live);
  return count;
}

/* Segments that could be released: fixed ones of the default pool with free blocks. */
static size_t find_segments(const weir__state *state, candidate *out) {
  size_t count = 0;
  for (size_t i = 0; i < state->segment_count; i++) {
    const weir__state_segment *s = &state->segments[i];
    candidate c = {i, s->first, s->first + s->count, 0, s->size};
    for (size_t k = c.from; k < c.to; k++)
      c.live += weir__state_is_active(&state->blocks[k]) ? state->blocks[k].size : 0;
    if (!s->is_expandable && !s->pool[0] && !s->pool[1] && c.live && c.live < s->size)
      out[count++] = c;
  }
  qsort(out, count, sizeof *out, by_part);
  return count;
}

weir_status weir__find_pins(const weir__state *state, const weir__seeker *seeker, weir__explanation *x) {
  candidate *runs = calloc(2 * state->segment_count + 2, sizeof *runs);
  if (!runs)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu segments", state->segment_count);
  candidate *back = runs + state->segment_count + 1;
  size_t run_count = find_runs(state, seeker, x->rounded, runs), back_count = find_segments(state, back);
  uint64_t missing = x->missing_max;
  uint64_t room = 0, live = 0;
  size_t used = 0;
  while (used < back_count && room < missing) {
    room += back[used].size;
    live += back[used++].live;
  }
  bool goes_back = missing && room >= missing;
  if (run_count && (!goes_back || runs[0].live <= live)) {
    x->pins_serve = true;
    keep(state, runs, run_count, x);
  } else if (goes_back) {
    keep(state, back, used, x);
    x->pin_segments = used;
    x->pin_bytes = live;
    x->pin_room = room;
    for (size_t i = 0; i < used; i++)
      for (size_t k = back[i].from; k < back[i].to; k++)
        x->pin_blocks += weir__state_is_active(&state->blocks[k]);
  }
  free(runs);
  return WEIR_OK;
}

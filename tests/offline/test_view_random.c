/*
 * View data of random histories, compared with the state that the generator had after each entry; and of histories that
 * no program can have, which must neither crash nor take long.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/view_reader.h"
#include "support/length.h"
#include "support/random.h"

enum {
  UNIT = 512,
  UNITS = 256,
  FIXED = 12,     /* segments of SEGMENT units, side by side */
  SEGMENT = 16,   /* units */
  PAGE = 4,       /* units; what is behind the segments is an expandable one */
  ENTRIES = 1500, /* so that there are three levels */
  STREAMS = 3,
  NEVER = 1 << 30
};
static const uint64_t base = 0x7f4000000000;

typedef struct block {
  uint64_t size;
  int first, units, stream;
  int begin, freed, end;
} block;

typedef struct world {
  uint64_t random;
  weir__recording_entry entries[ENTRIES];
  int count;
  block blocks[ENTRIES];
  int block_count;
  bool reserved[UNITS];
  int user[UNITS]; /* of each unit: a block + 1 */
  uint64_t reserved_then[ENTRIES], hole_then[ENTRIES];
} world;

static int pick(world *w, int below) { return (int)(next_random(&w->random) % (uint64_t)below); }

/* ---- The generator ---- */

/* No hole goes from one fixed segment to the next. */
static uint64_t largest_hole(const world *w) {
  int best = 0, run = 0;
  for (int i = 0; i < UNITS; i++) {
    if (i <= FIXED * SEGMENT && i % SEGMENT == 0)
      run = 0;
    run = w->reserved[i] && !w->user[i] ? run + 1 : 0;
    best = run > best ? run : best;
  }
  return (uint64_t)best * UNIT;
}

static void enter(world *w, uint8_t action, int first, uint64_t size, int stream) {
  uint64_t reserved = 0;
  for (int i = 0; i < UNITS; i++)
    reserved += w->reserved[i] ? UNIT : 0;
  w->reserved_then[w->count] = reserved;
  w->hole_then[w->count] = largest_hole(w);
  w->entries[w->count++] = (weir__recording_entry){
      .action = action, .address = base + (uint64_t)first * UNIT, .size = size, .stream = (uint16_t)stream, .pool = 0};
}

static bool is_free(const world *w, int first, int units, bool reserved) {
  for (int i = first; i < first + units; i++)
    if (i >= UNITS || w->user[i] || w->reserved[i] != reserved)
      return false;
  return true;
}

static void change_segment(world *w) {
  int first = pick(w, UNITS);
  bool is_fixed = first < FIXED * SEGMENT;
  int units = is_fixed ? SEGMENT : PAGE * (1 + pick(w, 4));
  first -= first % (is_fixed ? SEGMENT : PAGE);
  bool reserve = !w->reserved[first];
  if (!is_free(w, first, units, !reserve))
    return;
  for (int i = first; i < first + units; i++)
    w->reserved[i] = reserve;
  enter(w,
        is_fixed ? (reserve ? WEIR_TRACE_SEGMENT_ALLOC : WEIR_TRACE_SEGMENT_FREE)
                 : (reserve ? WEIR_TRACE_SEGMENT_MAP : WEIR_TRACE_SEGMENT_UNMAP),
        first, (uint64_t)units * UNIT, 0);
}

static void allocate(world *w) {
  int first = pick(w, UNITS), units = 1 + pick(w, 10), end = first + units;
  bool crosses = first < FIXED * SEGMENT && (end - 1) / SEGMENT != first / SEGMENT;
  if (crosses || !is_free(w, first, units, true))
    return;
  block *b = &w->blocks[w->block_count++];
  *b = (block){.size = (uint64_t)units * UNIT - (uint64_t)pick(w, UNIT),
               .first = first,
               .units = units,
               .stream = pick(w, STREAMS),
               .begin = w->count,
               .freed = NEVER,
               .end = NEVER};
  for (int i = first; i < end; i++)
    w->user[i] = w->block_count;
  enter(w, WEIR_TRACE_ALLOC, first, b->size, b->stream);
}

static void complete(world *w, block *b) {
  b->end = w->count;
  for (int i = b->first; i < b->first + b->units; i++)
    w->user[i] = 0;
  enter(w, WEIR_TRACE_FREE_COMPLETED, b->first, b->size, b->stream);
}

static void release(world *w) {
  int unit = pick(w, UNITS);
  block *b = w->user[unit] ? &w->blocks[w->user[unit] - 1] : NULL;
  if (!b)
    return;
  if (b->freed == NEVER) {
    b->freed = w->count;
    enter(w, WEIR_TRACE_FREE_REQUESTED, b->first, b->size, b->stream);
    if (w->count == ENTRIES || pick(w, 3) == 0)
      return;
  }
  complete(w, b);
}

static world *make_world(uint64_t seed) {
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  w->random = seed;
  while (w->count < ENTRIES) {
    int kind = pick(w, 16);
    if (kind == 0)
      change_segment(w);
    else if (kind == 1 && pick(w, 20) == 0)
      enter(w, WEIR_TRACE_OOM, 0, 1 << 20, 0);
    else if (kind < 9)
      allocate(w);
    else
      release(w);
  }
  return w;
}

/* ---- As a recording ---- */

typedef struct made {
  weir__recording recording;
  weir__recording_device device;
  int64_t streams[STREAMS];
  weir__recording_pool pool;
  weir__recording_stack stack;
  weir__recording_remark remark;
  weir__string text;
} made;

static void make_recording(made *m, const weir__recording_entry *entries, size_t count) {
  *m = (made){.device = {.events = entries, .event_count = count}};
  m->text.text = "";
  for (int i = 0; i < STREAMS; i++)
    m->streams[i] = i;
  m->recording = (weir__recording){.devices = &m->device,
                                   .device_count = 1,
                                   .has_history = true,
                                   .streams = m->streams,
                                   .stream_count = STREAMS,
                                   .pools = &m->pool,
                                   .pool_count = 1,
                                   .stacks = &m->stack,
                                   .stack_count = 1,
                                   .remarks = &m->remark,
                                   .remark_count = 1,
                                   .strings = {.items = &m->text, .count = 1}};
}

/* ---- Comparison ---- */

static bool is_allocated(const block *b, int entry) { return b->begin <= entry && entry < b->freed; }

static bool is_pending(const block *b, int entry) {
  return b->freed <= entry && entry < b->end && b->end - b->freed > 1;
}

static void check_counters(const world *w, const weir__view_data *data, const char *view) {
  static uint64_t values[4][ENTRIES];
  for (int i = 0; i < ENTRIES; i++) {
    values[0][i] = values[3][i] = 0;
    values[1][i] = w->reserved_then[i];
    values[2][i] = w->hole_then[i];
    for (int k = 0; k < w->block_count; k++) {
      values[0][i] += is_allocated(&w->blocks[k], i) ? w->blocks[k].size : 0;
      values[3][i] += is_pending(&w->blocks[k], i) ? w->blocks[k].size : 0;
    }
  }
  for (const char *level = json_first(json_get(json_get(view, "counters"), "levels")); level;
       level = json_next(level)) {
    size_t size, span = number_of(level, "span"), columns = number_of(level, "columns");
    const unsigned char *bytes = chunk_of(data, level, &size);
    for (size_t c = 0; c < columns; c++)
      for (size_t k = 0; k < 4; k++) {
        double least = 1e300, most = 0;
        for (size_t i = c * span; i < (c + 1) * span && i < ENTRIES; i++) {
          least = (double)values[k][i] < least ? (double)values[k][i] : least;
          most = (double)values[k][i] > most ? (double)values[k][i] : most;
        }
        if (get_double(bytes, 2 * k * columns + c) != least || get_double(bytes, (2 * k + 1) * columns + c) != most)
          fail_msg("counter %zu, span %zu, column %zu: %.0f to %.0f instead of %.0f to %.0f", k, span, c,
                   get_double(bytes, 2 * k * columns + c), get_double(bytes, (2 * k + 1) * columns + c), least, most);
      }
  }
}

/* The finest columns have one entry each. */
static void check_streams(const world *w, const weir__view_data *data, const char *view) {
  const char *group = json_first(json_get(view, "groups"));
  while (!json_is(json_get(group, "by"), "stream"))
    group = json_next(group);
  const char *level = json_first(json_get(group, "levels"));
  size_t size, columns = number_of(level, "columns"), n = 0;
  const unsigned char *bytes = chunk_of(data, level, &size);
  assert_int_equal(number_of(level, "span"), 1);
  for (const char *key = json_first(json_get(group, "keys")); key; key = json_next(key), n++)
    for (int i = 0; i < ENTRIES; i++) {
      double sum = 0;
      for (int k = 0; k < w->block_count; k++)
        if (is_allocated(&w->blocks[k], i) && w->blocks[k].stream == (int)json_number(key))
          sum += (double)w->blocks[k].size;
      if (sum != get_double(bytes, n * columns + (size_t)i))
        fail_msg("stream %d after entry %d: %.0f instead of %.0f", (int)json_number(key), i,
                 get_double(bytes, n * columns + (size_t)i), sum);
    }
  assert_int_equal(n, STREAMS);
}

static void check_blocks(const world *w, const weir__view_data *data, const char *view) {
  size_t count;
  drawn_block *blocks = read_blocks(data, view, &count);
  assert_int_equal(count, w->block_count);
  for (size_t i = 0; i < count; i++) {
    const block *b = NULL;
    for (int k = 0; k < w->block_count && !b; k++)
      b = w->blocks[k].begin == (int)blocks[i].x0 ? &w->blocks[k] : NULL;
    assert_non_null(b);
    assert_true(address_of_y(view, blocks[i].y) == base + (uint64_t)b->first * UNIT);
    assert_int_equal(blocks[i].units, b->units);
    assert_int_equal(blocks[i].slack, (uint64_t)b->units * UNIT - b->size);
    assert_int_equal(blocks[i].duration, b->end == NEVER ? UINT32_MAX : (uint32_t)(b->end - b->begin));
    assert_int_equal(blocks[i].stream, b->stream);
  }
  free(blocks);
}

TEST(random_histories_match_their_states) {
  for (uint64_t seed = 1; seed <= (uint64_t)repetitions(12, 200); seed++) {
    world *w = make_world(seed);
    made m;
    make_recording(&m, w->entries, ENTRIES);
    weir__view_data data = make_view(&m.recording, 0);
    const char *view = recording_of(&data, 0);
    check_counters(w, &data, view);
    check_streams(w, &data, view);
    check_blocks(w, &data, view);
    weir__view_clear(&data);
    free(w);
  }
}

/* ---- What no program can have ---- */

static uint64_t absurd(uint64_t *random) {
  uint64_t value = next_random(random);
  switch (next_random(random) % 8) {
  case 0:
    return value;
  case 1:
    return UINT64_MAX - value % 4096;
  case 2:
    return 1ull << value % 64;
  case 3:
    return value % 3;
  default:
    return 0x7f0000000000 + value % 64 * 4096 + (value >> 32) % 3;
  }
}

static void check_absurd(const weir__recording_entry *entries, size_t count, size_t most_blocks) {
  made m;
  make_recording(&m, entries, count);
  weir__view_data data = make_view(&m.recording, most_blocks);
  const char *view = recording_of(&data, 0);
  uint64_t height = number_of(view, "height");
  size_t stored;
  drawn_block *blocks = read_blocks(&data, view, &stored);
  for (size_t i = 0; i < stored; i++)
    assert_true(blocks[i].units && (uint64_t)blocks[i].y + blocks[i].units <= height);
  assert_true(stored <= number_of(json_get(view, "blocks"), "total"));
  free(blocks);
  weir__view_clear(&data);
}

TEST(absurd_histories_are_drawn) {
  enum { COUNT = 2000 };
  weir__recording_entry *entries = calloc(COUNT, sizeof *entries);
  uint64_t random = 3;
  assert_non_null(entries);
  for (int round = 0; round < repetitions(40, 500); round++) {
    for (size_t i = 0; i < COUNT; i++)
      entries[i] = (weir__recording_entry){.action = (uint8_t)(next_random(&random) % (WEIR__ACTION_UNKNOWN + 1)),
                                           .address = absurd(&random),
                                           .size = absurd(&random),
                                           .time_us = weir__recording_time((int64_t)absurd(&random)),
                                           .pool = next_random(&random) % 2 ? 0 : WEIR__RECORDING_NO_POOL,
                                           .stream = (uint16_t)(next_random(&random) % STREAMS)};
    check_absurd(entries, (size_t)(round % 2 ? COUNT : round), round % 3 ? 0 : 50);
  }
  free(entries);
}

/* Many large ranges that all overlap, so that each covers all others. */
TEST(overlapping_lives_take_no_longer) {
  enum { COUNT = 60000 };
  weir__recording_entry *entries = calloc(COUNT, sizeof *entries);
  assert_non_null(entries);
  for (size_t i = 0; i < COUNT; i++)
    entries[i] = (weir__recording_entry){.action = i % 2 ? WEIR_TRACE_ALLOC : WEIR_TRACE_SEGMENT_ALLOC,
                                         .address = 0x7f0000000000 + i * 1024,
                                         .size = 1ull << 39};
  check_absurd(entries, COUNT, 100);
  free(entries);
}

TEST(nothing_is_an_empty_view) { check_absurd(NULL, 0, 0); }

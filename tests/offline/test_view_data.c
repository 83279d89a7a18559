/*
 * View data of real recordings, read back and compared with a plain computation from the lives of blocks.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/lives.h"
#include "offline/analyse/summary.h"
#include "offline/load.h"
#include "offline/view_reader.h"
#include "support/length.h"
#include "support/random.h"

#ifdef WEIR_HAVE_ZLIB
#include <zlib.h>
#endif

enum { COUNTERS = 4, ALLOCATED = 0, RESERVED = 1, HOLE = 2, PENDING = 3 };

typedef struct fixture {
  weir__recording *recording;
  weir__lives lives;
  weir__view_data data;
  const char *view; /* of the recording, in the index */
  size_t entries;
} fixture;

static fixture open_trace(const char *name, size_t most_blocks) {
  char path[128];
  fixture f;
  snprintf(path, sizeof path, "traces/%s", name);
  f.recording = load(path);
  assert_int_equal(weir__lives_make(f.recording, 0, &f.lives), WEIR_OK);
  f.data = make_view(f.recording, most_blocks);
  f.view = recording_of(&f.data, 0);
  f.entries = f.recording->devices[0].event_count;
  return f;
}

static void close_trace(fixture *f) {
  weir__view_clear(&f->data);
  weir__lives_clear(&f->lives);
  weir__recording_free(f->recording);
}

static uint64_t end_of(const fixture *f, uint32_t end) { return end == WEIR__LIFE_OPEN ? f->entries : end; }

/* The next entry completes the free of a block that waits for nothing. */
static bool is_waiting(const weir__life *b) {
  return b->freed != WEIR__LIFE_OPEN && (b->end == WEIR__LIFE_OPEN || b->end > b->freed + 1);
}

/* ---- Counters ---- */

/* Allocated, reserved and pending bytes after each entry. */
static void follow(const fixture *f, uint64_t *values[COUNTERS]) {
  for (int k = 0; k < COUNTERS; k++) {
    values[k] = calloc(f->entries + 1, sizeof *values[k]);
    assert_non_null(values[k]);
  }
  for (size_t i = 0; i < f->lives.block_count; i++) { /* as differences first */
    const weir__life *b = &f->lives.blocks[i];
    uint64_t freed = end_of(f, b->freed), end = end_of(f, b->end);
    values[ALLOCATED][b->begin] += b->size;
    values[ALLOCATED][freed] -= b->size;
    if (is_waiting(b)) {
      values[PENDING][freed] += b->size;
      values[PENDING][end] -= b->size;
    }
  }
  for (size_t i = 0; i < f->lives.segment_count; i++) {
    const weir__segment_life *s = &f->lives.segments[i];
    values[RESERVED][s->begin] += s->size;
    values[RESERVED][end_of(f, s->end)] -= s->size;
  }
  for (int k = 0; k < COUNTERS; k++)
    for (size_t i = 1; i < f->entries; i++)
      values[k][i] += values[k][i - 1];
}

static void check_level(const fixture *f, const char *level, uint64_t *values[COUNTERS]) {
  size_t size = 0, span = number_of(level, "span"), columns = number_of(level, "columns");
  const unsigned char *bytes = chunk_of(&f->data, level, &size);
  assert_int_equal(size, 2 * COUNTERS * columns * sizeof(double));
  assert_int_equal(columns, (f->entries + span - 1) / span);
  for (size_t c = 0; c < columns; c++)
    for (size_t k = 0; k < COUNTERS; k++) {
      if (k == HOLE)
        continue;
      uint64_t least = UINT64_MAX, most = 0;
      for (size_t i = c * span; i < (c + 1) * span && i < f->entries; i++) {
        least = values[k][i] < least ? values[k][i] : least;
        most = values[k][i] > most ? values[k][i] : most;
      }
      if (get_double(bytes, 2 * k * columns + c) != (double)least ||
          get_double(bytes, (2 * k + 1) * columns + c) != (double)most)
        fail_msg("counter %zu, span %zu, column %zu: %.0f to %.0f instead of %.0f to %.0f", k, span, c,
                 get_double(bytes, 2 * k * columns + c), get_double(bytes, (2 * k + 1) * columns + c), (double)least,
                 (double)most);
    }
}

typedef struct range {
  uint64_t begin, end;
  bool is_wall; /* a segment with its borders; otherwise a block */
} range;

static int by_begin(const void *a, const void *b) {
  const range *x = a, *y = b;
  return (x->begin > y->begin) - (x->begin < y->begin);
}

/* The largest hole after an entry: what segments have between blocks. */
static uint64_t find_hole(const fixture *f, const drawn_block *blocks, size_t count, size_t entry) {
  uint64_t largest = 0;
  range *used = malloc((count + 1) * sizeof *used), *segments = malloc((f->lives.segment_count + 1) * sizeof *segments);
  size_t used_count = 0, segment_count = 0;
  assert_true(used && segments);
  for (size_t i = 0; i < count; i++)
    if (blocks[i].x0 <= entry && (blocks[i].duration == UINT32_MAX || blocks[i].x0 + blocks[i].duration > entry)) {
      uint64_t address = address_of_y(f->view, blocks[i].y);
      used[used_count++] = (range){address, address + blocks[i].units * 512ull, false};
    }
  for (size_t i = 0; i < f->lives.segment_count; i++) {
    const weir__segment_life *s = &f->lives.segments[i];
    if (s->begin <= entry && end_of(f, s->end) > entry)
      segments[segment_count++] = (range){s->address, s->address + s->size, !s->is_expandable};
  }
  qsort(used, used_count, sizeof *used, by_begin);
  qsort(segments, segment_count, sizeof *segments, by_begin);
  for (size_t i = 0, u = 0; i < segment_count; i++) {
    uint64_t at = segments[i].begin, end = segments[i].end;
    for (; i + 1 < segment_count && !segments[i].is_wall && !segments[i + 1].is_wall && segments[i + 1].begin == end;
         i++)
      end = segments[i + 1].end;
    for (; u < used_count && used[u].begin < end; u++) {
      largest = used[u].begin > at && used[u].begin - at > largest ? used[u].begin - at : largest;
      at = used[u].end > at ? used[u].end : at;
    }
    largest = end > at && end - at > largest ? end - at : largest;
  }
  free(used);
  free(segments);
  return largest;
}

static void check_holes(const fixture *f, size_t tries) {
  const char *level = json_first(json_get(json_get(f->view, "counters"), "levels"));
  size_t size, count, span = number_of(level, "span"), columns = number_of(level, "columns");
  const unsigned char *bytes = chunk_of(&f->data, level, &size);
  drawn_block *blocks = read_blocks(&f->data, f->view, &count);
  uint64_t random = 19;
  for (size_t i = 0; i < tries; i++) {
    size_t entry = next_random(&random) % f->entries, column = entry / span;
    double hole = (double)find_hole(f, blocks, count, entry);
    double least = get_double(bytes, 2 * HOLE * columns + column),
           most = get_double(bytes, (2 * HOLE + 1) * columns + column);
    if (hole < least || hole > most || (span == 1 && least != most))
      fail_msg("the largest hole after entry %zu is %.0f, and not from %.0f to %.0f", entry, hole, least, most);
  }
  free(blocks);
}

static void check_counters(const char *name) {
  fixture f = open_trace(name, 0);
  uint64_t *values[COUNTERS];
  follow(&f, values);
  const char *levels = json_get(json_get(f.view, "counters"), "levels");
  size_t span = 0, last = 0;
  for (const char *level = json_first(levels); level; level = json_next(level)) {
    assert_true(!span || number_of(level, "span") == 2 * span);
    span = number_of(level, "span");
    last = number_of(level, "columns");
    check_level(&f, level, values);
  }
  assert_true(last <= 512);
  const char *peak = json_get(f.view, "peak");
  assert_true(values[ALLOCATED][number_of(peak, "allocated_entry")] == number_of(peak, "allocated"));
  assert_true(values[RESERVED][number_of(peak, "reserved_entry")] == number_of(peak, "reserved"));
  check_holes(&f, 40);
  for (int k = 0; k < COUNTERS; k++)
    free(values[k]);
  close_trace(&f);
}

TEST(counters_match_a_plain_pass) {
  check_counters("llama_oom");
  check_counters("streams_prefetch_expandable"); /* with memory that waits, and pages */
  check_counters("llm_generate_small");          /* the finest column has 8 entries */
  if (usual_or_long(0, 1))
    check_counters("cuda_graphs");
}

/* ---- Groups ---- */

/* The values of all names add up to what is allocated at most in a column. */
TEST(groups_add_up_to_the_counter) {
  static const char *const names[] = {"resnet_stacks", "streams_prefetch", "cuda_graphs", "llama_lora_ckpt"};
  for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
    fixture f = open_trace(names[t], 0);
    uint64_t *values[COUNTERS];
    size_t groups = 0;
    follow(&f, values);
    for (const char *group = json_first(json_get(f.view, "groups")); group; group = json_next(group), groups++) {
      size_t count = json_count(json_get(group, "names"));
      assert_int_equal(count, json_count(json_get(group, "keys")));
      assert_true(count >= 1 && count <= 16);
      for (const char *level = json_first(json_get(group, "levels")); level; level = json_next(level)) {
        size_t size = 0, span = number_of(level, "span"), columns = number_of(level, "columns");
        const unsigned char *bytes = chunk_of(&f.data, level, &size);
        assert_int_equal(size, count * columns * sizeof(double));
        for (size_t c = 0; c < columns; c++) {
          uint64_t most = 0;
          double sum = 0;
          for (size_t i = c * span; i < (c + 1) * span && i < f.entries; i++)
            most = values[ALLOCATED][i] > most ? values[ALLOCATED][i] : most;
          for (size_t n = 0; n < count; n++) {
            assert_true(get_double(bytes, n * columns + c) >= 0);
            sum += get_double(bytes, n * columns + c);
          }
          if (sum != (double)most)
            fail_msg("%s: group %zu, span %zu, column %zu: %.0f instead of %.0f", names[t], groups, span, c, sum,
                     (double)most);
        }
      }
    }
    assert_true(groups >= 2);
    for (int k = 0; k < COUNTERS; k++)
      free(values[k]);
    close_trace(&f);
  }
}

/* ---- Blocks ---- */

static uint64_t area_of(const fixture *f, const drawn_block *b) {
  uint64_t duration = b->duration == UINT32_MAX ? f->entries - b->x0 : b->duration;
  return b->units * (duration ? duration : 1);
}

static int by_place(const void *a, const void *b) {
  const drawn_block *x = a, *y = b;
  return x->x0 != y->x0 ? (x->x0 > y->x0) - (x->x0 < y->x0) : (x->y > y->y) - (x->y < y->y);
}

static void check_tile(const fixture *f, const drawn_block *b) {
  uint64_t width = 1, last = b->duration == UINT32_MAX ? f->entries - 1 : b->x0 + b->duration - 1;
  while (width < f->entries)
    width *= 2;
  width >>= b->depth;
  assert_true(b->depth <= b->level);
  assert_true(width >= 1 && b->x0 / width == b->index && last / width == b->index);
  if (b->depth < b->level && width > 1) /* the smallest interval */
    assert_true(b->x0 / (width / 2) != last / (width / 2));
}

/* Every life is stored once, with all that it has. */
static void check_life(const fixture *f, const weir__life *life, const drawn_block *b) {
  assert_int_equal(b->x0, life->begin);
  assert_true(address_of_y(f->view, b->y) == life->address);
  assert_int_equal(b->duration, life->end == WEIR__LIFE_OPEN ? UINT32_MAX : life->end - life->begin);
  assert_true(b->units * 512ull - b->slack == life->size);
  assert_int_equal(b->pending, is_waiting(life) ? end_of(f, life->end) - life->freed : 0);
  assert_int_equal(b->stream, life->stream);
  assert_int_equal(b->pool, life->pool == WEIR__LIFE_NO_POOL ? 0xffff : life->pool);
  bool is_closing = life->freed != WEIR__LIFE_OPEN && life->end == life->freed + 1;
  assert_int_equal(b->flags, life->is_before | (life->end == WEIR__LIFE_OPEN) << 1 | is_closing << 2);
}

typedef struct place {
  uint64_t address;
  const weir__life *life;
} place;

static int by_life(const void *a, const void *b) {
  const weir__life *x = ((const place *)a)->life, *y = ((const place *)b)->life;
  if (x->begin != y->begin)
    return (x->begin > y->begin) - (x->begin < y->begin);
  return (x->address > y->address) - (x->address < y->address);
}

TEST(blocks_are_the_lives) {
  static const char *const names[] = {"llama_oom", "streams_prefetch", "cuda_graphs_expandable", "resnet_roundup",
                                      "llama_lora_ckpt"};
  for (size_t t = 0; t < (size_t)usual_or_long(3, sizeof names / sizeof *names); t++) {
    fixture f = open_trace(names[t], 0);
    size_t count;
    drawn_block *blocks = read_blocks(&f.data, f.view, &count);
    place *places = malloc((count + 1) * sizeof *places);
    uint64_t last_area = UINT64_MAX, least_of_level = UINT64_MAX;
    assert_non_null(places);
    assert_int_equal(count, f.lives.block_count);
    assert_int_equal(*json_get(f.view, "coverage"), 'n');
    for (size_t i = 0; i < count; i++) {
      check_tile(&f, &blocks[i]);
      if (i && blocks[i].level != blocks[i - 1].level) {
        last_area = least_of_level;
        least_of_level = UINT64_MAX;
      }
      uint64_t area = area_of(&f, &blocks[i]);
      assert_true(area <= last_area);
      least_of_level = area < least_of_level ? area : least_of_level;
    }
    for (size_t i = 0; i < count; i++)
      places[i] = (place){f.lives.blocks[i].address, &f.lives.blocks[i]};
    qsort(places, count, sizeof *places, by_life);
    qsort(blocks, count, sizeof *blocks, by_place);
    for (size_t i = 0; i < count; i++)
      check_life(&f, places[i].life, &blocks[i]);
    free(places);
    free(blocks);
    close_trace(&f);
  }
}

static int by_y(const void *a, const void *b) {
  const drawn_block *x = a, *y = b;
  return (x->y > y->y) - (x->y < y->y);
}

/* No two blocks are drawn at the same place at the same time. */
TEST(blocks_do_not_overlap) {
  static const char *const names[] = {"llama_oom", "resnet_roundup", "streams_prefetch_expandable"};
  for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
    fixture f = open_trace(names[t], 0);
    size_t count;
    uint64_t random = 7;
    drawn_block *blocks = read_blocks(&f.data, f.view, &count);
    qsort(blocks, count, sizeof *blocks, by_y);
    for (size_t i = 0; i < 200; i++) {
      size_t entry = next_random(&random) % f.entries;
      uint64_t end = 0;
      for (size_t k = 0; k < count; k++) {
        const drawn_block *b = &blocks[k];
        if (b->x0 > entry || (b->duration != UINT32_MAX && b->x0 + b->duration <= entry))
          continue;
        assert_true(b->units >= 1 && b->y >= end);
        end = (uint64_t)b->y + b->units;
      }
    }
    free(blocks);
    close_trace(&f);
  }
}

/* ---- What is not stored ---- */

static bool is_stored(const drawn_block *blocks, size_t count, const drawn_block *b) {
  return bsearch(b, blocks, count, sizeof *blocks, by_place) != NULL;
}

static double overlap(double a, double b, double c, double d) {
  double low = a > c ? a : c, high = b < d ? b : d;
  return high > low ? high - low : 0;
}

/* The blocks of a view that stores fewer, and the coverage of the rest. */
TEST(the_rest_is_in_the_coverage) {
  enum { MAX = 300 };
  fixture all = open_trace("llama_oom", 0), some = open_trace("llama_oom", MAX);
  size_t count, stored, size;
  drawn_block *blocks = read_blocks(&all.data, all.view, &count), *few = read_blocks(&some.data, some.view, &stored);
  const char *coverage = json_get(some.view, "coverage");
  size_t columns = number_of(coverage, "columns"), rows = number_of(coverage, "rows");
  const unsigned char *cells = chunk_of(&some.data, coverage, &size);
  double height = (double)number_of(some.view, "height"), *area = calloc(rows * columns, sizeof *area);
  uint64_t largest = 0, least = UINT64_MAX;
  assert_non_null(area);
  assert_int_equal(stored, MAX);
  assert_int_equal(size, rows * columns);
  assert_int_equal(number_of(json_get(some.view, "blocks"), "total"), count);
  for (size_t i = 0; i < stored; i++)
    least = area_of(&some, &few[i]) < least ? area_of(&some, &few[i]) : least;
  qsort(few, stored, sizeof *few, by_place);
  for (size_t i = 0; i < count; i++) {
    const drawn_block *b = &blocks[i];
    if (is_stored(few, stored, b))
      continue;
    assert_true(area_of(&all, b) <= least);
    uint64_t requested = b->units * 512ull - b->slack;
    largest = requested > largest ? requested : largest;
    uint64_t end = b->duration == UINT32_MAX ? all.entries : b->x0 + b->duration;
    double x0 = b->x0 * (double)columns / (double)all.entries, x1 = (double)end * (double)columns / (double)all.entries;
    double y0 = b->y * (double)rows / height, y1 = ((double)b->y + b->units) * (double)rows / height;
    for (size_t r = (size_t)y0; r < rows && (double)r < y1; r++)
      for (size_t c = (size_t)x0; c < columns && (double)c < x1; c++)
        area[r * columns + c] += overlap(x0, x1, (double)c, (double)c + 1) * overlap(y0, y1, (double)r, (double)r + 1);
  }
  assert_true(number_of(json_get(some.view, "blocks"), "hidden_bytes_max") == largest);
  for (size_t i = 0; i < rows * columns; i++) {
    double difference = area[i] * 255 - cells[i];
    if (difference < -0.51 || difference > 0.51)
      fail_msg("cell %zu: %d instead of %.2f", i, cells[i], area[i] * 255);
  }
  free(area);
  free(blocks);
  free(few);
  close_trace(&all);
  close_trace(&some);
}

/* ---- Segments, stacks, times, marks ---- */

TEST(segments_are_the_lives) {
  static const char *const names[] = {"llama_oom", "streams_prefetch_expandable"};
  for (size_t t = 0; t < sizeof names / sizeof *names; t++) {
    fixture f = open_trace(names[t], 0);
    size_t size, n = f.lives.segment_count;
    const char *segments = json_get(f.view, "segments");
    const unsigned char *bytes = chunk_of(&f.data, segments, &size);
    assert_int_equal(number_of(segments, "total"), n);
    assert_int_equal(number_of(segments, "stored"), n);
    assert_int_equal(size, 25 * n);
    uint32_t x0 = 0;
    for (size_t i = 0; i < n; i++) {
      const weir__segment_life *s = &f.lives.segments[i];
      x0 += (uint32_t)get_number(bytes + 4 * i, 4);
      assert_int_equal(x0, s->begin);
      assert_int_equal(get_number(bytes + 4 * (n + i), 4), s->end == WEIR__LIFE_OPEN ? UINT32_MAX : s->end - s->begin);
      assert_true(address_of_y(f.view, (uint32_t)get_number(bytes + 4 * (2 * n + i), 4)) == s->address);
      assert_int_equal(get_number(bytes + 4 * (3 * n + i), 4) * 512, s->size);
      assert_int_equal(bytes[24 * n + i], s->is_before | (s->end == WEIR__LIFE_OPEN) << 1 | s->is_expandable << 2);
    }
    close_trace(&f);
  }
}

TEST(stacks_are_those_of_the_blocks) {
  fixture f = open_trace("resnet_stacks", 0);
  const weir__recording *r = f.recording;
  size_t size = 0, count, checked = 0;
  const char *stacks = json_get(f.view, "stacks");
  const unsigned char *bytes = chunk_of(&f.data, stacks, &size);
  char *text = calloc(size + 1, 1);
  assert_non_null(text);
  memcpy(text, bytes, size);
  const char *lists = json_get(text, "stacks"), *frames = json_get(text, "frames");
  assert_int_equal(json_count(lists), number_of(stacks, "count"));
  assert_int_equal(json_count(json_get(text, "titles")), number_of(stacks, "count"));
  assert_int_equal(json_count(json_first(lists)), 0); /* no stack */
  drawn_block *blocks = read_blocks(&f.data, f.view, &count);
  qsort(blocks, count, sizeof *blocks, by_place);
  for (size_t i = 0; i < count; i += 97) {
    if (f.lives.blocks[i].is_before)
      continue;
    const drawn_block key = {.x0 = f.lives.blocks[i].begin};
    size_t k = 0;
    while (k < count && blocks[k].x0 != key.x0)
      k++;
    const char *list = json_first(lists);
    for (uint32_t n = 0; n < blocks[k].stack; n++)
      list = json_next(list);
    const weir__recording_stack *s = &r->stacks[f.lives.blocks[i].stack];
    assert_int_equal(json_count(list), s->count);
    const char *item = json_first(list);
    for (size_t n = 0; n < s->count; n++, item = json_next(item), checked++) {
      const weir__recording_frame *expected = &r->frames[r->stack_frames[s->first + n]];
      const char *frame = json_first(frames);
      for (uint64_t skip = json_number(item); skip; skip--)
        frame = json_next(frame);
      const char *name = json_first(frame);
      assert_true(json_is(name, r->strings.items[expected->name].text));
      assert_true(json_is(json_next(name), r->strings.items[expected->filename].text));
    }
  }
  assert_true(checked > 100);
  free(text);
  free(blocks);
  close_trace(&f);
}

TEST(times_and_marks_are_on_entries) {
  fixture f = open_trace("llama_oom", 0);
  const weir__recording_device *d = &f.recording->devices[0];
  size_t size, ooms = 0, peaks = 0, phases = 0;
  const unsigned char *bytes = chunk_of(&f.data, json_get(f.view, "times"), &size);
  size_t n = (size_t)get_number(bytes, 4);
  double last;
  assert_int_equal(size, 4 + 8 * n);
  memcpy(&last, bytes + 4 + 8 * (n - 1), sizeof last);
  assert_true(last == (double)(d->events[f.entries - 1].time_us - d->events[0].time_us));
  for (const char *m = json_first(json_get(f.view, "marks")); m; m = json_next(m)) {
    size_t entry = number_of(m, "entry");
    const char *kind = json_get(m, "kind");
    assert_true(entry < f.entries);
    if (json_is(kind, "oom")) {
      ooms++;
      assert_int_equal(d->events[entry].action, WEIR_TRACE_OOM);
      assert_true(number_of(m, "bytes") == d->events[entry].size);
    } else if (json_is(kind, "peak"))
      peaks++;
    else {
      phases++;
      assert_true(number_of(m, "end") > entry && number_of(m, "end") <= f.entries);
    }
  }
  assert_int_equal(ooms, number_of(f.view, "ooms"));
  assert_int_equal(peaks, 1);
  assert_true(phases > 1);
  assert_int_equal(number_of(f.view, "marks_total"), ooms + peaks + phases);
  close_trace(&f);
}

/* ---- The objects of other commands ---- */

TEST(reports_of_other_commands_are_inside) {
  weir__recording *recording = load("traces/llama_oom");
  weir__view_source source = {.recording = recording, .device = -1, .name = "test"};
  weir__view_data data;
  weir__summary summary;
  weir__explanation x;
  bool is_explained;
  assert_int_equal(weir__view_make(&source, 1, &(weir__view_options){.is_raw = true}, &data), WEIR_OK);
  assert_int_equal(weir__summarize(recording, 0, &summary), WEIR_OK);
  assert_int_equal(weir__view_explain(recording, 0, &(weir__view_options){0}, &x, &is_explained), WEIR_OK);
  assert_true(is_explained);
  const char *view = recording_of(&data, 0), *explain = json_get(view, "explain");
  const char *device = json_first(json_get(json_get(view, "summary"), "devices"));
  assert_true(number_of(device, "peak_live") == summary.live.bytes);
  assert_true(number_of(device, "peak_reserved") == summary.reserved.bytes);
  assert_int_equal(number_of(explain, "event"), x.event);
  assert_true(json_is(json_get(explain, "cause"), "fragmented"));
  const char *pins = json_get(json_get(explain, "pins"), "segments");
  assert_int_equal(json_count(pins), x.pin_count);
  assert_true(number_of(json_first(pins), "address") == x.pins[0].segment);
  assert_true(json_is(json_get(json_get(view, "leaks"), "file"), "test"));
  assert_true(number_of(json_get(json_get(view, "classes"), "at_peak"), "activations") > 0);
  weir__view_clear(&data);
  weir__recording_free(recording);
  recording = load("traces/gpt2_fixed"); /* nothing failed */
  assert_int_equal(weir__view_explain(recording, 0, &(weir__view_options){0}, &x, &is_explained), WEIR_OK);
  assert_false(is_explained);
  weir__recording_free(recording);
}

/* ---- The whole ---- */

TEST(two_recordings_are_compared) {
  weir__recording *a = load("traces/llama_varlen"), *b = load("traces/llama_varlen_expandable");
  weir__view_source sources[] = {{.recording = a, .device = -1, .name = "a"},
                                 {.recording = b, .device = -1, .name = "b"}};
  weir__view_data data;
  assert_int_equal(weir__view_make(sources, 2, &(weir__view_options){.is_raw = true}, &data), WEIR_OK);
  assert_int_equal(json_count(json_get(data.index, "recordings")), 2);
  assert_true(json_is(json_get(json_get(json_get(data.index, "diff"), "b"), "file"), "b"));
  for (size_t i = 0; i < 2; i++) {
    size_t count;
    const char *view = recording_of(&data, i);
    assert_true(json_is(json_get(view, "name"), sources[i].name));
    free(read_blocks(&data, view, &count));
    assert_int_equal(count, number_of(json_get(view, "blocks"), "total"));
  }
  sources[1].device = 3;
  assert_int_equal(weir__view_make(sources, 2, &(weir__view_options){0}, &data), WEIR_ERROR_INVALID_ARGUMENT);
  weir__recording_free(a);
  weir__recording_free(b);
  weir__view_clear(&data);
}

/* Unpacked, the chunks are those of raw data; offsets are aligned. */
TEST(chunks_are_compressed) {
#ifdef WEIR_HAVE_ZLIB
  fixture f = open_trace("llama_oom", 0);
  weir__view_data packed;
  weir__view_source source = {.recording = f.recording, .device = 0, .name = "test", .no_explain = true};
  assert_int_equal(weir__view_make(&source, 1, &(weir__view_options){0}, &packed), WEIR_OK);
  assert_int_equal(packed.count, f.data.count);
  assert_true(packed.chunk_bytes < f.data.chunk_bytes / 4);
  for (size_t i = 0; i < packed.count; i++) {
    const weir__view_chunk *c = &packed.table[i], *raw = &f.data.table[i];
    assert_int_equal(c->offset % 8, 0);
    assert_int_equal(c->bytes, raw->bytes);
    assert_string_equal(c->name, raw->name);
    unsigned char *bytes = malloc(c->bytes + 1);
    uLongf size = c->bytes;
    assert_non_null(bytes);
    if (c->is_deflated)
      assert_int_equal(uncompress(bytes, &size, packed.chunks + c->offset, c->stored), Z_OK);
    else
      memcpy(bytes, packed.chunks + c->offset, c->stored);
    assert_int_equal(size, raw->bytes);
    assert_memory_equal(bytes, f.data.chunks + raw->offset, size);
    free(bytes);
  }
  weir__view_clear(&packed);
  close_trace(&f);
#else
  (void)state;
  print_message("waived: built without zlib\n");
  skip();
#endif
}

TEST(the_header_has_the_length_of_the_index) {
  fixture f = open_trace("cuda_graphs", 0);
  char *bytes = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&bytes, &size);
  assert_non_null(file);
  assert_int_equal(weir__view_write(&f.data, file), WEIR_OK);
  fclose(file);
  assert_int_equal(size, weir__view_size(&f.data));
  assert_memory_equal(bytes, "WEIRVIEW\1\0\0\0", 12);
  assert_int_equal(get_number((unsigned char *)bytes + 12, 4), f.data.index_size);
  assert_memory_equal(bytes + 16, f.data.index, f.data.index_size);
  free(bytes);
  close_trace(&f);
}

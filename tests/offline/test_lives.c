/*
 * Compares the lives of blocks and segments with a random world whose every state is known, with a plain scan of
 * damaged histories, and with the levels of real recordings.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/levels.h"
#include "offline/analyse/lives.h"
#include "offline/analyse/summary.h"
#include "offline/load.h"
#include "offline/read/recording.h"
#include "support/length.h"
#include "support/random.h"
#include "support/recording.h"

/* ---- A world of a few pages ---- */

enum {
  PAGES = 40,
  NATIVE = 20, /* pages below are of native segments, the others of expandable ones */
  PAGE = 4096,
  ENTRIES = 160,
  NEVER = -1
};
static const uint64_t base = 0x7f0000000000;

typedef struct truth {
  uint64_t address, size;
  int begin, freed, end; /* entries of the whole history; NEVER if it did not happen */
} truth;

typedef struct world {
  uint64_t random;
  weir__recording_entry entries[ENTRIES];
  int count;
  truth blocks[ENTRIES];
  int block_count;
  int native[NATIVE];                   /* 1 + the first page of the segment that the page belongs to, or 0 */
  bool is_mapped[ENTRIES + 1][PAGES];   /* before each entry */
  int native_then[ENTRIES + 1][NATIVE]; /* likewise */
} world;

static int pick(world *w, int below) { return (int)(next_random(&w->random) % (uint64_t)below); }

static uint64_t address_of(int page) { return base + (uint64_t)page * PAGE; }

static void enter(world *w, uint8_t action, uint64_t address, uint64_t size, uint32_t stack) {
  w->entries[w->count] = (weir__recording_entry){
      .action = action, .address = address, .size = size, .stack = stack, .pool = WEIR__RECORDING_NO_POOL};
  w->count++;
}

static bool is_used(const world *w, int page) {
  for (int i = 0; i < w->block_count; i++)
    if (w->blocks[i].end == NEVER && w->blocks[i].address / PAGE == address_of(page) / PAGE)
      return true;
  return false;
}

/* One random change. Blocks are smaller than a page and do not cross its end. */
static void change(world *w) {
  bool *mapped = w->is_mapped[w->count + 1];
  memcpy(mapped, w->is_mapped[w->count], sizeof w->is_mapped[0]);
  memcpy(w->native_then[w->count], w->native, sizeof w->native);
  int page = pick(w, PAGES), length = 1 + pick(w, 4), kind = pick(w, 10);
  if (kind < 2) { /* a segment, or pages, begin or end */
    bool is_native = page < NATIVE;
    int end = page + length < (is_native ? NATIVE : PAGES) ? page + length : (is_native ? NATIVE : PAGES);
    bool want = !mapped[page];
    if (is_native && !want) {
      page = w->native[page] - 1;
      for (end = page; end < NATIVE && w->native[end] == page + 1; end++)
        ;
    }
    int last = page;
    while (last < end && mapped[last] == !want && !is_used(w, last))
      last++;
    if (last == page || (is_native && !want && last < end))
      return;
    for (int i = page; i < last; i++) {
      mapped[i] = want;
      if (is_native)
        w->native[i] = want ? page + 1 : 0;
    }
    enter(w,
          is_native ? (want ? WEIR_TRACE_SEGMENT_ALLOC : WEIR_TRACE_SEGMENT_FREE)
                    : (want ? WEIR_TRACE_SEGMENT_MAP : WEIR_TRACE_SEGMENT_UNMAP),
          address_of(page), (uint64_t)(last - page) * PAGE, 0);
    return;
  }
  if (kind < 6) {
    if (!mapped[page] || is_used(w, page))
      return;
    uint64_t at = address_of(page) + 512 * (uint64_t)pick(w, 4), size = 1 + (uint64_t)pick(w, 2048);
    w->blocks[w->block_count++] = (truth){at, size, w->count, NEVER, NEVER};
    enter(w, WEIR_TRACE_ALLOC, at, size, (uint32_t)w->block_count);
    return;
  }
  for (int i = pick(w, ENTRIES), tries = 0; w->block_count && tries < w->block_count; i++, tries++) {
    truth *t = &w->blocks[i % w->block_count];
    if (t->end != NEVER)
      continue;
    if (t->freed == NEVER) {
      t->freed = w->count;
      enter(w, WEIR_TRACE_FREE_REQUESTED, t->address, t->size, 0);
    } else {
      t->end = w->count;
      enter(w, WEIR_TRACE_FREE_COMPLETED, t->address, t->size, 0);
    }
    return;
  }
}

static world *make_world(uint64_t seed) {
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  w->random = seed;
  while (w->count < ENTRIES) {
    int before = w->count;
    change(w);
    if (w->count == before)
      memcpy(w->native_then[w->count], w->native, sizeof w->native);
  }
  memcpy(w->native_then[ENTRIES], w->native, sizeof w->native);
  return w;
}

/* ---- The same as a recording that begins at an entry ---- */

typedef enum variant { FROM_LIST, FROM_CHECKPOINT, FROM_NOTHING, VARIANTS } variant;

typedef struct window {
  weir__recording recording;
  weir__recording_device device;
  weir__recording_segment segments[PAGES];
  weir__recording_block blocks[ENTRIES];
  weir__state start;
  weir__state_segment start_segments[PAGES];
  weir__state_block start_blocks[ENTRIES + PAGES];
  int64_t stream;
  weir__recording_pool pool;
} window;

static int by_address(const void *a, const void *b) {
  uint64_t x = ((const truth *)a)->address, y = ((const truth *)b)->address;
  return (x > y) - (x < y);
}

/* The blocks that are active before an entry, by address. */
static int active_at(const world *w, int entry, truth out[ENTRIES]) {
  int count = 0;
  for (int i = 0; i < w->block_count; i++)
    if (w->blocks[i].begin < entry && (w->blocks[i].end == NEVER || w->blocks[i].end >= entry))
      out[count++] = w->blocks[i];
  /* cppcheck-suppress uninitvar ; the first `count` are set */
  qsort(out, (size_t)count, sizeof *out, by_address);
  return count;
}

static uint8_t state_at(const truth *t, int entry) {
  return t->freed != NEVER && t->freed < entry ? WEIR_BLOCK_ACTIVE_PENDING_FREE : WEIR_BLOCK_ACTIVE_ALLOCATED;
}

/* The pages [*first, end) of the segment at or after *first before an entry; false if there is none. */
static bool next_run(const world *w, int entry, int *first, int *end) {
  const bool *mapped = w->is_mapped[entry];
  while (*first < PAGES && !mapped[*first])
    ++*first;
  if (*first == PAGES)
    return false;
  const int *native = w->native_then[entry];
  for (*end = *first; *end < PAGES && mapped[*end]; ++*end)
    if (*end > *first && (*end == NATIVE || (*end < NATIVE && native[*end] != native[*first])))
      break;
  return true;
}

static void list_at_end(const world *w, window *out) {
  truth active[ENTRIES];
  int count = active_at(w, w->count, active), end;
  size_t segments = 0, blocks = 0;
  for (int first = 0; next_run(w, w->count, &first, &end); first = end) {
    weir__recording_segment *s = &out->segments[segments++];
    *s = (weir__recording_segment){.address = address_of(first),
                                   .size = (uint64_t)(end - first) * PAGE,
                                   .blocks = out->blocks + blocks,
                                   .is_expandable = first >= NATIVE};
    for (int i = 0; i < count; i++)
      if (active[i].address >= s->address && active[i].address < s->address + s->size) {
        out->blocks[blocks++] = (weir__recording_block){.address = active[i].address,
                                                        .size = 512,
                                                        .requested = active[i].size,
                                                        .state = state_at(&active[i], w->count)};
        s->block_count++;
      }
  }
  out->device.segments = out->segments;
  out->device.segment_count = segments;
}

/* An expandable segment has its holes as blocks, from its first to its last page. */
static void checkpoint_at(const world *w, int entry, window *out) {
  truth active[ENTRIES];
  int count = active_at(w, entry, active), end;
  weir__state *s = &out->start;
  weir__state_segment *expandable = NULL;
  *s = (weir__state){.segments = out->start_segments, .blocks = out->start_blocks};
  for (int first = 0; next_run(w, entry, &first, &end); first = end) {
    weir__state_segment *segment = expandable && first >= NATIVE ? expandable : &s->segments[s->segment_count++];
    if (segment != expandable)
      *segment = (weir__state_segment){.address = address_of(first), .first = s->block_count};
    else {
      uint64_t hole = segment->address + segment->size;
      s->blocks[s->block_count++] =
          (weir__state_block){.address = hole, .size = address_of(first) - hole, .state = WEIR__BLOCK_UNMAPPED};
    }
    segment->size = address_of(end) - segment->address;
    segment->is_expandable = first >= NATIVE;
    for (int i = 0; i < count; i++)
      if (active[i].address >= address_of(first) && active[i].address < address_of(end))
        s->blocks[s->block_count++] = (weir__state_block){.address = active[i].address,
                                                          .size = 512,
                                                          .requested = active[i].size,
                                                          .state = state_at(&active[i], entry)};
    segment->count = s->block_count - segment->first;
    s->reserved += (uint64_t)(end - first) * PAGE;
    expandable = first >= NATIVE ? segment : NULL;
  }
  out->device.start = s;
}

static void open_window(const world *w, int cut, variant v, window *out) {
  *out = (window){0};
  out->device.events = w->entries + cut;
  out->device.event_count = (size_t)(w->count - cut);
  if (v == FROM_LIST)
    list_at_end(w, out);
  else if (v == FROM_CHECKPOINT)
    checkpoint_at(w, cut, out);
  else
    out->device.lacks_start = true;
  out->recording = (weir__recording){.devices = &out->device,
                                     .device_count = 1,
                                     .streams = &out->stream,
                                     .stream_count = 1,
                                     .pools = &out->pool,
                                     .pool_count = 1};
}

/* ---- The comparison ---- */

static uint32_t moved(int entry, int cut) {
  return entry == NEVER ? WEIR__LIFE_OPEN : entry < cut ? 0 : (uint32_t)(entry - cut);
}

static bool has_block(const weir__lives *l, const weir__life *wanted) {
  for (size_t i = 0; i < l->block_count; i++) {
    const weir__life *b = &l->blocks[i];
    if (b->address == wanted->address && b->size == wanted->size && b->begin == wanted->begin &&
        b->freed == wanted->freed && b->end == wanted->end && b->is_before == wanted->is_before)
      return true;
  }
  return false;
}

static void check_blocks(const world *w, int cut, variant v, const weir__lives *l) {
  size_t expected = 0;
  for (int i = 0; i < w->block_count; i++) {
    const truth *t = &w->blocks[i];
    bool is_before = t->begin < cut, is_over = t->end != NEVER && t->end < cut;
    bool is_seen = !is_before || (t->freed != NEVER && t->freed >= cut) || (t->end != NEVER && t->end >= cut);
    if (is_over || (v == FROM_NOTHING && !is_seen))
      continue;
    expected++;
    weir__life wanted = {.address = t->address,
                         .size = t->size,
                         .begin = moved(t->begin, cut),
                         .freed = moved(t->freed, cut),
                         .end = moved(t->end, cut),
                         .is_before = is_before};
    if (!has_block(l, &wanted))
      fail_msg("block 0x%llx of %llu bytes, %u to %u to %u, is missing", (unsigned long long)wanted.address,
               (unsigned long long)wanted.size, wanted.begin, wanted.freed, wanted.end);
  }
  assert_int_equal(l->block_count, expected);
}

/* Whether a page that was there before the cut shows: it ends in the window, or something else says so. */
static bool shows(const world *w, int cut, int page) {
  for (int i = cut; i < w->count; i++)
    if (!w->is_mapped[i + 1][page])
      return true;
  return false;
}

static void check_pages(const world *w, int cut, variant v, const weir__lives *l) {
  for (int page = 0; page < PAGES; page++) {
    bool is_hidden = v == FROM_NOTHING && w->is_mapped[cut][page] && !shows(w, cut, page);
    for (int i = cut; i < w->count; i++) {
      int lives = 0;
      for (size_t k = 0; k < l->segment_count; k++) {
        const weir__segment_life *s = &l->segments[k];
        lives += s->address <= address_of(page) && address_of(page) < s->address + s->size &&
                 s->begin <= (uint32_t)(i - cut) && (uint32_t)(i - cut) < s->end;
      }
      if (!is_hidden)
        assert_int_equal(lives, w->is_mapped[i + 1][page]);
    }
  }
}

static void check_order(const weir__lives *l) {
  for (size_t i = 1; i < l->block_count; i++) {
    assert_true(l->blocks[i - 1].begin <= l->blocks[i].begin);
    assert_true(l->blocks[i - 1].is_before >= l->blocks[i].is_before);
  }
  for (size_t i = 1; i < l->segment_count; i++) {
    assert_true(l->segments[i - 1].begin <= l->segments[i].begin);
    assert_true(l->segments[i - 1].is_before >= l->segments[i].is_before);
  }
}

FIXTURE(.begin = make_folder, .end = remove_folder)

TEST(random) {
  for (int round = 0; round < repetitions(60, 3000); round++) {
    world *w = make_world((uint64_t)round);
    for (int v = 0; v < VARIANTS; v++) {
      static window out;
      int cut = v == FROM_LIST && round % 3 == 0 ? 0 : pick(w, w->count);
      open_window(w, cut, (variant)v, &out);
      weir__lives l;
      assert_int_equal(weir__lives_make(&out.recording, 0, &l), WEIR_OK);
      assert_int_equal(l.entry_count, w->count - cut);
      check_order(&l);
      check_blocks(w, cut, (variant)v, &l);
      check_pages(w, cut, (variant)v, &l);
      weir__lives_clear(&l);
    }
    free(w);
  }
}

/* ---- Damaged histories ---- */

/* The entry that decides the end of a life which begins at entry `from`, by a plain scan. */
static weir__life scanned(const weir__recording_entry *e, int count, int from) {
  bool is_request = e[from].action == WEIR_TRACE_FREE_REQUESTED, is_alloc = e[from].action == WEIR_TRACE_ALLOC;
  weir__life life = {.address = e[from].address,
                     .size = e[from].size,
                     .begin = is_alloc ? (uint32_t)from : 0,
                     .freed = is_alloc     ? WEIR__LIFE_OPEN
                              : is_request ? (uint32_t)from
                                           : 0,
                     .end = is_alloc || is_request ? WEIR__LIFE_OPEN : (uint32_t)from,
                     .is_before = !is_alloc};
  for (int i = from + 1; i < count && life.end == WEIR__LIFE_OPEN; i++) {
    if (e[i].address != life.address)
      continue;
    if (e[i].action == WEIR_TRACE_FREE_REQUESTED || e[i].action == WEIR_TRACE_FREE_COMPLETED ||
        e[i].action == WEIR_TRACE_ALLOC) {
      life.freed = life.freed == WEIR__LIFE_OPEN ? (uint32_t)i : life.freed;
      life.end = e[i].action == WEIR_TRACE_FREE_REQUESTED ? WEIR__LIFE_OPEN : (uint32_t)i;
    }
  }
  return life;
}

/* Whether nothing of the address is open at an entry: it is the first of it, or the one before completed a free. */
static bool is_closed(const weir__recording_entry *e, int at) {
  for (int i = at - 1; i >= 0; i--)
    if (e[i].address == e[at].address && (e[i].action == WEIR_TRACE_ALLOC || e[i].action == WEIR_TRACE_FREE_REQUESTED ||
                                          e[i].action == WEIR_TRACE_FREE_COMPLETED))
      return e[i].action == WEIR_TRACE_FREE_COMPLETED;
  return true;
}

TEST(damaged) {
  for (int round = 0; round < repetitions(60, 3000); round++) {
    world *w = make_world((uint64_t)round + 1000000);
    for (int i = 0; i < 30; i++) { /* entries go missing, come twice, or change places */
      int at = pick(w, w->count - 1);
      weir__recording_entry *e = w->entries, kept = e[at];
      if (i % 3 == 0) {
        memmove(e + at, e + at + 1, (size_t)(w->count - at - 1) * sizeof *e);
        w->count--;
      } else if (i % 3 == 1)
        e[at] = e[pick(w, w->count)];
      else {
        e[at] = e[at + 1];
        e[at + 1] = kept;
      }
    }
    static window out;
    open_window(w, 0, FROM_NOTHING, &out);
    weir__lives l;
    assert_int_equal(weir__lives_make(&out.recording, 0, &l), WEIR_OK);
    check_order(&l);
    size_t expected = 0;
    for (int i = 0; i < w->count; i++) {
      uint8_t action = w->entries[i].action;
      bool is_free = action == WEIR_TRACE_FREE_REQUESTED || action == WEIR_TRACE_FREE_COMPLETED;
      if (action != WEIR_TRACE_ALLOC && (!is_free || !is_closed(w->entries, i)))
        continue;
      weir__life wanted = scanned(w->entries, w->count, i);
      expected++;
      if (!has_block(&l, &wanted))
        fail_msg("round %d: block 0x%llx, %u to %u to %u, is missing", round, (unsigned long long)wanted.address,
                 wanted.begin, wanted.freed, wanted.end);
    }
    assert_int_equal(l.block_count, expected);
    for (size_t i = 0; i < l.segment_count; i++)
      assert_true(l.segments[i].begin <= l.segments[i].end && l.segments[i].size);
    weir__lives_clear(&l);
    free(w);
  }
}

/* ---- Real recordings ---- */

/* Bytes in use and reserved after each entry are those of the counters. */
static void check_levels(const weir__recording *recording, int device) {
  weir__lives l;
  weir__levels levels;
  weir__summary summary;
  assert_int_equal(weir__lives_make(recording, device, &l), WEIR_OK);
  assert_int_equal(weir__levels_begin(recording, device, &levels), WEIR_OK);
  assert_int_equal(weir__summarize(recording, device, &summary), WEIR_OK);
  size_t n = l.entry_count;
  int64_t *used = calloc(2 * n + 4, sizeof *used), *reserved = used + n + 2;
  assert_non_null(used);
  int64_t used_before = 0, reserved_before = 0;
  for (size_t i = 0; i < l.block_count; i++) {
    const weir__life *b = &l.blocks[i];
    /* A block from before that an entry frees is in use until then; one whose free was requested before is not. */
    if (b->is_before && b->freed == 0 &&
        !(n && recording->devices[device].events[0].address == b->address &&
          recording->devices[device].events[0].action == WEIR_TRACE_FREE_REQUESTED))
      continue;
    *(b->is_before ? &used_before : &used[b->begin]) += (int64_t)b->size;
    if (b->freed != WEIR__LIFE_OPEN)
      used[b->freed] -= (int64_t)b->size;
  }
  for (size_t i = 0; i < l.segment_count; i++) {
    const weir__segment_life *s = &l.segments[i];
    *(s->is_before ? &reserved_before : &reserved[s->begin]) += (int64_t)s->size;
    if (s->end != WEIR__LIFE_OPEN)
      reserved[s->end] -= (int64_t)s->size;
  }
  assert_int_equal(used_before, levels.allocated);
  assert_int_equal(reserved_before, levels.reserved);
  int64_t peak = used_before, peak_reserved = reserved_before;
  for (size_t i = 0; i < n; i++) {
    weir__levels_move(&levels, &recording->devices[device].events[i]);
    used_before += used[i];
    reserved_before += reserved[i];
    assert_int_equal(used_before, levels.allocated);
    assert_int_equal(reserved_before, levels.reserved);
    peak = used_before > peak ? used_before : peak;
    peak_reserved = reserved_before > peak_reserved ? reserved_before : peak_reserved;
  }
  assert_int_equal(peak, summary.live.bytes);
  assert_int_equal(peak_reserved, summary.reserved.bytes);
  free(used);
  weir__lives_clear(&l);
}

TEST(real) {
  static const char *const names[] = {"traces/cuda_graphs",
                                      "traces/cuda_graphs_expandable",
                                      "traces/gpt2_fixed",
                                      "traces/llama_lora_gc",
                                      "traces/llama_oom",
                                      "traces/llama_varlen_expandable_capped",
                                      "traces/llama_varlen_split200_capped",
                                      "traces/resnet_stacks",
                                      "traces/streams_prefetch",
                                      "traces/streams_prefetch_expandable",
                                      "late/cuda_graphs_expandable",
                                      "late/llama_oom",
                                      "histories/capped_streams",
                                      "histories/collected_retried",
                                      "histories/emptied",
                                      "histories/expandable_capped",
                                      "histories/expandable_emptied",
                                      "histories/expandable_pools",
                                      "histories/large_pages",
                                      "histories/pools_capped"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    weir__recording *recording = load(names[i]);
    for (size_t d = 0; d < recording->device_count; d++)
      check_levels(recording, (int)d);
    weir__recording_free(recording);
  }
}

/* Ring files: the first has its beginning, and the others lost it and have a checkpoint instead. */
TEST_SETUP(ring, NULL, recording_teardown) {
  static const char *const confs[] = {"", "expandable_segments:True"};
  for (int round = 0; round < 4; round++) {
    enum { HELD = 300 };
    void *held[HELD] = {0};
    uint64_t random = (uint64_t)round;
    open_recording(&(recording){.bytes = 1ull << 34, .conf = confs[round % 2], .folder = folder, .mb = "1"});
    for (int i = 0; i < (round < 2 ? 4000 : 60000); i++) {
      size_t k = next_random(&random) % HELD, bytes = 1 + next_random(&random) % (i % 7 ? 4096 : 8 << 20);
      if (held[k])
        assert_ok(weir_allocator_free(recorded, held[k]));
      held[k] = NULL;
      if (i % 1000 == 999)
        assert_ok(weir_allocator_empty_cache(recorded));
      if (next_random(&random) % 4)
        assert_ok(weir_allocator_alloc(recorded, 0, bytes, NULL, &held[k]));
    }
    weir__recording *of_ring = load_recording(find_file(".ring"));
    assert_int_equal(of_ring->devices[0].dropped > 0, round >= 2);
    check_levels(of_ring, 0);
    weir__recording_free(of_ring);
    recording_teardown(state);
  }
}

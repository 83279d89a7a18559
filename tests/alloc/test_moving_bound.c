/*
 * Moving pages hold no more than expandable segments: the same random history is played to an allocator of each, and
 * they are compared after every operation. What the bound is depends on what the history has:
 *
 *   plain, streams, pools, captures   not a byte more at any moment, and the same addresses
 *   releases                          the same addresses, and for each end of a free range at the last release at most
 *                                     one page that reaches into it from a live block, less its first slot
 *   limits                            both stay below the limit, which decides what is released when; and over all
 *                                     histories moving pages refuse no more requests
 *
 * Every stream has done its work at once (the ledger); work in flight is for test_moving_model.c. Then come jobs like
 * those of a server of language models.
 */
#include "alloc/allocator.h"
#include "support/check.h"
#include "support/ledger.h"
#include "support/length.h"
#include "support/valid.h"

#define MIB (1ull << 20)
#define GIB (1ull << 30)

enum { EXPANDABLE, MOVING, KINDS };
enum { PLAIN, STREAMS, POOLS, CAPTURES, RELEASES, LIMITS, CLASSES };
enum { LIVE = 60, STREAM_COUNT = 3, POOL_COUNT = 2, LARGEST_PAGE = 32, SLOT = 2 };

static const char *const confs[KINDS] = {"expandable_segments:True", "moving_pages:True"};

typedef struct live_block {
  void *at[KINDS];
} live_block;

/* One history on two allocators. */
static struct {
  weir_driver *driver[KINDS];
  weir_allocator *allocator[KINDS];
  weir_cu_stream streams[KINDS][STREAM_COUNT];
  live_block live[LIVE];
  int live_count;
  bool are_addresses_same;
  uint64_t beyond; /* bytes that moving pages may hold beyond those of expandable segments */
  uint64_t refused[KINDS];
  uint64_t random;
} pair;

static uint64_t below(uint64_t n) { return next_random(&pair.random) % n; }

static void open_pair(const char *conf, uint64_t bytes) {
  for (int k = 0; k < KINDS; k++) {
    weir_allocator_options options;
    char text[128];
    weir_allocator_options_init(&options);
    snprintf(text, sizeof text, "%s%s", confs[k], conf);
    options.conf = text;
    pair.driver[k] = open_ledger(1, bytes);
    assert_ok(weir_allocator_create(pair.driver[k], &options, &pair.allocator[k]));
    for (int i = 1; i < STREAM_COUNT; i++)
      pair.streams[k][i] = make_stream(pair.driver[k], 0);
  }
  pair.live_count = 0;
  pair.beyond = 0;
}

static void close_pair(void) {
  for (int k = 0; k < KINDS; k++) {
    weir_allocator_destroy(pair.allocator[k]);
    weir_driver_close(pair.driver[k]);
    pair.allocator[k] = NULL;
  }
}

static weir_allocator_stats stats_of(int kind) {
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_ok(weir_allocator_get_stats(pair.allocator[kind], 0, &stats));
  return stats;
}

static uint64_t reserved(int kind) { return (uint64_t)stats_of(kind).reserved_bytes[WEIR_STAT_ALL].current; }

static void compare(void) {
  uint64_t expandable = reserved(EXPANDABLE), moving = reserved(MOVING);
  if (moving > expandable + pair.beyond)
    fail_msg("moving pages hold %llu MiB, expandable segments %llu, and %llu are allowed beyond",
             (unsigned long long)(moving / MIB), (unsigned long long)(expandable / MIB),
             (unsigned long long)(pair.beyond / MIB));
}

/* The address is the same, or both refuse. Where a limit decides what is released, one may refuse alone: then the other
 * block is freed again. */
static bool allocate(uint64_t bytes, int stream, live_block *b) {
  weir_status status[KINDS];
  for (int k = 0; k < KINDS; k++) {
    status[k] = weir_allocator_alloc(pair.allocator[k], 0, bytes, pair.streams[k][stream], &b->at[k]);
    pair.refused[k] += status[k] != WEIR_OK;
    if (status[k])
      assert_int_equal(status[k], WEIR_ERROR_OUT_OF_MEMORY);
  }
  if (pair.are_addresses_same) {
    assert_int_equal(status[EXPANDABLE], status[MOVING]);
    assert_ptr_equal(b->at[EXPANDABLE], b->at[MOVING]);
  }
  for (int k = 0; k < KINDS; k++)
    if (!status[k] && status[1 - k])
      assert_ok(weir_allocator_free(pair.allocator[k], b->at[k]));
  return !status[EXPANDABLE] && !status[MOVING];
}

static void release(const live_block *b) {
  for (int k = 0; k < KINDS; k++)
    assert_ok(weir_allocator_free(pair.allocator[k], b->at[k]));
}

static uint64_t some_bytes(void) {
  switch (below(6)) {
  case 0:
    return 1 + below(MIB);
  case 1:
    return MIB + below(9 * MIB);
  case 2:
    return (1 + below(120)) * MIB;
  default:
    return 1 + below(40 * MIB);
  }
}

static weir_pool_id id_of(uint64_t pool) { return (weir_pool_id){0, pool + 20}; }

/* A few requests in the scope of a private pool; with `captures`, as a capture makes them. */
static void in_pool(uint64_t pool, bool captures) {
  for (int k = 0; k < KINDS; k++) {
    assert_ok(weir_pool_begin(pair.allocator[k], 0, id_of(pool), NULL, NULL));
    if (captures)
      assert_ok(weir_allocator_begin_capture(pair.allocator[k], 0));
  }
  for (uint64_t i = below(4); i > 0 && pair.live_count < LIVE; i--)
    pair.live_count += allocate(some_bytes(), (int)below(STREAM_COUNT), &pair.live[pair.live_count]);
  for (int k = 0; k < KINDS; k++) {
    if (captures)
      assert_ok(weir_allocator_end_capture(pair.allocator[k], 0));
    assert_ok(weir_pool_end(pair.allocator[k], 0, id_of(pool)));
    assert_ok(weir_pool_release(pair.allocator[k], 0, id_of(pool)));
  }
}

/* Ends of free ranges into which a page of a live block could reach. */
static uint64_t count_ends(void) {
  uint64_t ends = 0;
  for (const weir__segment *s = pair.allocator[MOVING]->heaps[0].segments; s; s = s->next)
    for (const weir__block *b = s->first; b; b = weir__block_next(b))
      if (weir__block_is_active(b)) {
        const weir__block *previous = weir__block_previous(b), *next = weir__block_next(b);
        ends += (previous && !weir__block_is_active(previous)) + (next && !weir__block_is_active(next));
      }
  return ends;
}

static void step(int class) {
  uint64_t what = below(100);
  if (what < 52 && pair.live_count < LIVE)
    pair.live_count +=
        allocate(some_bytes(), class == PLAIN ? 0 : (int)below(STREAM_COUNT), &pair.live[pair.live_count]);
  else if (what < 94 && pair.live_count) {
    int i = (int)below((uint64_t)pair.live_count);
    release(&pair.live[i]);
    pair.live[i] = pair.live[--pair.live_count];
  } else if (class == POOLS || class == CAPTURES)
    in_pool(below(POOL_COUNT), class == CAPTURES);
  else if (class == RELEASES) {
    for (int k = 0; k < KINDS; k++)
      assert_ok(weir_allocator_empty_cache(pair.allocator[k]));
    pair.beyond = count_ends() * (LARGEST_PAGE - SLOT) * MIB;
  }
}

static void run(uint64_t seed, int steps) {
  int class = (int)(seed % CLASSES);
  pair.random = seed;
  open_pair("", 64 * GIB);
  pair.are_addresses_same = class != LIMITS;
  for (int k = 0; k < KINDS; k++) {
    for (uint64_t i = 0; i < POOL_COUNT && (class == POOLS || class == CAPTURES); i++)
      assert_ok(weir_pool_create(pair.allocator[k], 0, id_of(i), NULL));
    if (class == LIMITS) {
      assert_ok(weir_allocator_set_limit(pair.allocator[k], 0, 500 * MIB));
      pair.beyond = 500 * MIB;
    }
  }
  for (int i = 0; i < steps; i++) {
    step(class);
    compare();
    if (class == LIMITS)
      assert_true(reserved(MOVING) <= 500 * MIB);
  }
  assert_true(weir__allocator_is_valid(pair.allocator[MOVING]));
  while (pair.live_count)
    release(&pair.live[--pair.live_count]);
  close_pair();
}

FIXTURE(.teardown = NULL)

TEST(random_histories) {
  uint64_t first = 1, count = (uint64_t)repetitions(200, 10000);
  pair.refused[EXPANDABLE] = pair.refused[MOVING] = 0;
  for (uint64_t seed = first; seed < first + count; seed++)
    run(seed, 150);
  print_message("refused under the limit: %llu requests with expandable segments, %llu with moving pages\n",
                (unsigned long long)pair.refused[EXPANDABLE], (unsigned long long)pair.refused[MOVING]);
  assert_true(pair.refused[MOVING] <= pair.refused[EXPANDABLE]);
}

/* ---- Serving ---- */

/* Requests arrive, each with a prompt and a number of tokens to generate, both of lognormal length. Its cache grows by
 * a token at a time into a new block (as torch.cat does), by doubling, or by fixed blocks of sixteen tokens. */
typedef enum growth { BY_TOKEN, BY_DOUBLING, PAGED } growth;

enum { AT_ONCE = 24, LAYERS = 8, TOKEN = 8 * 1024, PARTS = 256 };

typedef struct sequence {
  uint64_t length, end, room;
  live_block cache[LAYERS * PARTS];
  int blocks;
} sequence;

static double normal(void) { /* nearly: a sum of uniform numbers */
  double sum = -6;
  for (int i = 0; i < 12; i++)
    sum += (double)below(1u << 30) / (1u << 30);
  return sum;
}

static uint64_t lognormal(double median, uint64_t most) {
  double power = 1 + 0.8 * normal() / 1024;
  for (int i = 0; i < 10; i++)
    power *= power;
  uint64_t n = (uint64_t)(median * power) + 1;
  return n < most ? n : most;
}

static void grow_to(sequence *s, growth how, uint64_t room) {
  for (int layer = 0; layer < LAYERS; layer++) {
    live_block made;
    if (how == PAGED) {
      assert_true(s->blocks < LAYERS * PARTS);
      assert_true(allocate((room - s->room) * TOKEN, 0, &s->cache[s->blocks++]));
      continue;
    }
    assert_true(allocate(room * TOKEN, 0, &made));
    if (s->blocks == LAYERS) {
      release(&s->cache[layer]);
      s->cache[layer] = made;
    } else
      s->cache[s->blocks++] = made;
  }
  s->room = room;
}

static void end_sequence(sequence *s) {
  while (s->blocks)
    release(&s->cache[--s->blocks]);
  s->end = 0;
}

static double fragmentation(int kind) {
  weir_allocator_stats stats = stats_of(kind);
  return 1 - (double)stats.allocated_bytes[WEIR_STAT_ALL].peak / (double)stats.reserved_bytes[WEIR_STAT_ALL].peak;
}

/* A page that is made costs 47 us on an H200, and one that moves 36. */
static double driver_us(int kind) {
  weir_allocator_stats stats = stats_of(kind);
  return kind == EXPANDABLE ? 47 * (double)(reserved(kind) / (20 * MIB))
                            : 47 * (double)stats.moving_pages_made + 36 * (double)stats.moving_pages_moved;
}

static void serve(uint64_t seed, growth how, int tokens) {
  static sequence slots[AT_ONCE];
  live_block weights[40], scratch;
  pair.random = seed;
  open_pair("", 64 * GIB);
  pair.are_addresses_same = true;
  for (int i = 0; i < 40; i++)
    assert_true(allocate((8 + below(56)) * MIB, 0, &weights[i]));
  for (int t = 0; t < tokens; t++) {
    for (int i = 0; i < AT_ONCE; i++) {
      sequence *s = &slots[i];
      if (!s->end && below(8) == 0) { /* a request arrives: its prompt is read at once */
        s->length = lognormal(300, 1500);
        s->end = s->length + lognormal(120, 800);
        s->room = 0;
        assert_true(allocate(s->length * 64 * 1024, 0, &scratch));
        grow_to(s, how, how == PAGED ? (s->length + 15) / 16 * 16 : s->length);
        release(&scratch);
      } else if (s->end && ++s->length > s->end)
        end_sequence(s);
      else if (s->end && s->length > s->room)
        grow_to(s, how, how == BY_TOKEN ? s->length : how == BY_DOUBLING ? 2 * s->room : s->room + 16);
    }
    assert_true(allocate(AT_ONCE * 128 * 1024, 0, &scratch)); /* logits */
    release(&scratch);
    compare();
  }
  double was = fragmentation(EXPANDABLE), now = fragmentation(MOVING);
  double had = driver_us(EXPANDABLE), has = driver_us(MOVING);
  double pages = (double)stats_of(MOVING).allocated_bytes[WEIR_STAT_ALL].peak / (2 * MIB);
  print_message("%s: fragmentation %.1f %%, %.1f ms in the driver; expandable segments %.1f %%, %.1f ms\n",
                how == BY_TOKEN      ? "by token"
                : how == BY_DOUBLING ? "by doubling"
                                     : "paged",
                100 * now, has / 1e3, 100 * was, had / 1e3);
  assert_true(now <= was);
  assert_true(now <= 0.04 || has <= 2.2 * had || has <= 40 * pages);
  for (int i = 0; i < AT_ONCE; i++)
    end_sequence(&slots[i]);
  for (int i = 0; i < 40; i++)
    release(&weights[i]);
  close_pair();
}

TEST(serving) {
  for (growth how = BY_TOKEN; how <= PAGED; how++)
    for (int seed = 1; seed <= usual_or_long(1, 10); seed++)
      serve((uint64_t)seed, how, usual_or_long(600, 6000));
}

/* ---- A working set ---- */

/* Any of a thousand blocks of up to 64 MiB is replaced by one of another size, which takes pages from the others for
 * ever. The driver is asked for at most half as many moves again as are earned, and no more is reserved than with
 * expandable segments. */
TEST(working_set) {
  enum { COUNT = 1000, LARGEST = 64 * MIB };
  static live_block blocks[COUNT];
  const int replaced = usual_or_long(40000, 500000);
  pair.random = 42;
  open_pair("", 140 * GIB);
  pair.are_addresses_same = true;
  for (int i = 0; i < COUNT; i++)
    assert_true(allocate(1 + below(LARGEST), 0, &blocks[i]));
  for (int i = 0; i < replaced; i++) {
    live_block *b = &blocks[below(COUNT)];
    release(b);
    assert_true(allocate(1 + below(LARGEST), 0, b));
    if (i % 100 == 0)
      compare();
  }
  weir_allocator_stats stats = stats_of(MOVING);
  print_message("%lld pages moved, %lld made; %.2f GiB, expandable segments %.2f GiB\n",
                (long long)stats.moving_pages_moved, (long long)stats.moving_pages_made, (double)reserved(MOVING) / GIB,
                (double)reserved(EXPANDABLE) / GIB);
  assert_true(2 * stats.moving_pages_moved <= 3 * (stats.moving_pages_made + (COUNT + replaced) / 200));
  for (int i = 0; i < COUNT; i++)
    release(&blocks[i]);
  close_pair();
}

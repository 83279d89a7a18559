/*
 * Random operations against a model that is slow and plain.
 *
 * The model knows what is live, what every stream still has to do, and nothing of how the allocator works. It checks
 * that no two live blocks overlap, that memory which a stream has yet to use is given to nobody else, and that what
 * was written is what is read, in the order of the streams. Before each allocation it looks through all blocks, one
 * by one, for the one that best fit would take. After every operation the walker runs, and the books are compared
 * with the device's.
 *
 * A failing run names its seed; WEIR_TEST_SEED runs that one alone, WEIR_TEST_STEPS so many steps of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"

enum { STREAMS = 4, POOLS = 3, MOST = 160, EDGE = 64, DEVICE = 640 * 1024 * 1024 };

/* ---- Work: what streams do to memory ---- */

typedef struct piece_of_work {
  int stream;
  unsigned long number; /* among those of its stream */
  char *memory;         /* NULL: only work */
  size_t bytes;
  uint8_t pattern;
  bool writes; /* or checks */
} piece_of_work;

static weir_cu_stream streams[STREAMS];
static unsigned long issued[STREAMS], done[STREAMS]; /* pieces of work */
static unsigned long spoiled;                        /* reads that found something else than was written */

/* The first and the last bytes of a block stand for all of it. */
static void run_piece(void *data) {
  piece_of_work *w = data;
  size_t edge = w->bytes < EDGE ? w->bytes : EDGE;
  for (size_t i = 0; w->memory && i < edge; i++) {
    char *ends[] = {w->memory + i, w->memory + w->bytes - 1 - i};
    for (int k = 0; k < 2; k++)
      if (w->writes)
        *ends[k] = (char)w->pattern;
      else
        spoiled += (uint8_t)*ends[k] != w->pattern;
  }
  done[w->stream] = w->number;
  free(w);
}

static void issue(int stream, bool writes, char *memory, size_t bytes, uint8_t pattern) {
  piece_of_work *w = malloc(sizeof *w);
  assert_non_null(w);
  *w = (piece_of_work){stream, ++issued[stream], memory, bytes, pattern, writes};
  OK(d->LaunchHostFunc(d, streams[stream], run_piece, w));
}

/* What `stream` does from here on comes after what `first` has to do now. */
static void wait_for(int stream, int first) {
  weir_cu_event event = soft_event();
  OK(d->EventRecord(d, event, streams[first]));
  OK(d->StreamWaitEvent(d, streams[stream], event, 0));
  OK(d->EventDestroy(d, event));
}

/* ---- The model ---- */

typedef struct block {
  char *memory;
  size_t bytes; /* as requested */
  int stream;
  unsigned used_by; /* a bit for each other stream */
  uint8_t pattern;
  int pool; /* -1: the default one */
} block;

static block live[MOST];
static int live_count;

/* Freed memory that other streams have yet to use: nobody may have it before they are there. */
typedef struct shadow {
  char *memory;
  size_t bytes;
  unsigned long until[STREAMS];
} shadow;
static shadow shadows[4 * MOST];
static int shadow_count;

static const weir_pool_id pool_ids[POOLS] = {{0, 1}, {7, 0}, {0, 3}};
static int held[POOLS];       /* how often */
static int scopes[POOLS + 1]; /* pools of the open scopes, the innermost last */
static int scope_count;
static weir_checkpoint *checkpoints[POOLS];
static bool faulty; /* driver calls fail at random */

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
  return a < b + b_bytes && b < a + a_bytes;
}

static void forget_shadows_that_are_over(void) {
  for (int i = 0; i < shadow_count;) {
    bool over = true;
    for (int s = 0; s < STREAMS; s++)
      over &= done[s] >= shadows[i].until[s];
    if (over)
      shadows[i] = shadows[--shadow_count];
    else
      i++;
  }
}

static void begin_life(char *memory, size_t bytes, int stream, int pool) {
  assert_true(live_count < MOST);
  for (int i = 0; i < live_count; i++)
    if (overlap(memory, bytes, live[i].memory, live[i].bytes)) {
      print_error("%p is given out, and lies in the live block %p\n", (void *)memory, (void *)live[i].memory);
      fail();
    }
  forget_shadows_that_are_over();
  for (int i = 0; i < shadow_count; i++)
    if (overlap(memory, bytes, shadows[i].memory, shadows[i].bytes)) {
      print_error("%p is given out, and another stream still uses it\n", (void *)memory);
      fail();
    }
  block b = {memory, bytes, stream, 0, (uint8_t)soft_random(256), pool};
  live[live_count++] = b;
  issue(stream, true, memory, bytes, b.pattern);
}

static void end_life(int i) {
  block b = live[i];
  live[i] = live[--live_count];
  if (b.used_by) {
    shadow s = {b.memory, b.bytes, {0}};
    for (int k = 0; k < STREAMS; k++)
      if (b.used_by >> k & 1)
        s.until[k] = issued[k];
    assert_true(shadow_count < (int)WEIR_COUNT_OF(shadows));
    shadows[shadow_count++] = s;
    forget_shadows_that_are_over();
  }
}

static int find_live(const void *memory) {
  for (int i = 0; i < live_count; i++)
    if (live[i].memory == memory)
      return i;
  return -1;
}

/* ---- Best fit, the slow way ---- */

static bool comes_before(const weir__block *a, const weir__block *b) {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
}

/* The free block of the arena behind `last`, in the order of size and address, of at least `bytes`. */
static const weir__block *next_free(const weir__pool *pool, weir_cu_stream stream, uint64_t bytes,
                                    const weir__block *last) {
  const weir__block *best = NULL;
  for (const weir__segment *s = allocator->heaps[0].segments; s; s = s->next)
    for (const weir__block *b = s->first; b && s->arena->pool == pool && s->arena->stream == stream; b = b->next)
      if (b->mapped && !b->allocated && !b->events && !b->uses && b->bytes >= bytes &&
          (!last || comes_before(last, b)) && (!best || comes_before(b, best)))
        best = b;
  return best;
}

static uint64_t could_become(const weir__block *b) {
  return b->bytes + (b->next && !b->next->mapped ? b->next->bytes : 0);
}

static const weir__block *best_fit(const weir__pool *pool, weir_cu_stream stream, uint64_t bytes) {
  const weir__settings *settings = atomic_load(&allocator->settings);
  const weir__block *b = next_free(pool, stream, bytes, NULL), *next;
  if (!b)
    return NULL;
  if (b->segment->page && settings->expandable_segments) {
    while (b->segment->page && (next = next_free(pool, stream, bytes, b)) && could_become(next) < could_become(b))
      b = next;
  } else
    while (b && b->segment->page)
      b = next_free(pool, stream, bytes, b);
  if (!b || (bytes < settings->max_split_size && b->bytes >= settings->max_split_size) ||
      (bytes >= settings->max_split_size && b->bytes >= bytes + settings->max_non_split_rounding))
    return NULL;
  return b;
}

/* ---- Operations ---- */

static void poll_events(weir_cu_stream stream) {
  weir__heap *heap = &allocator->heaps[0];
  pthread_mutex_lock(&heap->lock);
  if (heap->cu_context)
    weir__poll_events(heap, stream);
  pthread_mutex_unlock(&heap->lock);
}

static size_t some_bytes(void) {
  switch (soft_random(8)) {
  case 0:
    return 1 + soft_random(600);
  case 1:
  case 2:
    return 1 + soft_random(64 * KIB);
  case 3:
    return 1 + soft_random(MIB);
  case 4:
  case 5:
    return MIB + soft_random(9 * MIB);
  case 6:
    return (1 + soft_random(60)) * MIB;
  default:
    return MIB + soft_random(120 * MIB);
  }
}

static void op_alloc(void) {
  if (live_count == MOST)
    return;
  weir__heap *heap = &allocator->heaps[0];
  int stream = (int)soft_random(STREAMS), pool = scope_count ? scopes[scope_count - 1] : -1;
  size_t bytes = some_bytes();
  poll_events(streams[stream]);
  uint64_t size = weir__round_bytes(atomic_load(&allocator->settings), bytes);
  bool small = size <= WEIR__SMALL_MAX;
  weir__private_pool *owner = pool < 0 ? NULL : weir__pool_find(heap, pool_ids[pool]);
  const weir__pool *where = owner ? small ? &owner->small : &owner->large : small ? &heap->small : &heap->large;
  const weir__block *expected = best_fit(where, streams[stream], size);
  uint64_t expected_address = expected ? expected->address : 0;

  void *memory = NULL;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &memory);
  if (expected && !faulty) {
    assert_int_equal(status, WEIR_OK);
    assert_int_equal((uint64_t)memory, expected_address);
  }
  if (status == WEIR_OK) {
    begin_life(memory, bytes, stream, pool);
    return;
  }
  if (faulty)
    return;
  assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
  /* It was not for want of looking: the same again fails again, and a segment of that size, or whole pages, do not
   * fit. */
  assert_int_equal(weir_allocator_alloc(allocator, 0, bytes, streams[stream], &memory), WEIR_ERROR_OUT_OF_MEMORY);
  uint64_t allowed = heap->has_limit && heap->limit < heap->total ? heap->limit : heap->total;
  const weir__settings *settings = atomic_load(&allocator->settings);
  uint64_t wanted = weir__segment_bytes(settings, size);
  if (settings->expandable_segments)
    wanted = weir__round_up(wanted, settings->large_segment_size);
  assert_true(heap->reserved + wanted > allowed);
}

static void op_free(void) {
  if (!live_count)
    return;
  int i = (int)soft_random((uint64_t)live_count);
  block b = live[i];
  issue(b.stream, false, b.memory, b.bytes, b.pattern);
  CHECK(weir_allocator_free(allocator, b.memory));
  end_life(i);
}

/* Another stream reads the block, once it was written. */
static void op_use(void) {
  if (!live_count)
    return;
  block *b = &live[soft_random((uint64_t)live_count)];
  int stream = (int)soft_random(STREAMS);
  CHECK(weir_allocator_record_stream(allocator, b->memory, streams[stream]));
  if (stream != b->stream) {
    wait_for(stream, b->stream);
    b->used_by |= 1u << stream;
  }
  issue(stream, false, b->memory, b->bytes, b->pattern);
}

static void op_work(void) { issue((int)soft_random(STREAMS), false, NULL, 0, 0); }

static void op_step(void) {
  if (soft_random(20) == 0)
    soft_step_all();
  else
    soft_step(streams[soft_random(STREAMS)], soft_random(30));
}

static void op_empty(void) {
  weir_status status = soft_random(2) ? weir_allocator_empty_cache(allocator)
                                      : weir_allocator_empty_pool(allocator, pool_ids[soft_random(POOLS)]);
  if (!faulty)
    assert_int_equal(status, WEIR_OK);
}

static void op_limit(void) {
  CHECK(weir_allocator_set_fraction(allocator, 0, soft_random(3) ? 1 : 0.4 + (double)soft_random(600) / 1000));
}

static void op_configure(void) {
  static const char *const confs[] = {"expandable_segments:True",
                                      "expandable_segments:False",
                                      "max_split_size_mb:20",
                                      "max_split_size_mb:64,max_non_split_rounding_mb:30",
                                      "max_split_size_mb:4096",
                                      "garbage_collection_threshold:0.3",
                                      "garbage_collection_threshold:0.8",
                                      "roundup_power2_divisions:4",
                                      "roundup_power2_divisions:0",
                                      "release_lock_on_cudamalloc:True",
                                      "release_lock_on_cudamalloc:False"};
  configure(confs[soft_random(WEIR_COUNT_OF(confs))]);
}

static void op_bad_free(void) {
  char *p = live_count ? live[soft_random((uint64_t)live_count)].memory + 1 + soft_random(3) * 511 : (char *)&p;
  if (find_live(p) >= 0)
    return;
  assert_int_equal(weir_allocator_free(allocator, p), WEIR_ERROR_INVALID_ARGUMENT);
}

/* ---- Pools ---- */

static bool is_open(int pool) {
  for (int i = 0; i < scope_count; i++)
    if (scopes[i] == pool)
      return true;
  return false;
}

static void op_scope(void) {
  int pool = (int)soft_random(POOLS);
  if (!is_open(pool)) {
    CHECK(weir_pool_begin(allocator, 0, pool_ids[pool], NULL, NULL));
    scopes[scope_count++] = pool;
    held[pool]++;
    return;
  }
  CHECK(weir_pool_end(allocator, 0, pool_ids[pool]));
  int i = 0;
  while (scopes[i] != pool)
    i++;
  scope_count--;
  memmove(&scopes[i], &scopes[i + 1], (size_t)(scope_count - i) * sizeof *scopes);
}

static void op_hold(void) {
  int pool = (int)soft_random(POOLS), count = -1;
  if (soft_random(3) == 0) {
    weir_pool_options options;
    weir_pool_options_init(&options);
    options.use_on_oom = (int)soft_random(2);
    options.no_split = soft_random(4) == 0;
    CHECK(weir_pool_create(allocator, 0, pool_ids[pool], &options));
    held[pool]++;
  } else if (held[pool] > 1 || (held[pool] && !checkpoints[pool])) {
    CHECK(weir_pool_release(allocator, 0, pool_ids[pool]));
    held[pool]--;
  }
  if (held[pool]) {
    CHECK(weir_pool_use_count(allocator, 0, pool_ids[pool], &count));
    assert_int_equal(count, held[pool]);
  }
}

static void op_check_live(void) {
  void *pointers[MOST];
  size_t count = 0;
  int pool = (int)soft_random(POOLS), equal = -1;
  if (!held[pool])
    return;
  for (int i = 0; i < live_count; i++) {
    weir__segment *segment = weir__page_map_find(allocator->pages, (uint64_t)live[i].memory);
    weir__private_pool *owner = segment->arena->pool->owner; /* a block may be lent */
    if (owner && owner->id.first == pool_ids[pool].first && owner->id.second == pool_ids[pool].second)
      pointers[count++] = live[i].memory;
  }
  CHECK(weir_pool_check_live(allocator, 0, pool_ids[pool], pointers, count, &equal));
  assert_int_equal(equal, 1);
}

static void op_checkpoint(void) {
  int pool = (int)soft_random(POOLS);
  if (!held[pool])
    return;
  if (!checkpoints[pool]) {
    weir_status status = weir_pool_checkpoint(allocator, 0, pool_ids[pool], &checkpoints[pool]);
    if (status != WEIR_OK)
      assert_int_equal(status, WEIR_ERROR_BAD_STATE); /* a block waits */
    return;
  }
  if (soft_random(4) == 0) {
    weir_checkpoint_destroy(checkpoints[pool]);
    checkpoints[pool] = NULL;
    return;
  }
  weir_checkpoint_delta delta = {0};
  weir_status status = weir_pool_restore(allocator, checkpoints[pool], &delta);
  if (status != WEIR_OK) {
    assert_int_equal(status, WEIR_ERROR_BAD_STATE); /* a block is used by another stream */
    return;
  }
  for (size_t i = 0; i < delta.freed_count; i++) {
    int at = find_live(delta.freed[i]);
    assert_true(at >= 0);
    assert_int_equal(live[at].used_by, 0);
    issue(live[at].stream, false, live[at].memory, live[at].bytes, live[at].pattern);
    end_life(at);
  }
  for (size_t i = 0; i < delta.allocated_count; i++) {
    weir__segment *segment = weir__page_map_find(allocator->pages, (uint64_t)delta.allocated[i]);
    const weir__block *b = weir__live_find(&segment->arena->live, (uint64_t)delta.allocated[i]);
    int stream = 0;
    while (streams[stream] != segment->arena->stream)
      stream++;
    begin_life(delta.allocated[i], b->requested, stream, pool);
  }
  weir_checkpoint_delta_clear(&delta);
}

/* ---- The run ---- */

static const struct {
  void (*run)(void);
  unsigned weight;
} ops[] = {{op_alloc, 300}, {op_free, 220},     {op_use, 60},       {op_work, 40},    {op_step, 90},
           {op_empty, 12},  {op_limit, 6},      {op_configure, 8},  {op_bad_free, 8}, {op_scope, 25},
           {op_hold, 15},   {op_check_live, 8}, {op_checkpoint, 12}};

static void check_counts(void) {
  weir_allocator_stats s = stats_of(0);
  int64_t requested = 0;
  for (int i = 0; i < live_count; i++)
    requested += (int64_t)live[i].bytes;
  assert_int_equal(s.allocation[WEIR_STAT_ALL].current, live_count);
  assert_int_equal(s.allocation[WEIR_STAT_ALL].allocated - s.allocation[WEIR_STAT_ALL].freed, live_count);
  assert_true(s.requested_bytes[WEIR_STAT_ALL].current >= requested);
  assert_true(s.allocated_bytes[WEIR_STAT_ALL].current >= requested);
  assert_true(s.reserved_bytes[WEIR_STAT_ALL].current <= DEVICE);
  assert_int_equal(s.num_device_alloc > 0, s.reserved_bytes[WEIR_STAT_ALL].allocated > 0);
  assert_int_equal(spoiled, 0);
}

static void run(uint64_t seed, unsigned long steps) {
  soft_seed(seed);
  alloc_open("", DEVICE);
  live_count = shadow_count = scope_count = 0;
  memset(held, 0, sizeof held);
  memset(issued, 0, sizeof issued);
  memset(done, 0, sizeof done);
  spoiled = 0;
  streams[0] = NULL;
  for (int i = 1; i < STREAMS; i++)
    streams[i] = work_stream();
  if (faulty)
    CHECK(weir_fault_random(faults, seed, 30000, soft_random(2) ? WEIR_CU_OUT_OF_MEMORY : WEIR_CU_UNKNOWN));
  unsigned all = 0;
  for (size_t i = 0; i < WEIR_COUNT_OF(ops); i++)
    all += ops[i].weight;

  for (unsigned long step = 0; step < steps; step++) {
    unsigned at = (unsigned)soft_random(all);
    size_t op = 0;
    while (at >= ops[op].weight)
      at -= ops[op++].weight;
    ops[op].run();
    assert_valid();
    check_counts();
  }

  CHECK(weir_fault_clear(faults));
  for (int i = 0; i < POOLS; i++) {
    weir_checkpoint_destroy(checkpoints[i]);
    checkpoints[i] = NULL;
  }
  while (live_count)
    op_free();
  while (scope_count)
    op_scope();
  for (int i = 0; i < POOLS; i++)
    while (held[i]-- > 0)
      CHECK(weir_pool_release(allocator, 0, pool_ids[i]));
  soft_step_all();
  empty_cache();
  assert_int_equal(reserved(), 0);
  check_counts();
  for (int i = 0; i < STREAMS; i++)
    assert_int_equal(done[i], issued[i]);
  alloc_close();
}

static void run_seeds(int rounds, unsigned long steps) {
  const char *text = getenv("WEIR_TEST_STEPS");
  if (text)
    steps = strtoul(text, NULL, 10);
  for (uint64_t seed = soft_first_seed(&rounds); rounds-- > 0; seed++)
    run(seed, steps);
}

static void test_random_operations(void **state) {
  (void)state;
  faulty = false;
  run_seeds(10, 2000);
}

static void test_random_operations_and_faults(void **state) {
  (void)state;
  faulty = true;
  run_seeds(6, 2000);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_random_operations, alloc_teardown),
      cmocka_unit_test_teardown(test_random_operations_and_faults, alloc_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

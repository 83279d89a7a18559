/*
 * Peaks are exact if one stream is active at a time, on any thread and in any order. With several active streams they
 * are never too low, and too high by at most 1 MiB per stream.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "alloc/cache/heap.h"
#include "support/alloc.h"

enum { THREADS = 16, ROUNDS = 400, HELD = 12 };

static weir_cu_stream streams[THREADS];

static void open(const char *conf) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, 64 * GIB, conf);
  for (int i = 0; i < THREADS; i++)
    streams[i] = work_stream();
}

/* ---- In turns ---- */

typedef struct tally {
  int64_t now[3], peak[3]; /* all, small, large */
} tally;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static tally bytes, count;

static void add(tally *t, int64_t by, bool is_small) {
  int kinds[] = {WEIR_STAT_ALL, is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL};
  for (int i = 0; i < 2; i++) {
    t->now[kinds[i]] += by;
    if (t->now[kinds[i]] > t->peak[kinds[i]])
      t->peak[kinds[i]] = t->now[kinds[i]];
  }
}

/* Sizes that no rule rounds. */
static size_t some_size(uint64_t *random) {
  return soft_random_r(random, 3) ? (1 + soft_random_r(random, 1024)) * 512 : (1 + soft_random_r(random, 8)) * 12 * MIB;
}

static void *in_turns(void *argument) {
  int number = *(int *)argument;
  uint64_t random = (uint64_t)number + 77;
  void *held[HELD] = {0};
  size_t sizes[HELD];
  for (int i = 0; i < ROUNDS; i++) {
    int k = (int)soft_random_r(&random, HELD);
    pthread_mutex_lock(&turn);
    if (held[k]) {
      assert_ok(weir_allocator_free(allocator, held[k]));
      add(&bytes, -(int64_t)sizes[k], sizes[k] <= MIB);
      add(&count, -1, sizes[k] <= MIB);
      held[k] = NULL;
    } else {
      sizes[k] = some_size(&random);
      assert_ok(weir_allocator_alloc(allocator, 0, sizes[k], streams[number], &held[k]));
      add(&bytes, (int64_t)sizes[k], sizes[k] <= MIB);
      add(&count, 1, sizes[k] <= MIB);
    }
    pthread_mutex_unlock(&turn);
  }
  pthread_mutex_lock(&turn);
  for (int k = 0; k < HELD; k++)
    if (held[k]) {
      assert_ok(weir_allocator_free(allocator, held[k]));
      add(&bytes, -(int64_t)sizes[k], sizes[k] <= MIB);
      add(&count, -1, sizes[k] <= MIB);
    }
  pthread_mutex_unlock(&turn);
  return NULL;
}

static void run(void *(*body)(void *)) {
  pthread_t threads[THREADS];
  int numbers[THREADS];
  for (int i = 0; i < THREADS; i++) {
    numbers[i] = i;
    assert_int_equal(pthread_create(&threads[i], NULL, body, &numbers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_valid();
}

FIXTURE(.teardown = alloc_teardown)

TEST(in_turns) {
  static const char *const confs[] = {NULL, "expandable_segments:True"};
  for (int i = 0; i < 2; i++) {
    open(confs[i]);
    bytes = count = (tally){0};
    run(in_turns);
    weir_allocator_stats stats = stats_of(0);
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
      assert_int_equal(stats.allocated_bytes[kind].current, 0);
      assert_int_equal(stats.allocated_bytes[kind].peak, bytes.peak[kind]);
      assert_int_equal(stats.active_bytes[kind].peak, bytes.peak[kind]);
      assert_int_equal(stats.requested_bytes[kind].peak, bytes.peak[kind]);
      assert_int_equal(stats.allocation[kind].peak, count.peak[kind]);
      assert_int_equal(stats.active[kind].peak, count.peak[kind]);
    }
    alloc_close();
  }
}

/* ---- At once ---- */

static pthread_barrier_t barrier;
static const size_t piece = 256 * KIB;

/* All threads hold HELD blocks at the same moment once; before and after that they allocate and free freely, and never
 * hold more. */
static void *at_once(void *argument) {
  int number = *(int *)argument;
  uint64_t random = (uint64_t)number + 5;
  void *held[HELD] = {0};
  for (int phase = 0; phase < 2; phase++) {
    for (int i = 0; i < 20 * ROUNDS; i++) {
      int k = (int)soft_random_r(&random, HELD);
      if (held[k])
        assert_ok(weir_allocator_free(allocator, held[k]));
      held[k] = NULL;
      if (soft_random_r(&random, 2))
        assert_ok(weir_allocator_alloc(allocator, 0, piece, streams[number], &held[k]));
    }
    for (int k = 0; k < HELD && !phase; k++)
      if (!held[k])
        assert_ok(weir_allocator_alloc(allocator, 0, piece, streams[number], &held[k]));
    pthread_barrier_wait(&barrier);
  }
  for (int k = 0; k < HELD; k++)
    if (held[k])
      assert_ok(weir_allocator_free(allocator, held[k]));
  return NULL;
}

TEST(at_once) {
  open(NULL);
  assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS), 0);
  run(at_once);
  pthread_barrier_destroy(&barrier);
  weir_allocator_stats stats = stats_of(0);
  int64_t most = (int64_t)THREADS * HELD * (int64_t)piece;
  assert_int_equal(stats.allocated_bytes[WEIR_STAT_ALL].current, 0);
  assert_int_equal(stats.allocated_bytes[WEIR_STAT_ALL].allocated, stats.allocated_bytes[WEIR_STAT_ALL].freed);
  assert_in_range(stats.allocated_bytes[WEIR_STAT_ALL].peak, most, most + THREADS * (int64_t)MIB);
  assert_in_range(stats.active_bytes[WEIR_STAT_SMALL_POOL].peak, most, most + THREADS * (int64_t)MIB);
  assert_true(stats.allocation[WEIR_STAT_ALL].peak >= THREADS * HELD);
  alloc_close();
}

/* ---- Quotas ---- */

/* A pair on each stream, which takes one block at a time. */
static void do_pairs(void) {
  for (int i = 0; i < THREADS; i++) {
    void *p;
    assert_ok(weir_allocator_alloc(allocator, 0, 4 * KIB, streams[i], &p));
    assert_ok(weir_allocator_free(allocator, p));
  }
}

/* The headroom is just sufficient for one block of each stream. After a few rounds every stream has its quota, and none
 * revokes those of the others any more. */
TEST(every_stream_gets_a_quota) {
  void *held[THREADS];
  open(NULL);
  for (int i = 0; i < THREADS; i++)
    assert_ok(weir_allocator_alloc(allocator, 0, 4 * KIB, streams[i], &held[i]));
  for (int i = 0; i < THREADS; i++)
    assert_ok(weir_allocator_free(allocator, held[i]));
  for (int i = 0; i < 40; i++)
    do_pairs();
  int count = 0;
  for (const weir__arena_account *arena = allocator->heaps[0].accounts.with_quota; arena; arena = arena->next)
    count++;
  assert_int_equal(count, THREADS);
  do_pairs();
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].peak, THREADS);
  assert_int_equal(stats_of(0).allocated_bytes[WEIR_STAT_ALL].peak, THREADS * 4 * KIB);
  alloc_close();
}

/* ---- Waiting ---- */

static atomic_bool may_go_on;

static void hold_stream(void *data) {
  (void)data;
  for (int i = 0; i < 500 && !atomic_load(&may_go_on); i++)
    usleep(1000);
}

static void *empty(void *data) {
  (void)data;
  assert_ok(weir_allocator_empty_cache(allocator));
  return NULL;
}

/* A thread that empties the cache waits for a stream with the lock of its arena held. Another arena, which exceeds its
 * quota meanwhile and revokes all others, does not wait with it. */
TEST(claim_beside_a_wait) {
  enum { COUNT = 32 };
  void *held[COUNT];
  open("expandable_segments:True");
  atomic_store(&may_go_on, false);
  for (int i = 1; i >= 0; i--) { /* the last arena keeps its quota */
    assert_ok(weir_allocator_alloc(allocator, 0, i ? 4 * KIB : 40 * MIB, streams[i], &held[0]));
    assert_ok(weir_allocator_free(allocator, held[0]));
  }
  assert_true(weir__arena_find(&allocator->heaps[0].large, streams[0])->account.has_quota);
  unsigned long waits = calls(WEIR_CALL_StreamSynchronize);
  assert_cu(d->LaunchHostFunc(d, streams[0], hold_stream, NULL));
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, empty, NULL), 0);
  while (calls(WEIR_CALL_StreamSynchronize) == waits)
    usleep(100);
  for (int i = 0; i < COUNT; i++) /* more than the headroom */
    assert_ok(weir_allocator_alloc(allocator, 0, 4 * KIB, streams[1], &held[i]));
  weir_cu_result busy = d->StreamQuery(d, streams[0]);
  atomic_store(&may_go_on, true);
  pthread_join(thread, NULL);
  assert_int_equal(busy, WEIR_CU_NOT_READY);
  for (int i = 0; i < COUNT; i++)
    assert_ok(weir_allocator_free(allocator, held[i]));
  alloc_close();
}

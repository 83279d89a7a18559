/*
 * Snapshots while other threads allocate and free: each shows a single moment.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "inspect/snapshot.h"
#include "support/alloc.h"
#include "support/length.h"

enum { PAIRS = 2, BALLAST = 2000, FIRST = 3000, SECOND = 5000 };

static weir_cu_stream first_stream[PAIRS], second_stream[PAIRS];
static atomic_bool stop;
static atomic_int wrong;

/* Holds the second block only while it holds the first. */
static void *one_inside_the_other(void *argument) {
  size_t i = (size_t)argument;
  while (!atomic_load(&stop)) {
    void *outer, *inner;
    if (weir_allocator_alloc(allocator, 0, FIRST, first_stream[i], &outer) ||
        weir_allocator_alloc(allocator, 0, SECOND, second_stream[i], &inner) || weir_allocator_free(allocator, inner) ||
        weir_allocator_free(allocator, outer))
      atomic_fetch_add(&wrong, 1);
  }
  return NULL;
}

/* Meanwhile allocates and frees large segments. */
static void *allocate_and_free(void *argument) {
  (void)argument;
  while (!atomic_load(&stop)) {
    void *p;
    if (weir_allocator_alloc(allocator, 0, 12 * MIB, NULL, &p) || weir_allocator_free(allocator, p) ||
        weir_allocator_empty_cache(allocator))
      atomic_fetch_add(&wrong, 1);
  }
  return NULL;
}

static size_t count_live(const weir_snapshot *snapshot, weir_cu_stream stream, uint64_t requested) {
  size_t live = 0;
  for (size_t i = 0; i < snapshot->segment_count; i++)
    for (size_t k = 0; k < snapshot->segments[i].block_count; k++) {
      const weir_snapshot_block *b = &snapshot->segments[i].blocks[k];
      live += snapshot->segments[i].stream == stream && b->state == WEIR_BLOCK_ACTIVE_ALLOCATED &&
              b->requested == requested;
    }
  return live;
}

/* Returns the number of live outer blocks. */
static size_t check(const weir_snapshot *snapshot) {
  size_t live = 0;
  for (size_t i = 0; i < snapshot->segment_count; i++) {
    const weir_snapshot_segment *s = &snapshot->segments[i];
    uint64_t at = s->address;
    for (size_t k = 0; k < s->block_count; k++) {
      assert_int_equal(s->blocks[k].address, at);
      at += s->blocks[k].bytes;
    }
    assert_int_equal(at, s->address + s->bytes);
  }
  for (size_t i = 0; i < PAIRS; i++) {
    size_t outer = count_live(snapshot, first_stream[i], FIRST), inner = count_live(snapshot, second_stream[i], SECOND);
    assert_true(outer <= 1);
    assert_true(inner <= outer);
    live += outer;
  }
  return live;
}

/* Permanent blocks, so that copying a stream takes longer than a thread holds its two blocks. */
static void add_ballast(weir_cu_stream stream, void **blocks) {
  for (int i = 0; i < BALLAST; i++)
    assert_ok(weir_allocator_alloc(allocator, 0, 512, stream, &blocks[i]));
}

FIXTURE(.teardown = alloc_teardown)

TEST(snapshots_are_consistent) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, NULL);
  static void *ballast[2 * PAIRS][BALLAST];
  pthread_t threads[PAIRS + 1];
  atomic_store(&stop, false);
  for (size_t i = 0; i < PAIRS; i++) {
    first_stream[i] = work_stream();
    second_stream[i] = work_stream();
    add_ballast(first_stream[i], ballast[2 * i]);
    add_ballast(second_stream[i], ballast[2 * i + 1]);
  }
  for (size_t i = 0; i < PAIRS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, one_inside_the_other, (void *)i), 0);
  assert_int_equal(pthread_create(&threads[PAIRS], NULL, allocate_and_free, NULL), 0);
  size_t seen = 0, live = 0;
  const int shots = repetitions(160, 4000);
  for (int n = 0; n < shots; n++) {
    weir_snapshot *snapshot = NULL;
    assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
    live += check(snapshot);
    seen += snapshot->block_count;
    weir_snapshot_destroy(snapshot);
  }
  atomic_store(&stop, true);
  for (size_t i = 0; i < PAIRS + 1; i++)
    pthread_join(threads[i], NULL);
  assert_int_equal(atomic_load(&wrong), 0);
  assert_true(live > 0);
  assert_true(seen >= (size_t)shots * 2 * PAIRS * BALLAST);
  for (size_t i = 0; i < WEIR_COUNT_OF(ballast); i++)
    for (size_t k = 0; k < BALLAST; k++)
      assert_ok(weir_allocator_free(allocator, ballast[i][k]));
  alloc_close();
}

/*
 * Accounts are read while other threads allocate: without an arena's lock, and exactly.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "alloc/memory/account.h"
#include "support/alloc.h"

enum { THREADS = 6, ROUNDS = 3000, HELD = 8 };

static weir_cu_stream streams[THREADS];
static atomic_int running;
static pthread_barrier_t barrier;

static void *churn(void *argument) {
  int number = *(int *)argument;
  uint64_t random = (uint64_t)number + 3;
  void *held[HELD] = {0};
  for (int i = 0; i < ROUNDS; i++) {
    int k = (int)soft_random_r(&random, HELD);
    if (held[k])
      assert_ok(weir_allocator_free(allocator, held[k]));
    held[k] = NULL;
    size_t bytes = soft_random_r(&random, 4) ? (1 + soft_random_r(&random, 512)) * 2048 : 12 * MIB;
    if (soft_random_r(&random, 3))
      assert_ok(weir_allocator_alloc(allocator, 0, bytes, streams[number], &held[k]));
    if (number == 0 && i % 100 == 0)
      assert_ok(weir_allocator_empty_cache(allocator));
  }
  atomic_fetch_sub(&running, 1);
  pthread_barrier_wait(&barrier); /* the accounts are compared here */
  pthread_barrier_wait(&barrier);
  for (int k = 0; k < HELD; k++)
    if (held[k])
      assert_ok(weir_allocator_free(allocator, held[k]));
  return NULL;
}

static void check_glance(void) {
  weir__accounts *tree = &allocator->heaps[0].accounts;
  const weir__glance device = weir__account_glance(tree, &tree->device);
  const weir__glance pool = weir__account_glance(tree, &tree->default_pool);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    assert_in_range(device.counted[kind].of.allocated_bytes, 0, device.reserved[kind].current);
    assert_in_range(pool.counted[kind].of.allocated_bytes, 0, pool.reserved[kind].current);
    assert_true(device.reserved[kind].current <= device.reserved[kind].peak);
  }
}

FIXTURE(.teardown = alloc_teardown)

TEST(glance_beside_allocations) {
  static const char *const confs[] = {NULL, "expandable_segments:True", "expandable_segments:True,moving_pages:True"};
  for (int c = 0; c < 3; c++) {
    pthread_t threads[THREADS];
    int numbers[THREADS];
    alloc_open_on(WEIR_SOFT_THREADS, 1, 8 * GIB, confs[c]);
    weir__accounts *tree = &allocator->heaps[0].accounts;
    assert_int_equal(pthread_barrier_init(&barrier, NULL, THREADS + 1), 0);
    atomic_store(&running, THREADS);
    for (int i = 0; i < THREADS; i++) {
      streams[i] = work_stream();
      numbers[i] = i;
      assert_int_equal(pthread_create(&threads[i], NULL, churn, &numbers[i]), 0);
    }
    for (unsigned i = 0; atomic_load(&running); i++) {
      check_glance();
      if (i % 64 == 0) { /* an exact reading: allocated bytes are within the peak */
        weir_allocator_stats stats = stats_of(0);
        assert_in_range(stats.allocated_bytes[0].current, 0, stats.allocated_bytes[0].peak);
      }
    }
    pthread_barrier_wait(&barrier);
    /* No operation is under way, so the bound holds: nothing beyond what was published and granted was allocated. */
    const weir__glance stale = weir__account_glance(tree, &tree->device);
    const weir_allocator_stats exact = stats_of(0);
    const weir__glance now = weir__account_glance(tree, &tree->device);
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
      assert_int_equal(now.counted[kind].of.allocated_bytes, exact.allocated_bytes[kind].current);
      assert_int_equal(now.reserved[kind].current, stale.reserved[kind].current);
      assert_true(exact.allocated_bytes[kind].current <=
                  stale.counted[kind].of.allocated_bytes + stale.more.allocated_bytes);
      assert_true(exact.allocation[kind].current <= stale.counted[kind].of.allocations + stale.more.allocations);
    }
    assert_int_equal(now.more.allocated_bytes, 0);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++)
      pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    assert_valid();
    alloc_close();
  }
}

/* ---- Staleness, with one thread ---- */

/* A glance takes no arena's lock: it returns while this thread holds one. It revokes no quota. */
TEST(a_glance_needs_no_arena) {
  alloc_open(NULL, GIB);
  void *p;
  assert_ok(weir_allocator_alloc(allocator, 0, 4096, NULL, &p));
  weir__arena *arena = weir__arena_find(&allocator->heaps[0].small, NULL);
  weir__accounts *tree = &allocator->heaps[0].accounts;
  weir__biased_acquire(&arena->lock);
  const weir__glance seen = weir__account_glance(tree, &arena->account.account);
  weir__biased_release(&arena->lock);
  assert_int_equal(seen.counted[WEIR_STAT_ALL].of.allocated_bytes, 4096); /* as of the miss */
  assert_int_equal(seen.reserved[WEIR_STAT_SMALL_POOL].current, 2 * MIB);
  assert_true(arena->account.has_quota);
  put(p);
  alloc_close();
}

/* What the cache serves within the quota is not seen until the arena publishes: by an exact reading or by a miss. */
TEST(a_glance_is_stale_until_an_arena_publishes) {
  alloc_open(NULL, GIB);
  void *held[8];
  weir__accounts *tree = &allocator->heaps[0].accounts;
  for (int i = 0; i < 8; i++)
    held[i] = get(128 * KIB, NULL);
  for (int i = 0; i < 8; i++)
    put(held[i]); /* which leaves headroom below the peak */
  assert_int_equal(stats_of(0).allocated_bytes[0].current, 0);
  assert_ok(weir_allocator_alloc(allocator, 0, 128 * KIB, NULL, &held[0])); /* claims half of the headroom */
  assert_ok(weir_allocator_alloc(allocator, 0, 128 * KIB, NULL, &held[1]));
  weir__glance seen = weir__account_glance(tree, &tree->device);
  assert_int_equal(seen.counted[0].of.allocated_bytes, 128 * KIB);
  assert_in_range(seen.more.allocated_bytes, 128 * KIB, 1024 * KIB - 128 * KIB);
  assert_int_equal(stats_of(0).allocated_bytes[0].current, 256 * KIB);
  seen = weir__account_glance(tree, &tree->device);
  assert_int_equal(seen.counted[0].of.allocated_bytes, 256 * KIB);
  assert_int_equal(seen.more.allocated_bytes, 0);
  for (int i = 0; i < 2; i++)
    assert_ok(weir_allocator_free(allocator, held[i]));
  seen = weir__account_glance(tree, &tree->device);
  assert_in_range(seen.counted[0].of.allocated_bytes, 128 * KIB, 256 * KIB); /* frees are not seen either */
  assert_ok(weir_allocator_alloc(allocator, 0, MIB, NULL, &held[0]));        /* ... until the next miss */
  assert_ok(weir_allocator_alloc(allocator, 0, MIB, NULL, &held[1]));
  assert_ok(weir_allocator_alloc(allocator, 0, MIB, NULL, &held[2]));
  seen = weir__account_glance(tree, &tree->device);
  assert_int_equal(seen.counted[0].of.allocated_bytes, 3 * MIB);
  for (int i = 0; i < 3; i++)
    put(held[i]);
  alloc_close();
}

/*
 * Statistics: what each counts, by pool kind, with its peak and its accumulated values, and resets. The walker checks
 * after every call of every test that the current values equal the sums over the blocks.
 */
#include <string.h>

#include "support/alloc.h"

static void expect(const weir_stat *stat, int64_t current, int64_t peak, int64_t allocated_sum, int64_t freed_sum) {
  assert_int_equal(stat->current, current);
  assert_int_equal(stat->peak, peak);
  assert_int_equal(stat->allocated, allocated_sum);
  assert_int_equal(stat->freed, freed_sum);
}

FIXTURE(.teardown = alloc_teardown)

TEST(one_of_each_kind) {
  alloc_open(NULL, GIB);
  void *small = get(700, NULL), *large = get(3 * MIB + 5, NULL);
  weir_allocator_stats s = stats_of(0);
  const int64_t large_size = 3 * MIB + 512;
  expect(&s.allocation[WEIR_STAT_SMALL_POOL], 1, 1, 1, 0);
  expect(&s.allocation[WEIR_STAT_LARGE_POOL], 1, 1, 1, 0);
  expect(&s.allocation[WEIR_STAT_ALL], 2, 2, 2, 0);
  expect(&s.segment[WEIR_STAT_SMALL_POOL], 1, 1, 1, 0);
  expect(&s.segment[WEIR_STAT_ALL], 2, 2, 2, 0);
  expect(&s.active[WEIR_STAT_ALL], 2, 2, 2, 0);
  expect(&s.allocated_bytes[WEIR_STAT_SMALL_POOL], 1024, 1024, 1024, 0);
  expect(&s.allocated_bytes[WEIR_STAT_LARGE_POOL], large_size, large_size, large_size, 0);
  expect(&s.requested_bytes[WEIR_STAT_SMALL_POOL], 700, 700, 700, 0);
  expect(&s.requested_bytes[WEIR_STAT_LARGE_POOL], 3 * MIB + 5, 3 * MIB + 5, 3 * MIB + 5, 0);
  expect(&s.reserved_bytes[WEIR_STAT_ALL], 22 * MIB, 22 * MIB, 22 * MIB, 0);
  expect(&s.inactive_split[WEIR_STAT_ALL], 2, 2, 2, 0);
  expect(&s.inactive_split_bytes[WEIR_STAT_SMALL_POOL], 2 * MIB - 1024, 2 * MIB - 1024, 2 * MIB - 1024, 0);
  put(small);
  put(large);
  empty_cache();
  s = stats_of(0);
  expect(&s.allocation[WEIR_STAT_ALL], 0, 2, 2, 2);
  expect(&s.segment[WEIR_STAT_ALL], 0, 2, 2, 2);
  expect(&s.reserved_bytes[WEIR_STAT_SMALL_POOL], 0, 2 * MIB, 2 * MIB, 2 * MIB);
  expect(&s.requested_bytes[WEIR_STAT_SMALL_POOL], 0, 700, 700, 700);
  expect(&s.inactive_split_bytes[WEIR_STAT_SMALL_POOL], 0, 2 * MIB - 1024, 2 * MIB - 1024, 2 * MIB - 1024);
  assert_int_equal(s.num_device_alloc, 2);
  assert_int_equal(s.num_device_free, 2);
  assert_int_equal(s.num_sync_all_streams, 1);
  assert_int_equal(s.num_alloc_retries, 0);
  assert_int_equal(s.num_ooms, 0);
  assert_int_equal(s.max_split_size, -1);
  alloc_close();
}

/* PyTorch's test_memory_allocation. */
TEST(seed_memory_allocation) {
  alloc_open(NULL, GIB);
  int64_t before = allocated();
  void *p = get(1, NULL);
  assert_true(allocated() > before);
  put(p);
  assert_int_equal(allocated(), before);
  alloc_close();
}

/* Each statistic has its own peak, at any time. */
TEST(peaks) {
  alloc_open(NULL, GIB);
  void *a = get(30 * MIB, NULL), *b = get(50 * MIB, NULL);
  put(a);
  put(b);
  void *c = get(20 * MIB, NULL);
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].peak, 80 * MIB);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].current, 20 * MIB);
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  s = stats_of(0);
  expect(&s.allocated_bytes[WEIR_STAT_ALL], 20 * MIB, 20 * MIB, 100 * MIB, 80 * MIB);
  expect(&s.reserved_bytes[WEIR_STAT_ALL], 80 * MIB, 80 * MIB, 80 * MIB, 0);
  assert_int_equal(s.num_device_alloc, 2);
  void *e = get(512, NULL);
  assert_int_equal(stats_of(0).allocated_bytes[WEIR_STAT_ALL].peak, 20 * MIB + 512);
  put(c);
  put(e);
  alloc_close();
}

TEST(reset_accumulated) {
  alloc_open(NULL, GIB);
  void *a = get(30 * MIB, NULL), *p = NULL;
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 2 * GIB, NULL, &p));
  assert_ok(weir_allocator_reset_accumulated_stats(allocator, 0));
  weir_allocator_stats s = stats_of(0);
  expect(&s.allocated_bytes[WEIR_STAT_ALL], 30 * MIB, 30 * MIB, 0, 0); /* current and peak are kept */
  expect(&s.segment[WEIR_STAT_LARGE_POOL], 1, 1, 0, 0);
  assert_int_equal(s.num_ooms, 0);
  assert_int_equal(s.num_alloc_retries, 0);
  assert_int_equal(s.num_sync_all_streams, 0);
  assert_int_equal(s.num_device_alloc, 0);
  assert_int_equal(s.num_device_free, 0);
  put(a);
  expect(&stats_of(0).allocated_bytes[WEIR_STAT_ALL], 0, 30 * MIB, 0, 30 * MIB);
  alloc_close();
}

/* Free memory in partly used segments; a free segment is not split. */
TEST(inactive_split) {
  alloc_open(NULL, GIB);
  void *p[4];
  for (int i = 0; i < 4; i++)
    p[i] = get(4 * MIB, NULL);
  assert_layout(p[0], "4M* 4M* 4M* 4M* 4M");
  weir_allocator_stats s = stats_of(0);
  expect(&s.inactive_split[WEIR_STAT_LARGE_POOL], 1, 1, 1, 0); /* the remainder only shrinks */
  assert_int_equal(s.inactive_split_bytes[WEIR_STAT_LARGE_POOL].current, 4 * MIB);
  put(p[1]);
  assert_int_equal(stats_of(0).inactive_split[WEIR_STAT_LARGE_POOL].current, 2);
  assert_int_equal(stats_of(0).inactive_split_bytes[WEIR_STAT_LARGE_POOL].current, 8 * MIB);
  p[1] = get(4 * MIB, NULL); /* fits exactly: one fewer */
  assert_int_equal(stats_of(0).inactive_split[WEIR_STAT_LARGE_POOL].current, 1);
  for (int i = 0; i < 4; i++)
    put(p[i]);
  assert_int_equal(stats_of(0).inactive_split[WEIR_STAT_LARGE_POOL].current, 0);
  assert_int_equal(stats_of(0).inactive_split_bytes[WEIR_STAT_LARGE_POOL].current, 0);
  alloc_close();
}

TEST(devices_count_separately) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  void *p = get_on(1, 30 * MIB, NULL);
  assert_int_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].current, 0);
  assert_int_equal(stats_of(1).reserved_bytes[WEIR_STAT_ALL].current, 30 * MIB);
  put(p);
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  assert_int_equal(stats_of(1).allocation[WEIR_STAT_ALL].peak, 1);
  alloc_close();
}

/* Private pools count in the same statistics. */
TEST(private_pools_count_too) {
  alloc_open(NULL, GIB);
  const weir_pool_id id = {0, 9};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(30 * MIB, NULL), *q = get(512, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_int_equal(reserved(), 32 * MIB);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_SMALL_POOL].current, 1);
  put(p);
  put(q);
  assert_ok(weir_pool_release(allocator, 0, id));
  alloc_close();
}

/* They also have their own statistics, which are reset with the others. */
TEST(reset_of_a_pool) {
  alloc_open(NULL, GIB);
  const weir_pool_id id = {0, 9};
  weir_stat stats[WEIR_STAT_KINDS];
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  void *p = get(30 * MIB, NULL), *q = get(50 * MIB, NULL), *s = get(512, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  assert_ok(weir_pool_release(allocator, 0, id));
  put(q);
  empty_cache(); /* one of its segments is released */
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, stats));
  assert_int_equal(stats[WEIR_STAT_ALL].current, 32 * MIB);
  assert_int_equal(stats[WEIR_STAT_ALL].peak, 82 * MIB);
  assert_int_equal(stats[WEIR_STAT_LARGE_POOL].freed, 50 * MIB);
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, stats));
  assert_int_equal(stats[WEIR_STAT_ALL].peak, 32 * MIB);
  assert_int_equal(stats[WEIR_STAT_LARGE_POOL].peak, 30 * MIB);
  assert_int_equal(stats[WEIR_STAT_ALL].allocated, 82 * MIB);
  assert_ok(weir_allocator_reset_accumulated_stats(allocator, 0));
  assert_ok(weir_pool_reserved_bytes(allocator, 0, id, stats));
  assert_int_equal(stats[WEIR_STAT_ALL].allocated, 0);
  assert_int_equal(stats[WEIR_STAT_LARGE_POOL].freed, 0);
  assert_int_equal(stats[WEIR_STAT_SMALL_POOL].current, 2 * MIB);
  put(p);
  put(s);
  alloc_close();
}

/* A caller of an older version has a shorter struct, of which all fields are filled. */
TEST(older_caller) {
  alloc_open(NULL, GIB);
  void *p = get(512, NULL);
  weir_allocator_stats stats;
  memset(&stats, 0x5a, sizeof stats);
  stats.size = offsetof(weir_allocator_stats, segment);
  assert_ok(weir_allocator_get_stats(allocator, 0, &stats));
  assert_int_equal(stats.allocation[WEIR_STAT_ALL].current, 1);
  assert_int_equal(stats.size, offsetof(weir_allocator_stats, segment));
  assert_int_equal(stats.segment[WEIR_STAT_ALL].current, 0x5a5a5a5a5a5a5a5a);
  put(p);
  alloc_close();
}

TEST(largest_block) {
  alloc_open(NULL, GIB);
  size_t largest = 0;
  assert_ok(weir_allocator_largest_block(allocator, 0, &largest));
  assert_int_equal(largest, GIB); /* nothing is cached: the free memory of the driver */
  void *p = get(800 * MIB, NULL);
  assert_ok(weir_allocator_largest_block(allocator, 0, &largest));
  assert_int_equal(largest, 224 * MIB);
  put(p);
  assert_ok(weir_allocator_largest_block(allocator, 0, &largest));
  assert_int_equal(largest, 800 * MIB);
  alloc_close();
}

TEST(base) {
  alloc_open(NULL, GIB);
  char *a = get(4 * MIB, NULL), *b = get(4 * MIB, NULL);
  void *base = NULL;
  size_t bytes = 0;
  assert_ok(weir_allocator_base(allocator, b, &base, &bytes));
  assert_ptr_equal(base, a);
  assert_int_equal(bytes, 20 * MIB);
  configure("expandable_segments:True");
  void *c = get(30 * MIB, NULL);
  base = a;
  assert_error_says(NOT_SUPPORTED, "expandable", weir_allocator_base(allocator, c, &base, &bytes));
  assert_ptr_equal(base, a);
  alloc_close();
}

/*
 * Settings that change the driver calls of the allocator: reserved address space, early refusal, and the back end.
 */
#include <string.h>

#include "support/alloc.h"

static uint64_t reservation_of(const void *p) {
  const weir__segment *segment = segment_at(p);
  assert_non_null(segment);
  assert_true(segment->memory.slot);
  return segment->memory.bytes;
}

FIXTURE(.teardown = alloc_teardown)

TEST(reserve) {
  alloc_open("expandable_segments:True", GIB);
  assert_int_equal(reservation_of(get(512, NULL)), GIB / 8 * 9);
  alloc_close();
  alloc_open("expandable_segments:True,expandable_segments_reserve:0.5", GIB);
  void *p = get(512, NULL), *q = NULL;
  assert_int_equal(reservation_of(p), GIB / 2);
  /* An allocation does not span segments: a request larger than the reservation fails as out of memory. */
  assert_int_equal(try_get(600 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  assert_null(q);
  assert_non_null(strstr(weir_last_error(), "exceeds the expandable-segment reserve of 512.00 MiB"));
  q = get(400 * MIB, NULL);
  alloc_close();
  alloc_open("expandable_segments:True,expandable_segments_reserve:64G", GIB);
  assert_int_equal(reservation_of(get(512, NULL)), GIB / 8 * 9); /* at most 9/8 of the device */
  alloc_close();
}

TEST(reserve_by_class) {
  alloc_open("expandable_segments:True,expandable_segments_reserve_by_class:[comm:0.25]", GIB);
  weir_cu_stream comm = work_stream(), other = work_stream();
  assert_int_equal(weir_allocator_set_reserve_class(allocator, 0, comm, "comm"), WEIR_OK);
  assert_int_equal(weir_allocator_set_reserve_class(allocator, 0, other, "unknown"), WEIR_OK);
  assert_int_equal(reservation_of(get(512, comm)), GIB / 4);
  assert_int_equal(reservation_of(get(512, other)), GIB / 8 * 9);
  assert_int_equal(weir_allocator_set_reserve_class(allocator, 0, comm, NULL), WEIR_OK);
  assert_int_equal(reservation_of(get(2 * MIB, comm)), weir__round_up(GIB / 8 * 9, 20 * MIB));
  assert_int_equal(weir_allocator_set_reserve_class(allocator, 1, comm, "comm"), WEIR_ERROR_INVALID_DEVICE);
  assert_int_equal(weir_allocator_set_reserve_class(allocator, 0, comm, "a name of more than thirty-one bytes"),
                   WEIR_ERROR_INVALID_ARGUMENT);
  alloc_close();
}

TEST(refused_early) {
  alloc_open("throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", GIB);
  void *p = get(300 * MIB, NULL), *q = NULL;
  put(p);
  unsigned long before = calls(WEIR_CALL_MemAlloc) + calls(WEIR_CALL_MemFree);
  assert_int_equal(try_get(310 * MIB, NULL, &q), WEIR_ERROR_OUT_OF_MEMORY);
  assert_non_null(
      strstr(weir_last_error(), "preemptively rejected because it would exceed per_process_memory_fraction"));
  assert_non_null(strstr(weir_last_error(), "310.00 MiB"));
  assert_int_equal(calls(WEIR_CALL_MemAlloc) + calls(WEIR_CALL_MemFree), before); /* the cache is kept */
  assert_int_equal(stats_of(0).num_oom_rejections, 1);
  assert_int_equal(stats_of(0).num_ooms, 0);
  configure("throw_on_cudamalloc_oom:False");
  q = get(310 * MIB, NULL); /* as usual, the cached segment is released */
  alloc_close();
}

/* Memory of a private pool counts as well. */
TEST(pool_stats) {
  alloc_open(NULL, GIB);
  weir_pool_id id = {0, 7};
  weir_stat stats[WEIR_STAT_KINDS];
  assert_int_equal(weir_pool_reserved_bytes(allocator, 0, id, stats), WEIR_ERROR_INVALID_ARGUMENT);
  void *outside = get(30 * MIB, NULL);
  assert_int_equal(weir_pool_begin(allocator, 0, id, NULL, NULL), WEIR_OK);
  void *small = get(512, NULL), *large = get(30 * MIB, NULL);
  assert_int_equal(weir_pool_end(allocator, 0, id), WEIR_OK);
  assert_int_equal(weir_pool_reserved_bytes(allocator, 0, id, stats), WEIR_OK);
  assert_int_equal(stats[WEIR_STAT_ALL].current, 32 * MIB);
  assert_int_equal(stats[WEIR_STAT_SMALL_POOL].current, 2 * MIB);
  assert_int_equal(stats[WEIR_STAT_LARGE_POOL].peak, 30 * MIB);
  put(small);
  put(large);
  put(outside);
  assert_int_equal(weir_pool_release(allocator, 0, id), WEIR_OK);
  empty_cache();
  assert_int_equal(weir_pool_reserved_bytes(allocator, 0, id, stats),
                   WEIR_OK); /* destroyed, but its statistics are kept */
  assert_int_equal(stats[WEIR_STAT_ALL].current, 0);
  assert_int_equal(stats[WEIR_STAT_ALL].peak, 32 * MIB);
  alloc_close();
}

TEST(backend) {
  alloc_open("backend:native", GIB);
  assert_backend("native");
  assert_int_equal(weir_allocator_configure(allocator, "backend:cudaMallocAsync"), WEIR_ERROR_NOT_SUPPORTED);
  assert_non_null(strstr(weir_last_error(), "cudaMallocAsync"));
  put(get(512, NULL));
  alloc_close();
}

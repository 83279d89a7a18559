/*
 * What is kept of private pools by their ids: lookup, and the statistics that outlive a pool.
 */
#include "support/alloc.h"
#include "weir/pool.h"

FIXTURE(.teardown = alloc_teardown)

/* Pools are found by a hash of their id. These two have the same hash. */
TEST(ids_with_the_same_hash) {
  alloc_open(NULL, GIB);
  const weir_pool_id ids[] = {{1, 0}, {0, 0x9e3779b97f4a7c15u}};
  void *memory[2];
  for (int i = 0; i < 2; i++) {
    assert_ok(weir_pool_begin(allocator, 0, ids[i], NULL, NULL));
    memory[i] = get((size_t)(i + 1) * 30 * MIB, NULL);
    assert_ok(weir_pool_end(allocator, 0, ids[i]));
  }
  weir_stat reserved[WEIR_STAT_KINDS];
  for (int i = 0; i < 2; i++) {
    assert_ok(weir_pool_reserved_bytes(allocator, 0, ids[i], reserved));
    assert_int_equal(reserved[WEIR_STAT_ALL].current, (i + 1) * 30 * MIB);
  }
  /* The first one goes; the other is still found, and the record of the first too. */
  put(memory[0]);
  assert_ok(weir_pool_release(allocator, 0, ids[0]));
  assert_ok(weir_allocator_empty_pool(allocator, ids[0]));
  int uses;
  assert_error(INVALID_ARGUMENT, weir_pool_use_count(allocator, 0, ids[0], &uses));
  assert_ok(weir_pool_use_count(allocator, 0, ids[1], &uses));
  assert_int_equal(uses, 1);
  assert_ok(weir_pool_reserved_bytes(allocator, 0, ids[0], reserved));
  assert_int_equal(reserved[WEIR_STAT_ALL].peak, 30 * MIB);
  put(memory[1]);
  assert_ok(weir_pool_release(allocator, 0, ids[1]));
  assert_valid();
  alloc_close();
}

/* Only the records of the most recent pools that had memory stay; a pool that comes back continues its record. */
TEST(records_of_many_pools) {
  alloc_open(NULL, GIB);
  enum { POOLS = 200, KEPT = 128 };
  weir_stat reserved[WEIR_STAT_KINDS];
  for (int round = 0; round < 2; round++)
    for (uint64_t i = 1; i <= POOLS; i++) {
      const weir_pool_id id = {0, i};
      assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
      put(get(30 * MIB, NULL));
      assert_ok(weir_pool_end(allocator, 0, id));
      assert_ok(weir_pool_release(allocator, 0, id));
      assert_ok(weir_allocator_empty_pool(allocator, id));
    }
  for (uint64_t i = 1; i <= POOLS; i++) {
    const weir_pool_id id = {0, i};
    if (i > POOLS - KEPT) {
      assert_ok(weir_pool_reserved_bytes(allocator, 0, id, reserved));
      assert_int_equal(reserved[WEIR_STAT_ALL].current, 0);
    } else
      assert_error(INVALID_ARGUMENT, weir_pool_reserved_bytes(allocator, 0, id, reserved));
  }
  const weir_pool_id back = {0, 150};
  assert_ok(weir_pool_reserved_bytes(allocator, 0, back, reserved));
  int64_t before = reserved[WEIR_STAT_ALL].allocated;
  assert_ok(weir_pool_begin(allocator, 0, back, NULL, NULL));
  put(get(30 * MIB, NULL));
  assert_ok(weir_pool_end(allocator, 0, back));
  assert_ok(weir_pool_reserved_bytes(allocator, 0, back, reserved));
  assert_int_equal(reserved[WEIR_STAT_ALL].allocated, before + 30 * MIB);
  assert_ok(weir_pool_release(allocator, 0, back));
  assert_valid();
  alloc_close();
}

/*
 * The hash map, compared with a plain array.
 */
#include <stdlib.h>

#include "base/hash_map.h"
#include "support/check.h"

typedef struct entry {
  uint64_t key;
  uint32_t value;
} entry;

TEST(empty) {
  weir__hash_map map = {0};
  size_t at = 0;
  assert_null(weir__hash_map_find(&map, sizeof(entry), 7));
  assert_null(weir__hash_map_next(&map, sizeof(entry), &at));
  weir__hash_map_clear(&map);
}

TEST(new_entries_are_zero) {
  weir__hash_map map = {0};
  for (uint64_t key = 1; key <= 100; key++) {
    entry *e = weir__hash_map_put(&map, sizeof *e, key);
    assert_true(e->key == key && e->value == 0);
    e->value = 1;
    assert_ptr_equal(weir__hash_map_put(&map, sizeof *e, key), e);
    assert_int_equal(e->value, 1);
    weir__hash_map_remove(&map, sizeof *e, e);
  }
  assert_int_equal(map.count, 0);
  weir__hash_map_clear(&map);
}

/* Keys that collide in a few slots, so that removals move other entries. */
TEST(against_array) {
  enum { KEYS = 500, STEPS = 200000 };
  static uint32_t expected[KEYS];
  weir__hash_map map = {0};
  uint32_t random = 1;
  size_t count = 0;
  for (uint32_t i = 1; i <= STEPS; i++) {
    random = random * 1664525 + 1013904223;
    uint32_t which = (random >> 8) % KEYS;
    uint64_t key = (uint64_t)(which + 1) << (which % 3 * 20);
    entry *e = weir__hash_map_find(&map, sizeof *e, key);
    assert_int_equal(e ? e->value : 0, expected[which]);
    if (random >> 31) {
      e = weir__hash_map_put(&map, sizeof *e, key);
      assert_non_null(e);
      count += !expected[which];
      expected[which] = e->value = i;
    } else if (e) {
      weir__hash_map_remove(&map, sizeof *e, e);
      expected[which] = 0;
      count--;
    }
    assert_int_equal(map.count, count);
  }
  size_t at = 0, seen = 0;
  for (const entry *e; (e = weir__hash_map_next(&map, sizeof *e, &at));)
    seen++;
  assert_int_equal(seen, count);
  weir__hash_map_clear(&map);
  assert_null(map.slots);
}

TEST(reserve) {
  weir__hash_map map = {0};
  assert_true(weir__hash_map_reserve(&map, sizeof(entry), 1000));
  const char *slots = map.slots;
  for (uint64_t key = 1; key <= 1000; key++)
    assert_non_null(weir__hash_map_put(&map, sizeof(entry), key << 40));
  assert_ptr_equal(map.slots, slots);
  assert_false(weir__hash_map_reserve(&map, sizeof(entry), SIZE_MAX / 4));
  assert_false(weir__hash_map_reserve(&map, sizeof(entry), SIZE_MAX));
  assert_int_equal(map.count, 1000);
  assert_non_null(weir__hash_map_find(&map, sizeof(entry), (uint64_t)77 << 40));
  weir__hash_map_clear(&map);
}

/*
 * Containers on a host that runs out of memory: each allocation fails once, and the contents are preserved.
 */
#include "base/array.h"
#include "base/hash_map.h"
#include "support/check.h"
#include "support/no_memory.h"

#ifndef NO_MEMORY_WAIVED

typedef struct entry {
  uint64_t key, value;
} entry;

TEST(array) {
  uint64_t *items = NULL;
  size_t room = 0, count = 0;
  long before = live;
  counting = true;
  while (count < 1000) {
    made = 0;
    fail_at = 1;
    bool had_room = count < room;
    assert_true(WEIR__RESERVE(items, room, count + 1) == had_room);
    fail_at = 0;
    assert_true(WEIR__RESERVE(items, room, count + 1));
    items[count] = count;
    count++;
  }
  counting = false;
  for (size_t i = 0; i < count; i++)
    assert_int_equal(items[i], i);
  free(items);
  assert_int_equal(live, before);
}

TEST(hash_map) {
  weir__hash_map map = {0};
  long before = live;
  counting = true;
  for (uint64_t key = 1; key <= 1000; key++) {
    made = 0;
    fail_at = 1;
    bool had_room = 2 * (map.count + 1) <= map.room;
    entry *e = weir__hash_map_put(&map, sizeof *e, key << 21);
    assert_true((e != NULL) == had_room);
    fail_at = 0;
    if (!e)
      assert_non_null(e = weir__hash_map_put(&map, sizeof *e, key << 21));
    e->value = key;
  }
  counting = false;
  for (uint64_t key = 1; key <= 1000; key++)
    assert_int_equal(((entry *)weir__hash_map_find(&map, sizeof(entry), key << 21))->value, key);
  weir__hash_map_clear(&map);
  assert_int_equal(live, before);
}

#endif

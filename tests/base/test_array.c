/*
 * Growing arrays.
 */
#include <stdlib.h>

#include "base/array.h"
#include "support/check.h"

TEST(grows) {
  uint64_t *items = NULL;
  size_t room = 0, moves = 0;
  for (size_t i = 0; i < 10000; i++) {
    size_t before = room;
    assert_true(WEIR__RESERVE(items, room, i + 1));
    moves += room != before;
    items[i] = 3 * i;
  }
  assert_true(moves < 16);
  for (size_t i = 0; i < 10000; i++)
    assert_int_equal(items[i], 3 * i);
  free(items);
}

TEST(large_enough_array_is_kept) {
  char *items = NULL;
  size_t room = 0;
  assert_true(WEIR__RESERVE(items, room, 0));
  assert_null(items);
  assert_true(WEIR__RESERVE(items, room, 100));
  const char *before = items;
  assert_true(room >= 100 && WEIR__RESERVE(items, room, 7));
  assert_ptr_equal(items, before);
  free(items);
}

/* An allocation that is too large for any host fails and leaves the array unchanged. */
TEST(too_large) {
  uint64_t *items = NULL;
  size_t room = 0;
  assert_true(WEIR__RESERVE(items, room, 1));
  items[0] = 9;
  size_t before = room;
  assert_false(WEIR__RESERVE(items, room, SIZE_MAX / 8 + 1));
  assert_false(WEIR__RESERVE(items, room, SIZE_MAX));
  assert_true(room == before && items[0] == 9);
  free(items);
}

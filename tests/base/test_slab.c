#include <string.h>

#include "base/slab.h"
#include "support/check.h"

TEST(objects_are_disjoint_and_aligned) {
  enum { COUNT = 20000, SIZE = 40 };
  static unsigned char *objects[COUNT];
  weir__slab slab = {0};
  for (int i = 0; i < COUNT; i++) {
    objects[i] = weir__slab_alloc(&slab, SIZE);
    assert_non_null(objects[i]);
    assert_int_equal((uintptr_t)objects[i] % 16, 0);
    memset(objects[i], i % 251, SIZE);
  }
  for (int i = 0; i < COUNT; i++)
    for (int k = 0; k < SIZE; k++)
      assert_int_equal(objects[i][k], i % 251);
  weir__slab_clear(&slab);
}

TEST(returned_objects_are_reused) {
  weir__slab slab = {0};
  void *first = weir__slab_alloc(&slab, 24), *second = weir__slab_alloc(&slab, 24);
  weir__slab_free(&slab, first, 24);
  weir__slab_free(&slab, second, 24);
  assert_ptr_equal(weir__slab_alloc(&slab, 24), second);
  assert_ptr_equal(weir__slab_alloc(&slab, 24), first);
  void *third = weir__slab_alloc(&slab, 24);
  assert_ptr_not_equal(third, first);
  assert_ptr_not_equal(third, second);
  weir__slab_clear(&slab);
}

TEST(objects_larger_than_a_chunk) {
  enum { SIZE = 1 << 20 };
  weir__slab slab = {0};
  char *first = weir__slab_alloc(&slab, SIZE), *second = weir__slab_alloc(&slab, SIZE);
  memset(first, 1, SIZE);
  memset(second, 2, SIZE);
  assert_int_equal(first[SIZE - 1], 1);
  assert_int_equal(second[0], 2);
  weir__slab_clear(&slab);
}

TEST(a_cleared_slab_starts_anew) {
  weir__slab slab = {0};
  weir__slab_clear(&slab);
  assert_non_null(weir__slab_alloc(&slab, 8));
  weir__slab_clear(&slab);
  assert_null(slab.chunks);
  assert_non_null(weir__slab_alloc(&slab, 64)); /* the size may differ then */
  weir__slab_clear(&slab);
}

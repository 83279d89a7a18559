/*
 * The region: pieces are zeroed, disjoint and addressable with 32 bits.
 */
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/region.h"
#include "base/slab.h"
#include "support/check.h"
#include "support/sanitized.h"

static int is_zero(const void *memory, size_t bytes) {
  const unsigned char *byte = memory;
  for (size_t i = 0; i < bytes; i++)
    if (byte[i])
      return 0;
  return 1;
}

/* Checks that a piece and its cold part are zero, and fills them with a byte. */
static void fill(void *piece, size_t bytes, int with) {
  assert_true(is_zero(piece, bytes));
  assert_true(is_zero(weir__cold_of(piece), bytes / 2));
  memset(piece, with, bytes);
  memset(weir__cold_of(piece), with, bytes / 2);
}

/* Comes first: the region is reserved once. */
TEST(limited_address_space) {
#ifdef SANITIZED
  print_message("skipped: a sanitizer needs more address space than this\n");
  skip();
#endif
  pid_t child = fork();
  if (child == 0) {
    struct rlimit before;
    child_assert(getrlimit(RLIMIT_AS, &before) == 0);
    child_assert(setrlimit(RLIMIT_AS, &(struct rlimit){(rlim_t)64 << 20, before.rlim_max}) == 0);
    child_assert(!weir__region_prepare());
    child_assert(!weir__region_alloc(8192));
    child_assert(setrlimit(RLIMIT_AS, &before) == 0);
    child_assert(weir__region_prepare() && weir__region_prepare() && weir__region_alloc(8192));
    _exit(0);
  }
  assert_int_equal(child_outcome(child), 0);
}

TEST(pieces) {
  static const size_t sizes[] = {1, 8192, 8193, 24 << 10, 100000, WEIR__REGION_PIECE};
  enum { COUNT = sizeof sizes / sizeof sizes[0] };
  for (int round = 0; round < 3; round++) {
    unsigned char *pieces[COUNT];
    for (int i = 0; i < COUNT; i++) {
      pieces[i] = weir__region_alloc(sizes[i]);
      assert_non_null(pieces[i]);
      assert_int_equal((uintptr_t)pieces[i] % 4096, 0);
      assert_int_not_equal(weir__ref_of(pieces[i]), 0);
      assert_ptr_equal(weir__at(weir__ref_of(pieces[i])), pieces[i]);
      fill(pieces[i], sizes[i], i + 1);
    }
    for (int i = 0; i < COUNT; i++) {
      assert_int_equal(pieces[i][0], i + 1);
      assert_int_equal(pieces[i][sizes[i] - 1], i + 1);
      weir__region_free(pieces[i], sizes[i]);
    }
  }
}

TEST(invalid_sizes) {
  assert_null(weir__region_alloc(0));
  assert_null(weir__region_alloc(WEIR__REGION_PIECE + 1));
  assert_null(weir__region_alloc(SIZE_MAX));
}

TEST(returned_pieces_are_reused) {
  void *first = weir__region_alloc(10000), *second = weir__region_alloc(10000);
  weir__region_free(first, 10000);
  assert_ptr_equal(weir__region_alloc(9000), first);
  weir__region_free(first, 9000);
  weir__region_free(second, 10000);
}

/* A slab in the region: every object has a separate cold part. */
TEST(slab) {
  enum { COUNT = 30000, SIZE = 32 };
  static uint64_t *objects[COUNT];
  for (int round = 0; round < 2; round++) {
    weir__slab slab = {.in_region = true};
    for (int i = 0; i < COUNT; i++) {
      objects[i] = weir__slab_alloc(&slab, SIZE);
      assert_non_null(objects[i]);
      assert_int_equal((uintptr_t)objects[i] % SIZE, 0);
      objects[i][0] = (uint64_t)i;
      *(uint64_t *)weir__cold_of(objects[i]) = (uint64_t)-i;
    }
    for (int i = 0; i < COUNT; i++) {
      assert_int_equal(objects[i][0], i);
      assert_int_equal(*(uint64_t *)weir__cold_of(objects[i]), (uint64_t)-i);
    }
    weir__slab_clear(&slab);
    assert_true(slab.in_region);
  }
}

/*
 * Mapped memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory_map.h"
#include "support/check.h"

enum { MIB = 1 << 20 };

TEST(reserve) {
  size_t page = weir__map_page_size();
  for (size_t alignment = 1; alignment <= 64 * MIB; alignment *= 8) {
    char *space = weir__map_reserve(MIB, alignment);
    assert_non_null(space);
    assert_int_equal((uintptr_t)space % alignment, 0);
    assert_true(weir__map_commit(space, 2 * page));
    assert_int_equal(space[page], 0);
    space[page] = 7;
    assert_true(weir__map_discard(space + page, page));
    assert_int_equal(space[page], 0);
    assert_false(weir__map_reserve_at(space, MIB));
    weir__unmap(space, MIB);
    assert_true(weir__map_reserve_at(space, MIB));
    weir__unmap(space, MIB);
  }
  assert_null(weir__map_reserve(SIZE_MAX - page, 2 * MIB));
  assert_null(weir__map_reserve(SIZE_MAX / 2, page));
}

TEST(grow) {
  size_t bytes = 64 << 10;
  char *memory = weir__map_memory(bytes);
  assert_non_null(memory);
  assert_int_equal(memory[bytes - 1], 0);
  memory[bytes - 1] = 5;
  for (size_t more = 2 * bytes; more <= 4 * MIB; more *= 2, bytes *= 2) {
    memory = weir__map_grow(memory, bytes, more);
    assert_non_null(memory);
    assert_int_equal(memory[bytes - 1], 5);
    assert_int_equal(memory[more - 1], 0);
    memory[more - 1] = 5;
  }
  assert_null(weir__map_grow(memory, bytes, SIZE_MAX / 2));
  assert_int_equal(memory[bytes - 1], 5);
  weir__unmap(memory, bytes);
}

TEST(file) {
  size_t page = weir__map_page_size(), bytes = 4 * page;
  int descriptor = weir__map_memory_file("weir-test", bytes);
  assert_true(descriptor >= 0);
  assert_int_equal(weir__map_allocate_file(descriptor, 0, bytes), 0);
  char *shared = weir__map_shared_file(descriptor, bytes);
  const char *read_only = weir__map_file(descriptor, bytes);
  char *space = weir__map_reserve(bytes, page);
  assert_true(shared && read_only && space);
  assert_true(weir__map_shared_file_at(space, page, descriptor, 2 * page));
  assert_true(weir__map_protect(space, page, true, true));
  shared[2 * page] = 9;
  assert_int_equal(read_only[2 * page], 9);
  assert_int_equal(space[0], 9);
  assert_true(weir__map_release(space, page));
  assert_true(weir__map_replace(shared, bytes));
  assert_int_equal(shared[2 * page], 0);
  assert_int_equal(read_only[2 * page], 9);
  weir__unmap(space, bytes);
  weir__unmap(shared, bytes);
  weir__unmap(read_only, bytes);
  close(descriptor);
  assert_null(weir__map_shared_file(-1, bytes));
  assert_int_equal(errno, EBADF);
}

/* A file larger than RLIMIT_FSIZE is refused without raising SIGXFSZ. */
TEST(file_limit) {
  struct rlimit before, limit;
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  limit = before;
  limit.rlim_cur = MIB;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
  assert_int_equal(weir__map_allocate_file(-1, 1, MIB), EFBIG);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(weir__map_allocate_file(-1, 0, MIB), EBADF);
}

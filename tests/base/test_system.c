/*
 * Calls of the operating system.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/system.h"
#include "support/check.h"

TEST(descriptor) {
  int ends[2];
  char byte = 0;
  assert_int_equal(pipe(ends), 0);
  int copy = weir__descriptor_copy(ends[1]);
  assert_true(copy >= 0 && copy != ends[1]);
  assert_true(fcntl(copy, F_GETFD) & FD_CLOEXEC);
  close(ends[1]);
  assert_int_equal(write(copy, "x", 1), 1);
  assert_int_equal(read(ends[0], &byte, 1), 1);
  assert_int_equal(byte, 'x');
  close(copy);
  close(ends[0]);
  assert_int_equal(weir__descriptor_copy(-1), -1);
  assert_int_equal(errno, EBADF);
}

/* A sandbox may forbid it. */
TEST(process) {
  int self = weir__process_open((int)getpid());
  if (self < 0)
    skip();
  int copy = weir__process_take_descriptor(self, STDOUT_FILENO);
  assert_true(copy >= 0 || errno == EPERM);
  if (copy >= 0)
    close(copy);
  assert_int_equal(weir__process_take_descriptor(self, -1), -1);
  close(self);
}

TEST(random) {
  unsigned char a[32] = {0}, b[32] = {0};
  assert_true(weir__random_bytes(a, sizeof a) && weir__random_bytes(b, sizeof b));
  assert_memory_not_equal(a, b, sizeof a);
}

TEST(memory) {
  uint64_t available = weir__memory_available();
  assert_true(available > 0);
  assert_true(available == UINT64_MAX || available < (uint64_t)1 << 50);
}

TEST(environment) {
  char name[256], cut[2];
  setenv("WEIR_TEST_SYSTEM", "set", 1);
  assert_string_equal(weir__secure_getenv("WEIR_TEST_SYSTEM"), "set");
  assert_null(weir__secure_getenv("WEIR_TEST_SYSTEM_NOT"));
  weir__host_name(name, sizeof name);
  weir__host_name(cut, sizeof cut);
  assert_true(strlen(name) < sizeof name && strlen(cut) <= 1);
}

static int compare_by_table(const void *a, const void *b, void *context) {
  const int *order = context;
  return order[*(const uint8_t *)a] - order[*(const uint8_t *)b];
}

TEST(sort) {
  int order[] = {3, 0, 2, 1};
  uint8_t items[] = {0, 1, 2, 3};
  weir__sort(items, 4, 1, compare_by_table, order);
  assert_memory_equal(items, "\1\3\2\0", 4);
}

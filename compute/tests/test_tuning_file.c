/*
 * Files of tuning results that are not what they should be. compute/test_tunable.c has the others.
 */
#include "src/tuning_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "support/check.h"

static weir_status read_text(const char *text, weir__tuning_file *file) {
  char path[32];
  int descriptor = memfd_create("tuning", MFD_CLOEXEC);
  assert_true(descriptor >= 0);
  assert_int_equal(write(descriptor, text, strlen(text)), strlen(text));
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  weir_status status = weir__tuning_file_read("test", path, file);
  close(descriptor);
  return status;
}

/* Validators are compared one by one. A file of nothing else must not take minutes. */
TEST(many_validators) {
  enum { COUNT = 20000, KEPT = 1000 };
  char *text = malloc(COUNT * 24 + 100), *at = text;
  assert_non_null(text);
  for (int i = 0; i < COUNT; i++)
    at += sprintf(at, "Validator,k%d,v\n", i);
  strcpy(at, "Validator,k7,w\nop,params,solution,1\n");
  weir__tuning_file file = {0};
  assert_int_equal(read_text(text, &file), WEIR_OK);
  assert_int_equal(file.validator_count, KEPT);
  assert_int_equal(file.skipped, COUNT - KEPT);
  assert_int_equal(file.first_skipped, KEPT + 1);
  assert_string_equal(weir__tuning_file_find(&file, "k7"), "w"); /* one that is known may change */
  assert_int_equal(file.row_count, 1);
  weir__tuning_file_clear(&file);
  free(text);
}

/* Adds 1 to the number in a file, which is replaced. */
static void count_up(const char *path) {
  weir__tuning_lock lock = weir__tuning_file_lock(path);
  weir__tuning_file file = {0}, next = {0};
  child_assert(lock.file >= 0);
  int number = 0;
  if (weir__tuning_file_exists(path)) {
    child_assert(!weir__tuning_file_read("test", path, &file) && file.row_count == 1);
    number = atoi(file.rows[0].params);
  }
  char text[16];
  snprintf(text, sizeof text, "%d", number + 1);
  child_assert(weir__tuning_file_add(&next, "count", text, "solution", 1));
  child_assert(!weir__tuning_file_write("test", path, &next));
  weir__tuning_file_clear(&file);
  weir__tuning_file_clear(&next);
  weir__tuning_file_unlock(&lock);
}

TEST(processes_take_turns) {
  enum { PROCESSES = 4, TIMES = 50 };
  char folder[] = "/tmp/weir-tuning-XXXXXX", path[64], lock_path[80];
  pid_t children[PROCESSES];
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/results.csv", folder);
  snprintf(lock_path, sizeof lock_path, "%s.weir-lock", path);
  for (int i = 0; i < PROCESSES; i++) {
    children[i] = fork();
    assert_true(children[i] >= 0);
    if (children[i])
      continue;
    for (int j = 0; j < TIMES; j++)
      count_up(path);
    _exit(0);
  }
  for (int i = 0; i < PROCESSES; i++)
    assert_int_equal(child_outcome(children[i]), 0);
  weir__tuning_file file = {0};
  assert_int_equal(weir__tuning_file_read("test", path, &file), WEIR_OK);
  assert_int_equal(atoi(file.rows[0].params), PROCESSES * TIMES);
  weir__tuning_file_clear(&file);
  assert_int_equal(access(lock_path, F_OK), -1);

  /* The lock of a process that ended is free, and one that cannot be made is not waited for. */
  children[0] = fork();
  if (!children[0]) {
    child_assert(weir__tuning_file_lock(path).file >= 0);
    _exit(0);
  }
  assert_int_equal(child_outcome(children[0]), 0);
  assert_int_equal(access(lock_path, F_OK), 0);
  weir__tuning_lock lock = weir__tuning_file_lock(path);
  assert_true(lock.file >= 0);
  weir__tuning_file_unlock(&lock);
  assert_int_equal(access(lock_path, F_OK), -1);
  static const char *const others[] = {"/nowhere/at/all", "/dev/null", "/proc/version"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    lock = weir__tuning_file_lock(others[i]);
    assert_int_equal(lock.file, -1);
    weir__tuning_file_unlock(&lock);
  }
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

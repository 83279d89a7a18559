/*
 * Files of tuning results that are not what they should be. compute/test_tunable.c has the others.
 */
#include "base/tuning_file.h"

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
static void test_many_validators(void **state) {
  enum { COUNT = 20000, KEPT = 1000 };
  (void)state;
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_many_validators)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

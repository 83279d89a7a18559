/*
 * Caching off: every allocation is a driver call, and memory can be freed after switching.
 */
#include <stdlib.h>

#include "support/alloc.h"

FIXTURE(.teardown = alloc_teardown)

TEST(every_call_is_the_drivers) {
  alloc_open(NULL, GIB);
  assert_int_equal(is_caching(allocator), 1);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  assert_int_equal(is_caching(allocator), 0);
  void *p = get(1000, NULL);
  assert_int_equal(soft_census().allocations, 1);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].allocated, 0);
  assert_int_equal(reserved(), 0);
  void *base = NULL;
  size_t bytes = 0;
  assert_ok(weir_allocator_base(allocator, p, &base, &bytes));
  assert_ptr_equal(base, p);
  assert_int_equal(bytes, 1000);
  also_used_by(p, work_stream()); /* the driver waits for all streams anyway */
  assert_error(INVALID_ARGUMENT, weir_allocator_record_stream(allocator, (char *)p + 1, NULL));
  assert_error(INVALID_ARGUMENT, weir_allocator_free(allocator, (char *)p + 1));
  put(p);
  assert_int_equal(soft_census().allocations, 0);
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_free(allocator, p));
  alloc_close();
}

TEST(switched_while_memory_is_live) {
  alloc_open(NULL, GIB);
  void *cached = get(512, NULL);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  void *plain = get(512, NULL);
  put(cached);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].current, 0);
  assert_ok(weir_allocator_set_caching(allocator, 1));
  assert_ptr_equal(get(512, NULL), cached);
  put(plain);
  assert_int_equal(soft_census().allocations, 1);
  alloc_close();
}

TEST(out_of_memory) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  void *p = NULL;
  assert_error_says(OUT_OF_MEMORY, "cuMemAlloc", weir_allocator_alloc(allocator, 0, 2 * GIB, NULL, &p));
  assert_null(p);
  put(get(512, NULL));
  alloc_close();
}

/* Live memory is freed with the allocator. */
TEST(left_behind) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  for (int i = 0; i < 20; i++)
    get_on(i % 2, 1000 + (size_t)i, NULL);
  alloc_close();
}

/* A free that the driver refuses can be repeated. */
TEST(refused_free) {
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  void *p = get(512, NULL);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFree, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemFree", weir_allocator_free(allocator, p));
  put(p);
  alloc_close();
}

static void check_environment(const char *name, const char *value, int expected) {
  setenv(name, value, 1);
  alloc_open(NULL, GIB);
  assert_int_equal(is_caching(allocator), expected);
  alloc_close();
  unsetenv(name);
}

static int warnings;
static char warning[256];

static void note_warning(void *context, weir_log_level level, const char *message) {
  (void)context;
  warnings += level == WEIR_LOG_WARN;
  snprintf(warning, sizeof warning, "%s", message);
}

TEST(environment) {
  weir_log_set_sink(note_warning, NULL);
  check_environment("WEIR_NO_MEMORY_CACHING", "1", 0);
  check_environment("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 0);
  check_environment("WEIR_NO_MEMORY_CACHING", "0", 1); /* only 1 turns it off */
  check_environment("WEIR_NO_MEMORY_CACHING", "", 1);
  check_environment("PYTORCH_NO_CUDA_MEMORY_CACHING", "true", 1);
  assert_int_equal(warnings, 0);
  check_environment("WEIR_NO_MEMORY_CACHING", "2", 1);
  assert_int_equal(warnings, 1);
  assert_string_equal(warning, "invalid WEIR_NO_MEMORY_CACHING=2: expected 0 or 1; memory is cached");
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  check_environment("WEIR_NO_MEMORY_CACHING", "yes", 0);
  unsetenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
  assert_int_equal(warnings, 2);
  weir_log_set_sink(NULL, NULL);
}

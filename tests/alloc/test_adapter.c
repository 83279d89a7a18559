/*
 * The witness, which is called inside each operation.
 */
#include "weir/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"

static char seen[256];

static void write_down(void *context, const weir_trace_entry *entry) {
  static const char letters[] = "afcAFMUo";
  size_t length = strlen(seen);
  assert_ptr_equal(context, seen);
  if (length + 1 < sizeof seen)
    seen[length] = letters[entry->action];
}

static void test_witness(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  memset(seen, 0, sizeof seen);
  put(get(512, NULL));
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  void *p = get(512, NULL), *large = get(3 * MIB, NULL);
  put(p);
  put(large);
  empty_cache();
  assert_string_equal(seen, "aAafcfcFF");

  weir_cu_stream side = work_stream();
  memset(seen, 0, sizeof seen);
  p = get(512, NULL);
  also_used_by(p, side);
  work(side);
  put(p);
  assert_string_equal(seen, "Aaf");
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  put(get(512, NULL));
  assert_string_equal(seen, "Aaf");
  assert_int_equal(weir_allocator_set_witness(NULL, write_down, seen, WEIR_WITNESS_ALL), WEIR_ERROR_INVALID_ARGUMENT);
  alloc_close();
}

/* A witness for segments only: cached allocations and frees stay on the fast path and do not call it. */
static void test_witness_of_segments(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  memset(seen, 0, sizeof seen);
  put(get(512, NULL));
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_SEGMENTS));
  put(get(512, NULL));
  assert_string_equal(seen, "");
  void *large = get(3 * MIB, NULL);
  assert_int_equal(seen[0], 'A');
  put(large);
  memset(seen, 0, sizeof seen);
  empty_cache();
  assert_string_equal(seen, "FF");
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  memset(seen, 0, sizeof seen);
  put(get(512, NULL));
  assert_string_equal(seen, "Aafc");
  assert_int_equal(weir_allocator_set_witness(allocator, write_down, seen, (weir_witness_scope)2),
                   WEIR_ERROR_INVALID_ARGUMENT);
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  alloc_close();
}

static void test_one_witness(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  assert_ok(weir_allocator_set_witness(allocator, write_down, seen, WEIR_WITNESS_ALL));
  assert_int_equal(weir_allocator_set_witness(allocator, write_down, NULL, WEIR_WITNESS_ALL), WEIR_ERROR_BAD_STATE);
  assert_ok(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));
  alloc_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_witness, alloc_teardown),
      cmocka_unit_test_teardown(test_witness_of_segments, alloc_teardown),
      cmocka_unit_test_teardown(test_one_witness, alloc_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Pages that move together with max_split_size_mb: a free block that the search passes over, because of its size, may
 * be where the request grows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "weir/alloc.h"
#include "weir/driver.h"

#define MIB ((size_t)1 << 20)

/* Expandable segments hand it out whole. Pages that move do as well: none is made, and none moves. */
static void test_passed_over(void **state) {
  (void)state;
  static const char *const confs[] = {"expandable_segments:True,max_split_size_mb:20",
                                      "moving_pages:True,max_split_size_mb:20"};
  static const size_t sizes[] = {22 * MIB, 4 * MIB};
  for (size_t i = 0; i < 4; i++) {
    weir_driver *driver;
    weir_allocator *allocator;
    weir_allocator_options options;
    weir_allocator_stats before = {.size = sizeof before}, after = before;
    void *large, *other;
    assert_int_equal(weir_driver_open_ledger(NULL, &driver), WEIR_OK);
    driver->Init(driver, 0);
    weir_allocator_options_init(&options);
    options.conf = confs[i / 2];
    assert_int_equal(weir_allocator_create(driver, &options, &allocator), WEIR_OK);
    assert_int_equal(weir_allocator_alloc(allocator, 0, 100 * MIB, NULL, &large), WEIR_OK);
    assert_int_equal(weir_allocator_free(allocator, large), WEIR_OK);
    weir_allocator_get_stats(allocator, 0, &before);
    assert_int_equal(weir_allocator_alloc(allocator, 0, sizes[i % 2], NULL, &other), WEIR_OK);
    assert_ptr_equal(other, large);
    weir_allocator_get_stats(allocator, 0, &after);
    assert_int_equal(after.reserved_bytes[WEIR_STAT_ALL].current, before.reserved_bytes[WEIR_STAT_ALL].current);
    assert_int_equal(after.moving.pages_made, before.moving.pages_made);
    assert_int_equal(after.moving.pages_moved, 0);
    assert_int_equal(weir_allocator_free(allocator, other), WEIR_OK);
    weir_allocator_destroy(allocator);
    weir_driver_close(driver);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_passed_over)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

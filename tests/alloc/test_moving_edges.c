/*
 * Pages that move, on a ledger: together with max_split_size_mb, and when the allocator ends.
 */

#include "support/test.h"
#include "weir/alloc.h"
#include "weir/driver.h"

#define MIB ((size_t)1 << 20)

/* A free block that the search passes over, because of its size, may be where the request grows. Expandable segments
 * hand it out whole. Pages that move do as well: none is made, and none moves. */
TEST(passed_over) {
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
    assert_int_equal(after.moving_pages_made, before.moving_pages_made);
    assert_int_equal(after.moving_pages_moved, 0);
    assert_int_equal(weir_allocator_free(allocator, other), WEIR_OK);
    weir_allocator_destroy(allocator);
    weir_driver_close(driver);
  }
}

/* ---- The end ---- */

static weir_driver real;
static int events;

static weir_cu_result create_event(weir_driver *self, weir_cu_event *event, unsigned flags) {
  events++;
  return real.EventCreate(self, event, flags);
}

static weir_cu_result destroy_event(weir_driver *self, weir_cu_event event) {
  events--;
  return real.EventDestroy(self, event);
}

/* The event behind the last use of old mappings is destroyed with the allocator, even if it was never asked for. */
TEST(ends_while_retiring) {
  weir_driver *driver;
  weir_allocator *allocator;
  weir_allocator_options options;
  weir_allocator_stats stats = {.size = sizeof stats};
  void *blocks[6], *large;
  assert_int_equal(weir_driver_open_ledger(NULL, &driver), WEIR_OK);
  real = *driver;
  driver->EventCreate = create_event;
  driver->EventDestroy = destroy_event;
  driver->Init(driver, 0);
  weir_allocator_options_init(&options);
  options.conf = "moving_pages:True,moving_pages_max_aliases:0";
  assert_int_equal(weir_allocator_create(driver, &options, &allocator), WEIR_OK);
  for (size_t i = 0; i < 6; i++)
    assert_int_equal(weir_allocator_alloc(allocator, 0, 4 * MIB, NULL, &blocks[i]), WEIR_OK);
  for (size_t i = 0; i < 6; i += 2)
    assert_int_equal(weir_allocator_free(allocator, blocks[i]), WEIR_OK);
  assert_int_equal(weir_allocator_alloc(allocator, 0, 12 * MIB, NULL, &large), WEIR_OK);
  weir_allocator_get_stats(allocator, 0, &stats);
  assert_true(stats.moving_pages_moved > 0);
  assert_true(events > 0);
  weir_allocator_destroy(allocator);
  assert_int_equal(events, 0);
  weir_driver_close(driver);
}

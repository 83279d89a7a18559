/*
 * A program that exits with an open allocator: a leak checker finds all of its memory reachable from the program's
 * variable.
 */
#include "support/alloc.h"

static weir_allocator *kept;
static void *blocks[200];

TEST(left_open) {
  weir_driver *driver;
  assert_ok(weir_driver_open_ledger(NULL, &driver));
  assert_cu(driver->Init(driver, 0));
  assert_ok(weir_allocator_create(driver, NULL, &kept));
  for (int i = 0; i < 200; i++)
    assert_ok(weir_allocator_alloc(kept, 0, 4096, NULL, &blocks[i]));
  for (int i = 0; i < 200; i += 2) /* enough blocks of one size for partitions of the index */
    assert_ok(weir_allocator_free(kept, blocks[i]));
  assert_ok(weir_allocator_alloc(kept, 0, 4096, NULL, &blocks[0]));
}

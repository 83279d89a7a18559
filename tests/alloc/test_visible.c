/*
 * One numbering of devices: with CUDA_VISIBLE_DEVICES a device number means the same device to the driver, the runtime,
 * the allocator, its history and its snapshots.
 */
#include "support/alloc.h"

#include <stdlib.h>
#include <string.h>

#include "weir/history.h"
#include "weir/snapshot.h"

enum { DEVICES = 4 };

static char uuids[DEVICES][48]; /* of all devices */

static void set_environment(const char *text) {
  setenv("WEIR_DRIVER", "soft", 1);
  setenv("WEIR_SOFT_DEVICES", "4", 1);
  if (text)
    setenv("CUDA_VISIBLE_DEVICES", text, 1);
  else
    unsetenv("CUDA_VISIBLE_DEVICES");
}

static size_t free_bytes_of(weir_driver *driver, int device) {
  weir_cu_context context;
  size_t free_bytes, total;
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, device));
  assert_cu(driver->CtxSetCurrent(driver, context));
  assert_cu(driver->MemGetInfo(driver, &free_bytes, &total));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, device));
  return free_bytes;
}

static void check_snapshot(weir_allocator *on, int device, int count) {
  weir_snapshot *snapshot;
  const weir_snapshot_segment *found;
  size_t number;
  assert_ok(weir_snapshot_take(on, NULL, &snapshot));
  assert_ok(weir_snapshot_segments(snapshot, &found, &number));
  assert_int_equal(number, 1);
  assert_int_equal(found[0].device, device);
  for (int i = 0; i < count; i++) {
    uint64_t events, dropped;
    assert_ok(weir_snapshot_entries(snapshot, i, &events, &dropped));
    assert_int_equal(events > 0, i == device);
  }
  weir_snapshot_destroy(snapshot);
}

/* In every layer, memory of device `device` of `count` belongs to that device only. */
static void check_device(weir_driver *driver, int device, int count, const char *uuid) {
  char text[48];
  size_t before[DEVICES];
  weir_allocator *on;
  weir_history_options history;
  void *memory;
  uuid_of(device, text);
  assert_string_equal(text, uuid);
  assert_ok(weir_allocator_create(driver, NULL, &on));
  weir_history_options_init(&history);
  assert_ok(weir_history_record(on, &history));
  for (int i = 0; i < count; i++)
    before[i] = free_bytes_of(driver, i);
  assert_ok(weir_allocator_alloc(on, device, 10 * MIB, NULL, &memory));
  for (int i = 0; i < count; i++) {
    weir_allocator_stats stats = {.size = sizeof stats};
    size_t taken = i == device ? 10 * MIB : 0, free_bytes, total;
    assert_ok(weir_allocator_get_stats(on, i, &stats));
    assert_int_equal(stats.reserved_bytes[WEIR_STAT_ALL].current, taken);
    assert_int_equal(before[i] - free_bytes_of(driver, i), taken);
    assert_ok(weir_device_memory_info(i, &free_bytes, &total));
    assert_int_equal(free_bytes, before[i] - taken);
  }
  weir_cu_device ordinal = -1;
  assert_cu(driver->PointerGetAttribute(driver, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, (uintptr_t)memory));
  assert_int_equal(ordinal, device);
  check_snapshot(on, device, count);
  assert_ok(weir_allocator_free(on, memory));
  weir_allocator_destroy(on);
}

TEST(one_numbering) {
  static const struct {
    const char *text, *ordinals;
  } cases[] = {{"1", "1"}, {"3,1", "31"}, {"2,0,3,1", "2031"}, {"1,9,0", "1"}, {"1,0x", "10"}};
  weir_driver *driver;
  set_environment(NULL);
  for (int i = 0; i < DEVICES; i++)
    uuid_of(i, uuids[i]);
  assert_ok(weir_shutdown());
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    set_environment(cases[i].text);
    assert_ok(weir_init());
    assert_ok(weir_get_driver(&driver));
    int count, expected = (int)strlen(cases[i].ordinals);
    assert_ok(weir_device_count(&count));
    assert_int_equal(count, expected);
    assert_cu(driver->DeviceGetCount(driver, &count));
    assert_int_equal(count, expected);
    for (int device = 0; device < count; device++)
      check_device(driver, device, count, uuids[cases[i].ordinals[device] - '0']);
    assert_ok(weir_shutdown());
  }
}

/* No device is visible: the driver itself reports it. */
TEST(no_visible_device) {
  static const char *const texts[] = {"", "4", "0,0", "1,0,1", "MIG-1", "nothing"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    set_environment(texts[i]);
    weir_driver *driver;
    int count = -1;
    assert_ok(weir_driver_open(NULL, &driver));
    assert_cu_error(NO_DEVICE, driver->Init(driver, 0));
    assert_cu_error(NOT_INITIALIZED, driver->DeviceGetCount(driver, &count));
    weir_driver_close(driver);
    assert_error(NO_DEVICE, weir_init());
  }
}

/* ---- Driver tables of the program ---- */

static weir_cu_result three_devices(weir_driver *self, int *count) {
  (void)self;
  *count = 3;
  return WEIR_CU_SUCCESS;
}

/* The runtime uses the devices that a table lists: it never applies the variable to a table, whether the table has
 * applied it or not. */
TEST(table_of_the_program) {
  weir_driver *inner, *table;
  int count;
  set_environment("3,1");
  assert_ok(weir_driver_open(NULL, &inner));
  assert_ok(weir_driver_open_fault(inner, &table));
  table->name = "own";
  assert_true(table->capabilities == inner->capabilities);
  assert_ok(weir_use_driver(table));
  assert_ok(weir_init());
  assert_ok(weir_device_count(&count));
  assert_int_equal(count, 2);
  check_device(table, 0, 2, uuids[3]);
  check_device(table, 1, 2, uuids[1]);
  assert_ok(weir_shutdown());

  table->capabilities = 0;
  table->DeviceGetCount = three_devices;
  assert_ok(weir_device_count(&count));
  assert_int_equal(count, 3);
  assert_ok(weir_use_driver(NULL));
  weir_driver_close(table);
  weir_driver_close(inner);
}

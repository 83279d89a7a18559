/*
 * The count of memory that a program creates itself, against what the software device has in use.
 */
#include "created.h"

#include <stdio.h>
#include <stdlib.h>

#include "support/test.h"
#include "weir/soft.h"

#define MIB ((uint64_t)1 << 20)
enum { DEVICES = 2 };

static uint64_t counted[DEVICES];
static int reports;

static void report(int device, uint64_t bytes) {
  counted[device] = bytes;
  reports++;
}

/* ---- On the software device ---- */

static weir_driver *d;
static weir_cu_context contexts[DEVICES];
static uint64_t used_before[DEVICES];

static uint64_t used(int device) {
  uint64_t free_bytes, total_bytes;
  assert_int_equal(d->CtxSetCurrent(d, contexts[device]), 0);
  assert_int_equal(d->MemGetInfo(d, &free_bytes, &total_bytes), 0);
  return total_bytes - free_bytes;
}

static int setup(void **state) {
  (void)state;
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.devices = DEVICES;
  assert_int_equal(weir_driver_open_soft(&options, &d), 0);
  assert_int_equal(d->Init(d, 0), 0);
  for (int i = 0; i < DEVICES; i++) {
    assert_int_equal(d->DevicePrimaryCtxRetain(d, &contexts[i], i), 0);
    used_before[i] = used(i);
  }
  preload_created_report(report);
  return 0;
}

static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < DEVICES; i++)
    d->DevicePrimaryCtxRelease(d, i);
  weir_driver_close(d);
  return 0;
}

static void assert_counted(void) {
  for (int i = 0; i < DEVICES; i++)
    assert_int_equal(counted[i], used(i) - used_before[i]);
}

/* Creates, maps, releases and unmaps at random: handles are mapped several times and not at all, and are released
 * before, between and after that; one call unmaps several. */
TEST_SETUP(the_count_is_what_the_device_has, setup, teardown) {
  enum { SLOTS = 64, HANDLES = 24, STEPS = 20000, PAGE = 2 };
  weir_cu_mem_handle handles[HANDLES] = {0};
  bool is_mapped[SLOTS] = {false};
  weir_cu_deviceptr base;
  uint64_t most = 0;
  int zeros = 0;
  srand(20);
  assert_int_equal(d->MemAddressReserve(d, &base, SLOTS * PAGE * MIB, 0, 0, 0), 0);
  for (int step = 0; step < STEPS; step++) {
    weir_cu_mem_handle *handle = &handles[rand() % HANDLES];
    int slot = rand() % SLOTS, slots = 1 + rand() % 8;
    if (slots > SLOTS - slot)
      slots = SLOTS - slot;
    switch (rand() % (step / 100 % 2 ? 3 : 6)) {
    case 0:
      if (*handle) {
        preload_created_release(*handle);
        assert_int_equal(d->MemRelease(d, *handle), 0);
        *handle = 0;
      }
      break;
    case 1:
    case 2:
      assert_int_equal(d->MemUnmap(d, base + (uint64_t)slot * PAGE * MIB, (uint64_t)slots * PAGE * MIB), 0);
      preload_created_unmap(base + (uint64_t)slot * PAGE * MIB, (uint64_t)slots * PAGE * MIB);
      for (int i = 0; i < slots; i++)
        is_mapped[slot + i] = false;
      break;
    case 3:
      if (!*handle) {
        int device = rand() % DEVICES;
        weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, device}};
        assert_int_equal(d->MemCreate(d, handle, PAGE * MIB, &prop, 0), 0);
        preload_created_add(*handle, device, PAGE * MIB);
      }
      break;
    default:
      if (*handle && !is_mapped[slot]) {
        assert_int_equal(d->MemMap(d, base + (uint64_t)slot * PAGE * MIB, PAGE * MIB, 0, *handle, 0), 0);
        preload_created_map(base + (uint64_t)slot * PAGE * MIB, PAGE * MIB, *handle);
        is_mapped[slot] = true;
      }
    }
    assert_counted();
    zeros += !counted[0];
    most = counted[0] > most ? counted[0] : most;
  }
  assert_true(most > 8 * PAGE * MIB && zeros > 0);
  for (int i = 0; i < HANDLES; i++)
    if (handles[i]) {
      preload_created_release(handles[i]);
      assert_int_equal(d->MemRelease(d, handles[i]), 0);
    }
  assert_int_equal(d->MemUnmap(d, base, SLOTS * PAGE * MIB), 0);
  preload_created_unmap(base, SLOTS * PAGE * MIB);
  assert_int_equal(d->MemAddressFree(d, base, SLOTS * PAGE * MIB), 0);
  assert_counted();
  assert_int_equal(counted[0] + counted[1], 0);
}

/* ---- What the software device does not have ---- */

TEST(retained_handles_count) {
  enum { HANDLE = 7, BASE = 0x1000000, OTHER = 8 };
  preload_created_add(HANDLE, 0, MIB);
  preload_created_map(BASE, MIB, HANDLE);
  preload_created_release(HANDLE);
  preload_created_retain(OTHER, BASE + MIB / 2);
  preload_created_retain(OTHER, BASE);
  preload_created_unmap(BASE, MIB);
  preload_created_release(OTHER);
  assert_int_equal(counted[0], MIB);
  preload_created_release(OTHER);
  assert_int_equal(counted[0], 0);
}

TEST(a_handle_is_given_out_again) {
  preload_created_add(7, 0, MIB);
  preload_created_add(7, 1, 2 * MIB); /* a release was not seen */
  assert_int_equal(counted[0], 0);
  assert_int_equal(counted[1], 2 * MIB);
  preload_created_release(7);
  assert_int_equal(counted[1], 0);
}

/* Memory of other processes and of unknown devices, and calls that the driver accepts as well. */
TEST(unknown_memory_does_not_count) {
  int before = reports;
  preload_created_map(MIB, MIB, 99);
  preload_created_unmap(MIB, MIB);
  preload_created_unmap(MIB, 0);
  preload_created_release(99);
  preload_created_retain(99, MIB);
  preload_created_add(1, -1, MIB);
  preload_created_add(1, 64, MIB);
  preload_created_repeat(0);
  assert_int_equal(reports, before);
}

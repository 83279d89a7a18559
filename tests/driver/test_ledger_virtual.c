/*
 * Virtual memory and pools of the ledger.
 */
#include "support/ledger.h"

#define GIB ((unsigned long long)1 << 30)

/* ---- Virtual memory ---- */

TEST(reservations) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_deviceptr a, b, wish;
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &a, 0, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &a, PAGE + 512, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &a, PAGE, 3000, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &a, PAGE, 3 * PAGE, 0, 0));
  assert_cu(d->MemAddressReserve(d, &a, PAGE, 4096, 0, 0));
  assert_int_equal(a % PAGE, 0);
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &a, PAGE, 0, 0, 4));
  assert_cu(d->MemAddressReserve(d, &a, 1 << 30, 0, 0, 0));
  assert_cu(d->MemAddressReserve(d, &b, PAGE, (size_t)1 << 30, 0, 0));
  assert_int_equal(b % (1 << 30), 0);
  assert_int_equal(free_bytes(d), GIB); /* addresses take no memory */
  assert_cu_error(OUT_OF_MEMORY, d->MemAddressReserve(d, &b, (size_t)1 << 60, 0, 0, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemAddressReserve(d, &b, (size_t)1 << 47, 0, 0, 0));
  for (int i = 0; i < 3; i++) { /* four ranges of this size exist, and can be reused */
    weir_cu_deviceptr huge[4], none;
    for (int k = 0; k < 4; k++)
      assert_cu(d->MemAddressReserve(d, &huge[k], (size_t)1 << 46, 0, 0, 0));
    assert_cu_error(OUT_OF_MEMORY, d->MemAddressReserve(d, &none, (size_t)1 << 46, 0, 0, 0));
    for (int k = 0; k < 4; k++)
      assert_cu(d->MemAddressFree(d, huge[k], (size_t)1 << 46));
  }
  /* Half that size: eight ranges, and four of the larger ones. */
  weir_cu_deviceptr half[12], none;
  for (int k = 0; k < 12; k++) {
    assert_cu(d->MemAddressReserve(d, &half[k], (size_t)1 << 45, 0, 0, 0));
    for (int other = 0; other < k; other++)
      assert_true(half[k] >= half[other] + ((size_t)1 << 45) || half[other] >= half[k] + ((size_t)1 << 45));
  }
  assert_cu_error(OUT_OF_MEMORY, d->MemAddressReserve(d, &none, (size_t)1 << 45, 0, 0, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemAddressReserve(d, &none, (size_t)1 << 46, 0, 0, 0));
  for (int k = 0; k < 12; k++)
    assert_cu(d->MemAddressFree(d, half[k], (size_t)1 << 45));

  wish = 0x500000000000;
  assert_cu(d->MemAddressReserve(d, &b, 2 * PAGE, 0, wish, 0));
  assert_int_equal(b, wish);
  assert_cu(d->MemAddressReserve(d, &b, PAGE, 0, wish, 0)); /* an address hint that cannot be met is ignored */
  assert_int_not_equal(b, wish);
  assert_cu(d->MemAddressReserve(d, &b, PAGE, 0, wish + 4 * PAGE + 512, 0));
  assert_int_not_equal(b, wish + 4 * PAGE + 512);

  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, a, PAGE));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, a + PAGE, PAGE));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, a));
  assert_cu(d->MemAddressFree(d, a, 1 << 30));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, a, 1 << 30));
  weir_driver_close(d);
}

TEST(far_more_addresses_than_memory) {
  weir_driver *d = open_ledger(1, PAGE);
  weir_cu_deviceptr base[100];
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_handle handle;
  for (int i = 0; i < 100; i++)
    assert_cu(d->MemAddressReserve(d, &base[i], 90 * GIB, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, PAGE, &prop, 0));
  for (int i = 0; i < 100; i++)
    assert_cu(d->MemMap(d, base[i] + 89 * GIB, PAGE, 0, handle, 0));
  weir_driver_close(d);
}

TEST(handles) {
  weir_driver *d = open_ledger(2, 4 * PAGE + 1);
  weir_cu_mem_prop prop = memory_of(0), bad;
  weir_cu_mem_handle a, b, unwritten = 7;
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &a, PAGE + 512, &prop, 0));
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &a, 0, &prop, 0));
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &a, PAGE, &prop, 1));
  bad = prop, bad.location.id = 2;
  assert_cu_error(INVALID_DEVICE, d->MemCreate(d, &a, PAGE, &bad, 0));
  bad = prop, bad.type = 0;
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &a, PAGE, &bad, 0));
  bad = prop, bad.location.type = 2;
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &a, PAGE, &bad, 0));
  bad = prop, bad.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  assert_cu_error(NOT_SUPPORTED, d->MemCreate(d, &a, PAGE, &bad, 0));

  assert_cu(d->MemCreate(d, &a, 3 * PAGE, &prop, 0));
  assert_int_equal(free_bytes(d), PAGE + 1);
  assert_cu(d->MemCreate(d, &b, PAGE, &prop, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemCreate(d, &unwritten, PAGE, &prop, 0));
  assert_int_equal(unwritten, 7);
  prop.location.id = 1;
  assert_cu(d->MemCreate(d, &unwritten, PAGE, &prop, 0)); /* the other device has its own memory */
  assert_cu(d->MemRelease(d, a));
  assert_int_equal(free_bytes(d), 3 * PAGE + 1);
  assert_cu_error(INVALID_VALUE, d->MemRelease(d, a));
  assert_cu_error(INVALID_VALUE, d->MemRelease(d, 0));
  assert_cu(d->MemRelease(d, b));
  assert_int_equal(free_bytes(d), 4 * PAGE + 1);

  size_t unit = 0;
  assert_cu(d->MemGetAllocationGranularity(d, &unit, &prop, WEIR_CU_GRANULARITY_MINIMUM));
  assert_int_equal(unit, PAGE);
  assert_cu_error(INVALID_VALUE, d->MemGetAllocationGranularity(d, &unit, &prop, 5));
  weir_driver_close(d);
}

TEST(mappings) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_handle two, one;
  weir_cu_deviceptr va, plain, base;
  size_t bytes;
  assert_cu(d->MemAddressReserve(d, &va, 16 * PAGE, 0, 0, 0));
  assert_cu(d->MemAlloc(d, &plain, 4 * PAGE));
  assert_cu(d->MemCreate(d, &two, 2 * PAGE, &prop, 0));
  assert_cu(d->MemCreate(d, &one, PAGE, &prop, 0));

  assert_cu_error(NOT_SUPPORTED, d->MemMap(d, va, PAGE, PAGE, two, 0));
  assert_cu_error(NOT_SUPPORTED, d->MemMap(d, va, PAGE, 0, two, 0));
  assert_cu_error(NOT_SUPPORTED, d->MemMap(d, va, 3 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va + 512, 2 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va + 15 * PAGE, 2 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va + 16 * PAGE, 2 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, plain, 2 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va, 2 * PAGE, 0, two, 1));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va, 2 * PAGE, 0, two + 7, 0)); /* an invalid handle */

  assert_cu(d->MemMap(d, va + 2 * PAGE, 2 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va + 2 * PAGE, PAGE, 0, one, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va + 3 * PAGE, PAGE, 0, one, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va + PAGE, 2 * PAGE, 0, two, 0));
  assert_cu(d->MemMap(d, va + 8 * PAGE, 2 * PAGE, 0, two, 0)); /* the same memory at two addresses */
  assert_cu(d->MemMap(d, va + 4 * PAGE, PAGE, 0, one, 0));
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, va + 3 * PAGE + 5));
  assert_int_equal(base, va + 2 * PAGE);
  assert_int_equal(bytes, 2 * PAGE);
  assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, &bytes, va + PAGE));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &base, WEIR_CU_POINTER_ATTR_RANGE_START, va + PAGE));

  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 2 * PAGE, PAGE));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 3 * PAGE, PAGE));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 3 * PAGE, 2 * PAGE));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 4 * PAGE, 5 * PAGE)); /* would cut the mapping at 8 */
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 2 * PAGE, 0));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 512, PAGE));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va + 5 * PAGE, PAGE - 512));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va, 17 * PAGE));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, plain, 4 * PAGE));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, va, 16 * PAGE));
  assert_cu(d->MemUnmap(d, va + 5 * PAGE, 2 * PAGE)); /* nothing is mapped there */
  assert_cu(d->MemGetAddressRange(d, NULL, NULL, va + 4 * PAGE));
  assert_cu(d->MemUnmap(d, va, 8 * PAGE)); /* two mappings and gaps around them */
  assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, NULL, NULL, va + 4 * PAGE));
  assert_cu(d->MemGetAddressRange(d, NULL, NULL, va + 8 * PAGE));

  /* The memory is freed with the handle or the last mapping, whichever is later. */
  size_t before = free_bytes(d);
  assert_cu(d->MemRelease(d, two));
  assert_int_equal(free_bytes(d), before);
  assert_cu_error(INVALID_VALUE, d->MemMap(d, va, 2 * PAGE, 0, two, 0));
  assert_cu_error(INVALID_VALUE, d->MemRelease(d, two));
  assert_cu(d->MemUnmap(d, va + 8 * PAGE, 2 * PAGE));
  assert_int_equal(free_bytes(d), before + 2 * PAGE);
  assert_cu(d->MemRelease(d, one));
  assert_int_equal(free_bytes(d), before + 3 * PAGE);
  assert_cu(d->MemAddressFree(d, va, 16 * PAGE));

  /* The old page table leaves nothing at the same address. */
  assert_cu(d->MemAddressReserve(d, &base, 16 * PAGE, 0, 0, 0));
  assert_int_equal(base, va);
  assert_cu(d->MemCreate(d, &two, 2 * PAGE, &prop, 0));
  assert_cu(d->MemMap(d, va + 2 * PAGE, 2 * PAGE, 0, two, 0));
  weir_driver_close(d);
}

/* Page tables have 512 pages each, and are created on demand. */
TEST(mappings_far_apart) {
  const size_t all = 3000 * PAGE;
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_handle four, one;
  weir_cu_deviceptr va, base;
  assert_cu(d->MemAddressReserve(d, &va, all, 0, 0, 0));
  assert_cu(d->MemCreate(d, &four, 4 * PAGE, &prop, 0));
  assert_cu(d->MemCreate(d, &one, PAGE, &prop, 0));
  assert_cu(d->MemUnmap(d, va, all));
  for (int round = 0; round < 2; round++) {
    assert_cu(d->MemMap(d, va + 510 * PAGE, 4 * PAGE, 0, four, 0)); /* across the end of a table */
    assert_cu(d->MemMap(d, va + 2999 * PAGE, PAGE, 0, one, 0));
    for (int page = 510; page < 514; page++) {
      assert_cu(d->MemGetAddressRange(d, &base, NULL, va + (weir_cu_deviceptr)page * PAGE));
      assert_int_equal(base, va + 510 * PAGE);
    }
    assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, NULL, va + 509 * PAGE));
    assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, NULL, va + 514 * PAGE));
    assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, NULL, va + 1500 * PAGE));
    assert_cu_error(INVALID_VALUE, d->MemUnmap(d, va, 512 * PAGE));
    assert_cu(d->MemUnmap(d, va, all));
    assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, NULL, va + 512 * PAGE));
    assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, NULL, va + 2999 * PAGE));
  }
  assert_cu(d->MemAddressFree(d, va, all));
  weir_driver_close(d);
}

TEST(access) {
  weir_driver *d = open_ledger(2, GIB);
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_access both[2] = {access_of(0, WEIR_CU_ACCESS_READWRITE), access_of(1, WEIR_CU_ACCESS_READ)};
  weir_cu_mem_handle a, b;
  weir_cu_deviceptr va, plain;
  assert_cu(d->MemAlloc(d, &plain, 4 * PAGE));
  assert_cu(d->MemAddressReserve(d, &va, 8 * PAGE, 0, 0, 0));
  assert_cu(d->MemCreate(d, &a, 2 * PAGE, &prop, 0));
  assert_cu(d->MemCreate(d, &b, 2 * PAGE, &prop, 0));
  assert_cu(d->MemMap(d, va, 2 * PAGE, 0, a, 0));
  assert_cu(d->MemMap(d, va + 2 * PAGE, 2 * PAGE, 0, b, 0));

  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va + 4 * PAGE, PAGE, both, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va, 6 * PAGE, both, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va, PAGE, both, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va, 512, both, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va, 2 * PAGE, both, 0));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, plain, 2 * PAGE, both, 1));
  weir_cu_mem_access bad = access_of(2, WEIR_CU_ACCESS_READ);
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va, 2 * PAGE, &bad, 1));
  bad = access_of(0, 2);
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, va, 2 * PAGE, &bad, 1));

  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, va, 0, 4 * PAGE, NULL)); /* mapped without access */
  assert_cu(d->MemSetAccess(d, va, 2 * PAGE, both, 1));
  assert_cu(d->MemsetD8Async(d, va, 0, 2 * PAGE, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, va, 0, 2 * PAGE + 1, NULL));
  assert_cu(d->MemSetAccess(d, va, 4 * PAGE, both, 2));
  assert_cu(d->MemsetD8Async(d, va + PAGE + 1, 0, 2 * PAGE, NULL)); /* across two mappings */

  weir_cu_mem_access twice[2] = {access_of(0, WEIR_CU_ACCESS_READWRITE), access_of(0, WEIR_CU_ACCESS_READ)};
  assert_cu(d->MemSetAccess(d, va, 2 * PAGE, twice, 2)); /* the latest setting for a device counts */
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, va, 0, 100, NULL));
  assert_cu(d->MemcpyAsync(d, plain, va, 100, NULL));
  assert_cu(d->MemSetAccess(d, va, 2 * PAGE, both, 2));

  /* The other device may read but not write. */
  weir_cu_context one;
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxSetCurrent(d, one));
  assert_cu(d->MemcpyAsync(d, plain, va, 4 * PAGE, NULL));
  assert_cu_error(INVALID_VALUE, d->MemcpyAsync(d, va, plain, 4 * PAGE, NULL));
  weir_cu_mem_access none = access_of(1, WEIR_CU_ACCESS_NONE);
  assert_cu(d->MemSetAccess(d, va, 2 * PAGE, &none, 1));
  assert_cu_error(INVALID_VALUE, d->MemcpyAsync(d, plain, va, 4 * PAGE, NULL));
  assert_cu(d->MemcpyAsync(d, plain, va + 2 * PAGE, 2 * PAGE, NULL));

  /* A new mapping has no access. */
  assert_cu(d->MemUnmap(d, va + 2 * PAGE, 2 * PAGE));
  assert_cu(d->MemMap(d, va + 2 * PAGE, 2 * PAGE, 0, b, 0));
  assert_cu_error(INVALID_VALUE, d->MemcpyAsync(d, plain, va + 2 * PAGE, 2 * PAGE, NULL));
  weir_driver_close(d);
}

/* ---- Pools ---- */

static uint64_t pool_value(weir_driver *d, weir_cu_mempool pool, int attribute) {
  uint64_t value = 0;
  assert_cu(d->MemPoolGetAttribute(d, pool, attribute, &value));
  return value;
}

TEST(pool_keeps_freed_memory) {
  weir_driver *d = open_ledger(1, 10000);
  weir_cu_mempool pool, same;
  weir_cu_deviceptr a, b, unwritten = 7;
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->DeviceGetMemPool(d, &same, 0));
  assert_ptr_equal(pool, same);
  assert_cu(d->MemAllocAsync(d, &a, 6000, NULL));
  assert_cu_error(OUT_OF_MEMORY, d->MemAllocAsync(d, &unwritten, 4001, NULL));
  assert_int_equal(unwritten, 7);
  assert_cu(d->MemAllocAsync(d, &b, 1000, NULL));
  assert_int_equal(free_bytes(d), 3000);
  assert_cu(d->MemFreeAsync(d, a, NULL));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, a, NULL));
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT), 1000);
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT), 7000);
  assert_int_equal(free_bytes(d), 3000);
  assert_cu(d->MemAllocAsync(d, &a, 6500, NULL)); /* 6000 bytes of it were cached */
  assert_int_equal(free_bytes(d), 2500);
  assert_cu(d->MemFreeAsync(d, a, NULL));
  assert_cu(d->MemPoolTrimTo(d, pool, 2000));
  assert_int_equal(free_bytes(d), 8000);
  assert_cu(d->MemPoolTrimTo(d, pool, 0)); /* memory in use stays */
  assert_int_equal(free_bytes(d), 9000);
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_HIGH), 7500);
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH), 7500);

  uint64_t value = 1;
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_HIGH, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolGetAttribute(d, pool, 77, &value));
  value = 0;
  assert_cu(d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_HIGH, &value));
  assert_cu(d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH, &value));
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_HIGH), 1000);
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH), 1000);
  assert_cu_error(INVALID_VALUE, d->MemPoolDestroy(d, pool));
  for (int i = WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
       i <= WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; i++) {
    int on = 7, off = 0;
    assert_cu(d->MemPoolGetAttribute(d, pool, i, &on));
    assert_int_equal(on, 1);
    assert_cu(d->MemPoolSetAttribute(d, pool, i, &off));
    assert_cu(d->MemPoolGetAttribute(d, pool, i, &on));
    assert_int_equal(on, 0);
  }
  weir_driver_close(d);
}

TEST(synchronizing_trims_to_the_threshold) {
  weir_driver *d = open_ledger(1, 10000);
  weir_cu_mempool pool;
  weir_cu_deviceptr p;
  weir_cu_event event = make_event(d);
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  for (int way = 0; way < 4; way++) {
    assert_cu(d->MemAllocAsync(d, &p, 5000, NULL));
    if (way == 3) {
      assert_cu(d->MemFree(d, p)); /* synchronizes itself */
    } else {
      assert_cu(d->MemFreeAsync(d, p, NULL));
      assert_int_equal(free_bytes(d), 5000);
      assert_cu(way == 0   ? d->StreamSynchronize(d, NULL)
                : way == 1 ? d->EventSynchronize(d, event)
                           : d->CtxSynchronize(d));
    }
    assert_int_equal(free_bytes(d), 10000);
  }
  uint64_t threshold = 3000;
  assert_cu(d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  assert_cu(d->MemAllocAsync(d, &p, 5000, NULL));
  assert_cu(d->MemFreeAsync(d, p, NULL));
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(free_bytes(d), 7000);
  weir_driver_close(d);
}

TEST(created_pools) {
  weir_driver *d = open_ledger(2, 10000);
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mempool pool, limited, now;
  weir_cu_deviceptr p, q;
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  props.max_size = 1000;
  assert_cu(d->MemPoolCreate(d, &limited, &props));
  assert_cu_error(OUT_OF_MEMORY, d->MemAllocFromPoolAsync(d, &p, 1001, limited, NULL));
  assert_cu(d->MemAllocFromPoolAsync(d, &p, 600, limited, NULL));
  assert_cu_error(OUT_OF_MEMORY, d->MemAllocFromPoolAsync(d, &q, 401, limited, NULL));
  assert_cu(d->MemAllocFromPoolAsync(d, &q, 400, limited, NULL));
  props.location.id = 2;
  assert_cu_error(INVALID_VALUE, d->MemPoolCreate(d, &now, &props));
  props.location.id = 0, props.location.type = 2;
  assert_cu_error(INVALID_VALUE, d->MemPoolCreate(d, &now, &props));
  props.location.type = WEIR_CU_LOCATION_DEVICE, props.type = 0;
  assert_cu_error(INVALID_VALUE, d->MemPoolCreate(d, &now, &props));
  props.type = WEIR_CU_ALLOCATION_PINNED, props.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  assert_cu_error(NOT_SUPPORTED, d->MemPoolCreate(d, &now, &props));

  assert_cu_error(INVALID_VALUE, d->DeviceSetMemPool(d, 1, pool));
  assert_cu(d->DeviceSetMemPool(d, 0, pool));
  assert_cu(d->MemAllocAsync(d, &p, 2000, NULL));
  assert_int_equal(pool_value(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT), 2000);

  /* Memory of a destroyed pool lives until it is freed; the device returns to its default pool. */
  assert_cu(d->MemAllocAsync(d, &q, 500, NULL));
  assert_cu(d->MemFreeAsync(d, q, NULL));
  assert_cu(d->MemPoolDestroy(d, pool)); /* cached memory is freed at once */
  assert_cu_error(INVALID_VALUE, d->MemPoolDestroy(d, pool));
  assert_cu_error(INVALID_VALUE, d->MemAllocFromPoolAsync(d, &q, 1, pool, NULL));
  weir_cu_mempool device_pool;
  assert_cu(d->DeviceGetDefaultMemPool(d, &device_pool, 0));
  assert_cu(d->DeviceGetMemPool(d, &now, 0));
  assert_ptr_equal(now, device_pool);
  assert_int_equal(free_bytes(d), 10000 - 1000 - 2000);
  assert_cu(d->MemGetAddressRange(d, NULL, NULL, p));
  assert_cu(d->MemFreeAsync(d, p, NULL));
  assert_int_equal(free_bytes(d), 10000 - 1000);

  weir_cu_mem_access access = access_of(1, WEIR_CU_ACCESS_NONE);
  assert_cu(d->MemPoolSetAccess(d, limited, &access, 1));
  access = access_of(0, WEIR_CU_ACCESS_READWRITE);
  assert_cu(d->MemPoolSetAccess(d, limited, &access, 1));
  access = access_of(1, 2);
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAccess(d, limited, &access, 1));
  access = access_of(0, WEIR_CU_ACCESS_NONE);
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAccess(d, limited, &access, 1));
  access = access_of(9, WEIR_CU_ACCESS_READ);
  assert_cu_error(INVALID_DEVICE, d->MemPoolSetAccess(d, limited, &access, 1));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAccess(d, limited, NULL, 1));
  assert_cu(d->MemPoolSetAccess(d, limited, NULL, 0));
  weir_driver_close(d);
}

TEST(both_frees_accept_both_kinds) {
  weir_driver *d = open_ledger(1, 10000);
  weir_cu_deviceptr plain, pooled, zero = 7;
  assert_cu(d->MemAlloc(d, &plain, 100));
  assert_cu(d->MemAllocAsync(d, &pooled, 200, NULL));
  assert_cu(d->MemFreeAsync(d, plain, NULL));
  assert_cu(d->MemFree(d, pooled));
  assert_int_equal(free_bytes(d), 10000);
  assert_cu(d->MemAllocAsync(d, &zero, 0, NULL));
  assert_int_equal(zero, 0);
  assert_cu(d->MemFreeAsync(d, 0, NULL));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, 0x1234000, NULL));
  weir_driver_close(d);
}

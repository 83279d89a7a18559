/*
 * Virtual memory: reserving, creating, mapping, access, sharing.
 */
#include <unistd.h>

#include "driver/rules.h"

static const size_t g = 2 * MIB; /* the granularity; test_granularity checks it */

static weir_cu_mem_prop prop_of(int device, int handle_types) {
  return (weir_cu_mem_prop){
      .type = WEIR_CU_ALLOCATION_PINNED, .handle_types = handle_types, .location = {WEIR_CU_LOCATION_DEVICE, device}};
}

static weir_cu_mem_handle handle_new(size_t bytes) {
  weir_cu_mem_prop prop = prop_of(0, WEIR_CU_HANDLE_NONE);
  weir_cu_mem_handle handle;
  assert_cu(d->MemCreate(d, &handle, bytes, &prop, 0));
  return handle;
}

static weir_cu_deviceptr space_new(size_t bytes) {
  weir_cu_deviceptr space;
  assert_cu(d->MemAddressReserve(d, &space, bytes, 0, 0, 0));
  return space;
}

static const weir_cu_mem_access all_access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};

static void map(weir_cu_deviceptr at, size_t bytes, weir_cu_mem_handle handle) {
  assert_cu(d->MemMap(d, at, bytes, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, at, bytes, &all_access, 1));
}

static void fill(weir_cu_deviceptr at, size_t bytes, unsigned char value) {
  assert_cu(d->MemsetD8Async(d, at, value, bytes, NULL));
  assert_cu(d->StreamSynchronize(d, NULL));
}

/* ---- Reserving and creating ---- */

FIXTURE(RULES)

TEST(granularity) {
  weir_cu_mem_prop prop = prop_of(0, 0), bad = prop;
  size_t bytes = 0;
  assert_cu(d->MemGetAllocationGranularity(d, &bytes, &prop, WEIR_CU_GRANULARITY_MINIMUM));
  assert_int_equal(bytes, g);
  assert_cu(d->MemGetAllocationGranularity(d, &bytes, &prop, WEIR_CU_GRANULARITY_RECOMMENDED));
  assert_int_equal(bytes, g);
  assert_cu_error(INVALID_VALUE, d->MemGetAllocationGranularity(d, &bytes, &prop, 5));
  /* The rest is ignored. */
  bad.type = 7;
  assert_cu(d->MemGetAllocationGranularity(d, &bytes, &bad, 0));
  bad = prop_of(99, 0);
  assert_cu(d->MemGetAllocationGranularity(d, &bytes, &bad, 0));
}

TEST(reserve) {
  weir_cu_deviceptr p = 77;
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &p, 0, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &p, g + 512, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &p, 4096, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &p, 12345, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &p, g, 3000, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &p, g, 0, 0, 4));
  assert_cu_error(OUT_OF_MEMORY, d->MemAddressReserve(d, &p, 200ull << 40, 0, 0, 0));
  assert_int_equal(p, 77);

  assert_cu(d->MemAddressReserve(d, &p, g, 1 << 30, 0, 0));
  assert_int_equal(p % (1 << 30), 0);
  assert_cu(d->MemAddressFree(d, p, g));
  assert_cu(d->MemAddressReserve(d, &p, g, 0, 0, 0));
  assert_int_equal(p % g, 0);
  assert_cu(d->MemAddressFree(d, p, g));
}

/* The thread sanitizer leaves a program little address space. */
#if defined(__SANITIZE_THREAD__)
static const size_t vast = 1ull << 37;
#else
static const size_t vast = 1ull << 40;
#endif

/* Address space costs nothing. */
TEST(reserve_more_than_available) {
  weir_cu_deviceptr space[4];
  size_t before, after, total;
  assert_cu(d->MemGetInfo(d, &before, &total));
  for (int i = 0; i < 4; i++)
    assert_cu(d->MemAddressReserve(d, &space[i], vast, 0, 0, 0));
  assert_cu(d->MemGetInfo(d, &after, &total));
  assert_in_range(after, before - (!is_cuda() ? 0 : 8 * MIB), before);
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < i; k++)
      assert_true(space[i] >= space[k] + vast || space[k] >= space[i] + vast);
  for (int i = 0; i < 4; i++)
    assert_cu(d->MemAddressFree(d, space[i], vast));
}

/* An address hint is met if the space is free; NVIDIA's driver promises less. */
TEST(reserve_at) {
  weir_cu_deviceptr first = space_new(64 * g), again = 0, other = 0;
  assert_cu(d->MemAddressFree(d, first, 64 * g));
  assert_cu(d->MemAddressReserve(d, &again, 64 * g, 0, first, 0));
  if (!is_cuda())
    assert_int_equal(again, first);
  assert_cu(d->MemAddressReserve(d, &other, 64 * g, 0, again, 0));
  assert_true(other >= again + 64 * g || again >= other + 64 * g);
  assert_cu(d->MemAddressFree(d, again, 64 * g));
  assert_cu(d->MemAddressFree(d, other, 64 * g));
}

TEST(create) {
  weir_cu_mem_prop prop = prop_of(0, 0), bad = prop_of(99, 0);
  weir_cu_mem_handle handle = 77;
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &handle, g + 512, &prop, 0));
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &handle, 0, &prop, 0));
  assert_cu_error(OUT_OF_MEMORY, d->MemCreate(d, &handle, 1ull << 42, &prop, 0));
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &handle, g, &prop, 1));
  assert_cu_error(INVALID_DEVICE, d->MemCreate(d, &handle, g, &bad, 0));
  assert_int_equal(handle, 77);
  assert_cu(d->MemCreate(d, &handle, g, &prop, 0));
  assert_cu(d->MemRelease(d, handle));
  if (is_cuda()) {
    device_print_waived("create other kinds of memory", "which kinds there are is the device's affair");
    return;
  }
  prop.type = 7;
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &handle, g, &prop, 0));
  prop = prop_of(0, 0);
  prop.location.type = 0;
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &handle, g, &prop, 0));
  prop = prop_of(0, WEIR_CU_HANDLE_FABRIC);
  assert_cu_error(NOT_SUPPORTED, d->MemCreate(d, &handle, g, &prop, 0));
}

TEST(address_free) {
  weir_cu_deviceptr space = space_new(16 * g);
  weir_cu_mem_handle handle = handle_new(2 * g);
  assert_cu(d->MemMap(d, space, 2 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, space, 16 * g)); /* something is mapped */
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, space, 8 * g));
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, space, 8 * g));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, space + g, g));
  assert_cu(d->MemAddressFree(d, space, 16 * g));
  assert_cu_error(INVALID_VALUE, d->MemAddressFree(d, space, 16 * g));
  assert_cu(d->MemRelease(d, handle));
}

/* ---- Mapping ---- */

TEST(map) {
  weir_cu_deviceptr space = space_new(16 * g);
  weir_cu_mem_handle handle = handle_new(2 * g);
  assert_cu_error(NOT_SUPPORTED, d->MemMap(d, space, g, g, handle, 0));
  assert_cu_error(NOT_SUPPORTED, d->MemMap(d, space, g, 0, handle, 0));
  assert_cu_error(NOT_SUPPORTED, d->MemMap(d, space, 3 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, space + 512, 2 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, space + 100 * 1024 * g, 2 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, space, 2 * g, 0, handle, 1));
  assert_cu(d->MemMap(d, space, 2 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, space, 2 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemMap(d, space + g, 2 * g, 0, handle, 0));
  assert_cu(d->MemMap(d, space + 4 * g, 2 * g, 0, handle, 0));

  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, space, g));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, space + g, g));
  assert_cu(d->MemUnmap(d, space, 6 * g)); /* two mappings and the hole between them */
  assert_cu(d->MemUnmap(d, space, 2 * g)); /* nothing is mapped there */
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, space, 0));
  assert_cu(d->MemMap(d, space + 14 * g, 2 * g, 0, handle, 0));
  assert_cu(d->MemUnmap(d, space + 14 * g, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 16 * g));
}

TEST(map_past_the_end) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver maps past the end of a reservation, and cannot free it any more");
  weir_cu_deviceptr space = space_new(4 * g);
  weir_cu_mem_handle handle = handle_new(2 * g);
  assert_cu_error(INVALID_VALUE, d->MemMap(d, space + 3 * g, 2 * g, 0, handle, 0));
  assert_cu_error(INVALID_VALUE, d->MemUnmap(d, space + 3 * g, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 4 * g));
}

TEST(released_handle) {
  weir_cu_deviceptr space = space_new(8 * g);
  weir_cu_mem_handle handle = handle_new(2 * g);
  map(space, 2 * g, handle);
  assert_cu(d->MemRelease(d, handle));
  assert_cu_error(INVALID_VALUE, d->MemRelease(d, handle));
  if (!is_cuda())
    assert_cu_error(INVALID_VALUE, d->MemMap(d, space + 4 * g, 2 * g, 0, handle, 0));
  else
    device_print_waived("map a released handle", "NVIDIA's driver knows it while it is mapped elsewhere");
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu(d->MemAddressFree(d, space, 8 * g));
}

TEST(addresses_of_a_mapping) {
  weir_cu_deviceptr space = space_new(16 * g), base = 0;
  weir_cu_mem_handle first = handle_new(2 * g), second = handle_new(2 * g);
  weir_cu_ipc_mem_handle ipc;
  size_t bytes = 0;
  int ordinal = 7, fd;
  map(space, 2 * g, first);
  map(space + 2 * g, 2 * g, second);
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, space + 3 * g));
  assert_int_equal(base, space + 2 * g);
  assert_int_equal(bytes, 2 * g);
  assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, space));
  assert_int_equal(ordinal, 0);
  assert_cu_error(INVALID_VALUE,
                  d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, space + 8 * g));
  if (!is_cuda())
    assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, &bytes, space + 8 * g));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, space));
  if (!is_ledger()) {
    assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, &ipc, space));
    assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, &fd, first, WEIR_CU_HANDLE_POSIX_FD, 0));
  }
  assert_cu(d->MemUnmap(d, space, 4 * g));
  assert_cu(d->MemRelease(d, first));
  assert_cu(d->MemRelease(d, second));
  assert_cu(d->MemAddressFree(d, space, 16 * g));
}

/* ---- Access ---- */

TEST(access) {
  weir_cu_deviceptr space = space_new(16 * g);
  weir_cu_mem_handle first = handle_new(2 * g), second = handle_new(2 * g);
  weir_cu_mem_access access = all_access;
  assert_cu(d->MemMap(d, space, 2 * g, 0, first, 0));
  assert_cu(d->MemMap(d, space + 2 * g, 2 * g, 0, second, 0));
  assert_cu(d->MemMap(d, space + 6 * g, 2 * g, 0, second, 0));
  if (!is_cuda()) { /* NVIDIA's driver 580 ignores holes before the last mapping */
    assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 8 * g, &access, 1));
    assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space + 4 * g, 4 * g, &access, 1));
  }
  assert_cu(d->MemUnmap(d, space + 6 * g, 2 * g));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space + 8 * g, g, &access, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 6 * g, &access, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 512, &access, 1));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 2 * g, &access, 0));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, g, &access, 1));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, space + 2 * g, 1, 100, NULL)); /* no access yet */
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemSetAccess(d, space, 4 * g, &access, 1));
  fill(space, 4 * g, 1);
  access.location.id = 99;
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 2 * g, &access, 1));
  access = all_access;
  access.flags = 2;
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 2 * g, &access, 1));
  access.flags = WEIR_CU_ACCESS_READ;
  assert_cu(d->MemSetAccess(d, space, 2 * g, &access, 1));
  assert_device_filled(space, 2 * g, 1);
  access.flags = WEIR_CU_ACCESS_NONE;
  assert_cu(d->MemSetAccess(d, space, 2 * g, &access, 1));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, space, 1, 10, NULL));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemSetAccess(d, space, 4 * g, &all_access, 1));
  assert_device_filled(space, 4 * g, 1);

  assert_cu(d->MemUnmap(d, space, 4 * g));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, space, 1, 10, NULL));
  assert_cu(d->MemRelease(d, first));
  assert_cu(d->MemRelease(d, second));
  assert_cu(d->MemAddressFree(d, space, 16 * g));
}

TEST(copies_need_access) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver takes such an address for one of the host's, and crashes");
  weir_cu_deviceptr space = space_new(4 * g), plain = mem_new(4 * g);
  weir_cu_mem_handle first = handle_new(g), second = handle_new(g);
  weir_cu_mem_access read = all_access;
  read.flags = WEIR_CU_ACCESS_READ;
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, space, plain, 100));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, plain, space, 100));
  assert_cu(d->MemMap(d, space, g, 0, first, 0));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, space, plain, 100));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, plain, space, 100));
  assert_cu(d->MemSetAccess(d, space, g, &read, 1));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, space, plain, 100));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, space, 1, 100, NULL));
  assert_cu(d->Memcpy(d, plain, space, 100));
  assert_cu(d->MemSetAccess(d, space, g, &all_access, 1));
  assert_cu(d->Memcpy(d, space, plain, g));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, space, plain, g + 1)); /* past the end of the mapping */
  map(space + g, g, second);
  assert_cu(d->Memcpy(d, space, plain, 2 * g)); /* across two mappings, which is allowed */
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu(d->MemRelease(d, first));
  assert_cu(d->MemRelease(d, second));
  assert_cu(d->MemAddressFree(d, space, 4 * g));
  assert_cu(d->MemFree(d, plain));
}

/* Memory of one device, used by the other after it got access. */
TEST_SETUP(access_of_two_devices, device_setup_two, device_teardown) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver answers a copy without access late, and breaks the context");
  weir_cu_mem_prop prop = prop_of(1, 0);
  weir_cu_mem_handle handle;
  weir_cu_deviceptr space = space_new(g);
  weir_cu_context other;
  weir_cu_mem_access both[2] = {all_access, all_access};
  both[1].location.id = 1;
  int ordinal = -1;
  assert_cu(d->DevicePrimaryCtxRetain(d, &other, 1));
  assert_cu(d->MemCreate(d, &handle, g, &prop, 0));
  assert_cu(d->MemMap(d, space, g, 0, handle, 0));
  assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, space));
  assert_int_equal(ordinal, 1);
  assert_cu(d->MemSetAccess(d, space, g, &both[1], 1));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, space, 3, 100, NULL));
  assert_cu(d->CtxSetCurrent(d, other));
  fill(space, g, 3);
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->MemSetAccess(d, space, g, both, 2));
  fill(space, 100, 4);
  assert_device_filled(space, 100, 4);
  assert_device_filled(space + 100, g - 100, 3);
  assert_cu(d->MemUnmap(d, space, g));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, g));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
}

/* ---- Data ---- */

TEST(data_survives_a_move) {
  weir_cu_deviceptr space = space_new(16 * g);
  weir_cu_mem_handle handle = handle_new(2 * g);
  map(space, 2 * g, handle);
  fill(space, 2 * g, 0x5a);
  assert_cu(d->MemUnmap(d, space, 2 * g));
  map(space + 8 * g, 2 * g, handle);
  assert_device_filled(space + 8 * g, 2 * g, 0x5a);
  assert_cu(d->MemUnmap(d, space + 8 * g, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 16 * g));
}

TEST(two_mappings_alias) {
  weir_cu_deviceptr space = space_new(16 * g);
  weir_cu_mem_handle handle = handle_new(2 * g);
  map(space, 2 * g, handle);
  map(space + 4 * g, 2 * g, handle);
  fill(space, 2 * g, 1);
  assert_device_filled(space + 4 * g, 2 * g, 1);
  fill(space + 5 * g, g, 2);
  assert_device_filled(space, g, 1);
  assert_device_filled(space + g, g, 2);
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_device_filled(space + 5 * g, g, 2);
  assert_cu(d->MemUnmap(d, space + 4 * g, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 16 * g));
}

/* Adjacent handles are one contiguous range. */
TEST(work_across_handles) {
  enum { pieces = 5 };
  weir_cu_deviceptr space = space_new(pieces * g), plain = mem_new(pieces * g);
  weir_cu_mem_handle handles[pieces];
  for (int i = 0; i < pieces; i++) {
    handles[i] = handle_new(g);
    assert_cu(d->MemMap(d, space + (size_t)i * g, g, 0, handles[i], 0));
  }
  assert_cu(d->MemSetAccess(d, space, pieces * g, &all_access, 1));
  fill(space, pieces * g, 9);
  assert_cu(d->Memcpy(d, plain, space + 100, pieces * g - 100));
  assert_device_filled(plain, pieces * g - 100, 9);
  fill(plain, pieces * g, 8);
  assert_cu(d->Memcpy(d, space + g - 50, plain, 2 * g));
  assert_device_filled(space, g - 50, 9);
  assert_device_filled(space + g - 50, 2 * g, 8);
  assert_device_filled(space + 3 * g - 50, 2 * g + 50, 9);
  assert_cu(d->MemUnmap(d, space, pieces * g));
  for (int i = 0; i < pieces; i++)
    assert_cu(d->MemRelease(d, handles[i]));
  assert_cu(d->MemAddressFree(d, space, pieces * g));
  assert_cu(d->MemFree(d, plain));
}

/* The memory is freed with the handle or the last mapping, whichever is later. */
TEST(release_while_mapped) {
  size_t bytes = 12 * g, before, held, after, total, slack = !is_cuda() ? 0 : 8 * MIB;
  weir_cu_deviceptr space = space_new(bytes);
  assert_cu(d->MemGetInfo(d, &before, &total));
  weir_cu_mem_handle handle = handle_new(bytes);
  map(space, bytes, handle);
  fill(space, bytes, 3);
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemGetInfo(d, &held, &total));
  assert_in_range(before - held, bytes, bytes + slack);
  assert_device_filled(space, bytes, 3);
  fill(space, bytes, 4);
  assert_device_filled(space, bytes, 4);
  assert_cu(d->MemUnmap(d, space, bytes));
  assert_cu(d->MemGetInfo(d, &after, &total));
  assert_in_range(after, before - slack, before + slack);

  handle = handle_new(bytes);
  map(space, bytes, handle);
  assert_cu(d->MemUnmap(d, space, bytes));
  assert_cu(d->MemGetInfo(d, &held, &total));
  assert_in_range(before - held, bytes - slack, bytes + slack);
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemGetInfo(d, &after, &total));
  assert_in_range(after, before - slack, before + slack);
  assert_cu(d->MemAddressFree(d, space, bytes));
}

/* ---- Sharing ---- */

TEST(export_and_import) {
  weir_cu_mem_prop prop = prop_of(0, WEIR_CU_HANDLE_POSIX_FD);
  weir_cu_mem_handle handle, imported = 77;
  weir_cu_deviceptr space = space_new(8 * g);
  int fd = -1, can = 0;
  assert_cu(d->DeviceGetAttribute(d, &can, WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED, 0));
  if (!can) {
    assert_cu(d->MemAddressFree(d, space, 8 * g));
    WAIVE_TEST("the device cannot share memory so");
  }
  assert_cu(d->MemCreate(d, &handle, 2 * g, &prop, 0));
  assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, &fd, handle, WEIR_CU_HANDLE_POSIX_FD, 1));
  assert_cu(d->MemExportToShareableHandle(d, &fd, handle, WEIR_CU_HANDLE_POSIX_FD, 0));
  assert_in_range(fd, 0, 1 << 20);
  assert_cu(d->MemImportFromShareableHandle(d, &imported, (void *)(intptr_t)fd, WEIR_CU_HANDLE_POSIX_FD));
  assert_int_equal(close(fd), 0); /* it still belongs to this process */

  map(space, 2 * g, handle);
  map(space + 4 * g, 2 * g, imported);
  fill(space, 2 * g, 7);
  assert_device_filled(space + 4 * g, 2 * g, 7);
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu(d->MemRelease(d, handle));
  fill(space + 4 * g, g, 6); /* one of the two still refers to it */
  assert_device_filled(space + 5 * g, g, 7);
  assert_cu(d->MemUnmap(d, space + 4 * g, 2 * g));
  map(space, 2 * g, imported);
  assert_device_filled(space, g, 6);
  assert_cu(d->MemUnmap(d, space, 2 * g));
  assert_cu(d->MemRelease(d, imported));
  assert_cu(d->MemAddressFree(d, space, 8 * g));
}

/* A file that is not device memory. */
TEST(import_of_a_foreign_file) {
  int ends[2];
  weir_cu_mem_handle handle = 77;
  assert_int_equal(pipe(ends), 0);
  weir_cu_result result =
      d->MemImportFromShareableHandle(d, &handle, (void *)(intptr_t)ends[0], WEIR_CU_HANDLE_POSIX_FD);
  close(ends[0]);
  close(ends[1]);
  assert_int_not_equal(result, WEIR_CU_SUCCESS);
  if (is_cuda())
    return; /* the error depends on the operating system */
  assert_cu_error(INVALID_VALUE, result);
  assert_int_equal(handle, 77);
}

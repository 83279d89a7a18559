/*
 * The rules of the ledger: the table, devices, contexts, plain and host memory, placement. Virtual memory and pools are
 * in test_ledger_virtual.c, streams and events in test_ledger_streams.c, captures and graphs in test_ledger_capture.c.
 * test_ledger_model.c compares random calls with a model.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/every_call.h"
#include "support/ledger.h"

#define GIB ((unsigned long long)1 << 30)

/* ---- The table ---- */

TEST(required_entries_are_there_and_sharing_is_absent) {
  weir_driver *d = open_ledger(1, GIB);
  assert_int_equal(d->size, sizeof(weir_driver));
  assert_string_equal(d->name, "ledger");
#define WEIR__TEST_REQUIRED(name) assert_non_null((void *)(uintptr_t)d->name);
#define WEIR__TEST_OPTIONAL(name)
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args) WEIR__TEST_##need(name)
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) WEIR__TEST_##need(name)
#include "weir/driver_entries.h"
  assert_true(d->MemExportToShareableHandle == NULL);
  assert_true(d->MemImportFromShareableHandle == NULL);
  assert_true(d->MemCreate != NULL && d->MemAllocAsync != NULL);
  weir_driver_close(d);
}

TEST(nothing_but_texts_before_init) {
  weir_driver *d = NULL;
  assert_ok(weir_driver_open_ledger(NULL, &d));
  weir_cu_result (*init)(weir_driver *, unsigned) = d->Init;
  d->Init = NULL;
  weir_cu_result results[WEIR_CALL_COUNT];
  every_call(d, results);
  d->Init = init;
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    if (results[call] == WEIR_CALL_ABSENT)
      continue;
    bool allowed =
        call == WEIR_CALL_DriverGetVersion || call == WEIR_CALL_GetErrorName || call == WEIR_CALL_GetErrorString;
    if (results[call] != (allowed ? WEIR_CU_INVALID_VALUE : WEIR_CU_NOT_INITIALIZED))
      fail_msg("%s answers %d before Init", weir_driver_call_name((weir_driver_call)call), results[call]);
  }
  int version = 0;
  assert_cu(d->DriverGetVersion(d, &version));
  assert_int_equal(version, 13000);
  assert_cu_error(INVALID_VALUE, d->Init(d, 1));
  assert_cu_error(NOT_INITIALIZED, d->DeviceGetCount(d, &version));
  weir_driver_close(d);
}

/* With NULL arguments each entry returns a sensible result, with and without a context. */
TEST(empty_arguments_are_refused) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_result results[WEIR_CALL_COUNT];
  for (int round = 0; round < 2; round++) {
    every_call(d, results);
    for (int call = 0; call < WEIR_CALL_COUNT; call++) {
      if (results[call] < WEIR_CALL_ABSENT)
        fail_msg("%s is not in every_call", weir_driver_call_name((weir_driver_call)call));
      if (results[call] != WEIR_CALL_ABSENT && results[call] != WEIR_CU_SUCCESS)
        assert_string_not_equal(weir_cu_result_name(results[call]), "CUDA_ERROR_<unrecognized>");
    }
    assert_cu_error(INVALID_CONTEXT, results[WEIR_CALL_MemAlloc]); /* every_call has unset the context */
    weir_cu_context context;
    assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
    assert_cu(d->CtxSetCurrent(d, context));
  }
  weir_driver_close(d);
}

TEST(error_names) {
  weir_driver *d = open_ledger(1, GIB);
  const char *text = NULL;
  assert_cu(d->GetErrorName(d, WEIR_CU_OUT_OF_MEMORY, &text));
  assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
  assert_cu(d->GetErrorString(d, WEIR_CU_OUT_OF_MEMORY, &text));
  assert_string_equal(text, "out of memory");
  assert_cu_error(INVALID_VALUE, d->GetErrorName(d, 12345, &text));
  assert_null(text);
  text = "x";
  assert_cu_error(INVALID_VALUE, d->GetErrorString(d, -1, &text));
  assert_null(text);
  weir_driver_close(d);
}

TEST(options) {
  weir_driver *d = (weir_driver *)1;
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  assert_int_equal(options.devices, 1);
  assert_int_equal(options.bytes, 80 * GIB);
  options.devices = 0;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open_ledger(&options, &d));
  options.devices = 65;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open_ledger(&options, &d));
  assert_non_null(strstr(weir_last_error(), "65"));
  options.devices = 1;
  options.bytes = 0;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open_ledger(&options, &d));
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_driver_open_ledger(NULL, NULL));
  assert_ptr_equal(d, (weir_driver *)1); /* outputs are unchanged on failure */

  /* A caller of an older version, whose struct ends after `devices`. */
  options.size = offsetof(weir_ledger_options, bytes);
  options.devices = 3;
  assert_ok(weir_driver_open_ledger(&options, &d));
  assert_cu(d->Init(d, 0));
  int count = 0;
  size_t bytes = 0;
  assert_cu(d->DeviceGetCount(d, &count));
  assert_cu(d->DeviceTotalMem(d, &bytes, 2));
  assert_int_equal(count, 3);
  assert_int_equal(bytes, 80 * GIB);
  weir_driver_close(d);
}

/* ---- Devices and contexts ---- */

TEST(devices) {
  static const int attributes[] = {
      WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK,
      WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK,
      WEIR_CU_ATTR_WARP_SIZE,
      WEIR_CU_ATTR_CLOCK_RATE,
      WEIR_CU_ATTR_MULTIPROCESSOR_COUNT,
      WEIR_CU_ATTR_INTEGRATED,
      WEIR_CU_ATTR_PCI_BUS_ID,
      WEIR_CU_ATTR_PCI_DEVICE_ID,
      WEIR_CU_ATTR_L2_CACHE_SIZE,
      WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR,
      WEIR_CU_ATTR_UNIFIED_ADDRESSING,
      WEIR_CU_ATTR_PCI_DOMAIN_ID,
      WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR,
      WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR,
      WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
      WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR,
      WEIR_CU_ATTR_MULTI_GPU_BOARD,
      WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
      WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED,
      WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED,
      WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED,
      WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED,
      WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED,
      WEIR_CU_ATTR_IPC_EVENT_SUPPORTED,
      WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED,
  };
  weir_driver *d = open_ledger(2, GIB);
  weir_cu_device device = -1;
  int value = 0;
  char text[32], cut[5];
  weir_cu_uuid one, two;
  assert_cu(d->DeviceGet(d, &device, 1));
  assert_int_equal(device, 1);
  assert_cu_error(INVALID_DEVICE, d->DeviceGet(d, &device, 2));
  assert_cu_error(INVALID_DEVICE, d->DeviceGet(d, &device, -1));
  assert_cu(d->DeviceGetName(d, text, sizeof text, 0));
  assert_string_equal(text, "Weir ledger");
  assert_cu(d->DeviceGetName(d, cut, sizeof cut, 0));
  assert_string_equal(cut, "Weir");
  assert_cu_error(INVALID_VALUE, d->DeviceGetName(d, text, 0, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetPCIBusId(d, text, 0, 0));
  assert_cu(d->DeviceGetPCIBusId(d, text, sizeof text, 1));
  assert_string_equal(text, "0000:02:00.0");
  assert_cu(d->DeviceGetUuid(d, &one, 0));
  assert_cu(d->DeviceGetUuid(d, &two, 1));
  assert_memory_not_equal(one.bytes, two.bytes, sizeof one.bytes);
  assert_cu(d->DeviceGetAttribute(d, &value, WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED, 0));
  assert_int_equal(value, 1);
  assert_cu(d->DeviceGetAttribute(d, &value, WEIR_CU_ATTR_PCI_BUS_ID, 1));
  assert_int_equal(value, 2);
  for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
    value = -1;
    assert_cu(d->DeviceGetAttribute(d, &value, attributes[i], 0));
    assert_true(value >= 0);
  }
  assert_cu_error(INVALID_VALUE, d->DeviceGetAttribute(d, &value, 9999, 0));
  assert_cu(d->DeviceCanAccessPeer(d, &value, 0, 1));
  assert_int_equal(value, 1);
  assert_cu(d->DeviceCanAccessPeer(d, &value, 1, 1));
  assert_int_equal(value, 0);
  weir_driver_close(d);
}

TEST(contexts_come_and_go) {
  weir_driver *d = NULL;
  assert_ok(weir_driver_open_ledger(NULL, &d));
  assert_cu(d->Init(d, 0));
  weir_cu_context context = NULL, current = (weir_cu_context)1;
  weir_cu_deviceptr p;
  unsigned flags = 7;
  int active = 7;
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_null(current);
  assert_cu_error(INVALID_CONTEXT, d->MemAlloc(d, &p, 1));
  assert_cu_error(INVALID_CONTEXT, d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->DevicePrimaryCtxGetState(d, 0, &flags, &active));
  assert_int_equal(active, 0);

  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->DevicePrimaryCtxRetain(d, &current, 0));
  assert_ptr_equal(context, current);
  assert_cu_error(INVALID_CONTEXT, d->MemAlloc(d, &p, 1)); /* retained does not mean current */
  assert_cu(d->CtxSetCurrent(d, context));
  assert_cu(d->MemAlloc(d, &p, 1));
  weir_cu_stream stream = make_stream(d, 0);
  weir_cu_event event = make_event(d);
  weir_cu_module module;
  assert_cu(d->ModuleLoadData(d, &module, SPIN_PTX));
  void *host;
  assert_cu(d->MemHostAlloc(d, &host, 100, 0));
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mempool pool, emptied;
  weir_cu_deviceptr pooled, freed;
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu(d->MemPoolCreate(d, &emptied, &props));
  assert_cu(d->DeviceSetMemPool(d, 0, pool));
  assert_cu(d->MemAllocAsync(d, &pooled, 100, stream));
  assert_cu(d->MemAllocFromPoolAsync(d, &freed, 100, emptied, stream));
  assert_cu(d->MemFreeAsync(d, freed, stream));

  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->StreamQuery(d, stream)); /* one retain is left */
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->DevicePrimaryCtxGetState(d, 0, &flags, &active));
  assert_int_equal(active, 0);
  assert_cu_error(CONTEXT_IS_DESTROYED, d->MemAlloc(d, &p, 1));
  assert_cu_error(INVALID_CONTEXT, d->CtxSetCurrent(d, context));

  /* Its objects were destroyed with it. */
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->CtxSetCurrent(d, context));
  assert_int_equal(free_bytes(d), 80 * GIB);
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p));
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, host));
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, stream));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, event));
  assert_cu_error(INVALID_HANDLE, d->ModuleUnload(d, module));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, pooled));
  assert_cu_error(INVALID_VALUE, d->MemPoolDestroy(d, pool));
  assert_cu_error(INVALID_VALUE, d->MemPoolDestroy(d, emptied));
  assert_cu(d->MemAllocAsync(d, &pooled, 100, NULL)); /* from the default pool again */
  assert_cu(d->CtxSetCurrent(d, NULL));
  assert_cu_error(INVALID_CONTEXT, d->CtxSynchronize(d));
  weir_driver_close(d);
}

TEST(physical_memory_and_addresses_outlive_the_context) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_handle handle;
  weir_cu_deviceptr base;
  assert_cu(d->MemCreate(d, &handle, PAGE, &prop, 0));
  assert_cu(d->MemAddressReserve(d, &base, PAGE, 0, 0, 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->MemMap(d, base, PAGE, 0, handle, 0));
  assert_cu(d->MemUnmap(d, base, PAGE));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, base, PAGE));
  weir_driver_close(d);
}

TEST(a_context_leaves_other_devices_alone) {
  weir_driver *d = open_ledger(2, GIB);
  weir_cu_deviceptr p, pooled;
  weir_cu_device device = 7;
  weir_cu_context one, zero;
  weir_cu_stream stream = make_stream(d, 0);
  weir_cu_event event = make_event(d);
  weir_cu_module module;
  weir_cu_mempool pool;
  void *host;
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  assert_cu(d->CtxGetDevice(d, &device));
  assert_int_equal(device, 0);
  assert_cu_error(INVALID_VALUE, d->CtxGetDevice(d, NULL));
  assert_cu(d->CtxGetCurrent(d, &zero));
  assert_cu(d->MemAlloc(d, &p, 100));
  assert_cu(d->MemHostAlloc(d, &host, 100, 0));
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu(d->MemAllocFromPoolAsync(d, &pooled, 100, pool, NULL));
  assert_cu(d->ModuleLoadData(d, &module, SPIN_PTX));
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxEnablePeerAccess(d, one, 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_int_equal(free_bytes(d), GIB - 200);
  assert_cu(d->MemFreeAsync(d, pooled, stream));
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->ModuleUnload(d, module));

  /* A context that is created again has no peers. */
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxEnablePeerAccess(d, one, 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->DevicePrimaryCtxRetain(d, &zero, 0));
  assert_cu(d->CtxSetCurrent(d, zero));
  assert_cu(d->CtxEnablePeerAccess(d, one, 0));
  weir_driver_close(d);
}

TEST(peers) {
  weir_driver *d = open_ledger(2, GIB);
  weir_cu_context zero, one;
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxGetCurrent(d, &zero));
  assert_cu_error(PEER_ACCESS_UNSUPPORTED, d->CtxEnablePeerAccess(d, zero, 0));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, one));
  assert_cu(d->CtxEnablePeerAccess(d, one, 0));
  assert_cu_error(PEER_ACCESS_ALREADY_ENABLED, d->CtxEnablePeerAccess(d, one, 0));
  assert_cu(d->CtxDisablePeerAccess(d, one));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, one));
  assert_cu(d->CtxEnablePeerAccess(d, one, 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu_error(INVALID_CONTEXT, d->CtxDisablePeerAccess(d, one));
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxEnablePeerAccess(d, one, 0)); /* a new context has none */
  weir_driver_close(d);
}

/* ---- Plain memory ---- */

TEST(capacity_is_exact_to_the_byte) {
  const size_t capacity = 1000003;
  weir_driver *d = open_ledger(2, capacity);
  weir_cu_deviceptr a, b, c, unwritten = 7;
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &unwritten, capacity + 1));
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &unwritten, SIZE_MAX));
  assert_cu(d->MemAlloc(d, &a, capacity));
  assert_int_equal(free_bytes(d), 0);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &unwritten, 1));
  assert_int_equal(unwritten, 7);
  assert_cu(d->MemFree(d, a));
  assert_cu(d->MemAlloc(d, &a, 1));
  assert_cu(d->MemAlloc(d, &b, capacity - 2));
  assert_int_equal(free_bytes(d), 1);
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &unwritten, 2));
  assert_cu(d->MemAlloc(d, &c, 1));
  assert_int_equal(free_bytes(d), 0);

  /* The other device has its own memory. */
  weir_cu_context one;
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxSetCurrent(d, one));
  assert_int_equal(free_bytes(d), capacity);
  assert_cu(d->MemFree(d, b)); /* freeing needs no particular device */
  assert_int_equal(free_bytes(d), capacity);
  weir_driver_close(d);
}

TEST(free_needs_the_exact_pointer) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_deviceptr p = 0;
  void *host;
  assert_cu(d->MemAlloc(d, &p, 3 * PAGE));
  assert_cu(d->MemHostAlloc(d, &host, 64, 0));
  assert_int_equal(p % PAGE, 0);
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &p, 0));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p + 1));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p + PAGE));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, 0x1234000));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, UINT64_MAX));
  for (int bit = 21; bit < 64; bit++)
    if (p != (weir_cu_deviceptr)1 << bit)
      assert_cu_error(INVALID_VALUE, d->MemFree(d, (weir_cu_deviceptr)1 << bit));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, (uintptr_t)host));
  assert_cu(d->MemFree(d, 0));
  assert_cu(d->MemFree(d, p));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p));
  assert_int_equal(free_bytes(d), GIB);
  weir_driver_close(d);
}

TEST(interior_pointers_find_their_allocation) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_deviceptr p, base;
  size_t bytes;
  assert_cu(d->MemAlloc(d, &p, 5 * PAGE - 100));
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, p + 5 * PAGE - 101));
  assert_int_equal(base, p);
  assert_int_equal(bytes, 5 * PAGE - 100);
  assert_cu(d->MemGetAddressRange(d, NULL, NULL, p));
  assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, &bytes, p + 5 * PAGE - 100));
  assert_cu_error(NOT_FOUND, d->MemGetAddressRange(d, &base, &bytes, p - 1));

  unsigned type = 0;
  int ordinal = 7;
  unsigned char mapped[2] = {7, 7};
  unsigned long long id = 0, other_id = 0;
  weir_cu_context context = NULL, current = NULL;
  weir_cu_deviceptr start = 0;
  void *host = NULL;
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, p + 9));
  assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, p + 9));
  assert_cu(d->PointerGetAttribute(d, mapped, WEIR_CU_POINTER_ATTR_MAPPED, p + 9));
  assert_cu(d->PointerGetAttribute(d, &context, WEIR_CU_POINTER_ATTR_CONTEXT, p + 9));
  assert_cu(d->PointerGetAttribute(d, &start, WEIR_CU_POINTER_ATTR_RANGE_START, p + 9));
  assert_cu(d->PointerGetAttribute(d, &bytes, WEIR_CU_POINTER_ATTR_RANGE_SIZE, p + 9));
  assert_cu(d->PointerGetAttribute(d, &base, WEIR_CU_POINTER_ATTR_DEVICE_POINTER, p + 9));
  assert_cu(d->PointerGetAttribute(d, &id, WEIR_CU_POINTER_ATTR_BUFFER_ID, p + 9));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_DEVICE);
  assert_int_equal(ordinal, 0);
  assert_int_equal(mapped[0], 1);
  assert_int_equal(mapped[1], 7);
  assert_ptr_equal(context, current);
  assert_int_equal(start, p);
  assert_int_equal(bytes, 5 * PAGE - 100);
  assert_int_equal(base, p + 9);
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &host, WEIR_CU_POINTER_ATTR_HOST_POINTER, p));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &type, 999, p));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, (uintptr_t)&type));

  /* The same address is another buffer later. */
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemAlloc(d, &base, 5 * PAGE));
  assert_int_equal(base, p);
  assert_cu(d->PointerGetAttribute(d, &other_id, WEIR_CU_POINTER_ATTR_BUFFER_ID, p));
  assert_int_not_equal(id, other_id);
  weir_driver_close(d);
}

TEST(many_live_allocations) {
  enum { COUNT = 100000 };
  weir_driver *d = open_ledger(1, 4096 * GIB);
  weir_cu_deviceptr *p = malloc(COUNT * sizeof *p), base;
  size_t bytes;
  for (size_t i = 0; i < COUNT; i++)
    assert_cu(d->MemAlloc(d, &p[i], 1 + i % 7 * PAGE));
  for (size_t i = 0; i < COUNT; i++) {
    assert_cu(d->MemGetAddressRange(d, &base, &bytes, p[i] + i % 7 * PAGE));
    assert_int_equal(base, p[i]);
    assert_int_equal(bytes, 1 + i % 7 * PAGE);
  }
  for (size_t i = 0; i < COUNT; i++)
    assert_cu(d->MemFree(d, p[i * 7919 % COUNT]));
  assert_int_equal(free_bytes(d), 4096 * GIB);
  for (size_t i = 0; i < COUNT; i++)
    assert_cu_error(INVALID_VALUE, d->MemFree(d, p[i]));
  free(p);
  weir_driver_close(d);
}

TEST(the_same_calls_get_the_same_addresses) {
  weir_driver *first = open_ledger(1, 80 * GIB), *second = open_ledger(1, 80 * GIB);
  uint64_t seed = 5;
  weir_cu_deviceptr a[64] = {0}, b[64] = {0};
  for (int step = 0; step < 20000; step++) {
    uint64_t r = next_random(&seed);
    int i = (int)(r % 64);
    size_t bytes = 1 + (r >> 8) % (40 * PAGE);
    assert_cu(first->MemFree(first, a[i]));
    assert_cu(second->MemFree(second, b[i]));
    assert_cu(first->MemAlloc(first, &a[i], bytes));
    assert_cu(second->MemAlloc(second, &b[i], bytes));
    assert_int_equal(a[i], b[i]);
  }
  weir_driver_close(first);
  weir_driver_close(second);
}

/* ---- Placement ---- */

typedef struct placement {
  weir_cu_deviceptr next;
  weir_driver_call call;
  unsigned long long bytes;
  int asked;
} placement;

static weir_cu_deviceptr place_next(void *context, weir_driver_call call, uint64_t bytes) {
  placement *p = context;
  p->call = call;
  p->bytes = bytes;
  p->asked++;
  return p->next;
}

static weir_driver *open_placed(placement *p, unsigned long long bytes) {
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.bytes = bytes;
  options.place = place_next;
  options.place_context = p;
  weir_driver *d = NULL;
  assert_ok(weir_driver_open_ledger(&options, &d));
  assert_cu(d->Init(d, 0));
  weir_cu_context context;
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->CtxSetCurrent(d, context));
  return d;
}

TEST(placed_addresses) {
  placement place = {.next = 0x7f0000000200};
  weir_driver *d = open_placed(&place, GIB);
  weir_cu_deviceptr a, b, c;
  assert_cu(d->MemAlloc(d, &a, 1000));
  assert_int_equal(a, 0x7f0000000200);
  assert_int_equal(place.call, WEIR_CALL_MemAlloc);
  assert_int_equal(place.bytes, 1000);

  /* The ledger chooses if the callback returns 0. */
  place.next = 0;
  assert_cu(d->MemAlloc(d, &b, 1000));
  assert_int_not_equal(a, b);

  /* Overlaps a live range, or exceeds the address space, as in a replay that has diverged. */
  size_t before = free_bytes(d);
  place.next = 0x7f0000000200 + 999;
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &c, 10));
  place.next = 0x7f0000000200 - 9;
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &c, 10));
  place.next = b;
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &c, 1));
  place.next = b - 1;
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &c, PAGE));
  place.next = UINT64_MAX;
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, &c, 2));
  assert_int_equal(free_bytes(d), before);
  const weir_cu_deviceptr fine[] = {0x7f0000000200 + 1000, 0x7f0000000200 - 10, b + 1000, b - 10, 1ull << 60,
                                    UINT64_MAX - 9};
  for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) { /* adjacent on both sides, and far away */
    place.next = fine[i];
    assert_cu(d->MemAlloc(d, &c, 10));
    assert_int_equal(c, fine[i]);
    assert_cu(d->MemGetAddressRange(d, &c, NULL, fine[i] + 9));
    assert_int_equal(c, fine[i]);
    assert_cu(d->MemFree(d, c));
  }
  assert_cu(d->MemFree(d, a));
  place.next = 0x7f0000000200;
  assert_cu(d->MemAlloc(d, &a, 5000));

  /* The callback is not called if the memory is exhausted. */
  int asked = place.asked;
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &c, GIB));
  assert_int_equal(place.asked, asked);

  place.next = 0x600000000000;
  assert_cu(d->MemAddressReserve(d, &c, 4 * PAGE, 0, 0, 0));
  assert_int_equal(c, 0x600000000000);
  assert_int_equal(place.call, WEIR_CALL_MemAddressReserve);
  place.next = 0x600000000000 + 3 * PAGE;
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &b, PAGE, 0, 0, 0));
  place.next = 0x600000000000 + 4 * PAGE + 512; /* not aligned to a page */
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, &b, PAGE, 0, 0, 0));
  weir_driver_close(d);
}

/* A recording from a ledger has addresses of a ledger. */
TEST(placed_addresses_in_the_ledgers_own_space) {
  weir_driver *recorder = open_ledger(1, 80 * GIB);
  weir_cu_deviceptr recorded[100], p, base;
  for (int i = 0; i < 100; i++)
    assert_cu(recorder->MemAlloc(recorder, &recorded[i], (size_t)(1 + i % 5) * PAGE));
  weir_driver_close(recorder);

  placement place = {0};
  weir_driver *d = open_placed(&place, 80 * GIB);
  for (int i = 99; i >= 0; i -= 2) {
    place.next = recorded[i];
    assert_cu(d->MemAlloc(d, &p, (size_t)(1 + i % 5) * PAGE));
  }
  place.next = 0;
  for (int i = 0; i < 200; i++) {
    assert_cu(d->MemAlloc(d, &p, (size_t)(1 + i % 5) * PAGE));
    for (int k = 1; k < 100; k += 2)
      assert_int_not_equal(p, recorded[k]);
  }
  for (int i = 1; i < 100; i += 2) {
    assert_cu(d->MemGetAddressRange(d, &base, NULL, recorded[i] + 77));
    assert_int_equal(base, recorded[i]);
    assert_cu(d->MemFree(d, recorded[i]));
  }
  weir_driver_close(d);
}

/* ---- Host memory ---- */

TEST(host_memory) {
  weir_driver *d = open_ledger(1, GIB);
  void *a = NULL, *b = NULL;
  weir_cu_deviceptr p;
  unsigned type;
  assert_cu(d->MemHostAlloc(d, &a, 100, WEIR_CU_MEMHOSTALLOC_PORTABLE));
  assert_cu(d->MemHostAlloc(d, &b, 200 * GIB, 0)); /* the ledger does not limit host memory */
  assert_ptr_not_equal(a, b);
  assert_int_equal(free_bytes(d), GIB);
  assert_cu_error(INVALID_VALUE, d->MemHostAlloc(d, &b, 10, 64));
  assert_cu(d->MemHostGetDevicePointer(d, &p, (char *)a + 10, 0));
  assert_int_equal(p, (uintptr_t)a + 10);
  assert_cu_error(INVALID_VALUE, d->MemHostGetDevicePointer(d, &p, a, 1));
  assert_cu_error(INVALID_VALUE, d->MemHostGetDevicePointer(d, &p, &p, 0));
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, (uintptr_t)a));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_HOST);
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, (char *)a + 8));
  assert_cu(d->MemFreeHost(d, a));
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, a));
  assert_cu(d->MemFreeHost(d, NULL));
  assert_cu(d->MemHostAlloc(d, &a, 0, 0));
  assert_null(a);
  weir_driver_close(d);
}

TEST(registered_memory) {
  weir_driver *d = open_ledger(1, GIB);
  static char memory[8192];
  weir_cu_deviceptr p;
  assert_cu(d->MemHostRegister(d, memory, 4096, 0));
  assert_cu_error(HOST_MEMORY_ALREADY_REGISTERED, d->MemHostRegister(d, memory, 4096, 0));
  assert_cu_error(HOST_MEMORY_ALREADY_REGISTERED, d->MemHostRegister(d, memory + 4095, 2, 0));
  assert_cu(d->MemHostRegister(d, memory + 4096, 100, 0));
  assert_cu_error(INVALID_VALUE, d->MemHostRegister(d, NULL, 100, 0));
  assert_cu_error(INVALID_VALUE, d->MemHostRegister(d, memory, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemHostRegister(d, memory + 5000, 8, 64));
  assert_cu(d->MemHostGetDevicePointer(d, &p, memory + 7, 0));
  assert_int_equal(p, (uintptr_t)memory + 7);
  assert_cu_error(INVALID_VALUE, d->MemHostUnregister(d, memory + 1));
  assert_cu_error(HOST_MEMORY_NOT_REGISTERED, d->MemHostUnregister(d, memory + 5000));
  assert_cu_error(INVALID_VALUE, d->MemFreeHost(d, memory));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, (uintptr_t)memory));
  assert_cu(d->MemHostUnregister(d, memory));
  assert_cu_error(HOST_MEMORY_NOT_REGISTERED, d->MemHostUnregister(d, memory));
  assert_cu(d->MemAlloc(d, &p, 100));
  assert_cu_error(INVALID_VALUE, d->MemHostRegister(d, (void *)(uintptr_t)p, 10, 0));
  weir_driver_close(d);
}

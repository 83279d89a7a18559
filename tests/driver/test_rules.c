/*
 * Rules of the driver: start, devices, contexts, errors, peers, kernels.
 */
#include "driver/rules.h"

/* ---- Start ---- */

FIXTURE(RULES)

/* Runs first, because a process starts NVIDIA's driver only once. */
TEST_SETUP(before_init, NULL, NULL) {
  weir_driver *driver = device_open_bare(NULL);
  weir_cu_context context;
  weir_cu_device device;
  const char *text = NULL;
  int count, version = 0;
  assert_cu(driver->DriverGetVersion(driver, &version));
  if (!is_cuda())
    assert_int_equal(version, 13000);
  else
    assert_in_range(version, 11040, 99000);
  assert_cu(driver->GetErrorName(driver, WEIR_CU_OUT_OF_MEMORY, &text));
  assert_string_equal(text, "CUDA_ERROR_OUT_OF_MEMORY");
  assert_cu(driver->GetErrorString(driver, WEIR_CU_OUT_OF_MEMORY, &text));
  assert_string_equal(text, "out of memory");

  assert_cu_error(NOT_INITIALIZED, driver->DeviceGetCount(driver, &count));
  assert_cu_error(NOT_INITIALIZED, driver->DeviceGet(driver, &device, 0));
  assert_cu_error(NOT_INITIALIZED, driver->CtxGetCurrent(driver, &context));
  weir_cu_result result = driver->Init(driver, 1);
  if (result == WEIR_CU_NO_DEVICE)
    waived("the driver has no device");
  assert_cu_error(INVALID_VALUE, result);
  assert_cu(driver->Init(driver, 0));
  assert_cu(driver->Init(driver, 0));
  assert_cu(driver->DeviceGetCount(driver, &count));
  assert_in_range(count, 1, 1024);
  device_close(driver);
}

/* ---- Contexts ---- */

static const weir_cu_mem_prop device_memory = {.type = WEIR_CU_ALLOCATION_PINNED,
                                               .location = {WEIR_CU_LOCATION_DEVICE, 0}};

/* Before the other tests too, as they keep a context. */
TEST_SETUP(without_context, NULL, NULL) {
  weir_driver *driver = device_open(NULL);
  weir_cu_context context = (weir_cu_context)&driver;
  weir_cu_device device;
  weir_cu_deviceptr pointer = 0, space;
  weir_cu_mem_handle handle;
  weir_cu_stream stream;
  weir_cu_event event;
  void *host;
  size_t free_bytes, bytes;
  int value = 0, active = 7;
  unsigned flags = 7;
  assert_cu(driver->CtxGetCurrent(driver, &context));
  assert_null(context);
  assert_cu_error(INVALID_CONTEXT, driver->MemAlloc(driver, &pointer, 1));
  assert_cu_error(INVALID_CONTEXT, driver->MemGetInfo(driver, &free_bytes, &bytes));
  assert_cu_error(INVALID_CONTEXT, driver->StreamCreateWithPriority(driver, &stream, 0, 0));
  assert_cu_error(INVALID_CONTEXT, driver->CtxSynchronize(driver));
  assert_cu_error(INVALID_CONTEXT, driver->CtxGetDevice(driver, &device));
  assert_cu_error(INVALID_CONTEXT, driver->StreamSynchronize(driver, NULL));
  assert_cu_error(INVALID_CONTEXT, driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu_error(INVALID_CONTEXT, driver->MemHostAlloc(driver, &host, 10, 0));
  assert_cu_error(INVALID_CONTEXT, driver->EventCreate(driver, &event, 0));
  assert_cu_error(INVALID_CONTEXT, driver->Memcpy(driver, address_of(&value), address_of(&value), 4));
  assert_cu(driver->DeviceGetAttribute(driver, &value, WEIR_CU_ATTR_WARP_SIZE, 0));
  assert_cu(driver->DevicePrimaryCtxGetState(driver, 0, &flags, &active));
  assert_int_equal(active, 0);

  /* Address space and physical memory belong to no context. */
  assert_cu(driver->MemAddressReserve(driver, &space, 2 * MIB, 0, 0, 0));
  assert_cu(driver->MemCreate(driver, &handle, 2 * MIB, &device_memory, 0));

  assert_cu(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  assert_cu_error(INVALID_CONTEXT, driver->MemAlloc(driver, &pointer, 1));
  assert_cu(driver->DevicePrimaryCtxGetState(driver, 0, &flags, &active));
  assert_int_equal(active, 1);

  assert_cu(driver->CtxSetCurrent(driver, context));
  assert_cu(driver->MemRelease(driver, handle));
  assert_cu(driver->MemAddressFree(driver, space, 2 * MIB));
  assert_cu(driver->CtxSetCurrent(driver, NULL));
  assert_cu_error(INVALID_CONTEXT, driver->MemAlloc(driver, &pointer, 1));
  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu(driver->DevicePrimaryCtxGetState(driver, 0, &flags, &active));
  assert_int_equal(active, 0);
  device_check_clean(driver);
  device_close(driver);
}

TEST_SETUP(context_is_counted, NULL, NULL) {
  weir_driver *driver = device_open(NULL);
  weir_cu_context first, second;
  weir_cu_device device = 7;
  weir_cu_deviceptr pointer;
  int active;
  unsigned flags;
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &first, 0));
  assert_cu(driver->DevicePrimaryCtxRetain(driver, &second, 0));
  assert_ptr_equal(first, second);
  assert_cu(driver->CtxSetCurrent(driver, first));
  assert_cu(driver->CtxGetCurrent(driver, &second));
  assert_ptr_equal(first, second);
  assert_cu(driver->CtxGetDevice(driver, &device));
  assert_int_equal(device, 0);

  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu(driver->DevicePrimaryCtxGetState(driver, 0, &flags, &active));
  assert_int_equal(active, 1);
  assert_cu(driver->MemAlloc(driver, &pointer, 1));
  assert_cu(driver->MemFree(driver, pointer));

  assert_cu(driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu_error(INVALID_CONTEXT, driver->DevicePrimaryCtxRelease(driver, 0));
  assert_cu_error(CONTEXT_IS_DESTROYED, driver->MemAlloc(driver, &pointer, 100));
  assert_cu(driver->DevicePrimaryCtxGetState(driver, 0, &flags, &active));
  assert_int_equal(active, 0);
  assert_cu(driver->CtxSetCurrent(driver, NULL));
  assert_cu_error(INVALID_CONTEXT, driver->MemAlloc(driver, &pointer, 100));
  device_close(driver);
}

/* Objects of a context are destroyed with it; address space and memory handles are not. */
TEST_SETUP(objects_end_with_the_context, NULL, NULL) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver does not say what is left");
  d = device_open(NULL);
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_module module;
  weir_cu_mempool pool;
  weir_cu_deviceptr space, pooled;
  weir_cu_mem_handle handle;
  static char registered[100];
  assert_cu(d->DevicePrimaryCtxRetain(d, &ctx, 0));
  assert_cu(d->CtxSetCurrent(d, ctx));
  weir_cu_stream stream = stream_new(), capturing = stream_new();
  assert_cu(d->EventRecord(d, event_new(0), stream));
  assert_cu(d->MemsetD8Async(d, mem_new(100), 1, 100, stream));
  host_new(100);
  assert_cu(d->MemHostRegister(d, registered, sizeof registered, 0));
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  assert_cu(d->MemPoolCreate(
      d, &pool, &(weir_cu_mempool_props){.type = WEIR_CU_ALLOCATION_PINNED, .location = device_memory.location}));
  assert_cu(d->MemAllocFromPoolAsync(d, &pooled, 100, pool, stream));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->StreamBeginCapture(d, capturing, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemAddressReserve(d, &space, 2 * MIB, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, 2 * MIB, &device_memory, 0));
  assert_cu(d->MemMap(d, space, 2 * MIB, 0, handle, 0));

  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  if (is_soft()) {
    weir_soft_census census = {.size = sizeof census};
    assert_ok(weir_soft_get_census(d, &census));
    assert_int_equal(census.contexts, 0);
    assert_int_equal(census.reservations, 1);
    assert_int_equal(census.handles, 1);
    assert_int_equal(census.mappings, 1);
    assert_int_equal(census.device_bytes, 2 * MIB);
  }
  assert_cu(d->MemUnmap(d, space, 2 * MIB));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 2 * MIB));
  device_check_clean(d);
  device_close(d);
}

struct look {
  weir_cu_context context;
  weir_cu_result alloc;
};

static void *look_at_context(void *data) {
  struct look *look = data;
  weir_cu_deviceptr pointer;
  d->CtxGetCurrent(d, &look->context);
  look->alloc = d->MemAlloc(d, &pointer, 1);
  return NULL;
}

TEST(current_context_is_per_thread) {
  struct look look = {.context = ctx, .alloc = -1};
  on_another_thread(look_at_context, &look);
  assert_null(look.context);
  assert_cu_error(INVALID_CONTEXT, look.alloc);
}

/* ---- Devices ---- */

TEST(devices) {
  weir_cu_device device = 7;
  int count = device_count();
  assert_cu(d->DeviceGet(d, &device, count - 1));
  assert_int_equal(device, count - 1);
  assert_cu_error(INVALID_DEVICE, d->DeviceGet(d, &device, -1));
  assert_cu_error(INVALID_DEVICE, d->DeviceGet(d, &device, 99));

  char name[256] = "", cut[256];
  assert_cu(d->DeviceGetName(d, name, sizeof name, 0));
  assert_in_range(strlen(name), 5, 255);
  memset(cut, 'x', sizeof cut);
  assert_cu(d->DeviceGetName(d, cut, 5, 0));
  assert_int_equal(strlen(cut), 4);
  assert_memory_equal(cut, name, 4);

  char id[64] = "";
  unsigned parts[4];
  char rest;
  assert_cu(d->DeviceGetPCIBusId(d, id, sizeof id, 0));
  assert_int_equal(sscanf(id, "%x:%x:%x.%x%c", &parts[0], &parts[1], &parts[2], &parts[3], &rest), 4);

  weir_cu_uuid uuid, zero = {{0}};
  assert_cu(d->DeviceGetUuid(d, &uuid, 0));
  assert_memory_not_equal(&uuid, &zero, sizeof uuid);

  size_t total = 0, free_bytes = 0, info_total = 0;
  assert_cu(d->DeviceTotalMem(d, &total, 0));
  assert_cu(d->MemGetInfo(d, &free_bytes, &info_total));
  assert_in_range(info_total, total / 10 * 9, total);
  assert_in_range(free_bytes, 1, info_total);
}

TEST(invalid_devices) {
  char text[64];
  weir_cu_uuid uuid;
  weir_cu_context context;
  weir_cu_mempool pool;
  size_t bytes;
  int value, active;
  unsigned flags;
  static const weir_cu_device none[] = {-1, 99};
  for (int i = 0; i < 2; i++) {
    assert_cu_error(INVALID_DEVICE, d->DeviceGetName(d, text, sizeof text, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DeviceGetUuid(d, &uuid, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DeviceGetPCIBusId(d, text, sizeof text, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DeviceGetAttribute(d, &value, WEIR_CU_ATTR_WARP_SIZE, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DeviceTotalMem(d, &bytes, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DeviceCanAccessPeer(d, &value, none[i], 0));
    assert_cu_error(INVALID_DEVICE, d->DeviceCanAccessPeer(d, &value, 0, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DevicePrimaryCtxRetain(d, &context, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DevicePrimaryCtxRelease(d, none[i]));
    assert_cu_error(INVALID_DEVICE, d->DevicePrimaryCtxGetState(d, none[i], &flags, &active));
    assert_cu_error(INVALID_DEVICE, d->DeviceGetDefaultMemPool(d, &pool, none[i]));
    assert_cu_error(INVALID_VALUE, d->DeviceGetMemPool(d, &pool, none[i]));
  }
}

static int attribute(int which) {
  int value = -1;
  assert_cu(d->DeviceGetAttribute(d, &value, which, 0));
  return value;
}

TEST(attributes) {
  int value = 77;
  assert_cu_error(INVALID_VALUE, d->DeviceGetAttribute(d, &value, 9999, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetAttribute(d, NULL, WEIR_CU_ATTR_WARP_SIZE, 0));
  assert_int_equal(value, 77);
  assert_int_equal(attribute(WEIR_CU_ATTR_WARP_SIZE), 32);
  assert_int_equal(attribute(WEIR_CU_ATTR_MAX_THREADS_PER_BLOCK), 1024);
  assert_int_equal(attribute(WEIR_CU_ATTR_UNIFIED_ADDRESSING), 1);
  assert_int_equal(attribute(WEIR_CU_ATTR_VIRTUAL_MEMORY_SUPPORTED), 1);
  assert_int_equal(attribute(WEIR_CU_ATTR_MEMORY_POOLS_SUPPORTED), 1);
  static const int positive[] = {WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK,
                                 WEIR_CU_ATTR_CLOCK_RATE,
                                 WEIR_CU_ATTR_MULTIPROCESSOR_COUNT,
                                 WEIR_CU_ATTR_L2_CACHE_SIZE,
                                 WEIR_CU_ATTR_MAX_THREADS_PER_MULTIPROCESSOR,
                                 WEIR_CU_ATTR_COMPUTE_CAPABILITY_MAJOR,
                                 WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
                                 WEIR_CU_ATTR_MAX_REGISTERS_PER_MULTIPROCESSOR,
                                 WEIR_CU_ATTR_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN};
  for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
    assert_in_range(attribute(positive[i]), 1, INT32_MAX);
  static const int other[] = {WEIR_CU_ATTR_PCI_BUS_ID,
                              WEIR_CU_ATTR_PCI_DEVICE_ID,
                              WEIR_CU_ATTR_PCI_DOMAIN_ID,
                              WEIR_CU_ATTR_COMPUTE_CAPABILITY_MINOR,
                              WEIR_CU_ATTR_MULTI_GPU_BOARD,
                              WEIR_CU_ATTR_HOST_REGISTER_SUPPORTED,
                              WEIR_CU_ATTR_HANDLE_POSIX_FD_SUPPORTED,
                              WEIR_CU_ATTR_GPU_DIRECT_RDMA_SUPPORTED,
                              WEIR_CU_ATTR_IPC_EVENT_SUPPORTED,
                              WEIR_CU_ATTR_HANDLE_FABRIC_SUPPORTED,
                              WEIR_CU_ATTR_INTEGRATED};
  for (size_t i = 0; i < sizeof other / sizeof *other; i++)
    assert_in_range(attribute(other[i]), 0, INT32_MAX);
}

/* ---- Errors ---- */

TEST(error_names_and_texts) {
  static const struct {
    weir_cu_result code;
    const char *name, *text;
  } known[] = {
#define X(code, name, text) {code, code ? "CUDA_ERROR_" #name : "CUDA_SUCCESS", text},
      WEIR_CU_RESULT_MAP(X)
#undef X
  };
  int version = 0;
  assert_cu(d->DriverGetVersion(d, &version));
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    const char *name = NULL, *text = NULL;
    assert_cu(d->GetErrorName(d, known[i].code, &name));
    assert_string_equal(name, known[i].name);
    assert_cu(d->GetErrorString(d, known[i].code, &text));
    if (version == 13000) /* other versions may have other texts */
      assert_string_equal(text, known[i].text);
  }
  const char *name = "x", *text = "x";
  assert_cu_error(INVALID_VALUE, d->GetErrorName(d, 12345, &name));
  assert_null(name);
  assert_cu_error(INVALID_VALUE, d->GetErrorString(d, 12345, &text));
  assert_null(text);
}

/* ---- Peers ---- */

TEST(a_device_is_not_its_own_peer) {
  int can = 7;
  assert_cu(d->DeviceCanAccessPeer(d, &can, 0, 0));
  assert_int_equal(can, 0);
  assert_cu_error(PEER_ACCESS_UNSUPPORTED, d->CtxEnablePeerAccess(d, ctx, 0));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, ctx));
}

TEST_SETUP(peers, device_setup_two, device_teardown) {
  if (device_count() < 2)
    WAIVE_TEST("there is one device");
  weir_cu_context other;
  int can;
  assert_cu(d->DeviceCanAccessPeer(d, &can, 0, 1));
  if (!can)
    WAIVE_TEST("the devices cannot reach each other");
  assert_cu(d->DevicePrimaryCtxRetain(d, &other, 1));
  assert_cu_error(INVALID_VALUE, d->CtxEnablePeerAccess(d, other, 1));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, other));
  assert_cu(d->CtxEnablePeerAccess(d, other, 0));
  assert_cu_error(PEER_ACCESS_ALREADY_ENABLED, d->CtxEnablePeerAccess(d, other, 0));
  assert_cu(d->CtxSetCurrent(d, other)); /* it is not symmetric */
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, ctx));
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->CtxDisablePeerAccess(d, other));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, other));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
}

/* An event, a stream and a kernel must belong to the same context, except for waits. */
TEST_SETUP(work_on_another_device, device_setup_two, device_teardown) {
  if (device_count() < 2)
    WAIVE_TEST("there is one device");
  weir_cu_context other;
  float milliseconds;
  weir_cu_stream here = stream_new();
  weir_cu_event event = event_new(0);
  weir_cu_function function = spin_function();
  assert_cu(d->DevicePrimaryCtxRetain(d, &other, 1));
  assert_cu(d->CtxSetCurrent(d, other));
  weir_cu_stream there = stream_new();
  weir_cu_event others = event_new(0);
  uint64_t cycles = 1;
  void *params[] = {&cycles};
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, event, there));
  assert_cu_error(INVALID_HANDLE, d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, there, params, NULL));

  assert_cu(d->EventRecord(d, event, here));
  assert_cu(d->EventRecord(d, others, there));
  assert_cu(d->StreamWaitEvent(d, there, event, 0));
  assert_cu(d->StreamSynchronize(d, here));
  assert_cu(d->StreamSynchronize(d, there));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &milliseconds, event, others));
  assert_cu(d->EventDestroy(d, others));
  assert_cu(d->StreamDestroy(d, there));
  assert_cu(d->CtxSetCurrent(d, ctx));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, here));
}

/* ---- Kernels ---- */

TEST(modules) {
  weir_cu_module module;
  weir_cu_function function;
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadData(d, &module, "garbage"));
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &function, module, "nope"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &function, module, "weir_spi"));
  assert_cu(d->ModuleGetFunction(d, &function, module, "weir_spin"));
  assert_cu(d->ModuleUnload(d, module));
  assert_cu_error(INVALID_HANDLE, d->ModuleUnload(d, NULL));
}

TEST(launches) {
  weir_cu_function function = spin_function();
  uint64_t cycles = 1000;
  void *params[] = {&cycles};
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, function, 0, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, function, 1, 1, 1, 5000, 1, 1, 0, NULL, params, NULL));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
  assert_cu(d->LaunchKernel(d, function, 3, 2, 2, 32, 2, 2, 0, NULL, params, NULL));
  assert_cu(d->CtxSynchronize(d));
}

/* The call copies the parameters, before the kernel runs. */
TEST(parameters_are_copied) {
  weir_cu_function function = spin_function();
  weir_cu_stream stream = stream_new();
  weir_cu_event start = event_new(0), end = event_new(0);
  uint64_t cycles = 1000;
  void *params[] = {&cycles};
  float milliseconds = -1;
  spin(stream, 0);
  assert_cu(d->StreamSynchronize(d, stream)); /* nothing is loaded at the launch */
  struct gate *gate = gate_close(stream);
  assert_cu(d->EventRecord(d, start, stream));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  assert_cu(d->EventRecord(d, end, stream));
  cycles = (uint64_t)attribute(WEIR_CU_ATTR_CLOCK_RATE) * 10000; /* ten seconds */
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->EventElapsedTime(d, &milliseconds, start, end));
  assert_true(milliseconds >= 0 && milliseconds < 5000);
  assert_cu(d->EventDestroy(d, start));
  assert_cu(d->EventDestroy(d, end));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(profiler) {
  assert_cu(d->ProfilerStart(d));
  assert_cu(d->ProfilerStop(d));
}

/* NULL outputs. */
TEST(null_outputs) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver may write there");
  weir_cu_stream stream = stream_new();
  weir_cu_event event = event_new(WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING);
  weir_cu_deviceptr p = mem_new(100), space;
  weir_cu_mempool pool;
  weir_cu_mem_handle handle;
  weir_cu_module module;
  weir_cu_function function;
  weir_cu_graph graph;
  weir_cu_graph_node node;
  weir_cu_ipc_mem_handle ipc;
  weir_cu_ipc_event_handle ipc_event;
  weir_cu_mem_prop shareable = device_memory;
  bool shares = !is_ledger();
  if (shares)
    shareable.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  size_t bytes, one = 1;
  unsigned flags;
  int active;
  char name[8];
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->MemAddressReserve(d, &space, 2 * MIB, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, 2 * MIB, &shareable, 0));
  assert_cu(d->MemMap(d, space, 2 * MIB, 0, handle, 0));
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  if (shares) {
    assert_cu(d->IpcGetMemHandle(d, &ipc, p));
    assert_cu(d->IpcGetEventHandle(d, &ipc_event, event));
  }
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, p, 1, 1, stream));
  assert_cu_error(INVALID_VALUE, d->StreamEndCapture(d, stream, NULL));
  assert_int_equal(capture_status(stream), WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphGetNodes(d, graph, &node, &one));

  assert_cu_error(INVALID_VALUE, d->DriverGetVersion(d, NULL));
  assert_cu_error(INVALID_VALUE, d->GetErrorName(d, 0, NULL));
  assert_cu_error(INVALID_VALUE, d->GetErrorString(d, 0, NULL));
  assert_cu_error(INVALID_VALUE, d->DeviceGetCount(d, NULL));
  assert_cu_error(INVALID_VALUE, d->DeviceGet(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetName(d, NULL, 10, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetName(d, name, 0, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetUuid(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetPCIBusId(d, NULL, 10, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetPCIBusId(d, name, 0, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceTotalMem(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceCanAccessPeer(d, NULL, 0, 0));
  assert_cu_error(INVALID_VALUE, d->DevicePrimaryCtxRetain(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->DevicePrimaryCtxGetState(d, 0, NULL, &active));
  assert_cu_error(INVALID_VALUE, d->DevicePrimaryCtxGetState(d, 0, &flags, NULL));
  assert_cu_error(INVALID_VALUE, d->CtxGetCurrent(d, NULL));
  assert_cu_error(INVALID_VALUE, d->CtxGetDevice(d, NULL));
  assert_cu_error(INVALID_VALUE, d->MemGetInfo(d, NULL, &bytes));
  assert_cu_error(INVALID_VALUE, d->MemGetInfo(d, &bytes, NULL));
  assert_cu_error(INVALID_VALUE, d->MemAlloc(d, NULL, 100));
  assert_cu_error(INVALID_VALUE, d->MemHostAlloc(d, NULL, 100, 0));
  assert_cu_error(INVALID_VALUE, d->PointerGetAttribute(d, NULL, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, p));
  assert_cu_error(INVALID_VALUE, d->MemAddressReserve(d, NULL, 2 * MIB, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, NULL, 2 * MIB, &device_memory, 0));
  assert_cu_error(INVALID_VALUE, d->MemCreate(d, &handle, 2 * MIB, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->MemSetAccess(d, space, 2 * MIB, NULL, 1));
  assert_cu_error(INVALID_VALUE, d->MemGetAllocationGranularity(d, NULL, &device_memory, 0));
  assert_cu_error(INVALID_VALUE, d->MemGetAllocationGranularity(d, &bytes, NULL, 0));
  if (shares) {
    assert_cu_error(INVALID_VALUE, d->MemExportToShareableHandle(d, NULL, handle, WEIR_CU_HANDLE_POSIX_FD, 0));
    assert_cu_error(INVALID_VALUE, d->MemImportFromShareableHandle(d, NULL, NULL, WEIR_CU_HANDLE_POSIX_FD));
    assert_cu_error(INVALID_VALUE, d->IpcGetMemHandle(d, NULL, p));
    assert_cu_error(INVALID_VALUE, d->IpcOpenMemHandle(d, NULL, ipc, WEIR_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    assert_cu_error(INVALID_VALUE, d->IpcGetEventHandle(d, NULL, event));
    assert_cu_error(INVALID_VALUE, d->IpcOpenEventHandle(d, NULL, ipc_event));
  } else
    device_print_waived(__func__, "the calls that share something with another process: the ledger has none");
  assert_cu_error(INVALID_VALUE, d->MemAllocAsync(d, NULL, 100, stream));
  assert_cu_error(INVALID_VALUE, d->MemAllocFromPoolAsync(d, NULL, 100, pool, stream));
  assert_cu_error(INVALID_VALUE, d->DeviceGetDefaultMemPool(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetMemPool(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->MemPoolCreate(d, NULL,
                                                  &(weir_cu_mempool_props){.type = WEIR_CU_ALLOCATION_PINNED,
                                                                           .location = device_memory.location}));
  assert_cu_error(INVALID_VALUE, d->MemPoolCreate(d, &pool, NULL));
  assert_cu_error(INVALID_VALUE, d->MemPoolGetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, NULL));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, NULL));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAccess(d, pool, NULL, 1));
  assert_cu_error(INVALID_VALUE, d->StreamCreateWithPriority(d, NULL, 0, 0));
  assert_cu_error(INVALID_VALUE, d->StreamGetPriority(d, stream, NULL));
  assert_cu_error(INVALID_VALUE, d->StreamGetFlags(d, stream, NULL));
  assert_cu_error(INVALID_VALUE, d->StreamGetCtx(d, stream, NULL));
  assert_cu_error(INVALID_VALUE, d->StreamIsCapturing(d, stream, NULL));
  assert_cu_error(INVALID_VALUE, d->StreamGetCaptureInfo(d, stream, NULL, NULL, NULL, NULL, NULL));
  assert_cu_error(INVALID_VALUE, d->ThreadExchangeStreamCaptureMode(d, NULL));
  assert_cu_error(INVALID_VALUE, d->EventCreate(d, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->GraphInstantiate(d, NULL, graph, 0));
  assert_cu_error(INVALID_VALUE, d->GraphGetNodes(d, graph, NULL, NULL));
  assert_cu_error(INVALID_VALUE, d->GraphNodeGetDependencies(d, node, NULL, NULL));
  assert_cu_error(INVALID_VALUE, d->GraphDebugDotPrint(d, graph, NULL, 0));
  assert_cu_error(INVALID_VALUE, d->DeviceGetGraphMemAttribute(d, 0, WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT, NULL));
  assert_cu_error(INVALID_VALUE, d->ModuleLoadData(d, NULL, spin_ptx));
  assert_cu_error(INVALID_VALUE, d->ModuleLoadData(d, &module, NULL));
  assert_cu_error(INVALID_VALUE, d->ModuleGetFunction(d, NULL, module, "weir_spin"));
  assert_cu_error(INVALID_VALUE, d->ModuleGetFunction(d, &function, module, NULL));
  assert_cu(d->CtxGetStreamPriorityRange(d, NULL, NULL)); /* both may be NULL */

  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->ModuleUnload(d, module));
  assert_cu(d->MemUnmap(d, space, 2 * MIB));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, space, 2 * MIB));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, stream));
}

/* Destroyed and invalid handles. NVIDIA's driver may crash on them. */
TEST(destroyed_handles) {
  if (is_cuda())
    WAIVE_TEST("NVIDIA's driver follows a destroyed handle");
  weir_cu_stream stream = stream_new(), kept = stream_new();
  weir_cu_event event = event_new(0), kept_event = event_new(0);
  weir_cu_module module;
  weir_cu_function function;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_graph_node node;
  weir_cu_mempool pool;
  weir_cu_deviceptr pointer;
  uint64_t value = 1;
  int status;
  float milliseconds;
  size_t count = 1;
  void *params[] = {&value};
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  assert_cu(d->ModuleGetFunction(d, &function, module, "weir_spin"));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphGetNodes(d, graph, &node, &count));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->MemPoolCreate(
      d, &pool, &(weir_cu_mempool_props){.type = WEIR_CU_ALLOCATION_PINNED, .location = device_memory.location}));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->ModuleUnload(d, module));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->MemPoolDestroy(d, pool));

  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, stream));
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, stream));
  assert_cu_error(INVALID_HANDLE, d->StreamSynchronize(d, stream));
  assert_cu_error(INVALID_HANDLE, d->StreamIsCapturing(d, stream, &status));
  assert_cu_error(INVALID_HANDLE, d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(INVALID_HANDLE, d->StreamWaitEvent(d, stream, kept_event, 0));
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, kept_event, stream));
  assert_cu_error(INVALID_HANDLE, d->MemAllocAsync(d, &pointer, 100, stream));
  assert_cu_error(INVALID_HANDLE, d->StreamWaitEvent(d, kept, event, 0));
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, event, kept));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, event));
  assert_cu_error(INVALID_HANDLE, d->EventSynchronize(d, event));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &milliseconds, event, kept_event));
  assert_cu_error(INVALID_HANDLE, d->EventDestroy(d, event));
  assert_cu_error(INVALID_HANDLE, d->ModuleGetFunction(d, &function, module, "weir_spin"));
  assert_cu_error(INVALID_HANDLE, d->ModuleUnload(d, module));
  assert_cu_error(INVALID_HANDLE, d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, kept, params, NULL));
  assert_cu_error(INVALID_VALUE, d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu_error(INVALID_VALUE, d->GraphGetNodes(d, graph, NULL, &count));
  assert_cu_error(INVALID_VALUE, d->GraphNodeGetDependencies(d, node, NULL, &count));
  assert_cu_error(INVALID_VALUE, d->GraphDestroy(d, graph));
  assert_cu_error(INVALID_VALUE, d->GraphLaunch(d, exec, kept));
  assert_cu_error(INVALID_VALUE, d->GraphUpload(d, exec, kept));
  assert_cu_error(INVALID_VALUE, d->GraphDebugDotPrint(d, graph, "/dev/null", 0));
  assert_cu_error(INVALID_VALUE, d->GraphExecDestroy(d, exec));
  assert_cu_error(INVALID_VALUE, d->MemAllocFromPoolAsync(d, &pointer, 100, pool, kept));
  assert_cu_error(INVALID_VALUE, d->MemPoolGetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolDestroy(d, pool));
  /* Handles of another kind. */
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, (weir_cu_stream)kept_event));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, (weir_cu_event)kept));
  assert_cu_error(INVALID_CONTEXT, d->CtxSetCurrent(d, (weir_cu_context)kept));
  assert_cu_error(INVALID_CONTEXT, d->CtxEnablePeerAccess(d, (weir_cu_context)kept, 0));
  assert_cu_error(INVALID_CONTEXT, d->CtxDisablePeerAccess(d, (weir_cu_context)kept));
  assert_cu(d->StreamDestroy(d, kept));
  assert_cu(d->EventDestroy(d, kept_event));
}

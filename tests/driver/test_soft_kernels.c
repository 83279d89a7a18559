/*
 * Kernels: C functions under the names of PTX entries, their parameters, and failures.
 */
#include <stdio.h>
#include <string.h>

#include "support/soft.h"

enum { MIB = 1 << 20 };

static const char ptx[] = ".version 6.0\n"
                          ".target sm_50\n"
                          ".visible .entry add(.param .u64 out, .param .u32 n)\n{ ret; }\n"
                          ".entry\tadd_more()\n{ ret; }\n"
                          ".visible .entry fails(.param .u32 code)\n{ ret; }\n"
                          ".visible .entry weir_spin(.param .u64 cycles)\n{ ret; }\n"
                          ".visible .entry nobodys()\n{ ret; }\n"
                          ".func helper() { ret; }\n";

static weir_cu_result add(const weir_soft_launch *launch) {
  *(uint32_t *)(uintptr_t) * (uint64_t *)launch->params[0] += *(uint32_t *)launch->params[1];
  return WEIR_CU_SUCCESS;
}

static weir_cu_result fails(const weir_soft_launch *launch) { return *(int *)launch->params[0]; }

static const size_t add_bytes[] = {8, 4}, fails_bytes[] = {4};

static weir_cu_module module;

static void open_with_kernels(weir_soft_clock clock, int devices) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock = clock;
  options.devices = devices;
  options.clock_khz = 1000;
  soft_open_with(&options);
  assert_ok(weir_soft_register_kernel(d, "add", add, 2, add_bytes));
  assert_ok(weir_soft_register_kernel(d, "fails", fails, 1, fails_bytes));
  assert_cu(d->ModuleLoadData(d, &module, ptx));
}

static weir_cu_function function(const char *name) {
  weir_cu_function f;
  assert_cu(d->ModuleGetFunction(d, &f, module, name));
  return f;
}

static weir_cu_result launch(const char *name, weir_cu_stream stream, void **params) {
  return d->LaunchKernel(d, function(name), 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

static void launch_failure(weir_cu_stream stream, int code) {
  void *params[] = {&code};
  assert_cu(launch("fails", stream, params));
}

/* ---- Names ---- */

FIXTURE(.teardown = soft_teardown)

TEST(entries_are_found_by_name) {
  open_with_kernels(WEIR_SOFT_STEPPED, 1);
  weir_cu_function f = NULL, g;
  assert_cu(d->ModuleGetFunction(d, &f, module, "add"));
  assert_cu(d->ModuleGetFunction(d, &g, module, "add"));
  assert_ptr_equal(f, g);
  f = NULL;
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, module, "ad"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, module, "add_mor"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, module, "add_more2"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, module, "helper"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, module, ""));
  assert_cu_error(NOT_SUPPORTED,
                  d->ModuleGetFunction(d, &f, module, "nobodys")); /* exists, but no function is registered */
  assert_cu_error(NOT_SUPPORTED, d->ModuleGetFunction(d, &f, module, "add_more"));
  assert_cu_error(INVALID_VALUE, d->ModuleGetFunction(d, NULL, module, "add"));
  assert_cu_error(INVALID_VALUE, d->ModuleGetFunction(d, &f, module, NULL));
  assert_null(f);
  /* A kernel can be registered after the module is loaded. */
  assert_ok(weir_soft_register_kernel(d, "add_more", add, 2, add_bytes));
  assert_cu(d->ModuleGetFunction(d, &f, module, "add_more"));

  /* The module has a copy of the text. */
  char text[] = ".version 7.0 .entry add(";
  weir_cu_module other;
  assert_cu(d->ModuleLoadData(d, &other, text));
  memset(text, 'x', sizeof text - 1);
  assert_cu(d->ModuleGetFunction(d, &g, other, "add"));
  assert_ptr_not_equal(f, g);
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadData(d, &other, text));
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadData(d, &other, ""));
  assert_cu(d->ModuleUnload(d, other));
  assert_cu_error(INVALID_HANDLE,
                  d->LaunchKernel(d, g, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); /* destroyed with the module */
  assert_cu_error(INVALID_HANDLE, d->ModuleUnload(d, other));
  assert_cu(d->ModuleUnload(d, module));
  soft_close();
}

TEST(invalid_registrations) {
  size_t bytes[65];
  for (int i = 0; i < 65; i++)
    bytes[i] = 8;
  open_with_kernels(WEIR_SOFT_STEPPED, 1);
  assert_error_says(INVALID_ARGUMENT, "name is NULL", weir_soft_register_kernel(d, NULL, add, 0, NULL));
  assert_error_says(INVALID_ARGUMENT, "name is empty", weir_soft_register_kernel(d, "", add, 0, NULL));
  assert_error_says(INVALID_ARGUMENT, "function is NULL", weir_soft_register_kernel(d, "k", NULL, 0, NULL));
  assert_error_says(INVALID_ARGUMENT, "0 to 64", weir_soft_register_kernel(d, "k", add, -1, bytes));
  assert_error_says(INVALID_ARGUMENT, "0 to 64", weir_soft_register_kernel(d, "k", add, 65, bytes));
  assert_error_says(INVALID_ARGUMENT, "param_bytes is NULL", weir_soft_register_kernel(d, "k", add, 2, NULL));
  assert_error_says(INVALID_ARGUMENT, "a kernel named add exists already",
                    weir_soft_register_kernel(d, "add", add, 2, bytes));
  assert_error_says(INVALID_ARGUMENT, "a kernel named weir_spin exists already",
                    weir_soft_register_kernel(d, "weir_spin", add, 1, bytes));
  assert_error_says(INVALID_ARGUMENT, "a kernel named weir_spin exists already",
                    weir_soft_register_kernel(d, "weir_spin", NULL, 1, bytes));
  bytes[0] = SIZE_MAX;
  assert_error_says(INVALID_ARGUMENT, "larger than 32764 bytes", weir_soft_register_kernel(d, "k", add, 1, bytes));
  bytes[0] = 32764;
  assert_error_says(INVALID_ARGUMENT, "larger than 32764 bytes", weir_soft_register_kernel(d, "k", add, 2, bytes));
  assert_ok(weir_soft_register_kernel(d, "k", add, 1, bytes));
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_soft_register_kernel(NULL, "k", add, 1, bytes));
  soft_close();
}

/* ---- Launches ---- */

static weir_soft_launch seen;
static unsigned char seen_values[64];
static bool is_aligned;

static weir_cu_result look(const weir_soft_launch *l) {
  seen = *l;
  is_aligned = true;
  for (int i = 0; i < 64; i++) {
    seen_values[i] = *(unsigned char *)l->params[i];
    is_aligned = is_aligned && (uintptr_t)l->params[i] % 16 == 0;
  }
  return WEIR_CU_SUCCESS;
}

TEST(kernel_arguments) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  size_t bytes[64];
  unsigned char values[64][64];
  void *params[64];
  for (int i = 0; i < 64; i++) {
    bytes[i] = (size_t)i + 1;
    memset(values[i], 100 + i, sizeof values[i]);
    params[i] = values[i];
  }
  assert_ok(weir_soft_register_kernel(d, "look", look, 64, bytes));
  memset(bytes, 0, sizeof bytes); /* it was copied */
  soft_use(1);
  weir_cu_stream s = soft_stream(0);
  assert_cu(d->ModuleLoadData(d, &module, ".version 6.0 .entry look()"));
  assert_cu(d->LaunchKernel(d, function("look"), 1, 2, 3, 4, 5, 6, 7, s, params, NULL));
  memset(values, 0, sizeof values); /* copied at the launch too */
  memset(params, 0, sizeof params);
  assert_int_equal(soft_step(s, 1), 1);
  assert_int_equal(seen.device, 1);
  for (unsigned i = 0; i < 3; i++) {
    assert_int_equal(seen.grid[i], i + 1);
    assert_int_equal(seen.block[i], i + 4);
  }
  assert_int_equal(seen.shared_bytes, 7);
  assert_true(is_aligned);
  for (int i = 0; i < 64; i++)
    assert_int_equal(seen_values[i], 100 + i);
  soft_close();
}

TEST(a_captured_launch_keeps_its_parameters) {
  open_with_kernels(WEIR_SOFT_STEPPED, 1);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  uint64_t out = soft_alloc(4);
  uint32_t n = 5;
  void *params[] = {&out, &n};
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->StreamBeginCapture(d, s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(launch("add", s, params));
  n = 7;
  assert_cu(launch("add", s, params));
  assert_cu(d->StreamEndCapture(d, s, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphDestroy(d, graph));
  n = 1000;
  assert_cu(d->GraphLaunch(d, exec, s));
  assert_cu(d->GraphLaunch(d, exec, s));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_int_equal(soft_step(s, 10), 4);
  assert_int_equal(*(uint32_t *)(uintptr_t)out, 24);
  assert_cu(d->MemFree(d, out));
  soft_close();
}

TEST(launches_that_are_refused) {
  open_with_kernels(WEIR_SOFT_STEPPED, 2);
  weir_cu_stream s = soft_stream(0);
  uint64_t out = 0;
  uint32_t n = 0;
  void *params[] = {&out, &n}, *extra[] = {NULL};
  weir_cu_function f = function("add");
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 0, 1, 1, 1, 1, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 0, 1, 1, 1, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 0, 1, 1, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 0, 1, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 1025, 1, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 32, 32, 2, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 65, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, UINT32_MAX, UINT32_MAX, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, s, NULL, NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, s, params, extra));
  assert_cu_error(INVALID_HANDLE, d->LaunchKernel(d, NULL, 1, 1, 1, 1, 1, 1, 0, s, params, NULL));
  assert_cu_error(INVALID_HANDLE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, (weir_cu_stream)f, params, NULL));
  soft_use(1);
  assert_cu_error(INVALID_HANDLE,
                  d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL)); /* of another device */
  assert_int_equal(soft_pending(s), 0);
  soft_close();
}

/* ---- Failures ---- */

/* All calls that need the context, and the objects that belong to it. */
static void check_broken(weir_cu_stream stream, weir_cu_event event, weir_cu_graph graph, weir_cu_graph_exec exec,
                         weir_cu_deviceptr p, void *host, weir_cu_result code) {
  size_t a, b;
  int number;
  unsigned flags;
  float milliseconds;
  weir_cu_context context;
  weir_cu_stream new_stream;
  weir_cu_event new_event;
  weir_cu_graph_exec new_exec;
  weir_cu_deviceptr q;
  weir_cu_function f;
  weir_cu_module m;
  weir_cu_ipc_mem_handle memory_handle;
  weir_cu_ipc_event_handle event_handle;
  void *other_host;
  assert_cu_result(code, d->CtxSynchronize(d));
  assert_cu_result(code, d->CtxGetStreamPriorityRange(d, &number, &number));
  assert_cu_result(code, d->CtxEnablePeerAccess(d, contexts[1], 0));
  assert_cu_result(code, d->CtxDisablePeerAccess(d, contexts[1]));
  assert_cu_result(code, d->MemGetInfo(d, &a, &b));
  assert_cu_result(code, d->MemAlloc(d, &q, 100));
  assert_cu_result(code, d->MemFree(d, p));
  assert_cu_result(code, d->MemGetAddressRange(d, &q, &a, p));
  assert_cu_result(code, d->MemHostAlloc(d, &other_host, 100, 0));
  assert_cu_result(code, d->MemFreeHost(d, host));
  assert_cu_result(code, d->MemHostRegister(d, &a, sizeof a, 0));
  assert_cu_result(code, d->MemHostUnregister(d, &a));
  assert_cu_result(code, d->MemHostGetDevicePointer(d, &q, host, 0));
  assert_cu_result(code, d->IpcGetMemHandle(d, &memory_handle, p));
  assert_cu_result(code, d->IpcGetEventHandle(d, &event_handle, event));
  assert_cu_result(code, d->MemAllocAsync(d, &q, 100, stream));
  assert_cu_result(code, d->MemFreeAsync(d, p, stream));
  assert_cu_result(code, d->Memcpy(d, p, p, 1));
  assert_cu_result(code, d->MemcpyAsync(d, p, p, 1, stream));
  assert_cu_result(code, d->MemsetD8Async(d, p, 1, 1, stream));
  assert_cu_result(code, d->MemsetD32Async(d, p, 1, 1, NULL));
  assert_cu_result(code, d->StreamCreateWithPriority(d, &new_stream, 0, 0));
  assert_cu_result(code, d->StreamQuery(d, stream));
  assert_cu_result(code, d->StreamQuery(d, NULL));
  assert_cu_result(code, d->StreamSynchronize(d, stream));
  assert_cu_result(code, d->StreamSynchronize(d, WEIR_CU_STREAM_PER_THREAD));
  assert_cu_result(code, d->StreamWaitEvent(d, stream, event, 0));
  assert_cu_result(code, d->LaunchHostFunc(d, stream, NULL, NULL));
  assert_cu_result(code, d->StreamGetPriority(d, stream, &number));
  assert_cu_result(code, d->StreamGetFlags(d, stream, &flags));
  assert_cu_result(code, d->StreamGetCtx(d, stream, &context));
  assert_cu_result(code, d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_result(code, d->StreamIsCapturing(d, stream, &number));
  assert_cu_result(code, d->EventCreate(d, &new_event, 0));
  assert_cu_result(code, d->EventRecord(d, event, stream));
  assert_cu_result(code, d->EventQuery(d, event));
  assert_cu_result(code, d->EventSynchronize(d, event));
  assert_cu_result(code, d->EventElapsedTime(d, &milliseconds, event, event));
  assert_cu_result(code, d->GraphInstantiate(d, &new_exec, graph, 0));
  assert_cu_result(code, d->GraphLaunch(d, exec, stream));
  assert_cu_result(code, d->GraphUpload(d, exec, stream));
  assert_cu_result(code, d->ModuleLoadData(d, &m, ptx));
  assert_cu_result(code, d->ModuleGetFunction(d, &f, module, "add"));
  assert_cu_result(code, d->ProfilerStart(d));
  assert_cu_result(code, d->ProfilerStop(d));
}

static void check_still_allowed(weir_cu_graph graph, weir_cu_deviceptr p) {
  size_t a;
  int number, mode = WEIR_CU_CAPTURE_RELAXED;
  unsigned flags;
  weir_cu_device device;
  weir_cu_context context;
  weir_cu_deviceptr va;
  weir_cu_mempool pool;
  uint64_t value;
  const char *text;
  assert_cu(d->DeviceGetCount(d, &number));
  assert_cu(d->DeviceTotalMem(d, &a, 0));
  assert_cu(d->GetErrorName(d, WEIR_CU_ILLEGAL_ADDRESS, &text));
  assert_cu(d->CtxGetCurrent(d, &context));
  assert_cu(d->CtxGetDevice(d, &device));
  assert_cu(d->CtxSetCurrent(d, context));
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->DevicePrimaryCtxGetState(d, 0, &flags, &number));
  assert_cu(d->PointerGetAttribute(d, &number, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, p));
  assert_cu(d->MemAddressReserve(d, &va, 2 * MIB, 0, 0, 0));
  assert_cu(d->MemAddressFree(d, va, 2 * MIB));
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->MemPoolGetAttribute(d, pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, &value));
  assert_cu(d->GraphGetNodes(d, graph, NULL, &a));
  assert_cu(d->ThreadExchangeStreamCaptureMode(d, &mode));
  assert_cu(d->ThreadExchangeStreamCaptureMode(d, &mode));
}

/* A failing kernel breaks the context: every call reports the error until the context is released and retained. */
TEST(a_failure_sticks) {
  for (int clock = WEIR_SOFT_THREADS; clock <= WEIR_SOFT_STEPPED; clock++) {
    open_with_kernels((weir_soft_clock)clock, 2);
    weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), other = soft_stream(0);
    weir_cu_event e;
    weir_cu_deviceptr p = soft_alloc(100), q;
    void *host;
    weir_cu_graph graph;
    weir_cu_graph_exec exec;
    assert_cu(d->EventCreate(d, &e, WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING));
    assert_cu(d->EventRecord(d, e, s));
    assert_cu(d->MemHostAlloc(d, &host, 100, 0));
    assert_cu(d->StreamBeginCapture(d, s, WEIR_CU_CAPTURE_RELAXED));
    assert_cu(d->MemsetD8Async(d, p, 1, 100, s));
    assert_cu(d->StreamEndCapture(d, s, &graph));
    assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
    assert_cu(d->CtxSynchronize(d));

    launch_failure(s, WEIR_CU_ASSERT);
    assert_cu_error(ASSERT, d->StreamSynchronize(d, s));
    check_broken(s, e, graph, exec, p, host, WEIR_CU_ASSERT);
    check_still_allowed(graph, p);
    check_broken(s, e, graph, exec, p, host, WEIR_CU_ASSERT);
    /* The other device is not affected. */
    soft_use(1);
    assert_cu(d->MemAlloc(d, &q, 100));
    assert_cu(d->MemsetD8Async(d, q, 1, 100, NULL));
    assert_cu(d->CtxSynchronize(d));
    assert_cu(d->MemFree(d, q));
    soft_use(0);
    /* Destroyed objects are gone, whatever the result. */
    assert_cu_error(ASSERT, d->StreamDestroy(d, s));
    assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, s));
    assert_cu_error(ASSERT, d->EventDestroy(d, e));
    assert_cu_error(INVALID_HANDLE, d->EventDestroy(d, e));
    assert_cu_error(ASSERT, d->ModuleUnload(d, module));
    assert_cu_error(INVALID_HANDLE, d->ModuleUnload(d, module));
    assert_cu(d->GraphExecDestroy(d, exec));
    assert_cu(d->GraphDestroy(d, graph));

    assert_cu(d->DevicePrimaryCtxRelease(d, 0));
    assert_int_equal(soft_census().contexts, 1);
    assert_cu_error(CONTEXT_IS_DESTROYED, d->MemAlloc(d, &p, 100));
    assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, other));
    assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[0], 0));
    soft_use(0);
    p = soft_alloc(100);
    assert_cu(d->MemsetD8Async(d, p, 1, 100, NULL));
    assert_cu(d->CtxSynchronize(d));
    assert_cu(d->MemFree(d, p));
    soft_close();
  }
}

/* Work after the failure does not run, but completes. */
TEST(work_after_a_failure) {
  open_with_kernels(WEIR_SOFT_STEPPED, 2);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), waits = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = soft_alloc(3);
  assert_cu(d->MemsetD8Async(d, p, 1, 3, s));
  launch_failure(s, WEIR_CU_ILLEGAL_ADDRESS);
  assert_cu(d->MemsetD8Async(d, p, 2, 3, s));
  assert_cu(d->EventRecord(d, e, s));
  assert_cu(d->StreamWaitEvent(d, waits, e, 0));
  assert_cu(d->MemsetD8Async(d, p, 3, 3, waits));
  soft_use(1);
  weir_cu_stream foreign = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->StreamWaitEvent(d, foreign, e, 0));
  assert_cu(d->MemsetD8Async(d, p + 2, 4, 1, foreign));
  soft_use(0);

  assert_int_equal(soft_step(s, 1), 1);
  assert_int_equal(soft_step(s, 1), 1);
  uint64_t broke = soft_now();
  assert_int_equal(soft_pending(s), 2); /* stepping works in a broken context */
  assert_cu_error(ILLEGAL_ADDRESS, d->StreamQuery(d, s));
  assert_int_equal(soft_step(s, 10), 2);
  assert_int_equal(soft_step(waits, 10), 2);
  assert_int_equal(soft_now(), broke);  /* work that does not run takes no time */
  assert_int_equal(soft_step_all(), 2); /* another device that waited for it continues */
  unsigned char *bytes = (unsigned char *)(uintptr_t)p;
  assert_int_equal(bytes[0], 1);
  assert_int_equal(bytes[2], 4);
  soft_close();
}

/* Of two failures the first one counts. */
TEST(the_first_failure_counts) {
  open_with_kernels(WEIR_SOFT_STEPPED, 1);
  launch_failure(NULL, WEIR_CU_ASSERT);
  launch_failure(NULL, WEIR_CU_ILLEGAL_ADDRESS);
  assert_cu_error(ASSERT, d->CtxSynchronize(d));
  assert_cu_error(ASSERT, d->CtxSynchronize(d));
  soft_close();
}

/* In real time: no call waits for a kernel that spins on. */
TEST(a_failure_ends_all_waits) {
  open_with_kernels(WEIR_SOFT_THREADS, 1);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), spins = soft_stream(WEIR_CU_STREAM_NON_BLOCKING),
                 waits = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  uint64_t cycles = 1000000000; /* a thousand seconds */
  void *params[] = {&cycles};
  assert_cu(launch("weir_spin", spins, params));
  assert_cu(launch("weir_spin", spins, params));
  assert_cu(d->EventRecord(d, e, spins));
  assert_cu(d->StreamWaitEvent(d, waits, e, 0));
  assert_cu(launch("weir_spin", waits, params));
  double before = soft_milliseconds();
  launch_failure(s, WEIR_CU_ILLEGAL_ADDRESS);
  assert_cu_error(ILLEGAL_ADDRESS, d->StreamSynchronize(d, waits));
  assert_cu_error(ILLEGAL_ADDRESS, d->EventSynchronize(d, e));
  assert_cu_error(ILLEGAL_ADDRESS, d->CtxSynchronize(d));
  soft_close();
  assert_true(soft_milliseconds() - before < 60000);
}

/* ---- Images ---- */

static int releases;

static void count_release(void *context) {
  assert_ptr_equal(context, &releases);
  releases++;
}

static const weir_soft_entry add_entry = {.name = "add", .function = add, .param_count = 2, .param_bytes = add_bytes};
static const weir_soft_entry *const image_entries[] = {&add_entry};

static weir_soft_image image_of(const weir_soft_entry *const *begin, const weir_soft_entry *const *end) {
  return (weir_soft_image){WEIR_SOFT_IMAGE_MAGIC, sizeof(weir_soft_image), begin, end, count_release, &releases};
}

/* An image lives until no module, no work and no graph uses it. */
TEST(images) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 << 20);
  weir_soft_image image = image_of(image_entries, image_entries + 1);
  weir_cu_module loaded;
  weir_cu_function f;
  releases = 0;
  assert_cu(d->ModuleLoadData(d, &loaded, &image));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, loaded, "weir_spin"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &f, loaded, ""));
  assert_cu(d->ModuleGetFunction(d, &f, loaded, "add"));
  size_t offset, bytes;
  assert_cu(d->FuncGetParamInfo(d, f, 1, &offset, &bytes));
  assert_int_equal(offset, 8);
  assert_int_equal(bytes, 4);

  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr sum = soft_alloc(4);
  uint32_t n = 5;
  void *params[] = {&sum, &n};
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->MemsetD32Async(d, sum, 0, 1, stream));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
  assert_cu(d->ModuleUnload(d, loaded)); /* waits for the launch; the graph keeps the image */
  assert_int_equal(releases, 0);
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(*(uint32_t *)(uintptr_t)sum, 10);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_int_equal(releases, 1);
  assert_cu(d->MemFree(d, sum));
  assert_cu(d->StreamDestroy(d, stream));

  /* The context takes its modules with it. */
  assert_cu(d->ModuleLoadData(d, &loaded, &image));
  soft_close();
  assert_int_equal(releases, 2);
}

TEST(invalid_images) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 << 20);
  weir_cu_module loaded;
  weir_soft_image image = image_of(image_entries, image_entries + 1);
  image.size = 8;
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadData(d, &loaded, &image));
  weir_soft_entry bad = add_entry;
  const weir_soft_entry *entries[] = {&bad};
  image = image_of(entries, entries + 1);
  bad.param_count = 65;
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadData(d, &loaded, &image));
  bad = add_entry;
  bad.function = NULL;
  assert_cu_error(INVALID_IMAGE, d->ModuleLoadData(d, &loaded, &image));
  image = image_of(NULL, NULL); /* an image may be empty */
  releases = 0;
  assert_cu(d->ModuleLoadData(d, &loaded, &image));
  assert_cu(d->ModuleUnload(d, loaded));
  assert_int_equal(releases, 1);
  soft_close();
}

/*
 * The fault table. Its behaviour with many threads is in test_fault_threads.c.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/echo_driver.h"
#include "driver/every_call.h"
#include "support/ledger.h"
#include "weir/runtime.h"

enum { ANY_CODE = 999 };

static unsigned long calls_of(weir_driver *d, int call) {
  unsigned long calls = 0;
  assert_ok(weir_fault_counts(d, (weir_driver_call)call, &calls, NULL));
  return calls;
}

static unsigned long faults_of(weir_driver *d, int call) {
  unsigned long faults = 0;
  assert_ok(weir_fault_counts(d, (weir_driver_call)call, NULL, &faults));
  return faults;
}

static const weir_driver_call tells[] = {WEIR_CALL_DriverGetVersion, WEIR_CALL_GetErrorName, WEIR_CALL_GetErrorString};

static const weir_driver_call gives_back[] = {
    WEIR_CALL_DevicePrimaryCtxRelease,
    WEIR_CALL_MemFree,
    WEIR_CALL_MemFreeHost,
    WEIR_CALL_MemHostUnregister,
    WEIR_CALL_MemAddressFree,
    WEIR_CALL_MemRelease,
    WEIR_CALL_MemUnmap,
    WEIR_CALL_IpcCloseMemHandle,
    WEIR_CALL_MemFreeAsync,
    WEIR_CALL_MemPoolDestroy,
    WEIR_CALL_StreamDestroy,
    WEIR_CALL_EventDestroy,
    WEIR_CALL_GraphDestroy,
    WEIR_CALL_GraphExecDestroy,
    WEIR_CALL_ModuleUnload,
    WEIR_CALL_UserObjectRelease,
};

static bool among(int call, const weir_driver_call *calls, size_t count) {
  for (size_t i = 0; i < count; i++)
    if ((int)calls[i] == call)
      return true;
  return false;
}

static bool is_teller(int call) { return among(call, tells, sizeof tells / sizeof tells[0]); }
static bool is_giver(int call) { return among(call, gives_back, sizeof gives_back / sizeof gives_back[0]); }

/* ---- Passing on ---- */

/* A table that was compiled with an older header ends after ProfilerStop, and what lies behind is not read. */
TEST(older_table) {
  echo_driver echo;
  weir_driver *d;
  echo_init(&echo);
  echo.table.size = offsetof(weir_driver, UserObjectCreate);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  assert_null(d->UserObjectCreate);
  assert_null(d->UserObjectRelease);
  assert_null(d->GraphRetainUserObject);
  assert_non_null(d->ProfilerStop);
  weir_driver_close(d);
  assert_ok(weir_driver_open_timing(&echo.table, &d));
  assert_null(d->UserObjectCreate);
  weir_driver_close(d);
  assert_ok(weir_use_driver(&echo.table));
  echo.table.size--;
  assert_error_says(INVALID_ARGUMENT, "expected at least", weir_use_driver(&echo.table));
  assert_ok(weir_use_driver(NULL));
}

TEST(every_call_reaches_its_own_entry) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  assert_string_equal(d->name, echo.table.name);
  assert_int_equal(d->size, sizeof *d);
  every_call(d, results);
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    assert_int_equal(results[call], ECHO_OF(call));
    assert_int_equal(echo.calls[call], 1);
    assert_int_equal(calls_of(d, call), 1);
    assert_int_equal(faults_of(d, call), 0);
  }
  weir_driver_close(d);
}

/* Records the arguments of a call. */
static unsigned long long seen[16];

static weir_cu_result see_map(weir_driver *self, weir_cu_deviceptr pointer, size_t bytes, size_t offset,
                              weir_cu_mem_handle handle, unsigned long long flags) {
  (void)self;
  const unsigned long long values[] = {pointer, bytes, offset, handle, flags};
  memcpy(seen, values, sizeof values);
  return 1;
}

static weir_cu_result see_launch(weir_driver *self, weir_cu_function function, unsigned grid_x, unsigned grid_y,
                                 unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                                 unsigned shared_bytes, weir_cu_stream stream, void **params, void **extra) {
  (void)self;
  const unsigned long long values[] = {
      (uintptr_t)function, grid_x,          grid_y, grid_z, block_x, block_y, block_z, shared_bytes, (uintptr_t)stream,
      (uintptr_t)params,   (uintptr_t)extra};
  memcpy(seen, values, sizeof values);
  return 2;
}

static weir_cu_result see_peer(weir_driver *self, weir_cu_deviceptr to, weir_cu_context to_context,
                               weir_cu_deviceptr from, weir_cu_context from_context, size_t bytes,
                               weir_cu_stream stream) {
  (void)self;
  const unsigned long long values[] = {to,    (uintptr_t)to_context, from, (uintptr_t)from_context,
                                       bytes, (uintptr_t)stream};
  memcpy(seen, values, sizeof values);
  return 3;
}

static weir_cu_result see_ipc(weir_driver *self, weir_cu_deviceptr *pointer, weir_cu_ipc_mem_handle handle,
                              unsigned flags) {
  (void)self;
  *pointer = 77;
  seen[0] = (unsigned char)handle.reserved[63];
  seen[1] = flags;
  return 0;
}

static void expect_seen(size_t count) {
  for (size_t i = 0; i < count; i++)
    assert_int_equal(seen[i], i + 1);
}

TEST(arguments_and_outputs_pass_unchanged) {
  echo_driver echo;
  weir_driver *d;
  echo_init(&echo);
  echo.table.MemMap = see_map;
  echo.table.LaunchKernel = see_launch;
  echo.table.MemcpyPeerAsync = see_peer;
  echo.table.IpcOpenMemHandle = see_ipc;
  assert_ok(weir_driver_open_fault(&echo.table, &d));
#define P(type, value) ((type)(uintptr_t)(value))
  assert_int_equal(d->MemMap(d, 1, 2, 3, 4, 5), 1);
  expect_seen(5);
  assert_int_equal(d->LaunchKernel(d, P(weir_cu_function, 1), 2, 3, 4, 5, 6, 7, 8, P(weir_cu_stream, 9), P(void **, 10),
                                   P(void **, 11)),
                   2);
  expect_seen(11);
  assert_int_equal(d->MemcpyPeerAsync(d, 1, P(weir_cu_context, 2), 3, P(weir_cu_context, 4), 5, P(weir_cu_stream, 6)),
                   3);
  expect_seen(6);
  weir_cu_ipc_mem_handle handle = {{0}};
  handle.reserved[63] = 1;
  weir_cu_deviceptr p = 0;
  assert_cu(d->IpcOpenMemHandle(d, &p, handle, 2));
  expect_seen(2);
  assert_int_equal(p, 77);
  weir_driver_close(d);
}

TEST(absent_entries_stay_absent) {
  weir_driver *inner = open_ledger(1, 1 << 30), *d;
  assert_ok(weir_driver_open_fault(inner, &d));
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  assert_int_equal(d->name == NULL, inner->name == NULL);
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) assert_int_equal(d->name == NULL, inner->name == NULL);
#include "weir/driver_entries.h"
  assert_true(d->MemExportToShareableHandle == NULL);
  weir_driver_close(d);
  assert_cu(inner->CtxSynchronize(inner)); /* still belongs to the caller */
  weir_driver_close(inner);
}

TEST(a_fault_table_around_a_fault_table) {
  echo_driver echo;
  weir_driver *inside, *outside;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &inside));
  assert_ok(weir_driver_open_fault(inside, &outside));
  assert_ok(weir_fault_nth(inside, WEIR_CALL_MemAlloc, 1, 2, 0));
  assert_ok(weir_fault_nth(outside, WEIR_CALL_MemCreate, 1, 3, 0));
  every_call(outside, results);
  assert_int_equal(results[WEIR_CALL_MemAlloc], 2);
  assert_int_equal(results[WEIR_CALL_MemCreate], 3);
  assert_int_equal(calls_of(inside, WEIR_CALL_COUNT), WEIR_CALL_COUNT - 1);
  assert_int_equal(faults_of(outside, WEIR_CALL_COUNT), 1);
  weir_driver_close(outside);
  weir_driver_close(inside);
}

/* ---- The nth of a kind ---- */

TEST(the_nth_call_of_each_kind_fails_once) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    unsigned long passed_on = echo.calls[call];
    assert_ok(weir_fault_nth(d, (weir_driver_call)call, 3, ANY_CODE, 0));
    for (int round = 1; round <= 5; round++) {
      every_call(d, results);
      for (int i = 0; i < WEIR_CALL_COUNT; i++)
        assert_int_equal(results[i], i == call && round == 3 ? ANY_CODE : ECHO_OF(i));
    }
    assert_int_equal(faults_of(d, call), 1);
    assert_int_equal(echo.calls[call], passed_on + 4); /* the failed call was not forwarded */
  }
  assert_int_equal(faults_of(d, WEIR_CALL_COUNT), WEIR_CALL_COUNT);
  assert_int_equal(calls_of(d, WEIR_CALL_COUNT), 5ul * WEIR_CALL_COUNT * WEIR_CALL_COUNT);
  weir_driver_close(d);
}

TEST(rules_are_replaced_and_removed) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_deviceptr p;
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  const int through = ECHO_OF(WEIR_CALL_MemAlloc);
  assert_ok(weir_fault_nth(d, WEIR_CALL_MemAlloc, 2, 2, 0));
  assert_int_equal(d->MemAlloc(d, &p, 1), through);
  assert_ok(weir_fault_nth(d, WEIR_CALL_MemAlloc, 2, 3, 0)); /* counting restarts */
  assert_int_equal(d->MemAlloc(d, &p, 1), through);
  assert_int_equal(d->MemAlloc(d, &p, 1), 3);
  assert_ok(weir_fault_nth(d, WEIR_CALL_MemAlloc, 1, 2, 0));
  assert_ok(weir_fault_nth(d, WEIR_CALL_MemAlloc, 0, 0, 0));
  assert_int_equal(d->MemAlloc(d, &p, 1), through);

  /* Two rules that hit the same call make one failure, and both are used up. */
  assert_ok(weir_fault_nth(d, WEIR_CALL_MemAlloc, 2, 7, 0));
  assert_ok(weir_fault_nth_any(d, 2, 8));
  assert_int_equal(d->MemAlloc(d, &p, 1), through);
  assert_int_equal(d->MemAlloc(d, &p, 1), 7);
  assert_int_equal(d->MemAlloc(d, &p, 1), through);
  weir_driver_close(d);
}

TEST(sticky) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  assert_ok(weir_fault_nth(d, WEIR_CALL_StreamSynchronize, 2, WEIR_CU_ILLEGAL_ADDRESS, 1));
  every_call(d, results);
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    assert_int_equal(results[call], ECHO_OF(call));
  assert_cu_error(ILLEGAL_ADDRESS, d->StreamSynchronize(d, NULL));
  for (int round = 0; round < 3; round++) {
    every_call(d, results);
    for (int call = 0; call < WEIR_CALL_COUNT; call++)
      assert_int_equal(results[call], is_teller(call) ? ECHO_OF(call) : WEIR_CU_ILLEGAL_ADDRESS);
  }
  assert_int_equal(faults_of(d, WEIR_CALL_COUNT), 1 + 3 * (WEIR_CALL_COUNT - 3));

  unsigned long calls = calls_of(d, WEIR_CALL_COUNT), faults = faults_of(d, WEIR_CALL_COUNT);
  assert_ok(weir_fault_clear(d));
  assert_int_equal(calls_of(d, WEIR_CALL_COUNT), calls); /* counts are kept */
  assert_int_equal(faults_of(d, WEIR_CALL_COUNT), faults);
  every_call(d, results);
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    assert_int_equal(results[call], ECHO_OF(call));
  weir_driver_close(d);
}

TEST(clear_removes_every_rule) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    assert_ok(weir_fault_nth(d, (weir_driver_call)call, 1, 2, 1));
  assert_ok(weir_fault_nth_any(d, 1, 2));
  assert_ok(weir_fault_random(d, 1, 1000000, 2));
  assert_ok(weir_fault_clear(d));
  every_call(d, results);
  assert_int_equal(faults_of(d, WEIR_CALL_COUNT), 0);
  weir_driver_close(d);
}

TEST(a_failed_end_of_capture_gives_no_graph) {
  weir_driver *inner = open_ledger(1, 1 << 30), *d;
  assert_ok(weir_driver_open_fault(inner, &d));
  weir_cu_stream stream = make_stream(d, WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_graph graph = (weir_cu_graph)1;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_ok(weir_fault_nth(d, WEIR_CALL_StreamEndCapture, 1, ANY_CODE, 0));
  assert_int_equal(d->StreamEndCapture(d, stream, &graph), ANY_CODE);
  assert_null(graph);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_non_null(graph);
  weir_driver_close(d);
  weir_driver_close(inner);
}

/* ---- The nth of any kind ---- */

TEST(nth_any_skips_describing_and_releasing_calls) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  unsigned long nth = 1;
  /* every_call makes its calls in the order of the entries, so the nth counted call is known. */
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    if (is_teller(call) || is_giver(call))
      continue;
    assert_ok(weir_fault_nth_any(d, nth++, ANY_CODE));
    every_call(d, results);
    for (int i = 0; i < WEIR_CALL_COUNT; i++)
      assert_int_equal(results[i], i == call ? ANY_CODE : ECHO_OF(i));
  }
  weir_driver_close(d);
}

/* A program that uses everything, and releases what it has when a call fails. */
static weir_cu_result program(weir_driver *d, int *reached) {
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mem_access access = access_of(0, WEIR_CU_ACCESS_READWRITE);
  weir_cu_deviceptr p = 0, pooled = 0, va = 0;
  weir_cu_mem_handle handle = 0;
  weir_cu_stream stream = NULL;
  weir_cu_event start = NULL, stop = NULL;
  weir_cu_graph graph = NULL;
  weir_cu_graph_exec exec = NULL;
  weir_cu_module module = NULL;
  weir_cu_function function = NULL;
  void *host = NULL;
  size_t free_now = 0, total = 0;
  float ms = 0;
  bool mapped = false;
  weir_cu_result result;
  *reached = 0;
#define DO(call)                                                                                                       \
  do {                                                                                                                 \
    ++*reached;                                                                                                        \
    result = (call);                                                                                                   \
    if (result != WEIR_CU_SUCCESS)                                                                                     \
      goto give_back;                                                                                                  \
  } while (0)
  DO(d->MemGetInfo(d, &free_now, &total));
  DO(d->MemAlloc(d, &p, 1 << 20));
  DO(d->MemHostAlloc(d, &host, 4096, 0));
  DO(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  DO(d->EventCreate(d, &start, 0));
  DO(d->EventCreate(d, &stop, 0));
  DO(d->EventRecord(d, start, stream));
  DO(d->MemcpyAsync(d, p, (uintptr_t)host, 4096, stream));
  DO(d->MemAllocAsync(d, &pooled, 1000, stream));
  DO(d->MemAddressReserve(d, &va, 4 * PAGE, 0, 0, 0));
  DO(d->MemCreate(d, &handle, PAGE, &prop, 0));
  DO(d->MemMap(d, va, PAGE, 0, handle, 0));
  mapped = true;
  DO(d->MemSetAccess(d, va, PAGE, &access, 1));
  DO(d->MemsetD32Async(d, va, 7, PAGE / 4, stream));
  DO(d->ModuleLoadData(d, &module, SPIN_PTX));
  DO(d->ModuleGetFunction(d, &function, module, "weir_spin"));
  DO(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_THREAD_LOCAL));
  DO(d->LaunchKernel(d, function, 1, 1, 1, 32, 1, 1, 0, stream, params_of_spin(), NULL));
  DO(d->StreamEndCapture(d, stream, &graph));
  DO(d->GraphInstantiate(d, &exec, graph, 0));
  DO(d->GraphLaunch(d, exec, stream));
  DO(d->EventRecord(d, stop, stream));
  DO(d->StreamSynchronize(d, stream));
  DO(d->EventElapsedTime(d, &ms, start, stop));
#undef DO

give_back:
  /* The stream first: an open capture would forbid the rest. */
  if (stream != NULL)
    assert_cu(d->StreamDestroy(d, stream));
  if (exec != NULL)
    assert_cu(d->GraphExecDestroy(d, exec));
  if (graph != NULL)
    assert_cu(d->GraphDestroy(d, graph));
  if (module != NULL)
    assert_cu(d->ModuleUnload(d, module));
  if (mapped)
    assert_cu(d->MemUnmap(d, va, PAGE));
  if (handle != 0)
    assert_cu(d->MemRelease(d, handle));
  if (va != 0)
    assert_cu(d->MemAddressFree(d, va, 4 * PAGE));
  assert_cu(d->MemFree(d, pooled));
  if (start != NULL)
    assert_cu(d->EventDestroy(d, start));
  if (stop != NULL)
    assert_cu(d->EventDestroy(d, stop));
  if (host != NULL)
    assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
  return result;
}

TEST(each_call_of_a_program_fails_once) {
  weir_driver *inner = open_ledger(1, 1 << 30), *d;
  assert_ok(weir_driver_open_fault(inner, &d));
  int length = 0, reached = 0;
  assert_cu(program(d, &length));
  assert_true(length > 20);
  for (int nth = 1; nth <= length; nth++) {
    assert_ok(weir_fault_nth_any(d, (unsigned long)nth, ANY_CODE));
    assert_int_equal(program(d, &reached), ANY_CODE);
    assert_int_equal(reached, nth);
    assert_int_equal(free_bytes(inner), 1 << 30);
  }
  assert_ok(weir_fault_nth_any(d, (unsigned long)length + 1, ANY_CODE));
  assert_cu(program(d, &reached));
  assert_int_equal(faults_of(d, WEIR_CALL_COUNT), length);
  weir_driver_close(d);
  weir_driver_close(inner);
}

/* ---- At random ---- */

/* A hash of the calls that failed in `rounds` rounds over all entries. */
static uint64_t pattern(uint64_t seed, unsigned per_million, int rounds, unsigned long *faults) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  uint64_t digest = 0xcbf29ce484222325;
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  assert_ok(weir_fault_random(d, seed, per_million, ANY_CODE));
  for (int round = 0; round < rounds; round++) {
    every_call(d, results);
    for (int call = 0; call < WEIR_CALL_COUNT; call++)
      digest = (digest ^ (results[call] == ANY_CODE)) * 0x100000001b3;
  }
  *faults = faults_of(d, WEIR_CALL_COUNT);
  weir_driver_close(d);
  return digest;
}

TEST(random_is_the_same_for_the_same_seed) {
  unsigned long faults, again;
  for (uint64_t seed = 0; seed < 20; seed++) {
    uint64_t first = pattern(seed, 100000, 50, &faults);
    assert_int_equal(pattern(seed, 100000, 50, &again), first);
    assert_int_equal(again, faults);
    assert_true(faults > 0);
    assert_int_not_equal(pattern(seed + 1, 100000, 50, &again), first);
  }
}

TEST(random_hits_acquiring_calls) {
  static const weir_driver_call want[] = {WEIR_CALL_MemAlloc,
                                          WEIR_CALL_MemHostAlloc,
                                          WEIR_CALL_MemHostRegister,
                                          WEIR_CALL_MemAddressReserve,
                                          WEIR_CALL_MemCreate,
                                          WEIR_CALL_MemMap,
                                          WEIR_CALL_MemSetAccess,
                                          WEIR_CALL_MemAllocAsync,
                                          WEIR_CALL_MemPoolCreate,
                                          WEIR_CALL_EventCreate,
                                          WEIR_CALL_StreamCreateWithPriority,
                                          WEIR_CALL_GraphInstantiate,
                                          WEIR_CALL_DevicePrimaryCtxRetain,
                                          WEIR_CALL_IpcOpenMemHandle};
  static const weir_driver_call never[] = {
      WEIR_CALL_Init,        WEIR_CALL_DeviceGetCount, WEIR_CALL_CtxSetCurrent,     WEIR_CALL_MemGetInfo,
      WEIR_CALL_EventRecord, WEIR_CALL_EventQuery,     WEIR_CALL_StreamIsCapturing, WEIR_CALL_PointerGetAttribute};
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  assert_ok(weir_fault_random(d, 1, 1000000, ANY_CODE));
  every_call(d, results);
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
    assert_int_equal(results[want[i]], ANY_CODE);
  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++)
    assert_int_equal(results[never[i]], ECHO_OF(never[i]));
  for (int call = 0; call < WEIR_CALL_COUNT; call++)
    if (is_teller(call) || is_giver(call))
      assert_int_equal(results[call], ECHO_OF(call));
  assert_ok(weir_fault_random(d, 1, 0, 0));
  every_call(d, results);
  assert_int_equal(results[WEIR_CALL_MemAlloc], ECHO_OF(WEIR_CALL_MemAlloc));
  weir_driver_close(d);
}

TEST(random_is_as_frequent_as_asked) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_deviceptr p;
  echo_init(&echo);
  assert_ok(weir_driver_open_fault(&echo.table, &d));
  static const unsigned rates[] = {1000, 50000, 500000};
  unsigned long before = 0;
  for (int i = 0; i < 3; i++) {
    assert_ok(weir_fault_random(d, 42, rates[i], ANY_CODE));
    for (int n = 0; n < 1000000; n++)
      d->MemAlloc(d, &p, 1);
    unsigned long faults = faults_of(d, WEIR_CALL_MemAlloc) - before;
    before += faults;
    /* At least five standard deviations. */
    unsigned slack = rates[i] < 10000 ? 160 : 2500;
    assert_in_range(faults, rates[i] - slack, rates[i] + slack);
  }
  weir_driver_close(d);
}

/* ---- Bad arguments ---- */

TEST(bad_arguments) {
  weir_driver *inner = open_ledger(1, 1 << 30), *d, *unwritten = (weir_driver *)1;
  assert_error(INVALID_ARGUMENT, weir_driver_open_fault(NULL, &unwritten));
  assert_error(INVALID_ARGUMENT, weir_driver_open_fault(inner, NULL));
  assert_ptr_equal(unwritten, (weir_driver *)1);
  assert_ok(weir_driver_open_fault(inner, &d));
  weir_driver *const bad[] = {NULL, inner};
  for (int i = 0; i < 2; i++) {
    unsigned long calls = 5, faults = 5;
    assert_error(INVALID_ARGUMENT, weir_fault_nth(bad[i], WEIR_CALL_MemAlloc, 1, 2, 0));
    assert_error(INVALID_ARGUMENT, weir_fault_nth_any(bad[i], 1, 2));
    assert_error(INVALID_ARGUMENT, weir_fault_random(bad[i], 1, 1, 2));
    assert_error(INVALID_ARGUMENT, weir_fault_clear(bad[i]));
    assert_error(INVALID_ARGUMENT, weir_fault_counts(bad[i], WEIR_CALL_MemAlloc, &calls, &faults));
    assert_int_equal(calls + faults, 10);
    assert_non_null(strstr(weir_last_error(), "weir_fault_counts"));
    assert_non_null(strstr(weir_last_error(), i == 0 ? "NULL" : "ledger"));
  }
  assert_error(INVALID_ARGUMENT, weir_fault_nth(d, WEIR_CALL_COUNT, 1, 2, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(d, (weir_driver_call)-1, 1, 2, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth(d, WEIR_CALL_MemAlloc, 1, WEIR_CU_SUCCESS, 0));
  assert_error(INVALID_ARGUMENT, weir_fault_nth_any(d, 1, WEIR_CU_SUCCESS));
  assert_error(INVALID_ARGUMENT, weir_fault_random(d, 1, 1000001, 2));
  assert_error(INVALID_ARGUMENT, weir_fault_random(d, 1, 1, WEIR_CU_SUCCESS));
  assert_error(INVALID_ARGUMENT, weir_fault_counts(d, (weir_driver_call)(WEIR_CALL_COUNT + 1), NULL, NULL));
  assert_ok(weir_fault_counts(d, WEIR_CALL_COUNT, NULL, NULL));
  weir_driver_close(d);
  weir_driver_close(inner);
}

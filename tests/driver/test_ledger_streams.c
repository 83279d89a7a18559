/*
 * Streams, events, copies, fills and kernels of the ledger.
 */
#include "support/ledger.h"

#define GIB ((unsigned long long)1 << 30)

/* ---- Streams and events ---- */

TEST(streams) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_stream s;
  int priority, least, greatest;
  unsigned flags;
  weir_cu_context context, current;
  assert_cu(d->CtxGetStreamPriorityRange(d, &least, &greatest));
  assert_int_equal(least, 0);
  assert_int_equal(greatest, -5);
  assert_cu(d->StreamCreateWithPriority(d, &s, WEIR_CU_STREAM_NON_BLOCKING, -99));
  assert_cu(d->StreamGetPriority(d, s, &priority));
  assert_cu(d->StreamGetFlags(d, s, &flags));
  assert_cu(d->StreamGetCtx(d, s, &context));
  assert_cu(d->CtxGetCurrent(d, &current));
  assert_int_equal(priority, -5);
  assert_int_equal(flags, WEIR_CU_STREAM_NON_BLOCKING);
  assert_ptr_equal(context, current);
  assert_cu_error(INVALID_VALUE, d->StreamCreateWithPriority(d, &s, 2, 0));
  assert_cu(d->StreamQuery(d, s));
  assert_cu(d->StreamSynchronize(d, WEIR_CU_STREAM_PER_THREAD));
  assert_cu(d->StreamQuery(d, WEIR_CU_STREAM_LEGACY));
  assert_cu(d->StreamGetFlags(d, NULL, &flags));
  assert_int_equal(flags, 0);
  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, NULL));
  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, WEIR_CU_STREAM_LEGACY));
  assert_cu(d->StreamDestroy(d, s));
  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, s));
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, s));
  weir_cu_stream again = make_stream(d, 0);
  assert_ptr_not_equal(again, s); /* handles are not reused, although slots are */
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, s));
  weir_driver_close(d);
}

static void count_up(void *data) { ++*(int *)data; }

TEST(the_clock_counts_work) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_event a = make_event(d), b = make_event(d), untimed;
  weir_cu_deviceptr p;
  float ms = -1;
  int calls = 0;
  assert_cu(d->EventCreate(d, &untimed, WEIR_CU_EVENT_DISABLE_TIMING));
  assert_cu(d->MemAlloc(d, &p, 4096));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &ms, a, b));
  assert_cu(d->EventQuery(d, a)); /* not recorded, so nothing to wait for */
  assert_cu(d->EventSynchronize(d, a));
  assert_cu(d->EventRecord(d, a, NULL));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &ms, a, b));
  assert_cu(d->MemsetD8Async(d, p, 0, 100, NULL));
  assert_cu(d->MemcpyAsync(d, p, p + 100, 100, NULL));
  assert_cu(d->LaunchHostFunc(d, NULL, count_up, &calls));
  assert_int_equal(calls, 1); /* complete as soon as it is enqueued */
  assert_cu(d->EventRecord(d, b, NULL));
  assert_cu(d->EventElapsedTime(d, &ms, a, b));
  assert_true(ms == 0.003f);
  assert_cu(d->EventElapsedTime(d, &ms, b, a));
  assert_true(ms == -0.003f);
  assert_cu(d->EventElapsedTime(d, &ms, b, b));
  assert_true(ms == 0.0f);
  assert_cu(d->EventRecord(d, untimed, NULL));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &ms, a, untimed));
  assert_cu_error(INVALID_VALUE, d->LaunchHostFunc(d, NULL, NULL, NULL));
  weir_driver_close(d);
}

TEST(events) {
  weir_driver *d = open_ledger(2, GIB);
  weir_cu_stream s = make_stream(d, 0), other;
  weir_cu_event e = make_event(d), bad;
  weir_cu_context one;
  float ms;
  assert_cu_error(INVALID_VALUE, d->EventCreate(d, &bad, 64));
  assert_cu_error(INVALID_VALUE, d->EventCreate(d, &bad, WEIR_CU_EVENT_INTERPROCESS));
  assert_cu(d->EventCreate(d, &bad, WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING));
  assert_cu(d->EventRecord(d, e, s));
  assert_cu(d->StreamWaitEvent(d, s, e, 0));
  assert_cu_error(INVALID_VALUE, d->StreamWaitEvent(d, s, e, 2));
  assert_cu_error(INVALID_HANDLE, d->StreamWaitEvent(d, s, NULL, 0));
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, NULL, s));

  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxSetCurrent(d, one));
  other = make_stream(d, 0);
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, e, other)); /* of another context */
  assert_cu(d->StreamWaitEvent(d, other, e, 0));                /* which is fine for a wait */
  weir_cu_event there = make_event(d);
  assert_cu(d->EventRecord(d, there, other));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &ms, e, there));
  assert_cu(d->EventDestroy(d, e));
  assert_cu_error(INVALID_HANDLE, d->EventDestroy(d, e));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, e));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, (weir_cu_event)s)); /* a handle of another kind */
  weir_driver_close(d);
}

TEST(copies_and_fills_check_ranges) {
  weir_driver *d = open_ledger(2, GIB);
  static char memory[100];
  weir_cu_deviceptr a, b, here = (uintptr_t)memory;
  void *pinned;
  assert_cu(d->MemAlloc(d, &a, 1000));
  assert_cu(d->MemAlloc(d, &b, 1000));
  assert_cu(d->MemHostAlloc(d, &pinned, 100, 0));
  assert_cu(d->Memcpy(d, a, b, 1000));
  assert_cu(d->Memcpy(d, a + 900, here, 100));
  assert_cu(d->Memcpy(d, here, (uintptr_t)pinned, 100));
  assert_cu(d->Memcpy(d, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, a, b, 1001));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, a + 1, b, 1000));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, a, 0, 10));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, a, UINT64_MAX, 2));
  assert_cu(d->Memcpy(d, a, UINT64_MAX - 9, 10)); /* as far as the ledger knows, memory of the program */
  assert_cu(d->Memcpy(d, a, ((weir_cu_deviceptr)1 << 48) - 10, 10));
  assert_cu_error(INVALID_VALUE, d->Memcpy(d, a, ((weir_cu_deviceptr)1 << 48) - 10,
                                           11)); /* into an address range that only the ledger hands out */
  assert_cu(d->MemFree(d, b));
  assert_cu_error(INVALID_VALUE, d->MemcpyAsync(d, a, b, 10, NULL)); /* freed, and nothing else can be there */

  assert_cu(d->MemsetD8Async(d, a, 1, 1000, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, a, 1, 1001, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD8Async(d, here, 1, 10, NULL)); /* a device cannot fill pageable memory */
  assert_cu(d->MemsetD8Async(d, (uintptr_t)pinned, 1, 100, NULL));
  assert_cu(d->MemsetD32Async(d, a, 1, 250, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD32Async(d, a, 1, 251, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD32Async(d, a + 2, 1, 1, NULL));
  assert_cu_error(INVALID_VALUE, d->MemsetD32Async(d, a, 1, SIZE_MAX, NULL));

  weir_cu_context zero, one;
  assert_cu(d->CtxGetCurrent(d, &zero));
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxSetCurrent(d, one));
  assert_cu(d->MemAlloc(d, &b, 1000));
  assert_cu(d->MemcpyPeerAsync(d, b, one, a, zero, 1000, NULL));
  assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, b, one, a, zero, 1001, NULL));
  assert_cu_error(INVALID_CONTEXT, d->MemcpyPeerAsync(d, b, one, a, NULL, 10, NULL));
  weir_driver_close(d);
}

/* ---- Kernels ---- */

TEST(kernels_are_accepted) {
  weir_driver *d = open_ledger(2, GIB);
  weir_cu_module module;
  weir_cu_function f, g;
  weir_cu_context one;
  assert_cu(d->ModuleLoadData(d, &module, SPIN_PTX));
  assert_cu_error(INVALID_VALUE, d->ModuleLoadData(d, &module, NULL));
  assert_cu(d->ModuleGetFunction(d, &f, module, "weir_spin"));
  assert_cu(d->ModuleGetFunction(d, &g, module, "weir_spin"));
  assert_ptr_equal(f, g);
  assert_cu_error(NOT_SUPPORTED, d->ModuleGetFunction(d, &g, module, "other"));
  assert_cu_error(NOT_FOUND, d->ModuleGetFunction(d, &g, module, "third"));
  weir_cu_function again;
  assert_cu(d->ModuleGetFunction(d, &again, module, "weir_spin"));
  assert_ptr_equal(again, f);
  assert_cu(d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, NULL, params_of_spin(), NULL));
  for (int zero = 0; zero < 6; zero++)
    assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, zero != 0, zero != 1, zero != 2, zero != 3, zero != 4,
                                                   zero != 5, 0, NULL, params_of_spin(), NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 0, 0, NULL, params_of_spin(), NULL));
  assert_cu(d->LaunchKernel(d, f, 1, 1, 1, 32, 32, 1, 0, NULL, params_of_spin(), NULL));
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 32, 32, 2, 0, NULL, params_of_spin(), NULL));
  assert_cu_error(INVALID_VALUE,
                  d->LaunchKernel(d, f, 1, 1, 1, UINT32_MAX, UINT32_MAX, UINT32_MAX, 0, NULL, params_of_spin(), NULL));
  void *extra[1] = {NULL};
  assert_cu_error(INVALID_VALUE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, NULL, params_of_spin(), extra));
  assert_cu(d->DevicePrimaryCtxRetain(d, &one, 1));
  assert_cu(d->CtxSetCurrent(d, one));
  assert_cu_error(INVALID_HANDLE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, NULL, params_of_spin(),
                                                  NULL)); /* a stream of another device */
  assert_cu(d->ModuleUnload(d, module));
  assert_cu_error(INVALID_HANDLE, d->ModuleUnload(d, module));
  assert_cu_error(INVALID_HANDLE, d->LaunchKernel(d, f, 1, 1, 1, 1, 1, 1, 0, NULL, params_of_spin(), NULL));
  assert_cu_error(INVALID_HANDLE, d->ModuleGetFunction(d, &f, module, "weir_spin"));
  weir_driver_close(d);
}

TEST(sharing_is_not_supported) {
  weir_driver *d = open_ledger(1, GIB);
  weir_cu_ipc_mem_handle memory = {{0}};
  weir_cu_ipc_event_handle event = {{0}};
  weir_cu_deviceptr p;
  weir_cu_event e = make_event(d);
  assert_cu(d->MemAlloc(d, &p, 10));
  assert_cu_error(NOT_SUPPORTED, d->IpcGetMemHandle(d, &memory, p));
  assert_cu_error(NOT_SUPPORTED, d->IpcOpenMemHandle(d, &p, memory, 1));
  assert_cu_error(NOT_SUPPORTED, d->IpcCloseMemHandle(d, p));
  assert_cu_error(NOT_SUPPORTED, d->IpcGetEventHandle(d, &event, e));
  assert_cu_error(NOT_SUPPORTED, d->IpcOpenEventHandle(d, &e, event));
  assert_cu(d->ProfilerStart(d));
  assert_cu(d->ProfilerStop(d));
  weir_driver_close(d);
}

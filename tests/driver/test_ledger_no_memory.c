/*
 * The ledger without host memory: each of its allocations fails once. The affected call reports it, and the state is
 * unchanged.
 *
 * The test replaces malloc, as sanitizers do, so it is waived with them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/ledger.h"
#include "support/no_memory.h"

#ifndef NO_MEMORY_WAIVED

static weir_cu_deviceptr place_far(void *context, weir_driver_call call, uint64_t bytes) {
  (void)bytes;
  weir_cu_deviceptr *next = context;
  return call == WEIR_CALL_MemAlloc && *next != 0 ? (*next += 64 * PAGE) : 0;
}

/* Makes each call that needs host memory. If it fails, it must succeed when repeated, without a leak. */
#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_cu_result result_ = (call);                                                                                   \
    if (did_fail) {                                                                                                    \
      assert_int_equal(result_, WEIR_CU_OUT_OF_MEMORY);                                                                \
      did_fail = false;                                                                                                \
      result_ = (call);                                                                                                \
    }                                                                                                                  \
    assert_int_equal(result_, WEIR_CU_SUCCESS);                                                                        \
  } while (0)

static int objects; /* user objects that have not ended */
static void end_object(void *count) { --*(int *)count; }

static void script(weir_driver *d, weir_cu_deviceptr *next) {
  enum { MANY = 70 }; /* more than one chunk of handles */
  weir_cu_deviceptr plain[MANY], placed, va, pooled, asynchronous;
  weir_cu_mem_handle handles[MANY];
  weir_cu_mem_prop prop = memory_of(0);
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = prop.location};
  weir_cu_stream s, other;
  weir_cu_event fork, join;
  weir_cu_mempool pool;
  weir_cu_module module;
  weir_cu_function function;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  void *host;
  size_t before = free_bytes(d);

  for (int i = 0; i < MANY; i++)
    TRY(d->MemAlloc(d, &plain[i], 1 + (size_t)i % 3 * PAGE));
  *next = 0x7f0000000000;
  for (int i = 0; i < 3; i++) {
    TRY(d->MemAlloc(d, &placed, PAGE));
    if (i < 2)
      assert_cu(d->MemFree(d, placed));
  }
  *next = 0;
  TRY(d->MemHostAlloc(d, &host, 100, 0));
  TRY(d->MemHostRegister(d, &host, sizeof host, 0));
  TRY(d->MemAllocAsync(d, &asynchronous, 100, NULL));
  TRY(d->MemPoolCreate(d, &pool, &props));
  TRY(d->MemAllocFromPoolAsync(d, &pooled, 100, pool, NULL));
  TRY(d->MemAddressReserve(d, &va, 1100 * PAGE, 0, 0, 0));
  for (int i = 0; i < MANY; i++)
    TRY(d->MemCreate(d, &handles[i], PAGE, &prop, 0));
  for (int i = 0; i < MANY; i++)
    TRY(d->MemMap(d, va + (weir_cu_deviceptr)i * 15 * PAGE, PAGE, 0, handles[i], 0));
  TRY(d->ModuleLoadData(d, &module, SPIN_PTX));
  TRY(d->ModuleGetFunction(d, &function, module, "weir_spin"));
  TRY(d->StreamCreateWithPriority(d, &s, WEIR_CU_STREAM_NON_BLOCKING, 0));
  TRY(d->StreamCreateWithPriority(d, &other, WEIR_CU_STREAM_NON_BLOCKING, 0));
  TRY(d->EventCreate(d, &fork, 0));
  TRY(d->EventCreate(d, &join, 0));
  TRY(d->StreamBeginCapture(d, s, WEIR_CU_CAPTURE_RELAXED));
  for (int i = 0; i < 3; i++) {
    TRY(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, s, params_of_spin(), NULL));
    TRY(d->EventRecord(d, fork, s));
    TRY(d->StreamWaitEvent(d, other, fork, 0));
    TRY(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, other, params_of_spin(), NULL));
    TRY(d->EventRecord(d, join, other));
    TRY(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, s, params_of_spin(), NULL));
    TRY(d->StreamWaitEvent(d, s, join, 0));
  }
  size_t count = 0;
  TRY(d->StreamEndCapture(d, s, &graph));
  assert_cu(d->GraphGetNodes(d, graph, NULL, &count));
  assert_int_equal(count, 9);
  for (int i = 0; i < 3; i++) {
    weir_cu_user_object object;
    TRY(d->UserObjectCreate(d, &object, &objects, end_object, 1, WEIR_CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    objects++;
    TRY(d->GraphRetainUserObject(d, graph, object, 1, WEIR_CU_GRAPH_USER_OBJECT_MOVE));
  }
  TRY(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphDestroy(d, graph));
  assert_int_equal(objects, 3);
  assert_cu(d->GraphLaunch(d, exec, s));

  counting = false; /* releasing needs no memory */
  for (int i = 0; i < MANY; i++) {
    assert_cu(d->MemFree(d, plain[i]));
    assert_cu(d->MemUnmap(d, va + (weir_cu_deviceptr)i * 15 * PAGE, PAGE));
    assert_cu(d->MemRelease(d, handles[i]));
  }
  assert_cu(d->MemFree(d, placed));
  assert_cu(d->MemFreeAsync(d, asynchronous, NULL));
  assert_cu(d->MemFree(d, pooled));
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->MemAddressFree(d, va, 1100 * PAGE));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemHostUnregister(d, &host));
  assert_int_equal(free_bytes(d), before);
}

static void run(unsigned long nth) {
  weir_cu_deviceptr next = 0;
  weir_ledger_options options;
  weir_ledger_options_init(&options);
  options.place = place_far;
  options.place_context = &next;
  weir_driver *d = NULL;
  weir_cu_context context;
  long before = live;
  made = 0;
  fail_at = nth;
  counting = true;
  weir_status status = weir_driver_open_ledger(&options, &d);
  if (did_fail) {
    assert_int_equal(status, WEIR_ERROR_HOST_OUT_OF_MEMORY);
    assert_null(d);
    did_fail = false;
    status = weir_driver_open_ledger(&options, &d);
  }
  assert_int_equal(status, WEIR_OK);
  assert_cu(d->Init(d, 0));
  TRY(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->CtxSetCurrent(d, context));
  script(d, &next);
  weir_driver_close(d);
  assert_int_equal(live, before);
  assert_int_equal(objects, 0);
}

FIXTURE(.begin = make_room_for_errors)

TEST(each_allocation_fails_once) {
  run(0);
  unsigned long all = made;
  assert_true(all > 50);
  for (unsigned long nth = 1; nth <= all; nth++) {
    run(nth);
    assert_false(did_fail); /* the failing call did not report success */
  }
}

#endif

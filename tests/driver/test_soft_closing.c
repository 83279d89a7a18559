/*
 * Closing a busy device: it does not wait for time to pass, completes the remaining work, and leaks nothing.
 */
#include <stdatomic.h>
#include <string.h>

#include "support/soft.h"

enum { MIB = 1 << 20 };

/* Far longer than closing takes, far shorter than the time it must not wait for. */
static const double patience_ms = 30000;

static void close_soon(void) {
  double before = soft_milliseconds();
  weir_driver_close(d);
  d = NULL;
  assert_true(soft_milliseconds() - before < patience_ms);
}

static void count(void *data) { atomic_fetch_add((atomic_int *)data, 1); }

FIXTURE(.teardown = soft_teardown)

TEST(with_spins_and_slow_copies) {
  atomic_int done = 0;
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock_khz = 1000;
  options.copy_bytes_per_second = 1;
  soft_open_with(&options);
  weir_cu_stream spins = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), copies = soft_stream(WEIR_CU_STREAM_NON_BLOCKING),
                 waits = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = soft_alloc(10000);
  for (int i = 0; i < 10; i++) {
    soft_spin(spins, 600000000); /* ten minutes each */
    assert_cu(d->MemcpyAsync(d, p + 5000, p, 5000, copies));
    assert_cu(d->LaunchHostFunc(d, spins, count, &done));
    assert_cu(d->LaunchHostFunc(d, copies, count, &done));
  }
  assert_cu(d->EventRecord(d, e, spins));
  assert_cu(d->StreamWaitEvent(d, waits, e, 0));
  assert_cu(d->LaunchHostFunc(d, waits, count, &done));
  soft_spin(NULL, 600000000);
  close_soon();
  assert_int_equal(done, 21); /* enqueued work ran, but not for that long */
}

TEST(with_everything_left_open) {
  for (int clock = WEIR_SOFT_THREADS; clock <= WEIR_SOFT_STEPPED; clock++) {
    atomic_int done = 0;
    soft_open((weir_soft_clock)clock, 2, 64 * MIB);
    for (int i = 0; i < 2; i++) {
      soft_use(i);
      weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), blocking = soft_stream(WEIR_CU_STREAM_DEFAULT),
                     capturing = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), joined = soft_stream(0);
      weir_cu_event e = soft_event(), shared;
      weir_cu_graph graph;
      weir_cu_graph_exec exec;
      weir_cu_deviceptr p = soft_alloc(5 * MIB), q, va;
      void *host;
      assert_cu(d->MemHostAlloc(d, &host, 100, 0));
      static char registered[2][100];
      assert_cu(d->MemHostRegister(d, registered[i], 100, 0));
      assert_cu(d->MemAllocAsync(d, &q, 100, s));
      assert_cu(d->MemFreeAsync(d, q, s));
      assert_cu(d->MemAllocAsync(d, &q, 100, s));
      assert_cu(d->MemsetD8Async(d, q, 1, 100, s));
      assert_cu(d->EventRecord(d, e, s));
      assert_cu(d->EventCreate(d, &shared, WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING));
      assert_cu(d->EventRecord(d, shared, s));
      assert_cu(d->StreamWaitEvent(d, blocking, e, 0));
      assert_cu(d->MemcpyAsync(d, p, (uintptr_t)host, 100, blocking));
      assert_cu(d->MemsetD8Async(d, p, 1, 100, NULL));
      assert_cu(d->MemsetD8Async(d, p, 1, 100, WEIR_CU_STREAM_PER_THREAD));
      assert_cu(d->LaunchHostFunc(d, blocking, count, &done));

      assert_cu(d->StreamBeginCapture(d, capturing, WEIR_CU_CAPTURE_RELAXED));
      assert_cu(d->MemAllocAsync(d, &q, 3 * MIB, capturing));
      assert_cu(d->MemsetD8Async(d, q, 1, 100, capturing));
      assert_cu(d->StreamEndCapture(d, capturing, &graph));
      assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
      assert_cu(d->GraphLaunch(d, exec, s));
      assert_cu(d->StreamBeginCapture(d, capturing, WEIR_CU_CAPTURE_RELAXED)); /* never ended */
      assert_cu(d->MemAllocAsync(d, &q, 3 * MIB, capturing));
      assert_cu(d->EventRecord(d, e, capturing));
      assert_cu(d->StreamWaitEvent(d, joined, e, 0));
      assert_cu(d->LaunchHostFunc(d, joined, count, &done)); /* a node, never launched */

      weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, i}};
      weir_cu_mem_handle plain, shareable;
      assert_cu(d->MemAddressReserve(d, &va, 8 * MIB, 0, 0, 0));
      assert_cu(d->MemCreate(d, &plain, 2 * MIB, &prop, 0));
      prop.handle_types = WEIR_CU_HANDLE_POSIX_FD;
      assert_cu(d->MemCreate(d, &shareable, 2 * MIB, &prop, 0));
      assert_cu(d->MemMap(d, va, 2 * MIB, 0, plain, 0));
      assert_cu(d->MemMap(d, va + 4 * MIB, 2 * MIB, 0, shareable, 0));
      assert_cu(d->MemRelease(d, plain));
      weir_cu_mempool pool;
      assert_cu(d->MemPoolCreate(
          d, &pool,
          &(weir_cu_mempool_props){.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, i}}));
      assert_cu(d->MemAllocFromPoolAsync(d, &q, 100, pool, s));
      assert_cu(d->MemPoolDestroy(d, pool));
      weir_cu_module module;
      assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
      assert_cu(d->CtxEnablePeerAccess(d, contexts[1 - i], 0));
      assert_cu(d->StreamDestroy(d, s));
    }
    close_soon();
    assert_int_equal(done, 2);
  }
}

/* Work of one device on memory of another device, which is closed first. */
TEST(with_work_across_devices) {
  for (int clock = WEIR_SOFT_THREADS; clock <= WEIR_SOFT_STEPPED; clock++) {
    soft_open((weir_soft_clock)clock, 3, 64 * MIB);
    weir_cu_deviceptr p[3];
    weir_cu_stream s[3];
    for (int i = 0; i < 3; i++) {
      soft_use(i);
      p[i] = soft_alloc(10 * MIB);
      s[i] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
    }
    for (int k = 0; k < 20; k++)
      for (int i = 0; i < 3; i++)
        assert_cu(d->MemcpyAsync(d, p[(i + 1) % 3] + (unsigned)i * MIB, p[(i + 2) % 3] + (unsigned)i * MIB, MIB, s[i]));
    close_soon();
  }
}

TEST(at_once) {
  weir_driver *driver;
  for (int i = 0; i < 100; i++) {
    assert_ok(weir_driver_open_soft(NULL, &driver));
    if (i % 2)
      assert_cu(driver->Init(driver, 0));
    weir_driver_close(driver);
  }
  weir_driver_close(NULL);
}

/* Two software devices in one process are independent. */
TEST(one_of_two) {
  weir_driver *other;
  weir_cu_context context;
  weir_cu_stream stream;
  weir_cu_deviceptr p;
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  assert_ok(weir_driver_open_soft(NULL, &other));
  assert_cu(other->Init(other, 0));
  assert_cu(other->DevicePrimaryCtxRetain(other, &context, 0));
  assert_cu_error(INVALID_CONTEXT, other->MemAlloc(other, &p, 100)); /* each has its own current context */
  assert_cu(other->CtxSetCurrent(other, context));
  assert_cu(other->StreamCreateWithPriority(other, &stream, 0, 0));
  assert_cu(other->MemAlloc(other, &p, 100));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p));
  weir_driver_close(other);
  p = soft_alloc(100);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, NULL));
  assert_cu(d->MemFree(d, p));
  soft_close();
}

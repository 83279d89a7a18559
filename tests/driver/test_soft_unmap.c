/*
 * The software device reports memory that is unmapped while work in a stream uses it. On a GPU that work would fault.
 */
#include <sched.h>
#include <stdatomic.h>

#include "support/runtime.h"
#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

static atomic_bool has_begun, may_end; /* the kernel */
static weir_cu_mem_handle handle;
static weir_cu_deviceptr va; /* two granules; the memory is mapped at the first */

static void map(void) {
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, va, G, &access, 1));
}

static void open_mapped(weir_soft_clock clock) {
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  soft_open(clock, 2, 64 * MIB);
  assert_cu(d->MemAddressReserve(d, &va, 2 * G, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0));
  map();
  collect_messages();
  atomic_store(&may_end, true);
}

/* Not soft_close, which would fail because of the reported unmaps. */
static void close_reported(void) {
  soft_step_all();
  weir_driver_close(d);
  d = NULL;
}

/* Unmaps the memory, and maps it again so that the work can run. */
static void expect_reports(unsigned long count) {
  assert_cu(d->MemUnmap(d, va, G));
  assert_int_equal(soft_census().unmaps_in_use, count);
  assert_int_equal(messages_with(WEIR_LOG_ERROR, "still uses the memory"), count);
  map();
}

static weir_cu_result touch(const weir_soft_launch *launch) {
  atomic_store(&has_begun, true);
  while (!atomic_load(&may_end))
    sched_yield();
  **(char **)launch->params[1] = 1;
  return WEIR_CU_SUCCESS;
}

static void launch_touch(weir_cu_deviceptr at, weir_cu_stream stream) {
  static const size_t bytes[] = {4, sizeof at};
  assert_ok(weir_soft_register_kernel(d, "touch", touch, 2, bytes));
  weir_cu_module module;
  weir_cu_function function;
  unsigned number = 7;
  void *params[] = {&number, &at};
  assert_cu(d->ModuleLoadData(d, &module, ".version 6.0\n.entry touch()\n"));
  assert_cu(d->ModuleGetFunction(d, &function, module, "touch"));
  assert_cu(d->LaunchKernel(d, function, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

FIXTURE(.teardown = soft_teardown)

TEST(memory_in_use) {
  open_mapped(WEIR_SOFT_STEPPED);
  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr other = soft_alloc(G);
  unsigned long reports = 0;
  expect_reports(reports);
  assert_cu(d->MemsetD8Async(d, va + G - 1, 1, 1, stream));
  expect_reports(++reports);
  soft_step_all();
  expect_reports(reports); /* the work has completed */
  assert_cu(d->MemcpyAsync(d, va, other, 100, stream));
  expect_reports(++reports);
  soft_step_all();
  assert_cu(d->MemcpyAsync(d, other, va + 5000, 100, stream));
  expect_reports(++reports);
  soft_step_all();
  launch_touch(va + 4096, stream);
  expect_reports(++reports);
  expect_reports(++reports);
  close_reported();
}

/* Work on other memory, and work that is not in a stream. */
TEST(memory_not_in_use) {
  open_mapped(WEIR_SOFT_STEPPED);
  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr other = soft_alloc(G);
  assert_cu(d->MemsetD8Async(d, other, 1, G, stream));
  launch_touch(other, stream);
  soft_spin(stream, va + 1); /* a number of cycles that looks like an address */
  expect_reports(0);
  weir_cu_graph graph;
  soft_step_all();
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, va, 1, 1, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  expect_reports(0);
  weir_cu_graph_exec exec;
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphLaunch(d, exec, stream));
  expect_reports(1);
  close_reported();
}

TEST(running_work) {
  open_mapped(WEIR_SOFT_THREADS);
  atomic_store(&has_begun, false);
  atomic_store(&may_end, false);
  launch_touch(va, soft_stream(WEIR_CU_STREAM_NON_BLOCKING));
  while (!atomic_load(&has_begun))
    sched_yield();
  expect_reports(1);
  atomic_store(&may_end, true);
  assert_cu(d->CtxSynchronize(d));
  expect_reports(1);
  weir_driver_close(d);
  d = NULL;
}

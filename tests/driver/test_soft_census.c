/*
 * The census: it counts live objects, and is empty after a cleanup.
 */
#include <string.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

/* Checks that the census equals `expected`. */
static void check(const weir_soft_census *expected) {
  weir_soft_census census = soft_census();
  assert_int_equal(census.contexts, expected->contexts);
  assert_int_equal(census.streams, expected->streams);
  assert_int_equal(census.events, expected->events);
  assert_int_equal(census.graphs, expected->graphs);
  assert_int_equal(census.graph_execs, expected->graph_execs);
  assert_int_equal(census.modules, expected->modules);
  assert_int_equal(census.pools, expected->pools);
  assert_int_equal(census.allocations, expected->allocations);
  assert_int_equal(census.host_allocations, expected->host_allocations);
  assert_int_equal(census.registrations, expected->registrations);
  assert_int_equal(census.reservations, expected->reservations);
  assert_int_equal(census.mappings, expected->mappings);
  assert_int_equal(census.handles, expected->handles);
  assert_int_equal(census.ipc_mappings, expected->ipc_mappings);
  assert_int_equal(census.device_bytes, expected->device_bytes);
}

static const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};

FIXTURE(.teardown = soft_teardown)

TEST(each_kind_is_counted) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_soft_census e = {.contexts = 2};
  check(&e);

  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  e.streams++;
  check(&e);
  assert_cu(d->MemsetD8Async(d, 0, 0, 0,
                             WEIR_CU_STREAM_PER_THREAD)); /* belongs to the thread; the program does not destroy it */
  check(&e);
  weir_cu_event event = soft_event(), shared;
  e.events++;
  check(&e);
  assert_cu(d->EventCreate(d, &shared, WEIR_CU_EVENT_INTERPROCESS | WEIR_CU_EVENT_DISABLE_TIMING));
  e.events++;
  check(&e);

  weir_cu_deviceptr p = soft_alloc(1), chunk, of_graph, va;
  e.allocations++;
  e.device_bytes += 4096;
  check(&e);
  assert_cu(d->MemAllocAsync(d, &chunk, 1, stream)); /* the default pool is not counted */
  e.allocations++;
  e.device_bytes += G;
  check(&e);
  weir_cu_mempool pool;
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 1}};
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  e.pools++;
  check(&e);
  void *host;
  static char registered[100];
  assert_cu(d->MemHostAlloc(d, &host, 100, 0));
  e.host_allocations++;
  check(&e);
  assert_cu(d->MemHostRegister(d, registered, 100, 0));
  e.registrations++;
  check(&e);

  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  e.graphs++; /* from the start of the capture */
  check(&e);
  assert_cu(d->MemAllocAsync(d, &of_graph, G, stream));
  e.allocations++;
  e.device_bytes += G;
  check(&e);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  check(&e);
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  e.graph_execs++;
  check(&e);

  weir_cu_module module;
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  e.modules++;
  check(&e);
  weir_cu_function function;
  assert_cu(d->ModuleGetFunction(d, &function, module, "weir_spin")); /* belongs to the module */
  check(&e);

  weir_cu_mem_handle handle;
  assert_cu(d->MemAddressReserve(d, &va, 4 * G, 0, 0, 0));
  e.reservations++;
  check(&e);
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0));
  e.handles++;
  e.device_bytes += G;
  check(&e);
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
  assert_cu(d->MemMap(d, va + G, G, 0, handle, 0));
  e.mappings += 2;
  check(&e);

  /* And back. */
  assert_cu(d->MemUnmap(d, va, G));
  e.mappings--;
  check(&e);
  assert_cu(d->MemRelease(d, handle));
  e.handles--;
  check(&e);
  assert_cu(d->MemUnmap(d, va + G, G));
  e.mappings--;
  e.device_bytes -= G;
  check(&e);
  assert_cu(d->MemAddressFree(d, va, 4 * G));
  e.reservations--;
  check(&e);
  assert_cu(d->ModuleUnload(d, module));
  e.modules--;
  check(&e);
  assert_cu(d->GraphDestroy(d, graph));
  e.graphs--;
  check(&e);
  assert_cu(d->GraphExecDestroy(d, exec)); /* the last reference to the memory of the graph */
  e.graph_execs--;
  e.allocations--;
  e.device_bytes -= G;
  check(&e);
  assert_cu(d->MemHostUnregister(d, registered));
  e.registrations--;
  check(&e);
  assert_cu(d->MemFreeHost(d, host));
  e.host_allocations--;
  check(&e);
  assert_cu(d->MemPoolDestroy(d, pool));
  e.pools--;
  check(&e);
  assert_cu(d->MemFreeAsync(d, chunk, stream));
  check(&e); /* the pool keeps it */
  assert_cu(d->StreamSynchronize(d, stream));
  e.allocations--;
  e.device_bytes -= G;
  check(&e);
  assert_cu(d->MemFree(d, p));
  e.allocations--;
  e.device_bytes -= 4096;
  check(&e);
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->EventDestroy(d, shared));
  e.events -= 2;
  check(&e);
  assert_cu(d->StreamDestroy(d, stream));
  e.streams--;
  check(&e);
  soft_close(); /* checks that the rest is zero */
}

/* Objects that are destroyed with a context, and those that are not. */
TEST(objects_destroyed_with_the_context) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event event = soft_event();
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_module module;
  weir_cu_mempool pool;
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_deviceptr p = soft_alloc(100), chunk, va;
  void *host;
  static char registered[100];
  assert_cu(d->MemAllocAsync(d, &chunk, 100, stream));
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu(d->MemAllocFromPoolAsync(d, &chunk, 100, pool, stream));
  assert_cu(d->MemHostAlloc(d, &host, 100, 0));
  assert_cu(d->MemHostRegister(d, registered, 100, 0));
  assert_cu(d->MemsetD8Async(d, p, 1, 100, stream));
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, p, 1, 100, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED)); /* and never ended */
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  weir_cu_mem_handle handle;
  assert_cu(d->MemAddressReserve(d, &va, G, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0));
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  /* Virtual memory belongs to the device. */
  check(&(weir_soft_census){.reservations = 1, .handles = 1, .mappings = 1, .device_bytes = G});
  assert_cu(d->MemUnmap(d, va, G));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, va, G));
  check(&(weir_soft_census){.contexts = 0});
  assert_cu(d->DevicePrimaryCtxRetain(d, &ctx, 0));
  check(&(weir_soft_census){.contexts = 1});
  soft_close();
}

/* Querying the default pool of a device without a context creates nothing that the program must release. */
TEST(default_pools_are_not_counted) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  weir_cu_mempool pool;
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->DeviceGetMemPool(d, &pool, 1));
  check(&(weir_soft_census){.contexts = 1});
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[1], 1));
  soft_close();
}

TEST(invalid_calls) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_soft_census census;
  memset(&census, 0x5a, sizeof census);
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_soft_get_census(d, NULL));
  census.size = 0;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_soft_get_census(d, &census));
  assert_non_null(strstr(weir_last_error(), "weir_soft_get_census"));
  census.size = sizeof census;
  assert_status(WEIR_ERROR_INVALID_ARGUMENT, weir_soft_get_census(NULL, &census));
  assert_int_equal(census.contexts, 0x5a5a5a5a5a5a5a5a);
  /* A program with an older struct gets only the fields it has. */
  census.size = offsetof(weir_soft_census, streams);
  assert_ok(weir_soft_get_census(d, &census));
  assert_int_equal(census.size, offsetof(weir_soft_census, streams));
  assert_int_equal(census.contexts, 1);
  assert_int_equal(census.streams, 0x5a5a5a5a5a5a5a5a);
  soft_close();
}

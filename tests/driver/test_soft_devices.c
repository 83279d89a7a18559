/*
 * Several devices: separate memory, contexts and streams; peers; access checks by device; work of one device in graphs
 * and pools of another.
 */
#include <stdio.h>
#include <string.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

static unsigned char byte_at(weir_cu_deviceptr pointer) { return *(volatile unsigned char *)(uintptr_t)pointer; }

static weir_cu_stream stream_of(int device) {
  soft_use(device);
  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  soft_use(0);
  return stream;
}

static weir_cu_deviceptr memory_of(int device, size_t bytes) {
  soft_use(device);
  weir_cu_deviceptr pointer = soft_alloc(bytes);
  soft_use(0);
  return pointer;
}

/* ---- Properties ---- */

FIXTURE(.teardown = soft_teardown)

TEST(as_many_as_allowed) {
  soft_open(WEIR_SOFT_STEPPED, WEIR_SOFT_MAX_DEVICES, 4 * MIB);
  weir_cu_uuid uuids[WEIR_SOFT_MAX_DEVICES];
  char ids[WEIR_SOFT_MAX_DEVICES][16];
  for (int i = 0; i < WEIR_SOFT_MAX_DEVICES; i++) {
    weir_cu_device device = -1;
    int bus;
    assert_cu(d->DeviceGet(d, &device, i));
    assert_int_equal(device, i);
    assert_cu(d->DeviceGetUuid(d, &uuids[i], i));
    assert_cu(d->DeviceGetPCIBusId(d, ids[i], sizeof ids[i], i));
    assert_cu(d->DeviceGetAttribute(d, &bus, WEIR_CU_ATTR_PCI_BUS_ID, i));
    for (int k = 0; k < i; k++) {
      assert_memory_not_equal(&uuids[i], &uuids[k], 4); /* the first bytes differ */
      assert_string_not_equal(ids[i], ids[k]);
    }
    weir_cu_deviceptr p = memory_of(i, 4 * MIB);
    int ordinal = -1;
    assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, p));
    assert_int_equal(ordinal, i);
    soft_use(i);
    assert_cu(d->MemsetD8Async(d, p, (unsigned char)i, 100, NULL));
    assert_cu(d->CtxSynchronize(d));
    assert_int_equal(byte_at(p + 99), i);
    assert_cu(d->MemFree(d, p));
  }
  assert_cu_error(INVALID_DEVICE, d->DeviceGet(d, &(weir_cu_device){0}, WEIR_SOFT_MAX_DEVICES));
  soft_close();
}

TEST(capacity_is_for_each) {
  soft_open(WEIR_SOFT_STEPPED, 2, 8 * MIB);
  weir_cu_deviceptr p = memory_of(0, 8 * MIB), q = memory_of(1, 6 * MIB), none;
  assert_cu_error(OUT_OF_MEMORY, d->MemAlloc(d, &none, 1));
  weir_cu_mem_handle handle;
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 1}};
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0)); /* on the device it names, not on the current one */
  assert_cu_error(OUT_OF_MEMORY, d->MemCreate(d, &handle, G, &prop, 0));
  prop.location.id = 2;
  assert_cu_error(INVALID_DEVICE, d->MemCreate(d, &handle, G, &prop, 0));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q)); /* of a device other than the current one */
  soft_close();
}

/* ---- Peers ---- */

TEST(peers) {
  soft_open(WEIR_SOFT_STEPPED, 3, 64 * MIB);
  int can;
  for (int i = 0; i < 3; i++)
    for (int k = 0; k < 3; k++) {
      assert_cu(d->DeviceCanAccessPeer(d, &can, i, k));
      assert_int_equal(can, i != k);
    }
  assert_cu_error(INVALID_DEVICE, d->DeviceCanAccessPeer(d, &can, 0, 3));
  assert_cu_error(PEER_ACCESS_UNSUPPORTED, d->CtxEnablePeerAccess(d, contexts[0], 0));
  assert_cu_error(INVALID_VALUE, d->CtxEnablePeerAccess(d, contexts[1], 1));
  assert_cu_error(INVALID_CONTEXT, d->CtxEnablePeerAccess(d, (weir_cu_context)0x1230, 0));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, contexts[1]));
  assert_cu(d->CtxEnablePeerAccess(d, contexts[1], 0));
  assert_cu_error(PEER_ACCESS_ALREADY_ENABLED, d->CtxEnablePeerAccess(d, contexts[1], 0));
  assert_cu(d->CtxEnablePeerAccess(d, contexts[2], 0));
  soft_use(1);
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, contexts[0])); /* not symmetric */
  soft_use(0);
  assert_cu(d->CtxDisablePeerAccess(d, contexts[1]));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, contexts[1]));

  /* Peer access ends with either context. */
  assert_cu(d->CtxEnablePeerAccess(d, contexts[1], 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu_error(INVALID_CONTEXT, d->CtxDisablePeerAccess(d, contexts[1]));
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[1], 1));
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, contexts[1]));
  assert_cu(d->CtxEnablePeerAccess(d, contexts[1], 0));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[0], 0));
  soft_use(0);
  assert_cu_error(PEER_ACCESS_NOT_ENABLED, d->CtxDisablePeerAccess(d, contexts[2]));
  soft_close();
}

/* ---- Copies ---- */

TEST(copies_between_devices) {
  for (int clock = WEIR_SOFT_THREADS; clock <= WEIR_SOFT_STEPPED; clock++) {
    soft_open((weir_soft_clock)clock, 2, 64 * MIB);
    weir_cu_deviceptr p = memory_of(0, 100), q = memory_of(1, 100);
    weir_cu_stream a = stream_of(0), b = stream_of(1);
    weir_cu_event e = soft_event();
    assert_cu(d->MemsetD8Async(d, p, 1, 100, a));
    assert_cu(d->MemcpyPeerAsync(d, q, contexts[1], p, contexts[0], 50, a));
    assert_cu(d->EventRecord(d, e, a));
    assert_cu(d->StreamWaitEvent(d, b, e, 0)); /* across devices */
    assert_cu(d->MemcpyAsync(d, q + 50, p, 49, b));
    assert_cu(d->StreamSynchronize(d, b));
    assert_int_equal(byte_at(q), 1);
    assert_int_equal(byte_at(q + 98), 1);
    assert_int_equal(byte_at(q + 99), 0);
    assert_cu(d->Memcpy(d, p, q + 99, 1));
    assert_int_equal(byte_at(p), 0);

    assert_cu_error(INVALID_CONTEXT, d->MemcpyPeerAsync(d, q, contexts[1], p, NULL, 50, a));
    assert_cu_error(INVALID_CONTEXT, d->MemcpyPeerAsync(d, q, (weir_cu_context)a, p, contexts[0], 50, a));
    assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, q, contexts[1], p, contexts[0], 101, a));
    assert_cu_error(INVALID_VALUE, d->MemcpyPeerAsync(d, q, contexts[1], 0x1230, contexts[0], 10, a));
    assert_cu(d->MemcpyPeerAsync(d, 0, contexts[1], 0, contexts[0], 0, a));
    assert_cu(d->MemFree(d, p));
    assert_cu(d->MemFree(d, q));
    soft_close();
  }
}

/* Mapped memory is accessible to the devices that have access. */
TEST(access_is_checked_by_device) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_cu_deviceptr va, p = memory_of(0, G);
  weir_cu_mem_handle handle;
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_stream s[] = {stream_of(0), stream_of(1)};
  assert_cu(d->MemAddressReserve(d, &va, 4 * G, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0));
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
  assert_cu(d->MemMap(d, va + G, G, 0, handle, 0));
  static const struct {
    int flags[2]; /* of each device */
  } cases[] = {
      {{WEIR_CU_ACCESS_NONE, WEIR_CU_ACCESS_NONE}},      {{WEIR_CU_ACCESS_READWRITE, WEIR_CU_ACCESS_NONE}},
      {{WEIR_CU_ACCESS_NONE, WEIR_CU_ACCESS_READ}},      {{WEIR_CU_ACCESS_READ, WEIR_CU_ACCESS_READWRITE}},
      {{WEIR_CU_ACCESS_READWRITE, WEIR_CU_ACCESS_READ}}, {{WEIR_CU_ACCESS_READWRITE, WEIR_CU_ACCESS_READWRITE}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weir_cu_mem_access access[2];
    for (int k = 0; k < 2; k++)
      access[k] = (weir_cu_mem_access){{WEIR_CU_LOCATION_DEVICE, k}, cases[i].flags[k]};
    assert_cu(d->MemSetAccess(d, va, 2 * G, access, 2));
    for (int k = 0; k < 2; k++) {
      int read = cases[i].flags[k] & WEIR_CU_ACCESS_READ ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
      int write = cases[i].flags[k] == WEIR_CU_ACCESS_READWRITE ? WEIR_CU_SUCCESS : WEIR_CU_INVALID_VALUE;
      assert_cu_result(read, d->MemcpyAsync(d, p, va, G, s[k]));
      assert_cu_result(read, d->MemcpyAsync(d, p, va + G - 100, 200, s[k])); /* across two mappings */
      assert_cu_result(write, d->MemcpyAsync(d, va, p, G, s[k]));
      assert_cu_result(write, d->MemsetD8Async(d, va + G - 1, 1, 2, s[k]));
      assert_cu_result(write, d->MemsetD32Async(d, va, 1, 2, s[k]));
      soft_use(k);
      assert_cu_result(read, d->Memcpy(d, p, va, 1));
      /* A peer copy names the device of each side, whatever stream it is on. */
      assert_cu_result(read, d->MemcpyPeerAsync(d, p, contexts[0], va, contexts[k], 100, s[1 - k]));
      assert_cu_result(write, d->MemcpyPeerAsync(d, va, contexts[k], p, contexts[0], 100, s[1 - k]));
      soft_use(0);
    }
    soft_step_all();
  }
  /* Device 1 has no access to half of it, and no device to the rest of the reservation. */
  weir_cu_mem_access none = {{WEIR_CU_LOCATION_DEVICE, 1}, WEIR_CU_ACCESS_NONE};
  assert_cu(d->MemSetAccess(d, va + G, G, &none, 1));
  assert_cu(d->MemcpyAsync(d, p, va, G, s[1]));
  assert_cu_error(INVALID_VALUE, d->MemcpyAsync(d, p, va + 100, G, s[1]));
  assert_cu_error(INVALID_VALUE, d->MemcpyAsync(d, p, va + 100, 2 * G, s[0]));
  soft_step_all();
  assert_cu(d->MemUnmap(d, va, 2 * G));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, va, 4 * G));
  assert_cu(d->MemFree(d, p));
  soft_close();
}

/* ---- Streams, events, graphs ---- */

TEST(objects_of_another_device) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_cu_stream s = stream_of(1);
  weir_cu_event e = soft_event(), f;
  weir_cu_deviceptr p = memory_of(1, 100);
  weir_cu_context context;
  float milliseconds;
  /* A stream can be used while its device is not current. */
  assert_cu(d->MemsetD8Async(d, p, 7, 100, s));
  assert_cu(d->StreamGetCtx(d, s, &context));
  assert_ptr_equal(context, contexts[1]);
  assert_cu(d->StreamSynchronize(d, s));
  assert_int_equal(byte_at(p), 7);
  /* An event can be recorded only on its own device, but waited for on all. */
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, e, s));
  soft_use(1);
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, e, NULL));
  f = soft_event();
  assert_cu(d->EventRecord(d, f, s));
  soft_use(0);
  assert_cu(d->EventRecord(d, e, NULL));
  assert_cu(d->StreamWaitEvent(d, s, e, 0));
  soft_step_all();
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &milliseconds, e, f));
  assert_cu(d->MemFree(d, p));
  soft_close();
}

static int devices_seen[4], seen_count;

static weir_cu_result see_device(const weir_soft_launch *launch) {
  devices_seen[seen_count++] = launch->device;
  return WEIR_CU_SUCCESS;
}

/* A capture of two devices: each node belongs to its device. */
TEST(a_graph_of_two_devices) {
  seen_count = 0;
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  assert_ok(weir_soft_register_kernel(d, "see", see_device, 0, NULL));
  weir_cu_stream s[] = {stream_of(0), stream_of(1)};
  weir_cu_event e[2];
  weir_cu_function f[2];
  for (int i = 0; i < 2; i++) {
    weir_cu_module module;
    soft_use(i);
    e[i] = soft_event();
    assert_cu(d->ModuleLoadData(d, &module, ".version 6.0 .entry see()"));
    assert_cu(d->ModuleGetFunction(d, &f[i], module, "see"));
  }
  soft_use(0);
  /* Memory that only device 1 may touch. */
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 1}};
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 1}, WEIR_CU_ACCESS_READWRITE};
  weir_cu_mem_handle handle;
  weir_cu_deviceptr va;
  assert_cu(d->MemAddressReserve(d, &va, G, 0, 0, 0));
  assert_cu(d->MemCreate(d, &handle, G, &prop, 0));
  assert_cu(d->MemMap(d, va, G, 0, handle, 0));
  assert_cu(d->MemSetAccess(d, va, G, &access, 1));

  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->StreamBeginCapture(d, s[0], WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->LaunchKernel(d, f[0], 1, 1, 1, 1, 1, 1, 0, s[0], NULL, NULL));
  assert_cu(d->EventRecord(d, e[0], s[0]));
  assert_cu(d->StreamWaitEvent(d, s[1], e[0], 0));
  assert_cu(d->LaunchKernel(d, f[1], 1, 1, 1, 1, 1, 1, 0, s[1], NULL, NULL));
  assert_cu(d->MemsetD8Async(d, va, 5, 100, s[1]));
  assert_cu(d->EventRecord(d, e[1], s[1]));
  assert_cu(d->StreamWaitEvent(d, s[0], e[1], 0));
  assert_cu(d->StreamEndCapture(d, s[0], &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphLaunch(d, exec, s[0]));
  assert_int_equal(soft_step(s[0], 10), 3);
  assert_int_equal(seen_count, 2);
  assert_int_equal(devices_seen[0], 0);
  assert_int_equal(devices_seen[1], 1);
  assert_int_equal(byte_at(va + 99), 5);

  access.flags = WEIR_CU_ACCESS_READ;
  assert_cu(d->MemSetAccess(d, va, G, &access, 1));
  assert_cu_error(INVALID_VALUE, d->GraphLaunch(d, exec, s[0])); /* the node could not write there */
  assert_cu(d->MemUnmap(d, va, G));
  assert_cu(d->MemRelease(d, handle));
  assert_cu(d->MemAddressFree(d, va, G));
  soft_close();
}

/* ---- Releasing one context ---- */

TEST(the_end_of_one_context) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_cu_stream s[] = {stream_of(0), stream_of(1)};
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = memory_of(0, 100), q = memory_of(1, 100);
  assert_cu(d->MemsetD8Async(d, q, 1, 100, s[1]));
  assert_cu(d->MemsetD8Async(d, p, 1, 100, s[0]));
  assert_cu(d->EventRecord(d, e, s[0]));
  assert_cu(d->StreamWaitEvent(d, s[1], e, 0));
  assert_cu(d->MemsetD8Async(d, q, 2, 100, s[1]));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0)); /* completes its own work first */
  assert_int_equal(soft_pending(s[1]), 3);
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, s[0]));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, e));
  assert_cu_error(CONTEXT_IS_DESTROYED, d->MemAlloc(d, &p, 1));
  assert_cu_error(INVALID_CONTEXT, d->DevicePrimaryCtxRelease(d, 0));
  assert_int_equal(soft_census().allocations, 1);
  assert_int_equal(soft_step(s[1], 10), 3);
  assert_int_equal(byte_at(q), 2);
  soft_use(1);
  assert_cu(d->MemFree(d, q));
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[0], 0));
  soft_close();
}

/* Pool memory that is freed on a stream of another device, which reaches the free after the context of the pool is
 * destroyed. */
TEST(a_chunk_that_outlives_its_pool) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_cu_stream a = stream_of(0), b = stream_of(1);
  weir_cu_deviceptr p, q;
  weir_cu_mempool pool;
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  assert_cu(d->MemAllocFromPoolAsync(d, &p, G, pool, b));
  assert_cu(d->MemAllocAsync(d, &q, G, a));
  assert_cu(d->MemsetD8Async(d, p, 1, 100, b));
  assert_cu(d->MemFreeAsync(d, p, b));
  assert_int_equal(soft_pending(b), 2);
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_int_equal(soft_census().allocations, 1);
  assert_int_equal(soft_census().device_bytes, G);
  assert_int_equal(soft_step(b, 10), 2); /* the memory can still be written */
  assert_int_equal(soft_census().device_bytes, 0);
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[0], 0));
  soft_close();
}

/* The same for a graph with memory of two devices. */
TEST(a_graph_that_outlives_a_context) {
  for (int first = 0; first < 2; first++) {
    soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
    weir_cu_stream s[] = {stream_of(0), stream_of(1)};
    weir_cu_event e[2];
    e[0] = soft_event();
    soft_use(1);
    e[1] = soft_event();
    weir_cu_deviceptr p[2];
    weir_cu_graph graph;
    weir_cu_graph_exec exec;
    assert_cu(d->StreamBeginCapture(d, s[0], WEIR_CU_CAPTURE_RELAXED));
    assert_cu(d->MemAllocAsync(d, &p[0], G, s[0]));
    assert_cu(d->EventRecord(d, e[0], s[0]));
    assert_cu(d->StreamWaitEvent(d, s[1], e[0], 0));
    assert_cu(d->MemAllocAsync(d, &p[1], 2 * G, s[1]));
    assert_cu(d->MemsetD8Async(d, p[1], 1, 100, s[1]));
    assert_cu(d->EventRecord(d, e[1], s[1]));
    assert_cu(d->StreamWaitEvent(d, s[0], e[1], 0));
    assert_cu(d->StreamEndCapture(d, s[0], &graph));
    assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
    uint64_t held;
    assert_cu(d->DeviceGetGraphMemAttribute(d, 1, WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT, &held));
    assert_int_equal(held, 2 * G);
    assert_cu(d->DevicePrimaryCtxRelease(d, first));
    /* The graph belongs to the device of its first stream, and is destroyed with that context only. */
    assert_int_equal(soft_census().graphs, first);
    assert_int_equal(soft_census().device_bytes, first ? 3 * G : 0);
    assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[first], first));
    soft_close();
  }
}

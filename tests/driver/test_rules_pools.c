/*
 * Stream-ordered memory: pools, and memory that belongs to graphs.
 */
#include "driver/rules.h"

static weir_cu_mempool default_pool(void) {
  weir_cu_mempool pool;
  assert_cu(d->DeviceGetDefaultMemPool(d, &pool, 0));
  return pool;
}

static const weir_cu_mempool_props device_pool = {.type = WEIR_CU_ALLOCATION_PINNED,
                                                  .location = {WEIR_CU_LOCATION_DEVICE, 0}};

static weir_cu_mempool pool_new(void) {
  weir_cu_mempool pool;
  assert_cu(d->MemPoolCreate(d, &pool, &device_pool));
  return pool;
}

static uint64_t get(weir_cu_mempool pool, int attribute) {
  uint64_t value = 0;
  assert_cu(d->MemPoolGetAttribute(d, pool, attribute, &value));
  return value;
}

static void set(weir_cu_mempool pool, int attribute, uint64_t value) {
  assert_cu(d->MemPoolSetAttribute(d, pool, attribute, &value));
}

static void set_reuse(weir_cu_mempool pool, int attribute, int value) {
  assert_cu(d->MemPoolSetAttribute(d, pool, attribute, &value));
}

enum {
  USED = WEIR_CU_MEMPOOL_ATTR_USED_CURRENT,
  USED_HIGH = WEIR_CU_MEMPOOL_ATTR_USED_HIGH,
  RESERVED = WEIR_CU_MEMPOOL_ATTR_RESERVED_CURRENT,
  RESERVED_HIGH = WEIR_CU_MEMPOOL_ATTR_RESERVED_HIGH,
  THRESHOLD = WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
};

/* ---- Allocating ---- */

FIXTURE(RULES)

TEST(alloc_and_free) {
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = default_pool();
  weir_cu_deviceptr p = 0, q = 77;
  assert_int_equal(get(pool, USED), 0);
  assert_cu(d->MemAllocAsync(d, &p, 1000, stream));
  assert_int_equal(get(pool, USED), 1000);
  assert_in_range(get(pool, RESERVED), 1000, 1ull << 30);
  assert_cu(d->MemAllocAsync(d, &q, 0, stream));
  if (q && q != 77)
    assert_cu(d->MemFreeAsync(d, q, stream));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, nowhere, stream));
  assert_cu_error(OUT_OF_MEMORY, d->MemAllocAsync(d, &q, 1ull << 42, stream));
  assert_cu(d->MemFreeAsync(d, mem_new(MIB), stream)); /* plain memory is accepted too */
  /* And vice versa; NVIDIA's driver 580 then keeps counting it as used. */
  assert_cu(!is_cuda() ? d->MemFree(d, p) : d->MemFreeAsync(d, p, stream));
  assert_cu(d->MemAllocAsync(d, &p, 1000, stream));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(get(pool, USED), 0);
  assert_int_equal(get(pool, RESERVED), 0);
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(attributes_of_pooled_memory) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = 0, base = 0;
  unsigned type = 0;
  int ordinal = 7;
  size_t bytes = 0;
  assert_cu(d->MemAllocAsync(d, &p, MIB, stream));
  assert_int_equal(p % 256, 0);
  assert_cu(d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, p));
  assert_int_equal(type, WEIR_CU_MEMORY_TYPE_DEVICE);
  assert_cu(d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, p));
  assert_int_equal(ordinal, 0);
  assert_cu(d->MemGetAddressRange(d, &base, &bytes, p + 100));
  assert_int_equal(base, p);
  assert_int_equal(bytes, MIB);
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(data) {
  enum { pieces = 20 };
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p[pieces];
  unsigned char *host = host_new(10000);
  for (int i = 0; i < pieces; i++) {
    assert_cu(d->MemAllocAsync(d, &p[i], 10000, stream));
    assert_cu(d->MemsetD8Async(d, p[i], (unsigned char)(i + 1), 10000, stream));
    for (int k = 0; k < i; k++)
      assert_true(p[i] >= p[k] + 10000 || p[k] >= p[i] + 10000);
  }
  for (int i = 0; i < pieces; i++) {
    assert_cu(d->MemcpyAsync(d, address_of(host), p[i], 10000, stream));
    assert_cu(d->MemFreeAsync(d, p[i], stream));
    assert_cu(d->StreamSynchronize(d, stream));
    assert_filled(host, 10000, (unsigned char)(i + 1));
  }
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Reuse ---- */

/* Memory that a stream frees can serve its next allocation, before the stream reaches the free. */
TEST(reuse_in_a_stream) {
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = pool_new();
  weir_cu_deviceptr p, q;
  unsigned char *host = host_new(2 * MIB);
  assert_cu(d->MemAllocFromPoolAsync(d, &p, MIB, pool, stream));
  uint64_t reserved = get(pool, RESERVED);
  struct gate *gate = gate_close(stream);
  assert_cu(d->MemsetD8Async(d, p, 1, MIB, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, MIB, stream));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->MemAllocFromPoolAsync(d, &q, MIB, pool, stream));
  assert_int_equal(get(pool, RESERVED), reserved);
  if (!is_cuda())
    assert_int_equal(q, p);
  assert_cu(d->MemsetD8Async(d, q, 2, MIB, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host) + MIB, q, MIB, stream));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stream));
  assert_filled(host, MIB, 1);
  assert_filled(host + MIB, MIB, 2);
  assert_int_equal(get(pool, USED), MIB);
  assert_cu(d->MemFreeAsync(d, q, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(get(pool, USED), 0);
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

/* Another stream cannot use it before the first stream reaches the free. */
TEST(no_reuse_in_another_stream) {
  weir_cu_stream first = stream_new(), second = stream_new();
  weir_cu_mempool pool = pool_new();
  weir_cu_deviceptr p, q, r;
  unsigned char *host = host_new(MIB);
  /* Otherwise the pool may make the second stream wait. */
  set_reuse(pool, WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
  assert_cu(d->MemAllocFromPoolAsync(d, &p, MIB, pool, first));
  assert_cu(d->MemsetD8Async(d, p, 1, MIB, first));
  struct gate *gate = gate_close(first);
  assert_cu(d->MemcpyAsync(d, address_of(host), p, MIB, first));
  assert_cu(d->MemFreeAsync(d, p, first));
  assert_cu(d->MemAllocFromPoolAsync(d, &q, MIB, pool, second));
  assert_true(q >= p + MIB || p >= q + MIB);
  assert_cu(d->MemsetD8Async(d, q, 2, MIB, second));
  assert_cu(d->StreamSynchronize(d, second));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, first));
  assert_filled(host, MIB, 1);
  assert_device_filled(q, MIB, 2);

  /* Afterwards it can, if the pool keeps its memory. */
  set(pool, THRESHOLD, UINT64_MAX);
  assert_cu(d->MemAllocFromPoolAsync(d, &p, MIB, pool, first));
  assert_cu(d->MemFreeAsync(d, p, first));
  assert_cu(d->StreamSynchronize(d, first));
  uint64_t reserved = get(pool, RESERVED);
  assert_cu(d->MemAllocFromPoolAsync(d, &r, MIB, pool, second));
  assert_int_equal(get(pool, RESERVED), reserved);
  assert_cu(d->MemFreeAsync(d, r, second));
  assert_cu(d->MemFreeAsync(d, q, second));
  assert_cu(d->StreamSynchronize(d, second));
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
}

/* ---- Attributes ---- */

TEST(attributes) {
  weir_cu_mempool pool = default_pool();
  uint64_t value = 5;
  int on = 7;
  assert_cu_error(INVALID_VALUE, d->MemPoolDestroy(d, pool));
  static const int reuse[] = {WEIR_CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                              WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                              WEIR_CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES};
  for (int i = 0; i < 3; i++) {
    assert_cu(d->MemPoolGetAttribute(d, pool, reuse[i], &on));
    assert_int_equal(on, 1);
    set_reuse(pool, reuse[i], 0);
    assert_cu(d->MemPoolGetAttribute(d, pool, reuse[i], &on));
    assert_int_equal(on, 0);
    set_reuse(pool, reuse[i], 1);
  }
  assert_int_equal(get(pool, THRESHOLD), 0);
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, USED_HIGH, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, RESERVED_HIGH, &value));
  value = 0;
  assert_cu(d->MemPoolSetAttribute(d, pool, USED_HIGH, &value));
  assert_cu(d->MemPoolSetAttribute(d, pool, RESERVED_HIGH, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, USED, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolSetAttribute(d, pool, RESERVED, &value));
  assert_cu_error(INVALID_VALUE, d->MemPoolGetAttribute(d, pool, 77, &value));
}

TEST(high_water) {
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = pool_new();
  weir_cu_deviceptr p, q;
  assert_cu(d->MemAllocFromPoolAsync(d, &p, 3000, pool, stream));
  assert_cu(d->MemAllocFromPoolAsync(d, &q, 4000, pool, stream));
  assert_int_equal(get(pool, USED), 7000);
  assert_int_equal(get(pool, USED_HIGH), 7000);
  uint64_t reserved = get(pool, RESERVED);
  assert_cu(d->MemFreeAsync(d, q, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(get(pool, USED), 3000);
  assert_int_equal(get(pool, USED_HIGH), 7000);
  assert_int_equal(get(pool, RESERVED_HIGH), reserved);
  set(pool, USED_HIGH, 0);
  set(pool, RESERVED_HIGH, 0);
  assert_in_range(get(pool, USED_HIGH), !is_cuda() ? 3000 : 0, 3000);
  assert_in_range(get(pool, RESERVED_HIGH), !is_cuda() ? get(pool, RESERVED) : 0, get(pool, RESERVED));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->StreamDestroy(d, stream));
}

/* Synchronizing releases free memory above the threshold; trimming releases it at once. */
TEST(threshold_and_trim) {
  enum { bytes = 64 * MIB };
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = pool_new();
  weir_cu_deviceptr p, q;
  assert_cu(d->MemAllocFromPoolAsync(d, &p, bytes, pool, stream));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(get(pool, RESERVED), 0);

  set(pool, THRESHOLD, UINT64_MAX);
  assert_int_equal(get(pool, THRESHOLD), UINT64_MAX);
  assert_cu(d->MemAllocFromPoolAsync(d, &p, bytes, pool, stream));
  assert_cu(d->MemAllocFromPoolAsync(d, &q, bytes, pool, stream));
  uint64_t reserved = get(pool, RESERVED);
  assert_in_range(reserved, 2 * bytes, 1ull << 30);
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(get(pool, RESERVED), reserved);
  assert_int_equal(get(pool, USED), bytes);

  assert_cu(d->MemPoolTrimTo(d, pool, reserved));
  assert_int_equal(get(pool, RESERVED), reserved);
  assert_cu(d->MemPoolTrimTo(d, pool, 0)); /* memory in use stays */
  assert_in_range(get(pool, RESERVED), bytes, reserved - 1);
  assert_cu(d->MemFreeAsync(d, q, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_in_range(get(pool, RESERVED), bytes, reserved - 1);
  assert_cu(d->MemPoolTrimTo(d, pool, 0));
  assert_int_equal(get(pool, RESERVED), 0);
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->StreamDestroy(d, stream));
}

/* Memory that a pool keeps is not free; the pool releases it when no other memory is left. */
TEST_SETUP(pools_and_capacity, device_setup_small, device_teardown) {
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = pool_new();
  weir_cu_deviceptr p, q;
  size_t before, held, after, total, bytes = 40 * MIB, slack = !is_cuda() ? 0 : 64 * MIB;
  assert_cu(d->MemGetInfo(d, &before, &total));
  set(pool, THRESHOLD, UINT64_MAX);
  assert_cu(d->MemAllocFromPoolAsync(d, &p, bytes, pool, stream));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->MemGetInfo(d, &held, &total));
  assert_in_range(before - held, bytes, bytes + slack);
  if (!is_cuda()) {
    assert_int_equal(before, 64 * MIB);
    assert_cu(d->MemAllocFromPoolAsync(d, &q, 60 * MIB, pool, stream)); /* does not fit next to the cached memory */
    assert_cu(d->MemFreeAsync(d, q, stream));
    assert_cu(d->StreamSynchronize(d, stream));
  } else
    device_print_waived("a pool on a full device", "it would take all memory of the device");
  assert_cu(d->MemPoolTrimTo(d, pool, 0));
  assert_cu(d->MemGetInfo(d, &after, &total));
  assert_in_range(after, before - slack, before + slack);
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Created pools ---- */

TEST(current_pool) {
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = pool_new(), found = NULL;
  weir_cu_deviceptr p;
  assert_cu(d->DeviceGetMemPool(d, &found, 0));
  assert_ptr_equal(found, default_pool());
  assert_cu(d->DeviceSetMemPool(d, 0, pool));
  assert_cu(d->DeviceGetMemPool(d, &found, 0));
  assert_ptr_equal(found, pool);
  assert_ptr_not_equal(default_pool(), pool);
  assert_cu(d->MemAllocAsync(d, &p, 1000, stream));
  assert_int_equal(get(pool, USED), 1000);
  assert_int_equal(get(default_pool(), USED), 0);
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->MemPoolDestroy(d, pool)); /* the default pool is current again */
  assert_cu(d->DeviceGetMemPool(d, &found, 0));
  assert_ptr_equal(found, default_pool());
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(create_and_destroy) {
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool = pool_new(), other;
  weir_cu_mempool_props bad = device_pool;
  weir_cu_deviceptr p = 0;
  assert_cu(d->MemAllocFromPoolAsync(d, &p, 100, pool, stream));
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu(d->MemsetD8Async(d, p, 3, 100, stream)); /* allocated memory stays valid */
  assert_cu(d->StreamSynchronize(d, stream));
  assert_device_filled(p, 100, 3);
  assert_cu(d->MemFreeAsync(d, p, stream));
  bad.location.id = 9;
  assert_cu_error(INVALID_VALUE, d->MemPoolCreate(d, &other, &bad));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(pool_access) {
  weir_cu_mempool pool = pool_new();
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  assert_cu(d->MemPoolSetAccess(d, pool, &access, 1));
  if (!is_cuda()) {
    access.flags = WEIR_CU_ACCESS_NONE; /* a device cannot lose access to its own pool */
    assert_cu_error(INVALID_VALUE, d->MemPoolSetAccess(d, pool, &access, 1));
    access.location.id = 99;
    assert_cu_error(INVALID_DEVICE, d->MemPoolSetAccess(d, pool, &access, 1));
  } else
    device_print_waived("take access away", "what NVIDIA's driver answers was not measured");
  assert_cu(d->MemPoolDestroy(d, pool));
}

/* Memory of other kinds, and pools of other devices. */
TEST_SETUP(misuse, device_setup_two, device_teardown) {
  if (is_cuda())
    WAIVE_TEST("what NVIDIA's driver answers was not measured");
  weir_cu_stream stream = stream_new();
  weir_cu_mempool pool;
  weir_cu_mempool_props props = device_pool;
  weir_cu_deviceptr space, p;
  void *host = host_new(100);
  assert_cu(d->MemAddressReserve(d, &space, 2 * MIB, 0, 0, 0));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, address_of(host), stream));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, space, stream));
  assert_cu(d->MemAllocAsync(d, &p, 1000, stream));
  assert_cu_error(INVALID_VALUE, d->MemFreeAsync(d, p + 256, stream));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu_error(INVALID_VALUE, d->MemFree(d, p));
  props.handle_types = WEIR_CU_HANDLE_POSIX_FD;
  assert_cu_error(NOT_SUPPORTED, d->MemPoolCreate(d, &pool, &props));
  props = device_pool;
  props.location.id = 1;
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu_error(INVALID_VALUE, d->DeviceSetMemPool(d, 0, pool));
  assert_cu_error(INVALID_VALUE, d->DeviceSetMemPool(d, 0, NULL));
  assert_cu_error(INVALID_DEVICE, d->DeviceSetMemPool(d, 99, pool));
  assert_cu(d->DeviceSetMemPool(d, 1, pool));
  assert_cu(d->MemPoolDestroy(d, pool));
  assert_cu_error(INVALID_VALUE, d->DeviceSetMemPool(d, 1, pool));
  assert_cu_error(INVALID_VALUE, d->MemPoolTrimTo(d, pool, 0));
  assert_cu(d->MemAddressFree(d, space, 2 * MIB));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Memory of graphs ---- */

static uint64_t graph_memory(int attribute) {
  uint64_t value = 0;
  assert_cu(d->DeviceGetGraphMemAttribute(d, 0, attribute, &value));
  return value;
}

TEST(alloc_and_free_in_a_graph) {
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_deviceptr p = 0;
  unsigned char *in = host_new(1000), *out = host_new(1000);
  size_t nodes = 0;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemAllocAsync(d, &p, 1000, stream));
  assert_int_not_equal(p, 0);
  assert_cu(d->MemcpyAsync(d, p, address_of(in), 1000, stream));
  assert_cu(d->MemcpyAsync(d, address_of(out), p, 1000, stream));
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphGetNodes(d, graph, NULL, &nodes));
  assert_int_equal(nodes, 4);
  assert_int_equal(get(default_pool(), USED), 0); /* it belongs to the graph */
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  for (int round = 1; round < 6; round++) {
    memset(in, round, 1000);
    assert_cu(d->GraphLaunch(d, exec, stream));
    assert_cu(d->StreamSynchronize(d, stream));
    assert_filled(out, 1000, (unsigned char)round);
  }
  assert_in_range(graph_memory(WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH), 1000, 1ull << 32);
  assert_in_range(graph_memory(WEIR_CU_GRAPH_MEM_ATTR_USED_HIGH), 1000, 1ull << 32);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->DeviceGraphMemTrim(d, 0));
  assert_int_equal(graph_memory(WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT), 0);
  assert_int_equal(graph_memory(WEIR_CU_GRAPH_MEM_ATTR_RESERVED_CURRENT), 0);
  assert_cu(d->MemFreeHost(d, in));
  assert_cu(d->MemFreeHost(d, out));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(graph_memory_attributes) {
  uint64_t value;
  for (int i = WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT; i <= WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH; i++)
    assert_cu(d->DeviceGetGraphMemAttribute(d, 0, i, &value));
  assert_cu_error(INVALID_VALUE, d->DeviceGetGraphMemAttribute(d, 0, 77, &value));
  assert_cu_error(INVALID_DEVICE, d->DeviceGetGraphMemAttribute(d, 99, WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT, &value));
  assert_cu_error(INVALID_DEVICE, d->DeviceGraphMemTrim(d, 99));
}

/* Memory that a graph leaves allocated can be used after the launch. */
TEST(graph_leaves_memory) {
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_deviceptr p = 0;
  unsigned char *out = host_new(1000);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemAllocAsync(d, &p, 1000, stream));
  assert_cu(d->MemsetD8Async(d, p, 7, 1000, stream));
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, WEIR_CU_GRAPH_AUTO_FREE_ON_LAUNCH));
  for (int round = 0; round < 3; round++) {
    memset(out, 0, 1000);
    assert_cu(d->GraphLaunch(d, exec, stream));
    assert_cu(d->MemcpyAsync(d, address_of(out), p, 1000, stream));
    assert_cu(d->StreamSynchronize(d, stream));
    assert_filled(out, 1000, 7);
  }
  assert_cu(d->MemFreeAsync(d, p, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->DeviceGraphMemTrim(d, 0));
  assert_cu(d->MemFreeHost(d, out));
  assert_cu(d->StreamDestroy(d, stream));
}

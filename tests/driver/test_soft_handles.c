/*
 * Handles: every entry that takes a handle rejects destroyed handles, handles of another kind, and arbitrary numbers,
 * with the result that CUDA has for it.
 */
#include <inttypes.h>
#include <stdio.h>

#include "support/soft.h"

enum { MIB = 1 << 20, G = 2 * MIB };

enum kind { CONTEXT, STREAM, EVENT, GRAPH, NODE, EXEC, MODULE, FUNCTION, POOL, MEMORY, KINDS };

/* A valid and a destroyed handle of each kind. */
static uintptr_t live[KINDS], dead[KINDS];
static weir_cu_deviceptr p, va;

#define H(name, type) ((type)live[name])
static weir_cu_stream stream(void) { return H(STREAM, weir_cu_stream); }
static weir_cu_event event(void) { return H(EVENT, weir_cu_event); }

static void nothing(void *data) { (void)data; }

/* ---- Every entry that takes a handle: `h` is the handle, the rest is valid ---- */

#define USE(name, expression)                                                                                          \
  static weir_cu_result name(uintptr_t h) {                                                                            \
    int number;                                                                                                        \
    unsigned flags;                                                                                                    \
    size_t count = 0;                                                                                                  \
    float ms;                                                                                                          \
    unsigned long long id;                                                                                             \
    uint64_t value = 0;                                                                                                \
    void *params[] = {&value};                                                                                         \
    weir_cu_context context;                                                                                           \
    weir_cu_graph graph;                                                                                               \
    weir_cu_graph_exec exec;                                                                                           \
    weir_cu_function function;                                                                                         \
    weir_cu_deviceptr q;                                                                                               \
    weir_cu_ipc_event_handle ipc;                                                                                      \
    weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};                              \
    (void)number, (void)flags, (void)count, (void)ms, (void)id, (void)params, (void)context, (void)graph, (void)exec;  \
    (void)function, (void)q, (void)ipc, (void)access;                                                                  \
    return expression;                                                                                                 \
  }

USE(set_current, d->CtxSetCurrent(d, (weir_cu_context)h))
USE(enable_peer, d->CtxEnablePeerAccess(d, (weir_cu_context)h, 0))
USE(disable_peer, d->CtxDisablePeerAccess(d, (weir_cu_context)h))
USE(peer_copy_to, d->MemcpyPeerAsync(d, p, (weir_cu_context)h, p, contexts[0], 1, stream()))
USE(peer_copy_from, d->MemcpyPeerAsync(d, p, contexts[0], p, (weir_cu_context)h, 1, stream()))

USE(stream_destroy, d->StreamDestroy(d, (weir_cu_stream)h))
USE(stream_query, d->StreamQuery(d, (weir_cu_stream)h))
USE(stream_synchronize, d->StreamSynchronize(d, (weir_cu_stream)h))
USE(stream_wait, d->StreamWaitEvent(d, (weir_cu_stream)h, event(), 0))
USE(stream_host_function, d->LaunchHostFunc(d, (weir_cu_stream)h, nothing, NULL))
USE(stream_priority, d->StreamGetPriority(d, (weir_cu_stream)h, &number))
USE(stream_flags, d->StreamGetFlags(d, (weir_cu_stream)h, &flags))
USE(stream_context, d->StreamGetCtx(d, (weir_cu_stream)h, &context))
USE(stream_begin, d->StreamBeginCapture(d, (weir_cu_stream)h, WEIR_CU_CAPTURE_RELAXED))
USE(stream_end, d->StreamEndCapture(d, (weir_cu_stream)h, &graph))
USE(stream_is_capturing, d->StreamIsCapturing(d, (weir_cu_stream)h, &number))
USE(stream_info, d->StreamGetCaptureInfo(d, (weir_cu_stream)h, &number, &id, NULL, NULL, NULL))
USE(stream_record, d->EventRecord(d, event(), (weir_cu_stream)h))
USE(stream_copy, d->MemcpyAsync(d, p, p, 1, (weir_cu_stream)h))
USE(stream_peer_copy, d->MemcpyPeerAsync(d, p, contexts[0], p, contexts[0], 1, (weir_cu_stream)h))
USE(stream_fill8, d->MemsetD8Async(d, p, 1, 1, (weir_cu_stream)h))
USE(stream_fill32, d->MemsetD32Async(d, p, 1, 1, (weir_cu_stream)h))
USE(stream_alloc, d->MemAllocAsync(d, &q, 1, (weir_cu_stream)h))
USE(stream_alloc_from, d->MemAllocFromPoolAsync(d, &q, 1, H(POOL, weir_cu_mempool), (weir_cu_stream)h))
USE(stream_free, d->MemFreeAsync(d, p, (weir_cu_stream)h))
USE(stream_launch_graph, d->GraphLaunch(d, H(EXEC, weir_cu_graph_exec), (weir_cu_stream)h))
USE(stream_upload, d->GraphUpload(d, H(EXEC, weir_cu_graph_exec), (weir_cu_stream)h))
USE(stream_launch,
    d->LaunchKernel(d, H(FUNCTION, weir_cu_function), 1, 1, 1, 1, 1, 1, 0, (weir_cu_stream)h, params, NULL))

USE(event_destroy, d->EventDestroy(d, (weir_cu_event)h))
USE(event_record, d->EventRecord(d, (weir_cu_event)h, stream()))
USE(event_query, d->EventQuery(d, (weir_cu_event)h))
USE(event_synchronize, d->EventSynchronize(d, (weir_cu_event)h))
USE(event_elapsed_from, d->EventElapsedTime(d, &ms, (weir_cu_event)h, event()))
USE(event_elapsed_to, d->EventElapsedTime(d, &ms, event(), (weir_cu_event)h))
USE(event_wait, d->StreamWaitEvent(d, stream(), (weir_cu_event)h, 0))
USE(event_export, d->IpcGetEventHandle(d, &ipc, (weir_cu_event)h))

USE(graph_instantiate, d->GraphInstantiate(d, &exec, (weir_cu_graph)h, 0))
USE(graph_nodes, d->GraphGetNodes(d, (weir_cu_graph)h, NULL, &count))
USE(graph_print, d->GraphDebugDotPrint(d, (weir_cu_graph)h, "/dev/null", 0))
USE(graph_destroy, d->GraphDestroy(d, (weir_cu_graph)h))
USE(node_dependencies, d->GraphNodeGetDependencies(d, (weir_cu_graph_node)h, NULL, &count))
USE(exec_launch, d->GraphLaunch(d, (weir_cu_graph_exec)h, stream()))
USE(exec_upload, d->GraphUpload(d, (weir_cu_graph_exec)h, stream()))
USE(exec_destroy, d->GraphExecDestroy(d, (weir_cu_graph_exec)h))

USE(module_unload, d->ModuleUnload(d, (weir_cu_module)h))
USE(module_function, d->ModuleGetFunction(d, &function, (weir_cu_module)h, "weir_spin"))
USE(function_launch, d->LaunchKernel(d, (weir_cu_function)h, 1, 1, 1, 1, 1, 1, 0, stream(), params, NULL))

USE(pool_alloc, d->MemAllocFromPoolAsync(d, &q, 1, (weir_cu_mempool)h, stream()))
USE(pool_set_current, d->DeviceSetMemPool(d, 0, (weir_cu_mempool)h))
USE(pool_destroy, d->MemPoolDestroy(d, (weir_cu_mempool)h))
USE(pool_set, d->MemPoolSetAttribute(d, (weir_cu_mempool)h, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value))
USE(pool_get, d->MemPoolGetAttribute(d, (weir_cu_mempool)h, WEIR_CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value))
USE(pool_trim, d->MemPoolTrimTo(d, (weir_cu_mempool)h, 0))
USE(pool_access, d->MemPoolSetAccess(d, (weir_cu_mempool)h, &access, 1))

USE(memory_release, d->MemRelease(d, (weir_cu_mem_handle)h))
USE(memory_map, d->MemMap(d, va, G, 0, (weir_cu_mem_handle)h, 0))
USE(memory_export, d->MemExportToShareableHandle(d, &number, (weir_cu_mem_handle)h, WEIR_CU_HANDLE_POSIX_FD, 0))

#define USER(kind, name, code)                                                                                         \
  { kind, name, WEIR_CU_##code, #name }
static const struct user {
  enum kind kind;
  weir_cu_result (*use)(uintptr_t h);
  weir_cu_result refusal;
  const char *name;
} users[] = {
    USER(CONTEXT, set_current, INVALID_CONTEXT),
    USER(CONTEXT, enable_peer, INVALID_CONTEXT),
    USER(CONTEXT, disable_peer, INVALID_CONTEXT),
    USER(CONTEXT, peer_copy_to, INVALID_CONTEXT),
    USER(CONTEXT, peer_copy_from, INVALID_CONTEXT),
    USER(STREAM, stream_destroy, INVALID_HANDLE),
    USER(STREAM, stream_query, INVALID_HANDLE),
    USER(STREAM, stream_synchronize, INVALID_HANDLE),
    USER(STREAM, stream_wait, INVALID_HANDLE),
    USER(STREAM, stream_host_function, INVALID_HANDLE),
    USER(STREAM, stream_priority, INVALID_HANDLE),
    USER(STREAM, stream_flags, INVALID_HANDLE),
    USER(STREAM, stream_context, INVALID_HANDLE),
    USER(STREAM, stream_begin, INVALID_HANDLE),
    USER(STREAM, stream_end, INVALID_HANDLE),
    USER(STREAM, stream_is_capturing, INVALID_HANDLE),
    USER(STREAM, stream_info, INVALID_HANDLE),
    USER(STREAM, stream_record, INVALID_HANDLE),
    USER(STREAM, stream_copy, INVALID_HANDLE),
    USER(STREAM, stream_peer_copy, INVALID_HANDLE),
    USER(STREAM, stream_fill8, INVALID_HANDLE),
    USER(STREAM, stream_fill32, INVALID_HANDLE),
    USER(STREAM, stream_alloc, INVALID_HANDLE),
    USER(STREAM, stream_alloc_from, INVALID_HANDLE),
    USER(STREAM, stream_free, INVALID_HANDLE),
    USER(STREAM, stream_launch_graph, INVALID_HANDLE),
    USER(STREAM, stream_upload, INVALID_HANDLE),
    USER(STREAM, stream_launch, INVALID_HANDLE),
    USER(EVENT, event_destroy, INVALID_HANDLE),
    USER(EVENT, event_record, INVALID_HANDLE),
    USER(EVENT, event_query, INVALID_HANDLE),
    USER(EVENT, event_synchronize, INVALID_HANDLE),
    USER(EVENT, event_elapsed_from, INVALID_HANDLE),
    USER(EVENT, event_elapsed_to, INVALID_HANDLE),
    USER(EVENT, event_wait, INVALID_HANDLE),
    USER(EVENT, event_export, INVALID_HANDLE),
    USER(GRAPH, graph_instantiate, INVALID_VALUE),
    USER(GRAPH, graph_nodes, INVALID_VALUE),
    USER(GRAPH, graph_print, INVALID_VALUE),
    USER(GRAPH, graph_destroy, INVALID_VALUE),
    USER(NODE, node_dependencies, INVALID_VALUE),
    USER(EXEC, exec_launch, INVALID_VALUE),
    USER(EXEC, exec_upload, INVALID_VALUE),
    USER(EXEC, exec_destroy, INVALID_VALUE),
    USER(MODULE, module_unload, INVALID_HANDLE),
    USER(MODULE, module_function, INVALID_HANDLE),
    USER(FUNCTION, function_launch, INVALID_HANDLE),
    USER(POOL, pool_alloc, INVALID_VALUE),
    USER(POOL, pool_set_current, INVALID_VALUE),
    USER(POOL, pool_destroy, INVALID_VALUE),
    USER(POOL, pool_set, INVALID_VALUE),
    USER(POOL, pool_get, INVALID_VALUE),
    USER(POOL, pool_trim, INVALID_VALUE),
    USER(POOL, pool_access, INVALID_VALUE),
    USER(MEMORY, memory_release, INVALID_VALUE),
    USER(MEMORY, memory_map, INVALID_VALUE),
    USER(MEMORY, memory_export, INVALID_VALUE),
};

/* ---- One of each ---- */

static void make(uintptr_t handles[KINDS]) {
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_graph_node node;
  weir_cu_module module;
  weir_cu_function function;
  weir_cu_mempool pool;
  weir_cu_mem_handle memory;
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  assert_cu(d->StreamBeginCapture(d, s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, p, 1, 1, s));
  assert_cu(d->StreamEndCapture(d, s, &graph));
  size_t count = 1;
  assert_cu(d->GraphGetNodes(d, graph, &node, &count));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->ModuleLoadData(d, &module, spin_ptx));
  assert_cu(d->ModuleGetFunction(d, &function, module, "weir_spin"));
  assert_cu(d->MemPoolCreate(d, &pool, &props));
  assert_cu(d->MemCreate(d, &memory, G, &prop, 0));
  handles[CONTEXT] = (uintptr_t)contexts[1];
  handles[STREAM] = (uintptr_t)s;
  handles[EVENT] = (uintptr_t)soft_event();
  handles[GRAPH] = (uintptr_t)graph;
  handles[NODE] = (uintptr_t)node;
  handles[EXEC] = (uintptr_t)exec;
  handles[MODULE] = (uintptr_t)module;
  handles[FUNCTION] = (uintptr_t)function;
  handles[POOL] = (uintptr_t)pool;
  handles[MEMORY] = (uintptr_t)memory;
}

static void destroy(const uintptr_t handles[KINDS]) {
  assert_cu(d->DevicePrimaryCtxRelease(d, 1));
  assert_cu(d->DevicePrimaryCtxRetain(d, &contexts[1], 1));
  assert_cu(d->StreamDestroy(d, (weir_cu_stream)handles[STREAM]));
  assert_cu(d->EventDestroy(d, (weir_cu_event)handles[EVENT]));
  assert_cu(d->GraphDestroy(d, (weir_cu_graph)handles[GRAPH]));
  assert_cu(d->GraphExecDestroy(d, (weir_cu_graph_exec)handles[EXEC]));
  assert_cu(d->ModuleUnload(d, (weir_cu_module)handles[MODULE]));
  assert_cu(d->MemPoolDestroy(d, (weir_cu_mempool)handles[POOL]));
  assert_cu(d->MemRelease(d, (weir_cu_mem_handle)handles[MEMORY]));
}

static void open_with_all(void) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  p = soft_alloc(100);
  assert_cu(d->MemAddressReserve(d, &va, G, 0, 0, 0));
  make(dead);
  destroy(dead);
  make(live);
}

static void close_with_all(void) {
  destroy(live);
  assert_cu(d->MemAddressFree(d, va, G));
  assert_cu(d->MemFree(d, p));
  soft_close();
}

static void expect_refusal(const struct user *user, uintptr_t h) {
  weir_cu_result r = user->use(h);
  if (r != user->refusal)
    fail_msg("%s with %" PRIxPTR " is %s, not %s", user->name, h, weir_cu_result_name(r),
             weir_cu_result_name(user->refusal));
}

enum { USERS = sizeof users / sizeof *users };

FIXTURE(.teardown = soft_teardown)

TEST(destroyed_handles) {
  open_with_all();
  weir_soft_census before = soft_census();
  for (int i = 0; i < USERS; i++)
    expect_refusal(&users[i], dead[users[i].kind]);
  weir_soft_census after = soft_census();
  assert_memory_equal(&before, &after, sizeof before);
  close_with_all();
}

TEST(handles_of_other_kinds) {
  open_with_all();
  weir_soft_census before = soft_census();
  for (int i = 0; i < USERS; i++)
    for (int kind = 0; kind < KINDS; kind++) {
      expect_refusal(&users[i], dead[kind]);
      if (kind != (int)users[i].kind)
        expect_refusal(&users[i], live[kind]);
    }
  weir_soft_census after = soft_census();
  assert_memory_equal(&before, &after, sizeof before);
  close_with_all();
}

static bool is_live(uintptr_t h) {
  for (int kind = 0; kind < KINDS; kind++)
    if (live[kind] == h)
      return true;
  return h == (uintptr_t)contexts[0];
}

TEST(any_number) {
  static const uintptr_t numbers[] = {3,          8,          16,         0x10,        0x1230,
                                      0xfffffff0, 0x10000000, 1ull << 51, UINTPTR_MAX, UINTPTR_MAX - 15};
  open_with_all();
  weir_soft_census before = soft_census();
  soft_seed(7);
  for (int i = 0; i < USERS; i++) {
    if (users[i].kind != STREAM && users[i].use != set_current) /* 0 is valid there */
      expect_refusal(&users[i], 0);
    if (users[i].kind != STREAM)
      for (uintptr_t h = 1; h <= 2; h++)
        expect_refusal(&users[i], h);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
      if (!is_live(numbers[k]))
        expect_refusal(&users[i], numbers[k]);
    for (int k = 0; k < 200; k++) {
      /* Random numbers, valid handles with a flipped bit, and plausible handles. */
      uintptr_t h = soft_random(UINT64_MAX);
      if (k % 3 == 1)
        h = live[soft_random(KINDS)] ^ (uintptr_t)1 << soft_random(64);
      if (k % 3 == 2)
        h = soft_random(8) << 28 | soft_random(40) << 4;
      if (h > 2 && !is_live(h))
        expect_refusal(&users[i], h);
    }
  }
  weir_soft_census after = soft_census();
  assert_memory_equal(&before, &after, sizeof before);
  soft_seed(0);
  close_with_all();
}

/* Reusing a slot does not make its old handles valid. */
TEST(old_handles_stay_bad) {
  enum { COUNT = 300 };
  weir_cu_event old[COUNT];
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  for (int i = 0; i < COUNT; i++) {
    old[i] = soft_event();
    for (int k = 0; k < i; k++)
      assert_ptr_not_equal(old[i], old[k]);
    assert_cu(d->EventQuery(d, old[i]));
    assert_cu(d->EventDestroy(d, old[i]));
  }
  weir_cu_event e = soft_event();
  for (int i = 0; i < COUNT; i++)
    assert_cu_error(INVALID_HANDLE, d->EventQuery(d, old[i]));
  assert_cu(d->EventDestroy(d, e));
  /* Many at once, so that the table grows. */
  for (int i = 0; i < COUNT; i++)
    old[i] = soft_event();
  assert_int_equal(soft_census().events, COUNT);
  for (int i = 0; i < COUNT; i++)
    assert_cu(d->EventDestroy(d, old[i]));
  soft_close();
}

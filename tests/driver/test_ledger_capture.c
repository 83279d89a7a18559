/*
 * Captures and graphs on the ledger.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/ledger.h"

typedef struct scene {
  weir_driver *d;
  weir_cu_stream s, other, blocking;
  weir_cu_event event, back, done, unused;
  weir_cu_deviceptr p;
  void *host;
  char registered[64];
  weir_cu_module module;
  weir_cu_mempool pool;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
} scene;

static int set_up(void **state) {
  scene *x = calloc(1, sizeof *x);
  weir_driver *d = x->d = open_ledger(1, 1 << 30);
  x->s = make_stream(d, WEIR_CU_STREAM_NON_BLOCKING);
  x->other = make_stream(d, WEIR_CU_STREAM_NON_BLOCKING);
  x->blocking = make_stream(d, 0);
  x->event = make_event(d);
  x->back = make_event(d);
  x->done = make_event(d);
  x->unused = make_event(d);
  assert_cu(d->EventRecord(d, x->done, x->other));
  assert_cu(d->MemAlloc(d, &x->p, 4096));
  assert_cu(d->MemHostAlloc(d, &x->host, 64, 0));
  assert_cu(d->MemHostRegister(d, x->registered, sizeof x->registered, 0));
  assert_cu(d->ModuleLoadData(d, &x->module, SPIN_PTX));
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  assert_cu(d->MemPoolCreate(d, &x->pool, &props));
  assert_cu(d->StreamBeginCapture(d, x->other, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->StreamEndCapture(d, x->other, &x->graph));
  assert_cu(d->GraphInstantiate(d, &x->exec, x->graph, 0));
  *state = x;
  return 0;
}

static int tear_down(void **state) {
  scene *x = *state;
  weir_driver_close(x->d);
  free(x);
  return 0;
}

FIXTURE(.setup = set_up, .teardown = tear_down)

static weir_cu_result work(scene *x, weir_cu_stream stream) { return x->d->MemsetD8Async(x->d, x->p, 0, 64, stream); }

static int capture_status(scene *x, weir_cu_stream stream) {
  int status = -1;
  assert_cu(x->d->StreamIsCapturing(x->d, stream, &status));
  return status;
}

static size_t node_count(scene *x, weir_cu_graph graph) {
  size_t count = 99;
  assert_cu(x->d->GraphGetNodes(x->d, graph, NULL, &count));
  return count;
}

/* Begins a capture on s with one node in it. */
static void begin(scene *x, int mode) {
  assert_cu(x->d->StreamBeginCapture(x->d, x->s, mode));
  assert_cu(work(x, x->s));
}

/* Makes `to` wait for the current end of `from`. */
static weir_cu_result wait_for(scene *x, weir_cu_stream to, weir_cu_stream from, weir_cu_event by) {
  assert_cu(x->d->EventRecord(x->d, by, from));
  return x->d->StreamWaitEvent(x->d, to, by, 0);
}

static weir_cu_result end(scene *x, weir_cu_graph *graph) { return x->d->StreamEndCapture(x->d, x->s, graph); }

/* ---- Graphs ---- */

static void count_up(void *data) { ++*(int *)data; }

TEST(captured_work_is_done_at_launch) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph graph = NULL;
  weir_cu_graph_exec exec = NULL;
  int calls = 0, more_calls = 0;
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(d->LaunchHostFunc(d, x->s, count_up, &calls));
  assert_cu(d->MemcpyAsync(d, x->p, x->p + 100, 64, x->s));
  assert_cu(d->LaunchHostFunc(d, x->s, count_up, &more_calls));
  assert_cu(d->MemcpyAsync(d, x->p, x->p + 100, 0, x->s)); /* no work, so no node */
  assert_int_equal(calls, 0);
  assert_cu(end(x, &graph));
  assert_int_equal(node_count(x, graph), 4);
  assert_int_equal(capture_status(x, x->s), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_cu(d->GraphInstantiate(d, &exec, graph, WEIR_CU_GRAPH_AUTO_FREE_ON_LAUNCH));
  assert_cu(d->GraphDestroy(d, graph)); /* the executable does not depend on the graph */

  float ms = 0;
  assert_cu(d->EventRecord(d, x->event, x->other));
  for (int i = 1; i <= 3; i++) {
    assert_cu(d->GraphUpload(d, exec, x->other));
    assert_cu(d->GraphLaunch(d, exec, x->other));
    assert_int_equal(calls, i);
    assert_int_equal(more_calls, i);
  }
  assert_cu(d->EventRecord(d, x->back, x->other));
  assert_cu(d->EventElapsedTime(d, &ms, x->event, x->back));
  assert_true(ms == 0.012f);
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu_error(INVALID_VALUE, d->GraphExecDestroy(d, exec));
  assert_cu_error(INVALID_VALUE, d->GraphLaunch(d, exec, x->other));
  assert_cu_error(INVALID_VALUE, d->GraphDestroy(d, graph));
  assert_cu_error(INVALID_VALUE, d->GraphInstantiate(d, &exec, graph, 0));
}

TEST(empty_graph) {
  scene *x = *state;
  weir_cu_graph graph = NULL;
  weir_cu_graph_exec exec;
  assert_cu(x->d->StreamBeginCapture(x->d, x->s, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(end(x, &graph));
  assert_int_equal(node_count(x, graph), 0);
  assert_cu(x->d->GraphInstantiate(x->d, &exec, graph, 0));
  assert_cu(x->d->GraphLaunch(x->d, exec, x->s));
  assert_cu_error(INVALID_VALUE, x->d->GraphInstantiate(x->d, &exec, graph, 1 << 20));
  uint64_t held = 7;
  assert_cu(x->d->DeviceGetGraphMemAttribute(x->d, 0, WEIR_CU_GRAPH_MEM_ATTR_RESERVED_CURRENT, &held));
  assert_int_equal(held, 0);
  assert_cu(x->d->DeviceGetGraphMemAttribute(x->d, 0, WEIR_CU_GRAPH_MEM_ATTR_USED_CURRENT, &held));
  assert_cu(x->d->DeviceGetGraphMemAttribute(x->d, 0, WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH, &held));
  assert_cu_error(INVALID_VALUE,
                  x->d->DeviceGetGraphMemAttribute(x->d, 0, WEIR_CU_GRAPH_MEM_ATTR_RESERVED_HIGH + 1, &held));
  assert_cu_error(INVALID_VALUE, x->d->DeviceGetGraphMemAttribute(x->d, 0, -1, &held));
  assert_cu_error(INVALID_DEVICE, x->d->DeviceGetGraphMemAttribute(x->d, 1, WEIR_CU_GRAPH_MEM_ATTR_USED_HIGH, &held));
  assert_cu(x->d->DeviceGraphMemTrim(x->d, 0));
  assert_cu_error(INVALID_DEVICE, x->d->DeviceGraphMemTrim(x->d, 1));
}

TEST(dependencies_of_a_fork_and_a_join) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph graph;
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(wait_for(x, x->other, x->s, x->event));
  assert_int_equal(capture_status(x, x->other), WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_cu(work(x, x->s));
  assert_cu(work(x, x->other));
  assert_cu(wait_for(x, x->s, x->other, x->back));

  int status;
  unsigned long long id = 0, other_id = 1;
  const weir_cu_graph_node *at;
  size_t count = 0;
  weir_cu_graph open_graph;
  assert_cu(d->StreamGetCaptureInfo(d, x->s, &status, &id, &open_graph, &at, &count));
  assert_cu(d->StreamGetCaptureInfo(d, x->other, &status, &other_id, NULL, NULL, NULL));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_int_equal(id, other_id);
  assert_int_equal(count, 2);
  const weir_cu_graph_node front[2] = {at[0], at[1]};
  assert_int_equal(node_count(x, open_graph), 3);
  assert_cu(wait_for(x, x->blocking, x->s, x->event)); /* a third stream that waits for both */
  assert_cu(d->StreamGetCaptureInfo(d, x->blocking, &status, NULL, NULL, &at, &count));
  assert_int_equal(count, 2);
  assert_ptr_equal(at[1], front[1]);
  assert_cu_error(INVALID_VALUE, d->GraphDestroy(d, open_graph)); /* it is still being captured */
  assert_cu(work(x, x->s));
  assert_cu(end(x, &graph));
  assert_ptr_equal(graph, open_graph);

  weir_cu_graph_node nodes[8], before[8];
  count = 8;
  assert_cu(d->GraphGetNodes(d, graph, nodes, &count));
  assert_int_equal(count, 4);
  const size_t expected[4] = {0, 1, 1, 2};
  for (int i = 0; i < 4; i++) {
    count = 8;
    assert_cu(d->GraphNodeGetDependencies(d, nodes[i], before, &count));
    assert_int_equal(count, expected[i]);
  }
  for (int i = 0; i < 2; i++) {
    assert_ptr_equal(before[i], nodes[1 + i]); /* of the last node: both branches */
    assert_ptr_equal(front[i], nodes[1 + i]);
  }
  count = 1;
  assert_cu(d->GraphNodeGetDependencies(d, nodes[3], before, &count));
  assert_int_equal(count, 1);
  count = 3;
  assert_cu(d->GraphGetNodes(d, graph, before, &count));
  assert_int_equal(count, 3);
  assert_cu(d->GraphDestroy(d, graph));
  count = 8;
  assert_cu_error(INVALID_VALUE, d->GraphNodeGetDependencies(d, nodes[0], before, &count));
}

TEST(dot_text) {
  scene *x = *state;
  weir_cu_graph graph;
  char path[] = "/tmp/weir_ledger_dot_XXXXXX", text[512] = "";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(x->d->MemcpyAsync(x->d, x->p, x->p + 64, 64, x->s));
  assert_cu(end(x, &graph));
  assert_cu(x->d->GraphDebugDotPrint(x->d, graph, path, 0));
  assert_true(read(fd, text, sizeof text - 1) > 0);
  close(fd);
  unlink(path);
  assert_non_null(strstr(text, "digraph"));
  assert_non_null(strstr(text, "MEMSET"));
  assert_non_null(strstr(text, "MEMCPY"));
  assert_non_null(strstr(text, " -> "));
  assert_cu_error(OPERATING_SYSTEM, x->d->GraphDebugDotPrint(x->d, graph, "/nonexistent/graph.dot", 0));
}

/* ---- The ends of a capture ---- */

TEST(misplaced_begin_and_end) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph graph = (weir_cu_graph)1;
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamBeginCapture(d, NULL, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamBeginCapture(d, WEIR_CU_STREAM_LEGACY, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu_error(INVALID_VALUE, d->StreamBeginCapture(d, x->s, 7));
  assert_cu_error(ILLEGAL_STATE, end(x, &graph));
  assert_null(graph);
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu_error(ILLEGAL_STATE, d->StreamBeginCapture(d, x->s, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu_error(INVALID_VALUE, d->StreamEndCapture(d, x->s, NULL));
  assert_cu(end(x, &graph));
  assert_cu_error(ILLEGAL_STATE, end(x, &graph));
  assert_cu(d->StreamBeginCapture(d, WEIR_CU_STREAM_PER_THREAD, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(work(x, WEIR_CU_STREAM_PER_THREAD));
  assert_cu(d->StreamEndCapture(d, WEIR_CU_STREAM_PER_THREAD, &graph));
  assert_int_equal(node_count(x, graph), 1);
}

TEST(ending_on_another_stream_invalidates) {
  scene *x = *state;
  weir_cu_graph graph = (weir_cu_graph)1;
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu(wait_for(x, x->other, x->s, x->event));
  assert_cu_error(STREAM_CAPTURE_UNMATCHED, x->d->StreamEndCapture(x->d, x->other, &graph));
  assert_null(graph);
  assert_int_equal(capture_status(x, x->s), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, work(x, x->s));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, end(x, &graph));
  assert_int_equal(capture_status(x, x->s), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_int_equal(capture_status(x, x->other), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_cu(work(x, x->s));
}

TEST(unjoined_work) {
  scene *x = *state;
  weir_cu_graph graph = (weir_cu_graph)1;
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu(wait_for(x, x->other, x->s, x->event));
  assert_cu(work(x, x->other));
  assert_cu_error(STREAM_CAPTURE_UNJOINED, end(x, &graph));
  assert_null(graph);
  assert_int_equal(capture_status(x, x->other), WEIR_CU_CAPTURE_STATUS_NONE);

  /* Work after the join is unjoined too. */
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu(wait_for(x, x->other, x->s, x->event));
  assert_cu(work(x, x->other));
  assert_cu(wait_for(x, x->s, x->other, x->back));
  assert_cu(work(x, x->other));
  assert_cu_error(STREAM_CAPTURE_UNJOINED, end(x, &graph));

  /* A stream that joined without work need not be joined back. */
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu(wait_for(x, x->other, x->s, x->event));
  assert_cu(end(x, &graph));
  assert_int_equal(capture_status(x, x->other), WEIR_CU_CAPTURE_STATUS_NONE);
}

TEST(destroying_a_capturing_stream) {
  scene *x = *state;
  weir_cu_graph graph;
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(wait_for(x, x->other, x->s, x->event));
  assert_cu(wait_for(x, x->blocking, x->s, x->event));
  assert_cu(x->d->StreamDestroy(x->d, x->other)); /* a stream that joined */
  assert_int_equal(capture_status(x, x->s), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, end(x, &graph));
  assert_int_equal(capture_status(x, x->blocking), WEIR_CU_CAPTURE_STATUS_NONE);
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(x->d->StreamDestroy(x->d, x->s)); /* the origin stream */
  assert_cu(x->d->CtxSynchronize(x->d));
}

TEST(captures_end_with_the_context) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_context context;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(end(x, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  begin(x, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(d->StreamBeginCapture(d, WEIR_CU_STREAM_PER_THREAD, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(work(x, WEIR_CU_STREAM_PER_THREAD));
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  assert_cu(d->CtxSetCurrent(d, context));
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(capture_status(x, WEIR_CU_STREAM_PER_THREAD), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_cu_error(INVALID_VALUE, d->GraphDestroy(d, graph));
  assert_cu_error(INVALID_VALUE, d->GraphExecDestroy(d, exec));
}

/* ---- What a capture forbids ---- */

typedef weir_cu_result (*action)(scene *x);

static weir_cu_result do_alloc(scene *x) {
  weir_cu_deviceptr p;
  return x->d->MemAlloc(x->d, &p, 1);
}
static weir_cu_result do_free(scene *x) { return x->d->MemFree(x->d, x->p); }
static weir_cu_result do_free_null(scene *x) { return x->d->MemFree(x->d, 0); }
static weir_cu_result do_host_alloc(scene *x) {
  void *p;
  return x->d->MemHostAlloc(x->d, &p, 1, 0);
}
static weir_cu_result do_register(scene *x) { return x->d->MemHostRegister(x->d, &x->d, sizeof x->d, 0); }
static weir_cu_result do_query_event(scene *x) { return x->d->EventQuery(x->d, x->done); }
static weir_cu_result do_wait_event(scene *x) { return x->d->EventSynchronize(x->d, x->unused); }
static weir_cu_result do_query_other(scene *x) { return x->d->StreamQuery(x->d, x->other); }
static weir_cu_result do_wait_other(scene *x) { return x->d->StreamSynchronize(x->d, x->other); }
static weir_cu_result do_load(scene *x) {
  weir_cu_module module;
  return x->d->ModuleLoadData(x->d, &module, SPIN_PTX);
}
static weir_cu_result do_free_host(scene *x) { return x->d->MemFreeHost(x->d, x->host); }
static weir_cu_result do_unregister(scene *x) { return x->d->MemHostUnregister(x->d, x->registered); }
static weir_cu_result do_unload(scene *x) { return x->d->ModuleUnload(x->d, x->module); }
static weir_cu_result do_instantiate(scene *x) {
  weir_cu_graph_exec exec;
  return x->d->GraphInstantiate(x->d, &exec, x->graph, 0);
}
static weir_cu_result do_destroy_exec(scene *x) { return x->d->GraphExecDestroy(x->d, x->exec); }
static weir_cu_result do_launch_other(scene *x) { return x->d->GraphLaunch(x->d, x->exec, x->other); }
static weir_cu_result do_profile(scene *x) { return x->d->ProfilerStart(x->d); }
static weir_cu_result do_profile_end(scene *x) { return x->d->ProfilerStop(x->d); }
static weir_cu_result do_copy_now(scene *x) { return x->d->Memcpy(x->d, x->p, x->p + 64, 64); }
static weir_cu_result do_alloc_async_other(scene *x) {
  weir_cu_deviceptr p;
  return x->d->MemAllocAsync(x->d, &p, 1, x->other);
}
static weir_cu_result do_alloc_pool_other(scene *x) {
  weir_cu_deviceptr p;
  return x->d->MemAllocFromPoolAsync(x->d, &p, 1, x->pool, x->other);
}
static weir_cu_result do_free_async_other(scene *x) { return x->d->MemFreeAsync(x->d, x->p, x->other); }
static weir_cu_result do_trim(scene *x) { return x->d->MemPoolTrimTo(x->d, x->pool, 0); }
static weir_cu_result do_get_pool_value(scene *x) {
  uint64_t value;
  return x->d->MemPoolGetAttribute(x->d, x->pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, &value);
}
static weir_cu_result do_set_pool_value(scene *x) {
  uint64_t value = 0;
  return x->d->MemPoolSetAttribute(x->d, x->pool, WEIR_CU_MEMPOOL_ATTR_USED_HIGH, &value);
}
static weir_cu_result do_new_pool(scene *x) {
  weir_cu_mempool_props props = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mempool pool;
  return x->d->MemPoolCreate(x->d, &pool, &props);
}
static weir_cu_result do_destroy_pool(scene *x) { return x->d->MemPoolDestroy(x->d, x->pool); }
static weir_cu_result do_use_pool(scene *x) { return x->d->DeviceSetMemPool(x->d, 0, x->pool); }
static weir_cu_result do_share_pool(scene *x) {
  weir_cu_mem_access access = access_of(0, WEIR_CU_ACCESS_READWRITE);
  return x->d->MemPoolSetAccess(x->d, x->pool, &access, 1);
}
static weir_cu_result do_get_pool(scene *x) {
  weir_cu_mempool pool;
  return x->d->DeviceGetMemPool(x->d, &pool, 0);
}
static weir_cu_result do_reserve(scene *x) {
  weir_cu_deviceptr p;
  return x->d->MemAddressReserve(x->d, &p, PAGE, 0, 0, 0);
}
static weir_cu_result do_create(scene *x) {
  weir_cu_mem_handle handle;
  weir_cu_mem_prop prop = memory_of(0);
  return x->d->MemCreate(x->d, &handle, PAGE, &prop, 0);
}
static weir_cu_result do_info(scene *x) {
  size_t a, b;
  return x->d->MemGetInfo(x->d, &a, &b);
}
static weir_cu_result do_new_event(scene *x) {
  weir_cu_event event;
  return x->d->EventCreate(x->d, &event, 0);
}
static weir_cu_result do_new_stream(scene *x) {
  weir_cu_stream stream;
  return x->d->StreamCreateWithPriority(x->d, &stream, 1, 0);
}
static weir_cu_result do_work_other(scene *x) { return work(x, x->other); }
static weir_cu_result do_work_legacy(scene *x) { return work(x, NULL); }
static weir_cu_result do_record_other(scene *x) { return x->d->EventRecord(x->d, x->unused, x->other); }
static weir_cu_result do_elapsed(scene *x) {
  float ms;
  return x->d->EventElapsedTime(x->d, &ms, x->done, x->done);
}
static weir_cu_result do_wait_unrecorded(scene *x) { return x->d->StreamWaitEvent(x->d, x->s, x->unused, 0); }
static weir_cu_result do_query_self(scene *x) { return x->d->StreamQuery(x->d, x->s); }
static weir_cu_result do_wait_self(scene *x) { return x->d->StreamSynchronize(x->d, x->s); }
static weir_cu_result do_wait_all(scene *x) { return x->d->CtxSynchronize(x->d); }
static weir_cu_result do_alloc_async(scene *x) {
  weir_cu_deviceptr p;
  return x->d->MemAllocAsync(x->d, &p, 1, x->s);
}
static weir_cu_result do_wait_outside(scene *x) { return x->d->StreamWaitEvent(x->d, x->s, x->done, 0); }
static weir_cu_result do_query_captured(scene *x) {
  assert_cu(x->d->EventRecord(x->d, x->event, x->s));
  return x->d->EventQuery(x->d, x->event);
}
static weir_cu_result do_elapsed_captured(scene *x) {
  float ms;
  assert_cu(x->d->EventRecord(x->d, x->event, x->s));
  assert_cu_error(CAPTURED_EVENT, x->d->EventElapsedTime(x->d, &ms, x->event, x->done));
  return x->d->EventElapsedTime(x->d, &ms, x->done, x->event);
}
static weir_cu_result do_destroy_captured(scene *x) {
  assert_cu(x->d->EventRecord(x->d, x->event, x->s));
  return x->d->EventDestroy(x->d, x->event);
}

/* The result of an action in a strict and in a relaxed capture. A failing action invalidates the capture unless `keeps`
 * is set. */
static const struct {
  const char *name;
  action act;
  weir_cu_result strict, relaxed;
  int keeps;
} actions[] = {
#define ROW(name, strict, relaxed)                                                                                     \
  { #name, do_##name, WEIR_CU_##strict, WEIR_CU_##relaxed, 0 }
    ROW(alloc, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(free, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(free_null, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(host_alloc, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(register, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(query_event, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(wait_event, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(query_other, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(wait_other, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(free_host, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(unregister, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(unload, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(instantiate, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(destroy_exec, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(profile, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(profile_end, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(alloc_async_other, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(alloc_pool_other, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(free_async_other, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(trim, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(get_pool_value, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(set_pool_value, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(new_pool, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(destroy_pool, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(use_pool, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(share_pool, STREAM_CAPTURE_UNSUPPORTED, SUCCESS),
    ROW(load, SUCCESS, SUCCESS),
    ROW(copy_now, SUCCESS, SUCCESS),
    ROW(launch_other, SUCCESS, SUCCESS),
    ROW(get_pool, SUCCESS, SUCCESS),
    ROW(reserve, SUCCESS, SUCCESS),
    ROW(create, SUCCESS, SUCCESS),
    ROW(info, SUCCESS, SUCCESS),
    ROW(new_event, SUCCESS, SUCCESS),
    ROW(new_stream, SUCCESS, SUCCESS),
    ROW(work_other, SUCCESS, SUCCESS),
    ROW(work_legacy, SUCCESS, SUCCESS),
    ROW(record_other, SUCCESS, SUCCESS),
    ROW(elapsed, SUCCESS, SUCCESS),
    ROW(wait_unrecorded, SUCCESS, SUCCESS),
    ROW(destroy_captured, SUCCESS, SUCCESS),
    ROW(query_self, STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_UNSUPPORTED),
    ROW(wait_self, STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_UNSUPPORTED),
    ROW(wait_all, STREAM_CAPTURE_UNSUPPORTED, STREAM_CAPTURE_UNSUPPORTED),
    ROW(alloc_async, SUCCESS, SUCCESS),
    ROW(wait_outside, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_ISOLATION),
    ROW(query_captured, CAPTURED_EVENT, CAPTURED_EVENT),
#undef ROW
    {"elapsed_captured", do_elapsed_captured, WEIR_CU_CAPTURED_EVENT, WEIR_CU_CAPTURED_EVENT, 1},
};

TEST_SETUP(every_action_in_every_mode, NULL, NULL) {
  for (size_t i = 0; i < sizeof actions / sizeof actions[0]; i++) {
    for (int mode = WEIR_CU_CAPTURE_GLOBAL; mode <= WEIR_CU_CAPTURE_RELAXED; mode++) {
      for (int thread_mode = WEIR_CU_CAPTURE_GLOBAL; thread_mode <= WEIR_CU_CAPTURE_RELAXED; thread_mode++) {
        scene *x = NULL;
        set_up((void **)&x);
        int exchanged = thread_mode;
        assert_cu(x->d->ThreadExchangeStreamCaptureMode(x->d, &exchanged));
        assert_int_equal(exchanged, WEIR_CU_CAPTURE_GLOBAL);
        bool relaxed = mode == WEIR_CU_CAPTURE_RELAXED || thread_mode == WEIR_CU_CAPTURE_RELAXED;
        weir_cu_result expected = relaxed ? actions[i].relaxed : actions[i].strict;
        begin(x, mode);
        weir_cu_result result = actions[i].act(x);
        weir_cu_graph graph;
        bool invalid = expected != WEIR_CU_SUCCESS && !actions[i].keeps;
        weir_cu_result expected_end = invalid ? WEIR_CU_STREAM_CAPTURE_INVALIDATED : WEIR_CU_SUCCESS;
        weir_cu_result ended = end(x, &graph);
        if (result != expected || ended != expected_end)
          fail_msg("%s, capture mode %d, thread mode %d: %d and end %d; expected %d and end %d", actions[i].name, mode,
                   thread_mode, result, ended, expected, expected_end);
        tear_down((void **)&x);
      }
    }
  }
}

TEST(the_legacy_stream_and_blocking_captures) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph graph;
  int status;
  assert_cu(d->StreamBeginCapture(d, x->blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->StreamIsCapturing(d, NULL, &status));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->StreamGetCaptureInfo(d, NULL, &status, NULL, NULL, NULL, NULL));
  assert_int_equal(capture_status(x, x->s), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_cu(work(x, x->blocking)); /* a query does not invalidate it */
  assert_cu(d->StreamEndCapture(d, x->blocking, &graph));
  for (int way = 0; way < 5; way++) {
    assert_cu(d->StreamBeginCapture(d, x->blocking, WEIR_CU_CAPTURE_RELAXED));
    weir_cu_result result = way == 0   ? work(x, NULL)
                            : way == 1 ? d->StreamSynchronize(d, NULL)
                            : way == 2 ? d->StreamQuery(d, WEIR_CU_STREAM_LEGACY)
                            : way == 3 ? d->EventRecord(d, x->unused, NULL)
                                       : d->Memcpy(d, x->p, x->p + 64, 64);
    assert_cu_error(STREAM_CAPTURE_IMPLICIT, result);
    assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, x->blocking, &graph));
  }
  assert_cu(work(x, NULL));
}

TEST(merging_two_captures) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph graph;
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu(d->StreamBeginCapture(d, x->other, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(work(x, x->other));
  assert_cu_error(STREAM_CAPTURE_MERGE, wait_for(x, x->other, x->s, x->event));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, end(x, &graph));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, x->other, &graph));

  /* An event of an ended capture cannot be used until it is recorded again. */
  assert_cu_error(INVALID_VALUE, d->EventQuery(d, x->event));
  assert_cu_error(INVALID_VALUE, d->StreamWaitEvent(d, x->other, x->event, 0));
  assert_cu(d->EventRecord(d, x->event, x->other));
  assert_cu(d->EventSynchronize(d, x->event));
}

TEST(two_captures_side_by_side) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph one, two;
  unsigned long long id_one, id_two;
  int status;
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu(d->StreamBeginCapture(d, x->other, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(work(x, x->other));
  assert_cu(work(x, x->other));
  assert_cu(d->StreamGetCaptureInfo(d, x->s, &status, &id_one, NULL, NULL, NULL));
  assert_cu(d->StreamGetCaptureInfo(d, x->other, &status, &id_two, NULL, NULL, NULL));
  assert_int_not_equal(id_one, id_two);
  assert_cu(end(x, &one));
  assert_cu(d->StreamEndCapture(d, x->other, &two));
  assert_int_equal(node_count(x, one), 1);
  assert_int_equal(node_count(x, two), 2);
}

TEST(what_cannot_be_captured) {
  scene *x = *state;
  weir_driver *d = x->d;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_context context;
  weir_cu_deviceptr pooled;
  assert_cu(d->CtxGetCurrent(d, &context));
  assert_cu(d->MemAllocAsync(d, &pooled, 100, x->other));
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu_error(INVALID_VALUE,
                  d->MemFreeAsync(d, pooled, x->s)); /* not memory of this capture; does not invalidate it */
  assert_cu(end(x, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->GraphLaunch(d, exec, x->s));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, end(x, &graph));
  begin(x, WEIR_CU_CAPTURE_RELAXED);
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->MemcpyPeerAsync(d, x->p, context, x->p + 64, context, 64, x->s));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, end(x, &graph));
  int mode = 7;
  assert_cu_error(INVALID_VALUE, d->ThreadExchangeStreamCaptureMode(d, &mode));
}

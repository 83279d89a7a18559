/*
 * Capture: the calls that are allowed, by mode and thread, and how a capture ends.
 */
#include "driver/rules.h"

/* ---- Effects of calls on a capture ---- */

/* Objects of every kind, for the calls to use. */
struct bench {
  weir_cu_stream s, o, b; /* the capturing stream, another one, a blocking one */
  weir_cu_event unrecorded, done, captured, other;
  weir_cu_deviceptr p, q, space, pooled;
  void *host, *registered;
  weir_cu_mem_handle handle;
  bool is_mapped;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  weir_cu_mempool pool;

  /* Outputs of the calls. */
  weir_cu_deviceptr new_memory, new_space;
  void *new_host, *new_registered;
  weir_cu_mem_handle new_handle;
  weir_cu_event new_event;
  weir_cu_stream new_stream;
  weir_cu_module new_module;
  weir_cu_graph_exec new_exec;
};

static const size_t g = 2 * MIB;
static const weir_cu_mem_prop device_memory = {.type = WEIR_CU_ALLOCATION_PINNED,
                                               .location = {WEIR_CU_LOCATION_DEVICE, 0}};
static char pageable[100];

static void bench_open(struct bench *e) {
  *e = (struct bench){.s = stream_new(),
                      .o = stream_new(),
                      .b = stream_new_blocking(),
                      .unrecorded = event_new(0),
                      .done = event_new(0),
                      .captured = event_new(0),
                      .other = event_new(0),
                      .p = mem_new(MIB),
                      .q = mem_new(MIB),
                      .host = host_new(4096),
                      .registered = aligned_alloc(4096, 8192),
                      .new_registered = aligned_alloc(4096, 4096)};
  assert_non_null(e->registered);
  assert_non_null(e->new_registered);
  assert_cu(d->EventRecord(d, e->done, e->o));
  assert_cu(d->StreamSynchronize(d, e->o));
  assert_cu(d->MemHostRegister(d, e->registered, 8192, 0));
  assert_cu(d->MemAddressReserve(d, &e->space, 8 * g, 0, 0, 0));
  assert_cu(d->MemCreate(d, &e->handle, g, &device_memory, 0));
  assert_cu(d->StreamBeginCapture(d, e->o, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, e->p, 1, 100, e->o));
  assert_cu(d->StreamEndCapture(d, e->o, &e->graph));
  assert_cu(d->GraphInstantiate(d, &e->exec, e->graph, 0));
  assert_cu(d->DeviceGetDefaultMemPool(d, &e->pool, 0));
  assert_cu(d->MemAllocAsync(d, &e->pooled, MIB, e->o));
  assert_cu(d->StreamSynchronize(d, e->o));
}

static void unregister_and_free(void *memory) {
  unsigned type;
  if (!d->PointerGetAttribute(d, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE, address_of(memory)))
    assert_cu(d->MemHostUnregister(d, memory));
  free(memory);
}

static void bench_close(struct bench *e) {
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemFree(d, e->p));
  assert_cu(d->MemFree(d, e->q));
  assert_cu(d->MemFree(d, e->pooled));
  assert_cu(d->MemFree(d, e->new_memory));
  assert_cu(d->MemFreeHost(d, e->host));
  assert_cu(d->MemFreeHost(d, e->new_host));
  unregister_and_free(e->registered);
  unregister_and_free(e->new_registered);
  if (e->is_mapped)
    assert_cu(d->MemUnmap(d, e->space, g));
  if (e->space)
    assert_cu(d->MemAddressFree(d, e->space, 8 * g));
  if (e->new_space)
    assert_cu(d->MemAddressFree(d, e->new_space, g));
  if (e->handle)
    assert_cu(d->MemRelease(d, e->handle));
  if (e->new_handle)
    assert_cu(d->MemRelease(d, e->new_handle));
  if (e->graph)
    assert_cu(d->GraphDestroy(d, e->graph));
  if (e->exec)
    assert_cu(d->GraphExecDestroy(d, e->exec));
  if (e->new_exec)
    assert_cu(d->GraphExecDestroy(d, e->new_exec));
  if (e->new_module)
    assert_cu(d->ModuleUnload(d, e->new_module));
  weir_cu_event events[] = {e->unrecorded, e->done, e->captured, e->other, e->new_event};
  for (size_t i = 0; i < sizeof events / sizeof *events; i++)
    if (events[i])
      assert_cu(d->EventDestroy(d, events[i]));
  weir_cu_stream streams[] = {e->s, e->o, e->b, e->new_stream};
  for (size_t i = 0; i < sizeof streams / sizeof *streams; i++)
    if (streams[i])
      assert_cu(d->StreamDestroy(d, streams[i]));
}

/* For calls that destroy an object: forget it if they succeed. */
#define GONE(field, call)                                                                                              \
  do {                                                                                                                 \
    weir_cu_result result_ = (call);                                                                                   \
    if (!result_)                                                                                                      \
      e->field = 0;                                                                                                    \
    return result_;                                                                                                    \
  } while (0)

#define ACT(name) static weir_cu_result name(struct bench *e)

ACT(act_alloc) { return d->MemAlloc(d, &e->new_memory, MIB); }
ACT(act_free) { GONE(q, d->MemFree(d, e->q)); }
ACT(act_free_nothing) {
  (void)e;
  return d->MemFree(d, 0);
}
ACT(act_host_alloc) { return d->MemHostAlloc(d, &e->new_host, 4096, 0); }
ACT(act_host_free) { GONE(host, d->MemFreeHost(d, e->host)); }
ACT(act_register) { return d->MemHostRegister(d, e->new_registered, 4096, 0); }
ACT(act_unregister) { return d->MemHostUnregister(d, e->registered); }
ACT(act_reserve) { return d->MemAddressReserve(d, &e->new_space, g, 0, 0, 0); }
ACT(act_reserve_badly) { return d->MemAddressReserve(d, &e->new_space, 12345, 0, 0, 0); }
ACT(act_create) { return d->MemCreate(d, &e->new_handle, g, &device_memory, 0); }
ACT(act_map) {
  weir_cu_result r = d->MemMap(d, e->space, g, 0, e->handle, 0);
  e->is_mapped = !r;
  return r;
}
ACT(act_map_and_access) {
  static const weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  weir_cu_result r = act_map(e);
  return r ? r : d->MemSetAccess(d, e->space, g, &access, 1);
}
ACT(act_map_and_unmap) {
  weir_cu_result r = act_map(e);
  if (!r)
    r = d->MemUnmap(d, e->space, g);
  e->is_mapped = r;
  return r;
}
ACT(act_release) { GONE(handle, d->MemRelease(d, e->handle)); }
ACT(act_address_free) { GONE(space, d->MemAddressFree(d, e->space, 8 * g)); }
ACT(act_info) {
  size_t free_bytes, total;
  (void)e;
  return d->MemGetInfo(d, &free_bytes, &total);
}
ACT(act_event_create) { return d->EventCreate(d, &e->new_event, 0); }
ACT(act_event_destroy) { GONE(unrecorded, d->EventDestroy(d, e->unrecorded)); }
ACT(act_query_unrecorded) { return d->EventQuery(d, e->unrecorded); }
ACT(act_query_done) { return d->EventQuery(d, e->done); }
ACT(act_sync_done) { return d->EventSynchronize(d, e->done); }
ACT(act_sync_unrecorded) { return d->EventSynchronize(d, e->unrecorded); }
ACT(act_elapsed) {
  float milliseconds;
  return d->EventElapsedTime(d, &milliseconds, e->done, e->done);
}
ACT(act_record_elsewhere) { return d->EventRecord(d, e->other, e->o); }
ACT(act_stream_create) { return d->StreamCreateWithPriority(d, &e->new_stream, WEIR_CU_STREAM_NON_BLOCKING, 0); }
ACT(act_stream_destroy) { GONE(o, d->StreamDestroy(d, e->o)); }
ACT(act_query_other_stream) { return d->StreamQuery(d, e->o); }
ACT(act_query_itself) { return d->StreamQuery(d, e->s); }
ACT(act_flags_of_itself) {
  unsigned flags;
  return d->StreamGetFlags(d, e->s, &flags);
}
ACT(act_sync_other_stream) { return d->StreamSynchronize(d, e->o); }
ACT(act_sync_itself) { return d->StreamSynchronize(d, e->s); }
ACT(act_sync_context) {
  (void)e;
  return d->CtxSynchronize(d);
}
ACT(act_copy) { return d->Memcpy(d, e->p, e->q, 100); }
ACT(act_copy_elsewhere) { return d->MemcpyAsync(d, e->p, e->q, 100, e->o); }
ACT(act_copy_in_legacy) { return d->MemcpyAsync(d, e->p, e->q, 100, NULL); }
ACT(act_fill_in_legacy) { return d->MemsetD8Async(d, e->p, 1, 10, NULL); }
ACT(act_fill_in_blocking) { return d->MemsetD8Async(d, e->p, 1, 10, e->b); }
ACT(act_is_legacy_capturing) {
  int status = -1;
  (void)e;
  weir_cu_result r = d->StreamIsCapturing(d, NULL, &status);
  return r ? r : status;
}
ACT(act_wait_for_outside) { return d->StreamWaitEvent(d, e->s, e->done, 0); }
ACT(act_wait_for_unrecorded) { return d->StreamWaitEvent(d, e->s, e->unrecorded, 0); }
ACT(act_load_module) { return d->ModuleLoadData(d, &e->new_module, spin_ptx); }
ACT(act_unload_module) {
  weir_cu_result r = act_load_module(e);
  if (r)
    return r;
  GONE(new_module, d->ModuleUnload(d, e->new_module));
}
ACT(act_instantiate) { return d->GraphInstantiate(d, &e->new_exec, e->graph, 0); }
ACT(act_launch_elsewhere) { return d->GraphLaunch(d, e->exec, e->o); }
ACT(act_launch_in_itself) { return d->GraphLaunch(d, e->exec, e->s); }
ACT(act_upload) { return d->GraphUpload(d, e->exec, e->o); }
ACT(act_upload_in_itself) { return d->GraphUpload(d, e->exec, e->s); }
ACT(act_graph_destroy) { GONE(graph, d->GraphDestroy(d, e->graph)); }
ACT(act_exec_destroy) { GONE(exec, d->GraphExecDestroy(d, e->exec)); }
ACT(act_alloc_async) {
  weir_cu_deviceptr pointer;
  return d->MemAllocAsync(d, &pointer, 4096, e->s);
}
ACT(act_alloc_async_elsewhere) { return d->MemAllocAsync(d, &e->new_memory, 4096, e->o); }
ACT(act_free_async) { return d->MemFreeAsync(d, e->pooled, e->s); }
ACT(act_trim) { return d->MemPoolTrimTo(d, e->pool, 0); }
ACT(act_pool_attribute) {
  uint64_t value;
  return d->MemPoolGetAttribute(d, e->pool, WEIR_CU_MEMPOOL_ATTR_USED_CURRENT, &value);
}
static void do_nothing(void *data) { (void)data; }
ACT(act_host_function) { return d->LaunchHostFunc(d, e->s, do_nothing, NULL); }
ACT(act_begin_again) { return d->StreamBeginCapture(d, e->s, WEIR_CU_CAPTURE_GLOBAL); }
ACT(act_pointer_attribute) {
  int ordinal;
  return d->PointerGetAttribute(d, &ordinal, WEIR_CU_POINTER_ATTR_DEVICE_ORDINAL, e->p);
}
ACT(act_retain) {
  weir_cu_context context;
  (void)e;
  weir_cu_result r = d->DevicePrimaryCtxRetain(d, &context, 0);
  return r ? r : d->DevicePrimaryCtxRelease(d, 0);
}
ACT(act_copy_pageable) { return d->MemcpyAsync(d, e->p, address_of(pageable), 100, e->s); }
ACT(act_copy_back_pageable) { return d->MemcpyAsync(d, address_of(pageable), e->p, 100, e->s); }
ACT(act_copy_pinned) { return d->MemcpyAsync(d, e->p, address_of(e->host), 100, e->s); }
ACT(act_query_captured) {
  weir_cu_result r = d->EventRecord(d, e->captured, e->s);
  return r ? r : d->EventQuery(d, e->captured);
}
ACT(act_sync_captured) {
  weir_cu_result r = d->EventRecord(d, e->captured, e->s);
  return r ? r : d->EventSynchronize(d, e->captured);
}
ACT(act_elapsed_captured) {
  float milliseconds;
  weir_cu_result r = d->EventRecord(d, e->captured, e->s);
  return r ? r : d->EventElapsedTime(d, &milliseconds, e->captured, e->captured);
}
ACT(act_destroy_captured) {
  weir_cu_result r = d->EventRecord(d, e->captured, e->s);
  if (r)
    return r;
  GONE(captured, d->EventDestroy(d, e->captured));
}
ACT(act_fork_without_work) {
  weir_cu_result r = d->EventRecord(d, e->captured, e->s);
  return r ? r : d->StreamWaitEvent(d, e->o, e->captured, 0);
}
ACT(act_ipc_handle) {
  weir_cu_ipc_mem_handle handle;
  return d->IpcGetMemHandle(d, &handle, e->p);
}
ACT(act_address_range) {
  weir_cu_deviceptr base;
  size_t bytes;
  return d->MemGetAddressRange(d, &base, &bytes, e->p);
}
ACT(act_profiler) {
  (void)e;
  return d->ProfilerStart(d);
}
ACT(act_peer_copy) { return d->MemcpyPeerAsync(d, e->p, ctx, e->q, ctx, 100, e->s); }
ACT(act_fill_nothing) { return d->MemsetD8Async(d, e->p, 1, 0, e->s); }
ACT(act_copy_nothing) { return d->MemcpyAsync(d, e->p, e->q, 0, e->s); }
ACT(act_fill_nowhere) { return d->MemsetD8Async(d, 0x10, 1, 10, e->s); }

/* A call, its result in a capture of each mode, and whether it ends the capture. Otherwise the graph has `nodes` nodes,
 * one of them from before the call. */
struct rule {
  const char *name;
  weir_cu_result (*act)(struct bench *);
  weir_cu_result result[3];
  bool breaks[3];
  size_t nodes;
};

#define RULE_OF(act, global, thread_local, relaxed, b0, b1, b2, nodes)                                                 \
  { #act, act, {global, thread_local, relaxed }, {b0, b1, b2 }, nodes }
#define ALLOWED(act, nodes) RULE_OF(act, 0, 0, 0, false, false, false, nodes)
#define UNSAFE(act)                                                                                                    \
  RULE_OF(act, WEIR_CU_STREAM_CAPTURE_UNSUPPORTED, WEIR_CU_STREAM_CAPTURE_UNSUPPORTED, 0, true, true, false, 1)
#define BREAKS(act, code) RULE_OF(act, WEIR_CU_##code, WEIR_CU_##code, WEIR_CU_##code, true, true, true, 1)
#define FAILS(act, code) RULE_OF(act, WEIR_CU_##code, WEIR_CU_##code, WEIR_CU_##code, false, false, false, 1)

static const struct rule rules[] = {
    UNSAFE(act_alloc),
    UNSAFE(act_free),
    UNSAFE(act_free_nothing),
    UNSAFE(act_host_alloc),
    UNSAFE(act_host_free),
    UNSAFE(act_register),
    UNSAFE(act_unregister),
    ALLOWED(act_reserve, 1),
    FAILS(act_reserve_badly, INVALID_VALUE),
    ALLOWED(act_create, 1),
    ALLOWED(act_map, 1),
    ALLOWED(act_map_and_access, 1),
    ALLOWED(act_map_and_unmap, 1),
    ALLOWED(act_release, 1),
    ALLOWED(act_address_free, 1),
    ALLOWED(act_info, 1),
    ALLOWED(act_event_create, 1),
    ALLOWED(act_event_destroy, 1),
    UNSAFE(act_query_unrecorded),
    UNSAFE(act_query_done),
    UNSAFE(act_sync_done),
    UNSAFE(act_sync_unrecorded),
    ALLOWED(act_elapsed, 1),
    ALLOWED(act_record_elsewhere, 1),
    ALLOWED(act_stream_create, 1),
    ALLOWED(act_stream_destroy, 1),
    UNSAFE(act_query_other_stream),
    BREAKS(act_query_itself, STREAM_CAPTURE_UNSUPPORTED),
    BREAKS(act_flags_of_itself, STREAM_CAPTURE_UNSUPPORTED),
    UNSAFE(act_sync_other_stream),
    BREAKS(act_sync_itself, STREAM_CAPTURE_UNSUPPORTED),
    BREAKS(act_sync_context, STREAM_CAPTURE_UNSUPPORTED),
    ALLOWED(act_copy, 1),
    ALLOWED(act_copy_elsewhere, 1),
    ALLOWED(act_copy_in_legacy, 1),
    ALLOWED(act_is_legacy_capturing, 1),
    ALLOWED(act_fill_in_legacy, 1),
    ALLOWED(act_fill_in_blocking, 1),
    BREAKS(act_wait_for_outside, STREAM_CAPTURE_ISOLATION),
    ALLOWED(act_wait_for_unrecorded, 1),
    ALLOWED(act_load_module, 1),
    UNSAFE(act_unload_module),
    UNSAFE(act_instantiate),
    ALLOWED(act_launch_elsewhere, 1),
    BREAKS(act_launch_in_itself, STREAM_CAPTURE_UNSUPPORTED),
    ALLOWED(act_upload, 1),
    BREAKS(act_upload_in_itself, STREAM_CAPTURE_UNSUPPORTED),
    ALLOWED(act_graph_destroy, 1),
    UNSAFE(act_exec_destroy),
    ALLOWED(act_alloc_async, 2),
    UNSAFE(act_alloc_async_elsewhere),
    FAILS(act_free_async, INVALID_VALUE),
    UNSAFE(act_trim),
    UNSAFE(act_pool_attribute),
    ALLOWED(act_host_function, 2),
    FAILS(act_begin_again, ILLEGAL_STATE),
    ALLOWED(act_pointer_attribute, 1),
    ALLOWED(act_retain, 1),
    ALLOWED(act_copy_pageable, 2),
    ALLOWED(act_copy_back_pageable, 2),
    ALLOWED(act_copy_pinned, 2),
    BREAKS(act_query_captured, CAPTURED_EVENT),
    BREAKS(act_sync_captured, CAPTURED_EVENT),
    FAILS(act_elapsed_captured, CAPTURED_EVENT),
    ALLOWED(act_destroy_captured, 1),
    ALLOWED(act_fork_without_work, 1),
    ALLOWED(act_ipc_handle, 1),
    ALLOWED(act_address_range, 1),
    UNSAFE(act_profiler),
    BREAKS(act_peer_copy, STREAM_CAPTURE_UNSUPPORTED),
    ALLOWED(act_fill_nothing, 1),
    ALLOWED(act_copy_nothing, 1),
    ALLOWED(act_fill_nowhere, 2),
};

static const char *const mode_names[] = {"global", "thread-local", "relaxed"};

/* A call on another thread. */
struct call {
  struct bench *bench;
  const struct rule *rule;
  int mode; /* of the thread */
  weir_cu_result set_up, result;
};

static void *make_call(void *data) {
  struct call *call = data;
  int mode = call->mode;
  call->set_up = d->CtxSetCurrent(d, ctx);
  if (!call->set_up)
    call->set_up = d->ThreadExchangeStreamCaptureMode(d, &mode);
  call->result = call->rule->act(call->bench);
  return NULL;
}

static bool is_as_expected(const char *rule, int mode, int thread, const char *what, long found, long expected) {
  if (found != expected)
    print_error("%s in a %s capture%s%s: %s is %ld, expected %ld\n", rule, mode_names[mode],
                thread < 0 ? "" : ", from a thread that is ", thread < 0 ? "" : mode_names[thread], what, found,
                expected);
  return found == expected;
}

/* Makes the call during a capture and checks the effects. `thread` is the mode of the calling thread; -1 for the
 * capturing thread. */
static bool follows(const struct rule *rule, int mode, int thread, weir_cu_result expected, bool breaks) {
  struct bench bench;
  weir_cu_graph graph = (weir_cu_graph)&bench;
  weir_cu_result result;
  size_t nodes = 99;
  int status = -1;
  bench_open(&bench);
  assert_cu(d->StreamBeginCapture(d, bench.s, mode));
  assert_cu(d->MemsetD8Async(d, bench.p, 3, 64, bench.s));
  if (thread < 0)
    result = rule->act(&bench);
  else {
    struct call call = {&bench, rule, thread, -1, -1};
    on_another_thread(make_call, &call);
    assert_cu(call.set_up);
    result = call.result;
  }
  bool good = is_as_expected(rule->name, mode, thread, "the result", result, expected);
  assert_cu(d->StreamIsCapturing(d, bench.s, &status));
  good &= is_as_expected(rule->name, mode, thread, "the capture's status", status,
                         breaks ? WEIR_CU_CAPTURE_STATUS_INVALIDATED : WEIR_CU_CAPTURE_STATUS_ACTIVE);
  weir_cu_result end = d->StreamEndCapture(d, bench.s, &graph);
  good &= is_as_expected(rule->name, mode, thread, "the result of its end", end,
                         breaks ? WEIR_CU_STREAM_CAPTURE_INVALIDATED : WEIR_CU_SUCCESS);
  if (end)
    good &= is_as_expected(rule->name, mode, thread, "whether there is a graph", graph != NULL, false);
  else {
    assert_cu(d->GraphGetNodes(d, graph, NULL, &nodes));
    good &= is_as_expected(rule->name, mode, thread, "the number of nodes", (long)nodes, (long)rule->nodes);
    assert_cu(d->GraphDestroy(d, graph));
  }
  assert_cu(d->CtxSynchronize(d));
  bench_close(&bench);
  return good;
}

static void check_rules(int mode) {
  bool good = true;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    good &= is_waived(rules[i].name) || follows(&rules[i], mode, -1, rules[i].result[mode], rules[i].breaks[mode]);
  assert_true(good);
}

FIXTURE(RULES)

TEST(calls_in_a_global_capture) { check_rules(WEIR_CU_CAPTURE_GLOBAL); }

TEST(calls_in_a_thread_local_capture) { check_rules(WEIR_CU_CAPTURE_THREAD_LOCAL); }

TEST(calls_in_a_relaxed_capture) { check_rules(WEIR_CU_CAPTURE_RELAXED); }

/* An unsafe call on another thread affects the capture if both have the global mode. */
TEST(calls_from_another_thread) {
  static const struct rule calls[] = {UNSAFE(act_alloc), UNSAFE(act_query_done), UNSAFE(act_free)};
  bool good = true;
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    for (int mode = WEIR_CU_CAPTURE_GLOBAL; mode <= WEIR_CU_CAPTURE_RELAXED; mode++)
      for (int thread = WEIR_CU_CAPTURE_GLOBAL; thread <= WEIR_CU_CAPTURE_RELAXED; thread++) {
        bool hurts = mode == WEIR_CU_CAPTURE_GLOBAL && thread == WEIR_CU_CAPTURE_GLOBAL;
        good &= follows(&calls[i], mode, thread, hurts ? WEIR_CU_STREAM_CAPTURE_UNSUPPORTED : WEIR_CU_SUCCESS, hurts);
      }
  assert_true(good);
}

/* A relaxed thread may make unsafe calls during its own captures. */
TEST(mode_of_the_thread) {
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph = NULL;
  int mode = WEIR_CU_CAPTURE_RELAXED;
  assert_cu(d->ThreadExchangeStreamCaptureMode(d, &mode));
  assert_int_equal(mode, WEIR_CU_CAPTURE_GLOBAL);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemFree(d, mem_new(100)));
  mode = WEIR_CU_CAPTURE_THREAD_LOCAL;
  assert_cu(d->ThreadExchangeStreamCaptureMode(d, &mode));
  assert_int_equal(mode, WEIR_CU_CAPTURE_RELAXED);
  weir_cu_deviceptr p;
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->MemAlloc(d, &p, 100));
  assert_int_equal(capture_status(stream), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->MemFree(d, mem_new(100)));
  mode = WEIR_CU_CAPTURE_GLOBAL;
  assert_cu(d->ThreadExchangeStreamCaptureMode(d, &mode));
  assert_int_equal(mode, WEIR_CU_CAPTURE_THREAD_LOCAL);
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(invalid_mode) {
  weir_cu_stream stream = stream_new();
  assert_cu_error(INVALID_VALUE, d->StreamBeginCapture(d, stream, 7));
  assert_cu_error(INVALID_VALUE, d->StreamBeginCapture(d, stream, -1));
  assert_int_equal(capture_status(stream), WEIR_CU_CAPTURE_STATUS_NONE);
  if (!is_cuda()) {
    int mode = 7;
    assert_cu_error(INVALID_VALUE, d->ThreadExchangeStreamCaptureMode(d, &mode));
    assert_int_equal(mode, 7);
    mode = -1;
    assert_cu_error(INVALID_VALUE, d->ThreadExchangeStreamCaptureMode(d, &mode));
  } else
    device_print_waived("exchange for mode 7", "NVIDIA's driver takes it");
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Beginning and ending ---- */

TEST(begin_and_end) {
  weir_cu_stream stream = stream_new();
  weir_cu_graph graph = NULL;
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamBeginCapture(d, NULL, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamBeginCapture(d, WEIR_CU_STREAM_LEGACY, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->StreamBeginCapture(d, WEIR_CU_STREAM_PER_THREAD, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamEndCapture(d, WEIR_CU_STREAM_PER_THREAD, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu_error(ILLEGAL_STATE, d->StreamEndCapture(d, stream, &graph));
  assert_cu_error(ILLEGAL_STATE, d->StreamEndCapture(d, stream, NULL));

  int status = 7;
  unsigned long long id = 77;
  assert_cu(d->StreamGetCaptureInfo(d, stream, &status, &id, NULL, NULL, NULL));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_NONE);
  assert_int_equal(id, 77);
  status = 7;
  assert_cu(d->StreamGetCaptureInfo(d, NULL, &status, &id, NULL, NULL, NULL));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_NONE);
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(capture_info) {
  weir_cu_stream stream = stream_new(), other = stream_new();
  weir_cu_event event = event_new(0);
  weir_cu_deviceptr p = mem_new(100);
  weir_cu_graph graph = NULL, info = NULL;
  weir_cu_graph_node nodes[2];
  const weir_cu_graph_node *tips = NULL;
  unsigned long long id = 0, later = 0;
  size_t count = 99, total = 2;
  int status = 7;
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->StreamGetCaptureInfo(d, stream, &status, &id, &info, &tips, &count));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_non_null(info);
  assert_int_equal(count, 0);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, stream));
  assert_cu(d->MemsetD8Async(d, p, 2, 100, stream));
  assert_cu(d->GraphGetNodes(d, info, nodes, &total));
  assert_int_equal(total, 2);
  assert_cu(d->StreamGetCaptureInfo(d, stream, &status, NULL, NULL, &tips, &count));
  assert_int_equal(count, 1);
  assert_true(tips[0] == nodes[0] || tips[0] == nodes[1]);

  /* A second stream joins the same capture and continues from there. */
  weir_cu_graph_node tip = tips[0];
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->StreamWaitEvent(d, other, event, 0));
  assert_cu(d->StreamGetCaptureInfo(d, other, &status, &later, NULL, &tips, &count));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_int_equal(later, id);
  assert_int_equal(count, 1);
  assert_ptr_equal(tips[0], tip);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_ptr_equal(graph, info);
  assert_cu(d->GraphDestroy(d, graph));

  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->StreamGetCaptureInfo(d, stream, &status, &later, NULL, NULL, NULL));
  assert_int_not_equal(later, id);
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamDestroy(d, other));
  assert_cu(d->MemFree(d, p));
}

struct three {
  weir_cu_stream s, o;
  weir_cu_event event, back;
  weir_cu_deviceptr p;
};

static void three_open(struct three *t) {
  *t = (struct three){
      .s = stream_new(), .o = stream_new(), .event = event_new(0), .back = event_new(0), .p = mem_new(9)};
}

static void three_close(struct three *t) {
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->StreamDestroy(d, t->s));
  assert_cu(d->StreamDestroy(d, t->o));
  assert_cu(d->EventDestroy(d, t->event));
  assert_cu(d->EventDestroy(d, t->back));
  assert_cu(d->MemFree(d, t->p));
}

/* Begins a capture on s and lets o join; both have a node. */
static void fork_capture(struct three *t) {
  assert_cu(d->StreamBeginCapture(d, t->s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, t->p, 1, 1, t->s));
  assert_cu(d->EventRecord(d, t->event, t->s));
  assert_cu(d->StreamWaitEvent(d, t->o, t->event, 0));
  assert_cu(d->MemsetD8Async(d, t->p, 1, 1, t->o));
}

TEST(external_events) {
  struct three t;
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  size_t count = 0;
  three_open(&t);
  assert_cu(d->EventRecordWithFlags(d, t.event, t.s, 0));
  assert_cu(d->EventSynchronize(d, t.event));
  assert_cu_error(INVALID_VALUE, d->EventRecordWithFlags(d, t.event, t.s, WEIR_CU_EVENT_RECORD_EXTERNAL));
  assert_cu_error(INVALID_VALUE, d->StreamWaitEvent(d, t.s, t.event, WEIR_CU_EVENT_WAIT_EXTERNAL));
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamWaitEvent(d, t.s, t.event, WEIR_CU_EVENT_WAIT_EXTERNAL)); /* recorded outside of the capture */
  assert_cu(d->EventRecordWithFlags(d, t.back, t.s, WEIR_CU_EVENT_RECORD_EXTERNAL));
  assert_cu(d->StreamEndCapture(d, t.s, &graph));
  assert_cu(d->GraphGetNodes(d, graph, NULL, &count));
  assert_int_equal(count, 2);
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->EventQuery(d, t.back));
  for (int i = 0; i < 2; i++) {
    assert_cu(d->GraphLaunch(d, exec, t.s));
    assert_cu(d->StreamWaitEvent(d, t.o, t.back, 0));
    assert_cu(d->StreamSynchronize(d, t.o));
    assert_cu(d->EventQuery(d, t.back));
  }
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  three_close(&t);
}

TEST(two_captures_do_not_merge) {
  struct three t;
  weir_cu_graph graph = (weir_cu_graph)&t;
  three_open(&t);
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamBeginCapture(d, t.o, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, t.p, 1, 1, t.s));
  assert_cu(d->MemsetD8Async(d, t.p, 1, 1, t.o));
  assert_cu(d->EventRecord(d, t.event, t.s));
  assert_cu_error(STREAM_CAPTURE_MERGE, d->StreamWaitEvent(d, t.o, t.event, 0));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, t.s, &graph));
  assert_null(graph);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, t.o, &graph));
  /* The event refers to an ended capture until it is recorded again. */
  assert_cu_error(INVALID_VALUE, d->EventQuery(d, t.event));
  assert_cu_error(INVALID_VALUE, d->StreamWaitEvent(d, t.o, t.event, 0));
  assert_cu(d->EventRecord(d, t.event, t.o));
  assert_cu(d->EventSynchronize(d, t.event));
  three_close(&t);
}

TEST(end_on_the_stream_that_began) {
  struct three t;
  weir_cu_graph graph = (weir_cu_graph)&t;
  three_open(&t);
  fork_capture(&t);
  assert_cu_error(STREAM_CAPTURE_UNMATCHED, d->StreamEndCapture(d, t.o, &graph));
  assert_int_equal(capture_status(t.s), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, t.s, &graph));
  assert_null(graph);
  assert_int_equal(capture_status(t.o), WEIR_CU_CAPTURE_STATUS_NONE);
  three_close(&t);
}

TEST(end_unjoined) {
  struct three t;
  weir_cu_graph graph = (weir_cu_graph)&t;
  three_open(&t);
  fork_capture(&t);
  assert_cu_error(STREAM_CAPTURE_UNJOINED, d->StreamEndCapture(d, t.s, &graph));
  assert_null(graph);
  assert_int_equal(capture_status(t.s), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_int_equal(capture_status(t.o), WEIR_CU_CAPTURE_STATUS_NONE);

  /* Work after the join is unjoined again. */
  fork_capture(&t);
  assert_cu(d->EventRecord(d, t.back, t.o));
  assert_cu(d->StreamWaitEvent(d, t.s, t.back, 0));
  assert_cu(d->MemsetD8Async(d, t.p, 1, 1, t.o));
  assert_cu_error(STREAM_CAPTURE_UNJOINED, d->StreamEndCapture(d, t.s, &graph));

  /* A stream that joined without work need not be joined back. */
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->EventRecord(d, t.event, t.s));
  assert_cu(d->StreamWaitEvent(d, t.o, t.event, 0));
  assert_int_equal(capture_status(t.o), WEIR_CU_CAPTURE_STATUS_ACTIVE);
  assert_cu(d->StreamEndCapture(d, t.s, &graph));
  assert_int_equal(capture_status(t.o), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_cu(d->GraphDestroy(d, graph));
  three_close(&t);
}

struct end {
  weir_cu_stream stream;
  weir_cu_graph graph;
  weir_cu_result result;
};

static void *end_capture(void *data) {
  struct end *end = data;
  d->CtxSetCurrent(d, ctx);
  end->result = d->StreamEndCapture(d, end->stream, &end->graph);
  return NULL;
}

TEST(end_on_another_thread) {
  struct three t;
  weir_cu_graph graph;
  size_t nodes = 99;
  three_open(&t);
  struct end end = {.stream = t.s, .result = -1};
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->MemsetD8Async(d, t.p, 1, 1, t.s));
  on_another_thread(end_capture, &end);
  assert_cu_error(STREAM_CAPTURE_WRONG_THREAD, end.result);
  assert_cu_error(ILLEGAL_STATE, d->StreamEndCapture(d, t.s, &graph)); /* it has ended nevertheless */

  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, t.p, 1, 1, t.s));
  on_another_thread(end_capture, &end);
  assert_cu(end.result);
  assert_cu(d->GraphGetNodes(d, end.graph, NULL, &nodes));
  assert_int_equal(nodes, 1);
  assert_cu(d->GraphDestroy(d, end.graph));
  three_close(&t);
}

TEST(wait_for_uncaptured_event) {
  struct three t;
  weir_cu_graph graph;
  three_open(&t);
  assert_cu(d->EventRecord(d, t.event, t.o));
  assert_cu(d->StreamSynchronize(d, t.o));
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_ISOLATION, d->StreamWaitEvent(d, t.s, t.event, 0));
  assert_int_equal(capture_status(t.s), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, t.s, &graph));
  three_close(&t);
}

/* The capture ends with its stream, and forbids nothing any more. */
TEST(destroy_a_capturing_stream) {
  weir_cu_stream stream = stream_new();
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->CtxSynchronize(d));
  assert_cu(d->MemFree(d, mem_new(100)));
}

/* An invalidated capture accepts no more work, and lasts until it is ended. */
TEST(work_in_an_invalidated_capture) {
  struct three t;
  weir_cu_graph graph = (weir_cu_graph)&t;
  weir_cu_deviceptr p;
  three_open(&t);
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_THREAD_LOCAL));
  assert_cu(d->EventRecord(d, t.event, t.s));
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->MemAlloc(d, &p, 100));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->MemsetD8Async(d, t.p, 1, 1, t.s));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->LaunchHostFunc(d, t.s, do_nothing, NULL));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->MemAllocAsync(d, &p, 100, t.s));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->EventRecord(d, t.back, t.s));
  assert_cu_error(INVALID_VALUE, d->StreamWaitEvent(d, t.o, t.event, 0)); /* no stream can join it */
  assert_int_equal(capture_status(t.o), WEIR_CU_CAPTURE_STATUS_NONE);
  assert_int_equal(capture_status(t.s), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, t.s, &graph));
  assert_null(graph);
  assert_cu(d->MemsetD8Async(d, t.p, 1, 1, t.s));
  three_close(&t);
}

/* ---- The legacy stream and a blocking one that captures ---- */

/* Each of these would make the legacy stream wait for captured work. */
TEST(legacy_stream_and_a_blocking_capture) {
  weir_cu_stream blocking = stream_new_blocking();
  weir_cu_event event = event_new(0);
  weir_cu_deviceptr p = mem_new(MIB), q = mem_new(MIB), small;
  weir_cu_graph graph;
  int status = 7;

  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->MemsetD8Async(d, p, 1, 1, NULL));
  assert_int_equal(capture_status(blocking), WEIR_CU_CAPTURE_STATUS_INVALIDATED);
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, blocking, &graph));

  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->StreamIsCapturing(d, NULL, &status)); /* a query does not invalidate it */
  assert_cu(d->StreamEndCapture(d, blocking, &graph));
  assert_cu(d->GraphDestroy(d, graph));

  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->StreamSynchronize(d, NULL));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, blocking, &graph));

  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->StreamQuery(d, NULL));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, blocking, &graph));

  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->EventRecord(d, event, NULL));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, blocking, &graph));

  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemAlloc(d, &small, 100));
  assert_cu_error(STREAM_CAPTURE_IMPLICIT, d->Memcpy(d, p, q, 100));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, blocking, &graph));

  assert_cu(d->MemFree(d, small));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, blocking));
}

/* The legacy stream cannot join a capture. */
TEST(legacy_stream_does_not_join) {
  if (is_cuda())
    WAIVE_TEST("what NVIDIA's driver answers was not measured");
  struct three t;
  weir_cu_graph graph;
  three_open(&t);
  assert_cu(d->StreamBeginCapture(d, t.s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->EventRecord(d, t.event, t.s));
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamWaitEvent(d, NULL, t.event, 0));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, t.s, &graph));
  three_close(&t);
}

/* ---- Several at once ---- */

struct recorder {
  pthread_t thread;
  int mode;
  weir_cu_deviceptr memory;
  weir_cu_result result;
  size_t nodes;
};

static void *record(void *data) {
  struct recorder *r = data;
  weir_cu_stream stream;
  weir_cu_graph graph;
  weir_cu_result result = d->CtxSetCurrent(d, ctx);
  if (!result)
    result = d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0);
  for (int round = 0; round < 10 && !result; round++) {
    result = d->StreamBeginCapture(d, stream, r->mode);
    for (int i = 0; i < 20 && !result; i++)
      result = d->MemsetD8Async(d, r->memory, 1, 100, stream);
    if (!result)
      result = d->StreamEndCapture(d, stream, &graph);
    size_t nodes = 0;
    if (!result)
      result = d->GraphGetNodes(d, graph, NULL, &nodes);
    r->nodes += nodes;
    if (!result)
      result = d->GraphDestroy(d, graph);
  }
  if (!result)
    result = d->StreamDestroy(d, stream);
  r->result = result;
  return NULL;
}

/* Captures on several threads, in any mode, are independent. */
TEST(captures_on_many_threads) {
  struct recorder recorders[6];
  for (int i = 0; i < 6; i++) {
    recorders[i] = (struct recorder){.mode = i % 3, .memory = mem_new(100), .result = -1};
  }
  for (int i = 0; i < 6; i++)
    assert_int_equal(pthread_create(&recorders[i].thread, NULL, record, &recorders[i]), 0);
  for (int i = 0; i < 6; i++)
    assert_int_equal(pthread_join(recorders[i].thread, NULL), 0);
  for (int i = 0; i < 6; i++) {
    assert_cu(recorders[i].result);
    assert_int_equal(recorders[i].nodes, 200);
    assert_cu(d->MemFree(d, recorders[i].memory));
  }
}

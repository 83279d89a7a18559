/*
 * Several devices: contexts, copies between devices, captures of another device, and several allocators.
 */
#include <string.h>

#include "support/alloc.h"
#include "support/valid.h"

static weir_cu_context current(void) {
  weir_cu_context context = NULL;
  assert_cu(d->CtxGetCurrent(d, &context));
  return context;
}

FIXTURE(.teardown = alloc_teardown)

/* Calls restore the context of the thread, even if it had none. */
TEST(context_of_the_thread_stays) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "expandable_segments:True");
  static const int devices[] = {0, 1};
  for (int i = 0; i < 3; i++) {
    assert_cu(d->CtxSetCurrent(d, i < 2 ? contexts[i] : NULL));
    weir_cu_context before = current();
    for (int k = 0; k < 2; k++) {
      void *p = get_on(devices[k], 30 * MIB, NULL), *q = NULL;
      assert_ptr_equal(current(), before);
      assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, devices[k], 2 * GIB, NULL, &q));
      put(p);
      empty_cache();
      assert_ptr_equal(current(), before);
    }
  }
  soft_use(0);
  alloc_close();
}

/* An unused device has no context. */
TEST(context_is_created_on_first_use) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  put(get_on(1, 512, NULL));
  assert_int_equal(calls(WEIR_CALL_DevicePrimaryCtxRetain), 1);
  put(get_on(0, 512, NULL));
  assert_int_equal(calls(WEIR_CALL_DevicePrimaryCtxRetain), 2);
  alloc_close();
}

TEST(fewer_devices_than_there_are) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 3, GIB);
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  options.devices = 2;
  assert_ok(weir_allocator_create(faults, &options, &allocator));
  void *p = NULL;
  put(get_on(1, 512, NULL));
  assert_error(INVALID_DEVICE, weir_allocator_alloc(allocator, 2, 512, NULL, &p));
  alloc_close();
}

/* The copy is a plain one on a single device, between peers, and if there has never been an expandable segment. */
TEST(copies_take_the_right_variant) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  int can = 0;
  assert_cu(d->DeviceCanAccessPeer(d, &can, 0, 1));
  assert_int_equal(can, 1);
  assert_cu(d->CtxEnablePeerAccess(d, contexts[1], 0));
  char *a = get_on(0, MIB, NULL), *b = get_on(1, MIB, NULL);
  memset(a, 7, MIB);
  assert_ok(weir_allocator_copy_async(allocator, b, 1, a, 0, MIB, NULL, 0));
  soft_step_all();
  assert_int_equal(b[MIB - 1], 7);
  assert_int_equal(calls(WEIR_CALL_MemcpyAsync), 1);
  assert_int_equal(calls(WEIR_CALL_MemcpyPeerAsync), 0);

  configure("expandable_segments:True");
  char *c = get_on(0, MIB, work_stream());
  memset(c, 8, MIB);
  assert_ok(weir_allocator_copy_async(allocator, b, 1, c, 0, MIB, NULL, 0));
  soft_step_all();
  assert_int_equal(b[MIB - 1], 8);
  assert_int_equal(calls(WEIR_CALL_MemcpyPeerAsync), 1);
  assert_ok(weir_allocator_copy_async(allocator, a, 0, c, 0, MIB, NULL, 0)); /* same device */
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 1));
  assert_ok(weir_allocator_copy_async(allocator, b, 1, a, 0, MIB, NULL, 1)); /* peers */
  assert_int_equal(calls(WEIR_CALL_MemcpyPeerAsync), 1);
  assert_int_equal(calls(WEIR_CALL_MemcpyAsync), 3);
  soft_step_all();
  assert_cu(d->CtxDisablePeerAccess(d, contexts[1]));
  alloc_close();
}

/* The allocator has not used the other device: its memory belongs to the driver. */
TEST(copy_to_driver_memory) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "expandable_segments:True");
  soft_use(1);
  weir_cu_deviceptr there = soft_alloc(MIB);
  soft_use(0);
  char *here = NULL;
  assert_ok(weir_allocator_alloc(allocator, 0, MIB, NULL, (void **)&here));
  memset(here, 9, MIB);
  assert_ok(weir_allocator_copy_async(allocator, (void *)there, 1, here, 0, MIB, NULL, 0));
  soft_step_all();
  assert_int_equal(((char *)there)[MIB - 1], 9);
  soft_use(1);
  assert_cu(d->MemFree(d, there));
  soft_use(0);
  alloc_close();
}

/* Several allocators on one device share only its memory. */
TEST(several_allocators) {
  enum { COUNT = 40 };
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  weir_allocator *many[COUNT];
  void *p[COUNT];
  for (int i = 0; i < COUNT; i++) {
    many[i] = alloc_create(i % 2 ? "expandable_segments:True" : "max_split_size_mb:40");
    assert_ok(weir_allocator_alloc(many[i], 0, 3 * MIB, NULL, &p[i]));
    memset(p[i], i, 3 * MIB);
  }
  for (int i = 0; i < COUNT; i++) {
    assert_int_equal(((char *)p[i])[3 * MIB - 1], i);
    assert_true(weir__allocator_is_valid(many[i]));
  }
  assert_int_equal(soft_census().device_bytes, COUNT * 20 * MIB);
  for (int i = 0; i < COUNT; i++)
    weir_allocator_destroy(many[i]);
  alloc_close();
}

/* ---- A capture of device 1, which forbids unsafe calls on all devices, while device 0 is used ---- */

static weir_cu_stream begin_capture(void) {
  soft_use(1);
  weir_cu_stream stream = work_stream();
  assert_ok(weir_allocator_begin_capture(allocator, 1));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  return stream;
}

/* The capture must still be valid. */
static void end_capture(weir_cu_stream stream) {
  weir_cu_graph graph;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_ok(weir_allocator_end_capture(allocator, 1));
  assert_cu(d->GraphDestroy(d, graph));
  soft_use(0);
}

/* Blocks that wait for events, which the next request queries, and emptying the cache waits for. */
TEST(events_beside_a_capture) {
  for (int waits = 0; waits < 2; waits++) {
    alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "");
    soft_use(0);
    void *p = get_on(0, 4 * MIB, NULL);
    also_used_by(p, work_stream());
    put(p);
    weir_cu_stream stream = begin_capture();
    unsigned long queries = calls(WEIR_CALL_EventQuery), syncs = calls(WEIR_CALL_EventSynchronize);
    if (waits)
      empty_cache();
    else
      put(get_on(0, 4 * MIB, NULL));
    assert_int_equal(calls(WEIR_CALL_EventQuery) > queries, !waits);
    assert_int_equal(calls(WEIR_CALL_EventSynchronize) > syncs, waits);
    end_capture(stream);
    alloc_close();
  }
}

/* Aliases that are retired: an event tells when their stream has passed. */
TEST(moving_pages_beside_a_capture) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "moving_pages:True,moving_pages_max_aliases:0");
  soft_use(0);
  void *first = get(40 * MIB, NULL), *kept = get(2 * MIB, NULL), *second = get(40 * MIB, NULL);
  put(first);
  put(second);
  void *gathered = get(72 * MIB, NULL);
  weir_cu_stream stream = begin_capture();
  unsigned long queries = calls(WEIR_CALL_EventQuery);
  void *more = get(90 * MIB, NULL);
  assert_true(calls(WEIR_CALL_EventQuery) > queries);
  end_capture(stream);
  put(gathered);
  put(more);
  put(kept);
  alloc_close();
}

/* The driver's pool is trimmed before a request fails. */
TEST(trimming_beside_a_capture) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "backend:cudaMallocAsync");
  soft_use(0);
  weir_cu_stream used = work_stream();
  put(get_on(0, 4 * MIB, used));
  weir_cu_stream stream = begin_capture();
  unsigned long trims = calls(WEIR_CALL_MemPoolTrimTo);
  void *p = NULL;
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 2 * GIB, used, &p));
  assert_true(calls(WEIR_CALL_MemPoolTrimTo) > trims);
  end_capture(stream);
  alloc_close();
}

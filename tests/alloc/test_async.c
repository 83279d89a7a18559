/*
 * backend:cudaMallocAsync: the driver's stream-ordered memory, with the same calls.
 */
#include <string.h>

#include "support/alloc.h"
#include "weir/history.h"
#include "weir/snapshot.h"

static void open_async(const char *more) {
  char conf[256];
  snprintf(conf, sizeof conf, "backend:cudaMallocAsync%s%s", more ? "," : "", more ? more : "");
  alloc_open(conf, GIB);
}

FIXTURE(.teardown = alloc_teardown)

TEST(pairs) {
  open_async(NULL);
  assert_backend("cudaMallocAsync");
  char text[64];
  weir_allocator_settings(allocator, text, sizeof text, NULL);
  assert_string_equal(text, "backend:cudaMallocAsync");
  assert_error_says(NOT_SUPPORTED, "cudaMallocAsync", weir_allocator_configure(allocator, "backend:native"));
  weir_cu_stream stream = work_stream();
  void *a = get(1000, stream);
  assert_int_equal(calls(WEIR_CALL_MemAllocFromPoolAsync), 1);
  assert_int_equal(soft_census().pools, 1);
  put(a);
  assert_int_equal(calls(WEIR_CALL_MemFreeAsync), 1);
  assert_int_equal(calls(WEIR_CALL_MemAlloc), 0);
  assert_ptr_equal(get(1000, stream), a); /* reused at once in stream order */
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_free(allocator, (char *)a + 512));
  put(a);
  assert_error_says(INVALID_ARGUMENT, "invalid device pointer", weir_allocator_free(allocator, a));
  soft_step_all();
  alloc_close();
}

/* Reserved bytes come from the pool, allocated bytes from the allocator's own statistics. */
TEST(statistics) {
  open_async(NULL);
  void *a = get(3 * MIB, NULL);
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].current, 3 * MIB);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].current, 4 * MIB); /* the granularity of the device is 2 MiB */
  assert_int_equal(s.reserved_bytes[WEIR_STAT_LARGE_POOL].current, 3 * MIB);
  put(a);
  soft_step_all();
  s = stats_of(0);
  assert_int_equal(s.allocated_bytes[WEIR_STAT_ALL].current, 0);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].current, 4 * MIB); /* cached by the pool */
  assert_int_equal(s.segment[WEIR_STAT_ALL].current, 0);
  size_t largest = 0, free_bytes, total;
  assert_ok(weir_allocator_largest_block(allocator, 0, &largest));
  assert_cu(d->MemGetInfo(d, &free_bytes, &total));
  assert_int_equal(largest, free_bytes + 4 * MIB);
  empty_cache();
  s = stats_of(0);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].current, 0);
  assert_int_equal(s.reserved_bytes[WEIR_STAT_ALL].peak, 4 * MIB);
  assert_ok(weir_allocator_reset_peak_stats(allocator, 0));
  assert_int_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].peak, 0);
  alloc_close();
}

/* Memory that other streams use is freed once all of them have reached the free, without polling. */
TEST(several_streams) {
  open_async(NULL);
  weir_cu_stream mine = work_stream(), other = work_stream(), third = work_stream();
  void *a = get(2 * MIB, mine);
  also_used_by(a, other);
  also_used_by(a, third);
  also_used_by(a, mine);
  work(mine);
  work(other);
  work(third);
  put(a);
  assert_int_equal(active(), 0); /* the driver has ordered the free */
  assert_int_equal(calls(WEIR_CALL_EventQuery), 0);
  assert_int_equal(soft_census().streams, 4); /* one belongs to the allocator */
  void *b = get(2 * MIB, mine);
  assert_ptr_not_equal(b, a);
  soft_step(mine, 100);
  soft_step(other, 100);
  void *c = get(2 * MIB, mine);
  assert_ptr_not_equal(c, a); /* the third stream is not done */
  soft_step_all();
  void *e = get(2 * MIB, mine);
  assert_ptr_equal(e, a);
  put(b);
  put(c);
  put(e);
  soft_step_all();
  alloc_close();
}

TEST(history) {
  open_async(NULL);
  assert_ok(weir_history_record(allocator, NULL));
  assert_int_equal(is_recording(allocator), 1);
  void *a = get(1000, NULL), *b = get(5 * MIB, NULL);
  put(a);
  weir_snapshot *snapshot = NULL;
  const weir_snapshot_segment *segments = NULL;
  size_t count = 0;
  uint64_t events = 0, dropped = 0;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_segments(snapshot, &segments, &count));
  assert_int_equal(count, 1);
  assert_int_equal(segments[0].address, (uint64_t)b);
  assert_int_not_equal(segments[0].blocks[0].stack, 0);
  assert_ok(weir_snapshot_entries(snapshot, 0, &events, &dropped));
  assert_int_equal(events, 7);
  weir_snapshot_destroy(snapshot);
  put(b);
  soft_step_all();
  alloc_close();
}

TEST(out_of_memory) {
  open_async(NULL);
  weir_cu_stream other = work_stream();
  void *a = get(600 * MIB, NULL), *b = NULL;
  assert_error_says(OUT_OF_MEMORY, "Requested               : 600.00 MiB",
                    weir_allocator_alloc(allocator, 0, 600 * MIB, other, &b));
  assert_int_equal(stats_of(0).num_ooms, 1);
  put(a);
  b = get(700 * MIB, other); /* the pool releases its cached memory for it */
  put(b);
  soft_step_all();
  assert_ok(weir_allocator_set_fraction(allocator, 0, 0.25));
  assert_error_says(OUT_OF_MEMORY, "would exceed allowed memory",
                    weir_allocator_alloc(allocator, 0, 300 * MIB, NULL, &b));
  assert_non_null(strstr(weir_last_error(), "Weir limit (set by user-supplied memory fraction)\n"
                                            "                        : 256.00 MiB"));
  a = get(200 * MIB, NULL);
  assert_error(OUT_OF_MEMORY, weir_allocator_alloc(allocator, 0, 100 * MIB, NULL, &b));
  put(a);
  soft_step_all();
  alloc_close();
}

TEST(left_behind) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "backend:cudaMallocAsync");
  weir_cu_stream other = work_stream();
  for (int i = 0; i < 10; i++)
    get_on(i % 2, 1000, NULL);
  void *a = get_on(0, 5000, other), *b = get_on(0, 5000, NULL);
  also_used_by(a, NULL);
  put(a);
  also_used_by(b, other);
  alloc_close();
}

TEST(peers) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "backend:cudaMallocAsync");
  assert_ok(weir_allocator_enable_peer_access(allocator, 0, 1)); /* before the pool exists */
  void *a = get(512, NULL);
  assert_int_equal(calls(WEIR_CALL_MemPoolSetAccess), 1);
  void *b = get_on(1, 512, NULL);
  assert_ok(weir_allocator_enable_peer_access(allocator, 1, 0));
  assert_int_equal(calls(WEIR_CALL_MemPoolSetAccess), 2);
  put(a);
  put(b);
  soft_step_all();
  alloc_close();
}

/* A driver without stream-ordered memory. */
TEST(driver_without_pools) {
  alloc_open(NULL, GIB);
  faults->MemPoolCreate = NULL;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "backend:cudaMallocAsync";
  weir_allocator *made = NULL;
  assert_error_says(NOT_SUPPORTED, "backend:native", weir_allocator_create(faults, &options, &made));
  assert_null(made);
  alloc_close();
}

TEST(unsupported_calls) {
  open_async(NULL);
  void *a = get(512, NULL);
  weir_pool_id id = {0, 1};
  weir_checkpoint *checkpoint = NULL;
  assert_ok(weir_pool_create(allocator, 0, id, NULL));
  assert_error_says(NOT_SUPPORTED, "cudaMallocAsync", weir_pool_checkpoint(allocator, 0, id, &checkpoint));
  assert_error_says(NOT_SUPPORTED, "cudaMallocAsync", weir_allocator_alloc_at(allocator, 0, 512, NULL, (void *)4096));
  assert_ok(weir_pool_release(allocator, 0, id));
  put(a);
  soft_step_all();
  alloc_close();
}

/* ---- Captures ---- */

static weir_cu_graph end_capture(weir_cu_stream stream) {
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_non_null(graph);
  return graph;
}

/* Memory allocated in a capture belongs to the graph. Older memory that is freed during the capture waits for the end
 * of the capture. */
TEST(capture) {
  open_async(NULL);
  weir_cu_stream stream = work_stream(), other = work_stream();
  void *before = get(1000, stream), *shared = get(1000, stream);
  also_used_by(shared, other);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  void *inside = get(4096, stream), *kept = get(4096, stream);
  void *elsewhere = get(4096, other); /* outside the capture, which stays valid */
  put(inside);
  put(before);
  put(shared);
  put(elsewhere);
  assert_int_equal(allocated(), 4096);
  assert_int_equal(active(), 4096 + 2000 + 4096);
  empty_cache();
  int status = 0;
  assert_cu(d->StreamIsCapturing(d, stream, &status));
  assert_int_equal(status, WEIR_CU_CAPTURE_STATUS_ACTIVE);
  weir_cu_graph graph = end_capture(stream);
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_error(BAD_STATE, weir_allocator_end_capture(allocator, 0));
  put(get(512, stream)); /* polls the deferred frees */
  assert_int_equal(active(), 4096);
  put(kept); /* freed outside the graph: allowed, with one warning */
  assert_int_equal(active(), 0);
  assert_cu(d->GraphDestroy(d, graph));
  soft_step_all();
  alloc_close();
}

/* Freed in the capture after another captured stream used it. */
TEST(capture_of_several_streams) {
  open_async(NULL);
  weir_cu_stream stream = work_stream(), other = work_stream();
  weir_cu_event event = soft_event();
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->StreamWaitEvent(d, other, event, 0));
  void *a = get(4096, stream);
  also_used_by(a, other);
  assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)a, 1, 4096, stream));
  put(a); /* also joins the other stream */
  weir_cu_graph graph = end_capture(stream);
  assert_ok(weir_allocator_end_capture(allocator, 0));
  weir_cu_graph_exec exec = NULL;
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  for (int i = 0; i < 3; i++) {
    assert_cu(d->GraphLaunch(d, exec, stream));
    soft_step_all();
  }
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->EventDestroy(d, event));
  alloc_close();
}

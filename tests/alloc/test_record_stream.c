/*
 * Memory that other streams use too: it is reused once each of them has reached the point where it was freed.
 *
 * In stepped time a piece of work, and the event after it, stays pending until the test steps the stream.
 */
#include <string.h>

#include "support/alloc.h"

enum { SIZE = 4096 };

static int64_t of(const weir_stat *stat) { return stat[WEIR_STAT_ALL].current; }

FIXTURE(.teardown = alloc_teardown)

TEST(waits_for_the_other_stream) {
  alloc_open(NULL, GIB);
  weir_cu_stream mine = work_stream(), other = work_stream();
  void *p = get(SIZE, mine);
  work(other);
  also_used_by(p, other);
  put(p);
  assert_layout(p, "4K~ 2044K");
  weir_allocator_stats s = stats_of(0);
  assert_int_equal(of(s.allocation), 0); /* no longer allocated, */
  assert_int_equal(of(s.allocated_bytes), 0);
  assert_int_equal(of(s.active), 1); /* but still active */
  assert_int_equal(of(s.active_bytes), SIZE);
  assert_int_equal(of(s.requested_bytes), SIZE);

  void *q = get(SIZE, mine);
  assert_ptr_not_equal(q, p);
  assert_int_equal(soft_step(other, 1), 1); /* the work is done, the event is not */
  void *r = get(SIZE, mine);
  assert_ptr_not_equal(r, p);
  assert_int_equal(soft_step(other, 1), 1);
  assert_layout(p, "4K~ 4K* 4K* 2036K"); /* not polled yet */
  assert_ptr_equal(get(SIZE, mine), p);
  alloc_close();
}

TEST(waits_for_every_stream) {
  alloc_open(NULL, GIB);
  weir_cu_stream other[3];
  void *p = get(SIZE, NULL);
  for (int i = 0; i < 3; i++) {
    other[i] = work_stream();
    work(other[i]);
    also_used_by(p, other[i]);
  }
  put(p);
  static const int order[] = {1, 2, 0};
  for (int i = 0; i < 3; i++) {
    void *q = get(SIZE, NULL);
    assert_ptr_not_equal(q, p);
    soft_step(other[order[i]], 2);
  }
  assert_ptr_equal(get(SIZE, NULL), p);
  alloc_close();
}

/* Work that the other stream gets after the free does not count. */
TEST(later_work_does_not_count) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  void *p = get(SIZE, NULL);
  work(other);
  also_used_by(p, other);
  put(p);
  work(other);
  soft_step(other, 2);
  assert_int_equal(soft_pending(other), 1);
  assert_ptr_equal(get(SIZE, NULL), p);
  soft_step_all();
  alloc_close();
}

TEST(own_stream_and_null_are_ignored) {
  alloc_open(NULL, GIB);
  weir_cu_stream mine = work_stream();
  void *p = get(SIZE, mine);
  work(mine);
  also_used_by(p, mine);
  also_used_by(NULL, mine);
  put(p);
  assert_ptr_equal(get(SIZE, mine), p);
  assert_int_equal(calls(WEIR_CALL_EventCreate), 0);
  soft_step_all();
  alloc_close();
}

TEST(recording_twice) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  void *p = get(SIZE, NULL);
  for (int i = 0; i < 5; i++)
    also_used_by(p, other);
  put(p);
  assert_int_equal(calls(WEIR_CALL_EventRecord), 1);
  soft_step_all();
  alloc_close();
}

/* The next use of the block starts without recorded streams. */
TEST(uses_end_with_the_free) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  void *p = get(SIZE, NULL);
  also_used_by(p, other);
  put(p);
  soft_step_all();
  assert_ptr_equal(get(SIZE, NULL), p);
  work(other);
  put(p);
  assert_int_equal(calls(WEIR_CALL_EventRecord), 1);
  assert_ptr_equal(get(SIZE, NULL), p);
  soft_step_all();
  alloc_close();
}

/* A slow stream delays only its own blocks. */
TEST(slow_stream_delays_only_its_blocks) {
  alloc_open(NULL, GIB);
  weir_cu_stream slow = work_stream(), fast = work_stream();
  void *p = get(SIZE, NULL), *q = get(SIZE, NULL), *r = get(SIZE, NULL);
  work(slow);
  work(fast);
  also_used_by(p, slow);
  also_used_by(q, fast);
  also_used_by(r, slow);
  put(p);
  put(q);
  put(r);
  soft_step(fast, 2);
  assert_ptr_equal(get(SIZE, NULL), q);
  assert_layout(p, "4K~ 4K* 4K~ 2036K");
  soft_step(slow, 2); /* the work and the event of p, but not the event of r */
  assert_ptr_equal(get(SIZE, NULL), p);
  assert_layout(p, "4K* 4K* 4K~ 2036K");
  soft_step(slow, 1);
  assert_ptr_equal(get(SIZE, NULL), r);
  alloc_close();
}

/* A waiting block is not merged with its neighbours. */
TEST(waiting_block_is_not_merged) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  void *a = get(SIZE, NULL), *b = get(SIZE, NULL), *c = get(SIZE, NULL);
  also_used_by(b, other);
  put(a);
  put(b);
  put(c);
  assert_layout(a, "4K 4K~ 2040K");
  empty_cache(); /* waits for the events, and releases everything */
  assert_int_equal(reserved(), 0);
  alloc_close();
}

TEST(events_are_reused) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  for (int i = 0; i < 50; i++) {
    void *p = get(SIZE, NULL), *q = get(SIZE, NULL);
    also_used_by(p, other);
    also_used_by(q, other);
    put(p);
    put(q);
    soft_step_all();
  }
  assert_int_equal(calls(WEIR_CALL_EventRecord), 100);
  assert_int_equal(calls(WEIR_CALL_EventCreate), 2);
  assert_int_equal(calls(WEIR_CALL_EventDestroy), 0);
  alloc_close();
}

TEST(no_queries_without_waiting_blocks) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = work_stream();
  void *p = get(SIZE, NULL);
  also_used_by(p, other);
  put(p);
  soft_step_all();
  p = get(SIZE, NULL);
  unsigned long before = calls(WEIR_CALL_COUNT);
  for (int i = 0; i < 10; i++)
    put(get(SIZE, NULL));
  assert_int_equal(calls(WEIR_CALL_COUNT), before);
  put(p);
  alloc_close();
}

/* PyTorch's test_record_stream: a copy from `tmp` is delayed, `tmp` is freed, and later allocations must not overwrite
 * it. */
TEST(seed_record_stream) {
  alloc_open(NULL, GIB);
  weir_cu_stream main_stream = work_stream(), side = work_stream();
  static const float values[] = {1, 2, 3, 4};
  float host[4] = {0};
  void *result = get(sizeof values, main_stream), *tmp = get(sizeof values, side);
  assert_cu(d->MemcpyAsync(d, (weir_cu_deviceptr)tmp, (weir_cu_deviceptr)(uintptr_t)values, sizeof values, side));
  weir_cu_event copied = soft_event();
  assert_cu(d->EventRecord(d, copied, side));
  assert_cu(d->StreamWaitEvent(d, main_stream, copied, 0));
  also_used_by(tmp, main_stream);
  soft_spin(main_stream, 50000000);
  assert_cu(d->MemcpyAsync(d, (weir_cu_deviceptr)result, (weir_cu_deviceptr)tmp, sizeof values, main_stream));
  put(tmp);

  void *tmp2 = get(sizeof values, side);
  assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)tmp2, 0, sizeof values, side));
  assert_ptr_not_equal(tmp2, tmp); /* "allocation re-used too soon" */
  assert_cu(d->StreamSynchronize(d, side));
  assert_cu(d->StreamSynchronize(d, main_stream));
  memcpy(host, result, sizeof host);
  assert_memory_equal(host, values, sizeof values);

  assert_ptr_equal(get(sizeof values, side), tmp); /* "allocation not re-used" */
  assert_cu(d->EventDestroy(d, copied));
  alloc_close();
}

/* PyTorch's test_caching_allocator_record_stream_oom: memory that waits for a stream is used if there is no other. */
TEST(seed_record_stream_oom) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open(expandable ? "expandable_segments:True" : NULL, GIB);
    weir_cu_stream stream = work_stream();
    void *y = get(160 * MIB, stream);
    for (int i = 0; i < 100; i++) {
      void *x = get(160 * MIB, NULL);
      work(stream);
      also_used_by(x, stream);
      put(x);
    }
    assert_int_equal(stats_of(0).num_ooms, 0);
    assert_true(stats_of(0).num_alloc_retries > 0);
    put(y);
    empty_cache();
    assert_int_equal(reserved(), 0);
    soft_step_all();
    alloc_close();
  }
}

/* The other stream was destroyed before the block was freed. Its work may still run, and the block waits for it. */
TEST(destroyed_stream) {
  alloc_open(NULL, GIB);
  weir_cu_stream other = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  void *p = get(SIZE, NULL), *target = get(SIZE, NULL);
  memset(p, 1, SIZE);
  assert_cu(d->MemcpyAsync(d, (weir_cu_deviceptr)target, (weir_cu_deviceptr)p, SIZE, other));
  also_used_by(p, other);
  assert_cu(d->StreamDestroy(d, other));
  put(p);
  void *q = get(SIZE, NULL);
  memset(q, 2, SIZE); /* if it is the same block, the copy is done */
  soft_step_all();
  assert_int_equal(((char *)target)[SIZE - 1], 1);
  alloc_close();
}

/* The stream of cached blocks was destroyed: the memory can still be released. */
TEST(destroyed_own_stream) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open(expandable ? "expandable_segments:True" : NULL, GIB);
    weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
    void *p = get(20 * MIB, stream);
    assert_cu(d->MemsetD8Async(d, (weir_cu_deviceptr)p, 1, 20 * MIB, stream));
    put(p);
    assert_cu(d->StreamDestroy(d, stream));
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close();
  }
}

/* NVIDIA's driver crashes if it is given a destroyed stream: streams that may be destroyed are not passed to it. */
TEST(streams_may_end) {
  alloc_open_with(&(weir_allocator_options){
      .size = sizeof(weir_allocator_options), .conf = "expandable_segments:True", .streams_may_end = 1});
  weir_cu_stream stream = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), other = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  void *p = get(20 * MIB, stream), *q = get(20 * MIB, NULL);
  put(p);
  also_used_by(q, other);
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  put(q); /* waits for the end of the capture */
  assert_ok(weir_allocator_end_capture(allocator, 0));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamDestroy(d, other));
  empty_cache();
  assert_int_equal(reserved(), 0);
  assert_int_equal(calls(WEIR_CALL_StreamSynchronize), 0);
  assert_int_equal(calls(WEIR_CALL_EventRecord), 0);
  alloc_close();
}

/* The program captures the other stream without notifying the allocator. An event there would become part of the graph.
 * */
TEST(captured_stream) {
  alloc_open(NULL, GIB);
  weir_cu_stream mine = work_stream(), other = work_stream();
  weir_cu_graph graph;
  void *p = get(SIZE, mine);
  also_used_by(p, other);
  assert_cu(d->StreamBeginCapture(d, other, WEIR_CU_CAPTURE_RELAXED));
  put(p);
  assert_ptr_not_equal(get(SIZE, mine), p);
  assert_cu(d->StreamEndCapture(d, other, &graph));
  size_t nodes = 1;
  assert_cu(d->GraphGetNodes(d, graph, NULL, &nodes));
  assert_int_equal(nodes, 0);
  assert_cu(d->GraphDestroy(d, graph));
  get(SIZE, mine); /* the event is recorded now */
  soft_step_all();
  assert_ptr_equal(get(SIZE, mine), p);
  alloc_close();
}

/* The same on the legacy stream. */
TEST(legacy_stream_as_the_other) {
  alloc_open(NULL, GIB);
  weir_cu_stream mine = work_stream();
  void *p = get(SIZE, mine);
  work(NULL);
  also_used_by(p, NULL);
  put(p);
  assert_ptr_not_equal(get(SIZE, mine), p);
  soft_step(NULL, 2);
  assert_ptr_equal(get(SIZE, mine), p);
  alloc_close();
}

static unsigned long queries(void) {
  unsigned long calls, failed;
  assert_ok(weir_fault_counts(faults, WEIR_CALL_EventQuery, &calls, &failed));
  return calls;
}

/* A poll asks once for each stream that has pending events, however many streams there were before. */
TEST(idle_streams_are_not_polled) {
  alloc_open(NULL, GIB);
  enum { STREAMS = 50 };
  for (int i = 0; i < STREAMS; i++) {
    weir_cu_stream other = work_stream();
    void *p = get(SIZE, NULL);
    work(other);
    also_used_by(p, other);
    put(p);
    soft_step(other, 2);
    put(get(SIZE, NULL)); /* polls */
  }
  weir_cu_stream slow[2] = {work_stream(), work_stream()};
  for (int i = 0; i < 2; i++)
    for (int k = 0; k < 3; k++) { /* three events in each, of which only the first is asked */
      void *p = get(SIZE, NULL);
      work(slow[i]);
      also_used_by(p, slow[i]);
      put(p);
    }
  unsigned long before = queries();
  put(get(SIZE, NULL));
  assert_int_equal(queries() - before, 2);
  soft_step_all();
  put(get(SIZE, NULL));
  before = queries();
  put(get(SIZE, NULL));
  assert_int_equal(queries() - before, 0);
  alloc_close();
}

/*
 * Graphs and memory: allocations during a capture come from the graph's pool, and the capture stays valid.
 *
 * The runtime uses the same stepped device as the allocator.
 */
#include <string.h>

#include "support/alloc.h"

static const weir_pool_id own_pool = {0, 0};

static weir_graph *new_graph(void) {
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  return graph;
}

static void begin(weir_graph *graph, weir_stream stream, weir_pool_id pool) {
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, pool, WEIR_CAPTURE_GLOBAL));
  assert_valid();
}

static void end(weir_graph *graph) {
  assert_ok(weir_graph_end_capture(graph));
  assert_valid();
}

static weir_pool_id pool_of_graph(const weir_graph *graph) {
  weir_pool_id id = {0, 0};
  assert_ok(weir_graph_pool(graph, &id));
  return id;
}

static bool is_in(const void *p, weir_pool_id id) {
  weir_pool_id found = pool_of(p);
  return found.first == id.first && found.second == id.second;
}

static void fill(void *p, int value, size_t bytes, weir_stream stream) {
  assert_ok(weir_fill_async(p, (uint8_t)value, bytes, stream));
}

/* Makes a stream join the capture of another stream, and back. */
static void join(weir_stream stream, weir_stream captured) { assert_ok(weir_stream_wait_stream(stream, captured)); }

/* ---- The source of memory ---- */

FIXTURE(.teardown = alloc_teardown_runtime)

TEST(allocations_of_the_capture) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0), other = new_stream(0);
  void *outside = get(4095, raw_of(stream));
  put(outside);
  weir_graph *graph = new_graph();
  begin(graph, stream, own_pool);
  void *in = get(4095, raw_of(stream)), *not_in = get(4095, raw_of(other));
  fill(in, 9, 4095, stream);
  end(graph);
  assert_true(is_in(in, pool_of_graph(graph)));
  assert_true(is_in(not_in, own_pool));
  assert_ptr_not_equal(in, outside);
  assert_ptr_equal(get(4095, raw_of(stream)), outside); /* the scope ends with the capture */
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(((char *)in)[4094], 9);
  put(in);
  put(not_in);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* PyTorch's test_cuda_graph_allocator_propagates_stream: a stream that joins the capture also allocates from its pool.
 * */
TEST(streams_that_join) {
  alloc_open_runtime(NULL);
  weir_stream s0 = new_stream(0), s1 = new_stream(0);
  weir_graph *graph = new_graph();
  begin(graph, s0, own_pool);
  void *z = get(40960000, raw_of(s0));
  fill(z, 1, 100, s0);
  void *before = get(512, raw_of(s1)); /* has not joined yet */
  join(s1, s0);
  void *w = get(40960000, raw_of(s1));
  fill(w, 2, 100, s1);
  join(s0, s1);
  end(graph);
  assert_true(is_in(before, own_pool));
  assert_true(is_in(z, pool_of_graph(graph)));
  assert_true(is_in(w, pool_of_graph(graph)));
  assert_int_equal(segments(), 3);
  void *after = get(512, raw_of(s1));
  assert_true(is_in(after, own_pool));
  put(z);
  put(w);
  put(before);
  put(after);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* A block freed in a capture is reused by the same stream in the capture, because the work of the graph is ordered too.
 * */
TEST(memory_is_reused_in_the_capture) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  weir_graph *graph = new_graph();
  begin(graph, stream, own_pool);
  void *p = get(4096, raw_of(stream));
  fill(p, 1, 4096, stream);
  put(p);
  assert_ptr_equal(get(4096, raw_of(stream)), p);
  end(graph);
  put(p);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* ---- The lifetime of memory ---- */

TEST(pool_lives_as_long_as_the_graph) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open_runtime(expandable ? "expandable_segments:True" : NULL);
    weir_stream stream = new_stream(0);
    weir_graph *graph = new_graph();
    begin(graph, stream, own_pool);
    void *p = get(30 * MIB, raw_of(stream));
    fill(p, 1, 100, stream);
    put(p);
    end(graph);
    int64_t was = reserved();
    empty_cache();
    assert_int_equal(reserved(), was); /* each replay of the graph writes there */
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_stream_synchronize(stream));
    weir_graph_destroy(graph);
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close_runtime();
  }
}

/* PyTorch's test_graph_memory_stats_and_use_result_after_destroy_graph. */
TEST(result_outlives_the_graph) {
  static const struct {
    size_t bytes;
    int64_t segment;
  } cases[] = {{512, 2 * MIB}, {MIB, 2 * MIB}, {MIB + 512, 20 * MIB}, {9 * MIB, 20 * MIB}, {30 * MIB, 30 * MIB}};
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    alloc_open_runtime(NULL);
    weir_stream stream = new_stream(0);
    weir_graph *graph = new_graph();
    begin(graph, stream, own_pool);
    char *a = get(cases[i].bytes, raw_of(stream)), *b = get(cases[i].bytes, raw_of(stream));
    fill(a, 1, cases[i].bytes, stream);
    fill(b, 2, cases[i].bytes, stream);
    put(a);
    end(graph);
    assert_int_equal(stats_of(0).active[WEIR_STAT_ALL].current, 1);
    assert_int_equal(active(), cases[i].bytes);
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_stream_synchronize(stream));
    weir_graph_destroy(graph);
    empty_cache();
    assert_int_equal(reserved(), cases[i].segment); /* the segment with the result */
    assert_int_equal(b[cases[i].bytes - 1], 2);
    put(b);
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close_runtime();
  }
}

/* PyTorch's test_graph_two_successive: graphs that share a pool use the same memory, which lives until the last graph
 * is destroyed. */
TEST(graphs_share_a_pool) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  weir_graph *one = new_graph(), *two = new_graph();
  weir_pool_id shared = weir_graph_pool_handle();
  int holders = -1;
  begin(one, stream, shared);
  void *p = get(30 * MIB, raw_of(stream));
  fill(p, 1, 100, stream);
  put(p);
  end(one);
  begin(two, stream, shared);
  assert_ptr_equal(get(30 * MIB, raw_of(stream)), p);
  fill(p, 2, 100, stream);
  put(p);
  end(two);
  assert_int_equal(reserved(), 30 * MIB);
  assert_ok(weir_pool_use_count(allocator, 0, shared, &holders));
  assert_int_equal(holders, 2);
  weir_graph_destroy(one);
  empty_cache();
  assert_int_equal(reserved(), 30 * MIB);
  assert_ok(weir_graph_reset(two));
  empty_cache();
  assert_int_equal(reserved(), 0);
  weir_graph_destroy(two);
  alloc_close_runtime();
}

/* PyTorch's test_repeat_graph_capture without its library: a hundred captures use no more memory than one. */
TEST(repeated_captures) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  weir_pool_id shared = weir_graph_pool_handle();
  assert_ok(weir_pool_create(allocator, 0, shared, NULL));
  for (int i = 0; i < 100; i++) {
    weir_graph *graph = new_graph();
    begin(graph, stream, shared);
    void *p = get(30 * MIB, raw_of(stream));
    fill(p, 1, 100, stream);
    put(p);
    end(graph);
    weir_graph_destroy(graph);
    assert_int_equal(reserved(), 30 * MIB);
  }
  assert_ok(weir_pool_release(allocator, 0, shared));
  alloc_close_runtime();
}

/* ---- Calls that must not invalidate a capture ---- */

/* Growing needs calls that a capture forbids; the allocator makes them in a relaxed mode, and the capture stays valid.
 * */
TEST(grows_in_a_capture) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open_runtime(expandable ? "expandable_segments:True" : NULL);
    weir_stream stream = new_stream(0), other = new_stream(0);
    weir_graph *graph = new_graph();
    begin(graph, stream, own_pool);
    void *p = get(30 * MIB, raw_of(stream));
    fill(p, 1, 100, stream);
    void *q = get(50 * MIB, raw_of(other)); /* also on other streams */
    fill(p, 2, 100, stream);
    end(graph);
    size_t nodes = 0;
    assert_ok(weir_graph_node_count(graph, &nodes));
    assert_int_equal(nodes, 2);
    put(p);
    put(q);
    weir_graph_destroy(graph);
    alloc_close_runtime();
  }
}

/* PyTorch's test_graph_record_stream: events are not queried during a capture, and blocks freed in it get their events
 * afterwards. */
TEST(record_stream_and_captures) {
  alloc_open_runtime(NULL);
  weir_stream s0 = new_stream(0), s1 = new_stream(0), s2 = new_stream(0);
  void *problem = get(512, raw_of(s1));
  weir_graph *graph = new_graph();
  also_used_by(problem, raw_of(s0));
  fill(problem, 1, 512, s0);
  put(problem);
  assert_int_equal(calls(WEIR_CALL_EventRecord), 1);
  soft_step_all(); /* the event is complete, and a query would free the block */

  begin(graph, s1, own_pool);
  unsigned long queries = calls(WEIR_CALL_EventQuery);
  void *b = get(512, raw_of(s1));
  fill(b, 1, 512, s1);
  join(s2, s1);
  fill(b, 2, 512, s2);
  also_used_by(b, raw_of(s2));
  unsigned long records = calls(WEIR_CALL_EventRecord);
  put(b);
  assert_int_equal(calls(WEIR_CALL_EventRecord), records);
  void *c = get(512, raw_of(s1));
  assert_ptr_not_equal(c, b); /* waits for the end of the capture */
  /* A stream outside the capture does not query events either, which would invalidate the capture. */
  put(get(512, raw_of(s0)));
  assert_layout(b, "512~ 512* 2047K");
  assert_int_equal(calls(WEIR_CALL_EventQuery), queries);
  join(s1, s2);
  end(graph);
  assert_int_equal(calls(WEIR_CALL_EventRecord), records + 1); /* of the join */
  assert_int_equal(calls(WEIR_CALL_EventQuery), queries);

  void *again = get(512, raw_of(s1)); /* the next allocation polls */
  assert_ptr_equal(again, problem);
  assert_int_equal(calls(WEIR_CALL_EventRecord), records + 2);
  assert_layout(b, "512~ 512* 2047K");
  soft_step_all();
  put(get(512, raw_of(s1)));
  assert_layout(b, "512 512* 2047K");
  put(c);
  put(again);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* empty_cache during a capture: the default pool keeps its blocks, released pools are freed, and the capture continues.
 * */
TEST(empty_cache_in_a_capture) {
  for (int expandable = 0; expandable < 2; expandable++) {
    alloc_open_runtime(expandable ? "expandable_segments:True" : NULL);
    weir_stream stream = new_stream(0), other = new_stream(0);
    const weir_pool_id over = {0, 991}, over_here = {0, 992}, over_legacy = {0, 993};
    void *cached = get(20 * MIB, raw_of(other));
    put(cached);
    /* Released pools: of another stream, of the stream that will be captured, and of the legacy stream. */
    weir_cu_stream raws[] = {raw_of(other), raw_of(stream), NULL};
    weir_pool_id ids[] = {over, over_here, over_legacy};
    for (int i = 0; i < 3; i++) {
      assert_ok(weir_pool_begin(allocator, 0, ids[i], NULL, NULL));
      put(get(20 * MIB, raws[i]));
      assert_ok(weir_pool_end(allocator, 0, ids[i]));
      assert_ok(weir_pool_release(allocator, 0, ids[i]));
    }
    assert_int_equal(reserved(), 80 * MIB);

    weir_graph *graph = new_graph();
    begin(graph, stream, own_pool);
    void *p = get(20 * MIB, raw_of(stream));
    fill(p, 1, 100, stream);
    empty_cache();
    /* Pages of the captured stream stay, because it cannot be synchronized. */
    assert_int_equal(reserved(), (expandable ? 60 : 40) * MIB);
    assert_true(is_in(cached, own_pool));
    fill(p, 2, 100, stream);
    end(graph);
    size_t nodes = 0;
    assert_ok(weir_graph_node_count(graph, &nodes));
    assert_int_equal(nodes, 2);

    put(p);
    weir_graph_destroy(graph);
    empty_cache();
    assert_int_equal(reserved(), 0);
    alloc_close_runtime();
  }
}

/* PyTorch's test_graph_capture_oom: out of memory in a capture is reported, no cached memory is released for it, and
 * the capture can still be ended. */
TEST(out_of_memory_in_a_capture) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  void *cached = get(600 * MIB, NULL), *p = NULL;
  put(cached);
  weir_graph *graph = new_graph();
  begin(graph, stream, own_pool);
  assert_error_says(OUT_OF_MEMORY, "out of memory", weir_allocator_alloc(allocator, 0, 600 * MIB, raw_of(stream), &p));
  assert_int_equal(reserved(), 600 * MIB);
  assert_int_equal(stats_of(0).num_alloc_retries, 0);
  p = get(100 * MIB, raw_of(stream));
  fill(p, 1, 100, stream);
  end(graph);
  put(p);
  weir_graph_destroy(graph);
  p = get(600 * MIB, raw_of(stream));
  assert_int_equal(stats_of(0).num_alloc_retries, 1);
  put(p);
  alloc_close_runtime();
}

/* PyTorch's test_graph_capture_error_releases_reserved_segments. */
TEST(failed_capture_releases_memory) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  weir_graph *graph = new_graph();
  begin(graph, stream, own_pool);
  void *p = get(30 * MIB, raw_of(stream));
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamSynchronize(d, raw_of(stream))); /* invalidates the capture */
  assert_true(weir_graph_end_capture(graph) != WEIR_OK);
  put(p);
  empty_cache();
  assert_int_equal(reserved(), 0);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* ---- Explicit scopes during a capture ---- */

static int always(void *context, weir_cu_stream stream) {
  (void)stream;
  ++*(int *)context;
  return 1;
}

/* An explicit scope of the same pool, opened during the capture: each end closes its own scope. */
TEST(scope_of_the_same_pool) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  weir_pool_id shared = weir_graph_pool_handle();
  weir_graph *graph = new_graph();
  int asked = 0;
  begin(graph, stream, shared);
  assert_ok(weir_pool_begin(allocator, 0, shared, always, &asked));
  void *p = get(512, NULL);
  assert_true(is_in(p, shared));
  fill(get(512, raw_of(stream)), 1, 512, stream);
  end(graph);
  void *q = get(512, NULL);
  assert_true(is_in(q, shared)); /* the explicit scope is still open */
  assert_int_equal(asked, 3);
  assert_ok(weir_pool_end(allocator, 0, shared));
  assert_true(is_in(get(512, NULL), own_pool));
  assert_error(BAD_STATE, weir_pool_end(allocator, 0, shared));
  assert_ok(weir_pool_release(allocator, 0, shared));
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* Allocates on a stream from another thread, as autograd does in the backward pass. */
typedef struct backward {
  weir_cu_stream stream;
  void *p;
} backward;

static void *run_backward(void *data) {
  backward *b = data;
  weir_allocator_alloc(allocator, 0, 512, b->stream, &b->p);
  return NULL;
}

static void *get_in_backward(weir_cu_stream stream) {
  backward b = {stream, NULL};
  on_thread(run_backward, &b);
  assert_non_null(b.p);
  return b.p;
}

/* PyTorch's test_graph_mem_pool_arg_and_nested_use_mem_pool: a thread's scope comes first. Other threads that allocate
 * on the streams of the capture do so in the graph's pool. */
TEST(scope_of_another_pool) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  const weir_pool_id nested = {0, 555};
  weir_graph *graph = new_graph();
  begin(graph, stream, own_pool);
  void *first = get_in_backward(raw_of(stream));
  assert_ok(weir_pool_begin(allocator, 0, nested, NULL, NULL));
  void *p = get(512, raw_of(stream));
  assert_true(is_in(p, nested));
  assert_true(segment_at(p)->arena->pool->owner->pins & WEIR__PIN_GRAPH);
  void *second = get_in_backward(raw_of(stream));
  void *outside = get_in_backward(NULL);
  assert_ok(weir_pool_end(allocator, 0, nested));
  void *q = get(512, raw_of(stream));
  fill(q, 1, 512, stream);
  end(graph);
  assert_true(is_in(q, pool_of_graph(graph)));
  assert_true(is_in(first, pool_of_graph(graph)));
  assert_true(is_in(second, pool_of_graph(graph)));
  assert_true(is_in(outside, own_pool));
  void *all[] = {p, q, first, second, outside};
  for (size_t i = 0; i < WEIR_COUNT_OF(all); i++)
    put(all[i]);
  assert_ok(weir_pool_release(allocator, 0, nested));
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* The reverse: a capture inside a thread's scope. The thread's allocations come from its pool, those of other threads
 * on the capture's streams from the graph's. */
TEST(capture_in_a_scope) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  const weir_pool_id around = {0, 555};
  weir_graph *graph = new_graph();
  assert_ok(weir_pool_begin(allocator, 0, around, NULL, NULL));
  void *before = get(512, raw_of(stream));
  assert_false(segment_at(before)->arena->pool->owner->pins & WEIR__PIN_GRAPH);
  begin(graph, stream, own_pool);
  void *p = get(512, raw_of(stream));
  fill(p, 1, 512, stream);
  void *q = get_in_backward(raw_of(stream));
  fill(q, 2, 512, stream);
  end(graph);
  assert_true(is_in(p, around));
  assert_true(segment_at(p)->arena->pool->owner->pins & WEIR__PIN_GRAPH);
  assert_true(is_in(q, pool_of_graph(graph)));
  assert_ok(weir_pool_end(allocator, 0, around));
  put(before);
  put(p);
  put(q);
  assert_ok(weir_pool_release(allocator, 0, around));
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

static int that_stream(void *context, weir_cu_stream stream) { return context == (void *)stream; }

/* PyTorch's _cuda_beginAllocateCurrentStreamToPool: allocations on one stream, of all threads, inside a capture and
 * outside. */
TEST(scope_of_a_stream) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0), other = new_stream(0);
  const weir_pool_id pool = {0, 555};
  weir_graph *graph = new_graph();
  assert_ok(weir_pool_begin(allocator, 0, pool, that_stream, (void *)raw_of(other)));
  assert_true(is_in(get(512, raw_of(other)), pool));
  assert_true(is_in(get_in_backward(raw_of(other)), pool));
  assert_true(is_in(get(512, raw_of(stream)), own_pool));
  begin(graph, stream, own_pool);
  join(other, stream);
  void *p = get(512, raw_of(stream)), *q = get_in_backward(raw_of(other));
  join(stream, other);
  end(graph);
  assert_true(is_in(p, pool_of_graph(graph)));
  assert_true(is_in(q, pool_of_graph(graph))); /* the capture is the newest scope */
  assert_true(is_in(get_in_backward(raw_of(other)), pool));
  assert_ok(weir_pool_end(allocator, 0, pool));
  assert_true(is_in(get(512, raw_of(other)), own_pool));
  assert_ok(weir_pool_release(allocator, 0, pool));
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* ---- Removing the allocator ---- */

TEST(without_an_allocator) {
  alloc_open_runtime(NULL);
  assert_ok(weir_graph_use_allocator(NULL));
  weir_stream stream = new_stream(0);
  void *p = get(512, raw_of(stream));
  weir_graph *graph = new_graph();
  begin(graph, stream, own_pool);
  fill(p, 1, 512, stream);
  end(graph);
  assert_int_equal(segments(), 1);
  assert_true(is_in(p, own_pool));
  put(p);
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

/* The allocator is destroyed first: graphs no longer use it. */
TEST(allocator_is_destroyed_first) {
  alloc_open_runtime(NULL);
  weir_stream stream = new_stream(0);
  weir_graph *graph = new_graph(), *later = new_graph();
  begin(graph, stream, own_pool);
  void *p = get(512, raw_of(stream));
  fill(p, 1, 512, stream);
  end(graph);
  weir_allocator_destroy(allocator);
  allocator = NULL;
  weir_graph_destroy(graph);
  weir_cu_deviceptr own = soft_alloc(512);
  assert_ok(weir_graph_begin_capture(later, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_fill_async((void *)own, 1, 512, stream));
  assert_ok(weir_graph_end_capture(later));
  weir_graph_destroy(later);
  assert_cu(d->MemFree(d, own));
  alloc_close_runtime();
}

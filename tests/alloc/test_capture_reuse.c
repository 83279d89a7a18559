/*
 * graph_capture_record_stream_reuse: a block that several captured streams used, and that was freed in the capture, is
 * reused by its stream in the same capture once that stream comes after all of them in the graph.
 */
#include <string.h>

#include "support/alloc.h"

enum { SIZE = 4096 };
static const weir_pool_id own_pool = {0, 0};
static weir_stream s[5];
static weir_graph *graph;

static void open(const char *conf) {
  alloc_open_runtime(conf);
  for (int i = 0; i < 5; i++)
    s[i] = new_stream(0);
  assert_ok(weir_graph_create(&graph));
}

static void close_all(void) {
  weir_graph_destroy(graph);
  alloc_close_runtime();
}

static void begin(weir_pool_id pool) {
  assert_ok(weir_stream_set_current(s[0]));
  assert_ok(weir_graph_begin_capture(graph, pool, WEIR_CAPTURE_GLOBAL));
}

static void end(void) {
  assert_ok(weir_graph_end_capture(graph));
  assert_valid();
}

static void after(weir_stream stream, weir_stream other) { assert_ok(weir_stream_wait_stream(stream, other)); }
static void touch(void *p, weir_stream stream) { assert_ok(weir_fill_async(p, 1, SIZE, stream)); }
static void *get_here(void) { return get(SIZE, raw_of(s[0])); }

/* Uses a block on another stream of the capture and frees it. */
static void *use_and_free(int stream) {
  void *p = get_here();
  touch(p, s[0]);
  after(s[stream], s[0]);
  touch(p, s[stream]);
  also_used_by(p, raw_of(s[stream]));
  put(p);
  return p;
}

FIXTURE(.teardown = alloc_teardown_runtime)

/* PyTorch's test_graph_capture_reclaim_2_streams. */
TEST(two_streams) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = use_and_free(1), *q = get_here();
  assert_ptr_not_equal(q, p); /* the fill on the other stream may not be done */
  touch(q, s[0]);
  after(s[0], s[1]);
  void *r = get_here();
  assert_ptr_equal(r, p);
  touch(r, s[0]);
  end();
  put(q);
  put(r);
  close_all();
}

/* Without the setting the block waits for the end of the capture, joined or not. */
TEST(setting_off) {
  open(NULL);
  begin(own_pool);
  void *p = use_and_free(1);
  after(s[0], s[1]);
  void *q = get_here();
  assert_ptr_not_equal(q, p);
  touch(q, s[0]);
  end();
  soft_step_all();
  put(q);
  close_all();
}

/* PyTorch's test_graph_capture_reclaim_4_streams: the stream must come after all others. */
TEST(four_streams) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = get_here(), *others[4];
  touch(p, s[0]);
  for (int i = 1; i < 4; i++) {
    after(s[i], s[0]);
    touch(p, s[i]);
    also_used_by(p, raw_of(s[i]));
  }
  put(p);
  for (int i = 1; i < 4; i++) {
    others[i] = get_here();
    assert_ptr_not_equal(others[i], p);
    after(s[0], s[i]);
  }
  others[0] = get_here();
  assert_ptr_equal(others[0], p);
  touch(p, s[0]);
  end();
  for (int i = 0; i < 4; i++)
    put(others[i]);
  close_all();
}

/* Joined indirectly, through a third stream. */
TEST(indirect_join) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = use_and_free(1);
  after(s[2], s[1]);
  assert_ok(weir_fill_async(p, 1, 1, s[2])); /* any node */
  after(s[0], s[2]);
  void *q = get_here();
  assert_ptr_equal(q, p);
  touch(q, s[0]);
  end();
  put(q);
  close_all();
}

/* Only the work that the other stream did before the free counts. */
TEST(marker_is_at_the_free) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = use_and_free(1), *scratch = get(SIZE, raw_of(s[1]));
  weir_event *event = NULL;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_event_record(event, s[1])); /* immediately after the use */
  touch(scratch, s[1]);
  assert_ok(weir_event_wait(event, s[0]));
  void *q = get_here();
  assert_ptr_equal(q, p);
  touch(q, s[0]);
  after(s[0], s[1]);
  end();
  weir_event_destroy(event);
  put(q);
  put(scratch);
  close_all();
}

/* Another stream of the capture does not get the block: a block stays with its stream. */
TEST(stays_with_its_stream) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = use_and_free(1), *q = get(SIZE, raw_of(s[1]));
  assert_ptr_not_equal(q, p);
  touch(q, s[1]);
  after(s[0], s[1]);
  end();
  put(q);
  soft_step_all();
  close_all();
}

/* PyTorch's test_graph_capture_pre_capture_stream_use: the block was also used before the capture. That work is not
 * part of the graph, so nothing in the graph comes after it. */
TEST(use_before_the_capture) {
  open("graph_capture_record_stream_reuse:True");
  weir_pool_id shared = weir_graph_pool_handle();
  assert_ok(weir_pool_begin(allocator, 0, shared, NULL, NULL));
  void *p = get_here();
  assert_ok(weir_pool_end(allocator, 0, shared));
  touch(p, s[1]);
  also_used_by(p, raw_of(s[1]));
  begin(shared);
  touch(p, s[0]);
  after(s[1], s[0]);
  touch(p, s[1]);
  also_used_by(p, raw_of(s[1])); /* again, in the capture */
  put(p);
  after(s[0], s[1]);
  void *q = get_here();
  assert_ptr_not_equal(q, p);
  touch(q, s[0]);
  end();
  void *r = get(SIZE, raw_of(s[4])); /* polls, so that the block gets its event */
  assert_layout(p, "4K~ 4K* 2040K");
  soft_step_all();
  put(get(SIZE, raw_of(s[4])));
  assert_layout(p, "4K 4K* 2040K");
  put(q);
  put(r);
  assert_ok(weir_pool_release(allocator, 0, shared));
  close_all();
}

/* A block of the default pool from before the capture: the work of its other stream may still run when the capture
 * ends. */
TEST(block_from_before_the_capture) {
  open("graph_capture_record_stream_reuse:True");
  void *p = get_here();
  touch(p, s[1]);
  also_used_by(p, raw_of(s[1]));
  begin(own_pool);
  void *q = get_here();
  touch(q, s[0]);
  after(s[1], s[0]);
  put(p);
  touch(q, s[1]);
  after(s[0], s[1]);
  put(get_here()); /* polls the events */
  end();
  assert_true(soft_pending(raw_of(s[1])) > 0);
  void *r = get_here();
  assert_ptr_not_equal(r, p);
  soft_step_all();
  put(q);
  put(r);
  close_all();
}

/* A stream outside the capture uses the block, so the graph does not order its work. */
TEST(use_outside_the_capture) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = use_and_free(1), *q = get_here();
  also_used_by(q, raw_of(s[4]));
  touch(q, s[0]);
  put(q);
  after(s[0], s[1]);
  void *r = get_here(), *t = get_here();
  assert_ptr_equal(r, p);
  assert_ptr_not_equal(t, q);
  touch(t, s[0]);
  end();
  soft_step_all();
  put(r);
  put(t);
  close_all();
}

/* Blocks left at the end of the capture get events as usual. */
TEST(blocks_left_at_the_end) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  void *p = use_and_free(1);
  after(s[0], s[1]);
  end();
  assert_layout(p, "4K~ 2044K");
  put(get(SIZE, raw_of(s[4])));
  soft_step_all();
  put(get(SIZE, raw_of(s[4])));
  assert_layout(p, "2M");
  close_all();
}

/* The allocator is destroyed while blocks wait. */
TEST(destroyed_meanwhile) {
  open("graph_capture_record_stream_reuse:True");
  begin(own_pool);
  use_and_free(1);
  after(s[0], s[1]);
  end();
  close_all();
}

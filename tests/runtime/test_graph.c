/*
 * Graphs: capture, replay, reset and recapture. Failures are in test_graph_rules.c.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/runtime.h"

static const weir_pool_id own_pool = {0, 0};

static weir_graph *new_graph(void) {
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  assert_non_null(graph);
  return graph;
}

static void begin(weir_graph *graph, weir_stream stream) {
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
}

static void end(weir_graph *graph) {
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_stream_set_current(default_stream(-1)));
}

static size_t nodes_of(const weir_graph *graph) {
  size_t count = 9999;
  assert_ok(weir_graph_node_count(graph, &count));
  return count;
}

static int is_capturing(weir_stream stream) {
  int capturing = -1;
  assert_ok(weir_stream_is_capturing(stream, &capturing));
  return capturing;
}

static int current_is_capturing(void) {
  int capturing = -1;
  assert_ok(weir_current_stream_is_capturing(&capturing));
  return capturing;
}

enum { WORDS = 1000, BYTES = WORDS * 4 };

/* The sum that PyTorch's tests check. */
static uint64_t sum_of(const uint32_t *memory) {
  uint32_t host[WORDS];
  uint64_t sum = 0;
  assert_ok(weir_copy(host, memory, BYTES, current_stream(0)));
  for (int i = 0; i < WORDS; i++)
    sum += host[i];
  return sum;
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

/* PyTorch's test_graph_is_current_stream_capturing. */
TEST(is_current_stream_capturing) {
  assert_int_equal(current_is_capturing(), 0);
  weir_stream stream = new_stream(0), other = new_stream(0);
  weir_graph *graph = new_graph();
  assert_ok(weir_stream_set_current(stream));
  assert_int_equal(current_is_capturing(), 0);
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_int_equal(current_is_capturing(), 1);
  assert_int_equal(is_capturing(stream), 1);
  assert_int_equal(is_capturing(other), 0);
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_int_equal(current_is_capturing(), 0);
  assert_int_equal(is_capturing(stream), 0);
  weir_graph_destroy(graph);
}

/* PyTorch's test_graph_capture_simple: captured work runs at the replay, not before. */
TEST(capture_simple) {
  load_add(0);
  weir_stream stream = new_stream(0);
  uint32_t *a = device_memory(0, 2 * BYTES), *b = a + WORDS;
  weir_graph *graph = new_graph();
  assert_ok(weir_fill32_async(a, 1, WORDS, stream));
  assert_ok(weir_fill32_async(b, 0, WORDS, stream));
  assert_ok(weir_stream_synchronize(stream));
  begin(graph, stream);
  assert_cu(launch_add(b, a, 1, WORDS, stream));
  for (int i = 1; i < 10; i++)
    assert_cu(launch_add(b, b, 1, WORDS, stream));
  end(graph);
  assert_ok(weir_stream_wait_stream(current_stream(0), stream));
  assert_int_equal(sum_of(b), 0);
  assert_int_equal(nodes_of(graph), 10);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(sum_of(b), 11000);
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(sum_of(b), 11000);
  /* The addresses are part of the graph, the contents are not. */
  assert_ok(weir_fill32_async(a, 2, WORDS, current_stream(0)));
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(sum_of(b), 12000);
  weir_graph_destroy(graph);
  free_device_memory(0, a);
}

/* PyTorch's test_graph_capture_reset_recapture. */
TEST(capture_reset_recapture) {
  load_add(0);
  weir_stream stream = new_stream(0);
  uint32_t *a = device_memory(0, 2 * BYTES), *b = a + WORDS;
  weir_graph *graph = new_graph();
  weir_pool_id first, second;
  assert_ok(weir_fill32_async(a, 1, WORDS, stream));
  assert_ok(weir_stream_synchronize(stream));
  begin(graph, stream);
  assert_cu(launch_add(b, a, 1, WORDS, stream));
  for (int i = 1; i < 10; i++)
    assert_cu(launch_add(b, b, 1, WORDS, stream));
  end(graph);
  assert_ok(weir_graph_pool(graph, &first));
  assert_ok(weir_stream_wait_stream(current_stream(0), stream));
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(sum_of(b), 11000);
  assert_ok(weir_graph_reset(graph));
  assert_error(BAD_STATE, weir_graph_replay(graph));

  begin(graph, stream);
  assert_ok(weir_fill32_async(b, 2, WORDS, stream));
  for (int i = 0; i < 10; i++)
    assert_cu(launch_add(b, b, 2, WORDS, stream));
  end(graph);
  assert_int_equal(nodes_of(graph), 11);
  assert_ok(weir_graph_pool(graph, &second));
  assert_int_not_equal(first.first, second.first);
  assert_ok(weir_stream_wait_stream(current_stream(0), stream));
  assert_ok(weir_graph_replay(graph));
  assert_int_equal(sum_of(b), 22000);
  assert_ok(weir_graph_reset(graph));
  assert_ok(weir_graph_reset(graph)); /* nothing is left to reset */
  weir_graph_destroy(graph);
  free_device_memory(0, a);
}

/* PyTorch's test_graph_warn_if_has_zero_nodes. */
TEST(warn_if_has_zero_nodes) {
  collect_messages();
  weir_graph *graph = new_graph();
  begin(graph, new_stream(0));
  end(graph);
  assert_int_equal(messages_with(WEIR_LOG_WARN, "The CUDA Graph is empty"), 1);
  assert_int_equal(nodes_of(graph), 0);
  assert_ok(weir_graph_replay(graph)); /* an empty graph */
  assert_ok(weir_device_synchronize(0));
  assert_ok(weir_graph_reset(graph));

  collect_messages();
  begin(graph, new_stream(0));
  mark(current_stream(0), 1);
  end(graph);
  assert_int_equal(messages_with(WEIR_LOG_WARN, ""), 0);
  weir_graph_destroy(graph);
}

/* The work of the next three tests: t grows by twice the value, by way of x. In the originals the allocator places x;
 * here the caller does. */
static void grow(uint32_t *t, uint32_t *x, uint32_t value, weir_stream stream) {
  assert_cu(launch_add(x, t, value, WORDS, stream));
  assert_cu(launch_add(t, x, value, WORDS, stream));
}

/* test_graph_two_successive. */
TEST(two_successive) {
  load_add(0);
  uint32_t *b = device_memory(0, 4 * BYTES), *c = b + WORDS, *x = c + WORDS, *y = x + WORDS;
  weir_stream stream = new_stream(0), eager = current_stream(0);
  for (int how = 0; how < 3; how++) {
    weir_graph *g0 = new_graph(), *g1 = new_graph();
    weir_pool_id pool = how == 2 ? weir_graph_pool_handle() : own_pool, pool0, pool1;
    assert_ok(weir_stream_wait_stream(stream, eager));
    assert_ok(weir_stream_set_current(stream));
    assert_ok(weir_graph_begin_capture(g0, pool, WEIR_CAPTURE_GLOBAL));
    assert_ok(weir_fill32_async(b, 1, WORDS, stream));
    for (int i = 0; i < 5; i++)
      grow(b, x, 1, stream);
    assert_ok(weir_graph_end_capture(g0));
    assert_ok(weir_graph_pool(g0, &pool0));
    assert_ok(weir_graph_begin_capture(g1, how == 1 ? pool0 : pool, WEIR_CAPTURE_GLOBAL));
    for (int i = 0; i < 5; i++)
      grow(b, x, 1, stream);
    assert_ok(weir_graph_end_capture(g1));
    assert_ok(weir_graph_pool(g1, &pool1));
    assert_ok(weir_stream_set_current(eager));
    assert_ok(weir_stream_wait_stream(eager, stream));
    assert_int_equal(pool0.first == pool1.first && pool0.second == pool1.second, how != 0);

    /* Replays between unrelated work. */
    assert_ok(weir_fill32_async(c, 1, WORDS, eager));
    grow(c, y, 3, eager);
    assert_ok(weir_graph_replay(g0));
    grow(c, y, 3, eager);
    assert_ok(weir_graph_replay(g1));
    grow(c, y, 3, eager);
    assert_int_equal(sum_of(b), WORDS * 21);
    assert_int_equal(sum_of(c), WORDS * 19);
    weir_graph_destroy(g0);
    weir_graph_destroy(g1);
  }
  free_device_memory(0, b);
}

/* test_graph_three_successive: in the order of capture, and in another order if the graphs are independent. */
TEST(three_successive) {
  load_add(0);
  uint32_t *b = device_memory(0, 5 * BYTES), *c = b + WORDS, *dd = c + WORDS, *e = dd + WORDS, *f = e + WORDS;
  weir_stream stream = new_stream(0);
  weir_graph *g0 = new_graph(), *g1 = new_graph(), *g2 = new_graph();
  assert_ok(weir_stream_wait_stream(stream, current_stream(0)));
  begin(g0, stream);
  assert_ok(weir_fill32_async(b, 1, WORDS, stream));
  assert_cu(launch_add(c, b, 1, WORDS, stream));
  assert_cu(launch_add(dd, b, 2, WORDS, stream));
  end(g0);
  begin(g1, stream);
  assert_cu(launch_add(e, c, 3, WORDS, stream));
  end(g1);
  begin(g2, stream);
  assert_cu(launch_add(f, dd, 4, WORDS, stream));
  end(g2);
  for (int order = 0; order < 2; order++) {
    assert_ok(weir_fill_async(b, 0, 5 * BYTES, current_stream(0)));
    assert_ok(weir_graph_replay(g0));
    assert_ok(weir_graph_replay(order ? g2 : g1));
    assert_ok(weir_graph_replay(order ? g1 : g2));
    assert_int_equal(sum_of(e), WORDS * 5);
    assert_int_equal(sum_of(f), WORDS * 7);
  }
  weir_graph_destroy(g0);
  weir_graph_destroy(g1);
  weir_graph_destroy(g2);
  free_device_memory(0, b);
}

/* test_graph_concurrent_replay, with independent graphs. */
TEST(concurrent_replay) {
  load_add(0);
  uint32_t *b = device_memory(0, 4 * BYTES), *c = b + WORDS, *x = c + WORDS, *y = x + WORDS;
  weir_stream stream = new_stream(0), s0 = new_stream(0), s1 = new_stream(0), first = current_stream(0);
  weir_graph *g0 = new_graph(), *g1 = new_graph();
  begin(g0, stream);
  assert_ok(weir_fill32_async(b, 1, WORDS, stream));
  for (int i = 0; i < 5; i++)
    grow(b, x, 1, stream);
  end(g0);
  begin(g1, stream);
  assert_ok(weir_fill32_async(c, 1, WORDS, stream));
  for (int i = 0; i < 5; i++)
    grow(c, y, 2, stream);
  end(g1);
  for (int round = 0; round < 5; round++) {
    assert_ok(weir_device_synchronize(0));
    assert_ok(weir_stream_set_current(s0));
    assert_ok(weir_stream_spin(s0, 1000000));
    assert_ok(weir_stream_wait_stream(s1, s0)); /* both start at once */
    assert_ok(weir_graph_replay(g0));
    assert_ok(weir_stream_set_current(s1));
    assert_ok(weir_graph_replay(g1));
    assert_ok(weir_stream_set_current(first));
    assert_ok(weir_stream_wait_stream(first, s0));
    assert_ok(weir_stream_wait_stream(first, s1));
    assert_int_equal(sum_of(b), WORDS * 11);
    assert_int_equal(sum_of(c), WORDS * 21);
  }
  weir_graph_destroy(g0);
  weir_graph_destroy(g1);
  free_device_memory(0, b);
}

/* ---- Replay ---- */

TEST(replay_is_in_the_order_of_the_current_stream) {
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), other = new_stream(0);
  begin(graph, stream);
  mark(stream, 10);
  mark(stream, 11);
  end(graph);
  assert_int_equal(mark_count(), 0);
  assert_int_equal(nodes_of(graph), 2);

  struct held *gate = hold(other);
  mark(other, 1);
  assert_ok(weir_stream_set_current(other));
  assert_ok(weir_graph_replay(graph));
  mark(other, 2);
  assert_ok(weir_graph_replay(graph));
  mark(other, 3);
  assert_ok(weir_stream_synchronize(stream)); /* is not part of it */
  assert_int_equal(mark_count(), 0);
  unblock(gate);
  assert_ok(weir_stream_synchronize(other));
  assert_marks(1, 10, 11, 2, 10, 11, 3);
  weir_graph_destroy(graph);
}

TEST(two_replays_never_overlap) {
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), a = new_stream(0), b = new_stream(0);
  begin(graph, stream);
  mark(stream, 1);
  assert_ok(weir_stream_spin(stream, cycles_of(3)));
  mark(stream, 2);
  end(graph);
  assert_ok(weir_stream_set_current(a));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_set_current(b));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_set_current(default_stream(0)));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  assert_marks(1, 2, 1, 2, 1, 2);
  weir_graph_destroy(graph);
}

static void *replay_on_thread(void *data) {
  static weir_status status;
  weir_stream stream;
  status = weir_graph_replay(data);
  if (status == WEIR_OK)
    status = weir_stream_get_current(0, &stream);
  if (status == WEIR_OK)
    status = weir_stream_synchronize(stream);
  if (status != WEIR_OK)
    fprintf(stderr, "%s\n", weir_last_error());
  return NULL;
}

TEST(replay_on_another_thread) {
  weir_graph *graph = new_graph();
  begin(graph, new_stream(0));
  mark(current_stream(0), 1);
  end(graph);
  on_thread(replay_on_thread, graph);
  assert_marks(1);
  weir_graph_destroy(graph);
}

TEST(destroyed_while_it_runs) {
  weir_graph *graph = new_graph(), *other = new_graph();
  weir_stream stream = new_stream(0);
  begin(graph, stream);
  mark(stream, 1);
  end(graph);
  begin(other, stream);
  mark(stream, 2);
  end(other);
  assert_ok(weir_stream_set_current(stream));
  struct held *gate = hold(stream);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_graph_replay(other));
  weir_graph_destroy(graph);
  assert_ok(weir_graph_reset(other));
  assert_int_equal(mark_count(), 0);
  unblock(gate);
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(1, 2);
  weir_graph_destroy(other);
}

/* ---- Several streams ---- */

TEST(a_second_stream_takes_part) {
  load_add(0);
  weir_stream stream = new_stream(0), side = new_stream(0);
  uint32_t *in = pinned_memory(BYTES), *out = pinned_memory(3 * BYTES);
  uint32_t *x = device_memory(0, 4 * BYTES), *y = x + WORDS, *z = y + WORDS, *w = z + WORDS;
  weir_graph *graph = new_graph();
  assert_ok(weir_stream_spin(side, 1)); /* loads the kernel */
  assert_ok(weir_stream_synchronize(side));

  begin(graph, stream);
  assert_ok(weir_copy_async(x, in, BYTES, stream));
  assert_int_equal(is_capturing(side), 0);
  assert_ok(weir_stream_wait_stream(side, stream));
  assert_int_equal(is_capturing(side), 1);
  assert_ok(weir_stream_spin(side, cycles_of(2))); /* without the wait, w would be wrong */
  assert_cu(launch_add(y, x, 10, WORDS, side));
  assert_cu(launch_add(z, x, 20, WORDS, stream));
  assert_ok(weir_stream_wait_stream(stream, side));
  assert_cu(launch_add(w, y, 5, WORDS, stream));
  assert_ok(weir_copy_async(out, y, 3 * BYTES, stream));
  end(graph);
  assert_int_equal(is_capturing(side), 0);
  assert_int_equal(nodes_of(graph), 6);

  for (uint32_t round = 1; round <= 4; round++) {
    for (uint32_t i = 0; i < WORDS; i++)
      in[i] = 1000 * round + i;
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_stream_synchronize(current_stream(0)));
    for (uint32_t i = 0; i < WORDS; i++) {
      assert_int_equal(out[i], in[i] + 10);
      assert_int_equal(out[WORDS + i], in[i] + 20);
      assert_int_equal(out[2 * WORDS + i], in[i] + 15);
    }
  }
  weir_graph_destroy(graph);
  free_device_memory(0, x);
  free_pinned_memory(in);
  free_pinned_memory(out);
}

/* After a capture its streams can be used for other work, and captured work does not wait for it. */
TEST(order_within_a_replay) {
  weir_stream stream = new_stream(0), a = new_stream(0), b = new_stream(0);
  weir_graph *graph = new_graph();
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  begin(graph, stream);
  mark(stream, 1);
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_event_wait(event, a));
  assert_ok(weir_event_wait(event, b));
  mark(a, 2);
  assert_ok(weir_stream_wait_stream(b, a));
  mark(b, 3);
  assert_ok(weir_stream_wait_stream(stream, b));
  mark(stream, 4);
  end(graph);
  struct held *gates[] = {hold(stream), hold(a), hold(b)};
  for (int i = 0; i < 3; i++) {
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_stream_synchronize(default_stream(0)));
  }
  assert_marks(1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4);
  for (int i = 0; i < 3; i++)
    unblock(gates[i]);
  assert_ok(weir_device_synchronize(0));
  /* After a record outside of a capture the event can be used again. */
  assert_ok(weir_event_record(event, a));
  assert_ok(weir_event_synchronize(event));
  assert_ok(weir_event_query(event));
  weir_event_destroy(event);
  weir_graph_destroy(graph);
}

TEST(other_streams_go_on_during_a_capture) {
  weir_stream stream = new_stream(0), other = new_stream(0);
  weir_graph *graph = new_graph();
  void *memory = device_memory(0, 100);
  assert_ok(weir_fill_async(memory, 1, 100, other));
  assert_ok(weir_device_synchronize(0));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_RELAXED));
  assert_ok(weir_fill_async(memory, 2, 100, stream)); /* captured */
  assert_ok(weir_fill_async(memory, 3, 100, other));  /* done */
  assert_ok(weir_stream_synchronize(other));
  assert_ok(weir_stream_query(other));
  end(graph);
  assert_filled(0, memory, 3, 100);
  assert_ok(weir_graph_replay(graph));
  assert_filled(0, memory, 2, 100);
  assert_int_equal(nodes_of(graph), 1);
  weir_graph_destroy(graph);
  free_device_memory(0, memory);
}

TEST(two_captures_at_once) {
  weir_stream a = new_stream(0), b = new_stream(0);
  weir_graph *first = new_graph(), *second = new_graph();
  assert_ok(weir_stream_set_current(a));
  assert_ok(weir_graph_begin_capture(first, own_pool, WEIR_CAPTURE_RELAXED));
  assert_ok(weir_stream_set_current(b));
  assert_ok(weir_graph_begin_capture(second, own_pool, WEIR_CAPTURE_RELAXED));
  mark(a, 1);
  mark(b, 2);
  assert_ok(weir_stream_set_current(a));
  assert_ok(weir_graph_end_capture(first));
  assert_int_equal(is_capturing(b), 1);
  assert_ok(weir_stream_set_current(b));
  assert_ok(weir_graph_end_capture(second));
  assert_ok(weir_graph_replay(second));
  assert_ok(weir_graph_replay(first));
  assert_ok(weir_device_synchronize(0));
  assert_marks(2, 1);
  weir_graph_destroy(first);
  weir_graph_destroy(second);
}

TEST(capture_of_an_external_stream) {
  weir_cu_stream raw;
  weir_stream stream;
  weir_graph *graph = new_graph();
  assert_ok(weir_device_set_current(0));
  assert_cu(d->StreamCreateWithPriority(d, &raw, WEIR_CU_STREAM_NON_BLOCKING, 0));
  assert_ok(weir_stream_external(0, raw, &stream));
  begin(graph, stream);
  mark(stream, 1);
  end(graph);
  assert_cu(d->StreamDestroy(d, raw)); /* the graph does not depend on it */
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  assert_marks(1);
  weir_graph_destroy(graph);
}

TEST(a_graph_of_another_device) {
  NEED_TWO_DEVICES();
  load_add(1);
  uint32_t *memory = device_memory(1, BYTES), host[WORDS];
  weir_stream stream = new_stream(1), target = new_stream(1);
  weir_graph *graph = new_graph();
  assert_ok(weir_fill32_async(memory, 5, WORDS, stream));
  assert_ok(weir_device_synchronize(1));
  begin(graph, stream);
  assert_cu(launch_add(memory, memory, 1, WORDS, stream));
  end(graph);
  assert_ok(weir_stream_set_current(target));
  assert_ok(weir_device_set_current(0)); /* the graph remembers its device */
  struct held *gate = hold(target);
  assert_ok(weir_graph_replay(graph));
  assert_not_ready(weir_stream_query(target));
  unblock(gate);
  assert_ok(weir_copy(host, memory, BYTES, target));
  assert_int_equal(host[0], 6);
  assert_int_equal(host[WORDS - 1], 6);
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
  weir_graph_destroy(graph);
  free_device_memory(1, memory);
}

/* The kernel is loaded during the capture. */
TEST(the_first_spin_is_in_a_capture) {
  weir_stream stream = new_stream(0);
  weir_graph *graph = new_graph();
  weir_event *start, *stop;
  double milliseconds = -1;
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &start));
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &stop));
  uint64_t cycles = cycles_of(5);
  begin(graph, stream);
  assert_ok(weir_stream_spin(stream, cycles));
  end(graph);
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_event_record(start, stream));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_event_record(stop, stream));
  assert_ok(weir_event_synchronize(stop));
  assert_ok(weir_event_elapsed(start, stop, &milliseconds));
  assert_true(milliseconds > 4);
  weir_event_destroy(start);
  weir_event_destroy(stop);
  weir_graph_destroy(graph);
}

/* ---- Pools ---- */

TEST(pool_handles_are_unique) {
  weir_pool_id handles[8], pools[3], during;
  for (int i = 0; i < 8; i++) {
    handles[i] = weir_graph_pool_handle();
    assert_int_equal(handles[i].first, 0);
    assert_int_not_equal(handles[i].second, 0);
    for (int j = 0; j < i; j++)
      assert_int_not_equal(handles[i].second, handles[j].second);
  }
  for (int i = 0; i < 3; i++) {
    weir_graph *graph = new_graph();
    begin(graph, new_stream(0));
    mark(current_stream(0), 1);
    assert_ok(weir_graph_pool(graph, &during));
    end(graph);
    assert_ok(weir_graph_pool(graph, &pools[i]));
    assert_int_equal(during.first, pools[i].first);
    assert_int_not_equal(pools[i].first, 0);
    assert_int_equal(pools[i].second, 0);
    for (int j = 0; j < i; j++)
      assert_int_not_equal(pools[i].first, pools[j].first);
    weir_graph_destroy(graph);
  }
}

TEST(a_given_pool_is_kept) {
  weir_pool_id pool = weir_graph_pool_handle(), found = {0, 0};
  weir_graph *graphs[2] = {new_graph(), new_graph()};
  for (int i = 0; i < 2; i++) {
    assert_ok(weir_stream_set_current(new_stream(0)));
    assert_ok(weir_graph_begin_capture(graphs[i], pool, WEIR_CAPTURE_THREAD_LOCAL));
    mark(current_stream(0), 1);
    assert_ok(weir_graph_end_capture(graphs[i]));
    assert_ok(weir_graph_pool(graphs[i], &found));
    assert_int_equal(found.first, pool.first);
    assert_int_equal(found.second, pool.second);
  }
  weir_graph_destroy(graphs[0]);
  weir_graph_destroy(graphs[1]);
}

/* ---- The dump ---- */

TEST(debug_dump) {
  char path[] = "/tmp/weir-test-graph-XXXXXX", text[20000];
  int file = mkstemp(path);
  assert_true(file >= 0);
  weir_graph *graph = new_graph();
  void *memory = device_memory(0, 64);
  assert_ok(weir_graph_enable_debug(graph));
  begin(graph, new_stream(0));
  assert_ok(weir_fill_async(memory, 1, 64, current_stream(0)));
  mark(current_stream(0), 1);
  assert_ok(weir_stream_spin(current_stream(0), 1));
  end(graph);
  clear_last_error();
  assert_int_not_equal(weir_graph_debug_dump(graph, "/nowhere/at/all/graph.dot"), WEIR_OK);
  assert_memory_equal(weir_last_error(), "weir_graph_debug_dump: ", 23);
  assert_ok(weir_graph_debug_dump(graph, path)); /* it still exists */
  ssize_t bytes = read(file, text, sizeof text - 1);
  assert_in_range(bytes, 20, sizeof text - 1);
  text[bytes] = '\0';
  assert_non_null(strstr(text, "digraph"));
  assert_non_null(strstr(text, "->"));
  assert_non_null(strchr(text, '}'));

  assert_error(BAD_STATE, weir_graph_debug_dump(graph, path));
  assert_ok(weir_graph_replay(graph)); /* needs no debug description */
  assert_ok(weir_device_synchronize(0));
  assert_marks(1);
  /* The next capture has its own description. */
  assert_ok(weir_graph_reset(graph));
  begin(graph, new_stream(0));
  mark(current_stream(0), 2);
  end(graph);
  assert_ok(weir_graph_debug_dump(graph, path));
  weir_graph_destroy(graph);
  free_device_memory(0, memory);
  close(file);
  unlink(path);
}

TEST(no_dump_without_debug) {
  char path[] = "/tmp/weir-test-graph-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  weir_graph *graph = new_graph();
  assert_error(BAD_STATE, weir_graph_debug_dump(graph, path)); /* nothing is captured */
  begin(graph, new_stream(0));
  mark(current_stream(0), 1);
  assert_error(BAD_STATE, weir_graph_enable_debug(graph)); /* too late */
  end(graph);
  assert_error(BAD_STATE, weir_graph_enable_debug(graph));
  assert_error_says(BAD_STATE, "weir_graph_enable_debug", weir_graph_debug_dump(graph, path));
  char byte;
  assert_int_equal(read(file, &byte, 1), 0);
  weir_graph_destroy(graph);
  close(file);
  unlink(path);
}

/* ---- External events ---- */

static weir_event *external_event(void) {
  weir_event *event = NULL;
  assert_ok(weir_event_create(WEIR_EVENT_EXTERNAL, &event));
  return event;
}

/* Each launch waits for the last record before it, and records for the waits after it. */
TEST(external_events) {
  weir_stream stream = new_stream(0), other = new_stream(0), side = new_stream(0);
  weir_event *gate = external_event(), *done = external_event();
  weir_graph *graph = new_graph();
  assert_ok(weir_event_record(gate, other)); /* outside of a capture it is an event like others */
  assert_ok(weir_event_synchronize(gate));
  begin(graph, stream);
  mark(stream, 1);
  assert_ok(weir_event_wait(gate, stream));
  mark(stream, 2);
  assert_ok(weir_event_record(done, stream));
  end(graph);
  assert_int_equal(nodes_of(graph), 4);
  assert_ok(weir_event_query(done)); /* no launch has recorded it */
  for (uint32_t i = 0; i < 2; i++) {
    struct held *held = hold(other);
    assert_ok(weir_event_record(gate, other));
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_event_wait(done, side));
    mark(side, 3 + i);
    assert_not_ready(weir_event_query(gate));
    assert_not_ready(weir_event_query(done));
    unblock(held);
    assert_ok(weir_event_synchronize(done));
    assert_ok(weir_device_synchronize(0));
  }
  assert_ok(weir_graph_replay(graph)); /* the gate is open */
  assert_ok(weir_device_synchronize(0));
  assert_marks(1, 2, 3, 1, 2, 4, 1, 2);
  weir_graph_destroy(graph);
  weir_event_destroy(gate);
  weir_event_destroy(done);
}

/* The event of a capture joins streams to it; an external one does not, and may come from outside. */
TEST(external_events_do_not_join) {
  weir_stream stream = new_stream(0), other = new_stream(0);
  weir_event *event = external_event();
  weir_graph *graph = new_graph();
  int capturing = 1;
  begin(graph, stream);
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_event_wait(event, other));
  assert_ok(weir_stream_is_capturing(other, &capturing));
  assert_false(capturing);
  end(graph);
  assert_int_equal(nodes_of(graph), 1);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_event_synchronize(event));
  weir_event_destroy(event);
  weir_graph_destroy(graph);
}

TEST(an_external_event_that_is_gone) {
  NEED_SOFT("NVIDIA's driver does not say what it does then");
  weir_event *event = external_event();
  weir_graph *graph = new_graph();
  begin(graph, new_stream(0));
  assert_ok(weir_event_record(event, current_stream(0)));
  end(graph);
  assert_ok(weir_graph_replay(graph));
  weir_event_destroy(event);
  assert_error(INVALID_HANDLE, weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  weir_graph_destroy(graph);
}

/* ---- Kept graphs ---- */

TEST(a_kept_graph) {
  weir_graph *graph = new_graph();
  weir_cu_graph kept = NULL;
  weir_cu_graph_exec exec = NULL, second;
  assert_error(BAD_STATE, weir_graph_raw(graph, &kept, &exec)); /* nothing is captured */
  assert_error(BAD_STATE, weir_graph_instantiate(graph));
  begin(graph, new_stream(0));
  assert_ok(weir_graph_keep(graph)); /* in time until the end of the capture */
  assert_error(BAD_STATE, weir_graph_instantiate(graph));
  mark(current_stream(0), 1);
  end(graph);
  assert_error(BAD_STATE, weir_graph_keep(graph));
  assert_int_equal(nodes_of(graph), 1);
  assert_ok(weir_graph_raw(graph, &kept, &exec));
  assert_non_null(kept);
  assert_null(exec);
  assert_ok(weir_graph_instantiate(graph));
  assert_ok(weir_graph_raw(graph, NULL, &exec));
  assert_non_null(exec);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_graph_instantiate(graph)); /* as after a change of the graph, even while the former one runs */
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  assert_marks(1, 1);
  assert_ok(weir_graph_raw(graph, NULL, &second));
  assert_non_null(second);
  assert_ok(weir_graph_debug_dump(graph, "/dev/null"));
  assert_ok(weir_graph_debug_dump(graph, "/dev/null")); /* the graph is still there */
  /* The next capture is kept as well, and the first replay instantiates it. */
  assert_ok(weir_graph_reset(graph));
  assert_error(BAD_STATE, weir_graph_raw(graph, &kept, &exec));
  begin(graph, new_stream(0));
  mark(current_stream(0), 2);
  end(graph);
  assert_ok(weir_graph_raw(graph, &kept, &exec));
  assert_null(exec);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  assert_marks(1, 1, 2);
  assert_ok(weir_graph_raw(graph, &kept, &exec));
  assert_non_null(exec);
  weir_graph_destroy(graph);
}

/* What is kept until weir_graph_finish is then as if it had not been. */
TEST(a_finished_graph) {
  for (int is_instantiated = 0; is_instantiated <= 1; is_instantiated++) {
    weir_graph *graph = new_graph();
    weir_cu_graph kept = NULL;
    weir_cu_graph_exec exec = NULL, finished = NULL;
    assert_error_says(BAD_STATE, "weir_graph_keep", weir_graph_finish(graph));
    begin(graph, new_stream(0));
    mark(current_stream(0), 5);
    assert_ok(weir_graph_keep(graph));
    end(graph);
    if (is_instantiated)
      assert_ok(weir_graph_instantiate(graph));
    assert_ok(weir_graph_raw(graph, &kept, &exec));
    assert_non_null(kept);
    assert_ok(weir_graph_finish(graph));
    assert_ok(weir_graph_raw(graph, &kept, &finished));
    assert_null(kept);
    assert_non_null(finished);
    assert_true(!is_instantiated || finished == exec);
    assert_error(BAD_STATE, weir_graph_finish(graph));
    assert_error(BAD_STATE, weir_graph_instantiate(graph));
    assert_ok(weir_graph_replay(graph));
    assert_ok(weir_device_synchronize(0));
    assert_ok(weir_graph_reset(graph));
    /* Without a capture it takes back weir_graph_keep; a description for a dump stays. */
    assert_ok(weir_graph_keep(graph));
    assert_ok(weir_graph_finish(graph));
    assert_ok(weir_graph_enable_debug(graph));
    begin(graph, new_stream(0));
    assert_ok(weir_graph_keep(graph));
    mark(current_stream(0), 6);
    end(graph);
    assert_ok(weir_graph_finish(graph));
    assert_ok(weir_graph_raw(graph, &kept, &exec));
    assert_true(!kept && exec);
    assert_ok(weir_graph_debug_dump(graph, "/dev/null"));
    weir_graph_destroy(graph);
  }
  assert_marks(5, 5);
}

TEST(capture_ids) {
  weir_stream stream = new_stream(0), side = new_stream(0);
  weir_graph *graph = new_graph();
  unsigned long long id = 7, of_side = 7, before = 0;
  for (int i = 0; i < 2; i++, before = id) {
    assert_ok(weir_stream_capture_id(stream, &id));
    assert_int_equal(id, 0);
    begin(graph, stream);
    assert_ok(weir_stream_capture_id(stream, &id));
    assert_ok(weir_stream_capture_id(side, &of_side));
    assert_true(id != 0 && id != before && of_side == 0);
    assert_ok(weir_stream_wait_stream(side, stream));
    assert_ok(weir_stream_capture_id(side, &of_side));
    assert_int_equal(of_side, id);
    mark(side, 1);
    assert_ok(weir_stream_wait_stream(stream, side));
    end(graph);
    assert_ok(weir_stream_capture_id(side, &of_side));
    assert_int_equal(of_side, 0);
    assert_ok(weir_graph_reset(graph));
  }
  weir_graph_destroy(graph);
}

TEST(a_graph_that_is_not_kept) {
  weir_graph *graph = new_graph();
  weir_cu_graph kept = (weir_cu_graph)&kept;
  weir_cu_graph_exec exec = NULL;
  begin(graph, new_stream(0));
  mark(current_stream(0), 1);
  end(graph);
  assert_ok(weir_graph_raw(graph, &kept, &exec));
  assert_null(kept);
  assert_non_null(exec);
  assert_error_says(BAD_STATE, "weir_graph_keep", weir_graph_instantiate(graph));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  weir_graph_destroy(graph);
  /* A kept graph that is never launched has nothing but itself to free. */
  graph = new_graph();
  assert_ok(weir_graph_keep(graph));
  begin(graph, new_stream(0));
  mark(current_stream(0), 1);
  end(graph);
  weir_graph_destroy(graph);
}

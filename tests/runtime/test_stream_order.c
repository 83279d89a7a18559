/*
 * The order of work between streams.
 */
#include <string.h>

#include "support/runtime.h"

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(wait_stream) {
  weir_stream a = new_stream(0), b = new_stream(0), c = new_stream(0);
  struct held *gate = hold(a);
  mark(a, 1);
  assert_ok(weir_stream_wait_stream(b, a));
  mark(b, 2);
  mark(c, 3);
  assert_ok(weir_stream_synchronize(c));
  assert_marks(3);
  assert_not_ready(weir_stream_query(b));
  unblock(gate);
  assert_ok(weir_stream_synchronize(b));
  assert_marks(3, 1, 2);
}

TEST(wait_stream_covers_earlier_work_only) {
  weir_stream a = new_stream(0), b = new_stream(0);
  mark(a, 1);
  assert_ok(weir_stream_wait_stream(b, a));
  struct held *gate = hold(a);
  mark(a, 3);
  mark(b, 2);
  assert_ok(weir_stream_synchronize(b));
  assert_marks(1, 2);
  unblock(gate);
  assert_ok(weir_stream_synchronize(a));
  assert_marks(1, 2, 3);
}

TEST(earlier_work_does_not_wait) {
  weir_stream a = new_stream(0), b = new_stream(0);
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  struct held *gate = hold(a);
  mark(b, 1);
  assert_ok(weir_event_record(event, b));
  assert_ok(weir_stream_wait_stream(b, a));
  mark(b, 2);
  assert_ok(weir_event_synchronize(event));
  assert_marks(1);
  unblock(gate);
  assert_ok(weir_stream_synchronize(b));
  assert_marks(1, 2);
  weir_event_destroy(event);
}

TEST(wait_for_itself_and_for_an_empty_stream) {
  weir_stream a = new_stream(0), b = new_stream(0);
  mark(a, 1);
  assert_ok(weir_stream_wait_stream(a, a));
  assert_ok(weir_stream_wait_stream(a, b));
  assert_ok(weir_stream_wait_stream(default_stream(0), default_stream(0)));
  mark(a, 2);
  assert_ok(weir_stream_synchronize(a));
  assert_marks(1, 2);
}

TEST(wait_stream_in_a_ring) {
  weir_stream ring[4];
  for (int i = 0; i < 4; i++)
    ring[i] = new_stream(0);
  struct held *gate = hold(ring[0]);
  for (int i = 0; i < 12; i++) {
    mark(ring[i % 4], i);
    assert_ok(weir_stream_wait_stream(ring[(i + 1) % 4], ring[i % 4]));
  }
  assert_int_equal(mark_count(), 0);
  unblock(gate);
  assert_ok(weir_stream_synchronize(ring[0]));
  assert_marks(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
  assert_ok(weir_device_synchronize(0));
}

TEST(wait_stream_of_another_device) {
  NEED_TWO_DEVICES();
  weir_stream zero = new_stream(0), one = new_stream(1);
  for (int round = 0; round < 2; round++) {
    weir_stream first = round ? one : zero, second = round ? zero : one;
    forget_marks();
    struct held *gate = hold(first);
    mark(first, 1);
    assert_ok(weir_stream_wait_stream(second, first));
    mark(second, 2);
    assert_not_ready(weir_stream_query(second));
    unblock(gate);
    assert_ok(weir_stream_synchronize(second));
    assert_marks(1, 2);
  }
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
}

/* The same order with data: each stream uses the result of the one before. */
TEST(wait_stream_with_data) {
  enum { WORDS = 1 << 16, STREAMS = 5, ROUNDS = 20 };
  load_add(0);
  weir_stream streams[STREAMS];
  uint32_t *memory = device_memory(0, WORDS * 4), *host = pinned_memory(WORDS * 4);
  for (int i = 0; i < STREAMS; i++)
    streams[i] = new_stream(0);
  assert_ok(weir_fill32_async(memory, 0, WORDS, streams[0]));
  uint32_t expected = 0;
  for (uint32_t i = 0; i < ROUNDS; i++) {
    weir_stream stream = streams[i % STREAMS];
    /* In another order the fill would be lost or come too late. */
    if (i % 7 == 3) {
      assert_ok(weir_fill32_async(memory, i * 1000, WORDS, stream));
      expected = i * 1000;
    }
    assert_cu(launch_add(memory, memory, i, WORDS, stream));
    expected += i;
    assert_ok(weir_stream_wait_stream(streams[(i + 1) % STREAMS], stream));
  }
  assert_ok(weir_copy_async(host, memory, WORDS * 4, streams[ROUNDS % STREAMS]));
  assert_ok(weir_stream_synchronize(streams[ROUNDS % STREAMS]));
  for (int i = 0; i < WORDS; i++)
    assert_int_equal(host[i], expected);
  free_device_memory(0, memory);
  free_pinned_memory(host);
}

static unsigned long step(weir_stream stream, unsigned long count) {
  unsigned long done = 99;
  assert_ok(weir_soft_step(soft, raw_of(stream), count, &done));
  return done;
}

static unsigned long pending(weir_stream stream) {
  unsigned long pieces = 99;
  assert_ok(weir_soft_pending(soft, raw_of(stream), &pieces));
  return pieces;
}

/* Step by step: the waiting stream stops exactly at the wait. */
TEST(wait_stream_in_steps) {
  NEED_STEPPED();
  weir_stream a = new_stream(0), b = new_stream(0);
  mark(a, 1);
  mark(a, 2);
  mark(b, 10);
  assert_ok(weir_stream_wait_stream(b, a));
  mark(b, 11);
  mark(a, 3);
  assert_int_equal(mark_count(), 0);

  assert_int_equal(step(b, 100), 1); /* up to the wait */
  assert_marks(10);
  assert_int_equal(step(a, 1), 1);
  assert_int_equal(step(b, 100), 0); /* the first half does not release it */
  assert_marks(10, 1);
  assert_true(step(a, 2) >= 1); /* the second mark, and the record if that is a separate work item */
  assert_marks(10, 1, 2);
  assert_true(step(b, 100) >= 1);
  assert_marks(10, 1, 2, 11);
  assert_int_equal(pending(b), 0);
  assert_ok(weir_stream_query(b));
  assert_not_ready(weir_stream_query(a)); /* later work was not waited for */
  assert_ok(weir_soft_step_all(soft, NULL));
  assert_marks(10, 1, 2, 11, 3);
}

/* Waiting on the host runs the required work, and no more. */
TEST(synchronize_in_steps) {
  NEED_STEPPED();
  weir_stream a = new_stream(0), b = new_stream(0), c = new_stream(0);
  mark(a, 1);
  assert_ok(weir_stream_wait_stream(b, a));
  mark(a, 2);
  mark(b, 3);
  mark(c, 4);
  assert_ok(weir_stream_synchronize(b));
  assert_true(place_of_mark(1) >= 0 && place_of_mark(1) < place_of_mark(3));
  assert_int_equal(place_of_mark(4), -1);
  assert_not_ready(weir_stream_query(c));
  assert_ok(weir_device_synchronize(0));
  assert_int_equal(mark_count(), 4);
}

/* ---- PyTorch's scenarios about order ---- */

/* test_record_stream: the main stream uses memory that a side stream filled, after a delay; the side stream may reuse
 * it only after that. */
TEST(record_stream_order) {
  enum { BYTES = 16 };
  const uint32_t values[] = {1, 2, 3, 4};
  weir_stream side = new_stream(0), main_stream = current_stream(0);
  uint32_t *pinned = pinned_memory(2 * BYTES), *out = pinned + 4;
  void *memory = device_memory(0, BYTES), *result = device_memory(0, BYTES);
  weir_event *used;
  assert_ok(weir_event_create(0, &used));
  memcpy(pinned, values, BYTES);

  assert_ok(weir_copy_async(memory, pinned, BYTES, side));
  assert_ok(weir_stream_wait_stream(main_stream, side));
  struct held *gate = hold(main_stream); /* delays the copy */
  assert_ok(weir_copy_async(result, memory, BYTES, main_stream));
  assert_ok(weir_event_record(used, main_stream));
  assert_not_ready(weir_event_query(used)); /* must not be reused yet */
  assert_ok(weir_event_wait(used, side));
  assert_ok(weir_fill_async(memory, 0, BYTES, side));
  assert_not_ready(weir_stream_query(side));
  unblock(gate);
  assert_ok(weir_stream_synchronize(main_stream));
  assert_ok(weir_event_query(used));
  assert_ok(weir_copy_async(out, result, BYTES, main_stream));
  assert_ok(weir_stream_synchronize(main_stream));
  assert_memory_equal(out, values, BYTES);
  assert_filled(0, memory, 0, BYTES);

  weir_event_destroy(used);
  free_device_memory(0, memory);
  free_device_memory(0, result);
  free_pinned_memory(pinned);
}

/* test_streaming_backwards_sync: forward on one side stream, backward on another, read on the first. */
TEST(streaming_backwards_sync_order) {
  enum { WORDS = 1000 };
  load_add(0);
  uint32_t *x = device_memory(0, WORDS * 4), host[WORDS];
  weir_stream first = current_stream(0), side = new_stream(0), back = new_stream(0);
  weir_stream_scope scope;
  assert_ok(weir_stream_spin(first, cycles_of(5)));
  assert_ok(weir_fill32_async(x, 5, WORDS, first));
  assert_ok(weir_stream_scope_enter(side, &scope));
  assert_ok(weir_stream_wait_stream(side, first));
  assert_ok(weir_stream_spin(side, cycles_of(5)));
  assert_cu(launch_add(x, x, 2, WORDS, current_stream(0)));
  assert_ok(weir_stream_scope_leave(&scope));
  assert_stream_equal(current_stream(0), first);
  assert_ok(weir_stream_scope_enter(back, &scope));
  assert_ok(weir_stream_wait_stream(back, side));
  assert_cu(launch_add(x, x, 3, WORDS, current_stream(0)));
  assert_stream_equal(current_stream(0), back);
  assert_ok(weir_stream_scope_leave(&scope));
  assert_ok(weir_stream_wait_stream(first, back));
  assert_ok(weir_copy(host, x, sizeof host, first));
  for (int i = 0; i < WORDS; i++)
    assert_int_equal(host[i], 10);
  free_device_memory(0, x);
}

/* test_streaming_backwards_multiple_streams: two branches off the ambient stream, joined by an event, then rejoined. */
TEST(streaming_backwards_multiple_streams_order) {
  enum { WORDS = 1000 };
  load_add(0);
  uint32_t *x = device_memory(0, 3 * WORDS * 4), *y0 = x + WORDS, *y1 = y0 + WORDS, host[2 * WORDS];
  weir_stream ambient = new_stream(0), stream0 = new_stream(0), stream1 = new_stream(0), first = current_stream(0);
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  for (uint32_t round = 1; round <= 5; round++) {
    assert_ok(weir_stream_spin(ambient, cycles_of(1)));
    assert_ok(weir_fill32_async(x, round, WORDS, ambient));
    assert_ok(weir_stream_wait_stream(stream0, ambient));
    assert_ok(weir_stream_wait_stream(stream1, ambient));
    assert_ok(weir_stream_spin(stream0, cycles_of(2)));
    assert_cu(launch_add(y0, x, 2, WORDS, stream0));
    assert_ok(weir_event_record(event, stream0));
    assert_cu(launch_add(y1, x, 3, WORDS, stream1));
    assert_ok(weir_event_wait(event, stream1));
    assert_cu(launch_add(y1, y0, 10, WORDS, stream1)); /* needs both */
    assert_ok(weir_stream_wait_stream(ambient, stream1));
    assert_ok(weir_stream_wait_stream(first, ambient));
    assert_ok(weir_copy(host, y0, sizeof host, first));
    for (int i = 0; i < WORDS; i++) {
      assert_int_equal(host[i], round + 2);
      assert_int_equal(host[WORDS + i], round + 12);
    }
  }
  weir_event_destroy(event);
  free_device_memory(0, x);
}

/* test_streaming_backwards_sync_graph_root: memory used on one stream was filled late on another. */
TEST(streaming_backwards_graph_root_order) {
  enum { WORDS = 1000 };
  load_add(0);
  uint32_t *gradient = device_memory(0, 2 * WORDS * 4), *result = gradient + WORDS, host[WORDS];
  weir_stream worker = new_stream(0), ambient = new_stream(0);
  assert_false(weir_stream_equal(worker, ambient));
  for (uint32_t trial = 0; trial < 5; trial++) {
    assert_ok(weir_device_synchronize(0));
    assert_ok(weir_stream_spin(ambient, cycles_of(10)));
    assert_ok(weir_fill32_async(gradient, trial + 1, WORDS, ambient));
    assert_ok(weir_stream_wait_stream(worker, ambient));
    assert_cu(launch_add(result, gradient, 100, WORDS, worker));
    assert_ok(weir_device_synchronize(0));
    assert_ok(weir_copy(host, result, sizeof host, ambient));
    for (int i = 0; i < WORDS; i++)
      assert_int_equal(host[i], trial + 101);
  }
  free_device_memory(0, gradient);
}

/* test_streaming_backwards_callback: the callback runs after all leaves. */
TEST(streaming_backwards_callback_order) {
  weir_stream leaves[3], last = new_stream(0);
  for (int i = 0; i < 3; i++) {
    leaves[i] = new_stream(0);
    assert_ok(weir_stream_wait_stream(leaves[i], current_stream(0)));
    assert_ok(weir_stream_spin(leaves[i], cycles_of(3 * (3 - i))));
    mark(leaves[i], i);
    assert_ok(weir_stream_wait_stream(last, leaves[i]));
  }
  mark(last, 100);
  assert_ok(weir_stream_synchronize(last));
  assert_int_equal(mark_count(), 4);
  assert_int_equal(place_of_mark(100), 3);
}

/*
 * Graphs: invalid calls, captures that fail, and the memory hooks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static const weir_pool_id own_pool = {0, 0};

static weir_graph *new_graph(void) {
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  return graph;
}

static void begin_with(weir_graph *graph, weir_stream stream, weir_capture_mode mode) {
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, mode));
}

static int is_capturing(weir_stream stream) {
  int capturing = -1;
  assert_ok(weir_stream_is_capturing(stream, &capturing));
  return capturing;
}

/* The graph is empty and can be captured, as it must be after every failure. */
static void assert_as_if_never_captured(weir_graph *graph) {
  size_t count = 77;
  weir_pool_id pool = {7, 8};
  assert_error(BAD_STATE, weir_graph_replay(graph));
  assert_error(BAD_STATE, weir_graph_end_capture(graph));
  assert_error(BAD_STATE, weir_graph_node_count(graph, &count));
  assert_error(BAD_STATE, weir_graph_pool(graph, &pool));
  assert_error(BAD_STATE, weir_graph_debug_dump(graph, "/tmp/never-written"));
  assert_int_equal(count, 77);
  assert_int_equal(pool.first, 7);
  assert_int_equal(pool.second, 8);

  weir_stream before = current_stream(-1), stream = new_stream(0);
  forget_marks();
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 42);
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_graph_node_count(graph, &count));
  assert_int_equal(count, 1);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(42);
  assert_ok(weir_graph_reset(graph));
  assert_ok(weir_stream_set_current(before));
  forget_marks();
}

TEST(never_captured) {
  weir_graph *graph = new_graph();
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
  weir_graph_destroy(NULL);
}

/* PyTorch's test_graph_error. */
TEST(not_on_the_default_stream) {
  weir_graph *graph = new_graph();
  assert_error_says(CAPTURE, "CUDA graphs must be captured on a non-default stream.",
                    weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  weir_stream external;
  assert_ok(weir_stream_external(0, NULL, &external));
  assert_ok(weir_stream_set_current(external));
  assert_error_says(CAPTURE, "non-default stream", weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_RELAXED));
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(begin_twice) {
  weir_graph *graph = new_graph(), *other = new_graph();
  weir_stream stream = new_stream(0);
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  assert_error(BAD_STATE, weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_error(CAPTURE,
               weir_graph_begin_capture(other, own_pool, WEIR_CAPTURE_GLOBAL)); /* the stream captures already */
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph)); /* without side effects */
  assert_error_says(BAD_STATE, "weir_graph_reset", weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_error(BAD_STATE, weir_graph_end_capture(graph));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(1);
  assert_ok(weir_graph_reset(graph));
  assert_as_if_never_captured(graph);
  assert_as_if_never_captured(other);
  weir_graph_destroy(graph);
  weir_graph_destroy(other);
}

TEST(end_on_another_stream) {
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), other = new_stream(0);
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 1);
  assert_ok(weir_stream_set_current(other));
  assert_error_says(CAPTURE, "Capture must end on the same stream it began on.", weir_graph_end_capture(graph));
  assert_int_equal(is_capturing(stream), 0);
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(end_on_another_device) {
  NEED_TWO_DEVICES();
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0);
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 1);
  assert_ok(weir_stream_set_current(new_stream(1)));
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_int_equal(is_capturing(stream), 0);
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 1);
  assert_ok(weir_device_set_current(0));
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

struct ending {
  weir_graph *graph;
  weir_stream stream;
  weir_status status;
  char text[256];
};

static void *end_on_thread(void *data) {
  struct ending *e = data;
  e->status = weir_stream_set_current(e->stream);
  if (e->status == WEIR_OK)
    e->status = weir_graph_end_capture(e->graph);
  snprintf(e->text, sizeof e->text, "%s", weir_last_error());
  return NULL;
}

/* Unless the capture is relaxed, only the thread that began it can end it. A call from another thread has no effect. */
TEST(end_on_another_thread) {
  for (int mode = WEIR_CAPTURE_GLOBAL; mode <= WEIR_CAPTURE_RELAXED; mode++) {
    struct ending e = {.graph = new_graph(), .stream = new_stream(0)};
    forget_marks();
    begin_with(e.graph, e.stream, (weir_capture_mode)mode);
    mark(e.stream, 1);
    on_thread(end_on_thread, &e);
    if (mode == WEIR_CAPTURE_RELAXED) {
      assert_ok(e.status);
    } else {
      assert_int_equal(e.status, WEIR_ERROR_CAPTURE);
      assert_memory_equal(e.text, "weir_graph_end_capture: ", 24);
      assert_int_equal(is_capturing(e.stream), 1);
      assert_ok(weir_graph_end_capture(e.graph));
    }
    assert_ok(weir_graph_replay(e.graph));
    assert_ok(weir_stream_synchronize(e.stream));
    assert_marks(1);
    weir_graph_destroy(e.graph);
  }
}

/* ---- What other threads may do: PyTorch's test_cuda_graph_error_options ---- */

struct unsafe {
  weir_event *event; /* done */
  weir_cu_result allocation;
  weir_status query;
};

static void *call_unsafe(void *data) {
  struct unsafe *u = data;
  weir_cu_deviceptr memory = 0;
  if (weir_device_set_current(0) != WEIR_OK)
    return NULL;
  u->allocation = d->MemAlloc(d, &memory, 1024);
  u->query = weir_event_query(u->event);
  if (u->allocation == WEIR_CU_SUCCESS)
    d->MemFree(d, memory);
  return NULL;
}

TEST(error_options) {
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_event_record(event, new_stream(0)));
  assert_ok(weir_event_synchronize(event));
  for (int mode = WEIR_CAPTURE_GLOBAL; mode <= WEIR_CAPTURE_RELAXED; mode++) {
    weir_graph *graph = new_graph();
    weir_stream stream = new_stream(0);
    struct unsafe u = {.event = event, .allocation = -1, .query = WEIR_ERROR_SYSTEM};
    assert_ok(weir_device_synchronize(0));
    begin_with(graph, stream, (weir_capture_mode)mode);
    mark(stream, 1);
    on_thread(call_unsafe, &u);
    if (mode == WEIR_CAPTURE_GLOBAL) {
      assert_int_equal(u.allocation, WEIR_CU_STREAM_CAPTURE_UNSUPPORTED);
      assert_int_equal(u.query, WEIR_ERROR_CAPTURE);
      assert_error(CAPTURE, weir_graph_end_capture(graph));
      assert_int_equal(weir_last_driver_result(), WEIR_CU_STREAM_CAPTURE_INVALIDATED);
      assert_as_if_never_captured(graph);
    } else {
      assert_int_equal(u.allocation, WEIR_CU_SUCCESS);
      assert_ok(u.query);
      assert_ok(weir_graph_end_capture(graph));
      forget_marks();
      assert_ok(weir_graph_replay(graph));
      assert_ok(weir_stream_synchronize(stream));
      assert_marks(1);
    }
    weir_graph_destroy(graph);
  }
  weir_event_destroy(event);
}

/* On the capturing thread: whether each call fails in each mode, and whether that ends the capture. */
enum {
  QUERY_EVENT,
  WAIT_EVENT,
  QUERY_STREAM,
  WAIT_STREAM,
  COPY_AND_WAIT,
  WAIT_DEVICE,
  QUERY_SELF,
  WAIT_SELF,
  PROFILE,
  UNSAFE
};

static weir_status make_unsafe_call(int which, weir_event *event, weir_stream stream, weir_stream other, void *memory) {
  char byte = 0;
  switch (which) {
  case QUERY_EVENT:
    return weir_event_query(event);
  case WAIT_EVENT:
    return weir_event_synchronize(event);
  case QUERY_STREAM:
    return weir_stream_query(other);
  case WAIT_STREAM:
    return weir_stream_synchronize(other);
  case COPY_AND_WAIT:
    return weir_copy(&byte, memory, 1, other);
  case WAIT_DEVICE:
    return weir_device_synchronize(0);
  case QUERY_SELF:
    return weir_stream_query(stream);
  case WAIT_SELF:
    return weir_stream_synchronize(stream);
  default:
    return weir_profiler_start();
  }
}

TEST(unsafe_calls_on_capturing_thread) {
  weir_event *event;
  weir_stream other = new_stream(0);
  void *memory = device_memory(0, 16);
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_event_record(event, other));
  assert_ok(weir_event_synchronize(event));
  for (int mode = WEIR_CAPTURE_GLOBAL; mode <= WEIR_CAPTURE_RELAXED; mode++) {
    for (int which = 0; which < UNSAFE; which++) {
      weir_graph *graph = new_graph();
      weir_stream stream = new_stream(0);
      begin_with(graph, stream, (weir_capture_mode)mode);
      mark(stream, 1);
      clear_last_error();
      weir_status status = make_unsafe_call(which, event, stream, other, memory);
      /* For the capturing stream itself, and for all streams at once, in any mode. */
      bool refused = mode != WEIR_CAPTURE_RELAXED || which == WAIT_DEVICE || which == QUERY_SELF || which == WAIT_SELF;
      if ((status == WEIR_ERROR_CAPTURE) != refused || (!refused && status != WEIR_OK)) {
        print_error("call %d in mode %d is %s: %s\n", which, mode, weir_status_name(status), weir_last_error());
        fail();
      }
      if (refused) {
        assert_memory_equal(weir_last_error(), "weir_", 5);
        assert_error(CAPTURE, weir_graph_end_capture(graph));
        assert_as_if_never_captured(graph);
      } else {
        assert_ok(weir_graph_end_capture(graph));
      }
      weir_graph_destroy(graph);
    }
  }
  assert_ok(weir_profiler_stop());
  weir_event_destroy(event);
  free_device_memory(0, memory);
}

/* The first spin loads a kernel. It leaves the capture mode of the thread unchanged. */
TEST(a_spin_does_not_change_the_rules) {
  weir_event *event;
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), other = new_stream(0);
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_event_record(event, other));
  assert_ok(weir_event_synchronize(event));
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  assert_ok(weir_stream_spin(stream, 1));
  assert_error(CAPTURE, weir_event_query(event));
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_as_if_never_captured(graph);
  weir_event_destroy(event);
  weir_graph_destroy(graph);
}

/* Calls that need no driver call of that kind are allowed in every mode. */
TEST(safe_calls_on_capturing_thread) {
  weir_stream other = new_stream(0);
  for (int mode = WEIR_CAPTURE_GLOBAL; mode <= WEIR_CAPTURE_RELAXED; mode++) {
    weir_graph *graph = new_graph(), *unused = new_graph();
    weir_stream stream = new_stream(0), made;
    weir_event *event, *outside;
    size_t free_bytes, total_bytes;
    int number;
    assert_ok(weir_event_create(0, &outside));
    begin_with(graph, stream, (weir_capture_mode)mode);
    mark(stream, 1);
    assert_ok(weir_event_create(WEIR_EVENT_TIMING, &event));
    assert_ok(weir_event_query(event)); /* never recorded, so the driver is not called */
    assert_ok(weir_event_record(event, stream));
    assert_ok(weir_event_record(outside, other));
    assert_ok(weir_stream_create(0, -1, &made));
    assert_ok(weir_device_memory_info(0, &free_bytes, &total_bytes));
    assert_ok(weir_device_get_current(&number));
    assert_ok(weir_stream_priority(stream, &number));
    mark(other, 2);
    assert_ok(weir_graph_end_capture(graph));
    weir_event_destroy(event);
    weir_event_destroy(outside);
    weir_graph_destroy(graph);
    weir_graph_destroy(unused);
  }
  assert_ok(weir_device_synchronize(0));
}

/* ---- Streams that join ---- */

TEST(a_stream_that_is_not_joined_back) {
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), side = new_stream(0);
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 1);
  assert_ok(weir_stream_wait_stream(side, stream));
  mark(side, 2);
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_int_equal(weir_last_driver_result(), WEIR_CU_STREAM_CAPTURE_UNJOINED);
  assert_int_equal(is_capturing(stream), 0);
  assert_int_equal(is_capturing(side), 0);
  mark(side, 3); /* not captured */
  assert_ok(weir_stream_synchronize(side));
  assert_marks(3);
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(a_wait_for_work_outside) {
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), outside = new_stream(0);
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_event_record(event, outside));
  begin_with(graph, stream, WEIR_CAPTURE_RELAXED);
  mark(stream, 1);
  assert_error(CAPTURE, weir_event_wait(event, stream));
  assert_int_equal(weir_last_driver_result(), WEIR_CU_STREAM_CAPTURE_ISOLATION);
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  begin_with(graph, stream, WEIR_CAPTURE_RELAXED);
  assert_error(CAPTURE, weir_stream_wait_stream(stream, outside));
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_as_if_never_captured(graph);
  weir_event_destroy(event);
  weir_graph_destroy(graph);
}

TEST(captured_event_cannot_be_queried) {
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0);
  for (int which = 0; which < 2; which++) {
    weir_event *event;
    assert_ok(weir_event_create(0, &event));
    begin_with(graph, stream, WEIR_CAPTURE_RELAXED);
    mark(stream, 1);
    assert_ok(weir_event_record(event, stream));
    if (which == 0)
      assert_error(CAPTURE, weir_event_query(event));
    else
      assert_error(CAPTURE, weir_event_synchronize(event));
    assert_int_equal(weir_last_driver_result(), WEIR_CU_CAPTURED_EVENT);
    assert_error(CAPTURE, weir_graph_end_capture(graph));
    assert_ok(weir_event_record(event, stream)); /* outside of the capture it is a normal event */
    assert_ok(weir_event_synchronize(event));
    assert_ok(weir_event_query(event));
    weir_event_destroy(event);
  }
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(replay_into_a_capture) {
  weir_graph *inner = new_graph(), *outer = new_graph();
  weir_stream stream = new_stream(0);
  begin_with(inner, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(inner));
  begin_with(outer, stream, WEIR_CAPTURE_RELAXED);
  assert_error(BAD_STATE, weir_graph_replay(outer)); /* itself */
  assert_error(CAPTURE, weir_graph_replay(inner));
  assert_error(CAPTURE, weir_graph_end_capture(outer));
  assert_ok(weir_graph_replay(inner));
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(1);
  assert_as_if_never_captured(outer);
  weir_graph_destroy(inner);
  weir_graph_destroy(outer);
}

/* ---- Reset and destroy during a capture ---- */

TEST(reset_in_a_capture) {
  collect_messages();
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0);
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 1);
  assert_ok(weir_graph_reset(graph));
  assert_true(messages_with(WEIR_LOG_WARN, "capture") > 0);
  assert_int_equal(is_capturing(stream), 0);
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(mark_count(), 0);
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(destroy_in_a_capture) {
  collect_messages();
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0);
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  mark(stream, 1);
  weir_graph_destroy(graph);
  assert_true(messages_with(WEIR_LOG_WARN, "capture") > 0);
  assert_int_equal(is_capturing(stream), 0);
  assert_ok(weir_stream_synchronize(stream));
  assert_int_equal(mark_count(), 0);
  free_device_memory(0, device_memory(0, 16)); /* the thread no longer captures */
}

/* ---- Hooks ---- */

/* The calls of the hooks, one letter each. */
static struct {
  char letters[32];
  int device;
  weir_pool_id pool;
  weir_cu_stream stream;
  int status_in_begin, status_in_end; /* of the stream, as the driver reports it */
  weir_status answer;                 /* the result of begin */
} hooked;

static void note(char letter) {
  size_t length = strlen(hooked.letters);
  if (length + 1 < sizeof hooked.letters)
    hooked.letters[length] = letter;
}

static weir_status on_begin(void *context, int device, weir_pool_id pool, weir_cu_stream stream) {
  note(context == &hooked ? 'b' : '?');
  hooked.device = device;
  hooked.pool = pool;
  hooked.stream = stream;
  d->StreamIsCapturing(d, stream, &hooked.status_in_begin);
  return hooked.answer;
}

static void on_end(void *context, int device, weir_pool_id pool) {
  bool same = context == &hooked && device == hooked.device && pool.first == hooked.pool.first &&
              pool.second == hooked.pool.second;
  note(same ? 'e' : '?');
  d->StreamIsCapturing(d, hooked.stream, &hooked.status_in_end);
}

static void on_release(void *context, int device, weir_pool_id pool) {
  bool same = context == &hooked && device == hooked.device && pool.first == hooked.pool.first &&
              pool.second == hooked.pool.second;
  note(same ? 'r' : '?');
}

static const weir_graph_memory_hooks hooks = {
    .size = sizeof hooks, .begin = on_begin, .end = on_end, .release = on_release, .context = &hooked};

static void set_hooks(void) {
  memset(&hooked, 0, sizeof hooked);
  hooked.status_in_begin = hooked.status_in_end = -1;
  assert_ok(weir_graph_set_memory_hooks(&hooks));
}

static int teardown_with_hooks(void **state) {
  assert_ok(weir_graph_set_memory_hooks(NULL));
  return runtime_teardown(state);
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = teardown_with_hooks)

TEST(hooks_in_order) {
  set_hooks();
  int last = devices() - 1;
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(last);
  weir_pool_id pool;
  assert_string_equal(hooked.letters, "");
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  assert_string_equal(hooked.letters, "b");
  assert_int_equal(hooked.device, last);
  assert_ptr_equal(hooked.stream, raw_of(stream));
  assert_int_equal(hooked.status_in_begin, WEIR_CU_CAPTURE_STATUS_NONE); /* before the capture begins in the driver */
  assert_ok(weir_graph_pool(graph, &pool));
  assert_int_equal(hooked.pool.first, pool.first);
  assert_int_equal(hooked.pool.second, pool.second);
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_string_equal(hooked.letters, "be");
  assert_int_equal(hooked.status_in_end, WEIR_CU_CAPTURE_STATUS_NONE); /* after it ended */
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(last));
  assert_string_equal(hooked.letters, "be");
  assert_ok(weir_graph_reset(graph));
  assert_string_equal(hooked.letters, "ber");
  assert_ok(weir_graph_reset(graph));
  assert_string_equal(hooked.letters, "ber");

  weir_pool_id given = weir_graph_pool_handle();
  assert_ok(weir_graph_begin_capture(graph, given, WEIR_CAPTURE_RELAXED));
  assert_int_equal(hooked.pool.second, given.second);
  mark(stream, 2);
  assert_ok(weir_graph_end_capture(graph));
  weir_graph_destroy(graph);
  assert_string_equal(hooked.letters, "berber");
}

TEST(hooks_of_failed_captures) {
  set_hooks();
  collect_messages();
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0), side = new_stream(0);
  /* Fails before it begins. */
  assert_error(CAPTURE, weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_string_equal(hooked.letters, "");
  /* Fails at the end. */
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  assert_ok(weir_stream_wait_stream(side, stream));
  mark(side, 1);
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_string_equal(hooked.letters, "ber");
  assert_int_equal(hooked.status_in_end, WEIR_CU_CAPTURE_STATUS_NONE);
  /* Ended on another stream. */
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  assert_ok(weir_stream_set_current(side));
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_string_equal(hooked.letters, "berber");
  /* Reset, and destroyed, in the middle. */
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  assert_ok(weir_graph_reset(graph));
  assert_string_equal(hooked.letters, "berberber");
  begin_with(graph, stream, WEIR_CAPTURE_GLOBAL);
  weir_graph_destroy(graph);
  assert_string_equal(hooked.letters, "berberberber");
}

TEST(a_begin_that_fails_stops_the_capture) {
  set_hooks();
  weir_graph *graph = new_graph();
  weir_stream stream = new_stream(0);
  hooked.answer = WEIR_ERROR_OUT_OF_MEMORY;
  assert_ok(weir_stream_set_current(stream));
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_int_equal(hooked.letters[0], 'b');
  assert_null(strchr(hooked.letters, 'e'));
  assert_int_equal(is_capturing(stream), 0);
  assert_ok(weir_graph_set_memory_hooks(NULL)); /* no capture is active */
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(hooks_stay_during_a_capture) {
  set_hooks();
  weir_graph *graph = new_graph();
  begin_with(graph, new_stream(0), WEIR_CAPTURE_GLOBAL);
  assert_error(BAD_STATE, weir_graph_set_memory_hooks(NULL));
  assert_error(BAD_STATE, weir_graph_set_memory_hooks(&hooks));
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_string_equal(hooked.letters, "be");
  assert_ok(weir_graph_set_memory_hooks(NULL));
  assert_ok(weir_graph_reset(graph));
  begin_with(graph, current_stream(0), WEIR_CAPTURE_GLOBAL);
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  weir_graph_destroy(graph);
  assert_null(strchr(hooked.letters + 2, 'b')); /* no calls without hooks */
}

static int others_released;
static void note_other_release(void *context, int device, weir_pool_id pool) {
  (void)context;
  (void)device;
  (void)pool;
  others_released++;
}

/* Hooks that are installed later do not know the pool. */
TEST(new_hooks_get_no_release_of_old_pools) {
  const weir_graph_memory_hooks others = {.size = sizeof others, .release = note_other_release};
  set_hooks();
  weir_graph *graph = new_graph();
  begin_with(graph, new_stream(0), WEIR_CAPTURE_GLOBAL);
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  others_released = 0;
  assert_ok(weir_graph_set_memory_hooks(&others));
  assert_ok(weir_graph_reset(graph));
  assert_int_equal(others_released, 0);
  begin_with(graph, current_stream(0), WEIR_CAPTURE_GLOBAL);
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  weir_graph_destroy(graph);
  assert_int_equal(others_released, 1);
}

TEST(some_hooks_may_be_missing) {
  const weir_graph_memory_hooks none = {.size = sizeof none};
  assert_ok(weir_graph_set_memory_hooks(&none));
  weir_graph *graph = new_graph();
  assert_as_if_never_captured(graph);
  weir_graph_destroy(graph);
}

TEST(hooks_of_the_shutdown) {
  set_hooks();
  weir_graph *graph = new_graph();
  begin_with(graph, new_stream(0), WEIR_CAPTURE_GLOBAL);
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  shut_down_clean();
  assert_string_equal(hooked.letters, "ber");
  weir_graph_destroy(graph);
  assert_string_equal(hooked.letters, "ber");
}

/* ---- Failing driver calls ---- */

TEST_SETUP(failing_calls_and_hooks, runtime_setup_fault, teardown_with_hooks) {
  const struct {
    weir_driver_call call;
    bool at_begin;
  } cases[] = {
      {WEIR_CALL_StreamBeginCapture, true}, {WEIR_CALL_GraphInstantiate, false}, {WEIR_CALL_GraphGetNodes, false}};
  weir_graph *graph = new_graph();
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_ok(weir_stream_set_current(new_stream(0)));
    set_hooks();
    assert_ok(weir_fault_nth(fault, cases[i].call, 1, WEIR_CU_OUT_OF_MEMORY, 0));
    if (cases[i].at_begin) {
      assert_error(OUT_OF_MEMORY, weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
    } else {
      assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
      mark(current_stream(0), 1);
      assert_error(OUT_OF_MEMORY, weir_graph_end_capture(graph));
    }
    assert_string_equal(hooked.letters, "ber");
    assert_ok(weir_fault_clear(fault));
    assert_as_if_never_captured(graph);
  }
  weir_graph_destroy(graph);
}

/* A failing instantiation leaves the graph, and the former instance. */
TEST_SETUP(failing_instantiation, runtime_setup_fault, teardown_with_hooks) {
  weir_graph *graph = new_graph();
  weir_cu_graph kept;
  weir_cu_graph_exec exec, now;
  assert_ok(weir_graph_keep(graph));
  assert_ok(weir_stream_set_current(new_stream(0)));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_fault_nth(fault, WEIR_CALL_GraphInstantiate, 1, WEIR_CU_OUT_OF_MEMORY, 0));
  assert_error(OUT_OF_MEMORY, weir_graph_replay(graph));
  assert_ok(weir_fault_clear(fault));
  assert_ok(weir_graph_raw(graph, &kept, &exec));
  assert_true(kept && !exec);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_graph_raw(graph, NULL, &exec));
  assert_ok(weir_fault_nth(fault, WEIR_CALL_GraphInstantiate, 1, WEIR_CU_OUT_OF_MEMORY, 0));
  assert_error(OUT_OF_MEMORY, weir_graph_instantiate(graph));
  assert_ok(weir_fault_clear(fault));
  assert_ok(weir_graph_raw(graph, NULL, &now));
  assert_ptr_equal(now, exec);
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_device_synchronize(0));
  assert_marks(1, 1);
  weir_graph_destroy(graph);
}

static void nothing(void *data) { (void)data; }

static weir_status use_graphs(void) {
  weir_stream stream, side, replay_on;
  weir_graph *graph = NULL;
  weir_event *event = NULL, *external = NULL;
  size_t count;
  unsigned long long id;
  int capturing;
  weir_status status = weir_stream_create(0, 0, &stream);
  if (status == WEIR_OK)
    status = weir_stream_create(0, 0, &side);
  if (status == WEIR_OK)
    status = weir_stream_create(0, -1, &replay_on);
  if (status == WEIR_OK)
    status = weir_event_create(0, &event);
  if (status == WEIR_OK)
    status = weir_event_create(WEIR_EVENT_EXTERNAL, &external);
  if (status == WEIR_OK)
    status = weir_graph_create(&graph);
  if (status == WEIR_OK)
    status = weir_graph_enable_debug(graph);
  if (status == WEIR_OK)
    status = weir_stream_set_current(stream);
  if (status == WEIR_OK)
    status = weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL);
  if (status == WEIR_OK) {
    status = weir_stream_host_function(stream, nothing, NULL);
    if (status == WEIR_OK)
      status = weir_stream_is_capturing(stream, &capturing);
    if (status == WEIR_OK)
      status = weir_stream_capture_id(stream, &id);
    if (status == WEIR_OK)
      status = weir_stream_wait_stream(side, stream);
    if (status == WEIR_OK)
      status = weir_stream_spin(side, 10);
    if (status == WEIR_OK)
      status = weir_event_record(event, side);
    if (status == WEIR_OK)
      status = weir_event_wait(event, stream);
    if (status == WEIR_OK)
      status = weir_event_record(external, stream);
    if (status == WEIR_OK)
      status = weir_event_wait(external, stream);
    if (status == WEIR_OK)
      status = weir_graph_end_capture(graph);
  }
  if (status == WEIR_OK)
    status = weir_graph_node_count(graph, &count);
  if (status == WEIR_OK)
    status = weir_graph_debug_dump(graph, "/dev/null");
  if (status == WEIR_OK)
    status = weir_stream_set_current(replay_on);
  if (status == WEIR_OK)
    status = weir_graph_replay(graph);
  if (status == WEIR_OK)
    status = weir_stream_synchronize(replay_on);
  if (status == WEIR_OK)
    status = weir_graph_reset(graph);
  if (status == WEIR_OK)
    status = weir_graph_keep(graph);
  if (status == WEIR_OK)
    status = weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL);
  if (status == WEIR_OK) {
    status = weir_stream_host_function(replay_on, nothing, NULL);
    if (status == WEIR_OK)
      status = weir_graph_end_capture(graph);
  }
  if (status == WEIR_OK)
    status = weir_graph_instantiate(graph);
  if (status == WEIR_OK)
    status = weir_graph_instantiate(graph);
  if (status == WEIR_OK)
    status = weir_graph_finish(graph);
  if (status == WEIR_OK)
    status = weir_graph_replay(graph);
  if (status == WEIR_OK)
    status = weir_stream_synchronize(replay_on);
  if (status == WEIR_OK)
    status = weir_graph_reset(graph);
  only_giving_back();
  weir_graph_destroy(graph);
  weir_event_destroy(event);
  weir_event_destroy(external);
  return status;
}

TEST_SETUP(every_driver_call_fails_once, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  collect_messages(); /* of abandoned captures */
  sweep_faults(use_graphs);
}

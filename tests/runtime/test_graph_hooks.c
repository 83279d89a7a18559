/*
 * The hooks that take part in captures and replays (weir_graph_set_hooks).
 */
#include <string.h>

#include "support/runtime.h"

static const weir_pool_id own_pool = {0, 0};

/* What the hooks saw, one letter for each call: b)egin, e)nd of a capture, x an abandoned one, r)eplay, d)estroy. */
static char calls[64];
static weir_graph *seen_graph;
static weir_stream seen_stream;
static bool begin_fails, replay_fails;

static void note(char call, weir_graph *graph) {
  size_t length = strlen(calls);
  assert_true(length + 1 < sizeof calls);
  calls[length] = call;
  calls[length + 1] = '\0';
  seen_graph = graph;
}

static weir_status on_begin(void *context, weir_graph *graph, weir_stream stream) {
  assert_ptr_equal(context, calls);
  int capturing = -1;
  assert_ok(weir_stream_is_capturing(stream, &capturing));
  assert_int_equal(capturing, 0);
  note('b', graph);
  seen_stream = stream;
  return begin_fails ? weir_device_set_current(1000) : WEIR_OK;
}

static void on_end(void *context, weir_graph *graph, int captured) {
  assert_ptr_equal(context, calls);
  note(captured ? 'e' : 'x', graph);
}

static weir_status on_replay(void *context, weir_graph *graph, weir_stream stream) {
  assert_ptr_equal(context, calls);
  note('r', graph);
  seen_stream = stream;
  return replay_fails ? weir_device_set_current(1000) : WEIR_OK;
}

static void on_destroy(void *context, weir_graph *graph) {
  assert_ptr_equal(context, calls);
  note('d', graph);
}

static weir_graph *open_graph(void) {
  weir_graph_hooks hooks;
  weir_graph_hooks_init(&hooks);
  assert_int_equal(hooks.size, sizeof hooks);
  hooks.begin = on_begin;
  hooks.end = on_end;
  hooks.replay = on_replay;
  hooks.destroy = on_destroy;
  hooks.context = calls;
  assert_ok(weir_graph_set_hooks(&hooks));
  calls[0] = '\0';
  begin_fails = replay_fails = false;
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  return graph;
}

static int teardown(void **state) {
  assert_ok(weir_graph_set_hooks(NULL));
  return runtime_teardown(state);
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = teardown)

TEST(capture_and_replay) {
  weir_graph *graph = open_graph();
  weir_stream stream = new_stream(0), other = new_stream(0);
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_string_equal(calls, "b");
  assert_ptr_equal(seen_graph, graph);
  assert_true(weir_stream_equal(seen_stream, stream));
  assert_error(BAD_STATE, weir_graph_set_hooks(NULL));
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_string_equal(calls, "be");
  assert_ok(weir_stream_set_current(other));
  assert_ok(weir_graph_replay(graph));
  assert_true(weir_stream_equal(seen_stream, other));
  assert_ok(weir_graph_replay(graph));
  assert_string_equal(calls, "berr");
  assert_ok(weir_stream_synchronize(other));
  assert_ok(weir_graph_reset(graph));
  assert_string_equal(calls, "berr");
  weir_graph_destroy(graph);
  assert_string_equal(calls, "berrd");
}

TEST(begin_fails) {
  weir_graph *graph = open_graph();
  assert_ok(weir_stream_set_current(new_stream(0)));
  begin_fails = true;
  assert_error(INVALID_DEVICE, weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  int capturing = -1;
  assert_ok(weir_current_stream_is_capturing(&capturing));
  assert_int_equal(capturing, 0);
  assert_string_equal(calls, "b");
  /* The graph is empty, and can capture. */
  begin_fails = false;
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  mark(current_stream(0), 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_string_equal(calls, "bbe");
  weir_graph_destroy(graph);
}

TEST(capture_is_refused) {
  weir_graph *graph = open_graph();
  /* The default stream: begin is not called. */
  assert_error(CAPTURE, weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_string_equal(calls, "");
  /* A capture that is abandoned ends once. */
  weir_stream stream = new_stream(0);
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_graph_reset(graph));
  assert_string_equal(calls, "bx");
  /* So does one that ends on the wrong stream. */
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_stream_set_current(default_stream(-1)));
  assert_error(CAPTURE, weir_graph_end_capture(graph));
  assert_string_equal(calls, "bxbx");
  /* And one whose graph is destroyed. */
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  weir_graph_destroy(graph);
  assert_string_equal(calls, "bxbxbxd");
}

TEST(replay_fails) {
  weir_graph *graph = open_graph();
  weir_stream stream = new_stream(0);
  assert_error(BAD_STATE, weir_graph_replay(graph));
  assert_string_equal(calls, "");
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  replay_fails = true;
  assert_error(INVALID_DEVICE, weir_graph_replay(graph));
  assert_ok(weir_stream_query(stream)); /* nothing was launched */
  weir_graph_destroy(graph);
}

TEST(bad_hooks) {
  weir_graph_hooks hooks = {.size = 0};
  assert_error(INVALID_ARGUMENT, weir_graph_set_hooks(&hooks));
  weir_graph_hooks_init(NULL);
  /* All functions are optional. */
  weir_graph_hooks_init(&hooks);
  assert_ok(weir_graph_set_hooks(&hooks));
  weir_graph *graph = NULL;
  assert_ok(weir_graph_create(&graph));
  weir_stream stream = new_stream(0);
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_graph_replay(graph));
  assert_ok(weir_stream_synchronize(stream));
  weir_graph_destroy(graph);
}

/*
 * Starting and shutting down the runtime, and deferred calls.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static unsigned long driver_calls(void) {
  unsigned long calls, faults;
  assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, &calls, &faults));
  return calls;
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(version) {
  char text[32];
  snprintf(text, sizeof text, "%d.%d.%d", WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
  assert_string_equal(weir_version(), text);
}

/* ---- The start ---- */

static weir_status do_nothing(void *context) {
  (void)context;
  return WEIR_OK;
}

/* PyTorch's test_lazy_init: calls that need no device do not call the driver. */
TEST_SETUP(loading_calls_no_driver, runtime_setup_fault, runtime_teardown) {
  weir_event *event;
  weir_graph *graph;
  weir_stream stream = {.id = 0, .device = 0, .device_type = WEIR_DEVICE_TYPE_GPU};
  int ordinals[WEIR_MAX_DEVICES], visible;

  assert_int_equal(driver_calls(), 0);
  assert_int_equal(weir_is_initialized(), 0);
  assert_int_equal(weir_is_in_bad_fork(), 0);
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &event));
  assert_null(event_raw(event));
  weir_event_destroy(event);
  assert_ok(weir_graph_create(&graph));
  weir_graph_destroy(graph);
  weir_graph_pool_handle();
  assert_ok(weir_graph_set_memory_hooks(NULL));
  weir_stream_equal(stream, stream);
  weir_stream_hash(stream);
  assert_ok(weir_visible_devices("", NULL, 0, ordinals, &visible));
  assert_ok(weir_lazy_call(do_nothing, NULL, "here"));
  assert_ok(weir_shutdown());
  assert_int_equal(driver_calls(), 0);
  assert_int_equal(weir_is_initialized(), 0);
}

TEST(queries_do_not_start) {
  int count = -1, has = -1;
  assert_ok(weir_device_count(&count));
  assert_in_range(count, 1, WEIR_MAX_DEVICES);
  assert_int_equal(weir_device_is_available(), 1);
  assert_ok(weir_device_has_primary_context(0, &has));
  assert_int_equal(has, 0);
  assert_int_equal(weir_is_initialized(), 0);
}

/* Each of these is the first call that needs a device. */
TEST(first_use_starts) {
  for (int which = 0;; which++) {
    int number;
    size_t a, b;
    weir_device_properties properties = {.size = sizeof properties};
    weir_stream stream;
    weir_driver *driver;
    assert_int_equal(weir_is_initialized(), 0);
    switch (which) {
    case 0:
      assert_ok(weir_init());
      break;
    case 1:
      assert_ok(weir_device_get_current(&number));
      break;
    case 2:
      assert_ok(weir_device_set_current(0));
      break;
    case 3:
      assert_ok(weir_device_get_properties(0, &properties));
      break;
    case 4:
      assert_ok(weir_device_memory_info(0, &a, &b));
      break;
    case 5:
      assert_ok(weir_device_synchronize(0));
      break;
    case 6:
      assert_ok(weir_stream_create(0, 0, &stream));
      break;
    case 7:
      assert_ok(weir_stream_get_current(0, &stream));
      break;
    case 8:
      assert_ok(weir_stream_query((weir_stream){.id = 0, .device = 0, .device_type = WEIR_DEVICE_TYPE_GPU}));
      break;
    case 9:
      assert_ok(weir_get_driver(&driver));
      break;
    default:
      return;
    }
    assert_int_equal(weir_is_initialized(), 1);
    shut_down_clean();
  }
}

TEST(start_makes_no_context) {
  int has = -1;
  assert_ok(weir_init());
  assert_ok(weir_device_has_primary_context(0, &has));
  assert_int_equal(has, 0);
}

TEST_SETUP(second_init_does_nothing, runtime_setup_fault, runtime_teardown) {
  assert_ok(weir_init());
  unsigned long calls = driver_calls();
  assert_true(calls > 0);
  assert_ok(weir_init());
  assert_int_equal(driver_calls(), calls);
}

/* ---- Which driver ---- */

TEST(the_driver_is_the_one_chosen) {
  weir_driver *driver = NULL;
  assert_ok(weir_get_driver(&driver));
  assert_ptr_equal(driver, d);
  assert_error(BAD_STATE, weir_use_driver(NULL));
  assert_error(BAD_STATE, weir_use_driver(d));
  assert_ok(weir_get_driver(&driver));
  assert_ptr_equal(driver, d);
  shut_down_clean();
  assert_ok(weir_use_driver(d));
}

TEST(incomplete_table_is_refused) {
  weir_driver table = *d;
  table.size = 8;
  assert_error(INVALID_ARGUMENT, weir_use_driver(&table));
  table = *d;
  table.StreamQuery = NULL;
  assert_error_says(INVALID_ARGUMENT, "StreamQuery", weir_use_driver(&table));
  /* The earlier choice is unchanged. */
  weir_driver *driver;
  assert_ok(weir_get_driver(&driver));
  assert_ptr_equal(driver, d);
}

TEST_SETUP(driver_by_environment, runtime_setup_none, runtime_teardown) {
  weir_driver *driver;
  int count;
  choose_driver_by_environment();
  assert_ok(weir_device_count(&count));
  assert_ok(weir_get_driver(&driver));
  assert_string_equal(driver->name, is_soft() ? "soft" : "cuda");
  if (is_soft())
    assert_int_equal(count, 2);
  assert_ok(weir_shutdown());
  /* Again: the first driver is closed, and a new one is opened. */
  assert_ok(weir_device_synchronize(0));
}

TEST_SETUP(bad_environment, runtime_setup_none, runtime_teardown) {
  setenv("WEIR_DRIVER", "abacus", 1);
  clear_last_error();
  weir_status status = weir_init();
  assert_int_not_equal(status, WEIR_OK);
  assert_non_null(strstr(weir_last_error(), "abacus"));
  assert_int_equal(weir_is_initialized(), 0);
  choose_driver_by_environment();
  assert_ok(weir_init());
  assert_int_equal(weir_is_initialized(), 1);
}

TEST_SETUP(no_driver_no_device, runtime_setup_none, runtime_teardown) {
  if (!is_soft())
    WAIVE_TEST("NVIDIA's driver is there");
  setenv("WEIR_DRIVER", "cuda", 1);
  int count = -1;
  weir_driver *cuda;
  if (weir_driver_open_cuda(&cuda) == WEIR_OK) {
    weir_driver_close(cuda);
    WAIVE_TEST("NVIDIA's driver is there");
  }
  assert_ok(weir_device_count(&count));
  assert_int_equal(count, 0);
  assert_int_equal(weir_device_is_available(), 0);
  clear_last_error();
  assert_status(WEIR_ERROR_NO_DRIVER, weir_init());
  assert_non_null(strstr(weir_last_error(), "libcuda"));
  choose_driver_by_environment();
  assert_ok(weir_init());
}

/* ---- Deferred calls ---- */

static int order[16];
static int ran;

static weir_status note(void *context) {
  order[ran++] = *(int *)context;
  return WEIR_OK;
}

TEST(queued_calls_run_once_in_order) {
  int numbers[] = {1, 2, 3, 4};
  ran = 0;
  for (int i = 0; i < 3; i++)
    assert_ok(WEIR_LAZY_CALL(note, &numbers[i]));
  int count;
  assert_ok(weir_device_count(&count));
  assert_int_equal(ran, 0);
  assert_ok(weir_device_set_current(0));
  assert_int_equal(ran, 3);
  for (int i = 0; i < 3; i++)
    assert_int_equal(order[i], numbers[i]);
  assert_ok(weir_init());
  assert_int_equal(ran, 3);
  /* The runtime has started, so the call runs at once. */
  assert_ok(WEIR_LAZY_CALL(note, &numbers[3]));
  assert_int_equal(ran, 4);
  assert_int_equal(order[3], 4);
  /* A second start has nothing to run. */
  shut_down_clean();
  assert_ok(weir_init());
  assert_int_equal(ran, 4);
}

static weir_status fail_out_of_memory(void *context) {
  (void)context;
  return WEIR_ERROR_OUT_OF_MEMORY;
}

TEST(call_after_the_start_passes_its_status) {
  assert_ok(weir_init());
  assert_status(WEIR_ERROR_OUT_OF_MEMORY, weir_lazy_call(fail_out_of_memory, NULL, "here"));
  assert_int_equal(weir_is_initialized(), 1);
}

static weir_status set_wrong_device(void *context) { return weir_device_set_current(*(int *)context); }

TEST(a_queued_call_that_fails_names_its_place) {
  int first = 1, last = 2, device = 1000, count = -7;
  char where[] = "setup.c:42";
  ran = 0;
  assert_ok(weir_lazy_call(note, &first, "first.c:1"));
  assert_ok(weir_lazy_call(set_wrong_device, &device, where));
  assert_ok(weir_lazy_call(note, &last, "last.c:3"));
  memset(where, 'x', sizeof where - 1); /* the text was copied */

  assert_error_says(DEFERRED_CALL, "setup.c:42", weir_device_get_current(&count));
  assert_int_equal(count, -7);
  assert_non_null(strstr(weir_last_error(), "1000")); /* the reason */
  assert_null(strstr(weir_last_error(), "last.c:3"));
  assert_int_equal(weir_is_initialized(), 0);
  assert_int_equal(ran, 1);

  /* The queue is kept, so the start fails again, and succeeds once the cause is gone. */
  assert_error_says(DEFERRED_CALL, "setup.c:42", weir_init());
  assert_int_equal(ran, 2);
  device = 0;
  ran = 0;
  assert_ok(weir_init());
  assert_int_equal(weir_is_initialized(), 1);
  assert_int_equal(ran, 2);
  assert_int_equal(order[0], 1);
  assert_int_equal(order[1], 2);
}

static bool may_succeed;
static weir_status fail_until_let(void *context) {
  (void)context;
  return may_succeed ? WEIR_OK : WEIR_ERROR_SYSTEM;
}

/* A call that fails without setting a last error: the location is named, and an older error is not taken for the
 * reason. */
TEST(a_queued_call_that_fails_by_itself) {
  may_succeed = false;
  assert_ok(weir_lazy_call(fail_until_let, NULL, "lonely.c:7"));
  weir_event_create(4711, &(weir_event *){NULL});
  assert_non_null(strstr(weir_last_error(), "weir_event_create"));
  assert_status(WEIR_ERROR_DEFERRED_CALL, weir_init());
  assert_non_null(strstr(weir_last_error(), "lonely.c:7"));
  assert_null(strstr(weir_last_error(), "weir_event_create"));
  may_succeed = true;
  assert_ok(weir_init());
}

TEST(a_failed_start_leaves_nothing) {
  NEED_SOFT("the driver cannot be asked for what is left");
  may_succeed = false;
  int device = 0;
  assert_ok(WEIR_LAZY_CALL(set_wrong_device, &device)); /* the correct call: creates a context */
  assert_ok(WEIR_LAZY_CALL(fail_until_let, NULL));
  assert_error(DEFERRED_CALL, weir_init());
  weir_soft_census census = {.size = sizeof census};
  assert_ok(weir_soft_get_census(soft, &census));
  assert_int_equal(census.contexts, 0);
  may_succeed = true;
  assert_ok(weir_init());
}

static weir_status use_everything(void *context) {
  (void)context;
  weir_stream stream;
  int device, capturing, count;
  weir_status status = weir_init();
  if (status == WEIR_OK)
    status = weir_device_count(&count);
  if (status == WEIR_OK)
    status = weir_device_get_current(&device);
  if (status == WEIR_OK)
    status = weir_device_set_current(count - 1);
  if (status == WEIR_OK)
    status = weir_stream_create(-1, 0, &stream);
  if (status == WEIR_OK)
    status = weir_stream_set_current(stream);
  if (status == WEIR_OK)
    status = weir_current_stream_is_capturing(&capturing);
  if (status == WEIR_OK)
    status = weir_stream_synchronize(stream);
  return status;
}

TEST(a_queued_call_may_use_the_runtime) {
  int device = -1, last = devices() - 1;
  shut_down_clean();
  assert_ok(WEIR_LAZY_CALL(use_everything, NULL));
  assert_ok(weir_device_get_current(&device)); /* the setting applies to the thread that started it */
  assert_int_equal(device, last);
  assert_int_not_equal(current_stream(-1).id, 0);
}

static int inner_number = 2, outer_number = 1;
static weir_status queue_another(void *context) {
  weir_status status = note(context);
  return status == WEIR_OK ? WEIR_LAZY_CALL(note, &inner_number) : status;
}

TEST(a_queued_call_may_queue_another) {
  ran = 0;
  assert_ok(WEIR_LAZY_CALL(queue_another, &outer_number));
  assert_ok(weir_init());
  assert_int_equal(ran, 2);
  assert_int_equal(order[0], 1);
  assert_int_equal(order[1], 2);
}

static weir_status not_allowed_now;
static weir_status end_it(void *context) {
  (void)context;
  not_allowed_now = weir_shutdown();
  return WEIR_OK;
}
static weir_status choose_again(void *context) {
  not_allowed_now = weir_use_driver(context);
  return WEIR_OK;
}

TEST(a_queued_call_cannot_end_the_runtime) {
  assert_ok(WEIR_LAZY_CALL(end_it, NULL));
  assert_ok(weir_init());
  assert_int_equal(not_allowed_now, WEIR_ERROR_BAD_STATE);
  assert_int_equal(weir_is_initialized(), 1);
  shut_down_clean();
  assert_ok(WEIR_LAZY_CALL(choose_again, d));
  assert_ok(weir_init());
  assert_int_equal(not_allowed_now, WEIR_ERROR_BAD_STATE);
}

TEST(many_queued_calls) {
  int number = 3;
  ran = 0;
  for (int i = 0; i < 200; i++)
    assert_ok(WEIR_LAZY_CALL(do_nothing, NULL));
  assert_ok(WEIR_LAZY_CALL(note, &number));
  assert_ok(weir_init());
  assert_int_equal(ran, 1);
}

/* ---- The shutdown ---- */

TEST(shutdown_any_number_of_times) {
  assert_ok(weir_shutdown());
  assert_ok(weir_shutdown());
  assert_ok(weir_init());
  assert_ok(weir_shutdown());
  assert_int_equal(weir_is_initialized(), 0);
  assert_ok(weir_shutdown());
}

TEST(shutdown_waits_for_work) {
  weir_stream stream = new_stream(0);
  assert_ok(weir_stream_spin(stream, cycles_of(20)));
  mark(stream, 1);
  shut_down_clean();
  assert_marks(1);
}

TEST(objects_outlive_the_runtime) {
  weir_event *event, *unused;
  weir_graph *graph, *empty;
  weir_stream stream = new_stream(0);
  weir_stream_scope scope;
  double milliseconds = -1;
  size_t nodes = 99;
  weir_pool_id pool = {98, 0};
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &event));
  assert_ok(weir_event_create(0, &unused));
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_create(&empty));
  assert_ok(weir_stream_scope_enter(stream, &scope));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_stream_scope_leave(&scope));
  shut_down_clean();

  for (int again = 0; again < 2; again++) {
    assert_error(INVALID_HANDLE, weir_event_query(event));
    assert_error(INVALID_HANDLE, weir_event_synchronize(event));
    assert_error(INVALID_HANDLE, weir_event_elapsed(event, event, &milliseconds));
    assert_error(INVALID_HANDLE, weir_graph_replay(graph));
    assert_error(INVALID_HANDLE, weir_graph_node_count(graph, &nodes));
    assert_error(INVALID_HANDLE, weir_graph_pool(graph, &pool));
    assert_null(event_raw(event));
    assert_null(event_raw(event));
    assert_int_equal(event_device(event), -1);
    /* The same after a new start. */
    assert_ok(weir_init());
    assert_error(INVALID_HANDLE, weir_event_record(event, default_stream(0)));
    assert_error(INVALID_HANDLE, weir_event_wait(event, default_stream(0)));
    assert_error(INVALID_HANDLE, weir_graph_begin_capture(graph, pool, WEIR_CAPTURE_GLOBAL));
    shut_down_clean();
  }
  assert_true(milliseconds == -1);
  assert_int_equal(nodes, 99);
  assert_int_equal(pool.first, 98);
  assert_ok(weir_init());
  weir_event_destroy(event);
  weir_graph_destroy(graph);
  shut_down_clean();
  weir_event_destroy(unused);
  weir_graph_destroy(empty);
}

struct seen {
  int step;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int device_before, device_after;
  int64_t stream_before, stream_after;
};

static void wait_for_step(struct seen *seen, int step) {
  pthread_mutex_lock(&seen->lock);
  while (seen->step != step)
    pthread_cond_wait(&seen->changed, &seen->lock);
  pthread_mutex_unlock(&seen->lock);
}
static void set_step(struct seen *seen, int step) {
  pthread_mutex_lock(&seen->lock);
  seen->step = step;
  pthread_cond_broadcast(&seen->changed);
  pthread_mutex_unlock(&seen->lock);
}

static void *live_through_a_shutdown(void *data) {
  struct seen *seen = data;
  weir_stream stream;
  int count = 0;
  weir_device_count(&count);
  weir_stream_create(count - 1, 0, &stream);
  weir_stream_set_current(stream);
  weir_device_get_current(&seen->device_before);
  weir_stream_get_current(-1, &stream);
  seen->stream_before = stream.id;
  set_step(seen, 1);
  wait_for_step(seen, 2);
  weir_device_get_current(&seen->device_after);
  weir_stream_get_current(count - 1, &stream);
  seen->stream_after = stream.id;
  return NULL;
}

/* The context survives if other code retains it, without any object of the runtime. */
TEST(shutdown_in_a_context_of_another) {
  NEED_SOFT("the driver cannot be asked for what is left");
  weir_cu_context context;
  assert_cu(d->Init(d, 0));
  assert_cu(d->DevicePrimaryCtxRetain(d, &context, 0));
  for (int with_kernel = 0; with_kernel < 2; with_kernel++) {
    weir_stream stream = new_stream(0);
    weir_event *event;
    assert_ok(weir_event_create(0, &event));
    assert_ok(weir_event_record(event, stream));
    if (with_kernel)
      assert_ok(weir_stream_spin(stream, 1));
    forget_marks();
    mark(stream, 1);
    assert_ok(weir_shutdown());
    assert_marks(1);
    weir_soft_census census = {.size = sizeof census};
    assert_ok(weir_soft_get_census(soft, &census));
    assert_int_equal(census.contexts, 1);
    assert_int_equal(census.streams, 0);
    assert_int_equal(census.events, 0);
    assert_int_equal(census.modules, 0);
    weir_event_destroy(event);
  }
  assert_cu(d->DevicePrimaryCtxRelease(d, 0));
}

/* After a new start every thread is on device 0 and the default streams again. */
TEST(new_runtime_has_fresh_state) {
  int last = devices() - 1, device = -1;
  struct seen seen = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, live_through_a_shutdown, &seen), 0);
  wait_for_step(&seen, 1);
  assert_ok(weir_stream_set_current(new_stream(last)));
  shut_down_clean();

  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
  assert_int_equal(current_stream(last).id, 0);
  set_step(&seen, 2);
  pthread_join(thread, NULL);
  assert_int_equal(seen.device_before, last);
  assert_int_not_equal(seen.stream_before, 0);
  assert_int_equal(seen.device_after, 0);
  assert_int_equal(seen.stream_after, 0);
  /* And it works. */
  void *memory = device_memory(0, 100);
  assert_ok(weir_fill_async(memory, 5, 100, new_stream(0)));
  assert_filled(0, memory, 5, 100);
  free_device_memory(0, memory);
}

TEST(a_capture_that_is_under_way_ends_with_the_runtime) {
  collect_messages();
  weir_graph *graph;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(new_stream(0)));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  mark(current_stream(0), 1);
  shut_down_clean();
  assert_int_equal(mark_count(), 0);
  assert_error(INVALID_HANDLE, weir_graph_end_capture(graph));
  weir_graph_destroy(graph);
  /* The thread may make calls that a capture forbids. */
  free_device_memory(0, device_memory(0, 100));
}

static weir_graph *left_graph;

static void *begin_and_leave(void *data) {
  weir_status *status = data;
  weir_graph *graph = NULL;
  weir_stream stream = {0};
  *status = weir_graph_create(&graph);
  if (*status == WEIR_OK)
    *status = weir_stream_create(0, 0, &stream);
  if (*status == WEIR_OK)
    *status = weir_stream_set_current(stream);
  if (*status == WEIR_OK)
    *status = weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL);
  if (*status == WEIR_OK)
    *status = weir_stream_spin(stream, 10);
  left_graph = graph;
  return NULL;
}

/* Only the shutdown can end it now. */
TEST(a_capture_of_a_thread_that_is_gone) {
  collect_messages();
  weir_status status = WEIR_ERROR_SYSTEM;
  on_thread(begin_and_leave, &status);
  assert_ok(status);
  shut_down_clean();
  weir_graph_destroy(left_graph);
  void *memory = device_memory(0, 100);
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  assert_ok(weir_fill_async(memory, 6, 100, new_stream(0)));
  assert_ok(weir_event_record(event, default_stream(0)));
  assert_ok(weir_event_synchronize(event));
  assert_filled(0, memory, 6, 100);
  weir_event_destroy(event);
  free_device_memory(0, memory);
}

static void check_profiler_calls(unsigned long started, unsigned long stopped) {
  unsigned long calls, faults;
  assert_ok(weir_fault_counts(fault, WEIR_CALL_ProfilerStart, &calls, &faults));
  assert_int_equal(calls, started);
  assert_ok(weir_fault_counts(fault, WEIR_CALL_ProfilerStop, &calls, &faults));
  assert_int_equal(calls, stopped);
}

/* Each call reaches the driver once, returns its result, and leaves the current device unchanged. */
TEST_SETUP(profiler, runtime_setup_fault, runtime_teardown) {
  int device = -1;
  assert_ok(weir_profiler_start());
  check_profiler_calls(1, 0);
  assert_ok(weir_profiler_stop());
  check_profiler_calls(1, 1);
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
  assert_ok(weir_fault_nth(fault, WEIR_CALL_ProfilerStart, 1, WEIR_CU_NOT_PERMITTED, 0));
  assert_int_not_equal(weir_profiler_start(), WEIR_OK);
  assert_int_equal(weir_last_driver_result(), WEIR_CU_NOT_PERMITTED);
  assert_memory_equal(weir_last_error(), "weir_profiler_start: ", 21);
  assert_ok(weir_fault_nth(fault, WEIR_CALL_ProfilerStop, 1, WEIR_CU_NOT_PERMITTED, 0));
  assert_int_not_equal(weir_profiler_stop(), WEIR_OK);
  assert_memory_equal(weir_last_error(), "weir_profiler_stop: ", 20);
  check_profiler_calls(2, 2);
  assert_ok(weir_profiler_start());
  assert_ok(weir_profiler_stop());
}

/* ---- Failing driver calls ---- */

static weir_status start_and_look(void) {
  int count = 0, has;
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  weir_status status = weir_init();
  if (status == WEIR_OK)
    status = weir_device_count(&count);
  for (int i = 0; i < count && status == WEIR_OK; i++) {
    status = weir_device_set_current(i);
    if (status == WEIR_OK)
      status = weir_device_has_primary_context(i, &has);
    if (status == WEIR_OK)
      status = weir_device_get_properties(i, &properties);
  }
  if (status == WEIR_OK)
    status = weir_profiler_start();
  if (status == WEIR_OK)
    status = weir_profiler_stop();
  if (status == WEIR_OK)
    status = weir_device_set_current(0);
  return status;
}

TEST_SETUP(every_driver_call_of_the_start_fails_once, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  sweep_faults(start_and_look);
}

TEST_SETUP(a_driver_that_never_starts, runtime_setup_fault, runtime_teardown) {
  assert_ok(weir_fault_nth(fault, WEIR_CALL_Init, 1, WEIR_CU_SYSTEM_DRIVER_MISMATCH, 1));
  assert_error_says(DRIVER, "Init", weir_init());
  assert_int_equal(weir_last_driver_result(), WEIR_CU_SYSTEM_DRIVER_MISMATCH);
  assert_int_equal(weir_is_initialized(), 0);
  assert_int_equal(weir_device_is_available(), 0);
  assert_ok(weir_fault_clear(fault));
  assert_ok(weir_init());
  assert_int_equal(weir_device_is_available(), 1);
}

TEST_SETUP(a_driver_without_devices, runtime_setup_fault, runtime_teardown) {
  int count = -1;
  assert_ok(weir_fault_nth(fault, WEIR_CALL_Init, 1, WEIR_CU_NO_DEVICE, 1));
  assert_error(NO_DEVICE, weir_init());
  assert_ok(weir_device_count(&count));
  assert_int_equal(count, 0);
  assert_int_equal(weir_device_is_available(), 0);
  assert_ok(weir_fault_clear(fault));
  assert_ok(weir_init());
}

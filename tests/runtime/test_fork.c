/*
 * Effects of fork on the runtime. This process starts no driver: each test runs in a child, called the parent below,
 * which forks again.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/runtime.h"

static const char sentence[] =
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must "
    "use the 'spawn' start method";

static const weir_pool_id own_pool = {0, 0};

/* The status, and an error text with the name of the call and the sentence. */
static bool is_bad_fork(weir_status status, const char *call) {
  const char *text = weir_last_error();
  size_t name = strcspn(call, "(");
  return status == WEIR_ERROR_BAD_FORK && strncmp(text, call, name) == 0 && strstr(text, sentence) != NULL;
}
#define child_assert_bad_fork(call) (clear_last_error(), child_assert(is_bad_fork(call, #call)))

/* The objects of the parent at the fork. */
struct things {
  weir_stream stream;
  weir_event *event, *unused;
  weir_graph *graph;
  weir_cu_deviceptr memory;
  int marks;
  int device_count;
};

static void count_mark(void *data) { __atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST); }

static void make_things(struct things *t) {
  weir_stream_scope scope;
  weir_driver *driver;
  t->marks = 0;
  choose_driver_by_environment();
  child_assert_ok(weir_device_set_current(0));
  child_assert_ok(weir_device_count(&t->device_count));
  child_assert(t->device_count > 0);
  child_assert_ok(weir_get_driver(&driver));
  child_assert(driver->MemAlloc(driver, &t->memory, 1000) == WEIR_CU_SUCCESS);
  child_assert_ok(weir_stream_create(0, 0, &t->stream));
  child_assert_ok(weir_event_create(WEIR_EVENT_TIMING, &t->event));
  child_assert_ok(weir_event_create(0, &t->unused));
  child_assert_ok(weir_event_record(t->event, t->stream));
  child_assert_ok(weir_graph_create(&t->graph));
  child_assert_ok(weir_stream_scope_enter(t->stream, &scope));
  child_assert_ok(weir_graph_begin_capture(t->graph, own_pool, WEIR_CAPTURE_GLOBAL));
  child_assert_ok(weir_stream_host_function(t->stream, count_mark, &t->marks));
  child_assert_ok(weir_graph_end_capture(t->graph));
  child_assert_ok(weir_stream_scope_leave(&scope));
}

/* The runtime of the parent works, with objects from before the fork and with new ones. */
static void use_things(struct things *t) {
  uint8_t back[1000] = {0};
  void *memory = (void *)(uintptr_t)t->memory;
  weir_stream stream;
  weir_driver *driver;
  child_assert(weir_is_initialized() == 1);
  child_assert(weir_is_in_bad_fork() == 0);
  int before = t->marks;
  child_assert_ok(weir_event_synchronize(t->event));
  child_assert_ok(weir_fill_async(memory, 9, sizeof back, t->stream));
  child_assert_ok(weir_copy(back, memory, sizeof back, t->stream));
  child_assert(back[0] == 9 && back[999] == 9);
  child_assert_ok(weir_graph_replay(t->graph));
  child_assert_ok(weir_device_synchronize(0));
  child_assert(t->marks == before + 1);
  child_assert_ok(weir_stream_create(0, -1, &stream));
  child_assert_ok(weir_event_record(t->unused, stream));
  child_assert_ok(weir_event_synchronize(t->unused));
  child_assert_ok(weir_get_driver(&driver));
}

static void free_things(struct things *t) {
  weir_driver *driver;
  weir_event_destroy(t->event);
  weir_event_destroy(t->unused);
  weir_graph_destroy(t->graph);
  child_assert_ok(weir_get_driver(&driver));
  child_assert(driver->MemFree(driver, t->memory) == WEIR_CU_SUCCESS);
  child_assert_ok(weir_shutdown());
}

/* ---- After the start ---- */

static weir_status do_nothing(void *context) {
  (void)context;
  return WEIR_OK;
}

static void child_after_the_start(void *data) {
  struct things *t = data;
  int number = -7, other = -7;
  size_t size = 77, total = 78;
  char text[256] = "untouched";
  double milliseconds = -7;
  weir_stream stream = {.id = 77}, given = t->stream;
  weir_cu_stream raw = (weir_cu_stream)data;
  weir_driver *driver = data;
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  weir_event *event = data;
  weir_graph *graph = data;
  weir_pool_id pool = {7, 8};
  weir_cu_ipc_event_handle handle;
  memset(&handle, 0, sizeof handle);
  void *memory = (void *)(uintptr_t)t->memory;
  const weir_graph_memory_hooks hooks = {.size = sizeof hooks};
  weir_stream_scope scope = {.outer = given, .replaced = given};

  child_assert(weir_is_in_bad_fork() == 1);
  child_assert(weir_is_initialized() == 0);
  child_assert(weir_device_is_available() == 1);
  child_assert_ok(weir_device_count(&number)); /* inherited: only starting fails */
  child_assert(number == t->device_count);
  number = -7;

  child_assert_bad_fork(weir_init());
  child_assert_bad_fork(weir_use_driver(NULL));
  child_assert_bad_fork(weir_get_driver(&driver));
  child_assert_bad_fork(weir_shutdown());
  child_assert_bad_fork(weir_lazy_call(do_nothing, NULL, "here"));
  child_assert_bad_fork(weir_set_sync_debug(WEIR_SYNC_DEBUG_WARN));
  child_assert_bad_fork(weir_profiler_start());
  child_assert_bad_fork(weir_profiler_stop());

  child_assert_bad_fork(weir_device_get_current(&number));
  child_assert_bad_fork(weir_device_set_current(0));
  child_assert_bad_fork(weir_device_exchange(0, &number));
  child_assert_bad_fork(weir_device_exchange(-1, &number));
  child_assert_bad_fork(weir_device_maybe_exchange(0, &number));
  child_assert_bad_fork(weir_device_get_properties(0, &properties));
  child_assert_bad_fork(weir_device_capability(0, &number, &other));
  child_assert_bad_fork(weir_device_memory_info(0, &size, &total));
  child_assert_bad_fork(weir_device_synchronize(0));
  child_assert_bad_fork(weir_device_can_access_peer(0, 0, &number));
  child_assert_bad_fork(weir_device_enable_peer_access(0, 1));
  child_assert_bad_fork(weir_device_has_primary_context(0, &number));

  child_assert_bad_fork(weir_stream_create(0, 0, &stream));
  child_assert_bad_fork(weir_stream_priority_range(&number, &other));
  child_assert_bad_fork(weir_stream_default(0, &stream));
  child_assert_bad_fork(weir_stream_external(0, NULL, &stream));
  child_assert_bad_fork(weir_stream_raw(given, &raw));
  child_assert_bad_fork(weir_stream_priority(given, &number));
  child_assert_bad_fork(weir_stream_unpack(0, 0, 1, &stream));
  child_assert_bad_fork(weir_stream_get_current(0, &stream));
  child_assert_bad_fork(weir_stream_set_current(given));
  child_assert_bad_fork(weir_stream_query(given));
  child_assert_bad_fork(weir_stream_synchronize(given));
  child_assert_bad_fork(weir_stream_wait_stream(given, given));
  child_assert_bad_fork(weir_stream_host_function(given, count_mark, &t->marks));
  child_assert_bad_fork(weir_stream_spin(given, 1));
  child_assert_bad_fork(weir_stream_scope_enter(given, &scope));
  child_assert_bad_fork(weir_stream_scope_leave(&scope));
  child_assert_bad_fork(weir_stream_is_capturing(given, &number));
  child_assert_bad_fork(weir_current_stream_is_capturing(&number));

  child_assert_bad_fork(weir_event_create(0, &event));
  child_assert_bad_fork(weir_event_record(t->event, given));
  child_assert_bad_fork(weir_event_query(t->event));
  child_assert_bad_fork(weir_event_wait(t->event, given));
  child_assert_bad_fork(weir_event_synchronize(t->event));
  child_assert_bad_fork(weir_event_elapsed(t->event, t->event, &milliseconds));
  child_assert_bad_fork(weir_event_ipc_handle(t->event, &handle));
  child_assert_bad_fork(weir_event_from_ipc_handle(0, &handle, &event));

  child_assert_bad_fork(weir_graph_create(&graph));
  child_assert_bad_fork(weir_graph_begin_capture(t->graph, own_pool, WEIR_CAPTURE_GLOBAL));
  child_assert_bad_fork(weir_graph_end_capture(t->graph));
  child_assert_bad_fork(weir_graph_replay(t->graph));
  child_assert_bad_fork(weir_graph_reset(t->graph));
  child_assert_bad_fork(weir_graph_pool(t->graph, &pool));
  child_assert_bad_fork(weir_graph_node_count(t->graph, &size));
  child_assert_bad_fork(weir_graph_enable_debug(t->graph));
  child_assert_bad_fork(weir_graph_debug_dump(t->graph, "/dev/null"));
  child_assert_bad_fork(weir_graph_set_memory_hooks(&hooks));

  child_assert_bad_fork(weir_copy_async(memory, memory, 1, given));
  child_assert_bad_fork(weir_copy(memory, memory, 1, given));
  child_assert_bad_fork(weir_copy_peer_async(memory, 0, memory, 0, 1, given));
  child_assert_bad_fork(weir_fill_async(memory, 1, 1, given));
  child_assert_bad_fork(weir_fill32_async(memory, 1, 1, given));

  /* No output was written. */
  child_assert(number == -7 && other == -7 && size == 77 && total == 78 && milliseconds == -7);
  child_assert(strcmp(text, "untouched") == 0 && stream.id == 77 && raw == (weir_cu_stream)data && driver == data);
  child_assert(event == data && graph == data && pool.first == 7 && pool.second == 8);
  child_assert(weir_get_sync_debug() == WEIR_SYNC_DEBUG_DEFAULT);

  /* Calls that need no driver work, and objects can be destroyed. */
  child_assert(weir_stream_equal(given, given) == 1);
  weir_event_destroy(t->event);
  weir_event_destroy(t->unused);
  weir_graph_destroy(t->graph);
}

static void fork_after_the_start(void *data) {
  (void)data;
  struct things t;
  make_things(&t);
  child_assert(succeeds_in_process(child_after_the_start, &t));
  use_things(&t);
  child_assert(succeeds_in_process(child_after_the_start, &t)); /* a second time */
  use_things(&t);
  free_things(&t);
}

FIXTURE(.prepare = runtime_need_device)

TEST(a_child_after_the_start_is_refused) { in_process(fork_after_the_start, NULL); }

static void expect_bad_fork(void *data) {
  (void)data;
  child_assert(weir_is_in_bad_fork() == 1);
  child_assert_bad_fork(weir_init());
}

static void fork_again(void *data) {
  expect_bad_fork(data);
  child_assert(succeeds_in_process(expect_bad_fork, data));
  expect_bad_fork(data);
}

static void fork_twice(void *data) {
  (void)data;
  choose_driver_by_environment();
  child_assert_ok(weir_device_set_current(0));
  child_assert(succeeds_in_process(fork_again, NULL));
  child_assert_ok(weir_device_synchronize(0));
  child_assert_ok(weir_shutdown());
}

TEST(a_grandchild_is_refused_too) { in_process(fork_twice, NULL); }

/* Starting without creating a context counts as a start. */
static void fork_after_init_only(void *data) {
  (void)data;
  choose_driver_by_environment();
  child_assert_ok(weir_init());
  child_assert(succeeds_in_process(expect_bad_fork, NULL));
  child_assert_ok(weir_shutdown());
}

TEST(a_child_after_init_alone_is_refused) { in_process(fork_after_init_only, NULL); }

/* ---- Before the start ---- */

static void use_runtime(void *data) {
  (void)data;
  struct things t;
  child_assert(weir_is_in_bad_fork() == 0);
  child_assert(weir_is_initialized() == 0);
  make_things(&t);
  use_things(&t);
  free_things(&t);
}

static void fork_before_the_start(void *data) {
  int count = -1, has = -1;
  choose_driver_by_environment();
  if (data) { /* a query does not start the runtime */
    child_assert_ok(weir_device_count(&count));
    child_assert(count > 0);
    child_assert(weir_device_is_available() == 1);
    child_assert_ok(weir_device_has_primary_context(0, &has));
    child_assert(has == 0);
  }
  child_assert(succeeds_in_process(use_runtime, NULL));
  child_assert(succeeds_in_process(use_runtime, NULL));
  use_runtime(NULL);
}

TEST(a_child_before_the_start_works) { in_process(fork_before_the_start, NULL); }

TEST(a_child_after_counting_works) {
  int asked;
  in_process(fork_before_the_start, &asked);
}

static int queued_calls;
static weir_status count_call(void *context) {
  (void)context;
  queued_calls++;
  return WEIR_OK;
}

static void start_with_queue(void *data) {
  (void)data;
  child_assert_ok(weir_init());
  child_assert(queued_calls == 2);
  child_assert_ok(weir_shutdown());
}

static void fork_with_a_queue(void *data) {
  (void)data;
  choose_driver_by_environment();
  child_assert_ok(weir_lazy_call(count_call, NULL, "one"));
  child_assert_ok(weir_lazy_call(count_call, NULL, "two"));
  child_assert(succeeds_in_process(start_with_queue, NULL));
  child_assert(queued_calls == 0);
  start_with_queue(NULL);
}

TEST(the_queue_is_inherited) { in_process(fork_with_a_queue, NULL); }

/* ---- After the shutdown ---- */

static void fork_after_the_shutdown(void *data) {
  use_runtime(data);
  child_assert(weir_is_initialized() == 0);
  if (is_soft())
    child_assert(succeeds_in_process(use_runtime, NULL));
  else /* NVIDIA's driver cannot be stopped */
    child_assert(succeeds_in_process(expect_bad_fork, NULL));
  use_runtime(data);
}

TEST(a_child_after_the_shutdown) { in_process(fork_after_the_shutdown, NULL); }

/* ---- While other threads use the runtime ---- */

static int stop;

static void *keep_busy(void *data) {
  struct things *t = data;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST)) {
    weir_stream stream;
    weir_event *event;
    int count;
    if (weir_stream_create(0, 0, &stream) != WEIR_OK || weir_event_create(0, &event) != WEIR_OK)
      break;
    weir_event_record(event, stream);
    weir_event_query(event);
    weir_stream_wait_stream(stream, t->stream);
    weir_device_count(&count);
    weir_event_destroy(event);
  }
  return NULL;
}

static void child_of_busy_parent(void *data) {
  struct things *t = data;
  weir_stream stream;
  weir_event *event;
  int count;
  child_assert(weir_is_in_bad_fork() == 1);
  child_assert_bad_fork(weir_init());
  child_assert_ok(weir_device_count(&count));
  child_assert(count == t->device_count);
  child_assert_bad_fork(weir_stream_create(0, 0, &stream));
  child_assert_bad_fork(weir_event_create(0, &event));
  child_assert_bad_fork(weir_event_query(t->event));
  child_assert_bad_fork(weir_lazy_call(do_nothing, NULL, "here"));
  child_assert_bad_fork(weir_graph_replay(t->graph));
  child_assert_bad_fork(weir_shutdown());
}

/* The child is not blocked by a lock that another thread held at the fork. */
static void fork_while_busy(void *data) {
  (void)data;
  struct things t;
  pthread_t threads[3];
  make_things(&t);
  for (int i = 0; i < 3; i++)
    child_assert(pthread_create(&threads[i], NULL, keep_busy, &t) == 0);
  for (int i = 0; i < 20; i++)
    child_assert(succeeds_in_process(child_of_busy_parent, &t));
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 3; i++)
    child_assert(pthread_join(threads[i], NULL) == 0);
  use_things(&t);
  free_things(&t);
}

TEST(a_child_of_a_busy_parent) { in_process(fork_while_busy, NULL); }

static void *keep_counting(void *data) {
  (void)data;
  int count;
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
    child_assert(weir_device_count(&count) == WEIR_OK);
  return NULL;
}

static void choose_anew(void *data) {
  (void)data;
  child_assert(weir_is_in_bad_fork() == 0);
  child_assert_ok(weir_use_driver(NULL));
  child_assert(weir_is_initialized() == 0);
}

/* The same for a runtime that has not started. The child makes no driver call, as the driver has its own locks. */
static void fork_while_counting(void *data) {
  (void)data;
  pthread_t thread;
  weir_driver *driver = device_open_bare(NULL);
  child_assert_ok(weir_use_driver(driver));
  child_assert(pthread_create(&thread, NULL, keep_counting, NULL) == 0);
  for (int i = 0; i < 50; i++)
    child_assert(succeeds_in_process(choose_anew, NULL));
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  child_assert(pthread_join(thread, NULL) == 0);
  child_assert_ok(weir_device_synchronize(0));
  child_assert_ok(weir_shutdown());
  device_close(driver);
}

TEST(a_child_of_a_counting_parent) {
  NEED_SOFT("NVIDIA's driver, once asked, spoils every child");
  in_process(fork_while_counting, NULL);
}

/* A thread makes its first call after the fork has begun: after handlers of the program that were registered before the
 * call. The child must not have the locks of that call. */
static pthread_t counting;
static int count_steps[2]; /* a pipe: the driver is being called, with locks held */
static weir_cu_result (*real_count)(weir_driver *driver, int *count);

static weir_cu_result count_slowly(weir_driver *driver, int *count) {
  char byte = 1;
  child_assert(write(count_steps[1], &byte, 1) == 1);
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
    usleep(1000);
  return real_count(driver, count);
}

static void *count_once(void *data) {
  int count;
  child_assert(weir_device_count(&count) == WEIR_OK);
  return data;
}

static void begin_to_count(void) {
  char byte;
  child_assert(pthread_create(&counting, NULL, count_once, NULL) == 0);
  child_assert(read(count_steps[0], &byte, 1) == 1);
}

static void fork_before_the_first_call(void *data) {
  (void)data;
  weir_driver *driver = device_open_bare(NULL);
  real_count = driver->DeviceGetCount;
  driver->DeviceGetCount = count_slowly;
  child_assert_ok(weir_use_driver(driver));
  child_assert(pipe(count_steps) == 0);
  child_assert(pthread_atfork(begin_to_count, NULL, NULL) == 0);
  child_assert(succeeds_in_process(choose_anew, NULL));
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  child_assert(pthread_join(counting, NULL) == 0);
  driver->DeviceGetCount = real_count;
  device_close(driver);
}

TEST(a_first_call_during_a_fork) {
  NEED_SOFT("NVIDIA's driver, once asked, spoils every child");
  in_process(fork_before_the_first_call, NULL);
}

static int in_queued_call[2]; /* pipes: the call runs; it may continue */

static weir_status wait_in_start(void *context) {
  (void)context;
  char byte = 1;
  child_assert(write(in_queued_call[1], &byte, 1) == 1);
  while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
    usleep(1000);
  return WEIR_OK;
}

static void *start_on_thread(void *data) {
  (void)data;
  child_assert(weir_init() == WEIR_OK);
  return NULL;
}

/* The start was not complete, and never will be in the child. */
static void child_of_starting_parent(void *data) {
  (void)data;
  child_assert_bad_fork(weir_init());
}

static void fork_during_the_start(void *data) {
  (void)data;
  char byte;
  pthread_t thread;
  choose_driver_by_environment();
  child_assert(pipe(in_queued_call) == 0);
  child_assert_ok(weir_lazy_call(wait_in_start, NULL, "here"));
  child_assert(pthread_create(&thread, NULL, start_on_thread, NULL) == 0);
  child_assert(read(in_queued_call[0], &byte, 1) == 1);
  child_assert(succeeds_in_process(child_of_starting_parent, NULL));
  __atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
  child_assert(pthread_join(thread, NULL) == 0);
  child_assert(weir_is_initialized() == 1);
  child_assert_ok(weir_device_synchronize(0));
  child_assert_ok(weir_shutdown());
}

TEST(a_child_during_the_start_is_refused) { in_process(fork_during_the_start, NULL); }

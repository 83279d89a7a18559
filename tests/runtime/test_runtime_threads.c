/*
 * Many threads on one runtime.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

enum { THREADS = 16 };

static const weir_pool_id own_pool = {0, 0};

/* ---- Threads that start at once and report failures ---- */

struct worker {
  int number;
  void *data;
  char failure[400]; /* "" on success */
  weir_status status;
};

static pthread_barrier_t start_line;
static void (*race)(struct worker *);

#define thread_ok(call)                                                                                                \
  do {                                                                                                                 \
    worker->status = (call);                                                                                           \
    if (worker->status != WEIR_OK) {                                                                                   \
      fail_worker(worker, #call);                                                                                      \
      return;                                                                                                          \
    }                                                                                                                  \
  } while (0)

#define thread_check(condition)                                                                                        \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      snprintf(worker->failure, sizeof worker->failure, "line %d: %s is not so", __LINE__, #condition);                \
      return;                                                                                                          \
    }                                                                                                                  \
  } while (0)

static void fail_worker(struct worker *worker, const char *call) {
  snprintf(worker->failure, sizeof worker->failure, "%s: %s: %.250s", call, weir_status_name(worker->status),
           weir_last_error());
}

static void *run_worker(void *data) {
  pthread_barrier_wait(&start_line);
  race(data);
  return NULL;
}

/* The number of failed threads; their reasons are printed if none may fail. */
static int run_threads(int count, void (*fn)(struct worker *), void *data, struct worker *workers) {
  pthread_t threads[THREADS];
  int failed = 0;
  race = fn;
  assert_int_equal(pthread_barrier_init(&start_line, NULL, (unsigned)count), 0);
  for (int i = 0; i < count; i++) {
    workers[i] = (struct worker){.number = i, .data = data};
    assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
  }
  for (int i = 0; i < count; i++) {
    assert_int_equal(pthread_join(threads[i], NULL), 0);
    failed += workers[i].failure[0] != '\0';
  }
  pthread_barrier_destroy(&start_line);
  return failed;
}

static void all_succeed(int count, void (*fn)(struct worker *), void *data) {
  struct worker workers[THREADS];
  if (run_threads(count, fn, data, workers) == 0)
    return;
  for (int i = 0; i < count; i++)
    if (workers[i].failure[0])
      print_error("thread %d: %s\n", i, workers[i].failure);
  fail();
}

static unsigned long calls_of(weir_driver_call call) {
  unsigned long calls, faults;
  assert_ok(weir_fault_counts(fault, call, &calls, &faults));
  return calls;
}

/* ---- The start ---- */

static int queued_runs;
static weir_status count_run(void *context) {
  (void)context;
  __atomic_add_fetch(&queued_runs, 1, __ATOMIC_SEQ_CST);
  return WEIR_OK;
}

/* Each thread starts the runtime through another call. */
static void start_somehow(struct worker *worker) {
  int number;
  weir_stream stream;
  weir_driver *driver;
  weir_device_properties properties;
  weir_device_properties_init(&properties);
  switch (worker->number % 8) {
  case 0:
    thread_ok(weir_init());
    break;
  case 1:
    thread_ok(weir_device_get_current(&number));
    break;
  case 2:
    thread_ok(weir_device_set_current(0));
    break;
  case 3:
    thread_ok(weir_stream_create(0, 0, &stream));
    break;
  case 4:
    thread_ok(weir_stream_get_current(0, &stream));
    break;
  case 5:
    thread_ok(weir_get_driver(&driver));
    thread_check(driver == d);
    break;
  case 6:
    thread_ok(weir_device_get_properties(0, &properties));
    break;
  default:
    thread_ok(weir_device_count(&number)); /* does not start the runtime, and may run before or after the start */
    thread_check(number > 0);
    thread_ok(weir_init());
    break;
  }
  thread_check(weir_is_initialized() == 1);
  thread_check(__atomic_load_n(&queued_runs, __ATOMIC_SEQ_CST) == 3); /* no thread enters before they have run */
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(a_race_to_start) {
  int rounds = is_soft() ? 40 : 3;
  for (int round = 0; round < rounds; round++) {
    queued_runs = 0;
    for (int i = 0; i < 3; i++)
      assert_ok(WEIR_LAZY_CALL(count_run, NULL));
    all_succeed(THREADS, start_somehow, NULL);
    assert_int_equal(queued_runs, 3);
    shut_down_clean();
  }
}

static void just_start(struct worker *worker) { thread_ok(weir_init()); }

/* The first thread fails; the others retry, and one of them succeeds for all. */
TEST_SETUP(a_race_to_a_start_that_fails_once, runtime_setup_fault, runtime_teardown) {
  int rounds = is_soft() ? 20 : 1;
  for (int round = 0; round < rounds; round++) {
    struct worker workers[THREADS];
    assert_ok(weir_fault_nth(fault, WEIR_CALL_DeviceGetCount, 1, WEIR_CU_OUT_OF_MEMORY, 0));
    assert_int_equal(run_threads(THREADS, just_start, NULL, workers), 1);
    for (int i = 0; i < THREADS; i++)
      if (workers[i].status != WEIR_OK) {
        assert_int_equal(workers[i].status, WEIR_ERROR_OUT_OF_MEMORY);
        assert_non_null(strstr(workers[i].failure, "weir_init: "));
      }
    assert_int_equal(weir_is_initialized(), 1);
    shut_down_clean();
  }
}

static void queue_and_start(struct worker *worker) {
  for (int i = 0; i < 20; i++) {
    thread_ok(WEIR_LAZY_CALL(count_run, NULL));
    if (i == worker->number)
      thread_ok(weir_init());
  }
}

/* Deferred before, during or after the start: each call runs once. */
TEST(calls_are_queued_during_the_start) {
  int rounds = is_soft() ? 20 : 2;
  for (int round = 0; round < rounds; round++) {
    queued_runs = 0;
    all_succeed(THREADS, queue_and_start, NULL);
    assert_int_equal(queued_runs, THREADS * 20);
    shut_down_clean();
  }
}

/* ---- Objects that are created once ---- */

static void touch_everything(struct worker *worker) {
  int last = *(int *)worker->data;
  weir_stream stream, other;
  thread_ok(weir_device_set_current(worker->number % 2 ? last : 0));
  thread_ok(weir_stream_create(last, 0, &stream));
  thread_ok(weir_stream_create(0, 0, &other));
  thread_ok(weir_stream_spin(stream, 10));
  thread_ok(weir_stream_spin(other, 10));
  thread_ok(weir_stream_wait_stream(stream, other));
  if (last > 0 && is_soft())
    thread_ok(weir_device_enable_peer_access(0, last));
  thread_ok(weir_stream_synchronize(stream));
}

TEST_SETUP(contexts_and_kernels_are_made_once, runtime_setup_fault, runtime_teardown) {
  int rounds = is_soft() ? 10 : 1;
  for (int round = 0; round < rounds; round++) {
    int last = devices() - 1;
    unsigned long contexts = calls_of(WEIR_CALL_DevicePrimaryCtxRetain), modules = calls_of(WEIR_CALL_ModuleLoadData);
    all_succeed(THREADS, touch_everything, &last);
    assert_int_equal(calls_of(WEIR_CALL_DevicePrimaryCtxRetain) - contexts, last + 1);
    assert_int_equal(calls_of(WEIR_CALL_ModuleLoadData) - modules, last + 1);
    shut_down_clean();
  }
}

static void record_shared_event(struct worker *worker) {
  weir_event *event = worker->data;
  weir_stream stream;
  thread_ok(weir_stream_create(0, 0, &stream));
  for (int i = 0; i < 20; i++) {
    thread_ok(weir_event_record(event, stream));
    worker->status = weir_event_query(event);
    thread_check(worker->status == WEIR_OK || worker->status == WEIR_ERROR_NOT_READY);
    thread_ok(weir_event_wait(event, stream));
    thread_ok(weir_event_synchronize(event));
    thread_check(event_raw(event) != NULL);
    thread_check(event_device(event) == 0);
  }
}

TEST_SETUP(one_event_for_all, runtime_setup_fault, runtime_teardown) {
  weir_event *event;
  assert_ok(weir_event_create(0, &event));
  unsigned long before = calls_of(WEIR_CALL_EventCreate);
  all_succeed(THREADS, record_shared_event, event);
  assert_int_equal(calls_of(WEIR_CALL_EventCreate) - before, 1);
  weir_event_destroy(event);
}

/* ---- Streams ---- */

static int handed_out[WEIR_STREAMS_PER_POOL];
static weir_stream first_round[WEIR_STREAMS_PER_POOL];

static void take_streams(struct worker *worker) {
  for (int i = 0; i < 64; i++) {
    weir_stream stream;
    thread_ok(weir_stream_create(0, 0, &stream));
    int found = -1;
    for (int j = 0; j < WEIR_STREAMS_PER_POOL; j++)
      if (weir_stream_equal(stream, first_round[j]))
        found = j;
    thread_check(found >= 0);
    __atomic_add_fetch(&handed_out[found], 1, __ATOMIC_SEQ_CST);
  }
}

/* Streams are handed out in turn, equally often, whichever thread asks. */
TEST(streams_are_handed_out_in_turn) {
  memset(handed_out, 0, sizeof handed_out);
  for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++)
    first_round[i] = new_stream(0);
  all_succeed(THREADS, take_streams, NULL);
  for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++)
    assert_int_equal(handed_out[i], THREADS * 64 / WEIR_STREAMS_PER_POOL);
}

static void find_streams(struct worker *worker) {
  for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++) {
    weir_cu_stream raw, again;
    thread_ok(weir_stream_raw(first_round[i], &raw));
    thread_ok(weir_stream_raw(first_round[i], &again));
    thread_check(raw != NULL && raw == again);
  }
}

/* All threads use a stream that has not been created yet at the same time. */
TEST_SETUP(streams_are_made_once, runtime_setup_fault, runtime_teardown) {
  for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++)
    first_round[i] = new_stream(0);
  int rounds = is_soft() ? 20 : 2;
  for (int round = 0; round < rounds; round++) {
    shut_down_clean(); /* the ids stay valid */
    unsigned long before = calls_of(WEIR_CALL_StreamCreateWithPriority);
    all_succeed(THREADS, find_streams, NULL);
    assert_int_equal(calls_of(WEIR_CALL_StreamCreateWithPriority) - before, WEIR_STREAMS_PER_POOL);
  }
}

static void keep_to_itself(struct worker *worker) {
  int last = *(int *)worker->data, mine = worker->number % (last + 1), device = -1;
  weir_stream stream, found;
  thread_ok(weir_stream_create(mine, -(worker->number % 2), &stream));
  thread_ok(weir_stream_set_current(stream));
  for (int i = 0; i < 200; i++) {
    weir_stream_scope scope;
    thread_ok(weir_device_get_current(&device));
    thread_check(device == mine);
    thread_ok(weir_stream_get_current(-1, &found));
    thread_check(weir_stream_equal(found, stream));
    thread_ok(weir_stream_default(last - mine, &found));
    thread_ok(weir_stream_scope_enter(found, &scope));
    thread_ok(weir_device_get_current(&device));
    thread_check(device == last - mine);
    thread_ok(weir_stream_scope_leave(&scope));
  }
}

TEST(current_state_is_per_thread) {
  int last = devices() - 1;
  all_succeed(THREADS, keep_to_itself, &last);
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  assert_int_equal(device, 0);
  assert_int_equal(current_stream(0).id, 0);
}

static void fail_in_own_words(struct worker *worker) {
  char number[16];
  snprintf(number, sizeof number, "%d", 1000 + worker->number);
  for (int i = 0; i < 100; i++) {
    thread_check(weir_device_set_current(1000 + worker->number) == WEIR_ERROR_INVALID_DEVICE);
    thread_check(strstr(weir_last_error(), number) != NULL);
    thread_check(weir_last_driver_result() == 0);
  }
}

TEST(each_thread_has_its_own_text) {
  assert_ok(weir_init());
  clear_last_error();
  all_succeed(THREADS, fail_in_own_words, NULL);
  assert_null(strstr(weir_last_error(), "weir_device_set_current"));
}

/* ---- Work ---- */

enum { BYTES = 20000 };
static void *memories[THREADS];

static void fill_and_read(struct worker *worker) {
  uint8_t back[BYTES];
  weir_stream stream, other;
  thread_ok(weir_stream_create(0, 0, &stream));
  thread_ok(weir_stream_create(0, -1, &other));
  for (int i = 0; i < 20; i++) {
    uint8_t value = (uint8_t)(worker->number * 16 + i);
    memset(back, 0, BYTES);
    thread_ok(weir_fill_async(memories[worker->number], value, BYTES, stream));
    thread_ok(weir_stream_wait_stream(other, stream));
    thread_ok(weir_copy(back, memories[worker->number], BYTES, other));
    thread_check(back[0] == value && back[BYTES / 2] == value && back[BYTES - 1] == value);
    thread_ok(weir_stream_wait_stream(stream, other));
  }
}

TEST(each_thread_works_for_itself) {
  for (int i = 0; i < THREADS; i++)
    memories[i] = device_memory(0, BYTES);
  all_succeed(THREADS, fill_and_read, NULL);
  for (int i = 0; i < THREADS; i++)
    free_device_memory(0, memories[i]);
}

static void make_and_unmake(struct worker *worker) {
  for (int i = 0; i < 50; i++) {
    weir_event *events[4];
    weir_graph *graph;
    weir_stream stream;
    thread_ok(weir_stream_create(0, 0, &stream));
    for (int j = 0; j < 4; j++)
      thread_ok(weir_event_create(j == 0 ? WEIR_EVENT_TIMING : 0, &events[j]));
    thread_ok(weir_graph_create(&graph));
    thread_ok(weir_event_record(events[0], stream));
    thread_ok(weir_event_record(events[1], stream));
    weir_event_destroy(events[2]);
    weir_event_destroy(events[0]);
    weir_graph_destroy(graph);
    weir_event_destroy(events[3]);
    weir_event_destroy(events[1]);
  }
}

TEST(events_and_graphs_come_and_go) { all_succeed(THREADS, make_and_unmake, NULL); }

/* ---- Graphs ---- */

static int replayed[THREADS];
static void count_replay(void *data) { __atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST); }

static void capture_and_replay(struct worker *worker) {
  weir_stream stream;
  weir_graph *graph;
  size_t nodes;
  thread_ok(weir_graph_create(&graph));
  thread_ok(
      weir_stream_create(0, 0, &stream)); /* across all rounds: after 32 the stream would belong to another thread */
  thread_ok(weir_stream_set_current(stream));
  for (int i = 0; i < 10; i++) {
    int before = __atomic_load_n(&replayed[worker->number], __ATOMIC_SEQ_CST);
    thread_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_THREAD_LOCAL));
    for (int j = 0; j <= i % 3; j++)
      thread_ok(weir_stream_host_function(stream, count_replay, &replayed[worker->number]));
    thread_ok(weir_graph_end_capture(graph));
    thread_ok(weir_graph_node_count(graph, &nodes));
    thread_check(nodes == (size_t)(i % 3 + 1));
    thread_check(__atomic_load_n(&replayed[worker->number], __ATOMIC_SEQ_CST) == before);
    thread_ok(weir_graph_replay(graph));
    thread_ok(weir_stream_synchronize(stream));
    thread_check(__atomic_load_n(&replayed[worker->number], __ATOMIC_SEQ_CST) == before + i % 3 + 1);
    thread_ok(weir_graph_reset(graph));
  }
  weir_graph_destroy(graph);
}

TEST(each_thread_captures) {
  memset(replayed, 0, sizeof replayed);
  all_succeed(8, capture_and_replay, NULL);
}

static void replay_shared(struct worker *worker) {
  weir_stream stream;
  thread_ok(weir_stream_create(0, 0, &stream));
  thread_ok(weir_stream_set_current(stream));
  for (int i = 0; i < 25; i++)
    thread_ok(weir_graph_replay(worker->data));
  thread_ok(weir_stream_synchronize(stream));
}

/* Replays of one graph never overlap, so no addition is lost. */
TEST(all_threads_replay_one_graph) {
  enum { WORDS = 256 };
  uint32_t *memory = device_memory(0, WORDS * 4), host[WORDS];
  weir_graph *graph;
  load_add(0);
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(new_stream(0)));
  assert_ok(weir_fill32_async(memory, 0, WORDS, current_stream(0)));
  assert_ok(weir_stream_synchronize(current_stream(0)));
  assert_ok(weir_graph_begin_capture(graph, own_pool, WEIR_CAPTURE_GLOBAL));
  assert_cu(launch_add(memory, memory, 1, WORDS, current_stream(0)));
  assert_cu(launch_add(memory, memory, 2, WORDS, current_stream(0)));
  assert_ok(weir_graph_end_capture(graph));
  all_succeed(8, replay_shared, graph);
  assert_ok(weir_copy(host, memory, sizeof host, current_stream(0)));
  for (int i = 0; i < WORDS; i++)
    assert_int_equal(host[i], 8 * 25 * 3);
  weir_graph_destroy(graph);
  free_device_memory(0, memory);
}

static void take_pool_handles(struct worker *worker) {
  uint64_t *all = worker->data;
  for (int i = 0; i < 100; i++)
    all[worker->number * 100 + i] = weir_graph_pool_handle().second;
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

TEST(pool_handles_are_unique) {
  static uint64_t all[THREADS * 100];
  all_succeed(THREADS, take_pool_handles, all);
  qsort(all, THREADS * 100, sizeof *all, compare);
  for (int i = 1; i < THREADS * 100; i++)
    assert_int_not_equal(all[i - 1], all[i]);
}

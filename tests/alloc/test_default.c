/*
 * The default allocator of the process: first use from many threads, its destruction with the runtime, fork, devices,
 * graphs and failing driver calls; also the calls of any allocator that take a weir_stream.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

enum { MIB = 1 << 20 };

static weir_allocator *get_default(void) {
  weir_allocator *allocator = NULL;
  assert_ok(weir_default_allocator(&allocator));
  return allocator;
}

static weir_allocator_stats stats_of(int device) {
  weir_allocator_stats stats;
  weir_allocator_stats_init(&stats);
  assert_ok(weir_memory_get_stats(device, &stats));
  return stats;
}

static void *take(size_t bytes, weir_stream stream) {
  void *pointer = NULL;
  assert_ok(weir_malloc(bytes, stream, &pointer));
  assert_non_null(pointer);
  return pointer;
}

/* ---- Plain use ---- */

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

TEST(malloc_and_free) {
  weir_stream stream = new_stream(0);
  void *pointer = take(3 * MIB, stream);
  assert_ok(weir_fill_async(pointer, 7, 3 * MIB, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_filled(0, pointer, 7, 3 * MIB);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].current, 1);
  assert_int_equal(stats_of(-1).allocated_bytes[WEIR_STAT_ALL].current, 3 * MIB);
  assert_ok(weir_free(pointer));
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].current, 0);
  assert_int_not_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].current, 0);
  void *again = take(3 * MIB, stream);
  assert_ptr_equal(again, pointer); /* from the cache */
  assert_ok(weir_free(again));
  assert_ok(weir_memory_empty_cache());
  assert_int_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].current, 0);

  void *nothing = &nothing;
  assert_ok(weir_malloc(0, stream, &nothing));
  assert_null(nothing);
  assert_ok(weir_free(NULL));
}

TEST(free_before_first_use) {
  int place;
  assert_ok(weir_free(NULL));
  assert_int_equal(weir_is_initialized(), 0); /* it does not start the runtime */
  assert_error_says(INVALID_ARGUMENT, "weir_malloc has allocated no memory", weir_free(&place));
}

/* ---- Streams and devices ---- */

TEST(two_devices) {
  NEED_TWO_DEVICES();
  weir_stream first = new_stream(0), second = new_stream(1);
  void *a = take(3 * MIB, first), *b = take(5 * MIB, second);
  assert_int_equal(stats_of(0).allocated_bytes[WEIR_STAT_ALL].current, 3 * MIB);
  assert_int_equal(stats_of(1).allocated_bytes[WEIR_STAT_ALL].current, 6 * MIB - MIB);
  weir_pointer_info info;
  weir_pointer_info_init(&info);
  assert_ok(weir_allocator_describe(get_default(), b, &info));
  assert_int_equal(info.device, 1);
  assert_ptr_equal(info.stream, raw_of(second));
  assert_ok(weir_device_set_current(1));
  assert_int_equal(stats_of(-1).allocation[WEIR_STAT_ALL].current, 1);
  assert_ok(weir_free(a));
  assert_ok(weir_free(b));
}

TEST(memory_waits_for_another_stream) {
  weir_stream stream = new_stream(0), other = new_stream(0);
  void *pointer = take(3 * MIB, stream);
  struct held *gate = hold(other);
  assert_ok(weir_memory_record_stream(pointer, other));
  assert_ok(weir_free(pointer));
  assert_int_equal(stats_of(0).active[WEIR_STAT_ALL].current, 1); /* freed, but still in use by the other stream */
  unblock(gate);
  assert_ok(weir_stream_synchronize(other));
  void *again = take(3 * MIB, stream);
  assert_ok(weir_free(again));
  assert_int_equal(stats_of(0).active[WEIR_STAT_ALL].current, 0);
}

TEST(owns) {
  weir_allocator *allocator = get_default();
  char *pointer = take(4096, default_stream(0));
  assert_int_equal(is_owned(allocator, pointer), 1);
  assert_int_equal(is_owned(allocator, pointer + 100), 1);
  assert_int_equal(is_owned(allocator, &pointer), 0);
  assert_int_equal(is_owned(allocator, NULL), 0);
  assert_ok(weir_free(pointer));
  assert_int_equal(is_owned(allocator, pointer), 1); /* cached */
  assert_ok(weir_memory_empty_cache());
  assert_int_equal(is_owned(allocator, pointer), 0);

  assert_ok(weir_allocator_set_caching(allocator, 0));
  pointer = take(4096, default_stream(0));
  assert_int_equal(is_owned(allocator, pointer), 1);
  assert_ok(weir_free(pointer));
  assert_int_equal(is_owned(allocator, pointer), 0);
}

/* ---- First use ---- */

enum { THREADS = 8 };
static pthread_barrier_t barrier;
static _Atomic(weir_allocator *) seen[THREADS];

static void *first_use(void *data) {
  int number = (int)(intptr_t)data;
  weir_stream stream;
  void *pointer = NULL;
  weir_allocator *allocator = NULL;
  pthread_barrier_wait(&barrier);
  if (weir_stream_default(number % 2, &stream) || weir_malloc(4096, stream, &pointer) ||
      weir_default_allocator(&allocator) || weir_free(pointer))
    return NULL;
  seen[number] = allocator;
  return NULL;
}

TEST(first_use_by_many_threads) {
  NEED_SOFT("needs two devices");
  for (int round = 0; round < 20; round++) {
    pthread_t threads[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++) {
      seen[i] = NULL;
      assert_int_equal(pthread_create(&threads[i], NULL, first_use, (void *)i), 0);
    }
    for (int i = 0; i < THREADS; i++)
      assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&barrier);
    for (int i = 0; i < THREADS; i++)
      assert_ptr_equal(seen[i], get_default());
    assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].allocated, THREADS / 2);
    assert_int_equal(stats_of(1).allocation[WEIR_STAT_ALL].allocated, THREADS / 2);
    assert_ok(weir_shutdown());
  }
}

TEST(settings_of_the_environment) {
  void *pointer = &pointer;
  weir_stream stream = default_stream(0);
  setenv("WEIR_ALLOC_CONF", "max_split_size_mb:nine", 1);
  assert_error_says(INVALID_ARGUMENT, "max_split_size_mb", weir_malloc(512, stream, &pointer));
  assert_ptr_equal(pointer, &pointer);
  setenv("WEIR_ALLOC_CONF", "max_split_size_mb:99", 1); /* the next call tries again */
  assert_ok(weir_malloc(512, stream, &pointer));
  unsetenv("WEIR_ALLOC_CONF");
  char text[64];
  weir_allocator_settings(get_default(), text, sizeof text, NULL);
  assert_string_equal(text, "max_split_size_mb:99");
  assert_ok(weir_free(pointer));
}

/* ---- Shutdown ---- */

static void check_end(void) {
  void *pointer = take(3 * MIB, default_stream(0)), *small = take(100, new_stream(0));
  assert_error_says(BAD_STATE, "1 allocator still uses", weir_shutdown());
  assert_non_null(strstr(weir_last_error(), "the process default, with 2 allocations of 3.00 MiB"));
  assert_int_equal(weir_is_initialized(), 1);
  assert_ok(weir_free(small));
  assert_error_says(BAD_STATE, "with 1 allocation of 3.00 MiB", weir_shutdown());
  assert_ok(weir_free(pointer));
  assert_ok(weir_shutdown());
  assert_int_equal(weir_is_initialized(), 0);
  /* It starts again. */
  assert_ok(weir_free(take(512, default_stream(0))));
  assert_ok(weir_shutdown());
}

TEST(shutdown) { check_end(); }

static int setup_by_environment(void **state) {
  setenv("WEIR_DRIVER", "soft", 1);
  setenv("WEIR_SOFT_MEMORY", "1GiB", 1);
  return runtime_setup_none(state);
}

TEST_SETUP(shutdown_closes_the_runtimes_driver, setup_by_environment, runtime_teardown) { check_end(); }

/* An idle default allocator is kept if another allocator prevents the shutdown. */
TEST_SETUP(refused_shutdown_keeps_it, setup_by_environment, runtime_teardown) {
  weir_driver *driver;
  weir_allocator *other, *allocator = get_default();
  assert_ok(weir_get_driver(&driver));
  assert_ok(weir_allocator_create(driver, NULL, &other));
  assert_error_says(BAD_STATE, "1 allocator still uses", weir_shutdown());
  assert_ptr_equal(get_default(), allocator);
  assert_ok(weir_free(take(512, default_stream(0))));
  weir_allocator_destroy(other);
  assert_ok(weir_shutdown());
}

TEST(shutdown_with_caching_off) {
  assert_ok(weir_allocator_set_caching(get_default(), 0));
  void *pointer = take(1000, default_stream(0));
  assert_error_says(BAD_STATE, "with 1 allocation of 1000 bytes", weir_shutdown());
  assert_ok(weir_free(pointer));
  assert_ok(weir_shutdown());
}

static weir_status malloc_early(void *context) {
  weir_stream stream;
  weir_status status = weir_stream_default(0, &stream);
  return status ? status : weir_malloc(512, stream, context);
}

static weir_status fail_once(void *context) {
  int *failures = context;
  return (*failures)++ ? WEIR_OK : WEIR_ERROR_BAD_STATE;
}

/* A start that fails also destroys the allocator that a queued call created. */
TEST(failed_start) {
  void *pointer = NULL;
  int failures = 0;
  assert_ok(weir_lazy_call(malloc_early, &pointer, "here"));
  assert_ok(weir_lazy_call(fail_once, &failures, "there"));
  assert_error(DEFERRED_CALL, weir_init());
  assert_non_null(pointer);
  assert_error_says(INVALID_ARGUMENT, "has allocated no memory", weir_free(pointer));
  assert_ok(weir_init()); /* the queue runs again */
  assert_ok(weir_free(pointer));
}

/* ---- Fork ---- */

static void *inherited;
static weir_stream stream_of_parent;

static void use_in_child(void *data) {
  (void)data;
  void *pointer = &pointer;
  weir_allocator *allocator = NULL;
  weir_allocator_stats stats = {.size = sizeof stats};
#define BAD_FORK(call)                                                                                                 \
  child_assert((call) == WEIR_ERROR_BAD_FORK && strncmp(weir_last_error(), #call, strcspn(#call, "(")) == 0 &&         \
               strstr(weir_last_error(), "Cannot re-initialize CUDA in forked subprocess"))
  BAD_FORK(weir_malloc(512, stream_of_parent, &pointer));
  BAD_FORK(weir_free(inherited));
  BAD_FORK(weir_free(NULL));
  BAD_FORK(weir_memory_record_stream(inherited, stream_of_parent));
  BAD_FORK(weir_memory_empty_cache());
  BAD_FORK(weir_memory_get_stats(0, &stats));
  BAD_FORK(weir_default_allocator(&allocator));
  BAD_FORK(weir_shutdown());
  child_assert(pointer == (void *)&pointer);
}

TEST(fork) {
  stream_of_parent = default_stream(0);
  in_process(use_in_child, NULL); /* before its first use, but after the runtime has started */
  inherited = take(512, stream_of_parent);
  in_process(use_in_child, NULL);
  assert_ok(weir_free(inherited));
  in_process(use_in_child, NULL);
}

static void start_in_child(void *data) {
  (void)data;
  weir_stream stream;
  void *pointer;
  child_assert(weir_stream_default(0, &stream) == WEIR_OK);
  child_assert(weir_malloc(512, stream, &pointer) == WEIR_OK);
  child_assert(weir_free(pointer) == WEIR_OK);
  child_assert(weir_shutdown() == WEIR_OK);
}

TEST(fork_after_shutdown) {
  NEED_SOFT("NVIDIA's driver does not work in a child once it is started");
  assert_ok(weir_free(take(512, default_stream(0))));
  assert_ok(weir_shutdown());
  in_process(start_in_child, NULL);
}

/* ---- Graphs ---- */

TEST(graph) {
  weir_allocator *allocator = get_default();
  weir_stream stream = new_stream(0);
  weir_graph *graph;
  weir_pool_id pool;
  weir_stream_scope scope;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_scope_enter(stream, &scope));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  void *pointer = take(4096, stream);
  assert_ok(weir_fill_async(pointer, 3, 4096, stream));
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_stream_scope_leave(&scope));
  weir_pointer_info info;
  weir_pointer_info_init(&info);
  assert_ok(weir_graph_pool(graph, &pool));
  assert_ok(weir_allocator_describe(allocator, pointer, &info));
  assert_memory_equal(&info.pool, &pool, sizeof pool);
  assert_ok(weir_graph_replay(graph));
  assert_filled(0, pointer, 3, 4096);
  assert_error_says(BAD_STATE, "the process default", weir_shutdown());
  assert_ok(weir_free(pointer));
  assert_ok(weir_shutdown()); /* the graph still holds the pool */
  weir_graph_destroy(graph);
}

TEST(first_use_in_a_capture) {
  weir_stream stream = new_stream(0);
  weir_graph *graph;
  weir_stream_scope scope;
  void *pointer = &pointer;
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_scope_enter(stream, &scope));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_error_says(BAD_STATE, "capture", weir_malloc(4096, stream, &pointer));
  mark(stream, 1);
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_stream_scope_leave(&scope));
  weir_graph_destroy(graph);
  assert_ok(weir_free(take(4096, stream)));
}

static weir_status begin_nothing(void *context, int device, weir_pool_id pool, weir_cu_stream stream) {
  (void)context, (void)device, (void)pool, (void)stream;
  return WEIR_OK;
}

TEST(hooks_of_the_program_stay) {
  weir_graph_memory_hooks hooks, now;
  weir_graph_memory_hooks_init(&hooks);
  weir_graph_memory_hooks_init(&now);
  hooks.begin = begin_nothing;
  assert_ok(weir_graph_set_memory_hooks(&hooks));
  get_default();
  assert_ok(weir_graph_get_memory_hooks(&now));
  assert_true(now.begin == begin_nothing);
  assert_int_equal(now.size, sizeof now);
  assert_ok(weir_graph_set_memory_hooks(NULL));
  assert_ok(weir_graph_get_memory_hooks(&now));
  assert_true(now.begin == NULL);
}

/* ---- Failing driver calls ---- */

static weir_status use_both_devices(void) {
  void *pointers[2] = {NULL, NULL};
  weir_status status = WEIR_OK;
  for (int i = 0; i < 2 && !status; i++) {
    weir_stream stream;
    status = weir_stream_create(i, 0, &stream);
    if (!status)
      status = weir_malloc(3 * MIB, stream, &pointers[i]);
  }
  for (int i = 0; i < 2; i++)
    if (pointers[i])
      weir_free(pointers[i]);
  return status;
}

/* Each driver call fails once. The affected call reports it, the next attempt succeeds, and nothing is leaked. */
TEST_SETUP(faults, NULL, NULL) {
  NEED_SOFT("needs a fault table around the software device");
  unsigned long failed = 0, faults = 1;
  for (unsigned long n = 1; faults; n++) {
    assert_int_equal(runtime_setup_fault(NULL), 0);
    assert_ok(weir_fault_nth_any(fault, n, WEIR_CU_OUT_OF_MEMORY));
    weir_status status = use_both_devices();
    assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, NULL, &faults));
    assert_ok(weir_fault_clear(fault));
    if (status) {
      failed++;
      assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
      assert_memory_equal(weir_last_error(), "weir_", 5);
    }
    assert_ok(use_both_devices());
    assert_int_equal(runtime_teardown(NULL), 0);
  }
  assert_in_range(failed, 10, 1000);
}

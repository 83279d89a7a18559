/*
 * Pinned memory that graphs use: it is kept while a graph can run, and reused afterwards.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "support/alloc.h"
#include "support/length.h"
#include "weir/host.h"

static weir_host_allocator *host;
static weir_cu_stream stream;
static weir_cu_deviceptr to;

static void open_host(const char *conf) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 2, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(conf), &host));
  stream = work_stream();
  to = soft_alloc(MIB);
}

static void close_host(void) {
  assert_cu(d->MemFree(d, to));
  weir_host_allocator_destroy(host);
  host = NULL;
  alloc_close();
}

static int teardown(void **state) {
  if (faults)
    weir_fault_clear(faults);
  weir_host_allocator_destroy(host);
  host = NULL;
  return alloc_teardown(state);
}

FIXTURE(.teardown = teardown)

static void *take(size_t bytes) {
  void *p = NULL;
  assert_ok(weir_host_alloc(host, bytes, &p));
  return p;
}

static void give(void *p) { assert_ok(weir_host_free(host, p)); }

static void use(void *p) {
  assert_cu(d->MemcpyAsync(d, to, (weir_cu_deviceptr)p, 100, stream));
  assert_ok(weir_host_record_stream(host, p, 0, stream));
}

static void begin(void) { assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL)); }

static weir_cu_graph end(void) {
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  return graph;
}

/* A graph that copies from the memory. */
static weir_cu_graph capture_use(void *p) {
  begin();
  use(p);
  return end();
}

static weir_cu_graph_exec instantiate(weir_cu_graph graph) {
  weir_cu_graph_exec exec;
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  return exec;
}

/* Whether an allocation of this size would get this memory. */
static bool is_reused(void *p, size_t bytes) {
  void *taken = take(bytes);
  bool same = taken == p;
  give(taken);
  return same;
}

static int64_t active_requests(void) {
  weir_host_stats stats = {.size = sizeof stats};
  assert_ok(weir_host_get_stats(host, &stats));
  return stats.active_requests.current;
}

static unsigned long objects_created(void) {
  unsigned long calls, failed;
  assert_ok(weir_fault_counts(faults, WEIR_CALL_UserObjectCreate, &calls, &failed));
  return calls;
}

/* ---- The life of a graph ---- */

TEST(graph_is_destroyed) {
  open_host("");
  void *p = take(4096);
  weir_cu_graph graph = capture_use(p);
  give(p);
  assert_int_equal(active_requests(), 1);
  assert_false(is_reused(p, 4096));
  soft_step_all();
  assert_ok(weir_host_empty_cache(host));
  assert_false(is_reused(p, 4096));
  assert_cu(d->GraphDestroy(d, graph));
  assert_true(is_reused(p, 4096));
  assert_int_equal(active_requests(), 0);
  close_host();
}

/* Its executable and a launch that is under way use it. */
TEST(last_launch) {
  open_host("");
  void *p = take(4096);
  weir_cu_graph graph = capture_use(p);
  weir_cu_graph_exec exec = instantiate(graph);
  give(p);
  assert_cu(d->GraphDestroy(d, graph));
  assert_false(is_reused(p, 4096));
  assert_cu(d->GraphLaunch(d, exec, stream));
  soft_step_all();
  assert_false(is_reused(p, 4096)); /* it can be launched again */
  assert_cu(d->GraphLaunch(d, exec, stream));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_int_equal(soft_pending(stream), 1);
  assert_false(is_reused(p, 4096));
  soft_step_all();
  assert_true(is_reused(p, 4096));
  close_host();
}

TEST(two_graphs) {
  open_host("");
  void *p = take(4096);
  weir_cu_graph first = capture_use(p), second = capture_use(p);
  give(p);
  assert_cu(d->GraphDestroy(d, first));
  assert_false(is_reused(p, 4096));
  assert_cu(d->GraphDestroy(d, second));
  assert_true(is_reused(p, 4096));
  close_host();
}

/* Many uses in one capture are one object. */
TEST(uses_of_one_capture) {
  open_host("");
  void *p = take(4096), *q = take(4096);
  begin();
  for (int i = 0; i < 5; i++) {
    use(p);
    use(q);
  }
  weir_cu_graph graph = end();
  assert_int_equal(objects_created(), 2);
  give(p);
  give(q);
  assert_cu(d->GraphDestroy(d, graph));
  assert_true(is_reused(p, 4096) || is_reused(q, 4096));
  assert_int_equal(active_requests(), 0);
  close_host();
}

/* The program still uses the memory, first alone and then again with a graph. */
TEST(graph_ends_first) {
  open_host("");
  void *p = take(4096);
  assert_cu(d->GraphDestroy(d, capture_use(p)));
  assert_false(is_reused(p, 4096));
  weir_cu_graph graph = capture_use(p);
  give(p);
  assert_false(is_reused(p, 4096));
  assert_cu(d->GraphDestroy(d, graph));
  assert_true(is_reused(p, 4096));
  p = take(4096);
  give(p);
  assert_true(is_reused(p, 4096));
  close_host();
}

TEST(capture_fails) {
  open_host("");
  void *p = take(4096), *late = take(2048);
  weir_cu_graph graph = NULL;
  begin();
  use(p);
  give(p);
  assert_cu_error(STREAM_CAPTURE_UNSUPPORTED, d->StreamSynchronize(d, stream));
  assert_ok(weir_host_record_stream(host, late, 0, stream)); /* no graph will use it */
  give(late);
  assert_false(is_reused(late, 2048));
  assert_cu_error(STREAM_CAPTURE_INVALIDATED, d->StreamEndCapture(d, stream, &graph));
  assert_true(is_reused(p, 4096));
  give(take(100)); /* polls, and inserts the event */
  soft_step_all();
  assert_true(is_reused(late, 2048));
  close_host();
}

/* ---- Together with other uses ---- */

TEST(stream_uses_it_too) {
  open_host("");
  weir_cu_stream other = work_stream();
  void *p = take(4096);
  weir_cu_graph graph = capture_use(p);
  assert_cu(d->MemcpyAsync(d, to, (weir_cu_deviceptr)p, 4096, other));
  assert_ok(weir_host_record_stream(host, p, 0, other));
  give(p);
  assert_cu(d->GraphDestroy(d, graph));
  assert_false(is_reused(p, 4096));
  soft_step_all();
  assert_true(is_reused(p, 4096));
  close_host();
}

/* The legacy stream cannot be asked while a blocking stream captures. */
TEST(legacy_stream) {
  open_host("");
  weir_cu_stream blocking = soft_stream(WEIR_CU_STREAM_DEFAULT);
  void *p = take(4096);
  assert_cu(d->MemcpyAsync(d, to, (weir_cu_deviceptr)p, 4096, NULL));
  assert_cu(d->StreamBeginCapture(d, blocking, WEIR_CU_CAPTURE_GLOBAL));
  assert_ok(weir_host_record_stream(host, p, 0, NULL));
  give(p);
  assert_false(is_reused(p, 4096));
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamEndCapture(d, blocking, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  assert_false(is_reused(p, 4096)); /* the copy is not done */
  soft_step_all();
  assert_true(is_reused(p, 4096));
  assert_cu(d->StreamDestroy(d, blocking));
  close_host();
}

TEST(large_memory_is_returned) {
  open_host("pinned_max_cached_size_mb:1");
  void *p = take(3 * MIB);
  weir_cu_graph graph = capture_use(p);
  give(p);
  assert_int_equal(soft_census().host_allocations, 1);
  assert_cu(d->GraphDestroy(d, graph));
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(soft_census().host_allocations, 0);
  close_host();
}

TEST(polling_thread) {
  open_host("pinned_use_background_threads:True");
  void *first = take(100), *p = take(4096);
  assert_ok(weir_host_record_stream(host, first, 0, stream));
  give(first); /* starts the thread */
  weir_cu_graph graph = capture_use(p);
  give(p);
  assert_cu(d->GraphDestroy(d, graph));
  bool reused = false;
  for (int i = 0; i < 10000 && !reused; i++)
    reused = is_reused(p, 4096);
  assert_true(reused);
  close_host();
}

/* A block of a graph that has ended may still wait for a stream. The thread, which is asleep by then, waits for it. */
TEST(polling_thread_after_graph) {
  open_host("pinned_use_background_threads:True");
  void *first = take(100), *p = take(4096);
  assert_ok(weir_host_record_stream(host, first, 0, stream));
  give(first); /* starts the thread */
  soft_step_all();
  bool reused = false;
  for (int i = 0; i < 1000 && !reused; i++) {
    usleep(1000);
    reused = is_reused(first, 100);
  }
  assert_true(reused);
  usleep(5000); /* it has nothing to wait for, and falls asleep */
  weir_cu_graph graph = capture_use(p);
  use(p);
  give(p);
  assert_cu(d->GraphDestroy(d, graph));
  assert_false(is_reused(p, 4096)); /* this polls, and finds that the stream is busy */
  soft_step_all();
  reused = false;
  for (int i = 0; i < 1000 && !reused; i++) {
    usleep(1000);
    reused = is_reused(p, 4096);
  }
  assert_true(reused);
  close_host();
}

/* ---- Without user objects ---- */

TEST(driver_without_objects) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 2, GIB);
  faults->GraphRetainUserObject = NULL;
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(""), &host));
  stream = work_stream();
  to = soft_alloc(MIB);
  void *p = take(4096);
  weir_cu_graph graph = capture_use(p);
  give(p);
  assert_cu(d->GraphDestroy(d, graph));
  assert_false(is_reused(p, 4096)); /* kept, since the end of the graph is not known */
  assert_int_equal(active_requests(), 1);
  close_host();
}

/* The memory is kept if the graph does not get its object, and no other graph changes that. */
TEST(failing_calls) {
  static const weir_driver_call calls[] = {WEIR_CALL_UserObjectCreate, WEIR_CALL_GraphRetainUserObject};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    open_host("");
    void *p = take(4096);
    assert_ok(weir_fault_nth(faults, calls[i], 1, WEIR_CU_OUT_OF_MEMORY, 0));
    weir_cu_graph first = capture_use(p), second = capture_use(p);
    give(p);
    assert_cu(d->GraphDestroy(d, second));
    assert_false(is_reused(p, 4096));
    assert_cu(d->GraphDestroy(d, first));
    assert_false(is_reused(p, 4096));
    close_host();
  }
}

/* ---- The end of the allocator ---- */

TEST(graph_outlives_allocator) {
  open_host("");
  weir_cu_graph graph = capture_use(take(4096));
  weir_cu_graph_exec exec = instantiate(graph);
  weir_host_allocator_destroy(host);
  host = NULL;
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->MemFree(d, to));
  alloc_close();
}

/* ---- Threads ---- */

static void *take_and_give(void *stop) {
  while (!atomic_load((atomic_bool *)stop)) {
    void *p;
    if (weir_host_alloc(host, 4096, &p) || weir_host_free(host, p))
      return stop;
  }
  return NULL;
}

/* Graphs end on one thread while another allocates. */
TEST(threads) {
  open_host("");
  pthread_t thread;
  atomic_bool stop = false;
  void *failed;
  assert_int_equal(pthread_create(&thread, NULL, take_and_give, &stop), 0);
  for (int i = repetitions(300, 5000); i; i--) {
    void *p = take(4096), *q = take(8192);
    assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
    use(p);
    use(q);
    give(p);
    weir_cu_graph graph = end();
    weir_cu_graph_exec exec = instantiate(graph);
    assert_cu(d->GraphLaunch(d, exec, stream));
    assert_cu(d->GraphDestroy(d, graph));
    assert_cu(d->GraphExecDestroy(d, exec));
    give(q);
    soft_step_all();
  }
  atomic_store(&stop, true);
  assert_int_equal(pthread_join(thread, &failed), 0);
  assert_null(failed);
  give(take(100));
  assert_int_equal(active_requests(), 0);
  assert_in_range(soft_census().host_allocations, 1, 8);
  close_host();
}

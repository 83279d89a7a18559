/*
 * Allocators and fork: calls in the child are refused regardless of what the threads of the parent were doing, and the
 * parent continues.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/alloc.h"
#include "weir/adapter.h"
#include "weir/history.h"
#include "weir/host.h"
#include "weir/ipc.h"
#include "weir/snapshot.h"

static const char sentence[] =
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start "
    "method";

static const weir_pool_id some_pool = {0, 7};

/* The objects of the parent when it forks. */
static weir_host_allocator *host;
static weir_checkpoint *checkpoint;
static void *memory, *pinned;

/* Ends the child unless the call failed with WEIR_ERROR_BAD_FORK and the right text. */
static void check_bad_fork(weir_status status, const char *call, int line) {
  size_t name = strcspn(call, "(");
  const char *text = weir_last_error();
  if (status == WEIR_ERROR_BAD_FORK && strncmp(text, call, name) == 0 && strstr(text, sentence))
    return;
  fprintf(stderr, "line %d: %s: %s: %s\n", line, call, weir_status_name(status), text);
  _exit(1);
}
#define assert_bad_fork(call) (clear_last_error(), check_bad_fork((call), #call, __LINE__))

/* Runs a function in a child, for at most ten seconds. */
static void in_child(void (*what)(void)) {
  fflush(NULL);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    alarm(10);
    what();
    _exit(0);
  }
  assert_int_equal(child_outcome(child), 0);
}

static void call_everything(void) {
  void *pointer = &pointer, *base = &base, *const *pointers = &pointer;
  size_t size = 77;
  int number = 77;
  int64_t value = 77;
  double fraction = 77;
  char text[32] = "untouched";
  weir_allocator_stats stats = {.size = sizeof stats, .num_ooms = 77};
  weir_pointer_info info = {.size = sizeof info, .bytes = 77};
  weir_history_info history = {.size = sizeof history, .kept = 77};
  weir_host_stats host_stats = {.size = sizeof host_stats, .num_host_alloc = 77};
  weir_stat reserved_bytes[WEIR_STAT_KINDS] = {{.current = 77}};
  weir_checkpoint *made = (weir_checkpoint *)&made;
  weir_checkpoint_delta delta = {.size = sizeof delta, .freed_count = 77};
  weir_snapshot *snapshot = (weir_snapshot *)&snapshot;
  weir_ipc_handle handle = {.size = sizeof handle, .length = 77};
  const char *pair[] = {"key", "value"};

  /* The fast path, with cached memory and with a new size. */
  assert_bad_fork(weir_allocator_alloc(allocator, 0, 4096, NULL, &pointer));
  assert_bad_fork(weir_allocator_alloc(allocator, 0, 64 * MIB, NULL, &pointer));
  assert_bad_fork(weir_allocator_alloc(allocator, 0, 0, NULL, &pointer));
  assert_bad_fork(weir_allocator_free(allocator, memory));
  assert_bad_fork(weir_allocator_free(allocator, memory));
  assert_bad_fork(weir_allocator_free(allocator, NULL));

  assert_bad_fork(weir_allocator_record_stream(allocator, memory, (weir_cu_stream)16));
  assert_bad_fork(weir_allocator_empty_cache(allocator));
  assert_bad_fork(weir_allocator_empty_pool(allocator, some_pool));
  assert_bad_fork(weir_allocator_largest_block(allocator, 0, &size));
  assert_bad_fork(weir_allocator_base(allocator, memory, &base, &size));
  assert_bad_fork(weir_allocator_describe(allocator, memory, &info));
  assert_bad_fork(weir_allocator_alloc_at(allocator, 0, 512, NULL, memory));
  assert_bad_fork(weir_allocator_expandable_segments(allocator, 0, NULL, 0, &size));
  assert_bad_fork(weir_allocator_set_fraction(allocator, 0, 0.5));
  assert_bad_fork(weir_allocator_set_limit(allocator, 0, MIB));
  assert_bad_fork(weir_allocator_get_fraction(allocator, 0, &fraction));
  assert_bad_fork(weir_allocator_configure(allocator, "max_split_size_mb:40"));
  assert_bad_fork(weir_allocator_set_reserve_class(allocator, 0, NULL, NULL));
  assert_bad_fork(weir_allocator_set_caching(allocator, 0));
  assert_bad_fork(weir_allocator_enable_peer_access(allocator, 0, 0));
  assert_bad_fork(weir_allocator_copy_async(allocator, memory, 0, memory, 0, 1, NULL, 0));
  assert_bad_fork(weir_allocator_get_stats(allocator, 0, &stats));
  assert_bad_fork(weir_allocator_reset_peak_stats(allocator, 0));
  assert_bad_fork(weir_allocator_reset_accumulated_stats(allocator, 0));
  assert_bad_fork(weir_allocator_attach(allocator, OBSERVER(.entry = ignore_trace)));
  assert_bad_fork(weir_allocator_detach(allocator, OBSERVER(.entry = ignore_trace)));
  assert_bad_fork(weir_allocator_set_witness(allocator, NULL, NULL, WEIR_WITNESS_ALL));

  assert_bad_fork(weir_pool_create(allocator, 0, some_pool, NULL));
  assert_bad_fork(weir_pool_release(allocator, 0, some_pool));
  assert_bad_fork(weir_pool_use_count(allocator, 0, some_pool, &number));
  assert_bad_fork(weir_pool_reserved_bytes(allocator, 0, some_pool, reserved_bytes));
  assert_bad_fork(weir_pool_set_use_on_oom(allocator, 0, some_pool, 1));
  assert_bad_fork(weir_pool_set_no_split(allocator, 0, some_pool, 1));
  assert_bad_fork(weir_pool_begin(allocator, 0, some_pool, NULL, NULL));
  assert_bad_fork(weir_pool_end(allocator, 0, some_pool));
  assert_bad_fork(weir_allocator_begin_capture(allocator, 0));
  assert_bad_fork(weir_allocator_end_capture(allocator, 0));
  assert_bad_fork(weir_pool_has_exactly(allocator, 0, some_pool, pointers, 1, &number));
  assert_bad_fork(weir_pool_wait(allocator, 0, some_pool));
  assert_bad_fork(weir_pool_checkpoint(allocator, 0, some_pool, &made));
  if (checkpoint)
    assert_bad_fork(weir_pool_restore(allocator, checkpoint, &delta));
  assert_bad_fork(weir_graph_use_allocator(allocator));

  assert_bad_fork(weir_history_record(allocator, NULL));
  assert_bad_fork(weir_history_clear(allocator));
  assert_bad_fork(weir_history_get_info(allocator, 0, &history));
  assert_bad_fork(weir_history_annotate(allocator, 0, pair, 1));
  assert_bad_fork(weir_history_mark(allocator, 0, "text"));
  assert_bad_fork(weir_history_mark_pointer(allocator, memory, "text"));
  assert_bad_fork(weir_history_set_metadata(allocator, 0, "text"));
  assert_bad_fork(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_bad_fork(weir_allocator_pools(allocator, 0, 0, NULL, 0, &size));
  assert_bad_fork(weir_allocator_pools(allocator, 0, 1, NULL, 0, &size));
  assert_int_equal(weir_allocator_try_alloc(allocator, 0, 512, NULL, (void *[]){NULL}), WEIR_ERROR_NOT_READY);
  assert_int_equal(weir_allocator_try_free(allocator, memory), WEIR_ERROR_NOT_READY);
  assert_bad_fork(weir_allocator_stat(allocator, 0, "num_ooms", &value));
  assert_bad_fork(weir_allocator_write_stats(allocator, 0, WEIR_STATS_FLAT, weir_write_file, stderr));
  assert_bad_fork(weir_allocator_summary(allocator, 0, WEIR_SUMMARY_LINE, text, sizeof text, &size));
  assert_bad_fork(weir_allocator_processes(allocator, 0, text, sizeof text, &size));
  assert_bad_fork(weir_ipc_share(allocator, memory, &handle));
  assert_bad_fork(weir_ipc_open(allocator, 0, "name", 4, &base));
  assert_bad_fork(weir_ipc_close(allocator, memory));
  assert_bad_fork(weir_ipc_send(allocator, memory, NULL, NULL, &handle));
  assert_bad_fork(weir_ipc_receive(allocator, 0, "name", 4, NULL, &pointer, NULL));
  assert_bad_fork(weir_ipc_release(allocator, memory, NULL));
  assert_bad_fork(weir_ipc_cancel(allocator, "name", 4));
  assert_bad_fork(weir_ipc_set_receiver(allocator, "name", 4, 1));
  assert_bad_fork(weir_ipc_collect(allocator, &size));

  assert_bad_fork(weir_host_alloc(host, 4096, &pointer));
  assert_bad_fork(weir_host_free(host, pinned));
  assert_bad_fork(weir_host_free(host, NULL));
  assert_bad_fork(weir_host_record_stream(host, pinned, 0, NULL));
  assert_bad_fork(weir_host_empty_cache(host));
  assert_bad_fork(weir_host_configure(host, ""));
  assert_bad_fork(weir_host_owns(host, pinned, &number));
  assert_bad_fork(weir_host_get_stats(host, &host_stats));
  assert_bad_fork(weir_host_reset_peak_stats(host));
  assert_bad_fork(weir_host_reset_accumulated_stats(host));
  assert_bad_fork(weir_host_set_witness(host, NULL, NULL));

  child_assert(pointer == &pointer && base == &base && size == 77 && number == 77 && value == 77 && fraction == 77);
  child_assert(strcmp(text, "untouched") == 0 && stats.num_ooms == 77 && info.bytes == 77 && history.kept == 77);
  child_assert(host_stats.num_host_alloc == 77 && reserved_bytes[0].current == 77 && delta.freed_count == 77);
  child_assert((void *)made == &made && (void *)snapshot == &snapshot && handle.length == 77);

  /* Calls that need neither a device nor a lock succeed; destroying is allowed and frees nothing. */
  int answer = -1;
  child_assert_ok(weir_allocator_is_caching(allocator, &answer));
  child_assert_ok(weir_history_is_on(allocator, &answer));
  child_assert_ok(weir_allocator_owns(allocator, &answer, &answer));
  child_assert_ok(weir_allocator_settings(allocator, NULL, 0, &size));
  child_assert_ok(weir_allocator_backend(allocator, NULL, 0, &size));
  child_assert_ok(weir_allocator_setting(allocator, "moving_pages", text, sizeof text, NULL));
  child_assert(!answer && !strcmp(text, "False"));
  weir_allocator_destroy(allocator);
  weir_host_allocator_destroy(host);
}

/* A new allocator with its own driver works in the child, and is refused in a child of that child. */
static void use_a_new_one(void) {
  weir_driver *driver;
  weir_allocator *mine;
  void *pointer;
  child_assert(weir_driver_open("soft", &driver) == WEIR_OK && driver->Init(driver, 0) == WEIR_CU_SUCCESS);
  child_assert(weir_allocator_create(driver, NULL, &mine) == WEIR_OK);
  child_assert(weir_allocator_alloc(mine, 0, 4096, NULL, &pointer) == WEIR_OK);
  pid_t child = fork();
  child_assert(child >= 0);
  if (child == 0) {
    assert_bad_fork(weir_allocator_free(mine, pointer));
    assert_bad_fork(weir_allocator_alloc(allocator, 0, 4096, NULL, &pointer));
    _exit(0);
  }
  int status;
  child_assert(waitpid(child, &status, 0) == child && status == 0);
  child_assert(weir_allocator_free(mine, pointer) == WEIR_OK);
  weir_allocator_destroy(mine);
  weir_driver_close(driver);
}

static void open_all(const char *conf, bool recorded) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, conf);
  assert_ok(weir_host_allocator_create(d, NULL, &host));
  for (int i = 0; i < 1000; i++) { /* the lock becomes biased, so that the fast paths are taken */
    assert_ok(weir_host_alloc(host, 4096, &pinned));
    assert_ok(weir_host_free(host, pinned));
  }
  assert_ok(weir_host_alloc(host, 1000, &pinned));
  if (recorded)
    assert_ok(weir_history_record(allocator, NULL));
  assert_ok(weir_pool_create(allocator, 0, some_pool, NULL));
  memory = get(4096, NULL);
  put(get(4096, NULL));
}

static void close_all(void) {
  put(memory);
  put(get(4096, NULL));
  assert_ok(weir_pool_release(allocator, 0, some_pool));
  assert_ok(weir_host_free(host, pinned));
  weir_host_allocator_destroy(host);
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(every_call_of_a_child_is_refused) {
  static const char *const confs[] = {"", "expandable_segments:True", "backend:cudaMallocAsync",
                                      "garbage_collection_threshold:0.5"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    for (int recorded = 0; recorded < 2; recorded++) {
      open_all(confs[i], recorded);
      checkpoint = NULL;
      if (strcmp(confs[i], "backend:cudaMallocAsync") != 0)
        assert_ok(weir_pool_checkpoint(allocator, 0, some_pool, &checkpoint));
      in_child(call_everything);
      in_child(use_a_new_one);
      weir_checkpoint_destroy(checkpoint);
      close_all();
    }
  }
}

TEST(without_the_cache) {
  open_all("", false);
  put(memory);
  assert_ok(weir_allocator_set_caching(allocator, 0));
  memory = get(4096, NULL);
  checkpoint = NULL;
  in_child(call_everything);
  close_all();
}

/* ---- Other threads ---- */

static atomic_bool ends;

static void *churn(void *stream) {
  void *held[16] = {0};
  for (unsigned i = 0; !atomic_load(&ends); i++) {
    void **at = &held[i % 16];
    if (*at)
      weir_allocator_free(allocator, *at);
    if (weir_allocator_alloc(allocator, 0, 512u << i % 13, i % 2 ? NULL : stream, at))
      *at = NULL;
    if (i % 64 == 0)
      weir_allocator_empty_cache(allocator);
  }
  for (int i = 0; i < 16; i++)
    weir_allocator_free(allocator, held[i]);
  return NULL;
}

/* The child does not wait for locks held by threads that do not exist in it. */
static void refused_at_once(void) {
  void *pointer = NULL;
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_bad_fork(weir_allocator_alloc(allocator, 0, 512, NULL, &pointer));
  assert_bad_fork(weir_allocator_free(allocator, memory));
  assert_bad_fork(weir_allocator_get_stats(allocator, 0, &stats));
  assert_bad_fork(weir_allocator_empty_cache(allocator));
  weir_allocator_destroy(allocator);
}

TEST(fork_while_threads_allocate) {
  enum { THREADS = 3, FORKS = 60 };
  for (int recorded = 0; recorded < 2; recorded++) {
    alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "");
    if (recorded)
      assert_ok(weir_history_record(allocator, NULL));
    memory = get(4096, NULL);
    pthread_t threads[THREADS];
    atomic_store(&ends, false);
    for (int i = 0; i < THREADS; i++)
      assert_int_equal(pthread_create(&threads[i], NULL, churn, work_stream()), 0);
    for (int i = 0; i < FORKS; i++)
      in_child(refused_at_once);
    atomic_store(&ends, true);
    for (int i = 0; i < THREADS; i++)
      pthread_join(threads[i], NULL);
    put(memory);
    alloc_close();
  }
}

static void *update_maps(void *map) {
  while (!atomic_load(&ends)) { /* holds the lock of all maps nearly all the time */
    weir__page_map_update(map, 0, 64 * GIB, (struct weir__arena *)map, true);
    weir__page_map_update(map, 0, 64 * GIB, (struct weir__arena *)map, false);
  }
  return NULL;
}

/* An allocator of the child's own maps addresses too. */
TEST(fork_while_a_thread_grows) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "");
  weir__page_map *map = weir__page_map_new();
  pthread_t thread;
  atomic_store(&ends, false);
  assert_non_null(map);
  assert_int_equal(pthread_create(&thread, NULL, update_maps, map), 0);
  for (int i = 0; i < 10; i++)
    in_child(use_a_new_one);
  atomic_store(&ends, true);
  pthread_join(thread, NULL);
  weir__page_map_delete(map);
  alloc_close();
}

/* ---- In a callback ---- */

static pid_t child_of_callback;
static weir_status status_in_child;

static int fork_once(void *context, int device) {
  (void)device;
  bool *has_forked = context;
  if (*has_forked)
    return 0;
  *has_forked = true;
  child_of_callback = fork();
  if (child_of_callback == 0) {
    alarm(10);
    void *pointer;
    status_in_child = weir_allocator_alloc(allocator, 0, 512, NULL, &pointer);
  }
  return 0;
}

/* The child returns through the call that the parent is in. The call may fail in any way but must return. */
TEST(fork_within_a_callback) {
  alloc_open_on(WEIR_SOFT_STEPPED, 1, GIB, "");
  bool has_forked = false;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = fork_once, .context = &has_forked)));
  void *pointer = NULL;
  weir_status status = weir_allocator_alloc(allocator, 0, 4096, NULL, &pointer);
  if (child_of_callback == 0)
    _exit(status_in_child == WEIR_ERROR_BAD_FORK ? 0 : 1);
  assert_int_equal(child_outcome(child_of_callback), 0);
  assert_ok(status);
  put(pointer);
  alloc_close();
}

/*
 * Ranges, marks and the memory of an allocator, for a tool (fake_nvtx.c, in a child process) and for recordings; and
 * the work of a profiled software device.
 */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/runtime.h"
#include "weir/adapter.h"
#include "weir/compute/nvtx.h"
#include "weir/history.h"
#include "weir/snapshot.h"

/* ---- Children with a tool ---- */

static char log_path[] = "/tmp/weir-nvtx-XXXXXX";

/* The path of a file beside this program: the build folder may have been moved. */
static const char *beside(const char *name, char path[PATH_MAX]) {
  ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = 0;
  char *end = strrchr(path, '/');
  snprintf(end ? end + 1 : path, PATH_MAX - (size_t)(end ? end + 1 - path : 0), "%s", name);
  return path;
}

/* Waits for a child, and returns what the tool wrote, to be freed. */
static char *read_log(pid_t child) {
  int result = -1;
  assert_int_equal(waitpid(child, &result, 0), child);
  assert_true(WIFEXITED(result));
  assert_int_equal(WEXITSTATUS(result), 0);
  char *text = calloc(1, 65536);
  FILE *file = fopen(log_path, "r");
  if (file) {
    text[fread(text, 1, 65535, file)] = 0;
    fclose(file);
  }
  return text;
}

/* Runs this program with an argument under the tool. */
static char *run_under_tool(const char *what, const char *mode) {
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    char path[PATH_MAX];
    setenv("NVTX_INJECTION64_PATH", beside(WEIR_TEST_NVTX, path), 1);
    setenv("WEIR_FAKE_NVTX_LOG", log_path, 1);
    setenv("WEIR_FAKE_NVTX", mode, 1);
    unlink(log_path);
    execl("/proc/self/exe", "test_nvtx", what, (char *)NULL);
    _exit(99);
  }
  return read_log(child);
}

/* The program that compute-sanitizer checks on a GPU (memcheck.sh) tells the tool what it should. */
static char *run_overrun(const char *what) {
  fflush(NULL);
  pid_t child = fork();
  if (!child) {
    char path[PATH_MAX];
    setenv("NVTX_INJECTION64_PATH", beside(WEIR_TEST_NVTX, path), 1);
    setenv("WEIR_FAKE_NVTX_LOG", log_path, 1);
    setenv("WEIR_DRIVER", "soft", 1);
    execl(beside(WEIR_TEST_OVERRUN, path), "overrun", what, (char *)NULL);
    _exit(99);
  }
  return read_log(child);
}

#define CHILD_CHECK(condition)                                                                                         \
  do {                                                                                                                 \
    if (!(condition)) {                                                                                                \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, weir_last_error());                           \
      return 1;                                                                                                        \
    }                                                                                                                  \
  } while (0)

static int child_ranges(void) {
  CHILD_CHECK(weir_nvtx_is_listening());
  CHILD_CHECK(weir_nvtx_range_push("outer") == 0);
  CHILD_CHECK(weir_nvtx_range_push("inner") == 1);
  weir_nvtx_mark("here");
  CHILD_CHECK(weir_nvtx_range_pop() == 1);
  CHILD_CHECK(weir_nvtx_range_pop() == 0);
  uint64_t range = weir_nvtx_range_start("across");
  CHILD_CHECK(range == 101);
  weir_nvtx_range_end(range);
  CHILD_CHECK(weir_nvtx_range_push(NULL) == 0 && weir_nvtx_range_pop() == 0);
  weir_stream stream;
  weir_nvtx_device_range *on_stream;
  CHILD_CHECK(!weir_stream_default(0, &stream));
  CHILD_CHECK(!weir_nvtx_device_range_start("stream", stream, &on_stream));
  CHILD_CHECK(!weir_nvtx_device_range_end(on_stream, stream));
  CHILD_CHECK(!weir_stream_synchronize(stream));
  return 0;
}

static int child_recorded(void) {
  weir_allocator *allocator;
  CHILD_CHECK(!weir_default_allocator(&allocator));
  CHILD_CHECK(!weir_history_record(allocator, NULL));
  CHILD_CHECK(weir_nvtx_range_push("outer") == 0);
  uint64_t range = weir_nvtx_range_start("across");
  CHILD_CHECK(range == 101);
  weir_nvtx_range_end(range);
  CHILD_CHECK(weir_nvtx_range_pop() == 0);
  weir_history_info info;
  weir_history_info_init(&info);
  CHILD_CHECK(!weir_history_get_info(allocator, 0, &info));
  CHILD_CHECK(info.annotations == 4);
  return 0;
}

static int child_memory(void) {
  weir_allocator *allocator;
  void *before, *a, *b, *large;
  int listens = 0;
  CHILD_CHECK(!weir_default_allocator(&allocator));
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 1000, NULL, &before));
  CHILD_CHECK(!weir_nvtx_report_memory(allocator, &listens) && listens == 1);
  CHILD_CHECK(!weir_nvtx_report_memory(allocator, NULL)); /* again: no effect */
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 100, NULL, &a));
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 3000, NULL, &b));
  CHILD_CHECK(!weir_allocator_free(allocator, a));
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 8, NULL, &a));
  CHILD_CHECK(!weir_allocator_free(allocator, a));
  CHILD_CHECK(!weir_allocator_free(allocator, b));
  CHILD_CHECK(!weir_allocator_free(allocator, before));
  CHILD_CHECK(!weir_allocator_empty_cache(allocator));
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 30 << 20, NULL, &large));
  CHILD_CHECK(!weir_allocator_free(allocator, large));
  CHILD_CHECK(!weir_allocator_empty_cache(allocator));
  return 0;
}

static int child_forget(void) {
  weir_allocator *allocator;
  void *memory;
  CHILD_CHECK(!weir_default_allocator(&allocator));
  CHILD_CHECK(!weir_nvtx_forget_memory(allocator)); /* not reported yet */
  CHILD_CHECK(!weir_nvtx_report_memory(allocator, NULL));
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 100, NULL, &memory));
  CHILD_CHECK(!weir_nvtx_forget_memory(allocator));
  CHILD_CHECK(!weir_nvtx_forget_memory(allocator));
  CHILD_CHECK(!weir_allocator_free(allocator, memory));
  CHILD_CHECK(!weir_allocator_alloc(allocator, 0, 200, NULL, &memory));
  CHILD_CHECK(!weir_nvtx_report_memory(allocator, NULL));
  CHILD_CHECK(!weir_allocator_free(allocator, memory));
  CHILD_CHECK(weir_nvtx_forget_memory(NULL) == WEIR_ERROR_INVALID_ARGUMENT);
  return 0;
}

/* A tool that does not want memory, or does not start. */
static int child_no_memory(void) {
  weir_allocator *allocator;
  int listens = 7;
  CHILD_CHECK(!weir_default_allocator(&allocator));
  CHILD_CHECK(!weir_nvtx_report_memory(allocator, &listens) && listens == 0);
  CHILD_CHECK(weir_nvtx_is_listening() == (strcmp(getenv("WEIR_FAKE_NVTX"), "refuse") != 0));
  CHILD_CHECK(weir_nvtx_report_memory(NULL, NULL) == WEIR_ERROR_INVALID_ARGUMENT);
  return 0;
}

static void ignore(void *context, const weir_trace_entry *entry) {
  (void)context;
  (void)entry;
}

static int child_witness(void) {
  weir_allocator *allocator;
  int listens = 7;
  CHILD_CHECK(!weir_default_allocator(&allocator));
  CHILD_CHECK(!weir_allocator_set_witness(allocator, ignore, NULL, WEIR_WITNESS_ALL));
  CHILD_CHECK(weir_nvtx_report_memory(allocator, &listens) == WEIR_ERROR_BAD_STATE && listens == 7);
  CHILD_CHECK(!strncmp(weir_last_error(), "weir_nvtx_report_memory: ", 25));
  return 0;
}

static int run_child(const char *what) {
  static const struct {
    const char *name;
    int (*run)(void);
  } all[] = {{"ranges", child_ranges}, {"recorded", child_recorded},   {"memory", child_memory},
             {"forget", child_forget}, {"no_memory", child_no_memory}, {"witness", child_witness}};
  choose_driver_by_environment();
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (!strcmp(all[i].name, what)) {
      int result = all[i].run();
      return weir_shutdown() || result;
    }
  return 98;
}

TEST_SETUP(tool, NULL, NULL) {
  char *text = run_under_tool("ranges", "all");
  assert_string_equal(text, "push outer\npush inner\nmark here\npop\npop\nstart across 101\nend 101\npush \npop\n"
                            "start stream 102\nend 102\n");
  free(text);
  text = run_under_tool("recorded", "all");
  assert_string_equal(text, "push outer\nstart across 101\nend 101\npop\n");
  free(text);
}

TEST_SETUP(tool_memory, NULL, NULL) {
  char *text = run_under_tool("memory", "all");
  assert_string_equal(text,
                      "initialize 1\ndomain weir\nheap 2097152\nregion 0 1000\nregion 1024 100\nregion 1536 3000\n"
                      "unregister 1024\nregion 1024 8\nunregister 1024\nunregister 1536\nunregister 0\n"
                      "heap 31457280\nregion 0 31457280\nunregister 0\n");
  free(text);
  text = run_under_tool("forget", "all");
  assert_string_equal(text, "initialize 1\ndomain weir\nheap 2097152\nregion 0 100\nno heap\nheap 2097152\n"
                            "region 0 200\nunregister 0\n");
  free(text);
}

TEST_SETUP(overrun, NULL, NULL) {
  static const char begin[] = "initialize 1\ndomain weir\nheap 2097152\nregion 0 1000\nregion 1024 1000\n";
  static const struct {
    const char *what, *rest;
  } cases[] = {{"inside", ""},
               {"between", ""},
               {"beyond", ""},
               {"freed", "unregister 1024\n"},
               {"late", "unregister 1024\n"},
               {"reused", "unregister 1024\nregion 1024 1000\n"},
               {"again", "unregister 0\nunregister 1024\nheap 2097152\nregion 0 1000\nregion 1024 1000\n"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = run_overrun(cases[i].what);
    assert_memory_equal(text, begin, sizeof begin - 1);
    assert_string_equal(text + sizeof begin - 1, cases[i].rest);
    free(text);
  }
}

TEST_SETUP(other_tools, NULL, NULL) {
  free(run_under_tool("no_memory", "core"));
  free(run_under_tool("no_memory", "refuse"));
  setenv("WEIR_NVTX_MEMORY", "0", 1);
  free(run_under_tool("no_memory", "all"));
  unsetenv("WEIR_NVTX_MEMORY");
  free(run_under_tool("witness", "all"));
}

/* ---- Recordings ---- */

static weir_allocator *recording(void) {
  weir_allocator *allocator;
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_NONE;
  assert_ok(weir_default_allocator(&allocator));
  assert_ok(weir_history_record(allocator, &options));
  return allocator;
}

static weir_snapshot *snapshot_of(weir_allocator *allocator) {
  weir_snapshot *snapshot;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  return snapshot;
}

static const char *value_of(const weir_snapshot *snapshot, size_t index, const char *wanted) {
  weir_snapshot_annotation annotation;
  weir_snapshot_annotation_init(&annotation);
  assert_ok(weir_snapshot_annotation_at(snapshot, index, &annotation));
  for (size_t i = 0; i < annotation.pair_count; i++) {
    const char *key, *value;
    assert_ok(weir_snapshot_annotation_pair(snapshot, index, i, &key, &value));
    if (!strcmp(key, wanted))
      return value;
  }
  return NULL;
}

/* "name stage" of each annotation; those of work are "name WORK". */
static void assert_annotations(const weir_snapshot *snapshot, const char *expected) {
  char text[4096] = "";
  size_t count;
  assert_ok(weir_snapshot_annotations(snapshot, &count));
  for (size_t i = 0; i < count; i++)
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s %s, ", value_of(snapshot, i, "name"),
             value_of(snapshot, i, "stage"));
  assert_string_equal(text, expected);
}

static void allocate(weir_allocator *allocator) {
  void *memory;
  assert_ok(weir_allocator_alloc(allocator, 0, 512, NULL, &memory));
  assert_ok(weir_allocator_free(allocator, memory));
}

TEST(nothing_listens) {
  assert_false(weir_nvtx_is_listening());
  assert_int_equal(weir_nvtx_range_push("a"), WEIR_NVTX_NOT_TRACKED);
  assert_int_equal(weir_nvtx_range_pop(), WEIR_NVTX_NOT_TRACKED);
  assert_int_equal(weir_nvtx_range_start("a"), 0);
  weir_nvtx_range_end(0);
  weir_nvtx_range_end(12);
  weir_nvtx_mark("a");
  assert_error(INVALID_ARGUMENT, weir_nvtx_device_range_start(NULL, default_stream(0), NULL));
}

/* The phase and the action of the entries of device 0. */
static void assert_phases(const weir_snapshot *snapshot, const char *expected) {
  char text[4096] = "";
  uint64_t count, dropped;
  assert_ok(weir_snapshot_entries(snapshot, 0, &count, &dropped));
  for (uint64_t i = 0; i < count; i++) {
    weir_snapshot_entry entry;
    weir_snapshot_entry_init(&entry);
    assert_ok(weir_snapshot_entry_at(snapshot, 0, i, &entry));
    if (entry.action == WEIR_TRACE_ALLOC)
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s, ", *entry.phase ? entry.phase : "-");
    if (entry.action == WEIR_TRACE_USER_DEFINED)
      snprintf(text + strlen(text), sizeof text - strlen(text), "mark %s, ", entry.user_metadata);
  }
  assert_string_equal(text, expected);
}

static void *push_and_allocate(void *data) {
  assert_int_equal(weir_nvtx_range_push("other thread"), 0);
  allocate(data);
  return NULL; /* the range is left open */
}

TEST(phases) {
  weir_allocator *allocator = recording();
  assert_int_equal(weir_nvtx_range_push("outer"), 0);
  allocate(allocator);
  assert_int_equal(weir_nvtx_range_push("inner"), 1);
  allocate(allocator);
  weir_nvtx_mark("moment");
  on_thread(push_and_allocate, allocator);
  assert_int_equal(weir_nvtx_range_pop(), 1);
  allocate(allocator);
  assert_int_equal(weir_nvtx_range_pop(), 0);
  assert_int_equal(weir_nvtx_range_pop(), WEIR_NVTX_NOT_TRACKED);
  allocate(allocator);
  weir_snapshot *snapshot = snapshot_of(allocator);
  assert_phases(snapshot, "outer, inner, mark moment, other thread, outer, -, ");
  assert_annotations(snapshot, "outer START, inner START, other thread START, inner END, outer END, ");
  assert_string_equal(value_of(snapshot, 0, "thread"), value_of(snapshot, 4, "thread"));
  assert_string_not_equal(value_of(snapshot, 0, "thread"), value_of(snapshot, 2, "thread"));
  weir_snapshot_destroy(snapshot);
}

/* A range that is open while recording ends or begins. */
TEST(changes_in_a_range) {
  weir_history_options off;
  weir_history_options_init(&off);
  off.mode = WEIR_HISTORY_OFF;
  weir_allocator *allocator = recording();
  assert_int_equal(weir_nvtx_range_push("recorded"), 0);
  uint64_t across = weir_nvtx_range_start("across");
  assert_int_not_equal(across, 0);
  assert_ok(weir_history_record(allocator, &off));
  assert_int_equal(weir_nvtx_range_push("not recorded"), 1); /* kept, so that each pop ends its own range */
  recording();
  assert_int_equal(weir_nvtx_range_pop(), 1);
  assert_int_equal(weir_nvtx_range_pop(), 0);
  weir_nvtx_range_end(across);
  weir_nvtx_range_end(across);
  allocate(allocator);
  weir_snapshot *snapshot = snapshot_of(allocator);
  assert_phases(snapshot, "-, ");
  assert_annotations(snapshot, "recorded END, across END, ");
  weir_snapshot_destroy(snapshot);
  assert_ok(weir_history_record(allocator, &off));
  assert_false(weir_history_is_on_anywhere());
}

/* Ranges, marks and profiled work of several threads, while recording is turned on and off. */
enum { THREADS = 4, ROUNDS = 200 };

static void *use_ranges(void *data) {
  weir_allocator *allocator = data;
  weir_stream stream = default_stream(0);
  for (int i = 0; i < ROUNDS; i++) {
    weir_nvtx_range_push("outer");
    weir_nvtx_range_push("inner");
    uint64_t range = weir_nvtx_range_start("across");
    allocate(allocator);
    assert_ok(weir_stream_spin(stream, 1));
    weir_nvtx_mark("mark");
    weir_nvtx_range_end(range);
    weir_nvtx_range_pop();
    weir_nvtx_range_pop();
  }
  assert_int_equal(weir_nvtx_range_pop(), WEIR_NVTX_NOT_TRACKED);
  return NULL;
}

TEST(threads) {
  pthread_t threads[THREADS];
  weir_allocator *allocator = recording();
  weir_history_options off;
  weir_history_options_init(&off);
  off.mode = WEIR_HISTORY_OFF;
  assert_ok(weir_profiler_start());
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, use_ranges, allocator), 0);
  for (int i = 0; i < 20; i++) {
    weir_snapshot_destroy(snapshot_of(allocator));
    assert_ok(weir_history_record(allocator, &off));
    recording();
  }
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  assert_ok(weir_stream_synchronize(default_stream(0)));
  assert_ok(weir_profiler_stop());
}

TEST(device_range) {
  weir_allocator *allocator = recording();
  weir_stream stream = new_stream(0);
  weir_nvtx_device_range *range;
  struct held *held = hold(stream);
  assert_ok(weir_nvtx_device_range_start("on the stream", stream, &range));
  weir_snapshot *snapshot = snapshot_of(allocator);
  assert_annotations(snapshot, "");
  weir_snapshot_destroy(snapshot);
  unblock(held);
  assert_ok(weir_nvtx_device_range_end(range, stream));
  assert_ok(weir_stream_synchronize(stream));
  snapshot = snapshot_of(allocator);
  assert_annotations(snapshot, "on the stream START, on the stream END, ");
  assert_null(value_of(snapshot, 0, "thread"));
  weir_snapshot_destroy(snapshot);
}

/* ---- Work ---- */

static unsigned long long number_of(const weir_snapshot *snapshot, size_t index, const char *key) {
  const char *text = value_of(snapshot, index, key);
  assert_non_null(text);
  return strtoull(text, NULL, 10);
}

TEST(work) {
  NEED_SOFT("a GPU reports its work to its own tools");
  weir_allocator *allocator = recording();
  weir_stream stream = new_stream(0);
  char *pinned = pinned_memory(4096);
  void *memory;
  assert_ok(weir_allocator_alloc(allocator, 0, 4096, raw_of(stream), &memory));
  load_add(0);
  assert_ok(weir_fill_async(memory, 1, 4096, stream)); /* not profiled */
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_profiler_start());
  assert_ok(weir_fill_async(memory, 0, 4096, stream));
  assert_ok(weir_copy_async(memory, pinned, 1024, stream));
  assert_ok(weir_copy_async(pinned, memory, 512, stream));
  assert_int_equal(launch_add(memory, memory, 1, 64, stream), 0);
  assert_ok(weir_stream_spin(stream, cycles_of(1)));
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_profiler_stop());
  assert_ok(weir_fill_async(memory, 2, 4096, stream));
  assert_ok(weir_stream_synchronize(stream));
  weir_snapshot *snapshot = snapshot_of(allocator);
  assert_annotations(snapshot, "memset WORK, memcpy HtoD WORK, memcpy DtoH WORK, weir_test_add WORK, weir_spin WORK, ");
  static const char *const kinds[] = {"fill", "copy", "copy", "kernel", "kernel"};
  static const unsigned long long bytes[] = {4096, 1024, 512, 0, 0};
  unsigned long long after = 0;
  for (size_t i = 0; i < 5; i++) {
    weir_snapshot_annotation annotation;
    weir_snapshot_annotation_init(&annotation);
    assert_ok(weir_snapshot_annotation_at(snapshot, i, &annotation));
    assert_string_equal(value_of(snapshot, i, "kind"), kinds[i]);
    assert_int_equal(number_of(snapshot, i, "bytes"), bytes[i]);
    assert_int_equal(number_of(snapshot, i, "stream"), (uintptr_t)raw_of(stream));
    unsigned long long start = number_of(snapshot, i, "start_ns"), duration = number_of(snapshot, i, "duration_ns");
    assert_true(start >= after); /* in one stream, one item after the other */
    after = start + duration;
    if (is_stepped())
      assert_int_equal(duration, i == 4 ? 1001000 : i < 3 ? 1000 + bytes[i] / 100 : 1000);
    else if (i == 4)
      assert_true(duration >= 1000000);
    if (!is_stepped()) { /* the same clock as that of the entries */
      long long late = annotation.time_us - (long long)(after / 1000);
      assert_true(late >= -1000 && late < 60000000);
    }
  }
  weir_snapshot_destroy(snapshot);
  assert_ok(weir_allocator_free(allocator, memory));
  free_pinned_memory(pinned);
}

static int make_log(void **state) {
  (void)state;
  return close(mkstemp(log_path));
}

static int remove_log(void **state) {
  (void)state;
  return unlink(log_path);
}

static int role(int argc, char **argv) {
  if (argc > 1)
    return run_child(argv[1]);
  return RUN_TESTS;
}

FIXTURE(.role = role, .prepare = runtime_need_device, .begin = make_log, .end = remove_log, .setup = runtime_setup,
        .teardown = runtime_teardown)

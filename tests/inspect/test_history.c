/*
 * What is recorded: which events, in which order, with which stacks, and what is dropped.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "record/recorder.h"
#include "record/stacks.h"
#include "record/texts.h"
#include "support/alloc.h"
#include "weir/history.h"
#include "weir/snapshot.h"

static void record(weir_history_mode mode, weir_history_context context, size_t entries) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.mode = mode;
  options.context = context;
  options.max_entries = entries;
  CHECK(weir_history_record(allocator, &options));
}

static void record_off(void) { record(WEIR_HISTORY_OFF, WEIR_CONTEXT_NONE, 1); }

/* ---- Reading ---- */

static weir__entry *events;
static size_t event_count;
static uint64_t dropped;

static void read_events(int device) {
  free(events);
  events = NULL;
  assert_true(weir__recorder_read(atomic_load(&allocator->history), device, &events, &event_count, &dropped));
  for (size_t i = 1; i < event_count; i++)
    assert_true(events[i - 1].time <= events[i].time);
}

static void expect(size_t at, weir_trace_action action, const void *address, uint64_t bytes, weir_cu_stream stream) {
  assert_true(at < event_count);
  assert_string_equal(weir_trace_action_name(events[at].action), weir_trace_action_name(action));
  assert_int_equal(events[at].address, (uint64_t)address);
  assert_int_equal(events[at].bytes, bytes);
  assert_int_equal(events[at].stream, (uint64_t)(uintptr_t)stream);
}

/* ---- Stacks that tests can tell apart: the hook says what the test has set ---- */

static const char *function_here;
static int hook_calls;

static size_t tell_function(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  hook_calls++;
  if (!function_here || !room)
    return 0;
  frames[0] = (weir_stack_frame){weir_history_text("program.py"), weir_history_text(function_here), 7};
  return 1;
}

static void record_named(weir_history_mode mode, weir_history_context context) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.mode = mode;
  options.context = context;
  options.stacks = WEIR_STACKS_LANGUAGE;
  weir_set_stack_hook(tell_function, NULL);
  CHECK(weir_history_record(allocator, &options));
}

static const char *name_of(uint32_t stack) {
  weir__frame frame = {0};
  size_t count = weir__stack_frames(stack, &frame, 1);
  assert_true(count <= 1);
  if (count) {
    assert_string_equal(weir__text_of_number(frame.file), "program.py");
    assert_int_equal(frame.line, 7);
    assert_int_equal(frame.address, 0);
  }
  return weir__text_of_number(frame.function);
}

/* The stacks' names of all events of an action: "a b - c". */
static const char *names_of(weir_trace_action action) {
  static char text[512];
  text[0] = 0;
  for (size_t i = 0; i < event_count; i++)
    if (events[i].action == action) {
      const char *name = name_of(events[i].stack);
      snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", *text ? " " : "", *name ? name : "-");
    }
  return text;
}

static void *get_in(const char *function, size_t bytes, weir_cu_stream stream) {
  function_here = function;
  void *p = get(bytes, stream);
  function_here = NULL;
  return p;
}

static void put_in(const char *function, void *p) {
  function_here = function;
  put(p);
  function_here = NULL;
}

static void empty_in(const char *function) {
  function_here = function;
  empty_cache();
  function_here = NULL;
}

/* The stack of a block in use. */
static const char *block_name(const void *p) {
  weir__arena *arena = segment_at(p)->arena;
  return name_of(weir__writer_stack(atomic_load(&allocator->history), arena->writer, (uint64_t)p));
}

static int teardown(void **state) {
  weir_set_stack_hook(NULL, NULL);
  weir_history_leave_phase(0);
  weir_history_leave_compile(0);
  free(events);
  events = NULL;
  return alloc_teardown(state);
}

/* ---- Events ---- */

static void test_all_in_order(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  weir_cu_stream stream = work_stream(), other = work_stream();
  void *p = get(1000, stream);
  also_used_by(p, other);
  put(p);
  soft_step_all();
  void *q = get(1000, stream), *r;
  put(q);
  empty_cache();
  assert_int_equal(try_get(2 * GIB - 100, stream, &r), WEIR_ERROR_OUT_OF_MEMORY);
  read_events(0);
  assert_int_equal(event_count, 9);
  expect(0, WEIR_TRACE_SEGMENT_ALLOC, p, 2 * MIB, stream);
  expect(1, WEIR_TRACE_ALLOC, p, 1000, stream);
  expect(2, WEIR_TRACE_FREE_REQUESTED, p, 1000, stream);
  expect(3, WEIR_TRACE_FREE_COMPLETED, p, 1000, stream);
  expect(4, WEIR_TRACE_ALLOC, p, 1000, stream);
  expect(5, WEIR_TRACE_FREE_REQUESTED, p, 1000, stream);
  expect(6, WEIR_TRACE_FREE_COMPLETED, p, 1000, stream);
  expect(7, WEIR_TRACE_SEGMENT_FREE, p, 2 * MIB, stream);
  expect(8, WEIR_TRACE_OOM, (void *)(uintptr_t)GIB, 2 * GIB, stream);
  assert_int_equal(dropped, 0);
  for (size_t i = 0; i < event_count; i++) {
    assert_int_equal(events[i].stack, 0);
    assert_int_equal(events[i].pool, 0);
    assert_int_equal(events[i].context, 0);
    assert_int_equal(events[i].device, 0);
  }
  alloc_close();
}

static void test_pages_and_pools(void **state) {
  (void)state;
  alloc_open("expandable_segments:True", GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  const weir_pool_id id = {7, 9};
  CHECK(weir_pool_begin(allocator, 0, id, NULL, NULL));
  char *p = get(30 * MIB, NULL);
  CHECK(weir_pool_end(allocator, 0, id));
  put(p);
  CHECK(weir_pool_release(allocator, 0, id));
  empty_cache();
  read_events(0); /* also what the pool's arenas wrote, which are gone */
  assert_int_equal(event_count, 5);
  expect(0, WEIR_TRACE_SEGMENT_MAP, p, 40 * MIB, NULL);
  expect(1, WEIR_TRACE_ALLOC, p, 30 * MIB, NULL);
  expect(2, WEIR_TRACE_FREE_REQUESTED, p, 30 * MIB, NULL);
  expect(3, WEIR_TRACE_FREE_COMPLETED, p, 30 * MIB, NULL);
  expect(4, WEIR_TRACE_SEGMENT_UNMAP, p, 40 * MIB, NULL);
  for (size_t i = 0; i < event_count; i++) {
    weir_pool_id found = weir__pool_of_number(events[i].pool);
    assert_int_equal(found.first, 7);
    assert_int_equal(found.second, 9);
  }
  alloc_close();
}

static void test_arenas_are_merged_by_time(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 10000);
  weir_cu_stream streams[3] = {work_stream(), work_stream(), work_stream()};
  enum { ROUNDS = 150 }; /* more than a chunk of each */
  for (int i = 0; i < ROUNDS; i++)
    for (int k = 0; k < 3; k++)
      put(get(512, streams[k]));
  read_events(0);
  assert_int_equal(event_count, 3 + 3 * 3 * ROUNDS);
  size_t at = 0;
  for (int i = 0; i < ROUNDS; i++)
    for (int k = 0; k < 3; k++) {
      if (!i)
        assert_int_equal(events[at++].action, WEIR_TRACE_SEGMENT_ALLOC);
      for (int e = 0; e < 3; e++, at++) {
        assert_int_equal(events[at].action, WEIR_TRACE_ALLOC + e);
        assert_int_equal(events[at].stream, (uint64_t)(uintptr_t)streams[k]);
      }
    }
  alloc_close();
}

static void test_devices_have_their_own(void **state) {
  (void)state;
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 2);
  void *p = get_on(0, 512, NULL), *q = get_on(1, 512, NULL);
  CHECK(weir_history_set_metadata(allocator, 1, "second"));
  put(p);
  put(q);
  for (int device = 0; device < 2; device++) {
    read_events(device);
    assert_int_equal(event_count, 2);
    assert_int_equal(dropped, 2);
    expect(1, WEIR_TRACE_FREE_COMPLETED, device ? q : p, 512, NULL);
    assert_int_equal(events[1].device, device);
    assert_string_equal(weir__text_of_number(weir__context_of_number(events[1].context).metadata),
                        device ? "second" : "");
  }
  alloc_close();
}

static void test_times_are_unix_times(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  struct timespec before, after;
  clock_gettime(CLOCK_REALTIME, &before);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  put(get(512, NULL));
  clock_gettime(CLOCK_REALTIME, &after);
  read_events(0);
  weir__clock_line line = weir__clock_line_now();
  int64_t from = (int64_t)before.tv_sec * 1000000 + before.tv_nsec / 1000;
  int64_t to = (int64_t)after.tv_sec * 1000000 + after.tv_nsec / 1000;
  for (size_t i = 0; i < event_count; i++) {
    int64_t us = weir__clock_unix_us(&line, events[i].time);
    assert_true(us >= from - 1000 && us <= to + 1000); /* a millisecond: the clock may be set meanwhile */
  }
  alloc_close();
}

/* ---- Limits ---- */

static weir_cu_stream work_stream_of(int i) {
  static weir_cu_stream streams[3];
  if (i < 3)
    streams[i] = work_stream();
  return streams[i % 3];
}

static void test_ring_of_one(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1);
  for (int i = 0; i < 500; i++)
    put(get(512, NULL));
  void *p = get(1024, NULL);
  read_events(0);
  assert_int_equal(event_count, 1);
  expect(0, WEIR_TRACE_ALLOC, p, 1024, NULL);
  assert_int_equal(dropped, 1 + 3 * 500);
  weir_history_info info = {.size = sizeof info};
  CHECK(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.kept, 1);
  assert_int_equal(info.dropped, 1501);
  assert_int_equal(info.max_entries, 1);
  assert_int_equal(info.mode, WEIR_HISTORY_ALL);
  put(p);
  alloc_close();
}

/* A snapshot reads the ring first and is marked afterwards, so a full ring has all of its entries in the snapshot; the
 * mark takes a place in the next one. */
static void test_snapshots_of_a_full_ring(void **state) {
  (void)state;
  static const size_t limits[] = {1, 2, 5, 63, 64, 65, 200};
  for (size_t l = 0; l < WEIR_COUNT_OF(limits); l++) {
    alloc_open(NULL, GIB);
    record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, limits[l]);
    for (int i = 0; i < 300; i++)
      put(get(512, work_stream_of(i)));
    void *p = get(1024, NULL);
    for (int round = 0; round < 3; round++) {
      weir_snapshot *snapshot;
      uint64_t count, missing;
      weir_snapshot_event last = {.size = sizeof last};
      CHECK(weir_snapshot_take(allocator, NULL, &snapshot));
      CHECK(weir_snapshot_events(snapshot, 0, &count, &missing));
      assert_int_equal(count, limits[l]);
      CHECK(weir_snapshot_event_at(snapshot, 0, count - 1, &last));
      assert_int_equal(last.action, round ? WEIR_TRACE_SNAPSHOT : WEIR_TRACE_ALLOC);
      if (!round)
        assert_int_equal(last.address, (uint64_t)p);
      weir_snapshot_destroy(snapshot);
    }
    read_events(0);
    assert_int_equal(event_count, limits[l]);
    put(p);
    alloc_close();
  }
}

/* Whatever the limit and however the arenas share the events, the newest are there and none is missing in between. */
static void test_newest_are_kept(void **state) {
  (void)state;
  static const size_t limits[] = {2, 63, 64, 65, 200, 1000};
  for (size_t l = 0; l < WEIR_COUNT_OF(limits); l++) {
    alloc_open(NULL, GIB);
    record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, limits[l]);
    weir_cu_stream streams[4] = {work_stream(), work_stream(), work_stream(), work_stream()};
    uint64_t total = 0;
    void *marked[400];
    for (int i = 0; i < 400; i++) {
      weir_cu_stream stream = streams[i % 7 ? 0 : 1 + i % 3];
      marked[i] = get(512 * (1 + (size_t)i), stream);
      total += 1;
    }
    for (int i = 0; i < 400; i++)
      put(marked[i]);
    total += 2 * 400;
    read_events(0);
    total += (uint64_t)segments();
    assert_int_equal(event_count, limits[l]);
    assert_int_equal(dropped, total - limits[l]);
    size_t at = event_count;
    for (int i = 399; i >= 0 && at >= 2; i--) {
      at -= 2;
      expect(at, WEIR_TRACE_FREE_REQUESTED, marked[i], 512 * (1 + (uint64_t)i), (weir_cu_stream)events[at].stream);
      expect(at + 1, WEIR_TRACE_FREE_COMPLETED, marked[i], 512 * (1 + (uint64_t)i), (weir_cu_stream)events[at].stream);
    }
    alloc_close();
  }
}

static void test_state_keeps_the_last_one(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_STATE, WEIR_CONTEXT_ALL);
  void *p = get_in("here", 311 * 411 * 4, NULL);
  read_events(0);
  assert_int_equal(event_count, 1);
  expect(0, WEIR_TRACE_ALLOC, p, 311 * 411 * 4, NULL);
  assert_string_equal(block_name(p), "here");
  put(p);
  alloc_close();
}

static void test_skip(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  unsigned bit = 0;
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_NONE;
  static const char *const skipped[] = {"alloc", "segment_alloc", "free_completed"};
  for (size_t i = 0; i < WEIR_COUNT_OF(skipped); i++) {
    CHECK(weir_history_action(skipped[i], &bit));
    options.skip |= bit;
  }
  assert_int_equal(weir_history_action("free", &bit), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "Unknown TraceEntry action: free"));
  CHECK(weir_history_record(allocator, &options));
  void *p = get(512, NULL);
  put(p);
  put(get(512, NULL));
  empty_cache();
  read_events(0);
  assert_int_equal(event_count, 3);
  expect(0, WEIR_TRACE_FREE_REQUESTED, p, 512, NULL);
  expect(1, WEIR_TRACE_FREE_REQUESTED, p, 512, NULL);
  expect(2, WEIR_TRACE_SEGMENT_FREE, p, 2 * MIB, NULL);
  assert_int_equal(dropped, 0);
  options.skip = 1u << WEIR_TRACE_ACTIONS;
  assert_int_equal(weir_history_record(allocator, &options), WEIR_ERROR_INVALID_ARGUMENT);
  alloc_close();
}

static void test_clear_and_off(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  void *p = get_in("before", 512, NULL);
  const char *const pairs[] = {"name", "x"};
  CHECK(weir_history_annotate(allocator, 0, pairs, 1));
  CHECK(weir_history_clear(allocator));
  read_events(0);
  assert_int_equal(event_count, 0);
  assert_int_equal(dropped, 0);
  assert_string_equal(block_name(p), "before"); /* it is still in use, and known */
  void *q = get_in("after", 512, NULL);
  read_events(0);
  assert_int_equal(event_count, 1);
  expect(0, WEIR_TRACE_ALLOC, q, 512, NULL);
  weir_history_info info = {.size = sizeof info};
  CHECK(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.annotations, 0);

  record_off();
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  put(q);
  read_events(0);
  assert_int_equal(event_count, 0);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  put_in("now", p); /* what was known of it is of another recording */
  read_events(0);
  assert_int_equal(event_count, 2);
  assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), "now");
  alloc_close();
}

/* ---- Which stack is kept in which mode ---- */

/* PyTorch's test_memory_plots_free_stack. */
static void test_stacks_of_frees(void **state) {
  (void)state;
  static const struct {
    weir_history_context context;
    const char *alloc, *requested, *completed, *block;
  } cases[] = {
      {WEIR_CONTEXT_NONE, "-", "-", "-", ""},
      {WEIR_CONTEXT_STATE, "-", "-", "-", "thealloc"},
      {WEIR_CONTEXT_ALLOC, "thealloc", "thealloc", "thealloc", "thealloc"},
      {WEIR_CONTEXT_ALL, "thealloc", "thefree", "thefree", "thealloc"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    alloc_open(NULL, GIB);
    record_named(WEIR_HISTORY_ALL, cases[i].context);
    void *p = get_in("thealloc", 12, NULL);
    assert_string_equal(block_name(p), cases[i].block);
    put_in("thefree", p);
    read_events(0);
    assert_string_equal(names_of(WEIR_TRACE_SEGMENT_ALLOC), cases[i].alloc);
    assert_string_equal(names_of(WEIR_TRACE_ALLOC), cases[i].alloc);
    assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), cases[i].requested);
    assert_string_equal(names_of(WEIR_TRACE_FREE_COMPLETED), cases[i].completed);
    alloc_close();
  }
}

/* Restoring a checkpoint is many calls in one: what it makes again has its stack, what it frees as any free has. */
static void test_stacks_of_a_checkpoint(void **state) {
  (void)state;
  const weir_pool_id id = {0, 3};
  static const struct {
    weir_history_context context;
    const char *alloc, *free, *block;
  } cases[] = {
      {WEIR_CONTEXT_NONE, "- -", "-", ""},
      {WEIR_CONTEXT_STATE, "- -", "-", "restoring"},
      {WEIR_CONTEXT_ALLOC, "thealloc restoring", "thealloc", "restoring"},
      {WEIR_CONTEXT_ALL, "thealloc restoring", "restoring", "restoring"},
  };
  for (size_t i = 0; i < WEIR_COUNT_OF(cases); i++) {
    alloc_open(NULL, GIB);
    record_named(WEIR_HISTORY_ALL, cases[i].context);
    CHECK(weir_pool_begin(allocator, 0, id, NULL, NULL));
    void *p = get_in("thealloc", 12 * MIB, NULL);
    CHECK(weir_pool_end(allocator, 0, id));
    weir_checkpoint *checkpoint = NULL;
    weir_checkpoint_delta delta;
    CHECK(weir_pool_checkpoint(allocator, 0, id, &checkpoint));
    function_here = "restoring";
    CHECK(weir_pool_restore(allocator, checkpoint, &delta));
    function_here = NULL;
    assert_string_equal(block_name(p), cases[i].block);
    read_events(0);
    assert_string_equal(names_of(WEIR_TRACE_ALLOC), cases[i].alloc);
    assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), cases[i].free);
    assert_string_equal(names_of(WEIR_TRACE_FREE_COMPLETED), cases[i].free);
    weir_checkpoint_delta_clear(&delta);
    weir_checkpoint_destroy(checkpoint);
    put(p);
    CHECK(weir_pool_release(allocator, 0, id));
    alloc_close();
  }
}

/* PyTorch's test_memory_plots_free_segment_stack. */
static void test_stacks_of_segments(void **state) {
  (void)state;
  static const char *const confs[] = {"", "expandable_segments:True"};
  static const char *const expected[] = {"-", "-", "thealloc", "empty"};
  for (size_t c = 0; c < WEIR_COUNT_OF(confs); c++)
    for (int context = WEIR_CONTEXT_NONE; context <= WEIR_CONTEXT_ALL; context++) {
      alloc_open(confs[c], GIB);
      record_named(WEIR_HISTORY_ALL, (weir_history_context)context);
      void *p = get_in("thealloc", 12, NULL);
      assert_string_equal(name_of(segment_at(p)->stack), context >= WEIR_CONTEXT_STATE ? "thealloc" : "");
      put_in("thefree", p);
      empty_in("empty");
      read_events(0);
      assert_string_equal(names_of(c ? WEIR_TRACE_SEGMENT_UNMAP : WEIR_TRACE_SEGMENT_FREE), expected[context]);
      alloc_close();
    }
}

/* PyTorch's test_memory_plots_history_context: the context changes on the way, and what there is stays. */
static void test_context_changes(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  void *a = get_in("should_capture1", 64, NULL);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE);
  void *b = get_in("should_not_capture", 48, NULL);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  void *c = get_in("should_capture2", 64, NULL);
  read_events(0);
  assert_string_equal(names_of(WEIR_TRACE_ALLOC), "should_capture1 - should_capture2");
  put(a);
  put(b);
  put(c);
  alloc_close();
}

/* A block that waited is set free by whoever looks for memory next, and that is its stack. */
static void test_stacks_of_waiting_blocks(void **state) {
  (void)state;
  for (int context = WEIR_CONTEXT_STATE; context <= WEIR_CONTEXT_ALL; context++) {
    alloc_open(NULL, GIB);
    record_named(WEIR_HISTORY_ALL, (weir_history_context)context);
    weir_cu_stream stream = work_stream(), other = work_stream();
    void *p = get_in("thealloc", 512, stream);
    work(other);
    also_used_by(p, other);
    put_in("thefree", p);
    soft_step_all();
    void *q = get_in("next", 1024, stream);
    read_events(0);
    bool kept = context >= WEIR_CONTEXT_ALLOC;
    assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), !kept                         ? "-"
                                                             : context == WEIR_CONTEXT_ALL ? "thefree"
                                                                                           : "thealloc");
    assert_string_equal(names_of(WEIR_TRACE_FREE_COMPLETED), kept ? "next" : "-");
    put(q);
    alloc_close();
  }
}

static void test_stack_of_oom(void **state) {
  (void)state;
  alloc_open(NULL, 64 * MIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC);
  void *p;
  function_here = "greedy";
  assert_int_equal(try_get(GIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  function_here = NULL;
  read_events(0);
  assert_string_equal(names_of(WEIR_TRACE_OOM), "greedy");
  alloc_close();
}

/* ---- Native stacks ---- */

static bool has_native(void) {
  if (weir__stacks_start())
    return true;
  print_message("there is no libunwind: native stacks are absent\n");
  return false;
}

static __attribute__((noinline)) void *get_deep(int depth, size_t bytes) {
  void *p = depth ? get_deep(depth - 1, bytes) : get(bytes, NULL);
  __asm__ volatile("" : : : "memory");
  return p;
}

static void test_native_stacks(void **state) {
  (void)state;
  if (!has_native())
    return;
  static weir__frame frames[2][WEIR__MOST_FRAMES];
  static const int depths[] = {0, 3, 200, 1000, 3000, 10000};
  size_t base = 0;
  alloc_open(NULL, GIB);
  put(get(512, NULL)); /* the first one goes another way inside */
  for (size_t i = 0; i < WEIR_COUNT_OF(depths); i++) {
    record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, 1000);
    CHECK(weir_history_clear(allocator));
    void *p = get_deep(depths[i], 512);
    read_events(0);
    uint32_t stack = events[event_count - 1].stack;
    size_t count = weir__stack_frames(stack, frames[0], WEIR__MOST_FRAMES);
    if (!i)
      base = count;
    size_t expected = base + (size_t)depths[i];
    if (expected < WEIR__MOST_FRAMES - 64)
      assert_int_equal(count, expected);
    else
      assert_true(count > WEIR__MOST_FRAMES - 8 && count <= WEIR__MOST_FRAMES);
    put(p);
  }
  alloc_close();
}

static void test_stacks_are_stored_once(void **state) {
  (void)state;
  if (!has_native())
    return;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC, 1000);
  put(get(512, NULL)); /* the first one goes another way inside */
  void *pointers[50];
  for (int i = 0; i < 50; i++)
    pointers[i] = get_deep(5, 512);
  read_events(0);
  uint32_t stack = events[event_count - 1].stack;
  assert_int_not_equal(stack, 0);
  size_t same = 0;
  for (size_t i = 0; i < event_count; i++)
    same += events[i].action == WEIR_TRACE_ALLOC && events[i].stack == stack;
  assert_int_equal(same, 50);
  for (int i = 0; i < 50; i++)
    put(pointers[i]);
  alloc_close();
}

static void test_hook_comes_first(void **state) {
  (void)state;
  if (!has_native())
    return;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, 1000);
  weir_set_stack_hook(tell_function, NULL);
  void *p = get_in("script", 512, NULL);
  read_events(0);
  weir__frame frames[64];
  size_t count = weir__stack_frames(events[event_count - 1].stack, frames, WEIR_COUNT_OF(frames));
  assert_true(count > 2);
  assert_string_equal(weir__text_of_number(frames[0].function), "script");
  for (size_t i = 1; i < count && i < WEIR_COUNT_OF(frames); i++)
    assert_true(frames[i].address != 0);
  put(p);
  alloc_close();
}

static size_t many_frames(void *context, weir_stack_frame *frames, size_t room) {
  size_t wanted = *(size_t *)context;
  for (size_t i = 0; i < wanted && i < room; i++)
    frames[i] = (weir_stack_frame){weir_history_text("f"), weir_history_text("g"), (int)i};
  return wanted < room ? wanted : room;
}

static void test_hook_with_a_thousand_frames(void **state) {
  (void)state;
  static weir__frame frames[2000];
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC);
  static size_t wanted[] = {1, 79, 80, 81, 1000};
  for (size_t i = 0; i < WEIR_COUNT_OF(wanted); i++) {
    weir_set_stack_hook(many_frames, &wanted[i]);
    void *p = get(512, NULL);
    read_events(0);
    assert_int_equal(weir__stack_frames(events[event_count - 1].stack, frames, WEIR_COUNT_OF(frames)), wanted[i]);
    for (size_t k = 0; k < wanted[i]; k++)
      assert_int_equal(frames[k].line, k);
    put(p);
  }
  alloc_close();
}

static size_t allocating_hook(void *context, weir_stack_frame *frames, size_t room) {
  (void)context, (void)room;
  void *p;
  hook_calls++;
  CHECK(weir_allocator_alloc(allocator, 0, 4096, NULL, &p));
  CHECK(weir_allocator_free(allocator, p));
  frames[0] = (weir_stack_frame){weir_history_text("program.py"), weir_history_text("hooked"), 7};
  return 1;
}

static int keyed_calls;
static uint64_t keyed_by; /* 0: no key */

static size_t count_and_tell(void *context, weir_stack_frame *frames, size_t room) {
  (void)context;
  assert_true(room > 0);
  keyed_calls++;
  frames[0] = (weir_stack_frame){weir_history_text("keyed.py"), weir_history_text("keyed"), (int)keyed_by % 1000};
  return 1;
}

static int tell_key(void *context, uint64_t *key) {
  (void)context;
  *key = keyed_by * 0x9e3779b97f4a7c15u;
  return keyed_by != 0;
}

static uint32_t stack_of_alloc(void) {
  void *pointer;
  weir_pointer_info info;
  weir_pointer_info_init(&info);
  CHECK(weir_allocator_alloc(allocator, 0, 512, NULL, &pointer));
  CHECK(weir_allocator_describe(allocator, pointer, &info));
  CHECK(weir_allocator_free(allocator, pointer));
  return info.stack;
}

/* A stack whose key is known is not asked for its frames; a hook without a key, or with native frames behind its own, always is. */
static void test_keys_of_stacks(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  enum { STACKS = 20000 };
  static uint32_t numbers[STACKS];
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_ALLOC;
  options.stacks = WEIR_STACKS_LANGUAGE;
  CHECK(weir_history_record(allocator, &options));
  weir_set_stack_hook(count_and_tell, NULL);
  weir_set_stack_key(tell_key);
  keyed_calls = 0;
  for (keyed_by = 1; keyed_by < 500; keyed_by++)
    numbers[keyed_by] = stack_of_alloc();
  int first = keyed_calls;
  assert_int_equal(first, 499);
  for (keyed_by = 1; keyed_by < 500; keyed_by++)
    assert_int_equal(stack_of_alloc(), numbers[keyed_by]);
  assert_true(keyed_calls - first < 100);             /* but for a few that share a place */
  for (keyed_by = 500; keyed_by < STACKS; keyed_by++) /* more than there are places */
    stack_of_alloc();
  weir_stack_frame frame;
  for (keyed_by = 1; keyed_by < 500; keyed_by++) {
    assert_int_equal(weir_history_frames(stack_of_alloc(), &frame, 1), 1);
    assert_int_equal(frame.line, keyed_by);
  }
  keyed_by = 0;
  keyed_calls = 0;
  stack_of_alloc();
  stack_of_alloc();
  assert_int_equal(keyed_calls, 2);
  keyed_by = 7;
  weir_set_stack_hook(count_and_tell, NULL); /* which has no key of its own */
  stack_of_alloc();
  assert_int_equal(keyed_calls, 3);
  weir_set_stack_hook(NULL, NULL);
}

static void test_hook_may_allocate(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  weir_set_stack_hook(allocating_hook, NULL);
  hook_calls = 0;
  void *p = get(512, NULL);
  assert_int_equal(hook_calls, 1);
  read_events(0);
  assert_string_equal(names_of(WEIR_TRACE_ALLOC), "- hooked");
  put(p);
  alloc_close();
}

/* ---- What the program says about itself ---- */

static weir__entry_context context_at(size_t at) {
  assert_true(at < event_count);
  return weir__context_of_number(events[at].context);
}

static void test_phases_and_texts(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  void *p = get(512, NULL);
  CHECK(weir_history_clear(allocator));
  uint32_t outer = weir_history_enter_phase("step");
  put(p);
  uint32_t inner = weir_history_enter_phase("forward");
  uint32_t compile = weir_history_enter_compile("0/1");
  CHECK(weir_history_set_metadata(allocator, 0, "epoch 3"));
  p = get(512, NULL);
  weir_history_leave_compile(compile);
  weir_history_leave_phase(inner);
  put(p);
  weir_history_leave_phase(outer);
  CHECK(weir_history_set_metadata(allocator, 0, NULL));
  p = get(512, NULL);
  read_events(0);
  static const struct {
    const char *phase, *compile, *metadata;
  } expected[] = {{"step", "", ""},        {"step", "", ""},        {"forward", "0/1", "epoch 3"},
                  {"step", "", "epoch 3"}, {"step", "", "epoch 3"}, {"", "", ""}};
  assert_int_equal(event_count, WEIR_COUNT_OF(expected));
  for (size_t i = 0; i < event_count; i++) {
    assert_string_equal(weir__text_of_number(context_at(i).phase), expected[i].phase);
    assert_string_equal(weir__text_of_number(context_at(i).compile), expected[i].compile);
    assert_string_equal(weir__text_of_number(context_at(i).metadata), expected[i].metadata);
  }
  put(p);
  alloc_close();
}

static void test_marks(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  CHECK(weir_history_mark(allocator, 0, "nobody records"));
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  function_here = "marker";
  CHECK(weir_history_mark(allocator, 0, "begin"));
  function_here = NULL;
  put(get(512, NULL));
  CHECK(weir_history_mark(allocator, 0, "end"));
  assert_int_equal(weir_history_mark(allocator, 1, "no such device"), WEIR_ERROR_INVALID_DEVICE);
  read_events(0);
  assert_int_equal(event_count, 6);
  expect(0, WEIR_TRACE_USER_DEFINED, NULL, 0, NULL);
  expect(5, WEIR_TRACE_USER_DEFINED, NULL, 0, NULL);
  assert_string_equal(weir__text_of_number(context_at(0).metadata), "begin");
  assert_string_equal(weir__text_of_number(context_at(5).metadata), "end");
  assert_string_equal(names_of(WEIR_TRACE_USER_DEFINED), "marker -");

  /* Each kind is skipped by its own bit. */
  weir_history_options options;
  weir_history_options_init(&options);
  unsigned bits[2];
  CHECK(weir_history_action("user_defined", &bits[0]));
  CHECK(weir_history_action("annotate", &bits[1]));
  assert_int_equal(bits[0], 1u << WEIR_TRACE_USER_DEFINED);
  assert_int_equal(bits[1], 1u << WEIR_TRACE_ANNOTATE);
  for (int i = 0; i < 2; i++) {
    void *p = get(512, NULL);
    options.skip = bits[i] | 1u << WEIR_TRACE_ALLOC;
    options.clear = 1;
    CHECK(weir_history_record(allocator, &options));
    CHECK(weir_history_mark(allocator, 0, "mark"));
    CHECK(weir_history_mark_pointer(allocator, p, "mark"));
    read_events(0);
    assert_int_equal(event_count, 1);
    expect(0, i ? WEIR_TRACE_USER_DEFINED : WEIR_TRACE_ANNOTATE, i ? NULL : p, i ? 0 : 512, NULL);
    put(p);
  }
  alloc_close();
}

typedef struct seen_annotations {
  size_t count;
  uint64_t last_time;
  char newest[64], oldest[64];
} seen_annotations;

static void see_annotation(void *context, const weir__annotation *annotation) {
  seen_annotations *seen = context;
  assert_true(annotation->time >= seen->last_time);
  assert_int_equal(annotation->pair_count, 2);
  const char *at = annotation->texts;
  assert_string_equal(at, "name");
  at += strlen(at) + 1;
  snprintf(seen->newest, sizeof seen->newest, "%s", at);
  if (!seen->count)
    snprintf(seen->oldest, sizeof seen->oldest, "%s", at);
  at += strlen(at) + 1;
  assert_string_equal(at, "stage");
  at += strlen(at) + 1;
  assert_string_equal(at, "START");
  seen->last_time = annotation->time;
  seen->count++;
}

static void test_a_million_annotations(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 300000);
  uint32_t texts = atomic_load(&weir__texts.count);
  char name[32];
  for (int i = 0; i < 1000000; i++) {
    snprintf(name, sizeof name, "op %d", i);
    const char *const pairs[] = {"name", name, "stage", "START"};
    CHECK(weir_history_annotate(allocator, 0, pairs, 2));
  }
  seen_annotations seen = {0};
  weir__recorder_annotations(atomic_load(&allocator->history), see_annotation, &seen);
  assert_int_equal(seen.count, 300000);
  assert_string_equal(seen.oldest, "op 700000");
  assert_string_equal(seen.newest, "op 999999");
  weir_history_info info = {.size = sizeof info};
  CHECK(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.annotations, 300000);
  assert_int_equal(info.annotations_dropped, 700000);
  assert_int_equal(atomic_load(&weir__texts.count), texts); /* what was dropped takes no memory any more */
  const char *const bad[] = {"name", NULL};
  assert_int_equal(weir_history_annotate(allocator, 0, bad, 1), WEIR_ERROR_INVALID_ARGUMENT);
  alloc_close();
}

/* ---- Trackers and observers ---- */

static int told, nested;
static weir_trace_action told_actions[64];

static void allocating_tracker(void *context, const weir_trace_entry *entry) {
  (void)context;
  void *p;
  if (told < 64)
    told_actions[told] = entry->action;
  told++;
  /* Locks of every kind: another size, another stream, memory from the driver, the whole cache. */
  CHECK(weir_allocator_alloc(allocator, 0, 3 * MIB, work_stream(), &p));
  CHECK(weir_allocator_free(allocator, p));
  CHECK(weir_allocator_alloc(allocator, 0, 512, entry->stream, &p));
  CHECK(weir_allocator_free(allocator, p));
  if (entry->action == WEIR_TRACE_SEGMENT_FREE)
    CHECK(weir_allocator_empty_cache(allocator));
  nested++;
}

static void test_tracker_may_allocate(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  CHECK(weir_allocator_attach_tracker(allocator, allocating_tracker, NULL));
  told = nested = 0;
  void *p;
  CHECK(weir_allocator_alloc(allocator, 0, 40 * MIB, NULL, &p));
  CHECK(weir_allocator_free(allocator, p));
  CHECK(weir_allocator_empty_cache(allocator));
  assert_true(told >= 5);
  assert_int_equal(nested, told);
  assert_int_equal(told_actions[0], WEIR_TRACE_SEGMENT_ALLOC);
  assert_int_equal(told_actions[1], WEIR_TRACE_ALLOC);
  assert_int_equal(told_actions[2], WEIR_TRACE_FREE_REQUESTED);
  assert_int_equal(told_actions[3], WEIR_TRACE_FREE_COMPLETED);
  for (int i = 4; i < told; i++)
    assert_int_equal(told_actions[i], WEIR_TRACE_SEGMENT_FREE);
  alloc_close();
}

static void count_entry(void *context, const weir_trace_entry *entry) {
  (void)entry;
  ++*(int *)context;
}

static void test_trackers_hear_what_is_skipped(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  int entries = 0;
  CHECK(weir_allocator_attach_tracker(allocator, count_entry, &entries));
  weir_history_options options;
  weir_history_options_init(&options);
  options.skip = (1u << WEIR_TRACE_ACTIONS) - 1;
  CHECK(weir_history_record(allocator, &options));
  put(get(512, NULL));
  assert_int_equal(entries, 4);
  read_events(0);
  assert_int_equal(event_count, 0);
  record_off();
  put(get(512, NULL));
  assert_int_equal(entries, 7);
  alloc_close();
}

/* PyTorch's test_notifies_oom: the observer is called once, after the event is there, and may look and allocate. */
static int oom_calls;

static void observe_oom(void *context, int device, size_t bytes, size_t limit, size_t free_bytes) {
  (void)context;
  oom_calls++;
  assert_int_equal(device, 0);
  assert_int_equal(bytes, 4 * GIB);
  assert_int_equal(limit, GIB);
  assert_true(free_bytes <= GIB);
  read_events(0);
  assert_int_equal(events[event_count - 1].action, WEIR_TRACE_OOM);
  assert_int_equal(told_actions[told - 1], WEIR_TRACE_OOM);
  void *p;
  CHECK(weir_allocator_alloc(allocator, 0, 512, NULL, &p));
  CHECK(weir_allocator_free(allocator, p));
  CHECK(weir_allocator_empty_cache(allocator));
}

static void note_action(void *context, const weir_trace_entry *entry) {
  (void)context;
  if (told < 64)
    told_actions[told++] = entry->action;
}

static void test_notifies_oom(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, 1000);
  CHECK(weir_allocator_attach_oom_observer(allocator, observe_oom, NULL));
  CHECK(weir_allocator_attach_tracker(allocator, note_action, NULL));
  oom_calls = told = 0;
  void *p;
  assert_int_equal(try_get(4 * GIB, NULL, &p), WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(oom_calls, 1);
  alloc_close();
}

/* ---- Wrong calls ---- */

static void test_wrong_calls(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  weir_history_options options;
  weir_history_options_init(&options);
  weir_history_info info = {.size = sizeof info};
  unsigned bit;
  assert_int_equal(weir_history_record(NULL, &options), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_history_clear(NULL), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_history_get_info(NULL, 0, &info), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_history_get_info(allocator, 0, NULL), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_history_get_info(allocator, 9, &info), WEIR_ERROR_INVALID_DEVICE);
  assert_int_equal(weir_history_annotate(allocator, 0, NULL, 1), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir_history_set_metadata(allocator, -1, "x"), WEIR_ERROR_INVALID_DEVICE);
  assert_int_equal(weir_history_action(NULL, &bit), WEIR_ERROR_INVALID_ARGUMENT);
  options.mode = (weir_history_mode)9;
  assert_int_equal(weir_history_record(allocator, &options), WEIR_ERROR_INVALID_ARGUMENT);
  weir_history_options_init(&options);
  options.context = (weir_history_context)4;
  assert_int_equal(weir_history_record(allocator, &options), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "expected none, state, alloc or all"));
  CHECK(weir_history_get_info(allocator, 0, &info)); /* nothing was ever recorded */
  assert_int_equal(info.mode, WEIR_HISTORY_OFF);
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  alloc_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_all_in_order, teardown),
      cmocka_unit_test_teardown(test_keys_of_stacks, teardown),
      cmocka_unit_test_teardown(test_pages_and_pools, teardown),
      cmocka_unit_test_teardown(test_arenas_are_merged_by_time, teardown),
      cmocka_unit_test_teardown(test_devices_have_their_own, teardown),
      cmocka_unit_test_teardown(test_times_are_unix_times, teardown),
      cmocka_unit_test_teardown(test_snapshots_of_a_full_ring, alloc_teardown),
      cmocka_unit_test_teardown(test_ring_of_one, teardown),
      cmocka_unit_test_teardown(test_newest_are_kept, teardown),
      cmocka_unit_test_teardown(test_state_keeps_the_last_one, teardown),
      cmocka_unit_test_teardown(test_skip, teardown),
      cmocka_unit_test_teardown(test_clear_and_off, teardown),
      cmocka_unit_test_teardown(test_stacks_of_frees, teardown),
      cmocka_unit_test_teardown(test_stacks_of_a_checkpoint, teardown),
      cmocka_unit_test_teardown(test_stacks_of_segments, teardown),
      cmocka_unit_test_teardown(test_context_changes, teardown),
      cmocka_unit_test_teardown(test_stacks_of_waiting_blocks, teardown),
      cmocka_unit_test_teardown(test_stack_of_oom, teardown),
      cmocka_unit_test_teardown(test_native_stacks, teardown),
      cmocka_unit_test_teardown(test_stacks_are_stored_once, teardown),
      cmocka_unit_test_teardown(test_hook_comes_first, teardown),
      cmocka_unit_test_teardown(test_hook_with_a_thousand_frames, teardown),
      cmocka_unit_test_teardown(test_hook_may_allocate, teardown),
      cmocka_unit_test_teardown(test_phases_and_texts, teardown),
      cmocka_unit_test_teardown(test_marks, teardown),
      cmocka_unit_test_teardown(test_a_million_annotations, teardown),
      cmocka_unit_test_teardown(test_tracker_may_allocate, teardown),
      cmocka_unit_test_teardown(test_trackers_hear_what_is_skipped, teardown),
      cmocka_unit_test_teardown(test_notifies_oom, teardown),
      cmocka_unit_test_teardown(test_wrong_calls, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

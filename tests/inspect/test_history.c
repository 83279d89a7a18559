/*
 * Which history entries are recorded, in which order, with which texts, and which are dropped.
 */
#include <time.h>

#include "base/clock.h"
#include "inspect/history.h"
#include "weir/snapshot.h"

/* ---- Order and contents ---- */

FIXTURE(.teardown = history_teardown)

TEST(all_in_order) {
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

TEST(pages_and_pools) {
  alloc_open("expandable_segments:True", GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  const weir_pool_id id = {7, 9};
  assert_ok(weir_pool_begin(allocator, 0, id, NULL, NULL));
  char *p = get(30 * MIB, NULL);
  assert_ok(weir_pool_end(allocator, 0, id));
  put(p);
  assert_ok(weir_pool_release(allocator, 0, id));
  empty_cache();
  read_events(0); /* including the entries of the pool's arenas, which no longer exist */
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

TEST(arenas_are_merged_by_time) {
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

TEST(devices_have_their_own) {
  alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, NULL);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 2);
  void *p = get_on(0, 512, NULL), *q = get_on(1, 512, NULL);
  assert_ok(weir_history_set_metadata(allocator, 1, "second"));
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

TEST(times_are_unix_times) {
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
    assert_true(us >= from - 1000 && us <= to + 1000); /* within a millisecond: the clock may be adjusted meanwhile */
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

TEST(ring_of_one) {
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
  assert_ok(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.kept, 1);
  assert_int_equal(info.dropped, 1501);
  assert_int_equal(info.max_entries, 1);
  assert_int_equal(info.mode, WEIR_HISTORY_ALL);
  put(p);
  alloc_close();
}

/* A snapshot reads the ring first and is marked afterwards, so a full ring has all of its entries in the snapshot; the
 * mark takes a place in the next one. */
TEST_SETUP(snapshots_of_a_full_ring, NULL, alloc_teardown) {
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
      weir_snapshot_entry last = {.size = sizeof last};
      assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
      assert_ok(weir_snapshot_entries(snapshot, 0, &count, &missing));
      assert_int_equal(count, limits[l]);
      assert_ok(weir_snapshot_entry_at(snapshot, 0, count - 1, &last));
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

/* For every limit and every distribution over arenas, exactly the most recent entries are kept. */
TEST(newest_are_kept) {
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

TEST(state_mode_keeps_one_entry) {
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

TEST(skip) {
  alloc_open(NULL, GIB);
  unsigned bit = 0;
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = WEIR_CONTEXT_NONE;
  static const char *const skipped[] = {"alloc", "segment_alloc", "free_completed"};
  for (size_t i = 0; i < WEIR_COUNT_OF(skipped); i++) {
    assert_ok(weir_history_action(skipped[i], &bit));
    options.skip |= bit;
  }
  assert_int_equal(weir_history_action("free", &bit), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "Unknown TraceEntry action: free"));
  assert_ok(weir_history_record(allocator, &options));
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

TEST(clear_and_off) {
  alloc_open(NULL, GIB);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  void *p = get_in("before", 512, NULL);
  const char *const pairs[] = {"name", "x"};
  assert_ok(weir_history_annotate(allocator, 0, pairs, 1));
  assert_ok(weir_history_clear(allocator));
  read_events(0);
  assert_int_equal(event_count, 0);
  assert_int_equal(dropped, 0);
  assert_string_equal(block_name(p), "before"); /* it is still in use, so its stack is kept */
  void *q = get_in("after", 512, NULL);
  read_events(0);
  assert_int_equal(event_count, 1);
  expect(0, WEIR_TRACE_ALLOC, q, 512, NULL);
  weir_history_info info = {.size = sizeof info};
  assert_ok(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.annotations, 0);

  record_off();
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  put(q);
  read_events(0);
  assert_int_equal(event_count, 0);
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  put_in("now", p); /* its stack belongs to the previous recording */
  read_events(0);
  assert_int_equal(event_count, 2);
  assert_string_equal(names_of(WEIR_TRACE_FREE_REQUESTED), "now");
  alloc_close();
}

/* ---- Phases, marks and annotations ---- */

static weir__entry_context context_at(size_t at) {
  assert_true(at < event_count);
  return weir__context_of_number(events[at].context);
}

/* The text of a thread replaces the device's, and lives with a compile context that begins or ends. */
TEST(metadata_of_a_thread) {
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  assert_ok(weir_history_set_metadata(allocator, 0, "device"));
  void *p[5];
  p[0] = get(512, NULL);
  assert_int_equal(weir_history_exchange_metadata(weir_history_text("thread")), 0);
  p[1] = get(512, NULL);
  uint32_t before = weir_history_enter_compile("0/1");
  p[2] = get(512, NULL);
  assert_string_equal(weir_history_text_of(weir_history_exchange_metadata(0)), "thread");
  p[3] = get(512, NULL);
  weir_history_leave_compile(before);
  p[4] = get(512, NULL);
  read_events(0);
  static const char *const texts[] = {"device", "thread", "thread", "device", "device"};
  static const char *const compiles[] = {"", "", "0/1", "0/1", ""};
  size_t found = 0;
  for (size_t i = 0; i < event_count; i++)
    if (found < 5 && events[i].action == WEIR_TRACE_ALLOC) {
      assert_string_equal(weir__text_of_number(context_at(i).metadata), texts[found]);
      assert_string_equal(weir__text_of_number(context_at(i).compile), compiles[found]);
      found++;
    }
  assert_int_equal(found, 5);
  assert_ok(weir_history_set_metadata(allocator, 0, NULL));
  for (int i = 0; i < 5; i++)
    put(p[i]);
  alloc_close();
}

TEST(phases_and_texts) {
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 1000);
  void *p = get(512, NULL);
  assert_ok(weir_history_clear(allocator));
  uint32_t outer = weir_history_enter_phase("step");
  put(p);
  uint32_t inner = weir_history_enter_phase("forward");
  uint32_t compile = weir_history_enter_compile("0/1");
  assert_ok(weir_history_set_metadata(allocator, 0, "epoch 3"));
  p = get(512, NULL);
  weir_history_leave_compile(compile);
  weir_history_leave_phase(inner);
  put(p);
  weir_history_leave_phase(outer);
  assert_ok(weir_history_set_metadata(allocator, 0, NULL));
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

TEST(marks) {
  alloc_open(NULL, GIB);
  assert_ok(weir_history_mark(allocator, 0, "not recorded"));
  record_named(WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL);
  current_function = "marker";
  assert_ok(weir_history_mark(allocator, 0, "begin"));
  current_function = NULL;
  put(get(512, NULL));
  assert_ok(weir_history_mark(allocator, 0, "end"));
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
  assert_ok(weir_history_action("user_defined", &bits[0]));
  assert_ok(weir_history_action("annotate", &bits[1]));
  assert_int_equal(bits[0], 1u << WEIR_TRACE_USER_DEFINED);
  assert_int_equal(bits[1], 1u << WEIR_TRACE_ANNOTATE);
  for (int i = 0; i < 2; i++) {
    void *p = get(512, NULL);
    options.skip = bits[i] | 1u << WEIR_TRACE_ALLOC;
    options.clear = 1;
    assert_ok(weir_history_record(allocator, &options));
    assert_ok(weir_history_mark(allocator, 0, "mark"));
    assert_ok(weir_history_mark_pointer(allocator, p, "mark"));
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

TEST(a_million_annotations) {
  alloc_open(NULL, GIB);
  record(WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, 300000);
  uint32_t texts = atomic_load(&weir__texts.count);
  char name[32];
  for (int i = 0; i < 1000000; i++) {
    snprintf(name, sizeof name, "op %d", i);
    const char *const pairs[] = {"name", name, "stage", "START"};
    assert_ok(weir_history_annotate(allocator, 0, pairs, 2));
  }
  seen_annotations seen = {0};
  weir__recorder_annotations(atomic_load(&allocator->history), see_annotation, &seen);
  assert_int_equal(seen.count, 300000);
  assert_string_equal(seen.oldest, "op 700000");
  assert_string_equal(seen.newest, "op 999999");
  weir_history_info info = {.size = sizeof info};
  assert_ok(weir_history_get_info(allocator, 0, &info));
  assert_int_equal(info.annotations, 300000);
  assert_int_equal(info.annotations_dropped, 700000);
  assert_int_equal(atomic_load(&weir__texts.count), texts); /* dropped annotations take no memory */
  const char *const bad[] = {"name", NULL};
  assert_int_equal(weir_history_annotate(allocator, 0, bad, 1), WEIR_ERROR_INVALID_ARGUMENT);
  alloc_close();
}

/* ---- Invalid arguments ---- */

TEST(wrong_calls) {
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
  assert_ok(weir_history_get_info(allocator, 0, &info)); /* nothing was ever recorded */
  assert_int_equal(info.mode, WEIR_HISTORY_OFF);
  assert_int_equal(weir__slow_reasons(&allocator->heaps[0]), 0);
  alloc_close();
}

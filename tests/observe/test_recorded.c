/*
 * From the recorder to a file and back: a history that was recorded here is written by a snapshot, read by the reader, and
 * replayed without a difference.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "observe/stacks.h"
#include "offline/replay.h"
#include "offline/snapshot.h"
#include "support/alloc.h"
#include "weir/history.h"
#include "weir/snapshot.h"

static void record(weir_history_context context) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = context;
  CHECK(weir_history_record(allocator, &options));
}

/* Takes a snapshot, writes it as a pickle, and reads that. */
static weir__snapshot *through_a_file(void) {
  char path[] = "/tmp/weir-test-recorded-XXXXXX";
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  FILE *file = fdopen(descriptor, "w");
  weir_snapshot *snapshot;
  weir__snapshot *read;
  CHECK(weir_snapshot_take(allocator, NULL, &snapshot));
  CHECK(weir_snapshot_write(snapshot, WEIR_SNAPSHOT_PICKLE, file));
  assert_int_equal(fclose(file), 0);
  weir_snapshot_destroy(snapshot);
  CHECK(weir__snapshot_load(path, NULL, &read));
  unlink(path);
  return read;
}

/* A few thousand operations on two streams, sizes of all kinds, some of them used by the other stream too. */
static void churn(weir_cu_stream *streams) {
  enum { HELD = 64 };
  void *held[HELD] = {0};
  soft_seed(11);
  for (int i = 0; i < 4000; i++) {
    int k = (int)soft_random(HELD);
    if (held[k]) {
      if (soft_random(8) == 0)
        also_used_by(held[k], streams[soft_random(2)]);
      put(held[k]);
      held[k] = NULL;
      if (soft_random(4) == 0)
        soft_step_all();
    } else
      held[k] = get(1 + soft_random(soft_random(3) ? 300 * KIB : 30 * MIB), streams[soft_random(2)]);
  }
  soft_seed(0);
}

static void test_replays_exactly(void **state) {
  (void)state;
  static const char *const confs[] = {"", "expandable_segments:True", "max_split_size_mb:21",
                                      "roundup_power2_divisions:4"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    alloc_open(confs[i], 16 * GIB);
    weir_cu_stream streams[] = {work_stream(), work_stream()};
    record(WEIR_CONTEXT_NONE);
    churn(streams);
    weir__snapshot *read = through_a_file();
    weir__replay_options options = {.check = true};
    weir__replay_report report;
    CHECK(weir__replay(read, &options, &report));
    if (report.differences)
      print_error("%s: %s\n", confs[i], report.shown[0]);
    assert_int_equal(report.differences, 0);
    assert_true(report.allocations > 1000);
    weir_allocator_stats stats = stats_of(0);
    assert_int_equal(report.stats.allocated_bytes[0].current, stats.allocated_bytes[0].current);
    assert_int_equal(report.stats.allocated_bytes[0].peak, stats.allocated_bytes[0].peak);
    assert_int_equal(report.stats.reserved_bytes[0].peak, stats.reserved_bytes[0].peak);
    weir__snapshot_free(read);
    alloc_close();
  }
}

/* What is in the file is what was recorded before the snapshot: its own event comes after it. */
static void test_cut(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_CONTEXT_NONE);
  void *a = get(4096, NULL);
  weir__snapshot *first = through_a_file();
  put(a);
  weir__snapshot *second = through_a_file();
  assert_int_equal(first->devices[0].event_count, 2); /* segment_alloc, alloc */
  assert_int_equal(second->devices[0].event_count, 5);
  assert_int_equal(second->devices[0].events[2].action, WEIR__ACTION_SNAPSHOT);
  assert_true(second->devices[0].events[4].time_us >= first->devices[0].events[0].time_us);
  weir__snapshot_free(first);
  weir__snapshot_free(second);
  alloc_close();
}

static void test_stacks_and_annotations(void **state) {
  (void)state;
  alloc_open(NULL, GIB);
  record(WEIR_CONTEXT_ALL);
  const char *pairs[] = {"name", "step 1", "stage", "START"};
  CHECK(weir_history_annotate(allocator, 0, pairs, 2));
  void *a = get(4096, NULL);
  weir__snapshot *read = through_a_file();
  assert_int_equal(read->annotation_count, 1);
  const weir__snapshot_segment *segment = &read->devices[0].segments[0];
  assert_int_equal(read->devices[0].segment_count, 1);
  assert_int_equal(segment->size, 2 * MIB);
  const weir__snapshot_event *last = &read->devices[0].events[read->devices[0].event_count - 1];
  assert_int_equal(last->action, WEIR__ACTION_ALLOC);
  assert_int_equal(last->address, (uint64_t)a);
  if (weir__stacks_start()) { /* where there is a library for them */
    const weir__snapshot_block *block = &segment->blocks[0];
    assert_int_equal(block->address, (uint64_t)a);
    assert_int_not_equal(last->stack, 0);
    assert_true(read->stacks[last->stack].count > 2);
    assert_int_equal(block->stack, last->stack);
    assert_int_not_equal(segment->stack, 0);
  }
  weir__snapshot_free(read);
  put(a);
  alloc_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_replays_exactly, alloc_teardown),
      cmocka_unit_test_teardown(test_cut, alloc_teardown),
      cmocka_unit_test_teardown(test_stacks_and_annotations, alloc_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

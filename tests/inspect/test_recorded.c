/*
 * From the recorder to a file and back: a recorded history is written as a snapshot, read, and replayed without a
 * difference.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "offline/read/recording.h"
#include "offline/replay/replay.h"
#include "record/stacks.h"
#include "support/alloc.h"
#include "weir/history.h"
#include "weir/snapshot.h"

static void record(weir_history_context context) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.context = context;
  assert_ok(weir_history_record(allocator, &options));
}

/* Takes a snapshot, writes it as a pickle and reads it back. */
static weir__recording *through_a_file(void) {
  char path[] = "/tmp/weir-test-recorded-XXXXXX";
  int descriptor = mkstemp(path);
  assert_true(descriptor >= 0);
  FILE *file = fdopen(descriptor, "w");
  weir_snapshot *snapshot;
  weir__recording *read;
  assert_ok(weir_snapshot_take(allocator, NULL, &snapshot));
  assert_ok(weir_snapshot_write(snapshot, WEIR_SNAPSHOT_PICKLE, weir_write_file, file));
  assert_int_equal(fclose(file), 0);
  weir_snapshot_destroy(snapshot);
  assert_ok(weir__recording_load(path, NULL, &read));
  unlink(path);
  return read;
}

/* A few thousand operations on two streams, with all kinds of sizes; the other stream uses some of the blocks too. */
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

FIXTURE(.teardown = alloc_teardown)

TEST(replays_exactly) {
  static const char *const confs[] = {"", "expandable_segments:True", "max_split_size_mb:21",
                                      "roundup_power2_divisions:4"};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++) {
    alloc_open(confs[i], 16 * GIB);
    weir_cu_stream streams[] = {work_stream(), work_stream()};
    record(WEIR_CONTEXT_NONE);
    churn(streams);
    weir__recording *read = through_a_file();
    weir__replay_options options = {.check = true};
    weir__replay_report report;
    assert_ok(weir__replay(read, &options, &report));
    if (report.differences)
      print_error("%s: %s\n", confs[i], report.shown[0]);
    assert_int_equal(report.differences, 0);
    assert_true(report.allocations > 1000);
    weir_allocator_stats stats = stats_of(0);
    assert_int_equal(report.stats.allocated_bytes[0].current, stats.allocated_bytes[0].current);
    assert_int_equal(report.stats.allocated_bytes[0].peak, stats.allocated_bytes[0].peak);
    assert_int_equal(report.stats.reserved_bytes[0].peak, stats.reserved_bytes[0].peak);
    weir__recording_free(read);
    alloc_close();
  }
}

/* The file has the entries before the snapshot; the snapshot's own entry comes after it. */
TEST(cut) {
  alloc_open(NULL, GIB);
  record(WEIR_CONTEXT_NONE);
  void *a = get(4096, NULL);
  weir__recording *first = through_a_file();
  put(a);
  weir__recording *second = through_a_file();
  assert_int_equal(first->devices[0].event_count, 2); /* segment_alloc, alloc */
  assert_int_equal(second->devices[0].event_count, 5);
  assert_int_equal(second->devices[0].events[2].action, WEIR_TRACE_SNAPSHOT);
  assert_true(second->devices[0].events[4].time_us >= first->devices[0].events[0].time_us);
  weir__recording_free(first);
  weir__recording_free(second);
  alloc_close();
}

/* The memory that counts towards RLIMIT_DATA; a sanitizer reserves terabytes. */
static uint64_t bytes_of_data(void) {
  unsigned long long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%*u %*u %*u %*u %*u %llu", &pages), 1);
  fclose(file);
  return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Pools with all three kinds of numbers, and no pool: the time and memory for a snapshot do not depend on the ids. */
TEST(pools) {
  static const weir_pool_id ids[] = {{0, 0}, {0, 1}, {7, 0}, {3, 4}, {0, (1 << 29) - 1}, {1ull << 40, 2}};
  struct rlimit before, limited;
  alloc_open(NULL, GIB);
  record(WEIR_CONTEXT_NONE);
  for (size_t i = 1; i < WEIR_COUNT_OF(ids); i++)
    assert_ok(weir_pool_create(allocator, 0, ids[i], NULL));
  for (int turn = 0; turn < 3; turn++)
    for (size_t i = 0; i < WEIR_COUNT_OF(ids); i++) {
      if (i)
        assert_ok(weir_pool_begin(allocator, 0, ids[i], NULL, NULL));
      put(get(1000 * (i + 1), NULL));
      if (i)
        assert_ok(weir_pool_end(allocator, 0, ids[i]));
    }

  /* One table with an entry for each number up to that of {7, 0} would take 16 GiB. */
  assert_int_equal(getrlimit(RLIMIT_DATA, &before), 0);
  limited = (struct rlimit){bytes_of_data() + GIB, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_DATA, &limited), 0);
  weir_snapshot *snapshot;
  weir_status status = weir_snapshot_take(allocator, NULL, &snapshot);
  assert_int_equal(setrlimit(RLIMIT_DATA, &before), 0);
  assert_ok(status);
  uint64_t count, dropped;
  size_t seen = 0;
  assert_ok(weir_snapshot_entries(snapshot, 0, &count, &dropped));
  for (uint64_t i = 0; i < count; i++) {
    weir_snapshot_entry event = {.size = sizeof event};
    assert_ok(weir_snapshot_entry_at(snapshot, 0, i, &event));
    if (event.action != WEIR_TRACE_ALLOC)
      continue;
    size_t k = seen++ % WEIR_COUNT_OF(ids);
    assert_int_equal(event.bytes, 1000 * (k + 1));
    assert_int_equal(event.pool.first, ids[k].first);
    assert_int_equal(event.pool.second, ids[k].second);
  }
  assert_int_equal(seen, 3 * WEIR_COUNT_OF(ids));
  weir_snapshot_destroy(snapshot);

  weir__recording *read = through_a_file();
  seen = 0;
  for (size_t i = 0; i < read->devices[0].event_count; i++) {
    const weir__recording_entry *event = &read->devices[0].events[i];
    if (event->action != WEIR_TRACE_ALLOC)
      continue;
    size_t k = seen++ % WEIR_COUNT_OF(ids);
    assert_int_equal(read->pools[event->pool].id[0], ids[k].first);
    assert_int_equal(read->pools[event->pool].id[1], ids[k].second);
  }
  assert_int_equal(seen, 3 * WEIR_COUNT_OF(ids));
  weir__recording_free(read);
  for (size_t i = 1; i < WEIR_COUNT_OF(ids); i++)
    assert_ok(weir_pool_release(allocator, 0, ids[i]));
  alloc_close();
}

TEST(stacks_and_annotations) {
  alloc_open(NULL, GIB);
  record(WEIR_CONTEXT_ALL);
  const char *pairs[] = {"name", "step 1", "stage", "START"};
  assert_ok(weir_history_annotate(allocator, 0, pairs, 2));
  void *a = get(4096, NULL);
  weir__recording *read = through_a_file();
  assert_int_equal(read->annotation_count, 1);
  const weir__recording_segment *segment = &read->devices[0].segments[0];
  assert_int_equal(read->devices[0].segment_count, 1);
  assert_int_equal(segment->size, 2 * MIB);
  const weir__recording_entry *last = &read->devices[0].events[read->devices[0].event_count - 1];
  assert_int_equal(last->action, WEIR_TRACE_ALLOC);
  assert_int_equal(last->address, (uint64_t)a);
  if (weir__stacks_start()) { /* with libunwind */
    const weir__recording_block *block = &segment->blocks[0];
    assert_int_equal(block->address, (uint64_t)a);
    assert_int_not_equal(last->stack, 0);
    assert_true(read->stacks[last->stack].count > 2);
    assert_int_equal(block->stack, last->stack);
    assert_int_not_equal(segment->stack, 0);
  }
  weir__recording_free(read);
  put(a);
  alloc_close();
}

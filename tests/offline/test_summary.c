/*
 * What a summary counts, against what PyTorch's own counters said at the end of each job, and on histories that are not whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "offline/describe.h"
#include "offline/load.h"
#include "offline/summary.h"

static void summarize(const weir__snapshot *snapshot, weir__summary *summary) {
  if (weir__summarize(snapshot, 0, summary) != WEIR_OK)
    fail_msg("%s", weir_last_error());
}

/* peak requested_bytes and reserved_bytes, and num_ooms, of torch.cuda.memory_stats(). */
static void test_peaks(void **state) {
  (void)state;
  static const struct {
    const char *name;
    uint64_t requested, reserved;
    size_t ooms, streams;
  } jobs[] = {{"traces/gpt2_fixed", 16983980232, 17989369856, 0, 1},
              {"traces/llama_oom", 11573073048, 13050576896, 1, 1},
              {"traces/llama_varlen_expandable_capped", 19507403152, 19740491776, 0, 1},
              {"traces/resnet_stacks", 9454177936, 12807307264, 0, 1}};
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    weir__snapshot *snapshot = load(jobs[i].name);
    weir__summary s;
    summarize(snapshot, &s);
    assert_int_equal(s.live.bytes, jobs[i].requested);
    assert_int_equal(s.reserved.bytes, jobs[i].reserved);
    assert_int_equal(s.actions[WEIR__ACTION_OOM], jobs[i].ooms);
    assert_int_equal(s.streams, jobs[i].streams);
    assert_int_equal(s.completeness, WEIR__HISTORY_COMPLETE);
    assert_int_equal(s.live_before, 0);
    weir__snapshot_free(snapshot);
  }
}

static uint64_t sum(const weir__holder *holders, size_t count) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += holders[i].bytes;
    assert_true(holders[i].count > 0);
    if (i > 0)
      assert_true(holders[i].bytes <= holders[i - 1].bytes);
  }
  return bytes;
}

static void test_holders(void **state) {
  (void)state;
  weir__snapshot *snapshot = load("traces/resnet_stacks");
  weir__summary s;
  summarize(snapshot, &s);
  assert_true(s.has_stacks);
  assert_int_equal(s.holder_count, WEIR__SUMMARY_HOLDERS);
  assert_true(sum(s.holders, s.holder_count) <= s.live.bytes);
  assert_int_equal(s.holders[0].size, 0);
  assert_int_not_equal(s.holders[0].stack, 0);
  /* Only three allocations are left at the end, from two stacks: all of them are shown. */
  assert_int_equal(s.at_end_count, 2);
  assert_int_equal(sum(s.at_end, s.at_end_count), s.end_requested);

  char text[WEIR__DESCRIBE_TEXT];
  assert_string_equal(weir__describe_stack(snapshot, 0, text), "");
  weir__describe_stack(snapshot, s.holders[0].stack, text);
  assert_non_null(strstr(text, "batch_norm (functional.py:"));
  assert_non_null(strstr(text, ", from w_resnet_multiscale (workloads.py:"));
  weir__snapshot_free(snapshot);

  /* No stacks: by size. */
  snapshot = load("traces/llama_oom");
  summarize(snapshot, &s);
  assert_false(s.has_stacks);
  assert_int_equal(s.holders[0].size, 1958400000);
  assert_int_equal(s.holders[0].count, 2);
  assert_int_equal(s.holders[0].bytes, 2 * 1958400000ull);
  weir__snapshot_free(snapshot);
}

/* The history from an event on, and up to another: what a ring leaves. */
static weir__snapshot part_of(const weir__snapshot *snapshot, size_t from, size_t count,
                              weir__snapshot_device *device) {
  weir__snapshot part = *snapshot;
  *device = snapshot->devices[0];
  device->events += from;
  device->event_count = count;
  part.devices = device;
  part.device_count = 1;
  return part;
}

/* What was there before the first event is told from the end, so the peak is the same. */
static void test_late(void **state) {
  (void)state;
  weir__snapshot *snapshot = load("traces/llama_oom");
  weir__snapshot_device device;
  weir__summary whole, s;
  summarize(snapshot, &whole);
  size_t from = 9001, count = snapshot->devices[0].event_count - from;
  weir__snapshot part = part_of(snapshot, from, count, &device);
  int64_t live = 0;
  for (size_t i = 0; i < from; i++) {
    const weir__snapshot_event *e = &snapshot->devices[0].events[i];
    live += e->action == WEIR__ACTION_ALLOC            ? (int64_t)e->size
            : e->action == WEIR__ACTION_FREE_REQUESTED ? -(int64_t)e->size
                                                       : 0;
  }
  summarize(&part, &s);
  assert_int_equal(s.completeness, WEIR__HISTORY_LATE);
  assert_int_equal(s.live_before, live);
  assert_int_equal(s.live.bytes, whole.live.bytes);
  assert_int_equal(s.live.event, whole.live.event - from);
  assert_int_equal(s.reserved.bytes, whole.reserved.bytes);
  assert_true(s.unknown_frees > 0);
  assert_true(s.unknown_segments > 0);
  assert_int_equal(sum(s.holders, s.holder_count), sum(whole.holders, whole.holder_count));

  /* A number of events that somebody has chosen. */
  part = part_of(snapshot, snapshot->devices[0].event_count - 4000, 4000, &device);
  summarize(&part, &s);
  assert_int_equal(s.completeness, WEIR__HISTORY_WRAPPED);

  part = part_of(snapshot, 0, 0, &device);
  summarize(&part, &s);
  assert_int_equal(s.completeness, WEIR__HISTORY_NONE);
  weir__snapshot_free(snapshot);
}

static void test_words(void **state) {
  (void)state;
  char text[32];
  assert_string_equal(weir__describe_span(12, text), "12 us");
  assert_string_equal(weir__describe_span(3400, text), "3.4 ms");
  assert_string_equal(weir__describe_span(1200000, text), "1.20 s");
  assert_string_equal(weir__describe_span(300000000, text), "5 min");
  assert_string_equal(weir__describe_span(9000000000, text), "2.5 h");
  weir__snapshot *snapshot = load("traces/llama_oom");
  char phase[WEIR__DESCRIBE_TEXT];
  int64_t begin = snapshot->annotations[0].time_us;
  assert_string_equal(weir__describe_phase(snapshot, 0, begin - 1, phase), "");
  assert_string_equal(weir__describe_phase(snapshot, 0, begin + 1, phase), "in Optimizer.step#AdamW.step");
  assert_string_equal(weir__describe_phase(snapshot, 0, snapshot->annotations[1].time_us + 1, phase),
                      "after Optimizer.step#AdamW.step");
  assert_string_equal(weir__describe_phase(snapshot, 1, begin + 1, phase), "");
  weir__snapshot_free(snapshot);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_peaks), cmocka_unit_test(test_holders),
                                     cmocka_unit_test(test_late), cmocka_unit_test(test_words)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

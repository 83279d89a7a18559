/*
 * Compares summaries with PyTorch's own counters at the end of each job, and tests histories that are not complete.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/describe.h"
#include "offline/analyse/summary.h"
#include "offline/load.h"

static void summarize(const weir__recording *recording, weir__summary *summary) {
  if (weir__summarize(recording, 0, summary) != WEIR_OK)
    fail_msg("%s", weir_last_error());
}

/* peak requested_bytes and reserved_bytes, and num_ooms, of torch.cuda.memory_stats(). */
TEST(peaks) {
  static const struct {
    const char *name;
    uint64_t requested, reserved;
    size_t ooms, streams;
  } jobs[] = {{"traces/gpt2_fixed", 16983980232, 17989369856, 0, 1},
              {"traces/llama_oom", 11573073048, 13050576896, 1, 1},
              {"traces/llama_varlen_expandable_capped", 19507403152, 19740491776, 0, 1},
              {"traces/resnet_stacks", 9454177936, 12807307264, 0, 1}};
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    weir__recording *recording = load(jobs[i].name);
    weir__summary s;
    summarize(recording, &s);
    assert_int_equal(s.live.bytes, jobs[i].requested);
    assert_int_equal(s.reserved.bytes, jobs[i].reserved);
    assert_int_equal(s.actions[WEIR_TRACE_OOM], jobs[i].ooms);
    assert_int_equal(s.streams, jobs[i].streams);
    assert_int_equal(s.completeness, WEIR__HISTORY_COMPLETE);
    assert_int_equal(s.live_before, 0);
    weir__recording_free(recording);
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

TEST(holders) {
  weir__recording *recording = load("traces/resnet_stacks");
  weir__summary s;
  summarize(recording, &s);
  assert_true(s.has_stacks);
  assert_int_equal(s.holder_count, WEIR__SUMMARY_HOLDERS);
  assert_true(sum(s.holders, s.holder_count) <= s.live.bytes);
  assert_int_equal(s.holders[0].size, 0);
  assert_int_not_equal(s.holders[0].stack, 0);
  /* Only three allocations are left at the end, from two stacks: all of them are shown. */
  assert_int_equal(s.at_end_count, 2);
  assert_int_equal(sum(s.at_end, s.at_end_count), s.end_requested);

  char text[WEIR__DESCRIBE_TEXT];
  assert_string_equal(weir__describe_stack(recording, 0, text), "");
  weir__describe_stack(recording, s.holders[0].stack, text);
  assert_non_null(strstr(text, "_conv_forward (conv.py:"));
  assert_non_null(strstr(text, ", from w_resnet_multiscale (workloads.py:"));
  assert_int_equal(s.holders[0].count, 53);
  /* No two rows look alike. */
  for (size_t i = 0; i < s.holder_count; i++)
    for (size_t k = i + 1; k < s.holder_count; k++) {
      char other[WEIR__DESCRIBE_TEXT];
      weir__describe_stack(recording, s.holders[i].stack, text);
      assert_string_not_equal(text, weir__describe_stack(recording, s.holders[k].stack, other));
    }
  weir__recording_free(recording);

  /* No stacks: by size. */
  recording = load("traces/llama_oom");
  summarize(recording, &s);
  assert_false(s.has_stacks);
  assert_int_equal(s.holders[0].size, 1958400000);
  assert_int_equal(s.holders[0].count, 2);
  assert_int_equal(s.holders[0].bytes, 2 * 1958400000ull);
  weir__recording_free(recording);
}

/* A stack is described by the innermost frame and the innermost one of the program; stacks that differ elsewhere are
 * equal. */
TEST(own_frames) {
  static weir__string texts[] = {
      {"", 0},
      {"f", 1},
      {"/usr/lib/python3/dist-packages/torch/nn/functional.py", 0},
      {"/usr/lib/python3/dist-packages/transformers/llama.py", 0},
      {"/home/me/weir/jobs/train.py", 0},
      {"/build/aten/src/ATen/EmptyTensor.cpp", 0},
      {"??", 0},
      {"/opt/weir/lib/libweir.so.0", 0},
      {"/home/me/job.c", 0},
      {"/home/me/weir/memory.py", 0},
      {"/usr/lib/python3.11/threading.py", 0},
      {"/home/you/train.py", 0},
  };
  enum { NAME = 1, TORCH, LIBRARY, OWN, NATIVE, UNKNOWN, WEIR, C, PACKAGE, STANDARD, COPY };
  static weir__recording_frame frames[] = {{.name = NAME, .filename = TORCH, .line = 1},
                                           {.name = NAME, .filename = TORCH, .line = 2},
                                           {.name = NAME, .filename = LIBRARY, .line = 3},
                                           {.name = NAME, .filename = OWN, .line = 4},
                                           {.name = NAME, .filename = NATIVE, .line = 5},
                                           {.name = NAME, .filename = UNKNOWN},
                                           {.name = NAME, .filename = WEIR},
                                           {.name = NAME, .filename = C, .line = 8},
                                           {.name = NAME, .filename = PACKAGE, .line = 9},
                                           {.name = NAME, .filename = STANDARD, .line = 10},
                                           {.name = NAME, .filename = COPY, .line = 4}};
  static const struct {
    size_t count;
    uint32_t frames[5];
    const char *text;
    uint32_t alike;
  } cases[] = {{0, {0}, "", 0},
               {2, {0, 3}, "f (functional.py:1), from f (train.py:4)", 1},
               {3, {0, 1, 3}, "f (functional.py:1), from f (train.py:4)", 1},
               {4, {0, 2, 1, 3}, "f (functional.py:1), from f (train.py:4)", 1},
               {4, {4, 5, 0, 3}, "f (functional.py:1), from f (train.py:4)", 1},
               {3, {0, 2, 9}, "f (functional.py:1), from f (llama.py:3)", 5},
               {2, {1, 9}, "f (functional.py:2)", 6},
               {3, {6, 5, 7}, "f (??:0), from f (job.c:8)", 7},
               {2, {6, 7}, "f (job.c:8)", 8},
               {3, {6, 8, 3}, "f (train.py:4)", 9},
               {1, {10}, "f (train.py:4)", 9}};
  enum { CASES = sizeof cases / sizeof *cases };
  weir__recording_stack stacks[CASES];
  uint32_t all[CASES * 5], *alike;
  for (size_t i = 0; i < CASES; i++) {
    stacks[i] = (weir__recording_stack){.first = 5 * i, .count = (uint32_t)cases[i].count};
    memcpy(all + 5 * i, cases[i].frames, sizeof cases[i].frames);
  }
  weir__recording recording = {.frames = frames,
                               .frame_count = sizeof frames / sizeof *frames,
                               .stacks = stacks,
                               .stack_count = CASES,
                               .stack_frames = all};
  recording.strings.items = texts;
  recording.strings.count = sizeof texts / sizeof *texts;
  assert_int_equal(weir__describe_alike(&recording, &alike), WEIR_OK);
  for (size_t i = 0; i < CASES; i++) {
    char text[WEIR__DESCRIBE_TEXT];
    assert_string_equal(weir__describe_stack(&recording, (uint32_t)i, text), cases[i].text);
    assert_int_equal(alike[i], cases[i].alike);
  }
  free(alike);
}

/* The history from an event on, and up to another: what a ring leaves. */
static weir__recording part_of(const weir__recording *recording, size_t from, size_t count,
                               weir__recording_device *device) {
  weir__recording part = *recording;
  *device = recording->devices[0];
  device->events += from;
  device->event_count = count;
  part.devices = device;
  part.device_count = 1;
  return part;
}

/* What was there before the first event is inferred from the end, so the peak is the same. */
TEST(late) {
  weir__recording *recording = load("traces/llama_oom");
  weir__recording_device device;
  weir__summary whole, s;
  summarize(recording, &whole);
  size_t from = 9001, count = recording->devices[0].event_count - from;
  weir__recording part = part_of(recording, from, count, &device);
  int64_t live = 0;
  for (size_t i = 0; i < from; i++) {
    const weir__recording_entry *e = &recording->devices[0].events[i];
    live += e->action == WEIR_TRACE_ALLOC            ? (int64_t)e->size
            : e->action == WEIR_TRACE_FREE_REQUESTED ? -(int64_t)e->size
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

  /* A round number of events. */
  part = part_of(recording, recording->devices[0].event_count - 4000, 4000, &device);
  summarize(&part, &s);
  assert_int_equal(s.completeness, WEIR__HISTORY_WRAPPED);

  part = part_of(recording, 0, 0, &device);
  summarize(&part, &s);
  assert_int_equal(s.completeness, WEIR__HISTORY_NONE);
  weir__recording_free(recording);
}

TEST(words) {
  char text[32];
  assert_string_equal(weir__describe_span(12, text), "12 us");
  assert_string_equal(weir__describe_span(3400, text), "3.4 ms");
  assert_string_equal(weir__describe_span(1200000, text), "1.20 s");
  assert_string_equal(weir__describe_span(300000000, text), "5 min");
  assert_string_equal(weir__describe_span(9000000000, text), "2.5 h");
  weir__recording *recording = load("traces/llama_oom");
  char phase[WEIR__DESCRIBE_TEXT];
  int64_t begin = recording->annotations[0].time_us;
  assert_string_equal(weir__describe_phase(recording, 0, begin - 1, phase), "");
  assert_string_equal(weir__describe_phase(recording, 0, begin + 1, phase), "in Optimizer.step#AdamW.step");
  assert_string_equal(weir__describe_phase(recording, 0, recording->annotations[1].time_us + 1, phase),
                      "after Optimizer.step#AdamW.step");
  assert_string_equal(weir__describe_phase(recording, 1, begin + 1, phase), "");
  weir__recording_free(recording);
}

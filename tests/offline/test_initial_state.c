/*
 * Histories that lack their beginning. Cut off recordings of real jobs, and off short ones in which memory runs short
 * in every way: what was there is worked out, and the rest is replayed from it without a difference.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/replay_port.h"
#include "offline/analyse/predict.h"
#include "offline/analyse/tune.h"
#include "offline/load.h"
#include "support/length.h"

enum { MIB = 1 << 20 };

/* The same file without its first events. */
static weir__recording part_of(const weir__recording *recording, size_t from, weir__recording_device *device) {
  weir__recording part = *recording;
  *device = recording->devices[0];
  device->events += from;
  device->event_count -= from;
  part.devices = device;
  part.device_count = 1;
  return part;
}

static weir__replayer *open_part(const weir__recording *part) {
  weir__replayer *history = NULL;
  if (weir__replayer_open(part, 0, 0, 0, &history) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  return history;
}

static int64_t peak_of(const weir__replay_report *report) { return report->stats.reserved_bytes[WEIR_STAT_ALL].peak; }

/* ---- The rest is exact ---- */

static void check_cut(const char *name, const weir__recording *recording, size_t from) {
  weir__recording_device device;
  weir__recording part = part_of(recording, from, &device);
  weir__replayer *history = open_part(&part);
  const weir__replay_report *check = weir__replayer_check(history);
  if (check->differences)
    fail_msg("%s from event %zu: %zu differences, %s", name, from, check->differences, check->shown[0]);
  if (check->unknown_frees)
    fail_msg("%s from event %zu: %zu frees of nothing", name, from, check->unknown_frees);
  const weir__state *start = weir__replayer_start(history);
  assert_int_equal(check->begin, start->segment_count ? WEIR__BEGINS_HELD : WEIR__BEGINS_EMPTY);
  /* What is not placed by the file comes to the same. */
  weir__replay_report run;
  weir__capacity capacity = weir__replayer_capacity(history);
  assert_int_equal(weir__replayer_run(history, NULL, &capacity, NULL, &run), WEIR_OK);
  assert_int_equal(run.begin, check->begin);
  if (strstr(name, "traces/"))
    assert_int_equal(peak_of(&run), peak_of(check));
  weir__replayer_close(history);
}

TEST(jobs) {
  static const char *const names[] = {"cuda_graphs",
                                      "cuda_graphs_expandable",
                                      "gpt2_fixed",
                                      "llama_lora_gc",
                                      "llama_oom",
                                      "llama_varlen",
                                      "llama_varlen_expandable_capped",
                                      "llama_varlen_split200",
                                      "resnet_roundup",
                                      "streams_prefetch",
                                      "streams_prefetch_expandable"};
  static const unsigned parts[] = {10, 30, 60};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char name[64];
    snprintf(name, sizeof name, "traces/%s", names[i]);
    weir__recording *recording = load(name);
    for (size_t k = 0; k < sizeof parts / sizeof *parts; k++)
      if (k == i % 3 || usual_or_long(false, true))
        check_cut(name, recording, recording->devices[0].event_count * parts[k] / 100);
    weir__recording_free(recording);
  }
}

/* Also in the middle of requests, whose segments were made before the recording began. */
TEST(anywhere) {
  static const char *const names[] = {"capped_oom",         "capped_streams", "collected",        "collected_retried",
                                      "collected_split",    "emptied",        "split_capped",     "expandable_capped",
                                      "expandable_emptied", "pools_capped",   "large_segments",   "expandable_pools",
                                      "large_pages",        "pools",          "roundup_intervals"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char name[64];
    snprintf(name, sizeof name, "histories/%s", names[i]);
    weir__recording *recording = load(name);
    size_t stride = (size_t)usual_or_long(163, 17);
    for (size_t from = 1 + i; from < recording->devices[0].event_count; from += stride)
      check_cut(name, recording, from);
    weir__recording_free(recording);
  }
}

/* For how long segments were free is not known, and with collection by age it matters. What is guessed may be wrong,
 * and then the replay says so: at most one cut in ten. */
TEST(ages) {
  weir__recording *recording = load("histories/split_rounding");
  size_t cuts = 0, differ = 0, stride = (size_t)usual_or_long(9, 2);
  for (size_t from = 1; from < recording->devices[0].event_count; from += stride) {
    weir__recording_device device;
    weir__recording part = part_of(recording, from, &device);
    weir__replayer *history = open_part(&part);
    differ += weir__replayer_check(history)->differences > 0;
    cuts++;
    weir__replayer_close(history);
  }
  print_message("%zu of %zu cuts differ\n", differ, cuts);
  assert_true(10 * differ <= cuts);
  weir__recording_free(recording);
}

/* ---- The initial state ---- */

/* The same blocks as those that the whole history has left there. */
typedef struct seen {
  const weir__recording *recording;
  size_t event;
  weir__state state;
} seen;

static bool look(void *context, weir_allocator *allocator, size_t event, const weir__replay_report *report) {
  (void)report;
  seen *s = context;
  if (event < s->event)
    return true;
  assert_int_equal(weir__state_of_replay(s->recording, allocator, &s->state), WEIR_OK);
  return false;
}

/* The unused end of a block may look as if it were free. */
static void compare_blocks(const weir__state *a, const weir__state *b) {
  size_t i = 0, k = 0;
  for (;; i++, k++) {
    while (i < a->block_count && !weir__state_is_active(&a->blocks[i]))
      i++;
    while (k < b->block_count && !weir__state_is_active(&b->blocks[k]))
      k++;
    if (i == a->block_count || k == b->block_count)
      break;
    assert_int_equal(a->blocks[i].address, b->blocks[k].address);
    assert_int_equal(a->blocks[i].state, b->blocks[k].state);
    assert_int_equal(a->blocks[i].requested, b->blocks[k].requested);
  }
  assert_true(i == a->block_count && k == b->block_count);
}

TEST(blocks) {
  static const char *const names[] = {"traces/llama_varlen", "traces/streams_prefetch_expandable",
                                      "histories/expandable_emptied", "histories/pools"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    weir__recording *recording = load(names[i]);
    size_t from = recording->devices[0].event_count / 2;
    while (recording->devices[0].events[from - 1].action != WEIR_TRACE_ALLOC) /* nothing is half done */
      from++;
    weir__recording_device device;
    weir__recording part = part_of(recording, from, &device);
    weir__replayer *whole = open_part(recording), *history = open_part(&part);
    seen s = {.recording = recording, .event = from - 1};
    weir__replay_report report;
    assert_int_equal(weir__replayer_recheck(whole, &(weir__replay_callback){look, &s}, &report), WEIR_OK);
    const weir__state *start = weir__replayer_start(history);
    assert_int_equal(start->reserved, s.state.reserved);
    assert_int_equal(start->segment_count, s.state.segment_count);
    for (size_t k = 0; k < start->segment_count; k++) {
      assert_int_equal(start->segments[k].address, s.state.segments[k].address);
      assert_int_equal(start->segments[k].size, s.state.segments[k].size);
      assert_int_equal(start->segments[k].is_small, s.state.segments[k].is_small);
      assert_int_equal(start->segments[k].stream, s.state.segments[k].stream);
      assert_memory_equal(start->segments[k].pool, s.state.segments[k].pool, sizeof start->segments[k].pool);
    }
    compare_blocks(start, &s.state);
    weir__state_clear(&s.state);
    weir__replayer_close(history);
    weir__replayer_close(whole);
    weir__recording_free(recording);
  }
}

/* ---- Predictions ---- */

/* Under other settings it is placed anew, and what the job did after that decides: with expandable segments there is
 * little fragmentation, whatever the order was. */
TEST(anew) {
  weir__recording *recording = load("traces/llama_varlen");
  weir__recording_device device;
  weir__recording part = part_of(recording, recording->devices[0].event_count * 3 / 10, &device);
  weir__replayer *history = open_part(&part);
  weir__settings expandable;
  weir__replay_report report;
  const weir__capacity all = {.limit = UINT64_MAX};
  assert_int_equal(weir__settings_parse(NULL, "expandable_segments:True", &expandable), WEIR_OK);
  assert_int_equal(weir__replayer_run(history, &expandable, &all, NULL, &report), WEIR_OK);
  assert_int_equal(report.begin, WEIR__BEGINS_ANEW);
  assert_int_equal(report.unplaced, 0);
  double measured = 21437087744.0;
  if ((double)peak_of(&report) < 0.99 * measured || (double)peak_of(&report) > 1.01 * measured)
    fail_msg("predicted %lld bytes, measured %.0f", (long long)peak_of(&report), measured);
  assert_int_equal(report.allocations, weir__replayer_check(history)->allocations);

  /* The recorded ones, if one says so; in less memory than it had, in any case. */
  assert_int_equal(weir__replayer_run(history, weir__replayer_settings(history), &all, NULL, &report), WEIR_OK);
  assert_int_equal(report.begin, WEIR__BEGINS_ANEW);
  const weir__capacity less = {.memory = weir__replayer_start(history)->reserved - 2 * MIB, .limit = UINT64_MAX};
  assert_int_equal(weir__replayer_run(history, NULL, &less, NULL, &report), WEIR_OK);
  assert_int_equal(report.begin, WEIR__BEGINS_ANEW);

  /* What does not fit is a failure. */
  const weir__capacity tiny = {.memory = 1ull << 30, .limit = UINT64_MAX};
  assert_int_equal(weir__replayer_run(history, NULL, &tiny, NULL, &report), WEIR_OK);
  assert_true(report.unplaced > 0 && report.failures >= report.unplaced);
  assert_int_equal(report.first_failure, 0);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

/* Settings that are the recorded ones do not win over them: all begin in the same way. */
TEST(tune) {
  weir__recording *recording = load("traces/gpt2_fixed");
  weir__recording_device device;
  weir__recording part = part_of(recording, recording->devices[0].event_count / 2, &device);
  const weir__replayer *history = open_part(&part);
  weir__costs costs;
  weir__costs_default(&costs);
  weir__tune_options options = {.histories = &history, .history_count = 1, .costs = &costs, .fit = true};
  weir__tune_result result;
  assert_int_equal(weir__tune(&options, &result), WEIR_OK);
  assert_int_equal(result.candidates[0].of[0].begin, WEIR__BEGINS_ANEW);
  bool found = false;
  for (size_t i = 1; i < result.candidate_count; i++)
    if (weir__settings_equal(&result.candidates[i].settings, weir__replayer_settings(history))) {
      found = true;
      assert_int_equal(result.candidates[i].score.peak, result.candidates[0].score.peak);
    }
  assert_true(found);
  assert_true(result.fit_recorded.bytes <= result.candidates[0].score.peak + 2 * MIB);
  weir__tune_clear(&result);
  weir__replayer_close((weir__replayer *)history);
  weir__recording_free(recording);
}

/* ---- By hand ---- */

#define EVENT_IN(number, what, at, bytes)                                                                              \
  { .action = WEIR_TRACE_##what, .address = (at), .size = (uint64_t)(bytes), .pool = (number) }
#define EVENT(what, at, bytes) EVENT_IN(WEIR__RECORDING_NO_POOL, what, at, bytes)

static const uint64_t A = 1ull << 40;

/* A recording whose segments overlap, with blocks outside and pages that are none: it is used as far as it makes sense.
 * */
TEST(odd) {
  weir__recording_block blocks[] = {
      {.address = A, .size = 8 * MIB, .requested = 8 * MIB, .state = WEIR_BLOCK_ACTIVE_ALLOCATED},
      {.address = A + 4 * MIB, .size = 8 * MIB, .requested = 8 * MIB, .state = WEIR_BLOCK_ACTIVE_ALLOCATED},
      {.address = A + 13, .size = 100, .requested = 100, .state = WEIR_BLOCK_ACTIVE_ALLOCATED},
      {.address = UINT64_MAX - 511, .size = 512, .requested = 512, .state = WEIR_BLOCK_ACTIVE_ALLOCATED}};
  weir__recording_segment segments[] = {
      {.address = A, .size = 20 * MIB, .blocks = blocks, .block_count = 4, .is_large = true},
      {.address = A + 2 * MIB, .size = 20 * MIB, .is_large = true},
      {.address = A + 1, .size = 3, .is_expandable = true},
      {.address = A + 64 * MIB, .size = 1ull << 62, .is_expandable = true},
      {.address = 0, .size = UINT64_MAX, .is_large = true}};
  weir__recording_entry events[] = {
      EVENT(SEGMENT_UNMAP, A + 4 * MIB, 20 * MIB), EVENT(SEGMENT_MAP, UINT64_MAX - 5, 20 * MIB),
      EVENT(FREE_REQUESTED, A + 7, UINT64_MAX),    EVENT(FREE_COMPLETED, 0, 0),
      EVENT(SEGMENT_FREE, A + 10 * MIB, 2 * MIB),  EVENT(ALLOC, A + 8 * MIB, 5 * MIB)};
  int64_t streams[1] = {0};
  weir__recording_pool pools[1] = {{{0, 0}}};
  weir__recording_device device = {.segments = segments, .segment_count = 5, .events = events, .event_count = 6};
  weir__recording recording = {
      .devices = &device, .device_count = 1, .streams = streams, .stream_count = 1, .pools = pools, .pool_count = 1};
  weir__replayer *history = NULL;
  weir_status status = weir__replayer_open(&recording, 0, 0, 0, &history);
  if (status == WEIR_OK)
    assert_true(weir__replayer_check(history)->differences > 0);
  weir__replayer_close(history);
}

/* Two private pools from before the recording, one of which is used in it. They are released, and their memory goes
 * back with all that is cached. */
TEST(released_pools) {
  const uint64_t b = A + 64 * MIB, c = A + 128 * MIB;
  weir__recording_block block = {
      .address = c, .size = 12 * MIB, .requested = 12 * MIB, .state = WEIR_BLOCK_ACTIVE_ALLOCATED};
  weir__recording_segment segment = {
      .address = c, .size = 12 * MIB, .blocks = &block, .block_count = 1, .is_large = true};
  weir__recording_entry events[] = {EVENT_IN(1, FREE_REQUESTED, A, 12 * MIB), EVENT_IN(1, FREE_COMPLETED, A, 12 * MIB),
                                    EVENT_IN(2, FREE_REQUESTED, b, 12 * MIB), EVENT_IN(2, FREE_COMPLETED, b, 12 * MIB),
                                    EVENT_IN(2, ALLOC, b, 12 * MIB),          EVENT_IN(2, FREE_REQUESTED, b, 12 * MIB),
                                    EVENT_IN(2, FREE_COMPLETED, b, 12 * MIB), EVENT_IN(1, SEGMENT_FREE, A, 12 * MIB),
                                    EVENT_IN(2, SEGMENT_FREE, b, 12 * MIB),   EVENT_IN(0, SEGMENT_ALLOC, c, 12 * MIB),
                                    EVENT_IN(0, ALLOC, c, 12 * MIB)};
  int64_t streams[1] = {0};
  weir__recording_pool pools[] = {{{0, 0}}, {{0, 6}}, {{0, 5}}}; /* the pool that was made last goes first */
  weir__recording_device device = {
      .segments = &segment, .segment_count = 1, .events = events, .event_count = sizeof events / sizeof *events};
  weir__recording recording = {
      .devices = &device, .device_count = 1, .streams = streams, .stream_count = 1, .pools = pools, .pool_count = 3};
  weir__replayer *history = open_part(&recording);
  const weir__replay_report *check = weir__replayer_check(history);
  assert_int_equal(weir__replayer_start(history)->segment_count, 2);
  if (check->differences)
    fail_msg("%zu differences, %s", check->differences, check->shown[0]);
  weir__replayer_close(history);
}

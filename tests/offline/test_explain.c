/*
 * Explanations: of jobs that ran out of memory, of histories by hand that have one cause each, and of histories that
 * lack their beginning. What is said to help is replayed here once more.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/explain.h"
#include "offline/load.h"
#include "support/length.h"
#include "weir/adapter.h"

enum { MIB = 1 << 20 };

static void explain(const weir__recording *recording, const weir__explain_options *options, weir__explanation *x) {
  if (weir__explain(recording, options, x) != WEIR_OK)
    fail_msg("%s", weir_last_error());
}

/* Every reserved byte has a use, and every pin is an allocation of the history. */
static void check_sums(const weir__recording *recording, const weir__explanation *x) {
  uint64_t all = 0;
  for (int i = 0; i < WEIR__USES; i++)
    all += x->bytes[i];
  assert_int_equal(all, x->reserved);
  for (size_t i = 0; i < x->pin_count; i++) {
    const weir__pin *p = &x->pins[i];
    assert_true(p->block_count > 0 && p->block_count <= p->count);
    assert_true(p->pinned <= p->bytes);
    for (size_t k = 0; k < p->block_count; k++) {
      const weir__explained_block *b = &p->blocks[k];
      assert_true(b->address >= p->segment && b->address + b->size <= p->segment + p->bytes);
      if (b->event == SIZE_MAX)
        continue;
      const weir__recording_entry *e = &recording->devices[x->device].events[b->event];
      assert_int_equal(e->action, WEIR_TRACE_ALLOC);
      assert_int_equal(e->address, b->address);
      assert_int_equal(e->size, b->requested);
    }
  }
}

/* A setting that works, replayed without the explanation's help: nothing fails up to the request. What works in some
 * orders of addresses only may do either. */
static void check_trials(const weir__recording *recording, const weir__explanation *x) {
  for (size_t i = 0; i < x->trial_count; i++) {
    const weir__trial *t = &x->trials[i];
    if (t->remedy != WEIR__REMEDY_SETTING)
      continue;
    weir__replay_report report;
    weir__replay_options options = {.conf = t->conf};
    if (weir__replay(recording, &options, &report) != WEIR_OK)
      fail_msg("%s", weir_last_error());
    bool is_served = !report.failures || report.first_failure > x->event;
    assert_true(t->orders == 1 || t->orders == WEIR__TRIAL_ORDERS);
    assert_int_equal(t->works, t->orders_served == t->orders);
    if (is_served != t->works && (!t->orders_served || t->works))
      fail_msg("%s: works %d, replayed %d", t->conf, t->works, is_served);
    if (t->works)
      assert_true(t->reserved <= x->limit);
  }
}

static const weir__trial *find_setting(const weir__explanation *x, const char *change) {
  for (size_t i = 0; i < x->trial_count; i++)
    if (x->trials[i].remedy == WEIR__REMEDY_SETTING && strcmp(x->trials[i].change, change) == 0)
      return &x->trials[i];
  fail_msg("%s was not tried", change);
  return NULL;
}

TEST(llama_oom) {
  weir__recording *recording = load("traces/llama_oom");
  weir__explanation x;
  explain(recording, &(weir__explain_options){0}, &x);
  assert_int_equal(x.moment, WEIR_OFFLINE_AT_OOM);
  assert_int_equal(x.event, 13750);
  assert_int_equal(x.differences, 0);
  assert_false(x.is_from_file);
  assert_int_equal(x.request, 1958400000);
  assert_int_equal(x.device_free, 127741198336);
  /* The job allowed itself 0.09 of 150109880320 bytes. */
  assert_true(x.limit_is_inferred);
  assert_true(x.limit <= 13509889228 && x.limit_max >= 13509889228);
  check_sums(recording, &x);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_FRAGMENTED);
  assert_true(x.largest_hole < x.rounded);
  assert_true(x.bytes[WEIR__USE_FREE_SPLIT] + x.limit - x.reserved > x.rounded);
  assert_false(x.pins_serve);
  assert_true(x.pin_count > 0 && x.pin_room >= x.reserved + x.wanted - x.limit);
  assert_true(x.is_proven);
  assert_true(find_setting(&x, "expandable_segments:True")->works);
  assert_false(find_setting(&x, "max_split_size_mb:128")->works);
  check_trials(recording, &x);

  /* With the real limit. */
  explain(recording, &(weir__explain_options){.memory = 150109880320, .fraction = 0.09}, &x);
  assert_false(x.limit_is_inferred);
  assert_int_equal(x.limit, 13509889229);
  assert_int_equal(x.limit_max, x.limit);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_FRAGMENTED);
  assert_true(find_setting(&x, "expandable_segments:True")->works);

  /* Nothing is predicted with no_trials. */
  explain(recording, &(weir__explain_options){.no_trials = true}, &x);
  assert_int_equal(x.trial_count, 0);
  weir__recording_free(recording);
}

TEST(histories) {
  static const char *const names[] = {"capped_oom",      "capped_streams",    "collected",   "collected_retried",
                                      "collected_split", "expandable_capped", "large_pages", "pools_capped",
                                      "split_capped",    "split_rounding"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char name[64];
    snprintf(name, sizeof name, "histories/%s", names[i]);
    weir__recording *recording = load(name);
    weir__explanation x;
    explain(recording, &(weir__explain_options){0}, &x);
    assert_int_equal(x.moment, WEIR_OFFLINE_AT_OOM);
    assert_int_equal(x.differences, 0);
    assert_true(x.is_proven);
    check_sums(recording, &x);
    check_trials(recording, &x);
    bool is_exhausted = x.bytes[WEIR__USE_LIVE] + x.bytes[WEIR__USE_ROUNDING] + x.rounded > x.limit;
    assert_int_equal(x.cause == WEIR_OFFLINE_CAUSE_EXHAUSTED, is_exhausted);
    if (is_exhausted)
      for (size_t k = 0; k < x.trial_count; k++)
        if (strstr(x.trials[k].conf, "roundup") == NULL) /* less rounding may be just what is missing */
          assert_false(x.trials[k].works);
    weir__recording_free(recording);
  }
}

/* ---- Moments ---- */

TEST(moments) {
  weir__recording *recording = load("traces/resnet_stacks");
  weir__explanation x;
  explain(recording, &(weir__explain_options){0}, &x);
  assert_int_equal(x.moment, WEIR_OFFLINE_AT_PEAK);
  assert_false(x.has_request);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_NONE);
  assert_int_equal(x.trial_count, 0);
  assert_int_equal(x.bytes[WEIR__USE_LIVE], 9454177936); /* PyTorch's own peak of requested_bytes */
  check_sums(recording, &x);
  assert_true(x.has_stacks);

  weir__explanation at;
  explain(recording, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_EVENT, .event = x.event}, &at);
  assert_memory_equal(at.bytes, x.bytes, sizeof x.bytes);

  /* The end is what the file lists, and the replay comes to the same. */
  explain(recording, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_END}, &x);
  assert_true(x.is_from_file);
  check_sums(recording, &x);
  explain(recording,
          &(weir__explain_options){.moment = WEIR_OFFLINE_AT_EVENT, .event = recording->devices[0].event_count - 1},
          &at);
  assert_false(at.is_from_file);
  assert_memory_equal(at.bytes, x.bytes, sizeof x.bytes);
  assert_memory_equal(at.blocks, x.blocks, sizeof x.blocks);

  assert_int_equal(weir__explain(recording, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_OOM}, &x),
                   WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "no request that ran out of memory"));
  assert_int_equal(
      weir__explain(recording, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_EVENT, .event = 1 << 20}, &x),
      WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(weir__explain(recording, &(weir__explain_options){.device = 1}, &x), WEIR_ERROR_INVALID_DEVICE);
  weir__recording_free(recording);
}

/* ---- Histories that lack their beginning ---- */

static weir__recording part_of(const weir__recording *recording, size_t from, weir__recording_device *device) {
  weir__recording part = *recording;
  *device = recording->devices[0];
  device->events += from;
  device->event_count -= from;
  part.devices = device;
  part.device_count = 1;
  return part;
}

/* What was there is installed block by block: the replay does not differ, and the answer is the same. */
TEST(late) {
  static const char *const names[] = {"traces/llama_oom",
                                      "traces/gpt2_fixed",
                                      "traces/streams_prefetch",
                                      "traces/cuda_graphs",
                                      "histories/capped_streams",
                                      "histories/pools",
                                      "traces/llama_varlen_expandable",
                                      "traces/cuda_graphs_expandable"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    weir__recording *recording = load(names[i]);
    for (size_t part_number = 1; part_number < 4; part_number += 2) {
      weir__recording_device device;
      size_t from = recording->devices[0].event_count * part_number / 4;
      weir__recording part = part_of(recording, from, &device);
      weir__explanation late, whole;
      explain(&part, &(weir__explain_options){.no_trials = true}, &late);
      if (late.differences)
        fail_msg("%s from event %zu: %s", names[i], from, late.difference);
      assert_int_equal(late.completeness, WEIR__HISTORY_LATE);
      assert_true(late.rebuilt_segments > 0);
      assert_false(late.is_from_file);
      check_sums(&part, &late);
      explain(recording,
              &(weir__explain_options){.moment = WEIR_OFFLINE_AT_EVENT, .event = from + late.event, .no_trials = true},
              &whole);
      assert_int_equal(late.reserved, whole.reserved);
      assert_int_equal(late.cause, whole.cause);
      for (int use = WEIR__USE_WAITING; use < WEIR__USES; use++)
        assert_int_equal(late.bytes[use], whole.bytes[use]);
    }
    weir__recording_free(recording);
  }
}

/* Without a list of segments the state is not known: nothing is predicted, and only what the recording lists is shown.
 * */
TEST(late_and_unlisted) {
  weir__recording *recording = load("traces/llama_varlen_expandable");
  weir__recording_device device;
  weir__recording part = part_of(recording, 40000, &device);
  weir__explanation x;
  device.segment_count = 0;
  explain(&part, &(weir__explain_options){0}, &x);
  assert_true(x.differences > 0);
  assert_true(x.is_from_file);
  assert_int_equal(x.moment, WEIR_OFFLINE_AT_END);
  assert_int_equal(x.trial_count, 0);
  check_sums(&part, &x);
  assert_int_equal(weir__explain(&part, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_PEAK}, &x),
                   WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "--at end"));

  /* A recording of WEIR_RECORD lists no segments: what there was is not known, rather than nothing. */
  part.is_events_only = true;
  explain(&part, &(weir__explain_options){0}, &x);
  assert_true(x.is_unknown);
  explain(&part, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_END}, &x);
  assert_true(x.is_unknown);
  assert_int_equal(weir__explain(&part, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_PEAK}, &x),
                   WEIR_ERROR_INVALID_ARGUMENT);
  assert_null(strstr(weir_last_error(), "--at end"));

  /* From a whole one its end is replayed. */
  part = part_of(recording, 0, &device);
  part.is_events_only = true;
  weir__explanation listed;
  explain(recording, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_END}, &listed);
  device.segment_count = 0;
  explain(&part, &(weir__explain_options){.moment = WEIR_OFFLINE_AT_END}, &x);
  assert_false(x.is_unknown);
  assert_true(x.reserved > 0);
  assert_int_equal(x.reserved, listed.reserved);
  assert_memory_equal(x.bytes, listed.bytes, sizeof x.bytes);
  weir__recording_free(recording);
}

/* ---- By hand: one cause each ---- */

#define EVENT(what, at, bytes)                                                                                         \
  { .action = WEIR_TRACE_##what, .address = (at), .size = (uint64_t)(bytes), .pool = WEIR__RECORDING_NO_POOL }
#define ON(number, what, at, bytes)                                                                                    \
  {                                                                                                                    \
    .action = WEIR_TRACE_##what, .address = (at), .size = (uint64_t)(bytes), .pool = WEIR__RECORDING_NO_POOL,          \
    .stream = (number)                                                                                                 \
  }

/* `memory` is what the file says of the device. */
static weir_status explain_with(weir__recording_entry *events, size_t count, uint64_t memory,
                                const weir__explain_options *options, weir__explanation *x) {
  int64_t streams[2] = {0, 0x7777};
  weir__recording_pool pools[1] = {{{0, 0}}};
  weir__recording_stack stacks[1] = {{0, 0}};
  weir__recording_device device = {.events = events, .event_count = count, .memory = memory};
  weir__recording recording = {.devices = &device,
                               .device_count = 1,
                               .streams = streams,
                               .stream_count = 2,
                               .pools = pools,
                               .pool_count = 1,
                               .stacks = stacks,
                               .stack_count = 1};
  return weir__explain(&recording, options, x);
}

static void explain_events(weir__recording_entry *events, size_t count, weir__explanation *x) {
  if (explain_with(events, count, 0, &(weir__explain_options){.memory = 1ull << 30, .fraction = 0.125}, x))
    fail_msg("%s", weir_last_error());
}

static const uint64_t A = 1ull << 40, B = 1ull << 41;
static const uint64_t FREE = 904ull * MIB; /* of 1 GiB, when 120 MiB are reserved */

/* 120 of 128 MiB, in use. */
TEST(exhausted) {
  weir__recording_entry events[] = {EVENT(SEGMENT_ALLOC, A, 120 * MIB), EVENT(ALLOC, A, 120 * MIB),
                                    EVENT(OOM, FREE, 50 * MIB)};
  weir__explanation x;
  explain_events(events, 3, &x);
  assert_int_equal(x.differences, 0);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_EXHAUSTED);
  assert_int_equal(x.device_free, FREE);
  for (size_t i = 0; i < x.trial_count; i++)
    assert_false(x.trials[i].works);
}

/* A block of 20 MiB in the middle of 120. */
TEST(pinned) {
  weir__recording_entry events[] = {
      EVENT(SEGMENT_ALLOC, A, 120 * MIB),  EVENT(ALLOC, A, 120 * MIB),         EVENT(FREE_REQUESTED, A, 120 * MIB),
      EVENT(FREE_COMPLETED, A, 120 * MIB), EVENT(ALLOC, A, 50 * MIB),          EVENT(ALLOC, A + 50 * MIB, 20 * MIB),
      EVENT(FREE_REQUESTED, A, 50 * MIB),  EVENT(FREE_COMPLETED, A, 50 * MIB), EVENT(OOM, FREE, 80 * MIB)};
  weir__explanation x;
  explain_events(events, sizeof events / sizeof *events, &x);
  assert_int_equal(x.differences, 0);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_FRAGMENTED);
  assert_int_equal(x.largest_hole, 50 * MIB);
  assert_int_equal(x.bytes[WEIR__USE_FREE_SPLIT], 100 * MIB);
  assert_int_equal(x.hole_count, 2);
  for (size_t i = 0; i < 2; i++) {
    assert_int_equal(x.holes[i].address, i ? A + 70 * MIB : A);
    assert_int_equal(x.holes[i].size, 50 * MIB);
    assert_int_equal(x.holes[i].use, WEIR__USE_FREE_SPLIT);
  }
  assert_true(x.pins_serve);
  assert_int_equal(x.pin_count, 1);
  assert_int_equal(x.pins[0].count, 1);
  assert_int_equal(x.pins[0].pinned, 20 * MIB);
  assert_int_equal(x.pins[0].blocks[0].event, 5);
}

/* The other stream has split its segment, so it cannot be released. */
TEST(other_stream) {
  weir__recording_entry events[] = {ON(1, SEGMENT_ALLOC, A, 120 * MIB),  ON(1, ALLOC, A, 120 * MIB),
                                    ON(1, FREE_REQUESTED, A, 120 * MIB), ON(1, FREE_COMPLETED, A, 120 * MIB),
                                    ON(1, ALLOC, A, 20 * MIB),           ON(0, OOM, FREE, 80 * MIB)};
  weir__explanation x;
  explain_events(events, sizeof events / sizeof *events, &x);
  assert_int_equal(x.differences, 0);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_STREAMS);
  assert_int_equal(x.bytes[WEIR__USE_FREE_STREAM], 100 * MIB);
  assert_int_equal(x.largest_hole, 0);
  assert_int_equal(x.largest_elsewhere, 100 * MIB);
  assert_int_equal(x.hole_count, 1);
  assert_int_equal(x.holes[0].address, A + 20 * MIB);
  assert_int_equal(x.holes[0].use, WEIR__USE_FREE_STREAM);
  assert_false(x.pins_serve);
  assert_int_equal(x.pin_count, 1);
  assert_int_equal(x.pins[0].blocks[0].event, 4);
}

/* Small blocks hold their segments of 2 MiB. */
TEST(size_class) {
  enum { SEGMENTS = 60 };
  weir__recording_entry events[SEGMENTS * 5 + 1];
  size_t count = 0;
  for (size_t i = 0; i < SEGMENTS; i++) {
    uint64_t at = A + i * 2 * MIB;
    events[count++] = (weir__recording_entry)EVENT(SEGMENT_ALLOC, at, 2 * MIB);
    events[count++] = (weir__recording_entry)EVENT(ALLOC, at, MIB);
    events[count++] = (weir__recording_entry)EVENT(ALLOC, at + MIB, MIB);
  }
  for (size_t i = 0; i < SEGMENTS; i++) {
    events[count++] = (weir__recording_entry)EVENT(FREE_REQUESTED, A + i * 2 * MIB, MIB);
    events[count++] = (weir__recording_entry)EVENT(FREE_COMPLETED, A + i * 2 * MIB, MIB);
  }
  events[count++] = (weir__recording_entry)EVENT(OOM, FREE, 40 * MIB);
  weir__explanation x;
  explain_events(events, count, &x);
  assert_int_equal(x.differences, 0);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_CLASS);
  assert_int_equal(x.bytes[WEIR__USE_FREE_CLASS], SEGMENTS * MIB);
  assert_int_equal(x.pin_segments, 16); /* 32 of 120 MiB have to go */
  assert_int_equal(x.pin_blocks, 16);
}

/* A request that failed though another stream gave back its block in time: PyTorch did not look again. */
TEST(waiting) {
  weir__recording_entry events[] = {EVENT(SEGMENT_ALLOC, A, 120 * MIB),  EVENT(ALLOC, A, 120 * MIB),
                                    EVENT(FREE_REQUESTED, A, 120 * MIB), EVENT(ANNOTATE, 0, 0),
                                    EVENT(FREE_COMPLETED, A, 120 * MIB), EVENT(OOM, FREE, 50 * MIB)};
  weir__explanation x;
  explain_events(events, sizeof events / sizeof *events, &x);
  assert_int_equal(x.differences, 0);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_WAITING);
  assert_true(x.trial_count > 0);
  assert_int_equal(x.trials[0].remedy, WEIR__REMEDY_WAIT);
  assert_true(x.trials[0].works);
}

/* ---- The limit, and what was missing ---- */

/* Ten blocks of 100 MiB on a device of 1 GiB, and then one more, which is too much whatever is known of the device. */
TEST(full_device) {
  weir__recording_entry events[21];
  size_t count = 0;
  for (uint64_t i = 0; i < 10; i++) {
    events[count++] = (weir__recording_entry)EVENT(SEGMENT_ALLOC, A + i * 100 * MIB, 100 * MIB);
    events[count++] = (weir__recording_entry)EVENT(ALLOC, A + i * 100 * MIB, 100 * MIB);
  }
  events[count++] = (weir__recording_entry)EVENT(OOM, 24 * MIB, 100 * MIB);
  const struct {
    uint64_t recorded, given;
  } known[] = {{1ull << 30, 0}, {1ull << 30, 1ull << 30}, {0, 1ull << 30}, {0, 4ull << 30}, {0, 0}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    weir__explanation x;
    if (explain_with(events, count, known[i].recorded, &(weir__explain_options){.memory = known[i].given}, &x))
      fail_msg("%s", weir_last_error());
    assert_int_equal(x.moment, WEIR_OFFLINE_AT_OOM);
    assert_int_equal(x.differences, 0);
    assert_false(x.is_from_file);
    assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_EXHAUSTED);
    assert_true(x.limit_is_device && !x.limit_is_inferred);
    assert_int_equal(x.limit, 1ull << 30);
    assert_int_equal(x.limit_max, x.limit);
    assert_true(x.has_missing);
    assert_int_equal(x.missing_min, 76 * MIB);
    assert_int_equal(x.missing_max, 76 * MIB);
    assert_int_equal(x.fit_request, 1100ull * MIB);
    assert_int_equal(x.fit_recording, 1100ull * MIB);
    assert_true(x.is_proven);
    for (size_t k = 0; k < x.trial_count; k++)
      assert_false(x.trials[k].works);
  }
}

/* Impossible options are refused; the device's size alone does not hide the failure. */
TEST(given_memory) {
  weir__recording *recording = load("traces/llama_oom");
  const weir__explain_options wrong[] = {{.memory = 80},
                                         {.memory = 10ull << 30},
                                         {.memory = 80ull << 30}, /* 119 GiB of it were free */
                                         {.memory = 150109880320, .fraction = 0.05},
                                         {.memory = 150109880320, .fraction = 0.5}};
  weir__explanation x, inferred;
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_int_equal(weir__explain(recording, &wrong[i], &x), WEIR_ERROR_INVALID_ARGUMENT);
    assert_non_null(strstr(weir_last_error(), "--memory"));
    assert_non_null(strstr(weir_last_error(), "leave"));
  }
  explain(recording, &(weir__explain_options){0}, &inferred);
  explain(recording, &(weir__explain_options){.memory = 150109880320}, &x);
  assert_int_equal(x.moment, WEIR_OFFLINE_AT_OOM);
  assert_true(x.has_other_limit);
  assert_true(x.limit_is_inferred);
  assert_int_equal(x.limit, inferred.limit);
  assert_int_equal(x.limit_max, inferred.limit_max);
  assert_int_equal(x.cause, inferred.cause);
  assert_int_equal(x.trial_count, inferred.trial_count);
  assert_int_equal(x.missing_max, inferred.missing_max);
  /* The job allowed itself 13509889229 bytes, so that 1140814643 were missing. */
  assert_true(x.missing_min <= 1140814643 && x.missing_max >= 1140814643);
  explain(recording, &(weir__explain_options){.memory = 150109880320, .fraction = 0.09}, &x);
  assert_true(x.has_missing);
  assert_int_equal(x.missing_min, 1140814643);
  assert_int_equal(x.missing_max, 1140814643);
  weir__recording_free(recording);
}

enum { MAX_EVENTS = 1 << 16, SLOTS = 48 };

typedef struct job {
  weir_driver *driver;
  weir_allocator *allocator;
  weir_cu_deviceptr filler; /* what others have of the device */
  weir__recording_entry *events;
  size_t count;
  size_t failed; /* the request */
} job;

static void note(void *context, const weir_trace_entry *entry) {
  static const uint8_t actions[] = {[WEIR_TRACE_ALLOC] = WEIR_TRACE_ALLOC,
                                    [WEIR_TRACE_FREE_REQUESTED] = WEIR_TRACE_FREE_REQUESTED,
                                    [WEIR_TRACE_FREE_COMPLETED] = WEIR_TRACE_FREE_COMPLETED,
                                    [WEIR_TRACE_SEGMENT_ALLOC] = WEIR_TRACE_SEGMENT_ALLOC,
                                    [WEIR_TRACE_SEGMENT_FREE] = WEIR_TRACE_SEGMENT_FREE,
                                    [WEIR_TRACE_SEGMENT_MAP] = WEIR_TRACE_SEGMENT_MAP,
                                    [WEIR_TRACE_SEGMENT_UNMAP] = WEIR_TRACE_SEGMENT_UNMAP,
                                    [WEIR_TRACE_OOM] = WEIR_TRACE_OOM};
  job *j = context;
  assert_true(j->count < MAX_EVENTS);
  j->events[j->count++] = (weir__recording_entry){.action = actions[entry->action],
                                                  .address = entry->address,
                                                  .size = entry->bytes,
                                                  .pool = WEIR__RECORDING_NO_POOL};
}

/* Others take so much of the device, and no more. */
static void fill(job *j, uint64_t bytes) {
  if (j->filler)
    assert_int_equal(j->driver->MemFree(j->driver, j->filler), WEIR_CU_SUCCESS);
  assert_int_equal(j->driver->MemAlloc(j->driver, &j->filler, bytes), WEIR_CU_SUCCESS);
}

/* A job with requests of all sizes that runs out of memory: within a limit, or on a device that other processes use,
 * too. */
static void run_job(job *j, unsigned seed, const char *conf, uint64_t memory, uint64_t limit, uint64_t others) {
  weir_ledger_options ledger;
  weir_allocator_options options;
  void *slots[SLOTS] = {0};
  weir_ledger_options_init(&ledger);
  weir_allocator_options_init(&options);
  ledger.bytes = memory;
  options.conf = conf;
  assert_int_equal(weir_driver_open_ledger(&ledger, &j->driver), WEIR_OK);
  j->driver->Init(j->driver, 0);
  assert_int_equal(weir_allocator_create(j->driver, &options, &j->allocator), WEIR_OK);
  if (others) {
    weir_cu_context context;
    assert_int_equal(j->driver->DevicePrimaryCtxRetain(j->driver, &context, 0), WEIR_CU_SUCCESS);
    assert_int_equal(j->driver->CtxSetCurrent(j->driver, context), WEIR_CU_SUCCESS);
    fill(j, others);
  }
  assert_int_equal(weir_allocator_set_limit(j->allocator, 0, limit), WEIR_OK);
  assert_int_equal(weir_allocator_set_witness(j->allocator, note, j, WEIR_WITNESS_ALL), WEIR_OK);
  srand(seed);
  weir_status status = WEIR_OK;
  for (unsigned round = 0; !status; round++) {
    assert_true(round < 10000);
    size_t slot = (size_t)rand() % SLOTS, most = rand() % 4 ? 24 * MIB : 200 * MIB;
    if (slots[slot]) {
      weir_allocator_free(j->allocator, slots[slot]);
      slots[slot] = NULL;
    }
    j->failed = 1 + (size_t)rand() % (most + round * (most / 256));
    if (rand() % 3)
      status = weir_allocator_alloc(j->allocator, 0, j->failed, NULL, &slots[slot]);
  }
  assert_int_equal(status, WEIR_ERROR_OUT_OF_MEMORY);
  assert_int_equal(weir_allocator_set_witness(j->allocator, NULL, NULL, WEIR_WITNESS_ALL), WEIR_OK);
}

/* Whether the request would have been served then. */
static bool is_served(job *j) {
  void *pointer;
  weir_status status = weir_allocator_alloc(j->allocator, 0, j->failed, NULL, &pointer);
  assert_true(status == WEIR_OK || status == WEIR_ERROR_OUT_OF_MEMORY);
  if (!status)
    weir_allocator_free(j->allocator, pointer);
  return !status;
}

static void end_job(job *j) {
  weir_allocator_destroy(j->allocator);
  weir_driver_close(j->driver);
}

/* Settings are recorded with a file: here as PyTorch writes them. */
static void explain_job(const job *j, bool is_expandable, const weir__explain_options *options, weir__explanation *x) {
  int64_t streams[1] = {0};
  weir__recording_pool pools[1] = {{{0, 0}}};
  weir__recording_stack stacks[1] = {{0, 0}};
  weir__recording_setting setting = {
      .key = "expandable_segments", .kind = WEIR__SETTING_BOOL, .integer = is_expandable};
  weir__recording_device device = {.events = j->events, .event_count = j->count};
  weir__recording recording = {.devices = &device,
                               .device_count = 1,
                               .streams = streams,
                               .stream_count = 1,
                               .pools = pools,
                               .pool_count = 1,
                               .stacks = stacks,
                               .stack_count = 1,
                               .settings = &setting,
                               .setting_count = 1};
  explain(&recording, options, x);
  if (x->differences)
    fail_msg("%s", x->difference);
  assert_int_equal(x->moment, WEIR_OFFLINE_AT_OOM);
  assert_true(x->is_proven);
  assert_true(x->has_missing);
}

/* A no without the limit is a no with it, and a yes is a yes. Roundings of the limit may decide. */
static void check_answers(const weir__explanation *inferred, const weir__explanation *known) {
  assert_int_equal(inferred->trial_count, known->trial_count);
  for (size_t i = 0; i < known->trial_count; i++) {
    const weir__trial *a = &inferred->trials[i], *b = &known->trials[i];
    assert_string_equal(a->change, b->change);
    bool is_open = a->orders_served || a->depends_on_limit;
    if (b->works && !a->works && !is_open)
      fail_msg("%s: no without the limit, yes with it", *a->change ? a->change : "empty_cache");
    if (a->works && !b->orders_served && b->remedy == WEIR__REMEDY_SETTING)
      fail_msg("%s: yes without the limit, no with it", a->change);
  }
}

/* The truth is asked of the job's own allocator. With a limit that is known, what is said is exact; without, it is a
 * range in which the truth lies. */
TEST(missing_of_limit) {
  for (unsigned seed = 0; seed < (unsigned)usual_or_long(5, 24); seed++) {
    const uint64_t memory = 8ull << 30, limit = (1ull << 30) + seed * 7777777ull;
    bool is_expandable = seed % 3 == 0;
    weir__explanation known, inferred;
    job j = {.events = calloc(MAX_EVENTS, sizeof *j.events)};
    run_job(&j, seed, is_expandable ? "expandable_segments:True" : "", memory, limit, 0);
    explain_job(&j, is_expandable,
                &(weir__explain_options){.memory = memory, .fraction = (double)limit / (double)memory}, &known);
    assert_int_equal(known.limit, limit);
    assert_int_equal(known.missing_min, known.missing_max);
    explain_job(&j, is_expandable, &(weir__explain_options){0}, &inferred);
    assert_true(inferred.limit_is_inferred && !inferred.limit_is_device);
    assert_true(inferred.limit <= limit && limit <= inferred.limit_max);
    assert_true(inferred.missing_min <= known.missing_max && known.missing_max <= inferred.missing_max);
    check_answers(&inferred, &known);
    /* It is the same whichever limit there was. */
    assert_int_equal(known.fit_request, inferred.fit_request);
    assert_true(known.fit_request > limit && known.fit_recording >= known.fit_request);
    weir_allocator_set_limit(j.allocator, 0, limit + known.missing_max - 1);
    assert_false(is_served(&j));
    weir_allocator_set_limit(j.allocator, 0, limit + known.missing_max);
    assert_true(is_served(&j));
    end_job(&j);
    free(j.events);
  }
}

/* A device that is full: the failure has what was free, so what was missing is exact without any option. */
TEST(missing_of_device) {
  for (unsigned seed = 0; seed < (unsigned)usual_or_long(5, 24); seed++) {
    const uint64_t memory = 2ull << 30, others = (600 + 2 * seed) * (uint64_t)MIB;
    bool is_expandable = seed % 2 == 0;
    weir__explanation x;
    job j = {.events = calloc(MAX_EVENTS, sizeof *j.events)};
    run_job(&j, seed, is_expandable ? "expandable_segments:True" : "", memory, UINT64_MAX, others);
    explain_job(&j, is_expandable, &(weir__explain_options){0}, &x);
    assert_true(x.limit_is_device && !x.limit_is_inferred);
    assert_int_equal(x.limit, memory - others);
    assert_int_equal(x.missing_min, x.missing_max);
    fill(&j, others - x.missing_max + 2 * MIB);
    assert_false(is_served(&j));
    fill(&j, others - x.missing_max);
    assert_true(is_served(&j));
    /* The device's size says how much of it others have, and nothing else. */
    weir__explanation given;
    explain_job(&j, is_expandable, &(weir__explain_options){.memory = memory}, &given);
    assert_int_equal(given.missing_min, x.missing_min);
    assert_int_equal(given.limit, x.limit);
    end_job(&j);
    free(j.events);
  }
}

/* Segments without a history are shown. A device with neither has nothing to show. */
TEST(no_history) {
  weir__recording_block blocks[] = {
      {.address = B, .size = 8 * MIB, .requested = 8 * MIB - 100, .state = WEIR_BLOCK_ACTIVE_ALLOCATED},
      {.address = B + 8 * MIB, .size = 4 * MIB, .requested = 4 * MIB, .state = WEIR_BLOCK_ACTIVE_PENDING_FREE},
      {.address = B + 12 * MIB, .size = 8 * MIB, .requested = 5, .state = WEIR_BLOCK_INACTIVE}};
  weir__recording_segment segment = {
      .address = B, .size = 20 * MIB, .blocks = blocks, .block_count = 3, .is_large = true};
  int64_t streams[1] = {0};
  weir__recording_pool pools[1] = {{{0, 0}}};
  weir__recording_device devices[2] = {{.segments = &segment, .segment_count = 1}, {0}};
  weir__recording recording = {
      .devices = devices, .device_count = 2, .streams = streams, .stream_count = 1, .pools = pools, .pool_count = 1};
  weir__explanation x;
  explain(&recording, &(weir__explain_options){0}, &x);
  assert_int_equal(x.moment, WEIR_OFFLINE_AT_END);
  assert_int_equal(x.completeness, WEIR__HISTORY_NONE);
  assert_int_equal(x.bytes[WEIR__USE_LIVE], 8 * MIB - 100);
  assert_int_equal(x.bytes[WEIR__USE_ROUNDING], 100);
  assert_int_equal(x.bytes[WEIR__USE_WAITING], 4 * MIB);
  assert_int_equal(x.bytes[WEIR__USE_FREE_SPLIT], 8 * MIB);
  assert_int_equal(weir__explain(&recording, &(weir__explain_options){.device = 1}, &x), WEIR_ERROR_INVALID_ARGUMENT);
  assert_non_null(strstr(weir_last_error(), "nothing of device 1"));
}

/* ---- Orders of addresses ---- */

/* A server with many live blocks of similar sizes. The driver gives addresses in an order of its own, which decides
 * which of several free blocks is taken. */
typedef struct server {
  job job;
  uint64_t random;
  struct range {
    uint64_t begin, end;
  } taken[512];
  size_t taken_count;
} server;

static uint64_t next_number(uint64_t *state, uint64_t below) {
  *state = *state * 6364136223846793005 + 1442695040888963407;
  return (*state >> 33) % below;
}

static weir_cu_deviceptr place_anywhere(void *context, weir_driver_call call, uint64_t bytes) {
  server *s = context;
  if (call != WEIR_CALL_MemAlloc)
    return 0;
  for (;;) {
    uint64_t begin = 0x700000000000 + next_number(&s->random, 1 << 16) * 2 * MIB;
    size_t i = 0;
    while (i < s->taken_count && (begin >= s->taken[i].end || begin + bytes <= s->taken[i].begin))
      i++;
    if (i < s->taken_count)
      continue;
    assert_true(s->taken_count < sizeof s->taken / sizeof *s->taken);
    s->taken[s->taken_count++] = (struct range){begin, begin + bytes};
    return begin;
  }
}

/* Serves requests up to one that fails, or to `last`. Returns the number of the last one, and the peak of what was
 * reserved. */
static size_t serve(server *s, unsigned order, const char *conf, uint64_t limit, size_t last, uint64_t *reserved) {
  enum { LIVE = 96 };
  void *slots[LIVE] = {0};
  weir_ledger_options ledger;
  weir_allocator_options options;
  uint64_t random = 3;
  weir_ledger_options_init(&ledger);
  weir_allocator_options_init(&options);
  *s = (server){.random = 1000 + order, .job.events = s->job.events};
  ledger.bytes = 16ull << 30;
  ledger.place = place_anywhere;
  ledger.place_context = s;
  options.conf = conf;
  assert_int_equal(weir_driver_open_ledger(&ledger, &s->job.driver), WEIR_OK);
  s->job.driver->Init(s->job.driver, 0);
  assert_int_equal(weir_allocator_create(s->job.driver, &options, &s->job.allocator), WEIR_OK);
  assert_int_equal(weir_allocator_set_limit(s->job.allocator, 0, limit), WEIR_OK);
  if (s->job.events)
    assert_int_equal(weir_allocator_set_witness(s->job.allocator, note, &s->job, WEIR_WITNESS_ALL), WEIR_OK);
  size_t request = 0;
  for (weir_status status = WEIR_OK; !status && request < last;) {
    size_t slot = (size_t)next_number(&random, LIVE);
    uint64_t bytes = (12 + 4 * next_number(&random, 6)) * MIB;
    if (slots[slot]) {
      weir_allocator_free(s->job.allocator, slots[slot]);
      slots[slot] = NULL;
    }
    if (next_number(&random, 16) == 0) /* a longer one now and then, and ever longer */
      bytes += 24ull * MIB + request * 4096;
    status = weir_allocator_alloc(s->job.allocator, 0, bytes, NULL, &slots[slot]);
    request += !status;
    assert_true(request < 20000);
  }
  weir_allocator_stats stats = {.size = sizeof stats};
  weir_allocator_get_stats(s->job.allocator, 0, &stats);
  *reserved = (uint64_t)stats.reserved_bytes[WEIR_STAT_ALL].peak;
  weir_allocator_set_witness(s->job.allocator, NULL, NULL, WEIR_WITNESS_ALL);
  end_job(&s->job);
  return request;
}

/* The recorded addresses fail, and others may not: there is a prediction in any case, exact for settings that do not
 * depend on addresses. */
TEST(orders_of_addresses) {
  const uint64_t limit = 2800ull * MIB;
  size_t dependent = 0, predicted = 0;
  for (unsigned order = 0; order < (unsigned)usual_or_long(3, 24); order++) {
    server s = {.job.events = calloc(MAX_EVENTS, sizeof *s.job.events)}, again = {0};
    weir__explanation x;
    uint64_t reserved;
    size_t failed = serve(&s, order, "", limit, SIZE_MAX, &reserved);
    weir__explain_options options = {.memory = 16ull << 30, .fraction = (double)limit / (double)(16ull << 30)};
    explain_job(&s.job, false, &options, &x);
    assert_int_equal(x.orders, WEIR__TRIAL_ORDERS);
    assert_true(x.orders_served <= x.orders);
    dependent += x.orders_served > 0;
    for (size_t i = 0; i < x.trial_count; i++) {
      const weir__trial *t = &x.trials[i];
      if (t->remedy != WEIR__REMEDY_SETTING)
        continue;
      bool is_exact = strstr(t->conf, "expandable_segments:True") || t->is_weir_only;
      assert_int_equal(t->orders, is_exact ? 1 : WEIR__TRIAL_ORDERS);
      if (!is_exact)
        continue;
      bool is_served = serve(&again, 777 + order, t->conf, limit, failed + 1, &reserved) == failed + 1;
      assert_int_equal(t->works, is_served);
      if (is_served)
        assert_int_equal(t->reserved, reserved);
      predicted += is_served;
      assert_int_equal(t->reserved, t->reserved_most);
    }
    free(s.job.events);
  }
  assert_true(dependent > 0 && predicted > 0);
}

/*
 * The limit that a recording of WEIR_RECORD has is the one that explanations and predictions use. Nothing else in it is
 * taken for a limit.
 */
#include <string.h>

#include "offline/analyse/explain.h"
#include "offline/analyse/predict.h"
#include "offline/load.h"
#include "support/recording.h"
#include "weir/snapshot.h"

static void *take(uint64_t bytes) {
  void *pointer = NULL;
  assert_ok(weir_allocator_alloc(recorded, 0, bytes, NULL, &pointer));
  return pointer;
}

static void fail_with(uint64_t bytes) {
  void *pointer;
  assert_int_equal(weir_allocator_alloc(recorded, 0, bytes, NULL, &pointer), WEIR_ERROR_OUT_OF_MEMORY);
}

static void begin(const char *conf) { open_recording(&(recording){.bytes = 8 * GIB, .conf = conf, .folder = folder}); }

static weir__recording *end(void) {
  close_recording();
  return load_recording(find_file(".ring"));
}

static void explain(const weir__recording *r, weir__explanation *x) {
  assert_ok(weir__explain(r, &(weir__explain_options){0}, x));
  assert_int_equal(x->differences, 0);
}

static weir__capacity capacity_of(const weir__recording *r) {
  weir__replayer *replayer;
  assert_ok(weir__replayer_open(r, 0, 0, 0, &replayer));
  weir__capacity capacity = weir__replayer_capacity(replayer);
  assert_false(weir__replayer_check(replayer)->limit_is_inferred);
  assert_int_equal(weir__replayer_check(replayer)->differences, 0);
  weir__replayer_close(replayer);
  return capacity;
}

FIXTURE(.begin = make_folder, .end = remove_folder, .teardown = recording_teardown)

/* With a failure: the limit is exact, and so is what was missing. */
TEST(failure) {
  begin(NULL);
  assert_ok(weir_allocator_set_limit(recorded, 0, 512 * MIB));
  take(300 * MIB);
  take(100 * MIB);
  fail_with(200 * MIB);
  weir__recording *r = end();
  weir__explanation x;
  explain(r, &x);
  assert_int_equal(x.limit, 512 * MIB);
  assert_int_equal(x.limit_max, 512 * MIB);
  assert_false(x.limit_is_inferred || x.limit_is_device);
  assert_int_equal(x.missing_min, 88 * MIB);
  assert_int_equal(x.missing_max, 88 * MIB);
  weir__recording_free(r);
}

/* The limit in force at the failure counts, and predictions follow it. */
TEST(changed_limit) {
  begin(NULL);
  void *first = take(700 * MIB);
  assert_ok(weir_allocator_free(recorded, first));
  assert_ok(weir_allocator_empty_cache(recorded));
  assert_ok(weir_allocator_set_limit(recorded, 0, 512 * MIB));
  take(300 * MIB);
  take(100 * MIB);
  fail_with(200 * MIB);
  weir__recording *r = end();
  weir__explanation x;
  explain(r, &x);
  assert_int_equal(x.limit, 512 * MIB);
  assert_int_equal(x.limit_max, 512 * MIB);
  assert_false(x.limit_is_inferred);
  assert_int_equal(x.cause, WEIR_OFFLINE_CAUSE_EXHAUSTED);
  for (size_t i = 0; i < x.trial_count; i++)
    assert_false(x.trials[i].works);
  weir__recording_free(r);
}

/* A limit that was never reached stays the limit. */
TEST(no_failure) {
  begin(NULL);
  assert_ok(weir_allocator_set_limit(recorded, 0, 512 * MIB));
  assert_ok(weir_allocator_free(recorded, take(100 * MIB)));
  take(60 * MIB);
  weir__recording *r = end();
  weir__explanation x;
  explain(r, &x);
  assert_int_equal(x.limit, 512 * MIB);
  assert_false(x.limit_is_inferred);
  assert_int_equal(capacity_of(r).limit, 512 * MIB);
  weir__recording_free(r);
}

/* A call of empty_cache before a request looks like a release for it, and is none. */
TEST(empty_cache) {
  begin(NULL);
  void *a = take(30 * MIB);
  take(30 * MIB);
  assert_ok(weir_allocator_free(recorded, a));
  assert_ok(weir_allocator_empty_cache(recorded));
  take(40 * MIB);
  weir__recording *r = end();
  weir__explanation x;
  explain(r, &x);
  assert_int_equal(x.limit, UINT64_MAX);
  assert_int_equal(capacity_of(r).limit, UINT64_MAX);
  weir__recording_free(r);
}

/* A pickle of PyTorch does not say why memory was released, and no limit follows from it. One of Weir has the reason.
 */
TEST_SETUP(reasons_in_a_pickle, NULL, NULL) {
  static const struct {
    uint64_t address, bytes;
    weir_trace_action action;
  } entries[] = {{0x10000000, 30 * MIB, WEIR_TRACE_SEGMENT_ALLOC},  {0x10000000, 30 * MIB, WEIR_TRACE_ALLOC},
                 {0x20000000, 30 * MIB, WEIR_TRACE_SEGMENT_ALLOC},  {0x20000000, 30 * MIB, WEIR_TRACE_ALLOC},
                 {0x10000000, 30 * MIB, WEIR_TRACE_FREE_REQUESTED}, {0x10000000, 30 * MIB, WEIR_TRACE_FREE_COMPLETED},
                 {0x10000000, 30 * MIB, WEIR_TRACE_SEGMENT_FREE},   {0x30000000, 40 * MIB, WEIR_TRACE_SEGMENT_ALLOC},
                 {0x30000000, 40 * MIB, WEIR_TRACE_ALLOC}};
  weir__recording_entry events[WEIR_COUNT_OF(entries)];
  for (size_t i = 0; i < WEIR_COUNT_OF(entries); i++)
    events[i] = (weir__recording_entry){.address = entries[i].address,
                                        .size = entries[i].bytes,
                                        .action = (uint8_t)entries[i].action,
                                        .pool = WEIR__RECORDING_NO_POOL};
  int64_t streams[1] = {0};
  weir__recording_pool pools[1] = {{{0, 0}}};
  weir__recording_stack stacks[1] = {{0, 0}};
  weir__recording_device device = {.events = events, .event_count = WEIR_COUNT_OF(entries)};
  weir__recording r = {.devices = &device,
                       .device_count = 1,
                       .streams = streams,
                       .stream_count = 1,
                       .pools = pools,
                       .pool_count = 1,
                       .stacks = stacks,
                       .stack_count = 1};
  weir__explanation x;
  for (weir__reason reason = WEIR__REASON_UNKNOWN; reason <= WEIR__REASON_PROGRAM; reason++) {
    if (reason == WEIR__REASON_REQUEST || reason == WEIR__REASON_COLLECTION) /* not without such a device or setting */
      continue;
    for (size_t i = 0; i < WEIR_COUNT_OF(entries); i++)
      if (events[i].action == WEIR_TRACE_SEGMENT_FREE)
        events[i].reason = reason & 7;
    explain(&r, &x);
    assert_int_equal(x.limit_is_inferred, reason == WEIR__REASON_LIMIT);
    assert_int_equal(x.limit, reason == WEIR__REASON_LIMIT ? 70 * MIB : UINT64_MAX);
  }
}

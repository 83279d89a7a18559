/*
 * Recorded histories of real PyTorch jobs, replayed: every allocation at the very address that PyTorch gave it, every
 * segment at the same point, and the final counters equal to PyTorch's own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/replay.h"

/* What torch.cuda.memory_stats() said at the end of each job, on a device of this many bytes. */
#define DEVICE_TOTAL 150109880320ull

static const struct job {
  const char *name;
  double fraction; /* that the job allowed itself; 0: no limit */
  int64_t peak_allocated, peak_reserved, peak_active, peak_requested, allocations, device_alloc, device_free, retries;
  int64_t ooms;
} jobs[] = {
    {"cuda_graphs", 0, 808567808, 891289600, 808567808, 808566800, 594, 49, 5, 0, 0},
    {"cuda_graphs_expandable", 0, 808567808, 939524096, 808567808, 808566800, 594, 49, 4, 0, 0},
    {"gpt2_fixed", 0, 16983993344, 17989369856, 16983993344, 16983980232, 7612, 179, 0, 0, 0},
    {"llama_lora_ckpt", 0, 8231636480, 23139975168, 8231636480, 8229536592, 37816, 97, 0, 0, 0},
    {"llama_lora_gc", 0.12, 8231636480, 12213813248, 8231636480, 8229536592, 37816, 97, 10, 0, 0},
    {"llama_oom", 0.09, 11578874880, 13050576896, 11578874880, 11573073048, 4780, 158, 36, 2, 1},
    {"llama_varlen", 0, 19512419328, 34955329536, 19512419328, 19507403152, 26458, 165, 0, 0, 0},
    {"llama_varlen_capped", 0.15, 19512419328, 21527265280, 19512419328, 19507403152, 26458, 197, 53, 3, 0},
    {"llama_varlen_expandable", 0, 19507418112, 21443379200, 19507418112, 19507403152, 26458, 169, 0, 0, 0},
    {"llama_varlen_expandable_capped", 0.145, 19507418112, 19740491776, 19507418112, 19507403152, 26458, 184, 8, 1, 0},
    {"llama_varlen_split200", 0, 19525404672, 112600285184, 19525404672, 19507403152, 26458, 357, 0, 0, 0},
    {"llama_varlen_split200_capped", 0.17, 19525404672, 25513951232, 19525404672, 19507403152, 26458, 393, 184, 1, 0},
    {"llm_generate_small", 0, 2951161856, 3841982464, 2951161856, 2944148736, 104486, 84, 0, 0, 0},
    {"resnet_multiscale", 0, 9455072768, 12807307264, 9455072768, 9454177936, 17435, 121, 0, 0, 0},
    {"resnet_roundup", 0, 11156753920, 13333692416, 11156753920, 9454177936, 17435, 118, 0, 0, 0},
    {"resnet_stacks", 0, 9455072768, 12807307264, 9455072768, 9454177936, 3209, 121, 0, 0, 0},
    {"streams_prefetch", 0, 3310758912, 6926893056, 3310758912, 3302798423, 19184, 76, 0, 0, 0},
    {"streams_prefetch_expandable", 0, 3302829056, 3391094784, 3302829056, 3302798423, 19184, 95, 0, 0, 0},
};

enum { JOBS = sizeof jobs / sizeof *jobs };

static weir__snapshot *load(const struct job *job) {
#ifndef WEIR_HAVE_ZSTD
  print_message("waived: %s: built without libzstd\n", job->name);
  skip();
#endif
  char path[1024];
  snprintf(path, sizeof path, "%s/traces/%s.pickle.zst", WEIR_TEST_DATA, job->name);
  weir__snapshot *snapshot = NULL;
  if (weir__snapshot_load(path, NULL, &snapshot) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  return snapshot;
}

static void replay(const weir__snapshot *snapshot, const weir__replay_options *options, weir__replay_report *report) {
  if (weir__replay(snapshot, options, report) != WEIR_OK)
    fail_msg("%s", weir_last_error());
}

static void assert_exact(const struct job *job, const weir__replay_report *report) {
  for (size_t i = 0; i < report->differences && i < WEIR__REPLAY_SHOWN; i++)
    print_error("%s: %s\n", job->name, report->shown[i]);
  assert_int_equal(report->differences, 0);
  const weir_allocator_stats *s = &report->stats;
  assert_int_equal(report->allocations, job->allocations);
  assert_int_equal(s->allocation[WEIR_STAT_ALL].allocated, job->allocations);
  assert_int_equal(s->allocated_bytes[WEIR_STAT_ALL].peak, job->peak_allocated);
  assert_int_equal(s->reserved_bytes[WEIR_STAT_ALL].peak, job->peak_reserved);
  assert_int_equal(s->active_bytes[WEIR_STAT_ALL].peak, job->peak_active);
  assert_int_equal(s->requested_bytes[WEIR_STAT_ALL].peak, job->peak_requested);
  assert_int_equal(s->num_device_alloc, job->device_alloc);
  assert_int_equal(s->num_device_free, job->device_free);
  assert_int_equal(s->num_alloc_retries, job->retries);
  assert_int_equal(s->num_ooms, job->ooms);
}

/* With the device's memory and the limit given, as the job had them. */
static void test_exact(void **state) {
  (void)state;
  for (int i = 0; i < JOBS; i++) {
    weir__snapshot *snapshot = load(&jobs[i]);
    weir__replay_options options = {.check = true, .memory = DEVICE_TOTAL, .fraction = jobs[i].fraction};
    weir__replay_report report;
    replay(snapshot, &options, &report);
    assert_false(report.limit_is_inferred);
    assert_exact(&jobs[i], &report);
    weir__snapshot_free(snapshot);
  }
}

/* With neither: the limit follows from what the file shows. */
static void test_exact_with_an_inferred_limit(void **state) {
  (void)state;
  for (int i = 0; i < JOBS; i++) {
    weir__snapshot *snapshot = load(&jobs[i]);
    weir__replay_options options = {.check = true};
    weir__replay_report report;
    replay(snapshot, &options, &report);
    assert_int_equal(report.limit_is_inferred, jobs[i].fraction > 0);
    assert_exact(&jobs[i], &report);
    weir__snapshot_free(snapshot);
  }
}

/* A check that cannot fail is none: a history that was tampered with is found out. */
static void test_tampered(void **state) {
  (void)state;
  weir__snapshot *snapshot = load(&jobs[2]);
  weir__snapshot_event *events = snapshot->events;
  size_t at = snapshot->event_count / 2;
  while (events[at].action != WEIR__ACTION_ALLOC)
    at++;
  weir__replay_options options = {.check = true, .memory = DEVICE_TOTAL, .fraction = jobs[2].fraction};
  weir__replay_report report;

  uint64_t address = events[at].address;
  events[at].address += 512;
  replay(snapshot, &options, &report);
  assert_int_not_equal(report.differences, 0);
  events[at].address = address;

  events[at].size *= 3;
  replay(snapshot, &options, &report);
  assert_int_not_equal(report.differences, 0);
  events[at].size /= 3;

  size_t segment = 0;
  while (events[segment].action != WEIR__ACTION_SEGMENT_ALLOC)
    segment++;
  events[segment].size += 2 << 20;
  replay(snapshot, &options, &report);
  assert_int_not_equal(report.differences, 0);
  events[segment].size -= 2 << 20;

  replay(snapshot, &options, &report);
  assert_int_equal(report.differences, 0);
  weir__snapshot_free(snapshot);
}

/* Other settings, and too little memory. */
static void test_unchecked(void **state) {
  (void)state;
  const struct job *job = jobs;
  while (strcmp(job->name, "llama_varlen") != 0)
    job++;
  weir__snapshot *snapshot = load(job);
  weir__replay_report recorded, expandable, small;
  weir__replay_options options = {.memory = DEVICE_TOTAL};
  replay(snapshot, &options, &recorded);
  options.conf = "expandable_segments:True";
  replay(snapshot, &options, &expandable);
  assert_int_equal(recorded.allocations, job->allocations);
  assert_int_equal(expandable.allocations, job->allocations);
  assert_true(expandable.stats.reserved_bytes[0].peak < recorded.stats.reserved_bytes[0].peak * 2 / 3);
  options.memory = 8ull << 30;
  replay(snapshot, &options, &small);
  assert_int_not_equal(small.failures, 0);
  assert_true(small.stats.reserved_bytes[0].peak <= 8ll << 30);
  weir__snapshot_free(snapshot);
}

static void test_no_history(void **state) {
  (void)state;
  weir__snapshot_device device = {0};
  weir__snapshot empty = {.devices = &device, .device_count = 1};
  weir__replay_options options = {0};
  weir__replay_report report;
  assert_int_equal(weir__replay(&empty, &options, &report), WEIR_ERROR_INVALID_ARGUMENT);
  options.device = 1;
  assert_int_equal(weir__replay(&empty, &options, &report), WEIR_ERROR_INVALID_DEVICE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_exact),      cmocka_unit_test(test_exact_with_an_inferred_limit),
      cmocka_unit_test(test_tampered),   cmocka_unit_test(test_unchecked),
      cmocka_unit_test(test_no_history),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Recorded histories of real PyTorch jobs, replayed: every allocation at the very address that PyTorch gave it, every
 * segment at the same point, and the final counters equal to PyTorch's own.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/replay/replay.h"
#include "support/test.h"

/* What torch.cuda.memory_stats() said at the end of each job, on a device of this many bytes. */
#define DEVICE_TOTAL 150109880320ull

static const struct job {
  const char *name;
  double fraction; /* that the job allowed itself; 0 if there is no limit */
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

static weir__recording *load_file(const char *folder, const char *name) {
#ifndef WEIR_HAVE_ZSTD
  print_message("waived: %s: built without libzstd\n", name);
  skip();
#endif
  char path[1024];
  snprintf(path, sizeof path, "%s/%s/%s.pickle.zst", WEIR_TEST_DATA, folder, name);
  weir__recording *recording = NULL;
  if (weir__recording_load(path, NULL, &recording) != WEIR_OK)
    fail_msg("%s", weir_last_error());
  return recording;
}

static weir__recording *load(const struct job *job) { return load_file("traces", job->name); }

static void replay(const weir__recording *recording, const weir__replay_options *options, weir__replay_report *report) {
  if (weir__replay(recording, options, report) != WEIR_OK)
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
TEST(exact) {
  for (int i = 0; i < JOBS; i++) {
    weir__recording *recording = load(&jobs[i]);
    weir__replay_options options = {.check = true, .memory = DEVICE_TOTAL, .fraction = jobs[i].fraction};
    weir__replay_report report;
    replay(recording, &options, &report);
    assert_false(report.limit_is_inferred);
    assert_exact(&jobs[i], &report);
    weir__recording_free(recording);
  }
}

/* With neither: the limit follows from what the file shows, if nothing but a limit explains it. A call of empty_cache
 * explains a request for which all that was cached was released, and which was served. */
TEST(exact_with_an_inferred_limit) {
  for (int i = 0; i < JOBS; i++) {
    weir__recording *recording = load(&jobs[i]);
    weir__replay_options options = {.check = true};
    weir__replay_report report;
    struct job expected = jobs[i];
    bool is_undecided = strcmp(expected.name, "llama_varlen_capped") == 0 ||
                        strcmp(expected.name, "llama_varlen_expandable_capped") == 0;
    expected.retries = is_undecided ? 0 : expected.retries;
    replay(recording, &options, &report);
    assert_int_equal(report.limit_is_inferred, expected.fraction > 0 && !is_undecided);
    assert_exact(&expected, &report);
    weir__recording_free(recording);
  }
}

/* Histories that a model of PyTorch's rules wrote, on a device of 16 GiB: short ones, in which memory runs short in
 * each of the ways there are, and the program empties the cache itself. */
static const struct history {
  const char *name;
  double fraction;
  int64_t peak_allocated, peak_reserved, allocations, device_alloc, device_free, retries, ooms;
} histories[] = {
    {"capped_oom", 0.2, 3151005184, 3382706176, 182, 33, 25, 8, 6},
    {"capped_streams", 0.1, 1177153536, 1711276032, 530, 84, 23, 5, 4},
    {"collected", 0.08, 1120058368, 1361051648, 268, 44, 14, 0, 1},
    {"collected_retried", 0.1, 1094041088, 1711276032, 154, 39, 24, 7, 9},
    {"collected_split", 0.15, 2375602176, 2485125120, 326, 98, 77, 15, 7},
    {"emptied", 0, 3074375168, 8822718464, 502, 61, 48, 0, 0},
    {"expandable_capped", 0.15, 2422278144, 2520776704, 421, 93, 99, 13, 2},
    {"expandable_emptied", 0, 4932596224, 5729419264, 531, 36, 31, 0, 0},
    {"expandable_pools", 0, 2579447808, 4244635648, 125, 54, 4, 0, 0},
    {"large_pages", 0.3, 4881495552, 5140119552, 436, 152, 112, 17, 4},
    {"large_segments", 0, 1995243008, 2166358016, 599, 40, 0, 0, 0},
    {"pools", 0, 3207326720, 12337545216, 508, 28, 10, 0, 0},
    {"pools_capped", 0.1, 1492505600, 1593835520, 125, 42, 23, 4, 8},
    {"roundup_intervals", 0.05, 102434304, 132120576, 612, 24, 9, 0, 0},
    {"split_capped", 0.05, 754918912, 849346560, 76, 36, 33, 5, 4},
    {"split_rounding", 0.15, 2503735808, 2529165312, 74, 37, 24, 3, 3},
};

TEST(histories) {
  for (size_t i = 0; i < sizeof histories / sizeof *histories; i++)
    for (int is_given = 0; is_given < 2; is_given++) {
      const struct history *h = &histories[i];
      weir__recording *recording = load_file("histories", h->name);
      weir__replay_options options = {.check = true};
      if (is_given) {
        options.memory = 16ull << 30;
        options.fraction = h->fraction;
      }
      weir__replay_report report;
      replay(recording, &options, &report);
      for (size_t k = 0; k < report.differences && k < WEIR__REPLAY_SHOWN; k++)
        print_error("%s: %s\n", h->name, report.shown[k]);
      const weir_allocator_stats *s = &report.stats;
      assert_int_equal(report.differences, 0);
      assert_int_equal(report.rescued, 0);
      assert_int_equal(report.unknown_frees, 0);
      assert_int_equal(report.allocations, h->allocations);
      assert_int_equal(s->allocated_bytes[WEIR_STAT_ALL].peak, h->peak_allocated);
      assert_int_equal(s->reserved_bytes[WEIR_STAT_ALL].peak, h->peak_reserved);
      assert_int_equal(s->num_device_alloc, h->device_alloc);
      assert_int_equal(s->num_device_free, h->device_free);
      assert_int_equal(s->num_alloc_retries, h->retries);
      assert_int_equal(s->num_ooms, h->ooms);
      weir__recording_free(recording);
    }
}

/* ---- Histories written by hand ---- */

enum { MIB = 1 << 20 };

#define EVENT(what, at, bytes)                                                                                         \
  { .action = WEIR_TRACE_##what, .address = (at), .size = (uint64_t)(bytes), .pool = WEIR__RECORDING_NO_POOL }

static void replay_events(weir__recording_entry *events, size_t count, const weir__recording *with,
                          const weir__replay_options *options, weir__replay_report *report) {
  int64_t streams[1] = {0};
  weir__recording_pool pools[1] = {{{0, 0}}};
  weir__recording_device device = {.events = events, .event_count = count};
  weir__recording recording = *with;
  recording.devices = &device;
  recording.device_count = 1;
  recording.streams = streams;
  recording.stream_count = 1;
  recording.pools = pools;
  recording.pool_count = 1;
  replay(&recording, options, report);
}

/* A request that failed though another stream gave back its block in time: PyTorch did not look again. */
TEST(rescued) {
  const uint64_t a = 1ull << 40;
  weir__recording_entry events[] = {
      EVENT(SEGMENT_ALLOC, a, 100 * MIB),
      EVENT(ALLOC, a, 100 * MIB),
      EVENT(FREE_REQUESTED, a, 100 * MIB), /* another stream uses it */
      EVENT(ANNOTATE, 0, 0),
      EVENT(FREE_COMPLETED, a, 100 * MIB),
      EVENT(OOM, 0, 50 * MIB),
      EVENT(ALLOC, a, 50 * MIB),
  };
  weir__recording recording = {0};
  weir__replay_report report;
  const weir__replay_options options = {.check = true, .memory = 1ull << 30, .fraction = 0.1};
  replay_events(events, sizeof events / sizeof *events, &recording, &options, &report);
  assert_int_equal(report.differences, 0);
  assert_int_equal(report.rescued, 1);
  assert_int_equal(report.allocations, 2);
}

/* The settings that have no number in a file are read from its text, as PyTorch reads it. */
TEST(settings_in_the_text) {
  weir__recording_entry events[] = {EVENT(SEGMENT_ALLOC, 1ull << 40, 32 * MIB), EVENT(ALLOC, 1ull << 40, 2 * MIB)};
  weir__recording recording = {.conf = "large_segment_size_mb:32,max_non_split_rounding_mb,40"};
  weir__replay_report report;
  weir__replay_options options = {.check = true};
  replay_events(events, 2, &recording, &options, &report);
  assert_int_equal(report.differences, 0);
  recording.conf = "";
  replay_events(events, 2, &recording, &options, &report);
  assert_int_not_equal(report.differences, 0);

  recording.conf = "large_segment_size_mb:32,per_process_memory_fraction:0.5";
  options.memory = 1ull << 30;
  replay_events(events, 2, &recording, &options, &report);
  assert_int_equal(report.differences, 0);
  assert_false(report.limit_is_inferred);
  assert_int_equal(report.limit, 1ull << 29);
  options.fraction = 0.25; /* an option wins over the recording */
  replay_events(events, 2, &recording, &options, &report);
  assert_int_equal(report.limit, 1ull << 28);
}

/* A history that does not begin with the first allocation. */
TEST(incomplete) {
  weir__recording_entry events[] = {EVENT(FREE_REQUESTED, 1ull << 40, MIB), EVENT(FREE_COMPLETED, 1ull << 40, MIB),
                                    EVENT(SEGMENT_FREE, 1ull << 40, 2 * MIB), EVENT(SEGMENT_ALLOC, 1ull << 41, 2 * MIB),
                                    EVENT(ALLOC, 1ull << 41, MIB)};
  weir__recording recording = {0};
  weir__replay_report report;
  weir__replay_options options = {.check = true};
  replay_events(events, 5, &recording, &options, &report);
  assert_int_equal(report.unknown_frees, 1);
  assert_int_not_equal(report.differences, 0); /* the segment that was not made here */
  options.check = false;
  replay_events(events, 5, &recording, &options, &report);
  assert_int_equal(report.allocations, 1);
}

/* Numbers that no allocator wrote: nothing breaks. */
TEST(absurd_numbers) {
  weir__recording_entry events[] = {EVENT(SEGMENT_ALLOC, UINT64_MAX, UINT64_MAX),
                                    EVENT(ALLOC, UINT64_MAX, UINT64_MAX),
                                    EVENT(SEGMENT_MAP, 0, 0),
                                    EVENT(ALLOC, 0, 0),
                                    EVENT(SEGMENT_FREE, UINT64_MAX, UINT64_MAX),
                                    EVENT(SEGMENT_UNMAP, 1, 0),
                                    EVENT(SEGMENT_FREE, 512, UINT64_MAX),
                                    EVENT(OOM, 0, UINT64_MAX),
                                    EVENT(SEGMENT_ALLOC, 1ull << 62, 1ull << 62),
                                    EVENT(ALLOC, 1ull << 62, (1ull << 60) - 1),
                                    EVENT(FREE_REQUESTED, 0, 0),
                                    EVENT(FREE_COMPLETED, UINT64_MAX, 1),
                                    EVENT(SEGMENT_FREE, 1ull << 62, 1ull << 62),
                                    EVENT(SEGMENT_ALLOC, 7, 7)};
  static weir__recording_setting settings[] = {
      {.key = "garbage_collection_threshold", .kind = WEIR__SETTING_FLOAT, .real = 1e300},
      {.key = "max_split_size", .kind = WEIR__SETTING_FLOAT, .real = -1e300},
      {.key = "roundup_power2_divisions", .sub = "1", .kind = WEIR__SETTING_INT, .integer = INT64_MIN, .real = -9e18},
      {.key = "expandable_segments", .kind = WEIR__SETTING_BOOL, .integer = 1, .real = 1}};
  weir__replay_report report;
  for (size_t count = 0; count <= 4; count++)
    for (int check = 0; check < 2; check++) {
      weir__recording recording = {.settings = settings, .setting_count = count};
      const weir__replay_options options = {.check = check};
      replay_events(events, sizeof events / sizeof *events, &recording, &options, &report);
      assert_int_not_equal(report.failures, 0);
    }
}

/* A check that cannot fail is none: a history that was tampered with is found out. */
TEST(tampered) {
  weir__recording *recording = load(&jobs[2]);
  weir__recording_entry *events = recording->events;
  size_t at = recording->event_count / 2;
  while (events[at].action != WEIR_TRACE_ALLOC)
    at++;
  weir__replay_options options = {.check = true, .memory = DEVICE_TOTAL, .fraction = jobs[2].fraction};
  weir__replay_report report;

  uint64_t address = events[at].address;
  events[at].address += 512;
  replay(recording, &options, &report);
  assert_int_not_equal(report.differences, 0);
  events[at].address = address;

  events[at].size *= 3;
  replay(recording, &options, &report);
  assert_int_not_equal(report.differences, 0);
  events[at].size /= 3;

  size_t segment = 0;
  while (events[segment].action != WEIR_TRACE_SEGMENT_ALLOC)
    segment++;
  events[segment].size += 2 << 20;
  replay(recording, &options, &report);
  assert_int_not_equal(report.differences, 0);
  events[segment].size -= 2 << 20;

  replay(recording, &options, &report);
  assert_int_equal(report.differences, 0);
  weir__recording_free(recording);
}

/* Other settings, and too little memory. */
TEST(unchecked) {
  const struct job *job = jobs;
  while (strcmp(job->name, "llama_varlen") != 0)
    job++;
  weir__recording *recording = load(job);
  weir__replay_report recorded, expandable, small;
  weir__replay_options options = {.memory = DEVICE_TOTAL};
  replay(recording, &options, &recorded);
  options.conf = "expandable_segments:True";
  replay(recording, &options, &expandable);
  assert_int_equal(recorded.allocations, job->allocations);
  assert_int_equal(expandable.allocations, job->allocations);
  assert_true(expandable.stats.reserved_bytes[0].peak < recorded.stats.reserved_bytes[0].peak * 2 / 3);
  options.memory = 8ull << 30;
  replay(recording, &options, &small);
  assert_int_not_equal(small.failures, 0);
  assert_true(small.stats.reserved_bytes[0].peak <= 8ll << 30);
  weir__recording_free(recording);
}

/* Forty streams that need more than half a terabyte: each has two expandable segments, whose addresses are 9/8 of a
 * device that has enough. */
TEST(many_streams) {
  enum { STREAMS = 40, EVENTS = 4 };
  const uint64_t large = 16ull << 30, small = 1 << 20, base = 1ull << 44;
  static weir__recording_entry events[STREAMS * EVENTS];
  int64_t streams[STREAMS];
  weir__recording_pool pools[1] = {{{0, 0}}};
  for (size_t i = 0; i < STREAMS; i++) {
    weir__recording_entry *e = &events[i * EVENTS];
    uint64_t at = base + i * (64ull << 30);
    streams[i] = (int64_t)i * 0x1000;
    e[0] = (weir__recording_entry){.action = WEIR_TRACE_SEGMENT_ALLOC, .address = at, .size = large};
    e[1] = (weir__recording_entry){.action = WEIR_TRACE_ALLOC, .address = at, .size = large};
    e[2] = (weir__recording_entry){.action = WEIR_TRACE_SEGMENT_ALLOC, .address = at + large, .size = 2 << 20};
    e[3] = (weir__recording_entry){.action = WEIR_TRACE_ALLOC, .address = at + large, .size = small};
    for (size_t k = 0; k < EVENTS; k++) {
      e[k].stream = (uint16_t)i;
      e[k].pool = WEIR__RECORDING_NO_POOL;
    }
  }
  weir__recording_device device = {.events = events, .event_count = STREAMS * EVENTS};
  weir__recording recording = {.devices = &device,
                               .device_count = 1,
                               .streams = streams,
                               .stream_count = STREAMS,
                               .pools = pools,
                               .pool_count = 1};
  weir__replay_options options = {.check = true};
  weir__replay_report report;
  replay(&recording, &options, &report);
  assert_int_equal(report.differences, 0);
  options = (weir__replay_options){.conf = "expandable_segments:True"};
  replay(&recording, &options, &report);
  assert_int_equal(report.failures, 0);
  assert_int_equal(report.allocations, 2 * STREAMS);
  assert_int_equal(report.calls.of[WEIR__METER_RESERVE].handles, 2 * STREAMS);
  assert_int_equal(report.calls.of[WEIR__METER_RESERVE].failed, 0);
}

TEST(no_history) {
  weir__recording_device device = {0};
  weir__recording empty = {.devices = &device, .device_count = 1};
  weir__replay_options options = {0};
  weir__replay_report report;
  assert_int_equal(weir__replay(&empty, &options, &report), WEIR_ERROR_INVALID_ARGUMENT);
  options.device = 1;
  assert_int_equal(weir__replay(&empty, &options, &report), WEIR_ERROR_INVALID_DEVICE);
}

/*
 * Compares predictions from one recording with a recording under other settings: the same job, run twice on a GPU.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/predict.h"
#include "offline/load.h"

#define DEVICE_TOTAL 150109880320ull
#define MIB (1ull << 20)

static weir__replayer *open_history(const weir__recording *recording) {
  weir__replayer *history;
  if (weir__replayer_open(recording, 0, 0, 0, &history))
    fail_msg("%s", weir_last_error());
  assert_int_equal(weir__replayer_check(history)->differences, 0);
  return history;
}

static weir__prediction predict(const weir__replayer *history, const char *conf, uint64_t memory, double fraction) {
  weir__settings settings;
  weir__capacity capacity;
  weir__costs costs;
  weir__prediction prediction = {0};
  weir__costs_default(&costs);
  if ((conf && weir__settings_parse(NULL, conf, &settings)) ||
      weir__replayer_capacity_of(history, conf ? &settings : NULL, memory, fraction, &capacity) ||
      weir__predict(history, conf ? &settings : NULL, &capacity, &costs, &prediction))
    fail_msg("%s: %s", conf, weir_last_error());
  return prediction;
}

/* ---- Predicted and measured ---- */

/* The measured numbers are torch.cuda.memory_stats() at the end of the other run. */
static const struct proof {
  const char *from, *conf;
  double fraction; /* of the device; 0 if there is no limit, and the device is not known, either */
  int64_t reserved, allocated, device_alloc, device_free, retries;
} proofs[] = {
    {"llama_varlen", "", 0, 34955329536, 19512419328, 165, 0, 0},
    {"llama_varlen", "expandable_segments:True", 0, 21443379200, 19507418112, 169, 0, 0},
    {"llama_varlen", "max_split_size_mb:200", 0, 112600285184, 19525404672, 357, 0, 0},
    {"llama_varlen", "", 0.15, 21527265280, 19512419328, 197, 53, 3},
    {"llama_varlen", "expandable_segments:True", 0.145, 19740491776, 19507418112, 184, 8, 1},
    {"llama_varlen", "max_split_size_mb:200", 0.17, 25513951232, 19525404672, 393, 184, 1},
    {"llama_varlen_expandable", "", 0, 34955329536, 19512419328, 165, 0, 0},
    {"llama_varlen_split200", "expandable_segments:True", 0, 21443379200, 19507418112, 169, 0, 0},
    {"llama_lora_ckpt", "garbage_collection_threshold:0.6", 0.12, 12213813248, 8231636480, 97, 10, 0},
    {"resnet_multiscale", "roundup_power2_divisions:4", 0, 13333692416, 11156753920, 118, 0, 0},
    {"resnet_roundup", "", 0, 12807307264, 9455072768, 121, 0, 0},
    {"streams_prefetch", "expandable_segments:True", 0, 3391094784, 3302829056, 95, 0, 0},
    {"streams_prefetch_expandable", "", 0, 6926893056, 3310758912, 76, 0, 0},
    {"cuda_graphs", "expandable_segments:True", 0, 939524096, 808567808, 49, 4, 0},
};

TEST(predicted_is_measured) {
  print_message("%-28s %-34s %8s %14s %14s %8s\n", "recording", "settings", "limit", "predicted", "measured", "off");
  for (size_t i = 0; i < sizeof proofs / sizeof *proofs; i++) {
    const struct proof *p = &proofs[i];
    char name[128];
    snprintf(name, sizeof name, "traces/%s", p->from);
    weir__recording *recording = load(name);
    weir__replayer *history = open_history(recording);
    weir__prediction got = predict(history, p->conf, p->fraction > 0 ? DEVICE_TOTAL : 0, p->fraction);
    double off = 100 * ((double)got.peak_reserved - (double)p->reserved) / (double)p->reserved;
    print_message("%-28s %-34s %8g %14llu %14lld %7.3f%%\n", p->from, p->conf, p->fraction,
                  (unsigned long long)got.peak_reserved, (long long)p->reserved, off);
    if (off > 0.1 || off < -0.1)
      fail_msg("%s under '%s': more than 0.1 %% off", p->from, p->conf);
    /* Of two free blocks of one size the lower is taken, so addresses decide a little: which request gets a block whose
     * rest is not worth splitting off. */
    assert_true(llabs((int64_t)got.peak_allocated - p->allocated) <= p->allocated / 1000);
    assert_int_equal(got.retries, p->retries);
    assert_int_equal(got.failures, 0);
    assert_true(weir__replayer_least(history, SIZE_MAX) <= got.peak_reserved);
    /* Calls that made or freed memory, counted as PyTorch counts them: ranges of pages are one. */
    const weir__meter_count *of = got.calls.of;
    assert_int_equal(of[WEIR__METER_ALLOC].handles + of[WEIR__METER_SET_ACCESS].calls, p->device_alloc);
    assert_int_equal(of[WEIR__METER_FREE].handles + of[WEIR__METER_UNMAP].calls, p->device_free);
    weir__replayer_close(history);
    weir__recording_free(recording);
  }
}

/* What no allocator could go below: requested bytes in use, without what fails, but for a failure that is asked for. */
TEST(least_possible) {
  weir__recording *recording = load("traces/llama_varlen");
  weir__replayer *history = open_history(recording);
  const weir__recording_entry *e = recording->devices[0].events;
  assert_int_equal(weir__replayer_least(history, SIZE_MAX), (19507403152 + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
  size_t first = 0;
  while (e[first].action != WEIR_TRACE_ALLOC)
    first++;
  assert_int_equal(weir__replayer_least(history, first), (e[first].size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB));
  weir__replayer_close(history);
  weir__recording_free(recording);
  recording = load("traces/llama_oom");
  history = open_history(recording);
  e = recording->devices[0].events;
  size_t failed = 0;
  while (e[failed].action != WEIR_TRACE_OOM)
    failed++;
  uint64_t with = weir__replayer_least(history, failed), without = weir__replayer_least(history, failed - 1);
  assert_true(with > without && with <= without + e[failed].size + 2 * MIB);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

/* ---- Calls and their cost ---- */

TEST(calls) {
  weir__recording *recording = load("traces/llama_varlen");
  weir__replayer *history = open_history(recording);
  weir__prediction p = predict(history, "expandable_segments:True", DEVICE_TOTAL, 0.145);
  const weir__meter_count *of = p.calls.of;
  assert_int_equal(of[WEIR__METER_ALLOC].calls, 0);
  assert_int_equal(of[WEIR__METER_CREATE].failed, 0);
  assert_int_equal(of[WEIR__METER_CREATE].calls, of[WEIR__METER_MAP].calls);
  assert_int_equal(of[WEIR__METER_MAP].handles, of[WEIR__METER_SET_ACCESS].handles);
  assert_int_equal(of[WEIR__METER_MAP].bytes, of[WEIR__METER_CREATE].bytes);
  assert_int_equal(of[WEIR__METER_UNMAP].handles, of[WEIR__METER_RELEASE].calls);
  assert_int_equal(of[WEIR__METER_UNMAP].bytes, of[WEIR__METER_RELEASE].bytes);
  assert_true(of[WEIR__METER_UNMAP].handles > of[WEIR__METER_UNMAP].calls);
  assert_true(of[WEIR__METER_RESERVE].calls > 0);
  /* What is not released is there at the end, and is no more than the peak. */
  assert_true(of[WEIR__METER_CREATE].bytes - of[WEIR__METER_RELEASE].bytes <= p.peak_reserved);

  weir__costs costs = {0};
  assert_true(weir__costs_estimate(&costs, &p.calls) == 0);
  costs.of[WEIR__METER_SET_ACCESS].handle = 3;
  costs.of[WEIR__METER_CREATE].mib = 2;
  double expected =
      3 * (double)of[WEIR__METER_SET_ACCESS].handles + 2 * (double)of[WEIR__METER_CREATE].bytes / (double)MIB;
  assert_true(weir__costs_estimate(&costs, &p.calls) == expected);

  /* The default table: 165 segments at half of a pair's 62 to 94 us. */
  p = predict(history, NULL, 0, 0);
  assert_int_equal(weir__prediction_calls(&p), 165);
  assert_true(p.cost > 165 * 31000.0 && p.cost < 165 * 47000.0);
  assert_true(weir__prediction_fragmentation(&p) > 0.441 && weir__prediction_fragmentation(&p) < 0.443);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

/* Calls that fail are counted, and cost what one does. */
TEST(failed_calls) {
  weir__recording *recording = load("traces/llama_oom");
  weir__replayer *history = open_history(recording);
  weir__prediction p = predict(history, NULL, 12ull << 30, 0);
  assert_true(p.calls.of[WEIR__METER_ALLOC].failed > 0);
  assert_true(p.failures > 0);
  assert_true(p.failed_bytes > 0);
  assert_true(p.failed_allocated <= p.failed_reserved);
  assert_true(p.failed_reserved <= 12ull << 30);
  assert_true(p.failed_reserved + p.failed_bytes > 12ull << 30);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

TEST(costs) {
  weir__costs costs, before;
  weir__costs_default(&costs);
  assert_int_equal(
      weir__costs_parse("x", "# mine\nalloc 100\nset_access = 7.5 # per handle\nrelease_mib 1e3\n", &costs), WEIR_OK);
  assert_true(costs.of[WEIR__METER_ALLOC].handle == 100);
  assert_true(costs.of[WEIR__METER_SET_ACCESS].handle == 7.5);
  assert_true(costs.of[WEIR__METER_RELEASE].mib == 1000);
  assert_true(costs.of[WEIR__METER_FREE].handle == 39000); /* as it was */
  assert_int_equal(weir__costs_parse("x", "{\"alloc\": 5, \"free\": 6,\n \"create_mib\": 7}", &costs), WEIR_OK);
  assert_true(costs.of[WEIR__METER_ALLOC].handle == 5);
  assert_true(costs.of[WEIR__METER_FREE].handle == 6);
  assert_true(costs.of[WEIR__METER_CREATE].mib == 7);
  assert_int_equal(weir__costs_parse("x", "", &costs), WEIR_OK);

  static const struct {
    const char *text, *error;
  } bad[] = {{"alloc 1\nmalloc 5", "line 2: there is no key 'malloc'"},
             {"alloc", "line 1: alloc: '' is not a number"},
             {"alloc x", "'x' is not a number"},
             {"alloc -1", "'-1' is not a number"},
             {"alloc nan", "'nan' is not a number"},
             {"alloc 1e99", "'1e99' is not a number"},
             {"alloc 5x", "'5x' is not a number"},
             {"_mib 5", "no key '_mib'"}};
  before = costs;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_int_equal(weir__costs_parse("x", bad[i].text, &costs), WEIR_ERROR_BAD_DATA);
    if (!strstr(weir_last_error(), bad[i].error))
      fail_msg("'%s': '%s' is not in '%s'", bad[i].text, bad[i].error, weir_last_error());
    assert_memory_equal(&costs, &before, sizeof costs);
  }
  assert_int_equal(weir__costs_load("/no/such/file", &costs), WEIR_ERROR_SYSTEM);
  assert_int_equal(weir__costs_load(WEIR_TEST_DATA "/small_snapshot.pickle", &costs), WEIR_ERROR_BAD_DATA);
}

/* ---- Capacity ---- */

/* A history with all that is said about memory. */
TEST(capacity) {
  weir__recording *recording = load("traces/llama_oom");
  weir__replayer *history = open_history(recording);
  weir__settings settings;
  weir__capacity capacity = weir__replayer_capacity(history);
  assert_int_equal(capacity.memory, 0); /* the file has a limit; how large the device was is not known */
  assert_int_equal(capacity.limit, weir__replayer_check(history)->limit);

  weir__settings_default(&settings);
  assert_int_equal(weir__replayer_capacity_of(history, &settings, 0, 0, &capacity), WEIR_OK);
  assert_int_equal(capacity.limit, weir__replayer_check(history)->limit);
  assert_int_equal(weir__replayer_capacity_of(history, &settings, 1000 * MIB, 0, &capacity), WEIR_OK);
  assert_int_equal(capacity.memory, 1000 * MIB);
  assert_int_equal(capacity.limit, UINT64_MAX);
  assert_int_equal(weir__replayer_capacity_of(history, &settings, 1000 * MIB, 1, &capacity), WEIR_OK);
  assert_int_equal(capacity.limit, 1000 * MIB);
  settings.memory_fraction = 0.25;
  assert_int_equal(weir__replayer_capacity_of(history, &settings, 1000 * MIB, 0, &capacity), WEIR_OK);
  assert_int_equal(capacity.limit, 250 * MIB);
  assert_int_equal(weir__replayer_capacity_of(history, &settings, 1000 * MIB, 0.5, &capacity), WEIR_OK);
  assert_int_equal(capacity.limit, 500 * MIB);
  assert_int_equal(weir__replayer_capacity_of(history, &settings, 0, 0, &capacity), WEIR_ERROR_INVALID_ARGUMENT);

  weir__costs costs;
  weir__prediction prediction;
  weir__costs_default(&costs);
  capacity = (weir__capacity){.memory = WEIR__REPLAY_MAX_MEMORY + 1, .limit = UINT64_MAX};
  assert_int_equal(weir__predict(history, NULL, &capacity, &costs, &prediction), WEIR_ERROR_INVALID_ARGUMENT);
  assert_int_equal(prediction.status, WEIR_ERROR_INVALID_ARGUMENT);
  capacity.memory = 0;
  settings.backend = WEIR__BACKEND_CUDA_MALLOC_ASYNC;
  assert_int_equal(weir__predict(history, &settings, &capacity, &costs, &prediction), WEIR_ERROR_NOT_SUPPORTED);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

/* Without a limit there is room for settings that need far more than the recorded ones. */
TEST(no_limit) {
  weir__recording *recording = load("traces/cuda_graphs");
  weir__replayer *history = open_history(recording);
  weir__prediction p = predict(history, "large_segment_size_mb:20480", 0, 0);
  assert_true(p.peak_reserved > 40ull << 30);
  assert_int_equal(p.failures, 0);
  assert_int_equal(p.retries, 0);
  assert_int_equal(p.calls.of[WEIR__METER_ALLOC].failed, 0);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

/* One history, run again and again: the last run knows nothing of the first. */
TEST(runs_are_independent) {
  weir__recording *recording = load("traces/llama_lora_gc");
  weir__replayer *history = open_history(recording);
  weir__prediction first = predict(history, NULL, 0, 0), other, again;
  other = predict(history, "expandable_segments:True", 0, 0);
  again = predict(history, NULL, 0, 0);
  assert_memory_equal(&first, &again, sizeof first);
  assert_int_not_equal(first.peak_reserved, other.peak_reserved);
  weir__replayer_close(history);
  weir__recording_free(recording);
}

/* ---- The least memory ---- */

TEST(fit) {
  static const char *const names[] = {"traces/llama_oom", "traces/gpt2_fixed", "histories/emptied", "histories/pools"};
  static const char *const confs[] = {"", "expandable_segments:True", "max_split_size_mb:64"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    weir__recording *recording = load(names[i]);
    weir__replayer *history = open_history(recording);
    for (size_t k = 0; k < sizeof confs / sizeof *confs; k++) {
      weir__settings settings;
      weir__fit fit;
      weir__settings_parse(NULL, confs[k], &settings);
      for (int is_limit = 0; is_limit < 2; is_limit++) {
        weir__capacity capacity = {.limit = is_limit ? 1 : UINT64_MAX};
        assert_int_equal(weir__predict_fit(history, &settings, &capacity, &fit), WEIR_OK);
        assert_int_equal(fit.bytes % WEIR__FIT_STEP, 0);
        for (int less = 0; less < 2; less++) {
          weir__replay_report report;
          uint64_t bytes = fit.bytes - (less ? WEIR__FIT_STEP : 0);
          weir__capacity tried = {.memory = is_limit ? 0 : bytes, .limit = is_limit ? bytes : UINT64_MAX};
          assert_int_equal(weir__replayer_run(history, &settings, &tried, NULL, &report), WEIR_OK);
          if ((report.failures > 0) != (less > 0))
            fail_msg("%s, %s: %llu bytes: %zu failures", names[i], confs[k], (unsigned long long)bytes,
                     report.failures);
          if (!less)
            assert_int_equal(report.stats.num_alloc_retries, fit.retries);
        }
      }
    }
    weir__replayer_close(history);
    weir__recording_free(recording);
  }
}

/* A request that no device can serve. */
TEST(fits_nowhere) {
  weir__recording_entry events[] = {
      {.action = WEIR_TRACE_OOM, .size = 1ull << 61, .pool = WEIR__RECORDING_NO_POOL},
  };
  int64_t streams[] = {0};
  weir__recording_pool pools[] = {{{0, 0}}};
  weir__recording_device device = {.events = events, .event_count = 1};
  weir__recording recording = {
      .devices = &device, .device_count = 1, .streams = streams, .stream_count = 1, .pools = pools, .pool_count = 1};
  weir__replayer *history = open_history(&recording);
  weir__capacity capacity = {.limit = UINT64_MAX};
  weir__fit fit;
  assert_int_equal(weir__predict_fit(history, NULL, &capacity, &fit), WEIR_ERROR_OUT_OF_MEMORY);
  weir__replayer_close(history);
}

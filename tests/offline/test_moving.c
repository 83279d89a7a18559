/*
 * Predictions for pages that move: what driver calls cost, and what depends on streams.
 */

#include <string.h>

#include "offline/analyse/explain.h"
#include "offline/analyse/predict.h"
#include "offline/analyse/tune.h"
#include "offline/load.h"

#define MIB (1ull << 20)

typedef struct job {
  weir__recording *recording;
  weir__replayer *history;
} job;

static job open_job(const char *name) {
  job j = {.recording = load(name)};
  if (weir__replayer_open(j.recording, 0, 0, 0, &j.history))
    fail_msg("%s: %s", name, weir_last_error());
  assert_int_equal(weir__replayer_check(j.history)->differences, 0);
  return j;
}

static void close_job(job *j) {
  weir__replayer_close(j->history);
  weir__recording_free(j->recording);
}

static weir__settings settings_of(const char *conf) {
  weir__settings settings;
  if (weir__settings_parse(NULL, conf, &settings))
    fail_msg("%s", weir_last_error());
  return settings;
}

static weir__prediction predict(const job *j, const char *conf) {
  const weir__settings settings = settings_of(conf);
  const weir__capacity capacity = weir__replayer_capacity(j->history);
  weir__costs costs;
  weir__prediction p;
  weir__costs_default(&costs);
  assert_int_equal(weir__predict(j->history, &settings, &capacity, &costs, &p), WEIR_OK);
  return p;
}

/* ---- Calls ---- */

/* A call for a range costs as much as the handles in it, whatever their sizes. */
TEST(handles_of_many_sizes) {
  static const uint64_t sizes[] = {2 * MIB, 64 * MIB, 6 * MIB, 2 * MIB};
  const weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {.type = WEIR_CU_LOCATION_DEVICE}};
  const weir_cu_mem_access access = {.location = {.type = WEIR_CU_LOCATION_DEVICE}, .flags = 3};
  weir_driver *ledger, *driver;
  weir_cu_context context;
  weir_cu_deviceptr base;
  assert_int_equal(weir_driver_open_ledger(NULL, &ledger), WEIR_OK);
  assert_int_equal(weir__meter_open(ledger, &driver), WEIR_OK);
  driver->Init(driver, 0);
  assert_int_equal(driver->DevicePrimaryCtxRetain(driver, &context, 0), WEIR_CU_SUCCESS);
  assert_int_equal(driver->CtxSetCurrent(driver, context), WEIR_CU_SUCCESS);
  assert_int_equal(driver->MemAddressReserve(driver, &base, 256 * MIB, 0, 0, 0), WEIR_CU_SUCCESS);
  uint64_t at = base;
  for (size_t i = 0; i < 4; at += sizes[i++]) {
    weir_cu_mem_handle handle;
    assert_int_equal(driver->MemCreate(driver, &handle, sizes[i], &prop, 0), WEIR_CU_SUCCESS);
    assert_int_equal(driver->MemMap(driver, at, sizes[i], 0, handle, 0), WEIR_CU_SUCCESS);
    assert_int_equal(driver->MemRelease(driver, handle), WEIR_CU_SUCCESS);
  }
  assert_int_equal(driver->MemSetAccess(driver, base, at - base, &access, 1), WEIR_CU_SUCCESS);
  assert_int_equal(driver->MemSetAccess(driver, base + 2 * MIB, 70 * MIB, &access, 1), WEIR_CU_SUCCESS);
  assert_int_equal(driver->MemUnmap(driver, base, 66 * MIB), WEIR_CU_SUCCESS);
  const weir__meter_counts *counts = weir__meter_read(driver);
  assert_int_equal(counts->of[WEIR__METER_SET_ACCESS].calls, 2);
  assert_int_equal(counts->of[WEIR__METER_SET_ACCESS].handles, 4 + 2);
  assert_int_equal(counts->of[WEIR__METER_UNMAP].calls, 1);
  assert_int_equal(counts->of[WEIR__METER_UNMAP].handles, 2);
  assert_int_equal(driver->MemUnmap(driver, base + 66 * MIB, 8 * MIB), WEIR_CU_SUCCESS);
  assert_int_equal(counts->of[WEIR__METER_UNMAP].handles, 4);
  weir_driver_close(driver);
  weir_driver_close(ledger);
}

/* Every mapping is made accessible once; pages are made by one call each. */
TEST(calls) {
  static const char *const names[] = {"traces/resnet_stacks", "traces/llama_oom", "traces/cuda_graphs"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    job j = open_job(names[i]);
    weir__prediction p = predict(&j, "moving_pages:True");
    const weir__meter_count *of = p.calls.of;
    assert_true(p.moving.pages_made > 0);
    assert_int_equal(of[WEIR__METER_CREATE].handles, p.moving.pages_made);
    assert_int_equal(of[WEIR__METER_MAP].handles, p.moving.pages_made + p.moving.pages_moved);
    assert_int_equal(of[WEIR__METER_SET_ACCESS].handles, of[WEIR__METER_MAP].handles);
    assert_true(of[WEIR__METER_UNMAP].handles <= of[WEIR__METER_MAP].handles);
    assert_int_equal(of[WEIR__METER_ALLOC].calls, 0);
    /* 47 us for a page that is made, 34 for one that moves; the old mappings are seldom unmapped. */
    assert_true(p.cost >= 47e3 * (double)p.moving.pages_made + 34e3 * (double)p.moving.pages_moved);
    close_job(&j);
  }
}

/* ---- Ranges ---- */

static void assert_inside(const job *j, const char *conf, bool is_busy, const weir__prediction *p) {
  const weir__settings settings = settings_of(conf);
  weir__capacity capacity = weir__replayer_capacity(j->history);
  weir__replay_report report;
  capacity.is_busy = is_busy;
  assert_int_equal(weir__replayer_run(j->history, &settings, &capacity, NULL, &report), WEIR_OK);
  assert_int_equal(report.stats.reserved_bytes[WEIR_STAT_ALL].peak, is_busy ? p->busy.peak_reserved : p->peak_reserved);
}

TEST(ranges) {
  job one = open_job("traces/llama_oom"), many = open_job("traces/streams_prefetch"),
      pools = open_job("traces/cuda_graphs");
  const weir__settings plain = settings_of("expandable_segments:True"), moving = settings_of("moving_pages:True"),
                       careful = settings_of("moving_pages:True,moving_pages_completed_only:True");
  assert_false(weir__replayer_is_range(one.history, &moving));
  assert_false(weir__replayer_is_range(one.history, NULL));
  assert_true(weir__replayer_is_range(one.history, &careful));
  assert_false(weir__replayer_is_range(many.history, &plain));
  assert_true(weir__replayer_is_range(many.history, &moving));
  assert_true(weir__replayer_is_range(pools.history, &moving));

  weir__prediction p = predict(&one, "moving_pages:True");
  assert_false(p.is_range);
  assert_int_equal(p.busy.peak_reserved, p.peak_reserved);
  p = predict(&many, "expandable_segments:True");
  assert_false(p.is_range);
  p = predict(&many, "moving_pages:True");
  assert_true(p.is_range);
  assert_true(p.moving.pages_moved > 0 && p.busy.moving.pages_moved > 0);
  assert_inside(&many, "moving_pages:True", false, &p);
  assert_inside(&many, "moving_pages:True", true, &p);

  /* Where only finished pages move, none does in a stream that is never done. */
  p = predict(&one, "moving_pages:True,moving_pages_completed_only:True");
  assert_true(p.is_range);
  assert_true(p.moving.pages_moved > 0);
  assert_int_equal(p.busy.moving.pages_moved, 0);
  close_job(&one);
  close_job(&many);
  close_job(&pools);
}

/* The allocator waits before a request fails, and then knows that streams are done: the least memory is enough however
 * busy they are. */
TEST(fit) {
  job j = open_job("traces/cuda_graphs");
  const weir__settings moving = settings_of("moving_pages:True");
  weir__capacity capacity = {.limit = WEIR__FIT_STEP};
  weir__fit fit;
  assert_int_equal(weir__predict_fit(j.history, &moving, &capacity, &fit), WEIR_OK);
  assert_true(fit.least <= fit.bytes);
  for (int is_busy = 0; is_busy < 2; is_busy++) {
    weir__replay_report report;
    capacity = (weir__capacity){.limit = fit.bytes, .is_busy = is_busy};
    assert_int_equal(weir__replayer_run(j.history, &moving, &capacity, NULL, &report), WEIR_OK);
    assert_int_equal(report.failures, 0);
  }
  close_job(&j);
}

/* ---- Remedies ---- */

TEST(explain) {
  weir__recording *recording = load("traces/llama_oom");
  weir__explanation x;
  const weir__trial *found = NULL;
  assert_int_equal(weir__explain(recording, &(weir__explain_options){.device = 0}, &x), WEIR_OK);
  for (size_t i = 0; i < x.trial_count; i++)
    if (x.trials[i].remedy == WEIR__REMEDY_SETTING) {
      bool moves = strcmp(x.trials[i].change, "moving_pages:True") == 0;
      assert_int_equal(x.trials[i].is_weir_only, moves);
      found = moves ? &x.trials[i] : found;
    }
  assert_non_null(found);
  assert_true(found->works);
  assert_false(found->depends);
  assert_true(found->reserved <= x.limit);
  assert_string_equal(found->conf, "moving_pages:True");
  weir__recording_free(recording);
}

TEST(tune) {
  job j = open_job("traces/cuda_graphs");
  const weir__replayer *const histories[] = {j.history};
  weir__costs costs;
  weir__tune_result r;
  weir__costs_default(&costs);
  const weir__tune_options options = {.histories = histories, .history_count = 1, .costs = &costs, .fit = true};
  assert_int_equal(weir__tune(&options, &r), WEIR_OK);
  assert_false(r.candidates[r.best].settings.moving_pages);
  assert_true(r.moving > 0);
  assert_true(r.candidates[r.moving].settings.moving_pages);
  assert_true(r.candidates[r.moving].score.peak < r.candidates[r.best].score.peak);
  const weir__prediction *p = r.candidates[r.moving].of; /* the worse end of a range counts */
  assert_int_equal(r.candidates[r.moving].score.peak,
                   p->busy.peak_reserved > p->peak_reserved ? p->busy.peak_reserved : p->peak_reserved);
  assert_true(r.fit_moving.bytes > 0 && r.fit_moving.bytes <= r.fit_best.bytes);
  weir__tune_clear(&r);
  close_job(&j);
}

/*
 * Jobs on many threads; above all replays of one history, which they share.
 */

#include <stdio.h>
#include <string.h>

#include "base/parallel.h"
#include "offline/analyse/predict.h"
#include "support/test.h"

static void count_steps(void *context, size_t done, size_t count) {
  size_t *steps = context;
  assert_true(done <= count);
  ++*steps;
}

static void mark(void *context, size_t index, void *result) {
  (void)context;
  *(size_t *)result += index + 1;
}

TEST(every_job_once) {
  size_t results[100], steps = 0;
  const weir__parallel parallel = {.threads = 5, .progress = count_steps, .progress_context = &steps};
  memset(results, 0xff, sizeof results);
  weir__parallel_run(&parallel, 100, mark, NULL, results, sizeof *results);
  for (size_t i = 0; i < 100; i++)
    assert_int_equal(results[i], i + 1);
  assert_int_equal(steps, 100);
  weir__parallel_run(&parallel, 0, mark, NULL, results, sizeof *results);
  assert_int_equal(steps, 100);
}

static const char *const confs[] = {"",
                                    "expandable_segments:True",
                                    "max_split_size_mb:64",
                                    "roundup_power2_divisions:8",
                                    "large_segment_size_mb:64,expandable_segments:True",
                                    "garbage_collection_threshold:0.5"};

enum { CONFS = sizeof confs / sizeof *confs, TIMES = 4 };

static void predict(void *context, size_t index, void *result) {
  const weir__replayer *history = context;
  weir__settings settings;
  weir__costs costs;
  weir__capacity capacity = weir__replayer_capacity(history);
  weir__costs_default(&costs);
  assert_int_equal(weir__settings_parse(NULL, confs[index % CONFS], &settings), WEIR_OK);
  weir__predict(history, &settings, &capacity, &costs, result);
}

TEST(one_history_for_all) {
#ifndef WEIR_HAVE_ZSTD
  print_message("waived: built without libzstd\n");
  skip();
#endif
  static weir__prediction one[CONFS], many[TIMES * CONFS];
  static const char *const names[] = {"histories/collected", "histories/expandable_capped", "histories/pools_capped",
                                      "traces/cuda_graphs"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    char path[1024];
    weir__recording *recording = NULL;
    weir__replayer *history = NULL;
    snprintf(path, sizeof path, "%s/%s.pickle.zst", WEIR_TEST_DATA, names[i]);
    if (weir__recording_load(path, NULL, &recording) || weir__replayer_open(recording, 0, 0, 0, &history))
      fail_msg("%s", weir_last_error());
    weir__parallel parallel = {.threads = 1};
    weir__parallel_run(&parallel, CONFS, predict, history, one, sizeof *one);
    parallel.threads = 6;
    weir__parallel_run(&parallel, TIMES * CONFS, predict, history, many, sizeof *many);
    for (size_t k = 0; k < TIMES * CONFS; k++) {
      assert_int_equal(many[k].status, WEIR_OK);
      assert_memory_equal(&many[k], &one[k % CONFS], sizeof *one);
    }
    weir__replayer_close(history);
    weir__recording_free(recording);
  }
}

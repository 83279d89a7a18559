/*
 * The steps of real and synthetic jobs: from annotations, from phases, and inferred without either.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offline/analyse/job_steps.h"
#include "offline/leak_jobs.h"
#include "offline/load.h"
#include "support/length.h"

static weir__steps find(const weir__recording *recording) {
  weir__lives lives;
  weir__steps steps;
  if (weir__lives_make(recording, 0, &lives) || weir__job_steps_find(recording, 0, &lives, &steps))
    fail_msg("%s", weir_last_error());
  weir__lives_clear(&lives);
  for (size_t i = 0; i < steps.count; i++)
    assert_true(steps.begin[i] < steps.begin[i + 1]);
  assert_true(steps.confidence >= 0 && steps.confidence <= 1);
  return steps;
}

/* The iterations of the jobs are known. The first one may belong to the setup. */
TEST(real) {
  static const struct {
    const char *name;
    size_t steps;
    bool has_annotations;
    size_t inferred; /* at least, without annotations */
  } jobs[] = {{"traces/gpt2_fixed", 5, true, 4},
              {"traces/llama_lora_ckpt", 15, true, 14},
              {"traces/llama_varlen_expandable", 25, true, 23},
              {"traces/resnet_multiscale", 25, true, 24},
              {"traces/streams_prefetch", 40, true, 38},
              {"traces/cuda_graphs", 30, false, 28},
              {"traces/llm_generate_small", 198, false, 197}};
  for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
    weir__recording *recording = load(jobs[i].name);
    if (jobs[i].has_annotations) {
      weir__steps steps = find(recording);
      assert_int_equal(steps.source, WEIR__STEPS_ANNOTATIONS);
      assert_int_equal(steps.count, jobs[i].steps - 1);
      assert_non_null(strstr(steps.name, "Optimizer.step#"));
      assert_true(steps.confidence > 0.9);
      weir__steps_clear(&steps);
    }
    recording->annotation_count = 0;
    weir__steps steps = find(recording);
    assert_int_equal(steps.source, WEIR__STEPS_INFERRED);
    assert_in_range(steps.count, jobs[i].inferred, jobs[i].steps);
    weir__steps_clear(&steps);
    weir__recording_free(recording);
  }
}

/* "forward", "backward" and "step 7", which is numbered. */
TEST(phases) {
  for (int is_numbered = 0; is_numbered < 2; is_numbered++) {
    enum { STEPS = 12 };
    static synthetic s;
    weir__string strings[STEPS + 4] = {{"", 0}, {"forward", 7}, {"backward", 8}};
    weir__recording_remark remarks[STEPS + 4] = {{0}, {.phase = 1}, {.phase = 2}};
    char names[STEPS][16];
    job j = {.random = 1};
    synthetic_begin(&s, &j);
    for (uint32_t i = 0; i < STEPS; i++) {
      int length = snprintf(names[i], sizeof names[i], "step %u", i);
      strings[i + 3] = (weir__string){names[i], (uint32_t)length};
      remarks[i + 3].phase = i + 3;
      size_t first = j.count;
      held a = take(&s, &j, 1 << 20, 0), b = take(&s, &j, 1 << 20, 1), c = take(&s, &j, 1 << (10 + i), 2);
      give(&j, &a);
      give(&j, &b);
      give(&j, &c);
      for (size_t k = first; k < j.count; k++)
        j.entries[k].remark = is_numbered ? i + 3 : k < first + 1 ? 1 : 2;
    }
    job_recording(&j);
    j.recording.strings.items = strings;
    j.recording.strings.count = STEPS + 4;
    j.recording.remarks = remarks;
    j.recording.remark_count = STEPS + 4;
    weir__steps steps = find(&j.recording);
    assert_int_equal(steps.source, WEIR__STEPS_PHASES);
    assert_int_equal(steps.count, STEPS - 1);
    assert_string_equal(steps.name, is_numbered ? "step 0" : "forward");
    for (size_t i = 0; i < steps.count; i++)
      assert_int_equal(steps.begin[i], 9 * i);
    weir__steps_clear(&steps);
    job_free(&j);
  }
}

/* The same phase again and again: the program marked each, however irregular they are, and all are complete. */
TEST(phases_back_to_back) {
  enum { STEPS = 60 };
  static synthetic s;
  weir__string strings[] = {{"", 0}, {"step", 4}};
  weir__recording_remark remarks[] = {{0}, {.phase = 1}};
  job j = {.random = 5};
  synthetic_begin(&s, &j);
  take(&s, &j, 1 << 20, 0);
  for (uint32_t i = 0; i < STEPS; i++) {
    held held[12] = {{0}};
    size_t first = j.count, layers = 1 + job_below(&j, 12);
    job_begin_step(&j);
    for (size_t k = 0; k < layers; k++)
      held[k] = take(&s, &j, 512 * (1 + job_below(&j, 4000)), 0);
    take(&s, &j, 4096, 0);
    for (size_t k = 0; k < layers; k++)
      give(&j, &held[k]);
    for (size_t k = first; k < j.count; k++)
      j.entries[k].remark = 1;
    j.entries[first].phase_begins = true;
  }
  job_begin_step(&j);
  for (int i = 0; i < 8; i++) { /* what follows is no step */
    held after = take(&s, &j, 1 << 20, 0);
    give(&j, &after);
  }
  job_recording(&j);
  j.recording.strings.items = strings;
  j.recording.strings.count = 2;
  j.recording.remarks = remarks;
  j.recording.remark_count = 2;
  weir__steps steps = find(&j.recording);
  assert_int_equal(steps.source, WEIR__STEPS_PHASES);
  assert_string_equal(steps.name, "step");
  assert_int_equal(steps.count, STEPS);
  for (size_t i = 0; i <= STEPS; i++)
    assert_int_equal(steps.begin[i], j.begin[i]);
  weir__steps_clear(&steps);
  job_free(&j);
}

/* Most synthetic jobs are regular, and then the number of steps is right. */
TEST(synthetic) {
  size_t right = 0, all = 0;
  for (uint64_t seed = 0; seed < (uint64_t)repetitions(60, 2000); seed++) {
    static synthetic s;
    job j = {.random = seed};
    s.is = (traits){.has_stacks = seed & 1, .varies = seed & 2, .prefetches = seed & 4, .evicts = seed & 8};
    size_t count = 15 + job_below(&j, 50);
    job_synthesize(&s, &j, count);
    weir__steps steps = find(job_recording(&j));
    bool is_right = steps.count + 7 >= count && steps.count <= count + 1; /* the last may be cut off */
    right += is_right;
    if (!is_right)
      print_message("seed %d: %zu steps of %zu, %d layers\n", (int)seed, steps.count, count, s.layers);
    all++;
    weir__steps_clear(&steps);
    job_free(&j);
  }
  print_message("%zu of %zu inferred\n", right, all);
  assert_true(10 * right >= 9 * all);
}

/* Random allocations have no steps, or none that are certain. */
TEST(none) {
  static synthetic s;
  job j = {.random = 3};
  held held[64] = {{0}};
  synthetic_begin(&s, &j);
  for (int i = 0; i < 4000; i++) {
    size_t k = job_below(&j, 64);
    if (held[k].address)
      give(&j, &held[k]);
    else
      held[k] = take(&s, &j, 512 * (1 + job_below(&j, 4096)), 0);
  }
  weir__steps steps = find(job_recording(&j));
  assert_true(!steps.count || steps.confidence < 0.75);
  weir__steps_clear(&steps);
  job_free(&j);

  j = (job){.random = 3};
  synthetic_begin(&s, &j);
  steps = find(job_recording(&j)); /* no entries at all */
  assert_int_equal(steps.source, WEIR__STEPS_NONE);
  assert_int_equal(steps.count, 0);
  assert_int_equal(weir__steps_at(&steps, 7), -1);
  job_free(&j);
}

/* The search for low-water marks ends also if all levels lie within a few bytes. */
TEST(tiny) {
  static synthetic s;
  for (uint64_t most = 1; most < 120; most++) {
    job j = {.random = most};
    held held[8] = {{0}};
    synthetic_begin(&s, &j);
    for (int i = 0; i < 200; i++) {
      size_t k = job_below(&j, 8);
      if (held[k].address)
        give(&j, &held[k]);
      else
        held[k] = take(&s, &j, 1 + job_below(&j, most), 0);
    }
    weir__steps steps = find(job_recording(&j));
    weir__steps_clear(&steps);
    job_free(&j);
  }
}

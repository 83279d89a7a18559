/*
 * Steps and trends of sequences that are made by hand: what is marked wins, and growth that goes on is told from growth
 * that stopped.
 */
#include <string.h>

#include "pattern/steps.h"
#include "pattern/trend.h"
#include "support/test.h"

enum { STEPS = 40, LAYERS = 4, IN_STEP = 2 * LAYERS + 1 };

/* Steps of LAYERS blocks that are freed in reverse order, and of one block that stays. */
typedef struct history {
  weir__life blocks[STEPS * (LAYERS + 1)];
  weir__step_mark marks[STEPS + 1];
  size_t count;
} history;

static weir__sequence make(history *h) {
  h->count = 0;
  for (uint32_t k = 0; k < STEPS; k++) {
    uint32_t at = k * IN_STEP;
    for (uint32_t i = 0; i < LAYERS; i++)
      h->blocks[h->count++] =
          (weir__life){.size = 1000 * (i + 1), .begin = at + i, .freed = at + 2 * LAYERS - 1 - i, .stack = i + 1};
    h->blocks[h->count++] = (weir__life){.size = 64, .begin = at + 2 * LAYERS, .freed = WEIR__LIFE_OPEN, .stack = 99};
  }
  return (weir__sequence){.blocks = h->blocks, .block_count = h->count, .entry_count = STEPS * IN_STEP};
}

TEST(period) {
  static history h;
  weir__sequence sequence = make(&h);
  weir__steps steps;
  assert_int_equal(weir__steps_find(&sequence, &steps), WEIR_OK);
  assert_int_equal(steps.source, WEIR__STEPS_INFERRED);
  assert_in_range(steps.count, STEPS - 2, STEPS);
  for (size_t i = 0; i < steps.count; i++)
    assert_int_equal(steps.begin[i + 1] - steps.begin[i], IN_STEP);
  weir__steps_clear(&steps);
}

/* Marks that disagree with the period, with and without an end of the last step. */
TEST(marks_win) {
  static history h;
  weir__sequence sequence = make(&h);
  weir__step_marks marks = {.items = h.marks, .source = WEIR__STEPS_PHASES};
  for (uint32_t k = 0; k < STEPS; k += 2)
    h.marks[marks.count++] = (weir__step_mark){.entry = k * IN_STEP, .text = "step"};
  sequence.marks = &marks;
  sequence.mark_kinds = 1;
  for (int closes = 0; closes < 2; closes++) {
    if (closes)
      h.marks[marks.count++] = (weir__step_mark){.entry = STEPS * IN_STEP - 2, .text = "step", .closes = true};
    weir__steps steps;
    assert_int_equal(weir__steps_find(&sequence, &steps), WEIR_OK);
    assert_int_equal(steps.source, WEIR__STEPS_PHASES);
    assert_string_equal(steps.name, "step");
    assert_int_equal(steps.count, STEPS / 2 - 1 + closes);
    assert_int_equal(steps.begin[1] - steps.begin[0], 2 * IN_STEP);
    assert_int_equal(steps.begin[steps.count], closes ? STEPS * IN_STEP - 2 : (STEPS - 2) * IN_STEP);
    assert_int_equal(weir__steps_at(&steps, 5 * IN_STEP), 2);
    weir__steps_clear(&steps);
  }
}

/* Texts that need numbers, such as metadata, are no marks if all are the same. */
TEST(numbers) {
  static history h;
  static const char *const texts[] = {"part 1", "part 2", "part 3", "part 4"};
  weir__sequence sequence = make(&h);
  weir__step_marks marks = {.items = h.marks, .source = WEIR__STEPS_PHASES, .needs_numbers = true};
  sequence.marks = &marks;
  sequence.mark_kinds = 1;
  for (int is_numbered = 0; is_numbered < 2; is_numbered++) {
    marks.count = 0;
    for (uint32_t k = 0; k < STEPS; k += 2)
      h.marks[marks.count++] = (weir__step_mark){.entry = k * IN_STEP, .text = texts[is_numbered ? k / 2 % 4 : 0]};
    weir__steps steps;
    assert_int_equal(weir__steps_find(&sequence, &steps), WEIR_OK);
    assert_int_equal(steps.source, is_numbered ? WEIR__STEPS_PHASES : WEIR__STEPS_INFERRED);
    weir__steps_clear(&steps);
  }
}

TEST(windows) {
  static history h;
  weir__sequence sequence = make(&h);
  weir__steps steps;
  assert_int_equal(weir__steps_windows(&sequence, 4, &steps), WEIR_OK);
  assert_int_equal(steps.count, 4);
  assert_true(weir__steps_are_weak(&steps));
  assert_int_equal(steps.begin[2], STEPS / 2 * IN_STEP);
  weir__steps_clear(&steps);
}

/* ---- Trends ---- */

TEST(ages) {
  weir__ages ages = {.alive = 10}, other = {0};
  assert_int_equal(weir__ages_usual(&ages), 0);
  for (int i = 0; i < 5; i++)
    weir__ages_add(&ages, 2);
  weir__ages_add(&ages, 40); /* one of eleven is an exception */
  assert_int_equal(weir__ages_usual(&ages), 2);
  weir__ages_add(&other, 40);
  weir__ages_merge(&ages, &other);
  assert_int_equal(weir__ages_freed(&ages), 7);
  assert_in_range(weir__ages_usual(&ages), 40, 48);
}

static weir__growth_kind judge(int64_t first, int64_t last, int64_t every) {
  static uint32_t begin[STEPS + 1];
  weir__steps steps = {.source = WEIR__STEPS_PHASES, .confidence = 1, .count = STEPS, .begin = begin};
  weir__survivor survivors[STEPS];
  int64_t gaps[STEPS];
  size_t count = 0;
  for (uint32_t k = 0; k <= STEPS; k++)
    begin[k] = k * IN_STEP;
  for (int64_t k = first; k <= last; k += every)
    survivors[count++] = (weir__survivor){.step = k};
  return weir__births_judge(&steps, STEPS, survivors, count, STEPS - 1, gaps).kind;
}

TEST(births) {
  assert_int_equal(judge(0, STEPS - 1, 1), WEIR__GROWTH_LEAK);
  assert_int_equal(judge(10, STEPS - 2, 3), WEIR__GROWTH_LEAK);
  assert_int_equal(judge(0, STEPS / 2, 1), WEIR__GROWTH_STOPPED);
  assert_int_equal(judge(5, 6, 1), WEIR__GROWTH_FEW);
}

TEST(levels) {
  uint64_t level[STEPS];
  int64_t first;
  for (size_t k = 0; k < STEPS; k++)
    level[k] = 100 + 10 * k;
  assert_int_equal(weir__level_rise(level, STEPS, 0, &first), 10 * (STEPS / 2 - 1));
  assert_int_equal(first, 0);
  int64_t since;
  assert_true(weir__level_slope(level, STEPS, &since) == 10);
  assert_int_equal(since, STEPS);
  level[STEPS - 1] = 100; /* it falls back */
  assert_int_equal(weir__level_rise(level, STEPS, 0, &first), 0);
}

/* Levels that are read once in a while, and not at the ends of steps. */
TEST(slopes) {
  uint64_t level[WEIR__TREND_LEVELS + 1];
  int64_t since;
  uint32_t random = 1;
  for (int k = 0; k <= WEIR__TREND_LEVELS; k++)
    level[k] = 1000;
  assert_true(weir__level_slope(level, 60, &since) == 0);
  assert_true(weir__level_slope(level, WEIR__TREND_FEWEST - 1, &since) == 0);
  assert_true(weir__level_slope(level, WEIR__TREND_LEVELS + 1, &since) == 0);
  for (int round = 0; round < 2000; round++) { /* noise is no growth */
    for (int k = 0; k < 60; k++) {
      random = random * 1664525 + 1013904223;
      level[k] = 1000 + (random >> 8) % 500;
    }
    assert_true(weir__level_slope(level, 60, &since) == 0);
  }
  for (int k = 0; k < 60; k++) /* every second level lies in the middle of a step */
    level[k] = 1000 + 8 * (uint64_t)k + (k % 2 ? 300 : 0);
  double slope = weir__level_slope(level, 60, &since);
  assert_true(slope > 7 && slope < 9);
  assert_in_range(since, 50, 60);
  for (int k = 0; k < 60; k++) /* the setup of a job grows, and then it does not */
    level[k] = k < 20 ? 100 * (uint64_t)k : 2000;
  assert_true(weir__level_slope(level, 60, &since) == 0);
}

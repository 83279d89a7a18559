#include "pattern/trend.h"

#include <stdbool.h>
#include <stdlib.h>

/* ---- Ages ---- */

/* Ages of 0 to 4 steps have a class each; above, there are two for each power of two. */
static size_t age_class(int64_t age) {
  size_t class = 0;
  if (age <= 4)
    return (size_t)age;
  for (class = 4; age > 4 && class < WEIR__AGES - 1; class += 2)
    age = (age + 1) / 2;
  return age == 3 ? class - 1 : class < WEIR__AGES ? class : WEIR__AGES - 1;
}

/* The largest age of a class. */
static int64_t class_age(size_t class) {
  return class <= 4 ? (int64_t) class : (class % 2 ? 6 : 8) * (1ll << ((class - 5) / 2));
}

void weir__ages_add(weir__ages *ages, int64_t age) { ages->freed[age_class(age)]++; }

void weir__ages_merge(weir__ages *ages, const weir__ages *other) {
  for (size_t class = 0; class < WEIR__AGES; class ++)
    ages->freed[class] += other->freed[class];
}

uint64_t weir__ages_freed(const weir__ages *ages) {
  uint64_t freed = 0;
  for (size_t class = 0; class < WEIR__AGES; class ++)
    freed += ages->freed[class];
  return freed;
}

int64_t weir__ages_usual(const weir__ages *ages) {
  uint32_t older = 0, few = ages->alive / 10;
  for (size_t class = WEIR__AGES; class -- > 0;) {
    older += ages->freed[class];
    if (older > few)
      return class_age(class);
  }
  return 0;
}

/* ---- Births ---- */

enum { BURST = 4 };

static int by_number(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* The survivor from which on there are no long pauses. */
static size_t skip_early(const weir__survivor *s, size_t count, int64_t *gaps) {
  size_t n = 0;
  for (size_t i = 1; i < count; i++)
    if (s[i].step > s[i - 1].step)
      gaps[n++] = s[i].step - s[i - 1].step;
  if (n < 2)
    return 0;
  qsort(gaps, n, sizeof *gaps, by_number);
  int64_t mean = (s[count - 1].step - s[0].step) / (int64_t)n, usual = gaps[n / 2] > mean ? gaps[n / 2] : mean;
  int64_t longest = 4 * usual + 1;
  for (size_t i = count; i-- > 1;)
    if (s[i].step - s[i - 1].step > longest)
      return i;
  return 0;
}

/* The survivor after those of the first step, if that step has many times as many as each later one: what a job sets up
 * once, such as the state of an optimizer, says nothing about what grows afterwards. Otherwise 0. */
static size_t skip_burst(const weir__survivor *s, size_t count) {
  size_t first = 0, most = 0;
  while (first < count && s[first].step == s[0].step)
    first++;
  for (size_t i = first, next; i < count; i = next) {
    for (next = i; next < count && s[next].step == s[i].step; next++)
      ;
    most = next - i > most ? next - i : most;
  }
  return most && first > BURST * most ? first : 0;
}

/* Whether births are evenly spaced: each lies at most one step from its place, since a boundary may be off by one. */
static bool is_even(const weir__survivor *s, size_t count, size_t steps) {
  double every = (double)(s[count - 1].step - s[0].step) / (double)(steps - 1);
  size_t n = 0;
  for (size_t i = 1; i < count; i++) {
    n += s[i].step != s[i - 1].step;
    double off = (double)(s[i].step - s[0].step) - (double)n * every;
    if (off > 1 || off < -1)
      return false;
  }
  return true;
}

/* Whether steps [first, end) are far shorter than the others. Inferred steps may be: the layers of the last step. */
static bool are_short(const weir__steps *steps, int64_t count, int64_t first, int64_t end) {
  const uint32_t *begin = steps->begin;
  double entries = (double)(begin[end] - begin[first]), usual = (double)(begin[count] - begin[0]) / (double)count;
  return steps->source == WEIR__STEPS_INFERRED && 3 * entries < usual * (double)(end - first);
}

weir__births weir__births_judge(const weir__steps *steps, int64_t step_count, const weir__survivor *s, size_t count,
                                int64_t end, int64_t *gaps) {
  const int64_t part = steps->source == WEIR__STEPS_WINDOWS ? step_count / 2 : step_count * 2 / 5;
  const int64_t few = steps->source == WEIR__STEPS_INFERRED ? WEIR__TREND_STEPS : 6;
  const int64_t least_span = weir__steps_are_weak(steps) && part > few ? part : few;
  weir__births b = {.kind = WEIR__GROWTH_FEW};
  while (count && s[count - 1].step >= end)
    count--;
  if (!count)
    return b;
  b.first = skip_early(s, count, gaps);
  b.first += skip_burst(s + b.first, count - b.first);
  int64_t first = s[b.first].step, last = s[count - 1].step, least = INT64_MAX, most = 0,
          middle = first + (end - first) / 2;
  bool is_odd = (end - first) % 2; /* the step in the middle belongs to neither half */
  size_t with = 1, halves[2] = {0}, blocks[2] = {0};
  for (size_t i = b.first; i < count; i++) {
    int64_t gap = i > b.first ? s[i].step - s[i - 1].step : 0;
    int half = s[i].step >= middle;
    bool counts = !(is_odd && s[i].step == middle);
    if (gap) {
      with++;
      least = gap < least ? gap : least;
      most = gap > most ? gap : most;
    }
    halves[half] += counts && (gap || i == b.first);
    blocks[half] += counts;
  }
  b.first_step = first;
  b.last_step = last;
  b.steps = with;
  b.every = with > 1 ? (double)(last - first) / (double)(with - 1) : 0;
  bool is_regular = with >= 3 && most <= least + least / 4 + 1 + (least >= 3); /* boundaries may be off by one */
  is_regular = is_regular || (with >= 5 && is_even(s + b.first, count - b.first, with));
  if (with < 3 || end - first < least_span || are_short(steps, step_count, first, end))
    return b;
  if ((double)(end - 1 - last) > 2.5 * b.every + 1) {
    b.kind = WEIR__GROWTH_STOPPED;
    return b;
  }
  /* The end of the history is where the next one is due, at the latest. */
  if ((!is_regular || end - 1 - last > most + 1) && (with < 6 || (double)most > 6 * b.every + 2))
    return b;
  /* Births of a steady leak in the two halves differ by chance only: by 1.5 standard deviations at most. */
  double fewer = (double)halves[0] - (double)halves[1] - 1, variance = (double)(halves[0] + halves[1]);
  bool slows = (fewer > 0 && fewer * fewer > 2.25 * variance) || (blocks[0] >= 6 && 2 * blocks[1] < blocks[0]);
  b.kind = slows ? WEIR__GROWTH_SLOWING : WEIR__GROWTH_LEAK;
  return b;
}

weir__births weir__births_judge_pair(int64_t step_count, const weir__ages *ages, uint32_t in_setup,
                                     const weir__survivor *s, size_t count) {
  weir__births b = {.kind = WEIR__GROWTH_FEW};
  int64_t steps[3];
  size_t blocks[3] = {0}, n = 0;
  for (size_t i = 0; i < count; i++) {
    if (!n || s[i].step != steps[n - 1]) {
      if (n == 3)
        return b;
      steps[n++] = s[i].step;
    }
    blocks[n - 1]++;
  }
  if (n == 2 && in_setup) {
    steps[2] = steps[1];
    steps[1] = steps[0];
    steps[0] = -1;
    blocks[2] = in_setup;
    n++;
  }
  if (n < 3 || blocks[0] != blocks[1] || blocks[1] != blocks[2] || weir__ages_usual(ages) > 1)
    return b;
  int64_t first = steps[1] - steps[0], second = steps[2] - steps[1];
  if (first < 2 || first > second + 1 || second > first + 1 || step_count - steps[2] > second + 1)
    return b;
  b.kind = WEIR__GROWTH_LEAK;
  b.first_step = steps[0] < 0 ? 0 : steps[0];
  b.last_step = steps[2];
  b.every = (double)(first + second) / 2;
  return b;
}

/* ---- Levels ---- */

uint64_t weir__level_rise(const uint64_t *level, int64_t count, int64_t from, int64_t *first) {
  uint64_t least = level[count - 1];
  int64_t rises = 0, half = from + (count - from) / 2;
  *first = count - 1;
  for (int64_t k = count - 2; k >= from; k--) {
    if (level[k] < least) {
      least = level[k];
      rises += k >= half;
      *first = k;
    }
  }
  uint64_t at_half = level[count - 1];
  for (int64_t k = half; k < count; k++)
    at_half = level[k] < at_half ? level[k] : at_half;
  return 10 * rises >= 6 * (count - half) ? level[count - 1] - at_half : 0;
}

/* Whether noise would rarely rise like that: the rise is twice as high as any fall, and the second half lies above the
 * first quarter. Of 40,000 sequences of random levels none does. */
static bool is_growth(const uint64_t *lows, int64_t count, uint64_t rise) {
  uint64_t fall = 0, early = 0, late = UINT64_MAX;
  for (int64_t k = 0; k < count; k++) {
    fall = k && lows[k - 1] > lows[k] && lows[k - 1] - lows[k] > fall ? lows[k - 1] - lows[k] : fall;
    early = k < count / 4 && lows[k] > early ? lows[k] : early;
    late = k >= count / 2 && lows[k] < late ? lows[k] : late;
  }
  return rise && rise / 2 >= fall && late > early;
}

double weir__level_slope(const uint64_t *level, int64_t count, int64_t *since) {
  enum { most_together = 4 };
  uint64_t lows[WEIR__TREND_LEVELS];
  *since = 0;
  for (int64_t together = 1; together <= most_together; together *= 2) {
    int64_t windows = count / together, skipped = count % together, first;
    if (windows < WEIR__TREND_FEWEST || windows > WEIR__TREND_LEVELS)
      continue;
    for (int64_t w = 0; w < windows; w++) {
      lows[w] = UINT64_MAX;
      for (int64_t i = skipped + w * together; i < skipped + (w + 1) * together; i++)
        lows[w] = level[i] < lows[w] ? level[i] : lows[w];
    }
    uint64_t rise = weir__level_rise(lows, windows, 0, &first);
    if (!is_growth(lows, windows, rise))
      continue;
    *since = (windows - first) * together;
    return (double)rise / (double)((windows - 1 - windows / 2) * together);
  }
  return 0;
}

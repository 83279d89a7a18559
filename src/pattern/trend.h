/*
 * Whether something goes on growing from step to step: the ages of blocks that are freed, the births of those that are
 * not, and levels that rise.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "pattern/steps.h"

/* ---- Ages ---- */

enum { WEIR__AGES = 20 };

typedef struct weir__ages {
  uint32_t alive;             /* blocks that were not freed */
  uint32_t freed[WEIR__AGES]; /* those that were, by age in steps: see age_class() */
} weir__ages;

void weir__ages_add(weir__ages *ages, int64_t age);
void weir__ages_merge(weir__ages *ages, const weir__ages *other); /* those that were freed */
uint64_t weir__ages_freed(const weir__ages *ages);                /* of all ages */

/* How many steps the blocks live that are freed. Few are exceptions compared with those that stay. */
int64_t weir__ages_usual(const weir__ages *ages);

/* ---- Births ---- */

typedef enum weir__growth_kind {
  WEIR__GROWTH_LEAK,
  WEIR__GROWTH_FEW, /* too few blocks to judge; never reported */
  WEIR__GROWTH_STOPPED,
  WEIR__GROWTH_SLOWING,
  WEIR__GROWTH_REPLACED /* each block is replaced by a larger one, as in a key/value cache */
} weir__growth_kind;

/* A block that is alive at the end of the last step. */
typedef struct weir__survivor {
  uint32_t group, block; /* numbers of the caller's */
  int64_t step;          /* in which it was allocated */
} weir__survivor;

typedef struct weir__births {
  weir__growth_kind kind;
  size_t first; /* the survivor with which it begins */
  int64_t first_step, last_step;
  size_t steps; /* in which there are any */
  double every;
} weir__births;

enum { WEIR__TREND_STEPS = 8 }; /* fewer say nothing about growth */

/* Judges survivors by the steps in which they were allocated, in ascending order, of the first `step_count` steps.
 * `end` is the step from which on they are too young to tell. `gaps` is room for as many numbers as survivors. */
weir__births weir__births_judge(const weir__steps *steps, int64_t step_count, const weir__survivor *survivors,
                                size_t count, int64_t end, int64_t *gaps);

/* Two births at a distance, and as many blocks at the same distance before them in the setup or after them in the last
 * step: a leak every so many steps that the history has room for three of. `in_setup` blocks are older than the first
 * step. */
weir__births weir__births_judge_pair(int64_t step_count, const weir__ages *ages, uint32_t in_setup,
                                     const weir__survivor *survivors, size_t count);

/* ---- Levels ---- */

/* Whether the level at the ends of steps rises to the end and never falls back; what it rose by since the middle. */
uint64_t weir__level_rise(const uint64_t *level, int64_t count, int64_t from, int64_t *first);

/* The same for levels at regular times, such as the least in use in each five seconds, when steps are not known: by how
 * much they rise from one to the next, and *since how many of them; 0 if they do not. Where a step is longer than that,
 * the least of several is compared. Fewer than WEIR__TREND_FEWEST, or more than WEIR__TREND_LEVELS, say nothing. */
enum { WEIR__TREND_FEWEST = 12, WEIR__TREND_LEVELS = 256 };
double weir__level_slope(const uint64_t *level, int64_t count, int64_t *since);

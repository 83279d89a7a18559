/*
 * The steps of a job: the iterations of a training loop, or the tokens of a generation.
 *
 * They are taken from what the program marks: annotated ranges such as PyTorch's "Optimizer.step#AdamW.step" and
 * "ProfilerStep#7", or phases and metadata. Without marks they are inferred from the lives of blocks: from the period
 * of the sequence of allocations, or from returns to the low-water mark. The confidence says how regular they are.
 *
 * A step ends where least memory is in use. What comes before the first boundary is the setup, and what comes after the
 * last one belongs to no complete step. "No steps" is a valid answer.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pattern/life.h"
#include "weir/status.h"

typedef enum weir__steps_source {
  WEIR__STEPS_NONE,
  WEIR__STEPS_ANNOTATIONS,
  WEIR__STEPS_PHASES,
  WEIR__STEPS_INFERRED,
  WEIR__STEPS_WINDOWS /* not steps: parts of the history with equally many allocations */
} weir__steps_source;

enum { WEIR__STEPS_NAME = 96, WEIR__STEPS_LISTED = 2000, WEIR__STEPS_MIN = 3 };

typedef struct weir__steps {
  weir__steps_source source;
  char name[WEIR__STEPS_NAME]; /* what marks the boundaries; "" if they were inferred */
  double confidence;           /* 0 to 1 */
  size_t count;                /* complete steps */
  uint32_t *begin;             /* count + 1 entries: step k is [begin[k], begin[k + 1]) */
  size_t warm_up;              /* steps at the beginning in which memory that stays is allocated */
} weir__steps;

/* Something that the program marked at an entry. */
typedef struct weir__step_mark {
  uint32_t entry;
  const char *text;
  bool is_end; /* of a range; else its beginning */
  bool closes; /* the last step of this text is complete, and ends right here */
} weir__step_mark;

/* Those of one text are in the order of entries. */
typedef struct weir__step_marks {
  weir__step_mark *items;
  size_t count, room;
  weir__steps_source source;
  bool needs_numbers; /* a text marks steps only if its digits change, as in "step 7" */
} weir__step_marks;

/* The history of a device. */
typedef struct weir__sequence {
  const weir__life *blocks; /* by `begin`; those from before the first entry come first */
  size_t block_count;
  uint32_t entry_count;
  const weir__step_marks *marks; /* the first kind in which there are steps counts */
  size_t mark_kinds;
} weir__sequence;

weir_status weir__steps_find(const weir__sequence *sequence, weir__steps *steps);

/* Divides the history into `count` windows instead. */
weir_status weir__steps_windows(const weir__sequence *sequence, size_t count, weir__steps *steps);

void weir__steps_clear(weir__steps *steps);

/* Whether what looks like steps may be something else. */
static inline bool weir__steps_are_weak(const weir__steps *steps) {
  return steps->source == WEIR__STEPS_WINDOWS || (steps->source == WEIR__STEPS_INFERRED && steps->confidence < 0.95);
}

/* The step of an entry: -1 before the first, and `count` after the last. */
int64_t weir__steps_at(const weir__steps *steps, uint32_t entry);

const char *weir__steps_source_name(weir__steps_source source);

/* What is counted: "step", or "window". */
const char *weir__steps_unit(const weir__steps *steps);

/*
 * The steps of a job: the iterations of a training loop, or the tokens of a generation.
 *
 * They are taken from what the recording marks: annotated ranges such as PyTorch's "Optimizer.step#AdamW.step" and
 * "ProfilerStep#7", or phases and metadata. Otherwise they are inferred from the history: from the period of the
 * sequence of allocations, or from returns to the low-water mark. The confidence says how regular they are.
 *
 * A step ends where least memory is in use. What comes before the first boundary is the setup, and what comes after the
 * last one belongs to no complete step. "No steps" is a valid answer.
 */
#ifndef WEIR_OFFLINE_ANALYSE_STEPS_H
#define WEIR_OFFLINE_ANALYSE_STEPS_H

#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/lives.h"
#include "offline/read/recording.h"

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

/* `lives` are those of the device. */
weir_status weir__steps_find(const weir__recording *recording, int device, const weir__lives *lives,
                             weir__steps *steps);

/* Divides the history into `count` windows instead. */
weir_status weir__steps_windows(const weir__lives *lives, size_t count, weir__steps *steps);

void weir__steps_clear(weir__steps *steps);

/* The step of an entry: -1 before the first, and `count` after the last. */
int64_t weir__steps_at(const weir__steps *steps, uint32_t entry);

const char *weir__steps_source_name(weir__steps_source source);

/* "24 steps, from Optimizer.step#AdamW.step" and the like. Returns `text`. */
const char *weir__steps_describe(const weir__steps *steps, char text[192]);

#endif

/*
 * Where steps begin, while a history is read once: at the boundaries that pattern/steps.h found in its first part, and
 * behind that by the same rule.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/recording.h"
#include "pattern/steps.h"

/* All zero is the beginning of a history. */
typedef struct weir__digest_steps {
  weir__steps found;   /* in the first part */
  size_t usable, next; /* boundaries that were found, and the next of them */
  bool is_all;         /* the first part is all there is */
  bool has_begun;
  uint64_t number;      /* of the step that is under way; 0 before the first */
  uint64_t first_entry; /* of the first step */

  /* Marks: in the first part it is counted at which of two kinds there are boundaries, the beginning and the end of a
   * range, or the phase and the metadata. */
  size_t votes[2];
  bool is_pending[2]; /* a mark came since the last boundary */
  uint64_t marked[2]; /* its entry, + 1 */
  bool has_begins;    /* entries say where a phase begins */
  uint8_t *matches;   /* by string: 1 if it is no such mark, 2 if it is; 0 if not known yet */
  size_t match_count, match_room;
  uint32_t last[WEIR__RECORDING_MANY_THREADS + 1]; /* the phase or metadata of each thread */

  /* Without marks: as many allocations as there were in a step on average. */
  uint64_t allocations, first_at, last_at, period;
} weir__digest_steps;

/* Begins with what was found in the first part of the history, and takes it over. `entries` is the number of all. */
void weir__digest_steps_begin(weir__digest_steps *steps, weir__steps *found, bool is_all, uint64_t entries);

/* An annotation that comes before an entry. */
void weir__digest_steps_annotation(weir__digest_steps *steps, const weir__recording *recording, size_t annotation,
                                   uint64_t entry);

/* Whether a step begins with the entry. */
bool weir__digest_steps_entry(weir__digest_steps *steps, const weir__recording *recording,
                              const weir__recording_entry *e, uint64_t entry);

/* The number of complete steps, once all entries were there. */
uint64_t weir__digest_steps_count(const weir__digest_steps *steps);

void weir__digest_steps_clear(weir__digest_steps *steps);

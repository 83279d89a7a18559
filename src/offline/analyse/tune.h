/*
 * The search for settings: a grid over the keys that matter, then the neighbours of the best candidates. Every
 * candidate is replayed completely, on every recording. The result does not depend on the number of threads and
 * processes.
 */
#pragma once

#include "base/parallel.h"
#include "offline/analyse/predict.h"
#include "offline/analyse/versions.h"

/* A candidate's figures over all recordings. */
typedef struct weir__tune_score {
  uint64_t failures; /* of all */
  uint64_t peak;     /* reserved bytes, of the recording that needs most */
  uint64_t total;    /* reserved bytes, summed over all */
  uint64_t retries;  /* of all */
  uint64_t calls;    /* of the driver, in the recording with most */
  double cost;       /* in ns, in the recording with most */
} weir__tune_score;

typedef struct weir__tune_candidate {
  weir__settings settings; /* those of the first candidate are each recording's own */
  weir__tune_score score;
  weir__prediction *of; /* one for each recording */
  unsigned keys;        /* searched keys that differ from the defaults */
} weir__tune_candidate;

typedef struct weir__tune_options {
  const weir__replayer *const *histories;
  size_t history_count;          /* at least 1 */
  const weir__settings *base;    /* keys that are not searched are as here; NULL for the defaults */
  uint64_t memory;               /* the device's; 0 as recorded, see weir__replayer_capacity */
  double fraction;               /* as weir__replayer_capacity_of takes it */
  weir__pytorch_version pytorch; /* no candidate has a key that this version does not know; both 0 for any version */
  bool fit;                      /* find the least memory too */
  const weir__costs *costs;
  weir__parallel parallel;
} weir__tune_options;

typedef struct weir__tune_result {
  weir__tune_candidate
      *candidates; /* [0] has the recorded settings; what was there before a recording is allocated anew in it, too */
  size_t candidate_count;
  /* Of each kind, the candidates that no other of it beats, by peak: see weir__tune_beats. None reserves more than the
   * recorded settings, unless it has fewer failures. */
  size_t *front, *front_moving;
  size_t front_count, front_moving_count;
  size_t best;       /* of those whose keys PyTorch has: without moving_pages. 0 if none is better than the recorded */
  size_t moving;     /* of those with moving_pages, if it is better than `best`; otherwise 0 */
  size_t expandable; /* expandable_segments:True alone; 0 if the version of PyTorch does not know it */
  bool is_mixed;     /* the recordings have different settings, so [0] is not one text */
  bool is_limited;   /* a limit is in force, so garbage_collection_threshold was searched, too */
  /* If asked for: the least memory of the recording that needs most, and the retries of all. */
  weir__fit fit_recorded, fit_best, fit_moving;
} weir__tune_result;

/* Whether `a` has fewer failures than `b`, or equally many and is better in one of peak, cost, total and number of keys
 * and worse in none. */
bool weir__tune_beats(const weir__tune_candidate *a, const weir__tune_candidate *b);

/* Fills in the front, which has room for `count`, and its best candidate; returns the length of the front. Of equal
 * candidates the first is listed. With `skip_first` candidates[0] is not chosen. `negligible` is a difference in cost,
 * in ns, that does not matter. There must be a candidate to choose. */
size_t weir__tune_choose(const weir__tune_candidate *candidates, size_t count, bool skip_first, double negligible,
                         size_t *front, size_t *best);

weir_status weir__tune(const weir__tune_options *options, weir__tune_result *result);
void weir__tune_clear(weir__tune_result *result);

/*
 * The search for settings: a grid over the keys that matter, then the neighbours of what was best in it. Every candidate is
 * replayed whole, on every history. The result is the same whatever the number of threads and processes.
 */
#ifndef WEIR_OFFLINE_TUNE_H
#define WEIR_OFFLINE_TUNE_H

#include "offline/parallel.h"
#include "offline/predict.h"

/* A candidate, over all histories. */
typedef struct weir__tune_score {
  uint64_t failures; /* of all */
  uint64_t peak;     /* reserved bytes: of the history that needs most */
  uint64_t total;    /* of all together */
  uint64_t retries;  /* of all */
  uint64_t calls;    /* of the driver: of the history with most */
  double cost;       /* ns: of the history with most */
} weir__tune_score;

typedef struct weir__tune_candidate {
  weir__settings settings; /* unless it is the first, each history's own */
  weir__tune_score score;
  weir__prediction *of; /* one for each history */
  unsigned keys;        /* searched keys that differ from the defaults: the fewer the simpler */
} weir__tune_candidate;

typedef struct weir__tune_options {
  const weir__replayer *const *histories;
  size_t history_count;       /* at least 1 */
  const weir__settings *base; /* keys that are not searched are as here; NULL: the defaults */
  uint64_t memory;            /* the device's; 0: as recorded, see weir__replayer_capacity */
  double fraction;            /* as weir__replayer_capacity_of takes it */
  bool fit;                   /* find the least memory too */
  const weir__costs *costs;
  weir__parallel parallel;
} weir__tune_options;

typedef struct weir__tune_result {
  weir__tune_candidate
      *candidates; /* [0]: the recorded settings; what was there before a recording is placed anew too */
  size_t candidate_count;
  size_t *front; /* candidates that no other beats, the least peak first: see weir__tune_beats */
  size_t front_count;
  size_t best;     /* one of the front */
  bool is_mixed;   /* the histories were recorded with different settings: [0] is no single text then */
  bool is_limited; /* there is a limit in force, so garbage_collection_threshold was searched too */
  /* Asked for: the least memory of the history that needs most, and the retries of all of them. */
  weir__fit fit_recorded, fit_best;
} weir__tune_result;

/* Whether `a` has fewer failures than `b`, or as many and is better in one of peak, cost, total and number of keys and worse in
 * none of them. */
bool weir__tune_beats(const weir__tune_candidate *a, const weir__tune_candidate *b);

/* Fills in the front, which has room for `count`, and the best of it; returns the length of the front. Of candidates that are
 * equal in all that counts, the first is listed. `skip_first`: candidates[0] cannot be chosen. `negligible` is a difference in
 * cost, in ns, that does not matter. There is at least one candidate to choose from. */
size_t weir__tune_choose(const weir__tune_candidate *candidates, size_t count, bool skip_first, double negligible,
                         size_t *front, size_t *best);

weir_status weir__tune(const weir__tune_options *options, weir__tune_result *result);
void weir__tune_clear(weir__tune_result *result);

#endif

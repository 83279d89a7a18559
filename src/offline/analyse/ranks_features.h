/*
 * The features of a rank, and the distance of two ranks.
 */
#pragma once

#include "offline/analyse/ranks.h"

typedef struct weir__feature {
  uint64_t key;
  uint64_t stack; /* a name; 0 if it is not of a stack */
  uint64_t value;
  weir__feature_kind kind;
} weir__feature;

typedef struct weir__rank_features {
  weir__feature *items; /* by key */
  size_t count;
  uint64_t floor; /* of values of stacks */
  uint64_t role;
  bool is_cut; /* the digest does not have all stacks */
} weir__rank_features;

bool weir__rank_features_make(const weir__digest *digest, weir__rank_features *features);

/* How far two ranks are apart: 0 to 1. May stop at anything above `limit`. */
double weir__rank_distance(const weir__rank_features *a, const weir__rank_features *b, double limit);

/* In how many features they are further apart than a limit. */
size_t weir__rank_differing(const weir__rank_features *a, const weir__rank_features *b, double limit);

/* The feature of a key; NULL if it has none. */
const weir__feature *weir__rank_feature(const weir__rank_features *features, uint64_t key);

/* How many groups of steps can be compared: complete ones, without the last, which the end of the recording may have
 * cut. */
size_t weir__rank_groups(const weir__digest *digest);

/* The distance of two values, as a part of the larger. */
double weir__value_distance(uint64_t a, uint64_t b);

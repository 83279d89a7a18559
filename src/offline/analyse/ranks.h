/*
 * Compares the digests of many ranks.
 *
 * Ranks whose features lie within a distance of each other are a class. The features of a rank are its peaks of
 * allocated and reserved bytes, its requests a step, and for each stack its peak, over all and in the last group of
 * steps that is complete. The distance of two ranks is that of the feature in which they differ most, as a part of the
 * larger value; what a stack holds counts only if it is 1/WEIR__RANKS_FLOOR of the peak of the rank. Classes that
 * many ranks are in are usual: they are the roles of the job. All other ranks are outliers, and compared with the usual
 * class that is most like them.
 *
 * Ranks of a class should do the same. Where their requests part is found by the hashes at the ends of steps.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/digest.h"

enum {
  WEIR__RANKS_FLOOR = 1000,
  WEIR__RANKS_MAX = 1 << 24,
  WEIR__RANKS_DIFFERENCES = 6,
  WEIR__RANKS_ROLE = 96,
  WEIR__RANKS_EXPLAINED = 1000
};
#define WEIR__RANKS_DISTANCE 0.05

typedef struct weir__ranks_options {
  double distance; /* up to which two ranks are of one class */
  size_t expected; /* ranks that the job has; 0 for as many as the highest number says */
} weir__ranks_options;

typedef enum weir__feature_kind {
  WEIR__FEATURE_ALLOCATED, /* the peak */
  WEIR__FEATURE_RESERVED,
  WEIR__FEATURE_REQUESTS,   /* a step, in thousandths */
  WEIR__FEATURE_STACK,      /* its peak */
  WEIR__FEATURE_STACK_LATE, /* its peak in the last complete group of steps */
  WEIR__FEATURES
} weir__feature_kind;

const char *weir__feature_name(weir__feature_kind kind);

/* In what an outlier differs from its class. */
typedef struct weir__rank_difference {
  weir__feature_kind kind; /* STACK stands for both kinds of stacks */
  uint64_t stack;          /* a name */
  uint64_t value, usual;
  /* The group of steps from which on it differs: its first and its last step. Not known if first > last. */
  uint64_t first_step, last_step;
  bool grows; /* it rises from there to the end */
} weir__rank_difference;

/* What a class would need, by replay of the recording of one of its members. */
typedef struct weir__rank_needs {
  size_t member;
  uint64_t recorded, recorded_fit;   /* peak of reserved bytes, and the least memory, with the recorded settings */
  uint64_t predicted, predicted_fit; /* the same with others; 0 if there are none */
  uint64_t failures;                 /* with these */
} weir__rank_needs;

typedef struct weir__rank_class {
  size_t *members; /* digests, in their order; the first is its leader */
  size_t count;
  bool is_usual;
  char role[WEIR__RANKS_ROLE]; /* "" for none */
  uint64_t differs;            /* a name: the stack that differs most from the other classes; 0 for none */
  uint64_t least, most;        /* peaks of allocated bytes */
  uint64_t least_reserved, most_reserved;
  bool is_uneven; /* no sequence of requests is that of most members, so that none can be said to part */
  bool has_needs; /* see weir__ranks_look_into */
  weir__rank_needs needs;
} weir__rank_class;

typedef struct weir__rank_outlier {
  size_t member, class; /* the usual class that is most like it */
  weir__rank_difference differences[WEIR__RANKS_DIFFERENCES];
  size_t difference_count; /* the largest first; 0 also if they were not looked for */
} weir__rank_outlier;

/* An allocation, or a free. */
typedef struct weir__rank_request {
  bool is_there; /* else there is nothing more in that pool on that stream */
  bool is_free;
  uint64_t entry, bytes;
  char stack[WEIR__DIGEST_TEXT + 1]; /* "" if not known */
} weir__rank_request;

/* A member of a class that does what most of them do up to a group of steps, and in that something else. */
typedef struct weir__rank_parting {
  size_t member, class;
  size_t other;                                            /* a member that goes on as most do */
  uint64_t first_step, last_step, first_entry, last_entry; /* of the member; the last ones are not included */
  uint64_t other_first_entry, other_last_entry;
  bool has_requests;             /* see weir__ranks_look_into */
  weir__rank_request own, usual; /* the first that differs, and what the other member has there */
} weir__rank_parting;

typedef struct weir__ranks {
  const weir__digest *digests; /* by rank and device */
  size_t count;
  weir__rank_class *classes; /* the usual ones first, each kind by the first member */
  size_t class_count, usual_count;
  size_t *class_of;             /* by digest */
  weir__rank_outlier *outliers; /* by digest */
  size_t outlier_count;
  weir__rank_parting *partings; /* by digest */
  size_t parting_count;
  size_t *failures; /* digests that ran out of memory, the earliest first */
  size_t failure_count;
  size_t *followers; /* others that ended after the first failure, the earliest first; known if the times are */
  size_t follower_count;
  int64_t *missing; /* ranks */
  size_t missing_count;
  size_t most_reserved, most_allocated; /* digests: which need most, with what they have outside */
} weir__ranks;

/* The digests are in the order of weir__digest_union, and outlive the result. There is at least one. */
weir_status weir__ranks_compare(const weir__digest *digests, size_t count, const weir__ranks_options *options,
                                weir__ranks *ranks);
void weir__ranks_clear(weir__ranks *ranks);

/* The text of a name, in whichever digest has it; its hash if none has. Returns `text`. */
const char *weir__ranks_name(const weir__ranks *ranks, uint64_t name, char text[WEIR__DIGEST_TEXT + 1]);

/* The ranks of members: "0-5,7", and "0-48/2" for every second one from 0 to 48; what does not fit ends in "...".
 * Returns `text`. */
const char *weir__ranks_list(const weir__ranks *ranks, const size_t *members, size_t count, char *text, size_t size);

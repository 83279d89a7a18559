/*
 * The names of all counters, and their places in weir_allocator_stats.
 */
#pragma once

#include <stddef.h>

#include "weir/snapshot.h"

/* A statistic of four values, for one kind of pool or for all three. */
typedef struct weir__stat_group {
  const char *name;
  size_t offset; /* of the first weir_stat */
  int kinds;     /* WEIR_STAT_KINDS, or 1 if the kind is not part of the name */
} weir__stat_group;

typedef struct weir__stat_count {
  const char *name;
  size_t offset; /* of an int64_t */
} weir__stat_count;

enum { WEIR__STAT_GROUPS = 11, WEIR__STAT_COUNTS = 7, WEIR__STAT_METRICS = 4 };

extern const weir__stat_group weir__stat_groups[WEIR__STAT_GROUPS];
extern const weir__stat_count weir__stat_counts[WEIR__STAT_COUNTS];
extern const char *const weir__stat_kinds[WEIR_STAT_KINDS];      /* "all", ... */
extern const char *const weir__stat_metrics[WEIR__STAT_METRICS]; /* "current", ... as weir_stat has them */

static inline const weir_stat *weir__stat_at(const weir_allocator_stats *stats, const weir__stat_group *group,
                                             int kind) {
  return (const weir_stat *)((const char *)stats + group->offset) + kind;
}

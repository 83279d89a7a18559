/*
 * What is in a snapshot: counted in two passes over the history, without replaying it.
 */
#ifndef WEIR_OFFLINE_SUMMARY_H
#define WEIR_OFFLINE_SUMMARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/recording.h"

enum { WEIR__SUMMARY_HOLDERS = 5 };

/* What holds memory: the allocations of stacks that are described alike (offline/describe.h), or, where the file has no stacks,
 * those of one size. */
typedef struct weir__holder {
  uint32_t stack; /* one of them */
  uint64_t size;  /* of each; 0: they are told apart by their stacks */
  uint64_t bytes;
  size_t count;
} weir__holder;

typedef struct weir__summary_peak {
  uint64_t bytes;
  size_t event; /* after which */
} weir__summary_peak;

/* How much of the past the history has. */
typedef enum weir__completeness {
  WEIR__HISTORY_NONE,     /* no events */
  WEIR__HISTORY_COMPLETE, /* nothing speaks against it: all that is freed or left was allocated in it */
  WEIR__HISTORY_LATE,   /* there was memory before its first event: recording began late, or the ring dropped events */
  WEIR__HISTORY_WRAPPED /* the same, and the number of events is one that people choose for a ring; or the file says so */
} weir__completeness;

typedef struct weir__summary {
  size_t actions[WEIR__ACTION_UNKNOWN + 1]; /* events of each */
  int64_t first_us, last_us;                /* 0: not recorded */
  weir__completeness completeness;
  size_t unknown_frees;     /* of what was allocated before the first event */
  size_t unknown_segments;  /* at the end, and not made in the history */
  uint64_t live_before;     /* requested bytes that were in use before the first event */
  uint64_t reserved_before; /* the same of segments */
  weir__summary_peak live;  /* requested bytes in use */
  weir__summary_peak reserved;
  size_t first_oom; /* its event, when there is one */
  bool has_stacks;
  size_t streams;                                 /* that the history or the segments name */
  size_t small_segments, large_segments, private; /* at the end; those of private pools count there too */
  uint64_t end_reserved, end_allocated, end_active, end_requested;
  bool is_end_told; /* there is no list of segments, but a history that is complete, or begins with a checkpoint:
                      end_reserved, end_requested and at_end are told from it */
  bool is_unknown;  /* the state before the first event is not known; so peaks, holders and the end are not valid */
  weir__holder holders[WEIR__SUMMARY_HOLDERS]; /* at the peak, the largest first */
  size_t holder_count;
  weir__holder at_end[WEIR__SUMMARY_HOLDERS];
  size_t at_end_count;
} weir__summary;

/* `device` is one of the snapshot's. */
weir_status weir__summarize(const weir__recording *recording, int device, weir__summary *summary);

#endif

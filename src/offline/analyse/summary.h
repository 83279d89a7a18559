/*
 * What is in a recording, counted in two passes over the history, without replay.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/classes.h"
#include "offline/read/recording.h"

enum { WEIR__SUMMARY_HOLDERS = 5 };

/* A holder of memory: the allocations of stacks that are described alike (offline/analyse/describe.h), or, without
 * stacks, those of one size. */
typedef struct weir__holder {
  uint32_t stack; /* one of them */
  uint64_t size;  /* of each allocation; 0 for a holder by stack */
  uint64_t bytes;
  size_t count;
} weir__holder;

typedef struct weir__summary_peak {
  uint64_t bytes;
  size_t event; /* after which */
} weir__summary_peak;

/* How complete the history is. */
typedef enum weir__completeness {
  WEIR__HISTORY_NONE,     /* no events */
  WEIR__HISTORY_COMPLETE, /* everything that is freed or left was allocated in it */
  WEIR__HISTORY_LATE,     /* there was memory before its first event */
  WEIR__HISTORY_WRAPPED   /* the same, and the ring dropped events: it is known, or the number of events is round */
} weir__completeness;

/* The largest holders in a state, by stack if `has_stacks`. */
weir_status weir__summarize_holders(const weir__recording *recording, const weir__state *state,
                                    weir__holder holders[WEIR__SUMMARY_HOLDERS], size_t *count, bool *has_stacks);

/* "none", "complete", "late", "wrapped". */
const char *weir__completeness_name(weir__completeness completeness);

typedef struct weir__summary {
  size_t actions[WEIR__ACTION_UNKNOWN + 1]; /* events of each */
  int64_t first_us, last_us;                /* 0 if not recorded */
  weir__completeness completeness;
  size_t unknown_frees;     /* of what was allocated before the first event */
  size_t unknown_segments;  /* at the end, and not allocated in the history */
  uint64_t live_before;     /* requested bytes in use before the first event */
  uint64_t reserved_before; /* the same of segments */
  weir__summary_peak live;  /* requested bytes in use */
  weir__summary_peak reserved;
  size_t first_oom; /* its event, if there is one */
  bool has_stacks;
  size_t streams;                                 /* in the history or the segments */
  size_t small_segments, large_segments, private; /* at the end, those of private pools included */
  uint64_t end_reserved, end_allocated, end_active, end_requested;
  bool is_end_told; /* end_reserved, end_requested and at_end are from the history, not from a list of segments */
  bool is_unknown;  /* the state before the first event is not known, so peaks, holders and the end are not valid */
  weir__holder holders[WEIR__SUMMARY_HOLDERS]; /* at the peak, the largest first */
  size_t holder_count;
  weir__holder at_end[WEIR__SUMMARY_HOLDERS];
  size_t at_end_count;
} weir__summary;

/* `device` is one of the recording's. */
weir_status weir__summarize(const weir__recording *recording, int device, weir__summary *summary);

/* What blocks were for at the peak of live memory. */
typedef struct weir__summary_classes {
  bool has_classes;                /* classes could be told apart */
  uint64_t classes[WEIR__CLASSES]; /* bytes at the peak of live memory */
  size_t steps;
} weir__summary_classes;

weir_status weir__summarize_classes(const weir__recording *recording, int device, const weir__summary *summary,
                                    weir__summary_classes *classes);

/* The same, from the lives and classes of the device. */
void weir__summary_classes_of(const weir__summary *summary, const weir__lives *lives, const weir__classes *classes,
                              weir__summary_classes *result);

/* Pinned host memory at the end. */
typedef struct weir__summary_host {
  uint64_t reserved, active; /* bytes */
} weir__summary_host;

weir__summary_host weir__summarize_host(const weir__recording_device *host);

/* What the pools of a tag held, in requested bytes. */
typedef struct weir__summary_tag {
  const char *name;
  uint64_t at_peak; /* of the device */
  uint64_t peak, at_end;
} weir__summary_tag;

/* The tags of a device in the order of their first pools; *count is 0 and *tags NULL if there are none, or if the state
 * before the first event is not known. The caller frees *tags. */
weir_status weir__summarize_tags(const weir__recording *recording, int device, const weir__summary *summary,
                                 weir__summary_tag **tags, size_t *count);

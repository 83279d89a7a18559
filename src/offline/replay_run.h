/*
 * One run of a plan, and what running and inferring share.
 */
#ifndef WEIR_OFFLINE_REPLAY_RUN_H
#define WEIR_OFFLINE_REPLAY_RUN_H

#include "offline/replay.h"
#include "offline/replay_plan.h"

struct weir__replayer {
  weir__plan plan;            /* with the causes that explain the recording best */
  weir__plan_limit recorded;  /* the limit that does */
  bool is_known;              /* that was given, not inferred */
  weir__replay_report report; /* of the checked replay */
};

typedef enum weir__run_kind {
  WEIR__RUN_CHECKED,
  WEIR__RUN_TO_DIFFERENCE, /* checked, and ends at the first difference */
  WEIR__RUN_HELD,          /* unchecked; what was there before the recording is held as it was */
  WEIR__RUN_ANEW           /* unchecked; it is placed anew */
} weir__run_kind;

/* *release, which may be NULL, becomes the number of the plan's releases that were begun. `watch` may be NULL. */
weir_status weir__replay_run(const weir__plan *plan, const weir__settings *settings, const weir__plan_limit *limit,
                             weir__run_kind kind, const weir__replay_callback *callback, size_t *release,
                             weir__replay_report *report);

/* WEIR_ERROR_INVALID_ARGUMENT for more than WEIR__REPLAY_MOST_MEMORY. */
weir_status weir__replay_check_memory(uint64_t memory);

/* The capacity of a device of `memory` bytes of which the program allows itself `fraction`, or, where that is 0, the
 * part that its settings say. */
weir__capacity weir__replay_part(uint64_t memory, double fraction, double of_settings);

#endif

/*
 * One run of a plan, and what running and inferring share.
 */
#pragma once

#include "offline/replay/plan.h"
#include "offline/replay/replay.h"

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

/* Is told what a run does, in order, so that it can make a history of it. A run may be repeated with other memory: then
 * `start` is called again, and what was told before is void. The functions are called inside the allocator's operations
 * and must not use it, except for `begin` and `end`. */
typedef struct weir__replay_recorder {
  /* Where the active blocks of the plan's start are; 0 for one that got no memory. Those that wait for other streams
   * are not freed yet. With `is_checked`, addresses are those of the recording. */
  void (*start)(void *context, const uint64_t *blocks, bool is_checked);
  void (*begin)(void *context, weir_allocator *allocator); /* before the first event */
  /* An entry of the allocator while `event` is under way. `recorded` is the segment entry that it matches, or NULL. */
  void (*entry)(void *context, const weir_trace_entry *entry, size_t event, const weir__recording_entry *recorded);
  void (*other)(void *context, size_t event); /* an event that does not concern the allocator */
  void (*end)(void *context, weir_allocator *allocator);
  void *context;
} weir__replay_recorder;

/* *release, which may be NULL, becomes the number of the plan's releases that were begun. `callback` and `recorder` may
 * be NULL. */
weir_status weir__replay_run(const weir__plan *plan, const weir__settings *settings, const weir__plan_limit *limit,
                             weir__run_kind kind, const weir__replay_callback *callback,
                             const weir__replay_recorder *recorder, size_t *release, weir__replay_report *report);

/* weir__replayer_run with a recorder, which may be NULL. */
weir_status weir__replayer_run_recorded(const weir__replayer *replayer, const weir__settings *settings,
                                        const weir__capacity *capacity, const weir__replay_callback *callback,
                                        const weir__replay_recorder *recorder, weir__replay_report *report);

/* WEIR_ERROR_INVALID_ARGUMENT for more than WEIR__REPLAY_MAX_MEMORY. */
weir_status weir__replay_check_memory(uint64_t memory);

/* The capacity of a device of `memory` bytes of which the program allows itself `fraction`, or, where that is 0, the
 * part that its settings say. */
weir__capacity weir__replay_part(uint64_t memory, double fraction, double of_settings);

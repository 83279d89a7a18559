/*
 * Replay: feeds a recording to the real allocator on the ledger driver.
 *
 * A checked replay places new segments where the recording says, and compares every decision: the address of each
 * allocation, and each segment that is made, freed, mapped or unmapped, with its size and its point in the history.
 * What happens when memory runs short is the allocator's own decision; the recording is only compared with it.
 *
 * Checked replays find out what a recording does not say, once, when a weir__replayer is opened (replay_infer.c). After
 * that it can be run under any settings, any number of times and by many threads at once (replay_run.c).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/config/settings.h"
#include "alloc/replay_port.h"
#include "offline/read/recording.h"
#include "offline/replay/meter.h"
#include "record/state.h"
#include "weir/alloc.h"

/* The largest device that may be asked for, 64 TiB; and a device for jobs that may have as much as they need, 2 TiB.
 * Expandable segments cost time and host memory in proportion to the device, so the two are not the same. */
#define WEIR__REPLAY_MAX_MEMORY (1ull << 46)
#define WEIR__REPLAY_ENOUGH_MEMORY (1ull << 41)

/* What an allocator may take from the driver, and what the driver says about streams and addresses. */
typedef struct weir__capacity {
  uint64_t memory;  /* the device's, in bytes, up to the largest; 0 for enough */
  uint64_t limit;   /* bytes of it that may be reserved; UINT64_MAX for all */
  bool is_busy;     /* no stream has done its work when the allocator asks, to move its pages; otherwise all have */
  bool is_recorded; /* the limit is that of the recording, with the changes of it that the program made on its way */
  unsigned order;   /* a seed for the addresses of new segments, in any order; 0 for those of the ledger */
} weir__capacity;

typedef struct weir__replay_options {
  int device;
  bool check;       /* place and compare, under the recorded settings */
  const char *conf; /* unchecked: settings on top of the defaults; NULL for the recorded ones */
  uint64_t memory;  /* the device's memory in bytes, up to the largest; 0 if not known */
  double fraction;  /* the part of it that may be used; 0 for what the settings say */
} weir__replay_options;

enum { WEIR__REPLAY_SHOWN = 8, WEIR__REPLAY_TEXT = 200 };

/* What a run begins with. What was there before a recording began is inferred: see offline/replay/initial_state.h. */
typedef enum weir__replay_begin {
  WEIR__BEGINS_EMPTY, /* the recording is complete */
  WEIR__BEGINS_HELD,  /* with what was there, in the segments that it had */
  WEIR__BEGINS_ANEW   /* what was in use is allocated first, in the order of addresses: its true order is not known */
} weir__replay_begin;

typedef struct weir__replay_report {
  size_t events;
  size_t allocations;                                /* compared, or made */
  size_t differences;                                /* checked: in all */
  char shown[WEIR__REPLAY_SHOWN][WEIR__REPLAY_TEXT]; /* the first of them */
  size_t first_difference;                           /* the event that was under way, if there are any */
  size_t failures;                                   /* requests that ran out of memory */
  size_t first_failure;                              /* the event of the first, if there are any */
  uint64_t failed_bytes;                             /* what that asked for */
  uint64_t failed_reserved, failed_allocated;        /* what there was then */
  size_t
      rescued; /* checked: requests that failed in the recording, and got a block here that had become free meanwhile */
  weir__replay_begin begin;
  size_t unplaced; /* of the failures: allocations from before the recording */
  size_t raced;    /* checked: requests that bypassed the cache, since another thread's free came too late for them */
  size_t unknown_frees;   /* of what was allocated before the recording and could not be inferred */
  uint64_t dropped;       /* events before the first that did not fit into the ring */
  bool limit_is_inferred; /* the recording does not say it */
  uint64_t limit;         /* bytes that may be reserved; UINT64_MAX for no limit */
  weir_allocator_stats stats;
  weir__meter_counts calls; /* of the driver */
  double seconds;
} weir__replay_report;

/* Called after each event of a run; `report` counts up to there. It may call the allocator, too. The run ends where it
 * returns false. */
typedef struct weir__replay_callback {
  bool (*call)(void *context, weir_allocator *allocator, size_t event, const weir__replay_report *report);
  void *context;
} weir__replay_callback;

typedef struct weir__replayer weir__replayer;

/* Opens the history of a device: infers what the recording does not say, by checked replays under the recorded
 * settings. `memory` and `fraction` are those of the recording; 0 if they are to be inferred. The recording must
 * outlive the replayer. */
weir_status weir__replayer_open(const weir__recording *recording, int device, uint64_t memory, double fraction,
                                weir__replayer **replayer);
void weir__replayer_close(weir__replayer *replayer); /* NULL is allowed */

/* The report of the checked replay: without differences, the recording is reproduced exactly. */
const weir__replay_report *weir__replayer_check(const weir__replayer *replayer);

/* Repeats the checked replay, with a callback. */
weir_status weir__replayer_recheck(const weir__replayer *replayer, const weir__replay_callback *callback,
                                   weir__replay_report *report);

/* The state before the first event; empty if the recording is complete. */
const weir__state *weir__replayer_start(const weir__replayer *replayer);

/* The recorded settings, as far as they are about device memory. */
const weir__settings *weir__replayer_settings(const weir__replayer *replayer);

/* How long the job took, from the first event to the last; 0 if the recording has no times. */
double weir__replayer_seconds(const weir__replayer *replayer);

/* No allocator could reserve less for the events up to one: the peak of requested bytes in use, with a request that
 * failed there, in pages of WEIR__MIN_PAGE, the smallest that a driver has. */
enum { WEIR__MIN_PAGE = 2 << 20 };
uint64_t weir__replayer_least(const weir__replayer *replayer, size_t last);

/* The capacity that other runs have by default: the recorded limit, or a device that was full, or neither. */
weir__capacity weir__replayer_capacity(const weir__replayer *replayer);

/* The recorded limit at an event; UINT64_MAX if there was none, or it was not recorded. */
uint64_t weir__replayer_limit_at(const weir__replayer *replayer, size_t event);

/* One unchecked run. With `settings` NULL they are the recorded ones, and what was there before the recording is held
 * as it was if the capacity has room for that. With settings, even if they are the recorded ones, it is allocated anew.
 * `callback` may be NULL. */
weir_status weir__replayer_run(const weir__replayer *replayer, const weir__settings *settings,
                               const weir__capacity *capacity, const weir__replay_callback *callback,
                               weir__replay_report *report);

/* Whether the outcome under some settings depends on how far streams were, which a recording does not say: pages move
 * from one stream to another, or to a private pool, only when the first has done its work. The truth then lies between
 * two runs, one with a capacity that is_busy. NULL stands for the recorded settings. */
bool weir__replayer_is_range(const weir__replayer *replayer, const weir__settings *settings);

/* Whether the outcome under some settings depends on the addresses of segments: of free blocks of one size the lowest
 * is taken. An expandable segment is the only one of its stream and pool. NULL stands for the recorded settings. */
bool weir__replayer_depends_on_order(const weir__replayer *replayer, const weir__settings *settings);

/* The capacity of a device of `memory` bytes (0: as weir__replayer_capacity) of which `fraction` may be used (0: what
 * the settings say). WEIR_ERROR_INVALID_ARGUMENT: the settings have a fraction, and the device's memory is not known.
 * */
weir_status weir__replayer_capacity_of(const weir__replayer *replayer, const weir__settings *settings, uint64_t memory,
                                       double fraction, weir__capacity *capacity);

/* Opens, and runs once. */
weir_status weir__replay(const weir__recording *recording, const weir__replay_options *options,
                         weir__replay_report *report);

/* Reads the state of device 0 of an allocator that a replay of the recording uses; streams have the recorded handles.
 * No other thread uses the allocator. */
weir_status weir__state_of_replay(const weir__recording *recording, weir_allocator *allocator, weir__state *state);

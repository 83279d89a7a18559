/*
 * Replay: a recorded history fed to the real allocator on the ledger driver.
 *
 * Checked, new segments are placed where the file says, and every decision is compared: the address of each allocation, and
 * each segment that is made, freed, mapped or unmapped, with its size and its point in the history. What happens when memory
 * runs short is the allocator's own decision; the file is only compared with it.
 *
 * What a file does not say is found out by checked replays, once, when a weir__replayer is opened. After that it can be run
 * under any settings, as often as one likes and by many threads at once.
 */
#ifndef WEIR_OFFLINE_REPLAY_H
#define WEIR_OFFLINE_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/settings.h"
#include "offline/meter.h"
#include "offline/recording.h"
#include "offline/state.h"
#include "weir/alloc.h"

/* The largest device that one may ask for: 64 TiB. And one that is larger than any there is, for jobs that may have as much as
 * they need: 2 TiB. Expandable segments cost time and host memory in proportion to it, so it is not the same. */
#define WEIR__REPLAY_MOST_MEMORY (1ull << 46)
#define WEIR__REPLAY_ENOUGH_MEMORY (1ull << 41)

/* What an allocator may take. */
typedef struct weir__capacity {
  uint64_t memory; /* the device's, in bytes, up to the largest; 0: enough for whatever is asked */
  uint64_t limit;  /* bytes that may be reserved of it; UINT64_MAX: all */
} weir__capacity;

typedef struct weir__replay_options {
  int device;
  bool check;       /* place and compare; settings are the recorded ones then */
  const char *conf; /* unchecked: settings on top of the defaults; NULL: the recorded ones */
  uint64_t memory;  /* the device's memory in bytes, up to the largest; 0: not known */
  double fraction;  /* the part of it that may be used; 0: as the settings say */
} weir__replay_options;

enum { WEIR__REPLAY_SHOWN = 8, WEIR__REPLAY_TEXT = 200 };

/* What a run begins with. A recording that began late lacks what was there before; that is found out: see offline/initial_state.h. */
typedef enum weir__replay_begin {
  WEIR__BEGINS_EMPTY, /* the recording has all of it */
  WEIR__BEGINS_HELD,  /* with what was there, in the segments that it had */
  WEIR__BEGINS_ANEW   /* what was in use is allocated first, in the order of addresses: nobody knows in which it was */
} weir__replay_begin;

typedef struct weir__replay_report {
  size_t events;
  size_t allocations;                                /* compared, or made */
  size_t differences;                                /* checked: in all */
  char shown[WEIR__REPLAY_SHOWN][WEIR__REPLAY_TEXT]; /* the first of them */
  size_t first_difference;                           /* the event that was under way, when there are any */
  size_t failures;                                   /* requests that ran out of memory */
  size_t first_failure;                              /* the event of the first, when there are any ... */
  uint64_t failed_bytes;                             /* ... what it asked for ... */
  uint64_t failed_reserved, failed_allocated;        /* ... and what there was then */
  size_t rescued; /* checked: requests that failed in the file, and here got a block that had become free meanwhile */
  weir__replay_begin begin;
  size_t unplaced;        /* of the failures: allocations from before the recording, placed anew */
  size_t raced;           /* checked: requests that another thread's free came too late for; they went past the cache */
  size_t unknown_frees;   /* of what was allocated before the recording, and could not be found out */
  uint64_t dropped;       /* events before the first: the ring of the recording was full */
  bool limit_is_inferred; /* the file does not say it; it was inferred from the recording */
  uint64_t limit;         /* bytes that may be reserved; UINT64_MAX: none */
  weir_allocator_stats stats;
  weir__meter_counts calls; /* of the driver */
  double seconds;
} weir__replay_report;

/* Looks at the allocator when an event was carried out; `report` counts up to there. It may call the allocator too. false: the
 * run ends here. */
typedef bool (*weir__replay_look)(void *context, weir_allocator *allocator, size_t event, const weir__replay_report *report);

/* NULL in place of one, or in it: nobody looks. */
typedef struct weir__replay_watch {
  weir__replay_look look;
  void *context;
} weir__replay_watch;

typedef struct weir__replayer weir__replayer;

/* Finds out what the history of a device shows, by checked replays under the recorded settings. `memory` and `fraction` are
 * those of the recording; 0: told from the file. The snapshot must outlive the history. */
weir_status weir__replayer_open(const weir__recording *snapshot, int device, uint64_t memory, double fraction,
                                weir__replayer **history);
void weir__replayer_close(weir__replayer *history); /* NULL is allowed */

/* The checked replay: without differences, the file is reproduced. */
const weir__replay_report *weir__replayer_check(const weir__replayer *history);

/* The same once more, watched. */
weir_status weir__replayer_recheck(const weir__replayer *history, const weir__replay_watch *watch,
                                   weir__replay_report *report);

/* What was there before the first event; empty: the history is complete. */
const weir__state *weir__replayer_start(const weir__replayer *history);

/* The recorded settings, as far as they are about device memory. */
const weir__settings *weir__replayer_settings(const weir__replayer *history);

/* How long the job took, from the first event to the last; 0: the file has no times. */
double weir__replayer_seconds(const weir__replayer *history);

/* What is assumed for other runs when nobody says more: the recorded limit, or a device that was full; or neither. */
weir__capacity weir__replayer_capacity(const weir__replayer *history);

/* One unchecked run. `settings` NULL: the recorded ones, and what was there before the recording is held as it was, if the
 * capacity has room for that. With settings, also if they are the recorded ones, it is placed anew. `watch` may be NULL. */
weir_status weir__replayer_run(const weir__replayer *history, const weir__settings *settings,
                               const weir__capacity *capacity, const weir__replay_watch *watch,
                               weir__replay_report *report);

/* The capacity of a device of `memory` bytes (0: as weir__replayer_capacity has it) if `fraction` of it (0: what the settings
 * say) may be used. WEIR_ERROR_INVALID_ARGUMENT: the settings have a fraction, and nobody knows of what. */
weir_status weir__replayer_capacity_of(const weir__replayer *history, const weir__settings *settings, uint64_t memory,
                                       double fraction, weir__capacity *capacity);

/* All in one: opens, and runs once. */
weir_status weir__replay(const weir__recording *snapshot, const weir__replay_options *options,
                         weir__replay_report *report);

#endif

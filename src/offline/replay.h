/*
 * Replay: a recorded history fed to the real allocator on the ledger driver.
 *
 * Checked, new segments are placed where the file says, and every decision is compared: the address of each allocation, and
 * each segment that is made, freed, mapped or unmapped, with its size and its point in the history. What happens when memory
 * runs short is the allocator's own decision; the file is only compared with it.
 */
#ifndef WEIR_OFFLINE_REPLAY_H
#define WEIR_OFFLINE_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/snapshot.h"
#include "weir/alloc.h"

/* The largest device: 64 TiB. */
#define WEIR__REPLAY_MOST_MEMORY (1ull << 46)

typedef struct weir__replay_options {
  int device;
  bool check;       /* place and compare; settings are the recorded ones then */
  const char *conf; /* unchecked: settings on top of the defaults; NULL: the recorded ones */
  uint64_t memory;  /* the device's memory in bytes, up to the largest; 0: not known */
  double fraction;  /* the part of it that may be used; 0: not known, or no limit */
} weir__replay_options;

enum { WEIR__REPLAY_SHOWN = 8, WEIR__REPLAY_TEXT = 200 };

typedef struct weir__replay_report {
  size_t events;
  size_t allocations;                                /* compared, or made */
  size_t differences;                                /* checked: in all */
  char shown[WEIR__REPLAY_SHOWN][WEIR__REPLAY_TEXT]; /* the first of them */
  size_t first_difference;                           /* the event that was under way, when there are any */
  size_t failures;                                   /* requests that ran out of memory */
  size_t first_failure;                              /* its event, when there are any */
  size_t rescued; /* checked: requests that failed in the file, and here got a block that had become free meanwhile */
  size_t unknown_frees;   /* of what was allocated before the recording: the history is not complete */
  bool limit_is_inferred; /* the file does not say it; it was told from what the file shows */
  uint64_t limit;         /* bytes that may be reserved; UINT64_MAX: none */
  weir_allocator_stats stats;
  double seconds;
} weir__replay_report;

weir_status weir__replay(const weir__snapshot *snapshot, const weir__replay_options *options,
                         weir__replay_report *report);

#endif

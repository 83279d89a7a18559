/*
 * The gauges: how much is allocated, active, requested and split, now, in all, and at its peak.
 *
 * Every arena counts for itself, under its own lock. What is allocated now and what was ever allocated are sums over the
 * arenas; peaks are peaks of these sums, so they need to know of all arenas at the same time. Counting must not, and so each
 * arena has limits: as long as what it counts stays within them, no sum can pass its peak, whatever the others do within
 * theirs. That holds because the sums of all limits are kept at or below the peaks.
 *
 *   peak    |----------------------------------------|
 *   limits  |------- arena 1 -------|-- arena 2 --|      the rest is still to be had
 *   counts  |--- arena 1 ---|- arena 2 -|
 *
 * Who comes to a limit takes half of what is still to be had. When that is not enough, he takes back what the others do not
 * use; then the sums are exact, and if one is above its peak, that is the new peak. An arena whose rest was taken back has no
 * limits, and comes by at its next operation.
 *
 * So peaks are exact as long as one arena at a time is at work. When others are found in the middle of an operation, a peak
 * that has to be raised is raised by a little more, at most 1 MiB for each stream at work, so that they do not all come by
 * again at once. A peak is never too low.
 */
#ifndef WEIR_ALLOC_GAUGES_H
#define WEIR_ALLOC_GAUGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "weir/alloc.h"

struct weir__arena;
struct weir__heap;

/* What is counted, and also a change of it by one operation; then signs tell the direction. A block that waits for other
 * streams is active, and not allocated: active is the sum of the two. */
typedef struct weir__amounts {
  int64_t allocations, allocated_bytes, requested_bytes, splits, split_bytes;
  int64_t waiting, waiting_bytes, oversize; /* these change seldom */
} weir__amounts;

enum { WEIR__GAUGES = 8 };

/* The same, to go through them in turn. */
typedef union weir__gauge_row {
  weir__amounts of;
  int64_t at[WEIR__GAUGES];
} weir__gauge_row;

/* Of an arena, guarded by its lock; but for limit and told, which also change when somebody takes back. */
typedef struct weir__gauges {
  weir__gauge_row room;  /* what is left up to the limit; far below 0 where there is none */
  weir__gauge_row added; /* all that came on since the sums were told */
  weir__gauge_row limit; /* without the room it is what there is now */
  weir__gauge_row told;  /* what of it is in the sums: the limits, or what there was when they were taken back */
  bool is_listed;        /* it has limits; guarded by the sums' lock, as is next */
  atomic_bool is_frozen; /* whoever has the arena's lock does not change the gauges unless he has the sums' lock too */
  struct weir__arena *next;
} weir__gauges;

/* Of a heap, guarded by the lock. By kind: all, small, large. */
typedef struct weir__gauge_sums {
  weir__lock lock;
  weir__gauge_row told[WEIR_STAT_KINDS];
  weir__gauge_row peak[WEIR_STAT_KINDS];                         /* in place of what waits: what is active */
  weir__gauge_row added[WEIR_STAT_KINDS], from[WEIR_STAT_KINDS]; /* since a reset, and what there was then */
  struct weir__arena *listed;                                    /* arenas that have limits */
} weir__gauge_sums;

/* The arena's lock is held, and its gauges are beyond their limits. */
void weir__gauges_ask(struct weir__arena *arena);

/* An arena stays still while somebody has the locks of several: he could not wait for the sums' lock otherwise, as its owner
 * waits for arenas. The arena's lock is held. */
void weir__gauges_freeze(struct weir__arena *arena);
void weir__gauges_unfreeze(struct weir__arena *arena);

/* An operation on the arena, whose lock is held. */
void weir__gauges_add(struct weir__arena *arena, const weir__amounts *change);

/* The same for a plain allocation, or with sign -1 a plain free: all that a cached operation counts. */
static inline void weir__gauges_add_plain(struct weir__arena *arena, weir__gauges *gauges, int sign, int64_t bytes,
                                          int64_t requested, int64_t splits, int64_t split_bytes) {
  weir__amounts *room = &gauges->room.of, *added = &gauges->added.of;
  int64_t over = room->allocations -= sign;
  over |= room->allocated_bytes -= sign * bytes;
  over |= room->requested_bytes -= sign * requested;
  over |= room->splits -= splits;
  over |= room->split_bytes -= split_bytes;
  if (sign > 0) {
    added->allocations += 1;
    added->allocated_bytes += bytes;
    added->requested_bytes += requested;
  }
  added->splits += splits > 0 ? splits : 0;
  added->split_bytes += split_bytes > 0 ? split_bytes : 0;
  if (__builtin_expect(over < 0, 0)) /* any limit was passed */
    weir__gauges_ask(arena);
}

/* All of a heap's, exact at one moment. */
void weir__gauges_read(struct weir__heap *heap, weir_allocator_stats *stats);
void weir__gauges_reset_peaks(struct weir__heap *heap);
void weir__gauges_reset_added(struct weir__heap *heap);

/* Arenas are about to go: nobody looks for them any more. */
void weir__gauges_forget(struct weir__heap *heap);

#endif

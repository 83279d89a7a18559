/*
 * The gauges: current value, peak and total of what is allocated, active, requested and split.
 *
 * Each arena counts under its own lock. The current values and totals of a heap are sums over its arenas. A peak is the
 * peak of such a sum, so it depends on all arenas at one moment, but an operation must not touch the other arenas. Each
 * arena therefore has a quota for every count. The sums contain quotas instead of counts and are kept at or below the
 * peaks, so while each arena stays within its quota, no sum of counts can exceed its peak.
 *
 *   peak    |----------------------------------------|
 *   quotas  |------- arena 1 -------|-- arena 2 --|      the rest is headroom
 *   counts  |--- arena 1 ---|- arena 2 -|
 *
 * An arena that exhausts its quota claims a share of the remaining headroom, initially half. If no headroom is left, it
 * revokes the quotas of all other arenas, which makes the sums exact; a sum that exceeds its peak is the new peak. An
 * arena without a quota claims one at its next operation. If no sum exceeds its peak, the headroom was sufficient but
 * went to too few arenas, so shares become smaller; otherwise many arenas would revoke each other's quotas forever.
 * They become larger again when one arena claims many times in a row.
 *
 * Peaks are exact while one arena at a time is in an operation. If others are, a peak is raised by up to 1 MiB extra
 * for each stream, so that they do not all exceed their quotas again at once. A peak is never too low.
 */
#ifndef WEIR_ALLOC_CACHE_GAUGES_H
#define WEIR_ALLOC_CACHE_GAUGES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "weir/alloc.h"

struct weir__arena;
struct weir__heap;

/* The counts, or their change by one operation. A block that waits for other streams is active but not allocated:
 * active is the sum of allocated and waiting. */
typedef struct weir__amounts {
  int64_t allocations, allocated_bytes, requested_bytes, splits, split_bytes;
  int64_t waiting, waiting_bytes, oversize; /* these change rarely */
} weir__amounts;

enum { WEIR__GAUGES = 8 };

/* The same as an array. */
typedef union weir__gauge_row {
  weir__amounts of;
  int64_t at[WEIR__GAUGES];
} weir__gauge_row;

/* Gauges of an arena, guarded by its lock; quota and reported also change when quotas are revoked. */
typedef struct weir__gauges {
  weir__gauge_row left;  /* quota minus count; far below 0 if there is no quota */
  weir__gauge_row added; /* sum of all increases since the last report */
  weir__gauge_row quota; /* the count is quota minus left */
  weir__gauge_row
      reported;          /* what the sums contain for this arena: its quota, or its count when the quota was revoked */
  bool has_quota;        /* guarded by the sums' lock, as is next */
  atomic_bool is_frozen; /* the holder of the arena's lock changes the gauges only with the sums' lock */
  struct weir__arena *next;
} weir__gauges;

/* Sums of a heap by kind (all, small, large), guarded by the lock. */
typedef struct weir__gauge_sums {
  weir__lock lock;
  weir__gauge_row reported[WEIR_STAT_KINDS];
  weir__gauge_row peak[WEIR_STAT_KINDS]; /* in the places of waiting: active */
  weir__gauge_row added[WEIR_STAT_KINDS],
      baseline[WEIR_STAT_KINDS];      /* increases since a reset, and the current values then */
  struct weir__arena *with_quota;     /* list of arenas that have a quota */
  int share_shift;                    /* a claim takes 1 / 2^(1 + share_shift) of the headroom */
  const struct weir__arena *claimant; /* the last one, which may be deleted */
  unsigned repeats;                   /* of its claim, without one of another arena between */
} weir__gauge_sums;

/* Claims a new quota after the arena exceeded its quota. The arena's lock is held. */
void weir__gauges_claim_quota(struct weir__arena *arena);

/* Freezes the gauges of an arena while a thread holds the locks of several, or waits for a stream. Otherwise it could
 * deadlock with the holder of the sums' lock, which waits for arenas, or make it wait for the stream. The arena's lock
 * is held. */
void weir__gauges_freeze(struct weir__arena *arena);
void weir__gauges_unfreeze(struct weir__arena *arena);

/* Counts an operation on the arena, whose lock is held. */
void weir__gauges_add(struct weir__arena *arena, const weir__amounts *change);

/* The fast version for a plain allocation or, with sign -1, a plain free. */
static inline void weir__gauges_add_plain(struct weir__arena *arena, weir__gauges *gauges, int sign, int64_t bytes,
                                          int64_t requested, int64_t splits, int64_t split_bytes) {
  weir__amounts *left = &gauges->left.of, *added = &gauges->added.of;
  int64_t over = left->allocations -= sign;
  over |= left->allocated_bytes -= sign * bytes;
  over |= left->requested_bytes -= sign * requested;
  over |= left->splits -= splits;
  over |= left->split_bytes -= split_bytes;
  if (sign > 0) {
    added->allocations += 1;
    added->allocated_bytes += bytes;
    added->requested_bytes += requested;
  }
  added->splits += splits > 0 ? splits : 0;
  added->split_bytes += split_bytes > 0 ? split_bytes : 0;
  if (__builtin_expect(over < 0, 0)) /* a quota was exceeded */
    weir__gauges_claim_quota(arena);
}

/* Reads all gauges of a heap, exact at one moment. */
void weir__gauges_read(struct weir__heap *heap, weir_allocator_stats *stats);
void weir__gauges_reset_peaks(struct weir__heap *heap);
void weir__gauges_reset_added(struct weir__heap *heap);

/* Revokes all quotas, before arenas are deleted. */
void weir__gauges_revoke_quotas(struct weir__heap *heap);

#endif

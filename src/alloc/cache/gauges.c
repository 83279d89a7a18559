#include "alloc/cache/gauges.h"

#include <stddef.h>

#include "alloc/cache/heap.h"
#include "base/thread.h"

#define PLACE(gauge) (offsetof(weir__amounts, gauge) / sizeof(int64_t))

/* How far a peak is raised beyond the known sum for each stream that is in an operation: blocks, and bytes. */
enum { spare_blocks = 16, spare_bytes = 1024 * 1024 };

enum { smallest_share = 40 }; /* as a shift: a byte of a terabyte */
enum { growth_repeats = 8 };  /* claims of one arena in a row that show that it grows, and no other one claims */

static const int64_t spare[WEIR__GAUGES] = {
    [PLACE(allocations)] = spare_blocks, [PLACE(splits)] = spare_blocks,         [PLACE(waiting)] = spare_blocks,
    [PLACE(oversize)] = spare_blocks,    [PLACE(allocated_bytes)] = spare_bytes, [PLACE(requested_bytes)] = spare_bytes,
    [PLACE(split_bytes)] = spare_bytes,  [PLACE(waiting_bytes)] = spare_bytes};

/* A sum as it is compared with its peak: active instead of waiting. */
static int64_t measured(const weir__gauge_row *row, size_t i) {
  return i == PLACE(waiting)         ? row->of.allocations + row->of.waiting
         : i == PLACE(waiting_bytes) ? row->of.allocated_bytes + row->of.waiting_bytes
                                     : row->at[i];
}

static weir_stat_kind kind_of(const weir__arena *arena) {
  return arena->pool->is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL;
}

/* Quota left of an arena without a quota: any operation exceeds it. */
#define NO_QUOTA (INT64_MIN / 2)

static weir__gauge_row counts_of(const weir__gauges *gauges) {
  weir__gauge_row now;
  for (int i = 0; i < WEIR__GAUGES; i++)
    now.at[i] = gauges->quota.at[i] - gauges->left.at[i];
  return now;
}

static void set_quota(weir__gauges *gauges, const weir__gauge_row *now, const weir__gauge_row *left) {
  gauges->left = *left;
  for (int i = 0; i < WEIR__GAUGES; i++)
    gauges->quota.at[i] = now->at[i] + left->at[i];
}

static const weir__gauge_row no_quota = {
    .at = {NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA}};

/* Updates what the sums contain for an arena: its counts, or its quota. */
static void report(weir__gauge_sums *sums, weir__arena *arena, const weir__gauge_row *amounts) {
  weir__gauge_row *all = &sums->reported[WEIR_STAT_ALL], *kind = &sums->reported[kind_of(arena)];
  for (int i = 0; i < WEIR__GAUGES; i++) {
    int64_t more = amounts->at[i] - arena->gauges.reported.at[i];
    all->at[i] += more;
    kind->at[i] += more;
    arena->gauges.reported.at[i] = amounts->at[i];
  }
}

static void report_added(weir__gauge_sums *sums, weir__arena *arena) {
  weir__gauge_row *all = &sums->added[WEIR_STAT_ALL], *kind = &sums->added[kind_of(arena)];
  for (int i = 0; i < WEIR__GAUGES; i++) {
    all->at[i] += arena->gauges.added.at[i];
    kind->at[i] += arena->gauges.added.at[i];
    arena->gauges.added.at[i] = 0;
  }
}

/* ---- Revoking quotas. The sums' lock is held ---- */

/* Waits until the arena's gauges cannot change. Returns true if the arena's lock was taken; otherwise its holder waits
 * for the sums' lock, which this thread holds. */
static bool quiesce(weir__arena *arena, bool *was_busy) {
  for (int i = 0;; i++) {
    if (weir__biased_try(&arena->lock))
      return true;
    *was_busy = true;
    if (atomic_load_explicit(&arena->gauges.is_frozen, memory_order_acquire))
      return false;
    if (i % 64 == 63)
      weir__thread_yield();
    weir__pause();
  }
}

/* Revokes the quotas of all arenas except one that cannot change, and makes the sums exact. Returns the number of
 * streams that were in an operation. */
static int revoke_quotas(weir__gauge_sums *sums, const weir__arena *except) {
  int streams = 0;
  weir_cu_stream seen[64];
  for (weir__arena *arena = sums->with_quota, *next; arena; arena = next) {
    weir__gauges *gauges = &arena->gauges;
    bool is_busy = false;
    next = gauges->next;
    gauges->has_quota = false;
    if (arena == except)
      continue;
    bool locked = quiesce(arena, &is_busy);
    weir__gauge_row now = counts_of(gauges);
    report(sums, arena, &now);
    report_added(sums, arena);
    set_quota(gauges, &now, &no_quota);
    if (locked)
      weir__biased_release(&arena->lock);
    int i = 0;
    while (is_busy && i < streams && seen[i] != arena->stream)
      i++;
    if (is_busy && i == streams && streams < (int)WEIR_COUNT_OF(seen))
      seen[streams++] = arena->stream;
  }
  sums->with_quota = NULL;
  return streams;
}

/* ---- Operations of an arena ---- */

/* Freezes the gauges until the sums' lock is held, so that its holder need not wait for the arena's lock. */
static void lock_sums(weir__gauge_sums *sums, weir__gauges *gauges) {
  atomic_store_explicit(&gauges->is_frozen, true, memory_order_release);
  weir__lock_acquire(&sums->lock);
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Headroom: bytes or blocks up to a peak; negative if the sum exceeds the peak. */
static int64_t headroom(const weir__gauge_sums *sums, weir_stat_kind kind, size_t i) {
  return sums->peak[kind].at[i] - measured(&sums->reported[kind], i);
}

static bool is_beyond_peak(const weir__gauge_sums *sums, weir_stat_kind kind) {
  for (size_t i = 0; i < WEIR__GAUGES; i++)
    if (headroom(sums, WEIR_STAT_ALL, i) < 0 || headroom(sums, kind, i) < 0)
      return true;
  return false;
}

/* `streams` counts the other streams that are in an operation. Returns false if no sum exceeds its peak. */
static bool raise_peaks(weir__gauge_sums *sums, int streams) {
  bool is_raised = false;
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++)
    for (size_t i = 0; i < WEIR__GAUGES; i++)
      if (headroom(sums, kind, i) < 0) {
        sums->peak[kind].at[i] = measured(&sums->reported[kind], i) + (streams ? (streams + 1) * spare[i] : 0);
        is_raised = true;
      }
  return is_raised;
}

/* Claims a share of the headroom, which leaves some for other arenas. Allocated blocks also count as active, so both
 * peaks bound them. */
static void claim_quota(weir__gauge_sums *sums, weir__arena *arena, const weir__gauge_row *now) {
  weir_stat_kind kind = kind_of(arena);
  weir__gauges *gauges = &arena->gauges;
  weir__gauge_row left;
  for (size_t i = 0; i < WEIR__GAUGES; i++)
    left.at[i] = least(headroom(sums, WEIR_STAT_ALL, i), headroom(sums, kind, i));
  left.of.allocations = least(left.of.allocations, left.of.waiting);
  left.of.allocated_bytes = least(left.of.allocated_bytes, left.of.waiting_bytes);
  left.of.waiting = left.of.waiting_bytes = left.of.oversize = 0; /* changes of these always report */
  for (size_t i = 0; i < WEIR__GAUGES; i++)
    left.at[i] >>= 1 + sums->share_shift;
  set_quota(gauges, now, &left);
  report(sums, arena, &gauges->quota);
  if (gauges->has_quota)
    return;
  gauges->has_quota = true;
  gauges->next = sums->with_quota;
  sums->with_quota = arena;
}

void weir__gauges_claim_quota(weir__arena *arena) {
  weir__gauge_sums *sums = &arena->pool->heap->sums;
  lock_sums(sums, &arena->gauges);
  weir__gauge_row now = counts_of(&arena->gauges);
  report(sums, arena, &now);
  if (is_beyond_peak(sums, kind_of(arena))) {
    int streams = revoke_quotas(sums, arena);
    bool is_raised = raise_peaks(sums, streams);
    sums->share_shift = is_raised ? 0 : (int)least(sums->share_shift + 1, smallest_share);
  }
  sums->repeats = sums->claimant == arena ? sums->repeats + 1 : 0;
  sums->claimant = arena;
  if (sums->repeats >= growth_repeats && sums->share_shift > 0)
    sums->share_shift--;
  claim_quota(sums, arena, &now);
  atomic_store_explicit(&arena->gauges.is_frozen, false, memory_order_relaxed);
  weir__lock_release(&sums->lock);
}

void weir__gauges_freeze(weir__arena *arena) {
  atomic_store_explicit(&arena->gauges.is_frozen, true, memory_order_release);
}

/* Takes the sums' lock because its holder may have seen the gauges frozen and be reading them. */
void weir__gauges_unfreeze(weir__arena *arena) {
  weir__gauge_sums *sums = &arena->pool->heap->sums;
  weir__lock_acquire(&sums->lock);
  atomic_store_explicit(&arena->gauges.is_frozen, false, memory_order_relaxed);
  weir__lock_release(&sums->lock);
}

static void add(weir__gauges *gauges, const weir__amounts *change) {
  const weir__gauge_row *row = (const weir__gauge_row *)change;
  for (size_t i = 0; i < WEIR__GAUGES; i++) {
    gauges->left.at[i] -= row->at[i];
    if (row->at[i] > 0)
      gauges->added.at[i] += row->at[i];
  }
}

void weir__gauges_add(weir__arena *arena, const weir__amounts *change) {
  weir__gauge_sums *sums = &arena->pool->heap->sums;
  weir__gauges *gauges = &arena->gauges;
  if (!atomic_load_explicit(&gauges->is_frozen, memory_order_relaxed)) {
    add(gauges, change);
    weir__gauges_claim_quota(arena);
    return;
  }
  /* The gauges stay frozen, and have no quota afterwards. */
  weir__lock_acquire(&sums->lock);
  revoke_quotas(sums, NULL);
  add(gauges, change);
  weir__gauge_row now = counts_of(gauges);
  report(sums, arena, &now);
  report_added(sums, arena);
  raise_peaks(sums, 0);
  weir__lock_release(&sums->lock);
}

/* ---- Reading. No arena's lock is held ---- */

/* `active` includes waiting blocks. Everything that became allocated also became active. */
static weir_stat stat_of(const weir__gauge_sums *sums, int kind, size_t i, bool active) {
  size_t peak = !active ? i : i == PLACE(allocations) ? PLACE(waiting) : PLACE(waiting_bytes);
  int64_t added = sums->added[kind].at[i];
  int64_t now = active ? measured(&sums->reported[kind], peak) : sums->reported[kind].at[i];
  int64_t from = active ? measured(&sums->baseline[kind], peak) : sums->baseline[kind].at[i];
  return (weir_stat){now, sums->peak[kind].at[peak], added, added - (now - from)};
}

void weir__gauges_read(weir__heap *heap, weir_allocator_stats *stats) {
  weir__gauge_sums *sums = &heap->sums;
  weir__lock_acquire(&sums->lock);
  if (revoke_quotas(sums, NULL))
    raise_peaks(sums, 0); /* covers arenas that exceeded their quota and wait for the sums' lock */
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    stats->allocation[kind] = stat_of(sums, kind, PLACE(allocations), false);
    stats->active[kind] = stat_of(sums, kind, PLACE(allocations), true);
    stats->inactive_split[kind] = stat_of(sums, kind, PLACE(splits), false);
    stats->allocated_bytes[kind] = stat_of(sums, kind, PLACE(allocated_bytes), false);
    stats->active_bytes[kind] = stat_of(sums, kind, PLACE(allocated_bytes), true);
    stats->requested_bytes[kind] = stat_of(sums, kind, PLACE(requested_bytes), false);
    stats->inactive_split_bytes[kind] = stat_of(sums, kind, PLACE(split_bytes), false);
  }
  stats->oversize_allocations = stat_of(sums, WEIR_STAT_ALL, PLACE(oversize), false);
  weir__lock_release(&sums->lock);
}

void weir__gauges_reset_peaks(weir__heap *heap) {
  weir__gauge_sums *sums = &heap->sums;
  weir__lock_acquire(&sums->lock);
  revoke_quotas(sums, NULL);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++)
    for (size_t i = 0; i < WEIR__GAUGES; i++)
      sums->peak[kind].at[i] = measured(&sums->reported[kind], i);
  weir__lock_release(&sums->lock);
}

void weir__gauges_reset_added(weir__heap *heap) {
  weir__gauge_sums *sums = &heap->sums;
  weir__lock_acquire(&sums->lock);
  revoke_quotas(sums, NULL);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    sums->baseline[kind] = sums->reported[kind];
    sums->added[kind] = (weir__gauge_row){.at = {0}};
  }
  weir__lock_release(&sums->lock);
}

void weir__gauges_revoke_quotas(weir__heap *heap) {
  weir__lock_acquire(&heap->sums.lock);
  revoke_quotas(&heap->sums, NULL);
  weir__lock_release(&heap->sums.lock);
}

/*
 * Accounts: how many bytes of a device everything holds, and how many it may hold.
 *
 *   device                one allocator on one device
 *     tag                 of the pools of a tag; pools without one are below the device
 *     pool                the default pool, or a private one; the accounts of private pools outlive them
 *       arena             a pool's blocks of one stream
 *
 * Bytes that are obtained from the driver are charged to an arena's account, and so to those above it. Any account may
 * have limits, which bound it and all below: the hard one refuses, the soft one makes caches be given back.
 *
 * What is allocated of these bytes, active, requested and split is counted by each arena under its own lock. The
 * current values and totals of the device are sums over its arenas. A peak is the peak of such a sum, so it depends on
 * all arenas at one moment, but an operation must not touch the other arenas. Each arena therefore has a quota for
 * every count: the count that it has published, and a share of the headroom below the peak. While each arena stays
 * within its quota, no sum of counts can exceed its peak.
 *
 *   peak     |----------------------------------------|
 *   quotas   |------- arena 1 -------|-- arena 2 --|      the rest is headroom
 *   counts   |--- arena 1 ---|- arena 2 -|
 *
 * An arena that exhausts its quota publishes its count and claims a share of the remaining headroom, initially half. If
 * no headroom is left, it revokes the quotas of all other arenas, which makes the sums exact; a sum that exceeds its
 * peak is the new peak. An arena without a quota claims one at its next operation. If no sum exceeds its peak, the
 * headroom was sufficient but went to too few arenas, so shares become smaller; otherwise many arenas would revoke each
 * other's quotas forever. They become larger again when one arena claims many times in a row.
 *
 * Peaks are exact while one arena at a time is in an operation. If others are, a peak is raised by up to 1 MiB extra
 * for each stream, so that they do not all exceed their quotas again at once. A peak is never too low.
 *
 * The tree has one lock; no other is acquired while it is held, but a revocation tries the locks of arenas. Charges,
 * limits and promises change only with the heap's lock held too, so that lock is enough to read them.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/biased_lock.h"
#include "base/lock.h"
#include "weir/alloc.h"

/* The counts, or their change by one operation. A block that waits for other streams is active but not allocated:
 * active is the sum of allocated and waiting. */
typedef struct weir__amounts {
  int64_t allocations, allocated_bytes, requested_bytes, splits, split_bytes;
  int64_t waiting, waiting_bytes, oversize; /* these change rarely */
} weir__amounts;

enum { WEIR__COUNTS = 8 };

/* The same as an array. */
typedef union weir__counts {
  weir__amounts of;
  int64_t at[WEIR__COUNTS];
} weir__counts;

typedef enum weir__limit { WEIR__LIMIT_SOFT, WEIR__LIMIT_HARD, WEIR__LIMITS } weir__limit;

typedef struct weir__account weir__account;
struct weir__account {
  weir__account *parent;
  weir__account *previous, *next;      /* the device's account, that of the default pool, private pools, newest first */
  weir__account *same;                 /* the next pool whose id has the same hash */
  weir_pool_id id;                     /* of the pool; {0, 0} for the default pool and the device */
  struct weir__private_pool *pool;     /* NULL if it has gone, or is not private */
  bool is_tag;                         /* it is that of a tag, and not of a pool */
  const char *tag;                     /* the name of the pool's tag, which lasts as long as the heap; NULL for none */
  weir_stat reserved[WEIR_STAT_KINDS]; /* bytes obtained from the driver: all, in small pools, in large ones */
  weir_stat segments[WEIR_STAT_KINDS]; /* obtained from the driver in one go */
  weir__counts published[WEIR_STAT_KINDS]; /* the counts, as of the last time that each arena published its own */
  weir__amounts ahead;                     /* counted beyond what is published, as the last poll saw it */
  uint64_t promised;                       /* being obtained by threads that have released the heap's lock */
  uint64_t limit[WEIR__LIMITS];            /* of reserved bytes; UINT64_MAX if there is none */
};

/* The account of an arena. Its lock guards `left` and `added`; the rest is written with the tree's lock. */
typedef struct weir__arena_account weir__arena_account;
struct weir__arena_account {
  weir__counts left;     /* of the share; any operation exceeds the one of an arena without a quota */
  weir__counts added;    /* sum of all increases since the last report */
  atomic_bool is_frozen; /* the holder of the arena's lock changes the counts only with the tree's lock */
  bool has_quota;
  weir_stat_kind kind;
  weir__counts share; /* what may be counted beyond what is published: the count is published + share - left */
  struct weir__accounts *tree;
  weir__biased_lock *lock;
  weir_cu_stream stream;
  weir__account account;
  weir__arena_account *next; /* with a quota */
};

enum { WEIR__GONE_POOLS = 128, WEIR__POOL_BUCKETS = 1 << 8 };

/* The tree of a device, guarded by the lock. In peaks, the places of waiting have active. */
typedef struct weir__accounts {
  weir__lock lock;
  weir__account device, default_pool;
  weir__account *by_id[WEIR__POOL_BUCKETS]; /* of private pools, by a hash of the id */
  weir__account *gone[WEIR__GONE_POOLS];    /* those of the last pools that have gone: a ring */
  unsigned gone_count;
  double fraction;                                            /* by which the device's limit was set last */
  weir__counts shares[WEIR_STAT_KINDS];                       /* sums over all arenas */
  weir__counts peak[WEIR_STAT_KINDS];                         /* of sums, by kind */
  weir__counts added[WEIR_STAT_KINDS], base[WEIR_STAT_KINDS]; /* increases since a reset, and the values then */
  uint64_t allocations;                                       /* ever */
  weir__arena_account *with_quota;
  int share_shift;                     /* a claim takes 1 / 2^(1 + share_shift) of the headroom */
  const weir__arena_account *claimant; /* the last one, which may be deleted */
  unsigned repeats;                    /* of its claim, without one of another arena between */
} weir__accounts;

void weir__accounts_begin(weir__accounts *tree);
void weir__accounts_end(weir__accounts *tree); /* there are no arenas any more */

/* ---- Accounts of pools and arenas. The heap's lock is held ---- */

/* The account of a private pool; also of one that has gone. NULL if there is none. */
weir__account *weir__account_find(const weir__accounts *tree, weir_pool_id id);

/* The same, opened if there is none: then all its statistics are zero. NULL without host memory. */
weir__account *weir__account_open(weir__accounts *tree, weir_pool_id id, struct weir__private_pool *pool);

/* Begins the account of a tag, which is all zero. Needs no lock. */
void weir__account_begin_tag(weir__account *account, weir__accounts *tree, const char *name);

/* Puts the account of a pool, which holds nothing, below that of the tag in which the pool is created; NULL for
 * none. */
void weir__account_set_tag(weir__accounts *tree, weir__account *account, weir__account *tag);

/* The pool has gone. Its account is kept if it ever held memory. A program may create pools by the hundred thousand, so
 * only those of the last ones are. */
void weir__account_close(weir__accounts *tree, weir__account *account);

/* Begins the account of an arena, which is all zero, below that of a pool. Needs no lock. */
void weir__account_begin_arena(weir__arena_account *arena, weir__accounts *tree, weir__account *pool,
                               weir_stat_kind kind, weir__biased_lock *lock, weir_cu_stream stream);

/* "device 0", "tag 'weights'", or "pool {1, 2}". */
void weir__account_name(const weir__account *account, int device, char *text, size_t size);

/* ---- Charges and limits. The heap's lock is held ---- */

/* The fewest bytes that the limits of an account and of those above it leave; *by is the account with that limit, NULL
 * if none has one. */
uint64_t weir__account_headroom(const weir__account *account, weir__limit limit, const weir__account **by);

/* Counts bytes against the limits while the heap's lock is released; and ends that, with -bytes. */
void weir__account_promise(weir__account *account, int64_t bytes);

/* Charges bytes and segments that were obtained; less than 0 if they were given back. The arena's lock is held too. */
void weir__account_charge(weir__arena_account *arena, int64_t bytes, int segments);

/* ---- Counting. The arena's lock is held ---- */

/* Claims a new quota after the arena exceeded its quota. */
void weir__account_claim(weir__arena_account *arena);

/* Publishes the counts of an arena. */
void weir__account_publish(weir__arena_account *arena);

/* Freezes the counts of an arena while a thread holds the locks of several, or waits for a stream. Otherwise it could
 * deadlock with the holder of the tree's lock, which waits for arenas, or make it wait for the stream. */
void weir__account_freeze(weir__arena_account *arena);
void weir__account_unfreeze(weir__arena_account *arena);

/* Counts an operation on the arena. */
void weir__account_count(weir__arena_account *arena, const weir__amounts *change);

/* The fast version for a plain allocation or, with sign -1, a plain free. Returns whether a quota was exceeded: then
 * the caller claims one. */
static inline bool weir__account_count_plain(weir__arena_account *arena, int sign, int64_t bytes, int64_t requested,
                                             int64_t splits, int64_t split_bytes) {
  weir__amounts *left = &arena->left.of, *added = &arena->added.of;
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
  return over < 0;
}

/* ---- Reading. No arena's lock is held ---- */

/* An account at one moment. */
typedef struct weir__glance {
  weir_stat reserved[WEIR_STAT_KINDS];
  weir__counts counted[WEIR_STAT_KINDS];
  weir__amounts more;
  uint64_t allocations; /* of the device, ever; as far as they are published */
} weir__glance;

/* Reads an account without an arena's lock, and without revoking a quota, as a poll has to. Reserved bytes are
 * exact. What is counted is stale: an arena publishes when it claims a quota, when it grows or shrinks, and when a
 * request misses the cache. It may have freed anything since; it has allocated within its quota, so all arenas together
 * have counted at most `more` since, but for operations under way. Counted bytes never exceed reserved ones. */
weir__glance weir__account_glance(weir__accounts *tree, const weir__account *account);

/* Publishes the counts of all arenas but those that other threads use, and revokes nothing. In a program of one thread
 * a glance is exact then, so that what is decided by it is the same in a replay. */
void weir__account_publish_unbiased(weir__accounts *tree);

/* What a poll sees of an account. */
typedef struct weir__account_levels {
  weir_pool_id id; /* {0, 0} for the device and for the default pool */
  const char *tag; /* of a pool; NULL if it has none. Valid as long as the heap */
  weir_stat reserved, segments;
  weir__amounts counted;
  uint64_t limit[WEIR__LIMITS]; /* of the pool, or of its tag if that is lower */
} weir__account_levels;

/* Reads the account of the device, that of the default pool and those of private pools, newest first, at most `room`
 * of them, and returns how many it has read. *peak and *added are those of the device; in *peak, the places of waiting
 * have active.
 *
 * It takes no lock of an arena and revokes no quota, so a poll costs the other threads nothing but a cache line. What
 * is reserved is exact. Counts are read while their arenas change them: each is one that the arena had, but the counts
 * of one operation under way may be in some of them and not in others. */
size_t weir__accounts_poll(weir__accounts *tree, weir__account_levels *levels, size_t room, weir__amounts *peak,
                           weir__amounts *added);

/* Revokes all quotas, so that every account is exact at one moment, and reads those of the device. */
void weir__accounts_read(weir__accounts *tree, weir_allocator_stats *stats);
void weir__accounts_reset_peaks(weir__accounts *tree);
void weir__accounts_reset_added(weir__accounts *tree);

/* Revokes all quotas, before arenas are deleted. */
void weir__accounts_revoke(weir__accounts *tree);

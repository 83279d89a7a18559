#include "alloc/memory/account.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "alloc/memory/stat.h"
#include "base/base.h"
#include "base/thread.h"

#define PLACE(count) (offsetof(weir__amounts, count) / sizeof(int64_t))

/* How far a peak is raised beyond the known sum for each stream that is in an operation: blocks, and bytes. */
enum { spare_blocks = 16, spare_bytes = 1024 * 1024 };

enum { smallest_share = 40 }; /* as a shift: a byte of a terabyte */
enum { growth_repeats = 8 };  /* claims of one arena in a row that show that it grows, and no other one claims */

static const int64_t spare[WEIR__COUNTS] = {
    [PLACE(allocations)] = spare_blocks, [PLACE(splits)] = spare_blocks,         [PLACE(waiting)] = spare_blocks,
    [PLACE(oversize)] = spare_blocks,    [PLACE(allocated_bytes)] = spare_bytes, [PLACE(requested_bytes)] = spare_bytes,
    [PLACE(split_bytes)] = spare_bytes,  [PLACE(waiting_bytes)] = spare_bytes};

/* ---- The tree ---- */

static void begin(weir__account *account, weir__account *parent, weir__account *previous) {
  account->parent = parent;
  account->limit[WEIR__LIMIT_SOFT] = account->limit[WEIR__LIMIT_HARD] = UINT64_MAX;
  if (!previous)
    return;
  account->previous = previous;
  account->next = previous->next;
  previous->next = account;
  if (account->next)
    account->next->previous = account;
}

void weir__accounts_begin(weir__accounts *tree) {
  tree->fraction = 1;
  begin(&tree->device, NULL, NULL);
  begin(&tree->default_pool, &tree->device, &tree->device);
}

/* Where the account of an id is, or would be. */
static weir__account **place_of(const weir__accounts *tree, weir_pool_id id) {
  uint64_t hash = (id.first * 0x9e3779b97f4a7c15u + id.second) * 0x9e3779b97f4a7c15u;
  weir__account *const *at = &tree->by_id[hash >> 56];
  while (*at && ((*at)->id.first != id.first || (*at)->id.second != id.second))
    at = &(*at)->same;
  return (weir__account **)at;
}

weir__account *weir__account_find(const weir__accounts *tree, weir_pool_id id) { return *place_of(tree, id); }

weir__account *weir__account_open(weir__accounts *tree, weir_pool_id id, struct weir__private_pool *pool) {
  weir__account **at = place_of(tree, id), *account = *at;
  for (size_t i = 0; account && i < WEIR__GONE_POOLS; i++)
    if (tree->gone[i] == account)
      tree->gone[i] = NULL;
  if (!account && (account = calloc(1, sizeof *account))) {
    account->id = id;
    weir__lock_acquire(&tree->lock);
    begin(account, &tree->device, &tree->default_pool);
    weir__lock_release(&tree->lock);
    *at = account;
  }
  if (account)
    account->pool = pool;
  return account;
}

void weir__account_begin_tag(weir__account *account, weir__accounts *tree, const char *name) {
  begin(account, &tree->device, NULL);
  account->is_tag = true;
  account->tag = name;
}

/* Polls read both with the tree's lock alone. */
void weir__account_set_tag(weir__accounts *tree, weir__account *account, weir__account *tag) {
  weir__lock_acquire(&tree->lock);
  account->parent = tag ? tag : &tree->device;
  account->tag = tag ? tag->tag : NULL;
  weir__lock_release(&tree->lock);
}

static void delete (weir__accounts *tree, weir__account *account) {
  *place_of(tree, account->id) = account->same;
  weir__lock_acquire(&tree->lock);
  WEIR__LIST_REMOVE(tree->device.next, account);
  weir__lock_release(&tree->lock);
  free(account);
}

void weir__account_close(weir__accounts *tree, weir__account *account) {
  const weir_stat *all = &account->reserved[WEIR_STAT_ALL];
  weir__account **place = &tree->gone[tree->gone_count % WEIR__GONE_POOLS];
  account->pool = NULL;
  if (!all->peak && !all->allocated && !all->freed) {
    delete (tree, account);
    return;
  }
  if (*place)
    delete (tree, *place);
  *place = account;
  tree->gone_count++;
}

void weir__accounts_end(weir__accounts *tree) {
  while (tree->default_pool.next)
    delete (tree, tree->default_pool.next);
}

void weir__account_begin_arena(weir__arena_account *arena, weir__accounts *tree, weir__account *pool,
                               weir_stat_kind kind, weir__biased_lock *lock, weir_cu_stream stream) {
  begin(&arena->account, pool, NULL);
  arena->account.id = pool->id;
  arena->tree = tree;
  arena->kind = kind;
  arena->lock = lock;
  arena->stream = stream;
}

void weir__account_name(const weir__account *account, int device, char *text, size_t size) {
  if (!account->parent)
    snprintf(text, size, "device %d", device);
  else if (account->is_tag)
    snprintf(text, size, "tag '%s'", account->tag);
  else
    snprintf(text, size, "pool {%llu, %llu}", (unsigned long long)account->id.first,
             (unsigned long long)account->id.second);
}

/* ---- Charges and limits ---- */

uint64_t weir__account_headroom(const weir__account *account, weir__limit limit, const weir__account **by) {
  uint64_t least = UINT64_MAX;
  *by = NULL;
  for (; account; account = account->parent) {
    uint64_t most = account->limit[limit],
             taken = (uint64_t)account->reserved[WEIR_STAT_ALL].current + account->promised,
             left = most > taken ? most - taken : 0;
    if (most == UINT64_MAX || left >= least)
      continue;
    least = left;
    *by = account;
  }
  return least;
}

void weir__account_promise(weir__account *account, int64_t bytes) {
  for (; account; account = account->parent)
    account->promised += (uint64_t)bytes;
}

/* ---- Counting. The lock of the tree is held ---- */

/* A sum as it is compared with its peak: active instead of waiting. */
static int64_t measured(const weir__counts *row, size_t i) {
  return i == PLACE(waiting)         ? row->of.allocations + row->of.waiting
         : i == PLACE(waiting_bytes) ? row->of.allocated_bytes + row->of.waiting_bytes
                                     : row->at[i];
}

/* The share left of an arena without a quota. */
#define NO_QUOTA (INT64_MIN / 2)

static const weir__counts no_quota = {
    .at = {NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA, NO_QUOTA}};

/* Adds a row to the sums of all arenas and to those of a kind. */
static void sum(weir__counts *sums, weir_stat_kind kind, const weir__counts *row, int sign) {
  for (int i = 0; i < WEIR__COUNTS; i++) {
    sums[WEIR_STAT_ALL].at[i] += sign * row->at[i];
    sums[kind].at[i] += sign * row->at[i];
  }
}

static void publish(weir__arena_account *arena) {
  weir__counts more;
  for (int i = 0; i < WEIR__COUNTS; i++)
    more.at[i] = arena->share.at[i] - arena->left.at[i];
  for (weir__account *account = &arena->account; account; account = account->parent)
    sum(account->published, arena->kind, &more, 1);
  if (arena->has_quota)
    sum(arena->tree->shares, arena->kind, &more, -1);
  arena->share = arena->left;
}

static void report_added(weir__arena_account *arena) {
  sum(arena->tree->added, arena->kind, &arena->added, 1);
  arena->tree->allocations += (uint64_t)arena->added.of.allocations;
  arena->added = (weir__counts){.at = {0}};
}

/* Waits until the arena's counts cannot change. Returns true if the arena's lock was taken; otherwise its holder waits
 * for the tree's lock, which this thread holds. */
static bool quiesce(weir__arena_account *arena, bool *was_busy) {
  for (int i = 0;; i++) {
    if (weir__biased_try(arena->lock))
      return true;
    *was_busy = true;
    if (atomic_load_explicit(&arena->is_frozen, memory_order_acquire))
      return false;
    if (i % 64 == 63)
      weir__thread_yield();
    weir__pause();
  }
}

/* Revokes the quotas of all arenas except one that cannot change, whose share was taken out of the sum. Everything that
 * is published is exact then. Returns the number of streams that were in an operation. */
static int revoke_quotas(weir__accounts *tree, weir__arena_account *except) {
  int streams = 0;
  weir_cu_stream seen[64];
  for (weir__arena_account *arena = tree->with_quota; arena; arena = arena->next) {
    bool is_busy = false;
    if (arena != except) {
      bool locked = quiesce(arena, &is_busy);
      publish(arena);
      report_added(arena);
      sum(tree->shares, arena->kind, &arena->share, -1);
      arena->left = arena->share = no_quota;
      if (locked)
        weir__biased_release(arena->lock);
    }
    arena->has_quota = false;
    int i = 0;
    while (is_busy && i < streams && seen[i] != arena->stream)
      i++;
    if (is_busy && i == streams && streams < (int)WEIR_COUNT_OF(seen))
      seen[streams++] = arena->stream;
  }
  tree->with_quota = NULL;
  return streams;
}

/* Blocks or bytes up to a peak; negative if the sum exceeds the peak. */
static int64_t below_peak(const weir__accounts *tree, weir_stat_kind kind, size_t i) {
  return tree->peak[kind].at[i] - measured(&tree->device.published[kind], i) - measured(&tree->shares[kind], i);
}

/* Whether a sum exceeds its peak; with `raise`, the peak becomes the sum, and more for each of the `streams` that are
 * in an operation. */
static bool exceeds_peaks(weir__accounts *tree, bool raise, int streams) {
  bool exceeds = false;
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++)
    for (size_t i = 0; i < WEIR__COUNTS; i++)
      if (below_peak(tree, kind, i) < 0) {
        exceeds = true;
        if (raise)
          tree->peak[kind].at[i] -= below_peak(tree, kind, i) - (streams ? (streams + 1) * spare[i] : 0);
      }
  return exceeds;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Gives an arena a share of the headroom, which leaves some for other arenas. Allocated blocks also count as active, so
 * both peaks bound them. */
static void grant_share(weir__accounts *tree, weir__arena_account *arena) {
  weir__counts *left = &arena->left;
  for (size_t i = 0; i < WEIR__COUNTS; i++)
    left->at[i] = least(below_peak(tree, WEIR_STAT_ALL, i), below_peak(tree, arena->kind, i));
  left->of.allocations = least(left->of.allocations, left->of.waiting);
  left->of.allocated_bytes = least(left->of.allocated_bytes, left->of.waiting_bytes);
  left->of.waiting = left->of.waiting_bytes = left->of.oversize = 0; /* changes of these always publish */
  for (size_t i = 0; i < WEIR__COUNTS; i++)
    left->at[i] >>= 1 + tree->share_shift;
  arena->share = *left;
  sum(tree->shares, arena->kind, left, 1);
  if (arena->has_quota)
    return;
  arena->has_quota = true;
  arena->next = tree->with_quota;
  tree->with_quota = arena;
}

/* ---- Operations of an arena, whose lock is held ---- */

/* Freezes the counts until the tree's lock is held, so that its holder need not wait for the arena's lock. Returns
 * whether they were frozen. */
static bool lock_tree(weir__arena_account *arena) {
  bool was_frozen = atomic_load_explicit(&arena->is_frozen, memory_order_relaxed);
  atomic_store_explicit(&arena->is_frozen, true, memory_order_release);
  weir__lock_acquire(&arena->tree->lock);
  return was_frozen;
}

static void unlock_tree(weir__arena_account *arena, bool was_frozen) {
  atomic_store_explicit(&arena->is_frozen, was_frozen, memory_order_relaxed);
  weir__lock_release(&arena->tree->lock);
}

void weir__account_claim(weir__arena_account *arena) {
  weir__accounts *tree = arena->tree;
  bool was_frozen = lock_tree(arena);
  publish(arena);
  if (arena->has_quota)
    sum(tree->shares, arena->kind, &arena->share, -1);
  if (exceeds_peaks(tree, false, 0)) {
    int streams = revoke_quotas(tree, arena);
    tree->share_shift = exceeds_peaks(tree, true, streams) ? 0 : (int)least(tree->share_shift + 1, smallest_share);
  }
  tree->repeats = tree->claimant == arena ? tree->repeats + 1 : 0;
  tree->claimant = arena;
  if (tree->repeats >= growth_repeats && tree->share_shift > 0)
    tree->share_shift--;
  grant_share(tree, arena);
  unlock_tree(arena, was_frozen);
}

void weir__account_publish(weir__arena_account *arena) { weir__account_charge(arena, 0, 0); }

void weir__account_charge(weir__arena_account *arena, int64_t bytes, int segments) {
  bool was_frozen = lock_tree(arena);
  for (weir__account *account = &arena->account; account; account = account->parent) {
    weir__stat_add(&account->reserved[WEIR_STAT_ALL], bytes);
    weir__stat_add(&account->reserved[arena->kind], bytes);
    weir__stat_add(&account->segments[WEIR_STAT_ALL], segments);
    weir__stat_add(&account->segments[arena->kind], segments);
  }
  publish(arena);
  report_added(arena);
  unlock_tree(arena, was_frozen);
}

void weir__account_freeze(weir__arena_account *arena) {
  atomic_store_explicit(&arena->is_frozen, true, memory_order_release);
}

/* Takes the tree's lock because its holder may have seen the counts frozen and be reading them. */
void weir__account_unfreeze(weir__arena_account *arena) {
  lock_tree(arena);
  unlock_tree(arena, false);
}

void weir__account_count(weir__arena_account *arena, const weir__amounts *change) {
  const weir__counts *row = (const weir__counts *)change;
  bool is_frozen = atomic_load_explicit(&arena->is_frozen, memory_order_relaxed);
  if (is_frozen) { /* the counts stay frozen, and have no quota afterwards */
    lock_tree(arena);
    revoke_quotas(arena->tree, NULL);
  }
  for (size_t i = 0; i < WEIR__COUNTS; i++) {
    arena->left.at[i] -= row->at[i];
    arena->added.at[i] += row->at[i] > 0 ? row->at[i] : 0;
  }
  if (!is_frozen) {
    weir__account_claim(arena);
    return;
  }
  publish(arena);
  report_added(arena);
  exceeds_peaks(arena->tree, true, 0);
  unlock_tree(arena, true);
}

/* ---- Reading. No arena's lock is held ---- */

weir__glance weir__account_glance(weir__accounts *tree, const weir__account *account) {
  weir__glance seen;
  weir__lock_acquire(&tree->lock);
  memcpy(seen.reserved, account->reserved, sizeof seen.reserved);
  memcpy(seen.counted, account->published, sizeof seen.counted);
  seen.more = tree->shares[WEIR_STAT_ALL].of;
  seen.allocations = tree->allocations;
  weir__lock_release(&tree->lock);
  return seen;
}

void weir__account_publish_unbiased(weir__accounts *tree) {
  weir__lock_acquire(&tree->lock);
  for (weir__arena_account *arena = tree->with_quota; arena; arena = arena->next)
    if (weir__biased_try_unbiased(arena->lock)) {
      publish(arena);
      report_added(arena);
      weir__biased_release(arena->lock);
    }
  weir__lock_release(&tree->lock);
}

/* Adds what an arena has counted since it published, and since it reported what it added. Its owner changes both
 * meanwhile, with plain stores, which the fast path needs; each is a word, and is read whole. The thread sanitizer,
 * which knows no such reads, does not look here. */
__attribute__((noinline, no_sanitize("thread"))) static void add_ahead(const weir__arena_account *arena,
                                                                       weir__counts *ahead, weir__counts *added) {
  const volatile int64_t *left = arena->left.at, *more = arena->added.at;
  for (int i = 0; i < WEIR__COUNTS; i++) {
    ahead->at[i] += arena->share.at[i] - left[i];
    added->at[i] += more[i];
  }
}

static void add_amounts(weir__amounts *sum, const weir__amounts *more) {
  weir__counts *to = (weir__counts *)sum;
  for (int i = 0; i < WEIR__COUNTS; i++)
    to->at[i] += ((const weir__counts *)more)->at[i];
}

size_t weir__accounts_poll(weir__accounts *tree, weir__account_levels *levels, size_t room, weir__amounts *peak,
                           weir__amounts *added) {
  size_t count = 0;
  weir__lock_acquire(&tree->lock);
  weir__counts all = tree->added[WEIR_STAT_ALL];
  for (weir__account *account = &tree->device; account && count < room; account = account->next, count++)
    account->ahead = (weir__amounts){0};
  for (const weir__arena_account *arena = tree->with_quota; arena; arena = arena->next) {
    weir__counts ahead = {.at = {0}};
    add_ahead(arena, &ahead, &all);
    for (weir__account *account = arena->account.parent; account; account = account->parent)
      add_amounts(&account->ahead, &ahead.of);
  }
  const weir__account *account = &tree->device;
  for (size_t i = 0; i < count; i++, account = account->next) {
    levels[i] = (weir__account_levels){.id = account->id,
                                       .tag = account->tag,
                                       .reserved = account->reserved[WEIR_STAT_ALL],
                                       .segments = account->segments[WEIR_STAT_ALL],
                                       .counted = account->published[WEIR_STAT_ALL].of,
                                       .limit = {account->limit[0], account->limit[1]}};
    add_amounts(&levels[i].counted, &account->ahead);
    for (int k = 0; k < WEIR__LIMITS && account->parent && account->parent->is_tag; k++)
      if (account->parent->limit[k] < levels[i].limit[k])
        levels[i].limit[k] = account->parent->limit[k];
  }
  *peak = tree->peak[WEIR_STAT_ALL].of;
  *added = all.of;
  weir__lock_release(&tree->lock);
  return count;
}

/* `active` includes waiting blocks. Everything that became allocated also became active. */
static weir_stat stat_of(const weir__accounts *tree, int kind, size_t i, bool active) {
  size_t peak = !active ? i : i == PLACE(allocations) ? PLACE(waiting) : PLACE(waiting_bytes);
  const weir__counts *sums = &tree->device.published[kind];
  int64_t added = tree->added[kind].at[i];
  int64_t now = active ? measured(sums, peak) : sums->at[i];
  int64_t from = active ? measured(&tree->base[kind], peak) : tree->base[kind].at[i];
  return (weir_stat){now, tree->peak[kind].at[peak], added, added - (now - from)};
}

/* Acquires the tree's lock: everything that is published is exact while it is held. */
static void lock_exact(weir__accounts *tree) {
  weir__lock_acquire(&tree->lock);
  if (revoke_quotas(tree, NULL))
    exceeds_peaks(tree, true, 0); /* covers arenas that exceeded their quota and wait for the tree's lock */
}

void weir__accounts_read(weir__accounts *tree, weir_allocator_stats *stats) {
  lock_exact(tree);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    stats->reserved_bytes[kind] = tree->device.reserved[kind];
    stats->segment[kind] = tree->device.segments[kind];
    stats->allocation[kind] = stat_of(tree, kind, PLACE(allocations), false);
    stats->active[kind] = stat_of(tree, kind, PLACE(allocations), true);
    stats->inactive_split[kind] = stat_of(tree, kind, PLACE(splits), false);
    stats->allocated_bytes[kind] = stat_of(tree, kind, PLACE(allocated_bytes), false);
    stats->active_bytes[kind] = stat_of(tree, kind, PLACE(allocated_bytes), true);
    stats->requested_bytes[kind] = stat_of(tree, kind, PLACE(requested_bytes), false);
    stats->inactive_split_bytes[kind] = stat_of(tree, kind, PLACE(split_bytes), false);
  }
  stats->oversize_allocations = stat_of(tree, WEIR_STAT_ALL, PLACE(oversize), false);
  weir__lock_release(&tree->lock);
}

/* Changes the statistics of charges of the device and all pools. */
static void for_each_charge(weir__accounts *tree, void (*change)(weir_stat *)) {
  for (weir__account *account = &tree->device; account; account = account->next)
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
      change(&account->reserved[kind]);
      change(&account->segments[kind]);
    }
}

void weir__accounts_reset_peaks(weir__accounts *tree) {
  lock_exact(tree);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++)
    for (size_t i = 0; i < WEIR__COUNTS; i++)
      tree->peak[kind].at[i] = measured(&tree->device.published[kind], i);
  for_each_charge(tree, weir__stat_reset_peak);
  weir__lock_release(&tree->lock);
}

void weir__accounts_reset_added(weir__accounts *tree) {
  lock_exact(tree);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    tree->base[kind] = tree->device.published[kind];
    tree->added[kind] = (weir__counts){.at = {0}};
  }
  for_each_charge(tree, weir__stat_reset_accumulated);
  weir__lock_release(&tree->lock);
}

void weir__accounts_revoke(weir__accounts *tree) {
  lock_exact(tree);
  weir__lock_release(&tree->lock);
}

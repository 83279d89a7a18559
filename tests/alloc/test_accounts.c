/*
 * Accounts: the tree against a plain model, and limits at each of its levels.
 */
#include <stdio.h>
#include <string.h>

#include "alloc/memory/account.h"
#include "alloc/memory/stat.h"
#include "support/alloc.h"
#include "support/random.h"

FIXTURE(.teardown = alloc_teardown)

/* ---- The tree against a model that adds everything up each time ---- */

enum { POOLS = 4, ARENAS = 3, LEVELS = 3 }; /* arenas of each kind in each pool; pool 0 is the default one */

typedef struct numbers {
  int64_t now, peak, allocated, freed;
} numbers;

static void change(numbers *n, int64_t by) {
  n->now += by;
  n->peak = n->now > n->peak ? n->now : n->peak;
  *(by > 0 ? &n->allocated : &n->freed) += by > 0 ? by : -by;
}

typedef struct model_arena {
  weir__arena_account account;
  weir__biased_lock lock;
  weir__amounts counts;
  int64_t reserved;
} model_arena;

static struct {
  weir__accounts tree;
  weir__account *pools[POOLS];
  model_arena arenas[POOLS][2][ARENAS];
  numbers reserved[POOLS + 1][WEIR_STAT_KINDS], allocated[WEIR_STAT_KINDS], active[WEIR_STAT_KINDS],
      requested[WEIR_STAT_KINDS], blocks[WEIR_STAT_KINDS]; /* of reserved bytes, the last ones are the device's */
  uint64_t promised[POOLS + 1], limit[POOLS + 1];
  uint64_t random;
  uint64_t allocations; /* ever */
} m;

static uint64_t below(uint64_t n) { return next_random(&m.random) % n; }

static void model_open(uint64_t seed) {
  memset(&m, 0, sizeof m);
  m.random = seed;
  weir__accounts_begin(&m.tree);
  for (int p = 0; p < POOLS; p++) {
    m.pools[p] = p ? weir__account_open(&m.tree, (weir_pool_id){1, (uint64_t)p}, NULL) : &m.tree.default_pool;
    for (int i = 0; i < 2 * ARENAS; i++) {
      model_arena *a = &m.arenas[p][i % 2][i / 2];
      weir__account_begin_arena(&a->account, &m.tree, m.pools[p], i % 2 ? WEIR_STAT_LARGE_POOL : WEIR_STAT_SMALL_POOL,
                                &a->lock, (weir_cu_stream)(uintptr_t)(i + 1));
    }
  }
  for (int i = 0; i <= POOLS; i++)
    m.limit[i] = UINT64_MAX;
}

static void count_one(model_arena *a, weir_stat_kind kind) {
  weir__amounts change_of = {0};
  int64_t bytes = 512 * (int64_t)(1 + below(4000)), requested = bytes - (int64_t)below(512);
  weir__amounts *c = &a->counts;
  const weir__amounts before = *c;
  switch (c->allocations ? below(6) : 5) {
  case 0: /* a free that waits, and then completes: some bytes of all that is allocated */
    bytes = c->allocated_bytes / c->allocations / 2;
    change_of = (weir__amounts){.allocations = -1, .allocated_bytes = -bytes, .waiting = 1, .waiting_bytes = bytes};
    break;
  case 1:
    if (c->waiting)
      change_of = (weir__amounts){.waiting = -c->waiting, .waiting_bytes = -c->waiting_bytes};
    break;
  case 2:
  case 3:
    bytes = c->allocated_bytes / c->allocations / 2;
    requested = c->requested_bytes / c->allocations / 2;
    change_of = (weir__amounts){.allocations = -1, .allocated_bytes = -bytes, .requested_bytes = -requested};
    break;
  default:
    change_of = (weir__amounts){.allocations = 1, .allocated_bytes = bytes, .requested_bytes = requested};
  }
  weir__biased_acquire(&a->lock);
  bool frozen = below(8) == 0;
  if (frozen)
    weir__account_freeze(&a->account);
  if (frozen || change_of.waiting || change_of.allocations == 0)
    weir__account_count(&a->account, &change_of);
  else if (weir__account_count_plain(&a->account, (int)change_of.allocations, bytes, requested, 0, 0))
    weir__account_claim(&a->account);
  if (frozen)
    weir__account_unfreeze(&a->account);
  weir__biased_release(&a->lock);
  for (size_t i = 0; i < WEIR__COUNTS; i++)
    ((int64_t *)c)[i] += ((const int64_t *)&change_of)[i];
  m.allocations += change_of.allocations > 0;
  const weir_stat_kind kinds[] = {WEIR_STAT_ALL, kind};
  for (int i = 0; i < 2; i++) {
    change(&m.blocks[kinds[i]], c->allocations - before.allocations);
    change(&m.allocated[kinds[i]], c->allocated_bytes - before.allocated_bytes);
    change(&m.requested[kinds[i]], c->requested_bytes - before.requested_bytes);
    change(&m.active[kinds[i]], c->allocated_bytes + c->waiting_bytes - before.allocated_bytes - before.waiting_bytes);
  }
}

static void charge_one(int pool, model_arena *a, weir_stat_kind kind) {
  int64_t bytes = (int64_t)(1 + below(64)) * 2 * (int64_t)MIB;
  if (below(3) == 0)
    bytes = -a->reserved / 2;
  weir__biased_acquire(&a->lock);
  weir__account_charge(&a->account, bytes, bytes > 0 ? 1 : -1);
  weir__biased_release(&a->lock);
  a->reserved += bytes;
  for (int i = 0; i < 2; i++) {
    change(&m.reserved[i ? pool : POOLS][WEIR_STAT_ALL], bytes);
    change(&m.reserved[i ? pool : POOLS][kind], bytes);
  }
}

/* The headroom of a pool by the model, and the index of the account that bounds it; POOLS + 1 if there is no limit. */
static uint64_t headroom_of(int pool, int *by) {
  const int path[] = {pool, POOLS};
  uint64_t least = UINT64_MAX;
  *by = POOLS + 1;
  for (int i = 0; i < 2; i++) {
    uint64_t taken = (uint64_t)m.reserved[path[i]][0].now + m.promised[path[i]], limit = m.limit[path[i]],
             left = limit > taken ? limit - taken : 0;
    if (limit != UINT64_MAX && left < least) {
      least = left;
      *by = path[i];
    }
  }
  return least;
}

static void change_limits(int pool) {
  int which = below(2) ? pool : POOLS, by;
  weir__account *account = which == POOLS ? &m.tree.device : m.pools[which];
  m.limit[which] = below(4) ? below(40 * GIB) : UINT64_MAX;
  account->limit[WEIR__LIMIT_HARD] = m.limit[which];
  uint64_t promise = below(3) ? 0 : below(GIB);
  weir__account *arena = &m.arenas[pool][0][0].account.account;
  weir__account_promise(arena, (int64_t)promise);
  m.promised[pool] += promise;
  m.promised[POOLS] += promise;
  const weir__account *found;
  uint64_t expected = headroom_of(pool, &by);
  assert_int_equal(weir__account_headroom(arena, WEIR__LIMIT_HARD, &found), expected);
  assert_ptr_equal(found, by > POOLS ? NULL : by == POOLS ? &m.tree.device : m.pools[by]);
  if (below(2)) {
    weir__account_promise(arena, -(int64_t)promise);
    m.promised[pool] -= promise;
    m.promised[POOLS] -= promise;
  }
}

static void assert_stat(const weir_stat *stat, const numbers *n) {
  assert_int_equal(stat->current, n->now);
  assert_int_equal(stat->peak, n->peak);
  assert_int_equal(stat->allocated, n->allocated);
  assert_int_equal(stat->freed, n->freed);
}

/* What a glance says is at most what was allocated, but for what was freed since; and no less than the bound below. */
static void compare_glance(void) {
  for (int p = 0; p <= POOLS; p++) {
    const weir__glance of = weir__account_glance(&m.tree, p == POOLS ? &m.tree.device : m.pools[p]);
    int64_t bytes = 0, blocks = 0;
    for (int q = 0; q < POOLS; q++)
      for (int i = 0; i < 2 * ARENAS && (q == p || p == POOLS); i++) {
        bytes += m.arenas[q][i % 2][i / 2].counts.allocated_bytes;
        blocks += m.arenas[q][i % 2][i / 2].counts.allocations;
      }
    assert_true(bytes <= of.counted[WEIR_STAT_ALL].of.allocated_bytes + of.more.allocated_bytes);
    assert_true(blocks <= of.counted[WEIR_STAT_ALL].of.allocations + of.more.allocations);
    assert_stat(&of.reserved[WEIR_STAT_ALL], &m.reserved[p][WEIR_STAT_ALL]);
  }
  const weir__glance all = weir__account_glance(&m.tree, &m.tree.device);
  assert_true(all.counted[0].of.allocated_bytes + all.more.allocated_bytes <= m.tree.peak[0].of.allocated_bytes);
}

static void compare_exact(void) {
  weir_allocator_stats stats = {.size = sizeof stats};
  weir__accounts_read(&m.tree, &stats);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    assert_stat(&stats.allocation[kind], &m.blocks[kind]);
    assert_stat(&stats.allocated_bytes[kind], &m.allocated[kind]);
    assert_stat(&stats.requested_bytes[kind], &m.requested[kind]);
    assert_int_equal(stats.active_bytes[kind].current, m.active[kind].now);
    assert_int_equal(stats.active_bytes[kind].peak, m.active[kind].peak);
    for (int p = 0; p <= POOLS; p++)
      assert_stat(&(p == POOLS ? &m.tree.device : m.pools[p])->reserved[kind], &m.reserved[p][kind]);
  }
  assert_int_equal(weir__account_glance(&m.tree, &m.tree.device).allocations, m.allocations);
  /* An exact reading publishes everything, so each account below the device's is exact too. */
  for (int p = 0; p < POOLS; p++) {
    const weir__glance of = weir__account_glance(&m.tree, m.pools[p]);
    weir__counts sum = {.at = {0}};
    for (int k = 0; k < 2 * ARENAS; k++)
      for (size_t i = 0; i < WEIR__COUNTS; i++)
        sum.at[i] += ((const int64_t *)&m.arenas[p][k % 2][k / 2].counts)[i];
    assert_memory_equal(&of.counted[WEIR_STAT_ALL], &sum, sizeof sum);
    assert_int_equal(of.more.allocated_bytes, 0);
  }
}

static void reset(bool peaks) {
  numbers *const all[] = {m.allocated, m.active, m.requested, m.blocks};
  if (peaks)
    weir__accounts_reset_peaks(&m.tree);
  else
    weir__accounts_reset_added(&m.tree);
  for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
    for (int i = 0; i < 4 + POOLS + 1; i++) {
      numbers *n = i < 4 ? &all[i][kind] : &m.reserved[i - 4][kind];
      if (peaks)
        n->peak = n->now;
      else
        n->allocated = n->freed = 0;
    }
  }
}

TEST(tree_against_a_model) {
  for (uint64_t seed = 1; seed <= 20; seed++) {
    model_open(seed);
    for (int i = 0; i < 4000; i++) {
      int pool = (int)below(POOLS), kind = (int)below(2);
      model_arena *a = &m.arenas[pool][kind][below(ARENAS)];
      weir_stat_kind of = kind ? WEIR_STAT_LARGE_POOL : WEIR_STAT_SMALL_POOL;
      uint64_t what = below(100);
      if (what < 85)
        count_one(a, of);
      else if (what < 93)
        charge_one(pool, a, of);
      else if (what < 97)
        change_limits(pool);
      else if (what < 99)
        compare_glance();
      else if (below(4))
        compare_exact();
      else
        reset(below(2));
    }
    compare_exact();
    weir__accounts_end(&m.tree);
  }
}

/* ---- Accounts of pools ---- */

static size_t known(void) {
  size_t count = 0;
  for (const weir__account *a = m.tree.default_pool.next; a; a = a->next)
    count++;
  return count;
}

/* Pools come and go. The accounts of the last ones with memory stay, and continue if the pool comes back. */
TEST(accounts_outlive_pools) {
  model_open(7);
  static model_arena arenas[3 * WEIR__GONE_POOLS];
  memset(arenas, 0, sizeof arenas);
  for (uint64_t i = 0; i < WEIR_COUNT_OF(arenas); i++) {
    weir__account *account = weir__account_open(&m.tree, (weir_pool_id){2, i}, NULL);
    assert_non_null(account);
    if (i % 3) {
      weir__account_begin_arena(&arenas[i].account, &m.tree, account, WEIR_STAT_LARGE_POOL, &arenas[i].lock, NULL);
      weir__account_charge(&arenas[i].account, 512, 1);
      weir__account_charge(&arenas[i].account, -512, -1);
    }
    weir__account_close(&m.tree, account);
    assert_int_equal(weir__account_find(&m.tree, (weir_pool_id){2, i}) != NULL, i % 3 != 0); /* it had memory */
  }
  assert_int_equal(known(), POOLS - 1 + WEIR__GONE_POOLS);
  const weir_pool_id back = {2, WEIR_COUNT_OF(arenas) - 1};
  weir__account *account = weir__account_find(&m.tree, back);
  assert_ptr_equal(weir__account_open(&m.tree, back, NULL), account);
  assert_int_equal(account->reserved[WEIR_STAT_ALL].allocated, 512);
  for (uint64_t i = 0; i < WEIR__GONE_POOLS; i++) { /* the one that is open is not pushed out */
    weir__account *other = weir__account_open(&m.tree, (weir_pool_id){3, i}, NULL);
    weir__stat_add(&other->reserved[WEIR_STAT_ALL], 1);
    weir__account_close(&m.tree, other);
  }
  assert_ptr_equal(weir__account_find(&m.tree, back), account);
  assert_int_equal(known(), POOLS - 1 + 1 + WEIR__GONE_POOLS);
  weir__accounts_end(&m.tree);
}

/* ---- Limits of an allocator, at each level ---- */

static const weir_pool_id pool_id = {1, 2};

static weir__account *account_of(const void *pointer) { return &segment_at(pointer)->arena->account.account; }

static void refuse(size_t bytes, const char *words) {
  void *p = NULL;
  assert_error_says(OUT_OF_MEMORY, words, weir_allocator_alloc(allocator, 0, bytes, NULL, &p));
  assert_null(p);
  assert_valid();
}

/* 20 MiB may be taken for 2 MiB: each level refuses it, and the error names the account. */
static void check_level(int level, const char *conf, size_t step, const char *words) {
  alloc_open(conf, GIB);
  assert_ok(weir_pool_begin(allocator, 0, pool_id, NULL, NULL));
  void *first = get(2 * MIB, NULL);
  weir__account *account = account_of(first);
  for (int i = 0; i < level; i++)
    account = account->parent;
  account->limit[WEIR__LIMIT_HARD] = 2 * step;
  void *second = get(step - MIB, NULL), *third = NULL;
  if (step == 20 * MIB)
    refuse(step, words);
  else
    refuse(2 * step, words);
  put(second);
  third = get(step - MIB, NULL); /* from the cache */
  account->limit[WEIR__LIMIT_HARD] = UINT64_MAX;
  void *fourth = get(step, NULL);
  put(first);
  put(third);
  put(fourth);
  assert_ok(weir_pool_end(allocator, 0, pool_id));
  assert_ok(weir_pool_release(allocator, 0, pool_id));
  alloc_close();
}

TEST(hard_limits_of_each_level) {
  for (int level = 0; level < LEVELS; level++)
    check_level(level, NULL, 20 * MIB,
                level < 2 ? "The limit of pool {1, 2} is 40.00 MiB, of which 40.00 MiB is taken."
                          : "40.00 MiB allowed; ");
  for (int level = 0; level < LEVELS; level++)
    check_level(level, "expandable_segments:True", 40 * MIB,
                level < 2 ? "The limit of pool {1, 2} is 80.00 MiB, of which " : "80.00 MiB allowed; ");
  for (int level = 0; level < LEVELS; level++)
    check_level(level, "expandable_segments:True,moving_pages:True", 40 * MIB,
                level < 2 ? "The limit of pool {1, 2} is 80.00 MiB, of which " : "80.00 MiB allowed; ");
}

/* A pool that meets its limit releases what it caches itself, and nothing of others. */
TEST(a_refused_pool_releases_its_own_cache) {
  alloc_open(NULL, GIB);
  put(get(100 * MIB, NULL)); /* cached by the default pool */
  assert_ok(weir_pool_begin(allocator, 0, pool_id, NULL, NULL));
  void *held = get(20 * MIB, NULL);
  put(get(30 * MIB, NULL));
  account_of(held)->parent->limit[WEIR__LIMIT_HARD] = 60 * MIB;
  void *p = get(40 * MIB, NULL);
  assert_int_equal(reserved(), 160 * MIB);
  refuse(2 * MIB, "The limit of pool {1, 2} is 60.00 MiB, of which 60.00 MiB is taken.");
  assert_int_equal(reserved(), 160 * MIB);
  put(p);
  put(held);
  assert_ok(weir_pool_end(allocator, 0, pool_id));
  assert_ok(weir_pool_release(allocator, 0, pool_id));
  alloc_close();
}

/* A soft limit refuses nothing, but nothing stays cached above it. */
TEST(soft_limits) {
  for (int level = 1; level < LEVELS; level++) {
    alloc_open(NULL, GIB);
    put(get(100 * MIB, NULL));
    assert_ok(weir_pool_begin(allocator, 0, pool_id, NULL, NULL));
    void *held = get(20 * MIB, NULL);
    weir__account *account = level == 1 ? account_of(held)->parent : account_of(held)->parent->parent;
    put(get(30 * MIB, NULL));
    assert_int_equal(reserved(), 150 * MIB);
    account->limit[WEIR__LIMIT_SOFT] = level == 1 ? 60 * MIB : 160 * MIB;
    void *p = get(40 * MIB, NULL); /* the cache of the pool goes, or that of the device: a pool in use keeps its own */
    assert_int_equal(reserved(), level == 1 ? 160 * MIB : 90 * MIB);
    void *q = get(200 * MIB, NULL);
    assert_int_equal(reserved(), level == 1 ? 360 * MIB : 290 * MIB);
    put(p);
    put(q);
    put(held);
    assert_ok(weir_pool_end(allocator, 0, pool_id));
    assert_ok(weir_pool_release(allocator, 0, pool_id));
    alloc_close();
  }
}

/* ---- Failing calls of the driver ---- */

static void read_charges(const weir__account *account, int64_t *charges) {
  for (int i = 0; i < LEVELS; i++, account = account->parent) {
    charges[i] = account->reserved[WEIR_STAT_ALL].current;
    assert_int_equal(account->promised, 0);
  }
}

/* Fails the nth call of the driver by a request. Returns false if there are not so many. */
static bool fail_call(const char *conf, unsigned long nth, weir_cu_result result) {
  int64_t before[LEVELS], after[LEVELS];
  unsigned long made, failed;
  void *p = NULL;
  alloc_open(conf, GIB);
  assert_ok(weir_pool_begin(allocator, 0, pool_id, NULL, NULL));
  void *held = get(3 * MIB, NULL);
  const weir__account *account = account_of(held);
  read_charges(account, before);
  assert_ok(weir_fault_nth_any(faults, nth, result));
  weir_status status = try_get(60 * MIB, NULL, &p);
  assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, &made, &failed));
  assert_ok(weir_fault_clear(faults));
  read_charges(account, after);
  for (int i = 0; i < LEVELS; i++)
    assert_int_equal(after[i] - before[i], status ? 0 : after[0] - before[0]);
  assert_true(status || after[0] - before[0] >= 40 * (int64_t)MIB);
  assert_valid();
  if (p)
    put(p);
  put(held);
  assert_ok(weir_pool_end(allocator, 0, pool_id));
  assert_ok(weir_pool_release(allocator, 0, pool_id));
  empty_cache();
  assert_int_equal(reserved(), 0);
  alloc_close();
  return failed > 0;
}

/* A request that fails leaves every charge as it was; one that succeeds charges each level the same. */
TEST(failing_calls_leave_charges_unchanged) {
  static const char *const confs[] = {NULL, "release_lock_on_cudamalloc:True", "expandable_segments:True",
                                      "expandable_segments:True,moving_pages:True"};
  static const weir_cu_result results[] = {WEIR_CU_OUT_OF_MEMORY, WEIR_CU_UNKNOWN};
  for (size_t i = 0; i < WEIR_COUNT_OF(confs); i++)
    for (size_t k = 0; k < WEIR_COUNT_OF(results); k++) {
      unsigned long nth = 1;
      while (fail_call(confs[i], nth, results[k]))
        nth++;
      assert_true(nth > 2);
    }
}

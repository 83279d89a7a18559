/*
 * Each driver call of a move fails once, in each place. A move is a transaction: it happens, or it did not. Afterwards
 * the allocator is valid, its books agree with the device, the data of live blocks is intact, the next request is
 * served, and at the end nothing is leaked.
 */
#include "alloc/moving_data.h"
#include "support/length.h"
#include "support/valid.h"

typedef struct scenario {
  const char *conf;
  int devices;
  void (*prepare)(void); /* without faults; may be NULL */
  void (*act)(void);     /* a driver call fails here */
} scenario;

static weir_cu_stream mine, other;

/* ---- The sweep ---- */

static struct {
  weir_driver_call call, then;
  unsigned long nth, second;
} under_way; /* printed when a test fails */

static int say_what(void **state) {
  if (allocator && under_way.nth)
    print_error("call %lu of %s failed, and call %lu of %s\n", under_way.nth, weir_driver_call_name(under_way.call),
                under_way.second, weir_driver_call_name(under_way.then));
  under_way.nth = 0;
  return alloc_teardown(state);
}

FIXTURE(.teardown = say_what)

static void open(const scenario *s) {
  alloc_open_on(WEIR_SOFT_STEPPED, s->devices ? s->devices : 1, 2 * GIB, s->conf);
  data_count = last_pattern = 0;
  mine = work_stream();
  other = work_stream();
  if (s->prepare)
    s->prepare();
}

/* After a second failure a page may be mapped where the allocator could not unmap it. It is released with the segment,
 * so that only the walker is used until then. */
static void close_checked(bool may_be_stuck) {
  assert_ok(weir_fault_clear(faults));
  assert_true(weir__allocator_is_valid(allocator));
  if (!may_be_stuck)
    assert_valid();
  check_data();
  weir_cu_stream streams[] = {mine, other};
  for (int i = 0; i < 2; i++) {
    static const size_t sizes[] = {512, 3 * MIB, 75 * MIB, 130 * MIB};
    for (size_t k = 0; k < WEIR_COUNT_OF(sizes); k++) {
      int before = data_count;
      void *p = take(sizes[k], streams[i]);
      assert_int_equal(data_count, before + 1);
      check_data();
      give(p);
    }
    assert_true(weir__allocator_is_valid(allocator));
  }
  while (data_count)
    give(data[data_count - 1].memory);
  soft_step_all();
  assert_ok(weir_allocator_empty_cache(allocator));
  assert_true(weir__allocator_is_valid(allocator));
  for (int i = 0; i < allocator->heap_count; i++)
    assert_int_equal(stats_of(i).reserved_bytes[WEIR_STAT_ALL].current, 0);
  if (!may_be_stuck) {
    assert_int_equal(soft_census().handles, 0);
    assert_int_equal(soft_census().mappings, 0);
    assert_int_equal(soft_census().reservations, 0);
  }
  weir_allocator_destroy(allocator);
  allocator = NULL;
  alloc_close(); /* checks for leaks */
}

static void count_calls(const scenario *s, unsigned long count[WEIR_CALL_COUNT]) {
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    count[c] = calls(c);
  s->act();
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    count[c] = calls(c) - count[c];
}

static void fail_call(weir_driver_call call, unsigned long nth, weir_cu_result result) {
  under_way.call = call;
  under_way.nth = nth;
  assert_ok(weir_fault_nth(faults, call, nth, result, 0));
}

/* Calls that undo others. */
static const weir_driver_call second_calls[] = {WEIR_CALL_MemUnmap, WEIR_CALL_MemRelease, WEIR_CALL_MemAddressFree};

static void sweep(const scenario *s) {
  static const weir_cu_result results[] = {WEIR_CU_OUT_OF_MEMORY, WEIR_CU_UNKNOWN};
  unsigned long count[WEIR_CALL_COUNT], then[WEIR_CALL_COUNT], total = 0, pairs = 0;
  open(s);
  count_calls(s, count);
  close_checked(false);
  for (int c = 0; c < WEIR_CALL_COUNT; c++)
    for (unsigned long nth = 1; nth <= count[c]; nth++)
      for (size_t r = 0; r < WEIR_COUNT_OF(results); r++) {
        if (usual_or_long((nth + r) % 2 != 0, 0)) /* each call fails with one of the results */
          continue;
        total++;
        open(s);
        fail_call(c, nth, results[r]);
        count_calls(s, then);
        close_checked(false);
        if (usual_or_long(nth % 8 != 2, r != 0))
          continue;
        /* And each call that undoes what came before the failure. */
        for (size_t k = 0; k < WEIR_COUNT_OF(second_calls); k++)
          for (unsigned long second = 1; second <= then[second_calls[k]] && (int)second_calls[k] != c;
               second += (unsigned long)usual_or_long(8, 1), pairs++) {
            open(s);
            under_way.then = second_calls[k];
            under_way.second = second;
            assert_ok(weir_fault_nth(faults, second_calls[k], second, WEIR_CU_UNKNOWN, 0));
            fail_call(c, nth, results[r]);
            s->act();
            close_checked(true);
          }
        under_way.second = 0;
      }
  under_way.nth = 0;
  assert_true(total > 0);
}

/* ---- Scenarios ---- */

static void *kept[6];

static void make_data_holes(void) {
  void *a = take(24 * MIB, mine);
  kept[0] = take(2 * MIB, mine);
  void *b = take(24 * MIB, mine);
  kept[1] = take(2 * MIB, mine);
  give(a);
  give(b);
}

static void move_once(void) { take(40 * MIB, mine); }

TEST(a_move) { sweep(&(scenario){.conf = "moving_pages:True", .prepare = make_data_holes, .act = move_once}); }

/* Some pages move, others are made. */
static void move_and_make(void) { take(60 * MIB, mine); }

TEST(a_move_with_new_pages) {
  sweep(&(scenario){.conf = "moving_pages:True", .prepare = make_data_holes, .act = move_and_make});
}

static void first_request(void) {
  take(20 * MIB, mine);
  take(MIB, other);
}

TEST(first_requests) { sweep(&(scenario){.conf = "moving_pages:True", .act = first_request}); }

/* The aliases of the move retire, and are unmapped. */
static void retire(void) {
  void *p = take(40 * MIB, mine);
  soft_step_all();
  void *q = take(64 * MIB, mine);
  soft_step_all();
  give(p);
  give(q);
  take(90 * MIB, mine);
}

TEST(retiring) {
  sweep(&(scenario){.conf = "moving_pages:True,moving_pages_max_aliases:0", .prepare = make_data_holes, .act = retire});
}

/* A hole of another stream, which is busy or idle. */
static void take_from_another(void) {
  void *p = take(40 * MIB, other);
  give(p);
  soft_step_all();
  take(46 * MIB, other);
}

TEST(another_stream) {
  sweep(&(scenario){.conf = "moving_pages:True", .prepare = make_data_holes, .act = take_from_another});
  sweep(&(scenario){.conf = "moving_pages:True,moving_pages_across_streams:True",
                    .prepare = make_data_holes,
                    .act = take_from_another});
  sweep(&(scenario){.conf = "moving_pages:True,moving_pages_completed_only:True",
                    .prepare = make_data_holes,
                    .act = take_from_another});
}

static void make_aliases(void) {
  make_data_holes();
  give(take(44 * MIB, mine));
  give(take(20 * MIB, other));
}

static void empty_and_move(void) {
  weir_status status = weir_allocator_empty_cache(allocator);
  (void)status;
  take(10 * MIB, mine);
  take(50 * MIB, other);
}

TEST(emptying_with_aliases) {
  sweep(&(scenario){.conf = "moving_pages:True", .prepare = make_aliases, .act = empty_and_move});
}

static void limited_holes(void) {
  assert_ok(weir_allocator_set_limit(allocator, 0, 1500 * MIB));
  make_data_holes();
  take(1400 * MIB, mine);
}

/* The limit is reached, so that everything is tried. */
static void run_short(void) {
  void *p = take(60 * MIB, mine);
  void *q = take(70 * MIB, other);
  give(p);
  give(q);
  take(46 * MIB, mine);
}

static void free_large(void) {
  for (int i = 0; i < data_count; i++)
    if (data[i].bytes > 1000 * MIB) {
      give(data[i].memory);
      break;
    }
}

static void run_short_and_recover(void) {
  run_short();
  free_large();
}

TEST(running_short) {
  sweep(&(scenario){.conf = "moving_pages:True", .prepare = limited_holes, .act = run_short_and_recover});
}

static void share_with_peer(void) {
  weir_status status = weir_allocator_enable_peer_access(allocator, 0, 1);
  (void)status;
  soft_step_all();
  take(40 * MIB, mine);
}

TEST(peers) {
  sweep(&(scenario){.conf = "moving_pages:True", .devices = 2, .prepare = make_aliases, .act = share_with_peer});
}

/* A private pool takes pages of the default pool. */
static void use_pool(void) {
  const weir_pool_id id = {0, 5};
  if (weir_pool_begin(allocator, 0, id, NULL, NULL))
    return;
  soft_step_all();
  void *p = take(30 * MIB, mine);
  void *q = take(30 * MIB, other);
  assert_ok(weir_pool_end(allocator, 0, id));
  give(p);
  give(q);
  assert_ok(weir_pool_release(allocator, 0, id));
}

TEST(pools) { sweep(&(scenario){.conf = "moving_pages:True", .prepare = make_data_holes, .act = use_pool}); }

/* ---- Random faults ---- */

TEST(random_faults) {
  static const char *const confs[] = {"moving_pages:True", "moving_pages:True,moving_pages_max_aliases:4",
                                      "moving_pages:True,moving_pages_across_streams:True"};
  int rounds = repetitions(2, 100);
  for (uint64_t seed = soft_first_seed(&rounds), last = seed + (uint64_t)rounds; seed < last; seed++) {
    soft_seed(seed);
    open(&(scenario){.conf = confs[seed % WEIR_COUNT_OF(confs)]});
    assert_ok(weir_allocator_set_limit(allocator, 0, 200 * MIB));
    assert_ok(weir_fault_random(faults, seed, 20000, seed % 2 ? WEIR_CU_OUT_OF_MEMORY : WEIR_CU_UNKNOWN));
    for (int i = 0; i < 600; i++) {
      if (data_count > 12 || (data_count && soft_random(3) == 0))
        give(data[soft_random((uint64_t)data_count)].memory);
      else
        take((1 + soft_random(soft_random(4) ? 12 : 40)) * MIB, soft_random(3) ? mine : other);
      if (i % 50 == 49)
        check_data();
      else
        soft_step(soft_random(2) ? mine : other, soft_random(4));
      if (i % 10 == 0)
        assert_true(weir__allocator_is_valid(allocator));
      if (i % 97 == 96)
        weir_allocator_empty_cache(allocator);
    }
    assert_ok(weir_fault_clear(faults));
    assert_ok(weir_allocator_set_limit(allocator, 0, 2 * GIB));
    close_checked(true);
  }
}

/*
 * A fault table with many threads: no call is counted twice or lost, and a rule hits exactly as often as it should.
 */
#include <pthread.h>

#include "driver/echo_driver.h"
#include "support/check.h"

enum { THREADS = 8, CALLS = 20000, CODE = 999 };

typedef struct crew {
  echo_driver echo;
  weir_driver *d;
  atomic_ulong failed, strange;
  atomic_bool stop;
} crew;

static void judge(crew *c, weir_cu_result result, int call) {
  if (result == CODE)
    atomic_fetch_add(&c->failed, 1);
  else if (result != ECHO_OF(call))
    atomic_fetch_add(&c->strange, 1);
}

static void *call_away(void *data) {
  crew *c = data;
  weir_cu_deviceptr p;
  for (int i = 0; i < CALLS; i++) {
    judge(c, c->d->MemAlloc(c->d, &p, 1), WEIR_CALL_MemAlloc);
    judge(c, c->d->EventQuery(c->d, NULL), WEIR_CALL_EventQuery);
    judge(c, c->d->MemFree(c->d, 0), WEIR_CALL_MemFree);
  }
  return NULL;
}

static void start(crew *c) {
  echo_init(&c->echo);
  assert_ok(weir_driver_open_fault(&c->echo.table, &c->d));
  c->failed = c->strange = 0;
  c->stop = false;
}

static void run(crew *c) {
  pthread_t threads[THREADS];
  for (int t = 0; t < THREADS; t++)
    assert_int_equal(pthread_create(&threads[t], NULL, call_away, c), 0);
  for (int t = 0; t < THREADS; t++)
    pthread_join(threads[t], NULL);
}

/* Every call was counted once, and was either forwarded or failed. */
static void check_counts(crew *c) {
  static const weir_driver_call kinds[] = {WEIR_CALL_MemAlloc, WEIR_CALL_EventQuery, WEIR_CALL_MemFree};
  unsigned long all_faults = 0, calls = 0, faults = 0;
  for (int i = 0; i < 3; i++) {
    assert_ok(weir_fault_counts(c->d, kinds[i], &calls, &faults));
    assert_int_equal(calls, THREADS * CALLS);
    assert_int_equal(c->echo.calls[kinds[i]], calls - faults);
    all_faults += faults;
  }
  assert_int_equal(c->failed, all_faults);
  assert_int_equal(c->strange, 0);
}

TEST(an_nth_rule_hits_once) {
  crew c;
  start(&c);
  assert_ok(weir_fault_nth(c.d, WEIR_CALL_EventQuery, THREADS * CALLS / 2, CODE, 0));
  assert_ok(weir_fault_nth_any(c.d, THREADS * CALLS / 3, CODE));
  run(&c);
  check_counts(&c);
  assert_int_equal(c.failed, 2);
  weir_driver_close(c.d);
}

TEST(random_hits_as_often_for_the_same_seed) {
  unsigned long failed[2];
  for (int i = 0; i < 2; i++) {
    crew c;
    start(&c);
    assert_ok(weir_fault_random(c.d, 7, 100000, CODE));
    run(&c);
    check_counts(&c);
    failed[i] = c.failed;
    weir_driver_close(c.d);
  }
  assert_int_equal(failed[0], failed[1]); /* the threads that are hit may differ, their number does not */
  assert_in_range(failed[0], THREADS * CALLS / 11, THREADS * CALLS / 9);
}

TEST(sticky_reaches_all_threads) {
  crew c;
  start(&c);
  assert_ok(weir_fault_nth(c.d, WEIR_CALL_MemAlloc, 1000, CODE, 1));
  run(&c);
  check_counts(&c);
  /* 999 allocations succeeded, and after them at most one other call per thread. */
  assert_int_equal(c.echo.calls[WEIR_CALL_MemAlloc], 999);
  assert_in_range(c.echo.calls[WEIR_CALL_EventQuery], 999 - THREADS, 999);
  assert_in_range(c.echo.calls[WEIR_CALL_MemFree], 999 - 2 * THREADS, 999);
  weir_driver_close(c.d);
}

static void *change_rules(void *data) {
  crew *c = data;
  unsigned long calls, faults, before = 0;
  for (uint64_t i = 0; !c->stop; i++) {
    bool done = weir_fault_nth(c->d, WEIR_CALL_MemAlloc, 3, CODE, 0) == WEIR_OK &&
                weir_fault_nth_any(c->d, 5, CODE) == WEIR_OK && weir_fault_random(c->d, i, 10000, CODE) == WEIR_OK &&
                weir_fault_counts(c->d, WEIR_CALL_COUNT, &calls, &faults) == WEIR_OK &&
                (i % 2 == 0 || weir_fault_clear(c->d) == WEIR_OK);
    if (!done || calls < before || faults > calls)
      atomic_fetch_add(&c->strange, 1);
    before = calls;
  }
  return NULL;
}

TEST(rules_change_while_calls_are_made) {
  crew c;
  pthread_t changer;
  start(&c);
  assert_int_equal(pthread_create(&changer, NULL, change_rules, &c), 0);
  run(&c);
  c.stop = true;
  pthread_join(changer, NULL);
  check_counts(&c);
  weir_driver_close(c.d);
}

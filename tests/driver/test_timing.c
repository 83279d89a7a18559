/*
 * The table that counts and times calls.
 */
#include <pthread.h>

#include "base/base.h"
#include "base/clock.h"
#include "driver/echo_driver.h"
#include "driver/every_call.h"
#include "support/ledger.h"
#include "weir/alloc.h"
#include "weir/soft.h"

static uint64_t calls_of(weir_driver *d, int call) {
  uint64_t calls = 0;
  assert_ok(weir_timing_counts(d, (weir_driver_call)call, &calls, NULL, NULL));
  return calls;
}

TEST(every_call_is_passed_on_and_counted) {
  echo_driver echo;
  weir_driver *d;
  weir_cu_result results[WEIR_CALL_COUNT];
  echo_init(&echo);
  assert_ok(weir_driver_open_timing(&echo.table, &d));
  assert_string_equal(d->name, echo.table.name);
  assert_int_equal(d->size, sizeof *d);
  every_call(d, results);
  every_call(d, results);
  for (int call = 0; call < WEIR_CALL_COUNT; call++) {
    assert_int_equal(results[call], ECHO_OF(call));
    assert_int_equal(echo.calls[call], 2);
    assert_int_equal(calls_of(d, call), 2);
  }
  assert_int_equal(calls_of(d, WEIR_CALL_COUNT), 2 * WEIR_CALL_COUNT);
  weir_driver_close(d);
}

TEST(absent_entries_stay_absent) {
  weir_driver *inner = open_ledger(1, 1 << 30), *d;
  assert_ok(weir_driver_open_timing(inner, &d));
#define WEIR_DRIVER_ENTRY(name, symbol, since, need, params, args)                                                     \
  assert_int_equal(d->name == NULL, inner->name == NULL);
#define WEIR_DRIVER_ENTRY0(name, symbol, since, need) assert_int_equal(d->name == NULL, inner->name == NULL);
#include "weir/driver_entries.h"
  assert_int_equal(d->capabilities, inner->capabilities);
  weir_driver_close(d);
  assert_cu(inner->CtxSynchronize(inner)); /* still belongs to the caller */
  weir_driver_close(inner);
}

enum { SLEEP_NS = 3 * 1000 * 1000 };

static weir_cu_result slow_query(weir_driver *self, weir_cu_stream stream) {
  (void)self;
  if (stream)
    weir__sleep_until_ns(weir__monotonic_ns() + SLEEP_NS);
  return WEIR_CU_SUCCESS;
}

TEST(times) {
  echo_driver echo;
  weir_driver *d;
  uint64_t calls = 0, ns = 0, longest = 0, all_ns = 0, all_longest = 0;
  echo_init(&echo);
  echo.table.StreamQuery = slow_query;
  assert_ok(weir_driver_open_timing(&echo.table, &d));
  uint64_t begin = weir__monotonic_ns();
  assert_cu(d->StreamQuery(d, NULL));
  assert_cu(d->StreamQuery(d, (weir_cu_stream)&echo));
  assert_cu(d->StreamQuery(d, (weir_cu_stream)&echo));
  uint64_t whole = weir__monotonic_ns() - begin;
  assert_ok(weir_timing_counts(d, WEIR_CALL_StreamQuery, &calls, &ns, &longest));
  assert_int_equal(calls, 3);
  assert_in_range(ns, 2ull * SLEEP_NS, whole);
  assert_in_range(longest, SLEEP_NS, ns - SLEEP_NS);
  assert_int_equal(d->EventQuery(d, NULL), ECHO_OF(WEIR_CALL_EventQuery));
  assert_ok(weir_timing_counts(d, WEIR_CALL_COUNT, &calls, &all_ns, &all_longest));
  assert_int_equal(calls, 4);
  assert_true(all_ns >= ns);
  assert_true(all_longest >= longest);
  weir_driver_close(d);
}

enum { THREADS = 4, CALLS = 10000 };

static void *call_away(void *data) {
  weir_driver *d = data;
  for (int i = 0; i < CALLS; i++)
    d->EventQuery(d, NULL);
  return NULL;
}

TEST(threads) {
  echo_driver echo;
  weir_driver *d;
  pthread_t threads[THREADS];
  echo_init(&echo);
  assert_ok(weir_driver_open_timing(&echo.table, &d));
  for (int t = 0; t < THREADS; t++)
    assert_int_equal(pthread_create(&threads[t], NULL, call_away, d), 0);
  for (int t = 0; t < THREADS; t++)
    pthread_join(threads[t], NULL);
  assert_int_equal(calls_of(d, WEIR_CALL_EventQuery), THREADS * CALLS);
  weir_driver_close(d);
}

/* An allocator works on the table as on the wrapped one: the calls agree with its statistics. */
TEST(under_an_allocator) {
  enum { BLOCKS = 16, MIB = 1 << 20 };
  weir_driver *soft, *d;
  weir_allocator *allocator;
  weir_allocator_options options;
  weir_allocator_stats stats;
  void *blocks[BLOCKS], *large;
  assert_ok(weir_driver_open_soft(NULL, &soft));
  assert_ok(weir_driver_open_timing(soft, &d));
  assert_cu(d->Init(d, 0));
  weir_allocator_options_init(&options);
  options.conf = "moving_pages:True";
  assert_ok(weir_allocator_create(d, &options, &allocator));
  for (int i = 0; i < BLOCKS; i++)
    assert_ok(weir_allocator_alloc(allocator, 0, 32 * MIB, NULL, &blocks[i]));
  for (int i = 0; i < BLOCKS; i += 2)
    assert_ok(weir_allocator_free(allocator, blocks[i]));
  uint64_t made = calls_of(d, WEIR_CALL_MemCreate);
  assert_ok(weir_allocator_alloc(allocator, 0, BLOCKS / 2 * 32ull * MIB, NULL, &large));
  weir_allocator_stats_init(&stats);
  assert_ok(weir_allocator_get_stats(allocator, 0, &stats));
  assert_true(stats.moving_pages_moved > 0);
  assert_int_equal(calls_of(d, WEIR_CALL_MemCreate), stats.moving_pages_made);
  assert_int_equal(calls_of(d, WEIR_CALL_MemCreate), made); /* the holes sufficed */
  assert_int_equal(calls_of(d, WEIR_CALL_MemMap), stats.moving_pages_made + stats.moving_pages_moved);
  assert_int_equal(calls_of(d, WEIR_CALL_CtxSynchronize) + calls_of(d, WEIR_CALL_StreamSynchronize) +
                       calls_of(d, WEIR_CALL_EventSynchronize),
                   0);
  weir_allocator_destroy(allocator);
  assert_int_equal(calls_of(d, WEIR_CALL_MemRelease), calls_of(d, WEIR_CALL_MemCreate));
  weir_driver_close(d);
  weir_driver_close(soft);
}

/*
 * Time: counted to the nanosecond in stepped time, else measured.
 */
#include <string.h>

#include "support/soft.h"

enum { MIB = 1 << 20 };

/* The cost of every copy, fill, kernel and host function in stepped time, besides its bytes or cycles. */
enum { LAUNCH_NS = 1000 };

static void open_stepped(int clock_khz, unsigned long long copy_speed) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  options.devices = 2;
  options.bytes = 64 * MIB;
  options.clock_khz = clock_khz;
  options.copy_bytes_per_second = copy_speed;
  soft_open_with(&options);
}

static weir_cu_event record(weir_cu_stream stream) {
  weir_cu_event event = soft_event();
  assert_cu(d->EventRecord(d, event, stream));
  return event;
}

static void check_elapsed(weir_cu_event start, weir_cu_event end, int64_t nanoseconds) {
  float milliseconds;
  assert_cu(d->EventElapsedTime(d, &milliseconds, start, end));
  float expected = (float)((double)nanoseconds / 1e6);
  if (milliseconds != expected)
    fail_msg("%.9g ms, not %.9g", (double)milliseconds, (double)expected);
}

static void nothing(void *data) { (void)data; }

/* ---- Costs ---- */

FIXTURE(.teardown = soft_teardown)

TEST(a_spin_takes_its_cycles) {
  open_stepped(1000, 0); /* a cycle is a microsecond */
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_int_equal(soft_now(), 0);
  weir_cu_event a = record(s);
  soft_spin(s, 5000);
  weir_cu_event b = record(s);
  soft_spin(s, 0);
  weir_cu_event c = record(s);
  assert_int_equal(soft_now(), 0);
  assert_cu(d->StreamSynchronize(d, s));
  check_elapsed(a, b, 5000000 + LAUNCH_NS);
  check_elapsed(b, c, LAUNCH_NS);
  check_elapsed(a, c, 5000000 + 2 * LAUNCH_NS);
  check_elapsed(c, a, -(5000000 + 2 * LAUNCH_NS));
  check_elapsed(a, a, 0);
  assert_int_equal(soft_now(), 5000000 + 2 * LAUNCH_NS);
  soft_close();

  open_stepped(2000000, 0); /* two cycles per nanosecond */
  s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  soft_spin(s, 5000);
  assert_int_equal(soft_step(s, 1), 1);
  assert_int_equal(soft_now(), 2500 + LAUNCH_NS);
  soft_close();
}

TEST(copies_and_fills_have_a_speed) {
  static const struct {
    unsigned long long speed;
    uint64_t ns_of_a_million;
  } cases[] = {{0, 10000}, {1000000000, 1000000}, {1000000, 1000000000}, {250000000000, 4000}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    open_stepped(1000000, cases[i].speed);
    weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
    weir_cu_deviceptr p = soft_alloc(2000000);
    assert_cu(d->MemsetD8Async(d, p, 1, 1000000, s));
    assert_cu(d->MemsetD32Async(d, p, 1, 250000, s));
    assert_cu(d->MemcpyAsync(d, p + 1000000, p, 1000000, s));
    for (uint64_t pieces = 1; pieces <= 3; pieces++) {
      assert_int_equal(soft_step(s, 1), 1);
      assert_int_equal(soft_now(), pieces * (cases[i].ns_of_a_million + LAUNCH_NS));
    }
    assert_cu(d->MemFree(d, p));
    soft_close();
  }
}

TEST(operations_without_cost) {
  open_stepped(1000000, 0);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), other = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p;
  assert_cu(d->StreamWaitEvent(d, s, record(other), 0));
  assert_cu(d->MemAllocAsync(d, &p, 1000, s));
  assert_cu(d->MemFreeAsync(d, p, s));
  record(s);
  assert_int_equal(soft_step_all(), 4);
  assert_int_equal(soft_now(), 0);
  assert_cu(d->LaunchHostFunc(d, s, nothing, NULL));
  assert_int_equal(soft_step_all(), 1);
  assert_int_equal(soft_now(), LAUNCH_NS);
  soft_close();
}

/* A spin longer than the clock can count ends too. */
TEST(endless_spin) {
  open_stepped(1, 1);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event a = record(s), b;
  soft_spin(s, UINT64_MAX);
  soft_spin(s, UINT64_MAX);
  b = record(s);
  assert_cu(d->StreamSynchronize(d, s));
  float milliseconds;
  assert_cu(d->EventElapsedTime(d, &milliseconds, a, b));
  assert_true(milliseconds > 1e12f);
  soft_close();
}

/* ---- Concurrent streams ---- */

TEST(streams_overlap_in_counted_time) {
  open_stepped(1000000, 0);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event start = record(a);
  soft_spin(a, 3000000);
  weir_cu_event a_end = record(a);
  soft_spin(b, 2000000);
  weir_cu_event b_end = record(b);
  /* Whichever is stepped first, both began when they were enqueued. */
  assert_int_equal(soft_step(a, 100), 3);
  assert_int_equal(soft_now(), 3000000 + LAUNCH_NS);
  assert_int_equal(soft_step(b, 100), 2);
  assert_int_equal(soft_now(), 3000000 + LAUNCH_NS);
  check_elapsed(start, a_end, 3000000 + LAUNCH_NS);
  check_elapsed(start, b_end, 2000000 + LAUNCH_NS);

  /* New work begins now, even on a stream that was idle before. */
  soft_spin(b, 500);
  weir_cu_event later = record(b);
  soft_step_all();
  check_elapsed(start, later, 3000000 + LAUNCH_NS + 500 + LAUNCH_NS);
  soft_close();
}

TEST(a_wait_carries_time_over) {
  open_stepped(1000000, 0);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event start = record(a);
  soft_spin(a, 1000000);
  weir_cu_event middle = record(a);
  soft_spin(a, 7000000);
  soft_spin(b, 10);
  assert_cu(d->StreamWaitEvent(d, b, middle, 0));
  soft_spin(b, 2000000);
  weir_cu_event end = record(b);
  assert_cu(d->EventSynchronize(d, end));
  check_elapsed(start, end, 1000000 + LAUNCH_NS + 2000000 + LAUNCH_NS);
  assert_int_equal(soft_pending(a), 1);
  /* A wait for completed work costs nothing. */
  soft_spin(b, 9000000);
  assert_cu(d->StreamWaitEvent(d, b, middle, 0));
  weir_cu_event last = record(b);
  assert_cu(d->EventSynchronize(d, last));
  check_elapsed(end, last, 9000000 + LAUNCH_NS);
  soft_close();
}

/* All devices share the clock. */
TEST(devices_share_the_clock) {
  open_stepped(1000000, 0);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  soft_spin(a, 1000000);
  weir_cu_event at_a = record(a);
  soft_use(1);
  weir_cu_stream b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event start = record(b);
  assert_cu(d->StreamWaitEvent(d, b, at_a, 0));
  weir_cu_event end = record(b);
  assert_cu(d->StreamSynchronize(d, b));
  check_elapsed(start, end, 1000000 + LAUNCH_NS);
  assert_int_equal(soft_now(), 1000000 + LAUNCH_NS);
  soft_close();
}

/* The nodes of a graph run in sequence, so their times add up. */
TEST(a_graph_takes_the_sum) {
  open_stepped(1000000, 0);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), other = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event fork = soft_event(), join = soft_event();
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->StreamBeginCapture(d, s, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->EventRecord(d, fork, s));
  assert_cu(d->StreamWaitEvent(d, other, fork, 0));
  soft_spin(s, 100);
  soft_spin(other, 200);
  assert_cu(d->EventRecord(d, join, other));
  assert_cu(d->StreamWaitEvent(d, s, join, 0));
  assert_cu(d->StreamEndCapture(d, s, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  weir_cu_event start = record(s);
  assert_cu(d->GraphLaunch(d, exec, s));
  weir_cu_event end = record(s);
  assert_cu(d->StreamSynchronize(d, s));
  check_elapsed(start, end, 300 + 2 * LAUNCH_NS);
  soft_close();
}

/* ---- The same program, the same order, the same times ---- */

enum { STREAMS = 4, EVENTS = 40, ROUNDS = 200 };

static struct log {
  unsigned count;
  int ran[ROUNDS];
  float times[EVENTS];
  uint64_t now;
} * current_log;

static int numbers[ROUNDS];

static void log_it(void *number) { current_log->ran[current_log->count++] = *(int *)number; }

/* Enqueues random work, then steps it in an order given by `order`. */
static void run_program(uint64_t seed, uint64_t order, struct log *log) {
  weir_cu_stream s[STREAMS];
  weir_cu_event events[EVENTS];
  memset(log, 0, sizeof *log);
  current_log = log;
  open_stepped(1000000, 1000000000);
  soft_seed(seed);
  weir_cu_deviceptr p = soft_alloc(100000);
  for (int i = 0; i < STREAMS; i++)
    s[i] = soft_stream(i % 2 ? WEIR_CU_STREAM_NON_BLOCKING : WEIR_CU_STREAM_DEFAULT);
  for (int i = 0; i < EVENTS; i++)
    events[i] = soft_event();
  for (int i = 0; i < ROUNDS; i++) {
    weir_cu_stream at = soft_random(8) ? s[soft_random(STREAMS)] : NULL;
    numbers[i] = i;
    switch (soft_random(5)) {
    case 0:
      soft_spin(at, soft_random(100000));
      break;
    case 1:
      assert_cu(d->MemsetD8Async(d, p, 1, 1 + soft_random(100000), at));
      break;
    case 2:
      assert_cu(d->EventRecord(d, events[soft_random(EVENTS)], at));
      break;
    case 3:
      assert_cu(d->StreamWaitEvent(d, at, events[soft_random(EVENTS)], 0));
      break;
    default:
      assert_cu(d->LaunchHostFunc(d, at, log_it, &numbers[i]));
    }
  }
  for (int i = 1; i < EVENTS; i++)
    assert_cu(d->EventRecord(d, events[i], s[i % STREAMS]));
  assert_cu(d->EventRecord(d, events[0], NULL));

  soft_seed(order);
  unsigned long left = 1;
  while (left) {
    soft_step(s[soft_random(STREAMS)], soft_random(4));
    soft_step(NULL, soft_random(4));
    left = soft_pending(NULL);
    for (int i = 0; i < STREAMS; i++)
      left += soft_pending(s[i]);
  }
  for (int i = 0; i < EVENTS; i++)
    assert_cu(d->EventElapsedTime(d, &log->times[i], events[0], events[i]));
  log->now = soft_now();
  assert_cu(d->MemFree(d, p));
  soft_close();
}

TEST(the_same_program_twice) {
  static struct log first, second, other;
  int rounds = 20;
  for (uint64_t seed = soft_first_seed(&rounds), i = 0; i < (uint64_t)rounds; i++, seed++) {
    run_program(seed, seed, &first);
    run_program(seed, seed, &second);
    assert_memory_equal(&first, &second, sizeof first);
    /* In another order streams progress differently, but everything happens at the same time. */
    run_program(seed, seed + 1000, &other);
    assert_int_equal(other.count, first.count);
    assert_memory_equal(other.times, first.times, sizeof first.times);
    assert_int_equal(other.now, first.now);
  }
}

/* ---- Real time ---- */

TEST(measured_time) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.copy_bytes_per_second = 100000000;
  soft_open_with(&options);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p = soft_alloc(2000000);
  uint64_t before = soft_now();
  weir_cu_event a = record(s);
  soft_spin(s, 20000000); /* 20 ms at a GHz */
  weir_cu_event b = record(s);
  assert_cu(d->MemcpyAsync(d, p + 1000000, p, 1000000, s)); /* 10 ms */
  assert_cu(d->MemsetD8Async(d, p, 1, 1000000, s));         /* 10 ms */
  weir_cu_event c = record(s);
  assert_cu(d->StreamSynchronize(d, s));
  /* Never less than requested; how much more depends on the machine. */
  float spin_ms, copy_ms, all_ms;
  assert_cu(d->EventElapsedTime(d, &spin_ms, a, b));
  assert_cu(d->EventElapsedTime(d, &copy_ms, b, c));
  assert_cu(d->EventElapsedTime(d, &all_ms, a, c));
  assert_true(spin_ms >= 19.99f);
  assert_true(copy_ms >= 19.99f);
  assert_true(all_ms >= 39.99f);
  assert_true(soft_now() - before >= 40000000);
  assert_cu(d->MemFree(d, p));
  soft_close();
}

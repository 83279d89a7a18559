/*
 * Real time: streams run concurrently, each in order, urgent ones first; busy objects can be destroyed. No test here
 * measures time.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "driver/soft/soft.h"
#include "support/soft.h"

enum { MIB = 1 << 20, FOR_EVER = 1000000000 }; /* cycles: 1000 s at a MHz */

static unsigned char byte_at(weir_cu_deviceptr pointer) { return *(volatile unsigned char *)(uintptr_t)pointer; }

/* A barrier for `expected` threads. */
static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int here, expected;
  bool timed_out;
} meeting = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void meet(void *data) {
  (void)data;
  struct timespec end;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 60;
  pthread_mutex_lock(&meeting.lock);
  meeting.here++;
  pthread_cond_broadcast(&meeting.changed);
  while (meeting.here < meeting.expected && !meeting.timed_out)
    if (pthread_cond_timedwait(&meeting.changed, &meeting.lock, &end))
      meeting.timed_out = true;
  pthread_mutex_unlock(&meeting.lock);
}

static void call_meeting(int expected) {
  pthread_mutex_lock(&meeting.lock);
  meeting.here = 0;
  meeting.expected = expected;
  meeting.timed_out = false;
  pthread_mutex_unlock(&meeting.lock);
}

static int count_meeting(void) {
  pthread_mutex_lock(&meeting.lock);
  int here = meeting.here;
  pthread_mutex_unlock(&meeting.lock);
  return here;
}

/* ---- Concurrency ---- */

FIXTURE(.teardown = soft_teardown)

TEST(two_hundred_streams_at_once) {
  enum { COUNT = 200 };
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s[COUNT];
  for (int i = 0; i < COUNT; i++)
    s[i] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  for (int round = 0; round < 2; round++) {
    call_meeting(COUNT);
    for (int i = 0; i < COUNT; i++)
      assert_cu(d->LaunchHostFunc(d, s[i], meet, NULL));
    assert_cu(d->CtxSynchronize(d));
    assert_int_equal(count_meeting(), COUNT);
    assert_false(meeting.timed_out);
  }
  for (int i = 0; i < COUNT; i++)
    assert_cu(d->StreamDestroy(d, s[i]));
  soft_close();
}

/* Streams of one device do not delay those of another, nor does a long spin delay a short one. */
TEST(long_spin_delays_no_other_stream) {
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.devices = 2;
  options.clock_khz = 1000;
  soft_open_with(&options);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  soft_spin(a, FOR_EVER);
  soft_spin(b, 1000);
  assert_cu(d->StreamSynchronize(d, b));
  soft_use(1);
  soft_spin(NULL, 1000);
  assert_cu(d->CtxSynchronize(d));
  assert_cu_error(NOT_READY, d->StreamQuery(d, a));
  assert_int_equal(soft_pending(a), 1);
  /* A release would wait for the spin. */
  weir_driver_close(d);
  d = NULL;
}

/* ---- Order ---- */

struct turn {
  atomic_int *next; /* of the stream */
  int number;
  atomic_int *wrong;
};

static void take_turn(void *data) {
  struct turn *turn = data;
  if (atomic_fetch_add(turn->next, 1) != turn->number)
    atomic_fetch_add(turn->wrong, 1);
}

TEST(every_stream_keeps_its_order) {
  enum { STREAMS = 60, PIECES = 20 };
  static struct turn turns[STREAMS][PIECES];
  static atomic_int next[STREAMS], wrong;
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s[STREAMS];
  for (int i = 0; i < STREAMS; i++)
    assert_cu(d->StreamCreateWithPriority(d, &s[i], WEIR_CU_STREAM_NON_BLOCKING, -(i % 6)));
  for (int k = 0; k < PIECES; k++)
    for (int i = 0; i < STREAMS; i++) {
      turns[i][k] = (struct turn){&next[i], k, &wrong};
      assert_cu(d->LaunchHostFunc(d, s[i], take_turn, &turns[i][k]));
    }
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(wrong, 0);
  for (int i = 0; i < STREAMS; i++) {
    assert_int_equal(next[i], PIECES);
    assert_cu(d->StreamQuery(d, s[i]));
    assert_cu(d->StreamDestroy(d, s[i]));
  }
  soft_close();
}

/* A chain through all streams: each adds one to the result of the one before. */
TEST(waits_order_streams) {
  enum { STREAMS = 20, ROUNDS = 10 };
  static struct turn turns[ROUNDS][STREAMS];
  static atomic_int next, wrong;
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s[STREAMS];
  weir_cu_event e[STREAMS];
  for (int i = 0; i < STREAMS; i++) {
    s[i] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
    e[i] = soft_event();
  }
  for (int r = 0; r < ROUNDS; r++)
    for (int i = 0; i < STREAMS; i++) {
      turns[r][i] = (struct turn){&next, r * STREAMS + i, &wrong};
      assert_cu(d->StreamWaitEvent(d, s[i], e[(i + STREAMS - 1) % STREAMS], 0));
      assert_cu(d->LaunchHostFunc(d, s[i], take_turn, &turns[r][i]));
      assert_cu(d->EventRecord(d, e[i], s[i]));
    }
  assert_cu(d->EventSynchronize(d, e[STREAMS - 1]));
  assert_int_equal(wrong, 0);
  assert_int_equal(next, ROUNDS * STREAMS);
  soft_close();
}

/* ---- Priorities ---- */

static void add_letter(void *data) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static char letters[16];
  const char *letter = data;
  pthread_mutex_lock(&lock);
  if (*letter == '?') /* polls */
    strcpy((char *)data + 1, letters);
  else
    strncat(letters, letter, 1);
  pthread_mutex_unlock(&lock);
}

/* With all workers busy, the next free one runs the most urgent stream, first come first served among equals. */
TEST(urgent_streams_go_first) {
  enum { WORKERS = 256 };
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream busy[WORKERS], low, low2, high, middle;
  for (int i = 0; i < WORKERS; i++)
    busy[i] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->StreamCreateWithPriority(d, &low, WEIR_CU_STREAM_NON_BLOCKING, 0));
  assert_cu(d->StreamCreateWithPriority(d, &low2, WEIR_CU_STREAM_NON_BLOCKING, 0));
  assert_cu(d->StreamCreateWithPriority(d, &middle, WEIR_CU_STREAM_NON_BLOCKING, -1));
  assert_cu(d->StreamCreateWithPriority(d, &high, WEIR_CU_STREAM_NON_BLOCKING, -5));
  struct gate *gate = gate_close(busy[0]);
  call_meeting(WORKERS); /* with the thread of the test: no worker is left, and one is at the gate */
  for (int i = 1; i < WORKERS; i++)
    assert_cu(d->LaunchHostFunc(d, busy[i], meet, NULL));
  while (count_meeting() < WORKERS - 1)
    nanosleep(&(struct timespec){0, 1000000}, NULL);
  assert_cu(d->LaunchHostFunc(d, low, add_letter, (void *)(uintptr_t) "l"));
  assert_cu(d->LaunchHostFunc(d, middle, add_letter, (void *)(uintptr_t) "m"));
  assert_cu(d->LaunchHostFunc(d, low2, add_letter, (void *)(uintptr_t) "L"));
  assert_cu(d->LaunchHostFunc(d, high, add_letter, (void *)(uintptr_t) "h"));
  gate_open(gate); /* the one free worker runs them all */
  assert_cu(d->StreamSynchronize(d, low2));
  char letters[17] = "?";
  add_letter(letters);
  assert_string_equal(letters + 1, "hmlL");
  meet(NULL);
  assert_cu(d->CtxSynchronize(d));
  soft_close();
}

/* ---- Destroyed while busy ---- */

TEST(work_of_destroyed_streams_completes) {
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = soft_alloc(300);
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->StreamBeginCapture(d, b, WEIR_CU_CAPTURE_RELAXED));
  assert_cu(d->MemsetD8Async(d, p + 200, 3, 100, b));
  assert_cu(d->StreamEndCapture(d, b, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));

  struct gate *gate = gate_close(a);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, a));
  assert_cu(d->EventRecord(d, e, a));
  assert_cu(d->StreamWaitEvent(d, b, e, 0));
  assert_cu(d->MemcpyAsync(d, p + 100, p, 100, b));
  assert_cu(d->GraphLaunch(d, exec, b));
  assert_cu(d->StreamDestroy(d, a));
  assert_cu(d->EventDestroy(d, e));
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->GraphExecDestroy(d, exec));
  assert_cu(d->StreamDestroy(d, b));
  weir_soft_census census = soft_census();
  assert_int_equal(census.streams, 0);
  assert_int_equal(census.events, 0);
  assert_int_equal(census.graphs, 0);
  assert_int_equal(census.graph_execs, 0);
  assert_cu_error(INVALID_HANDLE, d->StreamQuery(d, a));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, e));
  assert_int_equal(byte_at(p + 100), 0);
  gate_open(gate);
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(byte_at(p), 1);
  assert_int_equal(byte_at(p + 199), 1);
  assert_int_equal(byte_at(p + 299), 3);
  assert_cu(d->MemFree(d, p));
  soft_close();
}

/* A call that waits for a stream keeps it alive while another thread destroys it. */
static void *synchronize(void *stream) {
  weir_cu_result r = d->CtxSetCurrent(d, ctx);
  if (!r)
    r = d->StreamSynchronize(d, stream);
  return (void *)(intptr_t)r;
}

TEST(a_stream_that_is_waited_for_can_be_destroyed) {
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  for (int i = 0; i < 50; i++) {
    weir_cu_stream s = soft_stream(i % 2 ? WEIR_CU_STREAM_NON_BLOCKING : WEIR_CU_STREAM_DEFAULT);
    pthread_t threads[3];
    struct gate *gate = gate_close(s);
    for (int k = 0; k < 3; k++)
      assert_int_equal(pthread_create(&threads[k], NULL, synchronize, s), 0);
    assert_cu(d->StreamDestroy(d, s));
    gate_open(gate);
    for (int k = 0; k < 3; k++) {
      void *result;
      pthread_join(threads[k], &result);
      /* Late threads find no stream. */
      assert_true((intptr_t)result == WEIR_CU_SUCCESS || (intptr_t)result == WEIR_CU_INVALID_HANDLE);
    }
  }
  soft_close();
}

/* ---- Threads of the program ---- */

static void *use_own_stream(void *data) {
  weir_cu_deviceptr *p = data;
  weir_cu_result r = d->CtxSetCurrent(d, ctx);
  for (int i = 0; i < 10 && !r; i++)
    r = d->MemsetD8Async(d, *p, (unsigned char)i, 100, WEIR_CU_STREAM_PER_THREAD);
  return (void *)(intptr_t)r;
}

/* Per-thread streams are destroyed with the threads, and their work completes. */
TEST(threads_come_and_go) {
  enum { THREADS = 20 };
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_deviceptr p[THREADS];
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    p[i] = soft_alloc(100);
    assert_int_equal(pthread_create(&threads[i], NULL, use_own_stream, &p[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(threads[i], &result);
    assert_int_equal((intptr_t)result, WEIR_CU_SUCCESS);
  }
  assert_cu(d->CtxSynchronize(d));
  for (int i = 0; i < THREADS; i++) {
    assert_int_equal(byte_at(p[i] + 99), 9);
    assert_cu(d->MemFree(d, p[i]));
  }
  int left = 0;
  for (const struct soft_stream *s = ((struct soft *)d)->devices[0].streams; s; s = s->next)
    left++;
  assert_int_equal(left, 1); /* the legacy stream */
  soft_close();
}

static void *release_and_retain(void *data) {
  (void)data;
  for (int i = 0; i < 100; i++) {
    weir_cu_context context;
    weir_cu_deviceptr p;
    weir_cu_result r = d->DevicePrimaryCtxRetain(d, &context, 0);
    /* While this thread retains it, the context exists, whatever other threads do. */
    if (!r)
      r = d->CtxSetCurrent(d, context);
    if (!r)
      r = d->MemAlloc(d, &p, 100);
    if (!r)
      r = d->MemsetD8Async(d, p, 1, 100, i % 2 ? NULL : WEIR_CU_STREAM_PER_THREAD);
    if (!r && i % 3)
      r = d->MemFree(d, p); /* otherwise it is destroyed with the context */
    if (!r)
      r = d->DevicePrimaryCtxRelease(d, 0);
    if (r)
      return (void *)(intptr_t)r;
  }
  return NULL;
}

TEST(the_context_comes_and_goes) {
  enum { THREADS = 6 };
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  assert_cu(d->DevicePrimaryCtxRelease(d, 0)); /* only those threads retain it */
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, release_and_retain, NULL), 0);
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(threads[i], &result);
    assert_int_equal((intptr_t)result, WEIR_CU_SUCCESS);
  }
  soft_check_nothing();
  weir_driver_close(d);
  d = NULL;
}

/*
 * The stepped clock: nothing runs until the test steps, and then exactly what it asked for.
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "support/soft.h"

enum { MIB = 1 << 20 };

/* A trace of the work, one letter each. */
static char trace[256];

static void reset_trace(void) { memset(trace, 0, sizeof trace); }

static void note(void *letter) {
  size_t length = strlen(trace);
  assert_true(length + 1 < sizeof trace);
  trace[length] = *(const char *)letter;
}

static void do_note(weir_cu_stream stream, const char *letter) {
  assert_cu(d->LaunchHostFunc(d, stream, note, (void *)(uintptr_t)letter));
}

static unsigned char byte_at(weir_cu_deviceptr pointer) { return *(volatile unsigned char *)(uintptr_t)pointer; }

/* ---- One stream ---- */

FIXTURE(.teardown = soft_teardown)

TEST(nothing_runs_by_itself) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = soft_alloc(100);
  assert_int_equal(soft_pending(s), 0);
  assert_cu(d->MemsetD8Async(d, p, 7, 100, s));
  assert_cu(d->EventRecord(d, e, s));
  assert_int_equal(soft_pending(s), 2);
  assert_cu_error(NOT_READY, d->StreamQuery(d, s));
  assert_cu_error(NOT_READY, d->EventQuery(d, e));
  assert_int_equal(byte_at(p + 99), 0);

  assert_int_equal(soft_step(s, 0), 0);
  assert_int_equal(byte_at(p + 99), 0);
  assert_int_equal(soft_step(s, 1), 1);
  assert_int_equal(byte_at(p + 99), 7);
  assert_int_equal(soft_pending(s), 1);
  assert_cu_error(NOT_READY, d->EventQuery(d, e));
  assert_cu_error(NOT_READY, d->StreamQuery(d, s));

  assert_int_equal(soft_step(s, 1), 1);
  assert_cu(d->EventQuery(d, e));
  assert_cu(d->StreamQuery(d, s));
  assert_int_equal(soft_pending(s), 0);
  assert_int_equal(soft_step(s, 100), 0);

  assert_cu(d->MemFree(d, p));
  assert_cu(d->EventDestroy(d, e));
  assert_cu(d->StreamDestroy(d, s));
  soft_close();
}

TEST(each_kind_of_work_is_one_item) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), other = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = soft_alloc(4096), q;
  assert_cu(d->MemsetD8Async(d, p, 1, 10, s));
  assert_int_equal(soft_pending(s), 1);
  assert_cu(d->MemsetD32Async(d, p, 1, 10, s));
  assert_int_equal(soft_pending(s), 2);
  assert_cu(d->MemcpyAsync(d, p + 100, p, 10, s));
  assert_int_equal(soft_pending(s), 3);
  soft_spin(s, 10);
  assert_int_equal(soft_pending(s), 4);
  do_note(s, "x");
  assert_int_equal(soft_pending(s), 5);
  assert_cu(d->EventRecord(d, e, s));
  assert_int_equal(soft_pending(s), 6);
  assert_cu(d->StreamWaitEvent(d, other, e, 0));
  assert_int_equal(soft_pending(other), 1);
  assert_cu(d->MemAllocAsync(d, &q, 100, s)); /* memory is available at once */
  assert_int_equal(soft_pending(s), 6);
  assert_cu(d->MemFreeAsync(d, q, s));
  assert_int_equal(soft_pending(s), 7);
  /* Empty operations are not work items. */
  assert_cu(d->MemsetD8Async(d, p, 1, 0, s));
  assert_cu(d->MemcpyAsync(d, p, p, 0, s));
  assert_cu(d->StreamWaitEvent(d, s, soft_event(), 0));
  assert_int_equal(soft_pending(s), 7);
  assert_int_equal(soft_step(s, 100), 7);
  assert_int_equal(soft_step(other, 100), 1);
  assert_cu(d->StreamWaitEvent(d, other, e, 0)); /* its record is complete */
  assert_int_equal(soft_pending(other), 0);
  assert_cu(d->MemFree(d, p));
  soft_close();
}

/* ---- Waits ---- */

TEST(a_wait_stops_its_stream) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  weir_cu_deviceptr p = soft_alloc(2);
  assert_cu(d->MemsetD8Async(d, p, 1, 2, a));
  assert_cu(d->EventRecord(d, e, a));
  assert_cu(d->StreamWaitEvent(d, b, e, 0));
  assert_cu(d->MemsetD8Async(d, p, 2, 1, b));

  assert_int_equal(soft_step(b, 10), 0);
  assert_int_equal(soft_pending(b), 2);
  assert_int_equal(soft_step(a, 1), 1);
  assert_int_equal(soft_step(b, 10), 0);
  assert_int_equal(byte_at(p), 1);
  assert_int_equal(soft_step(a, 1), 1);
  assert_int_equal(soft_step(b, 1), 1); /* the wait itself */
  assert_int_equal(byte_at(p), 1);
  assert_int_equal(soft_step(b, 1), 1);
  assert_int_equal(byte_at(p), 2);
  assert_int_equal(byte_at(p + 1), 1);
  assert_cu(d->MemFree(d, p));
  soft_close();
}

/* A wait is for the latest record at the time of the call. */
TEST(a_wait_is_for_one_record) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event();
  assert_cu(d->EventRecord(d, e, a));
  assert_cu(d->StreamWaitEvent(d, b, e, 0));
  soft_spin(a, 10);
  assert_cu(d->EventRecord(d, e, a));
  assert_int_equal(soft_step(a, 1), 1);
  assert_int_equal(soft_step(b, 10), 1);
  assert_cu_error(NOT_READY, d->EventQuery(d, e)); /* the event stands for its second record */
  assert_cu(d->StreamWaitEvent(d, b, e, 0));
  assert_int_equal(soft_step(b, 10), 0);
  assert_cu(d->EventDestroy(d, e)); /* and the wait does not need it */
  assert_int_equal(soft_step(b, 10), 0);
  assert_int_equal(soft_step(a, 10), 2);
  assert_int_equal(soft_step(b, 10), 1);
  soft_close();
}

TEST(free_is_ordered_in_its_stream) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event made = soft_event(), used = soft_event();
  weir_cu_deviceptr p, q;
  assert_cu(d->MemAllocAsync(d, &p, 2 * MIB, a));
  assert_cu(d->EventRecord(d, made, a));
  assert_cu(d->StreamWaitEvent(d, b, made, 0));
  assert_cu(d->MemsetD8Async(d, p, 5, 2 * MIB, b));
  assert_cu(d->EventRecord(d, used, b));
  assert_cu(d->StreamWaitEvent(d, a, used, 0));
  assert_cu(d->MemFreeAsync(d, p, a));

  /* `a` has not reached the free: another stream gets other memory, `a` itself the same. */
  assert_cu(d->MemAllocAsync(d, &q, 2 * MIB, b));
  assert_true(q != p);
  assert_cu(d->MemFreeAsync(d, q, b));
  assert_cu(d->MemAllocAsync(d, &q, 2 * MIB, a));
  assert_true(q == p);
  assert_cu(d->MemFreeAsync(d, q, a));
  assert_int_equal(byte_at(p), 0);

  assert_int_equal(soft_step(a, 100), 1); /* up to the wait for `b` */
  assert_int_equal(soft_step(b, 100), 4);
  assert_int_equal(byte_at(p), 5);
  assert_int_equal(soft_step(a, 100), 3);
  assert_cu(d->MemAllocAsync(d, &q, 2 * MIB, soft_stream(WEIR_CU_STREAM_NON_BLOCKING)));
  assert_int_equal(soft_census().allocations, 2); /* free for all streams now: no third one was created */
  assert_cu(d->MemFree(d, q));
  soft_close();
}

/* ---- All streams ---- */

TEST(step_all_goes_in_order) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_cu_stream s[4];
  soft_use(1);
  s[3] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  soft_use(0);
  for (int i = 0; i < 3; i++)
    s[i] = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  static const char *const letters[] = {"aA", "bB", "cC", "dD"};
  for (int i = 3; i >= 0; i--) {
    do_note(s[i], letters[i]);
    do_note(s[i], letters[i] + 1);
  }
  assert_int_equal(soft_step_all(), 8);
  assert_string_equal(trace, "aAbBcCdD");
  assert_int_equal(soft_step_all(), 0);
  assert_ok(weir_soft_step_all(d, NULL));

  /* A stream that waited continues as soon as it can, before later streams. */
  reset_trace();
  weir_cu_event e = soft_event();
  do_note(s[2], "c");
  assert_cu(d->EventRecord(d, e, s[2]));
  do_note(s[2], "C");
  assert_cu(d->StreamWaitEvent(d, s[0], e, 0));
  do_note(s[0], "a");
  do_note(s[1], "b");
  do_note(s[3], "d");
  assert_int_equal(soft_step_all(), 7);
  assert_string_equal(trace, "bcaCd");
  soft_close();
}

/* Each stream that continues releases another, even one that was destroyed with pending work. */
TEST(step_all_ends_destroyed_streams) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(0), b = soft_stream(0);
  do_note(a, "a");
  do_note(b, "b");
  assert_cu(d->StreamDestroy(d, a));
  unsigned long pieces, done;
  assert_status(WEIR_ERROR_INVALID_HANDLE, weir_soft_pending(d, a, &pieces));
  assert_status(WEIR_ERROR_INVALID_HANDLE, weir_soft_step(d, a, 1, &done));
  assert_string_equal(trace, "");
  assert_int_equal(soft_step_all(), 2);
  assert_string_equal(trace, "ab");
  assert_cu(d->StreamDestroy(d, b));
  soft_close();
}

/* ---- Calls that wait ---- */

/* A waiting call runs the work that it waits for, with its dependencies, and nothing else. */
TEST(a_waiting_call_runs_only_what_it_needs) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING),
                 c = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e = soft_event(), f = soft_event();
  do_note(a, "a");
  assert_cu(d->EventRecord(d, e, a));
  do_note(a, "A");
  assert_cu(d->StreamWaitEvent(d, b, e, 0));
  do_note(b, "b");
  assert_cu(d->EventRecord(d, f, b));
  do_note(b, "B");
  do_note(c, "c");
  do_note(c, "C");
  do_note(c, "C");

  assert_cu(d->EventSynchronize(d, f));
  assert_string_equal(trace, "ab");
  assert_int_equal(soft_pending(a), 1);
  assert_int_equal(soft_pending(b), 1);
  assert_int_equal(soft_pending(c), 3);
  assert_cu(d->EventSynchronize(d, f));
  assert_cu(d->StreamSynchronize(d, b));
  assert_string_equal(trace, "abB");
  assert_int_equal(soft_pending(a), 1);
  assert_cu_error(NOT_READY, d->StreamQuery(d, a));
  assert_cu_error(NOT_READY, d->StreamQuery(d, c));
  assert_int_equal(soft_pending(a), 1); /* a query runs nothing */
  assert_int_equal(soft_pending(c), 3);
  assert_cu(d->CtxSynchronize(d));
  assert_string_equal(trace, "abBAcCC");
  soft_close();
}

TEST(synchronizing_a_device_leaves_the_other) {
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_event e;
  soft_use(1);
  weir_cu_stream b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->EventCreate(d, &e, 0));
  soft_spin(b, 1);
  assert_cu(d->EventRecord(d, e, b));
  soft_spin(b, 1);
  soft_use(0);
  soft_spin(a, 1);
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(soft_pending(a), 0);
  assert_int_equal(soft_pending(b), 3);
  /* Unless it depends on it. */
  assert_cu(d->StreamWaitEvent(d, a, e, 0));
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(soft_pending(a), 0);
  assert_int_equal(soft_pending(b), 1);
  soft_close();
}

/* The work that a plain copy, a free and a copy to pageable memory run. */
TEST(other_calls_that_wait) {
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream blocking = soft_stream(WEIR_CU_STREAM_DEFAULT), other = soft_stream(WEIR_CU_STREAM_NON_BLOCKING),
                 reader = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_deviceptr p = soft_alloc(100), q = soft_alloc(100);
  unsigned char host[100] = {0};
  assert_cu(d->MemsetD8Async(d, p, 1, 100, blocking));
  assert_cu(d->MemsetD8Async(d, q, 2, 100, other));
  assert_cu(d->Memcpy(d, (uintptr_t)host, p, 100)); /* through the legacy stream */
  assert_int_equal(host[99], 1);
  assert_int_equal(soft_pending(blocking), 0);
  assert_int_equal(soft_pending(other), 1);

  assert_cu(d->MemsetD8Async(d, p, 3, 100, reader));
  assert_cu(d->MemcpyAsync(d, (uintptr_t)host, p, 100, reader));
  assert_int_equal(host[99], 3);
  assert_int_equal(soft_pending(other), 1);

  /* A copy from pageable memory reads at once, and completes later. */
  memset(host, 4, sizeof host);
  assert_cu(d->MemcpyAsync(d, p, (uintptr_t)host, 100, reader));
  memset(host, 5, sizeof host);
  assert_int_equal(soft_pending(reader), 1);
  assert_int_equal(byte_at(p), 3);
  assert_int_equal(soft_step(reader, 1), 1);
  assert_int_equal(byte_at(p), 4);

  assert_cu(d->MemFree(d, p)); /* all work of the device */
  assert_int_equal(soft_pending(other), 0);
  assert_cu(d->MemFree(d, q));
  soft_close();
}

/* The waits of the legacy stream are ordinary work items. */
TEST(implicit_waits) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_DEFAULT), b = soft_stream(WEIR_CU_STREAM_DEFAULT),
                 n = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  do_note(a, "a");
  do_note(b, "b");
  do_note(n, "n");
  do_note(NULL, "0");
  assert_int_equal(soft_pending(NULL), 3); /* two waits */
  do_note(a, "A");
  assert_int_equal(soft_pending(a), 3); /* one */
  assert_int_equal(soft_step(a, 10), 1);
  assert_int_equal(soft_step(NULL, 10), 1);
  assert_int_equal(soft_step(b, 10), 1);
  assert_int_equal(soft_step(a, 10), 0);
  assert_int_equal(soft_step(WEIR_CU_STREAM_LEGACY, 10), 2);
  assert_int_equal(soft_step(a, 10), 2);
  assert_string_equal(trace, "ab0A");
  assert_int_equal(soft_pending(n), 1);

  /* The legacy stream can be busy without work of its own; a blocking stream only with its own work. */
  do_note(b, "B");
  assert_cu_error(NOT_READY, d->StreamQuery(d, NULL));
  do_note(NULL, "0");
  assert_cu(d->StreamQuery(d, a));
  assert_cu(d->StreamSynchronize(d, a));
  assert_string_equal(trace, "ab0A");
  assert_cu(d->StreamSynchronize(d, NULL));
  assert_string_equal(trace, "ab0AB0");
  assert_int_equal(soft_pending(n), 1);
  soft_close();
}

TEST(per_thread_stream) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 2, 64 * MIB);
  do_note(WEIR_CU_STREAM_PER_THREAD, "a");
  soft_use(1);
  assert_int_equal(soft_pending(WEIR_CU_STREAM_PER_THREAD), 0); /* one per device */
  do_note(WEIR_CU_STREAM_PER_THREAD, "b");
  assert_int_equal(soft_step(WEIR_CU_STREAM_PER_THREAD, 10), 1);
  assert_string_equal(trace, "b");
  soft_use(0);
  assert_int_equal(soft_step(WEIR_CU_STREAM_PER_THREAD, 10), 1);
  assert_string_equal(trace, "ba");
  soft_close();
}

static void *note_in_thread(void *data) {
  (void)data;
  /* Not the thread of the test, so no assertions here. */
  if (d->CtxSetCurrent(d, ctx) || d->LaunchHostFunc(d, WEIR_CU_STREAM_PER_THREAD, note, (void *)(uintptr_t) "t"))
    return "failed";
  return NULL;
}

TEST(the_stream_of_a_thread_that_ended) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  pthread_t thread;
  void *failed;
  assert_int_equal(pthread_create(&thread, NULL, note_in_thread, NULL), 0);
  assert_int_equal(pthread_join(thread, &failed), 0);
  assert_null(failed);
  assert_string_equal(trace, "");
  assert_int_equal(soft_step_all(), 1);
  assert_string_equal(trace, "t");
  soft_close();
}

/* ---- Graphs ---- */

TEST(half_a_graph) {
  reset_trace();
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream a = soft_stream(WEIR_CU_STREAM_NON_BLOCKING), b = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  weir_cu_graph graph;
  weir_cu_graph_exec exec;
  assert_cu(d->StreamBeginCapture(d, a, WEIR_CU_CAPTURE_RELAXED));
  do_note(a, "1");
  do_note(a, "2");
  do_note(a, "3");
  assert_int_equal(soft_pending(a), 0); /* nodes are not work items */
  assert_cu(d->StreamEndCapture(d, a, &graph));
  assert_cu(d->GraphInstantiate(d, &exec, graph, 0));
  assert_cu(d->GraphDestroy(d, graph));

  assert_cu(d->GraphLaunch(d, exec, a));
  assert_int_equal(soft_pending(a), 3);
  assert_int_equal(soft_step(a, 2), 2);
  assert_cu(d->GraphLaunch(d, exec, b)); /* waits, as launches of one executable do not overlap */
  assert_int_equal(soft_pending(b), 4);
  assert_int_equal(soft_step(b, 10), 0);
  assert_cu(d->GraphLaunch(d, exec, b)); /* already ordered */
  assert_int_equal(soft_pending(b), 7);
  assert_cu(d->GraphExecDestroy(d, exec)); /* pending work completes */
  assert_string_equal(trace, "12");
  assert_int_equal(soft_step(a, 1), 1);
  assert_int_equal(soft_step(b, 10), 7);
  assert_string_equal(trace, "123123123");
  soft_close();
}

/* ---- Invalid calls ---- */

TEST(invalid_calls) {
  unsigned long n = 77;
  uint64_t now = 77;
  soft_open(WEIR_SOFT_STEPPED, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(0);
  assert_error_says(INVALID_HANDLE, "0x1230 is not a stream of this device",
                    weir_soft_step(d, (weir_cu_stream)0x1230, 1, &n));
  assert_error_says(INVALID_HANDLE, "weir_soft_pending", weir_soft_pending(d, (weir_cu_stream)0x1230, &n));
  assert_error_says(INVALID_ARGUMENT, "weir_soft_pending: pieces is NULL", weir_soft_pending(d, s, NULL));
  assert_error_says(INVALID_ARGUMENT, "weir_soft_now: nanoseconds is NULL", weir_soft_now(d, NULL));
  assert_error_says(INVALID_ARGUMENT, "driver \"NULL\" is not a software device", weir_soft_step(NULL, s, 1, &n));
  assert_error_says(INVALID_ARGUMENT, "weir_soft_step_all", weir_soft_step_all(NULL, &n));
  assert_error_says(INVALID_ARGUMENT, "weir_soft_pending", weir_soft_pending(NULL, s, &n));
  assert_error_says(INVALID_ARGUMENT, "weir_soft_now", weir_soft_now(NULL, &now));
  assert_cu(d->CtxSetCurrent(d, NULL));
  assert_error_says(INVALID_HANDLE, "weir_soft_step", weir_soft_step(d, NULL, 1, &n));
  assert_int_equal(n, 77); /* never written */
  assert_int_equal(now, 77);
  assert_ok(weir_soft_step(d, s, 1, NULL));
  soft_close();

  weir_driver *ledger;
  assert_ok(weir_driver_open_ledger(NULL, &ledger));
  assert_error_says(INVALID_ARGUMENT, "not a software device", weir_soft_step(ledger, s, 1, &n));
  weir_driver_close(ledger);

  weir_driver *fresh;
  weir_soft_options options;
  weir_soft_options_init(&options);
  options.clock = WEIR_SOFT_STEPPED;
  assert_ok(weir_driver_open_soft(&options, &fresh));
  assert_error_says(INVALID_HANDLE, "weir_soft_step", weir_soft_step(fresh, NULL, 1, &n)); /* before Init */
  assert_ok(weir_soft_step_all(fresh, &n));
  assert_int_equal(n, 0);
  weir_driver_close(fresh);
}

TEST(real_time_is_not_stepped) {
  unsigned long n = 77;
  soft_open(WEIR_SOFT_THREADS, 1, 64 * MIB);
  weir_cu_stream s = soft_stream(0);
  assert_error_says(BAD_STATE, "weir_soft_step: the device runs in real time", weir_soft_step(d, s, 1, &n));
  assert_error_says(BAD_STATE, "weir_soft_step_all: the device runs in real time", weir_soft_step_all(d, &n));
  assert_int_equal(n, 77);
  struct gate *gate = gate_close(s);
  assert_cu(d->LaunchHostFunc(d, s, note, (void *)(uintptr_t) "r"));
  assert_int_equal(soft_pending(s), 2); /* the running item counts */
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, s));
  assert_int_equal(soft_pending(s), 0);
  soft_close();
}

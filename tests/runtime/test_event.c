/*
 * Events: lazy creation, recording, waiting, timing, sharing between processes.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/runtime.h"

static weir_event *new_event(unsigned flags) {
  weir_event *event = NULL;
  assert_ok(weir_event_create(flags, &event));
  assert_non_null(event);
  return event;
}

/* PyTorch's test_events. */
TEST(events) {
  weir_stream stream = current_stream(-1);
  weir_event *event = new_event(WEIR_EVENT_TIMING), *start = new_event(WEIR_EVENT_TIMING);
  assert_ok(weir_event_query(event));
  assert_ok(weir_event_record(start, stream));
  assert_ok(weir_stream_spin(stream, cycles_of(5)));
  struct held *gate = hold(stream);
  assert_ok(weir_event_record(event, stream));
  assert_not_ready(weir_event_query(event));
  unblock(gate);
  assert_ok(weir_event_synchronize(event));
  assert_ok(weir_event_query(event));
  double milliseconds = -1;
  assert_ok(weir_event_elapsed(start, event, &milliseconds));
  assert_true(milliseconds > 0);
  weir_event_destroy(event);
  weir_event_destroy(start);
}

/* PyTorch's test_generic_stream_event: a stream by its ids, events on two streams, and the time between them. */
TEST(generic_stream_event) {
  enum { WORDS = 1000 };
  int device = -1;
  weir_stream stream, same;
  assert_ok(weir_device_get_current(&device));
  assert_ok(weir_stream_create(-1, 0, &stream));
  assert_int_equal(stream.device, device);
  assert_ok(weir_stream_unpack(stream.id, stream.device, stream.device_type, &same));
  assert_int_equal(stream.id, same.id);
  assert_int_not_equal(stream.id, current_stream(-1).id);

  weir_event *first = new_event(WEIR_EVENT_TIMING), *second = new_event(WEIR_EVENT_TIMING);
  assert_null(event_raw(first));
  load_add(0);
  uint32_t *host = pinned_memory(WORDS * 4), *a = device_memory(0, WORDS * 4), *c = device_memory(0, WORDS * 4);
  for (uint32_t i = 0; i < WORDS; i++)
    host[i] = i;
  weir_stream_scope scope;
  assert_ok(weir_stream_scope_enter(same, &scope));
  assert_ok(weir_copy_async(a, host, WORDS * 4, current_stream(-1)));
  assert_int_equal(current_stream(-1).id, stream.id);
  assert_ok(weir_stream_scope_leave(&scope));
  assert_ok(weir_event_record(first, stream));
  assert_ok(weir_event_synchronize(first));
  assert_ok(weir_event_query(first));
  assert_cu(launch_add(c, a, 7, WORDS, current_stream(-1)));
  assert_ok(weir_event_record(second, current_stream(-1)));
  assert_ok(weir_event_synchronize(second));
  assert_ok(weir_event_query(second));
  assert_ptr_not_equal(event_raw(first), event_raw(second));
  assert_ok(weir_copy(host, c, WORDS * 4, current_stream(-1)));
  for (uint32_t i = 0; i < WORDS; i++)
    assert_int_equal(host[i], i + 7);
  double milliseconds = -1;
  assert_ok(weir_event_elapsed(first, second, &milliseconds));
  assert_true(milliseconds > 0);
  weir_event_destroy(first);
  weir_event_destroy(second);
  free_device_memory(0, a);
  free_device_memory(0, c);
  free_pinned_memory(host);
}

/* ---- Creating ---- */

TEST(created_by_first_record) {
  int last = devices() - 1;
  weir_event *event = new_event(0);
  assert_null(event_raw(event));
  assert_int_equal(event_device(event), -1);
  assert_null(event_raw(event));
  assert_ok(weir_event_record(event, new_stream(last)));
  assert_non_null(event_raw(event));
  assert_int_equal(event_device(event), last);
  weir_cu_event raw = event_raw(event);
  assert_non_null(raw);
  assert_ok(weir_event_record(event, default_stream(last)));
  assert_ptr_equal(event_raw(event), raw);
  weir_event_destroy(event);
}

TEST(flags) {
  weir_event *event = (weir_event *)state;
  const unsigned good[] = {0,
                           WEIR_EVENT_TIMING,
                           WEIR_EVENT_BLOCKING,
                           WEIR_EVENT_INTERPROCESS,
                           WEIR_EVENT_TIMING | WEIR_EVENT_BLOCKING,
                           WEIR_EVENT_BLOCKING | WEIR_EVENT_INTERPROCESS,
                           WEIR_EVENT_EXTERNAL,
                           WEIR_EVENT_EXTERNAL | WEIR_EVENT_TIMING | WEIR_EVENT_BLOCKING};
  const unsigned bad[] = {WEIR_EVENT_TIMING | WEIR_EVENT_INTERPROCESS, 7, 16, 64, 0x80000000u, 0xffffffffu};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_error(INVALID_ARGUMENT, weir_event_create(bad[i], &event));
  assert_ptr_equal(event, state);
  weir_stream stream = new_stream(0);
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    event = new_event(good[i]);
    mark(stream, (int)i);
    assert_ok(weir_event_record(event, stream));
    assert_ok(weir_event_synchronize(event));
    assert_ok(weir_event_query(event));
    assert_int_equal(place_of_mark((int)i), i);
    weir_event_destroy(event);
  }
}

TEST(destroy_null) {
  weir_event_destroy(NULL);
  weir_event_destroy(new_event(0)); /* never recorded */
  assert_ok(weir_init());
  weir_event_destroy(new_event(WEIR_EVENT_TIMING));
}

/* ---- Never recorded ---- */

TEST(never_recorded_is_done) {
  weir_event *event = new_event(0);
  weir_stream stream = new_stream(0);
  assert_ok(weir_event_query(event));
  assert_ok(weir_event_synchronize(event));
  assert_ok(weir_event_wait(event, stream));
  mark(stream, 1);
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(1);
  assert_null(event_raw(event));
  weir_event_destroy(event);
}

/* ---- Recorded ---- */

TEST(query_and_synchronize) {
  weir_event *event = new_event(0);
  weir_stream stream = new_stream(0);
  mark(stream, 1);
  assert_ok(weir_event_record(event, stream));
  struct held *gate = hold(stream); /* enqueued later, so irrelevant */
  mark(stream, 2);
  assert_ok(weir_event_synchronize(event));
  assert_ok(weir_event_query(event));
  assert_marks(1);
  unblock(gate);
  assert_ok(weir_stream_synchronize(stream));
  weir_event_destroy(event);
}

TEST(the_last_record_counts) {
  weir_event *event = new_event(0);
  weir_stream a = new_stream(0), b = new_stream(0);
  assert_ok(weir_event_record(event, a));
  assert_ok(weir_event_synchronize(event));
  struct held *gate = hold(b);
  assert_ok(weir_event_record(event, b));
  assert_not_ready(weir_event_query(event));
  assert_ok(weir_event_record(event, a));
  assert_ok(weir_event_synchronize(event));
  assert_ok(weir_event_query(event));
  unblock(gate);
  assert_ok(weir_stream_synchronize(b));
  weir_event_destroy(event);
}

TEST(record_on_another_device) {
  NEED_TWO_DEVICES();
  weir_event *event = new_event(0);
  weir_stream zero = new_stream(0), one = new_stream(1);
  assert_ok(weir_event_record(event, zero));
  assert_error(INVALID_ARGUMENT, weir_event_record(event, one));
  assert_non_null(strstr(weir_last_error(), "Event device 0 does not match recording stream's device 1."));
  assert_int_equal(event_device(event), 0);
  assert_ok(weir_event_record(event, zero));
  assert_ok(weir_event_synchronize(event));
  weir_event_destroy(event);
}

/* ---- Waiting in streams ---- */

TEST(wait) {
  weir_event *event = new_event(0);
  weir_stream a = new_stream(0), b = new_stream(0);
  struct held *gate = hold(a);
  mark(a, 1);
  assert_ok(weir_event_record(event, a));
  mark(a, 2);
  assert_ok(weir_event_wait(event, b));
  mark(b, 3);
  assert_not_ready(weir_stream_query(b));
  assert_int_equal(mark_count(), 0);
  unblock(gate);
  assert_ok(weir_stream_synchronize(b));
  assert_true(place_of_mark(1) < place_of_mark(3));
  assert_ok(weir_stream_synchronize(a));
  assert_int_equal(mark_count(), 3);
  weir_event_destroy(event);
}

/* A wait is for the latest record at that time; later records do not affect it. */
TEST(wait_is_for_the_record_before_it) {
  weir_event *event = new_event(0);
  weir_stream a = new_stream(0), b = new_stream(0);
  assert_ok(weir_event_record(event, a));
  assert_ok(weir_event_wait(event, b));
  struct held *gate = hold(a);
  assert_ok(weir_event_record(event, a));
  mark(b, 1);
  assert_ok(weir_stream_synchronize(b));
  assert_marks(1);
  assert_not_ready(weir_event_query(event));
  unblock(gate);
  assert_ok(weir_event_synchronize(event));
  weir_event_destroy(event);
}

TEST(destroyed_while_waited_for) {
  weir_event *event = new_event(0);
  weir_stream a = new_stream(0), b = new_stream(0);
  struct held *gate = hold(a);
  mark(a, 1);
  assert_ok(weir_event_record(event, a));
  assert_ok(weir_event_wait(event, b));
  weir_event_destroy(event);
  mark(b, 2);
  assert_not_ready(weir_stream_query(b));
  unblock(gate);
  assert_ok(weir_stream_synchronize(b));
  assert_marks(1, 2);
}

TEST(wait_on_another_device) {
  NEED_TWO_DEVICES();
  weir_event *event = new_event(0);
  weir_stream zero = new_stream(0), one = new_stream(1);
  struct held *gate = hold(zero);
  mark(zero, 1);
  assert_ok(weir_event_record(event, zero));
  assert_ok(weir_event_wait(event, one));
  mark(one, 2);
  assert_not_ready(weir_stream_query(one));
  unblock(gate);
  assert_ok(weir_stream_synchronize(one));
  assert_marks(1, 2);
  assert_ok(weir_device_set_current(1));
  assert_ok(weir_event_query(event));
  assert_ok(weir_event_synchronize(event));
  weir_event_destroy(event);
}

TEST(wait_in_steps) {
  NEED_STEPPED();
  weir_event *event = new_event(0);
  weir_stream a = new_stream(0), b = new_stream(0);
  unsigned long done;
  mark(a, 1);
  assert_ok(weir_event_record(event, a));
  mark(a, 2);
  assert_ok(weir_event_wait(event, b));
  mark(b, 3);
  assert_ok(weir_soft_step(soft, raw_of(b), 10, &done));
  assert_int_equal(done, 0);
  assert_ok(weir_soft_step(soft, raw_of(a), 1, &done));
  assert_marks(1);
  assert_not_ready(weir_event_query(event)); /* up to the record, not past it */
  assert_ok(weir_soft_step(soft, raw_of(a), 1, &done));
  assert_ok(weir_event_query(event));
  assert_marks(1);
  assert_ok(weir_soft_step(soft, raw_of(b), 10, &done));
  assert_int_equal(done, 2);
  assert_marks(1, 3);
  assert_ok(weir_soft_step_all(soft, NULL));
  assert_marks(1, 3, 2);
  weir_event_destroy(event);
}

/* ---- Time ---- */

TEST(elapsed) {
  weir_event *a = new_event(WEIR_EVENT_TIMING), *b = new_event(WEIR_EVENT_TIMING), *c = new_event(WEIR_EVENT_TIMING);
  weir_stream stream = new_stream(0);
  double ab = -1, bc = -1, ac = -1, back = 1, same = -1;
  assert_ok(weir_event_record(a, stream));
  assert_ok(weir_stream_spin(stream, cycles_of(4)));
  assert_ok(weir_event_record(b, stream));
  assert_ok(weir_stream_spin(stream, cycles_of(4)));
  assert_ok(weir_event_record(c, stream));
  assert_ok(weir_event_synchronize(c));
  assert_ok(weir_event_elapsed(a, b, &ab));
  assert_ok(weir_event_elapsed(b, c, &bc));
  assert_ok(weir_event_elapsed(a, c, &ac));
  assert_ok(weir_event_elapsed(c, a, &back));
  assert_ok(weir_event_elapsed(a, a, &same));
  assert_true(ab > 3 && bc > 3);
  assert_true(ac > ab && ac > bc);
  assert_true(ac > ab + bc - 0.5 && ac < ab + bc + 0.5);
  assert_true(back < 0);
  assert_true(same == 0);
  weir_event_destroy(a);
  weir_event_destroy(b);
  weir_event_destroy(c);
}

TEST(elapsed_needs_timing_and_records) {
  weir_event *timed = new_event(WEIR_EVENT_TIMING), *other = new_event(WEIR_EVENT_TIMING), *untimed = new_event(0);
  weir_stream stream = new_stream(0);
  double milliseconds = -7;
  assert_error(INVALID_ARGUMENT, weir_event_elapsed(timed, other, &milliseconds));
  assert_ok(weir_event_record(timed, stream));
  assert_ok(weir_event_record(untimed, stream));
  assert_error_says(INVALID_ARGUMENT, "Both events must be recorded", weir_event_elapsed(timed, other, &milliseconds));
  assert_error_says(INVALID_ARGUMENT, "Both events must be recorded", weir_event_elapsed(other, timed, &milliseconds));
  assert_ok(weir_stream_synchronize(stream));
  assert_error(INVALID_ARGUMENT, weir_event_elapsed(timed, untimed, &milliseconds));
  assert_error(INVALID_ARGUMENT, weir_event_elapsed(untimed, timed, &milliseconds));

  struct held *gate = hold(stream);
  assert_ok(weir_event_record(other, stream));
  assert_error(NOT_READY, weir_event_elapsed(timed, other, &milliseconds));
  assert_error(NOT_READY, weir_event_elapsed(other, timed, &milliseconds));
  assert_true(milliseconds == -7);
  unblock(gate);
  assert_ok(weir_event_synchronize(other));
  assert_ok(weir_event_elapsed(timed, other, &milliseconds));
  assert_true(milliseconds >= 0);
  weir_event_destroy(timed);
  weir_event_destroy(other);
  weir_event_destroy(untimed);
}

/* ---- IPC ---- */

/* This program, run as another process: reads a handle from standard input, then commands of one letter, and answers
 * each with one letter. */
static int other_process(void) {
  weir_cu_ipc_event_handle handle;
  weir_event *event;
  weir_stream stream;
  choose_driver_by_environment();
  child_assert(read(0, &handle, sizeof handle) == (ssize_t)sizeof handle);
  child_assert(weir_event_from_ipc_handle(0, &handle, &event) == WEIR_OK);
  child_assert(event_raw(event) != NULL);
  child_assert(event_device(event) == 0);
  child_assert(event_raw(event) != NULL);
  child_assert(weir_stream_create(0, 0, &stream) == WEIR_OK);
  char order;
  while (read(0, &order, 1) == 1) {
    weir_status status = WEIR_ERROR_SYSTEM;
    switch (order) {
    case 'q':
      status = weir_event_query(event);
      break;
    case 's':
      status = weir_event_synchronize(event);
      break;
    case 'w': /* a stream of this process waits for the event of the other process */
      status = weir_event_wait(event, stream);
      break;
    case 'a':
      status = weir_stream_query(stream);
      break;
    case 'b':
      status = weir_stream_synchronize(stream);
      break;
    }
    char answer = status == WEIR_OK ? 'y' : status == WEIR_ERROR_NOT_READY ? 'n' : 'e';
    if (answer == 'e')
      fprintf(stderr, "%c: %s\n", order, weir_last_error());
    child_assert(write(1, &answer, 1) == 1);
  }
  weir_event_destroy(event);
  child_assert(weir_shutdown() == WEIR_OK);
  return 0;
}

static int role(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "other-process") == 0)
    return other_process();
  return RUN_TESTS;
}

FIXTURE(.role = role, .prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

struct other {
  pid_t pid;
  int to, from;
};

static void start_other(struct other *other) {
  int to[2], from[2];
  assert_int_equal(pipe(to), 0);
  assert_int_equal(pipe(from), 0);
  other->pid = fork();
  if (other->pid == 0) {
    dup2(to[0], 0);
    dup2(from[1], 1);
    close(to[0]);
    close(to[1]);
    close(from[0]);
    close(from[1]);
    alarm(60);
    execl("/proc/self/exe", "test_event", "other-process", (char *)NULL);
    _exit(127);
  }
  assert_true(other->pid > 0);
  close(to[0]);
  close(from[1]);
  other->to = to[1];
  other->from = from[0];
}

static char ask(const struct other *other, char order) {
  char answer = '?';
  assert_int_equal(write(other->to, &order, 1), 1);
  assert_int_equal(read(other->from, &answer, 1), 1);
  return answer;
}

static void end_other(struct other *other) {
  int status;
  close(other->to);
  close(other->from);
  assert_int_equal(waitpid(other->pid, &status, 0), other->pid);
  assert_int_equal(status, 0);
}

TEST(another_process_sees_the_event) {
  weir_event *event = new_event(WEIR_EVENT_INTERPROCESS);
  weir_stream stream = new_stream(0);
  weir_cu_ipc_event_handle handle;
  struct other other;
  start_other(&other);
  struct held *gate = hold(stream);
  assert_ok(weir_event_record(event, stream));
  assert_ok(weir_event_ipc_handle(event, &handle));
  assert_int_equal(write(other.to, &handle, sizeof handle), sizeof handle);
  assert_int_equal(ask(&other, 'q'), 'n');
  assert_int_equal(ask(&other, 'w'), 'y');
  assert_int_equal(ask(&other, 'a'), 'n');
  unblock(gate);
  assert_ok(weir_event_synchronize(event));
  assert_int_equal(ask(&other, 's'), 'y');
  assert_int_equal(ask(&other, 'q'), 'y');
  assert_int_equal(ask(&other, 'b'), 'y');

  /* Later records are visible too. */
  gate = hold(stream);
  assert_ok(weir_event_record(event, stream));
  assert_int_equal(ask(&other, 'q'), 'n');
  unblock(gate);
  assert_ok(weir_event_synchronize(event));
  assert_int_equal(ask(&other, 'q'), 'y');
  end_other(&other);
  weir_event_destroy(event);
}

TEST(a_handle_makes_the_event) {
  int last = devices() - 1;
  weir_event *event = new_event(WEIR_EVENT_INTERPROCESS);
  weir_cu_ipc_event_handle first, second;
  assert_ok(weir_device_set_current(last));
  assert_ok(weir_event_ipc_handle(event, &first));
  assert_non_null(event_raw(event));
  assert_int_equal(event_device(event), last);
  assert_ok(weir_event_ipc_handle(event, &second));
  assert_ok(weir_event_query(event)); /* not recorded yet */
  assert_ok(weir_event_record(event, new_stream(last)));
  assert_ok(weir_event_synchronize(event));
  weir_event_destroy(event);
}

TEST(handles_that_are_refused) {
  weir_event *plain = new_event(0), *shared = new_event(WEIR_EVENT_INTERPROCESS), *out = plain;
  weir_cu_ipc_event_handle handle, before;
  memset(&handle, 0x5a, sizeof handle);
  before = handle;
  assert_error(INVALID_ARGUMENT, weir_event_ipc_handle(plain, &handle));
  assert_memory_equal(&handle, &before, sizeof handle);
  assert_null(event_raw(plain));
  /* An invalid handle, and a handle of this process. */
  clear_last_error();
  assert_int_not_equal(weir_event_from_ipc_handle(0, &handle, &out), WEIR_OK);
  assert_memory_equal(weir_last_error(), "weir_event_from_ipc_handle: ", 28);
  assert_ok(weir_event_ipc_handle(shared, &handle));
  clear_last_error();
  assert_int_not_equal(weir_event_from_ipc_handle(0, &handle, &out), WEIR_OK);
  assert_memory_equal(weir_last_error(), "weir_event_from_ipc_handle: ", 28);
  assert_error(INVALID_DEVICE, weir_event_from_ipc_handle(1000, &handle, &out));
  assert_ptr_equal(out, plain);
  weir_event_destroy(plain);
  weir_event_destroy(shared);
}

/* ---- Failing driver calls ---- */

static weir_status use_events(void) {
  weir_stream zero, one;
  weir_event *first = NULL, *second = NULL, *shared = NULL;
  weir_cu_ipc_event_handle handle;
  double milliseconds;
  weir_status status = weir_stream_create(0, 0, &zero);
  if (status == WEIR_OK)
    status = weir_stream_create(1, 0, &one);
  if (status == WEIR_OK)
    status = weir_event_create(WEIR_EVENT_TIMING, &first);
  if (status == WEIR_OK)
    status = weir_event_create(WEIR_EVENT_TIMING, &second);
  if (status == WEIR_OK)
    status = weir_event_create(WEIR_EVENT_INTERPROCESS, &shared);
  if (status == WEIR_OK)
    status = weir_event_record(first, zero);
  if (status == WEIR_OK)
    status = weir_event_wait(first, one);
  if (status == WEIR_OK)
    status = weir_event_record(second, one);
  if (status == WEIR_OK)
    status = weir_event_synchronize(first);
  if (status == WEIR_OK)
    status = weir_event_synchronize(second);
  if (status == WEIR_OK)
    status = weir_event_query(second);
  if (status == WEIR_OK) {
    status = weir_event_record(second, one);
    if (status == WEIR_OK)
      status = weir_event_synchronize(second);
  }
  if (status == WEIR_OK)
    status = weir_event_elapsed(first, first, &milliseconds);
  if (status == WEIR_OK)
    status = weir_event_ipc_handle(shared, &handle);
  only_giving_back();
  weir_event_destroy(first);
  weir_event_destroy(second);
  weir_event_destroy(shared);
  return status;
}

TEST_SETUP(every_driver_call_fails_once, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  sweep_faults(use_events);
}

TEST_SETUP(failed_first_record_creates_nothing, runtime_setup_fault, runtime_teardown) {
  weir_stream stream = new_stream(0);
  weir_event *event = new_event(0);
  const weir_driver_call calls[] = {WEIR_CALL_EventCreate, WEIR_CALL_EventRecord};
  for (int i = 0; i < 2; i++) {
    assert_ok(weir_fault_nth(fault, calls[i], 1, WEIR_CU_OUT_OF_MEMORY, 0));
    assert_error(OUT_OF_MEMORY, weir_event_record(event, stream));
    assert_null(event_raw(event));
    assert_int_equal(event_device(event), -1);
    assert_ok(weir_event_query(event));
  }
  assert_ok(weir_event_record(event, stream));
  assert_non_null(event_raw(event));
  assert_ok(weir_event_synchronize(event));
  weir_event_destroy(event);
}

/*
 * Streams, events, host functions: ordering and waiting.
 */
#include "driver/rules.h"

/* ---- Creating and querying ---- */

FIXTURE(RULES)

TEST(create_and_destroy) {
  weir_cu_stream stream = NULL;
  int least = 7, greatest = 7, priority = 7;
  unsigned flags = 7;
  assert_cu(d->CtxGetStreamPriorityRange(d, &least, &greatest));
  assert_int_equal(least, 0);
  if (!is_cuda())
    assert_int_equal(greatest, -5);
  assert_in_range(-greatest, 1, 99);
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, -99));
  assert_cu(d->StreamGetPriority(d, stream, &priority));
  assert_int_equal(priority, greatest);
  assert_cu(d->StreamGetFlags(d, stream, &flags));
  assert_int_equal(flags, WEIR_CU_STREAM_NON_BLOCKING);
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_DEFAULT, 99));
  assert_cu(d->StreamGetPriority(d, stream, &priority));
  assert_int_equal(priority, 0);
  assert_cu(d->StreamGetFlags(d, stream, &flags));
  assert_int_equal(flags, WEIR_CU_STREAM_DEFAULT);
  weir_cu_context context = NULL;
  assert_cu(d->StreamGetCtx(d, stream, &context));
  assert_ptr_equal(context, ctx);
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, -1));
  assert_cu(d->StreamGetPriority(d, stream, &priority));
  assert_int_equal(priority, -1);
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu_error(INVALID_VALUE, d->StreamCreateWithPriority(d, &stream, 2, 0));
}

TEST(default_streams) {
  int priority = 7;
  unsigned flags = 7;
  weir_cu_context context = NULL;
  assert_cu(d->StreamGetPriority(d, NULL, &priority));
  assert_int_equal(priority, 0);
  assert_cu(d->StreamGetFlags(d, NULL, &flags));
  assert_int_equal(flags, 0);
  assert_cu(d->StreamGetCtx(d, NULL, &context));
  assert_ptr_equal(context, ctx);
  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, NULL));
  assert_cu_error(INVALID_HANDLE, d->StreamDestroy(d, WEIR_CU_STREAM_LEGACY));
  assert_cu(d->StreamQuery(d, NULL));
  assert_cu(d->StreamQuery(d, WEIR_CU_STREAM_LEGACY));
  assert_cu(d->StreamQuery(d, WEIR_CU_STREAM_PER_THREAD));
  assert_cu(d->StreamSynchronize(d, NULL));
  assert_cu(d->StreamSynchronize(d, WEIR_CU_STREAM_LEGACY));
  assert_cu(d->StreamSynchronize(d, WEIR_CU_STREAM_PER_THREAD));
}

TEST(events) {
  weir_cu_event event;
  weir_cu_stream stream = stream_new();
  float milliseconds = 0;
  assert_cu_error(INVALID_VALUE, d->EventCreate(d, &event, 64));
  assert_cu_error(INVALID_VALUE, d->EventCreate(d, &event, WEIR_CU_EVENT_INTERPROCESS));
  event = event_new(WEIR_CU_EVENT_BLOCKING_SYNC | WEIR_CU_EVENT_DISABLE_TIMING);
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->EventQuery(d, event));
  assert_cu(d->EventDestroy(d, event));

  event = event_new(0);
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &milliseconds, event, event));
  assert_cu(d->EventQuery(d, event));
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->StreamWaitEvent(d, stream, event, 0));
  assert_cu_error(INVALID_VALUE, d->StreamWaitEvent(d, stream, event, 2));
  assert_cu(d->StreamQuery(d, stream));
  weir_cu_event untimed = event_new(WEIR_CU_EVENT_DISABLE_TIMING);
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->EventRecord(d, untimed, stream));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &milliseconds, event, untimed));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, &milliseconds, event, untimed));
  assert_cu(d->EventElapsedTime(d, &milliseconds, event, event));
  assert_true(milliseconds == 0);
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu_error(INVALID_HANDLE, d->EventElapsedTime(d, NULL, event, event));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->EventDestroy(d, untimed));
}

TEST(null_handles) {
  weir_cu_stream stream = stream_new();
  assert_cu_error(INVALID_HANDLE, d->EventDestroy(d, NULL));
  assert_cu_error(INVALID_HANDLE, d->EventQuery(d, NULL));
  assert_cu_error(INVALID_HANDLE, d->StreamWaitEvent(d, stream, NULL, 0));
  assert_cu_error(INVALID_HANDLE, d->EventRecord(d, NULL, stream));
  assert_cu_error(INVALID_VALUE, d->LaunchHostFunc(d, stream, NULL, NULL));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Busy ---- */

TEST(not_ready) {
  weir_cu_stream stream = stream_new();
  weir_cu_event before = event_new(0), after = event_new(0);
  float milliseconds;
  assert_cu(d->EventRecord(d, before, stream));
  struct gate *gate = gate_close(stream);
  assert_cu(d->EventRecord(d, after, stream));
  assert_cu_error(NOT_READY, d->EventElapsedTime(d, &milliseconds, before, after));
  assert_cu_error(NOT_READY, d->EventQuery(d, after));
  assert_cu_error(NOT_READY, d->StreamQuery(d, stream));
  assert_cu(d->EventSynchronize(d, before)); /* waits only for the work before the gate */
  assert_cu(d->EventQuery(d, before));
  assert_cu_error(NOT_READY, d->EventQuery(d, after));
  gate_open(gate);
  assert_cu(d->EventSynchronize(d, after));
  assert_cu(d->EventQuery(d, after));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->StreamQuery(d, stream));
  assert_cu(d->EventElapsedTime(d, &milliseconds, before, after));
  assert_true(milliseconds >= 0);
  assert_cu(d->EventDestroy(d, before));
  assert_cu(d->EventDestroy(d, after));
  assert_cu(d->StreamDestroy(d, stream));
}

/* An event stands for its latest record. */
TEST(record_again) {
  weir_cu_stream stream = stream_new();
  weir_cu_event event = event_new(0);
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->EventQuery(d, event));
  struct gate *gate = gate_close(stream);
  assert_cu(d->EventQuery(d, event));
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu_error(NOT_READY, d->EventQuery(d, event));
  gate_open(gate);
  assert_cu(d->EventSynchronize(d, event));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, stream));
}

/* Busy streams and events can be destroyed: the work completes. */
TEST(destroy_busy) {
  weir_cu_stream stream = stream_new(), other = stream_new();
  weir_cu_event event = event_new(0);
  unsigned char *host = host_new(100);
  weir_cu_deviceptr p = mem_new(100);
  struct gate *gate = gate_close(stream);
  assert_cu(d->MemsetD8Async(d, p, 5, 100, stream));
  assert_cu(d->EventRecord(d, event, stream));
  assert_cu(d->StreamWaitEvent(d, other, event, 0));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, other));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu_error(NOT_READY, d->StreamQuery(d, other));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, other));
  assert_filled(host, 100, 5);
  assert_cu(d->StreamDestroy(d, other));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
}

/* ---- Order ---- */

TEST(order_in_a_stream) {
  enum { steps = 200 };
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(64), q = mem_new(64);
  unsigned char *host = host_new(steps * 64);
  for (int i = 0; i < steps; i++) {
    assert_cu(d->MemsetD8Async(d, p, (unsigned char)i, 64, stream));
    assert_cu(d->MemcpyAsync(d, q, p, 64, stream));
    assert_cu(d->MemcpyAsync(d, address_of(host) + (unsigned)i * 64u, q, 64, stream));
  }
  assert_cu(d->StreamSynchronize(d, stream));
  for (int i = 0; i < steps; i++)
    assert_filled(host + i * 64, 64, (unsigned char)i);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFree(d, q));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

TEST(streams_are_independent) {
  weir_cu_stream stopped = stream_new(), running = stream_new();
  weir_cu_deviceptr p = mem_new(100);
  unsigned char *host = host_new(100);
  struct gate *gate = gate_close(stopped);
  assert_cu(d->MemsetD8Async(d, p, 3, 100, running));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, running));
  assert_cu(d->StreamSynchronize(d, running));
  assert_filled(host, 100, 3);
  assert_cu_error(NOT_READY, d->StreamQuery(d, stopped));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, stopped));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stopped));
  assert_cu(d->StreamDestroy(d, running));
}

TEST(wait_orders_two_streams) {
  weir_cu_stream first = stream_new(), second = stream_new();
  weir_cu_event event = event_new(WEIR_CU_EVENT_DISABLE_TIMING);
  weir_cu_deviceptr p = mem_new(100);
  unsigned char *host = host_new(200);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, first));
  assert_cu(d->StreamSynchronize(d, first));
  struct gate *gate = gate_close(first);
  assert_cu(d->MemsetD8Async(d, p, 2, 100, first));
  assert_cu(d->EventRecord(d, event, first));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, second)); /* before the wait: sees the old value */
  assert_cu(d->StreamSynchronize(d, second));
  assert_filled(host, 100, 1);
  assert_cu(d->StreamWaitEvent(d, second, event, 0));
  assert_cu(d->MemcpyAsync(d, address_of(host) + 100, p, 100, second));
  assert_cu_error(NOT_READY, d->StreamQuery(d, second));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, second));
  assert_filled(host + 100, 100, 2);
  assert_cu(d->StreamSynchronize(d, first));
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
}

/* A wait is for the latest record at that time, whatever happens to the event later. */
TEST(wait_is_for_the_last_record) {
  weir_cu_stream first = stream_new(), second = stream_new(), third = stream_new();
  weir_cu_event event = event_new(0);
  assert_cu(d->EventRecord(d, event, first));
  assert_cu(d->StreamWaitEvent(d, second, event, 0));
  struct gate *gate = gate_close(first);
  assert_cu(d->EventRecord(d, event, first));
  assert_cu(d->StreamWaitEvent(d, third, event, 0));
  assert_cu(d->StreamSynchronize(d, second));
  assert_cu_error(NOT_READY, d->StreamQuery(d, third));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, third));
  assert_cu(d->StreamSynchronize(d, first));
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
  assert_cu(d->StreamDestroy(d, third));
}

/* A chain through many streams: each step sees the one before. */
TEST(chain_through_many_streams) {
  enum { streams = 8, rounds = 20 };
  weir_cu_stream stream[streams];
  weir_cu_event event[streams];
  weir_cu_deviceptr p = mem_new(rounds * streams + 1);
  unsigned char *host = host_new(rounds * streams + 1);
  for (int i = 0; i < streams; i++) {
    stream[i] = stream_new();
    event[i] = event_new(WEIR_CU_EVENT_DISABLE_TIMING);
  }
  assert_cu(d->MemsetD8Async(d, p, 0, rounds * streams + 1, stream[streams - 1]));
  assert_cu(d->MemsetD8Async(d, p, 0xe5, 1, stream[streams - 1]));
  assert_cu(d->EventRecord(d, event[streams - 1], stream[streams - 1]));
  for (int i = 0; i < rounds * streams; i++) {
    int now = i % streams, last = (i + streams - 1) % streams;
    assert_cu(d->StreamWaitEvent(d, stream[now], event[last], 0));
    assert_cu(d->MemcpyAsync(d, p + (unsigned)i + 1, p + (unsigned)i, 1, stream[now]));
    assert_cu(d->EventRecord(d, event[now], stream[now]));
  }
  assert_cu(d->EventSynchronize(d, event[streams - 1]));
  assert_cu(d->Memcpy(d, address_of(host), p, rounds * streams + 1));
  assert_filled(host, rounds * streams + 1, 0xe5);
  for (int i = 0; i < streams; i++) {
    assert_cu(d->EventDestroy(d, event[i]));
    assert_cu(d->StreamDestroy(d, stream[i]));
  }
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}

TEST(context_synchronize_waits_for_all) {
  weir_cu_stream streams[3] = {stream_new(), stream_new_blocking(), WEIR_CU_STREAM_PER_THREAD};
  weir_cu_deviceptr p = mem_new(300);
  unsigned char *host = host_new(300);
  for (unsigned i = 0; i < 3; i++) {
    spin(streams[i], 10);
    assert_cu(d->MemsetD8Async(d, p + 100 * i, 4, 100, streams[i]));
    assert_cu(d->MemcpyAsync(d, address_of(host) + 100 * i, p + 100 * i, 100, streams[i]));
  }
  assert_cu(d->CtxSynchronize(d));
  assert_filled(host, 300, 4);
  for (int i = 0; i < 3; i++)
    assert_cu(d->StreamQuery(d, streams[i]));
  assert_cu(d->StreamDestroy(d, streams[0]));
  assert_cu(d->StreamDestroy(d, streams[1]));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}

/* ---- Time ---- */

TEST(elapsed_time) {
  weir_cu_stream stream = stream_new();
  weir_cu_event start = event_new(0), middle = event_new(0), end = event_new(0);
  float first = 0, second = 0, both = 0;
  assert_cu(d->EventRecord(d, start, stream));
  spin(stream, 20);
  assert_cu(d->EventRecord(d, middle, stream));
  spin(stream, 40);
  assert_cu(d->EventRecord(d, end, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->EventElapsedTime(d, &first, start, middle));
  assert_cu(d->EventElapsedTime(d, &second, middle, end));
  assert_cu(d->EventElapsedTime(d, &both, start, end));
  assert_true(first >= 19 && first < 5000); /* the clock of a GPU may be below its maximum */
  assert_true(second >= 39 && second < 5000);
  assert_true(both > first + second - 0.1 && both < first + second + 0.1);
  if (is_stepped()) {
    assert_true(first >= 20 && first < 20.1);
    assert_true(second >= 40 && second < 40.1);
  }
  assert_cu(d->EventDestroy(d, start));
  assert_cu(d->EventDestroy(d, middle));
  assert_cu(d->EventDestroy(d, end));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- Host functions ---- */

struct notes {
  pthread_mutex_t lock;
  int count;
  int numbers[64];
};

struct note {
  struct notes *notes;
  int number;
};

static void take_note(void *data) {
  struct note *note = data;
  pthread_mutex_lock(&note->notes->lock);
  note->notes->numbers[note->notes->count++] = note->number;
  pthread_mutex_unlock(&note->notes->lock);
}

TEST(host_functions_in_order) {
  weir_cu_stream first = stream_new(), second = stream_new();
  weir_cu_event event = event_new(0);
  struct notes notes = {.lock = PTHREAD_MUTEX_INITIALIZER};
  struct note note[40];
  for (int i = 0; i < 40; i++)
    note[i] = (struct note){&notes, i};
  for (int i = 0; i < 20; i++)
    assert_cu(d->LaunchHostFunc(d, first, take_note, &note[i]));
  assert_cu(d->EventRecord(d, event, first));
  assert_cu(d->StreamWaitEvent(d, second, event, 0));
  for (int i = 20; i < 40; i++)
    assert_cu(d->LaunchHostFunc(d, second, take_note, &note[i]));
  assert_cu(d->StreamSynchronize(d, second));
  assert_int_equal(notes.count, 40);
  for (int i = 0; i < 40; i++)
    assert_int_equal(notes.numbers[i], i);
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
}

struct look {
  const unsigned char *at;
  unsigned char seen;
};

static void look_at(void *data) {
  struct look *look = data;
  look->seen = *look->at;
}

/* A host function runs after the work before it, and before the work after it. */
TEST(host_function_between_copies) {
  weir_cu_stream stream = stream_new();
  weir_cu_deviceptr p = mem_new(1);
  unsigned char *host = host_new(1);
  struct look first = {host, 0}, second = {host, 0};
  assert_cu(d->MemsetD8Async(d, p, 1, 1, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 1, stream));
  assert_cu(d->LaunchHostFunc(d, stream, look_at, &first));
  assert_cu(d->MemsetD8Async(d, p, 2, 1, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 1, stream));
  assert_cu(d->LaunchHostFunc(d, stream, look_at, &second));
  assert_cu(d->MemsetD8Async(d, p, 3, 1, stream));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 1, stream));
  assert_cu(d->StreamSynchronize(d, stream));
  assert_int_equal(first.seen, 1);
  assert_int_equal(second.seen, 2);
  assert_int_equal(*host, 3);
  assert_cu(d->MemFree(d, p));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->StreamDestroy(d, stream));
}

/* ---- The legacy stream ---- */

/* The legacy stream and blocking streams wait for each other; other streams are independent. */
TEST(legacy_and_blocking_streams) {
  weir_cu_stream blocking = stream_new_blocking(), other = stream_new_blocking(), apart = stream_new();
  weir_cu_deviceptr p = mem_new(300);
  unsigned char *host = host_new(400);
  struct gate *gate = gate_close(blocking);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, blocking));
  assert_cu(d->MemcpyAsync(d, p + 100, p, 100, NULL));        /* waits for `blocking` */
  assert_cu(d->MemcpyAsync(d, p + 200, p + 100, 100, other)); /* waits for the legacy stream */
  assert_cu(d->MemcpyAsync(d, address_of(host), p + 200, 100, other));
  assert_cu_error(NOT_READY, d->StreamQuery(d, NULL));
  assert_cu_error(NOT_READY, d->StreamQuery(d, other));
  assert_cu(d->MemsetD8Async(d, address_of(host) + 300, 9, 100, apart));
  assert_cu(d->StreamSynchronize(d, apart));
  assert_filled(host + 300, 100, 9);
  assert_cu_error(NOT_READY, d->StreamQuery(d, other));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, other));
  assert_filled(host, 100, 1);
  assert_cu(d->StreamSynchronize(d, NULL));
  assert_cu(d->StreamQuery(d, NULL));
  assert_cu(d->StreamQuery(d, blocking));

  /* Vice versa: later work in a blocking stream waits for the legacy stream. */
  gate = gate_close(NULL);
  assert_cu(d->MemsetD8Async(d, p, 2, 100, WEIR_CU_STREAM_LEGACY));
  assert_cu(d->MemcpyAsync(d, address_of(host) + 100, p, 100, blocking));
  assert_cu_error(NOT_READY, d->StreamQuery(d, blocking));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, blocking));
  assert_filled(host + 100, 100, 2);
  assert_cu(d->StreamDestroy(d, blocking));
  assert_cu(d->StreamDestroy(d, other));
  assert_cu(d->StreamDestroy(d, apart));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}

TEST(per_thread_stream) {
  weir_cu_stream apart = stream_new();
  weir_cu_deviceptr p = mem_new(200);
  unsigned char *host = host_new(200);
  struct gate *gate = gate_close(WEIR_CU_STREAM_PER_THREAD);
  assert_cu(d->MemsetD8Async(d, p, 1, 100, WEIR_CU_STREAM_PER_THREAD));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, NULL));
  assert_cu_error(NOT_READY, d->StreamQuery(d, NULL));
  assert_cu_error(NOT_READY, d->StreamQuery(d, WEIR_CU_STREAM_PER_THREAD));
  assert_cu(d->StreamSynchronize(d, apart));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, NULL));
  assert_filled(host, 100, 1);

  gate = gate_close(NULL);
  assert_cu(d->MemsetD8Async(d, p + 100, 2, 100, NULL));
  assert_cu(d->MemcpyAsync(d, address_of(host) + 100, p + 100, 100, WEIR_CU_STREAM_PER_THREAD));
  assert_cu_error(NOT_READY, d->StreamQuery(d, WEIR_CU_STREAM_PER_THREAD));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, WEIR_CU_STREAM_PER_THREAD));
  assert_filled(host + 100, 100, 2);
  assert_cu(d->StreamDestroy(d, apart));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}

struct own_stream {
  weir_cu_result busy, done, sync;
};

/* On a thread whose per-thread stream is idle, while that of the main thread is not. */
static void *ask_own_stream(void *data) {
  struct own_stream *own = data;
  d->CtxSetCurrent(d, ctx);
  own->busy = d->StreamQuery(d, WEIR_CU_STREAM_PER_THREAD);
  own->sync = d->StreamSynchronize(d, WEIR_CU_STREAM_PER_THREAD);
  own->done = d->StreamQuery(d, WEIR_CU_STREAM_PER_THREAD);
  return NULL;
}

TEST(per_thread_streams_differ) {
  struct own_stream own = {-1, -1, -1};
  struct gate *gate = gate_close(WEIR_CU_STREAM_PER_THREAD);
  on_another_thread(ask_own_stream, &own);
  assert_cu(own.busy);
  assert_cu(own.sync);
  assert_cu(own.done);
  assert_cu_error(NOT_READY, d->StreamQuery(d, WEIR_CU_STREAM_PER_THREAD));
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, WEIR_CU_STREAM_PER_THREAD));
}

struct leaver {
  weir_cu_deviceptr memory;
  void *host;
  weir_cu_result fill, copy;
};

static void *leave_work_behind(void *data) {
  struct leaver *leaver = data;
  d->CtxSetCurrent(d, ctx);
  leaver->fill = d->MemsetD8Async(d, leaver->memory, 3, 100, WEIR_CU_STREAM_PER_THREAD);
  leaver->copy = d->MemcpyAsync(d, address_of(leaver->host), leaver->memory, 100, WEIR_CU_STREAM_PER_THREAD);
  return NULL;
}

/* The work of a thread that has exited completes. */
TEST(work_outlives_its_thread) {
  struct leaver leaver = {mem_new(100), host_new(100), -1, -1};
  spin(NULL, 30); /* per-thread streams wait for the legacy stream */
  on_another_thread(leave_work_behind, &leaver);
  assert_cu(leaver.fill);
  assert_cu(leaver.copy);
  assert_cu(d->CtxSynchronize(d));
  assert_filled(leaver.host, 100, 3);
  assert_cu(d->MemFreeHost(d, leaver.host));
  assert_cu(d->MemFree(d, leaver.memory));
}

/* A plain copy uses the legacy stream, so it waits for blocking streams. */
TEST(plain_copy_waits_for_blocking_streams) {
  weir_cu_stream blocking = stream_new_blocking();
  weir_cu_deviceptr p = mem_new(100);
  unsigned char values[100];
  spin(blocking, 20);
  assert_cu(d->MemsetD8Async(d, p, 8, 100, blocking));
  assert_cu(d->Memcpy(d, address_of(values), p, 100));
  assert_filled(values, 100, 8);
  assert_cu(d->StreamDestroy(d, blocking));
  assert_cu(d->MemFree(d, p));
}

/* ---- Many threads ---- */

enum { workers = 4, pieces = 50 };

struct worker {
  pthread_t thread;
  int seed;
  weir_cu_result result;
  unsigned char *host;
  weir_cu_deviceptr memory;
};

static void *work(void *data) {
  struct worker *w = data;
  weir_cu_stream stream;
  weir_cu_event event;
  weir_cu_result r = d->CtxSetCurrent(d, ctx);
  if (!r)
    r = d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0);
  if (!r)
    r = d->EventCreate(d, &event, WEIR_CU_EVENT_DISABLE_TIMING);
  for (int i = 0; i < pieces && !r; i++) {
    r = d->MemsetD8Async(d, w->memory, (unsigned char)(w->seed + i), 256, stream);
    if (!r)
      r = d->MemcpyAsync(d, address_of(w->host) + (unsigned)i * 256u, w->memory, 256, stream);
    if (!r)
      r = d->EventRecord(d, event, stream);
    if (!r && i % 7 == 0)
      r = d->EventSynchronize(d, event);
  }
  if (!r)
    r = d->StreamSynchronize(d, stream);
  if (!r)
    r = d->EventDestroy(d, event);
  if (!r)
    r = d->StreamDestroy(d, stream);
  w->result = r;
  return NULL;
}

TEST(many_threads) {
  struct worker worker[workers];
  for (int i = 0; i < workers; i++) {
    worker[i] =
        (struct worker){.seed = i * 50, .result = -1, .host = host_new(pieces * 256), .memory = mem_new(pieces * 256)};
    assert_int_equal(pthread_create(&worker[i].thread, NULL, work, &worker[i]), 0);
  }
  for (int i = 0; i < workers; i++)
    assert_int_equal(pthread_join(worker[i].thread, NULL), 0);
  for (int i = 0; i < workers; i++) {
    assert_cu(worker[i].result);
    for (int k = 0; k < pieces; k++)
      assert_filled(worker[i].host + k * 256, 256, (unsigned char)(worker[i].seed + k));
    assert_cu(d->MemFreeHost(d, worker[i].host));
    assert_cu(d->MemFree(d, worker[i].memory));
  }
}

struct waiter {
  pthread_t thread;
  weir_cu_stream stream;
  weir_cu_event event; /* NULL to wait for the stream */
  weir_cu_result result;
};

static void *wait_for_it(void *data) {
  struct waiter *waiter = data;
  d->CtxSetCurrent(d, ctx);
  waiter->result = waiter->event ? d->EventSynchronize(d, waiter->event) : d->StreamSynchronize(d, waiter->stream);
  return NULL;
}

/* Several threads may wait for the same object. */
TEST(many_threads_wait) {
  weir_cu_stream first = stream_new(), second = stream_new();
  weir_cu_event event = event_new(WEIR_CU_EVENT_BLOCKING_SYNC);
  weir_cu_deviceptr p = mem_new(100);
  unsigned char *host = host_new(100);
  struct waiter waiter[6];
  struct gate *gate = gate_close(first);
  assert_cu(d->MemsetD8Async(d, p, 4, 100, first));
  assert_cu(d->EventRecord(d, event, first));
  assert_cu(d->StreamWaitEvent(d, second, event, 0));
  assert_cu(d->MemcpyAsync(d, address_of(host), p, 100, second));
  for (int i = 0; i < 6; i++) {
    waiter[i] = (struct waiter){.stream = i % 3 ? second : first, .event = i % 2 ? event : NULL, .result = -1};
    assert_int_equal(pthread_create(&waiter[i].thread, NULL, wait_for_it, &waiter[i]), 0);
  }
  gate_open(gate);
  assert_cu(d->StreamSynchronize(d, second));
  assert_filled(host, 100, 4);
  for (int i = 0; i < 6; i++) {
    assert_int_equal(pthread_join(waiter[i].thread, NULL), 0);
    assert_cu(waiter[i].result);
  }
  assert_cu(d->EventDestroy(d, event));
  assert_cu(d->StreamDestroy(d, first));
  assert_cu(d->StreamDestroy(d, second));
  assert_cu(d->MemFreeHost(d, host));
  assert_cu(d->MemFree(d, p));
}

/*
 * Streams: the pools, ids, the current stream, queries and waits. test_stream_order.c has the order between streams.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"

static int current_device(void) {
  int device = -1;
  assert_ok(weir_device_get_current(&device));
  return device;
}

static int greatest_priority(void) {
  int least = 7, greatest = 7;
  assert_ok(weir_stream_priority_range(&least, &greatest));
  assert_int_equal(least, 0);
  assert_in_range(-greatest, 1, 100);
  return greatest;
}

FIXTURE(.prepare = runtime_need_device, .setup = runtime_setup, .teardown = runtime_teardown)

/* PyTorch's test_streams. */
TEST(streams) {
  weir_stream first = current_stream(-1), user = new_stream(-1);
  assert_stream_equal(first, default_stream(-1));
  assert_false(weir_stream_equal(first, user));
  assert_null(raw_of(first));
  assert_non_null(raw_of(user));
  weir_stream_scope scope;
  assert_ok(weir_stream_scope_enter(user, &scope));
  assert_stream_equal(current_stream(-1), user);
  assert_ok(weir_stream_scope_leave(&scope));
  assert_stream_equal(current_stream(-1), first);
  assert_ok(weir_stream_query(user));

  load_add(0);
  uint32_t *host = pinned_memory(20);
  void *memory = device_memory(0, 20);
  for (uint32_t i = 0; i < 5; i++)
    host[i] = i;
  assert_ok(weir_copy_async(memory, host, 20, first));
  assert_cu(launch_add(memory, memory, 1, 5, first));
  assert_ok(weir_copy_async(host, memory, 20, first));
  assert_ok(weir_stream_synchronize(first));
  assert_ok(weir_stream_query(first));
  for (uint32_t i = 0; i < 5; i++)
    assert_int_equal(host[i], i + 1);
  free_device_memory(0, memory);
  free_pinned_memory(host);
}

/* ---- The pools ---- */

TEST(the_33rd_is_the_first) {
  weir_stream streams[2 * WEIR_STREAMS_PER_POOL];
  weir_cu_stream raw[WEIR_STREAMS_PER_POOL];
  assert_int_equal(WEIR_STREAMS_PER_POOL, 32);
  for (int i = 0; i < 2 * WEIR_STREAMS_PER_POOL; i++)
    streams[i] = new_stream(0);
  for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++) {
    assert_stream_equal(streams[i], streams[i + WEIR_STREAMS_PER_POOL]);
    raw[i] = raw_of(streams[i]);
    assert_non_null(raw[i]);
    assert_int_equal(streams[i].id & 1, 1);
    assert_int_equal(streams[i].device, 0);
    assert_int_equal(streams[i].device_type, WEIR_DEVICE_TYPE_GPU);
    for (int j = 0; j < i; j++) {
      assert_false(weir_stream_equal(streams[i], streams[j]));
      assert_ptr_not_equal(raw[i], raw[j]);
    }
  }
}

TEST(each_priority_has_a_pool) {
  int greatest = greatest_priority(), priority;
  weir_stream first[16], stream;
  assert_in_range(-greatest, 1, 15);
  for (int p = 0; p >= greatest; p--) {
    assert_ok(weir_stream_create(0, p, &first[-p]));
    assert_ok(weir_stream_priority(first[-p], &priority));
    assert_int_equal(priority, p);
    int found;
    assert_cu(d->StreamGetPriority(d, raw_of(first[-p]), &found));
    assert_int_equal(found, p);
    for (int q = 0; q > p; q--)
      assert_ptr_not_equal(raw_of(first[-p]), raw_of(first[-q]));
  }
  /* Each pool has its own round-robin index. */
  for (int p = 0; p >= greatest; p--) {
    for (int i = 1; i < WEIR_STREAMS_PER_POOL; i++) {
      assert_ok(weir_stream_create(0, p, &stream));
      assert_false(weir_stream_equal(stream, first[-p]));
    }
    assert_ok(weir_stream_create(0, p, &stream));
    assert_stream_equal(stream, first[-p]);
  }
}

TEST(priorities_are_moved_into_the_range) {
  int greatest = greatest_priority(), priority = 7;
  const int wishes[] = {0, 1, 5, 1000, 2147483647, -1, -1000, -2147483647 - 1};
  for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
    weir_stream stream;
    assert_ok(weir_stream_create(0, wishes[i], &stream));
    assert_ok(weir_stream_priority(stream, &priority));
    assert_int_equal(priority, wishes[i] > 0 ? 0 : wishes[i] < greatest ? greatest : wishes[i]);
  }
  assert_ok(weir_stream_priority(default_stream(0), &priority));
  assert_int_equal(priority, 0);
}

TEST(each_device_has_pools) {
  NEED_TWO_DEVICES();
  weir_stream zero = new_stream(0), one = new_stream(1);
  assert_int_equal(zero.device, 0);
  assert_int_equal(one.device, 1);
  assert_false(weir_stream_equal(zero, one));
  assert_ptr_not_equal(raw_of(zero), raw_of(one));
  weir_cu_context context;
  weir_cu_device device;
  assert_cu(d->StreamGetCtx(d, raw_of(one), &context));
  assert_cu(d->CtxSetCurrent(d, context));
  assert_cu(d->CtxGetDevice(d, &device));
  assert_int_equal(device, 1);

  assert_ok(weir_device_set_current(1));
  assert_int_equal(new_stream(-1).device, 1);
  assert_false(weir_stream_equal(default_stream(0), default_stream(1)));
}

TEST(create_changes_nothing_current) {
  int last = devices() - 1;
  new_stream(last);
  assert_int_equal(current_device(), 0);
  assert_int_equal(current_stream(last).id, 0);
}

/* ---- Values ---- */

TEST(unpack) {
  weir_stream streams[5], back;
  int last = devices() - 1;
  streams[0] = default_stream(0);
  streams[1] = new_stream(0);
  streams[2] = new_stream(last);
  streams[3] = default_stream(last);
  assert_ok(weir_stream_create(0, greatest_priority(), &streams[4]));
  for (int i = 0; i < 5; i++) {
    assert_int_equal(streams[i].device_type, WEIR_DEVICE_TYPE_GPU);
    memset(&back, 0x5a, sizeof back);
    assert_ok(weir_stream_unpack(streams[i].id, streams[i].device, WEIR_DEVICE_TYPE_GPU, &back));
    assert_stream_equal(back, streams[i]);
    assert_ptr_equal(raw_of(back), raw_of(streams[i]));
  }
}

TEST(unpack_refuses) {
  int count = devices();
  weir_stream stream = new_stream(0), out = {.id = 77, .device = 78, .device_type = 79};
  const struct {
    int64_t id, device, type;
  } bad[] = {
      {stream.id, count, 1},
      {stream.id, -1, 1},
      {stream.id, -2, 1},
      {stream.id, 1000, 1},
      {stream.id, 1ll << 32, 1},
      {stream.id, 0, 0},
      {stream.id, 0, 2},
      {stream.id, 0, -1},
      {stream.id, 0, (1ll << 32) + 1},
      {0, count, 1},
      {0, 0, 0},
      {-1, 0, 1},
      {-2, 0, 1},
      {1, 0, 1},         /* an invalid pool */
      {INT64_MAX, 0, 1}, /* odd: a pooled stream */
      {INT64_MIN, 0, 1},
      {stream.id | 32ll << 5, 0, 1}, /* past the end of the pool */
      {stream.id | 0xfll << 1, 0, 1},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_error(INVALID_ARGUMENT, weir_stream_unpack(bad[i].id, bad[i].device, bad[i].type, &out));
    if (bad[i].device >= 0 && bad[i].device == (int32_t)bad[i].device && bad[i].type == (int32_t)bad[i].type) {
      weir_stream wrong = {.id = bad[i].id, .device = (int32_t)bad[i].device, .device_type = (int32_t)bad[i].type};
      weir_cu_stream raw;
      assert_error(INVALID_ARGUMENT, weir_stream_raw(wrong, &raw));
    }
  }
  assert_int_equal(out.id, 77);
  assert_int_equal(out.device, 78);
  assert_int_equal(out.device_type, 79);
}

/* An id refers to the same pool and index in the next runtime. */
TEST(ids_outlive_the_runtime) {
  weir_stream stream = new_stream(0), back;
  shut_down_clean();
  assert_ok(weir_stream_unpack(stream.id, 0, WEIR_DEVICE_TYPE_GPU, &back));
  mark(back, 1);
  assert_ok(weir_stream_synchronize(back));
  assert_marks(1);
}

TEST(equal_and_hash) {
  weir_stream all[2 * WEIR_STREAMS_PER_POOL + 2];
  int count = 0, last = devices() - 1;
  for (int i = 0; i < WEIR_STREAMS_PER_POOL; i++) {
    all[count++] = new_stream(0);
    assert_ok(weir_stream_create(last, -1, &all[count++]));
  }
  all[count++] = default_stream(0);
  if (last > 0)
    all[count++] = default_stream(last);
  for (int i = 0; i < count; i++) {
    weir_stream copy = all[i];
    assert_int_equal(weir_stream_equal(all[i], copy), 1);
    assert_int_equal(weir_stream_hash(all[i]), weir_stream_hash(copy));
    for (int j = 0; j < i; j++) {
      assert_int_equal(weir_stream_equal(all[i], all[j]), 0);
      assert_int_not_equal(weir_stream_hash(all[i]), weir_stream_hash(all[j]));
    }
  }
  weir_stream other = all[0];
  other.device_type = 2;
  assert_int_equal(weir_stream_equal(all[0], other), 0);
}

/* ---- External streams ---- */

TEST(external) {
  int last = devices() - 1;
  weir_cu_stream raw;
  weir_stream stream, again;
  assert_ok(weir_device_set_current(last));
  assert_cu(d->StreamCreateWithPriority(d, &raw, WEIR_CU_STREAM_NON_BLOCKING, -1));
  assert_ok(weir_stream_external(last, raw, &stream));
  assert_ok(weir_stream_external(-1, raw, &again));
  assert_stream_equal(stream, again);
  assert_int_equal(weir_stream_hash(stream), weir_stream_hash(again));
  assert_int_equal(stream.device, last);
  assert_int_equal(stream.id, (int64_t)(uintptr_t)raw);
  assert_ptr_equal(raw_of(stream), raw);
  int priority = 7;
  assert_ok(weir_stream_priority(stream, &priority));
  assert_int_equal(priority, -1);
  assert_ok(weir_stream_unpack(stream.id, stream.device, stream.device_type, &again));
  assert_stream_equal(stream, again);

  /* It works as any other stream. */
  assert_ok(weir_stream_set_current(stream));
  assert_stream_equal(current_stream(-1), stream);
  weir_stream other = new_stream(last);
  struct held *gate = hold(stream);
  mark(stream, 1);
  assert_ok(weir_stream_wait_stream(other, stream));
  mark(other, 2);
  assert_not_ready(weir_stream_query(stream));
  unblock(gate);
  assert_ok(weir_stream_synchronize(other));
  assert_marks(1, 2);

  assert_ok(weir_stream_set_current(default_stream(last)));
  assert_ok(weir_stream_synchronize(stream));
  assert_cu(d->StreamDestroy(d, raw));
}

/* A weir_stream and a plain CUstream are turned into each other without a call of the driver. */
TEST_SETUP(conversions_call_no_driver, runtime_setup_fault, runtime_teardown) {
  NEED_SOFT("it takes a fault table, which counts calls");
  weir_stream own = new_stream(1), unpacked, back, none = default_stream(1), from_null;
  assert_ok(weir_stream_unpack(own.id, own.device, own.device_type, &unpacked));
  weir_cu_stream raw, made, null = raw_of(own);
  assert_ok(weir_device_set_current(1));
  assert_cu(d->StreamCreateWithPriority(d, &made, WEIR_CU_STREAM_NON_BLOCKING, 0));
  assert_ok(weir_device_set_current(0));
  unsigned long before, after;
  assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, &before, NULL));
  assert_ok(weir_stream_raw(unpacked, &raw));
  assert_ok(weir_stream_raw(none, &null));
  assert_ok(weir_stream_external(1, raw, &back));
  assert_ok(weir_stream_external(1, null, &from_null));
  assert_null(null);
  assert_stream_equal(back, own); /* a stream of a pool is known by its handle */
  assert_stream_equal(from_null, none);
  assert_ok(weir_stream_external(1, made, &back));
  assert_ok(weir_stream_raw(back, &raw));
  assert_ptr_equal(raw, made);
  assert_ok(weir_fault_counts(fault, WEIR_CALL_COUNT, &after, NULL));
  assert_int_equal(after, before);
  assert_cu(d->StreamDestroy(d, made));
}

TEST(external_null_is_the_default) {
  weir_stream stream = {.id = 7};
  assert_ok(weir_stream_external(0, NULL, &stream));
  assert_stream_equal(stream, default_stream(0));
  assert_int_equal(stream.id, 0);
}

TEST(external_per_thread_stream) {
  weir_stream stream;
  assert_ok(weir_stream_external(0, WEIR_CU_STREAM_PER_THREAD, &stream));
  assert_false(weir_stream_equal(stream, default_stream(0)));
  mark(stream, 1);
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(1);
}

/* ---- The current stream ---- */

TEST(set_current_switches_the_device) {
  NEED_TWO_DEVICES();
  weir_stream zero = new_stream(0), one = new_stream(1);
  assert_ok(weir_stream_set_current(zero));
  assert_int_equal(current_device(), 0);
  assert_ok(weir_stream_set_current(one));
  assert_int_equal(current_device(), 1);
  assert_stream_equal(current_stream(-1), one);
  assert_stream_equal(current_stream(0), zero); /* each device has its own */
  assert_ok(weir_device_set_current(0));
  assert_stream_equal(current_stream(-1), zero);
  assert_stream_equal(current_stream(1), one);
  assert_ok(weir_stream_set_current(default_stream(0)));
  assert_int_equal(current_stream(0).id, 0);
  assert_stream_equal(current_stream(1), one);
}

struct streams {
  weir_stream given, before, after;
  weir_status status;
};

static void *set_in_thread(void *data) {
  struct streams *s = data;
  s->status = weir_stream_get_current(s->given.device, &s->before);
  if (s->status == WEIR_OK)
    s->status = weir_stream_set_current(s->given);
  if (s->status == WEIR_OK)
    s->status = weir_stream_get_current(s->given.device, &s->after);
  return NULL;
}

TEST(current_is_per_thread) {
  int last = devices() - 1;
  weir_stream mine = new_stream(last);
  assert_ok(weir_stream_set_current(mine));
  struct streams s = {.given = new_stream(last)};
  on_thread(set_in_thread, &s);
  assert_ok(s.status);
  assert_stream_equal(s.before, default_stream(last));
  assert_stream_equal(s.after, s.given);
  assert_stream_equal(current_stream(last), mine);
}

TEST(scope_on_one_device) {
  weir_stream a = new_stream(0), b = new_stream(0);
  weir_stream_scope outer, inner;
  assert_ok(weir_stream_scope_enter(a, &outer));
  assert_stream_equal(current_stream(0), a);
  assert_ok(weir_stream_scope_enter(b, &inner));
  assert_stream_equal(current_stream(0), b);
  assert_ok(weir_stream_scope_leave(&inner));
  assert_stream_equal(current_stream(0), a);
  assert_ok(weir_stream_scope_leave(&outer));
  assert_stream_equal(current_stream(0), default_stream(0));
}

TEST(scope_restores_device_and_both_streams) {
  NEED_TWO_DEVICES();
  weir_stream zero = new_stream(0), one = new_stream(1), inside = new_stream(1);
  assert_ok(weir_stream_set_current(one));
  assert_ok(weir_stream_set_current(zero));
  weir_stream_scope scope;
  assert_ok(weir_stream_scope_enter(inside, &scope));
  assert_int_equal(current_device(), 1);
  assert_stream_equal(current_stream(1), inside);
  assert_stream_equal(current_stream(0), zero);
  assert_ok(weir_device_set_current(0)); /* changes inside do not matter */
  assert_ok(weir_stream_set_current(new_stream(0)));
  assert_ok(weir_stream_scope_leave(&scope));
  assert_int_equal(current_device(), 0);
  assert_stream_equal(current_stream(0), zero);
  assert_stream_equal(current_stream(1), one);
}

TEST(scope_that_cannot_be_entered) {
  weir_stream mine = new_stream(0), wrong = {.id = 0, .device = 1000, .device_type = WEIR_DEVICE_TYPE_GPU};
  assert_ok(weir_stream_set_current(mine));
  weir_stream_scope scope;
  memset(&scope, 0x5a, sizeof scope);
  weir_stream_scope before = scope;
  assert_error(INVALID_ARGUMENT, weir_stream_scope_enter(wrong, &scope));
  assert_memory_equal(&scope, &before, sizeof scope);
  assert_stream_equal(current_stream(0), mine);
  assert_int_equal(current_device(), 0);
}

/* Leaving a device creates no context on it. */
TEST(scope_leaves_a_device_without_context) {
  NEED_TWO_DEVICES();
  int has;
  weir_stream_scope scope;
  assert_ok(weir_stream_scope_enter(new_stream(1), &scope));
  assert_ok(weir_stream_scope_leave(&scope));
  assert_int_equal(current_device(), 0);
  assert_ok(weir_device_has_primary_context(0, &has));
  assert_int_equal(has, 0);
}

/* ---- Query, synchronize, host functions, spin ---- */

TEST(query_and_synchronize) {
  const weir_stream streams[] = {new_stream(0), default_stream(0)};
  for (int i = 0; i < 2; i++) {
    assert_ok(weir_stream_query(streams[i]));
    struct held *gate = hold(streams[i]);
    assert_not_ready(weir_stream_query(streams[i]));
    assert_not_ready(weir_stream_query(streams[i]));
    unblock(gate);
    assert_ok(weir_stream_synchronize(streams[i]));
    assert_ok(weir_stream_query(streams[i]));
  }
}

TEST(synchronize_is_of_one_stream) {
  weir_stream held = new_stream(0), free_one = new_stream(0);
  assert_ok(weir_stream_spin(free_one, 1)); /* loads the kernel, which may wait for all running work */
  struct held *gate = hold(held);
  assert_ok(weir_stream_spin(free_one, 1000));
  assert_ok(weir_stream_synchronize(free_one));
  assert_ok(weir_stream_query(free_one));
  assert_not_ready(weir_stream_query(held));
  unblock(gate);
  assert_ok(weir_stream_synchronize(held));
}

TEST(a_stream_is_in_order) {
  weir_stream stream = new_stream(0);
  for (int i = 0; i < 20; i++)
    mark(stream, i);
  assert_ok(weir_stream_synchronize(stream));
  assert_marks(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19);
}

static pthread_t function_thread;
static void *function_data;
static void note_thread(void *data) {
  function_thread = pthread_self();
  function_data = data;
}

TEST(host_function) {
  int here;
  weir_stream stream = new_stream(0);
  assert_ok(weir_stream_host_function(stream, note_thread, &here));
  assert_ok(weir_stream_synchronize(stream));
  assert_ptr_equal(function_data, &here);
  if (!is_stepped()) /* in stepped time the thread that steps or waits runs the work */
    assert_false(pthread_equal(function_thread, pthread_self()));
}

TEST(spin_duration) {
  weir_event *start, *end;
  weir_stream stream = new_stream(0);
  double milliseconds = -1;
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &start));
  assert_ok(weir_event_create(WEIR_EVENT_TIMING, &end));
  assert_ok(weir_stream_spin(stream, 0)); /* the first one loads the kernel */
  assert_ok(weir_event_record(start, stream));
  assert_ok(weir_stream_spin(stream, cycles_of(20)));
  assert_ok(weir_event_record(end, stream));
  assert_ok(weir_stream_synchronize(stream));
  assert_ok(weir_event_elapsed(start, end, &milliseconds));
  if (is_stepped())
    assert_in_range((long)(milliseconds * 1000), 20000, 20100); /* counted, not measured */
  else
    assert_in_range((long)(milliseconds * 1000), 18000, 60 * 1000 * 1000);
  weir_event_destroy(start);
  weir_event_destroy(end);
}

/* ---- Failing driver calls ---- */

static void nothing(void *data) { (void)data; }

static weir_status use_streams(void) {
  weir_stream a, b, external;
  weir_cu_stream raw;
  int least, greatest;
  weir_stream_scope scope;
  weir_status status = weir_stream_create(0, 0, &a);
  if (status == WEIR_OK)
    status = weir_stream_create(1, -1, &b);
  if (status == WEIR_OK)
    status = weir_stream_priority_range(&least, &greatest);
  if (status == WEIR_OK)
    status = weir_stream_raw(b, &raw);
  if (status == WEIR_OK)
    status = weir_stream_external(1, raw, &external);
  if (status == WEIR_OK)
    status = weir_stream_priority(external, &least);
  if (status == WEIR_OK)
    status = weir_stream_unpack(b.id, b.device, b.device_type, &b);
  if (status == WEIR_OK)
    status = weir_stream_scope_enter(b, &scope);
  if (status == WEIR_OK) {
    status = weir_stream_spin(a, 100);
    if (status == WEIR_OK)
      status = weir_stream_host_function(b, nothing, NULL);
    if (status == WEIR_OK)
      status = weir_stream_wait_stream(b, a);
    if (status == WEIR_OK)
      status = weir_stream_wait_stream(a, external);
    weir_status left = weir_stream_scope_leave(&scope);
    if (status == WEIR_OK)
      status = left;
  }
  if (status == WEIR_OK)
    status = weir_stream_synchronize(a);
  if (status == WEIR_OK)
    status = weir_stream_query(a);
  if (status == WEIR_OK)
    status = weir_stream_set_current(a);
  return status;
}

TEST_SETUP(every_driver_call_fails_once, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("the driver cannot be asked for what is left");
  sweep_faults(use_streams);
}

TEST_SETUP(a_broken_device_stays_broken, runtime_setup_fault, runtime_teardown) {
  weir_stream stream = new_stream(0);
  assert_ok(weir_fault_nth(fault, WEIR_CALL_StreamSynchronize, 1, WEIR_CU_ILLEGAL_ADDRESS, 1));
  assert_error_says(DEVICE_FAULT, "illegal memory access", weir_stream_synchronize(stream));
  assert_int_equal(weir_last_driver_result(), WEIR_CU_ILLEGAL_ADDRESS);
  assert_error(DEVICE_FAULT, weir_stream_query(stream));
  assert_error(DEVICE_FAULT, weir_device_synchronize(0));
  assert_ok(weir_fault_clear(fault)); /* for the teardown */
}

/* A device-side assertion that fails. The launch succeeds, and so do calls that need nothing from the device. The first
 * call that waits for it reports the error, and so does every later call. */
TEST_SETUP(fixed_cuda_assert_async, runtime_setup_fault, runtime_teardown) {
  static const weir_driver_call waits[] = {WEIR_CALL_StreamSynchronize, WEIR_CALL_CtxSynchronize,
                                           WEIR_CALL_EventSynchronize, WEIR_CALL_StreamQuery};
  weir_stream stream = new_stream(0), other = new_stream(0);
  weir_event *event;
  void *memory = device_memory(0, 100);
  assert_ok(weir_event_create(0, &event));
  for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
    /* An assertion that holds. */
    assert_ok(weir_stream_spin(stream, 1000));
    assert_ok(weir_event_record(event, stream));
    assert_ok(weir_stream_synchronize(stream));
    assert_ok(weir_device_synchronize(0));
    assert_ok(weir_event_synchronize(event));
    assert_ok(weir_stream_query(stream));

    assert_ok(weir_fault_nth(fault, waits[i], 1, WEIR_CU_ASSERT, 1));
    assert_ok(weir_stream_spin(stream, 1000));
    assert_ok(weir_event_record(event, stream));
    switch (i) {
    case 0:
      assert_error_says(DEVICE_FAULT, "device-side assert triggered", weir_stream_synchronize(stream));
      break;
    case 1:
      assert_error_says(DEVICE_FAULT, "device-side assert triggered", weir_device_synchronize(0));
      break;
    case 2:
      assert_error_says(DEVICE_FAULT, "device-side assert triggered", weir_event_synchronize(event));
      break;
    default:
      assert_error_says(DEVICE_FAULT, "device-side assert triggered", weir_stream_query(stream));
    }
    assert_int_equal(weir_last_driver_result(), WEIR_CU_ASSERT);
    assert_error_says(DEVICE_FAULT, "device-side assert triggered", weir_stream_spin(other, 1000));
    assert_error(DEVICE_FAULT, weir_fill_async(memory, 1, 100, other));
    assert_error(DEVICE_FAULT, weir_event_record(event, other));
    assert_error(DEVICE_FAULT, weir_stream_query(other));
    assert_error(DEVICE_FAULT, weir_stream_synchronize(other));
    assert_error(DEVICE_FAULT, weir_device_synchronize(0));
    assert_ok(weir_fault_clear(fault)); /* for the next test and the teardown */
  }
  weir_event_destroy(event);
  free_device_memory(0, memory);
}

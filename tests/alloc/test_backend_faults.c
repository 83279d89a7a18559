/*
 * Every driver call that an allocator over another back end makes fails once. Afterwards the walker holds, the next allocation
 * works, and in the end no byte is missing.
 */
#include "alloc/allocator.h"
#include "alloc/plug_fixture.h"

enum { MOST = 32 };
static void *live[MOST];
static int live_count;
static weir_cu_stream mine, other;

static void *take(size_t bytes, weir_cu_stream stream) {
  void *p = NULL;
  if (weir_allocator_alloc(allocator, 0, bytes, stream, &p) != WEIR_OK)
    return NULL;
  assert_true(live_count < MOST);
  return live[live_count++] = p;
}

static void drop(void *p) {
  if (!p || weir_allocator_free(allocator, p) != WEIR_OK)
    return;
  int i = 0;
  while (live[i] != p)
    i++;
  live[i] = live[--live_count];
}

static void use(void *p, weir_cu_stream stream) {
  if (p)
    assert_ok(weir_allocator_record_stream(allocator, p, stream));
  work(stream);
}

/* All that can happen, in one go. */
static void act(void) {
  void *a = take(1000, mine), *b = take(3 * MIB, mine), *c = take(2000, other);
  size_t bytes;
  weir_allocator_stats stats = {.size = sizeof stats};
  use(a, other);
  use(b, other);
  use(b, NULL);
  drop(a);
  drop(c);
  drop(b);
  weir_allocator_get_stats(allocator, 0, &stats);
  weir_allocator_largest_block(allocator, 0, &bytes);
  take(500, mine);
  soft_step_all();
  drop(take(600 * MIB, other));
  take(600 * MIB, mine);
  weir_allocator_reset_peak_stats(allocator, 0);
  weir_allocator_empty_cache(allocator);
  assert_valid();
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_cu(d->StreamBeginCapture(d, mine, WEIR_CU_CAPTURE_RELAXED));
  c = take(4000, other);
  use(c, NULL);
  drop(c);
  weir_allocator_get_stats(allocator, 0, &stats);
  weir_cu_graph graph;
  assert_cu(d->StreamEndCapture(d, mine, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  take(700, other);
  weir_allocator_enable_peer_access(allocator, 0, 1);
}

static void open(bool async) {
  live_count = 0;
  if (async)
    alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, "backend:cudaMallocAsync");
  else {
    weir_backend backend = plug_backend();
    plug_open_on(WEIR_SOFT_STEPPED, 2, &backend, NULL);
  }
  mine = work_stream();
  other = work_stream();
}

static void check_recovery(void) {
  assert_ok(weir_fault_clear(faults));
  assert_valid();
  put(get(512, mine));
  put(get(45 * MIB, other));
  while (live_count)
    put(live[--live_count]);
  soft_step_all();
  empty_cache();
  assert_int_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].current, 0);
  assert_int_equal(stats_of(0).active[WEIR_STAT_ALL].current, 0);
  assert_int_equal(soft_census().device_bytes, 0);
  alloc_close();
  assert_int_equal(plugged.allocs, plugged.frees);
}

static void sweep(bool async) {
  static const weir_cu_result codes[] = {WEIR_CU_OUT_OF_MEMORY, WEIR_CU_UNKNOWN, WEIR_CU_STREAM_CAPTURE_UNSUPPORTED};
  unsigned long count = 0, failed = 0;
  open(async);
  unsigned long before = calls(WEIR_CALL_COUNT);
  act();
  count = calls(WEIR_CALL_COUNT) - before;
  check_recovery();
  assert_true(count > 30);
  for (unsigned long nth = 1; nth <= count; nth++)
    for (size_t code = 0; code < WEIR_COUNT_OF(codes); code++) {
      unsigned long made = 0, faulty = 0;
      open(async);
      assert_ok(weir_fault_nth_any(faults, nth, codes[code]));
      act();
      assert_ok(weir_fault_counts(faults, WEIR_CALL_COUNT, &made, &faulty));
      failed += faulty;
      check_recovery();
    }
  assert_true(failed >= count); /* the later ones may not come to pass */
}

static void test_pluggable(void **state) {
  (void)state;
  sweep(false);
}

static void test_stream_ordered(void **state) {
  (void)state;
  sweep(true);
}

/* A free that the driver refuses can be tried again. */
static void test_refused_free(void **state) {
  (void)state;
  open(true);
  void *a = get(512, mine);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFreeAsync, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemFreeAsync", weir_allocator_free(allocator, a));
  assert_int_equal(allocated(), 512);
  put(a);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemAllocFromPoolAsync, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemAllocFromPoolAsync", weir_allocator_alloc(allocator, 0, 512, mine, &a));
  soft_step_all();
  alloc_close();
}

/* A device that is broken for good: nothing hangs, and the end is the end. */
static void test_broken(void **state) {
  (void)state;
  for (int async = 0; async < 2; async++) {
    open(async);
    void *a = get(512, mine);
    assert_ok(weir_allocator_record_stream(allocator, a, other));
    assert_ok(
        weir_fault_nth(faults, async ? WEIR_CALL_MemFreeAsync : WEIR_CALL_EventRecord, 1, WEIR_CU_ILLEGAL_ADDRESS, 1));
    weir_status status = weir_allocator_free(allocator, a);
    assert_int_equal(status, async ? WEIR_ERROR_DEVICE_FAULT : WEIR_OK);
    void *b = NULL;
    assert_int_not_equal(weir_allocator_alloc(allocator, 0, 100, mine, &b), WEIR_OK);
    assert_true(weir__allocator_is_valid(allocator));
    assert_ok(weir_fault_clear(faults));
    alloc_close();
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_pluggable, alloc_teardown),
      cmocka_unit_test_teardown(test_stream_ordered, alloc_teardown),
      cmocka_unit_test_teardown(test_refused_free, alloc_teardown),
      cmocka_unit_test_teardown(test_broken, alloc_teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

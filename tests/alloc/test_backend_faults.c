/*
 * Each driver call of an allocator with another back end fails once. Afterwards the allocator is valid, the next
 * allocation succeeds, and at the end no memory is leaked.
 */
#include "alloc/plug_fixture.h"
#include "support/valid.h"

static weir_cu_stream mine, other;

static void use(void *p, weir_cu_stream stream) {
  if (p)
    assert_ok(weir_allocator_record_stream(allocator, p, stream));
  work(stream);
}

/* All operations in one sequence. */
static void act(void) {
  void *a = get_live(0, 1000, mine), *b = get_live(0, 3 * MIB, mine), *c = get_live(0, 2000, other);
  size_t bytes;
  weir_allocator_stats stats = {.size = sizeof stats};
  use(a, other);
  use(b, other);
  use(b, NULL);
  put_live(a);
  put_live(c);
  put_live(b);
  weir_allocator_get_stats(allocator, 0, &stats);
  weir_allocator_largest_block(allocator, 0, &bytes);
  get_live(0, 500, mine);
  soft_step_all();
  put_live(get_live(0, 600 * MIB, other));
  get_live(0, 600 * MIB, mine);
  weir_allocator_reset_peak_stats(allocator, 0);
  weir_allocator_empty_cache(allocator);
  assert_valid();
  assert_ok(weir_allocator_begin_capture(allocator, 0));
  assert_cu(d->StreamBeginCapture(d, mine, WEIR_CU_CAPTURE_RELAXED));
  c = get_live(0, 4000, other);
  use(c, NULL);
  put_live(c);
  weir_allocator_get_stats(allocator, 0, &stats);
  weir_cu_graph graph;
  assert_cu(d->StreamEndCapture(d, mine, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  assert_ok(weir_allocator_end_capture(allocator, 0));
  get_live(0, 700, other);
  weir_allocator_enable_peer_access(allocator, 0, 1);
}

static void open(const void *conf) {
  if (conf)
    alloc_open_on(WEIR_SOFT_STEPPED, 2, GIB, conf);
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
  put_all_live();
  soft_step_all();
  empty_cache();
  assert_int_equal(stats_of(0).reserved_bytes[WEIR_STAT_ALL].current, 0);
  assert_int_equal(stats_of(0).active[WEIR_STAT_ALL].current, 0);
  assert_int_equal(soft_census().device_bytes, 0);
  alloc_close();
  assert_int_equal(plugged.allocs, plugged.frees);
}

FIXTURE(.teardown = alloc_teardown)

TEST(pluggable) { sweep_driver_calls(&(fault_sweep){open, act, check_recovery, NULL}); }

TEST(stream_ordered) { sweep_driver_calls(&(fault_sweep){open, act, check_recovery, "backend:cudaMallocAsync"}); }

/* A free that the driver refuses can be repeated. */
TEST(refused_free) {
  open("backend:cudaMallocAsync");
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

/* A device that stays broken: no call hangs, and the allocator can be destroyed. */
TEST(broken) {
  for (int async = 0; async < 2; async++) {
    open(async ? "backend:cudaMallocAsync" : NULL);
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

/*
 * Each driver call for pinned memory fails once. Afterwards everything works, and at the end no memory is leaked.
 */
#include <string.h>

#include "support/alloc.h"
#include "weir/host.h"

static weir_host_allocator *host;
static weir_cu_stream stream;

static void *take(size_t bytes) {
  void *p = NULL;
  if (weir_host_alloc(host, bytes, &p) != WEIR_OK) {
    assert_null(p);
    return NULL;
  }
  memset(p, 1, bytes);
  keep_live(p);
  return p;
}

static void drop(void *p) {
  if (!p)
    return;
  weir_host_free(host, p); /* freed even if the call reports that the driver refused to release it */
  forget_live(p);
}

/* A use that could not be recorded gives no guarantee. */
static void use(void *p) {
  if (p)
    weir_host_record_stream(host, p, 0, stream);
  work(stream);
}

static void act(void) {
  void *a = take(1000), *b = take(5000);
  use(a);
  drop(a);
  use(b);
  drop(b);
  take(1000);
  soft_step_all();
  take(1000);
  drop(take(2 * MIB));
  drop(take(5 * MIB));
  weir_host_empty_cache(host);
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_RELAXED));
  a = take(3000);
  use(a);
  drop(a);
  weir_cu_graph graph;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  drop(take(100));
}

static void open(const void *conf) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(conf), &host));
  stream = work_stream();
}

static void check_recovery(void) {
  assert_ok(weir_fault_clear(faults));
  drop(take(100));
  drop(take(3 * MIB));
  while (live_block_count)
    drop(live_blocks[0]);
  for (int i = 0; i < 3; i++) {
    soft_step_all();
    drop(take(100));
  }
  assert_ok(weir_host_empty_cache(host));
  weir_host_stats stats = {.size = sizeof stats};
  assert_ok(weir_host_get_stats(host, &stats));
  assert_in_range(stats.allocations.current, 0, 1); /* of a graph */
  assert_int_equal(stats.active_requests.current, stats.allocations.current);
  assert_int_equal(stats.allocated_bytes.current, stats.active_bytes.current);
  weir_host_allocator_destroy(host);
  host = NULL;
  assert_int_equal(soft_census().host_allocations, 0);
  assert_int_equal(soft_census().registrations, 0);
  assert_int_equal(soft_census().events, 0);
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(driver) { sweep_driver_calls(&(fault_sweep){open, act, check_recovery, ""}); }

TEST(registered) {
  sweep_driver_calls(
      &(fault_sweep){open, act, check_recovery,
                     "pinned_use_cuda_host_register:True,pinned_num_register_threads:2,pinned_max_cached_size_mb:1"});
}

TEST(pieces) {
  sweep_driver_calls(&(fault_sweep){open, act, check_recovery,
                                    "pinned_register_min_mb:3,pinned_register_piece_mb:2,"
                                    "pinned_max_round_threshold_mb:1"});
}

/* Memory that the driver refuses to release is kept, and releasing it is retried. */
TEST(refused_free) {
  open("pinned_max_cached_size_mb:1");
  void *a = take(2 * MIB);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFreeHost, 1, WEIR_CU_UNKNOWN, 0));
  assert_error_says(DRIVER, "cuMemFreeHost", weir_host_free(host, a));
  assert_ptr_equal(take(2 * MIB), a); /* freed nevertheless */
  assert_ok(weir_host_configure(host, "pinned_free_catch_all:True"));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFreeHost, 1, WEIR_CU_UNKNOWN, 0));
  drop(a);
  check_recovery();
}

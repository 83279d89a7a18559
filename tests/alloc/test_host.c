/*
 * Pinned host memory: caching, reuse and settings.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "alloc/host/host.h"
#include "support/alloc.h"
#include "weir/maintain.h"

static weir_host_allocator *host;

static void open_host(const char *conf) {
  alloc_open_devices(WEIR_SOFT_STEPPED, 2, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(conf), &host));
}

static void close_host(void) {
  weir_host_allocator_destroy(host);
  host = NULL;
  alloc_close();
}

static int host_teardown(void **state) {
  if (faults)
    weir_fault_clear(faults);
  weir_host_allocator_destroy(host);
  host = NULL;
  return alloc_teardown(state);
}

FIXTURE(.teardown = host_teardown)

static void *take(size_t bytes) {
  void *p = NULL;
  assert_ok(weir_host_alloc(host, bytes, &p));
  return p;
}

static void give(void *p) { assert_ok(weir_host_free(host, p)); }

static weir_host_stats host_stats(void) {
  weir_host_stats stats = {.size = sizeof stats};
  assert_ok(weir_host_get_stats(host, &stats));
  return stats;
}

static unsigned long pinned(void) { return soft_census().host_allocations; }

/* ---- The witness ---- */

static char witnessed[1000];
static const char *first_address;

/* "segment_alloc 0 1024, ": the address is that from the first one seen. */
static void witness(void *context, const weir_trace_entry *entry) {
  const char *address = (const char *)(uintptr_t)entry->address;
  size_t used = strlen(witnessed);
  assert_ptr_equal(context, witnessed);
  assert_int_equal(entry->device, -1);
  assert_null(entry->stream);
  assert_true(entry->size == sizeof *entry && !entry->pool.first && !entry->pool.second);
  first_address = first_address ? first_address : address;
  snprintf(witnessed + used, sizeof witnessed - used, "%s %s%llu, ", weir_trace_action_name(entry->action),
           address == first_address ? "first " : "", (unsigned long long)entry->bytes);
}

static void assert_witnessed(const char *expected) {
  assert_string_equal(witnessed, expected);
  *witnessed = 0;
}

TEST(witness) {
  open_host("pinned_max_cached_size_mb:1");
  weir_cu_stream stream = work_stream();
  first_address = NULL;
  *witnessed = 0;
  char *a = take(1000), *b;
  assert_ok(weir_host_set_witness(host, witness, witnessed));
  assert_witnessed("segment_alloc first 1024, alloc first 1024, "); /* it was there before */
  assert_ok(weir_host_set_witness(host, witness, witnessed));
  assert_error_says(BAD_STATE, "another witness", weir_host_set_witness(host, witness, NULL));
  give(a);
  assert_ptr_equal(take(1024), a);
  assert_witnessed("free_requested first 1024, free_completed first 1024, alloc first 1024, ");

  /* Memory that a stream uses is free when the stream has finished with it. */
  work(stream);
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  give(a);
  assert_witnessed("free_requested first 1024, ");
  soft_step_all();
  b = take(3000);
  assert_witnessed("free_completed first 1024, segment_alloc 4096, alloc 4096, ");

  /* Memory that is too large to be kept, and an empty cache. */
  give(take(2 * MIB));
  assert_witnessed("segment_alloc 2097152, alloc 2097152, free_requested 2097152, free_completed 2097152, "
                   "segment_free 2097152, ");
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFreeHost, 1, WEIR_CU_UNKNOWN, 0));
  assert_error(DRIVER, weir_host_empty_cache(host));
  assert_witnessed("segment_free first 1024, segment_alloc first 1024, ");
  assert_ok(weir_fault_clear(faults));
  assert_ok(weir_host_empty_cache(host));
  assert_witnessed("segment_free first 1024, ");

  /* Without it, the fast path is back; another one gets what there is, also what waits for a stream. */
  assert_ok(weir_host_set_witness(host, NULL, NULL));
  give(b);
  assert_ptr_equal(take(4000), b);
  work(stream);
  assert_ok(weir_host_record_stream(host, b, 0, stream));
  give(b);
  assert_witnessed("");
  first_address = b;
  assert_ok(weir_host_set_witness(host, witness, witnessed));
  assert_witnessed("segment_alloc first 4096, alloc first 4096, free_requested first 4096, ");
  soft_step_all();
  assert_ok(weir_host_empty_cache(host));
  assert_witnessed("free_completed first 4096, segment_free first 4096, ");
  close_host();
}

/* ---- Reuse ---- */

TEST(reuse) {
  open_host("");
  char *a = take(1000);
  memset(a, 7, 1000);
  assert_int_equal(pinned(), 1);
  give(a);
  assert_int_equal(pinned(), 1);         /* cached */
  assert_ptr_equal(take(600), a);        /* both are rounded to 1024 */
  void *b = take(1024), *c = take(1025); /* the second is rounded to 2048 */
  assert_ptr_not_equal(b, a);
  assert_int_equal(pinned(), 3);
  give(c);
  void *e = take(512); /* of a different size class */
  assert_int_equal(pinned(), 4);
  give(a);
  give(b);
  assert_ptr_equal(take(1024), b); /* the block freed last is reused first */
  give(b);
  give(e);
  assert_ptr_equal(take(0), NULL);
  give(NULL);
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(pinned(), 0);
  close_host();
}

TEST(wrong_calls) {
  open_host("");
  void *a = take(100), *p = NULL;
  int owns = 7;
  assert_error(INVALID_ARGUMENT, weir_host_free(host, (char *)a + 1));
  assert_error(INVALID_ARGUMENT, weir_host_free(host, &owns));
  assert_error(INVALID_DEVICE, weir_host_record_stream(host, a, 2, NULL));
  assert_error(INVALID_DEVICE, weir_host_record_stream(host, a, -1, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_record_stream(host, &owns, 0, NULL));
  assert_ok(weir_host_record_stream(host, NULL, 0, NULL));
  assert_ok(weir_host_owns(host, (char *)a + 50, &owns));
  assert_int_equal(owns, 1);
  assert_ok(weir_host_owns(host, &owns, &owns));
  assert_int_equal(owns, 0);
  give(a);
  assert_error(INVALID_ARGUMENT, weir_host_free(host, a));
  assert_ok(weir_host_owns(host, a, &owns));
  assert_int_equal(owns, 0);
  assert_error(INVALID_ARGUMENT, weir_host_record_stream(host, a, 0, NULL));
  assert_error_says(HOST_OUT_OF_MEMORY, "1EB", weir_host_alloc(host, 1ull << 60, &p));
  assert_error(INVALID_ARGUMENT, weir_host_alloc(host, 1, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_alloc(NULL, 1, &p));
  assert_error(INVALID_ARGUMENT, weir_host_free(NULL, a));
  assert_error(INVALID_ARGUMENT, weir_host_configure(host, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_configure(host, "pinned_nothing:1"));
  assert_error(INVALID_ARGUMENT, weir_host_get_stats(host, NULL));
  assert_error(INVALID_ARGUMENT, weir_host_owns(host, a, NULL));
  weir_host_allocator *other = NULL;
  assert_error(INVALID_ARGUMENT, weir_host_allocator_create(NULL, HOST_CONF(""), &other));
  assert_error(INVALID_ARGUMENT, weir_host_allocator_create(faults, HOST_CONF(""), NULL));
  assert_error(INVALID_ARGUMENT, weir_host_allocator_create(faults, HOST_CONF("x"), &other));
  weir_host_allocator_destroy(NULL);
  close_host();
}

/* ---- Streams ---- */

TEST(streams_are_waited_for) {
  open_host("");
  weir_cu_stream one = work_stream(), two = work_stream();
  char *a = take(4096);
  work(one);
  assert_ok(weir_host_record_stream(host, a + 100, 0, one));
  assert_ok(weir_host_record_stream(host, a, 0, one)); /* recording twice has no effect */
  assert_ok(weir_host_record_stream(host, a, 0, two));
  work(two);
  give(a);
  assert_error(INVALID_ARGUMENT, weir_host_free(host, a));
  assert_int_equal(host_stats().active_requests.current, 1); /* until it can be reused */
  void *b = take(4096);
  assert_ptr_not_equal(b, a);
  soft_step(one, 100);
  void *c = take(4096);
  assert_ptr_not_equal(c, a); /* the second stream is not done */
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(pinned(), 3);
  soft_step_all();
  assert_ptr_equal(take(4096), a);
  assert_int_equal(host_stats().active_requests.current, 3);
  give(a); /* the streams of the last use are forgotten */
  assert_ptr_equal(take(4096), a);
  give(a);
  give(b);
  give(c);
  close_host();
}

/* A slow stream does not delay other blocks; a stream of another device counts as well. */
TEST(streams_are_independent) {
  open_host("");
  weir_cu_stream slow = work_stream();
  soft_use(1);
  weir_cu_stream quick = soft_stream(WEIR_CU_STREAM_NON_BLOCKING);
  soft_use(0);
  void *a = take(4096), *b = take(4096);
  work(slow);
  soft_use(1);
  work(quick);
  soft_use(0);
  assert_ok(weir_host_record_stream(host, a, 0, slow));
  assert_ok(weir_host_record_stream(host, b, 1, quick));
  give(a);
  give(b);
  soft_step(quick, 100);
  assert_ptr_equal(take(4096), b);
  void *c = take(4096);
  assert_ptr_not_equal(c, a);
  soft_step_all();
  assert_ptr_equal(take(4096), a);
  assert_cu(d->StreamDestroy(d, quick));
  close_host();
}

/* Nothing of it is used, so nothing has to be waited for. */
TEST(destroy_during_a_capture) {
  open_host("");
  weir_cu_stream stream = work_stream();
  weir_cu_graph graph;
  void *a = take(4096);
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  give(a);
  assert_cu(d->StreamSynchronize(d, stream));
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  weir_host_allocator_destroy(host);
  host = NULL;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  close_host();
}

/* Its work may still run when the memory is freed, and waiting for the device would invalidate captures. */
TEST(destroyed_stream) {
  open_host("");
  weir_cu_stream stream, other = work_stream();
  weir_cu_graph graph;
  assert_cu(d->StreamCreateWithPriority(d, &stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  void *a = take(4096), *b = take(4096);
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  assert_ok(weir_host_record_stream(host, a, 0, other));
  assert_ok(weir_host_record_stream(host, b, 0, stream));
  assert_cu(d->StreamDestroy(d, stream));
  assert_cu(d->StreamBeginCapture(d, other, WEIR_CU_CAPTURE_RELAXED));
  give(a); /* cannot wait for the other stream now either */
  give(b);
  void *c = take(4096);
  assert_ptr_not_equal(c, a);
  assert_ptr_not_equal(c, b);
  assert_cu(d->StreamEndCapture(d, other, &graph));
  assert_cu(d->GraphDestroy(d, graph));
  give(c);
  assert_int_equal(host_stats().active_requests.current, 2);
  for (int i = 0; i < 2; i++) { /* polls: inserts the event of the other stream, then sees that it has completed */
    assert_ptr_equal(take(4096), c);
    give(c);
    assert_cu(d->StreamSynchronize(d, other));
  }
  assert_int_equal(atomic_load(&host->pending), 0); /* the fast path is open */
  assert_int_equal(host_stats().active_requests.current, 2);
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(host_stats().active_requests.current, 0);
  assert_int_equal(host_stats().allocations.current, 0);
  close_host();
}

/* A graph copies from and to the memory at every launch, so the memory stays with the graph. */
TEST(capture) {
  open_host("");
  weir_cu_stream stream = work_stream(), other = work_stream();
  weir_cu_deviceptr to = soft_alloc(4096);
  void *late = take(2048);
  assert_ok(weir_host_record_stream(host, late, 0, stream)); /* before the capture */
  assert_cu(d->StreamBeginCapture(d, stream, WEIR_CU_CAPTURE_GLOBAL));
  void *a = take(4096); /* a driver call, which leaves the capture valid */
  assert_cu(d->MemcpyAsync(d, to, (weir_cu_deviceptr)a, 4096, stream));
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  give(a);
  give(late); /* its event cannot be queried now */
  void *b = take(8192);
  assert_ok(weir_host_record_stream(host, b, 0, other));
  give(b);
  void *c = take(4096);
  assert_ptr_not_equal(c, a);
  give(c);
  assert_ok(weir_host_empty_cache(host));
  weir_cu_graph graph = NULL;
  assert_cu(d->StreamEndCapture(d, stream, &graph));
  give(take(100)); /* polls; the event can be queried now */
  soft_step_all();
  assert_ptr_equal(take(2048), late);
  c = take(4096);
  assert_ptr_not_equal(c, a);
  assert_int_equal(host_stats().active_requests.current, 3); /* late, c, and the memory of the graph */
  assert_cu(d->GraphDestroy(d, graph));
  assert_cu(d->MemFree(d, to));
  close_host();
}

/* ---- Statistics ---- */

TEST(statistics) {
  open_host("");
  void *a = take(1000), *b = take(3000);
  weir_host_stats s = host_stats();
  assert_int_equal(s.num_host_alloc, 2);
  assert_int_equal(s.host_alloc_time.count, 2);
  assert_true(s.host_alloc_time.total >= s.host_alloc_time.max && s.host_alloc_time.max >= s.host_alloc_time.min);
  assert_int_equal(s.allocations.current, 2);
  assert_int_equal(s.allocated_bytes.current, 1024 + 4096);
  assert_int_equal(s.active_bytes.current, 1024 + 4096);
  give(b);
  s = host_stats();
  assert_int_equal(s.allocations.current, 2);
  assert_int_equal(s.active_requests.current, 1);
  assert_int_equal(s.active_requests.peak, 2);
  assert_int_equal(s.active_bytes.current, 1024);
  assert_int_equal(s.active_bytes.freed, 4096);
  assert_ok(weir_host_empty_cache(host));
  s = host_stats();
  assert_int_equal(s.allocations.current, 1);
  assert_int_equal(s.allocated_bytes.freed, 4096);
  assert_int_equal(s.num_host_free, 1);
  assert_int_equal(s.host_free_time.count, 1);
  assert_ok(weir_host_reset_peak_stats(host));
  assert_ok(weir_host_reset_accumulated_stats(host));
  s = host_stats();
  assert_int_equal(s.active_bytes.peak, 1024);
  assert_int_equal(s.active_bytes.current, 1024);
  assert_int_equal(s.active_bytes.allocated, 0);
  assert_int_equal(s.num_host_alloc, 0);
  assert_int_equal(s.host_alloc_time.count, 0);
  weir_host_stats old = {.size = offsetof(weir_host_stats, allocated_bytes)}; /* an older program */
  old.num_host_alloc = 99;
  assert_ok(weir_host_get_stats(host, &old));
  assert_int_equal(old.num_host_alloc, 99);
  assert_int_equal(old.allocations.current, 1);
  give(a);
  close_host();
}

/* ---- Settings ---- */

TEST(registered) {
  open_host("pinned_use_cuda_host_register:True,pinned_num_register_threads:8");
  char *a = take(1 << 20), *b = take(100);
  memset(a, 1, 1 << 20);
  memset(b, 1, 100);
  assert_int_equal(soft_census().registrations, 2);
  assert_int_equal(pinned(), 0);
  assert_ok(weir_host_configure(host, "pinned_use_cuda_host_register:False"));
  void *c = take(3000);
  assert_int_equal(pinned(), 1);
  give(a);
  give(b);
  give(c);
  assert_ok(weir_host_empty_cache(host)); /* each block is released the way it was allocated */
  assert_int_equal(soft_census().registrations, 0);
  assert_int_equal(pinned(), 0);
  close_host();
}

TEST(reserve) {
  open_host("pinned_reserve_segment_size_mb:1");
  assert_int_equal(pinned(), 0); /* allocated on first use */
  char *a = take(100), *b = take(5000);
  assert_int_equal(pinned(), 1);
  assert_int_equal(b - a, 4096);
  assert_int_equal(host_stats().num_host_alloc, 0);
  assert_int_equal(host_stats().allocated_bytes.current, 128 + 8192);
  void *large = take(1 << 20); /* does not fit any more */
  assert_int_equal(pinned(), 2);
  give(a);
  assert_ptr_equal(take(128), a);
  give(a);
  give(b);
  give(large);
  assert_ok(weir_host_empty_cache(host));
  assert_int_equal(pinned(), 1); /* the reserve is kept */
  assert_ptr_equal(take(8192), b);
  close_host();
}

TEST(thresholds) {
  open_host("pinned_max_round_threshold_mb:1,pinned_max_cached_size_mb:4");
  void *a = take((1 << 20) + 1); /* not rounded */
  assert_int_equal(host_stats().allocated_bytes.current, (1 << 20) + 1);
  give(a);
  void *b = take((1 << 20) + 100); /* in the same bucket but larger than the cached block */
  assert_int_equal(pinned(), 2);
  assert_int_equal(host_stats().allocated_bytes.current, 2 * (1 << 20) + 101);
  give(b);
  assert_ptr_equal(take((1 << 20) + 50), b);
  void *large = take(5 << 20);
  assert_int_equal(pinned(), 3);
  give(large); /* not cached */
  assert_int_equal(pinned(), 2);
  large = take(5 << 20);
  weir_cu_stream stream = work_stream();
  work(stream);
  assert_ok(weir_host_record_stream(host, large, 0, stream));
  give(large);
  assert_int_equal(pinned(), 3);
  soft_step_all();
  give(take(100)); /* polls the events */
  assert_int_equal(pinned(), 3);
  close_host();
}

/* A thread polls the events instead of the allocations. */
TEST(background_thread) {
  open_host("pinned_use_background_threads:True");
  weir_cu_stream stream = work_stream();
  void *a = take(4096);
  work(stream);
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  give(a);
  assert_ptr_not_equal(take(4096), a);
  soft_step_all();
  struct timespec nap = {.tv_nsec = 1000000};
  for (int i = 0; i < 10000 && host_stats().active_requests.current > 1; i++)
    nanosleep(&nap, NULL);
  assert_int_equal(host_stats().active_requests.current, 1);
  assert_ptr_equal(take(4096), a);
  close_host();
}

/* The same without a thread: the program calls what is due. */
TEST(background_stepped) {
  weir_maintain_set_worker(0);
  open_host("pinned_use_background_threads:True");
  weir_cu_stream stream = work_stream();
  void *a = take(4096);
  work(stream);
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  give(a);
  uint64_t next = weir__tasks_run(1000);
  assert_in_range(next, 1001, 1000000); /* there is something to poll */
  assert_int_equal(host_stats().active_requests.current, 1);
  soft_step_all();
  assert_int_equal(weir__tasks_run(next - 1), next);
  assert_int_equal(host_stats().active_requests.current, 1);
  assert_int_equal(weir__tasks_run(next), WEIR__NO_DEADLINE);
  assert_int_equal(host_stats().active_requests.current, 0);
  assert_ptr_equal(take(4096), a);
  assert_ok(weir_host_record_stream(host, a, 0, stream));
  work(stream);
  give(a);
  assert_in_range(weir_maintain(), 1, 1000000); /* the public call, with the time of the clock */
  soft_step_all();
  for (int i = 0; i < 1000 && weir_maintain() != UINT64_MAX; i++)
    nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
  assert_int_equal(host_stats().active_requests.current, 0);
  close_host();
  weir_maintain_set_worker(1);
}

TEST(settings_of_the_environment) {
  setenv("WEIR_ALLOC_CONF", "pinned_use_cuda_host_register:True", 1);
  open_host(NULL);
  unsetenv("WEIR_ALLOC_CONF");
  take(100);
  assert_int_equal(soft_census().registrations, 1);
  close_host();
}

/* ---- Ends ---- */

TEST(left_behind) {
  open_host("");
  weir_cu_stream stream = work_stream();
  for (int i = 0; i < 20; i++) {
    void *p = take(100u << i % 5);
    assert_ok(weir_host_record_stream(host, p, 0, stream));
    work(stream);
    if (i % 3)
      give(p);
  }
  close_host(); /* waits for the thread */
}

/* No context is created or retained before the first allocation, and the context of the thread stays current. */
TEST(contexts) {
  open_host("");
  assert_cu(d->CtxSetCurrent(d, NULL));
  weir_cu_context now = NULL;
  void *a = take(100);
  assert_cu(d->CtxGetCurrent(d, &now));
  assert_null(now);
  soft_use(1);
  assert_ok(weir_host_record_stream(host, a, 0, NULL));
  give(a);
  assert_cu(d->CtxGetCurrent(d, &now));
  assert_ptr_equal(now, contexts[1]);
  soft_use(0);
  close_host();
}

TEST(out_of_memory) {
  open_host("");
  void *a = take(4096), *p = NULL;
  give(a);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemHostAlloc, 1, WEIR_CU_OUT_OF_MEMORY, 0));
  p = take(100); /* releases the cache and retries */
  assert_int_equal(pinned(), 1);
  give(p);
  /* Also if the driver refuses a block. */
  void *b = take(8192);
  give(b);
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemHostAlloc, 1, WEIR_CU_OUT_OF_MEMORY, 0));
  assert_ok(weir_fault_nth(faults, WEIR_CALL_MemFreeHost, 1, WEIR_CU_UNKNOWN, 0));
  p = take(1 << 19);
  assert_int_equal(pinned(), 2);
  give(p);
  assert_ok(weir_fault_clear(faults));
  assert_ok(weir_fault_random(faults, 1, 1000000, WEIR_CU_OUT_OF_MEMORY));
  assert_error_says(HOST_OUT_OF_MEMORY, "Tried to allocate 1024.00 KiB", weir_host_alloc(host, 1 << 20, &p));
  assert_ok(weir_fault_clear(faults));
  assert_error_says(HOST_OUT_OF_MEMORY, "Tried to allocate", weir_host_alloc(host, 1ull << 50, &p));
  give(take(1 << 20));
  close_host();
}

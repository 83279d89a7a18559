/*
 * Other back ends and pinned memory when the host has no memory: each allocation of a script fails once. The tests run
 * on the ledger, which survives this too.
 */
#include <stdio.h>
#include <stdlib.h>

#include "support/alloc.h"
#include "support/ledger.h"
#include "support/no_memory.h"
#include "support/valid.h"
#include "weir/history.h"
#include "weir/host.h"

#ifndef NO_MEMORY_WAIVED

static weir_driver *ledger;
static weir_cu_stream streams[3];
static int out;

static void *plug_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  weir_cu_deviceptr p = 0;
  (void)context;
  (void)device;
  (void)stream;
  if (ledger->MemAlloc(ledger, &p, bytes))
    return NULL;
  out++;
  return (void *)p;
}

static void plug_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context;
  (void)bytes;
  (void)device;
  (void)stream;
  out--;
  assert_cu(ledger->MemFree(ledger, (weir_cu_deviceptr)pointer));
}

static void valid(void) {
  bool was = counting;
  counting = false;
  assert_true(weir__allocator_is_valid(allocator));
  counting = was;
}

static void assert_ok_or_no_memory(weir_status status) {
  if (status != WEIR_OK)
    assert_true(status == WEIR_ERROR_HOST_OUT_OF_MEMORY || status == WEIR_ERROR_OUT_OF_MEMORY);
}

static void *take(size_t bytes, int stream) {
  void *p = NULL;
  assert_ok_or_no_memory(weir_allocator_alloc(allocator, 0, bytes, streams[stream], &p));
  valid();
  return p;
}

static void drop(void *p) {
  weir_status status = weir_allocator_free(allocator, p);
  assert_ok_or_no_memory(status); /* the driver needed host memory; the call can be repeated */
  if (status)
    assert_ok(weir_allocator_free(allocator, p));
  valid();
}

static void use_allocator(void) {
  enum { MANY = 60 };
  void *p[MANY];
  weir_pool_id id = {0, 1};
  weir_history_record(allocator, NULL);
  bool is_in = weir_pool_begin(allocator, 0, id, NULL, NULL) == WEIR_OK;
  for (int i = 0; i < MANY; i++)
    p[i] = take(1000 * (size_t)(i + 1), i % 3);
  if (is_in)
    assert_ok(weir_pool_end(allocator, 0, id));
  for (int i = 0; i < MANY; i++) {
    if (p[i] && i % 2)
      weir_allocator_record_stream(allocator, p[i], streams[(i + 1) % 3]);
    drop(p[i]);
  }
  if (is_in)
    assert_ok(weir_pool_release(allocator, 0, id));
  weir_allocator_empty_cache(allocator);
  valid();
}

static void make_allocator(const weir_backend *backend) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = backend ? "" : "backend:cudaMallocAsync";
  options.backend = backend;
  allocator = NULL;
  assert_ok_or_no_memory(weir_allocator_create(ledger, &options, &allocator));
}

static void script_plug(void) {
  weir_backend backend = {.size = sizeof backend, .alloc = plug_alloc, .free = plug_free};
  make_allocator(&backend);
  if (allocator)
    use_allocator();
}

static void script_async(void) {
  make_allocator(NULL);
  if (allocator)
    use_allocator();
}

static void script_host(void) {
  enum { MANY = 200 };
  weir_host_allocator *host = NULL;
  void *p[MANY] = {0};
  assert_ok_or_no_memory(weir_host_allocator_create(ledger, HOST_CONF("pinned_reserve_segment_size_mb:1"), &host));
  if (!host)
    return;
  for (int i = 0; i < MANY; i++)
    assert_ok_or_no_memory(weir_host_alloc(host, 5000 * (size_t)(i + 1), &p[i]));
  for (int i = 0; i < MANY; i++) {
    if (p[i] && i % 2)
      weir_host_record_stream(host, p[i], 0, streams[i % 3]);
    assert_ok(weir_host_free(host, p[i]));
  }
  weir_host_configure(host, "pinned_max_cached_size_mb:1");
  weir_host_empty_cache(host);
  counting = false;
  void *again = NULL;
  assert_ok(weir_host_alloc(host, 12345, &again));
  assert_ok(weir_host_free(host, again));
  weir_host_allocator_destroy(host);
}

static void run(void (*script)(void)) {
  ledger = open_ledger(1, 4 * GIB);
  for (int i = 0; i < 3; i++)
    streams[i] = make_stream(ledger, WEIR_CU_STREAM_NON_BLOCKING);
  allocator = NULL;
  out = 0;
  made = 0;
  counting = true;
  script();
  counting = false;
  if (allocator) {
    void *p = NULL; /* the allocator still works */
    assert_ok(weir_allocator_alloc(allocator, 0, 3000, streams[0], &p));
    assert_ok(weir_allocator_free(allocator, p));
    assert_ok(weir_allocator_empty_cache(allocator));
    valid();
    weir_allocator_destroy(allocator);
    allocator = NULL;
  }
  assert_int_equal(out, 0);
  assert_int_equal(free_bytes(ledger), 4 * GIB);
  weir_driver_close(ledger);
}

static void sweep(void (*script)(void)) {
  fail_at = 0;
  run(script); /* once more, because the first run makes allocations that are made once per process */
  run(script);
  unsigned long all = made;
  assert_true(all > 20);
  for (fail_at = 1; fail_at <= all; fail_at++) {
    long before = live;
    run(script);
    assert_int_equal(live, before);
  }
}

FIXTURE(.begin = make_room_for_errors)

TEST(pluggable) { sweep(script_plug); }

TEST(stream_ordered) { sweep(script_async); }

TEST(host) { sweep(script_host); }

#endif

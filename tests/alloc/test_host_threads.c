/*
 * Threads that share pinned memory: no thread gets a block that another thread owns or that a stream still reads.
 */
#include <pthread.h>
#include <string.h>

#include "support/alloc.h"
#include "support/length.h"
#include "weir/host.h"

enum { THREADS = 4, SLOTS = 16 };

static weir_host_allocator *host;

typedef struct worker {
  pthread_t thread;
  int number, failures;
  weir_cu_stream stream;
  weir_cu_deviceptr scratch;
} worker;

static void *run(void *argument) {
  worker *w = argument;
  uint64_t seed = 5 + (uint64_t)w->number;
  unsigned char *live[SLOTS] = {0};
  size_t size[SLOTS] = {0};
  const int rounds = usual_or_long(2000, 10000);
  d->CtxSetCurrent(d, ctx);
  for (int i = 0; i < rounds; i++) {
    size_t slot = soft_random_r(&seed, SLOTS);
    if (live[slot]) {
      unsigned char mark = (unsigned char)(16 * w->number + (int)slot);
      w->failures += live[slot][0] != mark || live[slot][size[slot] - 1] != mark;
      if (soft_random_r(&seed, 4) == 0) {
        w->failures += d->MemcpyAsync(d, w->scratch, (weir_cu_deviceptr)live[slot], size[slot], w->stream) != 0;
        w->failures += weir_host_record_stream(host, live[slot], 0, w->stream) != WEIR_OK;
      }
      w->failures += weir_host_free(host, live[slot]) != WEIR_OK;
      live[slot] = NULL;
    } else {
      size[slot] = 1 + soft_random_r(&seed, 4096);
      w->failures += weir_host_alloc(host, size[slot], (void **)&live[slot]) != WEIR_OK;
      memset(live[slot], 16 * w->number + (int)slot, size[slot]);
    }
    if (i % 600 == 0)
      w->failures += weir_host_empty_cache(host) != WEIR_OK;
    if (i % 900 == 0)
      w->failures += weir_host_configure(host, i % 1800 ? "pinned_max_cached_size_mb:1" : "") != WEIR_OK;
  }
  for (int i = 0; i < SLOTS; i++)
    w->failures += weir_host_free(host, live[i]) != WEIR_OK;
  return NULL;
}

/* Page-locked by the driver's allocation, or memory of the process that is registered. */
static void check_kind(const char *conf) {
  void *memory;
  assert_ok(weir_host_alloc(host, 1 << 20, &memory));
  assert_int_equal(soft_census().registrations, strstr(conf, "host_register:True") ? 1 : 0);
  assert_ok(weir_host_free(host, memory));
}

static void run_all(const char *conf) {
  alloc_open_devices(WEIR_SOFT_THREADS, 1, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(conf), &host));
  check_kind(conf);
  worker workers[THREADS] = {0};
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.number = i + 1, .stream = work_stream(), .scratch = soft_alloc(4096)};
    assert_int_equal(pthread_create(&workers[i].thread, NULL, run, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
    assert_int_equal(workers[i].failures, 0);
    assert_cu(d->StreamSynchronize(d, workers[i].stream));
    assert_cu(d->MemFree(d, workers[i].scratch));
  }
  assert_ok(weir_host_empty_cache(host));
  weir_host_stats stats = {.size = sizeof stats};
  assert_ok(weir_host_get_stats(host, &stats));
  assert_int_equal(stats.active_requests.current, 0);
  assert_int_equal(stats.active_bytes.current, 0);
  assert_int_equal(stats.active_requests.allocated, stats.active_requests.freed);
  assert_int_equal(stats.allocated_bytes.current, 0);
  weir_host_allocator_destroy(host);
  host = NULL;
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(polled) { run_all(""); }

TEST(background) { run_all("pinned_use_background_threads:True"); }

TEST(registered) { run_all("pinned_use_cuda_host_register:True,pinned_num_register_threads:8"); }

/*
 * Threads that share pinned memory: no thread gets a block that another thread owns or that a stream still reads.
 */
#include <pthread.h>
#include <string.h>

#include "support/alloc.h"
#include "support/length.h"
#include "weir/adapter.h"
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

/* Entries come one at a time, in an order in which what there is never becomes negative. */
static int64_t present[WEIR_TRACE_ACTIONS], wrong_entries;

static void witness(void *context, const weir_trace_entry *entry) {
  (void)context;
  int64_t *n = present;
  n[entry->action]++;
  wrong_entries +=
      n[WEIR_TRACE_FREE_COMPLETED] > n[WEIR_TRACE_FREE_REQUESTED] ||
      n[WEIR_TRACE_FREE_REQUESTED] > n[WEIR_TRACE_ALLOC] || n[WEIR_TRACE_SEGMENT_FREE] > n[WEIR_TRACE_SEGMENT_ALLOC] ||
      n[WEIR_TRACE_ALLOC] - n[WEIR_TRACE_FREE_COMPLETED] > n[WEIR_TRACE_SEGMENT_ALLOC] - n[WEIR_TRACE_SEGMENT_FREE];
}

static void assert_witnessed(void) {
  assert_int_equal(wrong_entries, 0);
  assert_true(present[WEIR_TRACE_ALLOC] > THREADS * SLOTS);
  assert_int_equal(present[WEIR_TRACE_ALLOC], present[WEIR_TRACE_FREE_REQUESTED]);
  assert_int_equal(present[WEIR_TRACE_ALLOC], present[WEIR_TRACE_FREE_COMPLETED]);
  assert_int_equal(present[WEIR_TRACE_SEGMENT_ALLOC], present[WEIR_TRACE_SEGMENT_FREE]);
}

static void run_all(const char *conf, bool is_witnessed) {
  alloc_open_devices(WEIR_SOFT_THREADS, 1, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(conf), &host));
  check_kind(conf);
  memset(present, 0, sizeof present);
  assert_ok(weir_host_set_witness(host, is_witnessed ? witness : NULL, NULL));
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
  if (is_witnessed)
    assert_witnessed();
  weir_host_allocator_destroy(host);
  host = NULL;
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(polled) { run_all("", false); }

TEST(background) { run_all("pinned_use_background_threads:True", false); }

TEST(registered) { run_all("pinned_use_cuda_host_register:True,pinned_num_register_threads:8", false); }

TEST(witnessed) { run_all("pinned_use_background_threads:True", true); }

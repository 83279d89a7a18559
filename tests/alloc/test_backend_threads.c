/*
 * Threads with other back ends: no memory is lost or handed out twice.
 */
#include <pthread.h>
#include <stdlib.h>

#include "alloc/plug_fixture.h"
#include "weir/history.h"
#include "weir/snapshot.h"

enum { THREADS = 4, ROUNDS = 1500, SLOTS = 24 };

static atomic_long given, taken;

static void *host_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context;
  (void)device;
  (void)stream;
  atomic_fetch_add(&given, (long)bytes);
  return malloc(bytes);
}

static void host_free(void *context, void *p, size_t bytes, int device, weir_cu_stream stream) {
  (void)context;
  (void)device;
  (void)stream;
  atomic_fetch_add(&taken, (long)bytes);
  free(p);
}

typedef struct worker {
  pthread_t thread;
  int number;
  weir_cu_stream mine, other;
  bool writes;
  int failures;
} worker;

static void *run(void *argument) {
  worker *w = argument;
  uint64_t seed = 77 + (uint64_t)w->number;
  unsigned char *live[SLOTS] = {0};
  size_t size[SLOTS] = {0};
  d->CtxSetCurrent(d, ctx);
  for (int i = 0; i < ROUNDS; i++) {
    size_t slot = soft_random_r(&seed, SLOTS);
    if (live[slot]) {
      if (w->writes)
        w->failures += live[slot][0] != (unsigned char)w->number || live[slot][size[slot] - 1] != (unsigned char)slot;
      if (soft_random_r(&seed, 3) == 0)
        w->failures += weir_allocator_record_stream(allocator, live[slot], w->other) != WEIR_OK;
      w->failures += weir_allocator_free(allocator, live[slot]) != WEIR_OK;
      live[slot] = NULL;
    } else {
      size[slot] = 2 + soft_random_r(&seed, 4000);
      w->failures += weir_allocator_alloc(allocator, 0, size[slot], w->mine, (void **)&live[slot]) != WEIR_OK;
      if (w->writes && live[slot]) {
        live[slot][0] = (unsigned char)w->number;
        live[slot][size[slot] - 1] = (unsigned char)slot;
      }
    }
    if (i % 500 == 0)
      w->failures += weir_allocator_empty_cache(allocator) != WEIR_OK;
    if (i % 700 == 0) {
      weir_snapshot *snapshot = NULL;
      w->failures += weir_snapshot_take(allocator, NULL, &snapshot) != WEIR_OK;
      weir_snapshot_destroy(snapshot);
    }
  }
  for (int i = 0; i < SLOTS; i++)
    w->failures += weir_allocator_free(allocator, live[i]) != WEIR_OK;
  return NULL;
}

static void run_all(bool writes) {
  worker workers[THREADS] = {0};
  weir_cu_stream streams[THREADS];
  for (int i = 0; i < THREADS; i++)
    streams[i] = work_stream();
  weir_history_options options;
  weir_history_options_init(&options);
  options.stacks =
      WEIR_STACKS_LANGUAGE; /* native stacks and the thread sanitizer both intercept the exit of a thread */
  assert_ok(weir_history_record(allocator, &options));
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.number = i + 1,
                          .mine = streams[i / 2],
                          .other = streams[(i + 1) % THREADS],
                          .writes = writes}; /* pairs of threads share a stream */
    assert_int_equal(pthread_create(&workers[i].thread, NULL, run, &workers[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) {
    pthread_join(workers[i].thread, NULL);
    assert_int_equal(workers[i].failures, 0);
  }
  empty_cache();
  assert_int_equal(active(), 0);
  assert_int_equal(stats_of(0).allocation[WEIR_STAT_ALL].allocated, stats_of(0).allocation[WEIR_STAT_ALL].freed);
}

FIXTURE(.teardown = alloc_teardown)

TEST(pluggable) {
  weir_backend backend = {.size = sizeof backend, .alloc = host_alloc, .free = host_free};
  plug_open_on(WEIR_SOFT_THREADS, 1, &backend, NULL);
  run_all(true);
  assert_int_equal(given, taken);
  alloc_close();
}

TEST(stream_ordered) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, GIB, "backend:cudaMallocAsync");
  run_all(false);
  alloc_close();
}

/*
 * Pinned host memory: random calls compared with a plain model of the cache and its statistics.
 */
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"
#include "support/length.h"
#include "support/random.h"
#include "weir/host.h"

enum { LIVE = 40, BUCKETS = 64, CACHED = 1000 };

/* The model: sizes are powers of two, or as requested above the threshold, and the block freed last is reused first. */
typedef struct model_block {
  void *pointer;
  uint64_t bytes;
} model_block;

typedef struct model_count {
  int64_t current, peak, allocated, freed;
} model_count;

typedef struct host_model {
  model_block live[LIVE];
  bool is_used[LIVE];          /* a stream uses it, so its free waits */
  model_block free[CACHED];    /* in the order of their frees */
  model_block waiting[CACHED]; /* freed, in use by the stream */
  int live_count, free_count, waiting_count;
  int passed_count; /* the stream has passed this many of those that wait; the next poll frees them */
  uint64_t max_cached, max_rounded;
  model_count requests, bytes;
} host_model;

static weir_host_allocator *host;
static host_model model;
static weir_cu_stream stream; /* uses some of the blocks */

static int host_teardown(void **state) {
  weir_host_allocator_destroy(host);
  host = NULL;
  return alloc_teardown(state);
}

FIXTURE(.teardown = host_teardown)

static void add(model_count *count, int64_t by) {
  count->current += by;
  *(by > 0 ? &count->allocated : &count->freed) += by > 0 ? by : -by;
  if (count->current > count->peak)
    count->peak = count->current;
}

static uint64_t rounded(uint64_t bytes) {
  uint64_t size = 1;
  if (bytes > model.max_cached || bytes > model.max_rounded)
    return bytes;
  while (size < bytes)
    size *= 2;
  return size;
}

static int bucket(uint64_t bytes) {
  int bits = 0;
  while (1ull << bits < bytes)
    bits++;
  return bits;
}

/* The index of the free block that a request gets, or -1. */
static int find_free(uint64_t size) {
  for (int i = model.free_count; i-- > 0;)
    if (bucket(model.free[i].bytes) == bucket(size) && model.free[i].bytes >= size)
      return i;
  return -1;
}

static void drop_free(int i) {
  memmove(&model.free[i], &model.free[i + 1], (size_t)(--model.free_count - i) * sizeof model.free[0]);
}

/* A block that is not cached is returned to the driver, which waits for all streams. */
static void becomes_free(model_block block) {
  add(&model.requests, -1);
  add(&model.bytes, -(int64_t)block.bytes);
  if (block.bytes <= model.max_cached) {
    assert_true(model.free_count < CACHED);
    model.free[model.free_count++] = block;
  } else
    model.passed_count = model.waiting_count;
}

static void poll_waiting(void) {
  for (int i = 0; i < model.passed_count; i++) /* it may grow meanwhile */
    becomes_free(model.waiting[i]);
  model.waiting_count -= model.passed_count;
  memmove(model.waiting, model.waiting + model.passed_count, (size_t)model.waiting_count * sizeof model.waiting[0]);
  model.passed_count = 0;
}

static void check_alloc(uint64_t bytes) {
  poll_waiting();
  uint64_t size = rounded(bytes);
  int found = find_free(size);
  model_block block = {NULL, size};
  assert_ok(weir_host_alloc(host, bytes, &block.pointer));
  if (found >= 0) {
    assert_ptr_equal(block.pointer, model.free[found].pointer);
    block = model.free[found];
    drop_free(found);
  }
  add(&model.requests, 1);
  add(&model.bytes, (int64_t)block.bytes);
  model.is_used[model.live_count] = false;
  model.live[model.live_count++] = block;
}

static void check_free(int i) {
  model_block block = model.live[i];
  bool is_used = model.is_used[i];
  model.live[i] = model.live[--model.live_count];
  model.is_used[i] = model.is_used[model.live_count];
  if (is_used)
    work(stream);
  assert_ok(weir_host_free(host, block.pointer));
  if (is_used)
    model.waiting[model.waiting_count++] = block;
  else
    becomes_free(block);
}

static void check_count(weir_stat stat, const model_count *count) {
  assert_int_equal(stat.current, count->current);
  assert_int_equal(stat.peak, count->peak);
  assert_int_equal(stat.allocated, count->allocated);
  assert_int_equal(stat.freed, count->freed);
}

static void check_stats(void) {
  weir_host_stats stats = {.size = sizeof stats};
  assert_ok(weir_host_get_stats(host, &stats));
  check_count(stats.active_requests, &model.requests);
  check_count(stats.active_bytes, &model.bytes);
  assert_int_equal(stats.allocations.current, model.live_count + model.free_count + model.waiting_count);
}

static void finish_stream(void) {
  soft_step_all();
  model.passed_count = model.waiting_count;
  poll_waiting();
  assert_ok(weir_host_empty_cache(host));
  model.free_count = 0;
}

static void change_settings(uint64_t random) {
  static const struct {
    const char *conf;
    uint64_t cached, rounded;
  } settings[] = {
      {"pinned_max_cached_size_mb:default,pinned_max_round_threshold_mb:default", UINT64_MAX, UINT64_MAX},
      {"pinned_max_cached_size_mb:2,pinned_max_round_threshold_mb:default", 2 * MIB, UINT64_MAX},
      {"pinned_max_cached_size_mb:2,pinned_max_round_threshold_mb:1", 2 * MIB, MIB},
  };
  size_t i = random % (sizeof settings / sizeof settings[0]);
  assert_ok(weir_host_configure(host, settings[i].conf));
  model.max_cached = settings[i].cached;
  model.max_rounded = settings[i].rounded;
}

static void random_call(uint64_t *seed) {
  uint64_t random = next_random(seed), choice = random % 1000;
  random = next_random(seed);
  if (choice < 500 && model.live_count < LIVE)
    check_alloc(random % 5 ? 1 + random % (1ull << random % 14) : 1 + random % (4 * MIB));
  else if (choice < 940 && model.live_count)
    check_free((int)(random % 2 ? (unsigned)model.live_count - 1 : random % (unsigned)model.live_count));
  else if (choice < 970 && model.live_count) {
    int i = (int)(random % (unsigned)model.live_count);
    assert_ok(weir_host_record_stream(host, model.live[i].pointer, 0, stream));
    model.is_used[i] = true;
  } else if (choice < 980)
    finish_stream();
  else if (choice < 985)
    change_settings(random);
  else if (choice < 990) {
    assert_ok(weir_host_reset_peak_stats(host));
    model.requests.peak = model.requests.current;
    model.bytes.peak = model.bytes.current;
  } else if (choice < 995) {
    assert_ok(weir_host_reset_accumulated_stats(host));
    model.requests.allocated = model.requests.freed = 0;
    model.bytes.allocated = model.bytes.freed = 0;
  } else if (model.free_count)
    assert_error(INVALID_ARGUMENT, weir_host_free(host, model.free[random % (unsigned)model.free_count].pointer));
}

TEST(random_calls) {
  uint64_t seed = 1;
  alloc_open_devices(WEIR_SOFT_STEPPED, 1, GIB);
  assert_ok(weir_host_allocator_create(faults, HOST_CONF(""), &host));
  model = (host_model){.max_cached = UINT64_MAX, .max_rounded = UINT64_MAX};
  stream = work_stream();
  int steps = repetitions(20000, 400000);
  for (int i = 0; i < steps; i++) {
    random_call(&seed);
    check_stats();
  }
  while (model.live_count)
    check_free(model.live_count - 1);
  finish_stream();
  check_stats();
  assert_int_equal(soft_census().host_allocations, 0);
  weir_host_allocator_destroy(host);
  host = NULL;
  alloc_close();
}

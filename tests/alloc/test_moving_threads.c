/*
 * Threads that allocate, use and free memory while pages move between them. The streams of the software device run on
 * threads too. Device work writes a pattern to each block, and every later use, on the block's stream or on another,
 * must find it.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/moving_fixture.h"
#include "support/length.h"

enum { THREADS = 4, STREAMS = 3, SLOTS = 8, KEPT = 6 };

typedef struct block {
  unsigned char *memory;
  size_t bytes;
  int stream;
  uint64_t pattern;
} block;

typedef struct use_of_block {
  block of;
  bool writes;
} use_of_block;

static weir_cu_stream streams[STREAMS];
static _Atomic(block *) slots[SLOTS]; /* blocks that one thread leaves for another */
static atomic_ulong looks, spoiled;
static _Atomic(const char *) wrong; /* the first condition that failed */
static int steps;
static bool changes_settings;

#define worker_assert(condition)                                                                                       \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      atomic_store(&wrong, #condition);                                                                                \
  } while (0)

/* ---- Work of the streams ---- */

static void access_memory(void *data) {
  use_of_block *a = data;
  for (size_t at = 0; at + sizeof a->of.pattern <= a->of.bytes; at += 256 * KIB) {
    uint64_t value = a->of.pattern + at;
    if (a->writes)
      memcpy(a->of.memory + at, &value, sizeof value);
    else if (memcmp(a->of.memory + at, &value, sizeof value))
      atomic_fetch_add(&spoiled, 1);
  }
  atomic_fetch_add(&looks, 1);
  free(a);
}

static void access_on(const block *b, int stream, bool writes) {
  use_of_block *a = malloc(sizeof *a);
  worker_assert(a);
  if (!a)
    return;
  *a = (use_of_block){*b, writes};
  worker_assert(!d->LaunchHostFunc(d, streams[stream], access_memory, a));
}

static void use_on(const block *b, int stream) {
  weir_cu_event event;
  if (stream == b->stream)
    return;
  worker_assert(!d->EventCreate(d, &event, WEIR_CU_EVENT_DISABLE_TIMING));
  worker_assert(!d->EventRecord(d, event, streams[b->stream]));
  worker_assert(!d->StreamWaitEvent(d, streams[stream], event, 0));
  worker_assert(!d->EventDestroy(d, event));
  access_on(b, stream, false);
  worker_assert(!weir_allocator_record_stream(allocator, b->memory, streams[stream]));
}

/* ---- Work of the threads ---- */

static block *take(uint64_t *random) {
  uint64_t kind = soft_random_r(random, 10);
  size_t bytes = kind < 2   ? 8 + soft_random_r(random, MIB)
                 : kind < 8 ? (1 + soft_random_r(random, 6)) * MIB
                            : (10 + soft_random_r(random, 20)) * MIB;
  int stream = (int)soft_random_r(random, STREAMS);
  void *memory = NULL;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &memory);
  if (status) {
    worker_assert(status == WEIR_ERROR_OUT_OF_MEMORY);
    return NULL;
  }
  block *b = malloc(sizeof *b);
  worker_assert(b);
  if (!b)
    return NULL;
  *b = (block){memory, bytes, stream, soft_random_r(random, UINT64_MAX)};
  access_on(b, stream, true);
  return b;
}

static void drop(block *b) {
  if (!b)
    return;
  access_on(b, b->stream, false);
  worker_assert(!weir_allocator_free(allocator, b->memory));
  free(b);
}

static void *work_on_data(void *data) {
  static const char *const confs[] = {"moving_pages:True", "moving_pages:True,moving_pages_max_aliases:10",
                                      "moving_pages:False", "expandable_segments:False"};
  int number = (int)(intptr_t)data;
  uint64_t random = (uint64_t)number + 100;
  const weir_pool_id pool = {0, (uint64_t)number + 1};
  bool in_scope = false;
  block *kept[KEPT] = {0};
  worker_assert(!d->CtxSetCurrent(d, ctx));
  for (int i = 0; i < steps; i++) {
    block **at = &kept[soft_random_r(&random, KEPT)];
    uint64_t what = soft_random_r(&random, 100);
    if (what < 65) {
      drop(*at);
      *at = take(&random);
    } else if (what < 75 && *at)
      use_on(*at, (int)soft_random_r(&random, STREAMS));
    else if (what < 90) /* another thread frees it */
      *at = atomic_exchange(&slots[soft_random_r(&random, SLOTS)], *at);
    else if (what < 94) {
      worker_assert(!(in_scope ? weir_pool_end(allocator, 0, pool) : weir_pool_begin(allocator, 0, pool, NULL, NULL)));
      if (in_scope)
        worker_assert(!weir_pool_release(allocator, 0, pool));
      in_scope = !in_scope;
    } else if (what < 95)
      worker_assert(!weir_allocator_empty_cache(allocator));
    else if (what < 96 && *at)
      worker_assert(!weir_allocator_fix_pages(allocator, (*at)->memory));
    else if (what == 96 && number == 0 && changes_settings)
      worker_assert(!weir_allocator_configure(allocator, confs[soft_random_r(&random, WEIR_COUNT_OF(confs))]));
  }
  if (in_scope) {
    worker_assert(!weir_pool_end(allocator, 0, pool));
    worker_assert(!weir_pool_release(allocator, 0, pool));
  }
  for (int i = 0; i < KEPT; i++)
    drop(kept[i]);
  return NULL;
}

static void run(const char *conf, uint64_t limit, int count) {
  pthread_t threads[THREADS];
  alloc_open_on(WEIR_SOFT_THREADS, 1, 4 * GIB, conf);
  assert_ok(weir_allocator_set_limit(allocator, 0, limit));
  for (int i = 0; i < STREAMS; i++)
    streams[i] = work_stream();
  atomic_store(&looks, 0);
  atomic_store(&spoiled, 0);
  atomic_store(&wrong, NULL);
  steps = count;
  for (int i = 0; i < THREADS; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, work_on_data, (void *)(intptr_t)i), 0);
  for (int i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  for (int i = 0; i < SLOTS; i++)
    drop(atomic_exchange(&slots[i], NULL));
  assert_cu(d->CtxSynchronize(d));
  if (atomic_load(&wrong)) {
    print_error("not %s\n", atomic_load(&wrong));
    fail();
  }
  assert_int_equal(atomic_load(&spoiled), 0);
  assert_true(atomic_load(&looks) > (unsigned long)count);
  assert_valid();
  assert_true(stats_of(0).moving_pages_moved > 0);
  empty_cache();
  assert_int_equal(active(), 0);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(moving) {
  changes_settings = false;
  run("moving_pages:True", 4 * GIB, usual_or_long(500, 10000));
  run("moving_pages:True,moving_pages_max_aliases:20,moving_pages_across_streams:True", 4 * GIB,
      usual_or_long(500, 10000));
}

TEST(little_memory) {
  changes_settings = false;
  run("moving_pages:True,moving_pages_max_aliases:0", 400 * MIB, usual_or_long(300, 5000));
}

TEST(changing_settings) {
  changes_settings = true;
  run("moving_pages:True", 4 * GIB, usual_or_long(500, 5000));
}

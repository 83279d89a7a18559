/*
 * Data in memory that is really written: the software device runs its streams on threads, while host threads allocate,
 * use and free memory. Device work fills every block from end to end with a pattern; every use, on the block's stream
 * or on another and however late it runs, must find that pattern. A block that is handed out twice or too early would
 * contain another pattern. The thread sanitizer finds more: a fill that is not ordered after the last use is a race.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/alloc.h"
#include "support/length.h"

enum { THREADS = 8, STREAMS = 6, SLOTS = 48, KEPT = 12 };

typedef struct block {
  unsigned char *memory;
  size_t bytes;
  int stream;
  uint8_t pattern;
} block;

typedef struct look {
  const unsigned char *memory;
  size_t bytes;
  uint8_t pattern;
} look;

static weir_cu_stream streams[STREAMS];
static _Atomic(block *) slots[SLOTS]; /* blocks that one thread leaves for another */
static atomic_ulong looks, spoiled, refusals;
static _Atomic(const char *) wrong; /* the first condition that failed */
static int steps;

#define worker_assert(condition)                                                                                       \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      atomic_store(&wrong, #condition);                                                                                \
  } while (0)

/* ---- Work of the streams ---- */

static void look_now(void *data) {
  look *l = data;
  if (l->memory[0] != l->pattern || (l->bytes > 1 && memcmp(l->memory, l->memory + 1, l->bytes - 1)))
    atomic_fetch_add(&spoiled, 1);
  atomic_fetch_add(&looks, 1);
  free(l);
}

static void look_on(const block *b, int stream) {
  look *l = malloc(sizeof *l);
  worker_assert(l);
  if (!l)
    return;
  *l = (look){b->memory, b->bytes, b->pattern};
  worker_assert(!d->LaunchHostFunc(d, streams[stream], look_now, l));
}

static void be_slow(void *data) {
  (void)data;
  nanosleep(&(struct timespec){0, 20000}, NULL);
}

/* Another stream reads the block, possibly long after the free. */
static void use_on(const block *b, int stream, bool slow) {
  weir_cu_event event;
  worker_assert(!d->EventCreate(d, &event, WEIR_CU_EVENT_DISABLE_TIMING));
  worker_assert(!d->EventRecord(d, event, streams[b->stream]));
  worker_assert(!d->StreamWaitEvent(d, streams[stream], event, 0));
  worker_assert(!d->EventDestroy(d, event));
  if (slow)
    worker_assert(!d->LaunchHostFunc(d, streams[stream], be_slow, NULL));
  look_on(b, stream);
  worker_assert(!weir_allocator_record_stream(allocator, b->memory, streams[stream]));
}

/* ---- Work of the threads ---- */

static block *take(uint64_t *random) {
  uint64_t kind = soft_random_r(random, 20);
  size_t bytes = kind < 15   ? 1 + soft_random_r(random, 16 * KIB)
                 : kind < 19 ? 1 + soft_random_r(random, 300 * KIB)
                             : MIB + soft_random_r(random, 2 * MIB);
  int stream = (int)soft_random_r(random, STREAMS);
  void *memory = NULL;
  weir_status status = weir_allocator_alloc(allocator, 0, bytes, streams[stream], &memory);
  if (status) {
    worker_assert(status == WEIR_ERROR_OUT_OF_MEMORY);
    atomic_fetch_add(&refusals, 1);
    return NULL;
  }
  block *b = malloc(sizeof *b);
  worker_assert(b);
  if (!b)
    return NULL;
  *b = (block){memory, bytes, stream, (uint8_t)soft_random_r(random, 256)};
  worker_assert(!d->MemsetD8Async(d, (weir_cu_deviceptr)memory, b->pattern, bytes, streams[stream]));
  return b;
}

static void drop(block *b) {
  if (!b)
    return;
  look_on(b, b->stream);
  worker_assert(!weir_allocator_free(allocator, b->memory));
  free(b);
}

static void *work_on_data(void *data) {
  int number = (int)(intptr_t)data;
  uint64_t random = (uint64_t)number + 100;
  const weir_pool_id pool = {0, (uint64_t)number + 1};
  bool in_scope = false;
  block *kept[KEPT] = {0};
  worker_assert(!d->CtxSetCurrent(d, ctx));
  for (int i = 0; i < steps; i++) {
    block **at = &kept[soft_random_r(&random, KEPT)];
    uint64_t what = soft_random_r(&random, 100);
    if (what < 50) {
      drop(*at);
      *at = take(&random);
    } else if (what < 75 && *at) {
      for (uint64_t n = 1 + soft_random_r(&random, 2); n > 0; n--)
        use_on(*at, (int)soft_random_r(&random, STREAMS), what < 55);
    } else if (what < 88) { /* another thread frees it */
      *at = atomic_exchange(&slots[soft_random_r(&random, SLOTS)], *at);
    } else if (what < 94) {
      worker_assert(!(in_scope ? weir_pool_end(allocator, 0, pool) : weir_pool_begin(allocator, 0, pool, NULL, NULL)));
      if (in_scope)
        worker_assert(!weir_pool_release(allocator, 0, pool));
      in_scope = !in_scope;
    } else if (what < 95)
      worker_assert(!weir_allocator_empty_cache(allocator));
    else if (what < 96)
      worker_assert(!weir_allocator_empty_pool(allocator, pool));
    else if (what == 96 && number == 0)
      worker_assert(!weir_allocator_configure(allocator, soft_random_r(&random, 2) ? "expandable_segments:True"
                                                                                   : "expandable_segments:False"));
  }
  if (in_scope) {
    worker_assert(!weir_pool_end(allocator, 0, pool));
    worker_assert(!weir_pool_release(allocator, 0, pool));
  }
  for (int i = 0; i < KEPT; i++)
    drop(kept[i]);
  return NULL;
}

static void run(const char *conf, unsigned long long bytes, int count) {
  pthread_t threads[THREADS];
  alloc_open_on(WEIR_SOFT_THREADS, 1, bytes, conf);
  for (int i = 0; i < STREAMS; i++)
    streams[i] = i ? work_stream() : NULL;
  atomic_store(&looks, 0);
  atomic_store(&spoiled, 0);
  atomic_store(&refusals, 0);
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
  empty_cache();
  assert_int_equal(active(), 0);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

FIXTURE(.teardown = alloc_teardown)

TEST(fixed) { run("", GIB, repetitions(300, 2000)); }

TEST(expandable) { run("expandable_segments:True", GIB, repetitions(300, 2000)); }

/* Little memory, so that the cache is emptied repeatedly, and allocations wait for blocks of other streams. */
TEST(little_memory) {
  run("", 64 * MIB, repetitions(200, 1000));
  assert_true(atomic_load(&refusals) > 0);
  run("expandable_segments:True", 128 * MIB, repetitions(200, 1000));
}

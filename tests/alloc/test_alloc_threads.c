/*
 * Many threads at once, with streams, pools, limits and emptied caches. The thread that owns a block writes a mark into
 * it and checks the mark before it frees the block; at the end the walker runs. The thread sanitizer finds the rest.
 */
#include <stdlib.h>
#include <string.h>

#include "support/alloc.h"
#include "support/length.h"

enum { THREADS = 16, SLOTS = 64, HOMES = 4 /* streams with their own blocks, on which all threads allocate */ };

typedef struct worker {
  int number;
  uint64_t random;
  weir_cu_stream stream;
  const char *wrong; /* the failed condition, or NULL */
  long allocations, refusals;
} worker;

static worker workers[THREADS];
static weir_cu_stream streams[THREADS];
static _Atomic(void *) slots[SLOTS]; /* blocks that one thread leaves for another to free */
static int steps;
static bool may_reset; /* accumulated statistics may be reset during the test */

static uint64_t random_of(worker *w, uint64_t limit) { return soft_random_r(&w->random, limit); }

#define worker_assert(w, condition)                                                                                    \
  do {                                                                                                                 \
    if (!(condition))                                                                                                  \
      (w)->wrong = #condition;                                                                                         \
  } while (0)

static void run_threads(void *(*body)(void *), const weir_cu_stream *of_thread, int count) {
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) {
    workers[i] = (worker){.number = i, .random = (uint64_t)i + 1, .stream = of_thread[i % count]};
    assert_int_equal(pthread_create(&threads[i], NULL, body, &workers[i]), 0);
  }
  long allocations = 0;
  for (int i = 0; i < THREADS; i++) {
    pthread_join(threads[i], NULL);
    if (workers[i].wrong) {
      print_error("thread %d: not %s\n", i, workers[i].wrong);
      fail();
    }
    allocations += workers[i].allocations;
  }
  assert_true(allocations > 0);
  assert_valid();
}

static void open(const char *conf, unsigned long long bytes) {
  alloc_open_on(WEIR_SOFT_THREADS, 1, bytes, conf);
  for (int i = 0; i < THREADS; i++)
    streams[i] = work_stream();
  for (int i = 0; i < SLOTS; i++)
    atomic_store(&slots[i], NULL);
}

static void close_empty(void) {
  for (int i = 0; i < SLOTS; i++)
    assert_ok(weir_allocator_free(allocator, atomic_load(&slots[i])));
  assert_cu(d->CtxSynchronize(d));
  assert_int_equal(allocated(), 0);
  empty_cache();
  assert_int_equal(active(), 0);
  assert_int_equal(reserved(), 0);
  alloc_close();
}

/* ---- Allocating and freeing ---- */

/* The mark in the first bytes of a block identifies its owner. */
static void set_mark(void *p, const worker *w, uint64_t number) {
  uint64_t words[2] = {(uint64_t)w->number, number};
  memcpy(p, words, sizeof words);
}

static bool has_mark(const void *p, const worker *w, uint64_t number) {
  uint64_t words[2];
  memcpy(words, p, sizeof words);
  return words[0] == (uint64_t)w->number && words[1] == number;
}

static size_t some_bytes(worker *w) {
  return random_of(w, 4) ? 16 + random_of(w, 200 * KIB) : MIB + random_of(w, 3 * MIB);
}

static void *alloc_and_free(void *data) {
  worker *w = data;
  enum { HAS = 20 };
  void *has[HAS] = {0};
  uint64_t number[HAS];
  for (int i = 0; i < steps; i++) {
    int at = (int)random_of(w, HAS);
    if (has[at]) {
      worker_assert(w, has_mark(has[at], w, number[at]));
      worker_assert(w, weir_allocator_free(allocator, has[at]) == WEIR_OK);
      has[at] = NULL;
    } else {
      worker_assert(w, weir_allocator_alloc(allocator, 0, some_bytes(w), w->stream, &has[at]) == WEIR_OK);
      number[at] = (uint64_t)i;
      set_mark(has[at], w, number[at]);
      w->allocations++;
    }
  }
  for (int i = 0; i < HAS; i++)
    worker_assert(w, weir_allocator_free(allocator, has[i]) == WEIR_OK);
  return NULL;
}

FIXTURE(.teardown = alloc_teardown)

TEST(own_streams) {
  for (int expandable = 0; expandable < 2; expandable++) {
    open(expandable ? "expandable_segments:True" : "", 8 * GIB);
    steps = 3000;
    run_threads(alloc_and_free, streams, THREADS);
    close_empty();
  }
}

TEST(one_stream) {
  for (int expandable = 0; expandable < 2; expandable++) {
    open(expandable ? "expandable_segments:True" : "", 8 * GIB);
    steps = 2000;
    run_threads(alloc_and_free, streams, 1);
    close_empty();
  }
}

/* ---- Everything at once ---- */

/* Queries of objects that other threads change: pools that may be destroyed, blocks that may be freed, statistics that
 * may be reset. */
static void look_around(worker *w) {
  const weir_pool_id some = {0, 1 + random_of(w, THREADS + 1)};
  weir_stat reserved_bytes[WEIR_STAT_KINDS];
  weir_checkpoint *checkpoint = NULL;
  char text[256];
  int count;
  void *base, *p;
  size_t bytes;
  switch (random_of(w, 8)) {
  case 0:
    weir_pool_reserved_bytes(allocator, 0, some, reserved_bytes); /* the pool may not exist */
    break;
  case 1:
    weir_pool_use_count(allocator, 0, some, &count);
    break;
  case 2:
    weir_pool_set_use_on_oom(allocator, 0, some, (int)random_of(w, 2));
    break;
  case 3:
    weir_pool_checkpoint(allocator, 0, some, &checkpoint);
    weir_checkpoint_destroy(checkpoint);
    break;
  case 4:
    worker_assert(w, weir_allocator_settings(allocator, text, sizeof text, NULL) < sizeof text);
    break;
  case 5:
    worker_assert(w, weir_allocator_reset_peak_stats(allocator, 0) == WEIR_OK);
    break;
  case 6:
    if (may_reset)
      worker_assert(w, weir_allocator_reset_accumulated_stats(allocator, 0) == WEIR_OK);
    break;
  default: /* a block that no other thread uses meanwhile */
    p = atomic_exchange(&slots[random_of(w, SLOTS)], NULL);
    if (p && weir_allocator_base(allocator, p, &base, &bytes) == WEIR_OK)
      worker_assert(w, (char *)base <= (char *)p && (char *)p < (char *)base + bytes);
    worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
  }
}

/* A pool that threads compete for: one thread has the scope open, which captures all allocations of one stream by any
 * thread. */
static int is_first_stream(void *context, weir_cu_stream stream) {
  (void)context;
  return stream == streams[0];
}

static void share_a_scope(worker *w) {
  const weir_pool_id shared = {0, THREADS + 1};
  weir_status status = weir_pool_begin(allocator, 0, shared, is_first_stream, NULL);
  if (status) {
    worker_assert(w, status == WEIR_ERROR_BAD_STATE); /* another thread has it open */
    return;
  }
  void *p = NULL;
  status = weir_allocator_alloc(allocator, 0, some_bytes(w), streams[0], &p);
  worker_assert(w, status == WEIR_OK || status == WEIR_ERROR_OUT_OF_MEMORY);
  w->refusals += status != WEIR_OK;
  worker_assert(w, weir_pool_end(allocator, 0, shared) == WEIR_OK);
  worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
  worker_assert(w, weir_pool_release(allocator, 0, shared) == WEIR_OK);
}

static void *do_everything(void *data) {
  worker *w = data;
  const weir_pool_id pool = {0, (uint64_t)w->number / 2 + 1}; /* of two threads */
  bool in_scope = false;
  int held = 0;
  for (int i = 0; i < steps; i++) {
    uint64_t what = random_of(w, 100);
    void *p = NULL;
    if (what < 45) {
      weir_status status = weir_allocator_alloc(allocator, 0, some_bytes(w), streams[random_of(w, HOMES)], &p);
      if (status == WEIR_OK) {
        memset(p, w->number, 16);
        w->allocations++;
        p = atomic_exchange(&slots[random_of(w, SLOTS)], p);
      } else {
        worker_assert(w, status == WEIR_ERROR_OUT_OF_MEMORY);
        w->refusals++;
      }
      worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
    } else if (what < 75) {
      p = atomic_exchange(&slots[random_of(w, SLOTS)], NULL);
      if (p && random_of(w, 3) == 0) {
        uint64_t to = random_of(w, THREADS);
        worker_assert(w, weir_allocator_record_stream(allocator, p, streams[to]) == WEIR_OK);
        /* Otherwise it may be the block's own stream, and nothing orders the work before the block's next use. */
        if (to >= HOMES)
          worker_assert(w, d->MemsetD8Async(d, (weir_cu_deviceptr)p, 1, 16, streams[to]) == WEIR_CU_SUCCESS);
      }
      worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
    } else if (what < 77) {
      worker_assert(w, weir_allocator_empty_cache(allocator) == WEIR_OK);
    } else if (what < 78) {
      const weir_pool_id some = {0, 1 + random_of(w, THREADS + 1)};
      worker_assert(w, weir_allocator_empty_pool(allocator, some) == WEIR_OK);
    } else if (what < 83) {
      weir_allocator_stats stats = {.size = sizeof stats};
      worker_assert(w, weir_allocator_get_stats(allocator, 0, &stats) == WEIR_OK);
      worker_assert(w, stats.allocated_bytes[WEIR_STAT_ALL].current <= stats.allocated_bytes[WEIR_STAT_ALL].peak);
      worker_assert(w, stats.allocated_bytes[WEIR_STAT_ALL].current <= stats.reserved_bytes[WEIR_STAT_ALL].current);
    } else if (what < 84) {
      look_around(w);
    } else if (what < 86) {
      share_a_scope(w);
    } else if (what < 94) {
      weir_status status =
          in_scope ? weir_pool_end(allocator, 0, pool) : weir_pool_begin(allocator, 0, pool, NULL, NULL);
      worker_assert(w, status == WEIR_OK);
      held += !in_scope;
      in_scope = !in_scope;
    } else if (what < 97) {
      if (held > in_scope) {
        worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
        held--;
      }
    } else if (what < 98) {
      static const char *const confs[] = {
          "expandable_segments:True",         "expandable_segments:False",          "max_split_size_mb:20",
          "max_split_size_mb:4096",           "garbage_collection_threshold:0.5",   "release_lock_on_cudamalloc:True",
          "release_lock_on_cudamalloc:False", "roundup_power2_divisions:[1:4,>:8]", "roundup_power2_divisions:0"};
      worker_assert(w, weir_allocator_configure(allocator, confs[random_of(w, WEIR_COUNT_OF(confs))]) == WEIR_OK);
    } else if (what < 99) {
      double fraction = 0.5 + (double)random_of(w, 50) / 100;
      worker_assert(w, weir_allocator_set_fraction(allocator, 0, fraction) == WEIR_OK);
    } else {
      size_t largest = 0;
      worker_assert(w, weir_allocator_largest_block(allocator, 0, &largest) == WEIR_OK);
      worker_assert(w, weir_allocator_free(allocator, &largest) == WEIR_ERROR_INVALID_ARGUMENT);
    }
  }
  if (in_scope)
    worker_assert(w, weir_pool_end(allocator, 0, pool) == WEIR_OK);
  while (held-- > 0)
    worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
  return NULL;
}

TEST(everything) {
  open("", 4 * GIB);
  steps = repetitions(500, 3000);
  may_reset = true;
  run_threads(do_everything, streams, THREADS);
  close_empty();
}

/* One thread resets the peaks repeatedly while the others reach new ones. */
static void *grow_or_look_on(void *data) {
  worker *w = data;
  if (w->number)
    return alloc_and_free(data);
  for (int i = 0; i < steps; i++) {
    weir_allocator_stats stats = {.size = sizeof stats};
    worker_assert(w, weir_allocator_reset_peak_stats(allocator, 0) == WEIR_OK);
    worker_assert(w, weir_allocator_get_stats(allocator, 0, &stats) == WEIR_OK);
    for (int kind = 0; kind < WEIR_STAT_KINDS; kind++) {
      worker_assert(w, stats.allocation[kind].current <= stats.allocation[kind].peak);
      worker_assert(w, stats.allocated_bytes[kind].current <= stats.allocated_bytes[kind].peak);
      worker_assert(w, stats.active_bytes[kind].current <= stats.active_bytes[kind].peak);
      worker_assert(w, stats.inactive_split_bytes[kind].current <= stats.inactive_split_bytes[kind].peak);
      worker_assert(w, stats.allocated_bytes[kind].current <= stats.reserved_bytes[kind].current);
    }
  }
  return NULL;
}

TEST(queries_meanwhile) {
  open("", 8 * GIB);
  steps = 3000;
  run_threads(grow_or_look_on, streams, THREADS);
  close_empty();
}

/* Scopes open and close around allocations: a pool lives until an allocation in progress has finished. */
static void *come_by(void *data) {
  worker *w = data;
  const weir_pool_id pool = {0, 1 + (uint64_t)w->number % 4};
  for (int i = 0; i < steps; i++) {
    if (w->number >= 4) {
      void *p = NULL;
      worker_assert(w, weir_allocator_alloc(allocator, 0, 1 + random_of(w, 4 * KIB), streams[0], &p) == WEIR_OK);
      worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
      w->allocations++;
      continue;
    }
    weir_pool_options options;
    weir_pool_options_init(&options);
    options.no_split = (int)random_of(w, 2);
    worker_assert(w, weir_pool_create(allocator, 0, pool, &options) == WEIR_OK);
    worker_assert(w, weir_pool_begin(allocator, 0, pool, is_first_stream, NULL) == WEIR_OK);
    worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
    worker_assert(w, weir_pool_end(allocator, 0, pool) == WEIR_OK);
    worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
    worker_assert(w, weir_allocator_empty_pool(allocator, pool) == WEIR_OK);
  }
  return NULL;
}

TEST(scopes_that_end) {
  open("", GIB);
  steps = 1000;
  run_threads(come_by, streams, THREADS);
  close_empty();
}

/* Threads scope the same pools, which are released meanwhile, and end with a scope open. */
static void *scope_pools(void *data) {
  worker *w = data;
  for (int i = 0; i < steps; i++) {
    const weir_pool_id pool = {0, 1 + random_of(w, 4)};
    void *p[3] = {NULL};
    worker_assert(w, weir_pool_begin(allocator, 0, pool, NULL, NULL) == WEIR_OK);
    for (int k = 0; k < 3; k++)
      worker_assert(w, weir_allocator_alloc(allocator, 0, some_bytes(w), w->stream, &p[k]) == WEIR_OK);
    set_mark(p[0], w, (uint64_t)i);
    worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
    worker_assert(w, random_of(w, 8) || weir_allocator_empty_pool(allocator, pool) == WEIR_OK);
    worker_assert(w, has_mark(p[0], w, (uint64_t)i));
    for (int k = 0; k < 3; k++)
      worker_assert(w, weir_allocator_free(allocator, p[k]) == WEIR_OK);
    worker_assert(w, i + 1 == steps || weir_pool_end(allocator, 0, pool) == WEIR_OK);
    w->allocations++;
  }
  return NULL;
}

TEST(threads_scope_the_same_pools) {
  open("", 8 * GIB);
  steps = repetitions(200, 1000);
  run_threads(scope_pools, streams, HOMES);
  assert_null(allocator->heaps[0].thread_scopes);
  close_empty();
}

/* ---- Out of memory ---- */

static int free_a_slot(void *context, int device) {
  (void)context, (void)device;
  void *p = atomic_exchange(&slots[0], NULL);
  return weir_allocator_free(allocator, p) == WEIR_OK && p;
}

static void look(void *context, const weir_shortage *shortage) {
  size_t largest;
  weir_allocator_largest_block(allocator, shortage->device, &largest);
  atomic_fetch_add((atomic_int *)context, 1);
}

static void note(void *context, const weir_trace_entry *entry) {
  if (entry->action == WEIR_TRACE_OOM)
    atomic_fetch_add((atomic_int *)context, 1);
}

TEST(little_memory) {
  open("", 48 * MIB);
  atomic_int seen = 0;
  atomic_int noted = 0;
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.free_memory = free_a_slot)));
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.out_of_memory = look, .context = &seen)));
  assert_ok(weir_allocator_attach(allocator, OBSERVER(.entry = note, .context = &noted)));
  steps = 600;
  may_reset = false;
  run_threads(do_everything, streams, THREADS);
  long refusals = 0;
  for (int i = 0; i < THREADS; i++)
    refusals += workers[i].refusals;
  assert_true(refusals > 0);
  assert_int_equal(atomic_load(&seen), refusals);
  assert_int_equal(atomic_load(&noted), refusals);
  assert_int_equal(stats_of(0).num_ooms, refusals);
  close_empty();
}

/* ---- Observers that come and go ---- */

static atomic_bool watched[2];
static atomic_long seen_entries, seen_too_late;

static void note_if_watched(void *context, const weir_trace_entry *entry) {
  (void)entry;
  atomic_fetch_add(&seen_entries, 1);
  atomic_fetch_add(&seen_too_late, !atomic_load((atomic_bool *)context));
}

/* Two threads attach and detach, and all cause entries. */
static void *come_and_go(void *data) {
  worker *w = data;
  atomic_bool *mine = w->number < 2 ? &watched[w->number] : NULL;
  const weir_observer *observer = OBSERVER(.entry = note_if_watched, .context = mine);
  for (int i = 0; i < steps; i++) {
    void *p = NULL;
    if (mine) {
      atomic_store(mine, true);
      worker_assert(w, weir_allocator_attach(allocator, observer) == WEIR_OK);
    }
    worker_assert(w, weir_allocator_alloc(allocator, 0, 512, w->stream, &p) == WEIR_OK);
    worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
    w->allocations++;
    if (mine) {
      worker_assert(w, weir_allocator_detach(allocator, observer) == WEIR_OK);
      atomic_store(mine, false);
    }
  }
  return NULL;
}

TEST(no_calls_after_detaching) {
  open("", GIB);
  steps = 3000;
  atomic_store(&seen_entries, 0);
  run_threads(come_and_go, streams, THREADS);
  assert_true(atomic_load(&seen_entries) > 0);
  assert_int_equal(atomic_load(&seen_too_late), 0);
  close_empty();
}

/* ---- Unaligned memory from pool functions: segments come and go next to segments in use ---- */

enum { STRIP = 40 };
static char *strip;
static atomic_int taken[STRIP];

/* Adjacent pieces of 2 MiB, whose borders lie in the middle of a unit. */
static void *strip_alloc(void *context, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)device, (void)stream;
  if (bytes != 2 * MIB)
    return NULL;
  for (int i = 0; i < STRIP; i++)
    if (!atomic_exchange(&taken[i], 1))
      return strip + MIB + (size_t)i * 2 * MIB;
  return NULL;
}

static void strip_free(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  (void)context, (void)bytes, (void)device, (void)stream;
  atomic_store(&taken[((char *)pointer - strip - MIB) / (2 * MIB)], 0);
}

static void *allocate_and_free(void *data) {
  worker *w = data;
  const weir_pool_id pool = {0, (uint64_t)w->number + 1};
  weir_pool_options options;
  weir_pool_options_init(&options);
  options.alloc = strip_alloc;
  options.free = strip_free;
  for (int i = 0; i < steps; i++) {
    void *p = NULL, *q = NULL;
    worker_assert(w, weir_pool_create(allocator, 0, pool, &options) == WEIR_OK);
    worker_assert(w, weir_pool_begin(allocator, 0, pool, NULL, NULL) == WEIR_OK);
    worker_assert(w, weir_allocator_alloc(allocator, 0, 600 * KIB, w->stream, &p) == WEIR_OK);
    worker_assert(w, weir_allocator_alloc(allocator, 0, 600 * KIB, w->stream, &q) == WEIR_OK);
    worker_assert(w, weir_pool_end(allocator, 0, pool) == WEIR_OK);
    set_mark(p, w, (uint64_t)i);
    set_mark(q, w, (uint64_t)-i);
    worker_assert(w, has_mark(p, w, (uint64_t)i));
    worker_assert(w, weir_allocator_free(allocator, p) == WEIR_OK);
    worker_assert(w, has_mark(q, w, (uint64_t)-i));
    worker_assert(w, weir_allocator_free(allocator, q) == WEIR_OK);
    worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
    worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
    worker_assert(w, weir_allocator_empty_pool(allocator, pool) == WEIR_OK);
    w->allocations += 2;
  }
  return NULL;
}

TEST(unaligned_neighbours) {
  open("", GIB);
  assert_int_equal(posix_memalign((void **)&strip, 2 * MIB, (STRIP + 1) * 2 * MIB), 0);
  steps = 300;
  run_threads(allocate_and_free, streams, THREADS);
  close_empty();
  free(strip);
}

/* ---- Checkpoints, each thread with a separate pool ---- */

static void *go_back(void *data) {
  worker *w = data;
  const weir_pool_id pool = {0, (uint64_t)w->number + 1};
  worker_assert(w, weir_pool_begin(allocator, 0, pool, NULL, NULL) == WEIR_OK);
  for (int i = 0; i < steps; i++) {
    enum { OLD = 6, NEW = 4 };
    void *old[OLD] = {0}, *new[NEW] = {0};
    weir_checkpoint *checkpoint = NULL;
    weir_checkpoint_delta delta = {.size = sizeof delta};
    for (int k = 0; k < OLD; k++)
      worker_assert(w, weir_allocator_alloc(allocator, 0, some_bytes(w), w->stream, &old[k]) == WEIR_OK);
    worker_assert(w, weir_pool_checkpoint(allocator, 0, pool, &checkpoint) == WEIR_OK);
    for (int k = 0; k < OLD; k += 2)
      worker_assert(w, weir_allocator_free(allocator, old[k]) == WEIR_OK);
    for (int k = 0; k < NEW; k++)
      worker_assert(w, weir_allocator_alloc(allocator, 0, some_bytes(w), w->stream, &new[k]) == WEIR_OK);
    worker_assert(w, weir_pool_restore(allocator, checkpoint, &delta) == WEIR_OK);
    worker_assert(w, delta.freed_count == OLD / 2 + NEW && delta.allocated_count == OLD);
    int equal = 0;
    worker_assert(w, weir_pool_has_exactly(allocator, 0, pool, old, OLD, &equal) == WEIR_OK && equal);
    weir_checkpoint_delta_clear(&delta);
    weir_checkpoint_destroy(checkpoint);
    for (int k = 0; k < OLD; k++)
      worker_assert(w, weir_allocator_free(allocator, old[k]) == WEIR_OK);
    worker_assert(w, weir_allocator_empty_cache(allocator) == WEIR_OK);
    w->allocations += OLD + NEW;
  }
  worker_assert(w, weir_pool_end(allocator, 0, pool) == WEIR_OK);
  worker_assert(w, weir_pool_release(allocator, 0, pool) == WEIR_OK);
  return NULL;
}

TEST(checkpoints) {
  for (int expandable = 0; expandable < 2; expandable++) {
    open(expandable ? "expandable_segments:True" : "", 8 * GIB);
    steps = 60;
    run_threads(go_back, streams, THREADS);
    close_empty();
  }
}

/* ---- Several allocators ---- */

/* A program with one allocator per thread. */
static void *have_an_allocator(void *data) {
  worker *w = data;
  for (int i = 0; i < steps; i++) {
    weir_allocator_options options;
    weir_allocator_options_init(&options);
    options.conf = i % 2 ? "expandable_segments:True" : "";
    weir_allocator *mine = NULL;
    void *p = NULL;
    worker_assert(w, weir_allocator_create(faults, &options, &mine) == WEIR_OK);
    worker_assert(w, weir_allocator_alloc(mine, 0, 3 * MIB, w->stream, &p) == WEIR_OK);
    worker_assert(w, weir_allocator_free(allocator, p) == WEIR_ERROR_INVALID_ARGUMENT);
    weir_allocator_destroy(mine);
    w->allocations++;
  }
  return NULL;
}

TEST(one_allocator_per_thread) {
  open("", 4 * GIB);
  steps = 20;
  run_threads(have_an_allocator, streams, THREADS);
  close_empty();
}

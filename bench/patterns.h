/*
 * The patterns of alloc.c and bench/all, and how they are timed.
 *
 * This is written in the common subset of C and C++, since against/torch_player.cpp and torch/pair.cpp,
 * which are compiled against PyTorch, include it too. BENCH_PLAYER instantiates the loops for each
 * contestant with its two calls inlined, so that none pays for a call through a pointer. No contestant touches the
 * memory.
 */
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

enum {
  BENCH_WARM_PAIRS = 1000,    /* of the pairs with one size */
  BENCH_WARM_STEPS = 1 << 17, /* of those with live blocks, so that the cache can serve all later requests */
  BENCH_MAX_THREADS = 64,     /* what --threads takes */
  BENCH_THREAD_FACTOR = 4, /* threads share this many times the pairs of a round, so that their start does not count */
  BENCH_THREAD_BYTES = 4096, /* of a thread's blocks */
  BENCH_MAX_ROUNDS = 32
};

typedef enum bench_kind { BENCH_PAIR, BENCH_REPLACE, BENCH_OWN_STREAMS, BENCH_ONE_STREAM } bench_kind;

typedef struct bench_pattern {
  const char *group; /* what --patterns takes */
  const char *name;  /* its key in JSON */
  const char *title; /* in the table */
  bench_kind kind;
  size_t bytes;     /* of a block; the maximum for random sizes */
  int live;         /* blocks of random sizes, one of which is replaced */
  int threads;      /* at the same time */
  double bar;       /* the goal in ns on the host of an H200; 0 if there is none */
  double reference; /* PyTorch's time there, from C++; 0 if not known */
} bench_pattern;

#define BENCH_KIB ((size_t)1 << 10)
#define BENCH_MIB ((size_t)1 << 20)
#define BENCH_THREADS(group, kind, n, what, bar, reference)                                                            \
  { group, group "_" #n, #n what, kind, BENCH_THREAD_BYTES, 0, n, bar, reference }
#define BENCH_OWN(n, what, bar, reference) BENCH_THREADS("threads", BENCH_OWN_STREAMS, n, what, bar, reference)
#define BENCH_ONE(n, what, bar, reference) BENCH_THREADS("stream", BENCH_ONE_STREAM, n, what, bar, reference)

static const bench_pattern bench_patterns[] = {
    {"pair", "pair_512B", "pairs of 512 B", BENCH_PAIR, 512, 0, 1, 45, 460},
    {"pair", "pair_4KiB", "pairs of 4 KiB", BENCH_PAIR, 4 * BENCH_KIB, 0, 1, 45, 460},
    {"pair", "pair_64KiB", "pairs of 64 KiB", BENCH_PAIR, 64 * BENCH_KIB, 0, 1, 45, 460},
    {"pair", "pair_1MiB", "pairs of 1 MiB", BENCH_PAIR, 1 * BENCH_MIB, 0, 1, 45, 460},
    {"pair", "pair_8MiB", "pairs of 8 MiB", BENCH_PAIR, 8 * BENCH_MIB, 0, 1, 45, 460},
    {"pair", "pair_64MiB", "pairs of 64 MiB", BENCH_PAIR, 64 * BENCH_MIB, 0, 1, 45, 460},
    {"live", "live_1000_1MiB", "1,000 live, up to 1 MiB", BENCH_REPLACE, 1 * BENCH_MIB, 1000, 1, 85, 880},
    {"live", "live_1000_64MiB", "1,000 live, up to 64 MiB", BENCH_REPLACE, 64 * BENCH_MIB, 1000, 1, 0, 970},
    {"live", "live_20000_1MiB", "20,000 live, up to 1 MiB", BENCH_REPLACE, 1 * BENCH_MIB, 20000, 1, 130, 1320},
    BENCH_OWN(1, " thread, own stream", 0, 400),
    BENCH_OWN(2, " threads, own streams", 0, 920),
    BENCH_OWN(4, " threads, own streams", 0, 1770),
    BENCH_OWN(8, " threads, own streams", 0, 2700),
    BENCH_OWN(16, " threads, own streams", 65, 3400),
    BENCH_OWN(32, " threads, own streams", 0, 0),
    BENCH_OWN(64, " threads, own streams", 0, 0),
    BENCH_ONE(1, " thread, one stream", 0, 740),
    BENCH_ONE(2, " threads, one stream", 0, 840),
    BENCH_ONE(4, " threads, one stream", 0, 1990),
    BENCH_ONE(8, " threads, one stream", 0, 2900),
    BENCH_ONE(16, " threads, one stream", 170, 3330),
    BENCH_ONE(32, " threads, one stream", 0, 0),
    BENCH_ONE(64, " threads, one stream", 0, 0),
};
enum { BENCH_PATTERN_COUNT = sizeof bench_patterns / sizeof bench_patterns[0] };

/* The amount of work. */
typedef struct bench_scale {
  int rounds;     /* of each pattern, at most BENCH_MAX_ROUNDS */
  long pairs;     /* in a round of one thread, the maximum */
  double most_ns; /* a round of a slow contestant has fewer pairs, so that it takes about this long at most */
} bench_scale;

/* Random numbers, the same for all contestants and in every run. They are computed in the loops, since a table would
 * occupy processor caches that the contestants use. */
typedef struct bench_random {
  uint64_t state;
} bench_random;

/* A number below a limit of at most 32 bits. */
static inline uint64_t bench_draw(bench_random *random, uint64_t limit) {
  random->state = random->state * 6364136223846793005u + 1442695040888963407u;
  return (random->state >> 32) * limit >> 32;
}

/* A contestant at work on a pattern. */
typedef struct bench_work {
  const bench_pattern *pattern;
  void *context;        /* for its two calls */
  void *const *streams; /* one for each thread */
  void **blocks;        /* room for pattern->live and for a block of each thread */
  long warm_steps;      /* before the first round of one with live blocks */
  int core;             /* on which all contestants run; -1 for any */
  bench_random random;
} bench_work;

/* The loops of a contestant. A failed allocation ends them: begin then returns 0, and round a negative number. */
typedef struct bench_player {
  int (*begin)(bench_work *work);                /* allocates the live blocks, and warms up */
  double (*round)(bench_work *work, long pairs); /* ns for each pair */
  void (*end)(bench_work *work);                 /* frees the blocks */
} bench_player;

typedef void *(*bench_take)(void *context, size_t bytes, void *stream);
typedef void (*bench_give)(void *context, void *pointer);

static inline double bench_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static inline int bench_compare_doubles(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts the rounds, and returns their median. */
static inline double bench_median(double *rounds, int count) {
  qsort(rounds, (size_t)count, sizeof *rounds, bench_compare_doubles);
  return count % 2 ? rounds[count / 2] : (rounds[count / 2 - 1] + rounds[count / 2]) / 2;
}

/* The core on which all contestants run a single-threaded pattern, in all processes, since cores differ in load. -1
 * for a pattern with threads, or if it cannot be set. */
static inline int bench_choose_core(const bench_pattern *pattern, cpu_set_t *all) {
  int has_threads = pattern->kind == BENCH_OWN_STREAMS || pattern->kind == BENCH_ONE_STREAM;
  return sched_getaffinity(0, sizeof *all, all) || has_threads ? -1 : sched_getcpu();
}

/* Pins the calling thread to a core; -1 allows all cores again. */
static inline void bench_stay_on(int core, const cpu_set_t *all) {
  cpu_set_t one;
  CPU_ZERO(&one);
  if (core >= 0)
    CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, core >= 0 ? &one : all);
}

/* ---- The loops, inlined into each player, where take and give are known ---- */

#define BENCH_INLINE static inline __attribute__((always_inline))

BENCH_INLINE int bench_do_pairs(bench_take take, bench_give give, void *context, size_t bytes, void *stream,
                                long pairs) {
  for (long i = 0; i < pairs; i++) {
    void *p = take(context, bytes, stream);
    if (!p)
      return 0;
    give(context, p);
  }
  return 1;
}

BENCH_INLINE int bench_do_replace(bench_take take, bench_give give, bench_work *w, long pairs) {
  bench_random random = w->random;
  uint64_t live = (uint64_t)w->pattern->live, most = w->pattern->bytes;
  for (long i = 0; i < pairs; i++) {
    void **block = &w->blocks[bench_draw(&random, live)];
    give(w->context, *block);
    *block = take(w->context, 1 + bench_draw(&random, most), w->streams[0]);
    if (!*block)
      return 0;
  }
  w->random = random;
  return 1;
}

/* Holds threads back until all are ready. */
typedef struct bench_gate {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  int ready;   /* threads; guarded by lock */
  int is_open; /* 1 to run, -1 to give up; guarded by lock */
} bench_gate;

typedef struct bench_thread {
  bench_work *work;
  bench_gate *gate;
  void *stream;
  long pairs;
  double began, ended;
  int is_done; /* without a failure */
  pthread_t id;
} bench_thread;

static inline int bench_wait_for_gate(bench_gate *gate) {
  pthread_mutex_lock(&gate->lock);
  gate->ready++;
  pthread_cond_broadcast(&gate->changed);
  while (!gate->is_open)
    pthread_cond_wait(&gate->changed, &gate->lock);
  int go = gate->is_open > 0;
  pthread_mutex_unlock(&gate->lock);
  return go;
}

static inline void bench_open_gate(bench_gate *gate, int threads, int go) {
  pthread_mutex_lock(&gate->lock);
  while (go && gate->ready < threads)
    pthread_cond_wait(&gate->changed, &gate->lock);
  gate->is_open = go ? 1 : -1;
  pthread_cond_broadcast(&gate->changed);
  pthread_mutex_unlock(&gate->lock);
}

BENCH_INLINE void bench_do_thread(bench_take take, bench_give give, bench_thread *t) {
  void *context = t->work->context;
  size_t bytes = t->work->pattern->bytes;
  int is_warm = bench_do_pairs(take, give, context, bytes, t->stream, BENCH_WARM_PAIRS);
  if (!bench_wait_for_gate(t->gate) || !is_warm)
    return;
  t->began = bench_now();
  t->is_done = bench_do_pairs(take, give, context, bytes, t->stream, t->pairs);
  t->ended = bench_now();
}

/* The time from the start of the first thread to the end of the last, divided by the pairs of all threads. */
static inline double bench_do_threads(bench_work *w, void *(*run)(void *), long pairs) {
  bench_thread threads[BENCH_MAX_THREADS];
  bench_gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};
  int count = w->pattern->threads, started = 0;
  long each = pairs * BENCH_THREAD_FACTOR / count + 1;
  for (; started < count; started++) {
    bench_thread *t = &threads[started];
    t->work = w;
    t->gate = &gate;
    t->stream = w->streams[w->pattern->kind == BENCH_OWN_STREAMS ? started : 0];
    t->pairs = each;
    t->is_done = 0;
    if (pthread_create(&t->id, NULL, run, t))
      break;
  }
  bench_open_gate(&gate, started, started == count);
  double began = 0, ended = 0;
  int all_done = started == count;
  for (int i = 0; i < started; i++) {
    bench_thread *t = &threads[i];
    pthread_join(t->id, NULL);
    all_done = all_done && t->is_done;
    if (!t->is_done)
      continue;
    if (began == 0 || t->began < began)
      began = t->began;
    if (t->ended > ended)
      ended = t->ended;
  }
  return all_done ? (ended - began) / ((double)each * count) : -1;
}

BENCH_INLINE void bench_do_end(bench_give give, bench_work *w) {
  int count = w->pattern->live > w->pattern->threads ? w->pattern->live : w->pattern->threads;
  for (int i = 0; i < count; i++) {
    if (w->blocks[i])
      give(w->context, w->blocks[i]);
    w->blocks[i] = NULL;
  }
}

/* Threads find all blocks in the cache: as many as they need at once were allocated on each stream. */
BENCH_INLINE int bench_do_begin(bench_take take, bench_give give, bench_work *w) {
  const bench_pattern *p = w->pattern;
  w->random = (bench_random){42};
  switch (p->kind) {
  case BENCH_PAIR:
    return bench_do_pairs(take, give, w->context, p->bytes, w->streams[0], BENCH_WARM_PAIRS);
  case BENCH_REPLACE:
    for (int i = 0; i < p->live; i++)
      if (!(w->blocks[i] = take(w->context, 1 + bench_draw(&w->random, p->bytes), w->streams[0])))
        return 0;
    return bench_do_replace(take, give, w, w->warm_steps);
  default:
    for (int i = 0; i < p->threads; i++)
      if (!(w->blocks[i] = take(w->context, p->bytes, w->streams[p->kind == BENCH_OWN_STREAMS ? i : 0])))
        return 0;
    bench_do_end(give, w);
    return 1;
  }
}

BENCH_INLINE double bench_do_round(bench_take take, bench_give give, void *(*thread)(void *), bench_work *w,
                                   long pairs) {
  if (w->pattern->kind == BENCH_OWN_STREAMS || w->pattern->kind == BENCH_ONE_STREAM)
    return bench_do_threads(w, thread, pairs);
  double began = bench_now();
  int is_done = w->pattern->kind == BENCH_REPLACE
                    ? bench_do_replace(take, give, w, pairs)
                    : bench_do_pairs(take, give, w->context, w->pattern->bytes, w->streams[0], pairs);
  return is_done ? (bench_now() - began) / (double)pairs : -1;
}

/* Fewer for short rounds. */
static inline long bench_warm_steps(const bench_scale *scale) {
  return 2 * scale->pairs < BENCH_WARM_STEPS ? 2 * scale->pairs : (long)BENCH_WARM_STEPS;
}

/* How many pairs the rounds of a contestant have, estimated from a short one; negative if that fails. */
static inline long bench_choose_pairs(const bench_player *player, bench_work *work, const bench_scale *scale) {
  double ns = player->round(work, scale->pairs / 50 + 1);
  if (work->pattern->kind == BENCH_OWN_STREAMS || work->pattern->kind == BENCH_ONE_STREAM)
    ns *= BENCH_THREAD_FACTOR;
  if (ns < 0 || ns * (double)scale->pairs <= scale->most_ns)
    return ns < 0 ? -1 : scale->pairs;
  return (long)(scale->most_ns / ns) + 1;
}

#define BENCH_PLAYER(name, take, give)                                                                                 \
  static int name##_begin(bench_work *work) { return bench_do_begin(take, give, work); }                               \
  static void *name##_thread(void *thread) {                                                                           \
    bench_do_thread(take, give, (bench_thread *)thread);                                                               \
    return NULL;                                                                                                       \
  }                                                                                                                    \
  static double name##_round(bench_work *work, long pairs) {                                                           \
    return bench_do_round(take, give, name##_thread, work, pairs);                                                     \
  }                                                                                                                    \
  static void name##_end(bench_work *work) { bench_do_end(give, work); }                                               \
  static const bench_player name = {name##_begin, name##_round, name##_end}

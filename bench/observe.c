/*
 * observe: what recording adds to an allocation and its free: entries, entries in a file in /tmp as WEIR_RECORD makes
 * it, and native stacks of ten frames.
 *
 *   observe [--quick]
 *
 * Each way of recording has an allocator of its own on a ledger, and they take turns, so that disturbances of the
 * machine affect all alike. The fastest round of each counts. They run in a thread, whose stack is shallow.
 */
#include <glob.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "patterns.h"
#include "weir/weir.h"

enum { ENTRIES = 100000, WANTED_FRAMES = 10, MAX_ROUNDS = 512 };

static const struct way {
  const char *title;
  weir_history_mode mode;
  weir_history_context context;
  bool has_file; /* WEIR_RECORD is set */
  double bar;    /* ns more than off that are acceptable; 0 if there is no bar */
} ways[] = {
    {"off", WEIR_HISTORY_OFF, WEIR_CONTEXT_NONE, false, 0},
    {"entries, no stacks", WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, false, 40},
    {"the same to a file", WEIR_HISTORY_ALL, WEIR_CONTEXT_NONE, true, 60},
    {"native stacks of allocations", WEIR_HISTORY_ALL, WEIR_CONTEXT_ALLOC, false, 400},
    {"native stacks of frees too", WEIR_HISTORY_ALL, WEIR_CONTEXT_ALL, false, 400},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

typedef struct side {
  weir_driver *driver;
  weir_allocator *allocator;
  double rounds[MAX_ROUNDS]; /* ns of a pair */
  double least, median, added;
} side;

typedef struct bench {
  int rounds;
  long pairs;
  size_t frames; /* of a stack; 0 without libunwind */
  bool is_done;
  side sides[WAYS];
} bench;

static bool failed(const char *what) {
  fprintf(stderr, "observe: %s: %s\n", what, weir_last_error());
  return false;
}

/* An allocator that records to a file. The file is removed at once, since the mapping is enough. */
static weir_status create_with_file(weir_driver *driver, const weir_allocator_options *options,
                                    weir_allocator **allocator) {
  char folder[] = "/tmp/weir-bench-XXXXXX";
  if (!mkdtemp(folder))
    return WEIR_ERROR_SYSTEM;
  setenv("WEIR_RECORD", folder, 1);
  weir_status status = weir_allocator_create(driver, options, allocator);
  unsetenv("WEIR_RECORD");
  char pattern[sizeof folder + 8];
  glob_t files;
  snprintf(pattern, sizeof pattern, "%s/*", folder);
  bool has_file = glob(pattern, 0, NULL, &files) == 0;
  for (size_t i = 0; has_file && i < files.gl_pathc; i++)
    unlink(files.gl_pathv[i]);
  globfree(&files);
  rmdir(folder);
  if (!status && !has_file) {
    weir_allocator_destroy(*allocator);
    *allocator = NULL;
    return WEIR_ERROR_SYSTEM;
  }
  return status;
}

static bool open_side(const struct way *way, side *s) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  weir_history_options history;
  weir_history_options_init(&history);
  history.mode = way->mode;
  history.context = way->context;
  history.max_entries = ENTRIES;
  if (weir_driver_open_ledger(NULL, &s->driver) || s->driver->Init(s->driver, 0) ||
      (way->has_file ? create_with_file : weir_allocator_create)(s->driver, &options, &s->allocator) ||
      weir_history_record(s->allocator, &history))
    return failed("cannot create an allocator");
  return true;
}

static double run_pairs(weir_allocator *allocator, long pairs) {
  double begin = bench_now();
  for (long i = 0; i < pairs; i++) {
    void *pointer;
    if (weir_allocator_alloc(allocator, 0, 512, NULL, &pointer) || weir_allocator_free(allocator, pointer))
      return -1;
  }
  return (bench_now() - begin) / (double)pairs;
}

/* Runs the pairs `depth` frames deeper. The compiler must not turn the recursion into a loop. */
static __attribute__((noinline)) double run_deep(weir_allocator *allocator, long pairs, int depth) {
  double ns = depth > 0 ? run_deep(allocator, pairs, depth - 1) : run_pairs(allocator, pairs);
  __asm__ volatile("" : : : "memory");
  return ns;
}

static int count_frame(void *context, const char *function, const char *file, int line, int is_native) {
  (void)function, (void)file, (void)line, (void)is_native;
  ++*(size_t *)context;
  return 0;
}

/* The depth at which a stack has the wanted number of frames. */
static bool find_depth(bench *b, int *depth) {
  uint32_t stack;
  if (weir_stack_capture(WEIR_STACKS_ALL, &stack) || weir_stack_visit(stack, count_frame, &b->frames))
    return failed("cannot capture a stack");
  if (b->frames && b->frames < WANTED_FRAMES) {
    *depth = (int)(WANTED_FRAMES - b->frames);
    b->frames = WANTED_FRAMES;
  }
  return true;
}

static bool measure(bench *b) {
  int depth = 0;
  for (int i = 0; i < WAYS; i++)
    if (!open_side(&ways[i], &b->sides[i]))
      return false;
  if (!find_depth(b, &depth))
    return false;
  for (int round = -1; round < b->rounds; round++) /* the first fills the rings */
    for (int i = 0; i < WAYS; i++) {
      double ns = run_deep(b->sides[i].allocator, round < 0 ? ENTRIES : b->pairs, depth);
      if (ns < 0)
        return failed("an allocation failed");
      if (round >= 0)
        b->sides[i].rounds[round] = ns;
    }
  for (int i = 0; i < WAYS; i++) {
    side *s = &b->sides[i];
    s->median = bench_median(s->rounds, b->rounds);
    s->least = s->rounds[0];
    s->added = s->least - b->sides[0].least;
  }
  return true;
}

static void *measure_in_thread(void *context) {
  bench *b = context;
  b->is_done = measure(b);
  return NULL;
}

static bool is_there(const bench *b, int way) { return ways[way].context == WEIR_CONTEXT_NONE || b->frames; }

static void print_text(const bench *b) {
  printf("Weir %s; pairs of 512 B on a ledger; %d rounds of %ld pairs; a ring of %d entries, full\n", weir_version(),
         b->rounds, b->pairs, (int)ENTRIES);
#ifndef __OPTIMIZE__
  puts("This build is not optimized, and its numbers mean nothing. Use the build that 'make' makes.");
#endif
  printf("%zu frames in a stack\n", b->frames);
  printf("\n%-32s %10s %10s %10s %10s\n", "recording", "median ns", "least ns", "added", "bar");
  for (int i = 0; i < WAYS; i++) {
    if (!is_there(b, i)) {
      printf("%-32s %10s  libunwind was not found\n", ways[i].title, "absent");
      continue;
    }
    printf("%-32s %10.1f %10.1f %10.1f", ways[i].title, b->sides[i].median, b->sides[i].least, b->sides[i].added);
    if (ways[i].bar > 0)
      printf(" %10.0f%s", ways[i].bar, b->sides[i].added <= ways[i].bar ? "" : "  above");
    putchar('\n');
  }
}

int main(int argc, char **argv) {
  bool quick = argc == 2 && strcmp(argv[1], "--quick") == 0;
  if (argc > 1 + quick) {
    fprintf(stderr, "observe: invalid usage\nusage: observe [--quick]\n");
    return 2;
  }
  static bench b;
  b.rounds = quick ? 3 : 401;
  b.pairs = quick ? 2000 : 4000;
  unsetenv("WEIR_RECORD"); /* what is measured is not recorded, but for one contestant */
  pthread_t thread;
  if (pthread_create(&thread, NULL, measure_in_thread, &b)) {
    fprintf(stderr, "observe: cannot start a thread\n");
    return 1;
  }
  pthread_join(thread, NULL);
  if (b.is_done)
    print_text(&b);
  for (int i = 0; i < WAYS; i++) {
    weir_allocator_destroy(b.sides[i].allocator);
    weir_driver_close(b.sides[i].driver);
  }
  return b.is_done ? 0 : 1;
}

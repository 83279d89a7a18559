/*
 * The time to open, to draw and to replay recordings of a hundred thousand to ten million events. The recordings are
 * made here by an allocator under the load of a training job: each step keeps its activations until the backward pass,
 * and each step has another length.
 *
 *     build/bench/replay [EVENTS...]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "weir/alloc.h"
#include "weir/driver.h"
#include "weir/history.h"
#include "weir/offline.h"
#include "weir/snapshot.h"

enum { LAYERS = 48, PER_LAYER = 6, WEIGHTS = 200 };

static void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, weir_last_error());
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t next_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

static void *take(weir_allocator *allocator, uint64_t bytes) {
  void *pointer;
  if (weir_allocator_alloc(allocator, 0, bytes, NULL, &pointer))
    die("alloc");
  return pointer;
}

static void run_step(weir_allocator *allocator, uint64_t tokens) {
  void *kept[LAYERS][PER_LAYER];
  for (int layer = 0; layer < LAYERS; layer++)
    for (int i = 0; i < PER_LAYER; i++) {
      void *scratch = take(allocator, tokens * (512u << i % 3));
      kept[layer][i] = take(allocator, tokens * (64u << 2 * i));
      weir_allocator_free(allocator, scratch);
    }
  for (int layer = LAYERS - 1; layer >= 0; layer--)
    for (int i = 0; i < PER_LAYER; i++) {
      void *gradient = take(allocator, tokens * (64u << 2 * i));
      weir_allocator_free(allocator, kept[layer][i]);
      weir_allocator_free(allocator, gradient);
    }
}

/* Writes a recording of about so many events to a file. */
static void make(uint64_t events, FILE *file) {
  enum { EVENTS_PER_STEP = LAYERS * PER_LAYER * 9 };
  weir_ledger_options ledger;
  weir_allocator_options options;
  weir_history_options history;
  weir_driver *driver;
  weir_allocator *allocator;
  weir_snapshot *snapshot;
  uint64_t random = 1;
  weir_ledger_options_init(&ledger);
  weir_allocator_options_init(&options);
  weir_history_options_init(&history);
  ledger.bytes = 1ull << 40;
  options.conf = "";
  history.context = WEIR_CONTEXT_NONE;
  history.max_entries = SIZE_MAX;
  if (weir_driver_open_ledger(&ledger, &driver) || driver->Init(driver, 0) ||
      weir_allocator_create(driver, &options, &allocator) || weir_history_record(allocator, &history))
    die("set up");
  for (int i = 0; i < WEIGHTS; i++)
    take(allocator, 1 + next_random(&random) % (32 << 20));
  for (uint64_t i = 0; i < events / EVENTS_PER_STEP; i++)
    run_step(allocator, 256 + next_random(&random) % 4096);
  if (weir_snapshot_take(allocator, NULL, &snapshot) ||
      weir_snapshot_write(snapshot, WEIR_SNAPSHOT_PICKLE, weir_write_file, file) || fflush(file))
    die("snapshot");
  weir_snapshot_destroy(snapshot);
  weir_allocator_destroy(allocator);
  weir_driver_close(driver);
}

static int discard(void *context, const void *bytes, size_t length) {
  (void)context, (void)bytes, (void)length;
  return 0;
}

/* The seconds that the slowest picture takes. */
static double draw(const weir_offline_recording *recording) {
  double slowest = 0;
  for (int kind = 0; kind < WEIR_OFFLINE_PLOTS; kind++) {
    weir_offline_plot_options options;
    weir_offline_plot_options_init(&options);
    options.kind = (weir_offline_plot)kind;
    double begin = now();
    if (weir_offline_recording_plot(recording, &options, discard, NULL))
      die("draw");
    double seconds = now() - begin;
    slowest = seconds > slowest ? seconds : slowest;
  }
  return slowest;
}

static void measure(uint64_t events) {
  static const char *const confs[] = {NULL, "expandable_segments:True", "max_split_size_mb:256"};
  char path[] = "/tmp/weir-bench-XXXXXX";
  weir_offline_recording *recording;
  weir_offline_replayer *replayer;
  weir_offline_result result;
  int descriptor = mkstemp(path);
  FILE *file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
  if (!file)
    die(path);
  make(events, file);
  fclose(file);
  double begin = now();
  if (weir_offline_recording_load(path, NULL, &recording))
    die("load");
  unlink(path);
  double loaded = now();
  double drawing = draw(recording), before = now();
  if (weir_offline_replayer_create(recording, NULL, &replayer))
    die("open");
  double opened = now();
  weir_offline_result_init(&result);
  if (weir_offline_replayer_check(replayer, &result))
    die("check");
  printf("%10llu %12.3f %12.3f %12.3f", (unsigned long long)result.events, loaded - begin, drawing, opened - before);
  if (!result.is_exact)
    printf(" (differs: %s)", result.first_difference);
  for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
    weir_offline_predict_options options;
    weir_offline_predict_options_init(&options);
    options.conf = confs[i];
    if (weir_offline_replayer_predict(replayer, &options, &result))
      die("run");
    printf(" %12.3f (%4.1f)", result.seconds, (double)result.events / result.seconds / 1e6);
  }
  putchar('\n');
  fflush(stdout);
  weir_offline_replayer_destroy(replayer);
  weir_offline_recording_destroy(recording);
}

int main(int argc, char **argv) {
  static const uint64_t sizes[] = {100000, 1000000, 10000000};
  puts("Seconds (and million events per second) by the number of events of a recording");
  printf("%10s %12s %12s %12s %19s %19s %19s\n", "events", "load", "draw", "open", "recorded", "expandable",
         "max_split_size 256");
  if (argc > 1)
    for (int i = 1; i < argc; i++)
      measure(strtoull(argv[i], NULL, 10));
  else
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      measure(sizes[i]);
  return 0;
}

/*
 * The time to explain, replay and tune recordings of a hundred thousand to ten million events. The recordings are made
 * here by an allocator under the load of a training job: each step keeps its activations until the backward pass, and
 * each step has another length.
 *
 *     build/bench/replay [EVENTS...]
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "offline/predict.h"
#include "weir/alloc.h"
#include "weir/driver.h"

enum { LAYERS = 48, PER_LAYER = 6, WEIGHTS = 200 };

typedef struct recording {
  weir__recording_entry *events;
  size_t count, most;
} recording;

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

static void record(void *context, const weir_trace_entry *entry) {
  static const uint8_t actions[] = {
      [WEIR_TRACE_ALLOC] = WEIR_TRACE_ALLOC,
      [WEIR_TRACE_FREE_REQUESTED] = WEIR_TRACE_FREE_REQUESTED,
      [WEIR_TRACE_FREE_COMPLETED] = WEIR_TRACE_FREE_COMPLETED,
      [WEIR_TRACE_SEGMENT_ALLOC] = WEIR_TRACE_SEGMENT_ALLOC,
      [WEIR_TRACE_SEGMENT_FREE] = WEIR_TRACE_SEGMENT_FREE,
      [WEIR_TRACE_SEGMENT_MAP] = WEIR_TRACE_SEGMENT_MAP,
      [WEIR_TRACE_SEGMENT_UNMAP] = WEIR_TRACE_SEGMENT_UNMAP,
      [WEIR_TRACE_OOM] = WEIR_TRACE_OOM,
  };
  recording *r = context;
  if (r->count < r->most)
    r->events[r->count++] = (weir__recording_entry){.action = actions[entry->action],
                                                    .address = entry->address,
                                                    .size = entry->bytes,
                                                    .pool = WEIR__RECORDING_NO_POOL};
}

static void *take(weir_allocator *allocator, uint64_t bytes) {
  void *pointer;
  if (weir_allocator_alloc(allocator, 0, bytes, NULL, &pointer))
    die("alloc");
  return pointer;
}

static void make(recording *r) {
  weir_ledger_options ledger;
  weir_allocator_options options;
  weir_driver *driver;
  weir_allocator *allocator;
  void *kept[LAYERS][PER_LAYER];
  uint64_t random = 1;
  weir_ledger_options_init(&ledger);
  weir_allocator_options_init(&options);
  ledger.bytes = 1ull << 40;
  options.conf = "";
  if (weir_driver_open_ledger(&ledger, &driver) || driver->Init(driver, 0) ||
      weir_allocator_create(driver, &options, &allocator) || weir_allocator_attach_tracker(allocator, record, r))
    die("set up");
  for (int i = 0; i < WEIGHTS; i++)
    take(allocator, 1 + next_random(&random) % (32 << 20));
  while (r->count < r->most) {
    uint64_t tokens = 256 + next_random(&random) % 4096;
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
  weir_allocator_destroy(allocator);
  weir_driver_close(driver);
}

static void measure(size_t events) {
  static const char *const confs[] = {NULL, "expandable_segments:True", "max_split_size_mb:256"};
  recording r = {.most = events};
  r.events = calloc(events, sizeof *r.events);
  if (!r.events)
    die("no host memory");
  make(&r);
  int64_t streams[] = {0};
  weir__recording_pool pools[] = {{{0, 0}}};
  weir__recording_device device = {.events = r.events, .event_count = r.count};
  const weir__recording snapshot = {.devices = &device,
                                    .device_count = 1,
                                    .has_history = true,
                                    .streams = streams,
                                    .stream_count = 1,
                                    .pools = pools,
                                    .pool_count = 1};
  weir__replayer *history;
  double begin = now();
  if (weir__replayer_open(&snapshot, 0, 0, 0, &history))
    die("open");
  printf("%10zu %12.3f", r.count, now() - begin);
  if (weir__replayer_check(history)->differences)
    printf(" (differs: %s)", weir__replayer_check(history)->shown[0]);
  for (size_t i = 0; i < sizeof confs / sizeof *confs; i++) {
    weir__settings settings;
    weir__replay_report report;
    weir__capacity capacity = weir__replayer_capacity(history);
    if (confs[i] && weir__settings_parse(NULL, confs[i], &settings))
      die(confs[i]);
    if (weir__replayer_run(history, confs[i] ? &settings : NULL, &capacity, NULL, &report))
      die("run");
    printf(" %12.3f (%4.1f)", report.seconds, (double)report.events / report.seconds / 1e6);
  }
  putchar('\n');
  fflush(stdout);
  weir__replayer_close(history);
  free(r.events);
}

int main(int argc, char **argv) {
  static const size_t sizes[] = {100000, 1000000, 10000000};
  puts("Seconds (and million events per second) by the number of events of a recording");
  printf("%10s %12s %19s %19s %19s\n", "events", "explain", "recorded", "expandable", "max_split_size 256");
  if (argc > 1)
    for (int i = 1; i < argc; i++)
      measure(strtoull(argv[i], NULL, 10));
  else
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
      measure(sizes[i]);
  return 0;
}

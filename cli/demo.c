/*
 * weir demo: a job shaped like a training run on the allocator, checked and timed.
 *
 * It has no arithmetic: fills stamp values, and copies carry them from the batch through the layers into gradients,
 * optimizer state and weights. Memory that is reused too early shows as a wrong word at the end.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "weir/weir.h"

enum {
  LAYERS = 8,
  STEPS = 36,
  REPLAY_EVERY = 4,
  MIN_BATCH = 4, /* samples */
  MAX_BATCH = 32,
  GRAPH_BATCH = 8,
  SAMPLE_WORDS = 16 * 1024,
  STAMP_WORDS = SAMPLE_WORDS / LAYERS, /* each layer stamps its part of the first sample */
  WEIGHT_WORDS = 512 * 1024,           /* of each layer */
  WEIGHT_BYTES = WEIGHT_WORDS * 4,
  BATCH_WORDS = MAX_BATCH * SAMPLE_WORDS,
  GRAPH_WORDS = GRAPH_BATCH * SAMPLE_WORDS,
  MOMENTS = 2 /* of the optimizer, each as large as the weights */
};

typedef struct demo {
  weir_driver *driver;
  weir_device_properties device;
  weir_stream compute, loader;
  weir_event *begin, *end;
  weir_allocator *allocator;
  weir_graph *graph;
  void *weights[LAYERS], *moments[MOMENTS][LAYERS], *gradients[LAYERS], *activations[LAYERS];
  void *batch, *next_batch;                     /* allocated on the loader's stream, read on the other */
  void *graph_result;                           /* in the graph's pool */
  uint32_t *in[2], *out, *graph_in, *graph_out; /* page-locked, one allocation that begins at in[0] */
  int is_cached;                                /* if not, the graph is left out, since a capture cannot allocate */
  size_t graph_nodes;
  int replays;
  double device_ms; /* of all steps, measured with two events */
  weir_allocator_stats stats;
  char settings[512];
  char error[4096]; /* the first failure, "" if there is none */
} demo;

/* Keeps the first failure. */
static bool ok(demo *demo, weir_status status) {
  if (status && !demo->error[0])
    snprintf(demo->error, sizeof demo->error, "%s: %s", weir_status_name(status), weir_last_error());
  return !status;
}

static bool driver_ok(demo *demo, const char *call, weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS && !demo->error[0])
    snprintf(demo->error, sizeof demo->error, "%s: %s (%s)", call, weir_cu_result_name(result),
             weir_cu_result_string(result));
  return !result;
}

__attribute__((format(printf, 2, 3))) static bool wrong(demo *demo, const char *format, ...) {
  va_list args;
  va_start(args, format);
  if (!demo->error[0])
    vsnprintf(demo->error, sizeof demo->error, format, args);
  va_end(args);
  return false;
}

static double now_ms(void) { return (double)weir__monotonic_ns() / 1e6; }

/* ---- Memory ---- */

static bool allocate(demo *demo, size_t words, weir_stream stream, void **memory) {
  weir_cu_stream raw;
  return ok(demo, weir_stream_raw(stream, &raw)) &&
         ok(demo, weir_allocator_alloc(demo->allocator, 0, words * 4, raw, memory));
}

static bool release(demo *demo, void **memory) {
  void *released = *memory;
  *memory = NULL;
  return ok(demo, weir_allocator_free(demo->allocator, released));
}

static bool set_up(demo *demo) {
  weir_driver *d;
  void *host;
  const size_t host_words = 3 * BATCH_WORDS + 2 * GRAPH_WORDS;
  if (!ok(demo, weir_device_set_current(0)) || !ok(demo, weir_get_driver(&demo->driver)) ||
      !ok(demo, weir_device_get_properties(0, &demo->device)) || !ok(demo, weir_stream_create(0, -1, &demo->compute)) ||
      !ok(demo, weir_stream_create(0, 0, &demo->loader)) || !ok(demo, weir_stream_set_current(demo->compute)) ||
      !ok(demo, weir_event_create(WEIR_EVENT_TIMING, &demo->begin)) ||
      !ok(demo, weir_event_create(WEIR_EVENT_TIMING, &demo->end)) ||
      !ok(demo, weir_allocator_create(demo->driver, NULL, &demo->allocator)) ||
      !ok(demo, weir_graph_use_allocator(demo->allocator)) || !ok(demo, weir_graph_create(&demo->graph)))
    return false;
  if (!ok(demo, weir_allocator_settings(demo->allocator, demo->settings, sizeof demo->settings, NULL)) ||
      !ok(demo, weir_allocator_is_caching(demo->allocator, &demo->is_cached)))
    return false;
  d = demo->driver;
  if (!driver_ok(demo, "cuMemHostAlloc", d->MemHostAlloc(d, &host, host_words * 4, WEIR_CU_MEMHOSTALLOC_PORTABLE)))
    return false;
  demo->in[0] = host;
  demo->in[1] = demo->in[0] + BATCH_WORDS;
  demo->out = demo->in[1] + BATCH_WORDS;
  demo->graph_in = demo->out + BATCH_WORDS;
  demo->graph_out = demo->graph_in + GRAPH_WORDS;
  for (int layer = 0; layer < LAYERS; layer++)
    if (!allocate(demo, WEIGHT_WORDS, demo->compute, &demo->weights[layer]) ||
        !ok(demo, weir_fill32_async(demo->weights[layer], 0, WEIGHT_WORDS, demo->compute)))
      return false;
  return true;
}

/* Frees all memory of the job, and releases the cache to the driver. */
static bool release_all(demo *demo) {
  weir_allocator_stats left = {.size = sizeof left};
  for (int layer = 0; layer < LAYERS; layer++) {
    if (!release(demo, &demo->weights[layer]))
      return false;
    for (int m = 0; m < MOMENTS; m++)
      if (!release(demo, &demo->moments[m][layer]))
        return false;
  }
  if (!release(demo, &demo->graph_result) || !ok(demo, weir_graph_reset(demo->graph)) ||
      !ok(demo, weir_allocator_empty_cache(demo->allocator)) ||
      !ok(demo, weir_allocator_get_stats(demo->allocator, 0, &left)))
    return false;
  if (left.allocated_bytes[WEIR_STAT_ALL].current || left.reserved_bytes[WEIR_STAT_ALL].current)
    return wrong(demo, "all memory was freed, but %lld bytes are allocated and %lld reserved",
                 (long long)left.allocated_bytes[WEIR_STAT_ALL].current,
                 (long long)left.reserved_bytes[WEIR_STAT_ALL].current);
  return true;
}

static void clean_up(demo *demo) {
  weir_graph_destroy(demo->graph);
  weir_allocator_destroy(demo->allocator); /* waits for the device, even after a failure */
  weir_event_destroy(demo->begin);
  weir_event_destroy(demo->end);
  if (demo->in[0])
    driver_ok(demo, "cuMemFreeHost", demo->driver->MemFreeHost(demo->driver, demo->in[0]));
  ok(demo, weir_shutdown());
}

/* ---- Expected values ---- */

static int batch_of(int step) { return MIN_BATCH + step * 11 % (MAX_BATCH - MIN_BATCH + 1); }
static uint32_t stamp_of(int step, int layer) { return (uint32_t)(step + 1) << 8 | (uint32_t)layer; }
static uint32_t sample_word(int seed, size_t i) { return (uint32_t)seed * 40503u ^ (uint32_t)i * 2654435761u; }

static void fill_in(uint32_t *in, int seed, size_t words) {
  for (size_t i = 0; i < words; i++)
    in[i] = sample_word(seed, i);
}

/* The output is the input, with the stamps of all layers in the first sample. */
static bool check_out(demo *demo, const char *what, const uint32_t *out, int seed, int step, size_t words) {
  for (size_t i = 0; i < words; i++) {
    uint32_t expected = i < SAMPLE_WORDS ? stamp_of(step, (int)(i / STAMP_WORDS)) : sample_word(seed, i);
    if (out[i] != expected)
      return wrong(demo, "%s of step %d: word %zu is %#x, expected %#x", what, step, i, out[i], expected);
  }
  return true;
}

/* ---- A step ---- */

/* Copies the next batch on a stream of its own while the previous step runs. */
static bool prefetch(demo *demo, int step) {
  size_t words = (size_t)batch_of(step) * SAMPLE_WORDS;
  uint32_t *in = demo->in[step % 2];
  fill_in(in, step, words);
  return allocate(demo, words, demo->loader, &demo->next_batch) &&
         ok(demo, weir_copy_async(demo->next_batch, in, words * 4, demo->loader));
}

/* Activations live until the backward pass, the workspace only during its layer. */
static bool forward(demo *demo, int step, int layer) {
  size_t batch = (size_t)batch_of(step), words = batch * SAMPLE_WORDS, workspace_words = batch * batch * 256;
  const void *input = layer ? demo->activations[layer - 1] : demo->batch;
  void *workspace;
  if (!allocate(demo, words, demo->compute, &demo->activations[layer]) ||
      !allocate(demo, workspace_words, demo->compute, &workspace))
    return false;
  uint32_t *part = (uint32_t *)demo->activations[layer] + (size_t)layer * STAMP_WORDS;
  return ok(demo, weir_fill32_async(workspace, stamp_of(step, layer), workspace_words, demo->compute)) &&
         ok(demo, weir_copy_async(demo->activations[layer], input, words * 4, demo->compute)) &&
         ok(demo, weir_copy_async(part, workspace, STAMP_WORDS * 4, demo->compute)) && release(demo, &workspace);
}

/* The gradient consists of the stamp of the layer; its first part was carried through the activations. */
static bool backward(demo *demo, int step, int layer) {
  size_t words = (size_t)batch_of(step) * SAMPLE_WORDS;
  void *flow;
  if (!allocate(demo, words, demo->compute, &flow) ||
      !allocate(demo, WEIGHT_WORDS, demo->compute, &demo->gradients[layer]))
    return false;
  const uint32_t *part = (const uint32_t *)flow + (size_t)layer * STAMP_WORDS;
  void *gradient = demo->gradients[layer];
  return ok(demo, weir_copy_async(flow, demo->activations[layer], words * 4, demo->compute)) &&
         release(demo, &demo->activations[layer]) &&
         ok(demo, weir_fill32_async(gradient, stamp_of(step, layer), WEIGHT_WORDS, demo->compute)) &&
         ok(demo, weir_copy_async(gradient, part, STAMP_WORDS * 4, demo->compute)) && release(demo, &flow);
}

/* Updates moments and weights from the gradient. The first step allocates the moments. */
static bool optimize(demo *demo, int layer) {
  const void *from = demo->gradients[layer];
  for (int m = 0; m < MOMENTS; m++) {
    void **moment = &demo->moments[m][layer];
    if ((!*moment && !allocate(demo, WEIGHT_WORDS, demo->compute, moment)) ||
        !ok(demo, weir_copy_async(*moment, from, WEIGHT_BYTES, demo->compute)))
      return false;
    from = *moment;
  }
  return ok(demo, weir_copy_async(demo->weights[layer], from, WEIGHT_BYTES, demo->compute)) &&
         release(demo, &demo->gradients[layer]);
}

static bool run_step(demo *demo, int step) {
  size_t words = (size_t)batch_of(step) * SAMPLE_WORDS;
  weir_cu_stream raw;
  demo->batch = demo->next_batch;
  demo->next_batch = NULL;
  if (!ok(demo, weir_stream_wait_stream(demo->compute, demo->loader)) ||
      !ok(demo, weir_stream_raw(demo->compute, &raw)) ||
      !ok(demo, weir_allocator_record_stream(demo->allocator, demo->batch, raw)))
    return false;
  for (int layer = 0; layer < LAYERS; layer++)
    if (!forward(demo, step, layer))
      return false;
  /* Without the recorded use on the compute stream, the loader's stream could reuse it at once. */
  if (!release(demo, &demo->batch) || (step + 1 < STEPS && !prefetch(demo, step + 1)) ||
      !ok(demo, weir_copy_async(demo->out, demo->activations[LAYERS - 1], words * 4, demo->compute)))
    return false;
  for (int layer = LAYERS - 1; layer >= 0; layer--)
    if (!backward(demo, step, layer))
      return false;
  for (int layer = 0; layer < LAYERS; layer++)
    if (!optimize(demo, layer))
      return false;
  return ok(demo, weir_stream_synchronize(demo->compute)) &&
         check_out(demo, "the result", demo->out, step, step, words);
}

/* ---- The trained weights on a fixed batch, as a graph that allocates from its own pool ---- */

static bool enqueue_evaluation(demo *demo) {
  void *now, *next;
  if (!allocate(demo, GRAPH_WORDS, demo->compute, &now) ||
      !ok(demo, weir_copy_async(now, demo->graph_in, GRAPH_WORDS * 4, demo->compute)))
    return false;
  for (int layer = 0; layer < LAYERS; layer++, now = next)
    if (!allocate(demo, GRAPH_WORDS, demo->compute, &next) ||
        !ok(demo, weir_copy_async(next, now, GRAPH_WORDS * 4, demo->compute)) ||
        !ok(demo, weir_copy_async((uint32_t *)next + (size_t)layer * STAMP_WORDS, demo->weights[layer], STAMP_WORDS * 4,
                                  demo->compute)) ||
        !release(demo, &now))
      return false;
  demo->graph_result = now;
  return ok(demo, weir_copy_async(demo->graph_out, now, GRAPH_WORDS * 4, demo->compute));
}

static bool capture(demo *demo) {
  if (!ok(demo, weir_graph_begin_capture(demo->graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_THREAD_LOCAL)))
    return false;
  bool captured = enqueue_evaluation(demo);
  return ok(demo, weir_graph_end_capture(demo->graph)) && captured &&
         ok(demo, weir_graph_node_count(demo->graph, &demo->graph_nodes));
}

static bool replay(demo *demo, int step) {
  fill_in(demo->graph_in, -step, GRAPH_WORDS);
  memset(demo->graph_out, 0xff, GRAPH_WORDS * 4);
  demo->replays++;
  return ok(demo, weir_graph_replay(demo->graph)) && ok(demo, weir_stream_synchronize(demo->compute)) &&
         check_out(demo, "the graph's result", demo->graph_out, -step, step, GRAPH_WORDS);
}

static bool train(demo *demo) {
  if ((demo->is_cached && !capture(demo)) || !ok(demo, weir_event_record(demo->begin, demo->compute)) ||
      !prefetch(demo, 0))
    return false;
  for (int step = 0; step < STEPS; step++)
    if (!run_step(demo, step) || (demo->is_cached && step % REPLAY_EVERY == REPLAY_EVERY - 1 && !replay(demo, step)))
      return false;
  if (!ok(demo, weir_event_record(demo->end, demo->compute)) || !ok(demo, weir_event_synchronize(demo->end)) ||
      !ok(demo, weir_event_elapsed(demo->begin, demo->end, &demo->device_ms)))
    return false;
  for (int layer = 0; layer < LAYERS; layer++) {
    if (!ok(demo, weir_copy(demo->out, demo->weights[layer], WEIGHT_BYTES, demo->compute)))
      return false;
    for (size_t i = 0; i < WEIGHT_WORDS; i++)
      if (demo->out[i] != stamp_of(STEPS - 1, layer))
        return wrong(demo, "weights of layer %d: word %zu is %#x, expected %#x", layer, i, demo->out[i],
                     stamp_of(STEPS - 1, layer));
  }
  demo->stats.size = sizeof demo->stats;
  return ok(demo, weir_allocator_get_stats(demo->allocator, 0, &demo->stats));
}

/* ---- Output ---- */

static void print_bytes(const char *name, const weir_stat *stat) {
  char now[32], peak[32];
  printf("  %-11s%12s now, %12s at the peak\n", name, weir__format_bytes((unsigned long long)stat->current, now),
         weir__format_bytes((unsigned long long)stat->peak, peak));
}

static void print_text(const demo *demo, double total_ms) {
  const weir_allocator_stats *s = &demo->stats;
  char total[32];
  weir_cli_fold_begin();
  printf("%s (%s), %s\n\n", demo->device.name, demo->driver->name,
         weir__format_bytes((unsigned long long)demo->device.total_memory, total));
  printf("  training   %d layers, %d steps with batches of %d to %d, each copied during the step before\n", LAYERS,
         STEPS, MIN_BATCH, MAX_BATCH);
  if (demo->is_cached)
    printf("  graph      %zu nodes with its own pool, captured once and replayed %d times\n", demo->graph_nodes,
           demo->replays);
  else
    fputs("  graph      left out: a capture cannot allocate while caching is off\n", stdout);
  printf("  time       %.1f ms on the device, %.2f ms per step\n", demo->device_ms, demo->device_ms / STEPS);
  if (demo->settings[0])
    printf("  settings   %s\n", demo->settings);
  fputs("\n", stdout);
  if (!demo->is_cached) {
    printf("  Memory is not counted while caching is off.\n"
           "\nAll results are right, and all memory was released. Done in %.1f ms.\n",
           total_ms);
    return;
  }
  print_bytes("allocated", &s->allocated_bytes[WEIR_STAT_ALL]);
  print_bytes("reserved", &s->reserved_bytes[WEIR_STAT_ALL]);
  printf("  %-11s%12lld now, %12lld at the peak\n", "segments", (long long)s->segment[WEIR_STAT_ALL].current,
         (long long)s->segment[WEIR_STAT_ALL].peak);
  printf("  %-11s%12lld, with %lld driver calls; %s\n", "requests", (long long)s->allocation[WEIR_STAT_ALL].allocated,
         (long long)s->num_device_alloc + (long long)s->num_device_free,
         weir_cli_count((uint64_t)s->num_alloc_retries, "retry"));
  printf("\nAll results are right, and all memory was released. Done in %.1f ms.\n", total_ms);
}

static void json_stat(const char *key, const weir_stat *stat) {
  WEIR_CLI_JSON(JSON_OBJECT(key), JSON_INTEGER("current", stat->current), JSON_INTEGER("peak", stat->peak), JSON_CLOSE);
}

static void print_json(const demo *demo, double total_ms) {
  const weir_allocator_stats *s = &demo->stats;
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("device", demo->device.name), JSON_TEXT("driver", demo->driver->name),
                JSON_TEXT("settings", demo->settings), JSON_BOOL("caching", demo->is_cached),
                JSON_NATURAL("layers", LAYERS), JSON_NATURAL("steps", STEPS),
                JSON_NATURAL("graph_nodes", demo->graph_nodes), JSON_NATURAL("graph_replays", (uint64_t)demo->replays));
  json_stat("allocated_bytes", &s->allocated_bytes[WEIR_STAT_ALL]);
  json_stat("reserved_bytes", &s->reserved_bytes[WEIR_STAT_ALL]);
  json_stat("segments", &s->segment[WEIR_STAT_ALL]);
  WEIR_CLI_JSON(JSON_INTEGER("requests", s->allocation[WEIR_STAT_ALL].allocated),
                JSON_INTEGER("num_device_alloc", s->num_device_alloc),
                JSON_INTEGER("num_device_free", s->num_device_free),
                JSON_INTEGER("num_alloc_retries", s->num_alloc_retries), JSON_REAL("device_ms", demo->device_ms, 6),
                JSON_REAL("total_ms", total_ms, 6), JSON_BOOL("ok", true));
  weir_cli_json_end();
}

static bool json;

static int run(int count, char **arguments) {
  (void)count, (void)arguments;
  demo demo = {0};
  weir_device_properties_init(&demo.device);
  double started = now_ms();
  bool done = set_up(&demo) && train(&demo) && release_all(&demo);
  double total_ms = now_ms() - started;
  if (done)
    (json ? print_json : print_text)(&demo, total_ms);
  clean_up(&demo);
  return demo.error[0] ? weir_cli_fail("%s", demo.error) : WEIR_EXIT_OK;
}

static const weir_cli_option option_table[] = {{"json", .target = &json, .help = "print JSON"}, {0}};

const weir_cli_command weir_cmd_demo = {
    .name = "demo",
    .group = "Run",
    .summary = "run a job shaped like a training run, and show what memory it used",
    .description =
        "Run a job shaped like a training run on device 0: weights, activations, gradients and optimizer state from "
        "the caching allocator, batches that a second stream copies ahead, and a graph with its own memory pool. "
        "Check all results, and show how long it took and how much memory was allocated and reserved.\n"
        "WEIR_ALLOC_CONF sets the allocator's settings, such as expandable_segments:True. With "
        "WEIR_NO_MEMORY_CACHING=1, the graph is left out and memory is not counted.",
    .options = option_table,
    .exit = {"all results are right", "something failed"},
    .run = run};

/*
 * weir demo: a program of several streams, checked and timed.
 */
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "json.h"
#include "weir/weir.h"

enum {
  CHUNKS = 16,
  CHUNK_WORDS = 1 << 18, /* 1 MiB */
  CHUNK_BYTES = CHUNK_WORDS * 4,
  SLOTS = 2, /* chunks on the device at a time, of each buffer */
  SPIN_MILLISECONDS = 5,
  REPLAYS = 10
};

/* One part of the job: what it did and how long it took. */
typedef struct part {
  const char *name;
  char what[128];
  double device_ms; /* between two events */
  double host_ms;   /* of the host, from the first call to the end of the wait */
  unsigned long long bytes;
} part;

enum { PIPELINE, OVERLAP, GRAPH, PARTS };

typedef struct demo {
  weir_driver *driver;
  weir_device_properties device;
  weir_stream loader, worker;
  weir_event *begin, *end, *joined, *loaded[SLOTS], *emptied[SLOTS];
  weir_graph *graph;
  weir_cu_deviceptr memory; /* SLOTS chunks to load into, and as many to work in */
  uint32_t *in, *out;       /* page-locked; CHUNKS chunks each */
  size_t graph_nodes;
  part parts[PARTS];
  char error[512]; /* what went wrong, "" while nothing did */
} demo;

/* Every step goes through here, so that the first failure is the one that is told. */
static bool ok(demo *demo, weir_status status) {
  if (status != WEIR_OK && !demo->error[0])
    snprintf(demo->error, sizeof demo->error, "%s: %s", weir_status_name(status), weir_last_error());
  return status == WEIR_OK;
}

static bool driver_ok(demo *demo, const char *call, weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS && !demo->error[0])
    snprintf(demo->error, sizeof demo->error, "%s: %s (%s)", call, weir_cu_result_name(result),
             weir_cu_result_string(result));
  return result == WEIR_CU_SUCCESS;
}

__attribute__((format(printf, 2, 3))) static bool wrong(demo *demo, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(demo->error, sizeof demo->error, format, args);
  va_end(args);
  return false;
}

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void *slot_address(const demo *demo, int slot) {
  return (void *)(uintptr_t)(demo->memory + (weir_cu_deviceptr)slot * CHUNK_BYTES);
}

static bool create_event(demo *demo, unsigned flags, weir_event **event) {
  return ok(demo, weir_event_create(flags, event));
}

static bool set_up(demo *demo) {
  if (!ok(demo, weir_device_set(0)) || !ok(demo, weir_get_driver(&demo->driver)) ||
      !ok(demo, weir_device_get_properties(0, &demo->device)) || !ok(demo, weir_stream_create(0, 0, &demo->loader)) ||
      !ok(demo, weir_stream_create(0, -1, &demo->worker)) || !ok(demo, weir_graph_create(&demo->graph)) ||
      !create_event(demo, WEIR_EVENT_TIMING, &demo->begin) || !create_event(demo, WEIR_EVENT_TIMING, &demo->end) ||
      !create_event(demo, 0, &demo->joined))
    return false;
  for (int i = 0; i < SLOTS; i++)
    if (!create_event(demo, 0, &demo->loaded[i]) || !create_event(demo, 0, &demo->emptied[i]))
      return false;

  weir_driver *d = demo->driver;
  void *host;
  if (!driver_ok(demo, "cuMemAlloc", d->MemAlloc(d, &demo->memory, 2 * SLOTS * CHUNK_BYTES)) ||
      !driver_ok(demo, "cuMemHostAlloc",
                 d->MemHostAlloc(d, &host, (size_t)2 * CHUNKS * CHUNK_BYTES, WEIR_CU_MEMHOSTALLOC_PORTABLE)))
    return false;
  demo->in = host;
  demo->out = demo->in + (size_t)CHUNKS * CHUNK_WORDS;
  return true;
}

static void clean_up(demo *demo) {
  weir_event_destroy(demo->begin);
  weir_event_destroy(demo->end);
  weir_event_destroy(demo->joined);
  for (int i = 0; i < SLOTS; i++) {
    weir_event_destroy(demo->loaded[i]);
    weir_event_destroy(demo->emptied[i]);
  }
  weir_graph_destroy(demo->graph);
  weir_driver *d = demo->driver;
  if (demo->memory)
    driver_ok(demo, "cuMemFree", d->MemFree(d, demo->memory));
  if (demo->in)
    driver_ok(demo, "cuMemFreeHost", d->MemFreeHost(d, demo->in));
  ok(demo, weir_shutdown());
}

/* Waits for demo->end and adds the times since `started` and demo->begin to a part. */
static bool finish(demo *demo, part *part, double started) {
  double device_ms;
  if (!ok(demo, weir_event_synchronize(demo->end)))
    return false;
  part->host_ms += now_ms() - started;
  if (!ok(demo, weir_event_elapsed(demo->begin, demo->end, &device_ms)))
    return false;
  part->device_ms += device_ms;
  return true;
}

/* ---- Chunks go through two slots: one stream fills them, the other works on them and takes the results out ---- */

static bool put_chunk(demo *demo, int chunk) {
  int slot = chunk % SLOTS;
  void *loaded = slot_address(demo, slot), *worked = slot_address(demo, SLOTS + slot);
  size_t first = (size_t)chunk * CHUNK_WORDS;
  return ok(demo, weir_event_wait(demo->emptied[slot], demo->loader)) &&
         ok(demo, weir_copy_async(loaded, demo->in + first, CHUNK_BYTES, demo->loader)) &&
         ok(demo, weir_event_record(demo->loaded[slot], demo->loader)) &&
         ok(demo, weir_event_wait(demo->loaded[slot], demo->worker)) &&
         ok(demo, weir_copy_async(worked, loaded, CHUNK_BYTES, demo->worker)) &&
         ok(demo, weir_event_record(demo->emptied[slot], demo->worker)) &&
         ok(demo, weir_fill32_async(worked, (uint32_t)chunk, CHUNK_WORDS / 4, demo->worker)) &&
         ok(demo, weir_copy_async(demo->out + first, worked, CHUNK_BYTES, demo->worker));
}

static bool run_pipeline(demo *demo) {
  part *part = &demo->parts[PIPELINE];
  *part = (struct part){.name = "pipeline", .bytes = 3ull * CHUNKS * CHUNK_BYTES};
  snprintf(part->what, sizeof part->what, "%d chunks of %d MiB: copy in, copy, fill a quarter, copy out", CHUNKS,
           CHUNK_BYTES >> 20);
  const size_t words = (size_t)CHUNKS * CHUNK_WORDS;
  for (size_t i = 0; i < words; i++)
    demo->in[i] = (uint32_t)i * 2654435761u;
  memset(demo->out, 0xff, words * 4);

  double started = now_ms();
  if (!ok(demo, weir_event_record(demo->begin, demo->loader)))
    return false;
  for (int chunk = 0; chunk < CHUNKS; chunk++)
    if (!put_chunk(demo, chunk))
      return false;
  if (!ok(demo, weir_event_record(demo->end, demo->worker)) || !finish(demo, part, started))
    return false;

  for (size_t i = 0; i < words; i++) {
    uint32_t expected = i % CHUNK_WORDS < CHUNK_WORDS / 4 ? (uint32_t)(i / CHUNK_WORDS) : demo->in[i];
    if (demo->out[i] != expected)
      return wrong(demo, "pipeline: word %zu is %#x, expected %#x", i, demo->out[i], expected);
  }
  return true;
}

/* ---- Both streams are busy for the same time: together they take little more than one ---- */

static bool run_overlap(demo *demo) {
  part *part = &demo->parts[OVERLAP];
  *part = (struct part){.name = "overlap"};
  snprintf(part->what, sizeof part->what, "both streams busy for %d ms of the device's clock, at once",
           SPIN_MILLISECONDS);
  uint64_t cycles = (uint64_t)demo->device.clock_khz * SPIN_MILLISECONDS;
  /* The first use of the kernel loads it, which is not what is timed. */
  if (!ok(demo, weir_stream_spin(demo->worker, 1)) || !ok(demo, weir_stream_synchronize(demo->worker)))
    return false;
  double started = now_ms();
  return ok(demo, weir_event_record(demo->begin, demo->loader)) && ok(demo, weir_stream_spin(demo->loader, cycles)) &&
         ok(demo, weir_stream_spin(demo->worker, cycles)) &&
         ok(demo, weir_stream_wait_stream(demo->worker, demo->loader)) &&
         ok(demo, weir_event_record(demo->end, demo->worker)) && finish(demo, part, started);
}

/* ---- A chunk is loaded while another stream fills a second one; both come out. Captured once, replayed ---- */

static bool capture(demo *demo) {
  void *copied = slot_address(demo, 0), *filled = slot_address(demo, 1);
  weir_stream_scope scope;
  if (!ok(demo, weir_stream_scope_enter(demo->worker, &scope)))
    return false;
  bool captured = ok(demo, weir_graph_capture_begin(demo->graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_THREAD_LOCAL));
  if (captured) {
    captured = ok(demo, weir_stream_wait_stream(demo->loader, demo->worker)) &&
               ok(demo, weir_fill32_async(filled, 42, CHUNK_WORDS, demo->loader)) &&
               ok(demo, weir_copy_async(copied, demo->in, CHUNK_BYTES, demo->worker)) &&
               ok(demo, weir_event_record(demo->joined, demo->loader)) &&
               ok(demo, weir_event_wait(demo->joined, demo->worker)) &&
               ok(demo, weir_copy_async(demo->out, copied, 2 * CHUNK_BYTES, demo->worker));
    captured = ok(demo, weir_graph_capture_end(demo->graph)) && captured;
  }
  return ok(demo, weir_stream_scope_leave(&scope)) && captured &&
         ok(demo, weir_graph_node_count(demo->graph, &demo->graph_nodes));
}

static bool replay(demo *demo, uint32_t number) {
  for (uint32_t i = 0; i < CHUNK_WORDS; i++)
    demo->in[i] = number ^ i;
  memset(demo->out, 0xff, 2 * CHUNK_BYTES);
  weir_stream current; /* where a replay goes: the default stream */
  double started = now_ms();
  if (!ok(demo, weir_stream_current(0, &current)) || !ok(demo, weir_event_record(demo->begin, current)) ||
      !ok(demo, weir_graph_replay(demo->graph)) || !ok(demo, weir_event_record(demo->end, current)) ||
      !finish(demo, &demo->parts[GRAPH], started))
    return false;
  for (uint32_t i = 0; i < CHUNK_WORDS; i++)
    if (demo->out[i] != (number ^ i) || demo->out[CHUNK_WORDS + i] != 42)
      return wrong(demo, "graph: replay %u: words %u are %#x and %#x, expected %#x and 42", number, i, demo->out[i],
                   demo->out[CHUNK_WORDS + i], number ^ i);
  return true;
}

static bool run_graph(demo *demo) {
  part *part = &demo->parts[GRAPH];
  *part = (struct part){.name = "graph", .bytes = (unsigned long long)REPLAYS * 3 * CHUNK_BYTES};
  if (!capture(demo))
    return false;
  for (uint32_t r = 1; r <= REPLAYS; r++)
    if (!replay(demo, r))
      return false;
  snprintf(part->what, sizeof part->what, "%zu nodes over both streams, captured once and replayed %d times",
           demo->graph_nodes, REPLAYS);
  return true;
}

/* ---- Telling ---- */

static void print_text(const demo *demo, double total_ms) {
  printf("%s (%s), %.2f GiB\n\n", demo->device.name, demo->driver->name,
         (double)demo->device.total_memory / (double)(1ull << 30));
  for (int i = 0; i < PARTS; i++) {
    const part *part = &demo->parts[i];
    printf("  %-10s%s\n            device %.3f ms, host %.3f ms", part->name, part->what, part->device_ms,
           part->host_ms);
    if (part->bytes > 0 && part->device_ms > 0)
      printf(", %.2f GB/s", (double)part->bytes / part->device_ms / 1e6);
    fputs("\n", stdout);
  }
  printf("\nAll results are right. Done in %.1f ms.\n", total_ms);
}

static void print_json(const demo *demo, double total_ms) {
  fputs("{\n  \"device\": ", stdout);
  weir_cli_json_string(demo->device.name);
  fputs(", \"driver\": ", stdout);
  weir_cli_json_string(demo->driver->name);
  fputs(",\n  \"parts\": [", stdout);
  for (int i = 0; i < PARTS; i++) {
    const part *part = &demo->parts[i];
    printf("%s\n    {\"name\": ", i > 0 ? "," : "");
    weir_cli_json_string(part->name);
    fputs(", \"what\": ", stdout);
    weir_cli_json_string(part->what);
    printf(", \"device_ms\": %.6f, \"host_ms\": %.6f, \"bytes\": %llu}", part->device_ms, part->host_ms, part->bytes);
  }
  printf("\n  ],\n  \"graph_nodes\": %zu, \"graph_replays\": %d, \"total_ms\": %.6f, \"ok\": true\n}\n",
         demo->graph_nodes, REPLAYS, total_ms);
}

static void print_help(void) {
  fputs("Usage: weir demo [--json]\n"
        "\n"
        "Runs a program of two streams on device 0: a pipeline with copies, fills and events, two streams that are "
        "busy at\n"
        "once, and a graph that is captured and replayed. Checks the results, and says how long each part took.\n"
        "\n"
        "Options:\n"
        "  --json       the same as JSON\n"
        "  -h, --help   this text\n"
        "\n"
        "Exit codes: 0 all results are right, 1 something failed, 2 the command line was wrong.\n",
        stdout);
}

int weir_cmd_demo(int argc, char **argv) {
  bool json = false;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      print_help();
      return WEIR_EXIT_OK;
    }
    if (strcmp(argv[i], "--json") != 0)
      return weir_cli_usage("demo", "there is no option '%s'", argv[i]);
    json = true;
  }

  demo demo = {0};
  weir_device_properties_init(&demo.device);
  double started = now_ms();
  bool done = set_up(&demo) && run_pipeline(&demo) && run_overlap(&demo) && run_graph(&demo);
  if (done)
    (json ? print_json : print_text)(&demo, now_ms() - started);
  clean_up(&demo);
  if (demo.error[0]) {
    fprintf(stderr, "weir demo: %s\n", demo.error);
    return WEIR_EXIT_FAILED;
  }
  return WEIR_EXIT_OK;
}

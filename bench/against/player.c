/*
 * A contestant of bench/all that is called from C. bench/all starts a process for each and lets them take turns:
 *
 *   player weir [DRIVER [SETTINGS]]   Weir, on cuda, soft or ledger (default: soft)
 *   player mimalloc                   mimalloc, if libmimalloc is installed
 *   player malloc                     malloc of the C library
 *
 * Prints "ready VERSION", or "absent REASON". Then it reads one request per line, and answers each with a number:
 *
 *   begin [MODE:]PATTERN WARM_STEPS CORE   1, or 0 if it does not take part
 *   round PAIRS                            ns for each pair, or a negative number if an allocation failed
 *   end                                    1
 *
 * The patterns are those of patterns.h. MODE is `pinned` for pinned memory, or `entries` to record the history.
 * With the argument --once after the others it makes one allocation, prints the time of CLOCK_MONOTONIC in seconds, and
 * exits.
 */
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "patterns.h"
#include "weir/history.h"
#include "weir/host.h"
#include "weir/weir.h"
#include "weir_calls.h"

enum { HISTORY_ENTRIES = 100000 };

/* ---- The contestants ---- */

BENCH_PLAYER(weir_player, take_from_weir, give_to_weir);
BENCH_PLAYER(pinned_player, take_pinned, give_pinned);

/* Called through pointers that the compiler cannot see through: it may remove calls of malloc and free. */
static void *(*volatile heap_malloc)(size_t bytes) = malloc;
static void (*volatile heap_free)(void *pointer) = free;

static void *take_from_heap(void *context, size_t bytes, void *stream) {
  (void)context, (void)stream;
  return heap_malloc(bytes);
}

static void give_to_heap(void *context, void *pointer) {
  (void)context;
  heap_free(pointer);
}

BENCH_PLAYER(heap_player, take_from_heap, give_to_heap);

typedef struct contestant {
  const char *conf;
  const bench_player *player;
  char version[64];
  char reason[512]; /* why it is absent */
  weir_driver *driver;
  weir_cu_context context;
  weir_allocator *allocator;
  weir_host_allocator *host;
  weir_cu_stream streams[BENCH_MAX_THREADS];
} contestant;

static bool absent(contestant *c, const char *what, const char *why) {
  snprintf(c->reason, sizeof c->reason, "%s: %s", what, why);
  return false;
}

static bool good(contestant *c, const char *what, weir_cu_result result) {
  return result == WEIR_CU_SUCCESS || absent(c, what, weir_cu_result_string(result));
}

static bool open_mimalloc(contestant *c) {
  static const char *const names[] = {"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"};
  void *library = NULL;
  int (*version)(void);
  for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
    library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return absent(c, "not installed", "there is no libmimalloc.so.2");
  void *allocate = dlsym(library, "mi_malloc"), *release = dlsym(library, "mi_free");
  *(void **)&version = dlsym(library, "mi_version");
  if (!allocate || !release || !version)
    return absent(c, "not usable", "libmimalloc has no mi_malloc, mi_free or mi_version");
  *(void **)&heap_malloc = allocate;
  *(void **)&heap_free = release;
  int v = version();
  snprintf(c->version, sizeof c->version, "%d.%d.%d", v / 100, v / 10 % 10, v % 10);
  c->player = &heap_player;
  return true;
}

static bool open_weir(contestant *c, const char *driver) {
  snprintf(c->version, sizeof c->version, "%s", weir_version());
  c->player = &weir_player;
  weir_status status =
      strcmp(driver, "ledger") == 0 ? weir_driver_open_ledger(NULL, &c->driver) : weir_driver_open(driver, &c->driver);
  if (status != WEIR_OK)
    return absent(c, driver, weir_last_error());
  weir_driver *d = c->driver;
  return good(c, "cuInit", d->Init(d, 0)) &&
         good(c, "cuDevicePrimaryCtxRetain", d->DevicePrimaryCtxRetain(d, &c->context, 0)) &&
         good(c, "cuCtxSetCurrent", d->CtxSetCurrent(d, c->context));
}

static bool open_contestant(contestant *c, const char *kind, const char *driver, const char *conf) {
  *c = (contestant){.conf = conf};
  if (strcmp(kind, "weir") == 0)
    return open_weir(c, driver);
  if (strcmp(kind, "mimalloc") == 0)
    return open_mimalloc(c);
  if (strcmp(kind, "malloc") != 0)
    return absent(c, "unknown contestant", kind);
  snprintf(c->version, sizeof c->version, "%s", gnu_get_libc_version());
  c->player = &heap_player;
  return true;
}

/* ---- An allocator for each pattern ---- */

static void close_allocator(contestant *c) {
  weir_allocator_destroy(c->allocator);
  weir_host_allocator_destroy(c->host);
  c->allocator = NULL;
  c->host = NULL;
  for (int i = 0; i < BENCH_MAX_THREADS; i++) {
    if (c->streams[i])
      c->driver->StreamDestroy(c->driver, c->streams[i]);
    c->streams[i] = NULL;
  }
}

static bool record(contestant *c) {
  weir_history_options options;
  weir_history_options_init(&options);
  options.max_entries = HISTORY_ENTRIES;
  options.context = WEIR_CONTEXT_NONE;
  return weir_history_record(c->allocator, &options) == WEIR_OK;
}

/* Opens what a mode needs: "" for none. */
static bool open_allocator(contestant *c, const char *mode, int streams) {
  weir_driver *d = c->driver;
  if (!d)
    return !*mode;
  for (int i = 0; i < streams; i++)
    if (d->StreamCreateWithPriority(d, &c->streams[i], WEIR_CU_STREAM_NON_BLOCKING, 0) != WEIR_CU_SUCCESS)
      return false;
  if (strcmp(mode, "pinned") == 0) {
    c->player = &pinned_player;
    return weir_host_allocator_create(
               d, &(const weir_host_allocator_options){.size = sizeof(weir_host_allocator_options), .conf = ""},
               &c->host) == WEIR_OK;
  }
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = c->conf;
  options.devices = 1;
  c->player = &weir_player;
  return weir_allocator_create(d, &options, &c->allocator) == WEIR_OK &&
         weir_allocator_set_caching(c->allocator, 1) == WEIR_OK &&
         (!*mode || (strcmp(mode, "entries") == 0 && record(c)));
}

/* ---- Requests ---- */

static const bench_pattern *find(const char *name) {
  for (int i = 0; i < BENCH_PATTERN_COUNT; i++)
    if (strcmp(bench_patterns[i].name, name) == 0)
      return &bench_patterns[i];
  return NULL;
}

static void finish(contestant *c, bench_work *work) {
  if (work->pattern)
    c->player->end(work);
  free(work->blocks);
  *work = (bench_work){0};
  close_allocator(c);
}

static bool begin(contestant *c, bench_work *work, char *name, long warm, int core) {
  char *colon = strchr(name, ':');
  const char *mode = colon ? name : "";
  if (colon)
    *colon = 0;
  const bench_pattern *pattern = find(colon ? colon + 1 : name);
  if (!pattern || !open_allocator(c, mode, pattern->threads))
    return false;
  *work = (bench_work){.pattern = pattern,
                       .context = c->host ? (void *)c->host : (void *)c->allocator,
                       .streams = (void *const *)c->streams,
                       .blocks = calloc((size_t)pattern->live + (size_t)pattern->threads, sizeof(void *)),
                       .warm_steps = warm,
                       .core = core};
  return work->blocks && c->player->begin(work);
}

static void serve(contestant *c) {
  bench_work work = {0};
  char line[128], name[64];
  long number;
  int core;
  cpu_set_t cores;
  bool can_stay = sched_getaffinity(0, sizeof cores, &cores) == 0;
  while (fgets(line, sizeof line, stdin)) {
    double answer = 1;
    if (sscanf(line, "begin %63s %ld %d", name, &number, &core) == 3) {
      if (can_stay)
        bench_stay_on(core, &cores);
      answer = begin(c, &work, name, number, core);
      if (answer == 0)
        finish(c, &work);
    } else if (sscanf(line, "round %ld", &number) == 1) {
      answer = work.pattern ? c->player->round(&work, number) : -1;
    } else {
      finish(c, &work);
    }
    printf("%.6f\n", answer);
    fflush(stdout);
  }
  finish(c, &work);
}

static int allocate_once(contestant *c) {
  if (!open_allocator(c, "", 0) ||
      !(c->allocator ? take_from_weir(c->allocator, 4096, NULL) : take_from_heap(NULL, 4096, NULL)))
    return 1;
  printf("%.6f\n", bench_now() / 1e9);
  return 0;
}

int main(int argc, char **argv) {
  bool once = argc > 2 && strcmp(argv[argc - 1], "--once") == 0;
  contestant c;
  argc -= once;
  if (argc < 2 || argc > 4) {
    fprintf(stderr, "usage: player weir|mimalloc|malloc [DRIVER [SETTINGS]] [--once]\n");
    return 2;
  }
  if (!open_contestant(&c, argv[1], argc > 2 ? argv[2] : "soft", argc > 3 ? argv[3] : "")) {
    printf("absent %s\n", c.reason);
    return 0;
  }
  if (once)
    return allocate_once(&c);
  printf("ready %s\n", c.version);
  fflush(stdout);
  serve(&c);
  return 0;
}

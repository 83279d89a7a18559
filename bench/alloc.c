/*
 * alloc: what an allocation and its free cost, through Weir with and without expandable segments, with a scope for each
 * thread, and through mimalloc.
 * bench/all compares more allocators, PyTorch's among them.
 *
 *   alloc [--patterns LIST] [--threads N] [--driver ledger|soft|cuda|auto] [--conf SETTINGS] [--quick]
 *
 * The contestants take turns at a pattern, one round each, so that disturbances of the machine affect all alike.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "patterns.h"
#include "weir/weir.h"
#include "weir_calls.h"

enum { WEIR_SIDE, EXPANDABLE_SIDE, MIMALLOC_SIDE, SCOPED_SIDE, SIDES };
enum {
  WEIR_SIDES = 2,   /* the first two */
  ALLOCATORS = 3,   /* of these and of the scopes */
  CURVE_POINTS = 5, /* 10^2 to 10^6 free blocks */
  CURVE_QUICK = 3,  /* the first of them, with --quick */
  CURVE_BYTES = 1 << 20,
  METADATA_BLOCKS = 100000,
  CONF_SIZE = 1024,
  REASON_SIZE = 160
};

static const char *const side_titles[SIDES] = {"Weir", "expandable", "mimalloc", "scopes"};

/* The memory of a ledger is that of an H200; the curve needs more for a million live blocks. */
#define LEDGER_BYTES 150109880320ull
#define CURVE_LEDGER_BYTES (2ull << 40)

/* What --patterns takes. Those before the curve are also the groups of bench_patterns. */
enum { GROUP_CURVE = 4, GROUP_METADATA, GROUPS };
static const char *const groups[GROUPS] = {"pair", "live", "threads", "stream", "curve", "metadata"};

static struct {
  unsigned groups; /* bits */
  int threads;
  const char *driver, *conf;
  bool quick;
} options = {.groups = ~0u, .threads = 16, .driver = "ledger", .conf = ""};

static bool is_wanted(unsigned group) { return options.groups & 1u << group; }

/* The time of a pair in the rounds of a pattern, in ns. */
typedef struct result {
  bool is_there;
  double median;
} result;

/* An allocator of Weir's contestants. */
typedef struct weir_side {
  weir_driver *driver;
  bool owns_driver;
  weir_cu_context context;
  weir_allocator *allocator;
  weir_cu_stream streams[BENCH_MAX_THREADS];
  int stream_count;
} weir_side;

typedef struct metadata {
  bool is_there;
  int64_t bytes;    /* host memory of the allocator */
  int64_t blocks;   /* in use and free */
  int64_t reserved; /* device memory */
} metadata;

typedef struct report {
  weir_driver *driver; /* NULL if each contestant has a ledger */
  bool wanted[BENCH_PATTERN_COUNT];
  bench_scale scale;
  int cores;
  char cpu[128];
  char no_mimalloc[REASON_SIZE]; /* why mimalloc is absent, "" if it is present */
  char mimalloc_version[32];
  result results[BENCH_PATTERN_COUNT][SIDES];
  int curve_points;
  long long curve_free[CURVE_POINTS][WEIR_SIDES]; /* blocks */
  result curve[CURVE_POINTS][WEIR_SIDES];
  metadata metadata[WEIR_SIDES];
  char error[4096]; /* the first failure, "" if there is none */
} report;

static bool ok(report *r, weir_status status) {
  if (status && !r->error[0])
    snprintf(r->error, sizeof r->error, "%s: %s", weir_status_name(status), weir_last_error());
  return !status;
}

static bool driver_ok(report *r, const char *call, weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS && !r->error[0])
    snprintf(r->error, sizeof r->error, "%s: %s (%s)", call, weir_cu_result_name(result),
             weir_cu_result_string(result));
  return !result;
}

static bool no_memory(report *r) {
  if (!r->error[0])
    snprintf(r->error, sizeof r->error, "out of host memory");
  return false;
}

/* ---- The contestants ---- */

BENCH_PLAYER(weir_player, take_from_weir, give_to_weir);

/* A scope, of a pool of its own, for each thread with a stream of its own. */
static void *scoped_thread(void *data) {
  bench_thread *thread = data;
  weir_allocator *allocator = thread->work->context;
  const weir_pool_id pool = {0, (uint64_t)(uintptr_t)thread->stream};
  bool is_open = weir_pool_begin(allocator, 0, pool, NULL, NULL) == WEIR_OK;
  bench_do_thread(take_from_weir, give_to_weir, thread);
  thread->is_done = thread->is_done && is_open && weir_pool_end(allocator, 0, pool) == WEIR_OK &&
                    weir_pool_release(allocator, 0, pool) == WEIR_OK;
  return NULL;
}

static double scoped_round(bench_work *work, long pairs) { return bench_do_threads(work, scoped_thread, pairs); }

static const bench_player scoped_player = {weir_player_begin, scoped_round, weir_player_end};

typedef struct mimalloc {
  void *(*malloc)(size_t bytes);
  void (*free)(void *pointer);
} mimalloc;

static mimalloc mi;

static void *allocate_from_mimalloc(void *context, size_t bytes, void *stream) {
  (void)context, (void)stream;
  return mi.malloc(bytes);
}

static void free_to_mimalloc(void *context, void *pointer) {
  (void)context;
  mi.free(pointer);
}

BENCH_PLAYER(mimalloc_player, allocate_from_mimalloc, free_to_mimalloc);

/* It stays loaded, since it runs code when a thread ends. */
static void load_mimalloc(report *r) {
  static const char *const names[] = {"libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"};
  void *library = NULL;
  for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
    library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(r->no_mimalloc, sizeof r->no_mimalloc, "libmimalloc.so.2 is not installed; Debian: libmimalloc2.0");
    return;
  }
  int (*version)(void);
  *(void **)&mi.malloc = dlsym(library, "mi_malloc");
  *(void **)&mi.free = dlsym(library, "mi_free");
  *(void **)&version = dlsym(library, "mi_version");
  if (!mi.malloc || !mi.free) {
    snprintf(r->no_mimalloc, sizeof r->no_mimalloc, "libmimalloc has no mi_malloc or mi_free");
    return;
  }
  int v = version ? version() : 0;
  if (v)
    snprintf(r->mimalloc_version, sizeof r->mimalloc_version, "%d.%d.%d", v / 100, v / 10 % 10, v % 10);
}

static void close_weir(weir_side *side) {
  weir_driver *d = side->driver;
  weir_allocator_destroy(side->allocator);
  for (int i = 0; i < side->stream_count; i++)
    d->StreamDestroy(d, side->streams[i]);
  if (side->context)
    d->DevicePrimaryCtxRelease(d, 0);
  if (side->owns_driver)
    weir_driver_close(d);
}

/* On the driver of the command line if `memory` is 0, else on a ledger of that size. */
static bool open_weir(report *r, int which, unsigned long long memory, int streams, weir_side *opened) {
  weir_side side = {.driver = memory ? NULL : r->driver};
  char conf[CONF_SIZE];
  snprintf(conf, sizeof conf, "%s%s%s", options.conf, *options.conf && which == EXPANDABLE_SIDE ? "," : "",
           which == EXPANDABLE_SIDE ? "expandable_segments:True" : "");
  if (!side.driver) {
    weir_ledger_options options;
    weir_ledger_options_init(&options);
    options.bytes = memory ? memory : LEDGER_BYTES;
    if (!ok(r, weir_driver_open_ledger(&options, &side.driver)))
      return false;
    side.owns_driver = true;
  }
  weir_driver *d = side.driver;
  if ((side.owns_driver && !driver_ok(r, "cuInit", d->Init(d, 0))) ||
      !driver_ok(r, "cuDevicePrimaryCtxRetain", d->DevicePrimaryCtxRetain(d, &side.context, 0)) ||
      !driver_ok(r, "cuCtxSetCurrent", d->CtxSetCurrent(d, side.context)))
    goto close;
  for (; side.stream_count < streams; side.stream_count++)
    if (!driver_ok(r, "cuStreamCreateWithPriority",
                   d->StreamCreateWithPriority(d, &side.streams[side.stream_count], WEIR_CU_STREAM_NON_BLOCKING, 0)))
      goto close;
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = conf;
  options.devices = 1;
  if (!ok(r, weir_allocator_create(d, &options, &side.allocator)) ||
      !ok(r, weir_allocator_set_caching(side.allocator, 1)))
    goto close;
  *opened = side;
  return true;
close:
  close_weir(&side);
  return false;
}

static bool get_stats(report *r, const weir_side *side, weir_allocator_stats *stats) {
  *stats = (weir_allocator_stats){.size = sizeof *stats};
  return ok(r, weir_allocator_get_stats(side->allocator, 0, stats));
}

/* ---- The patterns ---- */

static void summarize(double *rounds, int count, result *result) {
  result->median = bench_median(rounds, count);
  result->is_there = true;
}

/* The text of a failure in a thread is lost, since it is thread-local. */
static bool pattern_failed(report *r, const bench_pattern *pattern) {
  if (!r->error[0])
    snprintf(r->error, sizeof r->error, "%s: an allocation failed: %s", pattern->name,
             pattern->threads > 1 ? "in a thread" : weir_last_error());
  return false;
}

static const bench_player *const players[SIDES] = {&weir_player, &weir_player, &mimalloc_player, &scoped_player};

static bool is_present(const report *r, const bench_pattern *pattern, int side) {
  return side == SCOPED_SIDE ? pattern->kind == BENCH_OWN_STREAMS : side != MIMALLOC_SIDE || !r->no_mimalloc[0];
}

/* A failed round of Weir is an error; another contestant then has no result. */
static bool run_rounds(report *r, int index, bench_work *works) {
  const bench_pattern *pattern = &bench_patterns[index];
  double rounds[SIDES][BENCH_MAX_ROUNDS];
  long pairs[SIDES]; /* in a round; 0 or less if it does not take part */
  for (int i = 0; i < SIDES; i++) {
    bool plays = is_present(r, pattern, i) && players[i]->begin(&works[i]);
    pairs[i] = plays ? bench_choose_pairs(players[i], &works[i], &r->scale) : -1;
    if (i < WEIR_SIDES && pairs[i] <= 0)
      return pattern_failed(r, pattern);
  }
  for (int round = 0; round < r->scale.rounds; round++)
    for (int i = 0; i < SIDES; i++) {
      if (pairs[i] > 0 && (rounds[i][round] = players[i]->round(&works[i], pairs[i])) < 0)
        pairs[i] = -1;
      if (i < WEIR_SIDES && pairs[i] <= 0)
        return pattern_failed(r, pattern);
    }
  for (int i = 0; i < SIDES; i++)
    if (pairs[i] > 0)
      summarize(rounds[i], r->scale.rounds, &r->results[index][i]);
  return true;
}

static bool run_pattern(report *r, int index) {
  const bench_pattern *pattern = &bench_patterns[index];
  size_t room = (size_t)pattern->live + (size_t)pattern->threads;
  void **blocks = calloc(SIDES * room, sizeof *blocks);
  void *no_streams[BENCH_MAX_THREADS] = {NULL};
  weir_side sides[ALLOCATORS];
  bench_work works[SIDES];
  cpu_set_t cores;
  int core = bench_choose_core(pattern, &cores), opened = 0;
  bool is_done = false;
  if (!blocks)
    return no_memory(r);
  if (core >= 0)
    bench_stay_on(core, &cores);
  for (; opened < ALLOCATORS; opened++)
    if (!open_weir(r, opened, 0, pattern->threads, &sides[opened]))
      goto close;
  for (int i = 0; i < SIDES; i++) {
    const weir_side *side = i == MIMALLOC_SIDE ? NULL : &sides[i == SCOPED_SIDE ? WEIR_SIDES : i];
    works[i] = (bench_work){.pattern = pattern,
                            .context = side ? side->allocator : NULL,
                            .streams = side ? (void *const *)side->streams : no_streams,
                            .blocks = blocks + (size_t)i * room,
                            .warm_steps = bench_warm_steps(&r->scale),
                            .core = core};
  }
  is_done = run_rounds(r, index, works);
  for (int i = 0; i < SIDES; i++)
    if (is_present(r, pattern, i))
      players[i]->end(&works[i]);
close:
  if (core >= 0)
    bench_stay_on(-1, &cores);
  while (opened > 0)
    close_weir(&sides[--opened]);
  free(blocks);
  return is_done;
}

/* ---- The curve ---- */

static int compare_pointers(const void *a, const void *b) {
  uintptr_t x = (uintptr_t) * (void *const *)a, y = (uintptr_t) * (void *const *)b;
  return (x > y) - (x < y);
}

/* Fills the arena with blocks of random sizes, and frees every second one by address. Each free block then lies
 * between two that are in use, so that none can merge. */
static bool make_holes(report *r, const weir_side *side, void **blocks, size_t count) {
  bench_random random = {42};
  for (size_t i = 0; i < count; i++)
    if (!ok(r, weir_allocator_alloc(side->allocator, 0, 1 + bench_draw(&random, CURVE_BYTES), side->streams[0],
                                    &blocks[i])))
      return false;
  qsort(blocks, count, sizeof *blocks, compare_pointers);
  for (size_t i = 0; i < count; i += 2)
    if (!ok(r, weir_allocator_free(side->allocator, blocks[i])))
      return false;
  return true;
}

static bool time_random_pairs(report *r, const weir_side *side, bench_random *random, double *ns) {
  double began = bench_now();
  for (long i = 0; i < r->scale.pairs; i++) {
    void *p;
    if (weir_allocator_alloc(side->allocator, 0, 1 + bench_draw(random, CURVE_BYTES), side->streams[0], &p))
      return ok(r, WEIR_ERROR_OUT_OF_MEMORY);
    weir_allocator_free(side->allocator, p);
  }
  *ns = (bench_now() - began) / (double)r->scale.pairs;
  return true;
}

static bool run_curve_point(report *r, int which, int point, void **blocks, size_t count) {
  weir_side side;
  weir_allocator_stats stats;
  double rounds[BENCH_MAX_ROUNDS], warm;
  bench_random random = {42};
  bool is_done = false;
  if (!open_weir(r, which, CURVE_LEDGER_BYTES, 1, &side))
    return false;
  if (!make_holes(r, &side, blocks, 2 * count) || !get_stats(r, &side, &stats))
    goto close;
  r->curve_free[point][which] = stats.inactive_split[WEIR_STAT_ALL].current;
  if (!time_random_pairs(r, &side, &random, &warm))
    goto close;
  for (int round = 0; round < r->scale.rounds; round++)
    if (!time_random_pairs(r, &side, &random, &rounds[round]))
      goto close;
  summarize(rounds, r->scale.rounds, &r->curve[point][which]);
  is_done = true;
close:
  close_weir(&side);
  return is_done;
}

static bool run_curve(report *r) {
  size_t count = 100;
  bool is_done = true;
  r->curve_points = options.quick ? CURVE_QUICK : CURVE_POINTS;
  for (int point = 0; point < r->curve_points && is_done; point++, count *= 10) {
    void **blocks = malloc(2 * count * sizeof *blocks);
    if (!blocks)
      return no_memory(r);
    for (int which = 0; which < WEIR_SIDES && is_done; which++)
      is_done = run_curve_point(r, which, point, blocks, count);
    free(blocks);
  }
  return is_done;
}

/* ---- Metadata ---- */

/* The resident memory of the process, -1 if not known. Memory that malloc caches is released first, so that the next
 * allocations show. */
static int64_t resident(void) {
  long long pages = -1;
  malloc_trim(0);
  FILE *file = fopen("/proc/self/statm", "re");
  if (!file)
    return -1;
  if (fscanf(file, "%*d %lld", &pages) != 1)
    pages = -1;
  fclose(file);
  return pages < 0 ? -1 : pages * sysconf(_SC_PAGESIZE);
}

/* The host memory that the ledger itself needs for the segments: the same calls without an allocator. */
static bool measure_ledger(report *r, int which, int64_t reserved, int64_t *bytes) {
  const size_t page = 2 * BENCH_MIB;
  weir_side side;
  weir_cu_deviceptr at;
  weir_cu_mem_handle handle;
  weir_cu_mem_prop prop = {.type = WEIR_CU_ALLOCATION_PINNED, .location = {WEIR_CU_LOCATION_DEVICE, 0}};
  weir_cu_mem_access access = {{WEIR_CU_LOCATION_DEVICE, 0}, WEIR_CU_ACCESS_READWRITE};
  if (!open_weir(r, which, LEDGER_BYTES, 1, &side))
    return false;
  weir_driver *d = side.driver;
  int64_t before = resident();
  bool is_expandable = which == EXPANDABLE_SIDE;
  bool is_done = !is_expandable || driver_ok(r, "cuMemAddressReserve",
                                             d->MemAddressReserve(d, &at, (size_t)LEDGER_BYTES / page * page, 0, 0, 0));
  for (int64_t done = 0; is_done && done < reserved; done += (int64_t)page) {
    if (!is_expandable)
      is_done = driver_ok(r, "cuMemAlloc", d->MemAlloc(d, &at, page));
    else
      is_done = driver_ok(r, "cuMemCreate", d->MemCreate(d, &handle, page, &prop, 0)) &&
                driver_ok(r, "cuMemMap", d->MemMap(d, at + (weir_cu_deviceptr)done, page, 0, handle, 0)) &&
                driver_ok(r, "cuMemSetAccess", d->MemSetAccess(d, at + (weir_cu_deviceptr)done, page, &access, 1));
  }
  *bytes = before < 0 ? -1 : resident() - before;
  close_weir(&side);
  return is_done;
}

static bool run_metadata(report *r, int which, void **blocks) {
  weir_side side;
  weir_allocator_stats stats;
  metadata *m = &r->metadata[which];
  bench_random random = {42};
  int64_t taken, of_ledger;
  bool is_done = false;
  if (!open_weir(r, which, LEDGER_BYTES, 1, &side))
    return false;
  int64_t before = resident();
  for (int i = 0; i < METADATA_BLOCKS; i++)
    if (!ok(r,
            weir_allocator_alloc(side.allocator, 0, 1 + bench_draw(&random, BENCH_MIB), side.streams[0], &blocks[i])))
      goto close;
  taken = resident() - before;
  if (!get_stats(r, &side, &stats))
    goto close;
  m->reserved = stats.reserved_bytes[WEIR_STAT_ALL].current;
  m->blocks = stats.active[WEIR_STAT_ALL].current + stats.inactive_split[WEIR_STAT_ALL].current;
  if (!measure_ledger(r, which, m->reserved, &of_ledger))
    goto close;
  m->bytes = taken - of_ledger;
  m->is_there = before >= 0 && of_ledger >= 0 && m->bytes > 0;
  is_done = true;
close:
  close_weir(&side);
  return is_done;
}

/* Blocks have half a MiB on average, so that little memory is reserved for each. */
static bool run_all_metadata(report *r) {
  void **blocks = malloc(METADATA_BLOCKS * sizeof *blocks);
  if (!blocks)
    return no_memory(r);
  memset(blocks, 0xff, METADATA_BLOCKS * sizeof *blocks);
  bool is_done = run_metadata(r, WEIR_SIDE, blocks) && run_metadata(r, EXPANDABLE_SIDE, blocks);
  free(blocks);
  return is_done;
}

static int64_t metadata_limit(const metadata *m) { return 128 * m->blocks + m->reserved / 2000; }

/* ---- The measurement ---- */

static void look_at_machine(report *r) {
  char line[256];
  cpu_set_t cores;
  r->cores = sched_getaffinity(0, sizeof cores, &cores) ? 1 : CPU_COUNT(&cores);
  snprintf(r->cpu, sizeof r->cpu, "unknown processor");
  FILE *file = fopen("/proc/cpuinfo", "re");
  while (file && fgets(line, sizeof line, file))
    if (strncmp(line, "model name", 10) == 0 && strstr(line, ": ")) {
      line[strcspn(line, "\n")] = 0;
      snprintf(r->cpu, sizeof r->cpu, "%.127s", strstr(line, ": ") + 2);
      break;
    }
  if (file)
    fclose(file);
}

static bool open_driver(report *r) {
  if (strcmp(options.driver, "ledger") == 0)
    return true;
  return ok(r, weir_driver_open(options.driver, &r->driver)) && driver_ok(r, "cuInit", r->driver->Init(r->driver, 0));
}

static bool wants_any(const report *r) {
  for (int i = 0; i < BENCH_PATTERN_COUNT; i++)
    if (r->wanted[i])
      return true;
  return false;
}

/* Metadata is measured first: later, free memory of the process would be reused for it and not show. */
static bool measure(report *r) {
  look_at_machine(r);
  load_mimalloc(r);
  bool is_done = open_driver(r) && (!is_wanted(GROUP_METADATA) || run_all_metadata(r));
  for (int i = 0; i < BENCH_PATTERN_COUNT && is_done; i++)
    if (r->wanted[i])
      is_done = run_pattern(r, i);
  is_done = is_done && (!is_wanted(GROUP_CURVE) || run_curve(r));
  weir_driver_close(r->driver);
  return is_done;
}

/* ---- Output ---- */

static void print_cell(const result *result, int width) {
  if (result->is_there)
    printf(" %*.1f", width, result->median);
  else
    printf(" %*s", width, "absent");
}

/* a / b */
static void print_ratio(const result *a, const result *b, int width) {
  if (a->is_there && b->is_there && b->median > 0)
    printf(" %*.2fx", width - 1, a->median / b->median);
  else
    printf(" %*s", width, "-");
}

static void print_number(double value, int width) {
  if (value > 0)
    printf(" %*.0f", width, value);
  else
    printf(" %*s", width, "-");
}

static void print_patterns(const report *r) {
  printf("\n%-26s %10s %10s %10s %8s %8s %10s %6s %8s\n", "ns for a pair", side_titles[0], side_titles[1],
         side_titles[2], side_titles[3], "scopes/", "/mimalloc", "bar", "PyTorch*");
  for (int i = 0; i < BENCH_PATTERN_COUNT; i++) {
    const result *results = r->results[i];
    if (!r->wanted[i])
      continue;
    printf("%-26s", bench_patterns[i].title);
    for (int side = 0; side < SCOPED_SIDE; side++)
      print_cell(&results[side], 10);
    if (results[SCOPED_SIDE].is_there)
      print_cell(&results[SCOPED_SIDE], 8);
    else
      printf(" %8s", "-");
    print_ratio(&results[SCOPED_SIDE], &results[WEIR_SIDE], 8);
    print_ratio(&results[WEIR_SIDE], &results[MIMALLOC_SIDE], 10);
    print_number(bench_patterns[i].bar, 6);
    print_number(bench_patterns[i].reference, 8);
    putchar('\n');
  }
  puts(
      "\nscopes/: the time of threads, each in a scope of a pool of its own, divided by that without; the bar is 1.2.\n"
      "/mimalloc: Weir's time divided by mimalloc's; the bar is 4 for pairs. bar and PyTorch*: the goal, and\n"
      "PyTorch's time, on the host of an H200 with 16 cores. They do not apply to other machines.");
}

static void print_curve(const report *r) {
  printf("\n%-26s %10s %10s\n", "free blocks, random pairs", side_titles[0], side_titles[1]);
  for (int i = 0; i < r->curve_points; i++) {
    printf("%-26lld", r->curve_free[i][WEIR_SIDE]);
    for (int side = 0; side < WEIR_SIDES; side++)
      print_cell(&r->curve[i][side], 10);
    putchar('\n');
  }
}

static void print_metadata(const report *r) {
  printf("\n%-26s %10s %10s %12s %12s\n", "metadata", "blocks", "a block", "bytes", "allowed");
  for (int side = 0; side < WEIR_SIDES; side++) {
    const metadata *m = &r->metadata[side];
    if (m->is_there)
      printf("%-26s %10lld %10.1f %12lld %12lld\n", side_titles[side], (long long)m->blocks,
             (double)m->bytes / (double)m->blocks, (long long)m->bytes, (long long)metadata_limit(m));
    else
      printf("%-26s %10s\n", side_titles[side], "absent");
  }
}

static void print_text(const report *r) {
  printf("%s, %d core%s; Weir %s on %s; median of %d rounds of up to %ld pairs\n", r->cpu, r->cores,
         r->cores == 1 ? "" : "s", weir_version(), options.driver, r->scale.rounds, r->scale.pairs);
  if (*options.conf)
    printf("settings: %s\n", options.conf);
  if (r->mimalloc_version[0])
    printf("mimalloc: %s\n", r->mimalloc_version);
  if (r->no_mimalloc[0])
    printf("mimalloc: absent: %s\n", r->no_mimalloc);
#ifndef __OPTIMIZE__
  puts("This build is not optimized, and its numbers mean nothing. Use the build that 'make' makes.");
#endif
  if (wants_any(r))
    print_patterns(r);
  if (is_wanted(GROUP_CURVE))
    print_curve(r);
  if (is_wanted(GROUP_METADATA))
    print_metadata(r);
}

/* ---- The command line ---- */

static int usage(const char *format, const char *value) {
  fprintf(stderr, "alloc: ");
  fprintf(stderr, format, value);
  fprintf(stderr, "\nusage: alloc [--patterns LIST] [--threads N] [--driver ledger|soft|cuda|auto] [--conf SETTINGS]"
                  " [--quick]\n");
  return 2;
}

/* Sets options.groups to those of a comma-separated list. */
static bool read_groups(char *list) {
  options.groups = 0;
  for (char *name; (name = strsep(&list, ","));) {
    unsigned group = 0;
    while (group < GROUPS && strcmp(groups[group], name) != 0)
      group++;
    if (group == GROUPS)
      return false;
    options.groups |= 1u << group;
  }
  return true;
}

/* Marks the patterns of the groups that --patterns lists and whose threads --threads allows. */
static void choose_patterns(report *r) {
  for (int i = 0; i < BENCH_PATTERN_COUNT; i++)
    for (unsigned group = 0; group < GROUP_CURVE; group++)
      if (is_wanted(group) && strcmp(bench_patterns[i].group, groups[group]) == 0)
        r->wanted[i] = bench_patterns[i].threads <= options.threads;
}

int main(int argc, char **argv) {
  static const struct option table[] = {
      {"patterns", required_argument, NULL, 'p'}, {"threads", required_argument, NULL, 't'},
      {"driver", required_argument, NULL, 'd'},   {"conf", required_argument, NULL, 'c'},
      {"quick", no_argument, NULL, 'q'},          {0}};
  char *end;
  unsetenv("WEIR_RECORD"); /* what is measured is not recorded */
  for (int option; (option = getopt_long(argc, argv, "", table, NULL)) != -1;)
    switch (option) {
    case 'p':
      if (!read_groups(optarg))
        return usage("--patterns takes a comma-separated list of pair, live, threads, stream, curve and metadata%s",
                     "");
      break;
    case 't':
      options.threads = (int)strtol(optarg, &end, 10);
      if (*end || options.threads < 1 || options.threads > BENCH_MAX_THREADS)
        return usage("--threads takes 1 to 64 (got '%s')", optarg);
      break;
    case 'd':
      options.driver = optarg;
      break;
    case 'c':
      if (strlen(optarg) > CONF_SIZE / 2)
        return usage("--conf takes at most 512 characters%s", "");
      options.conf = optarg;
      break;
    case 'q':
      options.quick = true;
      break;
    default:
      return usage("invalid usage%s", "");
    }
  if (optind < argc)
    return usage("takes no arguments (got '%s')", argv[optind]);
  static report r;
  r.scale = options.quick ? (bench_scale){3, 2000, 5e6} : (bench_scale){9, 200000, 1e8};
  choose_patterns(&r);
  if (!measure(&r)) {
    fprintf(stderr, "alloc: %s\n", r.error);
    return 1;
  }
  print_text(&r);
  return 0;
}

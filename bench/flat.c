/*
 * flat: how the cost of the allocator's calls grows with the number of private pools, of streams, and of streams with
 * pending events. Runs on the ledger, so only the allocator is measured.
 *
 *   cc -O2 bench/flat.c $(pkg-config --cflags --libs weir) -o flat && ./flat
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <weir/weir.h>

#define CHECK(call)                                                                                                    \
  do {                                                                                                                 \
    if ((call) != 0) {                                                                                                 \
      fprintf(stderr, "%s: %s\n", #call, weir_last_error());                                                           \
      exit(1);                                                                                                         \
    }                                                                                                                  \
  } while (0)

static weir_driver *driver;
static weir_allocator *allocator;
static weir_host_allocator *host;
static weir_cu_stream *streams;
static int count;
static unsigned seed;

static unsigned pick(void) { return (seed = seed * 1664525u + 1013904223u) >> 8; }
static weir_pool_id pool_at(unsigned i) { return (weir_pool_id){0, i + 1}; }

static void open_all(void) {
  weir_allocator_options options;
  weir_allocator_options_init(&options);
  options.conf = "";
  CHECK(weir_driver_open_ledger(NULL, &driver));
  CHECK(driver->Init(driver, 0));
  weir_cu_context context;
  CHECK(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  CHECK(driver->CtxSetCurrent(driver, context));
  CHECK(weir_allocator_create(driver, &options, &allocator));
  seed = 1;
}

static void close_all(void) {
  weir_allocator_destroy(allocator);
  weir_driver_close(driver);
}

static void open_streams(void) {
  open_all();
  streams = malloc((size_t)count * sizeof *streams);
  for (int i = 0; i < count; i++) {
    void *pointer;
    CHECK(driver->StreamCreateWithPriority(driver, &streams[i], WEIR_CU_STREAM_NON_BLOCKING, 0));
    CHECK(weir_allocator_alloc(allocator, 0, 512, streams[i], &pointer));
    CHECK(weir_allocator_free(allocator, pointer));
  }
}

static void open_host(void) {
  open_streams();
  CHECK(weir_host_allocator_create(driver, NULL, &host));
}

static void close_host(void) {
  weir_host_allocator_destroy(host);
  close_all();
}

static void allocate_in(weir_pool_id id) {
  void *pointer;
  CHECK(weir_pool_begin(allocator, 0, id, NULL, NULL));
  CHECK(weir_allocator_alloc(allocator, 0, 512, NULL, &pointer));
  CHECK(weir_pool_end(allocator, 0, id));
  CHECK(weir_allocator_free(allocator, pointer));
  CHECK(weir_pool_release(allocator, 0, id)); /* the scope held it once more */
}

static void open_pools(void) {
  open_all();
  for (int i = 0; i < count; i++) {
    CHECK(weir_pool_create(allocator, 0, pool_at((unsigned)i), NULL));
    allocate_in(pool_at((unsigned)i));
  }
}

static void make_pool(void) {
  weir_pool_id id = pool_at((unsigned)count + 1 + pick() % 1000000);
  CHECK(weir_pool_create(allocator, 0, id, NULL));
  CHECK(weir_pool_release(allocator, 0, id));
}

static void use_pool(void) { allocate_in(pool_at(pick() % (unsigned)count)); }

static void cached_pair(void) {
  void *pointer;
  CHECK(weir_allocator_alloc(allocator, 0, 512, streams[pick() % (unsigned)count], &pointer));
  CHECK(weir_allocator_free(allocator, pointer));
}

static void shared_pair(void) {
  void *pointer;
  CHECK(weir_allocator_alloc(allocator, 0, 512, streams[0], &pointer));
  CHECK(weir_allocator_record_stream(allocator, pointer, streams[pick() % (unsigned)count]));
  CHECK(weir_allocator_free(allocator, pointer));
}

static void pinned_pair(void) {
  void *pointer;
  CHECK(weir_host_alloc(host, 4096, &pointer));
  CHECK(weir_host_record_stream(host, pointer, 0, streams[pick() % (unsigned)count]));
  CHECK(weir_host_free(host, pointer));
}

static const struct flat_case {
  const char *name;
  int most;
  void (*open)(void), (*step)(void), (*close)(void);
} cases[] = {
    {"create and release a pool", 10000, open_pools, make_pool, close_all},
    {"allocate in one of the pools", 10000, open_pools, use_pool, close_all},
    {"allocate on one of the streams", 1000, open_streams, cached_pair, close_all},
    {"share with one of the streams", 1000, open_streams, shared_pair, close_all},
    {"pinned, with one of the streams", 1000, open_host, pinned_pair, close_host},
};

static double ns_per_step(const struct flat_case *c, int steps) {
  struct timespec a, b;
  double best = 1e30;
  c->open();
  for (int round = 0; round < 5; round++) {
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (int i = 0; i < steps; i++)
      c->step();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / steps;
    best = ns < best ? ns : best;
  }
  c->close();
  return best;
}

int main(void) {
  printf("%-34s %10s %10s %8s\n", "", "10: ns", "most: ns", "ratio");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    count = 10;
    double few = ns_per_step(&cases[i], 5000);
    count = cases[i].most;
    double many = ns_per_step(&cases[i], 5000);
    printf("%-34s %10.0f %10.0f %8.1f   (%d)\n", cases[i].name, few, many, many / few, cases[i].most);
  }
  return 0;
}

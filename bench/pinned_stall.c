/*
 * How long driver calls of other threads wait while one thread pins much memory.
 *
 *     WEIR_DRIVER=cuda build/bench/pinned_stall [GiB] [rounds]
 *
 * One thread pins memory in each of these ways, while two others make driver calls and note the longest: one calls
 * cuMemsetD8Async and cuStreamQuery, the other cuMemAlloc and cuMemFree.
 *
 *   cuMemHostAlloc        one call of the driver
 *   register, untouched   cuMemHostRegister of memory that the system has not provided yet
 *   Weir                  weir_host_alloc: touched by several threads, then one registration
 *   Weir, in pieces       the same with pinned_register_piece_mb:64
 *
 * The software device has no such locks, so its numbers say nothing about a GPU.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "checked.h"
#include "weir/host.h"
#include "weir/weir.h"

enum { WAYS = 4 };

static weir_driver *driver;
static weir_cu_context context;
static atomic_bool is_over;

/* ---- The other threads ---- */

typedef struct other {
  void (*call)(struct other *other);
  weir_cu_deviceptr memory;
  weir_cu_stream stream;
  double longest; /* seconds */
  unsigned long calls;
} other;

static void use_stream(other *o) {
  CHECK_DRIVER(driver->MemsetD8Async(driver, o->memory, 1, 4096, o->stream));
  weir_cu_result r = driver->StreamQuery(driver, o->stream);
  if (r != WEIR_CU_NOT_READY)
    check_driver(r, "cuStreamQuery");
}

static void allocate(other *o) {
  weir_cu_deviceptr memory;
  (void)o;
  CHECK_DRIVER(driver->MemAlloc(driver, &memory, 4 << 20));
  CHECK_DRIVER(driver->MemFree(driver, memory));
}

static void *run(void *argument) {
  other *o = argument;
  CHECK_DRIVER(driver->CtxSetCurrent(driver, context));
  while (!atomic_load(&is_over)) {
    double begin = now();
    o->call(o);
    double took = now() - begin;
    if (took > o->longest)
      o->longest = took;
    o->calls++;
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
  }
  return NULL;
}

/* ---- The ways to pin ---- */

static weir_host_allocator *make_host(const char *conf) {
  weir_host_allocator *host;
  CHECK(weir_host_allocator_create(
      driver, &(const weir_host_allocator_options){.size = sizeof(weir_host_allocator_options), .conf = conf}, &host));
  return host;
}

static void *pin_by_driver(uint64_t bytes) {
  void *memory;
  CHECK_DRIVER(driver->MemHostAlloc(driver, &memory, bytes, WEIR_CU_MEMHOSTALLOC_PORTABLE));
  return memory;
}

static void *pin_untouched(uint64_t bytes) {
  void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    fail("mmap", "out of memory");
  CHECK_DRIVER(driver->MemHostRegister(driver, memory, bytes, WEIR_CU_MEMHOSTREGISTER_PORTABLE));
  return memory;
}

typedef struct result {
  double pinning, longest[2], release;
} result;

static void pin(int way, uint64_t bytes, result *r) {
  static const char *const conf[WAYS] = {NULL, NULL, "pinned_max_round_threshold_mb:1",
                                         "pinned_max_round_threshold_mb:1,pinned_register_piece_mb:64"};
  weir_host_allocator *host = conf[way] ? make_host(conf[way]) : NULL;
  void *memory = NULL;
  double begin = now();
  if (host)
    CHECK(weir_host_alloc(host, bytes, &memory));
  else
    memory = way == 0 ? pin_by_driver(bytes) : pin_untouched(bytes);
  r->pinning = now() - begin;
  atomic_store(&is_over, true);
  begin = now();
  if (host)
    weir_host_allocator_destroy(host);
  else if (way == 0)
    CHECK_DRIVER(driver->MemFreeHost(driver, memory));
  else {
    CHECK_DRIVER(driver->MemHostUnregister(driver, memory));
    munmap(memory, bytes);
  }
  r->release = now() - begin;
}

static result measure(int way, uint64_t bytes) {
  result r = {0};
  other others[2] = {{.call = use_stream}, {.call = allocate}};
  pthread_t threads[2];
  CHECK_DRIVER(driver->MemAlloc(driver, &others[0].memory, 4096));
  CHECK_DRIVER(driver->StreamCreateWithPriority(driver, &others[0].stream, WEIR_CU_STREAM_NON_BLOCKING, 0));
  atomic_store(&is_over, false);
  for (int i = 0; i < 2; i++)
    if (pthread_create(&threads[i], NULL, run, &others[i]) != 0)
      fail("pthread_create", "no thread");
  nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  pin(way, bytes, &r);
  for (int i = 0; i < 2; i++) {
    pthread_join(threads[i], NULL);
    r.longest[i] = others[i].longest;
  }
  CHECK_DRIVER(driver->StreamDestroy(driver, others[0].stream));
  CHECK_DRIVER(driver->MemFree(driver, others[0].memory));
  return r;
}

int main(int argc, char **argv) {
  static const char *const names[WAYS] = {"cuMemHostAlloc", "register, untouched", "Weir", "Weir, in pieces"};
  double gib = argc > 1 ? strtod(argv[1], NULL) : 2;
  int rounds = argc > 2 ? atoi(argv[2]) : 3;
  uint64_t bytes = (uint64_t)(gib * 1024) << 20;
  if (bytes < (uint64_t)1 << 30 || rounds < 1)
    fail("usage", "pinned_stall [GiB, at least 1] [rounds]");
  CHECK(weir_init());
  CHECK(weir_get_driver(&driver));
  CHECK_DRIVER(driver->DevicePrimaryCtxRetain(driver, &context, 0));
  CHECK_DRIVER(driver->CtxSetCurrent(driver, context));
  printf("%.0f GiB on %s; seconds, the median of %d rounds\n", gib, driver->name, rounds);
  printf("%-22s %10s %22s %22s %10s\n", "", "pinning", "longest stream call", "longest allocation", "release");
  for (int way = 0; way < WAYS; way++) {
    result *all = calloc((size_t)rounds, sizeof *all), middle;
    if (!all)
      fail("calloc", "out of memory");
    for (int i = 0; i < rounds; i++) {
      all[i] = measure(way, bytes);
      for (int j = i; j > 0 && all[j].pinning < all[j - 1].pinning; j--) {
        result swapped = all[j];
        all[j] = all[j - 1];
        all[j - 1] = swapped;
      }
    }
    middle = all[rounds / 2];
    for (int i = 0; i < rounds; i++) /* of the waits, the longest */
      for (int k = 0; k < 2; k++)
        if (all[i].longest[k] > middle.longest[k])
          middle.longest[k] = all[i].longest[k];
    printf("%-22s %10.4f %22.6f %22.6f %10.4f\n", names[way], middle.pinning, middle.longest[0], middle.longest[1],
           middle.release);
    free(all);
  }
  CHECK_DRIVER(driver->DevicePrimaryCtxRelease(driver, 0));
  return 0;
}

/*
 * The cost of a launch on the host: through Weir, with and without checked parameters, and by the bare cuLaunchKernel
 * of the same driver. On a GPU a launch through Weir should take at most 1.15 times as long.
 *
 *   launch             times all of them
 *   launch KIND COUNT  makes COUNT launches of one kind (bare, unchecked or checked), to count instructions:
 *                      the difference of two counts under callgrind, divided by the difference of COUNT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weir/compute/kernel.h"
#include "weir/weir.h"

enum { LAUNCHES = 20000, BATCH = 500, TRIES = 15 };

static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                          ".visible .entry weir_spin(.param .u64 cycles)\n{\n  ret;\n}\n";

typedef struct bench {
  weir_driver *driver;
  weir_kernel *kernel;
  weir_cu_function function;
  weir_stream stream;
  weir_cu_stream raw;
} bench;

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "launch: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static void check_driver(weir_cu_result result) {
  if (result != WEIR_CU_SUCCESS) {
    fprintf(stderr, "launch: %s\n", weir_cu_result_name(result));
    exit(1);
  }
}

static void bare(const bench *b, uint64_t cycles) {
  void *params[] = {&cycles};
  check_driver(b->driver->LaunchKernel(b->driver, b->function, 1, 1, 1, 32, 1, 1, 0, b->raw, params, NULL));
}

static void unchecked(const bench *b, uint64_t cycles) {
  void *params[] = {&cycles};
  weir_launch_dims dims = {.grid = {1}, .block = {32}};
  check(weir_kernel_launch_unchecked(b->kernel, dims, b->raw, params));
}

static void checked(const bench *b, uint64_t cycles) {
  weir_param params[] = {WEIR_PARAM(cycles)};
  weir_launch_dims dims = {.grid = {1}, .block = {32}};
  check(weir_kernel_launch(b->kernel, dims, b->stream, params, 1));
}

typedef void launch_fn(const bench *b, uint64_t cycles);

static const struct {
  const char *name;
  launch_fn *fn;
} kinds[] = {{"bare", bare}, {"unchecked", unchecked}, {"checked", checked}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* Nanoseconds per launch. The queue is emptied between batches, so that a launch never waits for room in it. */
static double measure(const bench *b, launch_fn *fn) {
  double total = 0;
  for (int done = 0; done < LAUNCHES; done += BATCH) {
    double start = now();
    for (int i = 0; i < BATCH; i++)
      fn(b, 0);
    total += now() - start;
    check(weir_stream_synchronize(b->stream));
  }
  return total / LAUNCHES;
}

static int time_all(const bench *b) {
  double best[KINDS];
  for (int i = 0; i < KINDS; i++)
    best[i] = 1e18;
  for (int try = 0; try < TRIES; try++) /* in turn, so that a disturbance hits all alike */
    for (int i = 0; i < KINDS; i++) {
      double ns = measure(b, kinds[i].fn);
      best[i] = ns < best[i] ? ns : best[i];
    }
  printf("%-10s %10s %8s\n", "launch", "ns", "ratio");
  for (int i = 0; i < KINDS; i++)
    printf("%-10s %10.1f %8.3f\n", kinds[i].name, best[i], best[i] / best[0]);
  return 0;
}

int main(int count, char **arguments) {
  bench b;
  weir_module *module;
  check(weir_device_set_current(0));
  check(weir_get_driver(&b.driver));
  check(weir_stream_create(0, 0, &b.stream));
  check(weir_stream_raw(b.stream, &b.raw));
  check(weir_module_load(0, ptx, sizeof ptx, &module));
  check(weir_module_kernel(module, "weir_spin", &b.kernel));
  weir_cu_module bare_module;
  check_driver(b.driver->ModuleLoadData(b.driver, &bare_module, ptx));
  check_driver(b.driver->ModuleGetFunction(b.driver, &b.function, bare_module, "weir_spin"));
  int result = 1;
  if (count == 1)
    result = time_all(&b);
  for (int i = 0; count == 3 && i < KINDS; i++)
    if (!strcmp(arguments[1], kinds[i].name)) {
      for (long left = atol(arguments[2]); left > 0; left--)
        kinds[i].fn(&b, 0);
      result = 0;
    }
  check(weir_stream_synchronize(b.stream));
  check_driver(b.driver->ModuleUnload(b.driver, bare_module));
  weir_module_destroy(module);
  check(weir_shutdown());
  if (result)
    fprintf(stderr, "usage: launch [bare|unchecked|checked COUNT]\n");
  return result;
}

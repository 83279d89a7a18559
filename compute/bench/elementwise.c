/*
 * The speed of operations on arrays: GB/s of the bytes that an operation reads and writes, on contiguous arrays of
 * 64 Mi elements (4 Mi on the software device), or of as many as the argument says.
 *
 *   elementwise [ELEMENTS]
 *
 * bench/torch/elementwise.py prints the same table for PyTorch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weir/compute/array.h"
#include "weir/weir.h"

enum { TRIES = 20, WARMUP = 3 };

static void check(weir_status status) {
  if (status != WEIR_OK) {
    fprintf(stderr, "elementwise: %s: %s\n", weir_status_name(status), weir_last_error());
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static weir_stream stream;
static weir_array a, b, out, half, row, total;

static weir_status add(void) { return weir_array_binary(WEIR_BINARY_ADD, &a, &b, stream, &out); }
static weir_status scale(void) {
  return weir_array_binary_scalar(WEIR_BINARY_MUL, &a, weir_scalar_float(1.5), 0, stream, &out);
}
static weir_status exponential(void) { return weir_array_unary(WEIR_UNARY_EXP, &a, stream, &out); }
static weir_status sine(void) { return weir_array_unary(WEIR_UNARY_SIN, &a, stream, &out); }
static weir_status fill(void) { return weir_array_fill(&out, weir_scalar_float(1), stream); }
static weir_status copy(void) { return weir_array_copy(&out, &a, stream, 1); }
static weir_status to_half(void) { return weir_array_copy(&half, &a, stream, 1); }
static weir_status add_row(void) { return weir_array_binary(WEIR_BINARY_ADD, &a, &row, stream, &out); }
static weir_status sum(void) { return weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, stream, &total); }

static const struct {
  const char *name;
  weir_status (*fn)(void);
  double bytes, half_bytes; /* for each element; of float32, and of float16 */
} operations[] = {{"add", add, 12, 6},
                  {"mul by a number", scale, 8, 4},
                  {"exp", exponential, 8, 4},
                  {"sin", sine, 8, 4},
                  {"fill", fill, 4, 2},
                  {"copy", copy, 8, 4},
                  {"copy to float16", to_half, 6, 4},
                  {"add a row", add_row, 8, 4},
                  {"sum", sum, 4, 2}};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

/* The shortest of a few times, in seconds. */
static double measure(weir_status (*fn)(void)) {
  double best = 1e9;
  for (int try = -WARMUP; try < TRIES; try++) {
    double start = now();
    check(fn());
    check(weir_stream_synchronize(stream));
    double took = now() - start;
    best = try >= 0 && took < best ? took : best;
  }
  return best;
}

static void measure_all(weir_dtype dtype, int64_t count) {
  int64_t shape[] = {count / 1024, 1024};
  weir_place place = weir_place_device(0);
  check(weir_array_empty(place, dtype, 2, shape, stream, &a));
  check(weir_array_empty(place, dtype, 2, shape, stream, &b));
  check(weir_array_empty(place, dtype, 2, shape, stream, &out));
  check(weir_array_empty(place, WEIR_FLOAT16, 2, shape, stream, &half));
  check(weir_array_empty(place, dtype, 1, shape + 1, stream, &row));
  check(weir_array_empty(place, dtype, 0, NULL, stream, &total));
  check(weir_array_fill(&a, weir_scalar_float(0.5), stream));
  check(weir_array_fill(&b, weir_scalar_float(0.25), stream));
  check(weir_array_fill(&row, weir_scalar_float(2), stream));
  for (int i = 0; i < OPERATIONS; i++) {
    double seconds = measure(operations[i].fn);
    double bytes = dtype == WEIR_FLOAT16 ? operations[i].half_bytes : operations[i].bytes;
    printf("%-8s %-16s %10.1f us %10.1f GB/s\n", weir_dtype_name(dtype), operations[i].name, seconds * 1e6,
           bytes * (double)count / seconds * 1e-9);
  }
  weir_array *all[] = {&a, &b, &out, &half, &row, &total};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    weir_array_release(all[i]);
}

int main(int argument_count, char **arguments) {
  weir_driver *driver;
  check(weir_get_driver(&driver));
  check(weir_stream_create(0, 0, &stream));
  int64_t count = strcmp(driver->name, "cuda") ? 4 << 20 : 64 << 20;
  if (argument_count > 1)
    count = atoll(arguments[1]) / 1024 * 1024;
  if (count < 1024) {
    fprintf(stderr, "usage: elementwise [ELEMENTS]\n");
    return 1;
  }
  printf("%lld elements\n", (long long)count);
  measure_all(WEIR_FLOAT32, count);
  measure_all(WEIR_FLOAT16, count);
  check(weir_shutdown());
  return 0;
}

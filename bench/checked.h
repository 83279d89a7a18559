/*
 * For benchmarks that call the runtime and the driver table: an error ends them with its text.
 */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "weir/weir.h"

static inline void fail(const char *call, const char *why) {
  fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, call, why);
  exit(1);
}

static inline void check(weir_status status, const char *call) {
  if (status != WEIR_OK)
    fail(call, weir_last_error());
}

static inline void check_driver(weir_cu_result result, const char *call) {
  if (result != WEIR_CU_SUCCESS)
    fail(call, weir_cu_result_name(result));
}

#define CHECK(call) check((call), #call)
#define CHECK_DRIVER(call) check_driver((call), #call)

static inline double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

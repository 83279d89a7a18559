/*
 * Products by libcublasLt, with a stand-in for it, on a software device that runs no kernels of the host: every call of
 * the library fails once, and the library or one of its functions is missing.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/blas.h"
#include "src/libraries.h"
#include "support/length.h"
#include "support/runtime.h"
#include "tests/fake_cublas.h"
#include "tests/fake_cublaslt.h"
#include "weir/compute/array.h"
#include "weir/compute/tunable.h"
#include "weir/memory.h"

enum { EXECUTION_FAILED = 13, ALLOC_FAILED = 3, NOT_SUPPORTED = 15 };

static fake_cublaslt_state *fake; /* NULL in the tests without the whole library */
static weir_stream stream;
static char folder[64], path[128];
static void *memory; /* that takes the device a while to fill */
static int fastest;  /* the algorithm of cuBLASLt that takes less time than Default */

/* Products of the library itself take no time. */
static void take_time(void *raw, int rank) {
  d->MemsetD8Async(d, (weir_cu_deviceptr)memory, 0, rank == fastest ? 1 << 10 : 1 << 20, raw);
}
static void take_time_by_default(void *raw) { d->MemsetD8Async(d, (weir_cu_deviceptr)memory, 0, 1 << 19, raw); }

static int setup_with(void **state, const char *library) {
  if (is_cuda())
    waived("uses a stand-in for cuBLAS");
  if (runtime_setup(state))
    return -1;
  collect_messages();
  d->capabilities &= ~(uint64_t)WEIR_DRIVER_HOST_KERNELS;
  weir__libraries_forget();
  setenv("WEIR_CUBLAS_LIBRARY", library, 1);
  strcpy(folder, "/tmp/weir-tunable-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/results.csv", folder);
  weir_tunable_set_enabled(1);
  weir_tunable_set_tuning(1);
  weir_tunable_set_max_iterations(1);
  weir_tunable_set_rotating_buffer_size(0);
  assert_ok(weir_tunable_set_filename(path, 0));
  stream = new_stream(0);
  return 0;
}

static int setup_without_library(void **state) { return setup_with(state, "/nowhere/libcublas.so"); }
static int setup_without_lt(void **state) { return setup_with(state, WEIR_TEST_CUBLAS); }
static int setup_old(void **state) { return setup_with(state, WEIR_TEST_CUBLAS_LT_OLD); }

/* The functions of cuBLAS are those that an earlier test has loaded: WEIR_TEST_CUBLAS's. */
static fake_cublas_state *fake_blas(void) {
  void *library = dlopen(WEIR_TEST_CUBLAS, RTLD_NOW);
  assert_non_null(library);
  fake_cublas_state *found = dlsym(library, "fake_cublas");
  assert_non_null(found);
  return found;
}

static void reset(int fail_at, int fail_with) {
  *fake = (fake_cublaslt_state){.fail_at = fail_at, .fail_with = fail_with, .proposed = 8, .refused = -1};
  fake->ran = take_time;
}

static int setup(void **state) {
  if (setup_with(state, WEIR_TEST_CUBLAS_LT))
    return -1;
  void *library = dlopen(WEIR_TEST_CUBLAS_LT, RTLD_NOW);
  assert_non_null(library);
  fake = dlsym(library, "fake_cublaslt"); /* through libcublas, as Weir finds the functions */
  assert_non_null(fake);
  memory = device_memory(0, 1 << 20);
  fastest = 2;
  reset(-1, 0);
  *fake_blas() = (fake_cublas_state){.fail_at = -1, .live = fake_blas()->live, .ran = take_time_by_default};
  return 0;
}

static int teardown(void **state) {
  assert_ok(weir_blas_clear_workspaces());
  weir_tunable_set_enabled(0);
  if (fake) {
    assert_int_equal(fake->live, 0);
    assert_int_equal(fake->misuses, 0);
    fake_blas()->ran = NULL;
    free_device_memory(0, memory);
  }
  int result = runtime_teardown(state);
  unlink(path);
  assert_int_equal(rmdir(folder), 0);
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = teardown)

/* ---- Products ---- */

/* 1, 2, 3, ... in memory of the device. */
static weir_array numbers(int ndim, const int64_t *shape) {
  weir_array array = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, ndim, shape, stream, &array));
  assert_ok(weir_stream_synchronize(stream));
  for (int64_t i = 0; i < weir_array_count(&array); i++)
    ((float *)array.data)[i] = (float)(i + 1);
  return array;
}

static const struct {
  const char *op, *params;
  int ndim;
  int64_t a[3], b[3];
  size_t count;
  float expected[16];
} products[] = {
    {"GemmTunableOp_float_NN", "nn_2_2_3_ld_2_3_2", 2, {2, 3}, {3, 2}, 4, {22, 28, 49, 64}},
    {"GemmStridedBatchedTunableOp_float_NN",
     "nn_4_2_3_B_2_ld_4_3_4",
     3,
     {2, 2, 3},
     {2, 3, 4},
     16,
     {38, 44, 50, 56, 83, 98, 113, 128, 416, 440, 464, 488, 569, 602, 635, 668}},
};

static weir_status multiply(int which) {
  weir_array a = numbers(products[which].ndim, products[which].a);
  weir_array b = numbers(products[which].ndim, products[which].b), product = {0};
  weir_status status = weir_array_matmul(&a, &b, stream, &product);
  if (status)
    assert_null(product.storage);
  else
    assert_memory_equal(product.data, products[which].expected, products[which].count * sizeof(float));
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&product);
  return status;
}

/* Makes an implementation the one to use, by a file. */
static void force(int which, const char *solution) {
  assert_ok(weir_tunable_forget(0));
  unlink(path);
  assert_ok(weir_tunable_write_file(0, NULL)); /* validators */
  FILE *file = fopen(path, "a");
  assert_non_null(file);
  fprintf(file, "%s,%s,%s,1\n", products[which].op, products[which].params, solution);
  assert_int_equal(fclose(file), 0);
  assert_ok(weir_tunable_forget(0));
}

static bool find_solution(int which, char solution[128]) {
  weir_tunable_result *results;
  size_t count;
  bool found = false;
  assert_ok(weir_tunable_list_results(0, &results, &count));
  for (size_t i = 0; i < count; i++)
    if (!strcmp(results[i].op, products[which].op) && !strcmp(results[i].params, products[which].params)) {
      found = true;
      snprintf(solution, 128, "%s", results[i].solution);
    }
  weir_tunable_free(results);
  return found;
}

static void assert_solution(int which, const char *expected) {
  char solution[128];
  assert_true(find_solution(which, solution));
  assert_string_equal(solution, expected);
}

static int64_t allocated_bytes(void) {
  weir_allocator *allocator;
  weir_allocator_stats stats = {.size = sizeof stats};
  assert_ok(weir_default_allocator(&allocator));
  assert_ok(weir_allocator_get_stats(allocator, 0, &stats));
  return stats.allocated_bytes[WEIR_STAT_ALL].current;
}

/* Workspaces and results are gone, and the next product asks the heuristics again. */
static void start_again(void) {
  free_device_memory(0, memory);
  assert_ok(weir_blas_clear_workspaces());
  shut_down_clean();
  unlink(path);
  memory = device_memory(0, 1 << 20);
  stream = new_stream(0);
  assert_ok(weir_tunable_forget(0));
}

static void assert_nothing_left(void) {
  assert_int_equal(fake->live, 0);
  assert_int_equal(fake->misuses, 0);
  assert_ok(weir_blas_clear_workspaces());
  assert_int_equal(allocated_bytes(), 0);
}

/* ---- A library that is missing, or lacks functions ---- */

/* One product by cuBLASLt, without the tuner around it. */
static weir_status multiply_by_lt(void) {
  float a = 2, b = 3, c = 0;
  weir__gemm gemm = {WEIR_FLOAT32, false, false, 1, 1, 1, 1, &a, &b, &c, 1, 1, 1, 1, 1, 1, {4, 4, 4}};
  return weir__blas_lt_gemm(__func__, stream, &gemm, 0);
}

TEST_SETUP(no_library, setup_without_library, teardown) {
  assert_status(WEIR_ERROR_NOT_SUPPORTED, multiply(0));
  assert_non_null(
      strstr(weir_last_error(), "/nowhere/libcublas.so, which WEIR_CUBLAS_LIBRARY names, cannot be loaded"));
  assert_error_says(NOT_SUPPORTED, "/nowhere/libcublas.so, which WEIR_CUBLAS_LIBRARY names, cannot be loaded",
                    multiply_by_lt());
  assert_int_equal(messages_with(WEIR_LOG_WARN, "could not be tuned"), 1);
  assert_int_equal(allocated_bytes(), 0);
}

/* All algorithms of cuBLASLt are left out, and a file that names one means Default. */
static void use_without_lt(const char *missing) {
  char text[128];
  snprintf(text, sizeof text, "the cuBLAS that was found has no %s", missing);
  for (int which = 0; which < 2; which++) {
    assert_ok(multiply(which));
    assert_solution(which, "Default");
    force(which, "Gemm_CublasLt_1");
    assert_ok(multiply(which));
  }
  assert_error_says(NOT_SUPPORTED, text, multiply_by_lt());
  assert_int_equal(messages_with(WEIR_LOG_WARN, "") + messages_with(WEIR_LOG_ERROR, ""), 0);
  assert_ok(weir_blas_clear_workspaces());
  assert_int_equal(allocated_bytes(), 0);
}

TEST_SETUP(no_lt, setup_without_lt, teardown) { use_without_lt("cublasLtMatmulDescCreate"); }

TEST_SETUP(missing_function, setup_old, teardown) { use_without_lt("cublasLtMatmul"); }

/* ---- Results ---- */

TEST(results) {
  for (int which = 0; which < 2; which++) {
    assert_ok(multiply(which));
    if (is_stepped()) /* otherwise durations vary */
      assert_solution(which, "Gemm_CublasLt_2");
    for (int rank = 0; rank < 8; rank++) {
      char solution[32];
      snprintf(solution, sizeof solution, "Gemm_CublasLt_%d", rank);
      force(which, solution);
      int before = fake->products;
      assert_ok(multiply(which));
      assert_int_equal(fake->products, before + 1);
    }
  }
  assert_nothing_left();
}

/* Fewer algorithms than there are candidates, and one that cannot be used. */
TEST(few_algorithms) {
  fake->proposed = 3;
  fake->refused = fastest;
  assert_ok(multiply(0));
  if (is_stepped())
    assert_solution(0, "Default");
  int before = fake->products;
  force(0, "Gemm_CublasLt_2");
  assert_ok(multiply(0));
  force(0, "Gemm_CublasLt_3");
  assert_ok(multiply(0));
  assert_int_equal(fake->products, before); /* both were products of Default */
  fake->proposed = 0;
  assert_ok(multiply(1));
  assert_solution(1, "Default");
  assert_nothing_left();
}

/* The algorithms are asked for once, and again after a restart, when a number may mean another device. */
TEST(heuristics_are_cached) {
  force(0, "Gemm_CublasLt_0");
  assert_ok(multiply(0));
  assert_ok(multiply(0));
  assert_int_equal(fake->heuristics, 1);
  start_again();
  force(0, "Gemm_CublasLt_0");
  assert_ok(multiply(0));
  assert_int_equal(fake->heuristics, 2);
  assert_nothing_left();
}

/* ---- Every call fails once ---- */

static const char *const calls[] = {"cublasLtMatmulDescCreate",
                                    "cublasLtMatmulDescDestroy",
                                    "cublasLtMatmulDescSetAttribute",
                                    "cublasLtMatrixLayoutCreate",
                                    "cublasLtMatrixLayoutDestroy",
                                    "cublasLtMatrixLayoutSetAttribute",
                                    "cublasLtMatmulPreferenceCreate",
                                    "cublasLtMatmulPreferenceDestroy",
                                    "cublasLtMatmulPreferenceSetAttribute",
                                    "cublasLtMatmulAlgoGetHeuristic",
                                    "cublasLtMatmul"};
enum { CALLS = sizeof calls / sizeof *calls };

static void see_failed(bool seen[CALLS]) {
  for (int i = 0; i < CALLS; i++)
    seen[i] |= !strcmp(fake->failed, calls[i]);
}

static void assert_all_seen(const bool seen[CALLS]) {
  for (int i = 0; i < CALLS; i++)
    if (!seen[i])
      fail_msg("%s did not fail", calls[i]);
}

/* In a product that a file lets cuBLASLt do: the error names the call, or Default does the product if the library does
 * not support it. What cannot be destroyed is a message, since the product is under way. */
TEST(failing_calls) {
  static const struct {
    int result;
    weir_status status;
    const char *text;
  } failures[] = {{EXECUTION_FAILED, WEIR_ERROR_DRIVER, "CUBLAS_STATUS_EXECUTION_FAILED (13) when calling `cublasLt"},
                  {ALLOC_FAILED, WEIR_ERROR_OUT_OF_MEMORY, "CUBLAS_STATUS_ALLOC_FAILED (3) when calling `cublasLt"},
                  {NOT_SUPPORTED, WEIR_OK, ""}};
  bool seen[CALLS] = {false};
  int destroyed = 0;
  for (size_t f = 0; f < sizeof failures / sizeof *failures; f++)
    for (int which = 0; which < 2; which++) {
      int n = 0;
      for (bool has_failed = true; has_failed; n++) {
        start_again();
        force(which, "Gemm_CublasLt_1");
        reset(n, failures[f].result);
        clear_last_error();
        weir_status status = multiply(which);
        has_failed = fake->failed[0];
        see_failed(seen);
        if (!has_failed)
          assert_ok(status);
        else if (strstr(fake->failed, "Destroy")) {
          assert_ok(status);
          assert_int_equal(messages_with(WEIR_LOG_ERROR, "could not be destroyed"), ++destroyed);
        } else {
          assert_int_equal(status, failures[f].status);
          if (status)
            assert_non_null(strstr(weir_last_error(), failures[f].text));
          if (status)
            assert_non_null(strstr(weir_last_error(), fake->failed));
        }
        assert_int_equal(fake->live, 0);
        fake->fail_at = -1;
        assert_ok(multiply(which));
        assert_nothing_left();
      }
      assert_in_range(n, 19, 40);
    }
  assert_all_seen(seen);
}

/* During the search: the algorithm is left out, and the product is right. A failure after the search is an error. */
TEST(failing_calls_in_search) {
  bool seen[CALLS] = {false};
  int n = 0, errors = 0;
  /* Each call of the first algorithm, then samples: how many there are depends on durations. */
  for (bool has_failed = true; has_failed; n += n < 40 ? 1 : usual_or_long(13, 1)) {
    start_again();
    reset(n, n % 2 ? EXECUTION_FAILED : NOT_SUPPORTED);
    weir_status status = multiply(0);
    if (status) {
      char solution[128];
      assert_int_equal(status, WEIR_ERROR_DRIVER);
      assert_non_null(strstr(weir_last_error(), fake->failed));
      assert_true(find_solution(0, solution));
      errors++;
    }
    has_failed = fake->failed[0];
    see_failed(seen);
    assert_int_equal(fake->live, 0);
    fake->fail_at = -1;
    assert_ok(multiply(0));
    assert_nothing_left();
  }
  assert_in_range(n, 300, 5000);
  assert_in_range(errors, 0, 16); /* the calls of one product */
  seen[5] = true;                 /* cublasLtMatrixLayoutSetAttribute is for batches */
  assert_all_seen(seen);
}

/* The fastest one fails from the beginning: the next best is chosen. */
TEST(fastest_fails) {
  NEED_STEPPED();
  fastest = 0;
  fake->fail_at = 0;
  fake->fail_with = ALLOC_FAILED;
  assert_ok(multiply(0));
  assert_solution(0, "Default");
  assert_nothing_left();
}

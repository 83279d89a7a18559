/*
 * Matrix products as a tunable operation: PyTorch's names and parameters, and the same result by each implementation.
 */
#include <stdlib.h>
#include <unistd.h>

#include "support/length.h"
#include "support/runtime.h"
#include "tests/numbers.h"
#include "weir/compute/array.h"
#include "weir/compute/blas.h"
#include "weir/compute/kernel.h"
#include "weir/compute/tunable.h"
#include "weir/graph.h"

static weir_stream stream;
static char folder[64], path[128];
static uint64_t seed;

static void use_settings(void) {
  weir_tunable_set_enabled(1);
  weir_tunable_set_tuning(1);
  weir_tunable_set_max_iterations(3);
  weir_tunable_set_rotating_buffer_size(1);
  assert_ok(weir_tunable_set_numerical_check(0, 1e-5, 1e-5));
  assert_ok(weir_tunable_set_filename(path, 0));
}

static int setup(void **state) {
  int result = runtime_setup(state);
  strcpy(folder, "/tmp/weir-tunable-XXXXXX");
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/results.csv", folder);
  use_settings();
  stream = new_stream(0);
  seed = 3;
  return result;
}

static int teardown(void **state) {
  assert_ok(weir_blas_clear_workspaces());
  weir_tunable_set_enabled(0);
  weir_blas_set_allow_tf32(0);
  int result = runtime_teardown(state);
  unlink(path);
  assert_int_equal(rmdir(folder), 0);
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = teardown)

#define NEED_CUBLAS()                                                                                                  \
  do {                                                                                                                 \
    char file[1024];                                                                                                   \
    const char *how;                                                                                                   \
    if (!is_soft() && weir_library_find("cublas", file, sizeof file, NULL, &how))                                      \
      WAIVE_TEST("needs cuBLAS");                                                                                      \
  } while (0)

/* A matrix of small integers on the device, stored by rows or by columns. */
static weir_array matrix(weir_dtype dtype, int64_t batch, int64_t rows, int64_t columns, bool by_columns) {
  weir_array host = {0}, device = {0};
  int64_t shape[] = {batch, by_columns ? columns : rows, by_columns ? rows : columns};
  int first = batch > 1 ? 0 : 1;
  assert_ok(weir_array_empty(weir_place_host(), dtype, 3 - first, shape + first, stream, &host));
  for (int64_t i = 0; i < weir_array_count(&host); i++)
    write_element(dtype, (char *)host.data + i * (int64_t)weir_dtype_size(dtype),
                  small_number(dtype, next_random(&seed)));
  assert_ok(weir_array_to(&host, weir_place_device(0), dtype, stream, 0, &device));
  if (by_columns)
    assert_ok(weir_array_transpose(&device, -1, -2, &device));
  weir_array_release(&host);
  return device;
}

/* The elements on the host. */
static weir_array on_host(const weir_array *array) {
  weir_array host = {0};
  assert_ok(weir_array_to(array, weir_place_host(), array->dtype, stream, 0, &host));
  return host;
}

static void assert_near(const weir_array *a, const weir_array *b, bool exactly) {
  weir_array first = on_host(a), second = on_host(b);
  int64_t size = (int64_t)weir_dtype_size(first.dtype);
  assert_int_equal(weir_array_count(&first), weir_array_count(&second));
  for (int64_t i = 0; i < weir_array_count(&first); i++) {
    number x = read_element(first.dtype, (char *)first.data + i * size);
    number y = read_element(first.dtype, (char *)second.data + i * size);
    double allowed = exactly ? 0 : 4000 * epsilon_of(first.dtype);
    if (hypot(x.real - y.real, x.imag - y.imag) > allowed)
      fail_msg("element %d is %g%+gi in place of %g%+gi", (int)i, x.real, x.imag, y.real, y.imag);
  }
  weir_array_release(&first);
  weir_array_release(&second);
}

static weir_array product(const weir_array *a, const weir_array *b) {
  weir_array out = {0};
  assert_ok(weir_array_matmul(a, b, stream, &out));
  return out;
}

static bool has_result(const char *op, const char *params, char solution[128]) {
  weir_tunable_result *results;
  size_t count;
  bool found = false;
  assert_ok(weir_tunable_list_results(0, &results, &count));
  for (size_t i = 0; i < count; i++)
    if (!strcmp(results[i].op, op) && !strcmp(results[i].params, params)) {
      found = true;
      snprintf(solution, 128, "%s", results[i].solution);
    }
  weir_tunable_free(results);
  return found;
}

static void assert_tuned(const weir_array *a, const weir_array *b, const char *op, const char *params) {
  char solution[128];
  weir_tunable_set_enabled(0);
  weir_array expected = product(a, b);
  weir_tunable_set_enabled(1);
  for (int round = 0; round < 2; round++) {
    weir_array found = product(a, b);
    assert_near(&found, &expected, is_soft());
    weir_array_release(&found);
    if (!has_result(op, params, solution))
      fail_msg("%s,%s is not among the results", op, params);
  }
  weir_array_release(&expected);
}

/* The keys are those of PyTorch for the same product. */
TEST(names_and_parameters) {
  NEED_CUBLAS();
  static const struct {
    weir_dtype dtype;
    int64_t batch;
    bool a_by_columns, b_by_columns;
    const char *op, *params;
  } cases[] = {
      {WEIR_FLOAT32, 1, false, false, "GemmTunableOp_float_NN", "nn_24_40_32_ld_24_32_24"},
      {WEIR_FLOAT32, 1, true, false, "GemmTunableOp_float_NT", "nt_24_40_32_ld_24_40_24"},
      {WEIR_FLOAT32, 1, false, true, "GemmTunableOp_float_TN", "tn_24_40_32_ld_32_32_24"},
      {WEIR_FLOAT64, 1, true, true, "GemmTunableOp_double_TT", "tt_24_40_32_ld_32_40_24"},
      {WEIR_FLOAT16, 1, false, false, "GemmTunableOp_Half_NN", "nn_24_40_32_ld_24_32_24"},
      {WEIR_BFLOAT16, 1, false, true, "GemmTunableOp_BFloat16_TN", "tn_24_40_32_ld_32_32_24"},
      {WEIR_COMPLEX64, 1, false, false, "GemmTunableOp_c10::complex<float>_NN", "nn_24_40_32_ld_24_32_24"},
      {WEIR_COMPLEX128, 1, false, false, "GemmTunableOp_c10::complex<double>_NN", "nn_24_40_32_ld_24_32_24"},
      {WEIR_FLOAT32, 3, false, false, "GemmStridedBatchedTunableOp_float_NN", "nn_24_40_32_B_3_ld_24_32_24"},
      {WEIR_FLOAT64, 3, true, false, "GemmStridedBatchedTunableOp_double_NT", "nt_24_40_32_B_3_ld_24_40_24"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    weir_array a = matrix(cases[i].dtype, cases[i].batch, 40, 32, cases[i].a_by_columns);
    weir_array b = matrix(cases[i].dtype, cases[i].batch, 32, 24, cases[i].b_by_columns);
    assert_tuned(&a, &b, cases[i].op, cases[i].params);
    weir_array_release(&a);
    weir_array_release(&b);
  }
  weir_blas_set_allow_tf32(1);
  weir_array a = matrix(WEIR_FLOAT32, 1, 40, 32, false), b = matrix(WEIR_FLOAT32, 1, 32, 24, false);
  assert_tuned(&a, &b, "GemmTunableOp_tf32_NN", "nn_24_40_32_ld_24_32_24");
  weir_array_release(&a);
  weir_array_release(&b);
}

/* In stepped time all kernels take equally long, so the default is chosen. */
TEST(default_in_stepped_time) {
  NEED_STEPPED();
  char solution[128];
  weir_array a = matrix(WEIR_FLOAT32, 1, 40, 32, false), b = matrix(WEIR_FLOAT32, 1, 32, 24, false);
  assert_tuned(&a, &b, "GemmTunableOp_float_NN", "nn_24_40_32_ld_24_32_24");
  assert_true(has_result("GemmTunableOp_float_NN", "nn_24_40_32_ld_24_32_24", solution));
  assert_string_equal(solution, "Default");
  weir_array_release(&a);
  weir_array_release(&b);
}

/* Makes an implementation the one to use, by a file. */
static void force(const char *op, const char *params, const char *solution) {
  assert_ok(weir_tunable_forget(0));
  unlink(path);
  assert_ok(weir_tunable_write_file(0, NULL)); /* validators */
  FILE *file = fopen(path, "a");
  assert_non_null(file);
  fprintf(file, "%s,%s,%s,1\n", op, params, solution);
  assert_int_equal(fclose(file), 0);
  assert_ok(weir_tunable_forget(0));
}

TEST(each_implementation) {
  NEED_CUBLAS();
  static const weir_dtype types[] = {WEIR_FLOAT16, WEIR_BFLOAT16,  WEIR_FLOAT32,
                                     WEIR_FLOAT64, WEIR_COMPLEX64, WEIR_COMPLEX128};
  static const char *const names[] = {
      "Half", "BFloat16", "float", "double", "c10::complex<float>", "c10::complex<double>"};
  static const char *const soft_solutions[] = {"Default", "Gemm_Block_1x32", "Gemm_Block_4x8", NULL};
  static const char *const cuda_solutions[] = {"Default",         "Gemm_CublasLt_0", "Gemm_CublasLt_1",
                                               "Gemm_CublasLt_3", "Gemm_CublasLt_7", NULL};
  const char *const *solutions = is_soft() ? soft_solutions : cuda_solutions;
  for (size_t t = 0; t < sizeof types / sizeof *types; t++)
    for (int shape = 0; shape < 4; shape++) {
      int64_t m = shape == 1 ? 1 : 37 + (int64_t)(next_random(&seed) % 9), n = shape == 2 ? 70 : 19, k = 23;
      int64_t batch = shape == 3 ? 2 : 1;
      weir_array a = matrix(types[t], batch, m, k, shape == 2), b = matrix(types[t], batch, k, n, false);
      weir_tunable_set_enabled(0);
      weir_array expected = product(&a, &b);
      weir_tunable_set_enabled(1);
      char op[64], params[96];
      bool by_columns = shape == 2;
      snprintf(op, sizeof op, "%s_%s_N%c", batch > 1 ? "GemmStridedBatchedTunableOp" : "GemmTunableOp", names[t],
               by_columns ? 'T' : 'N');
      snprintf(params, sizeof params, "n%c_%d_%d_%d%s_ld_%d_%d_%d", by_columns ? 't' : 'n', (int)n, (int)m, (int)k,
               batch > 1 ? "_B_2" : "", (int)n, by_columns ? (int)m : (int)k, (int)n);
      weir_tunable_set_tuning(0);
      for (int i = 0; solutions[i]; i++) {
        char used[128];
        force(op, params, solutions[i]);
        weir_array found = product(&a, &b);
        assert_near(&found, &expected, is_soft());
        assert_true(has_result(op, params, used));
        assert_string_equal(used, solutions[i]);
        weir_array_release(&found);
      }
      weir_array_release(&expected);
      weir_array_release(&a);
      weir_array_release(&b);
    }
}

/* Matrices that cuBLAS reads after a copy only, and vectors. */
TEST(other_layouts) {
  NEED_CUBLAS();
  for (int way = 0; way < 4; way++) {
    weir_array a = matrix(WEIR_FLOAT32, 1, 33, 40, false), b = matrix(WEIR_FLOAT32, 1, 20, 24, false);
    if (way == 0)
      assert_ok(weir_array_slice(&a, 1, 0, 40, 2, &a));
    else
      assert_ok(weir_array_slice(&a, 1, 0, 20, 1, &a));
    if (way == 1)
      assert_ok(weir_array_select(&b, 1, 3, &b));
    if (way == 2)
      assert_ok(weir_array_select(&a, 0, 3, &a));
    if (way == 3) {
      assert_ok(weir_array_unsqueeze(&b, 0, &b));
      assert_ok(weir_array_expand(&b, 3, (int64_t[]){5, 20, 24}, &b));
      assert_ok(weir_array_unsqueeze(&a, 0, &a));
    }
    weir_tunable_set_enabled(0);
    weir_array expected = product(&a, &b);
    weir_tunable_set_enabled(1);
    assert_ok(weir_tunable_set_numerical_check(1, 1e-3, 1e-3));
    weir_array found = product(&a, &b);
    assert_near(&found, &expected, is_soft());
    weir_array_release(&found);
    weir_array_release(&expected);
    weir_array_release(&a);
    weir_array_release(&b);
  }
}

/* A product that is captured first is not tuned, and the capture stays valid. */
TEST(capture) {
  NEED_CUBLAS();
  weir_graph *graph;
  weir_array a = matrix(WEIR_FLOAT32, 1, 40, 32, false), b = matrix(WEIR_FLOAT32, 1, 32, 24, false), out = {0};
  weir_tunable_set_enabled(0);
  weir_array expected = product(&a, &b);
  weir_tunable_set_enabled(1);
  assert_ok(weir_array_empty_like(&expected, stream, &out));
  assert_ok(weir_array_fill(&out, weir_scalar_int(0), stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_array_matmul(&a, &b, stream, &out));
  assert_ok(weir_graph_end_capture(graph));
  weir_tunable_result *results;
  size_t count;
  assert_ok(weir_tunable_list_results(0, &results, &count));
  assert_int_equal(count, 0);
  weir_tunable_free(results);
  assert_ok(weir_graph_replay(graph));
  assert_near(&out, &expected, is_soft());
  /* While another stream is captured, a product on this one is tuned. */
  weir_stream other = new_stream(0);
  assert_ok(weir_graph_reset(graph));
  assert_ok(weir_stream_set_current(other));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_THREAD_LOCAL));
  assert_ok(weir_array_fill(&out, weir_scalar_int(0), other));
  assert_ok(weir_array_matmul(&a, &b, stream, &out));
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_tunable_list_results(0, &results, &count));
  assert_int_equal(count, 1);
  weir_tunable_free(results);
  assert_near(&out, &expected, is_soft());
  weir_graph_destroy(graph);
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&out);
  weir_array_release(&expected);
}

/* ---- Every driver call fails once ---- */

static weir_status multiply(void) {
  weir_stream own;
  weir_array a = {0}, b = {0}, out = {0};
  weir_scalar item;
  weir_status status = weir_stream_create(0, 0, &own);
  if (!status)
    status = weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){200, 300}, own, &a);
  if (!status)
    status = weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){300, 1}, own, &b);
  if (!status)
    status = weir_array_fill(&a, weir_scalar_int(1), own);
  if (!status)
    status = weir_array_fill(&b, weir_scalar_int(2), own);
  if (!status)
    status = weir_array_matmul(&a, &b, own, &out);
  if (!status)
    status = weir_array_select(&out, 0, 199, &out);
  if (!status)
    status = weir_array_item(&out, own, &item);
  if (!status)
    assert_true(item.real == 600);
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&out);
  weir_blas_clear_workspaces();
  return status;
}

TEST(failing_driver_calls) {
  NEED_STEPPED();
  assert_int_equal(runtime_teardown(state), 0);
  bool has_failed = true;
  unsigned long n;
  for (n = 1; has_failed; n += (unsigned long)usual_or_long(3, 1)) {
    assert_int_equal(runtime_setup_fault(state), 0);
    assert_ok(weir_tunable_set_numerical_check(1, 1e-5, 1e-5));
    collect_messages();
    unlink(path);
    has_failed = fails_at(n, multiply);
    assert_ok(multiply());
    assert_int_equal(runtime_teardown(state), 0);
  }
  assert_in_range(n, 50, 100000);
  assert_int_equal(runtime_setup(state), 0);
}

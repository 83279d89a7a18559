/*
 * Matrix products against three nested loops, and the settings, handles and workspaces of cuBLAS.
 */
#include <pthread.h>
#include <stdlib.h>

#include "support/length.h"
#include "support/runtime.h"
#include "tests/numbers.h"
#include "weir/compute/blas.h"
#include "weir/compute/kernel.h"

static weir_stream stream;
static uint64_t seed;

static int setup(void **state) {
  int result = runtime_setup(state);
  stream = new_stream(0);
  seed = 11;
  return result;
}

static int teardown(void **state) {
  assert_ok(weir_blas_clear_workspaces()); /* they are memory of the process default allocator */
  return runtime_teardown(state);
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = teardown)

static int chance(int below) { return (int)(next_random(&seed) % (unsigned)below); }

/* ---- Products ---- */

static weir_array random_host(weir_dtype dtype, int ndim, const int64_t *shape) {
  weir_array a = {0};
  assert_ok(weir_array_empty(weir_place_host(), dtype, ndim, shape, stream, &a));
  for (int64_t i = 0; i < weir_array_count(&a); i++)
    write_element(dtype, (char *)a.data + i * (int64_t)weir_dtype_size(dtype), small_number(dtype, next_random(&seed)));
  return a;
}

/* The product of matrices in row-major order, in `result`. */
static void model_product(const weir_array *a, const weir_array *b, int64_t m, int64_t k, int64_t n, int64_t a_first,
                          int64_t b_first, number *result) {
  int64_t size = (int64_t)weir_dtype_size(a->dtype);
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      number sum = {0};
      for (int64_t l = 0; l < k; l++) {
        number x = read_element(a->dtype, (char *)a->data + (a_first + i * k + l) * size);
        number y = read_element(b->dtype, (char *)b->data + (b_first + l * n + j) * size);
        sum.integer += x.integer * y.integer;
        sum.real += x.real * y.real - x.imag * y.imag;
        sum.imag += x.real * y.imag + x.imag * y.real;
      }
      result[i * n + j] = rounded_to(a->dtype, sum, is_whole(a->dtype) ? WEIR_INT64 : WEIR_COMPLEX128);
    }
}

static void check_product(weir_array *out, weir_dtype dtype, const number *expected, int64_t k) {
  weir_array host = {0};
  assert_ok(weir_array_to(out, weir_place_host(), dtype, stream, 0, &host));
  for (int64_t i = 0; i < weir_array_count(&host); i++) {
    number found = read_element(dtype, (char *)host.data + i * (int64_t)weir_dtype_size(dtype));
    /* Sums may cancel, so that the error is relative to the summands. */
    double allowed = (double)(k + 4) * 36 * epsilon_of(dtype);
    if (is_whole(dtype) ? found.integer != expected[i].integer
                        : hypot(found.real - expected[i].real, found.imag - expected[i].imag) > allowed)
      fail_msg("%s, element %d: %g%+gi in place of %g%+gi", weir_dtype_name(dtype), (int)i, found.real, found.imag,
               expected[i].real, expected[i].imag);
  }
  weir_array_release(&host);
}

/* A copy where the product runs; one of several ways to store a matrix. */
static weir_array stored(const weir_array *host, weir_place place) {
  weir_array a = {0};
  int way = host->ndim < 2 ? 0 : chance(4);
  if (way == 0)
    assert_ok(weir_array_to(host, place, host->dtype, stream, 0, &a));
  else if (way == 1) { /* by columns */
    weir_array turned = {0};
    assert_ok(weir_array_transpose(host, -1, -2, &turned));
    assert_ok(weir_array_to(&turned, place, host->dtype, stream, 0, &a));
    assert_ok(weir_array_transpose(&a, -1, -2, &a));
    weir_array_release(&turned);
  } else { /* a part of a larger matrix, with all or every second of its columns */
    int64_t shape[WEIR_ARRAY_MAX_DIMS];
    memcpy(shape, host->shape, sizeof shape);
    shape[host->ndim - 1] = shape[host->ndim - 1] * (way - 1) + 3;
    assert_ok(weir_array_empty(place, host->dtype, host->ndim, shape, stream, &a));
    assert_ok(weir_array_slice(&a, -1, 0, host->shape[host->ndim - 1] * (way - 1), way - 1, &a));
    assert_ok(weir_array_copy(&a, host, stream, 0));
  }
  return a;
}

static void check_matmul(weir_dtype dtype, weir_place place, int64_t batch, int64_t m, int64_t k, int64_t n) {
  bool a_has_batch = batch && chance(3), b_has_batch = batch && (!a_has_batch || chance(2));
  weir_array host_a =
      random_host(dtype, a_has_batch ? 3 : 2, a_has_batch ? (int64_t[]){batch, m, k} : (int64_t[]){m, k});
  weir_array host_b =
      random_host(dtype, b_has_batch ? 3 : 2, b_has_batch ? (int64_t[]){batch, k, n} : (int64_t[]){k, n});
  weir_array a = stored(&host_a, place), b = stored(&host_b, place), out = {0};
  bool has_batch = a_has_batch || b_has_batch;
  int64_t count = has_batch ? batch : 1;
  number *expected = calloc((size_t)(count * m * n) + 1, sizeof *expected);
  for (int64_t i = 0; i < count; i++)
    model_product(&host_a, &host_b, m, k, n, a_has_batch ? i * m * k : 0, b_has_batch ? i * k * n : 0,
                  expected + i * m * n);
  if (chance(2)) { /* into a part of another array */
    int64_t shape[] = {count, m, 2 * n};
    assert_ok(weir_array_empty(place, dtype, 3, shape, stream, &out));
    assert_ok(weir_array_slice(&out, 2, 0, 2 * n, 2, &out));
    if (!has_batch)
      assert_ok(weir_array_select(&out, 0, 0, &out));
  }
  assert_ok(weir_array_matmul(&a, &b, stream, &out));
  assert_int_equal(out.ndim, has_batch ? 3 : 2);
  check_product(&out, dtype, expected, k);
  free(expected);
  weir_array_release(&host_a);
  weir_array_release(&host_b);
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&out);
}

static bool needs_cublas(void) {
  char path[1024];
  const char *how;
  return !is_soft() && weir_library_find("cublas", path, sizeof path, NULL, &how);
}

TEST(matmul) {
  if (needs_cublas())
    WAIVE_TEST("needs cuBLAS");
  for (int t = 0; t < DTYPES; t++)
    for (int round = 0; round < usual_or_long(40, 500); round++) {
      weir_dtype dtype = all_dtypes[t];
      weir_place place = is_whole(dtype) || chance(5) == 0 ? weir_place_host() : weir_place_device(0);
      if (dtype == WEIR_BOOL)
        continue;
      check_matmul(dtype, place, chance(3) ? 0 : 1 + chance(4), 1 + chance(20), 1 + chance(20), 1 + chance(20));
    }
  check_matmul(WEIR_FLOAT32, weir_place_device(0), 0, 70, 130, 65);
}

/* Products of some size are computed in tiles, from slabs of rows. */
TEST(large_matmul) {
  if (needs_cublas())
    WAIVE_TEST("needs cuBLAS");
  for (int t = 0; t < DTYPES; t++)
    for (int round = 0; round < usual_or_long(3, 40) && weir_dtype_is_float(all_dtypes[t]); round++) {
      weir_place place = chance(5) == 0 ? weir_place_host() : weir_place_device(0);
      check_matmul(all_dtypes[t], place, chance(3) ? 0 : 1 + chance(3), 4 + chance(400), chance(60), 16 + chance(80));
    }
}

/* An element is the sum of the products in their order, to the last bit, whatever the layout and the processor. */
TEST(order_of_sums) {
  enum { M = 200, K = 300, N = 70 };
  if (!is_soft())
    WAIVE_TEST("cuBLAS has an order of its own");
  weir_array host_a = random_host(WEIR_FLOAT32, 2, (int64_t[]){M, K});
  weir_array host_b = random_host(WEIR_FLOAT32, 2, (int64_t[]){K, N});
  for (int i = 0; i < M * K; i++)
    ((float *)host_a.data)[i] /= 7;
  for (int way = 0; way < 8; way++) {
    weir_array a = stored(&host_a, weir_place_device(0)), b = stored(&host_b, weir_place_device(0)), out = {0},
               host = {0};
    assert_ok(weir_array_matmul(&a, &b, stream, &out));
    assert_ok(weir_array_to(&out, weir_place_host(), WEIR_FLOAT32, stream, 0, &host));
    for (int i = 0; i < M; i++)
      for (int j = 0; j < N; j++) {
        float sum = 0;
        for (int k = 0; k < K; k++)
          sum += ((float *)host_a.data)[i * K + k] * ((float *)host_b.data)[k * N + j];
        if (sum != ((float *)host.data)[i * N + j])
          fail_msg("element (%d, %d) is %a, expected %a", i, j, (double)((float *)host.data)[i * N + j], (double)sum);
      }
    weir_array *all[] = {&a, &b, &out, &host};
    for (size_t i = 0; i < 4; i++)
      weir_array_release(all[i]);
  }
  weir_array_release(&host_a);
  weir_array_release(&host_b);
}

TEST(vectors) {
  if (needs_cublas())
    WAIVE_TEST("needs cuBLAS");
  for (int a_ndim = 1; a_ndim <= 2; a_ndim++)
    for (int b_ndim = 1; b_ndim <= 2; b_ndim++) {
      int64_t m = a_ndim == 1 ? 1 : 4, k = 7, n = b_ndim == 1 ? 1 : 5;
      const int64_t vector[] = {k}, left[] = {m, k}, right[] = {k, n};
      weir_array host_a = random_host(WEIR_FLOAT32, a_ndim, a_ndim == 1 ? vector : left);
      weir_array host_b = random_host(WEIR_FLOAT32, b_ndim, b_ndim == 1 ? vector : right);
      weir_array a = stored(&host_a, weir_place_device(0)), b = stored(&host_b, weir_place_device(0)), out = {0};
      number expected[20];
      model_product(&host_a, &host_b, m, k, n, 0, 0, expected);
      assert_ok(weir_array_matmul(&a, &b, stream, &out));
      assert_int_equal(out.ndim, a_ndim + b_ndim - 2);
      check_product(&out, WEIR_FLOAT32, expected, k);
      weir_array_release(&host_a);
      weir_array_release(&host_b);
      weir_array_release(&a);
      weir_array_release(&b);
      weir_array_release(&out);
    }
  /* Nothing to sum, and no elements. */
  weir_array a = {0}, b = {0}, out = {0};
  weir_scalar item;
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, (int64_t[]){0}, stream, &a));
  assert_ok(weir_array_matmul(&a, &a, stream, &out));
  assert_ok(weir_array_item(&out, stream, &item));
  assert_true(item.real == 0);
  weir_array_release(&out);
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){0, 3}, stream, &b));
  assert_ok(weir_array_matmul(&a, &b, stream, &out));
  assert_int_equal(out.shape[0], 3);
  weir_array_release(&out);
  weir_array_release(&a);
  weir_array_release(&b);
}

TEST(matmul_errors) {
  weir_array a = {0}, b = {0}, c = {0}, v = {0}, n = {0}, i = {0}, out = {0};
  weir_place place = weir_place_device(0);
  assert_ok(weir_array_empty(place, WEIR_FLOAT32, 2, (int64_t[]){2, 3}, stream, &a));
  assert_ok(weir_array_empty(place, WEIR_FLOAT32, 2, (int64_t[]){4, 5}, stream, &b));
  assert_ok(weir_array_empty(place, WEIR_FLOAT64, 2, (int64_t[]){3, 5}, stream, &c));
  assert_ok(weir_array_empty(place, WEIR_FLOAT32, 1, (int64_t[]){4}, stream, &v));
  assert_ok(weir_array_empty(place, WEIR_FLOAT32, 0, NULL, stream, &n));
  assert_ok(weir_array_empty(place, WEIR_INT64, 2, (int64_t[]){3, 3}, stream, &i));
  assert_error_says(INVALID_ARGUMENT, "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
                    weir_array_matmul(&a, &b, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "expected m1 and m2 to have the same dtype, but got: Float != Double",
                    weir_array_matmul(&a, &c, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "size mismatch, got input (2), mat (2x3), vec (4)",
                    weir_array_matmul(&a, &v, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "both arguments to matmul need to be at least 1D, but they are 0D and 2D",
                    weir_array_matmul(&n, &a, stream, &out));
  assert_error_says(NOT_SUPPORTED, "\"addmm_cuda\" not implemented for 'Long'",
                    weir_array_matmul(&i, &i, stream, &out));
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&c);
  weir_array_release(&v);
  weir_array_release(&n);
  weir_array_release(&i);
}

/* A product in a graph. Its workspace is there before the capture. */
TEST(captured_matmul) {
  if (needs_cublas())
    WAIVE_TEST("needs cuBLAS");
  weir_array a = {0}, out = {0};
  weir_graph *graph;
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 2, (int64_t[]){32, 32}, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_int(1), stream));
  assert_ok(weir_array_matmul(&a, &a, stream, &out));
  assert_ok(weir_stream_set_current(stream));
  assert_ok(weir_graph_create(&graph));
  assert_ok(weir_graph_begin_capture(graph, (weir_pool_id){0, 0}, WEIR_CAPTURE_GLOBAL));
  assert_ok(weir_array_matmul(&a, &a, stream, &out));
  assert_ok(weir_graph_end_capture(graph));
  assert_ok(weir_array_fill(&a, weir_scalar_int(2), stream));
  assert_ok(weir_graph_replay(graph));
  weir_array host = {0};
  assert_ok(weir_array_to(&out, weir_place_host(), WEIR_FLOAT32, stream, 0, &host));
  assert_true(((float *)host.data)[1023] == 128);
  weir_graph_destroy(graph);
  weir_array_release(&host);
  weir_array_release(&a);
  weir_array_release(&out);
}

/* ---- cuBLAS ---- */

TEST(settings) {
  assert_int_equal(weir_blas_get_allow_tf32(), 0);
  assert_int_equal(weir_blas_get_float32_precision(), WEIR_MATMUL_HIGHEST);
  weir_blas_set_allow_tf32(1);
  assert_int_equal(weir_blas_get_float32_precision(), WEIR_MATMUL_HIGH);
  assert_ok(weir_blas_set_float32_precision(WEIR_MATMUL_HIGHEST));
  assert_int_equal(weir_blas_get_allow_tf32(), 0);
  assert_ok(weir_blas_set_float32_precision(WEIR_MATMUL_MEDIUM));
  assert_int_equal(weir_blas_get_allow_tf32(), 1);
  weir_blas_set_allow_tf32(0);
  assert_error(INVALID_ARGUMENT, weir_blas_set_float32_precision((weir_matmul_precision)7));
  weir_matmul_precision precision;
  assert_ok(weir_matmul_precision_parse("medium", &precision));
  assert_string_equal(weir_matmul_precision_name(precision), "medium");
  assert_error(INVALID_ARGUMENT, weir_matmul_precision_parse("low", &precision));
  assert_int_equal(weir_blas_get_fp16_reduced_precision(), WEIR_REDUCED_PRECISION_ALLOW);
  assert_ok(weir_blas_set_fp16_reduced_precision(WEIR_REDUCED_PRECISION_DISALLOW));
  assert_ok(weir_blas_set_bf16_reduced_precision(WEIR_REDUCED_PRECISION_DISALLOW_SPLIT));
  assert_int_equal(weir_blas_get_fp16_reduced_precision(), WEIR_REDUCED_PRECISION_DISALLOW);
  assert_int_equal(weir_blas_get_bf16_reduced_precision(), WEIR_REDUCED_PRECISION_DISALLOW_SPLIT);
  assert_error(INVALID_ARGUMENT, weir_blas_set_bf16_reduced_precision((weir_reduced_precision)2));
  assert_ok(weir_blas_set_fp16_reduced_precision(WEIR_REDUCED_PRECISION_ALLOW));
  assert_ok(weir_blas_set_bf16_reduced_precision(WEIR_REDUCED_PRECISION_ALLOW));
  weir_blas_set_allow_fp16_accumulation(5);
  assert_int_equal(weir_blas_get_allow_fp16_accumulation(), 1);
  weir_blas_set_allow_fp16_accumulation(0);

  assert_ok(weir_blas_check_deterministic());
  assert_ok(weir_blas_set_deterministic(WEIR_DETERMINISTIC_ERROR));
  assert_error_says(BAD_STATE, "CUBLAS_WORKSPACE_CONFIG=:4096:8", weir_blas_check_deterministic());
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", 1);
  assert_ok(weir_blas_check_deterministic());
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  collect_messages();
  assert_ok(weir_blas_set_deterministic(WEIR_DETERMINISTIC_WARN));
  assert_ok(weir_blas_check_deterministic());
  assert_int_equal(messages_with(WEIR_LOG_WARN, "not deterministic"), 1);
  assert_ok(weir_blas_set_deterministic(WEIR_DETERMINISTIC_OFF));
}

static int64_t allocated(void) {
  weir_allocator_stats stats;
  weir_allocator_stats_init(&stats);
  assert_ok(weir_memory_get_stats(0, &stats));
  return stats.allocated_bytes[0].current;
}

static void *take_handle(void *result) {
  if (weir_blas_handle(stream, result))
    *(void **)result = NULL;
  return NULL;
}

TEST(handles) {
  if (needs_cublas())
    WAIVE_TEST("needs cuBLAS");
  uint64_t bytes;
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8", 1);
  assert_ok(weir_blas_workspace_bytes(0, &bytes));
  assert_int_equal(bytes, 8192 * 1024 + 128 * 1024);
  setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0", 1);
  assert_ok(weir_blas_workspace_bytes(0, &bytes));
  assert_int_equal(bytes, 0);
  setenv("CUBLAS_WORKSPACE_CONFIG", ":512:2", 1);
  int64_t before = allocated();
  void *first = NULL, *again = NULL, *other_stream = NULL, *other_thread = NULL, *next_thread = NULL;
  assert_ok(weir_blas_handle(stream, &first));
  assert_non_null(first);
  assert_int_equal(allocated() - before, 1 << 20);
  assert_ok(weir_blas_handle(stream, &again));
  assert_ok(weir_blas_handle(new_stream(0), &other_stream));
  assert_ptr_equal(first, again);
  assert_ptr_equal(first, other_stream); /* with a workspace of its own */
  assert_int_equal(allocated() - before, 2 << 20);
  on_thread(take_handle, &other_thread);
  assert_ptr_not_equal(first, other_thread);
  on_thread(take_handle, &next_thread); /* the first thread has ended */
  assert_ptr_equal(next_thread, other_thread);
  assert_int_equal(allocated() - before, 3 << 20);
  assert_ok(weir_blas_clear_workspaces());
  assert_int_equal(allocated(), before);
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
}

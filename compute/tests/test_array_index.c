/*
 * Elements at indices, counts, samples of a distribution, and assertions on a device.
 */
#include <stdlib.h>
#include <string.h>

#include "support/runtime.h"
#include "tests/numbers.h"
#include "weir/compute/blas.h"

static weir_stream stream;
static uint64_t seed;

static int setup(void **state) {
  int result = runtime_setup(state);
  stream = new_stream(0);
  seed = 5;
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

static weir_array random_host(weir_dtype dtype, int ndim, const int64_t *shape) {
  weir_array a = {0};
  assert_ok(weir_array_empty(weir_place_host(), dtype, ndim, shape, stream, &a));
  for (int64_t i = 0; i < weir_array_count(&a); i++)
    write_element(dtype, (char *)a.data + i * (int64_t)weir_dtype_size(dtype), small_number(dtype, next_random(&seed)));
  return a;
}

/* A copy of int64 values. */
static weir_array make_int64(weir_place place, int ndim, const int64_t *shape, const int64_t *values) {
  weir_array host = {0}, a = {0};
  assert_ok(
      weir_array_from_memory((void *)values, weir_place_host(), WEIR_INT64, ndim, shape, NULL, NULL, NULL, &host));
  assert_ok(weir_array_to(&host, place, WEIR_INT64, stream, 0, &a));
  weir_array_release(&host);
  return a;
}

TEST(index_select) {
  for (int t = 0; t < DTYPES; t++)
    for (int on_host = 0; on_host < 2; on_host++) {
      weir_place place = on_host ? weir_place_host() : weir_place_device(0);
      weir_dtype dtype = all_dtypes[t];
      weir_array host = random_host(dtype, 3, (int64_t[]){3, 5, 4}), a = {0}, indices = {0}, out = {0}, result = {0};
      int64_t picked[] = {4, 0, 0, 2, 3, 4, 1};
      assert_ok(
          weir_array_from_memory(picked, weir_place_host(), WEIR_INT64, 1, (int64_t[]){7}, NULL, NULL, NULL, &indices));
      weir_array there = {0};
      assert_ok(weir_array_to(&indices, place, t % 2 ? WEIR_INT32 : WEIR_INT64, stream, 0, &there));
      assert_ok(weir_array_to(&host, place, dtype, stream, 0, &a));
      assert_ok(weir_array_index_select(&a, 1, &there, stream, &out));
      assert_int_equal(out.shape[1], 7);
      assert_ok(weir_array_to(&out, weir_place_host(), dtype, stream, 0, &result));
      size_t size = weir_dtype_size(dtype);
      for (int64_t i = 0; i < 3 * 7 * 4; i++)
        assert_memory_equal((char *)result.data + (size_t)i * size,
                            (char *)host.data + (size_t)(i / 28 * 20 + picked[i / 4 % 7] * 4 + i % 4) * size, size);
      weir_array_release(&host);
      weir_array_release(&a);
      weir_array_release(&indices);
      weir_array_release(&there);
      weir_array_release(&out);
      weir_array_release(&result);
    }
  weir_array a = {0}, indices = {0}, out = {0};
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){3}, stream, &a));
  assert_ok(weir_array_empty(weir_place_host(), WEIR_INT64, 1, (int64_t[]){1}, stream, &indices));
  ((int64_t *)indices.data)[0] = 3;
  assert_error_says(INVALID_ARGUMENT, "index out of range in self",
                    weir_array_index_select(&a, 0, &indices, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "Expected dtype int32 or int64 for index",
                    weir_array_index_select(&a, 0, &a, stream, &out));
  weir_array_release(&a);
  weir_array_release(&indices);
}

/* Two arrays of indices, with a whole dimension between or beside them, against loops. */
TEST(index_and_put) {
  for (int t = 0; t < DTYPES; t++)
    for (int on_host = 0; on_host < 2; on_host++)
      for (int is_apart = 0; is_apart < 2; is_apart++) {
        weir_place place = on_host ? weir_place_host() : weir_place_device(0);
        weir_dtype dtype = all_dtypes[t];
        size_t size = weir_dtype_size(dtype);
        weir_array host = random_host(dtype, 3, (int64_t[]){3, 4, 5}), a = {0}, out = {0}, result = {0};
        /* The second is broadcast along the rows of the first. Negative indices count from the end. */
        int64_t first[] = {2, -3, 1, 1}, second[] = {-1, 0};
        weir_array rows = make_int64(place, 2, (int64_t[]){2, 2}, first), columns = {0};
        weir_array wide = make_int64(place, 1, (int64_t[]){2}, second);
        assert_ok(weir_array_to(&wide, place, t % 2 ? WEIR_INT32 : WEIR_INT64, stream, 1, &columns));
        assert_ok(weir_array_to(&host, place, dtype, stream, 1, &a));
        const weir_array *apart[] = {&rows, NULL, &columns}, *beside[] = {&rows, &columns};
        const weir_array *const *indices = is_apart ? apart : beside;
        int whole = is_apart ? 4 : 5, count = is_apart ? 3 : 2;
        assert_ok(weir_array_index(&a, indices, count, stream, &out));
        assert_int_equal(out.ndim, 3);
        assert_int_equal(out.shape[2], whole);
        assert_ok(weir_array_to(&out, weir_place_host(), dtype, stream, 0, &result));
        for (int i = 0; i < 4 * whole; i++) {
          int64_t row = (first[i / whole] + 3) % 3, other = second[i / whole % 2];
          int64_t from =
              is_apart ? row * 20 + i % whole * 5 + (other + 5) % 5 : row * 20 + (other + 4) % 4 * 5 + i % whole;
          assert_memory_equal((char *)result.data + (size_t)i * size, (char *)host.data + (size_t)from * size, size);
        }
        /* Written back in another order, by a view of the memory itself, and with one value for all. */
        weir_array zero = {0}, again = {0};
        assert_ok(weir_array_empty(place, dtype, 0, NULL, stream, &zero));
        assert_ok(weir_array_fill(&zero, weir_scalar_int(0), stream));
        assert_ok(weir_array_index_put(&a, indices, count, &zero, 0, stream));
        assert_ok(weir_array_to(&a, weir_place_host(), dtype, stream, 0, &again));
        for (int i = 0; i < 4 * whole; i++) {
          int64_t row = (first[i / whole] + 3) % 3, other = second[i / whole % 2];
          int64_t to =
              is_apart ? row * 20 + i % whole * 5 + (other + 5) % 5 : row * 20 + (other + 4) % 4 * 5 + i % whole;
          memset((char *)host.data + (size_t)to * size, 0, size);
        }
        assert_memory_equal(again.data, host.data, 60 * size);
        weir_array_release(&again);
        assert_ok(weir_array_index_put(&a, indices, count, &out, 0, stream));
        weir_array_release(&out);
        assert_ok(weir_array_index(&a, indices, count, stream, &out));
        assert_ok(weir_array_to(&out, weir_place_host(), dtype, stream, 0, &again));
        assert_memory_equal(again.data, result.data, (size_t)(4 * whole) * size);
        weir_array *all[] = {&host, &a, &out, &result, &rows, &columns, &wide, &zero, &again};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
          weir_array_release(all[i]);
      }
}

/* Repeated indices: sums of all values, and the last value with deterministic algorithms. */
TEST(put_twice) {
  enum { COUNT = 1000, BINS = 7 };
  int64_t bins[COUNT];
  for (int i = 0; i < COUNT; i++)
    bins[i] = (int64_t)(next_random(&seed) % BINS) - (i % 2 ? BINS : 0);
  for (int t = 0; t < DTYPES; t++)
    for (int on_host = 0; on_host < 2; on_host++) {
      weir_place place = on_host ? weir_place_host() : weir_place_device(0);
      weir_dtype dtype = all_dtypes[t];
      weir_array indices = make_int64(place, 1, (int64_t[]){COUNT}, bins), numbers = {0}, values = {0}, a = {0};
      weir_array sums = {0};
      assert_ok(weir_array_empty(place, WEIR_INT64, 1, (int64_t[]){COUNT}, stream, &numbers));
      assert_ok(weir_array_arange(&numbers, weir_scalar_int(0), weir_scalar_int(1), stream));
      assert_ok(weir_array_to(&numbers, place, dtype, stream, 1, &values));
      assert_ok(weir_array_empty(place, dtype, 1, (int64_t[]){BINS}, stream, &a));
      assert_ok(weir_array_fill(&a, weir_scalar_int(0), stream));
      const weir_array *which[] = {&indices};
      assert_ok(weir_blas_set_deterministic(WEIR_DETERMINISTIC_ERROR));
      assert_ok(weir_array_index_put(&a, which, 1, &values, 0, stream));
      assert_ok(weir_blas_set_deterministic(WEIR_DETERMINISTIC_OFF));
      weir_array last = {0}, kept = {0};
      assert_ok(weir_array_to(&a, weir_place_host(), WEIR_FLOAT64, stream, 0, &last));
      assert_ok(weir_array_to(&values, weir_place_host(), WEIR_FLOAT64, stream, 0, &kept));
      double expected[BINS] = {0};
      int counts[BINS] = {0};
      for (int i = 0; i < COUNT; i++) {
        expected[(bins[i] + BINS) % BINS] = ((double *)kept.data)[i];
        counts[(bins[i] + BINS) % BINS]++;
      }
      assert_memory_equal(last.data, expected, sizeof expected);
      /* One is added for each index. 16-bit floats and bytes hold these counts, or wrap as the host's do. */
      assert_ok(weir_array_fill(&a, weir_scalar_int(0), stream));
      assert_ok(weir_array_fill(&values, weir_scalar_int(1), stream));
      assert_ok(weir_array_index_put(&a, which, 1, &values, 1, stream));
      assert_ok(weir_array_to(&a, weir_place_host(), WEIR_FLOAT64, stream, 0, &sums));
      for (int i = 0; i < BINS; i++) {
        double sum = dtype == WEIR_UINT8      ? (unsigned char)counts[i]
                     : dtype == WEIR_INT8     ? (signed char)counts[i]
                     : dtype == WEIR_BOOL     ? 1
                     : dtype == WEIR_BFLOAT16 ? (counts[i] < 256 ? counts[i] : 256)
                                              : counts[i];
        assert_float_equal(((double *)sums.data)[i], sum, 0);
      }
      weir_array *all[] = {&indices, &numbers, &values, &a, &sums, &last, &kept};
      for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        weir_array_release(all[i]);
    }
}

TEST(bad_indices) {
  weir_array a = random_host(WEIR_FLOAT32, 2, (int64_t[]){3, 4}), half = random_host(WEIR_FLOAT16, 0, NULL), out = {0};
  weir_array two = make_int64(weir_place_host(), 1, (int64_t[]){2}, (int64_t[]){0, -4});
  weir_array three = make_int64(weir_place_host(), 1, (int64_t[]){3}, (int64_t[]){0, 1, 2});
  weir_array five = random_host(WEIR_FLOAT32, 1, (int64_t[]){5});
  const weir_array *outside[] = {&two}, *unequal[] = {&three, &two}, *many[] = {&three, &three, &three},
                   *none[] = {NULL};
  const weir_array *real[] = {&five}, *right[] = {&three, NULL};
  assert_error_says(INVALID_ARGUMENT, "index -4 is out of bounds for dimension 0 with size 3",
                    weir_array_index(&a, outside, 1, stream, &out));
  assert_error_says(INVALID_ARGUMENT,
                    "shape mismatch: indexing tensors could not be broadcast together with shapes [3], [2]",
                    weir_array_index(&a, unequal, 2, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "too many indices for tensor of dimension 2 (got 3)",
                    weir_array_index(&a, many, 3, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "at least one", weir_array_index(&a, none, 1, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "expected int64 or int32 for index 0 (got float32)",
                    weir_array_index(&a, real, 1, stream, &out));
  assert_error_says(INVALID_ARGUMENT,
                    "shape mismatch: value tensor of shape [5] cannot be broadcast to indexing result",
                    weir_array_index_put(&a, right, 2, &five, 0, stream));
  assert_error_says(
      INVALID_ARGUMENT,
      "Index put requires the source and destination dtypes match, got Float for the destination and Half",
      weir_array_index_put(&a, right, 2, &half, 0, stream));
  assert_null(out.storage);
  weir_array *all[] = {&a, &half, &two, &three, &five};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    weir_array_release(all[i]);
}

TEST(gather) {
  for (int t = 0; t < DTYPES; t++)
    for (int on_host = 0; on_host < 2; on_host++) {
      weir_place place = on_host ? weir_place_host() : weir_place_device(0);
      weir_dtype dtype = all_dtypes[t];
      int64_t picked[2 * 4];
      for (int i = 0; i < 8; i++)
        picked[i] = (int64_t)(next_random(&seed) % 3);
      weir_array host = random_host(dtype, 2, (int64_t[]){2, 3}), a = {0}, out = {0}, result = {0};
      weir_array indices = make_int64(place, 2, (int64_t[]){2, 4}, picked);
      assert_ok(weir_array_to(&host, place, dtype, stream, 0, &a));
      assert_ok(weir_array_gather(&a, 1, &indices, stream, &out));
      assert_ok(weir_array_to(&out, weir_place_host(), dtype, stream, 0, &result));
      size_t size = weir_dtype_size(dtype);
      for (int i = 0; i < 8; i++)
        assert_memory_equal((char *)result.data + (size_t)i * size,
                            (char *)host.data + (size_t)(i / 4 * 3 + picked[i]) * size, size);
      /* By columns, from a transposed array, into a given one. */
      weir_array turned = {0}, turned_indices = {0};
      assert_ok(weir_array_transpose(&a, 0, 1, &turned));
      assert_ok(weir_array_transpose(&indices, 0, 1, &turned_indices));
      assert_ok(weir_array_transpose(&out, 0, 1, &out));
      assert_ok(weir_array_fill(&out, weir_scalar_int(0), stream));
      assert_ok(weir_array_gather(&turned, 0, &turned_indices, stream, &out));
      assert_ok(weir_array_transpose(&out, 0, 1, &out));
      weir_array again = {0};
      assert_ok(weir_array_to(&out, weir_place_host(), dtype, stream, 0, &again));
      assert_memory_equal(again.data, result.data, 8 * size);
      weir_array *all[] = {&host, &a, &out, &result, &indices, &turned, &turned_indices, &again};
      for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        weir_array_release(all[i]);
    }
  weir_array a = random_host(WEIR_INT8, 2, (int64_t[]){2, 3}), out = {0};
  weir_array outside = make_int64(weir_place_host(), 2, (int64_t[]){1, 1}, (int64_t[]){3});
  weir_array large = make_int64(weir_place_host(), 2, (int64_t[]){3, 1}, (int64_t[]){0, 0, 0});
  assert_error_says(INVALID_ARGUMENT, "index out of range", weir_array_gather(&a, 1, &outside, stream, &out));
  assert_error_says(INVALID_ARGUMENT,
                    "Size does not match at dimension 0 expected index [3, 1] to be no larger than self",
                    weir_array_gather(&a, 1, &large, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "Expected dtype int64 for index", weir_array_gather(&a, 1, &a, stream, &out));
  weir_array_release(&a);
  weir_array_release(&outside);
  weir_array_release(&large);
}

TEST(bincount) {
  enum { COUNT = 5000, BINS = 50 };
  int64_t values[COUNT], expected[BINS] = {0};
  double weights[COUNT], sums[BINS] = {0};
  for (int i = 0; i < COUNT; i++) {
    values[i] = (int64_t)(next_random(&seed) % (BINS - 10));
    weights[i] = (double)(next_random(&seed) % 16) / 4;
    expected[values[i]]++;
    sums[values[i]] += weights[i];
  }
  for (int on_host = 0; on_host < 2; on_host++) {
    weir_place place = on_host ? weir_place_host() : weir_place_device(0);
    weir_array wide = make_int64(place, 1, (int64_t[]){COUNT}, values), a = {0}, out = {0}, result = {0}, w = {0};
    assert_ok(weir_array_to(&wide, place, WEIR_INT8, stream, 0, &a));
    assert_ok(weir_array_bincount(&a, NULL, BINS, stream, &out));
    assert_int_equal(out.shape[0], BINS);
    assert_ok(weir_array_to(&out, weir_place_host(), WEIR_INT64, stream, 0, &result));
    assert_memory_equal(result.data, expected, sizeof expected);
    weir_array_release(&out);
    weir_array_release(&result);
    weir_array host_weights = {0};
    assert_ok(weir_array_from_memory(weights, weir_place_host(), WEIR_FLOAT64, 1, (int64_t[]){COUNT}, NULL, NULL, NULL,
                                     &host_weights));
    static const weir_dtype types[] = {WEIR_FLOAT64, WEIR_FLOAT32, WEIR_FLOAT16};
    for (int t = 0; t < 3; t++) {
      assert_ok(weir_array_to(&host_weights, place, types[t], stream, 0, &w));
      assert_ok(weir_array_bincount(&wide, &w, BINS, stream, &out));
      assert_int_equal(out.dtype, t == 1 ? WEIR_FLOAT32 : WEIR_FLOAT64);
      assert_ok(weir_array_to(&out, weir_place_host(), WEIR_FLOAT64, stream, 0, &result));
      assert_memory_equal(result.data, sums, sizeof sums); /* quarters add up exactly */
      weir_array_release(&w);
      weir_array_release(&out);
      weir_array_release(&result);
    }
    weir_array_release(&host_weights);
    weir_array_release(&wide);
    weir_array_release(&a);
  }
  weir_array negative = make_int64(weir_place_device(0), 1, (int64_t[]){1}, (int64_t[]){-1}), out = {0};
  assert_error_says(INVALID_ARGUMENT, "bincount only supports 1-d non-negative integral inputs.",
                    weir_array_bincount(&negative, NULL, 0, stream, &out));
  weir_array_release(&negative);
}

TEST(multinomial) {
  enum { SAMPLES = 20000 };
  /* Elements with probability 0 are never drawn, and the others as often as they should. */
  float probabilities[2][5] = {{0, 1, 0, 3, 0}, {2, 0, 0, 0, 2}};
  weir_array host = {0}, a = {0}, out = {0}, result = {0};
  weir_generator *generator;
  assert_ok(weir_generator_create(0, &generator));
  assert_ok(weir_array_from_memory(probabilities, weir_place_host(), WEIR_FLOAT32, 2, (int64_t[]){2, 5}, NULL, NULL,
                                   NULL, &host));
  assert_ok(weir_array_to(&host, weir_place_device(0), WEIR_FLOAT32, stream, 0, &a));
  assert_ok(weir_array_multinomial(generator, &a, SAMPLES, 1, stream, &out));
  assert_int_equal(out.shape[1], SAMPLES);
  assert_ok(weir_array_to(&out, weir_place_host(), WEIR_INT64, stream, 0, &result));
  int counts[2][5] = {{0}};
  for (int i = 0; i < 2 * SAMPLES; i++) {
    int64_t found = ((int64_t *)result.data)[i];
    assert_in_range(found, 0, 4);
    counts[i / SAMPLES][found]++;
  }
  assert_int_equal(counts[0][0] + counts[0][2] + counts[0][4] + counts[1][1] + counts[1][2] + counts[1][3], 0);
  assert_in_range(counts[0][3], SAMPLES * 3 / 4 - 500, SAMPLES * 3 / 4 + 500);
  assert_in_range(counts[1][0], SAMPLES / 2 - 500, SAMPLES / 2 + 500);
  weir_array_release(&out);
  weir_array_release(&result);
  weir_array_release(&a);
  weir_array_release(&host);
  /* More categories than a tile has. */
  int64_t many = 5000;
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT16, 1, &many, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_int(0), stream));
  weir_array one = {0};
  weir_scalar item;
  assert_ok(weir_array_select(&a, 0, 4321, &one));
  assert_ok(weir_array_fill(&one, weir_scalar_int(1), stream));
  assert_ok(weir_array_multinomial(generator, &a, 1, 0, stream, &out));
  assert_ok(weir_array_item(&out, stream, &item));
  assert_int_equal(item.integer, 4321);
  weir_array_release(&out);
  assert_error_says(INVALID_ARGUMENT, "cannot sample n_sample <= 0 samples",
                    weir_array_multinomial(generator, &a, 0, 1, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "cannot sample n_sample > prob_dist.size(-1) samples without replacement",
                    weir_array_multinomial(generator, &a, 6000, 0, stream, &out));
  weir_array_release(&one);
  weir_array_release(&a);
  weir_generator_destroy(generator);
}

/* ---- Assertions: they break the context of a device, so each has a process ---- */

static weir_status sample_of(float probability) {
  weir_array a = {0}, out = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, (int64_t[]){3}, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_float(probability), stream));
  weir_status status = weir_array_multinomial(NULL, &a, 2, 1, stream, &out); /* may already see the fault */
  return status ? status : weir_stream_synchronize(stream);
}

static weir_status assert_of(double value) {
  weir_array a = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_COMPLEX64, 0, NULL, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_complex(0, value), stream));
  weir_status status = weir_array_assert_async(&a, stream); /* may already see the fault */
  return status ? status : weir_stream_synchronize(stream);
}

static weir_status select_of(int64_t index) {
  weir_array a = {0}, out = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, (int64_t[]){3}, stream, &a));
  weir_array indices = make_int64(weir_place_device(0), 1, (int64_t[]){1}, &index);
  weir_status status = weir_array_index_select(&a, 0, &indices, stream, &out); /* may already see the fault */
  return status ? status : weir_stream_synchronize(stream);
}

static void faulting_child(void *data) {
  void *state = NULL;
  child_assert(runtime_setup(&state) == 0);
  stream = new_stream(0);
  weir_status status = WEIR_OK;
  switch (*(int *)data) {
  case 0:
    child_assert(!sample_of(1) && !assert_of(0.5) && !select_of(2));
    return;
  case 1:
    status = sample_of(-1);
    break;
  case 2:
    status = sample_of(NAN);
    break;
  case 3:
    status = sample_of(0);
    break;
  case 4:
    status = assert_of(0);
    break;
  case 5:
    status = select_of(3);
    break;
  }
  child_assert(status == WEIR_ERROR_DEVICE_FAULT);
}

TEST_SETUP(assertions, runtime_setup_none, runtime_teardown) {
  NEED_SOFT("a broken context of a GPU cannot be checked for leaks");
  for (int i = 0; i <= 5; i++)
    in_process(faulting_child, &i);
}

TEST(assertion_errors) {
  stream = new_stream(0);
  weir_array a = {0};
  assert_ok(weir_array_empty(weir_place_host(), WEIR_INT32, 1, (int64_t[]){0}, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "Boolean value of Tensor with no values is ambiguous",
                    weir_array_assert_async(&a, stream));
  weir_array_release(&a);
  assert_ok(weir_array_empty(weir_place_host(), WEIR_INT32, 1, (int64_t[]){2}, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "Boolean value of Tensor with more than one value is ambiguous",
                    weir_array_assert_async(&a, stream));
  weir_array_release(&a);
  assert_ok(weir_array_empty(weir_place_host(), WEIR_INT32, 0, NULL, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_int(0), stream));
  assert_error_says(INVALID_ARGUMENT, "Expected Tensor with single nonzero value, but got zero",
                    weir_array_assert_async(&a, stream));
  weir_array_release(&a);
}

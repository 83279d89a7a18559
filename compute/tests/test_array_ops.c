/*
 * Elementwise operations and reductions, compared with a plain model on random shapes, strides and types.
 */
#include <float.h>
#include <stdlib.h>

#include "support/length.h"
#include "support/runtime.h"
#include "tests/numbers.h"
#include "weir/compute/random.h"

static weir_stream stream;
static uint64_t seed;

static int setup(void **state) {
  int result = runtime_setup(state);
  stream = new_stream(0);
  seed = 7;
  return result;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

static int chance(int below) { return (int)(next_random(&seed) % (unsigned)below); }

/* ---- Random arrays ---- */

/* A host array, and the same elements with the same strides where the operation runs. */
typedef struct twin {
  weir_array model, array;
} twin;

static void release(twin *t) {
  weir_array_release(&t->model);
  weir_array_release(&t->array);
}

/* A view of a larger array, with the dimensions in another order. */
static twin random_twin(weir_place place, weir_dtype dtype, int ndim, const int64_t *shape) {
  twin t = {0};
  int order[WEIR_ARRAY_MAX_DIMS], back[WEIR_ARRAY_MAX_DIMS], steps[WEIR_ARRAY_MAX_DIMS];
  int64_t base[WEIR_ARRAY_MAX_DIMS];
  bool is_plain = chance(3) == 0;
  for (int d = 0; d < ndim; d++)
    order[d] = d;
  for (int d = ndim - 1; d > 0 && !is_plain; d--) {
    int other = chance(d + 1), kept = order[d];
    order[d] = order[other];
    order[other] = kept;
  }
  for (int d = 0; d < ndim; d++) {
    back[order[d]] = d;
    steps[d] = is_plain ? 1 : 1 + chance(2);
    base[d] = shape[order[d]] * steps[d];
  }
  weir_array whole = {0};
  assert_ok(weir_array_empty(weir_place_host(), dtype, ndim, base, stream, &whole));
  for (int64_t i = 0; i < weir_array_count(&whole); i++)
    write_element(dtype, (char *)whole.data + i * (int64_t)weir_dtype_size(dtype),
                  small_number(dtype, next_random(&seed)));
  t.model = whole;
  assert_ok(weir_array_to(&whole, place, dtype, stream, 0, &t.array));
  for (int d = 0; d < ndim; d++) {
    assert_ok(weir_array_slice(&t.model, d, 0, INT64_MAX, steps[d], &t.model));
    assert_ok(weir_array_slice(&t.array, d, 0, INT64_MAX, steps[d], &t.array));
  }
  assert_ok(weir_array_permute(&t.model, back, &t.model));
  assert_ok(weir_array_permute(&t.array, back, &t.array));
  return t;
}

static void random_shape(int *ndim, int64_t *shape) {
  *ndim = chance(5);
  for (int d = 0; d < *ndim; d++)
    shape[d] = 1 + chance(6);
  if (*ndim && chance(4) == 0)
    shape[chance(*ndim)] = 1 + chance(700);
}

/* A shape that can be broadcast to another. */
static int narrower_shape(int ndim, const int64_t *shape, int64_t *result) {
  int dropped = chance(3) ? 0 : chance(ndim + 1);
  for (int d = dropped; d < ndim; d++)
    result[d - dropped] = chance(4) ? shape[d] : 1;
  return ndim - dropped;
}

static weir_place random_place(void) { return chance(4) ? weir_place_device(0) : weir_place_host(); }

static void check_result(const char *what, weir_array *out, weir_dtype dtype, const number *expected,
                         double tolerance) {
  weir_array host = {0};
  assert_int_equal(out->dtype, dtype);
  assert_ok(weir_array_to(out, weir_place_host(), dtype, stream, 0, &host));
  for (int64_t i = 0; i < weir_array_count(&host); i++) {
    number found = read_element(dtype, (char *)host.data + i * (int64_t)weir_dtype_size(dtype));
    if (!is_close(dtype, found, expected[i], tolerance))
      fail_msg("%s in %s, element %d of %d: %lld %.17g%+.17gi in place of %lld %.17g%+.17gi", what,
               weir_dtype_name(dtype), (int)i, (int)weir_array_count(&host), (long long)found.integer, found.real,
               found.imag, (long long)expected[i].integer, expected[i].real, expected[i].imag);
  }
  weir_array_release(&host);
}

/* ---- Binary operations ---- */

static const char *const binary_names[] = {
#define X(number, name, text) text,
    WEIR_BINARY_MAP(X)
#undef X
};
enum { BINARIES = sizeof binary_names / sizeof binary_names[0] };

static number whole(int64_t value) { return (number){value, (double)value, 0}; }

static int64_t floor_of(int64_t a, int64_t b) {
  int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0));
}

static number model_binary(int op, weir_dtype common, number a, number b) {
  bool ints = is_whole(common), complex = weir_dtype_is_complex(common);
  bool a_true = ints ? a.integer != 0 : a.real != 0 || a.imag != 0;
  bool b_true = ints ? b.integer != 0 : b.real != 0 || b.imag != 0;
  bool equal = ints ? a.integer == b.integer : a.real == b.real && a.imag == b.imag;
  bool less = ints ? a.integer < b.integer : a.real < b.real;
  number r = {0};
  switch (op) {
  case WEIR_BINARY_ADD:
    return (number){a.integer + b.integer, a.real + b.real, a.imag + b.imag};
  case WEIR_BINARY_SUB:
    return (number){a.integer - b.integer, a.real - b.real, a.imag - b.imag};
  case WEIR_BINARY_MUL:
    return (number){a.integer * b.integer, a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
  case WEIR_BINARY_DIV:
    if (!complex)
      return (number){0, a.real / b.real, 0};
    double size = b.real * b.real + b.imag * b.imag;
    return (number){0, (a.real * b.real + a.imag * b.imag) / size, (a.imag * b.real - a.real * b.imag) / size};
  case WEIR_BINARY_FLOOR_DIV:
    return ints ? whole(b.integer ? floor_of(a.integer, b.integer) : -1) : (number){0, floor(a.real / b.real), 0};
  case WEIR_BINARY_REMAINDER:
    if (ints)
      return whole(b.integer ? a.integer - b.integer * floor_of(a.integer, b.integer) : a.integer);
    r.real = fmod(a.real, b.real);
    if (r.real != 0 && (r.real < 0) != (b.real < 0))
      r.real += b.real;
    return r;
  case WEIR_BINARY_POW:
    if (ints) {
      int64_t product = b.integer < 0 ? (a.integer == 1 ? 1 : a.integer == -1 ? (b.integer % 2 ? -1 : 1) : 0) : 1;
      for (int64_t i = 0; i < b.integer; i++)
        product *= a.integer;
      return whole(product);
    }
    r.real = pow(a.real, b.real);
    return r;
  case WEIR_BINARY_MAXIMUM:
    return less ? b : a;
  case WEIR_BINARY_MINIMUM:
    return less || equal ? a : b;
  case WEIR_BINARY_BITWISE_AND:
    return whole(a.integer & b.integer);
  case WEIR_BINARY_BITWISE_OR:
    return whole(a.integer | b.integer);
  case WEIR_BINARY_BITWISE_XOR:
    return whole(a.integer ^ b.integer);
  case WEIR_BINARY_EQ:
    return whole(equal);
  case WEIR_BINARY_NE:
    return whole(!equal);
  case WEIR_BINARY_LT:
    return whole(less);
  case WEIR_BINARY_LE:
    return whole(less || equal);
  case WEIR_BINARY_GT:
    return whole(!less && !equal);
  case WEIR_BINARY_GE:
    return whole(!less);
  case WEIR_BINARY_LOGICAL_AND:
    return whole(a_true && b_true);
  case WEIR_BINARY_LOGICAL_OR:
    return whole(a_true || b_true);
  default:
    return whole(a_true != b_true);
  }
}

/* Whether PyTorch has the operation for a type. */
static bool has_binary(int op, weir_dtype common) {
  bool complex = weir_dtype_is_complex(common), floats = weir_dtype_is_float(common);
  switch (op) {
  case WEIR_BINARY_SUB:
  case WEIR_BINARY_POW:
    return common != WEIR_BOOL;
  case WEIR_BINARY_FLOOR_DIV:
  case WEIR_BINARY_REMAINDER:
    return !complex && common != WEIR_BOOL;
  case WEIR_BINARY_MAXIMUM:
  case WEIR_BINARY_MINIMUM:
  case WEIR_BINARY_LT:
  case WEIR_BINARY_LE:
  case WEIR_BINARY_GT:
  case WEIR_BINARY_GE:
    return !complex;
  case WEIR_BINARY_BITWISE_AND:
  case WEIR_BINARY_BITWISE_OR:
  case WEIR_BINARY_BITWISE_XOR:
    return !complex && !floats;
  default:
    return true;
  }
}

static bool is_exact(int op) { return op <= WEIR_BINARY_MUL || op >= WEIR_BINARY_MAXIMUM; }

static void check_binary(int op, const twin *a, const twin *b, int ndim, const int64_t *shape) {
  weir_array out = {0};
  weir_dtype common = 0, result;
  assert_ok(weir_array_result_type((const weir_array *[]){&a->array, &b->array}, 2, NULL, &common));
  weir_status status = weir_array_binary((weir_binary_op)op, &a->array, &b->array, stream, &out);
  if (!has_binary(op, common)) {
    assert_int_equal(status, WEIR_ERROR_NOT_SUPPORTED);
    return;
  }
  assert_ok(status);
  if (op == WEIR_BINARY_DIV && is_whole(common))
    common = WEIR_FLOAT32;
  result = op >= WEIR_BINARY_EQ ? WEIR_BOOL : common;
  int64_t count = weir_array_count(&out);
  number *expected = calloc((size_t)count + 1, sizeof *expected);
  for (int64_t i = 0; i < count; i++) {
    number x = rounded_to(common, read_element(a->model.dtype, element_of(&a->model, ndim, shape, i)), a->model.dtype);
    number y = rounded_to(common, read_element(b->model.dtype, element_of(&b->model, ndim, shape, i)), b->model.dtype);
    expected[i] = rounded_to(result, model_binary(op, common, x, y), op >= WEIR_BINARY_EQ ? WEIR_INT64 : common);
  }
  double tolerance =
      is_exact(op) && !(op == WEIR_BINARY_MUL && weir_dtype_is_complex(common)) ? 0 : 8 * epsilon_of(common);
  if (op == WEIR_BINARY_POW && weir_dtype_is_complex(common))
    goto release_out; /* the model has real powers only */
  if (op == WEIR_BINARY_DIV && weir_dtype_is_complex(common))
    for (int64_t i = 0; i < count; i++) /* division by 0 has no agreed result */
      if (isnan(expected[i].real) || isinf(expected[i].real) || isnan(expected[i].imag) || isinf(expected[i].imag))
        goto release_out;
  if (op == WEIR_BINARY_FLOOR_DIV && !is_whole(common))
    for (int64_t i = 0; i < count; i++)
      if (isnan(expected[i].real) || isinf(expected[i].real))
        goto release_out;
  check_result(binary_names[op], &out, result, expected, tolerance);
release_out:
  free(expected);
  weir_array_release(&out);
}

TEST(binary) {
  int rounds = repetitions(is_stepped() ? 300 : 1000, 20000);
  for (int round = 0; round < rounds; round++) {
    int ndim;
    int64_t shape[WEIR_ARRAY_MAX_DIMS], a_shape[WEIR_ARRAY_MAX_DIMS], b_shape[WEIR_ARRAY_MAX_DIMS];
    random_shape(&ndim, shape);
    int a_ndim = narrower_shape(ndim, shape, a_shape), b_ndim = narrower_shape(ndim, shape, b_shape);
    weir_place place = random_place();
    twin a = random_twin(place, all_dtypes[chance(DTYPES)], a_ndim, a_shape);
    twin b = random_twin(place, chance(2) ? a.model.dtype : all_dtypes[chance(DTYPES)], b_ndim, b_shape);
    int out_ndim = a_ndim > b_ndim ? a_ndim : b_ndim;
    int64_t out_shape[WEIR_ARRAY_MAX_DIMS];
    for (int d = 0; d < out_ndim; d++) {
      int64_t x = d < out_ndim - a_ndim ? 1 : a_shape[d - (out_ndim - a_ndim)];
      int64_t y = d < out_ndim - b_ndim ? 1 : b_shape[d - (out_ndim - b_ndim)];
      out_shape[d] = x == 1 ? y : x;
    }
    check_binary(chance(BINARIES), &a, &b, out_ndim, out_shape);
    release(&a);
    release(&b);
  }
}

/* Each operation on contiguous arrays of each type, whose kernels load 16 bytes at a time; sizes with and without a
 * rest, and out given. */
TEST(contiguous) {
  static const int64_t sizes[] = {1, 7, 16, 255, 1000, 4099};
  for (int t = 0; t < DTYPES; t++)
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
      weir_dtype dtype = all_dtypes[t];
      int64_t count = sizes[s];
      weir_array host_a = {0}, host_b = {0}, a = {0}, b = {0};
      assert_ok(weir_array_empty(weir_place_host(), dtype, 1, &count, stream, &host_a));
      assert_ok(weir_array_empty(weir_place_host(), dtype, 1, &count, stream, &host_b));
      size_t size = weir_dtype_size(dtype);
      for (int64_t i = 0; i < count; i++) {
        write_element(dtype, (char *)host_a.data + (size_t)i * size, small_number(dtype, next_random(&seed)));
        write_element(dtype, (char *)host_b.data + (size_t)i * size, small_number(dtype, next_random(&seed)));
      }
      assert_ok(weir_array_to(&host_a, weir_place_device(0), dtype, stream, 0, &a));
      assert_ok(weir_array_to(&host_b, weir_place_device(0), dtype, stream, 0, &b));
      number *expected = calloc((size_t)count, sizeof *expected);
      static const int ops[] = {WEIR_BINARY_ADD, WEIR_BINARY_SUB, WEIR_BINARY_MUL, WEIR_BINARY_MAXIMUM};
      for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
        if (!has_binary(ops[o], dtype))
          continue;
        weir_array out = {0};
        assert_ok(weir_array_binary((weir_binary_op)ops[o], &a, &b, stream, &out));
        for (int64_t i = 0; i < count; i++) {
          number x = read_element(dtype, (char *)host_a.data + (size_t)i * size);
          number y = read_element(dtype, (char *)host_b.data + (size_t)i * size);
          expected[i] = rounded_to(dtype, model_binary(ops[o], dtype, x, y), dtype);
        }
        check_result(binary_names[ops[o]], &out, dtype, expected, 2 * epsilon_of(dtype) * weir_dtype_is_complex(dtype));
        /* The same into an array that exists, from a number, and in place. */
        assert_ok(weir_array_fill(&out, weir_scalar_int(0), stream));
        assert_ok(weir_array_binary((weir_binary_op)ops[o], &a, &b, stream, &out));
        check_result(binary_names[ops[o]], &out, dtype, expected, 2 * epsilon_of(dtype) * weir_dtype_is_complex(dtype));
        weir_scalar two = dtype == WEIR_BOOL ? weir_scalar_bool(1) : weir_scalar_int(2);
        assert_ok(weir_array_binary_scalar((weir_binary_op)ops[o], &a, two, 1, stream, &out));
        for (int64_t i = 0; i < count; i++) {
          number x = read_element(dtype, (char *)host_a.data + (size_t)i * size);
          expected[i] = rounded_to(dtype, model_binary(ops[o], dtype, whole(two.integer), x), dtype);
        }
        check_result(binary_names[ops[o]], &out, dtype, expected, 2 * epsilon_of(dtype) * weir_dtype_is_complex(dtype));
        weir_array_release(&out);
      }
      free(expected);
      weir_array_release(&host_a);
      weir_array_release(&host_b);
      weir_array_release(&a);
      weir_array_release(&b);
    }
}

/* ---- Unary operations ---- */

static const char *const unary_names[] = {
#define X(number, name, text) text,
    WEIR_UNARY_MAP(X)
#undef X
};
enum { UNARIES = sizeof unary_names / sizeof unary_names[0] };

static double model_unary(int op, double x) {
  switch (op) {
  case WEIR_UNARY_NEG:
    return -x;
  case WEIR_UNARY_ABS:
    return fabs(x);
  case WEIR_UNARY_SIGN:
    return (x > 0) - (x < 0);
  case WEIR_UNARY_SQUARE:
    return x * x;
  case WEIR_UNARY_FLOOR:
    return floor(x);
  case WEIR_UNARY_CEIL:
    return ceil(x);
  case WEIR_UNARY_ROUND:
    return nearbyint(x);
  case WEIR_UNARY_TRUNC:
    return trunc(x);
  case WEIR_UNARY_RELU:
    return x > 0 ? x : 0;
  case WEIR_UNARY_EXP:
    return exp(x);
  case WEIR_UNARY_EXPM1:
    return expm1(x);
  case WEIR_UNARY_LOG:
    return log(x);
  case WEIR_UNARY_LOG2:
    return log2(x);
  case WEIR_UNARY_LOG10:
    return log10(x);
  case WEIR_UNARY_LOG1P:
    return log1p(x);
  case WEIR_UNARY_SQRT:
    return sqrt(x);
  case WEIR_UNARY_RSQRT:
    return 1 / sqrt(x);
  case WEIR_UNARY_SIN:
    return sin(x);
  case WEIR_UNARY_COS:
    return cos(x);
  case WEIR_UNARY_TAN:
    return tan(x);
  case WEIR_UNARY_TANH:
    return tanh(x);
  case WEIR_UNARY_SIGMOID:
    return 1 / (1 + exp(-x));
  case WEIR_UNARY_ERF:
    return erf(x);
  case WEIR_UNARY_RECIPROCAL:
    return 1 / x;
  case WEIR_UNARY_LOGICAL_NOT:
    return x == 0;
  case WEIR_UNARY_ISFINITE:
    return 1;
  case WEIR_UNARY_ISNAN:
  case WEIR_UNARY_ISINF:
  case WEIR_UNARY_IMAG:
    return 0;
  default: /* POSITIVE, REAL, CONJ */
    return x;
  }
}

TEST(unary) {
  for (int op = 0; op < UNARIES; op++)
    for (int t = 0; t < DTYPES; t++) {
      weir_dtype dtype = all_dtypes[t];
      int64_t shape[] = {3, 41};
      twin a = random_twin(chance(2) ? weir_place_device(0) : weir_place_host(), dtype, 2, shape);
      weir_array out = {0};
      bool makes_float = op >= WEIR_UNARY_EXP && op <= WEIR_UNARY_RECIPROCAL;
      weir_status status = weir_array_unary((weir_unary_op)op, &a.array, stream, &out);
      if (weir_dtype_is_complex(dtype) || dtype == WEIR_BOOL || op == WEIR_UNARY_BITWISE_NOT) {
        if (status) /* which ones is for test_errors */
          assert_int_equal(status, WEIR_ERROR_NOT_SUPPORTED);
        if (op == WEIR_UNARY_BITWISE_NOT && is_whole(dtype)) {
          number expected[3 * 41];
          for (int i = 0; i < 3 * 41; i++) {
            number x = read_element(dtype, element_of(&a.model, 2, shape, i));
            expected[i] = rounded_to(dtype, whole(dtype == WEIR_BOOL ? !x.integer : ~x.integer), WEIR_INT64);
          }
          check_result(unary_names[op], &out, dtype, expected, 0);
        }
      } else {
        assert_ok(status);
        weir_dtype common = makes_float && is_whole(dtype) ? WEIR_FLOAT32 : dtype;
        weir_dtype result = op >= WEIR_UNARY_LOGICAL_NOT && op <= WEIR_UNARY_ISINF ? WEIR_BOOL : common;
        number expected[3 * 41];
        for (int i = 0; i < 3 * 41; i++) {
          number x = read_element(dtype, element_of(&a.model, 2, shape, i));
          double y = model_unary(op, x.real);
          expected[i] = rounded_to(result, (number){(int64_t)y, y, 0}, is_whole(result) ? WEIR_INT64 : WEIR_FLOAT64);
        }
        check_result(unary_names[op], &out, result, expected, makes_float ? 8 * epsilon_of(common) : 0);
      }
      weir_array_release(&out);
      release(&a);
    }
}

/* All numbers of 16 bits: their sines and cosines are computed by a function that is only for them. */
TEST(short_sines) {
  static const weir_dtype types[] = {WEIR_FLOAT16, WEIR_BFLOAT16};
  static uint16_t bits[1 << 16], found[1 << 16];
  int64_t count = 1 << 16;
  for (int t = 0; t < 2; t++)
    for (int order = 0; order < 2; order++)
      for (int op = WEIR_UNARY_SIN; op <= WEIR_UNARY_COS; op++) {
        /* In the second order, large numbers and NaNs have small ones next to them. */
        for (unsigned i = 0; i < 1 << 16; i++)
          bits[i] = (uint16_t)(order ? i * 40503u : i);
        weir_array host = {0}, a = {0}, out = {0}, result = {0};
        assert_ok(weir_array_empty(weir_place_host(), types[t], 1, &count, stream, &host));
        memcpy(host.data, bits, sizeof bits);
        assert_ok(weir_array_to(&host, weir_place_device(0), types[t], stream, 0, &a));
        assert_ok(weir_array_unary((weir_unary_op)op, &a, stream, &out));
        assert_ok(weir_array_to(&out, weir_place_host(), types[t], stream, 0, &result));
        memcpy(found, result.data, sizeof found);
        for (unsigned i = 0; i < 1 << 16; i++) {
          double x = read_element(types[t], &bits[i]).real, y = read_element(types[t], &found[i]).real;
          double expected = op == WEIR_UNARY_SIN ? sin(x) : cos(x);
          /* Half a unit in the last place, and a hundredth for what is lost before rounding. */
          double tolerance = 0.51 * epsilon_of(types[t]) * fabs(expected) + (types[t] == WEIR_FLOAT16 ? 0x1p-25 : 0);
          if (isnan(expected) ? !isnan(y) : !(fabs(y - expected) <= tolerance))
            fail_msg("%s of %s %.9g: %.9g, expected %.9g", unary_names[op], weir_dtype_name(types[t]), x, y, expected);
        }
        weir_array *all[] = {&host, &a, &out, &result};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
          weir_array_release(all[i]);
      }
}

/* Known values of complex functions. */
TEST(complex) {
  weir_array a = {0}, b = {0}, out = {0}, host = {0};
  double values[] = {1.5, -2, -0.25, 0.5};
  int64_t count = 2;
  assert_ok(weir_array_from_memory(values, weir_place_host(), WEIR_COMPLEX128, 1, &count, NULL, NULL, NULL, &host));
  assert_ok(weir_array_to(&host, weir_place_device(0), WEIR_COMPLEX128, stream, 0, &a));
#define EXPECT(op, ...)                                                                                                \
  do {                                                                                                                 \
    const double want[] = {__VA_ARGS__};                                                                               \
    number expected[] = {{0, want[0], want[1]}, {0, want[2], want[3]}};                                                \
    assert_ok(weir_array_unary(WEIR_UNARY_##op, &a, stream, &out));                                                    \
    check_result(#op, &out, WEIR_COMPLEX128, expected, 1e-13);                                                         \
    weir_array_release(&out);                                                                                          \
  } while (0)
  EXPECT(EXP, -1.8650407290090891, -4.075188339491183, 0.683461986410032, 0.37337698488938337);
  EXPECT(SQRT, 1.4142135623730951, -0.7071067811865475, 0.39307568887871164, 0.6360098247570345);
  EXPECT(LOG, 0.9162907318741551, -0.9272952180016122, -0.5815754049028404, 2.0344439357957027);
  EXPECT(SIN, 3.752771340479298, -0.2565539560904818, -0.2789791283502615, 0.504895714387995);
  EXPECT(TANH, 1.064144399176537, 0.08039101531016819, -0.31242069250258875, 0.504500702698564);
  EXPECT(RECIPROCAL, 0.24, 0.32, -0.8, -1.6);
  EXPECT(CONJ, 1.5, 2, -0.25, -0.5);
  number sizes[] = {{0, 2.5, 0}, {0, sqrt(0.3125), 0}};
  assert_ok(weir_array_unary(WEIR_UNARY_ABS, &a, stream, &out));
  check_result("abs", &out, WEIR_FLOAT64, sizes, 1e-15);
  weir_array_release(&out);
  assert_ok(weir_array_unary(WEIR_UNARY_IMAG, &a, stream, &out));
  check_result("imag", &out, WEIR_FLOAT64, (number[]){{0, -2, 0}, {0, 0.5, 0}}, 0);
  weir_array_release(&out);
  assert_ok(weir_array_binary(WEIR_BINARY_POW, &a, &a, stream, &out));
  check_result("pow", &out, WEIR_COMPLEX128,
               (number[]){{0, -0.6166124966884026, 0.05063341930646016}, {0, 0.2915335748848792, -0.2998132811335511}},
               1e-13);
  weir_array_release(&out);
  weir_array_release(&host);
  weir_array_release(&a);
  weir_array_release(&b);
}

/* ---- Reductions ---- */

static const char *const reduce_names[] = {
#define X(number, name, text) text,
    WEIR_REDUCE_MAP(X)
#undef X
};
enum { REDUCTIONS = sizeof reduce_names / sizeof reduce_names[0] };

/* Reduces all elements of a sequence. */
static number model_reduce(int op, weir_dtype dtype, const number *x, int64_t count) {
  number r = op == WEIR_REDUCE_PROD || op == WEIR_REDUCE_ALL ? whole(1) : whole(0);
  int64_t best = 0;
  for (int64_t i = 0; i < count; i++) {
    bool nonzero = is_whole(dtype) ? x[i].integer != 0 : x[i].real != 0 || x[i].imag != 0;
    switch (op) {
    case WEIR_REDUCE_SUM:
    case WEIR_REDUCE_MEAN:
      r = (number){r.integer + x[i].integer, r.real + x[i].real, r.imag + x[i].imag};
      break;
    case WEIR_REDUCE_PROD:
      r = (number){(int64_t)((uint64_t)r.integer * (uint64_t)x[i].integer), r.real * x[i].real - r.imag * x[i].imag,
                   r.real * x[i].imag + r.imag * x[i].real};
      break;
    case WEIR_REDUCE_ALL:
      r.integer = r.integer && nonzero;
      break;
    case WEIR_REDUCE_ANY:
      r.integer = r.integer || nonzero;
      break;
    case WEIR_REDUCE_COUNT_NONZERO:
      r.integer += nonzero;
      break;
    case WEIR_REDUCE_SUM_OF_SQUARES:
      r.real += x[i].real * x[i].real + x[i].imag * x[i].imag;
      break;
    default: /* the smallest and the largest */
      if (op == WEIR_REDUCE_MIN || op == WEIR_REDUCE_ARGMIN ? x[i].real < x[best].real : x[i].real > x[best].real)
        best = i;
    }
  }
  if (op == WEIR_REDUCE_MEAN)
    r.real /= (double)count, r.imag /= (double)count;
  if (op == WEIR_REDUCE_MIN || op == WEIR_REDUCE_MAX)
    return x[best];
  if (op == WEIR_REDUCE_ARGMIN || op == WEIR_REDUCE_ARGMAX)
    return whole(best);
  return r;
}

static weir_dtype reduced_type(int op, weir_dtype dtype) {
  switch (op) {
  case WEIR_REDUCE_SUM:
  case WEIR_REDUCE_PROD:
    return is_whole(dtype) ? WEIR_INT64 : dtype;
  case WEIR_REDUCE_ARGMIN:
  case WEIR_REDUCE_ARGMAX:
  case WEIR_REDUCE_COUNT_NONZERO:
    return WEIR_INT64;
  case WEIR_REDUCE_ALL:
  case WEIR_REDUCE_ANY:
    return dtype == WEIR_UINT8 ? WEIR_UINT8 : WEIR_BOOL;
  case WEIR_REDUCE_SUM_OF_SQUARES:
    return dtype == WEIR_COMPLEX64 ? WEIR_FLOAT32 : dtype == WEIR_COMPLEX128 ? WEIR_FLOAT64 : dtype;
  default:
    return dtype;
  }
}

static void check_reduction(int op, const twin *a, unsigned mask, bool keepdim) {
  weir_dtype dtype = a->model.dtype, result = reduced_type(op, dtype);
  int dims[WEIR_ARRAY_MAX_DIMS], dim_count = 0, ndim = a->model.ndim;
  for (int d = 0; d < ndim; d++)
    if (mask & 1u << d)
      dims[dim_count++] = chance(2) ? d : d - ndim;
  weir_array out = {0};
  weir_status status = weir_array_reduce((weir_reduce_op)op, &a->array, dims, dim_count, keepdim, stream, &out);
  if (status) {
    assert_int_equal(status, WEIR_ERROR_NOT_SUPPORTED);
    bool is_ordered = op >= WEIR_REDUCE_MIN && op <= WEIR_REDUCE_ARGMAX;
    assert_true((weir_dtype_is_complex(dtype) && is_ordered) || (op >= WEIR_REDUCE_ARGMIN && dtype == WEIR_BOOL) ||
                ((op == WEIR_REDUCE_MEAN || op == WEIR_REDUCE_SUM_OF_SQUARES) && is_whole(dtype)));
    return;
  }
  if (!dim_count)
    mask = (1u << ndim) - 1;
  /* Elements of each output, in row-major order of the reduced dimensions. */
  int64_t outputs = weir_array_count(&out), total = weir_array_count(&a->model), each = outputs ? total / outputs : 0;
  number *groups = calloc((size_t)total + 1, sizeof *groups), *expected = calloc((size_t)outputs + 1, sizeof *expected);
  int64_t *filled = calloc((size_t)outputs + 1, sizeof *filled);
  for (int64_t i = 0; i < total; i++) {
    int64_t rest = i, output = 0, scale = 1;
    for (int d = ndim - 1; d >= 0; d--) {
      int64_t at = rest % a->model.shape[d];
      rest /= a->model.shape[d];
      if (!(mask & 1u << d)) {
        output += at * scale;
        scale *= a->model.shape[d];
      }
    }
    groups[output * each + filled[output]++] = read_element(dtype, element_of(&a->model, ndim, a->model.shape, i));
  }
  bool is_prod = op == WEIR_REDUCE_PROD;
  for (int64_t o = 0; o < outputs; o++)
    expected[o] = rounded_to(result, model_reduce(op, dtype, groups + o * each, each),
                             is_whole(result)                ? WEIR_INT64
                             : weir_dtype_is_complex(result) ? WEIR_COMPLEX128
                                                             : WEIR_FLOAT64);
  bool overflows = is_prod && !is_whole(dtype) && each > 30; /* whether it does depends on the order */
  for (int64_t o = 0; o < outputs; o++)
    overflows = overflows || !isfinite(expected[o].real) || (is_prod && fabs(expected[o].real) > 3e38);
  int64_t units = 8 + each / 4;
  double tolerance = (double)units * epsilon_of(result);
  if (!overflows && !(is_prod && weir_dtype_is_complex(dtype)))
    check_result(reduce_names[op], &out, result, expected, tolerance);
  assert_int_equal(out.ndim, keepdim ? ndim : ndim - __builtin_popcount(mask));
  free(groups);
  free(expected);
  free(filled);
  weir_array_release(&out);
}

TEST(reductions) {
  int rounds = repetitions(is_stepped() ? 300 : 800, 10000);
  for (int round = 0; round < rounds; round++) {
    int ndim;
    int64_t shape[WEIR_ARRAY_MAX_DIMS];
    random_shape(&ndim, shape);
    twin a = random_twin(random_place(), all_dtypes[chance(DTYPES)], ndim, shape);
    unsigned mask = chance(3) ? (unsigned)chance(1 << ndim) : 0;
    int op = chance(REDUCTIONS);
    if (op == WEIR_REDUCE_ARGMIN || op == WEIR_REDUCE_ARGMAX)
      mask = mask & (mask - 1) ? 0 : mask;
    check_reduction(op, &a, mask, chance(2));
    release(&a);
  }
}

/* Enough elements for segments: a sum over everything, over rows, and over columns. */
TEST(long_reductions) {
  weir_array a = {0}, out = {0};
  int64_t shape[] = {3, 100003};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_INT32, 2, shape, stream, &a));
  assert_ok(weir_array_arange(&a, weir_scalar_int(0), weir_scalar_int(1), stream));
  int64_t count = shape[0] * shape[1];
  assert_ok(weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, stream, &out));
  check_result("sum", &out, WEIR_INT64, (number[]){whole(count * (count - 1) / 2)}, 0);
  weir_array_release(&out);
  assert_ok(weir_array_reduce(WEIR_REDUCE_ARGMAX, &a, NULL, 0, 0, stream, &out));
  check_result("argmax", &out, WEIR_INT64, (number[]){whole(count - 1)}, 0);
  weir_array_release(&out);
  number rows[3];
  for (int64_t r = 0; r < 3; r++)
    rows[r] = whole(r * shape[1] * shape[1] + shape[1] * (shape[1] - 1) / 2);
  assert_ok(weir_array_reduce(WEIR_REDUCE_SUM, &a, (int[]){1}, 1, 0, stream, &out));
  check_result("sum", &out, WEIR_INT64, rows, 0);
  weir_array_release(&out);
  /* The same elements as three columns. */
  weir_array columns = {0}, copy = {0};
  assert_ok(weir_array_transpose(&a, 0, 1, &columns));
  assert_ok(weir_array_contiguous(&columns, stream, &copy));
  assert_ok(weir_array_reduce(WEIR_REDUCE_SUM, &copy, (int[]){0}, 1, 0, stream, &out));
  check_result("sum", &out, WEIR_INT64, rows, 0);
  weir_array_release(&out);
  assert_ok(weir_array_reduce(WEIR_REDUCE_ARGMIN, &copy, (int[]){0}, 1, 0, stream, &out));
  check_result("argmin", &out, WEIR_INT64, (number[]){whole(0), whole(0), whole(0)}, 0);
  weir_array_release(&out);
  weir_array_release(&copy);
  weir_array_release(&columns);
  weir_array_release(&a);

  /* Halves are added as floats: in halves the sum would stop at 2048. */
  int64_t many = 65504;
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT16, 1, &many, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_int(1), stream));
  assert_ok(weir_array_reduce(WEIR_REDUCE_SUM, &a, NULL, 0, 0, stream, &out));
  check_result("sum", &out, WEIR_FLOAT16, (number[]){{0, 65504, 0}}, 0);
  weir_array_release(&out);
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 0, NULL, stream, &out));
  assert_ok(weir_array_reduce(WEIR_REDUCE_MEAN, &a, NULL, 0, 0, stream, &out));
  check_result("mean", &out, WEIR_FLOAT32, (number[]){{0, 1, 0}}, 0);
  weir_array_release(&out);
  weir_array_release(&a);
}

/* NaN is the smallest and the largest element, and sums of nothing are 0. */
TEST(special_reductions) {
  float values[] = {1, NAN, -3, NAN};
  int64_t count = 4, none = 0;
  weir_array host = {0}, a = {0}, out = {0};
  assert_ok(weir_array_from_memory(values, weir_place_host(), WEIR_FLOAT32, 1, &count, NULL, NULL, NULL, &host));
  assert_ok(weir_array_to(&host, weir_place_device(0), WEIR_FLOAT32, stream, 0, &a));
  static const weir_reduce_op ops[] = {WEIR_REDUCE_MIN, WEIR_REDUCE_MAX, WEIR_REDUCE_ARGMIN, WEIR_REDUCE_ARGMAX};
  for (int i = 0; i < 4; i++) {
    assert_ok(weir_array_reduce(ops[i], &a, NULL, 0, 0, stream, &out));
    check_result("order", &out, i < 2 ? WEIR_FLOAT32 : WEIR_INT64, (number[]){{1, NAN, 0}}, 0);
    weir_array_release(&out);
  }
  weir_array_release(&a);
  weir_array_release(&host);
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, &none, stream, &a));
  static const weir_reduce_op empty_ops[] = {WEIR_REDUCE_SUM, WEIR_REDUCE_PROD, WEIR_REDUCE_MEAN, WEIR_REDUCE_ALL,
                                             WEIR_REDUCE_ANY};
  static const number empty_results[] = {{0, 0, 0}, {0, 1, 0}, {0, NAN, 0}, {1, 1, 0}, {0, 0, 0}};
  for (int i = 0; i < 5; i++) {
    assert_ok(weir_array_reduce(empty_ops[i], &a, NULL, 0, 0, stream, &out));
    check_result("empty", &out, out.dtype, &empty_results[i], 0);
    weir_array_release(&out);
  }
  assert_error_says(INVALID_ARGUMENT, "Expected reduction dim to be specified for input.numel() == 0",
                    weir_array_reduce(WEIR_REDUCE_MAX, &a, NULL, 0, 0, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "Expected reduction dim 0 to have non-zero size",
                    weir_array_reduce(WEIR_REDUCE_ARGMAX, &a, (int[]){0}, 1, 0, stream, &out));
  weir_array_release(&a);
}

/* ---- Others ---- */

TEST(fill_and_arange) {
  for (int t = 0; t < DTYPES; t++) {
    weir_dtype dtype = all_dtypes[t];
    int64_t shape[] = {5, 7};
    weir_array a = {0}, view = {0};
    assert_ok(weir_array_empty(weir_place_device(0), dtype, 2, shape, stream, &a));
    assert_ok(weir_array_fill(&a, weir_scalar_int(1), stream));
    /* Every second element of each row. */
    assert_ok(weir_array_slice(&a, 1, 0, 7, 2, &view));
    assert_ok(weir_array_fill(&view, weir_scalar_int(0), stream));
    number expected[35];
    for (int i = 0; i < 35; i++)
      expected[i] = whole(i % 7 % 2);
    check_result("fill", &a, dtype, expected, 0);
    weir_array_release(&view);
    if (dtype != WEIR_BOOL) {
      assert_ok(weir_array_arange(&a, weir_scalar_int(3), weir_scalar_int(2), stream));
      for (int i = 0; i < 35; i++)
        expected[i] = whole(3 + 2 * i);
      check_result("arange", &a, dtype, expected, 0);
      assert_ok(weir_array_transpose(&a, 0, 1, &view));
      assert_ok(weir_array_arange(&view, weir_scalar_int(0), weir_scalar_int(1), stream));
      for (int i = 0; i < 35; i++)
        expected[i] = whole(i % 7 * 5 + i / 7);
      check_result("arange", &a, dtype, expected, 0);
      weir_array_release(&view);
    } else
      assert_error(NOT_SUPPORTED, weir_array_arange(&a, weir_scalar_int(3), weir_scalar_int(2), stream));
    weir_array_release(&a);
  }
}

TEST(where_and_add_scaled) {
  int64_t count = 6;
  weir_array a = {0}, b = {0}, condition = {0}, out = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_INT32, 1, &count, stream, &a));
  assert_ok(weir_array_arange(&a, weir_scalar_int(0), weir_scalar_int(1), stream));
  assert_ok(weir_array_binary_scalar(WEIR_BINARY_MUL, &a, weir_scalar_float(0.5), 0, stream, &b));
  assert_int_equal(b.dtype, WEIR_FLOAT32);
  assert_ok(weir_array_binary_scalar(WEIR_BINARY_LT, &a, weir_scalar_int(3), 0, stream, &condition));
  assert_ok(weir_array_where(&condition, &a, &b, stream, &out));
  check_result("where", &out, WEIR_FLOAT32,
               (number[]){{0, 0, 0}, {0, 1, 0}, {0, 2, 0}, {0, 1.5, 0}, {0, 2, 0}, {0, 2.5, 0}}, 0);
  weir_array_release(&out);
  assert_ok(weir_array_add_scaled(&a, &b, weir_scalar_float(-2), stream, &out));
  check_result("add", &out, WEIR_FLOAT32, (number[6]){{0}}, 0);
  assert_error_says(INVALID_ARGUMENT, "argument alpha must not be a floating point number",
                    weir_array_add_scaled(&a, &a, weir_scalar_float(0.5), stream, &out));
  assert_error_says(INVALID_ARGUMENT, "where expected condition to be a boolean tensor",
                    weir_array_where(&a, &a, &b, stream, &out));
  weir_array_release(&out);
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&condition);
}

/* A number on the host can be combined with an array of a device; other host arrays cannot. */
TEST(places) {
  int64_t count = 3;
  weir_array a = {0}, number_array = {0}, host = {0}, out = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, &count, stream, &a));
  assert_ok(weir_array_fill(&a, weir_scalar_float(1.5), stream));
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT64, 0, NULL, stream, &number_array));
  assert_ok(weir_array_fill(&number_array, weir_scalar_int(2), stream));
  assert_ok(weir_array_binary(WEIR_BINARY_MUL, &number_array, &a, stream, &out));
  check_result("mul", &out, WEIR_FLOAT32, (number[]){{0, 3, 0}, {0, 3, 0}, {0, 3, 0}}, 0);
  weir_array_release(&out);
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, &count, stream, &host));
  assert_error_says(INVALID_ARGUMENT,
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
                    weir_array_binary(WEIR_BINARY_MUL, &a, &host, stream, &out));
  if (devices() > 1)
    assert_error_says(INVALID_ARGUMENT, "the stream belongs to device 1",
                      weir_array_binary(WEIR_BINARY_MUL, &a, &a, new_stream(1), &out));
  weir_array_release(&a);
  weir_array_release(&host);
  weir_array_release(&number_array);
}

TEST(errors) {
  weir_array a = {0}, b = {0}, out = {0}, view = {0};
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_INT32, 2, (int64_t[]){3, 1}, stream, &a));
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_INT32, 2, (int64_t[]){2, 1}, stream, &b));
  assert_error_says(INVALID_ARGUMENT,
                    "The size of tensor a (3) must match the size of tensor b (2) at non-singleton dimension 0",
                    weir_array_binary(WEIR_BINARY_ADD, &a, &b, stream, &out));
  assert_ok(weir_array_expand(&a, 2, (int64_t[]){3, 4}, &view));
  assert_error_says(INVALID_ARGUMENT, "more than one element of the written-to tensor refers to a single memory",
                    weir_array_fill(&view, weir_scalar_int(0), stream));
  weir_array_release(&view);
  assert_error_says(INVALID_ARGUMENT, "result type Float can't be cast to the desired output type Int",
                    weir_array_binary_scalar(WEIR_BINARY_MUL, &a, weir_scalar_float(0.5), 0, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "output with shape [2, 1] doesn't match the broadcast shape [3, 1]",
                    weir_array_unary(WEIR_UNARY_NEG, &a, stream, &b));
  assert_error_says(INVALID_ARGUMENT, "Integers to negative integer powers are not allowed.",
                    weir_array_binary_scalar(WEIR_BINARY_POW, &a, weir_scalar_int(-1), 0, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "ZeroDivisionError",
                    weir_array_binary_scalar(WEIR_BINARY_FLOOR_DIV, &a, weir_scalar_int(0), 0, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "value cannot be converted to type int without overflow",
                    weir_array_fill(&a, weir_scalar_int(1ll << 40), stream));
  assert_error_says(NOT_SUPPORTED, "mean(): could not infer output dtype",
                    weir_array_reduce(WEIR_REDUCE_MEAN, &a, NULL, 0, 0, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "Dimension out of range (expected to be in range of [-2, 1], but got 2)",
                    weir_array_reduce(WEIR_REDUCE_SUM, &a, (int[]){2}, 1, 0, stream, &out));
  assert_error_says(INVALID_ARGUMENT, "op is 99, which is not an operation",
                    weir_array_binary((weir_binary_op)99, &a, &a, stream, &out));
  weir_array none = {0};
  assert_error_says(INVALID_ARGUMENT, "a is not an array", weir_array_unary(WEIR_UNARY_NEG, &none, stream, &out));
  weir_array_release(&a);
  weir_array_release(&b);
  int64_t count = 8;
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_BOOL, 1, &count, stream, &a));
  assert_error_says(NOT_SUPPORTED, "Negation, the `-` operator, on a bool tensor is not supported.",
                    weir_array_unary(WEIR_UNARY_NEG, &a, stream, &out));
  assert_error_says(NOT_SUPPORTED, "Subtraction, the `-` operator, with two bool tensors is not supported.",
                    weir_array_binary(WEIR_BINARY_SUB, &a, &a, stream, &out));
  weir_array_release(&a);
  /* An input that begins in the middle of the output. */
  assert_ok(weir_array_empty(weir_place_device(0), WEIR_FLOAT32, 1, &count, stream, &a));
  assert_ok(weir_array_slice(&a, 0, 0, 6, 1, &view));
  assert_ok(weir_array_slice(&a, 0, 2, 8, 1, &b));
  assert_error_says(INVALID_ARGUMENT, "some elements of the input tensor and the written-to tensor refer to a single",
                    weir_array_unary(WEIR_UNARY_NEG, &b, stream, &view));
  assert_ok(weir_array_unary(WEIR_UNARY_NEG, &b, stream, &b)); /* in place is fine */
  weir_array_release(&a);
  weir_array_release(&b);
  weir_array_release(&view);
  assert_null(out.storage);
}

TEST(item) {
  for (int t = 0; t < DTYPES; t++) {
    weir_array a = {0};
    assert_ok(weir_array_empty(weir_place_device(0), all_dtypes[t], 0, NULL, stream, &a));
    assert_ok(weir_array_fill(&a, weir_scalar_int(1), stream));
    weir_scalar item;
    assert_ok(weir_array_item(&a, stream, &item));
    if (is_whole(all_dtypes[t]))
      assert_int_equal(item.integer, 1);
    else
      assert_true(item.real == 1 && item.imag == 0);
    weir_array_release(&a);
  }
  weir_array a = {0};
  weir_scalar item;
  assert_ok(weir_array_empty(weir_place_host(), WEIR_FLOAT32, 1, (int64_t[]){2}, stream, &a));
  assert_error_says(INVALID_ARGUMENT, "a Tensor with 2 elements cannot be converted to Scalar",
                    weir_array_item(&a, stream, &item));
  weir_array_release(&a);
}

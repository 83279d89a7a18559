/*
 * Elementwise functions from source: types, strides, broadcasting, scalars, several outputs.
 */
#include "weir/compute/jiterator.h"

#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/runtime.h"
#include "weir/compute/kernel.h"

static int setup(void **state) {
  if (runtime_setup(state))
    return -1;
  char path[1024];
  const char *how;
  if (!is_soft() && weir_library_find("nvrtc", path, sizeof path, NULL, &how))
    waived("needs NVRTC");
  return 0;
}

FIXTURE(.prepare = runtime_need_device, .setup = setup, .teardown = runtime_teardown)

static void *upload(const void *from, size_t bytes) {
  void *to = device_memory(0, bytes);
  assert_cu(d->Memcpy(d, (uintptr_t)to, (uintptr_t)from, bytes));
  return to;
}

static void download(void *to, void *from, size_t bytes) {
  assert_ok(weir_device_synchronize(0));
  assert_cu(d->Memcpy(d, (uintptr_t)to, (uintptr_t)from, bytes));
  free_device_memory(0, from);
}

static const char sum_code[] = "template <typename T> T scaled_sum(T x, T y, T by) { return (x + y) * by; }";
static const char *const sum_scalars[] = {"by"};

/* A flat call, a strided call of other types, and a call on another shape, which is flat once merged. */
TEST(types_and_strides) {
  weir_jit_fn *fn;
  assert_ok(weir_jit_create(sum_code, 1, sum_scalars, 1, &fn));
  assert_string_equal(weir_jit_name(fn), "scaled_sum");
  assert_int_equal(weir_jit_scalar_index(fn, "by"), 0);
  assert_int_equal(weir_jit_scalar_index(fn, "other"), -1);
  enum { N = 600 };
  float x[N], y[N], out[N];
  for (int i = 0; i < N; i++) {
    x[i] = (float)i;
    y[i] = 1;
  }
  void *dx = upload(x, sizeof x), *dy = upload(y, sizeof y), *dout = upload(x, sizeof x);
  int64_t one[] = {N}, strides[] = {4};
  weir_jit_operand inputs[] = {{dx, WEIR_FLOAT32, strides}, {dy, WEIR_FLOAT32, strides}};
  weir_jit_operand output = {dout, WEIR_FLOAT32, strides};
  weir_jit_scalar by = {.real = 0.5};
  weir_stream stream = default_stream(0);
  assert_ok(weir_jit_launch(fn, stream, WEIR_FLOAT32, 1, one, &output, 1, inputs, 2, &by, 1));
  int64_t three[] = {20, 1, 30}, strides3[] = {120, 77, 4};
  inputs[0].strides = inputs[1].strides = output.strides = strides3;
  inputs[0].data = dout;
  assert_ok(weir_jit_launch(fn, stream, WEIR_FLOAT32, 3, three, &output, 1, inputs, 2, &by, 1));
  download(out, dout, sizeof out);
  for (int i = 0; i < N; i++)
    assert_float_equal(out[i], ((float)(i + 1) * 0.5f + 1) * 0.5f, 0);

  /* out (double, transposed) = (a column of int64 + a row of uint8) * 2 */
  long long column[3] = {100, 200, 300};
  unsigned char row[4] = {1, 2, 3, 4};
  double table[12] = {0};
  void *dc = upload(column, sizeof column), *dr = upload(row, sizeof row), *dt = upload(table, sizeof table);
  int64_t shape[] = {3, 4}, of_column[] = {8, 0}, of_row[] = {0, 1}, of_out[] = {8, 24};
  weir_jit_operand mixed[] = {{dc, WEIR_INT64, of_column}, {dr, WEIR_UINT8, of_row}};
  weir_jit_operand wide = {dt, WEIR_FLOAT64, of_out};
  by = (weir_jit_scalar){.is_integer = 1, .integer = 2};
  assert_ok(weir_jit_launch(fn, stream, WEIR_INT64, 2, shape, &wide, 1, mixed, 2, &by, 1));
  download(table, dt, sizeof table);
  for (int i = 0; i < 3; i++)
    for (int j = 0; j < 4; j++)
      assert_float_equal(table[j * 3 + i], 2.0 * (double)(column[i] + row[j]), 0);
  free_device_memory(0, dc);
  free_device_memory(0, dr);
  free_device_memory(0, dx);
  free_device_memory(0, dy);
  weir_jit_destroy(fn);
}

TEST(several_outputs_and_half) {
  weir_jit_fn *fn;
  assert_ok(weir_jit_create(
      "template <typename T> void both(T x, T &twice, T &square) { twice = x + x; square = x * x; }", 2, NULL, 0, &fn));
  unsigned short x[3] = {0x3c00, 0x4000, 0x4200}; /* 1, 2, 3 in half */
  float square[3];
  void *dx = upload(x, sizeof x), *dtwice = upload(x, sizeof x), *dsquare = upload(square, sizeof square);
  int64_t shape[] = {3}, halves[] = {2}, floats[] = {4};
  weir_jit_operand input = {dx, WEIR_FLOAT16, halves};
  weir_jit_operand outputs[] = {{dtwice, WEIR_FLOAT16, halves}, {dsquare, WEIR_FLOAT32, floats}};
  assert_ok(weir_jit_launch(fn, default_stream(0), WEIR_FLOAT16, 1, shape, outputs, 2, &input, 1, NULL, 0));
  download(x, dtwice, sizeof x);
  download(square, dsquare, sizeof square);
  free_device_memory(0, dx);
  const unsigned short twice[] = {0x4000, 0x4400, 0x4600};
  assert_memory_equal(x, twice, sizeof x);
  for (int i = 0; i < 3; i++)
    assert_float_equal(square[i], (i + 1) * (i + 1), 0);
  weir_jit_destroy(fn);
}

/* Complex operands of both precisions, a real input, and scalars that the function takes as T, bool and double. */
TEST(complex) {
  static const char code[] =
      "template <typename T> T product(T x, T y, T by, bool conjugate, double shift) {\n"
      "  T z = conjugate ? conj(x) * y : x * y;\n"
      "  z *= by;\n"
      "  return (2 * z + shift - z) / T(1, 1) * abs(T(0, 1)) + T(real(x) - x.real(), std::imag(x) - x.imag());\n"
      "}";
  static const char *const names[] = {"by", "conjugate", "shift"};
  weir_jit_fn *fn;
  assert_ok(weir_jit_create(code, 1, names, 3, &fn));
  float complex x[3];
  double y[3];
  for (int i = 0; i < 3; i++) {
    x[i] = (float)i + (float)(i + 1) * I;
    y[i] = i + 2;
  }
  for (int is_double = 0; is_double < 2; is_double++) {
    double complex out[3];
    float complex out_float[3];
    void *dx = upload(x, sizeof x), *dy = upload(y, sizeof y), *dout = device_memory(0, sizeof out);
    int64_t shape[] = {3}, eight[] = {8}, sixteen[] = {16};
    weir_jit_operand inputs[] = {{dx, WEIR_COMPLEX64, eight}, {dy, WEIR_FLOAT64, eight}};
    weir_dtype type = is_double ? WEIR_COMPLEX128 : WEIR_COMPLEX64;
    weir_jit_operand output = {dout, type, is_double ? sixteen : eight};
    weir_jit_scalar scalars[] = {{.real = 0.5, .imag = -2}, {.is_integer = 1, .integer = 1}, {.real = 3}};
    assert_ok(weir_jit_launch(fn, default_stream(0), type, 1, shape, &output, 1, inputs, 2, scalars, 3));
    download(is_double ? (void *)out : out_float, dout, is_double ? sizeof out : sizeof out_float);
    for (int i = 0; i < 3; i++) {
      double complex wanted = (conj((double complex)x[i]) * y[i] * (0.5 - 2 * I) + 3) / (1 + I);
      assert_float_equal(cabs((is_double ? out[i] : out_float[i]) - wanted), 0, is_double ? 1e-14 : 1e-5);
    }
    /* A real output takes the real part; a real computation takes that of its inputs, and no complex scalar. */
    weir_jit_operand real = {dy, WEIR_FLOAT64, eight};
    assert_ok(weir_jit_launch(fn, default_stream(0), type, 1, shape, &real, 1, inputs, 2, scalars, 3));
    double parts[3];
    download(parts, dy, sizeof parts);
    for (int i = 0; i < 3; i++)
      assert_float_equal(parts[i], creal((conj((double complex)x[i]) * y[i] * (0.5 - 2 * I) + 3) / (1 + I)), 1e-5);
    assert_error_says(INVALID_ARGUMENT, "scalar 'by' is complex, but the computation is in 'float'",
                      weir_jit_launch(fn, default_stream(0), WEIR_FLOAT32, 1, shape, &real, 1, inputs, 2, scalars, 3));
    free_device_memory(0, dx);
  }
  weir_jit_destroy(fn);
}

/* Each function of complex numbers, against the host's. */
TEST(complex_functions) {
  static const struct {
    const char *name;
    double complex (*host)(double complex);
  } functions[] = {{"exp", cexp},   {"log", clog},   {"sqrt", csqrt},   {"sin", csin},     {"cos", ccos},
                   {"tan", ctan},   {"asin", casin}, {"acos", cacos},   {"atan", catan},   {"sinh", csinh},
                   {"cosh", ccosh}, {"tanh", ctanh}, {"asinh", casinh}, {"acosh", cacosh}, {"atanh", catanh},
                   {"proj", cproj}, {"conj", conj}};
  enum { COUNT = sizeof functions / sizeof *functions, POINTS = 7 };
  static const double complex points[POINTS] = {0.5 + 0.25 * I, -1.5 + 2 * I,     3 - 1 * I,  -0.3 - 0.7 * I,
                                                1e4 + 1e4 * I,  0.001 + 1e-5 * I, -2 - 30 * I};
  /* One kernel for all of them: the number of the function is a scalar. */
  char code[2000] = "template <typename T> T pick(T z, int which) {\n  switch (which) {\n";
  for (int i = 0; i < COUNT; i++) {
    size_t length = strlen(code);
    snprintf(code + length, sizeof code - length, "  case %d: return %s(z);\n", i, functions[i].name);
  }
  strcat(code, "  case 17: return log2(z);\n  case 18: return log10(z);\n  case 19: return pow(z, T(2, 1));\n"
               "  case 20: return std::pow(z, 3);\n  case 21: return std::polar(abs(z), arg(z));\n  case 22: return "
               "norm(z);\n  case 23: return z && !isnan(z) && isfinite(z) && !isinf(z) ? T(1) : T(0);\n  }\n"
               "  return T();\n}");
  weir_jit_fn *fn;
  static const char *const names[] = {"which"};
  assert_ok(weir_jit_create(code, 1, names, 1, &fn));
  for (int which = 0; which < 24; which++) {
    double complex out[POINTS];
    void *from = upload(points, sizeof points), *to = device_memory(0, sizeof out);
    int64_t shape[] = {POINTS}, strides[] = {16};
    weir_jit_operand input = {from, WEIR_COMPLEX128, strides}, output = {to, WEIR_COMPLEX128, strides};
    weir_jit_scalar scalar = {.is_integer = 1, .integer = which};
    assert_ok(weir_jit_launch(fn, default_stream(0), WEIR_COMPLEX128, 1, shape, &output, 1, &input, 1, &scalar, 1));
    download(out, to, sizeof out);
    free_device_memory(0, from);
    for (int i = 0; i < POINTS; i++) {
      double complex z = points[i], wanted = which < COUNT ? functions[which].host(z)
                                             : which == 17 ? clog(z) / log(2)
                                             : which == 18 ? clog(z) / log(10)
                                             : which == 19 ? cpow(z, 2 + I)
                                             : which == 20 ? z * z * z
                                             : which == 21 ? z
                                             : which == 22 ? creal(z * conj(z))
                                                           : 1;
      if (!isfinite(creal(wanted)) || !isfinite(cimag(wanted)))
        continue; /* sinh and cosh of 1e4 */
      if (cabs(out[i] - wanted) > 1e-9 * (1 + cabs(wanted)))
        fail_msg("function %d of %g%+gi: %g%+gi, expected %g%+gi", which, creal(z), cimag(z), creal(out[i]),
                 cimag(out[i]), creal(wanted), cimag(wanted));
    }
  }
  weir_jit_destroy(fn);
}

/* The last of several functions is called, and one result can be a reference too. */
TEST(entry_functions) {
  static const char two[] = "template <typename T> T twice(T x) { return x + x; }\n"
                            "template <typename T> T entry(T x) { return twice(x) + 1; }";
  static const char one[] = "template <typename T> void entry(T x, T &out) { out = x + x + 1; }";
  for (int by_reference = 0; by_reference < 2; by_reference++) {
    weir_jit_fn *fn;
    assert_ok(by_reference ? weir_jit_create_by_reference(one, 1, NULL, 0, &fn)
                           : weir_jit_create(two, 1, NULL, 0, &fn));
    assert_string_equal(weir_jit_name(fn), "entry");
    int v[2] = {1, 2};
    void *p = upload(v, sizeof v);
    int64_t shape[] = {2}, strides[] = {4};
    weir_jit_operand o = {p, WEIR_INT32, strides};
    assert_ok(weir_jit_launch(fn, default_stream(0), WEIR_INT32, 1, shape, &o, 1, &o, 1, NULL, 0));
    download(v, p, sizeof v);
    assert_int_equal(v[0], 3);
    assert_int_equal(v[1], 5);
    weir_jit_destroy(fn);
  }
}

TEST(after_a_restart) {
  weir_jit_fn *fn;
  assert_ok(weir_jit_create(sum_code, 1, sum_scalars, 1, &fn));
  for (int round = 0; round < 2; round++) {
    float v[2] = {1, 2};
    void *p = upload(v, sizeof v);
    int64_t shape[] = {2}, strides[] = {4};
    weir_jit_operand in[] = {{p, WEIR_FLOAT32, strides}, {p, WEIR_FLOAT32, strides}};
    weir_jit_scalar by = {.real = 1};
    assert_ok(weir_jit_launch(fn, default_stream(0), WEIR_FLOAT32, 1, shape, in, 1, in, 2, &by, 1));
    download(v, p, sizeof v);
    assert_float_equal(v[1], 4, 0);
    assert_ok(weir_shutdown());
  }
  weir_jit_destroy(fn);
}

TEST(bad_arguments) {
  weir_jit_fn *fn = NULL;
  static const char *const bad[] = {"",
                                    "int f(int x) { return x; }",
                                    "template <typename T> T f(T x);",
                                    "template <typename T> f(T x) { return x; }",
                                    "template T f(T x) { return x; }",
                                    "template <typename T> T my _kernel(T x) { return x; }",
                                    "template <typename T> Tmy_kernel(T x) { return x; }"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_error_says(INVALID_ARGUMENT, "Couldn't parse code", weir_jit_create(bad[i], 1, NULL, 0, &fn));
  assert_error_says(INVALID_ARGUMENT, "1 to 8", weir_jit_create(sum_code, 0, NULL, 0, &fn));
  assert_error_says(INVALID_ARGUMENT, "0 to 8", weir_jit_create(sum_code, 1, NULL, 9, &fn));
  assert_error_says(INVALID_ARGUMENT, "scalar_names is NULL", weir_jit_create(sum_code, 1, NULL, 1, &fn));
  assert_null(fn);
  assert_ok(weir_jit_create(sum_code, 1, sum_scalars, 1, &fn));
  int64_t shape[] = {2}, strides[] = {4}, negative[] = {-1};
  weir_jit_operand o[9] = {{NULL, WEIR_FLOAT32, strides}, {NULL, WEIR_FLOAT32, strides}, {NULL, WEIR_FLOAT32, strides}};
  weir_jit_scalar by = {.real = 1};
  weir_stream s = default_stream(0);
  assert_error_says(INVALID_ARGUMENT, "only supports up to 8 tensor inputs (got 9)",
                    weir_jit_launch(fn, s, WEIR_FLOAT32, 1, shape, o, 1, o, 9, &by, 1));
  assert_error_says(INVALID_ARGUMENT, "has 1 outputs (got 2)",
                    weir_jit_launch(fn, s, WEIR_FLOAT32, 1, shape, o, 2, o, 2, &by, 1));
  assert_error_says(INVALID_ARGUMENT, "has 1 scalars (got 0)",
                    weir_jit_launch(fn, s, WEIR_FLOAT32, 1, shape, o, 1, o, 2, NULL, 0));
  assert_error_says(INVALID_ARGUMENT, "type is 8", weir_jit_launch(fn, s, (weir_dtype)8, 1, shape, o, 1, o, 2, &by, 1));
  assert_error_says(INVALID_ARGUMENT, "shape[0] is -1",
                    weir_jit_launch(fn, s, WEIR_FLOAT32, 1, negative, o, 1, o, 2, &by, 1));
  o[1].strides = NULL;
  assert_error_says(INVALID_ARGUMENT, "input 1 has no strides",
                    weir_jit_launch(fn, s, WEIR_FLOAT32, 1, shape, o, 1, o, 2, &by, 1));
  o[1].strides = strides;
  int64_t none[] = {0};
  assert_ok(weir_jit_launch(fn, s, WEIR_FLOAT32, 1, none, o, 1, o, 2, &by, 1)); /* nothing to do */
  /* One input more than the function takes does not compile. */
  assert_error_says(INVALID_ARGUMENT, "does not compile",
                    weir_jit_launch(fn, s, WEIR_FLOAT32, 1, shape, o, 1, o, 3, &by, 1));
  weir_jit_destroy(fn);
  weir_jit_destroy(NULL);
}

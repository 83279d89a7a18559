/*
 * Elements of arrays in plain C, for tests that compare operations with a model: reading, writing and rounding each
 * type, and arrays of random shapes and strides.
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "support/random.h"
#include "weir/compute/array.h"

/* A number in all forms; those of integers and bool have `integer`. */
typedef struct number {
  int64_t integer;
  double real, imag;
} number;

static const weir_dtype all_dtypes[] = {WEIR_UINT8,     WEIR_INT8,       WEIR_INT16,   WEIR_INT32,
                                        WEIR_INT64,     WEIR_FLOAT16,    WEIR_FLOAT32, WEIR_FLOAT64,
                                        WEIR_COMPLEX64, WEIR_COMPLEX128, WEIR_BOOL,    WEIR_BFLOAT16};
enum { DTYPES = sizeof all_dtypes / sizeof all_dtypes[0] };

static inline int is_whole(weir_dtype dtype) { return weir_dtype_is_integer(dtype) || dtype == WEIR_BOOL; }

/* The nearest 16-bit float: a multiple of a power of two that depends on the exponent. */
static inline double round_to_digits(float value, int digits, int least, double largest) {
  if (value == 0 || !isfinite(value))
    return value;
  int exponent;
  (void)frexpf(value, &exponent);
  int unit = exponent - digits < least ? least : exponent - digits;
  double rounded = ldexp(nearbyint(ldexp(value, -unit)), unit);
  return fabs(rounded) > largest ? copysign(INFINITY, rounded) : rounded;
}

/* The number that an element of a type has after a store. */
static inline number rounded_to(weir_dtype dtype, number n, weir_dtype from) {
  if (is_whole(from))
    n.real = (double)n.integer, n.imag = 0;
  if (!weir_dtype_is_complex(from))
    n.imag = 0;
  if (dtype == WEIR_BOOL)
    n.integer = is_whole(from) ? n.integer != 0 : n.real != 0 || n.imag != 0;
  else if (is_whole(dtype)) {
    int64_t integer = is_whole(from) ? n.integer : (int64_t)n.real;
    n.integer = dtype == WEIR_UINT8   ? (uint8_t)integer
                : dtype == WEIR_INT8  ? (int8_t)integer
                : dtype == WEIR_INT16 ? (int16_t)integer
                : dtype == WEIR_INT32 ? (int32_t)integer
                                      : integer;
  }
  if (is_whole(dtype))
    return (number){n.integer, (double)n.integer, 0};
  float narrow = is_whole(from) ? (float)n.integer : (float)n.real;
  n.integer = 0;
  switch (dtype) {
  case WEIR_FLOAT16:
    n.real = round_to_digits(narrow, 11, -24, 65504);
    break;
  case WEIR_BFLOAT16:
    n.real = round_to_digits(narrow, 8, -133, 0x1.FEp127);
    break;
  case WEIR_FLOAT32:
    n.real = narrow;
    break;
  case WEIR_COMPLEX64:
    n.real = narrow;
    n.imag = (float)n.imag;
    break;
  default:
    break;
  }
  if (!weir_dtype_is_complex(dtype))
    n.imag = 0;
  return n;
}

static inline float half_of_bits(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  float size = exponent == 31 ? fraction ? NAN : INFINITY
               : exponent     ? ldexpf(1024 + (float)fraction, exponent - 25)
                              : ldexpf((float)fraction, -24);
  return bits & 0x8000 ? -size : size;
}

static inline uint16_t bits_of_half(double value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  double size = fabs(value);
  if (isnan(size))
    return 0x7fff;
  if (isinf(size))
    return sign | 0x7c00;
  if (size < 0x1p-14)
    return (uint16_t)(sign | (int)ldexp(size, 24));
  int exponent;
  double fraction = frexp(size, &exponent);
  return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(fraction, 11) - 1024));
}

static inline number read_element(weir_dtype dtype, const void *at) {
  number n = {0};
  float f[2];
  uint32_t bits;
  switch (dtype) {
  case WEIR_UINT8:
  case WEIR_BOOL:
    n.integer = *(const uint8_t *)at;
    break;
  case WEIR_INT8:
    n.integer = *(const int8_t *)at; /* NOLINT(bugprone-signed-char-misuse): it is a number */
    break;
  case WEIR_INT16:
    n.integer = *(const int16_t *)at;
    break;
  case WEIR_INT32:
    n.integer = *(const int32_t *)at;
    break;
  case WEIR_INT64:
    n.integer = *(const int64_t *)at;
    break;
  case WEIR_FLOAT16:
    n.real = half_of_bits(*(const uint16_t *)at);
    break;
  case WEIR_BFLOAT16:
    bits = (uint32_t) * (const uint16_t *)at << 16;
    memcpy(f, &bits, sizeof bits);
    n.real = f[0];
    break;
  case WEIR_FLOAT32:
    n.real = *(const float *)at;
    break;
  case WEIR_FLOAT64:
    n.real = *(const double *)at;
    break;
  case WEIR_COMPLEX64:
    memcpy(f, at, sizeof f);
    n.real = f[0], n.imag = f[1];
    break;
  case WEIR_COMPLEX128:
    n.real = ((const double *)at)[0], n.imag = ((const double *)at)[1];
    break;
  }
  if (is_whole(dtype))
    n.real = (double)n.integer;
  return n;
}

/* Of a number that the type can represent. */
static inline void write_element(weir_dtype dtype, void *at, number n) {
  float f[2] = {(float)n.real, (float)n.imag};
  uint32_t bits;
  uint16_t half;
  switch (dtype) {
  case WEIR_UINT8:
  case WEIR_BOOL:
  case WEIR_INT8:
    *(uint8_t *)at = (uint8_t)n.integer;
    break;
  case WEIR_INT16:
    *(int16_t *)at = (int16_t)n.integer;
    break;
  case WEIR_INT32:
    *(int32_t *)at = (int32_t)n.integer;
    break;
  case WEIR_INT64:
    *(int64_t *)at = n.integer;
    break;
  case WEIR_FLOAT16:
    half = bits_of_half(n.real);
    memcpy(at, &half, sizeof half);
    break;
  case WEIR_BFLOAT16:
    memcpy(&bits, f, sizeof bits);
    half = (uint16_t)(bits >> 16);
    memcpy(at, &half, sizeof half);
    break;
  case WEIR_FLOAT32:
    *(float *)at = f[0];
    break;
  case WEIR_FLOAT64:
    *(double *)at = n.real;
    break;
  case WEIR_COMPLEX64:
    memcpy(at, f, sizeof f);
    break;
  case WEIR_COMPLEX128:
    ((double *)at)[0] = n.real, ((double *)at)[1] = n.imag;
    break;
  }
}

/* A small number that every type represents exactly, except what it cannot have: signs, fractions, imaginary parts. */
static inline number small_number(weir_dtype dtype, uint64_t random) {
  number n = {(int64_t)(random % 13) - 6, 0, 0};
  if (dtype == WEIR_UINT8)
    n.integer += 6;
  if (dtype == WEIR_BOOL)
    n.integer = random % 2;
  n.real = is_whole(dtype) ? (double)n.integer : (double)n.integer + (double)(random >> 8 & 3) / 4;
  n.imag = weir_dtype_is_complex(dtype) ? (double)((int)(random >> 16 & 7) - 3) / 2 : 0;
  return n;
}

/* The address of element `index`, in row-major order, of a host array that is broadcast to a shape. */
static inline void *element_of(const weir_array *array, int ndim, const int64_t *shape, int64_t index) {
  char *at = array->data;
  for (int d = ndim - 1; d >= 0; d--) {
    int64_t place = index % shape[d];
    int own = d - (ndim - array->ndim);
    index /= shape[d];
    if (own >= 0 && array->shape[own] != 1)
      at += place * array->strides[own] * (int64_t)weir_dtype_size(array->dtype);
  }
  return at;
}

/* Whether a result is the expected one, up to `tolerance` times its size. */
static inline int is_close(weir_dtype dtype, number found, number expected, double tolerance) {
  if (is_whole(dtype))
    return found.integer == expected.integer;
  double size = hypot(expected.real, expected.imag);
  if (isnan(expected.real) || isnan(found.real))
    return isnan(expected.real) && isnan(found.real);
  if (isinf(expected.real) || isinf(found.real))
    return expected.real == found.real;
  return hypot(found.real - expected.real, found.imag - expected.imag) <= tolerance * (size > 1e-3 ? size : 1e-3);
}

/* The distance of neighbouring numbers near 1. */
static inline double epsilon_of(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_FLOAT16:
    return 0x1p-10;
  case WEIR_BFLOAT16:
    return 0x1p-7;
  case WEIR_FLOAT32:
  case WEIR_COMPLEX64:
    return 0x1p-23;
  default:
    return 0x1p-52;
  }
}

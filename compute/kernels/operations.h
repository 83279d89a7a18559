/*
 * The elementwise operations for each class of numbers. An operation that a class does not have returns 0: the host
 * refuses it before.
 */
#ifndef WEIR_OPERATIONS_H
#define WEIR_OPERATIONS_H

#include "elements.h"

/* The numbers of weir_binary_op and weir_unary_op. */
enum {
  ADD,
  SUB,
  MUL,
  DIV,
  FLOOR_DIV,
  REMAINDER,
  POW,
  MAXIMUM,
  MINIMUM,
  BITWISE_AND,
  BITWISE_OR,
  BITWISE_XOR,
  EQ,
  NE,
  LT,
  LE,
  GT,
  GE,
  LOGICAL_AND,
  LOGICAL_OR,
  LOGICAL_XOR
};
enum {
  POSITIVE = WEIR__UNARY,
  NEG,
  ABS,
  SIGN,
  SQUARE,
  FLOOR,
  CEIL,
  ROUND,
  TRUNC,
  RELU,
  EXP,
  EXPM1,
  LOG,
  LOG2,
  LOG10,
  LOG1P,
  SQRT,
  RSQRT,
  SIN,
  COS,
  TAN,
  TANH,
  SIGMOID,
  ERF,
  RECIPROCAL,
  BITWISE_NOT,
  LOGICAL_NOT,
  ISFINITE,
  ISNAN,
  ISINF,
  REAL,
  IMAG,
  CONJ
};

/* ---- Integers ---- */

__device__ static inline long long floor_divide(long long a, long long b) {
  if (b == 0)
    return -1; /* what a GPU makes of it; a host would trap */
  if (b == -1)
    return static_cast<long long>(0 - u64(a));
  long long q = a / b;
  return q - (q * b != a && (a < 0) != (b < 0));
}

__device__ static inline long long modulo(long long a, long long b) {
  if (b == 0 || b == -1)
    return b == 0 ? a : 0;
  long long r = a % b;
  return r && (r < 0) != (b < 0) ? r + b : r;
}

__device__ static inline long long power(long long a, long long b) {
  if (b < 0)
    return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  u64 result = 1, factor = u64(a);
  for (; b; b >>= 1, factor *= factor)
    if (b & 1)
      result *= factor;
  return static_cast<long long>(result);
}

__device__ static inline long long binary(int op, long long a, long long b) {
  switch (op) {
  case ADD:
    return static_cast<long long>(u64(a) + u64(b));
  case SUB:
    return static_cast<long long>(u64(a) - u64(b));
  case MUL:
    return static_cast<long long>(u64(a) * u64(b));
  case FLOOR_DIV:
    return floor_divide(a, b);
  case REMAINDER:
    return modulo(a, b);
  case POW:
    return power(a, b);
  case MAXIMUM:
    return a > b ? a : b;
  case MINIMUM:
    return a < b ? a : b;
  case BITWISE_AND:
    return a & b;
  case BITWISE_OR:
    return a | b;
  case BITWISE_XOR:
    return a ^ b;
  case EQ:
    return a == b;
  case NE:
    return a != b;
  case LT:
    return a < b;
  case LE:
    return a <= b;
  case GT:
    return a > b;
  case GE:
    return a >= b;
  case LOGICAL_AND:
    return a && b;
  case LOGICAL_OR:
    return a || b;
  case LOGICAL_XOR:
    return (a != 0) != (b != 0);
  }
  return 0;
}

__device__ static inline long long unary(int op, long long a) {
  switch (op) {
  case NEG:
    return static_cast<long long>(0 - u64(a));
  case ABS:
    return a < 0 ? static_cast<long long>(0 - u64(a)) : a;
  case SIGN:
    return (a > 0) - (a < 0);
  case SQUARE:
    return static_cast<long long>(u64(a) * u64(a));
  case RELU:
    return a > 0 ? a : 0;
  case BITWISE_NOT:
    return ~a;
  case LOGICAL_NOT:
    return a == 0;
  case ISFINITE:
    return 1;
  case ISNAN:
  case ISINF:
  case IMAG:
    return 0;
  }
  return a; /* POSITIVE, FLOOR, CEIL, ROUND, TRUNC, REAL, CONJ */
}

/* ---- Real numbers ---- */

/* The quotient is computed from the remainder, so that rounding cannot make it too large. */
template <class R> __device__ static inline R floor_divide_real(R a, R b) {
  if (b == 0)
    return a / b;
  R mod = fmod(a, b), div = (a - mod) / b;
  if (mod != 0 && (b < 0) != (mod < 0))
    div -= 1;
  if (div == 0)
    return copysign(R(0), a / b);
  R whole = floor(div);
  return div - whole > R(0.5) ? whole + 1 : whole;
}

template <class R> __device__ static inline R modulo_real(R a, R b) {
  R mod = fmod(a, b);
  return mod != 0 && (b < 0) != (mod < 0) ? mod + b : mod;
}

/* Operations that the vectorized kernels have too. */
template <class R> __device__ static inline R light_binary(int op, R a, R b) {
  switch (op) {
  case ADD:
    return a + b;
  case SUB:
    return a - b;
  case MUL:
    return a * b;
  case DIV:
    return a / b;
  case MAXIMUM:
    return a != a ? a : b != b ? b : a > b ? a : b;
  default: /* MINIMUM */
    return a != a ? a : b != b ? b : a < b ? a : b;
  }
}
template <class R> __device__ static inline R light_unary(int op, R a) {
  switch (op) {
  case NEG:
    return -a;
  case ABS:
    return fabs(a);
  case SQUARE:
    return a * a;
  case RELU:
    return a > 0 || a != a ? a : R(0);
  case EXP:
    return exp(a);
  case SQRT:
    return sqrt(a);
  case RSQRT:
    return rsqrt(a);
  case TANH:
    return tanh(a);
  case SIGMOID:
    return R(1) / (R(1) + exp(-a));
  case RECIPROCAL:
    return R(1) / a;
  default: /* LOG */
    return log(a);
  }
}

template <class R> __device__ static inline R binary_real(int op, R a, R b) {
  switch (op) {
  case FLOOR_DIV:
    return floor_divide_real(a, b);
  case REMAINDER:
    return modulo_real(a, b);
  case POW:
    return pow(a, b);
  case EQ:
    return a == b;
  case NE:
    return a != b;
  case LT:
    return a < b;
  case LE:
    return a <= b;
  case GT:
    return a > b;
  case GE:
    return a >= b;
  case LOGICAL_AND:
    return a != 0 && b != 0;
  case LOGICAL_OR:
    return a != 0 || b != 0;
  case LOGICAL_XOR:
    return (a != 0) != (b != 0);
  }
  return light_binary(op, a, b);
}

template <class R> __device__ static inline R unary_real(int op, R a) {
  switch (op) {
  case POSITIVE:
  case REAL:
  case CONJ:
    return a;
  case SIGN:
    return R(a > 0) - R(a < 0);
  case FLOOR:
    return floor(a);
  case CEIL:
    return ceil(a);
  case ROUND:
    return rint(a);
  case TRUNC:
    return trunc(a);
  case EXPM1:
    return expm1(a);
  case LOG2:
    return log2(a);
  case LOG10:
    return log10(a);
  case LOG1P:
    return log1p(a);
  case SIN:
    return sin(a);
  case COS:
    return cos(a);
  case TAN:
    return tan(a);
  case ERF:
    return erf(a);
  case LOGICAL_NOT:
    return a == 0;
  case ISFINITE:
    return a - a == 0;
  case ISNAN:
    return a != a;
  case ISINF:
    return a == a && a - a != 0;
  case IMAG:
    return 0;
  }
  return light_unary(op, a);
}

__device__ static inline float binary(int op, float a, float b) { return binary_real(op, a, b); }
__device__ static inline double binary(int op, double a, double b) { return binary_real(op, a, b); }
__device__ static inline float unary(int op, float a) { return unary_real(op, a); }
__device__ static inline double unary(int op, double a) { return unary_real(op, a); }

/* ---- Complex numbers ---- */

__device__ static inline cdouble complex_exp(cdouble a) {
  double size = exp(a.re);
  if (a.im == 0)
    return {size, a.im};
  return {size * cos(a.im), size * sin(a.im)};
}
__device__ static inline cdouble complex_log(cdouble a) { return {log(hypot(a.re, a.im)), atan2(a.im, a.re)}; }
__device__ static inline cdouble complex_sqrt(cdouble a) {
  double size = hypot(a.re, a.im);
  if (size == 0)
    return {0, a.im};
  double half = sqrt((size + fabs(a.re)) / 2), other = fabs(a.im) / (2 * half);
  return a.re >= 0 ? cdouble{half, copysign(other, a.im)} : cdouble{other, copysign(half, a.im)};
}
__device__ static inline cdouble complex_tanh(cdouble a) {
  if (fabs(a.re) > 22)
    return {copysign(1.0, a.re), 0};
  double divisor = cosh(2 * a.re) + cos(2 * a.im);
  return {sinh(2 * a.re) / divisor, sin(2 * a.im) / divisor};
}
__device__ static inline cdouble complex_pow(cdouble a, cdouble b) {
  if (!is_nonzero(b))
    return {1, 0};
  if (!is_nonzero(a))
    return {0, 0};
  if (b.im == 0 && b.re == 1)
    return a;
  if (b.im == 0 && b.re == 2)
    return a * a;
  return complex_exp(b * complex_log(a));
}

__device__ static inline cdouble binary(int op, cdouble a, cdouble b) {
  switch (op) {
  case ADD:
    return a + b;
  case SUB:
    return a - b;
  case MUL:
    return a * b;
  case DIV:
    return a / b;
  case POW:
    return complex_pow(a, b);
  case EQ:
    return {double(a == b), 0};
  case NE:
    return {double(!(a == b)), 0};
  case LOGICAL_AND:
    return {double(is_nonzero(a) && is_nonzero(b)), 0};
  case LOGICAL_OR:
    return {double(is_nonzero(a) || is_nonzero(b)), 0};
  case LOGICAL_XOR:
    return {double(is_nonzero(a) != is_nonzero(b)), 0};
  }
  return {0, 0};
}

__device__ static inline cdouble unary(int op, cdouble a) {
  const cdouble one = {1, 0};
  switch (op) {
  case POSITIVE:
    return a;
  case NEG:
    return {-a.re, -a.im};
  case ABS:
    return {hypot(a.re, a.im), 0};
  case SQUARE:
    return a * a;
  case EXP:
    return complex_exp(a);
  case LOG:
    return complex_log(a);
  case LOG2:
  case LOG10: {
    cdouble result = complex_log(a);
    double by = op == LOG2 ? 1.4426950408889634 : 0.4342944819032518;
    return {result.re * by, result.im * by};
  }
  case SQRT:
    return complex_sqrt(a);
  case RSQRT:
    return one / complex_sqrt(a);
  case SIN:
    return {sin(a.re) * cosh(a.im), cos(a.re) * sinh(a.im)};
  case COS:
    return {cos(a.re) * cosh(a.im), -sin(a.re) * sinh(a.im)};
  case TAN: {
    cdouble turned = complex_tanh({-a.im, a.re});
    return {turned.im, -turned.re};
  }
  case TANH:
    return complex_tanh(a);
  case SIGMOID:
    return one / (one + complex_exp({-a.re, -a.im}));
  case RECIPROCAL:
    return one / a;
  case LOGICAL_NOT:
    return {double(!is_nonzero(a)), 0};
  case ISFINITE:
    return {double(a.re - a.re == 0 && a.im - a.im == 0), 0};
  case ISNAN:
    return {double(a.re != a.re || a.im != a.im), 0};
  case ISINF:
    return {double((a.re == a.re && a.re - a.re != 0) || (a.im == a.im && a.im - a.im != 0)), 0};
  case REAL:
    return {a.re, 0};
  case IMAG:
    return {a.im, 0};
  case CONJ:
    return {a.re, -a.im};
  }
  return {0, 0};
}

#endif

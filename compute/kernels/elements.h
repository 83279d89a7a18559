/*
 * Elements of arrays in kernels: loading, converting and storing each type, and the four representations (classes) in
 * which operations compute.
 */
#ifndef WEIR_ELEMENTS_H
#define WEIR_ELEMENTS_H

#include "array_args.h"
#include "device.h"

typedef unsigned long long u64;

/* The numbers of weir_dtype. */
enum {
  UINT8 = 0,
  INT8 = 1,
  INT16 = 2,
  INT32 = 3,
  INT64 = 4,
  FLOAT16 = 5,
  FLOAT32 = 6,
  FLOAT64 = 7,
  COMPLEX64 = 9,
  COMPLEX128 = 10,
  BOOL = 11,
  BFLOAT16 = 15
};

template <class R> struct complex_of { R re, im; };
typedef complex_of<double> cdouble;

__device__ static inline cdouble make_complex(double re, double im) { return {re, im}; }
__device__ static inline cdouble operator+(cdouble a, cdouble b) { return {a.re + b.re, a.im + b.im}; }
__device__ static inline cdouble operator-(cdouble a, cdouble b) { return {a.re - b.re, a.im - b.im}; }
__device__ static inline cdouble operator*(cdouble a, cdouble b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
/* Smith's method, which overflows only if the result does. */
__device__ static inline cdouble operator/(cdouble a, cdouble b) {
  if (fabs(b.re) >= fabs(b.im)) {
    if (b.re == 0 && b.im == 0)
      return {a.re / fabs(b.re), a.im / fabs(b.im)};
    double ratio = b.im / b.re, scale = 1.0 / (b.re + b.im * ratio);
    return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
  }
  double ratio = b.re / b.im, scale = 1.0 / (b.re * ratio + b.im);
  return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
__device__ static inline bool operator==(cdouble a, cdouble b) { return a.re == b.re && a.im == b.im; }

__device__ static inline unsigned divide(unsigned x, weir__divider by) {
  return (static_cast<unsigned>(u64(x) * by.factor >> 32) + x) >> by.shift;
}

/* ---- Classes ---- */

template <class C> struct representation;
template <> struct representation<long long> {
  enum { is_int = 1, is_complex = 0 };
  __device__ static long long of(weir__number n) { return n.integer; }
};
template <> struct representation<float> {
  enum { is_int = 0, is_complex = 0 };
  __device__ static float of(weir__number n) { return float(n.real); }
};
template <> struct representation<double> {
  enum { is_int = 0, is_complex = 0 };
  __device__ static double of(weir__number n) { return n.real; }
};
template <> struct representation<cdouble> {
  enum { is_int = 0, is_complex = 1 };
  __device__ static cdouble of(weir__number n) { return {n.real, n.imag}; }
};

template <class C, class T> __device__ static inline C from_real(T value) {
  if constexpr (representation<C>::is_complex)
    return C{double(value), 0};
  else
    return C(value);
}
template <class C> __device__ static inline bool is_nonzero(C value) {
  if constexpr (representation<C>::is_complex)
    return value.re != 0 || value.im != 0;
  else
    return value != 0;
}

/* The type of the elements, for a class that never sees the others. */
template <class C> __device__ static inline C load(const void *at, int dtype) {
  switch (dtype) {
  case UINT8:
    return from_real<C>(*static_cast<const unsigned char *>(at));
  case BOOL:
    return from_real<C>(*static_cast<const unsigned char *>(at) != 0);
  case INT8:
    return from_real<C>(*static_cast<const signed char *>(at));
  case INT16:
    return from_real<C>(*static_cast<const short *>(at));
  case INT32:
    return from_real<C>(*static_cast<const int *>(at));
  case INT64:
    return from_real<C>(*static_cast<const long long *>(at));
  }
  if constexpr (!representation<C>::is_int) {
    switch (dtype) {
    case FLOAT16:
      return from_real<C>(float(*static_cast<const weir_half *>(at)));
    case BFLOAT16:
      return from_real<C>(float(*static_cast<const weir_bfloat16 *>(at)));
    case FLOAT32:
      return from_real<C>(*static_cast<const float *>(at));
    case FLOAT64:
      return from_real<C>(*static_cast<const double *>(at));
    }
  }
  if constexpr (representation<C>::is_complex) {
    switch (dtype) {
    case COMPLEX64:
      return {static_cast<const float *>(at)[0], static_cast<const float *>(at)[1]};
    case COMPLEX128:
      return {static_cast<const double *>(at)[0], static_cast<const double *>(at)[1]};
    }
  }
  return from_real<C>(0);
}

template <class C> __device__ static inline void store_real(void *at, int dtype, C value) {
  switch (dtype) {
  case UINT8:
  case INT8:
    *static_cast<signed char *>(at) = static_cast<signed char>(static_cast<long long>(value));
    break;
  case INT16:
    *static_cast<short *>(at) = static_cast<short>(static_cast<long long>(value));
    break;
  case INT32:
    *static_cast<int *>(at) = static_cast<int>(static_cast<long long>(value));
    break;
  case INT64:
    *static_cast<long long *>(at) = static_cast<long long>(value);
    break;
  case FLOAT16:
    *static_cast<weir_half *>(at) = weir_half(static_cast<float>(value));
    break;
  case BFLOAT16:
    *static_cast<weir_bfloat16 *>(at) = weir_bfloat16(static_cast<float>(value));
    break;
  case FLOAT32:
    *static_cast<float *>(at) = static_cast<float>(value);
    break;
  case FLOAT64:
    *static_cast<double *>(at) = static_cast<double>(value);
    break;
  }
}

__device__ static inline void store_complex(void *at, int dtype, double re, double im) {
  if (dtype == COMPLEX64) {
    static_cast<float *>(at)[0] = float(re);
    static_cast<float *>(at)[1] = float(im);
  } else {
    static_cast<double *>(at)[0] = re;
    static_cast<double *>(at)[1] = im;
  }
}

/* A complex number that is stored as a real one loses its imaginary part. */
template <class C> __device__ static inline void store(void *at, int dtype, C value) {
  switch (dtype) {
  case BOOL:
    *static_cast<unsigned char *>(at) = is_nonzero(value);
    return;
  case COMPLEX64:
  case COMPLEX128:
    if constexpr (representation<C>::is_complex)
      store_complex(at, dtype, value.re, value.im);
    else
      store_complex(at, dtype, double(value), 0);
    return;
  }
  if constexpr (representation<C>::is_complex)
    store_real(at, dtype, value.re);
  else
    store_real(at, dtype, value);
}

/* The value that an element would have as an element of the common type. */
template <class C> __device__ static inline C convert(C value, int common) {
  if constexpr (representation<C>::is_int) {
    switch (common) {
    case UINT8:
      return static_cast<unsigned char>(value);
    case INT8:
      return static_cast<signed char>(value);
    case INT16:
      return static_cast<short>(value);
    case INT32:
      return static_cast<int>(value);
    case BOOL:
      return value != 0;
    }
  } else if constexpr (!representation<C>::is_complex) {
    switch (common) {
    case FLOAT16:
      return C(float(weir_half(float(value))));
    case BFLOAT16:
      return C(float(weir_bfloat16(float(value))));
    }
  } else if (common == COMPLEX64)
    return {float(value.re), float(value.im)};
  return value;
}

/* Loads an element and converts it to the common type. */
template <class C> __device__ static inline C load_as(const void *at, int dtype, int common) {
  C value = load<C>(at, dtype);
  return dtype == common ? value : convert(value, common);
}

#endif

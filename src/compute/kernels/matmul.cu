/*
 * Matrix products for the software device and for the host. GPUs use cuBLAS, so for them there is nothing here.
 */
#include "elements.h"

#ifdef WEIR_SOFT_CUDA

template <class T> struct class_of { using type = float; };
template <> struct class_of<double> { using type = double; };
template <> struct class_of<cdouble> { using type = cdouble; };
template <> struct class_of<complex_of<float>> { using type = cdouble; };
template <> struct class_of<long long> { using type = long long; };

static inline cdouble widen(complex_of<float> v) { return {v.re, v.im}; }
static inline cdouble widen(cdouble v) { return v; }
static inline float widen(float v) { return v; }
static inline double widen(double v) { return v; }
static inline float widen(weir_half v) { return v; }
static inline float widen(weir_bfloat16 v) { return v; }

template <class T> struct plain_access {
  using C = typename class_of<T>::type;
  static C get(const weir__matmul_args &, const void *from, long long at) { return widen(static_cast<const T *>(from)[at]); }
  static void put(const weir__matmul_args &, void *to, u64 at, C value) {
    if constexpr (representation<C>::is_complex)
      static_cast<T *>(to)[at] = {decltype(T::re)(value.re), decltype(T::re)(value.im)};
    else
      static_cast<T *>(to)[at] = T(value);
  }
};

/* Integers of all types, for the host. */
struct integer_access {
  using C = long long;
  static int bytes(int dtype) { return dtype == INT64 ? 8 : dtype == INT32 ? 4 : dtype == INT16 ? 2 : 1; }
  static C get(const weir__matmul_args &args, const void *from, long long at) {
    return load<C>(static_cast<const char *>(from) + at * bytes(args.dtype), args.dtype);
  }
  static void put(const weir__matmul_args &args, void *to, u64 at, C value) {
    store(static_cast<char *>(to) + at * bytes(args.dtype), args.dtype, value);
  }
};

static inline long long add_product(long long sum, long long a, long long b) {
  return static_cast<long long>(u64(sum) + u64(a) * u64(b));
}
template <class C> static inline C add_product(C sum, C a, C b) { return sum + a * b; }

/* A thread computes a few neighbouring columns of a row, so that it reads a row of b in order. */
template <class Access> static inline void multiply(const weir__matmul_args &args) {
  using C = typename Access::C;
  u64 row = u64(blockIdx.x) * blockDim.x + threadIdx.x, first = u64(blockIdx.y) * WEIR__MATMUL_COLUMNS;
  if (row >= args.m)
    return;
  unsigned columns = args.n - first < WEIR__MATMUL_COLUMNS ? unsigned(args.n - first) : WEIR__MATMUL_COLUMNS;
  for (u64 batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
    long long a = static_cast<long long>(batch) * args.a_batch + static_cast<long long>(row) * args.a_row;
    long long b = static_cast<long long>(batch) * args.b_batch + static_cast<long long>(first) * args.b_column;
    C sums[WEIR__MATMUL_COLUMNS] = {};
    for (u64 k = 0; k < args.k; k++, a += args.a_column, b += args.b_row) {
      C factor = Access::get(args, args.a, a);
      for (unsigned j = 0; j < columns; j++)
        sums[j] = add_product(sums[j], factor, Access::get(args, args.b, b + j * args.b_column));
    }
    for (unsigned j = 0; j < columns; j++)
      Access::put(args, args.out, (batch * args.m + row) * args.n + first + j, sums[j]);
  }
}

#define MATMUL(name, access)                                                                                           \
  extern "C" __global__ void weir_matmul_##name(const weir__matmul_args args) { multiply<access>(args); }              \
  WEIR_KERNEL(weir_matmul_##name)
MATMUL(float16, plain_access<weir_half>)
MATMUL(bfloat16, plain_access<weir_bfloat16>)
MATMUL(float32, plain_access<float>)
MATMUL(float64, plain_access<double>)
MATMUL(complex64, plain_access<complex_of<float>>)
MATMUL(complex128, plain_access<cdouble>)
MATMUL(integers, integer_access)

#endif

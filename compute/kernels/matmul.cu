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

/* A thread computes a block of the result: a few neighbouring columns, so that it reads a row of b in order, of one or
 * more rows, which share what it reads of b. Every element is the same sum in the same order, whatever the block. */
template <class Access, unsigned ROWS, unsigned COLUMNS> static inline void multiply(const weir__matmul_args &args) {
  using C = typename Access::C;
  u64 row = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * ROWS, first = u64(blockIdx.y) * COLUMNS;
  if (row >= args.m)
    return;
  unsigned rows = args.m - row < ROWS ? unsigned(args.m - row) : ROWS;
  unsigned columns = args.n - first < COLUMNS ? unsigned(args.n - first) : COLUMNS;
  for (u64 batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
    long long a = static_cast<long long>(batch) * args.a_batch + static_cast<long long>(row) * args.a_row;
    long long b = static_cast<long long>(batch) * args.b_batch + static_cast<long long>(first) * args.b_column;
    C sums[ROWS][COLUMNS] = {};
    for (u64 k = 0; k < args.k; k++, a += args.a_column, b += args.b_row)
      for (unsigned i = 0; i < rows; i++) {
        C factor = Access::get(args, args.a, a + i * args.a_row);
        for (unsigned j = 0; j < columns; j++)
          sums[i][j] = add_product(sums[i][j], factor, Access::get(args, args.b, b + j * args.b_column));
      }
    for (unsigned i = 0; i < rows; i++)
      for (unsigned j = 0; j < columns; j++)
        Access::put(args, args.out, (batch * args.m + row + i) * args.n + first + j, sums[i][j]);
  }
}

#define MATMUL(name, access, rows, columns)                                                                            \
  extern "C" __global__ void weir_matmul_##name(const weir__matmul_args args) {                                        \
    multiply<access, rows, columns>(args);                                                                             \
  }                                                                                                                    \
  WEIR_KERNEL(weir_matmul_##name)
/* The plain kernel, and the blocks that tunable.h chooses from. */
#define MATMULS(name, access)                                                                                          \
  MATMUL(name, access, 1, WEIR__MATMUL_COLUMNS)                                                                        \
  MATMUL(name##_1x32, access, 1, 32)                                                                                   \
  MATMUL(name##_4x8, access, 4, 8)
MATMULS(float16, plain_access<weir_half>)
MATMULS(bfloat16, plain_access<weir_bfloat16>)
MATMULS(float32, plain_access<float>)
MATMULS(float64, plain_access<double>)
MATMULS(complex64, plain_access<complex_of<float>>)
MATMULS(complex128, plain_access<cdouble>)
MATMUL(integers, integer_access, 1, WEIR__MATMUL_COLUMNS)

#endif

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
  static C get(const weir__matmul_args &, const void *from, long long at) {
    return widen(static_cast<const T *>(from)[at]);
  }
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

/* ---- Tiles ---- */

/* A tile of the result, whose sums stay in registers: MR rows of two vectors. The factors are packed: `a` has MR numbers of
 * each column, `b` two vectors of each row. */
#define TILE(name, target, BYTES, MR)                                                                                  \
  struct name {                                                                                                        \
    enum { rows = MR, bytes = 2 * BYTES };                                                                             \
    template <class C> target static void multiply(const C *a, const C *b, u64 depth, C *out) {                        \
      typedef C vector __attribute__((vector_size(BYTES)));                                                            \
      vector sums[MR][2] = {};                                                                                         \
      const vector *at = reinterpret_cast<const vector *>(b);                                                          \
      for (; depth; depth--, a += MR, at += 2) {                                                                       \
        vector left = at[0], right = at[1];                                                                            \
        _Pragma("GCC unroll 8") for (int i = 0; i < MR; i++) {                                                         \
          sums[i][0] = sums[i][0] + a[i] * left;                                                                       \
          sums[i][1] = sums[i][1] + a[i] * right;                                                                      \
        }                                                                                                              \
      }                                                                                                                \
      memcpy(out, sums, sizeof sums);                                                                                  \
    }                                                                                                                  \
  };
TILE(tile_128, , 16, 6)
#if defined(__x86_64__)
TILE(tile_256, __attribute__((target("avx2"))), 32, 6)
TILE(tile_512, __attribute__((target("avx512f"))), 64, 8)
#endif

/* Where a factor is packed to, with zeros in the place of what it does not have. `across` are the rows of a or the columns
 * of b, `width` of which lie side by side. */
template <class Access>
static inline void pack(const weir__matmul_args &args, const void *from, long long first, u64 count, long long across,
                        long long along, u64 width, typename Access::C *to) {
  using C = typename Access::C;
  if (across == 1 && count == width)
    for (u64 k = 0; k < args.k; k++, first += along)
      for (u64 i = 0; i < width; i++)
        *to++ = Access::get(args, from, first + static_cast<long long>(i));
  else
    for (u64 i = 0; i < width; i++)
      for (u64 k = 0; k < args.k; k++)
        to[k * width + i] =
            i < count ? Access::get(args, from,
                                    first + static_cast<long long>(i) * across + static_cast<long long>(k) * along)
                      : C();
}

template <class Access, class Tile>
static inline void multiply_slab(const weir__matmul_args &args, u64 batch, u64 row, u64 rows, void *memory) {
  using C = typename Access::C;
  enum { MR = Tile::rows, NR = Tile::bytes / sizeof(C) };
  C *a = static_cast<C *>(memory), *b = a + (rows + MR) * args.k;
  alignas(64) C out[MR * NR];
  b += (64 - reinterpret_cast<uintptr_t>(b) % 64) % 64 / sizeof(C);
  long long first_a = static_cast<long long>(batch) * args.a_batch,
            first_b = static_cast<long long>(batch) * args.b_batch;
  for (u64 i = 0; i < rows; i += MR)
    pack<Access>(args, args.a, first_a + static_cast<long long>(row + i) * args.a_row, rows - i < MR ? rows - i : MR,
                 args.a_row, args.a_column, MR, a + i * args.k);
  for (u64 column = 0; column < args.n; column += NR) {
    u64 columns = args.n - column < NR ? args.n - column : NR;
    pack<Access>(args, args.b, first_b + static_cast<long long>(column) * args.b_column, columns, args.b_column,
                 args.b_row, NR, b);
    for (u64 i = 0; i < rows; i += MR) {
      Tile::multiply(a + i * args.k, b, args.k, out);
      for (u64 r = 0; r < MR && i + r < rows; r++)
        for (u64 j = 0; j < columns; j++)
          Access::put(args, args.out, (batch * args.m + row + i + r) * args.n + column + j, out[r * NR + j]);
    }
  }
}

/* A thread computes some rows of the result, from copies of the factors in the order in which it reads them. Every element
 * is the same sum in the same order as in the other kernels. */
template <class Access> static inline void multiply_tiled(const weir__matmul_args &args) {
  using C = typename Access::C;
  u64 row = u64(blockIdx.x) * WEIR__MATMUL_SLAB;
  u64 rows = args.m - row < WEIR__MATMUL_SLAB ? args.m - row : WEIR__MATMUL_SLAB;
  /* The rows with a tile more, two vectors of b, and what aligns them. */
  size_t bytes = ((rows + 8) * sizeof(C) + 128) * args.k + 64;
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (!memory)
    weir_soft::fail(weir_soft::out_of_memory);
  for (u64 batch = blockIdx.z; batch < args.batch; batch += gridDim.z) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
      multiply_slab<Access, tile_512>(args, batch, row, rows, memory);
    else if (__builtin_cpu_supports("avx2"))
      multiply_slab<Access, tile_256>(args, batch, row, rows, memory);
    else
#endif
      multiply_slab<Access, tile_128>(args, batch, row, rows, memory);
  }
  free(memory);
}

#define MATMUL(name, access, rows, columns)                                                                            \
  extern "C" __global__ void weir_matmul_##name(const weir__matmul_args args) {                                        \
    multiply<access, rows, columns>(args);                                                                             \
  }                                                                                                                    \
  WEIR_KERNEL(weir_matmul_##name)
#define MATMUL_TILED(name, access)                                                                                     \
  extern "C" __global__ void weir_matmul_##name##_tiled(const weir__matmul_args args) {                                \
    multiply_tiled<access>(args);                                                                                      \
  }                                                                                                                    \
  WEIR_KERNEL(weir_matmul_##name##_tiled)
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
MATMUL_TILED(float16, plain_access<weir_half>)
MATMUL_TILED(bfloat16, plain_access<weir_bfloat16>)
MATMUL_TILED(float32, plain_access<float>)
MATMUL_TILED(float64, plain_access<double>)

#endif

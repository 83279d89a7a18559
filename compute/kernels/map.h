/*
 * Elementwise operations on strided arrays of any types. The operation is a number, the same for all threads, so that
 * there is one kernel for each class of numbers, and not one for each operation and type. Each is a file, because the
 * driver compiles a whole file when it is first used, and functions of double take long.
 *
 * A thread has a group of elements at a time. Types and operations are chosen once for a group. If the layout allows it
 * the elements of a group are neighbours, which are loaded and stored at once; otherwise neighbours belong to
 * neighbouring threads. On a GPU each thread has one group. The software device and the host launch one thread, which
 * goes through all of them in order.
 */
#ifndef WEIR_MAP_H
#define WEIR_MAP_H

#include "operations.h"
#ifdef WEIR_SOFT_CUDA
#include "soft_loops.h"
#endif

template <class C> struct group_of;
template <> struct group_of<long long> {
  enum { size = WEIR__GROUP_INT };
};
template <> struct group_of<float> {
  enum { size = WEIR__GROUP_FLOAT };
};
template <> struct group_of<double> {
  enum { size = WEIR__GROUP_DOUBLE };
};
template <> struct group_of<cdouble> {
  enum { size = WEIR__GROUP_COMPLEX };
};

#ifdef WEIR_SOFT_CUDA /* groups longer than the alignment that was checked */
template <class T, int N> struct pack_of { T at[N]; };
#else
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) pack_of { T at[N]; };
#endif

struct boolean {
  unsigned char x;
  boolean() = default;
  __device__ explicit boolean(bool value) : x(value) {}
  __device__ operator bool() const { return x != 0; }
};

/* ---- Places ---- */

__device__ static inline long long offset_of(const weir__map_args &args, const long long *strides, u64 index) {
  if (args.is_small) {
    unsigned rest = static_cast<unsigned>(index);
    int offset = 0;
    WEIR_NO_UNROLL
    for (int d = 0; d + 1 < args.ndim; d++) {
      unsigned above = divide(rest, args.dividers[d]);
      unsigned at = rest - above * static_cast<unsigned>(args.shape[d]);
      offset += static_cast<int>(at) * static_cast<int>(strides[d]);
      rest = above;
    }
    return args.ndim ? offset + static_cast<int>(rest) * static_cast<int>(strides[args.ndim - 1]) : 0;
  }
  long long offset = 0;
  WEIR_NO_UNROLL
  for (int d = 0; d + 1 < args.ndim; d++) {
    u64 above = index / args.shape[d];
    offset += static_cast<long long>(index - above * args.shape[d]) * strides[d];
    index = above;
  }
  return args.ndim ? offset + static_cast<long long>(index) * strides[args.ndim - 1] : 0;
}

/* The elements index, index + step, ... of an operation. */
struct group {
  u64 index;
  unsigned step;
  int valid;     /* the elements that there are; the others are behind the last one */
  bool is_whole; /* the elements are a part of the innermost dimension, and all valid */
};

/* Where the elements of a group are in an operand. If they are packed only the last pointer is set, and points to the
 * first element. */
template <int N> struct places { char *at[N]; };

template <int N>
__device__ static inline places<N> locate(const weir__map_args &args, const weir__operand &operand, const group &which,
                                          bool is_packed) {
  places<N> found = {};
  char *previous = nullptr;
  WEIR_NO_UNROLL
  for (int i = 0; i < N; i++) {
    char *at;
    if (i > 0 && args.is_grouped)
      at = previous + operand.strides[0];
    else {
      u64 index = which.index + u64(i) * which.step;
      at = static_cast<char *>(operand.data);
      if (index < args.count)
        at += offset_of(args, operand.strides, index);
    }
#ifdef WEIR_SOFT_CUDA
    found.at[is_packed ? N - 1 : i] = at;
#else
    for (int j = 0; j + 1 < N; j++)
      found.at[j] = found.at[j + 1];
    found.at[N - 1] = at;
#endif
    if (is_packed)
      break;
    previous = at;
  }
  return found;
}

/* ---- Loading ---- */

template <class C, class T, int N>
__device__ static inline void load_elements(const places<N> &from, int valid, bool is_packed, C *values) {
  pack_of<T, N> in = {};
  if (is_packed)
    in = *reinterpret_cast<const pack_of<T, N> *>(from.at[N - 1]);
  else
    for (int i = 0; i < N; i++)
      if (i < valid)
        in.at[i] = *reinterpret_cast<const T *>(from.at[i]);
  for (int i = 0; i < N; i++)
    values[i] = from_real<C>(in.at[i]);
}

template <class C, int N> __device__ static inline void convert_group(int common, C *values) {
#define CASE(name, T)                                                                                                  \
  case name:                                                                                                           \
    for (int i = 0; i < N; i++)                                                                                        \
      values[i] = convert(values[i], name);                                                                            \
    break;
  if constexpr (representation<C>::is_int)
    switch (common) {
      CASE(UINT8, unsigned char)
      CASE(INT8, signed char)
      CASE(INT16, short)
      CASE(INT32, int)
      CASE(BOOL, bool)
    }
  else
    switch (common) {
      CASE(FLOAT16, weir_half)
      CASE(BFLOAT16, weir_bfloat16)
    }
#undef CASE
}

/* Elements from `valid` on are 0, unless the operand is a number. */
template <class C, int N>
__device__ static inline void load_group(const weir__map_args &args, const weir__operand &from, const group &which,
                                         C *values) {
  if (!from.data) {
    for (int i = 0; i < N; i++)
      values[i] = representation<C>::of(from.number);
    return;
  }
  bool is_packed = which.is_whole && from.is_packed;
  places<N> at = locate<N>(args, from, which, is_packed);
  if constexpr (representation<C>::is_complex)
    for (int i = 0; i < N; i++)
      values[i] = i < which.valid ? load_as<C>(at.at[i], from.dtype, args.common) : C();
  else {
#define CASE(name, T)                                                                                                  \
  case name:                                                                                                           \
    load_elements<C, T, N>(at, which.valid, is_packed, values);                                                        \
    break;
    switch (from.dtype) {
      CASE(UINT8, unsigned char)
      CASE(BOOL, boolean)
      CASE(INT8, signed char)
      CASE(INT16, short)
      CASE(INT32, int)
      CASE(INT64, long long)
    default:
      if constexpr (!representation<C>::is_int)
        switch (from.dtype) {
          CASE(FLOAT16, weir_half)
          CASE(BFLOAT16, weir_bfloat16)
          CASE(FLOAT32, float)
          CASE(FLOAT64, double)
        }
    }
#undef CASE
    if (from.dtype != args.common)
      convert_group<C, N>(args.common, values);
  }
}

/* ---- Storing ---- */

template <class T> struct stored {
  template <class C> __device__ static T from(C value) { return T(static_cast<long long>(value)); }
};
template <> struct stored<weir_half> {
  template <class C> __device__ static weir_half from(C value) { return weir_half(static_cast<float>(value)); }
};
template <> struct stored<weir_bfloat16> {
  template <class C> __device__ static weir_bfloat16 from(C value) { return weir_bfloat16(static_cast<float>(value)); }
};
template <> struct stored<float> {
  template <class C> __device__ static float from(C value) { return static_cast<float>(value); }
};
template <> struct stored<double> {
  template <class C> __device__ static double from(C value) { return static_cast<double>(value); }
};
template <> struct stored<boolean> {
  template <class C> __device__ static boolean from(C value) { return boolean(is_nonzero(value)); }
};

template <class C, class T, int N>
__device__ static inline void store_elements(const places<N> &to, int valid, bool is_packed, const C *values) {
  pack_of<T, N> out;
  for (int i = 0; i < N; i++)
    out.at[i] = stored<T>::from(values[i]);
  if (is_packed)
    *reinterpret_cast<pack_of<T, N> *>(to.at[N - 1]) = out;
  else
    for (int i = 0; i < N; i++)
      if (i < valid)
        *reinterpret_cast<T *>(to.at[i]) = out.at[i];
}

template <class C, int N>
__device__ static inline void store_group(const weir__map_args &args, const group &which, const C *values) {
  const weir__operand &to = args.out;
  bool is_packed = which.is_whole && to.is_packed;
  places<N> at = locate<N>(args, to, which, is_packed);
  if constexpr (!representation<C>::is_complex) {
#define CASE(name, T)                                                                                                  \
  case name:                                                                                                           \
    store_elements<C, T, N>(at, which.valid, is_packed, values);                                                       \
    return;
    switch (to.dtype) {
    case UINT8:
      CASE(INT8, signed char)
      CASE(BOOL, boolean)
      CASE(INT16, short)
      CASE(INT32, int)
      CASE(INT64, long long)
      CASE(FLOAT16, weir_half)
      CASE(BFLOAT16, weir_bfloat16)
      CASE(FLOAT32, float)
      CASE(FLOAT64, double)
    }
#undef CASE
    for (int i = 0; i < N; i++)
      if (i < which.valid)
        store_complex(at.at[i], to.dtype, double(values[i]), 0);
  } else
    for (int i = 0; i < N; i++)
      if (i < which.valid)
        store(at.at[i], to.dtype, values[i]);
}

/* ---- Operations ---- */

template <class C, int N> __device__ static inline void compute(int op, C *a, C *b) {
#define CASE(name)                                                                                                     \
  case name:                                                                                                           \
    for (int i = 0; i < N; i++)                                                                                        \
      a[i] = binary(name, a[i], b[i]);                                                                                 \
    return;
  if constexpr (N > 1) {
    switch (op) {
      CASE(ADD)
      CASE(SUB)
      CASE(MUL)
      CASE(EQ)
      CASE(NE)
      CASE(LT)
      CASE(LE)
      CASE(GT)
      CASE(GE)
    case POSITIVE:
      return;
    }
  }
#undef CASE
#ifdef WEIR_SOFT_CUDA
  for (int i = 0; i < N; i++)
    a[i] = op >= WEIR__UNARY ? unary(op, a[i]) : binary(op, a[i], b[i]);
#else
  /* The other operations are in the code once: the loop rotates the elements instead of being unrolled. */
  WEIR_NO_UNROLL
  for (int i = 0; i < N; i++) {
    C result = op >= WEIR__UNARY ? unary(op, a[0]) : binary(op, a[0], b[0]);
    for (int j = 0; j + 1 < N; j++) {
      a[j] = a[j + 1];
      b[j] = b[j + 1];
    }
    a[N - 1] = result;
  }
#endif
}

template <class C, int N> __device__ static inline void map_group(const weir__map_args &args, const group &which) {
  int op = args.op;
  C a[N], b[N];
  const bool is_where = op == WEIR__WHERE;
  load_group<C, N>(args, args.in[is_where ? 1 : 0], which, a);
  if (args.in_count > 1)
    load_group<C, N>(args, args.in[is_where ? 2 : 1], which, b);
  else
    for (int i = 0; i < N; i++)
      b[i] = a[i];
  if (is_where) {
    places<N> at = locate<N>(args, args.in[0], which, false);
    for (int i = 0; i < N; i++)
      if (i < which.valid && !*at.at[i])
        a[i] = b[i];
  } else if (op == WEIR__ARANGE)
    for (int i = 0; i < N; i++)
      a[i] = a[i] + b[i] * from_real<C>(static_cast<long long>(which.index + u64(i) * which.step));
  else if (op == WEIR__ADD_SCALED)
    for (int i = 0; i < N; i++)
      a[i] = a[i] + representation<C>::of(args.in[2].number) * b[i];
  else
    compute<C, N>(op, a, b);
  store_group<C, N>(args, which, a);
}

#ifdef WEIR_SOFT_CUDA
/* A comparison of contiguous elements of type T with others or a number. False if it is not one, or needs a conversion. */
template <class C, class T> static inline bool compare_contiguous(const weir__map_args &args) {
  const weir__operand &a = args.in[0], &b = args.in[1];
  if (args.in_count != 2 || !args.is_grouped || args.ndim > 1 || args.out.dtype != BOOL || !args.out.is_packed ||
      !a.data || !a.is_packed || (b.data && (b.dtype != a.dtype || !b.is_packed)))
    return false;
  C number = b.data ? C() : representation<C>::of(b.number);
  return static_cast<C>(static_cast<T>(number)) == number &&
         weir_soft::compare_elements<T>(args.op, static_cast<const T *>(a.data), static_cast<const T *>(b.data),
                                        static_cast<T>(number), static_cast<unsigned char *>(args.out.data),
                                        args.count);
}

template <class C> static inline bool compare_contiguous(const weir__map_args &args) {
  int dtype = args.in[0].dtype;
  if constexpr (representation<C>::is_int)
    return dtype == args.common && (dtype == INT32   ? compare_contiguous<C, int>(args)
                                    : dtype == INT64 ? compare_contiguous<C, long long>(args)
                                    : dtype == UINT8 ? compare_contiguous<C, unsigned char>(args)
                                                     : false);
  else if constexpr (!representation<C>::is_complex)
    return dtype == args.common && dtype == (sizeof(C) == 4 ? FLOAT32 : FLOAT64) && compare_contiguous<C, C>(args);
  return false;
}
#endif

template <class C> __device__ static inline void map(const weir__map_args &args) {
#ifdef WEIR_SOFT_CUDA
  if (compare_contiguous<C>(args))
    return;
#endif
  enum { N = group_of<C>::size };
  group which;
  which.step = args.is_grouped ? 1 : blockDim.x;
  which.index = u64(blockIdx.x) * blockDim.x * N + (args.is_grouped ? threadIdx.x * N : threadIdx.x);
#ifdef WEIR_SOFT_CUDA
  /* One thread goes through all elements: as long as they lie side by side, in longer groups. */
  enum { RUN = 64 };
  if constexpr (N > 1)
    while (args.is_grouped && which.index + RUN <= args.count) {
      u64 row = args.ndim < 2 ? args.count : args.shape[0];
      which.is_whole = true;
      if (row - which.index % row >= RUN) {
        which.valid = RUN;
        map_group<C, RUN>(args, which);
      } else {
        which.valid = N;
        map_group<C, N>(args, which);
      }
      which.index += static_cast<unsigned>(which.valid);
    }
#endif
  WEIR_NO_UNROLL
  for (; which.index < args.count; which.index += u64(gridDim.x) * blockDim.x * N) {
    u64 left = args.count - which.index;
    which.valid = N;
    for (int i = 1; i < N; i++)
      which.valid -= u64(i) * which.step >= left;
    which.is_whole = args.is_grouped && which.valid == N;
    map_group<C, N>(args, which);
  }
}

#define MAP(name, C)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(WEIR__BLOCK, representation<C>::is_int ? 4 : 5)                         \
      name(const weir__map_args args) {                                                                                \
    map<C>(args);                                                                                                      \
  }                                                                                                                    \
  WEIR_KERNEL(name)

#endif

/*
 * Frequent elementwise operations on contiguous arrays of one type, with loads and stores of 16 bytes. On a GPU each
 * thread has one vector. The software device and the host launch one thread, which goes through all of them in order.
 */
#include "operations.h"

template <class T> struct alignas(16) vector_of {
  enum { length = 16 / sizeof(T) };
  T elements[length];
  __device__ T get(int i) const { return elements[i]; }
  __device__ void set(int i, T element) { elements[i] = element; }
};

/* An element of 16 bits. Its type, float16 or bfloat16, is known at run time, so that there is one kernel for both. */
struct bits16 {
  unsigned short x;
};
/* Words, because taking elements out of them would wait for the load. */
template <> struct alignas(16) vector_of<bits16> {
  enum { length = 8 };
  unsigned words[4];
  __device__ bits16 get(int i) const { return {static_cast<unsigned short>(words[i / 2] >> i % 2 * 16)}; }
  __device__ void set(int i, bits16 element) {
    words[i / 2] = (words[i / 2] & 0xffff0000u >> i % 2 * 16) | static_cast<unsigned>(element.x) << i % 2 * 16;
  }
};

template <class T, class C> __device__ static inline void unpack(const vector_of<T> &in, int, C *values) {
  for (int i = 0; i < vector_of<T>::length; i++)
    values[i] = C(in.get(i));
}
template <class T, class C> __device__ static inline void pack(const C *values, int, vector_of<T> *out) {
  for (int i = 0; i < vector_of<T>::length; i++)
    out->set(i, T(values[i]));
}
__device__ static inline void unpack(const vector_of<bits16> &in, int dtype, float *values) {
  if (dtype == BFLOAT16)
    for (int i = 0; i < 8; i++) {
      weir_bfloat16 element;
      element.x = in.get(i).x;
      values[i] = element;
    }
  else
    for (int i = 0; i < 8; i++) {
      weir_half element;
      element.x = in.get(i).x;
      values[i] = element;
    }
}
__device__ static inline void pack(const float *values, int dtype, vector_of<bits16> *out) {
  if (dtype == BFLOAT16)
    for (int i = 0; i < 8; i++)
      out->set(i, {weir_bfloat16(values[i]).x});
  else
    for (int i = 0; i < 8; i++)
      out->set(i, {weir_half(values[i]).x});
}

__device__ static inline long long light_binary(int op, long long a, long long b) { return binary(op, a, b); }
__device__ static inline long long light_unary(int op, long long a) { return unary(op, a); }

/* Applies a function to elements one after the other, or to a few at a time: a loop rotates the elements instead of being
 * unrolled, so that the function is in the code only once or a few times. */
template <int N, int TIMES, class C, class F> __device__ static inline void rotate(const C *a, C *out, F function) {
  for (int i = 0; i < N; i++)
    out[i] = a[i];
  WEIR_NO_UNROLL
  for (int i = 0; i < N; i += TIMES) {
    C results[TIMES];
    for (int j = 0; j < TIMES; j++)
      results[j] = function(out[j]);
    for (int j = 0; j + TIMES < N; j++)
      out[j] = out[j + TIMES];
    for (int j = 0; j < TIMES; j++)
      out[N - TIMES + j] = results[j];
  }
}

/* Sines of a[i], or of a[i] + pi / 2, precise enough to be rounded to 16 bits. Refuses large angles. */
template <int N, bool IS_COSINE, class C> __device__ static inline bool short_sines(const C *a, C *out) {
  if constexpr (sizeof(C) == 4) {
    bool are_small = true;
    for (int i = 0; i < N; i++)
      are_small = are_small & (fabs(a[i]) < 65536.0f);
    if (!are_small)
      return false;
    const float half = IS_COSINE ? 0.5f : 0.0f;
    for (int i = 0; i < N; i++) {
      /* Adding 3 * 2^22 rounds to an integer, which is in the lower bits then. */
      const float rounder = 12582912.0f;
      float rounded = fma(a[i], 0.318309873f, half) + rounder, turns = rounded - rounder - half;
      unsigned sign = __float_as_uint(rounded) << 31;
      /* pi in two parts, of which the first has few bits, so that its multiples are exact */
      float x = fma(turns, -3.141592026f, a[i]);
      x = fma(turns, -6.278329465e-7f, x);
      /* The polynomial of this degree with the smallest relative error, 1.2e-6, for |x| <= pi / 2. */
      float square = x * x;
      float series = fma(square, -1.853963331e-4f, 8.314197883e-3f);
      series = fma(series, square, -1.666584760e-1f);
      float value = fma(series * square, x, x);
      out[i] = __uint_as_float(__float_as_uint(value) ^ sign);
    }
    return true;
  } else
    return false;
}

/* The operation is chosen once for a vector: with the test inside of the loop, the code would have it for each
 * element. */
template <int N, class C> __device__ static inline void apply(int op, const C *a, const C *b, C *out) {
#define CASE(name, expression)                                                                                         \
  case name:                                                                                                           \
    for (int i = 0; i < N; i++)                                                                                        \
      out[i] = expression;                                                                                             \
    break;
#define LONG_CASE(name, TIMES)                                                                                         \
  case name:                                                                                                           \
    rotate<N, (N < 8 ? 1 : TIMES)>(a, out, [](C value) { return unary(name, value); });                                \
    break;
#define SINE_CASE(name, IS_COSINE)                                                                                     \
  case name:                                                                                                           \
    if (N < 8 || !(short_sines<N, IS_COSINE>(a, out)))                                                                 \
      rotate<N, 1>(a, out, [](C value) { return unary(name, value); });                                                \
    break;
  switch (op) {
    CASE(ADD, a[i] + b[i])
    CASE(SUB, a[i] - b[i])
    CASE(MUL, a[i] * b[i])
    CASE(MAXIMUM, light_binary(MAXIMUM, a[i], b[i]))
    CASE(MINIMUM, light_binary(MINIMUM, a[i], b[i]))
    CASE(NEG, -a[i])
    CASE(ABS, light_unary(ABS, a[i]))
    CASE(SQUARE, a[i] * a[i])
    CASE(RELU, light_unary(RELU, a[i]))
  default:
    if constexpr (!representation<C>::is_int)
      switch (op) {
        CASE(DIV, a[i] / b[i])
        CASE(SQRT, sqrt(a[i]))
        CASE(RECIPROCAL, C(1) / a[i])
        CASE(EXP, exp(a[i]))
        CASE(SIGMOID, light_unary(SIGMOID, a[i]))
        LONG_CASE(TANH, 1)
      default:
        /* Functions of double take longer than loading the elements one by one. */
        if constexpr (sizeof(C) == 4)
          switch (op) {
            CASE(SIGN, unary(SIGN, a[i]))
            CASE(FLOOR, floor(a[i]))
            CASE(CEIL, ceil(a[i]))
            CASE(ROUND, rint(a[i]))
            CASE(TRUNC, trunc(a[i]))
            CASE(RSQRT, rsqrt(a[i]))
            LONG_CASE(EXPM1, 1)
            LONG_CASE(LOG, 2)
            LONG_CASE(LOG2, 1)
            LONG_CASE(LOG10, 1)
            LONG_CASE(LOG1P, 1)
            SINE_CASE(SIN, false)
            SINE_CASE(COS, true)
            LONG_CASE(TAN, 1)
            LONG_CASE(ERF, 1)
          }
      }
  }
#undef SINE_CASE
#undef LONG_CASE
#undef CASE
}

/* What belongs to the elements from `first` on. Elements from `count` on are 0. */
template <class T>
__device__ static inline vector_of<T> load_vector(const weir__vector_args &args, int which, u64 first, int count) {
  vector_of<T> in = {};
  const T *from = static_cast<const T *>(args.in[which]);
  if (!from)
    return in;
  if (args.layout[which] != WEIR__EACH) {
    unsigned row = divide(static_cast<unsigned>(first), args.by_columns);
    if (args.layout[which] == WEIR__COLUMN) {
      T element = from[row];
      for (int i = 0; i < vector_of<T>::length; i++)
        in.set(i, element);
      return in;
    }
    first -= u64(row) * args.columns;
  }
  from += first;
  if (count == vector_of<T>::length)
    in = *reinterpret_cast<const vector_of<T> *>(from);
  else
    for (int i = 0; i < vector_of<T>::length; i++)
      if (i < count)
        in.set(i, from[i]);
  return in;
}

/* The numbers of a vector, or the number in place of the array. */
template <class T, class C>
__device__ static inline void numbers_of(const weir__vector_args &args, int which, const vector_of<T> &in, C *values) {
  C number = representation<C>::of(args.number[which]);
  if (args.in[which])
    unpack(in, args.dtype, values);
  else
    for (int i = 0; i < vector_of<T>::length; i++)
      values[i] = number;
}

template <class T, class C> __device__ static inline void map_vectors(const weir__vector_args &args) {
  typedef vector_of<T> V;
  enum { N = V::length };
  WEIR_NO_UNROLL
  for (u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N; first < args.count;
       first += u64(gridDim.x) * blockDim.x * N) {
    int count = args.count - first < N ? static_cast<int>(args.count - first) : N;
    /* Both loads come before the first use, which waits. */
    V in0 = load_vector<T>(args, 0, first, count), in1 = load_vector<T>(args, 1, first, count);
    C a[N], b[N];
    numbers_of(args, 0, in0, a);
    numbers_of(args, 1, in1, b);
    C results[N] = {};
    apply<N>(args.op, a, b, results);
    V packed = {};
    pack(results, args.dtype, &packed);
    T *out = static_cast<T *>(args.out) + first;
    if (count == N)
      *reinterpret_cast<V *>(out) = packed;
    else
      for (int i = 0; i < N; i++)
        if (i < count)
          out[i] = packed.get(i);
  }
}

#define VECTORS(name, T, C)                                                                                            \
  extern "C" __global__ void __launch_bounds__(WEIR__BLOCK) name(const weir__vector_args args) {                       \
    map_vectors<T, C>(args);                                                                                           \
  }                                                                                                                    \
  WEIR_KERNEL(name)
VECTORS(weir_vectors_int32, int, long long)
VECTORS(weir_vectors_int64, long long, long long)
VECTORS(weir_vectors_16_bits, bits16, float)
VECTORS(weir_vectors_float32, float, float)
VECTORS(weir_vectors_float64, double, double)

/*
 * Frequent elementwise operations on contiguous arrays of one type, with loads and stores of 16 bytes. On a GPU each
 * thread has one vector. The software device and the host launch one thread, which goes through all of them in order.
 */
#include "operations.h"

template <class T> struct alignas(16) vector_of {
  enum { length = 16 / sizeof(T) };
  T at[length];
};

__device__ static inline long long light_binary(int op, long long a, long long b) { return binary(op, a, b); }
__device__ static inline long long light_unary(int op, long long a) { return unary(op, a); }

/* The operation is chosen once for a vector: with the test inside of the loop, the code would have it for each
 * element. */
template <int N, class C> __device__ static inline void apply(int op, const C *a, const C *b, C *out) {
#define CASE(name, expression)                                                                                         \
  case name:                                                                                                           \
    for (int i = 0; i < N; i++)                                                                                        \
      out[i] = expression;                                                                                             \
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
        CASE(TANH, tanh(a[i]))
      }
  }
#undef CASE
}

template <class T, class C> __device__ static inline void map_vectors(const weir__vector_args &args) {
  typedef vector_of<T> V;
  u64 first = u64(blockIdx.x) * blockDim.x + threadIdx.x, step = u64(gridDim.x) * blockDim.x;
  u64 whole = args.count / V::length;
  C number0 = representation<C>::of(args.number[0]), number1 = representation<C>::of(args.number[1]);
  WEIR_NO_UNROLL
  for (u64 at = first; at < whole; at += step) {
    V in0 = {}, in1 = {};
    if (args.in[0])
      in0 = static_cast<const V *>(args.in[0])[at];
    if (args.in[1])
      in1 = static_cast<const V *>(args.in[1])[at];
    C a[V::length], b[V::length];
    for (int i = 0; i < V::length; i++) {
      a[i] = args.in[0] ? C(in0.at[i]) : number0;
      b[i] = args.in[1] ? C(in1.at[i]) : number1;
    }
    C results[V::length] = {};
    apply<V::length>(args.op, a, b, results);
    for (int i = 0; i < V::length; i++)
      in0.at[i] = T(results[i]);
    static_cast<V *>(args.out)[at] = in0;
  }
  /* Elements behind the last whole vector. */
  WEIR_NO_UNROLL
  for (u64 at = whole * V::length + first; at < args.count; at += step) {
    C a = args.in[0] ? C(static_cast<const T *>(args.in[0])[at]) : number0;
    C b = args.in[1] ? C(static_cast<const T *>(args.in[1])[at]) : number1, result = C();
    apply<1>(args.op, &a, &b, &result);
    static_cast<T *>(args.out)[at] = T(result);
  }
}

#define VECTORS(name, T, C)                                                                                            \
  extern "C" __global__ void __launch_bounds__(WEIR__BLOCK) name(const weir__vector_args args) {                       \
    map_vectors<T, C>(args);                                                                                           \
  }                                                                                                                    \
  WEIR_KERNEL(name)
VECTORS(weir_vectors_int32, int, long long)
VECTORS(weir_vectors_int64, long long, long long)
VECTORS(weir_vectors_float16, weir_half, float)
VECTORS(weir_vectors_bfloat16, weir_bfloat16, float)
VECTORS(weir_vectors_float32, float, float)
VECTORS(weir_vectors_float64, double, double)

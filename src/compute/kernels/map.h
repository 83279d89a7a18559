/*
 * Elementwise operations on strided arrays of any types. The operation is a number, the same for all threads, so that
 * there is one kernel for each class of numbers, and not one for each operation and type. Each is a file, because the
 * driver compiles a whole file when it is first used, and functions of double take long.
 *
 * On a GPU each thread has one element. The software device and the host launch one thread, which goes through all of
 * them in order.
 */
#ifndef WEIR_MAP_H
#define WEIR_MAP_H

#include "operations.h"

template <class C> __device__ static inline C fetch(const weir__operand &from, const char *at, int common) {
  return from.data ? load_as<C>(at, from.dtype, common) : representation<C>::of(from.number);
}

struct places {
  char *out;
  const char *in[3];
};

/* Where the operands of an element are. I is the type of indices: 32 bits if they are sufficient, because divisions of
 * 64 bits are slow. */
template <class I> __device__ static inline void locate(const weir__map_args &args, I rest, places *at) {
  for (int d = 0; d < args.ndim; d++) {
    I place = rest;
    if (d + 1 < args.ndim) {
      I size = I(args.shape[d]), above = rest / size;
      place = rest - above * size;
      rest = above;
    }
    at->out += static_cast<long long>(place) * args.out.strides[d];
    for (int k = 0; k < 3; k++)
      at->in[k] += static_cast<long long>(place) * args.in[k].strides[d];
  }
}

template <class C> __device__ static inline void map_element(const weir__map_args &args, u64 index) {
  places at = {static_cast<char *>(args.out.data), {}};
  for (int k = 0; k < 3; k++)
    at.in[k] = static_cast<const char *>(args.in[k].data);
  if (args.count >> 31)
    locate(args, index, &at);
  else
    locate(args, static_cast<unsigned>(index), &at);

  int op = args.op;
  C result;
  if (op == WEIR__WHERE) {
    int chosen = *at.in[0] ? 1 : 2;
    const weir__operand &from = args.in[chosen];
    result = from.data ? load_as<C>(chosen == 1 ? at.in[1] : at.in[2], from.dtype, args.common)
                       : representation<C>::of(from.number);
  } else {
    C a = fetch<C>(args.in[0], at.in[0], args.common);
    C b = args.in_count > 1 ? fetch<C>(args.in[1], at.in[1], args.common) : a;
    if (op == WEIR__ARANGE)
      result = a + b * from_real<C>(static_cast<long long>(index));
    else if (op == WEIR__ADD_SCALED)
      result = a + representation<C>::of(args.in[2].number) * b;
    else
      result = op >= WEIR__UNARY ? unary(op, a) : binary(op, a, b);
  }
  store(at.out, args.out.dtype, result);
}

template <class C> __device__ static inline void map(const weir__map_args &args) {
  u64 step = u64(gridDim.x) * blockDim.x;
  WEIR_NO_UNROLL
  for (u64 index = u64(blockIdx.x) * blockDim.x + threadIdx.x; index < args.count; index += step)
    map_element<C>(args, index);
}

#define MAP(name, C)                                                                                                   \
  extern "C" __global__ void __launch_bounds__(WEIR__BLOCK) name(const weir__map_args args) { map<C>(args); }          \
  WEIR_KERNEL(name)

#endif

/*
 * Reductions of strided arrays. Each output has a number of lanes, which are threads that take its elements in turn and
 * then combine their results: many lanes if the elements of an output are neighbours in memory, one if the outputs are.
 * Outputs with many elements are reduced in segments, and the results of the segments in a second pass. The order of
 * operations follows from the shape, so results do not vary.
 */
#include "elements.h"
#ifdef WEIR_SOFT_CUDA
#include "soft_loops.h"
#endif

/* An element, and its index if the smallest or largest one is looked for. */
template <class C, bool WITH_INDEX> struct found { C value; };
template <class C> struct found<C, true> {
  C value;
  long long index;
};

template <class C> __device__ static inline C combine_values(int how, C a, C b) {
  switch (how) {
  case WEIR__COMBINE_ADD:
    return a + b;
  case WEIR__COMBINE_MUL:
    return a * b;
  }
  if constexpr (!representation<C>::is_complex) {
    if (a != a || b != b) /* not a number */
      return a != a ? a : b;
    return (how == WEIR__COMBINE_MIN) == (b < a) && b != a ? b : a;
  } else
    return from_real<C>(how == WEIR__COMBINE_AND ? is_nonzero(a) && is_nonzero(b) : is_nonzero(a) || is_nonzero(b));
}

template <class C> __device__ static inline void combine(int how, found<C, false> *a, const found<C, false> &b) {
  a->value = combine_values(how, a->value, b.value);
}

/* Of equal elements the first one is kept, and the first that is not a number before all others. */
template <class C> __device__ static inline void combine(int how, found<C, true> *a, const found<C, true> &b) {
  bool a_is_nan = a->value != a->value, b_is_nan = b.value != b.value, takes;
  if (a_is_nan || b_is_nan)
    takes = b_is_nan && (!a_is_nan || b.index < a->index);
  else if (a->value == b.value)
    takes = b.index < a->index;
  else
    takes = how == WEIR__COMBINE_MIN ? b.value < a->value : b.value > a->value;
  if (takes)
    *a = b;
}

/* The offset of an element from the first, in bytes. */
__device__ static inline long long offset_of(u64 index, int ndim, const u64 *shape, const long long *strides) {
  if (ndim <= 1)
    return ndim ? static_cast<long long>(index) * strides[0] : 0;
  long long offset = 0;
  WEIR_NO_UNROLL
  for (int d = 0; d < ndim; d++) {
    u64 at = index;
    if (d + 1 < ndim) {
      u64 above = index >> 32 ? index / shape[d] : static_cast<unsigned>(index) / static_cast<unsigned>(shape[d]);
      at = index - above * shape[d];
      index = above;
    }
    offset += static_cast<long long>(at) * strides[d];
  }
  return offset;
}

template <class C, bool I>
__device__ static inline found<C, I> element(const weir__reduce_args &args, const char *base, u64 output, u64 index) {
  const char *at = base + offset_of(index, args.reduced_ndim, args.reduced_shape, args.reduced_strides);
  found<C, I> made;
  made.value = load_as<C>(at, args.in_dtype, args.common);
  if (args.before == WEIR__BEFORE_NONZERO)
    made.value = from_real<C>(is_nonzero(made.value));
  if (args.before == WEIR__BEFORE_SQUARE) {
    if constexpr (representation<C>::is_complex)
      made.value = {made.value.re * made.value.re + made.value.im * made.value.im, 0};
    else
      made.value = made.value * made.value;
  }
  if constexpr (I)
    made.index = args.in_index ? args.in_index[index * args.outputs + output] : static_cast<long long>(index);
  return made;
}

template <class C, bool I>
__device__ static inline void finish(const weir__reduce_args &args, u64 output, found<C, I> result) {
  long long offset = offset_of(output, args.out_ndim, args.out_shape, args.out_strides);
  u64 first = blockIdx.y * args.outputs; /* of a segment */
  if (args.divisor != 1) {
    if constexpr (representation<C>::is_complex)
      result.value = {result.value.re / args.divisor, result.value.im / args.divisor};
    else if constexpr (!representation<C>::is_int)
      result.value = C(result.value / C(args.divisor));
  }
  if (args.out) {
    long long segment = args.segment_bytes * blockIdx.y;
    store(static_cast<char *>(args.out) + offset + segment, args.out_dtype, result.value);
  }
  if constexpr (I) {
    if (args.index_is_strided)
      *reinterpret_cast<long long *>(reinterpret_cast<char *>(args.out_index) + offset) = result.index;
    else if (args.out_index)
      args.out_index[first + output] = result.index;
  }
}

/* ---- Batches ---- */

/* Elements that a lane loads before it combines them. */
enum { BATCH = WEIR__REDUCE_BATCH, SUMS = 4 };

struct boolean {
  unsigned char x;
  __device__ operator bool() const { return x != 0; }
};

/* The elements of a lane are at these places, counted from the first element of the batches of all lanes. Of contiguous
 * elements a lane takes 16 bytes at a time, and the next lane those behind them; of others it takes one at a time.
 * Whether elements are aligned makes no difference to their order. */
struct batch {
  unsigned at[BATCH];
  unsigned end; /* elements from here on are not to be loaded */
};

/* is_vectors: all elements are there, contiguous and aligned. */
template <class C, class T>
__device__ static inline void load_batch(const weir__reduce_args &args, const char *first, unsigned lane,
                                         const batch &places, bool is_vectors, C *values) {
  enum { LENGTH = 16 / sizeof(T) };
  struct alignas(16) vector {
    T at[LENGTH];
  };
  vector in[BATCH / LENGTH] = {};
  if (is_vectors)
    for (int i = 0; i < BATCH / LENGTH; i++)
      in[i] = reinterpret_cast<const vector *>(first)[i * args.lanes + lane];
  else
    for (int i = 0; i < BATCH; i++)
      if (places.at[i] < places.end)
        in[i / LENGTH].at[i % LENGTH] = *reinterpret_cast<const T *>(first + places.at[i] * args.reduced_strides[0]);
  for (int i = 0; i < BATCH; i++)
    values[i] = from_real<C>(in[i / LENGTH].at[i % LENGTH]);
}

template <class C> __device__ static inline C neutral(int how) {
  switch (how) {
  case WEIR__COMBINE_ADD:
    return C(-0.0); /* so that the sum of negative zeros is one */
  case WEIR__COMBINE_MIN:
  case WEIR__COMBINE_MAX:
    if constexpr (representation<C>::is_int)
      return how == WEIR__COMBINE_MIN ? 0x7fffffffffffffff : -0x7fffffffffffffff - 1;
    else
      return C(how == WEIR__COMBINE_MIN ? 1e308 * 10 : -1e308 * 10);
  }
  return C(1);
}

/* The result of a lane for the elements from `begin` to `end`; neutral if it has none. */
template <class C>
__device__ static inline C reduce_batches(const weir__reduce_args &args, const char *base, u64 begin, u64 end,
                                          unsigned lane) {
  C sums[SUMS];
  for (int i = 0; i < SUMS; i++)
    sums[i] = neutral<C>(args.combine);
  unsigned step = args.lanes * BATCH, run = args.run;
  batch places;
  WEIR_NO_UNROLL
  for (; begin < end; begin += step) {
    const char *first = base + static_cast<long long>(begin) * args.reduced_strides[0];
    places.end = end - begin < step ? static_cast<unsigned>(end - begin) : step;
    bool is_whole = places.end == step, is_vectors = is_whole && args.is_aligned;
    WEIR_FORGET(run);
    if (!is_vectors)
      for (int i = 0; i < BATCH; i++)
        places.at[i] = (i & ~(run - 1)) * args.lanes + lane * run + (i & (run - 1));
    C values[BATCH];
#define CASE(name, T)                                                                                                  \
  case name:                                                                                                           \
    load_batch<C, T>(args, first, lane, places, is_vectors, values);                                                   \
    break;
    if constexpr (representation<C>::is_int) {
      switch (args.in_dtype) {
        CASE(UINT8, unsigned char)
        CASE(BOOL, boolean)
        CASE(INT8, signed char)
        CASE(INT16, short)
        CASE(INT32, int)
        CASE(INT64, long long)
      }
    } else if constexpr (sizeof(C) == sizeof(float)) {
      switch (args.in_dtype) {
        CASE(FLOAT16, weir_half)
        CASE(BFLOAT16, weir_bfloat16)
        CASE(FLOAT32, float)
      }
    } else {
      load_batch<C, double>(args, first, lane, places, is_vectors, values);
    }
#undef CASE
    if (args.before == WEIR__BEFORE_NONZERO) {
      for (int i = 0; i < BATCH; i++)
        values[i] = from_real<C>(is_nonzero(values[i]));
    } else if (args.before == WEIR__BEFORE_SQUARE) {
      for (int i = 0; i < BATCH; i++)
        values[i] = values[i] * values[i];
    }
    if (!is_whole) {
      C filler = neutral<C>(args.combine);
      for (int i = 0; i < BATCH; i++)
        values[i] = places.at[i] < places.end ? values[i] : filler;
    }
#define CASE(name)                                                                                                     \
  case name:                                                                                                           \
    for (int i = 0; i < BATCH; i++)                                                                                    \
      sums[i % SUMS] = combine_values(name, sums[i % SUMS], values[i]);                                                \
    break;
    switch (args.combine) {
      CASE(WEIR__COMBINE_ADD)
      CASE(WEIR__COMBINE_MUL)
      CASE(WEIR__COMBINE_MIN)
      CASE(WEIR__COMBINE_MAX)
    }
#undef CASE
  }
  WEIR_NO_UNROLL
  for (int i = 1; i < SUMS; i++) {
    sums[0] = combine_values(args.combine, sums[0], sums[1]);
    for (int j = 1; j + 1 < SUMS; j++)
      sums[j] = sums[j + 1];
  }
  return sums[0];
}

/* What a lane makes of its elements. */
template <class C, bool I>
__device__ static inline found<C, I> reduce_lane(const weir__reduce_args &args, u64 output, unsigned lane, u64 begin,
                                                 u64 end) {
  typedef found<C, I> F;
  F result = {};
  unsigned lanes = args.lanes;
  const char *base =
      static_cast<const char *>(args.in) + offset_of(output, args.out_ndim, args.out_shape, args.out_in_strides);
  u64 at = begin + lane;
  bool is_empty = true;
  if constexpr (!I && !representation<C>::is_complex)
    if (args.has_batches) {
      result.value = reduce_batches<C>(args, base, begin, end, lane);
      at = end;
    }
  /* Floats are frequent: several loads at once hide their latency. */
  enum { UNROLL = sizeof(F) == 4 ? 4 : 1 };
  WEIR_NO_UNROLL
  for (; at < end; at += UNROLL * u64(lanes)) {
    F next[UNROLL] = {};
    for (int i = 0; i < UNROLL; i++)
      if (i == 0 || at + i * u64(lanes) < end)
        next[i] = element<C, I>(args, base, output, at + i * u64(lanes));
    for (int i = 0; i < UNROLL; i++)
      if (i == 0 && is_empty)
        result = next[0];
      else if (i == 0 || at + i * u64(lanes) < end)
        combine(args.combine, &result, next[i]);
    is_empty = false;
  }
  return result;
}

#ifdef WEIR_SOFT_CUDA

/* all() and any() of contiguous elements, whose order does not matter. False if it is something else. */
template <class C>
static inline bool test_elements(const weir__reduce_args &args, u64 output, u64 begin, u64 end, C *result) {
  if (!args.has_batches || args.before != WEIR__BEFORE_NONZERO || args.run < 2 || begin >= end ||
      (args.combine != WEIR__COMBINE_MIN && args.combine != WEIR__COMBINE_MAX))
    return false;
  const char *base =
      static_cast<const char *>(args.in) + offset_of(output, args.out_ndim, args.out_shape, args.out_in_strides);
  bool is_all = args.combine == WEIR__COMBINE_MIN, is_found;
#define CASE(name, T)                                                                                                  \
  case name:                                                                                                           \
    is_found = weir_soft::has_element(reinterpret_cast<const T *>(base) + begin, end - begin, is_all);                 \
    break;
  switch (args.in_dtype) {
    CASE(BOOL, unsigned char)
    CASE(UINT8, unsigned char)
    CASE(INT32, int)
    CASE(INT64, long long)
    CASE(FLOAT32, float)
    CASE(FLOAT64, double)
  default:
    return false;
  }
#undef CASE
  *result = C(is_found != is_all);
  return true;
}

/* The only thread of a block does what its threads do on a GPU, in the same order of operations: threads that wait for each
 * other would cost more than the reduction. */
template <class C, bool I> static inline void reduce(const weir__reduce_args &args) {
  WEIR_DYNAMIC_SHARED(unsigned char, memory);
  typedef found<C, I> F;
  unsigned lanes = args.lanes, outputs = args.threads / lanes;
  F single = {}, *results = lanes > 1 ? reinterpret_cast<F *>(memory) : &single;
  u64 first = u64(blockIdx.x) * outputs, begin = blockIdx.y * args.segment, end = begin + args.segment;
  if (end > args.reduced)
    end = args.reduced;
  for (u64 output = first; output < first + outputs && output < args.outputs; output++) {
    if constexpr (!I && !representation<C>::is_complex)
      if (test_elements<C>(args, output, begin, end, &results[0].value)) {
        finish<C, I>(args, output, results[0]);
        continue;
      }
    unsigned used = end - begin < lanes ? static_cast<unsigned>(end - begin) : lanes;
    for (unsigned lane = 0; lane < used; lane++)
      results[lane] = reduce_lane<C, I>(args, output, lane, begin, end);
    for (unsigned half = lanes / 2; half; half /= 2) {
      for (unsigned lane = 0; lane < half && lane + half < used; lane++)
        combine(args.combine, &results[lane], results[lane + half]);
      used = used < half ? used : half;
    }
    finish<C, I>(args, output, results[0]);
  }
}

#else

template <class C, bool I> __device__ static inline void reduce(const weir__reduce_args &args) {
  WEIR_DYNAMIC_SHARED(unsigned char, memory);
  typedef found<C, I> F;
  unsigned lanes = args.lanes, lane = threadIdx.x % lanes;
  F *shared = reinterpret_cast<F *>(memory) + threadIdx.x;
  u64 output = u64(blockIdx.x) * (blockDim.x / lanes) + threadIdx.x / lanes;
  u64 begin = blockIdx.y * args.segment, end = begin + args.segment;
  if (end > args.reduced)
    end = args.reduced;
  F result = {};
  if (output < args.outputs)
    result = reduce_lane<C, I>(args, output, lane, begin, end);
  if (lanes > 1) {
    /* Lanes without an element are the last ones. */
    unsigned used = end - begin < lanes ? static_cast<unsigned>(end - begin) : lanes;
    if (lane < used)
      *shared = result;
    WEIR_NO_UNROLL
    for (unsigned half = lanes / 2; half; half /= 2) {
      __syncthreads();
      if (lane < half && lane + half < used) {
        combine(args.combine, &result, shared[half]);
        *shared = result;
      }
      used = used < half ? used : half;
    }
  }
  if (lane == 0 && output < args.outputs)
    finish<C, I>(args, output, result);
}

#endif

#define REDUCE(name, C, I)                                                                                             \
  extern "C" __global__ void __launch_bounds__(WEIR__REDUCE_BLOCK, sizeof(C) == 4 ? 4 : 3)                             \
      weir_reduce_##name(const weir__reduce_args args) {                                                               \
    reduce<C, I>(args);                                                                                                \
  }                                                                                                                    \
  WEIR_KERNEL(weir_reduce_##name)
REDUCE(int, long long, false)
REDUCE(float, float, false)
REDUCE(double, double, false)
REDUCE(complex, cdouble, false)
REDUCE(int_index, long long, true)
REDUCE(float_index, float, true)
REDUCE(double_index, double, true)

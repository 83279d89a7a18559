/*
 * Operations whose elements are at computed places: indices, counts, samples of a distribution, and an assertion. An
 * index out of range, or a distribution that is none, ends the kernel with an error, as in PyTorch.
 */
#include "elements.h"

/* Elements along a dimension of contiguous arrays: out[o, i, n] = in[o, indices[i], n]. */

template <class T> __device__ static inline void select(const weir__select_args &args) {
  u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= args.outer * args.picked * args.inner)
    return;
  u64 inner = at % args.inner, row = at / args.inner, which = row % args.picked, outer = row / args.picked;
  long long index = args.index_is_64_bits ? static_cast<const long long *>(args.indices)[which]
                                          : static_cast<const int *>(args.indices)[which];
  assert(index >= 0 && u64(index) < args.size);
  static_cast<T *>(args.out)[at] =
      static_cast<const T *>(args.in)[(outer * args.size + u64(index)) * args.inner + inner];
}

extern "C" __global__ void weir_index_select(const weir__select_args args) {
  switch (args.element_bytes) {
  case 1:
    return select<unsigned char>(args);
  case 2:
    return select<unsigned short>(args);
  case 4:
    return select<unsigned>(args);
  case 8:
    return select<u64>(args);
  case 16:
    return select<ulonglong2>(args);
  }
}
WEIR_KERNEL(weir_index_select)

template <class T> __device__ static inline void gather(const weir__gather_args &args) {
  u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= args.count * args.parts)
    return;
  u64 part = at % args.parts, element = at / args.parts, rest = element;
  long long offset = 0;
  for (int d = args.ndim - 1; d >= 0; d--) {
    long long place = static_cast<long long>(rest % args.shape[d]);
    rest /= args.shape[d];
    if (d == args.dim) {
      place = args.indices[element];
      assert(place >= 0 && u64(place) < args.size);
    }
    offset += place * args.strides[d];
  }
  static_cast<T *>(args.out)[at] = static_cast<const T *>(args.in)[u64(offset) * args.parts + part];
}

extern "C" __global__ void weir_gather(const weir__gather_args args) {
  switch (args.part_bytes) {
  case 1:
    return gather<unsigned char>(args);
  case 2:
    return gather<unsigned short>(args);
  case 4:
    return gather<unsigned>(args);
  case 8:
    return gather<u64>(args);
  }
}
WEIR_KERNEL(weir_gather)

/* ---- Several arrays of indices ---- */

extern "C" __global__ void weir_index_offsets(const weir__offsets_args args) {
  for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < args.count; at += u64(gridDim.x) * blockDim.x) {
    long long offset = 0;
    for (int d = 0; d < args.ndim; d++) {
      long long index = args.indices[d][at];
      assert(index >= -args.sizes[d] && index < args.sizes[d] && "index out of bounds");
      offset += (index < 0 ? index + args.sizes[d] : index) * args.strides[d];
    }
    args.out[at] = offset;
  }
}
WEIR_KERNEL(weir_index_offsets)

/* Where an element is in the values; *in_array gets the offset of its position in the array. */
__device__ static inline char *value_at(const weir__at_args &args, u64 position, u64 which, long long *in_array) {
  long long in_values = 0, offset = 0;
  for (int d = 0; d < args.rest_ndim; d++) {
    long long place = static_cast<long long>(position % args.rest_shape[d]);
    position /= args.rest_shape[d];
    offset += place * args.array_strides[d];
    in_values += place * args.rest_strides[d];
  }
  for (int d = 0; d < args.index_ndim; d++) {
    in_values += static_cast<long long>(which % args.index_shape[d]) * args.index_strides[d];
    which /= args.index_shape[d];
  }
  *in_array = offset;
  return args.values + in_values;
}

__device__ static inline void copy_element(char *to, const char *from, int bytes) {
  switch (bytes) {
  case 1:
    *to = *from;
    return;
  case 2:
    *reinterpret_cast<unsigned short *>(to) = *reinterpret_cast<const unsigned short *>(from);
    return;
  case 4:
    *reinterpret_cast<unsigned *>(to) = *reinterpret_cast<const unsigned *>(from);
    return;
  case 16: /* in halves, which need less alignment */
    reinterpret_cast<u64 *>(to)[1] = reinterpret_cast<const u64 *>(from)[1];
    [[fallthrough]];
  case 8:
    *reinterpret_cast<u64 *>(to) = *reinterpret_cast<const u64 *>(from);
  }
}

template <class C> __device__ static inline void add_element(char *to, const char *from, int dtype) {
  store(to, dtype, load<C>(to, dtype) + load<C>(from, dtype));
}

__device__ static inline void accumulate(char *to, const char *from, int dtype) {
  switch (dtype) {
  case COMPLEX64:
  case COMPLEX128:
    return add_element<cdouble>(to, from, dtype);
  case FLOAT64:
    return add_element<double>(to, from, dtype);
  case FLOAT16:
  case BFLOAT16:
  case FLOAT32:
    return add_element<float>(to, from, dtype);
  default:
    return add_element<long long>(to, from, dtype);
  }
}

extern "C" __global__ void weir_index_get(const weir__at_args args) {
  u64 count = args.positions * args.picked;
  for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += u64(gridDim.x) * blockDim.x) {
    long long in_array;
    char *value = value_at(args, at % args.positions, at / args.positions, &in_array);
    copy_element(value, args.array + in_array + args.offsets[at / args.positions], args.element_bytes);
  }
}
WEIR_KERNEL(weir_index_get)

/* If an offset occurs twice, either value may remain. */
extern "C" __global__ void weir_index_put(const weir__at_args args) {
  u64 count = args.positions * args.picked;
  for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += u64(gridDim.x) * blockDim.x) {
    long long in_array;
    const char *value = value_at(args, at % args.positions, at / args.positions, &in_array);
    copy_element(args.array + in_array + args.offsets[at / args.positions], value, args.element_bytes);
  }
}
WEIR_KERNEL(weir_index_put)

/* The values of a position are taken in the order of the offsets, by one thread or by several that divide the offsets
 * among them: the last value remains, and sums are the same each time. */
extern "C" __global__ void weir_index_put_ordered(const weir__at_args args) {
  u64 count = args.positions * args.lanes;
  for (u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += u64(gridDim.x) * blockDim.x)
    for (u64 which = 0; which < args.picked; which++) {
      long long offset = args.offsets[which], in_array;
      if (u64(offset) / unsigned(args.element_bytes) % args.lanes != at % args.lanes)
        continue;
      const char *value = value_at(args, at / args.lanes, which, &in_array);
      if (args.accumulates)
        accumulate(args.array + in_array + offset, value, args.dtype);
      else
        copy_element(args.array + in_array + offset, value, args.element_bytes);
    }
}
WEIR_KERNEL(weir_index_put_ordered)

/* The values are known to be in range. */
extern "C" __global__ void weir_bincount(const weir__bincount_args args) {
  u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= args.count)
    return;
  long long bin = args.in[at];
  if (args.out_dtype == INT64)
    atomicAdd(static_cast<u64 *>(args.out) + bin, u64(1));
  else if (args.out_dtype == FLOAT32)
    atomicAdd(static_cast<float *>(args.out) + bin, static_cast<const float *>(args.weights)[at]);
  else
    atomicAdd(static_cast<double *>(args.out) + bin, static_cast<const double *>(args.weights)[at]);
}
WEIR_KERNEL(weir_bincount)

/* A block for each row, which goes through it in tiles. Within a tile, a thread adds its own elements, then those sums
 * are added across threads, in log(threads) steps. */
extern "C" __global__ void weir_scan_rows(const weir__scan_args args) {
  WEIR_DYNAMIC_SHARED(double, sums); /* [WEIR__SCAN_BLOCK] */
  unsigned thread = threadIdx.x;
  u64 row = u64(blockIdx.x) * args.columns;
  double carried = 0;
  for (u64 tile = 0; tile < args.columns; tile += WEIR__SCAN_BLOCK * WEIR__SCAN_ITEMS) {
    u64 first = tile + thread * WEIR__SCAN_ITEMS;
    double own[WEIR__SCAN_ITEMS], sum = 0;
    for (int i = 0; i < WEIR__SCAN_ITEMS; i++) {
      sum += first + i < args.columns ? args.in[row + first + i] : 0;
      own[i] = sum;
    }
    sums[thread] = sum;
    for (unsigned step = 1; step < WEIR__SCAN_BLOCK; step *= 2) {
      __syncthreads();
      double earlier = thread >= step ? sums[thread - step] : 0;
      __syncthreads();
      sums[thread] += earlier;
    }
    __syncthreads();
    double before = carried + (thread ? sums[thread - 1] : 0);
    for (int i = 0; i < WEIR__SCAN_ITEMS; i++)
      if (first + i < args.columns)
        args.out[row + first + i] = before + own[i];
    carried += sums[WEIR__SCAN_BLOCK - 1];
    __syncthreads();
  }
}
WEIR_KERNEL(weir_scan_rows)

extern "C" __global__ void weir_pick(const weir__pick_args args) {
  u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= args.rows * args.samples)
    return;
  u64 row = at / args.samples * args.columns;
  const double *cumulative = args.cumulative + row, *probabilities = args.probabilities + row;
  double total = cumulative[args.columns - 1], wanted = args.uniform[at];
  assert(total > 0 && total - total == 0); /* not all zero, a number, and finite */
  u64 low = 0, high = args.columns;
  while (low < high) {
    u64 middle = low + (high - low) / 2;
    if (cumulative[middle] <= wanted * total)
      low = middle + 1;
    else
      high = middle;
  }
  if (low == args.columns) /* by rounding */
    low--;
  while (low && probabilities[low] == 0)
    low--;
  args.out[at] = static_cast<long long>(low);
}
WEIR_KERNEL(weir_pick)

/* Ends with an error if an element is negative or not a number. */
extern "C" __global__ void weir_check_probabilities(const double *in, u64 count) {
  u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count)
    assert(in[at] >= 0 && in[at] - in[at] == 0);
}
WEIR_KERNEL(weir_check_probabilities)

extern "C" __global__ void weir_assert_nonzero(const void *in, int dtype) {
  assert(is_nonzero(load<cdouble>(in, dtype)));
}
WEIR_KERNEL(weir_assert_nonzero)

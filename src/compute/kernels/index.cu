/*
 * Elements at indices along a dimension of contiguous arrays: out[o, i, n] = in[o, indices[i], n].
 */
#include "elements.h"

template <class T> __device__ static inline void select(const weir__select_args &args) {
  u64 at = u64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= args.outer * args.picked * args.inner)
    return;
  u64 inner = at % args.inner, row = at / args.inner, which = row % args.picked, outer = row / args.picked;
  long long index = args.index_is_64_bits ? static_cast<const long long *>(args.indices)[which]
                                          : static_cast<const int *>(args.indices)[which];
  if (index < 0 || u64(index) >= args.size)
    __trap();
  static_cast<T *>(args.out)[at] = static_cast<const T *>(args.in)[(outer * args.size + u64(index)) * args.inner + inner];
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

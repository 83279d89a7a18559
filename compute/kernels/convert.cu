/*
 * Conversions of contiguous float16, bfloat16 and float32 elements. They are frequent, and need fewer registers than the
 * kernels of map.h, so that more threads load at the same time. The arguments have the type of the input as `op`.
 */
#include "map.h"

extern "C" __global__ void __launch_bounds__(WEIR__BLOCK, 7) weir_convert_float(const weir__vector_args args) {
  enum { N = WEIR__GROUP_FLOAT };
  WEIR_NO_UNROLL
  for (u64 first = (u64(blockIdx.x) * blockDim.x + threadIdx.x) * N; first < args.count;
       first += u64(gridDim.x) * blockDim.x * N) {
    int valid = args.count - first < N ? static_cast<int>(args.count - first) : N;
    bool is_packed = valid == N;
    float values[N];
    int size = args.op == FLOAT32 ? 4 : 2;
    places<N> at;
    /* The pointer to a packed group is the last one. */
    for (int i = 0; i < N; i++)
      at.at[i] = static_cast<char *>(const_cast<void *>(args.in[0])) + (first + (is_packed ? 0 : i)) * size;
    if (args.op == FLOAT32)
      load_elements<float, float, N>(at, valid, is_packed, values);
    else if (args.op == FLOAT16)
      load_elements<float, weir_half, N>(at, valid, is_packed, values);
    else
      load_elements<float, weir_bfloat16, N>(at, valid, is_packed, values);
#define CASE(name, T)                                                                                                  \
  case name:                                                                                                           \
    for (int i = 0; i < N; i++)                                                                                        \
      at.at[i] = static_cast<char *>(args.out) + (first + (is_packed ? 0 : i)) * sizeof(T);                            \
    store_elements<float, T, N>(at, valid, is_packed, values);                                                         \
    break;
    switch (args.dtype) {
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
  }
}
WEIR_KERNEL(weir_convert_float)

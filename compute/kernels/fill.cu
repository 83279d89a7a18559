/* Fills memory with a pattern of 1, 2, 4, 8 or 16 bytes. */
#include "device.h"

template <class T> __device__ void fill(T *out, unsigned long long count, T value) {
  unsigned long long step = (unsigned long long)gridDim.x * blockDim.x;
  for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
    out[i] = value;
}

#define FILL(name, T)                                                                                                  \
  extern "C" __global__ void name(T *out, unsigned long long count, T value) { fill(out, count, value); }              \
  WEIR_KERNEL(name)
FILL(weir_fill_8, unsigned char)
FILL(weir_fill_16, unsigned short)
FILL(weir_fill_32, unsigned)
FILL(weir_fill_64, unsigned long long)
FILL(weir_fill_128, ulonglong2)

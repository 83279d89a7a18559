/*
 * What the built-in kernels use beside plain CUDA C++, for both compilers: NVRTC, without any CUDA header, and the host's
 * compiler, where soft_cuda.h comes first.
 *
 * weir_half and weir_bfloat16 are 16-bit floating-point types that convert to and from float, rounding to nearest even.
 */
#ifndef WEIR_DEVICE_KERNELS_H
#define WEIR_DEVICE_KERNELS_H

#ifdef WEIR_SOFT_CUDA

/* In front of a loop whose body is large. */
#define WEIR_NO_UNROLL
/* Makes an unsigned value unknown to the compiler, so that it does not compute what depends on it ahead of time and keep
 * it in registers. */
#define WEIR_FORGET(x)

/* Without operators of their own, as below: arithmetic is that of float. */
struct alignas(2) weir_half {
  unsigned short x;
  weir_half() = default;
  weir_half(float v) : x(weir_soft::float_to_half(v)) {}
  operator float() const { return weir_soft::half_to_float(x); }
};

struct alignas(2) weir_bfloat16 {
  unsigned short x;
  weir_bfloat16() = default;
  weir_bfloat16(float v) : x(weir_soft::float_to_bfloat16(v)) {}
  operator float() const { return weir_soft::bfloat16_to_float(x); }
};

#else

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

#define WEIR_NO_UNROLL _Pragma("unroll 1")
#define WEIR_FORGET(x) asm volatile("" : "+r"(x))

/* A kernel with C linkage is known by its name. */
#define WEIR_KERNEL(name)
#define WEIR_DYNAMIC_SHARED(T, name) extern __shared__ T name[]

struct __align__(2) weir_half {
  unsigned short x;
  weir_half() = default;
  __device__ weir_half(float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(x) : "f"(v)); }
  __device__ operator float() const {
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(x));
    return v;
  }
};

struct __align__(2) weir_bfloat16 {
  unsigned short x;
  weir_bfloat16() = default;
  __device__ weir_bfloat16(float v) {
    unsigned bits = __float_as_uint(v);
    x = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fff : (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  __device__ operator float() const { return __uint_as_float((unsigned)x << 16); }
};

#endif
#endif

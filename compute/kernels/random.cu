/*
 * Fills with random numbers. Each thread reads a subsequence of its own, from the offset on, and gives four numbers (or
 * two of 64 bits) at a time to elements that lie one grid apart. This is how PyTorch assigns elements to threads, so the
 * results are the same where the grid is.
 *
 * `seed` and `offset` are numbers, or the addresses of numbers if the launch is part of a captured graph
 * (weir_philox_state).
 */
#include "device.h"

#include "philox.h"

typedef unsigned long long u64;

/* Where the launch begins to read. */
struct position {
  u64 seed, offset;
};

__device__ static position resolve(u64 seed, u64 offset, u64 intragraph, int captured) {
  if (captured)
    return {*reinterpret_cast<const u64 *>(seed), *reinterpret_cast<const u64 *>(offset) + intragraph};
  return {seed, offset};
}

/* Calls use(index, value) for each element of this thread. make(block, values) turns four words into N values. There are
 * fewer than 2^31 elements and 2^27 threads, so that no index overflows. */
template <int N, class V, class Make, class Use>
__device__ static void for_each(unsigned count, position at, Make make, Use use) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, stride = blockDim.x * gridDim.x;
  for (unsigned first = thread; first < count; first += stride * N, at.offset += 4) {
    V values[N];
    make(weir__philox_at(at.seed, thread, at.offset), values);
    for (int i = 0; i < N; i++)
      if (first + stride * i < count)
        use(first + stride * i, values[i]);
  }
}

/* Element types, with the numbers of weir_dtype. */
enum {
  UINT8 = 0,
  INT8 = 1,
  INT16 = 2,
  INT32 = 3,
  INT64 = 4,
  FLOAT16 = 5,
  FLOAT32 = 6,
  FLOAT64 = 7,
  BOOL = 11,
  BFLOAT16 = 15
};

/* Stores a number as an element of a type. */
__device__ static void store(void *out, unsigned index, int dtype, long long value) {
  switch (dtype) {
  case UINT8:
  case INT8:
    static_cast<unsigned char *>(out)[index] = static_cast<unsigned char>(value);
    break;
  case INT16:
    static_cast<short *>(out)[index] = static_cast<short>(value);
    break;
  case INT32:
    static_cast<int *>(out)[index] = static_cast<int>(value);
    break;
  case INT64:
    static_cast<long long *>(out)[index] = value;
    break;
  case FLOAT16:
    static_cast<weir_half *>(out)[index] = weir_half(static_cast<float>(value));
    break;
  case FLOAT32:
    static_cast<float *>(out)[index] = static_cast<float>(value);
    break;
  case FLOAT64:
    static_cast<double *>(out)[index] = static_cast<double>(value);
    break;
  case BOOL:
    static_cast<unsigned char *>(out)[index] = value != 0;
    break;
  case BFLOAT16:
    static_cast<weir_bfloat16 *>(out)[index] = weir_bfloat16(static_cast<float>(value));
    break;
  }
}

/* ---- Integers: base + (number modulo modulus), where modulus 0 means that all bits are used ---- */

extern "C" __global__ void weir_rng_int32(void *out, unsigned count, u64 seed, u64 offset, u64 intragraph,
                                             int captured, int dtype, unsigned modulus, long long base) {
  for_each<4, unsigned>(
      count, resolve(seed, offset, intragraph, captured),
      [](weir__philox_block block, unsigned *values) {
        for (int i = 0; i < 4; i++)
          values[i] = block.words[i];
      },
      [=](unsigned index, unsigned value) {
        u64 reduced = modulus ? value % modulus : value;
        store(out, index, dtype, static_cast<long long>(reduced + u64(base)));
      });
}
WEIR_KERNEL(weir_rng_int32)

extern "C" __global__ void weir_rng_int64(void *out, unsigned count, u64 seed, u64 offset, u64 intragraph,
                                             int captured, int dtype, u64 modulus, long long base) {
  for_each<2, u64>(
      count, resolve(seed, offset, intragraph, captured),
      [](weir__philox_block block, u64 *values) {
        values[0] = weir__philox_long(block.words[0], block.words[1]);
        values[1] = weir__philox_long(block.words[2], block.words[3]);
      },
      [=](unsigned index, u64 value) {
        u64 reduced = modulus ? value % modulus : value;
        store(out, index, dtype, static_cast<long long>(reduced + u64(base)));
      });
}
WEIR_KERNEL(weir_rng_int64)

/* ---- Uniform floats: (0, 1] is scaled, and the upper bound becomes the lower one ---- */

struct make_uniform {
  __device__ void operator()(weir__philox_block block, float *values) const {
    for (int i = 0; i < 4; i++)
      values[i] = weir__philox_float(block.words[i]);
  }
  __device__ void operator()(weir__philox_block block, double *values) const {
    for (int i = 0; i < 2; i++)
      values[i] = weir__philox_double(block.words[2 * i], block.words[2 * i + 1]);
  }
};

__device__ static float scale(float value, float by, float add) { return fmaf(value, by, add); }
__device__ static double scale(double value, double by, double add) { return fma(value, by, add); }

#define WEIR_UNIFORM(name, T, V, N)                                                                                    \
  extern "C" __global__ void name(void *out, unsigned count, u64 seed, u64 offset, u64 intragraph, int captured,       \
                                  V low, V high, V range) {                                                            \
    for_each<N, V>(count, resolve(seed, offset, intragraph, captured), make_uniform(), [=](unsigned index, V value) {  \
      T made = T(scale(value, range, low));                                                                            \
      static_cast<T *>(out)[index] = static_cast<V>(made) == high ? T(low) : made;                                     \
    });                                                                                                                \
  }                                                                                                                    \
  WEIR_KERNEL(name)
WEIR_UNIFORM(weir_rng_uniform_float16, weir_half, float, 4)
WEIR_UNIFORM(weir_rng_uniform_bfloat16, weir_bfloat16, float, 4)
WEIR_UNIFORM(weir_rng_uniform_float32, float, float, 4)
WEIR_UNIFORM(weir_rng_uniform_float64, double, double, 2)

/* ---- Bernoulli ---- */

extern "C" __global__ void weir_rng_bernoulli(void *out, unsigned count, u64 seed, u64 offset, u64 intragraph,
                                                 int captured, int dtype, float probability) {
  for_each<4, float>(
      count, resolve(seed, offset, intragraph, captured), make_uniform(),
      [=](unsigned index, float value) { store(out, index, dtype, value < probability); });
}
WEIR_KERNEL(weir_rng_bernoulli)

extern "C" __global__ void weir_rng_bernoulli_float64(void *out, unsigned count, u64 seed, u64 offset,
                                                         u64 intragraph, int captured, double probability) {
  for_each<2, double>(
      count, resolve(seed, offset, intragraph, captured), make_uniform(),
      [=](unsigned index, double value) { static_cast<double *>(out)[index] = value < probability; });
}
WEIR_KERNEL(weir_rng_bernoulli_float64)

/* ---- Normal: the Box-Muller transform, as cuRAND's device functions compute it ---- */

__device__ static void sine_and_cosine(float angle, float *sine, float *cosine) {
#ifdef WEIR_SOFT_CUDA
  *sine = sinf(angle);
  *cosine = cosf(angle);
#else
  __sincosf(angle, sine, cosine); /* the hardware's approximation, for cuRAND uses it */
#endif
}

/* Of pi times the argument, which is in (0, 2]. */
__device__ static void sine_and_cosine_pi(double turns, double *sine, double *cosine) {
#ifdef WEIR_SOFT_CUDA
  /* The nearest multiple of a half is subtracted exactly, so that results near 0 are accurate. */
  double quarter = rint(2 * turns), angle = 3.141592653589793 * (turns - quarter / 2);
  double s = sin(angle), c = cos(angle);
  switch (static_cast<int>(quarter) & 3) {
  case 0:
    *sine = s, *cosine = c;
    break;
  case 1:
    *sine = c, *cosine = -s;
    break;
  case 2:
    *sine = -s, *cosine = -c;
    break;
  default:
    *sine = -c, *cosine = s;
  }
#else
  sincospi(turns, sine, cosine);
#endif
}

struct make_normal {
  __device__ void operator()(weir__philox_block block, float *values) const {
    for (int i = 0; i < 4; i += 2) {
      /* 2 pi / 2^32 as cuRAND rounds it: each factor is a float. */
      const float turn = 2.3283064e-10f * 6.2831855f;
      float angle = fmaf(static_cast<float>(block.words[i + 1]), turn, turn / 2);
      float length = sqrtf(-2.0f * logf(weir__philox_float(block.words[i])));
      sine_and_cosine(angle, &values[i], &values[i + 1]);
      values[i] *= length;
      values[i + 1] *= length;
    }
  }
  __device__ void operator()(weir__philox_block block, double *values) const {
    u64 bits = block.words[2] ^ u64(block.words[3]) << 21;
    double turns = static_cast<double>(bits) * 2.220446049250313e-16 + 1.1102230246251565e-16; /* 2^-52 and 2^-53 */
    double length = sqrt(-2.0 * log(weir__philox_double(block.words[0], block.words[1])));
    sine_and_cosine_pi(turns, &values[0], &values[1]);
    values[0] *= length;
    values[1] *= length;
  }
};

#define WEIR_NORMAL(name, T, V, N)                                                                                     \
  extern "C" __global__ void name(void *out, unsigned count, u64 seed, u64 offset, u64 intragraph, int captured,       \
                                  V mean, V deviation) {                                                               \
    for_each<N, V>(count, resolve(seed, offset, intragraph, captured), make_normal(), [=](unsigned index, V value) {   \
      static_cast<T *>(out)[index] = T(scale(value, deviation, mean));                                                 \
    });                                                                                                                \
  }                                                                                                                    \
  WEIR_KERNEL(name)
WEIR_NORMAL(weir_rng_normal_float16, weir_half, float, 4)
WEIR_NORMAL(weir_rng_normal_bfloat16, weir_bfloat16, float, 4)
WEIR_NORMAL(weir_rng_normal_float32, float, float, 4)
WEIR_NORMAL(weir_rng_normal_float64, double, double, 2)

/* ---- Poisson ----
 *
 * Small rates are inverted: one number, and a search from 0 on. For others numbers are rejected (PTRS of Hoermann, "The
 * transformed rejection method for generating Poisson random variables", 1993), at most a third at a time. */

__device__ static double log_factorial(double n) {
  double result = 0;
  for (; n < 10; n++)
    result -= log(n + 1);
  return result + (n + 0.5) * log(n) - n + 0.9189385332046727 + (1 / 12.0 - (1 / 360.0 - 1 / (1260 * n * n)) / (n * n)) / n;
}

__device__ static double invert_poisson(double rate, double uniform) {
  enum { MOST = 100 }; /* the probability beyond it is below the resolution of the number */
  double n = 0;
  for (double probability = exp(-rate); uniform > probability && n < MOST; probability *= rate / n) {
    uniform -= probability;
    n++;
  }
  return n;
}

/* One attempt; negative if it is rejected. */
__device__ static double try_poisson(double rate, double first, double second) {
  double b = 0.931 + 2.53 * sqrt(rate), a = -0.059 + 0.02483 * b;
  double u = first - 0.5, edge = 0.5 - fabs(u), n = floor((2 * a / edge + b) * u + rate + 0.43);
  if (edge >= 0.07 && second <= 0.9277 - 3.6224 / (b - 2))
    return n;
  if (n < 0 || (edge < 0.013 && second > edge))
    return -1;
  double height = log(second * (1.1239 + 1.1328 / (b - 3.4)) / (a / (edge * edge) + b));
  return height <= n * log(rate) - rate - log_factorial(n) ? n : -1;
}

/* The elements are rates, and become the numbers. Each has WEIR__POISSON_BLOCKS blocks of its thread's subsequence; to
 * need more has a probability below 10^-10, and shares those of the next one. */
template <class T> __device__ static void fill_poisson(T *out, unsigned count, position at) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x, stride = blockDim.x * gridDim.x;
  for (unsigned index = thread; index < count; index += stride, at.offset += 4 * WEIR__POISSON_BLOCKS) {
    double rate = static_cast<double>(out[index]), made = -1;
    assert(rate >= 0 && rate - rate == 0 && "invalid Poisson rate, expected rate to be non-negative");
    for (u64 offset = at.offset; made < 0; offset += 4) {
      weir__philox_block block = weir__philox_at(at.seed, thread, offset);
      double first = weir__philox_double(block.words[0], block.words[1]);
      made = rate < 10 ? invert_poisson(rate, first)
                       : try_poisson(rate, first, weir__philox_double(block.words[2], block.words[3]));
    }
    out[index] = T(made);
  }
}

#define WEIR_POISSON(name, T)                                                                                          \
  extern "C" __global__ void name(void *out, unsigned count, u64 seed, u64 offset, u64 intragraph, int captured) {     \
    fill_poisson(static_cast<T *>(out), count, resolve(seed, offset, intragraph, captured));                           \
  }                                                                                                                    \
  WEIR_KERNEL(name)
WEIR_POISSON(weir_rng_poisson_float16, weir_half)
WEIR_POISSON(weir_rng_poisson_bfloat16, weir_bfloat16)
WEIR_POISSON(weir_rng_poisson_float32, float)
WEIR_POISSON(weir_rng_poisson_float64, double)

/* ---- Permutations: a stable radix sort of indices by random keys, 4 bits at a time ----
 *
 * A block sorts a tile; the first kernel counts the digits of each tile, the second turns the counts into positions
 * (digit by digit, and tile by tile within a digit), and the third moves the elements there. A thread has consecutive
 * elements, and its counts of each digit are in shared memory, so the order of equal digits is kept. */

enum { DIGITS = 16, TILE_THREADS = 256, ITEMS = 8, TILE = TILE_THREADS * ITEMS, SCAN_THREADS = 512 };

/* `flip` is 8 in the pass of a sign bit, so that negative keys come first. */
__device__ static unsigned digit_of(u64 key, int shift, unsigned mask, unsigned flip) {
  return (unsigned(key >> shift) & mask) ^ flip;
}

__device__ static void count_digits(const u64 *keys, unsigned count, int shift, unsigned mask, unsigned flip,
                                    unsigned short *counts) {
  unsigned thread = threadIdx.x, first = blockIdx.x * TILE + thread * ITEMS;
  for (int digit = 0; digit < DIGITS; digit++)
    counts[digit * TILE_THREADS + thread] = 0;
  for (unsigned i = first; i < first + ITEMS && i < count; i++)
    counts[digit_of(keys[i], shift, mask, flip) * TILE_THREADS + thread]++;
}

extern "C" __global__ void weir_rng_sort_count(const u64 *keys, unsigned count, int shift, unsigned mask,
                                                  unsigned flip, unsigned *totals) {
  WEIR_DYNAMIC_SHARED(unsigned short, counts); /* [DIGITS][TILE_THREADS] */
  count_digits(keys, count, shift, mask, flip, counts);
  __syncthreads();
  if (threadIdx.x < DIGITS) {
    unsigned sum = 0;
    for (int i = 0; i < TILE_THREADS; i++)
      sum += counts[threadIdx.x * TILE_THREADS + i];
    totals[threadIdx.x * gridDim.x + blockIdx.x] = sum;
  }
}
WEIR_KERNEL(weir_rng_sort_count)

/* Replaces the counts by the sums of all earlier ones. One block. */
extern "C" __global__ void weir_rng_sort_scan(unsigned *totals, unsigned count) {
  WEIR_DYNAMIC_SHARED(unsigned, sums); /* [SCAN_THREADS] */
  unsigned share = (count + SCAN_THREADS - 1) / SCAN_THREADS, first = threadIdx.x * share;
  unsigned sum = 0;
  for (unsigned i = first; i < first + share && i < count; i++)
    sum += totals[i];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned before = 0;
    for (int i = 0; i < SCAN_THREADS; i++) {
      unsigned own = sums[i];
      sums[i] = before;
      before += own;
    }
  }
  __syncthreads();
  sum = sums[threadIdx.x];
  for (unsigned i = first; i < first + share && i < count; i++) {
    unsigned own = totals[i];
    totals[i] = sum;
    sum += own;
  }
}
WEIR_KERNEL(weir_rng_sort_scan)

/* In the first pass `indices` is NULL: the indices are 0 to count - 1. */
extern "C" __global__ void weir_rng_sort_move(const u64 *keys, const unsigned *indices, unsigned count, int shift,
                                                 unsigned mask, unsigned flip, const unsigned *totals, u64 *keys_out,
                                                 unsigned *indices_out) {
  WEIR_DYNAMIC_SHARED(unsigned short, counts); /* [DIGITS][TILE_THREADS] */
  unsigned thread = threadIdx.x, first = blockIdx.x * TILE + thread * ITEMS;
  count_digits(keys, count, shift, mask, flip, counts);
  __syncthreads();
  /* For each digit, the elements of earlier threads of the tile. */
  if (thread < DIGITS) {
    unsigned sum = 0;
    for (int i = 0; i < TILE_THREADS; i++) {
      unsigned own = counts[thread * TILE_THREADS + i];
      counts[thread * TILE_THREADS + i] = static_cast<unsigned short>(sum);
      sum += own;
    }
  }
  __syncthreads();
  for (unsigned i = first; i < first + ITEMS && i < count; i++) {
    unsigned digit = digit_of(keys[i], shift, mask, flip);
    unsigned to = totals[digit * gridDim.x + blockIdx.x] + counts[digit * TILE_THREADS + thread]++;
    keys_out[to] = keys[i];
    indices_out[to] = indices ? indices[i] : i;
  }
}
WEIR_KERNEL(weir_rng_sort_move)

/* Equal keys left their indices in order. The first thread of such a run shuffles them with numbers of its own. */
extern "C" __global__ void weir_rng_shuffle_equal(const u64 *keys, unsigned *indices, unsigned count, u64 mask,
                                                     u64 seed, u64 offset, u64 intragraph, int captured) {
  unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread + 1 >= count || ((keys[thread] ^ keys[thread + 1]) & mask) ||
      (thread && !((keys[thread] ^ keys[thread - 1]) & mask)))
    return;
  unsigned length = 2;
  while (thread + length < count && !((keys[thread] ^ keys[thread + length]) & mask))
    length++;
  position at = resolve(seed, offset, intragraph, captured);
  weir__philox_block block = {{0, 0, 0, 0}};
  for (unsigned last = length - 1, used = 0; last > 0; last--, used++) {
    if (used % 4 == 0)
      block = weir__philox_at(at.seed, thread, at.offset + used);
    unsigned other = block.words[used % 4] % (last + 1), kept = indices[thread + last];
    indices[thread + last] = indices[thread + other];
    indices[thread + other] = kept;
  }
}
WEIR_KERNEL(weir_rng_shuffle_equal)

extern "C" __global__ void weir_rng_store_indices(const unsigned *indices, unsigned count, void *out, int dtype) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count)
    store(out, i, dtype, indices[i]);
}
WEIR_KERNEL(weir_rng_store_indices)

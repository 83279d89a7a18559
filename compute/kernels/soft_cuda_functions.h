/*
 * The functions of CUDA C++ on the software device; part of soft_cuda.h. Functions that cannot work here are templates
 * with a static_assert, so that a kernel which calls one does not compile and the message has the name.
 */

/* ---- Synchronization ---- */

static inline void __syncthreads() { weir_soft::barrier(0); }
static inline int __syncthreads_count(int predicate) { return weir_soft::barrier(predicate != 0); }
static inline int __syncthreads_or(int predicate) { return weir_soft::barrier(predicate != 0) != 0; }
static inline int __syncthreads_and(int predicate) { return weir_soft::barrier(predicate == 0) == 0; }
static inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_block() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

static inline void __syncwarp(unsigned mask = ~0u) {
  weir_soft::warp *w = weir_soft::warp_of_thread();
  weir_soft::warp_barrier(w, mask);
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  unsigned own = weir_soft::lane_of_thread();
  return weir_soft::exchange(mask, value, (own & ~(width - 1u)) | (unsigned(lane) & (width - 1u)), true);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned own = weir_soft::lane_of_thread();
  return weir_soft::exchange(mask, value, own - delta, (own & (width - 1u)) >= delta);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  unsigned own = weir_soft::lane_of_thread();
  return weir_soft::exchange(mask, value, own + delta, (own & (width - 1u)) + delta < unsigned(width));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  unsigned own = weir_soft::lane_of_thread(), from = own ^ unsigned(lanes);
  return weir_soft::exchange(mask, value, from, from < (own & ~(width - 1u)) + width);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return weir_soft::fold_warp(mask, predicate ? 1u << weir_soft::lane_of_thread() : 0,
                              [](unsigned a, unsigned b) { return a | b; });
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
static inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  return weir_soft::fold_warp(mask, value, [](unsigned a, unsigned b) { return a + b; });
}
static inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  return weir_soft::fold_warp(mask, value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value) {
  return weir_soft::fold_warp(mask, value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}

#define WEIR_SOFT_LACKS(name)                                                                                          \
  template <class... A> static inline unsigned name(A...) {                                                            \
    static_assert(sizeof...(A) > 1000, #name " is not available on the software device");                              \
    return 0;                                                                                                          \
  }
WEIR_SOFT_LACKS(__activemask)
WEIR_SOFT_LACKS(__match_any_sync)
WEIR_SOFT_LACKS(__match_all_sync)
WEIR_SOFT_LACKS(__reduce_and_sync)
WEIR_SOFT_LACKS(__reduce_or_sync)
WEIR_SOFT_LACKS(__reduce_xor_sync)
WEIR_SOFT_LACKS(__nanosleep)
WEIR_SOFT_LACKS(__isGlobal)
WEIR_SOFT_LACKS(__cvta_generic_to_shared)

[[noreturn]] static inline void __trap() { weir_soft::fail(weir_soft::launch_failed); }
#ifndef assert
#define assert(condition)                                                                                              \
  ((condition)                                                                                                         \
       ? void()                                                                                                        \
       : (printf("%s:%d: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n", __FILE__, __LINE__,      \
                 __func__, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, #condition),     \
          weir_soft::fail(weir_soft::assert_failed)))
#endif

/* ---- Atomics ---- */

namespace weir_soft {
template <size_t> struct word;
template <> struct word<2> { using type = uint16_t; };
template <> struct word<4> { using type = uint32_t; };
template <> struct word<8> { using type = uint64_t; };

/* Replaces *at by change(*at), and returns what it was. */
template <class T, class Change> static inline T update(T *at, Change change) {
  using bits = typename word<sizeof(T)>::type;
  bits *address = reinterpret_cast<bits *>(at), seen = __atomic_load_n(address, __ATOMIC_RELAXED), wanted;
  T before;
  do {
    memcpy(&before, &seen, sizeof seen);
    T after = change(before);
    memcpy(&wanted, &after, sizeof wanted);
  } while (!__atomic_compare_exchange_n(address, &seen, wanted, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
  return before;
}

template <class T> struct same { using type = T; };
template <class T> using given = typename same<T>::type; /* not deduced: atomicAdd(&a_long, 1) works as with CUDA */
} // namespace weir_soft

#define WEIR_SOFT_ATOMIC(name, expression)                                                                             \
  template <class T> static inline T name(T *at, weir_soft::given<T> v) {                                              \
    return weir_soft::update(at, [v](T a) -> T { return expression; });                                                \
  }                                                                                                                    \
  template <class T> static inline T name##_block(T *at, weir_soft::given<T> v) { return name(at, v); }                \
  template <class T> static inline T name##_system(T *at, weir_soft::given<T> v) { return name(at, v); }
WEIR_SOFT_ATOMIC(atomicAdd, a + v)
WEIR_SOFT_ATOMIC(atomicSub, a - v)
WEIR_SOFT_ATOMIC(atomicExch, ((void)a, v))
WEIR_SOFT_ATOMIC(atomicMin, v < a ? v : a)
WEIR_SOFT_ATOMIC(atomicMax, v > a ? v : a)
WEIR_SOFT_ATOMIC(atomicAnd, a &v)
WEIR_SOFT_ATOMIC(atomicOr, a | v)
WEIR_SOFT_ATOMIC(atomicXor, a ^ v)
WEIR_SOFT_ATOMIC(atomicInc, a >= v ? 0 : a + 1)
WEIR_SOFT_ATOMIC(atomicDec, a == 0 || a > v ? v : a - 1)
template <class T> static inline T atomicCAS(T *at, weir_soft::given<T> compare, weir_soft::given<T> value) {
  return weir_soft::update(at, [=](T a) -> T { return a == compare ? value : a; });
}

/* ---- Bits and integers ---- */

template <class To, class From> static inline To weir_soft_bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float x) { return weir_soft_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return weir_soft_bits<unsigned>(x); }
static inline float __int_as_float(int x) { return weir_soft_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return weir_soft_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return weir_soft_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return weir_soft_bits<double>(x); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
__extension__ static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)a * b >> 64);
}
__extension__ static inline long long __mul64hi(long long a, long long b) { return (long long)((__int128)a * b >> 64); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++)
    r |= (x >> i & 1u) << (31 - i);
  return r;
}
static inline unsigned long long __brevll(unsigned long long x) {
  return (unsigned long long)__brev(unsigned(x)) << 32 | __brev(unsigned(x >> 32));
}
template <class T> static inline T __ldg(const T *at) { return *at; }

template <class T> static inline T min(T a, weir_soft::given<T> b) { return b < a ? b : a; }
template <class T> static inline T max(T a, weir_soft::given<T> b) { return a < b ? b : a; }

/* ---- Mathematics: the functions of the host's libm ---- */

extern "C" {
#define WEIR_SOFT_MATH1(name)                                                                                          \
  double name(double) noexcept;                                                                                        \
  float name##f(float) noexcept;
#define WEIR_SOFT_MATH2(name)                                                                                          \
  double name(double, double) noexcept;                                                                                \
  float name##f(float, float) noexcept;
/* clang-format off */
#define WEIR_SOFT_ALL_MATH(ONE, TWO)                                                                                   \
  ONE(sqrt) ONE(cbrt) ONE(exp) ONE(exp2) ONE(expm1) ONE(log) ONE(log2) ONE(log10) ONE(log1p) ONE(sin) ONE(cos)         \
  ONE(tan) ONE(asin) ONE(acos) ONE(atan) ONE(sinh) ONE(cosh) ONE(tanh) ONE(asinh) ONE(acosh) ONE(atanh) ONE(erf)       \
  ONE(erfc) ONE(lgamma) ONE(tgamma) ONE(floor) ONE(ceil) ONE(round) ONE(rint) ONE(nearbyint) ONE(trunc) ONE(fabs)      \
  ONE(logb) ONE(j0) ONE(j1) ONE(y0) ONE(y1) TWO(pow) TWO(atan2) TWO(fmod) TWO(fmin) TWO(fmax) TWO(hypot)               \
  TWO(copysign) TWO(remainder) TWO(nextafter) TWO(fdim)
/* clang-format on */
WEIR_SOFT_ALL_MATH(WEIR_SOFT_MATH1, WEIR_SOFT_MATH2)
double fma(double, double, double) noexcept;
float fmaf(float, float, float) noexcept;
double ldexp(double, int) noexcept;
float ldexpf(float, int) noexcept;
double frexp(double, int *) noexcept;
float frexpf(float, int *) noexcept;
double modf(double, double *) noexcept;
float modff(float, float *) noexcept;
int abs(int) noexcept;
long labs(long) noexcept;
long long llabs(long long) noexcept;
}

/* C++ overloads of the functions above for float and for integers. */
#define WEIR_SOFT_FLOAT1(name)                                                                                         \
  static inline float name(float x) { return name##f(x); }                                                             \
  static inline double name(int x) { return name(double(x)); }
#define WEIR_SOFT_FLOAT2(name)                                                                                         \
  static inline float name(float x, float y) { return name##f(x, y); }                                                 \
  static inline double name(double x, float y) { return name(x, double(y)); }                                          \
  static inline double name(float x, double y) { return name(double(x), y); }                                          \
  static inline double name(double x, int y) { return name(x, double(y)); }                                            \
  static inline float name(float x, int y) { return name##f(x, float(y)); }
WEIR_SOFT_ALL_MATH(WEIR_SOFT_FLOAT1, WEIR_SOFT_FLOAT2)
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
static inline float ldexp(float x, int n) { return ldexpf(x, n); }
static inline float frexp(float x, int *n) { return frexpf(x, n); }
static inline long abs(long x) { return labs(x); }
static inline long long abs(long long x) { return llabs(x); }
static inline float abs(float x) { return __builtin_fabsf(x); }
static inline double abs(double x) { return __builtin_fabs(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline float exp10f(float x) { return powf(10.0f, x); }
static inline double exp10(double x) { return pow(10.0, x); }
static inline double exp10(float x) { return exp10f(x); }
static inline void sincosf(float x, float *s, float *c) {
  *s = sinf(x);
  *c = cosf(x);
}
static inline void sincos(double x, double *s, double *c) {
  *s = sin(x);
  *c = cos(x);
}
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678118654752f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752); }
static inline float sinpif(float x) { return float(sin(3.14159265358979323846 * double(x))); }
static inline float cospif(float x) { return float(cos(3.14159265358979323846 * double(x))); }
template <class T> static inline bool isnan(T x) { return __builtin_isnan(x); }
template <class T> static inline bool isinf(T x) { return __builtin_isinf(x); }
template <class T> static inline bool isfinite(T x) { return __builtin_isfinite(x); }
template <class T> static inline bool signbit(T x) { return __builtin_signbit(x); }

#define WEIR_SOFT_ROUNDED(op, name)                                                                                    \
  static inline float __f##name##_rn(float a, float b) { return a op b; }                                              \
  static inline double __d##name##_rn(double a, double b) { return a op b; }
WEIR_SOFT_ROUNDED(+, add)
WEIR_SOFT_ROUNDED(-, sub)
WEIR_SOFT_ROUNDED(*, mul)
WEIR_SOFT_ROUNDED(/, div)
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
static inline int __float2int_rn(float x) { return int(rintf(x)); }
static inline int __float2int_rz(float x) { return int(x); }
static inline int __float2int_rd(float x) { return int(floorf(x)); }
static inline int __float2int_ru(float x) { return int(ceilf(x)); }
static inline float __int2float_rn(int x) { return float(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline float __double2float_rn(double x) { return float(x); }

#if defined(__x86_64__)
static inline long long clock64() { return (long long)__builtin_ia32_rdtsc(); }
#else
static inline long long clock64() {
  long long ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
}
#endif
static inline int clock() { return int(clock64()); }

/* ---- Half and bfloat16: stored in 16 bits, computed as float ---- */

namespace weir_soft {
/* Rounds to nearest, ties to even. */
static inline uint16_t float_to_half(float from) {
  uint32_t x = weir_soft_bits<uint32_t>(from), sign = x >> 16 & 0x8000, a = x & 0x7fffffff;
  if (a >= 0x7f800000)
    return uint16_t(a > 0x7f800000 ? 0x7fff : sign | 0x7c00);
  if (a >= 0x477ff000) /* rounds to 65536 or more */
    return uint16_t(sign | 0x7c00);
  if (a < 0x38800000) /* subnormal, or 0: adding 0.5 makes the sum round at the last bit of a subnormal half */
    return uint16_t(sign | (weir_soft_bits<uint32_t>(weir_soft_bits<float>(a) + 0.5f) - 0x3f000000));
  return uint16_t(sign | ((a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13));
}
static inline float half_to_float(uint16_t from) {
  uint32_t sign = uint32_t(from & 0x8000) << 16, a = from & 0x7fff;
  if (a >= 0x7c00)
    return weir_soft_bits<float>(sign | 0x7f800000 | (a & 0x3ff) << 13);
  if (a < 0x400)
    return weir_soft_bits<float>(sign | weir_soft_bits<uint32_t>(float(a) * 0x1p-24f));
  return weir_soft_bits<float>(sign | ((a << 13) + 0x38000000));
}
static inline uint16_t float_to_bfloat16(float from) {
  uint32_t x = weir_soft_bits<uint32_t>(from);
  return uint16_t((x & 0x7fffffff) > 0x7f800000 ? 0x7fff : (x + 0x7fff + (x >> 16 & 1)) >> 16);
}
static inline float bfloat16_to_float(uint16_t from) { return weir_soft_bits<float>(uint32_t(from) << 16); }
} // namespace weir_soft

#define WEIR_SOFT_FLOAT16(name, to_bits, from_bits)                                                                    \
  struct alignas(2) name {                                                                                             \
    unsigned short x;                                                                                                  \
    name() = default;                                                                                                  \
    name(float v) : x(weir_soft::to_bits(v)) {}                                                                        \
    name(double v) : x(weir_soft::to_bits(float(v))) {}                                                                \
    name(int v) : x(weir_soft::to_bits(float(v))) {}                                                                   \
    name(unsigned v) : x(weir_soft::to_bits(float(v))) {}                                                              \
    name(long long v) : x(weir_soft::to_bits(float(v))) {}                                                             \
    name(unsigned long long v) : x(weir_soft::to_bits(float(v))) {}                                                    \
    operator float() const { return weir_soft::from_bits(x); }                                                         \
    name &operator+=(name v) { return *this = name(float(*this) + float(v)); }                                         \
    name &operator-=(name v) { return *this = name(float(*this) - float(v)); }                                         \
    name &operator*=(name v) { return *this = name(float(*this) * float(v)); }                                         \
    name &operator/=(name v) { return *this = name(float(*this) / float(v)); }                                         \
  };                                                                                                                   \
  static inline name operator+(name a, name b) { return a += b; }                                                      \
  static inline name operator-(name a, name b) { return a -= b; }                                                      \
  static inline name operator*(name a, name b) { return a *= b; }                                                      \
  static inline name operator/(name a, name b) { return a /= b; }                                                      \
  static inline name operator-(name a) { return name(-float(a)); }                                                     \
  static inline bool operator==(name a, name b) { return float(a) == float(b); }                                       \
  static inline bool operator!=(name a, name b) { return float(a) != float(b); }                                       \
  static inline bool operator<(name a, name b) { return float(a) < float(b); }                                         \
  static inline bool operator<=(name a, name b) { return float(a) <= float(b); }                                       \
  static inline bool operator>(name a, name b) { return float(a) > float(b); }                                         \
  static inline bool operator>=(name a, name b) { return float(a) >= float(b); }                                       \
  static inline name __hadd(name a, name b) { return a + b; }                                                          \
  static inline name __hsub(name a, name b) { return a - b; }                                                          \
  static inline name __hmul(name a, name b) { return a * b; }                                                          \
  static inline name __hdiv(name a, name b) { return a / b; }                                                          \
  static inline name __hneg(name a) { return -a; }                                                                     \
  static inline name __hmin(name a, name b) { return name(fminf(a, b)); }                                              \
  static inline name __hmax(name a, name b) { return name(fmaxf(a, b)); }                                              \
  static inline name __hfma(name a, name b, name c) { return name(float(double(a) * double(b) + double(c))); }         \
  static inline bool __hlt(name a, name b) { return a < b; }                                                           \
  static inline bool __hgt(name a, name b) { return a > b; }                                                           \
  static inline bool __heq(name a, name b) { return a == b; }                                                          \
  static inline bool __hisnan(name a) { return __builtin_isnan(float(a)); }
WEIR_SOFT_FLOAT16(__half, float_to_half, half_to_float)
WEIR_SOFT_FLOAT16(__nv_bfloat16, float_to_bfloat16, bfloat16_to_float)
using half = __half;
using nv_bfloat16 = __nv_bfloat16;
static inline __half __float2half(float x) { return __half(x); }
static inline __half __float2half_rn(float x) { return __half(x); }
static inline float __half2float(__half x) { return x; }
static inline __half __ushort_as_half(unsigned short x) { return weir_soft_bits<__half>(x); }
static inline unsigned short __half_as_ushort(__half x) { return x.x; }
static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return weir_soft_bits<__nv_bfloat16>(x); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.x; }

/*
 * Fills of device memory with random numbers. The kernels are in kernels/random.cu.
 *
 * What has to be as in PyTorch for equal numbers: the grid, the numbers per thread by which the generator advances,
 * which fills use 64-bit numbers, and the parts into which fills of 2 GiB and more are divided.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/philox.h"
#include "src/base.h"
#include "src/builtin.h"
#include "src/generator.h"
#include "src/memory.h"

enum { BLOCK_THREADS = 256, NUMBERS_PER_CALL = 4, MAX_PARAMS = 9, MAX_THREADS = 1 << 27 };

/* A fill of some elements. */
typedef struct fill {
  const char *caller;
  weir_generator *generator;
  weir_stream stream;
  weir_cu_stream raw;
  weir__builtin *kernel;
  weir__geometry geometry;
  size_t element_bytes;
  int unroll;         /* elements that a thread gets from `calls` times four 32-bit numbers */
  unsigned calls;     /* 0 for one */
  void *arguments[3]; /* parameters of the kernel after the common ones; NULL at the end */
} fill;

/* ---- Types ---- */

/* "\"uniform_kernel_cuda\" not implemented for 'Int'", with PyTorch's name of the kernel and of the type. */
static weir_status not_implemented(const char *caller, const char *kernel, weir_dtype dtype) {
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: \"%s\" not implemented for '%s'", caller, kernel,
                    weir_dtype_title(dtype));
}

static bool is_float(weir_dtype dtype) {
  return dtype == WEIR_FLOAT16 || dtype == WEIR_BFLOAT16 || dtype == WEIR_FLOAT32 || dtype == WEIR_FLOAT64;
}

static bool is_complex(weir_dtype dtype) { return dtype == WEIR_COMPLEX64 || dtype == WEIR_COMPLEX128; }

/* The bits of the significand. */
static int digits_of(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_FLOAT16:
    return 11;
  case WEIR_BFLOAT16:
    return 8;
  case WEIR_FLOAT32:
    return FLT_MANT_DIG;
  default:
    return DBL_MANT_DIG;
  }
}

static double largest_of(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_FLOAT16:
    return 65504;
  case WEIR_BFLOAT16:
    return 0x1.FEp127;
  case WEIR_FLOAT32:
    return FLT_MAX;
  default:
    return DBL_MAX;
  }
}

/* The nearest value of a type. For 16 bits the value is rounded to float first, as in PyTorch. */
static double rounded_to(weir_dtype dtype, double value) {
  if (dtype == WEIR_FLOAT64)
    return value;
  float narrow = (float)value;
  if (dtype == WEIR_FLOAT32 || narrow == 0 || !isfinite(narrow))
    return narrow;
  /* A 16-bit float is a multiple of a power of two, which depends on the exponent. */
  int exponent, least = dtype == WEIR_FLOAT16 ? -24 : -133;
  (void)frexpf(narrow, &exponent);
  int unit = exponent - digits_of(dtype);
  if (unit < least)
    unit = least;
  double rounded = ldexp(nearbyint(ldexp(narrow, -unit)), unit);
  return fabs(rounded) > largest_of(dtype) ? copysign(INFINITY, rounded) : rounded;
}

/* Bounds of the integers of a type that is not a float. */
static void bounds_of(weir_dtype dtype, int64_t *least, int64_t *largest) {
  switch (dtype) {
  case WEIR_UINT8:
    *least = 0, *largest = UINT8_MAX;
    break;
  case WEIR_BOOL:
    *least = 0, *largest = 1;
    break;
  case WEIR_INT8:
    *least = INT8_MIN, *largest = INT8_MAX;
    break;
  case WEIR_INT16:
    *least = INT16_MIN, *largest = INT16_MAX;
    break;
  case WEIR_INT32:
    *least = INT32_MIN, *largest = INT32_MAX;
    break;
  default:
    *least = INT64_MIN, *largest = INT64_MAX;
  }
}

/* ---- Launching ---- */

/* The grid of a fill, and the numbers per thread that it uses. */
static unsigned grid_of(const fill *fill, uint64_t count, uint64_t *numbers) {
  uint64_t blocks = (count + BLOCK_THREADS - 1) / BLOCK_THREADS;
  uint64_t most =
      (uint64_t)fill->geometry.multiprocessors * (unsigned)(fill->geometry.threads_per_multiprocessor / BLOCK_THREADS);
  if (blocks > most)
    blocks = most;
  *numbers = ((count - 1) / (BLOCK_THREADS * blocks * (unsigned)fill->unroll) + 1) * NUMBERS_PER_CALL *
             (fill->calls ? fill->calls : 1);
  return (unsigned)blocks;
}

static weir_status launch(const fill *fill, void *pointer, uint64_t count, unsigned blocks,
                          const weir_philox_state *state) {
  unsigned elements = (unsigned)count;
  weir_philox_state at = *state;
  void *params[MAX_PARAMS] = {&pointer, &elements, &at.seed, &at.offset, &at.offset_intragraph, &at.captured};
  for (int i = 0; i < 3; i++)
    params[6 + i] = fill->arguments[i];
  weir_launch_dims dims = {.grid = {blocks}, .block = {BLOCK_THREADS}};
  return weir__builtin_launch(fill->caller, fill->kernel, fill->stream.device, fill->raw, dims, params);
}

/* Whether PyTorch's index arithmetic in 32 bits covers all elements. */
static bool fits_32_bits(const fill *fill, uint64_t count) {
  return count <= INT32_MAX && (count - 1) * fill->element_bytes + 1 <= INT32_MAX;
}

static weir_status fill_part(const fill *fill, char *pointer, uint64_t count);

/* Halves, until each part can be launched. */
static weir_status fill_halves(const fill *fill, char *pointer, uint64_t count) {
  if (fits_32_bits(fill, count))
    return fill_part(fill, pointer, count);
  uint64_t first = count / 2;
  weir_status status = fill_halves(fill, pointer, first);
  return status ? status : fill_halves(fill, pointer + first * fill->element_bytes, count - first);
}

/* PyTorch takes the numbers for the whole before it looks at the size, and those for each part again. */
static weir_status fill_part(const fill *fill, char *pointer, uint64_t count) {
  uint64_t numbers;
  weir_philox_state state;
  unsigned blocks = grid_of(fill, count, &numbers);
  weir_status status =
      weir__fail_as(fill->caller, weir_generator_advance(fill->generator, numbers, fill->stream, &state));
  if (status)
    return status;
  return fits_32_bits(fill, count) ? launch(fill, pointer, count, blocks, &state) : fill_halves(fill, pointer, count);
}

static weir_status check_memory(const char *caller, const void *pointer, uint64_t count, weir_dtype dtype) {
  if (weir_dtype_size(dtype) == 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: dtype is %d, which is not a type", caller, (int)dtype);
  if (count && !pointer)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: pointer is NULL", caller);
  if (count > INT64_MAX / weir_dtype_size(dtype))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: count is %" PRIu64 ", which is too large", caller, count);
  if ((uintptr_t)pointer % weir_dtype_size(dtype) != 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the address %p is not aligned for %s", caller, pointer,
                      weir_dtype_name(dtype));
  return WEIR_OK;
}

static weir_status prepare(fill *fill) {
  weir_status status = weir__generator_resolve(fill->caller, fill->stream, &fill->generator);
  if (!status)
    status = weir_stream_raw(fill->stream, &fill->raw);
  if (!status)
    status = weir__generator_geometry(fill->caller, fill->generator, &fill->geometry);
  if (status)
    return weir__fail_as(fill->caller, status);
  int threads = fill->geometry.threads_per_multiprocessor;
  if (threads < BLOCK_THREADS || (uint64_t)threads * (unsigned)fill->geometry.multiprocessors > MAX_THREADS)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "%s: the generator has %d multiprocessors of %d threads; expected at least 256 threads in one and "
        "at most 2^27 in all",
        fill->caller, fill->geometry.multiprocessors, threads);
  return WEIR_OK;
}

static weir_status run(fill *fill, void *pointer, uint64_t count, weir_dtype dtype) {
  if (count == 0)
    return WEIR_OK;
  fill->element_bytes = weir_dtype_size(dtype);
  weir_status status = prepare(fill);
  return status ? status : fill_part(fill, pointer, count);
}

/* ---- Integers ---- */

/* base + (number modulo modulus); modulus 0 uses all bits. */
static weir_status fill_integers(const fill *common, void *pointer, uint64_t count, weir_dtype dtype, bool wide,
                                 uint64_t modulus, int64_t base) {
  static weir__builtin narrow_kernel = WEIR__BUILTIN("random", "weir_rng_int32");
  static weir__builtin wide_kernel = WEIR__BUILTIN("random", "weir_rng_int64");
  int type = (int)dtype;
  uint32_t narrow_modulus = (uint32_t)modulus;
  fill fill = *common;
  fill.kernel = wide ? &wide_kernel : &narrow_kernel;
  fill.unroll = wide ? 2 : 4;
  fill.arguments[0] = &type;
  fill.arguments[1] = wide ? (void *)&modulus : &narrow_modulus;
  fill.arguments[2] = &base;
  return run(&fill, pointer, count, dtype);
}

weir_status weir_random_bits(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                             weir_stream stream) {
  fill fill = {.caller = __func__, .generator = generator, .stream = stream};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (is_float(dtype) || is_complex(dtype))
    return not_implemented(__func__, "random_bits", dtype);
  return fill_integers(&fill, pointer, count, dtype, dtype == WEIR_INT64, dtype == WEIR_BOOL ? 2 : 0, 0);
}

weir_status weir_random_integers(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                 weir_stream stream) {
  fill fill = {.caller = __func__, .generator = generator, .stream = stream};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (is_complex(dtype))
    return not_implemented(__func__, "random_kernel_cuda", dtype);
  int64_t least, largest;
  bounds_of(dtype, &least, &largest);
  uint64_t modulus = is_float(dtype) ? (1ull << digits_of(dtype)) + 1 : (uint64_t)largest + 1;
  return fill_integers(&fill, pointer, count, dtype, dtype == WEIR_INT64 || dtype == WEIR_FLOAT64, modulus, 0);
}

/* The power of two below a positive number, as an exponent. */
static int log2_of(uint64_t value) { return 63 - __builtin_clzll(value); }

/* An integer that was stored as an element and read back. A value that is too large becomes what x86-64 makes of it. */
static int64_t through(weir_dtype dtype, int64_t value) {
  double stored = dtype == WEIR_FLOAT64 ? (double)value : rounded_to(dtype, (float)value);
  return fabs(stored) < 0x1p63 ? (int64_t)stored : INT64_MIN;
}

/* An integer that a float type cannot represent may round to a value outside of [low, high). PyTorch therefore moves
 * the bounds to the next values inside. */
static void narrow_bounds(weir_dtype dtype, int64_t *low, int64_t *high) {
  int digits = digits_of(dtype);
  int64_t after = *low == INT64_MAX ? *low : through(dtype, *low + 1);
  if (*low != -1 && after < *low) {
    uint64_t size = *low + 1 < 0 ? 0 - (uint64_t)(*low + 1) : (uint64_t)(*low + 1);
    *low = after + (int64_t)(1ull << (log2_of(size) - digits + 1));
  }
  int64_t before = *high == INT64_MIN ? *high : through(dtype, *high - 1);
  if (*high != 1 && before >= *high) {
    uint64_t size = *high - 1 < 0 ? 0 - (uint64_t)(*high - 1) : (uint64_t)(*high - 1);
    *high = before - (int64_t)(1ull << (log2_of(size) - digits + 1));
  }
}

static weir_status check_bounds(const char *caller, weir_dtype dtype, int64_t low, int64_t last) {
  bool low_fits, last_fits;
  if (is_float(dtype)) {
    low_fits = fabs((double)low) <= largest_of(dtype);
    last_fits = fabs((double)last) <= largest_of(dtype);
  } else {
    int64_t least, largest;
    bounds_of(dtype, &least, &largest);
    low_fits = low >= least && low <= largest;
    last_fits = last >= least && last <= largest;
  }
  if (low_fits && last_fits)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is out of bounds for %s", caller, low_fits ? "to - 1" : "from",
                    weir_dtype_name(dtype));
}

weir_status weir_random_randint(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype, int64_t low,
                                int64_t high, weir_stream stream) {
  fill fill = {.caller = __func__, .generator = generator, .stream = stream};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (is_complex(dtype))
    return not_implemented(__func__, "check_random_bounds", dtype);
  if (low >= high)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: random_ expects 'from' to be less than 'to', but got from=%" PRId64 " >= to=%" PRId64,
                      __func__, low, high);
  if (is_float(dtype)) {
    narrow_bounds(dtype, &low, &high);
    if (low >= high)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: random_ expects 'from' casted to dtype to be less than 'to' casted to dtype, but got "
                        "from=%" PRId64 " >= to=%" PRId64,
                        __func__, low, high);
  }
  status = check_bounds(__func__, dtype, low, high - 1);
  if (status)
    return status;
  uint64_t range = (uint64_t)high - (uint64_t)low;
  /* From here on the remainder of a 32-bit number would be too uneven. */
  bool wide = range >= 1ull << 28;
  return fill_integers(&fill, pointer, count, dtype, wide, range, low);
}

/* ---- Floats ---- */

static weir__builtin uniform_kernels[] = {
    WEIR__BUILTIN("random", "weir_rng_uniform_float16"), WEIR__BUILTIN("random", "weir_rng_uniform_bfloat16"),
    WEIR__BUILTIN("random", "weir_rng_uniform_float32"), WEIR__BUILTIN("random", "weir_rng_uniform_float64")};
static weir__builtin normal_kernels[] = {
    WEIR__BUILTIN("random", "weir_rng_normal_float16"), WEIR__BUILTIN("random", "weir_rng_normal_bfloat16"),
    WEIR__BUILTIN("random", "weir_rng_normal_float32"), WEIR__BUILTIN("random", "weir_rng_normal_float64")};

static int place_of(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_FLOAT16:
    return 0;
  case WEIR_BFLOAT16:
    return 1;
  case WEIR_FLOAT32:
    return 2;
  default:
    return 3;
  }
}

/* Runs a kernel with up to three numbers, which are double for float64 and otherwise float. */
static weir_status fill_floats(const fill *common, void *pointer, uint64_t count, weir_dtype dtype,
                               weir__builtin *kernels, const double *numbers, int number_count) {
  double wide[3];
  float narrow[3];
  fill fill = *common;
  for (int i = 0; i < number_count; i++) {
    wide[i] = numbers[i];
    narrow[i] = (float)numbers[i];
    fill.arguments[i] = dtype == WEIR_FLOAT64 ? (void *)&wide[i] : &narrow[i];
  }
  fill.kernel = &kernels[place_of(dtype)];
  fill.unroll = dtype == WEIR_FLOAT64 ? 2 : 4;
  return run(&fill, pointer, count, dtype);
}

weir_status weir_random_uniform(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype, double low,
                                double high, weir_stream stream) {
  fill fill = {.caller = __func__, .generator = generator, .stream = stream};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (!is_float(dtype))
    return not_implemented(__func__, "check_uniform_bounds", dtype);
  double largest = largest_of(dtype);
  if (!(fabs(low) <= largest) || !(fabs(high) <= largest))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is out of bounds for %s", __func__,
                      fabs(low) <= largest ? "to" : "from", weir_dtype_name(dtype));
  if (low > high)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: uniform_ expects to return a [from, to) range, but found from=%g > to=%g", __func__, low,
                      high);
  if (high - low > largest)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: uniform_ expects to-from <= the largest %s, but found to=%g and from=%g", __func__,
                      weir_dtype_name(dtype), high, low);
  low = rounded_to(dtype, low);
  high = rounded_to(dtype, high);
  /* The difference is a value of the type, computed as a float if that is not float64. */
  double range = dtype == WEIR_FLOAT64 ? high - low : rounded_to(dtype, (float)high - (float)low);
  double numbers[] = {low, high, range};
  return fill_floats(&fill, pointer, count, dtype, uniform_kernels, numbers, 3);
}

weir_status weir_random_normal(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype, double mean,
                               double deviation, weir_stream stream) {
  fill fill = {.caller = __func__, .generator = generator, .stream = stream};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (!(deviation >= 0))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: normal expects std >= 0.0, but found std %g", __func__,
                      deviation);
  if (!is_float(dtype))
    return not_implemented(__func__, "normal_kernel_cuda", dtype);
  double numbers[] = {mean, deviation};
  return fill_floats(&fill, pointer, count, dtype, normal_kernels, numbers, 2);
}

weir_status weir_random_bernoulli(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                  double probability, weir_stream stream) {
  static weir__builtin narrow_kernel = WEIR__BUILTIN("random", "weir_rng_bernoulli");
  static weir__builtin wide_kernel = WEIR__BUILTIN("random", "weir_rng_bernoulli_float64");
  fill fill = {.caller = __func__, .generator = generator, .stream = stream};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (!(probability >= 0 && probability <= 1))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: bernoulli_ expects p to be in [0, 1], but got p=%g", __func__,
                      probability);
  if (is_complex(dtype))
    return not_implemented(__func__, "bernoulli_scalar_cuda_", dtype);
  int type = (int)dtype;
  float narrow = (float)probability;
  fill.unroll = dtype == WEIR_FLOAT64 ? 2 : 4;
  if (dtype == WEIR_FLOAT64) {
    fill.kernel = &wide_kernel;
    fill.arguments[0] = &probability;
  } else {
    fill.kernel = &narrow_kernel;
    fill.arguments[0] = &type;
    fill.arguments[1] = &narrow;
  }
  return run(&fill, pointer, count, dtype);
}

weir_status weir_random_poisson(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                weir_stream stream) {
  static weir__builtin kernels[] = {
      WEIR__BUILTIN("random", "weir_rng_poisson_float16"), WEIR__BUILTIN("random", "weir_rng_poisson_bfloat16"),
      WEIR__BUILTIN("random", "weir_rng_poisson_float32"), WEIR__BUILTIN("random", "weir_rng_poisson_float64")};
  fill fill = {
      .caller = __func__, .generator = generator, .stream = stream, .unroll = 1, .calls = WEIR__POISSON_BLOCKS};
  weir_status status = check_memory(__func__, pointer, count, dtype);
  if (status)
    return status;
  if (!is_float(dtype))
    return not_implemented(__func__, "poisson_cuda", dtype);
  fill.kernel = &kernels[place_of(dtype)];
  return run(&fill, pointer, count, dtype);
}

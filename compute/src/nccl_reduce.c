/*
 * Reductions of the software device's collectives, in C.
 */
#include <math.h>
#include <string.h>

#include "src/nccl.h"

bool weir__nccl_can_reduce(weir_dtype dtype, weir_nccl_op op) {
  switch (dtype) {
  case WEIR_INT16:
    return false;
  case WEIR_BOOL:
    return op != WEIR_NCCL_AVG;
  case WEIR_COMPLEX64:
  case WEIR_COMPLEX128:
    return op == WEIR_NCCL_SUM || op == WEIR_NCCL_AVG;
  default:
    return true;
  }
}

/* ---- 16-bit floats ---- */

static float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float load_half(uint16_t half) {
  uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31)
    return float_of_bits(sign | 0x7f800000u | fraction << 13);
  if (exponent)
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
  float small = (float)fraction * 0x1p-24f;
  return sign ? -small : small;
}

/* Rounds to nearest, ties to even. */
static uint16_t store_half(float value) {
  uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000u;
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u)
    return (uint16_t)(sign | 0x7e00u);
  if (bits >= 0x477ff000u) /* 65520 and above */
    return (uint16_t)(sign | 0x7c00u);
  if (bits < 0x38800000u) /* below the smallest normal number: the sum has the unit 2^-24 */
    return (uint16_t)(sign | (bits_of_float(float_of_bits(bits) + 0.5f) & 0x7ffu));
  bits -= 0x38000000u;
  return (uint16_t)(sign | (bits + 0xfffu + (bits >> 13 & 1)) >> 13);
}

static float load_bfloat16(uint16_t value) { return float_of_bits((uint32_t)value << 16); }

static uint16_t store_bfloat16(float value) {
  uint32_t bits = bits_of_float(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* ---- Loops ---- */

#define SAME(x) (x)
#define MIN_OF(a, b) ((b) < (a) ? (b) : (a))
#define MAX_OF(a, b) ((b) > (a) ? (b) : (a))
#define MIN_OR_NAN(a, b) (isnan(a) || (a) < (b) ? (a) : (b))
#define MAX_OR_NAN(a, b) (isnan(a) || (a) > (b) ? (a) : (b))

/* The element type, the type of sums and products, and that of comparisons. */
#define EACH(element, number, load, store, step, finish)                                                               \
  for (size_t i = 0; i < count; i++) {                                                                                 \
    number a = (number)load(((const element *)sources[0])[i]);                                                         \
    for (int k = 1; k < source_count; k++) {                                                                           \
      number b = (number)load(((const element *)sources[k])[i]);                                                       \
      a = (step);                                                                                                      \
    }                                                                                                                  \
    ((element *)out)[i] = (element)store(finish);                                                                      \
  }

#define COMBINE(function, element, sum, number, load, store, min, max, average)                                        \
  static void function(weir_nccl_op op, const void *const *sources, int source_count, size_t count, void *out) {       \
    switch (op) {                                                                                                      \
    case WEIR_NCCL_SUM:                                                                                                \
      EACH(element, sum, load, store, a + b, a)                                                                        \
      break;                                                                                                           \
    case WEIR_NCCL_PROD:                                                                                               \
      EACH(element, sum, load, store, a *b, a)                                                                         \
      break;                                                                                                           \
    case WEIR_NCCL_MIN:                                                                                                \
      EACH(element, number, load, store, min(a, b), a)                                                                 \
      break;                                                                                                           \
    case WEIR_NCCL_MAX:                                                                                                \
      EACH(element, number, load, store, max(a, b), a)                                                                 \
      break;                                                                                                           \
    case WEIR_NCCL_AVG:                                                                                                \
      EACH(element, sum, load, store, a + b, average)                                                                  \
      break;                                                                                                           \
    }                                                                                                                  \
  }

/* Integers are added as unsigned numbers, which wrap around, and divided as what they are. */
COMBINE(combine_uint8, uint8_t, uint32_t, uint8_t, SAME, SAME, MIN_OF, MAX_OF, (uint8_t)a / (uint32_t)source_count)
COMBINE(combine_int8, int8_t, uint32_t, int8_t, SAME, SAME, MIN_OF, MAX_OF, (int8_t)a / source_count)
COMBINE(combine_int32, int32_t, uint32_t, int32_t, SAME, SAME, MIN_OF, MAX_OF, (int32_t)a / source_count)
COMBINE(combine_int64, int64_t, uint64_t, int64_t, SAME, SAME, MIN_OF, MAX_OF, (int64_t)a / source_count)
COMBINE(combine_half, uint16_t, float, float, load_half, store_half, MIN_OR_NAN, MAX_OR_NAN, a / (float)source_count)
COMBINE(combine_bfloat16, uint16_t, float, float, load_bfloat16, store_bfloat16, MIN_OR_NAN, MAX_OR_NAN,
        a / (float)source_count)
COMBINE(combine_float, float, float, float, SAME, SAME, MIN_OR_NAN, MAX_OR_NAN, a / (float)source_count)
COMBINE(combine_double, double, double, double, SAME, SAME, MIN_OR_NAN, MAX_OR_NAN, a / (double)source_count)

void weir__nccl_combine(weir_dtype dtype, weir_nccl_op op, const void *const *sources, int source_count, size_t count,
                        void *out) {
  switch (dtype) {
  case WEIR_BOOL: /* 0 and 1 */
    combine_uint8(op == WEIR_NCCL_SUM ? WEIR_NCCL_MAX : op, sources, source_count, count, out);
    break;
  case WEIR_UINT8:
    combine_uint8(op, sources, source_count, count, out);
    break;
  case WEIR_INT8:
    combine_int8(op, sources, source_count, count, out);
    break;
  case WEIR_INT32:
    combine_int32(op, sources, source_count, count, out);
    break;
  case WEIR_INT64:
    combine_int64(op, sources, source_count, count, out);
    break;
  case WEIR_FLOAT16:
    combine_half(op, sources, source_count, count, out);
    break;
  case WEIR_BFLOAT16:
    combine_bfloat16(op, sources, source_count, count, out);
    break;
  case WEIR_FLOAT32:
    combine_float(op, sources, source_count, count, out);
    break;
  case WEIR_FLOAT64:
    combine_double(op, sources, source_count, count, out);
    break;
  case WEIR_COMPLEX64:
    combine_float(op, sources, source_count, count * 2, out);
    break;
  case WEIR_COMPLEX128:
    combine_double(op, sources, source_count, count * 2, out);
    break;
  case WEIR_INT16: /* weir__nccl_can_reduce */
    break;
  }
}

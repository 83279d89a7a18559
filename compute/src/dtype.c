#include "weir/compute/dtype.h"

#include "src/base.h"

size_t weir_dtype_size(weir_dtype dtype) {
  switch ((int)dtype) {
#define X(number, name, text, bytes)                                                                                   \
  case number:                                                                                                         \
    return bytes;
    WEIR_DTYPE_MAP(X)
#undef X
  }
  return 0;
}

const char *weir_dtype_name(weir_dtype dtype) {
  switch ((int)dtype) {
#define X(number, name, text, bytes)                                                                                   \
  case number:                                                                                                         \
    return text;
    WEIR_DTYPE_MAP(X)
#undef X
  }
  return NULL;
}

const char *weir_dtype_title(weir_dtype dtype) {
  static const char *const titles[] = {[WEIR_UINT8] = "Byte",
                                       [WEIR_INT8] = "Char",
                                       [WEIR_INT16] = "Short",
                                       [WEIR_INT32] = "Int",
                                       [WEIR_INT64] = "Long",
                                       [WEIR_FLOAT16] = "Half",
                                       [WEIR_FLOAT32] = "Float",
                                       [WEIR_FLOAT64] = "Double",
                                       [WEIR_COMPLEX64] = "ComplexFloat",
                                       [WEIR_COMPLEX128] = "ComplexDouble",
                                       [WEIR_BOOL] = "Bool",
                                       [WEIR_BFLOAT16] = "BFloat16"};
  return (size_t)dtype < WEIR_COUNT_OF(titles) ? titles[dtype] : NULL;
}

int weir_dtype_is_float(weir_dtype dtype) {
  return dtype == WEIR_FLOAT16 || dtype == WEIR_BFLOAT16 || dtype == WEIR_FLOAT32 || dtype == WEIR_FLOAT64;
}

int weir_dtype_is_complex(weir_dtype dtype) { return dtype == WEIR_COMPLEX64 || dtype == WEIR_COMPLEX128; }

int weir_dtype_is_integer(weir_dtype dtype) { return dtype >= WEIR_UINT8 && dtype <= WEIR_INT64; }

/* bool, integer, float, complex. */
static int kind_of(weir_dtype dtype) {
  return dtype == WEIR_BOOL ? 0 : weir_dtype_is_integer(dtype) ? 1 : weir_dtype_is_float(dtype) ? 2 : 3;
}

/* Two integers give the larger one, and uint8 with a signed type of its size the next larger one. Two different 16-bit
 * floats give float32. A complex type has at least the precision of the other type, except that of an integer. */
weir_dtype weir_dtype_promote(weir_dtype a, weir_dtype b) {
  if (a == b)
    return a;
  int kind_a = kind_of(a), kind_b = kind_of(b);
  if (kind_a < kind_b)
    return weir_dtype_promote(b, a);
  if (kind_a == 3)
    return a == WEIR_COMPLEX128 || b == WEIR_COMPLEX128 || b == WEIR_FLOAT64 ? WEIR_COMPLEX128 : WEIR_COMPLEX64;
  if (kind_a > kind_b)
    return a;
  if (kind_a == 1) {
    if (a == WEIR_UINT8 || b == WEIR_UINT8) {
      weir_dtype other = a == WEIR_UINT8 ? b : a;
      return other == WEIR_INT8 ? WEIR_INT16 : other;
    }
    return a > b ? a : b;
  }
  return a == WEIR_FLOAT64 || b == WEIR_FLOAT64 ? WEIR_FLOAT64 : WEIR_FLOAT32;
}

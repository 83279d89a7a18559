/*
 * Types of elements. The numbers are those of PyTorch's ScalarType.
 */
#ifndef WEIR_DTYPE_H
#define WEIR_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* number, name, text, bytes. */
#define WEIR_DTYPE_MAP(X)                                                                                              \
  X(0, UINT8, "uint8", 1)                                                                                              \
  X(1, INT8, "int8", 1)                                                                                                \
  X(2, INT16, "int16", 2)                                                                                              \
  X(3, INT32, "int32", 4)                                                                                              \
  X(4, INT64, "int64", 8)                                                                                              \
  X(5, FLOAT16, "float16", 2)                                                                                          \
  X(6, FLOAT32, "float32", 4)                                                                                          \
  X(7, FLOAT64, "float64", 8)                                                                                          \
  X(9, COMPLEX64, "complex64", 8)                                                                                      \
  X(10, COMPLEX128, "complex128", 16)                                                                                  \
  X(11, BOOL, "bool", 1)                                                                                               \
  X(15, BFLOAT16, "bfloat16", 2)

typedef enum weir_dtype {
#define X(number, name, text, bytes) WEIR_##name = number,
  WEIR_DTYPE_MAP(X)
#undef X
} weir_dtype;

/* The bytes of an element; 0 for an invalid number. */
size_t weir_dtype_size(weir_dtype dtype);

/* "float32"; NULL for an invalid number. */
const char *weir_dtype_name(weir_dtype dtype);

/* PyTorch's name of the type in error texts: "Float"; NULL for an invalid number. */
const char *weir_dtype_title(weir_dtype dtype);

int weir_dtype_is_float(weir_dtype dtype);   /* float16, bfloat16, float32, float64 */
int weir_dtype_is_complex(weir_dtype dtype); /* complex64, complex128 */
int weir_dtype_is_integer(weir_dtype dtype); /* without bool */

/* The type of the result of an operation on two arrays of these types, as torch.promote_types. */
weir_dtype weir_dtype_promote(weir_dtype a, weir_dtype b);

#ifdef __cplusplus
}
#endif
#endif

/*
 * Elementwise functions from source, as torch.cuda.jiterator has them: a C++ template is compiled for the types of its
 * operands when it is first called with them, and applied to each element of strided operands.
 *
 *     static const char code[] = "template <typename T> T scaled_sum(T x, T y, T by) { return (x + y) * by; }";
 *     const char *names[] = {"by"};
 *     weir_jit_create(code, 1, names, 1, &fn);
 *
 * The operands may have different types: inputs are converted to the type T of the computation, and results to the
 * types of the outputs; a complex number that becomes a real one loses its imaginary part. Complex types are
 * std::complex, with C++'s arithmetic and functions. Part of libweir_compute.
 */
#ifndef WEIR_JITERATOR_H
#define WEIR_JITERATOR_H

#include <stddef.h>
#include <stdint.h>

#include "weir/compute/dtype.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WEIR_JIT_MAX_INPUTS = 8, WEIR_JIT_MAX_OUTPUTS = 8, WEIR_JIT_MAX_SCALARS = 8, WEIR_JIT_MAX_RANK = 12 };

/* The elements of an operand: element (i, j, ...) is at data + i * strides[0] + j * strides[1] + ..., in bytes. A
 * stride of 0 repeats an element, which is how operands are broadcast. */
typedef struct weir_jit_operand {
  void *data;
  weir_dtype type;
  const int64_t *strides;
} weir_jit_operand;

/* The value of a parameter that is the same for all elements. */
typedef struct weir_jit_scalar {
  int is_integer;
  double real;     /* if it is not */
  int64_t integer; /* if it is */
  double imag;     /* the imaginary part; must be 0 unless the computation is in a complex type */
} weir_jit_scalar;

typedef struct weir_jit_fn weir_jit_fn;

/* `code` is a function template; of several, the last one is called. Its parameters are the inputs, then those named in
 * scalar_names; with one output the function returns the result, with several it returns nothing and its last
 * parameters are references to the results. WEIR_ERROR_INVALID_ARGUMENT if it is no function template. Nothing is
 * compiled yet. */
weir_status weir_jit_create(const char *code, int output_count, const char *const *scalar_names, int scalar_count,
                            weir_jit_fn **fn);

/* As weir_jit_create for a function that returns nothing and has references to its results, of which there may be
 * one. */
weir_status weir_jit_create_by_reference(const char *code, int output_count, const char *const *scalar_names,
                                         int scalar_count, weir_jit_fn **fn);

/* NULL is allowed. */
void weir_jit_destroy(weir_jit_fn *fn);

/* The name of the function, and the position of a scalar by its name, or -1. */
const char *weir_jit_name(const weir_jit_fn *fn);
int weir_jit_scalar_index(const weir_jit_fn *fn, const char *name);

/* Applies the function to all elements of a shape, on a stream, computing in the type `type`. An operand's strides
 * have `rank` numbers; outputs must not overlap, except an output that is an input. At most WEIR_JIT_MAX_RANK
 * dimensions may remain once those that lie next to each other in memory are merged. The first call with given types
 * compiles, and cannot be captured on a GPU. */
weir_status weir_jit_launch(weir_jit_fn *fn, weir_stream stream, weir_dtype type, int rank, const int64_t *shape,
                            const weir_jit_operand *outputs, int output_count, const weir_jit_operand *inputs,
                            int input_count, const weir_jit_scalar *scalars, int scalar_count);

#ifdef __cplusplus
}
#endif
#endif

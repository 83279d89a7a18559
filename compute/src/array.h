/*
 * What the files of typed arrays share.
 */
#pragma once

#include <stdbool.h>

#include "kernels/array_args.h"
#include "src/base.h"
#include "src/builtin.h"
#include "weir/compute/array.h"

/* Fails unless `array` is an array, with "<call>: <name> is not an array". */
#define WEIR__CHECK_ARRAY(array)                                                                                       \
  do {                                                                                                                 \
    weir_status status_of_check = weir__array_check(__func__, array, #array);                                          \
    if (status_of_check)                                                                                               \
      return status_of_check;                                                                                          \
  } while (0)
weir_status weir__array_check(const char *caller, const weir_array *array, const char *name);

static inline bool weir__is_host(const weir_array *array) { return array->place.kind != WEIR_PLACE_DEVICE; }
static inline bool weir__has_array(const weir_array *array) { return array->storage != NULL; }

/* "[2, 3]". Returns `text`. */
typedef struct weir__shape_text {
  char text[400];
} weir__shape_text;
const char *weir__format_shape(int ndim, const int64_t *shape, weir__shape_text *text);
/* "cuda:0" or "cpu", as in PyTorch's texts. Returns `text`. */
const char *weir__format_place(weir_place place, char text[32]);

weir_status weir__not_implemented(const char *caller, const char *operation, weir_dtype dtype);

/* Runs a kernel on the stream, or on the host. */
weir_status weir__array_run(const char *caller, weir__builtin *kernel, bool on_host, weir_stream stream,
                            weir_launch_dims dims, void **params);

/* Whether the threads of a kernel run one after the other: on the software device and on the host. */
bool weir__array_is_serial(bool on_host);

/* A launch of a kernel that strides over its elements by the size of the grid: a thread for each element on a GPU, and
 * one thread in all where threads run one after the other. */
weir_launch_dims weir__array_grid(bool on_host, uint64_t elements);

/* The stream must be one of the device that has the array. */
weir_status weir__check_stream(const char *caller, const weir_array *array, weir_stream stream);

/* The dimension that a number from -ndim to ndim - 1 means. */
weir_status weir__check_dim(const char *caller, int dim, int ndim, int *found);

/* For borrowed memory. */
void weir__storage_set_deleter(weir_storage *storage, weir_storage_free_fn deleter, void *context);

void weir__set_contiguous_strides(weir_array *array);

/* Whether the elements are without holes, in any order of the dimensions. */
bool weir__is_dense(const weir_array *array);

/* ---- Elementwise (array_map.c) ---- */

/* An input of an operation: an array, or a number. */
typedef struct weir__input {
  const weir_array *array; /* NULL for a number */
  weir_scalar number;
} weir__input;

int weir__class_of(weir_dtype dtype);
weir__number weir__number_of(weir_scalar scalar);

/* Computes `op` for all elements of `out`, to whose shape the inputs can be broadcast. Elements are converted to the
 * type `common`, and the computation has its class. Nothing is checked. */
weir_status weir__map(const char *caller, int op, int count, const weir__input *inputs, weir_dtype common,
                      const weir_array *out, weir_stream stream);

/* ---- Checks of operations (array_ops.c) ---- */

/* The shape to which arrays are broadcast, in `shape` and *ndim, which have that of the first array on entry. */
weir_status weir__broadcast(const char *caller, int *ndim, int64_t *shape, const weir_array *other);

/* Fails if a value does not fit into a type. */
weir_status weir__check_number(const char *caller, weir_scalar number, weir_dtype dtype);

/* Allocates *out if it is {0}; otherwise checks that a result of this shape and type can be written to it. *is_new says
 * which. `place` is that of the inputs. */
weir_status weir__prepare_out(const char *caller, weir_place place, weir_dtype dtype, int ndim, const int64_t *shape,
                              weir_stream stream, weir_array *out, bool *is_new);

/* Fails if elements of `out` overlap each other, or those of an input without being the same. */
weir_status weir__check_overlap(const char *caller, const weir_array *out, const weir_array *input);

/* Fails unless both are on one device, or both on the host. */
weir_status weir__check_same_place(const char *caller, const weir_array *a, const weir_array *b);

/* Drops a result that was allocated, after a failure. */
static inline weir_status weir__give_up(weir_array *out, bool is_new, weir_status status) {
  if (status && is_new)
    weir_array_release(out);
  return status;
}

/*
 * Declarations that the parts about typed arrays share.
 */
#pragma once

#include "core.h"
#include "weir/compute/array.h"

/* ---- Types of elements (dtype.c) ---- */

/* Returns a new reference to the weir.dtype. */
PyObject *pyweir_dtype_wrap(weir_dtype dtype);
bool pyweir_dtype_check(PyObject *object);

/* Accepts a weir.dtype, a name, an object whose text ends with a name such as torch.float32, and float, int, bool and
 * complex of Python. */
int pyweir_parse_dtype(PyObject *object, weir_dtype *dtype);

/* ---- Arrays (array.c) ---- */

typedef struct pyweir_array {
  PyObject_HEAD weir_array it;
  bool is_readonly;
  PyObject *weak; /* list of weak references */
} pyweir_array;

extern PyTypeObject pyweir_array_type;
#define PYWEIR_IS_ARRAY(object) PyObject_TypeCheck((PyObject *)(object), &pyweir_array_type)
static inline weir_array *pyweir_array_of(PyObject *object) { return &((pyweir_array *)object)->it; }

/* Returns a weir.Array that takes over *array, whose reference is released if this fails. */
PyObject *pyweir_array_wrap(weir_array *array);

/* weir_array_release without the GIL. {0} is allowed. */
void pyweir_array_release(weir_array *array);

/* Returns a view of `base`, which takes over *array, for WEIR_OK, or else NULL with the exception set. */
PyObject *pyweir_array_view_of(PyObject *base, weir_status status, weir_array *array);

/* As pyweir_array_wrap for WEIR_OK, or else NULL with the exception set. */
PyObject *pyweir_array_result(weir_status status, weir_array *array);

/* As pyweir_check, but with PyTorch's exceptions: RuntimeError, or IndexError for dimensions and indices. */
int pyweir_array_check(weir_status status);

/* Raises if the elements must not be changed. */
int pyweir_array_check_writable(PyObject *array);

/* The stream on which an array is used: the current one of its device. Host memory needs none. */
int pyweir_array_stream(const weir_array *array, weir_stream *stream);
int pyweir_place_stream(weir_place place, weir_stream *stream);

/* Accepts None and "cpu" (the host), and devices as pyweir_parse_device. */
int pyweir_parse_place(PyObject *object, weir_place *place);

/* Sizes from one sequence or from several ints. */
int pyweir_parse_sizes(const char *function, PyObject *const *args, Py_ssize_t count, int64_t *sizes, int *ndim);
int pyweir_parse_int64(PyObject *object, int64_t *value);

/* A number of Python or NumPy. 1 if it is one, 0 if it is not, -1 with an exception set. */
int pyweir_parse_scalar(PyObject *object, weir_scalar *scalar);
PyObject *pyweir_scalar_wrap(weir_scalar scalar);

/* Pinned memory for arrays comes from the allocator of weir.host_empty. */
int pyweir_array_need_host(void);

/* ---- Methods of arrays that are defined in other files ---- */

#define PYWEIR_ARRAY_TABLES                                                                                            \
  extern PyMethodDef pyweir_array_view_methods[], pyweir_array_operation_methods[], pyweir_array_exchange_methods[];   \
  extern PyNumberMethods pyweir_array_numbers;                                                                         \
  extern PyMappingMethods pyweir_array_mapping;                                                                        \
  extern PyBufferProcs pyweir_array_buffer;
PYWEIR_ARRAY_TABLES

PyObject *pyweir_array_compare(PyObject *a, PyObject *b, int operation);
PyObject *pyweir_array_cuda_interface(PyObject *self, void *unused);

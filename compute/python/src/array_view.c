/*
 * Views of arrays: methods that change the shape, and indexing.
 */
#include "array.h"

/* ---- Methods ---- */

static PyObject *need_arguments(const char *function, Py_ssize_t expected, Py_ssize_t given) {
  return PyErr_Format(PyExc_TypeError, "%s() takes %zd positional argument%s (%zd given)", function, expected,
                      expected == 1 ? "" : "s", given);
}

/* Two ints, by position or by the names dim0 and dim1. */
static PyObject *transpose(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"dim0", "dim1"};
  PyObject *values[2] = {NULL, NULL};
  int dims[2];
  weir_array view = {0};
  if (pyweir->parse_arguments("transpose", names, 2, 2, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0] || !values[1])
    return need_arguments("transpose", 2, count);
  if (pyweir->parse_int(values[0], &dims[0]) != 0 || pyweir->parse_int(values[1], &dims[1]) != 0)
    return NULL;
  return pyweir_array_view_of(self, weir_array_transpose(pyweir_array_of(self), dims[0], dims[1], &view), &view);
}

static PyObject *t(PyObject *self, PyObject *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  weir_array view = {0};
  if (a->ndim > 2)
    return PyErr_Format(PyExc_RuntimeError, "t() expects a tensor with <= 2 dimensions, but self is %dD", a->ndim);
  return pyweir_array_view_of(self, a->ndim == 2 ? weir_array_transpose(a, 0, 1, &view) : weir_array_share(a, &view),
                              &view);
}

static PyObject *permute(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t sizes[WEIR_ARRAY_MAX_DIMS];
  int dims[WEIR_ARRAY_MAX_DIMS], ndim;
  weir_array view = {0};
  if (pyweir_parse_sizes("permute", args, count, sizes, &ndim) != 0)
    return NULL;
  if (ndim != pyweir_array_of(self)->ndim)
    return PyErr_Format(PyExc_RuntimeError,
                        "permute(sparse_coo): number of dimensions in the tensor input does not match the length of "
                        "the desired ordering of dimensions i.e. input.dim() = %d is not equal to len(dims) = %d",
                        pyweir_array_of(self)->ndim, ndim);
  for (int i = 0; i < ndim; i++)
    dims[i] = (int)sizes[i];
  return pyweir_array_view_of(self, weir_array_permute(pyweir_array_of(self), dims, &view), &view);
}

static PyObject *view_method(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int ndim;
  weir_array view = {0};
  if (count == 1 && pyweir_dtype_check(args[0])) {
    weir_dtype dtype;
    if (pyweir_parse_dtype(args[0], &dtype) != 0)
      return NULL;
    return pyweir_array_view_of(self, weir_array_view_dtype(pyweir_array_of(self), dtype, &view), &view);
  }
  if (!count)
    return need_arguments("view", 1, 0);
  if (pyweir_parse_sizes("view", args, count, shape, &ndim) != 0)
    return NULL;
  return pyweir_array_view_of(self, weir_array_view(pyweir_array_of(self), ndim, shape, &view), &view);
}

/* A view where it is possible, so read-only as the array; a copy can be written. */
static PyObject *view_or_copy(PyObject *self, weir_status status, weir_array *result) {
  bool is_view = status == WEIR_OK && result->storage == pyweir_array_of(self)->storage;
  return is_view ? pyweir_array_view_of(self, status, result) : pyweir_array_result(status, result);
}

static PyObject *reshape_to(PyObject *self, const int64_t *shape, int ndim) {
  weir_array result = {0};
  weir_stream stream;
  weir_status status;
  if (pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_reshape(pyweir_array_of(self), ndim, shape, stream, &result));
  return view_or_copy(self, status, &result);
}

static PyObject *reshape(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int ndim;
  if (!count)
    return need_arguments("reshape", 1, 0);
  if (pyweir_parse_sizes("reshape", args, count, shape, &ndim) != 0)
    return NULL;
  return reshape_to(self, shape, ndim);
}

static int check_dim(const char *unused, int64_t dim, int ndim, int *checked) {
  (void)unused;
  int range = ndim ? ndim : 1;
  if (dim < -range || dim >= range) {
    PyErr_Format(PyExc_IndexError, "Dimension out of range (expected to be in range of [%d, %d], but got %lld)", -range,
                 range - 1, (long long)dim);
    return -1;
  }
  *checked = (int)(dim < 0 ? dim + range : dim);
  return 0;
}

static PyObject *flatten(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"start_dim", "end_dim"};
  PyObject *values[2] = {NULL, NULL};
  const weir_array *a = pyweir_array_of(self);
  int64_t bounds[2] = {0, -1}, shape[WEIR_ARRAY_MAX_DIMS];
  int start, end, ndim = 0;
  if (pyweir->parse_arguments("flatten", names, 2, 2, args, count, keywords, values) != 0)
    return NULL;
  for (int i = 0; i < 2; i++)
    if (values[i] && pyweir_parse_int64(values[i], &bounds[i]) != 0)
      return NULL;
  if (check_dim("flatten", bounds[0], a->ndim, &start) != 0 || check_dim("flatten", bounds[1], a->ndim, &end) != 0)
    return NULL;
  if (start > end)
    return PyErr_Format(PyExc_RuntimeError, "flatten() has invalid args: start_dim cannot come after end_dim");
  for (int i = 0; i < start; i++)
    shape[ndim++] = a->shape[i];
  int64_t product = 1;
  for (int i = start; i <= end && i < a->ndim; i++)
    product *= a->shape[i];
  shape[ndim++] = product;
  for (int i = end + 1; i < a->ndim; i++)
    shape[ndim++] = a->shape[i];
  return reshape_to(self, shape, ndim);
}

static PyObject *contiguous(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_array result = {0};
  weir_stream stream;
  weir_status status;
  if (weir_array_is_contiguous(pyweir_array_of(self)))
    return Py_NewRef(self);
  if (pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_contiguous(pyweir_array_of(self), stream, &result));
  return pyweir_array_result(status, &result);
}

static PyObject *expand(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int ndim;
  weir_array view = {0};
  if (pyweir_parse_sizes("expand", args, count, shape, &ndim) != 0)
    return NULL;
  return pyweir_array_view_of(self, weir_array_expand(pyweir_array_of(self), ndim, shape, &view), &view);
}

static PyObject *squeeze(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"dim"};
  PyObject *value = Py_None;
  int dim;
  weir_array view = {0};
  if (pyweir->parse_arguments("squeeze", names, 1, 1, args, count, keywords, &value) != 0)
    return NULL;
  if (value == Py_None)
    return pyweir_array_view_of(self, weir_array_squeeze_all(pyweir_array_of(self), &view), &view);
  if (pyweir->parse_int(value, &dim) != 0)
    return NULL;
  return pyweir_array_view_of(self, weir_array_squeeze(pyweir_array_of(self), dim, &view), &view);
}

static PyObject *unsqueeze(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"dim"};
  PyObject *value = NULL;
  int dim;
  weir_array view = {0};
  if (pyweir->parse_arguments("unsqueeze", names, 1, 1, args, count, keywords, &value) != 0)
    return NULL;
  if (!value)
    return need_arguments("unsqueeze", 1, 0);
  if (pyweir->parse_int(value, &dim) != 0)
    return NULL;
  return pyweir_array_view_of(self, weir_array_unsqueeze(pyweir_array_of(self), dim, &view), &view);
}

static PyObject *as_strided(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"size", "stride", "storage_offset"};
  PyObject *values[3] = {NULL, NULL, Py_None};
  int64_t shape[WEIR_ARRAY_MAX_DIMS], strides[WEIR_ARRAY_MAX_DIMS];
  int64_t offset = weir_array_offset(pyweir_array_of(self));
  int ndim, stride_count;
  weir_array view = {0};
  if (pyweir->parse_arguments("as_strided", names, 3, 3, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0] || !values[1])
    return need_arguments("as_strided", 2, count);
  if (pyweir_parse_sizes("as_strided", &values[0], 1, shape, &ndim) != 0 ||
      pyweir_parse_sizes("as_strided", &values[1], 1, strides, &stride_count) != 0 ||
      (values[2] != Py_None && pyweir_parse_int64(values[2], &offset) != 0))
    return NULL;
  if (ndim != stride_count)
    return PyErr_Format(PyExc_RuntimeError, "mismatch in length of strides and shape");
  return pyweir_array_view_of(self, weir_array_as_strided(pyweir_array_of(self), offset, ndim, shape, strides, &view),
                              &view);
}

static PyObject *select_method(PyObject *self, PyObject *args) {
  int dim;
  long long index;
  weir_array view = {0};
  if (!PyArg_ParseTuple(args, "iL:select", &dim, &index))
    return NULL;
  return pyweir_array_view_of(self, weir_array_select(pyweir_array_of(self), dim, index, &view), &view);
}

static PyObject *narrow(PyObject *self, PyObject *args) {
  int dim, checked;
  long long start, length;
  const weir_array *a = pyweir_array_of(self);
  weir_array view = {0};
  if (!PyArg_ParseTuple(args, "iLL:narrow", &dim, &start, &length))
    return NULL;
  if (!a->ndim)
    return PyErr_Format(PyExc_RuntimeError, "narrow() cannot be applied to a 0-dim tensor.");
  if (check_dim("narrow", dim, a->ndim, &checked) != 0)
    return NULL;
  long long size = a->shape[checked];
  if (length < 0)
    return PyErr_Format(PyExc_RuntimeError, "narrow(): length must be non-negative.");
  if (start < -size || start > size)
    return PyErr_Format(PyExc_IndexError, "start out of range (expected to be in range of [%lld, %lld], but got %lld)",
                        -size, size, start);
  if (start < 0)
    start += size;
  if (length > size - start)
    return PyErr_Format(PyExc_RuntimeError, "start (%lld) + length (%lld) exceeds dimension size (%lld).", start,
                        length, size);
  return pyweir_array_view_of(self, weir_array_slice(a, checked, start, start + length, 1, &view), &view);
}

PyMethodDef pyweir_array_view_methods[] = {
    {"view", PYWEIR_FAST(view_method),
     "view($self, *shape)\n--\n\n"
     "Returns a view with another shape, in which one size may be -1, or with another dtype of the same bytes."},
    {"reshape", PYWEIR_FAST(reshape), "reshape($self, *shape)\n--\n\nReturns a view if possible, otherwise a copy."},
    {"flatten", PYWEIR_FAST_KEYWORDS(flatten),
     "flatten($self, start_dim=0, end_dim=-1)\n--\n\nJoins dimensions into one."},
    {"transpose", PYWEIR_FAST_KEYWORDS(transpose), "transpose($self, dim0, dim1)\n--\n\nSwaps two dimensions: a view."},
    {"t", t, METH_NOARGS, "t($self)\n--\n\nReturns the transpose of a matrix: a view."},
    {"permute", PYWEIR_FAST(permute), "permute($self, *dims)\n--\n\nReorders the dimensions: a view."},
    {"expand", PYWEIR_FAST(expand),
     "expand($self, *sizes)\n--\n\nRepeats dimensions of size 1 without a copy: a view. -1 keeps a size."},
    {"squeeze", PYWEIR_FAST_KEYWORDS(squeeze),
     "squeeze($self, dim=None)\n--\n\nRemoves dimensions of size 1, or the given one if its size is 1: a view."},
    {"unsqueeze", PYWEIR_FAST_KEYWORDS(unsqueeze),
     "unsqueeze($self, dim)\n--\n\nInserts a dimension of size 1: a view."},
    {"as_strided", PYWEIR_FAST_KEYWORDS(as_strided),
     "as_strided($self, size, stride, storage_offset=None)\n--\n\nReturns a view with these sizes and strides."},
    {"select", select_method, METH_VARARGS,
     "select($self, dim, index, /)\n--\n\nReturns the elements at an index of a dimension, which is removed: a view."},
    {"narrow", narrow, METH_VARARGS,
     "narrow($self, dim, start, length, /)\n--\n\nReturns a part of a dimension: a view."},
    {"contiguous", contiguous, METH_NOARGS,
     "contiguous($self)\n--\n\nReturns the array if it is contiguous, otherwise a contiguous copy."},
    {NULL, NULL, 0, NULL},
};

/* ---- Indexing ---- */

/* How many dimensions of the array a part of the key uses. */
static int dims_used(PyObject *part) { return part == Py_None || part == Py_Ellipsis || PyBool_Check(part) ? 0 : 1; }

static int take_slice(weir_array *view, int dim, PyObject *slice) {
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(slice, &start, &stop, &step) != 0)
    return -1;
  if (step <= 0) {
    PyErr_SetString(PyExc_ValueError, "step must be greater than zero");
    return -1;
  }
  return pyweir_array_check(weir_array_slice(view, dim, start, stop, step, view));
}

static int take_index(weir_array *view, int dim, int64_t index) {
  if (index < -view->shape[dim] || index >= view->shape[dim]) {
    PyErr_Format(PyExc_IndexError, "index %lld is out of bounds for dimension %d with size %lld", (long long)index, dim,
                 (long long)view->shape[dim]);
    return -1;
  }
  return pyweir_array_check(weir_array_select(view, dim, index, view));
}

/* Applies the parts of a key, each to the dimension that the ones before it left. Arrays of indices are handled in
 * Python (_indexing.py). */
static int take_parts(weir_array *view, PyObject *const *parts, Py_ssize_t count) {
  int used = 0, ellipses = 0, dim = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    used += dims_used(parts[i]);
    ellipses += parts[i] == Py_Ellipsis;
  }
  if (used > view->ndim) {
    if (!view->ndim)
      PyErr_SetString(PyExc_IndexError,
                      "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to "
                      "convert a 0-dim tensor to a number");
    else
      PyErr_Format(PyExc_IndexError, "too many indices for tensor of dimension %d", view->ndim);
    return -1;
  }
  if (ellipses > 1) {
    PyErr_SetString(PyExc_IndexError, "an index can only have a single ellipsis ('...')");
    return -1;
  }
  int skipped = view->ndim - used;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *part = parts[i];
    int64_t index;
    int advance = 1;
    if (part == Py_Ellipsis) {
      advance = skipped;
    } else if (part == Py_None) {
      if (pyweir_array_check(weir_array_unsqueeze(view, dim, view)) != 0)
        return -1;
    } else if (PySlice_Check(part)) {
      if (take_slice(view, dim, part) != 0)
        return -1;
    } else if (!PyIndex_Check(part) || PyBool_Check(part)) {
      PyErr_Format(PyExc_IndexError,
                   "only integers, slices (`:`), ellipsis (`...`), None and arrays of integers are valid indices (got "
                   "%.100s)",
                   Py_TYPE(part)->tp_name);
      return -1;
    } else {
      if (pyweir_parse_int64(part, &index) != 0 || take_index(view, dim, index) != 0)
        return -1;
      advance = 0;
    }
    dim += advance;
  }
  return 0;
}

/* The array at a key, with a reference of its own. */
static int at(PyObject *self, PyObject *key, weir_array *view) {
  if (pyweir_array_check(weir_array_share(pyweir_array_of(self), view)) != 0)
    return -1;
  bool is_tuple = PyTuple_Check(key);
  int result = take_parts(view, is_tuple ? PySequence_Fast_ITEMS(key) : &key, is_tuple ? PyTuple_GET_SIZE(key) : 1);
  if (result != 0)
    pyweir_array_release(view);
  return result;
}

static PyObject *subscript(PyObject *self, PyObject *key) {
  weir_array view = {0};
  if (at(self, key, &view) != 0)
    return NULL;
  return pyweir_array_view_of(self, WEIR_OK, &view);
}

static int assign(PyObject *self, PyObject *key, PyObject *value) {
  weir_array view = {0};
  weir_scalar scalar;
  weir_status status;
  weir_stream stream;
  if (!value) {
    PyErr_SetString(PyExc_TypeError, "elements of an array cannot be deleted");
    return -1;
  }
  int is_scalar = pyweir_parse_scalar(value, &scalar);
  if (is_scalar < 0 || pyweir_array_check_writable(self) != 0)
    return -1;
  if (!is_scalar && !PYWEIR_IS_ARRAY(value)) {
    PyErr_Format(PyExc_TypeError, "can't assign a %.100s to elements of an array", Py_TYPE(value)->tp_name);
    return -1;
  }
  if (at(self, key, &view) != 0)
    return -1;
  weir_place place = view.place;
  if (!is_scalar && place.kind != WEIR_PLACE_DEVICE)
    place = pyweir_array_of(value)->place;
  if (pyweir_place_stream(place, &stream) == 0) {
    if (is_scalar)
      PYWEIR_CALL(status, weir_array_fill(&view, scalar, stream));
    else
      PYWEIR_CALL(status, weir_array_copy(&view, pyweir_array_of(value), stream, 0));
    pyweir_array_check(status);
  }
  pyweir_array_release(&view);
  return PyErr_Occurred() ? -1 : 0;
}

PyMappingMethods pyweir_array_mapping = {.mp_subscript = subscript, .mp_ass_subscript = assign};

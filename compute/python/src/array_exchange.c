/*
 * Elements of arrays as objects of Python and in other libraries: nested lists, the buffer protocol, DLPack and
 * __cuda_array_interface__.
 */
#include "array.h"

#include <stdlib.h>
#include <string.h>

/* ---- To nested lists ---- */

/* Every type has one of four that Python knows. */
static weir_dtype wide_type(weir_dtype dtype) {
  if (dtype == WEIR_BOOL)
    return WEIR_BOOL;
  if (weir_dtype_is_complex(dtype))
    return WEIR_COMPLEX128;
  return weir_dtype_is_float(dtype) ? WEIR_FLOAT64 : WEIR_INT64;
}

static PyObject *element(const char *at, weir_dtype dtype) {
  union {
    int64_t integer;
    double numbers[2];
  } value;
  memcpy(&value, at, weir_dtype_size(dtype));
  switch (dtype) {
  case WEIR_BOOL:
    return PyBool_FromLong(*at);
  case WEIR_INT64:
    return PyLong_FromLongLong(value.integer);
  case WEIR_FLOAT64:
    return PyFloat_FromDouble(value.numbers[0]);
  default:
    return PyComplex_FromDoubles(value.numbers[0], value.numbers[1]);
  }
}

static PyObject *list_of(const weir_array *a, int dim, const char **at) {
  if (dim == a->ndim) {
    PyObject *result = element(*at, a->dtype);
    *at += weir_dtype_size(a->dtype);
    return result;
  }
  PyObject *list = PyList_New((Py_ssize_t)a->shape[dim]);
  for (int64_t i = 0; list && i < a->shape[dim]; i++) {
    PyObject *inner = list_of(a, dim + 1, at);
    if (!inner)
      Py_CLEAR(list);
    else
      PyList_SET_ITEM(list, (Py_ssize_t)i, inner);
  }
  return list;
}

static PyObject *tolist(PyObject *self, PyObject *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  weir_array host = {0};
  weir_stream stream;
  weir_status status;
  if (pyweir_array_stream(a, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_to(a, weir_place_host(), wide_type(a->dtype), stream, 0, &host));
  if (pyweir_array_check(status) != 0)
    return NULL;
  const char *at = host.data;
  PyObject *result = list_of(&host, 0, &at);
  pyweir_array_release(&host);
  return result;
}

/* ---- From nested sequences ---- */

typedef struct data {
  int ndim;
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int kind; /* weir_scalar_kind of the elements; -1 if there are none */
} data;

static bool is_sequence(PyObject *object) {
  if (PyList_Check(object) || PyTuple_Check(object))
    return true;
  if (PYWEIR_IS_ARRAY(object))
    return pyweir_array_of(object)->ndim > 0;
  return PySequence_Check(object) && !PyUnicode_Check(object) && !PyBytes_Check(object);
}

static int bad_element(PyObject *object) {
  PyErr_Format(PyExc_TypeError, "new(): invalid data type '%.100s'", Py_TYPE(object)->tp_name);
  return -1;
}

/* A number, or the value of an array without dimensions. */
static int scalar_of(PyObject *object, weir_scalar *scalar) {
  int found = pyweir_parse_scalar(object, scalar);
  if (found)
    return found < 0 ? -1 : 0;
  if (!PYWEIR_IS_ARRAY(object))
    return bad_element(object);
  weir_stream stream;
  weir_status status;
  if (pyweir_array_stream(pyweir_array_of(object), &stream) != 0)
    return -1;
  PYWEIR_CALL(status, weir_array_item(pyweir_array_of(object), stream, scalar));
  return pyweir_array_check(status);
}

/* The shape follows from the first elements. */
static int measure(PyObject *object, data *d) {
  d->ndim = 0;
  Py_INCREF(object);
  while (is_sequence(object)) {
    if (d->ndim == WEIR_ARRAY_MAX_DIMS) {
      Py_DECREF(object);
      PyErr_SetString(PyExc_ValueError, "too many dimensions 'list'");
      return -1;
    }
    Py_ssize_t length = PySequence_Size(object);
    if (length < 0) {
      Py_DECREF(object);
      return -1;
    }
    d->shape[d->ndim++] = length;
    if (!length)
      break;
    PyObject *first = PySequence_GetItem(object, 0);
    Py_DECREF(object);
    if (!first)
      return -1;
    object = first;
  }
  Py_DECREF(object);
  return 0;
}

/* Stores the elements below one dimension as complex128 at *at, or only finds their kind if `at` is NULL. */
static int read_data(PyObject *object, int dim, data *d, weir_dtype dtype, char **at) {
  if (dim == d->ndim) {
    weir_scalar scalar;
    if (is_sequence(object)) {
      PyErr_Format(PyExc_ValueError, "only one element tensors can be converted to Python scalars");
      return -1;
    }
    if (scalar_of(object, &scalar) != 0)
      return -1;
    if ((int)scalar.kind > d->kind)
      d->kind = (int)scalar.kind;
    if (!at)
      return 0;
    bool is_whole = scalar.kind <= WEIR_SCALAR_INT;
    double numbers[2] = {is_whole ? (double)scalar.integer : scalar.real,
                         scalar.kind == WEIR_SCALAR_COMPLEX ? scalar.imag : 0};
    if (dtype == WEIR_BOOL)
      **at = (char)(is_whole ? scalar.integer != 0 : scalar.real != 0 || numbers[1] != 0);
    else if (dtype == WEIR_INT64)
      memcpy(*at, &scalar.integer, sizeof scalar.integer);
    else
      memcpy(*at, numbers, weir_dtype_size(dtype));
    *at += weir_dtype_size(dtype);
    return 0;
  }
  PyObject *list = is_sequence(object) ? PySequence_Fast(object, "not a sequence") : NULL;
  if (!list) {
    if (!PyErr_Occurred())
      PyErr_SetString(PyExc_TypeError, "not a sequence");
    return -1;
  }
  Py_ssize_t length = PySequence_Fast_GET_SIZE(list);
  int result = 0;
  if (length != d->shape[dim]) {
    PyErr_Format(PyExc_ValueError, "expected sequence of length %lld at dim %d (got %zd)", (long long)d->shape[dim],
                 dim, length);
    result = -1;
  }
  for (Py_ssize_t i = 0; i < length && result == 0; i++)
    result = read_data(PySequence_Fast_GET_ITEM(list, i), dim + 1, d, dtype, at);
  Py_DECREF(list);
  return result;
}

/* _array_from_data(data, dtype, device, pin_memory): dtype None follows from the elements. */
static PyObject *from_data(PyObject *module, PyObject *args) {
  (void)module;
  static const weir_dtype defaults[] = {WEIR_BOOL, WEIR_INT64, WEIR_FLOAT32, WEIR_COMPLEX64};
  static const weir_dtype wides[] = {WEIR_BOOL, WEIR_INT64, WEIR_FLOAT64, WEIR_COMPLEX128};
  PyObject *object, *dtype_object, *device;
  int is_pinned;
  data d = {.kind = -1};
  weir_place place;
  weir_dtype dtype;
  weir_stream stream;
  weir_array host = {0}, made = {0};
  weir_status status;
  if (!PyArg_ParseTuple(args, "OOOp:_array_from_data", &object, &dtype_object, &device, &is_pinned) ||
      pyweir_parse_place(device, &place) != 0 || measure(object, &d) != 0 ||
      read_data(object, 0, &d, WEIR_BOOL, NULL) != 0)
    return NULL;
  int kind = d.kind < 0 ? WEIR_SCALAR_FLOAT : d.kind;
  dtype = defaults[kind];
  if (dtype_object != Py_None && pyweir_parse_dtype(dtype_object, &dtype) != 0)
    return NULL;
  if (is_pinned && place.kind == WEIR_PLACE_HOST) {
    if (pyweir_array_need_host() != 0)
      return NULL;
    place = weir_place_pinned();
  }
  if (pyweir_place_stream(place, &stream) != 0)
    return NULL;
  status = weir_array_empty(weir_place_host(), wides[kind], d.ndim, d.shape, (weir_stream){0}, &host);
  if (pyweir_array_check(status) != 0)
    return NULL;
  char *at = host.data;
  if (read_data(object, 0, &d, wides[kind], &at) != 0) {
    pyweir_array_release(&host);
    return NULL;
  }
  if (dtype == wides[kind] && place.kind == WEIR_PLACE_HOST)
    return pyweir_array_wrap(&host);
  PYWEIR_CALL(status, weir_array_to(&host, place, dtype, stream, 0, &made));
  pyweir_array_release(&host);
  return pyweir_array_result(status, &made);
}

/* ---- The buffer protocol: arrays on the host ---- */

static const struct {
  const char *format;  /* of the buffer protocol; NULL if it has none */
  const char *typestr; /* of __cuda_array_interface__; likewise */
  weir_dtype dtype;
  uint8_t dlpack_code, dlpack_bits;
} formats[] = {
    {"B", "|u1", WEIR_UINT8, TYPE_UNSIGNED, 8},      {"b", "|i1", WEIR_INT8, TYPE_SIGNED, 8},
    {"h", "<i2", WEIR_INT16, TYPE_SIGNED, 16},       {"i", "<i4", WEIR_INT32, TYPE_SIGNED, 32},
    {"q", "<i8", WEIR_INT64, TYPE_SIGNED, 64},       {"e", "<f2", WEIR_FLOAT16, TYPE_FLOAT, 16},
    {"f", "<f4", WEIR_FLOAT32, TYPE_FLOAT, 32},      {"d", "<f8", WEIR_FLOAT64, TYPE_FLOAT, 64},
    {"Zf", "<c8", WEIR_COMPLEX64, TYPE_COMPLEX, 64}, {"Zd", "<c16", WEIR_COMPLEX128, TYPE_COMPLEX, 128},
    {"?", "|b1", WEIR_BOOL, TYPE_BOOL, 8},           {NULL, NULL, WEIR_BFLOAT16, TYPE_BFLOAT, 16},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static int format_of(weir_dtype dtype) {
  int i = 0;
  while (formats[i].dtype != dtype)
    i++;
  return i;
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags) {
  const weir_array *a = pyweir_array_of(self);
  int format = format_of(a->dtype);
  Py_ssize_t size = (Py_ssize_t)weir_dtype_size(a->dtype);
  bool is_readonly = ((pyweir_array *)self)->is_readonly;
  view->obj = NULL;
  if (a->place.kind == WEIR_PLACE_DEVICE) {
    PyErr_SetString(PyExc_BufferError, "the array is on a device; copy it to the host first (Array.cpu())");
    return -1;
  }
  if (!formats[format].format) {
    PyErr_SetString(PyExc_BufferError, "Python has no format for bfloat16; convert the array first");
    return -1;
  }
  if (is_readonly && (flags & PyBUF_WRITABLE)) {
    PyErr_SetString(PyExc_BufferError, "the array is read-only");
    return -1;
  }
  if (!(flags & PyBUF_STRIDES & ~PyBUF_ND) && !weir_array_is_contiguous(a)) {
    PyErr_SetString(PyExc_BufferError, "the array is not contiguous");
    return -1;
  }
  Py_ssize_t *numbers = PyMem_Malloc(2 * WEIR_ARRAY_MAX_DIMS * sizeof *numbers);
  if (!numbers) {
    PyErr_NoMemory();
    return -1;
  }
  for (int i = 0; i < a->ndim; i++) {
    numbers[i] = (Py_ssize_t)a->shape[i];
    numbers[WEIR_ARRAY_MAX_DIMS + i] = (Py_ssize_t)a->strides[i] * size;
  }
  static char nothing[1];
  *view = (Py_buffer){
      .buf = a->data ? a->data : nothing,
      .obj = Py_NewRef(self),
      .len = (Py_ssize_t)weir_array_count(a) * size,
      .itemsize = size,
      .readonly = is_readonly,
      .ndim = a->ndim,
      .format = flags & PyBUF_FORMAT ? (char *)formats[format].format : NULL,
      .shape = flags & PyBUF_ND ? numbers : NULL,
      .strides = flags & PyBUF_STRIDES & ~PyBUF_ND ? numbers + WEIR_ARRAY_MAX_DIMS : NULL,
      .internal = numbers,
  };
  return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view) {
  (void)self;
  PyMem_Free(view->internal);
}

PyBufferProcs pyweir_array_buffer = {.bf_getbuffer = get_buffer, .bf_releasebuffer = release_buffer};

/* ---- Arrays over memory of others ---- */

/* Called on any thread. After the interpreter has ended, the memory is left to the exit of the process. */
static void drop_object(void *object) {
  if (Py_IsInitialized()) {
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF((PyObject *)object);
    PyGILState_Release(gil);
  }
}

static void drop_view(void *context) {
  if (Py_IsInitialized()) {
    PyGILState_STATE gil = PyGILState_Ensure();
    PyBuffer_Release(context);
    PyMem_Free(context);
    PyGILState_Release(gil);
  }
}

static PyObject *borrowed(weir_status status, weir_array *array, bool is_readonly) {
  PyObject *result = pyweir_array_result(status, array);
  if (result)
    ((pyweir_array *)result)->is_readonly = is_readonly;
  return result;
}

/* _array_borrow(owner, address, device, pinned, dtype, shape, strides, readonly): strides in elements, or None. */
static PyObject *array_borrow(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *owner, *address_object, *device, *dtype_object, *shape_object, *stride_object;
  int is_pinned, is_readonly, ndim, stride_count;
  void *address;
  weir_place place;
  weir_dtype dtype;
  int64_t shape[WEIR_ARRAY_MAX_DIMS], strides[WEIR_ARRAY_MAX_DIMS];
  weir_array made = {0};
  if (!PyArg_ParseTuple(args, "OOOpOOOp:_array_borrow", &owner, &address_object, &device, &is_pinned, &dtype_object,
                        &shape_object, &stride_object, &is_readonly) ||
      pyweir->parse_address(address_object, &address) != 0 || pyweir_parse_place(device, &place) != 0 ||
      pyweir_parse_dtype(dtype_object, &dtype) != 0 ||
      pyweir_parse_sizes("_array_borrow", &shape_object, 1, shape, &ndim) != 0)
    return NULL;
  stride_count = ndim;
  if (stride_object != Py_None && pyweir_parse_sizes("_array_borrow", &stride_object, 1, strides, &stride_count) != 0)
    return NULL;
  if (stride_count != ndim)
    return PyErr_Format(PyExc_RuntimeError, "mismatch in length of strides and shape");
  if (is_pinned && place.kind == WEIR_PLACE_HOST)
    place = weir_place_pinned();
  Py_INCREF(owner);
  weir_status status = weir_array_from_memory(address, place, dtype, ndim, shape,
                                              stride_object == Py_None ? NULL : strides, drop_object, owner, &made);
  if (status != WEIR_OK)
    Py_DECREF(owner);
  return borrowed(status, &made, is_readonly);
}

static int dtype_of_format(const char *format, Py_ssize_t size, weir_dtype *dtype) {
  if (!format)
    format = "B";
  if (*format == '@' || *format == '=' || *format == '<')
    format++;
  bool is_long = (!strcmp(format, "l") || !strcmp(format, "i")) && size == 8;
  for (int i = 0; i < FORMATS; i++)
    if (formats[i].format && (!strcmp(formats[i].format, format) || (is_long && formats[i].dtype == WEIR_INT64)) &&
        weir_dtype_size(formats[i].dtype) == (size_t)size) {
      *dtype = formats[i].dtype;
      return 0;
    }
  if (!strcmp(format, "l") && size == 4) {
    *dtype = WEIR_INT32;
    return 0;
  }
  PyErr_Format(PyExc_TypeError, "elements of format '%s' (%zd bytes) have no dtype here", format, size);
  return -1;
}

static int read_layout(const Py_buffer *view, int64_t *shape, int64_t *strides) {
  if (view->ndim > WEIR_ARRAY_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "an array has at most %d dimensions (got %d)", WEIR_ARRAY_MAX_DIMS, view->ndim);
    return -1;
  }
  for (int i = 0; i < view->ndim; i++) {
    shape[i] = view->shape[i];
    if (view->strides[i] < 0) {
      PyErr_SetString(PyExc_ValueError,
                      "At least one stride in the given numpy array is negative, and tensors with negative strides are "
                      "not currently supported. (You can probably work around this by making a copy of your array with "
                      "array.copy().)");
      return -1;
    }
    if (view->strides[i] % view->itemsize != 0) {
      PyErr_SetString(PyExc_ValueError, "given numpy array strides not a multiple of the element byte size. Copy the "
                                        "numpy array to reallocate the memory.");
      return -1;
    }
    strides[i] = view->strides[i] / view->itemsize;
  }
  return 0;
}

/* An array that shares the memory of an object with the buffer protocol, such as a NumPy array. */
static PyObject *array_from_buffer(PyObject *module, PyObject *object) {
  (void)module;
  weir_dtype dtype;
  int64_t shape[WEIR_ARRAY_MAX_DIMS], strides[WEIR_ARRAY_MAX_DIMS];
  weir_array made = {0};
  Py_buffer *view = PyMem_Malloc(sizeof *view);
  if (!view)
    return PyErr_NoMemory();
  if (PyObject_GetBuffer(object, view, PyBUF_RECORDS_RO) != 0) {
    PyMem_Free(view);
    return NULL;
  }
  bool is_readonly = view->readonly;
  if (dtype_of_format(view->format, view->itemsize, &dtype) == 0 && read_layout(view, shape, strides) == 0) {
    weir_status status =
        weir_array_from_memory(view->buf, weir_place_host(), dtype, view->ndim, shape, strides, drop_view, view, &made);
    if (status == WEIR_OK)
      return borrowed(status, &made, is_readonly);
    pyweir_array_check(status);
  }
  drop_view(view);
  return NULL;
}

/* ---- DLPack ---- */

typedef struct exported {
  union {
    managed_tensor plain;
    versioned_tensor versioned;
  } as;
  weir_array array; /* holds a reference */
} exported;

/* On any thread, with or without the GIL. */
static void release_export(exported *e) {
  if (Py_IsInitialized() && PyGILState_Check())
    pyweir_array_release(&e->array);
  else
    weir_array_release(&e->array);
  free(e);
}

static void delete_plain(managed_tensor *t) { release_export(t->context); }
static void delete_versioned(versioned_tensor *t) { release_export(t->context); }

static void dlpack_device_of(const weir_array *a, int *type, int *number) {
  bool is_cuda = pyweir->driver_can(WEIR_DRIVER_NVIDIA);
  *number = 0;
  if (is_cuda && a->place.kind == WEIR_PLACE_DEVICE) {
    *type = DEVICE_CUDA;
    *number = a->place.device;
  } else
    *type = is_cuda && a->place.kind == WEIR_PLACE_PINNED ? DEVICE_CUDA_HOST : DEVICE_CPU;
}

static PyObject *dlpack_device(PyObject *self, PyObject *unused) {
  (void)unused;
  int type, number;
  dlpack_device_of(pyweir_array_of(self), &type, &number);
  return Py_BuildValue("ii", type, number);
}

/* Without the GIL. */
static weir_status order_before(const weir_array *a, weir_cu_stream raw) {
  weir_stream current, consumer = {0};
  weir_cu_stream current_raw;
  weir_status status = pyweir->current_stream(a->place.device, &current, &current_raw);
  if (status == WEIR_OK)
    status = weir_stream_external(a->place.device, raw, &consumer);
  if (status == WEIR_OK && current_raw != raw)
    status = weir_stream_wait_stream(consumer, current);
  return status == WEIR_OK ? weir_array_record_stream(a, consumer) : status;
}

/* Orders pending work before the consumer's: on its stream on a CUDA device, or else before this returns. */
static int synchronize_with(const weir_array *a, int type, PyObject *stream) {
  bool is_ordered;
  weir_cu_stream raw = NULL;
  weir_stream current;
  weir_status status = WEIR_OK;
  if (pyweir->dlpack_parse_stream(stream, type, &is_ordered, &raw) != 0)
    return -1;
  if (!is_ordered || a->place.kind != WEIR_PLACE_DEVICE)
    return 0;
  if (type == DEVICE_CUDA) {
    PYWEIR_CALL(status, order_before(a, raw));
  } else {
    if (pyweir_array_stream(a, &current) != 0)
      return -1;
    PYWEIR_CALL(status, weir_stream_synchronize(current));
  }
  return pyweir_array_check(status);
}

/* Takes over the reference of *a. */
static PyObject *export(weir_array *a, int type, int number, bool is_versioned, uint64_t flags) {
  exported *e = calloc(1, sizeof *e);
  if (!e) {
    pyweir_array_release(a);
    return PyErr_NoMemory();
  }
  e->array = *a;
  int format = format_of(a->dtype);
  tensor t = {.data = a->data,
              .device_type = type,
              .device_id = number,
              .dimensions = a->ndim,
              .type_code = formats[format].dlpack_code,
              .type_bits = formats[format].dlpack_bits,
              .type_lanes = 1,
              .shape = e->array.shape,
              .strides = e->array.strides};
  if (is_versioned)
    e->as.versioned =
        (versioned_tensor){.major = 1, .minor = 0, .context = e, .deleter = delete_versioned, .flags = flags, .of = t};
  else
    e->as.plain = (managed_tensor){.of = t, .context = e, .deleter = delete_plain};
  PyObject *capsule =
      PyCapsule_New(&e->as, is_versioned ? DLPACK_VERSIONED : DLPACK_PLAIN, pyweir->dlpack_destroy_capsule);
  if (!capsule)
    release_export(e);
  return capsule;
}

static PyObject *dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"stream", "max_version", "dl_device", "copy"};
  PyObject *values[] = {Py_None, Py_None, Py_None, Py_None};
  const weir_array *a = pyweir_array_of(self);
  bool is_readonly = ((pyweir_array *)self)->is_readonly;
  int type, number;
  weir_array handed = {0};
  weir_stream stream;
  weir_status status;
  if (pyweir->parse_arguments("__dlpack__", names, 4, 1, args, count, keywords, values) != 0)
    return NULL;
  dlpack_device_of(a, &type, &number);
  int is_versioned = pyweir->dlpack_wants_version(values[1]);
  int is_copied = values[3] == Py_None ? 0 : PyObject_IsTrue(values[3]);
  if (is_versioned < 0 || is_copied < 0 || pyweir->dlpack_check_device(type, number, values[2]) != 0 ||
      pyweir_array_stream(a, &stream) != 0)
    return NULL;
  if (is_readonly && !is_versioned && !is_copied)
    return PyErr_Format(PyExc_BufferError,
                        "a read-only array needs max_version=(1, 0): an unversioned tensor has no read-only flag");
  if (is_copied)
    PYWEIR_CALL(status, weir_array_to(a, a->place, a->dtype, stream, 0, &handed));
  else
    status = weir_array_share(a, &handed);
  if (pyweir_array_check(status) != 0)
    return NULL;
  if (synchronize_with(&handed, type, values[0]) != 0) {
    pyweir_array_release(&handed);
    return NULL;
  }
  uint64_t flags = (is_readonly && !is_copied ? FLAG_READ_ONLY : 0) | (is_copied ? FLAG_IS_COPIED : 0);
  return export(&handed, type, number, is_versioned, flags);
}

/* An imported tensor, which its own function frees. */
typedef struct imported {
  void *managed;
  bool is_versioned;
} imported;

static void drop_imported(void *context) {
  imported *i = context;
  if (Py_IsInitialized()) {
    PyGILState_STATE gil = PyGILState_Ensure();
    pyweir->dlpack_release(i->managed, i->is_versioned);
    PyGILState_Release(gil);
  }
  free(i);
}

static int layout_of_tensor(const tensor *t, weir_dtype *dtype, weir_place *place) {
  bool is_cuda = pyweir->driver_can(WEIR_DRIVER_NVIDIA);
  int found = -1;
  for (int i = 0; i < FORMATS; i++)
    if (formats[i].dlpack_code == t->type_code && formats[i].dlpack_bits == t->type_bits && t->type_lanes == 1)
      found = i;
  if (found < 0) {
    PyErr_Format(PyExc_BufferError, "the tensor has elements of type (%d, %d bits, %d lanes), which has no dtype here",
                 t->type_code, t->type_bits, t->type_lanes);
    return -1;
  }
  *dtype = formats[found].dtype;
  if (t->device_type == DEVICE_CPU || t->device_type == DEVICE_CUDA_HOST) {
    *place = t->device_type == DEVICE_CPU ? weir_place_host() : weir_place_pinned();
  } else if (is_cuda && t->device_type == DEVICE_CUDA) {
    *place = weir_place_device(t->device_id);
  } else {
    PyErr_Format(PyExc_BufferError, "the tensor is on a device of type %d, which is not supported here",
                 (int)t->device_type);
    return -1;
  }
  if (t->dimensions > WEIR_ARRAY_MAX_DIMS) {
    PyErr_Format(PyExc_BufferError, "an array has at most %d dimensions (got %d)", WEIR_ARRAY_MAX_DIMS,
                 (int)t->dimensions);
    return -1;
  }
  for (int i = 0; t->strides && i < t->dimensions; i++)
    if (t->strides[i] < 0) {
      PyErr_SetString(PyExc_BufferError, "the tensor has negative strides; copy it first");
      return -1;
    }
  return 0;
}

static PyObject *import(PyObject *capsule) {
  bool is_readonly;
  weir_dtype dtype;
  weir_place place;
  weir_array made = {0};
  const tensor *t = pyweir->dlpack_tensor(capsule, &is_readonly);
  if (!t || layout_of_tensor(t, &dtype, &place) != 0)
    return NULL;
  imported *context = calloc(1, sizeof *context);
  if (!context)
    return PyErr_NoMemory();
  void *pointer = t->data ? (char *)t->data + t->byte_offset : NULL;
  weir_status status =
      weir_array_from_memory(pointer, place, dtype, t->dimensions, t->shape, t->strides, drop_imported, context, &made);
  if (status != WEIR_OK) {
    free(context);
    pyweir_array_check(status);
    return NULL;
  }
  /* The capsule was checked, so this cannot fail. */
  pyweir->dlpack_consume(capsule, &context->managed, &context->is_versioned);
  return borrowed(WEIR_OK, &made, is_readonly);
}

static PyObject *array_from_dlpack(PyObject *module, PyObject *object) {
  (void)module;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PyObject *capsule = pyweir->dlpack_capsule(object);
  PyObject *result = capsule ? import(capsule) : NULL;
  Py_XDECREF(capsule);
  return result;
}

/* ---- __cuda_array_interface__ ---- */

static PyObject *byte_strides(const weir_array *a) {
  if (weir_array_is_contiguous(a))
    return Py_NewRef(Py_None);
  PyObject *tuple = PyTuple_New(a->ndim);
  for (int i = 0; tuple && i < a->ndim; i++) {
    PyObject *number = PyLong_FromLongLong(a->strides[i] * (long long)weir_dtype_size(a->dtype));
    if (!number)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, i, number);
  }
  return tuple;
}

/* Other libraries would take the address for one on a CUDA device, so memory of a software device is not exported. */
PyObject *pyweir_array_cuda_interface(PyObject *self, void *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  const char *typestr = formats[format_of(a->dtype)].typestr;
  weir_cu_stream raw = NULL;
  weir_stream stream;
  weir_status status;
  if (a->place.kind != WEIR_PLACE_DEVICE || !pyweir->driver_can(WEIR_DRIVER_NVIDIA))
    return PyErr_Format(PyExc_AttributeError, "__cuda_array_interface__ needs an array on a CUDA device, not on %s",
                        a->place.kind != WEIR_PLACE_DEVICE ? "the host" : "a software device");
  if (!typestr)
    return PyErr_Format(PyExc_AttributeError, "__cuda_array_interface__ has no type for %s", weir_dtype_name(a->dtype));
  PYWEIR_CALL(status, pyweir->current_stream(a->place.device, &stream, &raw));
  if (pyweir->check(status) != 0)
    return NULL;
  PyObject *shape = PyObject_GetAttrString(self, "shape"), *strides = byte_strides(a);
  if (!shape || !strides) {
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    return NULL;
  }
  /* The protocol encodes the legacy default stream as 1, since 0 would be ambiguous. */
  unsigned long long number = raw ? (unsigned long long)(uintptr_t)raw : 1;
  return Py_BuildValue("{sNsss(KO)sNsKsi}", "shape", shape, "typestr", typestr, "data",
                       (unsigned long long)(uintptr_t)a->data, ((pyweir_array *)self)->is_readonly ? Py_True : Py_False,
                       "strides", strides, "stream", number, "version", 3);
}

/* The dtype of a typestr of the array interfaces, such as "<f4". */
static PyObject *dtype_of_typestr(PyObject *module, PyObject *object) {
  (void)module;
  const char *text = PyUnicode_AsUTF8(object);
  if (!text)
    return NULL;
  for (int i = 0; i < FORMATS; i++)
    if (formats[i].typestr && *text && strcmp(formats[i].typestr + 1, text + 1) == 0 && *text != '>')
      return pyweir_dtype_wrap(formats[i].dtype);
  return PyErr_Format(PyExc_TypeError, "elements of type '%s' have no dtype here", text);
}

PyMethodDef pyweir_array_exchange_methods[] = {
    {"tolist", tolist, METH_NOARGS,
     "tolist($self)\n--\n\nReturns the elements as nested lists, or as a number if there are no dimensions."},
    {"__dlpack__", PYWEIR_FAST_KEYWORDS(dlpack), NULL},
    {"__dlpack_device__", dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef functions[] = {
    {"_array_from_data", from_data, METH_VARARGS, NULL},     {"_array_borrow", array_borrow, METH_VARARGS, NULL},
    {"_array_from_buffer", array_from_buffer, METH_O, NULL}, {"_array_from_dlpack", array_from_dlpack, METH_O, NULL},
    {"_dtype_of_typestr", dtype_of_typestr, METH_O, NULL},   {NULL, NULL, 0, NULL},
};

int pyweir_add_array_exchange(PyObject *module) { return PyModule_AddFunctions(module, functions); }

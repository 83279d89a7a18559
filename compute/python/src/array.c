/*
 * weir._weir._Array, the base class of weir.Array: a weir_array with a reference to its storage. This file has its
 * creation, its attributes, and the arguments that all of its methods share.
 *
 * The description of an array (shape, strides, type, storage) never changes, so operations read it without the GIL.
 */
#include "array.h"

#include <stddef.h>
#include <string.h>

/* The class of new arrays: weir.Array once the package is imported. */
static PyTypeObject *array_class = &pyweir_array_type;
static PyObject *size_class; /* of shapes, a class of tuples; NULL before */

/* ---- Errors ---- */

int pyweir_array_check(weir_status status) {
  if (pyweir->check(status) == 0)
    return 0;
  if (status == WEIR_ERROR_INVALID_ARGUMENT && PyErr_ExceptionMatches(PyExc_ValueError)) {
    const char *text = weir_last_error();
    bool is_index = strstr(text, "Dimension out of range") || strstr(text, "out of bounds for dimension") ||
                    strstr(text, "out of range in self") || strstr(text, "too many indices for tensor") ||
                    strstr(text, "indexing tensors could not be broadcast");
    pyweir->change_type(is_index ? PyExc_IndexError : PyExc_RuntimeError);
  }
  return -1;
}

int pyweir_array_check_writable(PyObject *array) {
  if (!((pyweir_array *)array)->is_readonly)
    return 0;
  PyErr_SetString(PyExc_ValueError, "the array is read-only");
  return -1;
}

/* ---- Objects ---- */

void pyweir_array_release(weir_array *array) {
  if (!array->storage)
    return;
  if (array->place.kind == WEIR_PLACE_HOST) {
    weir_array_release(array);
  } else if (!weir_is_in_bad_fork()) { /* in a forked child the memory is the parent's */
    PyThreadState *saved = pyweir->begin_call();
    weir_array_release(array);
    pyweir->end_call(saved);
  }
}

PyObject *pyweir_array_wrap(weir_array *array) {
  pyweir_array *self = (pyweir_array *)array_class->tp_alloc(array_class, 0);
  if (!self) {
    pyweir_array_release(array);
    return NULL;
  }
  self->it = *array;
  return (PyObject *)self;
}

PyObject *pyweir_array_result(weir_status status, weir_array *array) {
  if (pyweir_array_check(status) == 0)
    return pyweir_array_wrap(array);
  if (status == WEIR_OK) /* a warning became an exception */
    pyweir_array_release(array);
  return NULL;
}

PyObject *pyweir_array_view_of(PyObject *base, weir_status status, weir_array *array) {
  PyObject *view = pyweir_array_result(status, array);
  if (view)
    ((pyweir_array *)view)->is_readonly = ((pyweir_array *)base)->is_readonly;
  return view;
}

static void array_dealloc(PyObject *object) {
  pyweir_array *self = (pyweir_array *)object;
  PyTypeObject *type = Py_TYPE(object);
  if (self->weak)
    PyObject_ClearWeakRefs(object);
  if (self->it.storage)
    pyweir_array_release(&self->it);
  type->tp_free(object);
  /* The deallocator of a class of Python drops the reference to the class. */
}

/* ---- Arguments ---- */

int pyweir_array_need_host(void) {
  weir_host_allocator *host = pyweir->need_host();
  return host ? pyweir->check(weir_array_use_host_allocator(host)) : -1;
}

int pyweir_place_stream(weir_place place, weir_stream *stream) {
  if (place.kind != WEIR_PLACE_DEVICE) {
    *stream = (weir_stream){0};
    return 0;
  }
  return pyweir->check(weir_stream_get_current(place.device, stream));
}

int pyweir_array_stream(const weir_array *array, weir_stream *stream) {
  return pyweir_place_stream(array->place, stream);
}

static int is_cpu(PyObject *object) {
  if (object == Py_None)
    return 1;
  if (PyUnicode_Check(object))
    return PyUnicode_CompareWithASCIIString(object, "cpu") == 0;
  if (PyLong_Check(object))
    return 0;
  PyObject *type = PyObject_GetAttrString(object, "type");
  int result = type && PyUnicode_Check(type) && PyUnicode_CompareWithASCIIString(type, "cpu") == 0;
  if (!type)
    PyErr_Clear();
  Py_XDECREF(type);
  return result;
}

int pyweir_parse_place(PyObject *object, weir_place *place) {
  if (is_cpu(object)) {
    *place = weir_place_host();
    return 0;
  }
  PyObject *number = NULL; /* of a weir.device */
  if (!PyLong_Check(object) && !PyUnicode_Check(object) && !(number = PyObject_GetAttrString(object, "idx")))
    PyErr_Clear();
  int device;
  int result = pyweir->need_device(number ? number : object, &device);
  Py_XDECREF(number);
  if (result == 0)
    *place = weir_place_device(device);
  return result;
}

int pyweir_parse_int64(PyObject *object, int64_t *value) {
  PyObject *number = PyNumber_Index(object);
  if (!number)
    return -1;
  long long result = PyLong_AsLongLong(number);
  Py_DECREF(number);
  if (result == -1 && PyErr_Occurred())
    return -1;
  *value = result;
  return 0;
}

int pyweir_parse_sizes(const char *function, PyObject *const *args, Py_ssize_t count, int64_t *sizes, int *ndim) {
  PyObject *list = NULL;
  if (count == 1 && !PyIndex_Check(args[0])) {
    list = PySequence_Fast(args[0], "");
    if (!list) {
      PyErr_Format(PyExc_TypeError, "%s(): argument 'size' must be tuple of ints, not %.100s", function,
                   Py_TYPE(args[0])->tp_name);
      return -1;
    }
    count = PySequence_Fast_GET_SIZE(list);
    args = PySequence_Fast_ITEMS(list);
  }
  int result = 0;
  if (count > WEIR_ARRAY_MAX_DIMS) {
    PyErr_Format(PyExc_ValueError, "%s(): an array has at most %d dimensions (got %zd)", function, WEIR_ARRAY_MAX_DIMS,
                 count);
    result = -1;
  }
  for (Py_ssize_t i = 0; i < count && result == 0; i++) {
    result = pyweir_parse_int64(args[i], &sizes[i]);
    if (result != 0 && PyErr_ExceptionMatches(PyExc_TypeError))
      PyErr_Format(PyExc_TypeError,
                   "%s(): argument 'size' must be tuple of ints, but found element of type %.100s at pos %zd", function,
                   Py_TYPE(args[i])->tp_name, i);
  }
  Py_XDECREF(list);
  *ndim = (int)count;
  return result;
}

int pyweir_parse_scalar(PyObject *object, weir_scalar *scalar) {
  if (PyBool_Check(object)) {
    *scalar = weir_scalar_bool(object == Py_True);
  } else if (PyFloat_Check(object)) {
    *scalar = weir_scalar_float(PyFloat_AS_DOUBLE(object));
  } else if (PyComplex_Check(object)) {
    *scalar = weir_scalar_complex(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  } else if (PYWEIR_IS_ARRAY(object)) {
    return 0;
  } else if (PyIndex_Check(object)) { /* ints and those of NumPy */
    PyObject *number = PyNumber_Index(object);
    int overflow;
    long long value = number ? PyLong_AsLongLongAndOverflow(number, &overflow) : -1;
    Py_XDECREF(number);
    if (!number || (value == -1 && PyErr_Occurred()))
      return -1;
    if (overflow) {
      PyErr_SetString(PyExc_RuntimeError, "Overflow when unpacking long");
      return -1;
    }
    *scalar = weir_scalar_int(value);
  } else if (Py_TYPE(object)->tp_as_number && Py_TYPE(object)->tp_as_number->nb_float && !PyUnicode_Check(object)) {
    PyObject *number = PyNumber_Float(object); /* numpy.float32 */
    if (!number)
      return -1;
    *scalar = weir_scalar_float(PyFloat_AS_DOUBLE(number));
    Py_DECREF(number);
  } else {
    return 0;
  }
  return 1;
}

PyObject *pyweir_scalar_wrap(weir_scalar scalar) {
  switch (scalar.kind) {
  case WEIR_SCALAR_BOOL:
    return PyBool_FromLong(scalar.integer != 0);
  case WEIR_SCALAR_INT:
    return PyLong_FromLongLong(scalar.integer);
  case WEIR_SCALAR_FLOAT:
    return PyFloat_FromDouble(scalar.real);
  default:
    return PyComplex_FromDoubles(scalar.real, scalar.imag);
  }
}

/* ---- Attributes ---- */

static PyObject *tuple_of(const int64_t *numbers, int count) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; tuple && i < count; i++) {
    PyObject *number = PyLong_FromLongLong(numbers[i]);
    if (!number)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, i, number);
  }
  return tuple;
}

static PyObject *size_of(const int64_t *numbers, int count) {
  PyObject *tuple = tuple_of(numbers, count);
  if (!tuple || !size_class)
    return tuple;
  PyObject *size = PyObject_CallOneArg(size_class, tuple);
  Py_DECREF(tuple);
  return size;
}

PYWEIR_GETTER(get_shape, size_of(pyweir_array_of(self)->shape, pyweir_array_of(self)->ndim))
PYWEIR_GETTER(get_dtype, pyweir_dtype_wrap(pyweir_array_of(self)->dtype))

static PyObject *get_device(PyObject *self, void *unused) {
  (void)unused;
  weir_place place = pyweir_array_of(self)->place;
  return pyweir->device_wrap(place.kind == WEIR_PLACE_DEVICE ? place.device : -1);
}

PYWEIR_GETTER(get_ndim, PyLong_FromLong(pyweir_array_of(self)->ndim))
PYWEIR_GETTER(get_is_sparse, Py_NewRef(Py_False))
PYWEIR_GETTER(get_is_cuda, PyBool_FromLong(pyweir_array_of(self)->place.kind == WEIR_PLACE_DEVICE))
PYWEIR_GETTER(get_itemsize, PyLong_FromSize_t(weir_dtype_size(pyweir_array_of(self)->dtype)))

static PyObject *get_nbytes(PyObject *self, void *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  return PyLong_FromLongLong(weir_array_count(a) * (long long)weir_dtype_size(a->dtype));
}

PYWEIR_GETTER(get_readonly, PyBool_FromLong(((pyweir_array *)self)->is_readonly))

/* All of them as a tuple, or that of one dimension. */
static PyObject *numbers_or_one(PyObject *self, const char *function, const int64_t *numbers, PyObject *const *args,
                                Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"dim"};
  PyObject *value = Py_None;
  int ndim = pyweir_array_of(self)->ndim;
  int64_t dim;
  if (pyweir->parse_arguments(function, names, 1, 1, args, count, keywords, &value) != 0)
    return NULL;
  if (value == Py_None)
    return numbers == pyweir_array_of(self)->shape ? size_of(numbers, ndim) : tuple_of(numbers, ndim);
  if (pyweir_parse_int64(value, &dim) != 0)
    return NULL;
  int64_t range = ndim ? ndim : 1;
  if (dim < -range || dim >= range)
    return PyErr_Format(PyExc_IndexError,
                        "Dimension out of range (expected to be in range of [%lld, %lld], but got %lld)",
                        (long long)-range, (long long)(range - 1), (long long)dim);
  if (!ndim)
    return PyErr_Format(PyExc_IndexError, "Dimension specified as %lld but tensor has no dimensions", (long long)dim);
  return PyLong_FromLongLong(numbers[dim < 0 ? dim + ndim : dim]);
}

static PyObject *size(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  return numbers_or_one(self, "size", pyweir_array_of(self)->shape, args, count, keywords);
}

static PyObject *stride(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  return numbers_or_one(self, "stride", pyweir_array_of(self)->strides, args, count, keywords);
}

PYWEIR_NO_ARGUMENTS(dim, get_ndim(self, NULL))
PYWEIR_NO_ARGUMENTS(numel, PyLong_FromLongLong(weir_array_count(pyweir_array_of(self))))
PYWEIR_NO_ARGUMENTS(element_size, get_itemsize(self, NULL))
PYWEIR_NO_ARGUMENTS(data_ptr, PyLong_FromVoidPtr(pyweir_array_of(self)->data))
PYWEIR_NO_ARGUMENTS(storage_offset, PyLong_FromLongLong(weir_array_offset(pyweir_array_of(self))))
PYWEIR_NO_ARGUMENTS(is_contiguous, PyBool_FromLong(weir_array_is_contiguous(pyweir_array_of(self))))

/* Whether the program registered pageable memory with the driver. Without the GIL. */
static bool is_registered(const void *pointer) {
  weir_driver *driver;
  unsigned type = 0;
  return weir_get_driver(&driver) == WEIR_OK &&
         !driver->PointerGetAttribute(driver, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE,
                                      (weir_cu_deviceptr)(uintptr_t)pointer) &&
         type == WEIR_CU_MEMORY_TYPE_HOST;
}

static PyObject *is_pinned(PyObject *self, PyObject *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  bool is_pinned = a->place.kind == WEIR_PLACE_PINNED;
  if (a->place.kind == WEIR_PLACE_HOST && a->data && *pyweir->started) {
    PyThreadState *saved = pyweir->begin_call();
    is_pinned = is_registered(a->data);
    pyweir->end_call(saved);
  }
  return PyBool_FromLong(is_pinned);
}

static PyObject *device_index(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_place place = pyweir_array_of(self)->place;
  return PyLong_FromLong(place.kind == WEIR_PLACE_DEVICE ? place.device : -1);
}

static PyObject *record_stream(PyObject *self, PyObject *object) {
  weir_stream stream;
  if (object == Py_None)
    return pyweir->type_error("a stream", object);
  if (pyweir_ensure_init() != 0 || pyweir->parse_stream(object, -1, &stream) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_array_record_stream(pyweir_array_of(self), stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

static Py_hash_t array_hash(PyObject *self) {
  Py_hash_t hash = (Py_hash_t)((uintptr_t)self >> 4);
  return hash == -1 ? -2 : hash;
}

/* ---- Creation ---- */

/* _array_empty(shape, dtype, device, pin_memory) */
static PyObject *array_empty(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  if (count != 4)
    return PyErr_Format(PyExc_TypeError, "_array_empty takes 4 arguments (%zd given)", count);
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int ndim, is_pinned = PyObject_IsTrue(args[3]);
  weir_dtype dtype;
  weir_place place;
  weir_stream stream;
  if (is_pinned < 0 || pyweir_parse_sizes("empty", args, 1, shape, &ndim) != 0 ||
      pyweir_parse_dtype(args[1], &dtype) != 0 || pyweir_parse_place(args[2], &place) != 0)
    return NULL;
  for (int i = 0; i < ndim; i++)
    if (shape[i] < 0) {
      PyObject *sizes = tuple_of(shape, ndim);
      if (sizes)
        PyErr_Format(PyExc_RuntimeError, "Trying to create tensor with negative dimension %lld: %R",
                     (long long)shape[i], sizes);
      Py_XDECREF(sizes);
      return NULL;
    }
  if (is_pinned) {
    if (place.kind == WEIR_PLACE_DEVICE)
      return PyErr_Format(PyExc_RuntimeError, "Only dense CPU tensors can be pinned");
    if (pyweir_array_need_host() != 0)
      return NULL;
    place = weir_place_pinned();
  }
  if (pyweir_place_stream(place, &stream) != 0)
    return NULL;
  weir_array made = {0};
  weir_status status;
  PYWEIR_CALL(status, weir_array_empty(place, dtype, ndim, shape, stream, &made));
  return pyweir_array_result(status, &made);
}

/* _set_array_class(array_class, size_class) */
static PyObject *set_array_class(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *arrays, *sizes;
  if (!PyArg_ParseTuple(args, "O!O!:_set_array_class", &PyType_Type, &arrays, &PyType_Type, &sizes))
    return NULL;
  if (!PyType_IsSubtype((PyTypeObject *)arrays, &pyweir_array_type))
    return pyweir->type_error("a class of arrays", arrays);
  array_class = (PyTypeObject *)Py_NewRef(arrays);
  size_class = Py_NewRef(sizes);
  Py_RETURN_NONE;
}

/* _array_result_type(first, second): arrays or numbers. */
static PyObject *result_type(PyObject *module, PyObject *args) {
  (void)module;
  static const weir_dtype defaults[] = {WEIR_BOOL, WEIR_INT64, WEIR_FLOAT32, WEIR_COMPLEX64};
  PyObject *objects[2];
  const weir_array *arrays[2];
  weir_scalar scalars[2];
  int array_count = 0, scalar_count = 0;
  weir_dtype dtype;
  if (!PyArg_ParseTuple(args, "OO:result_type", &objects[0], &objects[1]))
    return NULL;
  for (int i = 0; i < 2; i++) {
    if (PYWEIR_IS_ARRAY(objects[i])) {
      arrays[array_count++] = pyweir_array_of(objects[i]);
      continue;
    }
    int is_scalar = pyweir_parse_scalar(objects[i], &scalars[scalar_count]);
    if (is_scalar < 1)
      return is_scalar ? NULL : pyweir->type_error("an Array or a number", objects[i]);
    scalar_count++;
  }
  if (!array_count)
    return pyweir_dtype_wrap(defaults[scalars[0].kind > scalars[1].kind ? scalars[0].kind : scalars[1].kind]);
  weir_status status = weir_array_result_type(arrays, array_count, scalar_count ? &scalars[0] : NULL, &dtype);
  return pyweir_array_check(status) == 0 ? pyweir_dtype_wrap(dtype) : NULL;
}

/* ---- The type ---- */

static PyMethodDef methods[] = {
    {"size", PYWEIR_FAST_KEYWORDS(size),
     "size($self, dim=None)\n--\n\nReturns the shape, or the size of one dimension."},
    {"stride", PYWEIR_FAST_KEYWORDS(stride),
     "stride($self, dim=None)\n--\n\nReturns the strides in elements, or the stride of one dimension."},
    {"dim", dim, METH_NOARGS, "dim($self)\n--\n\nReturns the number of dimensions."},
    {"numel", numel, METH_NOARGS, "numel($self)\n--\n\nReturns the number of elements."},
    {"nelement", numel, METH_NOARGS, "nelement($self)\n--\n\nReturns the number of elements."},
    {"element_size", element_size, METH_NOARGS, "element_size($self)\n--\n\nReturns the bytes of an element."},
    {"data_ptr", data_ptr, METH_NOARGS, "data_ptr($self)\n--\n\nReturns the address of the first element."},
    {"storage_offset", storage_offset, METH_NOARGS,
     "storage_offset($self)\n--\n\nReturns the position of the first element in the storage, in elements."},
    {"is_contiguous", is_contiguous, METH_NOARGS,
     "is_contiguous($self)\n--\n\nWhether the elements are next to each other in row-major order."},
    {"is_pinned", is_pinned, METH_NOARGS, "is_pinned($self)\n--\n\nWhether it is in pinned host memory."},
    {"get_device", device_index, METH_NOARGS,
     "get_device($self)\n--\n\nReturns the index of the device, or -1 on the host."},
    {"record_stream", record_stream, METH_O,
     "record_stream($self, stream, /)\n--\n\n"
     "Says that a stream uses the memory, so that it is not reused before that stream's current work is done."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"shape", get_shape, NULL, "The sizes of the dimensions, a tuple.", NULL},
    {"dtype", get_dtype, NULL, "The type of the elements.", NULL},
    {"device", get_device, NULL, "The device; Device('cpu') on the host.", NULL},
    {"ndim", get_ndim, NULL, "The number of dimensions.", NULL},
    {"is_sparse", get_is_sparse, NULL, "Whether only some elements are stored: never.", NULL},
    {"is_cuda", get_is_cuda, NULL, "Whether it is on a device.", NULL},
    {"itemsize", get_itemsize, NULL, "The bytes of an element.", NULL},
    {"nbytes", get_nbytes, NULL, "The bytes of all elements.", NULL},
    {"readonly", get_readonly, NULL, "Whether the elements cannot be changed.", NULL},
    {"__cuda_array_interface__", pyweir_array_cuda_interface, NULL, "For other libraries.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static Py_ssize_t array_length(PyObject *self) {
  const weir_array *a = pyweir_array_of(self);
  if (!a->ndim) {
    PyErr_SetString(PyExc_TypeError, "len() of a 0-d tensor");
    return -1;
  }
  return (Py_ssize_t)a->shape[0];
}

PyTypeObject pyweir_array_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._weir._Array",
    .tp_doc = PyDoc_STR("The base class of weir.Array."),
    .tp_basicsize = sizeof(pyweir_array),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = array_dealloc,
    .tp_weaklistoffset = offsetof(pyweir_array, weak),
    .tp_hash = array_hash,
    .tp_richcompare = pyweir_array_compare,
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_as_number = &pyweir_array_numbers,
    .tp_as_mapping = &pyweir_array_mapping,
    .tp_as_buffer = &pyweir_array_buffer,
};

static PyMethodDef functions[] = {
    {"_array_empty", PYWEIR_FAST(array_empty), NULL},
    {"_set_array_class", set_array_class, METH_VARARGS, NULL},
    {"_array_result_type", result_type, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

/* Methods of other files. */
static int add_methods(PyMethodDef *method) {
  for (; method->ml_name; method++) {
    PyObject *descriptor =
        method->ml_flags & METH_STATIC ? PyCFunction_New(method, NULL) : PyDescr_NewMethod(&pyweir_array_type, method);
    int result = descriptor ? PyDict_SetItemString(pyweir_array_type.tp_dict, method->ml_name, descriptor) : -1;
    Py_XDECREF(descriptor);
    if (result != 0)
      return -1;
  }
  return 0;
}

int pyweir_add_array(PyObject *module) {
  pyweir_array_mapping.mp_length = array_length;
  if (PyType_Ready(&pyweir_array_type) != 0 || add_methods(pyweir_array_view_methods) != 0 ||
      add_methods(pyweir_array_operation_methods) != 0 || add_methods(pyweir_array_exchange_methods) != 0)
    return -1;
  PyType_Modified(&pyweir_array_type);
  return PyModule_AddObjectRef(module, "_Array", (PyObject *)&pyweir_array_type) != 0
             ? -1
             : PyModule_AddFunctions(module, functions);
}

/*
 * weir.compute._compute._Storage, the base class of weir.UntypedStorage: memory that arrays share.
 */
#include "array.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct storage_object {
  PyObject_HEAD weir_storage *it;
  PyObject *weak;
} storage_object;

static PyTypeObject storage_type;
static PyTypeObject *storage_class = &storage_type;

/* The object of each storage, as numbers: address to address. An object removes itself, so it is the one that pickle
 * and comparisons see for all arrays of the storage. */
static PyObject *known;

/* The addresses of live storages whose _cdata was asked for. */
static PyObject *named;

static weir_storage *storage_of(PyObject *self) { return ((storage_object *)self)->it; }

static void release(weir_storage *storage) {
  if (weir_storage_place(storage).kind == WEIR_PLACE_HOST) {
    weir_storage_release(storage);
  } else if (!weir_is_in_bad_fork()) {
    PyThreadState *saved = pyweir->begin_call();
    weir_storage_release(storage);
    pyweir->end_call(saved);
  }
}

/* Takes over the reference. */
static PyObject *wrap(weir_storage *storage) {
  PyObject *key = PyLong_FromVoidPtr(storage), *address = NULL, *result = NULL;
  PyObject *found = key ? PyDict_GetItemWithError(known, key) : NULL;
  if (found) {
    result = Py_NewRef((PyObject *)PyLong_AsVoidPtr(found));
  } else if (key && !PyErr_Occurred()) {
    storage_object *self = (storage_object *)storage_class->tp_alloc(storage_class, 0);
    address = self ? PyLong_FromVoidPtr(self) : NULL;
    if (address && PyDict_SetItem(known, key, address) == 0) {
      weir_storage_retain(storage);
      self->it = storage;
      result = (PyObject *)self;
    } else {
      Py_XDECREF(self);
    }
  }
  Py_XDECREF(address);
  Py_XDECREF(key);
  release(storage);
  return result;
}

static void storage_dealloc(PyObject *object) {
  storage_object *self = (storage_object *)object;
  if (self->weak)
    PyObject_ClearWeakRefs(object);
  if (self->it) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *key = PyLong_FromVoidPtr(self->it);
    if (!key || PyDict_DelItem(known, key) != 0)
      PyErr_Clear();
    Py_XDECREF(key);
    PyErr_Restore(type, value, trace);
    release(self->it);
  }
  Py_TYPE(object)->tp_free(object);
}

PYWEIR_NO_ARGUMENTS(data_ptr, PyLong_FromVoidPtr(weir_storage_data(storage_of(self))))
PYWEIR_NO_ARGUMENTS(nbytes, PyLong_FromUnsignedLongLong(weir_storage_bytes(storage_of(self))))
PYWEIR_NO_ARGUMENTS(use_count, PyLong_FromLong(weir_storage_references(storage_of(self))))
PYWEIR_NO_ARGUMENTS(is_pinned, PyBool_FromLong(weir_storage_place(storage_of(self)).kind == WEIR_PLACE_PINNED))

static PyObject *get_device(PyObject *self, void *unused) {
  (void)unused;
  weir_place place = weir_storage_place(storage_of(self));
  return pyweir->device_wrap(place.kind == WEIR_PLACE_DEVICE ? place.device : -1);
}

static PyObject *record_stream(PyObject *self, PyObject *object) {
  weir_stream stream;
  weir_status status;
  if (object == Py_None)
    return pyweir->type_error("a stream", object);
  if (pyweir_ensure_init() != 0 || pyweir->parse_stream(object, -1, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_storage_record_stream(storage_of(self), stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* Whether the last reference frees memory of a device. */
PYWEIR_NO_ARGUMENTS(is_owner,
                    PyBool_FromLong(weir_storage_place(storage_of(self)).kind == WEIR_PLACE_DEVICE &&
                                    weir_storage_data(storage_of(self)) && !weir_storage_is_borrowed(storage_of(self))))

static PyObject *set_owned(PyObject *self, PyObject *object) {
  weir_status status;
  int is_owned = PyObject_IsTrue(object);
  if (is_owned < 0)
    return NULL;
  PYWEIR_CALL(status, weir_storage_set_owned(storage_of(self), is_owned));
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* Other arrays would keep the old address, so only a storage that no array uses can be resized. */
static PyObject *resize(PyObject *self, PyObject *object) {
  size_t bytes;
  weir_stream stream;
  weir_status status;
  weir_storage *storage = storage_of(self);
  if (pyweir->parse_bytes(object, &bytes) != 0 || pyweir_place_stream(weir_storage_place(storage), &stream) != 0)
    return NULL;
  if (weir_storage_references(storage) > 1)
    return PyErr_Format(PyExc_RuntimeError, "Trying to resize storage that is not resizable: %d arrays use it",
                        weir_storage_references(storage) - 1);
  PYWEIR_CALL(status, weir_storage_resize(storage, bytes, stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(self) : NULL;
}

static PyMethodDef methods[] = {
    {"data_ptr", data_ptr, METH_NOARGS, "data_ptr($self)\n--\n\nReturns the address."},
    {"nbytes", nbytes, METH_NOARGS, "nbytes($self)\n--\n\nReturns the number of bytes."},
    {"size", nbytes, METH_NOARGS, "size($self)\n--\n\nReturns the number of bytes."},
    {"_is_owner", is_owner, METH_NOARGS,
     "_is_owner($self)\n--\n\nWhether the last reference frees memory of a device."},
    {"_set_owned", set_owned, METH_O, "_set_owned($self, is_owned, /)\n--\n\nSays whether it does."},
    {"_use_count", use_count, METH_NOARGS, "_use_count($self)\n--\n\nReturns the number of references."},
    {"is_pinned", is_pinned, METH_NOARGS, "is_pinned($self)\n--\n\nWhether it is pinned host memory."},
    {"record_stream", record_stream, METH_O,
     "record_stream($self, stream, /)\n--\n\nSays that a stream uses the memory, as Array.record_stream()."},
    {"resize_", resize, METH_O,
     "resize_($self, nbytes, /)\n--\n\nChanges the size. No array may use the storage. Returns the storage."},
    {NULL, NULL, 0, NULL},
};

/* The finalizer of a named storage. Called on any thread. */
static void forget_name(void *storage) {
  if (!Py_IsInitialized())
    return;
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *address = PyLong_FromVoidPtr(storage);
  if (!address || PySet_Discard(named, address) < 0)
    PyErr_Clear();
  Py_XDECREF(address);
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

static PyObject *get_cdata(PyObject *self, void *unused) {
  (void)unused;
  weir_storage *storage = storage_of(self);
  PyObject *address = PyLong_FromVoidPtr(storage);
  if (!address || PySet_Add(named, address) != 0 ||
      pyweir_array_check(weir_storage_set_finalizer(storage, forget_name, storage)) != 0)
    Py_CLEAR(address);
  return address;
}

static PyGetSetDef attributes[] = {
    {"_cdata", get_cdata, NULL, "The address by which functions of weir._C know the storage.", NULL},
    {"device", get_device, NULL, "The device; Device('cpu') on the host.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject storage_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.compute._compute._Storage",
    .tp_doc = PyDoc_STR("The base class of weir.UntypedStorage."),
    .tp_basicsize = sizeof(storage_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = storage_dealloc,
    .tp_weaklistoffset = offsetof(storage_object, weak),
    .tp_methods = methods,
    .tp_getset = attributes,
};

/* ---- Functions ---- */

static PyObject *storage_at(PyObject *module, PyObject *address) {
  (void)module;
  int is_named = PyLong_Check(address) ? PySet_Contains(named, address) : 0;
  if (is_named <= 0)
    return is_named < 0 ? NULL : PyErr_Format(PyExc_ValueError, "%S is not the _cdata of a storage", address);
  weir_storage *storage = PyLong_AsVoidPtr(address);
  weir_storage_retain(storage);
  return wrap(storage);
}

/* _storage_new(nbytes, device, pin_memory) */
static PyObject *storage_new(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *bytes_object, *device;
  int is_pinned;
  size_t bytes;
  weir_place place;
  weir_stream stream;
  weir_storage *made;
  weir_status status;
  if (!PyArg_ParseTuple(args, "OOp:_storage_new", &bytes_object, &device, &is_pinned) ||
      pyweir->parse_bytes(bytes_object, &bytes) != 0 || pyweir_parse_place(device, &place) != 0)
    return NULL;
  if (is_pinned && place.kind == WEIR_PLACE_HOST) {
    if (pyweir_array_need_host() != 0)
      return NULL;
    place = weir_place_pinned();
  }
  if (pyweir_place_stream(place, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_storage_create(place, bytes, stream, &made));
  return pyweir_array_check(status) == 0 ? wrap(made) : NULL;
}

static PyObject *array_storage(PyObject *module, PyObject *object) {
  (void)module;
  if (!PYWEIR_IS_ARRAY(object))
    return pyweir->type_error("an Array", object);
  weir_storage *storage = pyweir_array_of(object)->storage;
  weir_storage_retain(storage);
  return wrap(storage);
}

/* _array_in_storage(storage, dtype, offset, shape, strides) */
static PyObject *array_in_storage(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *storage, *dtype_object, *shape_object, *stride_object;
  long long offset;
  int64_t shape[WEIR_ARRAY_MAX_DIMS], strides[WEIR_ARRAY_MAX_DIMS];
  int ndim, stride_count;
  weir_dtype dtype;
  weir_array made = {0};
  if (!PyArg_ParseTuple(args, "O!OLOO:_array_in_storage", &storage_type, &storage, &dtype_object, &offset,
                        &shape_object, &stride_object) ||
      pyweir_parse_dtype(dtype_object, &dtype) != 0 ||
      pyweir_parse_sizes("_array_in_storage", &shape_object, 1, shape, &ndim) != 0)
    return NULL;
  stride_count = ndim;
  if (stride_object != Py_None &&
      pyweir_parse_sizes("_array_in_storage", &stride_object, 1, strides, &stride_count) != 0)
    return NULL;
  if (stride_count != ndim)
    return PyErr_Format(PyExc_RuntimeError, "mismatch in length of strides and shape");
  weir_status status = weir_array_in_storage(storage_of(storage), dtype, offset, ndim, shape,
                                             stride_object == Py_None ? NULL : strides, &made);
  return pyweir_array_result(status, &made);
}

/* ---- Other processes ---- */

/* Whether the memory belongs to another library. */
static PyObject *is_foreign(PyObject *module, PyObject *object) {
  (void)module;
  if (!PyObject_TypeCheck(object, &storage_type))
    return pyweir->type_error("a storage", object);
  const weir_storage *storage = storage_of(object);
  return PyBool_FromLong(weir_storage_is_borrowed(storage) && !weir_storage_is_received(storage));
}

/* _storage_send(storage): (device, name, nbytes) */
static PyObject *storage_send(PyObject *module, PyObject *object) {
  (void)module;
  weir_stream stream;
  weir_status status;
  if (!PyObject_TypeCheck(object, &storage_type))
    return pyweir->type_error("a storage", object);
  weir_storage *storage = storage_of(object);
  if (pyweir_place_stream(weir_storage_place(storage), &stream) != 0)
    return NULL;
  weir_ipc_handle *handle = calloc(1, sizeof *handle);
  if (!handle)
    return PyErr_NoMemory();
  handle->size = sizeof *handle;
  PYWEIR_CALL(status, weir_storage_send(storage, stream, NULL, handle));
  PyObject *result = NULL;
  if (pyweir_array_check(status) == 0)
    result = Py_BuildValue("iy#K", stream.device, handle->bytes, (Py_ssize_t)handle->length,
                           (unsigned long long)weir_storage_bytes(storage));
  if (!result && status == WEIR_OK)
    PYWEIR_CALL(status, weir_ipc_cancel(pyweir->allocator(), handle->bytes, handle->length));
  free(handle);
  return result;
}

/* _storage_receive(device, name, nbytes) */
static PyObject *storage_receive(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  Py_buffer name;
  PyObject *bytes_object, *result = NULL;
  size_t bytes;
  weir_stream stream;
  weir_storage *made;
  weir_status status;
  if (!PyArg_ParseTuple(args, "iy*O:_storage_receive", &device, &name, &bytes_object))
    return NULL;
  if (pyweir->parse_bytes(bytes_object, &bytes) == 0 && pyweir_ensure_init() == 0 &&
      pyweir_place_stream(weir_place_device(device), &stream) == 0) {
    PYWEIR_CALL(status, weir_storage_receive(name.buf, (size_t)name.len, bytes, stream, &made));
    result = pyweir_array_check(status) == 0 ? wrap(made) : NULL;
  }
  PyBuffer_Release(&name);
  return result;
}

static PyObject *set_storage_class(PyObject *module, PyObject *object) {
  (void)module;
  if (!PyType_Check(object) || !PyType_IsSubtype((PyTypeObject *)object, &storage_type))
    return pyweir->type_error("a class of storages", object);
  storage_class = (PyTypeObject *)Py_NewRef(object);
  Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_storage_at", storage_at, METH_O, "(address): the storage with this _cdata."},
    {"_storage_new", storage_new, METH_VARARGS, NULL},
    {"_array_storage", array_storage, METH_O, NULL},
    {"_array_in_storage", array_in_storage, METH_VARARGS, NULL},
    {"_storage_is_foreign", is_foreign, METH_O, NULL},
    {"_storage_send", storage_send, METH_O, NULL},
    {"_storage_receive", storage_receive, METH_VARARGS, NULL},
    {"_set_storage_class", set_storage_class, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_storage(PyObject *module) {
  known = PyDict_New();
  named = PySet_New(NULL);
  return !known || !named || pyweir->add_type(module, &storage_type) != 0 ? -1
                                                                          : PyModule_AddFunctions(module, functions);
}

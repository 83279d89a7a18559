/*
 * DLPack: exchanges memory with other libraries without a copy.
 *
 * A capsule holds a tensor with a function that frees it. The consumer states which of two forms it understands: an
 * unversioned one, and one with a version and flags (since version 1.0). The memory of a software device is host memory
 * to other libraries, and is exported as such.
 */
#include "memory.h"
#include "pyweir.h"

#include <stdlib.h>
#include <string.h>

static const char name_plain[] = DLPACK_PLAIN, name_plain_used[] = "used_" DLPACK_PLAIN;
static const char name_versioned[] = DLPACK_VERSIONED, name_versioned_used[] = "used_" DLPACK_VERSIONED;

/* ---- Export ---- */

/* An exported tensor, in either form. */
typedef struct exported {
  union {
    managed_tensor plain;
    versioned_tensor versioned;
  } as;
  int64_t shape, stride;
  pyweir_buffer *buffer; /* a strong reference */
} exported;

/* Called by the owner of the tensor on any thread. After the interpreter has ended, the memory is left to the exit of
 * the process. */
static void release_export(exported *e) {
  if (Py_IsInitialized()) {
    PyGILState_STATE gil = PyGILState_Ensure();
    e->buffer->uses--;
    Py_DECREF(e->buffer);
    PyGILState_Release(gil);
  }
  free(e);
}

static void delete_plain(managed_tensor *t) { release_export(t->context); }
static void delete_versioned(versioned_tensor *t) { release_export(t->context); }

void pyweir_dlpack_destroy_capsule(PyObject *capsule) {
  if (PyCapsule_IsValid(capsule, name_plain)) {
    managed_tensor *t = PyCapsule_GetPointer(capsule, name_plain);
    t->deleter(t);
  } else if (PyCapsule_IsValid(capsule, name_versioned)) {
    versioned_tensor *t = PyCapsule_GetPointer(capsule, name_versioned);
    t->deleter(t);
  }
}

static void device_of(const pyweir_buffer *buffer, int *type, int *number) {
  pyweir_owner owner = (pyweir_owner)pyweir_buffer_root((pyweir_buffer *)buffer)->owner;
  bool is_cuda = pyweir_driver_can(WEIR_DRIVER_NVIDIA);
  *number = 0;
  if (is_cuda && !buffer->is_host) {
    *type = DEVICE_CUDA;
    *number = buffer->stream.device;
  } else
    *type = is_cuda && owner == PYWEIR_OWNS_HOST ? DEVICE_CUDA_HOST : DEVICE_CPU;
}

PyObject *pyweir_buffer_dlpack_device(PyObject *self, PyObject *unused) {
  (void)unused;
  int type, number;
  device_of((pyweir_buffer *)self, &type, &number);
  return Py_BuildValue("ii", type, number);
}

/* Makes the consumer's stream wait for pending work, and records the stream as a use of the memory. Without the GIL. */
static weir_status order_before_stream(pyweir_buffer *buffer, void *root, bool is_ours, weir_cu_stream raw) {
  weir_stream current, consumer;
  weir_status status = weir_stream_get_current(buffer->stream.device, &current);
  if (status == WEIR_OK)
    status = weir_stream_external(buffer->stream.device, raw, &consumer);
  weir_cu_stream current_raw = NULL;
  if (status == WEIR_OK)
    status = pyweir_raw_stream(current, &current_raw);
  if (status == WEIR_OK && current_raw != raw)
    status = weir_stream_wait_stream(consumer, current);
  if (status == WEIR_OK && is_ours)
    status = weir_allocator_record_stream(pyweir_allocator(), root, raw);
  return status;
}

int pyweir_dlpack_parse_stream(PyObject *stream, int type, bool *is_ordered, weir_cu_stream *raw) {
  long long number = -2;
  if (stream != Py_None) {
    if (!PyLong_Check(stream)) {
      pyweir_type_error("a stream as None or an int", stream);
      return -1;
    }
    number = PyLong_AsLongLong(stream);
    if (number == -1 && PyErr_Occurred())
      return -1;
  }
  *is_ordered = number != -1; /* -1: the consumer synchronizes */
  if (number == -1)
    return 0;
  if (type != DEVICE_CUDA) {
    if (stream == Py_None)
      return 0;
    PyErr_SetString(PyExc_BufferError, "stream must be None or -1 for memory that is not on a CUDA device");
    return -1;
  }
  if (number == 0 || number < -2) {
    PyErr_SetString(PyExc_BufferError,
                    "stream must be -1, 1 (legacy default stream), 2 (per-thread default stream) or an address");
    return -1;
  }
  /* None means the legacy default stream, which DLPack encodes as 1 and the driver as NULL. */
  *raw = number == 1 || number == -2 ? NULL : (weir_cu_stream)(uintptr_t)number;
  return 0;
}

/* Orders pending work before the consumer's: on its stream on a CUDA device, or else before this returns. */
static int synchronize_with(pyweir_buffer *buffer, int type, PyObject *stream) {
  bool is_ordered;
  weir_cu_stream raw = NULL;
  if (pyweir_dlpack_parse_stream(stream, type, &is_ordered, &raw) != 0)
    return -1;
  if (!is_ordered)
    return 0;
  if (type != DEVICE_CUDA)
    return pyweir_buffer_wait(buffer);
  pyweir_buffer *root = pyweir_buffer_root(buffer);
  weir_status status;
  PYWEIR_CALL(status,
              order_before_stream(buffer, root->pointer, root->owner == PYWEIR_OWNS_DEVICE && root->pointer, raw));
  return pyweir_check(status);
}

int pyweir_dlpack_wants_version(PyObject *max_version) {
  if (max_version == Py_None)
    return 0;
  long major;
  if (!PyTuple_Check(max_version) || PyTuple_GET_SIZE(max_version) != 2) {
    PyErr_SetString(PyExc_TypeError, "max_version must be None or a tuple (major, minor)");
    return -1;
  }
  major = PyLong_AsLong(PyTuple_GET_ITEM(max_version, 0));
  if (major == -1 && PyErr_Occurred())
    return -1;
  return major >= 1;
}

int pyweir_dlpack_check_device(int type, int number, PyObject *requested) {
  int requested_type, requested_number;
  if (requested == Py_None)
    return 0;
  if (!PyTuple_Check(requested) || !PyArg_ParseTuple(requested, "ii", &requested_type, &requested_number)) {
    PyErr_SetString(PyExc_TypeError, "dl_device must be None or a tuple (type, index)");
    return -1;
  }
  if (requested_type == type && requested_number == number)
    return 0;
  PyErr_Format(PyExc_BufferError, "the memory is on device (%d, %d); copying to (%d, %d) is not supported", type,
               number, requested_type, requested_number);
  return -1;
}

static PyObject *export(pyweir_buffer *buffer, int type, int number, bool versioned, bool is_copied) {
  exported *e = calloc(1, sizeof *e);
  if (!e)
    return PyErr_NoMemory();
  e->shape = (int64_t)buffer->bytes;
  e->stride = 1;
  e->buffer = buffer;
  tensor t = {.data = buffer->pointer,
              .device_type = type,
              .device_id = number,
              .dimensions = 1,
              .type_code = TYPE_UNSIGNED,
              .type_bits = 8,
              .type_lanes = 1,
              .shape = &e->shape,
              .strides = &e->stride};
  if (versioned)
    e->as.versioned = (versioned_tensor){
        .major = 1,
        .minor = 0,
        .context = e,
        .deleter = delete_versioned,
        .flags = (buffer->is_readonly ? FLAG_READ_ONLY : 0) | (is_copied ? FLAG_IS_COPIED : 0),
        .of = t,
    };
  else
    e->as.plain = (managed_tensor){.of = t, .context = e, .deleter = delete_plain};
  PyObject *capsule = PyCapsule_New(&e->as, versioned ? name_versioned : name_plain, pyweir_dlpack_destroy_capsule);
  if (!capsule) {
    free(e);
    return NULL;
  }
  Py_INCREF(buffer);
  buffer->uses++;
  return capsule;
}

static pyweir_buffer *copy_of(pyweir_buffer *buffer) {
  weir_stream stream;
  if (buffer->is_host) {
    PyErr_SetString(PyExc_BufferError, "copy=True is not supported for host memory; use copy_()");
    return NULL;
  }
  if (pyweir_check(weir_stream_get_current(buffer->stream.device, &stream)) != 0)
    return NULL;
  pyweir_buffer *copy = pyweir_buffer_allocate(pyweir_allocator(), stream, buffer->bytes);
  if (copy && copy->bytes && pyweir_buffer_copy(copy, buffer, stream) != 0)
    Py_CLEAR(copy);
  return copy;
}

PyObject *pyweir_buffer_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"stream", "max_version", "dl_device", "copy"};
  PyObject *values[] = {Py_None, Py_None, Py_None, Py_None};
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  int type, number;
  if (pyweir_parse_arguments("__dlpack__", names, 4, 1, args, count, keywords, values) != 0 ||
      pyweir_buffer_check(buffer) != 0)
    return NULL;
  device_of(buffer, &type, &number);
  int versioned = pyweir_dlpack_wants_version(values[1]), copy = values[3] == Py_None ? 0 : PyObject_IsTrue(values[3]);
  if (versioned < 0 || copy < 0 || pyweir_dlpack_check_device(type, number, values[2]) != 0)
    return NULL;
  if (buffer->is_readonly && !versioned && !copy) {
    PyErr_SetString(PyExc_BufferError,
                    "read-only memory needs max_version=(1, 0): an unversioned tensor has no read-only flag");
    return NULL;
  }
  Py_INCREF(buffer);
  pyweir_buffer *handed = copy ? copy_of(buffer) : buffer;
  if (copy)
    Py_DECREF(buffer);
  if (!handed)
    return NULL;
  PyObject *capsule =
      synchronize_with(handed, type, values[0]) == 0 ? export(handed, type, number, versioned, copy) : NULL;
  Py_DECREF(handed);
  return capsule;
}

/* ---- Import ---- */

/* Imported tensors are released by their own deleters. */
static void release_plain(void *context) {
  managed_tensor *t = context;
  if (t->deleter)
    t->deleter(t);
}

static void release_versioned(void *context) {
  versioned_tensor *t = context;
  if (t->deleter)
    t->deleter(t);
}

/* The size in bytes of a contiguous tensor. */
static int measure(const tensor *t, size_t *bytes) {
  size_t elements = 1, expected = 1;
  for (int i = t->dimensions - 1; i >= 0; i--) {
    if (t->shape[i] < 0 || __builtin_mul_overflow(elements, (size_t)t->shape[i], &elements)) {
      PyErr_SetString(PyExc_BufferError, "the shape of the tensor is invalid");
      return -1;
    }
  }
  for (int i = t->dimensions - 1; t->strides && elements && i >= 0; i--) {
    if (t->shape[i] != 1 && t->strides[i] != (int64_t)expected) {
      PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous; copy it first");
      return -1;
    }
    expected *= (size_t)t->shape[i];
  }
  size_t bits = (size_t)t->type_bits * t->type_lanes;
  if (__builtin_mul_overflow(elements, bits, bytes) || *bytes > SIZE_MAX - 7) {
    PyErr_SetString(PyExc_BufferError, "the shape of the tensor is invalid");
    return -1;
  }
  *bytes = (*bytes + 7) / 8;
  return 0;
}

static int device_of_tensor(const tensor *t, bool *is_host) {
  bool is_cuda = pyweir_driver_can(WEIR_DRIVER_NVIDIA);
  *is_host = t->device_type == DEVICE_CPU || t->device_type == DEVICE_CUDA_HOST;
  if (*is_host || (is_cuda && t->device_type == DEVICE_CUDA))
    return 0;
  PyErr_Format(PyExc_BufferError, "the tensor is on a device of type %d, which is not supported here",
               (int)t->device_type);
  return -1;
}

const tensor *pyweir_dlpack_tensor(PyObject *capsule, bool *is_readonly) {
  bool versioned = PyCapsule_IsValid(capsule, name_versioned);
  if (!versioned && !PyCapsule_IsValid(capsule, name_plain)) {
    PyErr_SetString(PyExc_BufferError,
                    PyCapsule_IsValid(capsule, name_plain_used) || PyCapsule_IsValid(capsule, name_versioned_used)
                        ? "the capsule was already consumed"
                        : "the capsule is not a DLPack capsule");
    return NULL;
  }
  void *managed = PyCapsule_GetPointer(capsule, versioned ? name_versioned : name_plain);
  const versioned_tensor *v = managed;
  if (versioned && v->major > 1) {
    PyErr_Format(PyExc_BufferError, "the tensor has DLPack version %u.%u; only versions up to 1.x are supported",
                 v->major, v->minor);
    return NULL;
  }
  *is_readonly = versioned && (v->flags & FLAG_READ_ONLY);
  return versioned ? &v->of : &((const managed_tensor *)managed)->of;
}

int pyweir_dlpack_consume(PyObject *capsule, void **managed, bool *is_versioned) {
  *is_versioned = PyCapsule_IsValid(capsule, name_versioned);
  *managed = PyCapsule_GetPointer(capsule, *is_versioned ? name_versioned : name_plain);
  return *managed ? PyCapsule_SetName(capsule, *is_versioned ? name_versioned_used : name_plain_used) : -1;
}

void pyweir_dlpack_release(void *managed, bool is_versioned) {
  if (is_versioned)
    release_versioned(managed);
  else
    release_plain(managed);
}

/* Imports a capsule. The caller keeps the capsule, which loses its tensor on success. */
static PyObject *import_capsule(PyObject *capsule) {
  bool is_readonly, is_host, is_versioned;
  const tensor *t = pyweir_dlpack_tensor(capsule, &is_readonly);
  size_t bytes;
  weir_stream stream = {0};
  if (!t || device_of_tensor(t, &is_host) != 0 || measure(t, &bytes) != 0)
    return NULL;
  if (!is_host && pyweir_check(weir_stream_get_current(t->device_id, &stream)) != 0)
    return NULL;
  void *pointer = t->data ? (char *)t->data + t->byte_offset : NULL, *managed;
  pyweir_buffer *buffer = pyweir_buffer_new(bytes ? pointer : NULL, bytes, stream);
  if (!buffer || pyweir_dlpack_consume(capsule, &managed, &is_versioned) != 0) {
    Py_XDECREF(buffer);
    return NULL;
  }
  buffer->owner = PYWEIR_OWNS_FOREIGN;
  buffer->is_host = is_host;
  buffer->is_readonly = is_readonly;
  buffer->of.foreign.release = is_versioned ? release_versioned : release_plain;
  buffer->of.foreign.context = managed;
  return (PyObject *)buffer;
}

/* The stream that the producer is to synchronize with: the current one on its device. A new reference. */
static PyObject *consumer_stream(PyObject *producer) {
  PyObject *device = PyObject_CallMethod(producer, "__dlpack_device__", NULL);
  int type, number;
  weir_stream stream;
  weir_cu_stream raw = NULL;
  if (!device)
    return NULL;
  int parsed = PyTuple_Check(device) && PyArg_ParseTuple(device, "ii", &type, &number);
  if (!parsed && !PyErr_Occurred())
    PyErr_SetString(PyExc_TypeError, "__dlpack_device__() did not return a tuple");
  Py_DECREF(device);
  if (!parsed)
    return NULL;
  if (type != DEVICE_CUDA || !pyweir_driver_can(WEIR_DRIVER_NVIDIA))
    Py_RETURN_NONE;
  weir_status status;
  PYWEIR_CALL(status, pyweir_current_stream(number, &stream, &raw));
  if (pyweir_check(status) != 0)
    return NULL;
  return raw ? PyLong_FromVoidPtr(raw) : PyLong_FromLong(1);
}

/* Older producers do not have max_version. */
static PyObject *export_from_producer(PyObject *producer) {
  PyObject *stream = consumer_stream(producer);
  if (!stream)
    return NULL;
  PyObject *method = PyObject_GetAttrString(producer, "__dlpack__");
  PyObject *empty = PyTuple_New(0), *capsule = NULL;
  PyObject *keywords = stream == Py_None ? Py_BuildValue("{s(ii)}", "max_version", 1, 0)
                                         : Py_BuildValue("{sOs(ii)}", "stream", stream, "max_version", 1, 0);
  if (method && empty && keywords) {
    capsule = PyObject_Call(method, empty, keywords);
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
      PyErr_Clear();
      if (PyDict_DelItemString(keywords, "max_version") == 0)
        capsule = PyObject_Call(method, empty, keywords);
    }
  }
  Py_XDECREF(keywords);
  Py_XDECREF(empty);
  Py_XDECREF(method);
  Py_DECREF(stream);
  return capsule;
}

PyObject *pyweir_dlpack_capsule(PyObject *object) {
  if (PyCapsule_CheckExact(object))
    return Py_NewRef(object);
  if (!PyObject_HasAttrString(object, "__dlpack__"))
    return pyweir_type_error("a capsule or an object with __dlpack__", object);
  PyObject *capsule = export_from_producer(object);
  if (capsule && !PyCapsule_CheckExact(capsule)) {
    PyErr_SetString(PyExc_TypeError, "__dlpack__() did not return a capsule");
    Py_CLEAR(capsule);
  }
  return capsule;
}

static PyObject *from_dlpack(PyObject *module, PyObject *object) {
  (void)module;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PyObject *capsule = pyweir_dlpack_capsule(object);
  PyObject *buffer = capsule ? import_capsule(capsule) : NULL;
  Py_XDECREF(capsule);
  return buffer;
}

static PyMethodDef functions[] = {
    {"from_dlpack", from_dlpack, METH_O,
     "from_dlpack(object, /)\n--\n\n"
     "Returns a Buffer of the memory of another library's array, or of a DLPack capsule. The memory is released when\n"
     "the Buffer is destroyed."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_dlpack(PyObject *module) { return PyModule_AddFunctions(module, functions); }

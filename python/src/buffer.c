/*
 * Buffers: objects that own memory, and free it when they are destroyed.
 *
 * Creating and destroying one is the hot path of the package. Buffers have no dict and no cycle collection, their
 * constructor takes no argument tuple, and destroyed objects are reused.
 */
#include "memory.h"

#include <stddef.h>
#include <string.h>

/* ---- Creating and freeing ---- */

/* Destroyed objects, to be reused; guarded by the GIL. */
enum { SPARE_BUFFERS = 128 };
static pyweir_buffer *spare[SPARE_BUFFERS];
static int spare_count;

pyweir_buffer *pyweir_buffer_new(void *pointer, size_t bytes, weir_stream stream) {
  pyweir_buffer *buffer;
  if (spare_count > 0) {
    buffer = spare[--spare_count];
    (void)PyObject_Init((PyObject *)buffer, &pyweir_buffer_type);
  } else {
    buffer = PyObject_New(pyweir_buffer, &pyweir_buffer_type);
    if (!buffer)
      return NULL;
  }
  buffer->pointer = pointer;
  buffer->bytes = bytes;
  buffer->stream = stream;
  buffer->owner = PYWEIR_OWNS_NOTHING;
  buffer->is_host = false;
  buffer->is_readonly = false;
  buffer->uses = 0;
  buffer->of.foreign.release = NULL;
  buffer->of.foreign.context = NULL;
  buffer->weak = NULL;
  return buffer;
}

/* Without the GIL. */
static weir_status allocate(weir_allocator *allocator, weir_stream stream, size_t bytes, void **pointer) {
  weir_cu_stream raw;
  weir_status status = pyweir_raw_stream(stream, &raw);
  return status == WEIR_OK ? weir_allocator_alloc(allocator, stream.device, bytes, raw, pointer) : status;
}

static weir_status allocate_here(weir_allocator *allocator, weir_stream *stream, size_t bytes, void **pointer) {
  weir_cu_stream raw;
  weir_status status = pyweir_current_stream(-1, stream, &raw);
  return status == WEIR_OK ? weir_allocator_alloc(allocator, stream->device, bytes, raw, pointer) : status;
}

static pyweir_buffer *owning_buffer(weir_allocator *allocator, void *pointer, size_t bytes, weir_stream stream) {
  pyweir_buffer *buffer = pyweir_buffer_new(pointer, bytes, stream);
  if (buffer) {
    buffer->owner = PYWEIR_OWNS_DEVICE;
  } else {
    weir_status status;
    PYWEIR_CALL(status, weir_allocator_free(allocator, pointer));
    (void)status; /* the exception that is already set takes precedence */
  }
  return buffer;
}

pyweir_buffer *pyweir_buffer_allocate(weir_allocator *allocator, weir_stream stream, size_t bytes) {
  void *pointer = NULL;
  weir_status status;
  PYWEIR_CALL(status, allocate(allocator, stream, bytes, &pointer));
  return pyweir_check(status) == 0 ? owning_buffer(allocator, pointer, bytes, stream) : NULL;
}

/* Frees the memory that the buffer owns. Afterwards it owns nothing and has no memory. */
static weir_status free_memory(pyweir_buffer *buffer) {
  weir_status status = WEIR_OK;
  void *pointer = buffer->pointer;
  pyweir_owner owner = (pyweir_owner)buffer->owner;
  buffer->pointer = NULL;
  buffer->owner = PYWEIR_OWNS_NOTHING;
  switch (owner) {
  case PYWEIR_OWNS_NOTHING:
    break;
  case PYWEIR_OWNS_DEVICE:
    /* In a forked child the memory belongs to the parent, and the locks are in their state at the fork. */
    if (!weir_is_in_bad_fork())
      PYWEIR_CALL(status, weir_allocator_free(pyweir_allocator(), pointer));
    break;
  case PYWEIR_OWNS_HOST:
    if (!weir_is_in_bad_fork())
      PYWEIR_CALL(status, pyweir_host_free(pointer));
    break;
  case PYWEIR_OWNS_VIEW:
    buffer->of.base->uses--;
    Py_DECREF(buffer->of.base);
    break;
  case PYWEIR_OWNS_SHARED:
  case PYWEIR_OWNS_FOREIGN:
    buffer->of.foreign.release(buffer->of.foreign.context);
    break;
  }
  return status;
}

static void buffer_dealloc(PyObject *self) {
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (buffer->weak)
    PyObject_ClearWeakRefs(self);
  if (buffer->owner != PYWEIR_OWNS_NOTHING)
    pyweir_write_unraisable(free_memory(buffer));
  if (spare_count < SPARE_BUFFERS)
    spare[spare_count++] = buffer;
  else
    PyObject_Free(buffer);
}

int pyweir_buffer_check(pyweir_buffer *buffer) {
  if (buffer->pointer || !buffer->bytes)
    return 0;
  PyErr_SetString(PyExc_ValueError, "the buffer was freed");
  return -1;
}

int pyweir_buffer_memory(PyObject *object, pyweir_memory *memory) {
  if (!PYWEIR_IS_BUFFER(object))
    return 0;
  pyweir_buffer *buffer = (pyweir_buffer *)object;
  *memory = (pyweir_memory){buffer->pointer, buffer->bytes, buffer->is_host ? -1 : buffer->stream.device,
                            buffer->is_readonly};
  return pyweir_buffer_check(buffer) == 0 ? 1 : -1;
}

static PyObject *buffer_with(PyObject *bytes_object, PyObject *device_object, PyObject *stream_object) {
  size_t bytes;
  int device = -1;
  weir_stream stream;
  weir_allocator *allocator = pyweir_need_allocator();
  if (!allocator || pyweir_parse_bytes(bytes_object, &bytes) != 0)
    return NULL;
  if (device_object != Py_None && pyweir_parse_device(device_object, &device) != 0)
    return NULL;
  if (pyweir_parse_stream(stream_object, device, &stream) != 0)
    return NULL;
  return (PyObject *)pyweir_buffer_allocate(allocator, stream, bytes);
}

int pyweir_parse_arguments(const char *function, const char *const *names, int name_count, int positional,
                           PyObject *const *args, Py_ssize_t count, PyObject *keywords, PyObject **values) {
  if (count > positional) {
    PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)", function, positional,
                 count);
    return -1;
  }
  for (Py_ssize_t i = 0; i < count; i++)
    values[i] = args[i];
  for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); i++) {
    PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
    int found = -1;
    for (int n = 0; n < name_count && found < 0; n++)
      if (PyUnicode_CompareWithASCIIString(keyword, names[n]) == 0)
        found = n;
    if (found < 0 || found < count) {
      PyErr_Format(PyExc_TypeError,
                   found < 0 ? "%s() got an unexpected argument '%U'" : "%s() got multiple values for argument '%U'",
                   function, keyword);
      return -1;
    }
    values[found] = args[count + i];
  }
  return 0;
}

static PyObject *allocate_buffer(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  (void)module;
  if (count == 1 && !keywords && pyweir_started && PyLong_CheckExact(args[0])) {
    size_t bytes = PyLong_AsSize_t(args[0]);
    if (bytes != (size_t)-1) {
      weir_allocator *allocator = pyweir_allocator();
      weir_stream stream;
      void *pointer = NULL;
      weir_status status;
      PYWEIR_CALL(status, allocate_here(allocator, &stream, bytes, &pointer));
      return pyweir_check(status) == 0 ? (PyObject *)owning_buffer(allocator, pointer, bytes, stream) : NULL;
    }
    PyErr_Clear(); /* the error below is clearer */
  }
  static const char *const names[] = {"nbytes", "device", "stream"};
  PyObject *values[] = {NULL, Py_None, Py_None};
  if (pyweir_parse_arguments("buffer", names, 3, 1, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0]) {
    PyErr_SetString(PyExc_TypeError, "buffer() missing required argument 'nbytes'");
    return NULL;
  }
  return buffer_with(values[0], values[1], values[2]);
}

/* Wraps memory that is owned elsewhere. */
static PyObject *from_pointer(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *address, *device_object, *bytes_object;
  int device;
  size_t bytes;
  weir_stream stream;
  if (!PyArg_ParseTuple(args, "O!OO:_buffer_from_data_pointer", &PyLong_Type, &address, &device_object,
                        &bytes_object) ||
      pyweir_need_device(device_object, &device) != 0 || pyweir_parse_bytes(bytes_object, &bytes) != 0 ||
      pyweir_parse_stream(Py_None, device, &stream) != 0)
    return NULL;
  void *pointer = PyLong_AsVoidPtr(address);
  if (!pointer && PyErr_Occurred())
    return NULL;
  return (PyObject *)pyweir_buffer_new(pointer, bytes, stream);
}

/* ---- Attributes ---- */

PYWEIR_GETTER(get_pointer, PyLong_FromVoidPtr(((pyweir_buffer *)self)->pointer))
PYWEIR_NO_ARGUMENTS(data_ptr, get_pointer(self, NULL))
PYWEIR_GETTER(get_bytes, PyLong_FromSize_t(((pyweir_buffer *)self)->bytes))

static PyObject *get_device(PyObject *self, void *unused) {
  (void)unused;
  const pyweir_buffer *buffer = (pyweir_buffer *)self;
  return PyLong_FromLong(buffer->is_host ? -1 : buffer->stream.device);
}

static PyObject *get_stream(PyObject *self, void *unused) {
  (void)unused;
  const pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (buffer->is_host)
    Py_RETURN_NONE;
  return pyweir_stream_wrap(buffer->stream);
}

PYWEIR_GETTER(get_is_host, PyBool_FromLong(((pyweir_buffer *)self)->is_host))
PYWEIR_GETTER(get_is_pinned, PyBool_FromLong(pyweir_buffer_root((pyweir_buffer *)self)->owner == PYWEIR_OWNS_HOST))
PYWEIR_GETTER(get_readonly, PyBool_FromLong(((pyweir_buffer *)self)->is_readonly))

static PyObject *get_owns(PyObject *self, void *unused) {
  (void)unused;
  pyweir_owner owner = (pyweir_owner)((pyweir_buffer *)self)->owner;
  return PyBool_FromLong(owner == PYWEIR_OWNS_DEVICE || owner == PYWEIR_OWNS_HOST);
}

/* Other libraries would take the address for one on a CUDA device, so memory of a software device is not exported. */
static PyObject *get_cuda_array_interface(PyObject *self, void *unused) {
  (void)unused;
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  weir_cu_stream raw = NULL;
  weir_stream stream;
  if (buffer->is_host || !pyweir_driver_can(WEIR_DRIVER_NVIDIA)) {
    PyErr_Format(PyExc_AttributeError, "__cuda_array_interface__ needs memory of a CUDA device, not of %s",
                 buffer->is_host ? "the host" : "a software device");
    return NULL;
  }
  if (pyweir_buffer_check(buffer) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, pyweir_current_stream(buffer->stream.device, &stream, &raw));
  if (pyweir_check(status) != 0)
    return NULL;
  /* The protocol encodes the legacy default stream as 1, since 0 would be ambiguous. */
  unsigned long long number = raw ? (unsigned long long)(uintptr_t)raw : 1;
  return Py_BuildValue("{s(n)sss(KO)sOsKsi}", "shape", (Py_ssize_t)buffer->bytes, "typestr", "|u1", "data",
                       (unsigned long long)(uintptr_t)buffer->pointer, buffer->is_readonly ? Py_True : Py_False,
                       "strides", Py_None, "stream", number, "version", 3);
}

static PyObject *buffer_repr(PyObject *self) {
  const pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (!buffer->pointer && buffer->bytes)
    return PyUnicode_FromFormat("<weir.Buffer of %zu bytes, freed>", buffer->bytes);
  if (buffer->is_host)
    return PyUnicode_FromFormat("<weir.Buffer of %zu bytes at %p on the host>", buffer->bytes, buffer->pointer);
  return PyUnicode_FromFormat("<weir.Buffer of %zu bytes at %p on device %d>", buffer->bytes, buffer->pointer,
                              buffer->stream.device);
}

static Py_ssize_t buffer_length(PyObject *self) { return (Py_ssize_t)((pyweir_buffer *)self)->bytes; }

/* ---- Views ---- */

static PyObject *view_of(pyweir_buffer *buffer, size_t offset, size_t bytes) {
  pyweir_buffer *root = pyweir_buffer_root(buffer);
  pyweir_buffer *view =
      pyweir_buffer_new(buffer->pointer ? (char *)buffer->pointer + offset : NULL, bytes, buffer->stream);
  if (!view)
    return NULL;
  view->is_host = buffer->is_host;
  view->is_readonly = buffer->is_readonly;
  view->owner = PYWEIR_OWNS_VIEW;
  view->of.base = root;
  Py_INCREF(root);
  root->uses++;
  return (PyObject *)view;
}

static PyObject *buffer_subscript(PyObject *self, PyObject *key) {
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (!PySlice_Check(key)) {
    PyErr_Format(PyExc_TypeError, "a Buffer is indexed by a slice such as [512:1024], got %.100s",
                 Py_TYPE(key)->tp_name);
    return NULL;
  }
  Py_ssize_t start, stop, step;
  if (PySlice_Unpack(key, &start, &stop, &step) != 0 || pyweir_buffer_check(buffer) != 0)
    return NULL;
  if (step != 1) {
    PyErr_SetString(PyExc_ValueError, "a slice of a Buffer must be contiguous (step 1)");
    return NULL;
  }
  Py_ssize_t length = PySlice_AdjustIndices((Py_ssize_t)buffer->bytes, &start, &stop, step);
  return view_of(buffer, (size_t)start, (size_t)length);
}

/* ---- Operations ---- */

static int check_writable(const pyweir_buffer *buffer) {
  if (!buffer->is_readonly)
    return 0;
  PyErr_SetString(PyExc_ValueError, "the buffer is read-only");
  return -1;
}

/* The current stream of a buffer's device; for host memory, of the current device. */
static int stream_for(const pyweir_buffer *buffer, weir_stream *stream) {
  return pyweir_check(weir_stream_get_current(buffer->is_host ? -1 : buffer->stream.device, stream));
}

static PyObject *record_stream(PyObject *self, PyObject *object) {
  pyweir_buffer *buffer = (pyweir_buffer *)self, *root = pyweir_buffer_root(buffer);
  weir_stream stream;
  weir_cu_stream raw;
  weir_status status = WEIR_OK;
  if (object == Py_None) {
    PyErr_SetString(PyExc_TypeError, "record_stream() needs a stream, got None");
    return NULL;
  }
  if (pyweir_buffer_check(buffer) != 0 || pyweir_parse_stream(object, -1, &stream) != 0)
    return NULL;
  if (root->owner == PYWEIR_OWNS_HOST) {
    PYWEIR_CALL(status, pyweir_host_record(root->pointer, stream));
  } else if (root->owner == PYWEIR_OWNS_DEVICE && root->pointer) {
    PYWEIR_CALL(status, pyweir_raw_stream(stream, &raw));
    if (status == WEIR_OK)
      PYWEIR_CALL(status, weir_allocator_record_stream(pyweir_allocator(), root->pointer, raw));
  } else if (root->owner == PYWEIR_OWNS_SHARED && pyweir_shared_record(root, stream) != 0)
    return NULL;
  return pyweir_none(status);
}

static weir_status fill(void *pointer, uint32_t value, size_t bytes, int width, weir_stream stream) {
  return width == 4 ? weir_fill32_async(pointer, value, bytes / 4, stream)
                    : weir_fill_async(pointer, (uint8_t)value, bytes, stream);
}

static void fill_host(void *pointer, uint32_t value, size_t bytes, int width) {
  if (width == 1)
    memset(pointer, (int)value, bytes);
  else
    for (size_t i = 0; i < bytes / 4; i++)
      memcpy((char *)pointer + 4 * i, &value, 4);
}

static PyObject *fill_with(pyweir_buffer *buffer, unsigned long value, int width) {
  weir_stream stream;
  weir_status status = WEIR_OK;
  if (pyweir_buffer_check(buffer) != 0 || check_writable(buffer) != 0)
    return NULL;
  if (buffer->bytes && buffer->is_host) {
    Py_BEGIN_ALLOW_THREADS;
    fill_host(buffer->pointer, (uint32_t)value, buffer->bytes, width);
    Py_END_ALLOW_THREADS;
  } else if (buffer->bytes) {
    if (stream_for(buffer, &stream) != 0)
      return NULL;
    PYWEIR_CALL(status, fill(buffer->pointer, (uint32_t)value, buffer->bytes, width, stream));
  }
  if (pyweir_check(status) != 0)
    return NULL;
  Py_INCREF(buffer);
  return (PyObject *)buffer;
}

static PyObject *buffer_fill(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"value", "width"};
  PyObject *values[] = {NULL, NULL};
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (pyweir_parse_arguments("fill_", names, 2, 1, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0]) {
    PyErr_SetString(PyExc_TypeError, "fill_() missing required argument 'value'");
    return NULL;
  }
  long width = values[1] ? PyLong_AsLong(values[1]) : 1;
  if (width == -1 && PyErr_Occurred())
    return NULL;
  if ((width != 1 && width != 4) || buffer->bytes % (size_t)width != 0) {
    PyErr_SetString(PyExc_ValueError, "width must be 1, or 4 if the size of the buffer is a multiple of 4");
    return NULL;
  }
  PyObject *number = PyNumber_Index(values[0]);
  if (!number)
    return NULL;
  int overflow;
  long value = PyLong_AsLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  long most = width == 4 ? 0xffffffffL : 0xff;
  if (overflow || value < 0 || value > most) {
    PyErr_Format(PyExc_ValueError, "value must be between 0 and %ld", most);
    return NULL;
  }
  return fill_with(buffer, (unsigned long)value, (int)width);
}

PYWEIR_NO_ARGUMENTS(buffer_zero, fill_with((pyweir_buffer *)self, 0, 1))

/* Copies between two devices. The streams of both wait for each other. Called without the GIL. */
static weir_status copy_between(const pyweir_buffer *to, const pyweir_buffer *from, size_t bytes, weir_stream stream) {
  weir_stream other;
  weir_status status = weir_stream_get_current(from->stream.device, &other);
  if (status == WEIR_OK)
    status = weir_stream_wait_stream(stream, other);
  if (status == WEIR_OK)
    status = weir_copy_peer_async(to->pointer, to->stream.device, from->pointer, from->stream.device, bytes, stream);
  return status == WEIR_OK ? weir_stream_wait_stream(other, stream) : status;
}

int pyweir_buffer_copy(pyweir_buffer *to, pyweir_buffer *from, weir_stream stream) {
  weir_status status;
  if (!to->is_host && !from->is_host && to->stream.device != from->stream.device)
    PYWEIR_CALL(status, copy_between(to, from, to->bytes, stream));
  else
    PYWEIR_CALL(status, weir_copy_async(to->pointer, from->pointer, to->bytes, stream));
  return pyweir_check(status);
}

/* Pinned memory is not reused until the stream has finished with it. For other host memory, the caller has to wait. */
static int retain_host(pyweir_buffer *buffer, weir_stream stream, bool non_blocking, bool *wait) {
  pyweir_buffer *root = pyweir_buffer_root(buffer);
  if (!buffer->is_host)
    return 0;
  if (!non_blocking || root->owner != PYWEIR_OWNS_HOST) {
    *wait = true;
    return 0;
  }
  weir_status status;
  PYWEIR_CALL(status, pyweir_host_record(root->pointer, stream));
  return pyweir_check(status);
}

static int copy_buffer(pyweir_buffer *to, pyweir_buffer *from, bool non_blocking) {
  weir_stream stream;
  bool wait = false;
  if (pyweir_buffer_check(from) != 0)
    return -1;
  if (to->bytes != from->bytes) {
    PyErr_Format(PyExc_ValueError, "the source has %zu bytes, but the buffer has %zu", from->bytes, to->bytes);
    return -1;
  }
  if (!to->bytes)
    return 0;
  if (to->is_host && from->is_host) {
    Py_BEGIN_ALLOW_THREADS;
    memmove(to->pointer, from->pointer, to->bytes);
    Py_END_ALLOW_THREADS;
    return 0;
  }
  if (stream_for(to->is_host ? from : to, &stream) != 0 || pyweir_buffer_copy(to, from, stream) != 0 ||
      retain_host(to, stream, non_blocking, &wait) != 0 || retain_host(from, stream, non_blocking, &wait) != 0)
    return -1;
  if (!wait)
    return 0;
  weir_status status;
  PYWEIR_CALL(status, weir_stream_synchronize(stream));
  return pyweir_check(status);
}

/* Copies between a buffer and memory of a Python object, and waits. */
static int copy_python(pyweir_buffer *buffer, PyObject *object, bool to_buffer) {
  Py_buffer view;
  weir_stream stream;
  if (PyObject_GetBuffer(object, &view, to_buffer ? PyBUF_SIMPLE : PyBUF_WRITABLE) != 0)
    return -1;
  int result = -1;
  weir_status status = WEIR_OK;
  void *to = to_buffer ? buffer->pointer : view.buf, *from = to_buffer ? view.buf : buffer->pointer;
  if ((size_t)view.len != buffer->bytes) {
    PyErr_Format(PyExc_ValueError, "the %s has %zd bytes, but the buffer has %zu", to_buffer ? "source" : "destination",
                 view.len, buffer->bytes);
  } else if (!view.len) {
    result = 0;
  } else if (buffer->is_host) {
    Py_BEGIN_ALLOW_THREADS;
    memmove(to, from, (size_t)view.len);
    Py_END_ALLOW_THREADS;
    result = 0;
  } else if (stream_for(buffer, &stream) == 0) {
    PYWEIR_CALL(status, weir_copy(to, from, (size_t)view.len, stream));
    result = pyweir_check(status);
  }
  PyBuffer_Release(&view);
  return result;
}

static PyObject *buffer_copy(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"source", "non_blocking"};
  PyObject *values[] = {NULL, Py_False};
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (pyweir_parse_arguments("copy_", names, 2, 2, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0]) {
    PyErr_SetString(PyExc_TypeError, "copy_() missing required argument 'source'");
    return NULL;
  }
  int non_blocking = PyObject_IsTrue(values[1]);
  if (non_blocking < 0 || pyweir_buffer_check(buffer) != 0 || check_writable(buffer) != 0)
    return NULL;
  int result = PYWEIR_IS_BUFFER(values[0]) ? copy_buffer(buffer, (pyweir_buffer *)values[0], non_blocking)
                                           : copy_python(buffer, values[0], true);
  if (result != 0)
    return NULL;
  Py_INCREF(self);
  return self;
}

static PyObject *copy_to(PyObject *self, PyObject *destination) {
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (PYWEIR_IS_BUFFER(destination)) {
    PyErr_SetString(PyExc_TypeError,
                    "expected an object with the buffer protocol, got a Buffer; use destination.copy_(buffer)");
    return NULL;
  }
  if (pyweir_buffer_check(buffer) != 0 || copy_python(buffer, destination, false) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *buffer_tobytes(PyObject *self, PyObject *unused) {
  (void)unused;
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  weir_stream stream;
  weir_status status = WEIR_OK;
  if (pyweir_buffer_check(buffer) != 0)
    return NULL;
  if (buffer->is_host)
    return PyBytes_FromStringAndSize(buffer->pointer, (Py_ssize_t)buffer->bytes);
  PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)buffer->bytes);
  if (!bytes || stream_for(buffer, &stream) != 0) {
    Py_XDECREF(bytes);
    return NULL;
  }
  if (buffer->bytes)
    PYWEIR_CALL(status, weir_copy(PyBytes_AS_STRING(bytes), buffer->pointer, buffer->bytes, stream));
  if (pyweir_check(status) != 0)
    Py_CLEAR(bytes);
  return bytes;
}

static PyObject *buffer_free(PyObject *self, PyObject *unused) {
  (void)unused;
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  if (buffer->uses) {
    PyErr_Format(PyExc_BufferError, "the buffer is in use by %zd views or exported arrays", buffer->uses);
    return NULL;
  }
  return pyweir_none(free_memory(buffer));
}

/* ---- The buffer protocol ---- */

static weir_status wait_for_device(const pyweir_buffer *buffer) {
  weir_stream current;
  int capturing = 0;
  weir_status status = weir_stream_get_current(buffer->stream.device, &current);
  if (status == WEIR_OK)
    status = weir_stream_is_capturing(current, &capturing);
  /* Captured work does not run yet, so there is nothing to wait for. */
  if (status != WEIR_OK || capturing)
    return status;
  status = weir_stream_synchronize(current);
  if (status == WEIR_OK && !weir_stream_equal(current, buffer->stream))
    status = weir_stream_synchronize(buffer->stream);
  return status;
}

int pyweir_buffer_wait(pyweir_buffer *buffer) {
  weir_status status = WEIR_OK;
  if (!buffer->is_host)
    PYWEIR_CALL(status, wait_for_device(buffer));
  return pyweir_check(status);
}

static int get_buffer(PyObject *self, Py_buffer *view, int flags) {
  pyweir_buffer *buffer = (pyweir_buffer *)self;
  view->obj = NULL;
  if (!buffer->is_host && !pyweir_driver_can(WEIR_DRIVER_HOST_ACCESS)) {
    PyErr_SetString(PyExc_BufferError, "the host cannot access the memory of this device; copy it with tobytes(), "
                                       "copy_to() or to a buffer of host_empty()");
    return -1;
  }
  if (!buffer->pointer && buffer->bytes) {
    PyErr_SetString(PyExc_BufferError, "the buffer was freed");
    return -1;
  }
  if (pyweir_buffer_wait(buffer) != 0 ||
      PyBuffer_FillInfo(view, self, buffer->pointer, (Py_ssize_t)buffer->bytes, buffer->is_readonly, flags) != 0)
    return -1;
  buffer->uses++;
  return 0;
}

static void release_buffer(PyObject *self, Py_buffer *view) {
  (void)view;
  ((pyweir_buffer *)self)->uses--;
}

/* ---- The type ---- */

static PyMethodDef methods[] = {
    {"data_ptr", data_ptr, METH_NOARGS, "data_ptr($self, /)\n--\n\nReturns the address of the memory; 0 if empty."},
    {"record_stream", record_stream, METH_O,
     "record_stream($self, stream, /)\n--\n\n"
     "Records that another stream uses the memory. After it is freed, the memory is not reused until that\n"
     "stream has finished the work submitted so far."},
    {"fill_", PYWEIR_FAST_KEYWORDS(buffer_fill),
     "fill_($self, value, *, width=1)\n--\n\n"
     "Fills the buffer with a byte, or with a 32-bit word if width is 4, on the current stream of its device."},
    {"zero_", buffer_zero, METH_NOARGS, "zero_($self, /)\n--\n\nFills the buffer with zeros. See fill_()."},
    {"copy_", PYWEIR_FAST_KEYWORDS(buffer_copy),
     "copy_($self, source, non_blocking=False)\n--\n\n"
     "Copies from a Buffer, or from an object with the buffer protocol, of the same size, on the current stream.\n"
     "Waits for the copy if host memory is involved; with non_blocking, not if that memory is pinned."},
    {"copy_to", copy_to, METH_O,
     "copy_to($self, destination, /)\n--\n\n"
     "Copies the buffer to a writable object with the buffer protocol, of the same size, and waits."},
    {"tobytes", buffer_tobytes, METH_NOARGS, "tobytes($self, /)\n--\n\nReturns a copy of the memory as bytes."},
    {"free", buffer_free, METH_NOARGS,
     "free($self, /)\n--\n\n"
     "Frees the memory now instead of when the object is destroyed. Raises BufferError if there are views or\n"
     "exported arrays."},
    {"share", pyweir_buffer_share, METH_NOARGS,
     "share($self, /)\n--\n\n"
     "Returns a tuple that another process passes to open_shared() to access the same memory. Waits for pending\n"
     "work. The memory must be kept while the other process uses it."},
    {"__reduce_ex__", pyweir_buffer_reduce, METH_O, NULL},
    {"__dlpack__", PYWEIR_FAST_KEYWORDS(pyweir_buffer_dlpack),
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "Exports the memory to another library as a DLPack capsule."},
    {"__dlpack_device__", pyweir_buffer_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\nReturns the device type and index in the terms of DLPack."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"pointer", get_pointer, NULL, "The address of the memory; 0 if empty.", NULL},
    {"nbytes", get_bytes, NULL, "The size in bytes.", NULL},
    {"size", get_bytes, NULL, "The size in bytes.", NULL},
    {"device", get_device, NULL, "The index of the device; -1 for host memory.", NULL},
    {"stream", get_stream, NULL, "The stream for which the memory was allocated; None for host memory.", NULL},
    {"is_host", get_is_host, NULL, "Whether it is host memory.", NULL},
    {"is_pinned", get_is_pinned, NULL, "Whether it is pinned host memory of host_empty().", NULL},
    {"readonly", get_readonly, NULL, "Whether writing is forbidden.", NULL},
    {"owns_memory", get_owns, NULL, "Whether destroying the object frees the memory.", NULL},
    {"__cuda_array_interface__", get_cuda_array_interface, NULL,
     "The memory in the form that Numba, CuPy and others accept; on a CUDA device only.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMappingMethods mapping = {.mp_length = buffer_length, .mp_subscript = buffer_subscript};
static PyBufferProcs buffer_protocol = {.bf_getbuffer = get_buffer, .bf_releasebuffer = release_buffer};

PyTypeObject pyweir_buffer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.Buffer",
    .tp_doc = "Device memory or pinned host memory, which is freed when the object is destroyed.\n\n"
              "Created by buffer(), host_empty(), from_dlpack() and open_shared().",
    .tp_basicsize = sizeof(pyweir_buffer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = buffer_dealloc,
    .tp_repr = buffer_repr,
    .tp_methods = methods,
    .tp_getset = attributes,
    .tp_as_mapping = &mapping,
    .tp_as_buffer = &buffer_protocol,
    .tp_weaklistoffset = offsetof(pyweir_buffer, weak),
};

static PyMethodDef functions[] = {
    {"buffer", PYWEIR_FAST_KEYWORDS(allocate_buffer),
     "buffer(nbytes, *, device=None, stream=None)\n--\n\n"
     "Allocates device memory, with undefined contents, and returns a Buffer.\n\n"
     "device: the device; None for the current one.\n"
     "stream: the stream that uses the memory; None for the current stream of the device."},
    {"_buffer_from_data_pointer", from_pointer, METH_VARARGS,
     "(address, device, nbytes): wraps memory that is owned elsewhere in a Buffer."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_buffer(PyObject *module) {
  if (pyweir_add_type(module, &pyweir_buffer_type) != 0)
    return -1;
  return PyModule_AddFunctions(module, functions);
}

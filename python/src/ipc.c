/*
 * Memory that is shared with other processes.
 */
#include "memory.h"

#include <stdlib.h>

/* The buffer that owns the memory, if it can be shared; NULL with an exception set if it cannot. */
static pyweir_buffer *shareable(pyweir_buffer *buffer) {
  pyweir_buffer *root = pyweir_buffer_root(buffer);
  if (pyweir_buffer_check(buffer) != 0)
    return NULL;
  if (root->owner == PYWEIR_OWNS_DEVICE && root->pointer)
    return root;
  PyErr_SetString(PyExc_ValueError, root->owner == PYWEIR_OWNS_SHARED
                                        ? "memory that was received from another process cannot be sent to a third "
                                          "one; copy it first"
                                        : "only memory of buffer() can be shared");
  return NULL;
}

/* Builds (device, name, bytes, offset) from a handle of the root. `offset` is that of the root in the shared memory. */
static PyObject *handle_tuple(const pyweir_buffer *buffer, const pyweir_buffer *root, const weir_ipc_handle *handle) {
  size_t within = (size_t)((char *)buffer->pointer - (char *)root->pointer);
  return Py_BuildValue("iy#nn", buffer->stream.device, handle->bytes, (Py_ssize_t)handle->length,
                       (Py_ssize_t)buffer->bytes, (Py_ssize_t)(handle->offset + within));
}

/* Returns (device, name, bytes, offset), from which another process opens the memory. */
PyObject *pyweir_buffer_share(PyObject *self, PyObject *unused) {
  (void)unused;
  pyweir_buffer *buffer = (pyweir_buffer *)self, *root = shareable(buffer);
  /* The work of the two processes is not ordered, so the contents must be complete now. */
  if (!root || pyweir_buffer_wait(buffer) != 0)
    return NULL;
  weir_ipc_handle *handle = calloc(1, sizeof *handle);
  if (!handle)
    return PyErr_NoMemory();
  handle->size = sizeof *handle;
  weir_status status;
  PYWEIR_CALL(status, weir_ipc_share(pyweir_allocator(), root->pointer, handle));
  PyObject *result = pyweir_check(status) == 0 ? handle_tuple(buffer, root, handle) : NULL;
  free(handle);
  return result;
}

/* ---- Memory that is counted ---- */

/* The default stream cannot be captured, and the query would invalidate a capture of another stream. */
static weir_status is_captured(weir_stream stream, int *capturing) {
  *capturing = 0;
  return stream.id ? weir_stream_is_capturing(stream, capturing) : WEIR_OK;
}

/* Makes `stream` wait for the work of another one, unless *capturing says that either is captured. */
static weir_status join(weir_stream stream, weir_stream other, int *capturing) {
  weir_status status = is_captured(stream, capturing);
  if (status == WEIR_OK && !*capturing)
    status = is_captured(other, capturing);
  if (status != WEIR_OK || *capturing || weir_stream_equal(stream, other))
    return status;
  return weir_stream_wait_stream(stream, other);
}

/* Orders the work of the buffer's stream and of the current one, which are joined. A queue pickles in a thread of its
 * own, whose current stream is not that of the program. weir_ipc_send refuses a stream that is captured. Called without
 * the GIL. */
static weir_status send_memory(void *pointer, weir_stream stream, weir_ipc_handle *handle) {
  weir_stream current;
  weir_cu_stream raw = NULL;
  int capturing;
  weir_status status = weir_stream_get_current(stream.device, &current);
  if (status == WEIR_OK)
    status = is_captured(current, &capturing);
  if (status == WEIR_OK && capturing)
    stream = current;
  else if (status == WEIR_OK)
    status = join(stream, current, &capturing);
  if (status == WEIR_OK)
    status = pyweir_raw_stream(stream, &raw);
  return status == WEIR_OK ? weir_ipc_send(pyweir_allocator(), pointer, raw, NULL, handle) : status;
}

static PyObject *send_buffer(PyObject *module, PyObject *object) {
  (void)module;
  if (!PYWEIR_IS_BUFFER(object)) {
    PyErr_Format(PyExc_TypeError, "expected a Buffer, got %.100s", Py_TYPE(object)->tp_name);
    return NULL;
  }
  pyweir_buffer *buffer = (pyweir_buffer *)object, *root = shareable(buffer);
  weir_ipc_handle *handle = root ? calloc(1, sizeof *handle) : NULL;
  if (!handle)
    return root ? PyErr_NoMemory() : NULL;
  handle->size = sizeof *handle;
  weir_status status;
  PYWEIR_CALL(status, send_memory(root->pointer, root->stream, handle));
  PyObject *result = pyweir_check(status) == 0 ? handle_tuple(buffer, root, handle) : NULL;
  if (!result && status == WEIR_OK)
    PYWEIR_CALL(status, weir_ipc_cancel(pyweir_allocator(), handle->bytes, handle->length));
  free(handle);
  return result;
}

PyObject *pyweir_buffer_reduce(PyObject *self, PyObject *protocol) {
  (void)protocol;
  PyObject *module = PyImport_ImportModule("weir.memory");
  PyObject *result = module ? PyObject_CallMethod(module, "_reduce_buffer", "O", self) : NULL;
  Py_XDECREF(module);
  return result;
}

typedef struct received {
  void *pointer;
  weir_stream stream; /* that received it */
  weir_cu_stream raw;
  size_t count, room; /* of the other streams that use it; guarded by the GIL */
  weir_stream *streams;
} received;

/* Releases the memory after the work of the stream that received it, of the current one and of those of
 * record_stream(). If one is captured, weir_ipc_release leaves the memory to a later collection. Without the GIL. */
static weir_status release(const received *memory) {
  weir_stream current;
  int capturing;
  weir_status status = weir_stream_get_current(memory->stream.device, &current);
  if (status == WEIR_OK)
    status = join(memory->stream, current, &capturing);
  for (size_t i = 0; i < memory->count && status == WEIR_OK; i++)
    status = join(memory->stream, memory->streams[i], &capturing);
  if (status != WEIR_OK) /* without events, or if a stream was destroyed */
    status = weir_device_synchronize(memory->stream.device);
  weir_status released = weir_ipc_release(pyweir_allocator(), memory->pointer, memory->raw);
  return status != WEIR_OK ? status : released;
}

/* Releases a received buffer. Called with the GIL. */
static void release_received(void *context) {
  received *memory = context;
  weir_status status = WEIR_OK;
  if (!weir_is_in_bad_fork())
    PYWEIR_CALL(status, release(memory));
  free(memory->streams);
  free(memory);
  pyweir_write_unraisable(status);
}

int pyweir_shared_record(pyweir_buffer *root, weir_stream stream) {
  if (root->of.foreign.release != release_received)
    return 0; /* weir_ipc_close waits for all streams */
  received *memory = root->of.foreign.context;
  for (size_t i = 0; i < memory->count; i++)
    if (weir_stream_equal(stream, memory->streams[i]))
      return 0;
  if (memory->count == memory->room) {
    size_t room = 2 * memory->room + 4;
    weir_stream *grown = realloc(memory->streams, room * sizeof *grown);
    if (!grown) {
      PyErr_NoMemory();
      return -1;
    }
    memory->streams = grown;
    memory->room = room;
  }
  memory->streams[memory->count++] = stream;
  return 0;
}

static weir_status receive(int device, const Py_buffer *name, received *memory, uint64_t *size) {
  weir_status status = pyweir_current_stream(device, &memory->stream, &memory->raw);
  if (status != WEIR_OK)
    return status;
  return weir_ipc_receive(pyweir_allocator(), device, name->buf, (size_t)name->len, memory->raw, &memory->pointer,
                          size);
}

static PyObject *receive_buffer(PyObject *module, PyObject *args) {
  (void)module;
  int device, is_readonly;
  Py_buffer name;
  PyObject *bytes_object, *offset_object;
  size_t bytes, offset;
  uint64_t size = 0;
  pyweir_buffer *buffer = NULL;
  if (!PyArg_ParseTuple(args, "iy*OOp:_receive_buffer", &device, &name, &bytes_object, &offset_object, &is_readonly))
    return NULL;
  received *memory = calloc(1, sizeof *memory);
  if (!memory) {
    PyErr_NoMemory();
    goto release_name;
  }
  weir_status status;
  if (pyweir_parse_bytes(bytes_object, &bytes) != 0 || pyweir_parse_bytes(offset_object, &offset) != 0 ||
      !pyweir_need_allocator())
    goto free_memory;
  PYWEIR_CALL(status, receive(device, &name, memory, &size));
  if (pyweir_check(status) != 0)
    goto free_memory;
  if (offset > size || bytes > size - offset)
    PyErr_SetString(PyExc_ValueError, "the memory is smaller than the Buffer");
  else
    buffer = pyweir_buffer_new((char *)memory->pointer + offset, bytes, memory->stream);
  if (!buffer) {
    release_received(memory);
    goto release_name;
  }
  buffer->is_readonly = is_readonly;
  buffer->owner = PYWEIR_OWNS_SHARED;
  buffer->of.foreign.release = release_received;
  buffer->of.foreign.context = memory;
  goto release_name;

free_memory:
  free(memory);
release_name:
  PyBuffer_Release(&name);
  return (PyObject *)buffer;
}

/* Calls a function for a message that this process has sent. Returns whether the message was still under way. */
static PyObject *change_message(PyObject *args, const char *format, bool is_cancel) {
  Py_buffer name;
  int receiver = 0;
  if (!PyArg_ParseTuple(args, format, &name, &receiver))
    return NULL;
  weir_status status = WEIR_ERROR_BAD_STATE;
  if (pyweir_started && !weir_is_in_bad_fork()) {
    if (is_cancel)
      PYWEIR_CALL(status, weir_ipc_cancel(pyweir_allocator(), name.buf, (size_t)name.len));
    else
      PYWEIR_CALL(status, weir_ipc_set_receiver(pyweir_allocator(), name.buf, (size_t)name.len, receiver));
  }
  PyBuffer_Release(&name);
  if (status == WEIR_OK || status == WEIR_ERROR_BAD_STATE)
    return PyBool_FromLong(status == WEIR_OK);
  return pyweir_none(status);
}

static PyObject *cancel_message(PyObject *module, PyObject *args) {
  (void)module;
  return change_message(args, "y*:_cancel_message", true);
}

static PyObject *set_receiver(PyObject *module, PyObject *args) {
  (void)module;
  return change_message(args, "y*i:_set_receiver", false);
}

static PyObject *ipc_collect(PyObject *module, PyObject *unused) {
  (void)module;
  (void)unused;
  if (!pyweir_need_allocator())
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_ipc_collect(pyweir_allocator(), NULL));
  return pyweir_none(status);
}

/* ---- Memory that is not counted ---- */

/* Releases an opened buffer. Called with the GIL. */
static void close_shared(void *base) {
  if (weir_is_in_bad_fork())
    return;
  weir_status status;
  PYWEIR_CALL(status, weir_ipc_close(pyweir_allocator(), base));
  pyweir_write_unraisable(status);
}

static PyObject *open_shared(PyObject *module, PyObject *args) {
  (void)module;
  int device;
  Py_buffer name;
  PyObject *bytes_object, *offset_object;
  size_t bytes, offset;
  weir_stream stream;
  void *base = NULL;
  if (!PyArg_ParseTuple(args, "iy*OO:_open_shared", &device, &name, &bytes_object, &offset_object))
    return NULL;
  pyweir_buffer *buffer = NULL;
  if (pyweir_parse_bytes(bytes_object, &bytes) != 0 || pyweir_parse_bytes(offset_object, &offset) != 0 ||
      !pyweir_need_allocator() || pyweir_check(weir_stream_get_current(device, &stream)) != 0)
    goto release_name;
  weir_status status;
  PYWEIR_CALL(status, weir_ipc_open(pyweir_allocator(), device, name.buf, (size_t)name.len, &base));
  if (pyweir_check(status) != 0)
    goto release_name;
  buffer = pyweir_buffer_new((char *)base + offset, bytes, stream);
  if (!buffer) {
    close_shared(base);
    goto release_name;
  }
  buffer->owner = PYWEIR_OWNS_SHARED;
  buffer->of.foreign.release = close_shared;
  buffer->of.foreign.context = base;

release_name:
  PyBuffer_Release(&name);
  return (PyObject *)buffer;
}

static PyMethodDef functions[] = {
    {"_open_shared", open_shared, METH_VARARGS, "(device, name, bytes, offset): opens memory of another process."},
    {"_send_buffer", send_buffer, METH_O, "(buffer): (device, name, bytes, offset), which one process can receive."},
    {"_receive_buffer", receive_buffer, METH_VARARGS,
     "(device, name, bytes, offset, readonly): receives a buffer of another process."},
    {"_cancel_message", cancel_message, METH_VARARGS, "(name): takes a message back. False if it has been received."},
    {"_set_receiver", set_receiver, METH_VARARGS,
     "(name, process): says which process is to receive a message. False if it has been received."},
    {"_cuda_ipc_collect", ipc_collect, METH_NOARGS, "Frees memory that other processes need no longer."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_ipc(PyObject *module) { return PyModule_AddFunctions(module, functions); }

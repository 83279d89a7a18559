/*
 * Memory that is shared with other processes.
 */
#include "memory.h"

#include <stdlib.h>

/* Returns (device, name, bytes, offset), from which another process opens the memory. */
PyObject *pyweir_buffer_share(PyObject *self, PyObject *unused) {
  (void)unused;
  pyweir_buffer *buffer = (pyweir_buffer *)self, *root = pyweir_buffer_root(buffer);
  if (pyweir_buffer_check(buffer) != 0)
    return NULL;
  if (root->owner != PYWEIR_OWNS_DEVICE || !root->pointer) {
    PyErr_SetString(PyExc_ValueError, "only memory of empty() can be shared");
    return NULL;
  }
  /* The work of the two processes is not ordered, so the contents must be complete now. */
  if (pyweir_buffer_wait(buffer) != 0)
    return NULL;
  weir_ipc_handle *handle = calloc(1, sizeof *handle);
  if (!handle)
    return PyErr_NoMemory();
  handle->size = sizeof *handle;
  weir_status status;
  PYWEIR_CALL(status, weir_ipc_share(pyweir_allocator(), root->pointer, handle));
  PyObject *result = NULL;
  if (pyweir_check(status) == 0) {
    size_t within = (size_t)((char *)buffer->pointer - (char *)root->pointer);
    result = Py_BuildValue("iy#nn", buffer->stream.device, handle->bytes, (Py_ssize_t)handle->length,
                           (Py_ssize_t)buffer->bytes, (Py_ssize_t)(handle->offset + within));
  }
  free(handle);
  return result;
}

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
      !pyweir_need_allocator() || pyweir_check(weir_stream_current(device, &stream)) != 0)
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
    {NULL, NULL, 0, NULL},
};

int pyweir_add_ipc(PyObject *module) { return PyModule_AddFunctions(module, functions); }

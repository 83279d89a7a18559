/*
 * Ranges and marks for profilers and recordings: weir.nvtx.
 */
#include "weir/compute/nvtx.h"
#include "core.h"

/* The UTF-8 text of a message, or NULL with a TypeError set. */
static const char *message_of(PyObject *object) {
  return PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : (const char *)pyweir->type_error("a str", object);
}

static PyObject *range_push(PyObject *module, PyObject *argument) {
  (void)module;
  const char *message = message_of(argument);
  return message ? PyLong_FromLong(weir_nvtx_range_push(message)) : NULL;
}

PYWEIR_NO_ARGUMENTS(range_pop, PyLong_FromLong(weir_nvtx_range_pop()))

static PyObject *range_start(PyObject *module, PyObject *argument) {
  (void)module;
  const char *message = message_of(argument);
  return message ? PyLong_FromUnsignedLongLong(weir_nvtx_range_start(message)) : NULL;
}

static PyObject *range_end(PyObject *module, PyObject *argument) {
  (void)module;
  unsigned long long range = PyLong_AsUnsignedLongLong(argument);
  if (PyErr_Occurred())
    return NULL;
  weir_nvtx_range_end(range);
  Py_RETURN_NONE;
}

static PyObject *mark(PyObject *module, PyObject *argument) {
  (void)module;
  const char *message = message_of(argument);
  if (!message)
    return NULL;
  weir_nvtx_mark(message);
  Py_RETURN_NONE;
}

/* ---- Ranges of a stream: a capsule, whose name says whether the range has ended ---- */

static const char open_name[] = "weir.nvtx range", ended_name[] = "weir.nvtx range that has ended";

static int stream_of(PyObject *raw, weir_stream *stream) {
  void *handle = PyLong_AsVoidPtr(raw);
  int device;
  if (PyErr_Occurred() || pyweir_ensure_init() != 0 || pyweir->check(weir_device_get_current(&device)) != 0)
    return -1;
  return pyweir->check(weir_stream_external(device, handle, stream));
}

static PyObject *device_range_start(PyObject *module, PyObject *args) {
  (void)module;
  const char *message;
  PyObject *raw;
  weir_stream stream;
  weir_nvtx_device_range *range;
  weir_status status;
  if (!PyArg_ParseTuple(args, "sO", &message, &raw) || stream_of(raw, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_nvtx_device_range_start(message, stream, &range));
  return pyweir->check(status) == 0 ? PyCapsule_New(range, open_name, NULL) : NULL;
}

static PyObject *device_range_end(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *capsule, *raw;
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "OO", &capsule, &raw))
    return NULL;
  if (PyCapsule_IsValid(capsule, ended_name)) {
    PyErr_SetString(PyExc_ValueError, "the range has ended already");
    return NULL;
  }
  weir_nvtx_device_range *range = PyCapsule_GetPointer(capsule, open_name);
  if (!range || stream_of(raw, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_nvtx_device_range_end(range, stream));
  if (pyweir->check(status) != 0 || PyCapsule_SetName(capsule, ended_name) != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"_nvtx_range_push", range_push, METH_O, NULL},
    {"_nvtx_range_pop", range_pop, METH_NOARGS, NULL},
    {"_nvtx_range_start", range_start, METH_O, NULL},
    {"_nvtx_range_end", range_end, METH_O, NULL},
    {"_nvtx_mark", mark, METH_O, NULL},
    {"_nvtx_device_range_start", device_range_start, METH_VARARGS, NULL},
    {"_nvtx_device_range_end", device_range_end, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_nvtx(PyObject *module) { return PyModule_AddFunctions(module, methods); }

/*
 * The CUDA runtime calls of weir.cudart(). Like the runtime they return an error code; only invalid arguments raise an
 * exception.
 */
#include "pyweir.h"

/* The driver, with the context of the current device current in the calling thread. */
static int enter(weir_driver **driver) {
  int device;
  weir_status status;
  if (pyweir_need_device(Py_None, &device) != 0)
    return -1;
  PYWEIR_CALL(status, weir_device_set_current(device));
  return pyweir_check(status) != 0 ? -1 : pyweir_check(weir_get_driver(driver));
}

static int address_of(PyObject *object, void **address) {
  *address = PyLong_AsVoidPtr(object);
  return !*address && PyErr_Occurred() ? -1 : 0;
}

static PyObject *error_string(PyObject *module, PyObject *argument) {
  (void)module;
  int code;
  return pyweir_parse_int(argument, &code) == 0 ? PyUnicode_FromString(weir_cu_result_string(code)) : NULL;
}

static PyObject *error_names(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  static const struct {
    int code;
    const char *name;
  } codes[] = {
#define X(code, name, text) {code, #name},
      WEIR_CU_RESULT_MAP(X)
#undef X
  };
  PyObject *names = PyDict_New();
  for (size_t i = 0; names && i < sizeof codes / sizeof *codes; i++) {
    PyObject *code = PyLong_FromLong(codes[i].code);
    if (!code || PyDict_SetItemString(names, codes[i].name, code) != 0)
      Py_CLEAR(names);
    Py_XDECREF(code);
  }
  return names;
}

static PyObject *host_register(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *pointer;
  Py_ssize_t bytes;
  unsigned flags;
  void *address;
  weir_driver *driver;
  weir_cu_result result;
  if (!PyArg_ParseTuple(args, "OnI:cudaHostRegister", &pointer, &bytes, &flags) || address_of(pointer, &address) != 0)
    return NULL;
  if (bytes < 0)
    return PyErr_Format(PyExc_ValueError, "cudaHostRegister(): size must not be negative, got %zd", bytes);
  if (enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->MemHostRegister(driver, address, (size_t)bytes, flags));
  return PyLong_FromLong(result);
}

static PyObject *host_unregister(PyObject *module, PyObject *argument) {
  (void)module;
  void *address;
  weir_driver *driver;
  weir_cu_result result;
  if (address_of(argument, &address) != 0 || enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->MemHostUnregister(driver, address));
  return PyLong_FromLong(result);
}

/* Stores the handle of the new stream at an address, as the runtime does. */
static PyObject *stream_create(PyObject *module, PyObject *argument) {
  (void)module;
  void *address;
  weir_driver *driver;
  weir_cu_result result;
  if (address_of(argument, &address) != 0)
    return NULL;
  if (!address)
    return PyLong_FromLong(WEIR_CU_INVALID_VALUE);
  if (enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->StreamCreateWithPriority(driver, address, WEIR_CU_STREAM_DEFAULT, 0));
  return PyLong_FromLong(result);
}

static PyObject *stream_destroy(PyObject *module, PyObject *argument) {
  (void)module;
  void *stream;
  weir_driver *driver;
  weir_cu_result result;
  if (address_of(argument, &stream) != 0 || enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->StreamDestroy(driver, stream));
  return PyLong_FromLong(result);
}

static PyObject *profiler_start(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_driver *driver;
  weir_cu_result result;
  if (enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->ProfilerStart(driver));
  return PyLong_FromLong(result);
}

static PyObject *profiler_stop(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_driver *driver;
  weir_cu_result result;
  if (enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->ProfilerStop(driver));
  return PyLong_FromLong(result);
}

/* Whether host memory is page-locked, in which case the driver knows the address. */
static PyObject *is_pinned(PyObject *module, PyObject *argument) {
  (void)module;
  void *address;
  weir_driver *driver;
  weir_cu_result result;
  unsigned type = 0;
  if (address_of(argument, &address) != 0 || enter(&driver) != 0)
    return NULL;
  PYWEIR_CALL(result, driver->PointerGetAttribute(driver, &type, WEIR_CU_POINTER_ATTR_MEMORY_TYPE,
                                                  (weir_cu_deviceptr)(uintptr_t)address));
  return PyBool_FromLong(result == WEIR_CU_SUCCESS && type == WEIR_CU_MEMORY_TYPE_HOST);
}

static PyMethodDef methods[] = {
    {"_error_string", error_string, METH_O, "Returns the message of an error code."},
    {"_error_names", error_names, METH_NOARGS, "Returns all error codes by name."},
    {"_host_register", host_register, METH_VARARGS, NULL},
    {"_host_unregister", host_unregister, METH_O, NULL},
    {"_stream_create", stream_create, METH_O, NULL},
    {"_stream_destroy", stream_destroy, METH_O, NULL},
    {"_profiler_start", profiler_start, METH_NOARGS, NULL},
    {"_profiler_stop", profiler_stop, METH_NOARGS, NULL},
    {"_is_pinned", is_pinned, METH_O, "Whether the host memory at an address is page-locked."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_cudart(PyObject *module) { return PyModule_AddFunctions(module, methods); }

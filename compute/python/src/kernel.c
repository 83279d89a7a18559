/*
 * weir.kernel: modules and kernels.
 */
#include "core.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "weir/compute/kernel.h"

#if PY_VERSION_HEX < 0x030b0000 /* not public before Python 3.11 */
#define PyFloat_Pack2(value, bytes, little) _PyFloat_Pack2(value, (unsigned char *)(bytes), little)
#define PyFloat_Pack4(value, bytes, little) _PyFloat_Pack4(value, (unsigned char *)(bytes), little)
#define PyFloat_Pack8(value, bytes, little) _PyFloat_Pack8(value, (unsigned char *)(bytes), little)
#endif

typedef struct module_object {
  PyObject_HEAD weir_module *it;
} module_object;

typedef struct kernel_object {
  PyObject_HEAD weir_kernel *it;
  PyObject *module; /* keeps the kernel alive */
  int param_count;  /* -1 if it is not known */
} kernel_object;

static PyTypeObject module_type, kernel_type;

/* ---- Modules ---- */

static PyObject *wrap_module(weir_module *module) {
  module_object *self = (module_object *)module_type.tp_alloc(&module_type, 0);
  if (self)
    self->it = module;
  else
    weir_module_destroy(module);
  return (PyObject *)self;
}

static void module_dealloc(PyObject *self) {
  weir_module *module = ((module_object *)self)->it;
  if (module) {
    PyThreadState *saved = pyweir->begin_call();
    weir_module_destroy(module); /* waits for the device */
    pyweir->end_call(saved);
  }
  Py_TYPE(self)->tp_free(self);
}

/* A list of texts as C strings, which stay valid as long as *owner. */
static int read_texts(PyObject *list, const char *what, PyObject **owner, const char ***texts, int *count) {
  *owner = PySequence_Fast(list, what);
  if (!*owner)
    return -1;
  Py_ssize_t length = PySequence_Fast_GET_SIZE(*owner);
  *texts = PyMem_Calloc((size_t)length + 1, sizeof **texts);
  if (!*texts) {
    PyErr_NoMemory();
    return -1;
  }
  for (Py_ssize_t i = 0; i < length; i++)
    if (!((*texts)[i] = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(*owner, i))))
      return -1;
  *count = (int)length;
  return 0;
}

/* _compile(source, device, names, options, header_names, headers, file_name, target, cache) */
static PyObject *compile_source(PyObject *unused, PyObject *args) {
  (void)unused;
  const char *source, *file_name;
  PyObject *device_argument, *lists[4], *owners[4] = {NULL};
  int target, cache, device, counts[4] = {0};
  if (!PyArg_ParseTuple(args, "sOOOOOsip:_compile", &source, &device_argument, &lists[0], &lists[1], &lists[2],
                        &lists[3], &file_name, &target, &cache) ||
      pyweir->need_device(device_argument, &device) != 0)
    return NULL;
  const char **texts[4] = {NULL};
  PyObject *result = NULL;
  bool is_read = true;
  for (int i = 0; i < 4 && is_read; i++)
    is_read = read_texts(lists[i], "expected a list of strings", &owners[i], &texts[i], &counts[i]) == 0;
  if (is_read) {
    weir_compile_options options;
    weir_compile_options_init(&options);
    options.names = texts[0];
    options.name_count = counts[0];
    options.options = texts[1];
    options.option_count = counts[1];
    options.header_names = texts[2];
    options.headers = texts[3];
    options.header_count = counts[2];
    options.file_name = file_name;
    options.target = (weir_compile_target)target;
    options.no_cache = !cache;
    weir_module *made;
    weir_status status;
    PYWEIR_CALL(status, weir_module_compile(device, source, &options, &made));
    if (pyweir->check(status) == 0)
      result = wrap_module(made);
  }
  for (int i = 0; i < 4; i++) {
    PyMem_Free(texts[i]);
    Py_XDECREF(owners[i]);
  }
  return result;
}

/* _load_module(image, device) */
static PyObject *load_module(PyObject *unused, PyObject *args) {
  (void)unused;
  Py_buffer image;
  PyObject *device_argument;
  int device;
  if (!PyArg_ParseTuple(args, "s*O:_load_module", &image, &device_argument))
    return NULL;
  PyObject *result = NULL;
  if (pyweir->need_device(device_argument, &device) == 0) {
    weir_module *made;
    weir_status status;
    PYWEIR_CALL(status, weir_module_load(device, image.buf, (size_t)image.len, &made));
    if (pyweir->check(status) == 0)
      result = wrap_module(made);
  }
  PyBuffer_Release(&image);
  return result;
}

static PyObject *get_function(PyObject *self, PyObject *name) {
  weir_kernel *found;
  weir_status status;
  const char *text = PyUnicode_AsUTF8(name);
  if (!text)
    return NULL;
  weir_module *module = ((module_object *)self)->it;
  PYWEIR_CALL(status, weir_module_kernel(module, text, &found));
  if (pyweir->check(status) != 0)
    return NULL;
  weir_kernel_attributes attributes;
  weir_kernel_attributes_init(&attributes);
  PYWEIR_CALL(status, weir_kernel_get_attributes(found, &attributes));
  if (pyweir->check(status) != 0)
    return NULL;
  kernel_object *kernel = (kernel_object *)kernel_type.tp_alloc(&kernel_type, 0);
  if (kernel) {
    kernel->it = found;
    kernel->module = Py_NewRef(self);
    kernel->param_count = attributes.param_count;
  }
  return (PyObject *)kernel;
}

static PyObject *module_log(PyObject *self, void *closure) {
  (void)closure;
  return PyUnicode_DecodeUTF8(weir_module_log(((module_object *)self)->it),
                              (Py_ssize_t)strlen(weir_module_log(((module_object *)self)->it)), "replace");
}

static PyObject *module_is_cached(PyObject *self, void *closure) {
  (void)closure;
  return PyBool_FromLong(weir_module_is_cached(((module_object *)self)->it));
}

static PyObject *module_device(PyObject *self, void *closure) {
  (void)closure;
  return pyweir->device_wrap(weir_module_device(((module_object *)self)->it));
}

static PyMethodDef module_methods[] = {
    {"get_function", get_function, METH_O,
     "get_function($self, name, /)\n--\n\nReturns the kernel of a name. A template, or a kernel without extern \"C\", "
     "has "
     "to be named when the module is compiled."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef module_getters[] = {
    {"log", module_log, NULL, "The compiler's warnings.", NULL},
    {"is_cached", module_is_cached, NULL, "Whether the code came from the cache on disk.", NULL},
    {"device", module_device, NULL, "The device of the module.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject module_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.kernel.Module",
    .tp_doc = PyDoc_STR("Device code on one device."),
    .tp_basicsize = sizeof(module_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = module_dealloc,
    .tp_methods = module_methods,
    .tp_getset = module_getters,
};

/* ---- Arguments of a launch ---- */

enum { MAX_PARAMS = 256, STORE_BYTES = 4096 };

/* The values of the parameters, each aligned to 16. */
typedef struct arguments {
  weir_param params[MAX_PARAMS];
  int count;
  size_t used;
  _Alignas(16) unsigned char store[STORE_BYTES];
} arguments;

static int add_bytes(arguments *a, const void *value, size_t bytes) {
  if (bytes > STORE_BYTES - a->used) {
    PyErr_Format(PyExc_ValueError, "the arguments have more than %d bytes", STORE_BYTES);
    return -1;
  }
  memcpy(a->store + a->used, value, bytes);
  a->params[a->count++] = (weir_param){a->store + a->used, bytes};
  a->used += (bytes + 15) / 16 * 16;
  return 0;
}

static int out_of_range(PyObject *number, int index, size_t bytes) {
  PyErr_Format(PyExc_OverflowError, "argument %d is %R, which does not fit in %zu bytes", index, number, bytes);
  return -1;
}

/* An integer of the size of its parameter: signed or unsigned, whichever it fits. */
static int add_integer(arguments *a, PyObject *object, int index, size_t bytes) {
  PyObject *number = PyNumber_Index(object);
  if (!number)
    return -1;
  int overflow, result = -1;
  long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  unsigned long long bits = (unsigned long long)value;
  if (overflow > 0) {
    bits = PyLong_AsUnsignedLongLong(number);
    if (bits == (unsigned long long)-1 && PyErr_Occurred())
      PyErr_Clear(), overflow = -1;
  }
  bool fits = overflow >= 0 && (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8);
  if (fits && bytes < 8 && !overflow)
    fits = value >= -(1LL << (8 * bytes - 1)) && value < 1LL << (8 * bytes);
  else if (bytes < 8)
    fits = fits && !overflow;
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8)
    PyErr_Format(PyExc_TypeError, "argument %d is an integer, but the parameter has %zu bytes", index, bytes);
  else
    result = fits ? add_bytes(a, &bits, bytes) : out_of_range(number, index, bytes);
  Py_DECREF(number);
  return result;
}

static int add_float(arguments *a, PyObject *object, int index, size_t bytes) {
  double value = PyFloat_AsDouble(object);
  unsigned char packed[8];
  if (value == -1 && PyErr_Occurred())
    return -1;
  int failed = -1;
  switch (bytes) {
  case 2:
    failed = PyFloat_Pack2(value, (char *)packed, 1);
    break;
  case 4:
    failed = PyFloat_Pack4(value, (char *)packed, 1);
    break;
  case 8:
    failed = PyFloat_Pack8(value, (char *)packed, 1);
    break;
  default:
    PyErr_Format(PyExc_TypeError, "argument %d is a float, but the parameter has %zu bytes", index, bytes);
  }
  return failed ? -1 : add_bytes(a, packed, bytes);
}

/* The address of an array of Weir, PyTorch or CuPy. 0 if the object is not an array; -1 on error. */
static int find_address(PyObject *object, unsigned long long *address) {
  PyObject *number = NULL, *method = NULL, *interface = NULL;
  if (PyObject_HasAttrString(object, "data_ptr")) {
    method = PyObject_GetAttrString(object, "data_ptr");
    number = method ? PyObject_CallNoArgs(method) : NULL;
  } else if (PyObject_HasAttrString(object, "__cuda_array_interface__")) {
    interface = PyObject_GetAttrString(object, "__cuda_array_interface__");
    PyObject *data = interface ? PyMapping_GetItemString(interface, "data") : NULL;
    number = data ? PySequence_GetItem(data, 0) : NULL;
    Py_XDECREF(data);
  } else {
    return 0;
  }
  int result = -1;
  if (number) {
    *address = PyLong_AsUnsignedLongLong(number);
    result = *address == (unsigned long long)-1 && PyErr_Occurred() ? -1 : 1;
  }
  Py_XDECREF(number);
  Py_XDECREF(method);
  Py_XDECREF(interface);
  return result;
}

/* Parameters of unknown size: an int and a float have 4 bytes, as in PyTorch. */
static int add_argument(arguments *a, PyObject *object, int index, const kernel_object *kernel) {
  size_t bytes = 4;
  if (kernel->param_count >= 0 && pyweir->check(weir_kernel_param_bytes(kernel->it, index, &bytes)) != 0)
    return -1;
  if (PyLong_Check(object)) /* bool too */
    return add_integer(a, object, index, bytes);
  if (PyFloat_Check(object))
    return add_float(a, object, index, bytes);
  unsigned long long address = 0;
  int found = object == Py_None ? 1 : find_address(object, &address);
  if (found)
    return found < 0 ? -1 : add_bytes(a, &address, sizeof address);
  if (PyObject_CheckBuffer(object)) { /* bytes, a ctypes value, a NumPy scalar: as it is */
    Py_buffer view;
    if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0)
      return -1;
    int result = add_bytes(a, view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return result;
  }
  if (PyIndex_Check(object))
    return add_integer(a, object, index, bytes);
  PyErr_Format(
      PyExc_TypeError,
      "argument %d is a %.100s; expected a number, None, an object with data_ptr() or __cuda_array_interface__, "
      "or one with the bytes of the value, such as a ctypes or NumPy scalar",
      index, Py_TYPE(object)->tp_name);
  return -1;
}

/* A number, or up to three of them. */
static int read_dims(PyObject *object, const char *what, unsigned dims[3]) {
  dims[0] = dims[1] = dims[2] = 1;
  PyObject *list = PyLong_Check(object) ? Py_BuildValue("(O)", object) : PySequence_Tuple(object);
  if (!list)
    return -1;
  Py_ssize_t count = PyTuple_GET_SIZE(list);
  int result = 0;
  if (count < 1 || count > 3) {
    PyErr_Format(PyExc_ValueError, "%s has %zd numbers; expected 1 to 3", what, count);
    result = -1;
  }
  for (Py_ssize_t i = 0; i < count && !result; i++) {
    long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(list, i));
    if (value == -1 && PyErr_Occurred())
      result = -1;
    else if (value < 1 || value > 0x7fffffff)
      result = (PyErr_Format(PyExc_ValueError, "%s[%zd] is %lld; expected 1 to 2147483647", what, i, value), -1);
    else
      dims[i] = (unsigned)value;
  }
  Py_DECREF(list);
  return result;
}

/* ---- Kernels ---- */

static void kernel_dealloc(PyObject *self) {
  Py_XDECREF(((kernel_object *)self)->module);
  Py_TYPE(self)->tp_free(self);
}

static PyObject *kernel_call(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"grid", "block", "args", "shared_mem", "stream", NULL};
  kernel_object *kernel = (kernel_object *)self;
  PyObject *grid, *block, *values = NULL, *stream_argument = Py_None;
  unsigned shared = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO|OIO:Kernel", names, &grid, &block, &values, &shared,
                                   &stream_argument))
    return NULL;
  weir_launch_dims dims = {.shared_bytes = shared};
  weir_stream stream;
  int device = weir_module_device(((module_object *)kernel->module)->it);
  if (read_dims(grid, "grid", dims.grid) != 0 || read_dims(block, "block", dims.block) != 0 ||
      pyweir->parse_stream(stream_argument, device, &stream) != 0)
    return NULL;
  arguments a;
  a.count = 0;
  a.used = 0;
  PyObject *list = values && values != Py_None ? PySequence_Fast(values, "args must be a sequence") : PyTuple_New(0);
  if (!list)
    return NULL;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
  bool is_read = true;
  if (count > MAX_PARAMS || (kernel->param_count >= 0 && count != kernel->param_count)) {
    PyErr_Format(PyExc_TypeError, "%s takes %d arguments (got %zd)", weir_kernel_name(kernel->it), kernel->param_count,
                 count);
    is_read = false;
  }
  for (Py_ssize_t i = 0; i < count && is_read; i++)
    is_read = add_argument(&a, PySequence_Fast_GET_ITEM(list, i), (int)i, kernel) == 0;
  Py_DECREF(list);
  if (!is_read)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_kernel_launch(kernel->it, dims, stream, a.params, a.count));
  return pyweir->none(status);
}

static PyObject *kernel_name(PyObject *self, void *closure) {
  (void)closure;
  return PyUnicode_FromString(weir_kernel_name(((kernel_object *)self)->it));
}

static PyObject *kernel_attributes(PyObject *self, void *closure) {
  (void)closure;
  weir_kernel_attributes a;
  weir_kernel_attributes_init(&a);
  weir_status status;
  PYWEIR_CALL(status, weir_kernel_get_attributes(((kernel_object *)self)->it, &a));
  if (pyweir->check(status) != 0)
    return NULL;
  return Py_BuildValue("{si,si,si,si,si,si,si,si,si}", "registers", a.registers, "shared_bytes", a.shared_bytes,
                       "local_bytes", a.local_bytes, "constant_bytes", a.constant_bytes, "max_threads", a.max_threads,
                       "max_dynamic_shared_bytes", a.max_dynamic_shared_bytes, "ptx_version", a.ptx_version,
                       "binary_version", a.binary_version, "param_count", a.param_count);
}

static PyObject *set_shared_memory_config(PyObject *self, PyObject *argument) {
  int bytes;
  weir_status status;
  if (pyweir->parse_int(argument, &bytes) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_kernel_set_max_dynamic_shared(((kernel_object *)self)->it, bytes));
  return pyweir->none(status);
}

static PyObject *max_active_blocks(PyObject *self, PyObject *args) {
  int threads, blocks;
  Py_ssize_t dynamic = 0;
  weir_status status;
  if (!PyArg_ParseTuple(args, "i|n:max_active_blocks", &threads, &dynamic))
    return NULL;
  PYWEIR_CALL(status, weir_kernel_max_active_blocks(((kernel_object *)self)->it, threads, (size_t)dynamic, &blocks));
  return pyweir->check(status) == 0 ? PyLong_FromLong(blocks) : NULL;
}

static PyObject *suggest_block(PyObject *self, PyObject *args) {
  int limit = 0, grid, block;
  Py_ssize_t dynamic = 0;
  weir_status status;
  if (!PyArg_ParseTuple(args, "|ni:suggest_block", &dynamic, &limit))
    return NULL;
  PYWEIR_CALL(status, weir_kernel_suggest_block(((kernel_object *)self)->it, (size_t)dynamic, limit, &grid, &block));
  return pyweir->check(status) == 0 ? Py_BuildValue("(ii)", grid, block) : NULL;
}

static PyMethodDef kernel_methods[] = {
    {"set_shared_memory_config", set_shared_memory_config, METH_O,
     "set_shared_memory_config($self, shared_mem_bytes, /)\n--\n\nAllows launches with up to this much dynamic shared "
     "memory."},
    {"max_active_blocks", max_active_blocks, METH_VARARGS,
     "max_active_blocks($self, block_threads, shared_mem=0, /)\n--\n\nReturns how many blocks one multiprocessor can "
     "run "
     "at a time."},
    {"suggest_block", suggest_block, METH_VARARGS,
     "suggest_block($self, shared_mem=0, limit=0, /)\n--\n\nReturns (grid, block) with which the most threads are "
     "active."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef kernel_getters[] = {
    {"name", kernel_name, NULL, "The name of the kernel.", NULL},
    {"attributes", kernel_attributes, NULL, "Registers, shared memory and limits, as a dict.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject kernel_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.kernel.Kernel",
    .tp_doc =
        PyDoc_STR("A function of a module. Call it to launch it: kernel(grid, block, args, shared_mem=0, "
                  "stream=None).\n\n"
                  "grid, block: a number, or up to three.\n"
                  "args: numbers, None, objects with data_ptr() or __cuda_array_interface__, or with the bytes of "
                  "the value. Their number and sizes are checked.\n"
                  "stream: None for the current stream of the kernel's device."),
    .tp_basicsize = sizeof(kernel_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = kernel_dealloc,
    .tp_call = kernel_call,
    .tp_methods = kernel_methods,
    .tp_getset = kernel_getters,
};

static PyObject *add_library_folder(PyObject *unused, PyObject *folder) {
  (void)unused;
  const char *text = PyUnicode_AsUTF8(folder);
  return text ? pyweir->none(weir_library_add_folder(text)) : NULL;
}

/* ---- For benchmarks ---- */

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* The best of several batches of bare cuLaunchKernel calls, in nanoseconds for one. Without the GIL. */
static weir_status time_bare_launches(int device, int repeats, double *best) {
  static const char ptx[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                            ".visible .entry weir_spin(.param .u64 cycles)\n{\n  ret;\n}\n";
  weir_driver *driver;
  weir_stream stream;
  weir_cu_stream raw;
  weir_cu_module module;
  weir_cu_function function;
  weir_status status = weir_get_driver(&driver);
  if (status == WEIR_OK)
    status = weir_stream_get_current(device, &stream);
  if (status == WEIR_OK)
    status = weir_stream_raw(stream, &raw);
  if (status != WEIR_OK)
    return status;
  if (driver->ModuleLoadData(driver, &module, ptx))
    return WEIR_ERROR_DRIVER;
  int result = driver->ModuleGetFunction(driver, &function, module, "weir_spin");
  uint64_t cycles = 0;
  void *params[] = {&cycles};
  *best = 1e18;
  for (int batch = 0; batch < 15 && !result; batch++) {
    int64_t begin = now();
    for (int i = 0; i < repeats && !result; i++)
      result = driver->LaunchKernel(driver, function, 1, 1, 1, 32, 1, 1, 0, raw, params, NULL);
    double time = (double)(now() - begin) / repeats;
    *best = time < *best ? time : *best;
    if (!result)
      status = weir_stream_synchronize(stream);
  }
  driver->ModuleUnload(driver, module);
  return result ? WEIR_ERROR_DRIVER : status;
}

static PyObject *time_launches(PyObject *unused, PyObject *argument) {
  (void)unused;
  int repeats, device;
  double best = 0;
  weir_status status;
  if (pyweir->parse_int(argument, &repeats) != 0 || pyweir->need_device(Py_None, &device) != 0)
    return NULL;
  PYWEIR_CALL(status, time_bare_launches(device, repeats, &best));
  return pyweir->check(status) == 0 ? PyFloat_FromDouble(best) : NULL;
}

static PyMethodDef methods[] = {
    {"_compile", compile_source, METH_VARARGS, NULL},
    {"_load_module", load_module, METH_VARARGS, NULL},
    {"_time_launches", time_launches, METH_O, "(repeats): nanoseconds of a bare cuLaunchKernel, called from C."},
    {"_add_library_folder", add_library_folder, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_kernel(PyObject *module) {
  if (PyType_Ready(&module_type) != 0 || PyType_Ready(&kernel_type) != 0)
    return -1;
  if (PyModule_AddObjectRef(module, "_Module", (PyObject *)&module_type) != 0 ||
      PyModule_AddObjectRef(module, "Kernel", (PyObject *)&kernel_type) != 0)
    return -1;
  return PyModule_AddFunctions(module, methods);
}

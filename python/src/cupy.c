/*
 * The allocator for CuPy (weir/cupy.py).
 *
 * CuPy calls an allocator for every array and expects a MemoryPointer to an object of a class derived from BaseMemory.
 * Its allocator for C functions passes no stream, and before version 14.2 it took a failure for memory at address 0.
 * So this part derives a class of its own, in C: an allocation is one call of the allocator for CuPy's current stream,
 * and a free is one call in the destructor. The GIL stays held unless the cache has no memory (weir/adapter.h).
 *
 * The layouts of the two classes are those that CuPy publishes in cupy/cuda/memory.pxd. A probe checks them with
 * objects before the first use; with any other layout weir/cupy.py calls Python functions instead. The current stream
 * and device come from the functions that CuPy exports to Cython code, in capsules.
 *
 * The function for the device calls the CUDA runtime. CuPy's pool gets memory from the runtime too, which sets a
 * context in the thread; Weir calls the driver, and leaves the thread as it was. On an H200, an allocation took more
 * than a microsecond longer in a process whose runtime had set no context. So the first allocation of a thread on a
 * device makes the runtime set one (`prepare`).
 */
#include "memory.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "weir/adapter.h"

/* ---- CuPy's classes ---- */

typedef struct base_memory {
  PyObject_HEAD intptr_t ptr;
  size_t size;
  int device_id;
} base_memory;

typedef struct memory_pointer {
  PyObject_HEAD void *methods;
  intptr_t ptr;
  int device_id;
  PyObject *mem;
} memory_pointer;

/* Memory of Weir. The address is kept apart because programs may write to `ptr`. */
typedef struct weir_memory {
  base_memory base;
  void *pointer;           /* to be freed; NULL if there is none */
  PyObject *free_function; /* called with the address and the device instead of the free; NULL without it */
} weir_memory;

/* ---- The allocator ---- */

/* Streams that stay alive, by a hash of their handles. A stream that is missing is looked up in Python. */
enum { KEPT_STREAMS = 64 };

typedef struct cupy_allocator {
  PyObject_HEAD PyTypeObject *memory_type;
  PyTypeObject *pointer_type;
  PyObject *no_arguments;          /* an empty tuple */
  int (*get_device)(int dispatch); /* of a function that Python code can override, hence the argument */
  intptr_t (*get_stream)(void);    /* either this one or the next is NULL */
  intptr_t (*get_stream_of)(int device);
  PyObject *prepare;       /* (device): makes the CUDA runtime set its context in this thread */
  PyObject *keep;          /* (handle) -> bool: keeps the current stream alive; whether it stays so forever */
  PyObject *alloc_slowly;  /* (bytes, device, handle) -> address, for the default stream of a thread */
  PyObject *free_slowly;   /* (address, device) */
  PyObject *out_of_memory; /* (bytes, device, exception): raises CuPy's exception */
  intptr_t kept[KEPT_STREAMS];
} cupy_allocator;

/* The handles of the driver's default streams. */
enum { LEGACY_STREAM = 1, PER_THREAD_STREAM = 2 };

/* Calls that released the GIL or called Python functions. Guarded by the GIL. */
static unsigned long long slow_allocs, slow_frees;

/* The devices whose context was set in this thread, one bit each. */
static _Thread_local uint64_t prepared_devices;
_Static_assert(WEIR_MAX_DEVICES <= 64, "a bit for each device");

/* Devices that Weir does not have are refused by the allocation. */
static int prepare_thread(const cupy_allocator *self, int device) {
  if (device < 0 || device >= WEIR_MAX_DEVICES)
    return 0;
  PyObject *result = PyObject_CallFunction(self->prepare, "i", device);
  if (!result)
    return -1;
  Py_DECREF(result);
  prepared_devices |= (uint64_t)1 << device;
  return 0;
}

static inline bool is_prepared(int device) { return prepared_devices >> ((unsigned)device % 64) & 1; }

static size_t place_of(intptr_t stream) { return (size_t)((uint64_t)stream * 0x9e3779b97f4a7c15u >> 58); }

static int current_stream(const cupy_allocator *self, int device, intptr_t *stream) {
  *stream = self->get_stream_of ? self->get_stream_of(device) : self->get_stream();
  return *stream == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Makes sure that the stream is not destroyed while Weir may pass its handle to the driver. */
static int keep_stream(cupy_allocator *self, intptr_t stream) {
  if (!stream || self->kept[place_of(stream)] == stream)
    return 0;
  PyObject *result = PyObject_CallFunction(self->keep, "n", (Py_ssize_t)stream);
  if (!result)
    return -1;
  if (result == Py_True)
    self->kept[place_of(stream)] = stream;
  Py_DECREF(result);
  return 0;
}

/* Turns weir.OutOfMemoryError into CuPy's exception. */
static void translate_error(cupy_allocator *self, size_t bytes, int device) {
  if (!PyErr_ExceptionMatches(pyweir_OutOfMemoryError))
    return;
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyErr_NormalizeException(&type, &error, &trace);
  PyObject *result = PyObject_CallFunction(self->out_of_memory, "niO", (Py_ssize_t)bytes, device, error);
  if (result)
    PyErr_SetString(PyExc_SystemError, "the function for out of memory returned");
  Py_XDECREF(result);
  Py_XDECREF(type);
  Py_XDECREF(error);
  Py_XDECREF(trace);
}

static int allocate(cupy_allocator *self, size_t bytes, int device, intptr_t stream, void **pointer) {
  weir_allocator *allocator = pyweir_need_allocator();
  weir_cu_stream raw = stream == LEGACY_STREAM ? NULL : (weir_cu_stream)stream; // NOLINT(performance-no-int-to-ptr)
  if (!allocator)
    return -1;
  weir_status status = weir_allocator_try_alloc(allocator, device, bytes, raw, pointer);
  if (status == WEIR_OK)
    return 0;
  slow_allocs++;
  PYWEIR_CALL(status, weir_allocator_alloc(allocator, device, bytes, raw, pointer));
  if (pyweir_check(status) == 0)
    return 0;
  translate_error(self, bytes, device);
  return -1;
}

/* Allocates for the stream that all threads call by the same handle. */
static int allocate_slowly(cupy_allocator *self, size_t bytes, int device, intptr_t stream, weir_memory *memory) {
  slow_allocs++;
  PyObject *address = PyObject_CallFunction(self->alloc_slowly, "nin", (Py_ssize_t)bytes, device, (Py_ssize_t)stream);
  int result = address ? pyweir_parse_address(address, &memory->pointer) : -1;
  Py_XDECREF(address);
  if (result == 0)
    memory->free_function = Py_NewRef(self->free_slowly);
  return result;
}

static int fill(cupy_allocator *self, weir_memory *memory, size_t bytes, int device) {
  intptr_t stream;
  memory->base.size = bytes;
  memory->base.device_id = device;
  if (!bytes)
    return 0;
  if (current_stream(self, device, &stream) != 0)
    return -1;
  int result;
  if (stream == PER_THREAD_STREAM)
    result = allocate_slowly(self, bytes, device, stream, memory);
  else
    result = (stream == LEGACY_STREAM || keep_stream(self, stream) == 0)
                 ? allocate(self, bytes, device, stream, &memory->pointer)
                 : -1;
  memory->base.ptr = (intptr_t)memory->pointer;
  return result;
}

static PyObject *point_to(const cupy_allocator *self, weir_memory *memory) {
  memory_pointer *pointer = (memory_pointer *)self->pointer_type->tp_new(self->pointer_type, self->no_arguments, NULL);
  if (!pointer)
    return NULL;
  pointer->ptr = memory->base.ptr;
  pointer->device_id = memory->base.device_id;
  Py_SETREF(pointer->mem, Py_NewRef((PyObject *)memory));
  return (PyObject *)pointer;
}

static PyObject *allocator_malloc(PyObject *object, PyObject *size) {
  cupy_allocator *self = (cupy_allocator *)object;
  size_t bytes = PyLong_CheckExact(size) ? PyLong_AsSize_t(size) : (size_t)-1;
  if (bytes == (size_t)-1) {
    PyErr_Clear();
    if (pyweir_parse_bytes(size, &bytes) != 0)
      return NULL;
  }
  int device = self->get_device(1);
  if (device == -1 && PyErr_Occurred())
    return NULL;
  if (!is_prepared(device) && prepare_thread(self, device) != 0)
    return NULL;
  weir_memory *memory = (weir_memory *)self->memory_type->tp_alloc(self->memory_type, 0); /* all fields are 0 */
  if (!memory)
    return NULL;
  PyObject *pointer = fill(self, memory, bytes, device) == 0 ? point_to(self, memory) : NULL;
  Py_DECREF(memory);
  return pointer;
}

/* ---- Memory ---- */

static void free_memory(weir_memory *memory) {
  void *pointer = memory->pointer;
  memory->pointer = NULL;
  if (weir_is_in_bad_fork()) /* the memory belongs to the parent */
    return;
  if (memory->free_function) {
    slow_frees++;
    PyObject *result = PyObject_CallFunction(memory->free_function, "Ki", (unsigned long long)(uintptr_t)pointer,
                                             memory->base.device_id);
    if (!result)
      PyErr_WriteUnraisable(memory->free_function);
    Py_XDECREF(result);
    return;
  }
  weir_status status = weir_allocator_try_free(pyweir_allocator(), pointer);
  if (status == WEIR_OK)
    return;
  slow_frees++;
  PYWEIR_CALL(status, weir_allocator_free(pyweir_allocator(), pointer));
  pyweir_write_unraisable(status);
}

static void memory_dealloc(PyObject *object) {
  weir_memory *memory = (weir_memory *)object;
  PyTypeObject *type = Py_TYPE(object);
  if (memory->pointer) {
    PyObject *error_type, *error, *trace;
    bool has_error = PyErr_Occurred() != NULL;
    if (has_error)
      PyErr_Fetch(&error_type, &error, &trace);
    free_memory(memory);
    if (has_error)
      PyErr_Restore(error_type, error, trace);
  }
  Py_CLEAR(memory->free_function);
  type->tp_free(object);
  Py_DECREF(type);
}

static PyObject *memory_refuse(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  (void)args, (void)keywords;
  return PyErr_Format(PyExc_TypeError, "cannot create '%s' instances", type->tp_name);
}

/* The class depends on CuPy's, so it is created when CuPy is known. */
static PyTypeObject *make_memory_type(PyObject *base) {
  static char doc[] = "Memory of Weir.";
  PyType_Slot slots[] = {{Py_tp_doc, doc}, {0, NULL}};
  PyType_Spec spec = {
      .name = "weir.cupy.Memory", .basicsize = (int)sizeof(weir_memory), .flags = Py_TPFLAGS_DEFAULT, .slots = slots};
  PyTypeObject *type = (PyTypeObject *)PyType_FromSpecWithBases(&spec, base);
  if (type) { /* a slot holds an object pointer, which ISO C does not convert from a function */
    type->tp_dealloc = memory_dealloc;
    type->tp_new = memory_refuse;
    PyType_Modified(type);
  }
  return type;
}

/* ---- Checks ---- */

/* Returns false if CuPy's class is not as expected. No exception is left. */
static bool probe_memory(PyTypeObject *type) {
  weir_memory *memory = (weir_memory *)type->tp_alloc(type, 0);
  bool is_same = memory != NULL;
  static const struct {
    const char *name;
    int value;
  } fields[] = {{"ptr", 0x12345678}, {"size", 0x23456789}, {"device_id", 0x3456789a}};
  for (size_t i = 0; is_same && i < sizeof fields / sizeof *fields; i++) {
    PyObject *value = PyLong_FromLong(fields[i].value);
    is_same = value && PyObject_SetAttrString((PyObject *)memory, fields[i].name, value) == 0;
    Py_XDECREF(value);
  }
  is_same = is_same && memory->base.ptr == fields[0].value && memory->base.size == (size_t)fields[1].value &&
            memory->base.device_id == fields[2].value && !memory->pointer && !memory->free_function;
  Py_XDECREF(memory);
  PyErr_Clear();
  return is_same;
}

static bool probe_pointer(PyTypeObject *pointer_type, PyTypeObject *memory_type) {
  weir_memory *memory = (weir_memory *)memory_type->tp_alloc(memory_type, 0);
  memory_pointer *pointer = NULL;
  if (memory) {
    memory->base.ptr = 0x12345678;
    memory->base.device_id = 0x3456789a;
    pointer = (memory_pointer *)PyObject_CallFunction((PyObject *)pointer_type, "Oi", memory, 8);
  }
  bool is_same = pointer && Py_TYPE(pointer) == pointer_type && pointer->ptr == 0x12345678 + 8 &&
                 pointer->device_id == 0x3456789a && pointer->mem == (PyObject *)memory;
  Py_XDECREF(pointer);
  Py_XDECREF(memory);
  PyErr_Clear();
  return is_same;
}

/* Finds a function that a Cython module exports. Its signature is the name of the capsule. Returns false if there is
 * none, without an exception; `found` is then the signature that it has. */
static bool find_function(PyObject *module, const char *name, const char *signature, void *function,
                          const char **found) {
  PyObject *table = PyObject_GetAttrString(module, "__pyx_capi__");
  PyObject *capsule = table && PyDict_Check(table) ? PyDict_GetItemString(table, name) : NULL;
  bool is_capsule = capsule && PyCapsule_CheckExact(capsule);
  void *address = is_capsule && PyCapsule_IsValid(capsule, signature) ? PyCapsule_GetPointer(capsule, signature) : NULL;
  const char *actual = is_capsule ? PyCapsule_GetName(capsule) : NULL;
  *found = actual ? actual : "nothing"; /* the text lives as long as the module */
  Py_XDECREF(table);
  PyErr_Clear();
  if (address)
    memcpy(function, &address, sizeof address);
  return address != NULL;
}

/* Returns what about this CuPy is not as expected, valid until the next call with the GIL; NULL if everything is. */
static const char *find_functions(cupy_allocator *self, PyObject *device_module, PyObject *stream_module) {
  static char text[256];
  static const char device[] = "int (int __pyx_skip_dispatch)", stream_of[] = "intptr_t (int)",
                    stream[] = "intptr_t (void)";
  const char *found, *found_of;
  if (!find_function(device_module, "get_device_id", device, &self->get_device, &found)) {
    snprintf(text, sizeof text, "cupy.cuda.device: expected get_device_id as '%s', found %s", device, found);
    return text;
  }
  if (find_function(stream_module, "get_stream_ptr", stream_of, &self->get_stream_of, &found_of) ||
      find_function(stream_module, "get_current_stream_ptr", stream, &self->get_stream, &found))
    return NULL;
  snprintf(text, sizeof text, "cupy_backends.cuda.stream: expected get_stream_ptr as '%s', found %s", stream_of,
           found_of);
  return text;
}

static const char *check_classes(cupy_allocator *self, PyObject *base, PyObject *pointer) {
  PyTypeObject *base_type = (PyTypeObject *)base, *pointer_type = (PyTypeObject *)pointer;
  if (base_type->tp_basicsize != (Py_ssize_t)sizeof(base_memory) || base_type->tp_itemsize ||
      base_type->tp_flags & Py_TPFLAGS_HAVE_GC || !(base_type->tp_flags & Py_TPFLAGS_BASETYPE))
    return "cupy.cuda.memory.BaseMemory has another layout";
  self->memory_type = make_memory_type(base);
  if (!self->memory_type || !probe_memory(self->memory_type)) {
    PyErr_Clear();
    return "cupy.cuda.memory.BaseMemory has other fields";
  }
  if (pointer_type->tp_basicsize != (Py_ssize_t)sizeof(memory_pointer) || !pointer_type->tp_new ||
      !probe_pointer(pointer_type, self->memory_type))
    return "cupy.cuda.memory.MemoryPointer has another layout";
  self->pointer_type = (PyTypeObject *)Py_NewRef(pointer);
  return NULL;
}

/* ---- The classes ---- */

static void allocator_dealloc(PyObject *object) {
  cupy_allocator *self = (cupy_allocator *)object;
  Py_XDECREF(self->memory_type);
  Py_XDECREF(self->pointer_type);
  Py_XDECREF(self->no_arguments);
  Py_XDECREF(self->prepare);
  Py_XDECREF(self->keep);
  Py_XDECREF(self->alloc_slowly);
  Py_XDECREF(self->free_slowly);
  Py_XDECREF(self->out_of_memory);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *allocator_owns(PyObject *object, PyObject *memory) {
  return PyBool_FromLong(Py_TYPE(memory) == ((cupy_allocator *)object)->memory_type);
}

static PyObject *allocator_free_slowly(PyObject *object, PyObject *memory) {
  cupy_allocator *self = (cupy_allocator *)object;
  if (Py_TYPE(memory) != self->memory_type)
    return pyweir_type_error("memory of this allocator", memory);
  Py_XSETREF(((weir_memory *)memory)->free_function, Py_NewRef(self->free_slowly));
  Py_RETURN_NONE;
}

static PyMethodDef allocator_methods[] = {
    {"malloc", allocator_malloc, METH_O, "(bytes): allocates on the current device and stream of CuPy."},
    {"owns", allocator_owns, METH_O, "(memory): whether the allocator created the object."},
    {"free_slowly", allocator_free_slowly, METH_O, "(memory): frees it with the Python function."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject allocator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._weir._CupyAllocator",
    .tp_doc = "Allocates for CuPy.",
    .tp_basicsize = sizeof(cupy_allocator),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = allocator_dealloc,
    .tp_methods = allocator_methods,
};

/* (BaseMemory, MemoryPointer, device module, stream module, prepare, keep, alloc, free, out of memory): returns the
 * allocator, or a text that says why it cannot serve this CuPy. */
static PyObject *make_allocator(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *base, *pointer, *device_module, *stream_module, *prepare, *keep, *alloc_slowly, *free_slowly,
      *out_of_memory;
  if (!PyArg_ParseTuple(args, "O!O!OOOOOOO:_cupy_allocator", &PyType_Type, &base, &PyType_Type, &pointer,
                        &device_module, &stream_module, &prepare, &keep, &alloc_slowly, &free_slowly, &out_of_memory))
    return NULL;
  cupy_allocator *self = (cupy_allocator *)allocator_type.tp_alloc(&allocator_type, 0);
  if (!self)
    return NULL;
  self->prepare = Py_NewRef(prepare);
  self->keep = Py_NewRef(keep);
  self->alloc_slowly = Py_NewRef(alloc_slowly);
  self->free_slowly = Py_NewRef(free_slowly);
  self->out_of_memory = Py_NewRef(out_of_memory);
  self->no_arguments = PyTuple_New(0);
  const char *difference = find_functions(self, device_module, stream_module);
  if (!difference)
    difference = check_classes(self, base, pointer);
  if (!difference && self->no_arguments)
    return (PyObject *)self;
  Py_DECREF(self);
  return difference ? PyUnicode_FromString(difference) : NULL;
}

PYWEIR_NO_ARGUMENTS(slow_calls, Py_BuildValue("KK", slow_allocs, slow_frees))

static PyMethodDef functions[] = {
    {"_cupy_allocator", make_allocator, METH_VARARGS, "Returns an allocator for CuPy, or the reason why it cannot."},
    {"_cupy_slow_calls", slow_calls, METH_NOARGS,
     "The number of allocations and of frees for CuPy that released the GIL or called Python functions."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_cupy(PyObject *module) {
  if (pyweir_add_type(module, &allocator_type) != 0)
    return -1;
  return PyModule_AddFunctions(module, functions);
}

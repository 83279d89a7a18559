/*
 * Pluggable allocators: functions of a loaded library, given by address.
 *
 * One can become the process's allocator, or provide the segments of a pool. Statistics, history and snapshots work as
 * with Weir's own allocator.
 */
#include "memory.h"

#include <stdatomic.h>
#include <stdlib.h>

struct pyweir_functions {
  atomic_int holds; /* the reference count */
  weir_backend backend;
  void *(*alloc)(size_t bytes, int device, weir_cu_stream stream);
  void (*free)(void *pointer, size_t bytes, int device, weir_cu_stream stream);
  /* Optional, NULL if not set. Written before the allocator is used. */
  void (*init)(int device_count);
  void (*reset)(void);
  void (*set_fraction)(double fraction, int device);
  void *(*base)(void *pointer, size_t *bytes);
  void (*record_stream)(void *pointer, weir_cu_stream stream);
  void (*begin_pool)(int device, weir_pool_id pool, int (*filter)(void *context, weir_cu_stream stream), void *context);
  void (*end_pool)(int device, weir_pool_id pool);
  void (*release_pool)(int device, weir_pool_id pool);
};

/* ---- Adapters from Weir's functions, which have a context, to the program's ---- */

void *pyweir_functions_alloc(void *functions, size_t bytes, int device, weir_cu_stream stream) {
  return ((pyweir_functions *)functions)->alloc(bytes, device, stream);
}

void pyweir_functions_free(void *functions, void *pointer, size_t bytes, int device, weir_cu_stream stream) {
  ((pyweir_functions *)functions)->free(pointer, bytes, device, stream);
}

static void call_init(void *functions, int count) { ((pyweir_functions *)functions)->init(count); }
static void call_reset(void *functions) { ((pyweir_functions *)functions)->reset(); }
static void call_set_fraction(void *functions, double fraction, int device) {
  ((pyweir_functions *)functions)->set_fraction(fraction, device);
}
static void *call_base(void *functions, void *pointer, size_t *bytes) {
  return ((pyweir_functions *)functions)->base(pointer, bytes);
}
static void call_record_stream(void *functions, void *pointer, weir_cu_stream stream) {
  ((pyweir_functions *)functions)->record_stream(pointer, stream);
}
static void call_begin_pool(void *functions, int device, weir_pool_id pool,
                            int (*filter)(void *context, weir_cu_stream stream), void *context) {
  ((pyweir_functions *)functions)->begin_pool(device, pool, filter, context);
}
static void call_end_pool(void *functions, int device, weir_pool_id pool) {
  ((pyweir_functions *)functions)->end_pool(device, pool);
}
static void call_release_pool(void *functions, int device, weir_pool_id pool) {
  ((pyweir_functions *)functions)->release_pool(device, pool);
}

void pyweir_functions_drop(void *functions) {
  pyweir_functions *f = functions;
  if (atomic_fetch_sub(&f->holds, 1) == 1)
    free(f);
}

/* ---- The object ---- */

typedef struct allocator_object {
  PyObject_HEAD pyweir_functions *functions; /* NULL for Weir's own allocator */
} allocator_object;

static PyTypeObject allocator_type;
static PyObject *current; /* the chosen allocator, or NULL; guarded by the GIL */

int pyweir_functions_of(PyObject *object, pyweir_functions **functions) {
  if (!PyObject_TypeCheck(object, &allocator_type)) {
    pyweir_type_error("an allocator such as CUDAPluggableAllocator(...).allocator()", object);
    return -1;
  }
  *functions = ((allocator_object *)object)->functions;
  if (*functions)
    atomic_fetch_add(&(*functions)->holds, 1);
  return 0;
}

static void allocator_dealloc(PyObject *object) {
  allocator_object *self = (allocator_object *)object;
  if (self->functions)
    pyweir_functions_drop(self->functions);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *allocator_name(PyObject *self, PyObject *unused) {
  (void)unused;
  if (((allocator_object *)self)->functions)
    return PyUnicode_FromString("pluggable");
  char name[64] = "native";
  weir_status status =
      pyweir_allocator() ? weir_allocator_backend(pyweir_allocator(), name, sizeof name, NULL) : WEIR_OK;
  return status ? pyweir_raise(status) : PyUnicode_FromString(name);
}

/* Parses an address that is not 0. The caller casts it to the type of the function. */
static int parse_function(PyObject *object, void **function) {
  if (!PyLong_Check(object)) {
    pyweir_type_error("the address of a function as an int", object);
    return -1;
  }
  *function = PyLong_AsVoidPtr(object);
  if (!*function && !PyErr_Occurred())
    PyErr_SetString(PyExc_ValueError, "the address of a function must not be 0");
  return *function ? 0 : -1;
}

/* Functions that are set after the allocator was chosen would not be called. */
static pyweir_functions *open_functions(PyObject *self) {
  pyweir_functions *functions = ((allocator_object *)self)->functions;
  if (!functions)
    PyErr_SetString(PyExc_RuntimeError, "functions of Weir's own allocator cannot be set");
  else if (self == current && pyweir_allocator()) {
    PyErr_SetString(PyExc_RuntimeError, "the allocator is in use: set its functions before the first allocation");
    functions = NULL;
  }
  return functions;
}

#define SETTER(name, field, backend_field, call)                                                                       \
  static PyObject *name(PyObject *self, PyObject *address) {                                                           \
    void *function;                                                                                                    \
    pyweir_functions *functions = open_functions(self);                                                                \
    if (!functions || parse_function(address, &function) != 0)                                                         \
      return NULL;                                                                                                     \
    *(void **)&functions->field = function;                                                                            \
    functions->backend.backend_field = call;                                                                           \
    Py_RETURN_NONE;                                                                                                    \
  }
SETTER(set_init_fn, init, init, call_init)
SETTER(set_reset_fn, reset, reset, call_reset)
SETTER(set_memory_fraction_fn, set_fraction, set_fraction, call_set_fraction)
SETTER(set_base_alloc_fn, base, base, call_base)
SETTER(set_record_stream_fn, record_stream, record_stream, call_record_stream)
SETTER(set_begin_allocate_to_pool, begin_pool, begin_pool, call_begin_pool)
SETTER(set_end_allocate_to_pool_fn, end_pool, end_pool, call_end_pool)
SETTER(set_release_pool, release_pool, release_pool, call_release_pool)
#undef SETTER

static PyMethodDef allocator_methods[] = {
    {"name", allocator_name, METH_NOARGS, "name($self, /)\n--\n\nReturns its name for get_allocator_backend()."},
    {"set_init_fn", set_init_fn, METH_O, "void fn(int device_count): called once, before all others."},
    {"set_reset_fn", set_reset_fn, METH_O, "void fn(void): called by empty_cache(), and before out of memory."},
    {"set_memory_fraction_fn", set_memory_fraction_fn, METH_O, "void fn(double fraction, int device)"},
    {"set_base_alloc_fn", set_base_alloc_fn, METH_O, "void *fn(void *pointer, size_t *bytes)"},
    {"set_record_stream_fn", set_record_stream_fn, METH_O, "void fn(void *pointer, CUstream stream)"},
    {"set_begin_allocate_to_pool", set_begin_allocate_to_pool, METH_O,
     "void fn(int device, weir_pool_id pool, int (*filter)(void *, CUstream), void *context)"},
    {"set_end_allocate_to_pool_fn", set_end_allocate_to_pool_fn, METH_O, "void fn(int device, weir_pool_id pool)"},
    {"set_release_pool", set_release_pool, METH_O, "void fn(int device, weir_pool_id pool)"},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject allocator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir._weir._cuda_CUDAAllocator",
    .tp_doc = "An allocator. Its functions are given by their addresses.",
    .tp_basicsize = sizeof(allocator_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = allocator_dealloc,
    .tp_methods = allocator_methods,
};

static PyObject *new_allocator(pyweir_functions *functions) {
  allocator_object *self = PyObject_New(allocator_object, &allocator_type);
  if (self)
    self->functions = functions;
  return (PyObject *)self;
}

static PyObject *custom_allocator(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *alloc_object, *free_object;
  void *alloc_function, *free_function;
  if (!PyArg_ParseTuple(args, "OO:_cuda_customAllocator", &alloc_object, &free_object) ||
      parse_function(alloc_object, &alloc_function) != 0 || parse_function(free_object, &free_function) != 0)
    return NULL;
  pyweir_functions *functions = calloc(1, sizeof *functions);
  if (!functions)
    return PyErr_NoMemory();
  functions->holds = 1;
  functions->backend = (weir_backend){.size = sizeof functions->backend,
                                      .context = functions,
                                      .alloc = pyweir_functions_alloc,
                                      .free = pyweir_functions_free};
  *(void **)&functions->alloc = alloc_function;
  *(void **)&functions->free = free_function;
  PyObject *self = new_allocator(functions);
  if (!self)
    free(functions);
  return self;
}

/* Works before the start only. The process then keeps the functions until it exits. */
static PyObject *change_current(PyObject *module, PyObject *object) {
  (void)module;
  pyweir_functions *functions;
  if (pyweir_functions_of(object, &functions) != 0)
    return NULL;
  if (pyweir_set_backend(functions ? &functions->backend : NULL) != 0) {
    if (functions)
      pyweir_functions_drop(functions);
    return NULL;
  }
  Py_INCREF(object);
  Py_XSETREF(current, object);
  Py_RETURN_NONE;
}

static PyObject *get_current(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  if (!current)
    return new_allocator(NULL);
  Py_INCREF(current);
  return current;
}

static PyMethodDef functions[] = {
    {"_cuda_customAllocator", custom_allocator, METH_VARARGS, "(address of alloc, address of free): an allocator."},
    {"_cuda_changeCurrentAllocator", change_current, METH_O, "(allocator): works before the start only."},
    {"_cuda_getAllocator", get_current, METH_NOARGS, "Returns the process's allocator."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_pluggable(PyObject *module) {
  if (pyweir_add_type(module, &allocator_type) != 0)
    return -1;
  return PyModule_AddFunctions(module, functions);
}

/*
 * The parts of CuPy that weir.cupy uses from C, for tests without CuPy: classes with the layout of
 * cupy/cuda/memory.pxd, and the functions that CuPy exports to Cython code.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

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

static int methods_of_pointers;

/* ---- BaseMemory ---- */

static PyMemberDef memory_members[] = {
    {"ptr", T_PYSSIZET, offsetof(base_memory, ptr), 0, NULL},
    {"size", T_PYSSIZET, offsetof(base_memory, size), 0, NULL},
    {"device_id", T_INT, offsetof(base_memory, device_id), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject memory_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fake_cupy.BaseMemory",
    .tp_basicsize = sizeof(base_memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_members = memory_members,
};

/* A class in which another field comes first. */
static PyMemberDef swapped_members[] = {
    {"size", T_PYSSIZET, offsetof(base_memory, ptr), 0, NULL},
    {"ptr", T_PYSSIZET, offsetof(base_memory, size), 0, NULL},
    {"device_id", T_INT, offsetof(base_memory, device_id), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject swapped_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fake_cupy.SwappedMemory",
    .tp_basicsize = sizeof(base_memory),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_members = swapped_members,
};

/* ---- MemoryPointer ---- */

static int traverse(PyObject *object, visitproc visit, void *arg) {
  Py_VISIT(((memory_pointer *)object)->mem);
  return 0;
}

static int clear(PyObject *object) {
  Py_CLEAR(((memory_pointer *)object)->mem);
  return 0;
}

static void pointer_dealloc(PyObject *object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *pointer_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  (void)args, (void)keywords;
  memory_pointer *self = (memory_pointer *)type->tp_alloc(type, 0);
  if (self) {
    self->methods = &methods_of_pointers;
    self->mem = Py_NewRef(Py_None);
  }
  return (PyObject *)self;
}

static int pointer_init(PyObject *object, PyObject *args, PyObject *keywords) {
  (void)keywords;
  memory_pointer *self = (memory_pointer *)object;
  PyObject *memory;
  Py_ssize_t offset;
  if (!PyArg_ParseTuple(args, "O!n", &memory_type, &memory, &offset))
    return -1;
  self->ptr = ((base_memory *)memory)->ptr + offset;
  self->device_id = ((base_memory *)memory)->device_id;
  Py_SETREF(self->mem, Py_NewRef(memory));
  return 0;
}

static PyObject *is_whole(PyObject *self, PyObject *unused) {
  (void)unused;
  return PyBool_FromLong(((memory_pointer *)self)->methods == &methods_of_pointers);
}

static PyMethodDef pointer_methods[] = {
    {"is_whole", is_whole, METH_NOARGS, "Whether the object was created by its own class."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef pointer_members[] = {
    {"ptr", T_PYSSIZET, offsetof(memory_pointer, ptr), READONLY, NULL},
    {"device_id", T_INT, offsetof(memory_pointer, device_id), READONLY, NULL},
    {"mem", T_OBJECT, offsetof(memory_pointer, mem), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject pointer_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "fake_cupy.MemoryPointer",
    .tp_basicsize = sizeof(memory_pointer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = pointer_new,
    .tp_init = pointer_init,
    .tp_dealloc = pointer_dealloc,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_members = pointer_members,
    .tp_methods = pointer_methods,
};

/* ---- Exported functions ---- */

static PyObject *stream_source; /* called for the current stream; NULL for the legacy default stream */

/* The CUDA runtime sets a context in a thread when it needs one. CuPy's pool makes it do so with its first memory. */
static _Thread_local bool has_context;
static long queries, queries_without_context; /* of the device; guarded by the GIL */

static int get_device_id(int dispatch) {
  (void)dispatch;
  queries++;
  queries_without_context += !has_context;
  return 0;
}

static intptr_t get_current_stream_ptr(void) {
  if (!stream_source)
    return 0;
  PyObject *number = PyObject_CallNoArgs(stream_source);
  intptr_t stream = number ? PyLong_AsSsize_t(number) : -1;
  Py_XDECREF(number);
  return stream;
}

static intptr_t get_stream_ptr(int device) {
  (void)device;
  return get_current_stream_ptr();
}

static PyObject *set_stream_source(PyObject *module, PyObject *function) {
  (void)module;
  Py_XSETREF(stream_source, function == Py_None ? NULL : Py_NewRef(function));
  Py_RETURN_NONE;
}

static PyObject *set_context(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  has_context = true;
  Py_RETURN_NONE;
}

static PyObject *device_queries(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  return Py_BuildValue("ll", queries, queries_without_context);
}

static PyMethodDef functions[] = {
    {"set_context", set_context, METH_NOARGS, "The runtime sets a context in this thread."},
    {"device_queries", device_queries, METH_NOARGS, "The queries of the device: all, and those without a context."},
    {"set_stream_source", set_stream_source, METH_O, "(function or None): it returns the current stream."},
    {NULL, NULL, 0, NULL},
};

/* `function` points to the pointer to a function. */
static int add_capsule(PyObject *dict, const char *name, const void *function, const char *signature) {
  void *address;
  memcpy(&address, function, sizeof address);
  PyObject *capsule = PyCapsule_New(address, signature, NULL);
  int result = capsule ? PyDict_SetItemString(dict, name, capsule) : -1;
  Py_XDECREF(capsule);
  return result;
}

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "fake_cupy", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC PyInit_fake_cupy(void);
PyMODINIT_FUNC PyInit_fake_cupy(void) {
  int (*const get_device_id_address)(int) = get_device_id;
  intptr_t (*const get_stream_ptr_address)(int) = get_stream_ptr;
  intptr_t (*const get_current_stream_ptr_address)(void) = get_current_stream_ptr;
  if (PyType_Ready(&memory_type) != 0 || PyType_Ready(&swapped_type) != 0 || PyType_Ready(&pointer_type) != 0)
    return NULL;
  PyObject *module = PyModule_Create(&definition), *exported = PyDict_New();
  if (!module || !exported || PyModule_AddObjectRef(module, "BaseMemory", (PyObject *)&memory_type) != 0 ||
      PyModule_AddObjectRef(module, "SwappedMemory", (PyObject *)&swapped_type) != 0 ||
      PyModule_AddObjectRef(module, "MemoryPointer", (PyObject *)&pointer_type) != 0 ||
      add_capsule(exported, "get_device_id", &get_device_id_address, "int (int __pyx_skip_dispatch)") != 0 ||
      add_capsule(exported, "get_stream_ptr", &get_stream_ptr_address, "intptr_t (int)") != 0 ||
      add_capsule(exported, "get_current_stream_ptr", &get_current_stream_ptr_address, "intptr_t (void)") != 0 ||
      PyModule_AddObjectRef(module, "__pyx_capi__", exported) != 0) {
    Py_XDECREF(module);
    module = NULL;
  }
  Py_XDECREF(exported);
  return module;
}

/*
 * The module weir._weir, on which the package `weir` is built. One module object serves the process, like the runtime.
 */
#include "memory.h"

int pyweir_add_type(PyObject *module, PyTypeObject *type) { return PyModule_AddType(module, type); }

int pyweir_parse_int(PyObject *object, int *value) {
  int overflow;
  long number = PyLong_AsLongAndOverflow(object, &overflow);
  if (number == -1 && PyErr_Occurred())
    return -1;
  if (overflow || number < INT_MIN || number > INT_MAX) {
    PyErr_SetString(PyExc_OverflowError, "the number is too large for a C int");
    return -1;
  }
  *value = (int)number;
  return 0;
}

static int add_api(PyObject *module) {
  static const pyweir_api api = {.version = PYWEIR_API_VERSION,
                                 .started = &pyweir_started,
#define X(type, name, parameters) .name = pyweir_##name,
                                 PYWEIR_API(X)
#undef X
  };
  PyObject *capsule = PyCapsule_New((void *)&api, PYWEIR_API_NAME, NULL);
  int result = capsule ? PyModule_AddObjectRef(module, "_C_API", capsule) : -1;
  Py_XDECREF(capsule);
  return result;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weir._weir",
    .m_doc = "The extension module of the package weir. Use the package.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__weir(void);
PyMODINIT_FUNC PyInit__weir(void) {
  PyObject *module = PyModule_Create(&definition);
  if (!module)
    return NULL;
  if (PyModule_AddStringConstant(module, "__version__", weir_version()) != 0)
    goto release_module;
#define X(part)                                                                                                        \
  if (pyweir_add_##part(module) != 0)                                                                                  \
    goto release_module;
  PYWEIR_PARTS(X)
#undef X
  if (add_api(module) != 0)
    goto release_module;
  return module;

release_module:
  Py_DECREF(module);
  return NULL;
}

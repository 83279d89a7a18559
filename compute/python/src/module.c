/*
 * The module weir.compute._compute: the extension of the subpackage weir.compute.
 */
#include "core.h"

#include <stdlib.h>

#include "weir/compute/compute.h"
#include "weir/compute/nvtx.h"

const pyweir_api *pyweir;

static weir_status use_allocator(weir_allocator *allocator) {
  weir_status status = weir_compute_use_allocator(allocator);
  /* A tool that was started with the program checks accesses to memory. */
  if (!status && weir_nvtx_is_listening() && weir_nvtx_report_memory(allocator, NULL))
    weir_log_message(WEIR_LOG_WARN, weir_last_error());
  return status;
}

PYWEIR_CALL_ONLY(use_process_allocator, use_allocator(pyweir->allocator()))

static PyMethodDef methods[] = {
    {"_use_allocator", use_process_allocator, METH_NOARGS,
     "Takes memory from the allocator of the process, which the core has started."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "weir.compute._compute",
    .m_doc = "The extension module of the package weir.compute. Use the package.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__compute(void);
PyMODINIT_FUNC PyInit__compute(void) {
  pyweir = PyCapsule_Import(PYWEIR_API_NAME, 0);
  if (!pyweir)
    return NULL;
  if (pyweir->version != PYWEIR_API_VERSION) {
    PyErr_SetString(PyExc_ImportError, "weir.compute was built for another version of weir: install both together");
    return NULL;
  }
  PyObject *module = PyModule_Create(&definition);
  if (!module)
    return NULL;
#define X(part)                                                                                                        \
  if (pyweir_add_##part(module) != 0)                                                                                  \
    goto release_module;
  PYWEIR_PARTS(X)
#undef X
  return module;

release_module:
  Py_DECREF(module);
  return NULL;
}

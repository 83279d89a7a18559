/*
 * Starting Weir from Python. weir/_lazy.py implements the order of the steps, the lock and the deferred calls; this
 * file has the functions that it calls, and the flag that makes the check cheap.
 */
#include <pthread.h>

#include "pyweir.h"

bool pyweir_started;
static PyObject *lazy_init; /* _lazy_init() of the package; NULL until it is set; guarded by the GIL */

/* A forked child cannot use the parent's runtime. */
static void after_fork_in_child(void) { pyweir_started = false; }

int pyweir_start(void) {
  if (!lazy_init) {
    PyErr_SetString(PyExc_RuntimeError, "the package weir was not imported");
    return -1;
  }
  PyObject *result = PyObject_CallNoArgs(lazy_init);
  Py_XDECREF(result);
  return result ? 0 : -1;
}

static PyObject *set_lazy_init(PyObject *module, PyObject *function) {
  (void)module;
  Py_INCREF(function);
  Py_XSETREF(lazy_init, function);
  Py_RETURN_NONE;
}

static PyObject *start_runtime(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_status status;
  PYWEIR_CALL(status, weir_init());
  if (pyweir_check(status) != 0)
    return NULL;
  if (pyweir_memory_start() != 0)
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *set_started(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  pyweir_started = true;
  Py_RETURN_NONE;
}

PYWEIR_NO_ARGUMENTS(is_started, PyBool_FromLong(pyweir_started))
PYWEIR_NO_ARGUMENTS(is_in_bad_fork, PyBool_FromLong(weir_is_in_bad_fork()))

static PyMethodDef methods[] = {
    {"_set_lazy_init", set_lazy_init, METH_O, "Sets the function that starts Weir when a call needs it."},
    {"_start", start_runtime, METH_NOARGS, "Starts the runtime and its allocator."},
    {"_set_started", set_started, METH_NOARGS, "Marks the start as complete."},
    {"_is_started", is_started, METH_NOARGS, "Whether the start is complete in this process."},
    {"_is_in_bad_fork", is_in_bad_fork, METH_NOARGS, "Whether the process was forked after the start."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_init(PyObject *module) {
  if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0) {
    PyErr_NoMemory();
    return -1;
  }
  return PyModule_AddFunctions(module, methods);
}

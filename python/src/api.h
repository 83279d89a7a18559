/*
 * The C API of the extension weir._weir, for other extensions of the package: a capsule, _C_API, with a table of
 * functions. The public calls of libweir are symbols of the extension, which the other extension is linked to.
 *
 * The GIL: a call of Weir that can block, run a callback or take an allocator's lock is made without the GIL
 * (PYWEIR_CALL). No thread waits for a lock of Weir while it holds the GIL, so a callback that runs under such a lock
 * can take the GIL.
 *
 * An int function returns 0, or -1 with an exception set, unless stated otherwise.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <structmember.h>

#include "dlpack.h"
#include "weir/weir.h"

#define PYWEIR_API_NAME "weir._weir._C_API"

#define PYWEIR_API_VERSION (WEIR_VERSION_MAJOR * 10000 + WEIR_VERSION_MINOR * 100 + WEIR_VERSION_PATCH)

/* The memory of a weir.Buffer. */
typedef struct pyweir_memory {
  void *pointer;
  size_t bytes;
  int device; /* -1 for host memory */
  bool is_readonly;
} pyweir_memory;

/* X(TYPE, NAME, PARAMETERS) for each function. In the core, NAME is pyweir_NAME, and its header says what it does. */
#define PYWEIR_API(X)                                                                                                  \
  X(int, start, (void))                                                                                                \
  X(PyThreadState *, begin_call, (void))                                                                               \
  X(void, end_call, (PyThreadState * saved))                                                                           \
  X(int, check, (weir_status status))                                                                                  \
  X(void, change_type, (PyObject * type))                                                                              \
  X(PyObject *, none, (weir_status status))                                                                            \
  X(PyObject *, type_error, (const char *what, PyObject *object))                                                      \
  X(int, add_type, (PyObject * module, PyTypeObject * type))                                                           \
  X(int, parse_int, (PyObject * object, int *value))                                                                   \
  X(int, parse_bytes, (PyObject * object, size_t * bytes))                                                             \
  X(int, parse_address, (PyObject * object, void **address))                                                           \
  X(int, parse_device, (PyObject * object, int *device))                                                               \
  X(int, need_device, (PyObject * object, int *device))                                                                \
  X(PyObject *, device_wrap, (int device))                                                                             \
  X(int, parse_stream, (PyObject * object, int device, weir_stream *stream))                                           \
  X(weir_status, current_stream, (int device, weir_stream *stream, weir_cu_stream *raw))                               \
  X(weir_graph *, graph_get, (PyObject * object))                                                                      \
  X(bool, driver_can, (uint64_t capability))                                                                           \
  X(weir_allocator *, allocator, (void))                                                                               \
  X(weir_host_allocator *, need_host, (void))                                                                          \
  X(int, buffer_memory, (PyObject * object, pyweir_memory * memory))                                                   \
  X(int, parse_arguments,                                                                                              \
    (const char *function, const char *const *names, int name_count, int positional, PyObject *const *args,            \
     Py_ssize_t count, PyObject *keywords, PyObject **values))                                                         \
  X(PyObject *, dlpack_capsule, (PyObject * object))                                                                   \
  X(const tensor *, dlpack_tensor, (PyObject * capsule, bool *is_readonly))                                            \
  X(int, dlpack_consume, (PyObject * capsule, void **managed, bool *is_versioned))                                     \
  X(void, dlpack_release, (void *managed, bool is_versioned))                                                          \
  X(void, dlpack_destroy_capsule, (PyObject * capsule))                                                                \
  X(int, dlpack_wants_version, (PyObject * max_version))                                                               \
  X(int, dlpack_check_device, (int type, int number, PyObject *requested))                                             \
  X(int, dlpack_parse_stream, (PyObject * stream, int type, bool *is_ordered, weir_cu_stream *raw))

typedef struct pyweir_api {
  int version;         /* PYWEIR_API_VERSION of the core: both extensions must be of one version */
  const bool *started; /* whether Weir has started; guarded by the GIL */
#define X(type, name, parameters) type(*name) parameters;
  PYWEIR_API(X)
#undef X
} pyweir_api;

/* For method tables: functions with keywords have a C type that differs from the table's. */
#define PYWEIR_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function)), METH_VARARGS | METH_KEYWORDS
#define PYWEIR_FAST(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL
#define PYWEIR_FAST_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function)), METH_FASTCALL | METH_KEYWORDS

/* Calls Weir without the GIL, and stores the status:
 *
 *     weir_status status;
 *     PYWEIR_CALL(status, weir_stream_synchronize(stream));
 *     return PYWEIR(none)(status);
 *
 * PYWEIR(name) is a function of the table: pyweir_name in the core, pyweir->name elsewhere. */
#define PYWEIR_CALL(status, expression)                                                                                \
  do {                                                                                                                 \
    PyThreadState *pyweir_saved = PYWEIR(begin_call)();                                                                \
    (status) = (expression);                                                                                           \
    PYWEIR(end_call)(pyweir_saved);                                                                                    \
  } while (0)

/* Whole functions of tables: getters, functions without arguments that return a value, and those that make one call of
 * Weir and return None. The expression may use `self`. */
#define PYWEIR_GETTER(name, expression)                                                                                \
  static PyObject *name(PyObject *self, void *unused) {                                                                \
    (void)self, (void)unused;                                                                                          \
    return expression;                                                                                                 \
  }
#define PYWEIR_NO_ARGUMENTS(name, expression)                                                                          \
  static PyObject *name(PyObject *self, PyObject *unused) {                                                            \
    (void)self, (void)unused;                                                                                          \
    return expression;                                                                                                 \
  }
#define PYWEIR_CALL_ONLY(name, call)                                                                                   \
  static PyObject *name(PyObject *self, PyObject *unused) {                                                            \
    weir_status status;                                                                                                \
    (void)self, (void)unused;                                                                                          \
    PYWEIR_CALL(status, call);                                                                                         \
    return PYWEIR(none)(status);                                                                                       \
  }

/* Starts Weir if needed. Comes first in every function that needs a device. */
#define PYWEIR_ENSURE_INIT(started) ((started) ? 0 : PYWEIR(start)())

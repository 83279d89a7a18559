/*
 * Converts statuses to exceptions, and Weir's warnings to Python warnings.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pyweir.h"

PyObject *pyweir_OutOfMemoryError;
PyObject *pyweir_AcceleratorError;

/* ---- Texts ---- */

/* The names in Weir's texts that Python has other names for. Longer ones come first. */
static const char *const names[][2] = {
    {"with the flag WEIR_EVENT_TIMING", "with argument 'enable_timing=True'"},
    {"without WEIR_EVENT_INTERPROCESS", "without interprocess=True"},
    {"WEIR_EVENT_INTERPROCESS", "interprocess"},
    {"WEIR_EVENT_TIMING", "enable_timing"},
    {"This weir_graph instance", "This CUDAGraph instance"},
    {"call weir_graph_enable_debug before", "call enable_debug_mode() before"},
    {"weir_graph_", "CUDAGraph."},
    {"weir_ipc_open opens those of weir_ipc_share", "open_shared() opens those of share()"},
    {"weir_ipc_share", "share()"},
    {"weir_ipc_send", "multiprocessing"},
};

/* The text of an error without the name of the C function before it, and with Python's names in it. */
static PyObject *message_of(const char *text) {
  for (;;) {
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (strncmp(text, "weir_", 5) != 0 || strncmp(text + length, ": ", 2) != 0)
      break;
    text += length + 2;
  }
  PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
  for (size_t i = 0; message && i < sizeof names / sizeof *names; i++) {
    if (!strstr(text, names[i][0]))
      continue;
    PyObject *from = PyUnicode_FromString(names[i][0]), *to = PyUnicode_FromString(names[i][1]);
    PyObject *replaced = from && to ? PyUnicode_Replace(message, from, to, -1) : NULL;
    Py_XDECREF(from);
    Py_XDECREF(to);
    Py_SETREF(message, replaced);
  }
  return message;
}

/* ---- Warnings ---- */

/* Weir writes warnings where Python code must not run: in calls that hold locks, on any thread. Warnings of a call from
 * Python are kept until the call has returned. */
typedef struct kept_warning {
  struct kept_warning *next;
  char text[];
} kept_warning;

static _Thread_local kept_warning *kept, **kept_end;
static _Thread_local int calls; /* the nesting depth of this thread's calls from Python */

static void write_message(void *context, weir_log_level level, const char *message) {
  (void)context;
  if (level == WEIR_LOG_WARN && calls > 0) {
    size_t size = strlen(message) + 1;
    kept_warning *warning = malloc(sizeof *warning + size);
    if (warning) {
      warning->next = NULL;
      memcpy(warning->text, message, size);
      if (!kept)
        kept_end = &kept;
      *kept_end = warning;
      kept_end = &warning->next;
      return;
    }
  }
  static const char *const names[] = {"error", "warning", "info", "debug"};
  fprintf(stderr, "weir: %s: %s\n", names[level], message);
}

PyThreadState *pyweir_begin_call(void) {
  calls++;
  return PyEval_SaveThread();
}

void pyweir_end_call(PyThreadState *saved) {
  PyEval_RestoreThread(saved);
  calls--;
}

static bool is_of_package(PyObject *frame) {
  PyObject *globals = PyObject_GetAttrString(frame, "f_globals");
  PyObject *name = globals ? PyMapping_GetItemString(globals, "__name__") : NULL;
  const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
  bool found = text && (strcmp(text, "weir") == 0 || strncmp(text, "weir.", 5) == 0);
  Py_XDECREF(name);
  Py_XDECREF(globals);
  PyErr_Clear();
  return found;
}

/* The stack level that a warning is reported at: of the first frame outside of the package. */
static int level_of_caller(void) {
  int level = 1;
  PyObject *frame = Py_XNewRef((PyObject *)PyEval_GetFrame());
  while (frame && is_of_package(frame)) {
    level++;
    Py_SETREF(frame, (PyObject *)PyFrame_GetBack((PyFrameObject *)frame));
  }
  Py_XDECREF(frame);
  return level;
}

/* Returns -1 if a warning becomes an exception; the remaining ones are then dropped. */
static int issue_warnings(void) {
  int result = 0, level = kept ? level_of_caller() : 1;
  while (kept) {
    kept_warning *warning = kept;
    kept = warning->next;
    PyObject *message = result == 0 ? message_of(warning->text) : NULL;
    if (result == 0)
      result = message ? PyErr_WarnFormat(PyExc_UserWarning, level, "%U", message) : -1;
    Py_XDECREF(message);
    free(warning);
  }
  return result;
}

/* ---- Exceptions ---- */

static PyObject *type_of(weir_status status, int result) {
  switch (status) {
  case WEIR_ERROR_OUT_OF_MEMORY:
    return pyweir_OutOfMemoryError;
  case WEIR_ERROR_HOST_OUT_OF_MEMORY:
    return PyExc_MemoryError;
  case WEIR_ERROR_INVALID_ARGUMENT:
  case WEIR_ERROR_BAD_DATA:
    return PyExc_ValueError;
  case WEIR_ERROR_NOT_SUPPORTED:
    return PyExc_NotImplementedError;
  case WEIR_ERROR_SYSTEM:
    return PyExc_OSError;
  case WEIR_ERROR_INVALID_DEVICE:
  case WEIR_ERROR_INVALID_HANDLE:
  case WEIR_ERROR_NOT_READY:
  case WEIR_ERROR_DEVICE_FAULT:
  case WEIR_ERROR_DRIVER:
    return pyweir_AcceleratorError;
  default:
    return result ? pyweir_AcceleratorError : PyExc_RuntimeError;
  }
}

/* The CUDA runtime's error code: the driver's if it returned one, or else the code with the same meaning. */
static int code_of(weir_status status, int result) {
  if (result)
    return result;
  switch (status) {
  case WEIR_ERROR_INVALID_DEVICE:
    return WEIR_CU_INVALID_DEVICE;
  case WEIR_ERROR_INVALID_HANDLE:
    return WEIR_CU_INVALID_HANDLE;
  case WEIR_ERROR_NOT_READY:
    return WEIR_CU_NOT_READY;
  default:
    return WEIR_CU_UNKNOWN;
  }
}

static void set_exception(PyObject *type, weir_status status, int result, const char *text) {
  PyObject *message = message_of(text);
  PyObject *exception = message ? PyObject_CallOneArg(type, message) : NULL;
  Py_XDECREF(message);
  if (!exception)
    return;
  if (type == pyweir_AcceleratorError) {
    PyObject *code = PyLong_FromLong(code_of(status, result));
    if (!code || PyObject_SetAttrString(exception, "error_code", code) != 0)
      PyErr_Clear();
    Py_XDECREF(code);
  }
  PyErr_SetObject(type, exception);
  Py_DECREF(exception);
}

PyObject *pyweir_raise(weir_status status) {
  const char *last = weir_last_error();
  int result = weir_last_driver_result();
  /* Statuses that are not failures set no text. */
  char *text = strdup(*last && status != WEIR_ERROR_NOT_READY ? last : weir_status_string(status));
  if (!text)
    return PyErr_NoMemory();
  if (issue_warnings() == 0)
    set_exception(type_of(status, result), status, result, text);
  free(text);
  return NULL;
}

PyObject *pyweir_type_error(const char *what, PyObject *object) {
  return PyErr_Format(PyExc_TypeError, "expected %s, got %.100s", what, Py_TYPE(object)->tp_name);
}

void pyweir_write_unraisable(weir_status status) {
  if (status == WEIR_OK)
    return;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  pyweir_raise(status);
  PyErr_WriteUnraisable(NULL);
  PyErr_Restore(type, value, trace);
}

int pyweir_check(weir_status status) {
  if (status == WEIR_OK)
    return kept ? issue_warnings() : 0;
  pyweir_raise(status);
  return -1;
}

void pyweir_change_type(PyObject *type) {
  PyObject *old, *value, *trace, *text;
  PyErr_Fetch(&old, &value, &trace);
  text = value ? PyObject_Str(value) : NULL;
  if (text)
    PyErr_SetObject(type, text);
  Py_XDECREF(text);
  Py_XDECREF(old);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

PyObject *pyweir_none(weir_status status) {
  if (pyweir_check(status) != 0)
    return NULL;
  Py_RETURN_NONE;
}

int pyweir_add_errors(PyObject *module) {
  weir_log_set_sink(write_message, NULL);

  pyweir_OutOfMemoryError = PyErr_NewExceptionWithDoc(
      "weir.OutOfMemoryError", "The device is out of memory. The message says where the memory is, and what may help.",
      PyExc_RuntimeError, NULL);
  if (!pyweir_OutOfMemoryError || PyModule_AddObjectRef(module, "OutOfMemoryError", pyweir_OutOfMemoryError) != 0)
    return -1;
  pyweir_AcceleratorError = PyErr_NewExceptionWithDoc(
      "weir.AcceleratorError", "The device or its driver failed. error_code is the CUDA error code.",
      PyExc_RuntimeError, NULL);
  if (!pyweir_AcceleratorError)
    return -1;
  return PyModule_AddObjectRef(module, "AcceleratorError", pyweir_AcceleratorError);
}

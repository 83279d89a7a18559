/*
 * Tunable operations. The functions have the names, checks and texts of torch._C; weir/tunable.py is built on them.
 */
#include "weir/compute/tunable.h"

#include "core.h"

enum { NAME_SIZE = 4096 };

static const char *type_name(PyObject *object) { return Py_TYPE(object)->tp_name; }

/* Sets a RuntimeError unless the object is a bool, as torch._C does. */
static int parse_bool(const char *function, PyObject *object, int *value) {
  if (!PyBool_Check(object)) {
    PyErr_Format(PyExc_RuntimeError, "%s expects a bool, but got %s", function, type_name(object));
    return -1;
  }
  *value = object == Py_True;
  return 0;
}

static int parse_int(const char *function, PyObject *object, int *value) {
  if (!PyLong_Check(object) || PyBool_Check(object)) {
    PyErr_Format(PyExc_RuntimeError, "%s expects an int, but got %s", function, type_name(object));
    return -1;
  }
  return pyweir->parse_int(object, value);
}

/* The text of a str, or NULL with a RuntimeError. */
static const char *parse_text(const char *function, PyObject *object) {
  if (PyUnicode_Check(object)) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text && strlen(text) != (size_t)length) {
      PyErr_SetString(PyExc_ValueError, "embedded null character");
      return NULL;
    }
    return text;
  }
  PyErr_Format(PyExc_RuntimeError, "%s expects a string, but got %s", function, type_name(object));
  return NULL;
}

/* ---- Switches and numbers ---- */

#define SWITCH(name, c_name, setter)                                                                                   \
  static PyObject *name(PyObject *module, PyObject *object) {                                                          \
    (void)module;                                                                                                      \
    int on;                                                                                                            \
    if (parse_bool(c_name, object, &on) != 0)                                                                          \
      return NULL;                                                                                                     \
    PyThreadState *saved = pyweir->begin_call();                                                                       \
    setter(on);                                                                                                        \
    pyweir->end_call(saved);                                                                                           \
    return pyweir->none(WEIR_OK);                                                                                      \
  }
SWITCH(enable, "cuda_tunableop_enable", weir_tunable_set_enabled)
SWITCH(tuning_enable, "cuda_tunableop_tuning_enable", weir_tunable_set_tuning)
SWITCH(record_untuned_enable, "cuda_record_untuned_enable", weir_tunable_set_record_untuned)
SWITCH(write_file_on_exit, "cuda_tunableop_write_file_on_exit", weir_tunable_set_write_results)

#define IS(name, getter)                                                                                               \
  static PyObject *name(PyObject *module, PyObject *unused) {                                                          \
    (void)module, (void)unused;                                                                                        \
    return PyBool_FromLong(getter());                                                                                  \
  }
IS(is_enabled, weir_tunable_is_enabled)
IS(tuning_is_enabled, weir_tunable_is_tuning)
IS(record_untuned_is_enabled, weir_tunable_is_recording_untuned)

#define NUMBER(set_name, get_name, c_name, setter, getter)                                                             \
  static PyObject *set_name(PyObject *module, PyObject *object) {                                                      \
    (void)module;                                                                                                      \
    int value;                                                                                                         \
    if (parse_int(c_name, object, &value) != 0)                                                                        \
      return NULL;                                                                                                     \
    setter(value);                                                                                                     \
    Py_RETURN_NONE;                                                                                                    \
  }                                                                                                                    \
  static PyObject *get_name(PyObject *module, PyObject *unused) {                                                      \
    (void)module, (void)unused;                                                                                        \
    return PyLong_FromLong(getter());                                                                                  \
  }
NUMBER(set_max_duration, get_max_duration, "cuda_tunableop_set_max_tuning_duration", weir_tunable_set_max_duration,
       weir_tunable_get_max_duration)
NUMBER(set_max_iterations, get_max_iterations, "cuda_tunableop_set_max_tuning_iterations",
       weir_tunable_set_max_iterations, weir_tunable_get_max_iterations)

static PyObject *set_rotating(PyObject *module, PyObject *object) {
  (void)module;
  int value;
  if (parse_int("cuda_tunableop_set_rotating_buffer_size", object, &value) != 0)
    return NULL;
  weir_tunable_set_rotating_buffer_size(value);
  Py_RETURN_NONE;
}

static PyObject *get_rotating(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  uint64_t bytes;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tunable_get_rotating_buffer_size(-1, &bytes));
  return pyweir->check(status) == 0 ? PyLong_FromUnsignedLongLong(bytes / 1024) : NULL;
}

static PyObject *set_tolerances(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *object;
  int on;
  double atol = 1e-5, rtol = 1e-5;
  if (!PyArg_ParseTuple(args, "O|dd:_cuda_tunableop_set_numerical_check_tolerances", &object, &atol, &rtol) ||
      parse_bool("cuda_tunableop_set_numerical_check_tolerances", object, &on) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_tunable_set_numerical_check(on, atol, rtol));
  return pyweir->none(status);
}

/* ---- Files ---- */

static PyObject *set_filename(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *name, *ordinal = NULL;
  int inserts = 0;
  if (!PyArg_ParseTuple(args, "O|O:_cuda_tunableop_set_filename", &name, &ordinal))
    return NULL;
  const char *text = parse_text("cuda_tunableop_set_filename", name);
  if (!text || (ordinal && parse_bool("cuda_tunableop_set_filename", ordinal, &inserts) != 0))
    return NULL;
  return pyweir->none(weir_tunable_set_filename(text, inserts));
}

static PyObject *get_filename(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  char text[NAME_SIZE];
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tunable_get_filename(-1, text, sizeof text, NULL));
  return pyweir->check(status) == 0 ? PyUnicode_DecodeFSDefault(text) : NULL;
}

/* A file that is refused is a warning and False, as in PyTorch; one that does not exist is False. */
static PyObject *use_file(PyObject *args, const char *function, weir_status (*use)(int device, const char *name)) {
  PyObject *name = NULL;
  const char *text = NULL;
  weir_status status;
  if (!PyArg_ParseTuple(args, "|O", &name) || (name && !(text = parse_text(function, name))) ||
      pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, use(-1, text));
  bool is_refused =
      status == WEIR_ERROR_BAD_STATE || status == WEIR_ERROR_BAD_DATA ||
      (status == WEIR_ERROR_SYSTEM && (use == weir_tunable_write_file || !strstr(weir_last_error(), "No such file")));
  if (is_refused) {
    const char *why = weir_last_error(), *colon = strstr(why, ": ");
    if (PyErr_WarnEx(PyExc_UserWarning, colon ? colon + 2 : why, 2) != 0)
      return NULL;
  }
  if (is_refused || status == WEIR_ERROR_SYSTEM)
    Py_RETURN_FALSE;
  if (pyweir->check(status) != 0)
    return NULL;
  Py_RETURN_TRUE;
}

static PyObject *write_file(PyObject *module, PyObject *args) {
  (void)module;
  return use_file(args, "cuda_tunableop_write_file", weir_tunable_write_file);
}

static PyObject *read_file(PyObject *module, PyObject *args) {
  (void)module;
  return use_file(args, "cuda_tunableop_read_file", weir_tunable_read_file);
}

/* ---- Results ---- */

static PyObject *get_results(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_tunable_result *list;
  size_t count;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tunable_list_results(-1, &list, &count));
  if (pyweir->check(status) != 0) { /* also if a warning became an exception */
    if (status == WEIR_OK)
      weir_tunable_free(list);
    return NULL;
  }
  PyObject *tuple = PyTuple_New((Py_ssize_t)count);
  for (size_t i = 0; tuple && i < count; i++) {
    PyObject *item = Py_BuildValue("(sssd)", list[i].op, list[i].params, list[i].solution, list[i].milliseconds);
    if (item)
      PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, item);
    else
      Py_CLEAR(tuple);
  }
  weir_tunable_free(list);
  return tuple;
}

static PyObject *get_validators(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_tunable_validator *list;
  size_t count;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tunable_list_validators(-1, &list, &count));
  if (pyweir->check(status) != 0) {
    if (status == WEIR_OK)
      weir_tunable_free(list);
    return NULL;
  }
  PyObject *tuple = PyTuple_New((Py_ssize_t)count);
  for (size_t i = 0; tuple && i < count; i++) {
    PyObject *item = Py_BuildValue("(ss)", list[i].key, list[i].value);
    if (item)
      PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, item);
    else
      Py_CLEAR(tuple);
  }
  weir_tunable_free(list);
  return tuple;
}

static PyObject *set_validator(PyObject *module, PyObject *args) {
  (void)module;
  const char *key, *value;
  if (!PyArg_ParseTuple(args, "sz:_tunable_set_validator", &key, &value))
    return NULL;
  return pyweir->none(weir_tunable_set_validator(key, value));
}

static PyObject *forget(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_status status;
  if (pyweir_ensure_init() != 0)
    return NULL;
  PYWEIR_CALL(status, weir_tunable_forget(-1));
  return pyweir->none(status);
}

static PyMethodDef functions[] = {
    {"_cuda_tunableop_enable", enable, METH_O, NULL},
    {"_cuda_tunableop_is_enabled", is_enabled, METH_NOARGS, NULL},
    {"_cuda_tunableop_tuning_enable", tuning_enable, METH_O, NULL},
    {"_cuda_tunableop_tuning_is_enabled", tuning_is_enabled, METH_NOARGS, NULL},
    {"_cuda_record_untuned_enable", record_untuned_enable, METH_O, NULL},
    {"_cuda_record_untuned_is_enabled", record_untuned_is_enabled, METH_NOARGS, NULL},
    {"_cuda_tunableop_write_file_on_exit", write_file_on_exit, METH_O, NULL},
    {"_cuda_tunableop_set_max_tuning_duration", set_max_duration, METH_O, NULL},
    {"_cuda_tunableop_get_max_tuning_duration", get_max_duration, METH_NOARGS, NULL},
    {"_cuda_tunableop_set_max_tuning_iterations", set_max_iterations, METH_O, NULL},
    {"_cuda_tunableop_get_max_tuning_iterations", get_max_iterations, METH_NOARGS, NULL},
    {"_cuda_tunableop_set_filename", set_filename, METH_VARARGS, NULL},
    {"_cuda_tunableop_get_filename", get_filename, METH_NOARGS, NULL},
    {"_cuda_tunableop_write_file", write_file, METH_VARARGS, NULL},
    {"_cuda_tunableop_read_file", read_file, METH_VARARGS, NULL},
    {"_cuda_tunableop_get_results", get_results, METH_NOARGS, NULL},
    {"_cuda_tunableop_get_validators", get_validators, METH_NOARGS, NULL},
    {"_cuda_tunableop_set_rotating_buffer_size", set_rotating, METH_O, NULL},
    {"_cuda_tunableop_get_rotating_buffer_size", get_rotating, METH_NOARGS, NULL},
    {"_cuda_tunableop_set_numerical_check_tolerances", set_tolerances, METH_VARARGS, NULL},
    {"_tunable_set_validator", set_validator, METH_VARARGS, NULL},
    {"_tunable_forget", forget, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_tunable(PyObject *module) { return PyModule_AddFunctions(module, functions); }

/*
 * Mixed precision: gradient scaling on lists of arrays, and the state of autocast, which each thread has for itself.
 */
#include "amp.h"

#include <limits.h>
#include <string.h>

#include "weir/compute/amp.h"

_Thread_local pyweir_autocast_state pyweir_autocast
    __attribute__((tls_model("initial-exec"))) = {.dtypes = {WEIR_BFLOAT16, WEIR_FLOAT16}};

/* ---- Gradient scaling ---- */

/* _amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale) */
static PyObject *unscale(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *object, *found_inf, *inv_scale;
  if (!PyArg_ParseTuple(args, "OO!O!:_amp_foreach_non_finite_check_and_unscale_", &object, &pyweir_array_type,
                        &found_inf, &pyweir_array_type, &inv_scale))
    return NULL;
  PyObject *given = PySequence_Fast(object, "expected a list of arrays");
  PyObject *list = given ? PySequence_Tuple(given) : NULL; /* other threads may change a list */
  Py_XDECREF(given);
  if (!list)
    return NULL;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(list);
  weir_array *arrays = PyMem_Calloc((size_t)count + 1, sizeof *arrays);
  bool is_good = arrays != NULL && pyweir_array_check_writable(found_inf) == 0;
  if (!arrays)
    PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < count && is_good; i++) {
    PyObject *item = PySequence_Fast_GET_ITEM(list, i);
    if (!PYWEIR_IS_ARRAY(item)) {
      PyErr_Format(PyExc_TypeError, "expected Tensor as element %zd in argument 0, but got %.100s", i,
                   Py_TYPE(item)->tp_name);
      is_good = false;
    } else if (pyweir_array_check_writable(item) != 0) {
      is_good = false;
    } else {
      arrays[i] = *pyweir_array_of(item); /* the tuple keeps it */
    }
  }
  weir_stream stream = {0};
  weir_status status = WEIR_OK;
  if (is_good && count && pyweir_array_stream(&arrays[0], &stream) != 0)
    is_good = false;
  if (is_good)
    PYWEIR_CALL(status,
                weir_amp_unscale(arrays, (int)count, pyweir_array_of(found_inf), pyweir_array_of(inv_scale), stream));
  PyMem_Free(arrays);
  Py_DECREF(list);
  return is_good && pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* _amp_update_scale_(scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval): the scale. */
static PyObject *update_scale(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *scale, *tracker, *found_inf;
  double growth, backoff;
  long long steps;
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "O!O!O!ddL:_amp_update_scale_", &pyweir_array_type, &scale, &pyweir_array_type, &tracker,
                        &pyweir_array_type, &found_inf, &growth, &backoff, &steps) ||
      pyweir_array_check_writable(scale) != 0 || pyweir_array_check_writable(tracker) != 0 ||
      pyweir_array_stream(pyweir_array_of(scale), &stream) != 0)
    return NULL;
  int interval = steps > INT_MAX ? INT_MAX : steps < 0 ? 0 : (int)steps; /* large ones turn growth off */
  PYWEIR_CALL(status, weir_amp_update_scale(pyweir_array_of(scale), pyweir_array_of(tracker),
                                            pyweir_array_of(found_inf), growth, backoff, interval, stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(scale) : NULL;
}

/* ---- The cache ---- */

static PyTypeObject *parameter_class; /* weir.amp.Parameter; NULL before that is imported */

/* A cast is found by its array, its type, and the stream that made it: work of another stream is not ordered after
 * it. */
typedef struct cache_key {
  const void *array;
  int64_t stream;
  int32_t device, dtype;
} cache_key;

/* Returns a borrowed reference to the thread's dictionary of casts, or NULL with an exception set, or without one if
 * there is none yet and `make` is false. */
static PyObject *cache_of_thread(bool make) {
  PyObject *all = PyThreadState_GetDict();
  if (!all) {
    if (make)
      PyErr_SetString(PyExc_RuntimeError, "the thread has no state for the autocast cache");
    return NULL;
  }
  PyObject *name = PyUnicode_InternFromString("weir.autocast_cache");
  PyObject *cache = name ? PyDict_GetItemWithError(all, name) : NULL;
  if (!cache && make && !PyErr_Occurred()) {
    PyObject *made = PyDict_New();
    if (made && PyDict_SetItem(all, name, made) == 0)
      cache = made; /* `all` has a reference */
    Py_XDECREF(made);
  }
  Py_XDECREF(name);
  return cache;
}

static PyObject *converted(PyObject *array, weir_dtype to, weir_stream stream) {
  const weir_array *a = pyweir_array_of(array);
  weir_place place = a->place.kind == WEIR_PLACE_PINNED ? weir_place_host() : a->place;
  weir_array made = {0};
  weir_status status;
  PYWEIR_CALL(status, weir_array_to(a, place, to, stream, 0, &made));
  return pyweir_array_result(status, &made);
}

static bool refers_to(PyObject *weak, const PyObject *object) {
#if PY_VERSION_HEX >= 0x030d0000
  PyObject *found = NULL;
  (void)PyWeakref_GetRef(weak, &found);
  Py_XDECREF(found);
#else
  PyObject *found = PyWeakref_GetObject(weak);
#endif
  return found == object;
}

/* The cast of a parameter, from the cache or new. An entry is a weak reference to the parameter, which tells it from a
 * later object at the same address, and the cast. */
static PyObject *cached(PyObject *array, weir_dtype to, weir_stream stream) {
  cache_key key = {
      .array = array, .stream = stream.id, .device = pyweir_array_of(array)->place.device, .dtype = (int32_t)to};
  PyObject *cache = cache_of_thread(true), *name = NULL, *weak = NULL, *entry = NULL, *made = NULL;
  if (!cache || !(name = PyBytes_FromStringAndSize((const char *)&key, sizeof key)))
    return NULL;
  PyObject *found = PyDict_GetItemWithError(cache, name);
  if (found && refers_to(PyTuple_GET_ITEM(found, 0), array)) {
    Py_DECREF(name);
    return Py_NewRef(PyTuple_GET_ITEM(found, 1));
  }
  if (!PyErr_Occurred() && (made = converted(array, to, stream)) && (weak = PyWeakref_NewRef(array, NULL)) &&
      (entry = PyTuple_Pack(2, weak, made)) && PyDict_SetItem(cache, name, entry) != 0)
    Py_CLEAR(made);
  if (!entry)
    Py_CLEAR(made);
  Py_XDECREF(entry);
  Py_XDECREF(weak);
  Py_DECREF(name);
  return made;
}

bool pyweir_autocast_is_eligible(const weir_array *array, int device_type) {
  return (array->place.kind == WEIR_PLACE_DEVICE) == (device_type == PYWEIR_CUDA) &&
         weir_dtype_is_float(array->dtype) && array->dtype != WEIR_FLOAT64;
}

PyObject *pyweir_autocast_cast(PyObject *array, int device_type, weir_dtype to) {
  const weir_array *a = pyweir_array_of(array);
  if (a->dtype == to || !pyweir_autocast_is_eligible(a, device_type))
    return Py_NewRef(array);
  weir_stream stream;
  if (pyweir_array_stream(a, &stream) != 0)
    return NULL;
  bool can_cache = parameter_class && PyObject_TypeCheck(array, parameter_class) && a->dtype == WEIR_FLOAT32 &&
                   to == pyweir_autocast.dtypes[device_type] && pyweir_autocast.nesting > 0 &&
                   !pyweir_autocast.has_no_cache;
  if (can_cache && device_type == PYWEIR_CUDA) {
    /* A graph would read a cast of the cache after it was freed, and a cast in a graph has no value before a replay. */
    int is_capturing;
    if (pyweir->check(weir_stream_is_capturing(stream, &is_capturing)) != 0)
      return NULL;
    can_cache = !is_capturing;
  }
  return can_cache ? cached(array, to, stream) : converted(array, to, stream);
}

/* ---- Policies ---- */

int pyweir_autocast_lower(const weir_array *a, const weir_array *b, weir_dtype *to) {
  int type = pyweir_autocast_type(a, b);
  *to = pyweir_autocast.dtypes[type];
  return pyweir_autocast.is_enabled[type];
}

/* float32 if one of the arrays is, otherwise the type of the region, which the others must have. */
int pyweir_autocast_widest(const weir_array *a, const weir_array *b, weir_dtype *to) {
  int type = pyweir_autocast_type(a, b);
  weir_dtype lower = pyweir_autocast.dtypes[type], widest = lower;
  if (!pyweir_autocast.is_enabled[type])
    return 0;
  const weir_array *both[] = {a, b};
  for (int i = 0; i < 2; i++) {
    if (!both[i] || !pyweir_autocast_is_eligible(both[i], type))
      continue;
    if (both[i]->dtype == WEIR_FLOAT32)
      widest = WEIR_FLOAT32;
    else if (widest != WEIR_FLOAT32 && both[i]->dtype != lower) {
      PyErr_SetString(PyExc_RuntimeError, "Unexpected floating ScalarType in at::autocast::prioritize");
      return -1;
    }
  }
  *to = widest;
  return 1;
}

/* ---- The state of the thread ---- */

/* "cuda", "cuda:1" or "cpu". */
static int parse_device_type(PyObject *object, int *type) {
  const char *text = PyUnicode_Check(object) ? PyUnicode_AsUTF8(object) : NULL;
  if (!text && PyErr_Occurred())
    return -1;
  if (!text) {
    PyErr_Format(PyExc_TypeError, "expected a device type such as 'cuda', got %.100s", Py_TYPE(object)->tp_name);
    return -1;
  }
  if (!strcmp(text, "cuda") || !strncmp(text, "cuda:", 5))
    *type = PYWEIR_CUDA;
  else if (!strcmp(text, "cpu"))
    *type = PYWEIR_CPU;
  else {
    PyErr_Format(PyExc_RuntimeError, "User specified an unsupported autocast device_type '%s'", text);
    return -1;
  }
  return 0;
}

static PyObject *is_available(PyObject *module, PyObject *device_type) {
  (void)module;
  int type;
  if (parse_device_type(device_type, &type) == 0)
    Py_RETURN_TRUE;
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
    return NULL;
  PyErr_Clear();
  Py_RETURN_FALSE;
}

static PyObject *is_enabled(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  (void)module;
  static const char *const names[] = {"device_type"};
  PyObject *values[1] = {NULL};
  int type = PYWEIR_CUDA;
  if (pyweir->parse_arguments("is_autocast_enabled", names, 1, 1, args, count, keywords, values) != 0 ||
      (values[0] && parse_device_type(values[0], &type) != 0))
    return NULL;
  return PyBool_FromLong(pyweir_autocast.is_enabled[type]);
}

/* set_autocast_enabled(device_type, enabled), or (enabled) for "cuda". */
static PyObject *set_enabled(PyObject *module, PyObject *const *args, Py_ssize_t count) {
  (void)module;
  int type = PYWEIR_CUDA;
  if (count != 1 && count != 2)
    return PyErr_Format(PyExc_TypeError, "set_autocast_enabled takes a device type and a bool (got %zd arguments)",
                        count);
  if (count == 2 && parse_device_type(args[0], &type) != 0)
    return NULL;
  if (!PyBool_Check(args[count - 1]))
    return PyErr_Format(PyExc_TypeError, "enabled must be a bool (got %.100s)", Py_TYPE(args[count - 1])->tp_name);
  pyweir_autocast.is_enabled[type] = args[count - 1] == Py_True;
  pyweir_autocast.is_on = pyweir_autocast.is_enabled[PYWEIR_CPU] || pyweir_autocast.is_enabled[PYWEIR_CUDA];
  Py_RETURN_NONE;
}

static PyObject *get_dtype(PyObject *module, PyObject *device_type) {
  (void)module;
  int type;
  return parse_device_type(device_type, &type) == 0 ? pyweir_dtype_wrap(pyweir_autocast.dtypes[type]) : NULL;
}

static PyObject *set_dtype(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *device_type, *object;
  int type;
  weir_dtype dtype;
  if (!PyArg_ParseTuple(args, "OO:set_autocast_dtype", &device_type, &object) ||
      parse_device_type(device_type, &type) != 0 || pyweir_parse_dtype(object, &dtype) != 0)
    return NULL;
  pyweir_autocast.dtypes[type] = dtype;
  Py_RETURN_NONE;
}

PYWEIR_NO_ARGUMENTS(is_cache_enabled, PyBool_FromLong(!pyweir_autocast.has_no_cache))

static PyObject *set_cache_enabled(PyObject *module, PyObject *enabled) {
  (void)module;
  if (!PyBool_Check(enabled))
    return PyErr_Format(PyExc_TypeError, "enabled must be a bool (got %.100s)", Py_TYPE(enabled)->tp_name);
  pyweir_autocast.has_no_cache = enabled == Py_False;
  Py_RETURN_NONE;
}

PYWEIR_NO_ARGUMENTS(increment_nesting, PyLong_FromLong(++pyweir_autocast.nesting))
PYWEIR_NO_ARGUMENTS(decrement_nesting, PyLong_FromLong(--pyweir_autocast.nesting))

static PyObject *clear_cache(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  PyObject *cache = cache_of_thread(false);
  if (!cache && PyErr_Occurred())
    return NULL;
  if (cache)
    PyDict_Clear(cache);
  Py_RETURN_NONE;
}

/* Whether operations that run in float32 cast this array: it is on a device and eligible. */
static PyObject *runs_in_float32(PyObject *module, PyObject *array) {
  (void)module;
  return PyBool_FromLong(pyweir_autocast.is_enabled[PYWEIR_CUDA] && PYWEIR_IS_ARRAY(array) &&
                         pyweir_autocast_is_eligible(pyweir_array_of(array), PYWEIR_CUDA));
}

/* _autocast_cast(array, device_type, dtype), for policies of Python functions. */
static PyObject *cast(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *device_type, *object;
  int type;
  weir_dtype dtype;
  if (!PyArg_ParseTuple(args, "O!OO:_autocast_cast", &pyweir_array_type, &array, &device_type, &object) ||
      parse_device_type(device_type, &type) != 0 || pyweir_parse_dtype(object, &dtype) != 0)
    return NULL;
  return pyweir_autocast_cast(array, type, dtype);
}

/* ---- Parameters ---- */

static PyObject *set_parameter_class(PyObject *module, PyObject *class) {
  (void)module;
  if (!PyType_Check(class) || !PyType_IsSubtype((PyTypeObject *)class, &pyweir_array_type))
    return pyweir->type_error("a class of arrays", class);
  Py_XSETREF(parameter_class, (PyTypeObject *)Py_NewRef(class));
  Py_RETURN_NONE;
}

/* _array_alias(class, array): an object of the class with the elements of the array. */
static PyObject *alias(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *class, *array;
  if (!PyArg_ParseTuple(args, "O!O!:_array_alias", &PyType_Type, &class, &pyweir_array_type, &array))
    return NULL;
  if (!PyType_IsSubtype((PyTypeObject *)class, &pyweir_array_type))
    return pyweir->type_error("a class of arrays", class);
  weir_array shared = {0};
  if (pyweir_array_check(weir_array_share(pyweir_array_of(array), &shared)) != 0)
    return NULL;
  pyweir_array *made = (pyweir_array *)((PyTypeObject *)class)->tp_alloc((PyTypeObject *)class, 0);
  if (!made) {
    pyweir_array_release(&shared);
    return NULL;
  }
  made->it = shared;
  made->is_readonly = ((pyweir_array *)array)->is_readonly;
  return (PyObject *)made;
}

/* _array_set(array, source): lets an array refer to the elements of another. */
static PyObject *set(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array, *source;
  weir_array shared = {0};
  if (!PyArg_ParseTuple(args, "O!O!:_array_set", &pyweir_array_type, &array, &pyweir_array_type, &source) ||
      pyweir_array_check(weir_array_share(pyweir_array_of(source), &shared)) != 0)
    return NULL;
  weir_array old = *pyweir_array_of(array);
  *pyweir_array_of(array) = shared;
  ((pyweir_array *)array)->is_readonly = ((pyweir_array *)source)->is_readonly;
  pyweir_array_release(&old);
  return Py_NewRef(array);
}

static PyMethodDef methods[] = {
    {"_amp_foreach_non_finite_check_and_unscale_", unscale, METH_VARARGS, NULL},
    {"_amp_update_scale_", update_scale, METH_VARARGS, NULL},
    {"_array_alias", alias, METH_VARARGS, NULL},
    {"_array_set", set, METH_VARARGS, NULL},
    {"_autocast_cast", cast, METH_VARARGS, NULL},
    {"_autocast_runs_in_float32", runs_in_float32, METH_O, NULL},
    {"_is_autocast_available", is_available, METH_O, NULL},
    {"_set_parameter_class", set_parameter_class, METH_O, NULL},
    {"autocast_decrement_nesting", decrement_nesting, METH_NOARGS,
     "autocast_decrement_nesting()\n--\n\nReturns the number of regions of the thread, after subtracting 1."},
    {"autocast_increment_nesting", increment_nesting, METH_NOARGS,
     "autocast_increment_nesting()\n--\n\nReturns the number of regions of the thread, after adding 1."},
    {"clear_autocast_cache", clear_cache, METH_NOARGS,
     "clear_autocast_cache()\n--\n\nDrops the casts of parameters that the thread has made."},
    {"get_autocast_dtype", get_dtype, METH_O,
     "get_autocast_dtype(device_type, /)\n--\n\nReturns the dtype of autocast for 'cuda' or 'cpu'."},
    {"is_autocast_cache_enabled", is_cache_enabled, METH_NOARGS,
     "is_autocast_cache_enabled()\n--\n\nWhether casts of parameters are kept for reuse in a region."},
    {"is_autocast_enabled", PYWEIR_FAST_KEYWORDS(is_enabled),
     "is_autocast_enabled(device_type='cuda')\n--\n\nWhether the thread is in a region that casts."},
    {"set_autocast_cache_enabled", set_cache_enabled, METH_O,
     "set_autocast_cache_enabled(enabled, /)\n--\n\nSets whether casts of parameters are kept."},
    {"set_autocast_dtype", set_dtype, METH_VARARGS,
     "set_autocast_dtype(device_type, dtype, /)\n--\n\nSets the dtype of autocast for 'cuda' or 'cpu'."},
    {"set_autocast_enabled", PYWEIR_FAST(set_enabled),
     "set_autocast_enabled(device_type, enabled, /)\n--\n\nSwitches autocast on or off for the thread."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_amp(PyObject *module) { return PyModule_AddFunctions(module, methods); }

/*
 * weir.Generator, and fills of Buffers with random numbers.
 */
#include <string.h>

#include "array.h"
#include "weir/compute/random.h"

typedef struct generator_object {
  PyObject_HEAD weir_generator *it;
  PyObject *weak; /* weak references */
} generator_object;

static PyTypeObject generator_type;

/* As pyweir->check, but with PyTorch's RuntimeError for values that are refused. */
static int check(weir_status status) {
  if (pyweir->check(status) == 0)
    return 0;
  if (status == WEIR_ERROR_INVALID_ARGUMENT && PyErr_ExceptionMatches(PyExc_ValueError))
    pyweir->change_type(PyExc_RuntimeError);
  return -1;
}

static weir_generator *generator_of(PyObject *self) { return ((generator_object *)self)->it; }

/* Takes over the generator. */
static PyObject *wrap(weir_generator *generator) {
  generator_object *self = (generator_object *)generator_type.tp_alloc(&generator_type, 0);
  if (!self) {
    weir_generator_destroy(generator);
    return NULL;
  }
  self->it = generator;
  return (PyObject *)self;
}

/* Returns self with a new reference for WEIR_OK, or else NULL with the exception set. */
static PyObject *self_or_null(PyObject *self, weir_status status) {
  if (check(status) != 0)
    return NULL;
  Py_INCREF(self);
  return self;
}

weir_generator *pyweir_generator_get(PyObject *object) {
  if (!PyObject_TypeCheck(object, &generator_type)) {
    PyErr_Format(PyExc_TypeError, "expected a Generator, but got %.100s", Py_TYPE(object)->tp_name);
    return NULL;
  }
  return generator_of(object);
}

static PyObject *generator_register_with_graph(PyObject *self, PyObject *object) {
  weir_graph *graph = pyweir->graph_get(object);
  weir_status status;
  if (!graph)
    return NULL;
  PYWEIR_CALL(status, weir_graph_register_generator(graph, generator_of(self)));
  return pyweir->none(status);
}

/* ---- The class ---- */

static PyObject *generator_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"device", NULL};
  PyObject *device_object = Py_None;
  int device;
  weir_generator *generator;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "|O:Generator", names, &device_object) ||
      pyweir->need_device(device_object, &device) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_create(device, &generator));
  if (check(status) != 0)
    return NULL;
  generator_object *self = (generator_object *)type->tp_alloc(type, 0);
  if (!self) {
    weir_generator_destroy(generator);
    return NULL;
  }
  self->it = generator;
  return (PyObject *)self;
}

static void generator_dealloc(PyObject *object) {
  generator_object *self = (generator_object *)object;
  if (self->weak)
    PyObject_ClearWeakRefs(object);
  weir_generator_destroy(self->it);
  Py_TYPE(object)->tp_free(object);
}

static PyObject *generator_repr(PyObject *self) {
  int device = -1;
  weir_generator_device(generator_of(self), &device);
  return PyUnicode_FromFormat("<weir.Generator device=cuda:%d>", device);
}

static PyObject *get_device(PyObject *self, void *unused) {
  (void)unused;
  int device;
  return check(weir_generator_device(generator_of(self), &device)) == 0 ? pyweir->device_wrap(device) : NULL;
}

/* A seed or an offset: an int of 64 bits, negative or not. */
static int parse_number(PyObject *object, const char *function, uint64_t *number) {
  if (!PyLong_Check(object)) {
    PyErr_Format(PyExc_RuntimeError, "%s expected a long, but got %.100s", function, Py_TYPE(object)->tp_name);
    return -1;
  }
  unsigned long long value = PyLong_AsUnsignedLongLong(object);
  if (value == (unsigned long long)-1 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_OverflowError))
      return -1;
    PyErr_Clear();
    long long negative = PyLong_AsLongLong(object);
    if (negative == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      PyErr_SetString(PyExc_RuntimeError, "Overflow when unpacking long long");
      return -1;
    }
    value = (unsigned long long)negative;
  }
  *number = value;
  return 0;
}

static PyObject *generator_manual_seed(PyObject *self, PyObject *object) {
  uint64_t seed;
  weir_status status;
  if (parse_number(object, "manual_seed", &seed) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_generator_manual_seed(generator_of(self), seed));
  return self_or_null(self, status);
}

static PyObject *generator_seed(PyObject *self, PyObject *unused) {
  (void)unused;
  uint64_t seed;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_seed(generator_of(self), &seed));
  return check(status) == 0 ? PyLong_FromUnsignedLongLong(seed) : NULL;
}

static PyObject *generator_initial_seed(PyObject *self, PyObject *unused) {
  (void)unused;
  uint64_t seed;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_initial_seed(generator_of(self), &seed));
  return check(status) == 0 ? PyLong_FromUnsignedLongLong(seed) : NULL;
}

static PyObject *generator_get_offset(PyObject *self, PyObject *unused) {
  (void)unused;
  uint64_t offset;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_get_offset(generator_of(self), &offset));
  return check(status) == 0 ? PyLong_FromUnsignedLongLong(offset) : NULL;
}

static PyObject *generator_set_offset(PyObject *self, PyObject *object) {
  uint64_t offset;
  weir_status status;
  if (parse_number(object, "manual_offset", &offset) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_generator_set_offset(generator_of(self), offset));
  return self_or_null(self, status);
}

static PyObject *state_bytes(PyObject *self) {
  unsigned char state[WEIR_GENERATOR_STATE_BYTES];
  weir_status status;
  PYWEIR_CALL(status, weir_generator_get_state(generator_of(self), state));
  return check(status) == 0 ? PyBytes_FromStringAndSize((const char *)state, sizeof state) : NULL;
}

static PyObject *generator_get_state(PyObject *self, PyObject *unused) {
  (void)unused;
  int64_t count = WEIR_GENERATOR_STATE_BYTES;
  weir_array made = {0};
  PyObject *state = state_bytes(self), *result = NULL;
  if (state)
    result =
        pyweir_array_result(weir_array_empty(weir_place_host(), WEIR_UINT8, 1, &count, (weir_stream){0}, &made), &made);
  if (result)
    memcpy(pyweir_array_of(result)->data, PyBytes_AS_STRING(state), WEIR_GENERATOR_STATE_BYTES);
  Py_XDECREF(state);
  return result;
}

static PyObject *generator_set_state(PyObject *self, PyObject *object) {
  Py_buffer view;
  pyweir_memory memory;
  int is_buffer = pyweir->buffer_memory(object, &memory);
  if (is_buffer < 0)
    return NULL;
  if (is_buffer && memory.device >= 0) {
    PyErr_SetString(PyExc_TypeError, "RNG state must be bytes on the host, got a Buffer on a device");
    return NULL;
  }
  if (!PyObject_CheckBuffer(object))
    return PyErr_Format(PyExc_TypeError, "expected a bytes-like object, but got %.100s", Py_TYPE(object)->tp_name);
  if (PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) != 0)
    return NULL;
  unsigned char state[WEIR_GENERATOR_STATE_BYTES] = {0};
  size_t bytes = (size_t)view.len;
  memcpy(state, view.buf, bytes < sizeof state ? bytes : sizeof state);
  PyBuffer_Release(&view);
  weir_status status;
  PYWEIR_CALL(status, weir_generator_set_state(generator_of(self), state, bytes));
  return self_or_null(self, status);
}

static PyObject *generator_clone_state(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_generator *made;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_clone(generator_of(self), &made));
  return check(status) == 0 ? wrap(made) : NULL;
}

static PyObject *generator_graphsafe_get_state(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_generator *made;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_share(generator_of(self), &made));
  return check(status) == 0 ? wrap(made) : NULL;
}

static PyObject *generator_graphsafe_set_state(PyObject *self, PyObject *object) {
  weir_generator *other = pyweir_generator_get(object);
  weir_status status;
  if (!other)
    return NULL;
  PYWEIR_CALL(status, weir_generator_share_state_of(generator_of(self), other));
  return self_or_null(self, status);
}

static PyObject *generator_set_geometry(PyObject *self, PyObject *args, PyObject *keywords) {
  static char *names[] = {"multi_processor_count", "max_threads_per_multi_processor", NULL};
  int multiprocessors, threads;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "ii:set_geometry", names, &multiprocessors, &threads))
    return NULL;
  return self_or_null(self, weir_generator_set_geometry(generator_of(self), multiprocessors, threads));
}

/* A pickled generator is a new one with the same device and state. */
static PyObject *generator_reduce(PyObject *self, PyObject *unused) {
  (void)unused;
  PyObject *state = state_bytes(self), *device = get_device(self, NULL);
  if (!state || !device) {
    Py_XDECREF(state);
    Py_XDECREF(device);
    return NULL;
  }
  return Py_BuildValue("O(N)N", (PyObject *)&generator_type, device, state);
}

static PyObject *generator_setstate(PyObject *self, PyObject *state) {
  PyObject *result = generator_set_state(self, state);
  if (!result)
    return NULL;
  Py_DECREF(result);
  Py_RETURN_NONE;
}

static PyMethodDef generator_methods[] = {
    {"_register_with_graph", generator_register_with_graph, METH_O, "For CUDAGraph.register_generator_state()."},
    {"manual_seed", generator_manual_seed, METH_O,
     "manual_seed($self, seed, /)\n--\n\nSets the seed, and the offset to 0. Returns the generator."},
    {"seed", generator_seed, METH_NOARGS, "seed($self)\n--\n\nSets a random seed, and returns it."},
    {"initial_seed", generator_initial_seed, METH_NOARGS, "initial_seed($self)\n--\n\nReturns the seed."},
    {"get_offset", generator_get_offset, METH_NOARGS,
     "get_offset($self)\n--\n\nReturns the offset: how many 32-bit numbers each thread has used."},
    {"set_offset", generator_set_offset, METH_O,
     "set_offset($self, offset, /)\n--\n\nSets the offset, a multiple of 4. Returns the generator."},
    {"get_state", generator_get_state, METH_NOARGS,
     "get_state($self)\n--\n\nReturns the state as an array of 16 bytes on the host: the seed and the offset."},
    {"set_state", generator_set_state, METH_O,
     "set_state($self, new_state, /)\n--\n\nSets a state of get_state(). Returns the generator."},
    {"clone_state", generator_clone_state, METH_NOARGS,
     "clone_state($self)\n--\n\nReturns a new generator with a copy of the state."},
    {"graphsafe_get_state", generator_graphsafe_get_state, METH_NOARGS,
     "graphsafe_get_state($self)\n--\n\nReturns a new generator that shares the state."},
    {"graphsafe_set_state", generator_graphsafe_set_state, METH_O,
     "graphsafe_set_state($self, state, /)\n--\n\nShares the state of another generator from now on."},
    {"set_geometry", PYWEIR_KEYWORDS(generator_set_geometry),
     "set_geometry($self, multi_processor_count, max_threads_per_multi_processor)\n--\n\n"
     "Sets the device geometry by which fills assign elements to threads; 0 is the device's own. With (132, 2048) a\n"
     "software device makes the numbers of an H200."},
    {"__reduce__", generator_reduce, METH_NOARGS, NULL},
    {"__setstate__", generator_setstate, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef generator_attributes[] = {
    {"device", get_device, NULL, "The device of the generator.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject generator_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.Generator",
    .tp_doc = PyDoc_STR("Generator(device=None)\n--\n\n"
                        "A random generator of a device: a seed and an offset, as PyTorch's CUDA generators."),
    .tp_basicsize = sizeof(generator_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = generator_new,
    .tp_dealloc = generator_dealloc,
    .tp_repr = generator_repr,
    .tp_weaklistoffset = offsetof(generator_object, weak),
    .tp_methods = generator_methods,
    .tp_getset = generator_attributes,
};

/* ---- Functions ---- */

/* Runs during the start, so it does not wait for its end. */
static PyObject *default_generator(PyObject *module, PyObject *object) {
  (void)module;
  int device;
  weir_generator *generator;
  if (pyweir->parse_int(object, &device) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_generator_default(device, &generator));
  return check(status) == 0 ? wrap(generator) : NULL;
}

typedef struct numbers {
  double first, second;
  int64_t low, high;
} numbers;

typedef weir_status (*fill_function)(weir_generator *, void *, uint64_t, weir_dtype, const numbers *, weir_stream);

static weir_status fill_bits(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                             const numbers *n, weir_stream stream) {
  (void)n;
  return weir_random_bits(generator, pointer, count, dtype, stream);
}
static weir_status fill_integers(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                 const numbers *n, weir_stream stream) {
  (void)n;
  return weir_random_integers(generator, pointer, count, dtype, stream);
}
static weir_status fill_randint(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                const numbers *n, weir_stream stream) {
  return weir_random_randint(generator, pointer, count, dtype, n->low, n->high, stream);
}
static weir_status fill_uniform(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                const numbers *n, weir_stream stream) {
  return weir_random_uniform(generator, pointer, count, dtype, n->first, n->second, stream);
}
static weir_status fill_normal(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                               const numbers *n, weir_stream stream) {
  return weir_random_normal(generator, pointer, count, dtype, n->first, n->second, stream);
}
static weir_status fill_bernoulli(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                  const numbers *n, weir_stream stream) {
  return weir_random_bernoulli(generator, pointer, count, dtype, n->first, stream);
}
static weir_status fill_permutation(weir_generator *generator, void *pointer, uint64_t count, weir_dtype dtype,
                                    const numbers *n, weir_stream stream) {
  (void)n;
  return weir_random_permutation(generator, pointer, count, dtype, stream);
}

/* Fills the buffer on the current stream of its device, and returns it. */
static PyObject *fill_buffer(PyObject *object, PyObject *dtype_object, PyObject *generator_object, const numbers *n,
                             fill_function function) {
  pyweir_memory memory;
  weir_generator *generator = NULL;
  weir_dtype dtype;
  weir_stream stream;
  if (pyweir_ensure_init() != 0)
    return NULL;
  int is_buffer = pyweir->buffer_memory(object, &memory);
  if (is_buffer <= 0)
    return is_buffer < 0 ? NULL : pyweir->type_error("a weir.Buffer", object);
  if (generator_object != Py_None) {
    generator = pyweir_generator_get(generator_object);
    if (!generator)
      return NULL;
  }
  if (pyweir_parse_dtype(dtype_object, &dtype) != 0)
    return NULL;
  if (memory.device < 0 || memory.is_readonly) {
    PyErr_SetString(PyExc_RuntimeError, memory.device < 0
                                            ? "Expected a 'cuda' device type for the buffer but found 'cpu'"
                                            : "the buffer is read-only");
    return NULL;
  }
  if (memory.bytes % weir_dtype_size(dtype) != 0)
    return PyErr_Format(PyExc_ValueError, "a buffer of %zu bytes has no whole number of elements of type %s",
                        memory.bytes, weir_dtype_name(dtype));
  if (pyweir->parse_stream(Py_None, memory.device, &stream) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, function(generator, memory.pointer, memory.bytes / weir_dtype_size(dtype), dtype, n, stream));
  return self_or_null(object, status);
}

static PyObject *bits(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *buffer, *dtype, *generator;
  if (!PyArg_ParseTuple(args, "OOO", &buffer, &dtype, &generator))
    return NULL;
  return fill_buffer(buffer, dtype, generator, NULL, fill_bits);
}

/* low and high are None for the range of the type. */
static PyObject *integers(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *buffer, *dtype, *generator, *low, *high;
  if (!PyArg_ParseTuple(args, "OOOOO", &buffer, &dtype, &generator, &low, &high))
    return NULL;
  if (low == Py_None)
    return fill_buffer(buffer, dtype, generator, NULL, fill_integers);
  numbers n = {.low = PyLong_AsLongLong(low)};
  if (n.low == -1 && PyErr_Occurred())
    return NULL;
  n.high = PyLong_AsLongLong(high);
  if (n.high == -1 && PyErr_Occurred())
    return NULL;
  return fill_buffer(buffer, dtype, generator, &n, fill_randint);
}

static PyObject *floats(PyObject *args, fill_function function) {
  PyObject *buffer, *dtype, *generator;
  numbers n = {0};
  if (!PyArg_ParseTuple(args, "OOOdd", &buffer, &dtype, &generator, &n.first, &n.second))
    return NULL;
  return fill_buffer(buffer, dtype, generator, &n, function);
}

static PyObject *uniform(PyObject *module, PyObject *args) {
  (void)module;
  return floats(args, fill_uniform);
}

static PyObject *normal(PyObject *module, PyObject *args) {
  (void)module;
  return floats(args, fill_normal);
}

static PyObject *bernoulli(PyObject *module, PyObject *args) {
  (void)module;
  return floats(args, fill_bernoulli);
}

static PyObject *permutation(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *buffer, *dtype, *generator;
  if (!PyArg_ParseTuple(args, "OOO", &buffer, &dtype, &generator))
    return NULL;
  return fill_buffer(buffer, dtype, generator, NULL, fill_permutation);
}

static PyMethodDef methods[] = {
    {"_default_generator", default_generator, METH_O, NULL},  {"_random_bits", bits, METH_VARARGS, NULL},
    {"_random_integers", integers, METH_VARARGS, NULL},       {"_random_uniform", uniform, METH_VARARGS, NULL},
    {"_random_normal", normal, METH_VARARGS, NULL},           {"_random_bernoulli", bernoulli, METH_VARARGS, NULL},
    {"_random_permutation", permutation, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL},
};

int pyweir_add_random(PyObject *module) {
  return pyweir->add_type(module, &generator_type) != 0 ? -1 : PyModule_AddFunctions(module, methods);
}

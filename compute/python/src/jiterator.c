/*
 * weir.jiterator: elementwise functions from source, applied to arrays. The cached call has no Python code on its path.
 */
#include "array.h"

#include <stddef.h>
#include <string.h>

#include "weir/compute/jiterator.h"

typedef struct function_object {
  PyObject_HEAD vectorcallfunc call;
  weir_jit_fn *it;
  int output_count, scalar_count;
  PyObject *names[WEIR_JIT_MAX_SCALARS];
  weir_jit_scalar defaults[WEIR_JIT_MAX_SCALARS];
} function_object;

static PyTypeObject function_type;

/* ---- Arguments ---- */

static int parse_scalar(PyObject *object, weir_jit_scalar *scalar) {
  weir_scalar value;
  int is_scalar = pyweir_parse_scalar(object, &value);
  if (is_scalar < 0)
    return -1;
  if (!is_scalar) {
    pyweir->type_error("a number", object);
    return -1;
  }
  bool is_integer = value.kind <= WEIR_SCALAR_INT;
  *scalar = (weir_jit_scalar){is_integer, is_integer ? (double)value.integer : value.real, value.integer,
                              value.kind == WEIR_SCALAR_COMPLEX ? value.imag : 0};
  return 0;
}

/* What the operands of a call have in common. */
typedef struct call {
  int count, rank;
  const weir_array *arrays[WEIR_JIT_MAX_INPUTS];
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int64_t strides[WEIR_JIT_MAX_INPUTS][WEIR_ARRAY_MAX_DIMS]; /* in bytes, 0 where an operand is repeated */
  weir_jit_operand inputs[WEIR_JIT_MAX_INPUTS];
  weir_dtype dtype;
  weir_place place;
} call;

static int check_places(const call *c) {
  for (int i = 0; i < c->count; i++) {
    weir_place place = c->arrays[i]->place;
    if (place.kind != WEIR_PLACE_DEVICE) {
      PyErr_SetString(PyExc_RuntimeError, "jiterator: all inputs must be on a device, but found at least one on cpu");
      return -1;
    }
    if (place.device != c->place.device) {
      PyErr_Format(PyExc_RuntimeError,
                   "Expected all tensors to be on the same device, but found at least two devices, cuda:%d and "
                   "cuda:%d!",
                   c->place.device, place.device);
      return -1;
    }
  }
  return 0;
}

/* Shape and strides after broadcasting. */
static int broadcast(call *c) {
  c->rank = 0;
  for (int i = 0; i < c->count; i++)
    if (c->arrays[i]->ndim > c->rank)
      c->rank = c->arrays[i]->ndim;
  for (int d = 0; d < c->rank; d++) {
    c->shape[d] = 1;
    for (int i = 0; i < c->count; i++) {
      const weir_array *a = c->arrays[i];
      int own = d - (c->rank - a->ndim);
      int64_t size = own < 0 ? 1 : a->shape[own];
      if (size != 1 && c->shape[d] != 1 && size != c->shape[d]) {
        PyErr_Format(PyExc_RuntimeError,
                     "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
                     (long long)c->shape[d], (long long)size, d);
        return -1;
      }
      if (size != 1)
        c->shape[d] = size;
      c->strides[i][d] = size == 1 ? 0 : a->strides[own] * (int64_t)weir_dtype_size(a->dtype);
    }
  }
  return 0;
}

static int read_arrays(const function_object *self, PyObject *const *args, Py_ssize_t count, call *c) {
  (void)self;
  if (count > WEIR_JIT_MAX_INPUTS) {
    PyErr_Format(PyExc_AssertionError, "jiterator only supports up to %d tensor inputs, got %zd", WEIR_JIT_MAX_INPUTS,
                 count);
    return -1;
  }
  if (!count) {
    PyErr_SetString(PyExc_TypeError, "a jiterator function needs at least one array");
    return -1;
  }
  bool is_uniform = true;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!PYWEIR_IS_ARRAY(args[i])) {
      pyweir->type_error("an Array", args[i]);
      return -1;
    }
    c->arrays[i] = pyweir_array_of(args[i]);
    is_uniform = is_uniform && c->arrays[i]->dtype == c->arrays[0]->dtype;
  }
  c->count = (int)count;
  c->place = c->arrays[0]->place;
  c->dtype = c->arrays[0]->dtype;
  if (!is_uniform && pyweir_array_check(weir_array_result_type(c->arrays, c->count, NULL, &c->dtype)) != 0)
    return -1;
  if (check_places(c) != 0 || broadcast(c) != 0)
    return -1;
  for (int i = 0; i < c->count; i++)
    c->inputs[i] = (weir_jit_operand){c->arrays[i]->data, c->arrays[i]->dtype, c->strides[i]};
  return 0;
}

static int read_scalars(const function_object *self, PyObject *const *values, PyObject *keywords,
                        weir_jit_scalar *scalars) {
  memcpy(scalars, self->defaults, sizeof self->defaults);
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(keywords); k++) {
    PyObject *keyword = PyTuple_GET_ITEM(keywords, k);
    int found = -1;
    for (int i = 0; i < self->scalar_count && found < 0; i++)
      if (keyword == self->names[i] || PyUnicode_Compare(keyword, self->names[i]) == 0)
        found = i;
    if (found < 0) {
      PyErr_Format(PyExc_KeyError, "%U is not declared in function definition", keyword);
      return -1;
    }
    if (parse_scalar(values[k], &scalars[found]) != 0)
      return -1;
  }
  return 0;
}

/* ---- The call ---- */

/* Without the GIL. The outputs are {0} on failure. */
static weir_status launch(const function_object *self, const call *c, const weir_jit_scalar *scalars,
                          weir_array *outputs) {
  weir_stream stream;
  weir_jit_operand operands[WEIR_JIT_MAX_OUTPUTS];
  int64_t strides[WEIR_ARRAY_MAX_DIMS] = {0};
  weir_status status = weir_stream_get_current(c->place.device, &stream);
  int made = 0;
  for (; status == WEIR_OK && made < self->output_count; made++) {
    status = weir_array_empty(c->place, c->dtype, c->rank, c->shape, stream, &outputs[made]);
    if (status != WEIR_OK)
      break;
    operands[made] = (weir_jit_operand){outputs[made].data, c->dtype, strides};
  }
  if (status == WEIR_OK) {
    int64_t size = (int64_t)weir_dtype_size(c->dtype);
    for (int d = 0; d < c->rank; d++) /* all outputs are contiguous */
      strides[d] = outputs[0].strides[d] * size;
    status = weir_jit_launch(self->it, stream, c->dtype, c->rank, c->shape, operands, self->output_count, c->inputs,
                             c->count, scalars, self->scalar_count);
  }
  for (int i = 0; status != WEIR_OK && i < made; i++)
    weir_array_release(&outputs[i]);
  return status;
}

static PyObject *wrap_outputs(weir_array *outputs, int count) {
  PyObject *tuple = PyTuple_New(count);
  for (int i = 0; i < count; i++) {
    PyObject *output = tuple ? pyweir_array_wrap(&outputs[i]) : NULL;
    if (!tuple)
      pyweir_array_release(&outputs[i]);
    else if (!output)
      Py_CLEAR(tuple);
    else
      PyTuple_SET_ITEM(tuple, i, output);
  }
  return tuple;
}

static PyObject *function_call(PyObject *object, PyObject *const *args, size_t flags, PyObject *keywords) {
  function_object *self = (function_object *)object;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  call c;
  weir_jit_scalar scalars[WEIR_JIT_MAX_SCALARS];
  const weir_jit_scalar *values = self->defaults;
  weir_array outputs[WEIR_JIT_MAX_OUTPUTS];
  weir_status status;
  if (read_arrays(self, args, count, &c) != 0)
    return NULL;
  if (keywords) {
    if (read_scalars(self, args + count, keywords, scalars) != 0)
      return NULL;
    values = scalars;
  }
  for (int i = 0; i < self->output_count; i++)
    outputs[i] = (weir_array){0};
  PYWEIR_CALL(status, launch(self, &c, values, outputs));
  if (self->output_count == 1)
    return pyweir_array_result(status, &outputs[0]);
  if (pyweir_array_check(status) == 0)
    return wrap_outputs(outputs, self->output_count);
  for (int i = 0; status == WEIR_OK && i < self->output_count; i++)
    pyweir_array_release(&outputs[i]);
  return NULL;
}

/* ---- The type ---- */

static void function_dealloc(PyObject *object) {
  function_object *self = (function_object *)object;
  for (int i = 0; i < self->scalar_count; i++)
    Py_XDECREF(self->names[i]);
  if (self->it) {
    PyThreadState *saved = pyweir->begin_call();
    weir_jit_destroy(self->it); /* waits for the device */
    pyweir->end_call(saved);
  }
  Py_TYPE(object)->tp_free(object);
}

PYWEIR_GETTER(get_name, PyUnicode_FromString(weir_jit_name(((function_object *)self)->it)))

static PyObject *function_repr(PyObject *self) {
  return PyUnicode_FromFormat("<weir jiterator function %s>", weir_jit_name(((function_object *)self)->it));
}

static PyGetSetDef attributes[] = {
    {"kernel_name", get_name, NULL, "The name of the function.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"num_outputs", T_INT, offsetof(function_object, output_count), READONLY, "The number of results."},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject function_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.jiterator._JittedFunction",
    .tp_doc = PyDoc_STR("An elementwise function that was made from source. Call it with arrays on a device."),
    .tp_basicsize = sizeof(function_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(function_object, call),
    .tp_call = PyVectorcall_Call,
    .tp_dealloc = function_dealloc,
    .tp_repr = function_repr,
    .tp_getset = attributes,
    .tp_members = members,
};

/* _jit_create(code, return_by_ref, num_outputs, scalars): scalars is a dict of default values. */
static PyObject *jit_create(PyObject *module, PyObject *args) {
  (void)module;
  const char *code;
  int by_reference, output_count;
  PyObject *scalars;
  if (!PyArg_ParseTuple(args, "spiO!:_jit_create", &code, &by_reference, &output_count, &PyDict_Type, &scalars))
    return NULL;
  if (PyDict_Size(scalars) > WEIR_JIT_MAX_SCALARS)
    return PyErr_Format(PyExc_ValueError, "jiterator only supports up to %d keyword arguments, got %zd",
                        WEIR_JIT_MAX_SCALARS, PyDict_Size(scalars));
  function_object *self = (function_object *)function_type.tp_alloc(&function_type, 0);
  if (!self)
    return NULL;
  self->call = function_call;
  self->output_count = output_count;
  const char *names[WEIR_JIT_MAX_SCALARS];
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(scalars, &position, &name, &value)) {
    int i = self->scalar_count;
    names[i] = PyUnicode_AsUTF8(name);
    if (!names[i] || parse_scalar(value, &self->defaults[i]) != 0)
      goto release_self;
    self->names[i] = Py_NewRef(name);
    PyUnicode_InternInPlace(&self->names[i]);
    self->scalar_count++;
  }
  weir_status status = by_reference
                           ? weir_jit_create_by_reference(code, output_count, names, self->scalar_count, &self->it)
                           : weir_jit_create(code, output_count, names, self->scalar_count, &self->it);
  if (pyweir_array_check(status) == 0)
    return (PyObject *)self;

release_self:
  Py_DECREF(self);
  return NULL;
}

static PyMethodDef functions[] = {
    {"_jit_create", jit_create, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_jiterator(PyObject *module) {
  return pyweir->add_type(module, &function_type) != 0 ? -1 : PyModule_AddFunctions(module, functions);
}

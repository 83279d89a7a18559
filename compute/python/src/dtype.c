/*
 * weir.dtype: the types of elements, as torch.dtype. There is one object for each type.
 */
#include <string.h>

#include "array.h"

typedef struct dtype_object {
  PyObject_HEAD weir_dtype it;
} dtype_object;

static PyTypeObject dtype_type;

enum { DTYPES = 16 }; /* more than the largest number */
static PyObject *objects[DTYPES];

static weir_dtype dtype_of(PyObject *self) { return ((dtype_object *)self)->it; }

PyObject *pyweir_dtype_wrap(weir_dtype dtype) { return Py_NewRef(objects[dtype]); }

/* Python's own types mean what they mean in PyTorch. */
static int of_python_type(PyObject *object) {
  if (object == (PyObject *)&PyFloat_Type)
    return WEIR_FLOAT64;
  if (object == (PyObject *)&PyLong_Type)
    return WEIR_INT64;
  if (object == (PyObject *)&PyBool_Type)
    return WEIR_BOOL;
  if (object == (PyObject *)&PyComplex_Type)
    return WEIR_COMPLEX128;
  return -1;
}

static int of_name(const char *name) {
  static const struct {
    const char *name;
    weir_dtype dtype;
  } names[] = {
#define X(number, upper, lower, bytes) {lower, WEIR_##upper},
      WEIR_DTYPE_MAP(X)
#undef X
          {"half", WEIR_FLOAT16},
      {"float", WEIR_FLOAT32},
      {"double", WEIR_FLOAT64},
      {"short", WEIR_INT16},
      {"int", WEIR_INT32},
      {"long", WEIR_INT64},
      {"cfloat", WEIR_COMPLEX64},
      {"cdouble", WEIR_COMPLEX128},
  };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (strcmp(names[i].name, name) == 0)
      return (int)names[i].dtype;
  return -1;
}

int pyweir_parse_dtype(PyObject *object, weir_dtype *dtype) {
  if (Py_IS_TYPE(object, &dtype_type)) {
    *dtype = dtype_of(object);
    return 0;
  }
  int found = of_python_type(object);
  if (found < 0) {
    PyObject *text = PyObject_Str(object);
    const char *name = text ? PyUnicode_AsUTF8(text) : NULL;
    if (!name) {
      Py_XDECREF(text);
      return -1;
    }
    const char *point = strrchr(name, '.'); /* torch.float32 */
    found = of_name(point ? point + 1 : name);
    Py_DECREF(text);
  }
  if (found < 0) {
    PyErr_Format(PyExc_TypeError, "expected a dtype such as weir.float32, got %R", object);
    return -1;
  }
  *dtype = (weir_dtype)found;
  return 0;
}

bool pyweir_dtype_check(PyObject *object) { return Py_IS_TYPE(object, &dtype_type); }

static PyObject *dtype_repr(PyObject *self) { return PyUnicode_FromFormat("weir.%s", weir_dtype_name(dtype_of(self))); }

PYWEIR_GETTER(get_name, PyUnicode_FromString(weir_dtype_name(dtype_of(self))))

/* Where pickle finds the object. */
PYWEIR_GETTER(get_module, PyUnicode_FromString("weir"))
PYWEIR_GETTER(get_itemsize, PyLong_FromSize_t(weir_dtype_size(dtype_of(self))))
PYWEIR_GETTER(get_is_floating_point, PyBool_FromLong(weir_dtype_is_float(dtype_of(self))))
PYWEIR_GETTER(get_is_complex, PyBool_FromLong(weir_dtype_is_complex(dtype_of(self))))
PYWEIR_GETTER(get_is_signed, PyBool_FromLong(dtype_of(self) != WEIR_UINT8 && dtype_of(self) != WEIR_BOOL))

/* A global of the package by its name. */
PYWEIR_NO_ARGUMENTS(dtype_reduce, get_name(self, NULL))

static PyGetSetDef dtype_attributes[] = {
    {"name", get_name, NULL, "The name, such as \"float32\".", NULL},
    {"__module__", get_module, NULL, NULL, NULL},
    {"itemsize", get_itemsize, NULL, "The bytes of an element.", NULL},
    {"is_floating_point", get_is_floating_point, NULL, "Whether it is a type of real floats.", NULL},
    {"is_complex", get_is_complex, NULL, "Whether it is a type of complex numbers.", NULL},
    {"is_signed", get_is_signed, NULL, "Whether it has negative numbers.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef dtype_methods[] = {
    {"__reduce__", dtype_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject dtype_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "weir.dtype",
    .tp_doc = PyDoc_STR("The type of the elements of an array, such as weir.float32."),
    .tp_basicsize = sizeof(dtype_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_repr = dtype_repr,
    .tp_getset = dtype_attributes,
    .tp_methods = dtype_methods,
};

/* ---- Functions ---- */

static PyObject *as_dtype(PyObject *module, PyObject *object) {
  (void)module;
  weir_dtype dtype;
  return pyweir_parse_dtype(object, &dtype) == 0 ? pyweir_dtype_wrap(dtype) : NULL;
}

static PyObject *promote_types(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *first, *second;
  weir_dtype a, b;
  if (!PyArg_ParseTuple(args, "OO:promote_types", &first, &second) || pyweir_parse_dtype(first, &a) != 0 ||
      pyweir_parse_dtype(second, &b) != 0)
    return NULL;
  return pyweir_dtype_wrap(weir_dtype_promote(a, b));
}

static PyMethodDef functions[] = {
    {"_as_dtype", as_dtype, METH_O, "Returns the dtype of a name, a dtype, or a type of Python."},
    {"promote_types", promote_types, METH_VARARGS,
     "promote_types(type1, type2, /)\n--\n\nReturns the type of the result of an operation on two types."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_dtype(PyObject *module) {
  if (pyweir->add_type(module, &dtype_type) != 0)
    return -1;
#define X(number, upper, lower, bytes)                                                                                 \
  {                                                                                                                    \
    dtype_object *made = PyObject_New(dtype_object, &dtype_type);                                                      \
    if (!made)                                                                                                         \
      return -1;                                                                                                       \
    made->it = WEIR_##upper;                                                                                           \
    objects[number] = (PyObject *)made;                                                                                \
    /* The name bool would hide Python's in the stubs. */                                                              \
    if (PyModule_AddObjectRef(module, number == WEIR_BOOL ? "bool_" : lower, objects[number]) != 0)                    \
      return -1;                                                                                                       \
  }
  WEIR_DTYPE_MAP(X)
#undef X
  return PyModule_AddFunctions(module, functions);
}

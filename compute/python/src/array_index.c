/*
 * Elements at arrays of indices, for _indexing.py: one array for each dimension, or None for all of the dimension.
 */
#include "array.h"

/* The arrays of a tuple, with NULL for None. */
static int parse_indices(PyObject *tuple, const weir_array **indices, int *count) {
  *count = (int)PyTuple_GET_SIZE(tuple);
  if (PyTuple_GET_SIZE(tuple) > WEIR_ARRAY_MAX_DIMS) {
    PyErr_SetString(PyExc_IndexError, "too many indices");
    return -1;
  }
  for (int i = 0; i < *count; i++) {
    PyObject *index = PyTuple_GET_ITEM(tuple, i);
    if (index != Py_None && !PYWEIR_IS_ARRAY(index)) {
      pyweir->type_error("an Array or None", index);
      return -1;
    }
    indices[i] = index == Py_None ? NULL : pyweir_array_of(index);
  }
  return 0;
}

/* _array_index(array, indices) */
static PyObject *get(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *self, *tuple;
  const weir_array *indices[WEIR_ARRAY_MAX_DIMS];
  int count;
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "O!O!:_array_index", &pyweir_array_type, &self, &PyTuple_Type, &tuple) ||
      parse_indices(tuple, indices, &count) != 0 || pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_index(pyweir_array_of(self), indices, count, stream, &made));
  return pyweir_array_result(status, &made);
}

/* _array_index_put(array, indices, values, accumulate) */
static PyObject *put(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *self, *tuple, *values;
  const weir_array *indices[WEIR_ARRAY_MAX_DIMS];
  int count, accumulate;
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "O!O!O!p:_array_index_put", &pyweir_array_type, &self, &PyTuple_Type, &tuple,
                        &pyweir_array_type, &values, &accumulate) ||
      parse_indices(tuple, indices, &count) != 0 || pyweir_array_check_writable(self) != 0 ||
      pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status,
              weir_array_index_put(pyweir_array_of(self), indices, count, pyweir_array_of(values), accumulate, stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

static PyMethodDef functions[] = {
    {"_array_index", get, METH_VARARGS, NULL},
    {"_array_index_put", put, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_array_index(PyObject *module) { return PyModule_AddFunctions(module, functions); }

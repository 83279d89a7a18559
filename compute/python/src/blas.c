/*
 * cuBLAS: handles, workspaces, and the settings of matrix products. The functions have the names, checks and texts of
 * torch._C; weir/backends is built on them.
 */
#include "weir/compute/blas.h"

#include "core.h"

static const char *type_name(PyObject *object) { return Py_TYPE(object)->tp_name; }

/* Sets a RuntimeError unless the object is a bool, as torch._C does. */
static int parse_bool(const char *what, PyObject *object, int *value) {
  if (!PyBool_Check(object)) {
    PyErr_Format(PyExc_RuntimeError, "%s, but got %s", what, type_name(object));
    return -1;
  }
  *value = object == Py_True;
  return 0;
}

/* ---- Handles and workspaces ---- */

static PyObject *current_handle(PyObject *module, PyObject *unused) {
  (void)module, (void)unused;
  weir_stream stream;
  void *handle;
  if (pyweir_ensure_init() != 0 || pyweir->parse_stream(Py_None, -1, &stream) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_blas_handle(stream, &handle));
  return pyweir->check(status) == 0 ? PyLong_FromVoidPtr(handle) : NULL;
}

PYWEIR_CALL_ONLY(clear_workspaces, weir_blas_clear_workspaces())

static PyObject *workspace_size(PyObject *module, PyObject *object) {
  (void)module;
  int device;
  uint64_t bytes;
  if (pyweir->need_device(object, &device) != 0)
    return NULL;
  weir_status status;
  PYWEIR_CALL(status, weir_blas_workspace_bytes(device, &bytes));
  return pyweir->check(status) == 0 ? PyLong_FromUnsignedLongLong(bytes) : NULL;
}

/* ---- TF32 and the precision of float32 ---- */

PYWEIR_NO_ARGUMENTS(get_allow_tf32, PyBool_FromLong(weir_blas_get_allow_tf32()))

static PyObject *set_allow_tf32(PyObject *module, PyObject *object) {
  (void)module;
  int allow;
  if (parse_bool("set_allow_tf32_cublas expects a bool", object, &allow) != 0)
    return NULL;
  weir_blas_set_allow_tf32(allow);
  Py_RETURN_NONE;
}

PYWEIR_NO_ARGUMENTS(get_precision, PyUnicode_FromString(weir_matmul_precision_name(weir_blas_get_float32_precision())))

static PyObject *set_precision(PyObject *module, PyObject *object) {
  (void)module;
  if (!PyUnicode_Check(object)) {
    PyErr_Format(PyExc_RuntimeError, "set_float32_matmul_precision expects a str, but got %s", type_name(object));
    return NULL;
  }
  const char *text = PyUnicode_AsUTF8(object);
  weir_matmul_precision precision;
  if (!text)
    return NULL;
  if (weir_matmul_precision_parse(text, &precision) == WEIR_OK)
    return pyweir->none(weir_blas_set_float32_precision(precision));
  if (PyErr_WarnFormat(PyExc_UserWarning, 2,
                       "%U is not one of 'highest', 'high', or 'medium'; the current "
                       "setFloat32MatmulPrecision call has no effect.",
                       object) != 0)
    return NULL;
  Py_RETURN_NONE;
}

/* ---- Reduced precision of 16-bit types ---- */

static PyObject *wrap_reduction(weir_reduced_precision mode) {
  return Py_BuildValue("(OO)", mode == WEIR_REDUCED_PRECISION_ALLOW ? Py_True : Py_False,
                       mode == WEIR_REDUCED_PRECISION_DISALLOW_SPLIT ? Py_False : Py_True);
}

static PyObject *set_reduction(PyObject *args, const char *what_reduction, const char *what_split,
                               weir_status (*set)(weir_reduced_precision)) {
  PyObject *reduction, *split = Py_None;
  int allow, may_split = 1;
  if (!PyArg_ParseTuple(args, "O|O", &reduction, &split) || parse_bool(what_reduction, reduction, &allow) != 0 ||
      (split != Py_None && parse_bool(what_split, split, &may_split) != 0))
    return NULL;
  if (allow && !may_split) {
    PyErr_SetString(PyExc_RuntimeError,
                    "allow_splitk=False is not supported when reduced precision reductions are enabled");
    return NULL;
  }
  return pyweir->none(set(allow       ? WEIR_REDUCED_PRECISION_ALLOW
                          : may_split ? WEIR_REDUCED_PRECISION_DISALLOW
                                      : WEIR_REDUCED_PRECISION_DISALLOW_SPLIT));
}

PYWEIR_NO_ARGUMENTS(get_fp16_reduction, wrap_reduction(weir_blas_get_fp16_reduced_precision()))

static PyObject *set_fp16_reduction(PyObject *module, PyObject *args) {
  (void)module;
  return set_reduction(args, "set_allow_fp16_reduction_cublas expects a bool for allow_reduced_precision",
                       "set_allow_fp16_reduction_cublas expects a bool for allow_splitk",
                       weir_blas_set_fp16_reduced_precision);
}

PYWEIR_NO_ARGUMENTS(get_bf16_reduction, wrap_reduction(weir_blas_get_bf16_reduced_precision()))

static PyObject *set_bf16_reduction(PyObject *module, PyObject *args) {
  (void)module;
  return set_reduction(args, "set_allow_bf16_reduction_cublas expects a bool for allow_reduced_precision",
                       "set_allow_bf16_reduction_cublas expects a bool for allow_splitk",
                       weir_blas_set_bf16_reduced_precision);
}

PYWEIR_NO_ARGUMENTS(get_fp16_accumulation, PyBool_FromLong(weir_blas_get_allow_fp16_accumulation()))

static PyObject *set_fp16_accumulation(PyObject *module, PyObject *object) {
  (void)module;
  int allow;
  if (parse_bool("set_allow_fp16_accumulation_cublas expects a bool", object, &allow) != 0)
    return NULL;
  weir_blas_set_allow_fp16_accumulation(allow);
  Py_RETURN_NONE;
}

/* ---- Deterministic algorithms ---- */

static PyObject *set_deterministic(PyObject *module, PyObject *args, PyObject *keywords) {
  (void)module;
  static char *names[] = {"mode", "warn_only", NULL};
  PyObject *mode, *warn_only = Py_False;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!|$O!:_set_deterministic_algorithms", names, &PyBool_Type, &mode,
                                   &PyBool_Type, &warn_only))
    return NULL;
  return pyweir->none(weir_blas_set_deterministic(mode != Py_True        ? WEIR_DETERMINISTIC_OFF
                                                  : warn_only == Py_True ? WEIR_DETERMINISTIC_WARN
                                                                         : WEIR_DETERMINISTIC_ERROR));
}

PYWEIR_NO_ARGUMENTS(get_deterministic, PyBool_FromLong(weir_blas_get_deterministic() != WEIR_DETERMINISTIC_OFF))
PYWEIR_NO_ARGUMENTS(get_warn_only, PyBool_FromLong(weir_blas_get_deterministic() == WEIR_DETERMINISTIC_WARN))
PYWEIR_CALL_ONLY(check_deterministic, weir_blas_check_deterministic())

static PyMethodDef functions[] = {
    {"_cuda_getCurrentBlasHandle", current_handle, METH_NOARGS, "The cublasHandle_t of the thread and its stream."},
    {"_cuda_clearCublasWorkspaces", clear_workspaces, METH_NOARGS, "Frees the workspaces of all handles."},
    {"_blas_workspace_size", workspace_size, METH_O, "(device): the bytes of a new workspace."},
    {"_get_cublas_allow_tf32", get_allow_tf32, METH_NOARGS, NULL},
    {"_set_cublas_allow_tf32", set_allow_tf32, METH_O, NULL},
    {"_get_float32_matmul_precision", get_precision, METH_NOARGS, NULL},
    {"_set_float32_matmul_precision", set_precision, METH_O, NULL},
    {"_get_cublas_allow_fp16_reduced_precision_reduction", get_fp16_reduction, METH_NOARGS, NULL},
    {"_set_cublas_allow_fp16_reduced_precision_reduction", set_fp16_reduction, METH_VARARGS, NULL},
    {"_get_cublas_allow_bf16_reduced_precision_reduction", get_bf16_reduction, METH_NOARGS, NULL},
    {"_set_cublas_allow_bf16_reduced_precision_reduction", set_bf16_reduction, METH_VARARGS, NULL},
    {"_get_cublas_allow_fp16_accumulation", get_fp16_accumulation, METH_NOARGS, NULL},
    {"_set_cublas_allow_fp16_accumulation", set_fp16_accumulation, METH_O, NULL},
    {"_set_deterministic_algorithms", PYWEIR_KEYWORDS(set_deterministic), NULL},
    {"_get_deterministic_algorithms", get_deterministic, METH_NOARGS, NULL},
    {"_get_deterministic_algorithms_warn_only", get_warn_only, METH_NOARGS, NULL},
    {"_check_deterministic", check_deterministic, METH_NOARGS, "The check of CUBLAS_WORKSPACE_CONFIG in a product."},
    {NULL, NULL, 0, NULL},
};

int pyweir_add_blas(PyObject *module) { return PyModule_AddFunctions(module, functions); }

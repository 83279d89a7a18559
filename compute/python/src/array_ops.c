/*
 * Operations on arrays: arithmetic, comparisons, reductions, matrix products and copies. Each runs on the current
 * stream of the arrays' device.
 */
#include "amp.h"

/* ---- Elementwise operations ---- */

/* The stream of an operation on two arrays, of which the second may be NULL: that of a device, if one is there. */
static int stream_of(const weir_array *a, const weir_array *b, weir_stream *stream) {
  return pyweir_place_stream(b && a->place.kind != WEIR_PLACE_DEVICE ? b->place : a->place, stream);
}

/* Binary operations on a device that autocast runs in float32. A number divided by an array is a reciprocal. */
static bool binary_runs_in_float32(weir_binary_op op, PyObject *a) {
  return op == WEIR_BINARY_POW || (op == WEIR_BINARY_DIV && !PYWEIR_IS_ARRAY(a));
}

/* a op b in float32, where autocast is on. */
static PyObject *autocast_binary(weir_binary_op op, PyObject *a, PyObject *b);

/* a op b, of which at least one is an array. In place, the result goes to a, which is returned. Py_NotImplemented if
 * the other one is no number. */
static PyObject *binary(weir_binary_op op, PyObject *a, PyObject *b, bool in_place) {
  weir_array made = {0}, *out = in_place ? pyweir_array_of(a) : &made;
  weir_stream stream;
  weir_status status;
  if (in_place && pyweir_array_check_writable(a) != 0)
    return NULL;
  if (pyweir_autocast.is_on && !in_place && binary_runs_in_float32(op, a))
    return autocast_binary(op, a, b);
  if (PYWEIR_IS_ARRAY(a) && PYWEIR_IS_ARRAY(b)) {
    const weir_array *x = pyweir_array_of(a), *y = pyweir_array_of(b);
    if (stream_of(x, y, &stream) != 0)
      return NULL;
    PYWEIR_CALL(status, weir_array_binary(op, x, y, stream, out));
  } else {
    bool is_reversed = !PYWEIR_IS_ARRAY(a);
    const weir_array *x = pyweir_array_of(is_reversed ? b : a);
    weir_scalar scalar;
    int is_scalar = pyweir_parse_scalar(is_reversed ? a : b, &scalar);
    if (is_scalar < 0)
      return NULL;
    if (!is_scalar)
      Py_RETURN_NOTIMPLEMENTED;
    if (stream_of(x, NULL, &stream) != 0)
      return NULL;
    PYWEIR_CALL(status, weir_array_binary_scalar(op, x, scalar, is_reversed, stream, out));
  }
  if (!in_place)
    return pyweir_array_result(status, &made);
  return pyweir_array_check(status) == 0 ? Py_NewRef(a) : NULL;
}

/* A policy is applied once: within an operation autocast is off. */
static PyObject *autocast_binary(weir_binary_op op, PyObject *a, PyObject *b) {
  PyObject *x = a, *y = b, *result = NULL;
  bool is_device = (PYWEIR_IS_ARRAY(a) && pyweir_array_of(a)->place.kind == WEIR_PLACE_DEVICE) ||
                   (PYWEIR_IS_ARRAY(b) && pyweir_array_of(b)->place.kind == WEIR_PLACE_DEVICE);
  bool is_cast = is_device && pyweir_autocast.is_enabled[PYWEIR_CUDA];
  x = is_cast && PYWEIR_IS_ARRAY(a) ? pyweir_autocast_cast(a, PYWEIR_CUDA, WEIR_FLOAT32) : Py_NewRef(a);
  y = is_cast && PYWEIR_IS_ARRAY(b) ? pyweir_autocast_cast(b, PYWEIR_CUDA, WEIR_FLOAT32) : Py_NewRef(b);
  if (x && y) {
    pyweir_autocast.is_on = false;
    result = binary(op, x, y, false);
    pyweir_autocast.is_on = true;
  }
  Py_XDECREF(x);
  Py_XDECREF(y);
  return result;
}

/* Operations on a device that autocast runs in float32: those whose results need its range or digits. */
static bool runs_in_float32(weir_unary_op op) {
  switch (op) {
  case WEIR_UNARY_EXP:
  case WEIR_UNARY_EXPM1:
  case WEIR_UNARY_LOG:
  case WEIR_UNARY_LOG2:
  case WEIR_UNARY_LOG10:
  case WEIR_UNARY_LOG1P:
  case WEIR_UNARY_RSQRT:
  case WEIR_UNARY_TAN:
  case WEIR_UNARY_RECIPROCAL:
    return true;
  default:
    return false;
  }
}

static PyObject *unary(weir_unary_op op, PyObject *a, PyObject *target);

static PyObject *autocast_unary(weir_unary_op op, PyObject *a) {
  PyObject *wide = pyweir_autocast_cast(a, PYWEIR_CUDA, WEIR_FLOAT32);
  if (!wide)
    return NULL;
  pyweir_autocast.is_on = false;
  PyObject *result = unary(op, wide, NULL);
  pyweir_autocast.is_on = true;
  Py_DECREF(wide);
  return result;
}

static PyObject *unary(weir_unary_op op, PyObject *a, PyObject *target) {
  if (pyweir_autocast.is_on && pyweir_autocast.is_enabled[PYWEIR_CUDA] && !target && runs_in_float32(op))
    return autocast_unary(op, a);
  weir_array made = {0}, *out = target ? pyweir_array_of(target) : &made;
  weir_stream stream;
  weir_status status;
  if ((target && pyweir_array_check_writable(target) != 0) || stream_of(pyweir_array_of(a), NULL, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_unary(op, pyweir_array_of(a), stream, out));
  if (!target)
    return pyweir_array_result(status, &made);
  return pyweir_array_check(status) == 0 ? Py_NewRef(target) : NULL;
}

/* a + alpha * b, or a - alpha * b. */
static PyObject *add_scaled(PyObject *a, PyObject *b, weir_scalar alpha, PyObject *target) {
  weir_array made = {0}, *out = target ? pyweir_array_of(target) : &made;
  weir_stream stream;
  weir_status status;
  if ((target && pyweir_array_check_writable(target) != 0) ||
      stream_of(pyweir_array_of(a), pyweir_array_of(b), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_add_scaled(pyweir_array_of(a), pyweir_array_of(b), alpha, stream, out));
  if (!target)
    return pyweir_array_result(status, &made);
  return pyweir_array_check(status) == 0 ? Py_NewRef(target) : NULL;
}

/* Methods: other, and alpha for add and sub. */
static PyObject *binary_method(const char *name, weir_binary_op op, PyObject *self, PyObject *const *args,
                               Py_ssize_t count, PyObject *keywords, bool in_place) {
  static const char *const names[] = {"other", "alpha"};
  PyObject *values[2] = {NULL, NULL};
  PyObject *target = in_place ? self : NULL;
  bool has_alpha = op == WEIR_BINARY_ADD || op == WEIR_BINARY_SUB;
  if (pyweir->parse_arguments(name, names, has_alpha ? 2 : 1, 1, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0])
    return PyErr_Format(PyExc_TypeError, "%s() missing required argument 'other'", name);
  PyObject *result;
  weir_scalar alpha;
  int is_scalar = values[1] ? pyweir_parse_scalar(values[1], &alpha) : 0;
  if (is_scalar < 0)
    return NULL;
  if (values[1] && !is_scalar)
    return pyweir->type_error("a number for alpha", values[1]);
  if (values[1] && PYWEIR_IS_ARRAY(values[0])) {
    if (op == WEIR_BINARY_SUB) {
      alpha.integer = -alpha.integer;
      alpha.real = -alpha.real;
      alpha.imag = -alpha.imag;
      if (alpha.kind == WEIR_SCALAR_BOOL)
        alpha.kind = WEIR_SCALAR_INT;
    }
    result = add_scaled(self, values[0], alpha, target);
  } else if (values[1]) {
    PyObject *product = PyNumber_Multiply(values[0], values[1]);
    result = product ? binary(op, self, product, in_place) : NULL;
    Py_XDECREF(product);
  } else {
    result = binary(op, self, values[0], in_place);
  }
  if (result == Py_NotImplemented) {
    Py_DECREF(result);
    return PyErr_Format(PyExc_TypeError, "%s(): argument 'other' must be an Array or a number, not %.100s", name,
                        Py_TYPE(values[0])->tp_name);
  }
  return result;
}

#define X(number, upper, lower)                                                                                        \
  static PyObject *method_##upper(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {       \
    return binary_method(lower, WEIR_BINARY_##upper, self, args, count, keywords, false);                              \
  }                                                                                                                    \
  static PyObject *in_place_##upper(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {     \
    return binary_method(lower "_", WEIR_BINARY_##upper, self, args, count, keywords, true);                           \
  }
WEIR_BINARY_MAP(X)
#undef X

#define X(number, upper, lower)                                                                                        \
  static PyObject *unary_##upper(PyObject *self, PyObject *unused) {                                                   \
    (void)unused;                                                                                                      \
    return unary(WEIR_UNARY_##upper, self, NULL);                                                                      \
  }                                                                                                                    \
  /* Those of a result of another type are unused. */                                                                  \
  __attribute__((unused)) static PyObject *unary_in_place_##upper(PyObject *self, PyObject *unused) {                  \
    (void)unused;                                                                                                      \
    return unary(WEIR_UNARY_##upper, self, self);                                                                      \
  }
WEIR_UNARY_MAP(X)
#undef X

/* ---- Operators ---- */

#define BINARY_OPERATOR(name, upper)                                                                                   \
  static PyObject *operator_##name(PyObject *a, PyObject *b) { return binary(WEIR_BINARY_##upper, a, b, false); }      \
  static PyObject *assign_##name(PyObject *a, PyObject *b) { return binary(WEIR_BINARY_##upper, a, b, true); }
BINARY_OPERATOR(add, ADD)
BINARY_OPERATOR(sub, SUB)
BINARY_OPERATOR(mul, MUL)
BINARY_OPERATOR(div, DIV)
BINARY_OPERATOR(floor_div, FLOOR_DIV)
BINARY_OPERATOR(remainder, REMAINDER)
BINARY_OPERATOR(and, BITWISE_AND)
BINARY_OPERATOR(or, BITWISE_OR)
BINARY_OPERATOR(xor, BITWISE_XOR)

static PyObject *power(PyObject *a, PyObject *b, PyObject *modulus) {
  if (modulus != Py_None)
    Py_RETURN_NOTIMPLEMENTED;
  return binary(WEIR_BINARY_POW, a, b, false);
}

static PyObject *assign_power(PyObject *a, PyObject *b, PyObject *modulus) {
  (void)modulus;
  return binary(WEIR_BINARY_POW, a, b, true);
}

static PyObject *negative(PyObject *a) { return unary(WEIR_UNARY_NEG, a, NULL); }
static PyObject *positive(PyObject *a) { return Py_NewRef(a); }
static PyObject *absolute(PyObject *a) { return unary(WEIR_UNARY_ABS, a, NULL); }
static PyObject *invert(PyObject *a) { return unary(WEIR_UNARY_BITWISE_NOT, a, NULL); }

static PyObject *product_of(PyObject *a, PyObject *b) {
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (stream_of(pyweir_array_of(a), pyweir_array_of(b), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_matmul(pyweir_array_of(a), pyweir_array_of(b), stream, &made));
  return pyweir_array_result(status, &made);
}

/* The product of two arrays that a policy of autocast casts. */
static PyObject *autocast_product(PyObject *a, PyObject *b,
                                  int (*policy)(const weir_array *, const weir_array *, weir_dtype *)) {
  const weir_array *x = pyweir_array_of(a), *y = pyweir_array_of(b);
  weir_dtype to;
  int is_cast = policy(x, y, &to), type = pyweir_autocast_type(x, y);
  if (is_cast < 0)
    return NULL;
  if (!is_cast)
    return product_of(a, b);
  PyObject *first = pyweir_autocast_cast(a, type, to);
  PyObject *second = first ? pyweir_autocast_cast(b, type, to) : NULL;
  PyObject *result = second ? product_of(first, second) : NULL;
  Py_XDECREF(first);
  Py_XDECREF(second);
  return result;
}

static PyObject *matmul_of(PyObject *a, PyObject *b) {
  if (!PYWEIR_IS_ARRAY(a) || !PYWEIR_IS_ARRAY(b))
    Py_RETURN_NOTIMPLEMENTED;
  return pyweir_autocast.is_on ? autocast_product(a, b, pyweir_autocast_lower) : product_of(a, b);
}

/* _mv and _dot: on the host autocast does not change them, as in PyTorch. */
static PyObject *device_product(PyObject *a, PyObject *b,
                                int (*policy)(const weir_array *, const weir_array *, weir_dtype *)) {
  if (!PYWEIR_IS_ARRAY(b))
    return pyweir->type_error("an Array", b);
  bool is_cast = pyweir_autocast.is_on && pyweir_autocast_type(pyweir_array_of(a), pyweir_array_of(b)) == PYWEIR_CUDA;
  return is_cast ? autocast_product(a, b, policy) : product_of(a, b);
}

static PyObject *mv(PyObject *self, PyObject *other) { return device_product(self, other, pyweir_autocast_lower); }
static PyObject *dot(PyObject *self, PyObject *other) { return device_product(self, other, pyweir_autocast_widest); }

PyObject *pyweir_array_compare(PyObject *a, PyObject *b, int operation) {
  static const weir_binary_op operations[] = {
      [Py_LT] = WEIR_BINARY_LT, [Py_LE] = WEIR_BINARY_LE, [Py_EQ] = WEIR_BINARY_EQ,
      [Py_NE] = WEIR_BINARY_NE, [Py_GT] = WEIR_BINARY_GT, [Py_GE] = WEIR_BINARY_GE,
  };
  return binary(operations[operation], a, b, false);
}

/* ---- Values ---- */

static int value_of(PyObject *self, weir_scalar *scalar) {
  const weir_array *a = pyweir_array_of(self);
  int64_t count = weir_array_count(a);
  weir_stream stream;
  weir_status status;
  if (count != 1) {
    PyErr_Format(PyExc_RuntimeError, "a Tensor with %lld elements cannot be converted to Scalar", (long long)count);
    return -1;
  }
  if (pyweir_array_stream(a, &stream) != 0)
    return -1;
  PYWEIR_CALL(status, weir_array_item(a, stream, scalar));
  return pyweir_array_check(status);
}

static PyObject *item(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_scalar scalar;
  return value_of(self, &scalar) == 0 ? pyweir_scalar_wrap(scalar) : NULL;
}

static int truth(PyObject *self) {
  int64_t count = weir_array_count(pyweir_array_of(self));
  weir_scalar scalar;
  if (count != 1) {
    PyErr_Format(PyExc_RuntimeError, "Boolean value of Tensor with %s is ambiguous",
                 count ? "more than one value" : "no values");
    return -1;
  }
  if (value_of(self, &scalar) != 0)
    return -1;
  return scalar.kind <= WEIR_SCALAR_INT ? scalar.integer != 0 : scalar.real != 0 || scalar.imag != 0;
}

/* item(), converted by a function of Python. */
static PyObject *converted(PyObject *self, PyObject *(*convert)(PyObject *)) {
  weir_scalar scalar;
  if (value_of(self, &scalar) != 0)
    return NULL;
  if (scalar.kind == WEIR_SCALAR_COMPLEX) {
    if (scalar.imag != 0)
      return PyErr_Format(PyExc_RuntimeError, "value cannot be converted to type double without overflow");
    scalar.kind = WEIR_SCALAR_FLOAT;
  }
  PyObject *number = pyweir_scalar_wrap(scalar), *result = number ? convert(number) : NULL;
  Py_XDECREF(number);
  return result;
}

static PyObject *as_float(PyObject *self) { return converted(self, PyNumber_Float); }
static PyObject *as_int(PyObject *self) { return converted(self, PyNumber_Long); }

static PyObject *as_index(PyObject *self) {
  const weir_array *a = pyweir_array_of(self);
  if (weir_array_count(a) != 1 || !(weir_dtype_is_integer(a->dtype) || a->dtype == WEIR_BOOL))
    return PyErr_Format(PyExc_TypeError, "only integer tensors of a single element can be converted to an index");
  return converted(self, PyNumber_Index);
}

PyNumberMethods pyweir_array_numbers = {
    .nb_add = operator_add,
    .nb_subtract = operator_sub,
    .nb_multiply = operator_mul,
    .nb_true_divide = operator_div,
    .nb_floor_divide = operator_floor_div,
    .nb_remainder = operator_remainder,
    .nb_power = power,
    .nb_and = operator_and,
    .nb_or = operator_or,
    .nb_xor = operator_xor,
    .nb_matrix_multiply = matmul_of,
    .nb_negative = negative,
    .nb_positive = positive,
    .nb_absolute = absolute,
    .nb_invert = invert,
    .nb_bool = truth,
    .nb_int = as_int,
    .nb_float = as_float,
    .nb_index = as_index,
    .nb_inplace_add = assign_add,
    .nb_inplace_subtract = assign_sub,
    .nb_inplace_multiply = assign_mul,
    .nb_inplace_true_divide = assign_div,
    .nb_inplace_floor_divide = assign_floor_div,
    .nb_inplace_remainder = assign_remainder,
    .nb_inplace_power = assign_power,
    .nb_inplace_and = assign_and,
    .nb_inplace_or = assign_or,
    .nb_inplace_xor = assign_xor,
};

/* ---- Reductions ---- */

/* The dimensions of an argument that is None (all: *count is 0), an int, or a sequence of them. */
static int parse_dims(PyObject *object, int ndim, int dims[WEIR_ARRAY_MAX_DIMS], int *count) {
  int64_t sizes[WEIR_ARRAY_MAX_DIMS];
  *count = 0;
  if (object == Py_None)
    return 0;
  if (pyweir_parse_sizes("reduce", &object, 1, sizes, count) != 0)
    return -1;
  int range = ndim ? ndim : 1;
  for (int i = 0; i < *count; i++) {
    if (sizes[i] < -range || sizes[i] >= range) {
      PyErr_Format(PyExc_IndexError, "Dimension out of range (expected to be in range of [%d, %d], but got %lld)",
                   -range, range - 1, (long long)sizes[i]);
      return -1;
    }
    dims[i] = (int)(sizes[i] < 0 ? sizes[i] + range : sizes[i]);
    for (int k = 0; k < i; k++)
      if (dims[k] == dims[i]) {
        PyErr_Format(PyExc_RuntimeError, "dim %d appears multiple times in the list of dims", dims[i]);
        return -1;
      }
  }
  if (!ndim)
    *count = 0;
  return 0;
}

/* An array for the result of a reduction with a given type. */
static weir_status empty_result(const weir_array *a, const int *dims, int count, int keepdim, weir_dtype dtype,
                                weir_stream stream, weir_array *out) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int ndim = 0;
  for (int i = 0; i < a->ndim; i++) {
    bool is_reduced = !count;
    for (int k = 0; k < count; k++)
      is_reduced |= dims[k] == i;
    if (!is_reduced)
      shape[ndim++] = a->shape[i];
    else if (keepdim)
      shape[ndim++] = 1;
  }
  return weir_array_empty(a->place, dtype, ndim, shape, stream, out);
}

/* Whether autocast makes a sum or product without a dtype one of float32. */
static bool sums_in_float32(weir_reduce_op op, const weir_array *a) {
  int type = pyweir_autocast_type(a, NULL);
  bool has_policy = op == WEIR_REDUCE_PROD || (op == WEIR_REDUCE_SUM && type == PYWEIR_CUDA);
  return has_policy && pyweir_autocast.is_enabled[type] && pyweir_autocast_is_eligible(a, type);
}

static PyObject *reduce(weir_reduce_op op, PyObject *self, PyObject *dim, PyObject *keep, PyObject *type) {
  const weir_array *a = pyweir_array_of(self);
  int dims[WEIR_ARRAY_MAX_DIMS], count, keepdim = PyObject_IsTrue(keep);
  weir_dtype dtype = WEIR_FLOAT32;
  weir_array out = {0};
  weir_stream stream;
  weir_status status = WEIR_OK;
  bool has_type = type != Py_None;
  if (pyweir_autocast.is_on && !has_type && sums_in_float32(op, a))
    has_type = true; /* dtype is float32 */
  if (keepdim < 0 || parse_dims(dim, a->ndim, dims, &count) != 0 || pyweir_array_stream(a, &stream) != 0 ||
      (type != Py_None && pyweir_parse_dtype(type, &dtype) != 0))
    return NULL;
  PyThreadState *saved = pyweir->begin_call();
  if (has_type)
    status = empty_result(a, dims, count, keepdim, dtype, stream, &out);
  if (status == WEIR_OK)
    status = weir_array_reduce(op, a, dims, count, keepdim, stream, &out);
  if (status != WEIR_OK)
    weir_array_release(&out);
  pyweir->end_call(saved);
  return pyweir_array_result(status, &out);
}

static PyObject *reduce_method(const char *name, weir_reduce_op op, PyObject *self, PyObject *const *args,
                               Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"dim", "keepdim", "dtype"};
  PyObject *values[3] = {Py_None, Py_False, Py_None};
  bool has_dtype = op == WEIR_REDUCE_SUM || op == WEIR_REDUCE_PROD || op == WEIR_REDUCE_MEAN;
  if (pyweir->parse_arguments(name, names, has_dtype ? 3 : 2, 2, args, count, keywords, values) != 0)
    return NULL;
  return reduce(op, self, values[0], values[1], values[2]);
}

#define X(number, upper, lower)                                                                                        \
  static PyObject *reduce_##upper(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {       \
    return reduce_method(lower, WEIR_REDUCE_##upper, self, args, count, keywords);                                     \
  }
WEIR_REDUCE_MAP(X)
#undef X

/* ---- Copies and fills ---- */

static PyObject *copy(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"src", "non_blocking"};
  PyObject *values[2] = {NULL, Py_False};
  weir_stream stream;
  weir_status status;
  if (pyweir->parse_arguments("copy_", names, 2, 2, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0] || !PYWEIR_IS_ARRAY(values[0]))
    return pyweir->type_error("an Array", values[0] ? values[0] : Py_None);
  int non_blocking = PyObject_IsTrue(values[1]);
  if (non_blocking < 0 || pyweir_array_check_writable(self) != 0 ||
      stream_of(pyweir_array_of(self), pyweir_array_of(values[0]), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_copy(pyweir_array_of(self), pyweir_array_of(values[0]), stream, non_blocking));
  return pyweir_array_check(status) == 0 ? Py_NewRef(self) : NULL;
}

static PyObject *fill(PyObject *self, PyObject *value) {
  weir_scalar scalar;
  weir_stream stream;
  weir_status status;
  if (PYWEIR_IS_ARRAY(value)) {
    if (pyweir_array_of(value)->ndim)
      return PyErr_Format(PyExc_RuntimeError,
                          "fill_ only supports 0-dimension value tensor but got tensor with %d dimensions.",
                          pyweir_array_of(value)->ndim);
    return copy(self, &value, 1, NULL);
  }
  int is_scalar = pyweir_parse_scalar(value, &scalar);
  if (is_scalar < 0)
    return NULL;
  if (!is_scalar)
    return pyweir->type_error("a number", value);
  if (pyweir_array_check_writable(self) != 0 || pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_fill(pyweir_array_of(self), scalar, stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(self) : NULL;
}

static PyObject *zero(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_stream stream;
  weir_status status;
  if (pyweir_array_check_writable(self) != 0 || pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_fill(pyweir_array_of(self), weir_scalar_int(0), stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(self) : NULL;
}

/* A copy in a place. */
static PyObject *copied_to(PyObject *self, weir_place place, weir_dtype dtype, int non_blocking) {
  const weir_array *a = pyweir_array_of(self);
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (place.kind == WEIR_PLACE_PINNED && pyweir_array_need_host() != 0)
    return NULL;
  if (pyweir_place_stream(place.kind == WEIR_PLACE_DEVICE ? place : a->place, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_to(a, place, dtype, stream, non_blocking, &made));
  return pyweir_array_result(status, &made);
}

/* The array itself if there is nothing to do and no copy is requested. */
static PyObject *to_place(PyObject *self, weir_place place, weir_dtype dtype, int non_blocking, int is_copied) {
  const weir_array *a = pyweir_array_of(self);
  bool is_there = place.kind == WEIR_PLACE_DEVICE
                      ? a->place.kind == WEIR_PLACE_DEVICE && a->place.device == place.device
                      : a->place.kind != WEIR_PLACE_DEVICE;
  if (is_there && dtype == a->dtype && !is_copied)
    return Py_NewRef(self);
  /* Only pinned memory can be written later. */
  if (place.kind == WEIR_PLACE_HOST && a->place.kind == WEIR_PLACE_DEVICE && non_blocking)
    place = weir_place_pinned();
  return copied_to(self, place, dtype, non_blocking);
}

/* _to(device, dtype, non_blocking, copy): device and dtype are None for those of the array. */
static PyObject *to(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  const weir_array *a = pyweir_array_of(self);
  weir_place place = a->place;
  weir_dtype dtype = a->dtype;
  if (count != 4)
    return PyErr_Format(PyExc_TypeError, "_to takes 4 arguments (%zd given)", count);
  int non_blocking = PyObject_IsTrue(args[2]), is_copied = PyObject_IsTrue(args[3]);
  if (non_blocking < 0 || is_copied < 0 || (args[0] != Py_None && pyweir_parse_place(args[0], &place) != 0) ||
      (args[1] != Py_None && pyweir_parse_dtype(args[1], &dtype) != 0))
    return NULL;
  if (args[0] == Py_None && place.kind == WEIR_PLACE_PINNED)
    place = weir_place_host();
  return to_place(self, place, dtype, non_blocking, is_copied);
}

static PyObject *clone_array(PyObject *self, PyObject *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  return copied_to(self, a->place.kind == WEIR_PLACE_PINNED ? weir_place_host() : a->place, a->dtype, 0);
}

static PyObject *pin_memory(PyObject *self, PyObject *unused) {
  (void)unused;
  const weir_array *a = pyweir_array_of(self);
  if (a->place.kind == WEIR_PLACE_PINNED)
    return Py_NewRef(self);
  if (a->place.kind == WEIR_PLACE_DEVICE)
    return PyErr_Format(PyExc_RuntimeError, "cannot pin 'weir.cuda.%sTensor' only dense CPU tensors can be pinned",
                        weir_dtype_title(a->dtype));
  return copied_to(self, weir_place_pinned(), a->dtype, 0);
}

static PyObject *matmul(PyObject *self, PyObject *other) {
  PyObject *result = matmul_of(self, other);
  if (result != Py_NotImplemented)
    return result;
  Py_DECREF(result);
  return pyweir->type_error("an Array", other);
}

static PyObject *index_select(PyObject *self, PyObject *args) {
  int dim;
  PyObject *indices;
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "iO!:index_select", &dim, &pyweir_array_type, &indices) ||
      stream_of(pyweir_array_of(self), pyweir_array_of(indices), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_index_select(pyweir_array_of(self), dim, pyweir_array_of(indices), stream, &made));
  return pyweir_array_result(status, &made);
}

static PyObject *gather(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"dim", "index"};
  PyObject *values[2] = {NULL, NULL};
  int dim;
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (pyweir->parse_arguments("gather", names, 2, 2, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0] || !values[1])
    return PyErr_Format(PyExc_TypeError, "gather() takes a dimension and an Array of indices");
  if (!PYWEIR_IS_ARRAY(values[1]))
    return pyweir->type_error("an Array", values[1]);
  const weir_array *index = pyweir_array_of(values[1]);
  if (pyweir->parse_int(values[0], &dim) != 0 || stream_of(pyweir_array_of(self), index, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_gather(pyweir_array_of(self), dim, index, stream, &made));
  return pyweir_array_result(status, &made);
}

static PyObject *bincount(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"weights", "minlength"};
  PyObject *values[2] = {Py_None, NULL};
  int64_t minlength = 0;
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (pyweir->parse_arguments("bincount", names, 2, 2, args, count, keywords, values) != 0)
    return NULL;
  if (values[0] != Py_None && !PYWEIR_IS_ARRAY(values[0]))
    return pyweir->type_error("an Array", values[0]);
  const weir_array *weights = values[0] == Py_None ? NULL : pyweir_array_of(values[0]);
  if ((values[1] && pyweir_parse_int64(values[1], &minlength) != 0) ||
      stream_of(pyweir_array_of(self), weights, &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_bincount(pyweir_array_of(self), weights, minlength, stream, &made));
  return pyweir_array_result(status, &made);
}

static PyObject *multinomial(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
  static const char *const names[] = {"num_samples", "replacement", "generator"};
  PyObject *values[3] = {NULL, Py_False, Py_None};
  int64_t samples;
  weir_generator *generator = NULL;
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (pyweir->parse_arguments("multinomial", names, 3, 2, args, count, keywords, values) != 0)
    return NULL;
  if (!values[0])
    return PyErr_Format(PyExc_TypeError, "multinomial() missing required argument 'num_samples'");
  int replacement = PyObject_IsTrue(values[1]);
  if (replacement < 0 || pyweir_parse_int64(values[0], &samples) != 0 ||
      (values[2] != Py_None && !(generator = pyweir_generator_get(values[2]))) ||
      pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_multinomial(generator, pyweir_array_of(self), samples, replacement, stream, &made));
  return pyweir_array_result(status, &made);
}

static PyObject *assert_async(PyObject *self, PyObject *unused) {
  (void)unused;
  weir_stream stream;
  weir_status status;
  if (pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_assert_async(pyweir_array_of(self), stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(Py_None) : NULL;
}

/* _arange_(start, step) */
static PyObject *arange(PyObject *self, PyObject *args) {
  PyObject *objects[2];
  weir_scalar scalars[2];
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "OO:_arange_", &objects[0], &objects[1]))
    return NULL;
  for (int i = 0; i < 2; i++) {
    int is_scalar = pyweir_parse_scalar(objects[i], &scalars[i]);
    if (is_scalar < 1)
      return is_scalar ? NULL : pyweir->type_error("a number", objects[i]);
  }
  if (pyweir_array_stream(pyweir_array_of(self), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_arange(pyweir_array_of(self), scalars[0], scalars[1], stream));
  return pyweir_array_check(status) == 0 ? Py_NewRef(self) : NULL;
}

/* where(condition, self, other) as a method of the condition. */
static PyObject *where(PyObject *self, PyObject *args) {
  PyObject *a, *b;
  weir_array made = {0};
  weir_stream stream;
  weir_status status;
  if (!PyArg_ParseTuple(args, "O!O!:_where", &pyweir_array_type, &a, &pyweir_array_type, &b) ||
      stream_of(pyweir_array_of(self), pyweir_array_of(a), &stream) != 0)
    return NULL;
  PYWEIR_CALL(status, weir_array_where(pyweir_array_of(self), pyweir_array_of(a), pyweir_array_of(b), stream, &made));
  return pyweir_array_result(status, &made);
}

/* ---- The tables ---- */

#define BINARY(upper, lower, text)                                                                                     \
  {lower, PYWEIR_FAST_KEYWORDS(method_##upper), lower "($self, other)\n--\n\n" text}, {                                \
    lower "_", PYWEIR_FAST_KEYWORDS(in_place_##upper), lower "_($self, other)\n--\n\n" text " In place."               \
  }
#define UNARY(upper, lower, text)                                                                                      \
  {lower, unary_##upper, METH_NOARGS, lower "($self)\n--\n\n" text}, {                                                 \
    lower "_", unary_in_place_##upper, METH_NOARGS, lower "_($self)\n--\n\n" text " In place."                         \
  }
#define REDUCE(upper, lower, text)                                                                                     \
  { lower, PYWEIR_FAST_KEYWORDS(reduce_##upper), lower "($self, dim=None, keepdim=False)\n--\n\n" text }
#define REDUCE_AS(upper, lower, text)                                                                                  \
  { lower, PYWEIR_FAST_KEYWORDS(reduce_##upper), lower "($self, dim=None, keepdim=False, *, dtype=None)\n--\n\n" text }

PyMethodDef pyweir_array_operation_methods[] = {
    BINARY(ADD, "add", "Adds, with alpha * other if alpha is given."),
    BINARY(SUB, "sub", "Subtracts, with alpha * other if alpha is given."),
    BINARY(MUL, "mul", "Multiplies."),
    BINARY(DIV, "div", "Divides; integers give floats."),
    BINARY(FLOOR_DIV, "floor_divide", "Divides, and rounds down."),
    BINARY(REMAINDER, "remainder", "Computes the remainder, which has the sign of the divisor."),
    BINARY(POW, "pow", "Raises to a power."),
    BINARY(MAXIMUM, "maximum", "Computes the larger of both; NaN if one is."),
    BINARY(MINIMUM, "minimum", "Computes the smaller of both; NaN if one is."),
    BINARY(BITWISE_AND, "bitwise_and", "Computes the bitwise and of integers or bools."),
    BINARY(BITWISE_OR, "bitwise_or", "Computes the bitwise or of integers or bools."),
    BINARY(BITWISE_XOR, "bitwise_xor", "Computes the bitwise exclusive or of integers or bools."),
    BINARY(EQ, "eq", "Whether the elements are equal."),
    BINARY(NE, "ne", "Whether the elements differ."),
    BINARY(LT, "lt", "Whether the elements are less."),
    BINARY(LE, "le", "Whether the elements are less or equal."),
    BINARY(GT, "gt", "Whether the elements are greater."),
    BINARY(GE, "ge", "Whether the elements are greater or equal."),
    BINARY(LOGICAL_AND, "logical_and", "Whether both elements are nonzero."),
    BINARY(LOGICAL_OR, "logical_or", "Whether either element is nonzero."),
    BINARY(LOGICAL_XOR, "logical_xor", "Whether exactly one element is nonzero."),
    {"positive", unary_POSITIVE, METH_NOARGS, "positive($self)\n--\n\nReturns the elements as they are."},
    UNARY(NEG, "neg", "Negates."),
    UNARY(ABS, "abs", "Computes the absolute value."),
    UNARY(SIGN, "sign", "Computes the sign: -1, 0 or 1."),
    UNARY(SQUARE, "square", "Computes the square."),
    UNARY(FLOOR, "floor", "Rounds down."),
    UNARY(CEIL, "ceil", "Rounds up."),
    UNARY(ROUND, "round", "Rounds to the nearest integer, halves to even."),
    UNARY(TRUNC, "trunc", "Rounds towards zero."),
    UNARY(RELU, "relu", "Replaces negative elements by 0."),
    UNARY(EXP, "exp", "Computes e ** x."),
    UNARY(EXPM1, "expm1", "Computes e ** x - 1."),
    UNARY(LOG, "log", "Computes the natural logarithm."),
    UNARY(LOG2, "log2", "Computes the logarithm to base 2."),
    UNARY(LOG10, "log10", "Computes the logarithm to base 10."),
    UNARY(LOG1P, "log1p", "Computes the natural logarithm of 1 + x."),
    UNARY(SQRT, "sqrt", "Computes the square root."),
    UNARY(RSQRT, "rsqrt", "Computes 1 / sqrt(x)."),
    UNARY(SIN, "sin", "Computes the sine."),
    UNARY(COS, "cos", "Computes the cosine."),
    UNARY(TAN, "tan", "Computes the tangent."),
    UNARY(TANH, "tanh", "Computes the hyperbolic tangent."),
    UNARY(SIGMOID, "sigmoid", "Computes 1 / (1 + e ** -x)."),
    UNARY(ERF, "erf", "Computes the error function."),
    UNARY(RECIPROCAL, "reciprocal", "Computes 1 / x."),
    UNARY(BITWISE_NOT, "bitwise_not", "Inverts the bits of integers, or bools."),
    UNARY(LOGICAL_NOT, "logical_not", "Whether the elements are 0."),
    {"isfinite", unary_ISFINITE, METH_NOARGS, "isfinite($self)\n--\n\nWhether the elements are finite."},
    {"isnan", unary_ISNAN, METH_NOARGS, "isnan($self)\n--\n\nWhether the elements are NaN."},
    {"isinf", unary_ISINF, METH_NOARGS, "isinf($self)\n--\n\nWhether the elements are infinite."},
    {"_real", unary_REAL, METH_NOARGS, NULL},
    {"_imag", unary_IMAG, METH_NOARGS, NULL},
    {"conj", unary_CONJ, METH_NOARGS, "conj($self)\n--\n\nReturns the complex conjugate."},
    REDUCE_AS(SUM, "sum", "Adds all elements, or those along dimensions. dtype is the type of the result."),
    REDUCE_AS(PROD, "prod", "Multiplies all elements, or those along dimensions."),
    REDUCE_AS(MEAN, "mean", "Computes the mean of all elements, or along dimensions."),
    REDUCE(MIN, "amin", "Returns the smallest of all elements, or along dimensions."),
    REDUCE(MAX, "amax", "Returns the largest of all elements, or along dimensions."),
    REDUCE(ARGMIN, "argmin", "Returns the index of the first smallest element, of all or along a dimension."),
    REDUCE(ARGMAX, "argmax", "Returns the index of the first largest element, of all or along a dimension."),
    REDUCE(ALL, "all", "Whether all elements are nonzero."),
    REDUCE(ANY, "any", "Whether an element is nonzero."),
    REDUCE(COUNT_NONZERO, "count_nonzero", "Counts the elements that are not 0."),
    REDUCE(SUM_OF_SQUARES, "_sum_of_squares", "Adds the squares."),
    {"copy_", PYWEIR_FAST_KEYWORDS(copy),
     "copy_($self, src, non_blocking=False)\n--\n\n"
     "Copies the elements of another array, which may be of another type and in another place, and is broadcast.\n"
     "A copy between a device and pinned memory that is non-blocking is done in the order of the stream."},
    {"fill_", fill, METH_O, "fill_($self, value, /)\n--\n\nSets all elements to a number."},
    {"zero_", zero, METH_NOARGS, "zero_($self)\n--\n\nSets all elements to 0."},
    {"clone", clone_array, METH_NOARGS, "clone($self)\n--\n\nReturns a contiguous copy."},
    {"pin_memory", pin_memory, METH_NOARGS,
     "pin_memory($self)\n--\n\nReturns a copy in pinned memory, or the array if it is pinned."},
    {"matmul", matmul, METH_O,
     "matmul($self, other, /)\n--\n\nReturns the matrix product of vectors, matrices or batches of matrices."},
    {"index_select", index_select, METH_VARARGS,
     "index_select($self, dim, index, /)\n--\n\nReturns the elements at the indices of a dimension."},
    {"gather", PYWEIR_FAST_KEYWORDS(gather),
     "gather($self, dim, index)\n--\n\n"
     "Returns elements whose position along a dimension is given by an array of indices, as torch.gather()."},
    {"bincount", PYWEIR_FAST_KEYWORDS(bincount),
     "bincount($self, weights=None, minlength=0)\n--\n\n"
     "Counts how often each integer occurs in a vector, or adds the weights of its elements."},
    {"multinomial", PYWEIR_FAST_KEYWORDS(multinomial),
     "multinomial($self, num_samples, replacement=False, *, generator=None)\n--\n\n"
     "Returns random indices, with the elements of each row as probabilities up to a factor. Needs a device."},
    {"item", item, METH_NOARGS, "item($self)\n--\n\nReturns the value of the only element. Waits for it."},
    {"_to", PYWEIR_FAST(to), NULL},
    {"_assert_async", assert_async, METH_NOARGS, NULL},
    {"_dot", dot, METH_O, NULL},
    {"_mv", mv, METH_O, NULL},
    {"_arange_", arange, METH_VARARGS, NULL},
    {"_where", where, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

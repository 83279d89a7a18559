/*
 * Elementwise operations: checks, types and shapes of results.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/array.h"
#include "weir/copy.h"

/* ---- Types ---- */

/* The type that a number has before it is combined with arrays. */
static weir_dtype dtype_of_scalar(weir_scalar scalar) {
  switch (scalar.kind) {
  case WEIR_SCALAR_BOOL:
    return WEIR_BOOL;
  case WEIR_SCALAR_INT:
    return WEIR_INT64;
  case WEIR_SCALAR_FLOAT:
    return WEIR_FLOAT32;
  default:
    return WEIR_COMPLEX64;
  }
}

static int kind_of(weir_dtype dtype) {
  return dtype == WEIR_BOOL ? 0 : weir_dtype_is_integer(dtype) ? 1 : weir_dtype_is_float(dtype) ? 2 : 3;
}

/* Three groups, of which a later one only counts if its kind is higher. A complex number takes the precision of floats
 * that come before it. */
typedef struct types {
  bool has[3];
  weir_dtype dtype[3]; /* arrays with dimensions, arrays without, numbers */
} types;

static void add_type(types *types, int group, weir_dtype dtype) {
  types->dtype[group] = types->has[group] ? weir_dtype_promote(types->dtype[group], dtype) : dtype;
  types->has[group] = true;
}

static weir_dtype combine_types(const types *types) {
  bool has = false;
  weir_dtype result = WEIR_FLOAT32;
  for (int group = 0; group < 3; group++) {
    if (!types->has[group])
      continue;
    weir_dtype dtype = types->dtype[group];
    if (!has || kind_of(dtype) > kind_of(result))
      result = has ? weir_dtype_promote(result, dtype) : dtype;
    has = true;
  }
  return result;
}

static void add_input(types *types, const weir__input *input) {
  if (input->array)
    add_type(types, input->array->ndim ? 0 : 1, input->array->dtype);
  else
    add_type(types, 2, dtype_of_scalar(input->number));
}

weir_status weir_array_result_type(const weir_array *const *arrays, int count, const weir_scalar *scalar,
                                   weir_dtype *dtype) {
  WEIR__CHECK_ARGUMENT(dtype);
  types types = {0};
  for (int i = 0; i < count; i++) {
    WEIR__CHECK_ARRAY(arrays[i]);
    add_input(&types, &(weir__input){.array = arrays[i]});
  }
  if (scalar)
    add_input(&types, &(weir__input){.number = *scalar});
  *dtype = combine_types(&types);
  return WEIR_OK;
}

static bool can_cast(weir_dtype from, weir_dtype to) { return kind_of(from) <= kind_of(to); }

/* PyTorch's C++ name of a type, for the text below. */
static const char *cpp_name(weir_dtype dtype) {
  switch (dtype) {
  case WEIR_UINT8:
    return "uint8_t";
  case WEIR_INT8:
    return "int8_t";
  case WEIR_INT16:
    return "int16_t";
  case WEIR_INT32:
    return "int";
  case WEIR_INT64:
    return "int64_t";
  case WEIR_FLOAT16:
    return "at::Half";
  case WEIR_BFLOAT16:
    return "at::BFloat16";
  case WEIR_FLOAT64:
    return "double";
  default:
    return "float";
  }
}

/* Negative numbers wrap around in uint8, as in PyTorch. */
weir_status weir__check_number(const char *caller, weir_scalar number, weir_dtype dtype) {
  weir__number n = weir__number_of(number);
  bool is_integer = number.kind == WEIR_SCALAR_BOOL || number.kind == WEIR_SCALAR_INT, fits = true;
  double least = -DBL_MAX, largest = DBL_MAX;
  switch (dtype) {
  case WEIR_UINT8:
    least = -UINT8_MAX, largest = UINT8_MAX;
    break;
  case WEIR_INT8:
    least = INT8_MIN, largest = INT8_MAX;
    break;
  case WEIR_INT16:
    least = INT16_MIN, largest = INT16_MAX;
    break;
  case WEIR_INT32:
    least = INT32_MIN, largest = INT32_MAX;
    break;
  case WEIR_INT64:
    least = -0x1p63, largest = is_integer ? 0x1p63 : nextafter(0x1p63, 0);
    break;
  case WEIR_FLOAT16:
    largest = 65504, least = -largest;
    break;
  case WEIR_BFLOAT16:
    largest = 0x1.FEp127, least = -largest;
    break;
  case WEIR_FLOAT32:
    largest = FLT_MAX, least = -largest;
    break;
  case WEIR_FLOAT64:
    break;
  default:
    return WEIR_OK;
  }
  if (weir_dtype_is_float(dtype))
    fits = !isfinite(n.real) || (n.real >= least && n.real <= largest);
  else /* a fraction is cut off, and what is not a number fits nowhere */
    fits = n.real >= least && n.real <= largest;
  if (number.kind == WEIR_SCALAR_COMPLEX && n.imag != 0)
    fits = false;
  return fits ? WEIR_OK
              : weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: value cannot be converted to type %s without overflow",
                           caller, cpp_name(dtype));
}

/* ---- Shapes and places ---- */

weir_status weir__broadcast(const char *caller, int *ndim, int64_t *shape, const weir_array *other) {
  int result = *ndim > other->ndim ? *ndim : other->ndim;
  int64_t merged[WEIR_ARRAY_MAX_DIMS] = {0};
  for (int i = 0; i < result; i++) {
    int at_a = i - (result - *ndim), at_b = i - (result - other->ndim);
    int64_t a = at_a < 0 ? 1 : shape[at_a], b = at_b < 0 ? 1 : other->shape[at_b];
    if (a != b && a != 1 && b != 1)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: The size of tensor a (%" PRId64 ") must match the size of tensor b (%" PRId64
                        ") at non-singleton dimension %d",
                        caller, a, b, i);
    merged[i] = a == 1 ? b : a;
  }
  *ndim = result;
  memcpy(shape, merged, (size_t)result * sizeof *shape);
  return WEIR_OK;
}

weir_status weir__check_same_place(const char *caller, const weir_array *a, const weir_array *b) {
  if (weir__is_host(a) ? weir__is_host(b) : !weir__is_host(b) && a->place.device == b->place.device)
    return WEIR_OK;
  char first[32], second[32];
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "%s: Expected all tensors to be on the same device, but found at least two devices, %s and %s!",
                    caller, weir__format_place(a->place, first), weir__format_place(b->place, second));
}

weir_status weir__check_overlap(const char *caller, const weir_array *out, const weir_array *input) {
  if (!input)
    return WEIR_OK;
  if (input == out) {
    for (int i = 0; i < out->ndim; i++)
      if (out->shape[i] > 1 && out->strides[i] == 0 && weir_array_count(out))
        return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                          "%s: unsupported operation: more than one element of the written-to tensor refers to a "
                          "single memory location. Please clone() the tensor before performing the operation.",
                          caller);
    return WEIR_OK;
  }
  if (out->storage != input->storage || !weir_array_count(out) || !weir_array_count(input) || !weir__is_dense(out) ||
      !weir__is_dense(input))
    return WEIR_OK;
  char *a = out->data, *b = input->data;
  char *a_end = a + weir_array_count(out) * (int64_t)weir_dtype_size(out->dtype);
  char *b_end = b + weir_array_count(input) * (int64_t)weir_dtype_size(input->dtype);
  bool is_same = a == b && a_end == b_end && out->dtype == input->dtype && out->ndim == input->ndim;
  for (int i = 0; i < out->ndim && is_same; i++)
    is_same = out->shape[i] == input->shape[i] && (out->shape[i] == 1 || out->strides[i] == input->strides[i]);
  if (is_same || a >= b_end || b >= a_end)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "%s: unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                    "single memory location. Please clone() the tensor before performing the operation.",
                    caller);
}

weir_status weir__prepare_out(const char *caller, weir_place place, weir_dtype dtype, int ndim, const int64_t *shape,
                              weir_stream stream, weir_array *out, bool *is_new) {
  if (!out)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: out is NULL", caller);
  *is_new = !weir__has_array(out);
  if (*is_new) {
    if (place.kind != WEIR_PLACE_DEVICE)
      place = weir_place_host();
    return weir__fail_as(caller, weir_array_empty(place, dtype, ndim, shape, stream, out));
  }
  weir_status status = weir__array_check(caller, out, "out");
  if (status)
    return status;
  weir_array inputs = {.place = place};
  status = weir__check_same_place(caller, &inputs, out);
  if (!status)
    status = weir__check_stream(caller, out, stream);
  if (!status)
    status = weir__check_overlap(caller, out, out);
  if (status)
    return status;
  if (!can_cast(dtype, out->dtype))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: result type %s can't be cast to the desired output type %s",
                      caller, weir_dtype_title(dtype), weir_dtype_title(out->dtype));
  bool is_same = out->ndim == ndim;
  for (int i = 0; i < ndim && is_same; i++)
    is_same = out->shape[i] == shape[i];
  weir__shape_text found, expected;
  if (!is_same)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: output with shape %s doesn't match the broadcast shape %s",
                      caller, weir__format_shape(out->ndim, out->shape, &found),
                      weir__format_shape(ndim, shape, &expected));
  return WEIR_OK;
}

/* ---- Operations ---- */

weir_status weir_array_item(const weir_array *array, weir_stream stream, weir_scalar *scalar) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(scalar);
  int64_t count = weir_array_count(array);
  if (count != 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: a Tensor with %" PRId64 " elements cannot be converted to Scalar", __func__, count);
  int class = weir__class_of(array->dtype);
  _Alignas(16) char bytes[16];
  _Alignas(16) union {
    int64_t integer;
    double real[2];
  } wide = {0};
  size_t size = weir_dtype_size(array->dtype);
  if (weir__is_host(array))
    memcpy(bytes, array->data, size);
  else {
    weir_status status = weir__check_stream(__func__, array, stream);
    if (!status)
      status = weir_copy(bytes, array->data, size, stream);
    if (status)
      return weir__fail_as(__func__, status);
  }
  weir_array from = {.data = bytes, .dtype = array->dtype};
  weir_array to = {.data = &wide,
                   .dtype = class == WEIR__CLASS_INT       ? WEIR_INT64
                            : class == WEIR__CLASS_COMPLEX ? WEIR_COMPLEX128
                                                           : WEIR_FLOAT64};
  weir__input input = {.array = &from};
  weir_status status = weir__map(__func__, WEIR__UNARY + WEIR_UNARY_POSITIVE, 1, &input, array->dtype, &to, stream);
  if (status)
    return status;
  if (class == WEIR__CLASS_INT)
    *scalar = array->dtype == WEIR_BOOL ? weir_scalar_bool((int)wide.integer) : weir_scalar_int(wide.integer);
  else
    *scalar = class == WEIR__CLASS_COMPLEX ? weir_scalar_complex(wide.real[0], wide.real[1])
                                           : weir_scalar_float(wide.real[0]);
  return WEIR_OK;
}

/* A pattern that fills an array without holes is written by the kernels of fill.cu, 16 bytes at a time. */
static weir_status fill_dense(const char *caller, const weir_array *array, const char pattern[16], weir_stream stream) {
  static weir__builtin kernels[] = {WEIR__BUILTIN("fill", "weir_fill_8"), WEIR__BUILTIN("fill", "weir_fill_16"),
                                    WEIR__BUILTIN("fill", "weir_fill_32"), WEIR__BUILTIN("fill", "weir_fill_64"),
                                    WEIR__BUILTIN("fill", "weir_fill_128")};
  size_t size = weir_dtype_size(array->dtype);
  uint64_t bytes = (uint64_t)weir_array_count(array) * size, whole = bytes / 16;
  char *at = array->data;
  weir_status status = WEIR_OK;
  if (whole) {
    void *params[] = {&at, &whole, (void *)pattern};
    weir_launch_dims grid = weir__array_grid(weir__is_host(array), whole);
    status = weir__array_run(caller, &kernels[4], weir__is_host(array), stream, grid, params);
  }
  uint64_t rest = (bytes - whole * 16) / size;
  if (!status && rest) {
    at += whole * 16;
    void *params[] = {&at, &rest, (void *)pattern};
    weir_launch_dims grid = {.grid = {1}, .block = {16}};
    int which = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : 3;
    status = weir__array_run(caller, &kernels[which], weir__is_host(array), stream, grid, params);
  }
  return status;
}

weir_status weir_array_fill(weir_array *array, weir_scalar value, weir_stream stream) {
  WEIR__CHECK_ARRAY(array);
  weir_status status = weir__check_stream(__func__, array, stream);
  if (!status)
    status = weir__check_number(__func__, value, array->dtype);
  if (!status)
    status = weir__check_overlap(__func__, array, array);
  if (status || !weir_array_count(array))
    return status;
  weir__input input = {.number = value};
  /* What an element is made of is computed on the host. */
  int op = WEIR__UNARY + WEIR_UNARY_POSITIVE;
  weir_dtype common = value.kind == WEIR_SCALAR_COMPLEX && weir_dtype_is_complex(array->dtype) ? array->dtype
                      : weir_dtype_is_complex(array->dtype)                                    ? WEIR_FLOAT64
                                                                                               : array->dtype;
  if (array->dtype == WEIR_BOOL)
    common = value.kind == WEIR_SCALAR_COMPLEX ? WEIR_COMPLEX128
             : value.kind == WEIR_SCALAR_FLOAT ? WEIR_FLOAT64
                                               : WEIR_INT64;
  _Alignas(16) char pattern[16];
  size_t size = weir_dtype_size(array->dtype);
  weir_array element = {.data = pattern, .dtype = array->dtype};
  if (!weir__is_dense(array) || (uintptr_t)array->data % 16 != 0)
    return weir__map(__func__, op, 1, &input, common, array, stream);
  status = weir__map(__func__, op, 1, &input, common, &element, stream);
  for (size_t at = size; at < 16; at += size)
    memcpy(pattern + at, pattern, size);
  return status ? status : fill_dense(__func__, array, pattern, stream);
}

weir_status weir_array_arange(weir_array *array, weir_scalar start, weir_scalar step, weir_stream stream) {
  WEIR__CHECK_ARRAY(array);
  weir_status status = weir__check_stream(__func__, array, stream);
  if (!status)
    status = weir__check_overlap(__func__, array, array);
  if (!status && (start.kind == WEIR_SCALAR_COMPLEX || step.kind == WEIR_SCALAR_COMPLEX))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the numbers must not be complex", __func__);
  if (!status && array->dtype == WEIR_BOOL)
    status = weir__not_implemented(__func__, "arange_cuda", array->dtype);
  weir__input inputs[] = {{.number = start}, {.number = step}};
  weir_dtype common = array->dtype;
  if (weir_dtype_is_integer(common))
    common = WEIR_INT64; /* a number that does not fit wraps around */
  return status ? status : weir__map(__func__, WEIR__ARANGE, 2, inputs, common, array, stream);
}

/* A pageable or pinned array without dimensions counts as a number beside arrays of a device. */
static weir_status take_number(const char *caller, weir__input *input, const weir__input *other) {
  if (!input->array || !other->array || input->array->ndim || !weir__is_host(input->array) ||
      weir__is_host(other->array))
    return WEIR_OK;
  weir_status status = weir_array_item(input->array, (weir_stream){0}, &input->number);
  if (!status)
    input->array = NULL;
  return weir__fail_as(caller, status);
}

static const char *binary_name(int op) {
  static const char *const names[] = {
#define X(number, name, text) [number] = text,
      WEIR_BINARY_MAP(X)
#undef X
  };
  return op >= 0 && op < (int)WEIR_COUNT_OF(names) ? names[op] : NULL;
}

/* The type in which an operation computes, from the type of its inputs; and the type of its result. */
static weir_status binary_types(const char *caller, int op, weir_dtype *common, weir_dtype *result) {
  bool is_float = weir_dtype_is_float(*common), is_complex = weir_dtype_is_complex(*common);
  switch (op) {
  case WEIR_BINARY_SUB:
    if (*common == WEIR_BOOL)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or "
                        "`logical_xor()` operator instead.",
                        caller);
    break;
  case WEIR_BINARY_DIV:
    if (!is_float && !is_complex)
      *common = WEIR_FLOAT32;
    break;
  case WEIR_BINARY_FLOOR_DIV:
  case WEIR_BINARY_REMAINDER:
    if (is_complex || *common == WEIR_BOOL)
      return weir__not_implemented(caller, op == WEIR_BINARY_REMAINDER ? "remainder_cuda" : "div_floor_cuda", *common);
    break;
  case WEIR_BINARY_POW:
    if (*common == WEIR_BOOL)
      return weir__not_implemented(caller, "pow", *common);
    break;
  case WEIR_BINARY_MAXIMUM:
  case WEIR_BINARY_MINIMUM:
    if (is_complex)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %s not implemented for complex tensors.", caller,
                        binary_name(op));
    break;
  case WEIR_BINARY_BITWISE_AND:
  case WEIR_BINARY_BITWISE_OR:
  case WEIR_BINARY_BITWISE_XOR:
    if (is_float || is_complex) {
      char name[32];
      snprintf(name, sizeof name, "%s_cuda", binary_name(op));
      return weir__not_implemented(caller, name, *common);
    }
    break;
  case WEIR_BINARY_LT:
  case WEIR_BINARY_LE:
  case WEIR_BINARY_GT:
  case WEIR_BINARY_GE:
    if (is_complex)
      return weir__not_implemented(caller, "compare_cuda", *common);
    break;
  default:
    break;
  }
  *result = op >= WEIR_BINARY_EQ ? WEIR_BOOL : *common;
  return WEIR_OK;
}

/* The place of the arrays among the inputs, which must be one, and their common shape. */
static weir_status common_shape(const char *caller, int count, const weir__input *inputs, weir_stream stream,
                                weir_place *place, int *ndim, int64_t *shape) {
  const weir_array *first = NULL;
  weir_status status = WEIR_OK;
  *ndim = 0;
  for (int k = 0; k < count && !status; k++) {
    const weir_array *array = inputs[k].array;
    if (!array)
      continue;
    if (first)
      status = weir__check_same_place(caller, first, array);
    else
      first = array;
    if (!status)
      status = weir__broadcast(caller, ndim, shape, array);
  }
  if (!status)
    status = weir__check_stream(caller, first, stream);
  *place = first->place;
  return status;
}

/* Computes an operation whose types are known. */
static weir_status compute(const char *caller, int op, int count, const weir__input *inputs, weir_dtype common,
                           weir_dtype result, weir_stream stream, weir_array *out) {
  weir_place place;
  int ndim;
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  bool is_new = false;
  weir_status status = common_shape(caller, count, inputs, stream, &place, &ndim, shape);
  if (!status)
    status = weir__prepare_out(caller, place, result, ndim, shape, stream, out, &is_new);
  for (int k = 0; k < count && !status && !is_new; k++)
    if (inputs[k].array != out)
      status = weir__check_overlap(caller, out, inputs[k].array);
  if (!status)
    status = weir__map(caller, op, count, inputs, common, out, stream);
  return weir__give_up(out, is_new, status);
}

static weir_status run_binary(const char *caller, int op, weir__input a, weir__input b, weir_stream stream,
                              weir_array *out) {
  if (!binary_name(op))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: op is %d, which is not an operation", caller, op);
  types types = {0};
  add_input(&types, &a);
  add_input(&types, &b);
  weir_dtype common = combine_types(&types), result = common;
  weir_status status = binary_types(caller, op, &common, &result);
  if (!status)
    status = take_number(caller, &a, &b);
  if (!status)
    status = take_number(caller, &b, &a);
  const weir__input *number = !a.array ? &a : !b.array ? &b : NULL;
  if (!status && number && weir_dtype_is_integer(common))
    status = weir__check_number(caller, number->number, common);
  if (!status && op == WEIR_BINARY_POW && weir_dtype_is_integer(common) && !b.array && b.number.integer < 0)
    status =
        weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Integers to negative integer powers are not allowed.", caller);
  if (!status && (op == WEIR_BINARY_FLOOR_DIV || op == WEIR_BINARY_REMAINDER) && weir_dtype_is_integer(common) &&
      !b.array && b.number.integer == 0)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: ZeroDivisionError", caller);
  weir__input inputs[] = {a, b};
  return status ? status : compute(caller, op, 2, inputs, common, result, stream, out);
}

weir_status weir_array_binary(weir_binary_op op, const weir_array *a, const weir_array *b, weir_stream stream,
                              weir_array *out) {
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(b);
  const weir__input left = {.array = a}, right = {.array = b};
  return run_binary(__func__, (int)op, left, right, stream, out);
}

weir_status weir_array_binary_scalar(weir_binary_op op, const weir_array *array, weir_scalar scalar, int is_reversed,
                                     weir_stream stream, weir_array *out) {
  WEIR__CHECK_ARRAY(array);
  weir__input a = {.array = array}, b = {.number = scalar};
  return run_binary(__func__, (int)op, is_reversed ? b : a, is_reversed ? a : b, stream, out);
}

weir_status weir_array_add_scaled(const weir_array *a, const weir_array *b, weir_scalar alpha, weir_stream stream,
                                  weir_array *out) {
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(b);
  weir__input inputs[3] = {{.array = a}, {.array = b}, {.number = alpha}};
  types types = {0};
  add_input(&types, &inputs[0]);
  add_input(&types, &inputs[1]);
  weir_dtype common = combine_types(&types);
  weir_status status = WEIR_OK;
  if (alpha.kind == WEIR_SCALAR_FLOAT && kind_of(common) < 2)
    status =
        weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                   "%s: For integral input tensors, argument alpha must not be a floating point number.", __func__);
  else if (alpha.kind == WEIR_SCALAR_COMPLEX && kind_of(common) < 3)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: For non-complex input tensors, argument alpha must not be a complex number.", __func__);
  else if (alpha.kind == WEIR_SCALAR_BOOL && common != WEIR_BOOL)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Boolean alpha only supported for Boolean results.", __func__);
  if (!status)
    status = take_number(__func__, &inputs[0], &inputs[1]);
  if (!status)
    status = take_number(__func__, &inputs[1], &inputs[0]);
  return status ? status : compute(__func__, WEIR__ADD_SCALED, 3, inputs, common, common, stream, out);
}

static const char *unary_name(int op) {
  static const char *const names[] = {
#define X(number, name, text) [number] = text,
      WEIR_UNARY_MAP(X)
#undef X
  };
  return op >= 0 && op < (int)WEIR_COUNT_OF(names) ? names[op] : NULL;
}

static weir_dtype real_type(weir_dtype dtype) {
  return dtype == WEIR_COMPLEX64 ? WEIR_FLOAT32 : dtype == WEIR_COMPLEX128 ? WEIR_FLOAT64 : dtype;
}

static weir_status unary_types(const char *caller, int *op, weir_dtype *common, weir_dtype *result) {
  bool is_complex = weir_dtype_is_complex(*common), is_float = weir_dtype_is_float(*common);
  char name[32];
  snprintf(name, sizeof name, "%s_cuda", unary_name(*op));
  switch (*op) {
  case WEIR_UNARY_NEG:
    if (*common == WEIR_BOOL)
      return weir__fail(
          WEIR_ERROR_NOT_SUPPORTED,
          "%s: Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert "
          "a mask, use the `~` or `logical_not()` operator instead.",
          caller);
    break;
  case WEIR_UNARY_SIGN:
  case WEIR_UNARY_FLOOR:
  case WEIR_UNARY_CEIL:
  case WEIR_UNARY_ROUND:
  case WEIR_UNARY_TRUNC:
  case WEIR_UNARY_RELU:
  case WEIR_UNARY_EXPM1:
  case WEIR_UNARY_LOG1P:
  case WEIR_UNARY_ERF:
    if (is_complex || (*common == WEIR_BOOL && *op < WEIR_UNARY_EXP && *op != WEIR_UNARY_SIGN))
      return weir__not_implemented(caller, name, *common);
    break;
  case WEIR_UNARY_BITWISE_NOT:
    if (is_complex || is_float)
      return weir__not_implemented(caller, name, *common);
    if (*common == WEIR_BOOL)
      *op = WEIR_UNARY_LOGICAL_NOT;
    break;
  default:
    break;
  }
  if (*op >= WEIR_UNARY_EXP && *op <= WEIR_UNARY_RECIPROCAL && !is_float && !is_complex)
    *common = WEIR_FLOAT32;
  *result = *common;
  if (*op >= WEIR_UNARY_LOGICAL_NOT && *op <= WEIR_UNARY_ISINF)
    *result = WEIR_BOOL;
  else if (*op == WEIR_UNARY_ABS || *op == WEIR_UNARY_REAL || *op == WEIR_UNARY_IMAG)
    *result = real_type(*common);
  return WEIR_OK;
}

weir_status weir_array_unary(weir_unary_op op, const weir_array *a, weir_stream stream, weir_array *out) {
  WEIR__CHECK_ARRAY(a);
  int number = (int)op;
  if (!unary_name(number))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: op is %d, which is not an operation", __func__, number);
  weir_dtype common = a->dtype, result = common;
  weir_status status = unary_types(__func__, &number, &common, &result);
  weir__input input = {.array = a};
  return status ? status : compute(__func__, WEIR__UNARY + number, 1, &input, common, result, stream, out);
}

weir_status weir_array_where(const weir_array *condition, const weir_array *a, const weir_array *b, weir_stream stream,
                             weir_array *out) {
  WEIR__CHECK_ARRAY(condition);
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(b);
  if (condition->dtype != WEIR_BOOL && condition->dtype != WEIR_UINT8)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: where expected condition to be a boolean tensor, but got a tensor with dtype %s", __func__,
                      weir_dtype_title(condition->dtype));
  weir__input inputs[3] = {{.array = condition}, {.array = a}, {.array = b}};
  types types = {0};
  add_input(&types, &inputs[1]);
  add_input(&types, &inputs[2]);
  weir_dtype common = combine_types(&types);
  weir_status status = take_number(__func__, &inputs[1], &inputs[0]);
  if (!status)
    status = take_number(__func__, &inputs[2], &inputs[0]);
  return status ? status : compute(__func__, WEIR__WHERE, 3, inputs, common, common, stream, out);
}

/*
 * Elementwise operations: from arrays to the arguments of a kernel.
 */
#include <math.h>
#include <string.h>

#include "src/array.h"

int weir__class_of(weir_dtype dtype) {
  if (weir_dtype_is_complex(dtype))
    return WEIR__CLASS_COMPLEX;
  if (dtype == WEIR_FLOAT64)
    return WEIR__CLASS_DOUBLE;
  return weir_dtype_is_float(dtype) ? WEIR__CLASS_FLOAT : WEIR__CLASS_INT;
}

weir__number weir__number_of(weir_scalar scalar) {
  if (scalar.kind == WEIR_SCALAR_BOOL || scalar.kind == WEIR_SCALAR_INT)
    return (weir__number){scalar.integer, (double)scalar.integer, 0};
  double real = scalar.real;
  int64_t integer = fabs(real) < 0x1p63 ? (int64_t)real : 0;
  return (weir__number){integer, real, scalar.kind == WEIR_SCALAR_COMPLEX ? scalar.imag : 0};
}

static weir__builtin map_kernels[WEIR__CLASSES] = {
    [WEIR__CLASS_INT] = WEIR__BUILTIN("map_int", "weir_map_int"),
    [WEIR__CLASS_FLOAT] = WEIR__BUILTIN("map_float", "weir_map_float"),
    [WEIR__CLASS_DOUBLE] = WEIR__BUILTIN("map_double", "weir_map_double"),
    [WEIR__CLASS_COMPLEX] = WEIR__BUILTIN("map_complex", "weir_map_complex")};

static weir__builtin convert_kernel = WEIR__BUILTIN("convert", "weir_convert_float");
static weir__builtin vector_kernels[] = {[WEIR_INT32] = WEIR__BUILTIN("vectors", "weir_vectors_int32"),
                                         [WEIR_INT64] = WEIR__BUILTIN("vectors", "weir_vectors_int64"),
                                         [WEIR_FLOAT16] = WEIR__BUILTIN("vectors", "weir_vectors_16_bits"),
                                         [WEIR_FLOAT32] = WEIR__BUILTIN("vectors", "weir_vectors_float32"),
                                         [WEIR_FLOAT64] = WEIR__BUILTIN("vectors", "weir_vectors_float64"),
                                         [WEIR_BFLOAT16] = WEIR__BUILTIN("vectors", "weir_vectors_16_bits")};

/* ---- Dimensions ---- */

enum { OPERANDS = 4 }; /* the output, and up to three inputs */

typedef struct dims {
  int ndim;
  int64_t shape[WEIR_ARRAY_MAX_DIMS];             /* innermost first */
  int64_t strides[OPERANDS][WEIR_ARRAY_MAX_DIMS]; /* in bytes; 0 for numbers */
} dims;

static void swap_dims(dims *dims, int a, int b) {
  int64_t size = dims->shape[a];
  dims->shape[a] = dims->shape[b];
  dims->shape[b] = size;
  for (int k = 0; k < OPERANDS; k++) {
    int64_t stride = dims->strides[k][a];
    dims->strides[k][a] = dims->strides[k][b];
    dims->strides[k][b] = stride;
  }
}

/* Whether dimension a should be inside of b: its stride is smaller in the output or, if that has no preference, in an
 * input. */
static bool is_inside(const dims *dims, int a, int b) {
  for (int k = 0; k < OPERANDS; k++)
    if (dims->strides[k][a] && dims->strides[k][b] && dims->strides[k][a] != dims->strides[k][b])
      return dims->strides[k][a] < dims->strides[k][b];
  return false;
}

/* Merges neighbouring dimensions that are like one in every operand. */
static void merge(dims *dims) {
  int kept = 0;
  for (int d = 1; d < dims->ndim; d++) {
    bool can_merge = true;
    for (int k = 0; k < OPERANDS; k++)
      can_merge = can_merge && dims->strides[k][d] == dims->strides[k][kept] * dims->shape[kept];
    if (can_merge) {
      dims->shape[kept] *= dims->shape[d];
      continue;
    }
    kept++;
    dims->shape[kept] = dims->shape[d];
    for (int k = 0; k < OPERANDS; k++)
      dims->strides[k][kept] = dims->strides[k][d];
  }
  dims->ndim = dims->ndim ? kept + 1 : 0;
}

/* The stride of an operand along a dimension of the output, in bytes. */
static int64_t stride_of(const weir_array *operand, const weir_array *out, int dim) {
  if (!operand)
    return 0;
  int at = dim - (out->ndim - operand->ndim);
  if (at < 0 || operand->shape[at] == 1)
    return 0;
  return operand->strides[at] * (int64_t)weir_dtype_size(operand->dtype);
}

static void make_dims(const weir_array *out, int count, const weir__input *inputs, bool keep_order, dims *dims) {
  memset(dims, 0, sizeof *dims);
  for (int d = out->ndim - 1; d >= 0; d--) {
    if (out->shape[d] == 1)
      continue;
    dims->shape[dims->ndim] = out->shape[d];
    dims->strides[0][dims->ndim] = stride_of(out, out, d);
    for (int k = 0; k < count; k++)
      dims->strides[k + 1][dims->ndim] = stride_of(inputs[k].array, out, d);
    dims->ndim++;
  }
  if (!keep_order)
    for (int i = 1; i < dims->ndim; i++)
      for (int j = i; j > 0 && is_inside(dims, j, j - 1); j--)
        swap_dims(dims, j, j - 1);
  merge(dims);
}

/* ---- Kernels ---- */

static bool has_vectors(int op, weir_dtype dtype) {
  switch (op) {
  case WEIR_BINARY_ADD:
  case WEIR_BINARY_SUB:
  case WEIR_BINARY_MUL:
  case WEIR_BINARY_MAXIMUM:
  case WEIR_BINARY_MINIMUM:
  case WEIR__UNARY + WEIR_UNARY_NEG:
  case WEIR__UNARY + WEIR_UNARY_ABS:
  case WEIR__UNARY + WEIR_UNARY_SQUARE:
  case WEIR__UNARY + WEIR_UNARY_RELU:
    return dtype == WEIR_INT32 || dtype == WEIR_INT64 || weir_dtype_is_float(dtype);
  case WEIR_BINARY_DIV:
  case WEIR__UNARY + WEIR_UNARY_SQRT:
  case WEIR__UNARY + WEIR_UNARY_RECIPROCAL:
  case WEIR__UNARY + WEIR_UNARY_EXP:
  case WEIR__UNARY + WEIR_UNARY_SIGMOID:
  case WEIR__UNARY + WEIR_UNARY_TANH:
    return weir_dtype_is_float(dtype);
  case WEIR__UNARY + WEIR_UNARY_SIGN:
  case WEIR__UNARY + WEIR_UNARY_FLOOR:
  case WEIR__UNARY + WEIR_UNARY_CEIL:
  case WEIR__UNARY + WEIR_UNARY_ROUND:
  case WEIR__UNARY + WEIR_UNARY_TRUNC:
  case WEIR__UNARY + WEIR_UNARY_RSQRT:
  case WEIR__UNARY + WEIR_UNARY_EXPM1:
  case WEIR__UNARY + WEIR_UNARY_LOG:
  case WEIR__UNARY + WEIR_UNARY_LOG2:
  case WEIR__UNARY + WEIR_UNARY_LOG10:
  case WEIR__UNARY + WEIR_UNARY_LOG1P:
  case WEIR__UNARY + WEIR_UNARY_SIN:
  case WEIR__UNARY + WEIR_UNARY_COS:
  case WEIR__UNARY + WEIR_UNARY_TAN:
  case WEIR__UNARY + WEIR_UNARY_ERF:
    return weir_dtype_is_float(dtype) && dtype != WEIR_FLOAT64;
  }
  return false;
}

static weir__divider make_divider(uint32_t size) {
  unsigned shift = 0;
  while (((uint64_t)1 << shift) < size)
    shift++;
  uint64_t factor = (((uint64_t)1 << 32) * (((uint64_t)1 << shift) - size)) / size + 1;
  return (weir__divider){(unsigned)factor, shift};
}

/* Finds the layout of an operand of a matrix with that many columns. */
static bool find_layout(const weir_array *array, const dims *dims, int operand_number, int64_t columns, int *layout) {
  int64_t size = (int64_t)weir_dtype_size(array->dtype);
  const int64_t *strides = dims->strides[operand_number];
  int64_t next = dims->ndim ? strides[0] : size, next_row = dims->ndim == 2 ? strides[1] : next * columns;
  if (next == 0) {
    *layout = WEIR__COLUMN;
    return dims->ndim < 2 || next_row == size;
  }
  *layout = next_row == 0 ? WEIR__ROW : WEIR__EACH;
  return next == size && (next_row == 0 || next_row == columns * size) && (uintptr_t)array->data % 16 == 0;
}

/* Sets the arguments if the operation can be done with vectors: all operands have one type, the output is contiguous,
 * and each input has all its elements, one row or one column of them, or is a single element. */
static bool make_vectors(int op, const dims *dims, int count, const weir__input *inputs, weir_dtype common,
                         const weir_array *out, weir__vector_args *args) {
  int64_t in_vector = 16 / (int64_t)weir_dtype_size(common);
  if (!has_vectors(op, common) || dims->ndim > 2 || out->dtype != common)
    return false;
  /* What is not a matrix is one row, which does not end. */
  int64_t columns = dims->ndim == 2 ? dims->shape[0] : (int64_t)1 << 31;
  int layout;
  if (columns % in_vector != 0 || columns > (int64_t)1 << 31 || !find_layout(out, dims, 0, columns, &layout) ||
      layout != WEIR__EACH)
    return false;
  *args = (weir__vector_args){.count = (uint64_t)weir_array_count(out),
                              .out = out->data,
                              .by_columns = make_divider((uint32_t)columns),
                              .columns = (uint32_t)columns,
                              .op = op,
                              .dtype = (int)common};
  for (int k = 0; k < count; k++) {
    const weir_array *input = inputs[k].array;
    if (!input) {
      args->number[k] = weir__number_of(inputs[k].number);
      continue;
    }
    if (input->dtype != common || !find_layout(input, dims, k + 1, columns, &args->layout[k]))
      return false;
    if (args->layout[k] != WEIR__EACH && args->count > INT32_MAX)
      return false;
    args->in[k] = input->data;
  }
  return true;
}

static weir_status map_vectors(const char *caller, weir__vector_args *args, const weir_array *out, weir_stream stream) {
  uint64_t vectors = args->count / (16 / weir_dtype_size(out->dtype)) + 1;
  weir_launch_dims grid = weir__array_grid(weir__is_host(out), vectors);
  void *params[] = {args};
  return weir__array_run(caller, &vector_kernels[out->dtype], weir__is_host(out), stream, grid, params);
}

/* ---- Groups ---- */

static const int group_sizes[WEIR__CLASSES] = {[WEIR__CLASS_INT] = WEIR__GROUP_INT,
                                               [WEIR__CLASS_FLOAT] = WEIR__GROUP_FLOAT,
                                               [WEIR__CLASS_DOUBLE] = WEIR__GROUP_DOUBLE,
                                               [WEIR__CLASS_COMPLEX] = WEIR__GROUP_COMPLEX};

/* Whether each group of elements along the innermost dimension is contiguous, and aligned for a load of the whole. */
static bool is_packed(const dims *dims, const weir__operand *operand, int operand_number, int group) {
  int64_t size = (int64_t)weir_dtype_size((weir_dtype)operand->dtype);
  int64_t alignment = group * size < 16 ? group * size : 16;
  if (!operand->data || (uintptr_t)operand->data % (uintptr_t)alignment != 0)
    return false;
  if (group > 1 && weir_dtype_is_complex((weir_dtype)operand->dtype))
    return false;
  if (dims->ndim && dims->strides[operand_number][0] != size)
    return false;
  for (int d = 1; d < dims->ndim; d++)
    if (dims->strides[operand_number][d] % alignment != 0)
      return false;
  return true;
}

/* Whether offsets of all elements have at most 31 bits. */
static bool is_small(const dims *dims, uint64_t elements, int group) {
  /* A thread adds up to one block of groups to its first index. */
  if (elements + (uint64_t)group * WEIR__BLOCK > INT32_MAX)
    return false;
  for (int k = 0; k < OPERANDS; k++) {
    int64_t lowest = 0, highest = 0;
    for (int d = 0; d < dims->ndim; d++) {
      int64_t last = (dims->shape[d] - 1) * dims->strides[k][d];
      if (last < 0)
        lowest += last;
      else
        highest += last;
      if (lowest < INT32_MIN || highest > INT32_MAX)
        return false;
    }
  }
  return true;
}

static weir_status convert(const char *caller, const weir_array *in, const weir_array *out, uint64_t elements,
                           weir_stream stream) {
  weir__vector_args args = {
      .count = elements, .out = out->data, .in = {in->data}, .op = (int)in->dtype, .dtype = (int)out->dtype};
  weir_launch_dims grid = weir__array_grid(weir__is_host(out), elements / WEIR__GROUP_FLOAT + 1);
  void *params[] = {&args};
  return weir__array_run(caller, &convert_kernel, weir__is_host(out), stream, grid, params);
}

static void set_operand(const weir__input *input, const int64_t *strides, weir__operand *operand) {
  if (input->array) {
    operand->data = input->array->data;
    operand->dtype = (int)input->array->dtype;
    for (int d = 0; d < WEIR_ARRAY_MAX_DIMS; d++)
      operand->strides[d] = strides[d];
  } else
    operand->number = weir__number_of(input->number);
}

weir_status weir__map(const char *caller, int op, int count, const weir__input *inputs, weir_dtype common,
                      const weir_array *out, weir_stream stream) {
  uint64_t elements = (uint64_t)weir_array_count(out);
  if (!elements)
    return WEIR_OK;
  dims dims;
  make_dims(out, count, inputs, op == WEIR__ARANGE, &dims);
  weir__vector_args vectors;
  if (make_vectors(op, &dims, count, inputs, common, out, &vectors))
    return map_vectors(caller, &vectors, out, stream);

  weir__map_args args;
  memset(&args, 0, sizeof args);
  args.count = elements;
  args.ndim = dims.ndim;
  args.op = op;
  args.common = (int)common;
  args.in_count = count;
  for (int d = 0; d < dims.ndim; d++)
    args.shape[d] = (uint64_t)dims.shape[d];
  weir__input result = {.array = out};
  set_operand(&result, dims.strides[0], &args.out);
  for (int k = 0; k < count; k++)
    set_operand(&inputs[k], dims.strides[k + 1], &args.in[k]);
  int class = weir__class_of(common), group = group_sizes[class];
  args.is_small = is_small(&dims, elements, group);
  for (int d = 0; d < dims.ndim && args.is_small; d++)
    args.dividers[d] = make_divider((uint32_t)dims.shape[d]);
  args.out.is_packed = is_packed(&dims, &args.out, 0, group);
  args.is_grouped = args.out.is_packed && (dims.ndim < 2 || dims.shape[0] % group == 0);
  for (int k = 0; k < count; k++)
    args.in[k].is_packed = is_packed(&dims, &args.in[k], k + 1, group);
  if (op == WEIR__UNARY + WEIR_UNARY_POSITIVE && dims.ndim < 2 && args.is_grouped && args.in[0].is_packed &&
      class == WEIR__CLASS_FLOAT && inputs[0].array->dtype == common)
    return convert(caller, inputs[0].array, out, elements, stream);
  weir_launch_dims grid = weir__array_grid(weir__is_host(out), (elements + (uint64_t)group - 1) / (uint64_t)group);
  void *params[] = {&args};
  return weir__array_run(caller, &map_kernels[class], weir__is_host(out), stream, grid, params);
}

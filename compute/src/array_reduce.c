/*
 * Reductions: how the elements of outputs are divided among threads, and the types of results.
 */
#include <inttypes.h>
#include <string.h>

#include "src/array.h"

enum {
  LANE_ELEMENTS = 4,      /* an output gets another lane for each of so many elements */
  BATCH_ELEMENTS = 128,   /* from so many reduced elements on a lane has whole batches */
  ALIGNMENT = 16,         /* of vectors of elements, in bytes */
  SEGMENT_ELEMENTS = 32,  /* that a lane has at least, if its output is divided into segments */
  ENOUGH_THREADS = 65536, /* with so many threads there are no segments */
  MAX_SEGMENTS = 1024
};

static weir__builtin kernels[WEIR__CLASSES] = {[WEIR__CLASS_INT] = WEIR__BUILTIN("reduce", "weir_reduce_int"),
                                               [WEIR__CLASS_FLOAT] = WEIR__BUILTIN("reduce", "weir_reduce_float"),
                                               [WEIR__CLASS_DOUBLE] = WEIR__BUILTIN("reduce", "weir_reduce_double"),
                                               [WEIR__CLASS_COMPLEX] = WEIR__BUILTIN("reduce", "weir_reduce_complex")};
static weir__builtin index_kernels[WEIR__CLASSES] = {
    [WEIR__CLASS_INT] = WEIR__BUILTIN("reduce", "weir_reduce_int_index"),
    [WEIR__CLASS_FLOAT] = WEIR__BUILTIN("reduce", "weir_reduce_float_index"),
    [WEIR__CLASS_DOUBLE] = WEIR__BUILTIN("reduce", "weir_reduce_double_index")};

/* The type that holds the results of segments without loss, and the size of such a result with its index. */
static weir_dtype wide_type(int class) {
  static const weir_dtype types[] = {[WEIR__CLASS_INT] = WEIR_INT64,
                                     [WEIR__CLASS_FLOAT] = WEIR_FLOAT32,
                                     [WEIR__CLASS_DOUBLE] = WEIR_FLOAT64,
                                     [WEIR__CLASS_COMPLEX] = WEIR_COMPLEX128};
  return types[class];
}

static const char *name_of(int op) {
  static const char *const names[] = {
#define X(number, name, text) [number] = text,
      WEIR_REDUCE_MAP(X)
#undef X
  };
  return op >= 0 && op < (int)WEIR_COUNT_OF(names) ? names[op] : NULL;
}

static bool has_index(int op) { return op == WEIR_REDUCE_ARGMIN || op == WEIR_REDUCE_ARGMAX; }

/* ---- Dimensions ---- */

/* Adds a dimension outside of the others, or merges it with the last one. `other` may be NULL. */
static void add_dim(int *ndim, uint64_t *shape, long long *strides, long long *other, int64_t size, int64_t stride,
                    int64_t other_stride) {
  if (size == 1)
    return;
  int last = *ndim - 1;
  if (last >= 0 && stride == strides[last] * (int64_t)shape[last] &&
      (!other || other_stride == other[last] * (int64_t)shape[last])) {
    shape[last] *= (uint64_t)size;
    return;
  }
  shape[*ndim] = (uint64_t)size;
  strides[*ndim] = stride;
  if (other)
    other[*ndim] = other_stride;
  (*ndim)++;
}

/* kept[d] is the dimension of the output for each dimension of the input; -1 for reduced ones. */
static void set_dims(const weir_array *a, const weir_array *out, const int *kept, weir__reduce_args *args) {
  int64_t in_size = (int64_t)weir_dtype_size(a->dtype), out_size = (int64_t)weir_dtype_size(out->dtype);
  args->outputs = args->reduced = 1;
  uint64_t out_shape[WEIR__MAX_DIMS] = {0}, reduced_shape[WEIR__MAX_DIMS] = {0};
  for (int d = a->ndim - 1; d >= 0; d--) {
    int64_t stride = a->strides[d] * in_size;
    if (kept[d] < 0) {
      args->reduced *= (uint64_t)a->shape[d];
      add_dim(&args->reduced_ndim, reduced_shape, args->reduced_strides, NULL, a->shape[d], stride, 0);
    } else {
      args->outputs *= (uint64_t)a->shape[d];
      add_dim(&args->out_ndim, out_shape, args->out_in_strides, args->out_strides, a->shape[d], stride,
              out->strides[kept[d]] * out_size);
    }
  }
  for (int d = 0; d < args->out_ndim; d++)
    args->out_shape[d] = out_shape[d];
  for (int d = 0; d < args->reduced_ndim; d++)
    args->reduced_shape[d] = reduced_shape[d];
}

/* ---- Launching ---- */

static bool is_aligned(const weir__reduce_args *args) {
  int64_t size = (int64_t)weir_dtype_size((weir_dtype)args->in_dtype);
  if ((uintptr_t)args->in % ALIGNMENT != 0 || args->reduced_strides[0] != size)
    return false;
  if (args->segment < args->reduced && args->segment * (uint64_t)size % ALIGNMENT != 0)
    return false;
  for (int d = 0; d < args->out_ndim; d++)
    if (args->out_in_strides[d] % ALIGNMENT != 0)
      return false;
  return true;
}

static weir_status launch(const char *caller, int class, const weir__reduce_args *given, bool on_host,
                          weir_stream stream) {
  static const unsigned bytes[] = {
      [WEIR__CLASS_INT] = 8, [WEIR__CLASS_FLOAT] = 4, [WEIR__CLASS_DOUBLE] = 8, [WEIR__CLASS_COMPLEX] = 16};
  weir__reduce_args args = *given;
  unsigned size = (unsigned)weir_dtype_size((weir_dtype)args.in_dtype);
  args.is_aligned = is_aligned(&args);
  args.run = size && args.reduced_strides[0] == size ? ALIGNMENT / size : 1;
  bool with_index = args.out_index != NULL;
  uint64_t per_block = WEIR__REDUCE_BLOCK / args.lanes, blocks = (args.outputs + per_block - 1) / per_block;
  uint64_t segments = (args.reduced + args.segment - 1) / args.segment;
  if (blocks > INT32_MAX)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: %llu outputs are more than a kernel can have", caller,
                      (unsigned long long)args.outputs);
  unsigned threads = WEIR__REDUCE_BLOCK;
  if (args.outputs < per_block) { /* a small block */
    threads = args.lanes;
    while (threads / args.lanes < args.outputs)
      threads *= 2;
    blocks = 1;
  }
  args.threads = threads;
  weir_launch_dims dims = {.grid = {(unsigned)blocks, (unsigned)segments},
                           .block = {weir__array_is_serial(on_host) ? 1 : threads},
                           .shared_bytes = args.lanes > 1 ? threads * (with_index ? 16 : bytes[class]) : 0};
  void *params[] = {&args};
  return weir__array_run(caller, with_index ? &index_kernels[class] : &kernels[class], on_host, stream, dims, params);
}

static unsigned lanes_of(const weir__reduce_args *args) {
  unsigned lanes = 1;
  bool is_inner = args->reduced_ndim && (!args->out_ndim || args->reduced_strides[0] <= args->out_in_strides[0]);
  uint64_t elements = args->has_batches && args->reduced >= BATCH_ELEMENTS ? WEIR__REDUCE_BATCH : LANE_ELEMENTS;
  while (is_inner && lanes < WEIR__REDUCE_BLOCK && lanes * 2 * elements <= args->reduced)
    lanes *= 2;
  return lanes;
}

static bool has_batches(const weir__reduce_args *args, int class) {
  weir_dtype in = (weir_dtype)args->in_dtype, common = (weir_dtype)args->common;
  return args->reduced_ndim == 1 && !args->out_index && class != WEIR__CLASS_COMPLEX && weir__class_of(in) == class &&
         (common == in || common == wide_type(class));
}

/* Segments, if there would be too few threads for the number of elements. */
static uint64_t segments_of(const weir__reduce_args *args) {
  uint64_t threads = args->outputs * args->lanes;
  if (threads >= ENOUGH_THREADS)
    return 1;
  uint64_t most = args->reduced / ((uint64_t)args->lanes * SEGMENT_ELEMENTS), wanted = 4 * ENOUGH_THREADS / threads;
  uint64_t segments = most < wanted ? most : wanted;
  return segments < 2 ? 1 : segments > MAX_SEGMENTS ? MAX_SEGMENTS : segments;
}

/* Memory for results of segments, on the stream or on the host. */
static weir_status take(const char *caller, const weir_array *like, weir_dtype dtype, uint64_t count,
                        weir_stream stream, weir_array *array) {
  weir_place place = weir__is_host(like) ? weir_place_host() : like->place;
  return weir__fail_as(caller, weir_array_empty(place, dtype, 1, (int64_t[]){(int64_t)count}, stream, array));
}

static weir_status run(const char *caller, int class, weir__reduce_args *args, const weir_array *out,
                       weir_stream stream) {
  bool on_host = weir__is_host(out), with_index = args->out_index != NULL;
  args->has_batches = has_batches(args, class);
  args->lanes = lanes_of(args);
  uint64_t segments = segments_of(args);
  args->segment = (args->reduced + segments - 1) / segments;
  if (segments > 1) /* whole vectors */
    args->segment = (args->segment + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  segments = (args->reduced + args->segment - 1) / args->segment;
  if (segments == 1)
    return launch(caller, class, args, on_host, stream);

  weir_dtype wide = wide_type(class);
  long long size = (long long)weir_dtype_size(wide);
  weir_array partial = {0}, indices = {0};
  weir_status status = take(caller, out, wide, segments * args->outputs, stream, &partial);
  if (!status && with_index)
    status = take(caller, out, WEIR_INT64, segments * args->outputs, stream, &indices);
  if (!status) {
    weir__reduce_args first = *args;
    first.out = partial.data;
    first.out_dtype = (int)wide;
    first.divisor = 1;
    first.out_index = indices.data;
    first.index_is_strided = 0;
    first.segment_bytes = (long long)args->outputs * size;
    /* Contiguous outputs: the dimensions are those of the input. */
    long long stride = size;
    for (int d = 0; d < first.out_ndim; d++) {
      first.out_strides[d] = stride;
      stride *= (long long)first.out_shape[d];
    }
    status = launch(caller, class, &first, on_host, stream);
  }
  if (!status) {
    weir__reduce_args second = *args;
    second.in = partial.data;
    second.in_dtype = second.common = (int)wide;
    second.in_index = indices.data;
    second.before = WEIR__BEFORE_NOTHING;
    second.reduced = second.segment = segments;
    second.reduced_ndim = 1;
    second.reduced_shape[0] = segments;
    second.reduced_strides[0] = (long long)args->outputs * size;
    long long stride = size;
    for (int d = 0; d < second.out_ndim; d++) {
      second.out_in_strides[d] = stride;
      stride *= (long long)second.out_shape[d];
    }
    second.has_batches = has_batches(&second, class);
    second.lanes = lanes_of(&second);
    status = launch(caller, class, &second, on_host, stream);
  }
  weir_array_release(&partial);
  weir_array_release(&indices);
  return status;
}

/* ---- Types ---- */

/* The type in which elements are combined, given that of the input and that of the output, if there is one; and the
 * type of the result. */
static weir_status find_types(const char *caller, int op, weir_dtype in, const weir_array *out, weir_dtype *common,
                              weir_dtype *result) {
  bool is_float = weir_dtype_is_float(in), is_complex = weir_dtype_is_complex(in);
  *common = *result = in;
  switch (op) {
  case WEIR_REDUCE_SUM:
  case WEIR_REDUCE_PROD:
  case WEIR_REDUCE_MEAN:
    if (!is_float && !is_complex)
      *common = WEIR_INT64;
    if (weir__has_array(out))
      *common = out->dtype;
    if (op == WEIR_REDUCE_MEAN && !weir_dtype_is_float(*common) && !weir_dtype_is_complex(*common))
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED,
                        "%s: mean(): could not infer output dtype. Input dtype must be either a floating point or "
                        "complex dtype. Got: %s",
                        caller, weir_dtype_title(in));
    *result = *common;
    return WEIR_OK;
  case WEIR_REDUCE_MIN:
  case WEIR_REDUCE_MAX:
  case WEIR_REDUCE_ARGMIN:
  case WEIR_REDUCE_ARGMAX:
    if (is_complex || (has_index(op) && in == WEIR_BOOL))
      return weir__not_implemented(caller,
                                   has_index(op)           ? op == WEIR_REDUCE_ARGMIN ? "argmin_cuda" : "argmax_cuda"
                                   : op == WEIR_REDUCE_MIN ? "min_values_cuda"
                                                           : "max_values_cuda",
                                   in);
    if (has_index(op))
      *result = WEIR_INT64;
    return WEIR_OK;
  case WEIR_REDUCE_ALL:
  case WEIR_REDUCE_ANY:
    *result = in == WEIR_UINT8 ? WEIR_UINT8 : WEIR_BOOL;
    return WEIR_OK;
  case WEIR_REDUCE_COUNT_NONZERO:
    *result = WEIR_INT64;
    if (is_float)
      *common = WEIR_FLOAT64; /* counts are exact in it */
    return WEIR_OK;
  default: /* SUM_OF_SQUARES */
    if (!is_float && !is_complex)
      return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: expected a floating point or complex tensor as input. Got %s",
                        caller, weir_dtype_title(in));
    *result = in == WEIR_COMPLEX64 ? WEIR_FLOAT32 : in == WEIR_COMPLEX128 ? WEIR_FLOAT64 : in;
    if (weir__has_array(out) && !is_complex)
      *common = *result = weir_dtype_promote(in, out->dtype);
    return WEIR_OK;
  }
}

static void set_operation(int op, uint64_t reduced, weir__reduce_args *args) {
  static const int combine[] = {
      [WEIR_REDUCE_SUM] = WEIR__COMBINE_ADD,           [WEIR_REDUCE_PROD] = WEIR__COMBINE_MUL,
      [WEIR_REDUCE_MEAN] = WEIR__COMBINE_ADD,          [WEIR_REDUCE_MIN] = WEIR__COMBINE_MIN,
      [WEIR_REDUCE_MAX] = WEIR__COMBINE_MAX,           [WEIR_REDUCE_ARGMIN] = WEIR__COMBINE_MIN,
      [WEIR_REDUCE_ARGMAX] = WEIR__COMBINE_MAX,        [WEIR_REDUCE_ALL] = WEIR__COMBINE_MIN,
      [WEIR_REDUCE_ANY] = WEIR__COMBINE_MAX,           [WEIR_REDUCE_COUNT_NONZERO] = WEIR__COMBINE_ADD,
      [WEIR_REDUCE_SUM_OF_SQUARES] = WEIR__COMBINE_ADD};
  args->combine = combine[op];
  if (weir_dtype_is_complex((weir_dtype)args->common) && (op == WEIR_REDUCE_ALL || op == WEIR_REDUCE_ANY))
    args->combine = op == WEIR_REDUCE_ALL ? WEIR__COMBINE_AND : WEIR__COMBINE_OR;
  args->divisor = op == WEIR_REDUCE_MEAN ? (double)reduced : 1;
  args->before = op == WEIR_REDUCE_ALL || op == WEIR_REDUCE_ANY || op == WEIR_REDUCE_COUNT_NONZERO
                     ? WEIR__BEFORE_NONZERO
                 : op == WEIR_REDUCE_SUM_OF_SQUARES ? WEIR__BEFORE_SQUARE
                                                    : WEIR__BEFORE_NOTHING;
}

/* The result of no elements. */
static weir_scalar identity(int op) {
  switch (op) {
  case WEIR_REDUCE_PROD:
  case WEIR_REDUCE_ALL:
    return weir_scalar_int(1);
  case WEIR_REDUCE_MEAN:
    return weir_scalar_float(__builtin_nan(""));
  default:
    return weir_scalar_int(0);
  }
}

/* Which dimensions are reduced, as bits. */
static weir_status find_dims(const char *caller, int op, const weir_array *a, const int *dims, int dim_count,
                             unsigned *reduced) {
  *reduced = 0;
  if (dim_count == 0)
    *reduced = (1u << a->ndim) - 1;
  if (dim_count > 1 && has_index(op))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s takes one dimension or none (got %d)", caller, name_of(op),
                      dim_count);
  for (int i = 0; i < dim_count; i++) {
    int dim;
    weir_status status = weir__check_dim(caller, dims[i], a->ndim, &dim);
    if (status)
      return status;
    if (*reduced & 1u << dim)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: dim %d appears multiple times in the list of dims", caller,
                        dim);
    *reduced |= 1u << dim;
  }
  return WEIR_OK;
}

static weir_status check_not_empty(const char *caller, int op, const weir_array *a, int dim_count, unsigned reduced) {
  bool needs = op >= WEIR_REDUCE_MIN && op <= WEIR_REDUCE_ARGMAX;
  if (!needs || weir_array_count(a))
    return WEIR_OK;
  if (!dim_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: %s(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction "
                      "dim with the 'dim' argument.",
                      caller, name_of(op));
  for (int d = 0; d < a->ndim; d++)
    if (reduced & 1u << d && !a->shape[d])
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s(): Expected reduction dim %d to have non-zero size.",
                        caller, name_of(op), d);
  return WEIR_OK;
}

/* The kernels read elements in the common type, which loses those of a wider kind: they are converted before. */
static bool is_narrowed(weir_dtype in, weir_dtype common) {
  if (weir_dtype_is_complex(in))
    return !weir_dtype_is_complex(common);
  return weir_dtype_is_float(in) && !weir_dtype_is_float(common) && !weir_dtype_is_complex(common);
}

weir_status weir_array_reduce(weir_reduce_op op, const weir_array *a, const int *dims, int dim_count, int keepdim,
                              weir_stream stream, weir_array *out) {
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARGUMENT(out);
  int number = (int)op;
  if (!name_of(number))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: op is %d, which is not a reduction", __func__, number);
  if (dim_count < 0 || (dim_count && !dims))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: dims are missing", __func__);
  unsigned reduced;
  weir_dtype common, result;
  weir_status status = weir__check_stream(__func__, a, stream);
  if (!status)
    status = find_dims(__func__, number, a, dims, dim_count, &reduced);
  if (!status)
    status = find_types(__func__, number, a->dtype, out, &common, &result);
  if (!status)
    status = check_not_empty(__func__, number, a, dim_count, reduced);
  if (status)
    return status;
  if (is_narrowed(a->dtype, common)) {
    weir_array converted = {0};
    status = weir_array_to(a, a->place, common, stream, 0, &converted);
    if (!status)
      status = weir_array_reduce(op, &converted, dims, dim_count, keepdim, stream, out);
    weir_array_release(&converted);
    return weir__fail_as(__func__, status);
  }

  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int kept[WEIR_ARRAY_MAX_DIMS] = {0}, ndim = 0;
  for (int d = 0; d < a->ndim; d++) {
    kept[d] = reduced & 1u << d ? -1 : ndim;
    if (kept[d] >= 0)
      shape[ndim++] = a->shape[d];
    else if (keepdim)
      shape[ndim++] = 1;
  }
  bool is_new = false;
  status = weir__prepare_out(__func__, a->place, result, ndim, shape, stream, out, &is_new);
  if (!status && !is_new && out != a)
    status = weir__check_overlap(__func__, out, a);
  if (status || !weir_array_count(out))
    return status;
  weir__reduce_args args;
  memset(&args, 0, sizeof args);
  set_dims(a, out, kept, &args);
  if (!args.reduced) {
    status = weir__fail_as(__func__, weir_array_fill(out, identity(number), stream));
    return weir__give_up(out, is_new, status);
  }
  args.in = a->data;
  args.in_dtype = (int)a->dtype;
  args.common = (int)common;
  set_operation(number, args.reduced, &args);
  if (has_index(number)) {
    args.out_index = out->data;
    args.index_is_strided = 1;
  } else
    args.out = out->data;
  args.out_dtype = (int)out->dtype;
  if (out->dtype != WEIR_INT64 && has_index(number))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected out tensor to have dtype Long, but got %s instead",
                        __func__, weir_dtype_title(out->dtype));
  if (!status)
    status = run(__func__, weir__class_of(common), &args, out, stream);
  return weir__give_up(out, is_new, status);
}

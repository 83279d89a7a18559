/*
 * Matrix products.
 */
#include <inttypes.h>
#include <string.h>

#include "src/array.h"
#include "src/blas.h"
#include "src/tunable_gemm.h"
#include "weir/compute/tunable.h"

enum { ROWS_OF_A_BLOCK = 16, MAX_BATCHES_IN_GRID = 1024, MAX_IN_GRID_Y = 65535 };

/* Matrices, of which those that are not one (vectors) have become one, and with one dimension in front that counts
 * them. */
typedef struct factors {
  weir_array a, b; /* with references */
  int64_t m, n, k, batch;
  int ndim; /* of the result, with its shape */
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
} factors;

static void release(factors *f) {
  weir_array_release(&f->a);
  weir_array_release(&f->b);
}

static weir_status check_sizes(const char *caller, const weir_array *a, const weir_array *b) {
  weir__shape_text first, second;
  int64_t k = a->shape[a->ndim - 1], other = b->shape[b->ndim > 1 ? b->ndim - 2 : 0];
  if (k == other)
    return WEIR_OK;
  if (a->ndim == 1 && b->ndim == 1)
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "%s: inconsistent tensor size, expected tensor %s and src %s to have the same number of elements, "
        "but got %" PRId64 " and %" PRId64 " elements respectively",
        caller, weir__format_shape(1, a->shape, &first), weir__format_shape(1, b->shape, &second), k, other);
  if (a->ndim == 2 && b->ndim == 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: size mismatch, got input (%" PRId64 "), mat (%" PRId64 "x%" PRId64 "), vec (%" PRId64 ")",
                      caller, a->shape[0], a->shape[0], k, other);
  if (a->ndim > 2 && b->ndim > 2)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: Expected size for first two dimensions of batch2 tensor to be: [%" PRId64 ", %" PRId64
                      "] but got: [%" PRId64 ", %" PRId64 "].",
                      caller, b->shape[0], k, b->shape[0], other);
  int64_t rows = a->ndim > 1 ? a->shape[a->ndim - 2] : 1, columns = b->ndim > 1 ? b->shape[b->ndim - 1] : 1;
  if (a->ndim > 2) /* PyTorch folds the batch into the rows */
    rows = k ? weir_array_count(a) / k : 0;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "%s: mat1 and mat2 shapes cannot be multiplied (%" PRId64 "x%" PRId64 " and %" PRId64 "x%" PRId64
                    ")",
                    caller, rows, k, other, columns);
}

/* Expands the batch dimensions of a factor to those of the result and merges them into one. */
static weir_status set_batch(const char *caller, weir_array *factor, int batch_dims, const int64_t *batch_shape,
                             int64_t batch, weir_stream stream) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS + 2];
  memcpy(shape, batch_shape, (size_t)batch_dims * sizeof *shape);
  shape[batch_dims] = factor->shape[factor->ndim - 2];
  shape[batch_dims + 1] = factor->shape[factor->ndim - 1];
  weir_status status = weir_array_expand(factor, batch_dims + 2, shape, factor);
  int64_t merged[] = {batch, shape[batch_dims], shape[batch_dims + 1]};
  if (!status)
    status = weir_array_reshape(factor, 3, merged, stream, factor);
  return weir__fail_as(caller, status);
}

static weir_status make_factors(const char *caller, const weir_array *a, const weir_array *b, weir_stream stream,
                                factors *f) {
  weir_status status = weir__fail_as(caller, weir_array_share(a, &f->a));
  if (!status)
    status = weir__fail_as(caller, weir_array_share(b, &f->b));
  if (!status && a->ndim == 1)
    status = weir_array_unsqueeze(&f->a, 0, &f->a);
  if (!status && b->ndim == 1)
    status = weir_array_unsqueeze(&f->b, 1, &f->b);
  if (status)
    return status;
  f->m = f->a.shape[f->a.ndim - 2];
  f->k = f->a.shape[f->a.ndim - 1];
  f->n = f->b.shape[f->b.ndim - 1];
  weir_array batches = {.ndim = f->b.ndim - 2};
  memcpy(batches.shape, f->b.shape, sizeof batches.shape);
  int batch_dims = f->a.ndim - 2;
  int64_t batch_shape[WEIR_ARRAY_MAX_DIMS];
  memcpy(batch_shape, f->a.shape, sizeof batch_shape);
  status = weir__broadcast(caller, &batch_dims, batch_shape, &batches);
  if (status)
    return status;
  f->batch = 1;
  for (int i = 0; i < batch_dims; i++)
    f->shape[f->ndim++] = batch_shape[i], f->batch *= batch_shape[i];
  if (a->ndim > 1)
    f->shape[f->ndim++] = f->m;
  if (b->ndim > 1)
    f->shape[f->ndim++] = f->n;
  status = set_batch(caller, &f->a, batch_dims, batch_shape, f->batch, stream);
  return status ? status : set_batch(caller, &f->b, batch_dims, batch_shape, f->batch, stream);
}

/* ---- A plain product ---- */

/* Blocks of the result that a thread computes. The first is used unless another one was found to be faster, or tiles
 * are: those are rows of the result, for which the thread needs memory for a part of both factors. */
enum { TILED = 3, BLOCK_SHAPES, MIN_TILED_ROWS = 4, MIN_TILED_COLUMNS = 16, MAX_TILED_DEPTH = 1 << 17 };
static const struct block_shape {
  unsigned rows, columns;
} block_shapes[TILED] = {{1, WEIR__MATMUL_COLUMNS}, {1, 32}, {4, 8}};

static bool has_tiles(const weir__matmul_args *args) {
  return weir_dtype_is_float((weir_dtype)args->dtype) && args->m >= MIN_TILED_ROWS && args->n >= MIN_TILED_COLUMNS &&
         args->k <= MAX_TILED_DEPTH;
}

static weir__builtin *plain_kernel(weir_dtype dtype, int shape) {
#define KERNELS(name)                                                                                                  \
  {                                                                                                                    \
    WEIR__BUILTIN("matmul", "weir_matmul_" name), WEIR__BUILTIN("matmul", "weir_matmul_" name "_1x32"),                \
        WEIR__BUILTIN("matmul", "weir_matmul_" name "_4x8"), WEIR__BUILTIN("matmul", "weir_matmul_" name "_tiled")     \
  }
  static weir__builtin kernels[][BLOCK_SHAPES] = {KERNELS("float16"),
                                                  KERNELS("bfloat16"),
                                                  KERNELS("float32"),
                                                  KERNELS("float64"),
                                                  KERNELS("complex64"),
                                                  KERNELS("complex128"),
                                                  {WEIR__BUILTIN("matmul", "weir_matmul_integers")}};
#undef KERNELS
  static const weir_dtype types[] = {WEIR_FLOAT16, WEIR_BFLOAT16,  WEIR_FLOAT32,
                                     WEIR_FLOAT64, WEIR_COMPLEX64, WEIR_COMPLEX128};
  size_t at = 0;
  while (at < WEIR_COUNT_OF(types) && types[at] != dtype)
    at++;
  return &kernels[at][at < WEIR_COUNT_OF(types) ? shape : 0];
}

/* On the software device the workspace of cuBLAS is allocated too, so that memory is used as on a GPU. */
static weir_status launch_plainly(const char *caller, const weir__matmul_args *given, bool on_host, int shape,
                                  weir_stream stream) {
  weir__matmul_args args = *given;
  shape = shape == 0 && has_tiles(&args) ? TILED : shape;
  unsigned rows = shape == TILED ? WEIR__MATMUL_SLAB : ROWS_OF_A_BLOCK * block_shapes[shape].rows;
  uint64_t blocks = (args.m + rows - 1) / rows;
  uint64_t columns = shape == TILED ? 1 : (args.n + block_shapes[shape].columns - 1) / block_shapes[shape].columns;
  if (blocks > INT32_MAX || columns > MAX_IN_GRID_Y)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the matrices are too large for the plain product", caller);
  weir_launch_dims dims = {.grid = {(unsigned)blocks, (unsigned)columns,
                                    (unsigned)(args.batch < MAX_BATCHES_IN_GRID ? args.batch : MAX_BATCHES_IN_GRID)},
                           .block = {shape == TILED ? 1 : ROWS_OF_A_BLOCK}};
  void *params[] = {&args}, *handle;
  weir_status status = on_host ? WEIR_OK : weir__fail_as(caller, weir_blas_handle(stream, &handle));
  return status ? status
                : weir__array_run(caller, plain_kernel((weir_dtype)args.dtype, shape), on_host, stream, dims, params);
}

/* ---- A product by cuBLAS ---- */

/* How cuBLAS, which reads columns, sees a matrix whose rows are stored: as its transpose. False if neither rows nor
 * columns are contiguous. */
static bool find_layout(const weir_array *matrix, bool *is_transposed, int64_t *leading) {
  int64_t rows = matrix->shape[1], columns = matrix->shape[2];
  int64_t row = matrix->strides[1], column = matrix->strides[2];
  if ((column == 1 || columns == 1) && (row >= columns || rows == 1)) {
    *is_transposed = false;
    *leading = rows == 1 || row < 1 ? columns : row;
    if (columns == 1 && rows > 1 && row < 1)
      return false;
    return true;
  }
  if ((row == 1 || rows == 1) && (column >= rows || columns == 1)) {
    *is_transposed = true;
    *leading = columns == 1 || column < 1 ? rows : column;
    return true;
  }
  return false;
}

static weir_status make_readable(const char *caller, weir_array *matrix, weir_stream stream, bool *is_transposed,
                                 int64_t *leading) {
  if (find_layout(matrix, is_transposed, leading))
    return WEIR_OK;
  weir_array copy = {0};
  weir_status status = weir__fail_as(caller, weir_array_to(matrix, matrix->place, matrix->dtype, stream, 0, &copy));
  if (status)
    return status;
  weir_array_release(matrix);
  *matrix = copy;
  find_layout(matrix, is_transposed, leading);
  return WEIR_OK;
}

/* The transposed product, out' = b' a', is what cuBLAS has to write in columns. */
static weir__gemm describe(const factors *f, const weir_array *out) {
  return (weir__gemm){.dtype = out->dtype,
                      .m = f->n,
                      .n = f->m,
                      .k = f->k,
                      .batch = f->batch,
                      .c = out->data,
                      .ldc = f->n,
                      .c_stride = f->m * f->n,
                      .a_stride = f->b.strides[0],
                      .b_stride = f->a.strides[0]};
}

static weir_status multiply_by_cublas(const char *caller, factors *f, const weir_array *out, weir_stream stream) {
  weir__gemm gemm = describe(f, out);
  weir_status status = make_readable(caller, &f->b, stream, &gemm.transposes_a, &gemm.lda);
  if (!status)
    status = make_readable(caller, &f->a, stream, &gemm.transposes_b, &gemm.ldb);
  if (status)
    return status;
  gemm.a = f->b.data;
  gemm.b = f->a.data;
  gemm.a_stride = f->b.strides[0]; /* of the copies, if any were made */
  gemm.b_stride = f->a.strides[0];
  return weir_tunable_is_enabled() ? weir__gemm_run_tuned(caller, &gemm, NULL, stream)
                                   : weir__blas_gemm(caller, stream, &gemm, WEIR__BLAS_DEFAULT_ALGORITHM);
}

/* ---- On the software device and the host ---- */

static weir_status run_block_shape(const char *caller, const void *arguments, const weir__gemm *gemm, int shape,
                                   weir_stream stream) {
  weir__matmul_args args = *(const weir__matmul_args *)arguments;
  if (gemm) {
    args.a = gemm->b;
    args.b = gemm->a;
    args.out = gemm->c;
  }
  return launch_plainly(caller, &args, false, shape, stream);
}

static weir_status multiply_plainly(const char *caller, const factors *f, const weir_array *out, weir_stream stream) {
  weir__matmul_args args = {.m = (uint64_t)f->m,
                            .n = (uint64_t)f->n,
                            .k = (uint64_t)f->k,
                            .batch = (uint64_t)f->batch,
                            .a = f->a.data,
                            .b = f->b.data,
                            .out = out->data,
                            .a_batch = f->a.strides[0],
                            .a_row = f->a.strides[1],
                            .a_column = f->a.strides[2],
                            .b_batch = f->b.strides[0],
                            .b_row = f->b.strides[1],
                            .b_column = f->b.strides[2],
                            .dtype = (int)out->dtype};
  /* What cuBLAS could not read without a copy has no parameters in its terms, and is not tuned. */
  weir__gemm gemm = describe(f, out);
  if (!weir__is_host(out) && weir_tunable_is_enabled() && find_layout(&f->b, &gemm.transposes_a, &gemm.lda) &&
      find_layout(&f->a, &gemm.transposes_b, &gemm.ldb)) {
    gemm.a = f->b.data;
    gemm.b = f->a.data;
    weir__gemm_plain plain = {.run = run_block_shape, .arguments = &args};
    return weir__gemm_run_tuned(caller, &gemm, &plain, stream);
  }
  return launch_plainly(caller, &args, weir__is_host(out), 0, stream);
}

/* ---- Either ---- */

static weir_status check_types(const char *caller, const weir_array *a, const weir_array *b) {
  if (a->ndim == 0 || b->ndim == 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: both arguments to matmul need to be at least 1D, but they are %dD and %dD", caller, a->ndim,
                      b->ndim);
  if (a->dtype != b->dtype)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: expected m1 and m2 to have the same dtype, but got: %s != %s",
                      caller, weir_dtype_title(a->dtype), weir_dtype_title(b->dtype));
  bool is_number = weir_dtype_is_float(a->dtype) || weir_dtype_is_complex(a->dtype);
  if (!is_number && !weir__is_host(a))
    return weir__not_implemented(caller, "addmm_cuda", a->dtype);
  if (a->dtype == WEIR_BOOL)
    return weir__not_implemented(caller, "addmm_impl_cpu_", a->dtype);
  return WEIR_OK;
}

weir_status weir_array_matmul(const weir_array *a, const weir_array *b, weir_stream stream, weir_array *out) {
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(b);
  WEIR__CHECK_ARGUMENT(out);
  weir_status status = check_types(__func__, a, b);
  if (!status)
    status = weir__check_same_place(__func__, a, b);
  if (!status)
    status = weir__check_stream(__func__, a, stream);
  if (!status)
    status = check_sizes(__func__, a, b);
  if (status)
    return status;

  factors f = {0};
  weir_array result = {0};
  bool is_new = false;
  status = make_factors(__func__, a, b, stream, &f);
  if (!status)
    status = weir__prepare_out(__func__, a->place, a->dtype, f.ndim, f.shape, stream, out, &is_new);
  /* A result that is strided, has another type, or shares memory with a factor is made elsewhere first. */
  bool is_direct = !status && weir_array_is_contiguous(out) && out->dtype == a->dtype &&
                   (is_new || (out->storage != a->storage && out->storage != b->storage));
  if (!status && !is_direct)
    status =
        weir_array_empty(weir__is_host(a) ? weir_place_host() : a->place, a->dtype, f.ndim, f.shape, stream, &result);
  weir_array *target = is_direct ? out : &result;
  weir_driver *driver = NULL;
  if (!status && !weir__is_host(a))
    status = weir_get_driver(&driver);
  if (!status && weir_array_count(target)) {
    if (f.k == 0)
      status = weir_array_fill(target, weir_scalar_int(0), stream);
    else if (!driver || weir__driver_can(driver, WEIR_DRIVER_HOST_KERNELS))
      status = multiply_plainly(__func__, &f, target, stream);
    else
      status = multiply_by_cublas(__func__, &f, target, stream);
  }
  if (!status && !is_direct)
    status = weir_array_copy(out, &result, stream, 1);
  release(&f);
  weir_array_release(&result);
  return weir__fail_as(__func__, weir__give_up(out, is_new, status));
}

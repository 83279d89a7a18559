/*
 * Operations whose elements are at computed places: indices, counts, and samples of a distribution.
 */
#include <inttypes.h>
#include <string.h>

#include "src/array.h"
#include "src/blas.h"
#include "weir/compute/random.h"

static weir_launch_dims threads_for(uint64_t count) {
  return (weir_launch_dims){.grid = {(unsigned)((count + WEIR__BLOCK - 1) / WEIR__BLOCK)}, .block = {WEIR__BLOCK}};
}

/* A contiguous array of a type: the array itself if it is one. */
static weir_status take_as(const char *caller, const weir_array *array, weir_dtype dtype, weir_stream stream,
                           weir_array *made) {
  weir_status status = array->dtype == dtype ? weir_array_contiguous(array, stream, made)
                                             : weir_array_to(array, array->place, dtype, stream, 1, made);
  return weir__fail_as(caller, status);
}

static weir_place result_place(const weir_array *a) { return weir__is_host(a) ? weir_place_host() : a->place; }

weir_status weir_array_index_select(const weir_array *a, int dim, const weir_array *indices, weir_stream stream,
                                    weir_array *out) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_index_select");
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(indices);
  WEIR__CHECK_ARGUMENT(out);
  weir_status status = weir__check_dim(__func__, dim, a->ndim, &dim);
  if (!status)
    status = weir__check_same_place(__func__, a, indices);
  if (!status)
    status = weir__check_stream(__func__, a, stream);
  if (!status && indices->ndim > 1)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: index_select(): Index is supposed to be a vector", __func__);
  if (!status && indices->dtype != WEIR_INT64 && indices->dtype != WEIR_INT32)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: index_select(): Expected dtype int32 or int64 for index",
                        __func__);
  if (!status && a->ndim == 0)
    status =
        weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: index_select() cannot be applied to a 0-dim tensor", __func__);
  if (status)
    return status;
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  memcpy(shape, a->shape, sizeof shape);
  shape[dim] = weir_array_count(indices);
  bool is_new = false;
  weir_array from = {0}, which = {0}, result = {0};
  status = weir__prepare_out(__func__, a->place, a->dtype, a->ndim, shape, stream, out, &is_new);
  bool is_direct = !status && weir_array_is_contiguous(out) && out->dtype == a->dtype &&
                   (is_new || (out->storage != a->storage && out->storage != indices->storage));
  if (!status)
    status = weir_array_contiguous(a, stream, &from);
  if (!status)
    status = weir_array_contiguous(indices, stream, &which);
  if (!status && !is_direct)
    status =
        weir_array_empty(weir__is_host(a) ? weir_place_host() : a->place, a->dtype, a->ndim, shape, stream, &result);
  weir_array *target = is_direct ? out : &result;
  if (!status && weir_array_count(target)) {
    size_t size = weir_dtype_size(a->dtype);
    weir__select_args args = {.outer = 1,
                              .size = (uint64_t)a->shape[dim],
                              .picked = (uint64_t)shape[dim],
                              .inner = size == 16 ? 2 : 1, /* in halves, which need less alignment */
                              .in = from.data,
                              .indices = which.data,
                              .out = target->data,
                              .element_bytes = size == 16 ? 8 : (int)size,
                              .index_is_64_bits = indices->dtype == WEIR_INT64};
    for (int d = 0; d < a->ndim; d++)
      *(d < dim ? &args.outer : &args.inner) *= d == dim ? 1 : (uint64_t)a->shape[d];
    uint64_t blocks = (args.outer * args.picked * args.inner + WEIR__BLOCK - 1) / WEIR__BLOCK;
    weir_launch_dims dims = {.grid = {(unsigned)blocks}, .block = {WEIR__BLOCK}};
    void *params[] = {&args};
    if (blocks > INT32_MAX)
      status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the result is too large", __func__);
    else
      status = weir__array_run(__func__, &kernel, weir__is_host(a), stream, dims, params);
    if (status == WEIR_ERROR_INVALID_ARGUMENT && weir__is_host(a))
      status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: index out of range in self", __func__);
  }
  if (!status && !is_direct)
    status = weir_array_copy(out, &result, stream, 1);
  weir_array_release(&from);
  weir_array_release(&which);
  weir_array_release(&result);
  return weir__fail_as(__func__, weir__give_up(out, is_new, status));
}

weir_status weir_array_gather(const weir_array *a, int dim, const weir_array *indices, weir_stream stream,
                              weir_array *out) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_gather");
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(indices);
  WEIR__CHECK_ARGUMENT(out);
  weir_status status = weir__check_dim(__func__, dim, a->ndim, &dim);
  if (!status)
    status = weir__check_same_place(__func__, a, indices);
  if (!status)
    status = weir__check_stream(__func__, a, stream);
  if (!status && indices->dtype != WEIR_INT64)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: gather(): Expected dtype int64 for index", __func__);
  if (!status && indices->ndim != a->ndim)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: Index tensor must have the same number of dimensions as input tensor", __func__);
  weir__shape_text index_text, text;
  for (int d = 0; d < a->ndim && !status; d++)
    if (d != dim && indices->shape[d] > a->shape[d])
      status =
          weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                     "%s: Size does not match at dimension %d expected index %s to be no larger than self %s apart "
                     "from dimension %d",
                     __func__, d, weir__format_shape(indices->ndim, indices->shape, &index_text),
                     weir__format_shape(a->ndim, a->shape, &text), dim);
  if (status)
    return status;
  bool is_new = false;
  weir_array from = {0}, which = {0}, result = {0};
  status = weir__prepare_out(__func__, a->place, a->dtype, indices->ndim, indices->shape, stream, out, &is_new);
  if (!status)
    status = take_as(__func__, a, a->dtype, stream, &from);
  if (!status)
    status = take_as(__func__, indices, WEIR_INT64, stream, &which);
  bool is_direct = is_new;
  if (!status && !is_direct)
    status = weir_array_empty(result_place(a), a->dtype, indices->ndim, indices->shape, stream, &result);
  weir_array *target = is_direct ? out : &result;
  if (!status && weir_array_count(target)) {
    int size = (int)weir_dtype_size(a->dtype), parts = size == 16 ? 2 : 1;
    weir__gather_args args = {.count = (uint64_t)weir_array_count(target),
                              .size = a->ndim ? (uint64_t)a->shape[dim] : 1,
                              .parts = (uint64_t)parts,
                              .in = from.data,
                              .indices = which.data,
                              .out = target->data,
                              .ndim = a->ndim,
                              .dim = dim,
                              .part_bytes = size / parts};
    for (int d = 0; d < a->ndim; d++) {
      args.shape[d] = (uint64_t)indices->shape[d];
      args.strides[d] = from.strides[d];
    }
    void *params[] = {&args};
    status = weir__array_run(__func__, &kernel, weir__is_host(a), stream, threads_for(args.count * args.parts), params);
    if (status == WEIR_ERROR_INVALID_ARGUMENT && weir__is_host(a))
      status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: index out of range for dimension %d with size %" PRIu64,
                          __func__, dim, (uint64_t)args.size);
  }
  if (!status && !is_direct)
    status = weir_array_copy(out, &result, stream, 1);
  weir_array_release(&from);
  weir_array_release(&which);
  weir_array_release(&result);
  return weir__fail_as(__func__, weir__give_up(out, is_new, status));
}

/* The smallest and the largest element, for which the call waits. */
static weir_status bounds_of(const weir_array *a, weir_stream stream, int64_t *least, int64_t *largest) {
  static const weir_reduce_op ops[] = {WEIR_REDUCE_MIN, WEIR_REDUCE_MAX};
  int64_t *results[] = {least, largest};
  weir_status status = WEIR_OK;
  for (int i = 0; i < 2 && !status; i++) {
    weir_array reduced = {0};
    weir_scalar item = {0};
    status = weir_array_reduce(ops[i], a, NULL, 0, 0, stream, &reduced);
    if (!status)
      status = weir_array_item(&reduced, stream, &item);
    *results[i] = item.integer;
    weir_array_release(&reduced);
  }
  return status;
}

weir_status weir_array_bincount(const weir_array *a, const weir_array *weights, int64_t minlength, weir_stream stream,
                                weir_array *out) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_bincount");
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARGUMENT(out);
  weir_status status = weir__check_stream(__func__, a, stream);
  if (!status && minlength < 0)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: minlength should be >= 0", __func__);
  if (!status && weights)
    status = weir__array_check(__func__, weights, "weights");
  if (!status && weights)
    status = weir__check_same_place(__func__, a, weights);
  if (!status && weights && (weights->ndim != 1 || weights->shape[0] != a->shape[0]))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: weights should be 1-d and have the same length as input",
                        __func__);
  if (!status && weights && !weir__is_host(a)) /* floats are added in any order */
    status = weir__alert_not_deterministic(__func__, "_bincount_cuda");
  int64_t least = 0, largest = -1;
  bool is_valid = a->ndim == 1 && weir_dtype_is_integer(a->dtype);
  if (!status && is_valid && weir_array_count(a))
    status = weir__fail_as(__func__, bounds_of(a, stream, &least, &largest));
  if (!status && (!is_valid || least < 0))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: bincount only supports 1-d non-negative integral inputs.",
                        __func__);
  if (status)
    return status;
  weir_dtype dtype = !weights ? WEIR_INT64 : weights->dtype == WEIR_FLOAT32 ? WEIR_FLOAT32 : WEIR_FLOAT64;
  int64_t bins = largest + 1 > minlength ? largest + 1 : minlength;
  weir_array values = {0}, weight_values = {0}, counts = {0};
  status = weir_array_empty(result_place(a), dtype, 1, &bins, stream, &counts);
  if (!status)
    status = weir_array_fill(&counts, weir_scalar_int(0), stream);
  if (!status)
    status = take_as(__func__, a, WEIR_INT64, stream, &values);
  if (!status && weights)
    status = take_as(__func__, weights, dtype, stream, &weight_values);
  if (!status && weir_array_count(a)) {
    weir__bincount_args args = {.count = (uint64_t)weir_array_count(a),
                                .in = values.data,
                                .weights = weight_values.data,
                                .out = counts.data,
                                .out_dtype = (int)dtype};
    void *params[] = {&args};
    status = weir__array_run(__func__, &kernel, weir__is_host(a), stream, threads_for(args.count), params);
  }
  bool is_new = false;
  if (!status && weir__has_array(out)) {
    status = weir__prepare_out(__func__, a->place, dtype, 1, &bins, stream, out, &is_new);
    if (!status)
      status = weir_array_copy(out, &counts, stream, 1);
  } else if (!status) {
    *out = counts;
    counts = (weir_array){0};
  }
  weir_array_release(&values);
  weir_array_release(&weight_values);
  weir_array_release(&counts);
  return weir__fail_as(__func__, status);
}

/* ---- Cumulative sums ---- */

/* Rows of doubles that are contiguous. */
static weir_status scan(const char *caller, const weir_array *in, weir_array *sums, weir_stream stream) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_scan_rows");
  int64_t columns = in->shape[in->ndim - 1];
  if (!weir_array_count(in))
    return WEIR_OK;
  weir__scan_args args = {.rows = (uint64_t)(weir_array_count(in) / columns),
                          .columns = (uint64_t)columns,
                          .in = in->data,
                          .out = sums->data};
  weir_launch_dims dims = {
      .grid = {(unsigned)args.rows}, .block = {WEIR__SCAN_BLOCK}, .shared_bytes = WEIR__SCAN_BLOCK * sizeof(double)};
  void *params[] = {&args};
  if (args.rows > INT32_MAX)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: the array has too many rows", caller);
  return weir__array_run(caller, &kernel, weir__is_host(in), stream, dims, params);
}

/* ---- Samples ---- */

static weir_status check_distribution(const char *caller, const weir_array *a, int64_t samples, int replacement) {
  weir_status status = WEIR_OK;
  if (a->ndim != 1 && a->ndim != 2)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: prob_dist must be 1 or 2 dim", caller);
  else if (!weir_dtype_is_float(a->dtype))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: multinomial only supports floating-point dtypes for input, got: %s", caller,
                        weir_dtype_title(a->dtype));
  else if (samples <= 0)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: cannot sample n_sample <= 0 samples", caller);
  else if (!replacement && samples > a->shape[a->ndim - 1])
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: cannot sample n_sample > prob_dist.size(-1) samples without replacement", caller);
  else if (!replacement && samples > 1)
    status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: several samples without replacement are not supported", caller);
  else if (weir__is_host(a))
    status = weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: samples are drawn on a device", caller);
  return status;
}

weir_status weir_array_multinomial(weir_generator *generator, const weir_array *a, int64_t samples, int replacement,
                                   weir_stream stream, weir_array *out) {
  static weir__builtin check_kernel = WEIR__BUILTIN("index", "weir_check_probabilities");
  static weir__builtin pick_kernel = WEIR__BUILTIN("index", "weir_pick");
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARGUMENT(out);
  weir_status status = check_distribution(__func__, a, samples, replacement);
  if (!status)
    status = weir__check_stream(__func__, a, stream);
  if (status)
    return status;
  int64_t columns = a->shape[a->ndim - 1], rows = a->ndim == 2 ? a->shape[0] : 1, shape[] = {rows, samples};
  weir_array weights = {0}, sums = {0}, uniform = {0};
  bool is_new = false;
  status = weir__prepare_out(__func__, a->place, WEIR_INT64, a->ndim, a->ndim == 2 ? shape : shape + 1, stream, out,
                             &is_new);
  if (!status && (!weir_array_is_contiguous(out) || out->dtype != WEIR_INT64))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: out must be a contiguous array of int64", __func__);
  if (!status)
    status = weir_array_to(a, a->place, WEIR_FLOAT64, stream, 1, &weights);
  if (!status)
    status = weir_array_empty_like(&weights, stream, &sums);
  if (!status)
    status = weir_array_empty(a->place, WEIR_FLOAT64, 2, shape, stream, &uniform);
  if (!status)
    status = weir_random_uniform(generator, uniform.data, (uint64_t)(rows * samples), WEIR_FLOAT64, 0, 1, stream);
  uint64_t count = (uint64_t)(rows * columns);
  void *check_params[] = {&weights.data, &count};
  if (!status && count)
    status = weir__array_run(__func__, &check_kernel, false, stream, threads_for(count), check_params);
  if (!status)
    status = scan(__func__, &weights, &sums, stream);
  weir__pick_args args = {.rows = (uint64_t)rows,
                          .columns = (uint64_t)columns,
                          .samples = (uint64_t)samples,
                          .probabilities = weights.data,
                          .cumulative = sums.data,
                          .uniform = uniform.data,
                          .out = out->data};
  void *params[] = {&args};
  if (!status && count)
    status = weir__array_run(__func__, &pick_kernel, false, stream, threads_for(args.rows * args.samples), params);
  weir_array_release(&weights);
  weir_array_release(&sums);
  weir_array_release(&uniform);
  return weir__fail_as(__func__, weir__give_up(out, is_new, status));
}

weir_status weir_array_assert_async(const weir_array *a, weir_stream stream) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_assert_nonzero");
  WEIR__CHECK_ARRAY(a);
  int64_t count = weir_array_count(a);
  weir_status status = weir__check_stream(__func__, a, stream);
  if (!status && count != 1)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Boolean value of Tensor with %s is ambiguous", __func__,
                        count ? "more than one value" : "no values");
  if (status)
    return status;
  void *data = a->data;
  int dtype = (int)a->dtype;
  void *params[] = {&data, &dtype};
  weir_launch_dims dims = {.grid = {1}, .block = {1}};
  status = weir__array_run(__func__, &kernel, weir__is_host(a), stream, dims, params);
  if (status == WEIR_ERROR_INVALID_ARGUMENT && weir__is_host(a))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected Tensor with single nonzero value, but got zero",
                        __func__);
  return status;
}

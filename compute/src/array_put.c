/*
 * Elements at several arrays of indices, read and written. The indices are first turned into the offsets of elements,
 * which also checks them.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/array.h"
#include "weir/compute/blas.h"

enum { MAX_DIMS = WEIR_ARRAY_MAX_DIMS };

/* What reading and writing share. */
typedef struct selection {
  int index_ndim, ndim, first; /* dimensions of the indices and of the result; where those are in the result */
  int64_t index_shape[MAX_DIMS], shape[MAX_DIMS];
  weir_array offsets; /* int64, in bytes */
  weir__at_args args; /* without the values */
} selection;

static weir_status shape_mismatch(const char *caller, const weir_array *const *indices, int count) {
  char shapes[600] = "";
  for (int d = 0; d < count; d++) {
    size_t used = strlen(shapes);
    weir__shape_text text;
    if (indices[d])
      snprintf(shapes + used, sizeof shapes - used, "%s%s", used ? ", " : "",
               weir__format_shape(indices[d]->ndim, indices[d]->shape, &text));
  }
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "%s: shape mismatch: indexing tensors could not be broadcast together with shapes %s", caller,
                    shapes);
}

static weir_status check_indices(const char *caller, const weir_array *a, const weir_array *const *indices, int count,
                                 selection *s) {
  bool has_any = false;
  if (count > a->ndim)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: too many indices for tensor of dimension %d (got %d)", caller,
                      a->ndim, count);
  for (int d = 0; d < count; d++) {
    const weir_array *index = indices[d];
    if (!index)
      continue;
    weir_status status = weir__array_check(caller, index, "an index");
    if (!status && index->dtype != WEIR_INT64 && index->dtype != WEIR_INT32)
      status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: expected int64 or int32 for index %d (got %s)", caller, d,
                          weir_dtype_name(index->dtype));
    if (!status)
      status = weir__check_same_place(caller, a, index);
    if (!status && weir__broadcast(caller, &s->index_ndim, s->index_shape, index))
      status = shape_mismatch(caller, indices, count);
    if (status)
      return status;
    has_any = true;
  }
  if (!has_any)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: there must be at least one array of indices", caller);
  return WEIR_OK;
}

/* The shape of the result, and the dimensions without indices. */
static weir_status lay_out(const char *caller, const weir_array *a, const weir_array *const *indices, int count,
                           selection *s) {
  int64_t size = (int64_t)weir_dtype_size(a->dtype);
  int rest[MAX_DIMS] = {0}, rest_count = 0, last = -1;
  bool is_adjacent = true;
  s->first = -1;
  for (int d = 0; d < a->ndim; d++)
    if (d < count && indices[d]) {
      if (s->first < 0)
        s->first = d;
      else if (last != d - 1)
        is_adjacent = false;
      last = d;
    } else
      rest[rest_count++] = d;
  s->first = is_adjacent ? s->first : 0;
  if (rest_count + s->index_ndim > MAX_DIMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the result would have %d dimensions; expected 0 to %d", caller,
                      rest_count + s->index_ndim, MAX_DIMS);
  for (int i = 0; i < s->first; i++)
    s->shape[s->ndim++] = a->shape[rest[i]];
  for (int i = 0; i < s->index_ndim; i++)
    s->shape[s->ndim++] = s->index_shape[i];
  for (int i = s->first; i < rest_count; i++)
    s->shape[s->ndim++] = a->shape[rest[i]];
  s->args = (weir__at_args){.positions = 1,
                            .picked = 1,
                            .array = a->data,
                            .rest_ndim = rest_count,
                            .index_ndim = s->index_ndim,
                            .dtype = (int)a->dtype,
                            .element_bytes = (int)size,
                            .lanes = 1};
  for (int i = 0; i < rest_count; i++) {
    int d = rest[rest_count - 1 - i];
    s->args.rest_shape[i] = (unsigned long long)a->shape[d];
    s->args.array_strides[i] = a->strides[d] * size;
    s->args.positions *= (unsigned long long)a->shape[d];
  }
  for (int i = 0; i < s->index_ndim; i++) {
    s->args.index_shape[i] = (unsigned long long)s->index_shape[s->index_ndim - 1 - i];
    s->args.picked *= s->args.index_shape[i];
  }
  return WEIR_OK;
}

/* On the host, where an error can name the index. */
static weir_status check_range(const char *caller, const weir_array *index, int dim, int64_t size) {
  const int64_t *values = index->data;
  for (int64_t i = 0; i < weir_array_count(index); i++)
    if (values[i] < -size || values[i] >= size)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: index %" PRId64 " is out of bounds for dimension %d with size %" PRId64, caller, values[i],
                        dim, size);
  return WEIR_OK;
}

static weir_status make_offsets(const char *caller, const weir_array *a, const weir_array *const *indices, int count,
                                weir_stream stream, selection *s) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_index_offsets");
  bool on_host = weir__is_host(a);
  weir_place place = on_host ? weir_place_host() : a->place;
  weir_array whole[MAX_DIMS] = {0};
  weir__offsets_args args = {.count = s->args.picked};
  weir_status status = weir_array_empty(place, WEIR_INT64, s->index_ndim, s->index_shape, stream, &s->offsets);
  for (int d = 0; d < count && !status; d++) {
    if (!indices[d])
      continue;
    weir_array wide = {0}, *made = &whole[d];
    if (indices[d]->dtype == WEIR_INT64)
      status = weir_array_share(indices[d], &wide);
    else
      status = weir_array_to(indices[d], place, WEIR_INT64, stream, 1, &wide);
    weir_array view = {0};
    if (!status)
      status = weir_array_expand(&wide, s->index_ndim, s->index_shape, &view);
    if (!status)
      status = weir_array_contiguous(&view, stream, made);
    weir_array_release(&wide);
    weir_array_release(&view);
    if (!status && on_host)
      status = check_range(caller, made, d, a->shape[d]);
    args.indices[args.ndim] = made->data;
    args.sizes[args.ndim] = a->shape[d];
    args.strides[args.ndim++] = a->strides[d] * s->args.element_bytes;
  }
  if (!status && args.count) {
    args.out = s->offsets.data;
    void *params[] = {&args};
    status = weir__array_run(caller, &kernel, on_host, stream, weir__array_grid(on_host, args.count), params);
  }
  for (int d = 0; d < count; d++)
    weir_array_release(&whole[d]);
  s->args.offsets = s->offsets.data;
  return status;
}

static weir_status select_elements(const char *caller, const weir_array *a, const weir_array *const *indices, int count,
                                   weir_stream stream, selection *s) {
  weir_status status = weir__check_stream(caller, a, stream);
  if (!status)
    status = check_indices(caller, a, indices, count, s);
  if (!status)
    status = lay_out(caller, a, indices, count, s);
  if (!status)
    status = make_offsets(caller, a, indices, count, stream, s);
  return status;
}

/* `values` has the shape of the result. */
static void set_values(selection *s, const weir_array *values) {
  int64_t size = s->args.element_bytes;
  int rest = 0;
  s->args.values = values->data;
  for (int d = s->ndim - 1; d >= 0; d--)
    if (d >= s->first && d < s->first + s->index_ndim)
      s->args.index_strides[s->first + s->index_ndim - 1 - d] = values->strides[d] * size;
    else
      s->args.rest_strides[rest++] = values->strides[d] * size;
}

weir_status weir_array_index(const weir_array *a, const weir_array *const *indices, int count, weir_stream stream,
                             weir_array *out) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_index_get");
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARGUMENT(indices);
  WEIR__CHECK_ARGUMENT(out);
  selection s = {0};
  bool is_new = false, on_host = weir__is_host(a);
  weir_array result = {0};
  weir_status status = select_elements(__func__, a, indices, count, stream, &s);
  if (!status)
    status = weir__prepare_out(__func__, a->place, a->dtype, s.ndim, s.shape, stream, out, &is_new);
  if (!status && !is_new)
    status = weir_array_empty(on_host ? weir_place_host() : a->place, a->dtype, s.ndim, s.shape, stream, &result);
  if (!status && s.args.positions && s.args.picked) {
    set_values(&s, is_new ? out : &result);
    void *params[] = {&s.args};
    weir_launch_dims dims = weir__array_grid(on_host, s.args.positions * s.args.picked);
    status = weir__array_run(__func__, &kernel, on_host, stream, dims, params);
  }
  if (!status && !is_new)
    status = weir_array_copy(out, &result, stream, 1);
  weir_array_release(&result);
  weir_array_release(&s.offsets);
  return weir__fail_as(__func__, weir__give_up(out, is_new, status));
}

/* Several threads share a position if there are few positions, unless threads run one after the other. */
static weir_launch_dims ordered_grid(bool on_host, weir__at_args *args) {
  weir_launch_dims dims = weir__array_grid(on_host, args->positions);
  if (dims.block[0] > 1) {
    while (args->lanes < WEIR__BLOCK && args->positions * args->lanes < 1 << 15)
      args->lanes *= 2;
    dims = weir__array_grid(on_host, args->positions * args->lanes);
  }
  return dims;
}

weir_status weir_array_index_put(const weir_array *a, const weir_array *const *indices, int count,
                                 const weir_array *values, int accumulate, weir_stream stream) {
  static weir__builtin kernel = WEIR__BUILTIN("index", "weir_index_put");
  static weir__builtin ordered_kernel = WEIR__BUILTIN("index", "weir_index_put_ordered");
  WEIR__CHECK_ARRAY(a);
  WEIR__CHECK_ARRAY(values);
  WEIR__CHECK_ARGUMENT(indices);
  if (a->dtype != values->dtype)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: Index put requires the source and destination dtypes match, got %s for the destination and "
                      "%s for the source.",
                      __func__, weir_dtype_title(a->dtype), weir_dtype_title(values->dtype));
  selection s = {0};
  weir_array copy = {0}, view = {0};
  weir__shape_text text, value_text;
  weir_status status = weir__check_same_place(__func__, a, values);
  if (!status)
    status = weir__check_overlap(__func__, a, a);
  if (!status)
    status = select_elements(__func__, a, indices, count, stream, &s);
  if (!status && values->storage == a->storage) { /* elements must not change while they are read */
    status = weir_array_empty_like(values, stream, &copy);
    if (!status)
      status = weir_array_copy(&copy, values, stream, 1);
    values = &copy;
  }
  if (!status && weir_array_expand(values, s.ndim, s.shape, &view))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: shape mismatch: value tensor of shape %s cannot be broadcast to indexing result of shape "
                        "%s",
                        __func__, weir__format_shape(values->ndim, values->shape, &value_text),
                        weir__format_shape(s.ndim, s.shape, &text));
  if (!status && s.args.positions && s.args.picked) {
    bool on_host = weir__is_host(a), is_ordered = accumulate || weir_blas_get_deterministic() != WEIR_DETERMINISTIC_OFF;
    set_values(&s, &view);
    s.args.accumulates = accumulate != 0;
    weir_launch_dims dims =
        is_ordered ? ordered_grid(on_host, &s.args) : weir__array_grid(on_host, s.args.positions * s.args.picked);
    void *params[] = {&s.args};
    status = weir__array_run(__func__, is_ordered ? &ordered_kernel : &kernel, on_host, stream, dims, params);
  }
  weir_array_release(&copy);
  weir_array_release(&view);
  weir_array_release(&s.offsets);
  return weir__fail_as(__func__, status);
}

/*
 * Arrays: creation and views.
 */
#include "src/array.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- Texts and checks ---- */

const char *weir__format_shape(int ndim, const int64_t *shape, weir__shape_text *text) {
  size_t length = 0;
  text->text[length++] = '[';
  for (int i = 0; i < ndim && length < sizeof text->text - 32; i++)
    length += (size_t)snprintf(text->text + length, sizeof text->text - length, "%s%" PRId64, i ? ", " : "", shape[i]);
  snprintf(text->text + length, sizeof text->text - length, "]");
  return text->text;
}

const char *weir__format_place(weir_place place, char text[32]) {
  if (place.kind == WEIR_PLACE_DEVICE)
    snprintf(text, 32, "cuda:%d", place.device);
  else
    snprintf(text, 32, "cpu");
  return text;
}

weir_status weir__array_check(const char *caller, const weir_array *array, const char *name) {
  if (!array)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", caller, name);
  if (!array->storage)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is not an array: it has no storage", caller, name);
  if (!weir_dtype_size(array->dtype) || array->ndim < 0 || array->ndim > WEIR_ARRAY_MAX_DIMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is damaged: its type is %d and it has %d dimensions", caller,
                      name, (int)array->dtype, array->ndim);
  return WEIR_OK;
}

weir_status weir__not_implemented(const char *caller, const char *operation, weir_dtype dtype) {
  return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: \"%s\" not implemented for '%s'", caller, operation,
                    weir_dtype_title(dtype));
}

weir_status weir__check_dim(const char *caller, int dim, int ndim, int *found) {
  int range = ndim ? ndim : 1; /* a number has dimension 0, as in PyTorch */
  if (dim < -range || dim >= range)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: Dimension out of range (expected to be in range of [%d, %d], but got %d)", caller, -range,
                      range - 1, dim);
  *found = dim < 0 ? dim + range : dim;
  return WEIR_OK;
}

weir_status weir__check_stream(const char *caller, const weir_array *array, weir_stream stream) {
  if (weir__is_host(array) || array->place.device == stream.device)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the stream belongs to device %d, and the array to device %d",
                    caller, stream.device, array->place.device);
}

weir_status weir__array_run(const char *caller, weir__builtin *kernel, bool on_host, weir_stream stream,
                            weir_launch_dims dims, void **params) {
  weir_cu_stream raw;
  if (on_host)
    return weir__builtin_run(caller, kernel, dims, params);
  weir_status status = weir_stream_raw(stream, &raw);
  if (status)
    return weir__fail_as(caller, status);
  return weir__builtin_launch(caller, kernel, stream.device, raw, dims, params);
}

bool weir__array_is_serial(bool on_host) {
  weir_driver *driver;
  return on_host || (!weir_get_driver(&driver) && weir__driver_can(driver, WEIR_DRIVER_HOST_KERNELS));
}

weir_launch_dims weir__array_grid(bool on_host, uint64_t elements) {
  if (weir__array_is_serial(on_host))
    return (weir_launch_dims){.grid = {1}, .block = {1}};
  uint64_t blocks = (elements + WEIR__BLOCK - 1) / WEIR__BLOCK;
  return (weir_launch_dims){.grid = {(unsigned)(blocks > INT32_MAX ? INT32_MAX : blocks)}, .block = {WEIR__BLOCK}};
}

/* The product of the sizes, and that times the size of an element, must fit into 63 bits. */
static weir_status check_shape(const char *caller, weir_dtype dtype, int ndim, const int64_t *shape) {
  weir__shape_text text;
  if (!weir_dtype_size(dtype))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: dtype is %d, which is not a type", caller, (int)dtype);
  if (ndim < 0 || ndim > WEIR_ARRAY_MAX_DIMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d dimensions; expected 0 to %d", caller, ndim,
                      WEIR_ARRAY_MAX_DIMS);
  if (ndim && !shape)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: shape is NULL", caller);
  int64_t bytes = (int64_t)weir_dtype_size(dtype);
  for (int i = 0; i < ndim; i++)
    if (shape[i] < 0)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: Trying to create tensor with negative dimension %" PRId64 ": %s", caller, shape[i],
                        weir__format_shape(ndim, shape, &text));
  for (int i = 0; i < ndim; i++)
    if (shape[i] == 0)
      return WEIR_OK;
  for (int i = 0; i < ndim; i++)
    if (__builtin_mul_overflow(bytes, shape[i], &bytes))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Storage size calculation overflowed with sizes=%s", caller,
                        weir__format_shape(ndim, shape, &text));
  return WEIR_OK;
}

void weir__set_contiguous_strides(weir_array *array) {
  int64_t stride = 1;
  for (int i = array->ndim - 1; i >= 0; i--) {
    array->strides[i] = stride;
    stride *= array->shape[i] > 1 ? array->shape[i] : 1;
  }
}

static void set_shape(weir_array *array, int ndim, const int64_t *shape) {
  array->ndim = ndim;
  for (int i = 0; i < ndim; i++)
    array->shape[i] = shape[i];
}

/* ---- Properties ---- */

int64_t weir_array_count(const weir_array *array) {
  int64_t count = 1;
  for (int i = 0; i < array->ndim; i++)
    count *= array->shape[i];
  return count;
}

int64_t weir_array_offset(const weir_array *array) {
  if (!array->storage || !array->data)
    return 0;
  return ((char *)array->data - (char *)weir_storage_data(array->storage)) / (int64_t)weir_dtype_size(array->dtype);
}

int weir_array_is_contiguous(const weir_array *array) {
  int64_t stride = 1;
  for (int i = 0; i < array->ndim; i++)
    if (array->shape[i] == 0)
      return 1;
  for (int i = array->ndim - 1; i >= 0; i--) {
    if (array->shape[i] != 1 && array->strides[i] != stride)
      return 0;
    stride *= array->shape[i];
  }
  return 1;
}

bool weir__is_dense(const weir_array *array) {
  bool is_seen[WEIR_ARRAY_MAX_DIMS] = {false};
  int64_t stride = 1;
  for (int round = 0; round < array->ndim; round++) {
    int found = -1;
    for (int i = 0; i < array->ndim; i++)
      if (!is_seen[i] && (array->shape[i] == 1 || array->strides[i] == stride) && (found < 0 || array->shape[i] == 1))
        found = i;
    if (found < 0)
      return false;
    is_seen[found] = true;
    stride *= array->shape[found];
  }
  return true;
}

weir_status weir_array_record_stream(const weir_array *array, weir_stream stream) {
  WEIR__CHECK_ARRAY(array);
  return weir__fail_as(__func__, weir_storage_record_stream(array->storage, stream));
}

/* ---- Creation ---- */

weir_status weir_array_empty(weir_place place, weir_dtype dtype, int ndim, const int64_t *shape, weir_stream stream,
                             weir_array *array) {
  WEIR__CHECK_ARGUMENT(array);
  weir_status status = check_shape(__func__, dtype, ndim, shape);
  if (status)
    return status;
  weir_array made = {.dtype = dtype};
  set_shape(&made, ndim, shape);
  weir__set_contiguous_strides(&made);
  status =
      weir_storage_create(place, (uint64_t)weir_array_count(&made) * weir_dtype_size(dtype), stream, &made.storage);
  if (status)
    return weir__fail_as(__func__, status);
  made.data = weir_storage_data(made.storage);
  made.place = weir_storage_place(made.storage);
  *array = made;
  return WEIR_OK;
}

weir_status weir_array_empty_like(const weir_array *like, weir_stream stream, weir_array *array) {
  WEIR__CHECK_ARRAY(like);
  return weir__fail_as(__func__, weir_array_empty(like->place, like->dtype, like->ndim, like->shape, stream, array));
}

/* Makes an array of a storage, whose reference the array takes over. */
static weir_status place_in_storage(const char *caller, weir_storage *storage, weir_dtype dtype, int64_t offset,
                                    int ndim, const int64_t *shape, const int64_t *strides, weir_array *array) {
  weir_status status = check_shape(caller, dtype, ndim, shape);
  if (status)
    return status;
  int64_t size = (int64_t)weir_dtype_size(dtype), last = offset;
  weir_array made = {.storage = storage, .dtype = dtype, .place = weir_storage_place(storage)};
  set_shape(&made, ndim, shape);
  weir__set_contiguous_strides(&made);
  bool overflows = false;
  for (int i = 0; i < ndim; i++) {
    if (strides)
      made.strides[i] = strides[i];
    if (made.strides[i] < 0)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: as_strided: Negative strides are not supported at the moment, got stride %" PRId64, caller,
                        made.strides[i]);
    int64_t reach = 0;
    if (shape[i] > 1)
      overflows = overflows || __builtin_mul_overflow(made.strides[i], shape[i] - 1, &reach) ||
                  __builtin_add_overflow(last, reach, &last);
  }
  weir__shape_text shape_text, stride_text;
  int64_t end = 0;
  overflows = overflows || __builtin_add_overflow(last, 1, &end) || __builtin_mul_overflow(end, size, &end);
  if (offset < 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Tensor: invalid storage offset %" PRId64, caller, offset);
  if (weir_array_count(&made) && (overflows || (uint64_t)end > weir_storage_bytes(storage)))
    return weir__fail(
        WEIR_ERROR_INVALID_ARGUMENT,
        "%s: setStorage: sizes %s, strides %s, storage offset %" PRId64
        ", and itemsize %d requiring a storage size of %" PRId64 " are out of bounds for storage of size %" PRIu64,
        caller, weir__format_shape(ndim, made.shape, &shape_text), weir__format_shape(ndim, made.strides, &stride_text),
        offset, (int)size, overflows ? -1 : end, weir_storage_bytes(storage));
  char *data = weir_storage_data(storage);
  made.data = data ? data + offset * size : NULL;
  if (data && (uintptr_t)made.data % (uintptr_t)(size > 8 ? 8 : size) != 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the address %p is not aligned for %s", caller, made.data,
                      weir_dtype_name(dtype));
  *array = made;
  return WEIR_OK;
}

weir_status weir_array_in_storage(weir_storage *storage, weir_dtype dtype, int64_t offset, int ndim,
                                  const int64_t *shape, const int64_t *strides, weir_array *array) {
  WEIR__CHECK_ARGUMENT(storage);
  WEIR__CHECK_ARGUMENT(array);
  weir_status status = place_in_storage(__func__, storage, dtype, offset, ndim, shape, strides, array);
  if (!status)
    weir_storage_retain(storage);
  return status;
}

weir_status weir_array_from_memory(void *data, weir_place place, weir_dtype dtype, int ndim, const int64_t *shape,
                                   const int64_t *strides, weir_storage_free_fn deleter, void *context,
                                   weir_array *array) {
  WEIR__CHECK_ARGUMENT(array);
  weir_status status = check_shape(__func__, dtype, ndim, shape);
  if (status)
    return status;
  /* The memory reaches to the last element. */
  int64_t elements = 1, product = 1;
  for (int i = ndim - 1; i >= 0; i--) {
    int64_t reach = 0;
    if (shape[i] == 0)
      elements = INT64_MIN;
    else if (elements > 0 && (__builtin_mul_overflow(strides ? strides[i] : product, shape[i] - 1, &reach) ||
                              __builtin_add_overflow(elements, reach, &elements)))
      elements = INT64_MAX / 16;
    product *= shape[i] ? shape[i] : 1;
  }
  weir_storage *storage;
  status = weir_storage_borrow(data, elements > 0 ? (uint64_t)elements * weir_dtype_size(dtype) : 0, place, NULL, NULL,
                               &storage);
  if (!status)
    status = place_in_storage(__func__, storage, dtype, 0, ndim, shape, strides, array);
  else
    return weir__fail_as(__func__, status);
  if (status)
    weir_storage_release(storage);
  else
    weir__storage_set_deleter(storage, deleter, context);
  return status;
}

void weir_array_release(weir_array *array) {
  if (!array)
    return;
  weir_storage_release(array->storage);
  *array = (weir_array){0};
}

weir_status weir_array_share(const weir_array *array, weir_array *other) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(other);
  weir_storage_retain(array->storage);
  *other = *array;
  return WEIR_OK;
}

/* ---- Views ---- */

/* Returns a view. It has a reference of its own, unless it replaces the array. */
static weir_status return_view(const weir_array *array, const weir_array *made, weir_array *view) {
  if (array != view)
    weir_storage_retain(made->storage);
  *view = *made;
  return WEIR_OK;
}

/* Replaces -1 by what the number of elements requires. */
static weir_status infer_shape(const char *caller, const weir_array *array, int ndim, const int64_t *shape,
                               int64_t *inferred) {
  weir__shape_text text;
  int64_t count = weir_array_count(array), known = 1;
  int missing = -1;
  if (ndim < 0 || ndim > WEIR_ARRAY_MAX_DIMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %d dimensions; expected 0 to %d", caller, ndim,
                      WEIR_ARRAY_MAX_DIMS);
  bool overflows = false;
  for (int i = 0; i < ndim; i++) {
    inferred[i] = shape[i];
    if (shape[i] == -1 && missing < 0)
      missing = i;
    else if (shape[i] == -1)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: only one dimension can be inferred", caller);
    else if (shape[i] < 0)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: invalid shape dimension %" PRId64, caller, shape[i]);
    else
      overflows = overflows || __builtin_mul_overflow(known, shape[i], &known);
  }
  if (missing >= 0 && known == 0 && !overflows)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: cannot reshape tensor of 0 elements into shape %s because the unspecified dimension size -1 "
                      "can be any value and is ambiguous",
                      caller, weir__format_shape(ndim, shape, &text));
  if (!overflows && missing >= 0 && count % known == 0) {
    inferred[missing] = count / known;
    return WEIR_OK;
  }
  if (overflows || missing >= 0 || known != count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: shape '%s' is invalid for input of size %" PRId64, caller,
                      weir__format_shape(ndim, shape, &text), count);
  return WEIR_OK;
}

/* The strides of a view of another shape with as many elements. Dimensions of the array that are contiguous among
 * themselves form a chunk, and each chunk must be covered by whole dimensions of the view. */
static bool find_strides(const weir_array *array, int ndim, const int64_t *shape, int64_t *strides) {
  int to = ndim - 1;
  if (weir_array_count(array) == 0) {
    for (int64_t i = ndim - 1, stride = 1; i >= 0; i--) {
      strides[i] = stride;
      stride *= shape[i] > 1 ? shape[i] : 1;
    }
    return true;
  }
  int64_t base = array->ndim ? array->strides[array->ndim - 1] : 1, chunk = 1;
  for (int from = array->ndim - 1; from >= 0; from--) {
    chunk *= array->shape[from];
    bool ends = from == 0 || (array->shape[from - 1] != 1 && array->strides[from - 1] != chunk * base);
    if (!ends)
      continue;
    int64_t covered = 1;
    while (to >= 0 && (covered < chunk || shape[to] == 1)) {
      strides[to] = covered * base;
      covered *= shape[to--];
    }
    if (covered != chunk)
      return false;
    if (from > 0) {
      base = array->strides[from - 1];
      chunk = 1;
    }
  }
  for (; to >= 0; to--) /* an array without dimensions */
    strides[to] = 1;
  return true;
}

weir_status weir_array_view(const weir_array *array, int ndim, const int64_t *shape, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  weir_array made = *array;
  int64_t strides[WEIR_ARRAY_MAX_DIMS];
  weir_status status = infer_shape(__func__, array, ndim, shape, made.shape);
  if (status)
    return status;
  if (!find_strides(array, ndim, made.shape, strides))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: view size is not compatible with input tensor's size and stride (at least one dimension "
                      "spans across two contiguous subspaces). Use .reshape(...) instead.",
                      __func__);
  made.ndim = ndim;
  memcpy(made.strides, strides, sizeof strides);
  return return_view(array, &made, view);
}

weir_status weir_array_view_dtype(const weir_array *array, weir_dtype dtype, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  int64_t from = (int64_t)weir_dtype_size(array->dtype), to = (int64_t)weir_dtype_size(dtype);
  weir_array made = *array;
  int last = array->ndim - 1;
  if (!to)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: dtype is %d, which is not a type", __func__, (int)dtype);
  made.dtype = dtype;
  if (from != to && last < 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: self.dim() cannot be 0 to view %s as %s (different element sizes)", __func__,
                      weir_dtype_title(array->dtype), weir_dtype_title(dtype));
  if (from != to && array->strides[last] != 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: self.stride(-1) must be 1 to view %s as %s (different element sizes), but got %" PRId64,
                      __func__, weir_dtype_title(array->dtype), weir_dtype_title(dtype), array->strides[last]);
  if (from > to) {
    made.shape[last] *= from / to;
    for (int i = 0; i < last; i++)
      made.strides[i] *= from / to;
  } else if (from < to) {
    int64_t ratio = to / from;
    bool fits = array->shape[last] % ratio == 0 && weir_array_offset(array) % ratio == 0 &&
                (uintptr_t)array->data % (uintptr_t)(to > 8 ? 8 : to) == 0;
    made.shape[last] /= ratio;
    for (int i = 0; i < last; i++) {
      fits = fits && made.strides[i] % ratio == 0;
      made.strides[i] /= ratio;
    }
    if (!fits)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: the last size, the strides and the offset must be divisible by %" PRId64
                        " to view %s as %s (different element sizes)",
                        __func__, ratio, weir_dtype_title(array->dtype), weir_dtype_title(dtype));
  }
  return return_view(array, &made, view);
}

weir_status weir_array_transpose(const weir_array *array, int dim0, int dim1, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  int a = 0, b = 0;
  weir_status status = weir__check_dim(__func__, dim0, array->ndim, &a);
  if (!status)
    status = weir__check_dim(__func__, dim1, array->ndim, &b);
  if (status)
    return status;
  weir_array made = *array;
  made.shape[a] = array->shape[b];
  made.shape[b] = array->shape[a];
  made.strides[a] = array->strides[b];
  made.strides[b] = array->strides[a];
  return return_view(array, &made, view);
}

weir_status weir_array_permute(const weir_array *array, const int *dims, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  if (array->ndim)
    WEIR__CHECK_ARGUMENT(dims);
  weir_array made = *array;
  unsigned seen = 0;
  for (int i = 0; i < array->ndim; i++) {
    int from = 0;
    weir_status status = weir__check_dim(__func__, dims[i], array->ndim, &from);
    if (status)
      return status;
    if (seen & 1u << from)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: permute(): duplicate dims are not allowed.", __func__);
    seen |= 1u << from;
    made.shape[i] = array->shape[from];
    made.strides[i] = array->strides[from];
  }
  return return_view(array, &made, view);
}

static void *element_at(const weir_array *array, int dim, int64_t index) {
  char *data = array->data;
  return data ? data + index * array->strides[dim] * (int64_t)weir_dtype_size(array->dtype) : NULL;
}

static int64_t clamp(int64_t value, int64_t size) {
  if (value < 0)
    value += size;
  return value < 0 ? 0 : value > size ? size : value;
}

weir_status weir_array_slice(const weir_array *array, int dim, int64_t start, int64_t stop, int64_t step,
                             weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  if (array->ndim == 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: slice() cannot be applied to a 0-dim tensor.", __func__);
  weir_status status = weir__check_dim(__func__, dim, array->ndim, &dim);
  if (status)
    return status;
  if (step <= 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: slice step must be positive", __func__);
  weir_array made = *array;
  int64_t size = array->shape[dim];
  start = clamp(start, size);
  stop = clamp(stop, size);
  if (stop < start)
    stop = start;
  made.shape[dim] = (stop - start) / step + ((stop - start) % step != 0);
  int64_t offset; /* the view of nothing begins there too; its stride may be any number */
  if (made.data && !__builtin_mul_overflow(array->strides[dim], start, &offset))
    made.data = element_at(array, dim, start);
  if (__builtin_mul_overflow(array->strides[dim], step, &made.strides[dim]))
    made.strides[dim] = 0; /* there is one element */
  return return_view(array, &made, view);
}

static void remove_dim(weir_array *array, int dim) {
  array->ndim--;
  for (int i = dim; i < array->ndim; i++) {
    array->shape[i] = array->shape[i + 1];
    array->strides[i] = array->strides[i + 1];
  }
}

weir_status weir_array_select(const weir_array *array, int dim, int64_t index, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  if (array->ndim == 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: select() cannot be applied to a 0-dim tensor.", __func__);
  weir_status status = weir__check_dim(__func__, dim, array->ndim, &dim);
  if (status)
    return status;
  int64_t size = array->shape[dim];
  if (index < -size || index >= size)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: index %" PRId64 " is out of bounds for dimension %d with size %" PRId64, __func__, index,
                      dim, size);
  weir_array made = *array;
  made.data = element_at(array, dim, index < 0 ? index + size : index);
  remove_dim(&made, dim);
  return return_view(array, &made, view);
}

weir_status weir_array_expand(const weir_array *array, int ndim, const int64_t *shape, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  weir__shape_text asked, given;
  if (ndim < array->ndim || ndim > WEIR_ARRAY_MAX_DIMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: expand(%s, size=%s): the number of sizes provided (%d) must be greater or equal to the "
                      "number of dimensions in the tensor (%d)",
                      __func__, weir__format_shape(array->ndim, array->shape, &given),
                      weir__format_shape(ndim < 0 || ndim > WEIR_ARRAY_MAX_DIMS ? 0 : ndim, shape, &asked), ndim,
                      array->ndim);
  weir_array made = *array;
  made.ndim = ndim;
  for (int i = 0; i < ndim; i++) {
    int from = i - (ndim - array->ndim);
    int64_t size = shape[i];
    if (size == -1 && from >= 0)
      size = array->shape[from];
    if (size < 0)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: The expanded size of the tensor (%" PRId64 ") isn't allowed in a leading, non-existing "
                        "dimension %d",
                        __func__, size, i);
    made.shape[i] = size;
    made.strides[i] = from < 0 || (array->shape[from] == 1 && size != 1) ? 0 : array->strides[from];
    if (from >= 0 && size != array->shape[from] && array->shape[from] != 1)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: The expanded size of the tensor (%" PRId64 ") must match the existing size (%" PRId64
                        ") at non-singleton dimension %d.  Target sizes: %s.  Tensor sizes: %s",
                        __func__, size, array->shape[from], i, weir__format_shape(ndim, shape, &asked),
                        weir__format_shape(array->ndim, array->shape, &given));
  }
  return return_view(array, &made, view);
}

weir_status weir_array_squeeze(const weir_array *array, int dim, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  weir_status status = weir__check_dim(__func__, dim, array->ndim, &dim);
  if (status)
    return status;
  weir_array made = *array;
  if (made.ndim && made.shape[dim] == 1)
    remove_dim(&made, dim);
  return return_view(array, &made, view);
}

weir_status weir_array_squeeze_all(const weir_array *array, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  weir_array made = *array;
  for (int i = made.ndim - 1; i >= 0; i--)
    if (made.shape[i] == 1)
      remove_dim(&made, i);
  return return_view(array, &made, view);
}

weir_status weir_array_unsqueeze(const weir_array *array, int dim, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  if (array->ndim == WEIR_ARRAY_MAX_DIMS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the array has %d dimensions, which is the most that is possible", __func__, array->ndim);
  weir_status status = weir__check_dim(__func__, dim, array->ndim + 1, &dim);
  if (status)
    return status;
  weir_array made = *array;
  made.ndim++;
  for (int i = made.ndim - 1; i > dim; i--) {
    made.shape[i] = array->shape[i - 1];
    made.strides[i] = array->strides[i - 1];
  }
  made.shape[dim] = 1;
  made.strides[dim] = dim < array->ndim ? array->shape[dim] * array->strides[dim] : 1;
  return return_view(array, &made, view);
}

weir_status weir_array_as_strided(const weir_array *array, int64_t offset, int ndim, const int64_t *shape,
                                  const int64_t *strides, weir_array *view) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(view);
  weir_array made = {0};
  weir_status status = place_in_storage(__func__, array->storage, array->dtype, offset, ndim, shape, strides, &made);
  return status ? status : return_view(array, &made, view);
}

/* ---- Views or copies ---- */

static weir_status copy_contiguous(const char *caller, const weir_array *array, weir_stream stream,
                                   weir_array *result) {
  return weir__fail_as(caller, weir_array_to(array, array->place, array->dtype, stream, 0, result));
}

weir_status weir_array_reshape(const weir_array *array, int ndim, const int64_t *shape, weir_stream stream,
                               weir_array *result) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(result);
  int64_t inferred[WEIR_ARRAY_MAX_DIMS] = {0}, strides[WEIR_ARRAY_MAX_DIMS];
  weir_status status = infer_shape(__func__, array, ndim, shape, inferred);
  if (status)
    return status;
  if (find_strides(array, ndim, inferred, strides))
    return weir__fail_as(__func__, weir_array_view(array, ndim, inferred, result));
  weir_array copy = {0};
  status = copy_contiguous(__func__, array, stream, &copy);
  if (status)
    return status;
  set_shape(&copy, ndim, inferred);
  weir__set_contiguous_strides(&copy);
  if (array == result)
    weir_array_release(result);
  *result = copy;
  return WEIR_OK;
}

weir_status weir_array_contiguous(const weir_array *array, weir_stream stream, weir_array *result) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(result);
  if (weir_array_is_contiguous(array)) {
    weir_array same = *array;
    return return_view(array, &same, result);
  }
  weir_array copy = {0};
  weir_status status = copy_contiguous(__func__, array, stream, &copy);
  if (status)
    return status;
  if (array == result)
    weir_array_release(result);
  *result = copy;
  return WEIR_OK;
}

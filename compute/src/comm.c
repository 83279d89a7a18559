/*
 * Copies and sums of arrays between devices. weir_array_copy orders the streams of two devices by events.
 */
#include "weir/compute/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/array.h"
#include "weir/device.h"

/* ---- Helpers ---- */

/* -1 for the host. */
static int device_of(const weir_array *array) { return weir__is_host(array) ? -1 : array->place.device; }

static bool has_same_shape(const weir_array *a, const weir_array *b) {
  return a->ndim == b->ndim && !memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape);
}

static weir_status check_arrays(const char *caller, const weir_array *arrays, int count, const char *name) {
  char text[64];
  if (count > 0 && !arrays)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL", caller, name);
  for (int i = 0; i < count; i++) {
    snprintf(text, sizeof text, "%s[%d]", name, i);
    weir_status status = weir__array_check(caller, &arrays[i], text);
    if (status)
      return status;
  }
  return WEIR_OK;
}

static weir_status check_results(const char *caller, const weir_array *results, int count) {
  if (count > 0 && !results)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: results is NULL", caller);
  for (int i = 0; i < count; i++)
    if (weir__has_array(&results[i]))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: results[%d] is an array already; expected {0}", caller, i);
  return WEIR_OK;
}

static weir_status check_devices(const char *caller, const int *devices, int count) {
  if (count > 0 && !devices)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: devices is NULL", caller);
  for (int i = 0; i < count; i++)
    if (devices[i] < 0)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected non-negative device index, but got %d", caller,
                        devices[i]);
  return WEIR_OK;
}

static weir_status check_on_device(const char *caller, const weir_array *array, const char *what, int index) {
  char place[32];
  if (!weir__is_host(array))
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected all %s at index %d has device '%s'", caller, what, index,
                    weir__format_place(array->place, place));
}
#define OUTPUT_TENSOR "output tensors to be CUDA tensors, but output tensor"
#define INPUT_TENSOR "input tensors to be CUDA tensors, but tensor"

static weir_status release_on_failure(const char *caller, weir_status status, weir_array *results, int count) {
  for (int i = 0; status && i < count; i++)
    weir_array_release(&results[i]);
  return weir__fail_as(caller, status);
}

/* The current stream of the device that has the array; for the host, any stream. */
static weir_status current_stream_of(const weir_array *array, weir_stream *stream) {
  return weir_stream_get_current(device_of(array), stream);
}

/* Copies on the current streams, or on `stream` of the destination. A destination on the host is complete when this
 * returns. */
static weir_status copy(weir_array *to, const weir_array *from, const weir_stream *stream) {
  weir_stream used;
  weir_status status = stream ? WEIR_OK : current_stream_of(weir__is_host(to) ? from : to, &used);
  if (stream)
    used = *stream;
  return status ? status : weir_array_copy(to, from, used, !weir__is_host(to));
}

/* A copy on a device, on its current stream or on `stream`. */
static weir_status copy_to(const weir_array *array, int device, const weir_stream *stream, weir_array *result) {
  weir_stream used;
  weir_status status = stream ? WEIR_OK : weir_stream_get_current(device, &used);
  if (stream)
    used = *stream;
  if (!status)
    status = weir_array_empty(weir_place_device(device), array->dtype, array->ndim, array->shape, used, result);
  if (!status) {
    status = copy(result, array, &used);
    if (status)
      weir_array_release(result);
  }
  return status;
}

/* ---- Broadcast ---- */

static weir_status broadcast(const weir_array *array, const int *devices, int count, weir_array *results) {
  weir_status status = WEIR_OK;
  for (int i = 0; i < count && !status; i++)
    status = devices[i] == device_of(array) ? weir_array_share(array, &results[i])
                                            : copy_to(array, devices[i], NULL, &results[i]);
  return status;
}

weir_status weir_comm_broadcast(const weir_array *array, const int *devices, int count, weir_array *results) {
  weir_status status = check_arrays(__func__, array, 1, "array");
  if (!status)
    status = check_devices(__func__, devices, count);
  if (!status)
    status = check_results(__func__, results, count);
  if (status)
    return status;
  return release_on_failure(__func__, broadcast(array, devices, count, results), results, count);
}

weir_status weir_comm_broadcast_out(const weir_array *array, weir_array *outs, int count) {
  weir__shape_text source, found;
  weir_status status = check_arrays(__func__, array, 1, "array");
  if (!status)
    status = check_arrays(__func__, outs, count, "outs");
  for (int i = 0; i < count && !status; i++) {
    status = check_on_device(__func__, &outs[i], OUTPUT_TENSOR, i);
    if (!status && !has_same_shape(array, &outs[i]))
      status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                          "%s: Expected all output tensors to have same shape as the source tensor %s, but output "
                          "tensor at index %d has shape %s",
                          __func__, weir__format_shape(array->ndim, array->shape, &source), i,
                          weir__format_shape(outs[i].ndim, outs[i].shape, &found));
  }
  for (int i = 0; i < count && !status; i++)
    status = copy(&outs[i], array, NULL);
  return weir__fail_as(__func__, status);
}

/* ---- Buffers ---- */

/* Indices of arrays of one type that are put together. */
typedef struct chunk {
  int *members, count;
  int64_t elements;
} chunk;

/* The next arrays of a type, until their size reaches the limit; false if none are left. */
static bool next_chunk(const weir_array *arrays, int count, size_t limit, bool *is_done, chunk *c) {
  uint64_t bytes = 0;
  weir_dtype dtype = (weir_dtype)0;
  c->count = 0;
  c->elements = 0;
  for (int i = 0; i < count && (!c->count || bytes < limit); i++) {
    if (is_done[i] || (c->count && arrays[i].dtype != dtype))
      continue;
    dtype = arrays[i].dtype;
    is_done[i] = true;
    c->members[c->count++] = i;
    c->elements += weir_array_count(&arrays[i]);
    bytes += (uint64_t)weir_array_count(&arrays[i]) * weir_dtype_size(arrays[i].dtype);
  }
  return c->count > 0;
}

/* Elements [at, at + count) of a buffer in the shape of an array. */
static weir_status part_of(const weir_array *flat, int64_t at, const weir_array *like, weir_array *part) {
  weir_array slice = {0};
  weir_status status = weir_array_slice(flat, 0, at, at + weir_array_count(like), 1, &slice);
  if (!status)
    status = weir_array_view(&slice, like->ndim, like->shape, part);
  weir_array_release(&slice);
  return status;
}

/* All elements of the members one after the other. */
static weir_status flatten(const weir_array *arrays, const chunk *c, weir_array *flat) {
  const weir_array *first = &arrays[c->members[0]];
  weir_stream stream;
  int64_t at = 0;
  weir_status status = current_stream_of(first, &stream);
  if (!status)
    status = weir_array_empty(first->place, first->dtype, 1, &c->elements, stream, flat);
  for (int i = 0; i < c->count && !status; i++) {
    const weir_array *array = &arrays[c->members[i]];
    weir_array part = {0};
    status = part_of(flat, at, array, &part);
    if (!status)
      status = copy(&part, array, &stream);
    weir_array_release(&part);
    at += weir_array_count(array);
  }
  if (status)
    weir_array_release(flat);
  return status;
}

static weir_status unflatten(const weir_array *flat, const weir_array *like, const chunk *c, weir_array *results) {
  int64_t at = 0;
  weir_status status = WEIR_OK;
  for (int i = 0; i < c->count && !status; i++) {
    status = part_of(flat, at, &like[c->members[i]], &results[c->members[i]]);
    at += weir_array_count(&like[c->members[i]]);
  }
  return status;
}

/* Memory for walking over the chunks of a number of arrays. */
static weir_status begin_chunks(const char *caller, int count, bool **is_done, chunk *c) {
  *is_done = calloc((size_t)count + 1, sizeof **is_done);
  *c = (chunk){.members = calloc((size_t)count + 1, sizeof *c->members)};
  if (*is_done && c->members)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a list of %d arrays", caller, count);
}

static weir_status broadcast_chunk(const weir_array *arrays, int count, const int *devices, int device_count,
                                   const chunk *c, weir_array *results) {
  weir_array flat = {0};
  weir_status status = flatten(arrays, c, &flat);
  for (int d = 1; d < device_count && !status; d++) {
    weir_array there = {0};
    status = broadcast(&flat, &devices[d], 1, &there);
    if (!status)
      status = unflatten(&there, arrays, c, results + (size_t)d * (size_t)count);
    weir_array_release(&there);
  }
  weir_array_release(&flat);
  return status;
}

weir_status weir_comm_broadcast_coalesced(const weir_array *arrays, int array_count, const int *devices,
                                          int device_count, size_t buffer_bytes, weir_array *results) {
  weir_status status = check_arrays(__func__, arrays, array_count, "arrays");
  if (!status && device_count < 1)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected at least one device to broadcast to", __func__);
  if (!status)
    status = check_devices(__func__, devices, device_count);
  int result_count = array_count > 0 ? array_count * device_count : 0;
  if (!status)
    status = check_results(__func__, results, result_count);
  for (int i = 0; i < array_count && !status; i++)
    if (device_of(&arrays[i]) != devices[0])
      status =
          weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: All tensors must be on devices[0]: %d", __func__, devices[0]);
  if (status || !result_count)
    return status;
  bool *is_done;
  chunk c;
  status = begin_chunks(__func__, array_count, &is_done, &c);
  for (int i = 0; i < array_count && !status; i++)
    status = weir_array_share(&arrays[i], &results[i]);
  while (!status && device_count > 1 && next_chunk(arrays, array_count, buffer_bytes, is_done, &c))
    status = broadcast_chunk(arrays, array_count, devices, device_count, &c, results);
  free(is_done);
  free(c.members);
  return release_on_failure(__func__, status, results, result_count);
}

/* ---- Scatter ---- */

static weir_status check_scatter_stream(const char *caller, const weir_stream *const *streams, int index, int device) {
  if (!streams || !streams[index] || streams[index]->device == device)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                    "%s: Expected the device associated with the stream at index %d (was %d) to match the device "
                    "supplied at that index (expected %d)",
                    caller, index, streams[index]->device, device);
}

static weir_status check_scatter_dim(const char *caller, const weir_array *array, int dim, int *found) {
  if (array->ndim == 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: chunk expects at least a 1-dimensional tensor", caller);
  return weir__check_dim(caller, dim, array->ndim, found);
}

static weir_status check_chunk_sizes(const char *caller, const weir_array *array, int dim, const int64_t *sizes,
                                     int count) {
  int64_t left = array->shape[dim];
  bool is_negative = false, is_too_much = false;
  weir__shape_text text;
  for (int i = 0; i < count; i++) {
    is_negative = is_negative || sizes[i] < 0;
    is_too_much = is_too_much || sizes[i] > left;
    if (!is_negative && !is_too_much)
      left -= sizes[i];
  }
  const char *list = weir__format_shape(count < WEIR_ARRAY_MAX_DIMS ? count : WEIR_ARRAY_MAX_DIMS, sizes, &text);
  if (is_negative)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: split_with_sizes expects split_sizes have only non-negative entries, but got split_sizes=%s",
                      caller, list);
  if (is_too_much || left)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: split_with_sizes expects split_sizes to sum exactly to %" PRId64
                      " (input tensor's size at dimension %d), but got split_sizes=%s",
                      caller, array->shape[dim], dim, list);
  return WEIR_OK;
}

/* The size of piece `index` as torch.chunk has it; -1 behind the last. */
static int64_t chunk_size(int64_t size, int count, int index) {
  int64_t each = (size + count - 1) / count, at = (int64_t)index * each;
  if (!size)
    return 0;
  return at >= size ? -1 : size - at < each ? size - at : each;
}

weir_status weir_comm_scatter(const weir_array *array, const int *devices, int count, const int64_t *chunk_sizes,
                              int dim, const weir_stream *const *streams, weir_array *results, int *result_count) {
  WEIR__CHECK_ARGUMENT(result_count);
  weir_status status = check_arrays(__func__, array, 1, "array");
  if (!status && count < 1)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected at least one device to scatter to", __func__);
  if (!status)
    status = check_devices(__func__, devices, count);
  if (!status)
    status = check_results(__func__, results, count);
  if (!status)
    status = check_scatter_dim(__func__, array, dim, &dim);
  if (!status && chunk_sizes)
    status = check_chunk_sizes(__func__, array, dim, chunk_sizes, count);
  for (int i = 0; i < count && !status; i++)
    if (devices[i] != device_of(array))
      status = check_scatter_stream(__func__, streams, i, devices[i]);
  if (status)
    return status;
  int64_t at = 0;
  int made = 0;
  for (; made < count && !status; made++) {
    int64_t size = chunk_sizes ? chunk_sizes[made] : chunk_size(array->shape[dim], count, made);
    if (size < 0)
      break;
    weir_array piece = {0};
    status = weir_array_slice(array, dim, at, at + size, 1, &piece);
    if (!status)
      status = devices[made] == device_of(array)
                   ? weir_array_share(&piece, &results[made])
                   : copy_to(&piece, devices[made], streams ? streams[made] : NULL, &results[made]);
    weir_array_release(&piece);
    at += size;
  }
  if (!status)
    *result_count = made;
  return release_on_failure(__func__, status, results, count);
}

static weir_status check_scatter_out(const char *caller, const weir_array *array, const weir_array *out, int index,
                                     int dim) {
  weir__shape_text source, found;
  weir_status status = check_on_device(caller, out, OUTPUT_TENSOR, index);
  bool is_same = out->ndim == array->ndim;
  for (int i = 0; i < array->ndim && is_same; i++)
    is_same = i == dim || out->shape[i] == array->shape[i];
  if (!status && !is_same)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: Output tensor at index %d has incorrect shape: %s. Expected same shape except for scatter "
                        "dim %d as the source tensor: %s",
                        caller, index, weir__format_shape(out->ndim, out->shape, &found), dim,
                        weir__format_shape(array->ndim, array->shape, &source));
  return status;
}

weir_status weir_comm_scatter_out(const weir_array *array, weir_array *outs, int count, int dim,
                                  const weir_stream *const *streams) {
  weir_status status = check_arrays(__func__, array, 1, "array");
  if (!status && count < 1)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected at least one output tensor to scatter to", __func__);
  if (!status)
    status = check_arrays(__func__, outs, count, "outs");
  if (!status)
    status = check_scatter_dim(__func__, array, dim, &dim);
  int64_t total = 0;
  for (int i = 0; i < count && !status; i++) {
    status = check_scatter_out(__func__, array, &outs[i], i, dim);
    if (!status)
      total += outs[i].shape[dim];
  }
  if (!status && total != array->shape[dim])
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: Total size for output tensors along scatter dim %d does not match the source tensor size "
                        "at dim %d. Expected %" PRId64 ", but got total size %" PRId64,
                        __func__, dim, dim, array->shape[dim], total);
  for (int i = 0; i < count && !status; i++)
    status = check_scatter_stream(__func__, streams, i, outs[i].place.device);
  int64_t at = 0;
  for (int i = 0; i < count && !status; i++) {
    weir_array piece = {0};
    status = weir_array_slice(array, dim, at, at + outs[i].shape[dim], 1, &piece);
    if (!status)
      status = copy(&outs[i], &piece, streams ? streams[i] : NULL);
    weir_array_release(&piece);
    at += outs[i].shape[dim];
  }
  return weir__fail_as(__func__, status);
}

/* ---- Gather ---- */

/* Checks the arrays, and sets the shape of the result, whose number of dimensions is that of the first. */
static weir_status check_gather(const char *caller, const weir_array *arrays, int count, int *dim, int64_t *shape) {
  weir_status status = check_arrays(caller, arrays, count, "arrays");
  if (!status && count < 1)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected at least one tensor to gather from", caller);
  if (!status && arrays[0].ndim == 0)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: zero-dimensional tensors cannot be gathered", caller);
  if (!status)
    status = weir__check_dim(caller, *dim, arrays[0].ndim, dim);
  if (status)
    return status;
  int64_t total = 0;
  memcpy(shape, arrays[0].shape, (size_t)arrays[0].ndim * sizeof *shape);
  for (int i = 0; i < count; i++) {
    const weir_array *array = &arrays[i];
    weir__shape_text found, expected;
    status = check_on_device(caller, array, INPUT_TENSOR, i);
    if (status)
      return status;
    if (array->ndim != arrays[0].ndim)
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: Expected all input tensors to have the same number of dimensions, but tensor at index %d "
                        "has %d dimensions, (expected %d)",
                        caller, i, array->ndim, arrays[0].ndim);
    shape[*dim] = array->shape[*dim];
    if (memcmp(shape, array->shape, (size_t)array->ndim * sizeof *shape) != 0)
      return weir__fail(
          WEIR_ERROR_INVALID_ARGUMENT, "%s: Input tensor at index %d has invalid shape %s, but expected %s", caller, i,
          weir__format_shape(array->ndim, array->shape, &found), weir__format_shape(array->ndim, shape, &expected));
    total += array->shape[*dim];
  }
  shape[*dim] = total;
  return WEIR_OK;
}

static weir_status gather_into(const weir_array *arrays, int count, int dim, const weir_array *out) {
  weir_status status = WEIR_OK;
  int64_t at = 0;
  for (int i = 0; i < count && !status; i++) {
    weir_array piece = {0};
    status = weir_array_slice(out, dim, at, at + arrays[i].shape[dim], 1, &piece);
    if (!status)
      status = copy(&piece, &arrays[i], NULL);
    weir_array_release(&piece);
    at += arrays[i].shape[dim];
  }
  return status;
}

weir_status weir_comm_gather(const weir_array *arrays, int count, int dim, weir_place destination, weir_array *result) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  weir_stream stream;
  weir_status status = check_gather(__func__, arrays, count, &dim, shape);
  if (!status)
    status = check_results(__func__, result, 1);
  if (!status && destination.kind == WEIR_PLACE_DEVICE && destination.device < 0)
    status = weir_device_get_current(&destination.device);
  if (!status)
    status = weir_stream_get_current(destination.kind == WEIR_PLACE_DEVICE ? destination.device : -1, &stream);
  if (status)
    return weir__fail_as(__func__, status);
  status = weir_array_empty(destination, arrays[0].dtype, arrays[0].ndim, shape, stream, result);
  if (!status)
    status = gather_into(arrays, count, dim, result);
  return release_on_failure(__func__, status, result, 1);
}

weir_status weir_comm_gather_out(const weir_array *arrays, int count, int dim, weir_array *out) {
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  weir__shape_text expected, found;
  weir_status status = check_gather(__func__, arrays, count, &dim, shape);
  if (!status)
    status = check_arrays(__func__, out, 1, "out");
  if (!status && (out->ndim != arrays[0].ndim || memcmp(out->shape, shape, (size_t)out->ndim * sizeof *shape) != 0))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected out tensor to have shape %s, but got %s", __func__,
                        weir__format_shape(arrays[0].ndim, shape, &expected),
                        weir__format_shape(out->ndim, out->shape, &found));
  if (!status)
    status = gather_into(arrays, count, dim, out);
  return weir__fail_as(__func__, status);
}

/* ---- Sums ---- */

/* "2x3". */
static void format_size(const weir_array *array, char *text, size_t size) {
  size_t at = 0;
  *text = 0;
  for (int i = 0; i < array->ndim && at < size; i++)
    at += (size_t)snprintf(text + at, size - at, "%s%" PRId64, i ? "x" : "", array->shape[i]);
}

/* `root` is the index of the array on the destination, the last one if there are several. */
static weir_status check_sum(const char *caller, const weir_array *arrays, int count, int destination, int *root) {
  *root = -1;
  if (count < 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected at least one tensor to add", caller);
  for (int i = 0; i < count; i++) {
    if (weir__is_host(&arrays[i]))
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                        "%s: reduce_add expects all inputs to be on GPUs, but input %d is on CPU", caller, i);
    if (arrays[i].place.device == destination)
      *root = i;
    if (!has_same_shape(&arrays[i], &arrays[0])) {
      char got[256], expected[256];
      format_size(&arrays[i], got, sizeof got);
      format_size(&arrays[0], expected, sizeof expected);
      return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: input %d has invalid size: got %s, but expected %s", caller,
                        i, got, expected);
    }
  }
  return *root < 0
             ? weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                          "%s: reduce_add expects destination to be on the same GPU with one of the tensors", caller)
             : WEIR_OK;
}

static weir_status add_all(const weir_array *arrays, int count, int root, weir_array *result) {
  const weir_array *so_far = &arrays[root];
  int device = so_far->place.device;
  weir_stream stream;
  if (count == 1)
    return weir_array_share(so_far, result);
  weir_status status = weir_stream_get_current(device, &stream);
  for (int i = 0; i < count && !status; i++) {
    if (i == root)
      continue;
    weir_array there = {0};
    status = arrays[i].place.device == device ? weir_array_share(&arrays[i], &there)
                                              : copy_to(&arrays[i], device, &stream, &there);
    if (!status)
      status = weir_array_binary(WEIR_BINARY_ADD, so_far, &there, stream, result);
    weir_array_release(&there);
    so_far = result;
  }
  return status;
}

static weir_status get_destination(const char *caller, int *destination) {
  return *destination >= 0 ? WEIR_OK : weir__fail_as(caller, weir_device_get_current(destination));
}

weir_status weir_comm_reduce_add(const weir_array *arrays, int count, int destination, weir_array *result) {
  int root;
  weir_status status = check_arrays(__func__, arrays, count, "arrays");
  if (!status)
    status = check_results(__func__, result, 1);
  if (!status)
    status = get_destination(__func__, &destination);
  if (!status)
    status = check_sum(__func__, arrays, count, destination, &root);
  if (status)
    return status;
  return release_on_failure(__func__, add_all(arrays, count, root, result), result, 1);
}

/* Adds the members of a chunk of all inputs. `flats` has room for one array of each input. */
static weir_status add_chunk(const char *caller, const weir_array *inputs, int input_count, int array_count,
                             int destination, const chunk *c, weir_array *flats, weir_array *results) {
  weir_status status = WEIR_OK;
  int root;
  for (int k = 0; k < input_count && !status; k++) {
    chunk own = *c;
    const weir_array *arrays = inputs + (size_t)k * (size_t)array_count;
    own.elements = 0;
    for (int i = 0; i < c->count && !status; i++) {
      own.elements += weir_array_count(&arrays[c->members[i]]);
      if (arrays[c->members[i]].dtype != inputs[c->members[i]].dtype ||
          !has_same_shape(&arrays[c->members[i]], &inputs[c->members[i]]))
        status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                            "%s: tensor %d of input %d differs in size or type from that of input 0", caller,
                            c->members[i], k);
    }
    if (!status)
      status = flatten(arrays, &own, &flats[k]);
  }
  if (!status)
    status = check_sum(caller, flats, input_count, destination, &root);
  weir_array sum = {0};
  if (!status)
    status = add_all(flats, input_count, root, &sum);
  if (!status)
    status = unflatten(&sum, inputs, c, results);
  weir_array_release(&sum);
  for (int k = 0; k < input_count; k++)
    weir_array_release(&flats[k]);
  return status;
}

weir_status weir_comm_reduce_add_coalesced(const weir_array *inputs, int input_count, int array_count, int destination,
                                           size_t buffer_bytes, weir_array *results) {
  weir_status status = WEIR_OK;
  if (input_count < 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: Expected at least one tensor to add", __func__);
  status = check_arrays(__func__, inputs, array_count > 0 ? input_count * array_count : 0, "inputs");
  if (!status)
    status = check_results(__func__, results, array_count);
  for (int i = 0; i < input_count * array_count && !status; i++)
    if (weir__is_host(&inputs[i]))
      status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                          "%s: reduce_add expects all inputs to be on GPUs, but input %d is on CPU", __func__,
                          i / array_count);
  if (!status)
    status = get_destination(__func__, &destination);
  if (status || array_count < 1)
    return status;
  bool *is_done;
  chunk c;
  weir_array *flats = calloc((size_t)input_count, sizeof *flats);
  status = begin_chunks(__func__, array_count, &is_done, &c);
  if (!status && !flats)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for %d inputs", __func__, input_count);
  while (!status && next_chunk(inputs, array_count, buffer_bytes, is_done, &c))
    status = add_chunk(__func__, inputs, input_count, array_count, destination, &c, flats, results);
  free(is_done);
  free(c.members);
  free(flats);
  return release_on_failure(__func__, status, results, array_count);
}

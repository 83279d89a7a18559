/*
 * Copies between any two places, types and strides.
 *
 * A plan is made of at most three steps: on the side of the source the elements become contiguous, contiguous memory
 * crosses from one place to the other, and on the side of the destination the elements take their places. Types are
 * converted on a device. Temporary memory is freed in the order of the stream, so that no step waits.
 */
#include <string.h>

#include "src/array.h"
#include "weir/copy.h"
#include "weir/graph.h"

static weir_status convert(const char *caller, const weir_array *dst, const weir_array *src, weir_stream stream) {
  weir__input input = {.array = src};
  return weir__map(caller, WEIR__UNARY + WEIR_UNARY_POSITIVE, 1, &input, src->dtype, dst, stream);
}

/* Whether two arrays of one shape have their elements in the same order, without holes. */
static bool have_same_layout(const weir_array *a, const weir_array *b) {
  if (weir_array_is_contiguous(a) && weir_array_is_contiguous(b))
    return true;
  if (!weir__is_dense(a) || !weir__is_dense(b))
    return false;
  for (int i = 0; i < a->ndim; i++)
    if (a->shape[i] != 1 && a->strides[i] != b->strides[i])
      return false;
  return true;
}

static uint64_t bytes_of(const weir_array *array) {
  return (uint64_t)weir_array_count(array) * weir_dtype_size(array->dtype);
}

static weir_status copy_on_host(const char *caller, weir_array *dst, const weir_array *src) {
  if (dst->dtype == src->dtype && have_same_layout(dst, src)) {
    if (dst->data != src->data)
      memmove(dst->data, src->data, bytes_of(src));
    return WEIR_OK;
  }
  return convert(caller, dst, src, (weir_stream){0});
}

static weir_status copy_on_device(const char *caller, weir_array *dst, const weir_array *src, weir_stream stream) {
  if (dst->dtype == src->dtype && have_same_layout(dst, src))
    return dst->data == src->data ? WEIR_OK
                                  : weir__fail_as(caller, weir_copy_async(dst->data, src->data, bytes_of(src), stream));
  return convert(caller, dst, src, stream);
}

/* A contiguous array like `src`, of a type: `src` itself if it is one, otherwise a temporary copy on the same device,
 * or in pinned memory on the host. A graph would copy what is in that memory during the capture at each launch. */
static weir_status make_contiguous(const char *caller, const weir_array *src, weir_dtype dtype, weir_stream stream,
                                   weir_array *made) {
  if (src->dtype == dtype && weir_array_is_contiguous(src))
    return weir_array_share(src, made);
  weir_place place = weir__is_host(src) ? weir_place_pinned() : src->place;
  int capturing = 0;
  weir_status status = WEIR_OK;
  if (weir__is_host(src))
    status = weir__fail_as(caller, weir_stream_is_capturing(stream, &capturing));
  if (!status && capturing)
    status = weir__fail(
        WEIR_ERROR_CAPTURE,
        "%s: a copy from host memory that is not contiguous cannot be captured; make it contiguous first", caller);
  if (!status)
    status = weir__fail_as(caller, weir_array_empty(place, dtype, src->ndim, src->shape, stream, made));
  if (!status)
    status = convert(caller, made, src, stream);
  if (status)
    weir_array_release(made);
  return status;
}

/* After a copy with host memory: waits for it, or keeps pinned memory until it is done. */
static weir_status settle(const char *caller, const weir_array *host, weir_stream stream, bool non_blocking) {
  bool waits = !non_blocking;
  int capturing;
  weir_status status = WEIR_OK;
  if (non_blocking && host->place.kind == WEIR_PLACE_HOST) {
    status = weir_stream_is_capturing(stream, &capturing);
    waits = !capturing;
  }
  if (!status && waits)
    status = weir_stream_synchronize(stream);
  else if (!status)
    status = weir_storage_record_stream(host->storage, stream);
  return weir__fail_as(caller, status);
}

static weir_status copy_to_device(const char *caller, weir_array *dst, const weir_array *src, weir_stream stream,
                                  bool non_blocking) {
  weir_array from = {0}, staged = {0};
  weir_status status = make_contiguous(caller, src, src->dtype, stream, &from);
  bool is_direct = dst->dtype == src->dtype && weir_array_is_contiguous(dst);
  if (!status && !is_direct)
    status = weir__fail_as(caller, weir_array_empty(dst->place, src->dtype, src->ndim, src->shape, stream, &staged));
  if (!status)
    status =
        weir__fail_as(caller, weir_copy_async(is_direct ? dst->data : staged.data, from.data, bytes_of(&from), stream));
  bool is_enqueued = !status;
  if (!status && !is_direct)
    status = convert(caller, dst, &staged, stream);
  if (!status)
    status = settle(caller, &from, stream, non_blocking);
  else if (is_enqueued)
    weir_storage_record_stream(from.storage, stream);
  weir_array_release(&staged);
  weir_array_release(&from);
  return status;
}

static weir_status copy_to_host(const char *caller, weir_array *dst, const weir_array *src, weir_stream stream,
                                bool non_blocking) {
  weir_array from = {0}, staged = {0};
  bool is_direct = weir_array_is_contiguous(dst);
  weir_status status = make_contiguous(caller, src, dst->dtype, stream, &from);
  if (!status && !is_direct)
    status = weir__fail_as(caller,
                           weir_array_empty(weir_place_pinned(), dst->dtype, dst->ndim, dst->shape, stream, &staged));
  if (!status)
    status =
        weir__fail_as(caller, weir_copy_async(is_direct ? dst->data : staged.data, from.data, bytes_of(&from), stream));
  if (!status)
    status = settle(caller, is_direct ? dst : &staged, stream, non_blocking && is_direct);
  if (!status && !is_direct)
    status = copy_on_host(caller, dst, &staged);
  weir_array_release(&staged);
  weir_array_release(&from);
  return status;
}

/* The copy runs on a stream of the source's device. It waits for what uses the destination, and later work of the
 * destination's stream waits for it. */
static weir_status copy_between_devices(const char *caller, weir_array *dst, const weir_array *src,
                                        weir_stream stream) {
  weir_stream from_stream = stream, to_stream = stream;
  weir_status status = WEIR_OK;
  if (stream.device == dst->place.device)
    status = weir_stream_get_current(src->place.device, &from_stream);
  else
    status = weir_stream_get_current(dst->place.device, &to_stream);
  if (!status && stream.device != dst->place.device && stream.device != src->place.device)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: the stream belongs to device %d, and the arrays to the devices %d and %d", caller,
                      stream.device, dst->place.device, src->place.device);
  weir_array from = {0}, staged = {0};
  bool is_direct = weir_array_is_contiguous(dst);
  if (!status)
    status = make_contiguous(caller, src, dst->dtype, from_stream, &from);
  if (!status && !is_direct)
    status = weir_array_empty(dst->place, dst->dtype, dst->ndim, dst->shape, to_stream, &staged);
  if (!status)
    status = weir_stream_wait_stream(from_stream, to_stream);
  if (!status)
    status = weir_copy_peer_async(is_direct ? dst->data : staged.data, dst->place.device, from.data, src->place.device,
                                  bytes_of(&from), from_stream);
  bool is_enqueued = !status;
  if (!status)
    status = weir_stream_wait_stream(to_stream, from_stream);
  /* The destination's stream does not know of the copy then, and the memory may be freed after a failure. */
  if (status && is_enqueued)
    weir_storage_record_stream(is_direct ? dst->storage : staged.storage, from_stream);
  if (!status && !is_direct)
    status = convert(caller, dst, &staged, to_stream);
  weir_array_release(&staged);
  weir_array_release(&from);
  return weir__fail_as(caller, status);
}

static weir_status copy(const char *caller, weir_array *dst, const weir_array *src, weir_stream stream,
                        bool non_blocking) {
  if (!weir_array_count(dst))
    return WEIR_OK;
  if (weir__is_host(dst) && weir__is_host(src))
    return copy_on_host(caller, dst, src);
  if (!weir__is_host(dst) && !weir__is_host(src) && dst->place.device != src->place.device)
    return copy_between_devices(caller, dst, src, stream);
  weir_status status = weir__check_stream(caller, dst, stream);
  if (!status)
    status = weir__check_stream(caller, src, stream);
  if (status)
    return status;
  if (weir__is_host(dst))
    return copy_to_host(caller, dst, src, stream, non_blocking);
  return weir__is_host(src) ? copy_to_device(caller, dst, src, stream, non_blocking)
                            : copy_on_device(caller, dst, src, stream);
}

weir_status weir_array_copy(weir_array *dst, const weir_array *src, weir_stream stream, int non_blocking) {
  WEIR__CHECK_ARRAY(dst);
  WEIR__CHECK_ARRAY(src);
  weir_array from;
  int64_t shape[WEIR_ARRAY_MAX_DIMS];
  int ndim = dst->ndim;
  memcpy(shape, dst->shape, sizeof shape);
  weir_status status = weir__broadcast(__func__, &ndim, shape, src);
  weir__shape_text found, expected;
  if (!status && (ndim != dst->ndim || memcmp(shape, dst->shape, (size_t)ndim * sizeof *shape) != 0))
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: output with shape %s doesn't match the broadcast shape %s",
                        __func__, weir__format_shape(dst->ndim, dst->shape, &found),
                        weir__format_shape(ndim, shape, &expected));
  if (!status)
    status = weir__check_overlap(__func__, dst, dst);
  if (!status && dst != src)
    status = weir__check_overlap(__func__, dst, src);
  if (!status)
    status = weir__fail_as(__func__, weir_array_expand(src, dst->ndim, dst->shape, &from));
  if (status)
    return status;
  status = copy(__func__, dst, &from, stream, non_blocking != 0);
  weir_array_release(&from);
  return status;
}

weir_status weir_array_to(const weir_array *array, weir_place place, weir_dtype dtype, weir_stream stream,
                          int non_blocking, weir_array *result) {
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(result);
  weir_array made = {0};
  weir_stream on = stream;
  weir_status status = WEIR_OK;
  /* Between two devices the stream may be the source's. */
  if (place.kind == WEIR_PLACE_DEVICE && place.device >= 0 && place.device != stream.device && !weir__is_host(array) &&
      array->place.device == stream.device)
    status = weir_stream_get_current(place.device, &on);
  if (!status)
    status = weir_array_empty(place, dtype, array->ndim, array->shape, on, &made);
  if (!status)
    status = copy(__func__, &made, array, stream, non_blocking != 0);
  if (status) {
    weir_array_release(&made);
    return weir__fail_as(__func__, status);
  }
  *result = made;
  return WEIR_OK;
}

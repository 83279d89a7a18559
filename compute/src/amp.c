/*
 * Gradient scaling. The kernels are in kernels/amp.cu.
 */
#include "weir/compute/amp.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/amp_args.h"
#include "src/array.h"

_Static_assert(sizeof(weir__amp_args) <= 4096, "kernel parameters have at most 4 KiB on all GPUs");
_Static_assert((int)WEIR__MAX_DIMS == 16, "weir__amp_strided_args has 16 dimensions");

/* ---- Checks ---- */

/* "<name> must be a 1-element tensor." and others, with PyTorch's texts. `like` is the array whose place counts. */
static weir_status check_element(const char *caller, const char *name, const weir_array *array, weir_dtype dtype,
                                 const weir_array *like) {
  bool on_host = weir__is_host(like);
  weir_status status = weir__array_check(caller, array, name);
  if (status)
    return status;
  if (weir__is_host(array) != on_host)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s must be a %s tensor.", caller, name,
                      on_host ? "CPU" : "CUDA");
  if (weir_array_count(array) != 1)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s must be a 1-element tensor.", caller, name);
  if (array->dtype != dtype)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s must be %s tensor.", caller, name,
                      dtype == WEIR_INT32 ? "an int" : "a float");
  return weir__check_same_place(caller, like, array);
}

static weir_status check_gradient(const char *caller, const weir_array *gradient, const weir_array *first) {
  weir_status status = weir__array_check(caller, gradient, "a gradient");
  if (status)
    return status;
  if (!weir_dtype_is_float(gradient->dtype))
    return weir__not_implemented(caller,
                                 weir__is_host(gradient) ? "_amp_foreach_non_finite_check_and_unscale_cpu"
                                                         : "_amp_foreach_non_finite_check_and_unscale_cuda",
                                 gradient->dtype);
  status = weir__check_same_place(caller, first, gradient);
  return status ? status : weir__check_overlap(caller, gradient, gradient);
}

/* ---- Division by the scale ---- */

static weir_status launch_table(const char *caller, bool on_host, weir_stream stream, weir__amp_args *args) {
  static weir__builtin kernel = WEIR__BUILTIN("amp", "weir_unscale_arrays");
  if (!args->count)
    return WEIR_OK;
  void *params[] = {args};
  weir_launch_dims dims = weir__array_grid(on_host, (uint64_t)args->chunks * WEIR__BLOCK);
  weir_status status = weir__array_run(caller, &kernel, on_host, stream, dims, params);
  args->count = args->chunks = 0;
  return status;
}

static weir_status launch_strided(const char *caller, const weir_array *array, weir_stream stream,
                                  const weir__amp_args *common) {
  static weir__builtin kernel = WEIR__BUILTIN("amp", "weir_unscale_strided");
  weir__amp_strided_args args = {.found_inf = common->found_inf,
                                 .inv_scale = common->inv_scale,
                                 .data = array->data,
                                 .count = (uint64_t)weir_array_count(array),
                                 .ndim = array->ndim,
                                 .dtype = (int)array->dtype};
  for (int i = 0; i < array->ndim; i++) {
    args.shape[i] = (uint64_t)array->shape[array->ndim - 1 - i];
    args.strides[i] = array->strides[array->ndim - 1 - i];
  }
  bool on_host = weir__is_host(array);
  void *params[] = {&args};
  return weir__array_run(caller, &kernel, on_host, stream, weir__array_grid(on_host, args.count), params);
}

/* Adds an array that is not empty to the table, which is launched before if it is full. */
static weir_status add_dense(const char *caller, const weir_array *array, weir_stream stream, weir__amp_args *args) {
  uint64_t elements = (uint64_t)weir_array_count(array);
  uint64_t chunks = (elements + WEIR__AMP_CHUNK - 1) / WEIR__AMP_CHUNK;
  if (chunks > INT32_MAX)
    return weir__fail(WEIR_ERROR_NOT_SUPPORTED, "%s: an array of %" PRIu64 " elements is too large", caller, elements);
  if (args->count == WEIR__AMP_ARRAYS || args->chunks + chunks > INT32_MAX) {
    weir_status status = launch_table(caller, weir__is_host(array), stream, args);
    if (status)
      return status;
  }
  unsigned at = args->count++;
  args->chunks += (unsigned)chunks;
  args->data[at] = array->data;
  args->elements[at] = elements;
  args->ends[at] = args->chunks;
  args->dtypes[at] = (unsigned char)array->dtype;
  return WEIR_OK;
}

static weir_status unscale(const char *caller, const weir_array *gradients, int count, float *found_inf,
                           const float *inv_scale, weir_stream stream) {
  weir__amp_args args;
  args.found_inf = found_inf;
  args.inv_scale = inv_scale;
  args.chunks = args.count = 0;
  weir_status status = WEIR_OK;
  for (int i = 0; i < count && !status; i++) {
    if (!weir_array_count(&gradients[i]))
      continue;
    status = weir__is_dense(&gradients[i]) ? add_dense(caller, &gradients[i], stream, &args)
                                           : launch_strided(caller, &gradients[i], stream, &args);
  }
  return status ? status : launch_table(caller, weir__is_host(&gradients[0]), stream, &args);
}

static weir_status check_gradients(const char *caller, const weir_array *gradients, int count, weir_stream stream) {
  if (count < 0)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: count is %d", caller, count);
  if (count && !gradients)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: gradients is NULL", caller);
  weir_status status = WEIR_OK;
  for (int i = 0; i < count && !status; i++)
    status = check_gradient(caller, &gradients[i], &gradients[0]);
  return status || !count ? status : weir__check_stream(caller, &gradients[0], stream);
}

weir_status weir_amp_unscale(const weir_array *gradients, int count, const weir_array *found_inf,
                             const weir_array *inv_scale, weir_stream stream) {
  weir_status status = check_gradients(__func__, gradients, count, stream);
  if (status || !count)
    return status;
  status = check_element(__func__, "inv_scale", inv_scale, WEIR_FLOAT32, &gradients[0]);
  if (!status)
    status = check_element(__func__, "found_inf", found_inf, WEIR_FLOAT32, &gradients[0]);
  return status ? status : unscale(__func__, gradients, count, found_inf->data, inv_scale->data, stream);
}

/* ---- The update ---- */

static weir_status run_single(const char *caller, weir__builtin *kernel, bool on_host, weir_stream stream, void *args) {
  void *params[] = {args};
  return weir__array_run(caller, kernel, on_host, stream, (weir_launch_dims){.grid = {1}, .block = {1}}, params);
}

static weir_status update(const char *caller, bool on_host, weir_stream stream, weir__amp_update_args *args) {
  static weir__builtin kernel = WEIR__BUILTIN("amp", "weir_update_scale");
  return run_single(caller, &kernel, on_host, stream, args);
}

weir_status weir_amp_update_scale(const weir_array *scale, const weir_array *growth_tracker,
                                  const weir_array *found_inf, double growth_factor, double backoff_factor,
                                  int growth_interval, weir_stream stream) {
  weir_status status = weir__array_check(__func__, scale, "scale");
  if (!status)
    status = check_element(__func__, "growth_tracker", growth_tracker, WEIR_INT32, scale);
  if (!status)
    status = check_element(__func__, "current_scale", scale, WEIR_FLOAT32, scale);
  if (!status)
    status = check_element(__func__, "found_inf", found_inf, WEIR_FLOAT32, scale);
  if (!status)
    status = weir__check_stream(__func__, scale, stream);
  if (status)
    return status;
  weir__amp_update_args args = {.scale = scale->data,
                                .growth_tracker = growth_tracker->data,
                                .found_inf = found_inf->data,
                                .growth_factor = growth_factor,
                                .backoff_factor = backoff_factor,
                                .growth_interval = growth_interval};
  return update(__func__, weir__is_host(scale), stream, &args);
}

/* ---- Scalers ---- */

struct weir_grad_scaler {
  weir_array memory; /* the elements below, of which all are float32 but the tracker, which is int32 */
  double growth_factor, backoff_factor;
  int growth_interval;
};

enum { SCALE, INV_SCALE, FOUND_INF, GROWTH_TRACKER, ELEMENTS };

static void *element(const weir_grad_scaler *scaler, int which) {
  return (char *)scaler->memory.data + (size_t)which * sizeof(float);
}

/* A view of an element as an array without dimensions. */
static weir_status view_of(const weir_grad_scaler *scaler, int which, weir_array *view) {
  return weir_array_select(&scaler->memory, 0, which, view);
}

void weir_grad_scaler_state_init(weir_grad_scaler_state *state) {
  if (state)
    *state = (weir_grad_scaler_state){.size = sizeof *state,
                                      .scale = 65536,
                                      .growth_factor = 2,
                                      .backoff_factor = 0.5,
                                      .growth_interval = 2000,
                                      .growth_tracker = 0};
}

static weir_status check_state(const char *caller, const weir_grad_scaler_state *state) {
  if (state->size != sizeof *state)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: state->size is %zu, expected %zu; call weir_grad_scaler_state_init first", caller,
                      state->size, sizeof *state);
  if (!(state->growth_factor > 1))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: The growth factor must be > 1.0.", caller);
  if (!(state->backoff_factor < 1))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: The backoff factor must be < 1.0.", caller);
  if (!isfinite((float)state->scale))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the scale is %g, which is no finite float32", caller,
                      state->scale);
  return WEIR_OK;
}

static weir_status set(const char *caller, weir_grad_scaler *scaler, const weir_grad_scaler_state *state,
                       weir_stream stream) {
  static weir__builtin kernel = WEIR__BUILTIN("amp", "weir_set_scale");
  weir__amp_set_args args = {.scale = element(scaler, SCALE),
                             .growth_tracker = element(scaler, GROWTH_TRACKER),
                             .found_inf = element(scaler, FOUND_INF),
                             .inv_scale = element(scaler, INV_SCALE),
                             .new_scale = (float)state->scale,
                             .new_tracker = state->growth_tracker};
  weir_status status = run_single(caller, &kernel, weir__is_host(&scaler->memory), stream, &args);
  if (status)
    return status;
  scaler->growth_factor = state->growth_factor;
  scaler->backoff_factor = state->backoff_factor;
  scaler->growth_interval = state->growth_interval;
  return WEIR_OK;
}

weir_status weir_grad_scaler_create(weir_place place, const weir_grad_scaler_state *state, weir_stream stream,
                                    weir_grad_scaler **scaler) {
  WEIR__CHECK_ARGUMENT(scaler);
  weir_grad_scaler_state defaults;
  weir_grad_scaler_state_init(&defaults);
  if (!state)
    state = &defaults;
  weir_status status = check_state(__func__, state);
  if (status)
    return status;
  weir_grad_scaler *made = calloc(1, sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for a scaler", __func__);
  status = weir_array_empty(place, WEIR_FLOAT32, 1, (const int64_t[]){ELEMENTS}, stream, &made->memory);
  if (!status)
    status = set(__func__, made, state, stream);
  if (status) {
    weir_grad_scaler_destroy(made);
    return weir__fail_as(__func__, status);
  }
  *scaler = made;
  return WEIR_OK;
}

void weir_grad_scaler_destroy(weir_grad_scaler *scaler) {
  if (!scaler)
    return;
  weir_array_release(&scaler->memory);
  free(scaler);
}

weir_status weir_grad_scaler_scale(weir_grad_scaler *scaler, const weir_array *array, weir_stream stream,
                                   weir_array *out) {
  WEIR__CHECK_ARGUMENT(scaler);
  WEIR__CHECK_ARRAY(array);
  WEIR__CHECK_ARGUMENT(out);
  weir_array scale = {0};
  weir_status status = weir__check_same_place(__func__, &scaler->memory, array);
  if (!status)
    status = view_of(scaler, SCALE, &scale);
  if (!status)
    status = weir_array_binary(WEIR_BINARY_MUL, array, &scale, stream, out);
  weir_array_release(&scale);
  return weir__fail_as(__func__, status);
}

weir_status weir_grad_scaler_unscale(weir_grad_scaler *scaler, const weir_array *gradients, int count,
                                     weir_stream stream) {
  WEIR__CHECK_ARGUMENT(scaler);
  weir_status status = check_gradients(__func__, gradients, count, stream);
  if (status || !count)
    return status;
  status = weir__check_same_place(__func__, &scaler->memory, &gradients[0]);
  return status ? status
                : unscale(__func__, gradients, count, element(scaler, FOUND_INF), element(scaler, INV_SCALE), stream);
}

weir_status weir_grad_scaler_found_inf_array(weir_grad_scaler *scaler, weir_array *found) {
  WEIR__CHECK_ARGUMENT(scaler);
  WEIR__CHECK_ARGUMENT(found);
  return weir__fail_as(__func__, view_of(scaler, FOUND_INF, found));
}

/* The value of an element; waits. */
static weir_status read_element(const char *caller, weir_grad_scaler *scaler, int which, weir_stream stream,
                                weir_scalar *value) {
  weir_array view = {0};
  weir_status status = view_of(scaler, which, &view);
  if (!status && which == GROWTH_TRACKER)
    status = weir_array_view_dtype(&view, WEIR_INT32, &view);
  if (!status)
    status = weir_array_item(&view, stream, value);
  weir_array_release(&view);
  return weir__fail_as(caller, status);
}

weir_status weir_grad_scaler_has_found_inf(weir_grad_scaler *scaler, weir_stream stream, int *found) {
  WEIR__CHECK_ARGUMENT(scaler);
  WEIR__CHECK_ARGUMENT(found);
  weir_scalar value = {0};
  weir_status status = read_element(__func__, scaler, FOUND_INF, stream, &value);
  if (!status)
    *found = value.real != 0;
  return status;
}

weir_status weir_grad_scaler_update(weir_grad_scaler *scaler, weir_stream stream) {
  WEIR__CHECK_ARGUMENT(scaler);
  weir_status status = weir__check_stream(__func__, &scaler->memory, stream);
  if (status)
    return status;
  weir__amp_update_args args = {.scale = element(scaler, SCALE),
                                .growth_tracker = element(scaler, GROWTH_TRACKER),
                                .found_inf = element(scaler, FOUND_INF),
                                .inv_scale = element(scaler, INV_SCALE),
                                .growth_factor = scaler->growth_factor,
                                .backoff_factor = scaler->backoff_factor,
                                .growth_interval = scaler->growth_interval};
  return update(__func__, weir__is_host(&scaler->memory), stream, &args);
}

weir_status weir_grad_scaler_get_state(weir_grad_scaler *scaler, weir_stream stream, weir_grad_scaler_state *state) {
  WEIR__CHECK_ARGUMENT(scaler);
  WEIR__CHECK_ARGUMENT(state);
  if (state->size != sizeof *state)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: state->size is %zu, expected %zu; call weir_grad_scaler_state_init first", __func__,
                      state->size, sizeof *state);
  weir_scalar scale = {0}, tracker = {0};
  weir_status status = read_element(__func__, scaler, SCALE, stream, &scale);
  if (!status)
    status = read_element(__func__, scaler, GROWTH_TRACKER, stream, &tracker);
  if (status)
    return status;
  *state = (weir_grad_scaler_state){.size = sizeof *state,
                                    .scale = scale.real,
                                    .growth_factor = scaler->growth_factor,
                                    .backoff_factor = scaler->backoff_factor,
                                    .growth_interval = scaler->growth_interval,
                                    .growth_tracker = (int)tracker.integer};
  return WEIR_OK;
}

weir_status weir_grad_scaler_set_state(weir_grad_scaler *scaler, const weir_grad_scaler_state *state,
                                       weir_stream stream) {
  WEIR__CHECK_ARGUMENT(scaler);
  WEIR__CHECK_ARGUMENT(state);
  weir_status status = check_state(__func__, state);
  if (!status)
    status = weir__check_stream(__func__, &scaler->memory, stream);
  return status ? status : set(__func__, scaler, state, stream);
}

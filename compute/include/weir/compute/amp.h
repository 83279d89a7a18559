/*
 * Gradient scaling for mixed precision. Part of libweir_compute.
 *
 *     weir_grad_scaler *scaler;
 *     weir_grad_scaler_create(weir_place_device(0), NULL, stream, &scaler);
 *     for (;;) {
 *       weir_array scaled = {0};
 *       weir_grad_scaler_scale(scaler, &loss_gradient, stream, &scaled);   loss_gradient * scale
 *       ...                                                   the program computes gradients from `scaled` in float16
 *       weir_grad_scaler_unscale(scaler, gradients, count, stream);        gradients / scale, in place
 *       int found;
 *       weir_grad_scaler_has_found_inf(scaler, stream, &found);   waits
 *       if (!found)
 *         ...                                                 the program updates its parameters
 *       weir_grad_scaler_update(scaler, stream);              changes the scale, on the device
 *     }
 *
 * Small gradients become 0 in float16. So a loss is multiplied by a scale before its gradients are computed, and the
 * gradients are divided by it in float32. If one of them is infinite or NaN, the scale was too large: the step is
 * skipped and the scale is reduced. After some steps without such a gradient the scale grows.
 *
 * The scale, the count of steps and the flag are in device memory. Only calls that return one of them to the host wait
 * for the stream; all others are enqueued, allocate nothing but a result, and can be captured in a graph.
 */
#ifndef WEIR_AMP_H
#define WEIR_AMP_H

#include <stddef.h>

#include "weir/compute/array.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- On arrays of the caller ---- */

/* Multiplies all elements of the gradients by inv_scale, in place, and sets found_inf to 1 if one of them is infinite
 * or NaN; otherwise found_inf keeps its value, so the caller sets it to 0 first. As
 * torch._amp_foreach_non_finite_check_and_unscale_, for any number of arrays: one launch handles up to 192 of them, of
 * all types together. If inv_scale is 1, the elements are checked and not written.
 *
 * The gradients are float16, bfloat16, float32 or float64, on one device or on the host, with any strides under which
 * no two elements share memory; arrays with holes need a launch each. found_inf and inv_scale have one element of
 * float32 in the same place. If the call fails, no gradient has been changed, unless a launch failed. */
weir_status weir_amp_unscale(const weir_array *gradients, int count, const weir_array *found_inf,
                             const weir_array *inv_scale, weir_stream stream);

/* As torch._amp_update_scale_: if found_inf is not 0, the scale is multiplied by backoff_factor, and the growth tracker
 * becomes 0. Otherwise the tracker is incremented, and when it reaches growth_interval the scale is multiplied by
 * growth_factor, unless that would be infinite, and the tracker becomes 0. All three have one element in one place;
 * scale and found_inf are float32, growth_tracker is int32. */
weir_status weir_amp_update_scale(const weir_array *scale, const weir_array *growth_tracker,
                                  const weir_array *found_inf, double growth_factor, double backoff_factor,
                                  int growth_interval, weir_stream stream);

/* ---- Scalers ---- */

typedef struct weir_grad_scaler weir_grad_scaler;

/* What torch.amp.GradScaler.state_dict() has. */
typedef struct weir_grad_scaler_state {
  size_t size;           /* of this struct; set by weir_grad_scaler_state_init */
  double scale;          /* a float32 on the device; 65536 */
  double growth_factor;  /* > 1; 2 */
  double backoff_factor; /* < 1; 0.5 */
  int growth_interval;   /* steps without an infinite gradient until the scale grows; 2000 */
  int growth_tracker;    /* such steps since the last change; 0 */
} weir_grad_scaler_state;

/* Sets all members to the defaults above. */
void weir_grad_scaler_state_init(weir_grad_scaler_state *state);

/* Creates a scaler for gradients on a device or on the host; state NULL means the defaults. Its memory is that of an
 * array of four elements, for use on the stream, and on streams that wait for it. */
weir_status weir_grad_scaler_create(weir_place place, const weir_grad_scaler_state *state, weir_stream stream,
                                    weir_grad_scaler **scaler);

/* NULL is allowed. */
void weir_grad_scaler_destroy(weir_grad_scaler *scaler);

/* out = array * scale, with the type of the array, as weir_array_binary. */
weir_status weir_grad_scaler_scale(weir_grad_scaler *scaler, const weir_array *array, weir_stream stream,
                                   weir_array *out);

/* Divides gradients by the scale as weir_amp_unscale does. May be called several times between two updates, for
 * different arrays: what is found is remembered until the update. */
weir_status weir_grad_scaler_unscale(weir_grad_scaler *scaler, const weir_array *gradients, int count,
                                     weir_stream stream);

/* Whether an infinite or NaN gradient was found since the last update. Waits for the stream. */
weir_status weir_grad_scaler_has_found_inf(weir_grad_scaler *scaler, weir_stream stream, int *found);

/* The same as an array of one element of float32, 0 or 1, for kernels of the program. It shares the scaler's memory. */
weir_status weir_grad_scaler_found_inf_array(weir_grad_scaler *scaler, weir_array *found);

/* Changes the scale as weir_amp_update_scale does, and forgets what was found. One launch. */
weir_status weir_grad_scaler_update(weir_grad_scaler *scaler, weir_stream stream);

/* Reads the state; waits for the stream. state->size must be set. */
weir_status weir_grad_scaler_get_state(weir_grad_scaler *scaler, weir_stream stream, weir_grad_scaler_state *state);

/* Replaces the state, and forgets what was found. Does not wait. */
weir_status weir_grad_scaler_set_state(weir_grad_scaler *scaler, const weir_grad_scaler_state *state,
                                       weir_stream stream);

#ifdef __cplusplus
}
#endif
#endif

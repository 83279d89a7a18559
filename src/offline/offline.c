/*
 * The public calls of weir/offline.h. A recording and a replayer of theirs are the internal ones.
 */
#include "weir/offline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/explain.h"
#include "offline/analyse/predict.h"
#include "offline/render/plot.h"

static const weir__recording *inside(const weir_offline_recording *recording) {
  return (const weir__recording *)(const void *)recording;
}

static const weir__replayer *replayer_inside(const weir_offline_replayer *replayer) {
  return (const weir__replayer *)(const void *)replayer;
}

const char *weir_offline_last_error(void) { return weir_last_error(); }

static weir_status null(const char *caller) {
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: an argument is NULL", caller);
}

/* An output that carries its size; `caller` is the public call. */
static weir_status check_output(const char *caller, const char *name, const void *output) {
  size_t size = 0;
  if (output)
    memcpy(&size, output, sizeof size);
  if (size >= sizeof size)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s is NULL, or its size is not set; call %s_init first", caller,
                    name, name);
}

static weir_status check_capacity(const char *caller, uint64_t memory, double fraction) {
  if (!(fraction >= 0 && fraction <= 1))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: fraction is %g, expected 0 to 1", caller, fraction);
  if (fraction > 0 && !memory)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: fraction is a part of memory, which is not set", caller);
  return WEIR_OK;
}

/* ---- Reading ---- */

weir_status weir_offline_recording_load(const char *path, const weir_offline_load_options *options,
                                        weir_offline_recording **recording) {
  weir_offline_load_options o;
  weir__recording *loaded;
  weir_offline_load_options_init(&o);
  if (!path || !recording)
    return null(__func__);
  weir_status status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (!status)
    status = weir__recording_load(path, &(weir__recording_limits){.memory = o.memory}, &loaded);
  if (!status)
    *recording = (weir_offline_recording *)(void *)loaded;
  return status;
}

weir_status weir_offline_recording_load_memory(const void *bytes, size_t size, const weir_offline_load_options *options,
                                               weir_offline_recording **recording) {
  weir_offline_load_options o;
  weir__recording *loaded;
  weir_offline_load_options_init(&o);
  if ((!bytes && size) || !recording)
    return null(__func__);
  weir_status status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (!status)
    status = weir__recording_load_memory(o.name ? o.name : "the recording", bytes, size,
                                         &(weir__recording_limits){.memory = o.memory}, &loaded);
  if (!status)
    *recording = (weir_offline_recording *)(void *)loaded;
  return status;
}

void weir_offline_recording_destroy(weir_offline_recording *recording) {
  weir__recording_free((weir__recording *)(void *)recording);
}

/* Replaces -1 by the first device that has something to show. */
static weir_status choose_device(const char *caller, const weir__recording *recording, int *device) {
  if (*device == -1)
    *device = weir__recording_first_device(recording);
  if (*device >= 0 && (size_t)*device < recording->device_count)
    return WEIR_OK;
  return weir__fail(WEIR_ERROR_INVALID_DEVICE, "%s: device %d; the recording has %zu", caller, *device,
                    recording->device_count);
}

weir_status weir_offline_recording_get_info(const weir_offline_recording *recording, int device,
                                            weir_offline_info *info) {
  if (!recording)
    return null(__func__);
  weir_status status = check_output(__func__, "info", info);
  if (!status)
    status = choose_device(__func__, inside(recording), &device);
  if (status)
    return status;
  const weir__recording_device *d = &inside(recording)->devices[device];
  weir_offline_info now = {.size = info->size,
                           .device_count = (int)inside(recording)->device_count,
                           .device = device,
                           .events = d->event_count,
                           .dropped = d->dropped,
                           .segments = d->segment_count};
  for (size_t i = 0; i < d->event_count; i++)
    now.ooms += d->events[i].action == WEIR_TRACE_OOM;
  weir__copy_sized(info, info->size, &now, sizeof now);
  return WEIR_OK;
}

/* ---- Replaying ---- */

weir_status weir_offline_replayer_create(const weir_offline_recording *recording,
                                         const weir_offline_replay_options *options, weir_offline_replayer **replayer) {
  weir_offline_replay_options o;
  weir__replayer *opened;
  weir_offline_replay_options_init(&o);
  if (!recording || !replayer)
    return null(__func__);
  weir_status status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (!status)
    status = check_capacity(__func__, o.memory, o.fraction);
  if (!status)
    status = choose_device(__func__, inside(recording), &o.device);
  if (!status)
    status = weir__replayer_open(inside(recording), o.device, o.memory, o.fraction, &opened);
  if (!status)
    *replayer = (weir_offline_replayer *)(void *)opened;
  return status;
}

void weir_offline_replayer_destroy(weir_offline_replayer *replayer) {
  weir__replayer_close((weir__replayer *)(void *)replayer);
}

static void write_result(const weir__replayer *replayer, const weir__replay_report *report,
                         weir_offline_result *result) {
  weir__costs costs;
  weir__prediction p;
  weir__costs_default(&costs);
  weir__prediction_from(report, &costs, &p);
  weir_offline_result now = {.size = result->size,
                             .is_exact = !weir__replayer_check(replayer)->differences,
                             .events = report->events,
                             .allocations = report->allocations,
                             .differences = report->differences,
                             .peak_reserved = p.peak_reserved,
                             .peak_allocated = p.peak_allocated,
                             .peak_requested = p.peak_requested,
                             .retries = p.retries,
                             .ooms = p.failures,
                             .first_oom = p.first_failure,
                             .oom_bytes = p.failed_bytes,
                             .oom_reserved = p.failed_reserved,
                             .oom_allocated = p.failed_allocated,
                             .limit = report->limit,
                             .limit_is_inferred = report->limit_is_inferred,
                             .driver_calls = weir__prediction_calls(&p),
                             .driver_ns = p.cost,
                             .seconds = report->seconds};
  if (report->differences)
    snprintf(now.first_difference, sizeof now.first_difference, "%s", report->shown[0]);
  weir__copy_sized(result, result->size, &now, sizeof now);
}

weir_status weir_offline_replayer_check(const weir_offline_replayer *replayer, weir_offline_result *result) {
  if (!replayer)
    return null(__func__);
  weir_status status = check_output(__func__, "result", result);
  if (!status)
    write_result(replayer_inside(replayer), weir__replayer_check(replayer_inside(replayer)), result);
  return status;
}

weir_status weir_offline_replayer_predict(const weir_offline_replayer *replayer,
                                          const weir_offline_predict_options *options, weir_offline_result *result) {
  weir_offline_predict_options o;
  weir__settings parsed, *settings = NULL;
  weir__capacity capacity;
  weir__replay_report report;
  weir_offline_predict_options_init(&o);
  if (!replayer)
    return null(__func__);
  weir_status status = check_output(__func__, "result", result);
  if (!status)
    status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (!status)
    status = check_capacity(__func__, o.memory, o.fraction);
  if (!status && o.conf)
    status = weir__settings_parse(NULL, o.conf, settings = &parsed);
  if (!status)
    status = weir__replayer_capacity_of(replayer_inside(replayer), settings, o.memory, o.fraction, &capacity);
  capacity.is_busy = !status && o.streams_are_busy;
  if (!status)
    status = weir__replayer_run(replayer_inside(replayer), settings, &capacity, NULL, &report);
  if (status)
    return status;
  report.limit_is_inferred = !o.memory && !capacity.is_recorded && capacity.limit != UINT64_MAX;
  write_result(replayer_inside(replayer), &report, result);
  return WEIR_OK;
}

/* ---- Explaining ---- */

weir_status weir_offline_recording_explain(const weir_offline_recording *recording,
                                           const weir_offline_explain_options *options,
                                           weir_offline_explanation *explanation) {
  weir_offline_explain_options o;
  weir__explanation x;
  weir_offline_explain_options_init(&o);
  if (!recording)
    return null(__func__);
  weir_status status = check_output(__func__, "explanation", explanation);
  if (!status)
    status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (!status)
    status = check_capacity(__func__, o.memory, o.fraction);
  if (!status)
    status = choose_device(__func__, inside(recording), &o.device);
  if (!status)
    status = weir__explain(inside(recording),
                           &(weir__explain_options){.device = o.device,
                                                    .moment = WEIR_OFFLINE_AT_OOM,
                                                    .memory = o.memory,
                                                    .fraction = o.fraction,
                                                    .no_trials = o.no_remedies != 0},
                           &x);
  if (!status && x.is_unknown)
    status = weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: %s", __func__, x.difference);
  if (status)
    return status;
  weir_offline_explanation now = {.size = explanation->size,
                                  .device = x.device,
                                  .cause = x.cause,
                                  .is_exact = !x.differences && !x.is_from_file,
                                  .event = x.event,
                                  .request = x.request,
                                  .wanted = x.wanted,
                                  .reserved = x.reserved,
                                  .allocated = x.bytes[WEIR__USE_LIVE],
                                  .largest_free = x.largest_hole,
                                  .limit = x.limit,
                                  .limit_is_inferred = x.limit_is_inferred,
                                  .missing = x.has_missing ? x.missing_max : UINT64_MAX,
                                  .enough_for_request = x.fit_request,
                                  .enough_for_recording = x.fit_recording};
  for (int use = WEIR__USE_FREE_WHOLE; use < WEIR__USES; use++)
    now.free += x.bytes[use];
  for (size_t i = x.trial_count; i-- > 0;) { /* the first that works counts */
    now.empty_cache_helps |= x.trials[i].works && x.trials[i].remedy == WEIR__REMEDY_EMPTY;
    if (x.trials[i].works && x.trials[i].remedy == WEIR__REMEDY_SETTING)
      snprintf(now.conf, sizeof now.conf, "%s", x.trials[i].conf);
  }
  weir__copy_sized(explanation, explanation->size, &now, sizeof now);
  return WEIR_OK;
}

/* ---- Drawing ---- */

static weir_status check_plot(const char *caller, const weir_offline_plot_options *o) {
  if ((unsigned)o->kind >= WEIR_OFFLINE_PLOTS || (unsigned)o->by >= WEIR_OFFLINE_GROUPS ||
      (unsigned)o->at >= WEIR_OFFLINE_MOMENTS)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT,
                      "%s: kind is %d, by is %d and at is %d, expected less than %d, %d and %d", caller, (int)o->kind,
                      (int)o->by, (int)o->at, (int)WEIR_OFFLINE_PLOTS, (int)WEIR_OFFLINE_GROUPS,
                      (int)WEIR_OFFLINE_MOMENTS);
  if ((o->width && (o->width < WEIR__PLOT_MIN_WIDTH || o->width > WEIR__PLOT_MAX_SIDE)) ||
      (o->height && (o->height < WEIR__PLOT_MIN_HEIGHT || o->height > WEIR__PLOT_MAX_SIDE)))
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the size is %d x %d, expected %d x %d to %d x %d", caller,
                      o->width, o->height, WEIR__PLOT_MIN_WIDTH, WEIR__PLOT_MIN_HEIGHT, WEIR__PLOT_MAX_SIDE,
                      WEIR__PLOT_MAX_SIDE);
  return WEIR_OK;
}

weir_status weir_offline_recording_plot(const weir_offline_recording *recording,
                                        const weir_offline_plot_options *options, weir_write_fn write, void *context) {
  weir_offline_plot_options o;
  weir_offline_plot_options_init(&o);
  if (!recording || !write)
    return null(__func__);
  weir_status status = weir__read_options(__func__, "options", &o, sizeof o, options);
  if (!status)
    status = check_plot(__func__, &o);
  if (!status)
    status = choose_device(__func__, inside(recording), &o.device);
  if (status)
    return status;
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  if (!file)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory", __func__);
  status = weir__plot_write(inside(recording),
                            &(weir__plot_options){.kind = o.kind,
                                                  .by = o.by,
                                                  .device = o.device,
                                                  .name = o.name,
                                                  .title = o.title,
                                                  .width = o.width,
                                                  .height = o.height,
                                                  .is_dark = o.is_dark != 0,
                                                  .moment = o.at,
                                                  .event = o.event > SIZE_MAX ? SIZE_MAX : (size_t)o.event},
                            file);
  bool is_full = ferror(file) != 0;
  is_full |= fclose(file) != 0;
  if (!status && is_full)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for the picture", __func__);
  int error = status ? 0 : write(context, text, size);
  if (error)
    status = weir__fail_output(__func__, error);
  free(text);
  return status;
}

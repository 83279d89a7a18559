#include "offline/render/view_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/classes.h"
#include "offline/analyse/describe.h"
#include "offline/render/diff_report.h"
#include "offline/render/explain_report.h"
#include "offline/render/leaks_report.h"
#include "offline/render/summary_report.h"
#include "offline/render/view_parts.h"
#include "offline/replay/plan.h"
#include "weir/runtime.h"

/* ---- Names ---- */

static void write_names(weir__view *view) {
  const weir__recording *recording = view->recording;
  char text[64], handle[32];
  WEIR__JSON(view->index, JSON_LIST("streams"));
  for (size_t i = 0; i < recording->stream_count; i++) {
    snprintf(handle, sizeof handle, "0x%llx", (unsigned long long)recording->streams[i]);
    WEIR__JSON(view->index, JSON_OBJECT(NULL), JSON_TEXT("name", weir__describe_stream(recording, (uint16_t)i, text)),
               JSON_TEXT("handle", handle), JSON_CLOSE);
  }
  WEIR__JSON(view->index, JSON_CLOSE, JSON_LIST("pools"));
  for (size_t i = 0; i < recording->pool_count && i < WEIR__LIFE_NO_POOL; i++) {
    WEIR__JSON(view->index, JSON_OBJECT(NULL), JSON_TEXT("name", weir__describe_pool(recording, (uint32_t)i, text)),
               JSON_LIST("id"), JSON_INTEGER(NULL, recording->pools[i].id[0]),
               JSON_INTEGER(NULL, recording->pools[i].id[1]), JSON_CLOSE, JSON_CLOSE);
  }
  WEIR__JSON(view->index, JSON_CLOSE, JSON_LIST("phases"), JSON_TEXT(NULL, ""));
  for (size_t i = 1; i < view->phase_count; i++)
    WEIR__JSON(view->index, JSON_TEXT(NULL, recording->strings.items[view->phase_names[i]].text));
  WEIR__JSON(view->index, JSON_CLOSE, JSON_LIST("class_names"));
  for (int i = 0; i < WEIR__CLASSES; i++)
    WEIR__JSON(view->index, JSON_TEXT(NULL, weir__class_name((weir__class)i)));
  WEIR__JSON(view->index, JSON_CLOSE);
}

/* ---- One recording ---- */

static void write_head(weir__view *view) {
  const weir__summary *s = &view->summary;
  bool is_known = !s->is_unknown && view->device->event_count;
  WEIR__JSON(view->index, JSON_TEXT("name", view->source->name), JSON_TEXT("conf", view->recording->conf),
             JSON_TEXT("setting_label", view->source->setting_label), JSON_INTEGER("device", view->number),
             JSON_LIST("devices"));
  for (size_t i = 0; i < view->recording->device_count; i++)
    if (view->recording->devices[i].event_count)
      WEIR__JSON(view->index, JSON_NATURAL(NULL, i));
  WEIR__JSON(view->index, JSON_CLOSE, JSON_NATURAL("entries", view->device->event_count),
             JSON_NATURAL("dropped", view->device->dropped), JSON_NATURAL("ooms", s->actions[WEIR_TRACE_OOM]),
             JSON_INTEGER("first_us", s->first_us), JSON_INTEGER("last_us", s->last_us),
             JSON_BOOL("is_complete", s->completeness == WEIR__HISTORY_COMPLETE), JSON_OBJECT("peak"),
             JSON_NATURAL_IF(is_known, "allocated", s->live.bytes),
             JSON_NATURAL_IF(is_known, "allocated_entry", s->live.event),
             JSON_NATURAL_IF(is_known, "reserved", s->reserved.bytes),
             JSON_NATURAL_IF(is_known, "reserved_entry", s->reserved.event), JSON_CLOSE);
}

static void write_axis(weir__view *view) {
  WEIR__JSON(view->index, JSON_NATURAL("height", view->axis.height), JSON_LIST("spans"));
  for (size_t i = 0; i < view->axis.count; i++) {
    const weir__view_span *s = &view->axis.spans[i];
    WEIR__JSON(view->index, JSON_OBJECT(NULL), JSON_NATURAL("y", s->y),
               JSON_NATURAL("address", s->first << WEIR__VIEW_UNIT_BITS), JSON_NATURAL("units", s->end - s->first),
               JSON_CLOSE);
  }
  WEIR__JSON(view->index, JSON_CLOSE);
}

static weir_status prepare(weir__view *view) {
  weir__settings settings;
  weir_status status = weir__summarize(view->recording, view->number, &view->summary);
  weir__view_step(view, 5);
  status = status ? status : weir__lives_make(view->recording, view->number, &view->lives);
  status = status ? status : weir__classes_make(view->recording, view->number, &view->lives, &view->classes);
  weir__view_step(view, 10);
  if (status)
    return status;
  size_t blocks = view->lives.block_count + 1, stacks = view->recording->stack_count + 1;
  view->width = view->device->event_count ? view->device->event_count : 1;
  view->y = malloc(blocks * sizeof *view->y);
  view->units = malloc(blocks * sizeof *view->units);
  view->stack_number = calloc(stacks, sizeof *view->stack_number);
  view->stack_list = malloc(stacks * sizeof *view->stack_list);
  weir__plan_settings(view->recording, view->number, &settings);
  if (!view->y || !view->units || !view->stack_number || !view->stack_list ||
      !weir__view_axis_make(&view->lives, &view->axis) ||
      !weir__view_axis_place(&view->axis, &view->lives, &settings, view->y, view->units))
    return weir__view_no_memory();
  weir__view_stack(view, 0);
  status = weir__view_find_phases(view);
  weir__view_step(view, 20);
  return status ? status : weir__view_sweep(view);
}

/* Writes a report that has been made, and clears it. */
static weir_status write_report(weir__report *report, weir__sink *index, const char *key) {
  weir_status status = weir__report_status(report);
  if (!status)
    weir__report_json(report, index, key);
  weir__report_clear(report);
  return status;
}

/* The object of `weir summary --json`. */
static weir_status write_summary(weir__view *view) {
  const weir__recording *recording = view->recording;
  weir__summary *devices = calloc(recording->device_count, sizeof *devices);
  weir__summary_classes *classes = calloc(recording->device_count, sizeof *classes);
  weir_status status = WEIR_OK;
  if (!devices || !classes) {
    free(devices);
    free(classes);
    return weir__view_no_memory();
  }
  for (size_t i = 0; i < recording->device_count && !status; i++) {
    if ((int)i == view->number) {
      devices[i] = view->summary;
      if (!view->summary.is_unknown && view->device->event_count)
        weir__summary_classes_of(&view->summary, &view->lives, &view->classes, &classes[i]);
      continue;
    }
    status = weir__summarize(recording, (int)i, &devices[i]);
    status = status ? status : weir__summarize_classes(recording, (int)i, &devices[i], &classes[i]);
  }
  if (!status) {
    weir__report report;
    weir__summary_report(&report, view->source->name, recording, devices, classes, NULL);
    status = write_report(&report, view->index, "summary");
  }
  free(devices);
  free(classes);
  return status;
}

weir_status weir__view_explain(const weir__recording *recording, int device, const weir__view_options *options,
                               weir__explanation *explanation, bool *is_explained) {
  const weir__recording_device *d = &recording->devices[device];
  weir__explain_options explain = {.device = device,
                                   .moment = WEIR_OFFLINE_AT_OOM,
                                   .no_trials = d->event_count > WEIR__VIEW_MAX_TRIED,
                                   .progress = options->step,
                                   .progress_context = options->step_context};
  size_t i = 0;
  while (i < d->event_count && d->events[i].action != WEIR_TRACE_OOM)
    i++;
  *is_explained = false;
  if (i == d->event_count)
    return WEIR_OK;
  weir_status status = weir__explain(recording, &explain, explanation);
  *is_explained = !status;
  return status == WEIR_ERROR_HOST_OUT_OF_MEMORY ? status : WEIR_OK;
}

/* The object of `weir explain --json`, if a request failed. */
static weir_status write_explanation(weir__view *view) {
  const weir__explanation *x = view->source->explanation;
  weir__explanation *made = x || view->source->no_explain ? NULL : malloc(sizeof *made);
  weir_status status = WEIR_OK;
  if (!x && made) {
    bool is_explained;
    status = weir__view_explain(view->recording, view->number, view->options, made, &is_explained);
    if (status) {
      free(made);
      return status;
    }
    x = is_explained ? made : NULL;
  }
  if (x) {
    weir__report report;
    weir__explain_report(&report, view->source->name, view->recording, x);
    status = write_report(&report, view->index, "explain");
  } else
    WEIR__JSON(view->index, JSON_NULL("explain"));
  WEIR__JSON(view->index, JSON_TEXT("explain_text", view->source->explain_text));
  free(made);
  return status;
}

/* The object of `weir leaks --json`. A prediction has the allocations of its recording, and so the same leaks. */
static weir_status write_leaks(weir__view *view) {
  weir__leaks leaks;
  if (view->source->setting_label) {
    WEIR__JSON(view->index, JSON_NULL("leaks"));
    return WEIR_OK;
  }
  weir_status status = weir__leaks_find(view->recording, view->number, NULL, &leaks);
  if (status)
    return status;
  weir__report report;
  weir__leaks_report(&report, view->recording, view->source->name, &leaks, 0);
  weir__leaks_clear(&leaks);
  return write_report(&report, view->index, "leaks");
}

static weir_status write_classes(weir__view *view) {
  uint64_t bytes[WEIR__CLASSES] = {0};
  if (!view->classes.is_known || view->summary.is_unknown) {
    WEIR__JSON(view->index, JSON_NULL("classes"));
    return WEIR_OK;
  }
  weir__classes_sum(&view->lives, &view->classes, view->summary.live.event, bytes);
  WEIR__JSON(view->index, JSON_OBJECT("classes"), JSON_NATURAL("steps", view->classes.steps), JSON_OBJECT("at_peak"));
  for (int i = 0; i < WEIR__CLASSES; i++)
    WEIR__JSON(view->index, JSON_NATURAL(weir__class_name((weir__class)i), bytes[i]));
  WEIR__JSON(view->index, JSON_CLOSE, JSON_CLOSE);
  return WEIR_OK;
}

static weir_status write_parts(weir__view *view) {
  static weir_status (*const parts[])(weir__view *) = {write_summary,
                                                       write_explanation,
                                                       write_classes,
                                                       weir__view_write_times,
                                                       weir__view_write_marks,
                                                       weir__view_write_groups,
                                                       weir__view_write_counters,
                                                       weir__view_write_segments,
                                                       weir__view_write_blocks,
                                                       weir__view_write_stacks};
  write_head(view);
  write_axis(view);
  write_names(view);
  for (size_t i = 0; i < WEIR_COUNT_OF(parts); i++) {
    weir_status status = parts[i](view);
    if (status)
      return status;
  }
  return WEIR_OK;
}

static void clear(weir__view *view) {
  weir__lives_clear(&view->lives);
  weir__view_axis_clear(&view->axis);
  weir__view_columns_clear(&view->columns);
  free(view->y);
  free(view->units);
  free(view->phase);
  weir__classes_clear(&view->classes);
  free(view->phase_names);
  free(view->stack_number);
  free(view->stack_list);
}

static weir_status write_recording(const weir__view_source *source, int part, const weir__view_options *options,
                                   weir__view_data *data, weir__sink *index) {
  weir__view view = {
      .source = source, .options = options, .recording = source->recording, .part = part, .data = data, .index = index};
  view.number = source->device < 0 ? weir__recording_first_device(source->recording) : source->device;
  if ((size_t)view.number >= source->recording->device_count)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: it has no device %d", source->name, view.number);
  view.device = &source->recording->devices[view.number];
  WEIR__JSON(index, JSON_OBJECT(NULL));
  weir_status status = write_leaks(&view); /* first, since it takes memory that the rest needs then */
  status = status ? status : prepare(&view);
  status = status ? status : write_parts(&view);
  WEIR__JSON(index, JSON_CLOSE);
  clear(&view);
  return status;
}

/* ---- The whole ---- */

/* The object of `weir diff --json`, of two recordings. */
static weir_status write_diff(const weir__view_source *sources, size_t count, weir__sink *index) {
  weir__diff diff;
  if (count < 2) {
    WEIR__JSON(index, JSON_NULL("diff"));
    return WEIR_OK;
  }
  const weir__diff_options options = {
      .device = {sources[0].device, sources[1].device}, .file = {sources[0].name, sources[1].name}, .fail_above = -1};
  weir_status status = weir__diff_make(sources[0].recording, sources[1].recording, &options, &diff);
  if (status)
    return status;
  weir__report report;
  weir__diff_report(&report, &diff, 0, 0);
  weir__diff_clear(&diff);
  return write_report(&report, index, "diff");
}

static void write_chunks(const weir__view_data *data, weir__sink *index) {
  WEIR__JSON(index, JSON_LIST("chunks"));
  for (size_t i = 0; i < data->count; i++) {
    const weir__view_chunk *c = &data->table[i];
    WEIR__JSON(index, JSON_OBJECT(NULL), JSON_TEXT("name", c->name), JSON_NATURAL("offset", c->offset),
               JSON_NATURAL("stored", c->stored), JSON_NATURAL("bytes", c->bytes),
               JSON_TEXT("encoding", c->is_deflated ? "deflate" : "raw"), JSON_CLOSE);
  }
  WEIR__JSON(index, JSON_CLOSE);
}

weir_status weir__view_make(const weir__view_source *sources, size_t count, const weir__view_options *options,
                            weir__view_data *data) {
  weir__view_data made = {0};
  char *text = NULL;
  size_t size = 0;
  weir__sink *index = malloc(sizeof *index);
  FILE *file = index ? open_memstream(&text, &size) : NULL;
  if (!file) {
    free(index);
    return weir__view_no_memory();
  }
  char producer[64];
  weir_status status = WEIR_OK;
  snprintf(producer, sizeof producer, "weir %s", weir_version());
  weir__sink_begin(index, &weir__json_format, weir_write_file, file);
  WEIR__JSON(index, JSON_OBJECT(NULL), JSON_INTEGER("version", WEIR__VIEW_VERSION), JSON_TEXT("producer", producer),
             JSON_LIST("recordings"));
  for (size_t i = 0; i < count && !status; i++)
    status = write_recording(&sources[i], (int)i, options, &made, index);
  WEIR__JSON(index, JSON_CLOSE);
  if (!status)
    status = write_diff(sources, count, index);
  write_chunks(&made, index);
  WEIR__JSON(index, JSON_CLOSE);
  weir_status ended = weir__sink_end(index, NULL);
  if (fclose(file) && !ended)
    ended = weir__view_no_memory();
  status = status ? status : ended;
  free(index);
  made.index = text;
  made.index_size = size;
  if (status)
    weir__view_clear(&made);
  else
    *data = made;
  return status;
}

void weir__view_clear(weir__view_data *data) {
  free(data->index);
  free(data->chunks);
  free(data->table);
  *data = (weir__view_data){0};
}

void weir__view_header(const weir__view_data *data, unsigned char header[WEIR__VIEW_HEADER]) {
  static const char name[8] = {'W', 'E', 'I', 'R', 'V', 'I', 'E', 'W'};
  const uint64_t numbers[2] = {WEIR__VIEW_VERSION, data->index_size};
  memcpy(header, name, sizeof name);
  for (size_t i = 0; i < 8; i++)
    header[8 + i] = (unsigned char)(numbers[i / 4] >> (8 * (i % 4)));
}

size_t weir__view_size(const weir__view_data *data) { return WEIR__VIEW_HEADER + data->index_size + data->chunk_bytes; }

weir_status weir__view_write(const weir__view_data *data, FILE *file) {
  unsigned char header[WEIR__VIEW_HEADER];
  weir__view_header(data, header);
  if (fwrite(header, sizeof header, 1, file) != 1 || fwrite(data->index, data->index_size, 1, file) != 1 ||
      (data->chunk_bytes && fwrite(data->chunks, data->chunk_bytes, 1, file) != 1))
    return weir__fail(WEIR_ERROR_SYSTEM, "the view was not written whole: %s", strerror(errno));
  return WEIR_OK;
}

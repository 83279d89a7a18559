/*
 * The WebAssembly module of the page: reads a recording, makes its view data, and replays it under other settings. The
 * page's Worker calls these functions one at a time (viewer/src/worker.ts).
 *
 * A function that returns a bool returns false with weir_page_error() set. Results are parts, each an address and a
 * size, which are valid until the next call.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "inspect/json.h"
#include "offline/render/predict_report.h"
#include "offline/render/rewrite.h"
#include "offline/render/view_data.h"
#include "weir/runtime.h"

#define EXPORT(name) __attribute__((export_name(#name)))
#define IMPORT(name) __attribute__((import_module("weir"), import_name(#name)))

/* Copies at most `room` bytes of the file to `to`; 0 at the end. */
IMPORT(read) extern size_t page_read(void *to, size_t room);

/* `done` of `count` is done. */
IMPORT(progress) extern void page_progress(size_t done, size_t count);

enum { MAX_PARTS = 4 };

static struct {
  weir__recording *recording;
  char *name;

  /* The device that was replayed last. */
  weir__replayer *replayer;
  int device;
  uint64_t memory;
  weir__costs costs;
  weir__whatif_row rows[WEIR__WHATIF_OWN_ROWS + 1]; /* the first two depend on the device and its memory only */
  bool has_own_rows;

  weir__view_data view;
  unsigned char header[WEIR__VIEW_HEADER];
  char *json;
  struct {
    const void *at;
    size_t size;
  } parts[MAX_PARTS];
  int part_count;
} page;

/* ---- Memory and results ---- */

EXPORT(weir_page_alloc) void *weir_page_alloc(size_t bytes);
EXPORT(weir_page_free) void weir_page_free(void *memory);
EXPORT(weir_page_error) const char *weir_page_error(void);
EXPORT(weir_page_part_count) int weir_page_part_count(void);
EXPORT(weir_page_part) const void *weir_page_part(int part);
EXPORT(weir_page_part_size) size_t weir_page_part_size(int part);
EXPORT(weir_page_load) bool weir_page_load(const char *name);
EXPORT(weir_page_info) bool weir_page_info(void);
EXPORT(weir_page_view) bool weir_page_view(int device);
EXPORT(weir_page_prepare) bool weir_page_prepare(int device);
EXPORT(weir_page_whatif) bool weir_page_whatif(const char *conf, int device, double memory);
EXPORT(weir_page_pickle) bool weir_page_pickle(const char *conf, int device, double memory);

void *weir_page_alloc(size_t bytes) { return malloc(bytes); }

void weir_page_free(void *memory) { free(memory); }

const char *weir_page_error(void) { return weir_last_error(); }

int weir_page_part_count(void) { return page.part_count; }

const void *weir_page_part(int part) { return page.parts[part].at; }

size_t weir_page_part_size(int part) { return page.parts[part].size; }

static void clear_parts(void) {
  weir__view_clear(&page.view);
  free(page.json);
  page.json = NULL;
  page.part_count = 0;
}

static void add_part(const void *at, size_t size) {
  page.parts[page.part_count].at = at;
  page.parts[page.part_count++].size = size;
}

/* ---- Writing JSON ---- */

typedef void write_function(weir__sink *sink, const void *context);

/* An object whose members `write` writes becomes the next part. */
static bool add_json(write_function *write, const void *context) {
  size_t size = 0;
  weir__sink *sink = malloc(sizeof *sink);
  FILE *file = sink ? open_memstream(&page.json, &size) : NULL;
  if (!file) {
    free(sink);
    weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for the answer");
    return false;
  }
  weir__sink_begin(sink, &weir__json_format, weir_write_file, file);
  WEIR__JSON(sink, JSON_OBJECT(NULL));
  write(sink, context);
  WEIR__JSON(sink, JSON_CLOSE);
  weir_status status = weir__sink_end(sink, NULL);
  if (fclose(file) && !status)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for the answer");
  free(sink);
  if (!status)
    add_part(page.json, size);
  return !status;
}

/* ---- Loading ---- */

static size_t read_source(void *context, void *to, size_t room) {
  (void)context;
  return page_read(to, room);
}

/* A file that is too large for WebAssembly is not too large for the program. Returns whether all is well. */
static bool name_the_command(weir_status status) {
  if (status == WEIR_ERROR_HOST_OUT_OF_MEMORY) {
    char *why = strdup(weir_last_error());
    weir__fail(status, "%s. WebAssembly has at most 4 GiB of memory: use `weir view %s` on a command line",
               why ? why : "out of memory", page.name ? page.name : "FILE");
    free(why);
  }
  return !status;
}

static void unload(void) {
  clear_parts();
  weir__replayer_close(page.replayer);
  page.replayer = NULL;
  weir__recording_free(page.recording);
  page.recording = NULL;
  free(page.name);
  page.name = NULL;
}

bool weir_page_load(const char *name) {
  weir__input *input = NULL;
  unload();
  page.name = strdup(name);
  weir_status status = page.name ? weir__input_open_source(name, read_source, NULL, &input)
                                 : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: no memory to read it", name);
  if (!status)
    status = weir__recording_load_input(input, NULL, &page.recording);
  return name_the_command(status);
}

static void write_info(weir__sink *sink, const void *context) {
  const weir__recording *r = page.recording;
  int device = weir__recording_first_device(r);
  (void)context;
  WEIR__JSON(sink, JSON_TEXT("name", page.name), JSON_INTEGER("device", device), JSON_LIST("devices"));
  for (size_t i = 0; i < r->device_count; i++)
    if (r->devices[i].event_count || r->devices[i].segment_count)
      WEIR__JSON(sink, JSON_NATURAL(NULL, i));
  size_t entries = (size_t)device < r->device_count ? r->devices[device].event_count : 0;
  WEIR__JSON(sink, JSON_CLOSE, JSON_TEXT("conf", r->conf), JSON_NATURAL("entries", entries));
}

static bool is_loaded(void) {
  if (!page.recording)
    weir__fail(WEIR_ERROR_BAD_STATE, "no file is open");
  return page.recording != NULL;
}

bool weir_page_info(void) {
  clear_parts();
  return is_loaded() && add_json(write_info, NULL);
}

/* ---- Views ---- */

static void step(void *context, size_t done, size_t count) {
  (void)context;
  page_progress(done, count);
}

static bool add_view(const weir__view_source *source) {
  const weir__view_options options = {.is_raw = true, .step = step};
  if (weir__view_make(source, 1, &options, &page.view))
    return false;
  weir__view_header(&page.view, page.header);
  add_part(page.header, sizeof page.header);
  add_part(page.view.index, page.view.index_size);
  add_part(page.view.chunks, page.view.chunk_bytes);
  return true;
}

/* The parts are the view data. */
bool weir_page_view(int device) {
  clear_parts();
  return is_loaded() &&
         add_view(&(weir__view_source){.recording = page.recording, .device = device, .name = page.name});
}

/* ---- What if ---- */

static bool open_replayer(int device) {
  if (page.replayer && page.device == device)
    return true;
  weir__replayer_close(page.replayer);
  page.replayer = NULL;
  page.device = device;
  page.has_own_rows = false;
  weir__costs_default(&page.costs);
  return !weir__replayer_open(page.recording, device, 0, 0, &page.replayer);
}

static void write_whatif(weir__sink *sink, const void *context) {
  const weir__whatif *whatif = context;
  weir__report report;
  weir__whatif_report(&report, whatif, whatif->file);
  weir__report_json_members(&report, sink);
  weir__report_clear(&report);
}

/* Predicts the rows that are the same under all settings, unless that was done. */
static bool predict_own_rows(const weir__whatif *whatif) {
  for (size_t row = 0; row < WEIR__WHATIF_OWN_ROWS && (!page.has_own_rows || page.memory != whatif->memory); row++) {
    weir__whatif_predict(whatif, row, &page.rows[row], NULL);
    if (page.rows[row].p.status)
      return false;
  }
  page.has_own_rows = true;
  page.memory = whatif->memory;
  return true;
}

/* Does what the first prediction of a device needs, so that it does not take longer than others. */
bool weir_page_prepare(int device) {
  if (!is_loaded() || !open_replayer(device))
    return false;
  return predict_own_rows(&(weir__whatif){
      .history = page.replayer, .file = page.name, .device = device, .costs = &page.costs, .rows = page.rows});
}

/* Predicts under settings; the answer as JSON is the next part. */
static bool predict(const char *conf, int device, double memory, weir__whatif_history **history) {
  weir__settings settings;
  if (!is_loaded() || weir__settings_parse(NULL, conf, &settings) || !open_replayer(device))
    return false;
  const weir__whatif whatif = {.history = page.replayer,
                               .file = page.name,
                               .device = device,
                               .confs = &conf,
                               .settings = &settings,
                               .conf_count = 1,
                               .memory = memory > 0 ? (uint64_t)memory : 0,
                               .costs = &page.costs,
                               .rows = page.rows};
  if (!predict_own_rows(&whatif))
    return false;
  weir__whatif_predict(&whatif, WEIR__WHATIF_OWN_ROWS, &page.rows[WEIR__WHATIF_OWN_ROWS], history);
  if (page.rows[WEIR__WHATIF_OWN_ROWS].p.status)
    return false;
  if (add_json(write_whatif, &whatif))
    return true;
  weir__whatif_history_free(*history);
  return false;
}

/* The parts are the JSON of `weir whatif --json`, and the view data of the predicted history. */
bool weir_page_whatif(const char *conf, int device, double memory) {
  weir__whatif_history *history = NULL;
  clear_parts();
  if (!predict(conf, device, memory, &history))
    return false;
  bool done = add_view(&(weir__view_source){.recording = weir__whatif_history_recording(history),
                                            .device = device,
                                            .name = page.name,
                                            .setting_label = *conf ? conf : "the defaults"});
  weir__whatif_history_free(history);
  return done;
}

/* The part is the predicted history as a pickle: what `weir whatif --write` writes. */
bool weir_page_pickle(const char *conf, int device, double memory) {
  weir__whatif_history *history = NULL;
  char *pickle = NULL;
  size_t size = 0;
  clear_parts();
  if (!predict(conf, device, memory, &history))
    return false;
  clear_parts();
  FILE *file = open_memstream(&pickle, &size);
  weir_status status =
      file ? weir__rewrite(weir__whatif_history_recording(history), -1, &weir__pickle_format, step, NULL, file)
           : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for the file");
  if (file && fclose(file) && !status)
    status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for the file");
  weir__whatif_history_free(history);
  page.json = pickle;
  if (!status)
    add_part(page.json, size);
  return !status;
}

/* ---- In place of runtime/, which the module does not have ---- */

const char *weir_version(void) {
#define VERSION(major, minor, patch) WEIR__STRING(major) "." WEIR__STRING(minor) "." WEIR__STRING(patch)
  return VERSION(WEIR_VERSION_MAJOR, WEIR_VERSION_MINOR, WEIR_VERSION_PATCH);
}

/*
 * weir view: a page that shows a recorded history.
 */
#include <limits.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "offline/export.h"
#include "offline/output_file.h"
#include "offline/view_data.h"
#include "progress.h"

static struct {
  int device; /* -1 for the default */
  const char *to;
  bool data;
} options = {.device = -1};

static weir_status load(const char *file, weir__recording **recording) {
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, recording);
  weir_cli_progress_end(progress);
  return status;
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash && slash[1] ? slash + 1 : path;
}

static weir_status write_data(const weir__view_data *data) {
  weir__output_file target;
  weir_status status = weir__output_file_begin(&target, options.to, WEIR__OUTFILE_WRITE);
  if (status)
    return status;
  status = weir__output_file_open(&target);
  status = status ? status : weir__view_write(data, target.file);
  status = status ? status : weir__output_file_close(&target);
  status = status ? status : weir__output_file_keep(&target);
  weir__output_file_end(&target);
  return status;
}

static weir_status view(int count, char **files) {
  weir__recording *recordings[WEIR__VIEW_MOST_SOURCES] = {0};
  weir__view_source sources[WEIR__VIEW_MOST_SOURCES] = {0};
  weir__view_data data = {0};
  weir_status status = WEIR_OK;
  for (int i = 0; i < count && !status; i++) {
    status = load(files[i], &recordings[i]);
    sources[i] = (weir__view_source){.recording = recordings[i], .device = options.device, .name = base_name(files[i])};
  }
  if (!status) {
    weir_cli_progress *progress = weir_cli_progress_begin("drawing");
    status = weir__view_make(sources, (size_t)count,
                             &(weir__view_options){.step = weir_cli_progress_step, .step_context = progress}, &data);
    weir_cli_progress_end(progress);
  }
  for (int i = 0; i < count; i++)
    weir__recording_free(recordings[i]);
  status = status ? status : write_data(&data);
  weir__view_clear(&data);
  return status;
}

static int run(int count, char **files) {
  if (count > WEIR__VIEW_MOST_SOURCES)
    return weir_cli_usage("at most two files can be compared");
  return view(count, files) ? weir_cli_fail("%s", weir_last_error()) : WEIR_EXIT_OK;
}

static const weir_cli_option option_table[] = {
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.to,
     .help = "the file to write; - is standard output"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = INT_MAX,
     .help = "the device. Default: the first that ran out of memory, else the first with a history"},
    {"data", .target = &options.data, .help = "write the data of the page alone, in the format of docs/view.md"},
    {0}};

const weir_cli_command weir_cmd_view = {.name = "view",
                                        .summary = "show a recorded memory history, or compare two, in a web page",
                                        .description = "Show a recorded memory history, or compare two, in a web page.",
                                        .argument = "FILE...",
                                        .options = option_table,
                                        .exit = {"written", "a file cannot be read, or the page cannot be written"},
                                        .run = run};

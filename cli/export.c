/*
 * weir export: a recorded history converted for other programs.
 */
#include "offline/render/export.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "inspect/json.h"
#include "moment.h"
#include "offline/render/output_file.h"
#include "progress.h"
#include "report.h"

enum format { FORMAT_JSON, FORMAT_SQLITE, FORMAT_CSV, FORMAT_PERFETTO, FORMAT_COLLAPSED, FORMAT_SPEEDSCOPE };

static struct {
  int format; /* enum format */
  int table;  /* weir__export_table; -1 if not given */
  int device; /* -1 for all */
  weir_offline_moment moment;
  size_t event;
  const char *to;
} options = {.table = -1, .device = -1};

static weir_cli_progress *progress;

static weir_status write_text(void *context, FILE *file) {
  const weir__recording *recording = context;
  switch ((enum format)options.format) {
  case FORMAT_JSON:
    return weir__rewrite(recording, options.device, &weir__json_format, weir_cli_progress_step, progress, file);
  case FORMAT_CSV:
    return weir__export_csv(recording, options.device,
                            options.table < 0 ? WEIR__EXPORT_EVENTS : (weir__export_table)options.table,
                            weir_cli_progress_step, progress, file);
  case FORMAT_COLLAPSED:
    return weir__export_collapsed(recording, options.device, options.moment, options.event, file);
  case FORMAT_SPEEDSCOPE:
    return weir__export_speedscope(recording, options.device, options.moment, options.event, file);
  default:
    return weir__export_perfetto(recording, options.device, weir_cli_progress_step, progress, file);
  }
}

static weir_status write_database(const weir__recording *recording) {
  weir__output_file target;
  weir_status status = weir__output_file_begin(&target, options.to, WEIR__OUTFILE_BY_PATH);
  if (status)
    return status;
  status = weir__export_sqlite(recording, options.device, weir_cli_progress_step, progress,
                               target.path ? target.path : "standard output", weir__outfile_contents(&target.out));
  if (!status)
    status = weir__output_file_keep(&target);
  weir__output_file_end(&target);
  return status;
}

static int export_file(const char *file) {
  weir__recording *recording;
  if (weir_cli_load(file, &recording))
    return weir_cli_fail("%s", weir_last_error());
  if (options.device >= 0 && weir__recording_check_device(recording, weir_cli_input_name(file), options.device)) {
    weir_cli_fail("%s", weir_last_error());
    weir__recording_free(recording);
    return WEIR_EXIT_FAILED;
  }
  weir__recording_clean_texts(recording);
  progress = weir_cli_progress_begin("writing");
  weir_status status = options.format == FORMAT_SQLITE ? write_database(recording)
                                                       : weir__output_file_write(options.to, write_text, recording);
  weir_cli_progress_end(progress);
  weir__recording_free(recording);
  if (status == WEIR_ERROR_INVALID_ARGUMENT) /* the recording does not have what is to be written */
    return weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  return status ? weir_cli_fail("%s", weir_last_error()) : WEIR_EXIT_OK;
}

static int run(int count, char **arguments) {
  size_t length = options.to ? strlen(options.to) : 0;
  (void)count;
  if (options.table >= 0 && options.format != FORMAT_CSV)
    return weir_cli_usage("--table is for csv");
  if (options.moment != WEIR_OFFLINE_AT_AUTO && options.format != FORMAT_COLLAPSED &&
      options.format != FORMAT_SPEEDSCOPE)
    return weir_cli_usage("--at is for collapsed and speedscope");
  if (options.format == FORMAT_SQLITE && length > 4 && strcmp(options.to + length - 4, ".zst") == 0)
    return weir_cli_usage("a database is not compressed: leave .zst out of its name");
  if (options.format == FORMAT_SQLITE && !options.to)
    return weir_cli_usage("a database is binary: name its file with -o (- is standard output)");
  return export_file(arguments[0]);
}

static const weir_cli_choice formats[] = {
    [FORMAT_JSON] = {"json", "the whole file with PyTorch's keys; every entry has its full stack"},
    [FORMAT_SQLITE] = {"sqlite", "a database with indexed tables segments, blocks, events, stacks, frames, "
                                 "annotations, settings and work; needs -o"},
    [FORMAT_CSV] = {"csv", "one of these tables, see --table"},
    [FORMAT_PERFETTO] = {"perfetto", "a trace for ui.perfetto.dev and chrome://tracing: memory over time, entries, "
                                     "annotated ranges, lives of blocks, and the profiled work of a software run"},
    [FORMAT_COLLAPSED] = {"collapsed", "memory in use at a moment by stack, for flame graphs: see --at"},
    [FORMAT_SPEEDSCOPE] = {"speedscope", "the same for speedscope.app"},
    {0}};

#define X(name, text, sql) [WEIR__EXPORT_##name] = {text, NULL},
static const weir_cli_choice tables[] = {WEIR__EXPORT_MAP(X){0}};
#undef X

static int read_moment(const char *text) { return weir_cli_read_moment(text, &options.moment, &options.event); }

static const weir_cli_option option_table[] = {
    {"to", .kind = WEIR_CLI_CHOICE, .value = "FORMAT", .target = &options.format, .choices = formats,
     .is_required = true, .help = "the format:"},
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.to,
     .help = "the file to write; an existing one is replaced only when the new one is complete. Links are followed, "
             "and devices and FIFOs written to directly. A name that ends in .zst is compressed (not sqlite). "
             "Default: -, standard output"},
    {"at", .value = "MOMENT", .choices = weir_cli_moments, .read = read_moment, .takes = WEIR_CLI_MOMENT_TAKES,
     .help = "the moment of collapsed and speedscope: the number of an entry, or one of the following. Default: oom, "
             "or peak if no request failed"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = 1023,
     .help = "export one device only"},
    {"table", .kind = WEIR_CLI_CHOICE, .value = "NAME", .target = &options.table, .choices = tables,
     .help = "the table for csv: segments, blocks, events, stacks, frames, annotations, settings or "
             "work (the profiled work of a software run, and ranges). Default: events"},
    {0}};

const weir_cli_command weir_cmd_export = {
    .name = "export",
    .group = "Share",
    .summary = "convert a recorded memory history to JSON, SQLite, CSV, Perfetto or a flame graph",
    .description = "Convert a recorded memory history for other programs.",
    .argument = "FILE",
    .options = option_table,
    .exit = {"written", "the file cannot be read, or the output cannot be written"},
    .run = run};

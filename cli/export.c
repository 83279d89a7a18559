/*
 * weir export: a recorded history for other programs.
 */
#include "offline/export.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "offline/output_file.h"
#include "progress.h"
#include "shown.h"

enum form { FORM_NONE, FORM_JSON, FORM_SQLITE, FORM_CSV, FORM_PERFETTO };

static const char *const form_names[] = {
    [FORM_JSON] = "json", [FORM_SQLITE] = "sqlite", [FORM_CSV] = "csv", [FORM_PERFETTO] = "perfetto"};

typedef struct export_options {
  enum form form;
  weir__export_table table;
  int device; /* -1: all */
  const char *to;
} export_options;

static void print_help(void) {
  weir_cli_help_begin();
  fputs(
      "Usage: weir export --to json|sqlite|csv|perfetto [OPTION...] FILE\n"
      "\n"
      "Writes a recorded memory history for other programs. A FILE is what torch.cuda.memory._dump_snapshot() writes,\n"
      "plain or compressed with zstd or gzip, or a recording that WEIR_RECORD made; - is the standard input.\n"
      "\n"
      "  json       what is in the file, with PyTorch's keys; stacks are written out with every event\n"
      "  sqlite     a database with the tables segments, blocks, events, stacks, frames, annotations and settings,\n"
      "             and with indices; needs -o\n"
      "  csv        one of these tables\n"
      "  perfetto   a trace that ui.perfetto.dev and chrome://tracing open: memory over time, events, marked ranges\n"
      "\n"
      "Options:\n"
      "  --to FORM       one of these\n"
      "  -o, --output OUT  the file to write, which is replaced only when the new one is complete; links are "
      "followed,\n"
      "                  devices and FIFOs written through. A name that ends in .zst is compressed (not sqlite). "
      "Without\n"
      "                  it, or with -: the standard output\n"
      "  --device N      one device only\n"
      "  --table NAME    csv: which table; events if none is named\n"
      "  -h, --help      this text\n"
      "\n"
      "Exit codes: 0 written; 1 the file cannot be read, or the other not written; 2 invalid usage.\n",
      stdout);
}

static weir_status write_to(const weir__recording *snapshot, const export_options *options, weir_cli_progress *progress,
                            weir__output_file *target) {
  if (options->form == FORM_SQLITE) {
    weir_status status =
        weir__export_sqlite(snapshot, options->device, weir_cli_progress_step, progress,
                            target->path ? target->path : "standard output", weir__outfile_contents(&target->out));
    return status ? status : weir__output_file_keep(target);
  }
  weir_status status = weir__output_file_open(target);
  if (status)
    return status;
  if (options->form == FORM_JSON)
    status =
        weir__rewrite(snapshot, options->device, &weir__json_format, weir_cli_progress_step, progress, target->file);
  else if (options->form == FORM_CSV)
    status =
        weir__export_csv(snapshot, options->device, options->table, weir_cli_progress_step, progress, target->file);
  else
    status = weir__export_perfetto(snapshot, options->device, weir_cli_progress_step, progress, target->file);
  if (!status)
    status = weir__output_file_close(target);
  return status ? status : weir__output_file_keep(target);
}

static int export_file(const char *file, const export_options *options) {
  weir__recording *snapshot;
  weir__output_file target;
  weir_cli_progress *progress = weir_cli_progress_begin("reading");
  weir_status status = weir__recording_load(file, NULL, &snapshot);
  weir_cli_progress_end(progress);
  if (status) {
    fprintf(stderr, "weir export: %s\n", weir_last_error());
    return WEIR_EXIT_FAILED;
  }
  if (options->device >= 0 && (size_t)options->device >= snapshot->device_count) {
    fprintf(stderr, "weir export: %s: there is no device %d; there are %zu, from 0 on\n", weir_cli_shown(file),
            options->device, snapshot->device_count);
    weir__recording_free(snapshot);
    return WEIR_EXIT_FAILED;
  }
  weir__export_clean(snapshot);
  progress = weir_cli_progress_begin("writing");
  status = weir__output_file_begin(&target, options->to,
                                   options->form == FORM_SQLITE ? WEIR__OUTFILE_BY_PATH : WEIR__OUTFILE_WRITE);
  if (!status) {
    status = write_to(snapshot, options, progress, &target);
    weir__output_file_end(&target);
  }
  weir_cli_progress_end(progress);
  weir__recording_free(snapshot);
  if (status)
    fprintf(stderr, "weir export: %s\n", weir_last_error());
  return status ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
}

static bool read_form(const char *text, enum form *form) {
  for (int i = FORM_JSON; i <= FORM_PERFETTO; i++)
    if (strcmp(form_names[i], text) == 0) {
      *form = (enum form)i;
      return true;
    }
  return false;
}

static bool read_table(const char *text, weir__export_table *table) {
  for (int i = 0; i < WEIR__EXPORT_TABLES; i++)
    if (strcmp(weir__export_table_name((weir__export_table)i), text) == 0) {
      *table = (weir__export_table)i;
      return true;
    }
  return false;
}

int weir_cmd_export(int argc, char **argv) {
  static const struct option long_options[] = {
      {"to", required_argument, NULL, 't'},     {"output", required_argument, NULL, 'o'},
      {"device", required_argument, NULL, 'd'}, {"table", required_argument, NULL, 'b'},
      {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  export_options options = {.device = -1, .table = WEIR__EXPORT_EVENTS};
  bool has_table = false;
  char *end;
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":ho:", long_options, NULL)) != -1;) {
    switch (option) {
    case 't':
      if (!read_form(optarg, &options.form))
        return weir_cli_usage("export", "--to takes json, sqlite, csv or perfetto, not '%s'", optarg);
      break;
    case 'o':
      options.to = optarg;
      break;
    case 'd': {
      long number = strtol(optarg, &end, 10);
      if (*end || end == optarg || number < 0 || number > 1023)
        return weir_cli_usage("export", "--device takes a number from 0 to 1023, not '%s'", optarg);
      options.device = (int)number;
      break;
    }
    case 'b':
      if (!read_table(optarg, &options.table))
        return weir_cli_usage(
            "export", "--table takes events, segments, blocks, stacks, frames, annotations or settings, not '%s'",
            optarg);
      has_table = true;
      break;
    case 'h':
      print_help();
      return WEIR_EXIT_OK;
    case ':':
      return weir_cli_usage("export", "%s needs a value", argv[optind - 1]);
    default:
      return weir_cli_usage("export", "there is no option '%s'", argv[optind - 1]);
    }
  }
  if (optind == argc)
    return weir_cli_usage("export", "no file is named");
  if (optind + 1 < argc)
    return weir_cli_usage("export", "one file at a time, and '%s' is one more", argv[optind + 1]);
  if (options.form == FORM_NONE)
    return weir_cli_usage("export", "--to says in which form: json, sqlite, csv or perfetto");
  if (has_table && options.form != FORM_CSV)
    return weir_cli_usage("export", "--table is for csv");
  size_t length = options.to ? strlen(options.to) : 0;
  if (options.form == FORM_SQLITE && length > 4 && strcmp(options.to + length - 4, ".zst") == 0)
    return weir_cli_usage("export", "a database is not compressed: leave .zst out of its name");
  if (options.form == FORM_SQLITE && !options.to)
    return weir_cli_usage("export", "a database is binary: name its file with -o (- is the standard output)");
  return export_file(argv[optind], &options);
}

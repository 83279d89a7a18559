/*
 * weir redact: a copy of a recorded history that one can show to others.
 */
#include "offline/redact.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "progress.h"
#include "shown.h"

static void print_help(void) {
  weir_cli_help_begin();
  fputs(
      "Usage: weir redact [OPTION...] FILE\n"
      "\n"
      "Makes a copy of a recorded memory history that can be attached to a bug report. Names of functions and files,\n"
      "annotations, metadata and compile contexts become hashes, and keys that are not understood are left out;\n"
      "addresses, sizes, times, line numbers, streams and settings stay. The copy is a pickle as PyTorch writes it.\n"
      "Then both are replayed, with every decision compared to the file; if the copy behaves in another way, there is\n"
      "none.\n"
      "\n"
      "A FILE of - is the standard input.\n"
      "\n"
      "Options:\n"
      "  -o, --output OUT   the copy; a name that ends in .zst is compressed, - is the standard output (the report "
      "goes\n"
      "                     to the standard error then). Without it: FILE with .redacted in its name, as\n"
      "                     run.redacted.pickle for run.pickle, or - for -\n"
      "  --keep-functions   leave the names of functions as they are\n"
      "  --salt TEXT        hash with this, so that names that are equal are equal in all files with it; keep it to\n"
      "                     yourself. Without it hashes cannot be compared between files, nor guessed\n"
      "  --json             the report as JSON\n"
      "  -h, --help         this text\n"
      "\n"
      "Exit codes: 0 done, and checked; 1 a file cannot be read or written, or the copy behaves in another way, and "
      "is\n"
      "not there; 2 invalid usage.\n",
      stdout);
}

/* run.pickle.zst: run.redacted.pickle.zst. NULL: no host memory. */
static char *default_name(const char *file) {
  size_t length = strlen(file), end = length;
  const char *slash = strrchr(file, '/');
  size_t base = slash ? (size_t)(slash - file) + 1 : 0;
  if (length > base + 4 && strcmp(file + length - 4, ".zst") == 0)
    end -= 4;
  size_t dot = end;
  while (dot > base && file[--dot] != '.')
    ;
  if (dot == base) /* no dot, or only one at the beginning */
    dot = end;
  char *name;
  return asprintf(&name, "%.*s.redacted%s", (int)dot, file, file + dot) < 0 ? NULL : name;
}

static void print_text(FILE *out, const char *to, const weir__redact_options *options, const weir__redact_report *r) {
  if (out == stdout)
    weir_cli_fold_begin();
  fprintf(out, "%s%s%s: ", weir_cli_bold(), weir_cli_shown(to), weir_cli_plain());
  if (options->keep_functions)
    fprintf(out, "names of functions kept, ");
  else
    fprintf(out, "%zu names of functions, ", r->hidden.functions);
  fprintf(out, "%zu of files, %zu of annotations, %zu remarks hidden\n", r->hidden.files, r->hidden.annotations,
          r->hidden.remarks);
  if (r->hidden.settings)
    fprintf(out, "  settings    %zu texts hidden or left out that mean nothing to the allocator\n", r->hidden.settings);
  if (r->left_out)
    fprintf(out, "  left out    %zu keys that are not understood; 'weir summary' names them\n", r->left_out);
  if (r->devices > r->unchecked)
    fprintf(
        out,
        "  checked     replayed as the original: %zu events, %zu allocations, %zu that differ from the file in both\n",
        r->events, r->allocations, r->differences);
  if (r->unchecked)
    fprintf(out,
            "  unchecked   %zu devices whose history cannot be replayed, before as after; all numbers are the same\n",
            r->unchecked);
  if (!r->devices)
    fprintf(out, "  checked     no history to replay; all numbers are the same\n");
  fputs("  it still has addresses, sizes, times and line numbers\n", out);
}

static void print_json(const char *file, const char *to, const weir__redact_options *options,
                       const weir__redact_report *r) {
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("file", file), JSON_TEXT("output", to), JSON_NATURAL("functions", r->hidden.functions),
                JSON_NATURAL("files", r->hidden.files), JSON_NATURAL("annotations", r->hidden.annotations),
                JSON_NATURAL("remarks", r->hidden.remarks), JSON_NATURAL("settings", r->hidden.settings),
                JSON_BOOL("functions_kept", options->keep_functions), JSON_NATURAL("keys_left_out", r->left_out),
                JSON_NATURAL("devices", r->devices), JSON_NATURAL("devices_not_replayed", r->unchecked),
                JSON_NATURAL("events", r->events), JSON_NATURAL("allocations", r->allocations),
                JSON_NATURAL("differences", r->differences), JSON_BOOL("same_behaviour", true));
  weir_cli_json_end();
}

/* Where the copy goes there, under whichever name, the report must not. */
static bool is_standard_output(const char *to) {
  struct stat one, other;
  return strcmp(to, "-") == 0 || (stat(to, &one) == 0 && fstat(STDOUT_FILENO, &other) == 0 &&
                                  one.st_dev == other.st_dev && one.st_ino == other.st_ino);
}

int weir_cmd_redact(int argc, char **argv) {
  static const struct option long_options[] = {
      {"output", required_argument, NULL, 'o'}, {"keep-functions", no_argument, NULL, 'k'},
      {"salt", required_argument, NULL, 's'},   {"json", no_argument, NULL, 'j'},
      {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
  weir__redact_options options = {0};
  const char *to = NULL;
  bool json = false;
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":ho:", long_options, NULL)) != -1;) {
    switch (option) {
    case 'o':
      to = optarg;
      break;
    case 'k':
      options.keep_functions = true;
      break;
    case 's':
      options.salt = optarg;
      break;
    case 'j':
      json = true;
      break;
    case 'h':
      print_help();
      return WEIR_EXIT_OK;
    case ':':
      return weir_cli_usage("redact", "%s needs a value", argv[optind - 1]);
    default:
      return weir_cli_usage("redact", "there is no option '%s'", argv[optind - 1]);
    }
  }
  if (optind == argc)
    return weir_cli_usage("redact", "no file is named");
  if (optind + 1 < argc)
    return weir_cli_usage("redact", "one file at a time, and '%s' is one more", argv[optind + 1]);
  const char *file = argv[optind];
  if (!to && strcmp(file, "-") == 0)
    to = "-";
  bool is_output = to && is_standard_output(to);
  if (is_output && json)
    return weir_cli_usage("redact", "--json and the copy cannot both go to the standard output: name the copy with -o");
  char *name = to ? NULL : default_name(file);
  if (!to && !name) {
    fputs("weir redact: no host memory\n", stderr);
    return WEIR_EXIT_FAILED;
  }
  to = to ? to : name;
  weir__redact_report report;
  weir_cli_progress *progress = weir_cli_progress_begin("redacting and checking");
  weir_status status = weir__redact_file(file, to, &options, &report);
  weir_cli_progress_end(progress);
  if (status)
    fprintf(stderr, "weir redact: %s\n", weir_last_error());
  else if (json)
    print_json(file, to, &options, &report);
  else
    print_text(is_output ? stderr : stdout, is_output ? "standard output" : to, &options, &report);
  free(name);
  return status ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
}

/*
 * weir redact: a copy of a recorded history that can be shared.
 */
#include "offline/analyse/behaviour.h"
#include "offline/render/redact_file.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "progress.h"

/* "run.redacted.pickle.zst" for "run.pickle.zst"; NULL if host memory runs out. */
static char *default_name(const char *file) {
  size_t length = strlen(file), end = length;
  const char *slash = strrchr(file, '/');
  size_t base = slash ? (size_t)(slash - file) + 1 : 0;
  if (length > base + 4 && strcmp(file + length - 4, ".zst") == 0)
    end -= 4;
  size_t dot = end;
  while (dot > base && file[--dot] != '.')
    ;
  if (dot == base) /* there is no dot, or only a leading one */
    dot = end;
  char *name;
  return asprintf(&name, "%.*s.redacted%s", (int)dot, file, file + dot) < 0 ? NULL : name;
}

static weir__redact_options options;
static const char *to;
static bool json;

static void print_text(FILE *out, const char *name, const weir__redact_report *r) {
  if (out == stdout)
    weir_cli_fold_begin();
  fprintf(out, "%s%s%s: ", weir_cli_bold(), weir_cli_escaped(name), weir_cli_plain());
  if (options.keep_functions)
    fprintf(out, "function names kept, ");
  else
    fprintf(out, "%zu function names, ", r->hidden.functions);
  fprintf(out, "%zu file names, %zu annotations, %zu remarks hidden\n", r->hidden.files, r->hidden.annotations,
          r->hidden.remarks);
  if (r->hidden.settings)
    fprintf(out, "  settings    %zu texts that the allocator does not use were hidden or left out\n",
            r->hidden.settings);
  if (r->left_out)
    fprintf(out, "  left out    %zu unknown keys; 'weir summary' lists them\n", r->left_out);
  if (r->devices > r->unchecked)
    fprintf(out,
            "  checked     replays like the original: %zu entries, %zu allocations, %zu that differ from the file in "
            "both\n",
            r->events, r->allocations, r->differences);
  if (r->unchecked)
    fprintf(out,
            "  unchecked   %zu devices whose history cannot be replayed in either file; all numbers are the same\n",
            r->unchecked);
  if (!r->devices)
    fprintf(out, "  checked     no history to replay; all numbers are the same\n");
  fputs("  kept        addresses, sizes, times and line numbers\n", out);
}

static void print_json(const char *file, const weir__redact_report *r) {
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("file", file), JSON_TEXT("output", to), JSON_NATURAL("functions", r->hidden.functions),
                JSON_NATURAL("files", r->hidden.files), JSON_NATURAL("annotations", r->hidden.annotations),
                JSON_NATURAL("remarks", r->hidden.remarks), JSON_NATURAL("settings", r->hidden.settings),
                JSON_BOOL("functions_kept", options.keep_functions), JSON_NATURAL("keys_left_out", r->left_out),
                JSON_NATURAL("devices", r->devices), JSON_NATURAL("devices_not_replayed", r->unchecked),
                JSON_NATURAL("events", r->events), JSON_NATURAL("allocations", r->allocations),
                JSON_NATURAL("differences", r->differences), JSON_BOOL("same_behaviour", true));
  weir_cli_json_end();
}

/* Whether the copy goes to standard output, under any name; the report must not go there then. */
static bool is_standard_output(const char *path) {
  struct stat one, other;
  return strcmp(path, "-") == 0 || (stat(path, &one) == 0 && fstat(STDOUT_FILENO, &other) == 0 &&
                                    one.st_dev == other.st_dev && one.st_ino == other.st_ino);
}

/* Names the output if it was not given, since the sandbox allows the named one alone. */
static void prepare(int count, char **arguments) {
  (void)count;
  if (!to)
    to = strcmp(arguments[0], "-") == 0 ? "-" : default_name(arguments[0]);
}

static int run(int count, char **arguments) {
  const char *file = arguments[0];
  (void)count;
  if (!to)
    return weir_cli_fail("out of host memory");
  bool is_output = is_standard_output(to);
  if (is_output && json)
    return weir_cli_usage("--json and the copy cannot both go to standard output: name the copy with -o");
  weir__redact_report report;
  weir_cli_progress *progress = weir_cli_progress_begin("redacting and checking");
  weir_status status = weir__redact_file(file, to, &options, &report);
  weir_cli_progress_end(progress);
  if (status)
    weir_cli_fail("%s", weir_last_error());
  else if (json)
    print_json(file, &report);
  else
    print_text(is_output ? stderr : stdout, is_output ? "standard output" : to, &report);
  return status ? WEIR_EXIT_FAILED : WEIR_EXIT_OK;
}

static const weir_cli_option option_table[] = {
    {"output", 'o', .kind = WEIR_CLI_PATH, .value = "OUT", .target = &to,
     .help = "the copy; compressed if its name ends in .zst, and standard output if it is - (the report then goes to "
             "standard error). Default: FILE with .redacted in its name, such as run.redacted.pickle for run.pickle, "
             "or - for -"},
    {"keep-functions", .target = &options.keep_functions, .help = "keep the names of functions"},
    {"salt", .kind = WEIR_CLI_TEXT, .value = "TEXT", .target = &options.salt,
     .help = "hash with this text, so that equal names have equal hashes in all files that use it; keep it secret. "
             "Without it, hashes cannot be compared between files, nor guessed"},
    {"json", .target = &json, .help = "print the report as JSON"},
    {0}};

const weir_cli_command weir_cmd_redact = {
    .name = "redact",
    .summary = "copy a recorded memory history without names and paths",
    .description =
        "Make a copy of a recorded memory history that can be attached to a bug report. Names of functions and files, "
        "annotations, metadata and compile contexts become hashes, and unknown keys are left out; addresses, sizes, "
        "times, line numbers, streams and settings stay. The copy is a pickle as PyTorch writes it.\n"
        "Both files are then replayed, and every decision is compared. If the copy behaves differently, it is not "
        "written.",
    .argument = "FILE",
    .options = option_table,
    .examples = "weir redact job.pickle\n"
                "weir redact --keep-functions -o shared.pickle job.pickle\n",
    .exit = {"done and checked",
             "a file cannot be read or written, or the copy behaves differently and is not written"},
    .run = run,
    .prepare = prepare};

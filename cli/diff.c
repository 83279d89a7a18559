/*
 * weir diff: what changed between two recordings.
 */
#include "offline/render/diff_report.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "progress.h"
#include "report.h"

static struct {
  int device;        /* -1 for the one that ran out of memory, or has a history */
  double fail_above; /* percent; below 0 for none */
  int list;
  unsigned by; /* bits of weir__diff_key */
  bool json;
} options = {.device = -1, .fail_above = -1, .list = 10};

static int read_percent(const char *text) {
  char *end;
  options.fail_above = strtod(text, &end);
  end += *end == '%';
  return end != text && !*end && options.fail_above >= 0 && options.fail_above <= 1e6 ? WEIR_EXIT_OK : WEIR_EXIT_USAGE;
}

/* ---- The command ---- */

static int run(int count, char **files) {
  weir__recording *recordings[2] = {NULL, NULL};
  weir_status status = WEIR_OK;
  if (count != 2)
    return count > 2 ? weir_cli_usage("takes two FILEs (got '%s' as well)", files[2])
                     : weir_cli_usage("takes two FILEs: before and after");
  if (strcmp(files[0], "-") == 0 && strcmp(files[1], "-") == 0)
    return weir_cli_usage("only one of the two files can be the standard input");
  for (int i = 0; i < 2 && !status; i++)
    status = weir_cli_load(files[i], &recordings[i]);
  for (int i = 0; i < 2 && !status; i++)
    status = weir__recording_check_device(recordings[i], weir_cli_input_name(files[i]),
                                          options.device >= 0 ? options.device
                                                              : weir__recording_first_device(recordings[i]));
  weir__diff diff;
  weir__diff_options how = {
      .device = {options.device, options.device}, .file = {files[0], files[1]}, .fail_above = options.fail_above};
  weir_cli_progress *progress = weir_cli_progress_begin("comparing");
  if (!status)
    status = weir__diff_make(recordings[0], recordings[1], &how, &diff);
  weir_cli_progress_end(progress);
  int code = WEIR_EXIT_FAILED;
  if (status)
    weir_cli_fail("%s", weir_last_error());
  else {
    weir__report report;
    weir__diff_report(&report, &diff, (size_t)options.list, options.by);
    code = weir_cli_print_report(&report, files[1], options.json);
    if (!code && diff.has_failed)
      code = WEIR_EXIT_SHORT;
    if (!diff.side[0].is_known || !diff.side[1].is_known)
      code = options.fail_above >= 0
                 ? weir_cli_fail("--fail-above needs the state before the history in both recordings")
                 : code;
    weir__diff_clear(&diff);
  }
  for (int i = 0; i < 2; i++)
    if (recordings[i])
      weir__recording_free(recordings[i]);
  return code;
}

static const weir_cli_choice keys[] = {
    [WEIR__DIFF_STACK] = {"stack", NULL}, [WEIR__DIFF_SIZE] = {"size", NULL},   [WEIR__DIFF_STREAM] = {"stream", NULL},
    [WEIR__DIFF_PHASE] = {"phase", NULL}, [WEIR__DIFF_CLASS] = {"class", NULL}, {0}};

static const weir_cli_option option_table[] = {
    {"fail-above", .value = "PERCENT", .target = &options.fail_above, .read = read_percent, .kind = WEIR_CLI_TEXT,
     .takes = "a percentage such as 2%",
     .help =
         "exit with 3 if a total of the second file is larger than that of the first by more than this: bytes in use "
         "or reserved at the peak, in a step, or at the end"},
    {"by", .kind = WEIR_CLI_LIST, .value = "KEYS", .target = &options.by, .choices = keys,
     .help = "show the differences by these only: stack, size, stream, phase, class. Default: all"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = 1023,
     .help = "compare this device. Default: the one that ran out of memory, or has a history"},
    {"list", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.list, .least = 1, .most = 100000,
     .help = "show up to N rows of each kind. Default: 10"},
    {"json", .target = &options.json, .help = "print JSON"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

const weir_cli_command weir_cmd_diff = {
    .name = "diff",
    .summary = "compare two recorded memory histories",
    .description =
        "Compare two recorded memory histories, before and after: totals, and the bytes by stack, size, stream, "
        "phase and class that grew, shrank, appeared or disappeared, at the peak, at the end, and on average at the "
        "peaks of steps, so the number of steps need not be the same. Addresses do not matter.\n"
        "Two stacks are the same if their functions, file names (without folders) and lines are. The others are "
        "matched "
        "without the lines, in their order, and shown as moved.",
    .argument = "FILE FILE",
    .options = option_table,
    .exit = {"compared", "a file cannot be read", NULL, "more than --fail-above"},
    .run = run};

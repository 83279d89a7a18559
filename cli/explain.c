/*
 * weir explain: why a recorded job ran out of memory, and what would have helped.
 */
#include "explain.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "explain_message.h"
#include "json.h"
#include "moment.h"
#include "offline/render/explain_report.h"
#include "progress.h"
#include "report.h"

char *weir_cli_explain_text(const char *name, const weir__recording *recording, const weir__explanation *explanation) {
  weir__report report;
  char *text = NULL;
  weir__explain_report(&report, name, recording, explanation);
  if (!weir__report_status(&report) && weir_cli_capture_begin()) {
    weir_cli_print_text(&report);
    text = weir_cli_capture_end();
  }
  weir__report_clear(&report);
  return text;
}

static weir__explain_options options = {.device = -1};
static bool json, message, has_moment;

static int run(int count, char **arguments) {
  const char *name = count ? arguments[0] : "-";
  weir__recording *recording;
  weir__explanation x;
  if (!count && !message)
    return weir_cli_usage("FILE is missing");
  if (message && (has_moment || options.memory))
    return weir_cli_usage("--message reads a text, to which %s does not apply", has_moment ? "--at" : "--memory");
  if (message)
    return weir_cli_explain_message(name, options.device, json);
  weir_cli_progress *progress = weir_cli_progress_begin("reading and replaying");
  int code = WEIR_EXIT_FAILED;
  weir_status status = weir__recording_load(name, NULL, &recording);
  if (status) {
    weir_cli_progress_end(progress);
    char *error = strdup(weir_last_error());
    code = status == WEIR_ERROR_BAD_DATA && weir_cli_has_message(name)
               ? weir_cli_fail("%s: not a recording, but a text with an out-of-memory error: add --message (in "
                               "Python, message=True)",
                               weir_cli_input_name(name))
               : weir_cli_fail("%s", error ? error : "out of host memory");
    free(error);
    return code;
  }
  if (options.device < 0)
    options.device = weir__recording_first_device(recording);
  options.progress = weir_cli_progress_step;
  options.progress_context = progress;
  status = weir__explain(recording, &options, &x);
  weir_cli_progress_end(progress);
  if (status)
    weir_cli_fail("%s: %s", weir_cli_input_name(name), weir_last_error());
  else {
    weir__report report;
    weir__explain_report(&report, name, recording, &x);
    code = weir_cli_print_report(&report, name, json);
  }
  weir__recording_free(recording);
  return code;
}

static int read_moment(const char *text) {
  has_moment = true;
  return weir_cli_read_moment(text, &options.moment, &options.event);
}

static const weir_cli_option option_table[] = {
    {"at", .value = "MOMENT", .choices = weir_cli_moments, .read = read_moment, .takes = WEIR_CLI_MOMENT_TAKES,
     .help = "the moment to explain: the number of an entry, or one of the following. Default: oom, or peak if no "
             "request failed"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = INT_MAX,
     .help = "the device. Default: the first that ran out of memory, else the first with a history"},
    {"memory", .kind = WEIR_CLI_SIZE, .value = "SIZE", .target = &options.memory, .most = WEIR__REPLAY_MAX_MEMORY,
     .help = "the device's memory, such as 80GiB; a file does not record it"},
    {"fraction", .kind = WEIR_CLI_FRACTION, .value = "F", .target = &options.fraction, .needs = "memory",
     .help = "the fraction of it that the program allowed itself, 0 to 1"},
    {"message", .target = &message,
     .help = "FILE is the text of the error, or a log that has it, instead of a recording, or the standard input "
             "without FILE. Its figures are rounded, so the answer has ranges"},
    {"json", .target = &json, .help = "print JSON"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

const weir_cli_command weir_cmd_explain = {
    .name = "explain",
    .summary = "explain why a recorded job ran out of memory, and what would have helped",
    .description =
        "Explain why a recorded job ran out of memory: the request, what every reserved byte was used for, which live "
        "blocks were in the way, and what would have served the request. The state is that of the real allocator, "
        "replayed; each suggestion was replayed as well, within the same limit.\n"
        "With --message, only the text of the error is needed: a log of PyTorch 1.0 or later, of several ranks, with "
        "tracebacks and colours.",
    .argument = "[FILE]",
    .options = option_table,
    .examples = "weir explain oom.pickle\n"
                "weir explain --at peak job.pickle\n"
                "weir explain --message train.log\n",
    .exit = {"explained", "the file cannot be read, or has no such moment or message"},
    .run = run};

/*
 * weir replay: a recorded history, replayed through Weir's own allocator without a GPU.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/render/predict_report.h"
#include "prediction.h"
#include "progress.h"
#include "report.h"

static struct {
  bool check;
  const char *conf; /* NULL for the recorded settings */
} options;

/* An exit code. */
static int print(const weir_cli_history *h, const weir__replay_report *result) {
  weir__report report;
  const weir__replayed of = {
      h->file, h->name, h->recording, h->device, h->history, result, &weir_cli_prediction.costs, options.check};
  weir__replayed_report(&report, &of);
  return weir_cli_print_report(&report, h->file, weir_cli_prediction.json);
}

static int check_file(const char *file) {
  weir_cli_history h;
  int code = weir_cli_history_check(file, &h);
  if (code)
    return code;
  const weir__replay_report *report = weir__replayer_check(h.history);
  code = print(&h, report);
  code = report->differences ? WEIR_EXIT_FAILED : code;
  weir_cli_history_close(&h);
  return code;
}

static int run_file(const char *file) {
  const weir_cli_prediction_options *common = &weir_cli_prediction;
  weir__replay_report report;
  weir_cli_history h;
  weir__settings settings;
  weir__capacity capacity;
  int code = options.conf ? weir_cli_read_conf(options.conf, &settings) : WEIR_EXIT_OK;
  if (!code)
    code = weir_cli_history_open(file, &h);
  if (code)
    return code;
  const weir__settings *used = options.conf ? &settings : NULL;
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  weir_status status = weir__replayer_capacity_of(h.history, used, common->memory, common->fraction, &capacity);
  if (!status)
    status = weir__replayer_run(h.history, used, &capacity, NULL, &report);
  weir_cli_progress_end(progress);
  if (status) {
    code = weir_cli_fail("%s: %s", weir_cli_input_name(file), weir_last_error());
  } else {
    report.limit_is_inferred = !common->memory && !capacity.is_recorded && capacity.limit != UINT64_MAX;
    code = print(&h, &report);
    code = !code && report.failures && (options.conf || common->memory) ? WEIR_EXIT_SHORT : code;
  }
  weir_cli_history_close(&h);
  return code;
}

static int run(int count, char **files) {
  if (options.conf && options.check)
    return weir_cli_usage("--check compares under the recorded settings: it takes no --conf");
  int code = weir_cli_prediction_begin();
  return code ? code : weir_cli_for_each(count, files, options.check ? check_file : run_file);
}

static const weir_cli_option option_table[] = {
    {"check", .target = &options.check,
     .help = "only compare: place new segments where the file has them, and compare the address of each allocation and "
             "each segment that is allocated, freed, mapped or unmapped. --memory and --fraction are then those of the "
             "recording"},
    {"conf", .kind = WEIR_CLI_TEXT, .value = "SETTINGS", .target = &options.conf,
     .help = "settings to replay under instead of the recorded ones, such as expandable_segments:True; not with "
             "--check"},
    {0}};

const weir_cli_command weir_cmd_replay = {
    .name = "replay",
    .group = "Predict",
    .summary = "replay recorded memory histories through the allocator, and check every decision",
    .description = "Replay recorded memory histories through Weir's allocator, on a ledger instead of a device. Before "
                   "anything is predicted for other settings or another amount of memory, a replay under the recorded "
                   "settings is compared with the file.",
    .argument = "FILE...",
    .options = option_table,
    .shared = weir_cli_prediction_table,
    .exit = {"all files were replayed, and with --check nothing differs", "something differs, or a file cannot be read",
             NULL, "with --conf or --memory: requests run out of memory"},
    .run = run};

#include "prediction.h"

#include <limits.h>
#include <stdio.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/render/report.h"
#include "progress.h"

/* ---- Options ---- */

weir_cli_prediction_options weir_cli_prediction = {.device = -1};

const weir_cli_option weir_cli_prediction_table[] = {
    {"memory", .kind = WEIR_CLI_SIZE, .value = "SIZE", .target = &weir_cli_prediction.memory,
     .most = WEIR__REPLAY_MAX_MEMORY,
     .help = "the device's memory, such as 80GiB or a number of bytes. Default: the limit that the recording shows, "
             "else as much as is needed"},
    {"fraction", .kind = WEIR_CLI_FRACTION, .value = "F", .target = &weir_cli_prediction.fraction, .needs = "memory",
     .help = "the fraction of --memory that the program allows itself, 0 to 1"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &weir_cli_prediction.device, .most = INT_MAX,
     .help = "the device. Default: the first that ran out of memory, else the first with a history"},
    {"costs", .kind = WEIR_CLI_PATH, .value = "FILE", .target = &weir_cli_prediction.costs_file,
     .help = "nanoseconds of driver calls, as JSON or in lines such as 'alloc 39000'. Default: those of an H200"},
    {"force", .target = &weir_cli_prediction.force,
     .help = "predict even if a replay under the recorded settings does not reproduce the file"},
    {"json", .target = &weir_cli_prediction.json,
     .help = "print JSON, one object for each file (tune: one for all files)"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

int weir_cli_prediction_begin(void) {
  weir__costs *costs = &weir_cli_prediction.costs;
  weir__costs_default(costs);
  if (weir_cli_prediction.costs_file && weir__costs_load(weir_cli_prediction.costs_file, costs))
    return weir_cli_fail("%s", weir_last_error());
  return WEIR_EXIT_OK;
}

/* ---- Histories ---- */

/* A recording that its own settings do not reproduce says nothing about others. */
static int check_reproduced(const char *file, const weir__replayer *history) {
  const weir__replay_report *check = weir__replayer_check(history);
  if (!check->differences)
    return WEIR_EXIT_OK;
  weir_cli_fail("%s: a replay under the recorded settings differs from the file in %zu places; the first is:\n  %s",
                weir_cli_input_name(file), check->differences, check->shown[0]);
  if (check->begin != WEIR__BEGINS_EMPTY)
    fputs("  the recording began late or lost its beginning, and the state before it could not be inferred exactly\n",
          stderr);
  else if (check->unknown_frees)
    fprintf(stderr, "  the recording began late or lost its beginning: %s of memory from before it\n",
            weir_cli_count(check->unknown_frees, "free"));
  if (weir__replayer_settings(history)->moving_pages)
    fputs("  " WEIR__MOVING_NOTE "\n", stderr);
  if (weir_cli_prediction.force) {
    fputs("  --force predicts nevertheless: take the result as a guess\n", stderr);
    return WEIR_EXIT_OK;
  }
  fputs(
      "Other settings are therefore not predicted. 'weir replay --check' shows more; --force predicts nevertheless.\n",
      stderr);
  return WEIR_EXIT_FAILED;
}

/* Says that there are histories of other devices, where --device did not choose one. */
static void mention_others(const weir_cli_history *h) {
  if (weir_cli_prediction.device >= 0 || weir_cli_prediction.json)
    return;
  for (int i = 0; (size_t)i < h->recording->device_count; i++)
    if (i != h->device && h->recording->devices[i].event_count) {
      weir_cli_fail("%s has histories of other devices as well: this is device %d; --device %d selects another",
                    weir_cli_input_name(h->file), h->device, i);
      return;
    }
}

static int open_history(const char *file, uint64_t memory, double fraction, weir_cli_history *h) {
  char what[160];
  *h = (weir_cli_history){.file = file};
  snprintf(what, sizeof what, "reading %s", weir_cli_input_name(file));
  weir_cli_progress *progress = weir_cli_progress_begin(what);
  weir_status status = weir__recording_load(file, NULL, &h->recording);
  bool is_loaded = !status;
  if (is_loaded) {
    const int device = weir_cli_prediction.device;
    h->device = device >= 0 ? device : weir__recording_first_device(h->recording);
    status = weir__replayer_open(h->recording, h->device, memory, fraction, &h->history);
  }
  weir_cli_progress_end(progress);
  if (status) {
    weir_cli_fail("%s%s%s", is_loaded ? weir_cli_input_name(file) : "", is_loaded ? ": " : "", weir_last_error());
    weir_cli_history_close(h);
    return WEIR_EXIT_FAILED;
  }
  if (h->recording->device_count > 1)
    snprintf(h->name, sizeof h->name, "%s, device %d", weir_cli_input_name(file), h->device);
  else
    snprintf(h->name, sizeof h->name, "%s", weir_cli_input_name(file));
  mention_others(h);
  return WEIR_EXIT_OK;
}

int weir_cli_history_open(const char *file, weir_cli_history *history) {
  int code = open_history(file, 0, 0, history);
  if (!code) {
    code = check_reproduced(file, history->history);
    if (code)
      weir_cli_history_close(history);
  }
  return code;
}

int weir_cli_history_check(const char *file, weir_cli_history *history) {
  return open_history(file, weir_cli_prediction.memory, weir_cli_prediction.fraction, history);
}

void weir_cli_history_close(weir_cli_history *history) {
  weir__replayer_close(history->history);
  if (history->recording)
    weir__recording_free(history->recording);
  *history = (weir_cli_history){0};
}

int weir_cli_read_conf(const char *conf, weir__settings *settings) {
  if (!weir__settings_parse(NULL, conf, settings))
    return WEIR_EXIT_OK;
  return weir_cli_fail("--conf %s: %s", weir_cli_escaped(conf), weir_last_error());
}

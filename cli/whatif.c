/*
 * weir whatif: a recorded job under several settings, side by side.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "base/parallel.h"
#include "cli.h"
#include "json.h"
#include "offline/analyse/predict.h"
#include "offline/render/output_file.h"
#include "offline/render/predict_report.h"
#include "offline/render/rewrite.h"
#include "prediction.h"
#include "progress.h"
#include "report.h"

enum { MAX_CONFS = 256 };

static struct {
  int threads; /* 0 for all cores */
  bool fit;
  const char *output; /* a file for the predicted history, or NULL */
  unsigned conf_count;
  const char *confs[MAX_CONFS];
  weir__settings settings[MAX_CONFS];
  weir__whatif_row rows[MAX_CONFS + WEIR__WHATIF_OWN_ROWS];
  weir__whatif of; /* the current file */
} whatif;

static size_t row_count(void) { return weir__whatif_row_count(&whatif.of); }

static void predict(void *context, size_t row, void *result) {
  (void)context;
  weir__whatif_predict(&whatif.of, row, result, NULL);
}

static weir_status write_pickle(void *history, FILE *file) {
  return weir__rewrite(weir__whatif_history_recording(history), -1, &weir__pickle_format, NULL, NULL, file);
}

/* Writes the predicted history of the only settings. */
static weir_status write_history(const char *path) {
  weir__whatif_row row;
  weir__whatif_history *history = NULL;
  weir__whatif_predict(&whatif.of, WEIR__WHATIF_OWN_ROWS, &row, &history);
  weir_status status = row.p.status;
  if (!status)
    status = weir__output_file_write(path, write_pickle, history);
  weir__whatif_history_free(history);
  return status;
}

/* An exit code. */
static int predict_file(const char *file) {
  weir_cli_history h;
  int code = weir_cli_history_open(file, &h);
  if (code)
    return code;
  whatif.of = (weir__whatif){.history = h.history,
                             .file = h.file,
                             .device = h.device,
                             .confs = whatif.confs,
                             .settings = whatif.settings,
                             .conf_count = whatif.conf_count,
                             .memory = weir_cli_prediction.memory,
                             .fraction = weir_cli_prediction.fraction,
                             .fit = whatif.fit,
                             .costs = &weir_cli_prediction.costs,
                             .rows = whatif.rows};
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  const weir__parallel parallel = {
      .threads = (unsigned)whatif.threads, .progress = weir_cli_progress_step, .progress_context = progress};
  weir__parallel_run(&parallel, row_count(), predict, NULL, whatif.rows, sizeof *whatif.rows);
  weir_cli_progress_end(progress);
  for (size_t i = 0; i < row_count() && !code; i++)
    if (whatif.rows[i].p.status) {
      predict(NULL, i, &whatif.rows[i]); /* again: the text of an error stays in the thread that met it */
      code = weir_cli_fail("%s: --conf %s: %s", weir_cli_input_name(file), weir__whatif_title(&whatif.of, i),
                           weir_last_error());
    }
  if (!code && whatif.output && write_history(whatif.output))
    code = weir_cli_fail("%s", weir_last_error());
  if (!code) {
    weir__report report;
    weir__whatif_report(&report, &whatif.of, h.name);
    code = weir_cli_print_report(&report, h.file, weir_cli_prediction.json);
  }
  weir_cli_history_close(&h);
  return code;
}

static int run(int count, char **files) {
  if (!whatif.conf_count)
    return weir_cli_usage("--conf SETTINGS or --guard MODE is missing");
  if (whatif.output && (count != 1 || whatif.conf_count != 1))
    return weir_cli_usage("--write needs one FILE and one --conf");
  if (whatif.output && strcmp(whatif.output, "-") == 0)
    return weir_cli_usage("--write needs the name of a file: the standard output has the figures");
  int code = weir_cli_prediction_begin();
  return code ? code : weir_cli_for_each(count, files, predict_file);
}

static int read_conf(const char *conf) {
  if (whatif.conf_count == MAX_CONFS)
    return weir_cli_fail("at most %d times --conf", MAX_CONFS);
  whatif.confs[whatif.conf_count] = conf;
  return weir_cli_read_conf(conf, &whatif.settings[whatif.conf_count++]);
}

static int read_guard(const char *mode) {
  static char confs[MAX_CONFS][32];
  if (whatif.conf_count < MAX_CONFS)
    snprintf(confs[whatif.conf_count], sizeof *confs, "guard:%s", mode);
  return read_conf(whatif.conf_count < MAX_CONFS ? confs[whatif.conf_count] : mode);
}

static const weir_cli_option option_table[] = {
    {"conf", .kind = WEIR_CLI_TEXT, .value = "SETTINGS", .read = read_conf,
     .help = "settings to try, such as expandable_segments:True, or '' for the defaults. Can be given several times"},
    {"guard", .kind = WEIR_CLI_TEXT, .value = "MODE", .read = read_guard,
     .help = "the same as --conf guard:MODE: what guard mode, light or full, will need"},
    {"write", .kind = WEIR_CLI_PATH, .value = "OUT", .target = &whatif.output,
     .help = "write the history that the job would have had to this file: a pickle that PyTorch's memory_viz and all "
             "commands open; compressed if its name ends in .zst. Needs one FILE and one --conf"},
    {"fit", .target = &whatif.fit,
     .help = "also find the smallest limit under which the job runs to its end, in steps of 2 MiB"},
    WEIR_CLI_THREADS_OPTION(&whatif.threads),
    {0}};

const weir_cli_command weir_cmd_whatif = {
    .name = "whatif",
    .summary = "show what a recorded job would have done under other settings",
    .description = "Show what a recorded job would have done under other settings, one row for each: peak memory, "
                   "fragmentation, driver calls and their cost, retries and failures; with moving_pages, also how many "
                   "pages moved, were made, and returned to where they were still mapped. Where the outcome depends on "
                   "how far streams were, which is not recorded, it is a range. First, a replay under the recorded "
                   "settings is compared with the file.",
    .argument = "FILE...",
    .options = option_table,
    .shared = weir_cli_prediction_table,
    .examples = "weir whatif --conf expandable_segments:True job.pickle\n"
                "weir whatif --conf '' --fit job.pickle\n",
    .exit = {"done", "a file cannot be read or is not reproduced, or settings are wrong"},
    .run = run};

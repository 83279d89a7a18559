/*
 * weir tune: the settings under which recorded jobs need the least memory, and what they cost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/analyse/tune.h"
#include "offline/render/tune_report.h"
#include "prediction.h"
#include "progress.h"
#include "report.h"
#include "tuned.h"

static struct {
  bool fit;
  int threads; /* 0 for all cores */
  const char *save, *load, *pytorch;
  weir__pytorch_version version; /* the same as a number */
} options;

typedef struct tuning {
  weir__tune_options options;
  weir_cli_history *files;
  const weir__replayer **histories;
  weir__tuned_file *shown;
  weir__tune_result result;
} tuning;

/* ---- Result files ---- */

static weir_cli_tuned_for purpose(char **files, int count) {
  return (weir_cli_tuned_for){.files = files,
                              .file_count = count,
                              .pytorch = options.pytorch,
                              .costs = weir_cli_prediction.costs_file,
                              .memory = weir_cli_prediction.memory,
                              .fraction = weir_cli_prediction.fraction,
                              .device = weir_cli_prediction.device};
}

static int save(const tuning *t, char **files) {
  const weir__tune_result *r = &t->result;
  weir_cli_tuned_for what = purpose(files, (int)t->options.history_count);
  weir_cli_tuned tuned = {.cost_ns = r->candidates[r->best].score.cost};
  if (r->best == 0 && r->is_mixed)
    return weir_cli_fail("the settings of each file are the best, so there are none to save");
  weir__conf_text(&r->candidates[r->best].settings, tuned.conf);
  if (r->moving) {
    tuned.has_moving = true;
    tuned.moving_cost_ns = r->candidates[r->moving].score.cost;
    weir__conf_text(&r->candidates[r->moving].settings, tuned.moving);
  }
  return weir_cli_tuned_save(options.save, &what, &tuned);
}

static int load(int count, char **files) {
  weir_cli_tuned_for what = purpose(files, count);
  weir_cli_tuned tuned;
  int code = weir_cli_tuned_load(options.load, &what, &tuned);
  if (code)
    return code;
  weir__report report;
  weir__report_begin(&report);
  WEIR__ROWS(&report, ROW_TEXT("conf", tuned.conf, WEIR__UNIT_PLAIN), JSON_REAL("cost_ns", tuned.cost_ns, 0),
             ROW_TEXT("conf_moving", tuned.has_moving ? tuned.moving : NULL, WEIR__UNIT_PLAIN));
  weir__say(&report, *tuned.conf ? WEIR__KEEP_LINE "export PYTORCH_CUDA_ALLOC_CONF='{conf}'\n"
                                 : "unset PYTORCH_CUDA_ALLOC_CONF\n");
  if (tuned.has_moving)
    weir__say(&report,
              "# with Weir's allocator under PyTorch:\n" WEIR__KEEP_LINE "# export WEIR_ALLOC_CONF='{conf_moving}'\n");
  return weir_cli_print_report(&report, NULL, weir_cli_prediction.json);
}

/* ---- Tuning ---- */

/* Keys that are not searched keep their values. Texts that PyTorch accepts but Weir does not are replaced by the
 * defaults. */
static void read_base(const char *conf, weir__settings *base) {
  if (!conf || weir__settings_parse(NULL, conf, base) || base->backend != WEIR__BACKEND_NATIVE)
    weir__settings_default(base);
}

/* An exit code. */
static int print(const tuning *t, const char *first) {
  weir__report report;
  weir__tune_report(&report, &(weir__tuned){&t->options, &t->result, t->shown, options.pytorch});
  return weir_cli_print_report(&report, first, weir_cli_prediction.json);
}

static int tune_files(tuning *t, char **names, int count) {
  weir__parallel *parallel = &t->options.parallel;
  weir__settings base;
  int code = WEIR_EXIT_OK;
  t->files = calloc((size_t)count, sizeof *t->files);
  t->histories = calloc((size_t)count, sizeof *t->histories);
  t->shown = calloc((size_t)count, sizeof *t->shown);
  if (!t->files || !t->histories || !t->shown) {
    weir_cli_fail("out of host memory");
    code = WEIR_EXIT_FAILED;
  }
  for (int i = 0; i < count && !code; i++) {
    code = weir_cli_history_open(names[i], &t->files[i]);
    t->histories[i] = t->files[i].history;
    t->shown[i] = (weir__tuned_file){t->files[i].file, t->files[i].name, t->files[i].device};
  }
  if (code)
    return code;
  read_base(t->files[0].recording->conf, &base);
  t->options.histories = t->histories;
  t->options.history_count = (size_t)count;
  t->options.base = &base;
  t->options.memory = weir_cli_prediction.memory;
  t->options.fraction = weir_cli_prediction.fraction;
  t->options.costs = &weir_cli_prediction.costs;
  t->options.pytorch = options.version;
  parallel->threads = (unsigned)options.threads;
  weir_cli_progress *progress = weir_cli_progress_begin("tuning");
  parallel->progress = weir_cli_progress_step;
  parallel->progress_context = progress;
  weir_status status = weir__tune(&t->options, &t->result);
  weir_cli_progress_end(progress);
  if (status) {
    weir_cli_fail("%s", weir_last_error());
    return WEIR_EXIT_FAILED;
  }
  code = print(t, names[0]);
  bool serves = !t->result.candidates[t->result.best].score.failures ||
                (t->result.moving && !t->result.candidates[t->result.moving].score.failures);
  code = code || serves ? code : WEIR_EXIT_SHORT;
  if (options.save) {
    int saved = save(t, names);
    if (saved)
      code = saved;
    else if (!weir_cli_prediction.json)
      printf("Saved to %s: weir tune --load checks whether it still applies.\n", options.save);
  }
  weir__tune_clear(&t->result);
  return code;
}

static int run(int count, char **files) {
  tuning t = {.options = {.fit = options.fit}};
  if (options.load && (options.save || options.fit))
    return weir_cli_usage("--load excludes --save and --fit");
  if (options.load)
    return load(count, files);
  if (!count)
    return weir_cli_usage("FILE is missing");
  int code = weir_cli_prediction_begin();
  if (code)
    return code;
  code = tune_files(&t, files, count);
  for (int i = 0; t.files && i < count; i++)
    weir_cli_history_close(&t.files[i]);
  free(t.files);
  free(t.histories);
  free(t.shown);
  return code;
}

static void prepare(int count, char **files) {
  if (options.save || options.load)
    weir_cli_tuned_prepare(purpose(files, count).device);
}

static int read_version(const char *text) {
  options.pytorch = text;
  return weir__version_parse(text, &options.version) ? WEIR_EXIT_OK : WEIR_EXIT_USAGE;
}

static const weir_cli_option option_table[] = {
    {"fit", .target = &options.fit,
     .help = "also find the least memory in which the jobs still run, under the recorded and the best settings"},
    {"save", .kind = WEIR_CLI_PATH, .value = "OUT", .target = &options.save,
     .help = "write the best settings to this file, with what they depend on: the recordings, this machine's GPU and "
             "driver if it has one, --pytorch, and the version of Weir"},
    {"load", .kind = WEIR_CLI_PATH, .value = "IN", .target = &options.load,
     .help = "do not search: print the settings that --save wrote, to be evaluated by a shell, or fail if the file is "
             "stale. The recordings are compared if they are given"},
    {"pytorch", .kind = WEIR_CLI_TEXT, .value = "VERSION", .target = &options.pytorch, .read = read_version,
     .takes = "a version such as 2.5",
     .help = "the version of PyTorch that the job runs with: keys that it does not know are not tried, and --load "
             "compares it with that of --save"},
    WEIR_CLI_THREADS_OPTION(&options.threads),
    {0}};

const weir_cli_command weir_cmd_tune = {
    .name = "tune",
    .summary = "find the settings under which recorded jobs need the least memory",
    .description =
        "Replay recorded jobs under a few hundred settings, and print the best trade-offs between peak memory, the "
        "cost of driver calls and the number of keys, the text to export for the best one, and what it saves. Several "
        "files, of ranks or of jobs, are tuned together: one setting for the job that needs the most memory. First, a "
        "replay under the recorded settings is compared with each file.",
    .argument = "[FILE...]",
    .prepare = prepare,
    .options = option_table,
    .shared = weir_cli_prediction_table,
    .examples = "weir tune job.pickle\n"
                "weir tune --fit rank0.pickle rank1.pickle\n"
                "weir tune --save job.tuned job.pickle\n",
    .exit = {"done", "a file cannot be read, is not reproduced, or is stale", NULL,
             "memory runs out under every setting"},
    .run = run};

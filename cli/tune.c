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
#include "offline/render/predict_report.h"
#include "prediction.h"
#include "progress.h"
#include "report.h"
#include "tuned.h"

enum { MAX_ROWS = 12 };

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
  weir__tune_result result;
} tuning;

/* ---- Output ---- */

static double saved_percent(uint64_t before, uint64_t after) {
  double percent = before ? 100 * ((double)before - (double)after) / (double)before : 0;
  return percent < 0 && percent > -0.05 ? 0 : percent; /* no "-0.0" */
}

static void print_row(const tuning *t, size_t candidate) {
  const weir__tune_result *r = &t->result;
  const weir__tune_candidate *c = &r->candidates[candidate];
  char conf[WEIR__CONF_TEXT];
  const char *name = weir__conf_text(&c->settings, conf);
  bool is_moving = r->moving && candidate == r->moving, is_best = candidate == r->best || is_moving;
  if (candidate == 0 && r->is_mixed)
    name = "those of each file";
  printf("%s%12s %6.1f %% %10s %8llu %8llu  %s%s%s%s\n", is_best ? weir_cli_bold() : "", weir_cli_bytes(c->score.peak),
         saved_percent(r->candidates[0].score.peak, c->score.peak), weir_cli_ns(c->score.cost),
         (unsigned long long)c->score.calls, (unsigned long long)c->score.retries,
         candidate ? "" : "recorded: ", *name ? name : "(defaults)",
         is_moving ? "   <- best with Weir's allocator"
         : is_best ? "   <- best"
                   : "",
         is_best ? weir_cli_plain() : "");
}

static bool is_in(const size_t *front, size_t count, size_t candidate) {
  for (size_t i = 0; i < count; i++)
    if (front[i] == candidate)
      return true;
  return false;
}

static void print_front(const tuning *t, const size_t *front, size_t count) {
  for (size_t i = 0; i < count && i < MAX_ROWS; i++)
    print_row(t, front[i]);
  if (count > MAX_ROWS)
    printf("%12s and %zu more that need more memory: see --json\n", "", count - MAX_ROWS);
}

/* Of the recording that needs most, as the peaks in the table are. */
static uint64_t least_possible(const tuning *t) {
  uint64_t most = 0;
  for (size_t i = 0; i < t->options.history_count; i++) {
    uint64_t least = weir__replayer_least(t->files[i].history, SIZE_MAX);
    most = least > most ? least : most;
  }
  return most;
}

static void print_table(const tuning *t) {
  const weir__tune_result *r = &t->result;
  size_t shown = r->front_count < MAX_ROWS ? r->front_count : MAX_ROWS;
  const size_t others[] = {r->best, r->expandable, 0};
  printf("%zu settings tried. The best trade-offs between peak memory, cost and number of keys:\n\n",
         r->candidate_count);
  printf("%12s %8s %10s %8s %8s  %s\n", "reserved", "saved", "cost", "calls", "retries", "settings");
  print_front(t, r->front, r->front_count);
  for (size_t i = 0, printed = 0; i < WEIR_COUNT_OF(others); i++) {
    bool is_repeated = (others[i] == 0 && i < 2) || (i == 1 && r->expandable == r->best);
    if (is_repeated || is_in(r->front, shown, others[i]))
      continue;
    if (!printed++)
      putchar('\n');
    print_row(t, others[i]);
  }
  if (r->moving) {
    puts("\nWith Weir's allocator under PyTorch, whose key moving_pages PyTorch itself rejects:\n");
    print_front(t, r->front_moving, r->front_moving_count);
  }
  printf("\n%12s  no allocator could go below: the most bytes in use at one moment, in pages of 2 MiB\n",
         weir_cli_bytes(least_possible(t)));
  puts("\nThe best has the fewest failures, and then the least peak memory; within 1 % of that, the lowest cost of "
       "driver "
       "calls, of which half a percent of the job's time does not matter, and then the fewest keys.");
}

static void print_files(const tuning *t) {
  const weir__tune_result *r = &t->result;
  for (size_t i = 0; i < t->options.history_count; i++) {
    uint64_t before = r->candidates[0].of[i].peak_reserved, after = r->candidates[r->best].of[i].peak_reserved;
    printf("  %s: %s instead of %s%s\n", t->files[i].name, weir_cli_bytes(after), weir_cli_bytes(before),
           after > before ? ", which is more" : "");
  }
}

static void print_failures(const tuning *t) {
  const weir__tune_result *r = &t->result;
  for (int is_best = 0; is_best < 2; is_best++) {
    const weir__tune_candidate *c = &r->candidates[is_best ? r->best : 0];
    for (size_t i = 0; i < t->options.history_count; i++) {
      if (!c->of[i].failures || (is_best && r->best == 0))
        continue;
      printf("%s: under the %s settings memory runs out %s; first at ", t->files[i].name, is_best ? "best" : "recorded",
             weir_cli_count(c->of[i].failures, "time"));
      weir_cli_print_failure(&c->of[i]);
      fputs(".\n", stdout);
    }
  }
}

static void print_fit(const char *which, const weir__fit *fit) {
  if (!fit->bytes) {
    printf("  none %s\n", which);
    return;
  }
  printf("  %s %s, with %s", weir_cli_bytes(fit->bytes), which, weir_cli_count(fit->retries, "retry"));
  if (strcmp(weir_cli_bytes(fit->least), weir_cli_bytes(fit->bytes)) != 0)
    printf("; %s if streams have always done their work when they are asked", weir_cli_bytes(fit->least));
  putchar('\n');
}

/* The best settings with moving_pages, a key that PyTorch itself does not know. */
static void print_moving(const tuning *t) {
  const weir__tune_result *r = &t->result;
  const weir__tune_score *before = &r->candidates[0].score, *after = &r->candidates[r->moving].score;
  char conf[WEIR__CONF_TEXT];
  if (!r->moving)
    return;
  printf("%sThe best with Weir's allocator under PyTorch%s (moving_pages is a key that PyTorch does not know: see "
         "docs/python/torch.md):\n",
         weir_cli_bold(), weir_cli_plain());
  weir_cli_keep_line();
  printf("  export WEIR_ALLOC_CONF='%s'\n", weir__conf_text(&r->candidates[r->moving].settings, conf));
  printf("Peak reserved memory is %s, %.1f %% less than recorded. Driver calls cost %s.\n", weir_cli_bytes(after->peak),
         saved_percent(before->peak, after->peak), weir_cli_ns(after->cost));
  if (before->failures && !after->failures)
    puts("Memory no longer runs out.");
}

static void print_verdict(const tuning *t) {
  const weir__tune_result *r = &t->result;
  const weir__tune_score *before = &r->candidates[0].score, *after = &r->candidates[r->best].score;
  char conf[WEIR__CONF_TEXT];
  const char *best = weir__conf_text(&r->candidates[r->best].settings, conf);
  putchar('\n');
  print_failures(t);
  if (r->best == 0)
    puts("No settings were found that are better than the recorded ones.");
  else if (*best) {
    printf("%sThe best:%s\n", weir_cli_bold(), weir_cli_plain());
    weir_cli_keep_line();
    printf("  export PYTORCH_CUDA_ALLOC_CONF='%s'\n", best);
  } else
    printf("%sThe best are the defaults:%s\n  unset PYTORCH_CUDA_ALLOC_CONF\n", weir_cli_bold(), weir_cli_plain());
  if (r->best && after->peak <= before->peak)
    printf("Peak reserved memory is %s instead of %s: %s less, %.1f %%.", weir_cli_bytes(after->peak),
           weir_cli_bytes(before->peak), weir_cli_bytes(before->peak - after->peak),
           saved_percent(before->peak, after->peak));
  else if (r->best)
    printf("Peak reserved memory is %s; under the recorded settings it was %s.", weir_cli_bytes(after->peak),
           weir_cli_bytes(before->peak));
  if (r->best)
    printf(" Driver calls cost %s instead of %s.\n", weir_cli_ns(after->cost), weir_cli_ns(before->cost));
  if (before->failures && !after->failures)
    puts("Memory no longer runs out.");
  const char *key;
  weir__pytorch_version since = weir__settings_since(&r->candidates[r->best].settings, &key);
  if (!options.pytorch && weir__version_is_before(WEIR__VERSION_IN_USE, since))
    printf("%s needs PyTorch %d.%d or newer%s.\n", key, since.major, since.minor,
           r->best ? ": --pytorch VERSION leaves out what a version does not know" : "");
  if (t->options.history_count > 1)
    print_files(t);
  print_moving(t);
  if (t->options.fit) {
    printf("The least memory in which %s:\n", t->options.history_count > 1 ? "all jobs run" : "the job runs");
    print_fit("under the recorded settings", &r->fit_recorded);
    if (r->best)
      print_fit("under the best settings", &r->fit_best);
    if (r->moving)
      print_fit("under the best settings with Weir's allocator", &r->fit_moving);
  }
}

static void print_start(const weir__replayer *history) {
  fputs("  began late: ", stdout);
  weir_cli_print_start(history);
  printf(".\n  Their order is not known, so they are allocated again in order of address in every row below: compare "
         "these with each other. The recording itself reserved %s at its peak.\n",
         weir_cli_bytes((uint64_t)weir__replayer_check(history)->stats.reserved_bytes[WEIR_STAT_ALL].peak));
}

/* Replays use other addresses than the recording, and do not repeat races between threads. */
static void print_recorded_peak(const tuning *t, size_t file) {
  const weir__replay_report *check = weir__replayer_check(t->files[file].history);
  uint64_t recorded = (uint64_t)check->stats.reserved_bytes[WEIR_STAT_ALL].peak;
  if (weir_cli_prediction.memory || check->differences || recorded == t->result.candidates[0].of[file].peak_reserved)
    return;
  printf("  The recording itself reserved %s at its peak. Its settings, replayed like all others, reserve %s: %s\n",
         weir_cli_bytes(recorded), weir_cli_bytes(t->result.candidates[0].of[file].peak_reserved),
         check->raced ? "races between threads are not repeated." : "segments have other addresses.");
}

static void print_text(const tuning *t) {
  weir_cli_fold_begin();
  for (size_t i = 0; i < t->options.history_count; i++) {
    const weir__replay_report *check = weir__replayer_check(t->files[i].history);
    printf("%s: %s, %s under the recorded settings\n", t->files[i].name, weir_cli_count(check->events, "entry"),
           check->differences ? "not reproduced" : "reproduced");
    if (check->limit_is_inferred && !weir_cli_prediction.memory)
      printf("  limit: %s, inferred from the recording\n", weir_cli_bytes(check->limit));
    if (weir__replayer_start(t->files[i].history)->segment_count)
      print_start(t->files[i].history);
    else
      print_recorded_peak(t, i);
  }
  print_table(t);
  print_verdict(t);
}

static void add_candidate(weir__report *r, const char *key, const tuning *t, size_t candidate) {
  const weir__tune_candidate *c = &t->result.candidates[candidate];
  char conf[WEIR__CONF_TEXT];
  WEIR__ROWS(r, JSON_OBJECT(key),
             JSON_TEXT("conf", candidate == 0 && t->result.is_mixed ? NULL : weir__conf_text(&c->settings, conf)),
             JSON_BOOL("recorded", !candidate), JSON_NATURAL("peak_reserved", c->score.peak),
             JSON_REAL("cost_ns", c->score.cost, 0), JSON_NATURAL("calls", c->score.calls),
             JSON_NATURAL("retries", c->score.retries), JSON_NATURAL("failures", c->score.failures),
             JSON_LIST("files"));
  for (size_t i = 0; i < t->options.history_count; i++) {
    WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("file", t->files[i].file), JSON_INTEGER("device", t->files[i].device));
    weir__prediction_rows_add(r, &c->of[i]);
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE, JSON_CLOSE);
}

static void add_front(weir__report *r, const char *key, const tuning *t, const size_t *front, size_t count) {
  WEIR__ROWS(r, JSON_LIST(key));
  for (size_t i = 0; i < count; i++)
    add_candidate(r, NULL, t, front[i]);
  WEIR__ROWS(r, JSON_CLOSE);
}

/* Prints JSON if it is wanted. An exit code. */
static int print_json(const tuning *t, const char *file) {
  const weir__tune_result *of = &t->result;
  weir__report report, *r = &report;
  weir__report_begin(r);
  WEIR__ROWS(r, JSON_NATURAL("files", t->options.history_count), JSON_NATURAL("tried", of->candidate_count));
  add_candidate(r, "recorded", t, 0);
  add_candidate(r, "best", t, of->best);
  if (of->moving)
    add_candidate(r, "best_moving", t, of->moving);
  else
    WEIR__ROWS(r, JSON_NULL("best_moving"));
  if (of->expandable)
    add_candidate(r, "expandable", t, of->expandable);
  else
    WEIR__ROWS(r, JSON_NULL("expandable"));
  add_front(r, "front", t, of->front, of->front_count);
  add_front(r, "front_moving", t, of->front_moving, of->moving ? of->front_moving_count : 0);
  WEIR__ROWS(r, ROW_BYTES("least_possible", least_possible(t)), JSON_TEXT("pytorch", options.pytorch));
  if (t->options.fit) {
    weir__fit_rows(r, "fit_recorded", &of->fit_recorded);
    weir__fit_rows(r, "fit_best", &of->fit_best);
    weir__fit_rows(r, "fit_moving", &of->fit_moving);
  }
  return weir_cli_print_report(r, file, weir_cli_prediction.json);
}

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
  if (weir_cli_prediction.json || weir_cli_json_is_separate()) {
    weir_cli_json_begin(0);
    WEIR_CLI_JSON(JSON_TEXT("conf", tuned.conf), JSON_REAL("cost_ns", tuned.cost_ns, 0),
                  JSON_TEXT("conf_moving", tuned.has_moving ? tuned.moving : NULL));
    weir_cli_json_end();
  }
  if (weir_cli_prediction.json)
    return WEIR_EXIT_OK;
  if (*tuned.conf)
    printf("export PYTORCH_CUDA_ALLOC_CONF='%s'\n", tuned.conf);
  else
    puts("unset PYTORCH_CUDA_ALLOC_CONF");
  if (tuned.has_moving)
    printf("# with Weir's allocator under PyTorch:\n# export WEIR_ALLOC_CONF='%s'\n", tuned.moving);
  return WEIR_EXIT_OK;
}

/* ---- Tuning ---- */

/* Keys that are not searched keep their values. Texts that PyTorch accepts but Weir does not are replaced by the
 * defaults. */
static void read_base(const char *conf, weir__settings *base) {
  if (!conf || weir__settings_parse(NULL, conf, base) || base->backend != WEIR__BACKEND_NATIVE)
    weir__settings_default(base);
}

static int tune_files(tuning *t, char **names, int count) {
  weir__parallel *parallel = &t->options.parallel;
  weir__settings base;
  int code = WEIR_EXIT_OK;
  t->files = calloc((size_t)count, sizeof *t->files);
  t->histories = calloc((size_t)count, sizeof *t->histories);
  if (!t->files || !t->histories) {
    weir_cli_fail("out of host memory");
    code = WEIR_EXIT_FAILED;
  }
  for (int i = 0; i < count && !code; i++) {
    code = weir_cli_history_open(names[i], &t->files[i]);
    t->histories[i] = t->files[i].history;
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
  code = print_json(t, names[0]);
  if (!weir_cli_prediction.json)
    print_text(t);
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

/*
 * weir tune: the settings under which recorded jobs need least memory, and what they cost.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/tune.h"
#include "prediction.h"
#include "progress.h"
#include "ranks.h"

enum { MOST_ROWS = 12 };

typedef struct tuning {
  weir_cli_predicting common;
  weir__tune_options options;
  weir_cli_history *files;
  const weir__replayer **histories;
  weir__tune_result result;
} tuning;

static void print_help(void) {
  weir_cli_help_begin();
  fputs(
      "Usage: weir tune [OPTION...] FILE...\n"
      "\n"
      "Replays recorded jobs under a few hundred settings, and prints the best trade-offs of peak memory, the cost of\n"
      "driver calls and the number of keys, the text to export for the best, and what it saves. A FILE is what\n"
      "torch.cuda.memory._dump_snapshot() writes; - is the standard input. Several files, of ranks or of jobs, are\n"
      "tuned together: one setting for the one that needs most. Before anything is said, a replay under the recorded\n"
      "settings is compared with each file. Under mpirun, where the build has MPI, processes share the work.\n"
      "\n"
      "Options:\n"
      "  --fit             the least memory in which the jobs still run, under the recorded and the best settings\n"
      "  --threads N       how many cores to use; all\n",
      stdout);
  fputs(weir_cli_predicting_help, stdout);
  fputs("\n"
        "Exit codes: 0 done; 1 a file cannot be read or is not reproduced; 2 invalid usage; 3 memory runs\n"
        "out under every setting.\n",
        stdout);
}

/* ---- Output ---- */

static double saved(uint64_t before, uint64_t after) {
  double percent = before ? 100 * ((double)before - (double)after) / (double)before : 0;
  return percent < 0 && percent > -0.05 ? 0 : percent; /* no "-0.0" */
}

static void print_row(const tuning *t, size_t candidate) {
  const weir__tune_result *r = &t->result;
  const weir__tune_candidate *c = &r->candidates[candidate];
  char text[2][32], conf[WEIR_CLI_CONF_TEXT];
  const char *name = weir_cli_conf_text(&c->settings, conf);
  bool is_best = candidate == r->best;
  if (candidate == 0 && r->is_mixed)
    name = "each file's own";
  printf("%s%12s %6.1f %% %10s %8llu %8llu  %s%s%s%s\n", is_best ? weir_cli_bold() : "",
         weir__format_bytes(c->score.peak, text[0]), saved(r->candidates[0].score.peak, c->score.peak),
         weir_cli_format_ns(c->score.cost, text[1]), (unsigned long long)c->score.calls,
         (unsigned long long)c->score.retries, candidate ? "" : "recorded: ", *name ? name : "(defaults)",
         is_best ? "   <- best" : "", is_best ? weir_cli_plain() : "");
}

static void print_table(const tuning *t) {
  const weir__tune_result *r = &t->result;
  bool has_best = false, has_recorded = false;
  printf("%zu settings tried. The best trade-offs of peak memory, cost and number of keys:\n\n", r->candidate_count);
  printf("%12s %8s %10s %8s %8s  %s\n", "reserved", "saved", "cost", "calls", "retries", "settings");
  for (size_t i = 0; i < r->front_count && i < MOST_ROWS; i++) {
    print_row(t, r->front[i]);
    has_best |= r->front[i] == r->best;
    has_recorded |= r->front[i] == 0;
  }
  if (r->front_count > MOST_ROWS)
    printf("%12s and %zu more that need more memory: --json has them\n", "", r->front_count - MOST_ROWS);
  if (!has_best || (!has_recorded && r->best != 0))
    putchar('\n');
  if (!has_best)
    print_row(t, r->best);
  if (!has_recorded && r->best != 0)
    print_row(t, 0);
}

static void print_files(const tuning *t) {
  const weir__tune_result *r = &t->result;
  char text[2][32];
  for (size_t i = 0; i < t->options.history_count; i++) {
    uint64_t before = r->candidates[0].of[i].peak_reserved, after = r->candidates[r->best].of[i].peak_reserved;
    printf("  %s: %s instead of %s%s\n", t->files[i].name, weir__format_bytes(after, text[0]),
           weir__format_bytes(before, text[1]), after > before ? ", which is more" : "");
  }
}

static void print_failures(const tuning *t) {
  const weir__tune_result *r = &t->result;
  for (int is_best = 0; is_best < 2; is_best++) {
    const weir__tune_candidate *c = &r->candidates[is_best ? r->best : 0];
    for (size_t i = 0; i < t->options.history_count; i++) {
      if (!c->of[i].failures || (is_best && r->best == 0))
        continue;
      printf("%s: under the %s settings memory runs out %llu time%s; first at ", t->files[i].name,
             is_best ? "best" : "recorded", (unsigned long long)c->of[i].failures, c->of[i].failures > 1 ? "s" : "");
      weir_cli_print_failure(&c->of[i]);
      fputs(".\n", stdout);
    }
  }
}

static void print_fit(const char *which, const weir__fit *fit) {
  char text[32];
  if (fit->bytes)
    printf("  %s under the %s settings, with %llu %s\n", weir__format_bytes(fit->bytes, text), which,
           (unsigned long long)fit->retries, fit->retries == 1 ? "retry" : "retries");
  else
    printf("  none under the %s settings\n", which);
}

static void print_verdict(const tuning *t) {
  const weir__tune_result *r = &t->result;
  const weir__tune_score *before = &r->candidates[0].score, *after = &r->candidates[r->best].score;
  char text[3][32], conf[WEIR_CLI_CONF_TEXT];
  const char *best = weir_cli_conf_text(&r->candidates[r->best].settings, conf);
  putchar('\n');
  print_failures(t);
  if (r->best == 0)
    puts("The recorded settings are the best that were found.");
  else if (*best) {
    printf("%sThe best:%s\n", weir_cli_bold(), weir_cli_plain());
    weir_cli_keep_line();
    printf("  export PYTORCH_CUDA_ALLOC_CONF='%s'\n", best);
  } else
    printf("%sThe best are the defaults:%s\n  unset PYTORCH_CUDA_ALLOC_CONF\n", weir_cli_bold(), weir_cli_plain());
  if (r->best && after->peak <= before->peak)
    printf("It reserves %s at the peak instead of %s: %s less, %.1f %%.", weir__format_bytes(after->peak, text[0]),
           weir__format_bytes(before->peak, text[1]), weir__format_bytes(before->peak - after->peak, text[2]),
           saved(before->peak, after->peak));
  else if (r->best)
    printf("It reserves %s at the peak; the recorded settings reserved %s.", weir__format_bytes(after->peak, text[0]),
           weir__format_bytes(before->peak, text[1]));
  if (r->best)
    printf(" Driver calls cost %s instead of %s.\n", weir_cli_format_ns(after->cost, text[0]),
           weir_cli_format_ns(before->cost, text[1]));
  if (before->failures && !after->failures)
    puts("Memory does not run out.");
  if (r->candidates[r->best].settings.large_segment_size != 20 << 20)
    puts("large_segment_size_mb needs PyTorch 2.11 or newer.");
  if (t->options.history_count > 1)
    print_files(t);
  if (t->options.fit) {
    printf("The least memory in which %s:\n", t->options.history_count > 1 ? "all of them run" : "it runs");
    print_fit("recorded", &r->fit_recorded);
    if (r->best)
      print_fit("best", &r->fit_best);
  }
}

static void print_start(const weir__replayer *history) {
  char text[32];
  fputs("  began late: ", stdout);
  weir_cli_print_start(history);
  printf(
      ".\n  Their order is not known, so they are allocated anew, by address, in every row below: compare these with "
      "each\n"
      "  other. The recording itself reserved %s at its peak.\n",
      weir__format_bytes((uint64_t)weir__replayer_check(history)->stats.reserved_bytes[WEIR_STAT_ALL].peak, text));
}

/* The replays have other addresses than the recording, and no races between threads. */
static void print_recorded_peak(const tuning *t, size_t file) {
  const weir__replay_report *check = weir__replayer_check(t->files[file].history);
  uint64_t recorded = (uint64_t)check->stats.reserved_bytes[WEIR_STAT_ALL].peak;
  char text[2][32];
  if (t->common.memory || check->differences || recorded == t->result.candidates[0].of[file].peak_reserved)
    return;
  printf("  The recording itself reserved %s at its peak. Its settings, replayed as all others are, reserve %s: %s\n",
         weir__format_bytes(recorded, text[0]),
         weir__format_bytes(t->result.candidates[0].of[file].peak_reserved, text[1]),
         check->raced ? "races\n  between threads are not repeated." : "segments\n  lie at other addresses.");
}

static void print_text(const tuning *t) {
  char text[32];
  weir_cli_fold_begin();
  for (size_t i = 0; i < t->options.history_count; i++) {
    const weir__replay_report *check = weir__replayer_check(t->files[i].history);
    printf("%s: %zu events, %s under the recorded settings\n", t->files[i].name, check->events,
           check->differences ? "not reproduced" : "reproduced");
    if (check->limit_is_inferred && !t->common.memory)
      printf("  limit: %s, inferred from the recording\n", weir__format_bytes(check->limit, text));
    if (weir__replayer_start(t->files[i].history)->segment_count)
      print_start(t->files[i].history);
    else
      print_recorded_peak(t, i);
  }
  print_table(t);
  print_verdict(t);
}

static void json_fit(const char *name, const weir__fit *fit) {
  if (fit->bytes)
    printf(", \"%s\": {\"bytes\": %llu, \"retries\": %llu}", name, (unsigned long long)fit->bytes,
           (unsigned long long)fit->retries);
  else
    printf(", \"%s\": null", name);
}

static void print_candidate(const tuning *t, size_t candidate) {
  const weir__tune_candidate *c = &t->result.candidates[candidate];
  char conf[WEIR_CLI_CONF_TEXT];
  fputs("{\"conf\": ", stdout);
  if (candidate == 0 && t->result.is_mixed)
    fputs("null", stdout);
  else
    weir_cli_json_string(weir_cli_conf_text(&c->settings, conf));
  printf(", \"recorded\": %s, \"peak_reserved\": %llu, \"cost_ns\": %.0f, \"calls\": %llu, \"retries\": %llu, "
         "\"failures\": %llu, \"files\": [",
         candidate ? "false" : "true", (unsigned long long)c->score.peak, c->score.cost,
         (unsigned long long)c->score.calls, (unsigned long long)c->score.retries,
         (unsigned long long)c->score.failures);
  for (size_t i = 0; i < t->options.history_count; i++) {
    printf("%s{\"file\": ", i ? ", " : "");
    weir_cli_json_string(t->files[i].file);
    printf(", \"device\": %d, ", t->files[i].device);
    weir_cli_json_prediction(&c->of[i]);
    putchar('}');
  }
  fputs("]}", stdout);
}

static void print_json(const tuning *t) {
  const weir__tune_result *r = &t->result;
  printf("{\"files\": %zu, \"tried\": %zu, \"recorded\": ", t->options.history_count, r->candidate_count);
  print_candidate(t, 0);
  fputs(", \"best\": ", stdout);
  print_candidate(t, r->best);
  fputs(", \"front\": [", stdout);
  for (size_t i = 0; i < r->front_count; i++) {
    fputs(i ? ", " : "", stdout);
    print_candidate(t, r->front[i]);
  }
  putchar(']');
  if (t->options.fit) {
    json_fit("fit_recorded", &r->fit_recorded);
    json_fit("fit_best", &r->fit_best);
  }
  puts("}");
}

/* ---- Work ---- */

/* Keys that are not searched stay as they were. What PyTorch reads more loosely than Weir does is not carried on. */
static void read_base(const char *conf, weir__settings *base) {
  if (!conf || weir__settings_parse(NULL, conf, base) || base->backend != WEIR__BACKEND_NATIVE)
    weir__settings_default(base);
}

static int tune_files(tuning *t, char **names, int count) {
  weir__parallel *team = &t->options.parallel;
  weir__settings base;
  int code = WEIR_EXIT_OK;
  t->files = calloc((size_t)count, sizeof *t->files);
  t->histories = calloc((size_t)count, sizeof *t->histories);
  if (!t->files || !t->histories) {
    fputs("weir tune: no host memory\n", stderr);
    code = WEIR_EXIT_FAILED;
  }
  for (int i = 0; i < count && !code; i++) {
    code = weir_cli_history_open(&t->common, names[i], &t->files[i]);
    t->histories[i] = t->files[i].history;
  }
  bool failed = weir_cli_ranks_any(team, code != WEIR_EXIT_OK);
  if (failed)
    return code ? code : WEIR_EXIT_FAILED;
  read_base(t->files[0].snapshot->conf, &base);
  t->options.histories = t->histories;
  t->options.history_count = (size_t)count;
  t->options.base = &base;
  t->options.memory = t->common.memory;
  t->options.fraction = t->common.fraction;
  t->options.costs = &t->common.costs;
  team->threads = t->common.threads;
  weir_cli_progress *progress = team->rank ? NULL : weir_cli_progress_begin("tuning");
  team->progress = weir_cli_progress_step;
  team->progress_context = progress;
  weir_status status = weir__tune(&t->options, &t->result);
  weir_cli_progress_end(progress);
  if (status) {
    fprintf(stderr, "weir tune: %s\n", weir_last_error());
    weir_cli_ranks_end(team, true);
    return WEIR_EXIT_FAILED;
  }
  if (!team->rank)
    (t->common.json ? print_json : print_text)(t);
  code = t->result.candidates[t->result.best].score.failures ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
  weir__tune_clear(&t->result);
  return code;
}

int weir_cmd_tune(int argc, char **argv) {
  static const struct option long_options[] = {{"fit", no_argument, NULL, 'f'},
                                               {"threads", required_argument, NULL, 't'},
                                               {"help", no_argument, NULL, 'h'},
                                               WEIR_CLI_PREDICTING_OPTIONS,
                                               {NULL, 0, NULL, 0}};
  tuning t = {0};
  int code = WEIR_EXIT_OK;
  weir_cli_predicting_init(&t.common, "tune");
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
    if (option == 'f')
      t.options.fit = true;
    else if (option == 't')
      code = weir_cli_take_threads("tune", optarg, &t.common.threads);
    else if (option == 'h') {
      print_help();
      return WEIR_EXIT_OK;
    } else
      code = weir_cli_predicting_take(&t.common, option, argv);
    if (code)
      return code;
  }
  if (optind == argc)
    return weir_cli_usage("tune", "no file is named");
  code = weir_cli_predicting_check(&t.common);
  if (code)
    return code;
  weir_cli_ranks_begin(&t.options.parallel);
  code = tune_files(&t, argv + optind, argc - optind);
  weir_cli_ranks_end(&t.options.parallel, false);
  for (int i = 0; t.files && i < argc - optind; i++)
    weir_cli_history_close(&t.files[i]);
  free(t.files);
  free(t.histories);
  return code;
}

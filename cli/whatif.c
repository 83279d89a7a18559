/*
 * weir whatif: a recorded job under several settings, side by side.
 */
#include <getopt.h>
#include <stdio.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/team.h"
#include "prediction.h"
#include "progress.h"

enum { MOST_CONFS = 256 };

typedef struct whatif {
  weir_cli_predicting common;
  unsigned conf_count;
  const char *confs[MOST_CONFS];
  weir__settings settings[MOST_CONFS];
  weir__prediction rows[MOST_CONFS + 2]; /* of the file under way: see settings_of */
} whatif;

typedef struct table {
  const whatif *w;
  const weir__recording *history;
} table;

static void print_help(void) {
  fputs(
      "Usage: weir whatif [OPTION...] --conf SETTINGS [--conf SETTINGS...] FILE...\n"
      "\n"
      "Shows what a recorded job would have done under other settings, each in a line: peak memory, fragmentation,\n"
      "driver calls and what they cost, retries, failures. A FILE is what torch.cuda.memory._dump_snapshot() writes.\n"
      "Before anything is said, a replay under the recorded settings is compared with the file.\n"
      "\n"
      "Options:\n"
      "  --conf SETTINGS   settings to try, as expandable_segments:True; '' for the defaults. Any number of times\n"
      "  --threads N       how many cores to use; all\n",
      stdout);
  fputs(weir_cli_predicting_help, stdout);
  fputs(
      "\n"
      "Exit codes: 0 done; 1 a file cannot be read, is not reproduced, or settings are wrong; 2 the command line was\n"
      "wrong.\n",
      stdout);
}

/* Where a recording began late, the recorded settings have two rows: with what was there before as it was, and placed anew as
 * under all the others, which shows what that makes of it. */
static size_t recorded_rows(const weir__recording *history) {
  return weir__recording_start(history)->segment_count ? 2 : 1;
}

static const weir__settings *settings_of(const table *t, size_t row) {
  size_t recorded = recorded_rows(t->history);
  if (row >= recorded)
    return &t->w->settings[row - recorded];
  return row ? weir__recording_settings(t->history) : NULL;
}

static size_t row_count(const table *t) { return t->w->conf_count + recorded_rows(t->history); }

static void predict(void *context, size_t row, void *result) {
  const table *t = context;
  const weir_cli_predicting *common = &t->w->common;
  const weir__settings *settings = settings_of(t, row);
  weir__prediction *prediction = result;
  weir__capacity capacity;
  prediction->status = weir__recording_capacity_of(t->history, settings, common->memory, common->fraction, &capacity);
  if (!prediction->status)
    weir__predict(t->history, settings, &capacity, &common->costs, prediction);
}

/* "" for a row of the recorded settings. */
static const char *name_of(const table *t, size_t row) {
  size_t recorded = recorded_rows(t->history);
  return row < recorded ? "" : *t->w->confs[row - recorded] ? t->w->confs[row - recorded] : "(defaults)";
}

static void print_start(const table *t) {
  fputs("  began late: ", stdout);
  if (weir_cli_print_start(t->history))
    puts(".\n  Under other settings that is allocated anew, by address, since nobody knows in which order it was: "
         "compare with\n"
         "  the second line, where the recorded settings begin so too, and take it as an estimate");
}

static void print_rows(const table *t, const weir_cli_history *h) {
  char text[2][32], recorded[WEIR_CLI_CONF_TEXT];
  const weir__prediction *rows = t->w->rows;
  const weir__replay_report *check = weir__recording_check(t->history);
  weir_cli_conf_text(weir__recording_settings(t->history), recorded);
  printf("%s: %zu events, %s under the recorded settings\n", h->name, check->events,
         check->differences ? "not reproduced" : "reproduced");
  if (check->limit_is_inferred && !t->w->common.memory)
    printf("  limit: %s, told from what the file shows\n", weir__format_bytes(check->limit, text[0]));
  if (recorded_rows(t->history) > 1)
    print_start(t);
  printf("%12s %12s %8s %9s %10s %8s %7s  %s\n", "reserved", "allocated", "unused", "calls", "cost", "retries",
         "failed", "settings");
  for (size_t i = 0; i < row_count(t); i++) {
    const weir__prediction *p = &rows[i];
    printf("%12s %12s %6.1f %% %9llu", weir__format_bytes(p->peak_reserved, text[0]),
           weir__format_bytes(p->peak_allocated, text[1]), 100 * weir__prediction_fragmentation(p),
           (unsigned long long)weir__prediction_calls(p));
    printf(" %10s %8llu %7llu  ", weir_cli_format_ns(p->cost, text[0]), (unsigned long long)p->retries,
           (unsigned long long)p->failures);
    if (*name_of(t, i))
      puts(name_of(t, i));
    else
      printf("%srecorded%s%s: %s\n", weir_cli_bold(), weir_cli_plain(), i ? ", begun anew" : "",
             *recorded ? recorded : "(defaults)");
  }
  for (size_t i = 0; i < row_count(t); i++)
    if (rows[i].failures) {
      printf("  %s fails first at ", *name_of(t, i) ? name_of(t, i) : i ? "recorded, begun anew" : "recorded");
      weir_cli_print_failure(&rows[i]);
      putchar('\n');
    }
}

static void print_json(const table *t, const weir_cli_history *h) {
  char recorded[WEIR_CLI_CONF_TEXT];
  size_t own = recorded_rows(t->history);
  const weir__replay_report *check = weir__recording_check(t->history);
  weir_cli_conf_text(weir__recording_settings(t->history), recorded);
  printf("{\"file\": ");
  weir_cli_json_string(h->file);
  printf(", \"device\": %d, \"events\": %zu, \"reproduced\": %s, \"predictions\": [", h->device, check->events,
         check->differences ? "false" : "true");
  for (size_t i = 0; i < row_count(t); i++) {
    printf("%s{\"conf\": ", i ? ", " : "");
    weir_cli_json_string(i < own ? recorded : t->w->confs[i - own]);
    printf(", \"recorded\": %s, ", i < own ? "true" : "false");
    weir_cli_json_prediction(&t->w->rows[i]);
    putchar('}');
  }
  fputs("], ", stdout);
  weir_cli_json_start(t->history);
  puts("}");
}

/* An exit code. */
static int predict_file(whatif *w, const char *file) {
  weir_cli_history h;
  int code = weir_cli_history_open(&w->common, file, &h);
  if (code)
    return code;
  table t = {w, h.history};
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  const weir__team team = {
      .threads = w->common.threads, .progress = weir_cli_progress_step, .progress_context = progress};
  weir__team_run(&team, row_count(&t), predict, &t, w->rows, sizeof *w->rows);
  weir_cli_progress_end(progress);
  for (size_t i = 0; i < row_count(&t) && !code; i++)
    if (w->rows[i].status) {
      predict(&t, i, &w->rows[i]); /* once more, here: an error's text is that of the thread that met it */
      const char *name = name_of(&t, i);
      fprintf(stderr, "weir whatif: %s: --conf %s: %s\n", file, *name ? name : "(recorded)", weir_last_error());
      code = WEIR_EXIT_FAILED;
    }
  if (!code)
    (w->common.json ? print_json : print_rows)(&t, &h);
  weir_cli_history_close(&h);
  return code;
}

/* An exit code; *is_done when there is nothing left to do. */
static int read_options(whatif *w, int argc, char **argv, bool *is_done) {
  static const struct option long_options[] = {{"conf", required_argument, NULL, 's'},
                                               {"threads", required_argument, NULL, 't'},
                                               {"help", no_argument, NULL, 'h'},
                                               WEIR_CLI_PREDICTING_OPTIONS,
                                               {NULL, 0, NULL, 0}};
  opterr = 0;
  optind = 1;
  for (int option; (option = getopt_long(argc, argv, ":h", long_options, NULL)) != -1;) {
    int code = WEIR_EXIT_OK;
    if (option == 's' && w->conf_count == MOST_CONFS)
      code = weir_cli_usage("whatif", "more than %d times --conf", MOST_CONFS);
    else if (option == 's') {
      code = weir_cli_read_conf(&w->common, optarg, &w->settings[w->conf_count]);
      w->confs[w->conf_count++] = optarg;
    } else if (option == 't')
      code = weir_cli_take_threads("whatif", optarg, &w->common.threads);
    else if (option == 'h') {
      print_help();
      *is_done = true;
      return WEIR_EXIT_OK;
    } else
      code = weir_cli_predicting_take(&w->common, option, argv);
    if (code)
      return code;
  }
  if (optind == argc)
    return weir_cli_usage("whatif", "no file is named");
  if (!w->conf_count)
    return weir_cli_usage("whatif", "no settings are named: --conf expandable_segments:True, for example");
  return weir_cli_predicting_check(&w->common);
}

int weir_cmd_whatif(int argc, char **argv) {
  static whatif w; /* too large for a stack */
  bool is_done = false;
  weir_cli_predicting_init(&w.common, "whatif");
  int code = read_options(&w, argc, argv, &is_done);
  if (code || is_done)
    return code;
  for (int i = optind; i < argc; i++) {
    int one = predict_file(&w, argv[i]);
    code = one ? one : code;
  }
  return code;
}

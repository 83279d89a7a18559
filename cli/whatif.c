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
  weir__prediction rows[MOST_CONFS + 1]; /* of the file under way: recorded, and each of confs */
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

/* 0: the recorded settings. */
static const weir__settings *settings_of(const whatif *w, size_t row) { return row ? &w->settings[row - 1] : NULL; }

static void predict(void *context, size_t row, void *result) {
  const table *t = context;
  const weir_cli_predicting *common = &t->w->common;
  const weir__settings *settings = settings_of(t->w, row);
  weir__prediction *prediction = result;
  weir__capacity capacity;
  prediction->status = weir__recording_capacity_of(t->history, settings, common->memory, common->fraction, &capacity);
  if (!prediction->status)
    weir__predict(t->history, settings, &capacity, &common->costs, prediction);
}

static void print_rows(const whatif *w, const weir_cli_history *h) {
  char text[2][32], recorded[WEIR_CLI_CONF_TEXT];
  const weir__prediction *rows = w->rows;
  const weir__replay_report *check = weir__recording_check(h->history);
  weir_cli_conf_text(weir__recording_settings(h->history), recorded);
  printf("%s: %zu events, %s under the recorded settings\n", h->file, check->events,
         check->differences ? "not reproduced" : "reproduced");
  if (check->limit_is_inferred && !w->common.memory)
    printf("  limit: %s, told from what the file shows\n", weir__format_bytes(check->limit, text[0]));
  printf("%12s %12s %8s %9s %10s %8s %7s  %s\n", "reserved", "allocated", "unused", "calls", "cost", "retries",
         "failed", "settings");
  for (unsigned i = 0; i <= w->conf_count; i++) {
    const weir__prediction *p = &rows[i];
    printf("%12s %12s %6.1f %% %9llu", weir__format_bytes(p->peak_reserved, text[0]),
           weir__format_bytes(p->peak_allocated, text[1]), 100 * weir__prediction_fragmentation(p),
           (unsigned long long)weir__prediction_calls(p));
    printf(" %10s %8llu %7llu  ", weir_cli_format_ns(p->cost, text[0]), (unsigned long long)p->retries,
           (unsigned long long)p->failures);
    if (i)
      puts(*w->confs[i - 1] ? w->confs[i - 1] : "(defaults)");
    else
      printf("%srecorded%s: %s\n", weir_cli_bold(), weir_cli_plain(), *recorded ? recorded : "(defaults)");
  }
  for (unsigned i = 0; i <= w->conf_count; i++)
    if (rows[i].failures) {
      printf("  %s fails first at ", i ? w->confs[i - 1] : "recorded");
      weir_cli_print_failure(&rows[i]);
      putchar('\n');
    }
}

static void print_json(const whatif *w, const weir_cli_history *h) {
  char recorded[WEIR_CLI_CONF_TEXT];
  const weir__replay_report *check = weir__recording_check(h->history);
  weir_cli_conf_text(weir__recording_settings(h->history), recorded);
  printf("{\"file\": ");
  weir_cli_json_string(h->file);
  printf(", \"events\": %zu, \"reproduced\": %s, \"predictions\": [", check->events,
         check->differences ? "false" : "true");
  for (unsigned i = 0; i <= w->conf_count; i++) {
    printf("%s{\"conf\": ", i ? ", " : "");
    weir_cli_json_string(i ? w->confs[i - 1] : recorded);
    printf(", \"recorded\": %s, ", i ? "false" : "true");
    weir_cli_json_prediction(&w->rows[i]);
    putchar('}');
  }
  puts("]}");
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
  weir__team_run(&team, w->conf_count + 1u, predict, &t, w->rows, sizeof *w->rows);
  weir_cli_progress_end(progress);
  for (unsigned i = 0; i <= w->conf_count && !code; i++)
    if (w->rows[i].status) {
      predict(&t, i, &w->rows[i]); /* once more, here: an error's text is that of the thread that met it */
      fprintf(stderr, "weir whatif: %s: --conf %s: %s\n", file, i ? w->confs[i - 1] : "(recorded)", weir_last_error());
      code = WEIR_EXIT_FAILED;
    }
  if (!code)
    (w->common.json ? print_json : print_rows)(w, &h);
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

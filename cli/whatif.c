/*
 * weir whatif: a recorded job under several settings, side by side.
 */
#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/parallel.h"
#include "prediction.h"
#include "progress.h"
#include "shown.h"

enum { MOST_CONFS = 256 };

typedef struct whatif {
  weir_cli_predicting common;
  unsigned conf_count;
  const char *confs[MOST_CONFS];
  weir__settings settings[MOST_CONFS];
  weir__prediction rows[MOST_CONFS + 2]; /* of the file under way: see OWN_ROWS */
} whatif;

typedef struct table {
  const whatif *w;
  const weir__replayer *history;
} table;

static void print_help(void) {
  weir_cli_help_begin();
  fputs(
      "Usage: weir whatif [OPTION...] --conf SETTINGS [--conf SETTINGS...] FILE...\n"
      "\n"
      "Shows what a recorded job would have done under other settings, each in a line: peak memory, fragmentation,\n"
      "driver calls and what they cost, retries, failures. A FILE is what torch.cuda.memory._dump_snapshot() writes;\n"
      "- is the standard input.\n"
      "Before anything is said, a replay under the recorded settings is compared with the file.\n"
      "\n"
      "Options:\n"
      "  --conf SETTINGS   settings to try, as expandable_segments:True; '' for the defaults. Any number of times\n"
      "  --threads N       how many cores to use; all\n",
      stdout);
  fputs(weir_cli_predicting_help, stdout);
  fputs("\n"
        "Exit codes: 0 done; 1 a file cannot be read, is not reproduced, or settings are wrong; 2 invalid usage.\n",
        stdout);
}

/* The recorded settings have two rows: the recording itself, as the checked replay reproduced it, and a replay of the kind that
 * all other rows are. In these, segments get addresses in order instead of the recorded ones; of free blocks of one size the
 * lowest is taken, so the figures can differ a little. Nor are races between threads repeated. Of a recording that began late, what was there before is placed anew. */
enum { OWN_ROWS = 2 };

static bool is_late(const weir__replayer *history) { return weir__replayer_start(history)->segment_count > 0; }

static bool is_reproduced(const weir__replayer *history) { return !weir__replayer_check(history)->differences; }

/* NULL: the recorded ones, with what was there before the recording in its place. */
static const weir__settings *settings_of(const table *t, size_t row) {
  if (row >= OWN_ROWS)
    return &t->w->settings[row - OWN_ROWS];
  return row && is_late(t->history) ? weir__replayer_settings(t->history) : NULL;
}

static size_t row_count(const table *t) { return t->w->conf_count + OWN_ROWS; }

static void predict(void *context, size_t row, void *result) {
  const table *t = context;
  const weir_cli_predicting *common = &t->w->common;
  const weir__settings *settings = settings_of(t, row);
  weir__prediction *prediction = result;
  weir__capacity capacity;
  if (!row && is_reproduced(t->history)) {
    weir__prediction_from(weir__replayer_check(t->history), &common->costs, prediction);
    return;
  }
  prediction->status = weir__replayer_capacity_of(t->history, settings, common->memory, common->fraction, &capacity);
  if (!prediction->status)
    weir__predict(t->history, settings, &capacity, &common->costs, prediction);
}

enum { ROW_TEXT = 160 };

/* The figures of a row; returns `text`. */
static const char *figures(const weir__prediction *p, char text[ROW_TEXT]) {
  char part[3][32];
  snprintf(text, ROW_TEXT, "%12s %12s %6.1f %% %9llu %10s %8llu %7llu", weir__format_bytes(p->peak_reserved, part[0]),
           weir__format_bytes(p->peak_allocated, part[1]), 100 * weir__prediction_fragmentation(p),
           (unsigned long long)weir__prediction_calls(p), weir_cli_format_ns(p->cost, part[2]),
           (unsigned long long)p->retries, (unsigned long long)p->failures);
  return text;
}

/* Whether the second row says something that the first does not. */
static bool has_second(const table *t) {
  const weir__prediction *rows = t->w->rows;
  char text[2][ROW_TEXT];
  if (is_late(t->history) || (t->w->common.memory && is_reproduced(t->history)))
    return true;
  if (t->w->common.json)
    return rows[0].peak_reserved != rows[1].peak_reserved || rows[0].peak_allocated != rows[1].peak_allocated ||
           rows[0].cost != rows[1].cost || rows[0].retries != rows[1].retries || rows[0].failures != rows[1].failures;
  return strcmp(figures(&rows[0], text[0]), figures(&rows[1], text[1])) != 0;
}

static bool is_shown(const table *t, size_t row) { return row != 1 || has_second(t); }

/* What the row is called without its settings. */
static const char *name_of(const table *t, size_t row) {
  if (row >= OWN_ROWS)
    return *t->w->confs[row - OWN_ROWS] ? t->w->confs[row - OWN_ROWS] : "(defaults)";
  return !row ? "recorded" : is_late(t->history) ? "recorded, begun anew" : "recorded, replayed";
}

/* What the first two rows are, where there are two. */
static void print_own_rows(const table *t) {
  char text[32];
  size_t raced = weir__replayer_check(t->history)->raced;
  if (!has_second(t))
    return;
  if (is_late(t->history)) {
    fputs("  began late: ", stdout);
    weir_cli_print_start(t->history);
    puts(".\n  Their order is not known, so under other settings they are allocated anew, by address. Compare with the "
         "second row,\n  where the recorded settings begin in the same way, and take the result as an estimate.");
  } else if (t->w->common.memory)
    printf(
        "  The first row is the recording. The others were replayed with %s of memory: compare them with the second\n"
        "  row, which has the recorded settings.\n",
        weir__format_bytes(t->w->common.memory, text));
  else if (raced)
    printf("  The first row is the recording. In it, %zu request%s just missed what another thread freed, and took new "
           "memory\n  instead. The others do not repeat that: compare them with the second row, which has the recorded "
           "settings.\n",
           raced, raced == 1 ? "" : "s");
  else
    puts("  The first row is the recording. In the others, segments lie at other addresses, which changes the figures "
         "a\n"
         "  little: compare them with the second row, which has the recorded settings.");
}

static void print_rows(const table *t, const weir_cli_history *h) {
  char text[ROW_TEXT], limit[32], recorded[WEIR_CLI_CONF_TEXT];
  const weir__prediction *rows = t->w->rows;
  weir_cli_fold_begin();
  const weir__replay_report *check = weir__replayer_check(t->history);
  weir_cli_conf_text(weir__replayer_settings(t->history), recorded);
  printf("%s: %zu events, %s under the recorded settings\n", h->name, check->events,
         check->differences ? "not reproduced" : "reproduced");
  if (check->limit_is_inferred && !t->w->common.memory)
    printf("  limit: %s, inferred from the recording\n", weir__format_bytes(check->limit, limit));
  print_own_rows(t);
  printf("%12s %12s %8s %9s %10s %8s %7s  %s\n", "reserved", "allocated", "unused", "calls", "cost", "retries",
         "failed", "settings");
  for (size_t i = 0; i < row_count(t); i++) {
    if (!is_shown(t, i))
      continue;
    printf("%s  ", figures(&rows[i], text));
    if (i >= OWN_ROWS)
      puts(weir_cli_shown(name_of(t, i)));
    else
      printf("%s%s%s: %s\n", weir_cli_bold(), name_of(t, i), weir_cli_plain(), *recorded ? recorded : "(defaults)");
  }
  for (size_t i = 0; i < row_count(t); i++)
    if (is_shown(t, i) && rows[i].failures) {
      printf("  %s fails first at ", weir_cli_shown(name_of(t, i)));
      weir_cli_print_failure(&rows[i]);
      putchar('\n');
    }
}

static void print_json(const table *t, const weir_cli_history *h) {
  char recorded[WEIR_CLI_CONF_TEXT];
  const weir__replay_report *check = weir__replayer_check(t->history);
  weir_cli_conf_text(weir__replayer_settings(t->history), recorded);
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("file", h->file), JSON_INTEGER("device", h->device), JSON_NATURAL("events", check->events),
                JSON_BOOL("reproduced", !check->differences), JSON_LIST("predictions"));
  for (size_t i = 0; i < row_count(t); i++) {
    if (!is_shown(t, i))
      continue;
    WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("conf", i < OWN_ROWS ? recorded : t->w->confs[i - OWN_ROWS]),
                  JSON_BOOL("recorded", i < OWN_ROWS));
    weir_cli_json_prediction(&t->w->rows[i]);
    WEIR_CLI_JSON(JSON_BOOL("is_recording", !i && is_reproduced(t->history)), JSON_CLOSE);
  }
  WEIR_CLI_JSON(JSON_CLOSE);
  weir_cli_json_start(t->history);
  weir_cli_json_end();
}

/* An exit code. */
static int predict_file(whatif *w, const char *file) {
  weir_cli_history h;
  int code = weir_cli_history_open(&w->common, file, &h);
  if (code)
    return code;
  table t = {w, h.history};
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  const weir__parallel team = {
      .threads = w->common.threads, .progress = weir_cli_progress_step, .progress_context = progress};
  weir__parallel_run(&team, row_count(&t), predict, &t, w->rows, sizeof *w->rows);
  weir_cli_progress_end(progress);
  for (size_t i = 0; i < row_count(&t) && !code; i++)
    if (w->rows[i].status) {
      predict(&t, i, &w->rows[i]); /* once more, here: an error's text is that of the thread that met it */
      fprintf(stderr, "weir whatif: %s: --conf %s: %s\n", weir_cli_shown(file), name_of(&t, i), weir_last_error());
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

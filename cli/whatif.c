/*
 * weir whatif: a recorded job under several settings, side by side.
 */
#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "offline/parallel.h"
#include "prediction.h"
#include "progress.h"

enum { MOST_CONFS = 256 };

static struct {
  int threads; /* 0 for all cores */
  unsigned conf_count;
  const char *confs[MOST_CONFS];
  weir__settings settings[MOST_CONFS];
  weir__prediction rows[MOST_CONFS + 2]; /* of the current file: see OWN_ROWS */
} whatif;

/* The recorded settings have two rows: the recording itself, as the checked replay reproduced it, and a replay like
 * those of all other rows. In these, segments get ascending addresses instead of the recorded ones. Since the lowest
 * of several free blocks of one size is used, the figures can differ slightly. Races between threads are not repeated
 * either. If the recording began late, the state before it is allocated again. */
enum { OWN_ROWS = 2 };

static bool is_late(const weir__replayer *history) { return weir__replayer_start(history)->segment_count > 0; }

static bool is_reproduced(const weir__replayer *history) { return !weir__replayer_check(history)->differences; }

/* NULL for the recorded settings with the state before the recording as it was. */
static const weir__settings *settings_of(const weir__replayer *history, size_t row) {
  if (row >= OWN_ROWS)
    return &whatif.settings[row - OWN_ROWS];
  return row && is_late(history) ? weir__replayer_settings(history) : NULL;
}

static size_t row_count(void) { return whatif.conf_count + OWN_ROWS; }

static void predict(void *context, size_t row, void *result) {
  const weir__replayer *history = context;
  const weir_cli_prediction_options *common = &weir_cli_prediction;
  const weir__settings *settings = settings_of(history, row);
  weir__prediction *prediction = result;
  weir__capacity capacity;
  if (!row && is_reproduced(history)) {
    weir__prediction_from(weir__replayer_check(history), &common->costs, prediction);
    return;
  }
  prediction->status = weir__replayer_capacity_of(history, settings, common->memory, common->fraction, &capacity);
  if (!prediction->status)
    weir__predict(history, settings, &capacity, &common->costs, prediction);
}

enum { ROW_TEXT = 160 };

/* The figures of a row; returns `text`. */
static const char *format_figures(const weir__prediction *p, char text[ROW_TEXT]) {
  char part[3][32];
  snprintf(text, ROW_TEXT, "%12s %12s %6.1f %% %9llu %10s %8llu %7llu", weir__format_bytes(p->peak_reserved, part[0]),
           weir__format_bytes(p->peak_allocated, part[1]), 100 * weir__prediction_fragmentation(p),
           (unsigned long long)weir__prediction_calls(p), weir_cli_format_ns(p->cost, part[2]),
           (unsigned long long)p->retries, (unsigned long long)p->failures);
  return text;
}

/* Whether the second row differs from the first. */
static bool has_replayed_row(const weir__replayer *history) {
  const weir__prediction *rows = whatif.rows;
  char text[2][ROW_TEXT];
  if (is_late(history) || (weir_cli_prediction.memory && is_reproduced(history)))
    return true;
  if (weir_cli_prediction.json)
    return rows[0].peak_reserved != rows[1].peak_reserved || rows[0].peak_allocated != rows[1].peak_allocated ||
           rows[0].cost != rows[1].cost || rows[0].retries != rows[1].retries || rows[0].failures != rows[1].failures;
  return strcmp(format_figures(&rows[0], text[0]), format_figures(&rows[1], text[1])) != 0;
}

static bool is_shown(const weir__replayer *history, size_t row) { return row != 1 || has_replayed_row(history); }

/* The name of a row: "recorded", or its settings. */
static const char *name_of(const weir__replayer *history, size_t row) {
  if (row >= OWN_ROWS)
    return *whatif.confs[row - OWN_ROWS] ? whatif.confs[row - OWN_ROWS] : "(defaults)";
  return !row ? "recorded" : is_late(history) ? "recorded, allocated again" : "recorded, replayed";
}

/* Explains the first two rows, if there are two. */
static void explain_own_rows(const weir__replayer *history) {
  char text[32];
  size_t raced = weir__replayer_check(history)->raced;
  if (!has_replayed_row(history))
    return;
  if (is_late(history)) {
    fputs("  began late: ", stdout);
    weir_cli_print_start(history);
    puts(".\n  Their order is not known, so under other settings they are allocated again in order of address. Compare "
         "with the second row, where the recorded settings begin in the same way, and take the result as an estimate.");
  } else if (weir_cli_prediction.memory)
    printf("  The first row is the recording. The others were replayed with %s of memory: compare them with the second "
           "row, which has the recorded settings.\n",
           weir__format_bytes(weir_cli_prediction.memory, text));
  else if (raced)
    printf("  The first row is the recording. In it, %zu request%s just missed a block that another thread freed, and "
           "took new memory instead. The others do not repeat that: compare them with the second row, which has the "
           "recorded settings.\n",
           raced, raced == 1 ? "" : "s");
  else
    puts("  The first row is the recording. In the others, segments have other addresses, which changes the figures "
         "slightly: compare them with the second row, which has the recorded settings.");
}

static void print_rows(const weir_cli_history *h) {
  const weir__replayer *history = h->history;
  char text[ROW_TEXT], limit[32], recorded[WEIR_CLI_CONF_TEXT];
  const weir__prediction *rows = whatif.rows;
  weir_cli_fold_begin();
  const weir__replay_report *check = weir__replayer_check(history);
  weir_cli_conf_text(weir__replayer_settings(history), recorded);
  printf("%s: %zu events, %s under the recorded settings\n", h->name, check->events,
         check->differences ? "not reproduced" : "reproduced");
  if (check->limit_is_inferred && !weir_cli_prediction.memory)
    printf("  limit: %s, inferred from the recording\n", weir__format_bytes(check->limit, limit));
  explain_own_rows(history);
  printf("%12s %12s %8s %9s %10s %8s %7s  %s\n", "reserved", "allocated", "unused", "calls", "cost", "retries",
         "failed", "settings");
  for (size_t i = 0; i < row_count(); i++) {
    if (!is_shown(history, i))
      continue;
    printf("%s  ", format_figures(&rows[i], text));
    if (i >= OWN_ROWS)
      puts(weir_cli_escaped(name_of(history, i)));
    else
      printf("%s%s%s: %s\n", weir_cli_bold(), name_of(history, i), weir_cli_plain(),
             *recorded ? recorded : "(defaults)");
  }
  for (size_t i = 0; i < row_count(); i++)
    if (is_shown(history, i) && rows[i].failures) {
      printf("  %s first fails at ", weir_cli_escaped(name_of(history, i)));
      weir_cli_print_failure(&rows[i]);
      putchar('\n');
    }
}

static void print_json(const weir_cli_history *h) {
  const weir__replayer *history = h->history;
  char recorded[WEIR_CLI_CONF_TEXT];
  const weir__replay_report *check = weir__replayer_check(history);
  weir_cli_conf_text(weir__replayer_settings(history), recorded);
  weir_cli_json_begin(0);
  WEIR_CLI_JSON(JSON_TEXT("file", h->file), JSON_INTEGER("device", h->device), JSON_NATURAL("events", check->events),
                JSON_BOOL("reproduced", !check->differences), JSON_LIST("predictions"));
  for (size_t i = 0; i < row_count(); i++) {
    if (!is_shown(history, i))
      continue;
    WEIR_CLI_JSON(JSON_OBJECT(NULL), JSON_TEXT("conf", i < OWN_ROWS ? recorded : whatif.confs[i - OWN_ROWS]),
                  JSON_BOOL("recorded", i < OWN_ROWS));
    weir_cli_json_prediction(&whatif.rows[i]);
    WEIR_CLI_JSON(JSON_BOOL("is_recording", !i && is_reproduced(history)), JSON_CLOSE);
  }
  WEIR_CLI_JSON(JSON_CLOSE);
  weir_cli_json_start(history);
  weir_cli_json_end();
}

/* An exit code. */
static int predict_file(const char *file) {
  weir_cli_history h;
  int code = weir_cli_history_open(file, &h);
  if (code)
    return code;
  weir_cli_progress *progress = weir_cli_progress_begin("replaying");
  const weir__parallel parallel = {
      .threads = (unsigned)whatif.threads, .progress = weir_cli_progress_step, .progress_context = progress};
  weir__parallel_run(&parallel, row_count(), predict, h.history, whatif.rows, sizeof *whatif.rows);
  weir_cli_progress_end(progress);
  for (size_t i = 0; i < row_count() && !code; i++)
    if (whatif.rows[i].status) {
      predict(h.history, i, &whatif.rows[i]); /* again: the text of an error stays in the thread that met it */
      code = weir_cli_fail("%s: --conf %s: %s", weir_cli_escaped(file), name_of(h.history, i), weir_last_error());
    }
  if (!code)
    (weir_cli_prediction.json ? print_json : print_rows)(&h);
  weir_cli_history_close(&h);
  return code;
}

static int run(int count, char **files) {
  int code = weir_cli_prediction_begin();
  return code ? code : weir_cli_for_each(count, files, predict_file);
}

static int read_conf(const char *conf) {
  if (whatif.conf_count == MOST_CONFS)
    return weir_cli_fail("at most %d times --conf", MOST_CONFS);
  whatif.confs[whatif.conf_count] = conf;
  return weir_cli_read_conf(conf, &whatif.settings[whatif.conf_count++]);
}

static const weir_cli_option option_table[] = {
    {"conf", .kind = WEIR_CLI_TEXT, .value = "SETTINGS", .is_required = true, .read = read_conf,
     .help = "settings to try, such as expandable_segments:True, or '' for the defaults. Can be given several times"},
    WEIR_CLI_THREADS_OPTION(&whatif.threads),
    {0}};

const weir_cli_command weir_cmd_whatif = {
    .name = "whatif",
    .summary = "show what a recorded job would have done under other settings",
    .description = "Show what a recorded job would have done under other settings, one row for each: peak memory, "
                   "fragmentation, driver calls and their cost, retries and failures. First, a replay under the "
                   "recorded settings is compared with the file.",
    .argument = "FILE...",
    .options = option_table,
    .shared = weir_cli_prediction_table,
    .exit = {"done", "a file cannot be read or is not reproduced, or settings are wrong"},
    .run = run};

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

/* ---- The table ---- */

static bool is_shown(size_t row) { return weir__whatif_is_shown(&whatif.of, row); }

/* The name of a row: "recorded", or its settings. */
static const char *name_of(size_t row) {
  if (row >= WEIR__WHATIF_OWN_ROWS)
    return *whatif.confs[row - WEIR__WHATIF_OWN_ROWS] ? whatif.confs[row - WEIR__WHATIF_OWN_ROWS] : "(defaults)";
  return !row ? "recorded" : weir__whatif_is_late(&whatif.of) ? "recorded, allocated again" : "recorded, replayed";
}

/* Explains the first two rows, if there are two. */
static void explain_own_rows(const weir__replayer *history) {
  size_t raced = weir__replayer_check(history)->raced;
  if (!is_shown(1))
    return;
  if (weir__whatif_is_late(&whatif.of)) {
    fputs("  began late: ", stdout);
    weir_cli_print_start(history);
    puts(".\n  Their order is not known, so under other settings they are allocated again in order of address. Compare "
         "with the second row, where the recorded settings begin in the same way, and take the result as an estimate.");
  } else if (weir_cli_prediction.memory)
    printf("  The first row is the recording. The others were replayed with %s of memory: compare them with the second "
           "row, which has the recorded settings.\n",
           weir_cli_bytes(weir_cli_prediction.memory));
  else if (raced)
    printf("  The first row is the recording. In it, %s just missed a block that another thread freed, and "
           "took new memory instead. The others do not repeat that: compare them with the second row, which has the "
           "recorded settings.\n",
           weir_cli_count(raced, "request"));
  else
    puts("  The first row is the recording. In the others, segments have other addresses, which changes the figures "
         "slightly: compare them with the second row, which has the recorded settings.");
}

static void print_table(const char *recorded) {
  enum { COLUMNS = WEIR__WHATIF_FIGURES };
  int widths[COLUMNS] = {12, 12, 8, 9, 10, 8, 7, whatif.fit ? 12 : 0}; /* at least */
  weir__whatif_texts c;
  for (size_t i = 0; i < row_count(); i++) {
    weir__whatif_row_texts(&whatif.rows[i], &c);
    for (int k = 0; k < COLUMNS && is_shown(i); k++)
      if (widths[k] && (int)strlen(c.of[k]) > widths[k])
        widths[k] = (int)strlen(c.of[k]);
  }
  for (int k = 0; k < COLUMNS; k++)
    if (widths[k])
      printf("%*s ", widths[k], c.labels[k]);
  puts(" settings");
  for (size_t i = 0; i < row_count(); i++) {
    if (!is_shown(i))
      continue;
    weir__whatif_row_texts(&whatif.rows[i], &c);
    for (int k = 0; k < COLUMNS; k++)
      if (widths[k])
        printf("%*s ", widths[k], c.of[k]);
    if (i >= WEIR__WHATIF_OWN_ROWS)
      printf(" %s\n", weir_cli_escaped(name_of(i)));
    else
      printf(" %s%s%s: %s\n", weir_cli_bold(), name_of(i), weir_cli_plain(), *recorded ? recorded : "(defaults)");
  }
}

/* Below the rows, under "reserved". */
static void print_least(const weir__replayer *history) {
  printf("%12s  no allocator could go below: the most bytes in use at one moment, in pages of 2 MiB\n",
         weir_cli_bytes(weir__replayer_least(history, SIZE_MAX)));
}

static const char *count_range(int64_t a, int64_t b, char text[WEIR__ROW_TEXT]) {
  return weir__row_text(&(weir__row){.unit = WEIR__UNIT_COUNT, .value = (double)a, .other = (double)b}, text);
}

/* What moved, for each row in which something could. */
static void print_moving(void) {
  for (size_t i = 0; i < row_count(); i++) {
    const weir__moving_counts *idle = &whatif.rows[i].p.moving, *busy = &whatif.rows[i].p.busy.moving;
    char made[WEIR__ROW_TEXT], moved[WEIR__ROW_TEXT], returned[WEIR__ROW_TEXT];
    if (!is_shown(i) || (!idle->pages_made && !busy->pages_made))
      continue;
    printf("  %s: %s pages made, %s moved, %s returned to an address where they were still mapped\n",
           weir_cli_escaped(name_of(i)), count_range(idle->pages_made, busy->pages_made, made),
           count_range(idle->pages_moved, busy->pages_moved, moved),
           count_range(idle->pages_returned, busy->pages_returned, returned));
  }
}

static void print_failures(void) {
  for (size_t i = 0; i < row_count(); i++) {
    const weir__prediction *p = &whatif.rows[i].p;
    if (!is_shown(i) || (!p->failures && !p->busy.failures))
      continue;
    printf("  %s first fails at ", weir_cli_escaped(name_of(i)));
    if (p->failures)
      weir_cli_print_failure(p);
    else
      fputs("a request that pages of a busy stream could have served: it depends on how far that stream is", stdout);
    putchar('\n');
  }
}

/* Says what a range means. */
static void explain_ranges(void) {
  for (size_t i = 0; i < row_count(); i++)
    if (is_shown(i) && whatif.rows[i].p.is_range) {
      puts(
          "  A range: pages move from one stream to another only when the first has done its work, and how far streams "
          "were is not recorded. One end is for streams that always had, the other for streams that never had.");
      return;
    }
}

static void print_rows(const weir_cli_history *h) {
  const weir__replayer *history = h->history;
  char recorded[WEIR__CONF_TEXT];
  weir_cli_fold_begin();
  const weir__replay_report *check = weir__replayer_check(history);
  weir__conf_text(weir__replayer_settings(history), recorded);
  printf("%s: %s, %s under the recorded settings\n", h->name, weir_cli_count(check->events, "entry"),
         check->differences ? "not reproduced" : "reproduced");
  if (check->limit_is_inferred && !weir_cli_prediction.memory)
    printf("  limit: %s, inferred from the recording\n", weir_cli_bytes(check->limit));
  explain_own_rows(history);
  print_table(recorded);
  print_least(history);
  print_moving();
  explain_ranges();
  print_failures();
}

/* An exit code. The table is not of the rows of the report, which has one prediction after the other. */
static int print(const weir_cli_history *h) {
  weir__report report;
  weir__whatif_report(&report, &whatif.of);
  int code = weir_cli_print_report(&report, h->file, weir_cli_prediction.json);
  if (!code && !weir_cli_prediction.json)
    print_rows(h);
  return code;
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
      code = weir_cli_fail("%s: --conf %s: %s", weir_cli_input_name(file), name_of(i), weir_last_error());
    }
  if (!code && whatif.output && write_history(whatif.output))
    code = weir_cli_fail("%s", weir_last_error());
  if (!code)
    code = print(&h);
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

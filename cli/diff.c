/*
 * weir diff: what changed between two recordings.
 */
#include "offline/render/diff_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "cli.h"
#include "json.h"
#include "progress.h"
#include "report.h"

static struct {
  int device;        /* -1 for the one that ran out of memory, or has a history */
  double fail_above; /* percent; below 0 for none */
  int list;
  unsigned by; /* bits of weir__diff_key */
  bool json;
} options = {.device = -1, .fail_above = -1, .list = 10};

static int read_percent(const char *text) {
  char *end;
  options.fail_above = strtod(text, &end);
  end += *end == '%';
  return end != text && !*end && options.fail_above >= 0 && options.fail_above <= 1e6 ? WEIR_EXIT_OK : WEIR_EXIT_USAGE;
}

/* ---- Text ---- */

static const char *bytes(double n) { return weir_cli_bytes((uint64_t)(n > 0 ? n + 0.5 : 0)); }

/* "+1.20 GiB", "-3.00 MiB", "0 B". Returns `text`. */
static const char *change(double n, char text[40]) {
  snprintf(text, 40, "%s%s", n >= 0.5 ? "+" : n <= -0.5 ? "-" : "", bytes(n < 0 ? -n : n));
  return text;
}

static void print_total(const weir__row *row) {
  char by[40];
  const double a = row->value, b = row->other;
  printf("    %-22s %11s -> %11s  %11s", row->label, bytes(a), bytes(b), change(b - a, by));
  if (a > 0)
    printf("  %+.1f %%", 100 * (b - a) / a);
  putchar('\n');
}

static void print_totals(const weir__diff *d) {
  weir__row rows[WEIR__DIFF_TOTALS];
  if (!d->side[0].is_known || !d->side[1].is_known)
    printf("    totals are not known: %s lacks the state before its history\n",
           d->side[0].is_known ? "the second" : "the first");
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    weir__diff_totals(d, (weir__diff_moment)i, rows);
    for (int k = 0; k < WEIR__DIFF_TOTALS && weir__diff_has_moment(d, (weir__diff_moment)i); k++)
      print_total(&rows[k]);
  }
}

static void print_side(const char *name, const weir__diff_side *s) {
  char text[192];
  printf("  %s  %s%s%s, device %d: %s; steps: %s", name, weir_cli_bold(), weir_cli_input_name(s->file),
         weir_cli_plain(), s->device, weir_cli_count(s->entries, "entry"), weir__steps_describe(&s->steps, text));
  if (s->settings && *s->settings)
    printf("; %s", weir_cli_escaped(s->settings));
  putchar('\n');
}

/* The moment at which a row differs most. */
static weir__diff_moment moment_of(const weir__diff_row *r) {
  weir__diff_moment best = WEIR__DIFF_PEAK;
  double most = -1;
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    double by = r->of[1].bytes[i] - r->of[0].bytes[i];
    by = by < 0 ? -by : by;
    if (by > most) {
      most = by;
      best = (weir__diff_moment)i;
    }
  }
  return best;
}

static void print_rows(const weir__diff *d, weir__diff_key key) {
  const weir__diff_rows *rows = &d->by[key];
  size_t shown = 0, changed = 0, noise = 0;
  char by[40];
  for (size_t i = 0; i < rows->count; i++) {
    bool is_same = rows->items[i].change == WEIR__DIFF_SAME;
    changed += !is_same && !rows->items[i].is_noise;
    noise += !is_same && rows->items[i].is_noise;
  }
  printf("  by %s", weir__diff_key_name(key));
  if (key == WEIR__DIFF_SIZE && d->sizes > WEIR__DIFF_SIZES)
    printf(": powers of two, since there are %zu", d->sizes);
  putchar('\n');
  for (size_t i = 0; i < rows->count && shown < (size_t)options.list; i++) {
    const weir__diff_row *r = &rows->items[i];
    if (r->change == WEIR__DIFF_SAME || r->is_noise)
      continue;
    weir__diff_moment moment = moment_of(r);
    shown++;
    printf("    %12s  %-11s %s -> %s %s  %s%s\n", change(r->difference, by), weir__diff_change_name(r->change),
           bytes(r->of[0].bytes[moment]), bytes(r->of[1].bytes[moment]), weir__diff_moment_text(moment), r->name,
           r->has_moved ? " (moved)" : "");
  }
  if (!changed)
    puts("    no difference");
  else if (changed > shown)
    printf("    and %zu more; --list N shows more\n", changed - shown);
  if (noise)
    printf("    noise: %s of less than %s\n", weir_cli_count(noise, "difference"), bytes(d->noise));
}

static void print_text(const weir__diff *d) {
  weir_cli_fold_begin();
  print_side("A", &d->side[0]);
  print_side("B", &d->side[1]);
  puts("  totals");
  print_totals(d);
  for (int i = 0; i < WEIR__DIFF_KEYS; i++)
    if (weir__diff_has_key(d, (weir__diff_key)i) && (!options.by || options.by >> i & 1))
      print_rows(d, (weir__diff_key)i);
  if (d->stacks_same + d->stacks_moved + d->stacks_only[0] + d->stacks_only[1])
    printf("  stacks      %zu the same, %zu moved (other line numbers), %zu only in A, %zu only in B\n", d->stacks_same,
           d->stacks_moved, d->stacks_only[0], d->stacks_only[1]);
  if (d->fail_above >= 0 && d->has_failed)
    printf("  %sgrew%s        %s by %.2f %%, more than %g %%\n", weir_cli_bold(), weir_cli_plain(), d->what, d->grew,
           d->fail_above);
  else if (d->fail_above >= 0)
    printf("  within      no total grew by more than %g %%\n", d->fail_above);
}

static void print_json(const weir__diff *d) {
  weir__sink_begin(&weir_cli_json_sink, &weir__json_format, weir_write_file, weir_cli_json_file());
  weir__diff_json(&weir_cli_json_sink, NULL, d);
  weir__sink_end(&weir_cli_json_sink, NULL);
}

/* ---- The command ---- */

static int run(int count, char **files) {
  weir__recording *recordings[2] = {NULL, NULL};
  weir_status status = WEIR_OK;
  if (count != 2)
    return count > 2 ? weir_cli_usage("takes two FILEs (got '%s' as well)", files[2])
                     : weir_cli_usage("takes two FILEs: before and after");
  if (strcmp(files[0], "-") == 0 && strcmp(files[1], "-") == 0)
    return weir_cli_usage("only one of the two files can be the standard input");
  for (int i = 0; i < 2 && !status; i++)
    status = weir_cli_load(files[i], &recordings[i]);
  for (int i = 0; i < 2 && !status; i++)
    status = weir__recording_check_device(recordings[i], weir_cli_input_name(files[i]),
                                          options.device >= 0 ? options.device
                                                              : weir__recording_first_device(recordings[i]));
  weir__diff diff;
  weir__diff_options how = {
      .device = {options.device, options.device}, .file = {files[0], files[1]}, .fail_above = options.fail_above};
  weir_cli_progress *progress = weir_cli_progress_begin("comparing");
  if (!status)
    status = weir__diff_make(recordings[0], recordings[1], &how, &diff);
  weir_cli_progress_end(progress);
  int code = WEIR_EXIT_FAILED;
  if (status)
    weir_cli_fail("%s", weir_last_error());
  else {
    code = diff.has_failed ? WEIR_EXIT_SHORT : WEIR_EXIT_OK;
    WEIR_CLI_PRINT_REPORT(options.json, print_json, print_text, &diff);
    if (!diff.side[0].is_known || !diff.side[1].is_known)
      code = options.fail_above >= 0
                 ? weir_cli_fail("--fail-above needs the state before the history in both recordings")
                 : code;
    weir__diff_clear(&diff);
  }
  for (int i = 0; i < 2; i++)
    if (recordings[i])
      weir__recording_free(recordings[i]);
  return code;
}

static const weir_cli_choice keys[] = {
    [WEIR__DIFF_STACK] = {"stack", NULL}, [WEIR__DIFF_SIZE] = {"size", NULL},   [WEIR__DIFF_STREAM] = {"stream", NULL},
    [WEIR__DIFF_PHASE] = {"phase", NULL}, [WEIR__DIFF_CLASS] = {"class", NULL}, {0}};

static const weir_cli_option option_table[] = {
    {"fail-above", .value = "PERCENT", .target = &options.fail_above, .read = read_percent, .kind = WEIR_CLI_TEXT,
     .takes = "a percentage such as 2%",
     .help =
         "exit with 3 if a total of the second file is larger than that of the first by more than this: bytes in use "
         "or reserved at the peak, in a step, or at the end"},
    {"by", .kind = WEIR_CLI_LIST, .value = "KEYS", .target = &options.by, .choices = keys,
     .help = "show the differences by these only: stack, size, stream, phase, class. Default: all"},
    {"device", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.device, .most = 1023,
     .help = "compare this device. Default: the one that ran out of memory, or has a history"},
    {"list", .kind = WEIR_CLI_NUMBER, .value = "N", .target = &options.list, .least = 1, .most = 100000,
     .help = "show up to N rows of each kind. Default: 10"},
    {"json", .target = &options.json, .help = "print JSON"},
    WEIR_CLI_JSON_FD_OPTION,
    {0}};

const weir_cli_command weir_cmd_diff = {
    .name = "diff",
    .summary = "compare two recorded memory histories",
    .description =
        "Compare two recorded memory histories, before and after: totals, and the bytes by stack, size, stream, "
        "phase and class that grew, shrank, appeared or disappeared, at the peak, at the end, and on average at the "
        "peaks of steps, so the number of steps need not be the same. Addresses do not matter.\n"
        "Two stacks are the same if their functions, file names (without folders) and lines are. The others are "
        "matched "
        "without the lines, in their order, and shown as moved.",
    .argument = "FILE FILE",
    .options = option_table,
    .exit = {"compared", "a file cannot be read", NULL, "more than --fail-above"},
    .run = run};

#include "offline/render/diff_report.h"

/* How many rows of each kind JSON has. */
enum { LISTED = 200 };

/* Bytes that may be null. */
#define SUM(is_known, name, value) ROW_REAL(is_known, name, value, 0, WEIR__UNIT_BYTES)

/* A number of each recording, the change, and the change in percent. */
static void add_total(weir__report *r, const weir__row *row, bool is_known) {
  const double a = row->value, b = row->other;
  bool has_percent = is_known && a > 0;
  WEIR__ROWS(r, JSON_OBJECT(row->key), SUM(is_known, "a", a), SUM(is_known, "b", b), SUM(is_known, "change", b - a),
             JSON_REAL_IF(has_percent, "percent", a > 0 ? 100 * (b - a) / a : 0, 2), JSON_TEXT("_label", row->label));
  if (is_known)
    weir__say(r, "    {_label:-22} {a:11} -> {b:11}  {change:+11}");
  if (is_known)
    weir__say(r, has_percent ? "  {percent:+.1} %\n" : "\n");
  WEIR__ROWS(r, JSON_CLOSE);
}

static void add_totals(weir__report *r, const weir__diff *d) {
  weir__row rows[WEIR__DIFF_TOTALS];
  weir__say(r, "  totals\n");
  if (!d->side[0].is_known || !d->side[1].is_known)
    weir__say(r, d->side[0].is_known ? "    totals are not known: the second lacks the state before its history\n"
                                     : "    totals are not known: the first lacks the state before its history\n");
  WEIR__ROWS(r, JSON_LIST("totals"));
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    const weir__diff_moment moment = (weir__diff_moment)i;
    weir__diff_totals(d, moment, rows);
    WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("at", weir__diff_moment_name(moment)));
    for (int k = 0; k < WEIR__DIFF_TOTALS; k++)
      add_total(r, &rows[k], weir__diff_has_moment(d, moment));
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE);
}

static void add_side(weir__report *r, const char *key, const char *name, const weir__diff_side *s) {
  WEIR__ROWS(r, JSON_OBJECT(key), ROW_FILE("file", s->file), JSON_INTEGER("device", s->device),
             JSON_NATURAL("entries", s->entries), JSON_TEXT("settings", s->settings));
  weir__steps_rows(r, &s->steps);
  weir__say(r, name);
  weir__say(r, "*{file}*, device {device}: {entries entry}; steps: ");
  weir__steps_say(r, &s->steps);
  weir__say(r, s->settings && *s->settings ? "; {settings}\n" : "\n");
  WEIR__ROWS(r, JSON_LIST("step_peaks"));
  for (size_t i = 0; s->is_known && i < s->steps.count && s->steps.count <= WEIR__STEPS_LISTED; i++)
    WEIR__ROWS(r, JSON_REAL(NULL, s->step_peaks[i], 0));
  WEIR__ROWS(r, JSON_CLOSE, JSON_CLOSE);
}

static void add_sums(weir__report *r, const weir__diff *d, const weir__diff_sums of[2]) {
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    const char *key = weir__diff_moment_name((weir__diff_moment)i);
    if (i != WEIR__DIFF_STEP || d->has_steps)
      WEIR__ROWS(r, JSON_OBJECT(key), SUM(true, "a", of[0].bytes[i]), SUM(true, "b", of[1].bytes[i]), JSON_CLOSE);
    else
      WEIR__ROWS(r, JSON_NULL(key));
  }
  WEIR__ROWS(r, JSON_OBJECT("count_peak"), JSON_REAL("a", of[0].count, 0), JSON_REAL("b", of[1].count, 0), JSON_CLOSE);
}

/* The moment at which a row differs most. */
static weir__diff_moment moment_of(const weir__diff_row *row) {
  weir__diff_moment best = WEIR__DIFF_PEAK;
  double most = -1;
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    double by = row->of[1].bytes[i] - row->of[0].bytes[i];
    by = by < 0 ? -by : by;
    if (by > most) {
      most = by;
      best = (weir__diff_moment)i;
    }
  }
  return best;
}

static void add_row(weir__report *r, const weir__diff *d, size_t i, const weir__diff_row *row, bool is_said) {
  const weir__diff_moment moment = moment_of(row);
  WEIR__ROWS(r, JSON_OBJECT(weir__item_key(i, LISTED)), JSON_TEXT("name", row->name),
             JSON_TEXT("change", weir__diff_change_name(row->change)), SUM(true, "difference", row->difference),
             JSON_NATURAL_IF(row->stack[0] != 0, "stack_a", row->stack[0]),
             JSON_NATURAL_IF(row->stack[1] != 0, "stack_b", row->stack[1]), JSON_BOOL("moved", row->has_moved),
             JSON_BOOL("noise", row->is_noise), JSON_TEXT("_at", weir__diff_moment_text(moment)));
  add_sums(r, d, row->of);
  if (is_said) {
    weir__say_of(r, weir__diff_moment_name(moment), "    {difference:+12}  {change:-11} {$.a} -> {$.b} {_at}  {name}");
    weir__say(r, row->has_moved ? " (moved)\n" : "\n");
  }
  WEIR__ROWS(r, JSON_CLOSE);
}

/* The differences by one key. */
static void add_rows(weir__report *r, const weir__diff *d, weir__diff_key key, size_t list) {
  const weir__diff_rows *rows = &d->by[key];
  weir__diff_sums rest[2] = {0};
  size_t changed = 0, noise = 0;
  WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("key", weir__diff_key_name(key)), JSON_LIST("rows"));
  if (list)
    weir__say(r, key == WEIR__DIFF_SIZE && d->sizes > WEIR__DIFF_SIZES
                     ? "  by {key}: powers of two, since there are {sizes}\n"
                     : "  by {key}\n");
  for (size_t i = 0; i < rows->count; i++) {
    const weir__diff_row *row = &rows->items[i];
    bool is_same = row->change == WEIR__DIFF_SAME, is_said = !is_same && !row->is_noise && changed < list;
    changed += !is_same && !row->is_noise;
    noise += !is_same && row->is_noise;
    if (i < LISTED || is_said)
      add_row(r, d, i, row, is_said);
    for (int k = 0; k < 2 && i >= LISTED; k++) {
      for (int m = 0; m < WEIR__DIFF_MOMENTS; m++)
        rest[k].bytes[m] += row->of[k].bytes[m];
      rest[k].count += row->of[k].count;
    }
  }
  WEIR__ROWS(r, JSON_CLOSE, JSON_NATURAL("_more", changed - list), JSON_NATURAL("_noise", noise), JSON_OBJECT("rest"),
             JSON_NATURAL("rows", rows->count > LISTED ? rows->count - LISTED : 0));
  add_sums(r, d, rest);
  WEIR__ROWS(r, JSON_CLOSE);
  if (list && !changed)
    weir__say(r, "    no difference\n");
  else if (list && changed > list)
    weir__say(r, "    and {_more} more; --list N shows more\n");
  if (list && noise)
    weir__say(r, "    noise: {_noise difference} of less than {noise}\n");
  WEIR__ROWS(r, JSON_CLOSE);
}

static void add_failure(weir__report *r, const weir__diff *d) {
  if (d->fail_above < 0) {
    WEIR__ROWS(r, JSON_NULL("fail_above"));
    return;
  }
  WEIR__ROWS(r, JSON_OBJECT("fail_above"), JSON_REAL("percent", d->fail_above, 3), JSON_TEXT("what", d->what),
             JSON_REAL("grew_percent", d->grew, 3), JSON_BOOL("failed", d->has_failed));
  weir__say(r, d->has_failed ? "  *grew*        {what} by {grew_percent:.2} %, more than {percent} %\n"
                             : "  within      no total grew by more than {percent} %\n");
  WEIR__ROWS(r, JSON_CLOSE);
}

void weir__diff_report(weir__report *r, const weir__diff *d, size_t list, unsigned keys) {
  const size_t matched = d->stacks_same + d->stacks_moved;
  weir__report_begin(r);
  add_side(r, "a", "  A  ", &d->side[0]);
  add_side(r, "b", "  B  ", &d->side[1]);
  add_totals(r, d);
  WEIR__ROWS(r,
             JSON_TEXT("phases_aligned", d->has_phases  ? "by phase"
                                         : d->has_steps ? "by step"
                                                        : "whole history"),
             JSON_OBJECT("stacks"), JSON_NATURAL("a", matched + d->stacks_only[0]),
             JSON_NATURAL("b", matched + d->stacks_only[1]), JSON_NATURAL("same", d->stacks_same),
             JSON_NATURAL("moved", d->stacks_moved), JSON_NATURAL("only_a", d->stacks_only[0]),
             JSON_NATURAL("only_b", d->stacks_only[1]), JSON_CLOSE, JSON_NATURAL("sizes", d->sizes),
             SUM(true, "noise", d->noise), JSON_LIST("by"));
  for (int i = 0; i < WEIR__DIFF_KEYS; i++)
    if (weir__diff_has_key(d, (weir__diff_key)i))
      add_rows(r, d, (weir__diff_key)i, !keys || keys >> i & 1 ? list : 0);
  WEIR__ROWS(r, JSON_CLOSE);
  if (matched + d->stacks_only[0] + d->stacks_only[1])
    weir__say(r,
              "  stacks      {stacks.same} the same, {stacks.moved} moved (other line numbers), {stacks.only_a} only "
              "in A, {stacks.only_b} only in B\n");
  add_failure(r, d);
}

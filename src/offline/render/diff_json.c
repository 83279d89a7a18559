#include "offline/render/diff_json.h"

#include "offline/render/parts_json.h"

enum { LISTED = 200 };

/* A number of each recording, the change, and the change in percent. */
static void write_total(weir__sink *sink, const weir__row *row, bool is_known) {
  const double a = row->value, b = row->other;
  WEIR__JSON(sink, JSON_OBJECT(row->key), JSON_REAL_IF(is_known, "a", a, 0), JSON_REAL_IF(is_known, "b", b, 0),
             JSON_REAL_IF(is_known, "change", b - a, 0),
             JSON_REAL_IF(is_known && a > 0, "percent", a > 0 ? 100 * (b - a) / a : 0, 2), JSON_CLOSE);
}

static void write_side(weir__sink *sink, const char *key, const weir__diff_side *s) {
  WEIR__JSON(sink, JSON_OBJECT(key), JSON_TEXT("file", s->file), JSON_INTEGER("device", s->device),
             JSON_NATURAL("entries", s->entries), JSON_TEXT("settings", s->settings));
  weir__steps_json(sink, "steps", &s->steps);
  WEIR__JSON(sink, JSON_LIST("step_peaks"));
  for (size_t i = 0; s->is_known && i < s->steps.count && s->steps.count <= WEIR__STEPS_LISTED; i++)
    WEIR__JSON(sink, JSON_REAL(NULL, s->step_peaks[i], 0));
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}

static void write_sums(weir__sink *sink, const weir__diff *d, const weir__diff_sums of[2]) {
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    const char *key = weir__diff_moment_name((weir__diff_moment)i);
    if (i != WEIR__DIFF_STEP || d->has_steps)
      WEIR__JSON(sink, JSON_OBJECT(key), JSON_REAL("a", of[0].bytes[i], 0), JSON_REAL("b", of[1].bytes[i], 0),
                 JSON_CLOSE);
    else
      WEIR__JSON(sink, JSON_NULL(key));
  }
  WEIR__JSON(sink, JSON_OBJECT("count_peak"), JSON_REAL("a", of[0].count, 0), JSON_REAL("b", of[1].count, 0),
             JSON_CLOSE);
}

static void write_rows(weir__sink *sink, const weir__diff *d, weir__diff_key key) {
  const weir__diff_rows *rows = &d->by[key];
  weir__diff_sums rest[2] = {0};
  WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("key", weir__diff_key_name(key)), JSON_LIST("rows"));
  for (size_t i = 0; i < rows->count; i++) {
    const weir__diff_row *r = &rows->items[i];
    if (i >= LISTED) {
      for (int k = 0; k < 2; k++) {
        for (int m = 0; m < WEIR__DIFF_MOMENTS; m++)
          rest[k].bytes[m] += r->of[k].bytes[m];
        rest[k].count += r->of[k].count;
      }
      continue;
    }
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("name", r->name),
               JSON_TEXT("change", weir__diff_change_name(r->change)), JSON_REAL("difference", r->difference, 0),
               JSON_NATURAL_IF(r->stack[0] != 0, "stack_a", r->stack[0]),
               JSON_NATURAL_IF(r->stack[1] != 0, "stack_b", r->stack[1]), JSON_BOOL("moved", r->has_moved),
               JSON_BOOL("noise", r->is_noise));
    write_sums(sink, d, r->of);
    WEIR__JSON(sink, JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE, JSON_OBJECT("rest"),
             JSON_NATURAL("rows", rows->count > LISTED ? rows->count - LISTED : 0));
  write_sums(sink, d, rest);
  WEIR__JSON(sink, JSON_CLOSE, JSON_CLOSE);
}

void weir__diff_json(weir__sink *sink, const char *key, const weir__diff *d) {
  weir__row rows[WEIR__DIFF_TOTALS];
  WEIR__JSON(sink, JSON_OBJECT(key));
  write_side(sink, "a", &d->side[0]);
  write_side(sink, "b", &d->side[1]);
  WEIR__JSON(sink, JSON_LIST("totals"));
  for (int i = 0; i < WEIR__DIFF_MOMENTS; i++) {
    const weir__diff_moment moment = (weir__diff_moment)i;
    weir__diff_totals(d, moment, rows);
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("at", weir__diff_moment_name(moment)));
    for (int k = 0; k < WEIR__DIFF_TOTALS; k++)
      write_total(sink, &rows[k], weir__diff_has_moment(d, moment));
    WEIR__JSON(sink, JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE,
             JSON_TEXT("phases_aligned", d->has_phases  ? "by phase"
                                         : d->has_steps ? "by step"
                                                        : "whole history"),
             JSON_OBJECT("stacks"), JSON_NATURAL("a", d->stacks_same + d->stacks_moved + d->stacks_only[0]),
             JSON_NATURAL("b", d->stacks_same + d->stacks_moved + d->stacks_only[1]),
             JSON_NATURAL("same", d->stacks_same), JSON_NATURAL("moved", d->stacks_moved),
             JSON_NATURAL("only_a", d->stacks_only[0]), JSON_NATURAL("only_b", d->stacks_only[1]), JSON_CLOSE,
             JSON_NATURAL("sizes", d->sizes), JSON_REAL("noise", d->noise, 0), JSON_LIST("by"));
  for (int i = 0; i < WEIR__DIFF_KEYS; i++)
    if (weir__diff_has_key(d, (weir__diff_key)i))
      write_rows(sink, d, (weir__diff_key)i);
  WEIR__JSON(sink, JSON_CLOSE);
  if (d->fail_above >= 0)
    WEIR__JSON(sink, JSON_OBJECT("fail_above"), JSON_REAL("percent", d->fail_above, 3), JSON_TEXT("what", d->what),
               JSON_REAL("grew_percent", d->grew, 3), JSON_BOOL("failed", d->has_failed), JSON_CLOSE);
  else
    WEIR__JSON(sink, JSON_NULL("fail_above"));
  WEIR__JSON(sink, JSON_CLOSE);
}

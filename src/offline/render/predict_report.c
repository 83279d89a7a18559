#include "offline/render/predict_report.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/describe.h"

void weir__start_rows(weir__report *r, const weir__replayer *history) {
  const weir__state *state = weir__replayer_start(history);
  const weir__start_use sum = weir__start_use_of(history);
  if (!state->segment_count) {
    WEIR__ROWS(r, JSON_NULL("before"));
    return;
  }
  WEIR__ROWS(r, JSON_OBJECT("before"), JSON_NATURAL("blocks", sum.blocks), ROW_BYTES("requested", sum.bytes),
             JSON_NATURAL("segments", state->segment_count), ROW_BYTES("reserved", state->reserved), JSON_CLOSE);
}

/* How it begins, its calls and its first failure. */
static void add_calls(weir__report *r, const weir__prediction *prediction) {
  static const char *const begins[] = {
      [WEIR__BEGINS_EMPTY] = "empty", [WEIR__BEGINS_HELD] = "held", [WEIR__BEGINS_ANEW] = "anew"};
  WEIR__ROWS(r, JSON_TEXT("begins", begins[prediction->begin]), JSON_OBJECT("calls"));
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    const weir__meter_count *c = &prediction->calls.of[kind];
    WEIR__ROWS(r, JSON_OBJECT(weir__meter_name((weir__meter_kind)kind)), JSON_NATURAL("calls", c->calls),
               JSON_NATURAL("failed", c->failed), JSON_NATURAL("handles", c->handles), JSON_NATURAL("bytes", c->bytes),
               JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_CLOSE);
  if (!prediction->failures) {
    WEIR__ROWS(r, JSON_NULL("first_failure"));
    return;
  }
  WEIR__ROWS(r, JSON_OBJECT("first_failure"), JSON_NATURAL("event", prediction->first_failure),
             ROW_BYTES("bytes", prediction->failed_bytes), ROW_BYTES("reserved", prediction->failed_reserved),
             ROW_BYTES("allocated", prediction->failed_allocated), JSON_CLOSE);
}

static void add_moving(weir__report *r, const weir__moving_counts *m) {
  WEIR__ROWS(r, JSON_OBJECT("moving"), JSON_INTEGER("pages_moved", m->pages_moved),
             JSON_INTEGER("moved_bytes", m->moved_bytes), JSON_INTEGER("pages_made", m->pages_made),
             JSON_INTEGER("pages_returned", m->pages_returned), JSON_INTEGER("aliases_peak", m->aliases_peak),
             JSON_INTEGER("aliases_unmapped", m->aliases_unmapped), JSON_CLOSE);
}

/* The rows of a prediction, or their other ends. Calls are an object of their own. */
static void add_figures(weir__report *r, const weir__prediction *p, bool is_other) {
  weir__row rows[WEIR__PREDICTION_ROWS];
  weir__prediction_rows(p, rows);
  for (size_t i = 0; i < WEIR__PREDICTION_ROWS; i++) {
    const weir__row *row = &rows[i];
    const double value = is_other ? row->other : row->value;
    if (row->unit == WEIR__UNIT_SHARE || row->unit == WEIR__UNIT_NS)
      WEIR__ROWS(r, JSON_REAL(row->key, value, row->unit == WEIR__UNIT_SHARE ? 6 : 0));
    else if (is_other || strcmp(row->key, "calls") != 0)
      WEIR__ROWS(r, JSON_NATURAL(row->key, value));
  }
}

/* The other end of a range: null if there is none. */
static void add_busy(weir__report *r, const weir__prediction *p) {
  if (!p->is_range) {
    WEIR__ROWS(r, JSON_NULL("streams_busy"));
    return;
  }
  WEIR__ROWS(r, JSON_OBJECT("streams_busy"));
  add_figures(r, p, true);
  add_moving(r, &p->busy.moving);
  WEIR__ROWS(r, JSON_CLOSE);
}

void weir__fit_rows(weir__report *r, const char *key, const weir__fit *fit) {
  if (!fit->bytes) {
    WEIR__ROWS(r, JSON_NULL(key));
    return;
  }
  WEIR__ROWS(r, JSON_OBJECT(key), ROW_BYTES("bytes", fit->bytes), JSON_NATURAL("retries", fit->retries),
             ROW_BYTES("bytes_if_streams_idle", fit->least), JSON_CLOSE);
}

void weir__prediction_rows_add(weir__report *r, const weir__prediction *prediction) {
  add_figures(r, prediction, false);
  WEIR__ROWS(r, JSON_NATURAL("peak_requested", prediction->peak_requested));
  add_calls(r, prediction);
  add_moving(r, &prediction->moving);
  add_busy(r, prediction);
}

/* ---- Several settings side by side ---- */

void weir__check_say(weir__report *r, const weir__replay_report *check, const char *name, bool has_memory) {
  WEIR__ROWS(r, ROW_TEXT("_name", name, WEIR__UNIT_PLAIN), ROW_BYTES("_limit", check->limit));
  weir__say(r, check->differences ? "{_name}: {events entry}, not reproduced under the recorded settings\n"
                                  : "{_name}: {events entry}, reproduced under the recorded settings\n");
  if (check->limit_is_inferred && !has_memory)
    weir__say(r, "  limit: {_limit}, inferred from the recording\n");
}

/* Explains the first two rows, if there are two. */
static void say_own_rows(weir__report *r, const weir__whatif *w) {
  size_t raced = weir__replayer_check(w->history)->raced;
  WEIR__ROWS(r, ROW_BYTES("_memory", w->memory), JSON_NATURAL("_raced", raced));
  if (weir__whatif_is_shown(w, 1))
    weir__say(
        r, weir__whatif_is_late(w)
               ? "  began late: " WEIR__EXISTED_BEFORE
                 ".\n  Their order is not known, so under other settings they are allocated again in order of address. "
                 "Compare with the second row, where the recorded settings begin in the same way, and take the result "
                 "as an estimate.\n"
           : w->memory
               ? "  The first row is the recording. The others were replayed with {_memory} of memory: compare them "
                 "with the second row, which has the recorded settings.\n"
           : raced ? "  The first row is the recording. In it, {_raced request} just missed a block that another "
                     "thread freed, and took new memory instead. The others do not repeat that: compare them with the "
                     "second row, which has the recorded settings.\n"
                   : "  The first row is the recording. In the others, segments have other addresses, which changes "
                     "the figures slightly: compare them with the second row, which has the recorded settings.\n");
}

/* The figures of the columns of the table. */
static size_t column_count(const weir__whatif *w) { return w->fit ? WEIR__WHATIF_FIGURES : WEIR__PREDICTION_ROWS; }

static void say_labels(weir__report *r, const weir__whatif *w) {
  static const int widths[WEIR__WHATIF_FIGURES] = {12, 12, 8, 9, 10, 8, 7, 12}; /* at least */
  weir__whatif_texts c;
  weir__whatif_row_texts(&w->rows[0], &c);
  WEIR__ROWS(r, JSON_LIST("_cells"));
  for (size_t k = 0; k < column_count(w); k++) {
    char label[WEIR__ROW_TEXT];
    snprintf(label, sizeof label, "%*s", widths[k], c.labels[k]);
    WEIR__ROWS(r, ROW_TEXT(NULL, label, WEIR__UNIT_PLAIN));
  }
  WEIR__ROWS(r, JSON_CLOSE);
  weir__say(r, "{_cells} settings\n");
}

static void add_whatif_row(weir__report *r, const weir__whatif *w, size_t row) {
  char recorded[WEIR__CONF_TEXT];
  weir__whatif_texts c;
  bool is_own = row < WEIR__WHATIF_OWN_ROWS;
  weir__conf_text(weir__replayer_settings(w->history), recorded);
  WEIR__ROWS(r, JSON_OBJECT(NULL), JSON_TEXT("conf", is_own ? recorded : w->confs[row - WEIR__WHATIF_OWN_ROWS]),
             JSON_BOOL("recorded", is_own));
  weir__prediction_rows_add(r, &w->rows[row].p);
  if (w->fit)
    weir__fit_rows(r, "fit", &w->rows[row].fit);
  WEIR__ROWS(r, JSON_BOOL("is_recording", !row && weir__whatif_is_reproduced(w)),
             JSON_TEXT("_title", weir__whatif_title(w, row)), JSON_LIST("_cells"));
  weir__whatif_row_texts(&w->rows[row], &c);
  for (size_t k = 0; k < column_count(w); k++)
    WEIR__ROWS(r, ROW_TEXT(NULL, c.of[k], WEIR__UNIT_PLAIN));
  WEIR__ROWS(r, JSON_CLOSE);
  weir__say(r, !is_own     ? "{_cells} {_title}\n"
               : *recorded ? "{_cells} *{_title}*: {conf}\n"
                           : "{_cells} *{_title}*: (defaults)\n");
  WEIR__ROWS(r, JSON_CLOSE);
}

/* What moved, if something could. */
static void say_moving(weir__report *r, const weir__prediction *p) {
  if (!p->moving.pages_made && !p->busy.moving.pages_made)
    return;
  weir__say(r,
            p->is_range
                ? "  {_title}: {moving.pages_made~streams_busy.moving.pages_made} pages made, "
                  "{moving.pages_moved~streams_busy.moving.pages_moved} moved, "
                  "{moving.pages_returned~streams_busy.moving.pages_returned} returned to an address where they were "
                  "still mapped\n"
                : "  {_title}: {moving.pages_made} pages made, {moving.pages_moved} moved, {moving.pages_returned} "
                  "returned to an address where they were still mapped\n");
}

static void say_failure(weir__report *r, const weir__prediction *p) {
  if (p->failures)
    weir__say(r, "  {_title} first fails at " WEIR__FIRST_FAILURE "\n");
  else if (p->busy.failures)
    weir__say(r, "  {_title} first fails at a request that pages of a busy stream could have served: it depends on how "
                 "far that stream is\n");
}

/* Says something about each prediction. */
static void say_each(weir__report *r, const weir__whatif *w, size_t list,
                     void (*say)(weir__report *, const weir__prediction *)) {
  size_t at = weir__report_first(list);
  for (size_t i = 0; i < weir__whatif_row_count(w); i++) {
    if (!weir__whatif_is_shown(w, i))
      continue;
    r->scope = at;
    say(r, &w->rows[i].p);
    at = weir__report_next(r, at);
  }
  r->scope = 0;
}

void weir__whatif_report(weir__report *r, const weir__whatif *w, const char *name) {
  const weir__replay_report *check = weir__replayer_check(w->history);
  bool has_range = false;
  weir__report_begin(r);
  WEIR__ROWS(r, JSON_TEXT("file", w->file), JSON_INTEGER("device", w->device), JSON_NATURAL("events", check->events),
             JSON_BOOL("reproduced", !check->differences));
  weir__check_say(r, check, name, w->memory != 0);
  say_own_rows(r, w);
  say_labels(r, w);
  WEIR__ROWS(r, JSON_LIST("predictions"));
  const size_t list = r->open;
  for (size_t i = 0; i < weir__whatif_row_count(w); i++)
    if (weir__whatif_is_shown(w, i)) {
      add_whatif_row(r, w, i);
      has_range |= w->rows[i].p.is_range;
    }
  WEIR__ROWS(r, JSON_CLOSE, ROW_BYTES("least_possible", weir__replayer_least(w->history, SIZE_MAX)));
  weir__say(r, WEIR__LOWER_BOUND);
  say_each(r, w, list, say_moving);
  if (has_range)
    weir__say(r, "  A range: pages move from one stream to another only when the first has done its work, and how far "
                 "streams were is not recorded. One end is for streams that always had, the other for streams that "
                 "never had.\n");
  say_each(r, w, list, say_failure);
  weir__start_rows(r, w->history);
}

/* ---- One replay ---- */

static void say_calls(weir__report *r, const weir__meter_counts *calls) {
  const char *between = "";
  weir__say(r, "  calls       ");
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    const char *name = weir__meter_name((weir__meter_kind)kind);
    if (!calls->of[kind].calls)
      continue;
    weir__say(r, between);
    weir__say_of(r, name, "{calls.$.calls} ");
    weir__say(r, name);
    between = ", ";
  }
  weir__say(r, *between ? "; {cost_ns} in total, estimated\n" : "none; {cost_ns} in total, estimated\n");
}

static void say_begin(weir__report *r, const weir__replayed *of) {
  if (of->result->begin == WEIR__BEGINS_EMPTY)
    return;
  weir__say(r, weir__replayer_start(of->history)->segment_count
                   ? "  began late  " WEIR__EXISTED_BEFORE
                   : "  began late  0 blocks (0 bytes) in 0 segments (0 bytes) existed before it");
  weir__say(r, of->result->begin != WEIR__BEGINS_HELD
                   ? ": allocated again in order of address, since their order is not known. Take the rest as an "
                     "estimate\n"
               : of->recording->devices[of->device].start ? ": placed as a checkpoint of the file has them\n"
                                                          : ": placed as inferred from the end of the file\n");
}

static void say_differences(weir__report *r, const weir__replayed *of) {
  const weir__replay_report *result = of->result;
  for (size_t i = 0; i < result->differences && i < WEIR__REPLAY_SHOWN; i++) {
    WEIR__ROWS(r, JSON_OBJECT("_"), ROW_TEXT("text", result->shown[i], WEIR__UNIT_PLAIN));
    weir__say(r, "  {text}\n");
    WEIR__ROWS(r, JSON_CLOSE);
  }
  WEIR__ROWS(r, JSON_NATURAL("_more", result->differences - WEIR__REPLAY_SHOWN));
  if (result->differences > WEIR__REPLAY_SHOWN)
    weir__say(r, "  and {_more} more\n");
  if (result->differences && weir__replayer_settings(of->history)->moving_pages)
    weir__say(r, "  note        " WEIR__MOVING_NOTE "\n");
}

static void say_replayed(weir__report *r, const weir__replayed *of, const weir__prediction *p) {
  const weir__replay_report *result = of->result;
  char allocated[32], requested[32];
  /* Requested bytes are what explain and summary call in use. */
  bool is_rounded =
      strcmp(weir__format_bytes(p->peak_allocated, allocated), weir__format_bytes(p->peak_requested, requested)) != 0;
  weir__say(r, of->is_check ? "{_name}: {allocations allocation} compared, {differences} differ\n"
                            : "{_name}: {allocations allocation} replayed, {failures} failed\n");
  if (result->limit_is_inferred)
    weir__say(r, "  limit       {limit}, inferred from the recording\n");
  weir__say(r, is_rounded ? "  peak        {peak_allocated} allocated ({peak_requested} as requested)"
                          : "  peak        {peak_allocated} allocated");
  weir__say(r, ", {peak_reserved} reserved: {fragmentation} fragmentation\n"
               "  driver      {num_device_alloc allocation}, {num_device_free free}; {num_alloc_retries retry}, "
               "{num_ooms} out of memory\n");
  say_calls(r, &p->calls);
  if (p->failures)
    weir__say(r, "  failed      " WEIR__FIRST_FAILURE "\n");
  weir__say(r, "  speed       {events entry} in {_ms:.1} ms, {_rate:.1} million per second\n");
  if (result->rescued)
    weir__say(r, "  served      {served request} that failed in the file: suitable blocks became free while the "
                 "allocator waited\n");
  say_begin(r, of);
  if (result->raced)
    weir__say(r, "  raced       {raced request} that came just before another thread freed a block that would have "
                 "served them\n");
  if (result->dropped)
    weir__say(r, "  window      the last entries: the ring was full, and {dropped} older ones were overwritten\n");
  if (result->unknown_frees)
    weir__say(r, "  incomplete  {unknown_frees free} of memory that was allocated before the recording began\n");
}

void weir__replayed_report(weir__report *r, const weir__replayed *of) {
  const weir__replay_report *result = of->result;
  const weir_allocator_stats *s = &result->stats;
  const double rate = result->seconds > 0 ? (double)result->events / result->seconds / 1e6 : 0;
  weir__prediction p;
  weir__prediction_from(result, of->costs, &p);
  weir__report_begin(r);
  WEIR__ROWS(
      r, JSON_TEXT("file", of->file), JSON_TEXT("_name", of->name), JSON_INTEGER("device", of->device),
      JSON_BOOL("checked", of->is_check), JSON_NATURAL("events", result->events),
      JSON_NATURAL("allocations", result->allocations), JSON_NATURAL("differences", result->differences),
      JSON_NATURAL("failures", result->failures), JSON_NATURAL("served", result->rescued),
      JSON_NATURAL("unknown_frees", result->unknown_frees), JSON_NATURAL("raced", result->raced),
      JSON_NATURAL("dropped", result->dropped), ROW_BYTES_IF(result->limit != UINT64_MAX, "limit", result->limit),
      JSON_BOOL("limit_is_inferred", result->limit_is_inferred), ROW_BYTES("peak_allocated", p.peak_allocated),
      ROW_BYTES("peak_reserved", p.peak_reserved), JSON_INTEGER("peak_active", s->active_bytes[WEIR_STAT_ALL].peak),
      ROW_BYTES("peak_requested", p.peak_requested),
      JSON_INTEGER("num_allocations", s->allocation[WEIR_STAT_ALL].allocated),
      JSON_NATURAL("num_device_alloc", s->num_device_alloc), JSON_NATURAL("num_device_free", s->num_device_free),
      JSON_NATURAL("num_alloc_retries", s->num_alloc_retries), JSON_NATURAL("num_ooms", s->num_ooms),
      ROW_REAL(true, "fragmentation", weir__prediction_fragmentation(&p), 6, WEIR__UNIT_SHARE),
      ROW_REAL(true, "cost_ns", p.cost, 0, WEIR__UNIT_NS), JSON_REAL("seconds", result->seconds, 6),
      JSON_REAL("_ms", result->seconds * 1e3, 1), JSON_REAL("_rate", rate, 1));
  weir__start_rows(r, of->history);
  add_calls(r, &p);
  say_replayed(r, of, &p);
  say_differences(r, of);
}

#include "offline/render/predict_json.h"

#include <string.h>

void weir__json_start(weir__sink *sink, const weir__replayer *history) {
  const weir__state *state = weir__replayer_start(history);
  const weir__start_use sum = weir__start_use_of(history);
  if (!state->segment_count) {
    WEIR__JSON(sink, JSON_NULL("before"));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT("before"), JSON_NATURAL("blocks", sum.blocks), JSON_NATURAL("requested", sum.bytes),
             JSON_NATURAL("segments", state->segment_count), JSON_NATURAL("reserved", state->reserved), JSON_CLOSE);
}

void weir__json_calls(weir__sink *sink, const weir__prediction *prediction) {
  static const char *const begins[] = {
      [WEIR__BEGINS_EMPTY] = "empty", [WEIR__BEGINS_HELD] = "held", [WEIR__BEGINS_ANEW] = "anew"};
  WEIR__JSON(sink, JSON_TEXT("begins", begins[prediction->begin]), JSON_OBJECT("calls"));
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++) {
    const weir__meter_count *c = &prediction->calls.of[kind];
    WEIR__JSON(sink, JSON_OBJECT(weir__meter_name((weir__meter_kind)kind)), JSON_NATURAL("calls", c->calls),
               JSON_NATURAL("failed", c->failed), JSON_NATURAL("handles", c->handles), JSON_NATURAL("bytes", c->bytes),
               JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE);
  if (!prediction->failures) {
    WEIR__JSON(sink, JSON_NULL("first_failure"));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT("first_failure"), JSON_NATURAL("event", prediction->first_failure),
             JSON_NATURAL("bytes", prediction->failed_bytes), JSON_NATURAL("reserved", prediction->failed_reserved),
             JSON_NATURAL("allocated", prediction->failed_allocated), JSON_CLOSE);
}

static void json_moving(weir__sink *sink, const weir__moving_counts *m) {
  WEIR__JSON(sink, JSON_OBJECT("moving"), JSON_INTEGER("pages_moved", m->pages_moved),
             JSON_INTEGER("moved_bytes", m->moved_bytes), JSON_INTEGER("pages_made", m->pages_made),
             JSON_INTEGER("pages_returned", m->pages_returned), JSON_INTEGER("aliases_peak", m->aliases_peak),
             JSON_INTEGER("aliases_unmapped", m->aliases_unmapped), JSON_CLOSE);
}

/* The rows of a prediction, or their other ends. Calls are an object of their own. */
static void json_rows(weir__sink *sink, const weir__prediction *p, bool is_other) {
  weir__row rows[WEIR__PREDICTION_ROWS];
  weir__prediction_rows(p, rows);
  for (size_t i = 0; i < WEIR__PREDICTION_ROWS; i++) {
    const weir__row *r = &rows[i];
    const double value = is_other ? r->other : r->value;
    if (r->unit == WEIR__UNIT_SHARE || r->unit == WEIR__UNIT_NS)
      WEIR__JSON(sink, JSON_REAL(r->key, value, r->unit == WEIR__UNIT_SHARE ? 6 : 0));
    else if (is_other || strcmp(r->key, "calls") != 0)
      WEIR__JSON(sink, JSON_NATURAL(r->key, value));
  }
}

/* The other end of a range: null if there is none. */
static void json_busy(weir__sink *sink, const weir__prediction *p) {
  if (!p->is_range) {
    WEIR__JSON(sink, JSON_NULL("streams_busy"));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT("streams_busy"));
  json_rows(sink, p, true);
  json_moving(sink, &p->busy.moving);
  WEIR__JSON(sink, JSON_CLOSE);
}

void weir__json_fit(weir__sink *sink, const char *key, const weir__fit *fit) {
  if (!fit->bytes) {
    WEIR__JSON(sink, JSON_NULL(key));
    return;
  }
  WEIR__JSON(sink, JSON_OBJECT(key), JSON_NATURAL("bytes", fit->bytes), JSON_NATURAL("retries", fit->retries),
             JSON_NATURAL("bytes_if_streams_idle", fit->least), JSON_CLOSE);
}

void weir__json_prediction(weir__sink *sink, const weir__prediction *prediction) {
  json_rows(sink, prediction, false);
  WEIR__JSON(sink, JSON_NATURAL("peak_requested", prediction->peak_requested));
  weir__json_calls(sink, prediction);
  json_moving(sink, &prediction->moving);
  json_busy(sink, prediction);
}

void weir__json_whatif(weir__sink *sink, const weir__whatif *w) {
  char recorded[WEIR__CONF_TEXT];
  const weir__replay_report *check = weir__replayer_check(w->history);
  weir__conf_text(weir__replayer_settings(w->history), recorded);
  WEIR__JSON(sink, JSON_TEXT("file", w->file), JSON_INTEGER("device", w->device), JSON_NATURAL("events", check->events),
             JSON_BOOL("reproduced", !check->differences), JSON_LIST("predictions"));
  for (size_t i = 0; i < weir__whatif_row_count(w); i++) {
    bool is_own = i < WEIR__WHATIF_OWN_ROWS;
    if (!weir__whatif_is_shown(w, i))
      continue;
    WEIR__JSON(sink, JSON_OBJECT(NULL), JSON_TEXT("conf", is_own ? recorded : w->confs[i - WEIR__WHATIF_OWN_ROWS]),
               JSON_BOOL("recorded", is_own));
    weir__json_prediction(sink, &w->rows[i].p);
    if (w->fit)
      weir__json_fit(sink, "fit", &w->rows[i].fit);
    WEIR__JSON(sink, JSON_BOOL("is_recording", !i && weir__whatif_is_reproduced(w)), JSON_CLOSE);
  }
  WEIR__JSON(sink, JSON_CLOSE);
  weir__json_start(sink, w->history);
}

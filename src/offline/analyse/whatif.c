#include "offline/analyse/whatif.h"

bool weir__whatif_is_late(const weir__whatif *w) { return weir__replayer_start(w->history)->segment_count > 0; }

bool weir__whatif_is_reproduced(const weir__whatif *w) { return !weir__replayer_check(w->history)->differences; }

const weir__settings *weir__whatif_settings(const weir__whatif *w, size_t row) {
  if (row >= WEIR__WHATIF_OWN_ROWS)
    return &w->settings[row - WEIR__WHATIF_OWN_ROWS];
  return row && weir__whatif_is_late(w) ? weir__replayer_settings(w->history) : NULL;
}

void weir__whatif_predict(const weir__whatif *w, size_t row, weir__whatif_row *result, weir__whatif_history **history) {
  const weir__settings *settings = weir__whatif_settings(w, row);
  weir__prediction *prediction = &result->p;
  weir__capacity capacity;
  /* It is found for all alike: the least limit on a device that has enough memory. */
  if (w->fit && weir__predict_fit(w->history, settings, &(weir__capacity){.limit = WEIR__FIT_STEP}, &result->fit))
    result->fit = (weir__fit){0};
  if (!row && weir__whatif_is_reproduced(w) && !history) {
    weir__prediction_from(weir__replayer_check(w->history), w->costs, prediction);
    return;
  }
  prediction->status = weir__replayer_capacity_of(w->history, settings, w->memory, w->fraction, &capacity);
  if (!prediction->status)
    weir__predict_history(w->history, settings, &capacity, w->costs, prediction, history);
}

bool weir__whatif_is_shown(const weir__whatif *w, size_t row) {
  const weir__prediction *a = &w->rows[0].p, *b = &w->rows[1].p;
  if (row != 1 || weir__whatif_is_late(w) || (w->memory && weir__whatif_is_reproduced(w)) || b->is_range)
    return true;
  return a->peak_reserved != b->peak_reserved || a->peak_allocated != b->peak_allocated || a->cost != b->cost ||
         a->retries != b->retries || a->failures != b->failures;
}

#include "offline/analyse/predict.h"

#include <string.h>

#include "base/base.h"

static weir__prediction_busy busy_figures(const weir__prediction *of) {
  return (weir__prediction_busy){.peak_reserved = of->peak_reserved,
                                 .peak_allocated = of->peak_allocated,
                                 .retries = of->retries,
                                 .failures = of->failures,
                                 .calls = weir__prediction_calls(of),
                                 .cost = of->cost,
                                 .moving = of->moving};
}

static bool is_same(const weir__prediction_busy *a, const weir__prediction_busy *b) {
  return a->peak_reserved == b->peak_reserved && a->peak_allocated == b->peak_allocated && a->retries == b->retries &&
         a->failures == b->failures && a->calls == b->calls && a->cost == b->cost;
}

void weir__prediction_from(const weir__replay_report *report, const weir__costs *costs, weir__prediction *prediction) {
  const weir_allocator_stats *s = &report->stats;
  *prediction = (weir__prediction){.status = WEIR_OK,
                                   .peak_reserved = (uint64_t)s->reserved_bytes[WEIR_STAT_ALL].peak,
                                   .peak_allocated = (uint64_t)s->allocated_bytes[WEIR_STAT_ALL].peak,
                                   .peak_requested = (uint64_t)s->requested_bytes[WEIR_STAT_ALL].peak,
                                   .retries = (uint64_t)s->num_alloc_retries,
                                   .failures = report->failures,
                                   .first_failure = report->first_failure,
                                   .failed_bytes = report->failed_bytes,
                                   .failed_reserved = report->failed_reserved,
                                   .failed_allocated = report->failed_allocated,
                                   .calls = report->calls,
                                   .begin = report->begin,
                                   .moving = {.pages_made = s->moving_pages_made,
                                              .pages_moved = s->moving_pages_moved,
                                              .moved_bytes = s->moving_moved_bytes,
                                              .pages_returned = s->moving_pages_returned,
                                              .aliases_peak = s->moving_aliases_peak,
                                              .aliases_unmapped = s->moving_aliases_unmapped},
                                   .cost = weir__costs_estimate(costs, &report->calls)};
  prediction->busy = busy_figures(prediction);
}

/* `history`, unless it is NULL, becomes the history of the run in which streams were idle. */
static weir_status predict(const weir__replayer *replayer, const weir__settings *settings,
                           const weir__capacity *capacity, const weir__costs *costs, weir__prediction *prediction,
                           weir__whatif_history **history) {
  weir__whatif_history *made = NULL;
  weir__replay_report report;
  weir__capacity busy = *capacity;
  weir__prediction other;
  busy.is_busy = true;
  weir_status status = history ? weir__whatif_history_make(replayer, settings, capacity, &report, &made)
                               : weir__replayer_run(replayer, settings, capacity, NULL, &report);
  if (!status)
    weir__prediction_from(&report, costs, prediction);
  if (!status && weir__replayer_is_range(replayer, settings) &&
      !(status = weir__replayer_run(replayer, settings, &busy, NULL, &report))) {
    weir__prediction_from(&report, costs, &other);
    prediction->is_range = !is_same(&prediction->busy, &other.busy);
    prediction->busy = other.busy;
  }
  if (status) {
    *prediction = (weir__prediction){.status = status};
    weir__whatif_history_free(made);
  } else if (history)
    *history = made;
  return status;
}

weir_status weir__predict(const weir__replayer *replayer, const weir__settings *settings,
                          const weir__capacity *capacity, const weir__costs *costs, weir__prediction *prediction) {
  return predict(replayer, settings, capacity, costs, prediction, NULL);
}

static double fragmentation(uint64_t allocated, uint64_t reserved) {
  return reserved ? 1 - (double)allocated / (double)reserved : 0;
}

double weir__prediction_fragmentation(const weir__prediction *p) {
  return fragmentation(p->peak_allocated, p->peak_reserved);
}

void weir__prediction_rows(const weir__prediction *p, weir__row rows[WEIR__PREDICTION_ROWS]) {
  const weir__prediction_busy *b = &p->busy;
  const weir__row all[WEIR__PREDICTION_ROWS] = {
      {"reserved", "peak_reserved", WEIR__UNIT_BYTES, (double)p->peak_reserved, (double)b->peak_reserved},
      {"allocated", "peak_allocated", WEIR__UNIT_BYTES, (double)p->peak_allocated, (double)b->peak_allocated},
      {"unused", "fragmentation", WEIR__UNIT_SHARE, weir__prediction_fragmentation(p),
       fragmentation(b->peak_allocated, b->peak_reserved)},
      {"calls", "calls", WEIR__UNIT_COUNT, (double)weir__prediction_calls(p), (double)b->calls},
      {"cost", "cost_ns", WEIR__UNIT_NS, p->cost, b->cost},
      {"retries", "retries", WEIR__UNIT_COUNT, (double)p->retries, (double)b->retries},
      {"failed", "failures", WEIR__UNIT_COUNT, (double)p->failures, (double)b->failures}};
  memcpy(rows, all, sizeof all);
}

uint64_t weir__prediction_calls(const weir__prediction *prediction) {
  uint64_t sum = 0;
  for (int kind = 0; kind < WEIR__METER_KINDS; kind++)
    sum += prediction->calls.of[kind].calls;
  return sum;
}

/* ---- The least memory ---- */

/* One run with `steps` of memory. */
static weir_status try_steps(const weir__replayer *replayer, const weir__settings *settings,
                             const weir__capacity *capacity, uint64_t steps, bool *fits, weir__fit *fit) {
  weir__replay_report report;
  weir__capacity tried = {.limit = UINT64_MAX, .is_busy = capacity->is_busy};
  *(capacity->limit != UINT64_MAX ? &tried.limit : &tried.memory) = steps * WEIR__FIT_STEP;
  weir_status status = weir__replayer_run(replayer, settings, &tried, NULL, &report);
  *fits = !status && !report.failures;
  if (*fits)
    *fit = (weir__fit){.bytes = steps * WEIR__FIT_STEP, .retries = (uint64_t)report.stats.num_alloc_retries};
  return status;
}

/* The least memory if streams are as busy as `capacity` says. */
static weir_status find_fit(const weir__replayer *replayer, const weir__settings *settings,
                            const weir__capacity *capacity, weir__fit *fit) {
  weir__replay_report report;
  const weir__capacity all = {.limit = UINT64_MAX, .is_busy = capacity->is_busy};
  weir_status status = weir__replayer_run(replayer, settings, &all, NULL, &report);
  if (status)
    return status;
  if (report.failures)
    return weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "a request of %llu bytes at entry %zu does not fit on any device",
                      (unsigned long long)report.failed_bytes, report.first_failure);
  /* What was reserved without a limit is enough, except for expandable segments, whose address space is limited, too.
   * One step less than what was requested at once is not enough. */
  uint64_t most = (uint64_t)report.stats.reserved_bytes[WEIR_STAT_ALL].peak / WEIR__FIT_STEP + 1;
  uint64_t least = (uint64_t)report.stats.requested_bytes[WEIR_STAT_ALL].peak / WEIR__FIT_STEP;
  weir__fit found = {0};
  bool fits = false;
  least -= least > 0;
  while (!(status = try_steps(replayer, settings, capacity, most, &fits, &found)) && !fits) {
    least = most;
    most += most / 4 + 1;
    if (most > WEIR__REPLAY_ENOUGH_MEMORY / WEIR__FIT_STEP)
      return weir__fail(WEIR_ERROR_OUT_OF_MEMORY, "the job does not fit on any device under these settings");
  }
  while (!status && most - least > 1) {
    uint64_t middle = least + (most - least) / 2;
    status = try_steps(replayer, settings, capacity, middle, &fits, &found);
    *(fits ? &most : &least) = middle;
  }
  if (!status)
    *fit = found;
  return status;
}

weir_status weir__predict_fit(const weir__replayer *replayer, const weir__settings *settings,
                              const weir__capacity *capacity, weir__fit *fit) {
  weir__capacity busy = *capacity;
  weir__fit least = {0}, most;
  busy.is_busy = true;
  weir_status status = find_fit(replayer, settings, capacity, &least);
  most = least;
  if (!status && weir__replayer_is_range(replayer, settings))
    status = find_fit(replayer, settings, &busy, &most);
  if (status)
    return status;
  *fit = most.bytes > least.bytes ? most : least;
  fit->least = most.bytes < least.bytes ? most.bytes : least.bytes;
  return WEIR_OK;
}

const char *weir__conf_text(const weir__settings *settings, char text[WEIR__CONF_TEXT]) {
  weir__settings shown = *settings;
  if (shown.moving_pages)
    shown.expandable_segments = false; /* implied */
  weir__settings_format(&shown, text, WEIR__CONF_TEXT);
  return text;
}

weir__start_use weir__start_use_of(const weir__replayer *history) {
  const weir__state *state = weir__replayer_start(history);
  weir__start_use sum = {0};
  for (size_t i = 0; i < state->block_count; i++)
    if (weir__state_is_active(&state->blocks[i])) {
      sum.blocks++;
      sum.bytes += state->blocks[i].requested;
    }
  return sum;
}

/* ---- Rows ---- */

bool weir__whatif_is_late(const weir__whatif *w) { return weir__replayer_start(w->history)->segment_count > 0; }

bool weir__whatif_is_reproduced(const weir__whatif *w) { return !weir__replayer_check(w->history)->differences; }

const char *weir__whatif_title(const weir__whatif *w, size_t row) {
  if (row >= WEIR__WHATIF_OWN_ROWS)
    return *w->confs[row - WEIR__WHATIF_OWN_ROWS] ? w->confs[row - WEIR__WHATIF_OWN_ROWS] : "(defaults)";
  return !row ? "recorded" : weir__whatif_is_late(w) ? "recorded, allocated again" : "recorded, replayed";
}

/* The settings of a row; NULL for the recorded ones with the state before the recording as it was. */
static const weir__settings *settings_of(const weir__whatif *w, size_t row) {
  if (row >= WEIR__WHATIF_OWN_ROWS)
    return &w->settings[row - WEIR__WHATIF_OWN_ROWS];
  return row && weir__whatif_is_late(w) ? weir__replayer_settings(w->history) : NULL;
}

void weir__whatif_predict(const weir__whatif *w, size_t row, weir__whatif_row *result, weir__whatif_history **history) {
  const weir__settings *settings = settings_of(w, row);
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
    predict(w->history, settings, &capacity, w->costs, prediction, history);
}

void weir__whatif_row_texts(const weir__whatif_row *row, weir__whatif_texts *texts) {
  weir__row rows[WEIR__WHATIF_FIGURES];
  weir__prediction_rows(&row->p, rows);
  rows[WEIR__PREDICTION_ROWS] =
      (weir__row){"fits in", NULL, WEIR__UNIT_BYTES, (double)row->fit.least, (double)row->fit.bytes};
  for (size_t i = 0; i < WEIR__WHATIF_FIGURES; i++) {
    texts->labels[i] = rows[i].label;
    weir__row_text(&rows[i], texts->of[i]);
  }
  if (!row->fit.bytes)
    strcpy(texts->of[WEIR__PREDICTION_ROWS], "none");
}

bool weir__whatif_is_shown(const weir__whatif *w, size_t row) {
  weir__whatif_texts texts[WEIR__WHATIF_OWN_ROWS];
  bool is_shown =
      row != 1 || weir__whatif_is_late(w) || (w->memory && weir__whatif_is_reproduced(w)) || w->rows[1].p.is_range;
  for (size_t i = 0; i < WEIR__WHATIF_OWN_ROWS && !is_shown; i++)
    weir__whatif_row_texts(&w->rows[i], &texts[i]);
  for (size_t i = 0; i < WEIR__WHATIF_FIGURES && !is_shown; i++)
    is_shown = strcmp(texts[0].of[i], texts[1].of[i]) != 0;
  return is_shown;
}

#include "offline/analyse/tune.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/system.h"

enum {
  ROUNDS = 2,     /* of neighbours */
  MAX_PARENTS = 6 /* of the front, whose neighbours are tried */
};

#define MIB (1ull << 20)

typedef struct search {
  const weir__tune_options *options;
  weir__tune_result *result;
  weir__settings base; /* no searched key is set */
  size_t room;
  weir_status status; /* of growing the list */
} search;

/* ---- Candidates ---- */

static bool has_divisions(const weir__settings *s) {
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++)
    if (s->roundup_divisions[i] > 1)
      return true;
  return false;
}

static unsigned count_keys(const weir__settings *s) {
  weir__settings plain;
  weir__settings_default(&plain);
  return (unsigned)((s->max_split_size != plain.max_split_size) + s->max_non_split_rounding_set +
                    (s->large_segment_size != plain.large_segment_size) + (s->garbage_collection_threshold > 0) +
                    (s->expandable_segments || s->moving_pages) + has_divisions(s));
}

static bool is_known(const search *s, const weir__settings *settings) {
  return !s->options->pytorch.major ||
         !weir__version_is_before(s->options->pytorch, weir__settings_since(settings, NULL));
}

static bool is_allowed(const weir__settings *s) {
  if (s->large_segment_size < 12 * MIB || s->large_segment_size > 1024 * MIB)
    return false;
  if (s->max_split_size != UINT64_MAX && (s->max_split_size < s->large_segment_size || s->max_split_size > 8192 * MIB))
    return false;
  /* max_split_size has no effect on pages, and max_non_split_rounding none without max_split_size. */
  if (s->expandable_segments && s->max_split_size != UINT64_MAX)
    return false;
  /* Pages that move have sizes of their own. */
  if (s->moving_pages && s->large_segment_size != 20 * MIB)
    return false;
  return !s->max_non_split_rounding_set ||
         (s->max_split_size != UINT64_MAX && s->max_non_split_rounding >= s->large_segment_size);
}

static void add(search *s, weir__settings candidate) {
  weir__tune_result *r = s->result;
  if (s->status || !is_allowed(&candidate) || !is_known(s, &candidate))
    return;
  if (!candidate.max_non_split_rounding_set)
    candidate.max_non_split_rounding = candidate.large_segment_size;
  for (size_t i = 1; i < r->candidate_count; i++)
    if (weir__settings_equal(&r->candidates[i].settings, &candidate))
      return;
  if (!WEIR__RESERVE(r->candidates, s->room, r->candidate_count + 1)) {
    s->status =
        weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu candidates", r->candidate_count + 1);
    return;
  }
  r->candidates[r->candidate_count++] = (weir__tune_candidate){.settings = candidate, .keys = count_keys(&candidate)};
}

/* The same divisions for all sizes from an interval on: 0 for all sizes, 5 for those from 32 MiB on. */
static weir__settings with_divisions(weir__settings s, unsigned log_plus_one, int from) {
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++)
    s.roundup_divisions[i] = (uint8_t)(i >= from ? log_plus_one : 0);
  return s;
}

static weir__settings with_split(weir__settings s, uint64_t mib) {
  s.max_split_size = mib ? mib * MIB : UINT64_MAX;
  return s;
}

static weir__settings with_segment(weir__settings s, uint64_t mib) {
  s.large_segment_size = mib * MIB;
  return s;
}

static weir__settings with_rounding(weir__settings s, uint64_t mib) {
  s.max_non_split_rounding = mib * MIB;
  s.max_non_split_rounding_set = true;
  return s;
}

static weir__settings with_threshold(weir__settings s, int percent) {
  s.garbage_collection_threshold = (double)percent / 100;
  return s;
}

static weir__settings with_expandable(weir__settings s, bool expandable) {
  s.expandable_segments = expandable;
  return s;
}

static weir__settings with_moving(weir__settings s) {
  s.moving_pages = s.expandable_segments = true;
  return s;
}

static const uint16_t splits[] = {0, 64, 128, 256, 512, 1024, 2048};
static const uint8_t divisions[] = {0, 2, 3, 4, 5}; /* log2 + 1: none, 2, 4, 8, 16 */

static void add_grid(search *s) {
  static const uint16_t segments[] = {20, 32, 64, 128}, pages[] = {12, 20, 32, 64, 128, 256};
  static const uint16_t roundings[] = {128, 1024};
  static const uint8_t from[] = {1, 4, 6, 8};           /* 2, 16, 64 and 256 MiB */
  static const uint8_t thresholds[] = {40, 60, 80, 90}; /* percent */
  const weir__settings expandable = with_expandable(s->base, true);
  add(s, s->base);
  for (size_t d = 0; d < WEIR_COUNT_OF(divisions); d++) {
    weir__settings fixed = with_divisions(s->base, divisions[d], 0);
    add(s, with_moving(fixed));
    for (size_t i = 0; i < WEIR_COUNT_OF(pages); i++)
      add(s, with_segment(with_divisions(expandable, divisions[d], 0), pages[i]));
    for (size_t i = 0; i < WEIR_COUNT_OF(splits); i++)
      for (size_t k = 0; k < WEIR_COUNT_OF(segments); k++)
        add(s, with_segment(with_split(fixed, splits[i]), segments[k]));
    for (size_t i = 1; i < WEIR_COUNT_OF(splits) && d % 3 == 0; i++)
      for (size_t k = 0; k < WEIR_COUNT_OF(roundings); k++)
        add(s, with_rounding(with_split(fixed, splits[i]), roundings[k]));
  }
  for (size_t i = 0; i < WEIR_COUNT_OF(from); i++)
    for (unsigned log_plus_one = 3; log_plus_one <= 4; log_plus_one++) {
      add(s, with_divisions(s->base, log_plus_one, from[i]));
      add(s, with_divisions(expandable, log_plus_one, from[i]));
    }
  for (size_t i = 0; i < WEIR_COUNT_OF(thresholds) && s->result->is_limited; i++)
    for (size_t d = 0; d < WEIR_COUNT_OF(divisions); d += 3)
      for (size_t k = 0; k < WEIR_COUNT_OF(splits); k += 3) {
        weir__settings fixed = with_threshold(with_divisions(s->base, divisions[d], 0), thresholds[i]);
        add(s, with_split(fixed, splits[k]));
        add(s, with_split(with_segment(fixed, 64), splits[k]));
      }
}

/* One key at a time, a step in either direction. */
static void add_neighbours(search *s, const weir__settings *of) {
  uint64_t segment = of->large_segment_size / MIB;
  add(s, with_segment(*of, segment * 2));
  add(s, with_segment(*of, segment * 3 / 4 / 2 * 2));
  add(s, with_segment(*of, segment / 2 / 2 * 2));
  if (of->max_split_size != UINT64_MAX) {
    uint64_t split = of->max_split_size / MIB;
    add(s, with_split(*of, 0));
    add(s, with_split(*of, split * 3 / 2));
    add(s, with_split(*of, split * 3 / 4));
    add(s, with_rounding(*of, split));
    add(s, with_rounding(*of, split / 4));
  }
  if (of->garbage_collection_threshold > 0) {
    int percent = (int)(100 * of->garbage_collection_threshold + 0.5);
    add(s, with_threshold(*of, 0));
    add(s, with_threshold(*of, percent > 5 ? percent - 5 : percent));
    add(s, with_threshold(*of, percent < 95 ? percent + 5 : percent));
  } else if (s->result->is_limited && !of->expandable_segments)
    add(s, with_threshold(*of, 70));
  if (has_divisions(of)) {
    unsigned log_plus_one = of->roundup_divisions[WEIR__ROUNDUP_INTERVALS - 1];
    int from = 0;
    while (of->roundup_divisions[from] < 2)
      from++;
    add(s, with_divisions(*of, 0, 0));
    add(s, with_divisions(*of, log_plus_one + 1, from));
    add(s, with_divisions(*of, log_plus_one > 2 ? log_plus_one - 1 : 2, from));
    add(s, with_divisions(*of, log_plus_one, from + 2 < WEIR__ROUNDUP_INTERVALS ? from + 2 : from));
  } else
    add(s, with_divisions(*of, 6, 0));
}

/* ---- Evaluating ---- */

typedef struct batch {
  const search *s;
  size_t first; /* of the candidates */
} batch;

/* The recorded settings, or a candidate's. If a recording began late, what was there before is allocated anew in every
 * run, so that runs can be compared. */
static const weir__settings *settings_for(const search *s, size_t candidate, const weir__replayer *replayer) {
  if (candidate)
    return &s->result->candidates[candidate].settings;
  return weir__replayer_start(replayer)->segment_count ? weir__replayer_settings(replayer) : NULL;
}

static void predict(void *context, size_t index, void *result) {
  const batch *b = context;
  const weir__tune_options *o = b->s->options;
  size_t candidate = b->first + index / o->history_count;
  const weir__replayer *replayer = o->histories[index % o->history_count];
  const weir__settings *settings = settings_for(b->s, candidate, replayer);
  weir__prediction *prediction = result;
  weir__capacity capacity;
  prediction->status = weir__replayer_capacity_of(replayer, settings, o->memory, o->fraction, &capacity);
  if (!prediction->status)
    weir__predict(replayer, settings, &capacity, o->costs, prediction);
}

static weir__tune_score score_of(const weir__prediction *of, size_t count) {
#define MORE(a, b) ((a) > (b) ? (a) : (b))
  weir__tune_score score = {0};
  for (size_t i = 0; i < count; i++) {
    const weir__prediction_busy *busy = &of[i].busy; /* of a range, the worse end counts */
    uint64_t peak = MORE(of[i].peak_reserved, busy->peak_reserved), calls = weir__prediction_calls(&of[i]);
    score.failures += MORE(of[i].failures, busy->failures);
    score.retries += MORE(of[i].retries, busy->retries);
    score.total += peak;
    score.peak = MORE(score.peak, peak);
    score.calls = MORE(score.calls, MORE(calls, busy->calls));
    score.cost = MORE(score.cost, MORE(of[i].cost, busy->cost));
  }
#undef MORE
  return score;
}

/* All candidates from `first` on. */
static weir_status predict_all(search *s, size_t first) {
  size_t histories = s->options->history_count, count = (s->result->candidate_count - first) * histories;
  if (!count)
    return WEIR_OK;
  weir__prediction *predictions = calloc(count, sizeof *predictions);
  if (!predictions)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu predictions", count);
  batch b = {s, first};
  weir_status status = WEIR_OK;
  weir__parallel_run(&s->options->parallel, count, predict, &b, predictions, sizeof *predictions);
  for (size_t i = 0; i < count && !status; i++)
    if (predictions[i].status)
      status = weir__fail(predictions[i].status, "a replay failed: %s", weir_status_string(predictions[i].status));
  for (size_t i = first; i < s->result->candidate_count && !status; i++) {
    weir__tune_candidate *c = &s->result->candidates[i];
    c->of = calloc(histories, sizeof *c->of);
    if (!c->of) {
      status = weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu predictions", count);
      break;
    }
    memcpy(c->of, predictions + (i - first) * histories, histories * sizeof *c->of);
    c->score = score_of(c->of, histories);
  }
  free(predictions);
  return status;
}

/* ---- Choosing ---- */

/* The order in which candidates are listed. */
static bool comes_before(const weir__tune_candidate *a, const weir__tune_candidate *b) {
  if (a->score.peak != b->score.peak)
    return a->score.peak < b->score.peak;
  if (a->score.cost != b->score.cost)
    return a->score.cost < b->score.cost;
  if (a->score.total != b->score.total)
    return a->score.total < b->score.total;
  return a->keys != b->keys ? a->keys < b->keys : a < b;
}

static int compare_candidates(const void *left, const void *right, void *context) {
  const weir__tune_candidate *candidates = context;
  size_t a = *(const size_t *)left, b = *(const size_t *)right;
  return a == b ? 0 : comes_before(&candidates[a], &candidates[b]) ? -1 : 1;
}

bool weir__tune_beats(const weir__tune_candidate *a, const weir__tune_candidate *b) {
  const weir__tune_score *x = &a->score, *y = &b->score;
  if (x->failures != y->failures)
    return x->failures < y->failures;
  return x->peak <= y->peak && x->cost <= y->cost && x->total <= y->total && a->keys <= b->keys &&
         (x->peak < y->peak || x->cost < y->cost || x->total < y->total || a->keys < b->keys);
}

/* A candidate that beats another is listed before it, so comparing with the front is enough. */
static bool is_beaten(const weir__tune_candidate *candidates, size_t candidate, const size_t *front, size_t count) {
  const weir__tune_candidate *c = &candidates[candidate];
  for (size_t i = 0; i < count; i++) {
    const weir__tune_candidate *other = &candidates[front[i]];
    bool is_equal = other->score.peak == c->score.peak && other->score.cost == c->score.cost &&
                    other->score.total == c->score.total && other->keys == c->keys;
    if (is_equal || weir__tune_beats(other, c))
      return true;
  }
  return false;
}

/* The least memory is best, but one percent of it is not worth a higher cost or more keys. Each step keeps the
 * candidates that are close to the best of the rest; of those that cost about the same, the simplest wins. */
static size_t find_best(const weir__tune_candidate *c, const size_t *front, size_t count, double negligible) {
  uint64_t peak = UINT64_MAX, total = UINT64_MAX;
  double cost = 1e300;
  size_t best = SIZE_MAX;
#define CLOSE(value, least) ((double)(value) <= 1.01 * (double)(least))
  for (size_t i = 0; i < count; i++)
    if (c[front[i]].score.peak < peak)
      peak = c[front[i]].score.peak;
  for (size_t i = 0; i < count; i++)
    if (CLOSE(c[front[i]].score.peak, peak) && c[front[i]].score.total < total)
      total = c[front[i]].score.total;
  for (size_t i = 0; i < count; i++)
    if (CLOSE(c[front[i]].score.peak, peak) && CLOSE(c[front[i]].score.total, total) && c[front[i]].score.cost < cost)
      cost = c[front[i]].score.cost;
  double most_cost = 1.1 * cost > cost + negligible ? 1.1 * cost : cost + negligible;
  for (size_t i = 0; i < count; i++) { /* in order: of those with equally many keys the first is the best */
    size_t f = front[i];
    if (CLOSE(c[f].score.peak, peak) && CLOSE(c[f].score.total, total) && c[f].score.cost <= most_cost &&
        (best == SIZE_MAX || c[f].keys < c[best].keys))
      best = f;
  }
#undef CLOSE
  return best;
}

size_t weir__tune_choose(const weir__tune_candidate *candidates, size_t count, bool skip_first, double negligible,
                         size_t *front, size_t *best) {
  uint64_t failures = UINT64_MAX;
  size_t eligible = 0, front_count = 0;
  for (size_t i = skip_first; i < count; i++)
    if (candidates[i].score.failures < failures)
      failures = candidates[i].score.failures;
  for (size_t i = skip_first; i < count; i++)
    if (candidates[i].score.failures == failures)
      front[eligible++] = i;
  weir__sort(front, eligible, sizeof *front, compare_candidates, (void *)candidates);
  for (size_t i = 0; i < eligible; i++)
    if (!is_beaten(candidates, front[i], front, front_count))
      front[front_count++] = front[i];
  *best = find_best(candidates, front, front_count, negligible);
  return front_count;
}

/* A difference in driver cost that does not matter, in ns: half a percent of the shortest job, and at least 50 ms,
 * since most calls are made while the cache fills, and a recording is seldom all of a job. */
static double negligible_cost(const weir__tune_options *o) {
  const double least = 50e6;
  double seconds = 1e300;
  for (size_t i = 0; i < o->history_count; i++) {
    double of = weir__replayer_seconds(o->histories[i]);
    seconds = of < seconds ? of : seconds;
  }
  return 0.005 * seconds * 1e9 > least ? 0.005 * seconds * 1e9 : least;
}

/* Whether a candidate reserves more than the recorded settings, and avoids no failure. */
static bool costs_memory(const weir__tune_result *r, const weir__tune_candidate *c) {
  const weir__tune_score *recorded = &r->candidates[0].score;
  return c->score.failures >= recorded->failures && c->score.peak > recorded->peak;
}

/* The front of the candidates with moving_pages, or without, and its best candidate; 0 if there is none. The recorded
 * settings can only be chosen if they are the same for all histories, and the version of PyTorch knows them. */
static weir_status choose_with(const search *s, bool moving, double negligible, size_t *front, size_t *front_count,
                               size_t *best) {
  const weir__tune_result *r = s->result;
  weir__tune_candidate *some = malloc(r->candidate_count * sizeof *some);
  size_t *number = malloc(r->candidate_count * sizeof *number), count = 0;
  bool has_recorded = !r->is_mixed && is_known(s, &r->candidates[0].settings), ok = some && number;
  for (size_t i = !has_recorded; ok && i < r->candidate_count; i++)
    if (r->candidates[i].settings.moving_pages == moving && !costs_memory(r, &r->candidates[i])) {
      some[count] = r->candidates[i];
      number[count++] = i;
    }
  *best = *front_count = 0;
  if (ok && count) {
    *front_count = weir__tune_choose(some, count, false, negligible, front, best);
    *best = number[*best];
    for (size_t i = 0; i < *front_count; i++)
      front[i] = number[front[i]];
  }
  free(some);
  free(number);
  return ok ? WEIR_OK
            : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu candidates", r->candidate_count);
}

static weir_status choose(const search *s) {
  weir__tune_result *r = s->result;
  size_t *front = realloc(r->front, 2 * r->candidate_count * sizeof *front);
  if (!front)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for %zu candidates", r->candidate_count);
  r->front = front;
  r->front_moving = front + r->candidate_count;
  const double negligible = negligible_cost(s->options);
  weir_status status = choose_with(s, false, negligible, r->front, &r->front_count, &r->best);
  if (!status)
    status = choose_with(s, true, negligible, r->front_moving, &r->front_moving_count, &r->moving);
  const weir__tune_score *plain = &r->candidates[r->best].score, *moving = &r->candidates[r->moving].score;
  if (moving->failures > plain->failures || (moving->failures == plain->failures && moving->peak >= plain->peak))
    r->moving = 0;
  return status;
}

/* ---- The least memory ---- */

static void fit(void *context, size_t index, void *result) {
  const search *s = context;
  const weir__tune_options *o = s->options;
  const weir__replayer *replayer = o->histories[index % o->history_count];
  const size_t candidates[] = {0, s->result->best, s->result->moving};
  const weir__settings *settings = settings_for(s, candidates[index / o->history_count], replayer);
  weir__capacity capacity;
  weir__fit found;
  if (!weir__replayer_capacity_of(replayer, settings, o->memory, o->fraction, &capacity) &&
      !weir__predict_fit(replayer, settings, &capacity, &found))
    *(weir__fit *)result = found;
}

static weir__fit most_of(const weir__fit *fits, size_t count) {
  weir__fit most = {0};
  for (size_t i = 0; i < count; i++) {
    if (!fits[i].bytes)
      return fits[i];
    most.bytes = fits[i].bytes > most.bytes ? fits[i].bytes : most.bytes;
    most.least = fits[i].least > most.least ? fits[i].least : most.least;
    most.retries += fits[i].retries;
  }
  return most;
}

static weir_status find_fit(search *s) {
  size_t count = s->options->history_count;
  weir__fit *fits = calloc(3 * count, sizeof *fits);
  if (!fits)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  weir__parallel_run(&s->options->parallel, (s->result->moving ? 3 : 2) * count, fit, s, fits, sizeof *fits);
  s->result->fit_recorded = most_of(fits, count);
  s->result->fit_best = most_of(fits + count, count);
  if (s->result->moving)
    s->result->fit_moving = most_of(fits + 2 * count, count);
  free(fits);
  return WEIR_OK;
}

/* ---- The whole ---- */

/* Of the searched keys, those of `from`. */
static void copy_searched(weir__settings *to, const weir__settings *from) {
  to->max_split_size = from->max_split_size;
  to->max_non_split_rounding = from->max_non_split_rounding;
  to->max_non_split_rounding_set = from->max_non_split_rounding_set;
  to->large_segment_size = from->large_segment_size;
  to->garbage_collection_threshold = from->garbage_collection_threshold;
  to->expandable_segments = from->expandable_segments;
  to->moving_pages = from->moving_pages;
  memcpy(to->roundup_divisions, from->roundup_divisions, sizeof to->roundup_divisions);
}

/* Finds out whether there is a limit, which garbage collection needs, and whether the recorded settings differ. */
static void look(search *s) {
  const weir__tune_options *o = s->options;
  weir__tune_result *r = s->result;
  const weir__settings *first = weir__replayer_settings(o->histories[0]);
  for (size_t i = 0; i < o->history_count; i++) {
    const weir__settings *recorded = weir__replayer_settings(o->histories[i]);
    weir__capacity capacity;
    r->is_mixed |= !weir__settings_equal(recorded, first);
    r->is_limited |= !weir__replayer_capacity_of(o->histories[i], &s->base, o->memory, o->fraction, &capacity) &&
                     capacity.limit != UINT64_MAX;
  }
}

static weir_status search_all(search *s) {
  weir__tune_result *r = s->result;
  look(s);
  add(s, s->base); /* a placeholder: nothing is compared with the first */
  if (!s->status) {
    copy_searched(&r->candidates[0].settings, weir__replayer_settings(s->options->histories[0]));
    r->candidates[0].keys = count_keys(&r->candidates[0].settings);
  }
  r->expandable = r->candidate_count;
  add(s, with_expandable(s->base, true));
  if (r->expandable == r->candidate_count)
    r->expandable = 0;
  add_grid(s);
  size_t done = 0;
  for (int round = 0; round <= ROUNDS && !s->status && done < r->candidate_count; round++) {
    s->status = predict_all(s, done);
    done = r->candidate_count;
    if (!s->status)
      s->status = choose(s);
    double cost = 1e300; /* parents: by peak, each cheaper than the one before */
    for (size_t i = 0, parents = 0; i < r->front_count && parents < MAX_PARENTS && round < ROUNDS && !s->status; i++) {
      const weir__tune_candidate *c = &r->candidates[r->front[i]];
      if (c->score.cost >= cost)
        continue;
      weir__settings parent = c->settings; /* a copy, since the list may move */
      cost = c->score.cost;
      parents++;
      add_neighbours(s, &parent);
    }
  }
  if (s->status)
    return s->status;
  return s->options->fit ? find_fit(s) : WEIR_OK;
}

weir_status weir__tune(const weir__tune_options *options, weir__tune_result *result) {
  *result = (weir__tune_result){0};
  search s = {.options = options, .result = result};
  weir__settings plain;
  weir__settings_default(&plain);
  s.base = options->base ? *options->base : plain;
  s.base.older = NULL;
  copy_searched(&s.base, &plain);
  if (!is_known(&s, &s.base))
    s.base = plain;
  weir_status status = search_all(&s);
  if (status)
    weir__tune_clear(result);
  return status;
}

void weir__tune_clear(weir__tune_result *result) {
  for (size_t i = 0; i < result->candidate_count; i++)
    free(result->candidates[i].of);
  free(result->candidates);
  free(result->front);
  *result = (weir__tune_result){0};
}

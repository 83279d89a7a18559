#include "pattern/steps.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"
#include "base/hash_map.h"
#include "base/text.h"

/* What the search works on: the allocations of the history, by number, and the bytes in use before each. Those that
 * stay for a quarter of the history or more are left out: weights and leaks are not part of the pattern of a step. */
typedef struct finder {
  const weir__sequence *of;
  uint32_t *items; /* numbers of blocks, by `begin` */
  size_t count;
  uint64_t *level;  /* bytes in use before allocation k */
  uint32_t *before; /* allocations before entry i; entry_count + 1 numbers */
  uint32_t *begin;  /* the boundaries found: entries */
  size_t begin_count, begin_room;
} finder;

static uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t z = (a ^ (b + 0x9e3779b97f4a7c15 + (a << 6))) * 0xbf58476d1ce4e5b9;
  return z ^ z >> 29;
}

static int by_number(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

static const weir__life *item(const finder *f, size_t k) { return &f->of->blocks[f->items[k]]; }

static bool prepare(finder *f) {
  const weir__sequence *l = f->of;
  f->items = malloc((l->block_count + 1) * sizeof *f->items);
  for (size_t i = 0; i < l->block_count && f->items; i++) {
    const weir__life *b = &l->blocks[i];
    if (!b->is_before && b->freed != WEIR__LIFE_OPEN && b->freed - b->begin <= l->entry_count / 4)
      f->items[f->count++] = (uint32_t)i;
  }
  f->level = malloc((f->count + 1) * sizeof *f->level);
  f->before = malloc((l->entry_count + 1) * sizeof *f->before);
  uint64_t *freed = calloc(l->entry_count + 1, sizeof *freed), used = 0;
  if (!f->items || !f->level || !f->before || !freed) {
    free(freed);
    return false;
  }
  for (size_t i = 0; i < l->block_count; i++) {
    const weir__life *b = &l->blocks[i];
    used += b->is_before ? b->size : 0;
    if (b->freed != WEIR__LIFE_OPEN)
      freed[b->freed] += b->size;
  }
  size_t k = 0, block = 0;
  while (block < l->block_count && l->blocks[block].is_before)
    block++;
  for (size_t i = 0; i <= l->entry_count; i++) {
    f->before[i] = (uint32_t)k;
    if (k < f->count && item(f, k)->begin == i)
      f->level[k++] = used;
    if (block < l->block_count && l->blocks[block].begin == i)
      used += l->blocks[block++].size;
    used -= freed[i];
  }
  f->level[f->count] = used;
  free(freed);
  return true;
}

/* The bytes in use before an entry: those before the next allocation, which is the same unless it frees something. */
static uint64_t level_at(const finder *f, uint32_t entry) { return f->level[f->before[entry]]; }

static bool add_boundary(finder *f, uint32_t entry) {
  if (f->begin_count && entry <= f->begin[f->begin_count - 1])
    return true;
  if (!WEIR__RESERVE(f->begin, f->begin_room, f->begin_count + 1))
    return false;
  f->begin[f->begin_count++] = entry;
  return true;
}

/* ---- Marks: annotated ranges, phases ---- */

/* Something that is marked again and again: the start or the end of a range, or the beginning of a phase. Texts that
 * differ in digits only are one kind. */
typedef struct kind {
  uint64_t key; /* + 1 */
  const char *text;
  size_t count, same; /* marks, and those with exactly the same text */
  double level;       /* the sum of bytes in use */
  int rank;           /* how likely it is a step by its name; more is better */
} kind;

typedef struct kinds {
  weir__hash_map by_key;
  uint64_t *keys; /* of each mark */
} kinds;

static uint64_t name_hash(const char *text, bool is_end) {
  uint64_t hash = is_end;
  for (bool was_digit = false; *text; text++) {
    bool is_digit = isdigit((unsigned char)*text) != 0;
    if (!is_digit || !was_digit)
      hash = mix(hash, is_digit ? '0' : (uint64_t)(unsigned char)*text);
    was_digit = is_digit;
  }
  return (hash & (UINT64_MAX >> 1)) + 1;
}

static int name_rank(const char *text) {
  static const char *const names[] = {"ProfilerStep", "Optimizer.step", "train_step", "training_step", "iteration"};
  for (size_t i = 0; i < WEIR_COUNT_OF(names); i++)
    if (strstr(text, names[i]))
      return 3;
  return strstr(text, "step") || strstr(text, "Step") || strstr(text, "iter") || strstr(text, "batch") ? 2 : 1;
}

static bool count_mark(const finder *f, kinds *all, const weir__step_marks *marks, size_t i) {
  const weir__step_mark *mark = &marks->items[i];
  all->keys[i] = name_hash(mark->text, mark->is_end);
  kind *k = weir__hash_map_put(&all->by_key, sizeof *k, all->keys[i]);
  if (!k)
    return false;
  if (!k->count) {
    k->text = mark->text;
    k->rank = name_rank(mark->text);
  }
  k->count++;
  k->same += strcmp(k->text, mark->text) == 0;
  k->level += (double)level_at(f, mark->entry);
  return true;
}

/* The share of gaps between boundaries, in allocations, that are within a factor of the median: of their number, or of
 * the allocations in them, whichever is less. */
static double regularity(const finder *f, const uint32_t *begin, size_t count, double factor) {
  if (count < 3)
    return 0;
  uint64_t *gaps = malloc((count - 1) * sizeof *gaps);
  if (!gaps)
    return 0;
  for (size_t i = 0; i + 1 < count; i++)
    gaps[i] = f->before[begin[i + 1]] - f->before[begin[i]];
  qsort(gaps, count - 1, sizeof *gaps, by_number);
  const size_t half = (count - 1) / 2;
  double median = (double)gaps[half];
  double near = 0, inside = 0, all = 0;
  for (size_t i = 0; i + 1 < count; i++) {
    bool is_near = (double)gaps[i] <= median * factor && (double)gaps[i] * factor >= median;
    near += is_near;
    inside += is_near ? (double)gaps[i] : 0;
    all += (double)gaps[i];
  }
  free(gaps);
  near /= (double)(count - 1);
  return median > 0 ? (inside / all < near ? inside / all : near) : 0;
}

/* A boundary at each mark of one kind, or rather at the next allocation: what is freed before it belongs to the step
 * that has ended. */
static bool take_kind(finder *f, const weir__step_marks *marks, const uint64_t *keys, uint64_t key) {
  f->begin_count = 0;
  for (size_t i = 0; i < marks->count; i++) {
    uint32_t next = f->before[marks->items[i].entry];
    bool is_exact = marks->items[i].closes || next >= f->count;
    uint32_t entry = is_exact ? marks->items[i].entry : item(f, next)->begin;
    if (keys[i] == key && !add_boundary(f, entry))
      return false;
  }
  return true;
}

/* Chooses the kind of mark that is a step by its name, and then, of all kinds that are as frequent, the one at which
 * least is in use. Without such a name, the most regular one of those with the lowest levels. */
static bool choose_kind(finder *f, const weir__step_marks *marks, const kinds *all, weir__steps *steps) {
  const kind *best = NULL, *named = NULL;
  size_t at = 0;
  for (const kind *k; (k = weir__hash_map_next(&all->by_key, sizeof *k, &at));)
    if (k->count >= WEIR__STEPS_MIN + 1 && k->rank > 1 && !(marks->needs_numbers && k->same == k->count) &&
        (!named || k->rank > named->rank ||
         (k->rank == named->rank && (k->count < named->count || (k->count == named->count && k->key < named->key)))))
      named = k;
  at = 0;
  for (const kind *k; (k = weir__hash_map_next(&all->by_key, sizeof *k, &at));) {
    if (k->count < WEIR__STEPS_MIN + 1 || (marks->needs_numbers && k->same == k->count))
      continue;
    if (named && (k->count + 1 < named->count || k->count > named->count + 1))
      continue;
    double mean = k->level / (double)k->count, best_mean = best ? best->level / (double)best->count : 0;
    if (!best || mean < best_mean || (mean <= best_mean && k->key < best->key))
      best = k;
  }
  if (!best)
    return true;
  if (!take_kind(f, marks, all->keys, best->key))
    return false;
  double regular = regularity(f, f->begin, f->begin_count, 2);
  if (f->begin_count < WEIR__STEPS_MIN + 1 || (!named && regular < 0.5)) {
    f->begin_count = 0;
    return true;
  }
  weir__escape_text(best->text, strlen(best->text), steps->name, sizeof steps->name);
  steps->confidence = named ? 0.9 + 0.1 * regular : 0.5 + 0.5 * regular;
  return true;
}

static bool find_marked(finder *f, weir__steps *steps) {
  bool ok = true;
  for (size_t i = 0; i < f->of->mark_kinds && ok && !f->begin_count; i++) {
    const weir__step_marks *marks = &f->of->marks[i];
    kinds all = {.keys = malloc((marks->count + 1) * sizeof *all.keys)};
    ok = all.keys != NULL;
    for (size_t k = 0; k < marks->count && ok; k++)
      ok = count_mark(f, &all, marks, k);
    ok = ok && choose_kind(f, marks, &all, steps);
    if (f->begin_count)
      steps->source = marks->source;
    free(all.keys);
    weir__hash_map_clear(&all.by_key);
  }
  return ok;
}

/* ---- The period of the sequence of allocations ---- */

enum { GRAM = 4, CANDIDATES = 48 };

/* What an allocation looks like: with its size, or, since sizes change with the shape of a batch, with the order of
 * magnitude of its life in allocations. */
typedef enum likeness { BY_LIFE, BY_SIZE, BY_BOTH } likeness;

static void make_tokens(const finder *f, likeness by, uint32_t *tokens) {
  for (size_t k = 0; k < f->count; k++) {
    const weir__life *b = item(f, k);
    uint64_t magnitude = 0;
    for (uint64_t allocations = f->before[b->freed] - k + 1; allocations; allocations >>= 2)
      magnitude++;
    uint64_t hash = mix(b->stack, b->stream);
    hash = by == BY_SIZE ? hash : mix(hash, magnitude);
    tokens[k] = (uint32_t)(by == BY_LIFE ? hash : mix(hash, b->size));
  }
}

/* The share of allocations that look like the one a lag later. */
static double match(const uint32_t *tokens, size_t count, size_t lag) {
  size_t same = 0, stride = 1 + count / 2000000, seen = 0;
  for (size_t k = 0; k + lag < count; k += stride, seen++)
    same += tokens[k] == tokens[k + lag];
  return seen ? (double)same / (double)seen : 0;
}

typedef struct gram {
  uint64_t key;
  uint32_t last; /* + 1 */
  uint32_t count, good;
  double level;
} gram;

static uint64_t gram_at(const uint32_t *tokens, size_t k) {
  uint64_t key = 0;
  for (size_t i = 0; i < GRAM; i++)
    key = mix(key, tokens[k + i]);
  return key ? key : 1;
}

typedef struct lag {
  size_t lag, count;
} lag;

static int by_lag(const void *a, const void *b) {
  size_t x = ((const lag *)a)->lag, y = ((const lag *)b)->lag;
  return (x > y) - (x < y);
}

/* The most frequent distances between equal runs of GRAM allocations, in ascending order. */
static size_t find_lags(const uint32_t *tokens, size_t count, lag lags[CANDIDATES], bool *ok) {
  weir__hash_map grams = {0};
  uint32_t *distances = calloc(count + 1, sizeof *distances);
  size_t found = 0;
  *ok = distances != NULL;
  for (size_t k = 0; k + GRAM <= count && *ok; k++) {
    gram *g = weir__hash_map_put(&grams, sizeof *g, gram_at(tokens, k));
    if (!g) {
      *ok = false;
      break;
    }
    if (g->last)
      distances[k + 1 - g->last]++;
    g->last = (uint32_t)k + 1;
  }
  for (size_t d = 2; *ok && d <= count / WEIR__STEPS_MIN; d++) {
    if (distances[d] < 3)
      continue;
    size_t at = found < CANDIDATES ? found++ : found;
    if (at == CANDIDATES && distances[d] <= lags[--at].count)
      continue;
    for (; at > 0 && lags[at - 1].count < distances[d]; at--)
      lags[at] = lags[at - 1];
    lags[at] = (lag){d, distances[d]};
  }
  qsort(lags, found, sizeof *lags, by_lag);
  free(distances);
  weir__hash_map_clear(&grams);
  return found;
}

/* The run of allocations that comes once in each period from allocation `from` on, where least is in use. Its places
 * become boundaries, also those before `from` that have the same distance. */
static bool find_anchor(finder *f, const uint32_t *tokens, size_t from, size_t period, double *regular) {
  weir__hash_map grams = {0};
  bool ok = true;
  const size_t periods = (f->count - from) / period;
  for (size_t k = from; k + GRAM <= f->count && ok; k++) {
    gram *g = weir__hash_map_put(&grams, sizeof *g, gram_at(tokens, k));
    ok = g != NULL;
    if (!g)
      break;
    size_t gap = g->last ? k + 1 - g->last : 0;
    g->good += gap && 4 * gap >= 3 * period && 4 * gap <= 5 * period;
    g->last = (uint32_t)k + 1;
    g->count++;
    g->level += (double)f->level[k];
  }
  const gram *best = NULL;
  size_t at = 0;
  for (const gram *g; ok && (g = weir__hash_map_next(&grams, sizeof *g, &at));) {
    if (g->good + 1 < 3 || 10 * (size_t)g->good < 7 * (periods - 1) || 10 * (g->count - 1) > 12 * g->good + 10)
      continue;
    double mean = g->level / g->count, least = best ? best->level / best->count : 0;
    if (!best || mean < least || (mean <= least && g->key < best->key))
      best = g;
  }
  f->begin_count = 0;
  *regular = 0;
  if (best) {
    const uint64_t key = best->key;
    *regular = (double)best->good / (double)(best->count - 1 > periods - 1 ? best->count - 1 : periods - 1);
    for (size_t k = from, first = SIZE_MAX; k-- > 0;) {
      if (first != SIZE_MAX && 4 * (first - k) > 5 * period)
        break;
      if (k + GRAM <= f->count && gram_at(tokens, k) == key && (first == SIZE_MAX || 4 * (first - k) >= 3 * period))
        from = first = k;
      else if (first == SIZE_MAX && from - k > 2 * period)
        break;
    }
    for (size_t k = from; k + GRAM <= f->count && ok; k++)
      if (gram_at(tokens, k) == key)
        ok = add_boundary(f, item(f, k)->begin);
  }
  weir__hash_map_clear(&grams);
  return ok;
}

/* Longer lags explain more: layers repeat within a step. A longer one is better if it leaves much less unexplained;
 * one that occurs a few times only, such as an epoch, is not if a shorter one is good enough. */
static size_t choose_lag(const uint32_t *tokens, size_t count, double *matched, bool *ok) {
  lag lags[CANDIDATES];
  size_t found = find_lags(tokens, count, lags, ok), best = 0;
  *matched = 0;
  for (size_t i = 0; i < found && *ok; i++) {
    double m = match(tokens, count, lags[i].lag);
    bool is_often = count / lags[i].lag >= (*matched < 0.6 ? 0 : *matched < 0.75 ? 5 : *matched < 0.8 ? 10 : 30);
    if (!best || (is_often && 1 - m < 0.6 * (1 - *matched))) {
      best = lags[i].lag;
      *matched = m;
    }
  }
  return best;
}

/* Looks for the period from allocation `from` on, and keeps what was found before unless this is better. */
static bool try_period(finder *f, const uint32_t *tokens, size_t from, weir__steps *steps) {
  double matched, regular;
  bool ok = true;
  size_t lag = choose_lag(tokens + from, f->count - from, &matched, &ok);
  if (!ok || !lag || matched < (from ? 0.85 : 0.5) || (from && (f->count - from) / lag < 12))
    return ok;
  uint32_t *kept = f->begin;
  size_t kept_count = f->begin_count, kept_room = f->begin_room;
  f->begin = NULL;
  f->begin_count = f->begin_room = 0;
  ok = find_anchor(f, tokens, from, lag, &regular);
  double confidence = (from ? 0.9 : 1) * (matched + regular) / 2;
  /* Batches of the same shape may come again after several steps: then fewer steps match better. */
  if (f->begin_count > WEIR__STEPS_MIN && regular >= 0.8 && confidence > steps->confidence + 0.02 &&
      2 * f->begin_count > kept_count) {
    steps->confidence = confidence;
    free(kept);
  } else {
    free(f->begin);
    f->begin = kept;
    f->begin_count = kept_count;
    f->begin_room = kept_room;
  }
  return ok;
}

/* The setup of a job may be longer than its steps, so the end of the history is tried alone if the whole has no clear
 * period. */
static bool find_period(finder *f, weir__steps *steps) {
  uint32_t *tokens = malloc((f->count + 1) * sizeof *tokens);
  bool ok = tokens != NULL;
  for (int part = 1; part <= 8 && ok && steps->confidence < 0.75; part *= 2)
    for (likeness by = BY_LIFE; by <= BY_SIZE && ok; by++) {
      make_tokens(f, by, tokens);
      ok = try_period(f, tokens, f->count - f->count / (size_t)part, steps);
    }
  free(tokens);
  return ok;
}

/* ---- Allocations that recur ---- */

/* Of all allocations that look the same, those without a long pause up to the end. */
typedef struct recurring {
  uint64_t key;
  uint32_t first, last; /* + 1 */
  uint32_t count;
  double gaps, level;
} recurring;

/* A kind of allocation that recurs to the end, however much lies in between: no gap is far from the mean. Of several,
 * the one with the lowest level is taken. */
static bool find_recurring(finder *f, weir__steps *steps) {
  weir__hash_map kinds = {0};
  uint32_t *tokens = malloc((f->count + 1) * sizeof *tokens);
  bool ok = tokens != NULL;
  if (ok)
    make_tokens(f, BY_BOTH, tokens);
  for (size_t k = 0; k < f->count && ok; k++) {
    recurring *r = weir__hash_map_put(&kinds, sizeof *r, tokens[k] + 1ull);
    ok = r != NULL;
    if (!r)
      break;
    double gap = r->count ? (double)(k + 1 - r->last) : 0;
    if (r->count >= 2 && gap > 4 * r->gaps / (r->count - 1)) /* what came before the pause was something else */
      *r = (recurring){.key = r->key};
    r->first = r->count ? r->first : (uint32_t)k + 1;
    r->gaps += r->count ? gap : 0;
    r->last = (uint32_t)k + 1;
    r->count++;
    r->level += (double)f->level[k];
  }
  const recurring *best = NULL;
  size_t at = 0;
  for (const recurring *r; ok && (r = weir__hash_map_next(&kinds, sizeof *r, &at));) {
    double gap = r->count > 1 ? r->gaps / (r->count - 1) : 0;
    if (r->count < 20 || gap < 2 || 8 * (size_t)(r->last - r->first) < f->count ||
        (double)(f->count - r->last) > 2 * gap)
      continue;
    if (!best || r->level / r->count < best->level / best->count ||
        (r->level / r->count <= best->level / best->count && r->key < best->key))
      best = r;
  }
  uint32_t *begin = best ? malloc(best->count * sizeof *begin) : NULL;
  size_t count = 0;
  for (size_t k = begin ? best->first - 1 : f->count; k < f->count; k++)
    if (tokens[k] + 1ull == best->key)
      begin[count++] = item(f, k)->begin;
  double confidence = 0.8 * regularity(f, begin, count, 2);
  if (begin && confidence > steps->confidence && confidence > 0.7) {
    free(f->begin);
    f->begin = begin;
    f->begin_count = f->begin_room = count;
    steps->confidence = confidence;
    begin = NULL;
  }
  free(begin);
  free(tokens);
  weir__hash_map_clear(&kinds);
  return ok;
}

/* ---- Returns to the low-water mark ---- */

/* Boundaries at the lowest level between rises of at least `height` bytes. */
static bool find_valleys(finder *f, uint64_t height) {
  uint64_t low = UINT64_MAX, high = 0;
  size_t at = 0;
  bool falls = true;
  f->begin_count = 0;
  for (size_t k = 0; k < f->count; k++) {
    uint64_t level = f->level[k];
    if (falls) {
      if (level <= low) {
        low = level;
        at = k;
      }
      if (level >= low + height) {
        if (!add_boundary(f, item(f, at)->begin))
          return false;
        falls = false;
        high = level;
      }
    } else {
      high = level > high ? level : high;
      if (level + height <= high) {
        falls = true;
        low = level;
        at = k;
      }
    }
  }
  return !falls || low == UINT64_MAX || add_boundary(f, item(f, at)->begin);
}

/* Joins steps that are much shorter than the others with a neighbour: of two boundaries, the one with the lower level
 * stays. */
static void join_short(const finder *f, uint32_t *begin, size_t *count) {
  size_t n = *count, kept = 1;
  uint64_t *gaps = n > 2 ? malloc((n - 1) * sizeof *gaps) : NULL;
  if (!gaps)
    return;
  for (size_t i = 0; i + 1 < n; i++)
    gaps[i] = f->before[begin[i + 1]] - f->before[begin[i]];
  qsort(gaps, n - 1, sizeof *gaps, by_number);
  uint64_t least = gaps[(n - 1) / 2] * 2 / 5;
  free(gaps);
  for (size_t i = 1; i < n; i++) {
    bool is_short = f->before[begin[i]] - f->before[begin[kept - 1]] < least;
    if (!is_short)
      begin[kept++] = begin[i];
    else if (level_at(f, begin[i]) <= level_at(f, begin[kept - 1]))
      begin[kept - 1] = begin[i];
  }
  *count = kept;
}

static bool find_low_water(finder *f, weir__steps *steps) {
  uint64_t least = UINT64_MAX, most = 0;
  for (size_t k = f->count / 4; k < f->count; k++) {
    least = f->level[k] < least ? f->level[k] : least;
    most = f->level[k] > most ? f->level[k] : most;
  }
  if (f->count < 16 || most <= least)
    return true;
  uint32_t *kept = f->begin;
  size_t kept_count = f->begin_count, kept_room = f->begin_room;
  double best = kept_count > 8 ? steps->confidence : 0.7 * steps->confidence; /* few long steps may be several each */
  f->begin = NULL;
  f->begin_count = f->begin_room = 0;
  bool ok = true, is_found = false;
  for (uint64_t height = (most - least) / 2; height > (most - least) / 100 && ok; height -= (height + 2) / 3) {
    ok = find_valleys(f, height);
    join_short(f, f->begin, &f->begin_count);
    size_t n = f->begin_count;
    if (!ok || n <= WEIR__STEPS_MIN + 1 || f->count / n < 4)
      continue;
    double confidence = 0.85 * regularity(f, f->begin + 1, n - 1, 1.4); /* the first one may be the setup's */
    size_t rest = f->count - f->before[f->begin[n - 1]], all = f->before[f->begin[n - 1]] - f->before[f->begin[1]];
    if (rest * (n - 2) > 4 * all) /* the history ends with something else */
      continue;
    if (confidence <= best + 0.05)
      continue;
    uint32_t *swapped = f->begin;
    size_t swapped_room = f->begin_room;
    best = confidence;
    is_found = true;
    f->begin = kept;
    f->begin_room = kept_room;
    kept = swapped;
    kept_room = swapped_room;
    kept_count = n;
  }
  free(f->begin);
  f->begin = kept;
  f->begin_count = kept_count;
  f->begin_room = kept_room;
  steps->confidence = is_found ? best : steps->confidence;
  return ok;
}

/* ---- Warm-up ---- */

/* Memory that stays is allocated at the beginning, by the optimizer for instance. If a job leaks, some is allocated in
 * all steps, so only steps that are far above the later ones count. */
static bool find_warm_up(const weir__sequence *of, weir__steps *steps) {
  const size_t n = steps->count, most = n / 3;
  uint64_t *stays = calloc(2 * n + 2, sizeof *stays);
  if (!stays)
    return false;
  uint64_t *later = stays + n + 1;
  for (size_t i = 0; i < of->block_count; i++) {
    const weir__life *b = &of->blocks[i];
    int64_t step = b->is_before ? -1 : weir__steps_at(steps, b->begin);
    if (step >= 0 && (size_t)step < n && (b->freed == WEIR__LIFE_OPEN || b->freed >= steps->begin[n]))
      stays[step] += b->size;
  }
  size_t count = n > most + 1 ? n - most - 1 : 0; /* without the last, whose memory need not stay */
  memcpy(later, stays + most, count * sizeof *later);
  qsort(later, count, sizeof *later, by_number);
  uint64_t usual = count ? later[3 * count / 4] : 0;
  for (size_t k = 0; k < most; k++)
    if (stays[k] > 4 * usual)
      steps->warm_up = k + 1;
  free(stays);
  return true;
}

/* ---- All together ---- */

static weir_status no_memory(void) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the steps of a job");
}

weir_status weir__steps_find(const weir__sequence *of, weir__steps *steps) {
  finder f = {.of = of};
  weir__steps found = {0};
  bool ok = prepare(&f);
  if (ok && f.count)
    ok = find_marked(&f, &found);
  if (ok && !f.begin_count && f.count >= 16) {
    ok = find_period(&f, &found) && find_low_water(&f, &found) &&
         (found.confidence >= 0.75 || find_recurring(&f, &found));
    if (found.confidence < 0.5)
      f.begin_count = 0;
    found.source = f.begin_count ? WEIR__STEPS_INFERRED : WEIR__STEPS_NONE;
  }
  if (f.begin_count > WEIR__STEPS_MIN) {
    found.count = f.begin_count - 1;
    found.begin = f.begin;
    f.begin = NULL;
    ok = ok && find_warm_up(of, &found);
  } else
    found = (weir__steps){0};
  free(f.begin);
  free(f.items);
  free(f.level);
  free(f.before);
  if (!ok) {
    weir__steps_clear(&found);
    return no_memory();
  }
  *steps = found;
  return WEIR_OK;
}

weir_status weir__steps_windows(const weir__sequence *of, size_t count, weir__steps *steps) {
  weir__steps made = {.source = WEIR__STEPS_WINDOWS, .count = count, .begin = malloc((count + 1) * sizeof *made.begin)};
  size_t first = 0;
  if (!made.begin)
    return no_memory();
  while (first < of->block_count && of->blocks[first].is_before)
    first++;
  size_t allocations = of->block_count - first;
  for (size_t k = 0; k < count; k++)
    made.begin[k] = allocations ? of->blocks[first + k * allocations / count].begin : 0;
  made.begin[count] = of->entry_count;
  if (!find_warm_up(of, &made)) {
    weir__steps_clear(&made);
    return no_memory();
  }
  *steps = made;
  return WEIR_OK;
}

void weir__steps_clear(weir__steps *steps) {
  free(steps->begin);
  *steps = (weir__steps){0};
}

int64_t weir__steps_at(const weir__steps *steps, uint32_t entry) {
  if (!steps->count || entry < steps->begin[0])
    return -1;
  size_t low = 0, high = steps->count + 1; /* begin[low] <= entry < begin[high] */
  while (high - low > 1) {
    size_t middle = low + (high - low) / 2;
    if (steps->begin[middle] <= entry)
      low = middle;
    else
      high = middle;
  }
  return (int64_t)low;
}

const char *weir__steps_source_name(weir__steps_source source) {
  static const char *const names[] = {"none", "annotations", "phases", "inferred", "windows"};
  return names[source];
}

const char *weir__steps_unit(const weir__steps *steps) {
  return steps->source == WEIR__STEPS_WINDOWS ? "window" : "step";
}

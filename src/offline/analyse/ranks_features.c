#include "offline/analyse/ranks_features.h"

#include <stdlib.h>

#include "base/base.h"

enum { MIN_REQUESTS = 16000 };

const char *weir__feature_name(weir__feature_kind kind) {
  static const char *const names[] = {"allocated", "reserved", "requests", "stack", "stack"};
  return names[kind];
}

static int by_key(const void *a, const void *b) {
  const weir__feature *x = a, *y = b;
  return (x->key > y->key) - (x->key < y->key);
}

size_t weir__rank_groups(const weir__digest *d) {
  uint64_t complete = d->steps.width ? d->steps.count / d->steps.width : 0;
  complete = complete < d->steps.entry.count ? complete : d->steps.entry.count;
  return complete > 1 ? (size_t)complete - 1 : (size_t)complete;
}

static void add(weir__rank_features *f, weir__feature_kind kind, uint64_t stack, uint64_t value) {
  f->items[f->count++] = (weir__feature){stack ? weir__hash_mix(stack, kind) : kind, stack, value, kind};
}

bool weir__rank_features_make(const weir__digest *d, weir__rank_features *f) {
  size_t groups = weir__rank_groups(d);
  *f = (weir__rank_features){.items = malloc((2 * d->stacks.count + WEIR__FEATURES) * sizeof *f->items)};
  if (!f->items)
    return false;
  f->floor = d->memory.peak_allocated / WEIR__RANKS_FLOOR;
  f->role = d->role;
  f->is_cut = d->lost.stacks != 0;
  add(f, WEIR__FEATURE_ALLOCATED, 0, d->memory.peak_allocated);
  add(f, WEIR__FEATURE_RESERVED, 0, d->memory.peak_reserved);
  uint64_t requests = 0;
  for (size_t g = 0; g < groups; g++)
    requests += weir__digest_number(&d->steps.requests, g);
  if (groups)
    add(f, WEIR__FEATURE_REQUESTS, 0, 1000 * requests / (groups * d->steps.width));
  for (size_t i = 0; i < d->stacks.count; i++) {
    const weir__digest_holder *h = (const weir__digest_holder *)d->stacks.items + i;
    add(f, WEIR__FEATURE_STACK, h->name, h->peak);
    if (groups)
      add(f, WEIR__FEATURE_STACK_LATE, h->name, weir__digest_number(&h->peaks, groups - 1));
  }
  qsort(f->items, f->count, sizeof *f->items, by_key);
  return true;
}

double weir__value_distance(uint64_t a, uint64_t b) {
  uint64_t more = a > b ? a : b, less = a > b ? b : a;
  return more ? (double)(more - less) / (double)more : 0;
}

/* How far they are apart in a feature that either of them may lack (NULL). */
static double apart(const weir__rank_features *a, const weir__feature *x, const weir__rank_features *b,
                    const weir__feature *y) {
  const weir__feature *any = x ? x : y;
  uint64_t p = x ? x->value : 0, q = y ? y->value : 0, most = p > q ? p : q;
  if (!any)
    return 0;
  if (any->stack ? most < a->floor || most < b->floor : any->kind == WEIR__FEATURE_REQUESTS && most < MIN_REQUESTS)
    return 0;
  if ((!x && (!any->stack || a->is_cut)) || (!y && (!any->stack || b->is_cut))) /* it is not known */
    return 0;
  return weir__value_distance(p, q);
}

/* Walks both lists. Stops with the first distance above `limit`, or counts all of them. */
static double walk(const weir__rank_features *a, const weir__rank_features *b, double limit, size_t *count) {
  double farthest = 0;
  for (size_t i = 0, k = 0; (i < a->count || k < b->count) && (count || farthest <= limit);) {
    const weir__feature *x = i < a->count ? &a->items[i] : NULL, *y = k < b->count ? &b->items[k] : NULL;
    if (x && y && x->key != y->key)
      *(x->key < y->key ? &y : &x) = NULL;
    i += x != NULL;
    k += y != NULL;
    double distance = apart(a, x, b, y);
    farthest = distance > farthest ? distance : farthest;
    if (count)
      *count += distance > limit;
  }
  return farthest;
}

double weir__rank_distance(const weir__rank_features *a, const weir__rank_features *b, double limit) {
  return a->role != b->role ? 1 : walk(a, b, limit, NULL);
}

size_t weir__rank_differing(const weir__rank_features *a, const weir__rank_features *b, double limit) {
  size_t count = 0;
  walk(a, b, limit, &count);
  return count + (a->role != b->role ? a->count : 0);
}

const weir__feature *weir__rank_feature(const weir__rank_features *features, uint64_t key) {
  const weir__feature of = {.key = key};
  return bsearch(&of, features->items, features->count, sizeof of, by_key);
}

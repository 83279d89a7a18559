/*
 * The limit of size: a digest loses the smallest of what holds memory.
 */
#include <stdlib.h>

#include "base/base.h"
#include "offline/analyse/digest_make.h"

static uint64_t weight(const weir__digest_holder *h) { return h->at_peak > h->end ? h->at_peak : h->end; }

static int by_weight(const void *a, const void *b) {
  const weir__digest_holder *x = a, *y = b;
  uint64_t p = weight(x), q = weight(y);
  if (p != q)
    return (p < q) - (p > q);
  if (x->peak != y->peak)
    return (x->peak < y->peak) - (x->peak > y->peak);
  return (x->name > y->name) - (x->name < y->name);
}

static int by_name(const void *a, const void *b) {
  const weir__digest_holder *x = a, *y = b;
  return (x->name > y->name) - (x->name < y->name);
}

static uint64_t trim_list(weir__digest_list *list, size_t most, uint64_t *heaviest) {
  weir__digest_holder *items = list->items;
  if (list->count <= most)
    return 0;
  size_t left_out = list->count - most;
  qsort(items, list->count, sizeof *items, by_weight);
  uint64_t w = weight(&items[most]);
  *heaviest = w > *heaviest ? w : *heaviest;
  list->count = most;
  qsort(items, most, sizeof *items, by_name);
  return left_out;
}

/* Whether a name occurs in the digest. */
static bool is_used(const weir__digest *d, uint64_t name) {
  const weir__digest_list *const lists[] = {&d->stacks, &d->phases, &d->texts, &d->pools, &d->streams};
  if (name == d->host || name == d->role || name == d->file || name == d->settings || name == d->steps.name ||
      name == d->failure.stack)
    return true;
  for (size_t i = 0; i < WEIR_COUNT_OF(lists); i++) {
    const weir__digest_holder key = {.name = name};
    if (lists[i]->count && bsearch(&key, lists[i]->items, lists[i]->count, sizeof key, by_name))
      return true;
  }
  return false;
}

void weir__digest_trim(weir__digest *d, size_t most) {
  uint64_t ignored = 0;
  d->lost.stacks += trim_list(&d->stacks, 2 * most, &d->lost.bytes);
  d->lost.phases += trim_list(&d->phases, most, &ignored);
  d->lost.texts += trim_list(&d->texts, most, &ignored);
  d->lost.pools += trim_list(&d->pools, most, &ignored);
  d->lost.streams += trim_list(&d->streams, most, &ignored);
  weir__digest_name *names = d->names.items;
  size_t kept = 0;
  for (size_t i = 0; i < d->names.count; i++)
    if (is_used(d, names[i].name))
      names[kept++] = names[i];
  d->names.count = kept;
}

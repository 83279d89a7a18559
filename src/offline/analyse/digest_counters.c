#include "offline/analyse/digest_counters.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/base.h"

static weir_status no_memory(void) { return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "no memory for a digest"); }

weir__digest_counter *weir__digest_counter_at(weir__digest_counters *counters, size_t number) {
  if (number >= counters->count) {
    if (!WEIR__RESERVE(counters->items, counters->room, number + 1))
      return NULL;
    memset(counters->items + counters->count, 0, (number + 1 - counters->count) * sizeof *counters->items);
    counters->count = number + 1;
  }
  weir__digest_counter *c = &counters->items[number];
  if (counters->has_peaks && !c->peaks)
    c->peaks = calloc(WEIR__DIGEST_GROUPS, sizeof *c->peaks);
  return counters->has_peaks && !c->peaks ? NULL : c;
}

void weir__digest_counters_begin(weir__digest_counters *counters) {
  for (size_t i = 0; i < counters->count; i++)
    if (counters->items[i].peaks)
      counters->items[i].peaks[0] = counters->items[i].now;
}

void weir__digest_counters_halve(weir__digest_counters *counters) {
  const uint32_t count = WEIR__DIGEST_GROUPS;
  for (size_t i = 0; i < counters->count; i++) {
    weir__digest_counter *c = &counters->items[i];
    if (!c->peaks)
      continue;
    weir__digest_counter_touch(c, c->epoch, count - 1);
    for (uint32_t k = 0; k < count / 2; k++)
      c->peaks[k] = c->peaks[2 * k] > c->peaks[2 * k + 1] ? c->peaks[2 * k] : c->peaks[2 * k + 1];
    c->group = count / 2 - 1;
  }
}

static int by_name(const void *a, const void *b) {
  const weir__digest_counter *x = *(weir__digest_counter *const *)a, *y = *(weir__digest_counter *const *)b;
  return x->name != y->name ? (x->name > y->name) - (x->name < y->name) : (x > y) - (x < y);
}

/* The peak of several counters together is at most the sum of theirs. */
static void join(weir__digest_counter *c, const weir__digest_counter *other, uint32_t groups) {
  c->now += other->now;
  c->peak += other->peak;
  c->at_peak += other->at_peak;
  c->allocations += other->allocations;
  c->total += other->total;
  for (uint32_t k = 0; c->peaks && other->peaks && k < groups; k++)
    c->peaks[k] += other->peaks[k];
}

static bool list_peaks(const weir__digest_counter *c, uint32_t groups, weir__chunks *memory, weir__digest_list *list) {
  weir__budget budget = {.limit = UINT64_MAX};
  if (!groups)
    return true;
  *list = (weir__digest_list){weir__chunks_take(memory, &budget, groups * sizeof *c->peaks, 8), groups};
  if (list->items)
    memcpy(list->items, c->peaks, groups * sizeof *c->peaks);
  return list->items != NULL;
}

weir_status weir__digest_counters_list(weir__digest_counters *counters, uint32_t epoch, uint32_t groups,
                                       weir__chunks *memory, weir__digest_list *list) {
  weir__budget budget = {.limit = UINT64_MAX};
  weir__digest_counter **order = malloc((counters->count + 1) * sizeof *order);
  size_t used = 0, count = 0;
  if (!order)
    return no_memory();
  for (size_t i = 0; i < counters->count; i++) {
    weir__digest_counter *c = &counters->items[i];
    if (!c->peak || !c->name)
      continue;
    weir__digest_counter_touch(c, epoch, groups ? groups - 1 : 0);
    order[used++] = c;
  }
  qsort(order, used, sizeof(*order), by_name);
  for (size_t i = 0; i < used; i++)
    if (count && order[count - 1]->name == order[i]->name)
      join(order[count - 1], order[i], groups);
    else
      order[count++] = order[i];
  weir__digest_holder *items = count ? weir__chunks_take(memory, &budget, count * sizeof *items, 8) : NULL;
  bool ok = items || !count;
  for (size_t i = 0; i < count && ok; i++) {
    const weir__digest_counter *c = order[i];
    items[i] = (weir__digest_holder){.name = c->name,
                                     .allocations = c->allocations,
                                     .total = c->total,
                                     .peak = c->peak,
                                     .at_peak = c->at_peak,
                                     .end = c->now};
    ok = !c->peaks || list_peaks(c, groups, memory, &items[i].peaks);
  }
  free(order);
  *list = (weir__digest_list){items, ok ? count : 0};
  return ok ? WEIR_OK : no_memory();
}

void weir__digest_counters_clear(weir__digest_counters *counters) {
  for (size_t i = 0; i < counters->count; i++)
    free(counters->items[i].peaks);
  free(counters->items);
  *counters = (weir__digest_counters){.has_peaks = counters->has_peaks};
}

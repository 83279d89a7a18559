#include "alloc/memory/retire.h"

#include <stdlib.h>

enum { UNMAPS_AT_ONCE = 64 }; /* a request waits for them */

#ifndef WEIR__PLANTED
#define WEIR__PLANTED(fault) false
#endif

static void fence_passed(void *context, void *batch) {
  (void)context;
  ((weir__alias_batch *)batch)->has_passed = true;
}

void weir__retired_unmap(weir__pages *pages, weir__retirement *retirement) {
  int left = UNMAPS_AT_ONCE;
  weir__fences_poll(&retirement->fences, pages->driver, false, fence_passed, NULL);
  for (int fence = 1; fence <= WEIR__ALIAS_FENCES; fence++) {
    weir__alias_batch *batch = &retirement->batches[fence - 1];
    if (!batch->is_used || (!batch->has_passed && !WEIR__PLANTED(ignores_fences)))
      continue;
    for (weir__mapping *m = pages->aliases.oldest, *next; m && pages->aliases.waiting[fence] && left; m = next) {
      next = m->newer;
      if (m->fence != fence)
        continue;
      if (!weir__pages_change(pages, &(weir__page_change){.action = WEIR__PAGE_UNMAP, .mapping = m}, 1))
        return;
      pages->aliases.unmapped++;
      left--;
    }
    if (!pages->aliases.waiting[fence])
      batch->is_used = false;
  }
}

/* A batch for a stream that has none yet; NULL if there is no room. */
static weir__alias_batch *find_batch(weir__retirement *retirement, weir_cu_stream stream) {
  weir__alias_batch *found = NULL;
  for (int i = 0; i < WEIR__ALIAS_FENCES; i++) {
    weir__alias_batch *batch = &retirement->batches[i];
    if (batch->is_used && batch->stream == stream)
      return NULL;
    if (!batch->is_used && !found)
      found = batch;
  }
  return found;
}

void weir__aliases_retire(weir__pages *pages, weir__retirement *retirement, weir_cu_stream stream, uint64_t most,
                          bool (*has_passed)(void *context, weir_cu_stream stream), void *context) {
  size_t waiting = pages->aliases.count - pages->aliases.retiring;
  weir__alias_batch *batch = waiting > most ? find_batch(retirement, stream) : NULL;
  if (!batch)
    return;
  /* An alias was last used by the stream of its reservation, before it became one: a request of another stream took its
   * page only behind that use. */
  size_t excess = waiting - (size_t)most;
  weir_cu_stream asked = stream;
  bool is_passed = true;
  for (weir__mapping *m = pages->aliases.oldest; m && excess; m = m->newer) {
    weir_cu_stream user = m->reservation->stream;
    if (m->fence)
      continue;
    if (user != asked)
      is_passed = user == stream || WEIR__PLANTED(retires_in_use) || has_passed(context, user);
    asked = user;
    if (!is_passed)
      continue;
    if (!batch->is_used && !weir__fences_add(&retirement->fences, pages->driver, stream, batch))
      return;
    *batch = (weir__alias_batch){.stream = stream, .is_used = true};
    weir__mapping_retire(pages, m, (uint8_t)(batch - retirement->batches + 1));
    excess--;
  }
}

static weir__alias_clock *clock_of(const weir__retirement *retirement, weir_cu_stream stream) {
  weir__alias_clock *clock = retirement->clocks;
  while (clock && clock->stream != stream)
    clock = clock->next;
  return clock;
}

void weir__aliases_ask(weir__pages *pages, weir__retirement *retirement, weir_cu_stream stream) {
  weir__alias_clock *clock = clock_of(retirement, stream);
  if (!pages->aliases.count)
    return;
  if (!clock && (clock = calloc(1, sizeof *clock))) {
    *clock = (weir__alias_clock){.stream = stream, .next = retirement->clocks};
    retirement->clocks = clock;
  }
  if (!clock || clock->waits || clock->asked == pages->aliases.made ||
      !weir__fences_add(&retirement->clock_fences, pages->driver, stream, clock))
    return;
  clock->asked = pages->aliases.made;
  clock->waits = true;
}

static void clock_passed(void *context, void *waiter) {
  weir__alias_clock *clock = waiter;
  (void)context;
  clock->passed = clock->asked;
  clock->waits = false;
}

void weir__aliases_poll(weir__pages *pages, weir__retirement *retirement) {
  weir__fences_poll(&retirement->clock_fences, pages->driver, false, clock_passed, NULL);
}

bool weir__alias_has_passed(const weir__retirement *retirement, const weir__mapping *alias) {
  const weir__alias_clock *clock = clock_of(retirement, alias->reservation->stream);
  return alias->state == WEIR__MAPPING_STUCK || (clock && alias->number <= clock->passed);
}

void weir__retirement_end(weir__pages *pages, weir__retirement *retirement) {
  while (retirement->clocks) {
    weir__alias_clock *next = retirement->clocks->next;
    free(retirement->clocks);
    retirement->clocks = next;
  }
  weir__fences_clear(&retirement->clock_fences, pages->driver);
  weir__fences_clear(&retirement->fences, pages->driver);
}

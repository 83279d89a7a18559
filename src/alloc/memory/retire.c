#include "alloc/memory/retire.h"

enum { UNMAPS_AT_ONCE = 64 }; /* a request waits for them */

#ifndef WEIR__PLANTED
#define WEIR__PLANTED(fault) false
#endif

static void batch_end(weir__pages *pages, weir__fences *fences, weir__alias_batch *batch) {
  weir__event_release(fences, pages->driver, batch->passed);
  *batch = (weir__alias_batch){0};
}

void weir__retired_unmap(weir__pages *pages, weir__retirement *retirement, weir__fences *fences) {
  weir_driver *driver = pages->driver;
  int left = UNMAPS_AT_ONCE;
  for (uint8_t fence = 1; fence <= WEIR__ALIAS_FENCES; fence++) {
    weir__alias_batch *batch = &retirement->batches[fence - 1];
    if (!batch->passed || (driver->EventQuery(driver, batch->passed) && !WEIR__PLANTED(ignores_fences)))
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
      batch_end(pages, fences, batch);
  }
}

/* The fence of a batch for a stream that has none yet, behind its work of now. 0 if there is no room, or if the driver
 * fails. */
static uint8_t batch_begin(weir__pages *pages, weir__retirement *retirement, weir__fences *fences,
                           weir_cu_stream stream) {
  weir_driver *driver = pages->driver;
  weir__alias_batch *made = NULL;
  for (int i = 0; i < WEIR__ALIAS_FENCES; i++) {
    weir__alias_batch *batch = &retirement->batches[i];
    if (batch->passed && batch->stream == stream)
      return 0;
    if (!batch->passed && !made)
      made = batch;
  }
  if (!made || weir__event_acquire(fences, driver, &made->passed))
    return 0;
  if (driver->EventRecord(driver, made->passed, stream)) {
    batch_end(pages, fences, made);
    return 0;
  }
  made->stream = stream;
  return (uint8_t)(made - retirement->batches + 1);
}

void weir__aliases_retire(weir__pages *pages, weir__retirement *retirement, weir__fences *fences, weir_cu_stream stream,
                          uint64_t most, bool (*has_passed)(void *context, weir_cu_stream stream), void *context) {
  size_t waiting = pages->aliases.count - pages->aliases.retiring;
  uint8_t fence = waiting > most ? batch_begin(pages, retirement, fences, stream) : 0;
  if (!fence)
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
      is_passed = user == stream || has_passed(context, user);
    asked = user;
    if (!is_passed)
      continue;
    weir__mapping_retire(pages, m, fence);
    excess--;
  }
  if (!pages->aliases.waiting[fence])
    batch_end(pages, fences, &retirement->batches[fence - 1]);
}

void weir__retirement_end(weir__pages *pages, weir__retirement *retirement) {
  weir_driver *driver = pages->driver;
  for (int i = 0; i < WEIR__ALIAS_FENCES; i++)
    if (retirement->batches[i].passed)
      driver->EventDestroy(driver, retirement->batches[i].passed);
}

/*
 * What tags held, by the pools of their allocations.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "offline/analyse/summary.h"

static size_t tag_index(weir__summary_tag *tags, size_t *count, const char *name) {
  size_t i = 0;
  while (i < *count && strcmp(tags[i].name, name))
    i++;
  if (i == *count)
    tags[(*count)++].name = name;
  return i;
}

/* `of_pool` has the number of the tag of each pool, plus 1. */
static void count_events(const weir__recording_device *device, const weir__summary *summary, const size_t *of_pool,
                         size_t pools, weir__summary_tag *tags, size_t count) {
  for (size_t i = 0; i < device->event_count; i++) {
    const weir__recording_entry *e = &device->events[i];
    size_t of = e->pool < pools ? of_pool[e->pool] : 0;
    weir__summary_tag *tag = of ? &tags[of - 1] : NULL;
    if (tag && e->action == WEIR_TRACE_ALLOC)
      tag->at_end += e->size;
    if (tag && e->action == WEIR_TRACE_FREE_COMPLETED)
      tag->at_end -= e->size < tag->at_end ? e->size : tag->at_end;
    if (tag && tag->at_end > tag->peak)
      tag->peak = tag->at_end;
    for (size_t k = 0; i == summary->live.event && k < count; k++)
      tags[k].at_peak = tags[k].at_end;
  }
}

weir_status weir__summarize_tags(const weir__recording *recording, int device, const weir__summary *summary,
                                 weir__summary_tag **tags, size_t *count) {
  *tags = NULL;
  *count = 0;
  if (!recording->tag_count || summary->is_unknown)
    return WEIR_OK;
  weir__summary_tag *made = calloc(recording->tag_count, sizeof *made);
  size_t *of_pool = calloc(recording->pool_count, sizeof *of_pool);
  if (!made || !of_pool) {
    free(made);
    free(of_pool);
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory");
  }
  for (size_t i = 0; i < recording->pool_count; i++) {
    const char *name = weir__recording_tag_of(recording, device, recording->pools[i].id);
    if (name)
      of_pool[i] = tag_index(made, count, name) + 1;
  }
  count_events(&recording->devices[device], summary, of_pool, recording->pool_count, made, *count);
  free(of_pool);
  *tags = made;
  return WEIR_OK;
}

#include "offline/analyse/phases.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static const char *text_of(const weir__recording *recording, uint32_t string) {
  return string < recording->strings.count ? recording->strings.items[string].text : "";
}

void weir__ranges_add(weir__ranges *ranges, const weir__recording_annotation *a) {
  if (a->device >= 0 && a->device != ranges->device)
    return;
  if (strcmp(text_of(ranges->recording, a->stage), "START") == 0) {
    if (ranges->depth < WEIR__RANGES_DEEPEST)
      ranges->open[ranges->depth++] = a->name;
    return;
  }
  for (size_t i = ranges->depth; i-- > 0;)
    if (ranges->open[i] == a->name) {
      ranges->depth = i;
      break;
    }
  ranges->last = a->name;
}

weir_status weir__phases_of(const weir__recording *recording, int device, const weir__lives *lives, uint32_t **phases) {
  const weir__recording_device *d = device < 0 ? &recording->host : &recording->devices[device];
  weir__ranges ranges = weir__ranges_of(recording, device);
  size_t next = 0;
  uint32_t *made = malloc((lives->block_count + 1) * sizeof *made);
  if (!made)
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for the phases of %zu blocks",
                      lives->block_count);
  for (size_t i = 0; i < lives->block_count; i++) {
    const weir__life *b = &lives->blocks[i];
    made[i] = WEIR__NO_PHASE;
    if (b->is_before)
      continue;
    uint32_t phase = b->remark < recording->remark_count ? recording->remarks[b->remark].phase : 0;
    if (!*text_of(recording, phase)) {
      const weir__recording_annotation *a = recording->annotations;
      while (next < recording->annotation_count && a[next].time_us <= d->events[b->begin].time_us)
        weir__ranges_add(&ranges, &a[next++]);
      phase = weir__ranges_innermost(&ranges);
    }
    if (phase != WEIR__NO_PHASE && *text_of(recording, phase))
      made[i] = phase;
  }
  *phases = made;
  return WEIR_OK;
}

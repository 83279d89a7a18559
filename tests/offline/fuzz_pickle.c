/*
 * A libFuzzer target, see scripts/fuzz. Every input is read twice: as a recording, and as values, which are walked.
 */
#include <stdlib.h>

#include "offline/read/recording.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Each box once, however often it is shared; they are not deeper than the limit. */
static uint64_t walk(weir__pickle *p, weir__pickle_value v) {
  uint64_t sum = v;
  if (weir__pickle_tag_of(v) == WEIR__PICKLE_STR || weir__pickle_tag_of(v) == WEIR__PICKLE_BYTES) {
    weir__string s = weir__pickle_string(p, v);
    for (uint32_t i = 0; i <= s.length; i++)
      sum += (unsigned char)s.text[i];
  }
  if (!weir__pickle_is_box(v) || *weir__pickle_note(p, v) != 0)
    return sum;
  *weir__pickle_note(p, v) = 1;
  size_t count;
  const weir__pickle_value *items = weir__pickle_items(p, v, &count);
  for (size_t i = 0; i < count; i++)
    sum += walk(p, items[i]);
  return sum;
}

static uint64_t look_at(const weir__recording *s) {
  uint64_t sum = 0;
  for (size_t d = 0; d < s->device_count; d++) {
    const weir__recording_device *device = &s->devices[d];
    for (size_t i = 0; i < device->event_count && i < 100000; i++) {
      const weir__recording_entry *e = &device->events[i];
      const weir__recording_stack *stack = &s->stacks[e->stack];
      sum += e->address + e->size + (uint64_t)s->streams[e->stream];
      sum += s->strings.items[s->remarks[e->remark].action].length;
      if (e->pool != WEIR__RECORDING_NO_POOL)
        sum += (uint64_t)s->pools[e->pool].id[1];
      for (size_t j = 0; j < stack->count; j++)
        sum += s->strings.items[s->frames[s->stack_frames[stack->first + j]].filename].length;
    }
    for (size_t i = 0; i < device->segment_count; i++)
      for (size_t j = 0; j < device->segments[i].block_count; j++)
        sum += device->segments[i].blocks[j].address + s->stacks[device->segments[i].blocks[j].stack].count;
  }
  return sum;
}

/* The compiler may not leave out what leads to it. */
static void keep(uint64_t sum) { __asm__ volatile("" : : "r"(sum)); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const weir__pickle_limits limits = {.memory = 8 << 20, .input = 1 << 20};
  weir__input *source;
  weir__recording *recording;
  if (weir__input_open_memory("fuzz", data, size, &source) != WEIR_OK)
    return 0;
  if (weir__recording_read(source, &limits, &recording) == WEIR_OK) {
    keep(look_at(recording));
    weir__recording_free(recording);
  }
  weir__input_close(source);

  weir__pickle *pickle;
  weir__pickle_value root;
  if (weir__input_open_memory("fuzz", data, size, &source) != WEIR_OK)
    return 0;
  if (weir__pickle_open(source, &limits, &pickle) == WEIR_OK) {
    if (weir__pickle_read(pickle, NULL, NULL, &root) == WEIR_OK)
      keep(walk(pickle, root));
    weir__pickle_close(pickle);
  }
  weir__input_close(source);
  return 0;
}

#include "inspect/snapshot_history.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/backend.h"
#include "record/operations.h"
#include "record/stacks.h"
#include "record/texts.h"

static uint32_t block_stack(void *context, int device, uint64_t address) {
  const weir__recorded *r = context;
  (void)device;
  const weir__arena *arena = weir__arena_of(r->allocator, (const void *)address);
  return arena && arena->writer ? weir__writer_stack(r->history, arena->writer, address) : 0;
}

static uint32_t segment_stack(void *context, const weir__segment *segment) {
  (void)context;
  return segment->stack;
}

/* Nobody records anything of an arena now: all that is there has an earlier time, and what comes has a later one. */
static void cut(void *context, int device, uint64_t active_bytes) {
  weir__recorded *r = context;
  r->cuts[device] = weir__clock_ticks();
  if (weir__recorder_is_on(r->history))
    weir__recorder_mark(r->history, device, WEIR_TRACE_SNAPSHOT, 0, active_bytes, 0);
}

static weir_status events(void *context, int device, weir__entry **events, size_t *count, uint64_t *dropped) {
  weir__recorded *r = context;
  weir__entry *all;
  size_t read;
  if (!weir__recorder_read_until(r->history, device, r->cuts[device], &all, &read, dropped))
    return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "weir_snapshot_take: no host memory for the events");
  weir__clock_line line = weir__clock_line_now();
  for (size_t i = 0; i < read; i++)
    all[i].time = (uint64_t)weir__clock_unix_us(&line, all[i].time);
  weir__entries_join(all, read, false);
  *events = all;
  *count = read;
  return WEIR_OK;
}

static size_t frames(void *context, uint32_t stack, weir__recorded_frame *to, size_t room) {
  (void)context;
  weir__frame some[64];
  size_t count = weir__stack_frames(stack, some, WEIR_COUNT_OF(some));
  weir__frame *from = count <= WEIR_COUNT_OF(some) || room <= WEIR_COUNT_OF(some) ? some : malloc(count * sizeof *from);
  if (!from)
    return 0;
  if (from != some)
    weir__stack_frames(stack, from, count);
  for (size_t i = 0; i < count && i < room; i++)
    to[i] = (weir__recorded_frame){from[i].address, weir__text_of_number(from[i].function),
                                   weir__text_of_number(from[i].file), from[i].line};
  if (from != some)
    free(from);
  return count;
}

static weir_pool_id pool(void *context, uint32_t number) {
  (void)context;
  return weir__pool_of_number(number);
}

static const char *text_or_null(uint32_t number) { return number ? weir__text_of_number(number) : NULL; }

static weir__recorded_context texts(void *context, uint32_t number) {
  (void)context;
  weir__entry_context of = weir__context_of_number(number);
  return (weir__recorded_context){text_or_null(of.phase), text_or_null(of.compile), text_or_null(of.metadata)};
}

/* ---- Annotations: copied, as the recorder may drop them ---- */

static size_t bytes_of(const weir__annotation *annotation) {
  size_t bytes = sizeof *annotation;
  const char *text = annotation->texts;
  for (uint32_t i = 0; i < 2 * annotation->pair_count; i++) {
    size_t length = strlen(text) + 1;
    bytes += length;
    text += length;
  }
  return bytes;
}

static void gather(void *context, const weir__annotation *annotation) {
  weir__recorded *r = context;
  size_t bytes = bytes_of(annotation);
  if (!weir__make_room(&r->annotations, &r->annotation_room, r->annotation_count + 1, sizeof *r->annotations))
    return;
  weir__annotation *copy = malloc(bytes);
  if (!copy)
    return;
  memcpy(copy, annotation, bytes);
  r->annotations[r->annotation_count++] = copy;
}

static bool annotation(void *context, size_t number, weir__recorded_annotation *to) {
  weir__recorded *r = context;
  if (!r->is_gathered)
    weir__recorder_annotations(r->history, gather, r);
  r->is_gathered = true;
  if (number >= r->annotation_count)
    return false;
  const weir__annotation *from = r->annotations[number];
  weir__recorded_pair *pairs = realloc(r->pairs, (from->pair_count + 1) * sizeof *pairs);
  if (!pairs)
    return false;
  r->pairs = pairs;
  const char *text = from->texts;
  for (uint32_t i = 0; i < from->pair_count; i++) {
    pairs[i].key = text;
    pairs[i].value = text += strlen(text) + 1;
    text += strlen(text) + 1;
  }
  weir__clock_line line = weir__clock_line_now();
  *to = (weir__recorded_annotation){pairs, from->pair_count, from->device, weir__clock_unix_us(&line, from->time)};
  return true;
}

/* ---- The source ---- */

bool weir__recorded_begin(weir__recorded *recorded, weir_allocator *allocator, weir__history_source *source) {
  *recorded = (weir__recorded){.allocator = allocator, .history = atomic_load(&allocator->history)};
  recorded->cuts = calloc((size_t)allocator->heap_count + 1, sizeof *recorded->cuts);
  *source = (weir__history_source){.context = recorded,
                                   .block_stack = block_stack,
                                   .segment_stack = segment_stack,
                                   .cut = cut,
                                   .events = events,
                                   .frames = frames,
                                   .pool = pool,
                                   .texts = texts,
                                   .annotation = annotation};
  return recorded->cuts != NULL;
}

void weir__recorded_clear(weir__recorded *recorded) {
  for (size_t i = 0; i < recorded->annotation_count; i++)
    free(recorded->annotations[i]);
  free(recorded->annotations);
  free(recorded->pairs);
  free(recorded->cuts);
}

#include "offline/rewrite.h"

#include <stdlib.h>

#include "base/base.h"
#include "inspect/write_schema.h"

/* Memos are by the number of what they are of. */
typedef struct writer {
  const weir__recording *s;
  weir__schema out;
  int device;
  weir__step step;
  void *step_context;
  uint32_t *string_memos, *stack_memos, *frame_memos;
} writer;

/* ---- Pieces ---- */

static inline void text(writer *w, weir__word name, uint32_t string) {
  weir__write_key(&w->out, name);
  w->out.to->text(w->out.sink, w->s->strings.items[string].text, &w->string_memos[string]);
}

/* PyTorch has pairs of numbers without a sign; the reader takes any. */
static void pool(writer *w, weir__word name, uint32_t number) {
  const int64_t *id = w->s->pools[number].id;
  weir__write_key(&w->out, name);
  if (id[0] >= 0 && id[1] >= 0) {
    w->out.to->pair(w->out.sink, (uint64_t)id[0], (uint64_t)id[1]);
    return;
  }
  weir__write_open_list(w->out.sink);
  w->out.to->integer(w->out.sink, id[0]);
  w->out.to->integer(w->out.sink, id[1]);
  weir__write_close(w->out.sink);
}

/* Writes what a memo has, if it has it. */
static bool again(writer *w, uint32_t memo) {
  if (!memo)
    return false;
  w->out.to->again(w->out.sink, memo);
  return true;
}

static void frame(writer *w, uint32_t number) {
  const weir__recording_frame *f = &w->s->frames[number];
  if (again(w, w->frame_memos[number]))
    return;
  weir__write_open_dict(w->out.sink);
  text(w, WEIR__WORD_NAME, f->name);
  text(w, WEIR__WORD_FILENAME, f->filename);
  weir__write_integer(&w->out, WEIR__WORD_LINE, f->line);
  weir__write_close(w->out.sink);
  weir__write_keep(&w->out, &w->frame_memos[number]);
}

static void frames(writer *w, uint32_t number) {
  const weir__recording_stack *stack = &w->s->stacks[number];
  weir__write_key(&w->out, WEIR__WORD_FRAMES);
  if (again(w, w->stack_memos[number]))
    return;
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < stack->count; i++)
    frame(w, w->s->stack_frames[stack->first + i]);
  weir__write_close(w->out.sink);
  if (number) /* empty lists are small, and each its own */
    weir__write_keep(&w->out, &w->stack_memos[number]);
}

/* ---- The parts ---- */

static void block(writer *w, const weir__recording_block *b) {
  weir__write_open_dict(w->out.sink);
  weir__write_natural(&w->out, WEIR__WORD_ADDRESS, b->address);
  weir__write_natural(&w->out, WEIR__WORD_SIZE, b->size);
  weir__write_natural(&w->out, WEIR__WORD_REQUESTED_SIZE, b->requested);
  weir__write_state(&w->out, b->state);
  frames(w, b->stack);
  weir__write_close(w->out.sink);
}

static void segment(writer *w, const weir__recording_segment *s) {
  weir__write_open_dict(w->out.sink);
  weir__write_integer(&w->out, WEIR__WORD_DEVICE, s->device);
  weir__write_natural(&w->out, WEIR__WORD_ADDRESS, s->address);
  weir__write_natural(&w->out, WEIR__WORD_TOTAL_SIZE, s->size);
  weir__write_natural(&w->out, WEIR__WORD_ALLOCATED_SIZE, s->allocated);
  weir__write_natural(&w->out, WEIR__WORD_ACTIVE_SIZE, s->active);
  weir__write_natural(&w->out, WEIR__WORD_REQUESTED_SIZE, s->requested);
  weir__write_integer(&w->out, WEIR__WORD_STREAM, w->s->streams[s->stream]);
  weir__write_word(&w->out, WEIR__WORD_SEGMENT_TYPE, s->is_large ? WEIR__WORD_LARGE : WEIR__WORD_SMALL);
  pool(w, WEIR__WORD_SEGMENT_POOL_ID, s->pool);
  weir__write_key(&w->out, WEIR__WORD_IS_EXPANDABLE);
  w->out.to->boolean(w->out.sink, s->is_expandable);
  frames(w, s->stack);
  weir__write_key(&w->out, WEIR__WORD_BLOCKS);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < s->block_count; i++)
    block(w, &s->blocks[i]);
  weir__write_close(w->out.sink);
  weir__write_close(w->out.sink);
}

static void event(writer *w, const weir__recording_entry *e) {
  const weir__recording_remark *remark = &w->s->remarks[e->remark];
  weir__write_open_dict(w->out.sink);
  if (e->action == WEIR__ACTION_UNKNOWN)
    text(w, WEIR__WORD_ACTION, remark->action);
  else
    weir__write_action(&w->out, e->action);
  weir__write_natural(&w->out, e->action == WEIR_TRACE_OOM ? WEIR__WORD_DEVICE_FREE : WEIR__WORD_ADDR, e->address);
  weir__write_natural(&w->out, WEIR__WORD_SIZE, e->size);
  weir__write_integer(&w->out, WEIR__WORD_STREAM, w->s->streams[e->stream]);
  if (e->time_us)
    weir__write_integer(&w->out, WEIR__WORD_TIME_US, e->time_us);
  text(w, WEIR__WORD_COMPILE_CONTEXT, remark->compile_context);
  text(w, WEIR__WORD_USER_METADATA, remark->user_metadata);
  if (w->s->strings.items[remark->phase].length)
    text(w, WEIR__WORD_PHASE, remark->phase);
  if (e->pool != WEIR__RECORDING_NO_POOL)
    pool(w, WEIR__WORD_POOL_ID, e->pool);
  if (e->stack)
    frames(w, e->stack);
  weir__write_close(w->out.sink);
}

static void histories(writer *w) {
  size_t done = 0;
  weir__write_key(&w->out, WEIR__WORD_DEVICE_TRACES);
  weir__write_open_list(w->out.sink);
  for (size_t d = 0; d < w->s->device_count; d++) {
    size_t count = w->device < 0 || (size_t)w->device == d ? w->s->devices[d].event_count : 0;
    weir__write_open_list(w->out.sink);
    for (size_t i = 0; i < count && !w->out.sink->error; i++) {
      event(w, &w->s->devices[d].events[i]);
      if (++done % WEIR__STEP_EVENTS == 0 && w->step)
        w->step(w->step_context, done, w->s->event_count);
    }
    weir__write_close(w->out.sink);
  }
  weir__write_close(w->out.sink);
}

static void setting(writer *w, const char *name, const weir__recording_setting *s) {
  w->out.to->key(w->out.sink, name, NULL);
  switch (s->kind) {
  case WEIR__SETTING_BOOL:
    w->out.to->boolean(w->out.sink, s->integer != 0);
    break;
  case WEIR__SETTING_INT:
    w->out.to->integer(w->out.sink, s->integer);
    break;
  case WEIR__SETTING_FLOAT:
    w->out.to->real(w->out.sink, s->real);
    break;
  case WEIR__SETTING_TEXT:
    w->out.to->text(w->out.sink, s->text, NULL);
    break;
  }
}

/* The keys of a dict in it come one after the other. */
static void settings(writer *w) {
  const weir__recording_setting *all = w->s->settings;
  weir__write_key(&w->out, WEIR__WORD_ALLOCATOR_SETTINGS);
  weir__write_open_dict(w->out.sink);
  for (size_t i = 0; i < w->s->setting_count;) {
    if (!all[i].sub) {
      setting(w, all[i].key, &all[i]);
      i++;
      continue;
    }
    const char *name = all[i].key;
    w->out.to->key(w->out.sink, name, NULL);
    weir__write_open_dict(w->out.sink);
    for (; i < w->s->setting_count && all[i].sub && strcmp(all[i].key, name) == 0; i++)
      setting(w, all[i].sub, &all[i]);
    weir__write_close(w->out.sink);
  }
  weir__write_close(w->out.sink);
}

static void annotations(writer *w) {
  weir__write_key(&w->out, WEIR__WORD_EXTERNAL_ANNOTATIONS);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < w->s->annotation_count; i++) {
    const weir__recording_annotation *a = &w->s->annotations[i];
    if (w->device >= 0 && a->device >= 0 && a->device != w->device)
      continue;
    weir__write_open_dict(w->out.sink);
    text(w, WEIR__WORD_STAGE, a->stage);
    text(w, WEIR__WORD_NAME, a->name);
    if (a->device >= 0)
      weir__write_integer(&w->out, WEIR__WORD_DEVICE, a->device);
    weir__write_integer(&w->out, WEIR__WORD_TIME_US, a->time_us);
    for (size_t k = 0; k < a->pair_count; k++) {
      const weir__recording_pair *pair = &w->s->pairs[a->first_pair + k];
      w->out.to->key(w->out.sink, w->s->strings.items[pair->key].text, &w->string_memos[pair->key]);
      w->out.to->text(w->out.sink, w->s->strings.items[pair->value].text, &w->string_memos[pair->value]);
    }
    weir__write_close(w->out.sink);
  }
  weir__write_close(w->out.sink);
}

/* Pinned host memory is of no device. */
static void host(writer *w) {
  const weir__recording_device *h = &w->s->host;
  weir__write_key(&w->out, WEIR__WORD_HOST_SEGMENTS);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < h->segment_count && w->device < 0 && !w->out.sink->error; i++)
    segment(w, &h->segments[i]);
  weir__write_close(w->out.sink);
  weir__write_key(&w->out, WEIR__WORD_HOST_TRACES);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < h->event_count && w->device < 0 && !w->out.sink->error; i++)
    event(w, &h->events[i]);
  weir__write_close(w->out.sink);
}

static void everything(writer *w) {
  weir__write_open_dict(w->out.sink);
  weir__write_key(&w->out, WEIR__WORD_SEGMENTS);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < w->s->segment_count && !w->out.sink->error; i++)
    if (w->device < 0 || w->s->segments[i].device == w->device)
      segment(w, &w->s->segments[i]);
  weir__write_close(w->out.sink);
  if (w->s->has_history)
    histories(w);
  if (w->s->setting_count)
    settings(w);
  annotations(w);
  if (w->s->has_host)
    host(w);
  weir__write_close(w->out.sink);
}

weir_status weir__rewrite(const weir__recording *snapshot, int device, const weir__sink_format *format, weir__step step,
                          void *step_context, FILE *file) {
  weir_status status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  weir__sink *sink = malloc(sizeof *sink);
  writer w = {.s = snapshot,
              .out = {.sink = sink, .to = format},
              .device = device,
              .step = step,
              .step_context = step_context,
              .string_memos = calloc(snapshot->strings.count + 1, sizeof(uint32_t)),
              .stack_memos = calloc(snapshot->stack_count + 1, sizeof(uint32_t)),
              .frame_memos = calloc(snapshot->frame_count + 1, sizeof(uint32_t))};
  if (sink && w.string_memos && w.stack_memos && w.frame_memos) {
    weir__sink_begin(sink, format, file);
    everything(&w);
    status = weir__sink_end(sink, NULL);
  } else {
    status = weir__fail(status, "no host memory to write with");
  }
  free(w.string_memos);
  free(w.stack_memos);
  free(w.frame_memos);
  free(sink);
  return status;
}

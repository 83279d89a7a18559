#include "offline/rewrite.h"

#include <stdlib.h>

#include "base/base.h"

#define WORDS(X)                                                                                                       \
  X(SEGMENTS, "segments")                                                                                              \
  X(DEVICE_TRACES, "device_traces")                                                                                    \
  X(ALLOCATOR_SETTINGS, "allocator_settings")                                                                          \
  X(EXTERNAL_ANNOTATIONS, "external_annotations")                                                                      \
  X(DEVICE, "device")                                                                                                  \
  X(ADDRESS, "address")                                                                                                \
  X(TOTAL_SIZE, "total_size")                                                                                          \
  X(ALLOCATED_SIZE, "allocated_size")                                                                                  \
  X(ACTIVE_SIZE, "active_size")                                                                                        \
  X(REQUESTED_SIZE, "requested_size")                                                                                  \
  X(STREAM, "stream")                                                                                                  \
  X(SEGMENT_TYPE, "segment_type")                                                                                      \
  X(SEGMENT_POOL_ID, "segment_pool_id")                                                                                \
  X(IS_EXPANDABLE, "is_expandable")                                                                                    \
  X(FRAMES, "frames")                                                                                                  \
  X(BLOCKS, "blocks")                                                                                                  \
  X(SIZE, "size")                                                                                                      \
  X(STATE, "state")                                                                                                    \
  X(NAME, "name")                                                                                                      \
  X(FILENAME, "filename")                                                                                              \
  X(LINE, "line")                                                                                                      \
  X(ACTION, "action")                                                                                                  \
  X(ADDR, "addr")                                                                                                      \
  X(DEVICE_FREE, "device_free")                                                                                        \
  X(TIME_US, "time_us")                                                                                                \
  X(COMPILE_CONTEXT, "compile_context")                                                                                \
  X(USER_METADATA, "user_metadata")                                                                                    \
  X(POOL_ID, "pool_id")                                                                                                \
  X(STAGE, "stage")                                                                                                    \
  X(LARGE, "large")                                                                                                    \
  X(SMALL, "small")                                                                                                    \
  X(INACTIVE, "inactive")                                                                                              \
  X(ACTIVE_ALLOCATED, "active_allocated")                                                                              \
  X(ACTIVE_PENDING_FREE, "active_pending_free")

enum word {
#define X(name, text) WORD_##name,
  WORDS(X)
#undef X
      WORD_COUNT
};

static const char *const words[] = {
#define X(name, text) text,
    WORDS(X)
#undef X
};

/* Memos are by the number of what they are of. */
typedef struct writer {
  const weir__snapshot *s;
  weir__sink *sink;
  const weir__sink_format *to; /* the sink's */
  int device;
  weir__step step;
  void *step_context;
  uint32_t word_memos[WORD_COUNT], action_memos[WEIR__ACTION_OTHER];
  uint32_t *string_memos, *stack_memos, *frame_memos;
} writer;

/* ---- Pieces ---- */

static inline void key(writer *w, enum word word) { w->to->key(w->sink, words[word], &w->word_memos[word]); }

static inline void word(writer *w, enum word name, enum word value) {
  key(w, name);
  w->to->text(w->sink, words[value], &w->word_memos[value]);
}

static inline void natural(writer *w, enum word name, uint64_t value) {
  key(w, name);
  w->to->natural(w->sink, value);
}

static inline void integer(writer *w, enum word name, int64_t value) {
  key(w, name);
  w->to->integer(w->sink, value);
}

static inline void text(writer *w, enum word name, uint32_t string) {
  key(w, name);
  w->to->text(w->sink, w->s->strings.items[string].text, &w->string_memos[string]);
}

/* PyTorch has pairs of numbers without a sign; the reader takes any. */
static void pool(writer *w, enum word name, uint32_t number) {
  const int64_t *id = w->s->pools[number].id;
  key(w, name);
  if (id[0] >= 0 && id[1] >= 0) {
    w->to->pair(w->sink, (uint64_t)id[0], (uint64_t)id[1]);
    return;
  }
  weir__write_open_list(w->sink);
  w->to->integer(w->sink, id[0]);
  w->to->integer(w->sink, id[1]);
  weir__write_close(w->sink);
}

/* Writes what a memo has, if it has it. */
static bool again(writer *w, uint32_t memo) {
  if (!memo)
    return false;
  w->to->again(w->sink, memo);
  return true;
}

static void keep(writer *w, uint32_t *memo) {
  if (w->to->keep)
    w->to->keep(w->sink, memo);
}

static void frame(writer *w, uint32_t number) {
  const weir__snapshot_frame *f = &w->s->frames[number];
  if (again(w, w->frame_memos[number]))
    return;
  weir__write_open_dict(w->sink);
  text(w, WORD_NAME, f->name);
  text(w, WORD_FILENAME, f->filename);
  integer(w, WORD_LINE, f->line);
  weir__write_close(w->sink);
  keep(w, &w->frame_memos[number]);
}

static void frames(writer *w, uint32_t number) {
  const weir__snapshot_stack *stack = &w->s->stacks[number];
  key(w, WORD_FRAMES);
  if (again(w, w->stack_memos[number]))
    return;
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < stack->count; i++)
    frame(w, w->s->stack_frames[stack->first + i]);
  weir__write_close(w->sink);
  if (number) /* empty lists are small, and each its own */
    keep(w, &w->stack_memos[number]);
}

/* ---- The parts ---- */

static void block(writer *w, const weir__snapshot_block *b) {
  static const enum word states[] = {WORD_INACTIVE, WORD_ACTIVE_ALLOCATED, WORD_ACTIVE_PENDING_FREE};
  weir__write_open_dict(w->sink);
  natural(w, WORD_ADDRESS, b->address);
  natural(w, WORD_SIZE, b->size);
  natural(w, WORD_REQUESTED_SIZE, b->requested);
  word(w, WORD_STATE, states[b->state]);
  frames(w, b->stack);
  weir__write_close(w->sink);
}

static void segment(writer *w, const weir__snapshot_segment *s) {
  weir__write_open_dict(w->sink);
  integer(w, WORD_DEVICE, s->device);
  natural(w, WORD_ADDRESS, s->address);
  natural(w, WORD_TOTAL_SIZE, s->size);
  natural(w, WORD_ALLOCATED_SIZE, s->allocated);
  natural(w, WORD_ACTIVE_SIZE, s->active);
  natural(w, WORD_REQUESTED_SIZE, s->requested);
  integer(w, WORD_STREAM, w->s->streams[s->stream]);
  word(w, WORD_SEGMENT_TYPE, s->is_large ? WORD_LARGE : WORD_SMALL);
  pool(w, WORD_SEGMENT_POOL_ID, s->pool);
  key(w, WORD_IS_EXPANDABLE);
  w->to->boolean(w->sink, s->is_expandable);
  frames(w, s->stack);
  key(w, WORD_BLOCKS);
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < s->block_count; i++)
    block(w, &s->blocks[i]);
  weir__write_close(w->sink);
  weir__write_close(w->sink);
}

static void event(writer *w, const weir__snapshot_event *e) {
  const weir__snapshot_remark *remark = &w->s->remarks[e->remark];
  weir__write_open_dict(w->sink);
  if (e->action == WEIR__ACTION_OTHER)
    text(w, WORD_ACTION, remark->action);
  else {
    key(w, WORD_ACTION);
    w->to->text(w->sink, weir__snapshot_action_name((weir__snapshot_action)e->action), &w->action_memos[e->action]);
  }
  natural(w, e->action == WEIR__ACTION_OOM ? WORD_DEVICE_FREE : WORD_ADDR, e->address);
  natural(w, WORD_SIZE, e->size);
  integer(w, WORD_STREAM, w->s->streams[e->stream]);
  if (e->time_us)
    integer(w, WORD_TIME_US, e->time_us);
  text(w, WORD_COMPILE_CONTEXT, remark->compile_context);
  text(w, WORD_USER_METADATA, remark->user_metadata);
  if (e->pool != WEIR__SNAPSHOT_NO_POOL)
    pool(w, WORD_POOL_ID, e->pool);
  if (e->stack)
    frames(w, e->stack);
  weir__write_close(w->sink);
}

static void histories(writer *w) {
  size_t done = 0;
  key(w, WORD_DEVICE_TRACES);
  weir__write_open_list(w->sink);
  for (size_t d = 0; d < w->s->device_count; d++) {
    size_t count = w->device < 0 || (size_t)w->device == d ? w->s->devices[d].event_count : 0;
    weir__write_open_list(w->sink);
    for (size_t i = 0; i < count && !w->sink->error; i++) {
      event(w, &w->s->devices[d].events[i]);
      if (++done % WEIR__STEP_EVENTS == 0 && w->step)
        w->step(w->step_context, done, w->s->event_count);
    }
    weir__write_close(w->sink);
  }
  weir__write_close(w->sink);
}

static void setting(writer *w, const char *name, const weir__snapshot_setting *s) {
  w->to->key(w->sink, name, NULL);
  switch (s->kind) {
  case WEIR__SETTING_BOOL:
    w->to->boolean(w->sink, s->integer != 0);
    break;
  case WEIR__SETTING_INT:
    w->to->integer(w->sink, s->integer);
    break;
  case WEIR__SETTING_FLOAT:
    w->to->real(w->sink, s->real);
    break;
  case WEIR__SETTING_TEXT:
    w->to->text(w->sink, s->text, NULL);
    break;
  }
}

/* The keys of a dict in it come one after the other. */
static void settings(writer *w) {
  const weir__snapshot_setting *all = w->s->settings;
  key(w, WORD_ALLOCATOR_SETTINGS);
  weir__write_open_dict(w->sink);
  for (size_t i = 0; i < w->s->setting_count;) {
    if (!all[i].sub) {
      setting(w, all[i].key, &all[i]);
      i++;
      continue;
    }
    const char *name = all[i].key;
    w->to->key(w->sink, name, NULL);
    weir__write_open_dict(w->sink);
    for (; i < w->s->setting_count && all[i].sub && strcmp(all[i].key, name) == 0; i++)
      setting(w, all[i].sub, &all[i]);
    weir__write_close(w->sink);
  }
  weir__write_close(w->sink);
}

static void annotations(writer *w) {
  key(w, WORD_EXTERNAL_ANNOTATIONS);
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < w->s->annotation_count; i++) {
    const weir__snapshot_annotation *a = &w->s->annotations[i];
    if (w->device >= 0 && a->device >= 0 && a->device != w->device)
      continue;
    weir__write_open_dict(w->sink);
    text(w, WORD_STAGE, a->stage);
    text(w, WORD_NAME, a->name);
    if (a->device >= 0)
      integer(w, WORD_DEVICE, a->device);
    integer(w, WORD_TIME_US, a->time_us);
    weir__write_close(w->sink);
  }
  weir__write_close(w->sink);
}

static void everything(writer *w) {
  weir__write_open_dict(w->sink);
  key(w, WORD_SEGMENTS);
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < w->s->segment_count && !w->sink->error; i++)
    if (w->device < 0 || w->s->segments[i].device == w->device)
      segment(w, &w->s->segments[i]);
  weir__write_close(w->sink);
  if (w->s->has_history)
    histories(w);
  if (w->s->setting_count)
    settings(w);
  annotations(w);
  weir__write_close(w->sink);
}

weir_status weir__rewrite(const weir__snapshot *snapshot, int device, const weir__sink_format *format, weir__step step,
                          void *step_context, FILE *file) {
  weir_status status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  weir__sink *sink = malloc(sizeof *sink);
  writer w = {.s = snapshot,
              .sink = sink,
              .to = format,
              .device = device,
              .step = step,
              .step_context = step_context,
              .string_memos = calloc(snapshot->strings.count + 1, sizeof(uint32_t)),
              .stack_memos = calloc(snapshot->stack_count + 1, sizeof(uint32_t)),
              .frame_memos = calloc(snapshot->frame_count + 1, sizeof(uint32_t))};
  if (sink && w.string_memos && w.stack_memos && w.frame_memos) {
    weir__sink_begin(sink, format, file);
    everything(&w);
    status = weir__sink_end(sink, "export");
  } else {
    status = weir__fail(status, "export: no host memory to write with");
  }
  free(w.string_memos);
  free(w.stack_memos);
  free(w.frame_memos);
  free(sink);
  return status;
}

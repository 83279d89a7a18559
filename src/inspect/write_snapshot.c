/*
 * Writes snapshots in the schema of PyTorch: the same keys in the same order, so that its readers read these files too.
 */
#include "inspect/write_snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/array.h"
#include "base/base.h"
#include "base/outfile.h"
#include "base/system.h"
#include "inspect/json.h"
#include "inspect/snapshot.h"
#include "inspect/symbols.h"

/* Every word of the schema that is written many times: keys, and the two types of segments. */
#define KEYS(X)                                                                                                        \
  X(SEGMENTS, "segments")                                                                                              \
  X(DEVICE_TRACES, "device_traces")                                                                                    \
  X(ALLOCATOR_SETTINGS, "allocator_settings")                                                                          \
  X(EXTERNAL_ANNOTATIONS, "external_annotations")                                                                      \
  X(HOST_SEGMENTS, "host_segments")                                                                                    \
  X(HOST_TRACES, "host_traces")                                                                                        \
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
  X(PHASE, "phase")                                                                                                    \
  X(PHASE_BEGINS, "phase_begins")                                                                                      \
  X(REASON, "reason")                                                                                                  \
  X(STAGE, "stage")                                                                                                    \
  X(LARGE, "large")                                                                                                    \
  X(SMALL, "small")

typedef enum key {
#define X(name, text) KEY_##name,
  KEYS(X)
#undef X
      KEY_COUNT
} key;

static const char *const key_texts[] = {
#define X(name, text) text,
    KEYS(X)
#undef X
};

/* Memos by the number of what is remembered; a memo is 0 until the value was written. */
typedef struct memo_table {
  uint32_t *memos;
  size_t room;
} memo_table;

struct weir__snapshot_writer {
  const weir__snapshot_view *view;
  weir__sink *sink;
  const weir__sink_format *to; /* the sink's */
  uint32_t key_memos[KEY_COUNT], action_memos[WEIR_TRACE_ACTIONS], state_memos[WEIR_BLOCK_STATES];
  memo_table texts, stacks, frames, pools;
  bool is_out_of_memory;
};

typedef weir__snapshot_writer writer;

/* ---- Values ---- */

static uint32_t *grow_memos(writer *w, memo_table *table, uint32_t number) {
  size_t before = table->room;
  if (!WEIR__RESERVE(table->memos, table->room, (size_t)number + 1)) {
    w->is_out_of_memory = true;
    return NULL;
  }
  memset(table->memos + before, 0, (table->room - before) * sizeof *table->memos);
  return &table->memos[number];
}

/* NULL if out of host memory. */
static inline uint32_t *memo_of(writer *w, memo_table *table, uint32_t number) {
  return number < table->room ? &table->memos[number] : grow_memos(w, table, number);
}

static inline void put_key(writer *w, key name) { w->to->key(w->sink, key_texts[name], &w->key_memos[name]); }

static inline void put_text(writer *w, uint32_t text) {
  w->to->text(w->sink, w->view->text(w->view->source, text), memo_of(w, &w->texts, text));
}

static inline void text(writer *w, key name, uint32_t text) {
  put_key(w, name);
  put_text(w, text);
}

static inline void natural(writer *w, key name, uint64_t value) {
  put_key(w, name);
  w->to->natural(w->sink, value);
}

static inline void integer(writer *w, key name, int64_t value) {
  put_key(w, name);
  w->to->integer(w->sink, value);
}

/* Refers to a whole value that was written before. */
static inline bool put_again(writer *w, const uint32_t *memo) {
  if (!memo || !*memo)
    return false;
  w->to->again(w->sink, *memo);
  return true;
}

/* After a whole value: remembers it, if the format can. */
static inline void keep(writer *w, uint32_t *memo) {
  if (memo && w->to->keep)
    w->to->keep(w->sink, memo);
}

static void pool_id(writer *w, key name, weir_pool_id id, uint32_t *memo) {
  put_key(w, name);
  if (put_again(w, memo))
    return;
  if (!w->view->has_signed_pools || ((int64_t)id.first >= 0 && (int64_t)id.second >= 0))
    w->to->pair(w->sink, id.first, id.second);
  else {
    weir__write_open_list(w->sink);
    w->to->integer(w->sink, (int64_t)id.first);
    w->to->integer(w->sink, (int64_t)id.second);
    weir__write_close(w->sink);
  }
  keep(w, memo);
}

/* ---- Stacks ---- */

void weir__write_frame(writer *w, uint32_t number, uint32_t function, uint32_t file, int64_t line) {
  uint32_t *memo = number == WEIR__VIEW_NONE ? NULL : memo_of(w, &w->frames, number);
  if (put_again(w, memo))
    return;
  weir__write_open_dict(w->sink);
  text(w, KEY_NAME, function);
  text(w, KEY_FILENAME, file);
  integer(w, KEY_LINE, line);
  weir__write_close(w->sink);
  keep(w, memo);
}

static void frames(writer *w, uint32_t stack) {
  uint32_t *memo = memo_of(w, &w->stacks, stack);
  put_key(w, KEY_FRAMES);
  if (put_again(w, memo))
    return;
  weir__write_open_list(w->sink);
  if (!w->view->frames(w->view->source, stack, w))
    w->is_out_of_memory = true;
  weir__write_close(w->sink);
  if (stack) /* an empty list is as small as a reference to one */
    keep(w, memo);
}

/* ---- Segments ---- */

static void block(writer *w, const weir_snapshot_block *b) {
  weir__write_open_dict(w->sink);
  natural(w, KEY_ADDRESS, b->address);
  natural(w, KEY_SIZE, b->bytes);
  natural(w, KEY_REQUESTED_SIZE, b->requested);
  put_key(w, KEY_STATE);
  w->to->text(w->sink, weir_block_state_name((weir_block_state)b->state), &w->state_memos[b->state]);
  frames(w, b->stack);
  weir__write_close(w->sink);
}

static void segment(writer *w, int device, size_t index) {
  const weir__snapshot_view *view = w->view;
  weir_snapshot_segment s;
  int64_t stream;
  if (!view->segment(view->source, device, index, &s, &stream))
    return;
  key type = s.is_large ? KEY_LARGE : KEY_SMALL;
  weir__write_open_dict(w->sink);
  integer(w, KEY_DEVICE, s.device);
  natural(w, KEY_ADDRESS, s.address);
  natural(w, KEY_TOTAL_SIZE, s.bytes);
  natural(w, KEY_ALLOCATED_SIZE, s.allocated);
  natural(w, KEY_ACTIVE_SIZE, s.active);
  natural(w, KEY_REQUESTED_SIZE, s.requested);
  integer(w, KEY_STREAM, stream);
  put_key(w, KEY_SEGMENT_TYPE);
  w->to->text(w->sink, key_texts[type], &w->key_memos[type]);
  pool_id(w, KEY_SEGMENT_POOL_ID, s.pool, NULL);
  put_key(w, KEY_IS_EXPANDABLE);
  w->to->boolean(w->sink, s.is_expandable);
  frames(w, s.stack);
  put_key(w, KEY_BLOCKS);
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < s.block_count; i++) {
    weir_snapshot_block b;
    view->block(view->source, device, index, i, &b);
    block(w, &b);
  }
  weir__write_close(w->sink);
  weir__write_close(w->sink);
}

static void segments(writer *w, key name, int device) {
  put_key(w, name);
  weir__write_open_list(w->sink);
  size_t count = w->view->segment_count(w->view->source, device);
  for (size_t i = 0; i < count && !w->sink->error; i++)
    segment(w, device, i);
  weir__write_close(w->sink);
}

/* ---- History ---- */

static void entry(writer *w, const weir__view_entry *e) {
  weir__write_open_dict(w->sink);
  put_key(w, KEY_ACTION);
  if (e->action_text != WEIR__VIEW_NONE)
    put_text(w, e->action_text);
  else
    w->to->text(w->sink, weir_trace_action_name((weir_trace_action)e->action), &w->action_memos[e->action]);
  natural(w, e->action == WEIR_TRACE_OOM ? KEY_DEVICE_FREE : KEY_ADDR, e->address);
  natural(w, KEY_SIZE, e->bytes);
  integer(w, KEY_STREAM, e->stream);
  if (e->has_time)
    integer(w, KEY_TIME_US, e->time_us);
  text(w, KEY_COMPILE_CONTEXT, e->compile_context);
  text(w, KEY_USER_METADATA, e->user_metadata);
  if (e->pool != WEIR__VIEW_NONE)
    pool_id(w, KEY_POOL_ID, w->view->pool(w->view->source, e->pool), memo_of(w, &w->pools, e->pool));
  if (*w->view->text(w->view->source, e->phase))
    text(w, KEY_PHASE, e->phase);
  if (e->phase_begins) {
    put_key(w, KEY_PHASE_BEGINS);
    w->to->boolean(w->sink, true);
  }
  if (e->reason) {
    put_key(w, KEY_REASON);
    w->to->text(w->sink, e->reason, NULL);
  }
  if (e->stack)
    frames(w, e->stack);
  weir__write_close(w->sink);
}

static size_t entries(writer *w, int device, size_t done) {
  const weir__snapshot_view *view = w->view;
  size_t count = view->entry_count(view->source, device);
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < count && !w->sink->error; i++) {
    weir__view_entry e;
    view->entry(view->source, device, i, &e);
    entry(w, &e);
    if (++done % WEIR__STEP_EVENTS == 0 && view->step)
      view->step(view->step_context, done, view->step_count);
  }
  weir__write_close(w->sink);
  return done;
}

static void annotation(writer *w, const weir__view_annotation *a) {
  weir__write_open_dict(w->sink);
  if (a->stage != WEIR__VIEW_NONE)
    text(w, KEY_STAGE, a->stage);
  if (a->name != WEIR__VIEW_NONE)
    text(w, KEY_NAME, a->name);
  for (size_t i = 0; i < a->pair_count; i++) {
    uint32_t pair_key = a->pairs[i].key;
    w->to->key(w->sink, w->view->text(w->view->source, pair_key), memo_of(w, &w->texts, pair_key));
    put_text(w, a->pairs[i].value);
  }
  if (a->device >= 0)
    integer(w, KEY_DEVICE, a->device);
  integer(w, KEY_TIME_US, a->time_us);
  weir__write_close(w->sink);
}

/* ---- Settings ---- */

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

static void settings(writer *w) {
  const weir__snapshot_setting *s = w->view->settings, *end = s + w->view->setting_count;
  put_key(w, KEY_ALLOCATOR_SETTINGS);
  weir__write_open_dict(w->sink);
  while (s < end) {
    if (!s->sub) {
      setting(w, s->key, s);
      s++;
      continue;
    }
    const char *name = s->key;
    w->to->key(w->sink, name, NULL);
    weir__write_open_dict(w->sink);
    for (; s < end && s->sub && strcmp(s->key, name) == 0; s++)
      setting(w, s->sub, s);
    weir__write_close(w->sink);
  }
  weir__write_close(w->sink);
}

/* ---- A whole snapshot ---- */

static void everything(writer *w) {
  const weir__snapshot_view *view = w->view;
  size_t done = 0;
  weir__write_open_dict(w->sink);
  segments(w, KEY_SEGMENTS, 0);
  if (view->has_history) {
    put_key(w, KEY_DEVICE_TRACES);
    weir__write_open_list(w->sink);
    for (size_t d = 0; d < view->device_count; d++)
      done = entries(w, (int)d, done);
    weir__write_close(w->sink);
  }
  if (view->setting_count)
    settings(w);
  put_key(w, KEY_EXTERNAL_ANNOTATIONS);
  weir__write_open_list(w->sink);
  for (size_t i = 0; i < view->annotation_count; i++) {
    weir__view_annotation a;
    if (view->annotation(view->source, i, &a))
      annotation(w, &a);
  }
  weir__write_close(w->sink);
  if (view->has_host) {
    segments(w, KEY_HOST_SEGMENTS, WEIR__VIEW_HOST);
    put_key(w, KEY_HOST_TRACES);
    entries(w, WEIR__VIEW_HOST, done);
  }
  weir__write_close(w->sink);
}

weir_status weir__write_view(const char *caller, const weir__snapshot_view *view, const weir__sink_format *format,
                             weir_write_fn write, void *context) {
  weir_status status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  weir__sink *sink = malloc(sizeof *sink);
  writer w = {.view = view, .sink = sink, .to = format};
  if (sink) {
    weir__sink_begin(sink, format, write, context);
    everything(&w);
    status = weir__sink_end(sink, caller);
    if (!status && w.is_out_of_memory)
      status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  }
  free(w.texts.memos);
  free(w.stacks.memos);
  free(w.frames.memos);
  free(w.pools.memos);
  free(sink);
  return status == WEIR_ERROR_HOST_OUT_OF_MEMORY
             ? weir__fail(status, "%s%sout of host memory while writing", caller ? caller : "", caller ? ": " : "")
             : status;
}

/* ---- The view of a live snapshot ---- */

typedef struct live_view {
  const weir_snapshot *snapshot;
  weir__symbols *symbols; /* native frames; their texts have the numbers after those of the snapshot */
} live_view;

static const char *live_text(const void *source, uint32_t number) {
  const live_view *live = source;
  size_t count = live->snapshot->texts.count;
  return number < count ? live->snapshot->texts.at[number]
                        : weir__symbols_text(live->symbols, (uint32_t)(number - count));
}

static weir_pool_id live_pool(const void *source, uint32_t number) {
  return ((const live_view *)source)->snapshot->pools[number];
}

/* Pinned host memory has no history. */
static size_t live_segment_count(const void *source, int device) {
  const weir_snapshot *s = ((const live_view *)source)->snapshot;
  return device == WEIR__VIEW_HOST ? s->host_count : s->segment_count;
}

static const weir_snapshot_segment *live_segments(const void *source, int device) {
  const weir_snapshot *s = ((const live_view *)source)->snapshot;
  return device == WEIR__VIEW_HOST ? s->host_segments : s->segments;
}

static bool live_segment(const void *source, int device, size_t index, weir_snapshot_segment *segment,
                         int64_t *stream) {
  *segment = live_segments(source, device)[index];
  *stream = (int64_t)(uintptr_t)segment->stream;
  return true;
}

static void live_block(const void *source, int device, size_t segment, size_t index, weir_snapshot_block *block) {
  *block = live_segments(source, device)[segment].blocks[index];
}

static size_t live_entry_count(const void *source, int device) {
  return device == WEIR__VIEW_HOST ? 0 : ((const live_view *)source)->snapshot->devices[device].event_count;
}

static void live_entry(const void *source, int device, size_t index, weir__view_entry *to) {
  const weir_snapshot *s = ((const live_view *)source)->snapshot;
  const weir__entry *e = &s->devices[device].events[index];
  const weir__taken_context *context = &s->contexts[e->context];
  *to = (weir__view_entry){.address = e->address,
                           .bytes = e->bytes,
                           .stream = (int64_t)e->stream,
                           .time_us = (int64_t)e->time,
                           .stack = e->stack,
                           .pool = e->pool,
                           .compile_context = context->compile_context,
                           .user_metadata = context->user_metadata,
                           .phase = context->phase,
                           .action_text = WEIR__VIEW_NONE,
                           .action = e->action,
                           .reason = weir__entry_is_of_segment(e) ? weir__reason_name(weir__entry_reason(e)) : NULL,
                           .has_time = true,
                           .phase_begins = (e->thread & WEIR__ENTRY_PHASE_BEGINS) != 0};
}

static bool live_annotation(const void *source, size_t index, weir__view_annotation *to) {
  const weir_snapshot *s = ((const live_view *)source)->snapshot;
  const weir__taken_annotation *a = &s->annotations[index];
  *to = (weir__view_annotation){&s->pairs[a->first], a->pair_count, WEIR__VIEW_NONE,
                                WEIR__VIEW_NONE,     a->device,     a->time_us};
  return true;
}

/* An address stands for one frame, and for those that were inlined there. */
static bool native_frames(live_view *live, uintptr_t address, writer *w) {
  uint32_t texts = (uint32_t)live->snapshot->texts.count;
  size_t first, count = weir__symbols_of(live->symbols, address, &first);
  for (size_t i = first; i < first + count; i++) {
    const weir__symbol *s = weir__symbols_at(live->symbols, i);
    weir__write_frame(w, (uint32_t)i, texts + s->function, texts + s->file, s->line);
  }
  return count != 0;
}

static bool live_frames(void *source, uint32_t stack, writer *w) {
  live_view *live = source;
  const weir_snapshot *s = live->snapshot;
  bool done = true;
  for (size_t i = 0; done && i < s->stacks[stack].count; i++) {
    const weir__taken_frame *f = &s->frames[s->stacks[stack].first + i];
    if (f->address)
      done = native_frames(live, f->address, w);
    else
      weir__write_frame(w, WEIR__VIEW_NONE, f->function, f->file, f->line);
  }
  return done;
}

static weir_status write_to(const char *caller, const weir_snapshot *snapshot, weir_snapshot_format format,
                            weir_write_fn write, void *context) {
  if (format != WEIR_SNAPSHOT_PICKLE && format != WEIR_SNAPSHOT_JSON)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: format %d: expected WEIR_SNAPSHOT_PICKLE or _JSON", caller,
                      (int)format);
  weir__snapshot_setting all_settings[WEIR__SETTING_LIST];
  live_view live = {snapshot, weir__symbols_new(NULL)};
  const weir__snapshot_view view = {.source = &live,
                                    .device_count = (size_t)snapshot->device_count,
                                    .annotation_count = snapshot->annotation_count,
                                    .settings = all_settings,
                                    .setting_count = WEIR__SETTING_LIST,
                                    .has_history = true,
                                    .has_host = true,
                                    .text = live_text,
                                    .pool = live_pool,
                                    .segment_count = live_segment_count,
                                    .segment = live_segment,
                                    .block = live_block,
                                    .entry_count = live_entry_count,
                                    .entry = live_entry,
                                    .annotation = live_annotation,
                                    .frames = live_frames};
  weir__setting_list_make(&snapshot->settings, snapshot->texts.at[snapshot->conf], all_settings);
  weir_status status =
      live.symbols
          ? weir__write_view(caller, &view, format == WEIR_SNAPSHOT_JSON ? &weir__json_format : &weir__pickle_format,
                             write, context)
          : weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "%s: out of host memory for writing", caller);
  weir__symbols_delete(live.symbols);
  return status;
}

weir_status weir_snapshot_write(const weir_snapshot *snapshot, weir_snapshot_format format, weir_write_fn write,
                                void *context) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(write);
  return write_to(__func__, snapshot, format, write, context);
}

weir_status weir_snapshot_save(const weir_snapshot *snapshot, weir_snapshot_format format, const char *path) {
  WEIR__CHECK_ARGUMENT(snapshot);
  WEIR__CHECK_ARGUMENT(path);
  weir__outfile out;
  int error = weir__outfile_open(&out, path, WEIR__OUTFILE_WRITE);
  if (error)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot write %s: %s", __func__, path, strerror(error));
  weir_status status = WEIR_OK;
  int descriptor = weir__descriptor_copy(out.fd);
  FILE *file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
  if (!file) {
    error = errno;
    if (descriptor >= 0)
      close(descriptor);
  } else {
    status = write_to(__func__, snapshot, format, weir_write_file, file);
    if (fclose(file) != 0)
      error = errno;
  }
  if (!status && !error)
    error = weir__outfile_keep(&out);
  if (!status && error)
    status = weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot write %s: %s", __func__, path, strerror(error));
  weir__outfile_end(&out);
  return status;
}

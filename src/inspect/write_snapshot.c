/*
 * A snapshot in the schema of PyTorch's: the same keys in the same order, so that whatever reads one reads the other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/base.h"
#include "base/outfile.h"
#include "inspect/snapshot.h"
#include "inspect/symbols.h"
#include "inspect/write_schema.h"

const char *const weir__words[] = {
#define X(name, text) text,
    WEIR__WORDS(X)
#undef X
};

/* What a write needs beside the snapshot. Memos are by the number of what they are of. */
typedef struct writer {
  const weir_snapshot *snapshot;
  weir__schema out;
  weir__symbols *symbols;
  uint32_t *text_memos, *stack_memos, *pool_memos;
  uint32_t *symbol_memos, *symbol_text_memos; /* these grow as symbols are found */
  size_t symbol_room, symbol_text_room;
  bool is_out_of_memory;
} writer;

/* ---- Pieces ---- */

/* A text of the snapshot. */
static inline void text(writer *w, weir__word name, uint32_t number) {
  weir__write_key(&w->out, name);
  w->out.to->text(w->out.sink, w->snapshot->texts.at[number], &w->text_memos[number]);
}

static void plain_text(writer *w, const char *name, const char *value) {
  w->out.to->key(w->out.sink, name, NULL);
  w->out.to->text(w->out.sink, value, NULL);
}

static void plain_integer(writer *w, const char *name, int64_t value) {
  w->out.to->key(w->out.sink, name, NULL);
  w->out.to->integer(w->out.sink, value);
}

static void plain_boolean(writer *w, const char *name, bool value) {
  w->out.to->key(w->out.sink, name, NULL);
  w->out.to->boolean(w->out.sink, value);
}

/* ---- Stacks ---- */

static void frame(writer *w, const char *name, uint32_t *name_memo, const char *file, uint32_t *file_memo, int line) {
  weir__write_open_dict(w->out.sink);
  weir__write_key(&w->out, WEIR__WORD_NAME);
  w->out.to->text(w->out.sink, name, name_memo);
  weir__write_key(&w->out, WEIR__WORD_FILENAME);
  w->out.to->text(w->out.sink, file, file_memo);
  weir__write_integer(&w->out, WEIR__WORD_LINE, line);
  weir__write_close(w->out.sink);
}

/* Zeroed memos for so many. */
static bool more_memos(uint32_t **memos, size_t *room, size_t need) {
  size_t before = *room;
  if (!weir__make_room(memos, room, need, sizeof **memos))
    return false;
  if (*room > before)
    memset(*memos + before, 0, (*room - before) * sizeof **memos);
  return true;
}

/* What an address stands for: one frame, and those that were inlined there. */
static void native_frames(writer *w, uintptr_t address) {
  size_t first, count = weir__symbols_of(w->symbols, address, &first);
  if (!count || !more_memos(&w->symbol_memos, &w->symbol_room, first + count)) {
    w->is_out_of_memory = true;
    return;
  }
  for (size_t i = first; i < first + count; i++) {
    const weir__symbol *s = weir__symbols_at(w->symbols, i);
    if (w->symbol_memos[i]) {
      w->out.to->again(w->out.sink, w->symbol_memos[i]);
      continue;
    }
    uint32_t last = s->function > s->file ? s->function : s->file;
    if (!more_memos(&w->symbol_text_memos, &w->symbol_text_room, (size_t)last + 1)) {
      w->is_out_of_memory = true;
      return;
    }
    frame(w, weir__symbols_text(w->symbols, s->function), &w->symbol_text_memos[s->function],
          weir__symbols_text(w->symbols, s->file), &w->symbol_text_memos[s->file], s->line);
    weir__write_keep(&w->out, &w->symbol_memos[i]);
  }
}

static void frames(writer *w, uint32_t stack) {
  const weir_snapshot *s = w->snapshot;
  weir__write_key(&w->out, WEIR__WORD_FRAMES);
  if (w->stack_memos[stack]) {
    w->out.to->again(w->out.sink, w->stack_memos[stack]);
    return;
  }
  const weir__taken_stack *taken = &s->stacks[stack];
  weir__write_open_list(w->out.sink);
  for (size_t i = taken->first; i < taken->first + taken->count; i++) {
    const weir__taken_frame *f = &s->frames[i];
    if (f->address)
      native_frames(w, f->address);
    else
      frame(w, s->texts.at[f->function], &w->text_memos[f->function], s->texts.at[f->file], &w->text_memos[f->file],
            f->line);
  }
  weir__write_close(w->out.sink);
  if (stack) /* lists without frames are small, and each its own */
    weir__write_keep(&w->out, &w->stack_memos[stack]);
}

/* ---- Segments ---- */

static void block(writer *w, const weir_snapshot_block *b) {
  weir__write_open_dict(w->out.sink);
  weir__write_natural(&w->out, WEIR__WORD_ADDRESS, b->address);
  weir__write_natural(&w->out, WEIR__WORD_SIZE, b->bytes);
  weir__write_natural(&w->out, WEIR__WORD_REQUESTED_SIZE, b->requested);
  weir__write_state(&w->out, b->state);
  frames(w, b->stack);
  weir__write_close(w->out.sink);
}

static void segment(writer *w, const weir_snapshot_segment *s) {
  weir__write_open_dict(w->out.sink);
  weir__write_integer(&w->out, WEIR__WORD_DEVICE, s->device);
  weir__write_natural(&w->out, WEIR__WORD_ADDRESS, s->address);
  weir__write_natural(&w->out, WEIR__WORD_TOTAL_SIZE, s->bytes);
  weir__write_natural(&w->out, WEIR__WORD_ALLOCATED_SIZE, s->allocated);
  weir__write_natural(&w->out, WEIR__WORD_ACTIVE_SIZE, s->active);
  weir__write_natural(&w->out, WEIR__WORD_REQUESTED_SIZE, s->requested);
  weir__write_integer(&w->out, WEIR__WORD_STREAM, (int64_t)(uintptr_t)s->stream);
  weir__write_word(&w->out, WEIR__WORD_SEGMENT_TYPE, s->is_large ? WEIR__WORD_LARGE : WEIR__WORD_SMALL);
  weir__write_key(&w->out, WEIR__WORD_SEGMENT_POOL_ID);
  w->out.to->pair(w->out.sink, s->pool.first, s->pool.second);
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

/* ---- Events ---- */

static void pool_id(writer *w, uint32_t number) {
  weir__write_key(&w->out, WEIR__WORD_POOL_ID);
  if (w->pool_memos[number]) {
    w->out.to->again(w->out.sink, w->pool_memos[number]);
    return;
  }
  w->out.to->pair(w->out.sink, w->snapshot->pools[number].first, w->snapshot->pools[number].second);
  weir__write_keep(&w->out, &w->pool_memos[number]);
}

static void event(writer *w, const weir__entry *e) {
  const weir__taken_context *context = &w->snapshot->contexts[e->context];
  weir__write_open_dict(w->out.sink);
  weir__write_action(&w->out, e->action);
  weir__write_natural(&w->out, e->action == WEIR_TRACE_OOM ? WEIR__WORD_DEVICE_FREE : WEIR__WORD_ADDR, e->address);
  weir__write_natural(&w->out, WEIR__WORD_SIZE, e->bytes);
  weir__write_integer(&w->out, WEIR__WORD_STREAM, (int64_t)e->stream);
  weir__write_integer(&w->out, WEIR__WORD_TIME_US, (int64_t)e->time);
  text(w, WEIR__WORD_COMPILE_CONTEXT, context->compile_context);
  text(w, WEIR__WORD_USER_METADATA, context->user_metadata);
  pool_id(w, e->pool);
  if (*w->snapshot->texts.at[context->phase])
    text(w, WEIR__WORD_PHASE, context->phase);
  if (e->stack)
    frames(w, e->stack);
  weir__write_close(w->out.sink);
}

/* ---- The rest ---- */

static int64_t or_unlimited(uint64_t bytes) { return bytes == UINT64_MAX ? -1 : (int64_t)bytes; }

static void settings(writer *w) {
  const weir__settings *s = &w->snapshot->settings;
  weir__write_open_dict(w->out.sink);
  plain_text(w, "PYTORCH_CUDA_ALLOC_CONF", w->snapshot->texts.at[w->snapshot->conf]);
  plain_integer(w, "max_split_size", or_unlimited(s->max_split_size));
  w->out.to->key(w->out.sink, "garbage_collection_threshold", NULL);
  w->out.to->real(w->out.sink, s->garbage_collection_threshold);
  plain_boolean(w, "expandable_segments", s->expandable_segments);
  plain_integer(w, "pinned_num_register_threads", (int64_t)s->pinned_num_register_threads);
  plain_boolean(w, "release_lock_on_cudamalloc", s->release_lock_on_malloc);
  plain_boolean(w, "pinned_use_cuda_host_register", s->pinned_use_host_register);
  plain_boolean(w, "graph_capture_record_stream_reuse", s->graph_capture_record_stream_reuse);
  plain_integer(w, "max_round_threshold", or_unlimited(s->pinned_max_round_threshold));
  plain_integer(w, "max_cached_size", or_unlimited(s->pinned_max_cached_size));
  w->out.to->key(w->out.sink, "roundup_power2_divisions", NULL);
  weir__write_open_dict(w->out.sink);
  for (int i = 0; i < WEIR__ROUNDUP_INTERVALS; i++) {
    char mib[16];
    snprintf(mib, sizeof mib, "%d", 1 << i);
    plain_integer(w, mib, s->roundup_divisions[i] ? 1 << (s->roundup_divisions[i] - 1) : 0);
  }
  weir__write_close(w->out.sink);
  weir__write_close(w->out.sink);
}

static void annotation(writer *w, const weir__taken_annotation *a) {
  const weir_snapshot *s = w->snapshot;
  weir__write_open_dict(w->out.sink);
  for (size_t i = a->first; i < a->first + 2 * a->pair_count; i += 2) {
    w->out.to->key(w->out.sink, s->texts.at[s->pairs[i]], &w->text_memos[s->pairs[i]]);
    w->out.to->text(w->out.sink, s->texts.at[s->pairs[i + 1]], &w->text_memos[s->pairs[i + 1]]);
  }
  weir__write_integer(&w->out, WEIR__WORD_DEVICE, a->device);
  weir__write_integer(&w->out, WEIR__WORD_TIME_US, a->time_us);
  weir__write_close(w->out.sink);
}

static void everything(writer *w) {
  const weir_snapshot *s = w->snapshot;
  weir__write_open_dict(w->out.sink);
  weir__write_key(&w->out, WEIR__WORD_SEGMENTS);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < s->segment_count; i++)
    segment(w, &s->segments[i]);
  weir__write_close(w->out.sink);

  weir__write_key(&w->out, WEIR__WORD_DEVICE_TRACES);
  weir__write_open_list(w->out.sink);
  for (int d = 0; d < s->device_count; d++) {
    weir__write_open_list(w->out.sink);
    for (size_t i = 0; i < s->devices[d].event_count && !w->out.sink->error; i++)
      event(w, &s->devices[d].events[i]);
    weir__write_close(w->out.sink);
  }
  weir__write_close(w->out.sink);

  weir__write_key(&w->out, WEIR__WORD_ALLOCATOR_SETTINGS);
  settings(w);

  weir__write_key(&w->out, WEIR__WORD_EXTERNAL_ANNOTATIONS);
  weir__write_open_list(w->out.sink);
  for (size_t i = 0; i < s->annotation_count; i++)
    annotation(w, &s->annotations[i]);
  weir__write_close(w->out.sink);

  /* Pinned host memory has no history. */
  weir__write_key(&w->out, WEIR__WORD_HOST_SEGMENTS);
  weir__write_open_list(w->out.sink);
  weir__write_close(w->out.sink);
  weir__write_key(&w->out, WEIR__WORD_HOST_TRACES);
  weir__write_open_list(w->out.sink);
  weir__write_close(w->out.sink);
  weir__write_close(w->out.sink);
}

static weir_status write_to(const char *who, const weir_snapshot *snapshot, weir_snapshot_format format, FILE *file) {
  if (format != WEIR_SNAPSHOT_PICKLE && format != WEIR_SNAPSHOT_JSON)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: format %d, there are WEIR_SNAPSHOT_PICKLE and _JSON", who,
                      (int)format);
  weir_status status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  writer *w = calloc(1, sizeof *w);
  weir__sink *sink = malloc(sizeof *sink);
  if (!w || !sink)
    goto free_both;
  *w = (writer){.snapshot = snapshot,
                .out = {.sink = sink},
                .symbols = weir__symbols_new(NULL),
                .text_memos = calloc(snapshot->texts.count, sizeof(uint32_t)),
                .stack_memos = calloc(snapshot->stack_count, sizeof(uint32_t)),
                .pool_memos = calloc(snapshot->pool_count, sizeof(uint32_t))};
  if (w->symbols && w->text_memos && w->stack_memos && w->pool_memos) {
    weir__sink_begin(sink, format == WEIR_SNAPSHOT_JSON ? &weir__json_format : &weir__pickle_format, file);
    w->out.to = sink->format;
    everything(w);
    status = weir__sink_end(sink, who);
    if (!status && w->is_out_of_memory)
      status = WEIR_ERROR_HOST_OUT_OF_MEMORY;
  }
  weir__symbols_delete(w->symbols);
  free(w->text_memos);
  free(w->stack_memos);
  free(w->pool_memos);
  free(w->symbol_memos);
  free(w->symbol_text_memos);
free_both:
  free(sink);
  free(w);
  return status == WEIR_ERROR_HOST_OUT_OF_MEMORY ? weir__fail(status, "%s: no host memory to write with", who) : status;
}

weir_status weir_snapshot_write(const weir_snapshot *snapshot, weir_snapshot_format format, FILE *file) {
  if (!snapshot || !file)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the %s is NULL", __func__, snapshot ? "file" : "snapshot");
  return write_to(__func__, snapshot, format, file);
}

weir_status weir_snapshot_save(const weir_snapshot *snapshot, weir_snapshot_format format, const char *path) {
  if (!snapshot || !path)
    return weir__fail(WEIR_ERROR_INVALID_ARGUMENT, "%s: the %s is NULL", __func__, snapshot ? "path" : "snapshot");
  weir__outfile out;
  int error = weir__outfile_open(&out, path, WEIR__OUTFILE_WRITE);
  if (error)
    return weir__fail(WEIR_ERROR_SYSTEM, "%s: cannot write %s: %s", __func__, path, strerror(error));
  weir_status status = WEIR_OK;
  int descriptor = fcntl(out.fd, F_DUPFD_CLOEXEC, 0);
  FILE *file = descriptor >= 0 ? fdopen(descriptor, "wb") : NULL;
  if (!file) {
    error = errno;
    if (descriptor >= 0)
      close(descriptor);
  } else {
    status = write_to(__func__, snapshot, format, file);
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

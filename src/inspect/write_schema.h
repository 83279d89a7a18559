/*
 * The schema of PyTorch's snapshots, for those who write one: its words, each with a memo, and values behind them.
 */
#ifndef WEIR_INSPECT_WRITE_SCHEMA_H
#define WEIR_INSPECT_WRITE_SCHEMA_H

#include "inspect/write_sink.h"

#define WEIR__WORDS(X)                                                                                                 \
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
  X(STAGE, "stage")                                                                                                    \
  X(LARGE, "large")                                                                                                    \
  X(SMALL, "small")                                                                                                    \
  X(INACTIVE, "inactive")                                                                                              \
  X(ACTIVE_ALLOCATED, "active_allocated")                                                                              \
  X(ACTIVE_PENDING_FREE, "active_pending_free")                                                                        \
  X(ALLOC, "alloc")                                                                                                    \
  X(FREE_REQUESTED, "free_requested")                                                                                  \
  X(FREE_COMPLETED, "free_completed")                                                                                  \
  X(SEGMENT_ALLOC, "segment_alloc")                                                                                    \
  X(SEGMENT_FREE, "segment_free")                                                                                      \
  X(SEGMENT_MAP, "segment_map")                                                                                        \
  X(SEGMENT_UNMAP, "segment_unmap")                                                                                    \
  X(OOM, "oom")                                                                                                        \
  X(SNAPSHOT, "snapshot")                                                                                              \
  X(ANNOTATE, "annotate")                                                                                              \
  X(USER_DEFINED, "user_defined")

typedef enum weir__word {
#define X(name, text) WEIR__WORD_##name,
  WEIR__WORDS(X)
#undef X
      WEIR__WORD_COUNT
} weir__word;

extern const char *const weir__words[WEIR__WORD_COUNT];

typedef struct weir__schema {
  weir__sink *sink;
  const weir__sink_format *to; /* the sink's */
  uint32_t memos[WEIR__WORD_COUNT];
} weir__schema;

static inline void weir__write_key(weir__schema *s, weir__word name) {
  s->to->key(s->sink, weir__words[name], &s->memos[name]);
}

static inline void weir__write_word(weir__schema *s, weir__word name, weir__word value) {
  weir__write_key(s, name);
  s->to->text(s->sink, weir__words[value], &s->memos[value]);
}

static inline void weir__write_natural(weir__schema *s, weir__word name, uint64_t value) {
  weir__write_key(s, name);
  s->to->natural(s->sink, value);
}

static inline void weir__write_integer(weir__schema *s, weir__word name, int64_t value) {
  weir__write_key(s, name);
  s->to->integer(s->sink, value);
}

/* Behind a whole value that may come again. */
static inline void weir__write_keep(const weir__schema *s, uint32_t *memo) {
  if (s->to->keep)
    s->to->keep(s->sink, memo);
}

#endif

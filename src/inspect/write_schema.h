/*
 * The schema of PyTorch's snapshots, for those who write one: its words, each with a memo, and values behind them.
 */
#ifndef WEIR_INSPECT_WRITE_SCHEMA_H
#define WEIR_INSPECT_WRITE_SCHEMA_H

#include "inspect/write_sink.h"
#include "weir/snapshot.h"

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
  X(SMALL, "small")

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
  uint32_t action_memos[WEIR_TRACE_ACTIONS], state_memos[WEIR_BLOCK_STATES];
} weir__schema;

static inline void weir__write_key(weir__schema *s, weir__word name) {
  s->to->key(s->sink, weir__words[name], &s->memos[name]);
}

static inline void weir__write_word(weir__schema *s, weir__word name, weir__word value) {
  weir__write_key(s, name);
  s->to->text(s->sink, weir__words[value], &s->memos[value]);
}

static inline void weir__write_action(weir__schema *s, unsigned action) {
  weir__write_key(s, WEIR__WORD_ACTION);
  s->to->text(s->sink, weir_trace_action_name((weir_trace_action)action), &s->action_memos[action]);
}

static inline void weir__write_state(weir__schema *s, unsigned state) {
  weir__write_key(s, WEIR__WORD_STATE);
  s->to->text(s->sink, weir_block_state_name((weir_block_state)state), &s->state_memos[state]);
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

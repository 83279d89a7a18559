/*
 * A snapshot as its writer sees it: one model for the live snapshot of an allocator (write_snapshot.c) and for a
 * recording read from a file (offline/render/rewrite.c). The writer asks the view for one item at a time, so neither is
 * copied.
 */
#pragma once

#include "base/sink.h"
#include "inspect/setting_list.h"
#include "weir/snapshot.h"

#define WEIR__VIEW_NONE UINT32_MAX

enum { WEIR__VIEW_HOST = -1 }; /* in place of a device: pinned host memory */

/* Texts, stacks and pools are numbers that the view explains. Stack 0 is empty. */
typedef struct weir__view_entry {
  uint64_t address, bytes;
  int64_t stream, time_us;
  uint32_t stack;                                 /* 0 if none was recorded */
  uint32_t pool;                                  /* WEIR__VIEW_NONE if not recorded */
  uint32_t compile_context, user_metadata, phase; /* texts; an empty phase is not written */
  uint32_t action_text; /* of an action that is not a weir_trace_action; else WEIR__VIEW_NONE */
  unsigned action;
  const char *reason; /* of a segment; NULL if it is not known */
  bool has_time, phase_begins;
} weir__view_entry;

typedef struct weir__text_pair {
  uint32_t key, value; /* texts */
} weir__text_pair;

typedef struct weir__view_annotation {
  const weir__text_pair *pairs;
  size_t pair_count;
  uint32_t stage, name; /* texts, written before the pairs; WEIR__VIEW_NONE if they are among the pairs */
  int device;           /* -1 if not recorded */
  int64_t time_us;
} weir__view_annotation;

typedef struct weir__snapshot_writer weir__snapshot_writer;

/* Progress: `done` of `count` entries are written. */
typedef void (*weir__step)(void *context, size_t done, size_t count);

enum { WEIR__STEP_EVENTS = 4096 }; /* entries from one call to the next */

/* Functions get `source`. Those that return bool return false for an item that is to be left out. */
typedef struct weir__snapshot_view {
  void *source;
  size_t device_count, annotation_count, setting_count;
  const weir__snapshot_setting *settings; /* with a count of 0 the key is not written */
  bool has_history, has_host;             /* whether the lists are written, even if they are empty */
  bool has_signed_pools;                  /* ids of pools may be negative, cast to unsigned */

  const char *(*text)(const void *source, uint32_t number); /* UTF-8 */
  weir_pool_id (*pool)(const void *source, uint32_t number);

  /* Segments of all devices (device 0 or above) or of the host; `blocks` and `stream` of the struct are not used. */
  size_t (*segment_count)(const void *source, int device);
  bool (*segment)(const void *source, int device, size_t index, weir_snapshot_segment *segment, int64_t *stream);
  void (*block)(const void *source, int device, size_t segment, size_t index, weir_snapshot_block *block);

  /* History of one device or of the host. */
  size_t (*entry_count)(const void *source, int device);
  void (*entry)(const void *source, int device, size_t index, weir__view_entry *entry);
  bool (*annotation)(const void *source, size_t index, weir__view_annotation *annotation);

  /* Calls weir__write_frame for each frame of a stack, the innermost first. false if out of host memory. */
  bool (*frames)(void *source, uint32_t stack, weir__snapshot_writer *writer);

  weir__step step; /* or NULL */
  void *step_context;
  size_t step_count; /* entries of all devices */
} weir__snapshot_view;

/* Writes a frame; function and file are texts of the view. A frame with a number (not WEIR__VIEW_NONE) is written once,
 * and referred to afterwards where the format can. */
void weir__write_frame(weir__snapshot_writer *writer, uint32_t number, uint32_t function, uint32_t file, int64_t line);

extern const weir__sink_format weir__pickle_format;

/* Writes a snapshot in PyTorch's schema. `caller` is the public call for error texts, or NULL. */
weir_status weir__write_view(const char *caller, const weir__snapshot_view *view, const weir__sink_format *format,
                             weir_write_fn write, void *context);

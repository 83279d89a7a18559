/*
 * Snapshots inside. Segments and blocks come from the allocator; the recorded part (history entries, stacks,
 * annotations) comes from a source and is copied, so that a snapshot depends on nothing once it is taken.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "alloc/cache/heap.h"
#include "inspect/snapshot_texts.h"
#include "inspect/write_snapshot.h"
#include "record/entry.h"
#include "weir/snapshot.h"

/* ---- The source of the recorded part ---- */

/* The texts of an entry; NULL for those that it does not have. */
typedef struct weir__recorded_context {
  const char *phase, *compile_context, *user_metadata;
} weir__recorded_context;

/* Any function may be NULL, and then provides nothing. Texts that are passed on are copied. */
typedef struct weir__history_source {
  void *context;

  /* Called while the state is copied, with the lock of the device and of all its arenas held: they must be quick, and
   * must not call the allocator. */

  /* The stack that allocated a live block, or 0. */
  uint32_t (*block_stack)(void *context, int device, uint64_t address);

  /* The stack that allocated a segment, or 0. Called with the device's lock alone. */
  uint32_t (*segment_stack)(void *context, const struct weir__segment *segment);
  bool only_active; /* a segment in which nothing is active has no stack */

  /* The state was copied: later entries are not part of this snapshot, and the first of them records that it was
   * taken. */
  void (*cut)(void *context, int device, uint64_t active_bytes);

  /* Called after the cut, with no lock held. */

  /* The entries before the cut, the oldest first, their times in Unix µs. The caller frees the array. */
  weir_status (*events)(void *context, int device, weir__entry **events, size_t *count, uint64_t *dropped);

  /* Adds the frames of a stack to the snapshot, the innermost first. */
  void (*frames)(void *context, uint32_t stack, weir_snapshot *to);
  weir_pool_id (*pool)(void *context, uint32_t number);
  weir__recorded_context (*texts)(void *context, uint32_t number);

  /* Adds the annotations to the snapshot, the oldest first. */
  void (*annotations)(void *context, weir_snapshot *to);
} weir__history_source;

/* ---- The snapshot ---- */

typedef struct weir__taken_frame {
  uintptr_t address; /* the return address of a native frame; 0 for one of a language runtime, described by the rest */
  uint32_t function, file; /* texts */
  int line;
} weir__taken_frame;

typedef struct weir__taken_stack {
  size_t first; /* in frames */
  uint32_t count;
  uint32_t is_used; /* by an entry, block or segment of the snapshot */
} weir__taken_stack;

typedef struct weir__taken_context {
  uint32_t phase, compile_context, user_metadata; /* texts */
} weir__taken_context;

typedef struct weir__taken_annotation {
  size_t first; /* in pairs */
  size_t pair_count;
  int device;
  int64_t time_us; /* since 1970 */
} weir__taken_annotation;

typedef struct weir__taken_device {
  weir__entry *events;
  size_t event_count;
  uint64_t dropped;
} weir__taken_device;

struct weir_snapshot {
  weir_snapshot_segment *segments;
  size_t segment_count;
  weir_snapshot_block *blocks; /* of all segments */
  size_t block_count, block_room;
  weir_snapshot_segment *host_segments; /* of weir_snapshot_add_host, each with one of the next */
  weir_snapshot_block *host_blocks;
  size_t host_count;
  weir__taken_device *devices;
  int device_count;

  /* What the numbers in entries, blocks and segments mean; number 0 is none. */
  weir__taken_stack *stacks;
  size_t stack_count;
  weir__taken_frame *frames;
  size_t frame_count, frame_room;
  weir_pool_id *pools;
  size_t pool_count;
  weir__taken_context *contexts;
  size_t context_count;

  weir__taken_annotation *annotations;
  size_t annotation_count, annotation_room;
  weir__text_pair *pairs;
  size_t pair_count, pair_room;
  weir__text_set texts;
  weir__settings settings;
  uint32_t conf; /* the settings as a text */

  int device;            /* the only one to take, or -1; while it is taken */
  bool is_out_of_memory; /* host memory; while it is taken */
};

/* Takes a snapshot. `source` is NULL if nothing was recorded; `caller` is the public call. */
weir_status weir__snapshot_collect(const char *caller, weir_allocator *allocator, const weir_snapshot_options *options,
                                   const weir__history_source *source, weir_snapshot **snapshot);

/* For sources. A frame has an address, or function, file and line; pairs belong to the annotation that was added
 * last. */
void weir__snapshot_add_frame(weir_snapshot *snapshot, uintptr_t address, const char *function, const char *file,
                              int line);
void weir__snapshot_add_annotation(weir_snapshot *snapshot, int device, int64_t time_us);
void weir__snapshot_add_pair(weir_snapshot *snapshot, const char *key, const char *value);

/* ---- A device frozen at one moment ---- */

/* Snapshots and checkpoints copy the blocks of a device with the locks of all arenas that have memory, so that the copy
 * is consistent in itself and with the entries recorded before it. The heap's lock is held. */
typedef struct weir__frozen_segment {
  const weir__segment *segment;
  size_t first, count; /* its blocks in the copy */
} weir__frozen_segment;

/* Lists the segments of a heap, or of one of its pools unless that is {0, 0}, with those of an arena next to each
 * other. The caller frees the list. false if out of host memory. */
bool weir__frozen_list(const weir__heap *heap, weir_pool_id pool, weir__frozen_segment **list, size_t *count);

static inline bool weir__is_first_of_arena(const weir__frozen_segment *list, size_t i) {
  return i == 0 || list[i].segment->arena != list[i - 1].segment->arena;
}

/* Locks the arenas of all segments, and freezes their counts (alloc/memory/account.h). */
void weir__freeze(const weir__frozen_segment *list, size_t count);
void weir__unfreeze(const weir__frozen_segment *list, size_t count);

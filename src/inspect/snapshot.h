/*
 * A snapshot, inside. The allocator itself tells segments and blocks; what was recorded (events, stacks, annotations) comes
 * from a source, and is copied, so that a snapshot needs nobody once it is taken.
 */
#ifndef WEIR_INSPECT_SNAPSHOT_H
#define WEIR_INSPECT_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "alloc/settings.h"
#include "inspect/snapshot_texts.h"
#include "inspect/write_snapshot.h"
#include "record/entry.h"
#include "weir/snapshot.h"

/* ---- Where the recorded part comes from ---- */

/* A frame of a stack: where a call returns to, or what a language runtime said. */
typedef struct weir__recorded_frame {
  uintptr_t address; /* 0: the following tell */
  const char *function, *file;
  int line;
} weir__recorded_frame;

/* The texts of an event; NULL: none. */
typedef struct weir__recorded_context {
  const char *phase, *compile_context, *user_metadata;
} weir__recorded_context;

typedef struct weir__recorded_pair {
  const char *key, *value;
} weir__recorded_pair;

/* Something that the program marked: texts of its own, as name and stage. */
typedef struct weir__recorded_annotation {
  const weir__recorded_pair *pairs;
  size_t pair_count;
  int device;
  int64_t time_us; /* since 1970 */
} weir__recorded_annotation;

struct weir__segment;

/* Functions that are NULL tell nothing. Texts and arrays that they return need to last until the next call only. */
typedef struct weir__history_source {
  void *context;

  /* These are called while the copy is made, with the device's lock and the locks of all its arenas held: they must not call
   * the allocator, and be quick. */

  /* The stack that a live block was allocated in; 0: none is known. */
  uint32_t (*block_stack)(void *context, int device, uint64_t address);

  /* The same for a segment. Called with the device's lock alone. */
  uint32_t (*segment_stack)(void *context, const struct weir__segment *segment);

  /* The state was copied: events from here on are none of this snapshot, and the first of them is that it was taken. */
  void (*cut)(void *context, int device, uint64_t active_bytes);

  /* The rest is called with no lock held, after the cut. */

  /* The events before the cut, the oldest first, their times in Unix µs; the array is malloc'ed, and the caller's. */
  weir_status (*events)(void *context, int device, weir__entry **events, size_t *count, uint64_t *dropped);

  /* The innermost frame first. Writes at most `room`, returns how many there are. */
  size_t (*frames)(void *context, uint32_t stack, weir__recorded_frame *frames, size_t room);
  weir_pool_id (*pool)(void *context, uint32_t number);
  weir__recorded_context (*texts)(void *context, uint32_t number);

  /* In the order of time. false: there is no annotation of that number, nor a later one. */
  bool (*annotation)(void *context, size_t number, weir__recorded_annotation *annotation);
} weir__history_source;

/* ---- The snapshot ---- */

/* Texts are numbers in weir_snapshot.texts from here on. */
typedef struct weir__taken_frame {
  uintptr_t address; /* 0: the following tell */
  uint32_t function, file;
  int line;
} weir__taken_frame;

typedef struct weir__taken_stack {
  size_t first; /* in frames */
  uint32_t count;
  uint32_t is_used; /* an event, block or segment of the snapshot has it */
} weir__taken_stack;

typedef struct weir__taken_context {
  uint32_t phase, compile_context, user_metadata;
} weir__taken_context;

typedef struct weir__taken_annotation {
  size_t first; /* in pairs */
  size_t pair_count;
  int device;
  int64_t time_us;
} weir__taken_annotation;

typedef struct weir__taken_device {
  weir__entry *events;
  size_t event_count;
  uint64_t dropped;
} weir__taken_device;

struct weir_snapshot {
  weir_snapshot_segment *segments;
  size_t segment_count;
  weir_snapshot_block *blocks; /* of all of them */
  size_t block_count, block_room;
  weir__taken_device *devices;
  int device_count;

  /* What the numbers in events, blocks and segments mean; number 0 is none. */
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
};

/* source NULL: nothing was recorded. `who` is the public call. */
weir_status weir__snapshot_collect(const char *who, weir_allocator *allocator, const weir_snapshot_options *options,
                                   const weir__history_source *source, weir_snapshot **snapshot);

/* Grows a malloc'ed array to room for `need` elements. false: no host memory, and nothing changed. */
bool weir__make_room(void *array, size_t *room, size_t need, size_t element);

#endif

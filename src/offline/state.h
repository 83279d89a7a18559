/*
 * All segments and blocks of a device at one moment: taken from the allocator during a replay, or from the list that a file has.
 */
#ifndef WEIR_OFFLINE_STATE_H
#define WEIR_OFFLINE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/heap.h"
#include "offline/recording.h"

#define WEIR__NO_ENTRY SIZE_MAX

typedef struct weir__state_block {
  uint64_t address, size;
  uint64_t requested; /* in use: what was asked for */
  size_t event; /* in use: that allocated it; WEIR__NO_ENTRY: none in the history. Free, all of a segment: with which
                         that goes before anything is allocated from it */
  uint32_t stack;
  uint32_t age;  /* free: for how many searches of its pool; recorded, a guess, or 0 (offline/ages.h) */
  uint8_t state; /* weir__block_status */
} weir__state_block;

typedef struct weir__state_segment {
  uint64_t address, size; /* of an expandable one: from its first to its last page; what is not mapped is a block */
  int64_t stream;         /* the raw handle */
  int64_t pool[2];
  size_t first, count;    /* blocks */
  uint64_t reserve, page; /* of an expandable one: its address space, and the bytes of a page; 0: not known */
  bool is_small, is_expandable;
} weir__state_segment;

/* All zero is empty. */
typedef struct weir__state {
  weir__state_segment *segments; /* by address */
  size_t segment_count;
  weir__state_block *blocks; /* by address: those of a segment side by side */
  size_t block_count;
  int64_t (*pools)[2]; /* private ones, also without segments, in the order in which they were made; NULL: not known */
  size_t pool_count;
  uint64_t reserved;
} weir__state;

/* Nobody else uses the heap. */
weir_status weir__state_of_heap(weir__heap *heap, weir__state *state);

/* The list of segments at the end of a file. */
weir_status weir__state_of_file(const weir__recording *snapshot, const weir__recording_device *device,
                                weir__state *state);

/* Finds the event that allocated each block in use, going back from event `last`: addresses are the history's. */
void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last);

/* Blocks in use that no event of the history allocated: their stacks are those of the same blocks in another state. */
void weir__state_take_stacks(weir__state *state, const weir__state *from);

/* The segment that an address lies in; NULL: none. */
const weir__state_segment *weir__state_find(const weir__state *state, uint64_t address);

/* A state of its own with the same segments and blocks. */
weir_status weir__state_copy(const weir__state *from, weir__state *state);

void weir__state_clear(weir__state *state);

#endif

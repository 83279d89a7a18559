/*
 * The state of an allocator at one moment: all segments and blocks of a device, in plain data. One type for the
 * checkpoints of a ring file, for replay, and for what is read from a file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weir/snapshot.h"

/* Sizes and addresses of blocks are multiples of this. */
enum { WEIR__STATE_UNIT = 512 };
#define WEIR__STATE_MAX_REQUEST (1ull << 60) /* requests of this size and more fail */
#define WEIR__STATE_MAX_BLOCK (1ull << 41)   /* a block is smaller */

/* A block without memory: a hole of an expandable segment. A state of blocks beside those of weir_block_state. */
enum { WEIR__BLOCK_UNMAPPED = WEIR_BLOCK_STATES };

#define WEIR__NO_ENTRY SIZE_MAX

typedef struct weir__state_block {
  uint64_t address, size;
  uint64_t requested; /* active: what was asked for */
  size_t event;       /* active: the one that allocated it. Free, and a whole segment: the one that frees it before
                       * anything is allocated from it. WEIR__NO_ENTRY if the history does not have it */
  uint32_t stack;     /* of the recording */
  uint32_t age;       /* free: for how many searches of its pool */
  uint8_t state;      /* weir_block_state, or WEIR__BLOCK_UNMAPPED */
} weir__state_block;

typedef struct weir__state_segment {
  uint64_t address, size; /* expandable: from its first to its last page; what is not mapped is a block */
  int64_t stream;         /* the raw handle */
  int64_t pool[2];        /* its id; {0, 0} for the default pool */
  size_t first, count;    /* blocks */
  uint64_t reserve, page; /* expandable: the bytes of its address space and of a page; 0 if not known */
  bool is_small, is_expandable;
} weir__state_segment;

/* All zero is empty. */
typedef struct weir__state {
  weir__state_segment *segments; /* by address */
  size_t segment_count;
  weir__state_block *blocks; /* by address: those of a segment side by side */
  size_t block_count;
  int64_t (*pools)[2]; /* private ones in the order of creation, also those without segments; NULL if not known */
  size_t pool_count;
  uint64_t reserved;
} weir__state;

static inline bool weir__state_is_active(const weir__state_block *block) {
  return block->state == WEIR_BLOCK_ACTIVE_ALLOCATED || block->state == WEIR_BLOCK_ACTIVE_PENDING_FREE;
}

/* Makes an empty state with room for segments, blocks and pools. WEIR_ERROR_HOST_OUT_OF_MEMORY. */
weir_status weir__state_make(size_t segments, size_t blocks, size_t pools, weir__state *state);

void weir__state_clear(weir__state *state);

/* Makes a copy. WEIR_ERROR_HOST_OUT_OF_MEMORY. */
weir_status weir__state_copy(const weir__state *from, weir__state *state);

/* Sorts segments by address, and puts their blocks, which are in order within each, in the same order. */
weir_status weir__state_sort(weir__state *state);

/* The segment that an address lies in; NULL if there is none. */
const weir__state_segment *weir__state_find(const weir__state *state, uint64_t address);

/* The block that begins at an address; NULL if there is none. Blocks of segments that overlap, as in a damaged file,
 * may not be found. */
weir__state_block *weir__state_find_block(const weir__state *state, uint64_t address);

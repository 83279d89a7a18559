/*
 * The life of each block and of each segment in the history of a device, as rectangles: entries × addresses. One pass
 * over the history, without replay.
 *
 * A life begins with the entry that allocates, and ends with the entry that completes the free. What was there before
 * the first entry begins at 0 with is_before, and what is there after the last one ends at WEIR__LIFE_OPEN. If the
 * recording does not say what was there before (lacks_start), lives that no entry of the history shows are missing.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/recording.h"
#include "pattern/life.h"

/* The life of a segment, or of a range of pages of an expandable segment that were mapped together. */
typedef struct weir__segment_life {
  uint64_t address, size;
  uint32_t begin, end;
  uint32_t stack;
  uint32_t pool; /* WEIR__RECORDING_NO_POOL if not known */
  uint16_t stream;
  bool is_before;
  bool is_expandable;
} weir__segment_life;

typedef struct weir__lives {
  weir__life *blocks; /* by `begin`; those from before first */
  size_t block_count, block_room;
  weir__segment_life *segments; /* likewise */
  size_t segment_count, segment_room;
  size_t entry_count;
} weir__lives;

/* Makes the lives of a device of the recording, or of pinned host memory if `device` is -1.
 * WEIR_ERROR_HOST_OUT_OF_MEMORY, or WEIR_ERROR_NOT_SUPPORTED for 2^32 - 1 entries and more. */
weir_status weir__lives_make(const weir__recording *recording, int device, weir__lives *lives);
void weir__lives_clear(weir__lives *lives);

/*
 * The life of each block and of each segment in the history of a device, as rectangles: entries × addresses. One pass
 * over the history, without replay.
 *
 * A life begins with the entry that allocates, and ends with the entry that completes the free. What was there before
 * the first entry begins at 0 with is_before, and what is there after the last one ends at WEIR__LIFE_OPEN. If the
 * recording does not say what was there before (lacks_start), lives that no entry of the history shows are missing.
 */
#ifndef WEIR_OFFLINE_ANALYSE_LIVES_H
#define WEIR_OFFLINE_ANALYSE_LIVES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/read/recording.h"

#define WEIR__LIFE_OPEN UINT32_MAX
#define WEIR__LIFE_NO_POOL 0x7fff

/* The life of a block: what one request got. */
typedef struct weir__life {
  uint64_t address;
  uint64_t size;  /* requested */
  uint32_t begin; /* the entry that allocated it */
  uint32_t freed; /* the entry that requested the free; from there to `end` it waits for other streams */
  uint32_t end;   /* the entry that completed the free */
  uint32_t stack; /* that of the allocation; with is_before that of the free, if it is known */
  uint32_t remark;
  uint16_t stream;
  uint16_t pool : 15; /* WEIR__LIFE_NO_POOL if not known */
  uint16_t is_before : 1;
} weir__life;

_Static_assert(sizeof(weir__life) == 40, "there is one for two entries");

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

#endif

/*
 * Moving pages: blocks lie where expandable segments would put them, and pages that no live block touches are mapped
 * where they are needed before new ones are made.
 */
#pragma once

#include "alloc/cache/heap.h"

/* A block of at least `bytes` of the cache, whose pages were taken, with pages again. NULL if there is none, or if it
 * cannot have pages. The heap's lock is held, and no arena's. */
weir__block *weir__move_cached(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);

/* weir__heap_grow of a pool that grows by moving pages: a block of the cache, or one behind or between the others. */
weir__block *weir__move_pages(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);

/* Releases the pages of a free block that no live block touches, and its aliases. The heap's lock and the arena's are
 * held, and the stream is idle. False if the driver refuses some. */
bool weir__move_release(weir__heap *heap, weir__segment *segment, weir__block *block);

/* Lets the pages of an expandable segment move, whose slots are of the smallest size. False without host memory. */
bool weir__move_from_now(weir__segment *segment, const weir__settings *settings);

/* ---- Which parts of a segment have pages. The arena's lock is held ---- */

/* Whether each slot of a range has a page that belongs there. */
bool weir__is_backed(const weir__segment *segment, uint64_t address, uint64_t bytes);

/* Whether a free block can serve a request as it is. */
bool weir__block_is_backed(weir__arena *arena, const weir__settings *settings, weir__block *block, uint64_t bytes);

/* A block, or a part of a free block that has pages all through, or none. */
typedef struct weir__piece {
  const weir__block *block; /* NULL to begin with */
  uint64_t address, bytes;
  uint8_t state; /* WEIR__UNMAPPED for a part without pages */
} weir__piece;

/* Goes to the next piece of a segment; false behind the last one. */
bool weir__next_piece(const weir__segment *segment, weir__piece *piece);

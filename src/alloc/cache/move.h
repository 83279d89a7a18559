/*
 * Moving pages: blocks lie where expandable segments would put them, and pages that no live block touches are mapped
 * where they are needed before new ones are made.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Whether a block has got pages. If old mappings are in the way, work may still use these; a request may then be placed
 * elsewhere. */
typedef enum weir__given { WEIR__GIVEN, WEIR__IN_THE_WAY, WEIR__NO_MEMORY } weir__given;

/* Gives pages to the first `bytes` of a free block that is outside of the index, and holds it; what is behind them
 * becomes a free block. On failure the block is as before. `is_elsewhere`: larger pages than needed may come. The locks
 * of the heap and of the arena are held. */
weir__given weir__move_to(weir__heap *heap, weir__arena *arena, const weir__settings *settings, weir__block *block,
                          uint64_t bytes, bool is_elsewhere);

/* The same for the best fit of the cache; or else for a larger block of it. NULL if none can have pages now: then they
 * are in the index. */
weir__block *weir__move_to_cached(weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                                  weir__block *block, uint64_t bytes);

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

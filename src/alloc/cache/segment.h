/*
 * Segments: obtaining memory from the driver and giving it back. The heap's lock is held, and no arena's, unless a
 * comment says otherwise.
 */
#pragma once

#include "alloc/cache/heap.h"

/* ---- Growing ---- */

/* A new block of at least `bytes`, outside of the index and held so that its neighbours do not merge it. NULL if the
 * limit is reached, the driver is out of memory, or another call failed (heap->pages.failure). The heap's lock is held,
 * and no arena's. */
weir__block *weir__heap_grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                             uint64_t segment_bytes);

/* Address space reserved by an expandable segment of a stream: 9/8 of the device's memory, or less by the settings. */
uint64_t weir__reserve_bytes(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream);

/* Whether that many more bytes of an arena would exceed the limit of an account: of heap->refused_by then. */
bool weir__over_limit(weir__heap *heap, const weir__arena *arena, uint64_t bytes);

/* Counts pages that arrive at a range, or that leave it, as reserved bytes, and traces it. */
void weir__count_pages(weir__segment *segment, uint64_t address, uint64_t bytes, bool arrive);

/* ---- Giving back. The arena's lock is held too ---- */

/* Frees a segment that is one free block, which is in the index. Returns false, with nothing changed, on failure. */
bool weir__release_segment(weir__heap *heap, weir__block *block);

/* Whether a free block of an expandable segment contains whole pages. */
bool weir__has_whole_pages(const weir__heap *heap, const weir__block *block);

/* Unmaps these pages, and frees the segment if none is left. The block is in the index, and its stream is idle. */
void weir__release_pages(weir__heap *heap, weir__block *block);

/* Whether an arena has a reservation without pages in which aliases may be left: all of its pages have moved away. */
bool weir__has_left_reservations(const weir__heap *heap, const weir__arena *arena);

/* Frees reservations of an arena that have no pages and that the driver refused to free before. `is_idle`: the arena's
 * stream has passed their last use. */
void weir__release_reservations(weir__heap *heap, weir__arena *arena, bool is_idle);

/* ---- Sleep (pools/sleep.c). The arena's lock is held too, and the segment has pages that stay ---- */

/* Releases the whole pages of free blocks, unless graphs write there, and takes what is left of these blocks out of the
 * index, as address space without memory. Marks active blocks: their frees wait until weir__segment_show. False without
 * host memory, with nothing changed. */
bool weir__segment_hide(weir__heap *heap, weir__segment *segment);

/* The reverse, where the segment has pages with memory. */
void weir__segment_show(weir__heap *heap, weir__segment *segment);

/* While the segment is asleep: completes the frees of blocks that were freed meanwhile. */
void weir__segment_settle(weir__segment *segment);

/* Notes that a block was handed out while a stream is captured: its bytes are live from then on, freed or not. No lock
 * is held. */
void weir__note_captured(weir__heap *heap, uint64_t address);

/* The end of the run of units from an address on, up to `end`, that are alike: noted, or not. */
uint64_t weir__captured_run(const weir__segment *segment, uint64_t address, uint64_t end, bool *is_captured);

/* The end of a heap: all of its segments. No arena's lock is held. */
void weir__heap_free_segments(weir__heap *heap);

/* ---- The books ---- */

/* The segment around an address, NULL if there is none; and that of a block. */
weir__segment *weir__segment_at(const weir__heap *heap, uint64_t address);
weir__segment *weir__segment_of(const weir__heap *heap, const weir__block *block);
weir__segment *weir__segment_lookup(weir__heap *heap, const weir__block *block); /* whichever locks are held */

/* For memory that does not come from the driver. NULL if out of host memory, or if it overlaps another segment. */
weir__segment *weir__segment_new(weir__heap *heap, weir__arena *arena, uint64_t base, uint64_t bytes);
void weir__segment_unlink(weir__heap *heap, weir__segment *segment);
void weir__segment_delete(weir__segment *segment);

/* Counts a segment that was obtained or returned. The arena's lock is held too. */
void weir__segment_count(weir__heap *heap, weir__segment *segment, int segments, int64_t bytes);

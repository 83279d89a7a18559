/*
 * Segments: obtaining memory from the driver and giving it back. The heap's lock is held, and no arena's, unless a
 * comment says otherwise.
 */
#ifndef WEIR_ALLOC_SEGMENT_H
#define WEIR_ALLOC_SEGMENT_H

#include "alloc/heap.h"

/* ---- Growing ---- */

/* A new block of at least `bytes`, outside of the index and held so that its neighbours do not merge it. NULL if the
 * limit is reached, the driver is out of memory, or another call failed (heap->driver_error). */
weir__block *weir__heap_grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                             uint64_t segment_bytes);

/* Address space reserved by an expandable segment of a stream: 9/8 of the device's memory, or less by the settings. */
uint64_t weir__reserve_bytes(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream);

/* Asks the driver about the device's pages. */
void weir__pages_prepare(weir__heap *heap);

/* ---- Giving back. The arena's lock is held too ---- */

/* Frees a segment that is one free block, which is in the index. Returns false, with nothing changed, on failure. */
bool weir__release_segment(weir__heap *heap, weir__block *block);

/* Whether a free block of an expandable segment contains whole pages. */
bool weir__has_whole_pages(const weir__heap *heap, const weir__block *block);

/* Unmaps these pages, and frees the segment if none is left. The block is in the index, and its stream is idle. */
void weir__release_pages(weir__heap *heap, weir__block *block);

/* Frees reservations of an arena that have no pages and that the driver refused to free before. */
void weir__release_reservations(weir__heap *heap, weir__arena *arena);

/* Releases physical memory that the driver refused to release before. Needs no arena's lock, as the next. */
void weir__release_orphans(weir__heap *heap);

/* The end of a heap: all of its segments. */
void weir__heap_free_segments(weir__heap *heap);

/* ---- The books ---- */

/* The segment around an address, NULL if there is none; and that of a block. */
weir__segment *weir__segment_at(const weir__heap *heap, uint64_t address);
weir__segment *weir__segment_of(const weir__heap *heap, const weir__block *block);
weir__segment *weir__segment_lookup(weir__heap *heap, const weir__block *block); /* whichever locks are held */

/* For memory that does not come from the driver. NULL if out of host memory, or if it overlaps another segment. */
weir__segment *weir__segment_new(weir__heap *heap, weir__arena *arena, uint64_t base, uint64_t bytes, uint64_t page);
void weir__segment_unlink(weir__heap *heap, weir__segment *segment);
void weir__segment_delete(weir__segment *segment);

/* Counts memory that was obtained or returned. `segments` is 0 for pages. */
void weir__segment_count(weir__heap *heap, weir__segment *segment, int segments, int64_t bytes);

/* ---- Captures and peers ---- */

/* A capture forbids calls like cuMemAlloc, although the graph does not depend on them: the thread's capture mode is
 * relaxed around such calls. False if that failed; the call would then end the capture. restore takes the mode that
 * came out. */
bool weir__capture_relax(weir__heap *heap, int *mode);
void weir__capture_restore(weir__heap *heap, int mode);

/* The devices that may access pages: this one and its peers. Returns their number. */
size_t weir__list_access(const weir__heap *heap, weir_cu_mem_access access[64]);

/* Lets another device access what is mapped now. */
weir_cu_result weir__share_segments(weir__heap *heap, int device);

#endif

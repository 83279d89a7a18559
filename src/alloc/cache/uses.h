/*
 * Blocks that other streams use (uses.c), also within a capture (capture_reuse.c). The heap's lock is held.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Frees a block once the other streams using it have passed this point. `entered`: the device context is current. */
void weir__free_later(weir__heap *heap, weir__block *block, bool entered);

/* The same, with the context made current. */
void weir__free_in_heap(weir__heap *heap, weir__block *block);

/* weir__poll_events of a heap whose lock is not held. */
void weir__poll_heap(weir__heap *heap, weir_cu_stream current);

/* Ends one wait of a freed block: for an event, or for other processes (sent.h). */
void weir__block_collected(weir__heap *heap, weir__block *block);

/* The end of a freed block that waits for nothing any more. Under full guard its pages are released with it. The
 * arena's lock is held too. */
void weir__end_block(weir__heap *heap, weir__arena *arena, weir__block *block);

/* The tag of an active block is awake again: completes its free if it was freed meanwhile. Returns the block, or the
 * free one that it has become a part of. The arena's lock is held too. */
weir__block *weir__block_wake(weir__heap *heap, weir__arena *arena, weir__block *block);

/* Releases blocks whose events have completed. */
void weir__poll_events(weir__heap *heap, weir_cu_stream current);

/* The same, and waits for the events. Collects memory that other processes have released, without waiting for it. */
void weir__wait_for_events(weir__heap *heap);

/* Waits for the work that a stream has now. False if it cannot be waited for. */
bool weir__wait_for_stream(weir__heap *heap, weir_cu_stream stream);
void weir__events_clear(weir__heap *heap);

/* Whether a stream has no work left; asks, and does not wait. A stream that is being captured is never idle. */
bool weir__stream_is_idle(weir__heap *heap, weir_cu_stream stream);
bool weir__is_in_capture(const weir__heap *heap, weir_cu_stream stream);

/* weir_allocator_record_stream of the cache, by address. No lock is held. */
weir_status weir__record_stream(const char *caller, weir_allocator *allocator, uint64_t address, weir_cu_stream stream);

/* Counts events and deferred blocks, and keeps WEIR__SLOW_PENDING up to date. */
void weir__pending_add(weir__heap *heap, int by);

/* Within a capture: remembers how far the streams of a block are, and releases the blocks of `stream` whose positions
 * it has passed. weir__capture_of is the capture that a stream is in; 0 if none, or if such reuse is off. */
void weir__capture_position_take(weir__heap *heap, const weir__block *block, weir__deferred *deferred);
void weir__capture_positions_poll(weir__heap *heap, weir_cu_stream stream);
unsigned long long weir__capture_of(weir__heap *heap, weir_cu_stream stream);

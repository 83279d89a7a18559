/*
 * Single pointers: lookup, and allocation at a given address.
 */
#pragma once

#include "alloc/cache/heap.h"

/* The live block of a pointer, with its arena locked and flushed; NULL if there is none. */
weir__block *weir__block_lock(weir_allocator *allocator, uint64_t address, weir__arena **arena);

/* Fails a call for a pointer that is not live. The second also says what is at that address: memory of another
 * allocator, memory that was freed, or the middle of a live allocation. No lock is held. */
weir_status weir__no_block(const char *caller, uint64_t address);
weir_status weir__no_block_because(const char *caller, weir_allocator *allocator, uint64_t address);

/*
 * Moving pages: before new memory is made for a request, free pages that lie in holes are mapped where it is needed.
 */
#pragma once

#include "alloc/cache/heap.h"

/* weir__heap_grow of a pool that grows by moving pages. The heap's lock is held. */
weir__block *weir__move_pages(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);

/* The same, but only if the pages need not be mapped: makes no call of the driver, so no context has to be current. */
weir__block *weir__return_pages(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);

/* Frees a block that is marked as gathered, and sends its pages back. No lock is held. False if there is no such block.
 */
bool weir__free_gathered(weir__heap *heap, weir__arena *arena, uint64_t address);

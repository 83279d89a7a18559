/*
 * The walkers of the allocator's structures: they recount everything, and log what is wrong.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Walks all structures and recounts them: blocks tile their segments, free, live and unmapped blocks are found where
 * they are looked up, and every statistic agrees with the blocks. While no other thread uses the allocator. */
bool weir__allocator_is_valid(weir_allocator *allocator);

bool weir__pages_is_valid(const weir__pages *pages);

/* Whether a block is in the index, where a search would find it. */
bool weir__index_has(const weir__index *index, const weir__block *block);

/* Walks the whole index and counts its blocks. Returns -1 if one is out of place. */
long weir__index_count(const weir__index *index);

/*
 * The walkers of the allocator's structures: they recount everything, and log what is wrong.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Walks all structures and recounts them: blocks tile their segments, free, live and unmapped blocks are found where
 * they are looked up, and every statistic agrees with the blocks. While no other thread uses the allocator. */
bool weir__allocator_is_valid(weir_allocator *allocator);

bool weir__pages_is_valid(const weir__pages *pages);

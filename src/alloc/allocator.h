/*
 * Creating an allocator (allocator.c), and checking it as a whole (valid.c).
 */
#ifndef WEIR_ALLOC_ALLOCATOR_H
#define WEIR_ALLOC_ALLOCATOR_H

#include "alloc/cache/heap.h"

/* weir_allocator_create without recording from the environment, on behalf of the public call `caller`. */
weir_status weir__allocator_new(const char *caller, weir_driver *driver, const weir_allocator_options *options,
                                weir_allocator **allocator);

/* Refuses settings with a back end other than the cache. */
weir_status weir__check_backend(const weir__settings *settings);

/* Walks all structures and recounts them: blocks tile their segments, free, live and unmapped blocks are found where
 * they are looked up, and every statistic agrees with the blocks. Logs each violation. For tests, while no other thread
 * uses the allocator. */
bool weir__allocator_is_valid(weir_allocator *allocator);

#endif

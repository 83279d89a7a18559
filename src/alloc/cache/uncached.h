/*
 * Allocations with caching off.
 */
#pragma once

#include "alloc/cache/heap.h"

weir_status weir__uncached_alloc(const char *caller, weir__heap *heap, uint64_t bytes, uint64_t *address);

/* False if the memory was not allocated with caching off. */
bool weir__uncached_free(const char *caller, weir_allocator *allocator, uint64_t address, weir_status *status);

/* The heap of such a pointer; NULL for any other. `bytes`, which may be NULL, is set to its size. */
weir__heap *weir__uncached_find(weir_allocator *allocator, uint64_t address, uint64_t *bytes);
void weir__uncached_clear(weir_allocator *allocator);
bool weir__caching_from_env(void);

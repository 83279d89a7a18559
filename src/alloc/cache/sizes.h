/*
 * Sizes of segments. Rounding and splitting, which the fast path needs, are in heap.h.
 */
#ifndef WEIR_ALLOC_CACHE_SIZES_H
#define WEIR_ALLOC_CACHE_SIZES_H

#include "alloc/cache/heap.h"

/* Size of the segment that is obtained for a rounded request. */
uint64_t weir__segment_bytes(const weir__settings *settings, uint64_t bytes);

#endif

/*
 * Sizes of segments. Rounding and splitting, which the fast path needs, are in heap.h.
 */
#pragma once

#include "alloc/cache/heap.h"

/* Size of the segment that is obtained for a rounded request. */
uint64_t weir__segment_bytes(const weir__settings *settings, uint64_t bytes);

/*
 * The observers of the program, and the witness of an adapter. No lock is held.
 */
#pragma once

#include "alloc/cache/heap.h"

void weir__observe_entry(weir_allocator *allocator, const weir_trace_entry *entry);
void weir__observe_shortage(weir_allocator *allocator, const weir_shortage *shortage);

void weir__observe_soft_limit(weir_allocator *allocator, const weir_soft_limit *limit);

/* Whether one of them freed memory. */
bool weir__observe_free_memory(weir_allocator *allocator, int device);

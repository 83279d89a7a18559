/*
 * A cache miss (miss.c), and its end when there is no memory (oom.c).
 */
#pragma once

#include "alloc/cache/heap.h"

/* Serves a request that no free block of the arena serves. No lock is held. */
weir_status weir__alloc_miss(const char *caller, weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                             uint64_t size, uint64_t requested, uint64_t *address);

/* Returns a held block, not in the index; NULL if out of memory or if heap->pages.failure. The heap's lock is held. */
weir__block *weir__refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);

/* Calls the program's free-memory callbacks, without the heap's lock, which is held before and after. False if they
 * freed nothing. */
bool weir__run_callbacks(weir__heap *heap);

/* Fails a request: calls the observers and sets the message. The heap's lock is held, and released. */
weir_status weir__out_of_memory(const char *caller, weir__heap *heap, weir__arena *arena, uint64_t bytes,
                                uint64_t segment_bytes);

/* throw_on_cudamalloc_oom: rejects a request that would exceed the limit before the driver is asked. The heap's lock is
 * held; it is released if the result is not WEIR_OK. */
weir_status weir__reject(const char *caller, weir__heap *heap, weir_cu_stream stream, const weir__settings *settings,
                         uint64_t segment_bytes, uint64_t requested);

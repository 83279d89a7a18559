/*
 * What the file of WEIR_RECORD has to know beside events. Without such a file nothing happens.
 */
#ifndef WEIR_INSPECT_RECORD_ENV_H
#define WEIR_INSPECT_RECORD_ENV_H

#include "alloc/heap.h"

/* The settings have changed; configure_lock is held. */
void weir__record_settings(weir_allocator *allocator);

/* An expandable segment had a free block for a request that the cache could not serve: until it is handed out, other
 * threads may free what lies beside it. Where memory is mapped for the request, that is told anyway. The arena's lock
 * is held. */
void weir__record_taken(weir__arena *arena, const weir__block *block);

/* The limit has changed; the heap's lock is held. */
void weir__record_limit(const weir__heap *heap);

#endif

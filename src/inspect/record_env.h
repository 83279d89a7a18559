/*
 * Recording to a ring file: from the environment, and on request while the program runs.
 */
#pragma once

#include "alloc/cache/heap.h"
#include "weir/history.h"

/* The rank of this process as set by the launcher, or -1. */
int64_t weir__rank_from_env(void);

/* Begins to record an allocator that has never kept a history, in a new file of at most so many bytes. Returns NULL, or
 * why that cannot be done. It ends by weir__record_stop, or when a request fails for lack of memory; the file stays. */
const char *weir__record_start(weir_allocator *allocator, const char *path, uint64_t bytes,
                               const weir_history_options *options);
void weir__record_stop(weir_allocator *allocator);

/* Whether it was ended by either; not if the program has turned its history off. */
bool weir__record_has_stopped(const weir_allocator *allocator);

/*
 * What a thread did in one go, brought together.
 *
 * In the order of time, what several threads did at once is mixed: between the segment that a request asked for and the block
 * that it got, others have used the cache. Whoever reads a history takes the segments that stand before a request for its own.
 */
#ifndef WEIR_RECORD_OPERATIONS_H
#define WEIR_RECORD_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "record/entry.h"

/* Entries of one device in the order of time. What a request did with segments is put right before it, or the request to where
 * that began if memory was given back and taken; segments of a stream's pool that the program gave back in one go stand together.
 * What says which blocks of a pool and stream are free keeps its order, so nothing is lost by it; only in expandable segments it
 * matters when a block was taken, and with `leaves_taken` that stays where it is. With no host memory, or where all is of one thread,
 * nothing changes. */
void weir__entries_join(weir__entry *entries, size_t count, bool leaves_taken);

/* A request whose block was taken out of an expandable segment, while others did something until it was handed out. */
typedef struct weir__early {
  size_t entry;   /* where it was taken: the first that is of the request, or that came after it */
  size_t request; /* where it was handed out */
} weir__early;

/* Takes the entries WEIR__ACTION_TAKEN out, and finds those requests, in their order. `early` has room for as many as there are
 * entries of that kind and maps; *early_count becomes how many it has, and what comes back is how many entries are left. */
size_t weir__entries_take_early(weir__entry *entries, size_t count, weir__early *early, size_t *early_count);

#endif

/*
 * Brings together what a thread did in one operation.
 *
 * In order of time, the operations of several threads are mixed: between the segment that a request asked for and the
 * block that it got, other threads have used the cache. A reader of a history attributes the segments before a request
 * to that request.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "record/entry.h"

/* Reorders the entries of one device, which are in order of time. What a request did with segments moves right before
 * it; if it released memory and took some, the request moves to where that began. Segments that the program released
 * from a pool of a stream in one call become adjacent. Entries that decide which blocks of a pool and stream are free
 * keep their order, so the history means the same. Only in expandable segments it also matters when a block was taken;
 * with `leaves_taken`, such entries stay where they are. Nothing changes if the host has no memory, or if all entries
 * are of one thread. */
void weir__entries_join(weir__entry *entries, size_t count, bool leaves_taken);

/* A request whose block was taken from an expandable segment some time before it was handed out. */
typedef struct weir__early {
  size_t entry;   /* where it was taken: the first entry of the request, or the first after that */
  size_t request; /* where it was handed out */
} weir__early;

/* Removes the entries WEIR__ACTION_TAKEN, and finds those requests, in their order. `early` has room for as many as
 * there are entries of that kind and maps; *early_count becomes their number. Returns how many entries are left. */
size_t weir__entries_take_early(weir__entry *entries, size_t count, weir__early *early, size_t *early_count);

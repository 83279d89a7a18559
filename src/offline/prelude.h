/*
 * A history that begins late, or whose ring dropped its oldest events, lacks what was there before. That is found by going
 * back from the list of segments at the end, and events that lead there are put in front of the history. Whether they really
 * do, a checked replay of the result tells: it differs where they do not.
 *
 * Segments that were made in one piece can be rebuilt. Expandable ones cannot: which of their pages were mapped in which order
 * is not known.
 */
#ifndef WEIR_OFFLINE_PRELUDE_H
#define WEIR_OFFLINE_PRELUDE_H

#include "offline/snapshot.h"

typedef struct weir__prelude {
  weir__snapshot snapshot; /* the file's, with a longer history of one device; not to be freed as one */
  size_t event_count;      /* that were put in front */
  size_t block_count;      /* allocations that were there */
  size_t segment_count;
} weir__prelude;

/* `snapshot` must outlive it. */
weir_status weir__prelude_make(const weir__snapshot *snapshot, int device, weir__prelude *prelude);

/* All zero may be cleared too. */
void weir__prelude_clear(weir__prelude *prelude);

#endif

/*
 * A history that begins late, or whose ring dropped its oldest events, lacks what was there before. That is found by going
 * back from the list of segments at the end, event by event: which segments and pages there were, and which of their blocks
 * were in use. What was allocated and freed out of sight has left no trace, and needs none: free blocks merge.
 *
 * What is not in the file, and is concluded:
 * - How far a block reaches that is freed in the history: it was cut off by the rules of the recorded settings, or reaches to
 *   where something was allocated behind it.
 * - Which pages are of one expandable segment, and where it begins: pages of one stream, pool and size class that lie side by
 *   side; and no lower than the lowest of them that is ever seen.
 * - The private pool and the size class of pages that are unmapped in the history: those of the nearest pages that are known.
 *
 * Whether that is right, a checked replay from there tells: it differs where it is not.
 *
 * A recording of WEIR_RECORD has checkpoints instead; the reader has chosen one, and nothing is inferred.
 */
#ifndef WEIR_OFFLINE_INITIAL_STATE_H
#define WEIR_OFFLINE_INITIAL_STATE_H

#include "offline/state.h"

/* The state before event `first`, blocks with the stacks that are known; empty for a history that is complete.
 * `settings` are the recorded ones. Where the file has a checkpoint, `first` is 0. */
weir_status weir__initial_state_make(const weir__recording *recording, const weir__recording_device *device,
                                     size_t first, const weir__settings *settings, weir__state *start);

#endif

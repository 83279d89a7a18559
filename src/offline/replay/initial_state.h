/*
 * Infers the state before the first event. A history that begins late, or whose ring dropped its oldest events, lacks
 * it. Going back from the list of segments at the end, event by event, shows which segments and pages there were, and
 * which of their blocks were in use. What was allocated and freed before has left no trace, and needs none: free blocks
 * merge.
 *
 * What is not recorded, and is inferred:
 * - The size of a block that is freed in the history: it was split by the rules of the recorded settings, or ends where
 *   something was allocated after it.
 * - Which pages belong to one expandable segment, and where it begins: adjacent pages of one stream, pool and size
 *   class; no lower than the lowest page that is ever seen.
 * - The private pool and the size class of pages that are unmapped in the history: those of the nearest known pages.
 *
 * A checked replay shows whether all of that is right: it differs where it is not.
 *
 * A recording of WEIR_RECORD has checkpoints instead: the reader has chosen one, and nothing is inferred.
 */
#pragma once

#include "alloc/replay_port.h"
#include "offline/read/recording.h"

/* Makes the state before event `first`, with the stacks that are known; empty for a complete history. `settings` are
 * the recorded ones. If the recording has a checkpoint, `first` is 0. */
weir_status weir__initial_state_make(const weir__recording *recording, const weir__recording_device *device,
                                     size_t first, const weir__settings *settings, weir__state *start);

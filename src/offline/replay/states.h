/*
 * States (record/state.h) of a replay and of a recording.
 */
#pragma once

#include <stddef.h>

#include "offline/read/recording.h"
#include "record/state.h"
#include "weir/alloc.h"

/* Reads the state of device 0 of an allocator that a replay of the recording uses; streams have the recorded handles.
 * No other thread uses the allocator. */
weir_status weir__state_of_replay(const weir__recording *recording, weir_allocator *allocator, weir__state *state);

/* Reads the list of segments at the end of a recording. */
weir_status weir__state_of_file(const weir__recording *recording, const weir__recording_device *device,
                                weir__state *state);

/* Finds the event that allocated each active block, going back from event `last`. Addresses must be the history's. */
void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last);

/* Takes the stacks of active blocks that no event allocated from the same blocks in another state. */
void weir__state_take_stacks(weir__state *state, const weir__state *from);

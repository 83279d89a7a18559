/*
 * All segments and blocks of a device at one moment: from the allocator during a replay, or from the list of a
 * recording. The types are those of alloc/replay_port.h. The event of an active block is the one that allocated it, or
 * WEIR__NO_ENTRY if the history does not have it; that of a free block that is a whole segment is the one that frees it
 * before anything is allocated from it, or WEIR__NO_ENTRY. Stacks are those of the recording.
 */
#ifndef WEIR_OFFLINE_STATE_H
#define WEIR_OFFLINE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/replay_port.h"
#include "offline/recording.h"

#define WEIR__NO_ENTRY SIZE_MAX

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

/* The segment that an address lies in; NULL if there is none. */
const weir__state_segment *weir__state_find(const weir__state *state, uint64_t address);

/* Makes a copy. */
weir_status weir__state_copy(const weir__state *from, weir__state *state);

void weir__state_clear(weir__state *state);

#endif

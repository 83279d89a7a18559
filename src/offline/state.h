/*
 * All segments and blocks of a device at one moment: taken from the allocator during a replay, or from the list that a file has.
 */
#ifndef WEIR_OFFLINE_STATE_H
#define WEIR_OFFLINE_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/replay_port.h"
#include "offline/recording.h"

#define WEIR__NO_ENTRY SIZE_MAX

/* Reads the state of an allocator's device 0. No other thread uses the allocator. */
weir_status weir__state_of_allocator(weir_allocator *allocator, weir__state *state);

/* The list of segments at the end of a file. */
weir_status weir__state_of_file(const weir__recording *recording, const weir__recording_device *device,
                                weir__state *state);

/* Finds the event that allocated each block in use, going back from event `last`: addresses are the history's. */
void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last);

/* Blocks in use that no event of the history allocated: their stacks are those of the same blocks in another state. */
void weir__state_take_stacks(weir__state *state, const weir__state *from);

/* The segment that an address lies in; NULL: none. */
const weir__state_segment *weir__state_find(const weir__state *state, uint64_t address);

/* A state of its own with the same segments and blocks. */
weir_status weir__state_copy(const weir__state *from, weir__state *state);

void weir__state_clear(weir__state *state);

#endif

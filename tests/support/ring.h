/*
 * For recordings whose ring has wrapped: compares the state at the end of a file, as given by a checkpoint and a
 * checked replay, with the recorded allocator.
 */
#pragma once

#include "offline/replay/replay.h"
#include "support/recording.h"

/* Replays the last window of a device. Fails if the replay differs, or if its final segments and blocks are not those
 * of the allocator; the allocator may be NULL. Returns the number of events in the window. */
size_t check_window(const char *path, int device, weir_allocator *allocator);

/* The same for a loaded file. */
size_t check_loaded(const weir__recording *snapshot, int device, weir_allocator *allocator);

/*
 * For tests of recordings whose ring wrapped: compares the state at the end of a file, as a checkpoint and a checked
 * replay give it, with the allocator that was recorded.
 */
#ifndef WEIR_TEST_RING_H
#define WEIR_TEST_RING_H

#include "offline/replay.h"
#include "support/recording.h"

/* Replays the last window of a device, and fails where something differs, or where the segments and blocks at its end
 * are not those that the allocator has. With NULL for the allocator only the first. Returns how many events the window
 * has. */
size_t check_window(const char *path, int device, weir_allocator *allocator);

/* The same of a file that was loaded. */
size_t check_loaded(const weir__recording *snapshot, int device, weir_allocator *allocator);

#endif

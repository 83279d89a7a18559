/*
 * Checkpoints for the file of WEIR_RECORD (observe/ringfile.h): the segments and blocks of a device at one moment.
 */
#ifndef WEIR_OBSERVE_CHECKPOINT_H
#define WEIR_OBSERVE_CHECKPOINT_H

#include <time.h>

#include "alloc/heap.h"
#include "observe/ringfile.h"

/* Copies the state of a device and writes it to the file. The file's checkpoint_lock is held, and no lock of the allocator. It waits
 * for the heap's lock until a moment of CLOCK_REALTIME, or with NULL as long as it takes. A file that has no room for it says so once.
 * false: nothing was written. */
bool weir__checkpoint_take(weir__heap *heap, weir__history *history, weir__ringfile *file,
                           const struct timespec *until);

#endif

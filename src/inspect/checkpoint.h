/*
 * Checkpoints for the file of WEIR_RECORD (record/ring_file.h): the segments and blocks of a device at one moment.
 */
#ifndef WEIR_INSPECT_CHECKPOINT_H
#define WEIR_INSPECT_CHECKPOINT_H

#include <time.h>

#include "alloc/heap.h"
#include "base/base.h"
#include "record/ring_file.h"

/* Copies the state of a device and writes it to the file. The caller holds the file's checkpoint_lock and no lock of
 * the allocator. `deadline_ns` (weir__monotonic_ns, or WEIR__NO_DEADLINE) bounds the wait for the heap's lock. Warns
 * once if the file has no room. Returns false if nothing was written. */
bool weir__checkpoint_take(weir__heap *heap, weir__recorder *history, weir__ring_file *file, uint64_t deadline_ns);

#endif

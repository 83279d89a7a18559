/*
 * Checkpoints for the file of WEIR_RECORD (record/ring_file.h): the segments and blocks of a device at one moment.
 */
#pragma once

#include "alloc/cache/heap.h"
#include "base/base.h"
#include "record/ring_file.h"

/* The ring file of a device; NULL if there is none, or if it belongs to the parent of a fork. */
weir__ring_file *weir__checkpoint_file(const weir__heap *heap, weir__recorder **history);

/* Recording has begun, or was cleared: the present state is the beginning of the recording. No lock is held. */
void weir__checkpoint_begin(weir_allocator *allocator);

/* Takes the checkpoints of the devices where one is due, or of all. No lock is held. */
void weir__checkpoints_take(weir_allocator *allocator, bool all);

/* WEIR__SLOW_CHECKPOINT is set: takes the checkpoint, or waits for the thread that takes it. No lock is held. */
void weir__checkpoint_take_due(weir__heap *heap);

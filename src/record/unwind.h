/*
 * Stacks without libunwind, once it has told how: it finds out for each place of a call how its frame is left, and that does
 * not change. What was told is kept, and a stack of known places is walked in a few instructions a frame.
 */
#ifndef WEIR_RECORD_UNWIND_H
#define WEIR_RECORD_UNWIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The library, loaded. false: it lacks something, or this is a processor that is not known here; then nothing is ever found. */
bool weir__unwind_start(void *library);

/* The addresses to which a frame and all around it return. `frame` is its __builtin_frame_address(0). 0: something is not known,
 * or there is not enough room; libunwind has to be asked. */
size_t weir__unwind_walk(const void *frame, uint64_t *addresses, size_t room);

/* After a walk that met an unknown place: asks libunwind about the frames around the caller, up to so many, for later walks. */
void weir__unwind_learn(size_t most);

#endif

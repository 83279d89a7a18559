/*
 * Stacks without libunwind, once it has told how: it determines how the frame of each call site is left, and that does
 * not change. The rules are cached, and a stack of known call sites is walked with a few instructions per frame.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Takes the functions of the loaded library. false if one is missing, or if the processor is not supported; then no
 * walk succeeds. */
bool weir__unwind_start(void *library);

/* The return addresses of a frame, given by its __builtin_frame_address(0), and of all frames around it. Returns their
 * number; 0 if a rule is missing or there is not enough room, so that libunwind has to be asked. */
size_t weir__unwind_walk(const void *frame, uint64_t *addresses, size_t room);

/* After a walk that met an unknown call site: asks libunwind about up to `most` frames around the caller, for later
 * walks. */
void weir__unwind_learn(size_t most);

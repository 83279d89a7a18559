/*
 * Call stacks, gathered with libunwind, which is loaded at run time, or glibc's backtrace, and by the hook of a
 * language runtime. Each stack is stored once.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/intern.h"
#include "weir/history.h"

enum { WEIR__MAX_FRAMES = 4096 }; /* of one stack; outer frames beyond that are cut off */

/* A location in machine code, or, with address 0, in a language. */
typedef struct weir__frame {
  uintptr_t address;       /* the return address */
  uint32_t file, function; /* texts */
  int line;
} weir__frame;

extern weir__intern weir__stacks;

/* Loads libunwind, or else glibc's backtrace, once. false if both are missing; then only the hook supplies stacks. */
bool weir__stacks_start(void);

/* The same for a recording, with a message if native stacks of this kind will be missing. */
void weir__stacks_start_for(weir_history_stacks kind);

/* The stack of the caller: first the hook's frames, then the native ones, the innermost first. Frames of Weir's own
 * libraries at the inner end are left out: native frames begin at the code that called Weir. 0 if there is none. Called
 * without locks of the allocator. */
uint32_t weir__stack_gather(weir_history_stacks kind);

/* Reads the first frame of `count` words of a stack, at least one; returns how many words it takes. */
size_t weir__stack_frame_of(const uint64_t *words, size_t count, weir__frame *frame);

/* Returns how many frames a stack has, and writes as many as there is room for. */
size_t weir__stack_frames(uint32_t stack, weir__frame *frames, size_t room);

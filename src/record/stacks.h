/*
 * Stacks: who called. Gathered by libunwind, which is loaded at run time, and by a language runtime through its hook. Each
 * is stored once.
 */
#ifndef WEIR_RECORD_STACKS_H
#define WEIR_RECORD_STACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/intern.h"
#include "weir/history.h"

enum { WEIR__MOST_FRAMES = 4096 }; /* of one stack; those further out are left off */

/* A place in machine code, or with address 0 one in a language. */
typedef struct weir__frame {
  uintptr_t address;       /* where the call returns to */
  uint32_t file, function; /* texts */
  int line;
} weir__frame;

extern weir__intern weir__stacks;

/* Loads what native stacks need, once. false: there is none, and stacks are those of the hook alone. */
bool weir__stacks_start(void);

/* The same for a recording, with a message where native stacks of this kind are missed. */
void weir__stacks_start_for(weir_history_stacks kind);

/* The stack of the caller: first the hook's frames, then the native ones, the innermost first. Frames of Weir's own libraries at
 * the inner end are left out: native frames begin at the code that called Weir. 0: there is none. No lock of the allocator's is
 * held. */
uint32_t weir__stack_gather(weir_history_stacks kind);

/* The first frame of so many words of a stack, at least one; returns how many it takes. */
size_t weir__stack_frame_of(const uint64_t *words, size_t count, weir__frame *frame);

/* How many frames a stack has; as many as there is room for are written. */
size_t weir__stack_frames(uint32_t stack, weir__frame *frames, size_t room);

#endif

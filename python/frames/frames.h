/*
 * Python's stacks for the history (weir_set_stack_hook). The Python package and the adapter for PyTorch compile the same sources:
 * walk.c, which knows how some versions of CPython keep their frames, or public.c, which asks any Python through its public functions.
 *
 * Both run in the thread whose stack is wanted, and neither waits for the GIL with a lock held.
 */
#ifndef WEIR_FRAMES_H
#define WEIR_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "weir/history.h"

/* From now on stacks have Python's frames. With the GIL. false if this Python is not the one that it was built for; a message of
 * the log says so. */
bool weir_frames_begin(void);

/* No longer. When it returns no thread looks at a frame any more. With the GIL, and before the interpreter ends: from then on
 * Python takes the states of its threads away. Doing it twice is allowed. */
void weir_frames_end(void);

bool weir_frames_are_on(void);

/* The hook. A thread that Python does not know has no frames. */
size_t weir_frames_gather(void *context, weir_stack_frame *frames, size_t room);

/* Its key. public.c has none: it makes an object of each frame anyway. */
int weir_frames_key(void *context, uint64_t *key);

#endif

/*
 * Python stacks for the history (weir_stack_set_hook). The Python package and the adapter for PyTorch compile the same
 * sources: walk.c, which knows the frame layout of some versions of CPython, or public.c, which uses public functions
 * of any version.
 *
 * Both run on the thread whose stack is captured, and neither waits for the GIL while a lock is held.
 */
#ifndef WEIR_FRAMES_H
#define WEIR_FRAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "weir/history.h"

/* Adds Python frames to stacks from now on. Called with the GIL. Returns false, and logs a message, if this is not the
 * version of Python that it was built for. */
bool weir_frames_begin(void);

/* Leaves out the innermost frames of a stack whose files are in this folder: a stack begins with their caller. NULL,
 * the default, leaves out none. The text is kept. Called with the GIL, before code of the folder allocates. */
void weir_frames_leave_out(const char *folder);

/* Stops adding Python frames. When it returns, no thread reads a frame any more. Called with the GIL before the
 * interpreter ends, since Python then frees its thread states. May be called twice. */
void weir_frames_end(void);

bool weir_frames_are_on(void);

/* The stack hook. A thread that is unknown to Python has no frames. */
size_t weir_frames_gather(void *context, weir_stack_frame *frames, size_t room);

/* The key of the calling thread's stack. public.c has none, since it creates an object for each frame anyway. */
int weir_frames_key(void *context, uint64_t *key);

#endif

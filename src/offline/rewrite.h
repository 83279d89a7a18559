/*
 * A snapshot that was read, written again in PyTorch's schema: as a pickle, or as JSON.
 */
#ifndef WEIR_OFFLINE_REWRITE_H
#define WEIR_OFFLINE_REWRITE_H

#include <stdio.h>

#include "inspect/write_sink.h"
#include "offline/recording.h"

/* So much of it is done; `context` is the caller's. */
typedef void (*weir__step)(void *context, size_t done, size_t count);

enum { WEIR__STEP_EVENTS = 4096 }; /* from one call of it to the next */

/* `device` -1: all; otherwise the lists of the others are empty. Keys that the reader left aside are not in it. Segments are
 * sorted by device. `step` may be NULL. */
weir_status weir__rewrite(const weir__recording *snapshot, int device, const weir__sink_format *format, weir__step step,
                          void *step_context, FILE *file);

#endif

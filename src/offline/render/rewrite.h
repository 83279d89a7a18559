/*
 * Writes a recording that was read from a file in PyTorch's schema again, as a pickle or as JSON.
 */
#pragma once

#include <stdio.h>

#include "inspect/write_snapshot.h"
#include "offline/read/recording.h"

/* `device` is -1 for all; otherwise the lists of the other devices are empty. Keys that the reader did not understand
 * are left out. Segments are sorted by device. `step` may be NULL. */
weir_status weir__rewrite(const weir__recording *recording, int device, const weir__sink_format *format,
                          weir__step step, void *step_context, FILE *file);

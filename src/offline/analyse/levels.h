/*
 * Bytes in use and reserved over the history of a device, entry by entry.
 */
#pragma once

#include <stdint.h>

#include "offline/read/recording.h"

typedef struct weir__levels {
  int64_t allocated, reserved; /* requested bytes in use, and reserved bytes */
} weir__levels;

/* The levels before the first entry of a device. */
weir_status weir__levels_begin(const weir__recording *recording, int device, weir__levels *levels);
void weir__levels_move(weir__levels *levels, const weir__recording_entry *entry);

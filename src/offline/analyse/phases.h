/*
 * What the program said that it was doing: the phase of an entry, or else the innermost annotated range at its time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/lives.h"
#include "offline/read/recording.h"

enum { WEIR__RANGES_DEEPEST = 32 };

#define WEIR__NO_PHASE UINT32_MAX

/* The annotated ranges of a device that are open. Names are strings of the recording. */
typedef struct weir__ranges {
  const weir__recording *recording;
  int device;
  uint32_t open[WEIR__RANGES_DEEPEST];
  size_t depth;
  uint32_t last; /* that ended; WEIR__NO_PHASE if none has */
} weir__ranges;

static inline weir__ranges weir__ranges_of(const weir__recording *recording, int device) {
  return (weir__ranges){.recording = recording, .device = device, .last = WEIR__NO_PHASE};
}

/* Opens or closes the range of an annotation, unless it belongs to another device. */
void weir__ranges_add(weir__ranges *ranges, const weir__recording_annotation *annotation);

/* The name of the innermost one; WEIR__NO_PHASE if none is open. */
static inline uint32_t weir__ranges_innermost(const weir__ranges *ranges) {
  return ranges->depth ? ranges->open[ranges->depth - 1] : WEIR__NO_PHASE;
}

/* The phase in which each block was allocated: strings of the recording, or WEIR__NO_PHASE. `lives` are those of the
 * device. free() it. */
weir_status weir__phases_of(const weir__recording *recording, int device, const weir__lives *lives, uint32_t **phases);

/*
 * What a recorded event is.
 */
#ifndef WEIR_RECORD_ENTRY_H
#define WEIR_RECORD_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "weir/alloc.h"

/* The first ones are those of weir_trace_action. The numbers stand in recorded files. */
typedef enum weir__action {
  WEIR__ENTRY_ALLOC = WEIR_TRACE_ALLOC,
  WEIR__ENTRY_FREE_REQUESTED = WEIR_TRACE_FREE_REQUESTED,
  WEIR__ENTRY_FREE_COMPLETED = WEIR_TRACE_FREE_COMPLETED,
  WEIR__ENTRY_SEGMENT_ALLOC = WEIR_TRACE_SEGMENT_ALLOC,
  WEIR__ENTRY_SEGMENT_FREE = WEIR_TRACE_SEGMENT_FREE,
  WEIR__ENTRY_SEGMENT_MAP = WEIR_TRACE_SEGMENT_MAP,
  WEIR__ENTRY_SEGMENT_UNMAP = WEIR_TRACE_SEGMENT_UNMAP,
  WEIR__ENTRY_OOM = WEIR_TRACE_OOM,
  WEIR__ENTRY_SNAPSHOT,
  WEIR__ENTRY_ANNOTATE,
  WEIR__ENTRY_PAIRS, /* in a file only: an annotation, whose keys and values are the context */
  WEIR__ENTRY_TAKEN, /* in a file only: a request got a block that the cache had not served; its alloc comes later */
  WEIR__ENTRY_USER_DEFINED,
  WEIR__ENTRY_KINDS
} weir__action;

/* What only a recorded file has, and no snapshot. */
static inline bool weir__action_is_for_file(unsigned action) {
  return action == WEIR__ENTRY_PAIRS || action == WEIR__ENTRY_TAKEN;
}

typedef struct weir__entry {
  uint64_t address; /* oom: the device's free memory */
  uint64_t
      bytes; /* alloc and free: as requested; segments: theirs; oom: the rounded request; snapshot: all active bytes */
  uint64_t stream;
  uint64_t time;    /* ticks of base/clock.h */
  uint32_t stack;   /* record/stacks.h; 0: none */
  uint32_t pool;    /* weir__pool_of_number of record/recorder.h; 0: {0, 0} */
  uint32_t context; /* weir__context_of_number; 0: none */
  uint8_t action;   /* weir__action */
  uint8_t device;
  uint16_t thread; /* who wrote it, a number from 1 on, and the bit below */
} weir__entry;

enum {
  WEIR__ENTRY_MOST_THREADS = 0x7fff, /* all further threads have this number together */
  WEIR__ENTRY_FOR_REQUEST = 0x8000   /* of a segment: for the thread's next request, not because the program asked; of a
                                      * request: the cache could not serve it */
};

_Static_assert(sizeof(weir__entry) == 48, "events are small");

#endif

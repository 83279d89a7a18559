/*
 * An entry of a history.
 */
#ifndef WEIR_RECORD_ENTRY_H
#define WEIR_RECORD_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#include "weir/alloc.h"

/* Actions beside the public ones. The first two are written to ring files only. */
enum {
  WEIR__ACTION_PAIRS = 10,  /* an annotation, whose keys and values are the context */
  WEIR__ACTION_TAKEN = 11,  /* a request got a block that the cache had not served; its alloc comes later */
  WEIR__ACTION_UNKNOWN = 13 /* read from a snapshot that a newer program wrote */
};

/* Whether only ring files have such entries, and no snapshot. */
static inline bool weir__action_is_for_file(unsigned action) {
  return action == WEIR__ACTION_PAIRS || action == WEIR__ACTION_TAKEN;
}

typedef struct weir__entry {
  uint64_t address; /* oom: the device's free memory */
  uint64_t bytes;   /* alloc, free: requested; segment: its size; oom: the rounded request; snapshot: active bytes */
  uint64_t stream;
  uint64_t time;    /* ticks of base/clock.h */
  uint32_t stack;   /* record/stacks.h; 0 if there is none */
  uint32_t pool;    /* weir__pool_of_number of record/recorder.h; 0 stands for {0, 0} */
  uint32_t context; /* weir__context_of_number; 0 if there is none */
  uint8_t action;   /* weir_trace_action, or one of the above */
  uint8_t device;
  uint16_t thread; /* the writer's number, from 1 on, and the bit below */
} weir__entry;

enum {
  WEIR__ENTRY_MAX_THREADS = 0x7fff, /* the number that all further threads share */
  WEIR__ENTRY_FOR_REQUEST =
      0x8000 /* a segment for the thread's next request; or a request that the cache did not serve */
};

_Static_assert(sizeof(weir__entry) == 48, "entries are small");

#endif

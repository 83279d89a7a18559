/*
 * What a thread knows while it records: few bytes, read in one instruction.
 */
#ifndef WEIR_RECORD_THIS_THREAD_H
#define WEIR_RECORD_THIS_THREAD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct weir__this_thread {
  struct weir__op *op; /* the allocator's operation under way (alloc/trace.c); NULL: none that anybody watches */
  union {
    struct {
      uint32_t phase, compile; /* texts */
    };
    uint64_t texts; /* both: mostly there are none */
  };
  uint32_t context; /* the number of `context_phase`, `compile` and `metadata` together; 0: not looked up yet */
  uint32_t metadata;
  uint32_t context_phase; /* the thread's own phase, or the shared one */
  uint16_t thread;        /* its number in entries; 0: it has recorded nothing yet */
  bool is_for_request;    /* what happens to segments now is for a request that the cache could not serve */
  bool has_missed;        /* the cache could not serve the request whose entry comes next */
  bool is_in_hook;        /* a hook of stacks is running */
  bool lacks_frames;      /* the hook found no frames for this thread the last time */
  bool is_telling;        /* a tracker is */
} weir__this_thread_state;

/* Hidden, and of the initial set: no call is needed to find it. */
extern _Thread_local weir__this_thread_state weir__this_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

#endif

/*
 * The state of a thread that records: a few bytes, read with one instruction.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* In the number of a phase: no allocation since it was entered. */
#define WEIR__PHASE_FRESH (1u << 31)

/* In the number of a compile context: the thread has metadata of its own. */
#define WEIR__COMPILE_HAS_METADATA (1u << 31)

typedef struct weir__this_thread {
  struct weir__op *op; /* the allocator's current operation (alloc/cache/trace.c); NULL if nothing observes it */
  struct weir__observer_call
      *observer_call;        /* the innermost observer that it runs (alloc/cache/observers.c), or NULL */
  struct weir__scope *scope; /* its innermost scope of a private pool (alloc/pools/pool.c), or NULL */
  union {
    struct {
      uint32_t phase, compile; /* texts, with the flags above */
    };
    uint64_t texts; /* both; usually there are none */
  };
  uint32_t context; /* the number of `context_phase`, `compile` and `metadata` together; 0 if not looked up yet */
  uint32_t metadata;
  uint32_t own_metadata;  /* a text that entries of the thread carry in place of the device's; 0 for none */
  uint32_t context_phase; /* the thread's own phase, or the shared one */
  uint16_t thread;        /* its number in entries; 0 if it has recorded nothing yet */
  uint8_t reason;         /* weir__reason: why segments change now */
  bool has_missed;        /* the cache could not serve the request whose entry comes next */
  bool is_in_hook;        /* a stack hook is running */
  bool lacks_frames;      /* the stack hook found no frames for this thread the last time */
  bool is_telling;        /* a tracker is running */
} weir__this_thread_state;

/* Hidden and initial-exec: no call is needed to find it. */
extern _Thread_local weir__this_thread_state weir__this_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Gives the thread its number in entries. */
void weir__this_thread_number(void);

/* The phase of threads whose language has no frames (weir_history_share_phase). */
extern _Atomic uint32_t weir__shared_phase __attribute__((visibility("hidden")));

/* The calling thread's phase. A thread whose language has no frames takes the shared phase instead. */
static inline uint32_t weir__phase_here(void) {
  uint32_t phase = weir__this_thread.phase & ~WEIR__PHASE_FRESH;
  return phase || !weir__this_thread.lacks_frames ? phase
                                                  : atomic_load_explicit(&weir__shared_phase, memory_order_relaxed);
}

static inline uint32_t weir__compile_here(void) { return weir__this_thread.compile & ~WEIR__COMPILE_HAS_METADATA; }

/* The number of a context with this phase, the thread's compile context, and its metadata, or else those given. */
uint32_t weir__context_here(uint32_t phase, uint32_t metadata);

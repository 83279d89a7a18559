/*
 * Guard mode: misuse of memory is found where it happens, or soon after.
 *
 * light (light.c): at least a unit behind what was requested of a block, its slack, has a pattern, and so has all of a
 * block that was freed. A freed block waits in quarantine before it is reused. A kernel (driver/kernels.h) fills and
 * checks in stream order: it is launched on the block's own stream, so nothing waits. What it finds it writes to pinned
 * memory, where the next allocation or free sees it (collect).
 *
 * full: each block is at the end of pages of its own (memory/apart.h), which are unmapped as soon as its
 * streams have passed its free. What the unit and the pages have beside the block is checked as under light.
 *
 * The wrong frees (frees.c) are found without the device.
 *
 * The guard has no memory of stacks or of blocks: what a finding says of a block's life is read from the history, as of
 * the time of the check (life.c).
 */
#ifndef WEIR_ALLOC_GUARD_GUARD_H
#define WEIR_ALLOC_GUARD_GUARD_H

#include "alloc/cache/backend_port.h"
#include "alloc/cache/guard_port.h"
#include "driver/kernels.h"
#include "record/recorder.h"
#include "weir/guard.h"

/* In every float type of a GPU, each word of it is a NaN. No byte of it is that of 0 or -1. */
#define WEIR__GUARD_PATTERN 0x7ffb7ffb7ffb7ffbull

enum {
  WEIR__GUARD_CHECKS = 16384, /* checks under way per device, each with a slot */
  WEIR__GUARD_FINDINGS = 1000 /* distinct ones are kept */
};

/* What the program asked for. */
typedef struct weir__guard_options {
  uint64_t sample;           /* one allocation in so many is guarded */
  uint64_t quarantine_bytes; /* per device */
  uint64_t quarantine_ns;
  int fill;      /* of new blocks: a byte, WEIR__GUARD_FILL_NAN, or WEIR__GUARD_FILL_NONE */
  bool is_error; /* a finding fails the call that learns of it */
  bool is_abort; /* a finding ends the process */
} weir__guard_options;

enum { WEIR__GUARD_FILL_NONE = -1, WEIR__GUARD_FILL_NAN = 256 };

/* Where a check was made. */
typedef enum weir__guard_moment {
  WEIR__GUARD_AT_FREE,
  WEIR__GUARD_AT_REUSE, /* when a block left quarantine */
  WEIR__GUARD_AT_CHECK  /* at a step, on demand, or at the end */
} weir__guard_moment;

/* A block as it was at a check. */
typedef struct weir__guarded {
  uint64_t number; /* of the check */
  uint64_t ticks;
  uint64_t address, requested, bytes;
  uint64_t front;     /* full: bytes of its pages in front of it that are checked with it */
  uint64_t neighbour; /* the address of the block behind it, if that was in use; else 0 */
  weir_cu_stream stream;
  weir__guard_moment moment;
  bool is_freed;
} weir__guarded;

/* A freed block in quarantine. */
typedef struct weir__quarantined {
  weir__block *block;
  uint64_t since_ns;
} weir__quarantined;

/* A device's part, guarded by the heap's lock, but for the atomics. */
typedef struct weir__guard_heap {
  bool is_ready, has_failed; /* what follows exists, or cannot be made */
  weir_cu_module module;
  weir_cu_function function;
  weir__guard_slot *slots;     /* pinned memory: one for each check under way ... */
  _Atomic(atomic_uint *) flag; /* ... and whether any of them was written to: read without the lock, NULL until then */
  weir_cu_deviceptr device;    /* the slots, as the device sees them */
  weir__guarded *checks;
  uint64_t number;               /* of the last check */
  weir__quarantined *quarantine; /* a ring, whose size is a power of two */
  size_t first, count, room;
  uint64_t bytes;            /* of the quarantine */
  atomic_bool is_due;        /* it is over its budget of bytes, ... */
  atomic_ullong oldest_ns;   /* ... and since when the oldest is in it; UINT64_MAX if it is empty */
  atomic_ullong allocations; /* to choose one in `sample` */
  weir__guarded orphan;      /* the last block whose stream was destroyed before it was freed ... */
  atomic_bool has_orphan;    /* ... and was not reported yet */
} weir__guard_heap;

typedef struct weir__guard {
  weir__guard_port port; /* first */
  weir__guard_options options;
  weir__mutex lock; /* of the findings; a leaf */
  weir_guard_finding *findings;
  size_t count, room;
  atomic_ullong total;  /* of all findings, repeated ones included */
  atomic_ullong raised; /* how many of them have failed a call */
  weir_allocator *allocator;
  bool is_full;
  struct weir__guard *next;       /* in the list of accesses.c */
  atomic_bool has_fault;          /* full: a fault was reported; the context is lost then */
  weir_guard_finding *candidates; /* of that fault, written before it is reported */
  size_t candidate_count;
  void (*report)(weir_allocator *allocator, const weir_guard_finding *finding); /* a new one; no lock is held */
  weir__guard_heap heaps[];
} weir__guard;

static inline weir__guard *weir__guard_of(const weir_allocator *allocator) { return (weir__guard *)allocator->guard; }

static inline weir__guard_heap *weir__guard_heap_of(const weir__heap *heap) {
  return &weir__guard_of(heap->allocator)->heaps[heap->device];
}

/* Begins guarding an allocator that has not been used yet, in the mode of WEIR_GUARD, or else of its settings. Does
 * nothing if neither asks for it. `report` is called for each distinct finding. */
weir_status weir__guard_begin(weir_allocator *allocator,
                              void (*report)(weir_allocator *allocator, const weir_guard_finding *finding));

/* Whether a check has found something that is not collected yet. Needs no lock. */
static inline bool weir__guard_has_found(weir__guard_heap *guard) {
  atomic_uint *flag = atomic_load_explicit(&guard->flag, memory_order_acquire);
  return flag && atomic_load(flag);
}

/* ---- Light (light.c) ---- */

extern const weir__guard_calls weir__guard_light;

/* Checks all that is guarded, in stream order. With `wait`, waits for the checks and collects what they found. */
void weir__guard_check_all(weir_allocator *allocator, bool wait);

/* ---- Frees (frees.c) ---- */

void weir__guard_refused(const char *caller, weir_allocator *allocator, uint64_t address);

/* ---- Accesses that the driver reports (accesses.c) ---- */

void weir__guard_watch(weir__guard *guard);
void weir__guard_unwatch(weir__guard *guard);

/* Reports the device's orphan. No lock is held. */
void weir__guard_report_orphans(weir_allocator *allocator, weir__guard_heap *of);

/* Notes the result of a call of the driver: it may be that the context is lost. */
void weir__guard_note_result(const weir__heap *heap, weir_cu_result result);

/* ---- Findings (life.c) ---- */

/* The history of a device. The caller frees `all`. */
typedef struct weir__entries {
  weir__entry *all;
  size_t count;
} weir__entries;

weir__entries weir__guard_read_history(weir_allocator *allocator, int device);

/* Fills in the stacks and times of the life that a block had at a time, and the stack of its neighbour. */
void weir__guard_find_life(weir_allocator *allocator, weir_guard_finding *finding, uint64_t ticks);

/* Adds a finding: a repeated one is counted, a new one reported. No lock is held. */
void weir__guard_add(weir_allocator *allocator, weir_guard_finding *finding);

#endif

/*
 * An entry of a history.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
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
  uint32_t pool;    /* weir__pool_of_number; 0 stands for {0, 0} */
  uint32_t context; /* weir__context_of_number; 0 if there is none */
  uint8_t action;   /* weir_trace_action, or one of the above */
  uint8_t device;
  uint16_t thread; /* the writer's number, from 1 on, and the bits below */
} weir__entry;

/* Why memory was obtained from the driver or released. The first three are on behalf of the thread's next request. */
typedef enum weir__reason {
  WEIR__REASON_UNKNOWN,
  WEIR__REASON_REQUEST,    /* the driver had no memory for it; or a request that the cache did not serve */
  WEIR__REASON_LIMIT,      /* it would have exceeded a limit */
  WEIR__REASON_COLLECTION, /* garbage_collection_threshold */
  WEIR__REASON_PROGRAM,    /* the program emptied the cache or a pool; or freed memory of a back end */
  WEIR__REASON_MAINTENANCE,
  WEIR__REASONS
} weir__reason;

enum {
  WEIR__ENTRY_MAX_THREADS = 0x0fff,  /* the number that all further threads share */
  WEIR__ENTRY_PHASE_BEGINS = 0x1000, /* the first allocation of the thread since it entered the phase */
  WEIR__ENTRY_REASON_SHIFT = 13
};

_Static_assert(sizeof(weir__entry) == 48 && WEIR__REASONS <= 1 << (16 - WEIR__ENTRY_REASON_SHIFT), "entries are small");

static inline weir__reason weir__entry_reason(const weir__entry *entry) {
  return (weir__reason)(entry->thread >> WEIR__ENTRY_REASON_SHIFT);
}

/* Whether a segment is for the thread's next request, or the cache did not serve a request. */
static inline bool weir__entry_is_for_request(const weir__entry *entry) {
  weir__reason reason = weir__entry_reason(entry);
  return reason >= WEIR__REASON_REQUEST && reason <= WEIR__REASON_COLLECTION;
}

static inline bool weir__entry_is_of_segment(const weir__entry *entry) {
  return entry->action >= WEIR_TRACE_SEGMENT_ALLOC && entry->action <= WEIR_TRACE_SEGMENT_UNMAP;
}

/* NULL if it is not known. */
static inline const char *weir__reason_name(weir__reason reason) {
  static const char *const names[WEIR__REASONS] = {NULL, "request", "limit", "collection", "program", "maintenance"};
  return reason < WEIR__REASONS ? names[reason] : NULL;
}

/* ---- What numbers in entries stand for ---- */

typedef struct weir__entry_context {
  uint32_t phase, compile, metadata; /* texts */
} weir__entry_context;

/* A pool whose id has one small number and a 0 is stored directly, with a bit that tells which of the two it is. Other
 * ids are interned. */
enum { WEIR__POOL_DIRECT = 1 << 29 };
#define WEIR__POOL_FIRST (1u << 30)
#define WEIR__POOL_SECOND (1u << 29)

uint32_t weir__pool_number(weir_pool_id id);
weir_pool_id weir__pool_of_number(uint32_t number);

/* Whether a pool's number contains its id, which is written to *id then. */
bool weir__pool_is_direct(uint32_t number, weir_pool_id *id);

uint32_t weir__context_number(weir__entry_context context);
weir__entry_context weir__context_of_number(uint32_t number);

/* The same from the interned bytes, for a reader of a file. false if the bytes are something else. */
bool weir__pool_of_bytes(const void *bytes, size_t length, weir_pool_id *id);
bool weir__context_of_bytes(const void *bytes, size_t length, weir__entry_context *context);

/* An annotation: key, value, key, value ..., each with its NUL. */
uint32_t weir__pairs_number(const char *texts, size_t bytes, uint32_t count);
bool weir__pairs_of_bytes(const void *bytes, size_t length, const char **texts, size_t *count);

/* Work that a device has executed. */
typedef struct weir__recorded_work {
  const char *name, *kind;
  int device;
  uint64_t stream, bytes;
  int64_t start_ns; /* Unix time */
  uint64_t duration_ns;
} weir__recorded_work;

/* The value of "stage" in annotations that are work. Their other keys are kind, stream, start_ns, duration_ns and
 * bytes. In ring files, an entry WEIR__ACTION_PAIRS of work has the numbers, and its pairs are the texts: address is
 * start_ns, and stack and pool are the lower and upper half of duration_ns. */
#define WEIR__STAGE_WORK "WORK"

/* The same of what the guard has found (inspect/guard.c). */
#define WEIR__STAGE_GUARD "GUARD"

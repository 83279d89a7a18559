/*
 * Guard mode: misuse of device memory is named when it happens.
 *
 * WEIR_GUARD=light or full turns it on for every allocator of a process, without a change to the program; so does the
 * setting guard. docs/tools/guard.md says what is found, where, and at what cost.
 */
#ifndef WEIR_GUARD_H
#define WEIR_GUARD_H

#include <stddef.h>
#include <stdint.h>

#include "weir/alloc.h"
#include "weir/output.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* number, name, key, text. Numbers never change. */
#define WEIR_GUARD_KIND_MAP(X)                                                                                         \
  X(0, OUT_OF_BOUNDS, "out_of_bounds", "write past the end of a block")                                                \
  X(1, USE_AFTER_FREE, "use_after_free", "write to a block that was freed")                                            \
  X(2, STREAM, "stream", "block freed while another stream uses it")                                                   \
  X(3, DOUBLE_FREE, "double_free", "block freed twice")                                                                \
  X(4, INTERIOR_FREE, "interior_free", "free of an address inside a block")                                            \
  X(5, WRONG_ALLOCATOR, "wrong_allocator", "free of memory of another allocator")                                      \
  X(6, OTHER_PROCESS, "other_process", "free of memory that another process owns")                                     \
  X(7, FOREIGN_FREE, "foreign_free", "free of memory that no allocator has")                                           \
  X(8, FAULT, "fault", "access to memory that is not mapped")                                                          \
  X(9, WRONG_DEVICE, "wrong_device", "use of a block by a device that has no access to it")                            \
  X(10, NEVER_WRITTEN, "never_written", "read of bytes that were never written")                                       \
  X(11, DESTROYED, "destroyed", "use of what was destroyed")

typedef enum weir_guard_kind {
#define X(number, name, key, text) WEIR_GUARD_##name = number,
  WEIR_GUARD_KIND_MAP(X)
#undef X
} weir_guard_kind;

/* How it was found. */
typedef enum weir_guard_access {
  WEIR_GUARD_CHANGED, /* bytes changed that nothing may write to */
  WEIR_GUARD_READ,    /* the access itself faulted */
  WEIR_GUARD_WRITE
} weir_guard_access;

/* A finding. Stacks are numbers for weir_stack_visit, 0 if they are not known. */
typedef struct weir_guard_finding weir_guard_finding;
struct weir_guard_finding {
  size_t size; /* sizeof(weir_guard_finding) */
  weir_guard_kind kind;
  int device;
  uint64_t count;     /* how often it was found */
  uint64_t address;   /* of the block; of what was passed to free if there is none */
  uint64_t requested; /* size of the block; 0 if there is none */
  uint64_t offset; /* the first byte from the block's address on, as an int64_t: before the block it is negative; of a
                       * wrong free, what was passed */
  uint64_t last;   /* the last byte */
  uint64_t bytes;  /* how many bytes differ between the two */
  weir_cu_stream stream, other_stream; /* the block's, and of STREAM the one with open work */
  uint32_t alloc_stack, free_stack;    /* of the block */
  uint32_t here_stack;                 /* of the wrong free */
  int64_t alloc_time, free_time;       /* of the block, in microseconds of Unix time; 0 if not known */
  uint64_t neighbour;                  /* the block in use behind it, or in front of it; 0 if there is none */
  uint64_t neighbour_requested;
  uint32_t neighbour_stack; /* of its allocation */
  int is_freed;             /* the block was freed when this was found */
  weir_guard_access access;
  char work[64]; /* of a fault: the kernel, "copy", "memset" or "host"; without an address, the driver's error; of
                  * DESTROYED, what it was and which call used it */
  const weir_guard_finding *candidates; /* of FAULT: blocks that may have been meant, which live as long as the
                                         * allocator; NULL if there are none */
  size_t candidate_count;
};

/* Sets `size` and makes the rest zero. */
static inline void weir_guard_finding_init(weir_guard_finding *finding) { WEIR__INIT(finding); }

/* Checks everything that is guarded, and waits for the device. *count is the number of findings of the allocator so
 * far, repeated ones included; NULL is allowed. Without guard it is 0. WEIR_ERROR_CAPTURE during a capture. */
weir_status weir_guard_check(weir_allocator *allocator, uint64_t *count);

typedef enum weir_guard_format { WEIR_GUARD_TEXT, WEIR_GUARD_JSON } weir_guard_format;

/* Writes all findings so far, each once. */
weir_status weir_guard_write(weir_allocator *allocator, weir_guard_format format, weir_write_fn write, void *context);

#ifdef __cplusplus
}
#endif
#endif

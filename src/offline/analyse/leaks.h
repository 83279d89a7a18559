/*
 * Finds memory that grows from step to step.
 *
 * Blocks are grouped by the stack that allocated them, or by size where there is none, and by stream. A block is
 * suspicious if it is alive at the end of the last complete step and older than what its group usually frees. A group
 * leaks if suspicious blocks are born regularly and until the end. Groups that were born during warm-up, that stopped
 * growing (a cache that is full), that slow down (a cache that fills) or that were released before (a key/value cache)
 * do not. Blocks of groups that show too few of them are judged together, since a leak may have many stacks.
 *
 * Peaks and sizes of activations do not matter, since they are freed within their step. The history may begin late.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/job_steps.h"
#include "offline/read/recording.h"
#include "pattern/trend.h"

typedef struct weir__leaks_options {
  uint64_t memory; /* bytes that may be reserved; 0 if only what the recording says counts */
  uint32_t until;  /* look at entries before this one only; 0 for all */
} weir__leaks_options;

typedef enum weir__leaks_verdict { WEIR__LEAKS_NONE, WEIR__LEAKS_FOUND, WEIR__LEAKS_UNKNOWN } weir__leaks_verdict;

enum { WEIR__LEAK_EXAMPLES = 8 };

typedef struct weir__leak_block {
  uint64_t address, size;
  uint32_t entry;
  int64_t step;
} weir__leak_block;

typedef struct weir__leak {
  weir__growth_kind kind; /* why something that grows is not called a leak */
  uint32_t stack;         /* 0 for a group by size */
  uint64_t size;          /* of each block; 0 for a group by stack */
  uint16_t stream;
  uint64_t bytes, count; /* suspicious blocks that are alive */
  double bytes_per_step, count_per_step;
  int64_t first_step, last_step;                  /* in which one of them was allocated */
  double every;                                   /* steps from one to the next, on average */
  bool is_joint;                                  /* judged together with others: its own blocks are too few */
  weir__leak_block examples[WEIR__LEAK_EXAMPLES]; /* the oldest */
  size_t example_count;
} weir__leak;

/* Blocks of a phase that are alive after it, for at least a step. */
typedef struct weir__outliving {
  uint32_t phase; /* a string of the recording */
  uint32_t stack;
  uint64_t size, bytes, count;
  int64_t steps; /* that the oldest has lived since */
} weir__outliving;

/* A stream that holds memory and has not been used for long. */
typedef struct weir__idle_stream {
  uint16_t stream;
  uint64_t reserved, in_use;
  uint32_t last_entry;
  int64_t idle_steps; /* -1 without steps */
  double idle_share;  /* of the entries */
} weir__idle_stream;

typedef enum weir__runs_out {
  WEIR__RUNS_OUT_NOT_KNOWN,
  WEIR__RUNS_OUT_NEVER,
  WEIR__RUNS_OUT_EXACT,
  WEIR__RUNS_OUT_RANGE
} weir__runs_out;

typedef struct weir__leaks {
  int device;
  weir__steps steps;
  weir__leaks_verdict verdict;
  char reason[160]; /* of WEIR__LEAKS_UNKNOWN */

  weir__leak *leaks; /* the largest rate first */
  size_t leak_count, leak_room;
  weir__leak *growing; /* the most bytes first */
  size_t growing_count, growing_room;
  weir__outliving *outliving;
  size_t outliving_count, outliving_room;
  weir__idle_stream *idle;
  size_t idle_count, idle_room;

  uint64_t bytes, count; /* of all leaks */
  double bytes_per_step, count_per_step;
  int64_t first_step;
  uint64_t *levels; /* bytes of leaks at the end of each step; NULL without leaks */

  uint64_t limit; /* 0 if not known */
  bool limit_is_device;
  uint64_t reserved; /* at the end */
  weir__runs_out runs_out;
  uint64_t steps_least, steps_most;
  double step_us; /* the median time of a step; 0 if not known */
} weir__leaks;

/* `options` may be NULL. Without enough steps the verdict is WEIR__LEAKS_UNKNOWN. */
weir_status weir__leaks_find(const weir__recording *recording, int device, const weir__leaks_options *options,
                             weir__leaks *leaks);
void weir__leaks_clear(weir__leaks *leaks);

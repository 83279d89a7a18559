/*
 * Tunable operations: what the results (tunable.c) and the timing (tunable_op.c) share.
 */
#pragma once

#include "src/compute.h"
#include "weir/compute/tunable.h"

enum { WEIR__TUNABLE_NAME = 128 }; /* of a solution, with its NUL */

typedef struct weir__tunable_candidate {
  char name[WEIR__TUNABLE_NAME];
  weir_tunable_fn fn;
  void *context;
} weir__tunable_candidate;

/* candidates[0] is "Default". */
struct weir_tunable_op {
  char *name;
  weir__tunable_candidate *candidates;
  size_t count, room;
};

/* weir_tunable_op_run for an operation that is enabled. */
weir_status weir__tunable_run(const char *caller, const weir_tunable_op *op, const weir_tunable_call *call);

/* ---- Results (tunable.c) ---- */

/* Looks for the solution of an operation, after reading the file of the device if that was not done. */
bool weir__tunable_find(int device, const char *op, const char *params, char solution[WEIR__TUNABLE_NAME]);

/* Adds a result unless there is one, and writes the file of the device. */
void weir__tunable_add(int device, const char *op, const char *params, const char *solution, double milliseconds);

/* Uses "Default" without timing anything from now on. This is no result: it is not listed and not written. */
void weir__tunable_give_up(int device, const char *op, const char *params);

/* Writes an operation to the file of untuned ones, once. */
void weir__tunable_record_untuned(int device, const char *op, const char *params);

/* A message of PYTORCH_TUNABLEOP_VERBOSE, which selects those up to a level: 1 to 3. */
void weir__tunable_log(int level, const char *format, ...) WEIR_PRINTF(2, 3);

/* Called at the shutdown of the runtime, while the driver still works. */
void weir__tunable_end(void);

/*
 * A file that is there whole or not at all: it is written under another name beside its place, and gets its own when it is
 * kept. The standard output, which is "-" or NULL, cannot be taken back.
 */
#ifndef WEIR_OFFLINE_TARGET_H
#define WEIR_OFFLINE_TARGET_H

#include <stdbool.h>
#include <stdio.h>

#include "weir/status.h"

typedef struct weir__target {
  char *path; /* where it belongs; NULL: the standard output */
  char *part; /* where it is until then */
  FILE *file; /* between open and close */
  bool is_kept;
} weir__target;

/* Takes the names; nothing is made yet. Whoever can only write to a path writes to `part`. */
weir_status weir__target_begin(weir__target *target, const char *path);

/* Opens `file`. What belongs to a name that ends in .zst is compressed; WEIR_ERROR_NOT_SUPPORTED without libzstd. */
weir_status weir__target_open(weir__target *target);
weir_status weir__target_close(weir__target *target);

/* Gives it its name, in the place of what may have had it. */
weir_status weir__target_keep(weir__target *target);

/* What was not kept is gone. */
void weir__target_end(weir__target *target);

#endif

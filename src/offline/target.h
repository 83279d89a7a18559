/*
 * An output of the tools: base/outfile.h, compressed where its name asks for it. "-" and NULL are the standard output. What
 * is not a regular file cannot be taken back once it was written.
 */
#ifndef WEIR_OFFLINE_TARGET_H
#define WEIR_OFFLINE_TARGET_H

#include <stdbool.h>
#include <stdio.h>

#include "base/outfile.h"
#include "weir/status.h"

typedef struct weir__target {
  char *path; /* as given; NULL is the standard output */
  weir__outfile out;
  FILE *file; /* between open and close */
} weir__target;

/* Finds the target; nothing is written yet. */
weir_status weir__target_begin(weir__target *target, const char *path, weir__outfile_use use);

/* Opens `file`. What belongs to a name that ends in .zst is compressed; WEIR_ERROR_NOT_SUPPORTED without libzstd. */
weir_status weir__target_open(weir__target *target);
weir_status weir__target_close(weir__target *target);

/* Puts the contents in place. */
weir_status weir__target_keep(weir__target *target);

/* Removes what was not kept. */
void weir__target_end(weir__target *target);

#endif

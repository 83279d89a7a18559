/*
 * An output file of the tools: base/outfile.h, compressed if its name says so. "-" and NULL are the standard output. An
 * output that is not a regular file cannot be undone.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/outfile.h"
#include "weir/status.h"

typedef struct weir__output_file {
  char *path; /* as given; NULL is the standard output */
  weir__outfile out;
  FILE *file; /* between open and close */
} weir__output_file;

/* Finds where the output goes; nothing is written yet. */
weir_status weir__output_file_begin(weir__output_file *output, const char *path, weir__outfile_use use);

/* Opens `file`. It is compressed if the path ends in .zst; WEIR_ERROR_NOT_SUPPORTED without libzstd. */
weir_status weir__output_file_open(weir__output_file *output);
weir_status weir__output_file_close(weir__output_file *output);

/* Puts the contents in place. */
weir_status weir__output_file_keep(weir__output_file *output);

/* Removes what was not kept. */
void weir__output_file_end(weir__output_file *output);

/* All of these: the contents that `write` makes are put in place if it succeeds. */
weir_status weir__output_file_write(const char *path, weir_status (*write)(void *context, FILE *file), void *context);

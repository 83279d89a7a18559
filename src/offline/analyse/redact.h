/*
 * Removes confidential texts from a recording: names, paths and remarks become hashes. Numbers stay, so that a replay
 * makes the same decisions.
 */
#pragma once

#include <stdbool.h>

#include "offline/read/recording.h"

typedef struct weir__redact_options {
  const char *salt;    /* equal texts have equal hashes in all files with the same salt; NULL for a random one */
  bool keep_functions; /* names of functions stay */
} weir__redact_options;

/* The number of different texts that were hidden or left out. */
typedef struct weir__redaction {
  size_t functions, files, remarks, annotations, settings;
} weir__redaction;

/* In place. */
weir_status weir__redact(weir__recording *recording, const weir__redact_options *options, weir__redaction *redaction);

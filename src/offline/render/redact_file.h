/*
 * A copy of a recording without confidential texts, which is checked.
 */
#pragma once

#include "offline/analyse/redact.h"

typedef struct weir__redact_report {
  weir__redaction hidden;
  size_t left_out;                                  /* keys that the reader did not understand */
  size_t devices, events, allocations, differences; /* of the checked replays, the same before and after */
  size_t unchecked;                                 /* devices whose history cannot be replayed, before as after */
} weir__redact_report;

/* Reads `from`, writes `to`, reads it back and compares. `to` is not created if anything fails or differs. */
weir_status weir__redact_file(const char *from, const char *to, const weir__redact_options *options,
                              weir__redact_report *report);

/*
 * Reads the checkpoints of a ring file (record/ring_file.h): the state before the first event that it still has.
 */
#pragma once

#include "offline/read/budget.h"
#include "record/ring_file.h"
#include "record/state.h"

/* The checkpoint that the history of a device starts from. */
typedef struct weir__ring_file_start {
  bool is_known;            /* there is one before the first event; if not, the rest but the last field is 0 */
  weir__ring_file_state of; /* its numbers */
  const char *conf;         /* in the file, of.conf_bytes long */
  weir__state *state;       /* the caller's; NULL unless it is known */
  bool is_missing;          /* there are or were checkpoints, and all are too late */
} weir__ring_file_start;

/* `data` is the whole file, and `header` its own or, of an older version, a converted one. Incomplete checkpoints are
 * ignored. A complete one that is inconsistent is WEIR_ERROR_BAD_DATA: *bad is the byte, and *why the reason. */
weir_status weir__ring_file_start_read(const unsigned char *data, uint64_t size, const weir__ring_file_header *header,
                                       int device, weir__budget *budget, weir__ring_file_start *start, uint64_t *bad,
                                       const char **why);

/*
 * The header of ring files of version 3, which had all their space from the beginning: one log, one area of
 * checkpoints, and one of chunks.
 */
#pragma once

#include "record/ring_file.h"

typedef struct weir__ring_v3_header {
  char magic[8];
  uint32_t version;
  uint32_t event_bytes, chunk_bytes;
  int32_t device_count;
  uint64_t file_bytes;
  uint64_t log_at, log_bytes; /* behind the header */
  uint64_t chunks_at, chunk_count;
  int64_t pid;
  int64_t rank;
  char host[64];
  weir__clock_point first;
  weir__clock_point last[2];
  uint32_t newest;
  uint32_t is_closed; /* a weir__ring_file_end */
  uint64_t log_used;
  uint64_t lost;
  uint64_t log_lost;
  weir__ring_file_device devices[WEIR__RING_DEVICES];
  uint64_t checkpoints_at, checkpoint_bytes; /* behind the log */
  struct {
    uint64_t bytes, peak;
  } outside[WEIR__RING_DEVICES];
} weir__ring_v3_header;

/* The thread of an entry: a bit said that it was for a request, and the rest was the number. */
enum { WEIR__RING_V3_FOR_REQUEST = 0x8000 };

static inline uint16_t weir__ring_v3_thread(uint16_t thread) {
  unsigned number = thread & ~(unsigned)WEIR__RING_V3_FOR_REQUEST;
  unsigned reason = thread & WEIR__RING_V3_FOR_REQUEST ? WEIR__REASON_REQUEST : WEIR__REASON_UNKNOWN;
  number = number < WEIR__ENTRY_MAX_THREADS ? number : WEIR__ENTRY_MAX_THREADS;
  return (uint16_t)(number | reason << WEIR__ENTRY_REASON_SHIFT);
}

/*
 * The bytes of a ring file (record/ring_file.h), its header and its areas.
 */
#pragma once

#include "base/base.h"
#include "offline/read/budget.h"
#include "offline/read/input.h"
#include "record/ring_file.h"

/* A century from 1970 on, so that sums do not overflow. */
#define WEIR__RING_MAX_NS 4000000000000000000

/* What lies behind the head of an area. */
typedef struct weir__ring_area {
  uint32_t kind;
  uint64_t at, bytes; /* of a log: those that are used */
} weir__ring_area;

typedef struct weir__ring_areas {
  const char *path;
  weir__input *source;  /* NULL for the file at `path` */
  const int *chunkless; /* the descriptor of a file whose chunks are not read, instead of both; else NULL */
  weir__budget budget;
  unsigned char *data; /* the file; without chunks, those are zero */
  size_t mapped;       /* bytes of address space that `data` is in; 0 if it is an array */
  uint64_t size;
  const weir__ring_file_header *header;
  weir__ring_file_header converted; /* the header of an older version as one of this one */
  weir__ring_area *areas;
  size_t count, room;
} weir__ring_areas;

/* Reads the file, and checks its header and where its areas lie. `path`, `source` and `budget` are set. */
weir_status weir__ring_areas_read(weir__ring_areas *file);
void weir__ring_areas_clear(weir__ring_areas *file);

/* WEIR_ERROR_BAD_DATA for a byte of the file. */
weir_status weir__ring_bad(const weir__ring_areas *file, uint64_t at, const char *format, ...) WEIR_PRINTF(3, 4);
weir_status weir__ring_no_memory(const weir__ring_areas *file);

#define TRY(call)                                                                                                      \
  do {                                                                                                                 \
    weir_status status_ = (call);                                                                                      \
    if (status_)                                                                                                       \
      return status_;                                                                                                  \
  } while (0)

/*
 * View data: what the page of `weir view` draws, at a level of detail that depends on pixels and not on the number of
 * entries. docs/tools/view.md describes the format. The WebAssembly module of the page makes it with the same code.
 *
 * It is an index in JSON and chunks of binary arrays, each compressed by itself (zlib format), so that a page unpacks
 * what it shows. The parts are made by view_axis.c (addresses), view_counters.c (memory over time), view_groups.c (the
 * same by stack, size, ...), view_tiles.c (the rectangles of blocks), view_marks.c (phases, times) and view_stacks.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "offline/analyse/explain.h"
#include "offline/read/recording.h"

/* A recording to show. */
typedef struct weir__view_source {
  const weir__recording *recording;
  int device;                /* -1 for weir__recording_first_device */
  const char *name;          /* of the file */
  const char *setting_label; /* the settings that were tried, if this is a prediction; otherwise NULL */
  /* What weir__explain found, and what `weir explain` prints. If they are NULL and memory ran out, the former is made
   * here, unless no_explain: it takes a replay. */
  const weir__explanation *explanation;
  const char *explain_text;
  bool no_explain;
} weir__view_source;

typedef struct weir__view_options {
  bool is_raw;        /* do not compress the chunks */
  size_t most_blocks; /* rectangles of blocks that are stored; 0 for the default, which is the most */
  weir__step step;    /* may be NULL */
  void *step_context;
} weir__view_options;

enum {
  WEIR__VIEW_NAME = 16,
  WEIR__VIEW_MAX_SOURCES = 2,
  WEIR__VIEW_HEADER = 16,
  WEIR__VIEW_VERSION = 1,
  WEIR__VIEW_MAX_TRIED = 1000000
};

typedef struct weir__view_chunk {
  char name[WEIR__VIEW_NAME];
  size_t offset; /* in `chunks`, a multiple of 8 */
  size_t stored; /* bytes there */
  size_t bytes;  /* unpacked */
  bool is_deflated;
} weir__view_chunk;

typedef struct weir__view_data {
  char *index; /* JSON, ends with a NUL */
  size_t index_size;
  unsigned char *chunks;
  size_t chunk_bytes, chunk_room;
  weir__view_chunk *table;
  size_t count, room;
} weir__view_data;

/* Explains why memory ran out, as in view data. Remedies, which are tried by up to two dozen replays, are left out in
 * histories of more than WEIR__VIEW_MAX_TRIED entries. *is_explained is false if
 * nothing failed, or the failure cannot be explained. */
weir_status weir__view_explain(const weir__recording *recording, int device, const weir__view_options *options,
                               weir__explanation *explanation, bool *is_explained);

/* Makes the view data of one recording, or of two to compare. WEIR_ERROR_INVALID_ARGUMENT if a recording has no such
 * device. */
weir_status weir__view_make(const weir__view_source *sources, size_t count, const weir__view_options *options,
                            weir__view_data *data);
void weir__view_clear(weir__view_data *data);

/* Adds a chunk, compressed if that makes it smaller and unless `is_raw`. */
weir_status weir__view_pack(weir__view_data *data, const char *name, bool is_raw, const void *bytes, size_t size);

/* The byte string is the header, the index and the chunks. */
void weir__view_header(const weir__view_data *data, unsigned char header[WEIR__VIEW_HEADER]);
size_t weir__view_size(const weir__view_data *data);
weir_status weir__view_write(const weir__view_data *data, FILE *file);

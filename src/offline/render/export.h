/*
 * Exports a recording for other programs: as rows of tables (CSV, SQLite) and as a trace for Perfetto. For JSON see
 * offline/render/rewrite.h.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "offline/analyse/explain.h"
#include "offline/read/recording.h"
#include "offline/render/rewrite.h"

/* ---- Tables ---- */

/* Tables: name, text, constraints in SQL. */
#define WEIR__EXPORT_MAP(X)                                                                                            \
  X(SEGMENTS, "segments", "PRIMARY KEY (segment)")                                                                     \
  X(BLOCKS, "blocks", "PRIMARY KEY (block)")                                                                           \
  X(EVENTS, "events", "PRIMARY KEY (device, event)")                                                                   \
  X(STACKS, "stacks", "PRIMARY KEY (stack, depth)")                                                                    \
  X(FRAMES, "frames", "PRIMARY KEY (frame)")                                                                           \
  X(ANNOTATIONS, "annotations", "PRIMARY KEY (annotation)")                                                            \
  X(SETTINGS, "settings", "PRIMARY KEY (setting)")                                                                     \
  X(WORK, "work", "PRIMARY KEY (work)")

typedef enum weir__export_table {
#define X(name, text, sql) WEIR__EXPORT_##name,
  WEIR__EXPORT_MAP(X)
#undef X
      WEIR__EXPORT_TABLES
} weir__export_table;

typedef struct weir__export_column {
  const char *name;
  bool is_text;
} weir__export_column;

/* A destination of rows. Values come in the order of the columns; an error is returned at the end of the row. */
typedef struct weir__rows weir__rows;
struct weir__rows {
  weir_status (*begin)(weir__rows *to, weir__export_table table, const weir__export_column *columns, size_t count);
  void (*integer)(weir__rows *to, int64_t value);
  void (*natural)(weir__rows *to, uint64_t value);
  void (*text)(weir__rows *to, const char *value);
  void (*nothing)(weir__rows *to); /* not recorded */
  weir_status (*row)(weir__rows *to);
  weir_status (*end)(weir__rows *to);
};

const char *weir__export_table_name(weir__export_table table);

/* `device` is -1 for all. Stacks and frames are those of all devices, under the same numbers. `step` may be NULL. */
weir_status weir__export_rows(const weir__recording *recording, int device, weir__export_table table, weir__step step,
                              void *step_context, weir__rows *to);

/* Writes one table as in RFC 4180, with the names of the columns in the first line. */
weir_status weir__export_csv(const weir__recording *recording, int device, weir__export_table table, weir__step step,
                             void *step_context, FILE *file);

/* Writes all tables with indices to an empty file at `path`; `name` is for errors. WEIR_ERROR_NOT_SUPPORTED if this
 * build has no SQLite. */
weir_status weir__export_sqlite(const weir__recording *recording, int device, weir__step step, void *step_context,
                                const char *name, const char *path);

/* ---- Over time ---- */

/* The number of the thread that a range belongs to; 0 if it does not say. */
uint64_t weir__export_thread_of(const weir__recording *recording, const weir__recording_annotation *annotation);

/* Writes a JSON trace for ui.perfetto.dev and Chrome: a process for each device, with counters, events by stream,
 * annotated ranges, a span for the life of each block on the track of its pool, and a flow from each allocation to its
 * free. */
weir_status weir__export_perfetto(const weir__recording *recording, int device, weir__step step, void *step_context,
                                  FILE *file);

/* ---- At a moment ---- */

/* Flame graphs of the memory in use, by stack; without stacks by class and size. `event` is for WEIR_OFFLINE_AT_EVENT.
 * Of all devices (-1), those that have the moment are written; WEIR_ERROR_INVALID_ARGUMENT if none has.
 *
 * Collapsed stacks, as flamegraph.pl and others read them: a line with frames from the outermost to the innermost,
 * separated by ";", and bytes. */
weir_status weir__export_collapsed(const weir__recording *recording, int device, weir_offline_moment moment,
                                   size_t event, FILE *file);

/* A file for speedscope.app, with a profile for each device. */
weir_status weir__export_speedscope(const weir__recording *recording, int device, weir_offline_moment moment,
                                    size_t event, FILE *file);

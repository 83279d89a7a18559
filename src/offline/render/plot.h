/*
 * Still pictures of a recording as SVG: memory over time, the map of segments at a moment, blocks over time and
 * addresses, and fragmentation over time.
 *
 * The size of a picture depends on its pixels, not on the history: memory over time has one value for each column of
 * pixels, and blocks that are smaller than a pixel are merged.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "offline/analyse/explain.h"
#include "offline/read/recording.h"

/* Kinds: name, text, help. */
#define WEIR__PLOT_KIND_MAP(X)                                                                                         \
  X(MEMORY, "memory", "memory in use over time, stacked, and the reserved memory above it")                            \
  X(SEGMENTS, "segments", "the map of segments with their blocks and holes at a moment, see --at")                     \
  X(TRACE, "trace", "each block as a rectangle: its life and its addresses")                                           \
  X(FRAGMENTATION, "fragmentation", "memory in use, reserved memory, the largest hole, and the share that is lost")

/* What the horizontal axis shows. Without recorded times it has the numbers of entries. AUTO: time, but entries for
 * WEIR_OFFLINE_PLOT_TRACE, where many lives are short. */
typedef enum weir__plot_axis { WEIR__PLOT_AXIS_AUTO, WEIR__PLOT_AXIS_TIME, WEIR__PLOT_AXIS_ENTRIES } weir__plot_axis;

enum {
  WEIR__PLOT_MIN_WIDTH = 480,
  WEIR__PLOT_MIN_HEIGHT = 320,
  WEIR__PLOT_MAX_SIDE = 10000,
  WEIR__PLOT_WIDTH = 1200, /* by default */
  WEIR__PLOT_HEIGHT = 640
};

typedef struct weir__plot_options {
  weir_offline_plot kind;
  weir_offline_group by;
  int device;
  const char *name;  /* of the recording, for the picture; may be NULL */
  const char *title; /* NULL for that of the kind */
  int width, height; /* in pixels; 0 for the default */
  bool is_dark;
  weir__plot_axis axis;
  weir_offline_moment moment; /* of the map of segments; AUTO: the first failure, or else the peak */
  size_t event;
} weir__plot_options;

/* Writes an SVG document. WEIR_ERROR_INVALID_ARGUMENT if the recording does not have what the kind shows. */
weir_status weir__plot_write(const weir__recording *recording, const weir__plot_options *options, FILE *file);

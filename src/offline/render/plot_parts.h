/*
 * What the pictures share: the data of a device, groups of blocks, the frame with its axes, and the legend.
 */
#pragma once

#include "offline/analyse/classes.h"
#include "offline/analyse/lives.h"
#include "offline/analyse/summary.h"
#include "offline/render/plot.h"
#include "offline/render/plot_svg.h"

enum { WEIR__PLOT_GROUPS = WEIR__SVG_SERIES, WEIR__PLOT_NAME = 200 };

typedef struct weir__plot_group {
  char name[WEIR__PLOT_NAME];
  uint64_t bytes; /* in use at the moment by which groups were chosen */
  size_t count;   /* of blocks then */
  int color;      /* of the series */
} weir__plot_group;

typedef struct weir__plot {
  const weir__recording *recording;
  const weir__recording_device *device;
  const weir__plot_options *options;
  weir__lives lives;
  weir__classes classes;
  weir__summary summary;
  uint32_t *freed;   /* by entry: the life + 1 whose free it requests */
  uint8_t *group_of; /* of each life */
  weir_offline_group by;
  bool has_ranges; /* by size: there are many sizes, so groups are ranges of them */
  weir__plot_group groups[WEIR__PLOT_GROUPS];
  size_t group_count;
  float *x;       /* of each entry: see weir__plot_x */
  size_t moment;  /* the entry of the map, and of the sums in `groups` */
  bool has_times; /* the axis is time */
  double width, height;
  double left, top, right, bottom; /* of the area of the drawing */
  weir__svg svg;
} weir__plot;

/* Where an entry is on the axis: 0 to 1. */
static inline double weir__plot_x(const weir__plot *plot, size_t entry) {
  return entry < plot->device->event_count ? (double)plot->x[entry] : 1;
}

/* The column of an entry, of `count`. */
static inline size_t weir__plot_column(const weir__plot *plot, size_t entry, size_t count) {
  size_t column = (size_t)(weir__plot_x(plot, entry) * (double)count);
  return column < count ? column : count - 1;
}

/* Room for a legend of the groups below the drawing: moves plot->bottom. */
void weir__plot_reserve_legend(weir__plot *plot, size_t count);
void weir__plot_legend(weir__plot *plot, const char *heading);

/* The axes: bytes up to `most` on the left, and time below. weir__plot_byte_top rounds up to the next line. */
uint64_t weir__plot_byte_top(uint64_t most, double height);
void weir__plot_byte_axis(weir__plot *plot, double top, double bottom, uint64_t most);
void weir__plot_time_axis(weir__plot *plot, double top, double bottom);

/* Marks requests that failed, from `top` to `bottom`. */
void weir__plot_mark_ooms(weir__plot *plot, double top, double bottom);

/* The kinds. They draw between plot->top and plot->bottom, which leaves room for the title only. */
weir_status weir__plot_memory(weir__plot *plot);
weir_status weir__plot_segments(weir__plot *plot);
weir_status weir__plot_trace(weir__plot *plot);
weir_status weir__plot_fragmentation(weir__plot *plot);

static inline weir_status weir__plot_no_memory(void) {
  return weir__fail(WEIR_ERROR_HOST_OUT_OF_MEMORY, "out of host memory for a picture");
}

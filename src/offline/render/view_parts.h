/*
 * What the parts of the view data share.
 */
#pragma once

#include "inspect/json.h"
#include "offline/analyse/classes.h"
#include "offline/analyse/lives.h"
#include "offline/analyse/summary.h"
#include "offline/render/view_axis.h"
#include "offline/render/view_data.h"

enum {
  WEIR__VIEW_COUNTER_COLUMNS = 65536, /* at most, of the finest level */
  WEIR__VIEW_GROUP_COLUMNS = 4096,
  WEIR__VIEW_MIN_COLUMNS = 512, /* of the coarsest level: at most */
  WEIR__VIEW_NAMES = 16,        /* in a group */
  WEIR__VIEW_MARKS = 2000
};

enum { WEIR__VIEW_ALLOCATED, WEIR__VIEW_RESERVED, WEIR__VIEW_LARGEST_HOLE, WEIR__VIEW_PENDING, WEIR__VIEW_COUNTERS };

/* Memory over time, by columns of `span` entries. */
typedef struct weir__view_columns {
  size_t span, count;
  uint64_t *least[WEIR__VIEW_COUNTERS], *most[WEIR__VIEW_COUNTERS];
  uint32_t *peak_entry; /* of each column: the first after which allocated was largest */
} weir__view_columns;

typedef struct weir__view {
  const weir__view_source *source;
  const weir__view_options *options;
  const weir__recording *recording;
  const weir__recording_device *device;
  int number; /* of the device */
  int part;   /* of the recording among the sources */
  weir__summary summary;
  weir__lives lives;
  size_t width; /* entries, at least 1 */
  weir__view_axis axis;
  uint32_t *y, *units;   /* of each block's life; units 0 if it is outside of the axis */
  uint16_t *phase;       /* likewise: a number in phase_names */
  weir__classes classes; /* likewise */
  uint32_t *phase_names; /* strings of the recording */
  size_t phase_count, phase_room;
  uint32_t *stack_number; /* of each stack: its number in the view + 1; 0 if nothing refers to it so far */
  uint32_t *stack_list;   /* stacks by that number */
  size_t stack_count;
  weir__view_columns columns;
  weir__view_data *data;
  weir__sink *index;
} weir__view;

/* The number of a stack in the view. */
uint32_t weir__view_stack(weir__view *view, uint32_t stack);

/* The entry before which a life ends, at most `width`. */
static inline uint64_t weir__view_end(const weir__view *view, uint32_t end) {
  return end < view->width ? end : view->width;
}

/* Whether a block waited for other streams after its free. Otherwise the next entry completes the free. */
static inline bool weir__view_waits(const weir__life *life) {
  return life->freed != WEIR__LIFE_OPEN && life->end - life->freed > 1;
}

/* ---- view_chunks.c ---- */

/* Adds a chunk, and its name to the index under the key "chunk". The name is made of a letter and a number. */
weir_status weir__view_add_chunk(weir__view *view, const char *letter, size_t number, const void *bytes, size_t size);

void weir__view_step(const weir__view *view, size_t percent);

weir_status weir__view_no_memory(void);

/* ---- The parts: each writes its members of the object of a recording ---- */

weir_status weir__view_find_phases(weir__view *view); /* needed by the others */
weir_status weir__view_sweep(weir__view *view);       /* makes `columns` */

/* Calls `visit` with the counters after each entry; `changed` is false if they are as before it. Needs of the view the
 * lives, `width`, `axis`, `y` and `units`. */
typedef void weir__view_visit(void *context, size_t entry, const uint64_t now[WEIR__VIEW_COUNTERS], bool changed);
weir_status weir__view_visit_counters(weir__view *view, weir__view_visit *visit, void *context);

weir_status weir__view_write_counters(weir__view *view);
weir_status weir__view_write_groups(weir__view *view);
weir_status weir__view_write_blocks(weir__view *view);
weir_status weir__view_write_segments(weir__view *view);
weir_status weir__view_write_times(weir__view *view);
weir_status weir__view_write_marks(weir__view *view);
weir_status weir__view_write_stacks(weir__view *view); /* after all that refer to stacks */

void weir__view_columns_clear(weir__view_columns *columns);

/*
 * The largest hole: a tree over the axis of addresses that knows the longest run of memory that is reserved and not in
 * use, and changes in logarithmic time.
 *
 * Its leaves are the intervals between the boundaries of all ranges that are ever added, which must be known first. A
 * leaf counts what keeps it from being a hole: 1 while it is not reserved, and 1 for each block that covers it. Each
 * node has the lowest count below it and the longest run of leaves with that count, without what was added to whole
 * nodes above it, so nothing is pushed down.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash_map.h"

typedef struct weir__holes_node {
  uint32_t length;               /* in all */
  uint32_t prefix, suffix, best; /* of runs with the lowest count */
  int32_t least, added;
} weir__holes_node;

typedef struct weir__holes {
  weir__hash_map boundaries; /* the leaf that begins at each place which is a boundary */
  bool lacks_memory;         /* for a boundary */
  unsigned shift; /* a place is so many units, as a power of two; more than one unit only for very high axes */
  weir__holes_node *nodes;
  uint32_t *walls; /* of each leaf: segments that begin or end there and are open, so that no hole crosses it */
  size_t leaves;   /* a power of two */
} weir__holes;

/* Makes the tree. `mark` calls weir__holes_mark for every range, and may be called again
 * if they have too many boundaries. Nothing is reserved then. false if out of host memory. */
bool weir__holes_make(weir__holes *holes, void (*mark)(void *context, weir__holes *holes), void *context);
void weir__holes_mark(weir__holes *holes, uint32_t y, uint32_t units);

/* Leaves of the tree: those of a range whose boundaries were marked. */
typedef struct weir__holes_range {
  uint32_t first, end;
} weir__holes_range;
weir__holes_range weir__holes_find(const weir__holes *holes, uint32_t y, uint32_t units);

/* Reserves a range, or ends that. If it has walls, holes do not reach into ranges next to it. */
void weir__holes_reserve(weir__holes *holes, weir__holes_range range, bool is_begin, bool has_walls);

/* From here on, no hole crosses a place that was marked. */
void weir__holes_wall(weir__holes *holes, uint32_t y);

/* A block begins or ends to cover a range. */
void weir__holes_cover(weir__holes *holes, weir__holes_range range, bool is_begin);

/* In bytes. */
uint64_t weir__holes_largest(const weir__holes *holes);

void weir__holes_clear(weir__holes *holes);

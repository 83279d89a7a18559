/*
 * The packed address axis: the addresses that were ever reserved or allocated, without the gaps between them, in units
 * of 512 bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/config/settings.h"
#include "offline/analyse/lives.h"

enum { WEIR__VIEW_UNIT_BITS = 9, WEIR__VIEW_UNIT = 1 << WEIR__VIEW_UNIT_BITS };

/* Addresses here are in units too. */
typedef struct weir__view_span {
  uint64_t first, end;
  uint32_t y;
} weir__view_span;

typedef struct weir__view_axis {
  weir__view_span *spans; /* by y, and by address */
  size_t count, room;
  uint32_t height;
  size_t last; /* found */
} weir__view_axis;

/* false if out of host memory. Ranges that a device cannot have, and what is beyond 2^32 units, are left out. */
bool weir__view_axis_make(const weir__lives *lives, weir__view_axis *axis);
void weir__view_axis_clear(weir__view_axis *axis);

/* The place of a range of bytes; false if it is not on the axis. */
bool weir__view_axis_find(weir__view_axis *axis, uint64_t address, uint64_t size, uint32_t *y, uint32_t *units);

/* The places of all blocks as they are drawn: their size is what was requested, rounded as under the settings, and less
 * if the next block of that moment begins before. units[i] is 0 for what is not on the axis. false if out of host
 * memory. */
bool weir__view_axis_place(weir__view_axis *axis, const weir__lives *lives, const weir__settings *settings, uint32_t *y,
                           uint32_t *units);

/*
 * Ranges of addresses that do not overlap, in order. The time of every call depends only on the depth of the tree:
 * three or four steps for a hundred thousand allocations. Not thread-safe: its owner guards it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slab.h"

/* All zero is an empty map. The fields belong to rangemap.c. */
typedef struct weir__rangemap {
  uintptr_t root;
  size_t count;
  weir__slab nodes;
  weir__slab leaves;
} weir__rangemap;

/* Adds [base, base + size). Returns false, and leaves the map as it is, if the range overlaps another, is empty or runs
 * past the last address, if `value` is NULL, or if the host has no memory. */
bool weir__rangemap_insert(weir__rangemap *map, uint64_t base, uint64_t size, void *value);

/* The value of the range that contains `address`, or NULL. Here and below, the outputs may be NULL, and are written
 * only if there is such a range. */
void *weir__rangemap_find(const weir__rangemap *map, uint64_t address, uint64_t *base, uint64_t *size);

/* The lowest range that has an address in common with [base, base + size), or NULL. */
void *weir__rangemap_overlap(const weir__rangemap *map, uint64_t base, uint64_t size, uint64_t *found_base,
                             uint64_t *found_size);

/* Removes the range that begins at `base` and returns its value; NULL if none does. */
void *weir__rangemap_remove(weir__rangemap *map, uint64_t base);

size_t weir__rangemap_count(const weir__rangemap *map);

/* The first range with base >= `address`, or NULL. To walk all: begin at 0, go on at base + size (which is 0 behind a
 * range that ends with the last address). Ranges may be removed on the way. */
void *weir__rangemap_at_or_after(const weir__rangemap *map, uint64_t address, uint64_t *base, uint64_t *size);

/* Frees the map's own memory, not the values, and leaves an empty map. */
void weir__rangemap_clear(weir__rangemap *map);

/* Walks everything: order, gaps, shape of the tree, count. For tests. */
bool weir__rangemap_is_valid(const weir__rangemap *map);

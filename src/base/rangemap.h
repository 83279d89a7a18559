/*
 * Ranges of addresses that do not overlap, in order. Every call takes time in the depth of the tree alone: three or
 * four steps for a hundred thousand allocations. Not thread-safe: its owner guards it.
 */
#ifndef WEIR_RANGEMAP_H
#define WEIR_RANGEMAP_H

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

/* Adds [base, base + size). false: it overlaps a range, is empty or runs past the last address, `value` is NULL, or the
 * host has no memory. The map is then as before. */
bool weir__rangemap_insert(weir__rangemap *map, uint64_t base, uint64_t size, void *value);

/* The value of the range that holds `address`, or NULL. Here and below, the outputs may be NULL, and are written only
 * when there is such a range. */
void *weir__rangemap_find(const weir__rangemap *map, uint64_t address, uint64_t *base, uint64_t *size);

/* The lowest range that has an address in common with [base, base + size), or NULL. */
void *weir__rangemap_overlap(const weir__rangemap *map, uint64_t base, uint64_t size, uint64_t *found_base,
                             uint64_t *found_size);

/* Takes away the range that begins at `base` and returns its value; NULL when none does. */
void *weir__rangemap_remove(weir__rangemap *map, uint64_t base);

size_t weir__rangemap_count(const weir__rangemap *map);

/* The first range with base >= `address`, or NULL. To walk all: begin at 0, go on at base + size (which is 0 behind a
 * range that ends with the last address). Ranges may be removed on the way. */
void *weir__rangemap_at_or_after(const weir__rangemap *map, uint64_t address, uint64_t *base, uint64_t *size);

/* Frees the map's own memory, not the values. The map is empty then. */
void weir__rangemap_clear(weir__rangemap *map);

/* Walks everything: order, gaps, shape of the tree, count. For tests. */
bool weir__rangemap_is_valid(const weir__rangemap *map);

#endif

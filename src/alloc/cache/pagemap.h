/*
 * The page map: finds the arena of an address. A table of two levels over granules of 2 MiB, read without a lock.
 *
 * A lookup of a live address is always correct, because the memory of that address cannot be removed meanwhile. A
 * lookup of any other address may return an arena or NULL; the caller then finds in that arena that the address is not
 * live.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct weir__arena;

enum {
  WEIR__GRANULE_SHIFT = 21,
  WEIR__LEAF_BITS = 14,
  WEIR__ROOT_BITS = 18,
  WEIR__ADDRESS_BITS = WEIR__GRANULE_SHIFT + WEIR__LEAF_BITS + WEIR__ROOT_BITS
};

/* Entries are an arena or, with the lowest bit set, a shared granule (pagemap.c). */
typedef struct weir__page_leaf {
  _Atomic(uintptr_t) entries[1 << WEIR__LEAF_BITS];
  struct weir__page_leaf *next; /* in the map's list */
} weir__page_leaf;

/* Written under a lock. The lists serve deletion, since the table is large and mostly empty. */
typedef struct weir__page_map {
  _Atomic(weir__page_leaf *) leaves[1 << WEIR__ROOT_BITS];
  weir__page_leaf *all_leaves;
  struct weir__shared_granule *all_shared;
} weir__page_map;

weir__page_map *weir__page_map_new(void);
void weir__page_map_delete(weir__page_map *map);

/* An empty map that all forked allocators share; must not be changed or deleted. */
extern weir__page_map weir__page_map_empty;

/* Adds or removes a range. Returns false, with nothing changed, if out of host memory. Adding a range again needs no
 * memory. */
bool weir__page_map_update(weir__page_map *map, uint64_t base, uint64_t bytes, struct weir__arena *arena, bool add);

struct weir__arena *weir__page_map_find_shared(uintptr_t entry, uint64_t address);

/* The arena of a live address; NULL if the address is not in the map. */
static inline struct weir__arena *weir__page_map_find(const weir__page_map *map, uint64_t address) {
  if (address >> WEIR__ADDRESS_BITS)
    return NULL;
  const weir__page_leaf *leaf =
      atomic_load_explicit(&map->leaves[address >> (WEIR__GRANULE_SHIFT + WEIR__LEAF_BITS)], memory_order_acquire);
  if (!leaf)
    return NULL;
  uintptr_t entry = atomic_load_explicit(&leaf->entries[address >> WEIR__GRANULE_SHIFT & ((1 << WEIR__LEAF_BITS) - 1)],
                                         memory_order_acquire);
  return __builtin_expect(entry & 1, 0) ? weir__page_map_find_shared(entry, address) : (struct weir__arena *)entry;
}

/*
 * From an address to its arena: two levels over addresses in units of 2 MiB, read without a lock.
 *
 * A reader comes with an address that is live, so its memory stays while he looks, and what he finds is right. An address that
 * is not live finds some arena or none; whoever asked sees there that it is not live.
 */
#ifndef WEIR_ALLOC_PAGEMAP_H
#define WEIR_ALLOC_PAGEMAP_H

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

/* An arena, or with the lowest bit set a unit that is shared (pagemap.c). */
typedef struct weir__page_leaf {
  _Atomic(uintptr_t) entries[1 << WEIR__LEAF_BITS];
  struct weir__page_leaf *next; /* of all leaves */
} weir__page_leaf;

/* Filled under a lock of the writers'. The lists are for the end: a map is large, and mostly empty. */
typedef struct weir__page_map {
  _Atomic(weir__page_leaf *) leaves[1 << WEIR__ROOT_BITS];
  weir__page_leaf *all_leaves;
  struct weir__shared_granule *all_shared;
} weir__page_map;

weir__page_map *weir__page_map_new(void);
void weir__page_map_delete(weir__page_map *map);

/* A map that knows no address, the same one for all; not to be changed or deleted. */
extern weir__page_map weir__page_map_empty;

/* Makes a range of memory known, or unknown. false: no host memory, and nothing changed. What was known once can be made
 * known again without any. */
bool weir__page_map_note(weir__page_map *map, uint64_t base, uint64_t bytes, struct weir__arena *arena, bool add);

struct weir__arena *weir__page_map_find_shared(uintptr_t entry, uint64_t address);

/* The arena of a live address; NULL: it is none of ours. */
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

#endif

/*
 * Growing arrays: a pointer from malloc, the items in use, and the items that there is room for. Their owner frees
 * them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

bool weir__array_grow(void *items, size_t *room, size_t needed, size_t item_size);

/* Makes room for `needed` items, at least twice as many as before. `items` is the address of the pointer. false if the
 * host has no memory; the array is then as before. */
static inline bool weir__array_reserve(void *items, size_t *room, size_t needed, size_t item_size) {
  return needed <= *room || weir__array_grow(items, room, needed, item_size);
}

/* The same for an array whose pointer is typed: WEIR__RESERVE(list->items, list->room, list->count + 1). */
#define WEIR__RESERVE(items, room, needed) weir__array_reserve(&(items), &(room), (needed), sizeof *(items))

/*
 * A hash table of entries with a 64-bit key, such as an address. An entry is a struct that begins with its key, and
 * keys are not 0. Collisions go to the next slot (linear probing), and at most half of the slots are used.
 *
 * `size` is that of an entry, the same in every call on one map. The address of an entry is valid until another one is
 * added or removed. Not thread-safe: its owner guards it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* All zero is an empty map. */
typedef struct weir__hash_map {
  char *slots; /* key 0: unused */
  size_t count;
  size_t room; /* slots, a power of two; or 0 */
} weir__hash_map;

static inline size_t weir__hash_slot(const weir__hash_map *map, uint64_t key) {
  return (size_t)(key * 0x9e3779b97f4a7c15u >> 32) & (map->room - 1);
}

static inline uint64_t weir__hash_map_key(const void *entry) {
  uint64_t key;
  memcpy(&key, entry, sizeof key);
  return key;
}

/* The slot of a key, or the unused one where it would be. The map has slots. */
static inline void *weir__hash_map_probe(const weir__hash_map *map, size_t size, uint64_t key) {
  size_t at = weir__hash_slot(map, key);
  for (uint64_t there; (there = weir__hash_map_key(map->slots + at * size)) && there != key;)
    at = (at + 1) & (map->room - 1);
  return map->slots + at * size;
}

/* The entry of a key, or NULL. */
static inline void *weir__hash_map_find(const weir__hash_map *map, size_t size, uint64_t key) {
  void *entry = map->count ? weir__hash_map_probe(map, size, key) : NULL;
  return entry && weir__hash_map_key(entry) ? entry : NULL;
}

/* The entries in no particular order: begin with *at 0; NULL at the end. Nothing may be added or removed meanwhile. */
static inline void *weir__hash_map_next(const weir__hash_map *map, size_t size, size_t *at) {
  while (*at < map->room) {
    char *entry = map->slots + (*at)++ * size;
    if (weir__hash_map_key(entry))
      return entry;
  }
  return NULL;
}

/* Makes room for `count` entries in all. false if the host has no memory; the map is then as before. */
static inline bool weir__hash_map_reserve(weir__hash_map *map, size_t size, size_t count) {
  weir__hash_map grown = {.count = map->count, .room = map->room ? map->room : 64};
  while (grown.room / 2 < count && grown.room <= SIZE_MAX / 4)
    grown.room *= 2;
  if (grown.room == map->room)
    return true;
  grown.slots = grown.room / 2 < count ? NULL : calloc(grown.room, size);
  if (!grown.slots)
    return false;
  void *entry;
  for (size_t at = 0; (entry = weir__hash_map_next(map, size, &at));)
    memcpy(weir__hash_map_probe(&grown, size, weir__hash_map_key(entry)), entry, size);
  free(map->slots);
  *map = grown;
  return true;
}

/* The entry of a key, added if there is none: then all zero but its key. NULL if the host has no memory. */
static inline void *weir__hash_map_put(weir__hash_map *map, size_t size, uint64_t key) {
  if (2 * (map->count + 1) > map->room && !weir__hash_map_reserve(map, size, map->count + 1))
    return NULL;
  void *entry = weir__hash_map_probe(map, size, key);
  map->count += !weir__hash_map_key(entry);
  memcpy(entry, &key, sizeof key);
  return entry;
}

/* Removes an entry that find or put returned. Entries that follow move up where they may, so that no search ends at the
 * gap. */
static inline void weir__hash_map_remove(weir__hash_map *map, size_t size, void *entry) {
  size_t mask = map->room - 1, hole = (size_t)((char *)entry - map->slots) / size;
  uint64_t key;
  for (size_t at = (hole + 1) & mask; (key = weir__hash_map_key(map->slots + at * size)); at = (at + 1) & mask)
    if (((at - weir__hash_slot(map, key)) & mask) >= ((at - hole) & mask)) {
      memcpy(map->slots + hole * size, map->slots + at * size, size);
      hole = at;
    }
  memset(map->slots + hole * size, 0, size);
  map->count--;
}

/* Frees everything, and leaves an empty map. */
static inline void weir__hash_map_clear(weir__hash_map *map) {
  free(map->slots);
  *map = (weir__hash_map){0};
}

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

bool weir__hash_map_reserve(weir__hash_map *map, size_t size, size_t count);

/* The entry of a key, added if there is none: then all zero but its key. NULL if the host has no memory. */
static inline void *weir__hash_map_put(weir__hash_map *map, size_t size, uint64_t key) {
  if (2 * (map->count + 1) > map->room && !weir__hash_map_reserve(map, size, map->count + 1))
    return NULL;
  void *entry = weir__hash_map_probe(map, size, key);
  map->count += !weir__hash_map_key(entry);
  memcpy(entry, &key, sizeof key);
  return entry;
}

/* Removes an entry that find or put returned. */
void weir__hash_map_remove(weir__hash_map *map, size_t size, void *entry);

/* The entries in no particular order: begin with *at 0; NULL at the end. Nothing may be added or removed meanwhile. */
void *weir__hash_map_next(const weir__hash_map *map, size_t size, size_t *at);

/* Frees everything, and leaves an empty map. */
void weir__hash_map_clear(weir__hash_map *map);

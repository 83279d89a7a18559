#include "base/hash_map.h"

#include <stdlib.h>

enum { FIRST_ROOM = 64 };

/* Makes room for `count` entries in all. false if the host has no memory; the map is then as before. */
bool weir__hash_map_reserve(weir__hash_map *map, size_t size, size_t count) {
  weir__hash_map grown = {.count = map->count, .room = map->room ? map->room : FIRST_ROOM};
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

/* Entries that follow move up where they may, so that no search ends at the gap. */
void weir__hash_map_remove(weir__hash_map *map, size_t size, void *entry) {
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

void *weir__hash_map_next(const weir__hash_map *map, size_t size, size_t *at) {
  while (*at < map->room) {
    char *entry = map->slots + (*at)++ * size;
    if (weir__hash_map_key(entry))
      return entry;
  }
  return NULL;
}

void weir__hash_map_clear(weir__hash_map *map) {
  free(map->slots);
  *map = (weir__hash_map){0};
}

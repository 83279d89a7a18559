#include "alloc/cache/pagemap.h"

#include <stdlib.h>

#include "base/memory_map.h"
#include "base/thread.h"

/* A granule in which one range ends and another begins. There are at most two, because no range is smaller than a
 * granule. The range of a reader's live address cannot change during the lookup, but the other one can be added or
 * removed; any value of the border that the reader may see is correct for its own range. */
typedef struct weir__shared_granule {
  _Atomic(uint64_t)
      border; /* between the end of the lower range and the start of the upper; UINT64_MAX if there is no upper */
  _Atomic(struct weir__arena *) lower, upper;
  struct weir__shared_granule *next; /* in the map's list */
} shared_granule;

/* Writes are rare, so all maps share one lock. */
static weir__mutex write_lock = WEIR__MUTEX_INIT;

/* The child of a fork, which may have maps of its own, finds the lock free. */
static void lock_writes(void) { weir__mutex_lock(&write_lock); }
static void unlock_writes(void) { weir__mutex_unlock(&write_lock); }

WEIR__AT_LOAD(WEIR__LOAD_MEMORY) void watch_forks(void) { weir__at_fork(lock_writes, unlock_writes, unlock_writes); }

weir__page_map weir__page_map_empty; /* not const: as constant data its 2 MiB would be in the library file */

/* A leak checker in the process: leaves are reached from mapped memory alone, which it does not search by itself. */
extern void __lsan_register_root_region(const void *memory, size_t bytes) __attribute__((weak));
extern void __lsan_unregister_root_region(const void *memory, size_t bytes) __attribute__((weak));

/* Mapped, since calloc clears 2 MiB where it has freed as much before: a search for settings creates and destroys
 * hundreds of allocators, each of which touches a few pages of its table. */
weir__page_map *weir__page_map_new(void) {
  weir__page_map *map = weir__map_reserve(sizeof *map, 1);
  if (map && !weir__map_commit(map, sizeof *map)) {
    weir__unmap(map, sizeof *map);
    return NULL;
  }
  if (map && __lsan_register_root_region)
    __lsan_register_root_region(map, sizeof *map);
  return map;
}

void weir__page_map_delete(weir__page_map *map) {
  for (weir__page_leaf *leaf = map->all_leaves, *next; leaf; leaf = next) {
    next = leaf->next;
    free(leaf);
  }
  for (shared_granule *shared = map->all_shared, *next; shared; shared = next) {
    next = shared->next;
    free(shared);
  }
  if (__lsan_unregister_root_region)
    __lsan_unregister_root_region(map, sizeof *map);
  weir__unmap(map, sizeof *map);
}

struct weir__arena *weir__page_map_find_shared(uintptr_t entry, uint64_t address) {
  shared_granule *shared = (shared_granule *)(entry - 1);
  bool is_upper = address >= atomic_load_explicit(&shared->border, memory_order_acquire);
  return atomic_load_explicit(is_upper ? &shared->upper : &shared->lower, memory_order_acquire);
}

/* A range to add or to remove. */
typedef struct range {
  uint64_t base, end;
  struct weir__arena *arena;
  bool add;
} range;

static bool is_upper(const range *r, uint64_t granule) { return r->base > granule << WEIR__GRANULE_SHIFT; }

/* Returns false if another range has the place. The border is set before a range is added, and stays correct for the
 * other range when one is removed. */
static bool set_shared(shared_granule *shared, uint64_t granule, const range *r) {
  bool upper = is_upper(r, granule);
  _Atomic(struct weir__arena *) *place = upper ? &shared->upper : &shared->lower;
  if (atomic_load_explicit(place, memory_order_relaxed) != (r->add ? NULL : r->arena))
    return false;
  if (r->add && (upper || atomic_load_explicit(&shared->upper, memory_order_relaxed)))
    atomic_store_explicit(&shared->border, upper ? r->base : r->end, memory_order_release);
  atomic_store_explicit(place, r->add ? r->arena : NULL, memory_order_release);
  if (!r->add && upper)
    atomic_store_explicit(&shared->border, UINT64_MAX, memory_order_release);
  return true;
}

static bool set_entry(weir__page_map *map, uint64_t granule, const range *r) {
  _Atomic(weir__page_leaf *) *at = &map->leaves[granule >> WEIR__LEAF_BITS];
  weir__page_leaf *leaf = atomic_load_explicit(at, memory_order_relaxed);
  if (!leaf) {
    leaf = calloc(1, sizeof *leaf);
    if (!leaf)
      return false;
    leaf->next = map->all_leaves;
    map->all_leaves = leaf;
    atomic_store_explicit(at, leaf, memory_order_release);
  }
  _Atomic(uintptr_t) *entry = &leaf->entries[granule & ((1 << WEIR__LEAF_BITS) - 1)];
  uintptr_t old = atomic_load_explicit(entry, memory_order_relaxed);
  if (old & 1)
    return set_shared((shared_granule *)(old - 1), granule, r);
  if (!r->add || !old) {
    if (!r->add && old != (uintptr_t)r->arena)
      return false;
    atomic_store_explicit(entry, r->add ? (uintptr_t)r->arena : 0, memory_order_release);
    return true;
  }
  /* The granule stays shared from here on, because readers may be using it. */
  shared_granule *shared = calloc(1, sizeof *shared);
  if (!shared)
    return false;
  shared->next = map->all_shared;
  map->all_shared = shared;
  bool upper = is_upper(r, granule);
  atomic_store_explicit(&shared->border, upper ? r->base : r->end, memory_order_relaxed);
  atomic_store_explicit(upper ? &shared->upper : &shared->lower, r->arena, memory_order_relaxed);
  atomic_store_explicit(upper ? &shared->lower : &shared->upper, (struct weir__arena *)old, memory_order_relaxed);
  atomic_store_explicit(entry, (uintptr_t)shared + 1, memory_order_release);
  return true;
}

bool weir__page_map_update(weir__page_map *map, uint64_t base, uint64_t bytes, struct weir__arena *arena, bool add) {
  range r = {base, base + bytes, arena, add};
  uint64_t first = base >> WEIR__GRANULE_SHIFT, last = (r.end - 1) >> WEIR__GRANULE_SHIFT, at = first;
  if ((r.end - 1) >> WEIR__ADDRESS_BITS)
    return false;
  weir__mutex_lock(&write_lock);
  while (at <= last && set_entry(map, at, &r))
    at++;
  bool done = at > last;
  r.add = !add;
  while (!done && at-- > first)
    set_entry(map, at, &r);
  weir__mutex_unlock(&write_lock);
  return done;
}

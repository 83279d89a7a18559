#include "inspect/still.h"

#include "alloc/arena.h"

#include <stdlib.h>

#include "inspect/snapshot.h"

static int by_arena(const void *a, const void *b) {
  const weir__arena *x = ((const weir__still_part *)a)->segment->arena,
                    *y = ((const weir__still_part *)b)->segment->arena;
  return (x > y) - (x < y);
}

bool weir__still_list(const weir__heap *heap, weir_pool_id pool, weir__still_part **parts, size_t *count) {
  size_t room = 0;
  *parts = NULL;
  *count = 0;
  for (const weir__segment *s = heap->segments; s; s = s->next) {
    const weir__private_pool *owner = s->arena->pool->owner;
    if ((pool.first || pool.second) && (!owner || owner->id.first != pool.first || owner->id.second != pool.second))
      continue;
    if (!weir__make_room(parts, &room, *count + 1, sizeof **parts))
      return false;
    (*parts)[(*count)++] = (weir__still_part){.segment = s};
  }
  if (*count)
    qsort(*parts, *count, sizeof **parts, by_arena);
  return true;
}

void weir__still_lock(const weir__still_part *parts, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (weir__still_is_first(parts, i)) {
      weir__arena *arena = parts[i].segment->arena;
      weir__arena_lock(arena);
      weir__gauges_freeze(arena);
    }
}

void weir__still_unlock(const weir__still_part *parts, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (weir__still_is_first(parts, i)) {
      weir__gauges_unfreeze(parts[i].segment->arena);
      weir__arena_unlock(parts[i].segment->arena);
    }
}

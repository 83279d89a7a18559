/*
 * The port to guard mode (guard/): what the cache tells it, and asks of it. A guarded block has WEIR__MARK_GUARDED,
 * which sends its free to the slow path, as WEIR__SLOW_GUARDED does for all allocations.
 */
#ifndef WEIR_ALLOC_CACHE_GUARD_PORT_H
#define WEIR_ALLOC_CACHE_GUARD_PORT_H

#include "alloc/cache/heap.h"

typedef struct weir__guard_calls {
  /* Before an allocation, and after a free. Reports what checks have found; fails if the program asked for that. No
   * lock is held. */
  weir_status (*poll)(const char *caller, weir_allocator *allocator);

  /* Whether the next allocation is to be guarded. Needs no lock. */
  bool (*chooses)(weir__heap *heap);

  /* A block was allocated that is to be guarded, and the program does not have it yet. No lock is held. */
  void (*allocated)(weir__heap *heap, uint64_t address);

  /* A guarded block was freed, and no other stream uses it any more: checks it. True: it waits in quarantine, as the
   * guard's, until weir__arena_release. The heap's lock and the arena's are held. */
  bool (*keep)(weir__heap *heap, weir__arena *arena, weir__block *block);

  /* A free was refused. No lock is held. */
  void (*refused)(const char *caller, weir_allocator *allocator, uint64_t address);

  /* Ends the quarantine of all blocks, because memory is short or the program empties the cache. The heap's lock is
   * held, and no arena's. */
  void (*release)(weir__heap *heap);

  /* The history has a mark: checks what is guarded, in stream order. No lock is held. */
  void (*step)(weir_allocator *allocator);

  /* The allocator is being destroyed: checks everything once more. */
  void (*end)(weir_allocator *allocator);
} weir__guard_calls;

/* The first member of the guard's own state. */
struct weir__guard_port {
  const weir__guard_calls *calls;
  bool samples; /* the history is the guard's own, and only a part of the blocks is guarded: the others need no stacks,
                 * which cost more than all else */
};

#endif

#include "driver/pieces.h"

#include "base/lock.h"
#include "base/rangemap.h"

atomic_size_t weir__pieced_ranges;

static weir__lock lock;
static weir__rangemap ranges; /* guarded by the lock; the values are the sizes of the pieces */

bool weir__pieces_add(const void *base, uint64_t bytes, uint64_t piece) {
  weir__lock_acquire(&lock);
  bool added = weir__rangemap_insert(&ranges, (uintptr_t)base, bytes, (void *)(uintptr_t)piece);
  if (added)
    atomic_fetch_add(&weir__pieced_ranges, 1);
  weir__lock_release(&lock);
  return added;
}

void weir__pieces_remove(const void *base) {
  weir__lock_acquire(&lock);
  if (weir__rangemap_remove(&ranges, (uintptr_t)base))
    atomic_fetch_sub(&weir__pieced_ranges, 1);
  if (!weir__rangemap_count(&ranges))
    weir__rangemap_clear(&ranges);
  weir__lock_release(&lock);
}

uint64_t weir__pieces_search(const void *at, uint64_t bytes) {
  uint64_t base, size;
  weir__lock_acquire(&lock);
  uint64_t piece = (uintptr_t)weir__rangemap_find(&ranges, (uintptr_t)at, &base, &size);
  weir__lock_release(&lock);
  if (!piece)
    return bytes;
  uint64_t run = piece - ((uintptr_t)at - base) % piece;
  return run < bytes ? run : bytes;
}

#include "alloc/cache/growth.h"

#include "alloc/cache/arena.h"
#include "alloc/cache/move.h"

/* ---- The decision ---- */

/* Pages move only where the driver's guarantee about aliases is trusted. */
static void fit_moving_pages(const weir_allocator *allocator, weir__settings *settings) {
  for (int i = 0; i < allocator->heap_count && settings->moving_pages; i++) {
    const weir__heap *heap = &allocator->heaps[i];
    if (heap->capability >= settings->moving_pages_min_capability)
      continue;
    weir__log(WEIR_LOG_WARN,
              "moving_pages is off: device %d has compute capability %llu.%llu, which is less than "
              "moving_pages_min_capability:%llu",
              i, (unsigned long long)heap->capability / 10, (unsigned long long)heap->capability % 10,
              (unsigned long long)settings->moving_pages_min_capability);
    settings->moving_pages = false;
  }
}

void weir__growth_fit(const weir_allocator *allocator, weir__settings *settings) {
  fit_moving_pages(allocator, settings);
  int device = 0;
  while (device < allocator->heap_count && allocator->heaps[device].pages.granularity)
    device++;
  if (settings->guard == WEIR__GUARD_FULL && device < allocator->heap_count) {
    weir__log(WEIR_LOG_WARN, "guard:full needs virtual memory, which device %d does not have; guard:light is used",
              device);
    settings->guard = WEIR__GUARD_LIGHT;
  }
  if (settings->guard == WEIR__GUARD_FULL) /* blocks that share no page are not placed in other ways */
    settings->expandable_segments = settings->moving_pages = false;
  if (!settings->expandable_segments || device == allocator->heap_count)
    return;
  weir__log(WEIR_LOG_WARN, "expandable_segments not supported on this platform: device %d has no virtual memory",
            device);
  settings->expandable_segments = settings->moving_pages = false;
}

weir__growth_kind weir__growth_of_options(const weir__heap *heap, const weir_pool_options *options,
                                          const weir_tag *tag) {
  if (options->alloc)
    return WEIR__GROWTH_PROVIDED;
  if (tag)
    return heap->pages.granularity ? WEIR__GROWTH_EXPANDABLE : WEIR__GROWTH_FIXED;
  bool can_move = heap->pages.granularity && heap->capability >= weir__settings_of(heap)->moving_pages_min_capability;
  return options->moving_pages && can_move ? WEIR__GROWTH_MOVING : WEIR__GROWTH_BY_SETTINGS;
}

/* ---- Placement ---- */

/* Whether an unmapped block follows. As blocks are cut and merge, the mark only spreads. */
static bool is_last(weir__block *block) {
  const weir__block *next = weir__block_next(block);
  bool is_last = next && !weir__block_is_mapped(next);
  if (!is_last)
    block->paged &= (uint8_t)~WEIR__PAGED_LAST;
  return is_last;
}

/* The size that a block would have if the address space behind it were mapped. */
static uint64_t could_become(weir__block *block) {
  return weir__block_bytes(block) + (is_last(block) ? weir__block_bytes(weir__block_next(block)) : 0);
}

weir__block *weir__growth_choose_among(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                       uint64_t bytes, bool bare) {
  bool reuses = weir__growth_reuses(settings, arena->pool);
  if (!weir__growth_reserves(settings) && !reuses && !weir__growth_is_paged(arena->pool->owner)) {
    /* Expandable segments were turned off after this one was created, perhaps to share memory with another process: its
     * blocks no longer serve requests. */
    while (block && block->paged)
      block = weir__index_next(&arena->free, block);
    return block;
  }
  /* The last mapped block counts with the size it can grow to, so a smaller block that also fits is preferred. */
  weir__block *next;
  while (is_last(block) && (next = weir__index_next(&arena->free, block)) && could_become(next) < could_become(block))
    block = next;
  while (!bare && block && !weir__block_is_backed(arena, settings, block, bytes))
    block = reuses ? NULL : weir__index_next(&arena->free, block);
  return block;
}

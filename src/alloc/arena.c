/*
 * Arenas: finding, splitting and merging blocks. Everything here needs the arena's lock and nothing else.
 */
#include <stdlib.h>

#include "alloc/heap.h"

/* ---- Which arena ---- */

static _Atomic(weir__arena *) *bucket_of(weir__pool *pool, weir_cu_stream stream) {
  uint64_t hash = (uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15u;
  return &pool->buckets[hash >> 60];
}

static weir__arena *find_arena(_Atomic(weir__arena *) *bucket, weir_cu_stream stream) {
  weir__arena *arena = atomic_load_explicit(bucket, memory_order_acquire);
  while (arena && arena->stream != stream)
    arena = atomic_load_explicit(&arena->next, memory_order_acquire);
  return arena;
}

/* Arenas are only ever added while their pool lives, so they are looked up without a lock; two threads that make the same one
 * settle it at the bucket. */
weir__arena *weir__arena_get(weir__pool *pool, weir_cu_stream stream) {
  _Atomic(weir__arena *) *bucket = bucket_of(pool, stream);
  weir__arena *arena = find_arena(bucket, stream);
  if (arena)
    return arena;
  arena = calloc(1, sizeof *arena);
  if (!arena)
    return NULL;
  arena->pool = pool;
  arena->stream = stream;
  weir__arena *first = atomic_load_explicit(bucket, memory_order_acquire);
  do {
    weir__arena *other = find_arena(bucket, stream);
    if (other) {
      free(arena);
      return other;
    }
    atomic_store_explicit(&arena->next, first, memory_order_relaxed);
  } while (!atomic_compare_exchange_strong_explicit(bucket, &first, arena, memory_order_release, memory_order_acquire));
  return arena;
}

static int by_stream(const void *a, const void *b) {
  uintptr_t x = (uintptr_t)(*(weir__arena *const *)a)->stream, y = (uintptr_t)(*(weir__arena *const *)b)->stream;
  return (x > y) - (x < y);
}

size_t weir__pool_arenas(const weir__pool *pool, weir__arena ***arenas) {
  size_t count = 0;
  *arenas = NULL;
  for (int pass = 0; pass < 2; pass++) {
    size_t n = 0;
    for (int i = 0; i < WEIR__ARENA_BUCKETS; i++)
      for (weir__arena *a = atomic_load_explicit(&pool->buckets[i], memory_order_acquire); a;
           a = atomic_load_explicit(&a->next, memory_order_acquire)) {
        if (pass && n < count)
          (*arenas)[n] = a;
        n++;
      }
    if (pass)
      break;
    count = n;
    *arenas = count ? malloc(count * sizeof **arenas) : NULL;
    if (!*arenas)
      return 0;
  }
  qsort(*arenas, count, sizeof **arenas, by_stream);
  return count;
}

void weir__pool_clear(weir__pool *pool) {
  for (int i = 0; i < WEIR__ARENA_BUCKETS; i++) {
    weir__arena *arena = atomic_load(&pool->buckets[i]);
    atomic_store(&pool->buckets[i], NULL);
    while (arena) {
      weir__arena *next = atomic_load(&arena->next);
      weir__index_clear(&arena->free);
      weir__live_clear(&arena->live);
      weir__slab_clear(&arena->blocks);
      weir__slab_clear(&arena->uses);
      free(arena);
      arena = next;
    }
  }
}

/* ---- Blocks ---- */

weir__block *weir__arena_new_block(weir__arena *arena, weir__segment *segment, uint64_t address, uint64_t bytes) {
  weir__block *block = weir__slab_take(&arena->blocks, sizeof *block);
  if (!block)
    return NULL;
  *block = (weir__block){.address = address, .bytes = bytes, .segment = segment, .arena = arena, .mapped = true};
  return block;
}

void weir__arena_insert(weir__arena *arena, weir__block *block) {
  block->idle_since = atomic_load_explicit(&arena->pool->searches, memory_order_relaxed);
  weir__index_insert(&arena->free, block);
}

uint64_t weir__arena_merge(weir__arena *arena, weir__block *block, weir__block *neighbour) {
  if (!neighbour || weir__block_is_active(neighbour) || neighbour->mapped != block->mapped)
    return 0;
  uint64_t gained = neighbour->bytes;
  if (neighbour->mapped)
    weir__index_remove(&arena->free, neighbour);
  else
    weir__tree_remove(&arena->unmapped, neighbour);
  if (neighbour == block->previous) {
    block->address = neighbour->address;
    block->previous = neighbour->previous;
    if (block->previous)
      block->previous->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next)
      block->next->previous = block;
  }
  if (block->segment->first == neighbour)
    block->segment->first = block;
  block->bytes += gained;
  weir__slab_give(&arena->blocks, neighbour, sizeof *neighbour);
  return gained;
}

/* What a block could become if the address space behind it were mapped. */
static uint64_t could_become(const weir__block *block) {
  return block->bytes + (block->next && !block->next->mapped ? block->next->bytes : 0);
}

weir__block *weir__arena_take(weir__arena *arena, const weir__settings *settings, uint64_t bytes, bool counted) {
  if (counted)
    atomic_fetch_add_explicit(&arena->pool->searches, 1, memory_order_relaxed);
  weir__block *block = weir__index_at_least(&arena->free, bytes);
  if (!block)
    return NULL;
  if (weir__is_expandable(block)) {
    weir__block *next;
    if (settings->expandable_segments) {
      /* The block at the growing end counts as what it can grow to, so that a smaller one that fits is preferred. */
      while (weir__is_expandable(block) && (next = weir__index_next(&arena->free, block)) &&
             could_become(next) < could_become(block))
        block = next;
    } else {
      /* They were turned off meanwhile, perhaps to share memory with another process: old ones do not serve. */
      while (block && weir__is_expandable(block))
        block = weir__index_next(&arena->free, block);
      if (!block)
        return NULL;
    }
  }
  if (bytes < settings->max_split_size && block->bytes >= settings->max_split_size)
    return NULL;
  if (bytes >= settings->max_split_size && block->bytes >= bytes + settings->max_non_split_rounding)
    return NULL;
  weir__index_remove(&arena->free, block);
  return block;
}

/* Puts a free block into the index, merged with its neighbours, and adds what that changes. */
static void insert_merged(weir__arena *arena, weir__block *block, weir__change *change) {
  weir__block *neighbours[] = {block->previous, block->next};
  for (int i = 0; i < 2; i++) {
    uint64_t gained = weir__arena_merge(arena, block, neighbours[i]);
    change->inactive_split -= gained != 0;
    change->inactive_split_bytes -= (int64_t)gained;
  }
  weir__arena_insert(arena, block);
  if (weir__block_is_split(block)) {
    change->inactive_split += 1;
    change->inactive_split_bytes += (int64_t)block->bytes;
  }
  if (weir__is_expandable(block))
    change->inactive_split = 0, change->inactive_split_bytes = 0;
}

weir__block *weir__arena_hand_out(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                  uint64_t bytes, uint64_t requested, bool exact) {
  weir__heap *heap = arena->pool->heap;
  bool was_split = weir__block_is_split(block), expandable = weir__is_expandable(block);
  weir__change change = {.is_small = arena->pool->is_small, .allocation = 1, .active = 1};
  weir__change back = {.is_small = arena->pool->is_small};
  block->allocated = false; /* what was taken earlier is marked so */
  if (!weir__live_prepare(&arena->live))
    goto no_memory;
  if (exact ? block->bytes > bytes : weir__should_split(settings, block, bytes)) {
    weir__block *rest = block;
    block = weir__arena_new_block(arena, rest->segment, rest->address, bytes);
    if (!block) {
      block = rest;
      goto no_memory;
    }
    block->previous = rest->previous;
    block->next = rest;
    if (block->previous)
      block->previous->next = block;
    if (rest->segment->first == rest)
      rest->segment->first = block;
    rest->previous = block;
    rest->address += bytes;
    rest->bytes -= bytes;
    weir__arena_insert(arena, rest);
    if (!expandable) {
      change.inactive_split = was_split ? 0 : 1;
      change.inactive_split_bytes = was_split ? -(int64_t)bytes : (int64_t)rest->bytes;
    }
  } else if (was_split && !expandable) {
    change.inactive_split = -1;
    change.inactive_split_bytes = -(int64_t)block->bytes;
  }
  block->allocated = true;
  block->requested = requested;
  weir__live_insert(&arena->live, block);
  change.allocated_bytes = change.active_bytes = (int64_t)block->bytes;
  change.requested_bytes = (int64_t)requested;
  block->oversize = block->bytes >= settings->max_split_size;
  change.oversize_allocations = block->oversize;
  weir__count(heap, &change);
  weir__trace(heap, WEIR_TRACE_ALLOC, arena->pool, block->address, requested, arena->stream);
  return block;

no_memory:
  if (was_split)
    back.inactive_split = -1, back.inactive_split_bytes = -(int64_t)block->bytes;
  insert_merged(arena, block, &back);
  weir__count(heap, &back);
  return NULL;
}

void weir__arena_let_go(weir__arena *arena, weir__block *block) {
  weir__heap *heap = arena->pool->heap;
  weir__change change = {.is_small = arena->pool->is_small,
                         .allocation = -1,
                         .allocated_bytes = -(int64_t)block->bytes,
                         .oversize_allocations = -block->oversize};
  block->allocated = false;
  weir__count(heap, &change);
  weir__trace(heap, WEIR_TRACE_FREE_REQUESTED, arena->pool, block->address, block->requested, arena->stream);
}

void weir__arena_release(weir__arena *arena, weir__block *block) {
  weir__heap *heap = arena->pool->heap;
  weir__change change = {.is_small = arena->pool->is_small,
                         .active = -1,
                         .active_bytes = -(int64_t)block->bytes,
                         .requested_bytes = -(int64_t)block->requested};
  weir__trace(heap, WEIR_TRACE_FREE_COMPLETED, arena->pool, block->address, block->requested, arena->stream);
  weir__live_remove(&arena->live, block->address);
  insert_merged(arena, block, &change);
  weir__count(heap, &change);
}

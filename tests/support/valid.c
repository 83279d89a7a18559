/*
 * The walker: checks the invariants that hold while no thread is inside the allocator.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "alloc/backends/backend.h"
#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/segment.h"
#include "alloc/pools/pool.h"
#include "base/array.h"
#include "base/text.h"
#include "base/thread.h"
#include "support/valid.h"

/* Totals over the blocks of a heap. */
typedef struct tally {
  int64_t current[WEIR_STAT_KINDS];
} tally;

typedef struct walk {
  weir__heap *heap;
  bool is_valid;
  tally allocation, segment, active, inactive_split;
  tally allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t oversize_allocations, oversize_segments;
  size_t events;  /* that blocks wait for */
  size_t waiting; /* blocks freed while another stream uses them, without an event yet */
} walk;

/* Totals of one arena: its segments, and its blocks by state. */
typedef struct arena_tally {
  weir__arena *arena;
  int segments;
  int64_t reserved;
  size_t free, live, unmapped;
} arena_tally;

static void wrong(walk *w, const char *format, ...) WEIR_PRINTF(2, 3);
static void wrong(walk *w, const char *format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  weir__format_text(text, sizeof text, format, args);
  va_end(args);
  weir__log(WEIR_LOG_ERROR, "the allocator of device %d is not valid: %s", w->heap->device, text);
  w->is_valid = false;
}

static void count(tally *t, bool is_small, int64_t by) {
  t->current[WEIR_STAT_ALL] += by;
  t->current[is_small ? WEIR_STAT_SMALL_POOL : WEIR_STAT_LARGE_POOL] += by;
}

/* ---- Blocks ---- */

static void check_block(walk *w, const weir__segment *segment, const weir__block *b, arena_tally *sum) {
  const weir__arena *arena = segment->arena;
  bool is_small = arena->pool->is_small, active = weir__block_is_active(b);
  const weir__block *next = weir__block_next(b);
  unsigned long long at = b->address;
  if (weir__segment_of(w->heap, b) != segment || (b->paged != 0) != weir__has_pages(segment))
    wrong(w, "block %llx belongs to another segment", at);
  const weir_allocator *allocator = w->heap->allocator;
  if (!weir__block_bytes(b) || !b->units != (allocator->backend != NULL))
    wrong(w, "block %llx has %llu bytes", at, (unsigned long long)weir__block_bytes(b));
  if (next && weir__block_previous(next) != b)
    wrong(w, "the next block of %llx does not link back to it", at);
  if (next && !active && next->state == b->state)
    wrong(w, "free blocks %llx and %llx are not merged", at, (unsigned long long)next->address);

  if (next && b->state != WEIR__UNMAPPED && next->state == WEIR__UNMAPPED && !(b->paged & WEIR__PAGED_LAST))
    wrong(w, "block %llx is not marked although an unmapped one follows", at);

  if (b->state == WEIR__UNMAPPED) {
    sum->unmapped++;
    if (!weir__has_pages(segment))
      wrong(w, "block %llx is unmapped in a fixed segment", at);
    bool is_asleep =
        !weir__is_awake(arena->pool->owner); /* then it has parts of pages, with memory if that could not be unmapped */
    if (weir__has_pages(segment) && !is_asleep &&
        ((at - segment->memory.base) % segment->memory.slot || weir__block_bytes(b) % segment->memory.slot))
      wrong(w, "unmapped block %llx does not consist of whole pages", at);
    if (weir__tree_after(arena->unmapped, at - 1) != b)
      wrong(w, "block %llx is not in the tree of unmapped blocks", at);
    for (uint64_t a = at;
         weir__has_pages(segment) && !weir__pages_move(segment) && !is_asleep && a < at + weir__block_bytes(b);
         a += segment->memory.slot)
      if (weir__is_owner(weir__mapping_at(&segment->memory, a)))
        wrong(w, "unmapped block %llx has memory at %llx", at, (unsigned long long)a);
    return;
  }
  if (allocator->backend) {
    if (weir__backend_arena(w->heap->allocator, b->address) != arena)
      wrong(w, "the back end does not map address %llx to its arena", at);
    if (!active || weir__block_is_split(b))
      wrong(w, "block %llx of a back end is free, or has neighbours", at);
  } else {
    for (uint64_t a = at; a < at + weir__block_bytes(b); a += WEIR__SMALL_SEGMENT)
      if (weir__page_map_find(allocator->page_map, a) != arena)
        wrong(w, "the page map does not map address %llx to its arena", (unsigned long long)a);
    if (weir__page_map_find(allocator->page_map, at + weir__block_bytes(b) - 1) != arena)
      wrong(w, "the page map does not map the last byte of block %llx to its arena", at);
  }
  if (weir__has_pages(segment))
    for (uint64_t a = at; a < at + weir__block_bytes(b); a += segment->memory.slot)
      if (!weir__is_owner(weir__mapping_at(&segment->memory, a)) &&
          !weir__is_asleep(weir__mapping_at(&segment->memory, a)) && (active || !(b->paged & WEIR__PAGED_BARE)))
        wrong(w, "block %llx has no memory at %llx", at, (unsigned long long)a);

  if (!active) {
    sum->free++;
    if (!weir__index_has(&arena->free, b))
      wrong(w, "free block %llx is not in the index", at);
    if (!segment->memory.slot && weir__block_is_split(b)) {
      count(&w->inactive_split, is_small, 1);
      count(&w->inactive_split_bytes, is_small, (int64_t)weir__block_bytes(b));
    }
    return;
  }
  sum->live++;
  weir__live_place place;
  if (weir__live_find(&arena->live, at, &place) != b)
    wrong(w, "block %llx is in use but not in the live table", at);
  if (!b->requested || b->requested > weir__block_bytes(b))
    wrong(w, "block %llx has %llu bytes for a request of %llu", at, (unsigned long long)weir__block_bytes(b),
          (unsigned long long)b->requested);
  bool waits = b->state == WEIR__WAITING;
  const weir__use *uses = weir__block_uses(b);
  uint32_t events = waits ? weir__block_cold_of(b)->events : 0;
  if (waits && !events && !uses && !(b->marks & (WEIR__MARK_SENT | WEIR__MARK_GUARDED | WEIR__MARK_LEFT)) &&
      !allocator->backend) /* stream-ordered and guarded memory waits for captures too */
    wrong(w, "block %llx waits for nothing", at);
  for (const weir__use *use = uses; use; use = use->next)
    if (use->stream == arena->stream)
      wrong(w, "block %llx lists its own stream as another user", at);
  count(&w->active, is_small, 1);
  count(&w->active_bytes, is_small, (int64_t)weir__block_bytes(b));
  count(&w->requested_bytes, is_small, (int64_t)b->requested);
  w->events += events;
  w->waiting += waits && !(b->marks & WEIR__MARK_LEFT) && (uses || !events);
  if (waits)
    return;
  count(&w->allocation, is_small, 1);
  count(&w->allocated_bytes, is_small, (int64_t)weir__block_bytes(b));
  w->oversize_allocations += (b->marks & WEIR__MARK_OVERSIZE);
}

/* ---- Pages ---- */

static void check_retirement(walk *w) {
  for (int i = 0; i < WEIR__ALIAS_FENCES; i++)
    if (w->heap->pages.aliases.waiting[i + 1] && !w->heap->retirement.batches[i].is_used)
      wrong(w, "%zu aliases wait for no event", w->heap->pages.aliases.waiting[i + 1]);
}

/* Pages of a segment whose pages stay have its size, and have not left an alias behind. */
static void check_pages(walk *w, const weir__segment *segment) {
  const weir__reservation *memory = &segment->memory;
  for (size_t i = 0; weir__has_pages(segment) && !weir__pages_move(segment) && i < memory->room; i++)
    if (memory->slots[i] && ((memory->slots[i]->page->bytes != memory->slot && !segment->has_large_pages) ||
                             weir__is_alias(memory->slots[i])))
      wrong(w, "the page at %llx has moved, or has another size, in a segment whose pages stay",
            (unsigned long long)(memory->base + i * memory->slot));
}

/* The blocks and the pages of a tag that is awake are. */
static void check_marks(walk *w, const weir__segment *segment) {
  const weir__reservation *memory = &segment->memory;
  bool is_awake = weir__is_awake(segment->arena->pool->owner);
  uint64_t asleep = 0;
  for (const weir__block *b = segment->first; b; b = weir__block_next(b))
    if (weir__block_is_active(b) && !(b->marks & WEIR__MARK_ASLEEP) != is_awake)
      wrong(w, "block %llx has the marks %x, which its tag contradicts", (unsigned long long)b->address, b->marks);
  for (size_t i = 0; weir__has_pages(segment) && i < memory->room; i++)
    asleep += weir__is_asleep(memory->slots[i]) ? memory->slot : 0;
  if (asleep != segment->asleep || (asleep && is_awake))
    wrong(w, "segment %llx has %llu bytes asleep, and counts %llu", (unsigned long long)memory->base,
          (unsigned long long)asleep, (unsigned long long)segment->asleep);
}

/* The bits of moving pages say where they belong. */
static void check_backed(walk *w, const weir__segment *segment) {
  const weir__reservation *memory = &segment->memory;
  size_t slots = memory->room > segment->backed_room * 64 ? memory->room : segment->backed_room * 64;
  for (size_t i = 0; weir__pages_move(segment) && i < slots; i++) {
    bool has = i < memory->room && weir__is_owner(memory->slots[i]);
    if (has != (i / 64 < segment->backed_room && (segment->backed[i / 64] >> i % 64 & 1)))
      wrong(w, "the slot at %llx is not noted as it is", (unsigned long long)(memory->base + i * memory->slot));
  }
}

/* ---- Segments ---- */

static arena_tally *tally_of(arena_tally *sums, size_t count, const weir__arena *arena) {
  for (size_t i = 0; i < count; i++)
    if (sums[i].arena == arena)
      return &sums[i];
  return NULL;
}

static void check_segment(walk *w, const weir__segment *s, arena_tally *sum) {
  bool is_small = s->arena->pool->is_small;
  unsigned long long base = s->memory.base;
  uint64_t address = base, memory = 0;
  sum->segments++;
  if (!s->first || s->first->previous)
    wrong(w, "segment %llx does not begin with its first block", base);
  for (const weir__block *b = s->first; b; b = weir__block_next(b)) {
    if (b->address != address)
      wrong(w, "segment %llx has a block at %llx, expected at %llx", base, (unsigned long long)b->address,
            (unsigned long long)address);
    check_block(w, s, b, sum);
    address += weir__block_bytes(b);
    if (weir__block_is_mapped(b))
      memory += weir__block_bytes(b);
  }
  if (address != s->memory.base + s->memory.bytes)
    wrong(w, "segment %llx is not covered by its blocks", base);
  check_pages(w, s);
  check_marks(w, s);
  check_backed(w, s);
  if (weir__has_pages(s) && s->mapped != memory)
    wrong(w, "segment %llx counts %llu bytes of blocks, and has %llu", base, (unsigned long long)s->mapped,
          (unsigned long long)memory);
  if (weir__pages_move(s) || !weir__is_awake(s->arena->pool->owner))
    memory = s->memory.owned * s->memory.slot;
  if (weir__has_pages(s) && s->memory.owned * s->memory.slot != memory)
    wrong(w, "segment %llx has %zu pages but %llu bytes of blocks", base, s->memory.owned, (unsigned long long)memory);
  memory = weir__growth_held(w->heap, s->growth, memory);
  count(&w->reserved_bytes, is_small, (int64_t)memory);
  sum->reserved += (int64_t)memory;
  if (weir__has_pages(s))
    return; /* as in PyTorch, expandable segments are not counted as segments */
  count(&w->segment, is_small, 1);
  w->oversize_segments += s->oversize;
}

static void check_arena(walk *w, const arena_tally *sum) {
  const weir__arena *arena = sum->arena;
  void *stream = (void *)arena->stream;
  size_t unmapped = 0;
  long indexed = weir__index_count(&arena->free);
  if (indexed < 0)
    wrong(w, "the index of stream %p is out of order", stream);
  else if ((size_t)indexed != sum->free)
    wrong(w, "the index of stream %p has %ld blocks, its segments have %zu", stream, indexed, sum->free);
  /* Segments of a back end count until they are returned, which happens without a lock. */
  if (arena->segments != sum->segments && !w->heap->allocator->backend)
    wrong(w, "stream %p has %d segments but counts %d", stream, sum->segments, arena->segments);
  if (arena->live.count != sum->live)
    wrong(w, "stream %p has %zu live blocks, its segments have %zu", stream, arena->live.count, sum->live);
  for (const weir__block *b = weir__tree_after(arena->unmapped, 0); b;
       b = weir__tree_after(arena->unmapped, b->address))
    unmapped++;
  if (unmapped != sum->unmapped)
    wrong(w, "stream %p has %zu unmapped blocks, its segments have %zu", stream, unmapped, sum->unmapped);
}

/* ---- The heap ---- */

/* The arenas of all pools; the caller frees the array. */
static arena_tally *list_arenas(walk *w, size_t *count) {
  weir__heap *heap = w->heap;
  arena_tally *sums = NULL;
  size_t n = 0, room = 0;
  weir__private_pool *owner = NULL;
  do {
    weir__pool *pools[2] = {owner ? &owner->small : &heap->small, owner ? &owner->large : &heap->large};
    for (int i = 0; i < 2; i++) {
      const weir__arena *before = NULL;
      for (weir__arena *arena = weir__arena_first(pools[i]); arena; before = arena, arena = weir__arena_after(arena)) {
        if (!WEIR__RESERVE(sums, room, n + 2) || !sums)
          abort();
        sums[n++] = (arena_tally){.arena = arena};
        if (before && (uintptr_t)before->stream >= (uintptr_t)arena->stream)
          wrong(w, "the arenas of a pool are not ordered by stream");
        if (weir__arena_find(pools[i], arena->stream) != arena)
          wrong(w, "the arena of stream %p is not found", (void *)arena->stream);
      }
    }
    owner = owner ? owner->next : heap->private_pools;
  } while (owner);
  *count = n;
  return sums;
}

static void check_stat(walk *w, const char *name, const weir_stat *stats, const int64_t *counted, int kinds) {
  for (int kind = 0; kind < kinds; kind++) {
    const weir_stat *s = &stats[kind];
    if (s->current != counted[kind])
      wrong(w, "%s[%d] is %lld, but the blocks have %lld", name, kind, (long long)s->current, (long long)counted[kind]);
    if (s->peak < s->current)
      wrong(w, "%s[%d] is above its peak", name, kind);
  }
}

static void check_stats(walk *w) {
  weir_allocator_stats now = w->heap->stats, *s = &now;
  weir__accounts_read(&w->heap->accounts, s);
#define CHECK(name) check_stat(w, #name, s->name, w->name.current, WEIR_STAT_KINDS)
  CHECK(allocation);
  CHECK(segment);
  CHECK(active);
  CHECK(inactive_split);
  CHECK(allocated_bytes);
  CHECK(reserved_bytes);
  CHECK(active_bytes);
  CHECK(inactive_split_bytes);
  CHECK(requested_bytes);
#undef CHECK
  check_stat(w, "oversize_allocations", &s->oversize_allocations, &w->oversize_allocations, 1);
  check_stat(w, "oversize_segments", &s->oversize_segments, &w->oversize_segments, 1);
  if (w->heap->accounts.device.promised)
    wrong(w, "%llu bytes are still promised", (unsigned long long)w->heap->accounts.device.promised);
  if (w->heap->returning)
    wrong(w, "segments were not returned to the back end");
}

/* Returns how many of the scopes are captures. */
static int check_scopes(walk *w, const weir__scope *scope) {
  int captures = 0;
  for (; scope; scope = scope->next) {
    const weir__private_pool *pool = w->heap->private_pools;
    while (pool && pool != scope->pool)
      pool = pool->next;
    if (!pool || !atomic_load(&pool->holds))
      wrong(w, "a scope refers to a pool that no longer exists, or that it does not hold");
    captures += scope->is_capture;
  }
  return captures;
}

/* The accounts of the device, of pools and of arenas. Everything that is published is exact. */
static void check_accounts(walk *w, const arena_tally *sums, size_t arenas) {
  const weir__account *device = &w->heap->accounts.device;
  for (const weir__account *a = device; a; a = a->next) {
    const weir__amounts *counted = &a->published[WEIR_STAT_ALL].of;
    int64_t held = 0, live = 0, of_arenas = 0;
    for (size_t i = 0; i < arenas; i++)
      if (a == device || sums[i].arena->pool->account == a) {
        held += sums[i].reserved;
        live += (int64_t)sums[i].live;
        of_arenas += sums[i].arena->account.account.reserved[WEIR_STAT_ALL].current;
      }
    char name[64];
    weir__account_name(a, w->heap->device, name, sizeof name);
    if (a->reserved[WEIR_STAT_ALL].current != held || of_arenas != held)
      wrong(w, "the account of %s has %lld bytes, its arenas %lld, their segments %lld", name,
            (long long)a->reserved[WEIR_STAT_ALL].current, (long long)of_arenas, (long long)held);
    if (counted->allocations + counted->waiting != live)
      wrong(w, "the account of %s counts %lld blocks, its arenas have %lld", name,
            (long long)(counted->allocations + counted->waiting), (long long)live);
  }
}

static void check_pools(walk *w) {
  const weir__heap *heap = w->heap;
  for (const weir__private_pool *pool = heap->private_pools; pool; pool = pool->next) {
    unsigned long long first = pool->id.first, second = pool->id.second;
    int segments = 0;
    for (const weir__segment *s = heap->segments; s; s = s->next)
      segments += s->arena->pool->owner == pool;
    if (segments != pool->segments)
      wrong(w, "pool {%llu, %llu} has %d segments but counts %d", first, second, segments, pool->segments);
    if (pool->uses < 0 || pool->is_released != (pool->uses == 0))
      wrong(w, "pool {%llu, %llu} has %d uses and is %sreleased", first, second, pool->uses,
            pool->is_released ? "" : "not ");
    for (const weir__private_pool *other = pool->next; other; other = other->next)
      if (other->id.first == first && other->id.second == second)
        wrong(w, "there are two pools {%llu, %llu}", first, second);
  }
  weir__scopes_lock();
  int captures = check_scopes(w, heap->stream_scopes);
  check_scopes(w, heap->thread_scopes);
  if ((heap->thread_scopes != NULL) != ((weir__slow_reasons(heap) & WEIR__SLOW_SCOPED) != 0))
    wrong(w, "threads have scopes, but that is not a reason for the slow path, or the reverse");
  weir__scopes_unlock();
  if (captures + heap->foreign_captures != atomic_load(&heap->captures))
    wrong(w, "%d scopes are captures, but %d are counted", captures, atomic_load(&heap->captures));
}

static void check_events(walk *w) {
  const weir__heap *heap = w->heap;
  size_t pending = 0;
  for (const weir__fence_queue *queue = heap->fences.first; queue; queue = queue->next)
    for (const weir__fence *p = queue->first; p; p = p->next) {
      const weir__block *block = p->waiter;
      pending++;
      if (block->state != WEIR__WAITING || !weir__block_cold_of(block)->events)
        wrong(w, "block %llx has an event but does not wait", (unsigned long long)block->address);
    }
  if (pending + heap->sent.limbo + heap->quarantined != w->events)
    wrong(w, "%zu events are queued, %zu blocks are in limbo and %zu in quarantine, but blocks wait for %zu", pending,
          heap->sent.limbo, heap->quarantined, w->events);
  if (heap->sent.limbo > heap->sent.blocks.count || heap->sent.blocks.count > heap->sent.references)
    wrong(w, "%zu references to %zu blocks, of which %zu are in limbo", heap->sent.references, heap->sent.blocks.count,
          heap->sent.limbo);
  if (heap->deferred_count != w->waiting)
    wrong(w, "%zu blocks are deferred, but %zu wait without an event", heap->deferred_count, w->waiting);
  if (pending + heap->deferred_count != heap->pending)
    wrong(w, "%zu events and blocks are pending, but %zu are counted", pending + heap->deferred_count, heap->pending);
  if ((heap->pending != 0) != ((weir__slow_reasons(heap) & WEIR__SLOW_PENDING) != 0))
    wrong(w, "%zu events and blocks are pending, and allocations do %spoll", heap->pending,
          heap->pending ? "not " : "");
}

static bool heap_is_valid(weir__heap *heap) {
  walk w = {.heap = heap, .is_valid = true};
  weir__mutex_lock(&heap->lock);
  size_t arenas;
  arena_tally *sums = list_arenas(&w, &arenas);
  for (size_t i = 0; i < arenas; i++) {
    weir__arena_lock(sums[i].arena);
    weir__arena_unlock(sums[i].arena);
  }
  const weir__segment *before = NULL;
  size_t segments = 0;
  for (const weir__segment *s = heap->segments; s; before = s, s = s->next, segments++) {
    arena_tally *sum = tally_of(sums, arenas, s->arena);
    if (s->previous != before)
      wrong(&w, "segment %llx is not linked in its list", (unsigned long long)s->memory.base);
    if (sum)
      check_segment(&w, s, sum);
    else
      wrong(&w, "segment %llx belongs to an arena that no longer exists", (unsigned long long)s->memory.base);
  }
  if (segments != weir__rangemap_count(&heap->segments_by_address) ||
      !weir__rangemap_is_valid(&heap->segments_by_address))
    wrong(&w, "%zu segments are listed, but %zu are found by address", segments,
          weir__rangemap_count(&heap->segments_by_address));
  for (size_t i = 0; i < arenas; i++)
    check_arena(&w, &sums[i]);
  if (w.is_valid)
    check_pools(&w); /* requires valid segments */
  if (!weir__pages_is_valid(&heap->pages))
    wrong(&w, "neither are its pages");
  check_retirement(&w);
  check_events(&w);
  check_stats(&w);
  check_accounts(&w, sums, arenas);
  free(sums);
  weir__mutex_unlock(&heap->lock);
  return w.is_valid;
}

bool weir__allocator_is_valid(weir_allocator *allocator) {
  bool valid = true;
  for (int i = 0; i < allocator->heap_count; i++)
    valid &= heap_is_valid(&allocator->heaps[i]);
  return valid;
}

/*
 * Moving pages. A request that no free block serves gets a range of address space, and pages for it:
 *
 *   1. pages that are mapped in the range already, as aliases, because they were used there before: no driver call;
 *   2. other free pages of the same stream, mapped there in addition. The old mapping stays, so work in flight that
 *      uses it completes, and stream order makes what it writes visible through the new one;
 *   3. free pages of other streams that have nothing left to do;
 *   4. new pages, if the limit permits.
 *
 * A page can move if all of it lies in one free block. It is a transaction: everything that can fail, host memory and
 * calls of the driver, comes before the books change. Nothing waits for a stream.
 *
 * A large block that was made of moved pages alone is undone when it is freed: its pages go back to where they were,
 * and leave aliases behind. So a program that repeats its requests finds the same free blocks each time, and the same
 * aliases, and makes no driver call.
 *
 * The heap's lock is held. The functions lock all arenas from which pages may come.
 */
#include "alloc/cache/move.h"

#include <stdlib.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "alloc/memory/pages.h"
#include "base/array.h"

enum {
  SIZES = 33,                     /* pages have 1 to 32 slots */
  GATHERED_MIN = 32 * 1024 * 1024 /* a smaller block is not undone: that would cost more than the work on it */
};

typedef struct page_list {
  weir__page *first, **last;
} page_list;

/* A range of address space for a request, in one segment: it begins with a free block or in an unmapped one. */
typedef struct place {
  weir__segment *segment;
  uint64_t start, end; /* of the request */
  uint64_t unmapped;   /* bytes that no page is mapped at yet */
  weir__block *first;  /* the free block that it begins with; NULL if there is none */
} place;

typedef struct search {
  weir__heap *heap;
  weir__arena *arena; /* of the request */
  const weir__settings *settings;
  uint64_t bytes;         /* of the request */
  uint64_t slot;          /* size of a slot */
  uint64_t number, tries; /* of this search, and of the place that is tried */

  weir__arena **locked; /* arenas whose pages may move */
  size_t locked_count, locked_room;
  size_t movable_count[SIZES]; /* movable pages by slots */
  page_list movable[SIZES];    /* those outside of the place, in the order in which they are taken */
  uint64_t movable_bytes;      /* of these lists */
  uint64_t unmovable_bytes;    /* free, in pages that are partly in use */
  uint64_t stuck_bytes;        /* ... of which so many would be movable if all pages were of the smallest size */

  place at;
  weir__page_change *pieces; /* of the place: pages that are made, move there, or return */
  size_t piece_count, piece_room;
  uint64_t made_bytes;
} search;

/* ---- Movable pages ---- */

static weir_allocator_stats *stats_of(const search *s) { return &s->heap->stats; }

static bool is_movable(const search *s, const weir__page *page) { return page->search == s->number; }

/* Calls `visit` for every whole page of a free block, whose segment is one of moving pages. */
static void each_page(search *s, weir__block *block, void (*visit)(search *, weir__block *, weir__page *)) {
  const weir__segment *segment = weir__segment_of(s->heap, block);
  uint64_t end = block->address + weir__block_bytes(block);
  if (!weir__pages_move(segment))
    return;
  for (uint64_t at = segment->memory.base + weir__round_up(block->address - segment->memory.base, s->slot); at < end;) {
    const weir__mapping *owner = weir__mapping_at(&segment->memory, at);
    at = weir__mapping_end(owner);
    if (owner->address >= block->address && at <= end)
      visit(s, block, owner->page);
  }
}

static void note_block(search *s, weir__block *block, weir__page *page) {
  (void)s;
  page->in = block;
}

static void mark_page(search *s, weir__block *block, weir__page *page) {
  page->in = block;
  s->unmovable_bytes -= page->bytes;
  s->stuck_bytes -= page->bytes;
  if (weir__pins_permit(page->pins, WEIR__PAGE_TO_MOVE) == WEIR__PAGE_MAY_NOT)
    stats_of(s)->moving_unmovable_fixed_bytes += (int64_t)page->bytes;
  else {
    page->search = s->number;
    s->movable_count[page->bytes / s->slot]++;
  }
}

/* Finds the movable pages of an arena. */
static void mark_arena(search *s, weir__arena *arena) {
  for (weir__block *b = weir__index_first(&arena->free); b; b = weir__index_next(&arena->free, b)) {
    const weir__segment *segment = weir__segment_of(s->heap, b);
    uint64_t from = weir__round_up(b->address - segment->memory.base, s->slot);
    uint64_t to = (b->address + weir__block_bytes(b) - segment->memory.base) / s->slot * s->slot;
    if (!weir__pages_move(segment))
      continue;
    s->unmovable_bytes += weir__block_bytes(b);
    s->stuck_bytes += to > from ? to - from : 0;
    each_page(s, b, mark_page);
  }
}

static bool lock_arena(search *s, weir__arena *arena) {
  if (!WEIR__RESERVE(s->locked, s->locked_room, s->locked_count + 1))
    return false;
  weir__arena_lock(arena);
  weir__account_freeze(&arena->account);
  s->locked[s->locked_count++] = arena;
  return true;
}

static void unlock_last(search *s) {
  weir__arena *arena = s->locked[--s->locked_count];
  weir__account_unfreeze(&arena->account);
  weir__arena_unlock(arena);
}

static void end_search(search *s) {
  while (s->locked_count)
    unlock_last(s);
  free(s->locked);
  free(s->pieces);
}

/* Whether only pages whose last use is known to have completed may move: the guarantee of the driver about aliases does
 * not cover writes by other devices. */
static bool is_cautious(const search *s) {
  unsigned pins = s->heap->pages.peers ? WEIR__PIN_PEERS : 0;
  return s->settings->moving_pages_completed_only ||
         weir__pins_permit(pins, WEIR__PAGE_TO_MOVE) == WEIR__PAGE_MAY_IF_IDLE;
}

/* Whether pages of a pool may move: it grows by moving pages, and nothing pins all that it has. */
static bool lets_pages_go(const weir__pool *pool) {
  const weir__private_pool *owner = pool->owner;
  return !owner || (owner->growth == WEIR__GROWTH_MOVING &&
                    weir__pins_permit(owner->pins, WEIR__PAGE_TO_MOVE) != WEIR__PAGE_MAY_NOT);
}

/* Locks the arenas of the request's stream, of small and of large blocks. */
static bool lock_own_stream(search *s) {
  weir__pool *pool = s->arena->pool;
  weir__private_pool *owner = pool->owner;
  weir__arena *sibling = weir__arena_find(owner ? (pool->is_small ? &owner->large : &owner->small)
                                                : (pool->is_small ? &s->heap->large : &s->heap->small),
                                          s->arena->stream);
  return lock_arena(s, s->arena) && (!sibling || lock_arena(s, sibling));
}

/* The request's own stream: its work is in order, so a page that is free there may be used at once. */
static bool add_own_stream(search *s) {
  stats_of(s)->moving_unmovable_fixed_bytes = 0;
  if (!lock_own_stream(s))
    return false;
  if (!lets_pages_go(s->arena->pool) || (is_cautious(s) && !weir__stream_is_idle(s->heap, s->arena->stream)))
    return true;
  for (size_t i = 0; i < s->locked_count; i++)
    mark_arena(s, s->locked[i]);
  return true;
}

/* The bytes of an arena's free blocks, in segments whose pages could move. */
static int64_t free_bytes(const search *s, weir__arena *arena) {
  int64_t bytes = 0;
  for (weir__block *b = weir__index_first(&arena->free); b; b = weir__index_next(&arena->free, b))
    bytes += weir__pages_move(weir__segment_of(s->heap, b)) ? (int64_t)weir__block_bytes(b) : 0;
  return bytes;
}

/* Makes the request's stream wait, on the device, for the work that another stream has now. */
static bool join_stream(const search *s, weir_cu_stream other) {
  weir_driver *driver = s->heap->allocator->driver;
  weir__fences *fences = &s->heap->fences;
  weir_cu_event event;
  if (atomic_load(&s->heap->captures) || weir__is_in_capture(s->heap, other) ||
      weir__is_in_capture(s->heap, s->arena->stream) || weir__event_acquire(fences, driver, &event))
    return false;
  bool joined =
      !driver->EventRecord(driver, event, other) && !driver->StreamWaitEvent(driver, s->arena->stream, event, 0);
  weir__event_release(fences, driver, event); /* a wait keeps what the event was, whatever it becomes */
  return joined;
}

/* Adds an arena of another stream if that has passed the last use of its free blocks. The arena is locked first:
 * nothing is freed there between the question and the move. A private pool takes pages of the default pool too, but not
 * the reverse. */
static void add_other(search *s, weir__arena *arena) {
  const weir__private_pool *owner = arena->pool->owner;
  if (!arena->segments || !lock_arena(s, arena))
    return;
  if (!lets_pages_go(arena->pool) || (owner && owner != s->arena->pool->owner))
    stats_of(s)->moving_unmovable_pool_bytes += free_bytes(s, arena);
  else if (weir__stream_is_idle(s->heap, arena->stream) ||
           (s->settings->moving_pages_across_streams && !is_cautious(s) && join_stream(s, arena->stream))) {
    mark_arena(s, arena);
    return;
  } else
    stats_of(s)->moving_unmovable_busy_bytes += free_bytes(s, arena);
  unlock_last(s);
}

static void add_other_streams(search *s) {
  stats_of(s)->moving_unmovable_busy_bytes = stats_of(s)->moving_unmovable_pool_bytes = 0;
  if (s->heap->allocator->streams_may_end)
    return; /* they may not exist any more */
  weir__private_pool *owner = NULL;
  do {
    weir__pool *pools[] = {owner ? &owner->large : &s->heap->large, owner ? &owner->small : &s->heap->small};
    for (int i = 0; i < 2; i++) {
      for (weir__arena *arena = weir__arena_first(pools[i]); arena; arena = weir__arena_after(arena))
        if (arena->stream != s->arena->stream || owner != s->arena->pool->owner)
          add_other(s, arena);
    }
    owner = owner ? owner->next : s->heap->private_pools;
  } while (owner);
}

/* ---- The place ---- */

/* Whether a page lies in a free block of a range, which needs it where it is. */
static bool is_inside(const weir__page *page, const place *p) {
  return weir__mapping_segment(page->owner) == p->segment && page->in->address >= p->start &&
         page->in->address < p->end;
}

/* Whether the page of an alias can be used again where the alias is. It may be mapped twice in the range. */
static bool can_return(const search *s, const weir__mapping *alias, const place *p, uint64_t block_end) {
  const weir__page *page = alias->page;
  return weir__is_alias(alias) && is_movable(s, page) && page->tried != s->tries && !is_inside(page, p) &&
         alias->address + page->bytes <= block_end;
}

/* The end of the unmapped space from an address on in which nothing is mapped, at most `limit`. */
static uint64_t clean_end(const weir__segment *segment, uint64_t at, uint64_t limit) {
  uint64_t known = segment->memory.base + segment->memory.room * segment->memory.slot;
  while (at < limit && at < known && !weir__mapping_at(&segment->memory, at))
    at += segment->memory.slot;
  return at < known && at < limit ? at : limit;
}

/* Tries a range that begins at `start`, in or before an unmapped block. On failure *next is an address in the same
 * block from which to try again, or 0. */
static bool try_place(search *s, weir__segment *segment, const weir__block *block, uint64_t start, uint64_t *next,
                      place *found) {
  uint64_t end = start + s->bytes, at = start;
  place p = {.segment = segment, .start = start, .end = end};
  s->tries = ++s->heap->searches;
  *next = 0;
  for (; block; block = weir__block_next(block)) {
    uint64_t block_end = block->address + weir__block_bytes(block);
    if (weir__block_is_active(block))
      return false;
    if (weir__block_is_mapped(block)) {
      if (block_end >= end)
        break;
      at = block_end;
      continue;
    }
    while (at < end && at < block_end) {
      const weir__mapping *alias = weir__mapping_at(&segment->memory, at);
      if (!alias) {
        p.unmapped += s->slot;
        at += s->slot;
      } else if (can_return(s, alias, &p, block_end)) {
        alias->page->tried = s->tries;
        at += alias->page->bytes;
      } else {
        *next = weir__mapping_end(alias);
        return false;
      }
    }
    if (at >= end)
      break;
  }
  if (!block)
    return false;
  /* The last page may be larger than what is left to map. */
  if (p.unmapped) {
    uint64_t largest = 0;
    for (size_t i = SIZES - 1; i && !largest; i--)
      largest = s->movable_count[i] ? i * s->slot : 0;
    uint64_t block_end = block->address + weir__block_bytes(block),
             last = weir__round_up(at - segment->memory.base, s->slot);
    if (weir__block_is_mapped(block) || block_end - segment->memory.base < last + largest)
      return false;
    uint64_t clean = clean_end(segment, segment->memory.base + last, segment->memory.base + last + largest);
    if (clean < segment->memory.base + last + largest) {
      *next = weir__mapping_end(weir__mapping_at(&segment->memory, clean));
      return false;
    }
  }
  *found = p;
  return true;
}

/* Finds the range that needs the fewest new mappings. False if there is none in the segments of the arena. */
static bool find_place(search *s) {
  weir__arena *arena = s->arena;
  bool has_place = false;
  for (weir__block *block = weir__tree_after(arena->unmapped, 0); block;
       block = weir__tree_after(arena->unmapped, block->address)) {
    weir__segment *segment = weir__segment_of(s->heap, block);
    weir__block *previous = weir__block_previous(block);
    bool begins_free = previous && previous->state == WEIR__FREE;
    uint64_t start = begins_free ? previous->address : block->address, next;
    if (!weir__pages_move(segment))
      continue;
    for (const weir__block *from = begins_free ? previous : block; start; start = next, from = block) {
      place found;
      if (try_place(s, segment, from, start, &next, &found) && (!has_place || found.unmapped < s->at.unmapped)) {
        s->at = found;
        s->at.first = from == block ? NULL : previous;
        has_place = true;
      }
      if (next >= block->address + weir__block_bytes(block))
        break;
    }
    if (has_place && !s->at.unmapped)
      return true;
  }
  return has_place;
}

/* Reserves address space for the range. */
static bool reserve_place(search *s) {
  const weir__block *made = weir__reserve_segment(s->heap, s->arena, s->settings, s->bytes, WEIR__GROWTH_MOVING);
  uint64_t next;
  return made && try_place(s, weir__segment_of(s->heap, made), made, made->address, &next, &s->at);
}

/* ---- Pages for the place ---- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t most(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* What may still be made under the limit. */
static uint64_t affordable(const search *s) {
  const weir__account *by;
  uint64_t left = weir__account_headroom(&s->arena->account.account, WEIR__LIMIT_HARD, &by);
  return left > s->made_bytes ? left - s->made_bytes : 0;
}

/* The size of a new page, where `left` bytes are left to map and `room` bytes are clean. Every page costs the same,
 * however large; but it moves only as a whole, so the rest of a large page that is partly in use is stuck. So pages are
 * large while little is stuck, in a large heap, and for a large request. The last page of a request is small, since the
 * next block begins in it. The numbers were found by replaying recorded jobs. */
static uint64_t new_page_bytes(const search *s, uint64_t left, uint64_t room) {
  const uint64_t reserved = weir__reserved(s->heap), tolerated = 8 * WEIR__MIB + reserved / 1000 * 8;
  uint64_t request = (s->bytes + s->slot - 1) / s->slot;
  uint64_t slots = s->stuck_bytes * 2 < tolerated ? 4 : s->stuck_bytes < tolerated ? 2 : 1;
  slots = most(slots, least(6, 1 + reserved / (1280 * WEIR__MIB)));
  slots = most(slots, request / 80);
  slots = least(slots, least(request, most(left / s->slot, 2)));
  slots = least(slots, most(left, affordable(s)) / s->slot); /* no more than is needed if that is all there is */
  return least(slots, least(room / s->slot, SIZES - 1)) * s->slot;
}

static weir__page *take_of_size(search *s, size_t slots) {
  for (weir__page **at = &s->movable[slots].first, *page; (page = *at); at = &page->next)
    if (is_movable(s, page)) {
      *at = page->next;
      return page;
    }
  return NULL;
}

/* A movable page: the largest one that fits what is left to map, or the smallest one that fits the room. NULL if there
 * is none. */
static weir__page *take_movable(search *s, uint64_t left, uint64_t room) {
  size_t largest = (size_t)(left / s->slot), most = (size_t)(room / s->slot);
  weir__page *page = NULL;
  for (size_t i = largest < SIZES ? largest : SIZES - 1; i && !page; i--)
    page = take_of_size(s, i);
  for (size_t i = largest + 1; i < SIZES && i <= most && !page; i++)
    page = take_of_size(s, i);
  return page;
}

static bool add_piece(search *s, weir__page_change piece) {
  if (!WEIR__RESERVE(s->pieces, s->piece_room, s->piece_count + 1))
    return false;
  if (piece.page)
    piece.page->search = 0; /* taken */
  s->pieces[s->piece_count++] = piece;
  return true;
}

/* Chooses the pages of an unmapped part of the place. False without host memory. */
static bool fill_hole(search *s, uint64_t at, uint64_t end, uint64_t block_end) {
  while (at < end) {
    weir__mapping *alias = weir__mapping_at(&s->at.segment->memory, at);
    weir__page_change piece = {.action = WEIR__PAGE_RETURN, .reservation = &s->at.segment->memory, .address = at};
    if (alias) {
      piece.page = alias->page;
      piece.mapping = alias;
    } else {
      /* No page is larger, so what is behind that does not matter. */
      uint64_t clean = clean_end(s->at.segment, at, least(block_end, at + (SIZES - 1) * s->slot));
      uint64_t left = weir__round_up(end - at, s->slot);
      if (left > clean - at)
        left = clean - at;
      piece.page = take_movable(s, left, clean - at);
      piece.action = piece.page ? WEIR__PAGE_MOVE : WEIR__PAGE_MAKE;
      if (!piece.page) {
        piece.bytes = new_page_bytes(s, left, clean - at);
        s->made_bytes += piece.bytes;
      }
    }
    if (piece.page)
      piece.bytes = piece.page->bytes;
    if (!add_piece(s, piece))
      return false;
    at += piece.bytes;
  }
  return true;
}

/* Calls `visit` for each unmapped part of the place, with its block's end, until it returns false. */
static bool each_hole(search *s, bool (*visit)(search *, uint64_t from, uint64_t to, uint64_t block_end)) {
  const weir__block *block = weir__tree_at(s->arena->unmapped, s->at.start);
  if (!block)
    block = weir__tree_after(s->arena->unmapped, s->at.start);
  for (; block && block->address < s->at.end; block = weir__tree_after(s->arena->unmapped, block->address)) {
    uint64_t end = block->address + weir__block_bytes(block);
    uint64_t from = block->address > s->at.start ? block->address : s->at.start;
    if (end > s->at.start && !visit(s, from, end < s->at.end ? end : s->at.end, end))
      return false;
  }
  return true;
}

/* Pages that return are not used for another part of the range. */
static bool claim_returning(search *s, uint64_t from, uint64_t to, uint64_t block_end) {
  (void)block_end;
  for (uint64_t at = from; at < to;) {
    const weir__mapping *alias = weir__mapping_at(&s->at.segment->memory, at);
    if (alias)
      alias->page->search = 0;
    at += alias ? alias->page->bytes : s->slot;
  }
  return true;
}

static void list_page(search *s, weir__block *block, weir__page *page) {
  page_list *list = &s->movable[page->bytes / s->slot];
  (void)block;
  if (!is_movable(s, page) || is_inside(page, &s->at))
    return;
  page->next = NULL;
  *list->last = page;
  list->last = &page->next;
  s->movable_bytes += page->bytes;
}

/* Lists the movable pages of an arena, those of small blocks first: a large block is more useful as it is. */
static void list_arena(search *s, weir__arena *arena) {
  for (weir__block *b = weir__index_first(&arena->free); b; b = weir__index_next(&arena->free, b))
    each_page(s, b, list_page);
}

/* Chooses the pages of all unmapped parts of the place. False without host memory. */
static bool fill_place(search *s) {
  each_hole(s, claim_returning);
  size_t own = s->locked_count;
  for (size_t i = 0; i < own; i++)
    list_arena(s, s->locked[i]);
  if (s->movable_bytes < s->at.unmapped)
    add_other_streams(s);
  for (size_t i = own; i < s->locked_count; i++)
    list_arena(s, s->locked[i]);
  return each_hole(s, fill_hole);
}

/* ---- The transaction ---- */

/* The end of the pieces from `i` on that have no gap between them. */
static size_t group_end(const search *s, size_t i) {
  for (i++; i < s->piece_count && s->pieces[i].address == s->pieces[i - 1].address + s->pieces[i - 1].bytes; i++)
    continue;
  return i;
}

static uint64_t group_bytes(const search *s, size_t i, size_t end) {
  return s->pieces[end - 1].address + s->pieces[end - 1].bytes - s->pieces[i].address;
}

static void forget_groups(search *s, size_t count) {
  for (size_t i = 0, end; i < count; i = end) {
    end = group_end(s, i);
    weir__range_forget(s->heap, s->at.segment, s->pieces[i].address, group_bytes(s, i, end));
  }
}

/* Everything that can fail. On failure nothing has changed. */
static bool prepare(search *s) {
  uint64_t total = s->at.segment->memory.owned * s->slot;
  if (!s->piece_count)
    return true;
  for (size_t i = 0; i < s->piece_count; i++)
    total += s->pieces[i].bytes;
  if (!weir__index_prepare(&s->arena->free, total))
    return false;
  /* A page that leaves a block cuts it twice at most, and so does one that arrives. */
  for (size_t i = 0; i < s->locked_count; i++)
    if (!weir__slab_reserve(&s->locked[i]->blocks, sizeof(weir__block), 4 * s->piece_count))
      return false;
  size_t known = 0;
  for (size_t end; known < s->piece_count; known = end) {
    end = group_end(s, known);
    if (!weir__page_map_update(s->heap->allocator->page_map, s->pieces[known].address, group_bytes(s, known, end),
                               s->arena, true))
      break;
  }
  if (known == s->piece_count && weir__pages_change(&s->heap->pages, s->pieces, s->piece_count))
    return true;
  forget_groups(s, known);
  return false;
}

/* Takes the pages of pieces, which have moved, out of the free blocks they were in; returns the end of those that were
 * side by side. */
static size_t leave_block(search *s, size_t i) {
  const weir__page *first = s->pieces[i].page;
  weir__segment *segment = weir__mapping_segment(first->home);
  uint64_t address = first->home->address, bytes = first->bytes;
  size_t end = i + 1;
  for (; end < s->piece_count; end++) {
    const weir__page *page = s->pieces[end].page;
    if (s->pieces[end].action == WEIR__PAGE_MAKE || page->in != first->in || page->home->address != address + bytes)
      break;
    bytes += page->bytes;
  }
  weir__block *hole = weir__range_unmap(s->heap, segment, first->in, address, bytes);
  weir__block *low = weir__block_previous(hole), *high = weir__block_next(hole);
  if (low && low->state == WEIR__FREE)
    each_page(s, low, note_block);
  if (high && high->state == WEIR__FREE)
    each_page(s, high, note_block);
  return end;
}

/* Changes the books. Pages leave their old places first, so that reserved bytes are never counted twice. */
static weir__block *commit(search *s) {
  weir_allocator_stats *stats = stats_of(s);
  weir__block *block = s->at.first; /* large enough without a page if it was freed after the search of the cache */
  if (!s->piece_count)
    weir__trace_taken(s->arena, block);
  for (size_t i = 0; i < s->piece_count;)
    i = s->pieces[i].action == WEIR__PAGE_MAKE ? i + 1 : leave_block(s, i);
  for (size_t i = 0, end; i < s->piece_count; i = end) {
    end = group_end(s, i);
    block = weir__range_map(s->at.segment, s->pieces[i].address, group_bytes(s, i, end));
  }
  if (stats->moving_aliases_peak < (int64_t)s->heap->pages.aliases.count)
    stats->moving_aliases_peak = (int64_t)s->heap->pages.aliases.count;
  if (!block)
    return NULL; /* never: a place without pieces is a free block */
  weir__index_remove(&s->arena->free, block);
  weir__block_hold(block); /* keeps neighbours that are freed meanwhile from merging it */
  return block;
}

typedef struct moved_pages {
  int64_t made, moved, returned, moved_bytes;
} moved_pages;

/* What the pieces are, before they change. */
static moved_pages count_pieces(const search *s) {
  moved_pages count = {0};
  for (size_t i = 0; i < s->piece_count; i++) {
    const weir__page_change *p = &s->pieces[i];
    count.made += p->action == WEIR__PAGE_MAKE;
    count.returned += p->action == WEIR__PAGE_RETURN;
    count.moved += p->action == WEIR__PAGE_MOVE;
    count.moved_bytes += p->action == WEIR__PAGE_MOVE ? (int64_t)p->bytes : 0;
  }
  return count;
}

static void begin_search(search *s, weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                         uint64_t bytes) {
  *s = (search){.heap = heap,
                .arena = arena,
                .settings = settings,
                .bytes = bytes,
                .slot = weir__round_up(WEIR__SMALL_SEGMENT, heap->pages.granularity),
                .number = ++heap->searches};
  for (size_t i = 0; i < SIZES; i++)
    s->movable[i].last = &s->movable[i].first;
}

/* The transaction for a place whose pages were chosen. NULL if it failed. */
static weir__block *take_place(search *s) {
  weir_allocator_stats *stats = stats_of(s);
  moved_pages moved = count_pieces(s);
  if (moved.made)
    stats->moving_unmovable_partial_bytes = (int64_t)s->unmovable_bytes;
  if (weir__over_limit(s->heap, s->arena, s->made_bytes))
    return NULL;
  if (!prepare(s))
    return NULL;
  stats->num_device_alloc += moved.made > 0;
  stats->moving_pages_made += moved.made;
  stats->moving_pages_moved += moved.moved;
  stats->moving_moved_bytes += moved.moved_bytes;
  stats->moving_pages_returned += moved.returned;
  weir__block *block = commit(s);
  if (block)
    weir__block_mark(block, WEIR__MARK_GATHERED, !moved.made && s->piece_count && s->bytes >= GATHERED_MIN);
  return block;
}

static bool has_passed(void *heap, weir_cu_stream stream) { /* a stream that may have ended cannot be queried */
  return !((weir__heap *)heap)->allocator->streams_may_end && weir__stream_is_idle(heap, stream);
}

static void retire_aliases(weir__heap *heap, weir_cu_stream stream, uint64_t most) {
  int mode;
  if (!heap->pages.aliases.retiring && heap->pages.aliases.count <= most)
    return;
  if (atomic_load(&heap->captures) || weir__is_in_capture(heap, stream) || !weir__capture_relax(heap, &mode))
    return; /* querying an event would invalidate a capture, and an event recorded in one would never complete */
  weir__retired_unmap(&heap->pages, &heap->retirement);
  weir__capture_restore(heap, mode);
  weir__aliases_retire(&heap->pages, &heap->retirement, stream, most, has_passed, heap);
}

weir__block *weir__move_pages(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  search s;
  begin_search(&s, heap, arena, settings, bytes);
  bool has_place = add_own_stream(&s) && (find_place(&s) || reserve_place(&s)) && fill_place(&s);
  weir__block *block = has_place ? take_place(&s) : NULL;
  end_search(&s);
  retire_aliases(heap, arena->stream, settings->moving_pages_max_aliases);
  return block;
}

weir__block *weir__return_pages(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  search s;
  begin_search(&s, heap, arena, settings, bytes);
  if (is_cautious(&s) || !lets_pages_go(arena->pool)) /* the first has to query the stream */
    return NULL;
  bool has_place = add_own_stream(&s) && find_place(&s) && !s.at.unmapped && fill_place(&s);
  weir__block *block = has_place ? take_place(&s) : NULL;
  end_search(&s);
  return block;
}

/* ---- Going back ---- */

/* Whether a page can go back to where it was before: to an arena of the same stream, whose work is in order. */
static bool can_go_back(const search *s, const weir__page *page) {
  const weir__mapping *home = page->home;
  if (!home || weir__pins_permit(page->pins, WEIR__PAGE_TO_MOVE) == WEIR__PAGE_MAY_NOT)
    return false;
  for (size_t i = 0; i < s->locked_count; i++)
    if (weir__mapping_segment(home)->arena == s->locked[i])
      return true;
  return false;
}

/* Sends pages of a free block back, from the one at `at` on, as long as they are side by side here and there, and up to
 * `end`. Returns where they end. *block becomes the free block behind them. */
static uint64_t go_back(search *s, weir__segment *here, weir__block **block, uint64_t at, uint64_t end) {
  const weir__page *first = weir__mapping_at(&here->memory, at)->page;
  uint64_t next = at + first->bytes;
  if (!can_go_back(s, first))
    return next;
  weir__segment *there = weir__mapping_segment(first->home);
  uint64_t home = first->home->address;
  while (next < end) {
    const weir__page *page = weir__mapping_at(&here->memory, next)->page;
    if (next + page->bytes > end || !can_go_back(s, page) || page->home->reservation != &there->memory ||
        page->home->address != home + (next - at))
      break;
    next += page->bytes;
  }
  if (!weir__slab_reserve(&here->arena->blocks, sizeof(weir__block), 2) ||
      !weir__range_prepare(s->heap, there, home, next - at))
    return next; /* they stay */
  weir__block *hole = weir__range_unmap(s->heap, here, *block, at, next - at), *rest = weir__block_next(hole);
  for (uint64_t a = at; a < next;) {
    const weir__page *page = weir__mapping_at(&here->memory, a)->page;
    a += page->bytes;
    weir__pages_change(&s->heap->pages, &(weir__page_change){.action = WEIR__PAGE_RETURN, .mapping = page->home}, 1);
  }
  weir__block *back = weir__range_map(there, home, next - at); /* may absorb the rest */
  *block = back->address <= next && next < back->address + weir__block_bytes(back) ? back : rest;
  return next;
}

bool weir__free_gathered(weir__heap *heap, weir__arena *arena, uint64_t address) {
  search s = {.heap = heap, .arena = arena, .settings = weir__settings_of(heap)};
  weir__block *block = NULL;
  uint64_t bytes;
  weir__mutex_lock(&heap->lock);
  if (lock_own_stream(&s))
    block = weir__arena_free(arena, address, &bytes);
  bool is_freed = block != NULL;
  if (is_freed && !is_cautious(&s) && lets_pages_go(arena->pool)) {
    weir__segment *segment = weir__segment_of(heap, block);
    uint64_t end = block->address + weir__block_bytes(block); /* the last page may reach behind the block */
    uint64_t at = segment->memory.base + weir__round_up(address - segment->memory.base, segment->memory.slot);
    const weir__mapping *first = at < address + bytes ? weir__mapping_at(&segment->memory, at) : NULL;
    if (first && first->address < at)
      at = weir__mapping_end(first);
    while (at < address + bytes && weir__mapping_end(weir__mapping_at(&segment->memory, at)) <= end)
      at = go_back(&s, segment, &block, at,
                   weir__mapping_end(weir__mapping_at(&segment->memory, at)) > address + bytes ? end : address + bytes);
  }
  end_search(&s);
  weir__mutex_unlock(&heap->lock);
  return is_freed;
}

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
 * The heap's lock is held, and the locks of all arenas from which pages may come.
 */
#include "alloc/move.h"

#include <stdlib.h>

#include "alloc/arena.h"
#include "alloc/events.h"
#include "alloc/pages.h"
#include "alloc/segment.h"
#include "alloc/trace.h"
#include "base/array.h"

enum { SIZES = 33 }; /* pages have 1 to 32 slots */

typedef struct page_list {
  weir__page *first, **last;
} page_list;

/* A range of address space for a request, in one segment: it begins with a free block or in an unmapped one. */
typedef struct place {
  weir__segment *segment;
  uint64_t start, end; /* of the request */
  uint64_t unmapped;   /* bytes that no page is mapped at yet */
  weir__block *first;  /* the free block that it begins with; NULL if it begins in an unmapped one */
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
  page_list movable[SIZES]; /* by slots; those in small free blocks first */
  uint64_t movable_bytes, unmovable_bytes;

  place at;
  weir__piece *pieces;
  size_t piece_count, piece_room;
  uint64_t made_bytes;
} search;

/* ---- Movable pages ---- */

static weir_moving_stats *stats_of(const search *s) { return &s->heap->stats.moving; }

static bool is_movable(const search *s, const weir__page *page) { return page->search == s->number; }

/* Notes which block the whole pages of a free block are in. With `list`, they become movable. */
static void mark_block(search *s, weir__block *block, bool list) {
  const weir__segment *segment = weir__segment_of(s->heap, block);
  uint64_t end = block->address + weir__block_bytes(block), whole = 0;
  if (!segment->is_moving)
    return;
  for (uint64_t at = segment->base + weir__round_up(block->address - segment->base, s->slot); at < end;) {
    weir__page *page = weir__mapping_at(segment, at)->page;
    uint64_t from = page->owner->address;
    at = from + page->bytes;
    if (from < block->address || at > end)
      continue;
    page->in = block;
    if (!list)
      continue;
    if (page->is_fixed || page->file) {
      stats_of(s)->unmovable_fixed_bytes += (int64_t)page->bytes;
      continue;
    }
    page_list *of_size = &s->movable[page->bytes / s->slot];
    page->search = s->number;
    page->next = NULL;
    *of_size->last = page;
    of_size->last = &page->next;
    whole += page->bytes;
  }
  if (list) {
    s->movable_bytes += whole;
    s->unmovable_bytes += weir__block_bytes(block) - whole;
  }
}

static void mark_arena(search *s, weir__arena *arena) {
  for (weir__block *b = weir__index_first(&arena->free); b; b = weir__index_next(&arena->free, b))
    mark_block(s, b, true);
}

static bool lock_arena(search *s, weir__arena *arena) {
  if (!WEIR__RESERVE(s->locked, s->locked_room, s->locked_count + 1))
    return false;
  weir__arena_lock(arena);
  weir__gauges_freeze(arena);
  s->locked[s->locked_count++] = arena;
  return true;
}

static void unlock_last(search *s) {
  weir__arena *arena = s->locked[--s->locked_count];
  weir__gauges_unfreeze(arena);
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
static bool is_cautious(const search *s) { return s->settings->moving_pages_completed_only || s->heap->peers; }

/* Whether pages of a pool may move: a graph writes to its pool whenever it is launched. */
static bool lets_pages_go(const weir__pool *pool) {
  return !pool->owner || (pool->owner->moves && !pool->owner->is_graph);
}

/* The request's own stream: its work is in order, so a page that is free there may be used at once. */
static bool add_own_stream(search *s) {
  stats_of(s)->unmovable_fixed_bytes = 0;
  weir__pool *pool = s->arena->pool;
  weir__private_pool *owner = pool->owner;
  weir__arena *sibling = weir__arena_find(owner ? (pool->is_small ? &owner->large : &owner->small)
                                                : (pool->is_small ? &s->heap->large : &s->heap->small),
                                          s->arena->stream);
  if (!lock_arena(s, s->arena) || (sibling && !lock_arena(s, sibling)))
    return false;
  if (!lets_pages_go(pool) || (is_cautious(s) && !weir__stream_is_idle(s->heap, s->arena->stream)))
    return true;
  for (size_t i = 0; i < s->locked_count; i++)
    mark_arena(s, s->locked[i]);
  return true;
}

/* The bytes of an arena's free blocks, in segments whose pages could move. */
static int64_t free_bytes(const search *s, weir__arena *arena) {
  int64_t bytes = 0;
  for (weir__block *b = weir__index_first(&arena->free); b; b = weir__index_next(&arena->free, b))
    bytes += weir__segment_of(s->heap, b)->is_moving ? (int64_t)weir__block_bytes(b) : 0;
  return bytes;
}

/* Makes the request's stream wait, on the device, for the work that another stream has now. */
static bool join_stream(const search *s, weir_cu_stream other) {
  weir_driver *driver = s->heap->allocator->driver;
  weir__event_queues *events = &s->heap->events;
  weir_cu_event event;
  if (atomic_load(&s->heap->captures) || weir__stream_is_capturing(s->heap, other) ||
      weir__stream_is_capturing(s->heap, s->arena->stream) || weir__event_take(events, driver, &event))
    return false;
  bool joined =
      !driver->EventRecord(driver, event, other) && !driver->StreamWaitEvent(driver, s->arena->stream, event, 0);
  weir__event_give(events, driver, event); /* a wait keeps what the event was, whatever it becomes */
  return joined;
}

/* Adds an arena of another stream if that has passed the last use of its free blocks. The arena is locked first: nothing
 * is freed there between the question and the move. A private pool takes pages of the default pool too, but not the
 * reverse. */
static void add_other(search *s, weir__arena *arena) {
  const weir__private_pool *owner = arena->pool->owner;
  if (!arena->segments || !lock_arena(s, arena))
    return;
  if (!lets_pages_go(arena->pool) || (owner && owner != s->arena->pool->owner))
    stats_of(s)->unmovable_pool_bytes += free_bytes(s, arena);
  else if (weir__stream_is_idle(s->heap, arena->stream) ||
           (s->settings->moving_pages_across_streams && !is_cautious(s) && join_stream(s, arena->stream))) {
    mark_arena(s, arena);
    return;
  } else
    stats_of(s)->unmovable_busy_bytes += free_bytes(s, arena);
  unlock_last(s);
}

static void add_other_streams(search *s) {
  stats_of(s)->unmovable_busy_bytes = stats_of(s)->unmovable_pool_bytes = 0;
  if (s->heap->allocator->streams_may_end)
    return; /* they may not exist any more */
  weir__private_pool *owner = NULL;
  do {
    weir__pool *pools[] = {owner ? &owner->large : &s->heap->large, owner ? &owner->small : &s->heap->small};
    for (int i = 0; i < 2; i++) {
      weir__arena **arenas = NULL;
      size_t count = weir__pool_arenas(pools[i], &arenas);
      for (size_t k = 0; k < count; k++)
        if (arenas[k]->stream != s->arena->stream || owner != s->arena->pool->owner)
          add_other(s, arenas[k]);
      free(arenas);
    }
    owner = owner ? owner->next : s->heap->private_pools;
  } while (owner);
}

/* ---- The place ---- */

/* Whether a page lies in a free block of a range, which needs it where it is. */
static bool is_inside(const weir__page *page, const place *p) {
  return page->owner->segment == p->segment && page->in->address >= p->start && page->in->address < p->end;
}

/* Whether the page of an alias can be used again where the alias is. It may be mapped twice in the range. */
static bool can_return(const search *s, const weir__mapping *alias, const place *p, uint64_t block_end) {
  const weir__page *page = alias->page;
  return !alias->is_stuck && is_movable(s, page) && page->tried != s->tries && !is_inside(page, p) &&
         alias->address + page->bytes <= block_end;
}

/* The end of the unmapped space from an address on in which nothing is mapped, at most `limit`. */
static uint64_t clean_end(const weir__segment *segment, uint64_t at, uint64_t limit) {
  uint64_t known = segment->base + segment->room * segment->page;
  while (at < limit && at < known && !weir__mapping_at(segment, at))
    at += segment->page;
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
      const weir__mapping *alias = weir__mapping_at(segment, at);
      if (!alias) {
        p.unmapped += s->slot;
        at += s->slot;
      } else if (can_return(s, alias, &p, block_end)) {
        alias->page->tried = s->tries;
        at += alias->page->bytes;
      } else {
        *next = alias->address + alias->page->bytes;
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
      largest = s->movable[i].first ? i * s->slot : 0;
    uint64_t block_end = block->address + weir__block_bytes(block), last = weir__round_up(at - segment->base, s->slot);
    if (weir__block_is_mapped(block) || block_end - segment->base < last + largest)
      return false;
    uint64_t clean = clean_end(segment, segment->base + last, segment->base + last + largest);
    if (clean < segment->base + last + largest) {
      *next = clean + weir__mapping_at(segment, clean)->page->bytes;
      return false;
    }
  }
  *found = p;
  return true;
}

/* Finds the range that needs the fewest new mappings. */
static bool find_place(search *s) {
  weir__arena *arena = s->arena;
  bool has_place = false;
  for (weir__block *block = weir__tree_after(arena->unmapped, 0); block;
       block = weir__tree_after(arena->unmapped, block->address)) {
    weir__segment *segment = weir__segment_of(s->heap, block);
    weir__block *previous = weir__block_previous(block);
    bool begins_free = previous && previous->state == WEIR__FREE;
    uint64_t start = begins_free ? previous->address : block->address, next;
    if (!segment->is_moving)
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
  if (has_place)
    return true;
  const weir__block *made = weir__reserve_segment(s->heap, arena, s->settings, s->bytes, true);
  uint64_t next;
  return made && try_place(s, weir__segment_of(s->heap, made), made, made->address, &next, &s->at);
}

/* ---- Pages for the place ---- */

/* The size of a new page. Every page costs the same, however large; but a page moves only as a whole, so large ones
 * waste more, namely the rest of those that are partly in use. So pages are large while little is wasted, and small when
 * much is; and never more than a third of the request, so that most of its pages are whole when it is free. */
static uint64_t new_page_bytes(const search *s, uint64_t left) {
  const uint64_t slot = s->slot, reserved = s->heap->reserved;
  uint64_t allowed = 16 * WEIR__MIB + reserved / 100, waste = s->unmovable_bytes;
  uint64_t slots = waste * 2 < allowed ? 8 : waste * 4 < allowed * 3 ? 4 : waste < allowed ? 2 : 1;
  uint64_t by_reserved = 1 + reserved / (3 * 1024 * WEIR__MIB), by_request = s->bytes / slot / 64;
  if (by_reserved > 8)
    by_reserved = 8;
  slots = slots > by_reserved ? slots : by_reserved;
  slots = slots > by_request ? slots : by_request;
  if (slots > s->bytes / slot / 3)
    slots = s->bytes / slot / 3;
  if (slots > left / slot)
    slots = left / slot;
  if (slots >= SIZES)
    slots = SIZES - 1;
  return slots ? slots * slot : slot;
}

static weir__page *take_of_size(search *s, size_t slots) {
  for (weir__page **at = &s->movable[slots].first, *page; (page = *at); at = &page->next)
    if (is_movable(s, page) && !is_inside(page, &s->at)) {
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

static bool add_piece(search *s, weir__piece piece) {
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
    weir__mapping *alias = weir__mapping_at(s->at.segment, at);
    weir__piece piece = {.address = at};
    if (alias) {
      piece.page = alias->page;
      piece.mapping = alias;
    } else {
      uint64_t clean = clean_end(s->at.segment, at, block_end);
      uint64_t left = weir__round_up(end - at, s->slot);
      if (left > clean - at)
        left = clean - at;
      piece.page = take_movable(s, left, clean - at);
      if (!piece.page) {
        piece.bytes = new_page_bytes(s, left);
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
    const weir__mapping *alias = weir__mapping_at(s->at.segment, at);
    if (alias)
      alias->page->search = 0;
    at += alias ? alias->page->bytes : s->slot;
  }
  return true;
}

/* Chooses the pages of all unmapped parts of the place. False without host memory. */
static bool fill_place(search *s) {
  uint64_t available = 0;
  each_hole(s, claim_returning);
  for (size_t i = 1; i < SIZES; i++)
    for (const weir__page *page = s->movable[i].first; page; page = page->next)
      available += is_movable(s, page) && !is_inside(page, &s->at) ? page->bytes : 0;
  if (available < s->at.unmapped)
    add_other_streams(s);
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
  uint64_t total = s->at.segment->mapped * s->slot;
  if (!s->piece_count)
    return true;
  for (size_t i = 0; i < s->piece_count; i++)
    total += s->pieces[i].bytes;
  if (!weir__index_prepare(&s->arena->free, total))
    return false;
  for (size_t i = 0; i < s->locked_count; i++)
    if (!weir__slab_reserve(&s->locked[i]->blocks, sizeof(weir__block), 2 * s->piece_count + 2))
      return false;
  size_t known = 0;
  for (size_t end; known < s->piece_count; known = end) {
    end = group_end(s, known);
    if (!weir__page_map_update(s->heap->allocator->pages, s->pieces[known].address, group_bytes(s, known, end),
                               s->arena, true))
      break;
  }
  if (known == s->piece_count && weir__pages_map(s->heap, s->at.segment, s->pieces, s->piece_count))
    return true;
  forget_groups(s, known);
  return false;
}

/* Takes the pages of pieces out of the free blocks they are in; returns the end of those that were side by side. */
static size_t leave_block(search *s, size_t i) {
  const weir__page *first = s->pieces[i].page;
  weir__segment *segment = first->owner->segment;
  uint64_t address = first->owner->address, bytes = first->bytes;
  size_t end = i + 1;
  for (; end < s->piece_count; end++) {
    const weir__page *page = s->pieces[end].page;
    if (page->owner == s->pieces[end].mapping || page->in != first->in || page->owner->address != address + bytes)
      break;
    bytes += page->bytes;
  }
  weir__block *hole = weir__range_unmap(s->heap, segment, first->in, address, bytes);
  weir__block *low = weir__block_previous(hole), *high = weir__block_next(hole);
  if (low && low->state == WEIR__FREE)
    mark_block(s, low, false);
  if (high && high->state == WEIR__FREE)
    mark_block(s, high, false);
  return end;
}

/* Changes the books. Pages leave their old places first, so that reserved bytes are never counted twice. */
static weir__block *commit(search *s) {
  weir_moving_stats *stats = stats_of(s);
  weir__block *block = s->at.first; /* large enough, if max_split_size kept it from being found */
  if (!s->piece_count)
    weir__trace_taken(s->arena, block);
  for (size_t i = 0; i < s->piece_count;)
    i = s->pieces[i].page->owner == s->pieces[i].mapping ? i + 1 : leave_block(s, i);
  for (size_t i = 0; i < s->piece_count; i++)
    weir__page_belong(s->heap, s->pieces[i].mapping);
  for (size_t i = 0, end; i < s->piece_count; i = end) {
    end = group_end(s, i);
    block = weir__range_map(s->heap, s->at.segment, s->pieces[i].address, group_bytes(s, i, end));
  }
  if (stats->aliases_peak < (int64_t)s->heap->aliases.count)
    stats->aliases_peak = (int64_t)s->heap->aliases.count;
  weir__index_remove(&s->arena->free, block);
  weir__block_hold(block); /* keeps neighbours that are freed meanwhile from merging it */
  return block;
}

/* What the pieces are, before they change. */
static void count_pieces(search *s, weir_moving_stats *moved) {
  for (size_t i = 0; i < s->piece_count; i++) {
    const weir__piece *p = &s->pieces[i];
    moved->pages_made += !p->page;
    moved->pages_returned += p->mapping != NULL;
    moved->pages_moved += p->page && !p->mapping;
    moved->moved_bytes += p->page && !p->mapping ? (int64_t)p->bytes : 0;
  }
}

weir__block *weir__move_pages(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  search s = {.heap = heap,
              .arena = arena,
              .settings = settings,
              .bytes = bytes,
              .slot = weir__round_up(WEIR__SMALL_SEGMENT, heap->granularity),
              .number = ++heap->searches};
  weir_moving_stats *stats = &heap->stats.moving, moved = {0};
  weir__block *block = NULL;
  for (size_t i = 0; i < SIZES; i++)
    s.movable[i].last = &s.movable[i].first;
  if (add_own_stream(&s) && find_place(&s) && fill_place(&s)) {
    count_pieces(&s, &moved);
    if (moved.pages_made)
      stats->unmovable_partial_bytes = (int64_t)s.unmovable_bytes;
    if ((!s.made_bytes || !weir__over_limit(heap, s.made_bytes)) && prepare(&s)) {
      heap->stats.num_device_alloc += moved.pages_made > 0;
      stats->pages_made += moved.pages_made;
      stats->pages_moved += moved.pages_moved;
      stats->moved_bytes += moved.moved_bytes;
      stats->pages_returned += moved.pages_returned;
      block = commit(&s);
    }
  }
  end_search(&s);
  weir__aliases_retire(heap, arena->stream, settings->moving_pages_max_aliases);
  stats->aliases = (int64_t)heap->aliases.count;
  return block;
}

/*
 * Moving pages: blocks lie where expandable segments would put them, and only the pages behind them differ. A free
 * range keeps its place in the index when its pages are taken for another request; a hit on it is a miss that gets
 * pages again. The missing slots of a request get, in this order,
 *
 *   1. a page that is mapped there already, as an alias, and that no live block touches: no call of the driver;
 *   2. a new page, while less is reserved than the peak of live bytes and the slack;
 *   3. a page that no live block touches, of the same stream, or of one that has nothing left to do. It is mapped there
 *      in addition: work in flight that uses the old mapping completes, and stream order makes what it writes visible;
 *   4. a new page, if the limit permits.
 *
 * A new page is as large as the missing run that it begins to fill, as a power of two. So every page that is owned has
 * slots that expandable segments would have mapped too, and no more is reserved than they would.
 *
 * Memory costs nothing until something wants it, and moves cost calls of the driver. So moves are earned: one by each
 * page that is made, and one by ALLOCATIONS_FOR_MOVE allocations. Without credit the slack is CHURN_SLACK times as
 * large.
 *
 * It is a transaction: everything that can fail comes before the books change. Nothing waits for a stream. Where an old
 * mapping of another page is in the way and work may still use it, the request is placed elsewhere.
 *
 * The heap's lock is held, and that of the request's arena. The other arenas from which pages may come are locked here.
 */
#include "alloc/cache/move.h"

#include <stdlib.h>
#include <string.h>

#include "alloc/cache/arena.h"
#include "alloc/cache/growth.h"
#include "alloc/cache/segment.h"
#include "alloc/cache/trace.h"
#include "alloc/cache/uses.h"
#include "alloc/memory/pages.h"
#include "base/array.h"

static const uint64_t largest_page = 32 * WEIR__MIB;

enum {
  TRIES = 16,                 /* blocks of the cache that are tried where old mappings are in the way */
  ALLOCATIONS_FOR_MOVE = 200, /* then moves cost less than a third of a microsecond an allocation */
  CHURN_SLACK = 6             /* of a job whose pages move for ever, as it works on random blocks */
};

typedef struct search {
  weir__heap *heap;
  weir__arena *arena; /* of the request */
  const weir__settings *settings;
  uint64_t number;  /* of this search; that of a page which may be taken */
  uint64_t peak;    /* of live bytes, with this request */
  uint64_t left;    /* bytes that limits leave */
  uint64_t ceiling; /* of reserved bytes, up to which pages are made although some could be taken */

  weir__arena **locked; /* arenas whose pages may move: first those of the request's stream */
  size_t locked_count, locked_room;
  bool has_listed;     /* the pages of these ... */
  bool has_asked;      /* ... and of other streams */
  bool has_polled;     /* how far the request's stream is ... */
  bool is_stream_idle; /* ... which had nothing left to do */
  bool is_elsewhere;   /* not where expandable segments would place it: larger pages than needed may come */

  weir__page **idle; /* pages that may be taken, the first of a size first */
  size_t idle_count, idle_room;
  int64_t idle_bytes; /* of the listed pages, and of those that may not leave */

  weir__page_change *pieces; /* pages that are made, move, or return, by address; and aliases that give way */
  size_t piece_count, piece_room;
  uint64_t made_bytes;
  uint64_t free_end; /* of the free block that the request gets the begin of */
} search;

static weir_allocator_stats *stats_of(const search *s) { return &s->heap->stats; }

/* ---- Slots that have a page ---- */

static size_t slot_of(const weir__segment *segment, uint64_t address) {
  return (size_t)((address - segment->memory.base) / segment->memory.slot);
}

bool weir__is_backed(const weir__segment *segment, uint64_t address, uint64_t bytes) {
  for (size_t i = slot_of(segment, address), end = slot_of(segment, address + bytes - 1); i <= end; i++)
    if (i / 64 >= segment->backed_room || !(segment->backed[i / 64] >> i % 64 & 1))
      return false;
  return true;
}

/* Marks a block exactly: as they merge, marks only spread. */
static void note_bare(const weir__segment *segment, weir__block *block) {
  bool has_all = weir__is_backed(segment, block->address, weir__block_bytes(block));
  block->paged = (uint8_t)((block->paged & ~WEIR__PAGED_BARE) | (has_all ? 0 : WEIR__PAGED_BARE));
}

static bool make_backed_room(weir__segment *segment, uint64_t end) {
  size_t had = segment->backed_room;
  if (!WEIR__RESERVE(segment->backed, segment->backed_room, slot_of(segment, end) / 64 + 1))
    return false;
  memset(segment->backed + had, 0, (segment->backed_room - had) * sizeof *segment->backed);
  return true;
}

static void set_backed(weir__segment *segment, uint64_t address, uint64_t bytes, bool on) {
  for (size_t i = slot_of(segment, address), end = slot_of(segment, address + bytes); i < end; i++)
    segment->backed[i / 64] = (segment->backed[i / 64] & ~(1ull << i % 64)) | (uint64_t)on << i % 64;
}

/* Notes that a range around a part of a free block has no page any more. */
static void bare(weir__segment *segment, weir__block *block, uint64_t address, uint64_t bytes) {
  set_backed(segment, address, bytes, false);
  for (weir__block *b = block; b && b->address + weir__block_bytes(b) > address; b = weir__block_previous(b))
    b->paged |= WEIR__PAGED_BARE;
  for (weir__block *b = block; b && b->address < address + bytes; b = weir__block_next(b))
    b->paged |= WEIR__PAGED_BARE;
}

bool weir__next_piece(const weir__segment *segment, weir__piece *piece) {
  const weir__block *b = !piece->block ? segment->first : piece->block;
  uint64_t at = piece->block ? piece->address + piece->bytes : b->address;
  if (at >= b->address + weir__block_bytes(b) && !(b = weir__block_next(b)))
    return false;
  uint64_t end = b->address + weir__block_bytes(b), next = end;
  *piece = (weir__piece){b, at, end - at, b->state};
  if (b->state != WEIR__FREE || !(b->paged & WEIR__PAGED_BARE))
    return true;
  bool has = weir__is_backed(segment, at, 1);
  for (next = at; next < end && weir__is_backed(segment, next, 1) == has;)
    next = segment->memory.base + (slot_of(segment, next) + 1) * segment->memory.slot;
  piece->bytes = (next < end ? next : end) - at;
  piece->state = has ? WEIR__FREE : WEIR__UNMAPPED;
  return true;
}

/* ---- Pages that no live block touches ---- */

/* Whether no live block touches a page which begins or ends in a free block: it may reach into unmapped neighbours. */
static bool is_idle(const weir__block *block, const weir__mapping *owner) {
  const weir__block *low = block, *high = block;
  while (owner->address < low->address && (low = weir__block_previous(low)) && !weir__block_is_active(low))
    continue;
  while (high->address + weir__block_bytes(high) < weir__mapping_end(owner) && (high = weir__block_next(high)) &&
         !weir__block_is_active(high))
    continue;
  return low && high && !weir__block_is_active(low) && !weir__block_is_active(high);
}

/* The last mapping that owns a slot of a free block, below an address; NULL if there is none. */
static weir__mapping *last_owner(const weir__segment *segment, const weir__block *block, uint64_t below) {
  size_t first = slot_of(segment, block->address), i = slot_of(segment, below - 1) + 1;
  if (i > segment->backed_room * 64)
    i = segment->backed_room * 64;
  while (i > first) {
    uint64_t word = segment->backed[(i - 1) / 64];
    if (!word)
      i = (i - 1) / 64 * 64;
    else if (word >> (i - 1) % 64 & 1)
      return segment->memory.slots[i - 1];
    else
      i--;
  }
  return NULL;
}

/* Calls `visit` for each idle page of a free block, the last first. */
static void each_idle(void *context, weir__segment *segment, weir__block *block,
                      void (*visit)(void *context, weir__block *block, weir__mapping *owner)) {
  uint64_t below = block->address + weir__block_bytes(block);
  for (weir__mapping *m; below > block->address && (m = last_owner(segment, block, below));) {
    below = m->address;
    if (is_idle(block, m))
      visit(context, block, m);
  }
}

static void list_page(void *context, weir__block *block, weir__mapping *owner) {
  search *s = context;
  weir__page *page = owner->page;
  s->idle_bytes += (int64_t)page->bytes;
  if (weir__pins_permit(page->pins, WEIR__PAGE_TO_MOVE) == WEIR__PAGE_MAY_NOT)
    stats_of(s)->moving_unmovable_fixed_bytes += (int64_t)page->bytes;
  else if (WEIR__RESERVE(s->idle, s->idle_room, s->idle_count + 1)) {
    page->search = s->number;
    page->in = block;
    s->idle[s->idle_count++] = page;
  }
}

/* Lists the idle pages of an arena: the largest free block first, which a best fit uses last, and from its end. */
static void list_arena(search *s, weir__arena *arena) {
  weir__segment *segment = NULL;
  for (weir__block *b = weir__index_last(&arena->free); b; b = weir__index_previous(&arena->free, b)) {
    if (b->paged && (!segment || b->address - segment->memory.base >= segment->memory.bytes))
      segment = weir__segment_of(s->heap, b);
    if (b->paged && weir__pages_move(segment))
      each_idle(s, segment, b, list_page);
    if (weir__block_bytes(b) < WEIR__SMALL_SEGMENT)
      break;
  }
}

/* ---- Streams from which pages may come ---- */

/* That of the request is locked. */
static bool lock_arena(search *s, weir__arena *arena) {
  if (!WEIR__RESERVE(s->locked, s->locked_room, s->locked_count + 1))
    return false;
  if (arena != s->arena)
    weir__arena_lock(arena);
  weir__account_freeze(&arena->account);
  weir__account_publish(&arena->account);
  s->locked[s->locked_count++] = arena;
  return true;
}

static void unlock_last(search *s) {
  weir__arena *arena = s->locked[--s->locked_count];
  weir__account_unfreeze(&arena->account);
  if (arena != s->arena)
    weir__arena_unlock(arena);
}

/* Free bytes of a locked arena. */
static int64_t free_bytes(const search *s, const weir__arena *arena) {
  weir__glance now = weir__account_glance(&s->heap->accounts, &arena->account.account);
  const weir__amounts *used = &now.counted[WEIR_STAT_ALL].of;
  return now.reserved[WEIR_STAT_ALL].current - used->allocated_bytes - used->waiting_bytes;
}

/* Whether only pages whose last use is known to have completed may move: the guarantee of the driver about aliases does
 * not cover writes by other devices. */
static bool is_cautious(const search *s) {
  unsigned pins = s->heap->pages.peers ? WEIR__PIN_PEERS : 0;
  return s->settings->moving_pages_completed_only ||
         weir__pins_permit(pins, WEIR__PAGE_TO_MOVE) == WEIR__PAGE_MAY_IF_IDLE;
}

/* Whether pages of a pool may move: its options permit it, and nothing pins all that it has. */
static bool lets_pages_go(const weir__pool *pool) {
  const weir__private_pool *owner = pool->owner;
  return !owner || (owner->growth == WEIR__GROWTH_MOVING &&
                    weir__pins_permit(owner->pins, WEIR__PAGE_TO_MOVE) != WEIR__PAGE_MAY_NOT);
}

/* Locks the arenas of the request's stream, of small and of large blocks. */
static bool lock_own_stream(search *s) {
  const weir__pool *pool = s->arena->pool;
  weir__pool *pools = pool->owner ? pool->owner->pools : s->heap->pools;
  weir__arena *sibling = weir__arena_find(&pools[pool->is_small], s->arena->stream);
  return lock_arena(s, s->arena) && (!sibling || lock_arena(s, sibling));
}

/* The idle pages of the request's own stream: its work is in order, so they may be used at once. */
static void list_own_stream(search *s) {
  if (s->has_listed)
    return;
  s->has_listed = true;
  stats_of(s)->moving_unmovable_fixed_bytes = 0;
  if (!lets_pages_go(s->arena->pool) || (is_cautious(s) && !weir__stream_is_idle(s->heap, s->arena->stream)))
    return;
  for (size_t i = 0; i < s->locked_count; i++)
    list_arena(s, s->locked[i]);
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
    list_arena(s, arena);
    return;
  } else
    stats_of(s)->moving_unmovable_busy_bytes += free_bytes(s, arena);
  unlock_last(s);
}

static void add_other_streams(search *s) {
  s->has_asked = true;
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

/* ---- Pages for the missing slots ---- */

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Whether a page is to be taken before another one: the largest that fits `most` bytes, or else the smallest. */
static bool is_better(const weir__page *page, const weir__page *than, uint64_t most) {
  if (page->bytes <= most)
    return than->bytes > most || page->bytes > than->bytes;
  return page->bytes <= than->bytes;
}

/* The page to take for a run of missing slots where larger pages have some room. NULL if there is none. */
static weir__page *find_idle(search *s, uint64_t most, uint64_t room) {
  for (list_own_stream(s);; add_other_streams(s)) {
    weir__page *best = NULL;
    for (size_t i = 0; i < s->idle_count; i++) {
      weir__page *page = s->idle[i];
      if (page->search == s->number && (page->bytes <= most || page->bytes <= room) &&
          (!best || is_better(page, best, most)))
        best = page;
    }
    if (best || s->has_asked)
      return best;
  }
}

/* The free bytes of the locked arenas in pages that are partly in use. */
static int64_t partial_bytes(const search *s) {
  int64_t bytes = -s->idle_bytes;
  for (size_t i = 0; i < s->locked_count; i++)
    bytes += free_bytes(s, s->locked[i]);
  return bytes;
}

static bool add_piece(search *s, weir__page_change piece) {
  if (!WEIR__RESERVE(s->pieces, s->piece_room, s->piece_count + 1))
    return false;
  if (piece.page)
    piece.page->search = 0; /* taken */
  s->pieces[s->piece_count++] = piece;
  return true;
}

/* A power of two of slots: as large as the missing run, but smaller where little is left, since then a page that is
 * partly in use is missed. */
static uint64_t new_page_bytes(const search *s, const weir__segment *segment, uint64_t run) {
  uint64_t bytes = segment->memory.slot, most = least(least(run, largest_page), s->left / 256);
  while (bytes * 2 <= most)
    bytes *= 2;
  return bytes;
}

/* The bytes from an address on, and up to another, where nothing is mapped. */
static uint64_t clean_bytes(const weir__segment *segment, uint64_t at, uint64_t limit) {
  uint64_t to = at, end = least(limit, segment->memory.base + segment->memory.bytes);
  while (to < end && to - at < largest_page && !weir__mapping_at(&segment->memory, to))
    to += segment->memory.slot;
  return to < end ? to - at : end - at;
}

static weir__given fill_run(search *s, weir__segment *segment, uint64_t at, uint64_t end) {
  while (at < end) {
    uint64_t bytes = new_page_bytes(s, segment, end - at);
    weir__page_change piece = {WEIR__PAGE_MAKE, &segment->memory, at, bytes, .page = NULL};
    bool is_over = weir__over_limit(s->heap, s->arena, s->made_bytes + bytes);
    if (is_over || weir__reserved(s->heap) + s->made_bytes + bytes > s->ceiling)
      piece.page =
          find_idle(s, end - at, clean_bytes(segment, at, is_over || s->is_elsewhere ? UINT64_MAX : s->free_end));
    if (piece.page) {
      piece.action = WEIR__PAGE_MOVE;
      piece.bytes = piece.page->bytes;
    } else if (is_over)
      return WEIR__NO_MEMORY;
    else
      s->made_bytes += bytes;
    if (!add_piece(s, piece))
      return WEIR__NO_MEMORY;
    at += piece.bytes;
  }
  return WEIR__GIVEN;
}

/* Whether an old mapping can be unmapped: its stream has passed its last use. */
static bool has_passed(void *heap, weir_cu_stream stream) { /* a stream that may have ended cannot be queried */
  return !((weir__heap *)heap)->allocator->streams_may_end && weir__stream_is_idle(heap, stream);
}

/* Whether events can be recorded and queried: that would invalidate a capture, or never complete. Relaxes the thread's
 * capture mode if so. */
static bool can_ask(weir__heap *heap, weir_cu_stream stream, int *mode) {
  return heap->pages.aliases.count && !atomic_load(&heap->captures) && !weir__is_in_capture(heap, stream) &&
         weir__capture_relax(heap, mode);
}

/* Whether no work uses an old mapping any more. What is not known is asked once for a request. */
static bool can_go(search *s, const weir__mapping *mapping, uint64_t address) {
  int mode;
  if (s->heap->has_passed)
    return s->heap->has_passed(s->heap->has_passed_context, address);
  if (!weir__alias_has_passed(&s->heap->retirement, mapping) && !s->has_polled) {
    s->has_polled = true;
    if (can_ask(s->heap, s->arena->stream, &mode)) {
      weir__aliases_poll(&s->heap->pages, &s->heap->retirement);
      weir__capture_restore(s->heap, mode);
    }
    s->is_stream_idle = has_passed(s->heap, s->arena->stream);
  }
  return s->is_stream_idle || weir__alias_has_passed(&s->heap->retirement, mapping);
}

/* Chooses the pages for the slots of a range that have none. */
static weir__given fill(search *s, weir__segment *segment, uint64_t address, uint64_t bytes) {
  const weir__reservation *memory = &segment->memory;
  uint64_t at = memory->base + slot_of(segment, address) * memory->slot, run = 0;
  uint64_t end = memory->base + (slot_of(segment, address + bytes - 1) + 1) * memory->slot;
  for (;;) {
    weir__mapping *m = at < end ? weir__mapping_at(memory, at) : NULL;
    bool is_owner = at >= end || weir__is_owner(m);
    if (!is_owner && m && weir__is_alias(m))
      list_own_stream(s);
    bool returns = !is_owner && m && weir__is_alias(m) && m->page->search == s->number;
    if (run && (is_owner || returns)) {
      weir__given filled = fill_run(s, segment, run, at);
      if (filled != WEIR__GIVEN)
        return filled;
      run = 0;
      continue; /* it may have taken the page that would return */
    }
    if (at >= end)
      return WEIR__GIVEN;
    if (returns && !add_piece(s, (weir__page_change){WEIR__PAGE_RETURN, &segment->memory, m->address, m->page->bytes,
                                                     .page = m->page, .mapping = m}))
      return WEIR__NO_MEMORY;
    if (!is_owner && m && !returns) {
      if (!can_go(s, m, address))
        return WEIR__IN_THE_WAY;
      if (!add_piece(s, (weir__page_change){.action = WEIR__PAGE_UNMAP, .mapping = m}))
        return WEIR__NO_MEMORY;
    }
    if (!is_owner && !returns && !run)
      run = at;
    at = m ? weir__mapping_end(m) : at + memory->slot;
    at = run ? least(at, end) : at;
  }
}

/* ---- The transaction ---- */

/* Aliases give way first, alone: nothing relies on them. Then all that can fail at once. */
static bool change_pages(search *s, weir__segment *segment) {
  uint64_t end = segment->memory.base;
  size_t kept = 0;
  for (size_t i = 0; i < s->piece_count; i++) {
    weir__page_change *p = &s->pieces[i];
    if (p->action != WEIR__PAGE_UNMAP) {
      end = p->address + p->bytes > end ? p->address + p->bytes : end;
      s->pieces[kept++] = *p;
    } else if (!weir__pages_change(&s->heap->pages, p, 1))
      return false;
  }
  s->piece_count = kept;
  return make_backed_room(segment, end) && weir__pages_change(&s->heap->pages, s->pieces, kept);
}

/* The books of a page that has left its old place, in a free block. */
static void leave(const weir__page *page) {
  weir__segment *segment = weir__mapping_segment(page->home);
  bare(segment, page->in, page->home->address, page->bytes);
  weir__count_pages(segment, page->home->address, page->bytes, false);
}

/* Pages leave their old places first, so that reserved bytes are never counted twice. */
static void commit(search *s, weir__segment *segment) {
  weir__heap *heap = s->heap;
  weir_allocator_stats *stats = stats_of(s);
  if (s->made_bytes && s->has_listed)
    stats->moving_unmovable_partial_bytes = partial_bytes(s);
  for (size_t i = 0; i < s->piece_count; i++)
    if (s->pieces[i].action != WEIR__PAGE_MAKE)
      leave(s->pieces[i].page);
  for (size_t i = 0, end; i < s->piece_count; i = end) {
    uint64_t address = s->pieces[i].address, to = address;
    for (end = i; end < s->piece_count && s->pieces[end].address == to; end++)
      to += s->pieces[end].bytes;
    set_backed(segment, address, to - address, true);
    weir__count_pages(segment, address, to - address, true);
  }
  int64_t made = 0, moved = 0;
  for (size_t i = 0; i < s->piece_count; i++) {
    const weir__page_change *p = &s->pieces[i];
    made += p->action == WEIR__PAGE_MAKE;
    moved += p->action == WEIR__PAGE_MOVE;
    stats->moving_pages_returned += p->action == WEIR__PAGE_RETURN;
    stats->moving_moved_bytes += p->action == WEIR__PAGE_MOVE ? (int64_t)p->bytes : 0;
  }
  stats->moving_pages_made += made;
  stats->moving_pages_moved += moved;
  stats->num_device_alloc += made > 0;
  heap->move_credit += (made - moved) * ALLOCATIONS_FOR_MOVE;
  heap->live_peak = s->peak;
  if (stats->moving_aliases_peak < (int64_t)heap->pages.aliases.count)
    stats->moving_aliases_peak = (int64_t)heap->pages.aliases.count;
}

/* Chooses and changes the pages of a range. If the driver has no memory for new ones, what can be taken is taken. */
static weir__given give_range(search *s, weir__segment *segment, uint64_t address, uint64_t bytes) {
  for (;; s->ceiling = 0) {
    s->number = ++s->heap->searches;
    s->has_listed = false;
    s->idle_count = s->piece_count = 0;
    s->made_bytes = 0;
    s->idle_bytes = 0;
    weir__given given = fill(s, segment, address, bytes);
    if (given == WEIR__GIVEN && change_pages(s, segment)) {
      commit(s, segment);
      return given;
    }
    if (given == WEIR__IN_THE_WAY || s->heap->pages.failure || !s->made_bytes || !s->ceiling)
      return given == WEIR__GIVEN ? WEIR__NO_MEMORY : given;
  }
}

/* Gives pages to the first `bytes` of a block. What is behind them becomes a free block, whose pages may be taken. */
static weir__given give_block(search *s, weir__block *block, uint64_t bytes) {
  weir__segment *segment = weir__segment_of(s->heap, block);
  uint64_t have = weir__block_bytes(block);
  weir__block *rest = NULL;
  if (!weir__should_split(s->settings, s->arena->pool, have, bytes))
    bytes = have;
  else if (!(rest = weir__arena_new_block(s->arena, segment, block->address + bytes, have - bytes)))
    return WEIR__NO_MEMORY;
  if (rest) {
    rest->paged = block->paged;
    block->units = (uint32_t)(bytes / WEIR__UNIT);
    weir__block_link(rest, block, weir__block_next(block));
    weir__arena_insert(s->arena, rest);
  }
  weir__block_hold(block); /* keeps neighbours that are freed meanwhile from merging it */
  weir__given given = WEIR__GIVEN;
  s->free_end = block->address + have;
  if (weir__is_backed(segment, block->address, bytes))
    weir__trace_taken(s->arena, block);
  else if ((given = give_range(s, segment, block->address, bytes)) == WEIR__GIVEN && rest)
    note_bare(segment, rest);
  if (given == WEIR__GIVEN) {
    block->paged &= (uint8_t)~WEIR__PAGED_BARE;
    return given;
  }
  block->state = WEIR__FREE;
  if (rest)
    weir__arena_merge(s->arena, segment, block, rest);
  return given;
}

/* ---- Requests ---- */

/* Counts what earns moves, and looks at what limits leave. Near a limit there is no slack. What the device has is not
 * asked: that it is full shows when it refuses. */
static void look_at_limits(search *s, uint64_t bytes) {
  weir__heap *heap = s->heap;
  const weir__account *account = &s->arena->account.account, *by;
  weir__glance seen = weir__account_glance(&heap->accounts, &heap->accounts.device);
  uint64_t live = (uint64_t)seen.counted[WEIR_STAT_ALL].of.allocated_bytes + bytes, reserved = weir__reserved(heap);
  s->peak = live > heap->live_peak ? live : heap->live_peak;
  s->left = least(weir__account_headroom(account, WEIR__LIMIT_HARD, &by),
                  weir__account_headroom(account, WEIR__LIMIT_SOFT, &by));
  heap->move_credit += (int64_t)(seen.allocations - heap->credited);
  heap->credited = seen.allocations;
  uint64_t limit = s->left > UINT64_MAX - reserved ? UINT64_MAX : reserved + s->left;
  double slack = s->settings->moving_pages_slack * (heap->move_credit < 0 ? CHURN_SLACK : 1);
  uint64_t with = s->peak + (uint64_t)(slack * (double)s->peak);
  s->ceiling = with > limit - limit / 8 ? s->peak : with;
}

static bool begin(search *s, weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes) {
  *s = (search){.heap = heap, .arena = arena, .settings = settings};
  if (!lock_own_stream(s))
    return false;
  weir__account_publish_unbiased(&heap->accounts); /* of all arenas that no other thread uses */
  look_at_limits(s, bytes);
  return true;
}

static void end(search *s) {
  int mode;
  weir__heap *heap = s->heap;
  weir_cu_stream stream = s->arena->stream;
  if (can_ask(heap, stream, &mode)) {
    weir__aliases_ask(&heap->pages, &heap->retirement, stream);
    weir__retired_unmap(&heap->pages, &heap->retirement);
    weir__capture_restore(heap, mode);
    weir__aliases_retire(&heap->pages, &heap->retirement, stream, s->settings->moving_pages_max_aliases, has_passed,
                         heap);
  }
  while (s->locked_count)
    unlock_last(s);
  free(s->locked);
  free(s->idle);
  free(s->pieces);
}

weir__given weir__move_to(weir__heap *heap, weir__arena *arena, const weir__settings *settings, weir__block *block,
                          uint64_t bytes, bool is_elsewhere) {
  search s;
  weir__given given = WEIR__NO_MEMORY;
  if (begin(&s, heap, arena, settings, bytes)) {
    s.is_elsewhere = is_elsewhere;
    given = give_block(&s, block, bytes);
  }
  end(&s);
  return given;
}

weir__block *weir__move_to_cached(weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                                  weir__block *block, uint64_t bytes) {
  weir__given given = WEIR__IN_THE_WAY;
  for (int tries = 0; block; tries++) {
    given = weir__move_to(heap, arena, settings, block, bytes, tries > 0);
    if (given == WEIR__GIVEN)
      return block;
    weir__arena_insert(arena, block);
    bool ends = given == WEIR__NO_MEMORY || tries == TRIES || settings->max_split_size != UINT64_MAX;
    if (ends || !(block = weir__index_next(&arena->free, block)))
      break;
    weir__index_remove(&arena->free, block);
  }
  return NULL;
}

bool weir__block_is_backed(weir__arena *arena, const weir__settings *settings, weir__block *block, uint64_t bytes) {
  if (!(block->paged & WEIR__PAGED_BARE))
    return true;
  const weir__segment *segment = weir__segment_lookup(arena->pool->heap, block);
  uint64_t have = weir__block_bytes(block);
  note_bare(segment, block);
  return !(block->paged & WEIR__PAGED_BARE) ||
         (weir__should_split(settings, arena->pool, have, bytes) && weir__is_backed(segment, block->address, bytes));
}

/* ---- Releasing ---- */

typedef struct releasing {
  weir__heap *heap;
  weir__segment *segment;
  bool has_failed;
} releasing;

static void release_page(void *context, weir__block *block, weir__mapping *owner) {
  releasing *r = context;
  uint64_t address = owner->address, bytes = owner->page->bytes;
  weir__page_change gone = {WEIR__PAGE_RELEASE, &r->segment->memory, address, bytes, .page = NULL};
  if (!weir__pages_change(&r->heap->pages, &gone, 1)) {
    r->has_failed = true;
    return;
  }
  bare(r->segment, block, address, bytes);
  weir__count_pages(r->segment, address, bytes, false);
  r->heap->stats.num_device_free++;
}

bool weir__move_release(weir__heap *heap, weir__segment *segment, weir__block *block) {
  releasing r = {heap, segment, false};
  each_idle(&r, segment, block, release_page);
  return !r.has_failed && weir__pages_clear(&heap->pages, &segment->memory, block->address, weir__block_bytes(block));
}

bool weir__move_from_now(weir__segment *segment, const weir__settings *settings) {
  uint64_t slot = segment->memory.slot;
  if (!make_backed_room(segment, segment->memory.base + segment->memory.room * slot))
    return false;
  for (size_t i = 0; i < segment->memory.room; i++)
    if (weir__is_owner(segment->memory.slots[i]))
      set_backed(segment, segment->memory.base + i * slot, slot, true);
  segment->arena->pool->heap->move_credit += (int64_t)segment->memory.owned * ALLOCATIONS_FOR_MOVE;
  segment->growth = WEIR__GROWTH_MOVING;
  segment->step = segment->arena->pool->is_small ? slot : weir__round_up(settings->large_segment_size, slot);
  return true;
}

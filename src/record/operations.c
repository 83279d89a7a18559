#include "record/operations.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

/* What a thread is doing, as indices of entries. */
typedef struct doing {
  uint32_t first, last;       /* the chain of segments for its next request; NONE if there is none yet */
  uint32_t from;              /* the first of the segments that it is releasing from an arena; NONE if it is not */
  bool gave_back, grew, took; /* for the request */
} doing;

typedef struct joiner {
  const weir__entry *entries;
  uint32_t *next;    /* the next in a chain: of what a request did, then of what is attached to an entry */
  uint32_t *beside;  /* the chain attached to an entry: it goes before a request, or after any other; NONE if empty */
  uint32_t *last_of; /* the end of that chain */
  bool *is_moved;    /* it is attached to another entry */
  bool leaves_taken; /* entries that tell when a block was taken stay where they are */
} joiner;

static bool is_growth(const weir__entry *e) {
  return e->action == WEIR_TRACE_SEGMENT_ALLOC || e->action == WEIR_TRACE_SEGMENT_MAP;
}

static bool is_release(const weir__entry *e) {
  return e->action == WEIR_TRACE_SEGMENT_FREE || e->action == WEIR_TRACE_SEGMENT_UNMAP;
}

/* Such a block has neighbours, which other threads may free before it is handed out, so it matters when it was
 * taken. */
static bool is_taken(const weir__entry *e) {
  return e->action == WEIR_TRACE_SEGMENT_MAP || e->action == WEIR__ACTION_TAKEN;
}

static bool is_request(const weir__entry *e) { return e->action == WEIR_TRACE_ALLOC || e->action == WEIR_TRACE_OOM; }

/* An entry does not say which pool size it is of. A fixed segment of a small pool has 2 MiB, and no other has. Pages
 * of a large pool have 20 MiB unless the settings say otherwise, those of a small pool 2 MiB, and a run of pages is
 * one entry. */
static bool is_small(const weir__entry *e) {
  const uint64_t small_segment = 2 << 20, large_page = 20 << 20;
  return e->action == WEIR_TRACE_SEGMENT_UNMAP ? e->bytes % large_page != 0 : e->bytes == small_segment;
}

static bool same_arena(const weir__entry *a, const weir__entry *b) {
  return a->stream == b->stream && a->pool == b->pool && a->action == b->action && is_small(a) == is_small(b);
}

static void put_beside(joiner *j, uint32_t place, uint32_t entry) {
  j->is_moved[entry] = true;
  j->next[entry] = NONE;
  if (j->beside[place] == NONE)
    j->beside[place] = entry;
  else
    j->next[j->last_of[place]] = entry;
  j->last_of[place] = entry;
}

/* Ends a request that the cache could not serve. If it only took memory, it belongs where it got its block, because
 * other threads may have used the rest of the cache until then. If it released memory first, it belongs where it did
 * so, because other threads have seen the empty cache since; unless it was then served by what others released. */
static void end_request(joiner *j, doing *d, uint32_t request) {
  bool is_early = d->gave_back && d->grew;
  if (d->took && j->leaves_taken && !is_early)
    return;
  for (uint32_t i = d->first, next; i != NONE; i = next) {
    next = j->next[i];
    if (!is_early)
      put_beside(j, request, i);
    else if (i != d->first)
      put_beside(j, d->first, i);
  }
  if (is_early)
    put_beside(j, d->first, request);
}

static void look_at(joiner *j, doing *d, uint32_t i) {
  const weir__entry *e = &j->entries[i];
  if (!weir__entry_is_for_request(e) && is_release(e)) {
    if (d->from != NONE && same_arena(&j->entries[d->from], e))
      put_beside(j, d->from, i);
    else
      d->from = i;
    return;
  }
  d->from = NONE;
  if (weir__entry_is_for_request(e) && !is_request(e)) {
    j->next[i] = NONE;
    *(d->first == NONE ? &d->first : &j->next[d->last]) = i;
    d->last = i;
    d->gave_back |= is_release(e);
    d->grew |= is_growth(e);
    d->took |= is_taken(e);
  } else if (is_request(e) && d->first != NONE) {
    end_request(j, d, i);
    d->first = NONE;
    d->gave_back = d->grew = d->took = false;
  }
}

/* An attached entry may have a chain of its own. The depth is that of nested operations, which is small. */
static size_t emit(const joiner *j, uint32_t i, weir__entry *to, size_t at) {
  if (is_request(&j->entries[i])) {
    for (uint32_t k = j->beside[i]; k != NONE; k = j->next[k])
      at = emit(j, k, to, at);
    to[at++] = j->entries[i];
  } else {
    to[at++] = j->entries[i];
    for (uint32_t k = j->beside[i]; k != NONE; k = j->next[k])
      at = emit(j, k, to, at);
  }
  return at;
}

static bool has_one_thread(const weir__entry *entries, size_t count) {
  size_t i = 1;
  while (i < count && !((entries[i].thread ^ entries[0].thread) & WEIR__ENTRY_MAX_THREADS))
    i++;
  return i >= count;
}

void weir__entries_join(weir__entry *entries, size_t count, bool leaves_taken) {
  if (has_one_thread(entries, count) || count >= NONE)
    return;
  joiner j = {.entries = entries, .leaves_taken = leaves_taken};
  j.next = malloc(count * sizeof *j.next);
  j.beside = malloc(count * sizeof *j.beside);
  j.last_of = malloc(count * sizeof *j.last_of);
  j.is_moved = calloc(count, sizeof *j.is_moved);
  doing *threads = malloc((WEIR__ENTRY_MAX_THREADS + 1) * sizeof *threads);
  weir__entry *joined = malloc(count * sizeof *joined);
  if (j.next && j.beside && j.last_of && j.is_moved && threads && joined) {
    for (size_t t = 0; t <= WEIR__ENTRY_MAX_THREADS; t++)
      threads[t] = (doing){.first = NONE, .from = NONE};
    memset(j.beside, 0xff, count * sizeof *j.beside);
    for (uint32_t i = 0; i < count; i++)
      look_at(&j, &threads[entries[i].thread & WEIR__ENTRY_MAX_THREADS], i);
    size_t at = 0;
    for (uint32_t i = 0; i < count; i++)
      if (!j.is_moved[i])
        at = emit(&j, i, joined, at);
    memcpy(entries, joined, at * sizeof *entries); /* `at` is `count`: each entry is in at most one chain */
  }
  free(j.next);
  free(j.beside);
  free(j.last_of);
  free(j.is_moved);
  free(threads);
  free(joined);
}

size_t weir__entries_take_early(weir__entry *entries, size_t count, weir__early *early, size_t *early_count) {
  size_t kept = 0, at = SIZE_MAX; /* where a block was taken that was not handed out yet; there is one at a time */
  unsigned thread = 0;
  *early_count = 0;
  for (size_t i = 0; i < count; i++) {
    const weir__entry *e = &entries[i];
    unsigned by = e->thread & WEIR__ENTRY_MAX_THREADS;
    if (is_taken(e) && weir__entry_is_for_request(e) && (at == SIZE_MAX || thread != by)) {
      at = kept;
      thread = by;
    }
    if (e->action == WEIR__ACTION_TAKEN)
      continue;
    if (is_request(e) && by == thread && at != SIZE_MAX) {
      bool is_alone = true;
      for (size_t k = at; k < kept && is_alone; k++)
        is_alone = (entries[k].thread & WEIR__ENTRY_MAX_THREADS) == thread;
      if (!is_alone)
        early[(*early_count)++] = (weir__early){at, kept};
      at = SIZE_MAX;
    }
    entries[kept++] = *e;
  }
  return kept;
}

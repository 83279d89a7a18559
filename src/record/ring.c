#include "record/ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "record/ring_file.h"

static void append(weir__chunk_list *list, weir__chunk *chunk) {
  chunk->next = NULL;
  chunk->previous = list->last;
  *(list->last ? &list->last->next : &list->first) = chunk;
  list->last = chunk;
}

static void unlink_chunk(weir__chunk_list *list, weir__chunk *chunk) {
  *(chunk->previous ? &chunk->previous->next : &list->first) = chunk->next;
  *(chunk->next ? &chunk->next->previous : &list->last) = chunk->previous;
}

static unsigned count_of(const weir__chunk *chunk) { return atomic_load_explicit(&chunk->count, memory_order_acquire); }

/* ---- With the lock ---- */

static weir__chunk *chunk_new(weir__ring *tape) {
  weir__chunk *chunk = tape->idle;
  if (!chunk)
    return tape->file ? weir__ring_file_chunk(tape->file, tape->device) : aligned_alloc(64, sizeof *chunk);
  tape->idle = chunk->next;
  return chunk;
}

static void chunk_idle(weir__ring *tape, weir__chunk *chunk) {
  chunk->next = tape->idle;
  tape->idle = chunk;
}

/* Those of a file stay with the tape. */
static void free_idle(weir__ring *tape) {
  while (tape->idle && !tape->file) {
    weir__chunk *chunk = tape->idle;
    tape->idle = chunk->next;
    free(chunk);
  }
}

/* Before the chunks that these are about are used again. */
static void tell_file(const weir__ring *tape) {
  if (!tape->file)
    return;
  weir__ring_file_device *device = &tape->file->header->devices[tape->device];
  atomic_store_explicit(&device->dropped_until, tape->dropped_until, memory_order_release);
  atomic_store_explicit(&device->cleared_until, tape->cleared_until, memory_order_release);
  atomic_store_explicit(&device->dropped, tape->dropped, memory_order_release);
}

static void drop_oldest(weir__ring *tape) {
  weir__chunk *chunk = tape->done.first;
  unsigned count = count_of(chunk);
  unsigned cleared = 0;
  while (cleared < count && chunk->begin <= tape->cleared_until && chunk->events[cleared].time <= tape->cleared_until)
    cleared++;
  tape->dropped += count - cleared;
  tape->done_events -= count;
  if (chunk->end > tape->dropped_until)
    tape->dropped_until = chunk->end;
  tell_file(tape);
  unlink_chunk(&tape->done, chunk);
  chunk_idle(tape, chunk);
}

/* How many finished events there have to be. Each chunk that is being written may have begun before the oldest of them, and
 * its events be older than some that went: so many more are kept that the newest `limit` are always there. */
static bool has_too_many(const weir__ring *tape) {
  size_t more = (tape->writing_count + 1) * WEIR__CHUNK_ENTRIES;
  return tape->done.first && tape->limit < SIZE_MAX - more &&
         tape->done_events - count_of(tape->done.first) >= tape->limit + more;
}

static void finish(weir__ring *tape, weir__chunk *chunk) {
  unlink_chunk(&tape->writing, chunk);
  tape->writing_count--;
  append(&tape->done, chunk);
  unsigned count = count_of(chunk);
  tape->done_events += count;
  chunk->begin = count ? chunk->events[0].time : 0;
  chunk->end = count ? chunk->events[count - 1].time : 0;
}

weir__chunk *weir__ring_next(weir__ring *tape, weir__chunk *full) {
  weir__lock_take(&tape->lock);
  if (full && !weir__ring_has_left(tape, full))
    finish(tape, full);
  while (has_too_many(tape))
    drop_oldest(tape);
  weir__chunk *chunk = tape->vacant;
  if (chunk) { /* what comes now is later than all that is in it */
    tape->vacant = chunk->vacant;
    if (tape->file)
      weir__ring_file_resume(tape->file, chunk);
    weir__lock_give(&tape->lock);
    return chunk;
  }
  chunk = chunk_new(tape);
  if (!chunk && tape->done.first) { /* no memory, or a full file: the oldest makes room */
    drop_oldest(tape);
    chunk = chunk_new(tape);
  }
  if (!chunk && tape->file)
    atomic_fetch_add_explicit(&tape->file->header->lost, 1, memory_order_relaxed);
  if (chunk) {
    if (tape->file)
      weir__ring_file_begin(tape->file, chunk, tape->device,
                            tape->limit / WEIR__CHUNK_ENTRIES + tape->writing_count + 1);
    else
      atomic_store_explicit(&chunk->count, 0, memory_order_relaxed);
    append(&tape->writing, chunk);
    tape->writing_count++;
    for (int i = 0; i < 12; i++)
      __builtin_prefetch(&chunk->events[i], 1);
  }
  weir__lock_give(&tape->lock);
  return chunk;
}

void weir__ring_close(weir__ring *tape, weir__chunk *chunk) {
  weir__lock_take(&tape->lock);
  if (!weir__ring_has_left(tape, chunk)) {
    if (count_of(chunk) == WEIR__CHUNK_ENTRIES)
      finish(tape, chunk);
    else {
      chunk->vacant = tape->vacant;
      tape->vacant = chunk;
    }
  }
  while (has_too_many(tape))
    drop_oldest(tape);
  weir__lock_give(&tape->lock);
}

static void delete_done(weir__ring *tape) {
  while (tape->done.first) {
    weir__chunk *chunk = tape->done.first;
    unlink_chunk(&tape->done, chunk);
    chunk_idle(tape, chunk);
  }
  tape->done_events = 0;
  free_idle(tape);
}

void weir__ring_clear(weir__ring *tape) {
  weir__lock_take(&tape->lock);
  delete_done(tape);
  tape->dropped = 0;
  tape->cleared_until = weir__clock_ticks();
  /* An arena's times never go back, and may be ahead of this reading by a little. */
  for (weir__chunk *chunk = tape->writing.first; chunk; chunk = chunk->next) {
    unsigned count = count_of(chunk);
    if (count && chunk->events[count - 1].time > tape->cleared_until)
      tape->cleared_until = chunk->events[count - 1].time;
  }
  tell_file(tape);
  weir__lock_give(&tape->lock);
}

void weir__ring_end(weir__ring *tape) {
  tape->vacant = NULL;
  while (tape->writing.first)
    finish(tape, tape->writing.first);
  delete_done(tape);
}

void weir__ring_leave_file(weir__ring *tape) {
  uintptr_t begin = (uintptr_t)tape->file->map;
  *tape = (weir__ring){.limit = tape->limit, .left = begin, .left_end = begin + tape->file->bytes};
}

/* ---- Reading ---- */

static size_t run_end(const weir__entry *events, size_t from, size_t count) {
  size_t at = from + 1;
  while (at < count && events[at - 1].time <= events[at].time)
    at++;
  return at < count ? at : count;
}

/* Merges neighbouring runs until there is one: mostly there are as many as arenas. */
void weir__entries_sort(weir__entry *events, weir__entry *spare, size_t count) {
  while (count && run_end(events, 0, count) < count) {
    for (size_t from = 0; from < count;) {
      size_t middle = run_end(events, from, count), end = middle < count ? run_end(events, middle, count) : count;
      size_t a = from, b = middle;
      for (size_t i = from; i < end; i++)
        spare[i] = b == end || (a < middle && events[a].time <= events[b].time) ? events[a++] : events[b++];
      from = end;
    }
    memcpy(events, spare, count * sizeof *events);
  }
}

static size_t copy_events(const weir__chunk *chunk, uint64_t after, uint64_t until, weir__entry *events) {
  unsigned count = count_of(chunk);
  size_t copied = 0;
  for (unsigned i = 0; i < count; i++) {
    const weir__entry *e = &chunk->events[i];
    if (e->time > after && e->time <= until && !weir__action_is_for_file(e->action) &&
        !(e->action == WEIR_TRACE_SNAPSHOT && e->time == until))
      events[copied++] = *e;
  }
  return copied;
}

bool weir__ring_read(weir__ring *tape, uint64_t until, weir__entry **events, size_t *count, uint64_t *dropped) {
  weir__lock_take(&tape->lock);
  size_t room = tape->done_events + tape->writing_count * WEIR__CHUNK_ENTRIES, found = 0;
  uint64_t before = 0;
  weir__entry *all = malloc((2 * room + 1) * sizeof *all);
  if (all) {
    uint64_t after = tape->cleared_until;
    for (const weir__chunk *chunk = tape->done.first; chunk; chunk = chunk->next)
      found += copy_events(chunk, after, until, all + found);
    for (const weir__chunk *chunk = tape->writing.first; chunk; chunk = chunk->next)
      found += copy_events(chunk, after, until, all + found);
    before = tape->dropped;
  }
  uint64_t dropped_until = tape->dropped_until;
  size_t limit = tape->limit;
  weir__lock_give(&tape->lock);
  if (!all)
    return false;

  weir__entries_sort(all, all + room, found);
  size_t first = found > limit ? found - limit : 0;
  while (first < found && all[first].time <= dropped_until)
    first++; /* nothing is missing in between */
  memmove(all, all + first, (found - first) * sizeof *all);
  weir__entry *fitting = realloc(all, (found - first + 1) * sizeof *all);
  *events = fitting ? fitting : all;
  *count = found - first;
  *dropped = before + first;
  return true;
}

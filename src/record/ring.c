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

/* ---- With the lock held ---- */

static weir__chunk *chunk_new(weir__ring *ring) {
  weir__chunk *chunk = ring->idle;
  if (!chunk)
    return ring->file ? weir__ring_file_chunk(ring->file, ring->device) : aligned_alloc(64, sizeof *chunk);
  ring->idle = chunk->next;
  return chunk;
}

static void chunk_idle(weir__ring *ring, weir__chunk *chunk) {
  chunk->next = ring->idle;
  ring->idle = chunk;
}

/* Chunks of a file stay with the ring. */
static void free_idle(weir__ring *ring) {
  while (ring->idle && !ring->file) {
    weir__chunk *chunk = ring->idle;
    ring->idle = chunk->next;
    free(chunk);
  }
}

/* Called before the dropped chunks are reused. */
static void update_file(const weir__ring *ring) {
  if (!ring->file)
    return;
  weir__ring_file_device *device = &ring->file->header->devices[ring->device];
  atomic_store_explicit(&device->dropped_until, ring->dropped_until, memory_order_release);
  atomic_store_explicit(&device->cleared_until, ring->cleared_until, memory_order_release);
  atomic_store_explicit(&device->dropped, ring->dropped, memory_order_release);
}

static void drop_oldest(weir__ring *ring) {
  weir__chunk *chunk = ring->done.first;
  unsigned count = count_of(chunk);
  unsigned cleared = 0;
  while (cleared < count && chunk->begin <= ring->cleared_until && chunk->entries[cleared].time <= ring->cleared_until)
    cleared++;
  ring->dropped += count - cleared;
  ring->done_entries -= count;
  if (chunk->end > ring->dropped_until)
    ring->dropped_until = chunk->end;
  update_file(ring);
  unlink_chunk(&ring->done, chunk);
  chunk_idle(ring, chunk);
}

/* A chunk that is being written may have begun before the oldest finished entry, and contain entries that are older
 * than dropped ones. So enough finished entries are kept that the most recent `limit` are always there. */
static bool has_too_many(const weir__ring *ring) {
  size_t more = (ring->writing_count + 1) * WEIR__CHUNK_ENTRIES;
  return ring->done.first && ring->limit < SIZE_MAX - more &&
         ring->done_entries - count_of(ring->done.first) >= ring->limit + more;
}

static void finish(weir__ring *ring, weir__chunk *chunk) {
  unlink_chunk(&ring->writing, chunk);
  ring->writing_count--;
  append(&ring->done, chunk);
  unsigned count = count_of(chunk);
  ring->done_entries += count;
  chunk->begin = count ? chunk->entries[0].time : 0;
  chunk->end = count ? chunk->entries[count - 1].time : 0;
}

weir__chunk *weir__ring_next(weir__ring *ring, weir__chunk *full) {
  weir__lock_acquire(&ring->lock);
  if (full && !weir__ring_has_left(ring, full))
    finish(ring, full);
  while (has_too_many(ring))
    drop_oldest(ring);
  weir__chunk *chunk = ring->vacant;
  if (chunk) { /* new entries are later than all that it contains */
    ring->vacant = chunk->vacant;
    if (ring->file)
      weir__ring_file_resume(ring->file, chunk);
    weir__lock_release(&ring->lock);
    return chunk;
  }
  chunk = chunk_new(ring);
  if (!chunk && ring->done.first) { /* no memory, or a full file: the oldest makes room */
    drop_oldest(ring);
    chunk = chunk_new(ring);
  }
  if (!chunk && ring->file)
    atomic_fetch_add_explicit(&ring->file->header->lost, 1, memory_order_relaxed);
  if (chunk) {
    if (ring->file)
      weir__ring_file_begin(ring->file, chunk, ring->device,
                            ring->limit / WEIR__CHUNK_ENTRIES + ring->writing_count + 1);
    else
      atomic_store_explicit(&chunk->count, 0, memory_order_relaxed);
    append(&ring->writing, chunk);
    ring->writing_count++;
    for (int i = 0; i < 12; i++)
      __builtin_prefetch(&chunk->entries[i], 1);
  }
  weir__lock_release(&ring->lock);
  return chunk;
}

void weir__ring_close(weir__ring *ring, weir__chunk *chunk) {
  weir__lock_acquire(&ring->lock);
  if (!weir__ring_has_left(ring, chunk)) {
    if (count_of(chunk) == WEIR__CHUNK_ENTRIES)
      finish(ring, chunk);
    else {
      chunk->vacant = ring->vacant;
      ring->vacant = chunk;
    }
  }
  while (has_too_many(ring))
    drop_oldest(ring);
  weir__lock_release(&ring->lock);
}

static void delete_done(weir__ring *ring) {
  while (ring->done.first) {
    weir__chunk *chunk = ring->done.first;
    unlink_chunk(&ring->done, chunk);
    chunk_idle(ring, chunk);
  }
  ring->done_entries = 0;
  free_idle(ring);
}

void weir__ring_clear(weir__ring *ring) {
  weir__lock_acquire(&ring->lock);
  delete_done(ring);
  ring->dropped = 0;
  ring->cleared_until = weir__clock_ticks();
  /* The times of an arena never go back, and may be slightly ahead of this reading. */
  for (weir__chunk *chunk = ring->writing.first; chunk; chunk = chunk->next) {
    unsigned count = count_of(chunk);
    if (count && chunk->entries[count - 1].time > ring->cleared_until)
      ring->cleared_until = chunk->entries[count - 1].time;
  }
  update_file(ring);
  weir__lock_release(&ring->lock);
}

void weir__ring_end(weir__ring *ring) {
  ring->vacant = NULL;
  while (ring->writing.first)
    finish(ring, ring->writing.first);
  delete_done(ring);
}

void weir__ring_leave_file(weir__ring *ring) {
  uintptr_t begin = (uintptr_t)ring->file->map;
  *ring = (weir__ring){.limit = ring->limit, .left = begin, .left_end = begin + ring->file->bytes};
}

/* ---- Reading ---- */

static size_t run_end(const weir__entry *entries, size_t from, size_t count) {
  size_t at = from + 1;
  while (at < count && entries[at - 1].time <= entries[at].time)
    at++;
  return at < count ? at : count;
}

/* Merges adjacent runs until one is left. Usually there are as many runs as arenas. */
void weir__entries_sort(weir__entry *entries, weir__entry *spare, size_t count) {
  while (count && run_end(entries, 0, count) < count) {
    for (size_t from = 0; from < count;) {
      size_t middle = run_end(entries, from, count), end = middle < count ? run_end(entries, middle, count) : count;
      size_t a = from, b = middle;
      for (size_t i = from; i < end; i++)
        spare[i] = b == end || (a < middle && entries[a].time <= entries[b].time) ? entries[a++] : entries[b++];
      from = end;
    }
    memcpy(entries, spare, count * sizeof *entries);
  }
}

static size_t copy_entries(const weir__chunk *chunk, uint64_t after, uint64_t until, weir__entry *entries) {
  unsigned count = count_of(chunk);
  size_t copied = 0;
  for (unsigned i = 0; i < count; i++) {
    const weir__entry *e = &chunk->entries[i];
    if (e->time > after && e->time <= until && !weir__action_is_for_file(e->action) &&
        !(e->action == WEIR_TRACE_SNAPSHOT && e->time == until))
      entries[copied++] = *e;
  }
  return copied;
}

bool weir__ring_read(weir__ring *ring, uint64_t until, weir__entry **entries, size_t *count, uint64_t *dropped) {
  weir__lock_acquire(&ring->lock);
  size_t room = ring->done_entries + ring->writing_count * WEIR__CHUNK_ENTRIES, found = 0;
  uint64_t before = 0;
  weir__entry *all = malloc((2 * room + 1) * sizeof *all);
  if (all) {
    uint64_t after = ring->cleared_until;
    for (const weir__chunk *chunk = ring->done.first; chunk; chunk = chunk->next)
      found += copy_entries(chunk, after, until, all + found);
    for (const weir__chunk *chunk = ring->writing.first; chunk; chunk = chunk->next)
      found += copy_entries(chunk, after, until, all + found);
    before = ring->dropped;
  }
  uint64_t dropped_until = ring->dropped_until;
  size_t limit = ring->limit;
  weir__lock_release(&ring->lock);
  if (!all)
    return false;

  weir__entries_sort(all, all + room, found);
  size_t first = found > limit ? found - limit : 0;
  while (first < found && all[first].time <= dropped_until)
    first++; /* so that no entry is missing in between */
  memmove(all, all + first, (found - first) * sizeof *all);
  weir__entry *fitting = realloc(all, (found - first + 1) * sizeof *all);
  *entries = fitting ? fitting : all;
  *count = found - first;
  *dropped = before + first;
  return true;
}

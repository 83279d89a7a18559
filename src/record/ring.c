#include "record/ring.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "record/ring_file.h"
#include "weir/history.h"

static void append_chunk(weir__chunk_list *list, weir__chunk *chunk) {
  chunk->next = NULL;
  chunk->previous = list->last;
  *(list->last ? &list->last->next : &list->first) = chunk;
  list->last = chunk;
}

static void unlink_chunk(weir__chunk_list *list, weir__chunk *chunk) {
  *(chunk->previous ? &chunk->previous->next : &list->first) = chunk->next;
  *(chunk->next ? &chunk->next->previous : &list->last) = chunk->previous;
}

/* Whether a chunk is one of the file that belongs to the parent of a fork. */
static bool has_left(const weir__ring *ring, const weir__chunk *chunk) {
  return (uintptr_t)chunk >= ring->left && (uintptr_t)chunk < ring->left_end;
}

static unsigned count_of(const weir__chunk *chunk) { return atomic_load_explicit(&chunk->count, memory_order_acquire); }

/* ---- Chunks. The ring's lock is held ---- */

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
  append_chunk(&ring->done, chunk);
  unsigned count = count_of(chunk);
  ring->done_entries += count;
  chunk->begin = count ? chunk->entries[0].time : 0;
  chunk->end = count ? chunk->entries[count - 1].time : 0;
}

/* Exchanges a full chunk, or NULL, for one to write, which may contain entries of an earlier writer. NULL if the host
 * has no memory, or the file has no chunk left. */
static weir__chunk *next_chunk(weir__ring *ring, weir__chunk *full) {
  weir__lock_acquire(&ring->lock);
  if (full && !has_left(ring, full))
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
    append_chunk(&ring->writing, chunk);
    ring->writing_count++;
    for (int i = 0; i < 12; i++)
      __builtin_prefetch(&chunk->entries[i], 1);
  }
  weir__lock_release(&ring->lock);
  return chunk;
}

/* A writer gives its chunk back. */
static void close_chunk(weir__ring *ring, weir__chunk *chunk) {
  weir__lock_acquire(&ring->lock);
  if (!has_left(ring, chunk)) {
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
  uint32_t metadata = atomic_load(&ring->metadata);
  *ring = (weir__ring){.limit = ring->limit, .left = begin, .left_end = begin + ring->file->bytes};
  atomic_store(&ring->metadata, metadata);
}

/* ---- Writers: stacks of blocks ---- */

typedef struct stack_entry {
  uint64_t address;
  uint32_t stack;
} stack_entry;

static void put_stack(weir__hash_map *stacks, uint64_t address, uint32_t stack) {
  stack_entry *entry = weir__hash_map_put(stacks, sizeof *entry, address);
  if (entry)
    entry->stack = stack;
}

static uint32_t find_stack(const weir__hash_map *stacks, uint64_t address) {
  const stack_entry *entry = weir__hash_map_find(stacks, sizeof *entry, address);
  return entry ? entry->stack : 0;
}

static uint32_t take_stack(weir__hash_map *stacks, uint64_t address) {
  stack_entry *entry = weir__hash_map_find(stacks, sizeof *entry, address);
  uint32_t stack = entry ? entry->stack : 0;
  if (entry)
    weir__hash_map_remove(stacks, sizeof *entry, entry);
  return stack;
}

/* ---- Writers ---- */

weir__writer *weir__writer_new(weir__rings *rings, weir__ring *ring, int device, weir_pool_id pool, uint64_t stream) {
  weir__writer *writer = calloc(1, sizeof *writer);
  if (writer)
    *writer = (weir__writer){.rings = rings,
                             .ring = ring,
                             .rules = WEIR__NO_RULES,
                             .device = device,
                             .pool = weir__pool_number(pool),
                             .stream = stream};
  return writer;
}

void weir__writer_end(weir__writer *writer) {
  if (writer->chunk)
    close_chunk(writer->ring, writer->chunk);
  weir__hash_map_clear(&writer->stacks);
}

void weir__writer_delete(weir__writer *writer) {
  if (!writer)
    return;
  weir__writer_end(writer);
  free(writer);
}

/* What all entries of one moment have in common. */
typedef struct moment {
  uint64_t time;
  uint32_t context;
  weir__rules rules;
  const weir__recorded_work *work; /* of the entry; NULL for other entries */
} moment;

static inline moment begin(weir__writer *writer, uint64_t ticks) {
  if (!weir__this_thread.thread)
    weir__this_thread_number();
  moment moment = {.rules = weir__rings_rules(writer->rings), .time = weir__writer_time(writer, ticks)};
  if (writer->generation != moment.rules.generation) {
    weir__hash_map_clear(&writer->stacks); /* of a recording that is over */
    writer->generation = moment.rules.generation;
  }
  writer->rules = WEIR__NO_RULES;
  uint32_t metadata = atomic_load_explicit(&writer->ring->metadata, memory_order_relaxed);
  uint32_t phase = weir__phase_here();
  if (weir__this_thread.texts | metadata | phase)
    moment.context = weir__context_here(phase, metadata);
  return moment;
}

static void append(weir__writer *writer, const moment *moment, unsigned action, uint64_t address, uint64_t bytes,
                   uint32_t stack) {
  bool has_missed = weir__this_thread.has_missed && (action == WEIR_TRACE_ALLOC || action == WEIR_TRACE_OOM);
  if (has_missed)
    weir__this_thread.has_missed = false;
  if (moment->rules.skip >> action & 1)
    return;
  weir__ring *ring = writer->ring;
  weir__chunk *chunk = writer->chunk;
  if (chunk && has_left(ring, chunk))
    chunk = NULL;
  unsigned count = chunk ? atomic_load_explicit(&chunk->count, memory_order_relaxed) : WEIR__CHUNK_ENTRIES;
  if (count == WEIR__CHUNK_ENTRIES) {
    writer->chunk = chunk = next_chunk(ring, chunk);
    if (!chunk) {
      atomic_fetch_add_explicit(&writer->rings->lost, 1, memory_order_relaxed);
      return;
    }
    count = atomic_load_explicit(&chunk->count, memory_order_relaxed);
  }
  if (moment->rules.context < WEIR_CONTEXT_ALLOC)
    stack = 0;
  if (ring->file)
    weir__ring_file_need(ring->file, stack, moment->context, writer->pool < WEIR__POOL_DIRECT ? writer->pool : 0);
  weir__entry_fill(&chunk->entries[count], writer, action, address, bytes, moment->time, stack, moment->context);
  if (moment->work) {
    weir__entry *entry = &chunk->entries[count];
    entry->stream = moment->work->stream;
    entry->stack = (uint32_t)moment->work->duration_ns;
    entry->pool = (uint32_t)(moment->work->duration_ns >> 32);
  }
  bool is_of_segment = action >= WEIR_TRACE_SEGMENT_ALLOC && action <= WEIR_TRACE_SEGMENT_UNMAP;
  unsigned reason = is_of_segment                                ? weir__this_thread.reason
                    : has_missed || action == WEIR__ACTION_TAKEN ? WEIR__REASON_REQUEST
                                                                 : WEIR__REASON_UNKNOWN;
  chunk->entries[count].thread |= (uint16_t)(reason << WEIR__ENTRY_REASON_SHIFT);
  if (action == WEIR_TRACE_ALLOC && weir__this_thread.phase & WEIR__PHASE_FRESH) {
    chunk->entries[count].thread |= WEIR__ENTRY_PHASE_BEGINS;
    weir__this_thread.phase &= ~WEIR__PHASE_FRESH;
  }
  atomic_store_explicit(&chunk->count, count + 1, memory_order_release); /* counted entries are complete */
  if (!moment->rules.skip && !moment->rules.context && !moment->rules.has_texts && !writer->stacks.count)
    writer->rules = moment->rules.word;
}

void weir__writer_write_at(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack,
                           uint64_t ticks) {
  moment moment = begin(writer, ticks);
  if (action == WEIR_TRACE_ALLOC && stack)
    put_stack(&writer->stacks, address, stack);
  else if (action == WEIR_TRACE_FREE_REQUESTED && !stack)
    stack = find_stack(&writer->stacks, address);
  else if (action == WEIR_TRACE_FREE_COMPLETED) {
    uint32_t of_alloc = take_stack(&writer->stacks, address);
    stack = stack ? stack : of_alloc;
  }
  append(writer, &moment, action, address, bytes, stack);
}

void weir__writer_write(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack) {
  weir__writer_write_at(writer, action, address, bytes, stack, weir__clock_ticks());
}

void weir__writer_write_freed(weir__writer *writer, uint64_t address, uint64_t bytes, uint32_t stack, uint64_t ticks) {
  moment moment = begin(writer, ticks);
  uint32_t of_alloc = take_stack(&writer->stacks, address);
  stack = stack ? stack : of_alloc;
  append(writer, &moment, WEIR_TRACE_FREE_REQUESTED, address, bytes, stack);
  append(writer, &moment, WEIR_TRACE_FREE_COMPLETED, address, bytes, stack);
}

void weir__writer_mark(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack,
                       uint32_t context, const weir__recorded_work *work) {
  moment moment = begin(writer, weir__clock_ticks());
  moment.context = context ? context : moment.context;
  moment.work = work;
  append(writer, &moment, action, address, bytes, stack);
}

uint32_t weir__writer_stack(const weir__writer *writer, uint64_t address) {
  if (!writer || writer->generation != weir__rings_rules(writer->rings).generation)
    return 0;
  return find_stack(&writer->stacks, address);
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

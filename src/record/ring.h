/*
 * How history entries are written, and where they are kept: the most recent N entries per device.
 *
 * Each arena has a writer, and writes with its own lock held. To need no other lock for that, a writer has a chunk of
 * its own and asks for another one only when the chunk is full. It also keeps the stacks of blocks in use, so that
 * blocks stay small. The ring lists all chunks: those that are being written, and the finished ones, of which the
 * oldest are dropped when there are too many entries. Readers sort the entries by time: the times of one arena never go
 * back, and driver calls lie between the entries of memory that moves from one arena to another.
 *
 * A chunk that is being written is never taken from its writer, so a ring keeps a few more entries than its limit;
 * readers skip the oldest.
 *
 * The chunks of a ring with a file lie in the file (record/ring_file.h), and the oldest are dropped when the file is
 * full.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash_map.h"
#include "base/lock.h"
#include "record/entry.h"
#include "record/this_thread.h"

enum { WEIR__CHUNK_ENTRIES = 64 };

/* A chunk is part of the file format. Pointers are aligned to 8 so that a 32-bit system has the same layout. */
typedef struct weir__chunk {
  atomic_uint count;                    /* complete entries; only the writer changes it */
  _Alignas(8) struct weir__chunk *next; /* guarded by the ring's lock, as are the times */
  _Alignas(8) struct weir__chunk *previous;
  uint64_t begin, end;                    /* the times of the first and the last entry, once it is finished */
  uint64_t sequence;                      /* in a file: higher for chunks that began later */
  _Alignas(8) struct weir__chunk *vacant; /* the next one in the ring's list; guarded by its lock */
  uint64_t padding;
  weir__entry entries[WEIR__CHUNK_ENTRIES];
} weir__chunk;

_Static_assert(sizeof(weir__chunk) == 64 + WEIR__CHUNK_ENTRIES * 48, "one cache line, and the entries");

typedef struct weir__chunk_list {
  weir__chunk *first, *last;
} weir__chunk_list;

/* All zero is a ring that keeps nothing. */
typedef struct weir__ring {
  weir__lock lock;
  size_t limit;                   /* of entries; guarded by the lock, as is all that follows */
  weir__chunk_list writing, done; /* done: the oldest first */
  weir__chunk *vacant;    /* chunks of `writing` with room whose writer is gone; the next writer continues one */
  size_t writing_count;   /* chunks */
  size_t done_entries;    /* entries in `done` */
  uint64_t dropped;       /* entries that were dropped */
  uint64_t dropped_until; /* the latest time of a dropped entry */
  uint64_t cleared_until; /* entries up to this time were cleared */
  weir__chunk *idle;      /* unused chunks */
  /* The file that has the chunks; NULL if memory has them. Set before the first entry; the child of a fork leaves
   * it. */
  struct weir__ring_file *file;
  int device;               /* in the file */
  atomic_uint metadata;     /* a text that entries of the device carry; 0 for none. Needs no lock */
  uintptr_t left, left_end; /* where the parent's file was mapped: chunks there are not used any more */
} weir__ring;

/* ---- Rings ---- */

/* In the child of a fork, before any other use: drops all entries; from here on memory has the chunks. */
void weir__ring_leave_file(weir__ring *ring);

/* Drops all entries. Chunks that are being written stay with their writers. */
void weir__ring_clear(weir__ring *ring);
void weir__ring_end(weir__ring *ring);

/* The most recent `limit` entries up to the time `until`, the oldest first, in memory that the caller frees, and how
 * many older ones were dropped. A snapshot's mark of that very time comes after them and is left out, as are entries
 * that are for a file only. false if the host has no memory. */
bool weir__ring_read(weir__ring *ring, uint64_t until, weir__entry **entries, size_t *count, uint64_t *dropped);

/* Sorts entries by time; entries of the same time keep their order. `spare` has room for as many. */
void weir__entries_sort(weir__entry *entries, weir__entry *spare, size_t count);

/* ---- Writers ---- */

/* Which parts of entries are recorded. */
typedef union weir__rules {
  struct {
    uint32_t generation; /* how often recording was turned off */
    uint16_t skip;       /* actions that are left out, by bit */
    uint8_t context;     /* weir_history_context */
    uint8_t has_texts;   /* some device has metadata */
  };
  uint64_t word;
} weir__rules;

#define WEIR__NO_RULES UINT64_MAX

/* What the rings of a recorder share. */
typedef struct weir__rings {
  _Atomic uint64_t rules; /* weir__rules as one word, to be read at once; changed under the recorder's lock */
  atomic_ulong lost;      /* entries that could not be written */
} weir__rings;

static inline weir__rules weir__rings_rules(const weir__rings *rings) {
  return (weir__rules){.word = atomic_load_explicit(&rings->rules, memory_order_relaxed)};
}

/* Writes the entries of an arena, whose lock guards it, or those of a device that belong to no arena. */
typedef struct weir__writer {
  weir__rings *rings;
  weir__ring *ring;
  uint64_t rules;     /* of the last entry, if the fast path can write the next one; else WEIR__NO_RULES */
  weir__chunk *chunk; /* NULL if it has to ask for one */
  uint64_t last;      /* the time of its last entry; the next is not earlier */
  uint64_t stream;    /* of all its entries, as are the next two */
  uint32_t pool;
  int device;
  uint32_t generation;   /* of the recording that the stacks belong to */
  weir__hash_map stacks; /* of blocks in use, by address */
} weir__writer;

/* NULL if the host has no memory. */
weir__writer *weir__writer_new(weir__rings *rings, weir__ring *ring, int device, weir_pool_id pool, uint64_t stream);

/* Writes an entry. `stack` is that of the current operation; the rules decide whether the entry keeps it. The lock that
 * guards the writer is held. */
void weir__writer_write(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack);

/* The same at a time that was read before, in ticks. */
void weir__writer_write_at(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack,
                           uint64_t ticks);

/* Writes both entries of a free that is complete at once. */
void weir__writer_write_freed(weir__writer *writer, uint64_t address, uint64_t bytes, uint32_t stack, uint64_t ticks);

/* Writes an entry with a context of its own, unless that is 0, and with the numbers of work, unless that is NULL. */
void weir__writer_mark(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack,
                       uint32_t context, const weir__recorded_work *work);

/* Gives the chunk back. */
void weir__writer_end(weir__writer *writer);

/* The same, and deletes it; `writer` may be NULL. */
void weir__writer_delete(weir__writer *writer);

/* The stack with which a block in use was allocated; 0 if it is not known, or `writer` is NULL. The
 * arena's lock is held. */
uint32_t weir__writer_stack(const weir__writer *writer, uint64_t address);

/* ---- The fast path: frequent entries, without rules to apply, with room in the chunk ---- */

static inline uint64_t weir__writer_time(weir__writer *writer, uint64_t ticks) {
  if (__builtin_expect(ticks < writer->last, 0))
    ticks = writer->last;
  writer->last = ticks;
  return ticks;
}

/* Field by field, straight into the chunk: a copy of a whole entry would stall on its parts. */
static inline void weir__entry_fill(weir__entry *entry, const weir__writer *writer, unsigned action, uint64_t address,
                                    uint64_t bytes, uint64_t time, uint32_t stack, uint32_t context) {
  entry->address = address;
  entry->bytes = bytes;
  entry->stream = writer->stream;
  entry->time = time;
  entry->stack = stack;
  entry->pool = writer->pool;
  entry->context = context;
  entry->action = (uint8_t)action;
  entry->device = (uint8_t)writer->device;
  entry->thread = weir__this_thread.thread;
}

/* Room for one or two entries; NULL if the slow path has to write them. */
static inline weir__entry *weir__writer_place(const weir__writer *writer, unsigned entries, unsigned *count) {
  if (writer->rules != atomic_load_explicit(&writer->rings->rules, memory_order_relaxed) || weir__this_thread.texts ||
      !weir__this_thread.thread)
    return NULL;
  *count = atomic_load_explicit(&writer->chunk->count, memory_order_relaxed);
  if (*count + entries > WEIR__CHUNK_ENTRIES)
    return NULL;
  weir__entry *place = &writer->chunk->entries[*count];
  for (unsigned i = 0; i < entries; i++)
    __builtin_prefetch(place + 12 + i, 1);
  return place;
}

static inline void weir__writer_alloc(weir__writer *writer, uint64_t address, uint64_t bytes, uint64_t ticks) {
  unsigned count;
  weir__entry *entry = weir__writer_place(writer, 1, &count);
  if (__builtin_expect(!entry, 0)) {
    weir__writer_write_at(writer, WEIR_TRACE_ALLOC, address, bytes, 0, ticks);
    return;
  }
  weir__entry_fill(entry, writer, WEIR_TRACE_ALLOC, address, bytes, weir__writer_time(writer, ticks), 0, 0);
  atomic_store_explicit(&writer->chunk->count, count + 1, memory_order_release);
}

static inline void weir__writer_freed(weir__writer *writer, uint64_t address, uint64_t bytes, uint64_t ticks) {
  unsigned count;
  weir__entry *pair = weir__writer_place(writer, 2, &count);
  if (__builtin_expect(!pair, 0)) {
    weir__writer_write_freed(writer, address, bytes, 0, ticks);
    return;
  }
  uint64_t time = weir__writer_time(writer, ticks);
  weir__entry_fill(&pair[0], writer, WEIR_TRACE_FREE_REQUESTED, address, bytes, time, 0, 0);
  weir__entry_fill(&pair[1], writer, WEIR_TRACE_FREE_COMPLETED, address, bytes, time, 0, 0);
  atomic_store_explicit(&writer->chunk->count, count + 2, memory_order_release);
}

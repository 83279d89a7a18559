/*
 * Where history entries are kept: the most recent N entries per device.
 *
 * An arena writes them, with its lock held. To need no other lock for that, each arena has a chunk of its own and asks
 * for another one only when the chunk is full. The ring lists all chunks: those that are being written, and the
 * finished ones, of which the oldest are dropped when there are too many entries. Readers sort the entries by time: the
 * times of one arena never go back, and driver calls lie between the entries of memory that moves from one arena to
 * another.
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

#include "base/lock.h"
#include "record/entry.h"

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
  uintptr_t left, left_end; /* where the parent's file was mapped: chunks there are not used any more */
} weir__ring;

/* Whether a chunk is one of the file that belongs to the parent of a fork. */
static inline bool weir__ring_has_left(const weir__ring *ring, const weir__chunk *chunk) {
  return (uintptr_t)chunk >= ring->left && (uintptr_t)chunk < ring->left_end;
}

/* In the child of a fork, before any other use: drops all entries; from here on memory has the chunks. */
void weir__ring_leave_file(weir__ring *ring);

/* Exchanges a full chunk, or NULL, for one to write, which may contain entries of an earlier writer. NULL if the host
 * has no memory, or the file has no chunk left. */
weir__chunk *weir__ring_next(weir__ring *ring, weir__chunk *full);

/* The writer gives its chunk back. */
void weir__ring_close(weir__ring *ring, weir__chunk *chunk);

/* Drops all entries. Chunks that are being written stay with their writers. */
void weir__ring_clear(weir__ring *ring);
void weir__ring_end(weir__ring *ring);

/* The most recent `limit` entries up to the time `until`, the oldest first, in memory that the caller frees, and how
 * many older ones were dropped. A snapshot's mark of that very time comes after them and is left out, as are entries
 * that are for a file only. false if the host has no memory. */
bool weir__ring_read(weir__ring *ring, uint64_t until, weir__entry **entries, size_t *count, uint64_t *dropped);

/* Sorts entries by time; entries of the same time keep their order. `spare` has room for as many. */
void weir__entries_sort(weir__entry *entries, weir__entry *spare, size_t count);

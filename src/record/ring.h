/*
 * Where entries are kept: the newest so many of a device.
 *
 * Who writes is an arena, with its lock held. So that writing takes no other lock, an arena has a chunk to itself, and only
 * asks for another one when that is full. The ring knows all chunks: those that are being written, and those that are
 * finished, the oldest of which go when there are too many entries. Readers put them in order by their times: those of an
 * arena never go back, and what moves from one arena to another takes the driver's calls in between.
 *
 * A chunk that is being written is never taken from its writer, so there are some more entries than asked for; readers leave
 * the oldest away.
 *
 * The chunks of a ring that has a file lie there (record/ring_file.h), and the oldest go when the file is full.
 */
#ifndef WEIR_RECORD_RING_H
#define WEIR_RECORD_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/lock.h"
#include "record/entry.h"

enum { WEIR__CHUNK_ENTRIES = 64 };

/* Pointers are aligned to 8 so that the layout, which files have, is the same on a 32-bit system. */
typedef struct weir__chunk {
  atomic_uint count;                    /* of entries that are whole; only its writer changes it */
  _Alignas(8) struct weir__chunk *next; /* guarded by the ring's lock, as the times */
  _Alignas(8) struct weir__chunk *previous;
  uint64_t begin, end;                    /* the times of its first and its last entry, once it is finished */
  uint64_t sequence;                      /* in a file: chunks that began later have higher ones */
  _Alignas(8) struct weir__chunk *vacant; /* the next one whose writer is gone; guarded by the ring's lock */
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
  size_t limit;                   /* entries; guarded by the lock, as all that follows */
  weir__chunk_list writing, done; /* done: the oldest first */
  weir__chunk *vacant;    /* of `writing`, those with room whose writer is gone: the next writer goes on there */
  size_t writing_count;   /* chunks */
  size_t done_entries;    /* entries in `done` */
  uint64_t dropped;       /* entries that went */
  uint64_t dropped_until; /* the latest time of one that went */
  uint64_t cleared_until; /* what is not later was cleared */
  weir__chunk *idle;      /* chunks that are free again */
  struct weir__ring_file
      *file;  /* has the chunks; NULL: memory does. It is set before the first entry, and goes with a fork */
  int device; /* in the file */
  uintptr_t left, left_end; /* where a file was that is the parent's: chunks there are nobody's */
} weir__ring;

/* A chunk that the process had before it forked. */
static inline bool weir__ring_has_left(const weir__ring *ring, const weir__chunk *chunk) {
  return (uintptr_t)chunk >= ring->left && (uintptr_t)chunk < ring->left_end;
}

/* In the child of a fork, before anybody else uses it: forgets all, and from here on memory has the chunks. */
void weir__ring_leave_file(weir__ring *ring);

/* A chunk to write, which may have entries of another writer; the one that the writer has filled, or NULL, goes back. NULL: no host memory, or none left in the file. */
weir__chunk *weir__ring_next(weir__ring *ring, weir__chunk *full);

/* The writer is gone. */
void weir__ring_close(weir__ring *ring, weir__chunk *chunk);

/* Forgets all entries. Chunks that are being written stay with their writers. */
void weir__ring_clear(weir__ring *ring);
void weir__ring_end(weir__ring *ring);

/* The most recent `limit` entries up to the time `until`, the oldest first, in memory that the caller frees, and how
 * many older ones were dropped. A snapshot's mark of that very time comes after them, and is left out, as are entries
 * that are for a file only. false: no host memory. */
bool weir__ring_read(weir__ring *ring, uint64_t until, weir__entry **entries, size_t *count, uint64_t *dropped);

/* Puts entries in order by their times; those with the same one stay as they are. `spare` has room for as many. */
void weir__entries_sort(weir__entry *entries, weir__entry *spare, size_t count);

#endif

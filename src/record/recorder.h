/*
 * The recorder of an allocator.
 *
 * Entries go to rings (record/ring.h), one per device. The stack of a block in use is kept in a table of its arena, so
 * that blocks stay small.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/hash_map.h"
#include "base/lock.h"
#include "base/thread.h"
#include "record/entry.h"
#include "record/ring.h"
#include "record/this_thread.h"
#include "weir/history.h"

/* Writes the entries of an arena. Guarded by the arena's lock. */
typedef struct weir__writer {
  struct weir__recorder *history;
  uint64_t rules;     /* of the last entry, if the fast path can write the next one; else WEIR__NO_RULES */
  weir__chunk *chunk; /* NULL if it has to ask for one */
  uint64_t last;      /* the time of its last entry; the next is not earlier */
  uint64_t stream;    /* of all its entries, as are the next two */
  uint32_t pool;
  int device;
  uint32_t generation;   /* of the recording that the stacks belong to */
  weir__hash_map stacks; /* of blocks in use, by address */
} weir__writer;

typedef struct weir__annotation {
  struct weir__annotation *next;
  uint64_t time; /* ticks */
  int device;
  uint32_t pair_count;
  char texts[]; /* key, value, key, value ..., each with its NUL */
} weir__annotation;

typedef struct weir__recorder_device {
  weir__ring ring;
  atomic_uint metadata; /* a text's number */
  weir__lock lock;
  weir__writer marks; /* writes entries that belong to no arena; guarded by `lock` */
} weir__recorder_device;

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

typedef struct weir__recorder {
  _Atomic uint64_t rules;  /* weir__rules as one word, to be read at once; changed under the lock */
  atomic_int mode, stacks; /* weir_history_...; changed under the lock, read without it */
  atomic_ulong lost;       /* entries that could not be written */
  weir__mutex lock;        /* guards what follows */
  size_t limit;
  weir__annotation *annotations, **annotations_end; /* the oldest first */
  size_t annotation_count;
  uint64_t annotations_dropped;
  struct weir__ring_file *file; /* that has the entries; NULL if memory has them. Set before recording begins */
  atomic_int dumps;             /* snapshots that were due beside the file because memory ran out */
  struct weir__recorder *next;  /* in the list of all; guarded by its lock */
  int device_count;
  weir__recorder_device devices[];
} weir__recorder;

weir__recorder *weir__recorder_new(int devices); /* NULL if the host has no memory */
void weir__recorder_delete(weir__recorder *history);

/* Makes entries go to the file, which belongs to the recorder from here on. Called before anything is recorded. */
void weir__recorder_set_file(weir__recorder *history, struct weir__ring_file *file);

void weir__recorder_set(weir__recorder *history, const weir_history_options *options);
void weir__recorder_clear(weir__recorder *history);

static inline bool weir__recorder_is_on(const weir__recorder *history) {
  return atomic_load_explicit(&history->mode, memory_order_relaxed) != WEIR_HISTORY_OFF;
}

static inline weir__rules weir__recorder_rules(const weir__recorder *history) {
  return (weir__rules){.word = atomic_load_explicit(&history->rules, memory_order_relaxed)};
}

/* The caller's stack if entries of this kind have one, else 0. Called without locks. */
uint32_t weir__recorder_stack(const weir__recorder *history, weir_history_context level);

/* NULL if the host has no memory. */
weir__writer *weir__writer_new(weir__recorder *history, int device, weir_pool_id pool, uint64_t stream);

/* Writes an entry. `stack` is that of the current operation; the rules decide whether the entry keeps it. The lock that
 * guards the writer is held. */
void weir__recorder_write(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack);

/* The same at a time that was read before, in ticks. */
void weir__recorder_write_at(weir__writer *writer, unsigned action, uint64_t address, uint64_t bytes, uint32_t stack,
                             uint64_t ticks);

/* Writes both entries of a free that is complete at once. */
void weir__recorder_write_freed(weir__writer *writer, uint64_t address, uint64_t bytes, uint32_t stack, uint64_t ticks);

/* `writer` may be NULL. */
void weir__writer_delete(weir__writer *writer);

/* The stack with which a block in use was allocated; 0 if it is not known. The arena's lock is held. */
uint32_t weir__writer_stack(const weir__recorder *history, const weir__writer *writer, uint64_t address);

void weir__recorder_set_metadata(weir__recorder *history, int device, uint32_t text);

/* Writes an entry that belongs to no arena: a mark, perhaps about an address, or a snapshot. */
void weir__recorder_mark(weir__recorder *history, int device, unsigned action, uint64_t address, uint64_t bytes,
                         uint32_t text);

/* The entries of a device, the oldest first, for the caller to free. false if the host has no memory. */
bool weir__recorder_read(weir__recorder *history, int device, weir__entry **entries, size_t *count, uint64_t *dropped);

/* The same as of an earlier time, which a snapshot may have marked. Neither the mark nor later entries count. */
bool weir__recorder_read_until(weir__recorder *history, int device, uint64_t until, weir__entry **entries,
                               size_t *count, uint64_t *dropped);

/* Calls `each` for every annotation, the oldest first, with the recorder's lock held. */
void weir__recorder_annotations(weir__recorder *history,
                                void (*each)(void *context, const weir__annotation *annotation), void *context);
bool weir__recorder_annotate(weir__recorder *history, int device, const char *const *pairs, size_t pair_count);

/* ---- All recorders of the process ---- */

/* The number of recorders that are on. */
extern atomic_int weir__recorders_on __attribute__((visibility("hidden")));

/* Adds an annotation, or an entry user_defined, to every recorder that is on. A device that a recorder does not have
 * counts as its first. false if the host has no memory. */
bool weir__recorders_annotate(int device, const char *const *pairs, size_t pair_count);
void weir__recorders_mark(int device, uint32_t text);

/* Work that a device has executed. */
typedef struct weir__recorded_work {
  const char *name, *kind;
  int device;
  uint64_t stream, bytes;
  int64_t start_ns; /* Unix time */
  uint64_t duration_ns;
} weir__recorded_work;

/* The value of "stage" in annotations that are work. Their other keys are kind, stream, start_ns, duration_ns and
 * bytes. In ring files, an entry WEIR__ACTION_PAIRS of work has the numbers, and its pairs are the texts: address is
 * start_ns, and stack and pool are the lower and upper half of duration_ns. */
#define WEIR__STAGE_WORK "WORK"

/* The same of what the guard has found (inspect/guard.c). */
#define WEIR__STAGE_GUARD "GUARD"

/* Adds work to every recorder that is on. */
void weir__recorders_add_work(const weir__recorded_work *work);

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
  if (writer->rules != atomic_load_explicit(&writer->history->rules, memory_order_relaxed) || weir__this_thread.texts ||
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

static inline void weir__recorder_alloc(weir__writer *writer, uint64_t address, uint64_t bytes, uint64_t ticks) {
  unsigned count;
  weir__entry *entry = weir__writer_place(writer, 1, &count);
  if (__builtin_expect(!entry, 0)) {
    weir__recorder_write_at(writer, WEIR_TRACE_ALLOC, address, bytes, 0, ticks);
    return;
  }
  weir__entry_fill(entry, writer, WEIR_TRACE_ALLOC, address, bytes, weir__writer_time(writer, ticks), 0, 0);
  atomic_store_explicit(&writer->chunk->count, count + 1, memory_order_release);
}

static inline void weir__recorder_freed(weir__writer *writer, uint64_t address, uint64_t bytes, uint64_t ticks) {
  unsigned count;
  weir__entry *pair = weir__writer_place(writer, 2, &count);
  if (__builtin_expect(!pair, 0)) {
    weir__recorder_write_freed(writer, address, bytes, 0, ticks);
    return;
  }
  uint64_t time = weir__writer_time(writer, ticks);
  weir__entry_fill(&pair[0], writer, WEIR_TRACE_FREE_REQUESTED, address, bytes, time, 0, 0);
  weir__entry_fill(&pair[1], writer, WEIR_TRACE_FREE_COMPLETED, address, bytes, time, 0, 0);
  atomic_store_explicit(&writer->chunk->count, count + 2, memory_order_release);
}

/* ---- Numbers in entries ---- */

typedef struct weir__entry_context {
  uint32_t phase, compile, metadata; /* texts */
} weir__entry_context;

/* A pool whose id has one small number and a 0 is stored directly, with a bit that tells which of the two it is. Other
 * ids are interned. */
enum { WEIR__POOL_DIRECT = 1 << 29 };
#define WEIR__POOL_FIRST (1u << 30)
#define WEIR__POOL_SECOND (1u << 29)

weir_pool_id weir__pool_of_number(uint32_t number);

/* Whether a pool's number contains its id, which is written to *id then. */
bool weir__pool_is_direct(uint32_t number, weir_pool_id *id);
weir__entry_context weir__context_of_number(uint32_t number);

/* The same from the interned bytes, for a reader of a file. false if the bytes are something else. */
bool weir__pool_of_bytes(const void *bytes, size_t length, weir_pool_id *id);
bool weir__context_of_bytes(const void *bytes, size_t length, weir__entry_context *context);

/* An annotation: key, value, key, value ..., each with its NUL. */
bool weir__pairs_of_bytes(const void *bytes, size_t length, const char **texts, size_t *count);

/*
 * The recorder of an allocator.
 *
 * It decides what is recorded. Entries go to rings (record/ring.h), one per device, by the writers of arenas;
 * annotations are kept here.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/thread.h"
#include "record/entry.h"
#include "record/ring.h"
#include "record/stacks.h"
#include "record/this_thread.h"
#include "weir/history.h"

typedef struct weir__annotation {
  struct weir__annotation *next;
  uint64_t time; /* ticks */
  int device;
  uint32_t pair_count;
  char texts[]; /* key, value, key, value ..., each with its NUL */
} weir__annotation;

typedef struct weir__recorder_device {
  weir__ring ring;
  weir__lock lock;
  weir__writer marks; /* writes entries that belong to no arena; guarded by `lock` */
} weir__recorder_device;

typedef struct weir__recorder {
  weir__rings rings;
  atomic_int mode, stacks; /* weir_history_...; changed under the lock, read without it */
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

/* A new writer of a device's entries; NULL if the host has no memory. */
static inline weir__writer *weir__recorder_writer(weir__recorder *history, int device, weir_pool_id pool,
                                                  uint64_t stream) {
  return weir__writer_new(&history->rings, &history->devices[device].ring, device, pool, stream);
}

/* The caller's stack if entries of this kind have one, else 0. Called without locks. */
static inline uint32_t weir__recorder_stack(const weir__recorder *history, weir_history_context level) {
  if ((unsigned)level > weir__rings_rules(&history->rings).context)
    return 0;
  return weir__stack_gather((weir_history_stacks)atomic_load_explicit(&history->stacks, memory_order_relaxed));
}

/* Ends recording and keeps what was recorded. */
void weir__recorder_stop(weir__recorder *history);

void weir__recorder_set_metadata(weir__recorder *history, int device, uint32_t text);

/* Writes an entry that belongs to no arena: a mark, perhaps about an address, or a snapshot. */
void weir__recorder_mark(weir__recorder *history, int device, unsigned action, uint64_t address, uint64_t bytes,
                         uint32_t text);

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

/* Adds work to every recorder that is on. */
void weir__recorders_add_work(const weir__recorded_work *work);

/*
 * What a recorded history tells about how it came about, found out before it is replayed: to which pool and to which
 * allocation an entry belongs, why memory went back to the driver, and which limit there was.
 *
 * How a file is read:
 * - The segments that a request asks for, and those that are given back for it, stand before its entry.
 * - A free_requested that is followed by its free_completed at once was an ordinary free. One that is not was waiting for
 *   another stream.
 * - The program's own calls of empty_cache are not recorded. Segments that go back, where the allocator has no reason to give
 *   any back for the next request, come from such a call.
 * - Up to 2.11 an entry does not name its private pool. The segment list at the end does; a segment that was given back
 *   before belonged to the default pool.
 * - A recording of WEIR_RECORD names threads, and says of each segment whether it was for a request: nothing has to be guessed
 *   then. It also has the settings and limits that the program changed on its way.
 */
#ifndef WEIR_OFFLINE_REPLAY_PLAN_H
#define WEIR_OFFLINE_REPLAY_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/settings.h"
#include "offline/recording.h"
#include "offline/replay.h"
#include "offline/state.h"

#define WEIR__NO_BLOCK UINT32_MAX
#define WEIR__NO_LIMIT UINT64_MAX

typedef struct weir__plan_entry {
  uint32_t pool;  /* alloc: in the snapshot's list */
  uint32_t block; /* alloc, free: which allocation it is about; WEIR__NO_BLOCK: one from before the recording */
} weir__plan_entry;

/* Why memory went back. */
typedef enum weir__release_cause {
  WEIR__RELEASED_BY_PROGRAM, /* it called empty_cache */
  WEIR__RELEASED_BY_POLICY,  /* the allocator, for the request that follows */
  WEIR__RELEASED_AFTER_WAIT, /* the same; blocks that became free before had been waited for by it, not found free */
  WEIR__RELEASE_CAUSES
} weir__release_cause;

/* Segments that go back one after the other, up to the next request. */
typedef struct weir__plan_release {
  size_t first;      /* the event of the first of them */
  size_t completed;  /* where the free_completed entries before it begin; `first` when there are none */
  size_t request;    /* the request that follows; the number of events when something else does */
  size_t end;        /* the first event that is none of it: the request, if there is one */
  uint64_t reserved; /* bytes, before it */
  uint64_t freed;    /* bytes */
  bool grows;        /* the request got a new segment, or more of one */
  bool is_aged;      /* it begins with what collection by age may take: a large segment */
  uint8_t cause;     /* weir__release_cause, as it is guessed; the replay may find another one that fits */
  uint8_t tried;     /* causes that were, one bit each */
} weir__plan_release;

typedef struct weir__plan {
  const weir__recording *snapshot;
  const weir__recording_entry *events;
  size_t count;
  weir__settings settings; /* the recorded ones */
  double fraction;         /* recorded with them: the part of the device's memory that may be used; 1: not said */
  size_t first;            /* event that is replayed; those before it have gone into the start */
  weir__state start;       /* what was there before it: empty unless the recording began late */
  bool has_checkpoint;     /* the file itself has it */
  weir__plan_entry *entries;
  size_t block_count; /* allocations: first those of the start in their order, then those of the history */
  weir__plan_release *releases;
  size_t release_count;
  /* Requests that the cache could not serve, while another thread used the same stream and pool since theirs was last heard of: it may
   * have put back what would have served them, when that had been looked for already. In their order. */
  size_t *races;
  size_t race_count, race_room;
  const weir__recording_early *early; /* of the device, in their order */
  size_t early_count;
  const weir__recording_change
      *changes; /* of the device, in their order; those before the first event are in `settings` */
  size_t change_count;
  uint64_t limit;   /* at the beginning, as recorded; WEIR__NO_LIMIT: none, or not recorded */
  uint64_t memory;  /* the device's; 0: not recorded */
  uint64_t dropped; /* events before the first */
  bool has_threads; /* there is more than one */
  size_t last_request[WEIR__RECORDING_MANY_THREADS + 1]; /* of each thread, + 1; 0: none */
  size_t unknown_frees;                                  /* of what was allocated before the recording */
  uint64_t peak;                                         /* bytes that were ever reserved at once */
} weir__plan;

/* A limit that may have been in force, and the memory of a device that it may have been on. */
typedef struct weir__plan_limit {
  uint64_t limit;  /* WEIR__NO_LIMIT: none */
  uint64_t memory; /* enough for all that the file shows, unless the device itself was too small */
  uint64_t
      others; /* what the device has beside that, and other processes hold: addresses are reserved in proportion to all */
} weir__plan_limit;

enum { WEIR__PLAN_LIMITS = 30 };

static inline bool weir__is_segment_event(const weir__recording_entry *event) {
  return event->action >= WEIR_TRACE_SEGMENT_ALLOC && event->action <= WEIR_TRACE_SEGMENT_UNMAP;
}

static inline bool weir__is_growth(const weir__recording_entry *event) {
  return event->action == WEIR_TRACE_SEGMENT_ALLOC || event->action == WEIR_TRACE_SEGMENT_MAP;
}

static inline bool weir__is_release(const weir__recording_entry *event) {
  return event->action == WEIR_TRACE_SEGMENT_FREE || event->action == WEIR_TRACE_SEGMENT_UNMAP;
}

static inline bool weir__is_request(const weir__recording_entry *event) {
  return event->action == WEIR_TRACE_ALLOC || event->action == WEIR_TRACE_OOM;
}

/* The plan of one device's history, which has events, from event `first` on. The snapshot must outlive it. */
weir_status weir__plan_make(const weir__recording *snapshot, const weir__recording_device *device, size_t first,
                            weir__plan *plan);
void weir__plan_clear(weir__plan *plan);

/* Limits that could explain the file, the likeliest first. There is at least one. The first is WEIR__NO_LIMIT when nothing in
 * the file speaks for a limit. */
size_t weir__plan_limits(const weir__plan *plan, weir__plan_limit limits[WEIR__PLAN_LIMITS]);

/* Guesses why memory went back, each time, if at most `limit` bytes could be reserved. */
void weir__plan_guess(weir__plan *plan, uint64_t limit);

/* Whether an event of a segment was for a request whose end is not in the file: the process was killed before. */
static inline bool weir__plan_is_cut_off(const weir__plan *plan, size_t event) {
  const weir__recording_entry *e = &plan->events[event];
  return plan->snapshot->is_cut_off && e->is_for_request && event >= plan->last_request[e->thread];
}

/* The recorded settings from a change on. false: it is no change of settings. */
bool weir__plan_change(const weir__plan *plan, const weir__recording_change *change, weir__settings *settings);

/* Whether a capture was under way at a request: then nothing goes back for it, and no event is asked. */
bool weir__plan_is_capture(const weir__plan *plan, size_t request);

/* Whether blocks that other streams used became free right before a request, or for it. */
bool weir__plan_waited(const weir__plan *plan, size_t request);

#endif

/*
 * The plan of a replay, made before the first run: to which pool and which allocation an entry belongs, where memory
 * was released, and which requests raced with other threads.
 *
 * How a recording is read:
 * - The segments that a request obtains, and those that are released for it, precede its entry.
 * - A free_requested that is followed by its free_completed at once was an ordinary free. Any other waited for another
 *   stream.
 * - The program's own calls of empty_cache are not recorded. Segments that are released where the allocator has no
 *   reason to release any for the next request come from such a call.
 * - Up to PyTorch 2.11 an entry does not name its private pool. The segment list at the end does; a segment that was
 *   released before belonged to the default pool.
 * - A recording of WEIR_RECORD names threads, and says of each segment whether it was for a request, so nothing has to
 *   be guessed. It also has the settings and limits that the program changed on its way.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "alloc/config/settings.h"
#include "alloc/replay_port.h"
#include "offline/read/recording.h"
#include "offline/replay/replay.h"
#include "offline/replay/streams.h"

#define WEIR__NO_BLOCK UINT32_MAX
#define WEIR__NO_LIMIT UINT64_MAX

typedef struct weir__plan_entry {
  uint32_t pool;  /* alloc: in the recording's list */
  uint32_t block; /* alloc, free: the allocation; WEIR__NO_BLOCK for one from before the recording */
} weir__plan_entry;

/* Why memory was released. */
typedef enum weir__release_cause {
  WEIR__RELEASED_BY_PROGRAM, /* it called empty_cache */
  WEIR__RELEASED_BY_POLICY,  /* the allocator, for the request that follows */
  WEIR__RELEASED_AFTER_WAIT, /* the same; it waited for the blocks that became free right before */
  WEIR__RELEASE_CAUSES
} weir__release_cause;

/* Segments that are released one after the other, up to the next request. */
typedef struct weir__plan_release {
  size_t first;      /* the event of the first of them */
  size_t completed;  /* where the free_completed entries before it begin; `first` if there are none */
  size_t request;    /* the request that follows; the number of events if something else does */
  size_t end;        /* the first event that does not belong to it: the request, if there is one */
  uint64_t reserved; /* bytes, before it */
  uint64_t freed;    /* bytes */
  bool grows;        /* the request got a new segment, or pages */
  bool is_aged;      /* it begins with a segment that garbage collection may take: a large one */
  uint8_t cause;     /* weir__release_cause, a guess at first (replay_infer.c) */
  uint8_t tried;     /* causes that were tried, one bit each */
} weir__plan_release;

typedef struct weir__plan {
  const weir__recording *recording;
  const weir__recording_entry *events;
  size_t count;
  weir__replay_streams streams;
  weir__settings settings; /* the recorded ones */
  double fraction;         /* recorded with them: the part of the device's memory that may be used; 1 if not recorded */
  size_t first;            /* event that is replayed; the start includes those before it */
  weir__state start;       /* the state before it; empty unless the recording began late */
  bool has_checkpoint;     /* it was recorded, not inferred */
  weir__plan_entry *entries;
  size_t block_count; /* allocations: those of the start in their order, then those of the history */
  weir__plan_release *releases;
  size_t release_count;
  /* Requests that the cache could not serve though another thread used the same stream and pool since the requesting
   * thread's last entry: that thread may have freed a suitable block after the search. In their order. */
  size_t *races;
  size_t race_count, race_room;
  const weir__recording_early *early; /* of the device, in their order */
  size_t early_count;
  const weir__recording_change *changes; /* likewise; those before the first event are in `settings` */
  size_t change_count;
  uint64_t limit;   /* at the beginning; WEIR__NO_LIMIT if there was none, or it was not recorded */
  bool has_limit;   /* it was recorded, and so were its changes */
  uint64_t memory;  /* the device's; 0 if not recorded */
  uint64_t dropped; /* events before the first */
  bool has_threads; /* there is more than one */
  bool has_streams; /* likewise, or private pools */
  size_t last_request[WEIR__RECORDING_MANY_THREADS + 1]; /* of each thread, + 1; 0 if there is none */
  size_t unknown_frees;                                  /* of what was allocated before the recording */
  uint64_t peak;                                         /* the most bytes that were reserved at once */
} weir__plan;

/* A limit that may have been in force, on a device that may have been the one. */
typedef struct weir__plan_limit {
  uint64_t limit;  /* WEIR__NO_LIMIT if there is none */
  uint64_t memory; /* enough for all that the recording shows, unless the device itself was too small */
  uint64_t others; /* what other processes hold beside that: address space is reserved in proportion to both */
  bool is_busy;    /* as these in weir__capacity */
  bool is_recorded;
  unsigned order;
} weir__plan_limit;

static inline bool weir__is_segment_event(const weir__recording_entry *event) {
  return event->action >= WEIR_TRACE_SEGMENT_ALLOC && event->action <= WEIR_TRACE_SEGMENT_UNMAP;
}

/* The largest device that a recording may imply, 4 TiB. */
#define WEIR__PLAN_MAX_MEMORY (1ull << 42)

static inline bool weir__is_growth(const weir__recording_entry *event) {
  return event->action == WEIR_TRACE_SEGMENT_ALLOC || event->action == WEIR_TRACE_SEGMENT_MAP;
}

static inline bool weir__is_release(const weir__recording_entry *event) {
  return event->action == WEIR_TRACE_SEGMENT_FREE || event->action == WEIR_TRACE_SEGMENT_UNMAP;
}

static inline bool weir__is_request(const weir__recording_entry *event) {
  return event->action == WEIR_TRACE_ALLOC || event->action == WEIR_TRACE_OOM;
}

/* Adds what an event takes from the driver to the bytes that are reserved, or subtracts what it releases. */
static inline void weir__count_reserved(const weir__recording_entry *event, uint64_t *reserved) {
  if (weir__is_growth(event))
    *reserved += event->size;
  else if (weir__is_release(event))
    *reserved -= event->size < *reserved ? event->size : *reserved;
}

/* The plan of one device's history, which has events, from event `first` on. The recording must outlive it. */
weir_status weir__plan_make(const weir__recording *recording, const weir__recording_device *device, size_t first,
                            weir__plan *plan);
void weir__plan_clear(weir__plan *plan);

/* Whether a segment event was for a request whose entry is missing because the process was killed. */
static inline bool weir__plan_is_cut_off(const weir__plan *plan, size_t event) {
  const weir__recording_entry *e = &plan->events[event];
  return plan->recording->is_cut_off && e->is_for_request && event >= plan->last_request[e->thread];
}

/* The recorded settings at the beginning, without a plan. */
void weir__plan_settings(const weir__recording *recording, int device, weir__settings *settings);

/* The recorded settings from a change on. false if it is no change of settings. */
bool weir__plan_change(const weir__plan *plan, const weir__recording_change *change, weir__settings *settings);

/* The limit in force at an event, as recorded. */
uint64_t weir__plan_limit_at(const weir__plan *plan, size_t event);

/* Whether a capture was under way at a request: then nothing is released for it, and no CUDA event is queried. */
bool weir__plan_is_capture(const weir__plan *plan, size_t request);

/* Whether blocks that other streams used became free right before a request, or for it. */
bool weir__plan_waited(const weir__plan *plan, size_t request);

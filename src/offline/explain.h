/*
 * Why did it run out of memory, and what would have helped: the answer, from a recorded history.
 *
 * The state at an event is that of the real allocator, replayed up to there with every decision compared (offline/replay.h).
 * What is said to have helped was replayed too, within the same limit. A history that cannot be replayed exactly gets no
 * predictions; then only what the file says itself is told.
 */
#ifndef WEIR_OFFLINE_EXPLAIN_H
#define WEIR_OFFLINE_EXPLAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/recording.h"
#include "offline/replay.h"
#include "offline/summary.h"
#include "weir/offline.h"

typedef enum weir__moment {
  WEIR__AT_AUTO, /* the first failure, or else the peak */
  WEIR__AT_OOM,
  WEIR__AT_PEAK, /* most bytes in use */
  WEIR__AT_END,  /* what the list of segments shows */
  WEIR__AT_EVENT
} weir__moment;

typedef struct weir__explain_options {
  int device;
  weir__moment moment;
  size_t event;    /* WEIR__AT_EVENT: which */
  uint64_t memory; /* as in weir__replay_options */
  double fraction;
  bool no_trials;                                                /* nothing is predicted */
  void (*progress)(void *context, size_t done, size_t in_total); /* may be NULL */
  void *progress_context;
} weir__explain_options;

/* What a reserved byte is for. Where there is a request, "usable" and "other" are meant as it sees them: free blocks of its own
 * pool, size class and stream are all that it may get. Without one, all of the default pool are usable. */
typedef enum weir__byte_use {
  WEIR__USE_LIVE,        /* requested by somebody, and in use */
  WEIR__USE_ROUNDING,    /* beside that in the same blocks */
  WEIR__USE_WAITING,     /* freed, and not to be touched before another stream is done with it */
  WEIR__USE_FREE_WHOLE,  /* free, usable: whole segments */
  WEIR__USE_FREE_SPLIT,  /* free, usable: between or behind live blocks of a segment */
  WEIR__USE_FREE_CLASS,  /* free: of the other size class, small or large */
  WEIR__USE_FREE_STREAM, /* free: of other streams */
  WEIR__USE_FREE_POOL,   /* free: of other pools; those of graphs are such */
  WEIR__USES
} weir__byte_use;

/* An allocation that lives at the moment. */
typedef struct weir__explained_block {
  uint64_t address, size, requested;
  size_t event; /* that made it; SIZE_MAX: it is older than the history */
  uint32_t stack;
} weir__explained_block;

enum { WEIR__PINS = 5, WEIR__PIN_BLOCKS = 4, WEIR__TRIALS = 24, WEIR__TRIAL_TEXT = 160 };

/* A segment that would serve, or could go back, if some blocks were not there. */
typedef struct weir__pin {
  uint64_t segment, bytes;                        /* its address, and its bytes */
  uint64_t free;                                  /* of those: free */
  uint64_t pinned;                                /* bytes of the blocks that are in the way */
  size_t count;                                   /* of them */
  weir__explained_block blocks[WEIR__PIN_BLOCKS]; /* the largest of them */
  size_t block_count;
} weir__pin;

typedef enum weir__remedy { WEIR__REMEDY_WAIT, WEIR__REMEDY_EMPTY, WEIR__REMEDY_SETTING } weir__remedy;

/* What was tried by replay. */
typedef struct weir__trial {
  weir__remedy remedy;
  char conf[WEIR__TRIAL_TEXT];   /* SETTING: the whole text to set */
  char change[WEIR__TRIAL_TEXT]; /* SETTING: what is new in it */
  size_t event;                  /* EMPTY: after which the cache is emptied */
  bool is_early;                 /* EMPTY: when least was in use, and not right before the request */
  bool works;           /* the request is served, and no request before it fails that did not fail in the file */
  size_t failed_before; /* requests before it that fail */
  uint64_t reserved;    /* when it is served: bytes in all */
} weir__trial;

typedef struct weir__explanation {
  int device;
  weir__moment moment;
  weir__completeness completeness;
  weir_offline_cause cause;
  size_t event; /* its number in the file */
  size_t event_count;
  size_t oom_count, first_oom, next_oom; /* requests that failed in all; the events of the first two, where there are */
  int64_t time_us, first_us;
  size_t rebuilt_blocks, rebuilt_segments; /* that were there before the history, and were put back before the replay */
  uint64_t rebuilt_bytes;                  /* of those blocks, as they were asked for */
  size_t differences;                      /* between the replay and the file; then nothing is predicted */
  char difference[WEIR__REPLAY_TEXT];      /* the first of them */

  uint64_t request, rounded, wanted; /* as asked for, and what it takes from a cached block and of a limit */
  uint64_t mapped;      /* what it takes of the device: as `wanted`, or the pages that an expandable segment lacks */
  uint64_t device_free; /* an oom says it */
  uint64_t memory;      /* the device's; 0: not known */

  uint64_t reserved;
  uint64_t limit, limit_most; /* UINT64_MAX: not known. The real one lies between the two */
  /* How much more would have served the request at that moment: the truth lies between the two. They hold if has_missing. */
  uint64_t missing_least, missing_most;
  /* The least limit, in steps of WEIR__FIT_STEP, with which a replay from the beginning serves the request, and with which it
   * serves all requests of the recording. 0: not found. */
  uint64_t fit_request, fit_recording;
  uint64_t bytes[WEIR__USES];
  size_t blocks[WEIR__USES];
  uint64_t largest_hole, largest_elsewhere; /* free blocks: that the request may get, and of the others */

  weir__pin pins[WEIR__PINS];
  size_t pin_count;
  size_t pin_segments, pin_blocks; /* if not pins_serve: how many it takes in all ... */
  uint64_t pin_bytes, pin_room;    /* ... of live bytes, and what they make room for */
  weir__holder holders[WEIR__SUMMARY_HOLDERS];
  size_t holder_count;
  weir__trial trials[WEIR__TRIALS];
  size_t trial_count;

  uint32_t stack; /* of the request, as all down to is_capture */
  uint16_t stream;
  bool has_request; /* and it failed, where `moment` is WEIR__AT_OOM */
  bool has_device_free;
  bool is_small, is_private; /* where it looks */
  bool is_capture;           /* a graph is captured: nothing goes back, and nothing is waited for */
  bool is_from_file;         /* the state is the file's list of segments: nothing was replayed, or not exactly */
  bool is_unknown; /* there is no state, since that at the beginning of the file is not known: `difference` says why */
  bool has_checkpoint; /* what was there before the history is in the file itself */
  bool limit_is_inferred;
  bool limit_is_device; /* there was no other: the device itself was full */
  bool has_other_limit; /* the given memory alone does not explain the failure, so the limit was inferred */
  bool was_rescued;     /* blocks became free while the allocator waited, so the same request again is served */
  bool has_missing;
  bool has_stacks;
  bool pins_serve; /* the pins: true: each alone makes a hole that is large enough; false: all together make room */
  bool is_proven;  /* the replay under the recorded settings fails as the file did, so trials mean something */
  bool
      is_served_anew; /* but it does not if what was there before the recording is placed anew: settings mean less then */
} weir__explanation;

/* Fails where the file has nothing to explain (no such device, event or failure), and where the options contradict it. */
weir_status weir__explain(const weir__recording *recording, const weir__explain_options *options,
                          weir__explanation *explanation);

#endif

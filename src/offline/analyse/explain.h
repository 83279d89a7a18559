/*
 * Explains why a job ran out of memory, and what would have helped.
 *
 * The state at an event is that of the real allocator, replayed up to there with every decision compared
 * (offline/replay/replay.h). Remedies were replayed too, within the same limit. For a history that cannot be replayed
 * exactly nothing is predicted, and only what the recording itself says is shown.
 *
 * Two words of the reports: a pin is a live block that keeps a segment from serving the request or from being released;
 * a trial is a remedy that was tried by replay.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offline/analyse/summary.h"
#include "offline/read/recording.h"
#include "offline/replay/replay.h"
#include "weir/offline.h"

typedef struct weir__explain_options {
  int device;
  weir_offline_moment moment;
  size_t event;    /* WEIR_OFFLINE_AT_EVENT: which */
  uint64_t memory; /* as in weir__replay_options */
  double fraction;
  bool no_trials;                                                /* try no remedies */
  void (*progress)(void *context, size_t done, size_t in_total); /* may be NULL */
  void *progress_context;
} weir__explain_options;

/* What reserved bytes are used for. If a request failed, free blocks of its own pool, size class and stream are usable,
 * and the rest is "other". Otherwise all of the default pool are usable. */
typedef enum weir__byte_use {
  WEIR__USE_LIVE,        /* requested and in use */
  WEIR__USE_ROUNDING,    /* the rest of these blocks */
  WEIR__USE_WAITING,     /* freed, and still in use by another stream */
  WEIR__USE_FREE_WHOLE,  /* free, usable: whole segments */
  WEIR__USE_FREE_SPLIT,  /* free, usable: next to live blocks of a segment */
  WEIR__USE_FREE_CLASS,  /* free: of the other size class, small or large */
  WEIR__USE_FREE_STREAM, /* free: of other streams */
  WEIR__USE_FREE_POOL,   /* free: of other pools, such as those of graphs */
  WEIR__USES
} weir__byte_use;

/* "free_whole" in JSON, and "free: whole segments" for people, if a request failed or not. */
const char *weir__use_name(weir__byte_use use);
const char *weir__use_text(weir__byte_use use, bool has_request);

/* A live allocation. */
typedef struct weir__explained_block {
  uint64_t address, size, requested;
  size_t event; /* that allocated it; SIZE_MAX if it is older than the history */
  uint32_t stack;
} weir__explained_block;

enum { WEIR__PINS = 5, WEIR__PIN_BLOCKS = 4, WEIR__TRIALS = 24, WEIR__TRIAL_TEXT = 160 };

/* A segment that would serve the request, or could be released, if its live blocks were not there. */
typedef struct weir__pin {
  uint64_t segment, bytes;                        /* its address and size */
  uint64_t free;                                  /* free bytes in it */
  uint64_t pinned;                                /* bytes of the live blocks */
  size_t count;                                   /* of live blocks */
  weir__explained_block blocks[WEIR__PIN_BLOCKS]; /* the largest of them */
  size_t block_count;
} weir__pin;

typedef enum weir__remedy { WEIR__REMEDY_WAIT, WEIR__REMEDY_EMPTY, WEIR__REMEDY_SETTING } weir__remedy;

/* How many orders of the addresses of segments are tried where they matter: those of the ledger, and seeded ones. */
enum { WEIR__TRIAL_ORDERS = 33 };

/* A remedy that was tried by replay. It works if the request is served, and no more requests before it fail than in the
 * recording. */
typedef struct weir__trial {
  weir__remedy remedy;
  char conf[WEIR__TRIAL_TEXT];   /* SETTING: the whole text */
  char change[WEIR__TRIAL_TEXT]; /* SETTING: the part that is new */
  size_t event;                  /* EMPTY: after which the cache is emptied */
  bool is_early;                 /* EMPTY: when least was in use, not right before the request */
  bool is_weir_only;             /* SETTING: it has a key that PyTorch does not know */
  bool depends;          /* SETTING: it works if other streams have done their work in time, and not otherwise */
  bool depends_on_limit; /* it does not work in all orders with the lowest limit that the recording allows, but with the
                          * highest */
  bool works;            /* in all orders that were tried */
  unsigned orders, orders_served;   /* that were tried, and in which it works */
  size_t failed_before;             /* requests before it that fail, in the order of the ledger */
  uint64_t reserved, reserved_most; /* the peak until it is served: the least and the most of all orders */
} weir__trial;

/* Memory that grew from step to step until the request failed: see offline/analyse/leaks.h. */
typedef struct weir__growth {
  bool is_found;
  bool is_cause;         /* without it the request would have been served */
  uint64_t bytes, count; /* blocks that were not freed */
  double bytes_per_step;
  int64_t first_step;
  size_t steps;     /* until then */
  size_t stacks;    /* or sizes, without stacks */
  uint32_t stack;   /* the one that grew most, 0 if none was recorded, */
  uint64_t size;    /* and then the size of its blocks */
  const char *unit; /* "step", or "window" if there are no steps */
} weir__growth;

/* A free block. */
typedef struct weir__hole {
  uint64_t address, size;
  weir__byte_use use;
} weir__hole;

enum { WEIR__HOLES = 1000 };

typedef struct weir__explanation {
  int device;
  weir_offline_moment moment;
  weir__completeness completeness;
  weir_offline_cause cause;
  size_t event; /* the event's number */
  size_t event_count;
  size_t oom_count, first_oom, next_oom; /* requests that failed, and the events of the first two */
  int64_t time_us, first_us;
  size_t rebuilt_blocks, rebuilt_segments; /* from before the history, installed before the replay */
  uint64_t rebuilt_bytes;                  /* requested bytes of these blocks */
  size_t differences;                 /* between the replay and the recording; if there are any, nothing is predicted */
  char difference[WEIR__REPLAY_TEXT]; /* the first of them */

  uint64_t request, rounded, wanted; /* as asked for, rounded, and what it takes from the driver */
  uint64_t mapped;      /* what it takes from the device: `wanted`, or the pages that an expandable segment lacks */
  uint64_t device_free; /* as recorded with the failure */
  uint64_t memory;      /* the device's; 0 if not known */

  uint64_t reserved;
  uint64_t limit, limit_max; /* UINT64_MAX if not known; the real limit lies between the two */
  /* How much more memory would have served the request at that moment: between the two. Valid if has_missing. */
  uint64_t missing_min, missing_max;
  /* The least limit, in steps of WEIR__FIT_STEP, with which a replay serves the request, and all requests of the
   * recording. 0 if not found. */
  uint64_t fit_request, fit_recording;
  uint64_t least_possible; /* no allocator could serve the request with less: see weir__replayer_least */
  uint64_t bytes[WEIR__USES];
  size_t blocks[WEIR__USES];
  uint64_t largest_hole, largest_elsewhere; /* free blocks: usable, and the rest */
  weir__hole holes[WEIR__HOLES];            /* the largest free blocks, largest first */
  size_t hole_count;

  weir__pin pins[WEIR__PINS];
  size_t pin_count;
  size_t pin_segments, pin_blocks; /* if not pins_serve: how many segments and blocks it takes */
  uint64_t pin_bytes, pin_room;    /* their live bytes, and the room that they make */
  weir__holder holders[WEIR__SUMMARY_HOLDERS];
  size_t holder_count;
  weir__trial trials[WEIR__TRIALS];
  size_t trial_count;
  unsigned orders,
      orders_served; /* of addresses under the recorded settings, and those in which the request is served */
  weir__growth growth;

  uint32_t stack; /* of the request, as all down to is_capture */
  uint16_t stream;
  bool has_request; /* which failed, if `moment` is WEIR_OFFLINE_AT_OOM */
  bool has_device_free;
  bool is_small, is_private; /* the pool that it searches */
  bool is_capture;           /* during a graph capture: nothing is released or waited for */
  bool is_from_file;         /* the state is the list of segments: nothing was replayed, or not exactly */
  bool is_unknown;           /* the state is not known, since it is not at the beginning: `difference` says why */
  bool has_checkpoint;       /* the state before the history was recorded */
  bool is_moving;            /* pages moved in the job: its replay need not be exact, since it depends on streams */
  bool limit_is_inferred;
  bool limit_is_recorded;
  bool limit_is_device; /* there was no other limit: the device was full */
  bool has_other_limit; /* the given memory does not explain the failure, so the limit was inferred */
  bool was_rescued;     /* blocks became free while the allocator waited: repeating the request would have served it */
  bool has_missing;
  bool has_stacks;
  bool pins_serve;     /* each pin alone makes a large enough hole; if not, all together make room */
  bool is_proven;      /* the replay with the recorded addresses fails as recorded, so trials are meaningful */
  bool is_served_anew; /* it does not fail if what was there before is allocated anew: settings are less certain */
} weir__explanation;

/* Fails if there is nothing to explain (no such device, event or failure), and if the options contradict the recording.
 * */
weir_status weir__explain(const weir__recording *recording, const weir__explain_options *options,
                          weir__explanation *explanation);

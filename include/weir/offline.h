/*
 * Recordings of memory history: read, replayed, explained, and predicted under other settings. No GPU is needed.
 *
 * A recording is a pickle that torch.cuda.memory._dump_snapshot() or weir_snapshot_write wrote, or a ring file that
 * WEIR_RECORD left behind; plain, or compressed with zstd or gzip. It is read as data: nothing in it is executed, and
 * sizes and depths are limited.
 *
 * These calls are in a library of its own, libweir_offline (pkg-config: weir-offline), which does not need libweir.
 * It is not part of weir/weir.h.
 *
 *     weir_offline_recording *recording;
 *     weir_offline_replayer *replayer;
 *     weir_offline_result result;
 *     weir_offline_predict_options options;
 *     weir_offline_result_init(&result);
 *     weir_offline_predict_options_init(&options);
 *     options.conf = "expandable_segments:True";
 *     if (weir_offline_recording_load("snapshot.pickle", NULL, &recording) == WEIR_OK &&
 *         weir_offline_replayer_create(recording, NULL, &replayer) == WEIR_OK &&
 *         weir_offline_replayer_predict(replayer, &options, &result) == WEIR_OK)
 *       printf("%llu bytes at the peak\n", (unsigned long long)result.peak_reserved);
 *     else
 *       puts(weir_offline_last_error());
 *
 * Recordings and replayers do not change once they are made: any number of threads may use one. Outputs are written
 * only on success.
 */
#ifndef WEIR_OFFLINE_H
#define WEIR_OFFLINE_H

#include <stddef.h>
#include <stdint.h>

#include "weir/output.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong in the last call of this thread that did not return WEIR_OK; "" if none did. As weir_last_error(),
 * which does not know the errors of this library unless both are linked statically. */
const char *weir_offline_last_error(void);

/* ---- Reading ---- */

typedef struct weir_offline_recording weir_offline_recording;

typedef struct weir_offline_load_options {
  size_t size;      /* sizeof(weir_offline_load_options) */
  uint64_t memory;  /* bytes of host memory that reading may take; 0 for the default */
  const char *name; /* what errors call a recording in memory; NULL for "the recording" */
} weir_offline_load_options;

/* Sets `size` and the defaults. */
static inline void weir_offline_load_options_init(weir_offline_load_options *options) { WEIR__INIT(options); }

/* Reads a file, or the standard input if the path is "-". WEIR_ERROR_BAD_DATA if it is no recording: the error says
 * where. `options` may be NULL. */
weir_status weir_offline_recording_load(const char *path, const weir_offline_load_options *options,
                                        weir_offline_recording **recording);

/* Reads the contents of a file from memory, which is not used after the call. */
weir_status weir_offline_recording_load_memory(const void *bytes, size_t size, const weir_offline_load_options *options,
                                               weir_offline_recording **recording);

/* Replayers of the recording must be destroyed before it. NULL is allowed. */
void weir_offline_recording_destroy(weir_offline_recording *recording);

typedef struct weir_offline_info {
  size_t size;       /* sizeof(weir_offline_info) */
  int device_count;  /* of the recording; devices are numbered from 0 */
  int device;        /* the one that the rest is about */
  uint64_t events;   /* entries of its history */
  uint64_t ooms;     /* of these: requests that ran out of memory */
  uint64_t dropped;  /* older entries that did not fit into the ring */
  uint64_t segments; /* in the list at the end of the recording */
} weir_offline_info;

/* Sets `size` and makes the rest zero, for weir_offline_recording_get_info. */
static inline void weir_offline_info_init(weir_offline_info *info) { WEIR__INIT(info); }

/* What a recording has of a device. Device -1, here and below, is the first on which memory ran out, or else the first
 * that has a history, or segments. WEIR_ERROR_INVALID_DEVICE for a number that the recording does not have. */
weir_status weir_offline_recording_get_info(const weir_offline_recording *recording, int device,
                                            weir_offline_info *info);

/* ---- Replaying ---- */

typedef struct weir_offline_replayer weir_offline_replayer;

typedef struct weir_offline_replay_options {
  size_t size;     /* sizeof(weir_offline_replay_options) */
  int device;      /* -1 by default */
  uint64_t memory; /* of the device on which it was recorded, in bytes; 0 if it is to be inferred */
  double fraction; /* the part of it that the program allowed itself; 0 for what the recorded settings say */
} weir_offline_replay_options;

/* Sets `size` and the defaults. */
static inline void weir_offline_replay_options_init(weir_offline_replay_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->device = -1;
}

/* Opens the history of a device for replay. Checked replays under the recorded settings infer what the recording does
 * not say, such as the limit in force; that takes about as long as a few predictions. `options` may be NULL. */
weir_status weir_offline_replayer_create(const weir_offline_recording *recording,
                                         const weir_offline_replay_options *options, weir_offline_replayer **replayer);
void weir_offline_replayer_destroy(weir_offline_replayer *replayer); /* NULL is allowed */

enum { WEIR_OFFLINE_TEXT = 200 };

/* What a replay did. Bytes are those of device memory. */
typedef struct weir_offline_result {
  size_t size;     /* sizeof(weir_offline_result) */
  int is_exact;    /* the recording was reproduced exactly under its own settings; if not, predictions are guesses */
  uint64_t events; /* entries of the history */
  uint64_t allocations; /* requests that were served */
  uint64_t differences; /* checked replay: decisions that differ from the recording */
  uint64_t peak_reserved, peak_allocated, peak_requested;
  uint64_t retries;                         /* requests for which everything cached was released */
  uint64_t ooms;                            /* requests that ran out of memory */
  uint64_t first_oom;                       /* if there are any: the event of the first, */
  uint64_t oom_bytes;                       /* what it asked for, */
  uint64_t oom_reserved, oom_allocated;     /* and what there was then */
  uint64_t limit;                           /* bytes that may be reserved; UINT64_MAX for no limit */
  int limit_is_inferred;                    /* the recording does not say it, nor did the caller */
  uint64_t driver_calls;                    /* that manage memory */
  double driver_ns;                         /* what they cost on an H200, estimated */
  double seconds;                           /* that the replay took */
  char first_difference[WEIR_OFFLINE_TEXT]; /* a sentence; "" if there is none */
} weir_offline_result;

/* Sets `size` and makes the rest zero, for a call that returns a result. */
static inline void weir_offline_result_init(weir_offline_result *result) { WEIR__INIT(result); }

/* The checked replay: every decision of the allocator compared with the recording. It was made when the replayer was
 * created, so this takes no time. */
weir_status weir_offline_replayer_check(const weir_offline_replayer *replayer, weir_offline_result *result);

typedef struct weir_offline_predict_options {
  size_t size;      /* sizeof(weir_offline_predict_options) */
  const char *conf; /* settings on top of the defaults, as in WEIR_ALLOC_CONF; NULL for the recorded ones */
  uint64_t memory;  /* of the device, up to 64 TiB; 0 for the recorded limit, or as much as it takes */
  double fraction;  /* the part of it that may be used, 0 to 1; 0 for what the settings say */
  /* With moving_pages, the outcome may depend on how far streams were, which is not recorded. 0: each had done its work
   * when the allocator asks; 1: none had, until the allocator waits for it. The truth lies between the two. */
  int streams_are_busy;
} weir_offline_predict_options;

/* Sets `size` and the defaults. */
static inline void weir_offline_predict_options_init(weir_offline_predict_options *options) { WEIR__INIT(options); }

/* What the job would have done under other settings, or with other memory. `options` may be NULL: the recorded
 * settings and the recorded limit. A prediction in which requests run out of memory succeeds: see result->ooms.
 * WEIR_ERROR_INVALID_ARGUMENT for settings that cannot be parsed; the error says which key and why. */
weir_status weir_offline_replayer_predict(const weir_offline_replayer *replayer,
                                          const weir_offline_predict_options *options, weir_offline_result *result);

/* ---- Explaining ---- */

typedef struct weir_offline_explain_options {
  size_t size;     /* sizeof(weir_offline_explain_options) */
  int device;      /* -1 by default */
  uint64_t memory; /* as in weir_offline_replay_options */
  double fraction;
  int no_remedies; /* 1 to try none, which is faster */
} weir_offline_explain_options;

/* Sets `size` and the defaults. */
static inline void weir_offline_explain_options_init(weir_offline_explain_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->device = -1;
}

/* The causes of a request that ran out of memory: name, text. */
#define WEIR_OFFLINE_CAUSE_MAP(X)                                                                                      \
  X(NONE, "none")             /* no request failed */                                                                  \
  X(EXHAUSTED, "exhausted")   /* what is in use and the request exceed the limit */                                    \
  X(FRAGMENTED, "fragmented") /* enough is free in the right pool, in pieces that are too small */                     \
  X(STREAMS, "streams")       /* enough is free, for other streams */                                                  \
  X(POOLS, "pools")           /* enough is free, in other pools */                                                     \
  X(CLASS, "class")           /* enough is free, in segments of the other size class */                                \
  X(WAITING, "waiting")       /* enough was freed, and still waits for other streams */                                \
  X(MIXED, "mixed")           /* none of these alone */

typedef enum weir_offline_cause {
#define X(name, text) WEIR_OFFLINE_CAUSE_##name,
  WEIR_OFFLINE_CAUSE_MAP(X)
#undef X
      WEIR_OFFLINE_CAUSES
} weir_offline_cause;

/* "fragmented" and so on; "unknown" for any other number. */
const char *weir_offline_cause_name(weir_offline_cause cause);

typedef struct weir_offline_explanation {
  size_t size; /* sizeof(weir_offline_explanation) */
  int device;
  weir_offline_cause cause;
  int is_exact;          /* the state is that of an exact replay; if not, it is the list at the end of the recording */
  uint64_t event;        /* of the request */
  uint64_t request;      /* bytes that were asked for */
  uint64_t wanted;       /* and what that takes from the driver */
  uint64_t reserved;     /* then, in all */
  uint64_t allocated;    /* of these: asked for and in use */
  uint64_t free;         /* cached, for any request */
  uint64_t largest_free; /* the largest free block that the request could have got */
  uint64_t limit;        /* bytes that may be reserved; UINT64_MAX if not known */
  int limit_is_inferred;
  uint64_t missing;              /* at most so much more would have served the request; UINT64_MAX if not known */
  uint64_t enough_for_request;   /* the least limit with which a replay serves it; 0 if not known */
  uint64_t enough_for_recording; /* and with which no request of the recording fails */
  int empty_cache_helps;         /* emptying the cache before the request would have served it */
  char conf[WEIR_OFFLINE_TEXT];  /* settings under which a replay serves it; "" if none were found */
} weir_offline_explanation;

/* Sets `size` and makes the rest zero, for weir_offline_recording_explain. */
static inline void weir_offline_explanation_init(weir_offline_explanation *explanation) { WEIR__INIT(explanation); }

/* Why the first request of a device that ran out of memory did so, and what would have helped.
 * WEIR_ERROR_INVALID_ARGUMENT if none did. `options` may be NULL. */
weir_status weir_offline_recording_explain(const weir_offline_recording *recording,
                                           const weir_offline_explain_options *options,
                                           weir_offline_explanation *explanation);

/* ---- Drawing ---- */

/* Kinds of pictures: name, text. */
#define WEIR_OFFLINE_PLOT_MAP(X)                                                                                       \
  X(MEMORY, "memory")               /* memory in use over time, stacked, and the reserved memory above it */           \
  X(SEGMENTS, "segments")           /* the map of segments with their blocks and holes at a moment */                  \
  X(TRACE, "trace")                 /* each block as a rectangle: its life and its addresses */                        \
  X(FRAGMENTATION, "fragmentation") /* in use, reserved, the largest hole, and the share that is lost */

typedef enum weir_offline_plot {
#define X(name, text) WEIR_OFFLINE_PLOT_##name,
  WEIR_OFFLINE_PLOT_MAP(X)
#undef X
      WEIR_OFFLINE_PLOTS
} weir_offline_plot;

/* How blocks are grouped and coloured. AUTO is by stack if stacks were recorded, else by class (weights, gradients,
 * activations and so on) if classes are known, else by size. */
#define WEIR_OFFLINE_GROUP_MAP(X)                                                                                      \
  X(AUTO, "auto")                                                                                                      \
  X(STACK, "stack")                                                                                                    \
  X(CLASS, "class")                                                                                                    \
  X(SIZE, "size")                                                                                                      \
  X(STREAM, "stream")                                                                                                  \
  X(POOL, "pool")

typedef enum weir_offline_group {
#define X(name, text) WEIR_OFFLINE_BY_##name,
  WEIR_OFFLINE_GROUP_MAP(X)
#undef X
      WEIR_OFFLINE_GROUPS
} weir_offline_group;

/* Moments of a history. AUTO is the first failure, or the peak if there is none. */
#define WEIR_OFFLINE_MOMENT_MAP(X)                                                                                     \
  X(AUTO, "auto")                                                                                                      \
  X(OOM, "oom")                                                                                                        \
  X(PEAK, "peak")                                                                                                      \
  X(END, "end")                                                                                                        \
  X(EVENT, "event")

typedef enum weir_offline_moment {
#define X(name, text) WEIR_OFFLINE_AT_##name,
  WEIR_OFFLINE_MOMENT_MAP(X)
#undef X
      WEIR_OFFLINE_MOMENTS
} weir_offline_moment;

typedef struct weir_offline_plot_options {
  size_t size; /* sizeof(weir_offline_plot_options) */
  weir_offline_plot kind;
  weir_offline_group by;
  weir_offline_moment at; /* of the map of segments */
  uint64_t event;         /* WEIR_OFFLINE_AT_EVENT: after which */
  int device;             /* -1 by default */
  int width, height;      /* in pixels; 0 for 1200 and 640, otherwise 480 x 320 to 10000 x 10000 */
  int is_dark;
  const char *name;  /* of the recording, for the picture; may be NULL */
  const char *title; /* NULL for that of the kind */
} weir_offline_plot_options;

/* Sets `size` and the defaults. */
static inline void weir_offline_plot_options_init(weir_offline_plot_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->device = -1;
}

/* Draws a recording as an SVG document in UTF-8. `options` may be NULL. WEIR_ERROR_INVALID_ARGUMENT if the recording
 * does not have what is to be drawn. */
weir_status weir_offline_recording_plot(const weir_offline_recording *recording,
                                        const weir_offline_plot_options *options, weir_write_fn write, void *context);

#ifdef __cplusplus
}
#endif
#endif

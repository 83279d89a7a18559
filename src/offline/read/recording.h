/*
 * A recording in memory: what torch.cuda.memory._dump_snapshot() writes (recording_pickle.c), or what WEIR_RECORD
 * leaves behind (ring_reader.c). Texts, frames, stacks, streams and pools are interned and known by number; an event,
 * which is a history entry, takes 40 bytes.
 *
 * The schema of pickles grows with every release: unknown keys are counted and ignored, and newer keys may be missing.
 * Values of the wrong type are an error.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "inspect/write_snapshot.h"
#include "offline/read/pickle.h"
#include "record/entry.h"
#include "record/state.h"
#include "weir/snapshot.h"

#define WEIR__RECORDING_NO_POOL UINT32_MAX

enum { WEIR__RECORDING_MANY_THREADS = 127 };

/* A time that no clock can have shown is not known: differences of the others do not overflow. */
static inline int64_t weir__recording_time(int64_t us) { return us > 0 && us < INT64_MAX / 2 ? us : 0; }

typedef struct weir__recording_entry {
  uint64_t address; /* of an oom: the device's free memory */
  uint64_t size;    /* alloc, free_*: what was requested; segment_*: the segment's; oom: the request, rounded */
  int64_t time_us;  /* since 1970; 0 if not recorded, see weir__recording_time */
  uint32_t stack;   /* 0 if none was recorded */
  uint32_t remark;  /* 0 for none */
  uint32_t pool;    /* WEIR__RECORDING_NO_POOL if not recorded, as up to PyTorch 2.11 */
  uint16_t stream;
  uint8_t action : 4;         /* weir_trace_action, or WEIR__ACTION_UNKNOWN with its text in `remark` */
  uint8_t reason : 3;         /* of a segment: a weir__reason */
  uint8_t phase_begins : 1;   /* an alloc: the first of the thread since it entered its phase */
  uint8_t thread : 7;         /* from 1 on; 0 if not recorded; WEIR__RECORDING_MANY_THREADS for one of the rest */
  uint8_t is_for_request : 1; /* if has_causes: of a segment, for the next request; of a request, a cache miss */
} weir__recording_entry;

_Static_assert(sizeof(weir__recording_entry) == 40, "an event is what there are millions of");

typedef struct weir__recording_block {
  uint64_t address, size;
  uint64_t requested; /* of an inactive block: what its last user asked for */
  uint32_t stack;
  uint8_t state; /* weir_block_state */
} weir__recording_block;

typedef struct weir__recording_segment {
  uint64_t address, size;
  uint64_t allocated, active, requested; /* bytes, as the file says */
  const weir__recording_block *blocks;   /* by address */
  size_t block_count;
  uint32_t stack;
  uint32_t pool;
  int device;
  uint16_t stream;
  bool is_large;
  bool is_expandable;
} weir__recording_segment;

typedef struct weir__recording_device {
  const weir__recording_entry *events; /* the oldest first */
  size_t event_count;
  const weir__recording_segment *segments; /* in the file's order */
  size_t segment_count;
  uint64_t dropped; /* older events that did not fit into the ring, at least; 0 if there are none, or it is not known */
  uint64_t memory;  /* the device's, in bytes; 0 if not recorded */
  weir__state *start;                     /* the recorded state before the first event; NULL if there is none */
  bool lacks_start;                       /* there was something before the first event, and it is not known what */
  uint64_t peak_allocated, peak_reserved; /* with `start`: the peaks before it */
  uint64_t outside, peak_outside;         /* bytes that the process has in no allocator: at the end, and at most */
} weir__recording_device;

typedef struct weir__recording_frame {
  uint32_t name, filename; /* strings */
  int64_t line;
} weir__recording_frame;

typedef struct weir__recording_stack {
  size_t first; /* in stack_frames; the innermost */
  size_t count;
} weir__recording_stack;

typedef struct weir__recording_pool {
  int64_t id[2];
} weir__recording_pool;

/* A private pool that belongs to a tag. */
typedef struct weir__recording_tag {
  int device;
  int64_t pool[2];
  uint32_t name; /* a string */
} weir__recording_tag;

/* The texts of an event; numbers of strings. */
typedef struct weir__recording_remark {
  uint32_t compile_context; /* "N/A" for none */
  uint32_t user_metadata;   /* "" for none */
  uint32_t action;          /* the name of WEIR__ACTION_UNKNOWN; otherwise "" */
  uint32_t phase;           /* what the thread was doing; "" if not known */
} weir__recording_remark;

/* The START or the END of a range that the program marked. */
typedef struct weir__recording_annotation {
  uint32_t name, stage; /* strings */
  int device;           /* -1 if not recorded */
  int64_t time_us;
  size_t first_pair, pair_count; /* other keys and values of the program */
} weir__recording_annotation;

typedef weir__text_pair weir__recording_pair;

/* Work that a device executed: an annotation whose stage is WEIR__STAGE_WORK. */
typedef struct weir__recording_work {
  weir__recording_annotation annotation; /* its name is that of the kernel, or of the kind of copy */
  uint32_t kind;                         /* a string: "kernel", "copy", "fill" or "host" */
  uint64_t stream;                       /* the raw handle */
  int64_t start_ns;                      /* Unix time */
  uint64_t duration_ns, bytes;
} weir__recording_work;

/* A change of settings or of a limit by the program. The last ones before the first event of a device are included. */
typedef struct weir__recording_change {
  int device;
  size_t event;     /* of the device, from which on it is in force */
  const char *conf; /* all settings, in the syntax of WEIR_ALLOC_CONF; NULL for a limit */
  uint64_t limit;   /* bytes that may be reserved; UINT64_MAX for all */
  double fraction;  /* of the device's memory as which the limit was set; 0 if in bytes, or not known */
} weir__recording_change;

/* A request whose block was taken before other threads did something: see record/operations.h. */
typedef struct weir__recording_early {
  int device;
  size_t event, request;
} weir__recording_early;

typedef weir__snapshot_setting weir__recording_setting;

typedef struct weir__recording_ignored {
  const char *where; /* "event", "segment", ... */
  const char *key;
  uint64_t count;
} weir__recording_ignored;

/* Immutable once it is loaded: any number of threads may read it. */
typedef struct weir__recording {
  weir__recording_device *devices; /* by number */
  size_t device_count;
  weir__recording_device host; /* pinned host memory: its segments have device -1 */
  bool has_host;               /* the file has host_segments or host_traces, even if they are empty */
  bool has_history;            /* the file has device_traces, even if they are empty */
  bool is_events_only;         /* without a list of segments: a recording of WEIR_RECORD */
  bool is_cut_off;             /* the process did not close it: the last operation of each thread may be incomplete */
  bool was_killed;             /* that, and the process did not exit by itself */
  int64_t rank;                /* of the process in its job; -1 if not recorded */
  int64_t pid;                 /* of the process; 0 if not recorded */
  char host_name[64];          /* "" if not recorded */
  bool has_causes;             /* segment events say whether they were for a request, and all events have a thread */

  weir__recording_setting *settings;
  size_t setting_count;
  const char *conf; /* the last text of the settings, PYTORCH_CUDA_ALLOC_CONF; NULL if not recorded */

  weir__recording_annotation *annotations; /* in the order of time */
  size_t annotation_count;
  weir__recording_pair *pairs;
  size_t pair_count;
  weir__recording_work *works; /* in the order of their ends */
  size_t work_count;

  weir__recording_change *changes; /* by device, in their order; only in recordings of WEIR_RECORD */
  size_t change_count;

  weir__recording_tag *tags; /* in the order in which the pools were made; only in recordings of WEIR_RECORD */
  size_t tag_count;

  weir__recording_early *early; /* as changes */
  size_t early_count;

  int64_t *streams; /* the raw handle of each stream; [0] is 0, the default stream */
  size_t stream_count;
  weir__recording_pool *pools; /* [0] is (0, 0), the default pool */
  size_t pool_count;
  weir__recording_remark *remarks; /* [0] has no texts */
  size_t remark_count;
  weir__recording_frame *frames;
  size_t frame_count;
  weir__recording_stack *stacks; /* [0] is empty */
  size_t stack_count;
  uint32_t *stack_frames;
  weir__strings strings;

  weir__recording_ignored *ignored; /* the first of the keys that were ignored */
  size_t ignored_count;

  /* The arrays that devices and segments point into. */
  weir__recording_entry *events;
  size_t event_count; /* of all devices */
  weir__recording_segment *segments;
  size_t segment_count;
  weir__recording_segment *host_segments;
  weir__recording_block *blocks;
  size_t block_count; /* of all devices and of the host */
} weir__recording;

/* The name of the tag that a pool of a device belongs to; NULL if it has none. */
const char *weir__recording_tag_of(const weir__recording *recording, int device, const int64_t pool[2]);

typedef weir__pickle_limits weir__recording_limits;

/* Reads a file, a pipe or, for "-", the standard input, plain or compressed. `limits` may be NULL for the defaults. */
weir_status weir__recording_load(const char *path, const weir__recording_limits *limits, weir__recording **recording);

/* Reads the contents of a file from memory, plain or compressed; errors call it `name`. */
weir_status weir__recording_load_memory(const char *name, const void *bytes, size_t size,
                                        const weir__recording_limits *limits, weir__recording **recording);

/* Reads an input, and closes it. */
weir_status weir__recording_load_input(weir__input *input, const weir__recording_limits *limits,
                                       weir__recording **recording);

/* Reads a pickle from an input, which the caller closes. */
weir_status weir__recording_read(weir__input *source, const weir__recording_limits *limits,
                                 weir__recording **recording);

/* WEIR_ERROR_BAD_DATA if a recording is out of all proportion to its file of `bytes` bytes: stacks and texts are stored
 * once, but walked and written with every event that has them. */
weir_status weir__recording_check_size(const weir__recording *recording, const char *name, uint64_t bytes);

void weir__recording_free(weir__recording *recording);

/* The value of a key of an annotation, NULL if it has none. Not for name and stage. */
const char *weir__recording_pair_of(const weir__recording *recording, const weir__recording_annotation *annotation,
                                    const char *key);

/* Whether an annotation is work, which is written to *work then. For a reader, whose recording has no strings yet. */
bool weir__recording_work_of(const weir__strings *strings, const weir__recording_pair *pairs,
                             const weir__recording_annotation *annotation, weir__recording_work *work);

/* NULL if the recording does not have it. `sub` is NULL for a plain setting. */
const weir__recording_setting *weir__recording_find_setting(const weir__recording *recording, const char *key,
                                                            const char *sub);

/* The device that is shown by default: the first on which a request failed, or else that has a history, or else
 * segments. 0 if there is none. */
int weir__recording_first_device(const weir__recording *recording);

/* Fails if the recording does not have the device. `file` is the name for the message, or NULL. */
weir_status weir__recording_check_device(const weir__recording *recording, const char *file, int device);

/* Replaces surrogates by U+FFFD and NUL by "?" in all texts, in place. Call it before an export: other programs accept
 * neither. */
void weir__recording_clean_texts(weir__recording *recording);

/* Reads the list of segments at the end of a recording. */
weir_status weir__state_of_file(const weir__recording *recording, const weir__recording_device *device,
                                weir__state *state);

/* Finds the event that allocated each active block, going back from event `last`. Addresses must be the history's. */
void weir__state_find_events(weir__state *state, const weir__recording_entry *events, size_t last);

/* Takes the stacks of active blocks that no event allocated from the same blocks in another state. */
void weir__state_take_stacks(weir__state *state, const weir__state *from);

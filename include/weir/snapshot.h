/*
 * The state of an allocator: snapshots, counters by name, and summaries as text.
 *
 * Counters are cheap: reading them walks the streams, not the blocks. Taking a snapshot walks all blocks; allocations
 * of the device wait while they are copied.
 */
#ifndef WEIR_SNAPSHOT_H
#define WEIR_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "weir/alloc.h"
#include "weir/output.h"
#include "weir/pool.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Snapshots ---- */

/* The state of each device of an allocator at one moment. It is a copy, which may outlive the allocator, and any
 * number of threads may read it. */
typedef struct weir_snapshot weir_snapshot;
typedef struct weir_host_allocator weir_host_allocator; /* of weir/host.h */

typedef struct weir_snapshot_options {
  size_t size;       /* sizeof(weir_snapshot_options) */
  int device;        /* the device; -1, the default, means all */
  int traces;        /* 1, the default: with the history; 0: without */
  weir_pool_id pool; /* segments of this private pool only; {0, 0}, the default, means all */
} weir_snapshot_options;

/* Sets `size` and the defaults. */
static inline void weir_snapshot_options_init(weir_snapshot_options *options) {
  if (!options)
    return;
  WEIR__INIT(options);
  options->device = -1;
  options->traces = 1;
}

/* NULL options are the defaults. */
weir_status weir_snapshot_take(weir_allocator *allocator, const weir_snapshot_options *options,
                               weir_snapshot **snapshot);

/* Adds the blocks of pinned memory that `host` has now: files of the snapshot list each as a segment of device -1,
 * under "host_segments". They replace those of an earlier call. */
weir_status weir_snapshot_add_host(weir_snapshot *snapshot, weir_host_allocator *host);

/* NULL is allowed. */
void weir_snapshot_destroy(weir_snapshot *snapshot);

/* The states of blocks: name, text in snapshots. */
#define WEIR_BLOCK_STATE_MAP(X)                                                                                        \
  X(INACTIVE, "inactive")                       /* free */                                                             \
  X(ACTIVE_ALLOCATED, "active_allocated")       /* allocated by the program */                                         \
  X(ACTIVE_PENDING_FREE, "active_pending_free") /* freed by the program, and still in use by another stream */

typedef enum weir_block_state {
#define X(name, text) WEIR_BLOCK_##name,
  WEIR_BLOCK_STATE_MAP(X)
#undef X
      WEIR_BLOCK_STATES
} weir_block_state;

/* "inactive" and so on; "unknown" for any other number. */
const char *weir_block_state_name(weir_block_state state);

typedef struct weir_snapshot_block {
  size_t size; /* the distance to the next block */
  uint64_t address, bytes;
  uint64_t requested; /* by the program; 0 if the block is not active */
  uint32_t stack;     /* number of a recorded stack, or 0 */
  uint32_t state;     /* weir_block_state */
} weir_snapshot_block;

/* Sets `size` and makes the rest zero. */
static inline void weir_snapshot_block_init(weir_snapshot_block *block) { WEIR__INIT(block); }

/* A segment: one allocation of the driver, or a run of mapped pages of an expandable segment. */
typedef struct weir_snapshot_segment {
  size_t size; /* the distance to the next segment */
  uint64_t address, bytes;
  uint64_t allocated, active;        /* bytes of such blocks; allocated ones are active too */
  uint64_t requested;                /* bytes that were requested for active blocks */
  const weir_snapshot_block *blocks; /* by address, without gaps: see weir_snapshot_block_at */
  size_t block_count;
  weir_cu_stream stream;
  weir_pool_id pool; /* {0, 0}: the default pool */
  int device;
  uint32_t stack; /* number of the stack of its allocation, or 0 */
  int is_large;
  int is_expandable;
} weir_snapshot_segment;

/* Sets `size` and makes the rest zero. */
static inline void weir_snapshot_segment_init(weir_snapshot_segment *segment) { WEIR__INIT(segment); }

/* The segments by device, then by address. The array belongs to the snapshot; see weir_snapshot_segment_at. */
weir_status weir_snapshot_segments(const weir_snapshot *snapshot, const weir_snapshot_segment **segments,
                                   size_t *count);

/* One element of that array, by its index; NULL if there is no array. */
static inline const weir_snapshot_segment *weir_snapshot_segment_at(const weir_snapshot_segment *segments,
                                                                    size_t index) {
  return !segments ? NULL : (const weir_snapshot_segment *)((const char *)segments + index * segments->size);
}

/* One block of a segment, by its index; NULL if there is no segment. */
static inline const weir_snapshot_block *weir_snapshot_block_at(const weir_snapshot_segment *segment, size_t index) {
  if (!segment || !segment->blocks)
    return NULL;
  return (const weir_snapshot_block *)((const char *)segment->blocks + index * segment->blocks->size);
}

/* The number of entries of a device's history, and of older entries that were dropped for lack of room. */
weir_status weir_snapshot_entries(const weir_snapshot *snapshot, int device, uint64_t *count, uint64_t *dropped);

typedef struct weir_snapshot_entry {
  size_t size; /* sizeof(weir_snapshot_entry), set by the caller */
  weir_trace_action action;
  uint32_t stack;   /* number of a recorded stack, or 0 */
  uint64_t address; /* for an OOM, the device's free memory */
  uint64_t bytes;   /* for alloc and free, as requested */
  int64_t time_us;  /* since 1970 */
  weir_cu_stream stream;
  weir_pool_id pool;
  const char *phase, *compile_context, *user_metadata; /* of the snapshot, and gone with it; "" for none, but "N/A" of
                                                          compile_context */
} weir_snapshot_entry;

/* Sets `size` and makes the rest zero, for weir_snapshot_entry_at. */
static inline void weir_snapshot_entry_init(weir_snapshot_entry *entry) { WEIR__INIT(entry); }

/* One entry of a device by index, the oldest first. */
weir_status weir_snapshot_entry_at(const weir_snapshot *snapshot, int device, uint64_t index,
                                   weir_snapshot_entry *entry);

/* The annotations of the program, in order of time. */
typedef struct weir_snapshot_annotation {
  size_t size; /* sizeof(weir_snapshot_annotation), set by the caller */
  int device;
  int64_t time_us;
  size_t pair_count;
} weir_snapshot_annotation;

/* Sets `size` and makes the rest zero, for weir_snapshot_annotation_at. */
static inline void weir_snapshot_annotation_init(weir_snapshot_annotation *annotation) { WEIR__INIT(annotation); }
/* The number of annotations, and one of them by index. */
weir_status weir_snapshot_annotations(const weir_snapshot *snapshot, size_t *count);
weir_status weir_snapshot_annotation_at(const weir_snapshot *snapshot, size_t index,
                                        weir_snapshot_annotation *annotation);

/* One pair of an annotation. The texts belong to the snapshot. */
weir_status weir_snapshot_annotation_pair(const weir_snapshot *snapshot, size_t index, size_t pair, const char **key,
                                          const char **value);

typedef enum weir_snapshot_format {
  WEIR_SNAPSHOT_PICKLE, /* protocol 2, as torch.cuda.memory._dump_snapshot() writes it */
  WEIR_SNAPSHOT_JSON    /* the same dictionaries and lists; tuples become lists */
} weir_snapshot_format;

/* Writes the snapshot in one pass, with memory that does not depend on the number of entries. Addresses of native
 * frames become names here. WEIR_ERROR_SYSTEM if writing fails. */
weir_status weir_snapshot_write(const weir_snapshot *snapshot, weir_snapshot_format format, weir_write_fn write,
                                void *context);

/* Writes it to a path. A regular file is replaced when the new one is complete, and keeps its permissions. Symbolic
 * links are followed. Devices, FIFOs and descriptors (/dev/stdout) are written directly. */
weir_status weir_snapshot_save(const weir_snapshot *snapshot, weir_snapshot_format format, const char *path);

/* ---- Counters by name ---- */

/* The names are those of torch.cuda.memory_stats(): "num_ooms", "oversize_segments.peak",
 * "allocated_bytes.all.current". weir_stats_name returns them in order, and NULL past the end. */
const char *weir_stats_name(size_t index);

/* WEIR_ERROR_INVALID_ARGUMENT for an unknown name, or one that the caller's version of weir_allocator_stats lacks. */
weir_status weir_stats_value(const weir_allocator_stats *stats, const char *name, int64_t *value);

/* One value of a device. Private pools have names too: "reserved_bytes_by_private_pools.0_1.all.current" is of pool
 * {0, 1}. To read several, call weir_allocator_get_stats once and weir_stats_value for each. */
weir_status weir_allocator_stat(weir_allocator *allocator, int device, const char *name, int64_t *value);

typedef enum weir_stats_form {
  WEIR_STATS_NESTED, /* {"allocated_bytes": {"all": {"current": 1, ... */
  WEIR_STATS_FLAT    /* {"allocated_bytes.all.current": 1, ... */
} weir_stats_form;

/* Writes all counters as JSON, including those of private pools. */
weir_status weir_allocator_write_stats(weir_allocator *allocator, int device, weir_stats_form form, weir_write_fn write,
                                       void *context);

/* ---- Memory outside of allocators ---- */

/* Memory of a device that no allocator of Weir has, such as that of a communicator (weir/compute/nccl.h). */
typedef struct weir_outside_memory {
  size_t size;       /* sizeof(weir_outside_memory) */
  const char *owner; /* "NCCL communicator 1, rank 0 of 8" */
  uint64_t bytes;
  int is_exact; /* 0 if it is an estimate */
} weir_outside_memory;

/* Sets `size` and makes the rest zero. */
static inline void weir_outside_memory_init(weir_outside_memory *memory) { WEIR__INIT(memory); }

/* Receives one piece of such memory; it and its owner are valid during the call. */
typedef void (*weir_outside_memory_fn)(void *context, const weir_outside_memory *memory);

/* Reports the memory of a device: calls report(report_context, ...) for each piece. It must not call allocators. */
typedef void (*weir_outside_reporter_fn)(void *context, int device, weir_outside_memory_fn report,
                                         void *report_context);

/* Adds a function that knows of such memory; again is no error. */
weir_status weir_outside_memory_add(weir_outside_reporter_fn reporter, void *context);

/* Removes it. A call of it in another thread may still be running when this returns. WEIR_ERROR_INVALID_ARGUMENT if it
 * was not added. */
weir_status weir_outside_memory_remove(weir_outside_reporter_fn reporter, void *context);

/* What all functions report for a device now. */
weir_status weir_outside_memory_visit(int device, weir_outside_memory_fn visit, void *context);

/* Writes to the recording of WEIR_RECORD how many bytes of a device the process has outside of allocators now; their
 * peak is kept. Does nothing without such a recording. */
weir_status weir_outside_memory_record(weir_allocator *allocator, int device, uint64_t bytes);

/* ---- Summaries ---- */

typedef enum weir_summary_form {
  WEIR_SUMMARY_FULL,        /* the table of torch.cuda.memory_summary() */
  WEIR_SUMMARY_ABBREVIATED, /* without the lines of the small and the large pool */
  WEIR_SUMMARY_LINE         /* one line for a log, without a newline */
} weir_summary_form;

/* *length may be more than fits into the text (weir/weir.h). */
weir_status weir_stats_summary(const weir_allocator_stats *stats, int device, weir_summary_form form, char *text,
                               size_t size, size_t *length);

/* The same for the present state of a device. Memory outside of allocators has a line for each owner, except in the
 * form of one line. */
weir_status weir_allocator_summary(weir_allocator *allocator, int device, weir_summary_form form, char *text,
                                   size_t size, size_t *length);

/* The processes that have memory of a device, in the format of torch.cuda.list_gpu_processes(). It needs NVIDIA's
 * management library: otherwise, and for other devices, WEIR_ERROR_NOT_SUPPORTED. */
weir_status weir_allocator_processes(weir_allocator *allocator, int device, char *text, size_t size, size_t *length);

#ifdef __cplusplus
}
#endif
#endif

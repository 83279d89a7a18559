/*
 * Where the memory is: snapshots of an allocator, its counters by name, summaries for people.
 *
 * Counters are cheap: reading all of them walks the streams, not the blocks. Taking a snapshot walks every block; the
 * device's allocations wait for the copy, and for nothing else.
 */
#ifndef WEIR_SNAPSHOT_H
#define WEIR_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "weir/alloc.h"
#include "weir/graph.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Snapshots ---- */

/* What an allocator had at one moment of each device. It is a copy: the allocator may go before it. Any number of threads may
 * read it. */
typedef struct weir_snapshot weir_snapshot;

typedef struct weir_snapshot_options {
  size_t size; /* sizeof(weir_snapshot_options) */
  int device;  /* only this one; -1, the default: all */
  int traces;  /* 0: without what was recorded; 1, the default: with it */
  weir_pool_id
      pool; /* only the segments of this private pool, none if there is no such pool; {0, 0}, the default: all */
} weir_snapshot_options;

void weir_snapshot_options_init(weir_snapshot_options *options);

/* options NULL: the defaults. */
weir_status weir_snapshot_take(weir_allocator *allocator, const weir_snapshot_options *options,
                               weir_snapshot **snapshot);

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
  uint64_t address, bytes;
  uint64_t requested; /* what the program asked for; 0: the block is not active */
  uint32_t stack;     /* number of a recorded stack; 0: none */
  uint32_t state;     /* weir_block_state */
} weir_snapshot_block;

/* Memory of the driver's: one allocation of it, or a run of mapped pages of an expandable segment. */
typedef struct weir_snapshot_segment {
  uint64_t address, bytes;
  uint64_t allocated, active;        /* bytes of blocks in these states; allocated ones are active too */
  uint64_t requested;                /* what was asked for of the active ones */
  const weir_snapshot_block *blocks; /* by address; they cover it, without a gap */
  size_t block_count;
  weir_cu_stream stream;
  weir_pool_id pool; /* {0, 0}: the default pool */
  int device;
  uint32_t stack; /* number of the stack that it was allocated in; 0: none */
  int is_large;
  int is_expandable;
} weir_snapshot_segment;

/* By device, then address. The array belongs to the snapshot. */
weir_status weir_snapshot_segments(const weir_snapshot *snapshot, const weir_snapshot_segment **segments,
                                   size_t *count);

/* How many events of a device's history it has, and how many older ones were dropped because there was no room. */
weir_status weir_snapshot_events(const weir_snapshot *snapshot, int device, uint64_t *count, uint64_t *dropped);

typedef struct weir_snapshot_event {
  size_t size;      /* sizeof(weir_snapshot_event), set by the caller */
  int action;       /* weir_trace_action, or WEIR_TRACE_SNAPSHOT, _ANNOTATE or _USER_DEFINED */
  uint32_t stack;   /* number of a recorded stack; 0: none */
  uint64_t address; /* of an OOM: the device's free memory */
  uint64_t bytes;   /* of alloc and free: as requested */
  int64_t time_us;  /* since 1970 */
  weir_cu_stream stream;
  weir_pool_id pool;
  const char *phase, *compile_context, *user_metadata; /* of the snapshot, and gone with it; "" for none, but "N/A" of
                                                          compile_context */
} weir_snapshot_event;

void weir_snapshot_event_init(weir_snapshot_event *event);

/* The events of a device by number, the oldest first. */
weir_status weir_snapshot_event_at(const weir_snapshot *snapshot, int device, uint64_t index,
                                   weir_snapshot_event *event);

/* What the program annotated, in the order of time. */
typedef struct weir_snapshot_annotation {
  size_t size; /* sizeof(weir_snapshot_annotation), set by the caller */
  int device;
  int64_t time_us;
  size_t pair_count;
} weir_snapshot_annotation;

void weir_snapshot_annotation_init(weir_snapshot_annotation *annotation);
size_t weir_snapshot_annotation_count(const weir_snapshot *snapshot);
weir_status weir_snapshot_annotation_at(const weir_snapshot *snapshot, size_t index,
                                        weir_snapshot_annotation *annotation);

/* One pair of it; the texts belong to the snapshot. */
weir_status weir_snapshot_annotation_pair(const weir_snapshot *snapshot, size_t index, size_t pair, const char **key,
                                          const char **value);

typedef enum weir_snapshot_format {
  WEIR_SNAPSHOT_PICKLE, /* protocol 2, as torch.cuda.memory._dump_snapshot() would have written it */
  WEIR_SNAPSHOT_JSON    /* the same dicts and lists; a tuple is a list */
} weir_snapshot_format;

/* Writes in one go, with memory that does not depend on the number of events. Addresses of stacks become names here.
 * WEIR_ERROR_SYSTEM when the file takes no more. */
weir_status weir_snapshot_write(const weir_snapshot *snapshot, weir_snapshot_format format, FILE *file);

/* The same to a path. A regular file is replaced when the new one is complete, and keeps its permissions; symbolic links are
 * followed; devices, FIFOs and descriptors (/dev/stdout) are written straight through. */
weir_status weir_snapshot_save(const weir_snapshot *snapshot, weir_snapshot_format format, const char *path);

/* ---- Counters by name ---- */

/* The names are those of torch.cuda.memory_stats(): "num_ooms", "oversize_segments.peak",
 * "allocated_bytes.all.current". Here they are in order. Past the end: NULL. */
size_t weir_stats_count(void);
const char *weir_stats_name(size_t index);

/* WEIR_ERROR_INVALID_ARGUMENT for a name that is none, or that came after the caller's weir_allocator_stats. */
weir_status weir_stats_get(const weir_allocator_stats *stats, const char *name, int64_t *value);

/* The four values of one group: "oversize_segments", "allocated_bytes.all". */
weir_status weir_stats_get_group(const weir_allocator_stats *stats, const char *name, weir_stat *stat);

/* The ids of a device's private pools: those that are held, and those that were released and still have memory. *count
 * is how many there are, whatever there is room for. */
weir_status weir_allocator_pools(weir_allocator *allocator, int device, weir_pool_id *pools, size_t room,
                                 size_t *count);

/* One value of a device; private pools have names too: "reserved_bytes_by_private_pools.0_1.all.current" is of pool {0, 1}.
 * To read many, use weir_allocator_get_stats once, and weir_stats_get. */
weir_status weir_allocator_get_stat(weir_allocator *allocator, int device, const char *name, int64_t *value);

typedef enum weir_stats_form {
  WEIR_STATS_NESTED, /* {"allocated_bytes": {"all": {"current": 1, ... */
  WEIR_STATS_FLAT    /* {"allocated_bytes.all.current": 1, ... */
} weir_stats_form;

/* All of them as JSON, private pools included. */
weir_status weir_allocator_write_stats(weir_allocator *allocator, int device, weir_stats_form form, FILE *file);

/* ---- For people ---- */

typedef enum weir_summary_form {
  WEIR_SUMMARY_FULL,        /* the table of torch.cuda.memory_summary() */
  WEIR_SUMMARY_ABBREVIATED, /* without the lines of the small and the large pool */
  WEIR_SUMMARY_LINE         /* one line for a log, without a line end */
} weir_summary_form;

/* As snprintf: at most `size` bytes with the NUL, and the whole length comes back. text may be NULL when size is 0. */
size_t weir_stats_summary(const weir_allocator_stats *stats, int device, weir_summary_form form, char *text,
                          size_t size);

/* The same of a device as it is now. length may be NULL. */
weir_status weir_allocator_summary(weir_allocator *allocator, int device, weir_summary_form form, char *text,
                                   size_t size, size_t *length);

/* The processes that have memory of a device, as torch.cuda.list_gpu_processes() lists them; as above. NVIDIA's management
 * library is asked: WEIR_ERROR_NOT_SUPPORTED where there is none, and for devices that are not NVIDIA's. */
weir_status weir_allocator_processes(weir_allocator *allocator, int device, char *text, size_t size, size_t *length);

#ifdef __cplusplus
}
#endif
#endif

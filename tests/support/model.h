/*
 * A reference model of the caching allocator, written for clarity: plain lists that are searched linearly.
 *
 * It covers rounding, best fit, splitting and merging, fixed and expandable segments, private pools and checkpoints,
 * blocks that wait for other streams, limits, collection and the other steps when memory runs short, and every
 * statistic. It shares no code with the allocator.
 *
 * Each function models one call. The driver chooses the address of a new segment, so the call comes first, with its
 * trace recorded, and the model takes the addresses of new segments, and nothing else, from the trace:
 *
 *     model_begin(m, trace, count);
 *     weir_status status = model_alloc(m, bytes, stream, done, &address);
 *     model_end(m);    compares the rest of the trace with the model
 *
 * m->wrong describes the first difference; it is empty if there is none. Streams are numbers below MODEL_STREAMS.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "weir/alloc.h"
#include "weir/pool.h"

enum { MODEL_STREAMS = 6, MODEL_INTERVALS = 16, MODEL_SCOPES = 8 };

#define MODEL_UNLIMITED UINT64_MAX

typedef struct model_settings {
  bool expandable, throw_on_oom;
  uint64_t max_split, large_segment; /* bytes */
  uint64_t max_non_split;            /* 0 means large_segment */
  double collect_above;              /* 0: off */
  /* Address space of expandable segments as a fraction of the device's memory; 0 means 9/8. */
  double reserve;
  double rejection_fraction; /* of throw_on_oom */
  uint64_t divisions[MODEL_INTERVALS];
} model_settings;

typedef struct model_pool model_pool;
typedef struct model_block model_block;
typedef struct model_segment model_segment;

typedef enum model_state { MODEL_FREE, MODEL_ALLOCATED, MODEL_WAITING, MODEL_UNMAPPED } model_state;

struct model_block {
  uint64_t address, bytes, requested;
  model_state state;
  unsigned users;                     /* one bit for each other stream that was recorded */
  unsigned long until[MODEL_STREAMS]; /* WAITING: the position that each stream must reach; 0 if none */
  bool oversize;                      /* counted as oversize */
  uint32_t idle_since;                /* the number of searches of the pool when the block became free */
  model_segment *segment;
  model_block *previous, *next; /* neighbours */
};

struct model_segment {
  uint64_t base, bytes;
  uint64_t page; /* 0 if the segment is fixed */
  model_pool *pool;
  bool is_small, oversize;
  int stream;
  model_block *first;
  model_segment *next;
};

/* The statistics of a pool; they outlive the pool. */
typedef struct model_pool_stats {
  weir_pool_id id;
  weir_stat reserved_bytes[WEIR_STAT_KINDS];
  struct model_pool_stats *next;
} model_pool_stats;

struct model_pool {
  weir_pool_id id; /* {0, 0} is the default pool */
  int uses, scopes;
  bool is_over, use_on_oom, no_split, own_memory;
  uint32_t searches[2];    /* of large and of small blocks, counted while collection is on */
  model_pool_stats *stats; /* NULL for the default pool */
  model_pool *next;        /* newest first; without the default pool */
};

typedef struct model_scope {
  model_pool *pool;
  unsigned streams; /* one bit for each stream that the scope applies to */
} model_scope;

typedef struct model {
  model_settings settings;
  uint64_t device_bytes, used;       /* the device's memory, and the part in use */
  uint64_t own_bytes, own_used;      /* the same for memory of pools with functions of their own */
  uint64_t reserved, limit;          /* limit is MODEL_UNLIMITED initially, which disables collection */
  weir_cu_stream raw[MODEL_STREAMS]; /* the streams as the trace shows them */
  model_pool default_pool;
  model_pool *pools;
  model_pool_stats *pool_stats; /* of live and of destroyed pools */
  model_segment *segments;
  model_scope scopes[MODEL_SCOPES]; /* innermost last */
  int scope_count;
  unsigned long waiting; /* blocks */
  weir_allocator_stats stats;

  const weir_trace_entry *trace; /* of the current call */
  size_t trace_count, trace_at;  /* trace_at: where to search for the next new segment */
  weir_trace_entry *expected;
  size_t expected_count, expected_room;
  char wrong[400];
} model;

model *model_new(uint64_t device_bytes, uint64_t own_bytes);
void model_delete(model *m);

/* Describes a difference, unless one was found before. */
void model_wrong(model *m, const char *format, ...) __attribute__((format(printf, 2, 3)));

void model_begin(model *m, const weir_trace_entry *trace, size_t count);
void model_end(model *m);

uint64_t model_round(const model_settings *settings, uint64_t bytes);
uint64_t model_segment_bytes(const model_settings *settings, uint64_t bytes);

/* The address space of a new expandable segment. */
uint64_t model_reserve_bytes(const model *m, bool is_small);

/* `done` is the position of each stream before the call. Blocks that wait for later positions are not available. */
weir_status model_alloc(model *m, uint64_t bytes, int stream, const unsigned long *done, uint64_t *address);

/* `until` is the position of the events of this free on each stream. */
void model_free(model *m, uint64_t address, const unsigned long *until);
void model_record_stream(model *m, uint64_t address, int stream);
void model_empty(model *m, weir_pool_id id);
void model_set_fraction(model *m, double fraction);
uint64_t model_largest(const model *m);

/* The allocated block at an address, or NULL. */
model_block *model_find(const model *m, uint64_t address);
void model_reset_peaks(model *m);
void model_reset_accumulated(model *m);

/* Compares every number and reports the first that differs. */
void model_compare_stats(model *m, const weir_allocator_stats *stats);

/* ---- Pools ---- */

model_pool *model_pool_find(const model *m, weir_pool_id id);
model_pool_stats *model_pool_stats_find(const model *m, weir_pool_id id); /* NULL if the pool never existed */
void model_pool_create(model *m, weir_pool_id id, const weir_pool_options *options);
weir_status model_pool_release(model *m, weir_pool_id id);

/* A scope of these streams; MODEL_ALL_STREAMS is that of the thread. */
#define MODEL_ALL_STREAMS (~0u)
weir_status model_pool_begin(model *m, weir_pool_id id, unsigned streams);
weir_status model_pool_end(model *m, weir_pool_id id);

typedef struct model_piece {
  uint64_t segment, address, bytes;
  int stream;
  bool is_small, allocated;
} model_piece;

typedef struct model_checkpoint {
  weir_pool_id id;
  model_piece *pieces;
  size_t count;
} model_checkpoint;

/* *made is NULL unless the result is WEIR_OK. */
weir_status model_checkpoint_take(const model *m, weir_pool_id id, model_checkpoint **made);
void model_checkpoint_delete(model_checkpoint *checkpoint);

/* The lists have room for one entry per block. */
weir_status model_restore(model *m, const model_checkpoint *checkpoint, uint64_t *freed, size_t *freed_count,
                          uint64_t *allocated, size_t *allocated_count);
size_t model_block_count(const model *m);

/*
 * The allocator of pinned host memory.
 *
 *   host.c    the cache: blocks by size, and the public calls
 *   uses.c    blocks that were freed while a stream used them
 *   graphs.c  blocks that graphs use
 *   memory.c  memory of the driver and of the system
 *
 * `lock` guards the cache and is held for list operations only. `events_lock` guards blocks that wait for events, and
 * is held during driver calls. Lock order: events_lock, lock. Memory is obtained with neither held, and returned
 * without `lock`; blocks that waited for events are returned with events_lock held. A witness is called with `lock`
 * held.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/config/settings.h"
#include "alloc/memory/fences.h"
#include "base/biased_lock.h"
#include "base/maintain.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "base/thread.h"
#include "driver/client.h"
#include "weir/adapter.h"
#include "weir/host.h"

enum { WEIR__HOST_BUCKETS = 64, WEIR__HOST_UNIT = 4096, WEIR__HOST_RECENT = 64 };

/* A statistic that the fast path changes. It keeps the distance to the peak instead of the current value, so that an
 * allocation changes and compares one number, and derives what was freed from the rest. */
typedef struct weir__host_count {
  int64_t headroom;  /* the peak minus the current value */
  int64_t allocated; /* since the last reset */
  int64_t peak;
  int64_t base; /* the current value at that reset */
} weir__host_count;

/* A stream that uses a block. */
typedef struct weir__host_use weir__host_use;
struct weir__host_use {
  int device;
  weir_cu_stream stream;
  bool is_destroyed; /* the stream: what it did may still run. Guarded by events_lock */
  weir__host_use *next;
};

typedef enum weir__host_state {
  WEIR__HOST_FREE,
  WEIR__HOST_ALLOCATED,
  WEIR__HOST_WAITING, /* freed by the program, but still in use by a stream */
  WEIR__HOST_KEPT     /* freed, but a graph may use it */
} weir__host_state;

/* How memory was obtained, and so how it is freed. */
typedef enum weir__host_kind {
  WEIR__HOST_DRIVER,     /* by MemHostAlloc */
  WEIR__HOST_REGISTERED, /* memory of the system, pinned by MemHostRegister */
  WEIR__HOST_RESERVED    /* a part of the reserve, which is kept until the end */
} weir__host_kind;

/* Memory as it was obtained. */
typedef struct weir__host_memory {
  void *pointer; /* NULL if there is none */
  uint64_t bytes;
  uint64_t piece; /* the size of its registrations if it has several, otherwise 0 */
  weir__host_kind kind;
} weir__host_memory;

typedef struct weir__host_block weir__host_block;
struct weir__host_block {
  void *pointer;
  uint64_t bytes;
  uint64_t piece; /* as in weir__host_memory */
  uint8_t state;  /* weir__host_state; this and the following are guarded by `lock` */
  uint8_t kind;   /* weir__host_kind */
  bool captured;  /* a graph uses it whose end is not known */
  weir__host_use *uses;
  weir__host_block *next; /* in a list of free blocks, of blocks to return, or of deferred or orphaned blocks */
  unsigned events;        /* that it waits for; guarded by events_lock */
  unsigned graphs;        /* that use it and have not ended */
  uint64_t capture;       /* the last capture that is counted in graphs; captures are numbered from 1 on */
};

/* What a graph owns for a block that it uses: a user object, whose destructor adds it to `ended` of the allocator. */
typedef struct weir__host_graph weir__host_graph;
struct weir__host_graph {
  weir_host_allocator *host; /* the struct outlives the allocator while a graph has one of these */
  weir__host_block *block;   /* NULL if the graph did not get it */
  weir__host_graph *next;
};

typedef struct weir__host_device {
  weir_cu_context context; /* NULL until it is retained; guarded by context_lock */
  weir__fences events;     /* that freed blocks wait for; guarded by events_lock */
} weir__host_device;

struct weir_host_allocator {
  weir__biased_lock lock; /* guards everything down to the statistics */
  uint64_t fast_limit;    /* sizes up to this one are rounded up, and then still cached; follows from `settings`, and
                           * is 0 while there is a witness */
  weir__host_count active_requests, active_bytes;
  weir__host_block *free[WEIR__HOST_BUCKETS]; /* by the rounded-up logarithm of the size; most recently freed first */
  /* Blocks that a free can return to the cache without a search or another check: they are allocated, no stream uses
   * them, and they are not too large to be cached. The one that was allocated last, or NULL, and earlier ones by a hash
   * of their addresses. A free of the last one need not wait until the hash is known. */
  weir__host_block *last;
  weir__host_block *recent[WEIR__HOST_RECENT];
  weir__settings settings;
  weir__rangemap blocks; /* all blocks by address */
  weir__slab block_slab, use_slab;
  weir_host_stats stats; /* but for active_requests and active_bytes */

  weir_driver *driver;
  int device_count;
  weir__host_device *devices;
  weir__mutex context_lock;

  weir__mutex reserve_lock;  /* guards the reserve */
  weir__host_memory reserve; /* empty if there is none, or until it is allocated */
  uint64_t reserve_used;

  atomic_size_t pending;      /* events, deferred blocks, and graphs that have ended */
  weir__mutex events_lock;    /* guards the following */
  weir__host_block *deferred; /* freed, but without an event for each use */
  weir__host_block *orphaned; /* freed, and the streams of all uses that are left were destroyed; not in `pending` */
  weir__task task;            /* polls events; added on first use */
  atomic_bool has_task;       /* allocations then do not poll; also read without the lock */
  _Atomic(weir__host_graph *) ended; /* uses of graphs that have ended; destructors add to this list without a lock */
  atomic_size_t references;          /* to this struct: the allocator, and each weir__host_graph */
  weir__client client;
  weir_witness_fn witness; /* NULL if there is none; it and its context are guarded by `lock` */
  void *witness_context;
  bool is_forked; /* it belongs to the parent of this process; written in the child of a fork, before fork returns */
};

/* ---- The cache (host.c) ---- */

typedef struct weir__host_item {
  uint64_t address, bytes;
  weir__host_state state;
} weir__host_item;

/* The number of all blocks, and the first `room` of them by address, at one moment. */
size_t weir__host_list(weir_host_allocator *host, weir__host_item *items, size_t room);

/* Makes a block free that no stream uses any more. `lock` is not held, and captures are relaxed. */
void weir__host_block_done(weir_host_allocator *host, weir__host_block *block);

/* ---- Streams (uses.c) ---- */

/* Frees a block that streams use once they have passed their events. */
void weir__host_free_later(weir_host_allocator *host, weir__host_block *block);

/* Frees blocks whose events have completed. If another thread is polling, returns at once or, with `wait`, after it. */
void weir__host_poll(weir_host_allocator *host, bool wait);

/* Frees blocks that streams used which were destroyed. Waits for their devices, so no stream of these may capture. */
void weir__host_reclaim_orphans(weir_host_allocator *host);

void weir__host_events_end(weir_host_allocator *host);

/* ---- Graphs (graphs.c) ---- */

/* Keeps a block until the graph that uses it has ended, or until the allocator ends if the driver cannot report that.
 * The use is counted in block->graphs already. */
void weir__host_tie(weir_host_allocator *host, weir__host_block *block, int device, weir_cu_graph graph);

/* Takes the list of uses that have ended, for the caller to free. NULL if there are none. */
weir__host_graph *weir__host_take_ended(weir_host_allocator *host);

/* Frees the struct with the last reference. */
void weir__host_unref(weir_host_allocator *host);

/* ---- Memory (memory.c). No lock is held ---- */

/* Obtains memory for a block from the driver. */
weir_cu_result weir__host_get(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes,
                              weir__host_memory *memory);
weir_cu_result weir__host_give(weir_host_allocator *host, const weir__host_memory *memory);

/* Cuts memory from the reserve, which is allocated on first use. NULL if there is no reserve, or if it is used up. */
void *weir__host_reserved(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes);

/* Makes a context current in which host memory can be managed: that of `device` or, with -1, the thread's own if it has
 * one, else that of any device. Captures are relaxed until weir__host_leave. */
typedef struct weir__host_visit {
  weir_cu_context previous;
  bool changed;
  int mode; /* capture mode of the thread, which is relaxed meanwhile */
} weir__host_visit;
weir_cu_result weir__host_enter(weir_host_allocator *host, int device, weir__host_visit *visit);
void weir__host_leave(weir_host_allocator *host, const weir__host_visit *visit);

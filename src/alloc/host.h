/*
 * Pinned host memory, inside.
 *
 *   host.c         the cache: blocks by size, the calls
 *   host_events.c  blocks that were freed while a stream uses them
 *   host_memory.c  what the driver and the system are asked for
 *
 * There are two locks: `lock` guards the cache, for as long as a list takes; `events_lock` guards what waits, and is held while
 * the driver is asked. Who takes both takes events_lock first. Memory comes and goes with neither held.
 */
#ifndef WEIR_ALLOC_HOST_H
#define WEIR_ALLOC_HOST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/event_queue.h"
#include "alloc/settings.h"
#include "base/lock.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "base/thread.h"
#include "driver/client.h"
#include "weir/host.h"

enum { WEIR__HOST_BUCKETS = 64, WEIR__HOST_UNIT = 4096 };

/* A stream that uses a block. */
typedef struct weir__host_use weir__host_use;
struct weir__host_use {
  int device;
  weir_cu_stream stream;
  weir__host_use *next;
};

typedef enum weir__host_state {
  WEIR__HOST_FREE,
  WEIR__HOST_ALLOCATED,
  WEIR__HOST_WAITING, /* freed by its owner, and still in use by a stream */
  WEIR__HOST_KEPT     /* freed, and never used again: a graph has it */
} weir__host_state;

/* How memory was got, and how it goes back. */
typedef enum weir__host_kind {
  WEIR__HOST_DRIVER,     /* MemHostAlloc */
  WEIR__HOST_REGISTERED, /* the system's, and MemHostRegister */
  WEIR__HOST_RESERVED    /* a part of the reserve: it stays */
} weir__host_kind;

typedef struct weir__host_block weir__host_block;
struct weir__host_block {
  void *pointer;
  uint64_t bytes;
  uint8_t state; /* weir__host_state; guarded by `lock`, as what follows */
  uint8_t kind;  /* weir__host_kind */
  bool captured; /* a stream that captures was recorded */
  weir__host_use *uses;
  weir__host_block *next; /* in a list: free ones, those that go, those that are deferred */
  unsigned events;        /* that it waits for; guarded by events_lock */
};

typedef struct weir__host_device {
  weir_cu_context context;   /* NULL until it is retained; guarded by context_lock */
  weir__event_queues events; /* that freed blocks wait for; guarded by events_lock */
} weir__host_device;

struct weir_host_allocator {
  weir_driver *driver;
  int device_count;
  weir__host_device *devices;
  weir__mutex context_lock;

  weir__lock lock; /* of all down to the statistics */
  weir__settings settings;
  weir__rangemap blocks;                      /* all of them, by address */
  weir__host_block *free[WEIR__HOST_BUCKETS]; /* by the logarithm of the size, rounded up; the last one freed first */
  weir__slab block_slab, use_slab;
  weir_host_stats stats;

  weir__mutex reserve_lock; /* of the reserve */
  char *reserve;            /* NULL: none, or not taken yet */
  uint64_t reserve_bytes, reserve_used;
  weir__host_kind reserve_kind;

  atomic_size_t pending;      /* events and deferred blocks */
  weir__mutex events_lock;    /* of what follows */
  weir__host_block *deferred; /* freed, and without an event for each of their uses */
  weir__thread_id thread;     /* looks after events, once it was wanted */
  atomic_bool has_thread;     /* then allocations do not; also read without the lock */
  bool thread_ends;
  weir__cond thread_wakes;
  weir__client client;
  bool is_forked; /* it belongs to the parent of this process; written in the child of a fork, before fork returns */
};

/* ---- The cache (host.c) ---- */

/* No stream uses the block any more: it is free. Neither `lock` is held nor a capture forbids anything. */
void weir__host_block_done(weir_host_allocator *host, weir__host_block *block);

/* ---- Streams (host_events.c) ---- */

/* The block was freed, and has uses. */
void weir__host_free_later(weir_host_allocator *host, weir__host_block *block);

/* Blocks whose events are done become free. With `wait` somebody else who does it is waited for. */
void weir__host_poll(weir_host_allocator *host, bool wait);

void weir__host_events_end(weir_host_allocator *host);

/* ---- Memory (host_memory.c). No lock is held ---- */

/* A piece of the driver's memory for a block; kind comes out. */
weir_cu_result weir__host_get(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes, void **pointer,
                              weir__host_kind *kind);
weir_cu_result weir__host_give(weir_host_allocator *host, void *pointer, weir__host_kind kind);

/* A piece of the reserve, which is taken when it is first wanted. NULL: there is none, or it is used up. */
void *weir__host_reserved(weir_host_allocator *host, const weir__settings *settings, uint64_t bytes);

/* The thread gets a context in which host memory can be dealt with: its own, or that of a device that has one. device -1: any. */
typedef struct weir__host_visit {
  weir_cu_context previous;
  bool changed;
  int mode; /* of captures, which are relaxed meanwhile */
} weir__host_visit;
weir_cu_result weir__host_enter(weir_host_allocator *host, int device, weir__host_visit *visit);
void weir__host_leave(weir_host_allocator *host, const weir__host_visit *visit);

#endif

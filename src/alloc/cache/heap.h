/*
 * The allocator's data structures, the order of their locks, and the small functions of the fast path.
 *
 *   allocator            one driver, one set of settings
 *     heap               one device: its account, its statistics, its events
 *       pool             small or large blocks, of the default pool or of a private one
 *         arena          a pool's blocks of one stream: the unit that is searched and locked
 *           segment      memory obtained from the driver in one go, or a reservation into which pages are mapped
 *             block      a piece of a segment
 *
 * Neighbouring blocks belong to one segment and so to one arena: splitting and merging need the arena's lock alone, and
 * a cached allocation takes no other. Whatever goes beyond an arena (growing, collecting, limits, pools, events) takes
 * the heap's lock first.
 *
 * Lock order: configure_lock, ipc_lock, heap, arena, accounts. segments_lock (of the map of segments), the lock of
 * scopes and the back end's lock are leaves: no other lock is acquired while they are held.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "alloc/cache/block.h"
#include "alloc/cache/index.h"
#include "alloc/cache/pagemap.h"
#include "alloc/config/settings.h"
#include "alloc/memory/account.h"
#include "alloc/memory/apart.h"
#include "alloc/memory/fences.h"
#include "alloc/memory/pages.h"
#include "alloc/memory/retire.h"
#include "base/base.h"
#include "base/biased_lock.h"
#include "base/lock.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "base/thread.h"
#include "driver/client.h"
#include "record/recorder.h"
#include "weir/adapter.h"
#include "weir/alloc.h"
#include "weir/tag.h"

#define WEIR__MIB (1024ull * 1024)
#define WEIR__MAX_BYTES (1ull << 60) /* requests of this size and above are refused */

enum {
  WEIR__SMALL_MAX = 1024 * 1024,         /* the largest request that the small pool serves */
  WEIR__SMALL_SEGMENT = 2 * 1024 * 1024, /* size of the small pool's segments */
  WEIR__LARGE_MIN = 10 * 1024 * 1024,    /* requests from here on get a segment of their own size */
  WEIR__ROUND_LARGE = 2 * 1024 * 1024,   /* ... rounded up to a multiple of this */
  WEIR__ARENA_BUCKETS_LOG = 6,
  WEIR__ARENA_BUCKETS = 1 << WEIR__ARENA_BUCKETS_LOG,
  WEIR__MAX_OBSERVERS = 16
};

typedef struct weir__heap weir__heap;
typedef struct weir__pool weir__pool;
typedef struct weir__arena weir__arena;
typedef struct weir__segment weir__segment;
typedef struct weir__private_pool weir__private_pool;
typedef struct weir__backend_port weir__backend_port;
typedef struct weir__guard_port weir__guard_port;
typedef struct weir__kept weir__kept;
typedef struct weir__sleeper weir__sleeper;

/* What a pool obtains memory by (growth.h). */
typedef enum weir__growth_kind {
  WEIR__GROWTH_BY_SETTINGS, /* of a pool whose options do not say */
  WEIR__GROWTH_PROVIDED,    /* segments of the pool's own functions, or of a back end */
  WEIR__GROWTH_FIXED,       /* segments that are one allocation of the driver each */
  WEIR__GROWTH_EXPANDABLE,  /* pages at the end of a reservation, and in its holes */
  WEIR__GROWTH_MOVING,      /* the same, with pages that the pool has elsewhere where it can */
  WEIR__GROWTH_APART        /* segments of one block each, at the end of pages of its own */
} weir__growth_kind;

/* A stream, other than its own, that uses a block. */
typedef struct weir__use weir__use;
struct weir__use {
  weir_cu_stream stream;
  unsigned long long capture; /* that the stream was in when the use was recorded; 0 if none (capture_reuse.c) */
  weir__use *next;
};

/* What an operation adds to the count of split free blocks: free blocks with neighbours in use. */
typedef struct weir__split_change {
  int64_t splits, bytes;
} weir__split_change;

/* The most recent allocation of an arena, while nothing else has happened there. When its block is freed at once, the
 * block stays as it is, because the next request of that size would get the same block back. So a loop that allocates
 * and frees does not split and merge each time. weir__arena_flush completes such a free. */
typedef struct weir__last_alloc {
  weir__block *block;             /* NULL if something else has happened since */
  const weir__settings *settings; /* under which it was chosen */
  uint64_t bytes;                 /* rounded size of the request */
  weir__split_change change;      /* caused by the allocation */
  bool is_free; /* it was freed: its state is free, but it is still a live block, outside of the index */
} weir__last_alloc;

struct weir__arena {
  /* What lookups of other arenas in the same bucket read: its cache line is not written while the lock is biased. */
  weir__biased_lock lock;
  weir_cu_stream stream;
  _Atomic(weir__arena *) next; /* in a bucket of the pool */
  weir__pool *pool;
  _Atomic(weir__arena *) after; /* the arena of the pool with the next higher stream */
  int segments;                 /* of this arena; guarded by the heap's lock */
  weir__last_alloc last_alloc;  /* this and the following are guarded by the lock */
  weir__live live;              /* active blocks by address */
  weir__slab blocks;
  weir__arena_account account;
  weir__index free;   /* free blocks */
  weir__ref unmapped; /* tree of address space without memory, by address */
  weir__slab uses;
  weir__writer *writer; /* its part of the recording; NULL until something is recorded */
};

_Static_assert(sizeof(void *) < 8 ||
                   (offsetof(struct weir__arena, next) < 64 && offsetof(struct weir__arena, pool) >= 64),
               "lookups of other arenas read the first cache line only");

struct weir__pool {
  weir__heap *heap;
  weir__account *account; /* of the small and the large pool together */
  bool is_small;
  weir__private_pool *owner;                           /* NULL for the default pool */
  atomic_uint searches;                                /* the clock of block ages; counts only while collection is on */
  _Atomic(weir__arena *) arenas;                       /* ordered by stream */
  _Atomic(weir__arena *) buckets[WEIR__ARENA_BUCKETS]; /* arenas by a hash of the stream */
};

/* Both pools that serve requests, by name and in order. */
#define WEIR__POOLS                                                                                                    \
  union {                                                                                                              \
    struct {                                                                                                           \
      weir__pool small, large;                                                                                         \
    };                                                                                                                 \
    weir__pool pools[2];                                                                                               \
  }

struct weir__private_pool {
  weir_pool_id id;
  weir_tag *tag;    /* in whose scope it was created; NULL if there was none */
  int uses;         /* graphs, scopes and owners that hold it; guarded by the heap's lock, as everything below */
  int segments;     /* an expandable segment counts once, however much of it is mapped */
  bool is_released; /* it has no uses: its free memory may be released */
  bool use_on_oom;
  unsigned pins;            /* of its reservations: WEIR__PIN_GRAPH once memory was allocated there during a capture */
  weir__growth_kind growth; /* by its options; set at creation, and read without the lock */
  atomic_bool no_split;     /* also read with an arena's lock alone */
  atomic_int holds;         /* scopes that select it, and their allocations under way: it stays meanwhile */
  void *(*alloc)(void *context, uint64_t bytes, int device, weir_cu_stream stream); /* NULL for memory of the driver */
  void (*free)(void *context, void *pointer, uint64_t bytes, int device, weir_cu_stream stream);
  void *context;
  void (*destroy)(void *context); /* called when the pool has gone; may be NULL */
  WEIR__POOLS;
  weir__private_pool *previous, *next;
};

/* A name on private pools (pools/tag.c). It stays as long as its heap, whose lock guards what is not constant. */
struct weir_tag {
  weir__heap *heap;
  char *name;
  weir__account account;    /* of all its pools */
  weir__private_pool *pool; /* its own */
  weir_tag_state state;
  weir__kept *kept;      /* what it keeps while it is not awake, NULL if that is nothing; changed with the sleeper's
                              * lock held too */
  uint64_t asleep_bytes; /* of pages that have no memory */
  uint64_t copied_bytes; /* to the host and back, ever */
  weir_tag *next;        /* in heap->tags */
};

/* Memory of the driver. An expandable segment is a reservation into which pages are mapped (pages.h). */
struct weir__segment {
  weir__reservation memory; /* first: a reservation of this heap is its segment. Its slot is 0 if it has no pages */
  weir__arena *arena;
  weir__block *first;
  uint64_t step;                  /* of pages: bytes by which it grows, whole slots */
  uint64_t mapped;                /* bytes of its blocks that are not unmapped */
  uint64_t *backed;               /* of moving pages: a bit for each slot, whether a page belongs there (move.c) */
  size_t backed_room;             /* words */
  uint64_t asleep;                /* of a tag: bytes of pages without memory, which are not charged */
  uint64_t *to_graphs;            /* of a tag: a bit for each unit, whether it was handed out in a capture ... */
  size_t to_graphs_room;          /* words */
  weir__growth_kind growth;       /* of the pool when it was made */
  bool has_large_pages;           /* of a tag: its pages have several slots (segment.c) */
  bool oversize;                  /* counted as oversize */
  bool all_to_graphs;             /* ... or whether all of them count as such */
  bool captured;                  /* of a back end: memory that belongs to a graph */
  uint32_t stack;                 /* of the request that caused it; 0 if none was recorded */
  weir__segment *previous, *next; /* in heap->segments, guarded by the heap's lock */
};

/* The segment of a mapping of this heap's pages. */
static inline weir__segment *weir__mapping_segment(const weir__mapping *mapping) {
  return (weir__segment *)mapping->reservation;
}

/* A block that was freed during a capture, or whose events could not be recorded. */
typedef struct weir__deferred {
  weir__block *block;
  unsigned long long capture;    /* that all of its streams were in; 0 if not known (capture_reuse.c) */
  weir_cu_graph_node *positions; /* how far the streams were */
  size_t count;
} weir__deferred;

/* The class of a stream, by which its expandable segments reserve address space. */
typedef struct weir__stream_class {
  weir_cu_stream stream;
  char name[WEIR__RESERVE_CLASS_NAME];
  struct weir__stream_class *next;
} weir__stream_class;

/* Sends allocations to a private pool while it is open: those of one thread, which finds its scopes without a lock
 * (weir__this_thread), or those on some streams, of all threads. */
typedef struct weir__scope weir__scope;
struct weir__scope {
  weir__private_pool *pool;
  uint64_t number;              /* higher for those that were opened later */
  _Atomic(weir__heap *) heap;   /* of a thread's: NULL if it selects nothing any more. The thread itself deletes it */
  weir__heap *listed;           /* in this heap's thread_scopes, or NULL; guarded by the lock of scopes */
  weir__scope *outer;           /* the thread's scope around this one */
  weir__scope *previous, *next; /* in heap->thread_scopes or heap->stream_scopes, which have the newest first */
  int (*filter)(void *context, weir_cu_stream stream); /* of a scope of streams */
  void *context;
  bool is_capture;       /* then it takes the streams of that capture */
  weir_cu_stream origin; /* the capture's first stream */
};

/* Memory that was sent to other processes (ipc/sent.h). */
typedef struct weir__sent_memory {
  weir__hash_map blocks; /* that were sent, by address */
  size_t references;     /* of all of them */
  size_t limbo;          /* how many of them were freed */
  size_t events;         /* of all references */
  size_t sends_to_skip;  /* before a send that lacks an event collects again */

  /* NULL until memory is sent. `freed`: a block that was sent is freed; returns 1 if it is in limbo, for
   * weir__block_collected to end that, and 0 if it has no references. The arena's lock is held. `collect`: ends
   * references that are done, that belong to processes that have ended, or that have expired; returns the number of
   * blocks that left limbo. The device's context is current. */
  unsigned (*freed)(weir__heap *heap, weir__block *block);
  size_t (*collect)(weir__heap *heap);
} weir__sent_memory;

struct weir__heap {
  weir_allocator *allocator;
  int device;
  weir__mutex lock;
  weir_cu_context
      cu_context; /* the primary context, once retained; guarded by the lock, as everything down to the pools */
  uint64_t total; /* the device's memory */
  const weir__account *refused_by;      /* whose limit refused the last growth; NULL if none did */
  weir__stream_class *classes;          /* of streams */
  weir__pages pages;                    /* its peers are written with ipc_lock too, and read with either lock */
  weir__apart apart_blocks;             /* under full guard */
  weir__pages received;                 /* of other processes; guarded by ipc_lock */
  uint64_t capability;                  /* ten times the compute capability; 0 if not known */
  bool shares_pages;                    /* pages are created so that other processes can open them */
  bool shares_pages_off;                /* they could be, but the environment turned it off */
  atomic_bool had_pages;                /* a segment of pages was ever created; also read without the lock */
  WEIR__POOLS;                          /* the default pool */
  weir__private_pool *private_pools;    /* most recent first */
  weir_tag *tags;                       /* in the order of their creation */
  weir__sleeper *sleeper;               /* NULL until there is a tag (pools/kept.h) */
  size_t pool_count, pools_since_sweep; /* of these; and how many were created since released ones were last dropped */
  _Atomic(weir__private_pool *) dropped_pools; /* whose destroy function is called once no lock is held */
  weir__segment *segments;
  weir__rangemap segments_by_address;
  weir__lock segments_lock;    /* of that map. Changes need the heap's lock too, lookups need either */
  weir__segment *returning;    /* of a back end: segments to return to it once no lock is held */
  weir__retirement retirement; /* of aliases */
  uint64_t searches;           /* for pages that may move */
  /* NULL but in a replay of a recording, which shows it: whether aliases in the way of a request that is to be placed
   * at an address had been passed. */
  bool (*has_passed)(void *context, uint64_t address);
  void *has_passed_context;
  uint64_t live_peak;       /* of allocated bytes, as far as requests that needed pages have seen */
  int64_t move_credit;      /* for moves of pages, in allocations (move.c) ... */
  uint64_t credited;        /* ... of which that many have been counted */
  weir__fences fences;      /* that freed blocks wait for */
  weir__sent_memory sent;   /* to other processes */
  weir__deferred *deferred; /* freed during a capture, without events yet */
  size_t deferred_count, deferred_room;
  weir__scope *stream_scopes;
  weir__scope *thread_scopes; /* guarded by the lock of scopes (pools/pool.c) */
  uint64_t scopes;            /* that were opened so far */
  atomic_int captures;        /* scopes that are captures, plus foreign_captures */
  int foreign_captures;       /* begun by weir_allocator_begin_capture; guarded by the lock */
  size_t pending;             /* events and deferred blocks; guarded by the lock */
  size_t quarantined;         /* freed blocks that the guard keeps, each as one of the block's events; likewise */

  weir_allocator_stats stats; /* of segments and events; guarded by the lock. The rest is in the accounts */
  weir__accounts accounts;
  char apart[64]; /* every operation reads what follows: it is not in a cache line that claims of quotas write */
  atomic_uint slow_reasons; /* bits of weir__slow_reason */
  unsigned scoped_reasons;  /* those that count in a scope of the thread without a capture too; never changes */
};

/* Bytes obtained from the driver. The lock is held. */
static inline uint64_t weir__reserved(const weir__heap *heap) {
  return (uint64_t)heap->accounts.device.reserved[WEIR_STAT_ALL].current;
}

/* Why an allocation or a free cannot take the fast path. Usually there is no reason. */
typedef enum weir__slow_reason {
  WEIR__SLOW_UNCACHED = 1 << 0, /* caching is off */
  WEIR__SLOW_ROUTED = 1 << 1,   /* scopes of streams are open */
  WEIR__SLOW_PENDING = 1 << 2,  /* blocks wait for other streams, and may be free by now */
  WEIR__SLOW_TRACED = 1 << 3,   /* there are trackers or observers, or the history is recorded */
  WEIR__SLOW_AGING = 1 << 4,    /* collection by age is on: searches are counted */
  WEIR__SLOW_OBSERVED =
      1 << 5, /* traced by more than the recorder, or frees have stacks: an arena's lock is not enough */
  WEIR__SLOW_BACKEND = 1 << 6,    /* another back end serves requests */
  WEIR__SLOW_STACKS = 1 << 7,     /* the history is recorded with stacks of allocations */
  WEIR__SLOW_CHECKPOINT = 1 << 8, /* a checkpoint of the recording has to be taken before more is recorded */
  WEIR__SLOW_SCOPED = 1 << 9,     /* threads have scopes */
  WEIR__SLOW_GUARDED = 1 << 10    /* the settings have a guard */
} weir__slow_reason;

static inline unsigned weir__slow_reasons(const weir__heap *heap) {
  return atomic_load_explicit(&heap->slow_reasons, memory_order_acquire);
}

static inline void weir__slow_reason_set(weir__heap *heap, weir__slow_reason reason, bool on) {
  if (on)
    atomic_fetch_or(&heap->slow_reasons, reason);
  else
    atomic_fetch_and(&heap->slow_reasons, ~(unsigned)reason);
}

/* What the layer above does for an allocator whose history goes to a ring file; NULL in an allocator that has none.
 * Every hook is called with no lock held. */
typedef struct weir__recording_hooks {
  void (*checkpoint)(weir__heap *heap); /* WEIR__SLOW_CHECKPOINT is set: takes the checkpoint, or waits for it */
  void (*out_of_memory)(weir_allocator *allocator); /* a request is about to fail */
  void (*end)(weir_allocator *allocator);           /* the allocator is being destroyed */
} weir__recording_hooks;

/* A place for an observer of the program. */
typedef struct weir__observer_place {
  weir_observer functions;
  atomic_bool is_attached; /* changed under configure_lock */
  atomic_int calls;        /* under way: the functions are not replaced before they have returned */
} weir__observer_place;

struct weir_allocator {
  weir_driver *driver;
  int heap_count;
  int ipc_version; /* of the handles that it exports */
  weir__heap *heaps;
  _Atomic(const weir__settings *) settings; /* replaced as a whole; old ones stay until the end */
  weir__mutex configure_lock;
  weir__page_map *page_map;    /* address -> arena */
  weir__backend_port *backend; /* NULL for the cache */
  weir__guard_port *guard;     /* NULL if memory is not guarded; set before first use */
  char owner[32], *advice;     /* for out-of-memory texts; without an advice, the default */
  bool scopes_as_pytorch;      /* weir_allocator_options */
  bool streams_may_end;        /* a stream handle that was kept may belong to a stream that was destroyed */
  bool is_forked; /* it belongs to the parent of this process; written in the child of a fork, before fork returns */
  atomic_bool caching;
  weir__mutex uncached_lock;
  weir__rangemap uncached;           /* memory allocated with caching off -> its heap; guarded by uncached_lock */
  _Atomic(weir__recorder *) history; /* NULL until something is recorded; stays until the end */
  _Atomic(const weir__recording_hooks *) hooks; /* NULL if there is no ring file */
  void (*unpublish)(weir_allocator *); /* ends its part of the live page (inspect/publish.h); NULL if it has none */
  _Atomic(weir_witness_fn) witness;    /* called within operations, with all locks held; NULL if there is none */
  void *witness_context;               /* written before it, under witness_lock */
  atomic_bool witnesses_segments;      /* the witness is called for segments alone */
  weir__lock witness_lock;             /* of the witness, and of what is traced */
  weir__observer_place observers[WEIR__MAX_OBSERVERS];
  /* Attached observers that have `entry`, `free_memory` and `soft_limit`. */
  atomic_int trackers, memory_freers, limit_watchers;
  _Atomic(void (*)(weir_allocator *)) forget_graphs; /* ends the use by the runtime's graphs; NULL without one */
  struct weir__ipc *ipc; /* memory of other processes that is open here; guarded by ipc_lock, as the next two */
  struct weir__received *received;     /* the part of it that was sent by weir_ipc_send */
  struct weir__sender *senders;        /* from which it was received */
  struct weir__references *references; /* to memory that was sent: created with ipc_lock, before the first of them */
  int references_file;
  double ipc_timeout; /* the default of weir_ipc_send_options.timeout, set with `references` */
  weir__mutex ipc_lock;
  weir__client client;
};

static inline const weir__settings *weir__settings_of(const weir__heap *heap) {
  return atomic_load_explicit(&heap->allocator->settings, memory_order_acquire);
}

/* ---- Where a request is served: its rounded size, its pool, and its arena ---- */

/* weir__round_bytes if the settings divide powers of two. */
uint64_t weir__round_to_division(const weir__settings *settings, uint64_t bytes);

static inline uint64_t weir__round_bytes(const weir__settings *settings, uint64_t bytes) {
  uint64_t divisions[2]; /* tests all intervals at once: usually none is set */
  _Static_assert(sizeof divisions == sizeof settings->roundup_divisions, "two words");
  memcpy(divisions, settings->roundup_divisions, sizeof divisions);
  return divisions[0] | divisions[1] ? weir__round_to_division(settings, bytes) : weir__round_up(bytes, WEIR__UNIT);
}

/* The size that a request is served with: under light guard, at least a unit follows what was requested. The fast path,
 * which guard turns off (WEIR__SLOW_GUARDED), only rounds. */
static inline uint64_t weir__served_bytes(const weir__settings *settings, uint64_t bytes) {
  return weir__round_bytes(settings, settings->guard == WEIR__GUARD_LIGHT ? bytes + WEIR__UNIT : bytes);
}

/* The pool that serves a rounded size: of a private pool, or of the default pool where `owner` is NULL. */
static inline weir__pool *weir__pool_for(weir__heap *heap, weir__private_pool *owner, uint64_t size) {
  return (owner ? owner->pools : heap->pools) + (size > WEIR__SMALL_MAX);
}

/* The arenas of a pool, ordered by stream; one that is created meanwhile may be missing. They need no lock. */
static inline weir__arena *weir__arena_first(const weir__pool *pool) {
  return atomic_load_explicit(&pool->arenas, memory_order_acquire);
}
static inline weir__arena *weir__arena_after(const weir__arena *arena) {
  return atomic_load_explicit(&arena->after, memory_order_acquire);
}

static inline _Atomic(weir__arena *) *weir__arena_bucket(weir__pool *pool, weir_cu_stream stream) {
  uint64_t hash = (uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15u;
  return &pool->buckets[hash >> (64 - WEIR__ARENA_BUCKETS_LOG)];
}

/* The arena of a pool for a stream; NULL if there is none yet. Needs no lock. */
static inline weir__arena *weir__arena_find(weir__pool *pool, weir_cu_stream stream) {
  weir__arena *arena = atomic_load_explicit(weir__arena_bucket(pool, stream), memory_order_acquire);
  while (arena && arena->stream != stream)
    arena = atomic_load_explicit(&arena->next, memory_order_acquire);
  return arena;
}

/* ---- Calls on an allocator and its heaps ---- */

/* Begins every public call but weir_allocator_alloc and _free, whose slow paths check the same: a forked allocator has
 * no devices and no pages, so the fast paths of these two never succeed. Fails for NULL too. */
weir_status weir__allocator_check(const char *caller, const weir_allocator *allocator);

#define WEIR__CHECK_ALLOCATOR(allocator)                                                                               \
  do {                                                                                                                 \
    weir_status status_of_allocator = weir__allocator_check(__func__, allocator);                                      \
    if (status_of_allocator)                                                                                           \
      return status_of_allocator;                                                                                      \
  } while (0)

/* The same for a call on one device, whose heap it declares: expands to several statements. */
#define WEIR__CHECK_HEAP(heap, allocator, device)                                                                      \
  WEIR__CHECK_ALLOCATOR(allocator);                                                                                    \
  weir__heap *heap = weir__heap_get(__func__, allocator, device);                                                      \
  if (!heap)                                                                                                           \
  return WEIR_ERROR_INVALID_DEVICE

/* NULL, with the last error set, if there is no such device. */
weir__heap *weir__heap_get(const char *caller, weir_allocator *allocator, int device);

/* ---- Calls of the driver ---- */

/* Make the device's primary context current for driver calls, and restore the previous one. The heap's lock is held. */
weir_cu_result weir__heap_enter(weir__heap *heap, weir_cu_context *previous);
void weir__heap_leave(weir__heap *heap, weir_cu_context previous);

/* The same with the lock, which is acquired and released. If that fails, it is not held. */
weir_cu_result weir__heap_open(weir__heap *heap, weir_cu_context *previous);
void weir__heap_close(weir__heap *heap, weir_cu_context previous);

/* Whether a driver call succeeded. The first failure, other than out of memory, is kept as that of heap->pages. */
bool weir__heap_ok(weir__heap *heap, weir_cu_result result, const char *call);

/* The capture that a stream is in; 0 if there is none, or it is invalid. */
unsigned long long weir__active_capture(weir_driver *driver, weir_cu_stream stream);

/* A capture, of whatever device, forbids calls like cuMemAlloc, although the graph does not depend on them: the
 * thread's capture mode is relaxed around such calls. False if that failed; the call would then end the capture.
 * restore takes the mode that came out. */
bool weir__capture_relax(weir__heap *heap, int *mode);
void weir__capture_restore(weir__heap *heap, int mode);

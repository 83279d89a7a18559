/*
 * The allocator, inside.
 *
 *   allocator            one driver, one set of settings
 *     heap               one device: its limit, its statistics, its events
 *       pool             where blocks of a kind are looked for: small or large, of the default pool or of a private one
 *         arena          a pool's blocks of one stream: the unit that is searched and locked
 *           segment      memory that the driver gave in one go, or a reservation into which pages are mapped
 *             block      a piece of a segment
 *
 * Two neighbouring blocks are of one segment, so of one arena: splitting and merging need the arena's lock alone, and that
 * is all a cached allocation takes. What goes beyond an arena (growing, collecting, limits, pools, events) takes the heap's
 * lock first. The order is: heap, arena, gauges; and the lock of the segments' map, under which nothing else is taken.
 */
#ifndef WEIR_ALLOC_HEAP_H
#define WEIR_ALLOC_HEAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "alloc/block.h"
#include "alloc/gauges.h"
#include "alloc/index.h"
#include "alloc/pagemap.h"
#include "alloc/settings.h"
#include "base/base.h"
#include "base/biased_lock.h"
#include "base/lock.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "driver/client.h"
#include "record/recorder.h"
#include "weir/alloc.h"

#define WEIR__MIB (1024ull * 1024)
#define WEIR__MOST_BYTES (1ull << 60) /* from here on a request is refused */

enum {
  WEIR__SMALL_MAX = 1024 * 1024,         /* the largest request that the small pool serves */
  WEIR__SMALL_SEGMENT = 2 * 1024 * 1024, /* what the small pool grows by */
  WEIR__LARGE_MIN = 10 * 1024 * 1024,    /* from here on a request gets a segment of its own size */
  WEIR__ROUND_LARGE = 2 * 1024 * 1024,   /* ... rounded up to this */
  WEIR__ARENA_BUCKETS = 16,
  WEIR__MAX_WATCHERS = 8
};

typedef struct weir__heap weir__heap;
typedef struct weir__pool weir__pool;
typedef struct weir__arena weir__arena;
typedef struct weir__segment weir__segment;
typedef struct weir__private_pool weir__private_pool;
typedef struct weir__backend_state weir__backend_state;

/* Another stream that uses a block. */
typedef struct weir__use weir__use;
struct weir__use {
  weir_cu_stream stream;
  unsigned long long capture; /* in which it was when it was first recorded; 0: none, or nobody asks (markers.c) */
  weir__use *next;
};

/* What an operation changes of the free blocks whose neighbours are in use. */
typedef struct weir__split_change {
  int64_t splits, bytes;
} weir__split_change;

/* The last allocation of an arena, as long as nothing else happens there. Freed at once, its block is left as it is, because
 * the next request of the same size would get the very same one: everything is as it was before. So a pair of allocating and
 * freeing, again and again, does not split and merge each time. */
typedef struct weir__last_alloc {
  weir__block *block;             /* NULL: something else happened */
  const weir__settings *settings; /* under which it was chosen */
  uint64_t bytes;                 /* for how many, rounded */
  weir__split_change change;      /* by handing it out */
  bool is_free;                   /* it was freed: its state is free, but it is not in the index, and among the live */
} weir__last_alloc;

struct weir__arena {
  weir__biased_lock lock;
  weir__pool *pool;
  weir_cu_stream stream;
  _Atomic(weir__arena *) next; /* in a bucket of the pool */
  int segments;                /* that it has; guarded by the heap's lock */
  weir__last_alloc last_alloc; /* this and the following are guarded by the lock */
  weir__live live;             /* active blocks by address */
  weir__slab blocks;
  weir__gauges gauges;
  weir__index free;   /* free blocks */
  weir__ref unmapped; /* the tree of address space without memory, by address */
  weir__slab uses;
  weir__writer *writer; /* what records it; NULL: nothing was recorded yet */
};

struct weir__pool {
  weir__heap *heap;
  bool is_small;
  weir__private_pool *owner;                           /* NULL: the default pool */
  atomic_uint searches;                                /* counted only while collection is on: the clock of its ages */
  _Atomic(weir__arena *) buckets[WEIR__ARENA_BUCKETS]; /* arenas by a hash of the stream */
};

/* What a pool has taken from the driver. It outlives the pool, as PyTorch's statistics do; guarded by the heap's lock. */
typedef struct weir__pool_record weir__pool_record;
struct weir__pool_record {
  weir_pool_id id;
  weir_stat reserved_bytes[WEIR_STAT_KINDS];
  bool has_pool; /* it is not gone */
  weir__pool_record *next;
};

struct weir__private_pool {
  weir_pool_id id;
  int uses;         /* graphs, scopes and owners that hold it; guarded by the heap's lock, as all below */
  int segments;     /* that it has; expandable ones count once, whatever is mapped */
  bool is_released; /* nobody holds it: its free memory may go */
  bool use_on_oom;
  atomic_bool no_split; /* also read with an arena's lock alone */
  atomic_int in_flight; /* allocations under way that a scope has sent here; raised under the heap's lock */
  weir__pool_record *record;
  void *(*alloc)(void *context, size_t bytes, int device, weir_cu_stream stream); /* NULL: the driver's memory */
  void (*free)(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream);
  void *context;
  void (*destroy)(void *context); /* the pool is gone; NULL: nobody wants to know */
  weir__pool small, large;
  weir__private_pool *next;
};

/* Memory of the driver's. An expandable one is a reservation of address space, cut into pages of one size, each of which
 * has a handle of physical memory or none. */
struct weir__segment {
  uint64_t base, bytes;
  weir__arena *arena;
  weir__block *first;
  uint64_t page;                  /* bytes of a page; 0: not expandable */
  weir_cu_mem_handle *handles;    /* of each page, as far as any was ever mapped; 0: none is */
  size_t room;                    /* for how many */
  size_t mapped;                  /* how many pages are */
  bool oversize;                  /* it was counted as such */
  bool captured;                  /* of a back end: a graph's memory */
  uint32_t stack;                 /* who asked for it, while that was recorded; 0: not known */
  int *files;                     /* of pages that other processes may open, from 1 on; NULL: none (ipc.c) */
  weir__segment *previous, *next; /* in heap->segments, guarded by the heap's lock */
};

/* An event that a freed block waits for. */
typedef struct weir__pending weir__pending;
struct weir__pending {
  weir_cu_event event;
  weir__block *block;
  weir__pending *next;
};

/* A block that was freed during a capture, or whose events could not be made; see markers.c for the rest. */
typedef struct weir__deferred {
  weir__block *block;
  unsigned long long capture; /* in which all of its streams were then; 0: not known */
  weir_cu_graph_node *positions;
  size_t count;
} weir__deferred;

/* The events of one stream, in the order in which it reaches them. */
typedef struct weir__event_queue weir__event_queue;
struct weir__event_queue {
  weir_cu_stream stream;
  weir__pending *first, **last;
  weir__event_queue *next;
};

/* A stream whose expandable segments reserve address space as a class of them does. */
typedef struct weir__stream_class {
  weir_cu_stream stream;
  char name[WEIR__RESERVE_CLASS_NAME];
  struct weir__stream_class *next;
} weir__stream_class;

/* Where allocations go while a scope is open. */
typedef struct weir__route weir__route;
struct weir__route {
  weir__private_pool *pool;
  int (*filter)(void *context, weir_cu_stream stream); /* NULL: allocations of the thread that opened it */
  void *context;
  pthread_t thread;
  bool is_capture;       /* then it is for streams that are in the capture, and none of the above */
  weir_cu_stream origin; /* the capture's first stream */
  weir__route *next;     /* the one around it */
};

struct weir__heap {
  weir_allocator *allocator;
  int device;
  pthread_mutex_t lock;
  weir_cu_context cu_context; /* the primary context, once retained; guarded by the lock, as all down to the pools */
  uint64_t total;             /* the device's memory */
  uint64_t reserved;          /* taken from the driver */
  uint64_t promised;          /* being taken from it, by threads that gave the lock back for that long */
  uint64_t limit;             /* may be taken; UINT64_MAX: no limit */
  atomic_bool has_limit;      /* also read without the lock */
  double fraction;
  uint64_t peers;                     /* a bit for each device that may touch expandable memory of this one; who changes
                                       * it has the ipc_lock too, who reads it either of the two */
  struct weir__stream_class *classes; /* streams that were put into a class of reserves; guarded by the lock */
  weir_cu_mem_prop page_prop;         /* what pages are made of; set at the start, as the next three */
  uint64_t granularity;               /* of pages; 0: the device has no virtual memory */
  bool shares_pages;                  /* pages are made so that other processes can open them */
  bool shares_pages_off;              /* they could be, and the environment says no */
  weir_cu_result driver_error;        /* what the driver refused first, and not for want of memory, since growing or */
  const char *driver_error_call;      /* emptying began: the device is broken, or a capture forbids the call */
  atomic_bool had_expandable;         /* an expandable segment was made, at any time; also read without the lock */
  weir__pool small, large;            /* the default pool */
  weir__private_pool *private_pools;
  weir__pool_record *pool_records;             /* of these, and of some that are gone; the newest first */
  _Atomic(weir__private_pool *) dropped_pools; /* pools whose end somebody has to be told, when no lock is held */
  weir__segment *segments;
  weir__rangemap segments_by_address;
  weir__lock segments_lock;    /* of that map: who changes it has the heap's lock too, who looks has either */
  weir__segment *returning;    /* of a back end: left the books, and goes back when no lock is held */
  weir_cu_mem_handle *orphans; /* of pages that are gone, and that the driver did not take back yet */
  size_t orphan_count, orphan_room;
  weir__event_queue *queues;
  weir__deferred *deferred; /* freed during a capture, without events yet */
  size_t deferred_count, deferred_room;
  weir_cu_event *idle_events; /* to be used again */
  size_t idle_count, idle_room;
  _Atomic(weir__route *) routes; /* the innermost first; changed under the lock */
  atomic_int captures;           /* routes that are captures, and those of others */
  int foreign_captures;          /* those of others; guarded by the lock */
  size_t pending;                /* events and deferred blocks; guarded by the lock */
  weir__slab pendings;

  weir_allocator_stats
      stats; /* of segments, and events that are counted; guarded by the lock. The rest is in the gauges */
  weir__gauge_sums sums;
  atomic_uint slow_reasons; /* weir__slow_reason: why an allocation cannot take the short way */
};

/* What the short way of an allocation does not do. Most programs have none of it most of the time. */
typedef enum weir__slow_reason {
  WEIR__SLOW_UNCACHED = 1 << 0, /* caching is off */
  WEIR__SLOW_ROUTED = 1 << 1,   /* there are scopes of private pools */
  WEIR__SLOW_PENDING = 1 << 2,  /* blocks wait for other streams, and may be free by now */
  WEIR__SLOW_TRACED = 1 << 3,   /* trackers want to know, or it is recorded */
  WEIR__SLOW_AGING = 1 << 4,    /* collection by age is on: searches are counted */
  WEIR__SLOW_OBSERVED =
      1 << 5, /* watched, and by more than a recorder: trackers, or stacks of frees. An arena's lock is not enough */
  WEIR__SLOW_BACKEND = 1 << 6,   /* another back end serves it */
  WEIR__SLOW_STACKS = 1 << 7,    /* recorded, and allocations have stacks */
  WEIR__SLOW_CHECKPOINT = 1 << 8 /* a checkpoint of the recording has to be taken before more is recorded */
} weir__slow_reason;

static inline unsigned weir__slow_reasons(const weir__heap *heap) {
  return atomic_load_explicit(&heap->slow_reasons, memory_order_acquire);
}

/* Events and deferred blocks, more or fewer. The heap's lock is held. */
void weir__pending_add(weir__heap *heap, int by);

static inline void weir__slow_reason_set(weir__heap *heap, weir__slow_reason what, bool on) {
  if (on)
    atomic_fetch_or(&heap->slow_reasons, what);
  else
    atomic_fetch_and(&heap->slow_reasons, ~(unsigned)what);
}

struct weir_allocator {
  weir_driver *driver;
  int heap_count;
  int ipc_version; /* of the names that it makes */
  weir__heap *heaps;
  _Atomic(const weir__settings *) settings; /* replaced whole; old ones stay until the end */
  pthread_mutex_t configure_lock;
  weir__page_map *pages;        /* address -> segment */
  weir__backend_state *backend; /* another back end; NULL: the cache */
  bool streams_may_end;         /* a handle that was kept may be that of a stream that is no more */
  bool is_forked; /* it belongs to the parent of this process; written in the child of a fork, before fork returns */
  atomic_bool caching;
  pthread_mutex_t uncached_lock;
  weir__rangemap uncached; /* memory that was given out with caching off -> its heap; guarded by uncached_lock */
  _Atomic(weir__recorder *) history;   /* NULL: nothing was ever recorded; stays until the end */
  _Atomic(weir_trace_tracker) observe; /* one that is told in the middle of it, with all locks held; NULL: none */
  void *observe_context;               /* written before it, under tracker_lock */
  atomic_bool observes_segments;       /* it wants to know of segments alone */
  atomic_int tracker_count;
  weir__lock tracker_lock; /* of adding one, and of who watches */
  struct {
    weir_trace_tracker call;
    void *context;
  } trackers[WEIR__MAX_WATCHERS];
  struct {
    weir_oom_observer call;
    void *context;
  } observers[WEIR__MAX_WATCHERS];
  atomic_int observer_count;
  struct {
    weir_free_memory_callback call;
    void *context;
  } callbacks[WEIR__MAX_WATCHERS];
  atomic_int callback_count;
  struct {
    weir_rejection_observer call;
    void *context;
  } rejection_observers[WEIR__MAX_WATCHERS];
  atomic_int rejection_observer_count;
  struct weir__ipc *ipc;    /* memory of other processes that is open here; guarded by ipc_lock */
  pthread_mutex_t ipc_lock; /* taken before a heap's */
  weir__client client;
};

/* First in every public call but weir_allocator_alloc and _free, whose slow paths check the same: a forked allocator
 * has no devices and no pages, so that these two never succeed on their fast paths. NULL fails too. */
weir_status weir__allocator_check(const char *who, const weir_allocator *allocator);

#define WEIR__CHECK_ALLOCATOR(allocator)                                                                               \
  do {                                                                                                                 \
    weir_status status_of_allocator = weir__allocator_check(__func__, allocator);                                      \
    if (status_of_allocator)                                                                                           \
      return status_of_allocator;                                                                                      \
  } while (0)

static inline const weir__settings *weir__settings_of(const weir__heap *heap) {
  return atomic_load_explicit(&heap->allocator->settings, memory_order_acquire);
}

/* ---- Sizes (sizes.c) ---- */

uint64_t weir__round_to_division(const weir__settings *settings, uint64_t bytes);
static inline uint64_t weir__round_bytes(const weir__settings *settings, uint64_t bytes) {
  uint64_t divisions[2]; /* of all intervals at once: mostly there are none */
  _Static_assert(sizeof divisions == sizeof settings->roundup_divisions, "two words");
  memcpy(divisions, settings->roundup_divisions, sizeof divisions);
  return divisions[0] | divisions[1] ? weir__round_to_division(settings, bytes) : weir__round_up(bytes, WEIR__UNIT);
}

uint64_t weir__segment_bytes(const weir__settings *settings, uint64_t bytes);

/* Whether what is left of a block is worth a block of its own. */
static inline bool weir__should_split(const weir__settings *settings, const weir__pool *pool, uint64_t have,
                                      uint64_t bytes) {
  uint64_t rest = have - bytes;
  if (pool->owner && atomic_load_explicit(&pool->owner->no_split, memory_order_relaxed))
    return false;
  if (pool->is_small || settings->expandable_segments)
    return rest >= WEIR__UNIT;
  return bytes < settings->max_split_size && rest > WEIR__SMALL_MAX;
}

/* ---- Arenas (arena.c, cached.c) ---- */

static inline _Atomic(weir__arena *) *weir__arena_bucket(weir__pool *pool, weir_cu_stream stream) {
  uint64_t hash = (uint64_t)(uintptr_t)stream * 0x9e3779b97f4a7c15u;
  return &pool->buckets[hash >> 60];
}

/* The arena of a pool for a stream; NULL: it was not made yet. */
static inline weir__arena *weir__arena_find(weir__pool *pool, weir_cu_stream stream) {
  weir__arena *arena = atomic_load_explicit(weir__arena_bucket(pool, stream), memory_order_acquire);
  while (arena && arena->stream != stream)
    arena = atomic_load_explicit(&arena->next, memory_order_acquire);
  return arena;
}

/* The same, made if need be; NULL: no host memory. */
weir__arena *weir__arena_get(weir__pool *pool, weir_cu_stream stream);

/* For all who do more than allocate and free: nothing is left undone after it. */
void weir__arena_flush(weir__arena *arena);
static inline void weir__arena_lock(weir__arena *arena) {
  weir__biased_take(&arena->lock);
  weir__arena_flush(arena);
}
static inline void weir__arena_unlock(weir__arena *arena) { weir__biased_give(&arena->lock); }

/* A cached allocation: the best block for so many bytes, rounded, or NULL when none serves. Those who watch are told by the
 * caller. */
weir__block *weir__arena_alloc(weir__arena *arena, const weir__settings *settings, uint64_t bytes, uint64_t requested);

/* Frees an allocated block that nobody else uses, and tells nobody either. The place is where weir__live_find found it. */
void weir__arena_free(weir__arena *arena, weir__block *block, weir__live_place place);

/* The two steps of an allocation, in a settled arena. First the best free block for a size, out of the index; NULL: none. */
weir__block *weir__arena_take(weir__arena *arena, const weir__settings *settings, uint64_t bytes);

/* Then that block, or another that is out of the index, becomes the caller's: what is not needed is cut off, with `exact` also
 * what the rules would leave on. NULL, and the block is free again: no host memory. */
weir__block *weir__arena_hand_out(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                  uint64_t bytes, uint64_t requested, bool exact);

/* The two steps of a free, in a settled arena. The owner lets go of a block: it stays active as long as other streams use it. */
void weir__arena_let_go(weir__arena *arena, weir__block *block);

/* A block that nobody uses any more goes back to the index, merged with its neighbours. Returns the free block that it is part of
 * then. */
weir__block *weir__arena_release(weir__arena *arena, weir__block *block);

/* Searches are the clock by which the ages of blocks are told, while collection by age is on. */
static inline void weir__count_search(weir__pool *pool) {
  atomic_fetch_add_explicit(&pool->searches, 1, memory_order_relaxed);
}

/* Puts a free block into the index. */
void weir__arena_insert(weir__arena *arena, weir__block *block);

/* `block` takes its neighbour in when that is free too, and mapped or not as it is. */
void weir__arena_merge(weir__arena *arena, weir__segment *segment, weir__block *block, weir__block *neighbour);

/* Other streams use the block no more. */
void weir__arena_drop_uses(weir__arena *arena, weir__block *block);

weir__block *weir__arena_new_block(weir__arena *arena, weir__segment *segment, uint64_t address, uint64_t bytes);

/* All arenas of a pool in the order of their streams. The number; the array is the caller's to free. 0 and NULL: none. */
size_t weir__pool_arenas(const weir__pool *pool, weir__arena ***arenas);

/* No arena of the pool repeats what it did last (weir__last_alloc). */
void weir__pool_flush(weir__pool *pool);
void weir__pool_clear(weir__pool *pool);

/* ---- Segments (segment.c). With the heap's lock, and no arena's ---- */

/* The one around an address, NULL: none; and the one that a block is a piece of. */
weir__segment *weir__segment_at(const weir__heap *heap, uint64_t address);
weir__segment *weir__segment_of(const weir__heap *heap, const weir__block *block);
weir__segment *weir__segment_lookup(weir__heap *heap, const weir__block *block); /* with any locks held, or none */

/* The parts of it, for memory that is not the driver's. NULL: no host memory, or it overlaps another one. */
weir__segment *weir__segment_new(weir__heap *heap, weir__arena *arena, uint64_t base, uint64_t bytes, uint64_t page);
void weir__segment_unlink(weir__heap *heap, weir__segment *segment);
void weir__segment_delete(weir__segment *segment);

/* Memory came from the driver, or went back. `segments` is 0 for pages. */
void weir__segment_count(weir__heap *heap, weir__segment *segment, int segments, int64_t bytes);

/* Whether a driver's call was good; notes the heap's trouble if it was not. */
bool weir__heap_ok(weir__heap *heap, weir_cu_result result, const char *call);

/* Asks what the device's pages are like. */
void weir__pages_prepare(weir__heap *heap);

/* A new block of at least so many bytes, taken: it is not in the index, and marked as allocated where it has neighbours that
 * could merge it. NULL: the heap is in trouble, or the driver has no memory, or the limit is reached. */
weir__block *weir__heap_grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                             uint64_t segment_bytes);

/* Gives a whole free segment back. The block is in the index, and the arena's lock is held. false: the driver did not take
 * it, and nothing changed. */
bool weir__release_segment(weir__heap *heap, weir__block *block);

/* Of a block of an expandable segment. */
bool weir__has_whole_pages(const weir__heap *heap, const weir__block *block);

/* Unmaps the whole pages inside a free block, which has some; the segment goes when nothing of it is left. The block is in
 * the index, the arena's lock is held, and the stream has no work. */
void weir__release_pages(weir__heap *heap, weir__block *block);

/* Reservations of an arena, its lock held, that have no pages and that the driver did not take back before. */
void weir__release_reservations(weir__heap *heap, weir__arena *arena);
void weir__heap_free_segments(weir__heap *heap);

/* Physical memory that the driver did not take back when its pages went: tries again. */
void weir__release_orphans(weir__heap *heap);

/* A capture forbids calls like MemAlloc, though nothing of it depends on them: around such calls the thread's capture mode is
 * relaxed. false: that failed, and the call would end the capture. restore takes the mode that came out. */
bool weir__capture_relax(weir__heap *heap, int *mode);
void weir__capture_restore(weir__heap *heap, int mode);

/* How much address space an expandable segment of a stream reserves: 9/8 of the device's memory, or less where the settings
 * say so. */
uint64_t weir__reserve_bytes(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream);

/* Who may touch pages of the device: it and its peers. The number of them. */
size_t weir__list_access(const weir__heap *heap, weir_cu_mem_access access[64]);

/* Another device may touch what is mapped now. */
weir_cu_result weir__share_segments(weir__heap *heap, int device);

/* ---- Running short (reclaim.c). With the heap's lock ---- */

/* Everything that can be tried after the index had nothing. NULL: out of memory. */
weir__block *weir__refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);
void weir__release_cached(weir__heap *heap, bool default_pool);

/* The same of a private pool; nothing happens while somebody holds it. */
void weir__release_pool(weir__heap *heap, weir__private_pool *pool);

/* Tells the owners of pools that are gone. No lock is held. */
void weir__pools_finalize(weir__heap *heap);

/* The program frees what it can; the heap's lock is given back for that long. false: nothing. */
bool weir__run_callbacks(weir__heap *heap);

/* ---- Other streams (events.c). With the heap's lock ---- */

/* Blocks whose events are done become free. */
void weir__poll_events(weir__heap *heap, weir_cu_stream current);

/* The same, and waits for them. */
void weir__wait_for_events(weir__heap *heap);

/* Waits for the work that is in a stream now. false: it cannot be waited for. */
bool weir__wait_for_stream(weir__heap *heap, weir_cu_stream stream);

/* The block was freed, and other streams use it. `entered`: the device's context is the thread's. */
void weir__free_later(weir__heap *heap, weir__block *block, bool entered);
void weir__events_clear(weir__heap *heap);

/* Events, used again and again. */
weir_cu_result weir__event_take(weir__heap *heap, weir_cu_event *event);
void weir__event_give(weir__heap *heap, weir_cu_event event);

/* Within a capture (markers.c): how far the streams of a block were, and which blocks a stream has passed all of that of. */
void weir__capture_position_take(weir__heap *heap, const weir__block *block, weir__deferred *deferred);
void weir__capture_positions_poll(weir__heap *heap, weir_cu_stream stream);
unsigned long long weir__capture_of(weir__heap *heap, weir_cu_stream stream);

/* ---- Settings (control.c) ---- */

/* Turns off what the driver cannot do. */
void weir__settings_fit(const weir_allocator *allocator, weir__settings *settings);

/* ---- Without the cache (uncached.c) ---- */

weir_status weir__uncached_alloc(const char *who, weir__heap *heap, uint64_t bytes, void **pointer);

/* false: the pointer was not given out so. */
bool weir__uncached_free(const char *who, weir_allocator *allocator, void *pointer, weir_status *status);
weir__heap *weir__uncached_heap(weir_allocator *allocator, const void *pointer); /* NULL: it was not given out so */
bool weir__uncached_has(weir_allocator *allocator, const void *pointer, size_t *bytes); /* bytes may be NULL */
void weir__uncached_clear(weir_allocator *allocator);
bool weir__caching_from_env(void);

/* ---- Other back ends (backend.c) ---- */

/* The back end of the options, or with NULL the driver's stream-ordered memory. */
weir_status weir__backend_new(const char *who, weir_allocator *allocator, const weir_backend *backend);
void weir__backend_delete(weir__backend_state *backend);
weir_status weir__backend_alloc(const char *who, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                                weir_cu_stream stream, void **pointer);
weir_status weir__backend_free(const char *who, weir_allocator *allocator, void *pointer);

/* The arena of a live pointer; NULL: it is none. */
weir__arena *weir__backend_arena(weir_allocator *allocator, const void *pointer);

/* The same, whoever serves it. */
static inline weir__arena *weir__arena_of(weir_allocator *allocator, const void *pointer) {
  return allocator->backend ? weir__backend_arena(allocator, pointer)
                            : weir__page_map_find(allocator->pages, (uint64_t)pointer);
}
static inline weir__arena *weir__block_arena(const weir__heap *heap, const weir__block *block) {
  return weir__arena_of(heap->allocator, (const void *)block->address);
}

/* It is the driver's stream-ordered memory. */
bool weir__backend_is_async(const weir_allocator *allocator);

/* true: the back end waits for the stream by itself, and was told. */
bool weir__backend_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream);
void *weir__backend_base(weir_allocator *allocator, void *pointer, size_t *bytes);

/* A block that other streams used is free, the heap's lock and the arena's held. */
void weir__backend_block_done(weir__heap *heap, weir__block *block);

/* A block was freed, and its back end takes all streams that use it at once: then there is nothing to wait for. *done: it did.
 * false: it is no such back end. */
bool weir__backend_join_streams(weir__heap *heap, weir__block *block, bool *done);

/* Pool {0, 0} is all. */
weir_status weir__backend_empty(const char *who, weir__heap *heap, weir_pool_id id);
void weir__backend_reset(weir_allocator *allocator);

/* The end of a heap, whose work is done. */
void weir__backend_clear(weir__heap *heap);
void weir__backend_read_stats(weir__heap *heap, weir_allocator_stats *stats);
void weir__backend_reset_peaks(weir__heap *heap);
uint64_t weir__backend_spare(weir__heap *heap);

/* The back end is told of the limit, and of the scopes of private pools. No lock is held. */
void weir__backend_set_fraction(weir__heap *heap, double fraction);
void weir__backend_begin_pool(weir__heap *heap, weir_pool_id id, int (*filter)(void *context, weir_cu_stream stream),
                              void *context);
void weir__backend_end_pool(weir__heap *heap, weir_pool_id id);
void weir__backend_release_pool(weir__heap *heap, weir_pool_id id);
weir_cu_result weir__backend_share(weir__heap *heap, int device);

/* ---- Other processes (ipc.c) ---- */

/* A page goes: its file too. */
void weir__ipc_forget_page(weir__segment *segment, size_t page);
void weir__ipc_clear(weir_allocator *allocator);

/* Another device may touch the pages of other processes that are open for this one. The ipc_lock is held. */
weir_cu_result weir__ipc_share_open(const weir__heap *heap, int device);

/* Whether pages of a device are made so that other processes can open them. */
void weir__ipc_prepare(weir__heap *heap);

/* ---- Private pools (pool.c) ---- */

/* With the heap's lock. */
weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id);

/* Also of a pool that is gone; NULL: nothing is known of it. */
weir__pool_record *weir__pool_record_find(const weir__heap *heap, weir_pool_id id);

/* The private pool that an allocation on a stream goes to, or NULL. Takes the heap's lock: ask only when there are routes. The
 * scope may be closed and the pool released by another thread before the allocation is made: the pool has a visitor, and
 * stays until its `visitors` is lowered again. */
weir__private_pool *weir__route_of(weir__heap *heap, weir_cu_stream stream);

/* The end of a heap: its scopes go, and the records of its pools. */
void weir__routes_clear(weir__heap *heap);
void weir__graphs_forget(weir_allocator *allocator);

/* ---- Traces (trace.c) ---- */

/* An operation of the allocator's that somebody watches: it has a stack, and gathers what trackers are told after it, when no
 * lock is held any more. An operation within another one, as of a callback, has its own. */
typedef struct weir__op {
  struct weir__op *outer;
  weir_allocator *allocator;
  uint32_t stack;            /* of the caller; 0: none is wanted */
  bool lost;                 /* there was no host memory for an entry */
  unsigned count, room;      /* of entries */
  weir_trace_entry *entries; /* `few`, or memory of its own */
  weir_trace_entry few[4];
} weir__op;

/* No lock is held. `level` is from which context on such an operation keeps a stack. */
void weir__op_begin(weir__op *op, weir_allocator *allocator, weir_history_context level);

/* The same with a stack that was gathered before. */
void weir__op_begin_with(weir__op *op, weir_allocator *allocator, uint32_t stack);

/* No lock is held: trackers are told. */
void weir__op_end(weir__op *op);

/* Tells what there is so far; no lock is held. */
void weir__op_tell(void);

/* The stack of the operation under way; 0: none. */
uint32_t weir__op_stack(void);

/* An entry of an arena whose lock is held. `stack` is for when the operation has none. */
void weir__trace_arena(weir__arena *arena, weir_trace_action action, uint64_t address, uint64_t bytes, uint32_t stack);

/* A block is freed at once: both entries. */
void weir__trace_freed(weir__arena *arena, const weir__block *block);

/* Somebody wants to know of such an event. */
static inline bool weir__is_traced(const weir__heap *heap, weir_trace_action action) {
  bool of_segment = action >= WEIR_TRACE_SEGMENT_ALLOC && action <= WEIR_TRACE_SEGMENT_UNMAP;
  return weir__slow_reasons(heap) & WEIR__SLOW_TRACED ||
         (of_segment && atomic_load_explicit(&heap->allocator->observes_segments, memory_order_relaxed));
}

static inline void weir__trace(weir__heap *heap, weir_trace_action action, const weir__pool *pool, uint64_t address,
                               uint64_t bytes, weir_cu_stream stream) {
  if (weir__is_traced(heap, action))
    weir__trace_arena(weir__arena_find((weir__pool *)pool, stream), action, address, bytes, 0);
}

/* The writer of an arena, its lock held. NULL: no host memory, which the recorder counts. */
weir__writer *weir__arena_new_writer(weir__arena *arena, weir__recorder *history);
static inline weir__writer *weir__arena_writer(weir__arena *arena, weir__recorder *history) {
  return __builtin_expect(arena->writer != NULL, 1) ? arena->writer : weir__arena_new_writer(arena, history);
}

/* Who watches has changed. */
void weir__update_tracing(weir_allocator *allocator);

/* The arenas of a pool are going. */
void weir__writers_delete(weir__pool *pool);

/* A new allocator: records to a file if WEIR_RECORD says so. */
void weir__record_from_env(weir_allocator *allocator);

/* WEIR__SLOW_CHECKPOINT is set: takes the checkpoint, or waits a moment for the thread that takes it. No lock is held. */
void weir__record_due(weir__heap *heap);

/* Recording has begun, or was cleared: what there is now is the beginning. No lock is held. */
void weir__record_begun(weir_allocator *allocator);

/* Memory ran out: writes a snapshot beside that file, the first few times. No lock is held. */
void weir__record_oom(weir_allocator *allocator);

/* The allocator is going. */
void weir__record_end(weir_allocator *allocator);

/* ---- The calls (allocator.c) ---- */

/* Refuses settings that ask for another allocator than the cache: what plays histories has no other. */
weir_status weir__check_backend(const weir__settings *settings);

/* The live block of a pointer, its arena locked and settled; NULL when there is none. */
weir__block *weir__block_lock(weir_allocator *allocator, const void *pointer, weir__arena **arena);
weir_status weir__no_block(const char *who, const void *pointer);

/* The same, and says what is at that address: nothing of this allocator's, memory that was freed, or the middle of a
 * live allocation. No lock is held. */
weir_status weir__no_block_because(const char *who, weir_allocator *allocator, const void *pointer);

/* There is no more: tells those who want to know, and says so. The heap's lock is held, and given back. */
weir_status weir__out_of_memory(const char *who, weir__heap *heap, weir__arena *arena, uint64_t bytes,
                                uint64_t segment_bytes);

/* throw_on_cudamalloc_oom: what would exceed the limit is refused before anybody is asked. The heap's lock is held; where it
 * returns anything but WEIR_OK it was given back. */
weir_status weir__reject(const char *who, weir__heap *heap, const weir__settings *settings, uint64_t segment_bytes,
                         uint64_t requested);

/* NULL, and the last error set, for a device that is none. */
weir__heap *weir__heap_get(const char *who, weir_allocator *allocator, int device);

/* The long way of the two calls that cached.c begins. */
weir_status weir__alloc_generic(weir_allocator *allocator, int device, size_t bytes, weir_cu_stream stream,
                                void **pointer);
weir_status weir__free_generic(weir_allocator *allocator, void *pointer);

/* What the index could not serve. */
weir_status weir__alloc_miss(const char *who, weir__heap *heap, weir__arena *arena, const weir__settings *settings,
                             uint64_t size, uint64_t requested, void **pointer);

/* Allocates from a private pool, or from the default one where that is NULL, on behalf of the public call `who`. The caller is one
 * of the pool's visitors meanwhile: it may be over, and would go when memory runs short. */
weir_status weir__alloc(const char *who, weir__heap *heap, weir__private_pool *owner, uint64_t bytes,
                        weir_cu_stream stream, void **pointer);

/* ---- The walker (valid.c) ---- */

/* Walks everything and counts it anew: blocks tile their segments, what is free, live or unmapped is where it is looked for,
 * and every statistic is what the blocks say. Logs what is wrong. For tests, while nobody else uses the allocator. */
bool weir__allocator_is_valid(weir_allocator *allocator);

/* ---- The device's context ---- */

/* Makes the device's context the thread's for driver calls, and back. */
weir_cu_result weir__heap_enter(weir__heap *heap, weir_cu_context *previous);
void weir__heap_leave(weir__heap *heap, weir_cu_context previous);

#endif

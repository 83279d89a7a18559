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
 * lock first. The order is: heap, arena, statistics.
 */
#ifndef WEIR_ALLOC_HEAP_H
#define WEIR_ALLOC_HEAP_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "alloc/block.h"
#include "alloc/settings.h"
#include "base/base.h"
#include "base/lock.h"
#include "base/rangemap.h"
#include "base/slab.h"
#include "weir/alloc.h"

#define WEIR__MIB (1024ull * 1024)

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

/* Another stream that uses a block. */
typedef struct weir__use weir__use;
struct weir__use {
  weir_cu_stream stream;
  unsigned long long capture; /* in which it was when it was first recorded; 0: none, or nobody asks (markers.c) */
  weir__use *next;
};

struct weir__arena {
  weir__lock lock;
  weir__pool *pool;
  weir_cu_stream stream;
  weir__index free;            /* free blocks; this and the next four are guarded by the lock */
  weir__block *unmapped;       /* address space without memory, by address */
  weir__live live;             /* active blocks by address */
  weir__slab blocks, uses;     /* where they come from */
  _Atomic(weir__arena *) next; /* in a bucket of the pool */
};

struct weir__pool {
  weir__heap *heap;
  bool is_small;
  weir__private_pool *owner;                           /* NULL: the default pool */
  atomic_uint searches;                                /* counted only while collection is on: the clock of its ages */
  _Atomic(weir__arena *) buckets[WEIR__ARENA_BUCKETS]; /* arenas by a hash of the stream */
};

struct weir__private_pool {
  weir_pool_id id;
  int uses;     /* graphs, scopes and owners that hold it; guarded by the heap's lock, as all below */
  int segments; /* that it has; expandable ones count once, whatever is mapped */
  bool is_over; /* nobody holds it: its free memory may go */
  bool use_on_oom, no_split;
  weir_stat reserved_bytes[WEIR_STAT_KINDS];                                      /* guarded by the heap's stats_lock */
  void *(*alloc)(void *context, size_t bytes, int device, weir_cu_stream stream); /* NULL: the driver's memory */
  void (*free)(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream);
  void *context;
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
  weir_cu_mem_handle *handles;    /* of each page; 0: none is mapped */
  size_t mapped;                  /* how many are */
  bool oversize;                  /* it was counted as such */
  weir__segment *previous, *next; /* in heap->segments, guarded by the heap's lock */
};

static inline bool weir__is_expandable(const weir__block *block) { return block->segment->page != 0; }

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
  weir_cu_graph_node *markers;
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
  uint64_t peers;                     /* a bit for each device that may touch expandable memory of this one */
  struct weir__stream_class *classes; /* streams that were put into a class of reserves; guarded by the lock */
  atomic_bool had_expandable;         /* an expandable segment was made, at any time; also read without the lock */
  weir__pool small, large;            /* the default pool */
  weir__private_pool *private_pools;
  weir__segment *segments;
  weir_cu_mem_handle *orphans; /* of pages that are gone, and that the driver did not take back yet */
  size_t orphan_count, orphan_room;
  weir__event_queue *queues;
  weir__deferred *deferred; /* freed during a capture, without events yet */
  size_t deferred_count, deferred_room;
  weir_cu_event *idle_events; /* to be used again */
  size_t idle_count, idle_room;
  _Atomic(weir__route *) routes; /* the innermost first; changed under the lock */
  atomic_int captures;           /* routes that are captures */
  atomic_size_t pending;         /* events and deferred blocks; looked at without the lock */
  weir__slab pendings;

  weir__lock stats_lock;
  weir_allocator_stats stats;
};

struct weir_allocator {
  weir_driver *driver;
  int heap_count;
  weir__heap *heaps;
  _Atomic(const weir__settings *) settings; /* replaced whole; old ones stay until the end */
  pthread_mutex_t configure_lock;
  struct weir__page_map *pages; /* address -> segment */
  atomic_bool caching;
  pthread_mutex_t uncached_lock;
  weir__rangemap uncached; /* memory that was given out with caching off -> its heap; guarded by uncached_lock */
  atomic_int tracker_count;
  weir__lock tracker_lock; /* one tracker's call at a time */
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
};

static inline const weir__settings *weir__settings_of(const weir__heap *heap) {
  return atomic_load_explicit(&heap->allocator->settings, memory_order_acquire);
}

/* ---- Sizes (sizes.c) ---- */

uint64_t weir__round_bytes(const weir__settings *settings, uint64_t bytes);
uint64_t weir__segment_bytes(const weir__settings *settings, uint64_t bytes);

/* Whether what is left of a block is worth a block of its own. */
bool weir__should_split(const weir__settings *settings, const weir__block *block, uint64_t bytes);

/* ---- Arenas (arena.c) ---- */

/* The arena of a pool for a stream, made if need be; NULL: no host memory. */
weir__arena *weir__arena_get(weir__pool *pool, weir_cu_stream stream);

/* The best free block for a size, out of the index; NULL: none. `counted`: the search counts for the ages of blocks. */
weir__block *weir__arena_take(weir__arena *arena, const weir__settings *settings, uint64_t bytes, bool counted);

/* Makes a block that was taken the caller's: cuts off what is not needed, with `exact` also what the rules would leave on.
 * NULL, and the block is free again: no host memory. */
weir__block *weir__arena_hand_out(weir__arena *arena, const weir__settings *settings, weir__block *block,
                                  uint64_t bytes, uint64_t requested, bool exact);

/* The owner lets go of a block: it is active as long as other streams use it. */
void weir__arena_let_go(weir__arena *arena, weir__block *block);

/* A block that is no longer active goes back to the index, merged with its neighbours. */
void weir__arena_release(weir__arena *arena, weir__block *block);

/* Puts a free, mapped block into the index. */
void weir__arena_insert(weir__arena *arena, weir__block *block);

/* `block` takes its neighbour in when that is free too, and mapped or not as it is. The bytes that it gained. */
uint64_t weir__arena_merge(weir__arena *arena, weir__block *block, weir__block *neighbour);

weir__block *weir__arena_new_block(weir__arena *arena, weir__segment *segment, uint64_t address, uint64_t bytes);

/* All arenas of a pool in the order of their streams. The number; the array is the caller's to free. 0 and NULL: none. */
size_t weir__pool_arenas(const weir__pool *pool, weir__arena ***arenas);
void weir__pool_clear(weir__pool *pool);

/* ---- Segments (segment.c). With the heap's lock, and no arena's ---- */

/* A new block of at least so many bytes, taken: it is not in the index, and marked as allocated where it has neighbours that
 * could merge it. NULL: the driver has no memory, or the limit is reached. */
weir__block *weir__heap_grow(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes,
                             uint64_t segment_bytes);

/* Gives a whole free segment back. The block is in the index, and the arena's lock is held. false: the driver did not take
 * it, and nothing changed. */
bool weir__release_segment(weir__heap *heap, weir__block *block);

/* Unmaps the whole pages inside a free block of an expandable segment; the segment goes when nothing of it is left. The
 * block is in the index, the arena's lock is held, and the stream has no work. */
void weir__release_pages(weir__heap *heap, weir__block *block);

/* Reservations of an arena, its lock held, that have no pages and that the driver did not take back before. */
void weir__release_reservations(weir__heap *heap, weir__arena *arena);
void weir__heap_free_segments(weir__heap *heap);

/* A capture forbids calls like MemAlloc, though nothing of it depends on them: around such calls the thread's capture mode is
 * relaxed. false: that failed, and the call would end the capture. restore takes the mode that came out. */
bool weir__capture_relax(weir__heap *heap, int *mode);
void weir__capture_restore(weir__heap *heap, int mode);

/* How much address space an expandable segment of a stream reserves: 9/8 of the device's memory, or less where the settings
 * say so. */
uint64_t weir__reserve_bytes(const weir__heap *heap, const weir__settings *settings, weir_cu_stream stream);

/* Another device may touch what is mapped now. */
weir_cu_result weir__share_segments(weir__heap *heap, int device);

/* The segment of an address; NULL: none of ours. */
weir__segment *weir__page_map_find(const struct weir__page_map *map, uint64_t address);
struct weir__page_map *weir__page_map_new(void);
void weir__page_map_delete(struct weir__page_map *map);

/* ---- Running short (reclaim.c). With the heap's lock ---- */

/* Everything that can be tried after the index had nothing. NULL: out of memory. */
weir__block *weir__refill(weir__heap *heap, weir__arena *arena, const weir__settings *settings, uint64_t bytes);
void weir__release_cached(weir__heap *heap, bool default_pool);

/* The same of a private pool; nothing happens while somebody holds it. */
void weir__release_pool(weir__heap *heap, weir__private_pool *pool);

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

/* Within a capture (markers.c): how far the streams of a block were, and which blocks a stream has passed all of that of. */
void weir__markers_take(weir__heap *heap, const weir__block *block, weir__deferred *deferred);
void weir__markers_poll(weir__heap *heap, weir_cu_stream stream);
unsigned long long weir__capture_of(weir__heap *heap, weir_cu_stream stream);

/* ---- Settings (control.c) ---- */

/* Turns off what the driver cannot do. */
void weir__settings_fit(const weir_driver *driver, weir__settings *settings);

/* ---- Without the cache (uncached.c) ---- */

weir_status weir__uncached_alloc(const char *who, weir__heap *heap, uint64_t bytes, void **pointer);

/* false: the pointer was not given out so. */
bool weir__uncached_free(const char *who, weir_allocator *allocator, void *pointer, weir_status *status);
bool weir__uncached_has(weir_allocator *allocator, const void *pointer, size_t *bytes); /* bytes may be NULL */
void weir__uncached_clear(weir_allocator *allocator);
bool weir__caching_from_env(void);

/* ---- Private pools (pool.c) ---- */

/* With the heap's lock. */
weir__private_pool *weir__pool_find(weir__heap *heap, weir_pool_id id);

/* The private pool that an allocation on a stream goes to, or NULL. Takes the heap's lock: ask only when there are routes. */
weir__private_pool *weir__route_of(weir__heap *heap, weir_cu_stream stream);
void weir__routes_clear(weir__heap *heap);
void weir__graphs_forget(weir_allocator *allocator);

/* ---- Statistics and traces (stats.c) ---- */

/* What an operation changes; signs tell the direction. */
typedef struct weir__change {
  bool is_small;
  int allocation, segment, active, inactive_split, oversize_allocations, oversize_segments;
  int64_t allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
} weir__change;
void weir__count(weir__heap *heap, const weir__change *change);
void weir__count_event(weir__heap *heap, int64_t *counter);
void weir__count_pool(weir__heap *heap, weir__private_pool *pool, bool is_small, int64_t reserved_bytes);

void weir__trace_slow(weir__heap *heap, const weir_trace_entry *entry);
static inline void weir__trace(weir__heap *heap, weir_trace_action action, const weir__pool *pool, uint64_t address,
                               uint64_t bytes, weir_cu_stream stream) {
  if (!atomic_load_explicit(&heap->allocator->tracker_count, memory_order_relaxed))
    return;
  weir_trace_entry entry = {.action = action,
                            .device = heap->device,
                            .address = address,
                            .bytes = bytes,
                            .stream = stream,
                            .pool = pool->owner ? pool->owner->id : (weir_pool_id){0, 0}};
  weir__trace_slow(heap, &entry);
}

/* ---- The calls (allocator.c) ---- */

/* Refuses settings that ask for another allocator than this one. */
weir_status weir__check_backend(const weir__settings *settings);

/* NULL, and the last error set, for a device that is none. */
weir__heap *weir__heap_get(const char *who, weir_allocator *allocator, int device);

/* Allocates from a private pool, or from the default one where that is NULL, on behalf of the public call `who`. */
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

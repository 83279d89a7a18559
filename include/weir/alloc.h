/*
 * The caching allocator: device memory per stream.
 *
 * The allocator obtains memory from the driver in segments, cuts them into blocks, and keeps blocks that are freed. A
 * freed block is reused on its own stream at once and without synchronization, because a stream does its work in order.
 * If other streams use a block too, the program says so (weir_allocator_record_stream), and the block is reused only
 * after they have finished with it.
 *
 * An allocator is an object, and a program can have many; weir/memory.h has one for the process. Every call is
 * thread-safe. An allocator belongs to the process that created it: in a forked child every call on it returns
 * WEIR_ERROR_BAD_FORK.
 */
#ifndef WEIR_ALLOC_H
#define WEIR_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#include "weir/driver.h"
#include "weir/pool.h"
#include "weir/status.h"
#include "weir/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_allocator weir_allocator;

/* A back end: functions that provide memory in place of the cache. Every allocation and every free calls them, from
 * several threads at once and without a lock. They may call the allocator; what they allocate there is an ordinary
 * allocation. Optional functions may be NULL. The names are those of PyTorch's CUDAPluggableAllocator. */
typedef struct weir_backend {
  size_t size;      /* sizeof(weir_backend) */
  const char *name; /* that of weir_allocator_backend(); NULL means "pluggable" */
  void *context;    /* the first argument of every function */

  /* Returns NULL if out of memory. Live allocations must not overlap. */
  void *(*alloc)(void *context, uint64_t bytes, int device, weir_cu_stream stream);

  /* bytes, device and stream are those of the allocation. */
  void (*free)(void *context, void *pointer, uint64_t bytes, int device, weir_cu_stream stream);

  void (*init)(void *context, int device_count); /* optional; called once, before all others */
  void (*reset)(void *context);                  /* optional; called by empty_cache and before out of memory */
  void (*set_fraction)(void *context, double fraction,
                       int device);                             /* optional; the allocator enforces the limit as well */
  void *(*base)(void *context, void *pointer, uint64_t *bytes); /* optional; without it, the pointer is the base */

  /* Optional. A back end that has this waits for other streams by itself: record_stream and free call it at once.
   * Without it, memory that other streams use is freed after they have finished with it. */
  void (*record_stream)(void *context, void *pointer, weir_cu_stream stream);

  /* Optional; called for the scopes of private pools (weir/pool.h). A NULL filter stands for the calling thread, whose
   * scopes may end with it, without a call. */
  void (*begin_pool)(void *context, int device, weir_pool_id pool,
                     int (*filter)(void *filter_context, weir_cu_stream stream), void *filter_context);
  void (*end_pool)(void *context, int device, weir_pool_id pool);
  void (*release_pool)(void *context, int device, weir_pool_id pool);
} weir_backend;

/* Sets `size` and makes the rest zero. */
static inline void weir_backend_init(weir_backend *backend) { WEIR__INIT(backend); }

typedef struct weir_allocator_options {
  size_t size;      /* sizeof(weir_allocator_options) */
  const char *conf; /* settings as "key:value,key:value"; NULL reads WEIR_ALLOC_CONF or PyTorch's variables */
  int devices;      /* the number of the driver's devices to use; 0, the default, means all */

  /* Copied. NULL means the cache, or the driver's stream-ordered memory if the settings have
   * backend:cudaMallocAsync. */
  const weir_backend *backend;

  /* Nonzero if streams may be destroyed while the allocator still holds memory of theirs. NVIDIA's driver crashes
   * when it has to wait for such a stream, so the allocator waits for the whole device instead. */
  int streams_may_end;

  /* The version of the handles that weir_ipc_share creates: 3 is PyTorch's from 2.13 on; all other values mean 2,
   * the version of earlier releases. */
  int ipc_version;

  /* What out-of-memory texts call the program, up to 31 bytes, and say at the end when fragmentation may be the cause.
   * Copied. NULL: "Weir", and an advice about WEIR_ALLOC_CONF. */
  const char *owner, *advice;

  /* Nonzero for the rules of PyTorch's allocator on scopes of private pools: the newest one that takes a request
   * counts, whether it is of a thread or of streams, and any thread may close that of another one. */
  int scopes_as_pytorch;
} weir_allocator_options;

/* Sets `size` and the defaults. */
static inline void weir_allocator_options_init(weir_allocator_options *options) { WEIR__INIT(options); }

/* Creates an allocator on a driver whose Init has been called. The caller keeps the driver, which must outlive the
 * allocator; weir_shutdown fails while an allocator is alive on a driver that the runtime opened. The primary
 * context of a device is retained on first use. NULL options are the defaults. */
weir_status weir_allocator_create(weir_driver *driver, const weir_allocator_options *options,
                                  weir_allocator **allocator);

/* Returns all memory to the driver, including memory that is still allocated. NULL is allowed. Does nothing in a forked
 * child. */
void weir_allocator_destroy(weir_allocator *allocator);

/* "native", "cudaMallocAsync", or the name of the back end in the options. */
weir_status weir_allocator_backend(const weir_allocator *allocator, char *text, size_t size, size_t *length);

/* Allocates memory of a device for use on a stream. 0 bytes give NULL. WEIR_ERROR_OUT_OF_MEMORY if there is not enough:
 * weir_last_error() says where the memory is, and the program can continue.
 *
 * The stream must be a stream of the driver. On the software device an invalid handle is WEIR_ERROR_INVALID_HANDLE
 * if the cache cannot serve the request, and in weir_allocator_record_stream. NVIDIA's driver cannot check a handle:
 * there an invalid stream appears as an error of a later call, or as a crash in the driver. */
weir_status weir_allocator_alloc(weir_allocator *allocator, int device, uint64_t bytes, weir_cu_stream stream,
                                 void **pointer);

/* NULL is allowed. A pointer that is not allocated here is WEIR_ERROR_INVALID_ARGUMENT, and the text says whether it
 * was freed already, lies within another allocation, or is unknown to this allocator. */
weir_status weir_allocator_free(weir_allocator *allocator, void *pointer);

/* Says that another stream uses the memory too. After the free, the memory is not reused before that stream has done
 * the work that it had when the memory was freed. Does nothing for NULL, and for the stream of the allocation. */
weir_status weir_allocator_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream);

/* Returns unused segments to the driver; during a capture, only those of pools that have been released. */
weir_status weir_allocator_empty_cache(weir_allocator *allocator);

/* The same for one pool; pool {0, 0} means all. */
weir_status weir_allocator_empty_pool(weir_allocator *allocator, weir_pool_id pool);

/* The size of the largest free block, or the driver's free memory if that is larger and nothing is cached. */
weir_status weir_allocator_largest_block(weir_allocator *allocator, int device, uint64_t *bytes);

/* *owns is 1 if the address lies in memory that the allocator holds from the driver, allocated or cached; otherwise 0.
 * With another back end, or with caching off, there is no cached memory: it is 1 only for pointers that are allocated
 * here. Under full guard the addresses of freed blocks belong to it too. */
weir_status weir_allocator_owns(weir_allocator *allocator, const void *pointer, int *owns);

/* The segment of an allocated pointer. WEIR_ERROR_NOT_SUPPORTED for expandable segments. */
weir_status weir_allocator_base(weir_allocator *allocator, void *pointer, void **base, uint64_t *bytes);

/* What is known about an allocated pointer. */
typedef struct weir_pointer_info {
  size_t size; /* sizeof(weir_pointer_info) */
  int device;
  weir_cu_stream stream; /* of the allocation */
  weir_pool_id pool;     /* {0, 0} for the default pool */
  uint64_t bytes;        /* of its block */
  uint64_t requested;    /* by the caller */
  uint32_t stack;        /* the recorded stack of the allocation (weir_history_frames), or 0 */
  int is_large;
  int is_expandable;
} weir_pointer_info;

/* Sets `size` and makes the rest zero, for weir_allocator_describe. */
static inline void weir_pointer_info_init(weir_pointer_info *info) { WEIR__INIT(info); }

/* The caller sets info->size. A pointer that is not allocated here is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_allocator_describe(weir_allocator *allocator, const void *pointer, weir_pointer_info *info);

/* Allocates memory at a given address, a multiple of 512. The range must lie in one free block of the stream, in the
 * pool for requests of this size; otherwise WEIR_ERROR_BAD_STATE. The history shows it as an allocation of the part
 * of the block before the address, the allocation itself, and the free of the first. */
weir_status weir_allocator_alloc_at(weir_allocator *allocator, int device, uint64_t bytes, weir_cu_stream stream,
                                    void *address);

/* Fixes the pages of an allocated pointer in place until they are returned to the driver: with moving_pages, they do
 * not move even when the memory is free. For memory that is registered with NCCL or a network card beyond its free.
 * Without effect on memory that never moves. */
weir_status weir_allocator_fix_pages(weir_allocator *allocator, void *pointer);

/* The mapped size of an expandable segment. */
typedef struct weir_expandable_segment {
  size_t size; /* sizeof(weir_expandable_segment) */
  weir_cu_stream stream;
  int is_small;
  uint64_t bytes; /* mapped */
} weir_expandable_segment;

/* Sets `size` and makes the rest zero. */
static inline void weir_expandable_segment_init(weir_expandable_segment *segment) { WEIR__INIT(segment); }

/* Lists the expandable segments of a device. *count is their number, even if `room` is smaller. The caller sets
 * segments[0].size unless `room` is 0. */
weir_status weir_allocator_expandable_segments(weir_allocator *allocator, int device, weir_expandable_segment *segments,
                                               size_t room, size_t *count);

/* ---- Limits and settings ---- */

/* Parses a size in the syntax of Weir's environment variables: "1024", "512 MB" (1000 * 1000), "80GiB" (1024 * 1024
 * * 1024). Anything else is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_bytes_parse(const char *text, uint64_t *bytes);

/* Limits the memory held from the driver to a fraction of the device's memory, from 0 to 1. 1 means no limit. */
weir_status weir_allocator_set_fraction(weir_allocator *allocator, int device, double fraction);

/* Limits it to a number of bytes; UINT64_MAX means no limit. The later of the two calls counts, and the fraction that
 * weir_allocator_get_fraction returns does not change. */
weir_status weir_allocator_set_limit(weir_allocator *allocator, int device, uint64_t bytes);

/* A soft limit refuses nothing. Where a request makes the device hold more, observers are told first, and then memory
 * that is only cached is given back. UINT64_MAX, the default, means none. weir_pool_set_limits and weir_tag_set_limits
 * are for a part of it. */
weir_status weir_allocator_set_soft_limit(weir_allocator *allocator, int device, uint64_t bytes);
weir_status weir_allocator_get_fraction(weir_allocator *allocator, int device, double *fraction);

/* Changes settings; keys that are not named keep their values. On an error nothing changes, and the text names the
 * key, its position and the allowed values. */
weir_status weir_allocator_configure(weir_allocator *allocator, const char *conf);

/* All settings that differ from their defaults, in the syntax of configure. */
weir_status weir_allocator_settings(weir_allocator *allocator, char *text, size_t size, size_t *length);

/* The value of one setting, such as "True" for "expandable_segments". WEIR_ERROR_INVALID_ARGUMENT for an unknown
 * key. */
weir_status weir_allocator_setting(weir_allocator *allocator, const char *key, char *text, size_t size, size_t *length);

/* New expandable segments of a stream reserve as much address space as expandable_segments_reserve_by_class has for
 * this class. NULL or "" removes the stream from its class. */
weir_status weir_allocator_set_reserve_class(weir_allocator *allocator, int device, weir_cu_stream stream,
                                             const char *reserve_class);

/* With caching off, every allocation and every free is a call of the driver, and nothing is counted. Caching is on
 * at the start unless WEIR_NO_MEMORY_CACHING or PYTORCH_NO_CUDA_MEMORY_CACHING is 1. Memory may be freed after a
 * change. With another back end there is no cache, and the call has no effect. */
weir_status weir_allocator_set_caching(weir_allocator *allocator, int on);
weir_status weir_allocator_is_caching(const weir_allocator *allocator, int *is_caching);

/* ---- Other devices ---- */

/* Lets `device` access memory that `owner` has allocated or will allocate. It is needed for expandable segments,
 * which the driver's peer access does not cover. weir_device_enable_peer_access is for the contexts themselves. */
weir_status weir_allocator_enable_peer_access(weir_allocator *allocator, int owner, int device);

/* Copies between memory of two devices. Uses the driver's peer copy where an ordinary copy would fail: without peer
 * access, and with expandable segments. */
weir_status weir_allocator_copy_async(weir_allocator *allocator, void *to, int to_device, const void *from,
                                      int from_device, uint64_t bytes, weir_cu_stream stream, int peer_access);

/* ---- Statistics: the names are those of torch.cuda.memory_stats() ---- */

/* A counter: the value now, the highest since the peaks were reset, and all that was added and taken away since the
 * accumulated statistics were reset. */
typedef struct weir_stat {
  int64_t current, peak, allocated, freed;
} weir_stat;

/* The pools that a counter is about. */
typedef enum weir_stat_kind {
  WEIR_STAT_ALL,
  WEIR_STAT_SMALL_POOL,
  WEIR_STAT_LARGE_POOL,
  WEIR_STAT_KINDS
} weir_stat_kind;

typedef struct weir_allocator_stats {
  size_t size; /* sizeof(weir_allocator_stats) */
  weir_stat allocation[WEIR_STAT_KINDS];
  weir_stat segment[WEIR_STAT_KINDS];
  weir_stat active[WEIR_STAT_KINDS];
  weir_stat inactive_split[WEIR_STAT_KINDS];
  weir_stat allocated_bytes[WEIR_STAT_KINDS];
  weir_stat reserved_bytes[WEIR_STAT_KINDS];
  weir_stat active_bytes[WEIR_STAT_KINDS];
  weir_stat inactive_split_bytes[WEIR_STAT_KINDS];
  weir_stat requested_bytes[WEIR_STAT_KINDS];
  int64_t num_alloc_retries;
  int64_t num_ooms;
  int64_t num_sync_all_streams;
  int64_t num_device_alloc;
  int64_t num_device_free;
  int64_t max_split_size; /* -1 means unlimited */
  weir_stat oversize_allocations;
  weir_stat oversize_segments;
  int64_t num_oom_rejections; /* requests that throw_on_cudamalloc_oom refused before a call of the driver */

  /* Moving pages (the setting moving_pages). */
  int64_t moving_pages_made;       /* created by the driver */
  int64_t moving_pages_moved;      /* mapped at another address ... */
  int64_t moving_moved_bytes;      /* ... and their bytes */
  int64_t moving_pages_returned;   /* used again where they were mapped before, without a call of the driver */
  int64_t moving_aliases;          /* mappings that pages have left behind: now, ... */
  int64_t moving_aliases_peak;     /* ... at most, ... */
  int64_t moving_aliases_unmapped; /* ... and how many have been unmapped */
  /* Free bytes that could not move when pages had to be made, the last time: in pages that are partly in use, fixed in
   * place or shared with other processes, of streams that were busy, and of private pools whose pages stay. */
  int64_t moving_unmovable_partial_bytes, moving_unmovable_fixed_bytes;
  int64_t moving_unmovable_busy_bytes, moving_unmovable_pool_bytes;

  /* Memory that was sent to other processes (weir/ipc.h). */
  int64_t ipc_references;       /* messages that other processes may still receive, or that they hold */
  int64_t ipc_limbo_blocks;     /* blocks that were freed while other processes have references: now, ... */
  int64_t ipc_limbo_bytes;      /* ... their bytes, ... */
  int64_t ipc_limbo_bytes_peak; /* ... and those at most. They are active, and not allocated */
  int64_t ipc_lost_references;  /* that ended because a process had ended, or because a message expired */
} weir_allocator_stats;

/* Sets `size` and makes the rest zero, for weir_allocator_get_stats. */
static inline void weir_allocator_stats_init(weir_allocator_stats *stats) { WEIR__INIT(stats); }

/* The counters of a device. Reading them walks no blocks. */
weir_status weir_allocator_get_stats(weir_allocator *allocator, int device, weir_allocator_stats *stats);
/* Sets each peak to the current value. */
weir_status weir_allocator_reset_peak_stats(weir_allocator *allocator, int device);
/* Sets what was allocated and freed, and the counts of events, to 0. */
weir_status weir_allocator_reset_accumulated_stats(weir_allocator *allocator, int device);

/* ---- Callbacks ---- */

/* The actions of history entries: name, number in ring files, text in snapshots. Trackers see those up to OOM. */
#define WEIR_TRACE_ACTION_MAP(X)                                                                                       \
  X(ALLOC, 0, "alloc")                                                                                                 \
  X(FREE_REQUESTED, 1, "free_requested")                                                                               \
  X(FREE_COMPLETED, 2, "free_completed")                                                                               \
  X(SEGMENT_ALLOC, 3, "segment_alloc")                                                                                 \
  X(SEGMENT_FREE, 4, "segment_free")                                                                                   \
  X(SEGMENT_MAP, 5, "segment_map")                                                                                     \
  X(SEGMENT_UNMAP, 6, "segment_unmap")                                                                                 \
  X(OOM, 7, "oom")                                                                                                     \
  X(SNAPSHOT, 8, "snapshot")                                                                                           \
  X(ANNOTATE, 9, "annotate")          /* weir_history_mark_pointer */                                                  \
  X(USER_DEFINED, 12, "user_defined") /* weir_history_mark */

typedef enum weir_trace_action {
#define X(name, number, text) WEIR_TRACE_##name = number,
  WEIR_TRACE_ACTION_MAP(X)
#undef X
      WEIR_TRACE_ACTIONS /* one more than the highest number */
} weir_trace_action;

/* "alloc", "free_requested" and so on; "unknown" for any other number. */
const char *weir_trace_action_name(weir_trace_action action);

typedef struct weir_trace_entry {
  size_t size; /* sizeof(weir_trace_entry) */
  weir_trace_action action;
  int device;
  uint64_t address; /* for WEIR_TRACE_OOM, the device's free memory */
  uint64_t bytes;   /* for allocations and frees, as requested */
  weir_cu_stream stream;
  weir_pool_id pool;
} weir_trace_entry;

/* Sets `size` and makes the rest zero. */
static inline void weir_trace_entry_init(weir_trace_entry *entry) { WEIR__INIT(entry); }

/* Why the device had too little memory for a request. */
typedef struct weir_shortage {
  size_t size; /* sizeof(weir_shortage) */
  int device;
  int is_rejection; /* throw_on_cudamalloc_oom refused the request before a call of the driver */
  weir_cu_stream stream;
  uint64_t requested;   /* by the program, rounded */
  uint64_t wanted;      /* from the driver, for the request */
  uint64_t limit;       /* the allowed memory, or `total` if there is no lower limit */
  uint64_t total;       /* the memory of the device */
  uint64_t device_free; /* of it, as the driver reports it; 0 for a rejection */
  uint64_t reserved;    /* held from the driver */
  /* Of these: in use; cached in private pools, which only their own requests can use; and freed, but still used by
   * other processes. All 0 for a rejection. */
  uint64_t allocated, free_in_private_pools, limbo;
} weir_shortage;

/* Sets `size` and makes the rest zero, for weir_last_shortage. */
static inline void weir_shortage_init(weir_shortage *shortage) { WEIR__INIT(shortage); }

/* The facts of the calling thread's last error, if that is a WEIR_ERROR_OUT_OF_MEMORY of a request that the device had
 * too little memory for. Otherwise WEIR_ERROR_BAD_STATE. */
weir_status weir_last_shortage(weir_shortage *shortage);

/* An account that is about to exceed its soft limit. */
typedef struct weir_soft_limit {
  size_t size; /* sizeof(weir_soft_limit) */
  int device;
  const char *account;   /* "device 0", "tag 'weights'" or "pool {0, 1}"; valid during the call */
  uint64_t limit, bytes; /* the limit, and what is held from the driver now */
  uint64_t wanted;       /* from the driver, for the request */
} weir_soft_limit;

/* Sets `size` and makes the rest zero. */
static inline void weir_soft_limit_init(weir_soft_limit *limit) { WEIR__INIT(limit); }

/* Functions that an allocator calls without a lock, so that they may call it. Those that are NULL are left out. */
typedef struct weir_observer {
  size_t size;   /* sizeof(weir_observer) */
  void *context; /* the first argument of every function */

  /* For every history entry, by the thread that caused it, before the call that caused it returns. Entries of one
   * thread come in order; several threads may call at once. It does not get entries for its own calls. */
  void (*entry)(void *context, const weir_trace_entry *entry);

  /* Before an out-of-memory error is returned: because the driver had no memory, or because throw_on_cudamalloc_oom
   * refused the request. */
  void (*out_of_memory)(void *context, const weir_shortage *shortage);
  void (*rejection)(void *context, const weir_shortage *shortage);

  /* When no cached block fits: frees what it can, and returns 1 if it freed anything. */
  int (*free_memory)(void *context, int device);

  /* When an account would exceed its soft limit, before cached memory is given back for that: it may free memory. */
  void (*soft_limit)(void *context, const weir_soft_limit *limit);
} weir_observer;

/* Sets `size` and makes the rest zero. */
static inline void weir_observer_init(weir_observer *observer) { WEIR__INIT(observer); }

/* The struct is copied. WEIR_ERROR_BAD_STATE if 16 are attached. */
weir_status weir_allocator_attach(weir_allocator *allocator, const weir_observer *observer);

/* Removes the observer with these functions and this context, and waits until calls of it in other threads have
 * returned: then the context may be freed. WEIR_ERROR_INVALID_ARGUMENT if there is none. The caller must not hold a
 * lock that a function of the observer takes. */
weir_status weir_allocator_detach(weir_allocator *allocator, const weir_observer *observer);

#ifdef __cplusplus
}
#endif
#endif

/*
 * The caching allocator: device memory by stream.
 *
 * Memory is obtained from the driver in segments, cut into blocks, and kept when it is freed. A block that was freed is used
 * again on its own stream at once, with no synchronization: work on a stream is done in order. A block that other streams
 * use as well is told about them (weir_allocator_record_stream), and waits for them when it is freed.
 *
 * An allocator is an object; a program can have many. Every call may be made from any thread. An allocator belongs to
 * the process that created it: in a forked child every call on it returns WEIR_ERROR_BAD_FORK, at once.
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

/* Where memory comes from, instead of the cache: every allocation and every free is a call of these. The functions may be
 * called by several threads at once, with no lock held, and may call the allocator; what they allocate there is an allocation
 * like any other. Those that are optional are NULL. The names are those of PyTorch's CUDAPluggableAllocator. */
typedef struct weir_backend {
  size_t size;      /* sizeof(weir_backend) */
  const char *name; /* what weir_allocator_backend() says; NULL: "pluggable" */
  void *context;    /* the first argument of all */

  /* NULL: out of memory. Two live allocations never overlap. */
  void *(*alloc)(void *context, size_t bytes, int device, weir_cu_stream stream);

  /* bytes, device and stream are those of the allocation. */
  void (*free)(void *context, void *pointer, size_t bytes, int device, weir_cu_stream stream);

  void (*init)(void *context, int device_count); /* optional: called once, before all others */
  void (*reset)(void *context);                  /* optional: empty_cache, and before out of memory */
  void (*set_fraction)(void *context, double fraction,
                       int device);                           /* optional: is told; the limit is kept all the same */
  void *(*base)(void *context, void *pointer, size_t *bytes); /* optional: without it the pointer is the base */

  /* Optional: it waits for other streams by itself, and is called at once for a record_stream and a free. Without it memory
   * that other streams use is freed when they got there. */
  void (*record_stream)(void *context, void *pointer, weir_cu_stream stream);

  /* Optional: are told of the scopes of private pools (weir/pool.h). A filter of NULL stands for the calling thread. */
  void (*begin_pool)(void *context, int device, weir_pool_id pool,
                     int (*filter)(void *filter_context, weir_cu_stream stream), void *filter_context);
  void (*end_pool)(void *context, int device, weir_pool_id pool);
  void (*release_pool)(void *context, int device, weir_pool_id pool);
} weir_backend;

void weir_backend_init(weir_backend *backend);

typedef struct weir_allocator_options {
  size_t size;      /* sizeof(weir_allocator_options) */
  const char *conf; /* settings as "key:value,key:value"; NULL reads WEIR_ALLOC_CONF or PyTorch's variables */
  int devices;      /* how many of the driver's; 0, the default: all */

  /* Is copied. NULL: the cache, or the driver's stream-ordered memory where the settings have backend:cudaMallocAsync. */
  const weir_backend *backend;

  /* Not 0: others destroy streams whose memory is still here. NVIDIA's driver crashes when it is told to wait for such a stream,
   * so the whole device is waited for instead. */
  int streams_may_end;

  /* Of the names that weir_ipc_share makes. 3: PyTorch's from 2.13 on; else 2, that of all before it. */
  int ipc_version;
} weir_allocator_options;

void weir_allocator_options_init(weir_allocator_options *options);

/* An allocator over a driver whose Init was called. The driver stays the caller's, and outlives it; weir_shutdown fails
 * while an allocator is alive on the driver that the runtime opened. For each device the primary context is retained
 * when it is first used. options NULL: the defaults. */
weir_status weir_allocator_create(weir_driver *driver, const weir_allocator_options *options,
                                  weir_allocator **allocator);

/* Gives all memory back to the driver, also what is still in use. NULL is allowed. Does nothing in a forked child. */
void weir_allocator_destroy(weir_allocator *allocator);

/* "native", "cudaMallocAsync", or the name of the options' back end. */
const char *weir_allocator_backend(const weir_allocator *allocator);

/* Memory of a device for use on a stream. 0 bytes give NULL. WEIR_ERROR_OUT_OF_MEMORY when there is no more:
 * weir_last_error() then says where it all is, and the program can go on.
 *
 * The stream has to be one of the driver's. On the software device a handle that is none is WEIR_ERROR_INVALID_HANDLE
 * whenever the cache cannot serve the request, and in weir_allocator_record_stream. NVIDIA's driver cannot be asked
 * whether a handle is one: there a bad stream shows as an error of a later call, or as a crash in the driver. */
weir_status weir_allocator_alloc(weir_allocator *allocator, int device, size_t bytes, weir_cu_stream stream,
                                 void **pointer);

/* Calls that end in _on take a weir_stream in place of the raw stream and its device. The stream is one of the runtime's, so
 * these are for allocators on the runtime's driver (weir_get_driver). */
weir_status weir_allocator_alloc_on(weir_allocator *allocator, size_t bytes, weir_stream stream, void **pointer);

/* NULL is allowed. A pointer that is not live here is WEIR_ERROR_INVALID_ARGUMENT, and the text says whether it was
 * freed already, is within another allocation, or is not of this allocator. */
weir_status weir_allocator_free(weir_allocator *allocator, void *pointer);

/* Another stream uses the memory too: when it is freed, it is not used again before that stream got there. Nothing happens
 * for NULL and for the stream that it was allocated on. */
weir_status weir_allocator_record_stream(weir_allocator *allocator, void *pointer, weir_cu_stream stream);
weir_status weir_allocator_record_stream_on(weir_allocator *allocator, void *pointer, weir_stream stream);

/* Gives unused segments back to the driver. During a capture only those of pools that are over. */
weir_status weir_allocator_empty_cache(weir_allocator *allocator);

/* The same for one pool; pool {0, 0} is all. */
weir_status weir_allocator_empty_pool(weir_allocator *allocator, weir_pool_id pool);

/* The largest free block, or the driver's free memory where that is larger and nothing is cached. */
weir_status weir_allocator_largest_block(weir_allocator *allocator, int device, size_t *bytes);

/* 1 if the address lies in memory that the allocator holds from the driver, whether it is allocated or cached; otherwise 0.
 * Another back end, or caching that is off, keeps no such memory: then it is 1 for pointers that are allocated here. */
int weir_allocator_owns(weir_allocator *allocator, const void *pointer);

/* The segment that holds a live pointer. Not for expandable segments: WEIR_ERROR_NOT_SUPPORTED. */
weir_status weir_allocator_base(weir_allocator *allocator, void *pointer, void **base, size_t *bytes);

/* What is known of a live pointer. */
typedef struct weir_pointer_info {
  size_t size; /* sizeof(weir_pointer_info) */
  int device;
  weir_cu_stream stream; /* that it was allocated on */
  weir_pool_id pool;     /* {0, 0}: the default pool */
  size_t bytes;          /* of its block */
  size_t requested;      /* what was asked for */
  uint32_t stack;        /* number of the recorded stack that it was allocated in (weir_history_frames); 0: none */
  int is_large;
  int is_expandable;
} weir_pointer_info;

void weir_pointer_info_init(weir_pointer_info *info);

/* info->size is set by the caller. A pointer that is not live here is WEIR_ERROR_INVALID_ARGUMENT. */
weir_status weir_allocator_describe(weir_allocator *allocator, const void *pointer, weir_pointer_info *info);

/* Memory at that very address, which is a multiple of 512: the place lies in one free block of the stream, of the pool that
 * requests of this size go to. WEIR_ERROR_BAD_STATE when it does not. To the history it is an allocation of what comes before
 * it in the block, its own, and the free of the first. */
weir_status weir_allocator_alloc_at(weir_allocator *allocator, int device, size_t bytes, weir_cu_stream stream,
                                    void *address);
weir_status weir_allocator_alloc_at_on(weir_allocator *allocator, size_t bytes, weir_stream stream, void *address);

/* An expandable segment: how much memory a stream's has now. */
typedef struct weir_expandable_segment {
  weir_cu_stream stream;
  int is_small;
  size_t bytes; /* mapped */
} weir_expandable_segment;

/* Those of a device. *count is how many there are, whatever there is room for. */
weir_status weir_allocator_expandable_segments(weir_allocator *allocator, int device, weir_expandable_segment *segments,
                                               size_t room, size_t *count);

/* ---- Limits and settings ---- */

/* At most this part of the device's memory, 0 to 1, is taken from the driver. 1: no limit. */
weir_status weir_allocator_set_fraction(weir_allocator *allocator, int device, double fraction);

/* At most so many bytes; the fraction stays what it was set to last, and the later of the two calls counts. SIZE_MAX: no
 * limit. */
weir_status weir_allocator_set_limit(weir_allocator *allocator, int device, size_t bytes);
weir_status weir_allocator_get_fraction(weir_allocator *allocator, int device, double *fraction);

/* Changes settings; keys that are not named stay as they are. On an error nothing changes, and the text names the key, the
 * position and what is allowed. */
weir_status weir_allocator_configure(weir_allocator *allocator, const char *conf);

/* The text of all settings that are not at their default, in the syntax of configure. Returns its whole length. text
 * may be NULL, to learn the length. */
size_t weir_allocator_settings(weir_allocator *allocator, char *text, size_t size);

/* Expandable segments of a stream reserve the address space that expandable_segments_reserve_by_class has for this class, from
 * the next one on. NULL or "" takes the stream out of its class. */
weir_status weir_allocator_set_reserve_class(weir_allocator *allocator, int device, weir_cu_stream stream,
                                             const char *reserve_class);
weir_status weir_allocator_set_reserve_class_on(weir_allocator *allocator, weir_stream stream,
                                                const char *reserve_class);

/* Caching off: every allocation goes to the driver, every free too, and nothing is counted. The start is on, unless
 * WEIR_NO_MEMORY_CACHING or PYTORCH_NO_CUDA_MEMORY_CACHING is 1. Memory may be freed after a switch. Another back end has no
 * cache to turn off: it stays as it is. */
weir_status weir_allocator_set_caching(weir_allocator *allocator, int on);
int weir_allocator_is_caching(const weir_allocator *allocator);

/* ---- Other devices ---- */

/* Lets `device` touch memory that `owner` has given out, now and later; for expandable segments, whose memory follows no
 * switch of the driver's. The two contexts' own peer access is weir_device_enable_peer_access. */
weir_status weir_allocator_enable_peer_access(weir_allocator *allocator, int owner, int device);

/* Copies between memory of two devices, and takes the driver's peer variant where the plain one would not work: no peer
 * access, and expandable segments in use. */
weir_status weir_allocator_copy_async(weir_allocator *allocator, void *to, int to_device, const void *from,
                                      int from_device, size_t bytes, weir_cu_stream stream, int peer_access);
weir_status weir_allocator_copy_async_on(weir_allocator *allocator, void *to, int to_device, const void *from,
                                         int from_device, size_t bytes, weir_stream stream, int peer_access);

/* ---- Statistics ---- */

typedef struct weir_stat {
  int64_t current, peak, allocated, freed;
} weir_stat;

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
  int64_t max_split_size; /* -1: unlimited */
  weir_stat oversize_allocations;
  weir_stat oversize_segments;
  int64_t num_oom_rejections; /* requests that throw_on_cudamalloc_oom refused before the driver was asked */
} weir_allocator_stats;

void weir_allocator_stats_init(weir_allocator_stats *stats);

weir_status weir_allocator_get_stats(weir_allocator *allocator, int device, weir_allocator_stats *stats);
weir_status weir_allocator_reset_peak_stats(weir_allocator *allocator, int device);
weir_status weir_allocator_reset_accumulated_stats(weir_allocator *allocator, int device);

/* ---- Watching ---- */

typedef enum weir_trace_action {
  WEIR_TRACE_ALLOC,
  WEIR_TRACE_FREE_REQUESTED,
  WEIR_TRACE_FREE_COMPLETED,
  WEIR_TRACE_SEGMENT_ALLOC,
  WEIR_TRACE_SEGMENT_FREE,
  WEIR_TRACE_SEGMENT_MAP,
  WEIR_TRACE_SEGMENT_UNMAP,
  WEIR_TRACE_OOM
} weir_trace_action;

typedef struct weir_trace_entry {
  weir_trace_action action;
  int device;
  uint64_t address; /* of an OOM: the device's free memory */
  uint64_t bytes;   /* of alloc and free: as requested */
  weir_cu_stream stream;
  weir_pool_id pool;
} weir_trace_entry;

typedef void (*weir_trace_tracker)(void *context, const weir_trace_entry *entry);

/* Called for every entry, by the thread that caused it, before the call that caused it returns: in order for each thread, and
 * perhaps for several threads at once. No lock is held, so it may call the allocator; of what it does there itself it is not
 * told. */
weir_status weir_allocator_attach_tracker(weir_allocator *allocator, weir_trace_tracker tracker, void *context);

/* bytes: the segment that was wanted; limit: the allowed memory, or the device's; free_bytes: what the driver says. */
typedef void (*weir_oom_observer)(void *context, int device, size_t bytes, size_t limit, size_t free_bytes);

/* Called before out of memory is reported, with no lock held. */
weir_status weir_allocator_attach_oom_observer(weir_allocator *allocator, weir_oom_observer observer, void *context);

/* bytes: the segment that was wanted; reserved: what is taken from the driver; total: the device's memory. */
typedef void (*weir_rejection_observer)(void *context, int device, size_t bytes, size_t reserved, size_t total);

/* Called when throw_on_cudamalloc_oom refuses a request, with no lock held. */
weir_status weir_allocator_attach_rejection_observer(weir_allocator *allocator, weir_rejection_observer observer,
                                                     void *context);

/* Called when no cached block fits: frees what it can, and returns 1 when it freed anything. No lock is held. */
typedef int (*weir_free_memory_callback)(void *context, int device);
weir_status weir_allocator_attach_free_callback(weir_allocator *allocator, weir_free_memory_callback callback,
                                                void *context);

#ifdef __cplusplus
}
#endif
#endif

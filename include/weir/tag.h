/*
 * Tags: names on private pools, such as "weights" and "cache". A tag is what sleeps and wakes as a whole: its memory
 * goes to other uses of the device, its addresses stay, and its bytes come back (docs/c/sleep.md).
 *
 * A pool belongs to the tag in whose scope it was created, for good; a block keeps the tag of its pool wherever it is
 * freed. Pools of a tag grow by pages of 2 to 64 MiB, whatever the settings say.
 */
#ifndef WEIR_TAG_H
#define WEIR_TAG_H

#include <stddef.h>
#include <stdint.h>

#include "weir/driver.h"
#include "weir/pool.h"
#include "weir/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tag of one device of an allocator. It lasts as long as its allocator. */
typedef struct weir_tag weir_tag;

/* Finds the tag of that name, or creates it. The name is neither empty nor longer than 63 bytes. */
weir_status weir_tag_open(weir_allocator *allocator, int device, const char *name, weir_tag **tag);

/* The tags of a device in the order of their creation. *count is their number, even if `room` is smaller. */
weir_status weir_allocator_tags(weir_allocator *allocator, int device, weir_tag **tags, size_t room, size_t *count);

/* Opens a scope of the calling thread: its allocations come from the tag's own pool, and pools that it creates belong
 * to the tag. Scopes nest, those of pools included, and the innermost one counts. Within a capture, allocations come
 * from the pool of the capture, which must belong to the tag. A pool of another tag, or of none, cannot be selected
 * within: WEIR_ERROR_BAD_STATE. Threads do not inherit the scope. */
weir_status weir_tag_begin(weir_tag *tag);

/* Closes the innermost scope of the tag that the calling thread has. */
weir_status weir_tag_end(weir_tag *tag);

/* number, name, text. Numbers never change. */
#define WEIR_TAG_STATE_MAP(X)                                                                                          \
  X(0, AWAKE, "awake")                                                                                                 \
  X(1, FALLING_ASLEEP, "falling asleep") /* a thread is in weir_tag_sleep */                                           \
  X(2, ASLEEP, "asleep")                                                                                               \
  X(3, WAKING, "waking") /* a thread is in weir_tag_wake */

typedef enum weir_tag_state {
#define X(number, name, text) WEIR_TAG_##name = number,
  WEIR_TAG_STATE_MAP(X)
#undef X
} weir_tag_state;

/* "awake", "asleep" and so on; "unknown" for any other number. */
const char *weir_tag_state_name(weir_tag_state state);

typedef struct weir_tag_info {
  size_t size;      /* sizeof(weir_tag_info) */
  const char *name; /* valid as long as the tag */
  int device;
  weir_tag_state state;
  weir_pool_id pool;        /* its own pool */
  size_t pools;             /* that belong to it, with its own */
  uint64_t reserved_bytes;  /* held from the driver now */
  uint64_t allocated_bytes; /* in blocks that are not freed, asleep or not */
  uint64_t asleep_bytes;    /* of pages without memory, which a wake needs unless their blocks are freed before */
  uint64_t kept_bytes;      /* in host memory, for the next wake */
  uint64_t copied_bytes;    /* to the host and back, ever */
  uint64_t
      pinned_bytes; /* of host memory, for all tags of the device: what they keep, and what is ready for the next */
} weir_tag_info;

/* Sets `size` and makes the rest zero. */
static inline void weir_tag_info_init(weir_tag_info *info) { WEIR__INIT(info); }

/* The caller sets info->size. */
weir_status weir_tag_get_info(weir_tag *tag, weir_tag_info *info);

/* ---- Sleep ---- */

/* What becomes of the bytes of a tag that falls asleep. */
typedef enum weir_tag_content {
  WEIR_TAG_KEEP,   /* those of live blocks are copied to the host, and come back */
  WEIR_TAG_DISCARD /* they are lost: blocks have any contents after the wake */
} weir_tag_content;

typedef struct weir_tag_sleep_options {
  size_t size; /* sizeof(weir_tag_sleep_options) */
  /* The streams whose work is waited for, if stream_count is not 0; otherwise all work on the device is. At the
   * caller's risk: work of another stream on the tag's memory faults. */
  const weir_cu_stream *streams;
  size_t stream_count;
  /* Called while bytes are copied, by one thread at a time; it must not call the allocator. May be NULL. */
  void (*progress)(void *context, uint64_t done, uint64_t bytes);
  void *context;
} weir_tag_sleep_options;

/* Sets `size` and the defaults. */
static inline void weir_tag_sleep_options_init(weir_tag_sleep_options *options) { WEIR__INIT(options); }

/* Returns the tag's memory to the device; all addresses stay. Waits for the work that was submitted to the device
 * before the call. From then on no work may use the memory, and no graph that was captured in the tag may be launched,
 * until the tag is awake; both are the caller's promise. Work that others submit meanwhile is not held up.
 *
 * The live bytes are copied to pinned host memory, and no others: those of blocks that are allocated, and in the pools
 * of graphs all that was handed out during their captures. Free pages are returned.
 *
 * WEIR_ERROR_BAD_STATE if the tag is not awake, WEIR_ERROR_CAPTURE during a capture on the device, and
 * WEIR_ERROR_NOT_SUPPORTED if a page may not lose its memory: it is fixed in place, other processes or devices use it,
 * or the pool has no pages. WEIR_ERROR_HOST_OUT_OF_MEMORY if the host has too little memory. The tag is awake then. If
 * the driver fails to unmap pages and to map them again, the call fails and the tag is asleep, whole.
 *
 * While the tag is asleep its blocks can be freed; requests in it fail with WEIR_ERROR_BAD_STATE. A tag that is asleep
 * can be made to discard what it keeps. `options` may be NULL. */
weir_status weir_tag_sleep(weir_tag *tag, weir_tag_content content, const weir_tag_sleep_options *options);

/* Gives the tag memory again and copies back what it kept; returns when it can be used. Cached memory of the device is
 * released first where that is needed. WEIR_ERROR_OUT_OF_MEMORY if there is still too little: then, and after any other
 * failure, the tag is asleep as before. WEIR_ERROR_BAD_STATE if it is not asleep. Only `progress` and `context` of the
 * options are used; they may be NULL. */
weir_status weir_tag_wake(weir_tag *tag, const weir_tag_sleep_options *options);

/* Pins as much host memory as the tag would need if it fell asleep now, within the budget (WEIR_SLEEP_PINNED): that is
 * the larger part of the time of a first sleep. WEIR_ERROR_HOST_OUT_OF_MEMORY, with nothing pinned, if the host or the
 * budget has less. */
weir_status weir_tag_prepare(weir_tag *tag);

/* The limits of weir_pool_set_limits, for all pools of the tag together. */
weir_status weir_tag_set_limits(weir_tag *tag, uint64_t soft, uint64_t hard);

/* The tag of a pool; *tag is NULL if it has none. */
weir_status weir_pool_tag(weir_allocator *allocator, int device, weir_pool_id id, weir_tag **tag);

#ifdef __cplusplus
}
#endif
#endif

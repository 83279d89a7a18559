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
} weir_tag_info;

/* Sets `size` and makes the rest zero. */
static inline void weir_tag_info_init(weir_tag_info *info) { WEIR__INIT(info); }

/* The caller sets info->size. */
weir_status weir_tag_get_info(weir_tag *tag, weir_tag_info *info);

/* The tag of a pool; *tag is NULL if it has none. */
weir_status weir_pool_tag(weir_allocator *allocator, int device, weir_pool_id id, weir_tag **tag);

#ifdef __cplusplus
}
#endif
#endif

/*
 * Blocks, and the live table, which finds an active block by its address.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/region.h"
#include "base/slab.h"

struct weir__use;

enum { WEIR__UNIT = 512 }; /* sizes and addresses of the cache's blocks are multiples of it */

static const uint64_t weir__max_units = UINT32_MAX; /* largest block: 2 TiB */

typedef enum weir__block_status {
  WEIR__FREE,      /* in the index, or just removed from it */
  WEIR__UNMAPPED,  /* address space of an expandable segment without memory */
  WEIR__ALLOCATED, /* in use by the program */
  WEIR__WAITING    /* freed by the program, but still in use by other streams */
} weir__block_status;

/* Bits of a block of a segment that has pages. */
enum {
  WEIR__PAGED = 1 << 0,
  WEIR__PAGED_BARE = 1 << 1, /* parts of it may have no page: they were taken for other requests (move.c) */
  WEIR__PAGED_LAST = 1 << 2  /* an unmapped block may follow; always set if one does */
};

/* Marks of an active block. */
enum {
  WEIR__MARK_OVERSIZE = 1 << 0, /* counted as oversize; max_split_size may change before the free */
  WEIR__MARK_USES = 1 << 1,     /* other streams use it */
  WEIR__MARK_SENT = 1 << 2,     /* other processes may use it (sent.h) */
  WEIR__MARK_GUARDED = 1 << 3,  /* nothing may write beside what was requested (guard_port.h) */
  WEIR__MARK_ASLEEP = 1 << 4,   /* its tag is asleep, or about to be: its free is completed when the tag wakes */
  WEIR__MARK_LEFT = 1 << 5,     /* freed while asleep, and all else that it waited for has passed */
  WEIR__MARK_APART = 1 << 6,    /* its pages are its own, and end with it */
  WEIR__MARKS_SHARED = WEIR__MARK_USES | WEIR__MARK_SENT,    /* it has to wait for others after its free */
  WEIR__MARKS_GUARD = WEIR__MARK_GUARDED | WEIR__MARK_APART, /* it is the guard's before it is free */
  /* its free needs more than the arena's lock, and is not completed at once */
  WEIR__MARKS_SLOW = WEIR__MARKS_SHARED | WEIR__MARKS_GUARD | WEIR__MARK_ASLEEP
};

/* A piece of a segment, guarded by the arena's lock. Two blocks fit in a cache line: links have 32 bits, fields of free
 * blocks and of active blocks share their storage, and rarely used fields are in weir__block_cold. The segment and the
 * arena are found by address (heap.h). */
typedef struct weir__block {
  uint64_t address;
  uint32_t
      units; /* size; 0 for memory of a back end, whose size is `requested` and need not be a multiple of the unit */
  union {
    struct {
      uint8_t state;   /* weir__block_status */
      bool is_ordered; /* free: this block and all after it in the index list are in address order */
      uint8_t paged;   /* bits: WEIR__PAGED if its segment has pages */
      union {
        uint8_t marks;   /* active */
        uint8_t has_age; /* free: idle_since is valid */
      };
    };
    uint32_t head; /* all of them: written at once when the block becomes free */
  };
  weir__ref previous, next; /* neighbours in the segment */
  union {
    struct {
      weir__ref left, right; /* in a tree: free blocks by size and address, unmapped ones by address */
    };
    struct {
      weir__ref after; /* in a list of free blocks of one size: the next one ... */
      weir__ref link;  /* ... and the word that refers to this block: `after` of the previous one, or the head */
    };
    uint64_t requested; /* active: what the caller requested */
  };
} weir__block;

_Static_assert(sizeof(weir__block) == 32, "two blocks are a cache line");

/* The bits of `paged` in a head; the rest of the head of a free block that was just inserted is 0. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
static const uint32_t weir__head_paged = 0xff0000;
#else
static const uint32_t weir__head_paged = 0xff00;
#endif

/* Rarely used fields of a block. */
typedef struct weir__block_cold {
  struct weir__use *uses; /* valid if has_uses */
  union {
    uint32_t events;     /* waiting: how many events it waits for */
    uint32_t idle_since; /* valid if has_age: the pool's count of searches when the block became free */
  };
} weir__block_cold;

_Static_assert(sizeof(weir__block_cold) <= sizeof(weir__block) / 2, "a cold part is half a block at most");

static inline uint64_t weir__block_bytes(const weir__block *block) {
  return block->units ? (uint64_t)block->units * WEIR__UNIT : block->requested;
}

static inline weir__block_cold *weir__block_cold_of(const weir__block *block) { return weir__cold_of(block); }

static inline weir__block *weir__block_at(weir__ref ref) { return ref ? weir__at(ref) : NULL; }
static inline weir__ref weir__block_ref(const weir__block *block) { return block ? weir__ref_of(block) : 0; }
static inline weir__block *weir__block_previous(const weir__block *block) { return weir__block_at(block->previous); }
static inline weir__block *weir__block_next(const weir__block *block) { return weir__block_at(block->next); }

static inline void weir__block_mark(weir__block *block, uint8_t mark, bool on) {
  block->marks = (uint8_t)(on ? block->marks | mark : block->marks & ~mark);
}

/* The other streams that use an active block. */
static inline struct weir__use *weir__block_uses(const weir__block *block) {
  return block->marks & WEIR__MARK_USES ? weir__block_cold_of(block)->uses : NULL;
}

static inline void weir__block_set_uses(weir__block *block, struct weir__use *uses) {
  weir__block_cold_of(block)->uses = uses;
  weir__block_mark(block, WEIR__MARK_USES, uses != NULL);
}

/* Raises the age of a free block by a number of searches. */
static inline void weir__block_make_older(weir__block *block, uint32_t by) {
  weir__block_cold *cold = weir__block_cold_of(block);
  cold->idle_since = (block->has_age ? cold->idle_since : 0) - by;
  block->has_age = true;
}

/* Marks a block that was removed from the index as in use until it is handed out. Its requested size is not known yet.
 * */
static inline void weir__block_hold(weir__block *block) {
  block->state = WEIR__ALLOCATED;
  block->marks = 0;
  block->requested = 0;
}

/* Allocated, or freed but still in use by another stream: it must not be merged. */
static inline bool weir__block_is_active(const weir__block *block) { return block->state >= WEIR__ALLOCATED; }
static inline bool weir__block_is_mapped(const weir__block *block) { return block->state != WEIR__UNMAPPED; }
static inline bool weir__block_is_split(const weir__block *block) { return (block->previous | block->next) != 0; }

/* Links `block` between two neighbours. */
static inline void weir__block_link(weir__block *block, weir__block *previous, weir__block *next) {
  block->previous = weir__block_ref(previous);
  block->next = weir__block_ref(next);
  if (previous)
    previous->next = weir__ref_of(block);
  if (next)
    next->previous = weir__ref_of(block);
}

/*
 * The live table of an arena: active blocks by address. It is a hash table whose buckets are cache lines of seven
 * slots. A tag byte of the hash is kept for each slot, so one word comparison tests all seven and usually only the
 * right block is touched. Each bucket counts the blocks that overflowed to the next bucket; a search ends at a bucket
 * whose count is 0.
 */
enum { WEIR__LIVE_SLOTS = 7 };

typedef struct weir__live_bucket {
  _Alignas(64) uint8_t tags[WEIR__LIVE_SLOTS]; /* tags of the slots; 0 if a slot is empty */
  uint8_t overflowed;                          /* blocks that overflowed to the next bucket; sticks at 255 */
  weir__block *blocks[WEIR__LIVE_SLOTS];
} weir__live_bucket;

typedef struct weir__live {
  weir__live_bucket *buckets; /* NULL until first used */
  size_t count, most;         /* blocks, and how many fit: five per bucket */
  unsigned bits, shift;       /* log2 of the number of buckets; 64 minus that */
} weir__live;

/* The slot of a block. */
typedef struct weir__live_place {
  weir__live_bucket *bucket;
  unsigned slot;
  bool is_overflow; /* it is in a later bucket than its own */
} weir__live_place;

static inline uint64_t weir__live_hash(uint64_t address) { return address / WEIR__UNIT * 0x9e3779b97f4a7c15u; }
static inline uint8_t weir__live_tag(uint64_t hash) { return (uint8_t)(hash >> 24 | 2); } /* never 0 or 1 */
static inline size_t weir__live_home(const weir__live *live, uint64_t hash) { return (size_t)(hash >> live->shift); }

/* Sets the highest bit of each byte whose tag is equal. Above the first match a bit may also be set for a tag that
 * differs by 1; since no tag of a block is 1, that is never an empty slot. */
static inline uint64_t weir__live_equal(const weir__live_bucket *bucket, uint8_t tag) {
  const uint64_t ones = 0x0001010101010101u; /* without the byte of `overflowed` */
  uint64_t tags;
  memcpy(&tags, bucket, sizeof tags);
  uint64_t differs = tags ^ ones * tag;
  return (differs - ones) & ~differs & ones << 7;
}

static inline bool weir__live_vacant(const weir__live_bucket *bucket) { return weir__live_equal(bucket, 0) != 0; }

/* Stores a block in a bucket with an empty slot. */
static inline void weir__live_put(weir__live_bucket *bucket, weir__block *block, uint64_t hash) {
  unsigned slot = (unsigned)__builtin_ctzll(weir__live_equal(bucket, 0)) / 8;
  bucket->tags[slot] = weir__live_tag(hash);
  bucket->blocks[slot] = block;
}

static inline weir__block *weir__live_match(weir__live_bucket *bucket, uint64_t address, uint64_t hash,
                                            bool is_overflow, weir__live_place *place) {
  for (uint64_t equal = weir__live_equal(bucket, weir__live_tag(hash)); equal; equal &= equal - 1) {
    unsigned slot = (unsigned)__builtin_ctzll(equal) / 8;
    if (bucket->blocks[slot]->address == address) {
      *place = (weir__live_place){bucket, slot, is_overflow};
      return bucket->blocks[slot];
    }
  }
  return NULL;
}

bool weir__live_grow(weir__live *live);
void weir__live_insert_overflow(weir__live *live, weir__block *block, uint64_t hash);
weir__block *weir__live_find_overflow(const weir__live *live, uint64_t address, uint64_t hash, weir__live_place *place);
void weir__live_uncount_overflow(weir__live *live, uint64_t address, const weir__live_bucket *found);

/* Makes room for one more block. Returns false if out of host memory. */
static inline bool weir__live_prepare(weir__live *live) {
  return __builtin_expect(live->count < live->most, 1) || weir__live_grow(live);
}

/* `hash` is that of the block's address. */
static inline void weir__live_insert(weir__live *live, weir__block *block, uint64_t hash) {
  weir__live_bucket *bucket = &live->buckets[weir__live_home(live, hash)];
  if (__builtin_expect(weir__live_vacant(bucket), 1))
    weir__live_put(bucket, block, hash);
  else
    weir__live_insert_overflow(live, block, hash);
  live->count++;
}

/* NULL if no block is live there. weir__live_remove takes the place. */
static inline weir__block *weir__live_find(const weir__live *live, uint64_t address, weir__live_place *place) {
  if (__builtin_expect(!live->buckets, 0))
    return NULL;
  uint64_t hash = weir__live_hash(address);
  weir__live_bucket *bucket = &live->buckets[weir__live_home(live, hash)];
  weir__block *block = weir__live_match(bucket, address, hash, false, place);
  if (__builtin_expect(!block && bucket->overflowed, 0))
    return weir__live_find_overflow(live, address, hash, place);
  return block;
}

static inline void weir__live_remove(weir__live *live, uint64_t address, weir__live_place place) {
  place.bucket->tags[place.slot] = 0;
  live->count--;
  if (__builtin_expect(place.is_overflow, 0))
    weir__live_uncount_overflow(live, address, place.bucket);
}

void weir__live_clear(weir__live *live);

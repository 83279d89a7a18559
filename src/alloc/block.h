/*
 * Blocks, and the table in which live ones are found by their address.
 */
#ifndef WEIR_ALLOC_BLOCK_H
#define WEIR_ALLOC_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/region.h"
#include "base/slab.h"

struct weir__use;

enum { WEIR__UNIT = 512 }; /* all sizes and addresses of the cache's blocks are multiples of it */

static const uint64_t weir__most_units = UINT32_MAX; /* of a block: 2 TiB */

typedef enum weir__block_status {
  WEIR__FREE,      /* in the index, or just taken out of it */
  WEIR__UNMAPPED,  /* address space of an expandable segment without memory */
  WEIR__ALLOCATED, /* the caller's */
  WEIR__WAITING    /* freed by its owner, and still in use by other streams */
} weir__block_status;

typedef struct weir__block_marks {
  uint8_t oversize : 1; /* it was counted as such; the limit may be another one when it is freed */
  uint8_t has_uses : 1; /* other streams use it */
} weir__block_marks;

/* A piece of a segment. Guarded by its arena's lock. Two of them are a cache line: links are of 32 bits, what only a free block
 * needs and what only an active one needs share their places, and what is seldom needed is aside. The segment and the arena are
 * found by the address (heap.h). */
typedef struct weir__block {
  uint64_t address;
  uint32_t units;     /* its size; 0: a back end's memory, as many bytes as were asked for, which may be any number */
  uint8_t state;      /* weir__block_status */
  bool is_ordered;    /* free, in a list of the index: it and all behind it are in the order of addresses */
  uint8_t expandable; /* its segment is */
  union {
    weir__block_marks marks; /* active */
    uint8_t has_age;         /* free: it became so while ages were counted */
  };
  weir__ref previous, next; /* neighbours in the segment */
  union {
    struct {
      weir__ref left, right; /* in a tree: of free blocks by size and address, of unmapped ones by address */
    };
    struct {
      weir__ref after; /* in a list of free blocks of one size: the one behind it ... */
      weir__ref link;  /* ... and the word where the one before it, or the list, points to it */
    };
    uint64_t requested; /* active: what the caller asked for */
  };
} weir__block;

_Static_assert(sizeof(weir__block) == 32, "two blocks are a cache line");

/* What is seldom needed of a block. */
typedef struct weir__block_aside {
  struct weir__use *uses; /* where it has_uses */
  union {
    uint32_t events;     /* waiting: how many it waits for */
    uint32_t idle_since; /* where it has_age: the pool's count of searches when it became free; for collection by age */
  };
} weir__block_aside;

_Static_assert(sizeof(weir__block_aside) <= sizeof(weir__block) / 2, "an aside is half a block at most");

static inline uint64_t weir__block_bytes(const weir__block *block) {
  return block->units ? (uint64_t)block->units * WEIR__UNIT : block->requested;
}

static inline weir__block_aside *weir__block_aside_of(const weir__block *block) { return weir__aside_of(block); }

static inline weir__block *weir__block_at(weir__ref ref) { return ref ? weir__at(ref) : NULL; }
static inline weir__ref weir__block_ref(const weir__block *block) { return block ? weir__ref_of(block) : 0; }
static inline weir__block *weir__block_previous(const weir__block *block) { return weir__block_at(block->previous); }
static inline weir__block *weir__block_next(const weir__block *block) { return weir__block_at(block->next); }

/* The other streams that use an active block. */
static inline struct weir__use *weir__block_uses(const weir__block *block) {
  return block->marks.has_uses ? weir__block_aside_of(block)->uses : NULL;
}

static inline void weir__block_set_uses(weir__block *block, struct weir__use *uses) {
  weir__block_aside_of(block)->uses = uses;
  block->marks.has_uses = uses != NULL;
}

/* A free block has been so for longer than it was in the index, by a number of searches. */
static inline void weir__block_make_older(weir__block *block, uint32_t by) {
  weir__block_aside *aside = weir__block_aside_of(block);
  aside->idle_since = (block->has_age ? aside->idle_since : 0) - by;
  block->has_age = true;
}

/* A block that was taken out of the index is as one in use until it is handed out; what it asked for is not known yet. */
static inline void weir__block_hold(weir__block *block) {
  block->state = WEIR__ALLOCATED;
  block->marks = (weir__block_marks){0};
  block->requested = 0;
}

/* Allocated, or freed and still in use by another stream: not to be touched by neighbours. */
static inline bool weir__block_is_active(const weir__block *block) { return block->state >= WEIR__ALLOCATED; }
static inline bool weir__block_is_mapped(const weir__block *block) { return block->state != WEIR__UNMAPPED; }
static inline bool weir__block_is_split(const weir__block *block) { return (block->previous | block->next) != 0; }

/* `block` comes between its new neighbours. */
static inline void weir__block_link(weir__block *block, weir__block *previous, weir__block *next) {
  block->previous = weir__block_ref(previous);
  block->next = weir__block_ref(next);
  if (previous)
    previous->next = weir__ref_of(block);
  if (next)
    next->previous = weir__ref_of(block);
}

/*
 * Live blocks by address, of one arena: a hash table of buckets, each of them a cache line with room for seven. A byte of the
 * hash marks each block, so that all seven are compared at once, and nearly always only the right one is touched. A bucket
 * counts the blocks that found it full and went on to the next one: where there were none, a search ends.
 */
enum { WEIR__LIVE_SLOTS = 7 };

typedef struct weir__live_bucket {
  _Alignas(64) uint8_t marks[WEIR__LIVE_SLOTS]; /* 0: empty */
  uint8_t passed;                               /* blocks that went on; at 255 it is no longer counted, and stays */
  weir__block *blocks[WEIR__LIVE_SLOTS];
} weir__live_bucket;

typedef struct weir__live {
  weir__live_bucket *buckets; /* NULL: none were made yet */
  size_t count, most;         /* of blocks: at most five for each bucket */
  unsigned bits, shift;       /* log2 of the buckets; 64 less that */
} weir__live;

/* Where a block was found. */
typedef struct weir__live_place {
  weir__live_bucket *bucket;
  unsigned slot;
  bool is_away; /* its own bucket was full */
} weir__live_place;

static inline uint64_t weir__live_hash(uint64_t address) { return address / WEIR__UNIT * 0x9e3779b97f4a7c15u; }
static inline uint8_t weir__live_mark(uint64_t hash) { return (uint8_t)(hash >> 24 | 2); } /* so neither 0 nor 1 */
static inline size_t weir__live_home(const weir__live *live, uint64_t hash) { return (size_t)(hash >> live->shift); }

/* A bit, the highest of its byte, for each mark that is equal; behind the first of them perhaps also for one that differs by 1,
 * which is never an empty one when a block's mark is looked for. */
static inline uint64_t weir__live_equal(const weir__live_bucket *bucket, uint8_t mark) {
  const uint64_t ones = 0x0001010101010101u; /* without the byte of `passed` */
  uint64_t marks;
  memcpy(&marks, bucket, sizeof marks);
  uint64_t differs = marks ^ ones * mark;
  return (differs - ones) & ~differs & ones << 7;
}

static inline bool weir__live_vacant(const weir__live_bucket *bucket) { return weir__live_equal(bucket, 0) != 0; }

/* Into a bucket with room. */
static inline void weir__live_put(weir__live_bucket *bucket, weir__block *block, uint64_t hash) {
  unsigned slot = (unsigned)__builtin_ctzll(weir__live_equal(bucket, 0)) / 8;
  bucket->marks[slot] = weir__live_mark(hash);
  bucket->blocks[slot] = block;
}

static inline weir__block *weir__live_match(weir__live_bucket *bucket, uint64_t address, uint64_t hash, bool is_away,
                                            weir__live_place *place) {
  for (uint64_t equal = weir__live_equal(bucket, weir__live_mark(hash)); equal; equal &= equal - 1) {
    unsigned slot = (unsigned)__builtin_ctzll(equal) / 8;
    if (bucket->blocks[slot]->address == address) {
      *place = (weir__live_place){bucket, slot, is_away};
      return bucket->blocks[slot];
    }
  }
  return NULL;
}

bool weir__live_grow(weir__live *live);
void weir__live_insert_beyond(weir__live *live, weir__block *block, uint64_t hash);
weir__block *weir__live_find_beyond(const weir__live *live, uint64_t address, uint64_t hash, weir__live_place *place);
void weir__live_forget_passing(weir__live *live, uint64_t address, const weir__live_bucket *found);

/* Makes room for one more; false: no host memory. */
static inline bool weir__live_prepare(weir__live *live) {
  return __builtin_expect(live->count < live->most, 1) || weir__live_grow(live);
}

/* The hash is that of the block's address. */
static inline void weir__live_insert(weir__live *live, weir__block *block, uint64_t hash) {
  weir__live_bucket *bucket = &live->buckets[weir__live_home(live, hash)];
  if (__builtin_expect(weir__live_vacant(bucket), 1))
    weir__live_put(bucket, block, hash);
  else
    weir__live_insert_beyond(live, block, hash);
  live->count++;
}

/* NULL: none is live there. The place is what removing it takes. */
static inline weir__block *weir__live_find(const weir__live *live, uint64_t address, weir__live_place *place) {
  if (__builtin_expect(!live->buckets, 0))
    return NULL;
  uint64_t hash = weir__live_hash(address);
  weir__live_bucket *bucket = &live->buckets[weir__live_home(live, hash)];
  weir__block *block = weir__live_match(bucket, address, hash, false, place);
  if (__builtin_expect(!block && bucket->passed, 0))
    return weir__live_find_beyond(live, address, hash, place);
  return block;
}

static inline void weir__live_remove(weir__live *live, uint64_t address, weir__live_place place) {
  place.bucket->marks[place.slot] = 0;
  live->count--;
  if (__builtin_expect(place.is_away, 0))
    weir__live_forget_passing(live, address, place.bucket);
}

void weir__live_clear(weir__live *live);

#endif

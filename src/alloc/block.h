/*
 * Blocks, and the index in which free ones are found.
 */
#ifndef WEIR_ALLOC_BLOCK_H
#define WEIR_ALLOC_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/slab.h"

struct weir__arena;
struct weir__segment;
struct weir__use;

/* A piece of a segment. Guarded by its arena's lock. */
typedef struct weir__block weir__block;
struct weir__block {
  uint64_t address, bytes;
  weir__block *previous, *next; /* neighbours in the segment */
  weir__block *left, *right;    /* in a tree: of free blocks by size and address, of unmapped ones by address */
  struct weir__segment *segment;
  struct weir__arena *arena;
  uint64_t requested;     /* what the caller asked for, while it is active */
  struct weir__use *uses; /* other streams that use it */
  uint32_t idle_since;    /* the pool's count of searches when it became free; for collection by age */
  uint32_t events;        /* that it waits for, after it was freed */
  bool allocated;
  bool oversize; /* it was counted as such when it was handed out; the limit may be another one when it is freed */
  bool mapped;   /* false: address space of an expandable segment without memory */
};

/* Allocated, or freed and still in use by another stream: not to be touched by neighbours. */
static inline bool weir__block_is_active(const weir__block *block) {
  return block->allocated || block->events || block->uses;
}

static inline bool weir__block_is_split(const weir__block *block) { return block->previous || block->next; }

/*
 * The index: blocks in the order of size, then address.
 *
 * Sizes are counted in units of 512 bytes and sorted into bins: one for each size below 64 units, then 64 for each power of
 * two. A bit for each bin says whether it has blocks, so the first bin that can serve a size is found in two steps however
 * many blocks there are; the blocks of one bin form a treap, a search tree whose shape is drawn from a hash of the address.
 */
enum { WEIR__UNIT = 512, WEIR__BIN_ROWS = 40, WEIR__BIN_COLUMNS = 64 };

typedef struct weir__bin_row {
  uint64_t columns; /* which have blocks */
  weir__block *roots[WEIR__BIN_COLUMNS];
} weir__bin_row;

typedef struct weir__index {
  uint64_t rows;                      /* which have blocks */
  weir__bin_row *row[WEIR__BIN_ROWS]; /* made when first used */
  size_t count;
} weir__index;

/* Makes room for blocks of up to so many bytes, so that inserting one cannot fail. false: no host memory. */
bool weir__index_prepare(weir__index *index, uint64_t bytes);
void weir__index_insert(weir__index *index, weir__block *block);
void weir__index_remove(weir__index *index, weir__block *block);

/* The smallest block of at least so many bytes, the lowest of several; NULL when there is none. */
weir__block *weir__index_at_least(const weir__index *index, uint64_t bytes);

/* The one behind, and the one before, a block that is in the index, in its order. */
weir__block *weir__index_next(const weir__index *index, const weir__block *block);
weir__block *weir__index_previous(const weir__index *index, const weir__block *block);
weir__block *weir__index_first(const weir__index *index);
weir__block *weir__index_last(const weir__index *index);
void weir__index_clear(weir__index *index);
bool weir__index_has(const weir__index *index, const weir__block *block);
bool weir__index_is_valid(const weir__index *index);

/* Unmapped blocks: one treap in the order of addresses. */
void weir__tree_insert(weir__block **root, weir__block *block);
void weir__tree_remove(weir__block **root, weir__block *block);
weir__block *weir__tree_after(weir__block *root, uint64_t address); /* the first above; 0 gives the lowest */

/*
 * Live blocks by address, of one arena: open addressing, a slot is the address and the block.
 */
typedef struct weir__live {
  struct weir__live_slot {
    uint64_t address; /* 0: empty */
    weir__block *block;
  } * slots;
  size_t mask, count; /* mask + 1 slots, at most half of them taken */
} weir__live;

/* Makes room for one more; false: no host memory. */
bool weir__live_prepare(weir__live *live);
void weir__live_insert(weir__live *live, weir__block *block);
weir__block *weir__live_find(const weir__live *live, uint64_t address);
void weir__live_remove(weir__live *live, uint64_t address);
void weir__live_clear(weir__live *live);

#endif

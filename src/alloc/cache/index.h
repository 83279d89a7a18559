/*
 * The index: free blocks in order of size, then address; and the tree of unmapped blocks.
 *
 * Sizes are in units of 512 bytes and sorted into bins: one per size below 128 MiB, and 64 per power of two above. A
 * bit per bin says whether it has blocks, a bit per row of 64 bins whether any of them has, and a bit per group of 64
 * rows; so the first bin that can serve a size is found in three steps, however many blocks there are.
 *
 * A narrow bin holds blocks of one size in a list, most recent first. The lowest block of a short list is found by a
 * linear scan. A long list is distributed to 64 partitions by address when its lowest block is needed; each partition
 * is a list that may be partitioned in turn. Partitions form the end of their list, and new blocks are inserted before
 * them until the next search. So insertion and removal are those of a plain list, and blocks are sorted only as far as
 * searches need it. Splitting leaves many small blocks of one size.
 *
 * A wide bin holds a treap, a search tree that is balanced by a hash of the address. A bin whose treap becomes deep is
 * divided into 64 finer bins, down to one per size.
 *
 * This header has the operations of the fast path as inline functions; the rest is in index.c.
 */
#pragma once

#include "alloc/cache/block.h"

enum {
  WEIR__BINS = 64,             /* in a row */
  WEIR__GROUP = 64 * 64,       /* units: number of sizes in a group, which spans 2 MiB */
  WEIR__NARROW = 64 * 64 * 64, /* units: sizes below have a bin each */
  WEIR__WIDE_ROWS = 14         /* above that, one row per power of two */
};

/* Blocks of one size, partitioned by address into lists, each of which may end with partitions again. The bit of a
 * partition that became empty stays set until a search finds it empty. */
typedef struct weir__partitions {
  uint64_t used;        /* one bit per partition */
  uint64_t base;        /* start address of the first partition */
  weir__block sentinel; /* the end of the list; insertion and removal before it treat it as a block */
  unsigned shift;       /* log2 of the address space of one partition */
  uint32_t inner; /* at the top level of a bin: partitions created at lower levels since the bin was partitioned ... */
  uint32_t most;  /* ... and the number from which it is partitioned anew, since many may have become empty */
  weir__ref list[64];
} weir__partitions;

enum { WEIR__SENTINEL = 16 }; /* set in a reference to a sentinel: blocks are at multiples of 32 */
_Static_assert(offsetof(weir__partitions, sentinel) == WEIR__SENTINEL && sizeof(weir__block) == 2 * WEIR__SENTINEL,
               "a sentinel is between two blocks");
_Static_assert(sizeof(weir__partitions) % 32 > 16 || sizeof(weir__partitions) % 32 == 0,
               "a slab's are multiples of 32 too");

/* Narrow bins. They are in the region because blocks link to the heads of their lists. */
typedef struct weir__bin_group {
  uint64_t rows;                           /* rows with marked bins */
  uint64_t used[WEIR__GROUP / WEIR__BINS]; /* bins with blocks or partitions: one word per row */
  weir__ref list[WEIR__GROUP];
  weir__block nil; /* that of the first group stands for every missing neighbour */
} weir__bin_group;

typedef struct weir__wide_bins weir__wide_bins;
struct weir__wide_bins {
  uint64_t used;    /* bins with blocks */
  uint64_t divided; /* bins that are divided */
  union {
    weir__ref root; /* of a treap */
    weir__wide_bins *finer;
  } at[WEIR__BINS];
};

typedef struct weir__index {
  uint64_t groups, wide_rows;                         /* those with marked bins */
  weir__bin_group *group[WEIR__NARROW / WEIR__GROUP]; /* created in order when first needed */
  weir__wide_bins *wide[WEIR__WIDE_ROWS];
  weir__ref nil; /* that of the first group */
  weir__slab partitions;
} weir__index;

/* Makes room for blocks of up to `bytes`, so that inserting one cannot fail. Returns false if out of host memory. */
bool weir__index_prepare(weir__index *index, uint64_t bytes);

/* The next and the previous block in the order of the index. */
weir__block *weir__index_next(weir__index *index, const weir__block *block);
weir__block *weir__index_previous(weir__index *index, const weir__block *block);
weir__block *weir__index_first(weir__index *index);
weir__block *weir__index_last(weir__index *index);
void weir__index_clear(weir__index *index);

void weir__index_insert_wide(weir__index *index, weir__block *block);
void weir__index_remove_wide(weir__index *index, weir__block *block);
weir__block *weir__index_at_least_wide(const weir__index *index, uint64_t bytes);

/* The first block of the groups after `group` and of the wide bins. */
weir__block *weir__index_beyond(weir__index *index, uint64_t group);

/* The lowest block in the narrow bin of a size, whose list has several blocks or partitions. If the bin turns out to be
 * empty, the lowest block of the next larger size; NULL if there is none. Reorders lists, so the arena's lock must be
 * held even for a search. */
weir__block *weir__index_lowest(weir__index *index, uint64_t units);

/* A neighbour or, if there is none, the sentinel `nil`, which can be written to and is never free. The choice is
 * unpredictable, so it is branch-free. */
static inline weir__block *weir__index_neighbour(const weir__index *index, weir__ref ref) {
  return weir__at(ref | (index->nil & ((weir__ref)(ref != 0) - 1)));
}

/* Inserts a free block, which is not marked as ordered yet. */
static inline void weir__index_insert(weir__index *index, weir__block *block) {
  uint64_t units = block->units, bin = units % WEIR__GROUP;
  if (units >= WEIR__NARROW) {
    weir__index_insert_wide(index, block);
    return;
  }
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  weir__ref after = group->list[bin], mine = weir__ref_of(block);
  block->after = after;
  block->link = weir__ref_of(&group->list[bin]);
  weir__index_neighbour(index, after)->link = mine + offsetof(weir__block, after);
  group->list[bin] = mine;
  group->used[bin / 64] |= 1ull << bin % 64;
  group->rows |= 1ull << bin / 64;
  index->groups |= 1ull << units / WEIR__GROUP;
}

static inline void weir__index_remove(weir__index *index, weir__block *block) {
  uint64_t units = block->units, bin = units % WEIR__GROUP;
  if (units >= WEIR__NARROW) {
    weir__index_remove_wide(index, block);
    return;
  }
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  weir__ref after = block->after, *link = weir__at(block->link);
  weir__index_neighbour(index, after)->link = block->link;
  *link = after;
  uint64_t used = group->used[bin / 64] &= ~((uint64_t)!group->list[bin] << bin % 64);
  if (!(group->rows &= ~((uint64_t)!used << bin / 64)))
    index->groups &= ~(1ull << units / WEIR__GROUP);
}

/* The smallest block of at least `bytes`, and among equals the lowest; NULL if there is none. */
static inline weir__block *weir__index_at_least(weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT, bin = units % WEIR__GROUP, row = bin / 64;
  if (units >= WEIR__NARROW)
    return weir__index_at_least_wide(index, bytes);
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  if (!group)
    return weir__index_beyond(index, units / WEIR__GROUP);
  /* Whether the bin is in this row or a later one is unpredictable, so the choice is branch-free. */
  uint64_t used = group->used[row] & ~0ull << bin % 64;
  uint64_t later = group->rows & ~1ull << row;
  if (!(used | later))
    return weir__index_beyond(index, units / WEIR__GROUP);
  uint64_t later_row = (uint64_t)__builtin_ctzll(later | 1ull << 63);
  uint64_t later_used = group->used[later_row];
  row = used ? row : later_row;
  used = used ? used : later_used;
  bin = row * 64 + (uint64_t)__builtin_ctzll(used);
  weir__block *block = weir__at(group->list[bin]);
  return block->after ? weir__index_lowest(index, units - units % WEIR__GROUP + bin) : block;
}

/* Unmapped blocks: a treap in address order. */
void weir__tree_insert(weir__ref *root, weir__block *block);
void weir__tree_remove(weir__ref *root, weir__block *block);
weir__block *weir__tree_after(weir__ref root,
                              uint64_t address); /* the first block above `address`; 0 gives the lowest */

weir__block *weir__tree_at(weir__ref root, uint64_t address); /* the last block at or below `address` */

/*
 * The index: free blocks in the order of size, then address.
 *
 * Sizes are counted in units of 512 bytes and sorted into bins: below 2 MiB one for each size, from there on 64 for each power
 * of two. A bit for each bin says whether it has blocks, so the first bin that can serve a size is found in two steps however
 * many blocks there are. The blocks of one bin form a treap, a search tree whose shape is drawn from a hash of the address; a
 * wide bin in which the tree grows deep is divided into 64 finer ones, down to one for each size.
 *
 * What nearly all operations of the cached path need is here, to be compiled into it: narrow bins, and trees of one block. The
 * rest is in index.c.
 */
#ifndef WEIR_ALLOC_INDEX_H
#define WEIR_ALLOC_INDEX_H

#include "alloc/block.h"

enum {
  WEIR__BINS = 64,        /* of a row */
  WEIR__NARROW = 64 * 64, /* units: sizes below have a bin each */
  WEIR__WIDE_ROWS = 40    /* from there on a row for each power of two */
};

typedef struct weir__narrow_bins {
  uint64_t used[WEIR__NARROW / WEIR__BINS]; /* which have blocks: a word for each row */
  weir__block *at[WEIR__NARROW];            /* the root of a treap, where it is used */
} weir__narrow_bins;

typedef struct weir__wide_bins weir__wide_bins;
struct weir__wide_bins {
  uint64_t used;        /* which have blocks */
  uint64_t divided;     /* which are divided */
  void *at[WEIR__BINS]; /* the root of a treap, or the finer bins */
};

typedef struct weir__index {
  uint64_t narrow_rows, wide_rows; /* which have blocks */
  weir__narrow_bins *narrow;       /* these are made when first needed */
  weir__wide_bins *wide[WEIR__WIDE_ROWS];
  size_t count; /* of blocks */
} weir__index;

/* Makes room for blocks of up to so many bytes, so that inserting one cannot fail. false: no host memory. */
bool weir__index_prepare(weir__index *index, uint64_t bytes);

/* The one behind, and the one before, a block that is in the index, in its order. */
weir__block *weir__index_next(const weir__index *index, const weir__block *block);
weir__block *weir__index_previous(const weir__index *index, const weir__block *block);
weir__block *weir__index_first(const weir__index *index);
weir__block *weir__index_last(const weir__index *index);
void weir__index_clear(weir__index *index);
bool weir__index_has(const weir__index *index, const weir__block *block);
bool weir__index_is_valid(const weir__index *index);

void weir__index_insert_slow(weir__index *index, weir__block *block);
void weir__index_remove_slow(weir__index *index, weir__block *block);
weir__block *weir__index_at_least_wide(const weir__index *index, uint64_t bytes);

static inline void weir__index_insert(weir__index *index, weir__block *block) {
  uint64_t units = block->bytes / WEIR__UNIT;
  if (units >= WEIR__NARROW || index->narrow->used[units / 64] >> units % 64 & 1) {
    weir__index_insert_slow(index, block);
    return;
  }
  block->left = block->right = NULL;
  index->narrow->at[units] = block;
  index->narrow->used[units / 64] |= 1ull << units % 64;
  index->narrow_rows |= 1ull << units / 64;
  index->count++;
}

static inline void weir__index_remove(weir__index *index, weir__block *block) {
  uint64_t units = block->bytes / WEIR__UNIT;
  if (units >= WEIR__NARROW || block->left || block->right || index->narrow->at[units] != block) {
    weir__index_remove_slow(index, block);
    return;
  }
  uint64_t left = index->narrow->used[units / 64] &= ~(1ull << units % 64);
  index->narrow_rows &= ~((uint64_t)(left == 0) << units / 64);
  index->count--;
}

/* The smallest block of at least so many bytes, the lowest of several; NULL when there is none. */
static inline weir__block *weir__index_at_least(const weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT, row = units / 64;
  if (units >= WEIR__NARROW || !(index->narrow_rows >> row))
    return weir__index_at_least_wide(index, bytes);
  uint64_t used = index->narrow->used[row] >> units % 64 << units % 64;
  if (!used) {
    uint64_t rows = index->narrow_rows >> row >> 1 << 1 << row;
    if (!rows)
      return weir__index_at_least_wide(index, bytes);
    row = (uint64_t)__builtin_ctzll(rows);
    used = index->narrow->used[row];
  }
  weir__block *block = index->narrow->at[row * 64 + (uint64_t)__builtin_ctzll(used)];
  while (block->left)
    block = block->left;
  return block;
}

/* Unmapped blocks: one treap in the order of addresses. */
void weir__tree_insert(weir__block **root, weir__block *block);
void weir__tree_remove(weir__block **root, weir__block *block);
weir__block *weir__tree_after(weir__block *root, uint64_t address); /* the first above; 0 gives the lowest */

#endif

/*
 * The index: free blocks in the order of size, then address.
 *
 * Sizes are counted in units of 512 bytes and sorted into bins: below 128 MiB one for each size, from there on 64 for each power
 * of two. A bit for each bin says whether it has blocks, a bit for each row of 64 bins whether any of them has, and a bit for
 * each group of 64 rows; so the first bin that can serve a size is found in three steps however many blocks there are.
 *
 * The blocks of a narrow bin, all of one size, are in a list, the one that came last first. Who asks for the lowest of a few
 * looks at them all. When there are more he lays them out on 64 shelves by their addresses, and looks at the first shelf that has
 * any, which is a list again and may get shelves of its own. Shelves hang at the end of their list, and what comes after that
 * stands in front of them until somebody asks again: so blocks come and go as in any other list, and nothing is put in order that
 * nobody asks for. Splitting leaves many small blocks of that sort.
 *
 * The blocks of a wide bin form a treap, a search tree whose shape is drawn from a hash of the address; a bin in which the tree
 * grows deep is divided into 64 finer ones, down to one for each size.
 *
 * What nearly all operations of the cached path need is here, to be compiled into it. The rest is in index.c.
 */
#ifndef WEIR_ALLOC_INDEX_H
#define WEIR_ALLOC_INDEX_H

#include "alloc/block.h"

enum {
  WEIR__BINS = 64,             /* of a row */
  WEIR__GROUP = 64 * 64,       /* units: sizes of one group, which spans 2 MiB */
  WEIR__NARROW = 64 * 64 * 64, /* units: sizes below have a bin each */
  WEIR__WIDE_ROWS = 14         /* from there on a row for each power of two */
};

/* Blocks of one size by their address, in lists, each of which may end with shelves again. A shelf from which the last block
 * went is still said to be used: who looks there finds out. */
typedef struct weir__shelves {
  uint64_t used;    /* a bit for each */
  uint64_t base;    /* the address at which the first begins */
  weir__block door; /* the list's end: who comes or goes before it takes it for a block */
  unsigned shift;   /* log2 of the bytes of address space of each */
  uint32_t inner;   /* of those of a bin: shelves that were made within, since they were laid out ... */
  uint32_t most;    /* ... and after how many of them that is done again, lest it be many of which nothing is left */
  weir__ref list[64];
} weir__shelves;

enum { WEIR__DOOR = 16 }; /* set where a ref leads to a door, and not to a block: these are multiples of 32 */
_Static_assert(offsetof(weir__shelves, door) == WEIR__DOOR && sizeof(weir__block) == 2 * WEIR__DOOR,
               "a door is between two blocks");
_Static_assert(sizeof(weir__shelves) % 32 > 16 || sizeof(weir__shelves) % 32 == 0, "a slab's are multiples of 32 too");

/* Narrow bins: a piece of the region, as blocks have links to the words of the list. */
typedef struct weir__bin_group {
  uint64_t rows;                           /* which have bins that are used */
  uint64_t used[WEIR__GROUP / WEIR__BINS]; /* which bins have blocks, or shelves: a word for each row */
  weir__ref list[WEIR__GROUP];
  weir__block nobody; /* the first group's stands in for all neighbours that are not there */
} weir__bin_group;

typedef struct weir__wide_bins weir__wide_bins;
struct weir__wide_bins {
  uint64_t used;    /* which have blocks */
  uint64_t divided; /* which are divided */
  union {
    weir__ref root; /* of a treap */
    weir__wide_bins *finer;
  } at[WEIR__BINS];
};

typedef struct weir__index {
  uint64_t groups, wide_rows;                         /* which have bins that are used */
  weir__bin_group *group[WEIR__NARROW / WEIR__GROUP]; /* these are made when first needed, from below */
  weir__wide_bins *wide[WEIR__WIDE_ROWS];
  weir__ref nobody; /* the one of the first group */
  weir__slab shelves;
} weir__index;

/* Makes room for blocks of up to so many bytes, so that inserting one cannot fail. false: no host memory. */
bool weir__index_prepare(weir__index *index, uint64_t bytes);

/* The one behind, and the one before, a block that is in the index, in its order. */
weir__block *weir__index_next(weir__index *index, const weir__block *block);
weir__block *weir__index_previous(weir__index *index, const weir__block *block);
weir__block *weir__index_first(weir__index *index);
weir__block *weir__index_last(weir__index *index);
void weir__index_clear(weir__index *index);
bool weir__index_has(const weir__index *index, const weir__block *block);

/* Walks everything and counts the blocks. -1: one is out of place. */
long weir__index_count(const weir__index *index);

void weir__index_insert_wide(weir__index *index, weir__block *block);
void weir__index_remove_wide(weir__index *index, weir__block *block);
weir__block *weir__index_at_least_wide(const weir__index *index, uint64_t bytes);

/* The first block of the groups behind one, and of the wide bins. */
weir__block *weir__index_beyond(weir__index *index, uint64_t group);

/* The lowest block of the narrow bin of a size, which has several, or shelves; if these turn out to be empty, that of the next
 * size that has any; NULL when there is none. It puts in order what it has to, so all who ask have the arena's lock. */
weir__block *weir__index_lowest(weir__index *index, uint64_t units);

/* A neighbour, or nobody, to whom one can write, and who is never free. Which of them is a coin toss, so it is no branch. */
static inline weir__block *weir__index_neighbour(const weir__index *index, weir__ref ref) {
  return weir__at(ref | (index->nobody & ((weir__ref)(ref != 0) - 1)));
}

static inline void weir__index_insert(weir__index *index, weir__block *block) {
  uint64_t units = block->units, bin = units % WEIR__GROUP;
  if (units >= WEIR__NARROW) {
    weir__index_insert_wide(index, block);
    return;
  }
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  weir__ref after = group->list[bin], mine = weir__ref_of(block);
  block->is_ordered = false;
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

/* The smallest block of at least so many bytes, the lowest of several; NULL when there is none. */
static inline weir__block *weir__index_at_least(weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT, bin = units % WEIR__GROUP, row = bin / 64;
  if (units >= WEIR__NARROW)
    return weir__index_at_least_wide(index, bytes);
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  if (!group)
    return weir__index_beyond(index, units / WEIR__GROUP);
  /* Whether this row has one or a later one is a coin toss, so it is no branch. */
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

/* Unmapped blocks: one treap in the order of addresses. */
void weir__tree_insert(weir__ref *root, weir__block *block);
void weir__tree_remove(weir__ref *root, weir__block *block);
weir__block *weir__tree_after(weir__ref root, uint64_t address); /* the first above; 0 gives the lowest */

#endif

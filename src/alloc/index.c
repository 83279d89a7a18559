/*
 * The index of free blocks, the tree of unmapped ones, the table of live ones.
 */
#include <stdlib.h>

#include "alloc/block.h"

/* ---- Treaps ---- */

/* Any mixing that spreads addresses will do: it only shapes the tree. */
static inline uint64_t weight(const weir__block *block) {
  uint64_t x = block->address * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

static inline bool before_by_size(const weir__block *a, const weir__block *b) {
  return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
}

static inline bool before_by_address(const weir__block *a, const weir__block *b) { return a->address < b->address; }

/* The two orders share their code: `by_size` is a constant in every caller, and the compiler makes two of it. */
static inline bool before(const weir__block *a, const weir__block *b, bool by_size) {
  return by_size ? before_by_size(a, b) : before_by_address(a, b);
}

static inline __attribute__((always_inline)) void treap_insert(weir__block **root, weir__block *block, bool by_size) {
  uint64_t mine = weight(block);
  weir__block **at = root;
  while (*at && weight(*at) >= mine)
    at = before(block, *at, by_size) ? &(*at)->left : &(*at)->right;
  /* The rest of the path is split into what lies before the block and what lies behind it. */
  weir__block *rest = *at, **low = &block->left, **high = &block->right;
  *at = block;
  while (rest) {
    if (before(rest, block, by_size)) {
      *low = rest;
      low = &rest->right;
      rest = rest->right;
    } else {
      *high = rest;
      high = &rest->left;
      rest = rest->left;
    }
  }
  *low = *high = NULL;
}

static inline __attribute__((always_inline)) void treap_remove(weir__block **root, weir__block *block, bool by_size) {
  weir__block **at = root;
  while (*at != block)
    at = before(block, *at, by_size) ? &(*at)->left : &(*at)->right;
  weir__block *low = block->left, *high = block->right;
  while (low && high) {
    if (weight(low) >= weight(high)) {
      *at = low;
      at = &low->right;
      low = low->right;
    } else {
      *at = high;
      at = &high->left;
      high = high->left;
    }
  }
  *at = low ? low : high;
}

static weir__block *leftmost(weir__block *block) {
  while (block && block->left)
    block = block->left;
  return block;
}

static weir__block *rightmost(weir__block *block) {
  while (block && block->right)
    block = block->right;
  return block;
}

void weir__tree_insert(weir__block **root, weir__block *block) { treap_insert(root, block, false); }
void weir__tree_remove(weir__block **root, weir__block *block) { treap_remove(root, block, false); }

weir__block *weir__tree_after(weir__block *root, uint64_t address) {
  weir__block *best = NULL;
  while (root) {
    if (root->address > address) {
      best = root;
      root = root->left;
    } else
      root = root->right;
  }
  return best;
}

/* ---- Bins ---- */

static inline unsigned row_of(uint64_t units) { return units < 64 ? 0 : (unsigned)(63 - __builtin_clzll(units)) - 5; }

static inline unsigned column_of(uint64_t units, unsigned row) { return (units >> (row ? row - 1 : 0)) & 63; }

bool weir__index_prepare(weir__index *index, uint64_t bytes) {
  for (unsigned row = 0; row <= row_of(bytes / WEIR__UNIT); row++)
    if (!index->row[row] && !(index->row[row] = calloc(1, sizeof *index->row[row])))
      return false;
  return true;
}

void weir__index_insert(weir__index *index, weir__block *block) {
  unsigned row = row_of(block->bytes / WEIR__UNIT), column = column_of(block->bytes / WEIR__UNIT, row);
  treap_insert(&index->row[row]->roots[column], block, true);
  index->row[row]->columns |= 1ull << column;
  index->rows |= 1ull << row;
  index->count++;
}

void weir__index_remove(weir__index *index, weir__block *block) {
  unsigned row = row_of(block->bytes / WEIR__UNIT), column = column_of(block->bytes / WEIR__UNIT, row);
  weir__bin_row *r = index->row[row];
  treap_remove(&r->roots[column], block, true);
  index->count--;
  if (r->roots[column])
    return;
  r->columns &= ~(1ull << column);
  if (!r->columns)
    index->rows &= ~(1ull << row);
}

/* The first bin with blocks, from this one on. */
static inline weir__block *first_from(const weir__index *index, unsigned row, unsigned column) {
  if (column < 64 && index->rows >> row & 1) {
    uint64_t columns = index->row[row]->columns & ~0ull << column;
    if (columns)
      return leftmost(index->row[row]->roots[__builtin_ctzll(columns)]);
  }
  uint64_t rows = row < 63 ? index->rows & ~0ull << (row + 1) : 0;
  if (!rows)
    return NULL;
  const weir__bin_row *r = index->row[__builtin_ctzll(rows)];
  return leftmost(r->roots[__builtin_ctzll(r->columns)]);
}

/* The last bin with blocks before this one. */
static weir__block *last_before(const weir__index *index, unsigned row, unsigned column) {
  if (column && index->rows >> row & 1) {
    uint64_t columns = index->row[row]->columns & ((1ull << column) - 1);
    if (columns)
      return rightmost(index->row[row]->roots[63 - __builtin_clzll(columns)]);
  }
  uint64_t rows = index->rows & ((1ull << row) - 1);
  if (!rows)
    return NULL;
  const weir__bin_row *r = index->row[63 - __builtin_clzll(rows)];
  return rightmost(r->roots[63 - __builtin_clzll(r->columns)]);
}

weir__block *weir__index_at_least(const weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT;
  unsigned row = row_of(units), column = column_of(units, row);
  if (index->rows >> row & 1 && index->row[row]->columns >> column & 1) {
    weir__block *best = NULL;
    for (weir__block *at = index->row[row]->roots[column]; at;) {
      if (at->bytes >= bytes) {
        best = at;
        at = at->left;
      } else
        at = at->right;
    }
    if (best)
      return best;
  }
  return first_from(index, row, column + 1);
}

weir__block *weir__index_next(const weir__index *index, const weir__block *block) {
  unsigned row = row_of(block->bytes / WEIR__UNIT), column = column_of(block->bytes / WEIR__UNIT, row);
  weir__block *best = NULL;
  for (weir__block *at = index->row[row]->roots[column]; at;) {
    if (before_by_size(block, at)) {
      best = at;
      at = at->left;
    } else
      at = at->right;
  }
  return best ? best : first_from(index, row, column + 1);
}

weir__block *weir__index_previous(const weir__index *index, const weir__block *block) {
  unsigned row = row_of(block->bytes / WEIR__UNIT), column = column_of(block->bytes / WEIR__UNIT, row);
  weir__block *best = NULL;
  for (weir__block *at = index->row[row]->roots[column]; at;) {
    if (before_by_size(at, block)) {
      best = at;
      at = at->right;
    } else
      at = at->left;
  }
  return best ? best : last_before(index, row, column);
}

weir__block *weir__index_first(const weir__index *index) { return first_from(index, 0, 0); }

weir__block *weir__index_last(const weir__index *index) {
  if (!index->rows)
    return NULL;
  const weir__bin_row *r = index->row[63 - __builtin_clzll(index->rows)];
  return rightmost(r->roots[63 - __builtin_clzll(r->columns)]);
}

bool weir__index_has(const weir__index *index, const weir__block *block) {
  unsigned row = row_of(block->bytes / WEIR__UNIT), column = column_of(block->bytes / WEIR__UNIT, row);
  const weir__block *at = index->row[row] ? index->row[row]->roots[column] : NULL;
  while (at && at != block)
    at = before_by_size(block, at) ? at->left : at->right;
  return at != NULL;
}

void weir__index_clear(weir__index *index) {
  for (unsigned row = 0; row < WEIR__BIN_ROWS; row++)
    free(index->row[row]);
  *index = (weir__index){0};
}

/* Counts a treap's blocks, or returns -1 when one is out of place. */
static long treap_count(const weir__block *block, const weir__block *low, const weir__block *high) {
  if (!block)
    return 0;
  if ((low && !before_by_size(low, block)) || (high && !before_by_size(block, high)))
    return -1;
  if ((block->left && weight(block->left) > weight(block)) || (block->right && weight(block->right) > weight(block)))
    return -1;
  long left = treap_count(block->left, low, block), right = treap_count(block->right, block, high);
  return left < 0 || right < 0 ? -1 : left + right + 1;
}

bool weir__index_is_valid(const weir__index *index) {
  size_t count = 0;
  for (unsigned row = 0; row < WEIR__BIN_ROWS; row++) {
    const weir__bin_row *r = index->row[row];
    if ((index->rows >> row & 1) != (r && r->columns))
      return false;
    for (unsigned column = 0; r && column < WEIR__BIN_COLUMNS; column++) {
      const weir__block *root = r->roots[column];
      if ((r->columns >> column & 1) != (root != NULL))
        return false;
      long n = treap_count(root, NULL, NULL);
      if (n < 0)
        return false;
      count += (size_t)n;
      for (const weir__block *end = leftmost((weir__block *)root); end; end = NULL)
        if (row_of(end->bytes / WEIR__UNIT) != row || column_of(end->bytes / WEIR__UNIT, row) != column)
          return false;
    }
  }
  return count == index->count;
}

/* ---- Live blocks ---- */

static inline size_t slot_of(const weir__live *live, uint64_t address) {
  return (size_t)((address >> 9) * 0x9e3779b97f4a7c15u >> 20) & live->mask;
}

bool weir__live_prepare(weir__live *live) {
  if (live->slots && 2 * (live->count + 1) <= live->mask + 1)
    return true;
  size_t room = live->slots ? 2 * (live->mask + 1) : 64;
  weir__live grown = {calloc(room, sizeof *grown.slots), room - 1, 0};
  if (!grown.slots)
    return false;
  for (size_t i = 0; live->slots && i <= live->mask; i++)
    if (live->slots[i].address)
      weir__live_insert(&grown, live->slots[i].block);
  free(live->slots);
  *live = grown;
  return true;
}

void weir__live_insert(weir__live *live, weir__block *block) {
  size_t i = slot_of(live, block->address);
  while (live->slots[i].address)
    i = (i + 1) & live->mask;
  live->slots[i].address = block->address;
  live->slots[i].block = block;
  live->count++;
}

weir__block *weir__live_find(const weir__live *live, uint64_t address) {
  if (!live->slots)
    return NULL;
  for (size_t i = slot_of(live, address); live->slots[i].address; i = (i + 1) & live->mask)
    if (live->slots[i].address == address)
      return live->slots[i].block;
  return NULL;
}

/* Moves back what was pushed aside, so that no marks of the removed are needed. */
void weir__live_remove(weir__live *live, uint64_t address) {
  size_t i = slot_of(live, address);
  while (live->slots[i].address != address)
    i = (i + 1) & live->mask;
  for (size_t k = (i + 1) & live->mask; live->slots[k].address; k = (k + 1) & live->mask) {
    size_t home = slot_of(live, live->slots[k].address);
    if (((k - home) & live->mask) < ((k - i) & live->mask))
      continue;
    live->slots[i] = live->slots[k];
    i = k;
  }
  live->slots[i].address = 0;
  live->count--;
}

void weir__live_clear(weir__live *live) {
  free(live->slots);
  *live = (weir__live){0};
}

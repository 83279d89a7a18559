/*
 * The walker of an index of free blocks.
 */
#include "alloc/cache/index.h"
#include "support/valid.h"

/* As in index.c. */
static uint64_t weight(const weir__block *block) {
  uint64_t x = block->address * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

static bool before_by_size(const weir__block *a, const weir__block *b) {
  return a->units != b->units ? a->units < b->units : a->address < b->address;
}

static unsigned row_of(uint64_t units) { return (unsigned)(63 - __builtin_clzll(units)) - 18; }
static unsigned width_of(unsigned row) { return row + 12; }
static unsigned finer(unsigned width) { return width > 6 ? width - 6 : 0; }
static unsigned bin_of(uint64_t units, unsigned width) { return (units >> width) & (WEIR__BINS - 1); }

static weir__partitions *partitions_at(weir__ref sentinel) {
  return (weir__partitions *)((char *)weir__at(sentinel) - WEIR__SENTINEL);
}

static bool narrow_has(weir__ref list, const weir__block *block) {
  while (list && weir__at(list) != block) {
    const weir__partitions *partitions = list & WEIR__SENTINEL ? partitions_at(list) : NULL;
    uint64_t partition = partitions ? (block->address - partitions->base) >> partitions->shift : 0;
    if (partitions)
      list = partition < 64 ? partitions->list[partition] : 0;
    else
      list = ((const weir__block *)weir__at(list))->after;
  }
  return list != 0;
}

static bool wide_has(const weir__wide_bins *bins, const weir__block *block) {
  unsigned width = width_of(row_of(block->units)), bin = bin_of(block->units, width);
  while (bins && bins->divided >> bin & 1) {
    bins = bins->at[bin].finer;
    width = finer(width);
    bin = bin_of(block->units, width);
  }
  const weir__block *at = bins ? weir__block_at(bins->at[bin].root) : NULL;
  while (at && at != block)
    at = weir__block_at(before_by_size(block, at) ? at->left : at->right);
  return at != NULL;
}

bool weir__index_has(const weir__index *index, const weir__block *block) {
  uint64_t units = block->units;
  if (units >= WEIR__NARROW)
    return wide_has(index->wide[row_of(units)], block);
  const weir__bin_group *group = index->group[units / WEIR__GROUP];
  return group && narrow_has(group->list[units % WEIR__GROUP], block);
}

/* Counts the blocks of a treap. Returns -1 if one is out of place. */
static long treap_count(weir__ref root, const weir__block *low, const weir__block *high) {
  const weir__block *block = weir__block_at(root);
  if (!block)
    return 0;
  const weir__block *left_one = weir__block_at(block->left), *right_one = weir__block_at(block->right);
  if ((low && !before_by_size(low, block)) || (high && !before_by_size(block, high)))
    return -1;
  if ((left_one && weight(left_one) > weight(block)) || (right_one && weight(right_one) > weight(block)))
    return -1;
  long left = treap_count(block->left, low, block), right = treap_count(block->right, block, high);
  return left < 0 || right < 0 ? -1 : left + right + 1;
}

/* The same for a bin with sizes from `least` to below `beyond`. */
static long bin_count(weir__ref root, bool is_used, uint64_t least, uint64_t beyond) {
  long n = treap_count(root, NULL, NULL);
  if (is_used != (root != 0))
    return -1;
  const weir__block *first = weir__block_at(root), *last = first;
  while (first && first->left)
    first = weir__at(first->left);
  while (last && last->right)
    last = weir__at(last->right);
  return n > 0 && (first->units < least || last->units >= beyond) ? -1 : n;
}

/* The same for wide bins with sizes from `from` on, each 2^width units wide. */
static long wide_count(const weir__wide_bins *bins, uint64_t from, unsigned width) {
  long count = 0;
  for (unsigned bin = 0; bin < WEIR__BINS; bin++) {
    uint64_t least = from + ((uint64_t)bin << width);
    bool is_used = bins->used >> bin & 1;
    long n;
    if (bins->divided >> bin & 1) {
      const weir__wide_bins *inner = bins->at[bin].finer;
      n = wide_count(inner, least & ~((64ull << finer(width)) - 1), finer(width));
      if (is_used != (inner->used != 0))
        return -1;
    } else
      n = bin_count(bins->at[bin].root, is_used, least, least + (1ull << width));
    if (n < 0)
      return -1;
    count += n;
  }
  return count;
}

/* The same for a list of a narrow bin and its partitions. Unsorted blocks precede sorted ones. */
static long list_count(const weir__ref *list, uint32_t units) {
  const weir__block *previous = NULL;
  const weir__ref *link = list;
  long n = 0;
  for (; *link && !(*link & WEIR__SENTINEL); link = &previous->after, n++) {
    const weir__block *b = weir__at(*link);
    if (b->link != weir__ref_of(link) || b->units != units)
      return -1;
    if (previous && previous->is_ordered && (!b->is_ordered || previous->address > b->address))
      return -1;
    previous = b;
  }
  const weir__partitions *partitions = *link ? partitions_at(*link) : NULL;
  for (unsigned i = 0; partitions && i < 64; i++) {
    long more = list_count(&partitions->list[i], units);
    if (more < 0 || (partitions->list[i] && !(partitions->used >> i & 1)))
      return -1;
    n += more;
  }
  return n;
}

/* The same for a group. Bins that are marked as empty are too many to check; a block there is missed by the count of
 * all free blocks. A block in a wrong partition is missed by weir__index_has. */
static long group_count(const weir__bin_group *group, uint64_t from) {
  long count = 0;
  for (uint64_t row = 0; row < WEIR__GROUP / 64; row++) {
    if ((group->rows >> row & 1) != (group->used[row] != 0))
      return -1;
    for (uint64_t used = group->used[row]; used; used &= used - 1) {
      uint64_t bin = row * 64 + (uint64_t)__builtin_ctzll(used);
      long n = list_count(&group->list[bin], (uint32_t)(from + bin));
      if (n < 0 || !group->list[bin])
        return -1;
      count += n;
    }
  }
  return count;
}

long weir__index_count(const weir__index *index) {
  long count = 0;
  if (index->nil &&
      (index->nil != weir__ref_of(&index->group[0]->nil) || index->group[0]->nil.state != WEIR__ALLOCATED))
    return -1;
  for (unsigned i = 0; i < WEIR__NARROW / WEIR__GROUP && index->group[i]; i++) {
    long n = group_count(index->group[i], (uint64_t)i * WEIR__GROUP);
    if (n < 0 || (index->groups >> i & 1) != (index->group[i]->rows != 0))
      return -1;
    count += n;
  }
  for (unsigned row = 0; row < WEIR__WIDE_ROWS; row++) {
    const weir__wide_bins *bins = index->wide[row];
    if ((index->wide_rows >> row & 1) != (bins && bins->used))
      return -1;
    long n = bins ? wide_count(bins, 64ull << width_of(row), width_of(row)) : 0;
    if (n < 0)
      return -1;
    count += n;
  }
  return count;
}

#include "alloc/cache/index.h"

#include <stdlib.h>

/* ---- Treaps ---- */

/* The priority of a block in the treap: a hash that spreads addresses. */
static inline uint64_t weight(const weir__block *block) {
  uint64_t x = block->address * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

static inline bool before_by_size(const weir__block *a, const weir__block *b) {
  return a->units != b->units ? a->units < b->units : a->address < b->address;
}

static inline bool before_by_address(const weir__block *a, const weir__block *b) { return a->address < b->address; }

/* Both orders share one implementation: `by_size` is constant in every caller, so the compiler specializes it. */
static inline bool before(const weir__block *a, const weir__block *b, bool by_size) {
  return by_size ? before_by_size(a, b) : before_by_address(a, b);
}

/* Returns the number of blocks above it. */
static inline __attribute__((always_inline)) unsigned treap_insert(weir__ref *root, weir__block *block, bool by_size) {
  unsigned passed = 0;
  weir__ref *at = root;
  weir__block *rest = weir__block_at(*root);
  uint64_t mine = weight(block);
  for (; rest && weight(rest) >= mine; rest = weir__block_at(*at), passed++)
    at = before(block, rest, by_size) ? &rest->left : &rest->right;
  /* The rest of the path is split into the blocks before this one and the blocks after it. */
  weir__ref *low = &block->left, *high = &block->right;
  *at = weir__ref_of(block);
  for (; rest; passed++) {
    if (before(rest, block, by_size)) {
      *low = weir__ref_of(rest);
      low = &rest->right;
    } else {
      *high = weir__ref_of(rest);
      high = &rest->left;
    }
    rest = weir__block_at(before(rest, block, by_size) ? rest->right : rest->left);
  }
  *low = *high = 0;
  return passed;
}

static inline __attribute__((always_inline)) void treap_remove(weir__ref *root, weir__block *block, bool by_size) {
  weir__ref *at = root;
  while (*at != weir__ref_of(block)) {
    weir__block *other = weir__at(*at);
    at = before(block, other, by_size) ? &other->left : &other->right;
  }
  weir__block *low = weir__block_at(block->left), *high = weir__block_at(block->right);
  while (low && high) {
    if (weight(low) >= weight(high)) {
      *at = weir__ref_of(low);
      at = &low->right;
      low = weir__block_at(low->right);
    } else {
      *at = weir__ref_of(high);
      at = &high->left;
      high = weir__block_at(high->left);
    }
  }
  *at = weir__block_ref(low ? low : high);
}

/* The lowest block of a treap, or the highest. */
static weir__block *edge_of_treap(weir__ref root, bool highest) {
  weir__block *block = weir__block_at(root);
  for (weir__ref next; block && (next = highest ? block->right : block->left);)
    block = weir__at(next);
  return block;
}

void weir__tree_insert(weir__ref *root, weir__block *block) { treap_insert(root, block, false); }
void weir__tree_remove(weir__ref *root, weir__block *block) { treap_remove(root, block, false); }

/* The nearest block above an address, or at and below it. */
static inline weir__block *nearest(weir__ref root, uint64_t address, bool above) {
  weir__block *best = NULL;
  for (weir__block *at = weir__block_at(root); at;) {
    bool is_above = at->address > address;
    best = is_above == above ? at : best;
    at = weir__block_at(is_above ? at->left : at->right);
  }
  return best;
}

weir__block *weir__tree_at(weir__ref root, uint64_t address) { return nearest(root, address, false); }
weir__block *weir__tree_after(weir__ref root, uint64_t address) { return nearest(root, address, true); }

/* ---- Both directions: functions whose last argument is constant in every caller ---- */

static inline uint64_t edge_bit(uint64_t bits, bool highest) {
  return highest ? 63 - (uint64_t)__builtin_clzll(bits) : (uint64_t)__builtin_ctzll(bits);
}

/* The bits below a bit, or those above it. */
static inline uint64_t beyond_bit(uint64_t bits, uint64_t bit, bool below) {
  return bits & (below ? (1ull << bit) - 1 : ~1ull << bit);
}

/* ---- Wide bins ---- */

/* How often a bin can be divided, each time into 64, and the depth from which a treap counts as deep. */
enum { levels = 8, deep = 6 };

static inline unsigned row_of(uint64_t units) { return (unsigned)(63 - __builtin_clzll(units)) - 18; }

/* log2 of the units that one bin spans: in a row, and in the division of a bin. */
static inline unsigned width_of(unsigned row) { return row + 12; }
static inline unsigned finer(unsigned width) { return width > 6 ? width - 6 : 0; }
static inline unsigned bin_of(uint64_t units, unsigned width) { return (units >> width) & (WEIR__BINS - 1); }

/* The path from a row to the bin of a size. */
typedef struct path {
  weir__wide_bins *bins[levels];
  unsigned bin[levels];
  unsigned depth, width; /* of the last bin */
} path;

static void find_bin(const weir__index *index, uint64_t units, path *p) {
  unsigned row = row_of(units), width = width_of(row), bin = bin_of(units, width), depth = 0;
  weir__wide_bins *bins = index->wide[row];
  p->bins[0] = bins;
  p->bin[0] = bin;
  while (bins->divided >> bin & 1) {
    bins = bins->at[bin].finer;
    width = finer(width);
    bin = bin_of(units, width);
    p->bins[++depth] = bins;
    p->bin[depth] = bin;
  }
  p->depth = depth;
  p->width = width;
}

static weir__ref *root_at(const path *p) { return &p->bins[p->depth]->at[p->bin[p->depth]].root; }

static void move_blocks(weir__wide_bins *to, unsigned width, weir__ref root) {
  weir__block *block = weir__block_at(root);
  if (!block)
    return;
  weir__ref left = block->left, right = block->right;
  unsigned bin = bin_of(block->units, width);
  treap_insert(&to->at[bin].root, block, true);
  to->used |= 1ull << bin;
  move_blocks(to, width, left);
  move_blocks(to, width, right);
}

/* If out of host memory, the bin stays undivided, which is only slower. */
static void divide(weir__wide_bins *bins, unsigned bin, unsigned width) {
  weir__wide_bins *made = calloc(1, sizeof *made);
  if (!made)
    return;
  move_blocks(made, finer(width), bins->at[bin].root);
  bins->at[bin].finer = made;
  bins->divided |= 1ull << bin;
}

void weir__index_insert_wide(weir__index *index, weir__block *block) {
  uint64_t units = block->units;
  path p;
  find_bin(index, units, &p);
  for (unsigned i = 0; i <= p.depth; i++)
    p.bins[i]->used |= 1ull << p.bin[i];
  index->wide_rows |= 1ull << row_of(units);
  unsigned passed = treap_insert(root_at(&p), block, true);
  if (passed > deep && p.width && p.depth + 1 < levels)
    divide(p.bins[p.depth], p.bin[p.depth], p.width);
}

void weir__index_remove_wide(weir__index *index, weir__block *block) {
  uint64_t units = block->units;
  path p;
  find_bin(index, units, &p);
  treap_remove(root_at(&p), block, true);
  if (*root_at(&p))
    return;
  for (unsigned i = p.depth + 1; i-- > 0;) {
    p.bins[i]->used &= ~(1ull << p.bin[i]);
    if (p.bins[i]->used)
      return;
  }
  index->wide_rows &= ~(1ull << row_of(units));
}

/* The first or the last block of a bin that is not empty. */
static weir__block *edge_of_bin(const weir__wide_bins *bins, uint64_t bin, bool last) {
  while (bins->divided >> bin & 1) {
    bins = bins->at[bin].finer;
    bin = edge_bit(bins->used, last);
  }
  return edge_of_treap(bins->at[bin].root, last);
}

static weir__block *edge_of_rows(const weir__index *index, uint64_t rows, bool last) {
  if (!rows)
    return NULL;
  const weir__wide_bins *bins = index->wide[edge_bit(rows, last)];
  return edge_of_bin(bins, edge_bit(bins->used, last), last);
}

/* The first wide block after the bin of a path, which is that of a size in a row, or the last one before it. */
static weir__block *beyond_path(const weir__index *index, const path *p, unsigned row, bool before) {
  for (unsigned i = p->depth + 1; i-- > 0;) {
    uint64_t used = beyond_bit(p->bins[i]->used, p->bin[i], before);
    if (used)
      return edge_of_bin(p->bins[i], edge_bit(used, before), before);
  }
  return edge_of_rows(index, beyond_bit(index->wide_rows, row, before), before);
}

weir__block *weir__index_at_least_wide(const weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT;
  unsigned row = row_of(units);
  path p;
  if (!(index->wide_rows >> row))
    return NULL;
  find_bin(index, units, &p);
  if (p.bins[p.depth]->used >> p.bin[p.depth] & 1) {
    weir__block *best = NULL;
    for (weir__block *at = weir__block_at(*root_at(&p)); at;) {
      bool is_enough = at->units >= units;
      best = is_enough ? at : best;
      at = weir__block_at(is_enough ? at->left : at->right);
    }
    if (best)
      return best;
  }
  return beyond_path(index, &p, row, false);
}

/* ---- Narrow bins ---- */

/* Lists of up to this length are scanned rather than partitioned. */
enum { few = 8 };

/* The next block of a list, or NULL at its end. */
static weir__block *block_or_end(weir__ref ref) { return ref & WEIR__SENTINEL ? NULL : weir__block_at(ref); }
static weir__block *after(const weir__block *block) { return block_or_end(block->after); }

static weir__ref *list_of(const weir__index *index, uint64_t units) {
  return &index->group[units / WEIR__GROUP]->list[units % WEIR__GROUP];
}

/* Clears the bits of an empty bin. */
static void unmark(weir__index *index, uint64_t units) {
  uint64_t bin = units % WEIR__GROUP;
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  group->used[bin / 64] &= ~(1ull << bin % 64);
  if (!group->used[bin / 64])
    group->rows &= ~(1ull << bin / 64);
  if (!group->rows)
    index->groups &= ~(1ull << units / WEIR__GROUP);
}

enum { groups = WEIR__NARROW / WEIR__GROUP };

/* The lowest marked bin above `units`, or the highest one below; false if there is none. */
static inline __attribute__((always_inline)) bool find_marked(const weir__index *index, uint64_t units, bool below,
                                                              uint64_t *found) {
  uint64_t n = units / WEIR__GROUP, row = units % WEIR__GROUP / 64;
  const weir__bin_group *group = n < groups ? index->group[n] : NULL;
  uint64_t used = group ? beyond_bit(group->used[row], units % 64, below) : 0;
  uint64_t rows = group ? beyond_bit(group->rows, row, below) : 0;
  uint64_t others = n < groups ? beyond_bit(index->groups, n, below) : index->groups;
  if (!used && !rows && others) {
    n = edge_bit(others, below);
    group = index->group[n];
    rows = group->rows;
  }
  if (!used && rows) {
    row = edge_bit(rows, below);
    used = group->used[row];
  }
  *found = used ? n * WEIR__GROUP + row * 64 + edge_bit(used, below) : 0;
  return used != 0;
}

static weir__block *lowest_in_list(weir__ref list) {
  weir__block *best = block_or_end(list);
  for (weir__block *block = best; block; block = after(block))
    if (block->address < best->address)
      best = block;
  return best;
}

/* The same for a short list; NULL if it is longer, or partitioned. The comparison is unpredictable, so it is
 * branch-free. */
static weir__block *lowest_of_few(weir__ref list) {
  weir__ref best = list, next = list;
  uint64_t lowest = UINT64_MAX;
  for (int i = 0; next && !(next & WEIR__SENTINEL) && i < few; i++) {
    const weir__block *block = weir__at(next);
    bool is_lower = block->address < lowest;
    lowest = is_lower ? block->address : lowest;
    best ^= (best ^ next) & -(weir__ref)is_lower;
    next = block->after;
  }
  return next ? NULL : weir__at(best);
}

/* ---- Partitions ---- */

static weir__partitions *partitions_at(weir__ref sentinel) {
  return (weir__partitions *)((char *)weir__at(sentinel) - WEIR__SENTINEL);
}

/* NULL if out of host memory. */
static weir__partitions *partitions_new(weir__index *index, uint64_t base, unsigned shift) {
  weir__partitions *partitions = weir__slab_alloc(&index->partitions, sizeof *partitions);
  if (partitions) /* after is not 0, so that a list without blocks is not taken for one with a single block */
    *partitions = (weir__partitions){.base = base, .shift = shift, .sentinel.after = WEIR__SENTINEL};
  return partitions;
}

static void partitions_delete(weir__index *index, weir__partitions *partitions) {
  weir__slab_free(&index->partitions, partitions, sizeof *partitions);
}

/* The partitions at the end of a list; NULL if there are none. */
static weir__partitions *partitions_of(weir__ref list) {
  while (list && !(list & WEIR__SENTINEL))
    list = ((const weir__block *)weir__at(list))->after;
  return list ? partitions_at(list) : NULL;
}

/* 64 or more if the address is outside. */
static uint64_t partition_of(const weir__partitions *partitions, uint64_t address) {
  return (address - partitions->base) >> partitions->shift;
}

/* Distributes the blocks of a list to the partitions, which become its end. Returns false if one is outside of the
 * range; it is in the last partition then. */
static bool distribute(weir__index *index, weir__ref *list, weir__partitions *partitions) {
  weir__block *block = block_or_end(*list), *next;
  bool fits = true;
  for (; block; block = next) {
    next = after(block);
    uint64_t partition = partition_of(partitions, block->address);
    fits &= partition < 64;
    partition = partition < 64 ? partition : 63;
    weir__ref *to = &partitions->list[partition];
    block->is_ordered = false;
    block->after = *to;
    block->link = weir__ref_of(to);
    weir__index_neighbour(index, *to)->link = weir__ref_of(&block->after);
    *to = weir__ref_of(block);
    partitions->used |= 1ull << partition;
  }
  *list = weir__ref_of(&partitions->sentinel);
  return fits;
}

/* Appends all blocks of a list, including its partitions, to a tail, and deletes the partitions. Returns the new tail.
 * Only the forward links are valid afterwards. */
static weir__ref *flatten(weir__index *index, weir__ref list, weir__ref *tail) {
  for (; list && !(list & WEIR__SENTINEL); list = *tail) {
    *tail = list;
    tail = &((weir__block *)weir__at(list))->after;
  }
  if (list) {
    weir__partitions *partitions = partitions_at(list);
    for (uint64_t used = partitions->used; used; used &= used - 1)
      tail = flatten(index, partitions->list[__builtin_ctzll(used)], tail);
    partitions_delete(index, partitions);
  }
  *tail = 0;
  return tail;
}

/* The end of the last partition. */
static uint64_t end_of(const weir__partitions *partitions) {
  uint64_t room = (UINT64_MAX - partitions->base) >> partitions->shift;
  return room < 64 ? UINT64_MAX : partitions->base + (64ull << partitions->shift);
}

/* Partitions all blocks of a bin anew. The range stays the same if it covers all blocks; otherwise it is extended to
 * cover them, with as much again below and above, so that it lasts. Returns NULL if out of host memory, which only
 * happens if there were no partitions; the list is then unchanged. */
static weir__partitions *partition_bin(weir__index *index, weir__ref *bin, const weir__partitions *old) {
  uint64_t base = old ? old->base : UINT64_MAX, end = old ? end_of(old) : 0, lowest = base, highest = end;
  unsigned shift = old ? old->shift : 0;
  uint32_t count = 0;
  flatten(index, *bin, bin);
  for (const weir__block *block = block_or_end(*bin); block; block = after(block), count++) {
    lowest = block->address < lowest ? block->address : lowest;
    highest = block->address >= highest ? block->address + 1 : highest;
  }
  if (lowest < base || highest > end) {
    unsigned bits = 64 - (unsigned)__builtin_clzll(highest - lowest);
    shift = bits > 5 ? bits - 5 : 0;
    base = lowest > 16ull << shift ? lowest - (16ull << shift) : 0;
  }
  weir__partitions *partitions = partitions_new(index, base, shift);
  if (!partitions)
    return NULL;
  partitions->most = count / 2 + 64;
  distribute(index, bin, partitions);
  return partitions;
}

static weir__block *lowest_in_partitions(weir__index *index, weir__partitions *partitions, uint32_t *made);

/* The lowest block of one partition, which is partitioned in turn if it is long. NULL if it is empty. */
static weir__block *lowest_in_partition(weir__index *index, const weir__partitions *partitions, weir__ref *list,
                                        uint32_t *made) {
  weir__block *best = *list ? lowest_of_few(*list) : NULL;
  if (best || !*list)
    return best;
  weir__partitions *inner = partitions_of(*list);
  if (!inner) {
    inner = partitions_new(index, partitions->base + ((uint64_t)(list - partitions->list) << partitions->shift),
                           partitions->shift > 6 ? partitions->shift - 6 : 0);
    *made += inner != NULL;
  }
  if (!inner)
    return lowest_in_list(*list);
  distribute(index, list, inner);
  best = lowest_in_partitions(index, inner, made);
  if (!best) {
    *list = 0;
    partitions_delete(index, inner);
  }
  return best;
}

static weir__block *lowest_in_partitions(weir__index *index, weir__partitions *partitions, uint32_t *made) {
  for (; partitions->used; partitions->used &= partitions->used - 1) {
    weir__block *best =
        lowest_in_partition(index, partitions, &partitions->list[__builtin_ctzll(partitions->used)], made);
    if (best)
      return best;
  }
  return NULL;
}

/* NULL if the bin turned out to be empty; it is then no longer marked. */
static weir__block *lowest_in_bin(weir__index *index, uint64_t units) {
  weir__ref *bin = list_of(index, units);
  weir__block *first = weir__at(*bin), *best = first->is_ordered ? first : lowest_of_few(*bin);
  if (best)
    return best;
  weir__partitions *partitions = partitions_of(*bin);
  if (!partitions || partitions->inner > partitions->most || !distribute(index, bin, partitions))
    partitions = partition_bin(index, bin, partitions);
  if (!partitions)
    return lowest_in_list(*bin);
  best = lowest_in_partitions(index, partitions, &partitions->inner);
  if (!best) {
    *bin = 0;
    partitions_delete(index, partitions);
    unmark(index, units);
  }
  return best;
}

weir__block *weir__index_lowest(weir__index *index, uint64_t units) {
  weir__block *best;
  do
    best = lowest_in_bin(index, units);
  while (!best && find_marked(index, units, false, &units));
  return best ? best : edge_of_rows(index, index->wide_rows, false);
}

weir__block *weir__index_beyond(weir__index *index, uint64_t group) {
  uint64_t units;
  if (!find_marked(index, (group + 1) * WEIR__GROUP - 1, false, &units))
    return edge_of_rows(index, index->wide_rows, false);
  weir__block *block = weir__at(*list_of(index, units));
  return block->after ? weir__index_lowest(index, units) : block;
}

/* ---- Sorted bins ---- */

/* A bottom-up merge sort. */
static weir__ref sort_list(weir__ref list) {
  for (size_t run = 1;; run *= 2) {
    weir__block *rest = weir__block_at(list);
    weir__ref *tail = &list;
    size_t merges = 0;
    while (rest) {
      weir__block *a = rest, *b = rest;
      size_t a_left = run, b_left = run;
      for (size_t i = 0; b && i < run; i++)
        b = after(b);
      while ((a_left && a) || (b_left && b)) {
        bool from_a = a_left && a && (!b_left || !b || a->address < b->address);
        weir__block *next = from_a ? a : b;
        if (from_a) {
          a = after(a);
          a_left--;
        } else {
          b = after(b);
          b_left--;
        }
        *tail = weir__ref_of(next);
        tail = &next->after;
      }
      rest = b;
      merges++;
    }
    *tail = 0;
    if (merges <= 1)
      return list;
  }
}

/* Sorts a bin by address, and returns its first block. NULL if the bin was empty; it is then no longer marked. */
static weir__block *order_list(weir__index *index, uint64_t units) {
  weir__ref *bin = list_of(index, units);
  weir__block *first = weir__block_at(*bin);
  if (!first || first->is_ordered)
    return first;
  flatten(index, *bin, bin);
  *bin = sort_list(*bin);
  for (weir__ref *link = bin; *link;) {
    weir__block *block = weir__at(*link);
    block->link = weir__ref_of(link);
    block->is_ordered = true;
    link = &block->after;
  }
  if (!*bin)
    unmark(index, units);
  return weir__block_at(*bin);
}

/* The last block of all narrow bins below `units`. */
static weir__block *last_below(weir__index *index, uint64_t units) {
  uint64_t bin;
  while (find_marked(index, units, true, &bin)) {
    weir__block *block = order_list(index, bin);
    while (block && block->after)
      block = after(block);
    if (block)
      return block;
  }
  return NULL;
}

/* ---- All bins ---- */

bool weir__index_prepare(weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT;
  for (unsigned i = 0; i < groups && i <= units / WEIR__GROUP; i++)
    if (!index->group[i] && !(index->group[i] = weir__region_alloc(sizeof *index->group[i])))
      return false;
  index->nil = weir__ref_of(&index->group[0]->nil);
  index->group[0]->nil.state = WEIR__ALLOCATED;
  index->partitions.in_region = true;
  if (units < WEIR__NARROW)
    return true;
  if (units > weir__max_units)
    return false;
  for (unsigned row = 0; row <= row_of(units); row++)
    if (!index->wide[row] && !(index->wide[row] = calloc(1, sizeof *index->wide[row])))
      return false;
  return true;
}

/* The successor of a block in a treap or, with `before`, its predecessor; NULL if there is none. */
static inline weir__block *neighbour(weir__ref root, const weir__block *block, bool before) {
  weir__block *best = NULL;
  for (weir__block *at = weir__block_at(root); at;) {
    bool is_beyond = before ? before_by_size(at, block) : before_by_size(block, at);
    best = is_beyond ? at : best;
    at = weir__block_at(is_beyond == before ? at->right : at->left);
  }
  return best;
}

weir__block *weir__index_next(weir__index *index, const weir__block *block) {
  uint64_t units = block->units;
  path p;
  if (units < WEIR__NARROW) {
    order_list(index, units);
    return block->after ? after(block) : weir__index_at_least(index, ((uint64_t)block->units + 1) * WEIR__UNIT);
  }
  find_bin(index, units, &p);
  weir__block *best = neighbour(*root_at(&p), block, false);
  return best ? best : beyond_path(index, &p, row_of(units), false);
}

/* The predecessor of a block in a narrow bin. */
static weir__block *previous_narrow(weir__index *index, const weir__block *block, uint64_t units) {
  order_list(index, units);
  if (block->link != weir__ref_of(list_of(index, units)))
    return (weir__block *)((char *)weir__at(block->link) - offsetof(weir__block, after));
  return last_below(index, units);
}

weir__block *weir__index_previous(weir__index *index, const weir__block *block) {
  uint64_t units = block->units;
  if (units < WEIR__NARROW)
    return previous_narrow(index, block, units);
  path p;
  find_bin(index, units, &p);
  weir__block *best = neighbour(*root_at(&p), block, true);
  if (!best)
    best = beyond_path(index, &p, row_of(units), true);
  return best ? best : last_below(index, WEIR__NARROW);
}

weir__block *weir__index_first(weir__index *index) { return weir__index_at_least(index, 0); }

weir__block *weir__index_last(weir__index *index) {
  weir__block *best = edge_of_rows(index, index->wide_rows, true);
  return best ? best : last_below(index, WEIR__NARROW);
}

static void wide_delete(weir__wide_bins *bins) {
  for (unsigned bin = 0; bins && bin < WEIR__BINS; bin++)
    if (bins->divided >> bin & 1)
      wide_delete(bins->at[bin].finer);
  free(bins);
}

void weir__index_clear(weir__index *index) {
  for (unsigned i = 0; i < groups && index->group[i]; i++)
    weir__region_free(index->group[i], sizeof *index->group[i]);
  weir__slab_clear(&index->partitions);
  for (unsigned row = 0; row < WEIR__WIDE_ROWS; row++)
    wide_delete(index->wide[row]);
  *index = (weir__index){0};
}

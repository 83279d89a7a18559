/*
 * The index of free blocks, the tree of unmapped ones, the table of live ones.
 */
#include <stdlib.h>
#include <string.h>

#include "alloc/index.h"

/* ---- Treaps ---- */

/* Any mixing that spreads addresses will do: it only shapes the tree. */
static inline uint64_t weight(const weir__block *block) {
  uint64_t x = block->address * 0x9e3779b97f4a7c15u;
  return x ^ x >> 29;
}

static inline bool before_by_size(const weir__block *a, const weir__block *b) {
  return a->units != b->units ? a->units < b->units : a->address < b->address;
}

static inline bool before_by_address(const weir__block *a, const weir__block *b) { return a->address < b->address; }

/* The two orders share their code: `by_size` is a constant in every caller, and the compiler makes two of it. */
static inline bool before(const weir__block *a, const weir__block *b, bool by_size) {
  return by_size ? before_by_size(a, b) : before_by_address(a, b);
}

/* Returns how many blocks it passed on its way. */
static inline __attribute__((always_inline)) unsigned treap_insert(weir__ref *root, weir__block *block, bool by_size) {
  unsigned passed = 0;
  weir__ref *at = root;
  weir__block *rest = weir__block_at(*root);
  uint64_t mine = weight(block);
  for (; rest && weight(rest) >= mine; rest = weir__block_at(*at), passed++)
    at = before(block, rest, by_size) ? &rest->left : &rest->right;
  /* The rest of the path is split into what lies before the block and what lies behind it. */
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

static weir__block *leftmost(weir__ref root) {
  weir__block *block = weir__block_at(root);
  while (block && block->left)
    block = weir__at(block->left);
  return block;
}

static weir__block *rightmost(weir__ref root) {
  weir__block *block = weir__block_at(root);
  while (block && block->right)
    block = weir__at(block->right);
  return block;
}

void weir__tree_insert(weir__ref *root, weir__block *block) { treap_insert(root, block, false); }
void weir__tree_remove(weir__ref *root, weir__block *block) { treap_remove(root, block, false); }

weir__block *weir__tree_after(weir__ref root, uint64_t address) {
  weir__block *best = NULL;
  for (weir__block *at = weir__block_at(root); at;) {
    bool is_above = at->address > address;
    best = is_above ? at : best;
    at = weir__block_at(is_above ? at->left : at->right);
  }
  return best;
}

/* ---- Wide bins ---- */

/* How often bins can be divided, each time into 64, and how many blocks on a way make a tree deep. */
enum { levels = 8, deep = 6 };

static inline unsigned row_of(uint64_t units) { return (unsigned)(63 - __builtin_clzll(units)) - 18; }

/* log2 of the units that one bin spans: of a row, and of the finer ones of a bin of some width. */
static inline unsigned width_of(unsigned row) { return row + 12; }
static inline unsigned finer(unsigned width) { return width > 6 ? width - 6 : 0; }
static inline unsigned bin_of(uint64_t units, unsigned width) { return (units >> width) & (WEIR__BINS - 1); }

/* The way from a row down to the bin of a size. */
typedef struct path {
  weir__wide_bins *bins[levels];
  unsigned bin[levels];
  unsigned depth, width; /* of the last one */
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

/* Without host memory for it the bin stays as it is, and only slower. */
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

/* The first and the last block of bins that have some. */
static weir__block *first_of(const weir__wide_bins *bins, unsigned bin) {
  while (bins->divided >> bin & 1) {
    bins = bins->at[bin].finer;
    bin = (unsigned)__builtin_ctzll(bins->used);
  }
  return leftmost(bins->at[bin].root);
}

static weir__block *last_of(const weir__wide_bins *bins, unsigned bin) {
  while (bins->divided >> bin & 1) {
    bins = bins->at[bin].finer;
    bin = 63 - (unsigned)__builtin_clzll(bins->used);
  }
  return rightmost(bins->at[bin].root);
}

static weir__block *first_of_rows(const weir__index *index, uint64_t rows) {
  if (!rows)
    return NULL;
  const weir__wide_bins *bins = index->wide[__builtin_ctzll(rows)];
  return first_of(bins, (unsigned)__builtin_ctzll(bins->used));
}

/* The first block of the bins behind those of a path, which is that of a size in a row. */
static weir__block *first_behind(const weir__index *index, const path *p, unsigned row) {
  for (unsigned i = p->depth + 1; i-- > 0;) {
    uint64_t used = p->bins[i]->used & ~1ull << p->bin[i];
    if (used)
      return first_of(p->bins[i], (unsigned)__builtin_ctzll(used));
  }
  return first_of_rows(index, index->wide_rows & ~1ull << row);
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
  return first_behind(index, &p, row);
}

/* ---- Narrow bins ---- */

/* So many blocks are looked at faster than a heap is kept. */
enum { few = 8 };

static weir__block *after(const weir__block *block) { return weir__block_at(block->after); }

static weir__block *scan_list(const weir__bin_group *group, uint64_t bin) {
  weir__block *best = weir__at(group->list[bin]);
  for (weir__block *block = after(best); block; block = after(block))
    if (block->address < best->address)
      best = block;
  return best;
}

/* ... of a few. NULL: there are more. Which of two is lower is a coin toss, so it is no branch. */
static weir__block *lowest_of_few(const weir__block *first) {
  weir__ref best = weir__ref_of(first), next = first->after;
  uint64_t lowest = first->address;
  for (int i = 1; next && i < few; i++) {
    const weir__block *block = weir__at(next);
    bool is_lower = block->address < lowest;
    lowest = is_lower ? block->address : lowest;
    best ^= (best ^ next) & -(weir__ref)is_lower;
    next = block->after;
  }
  return next ? NULL : weir__at(best);
}

/* The block may be gone. Its memory is still that of a block, or of one that waits to be taken, which the sanitizer is told not
 * to be touched otherwise. */
static __attribute__((no_sanitize("address"))) bool is_there(const struct weir__bin_entry *entry, uint32_t units) {
  const weir__block *block = entry->block;
  return block->known == WEIR__HEAPED && block->address == entry->address && block->units == units;
}

static void sink(weir__bin_heap *heap, size_t i) {
  struct weir__bin_entry entry = heap->at[i];
  for (size_t child; (child = 2 * i + 1) < heap->count; i = child) {
    child += child + 1 < heap->count && heap->at[child + 1].address < heap->at[child].address;
    if (entry.address <= heap->at[child].address)
      break;
    heap->at[i] = heap->at[child];
  }
  heap->at[i] = entry;
}

static void push(weir__bin_heap *heap, weir__block *block) {
  size_t i = heap->count++;
  for (; i && heap->at[(i - 1) / 2].address > block->address; i = (i - 1) / 2)
    heap->at[i] = heap->at[(i - 1) / 2];
  heap->at[i] = (struct weir__bin_entry){block->address, block};
}

static void drop_gone(weir__bin_heap *heap, uint32_t units) {
  size_t kept = 0;
  for (size_t i = 0; i < heap->count; i++)
    if (is_there(&heap->at[i], units))
      heap->at[kept++] = heap->at[i];
  heap->count = kept;
  for (size_t i = kept / 2; i-- > 0;)
    sink(heap, i);
}

/* The heap of a bin with room for so many more; NULL: no host memory. */
static weir__bin_heap *heap_for(weir__bin_group *group, uint64_t bin, size_t more) {
  if (!group->heaps && !(group->heaps = calloc(WEIR__GROUP, sizeof(weir__bin_heap *))))
    return NULL;
  weir__bin_heap *heap = group->heaps[bin];
  if (heap && heap->count + more > heap->room)
    drop_gone(heap, ((weir__block *)weir__at(group->list[bin]))->units);
  if (heap && heap->count + more <= heap->room)
    return heap;
  size_t count = heap ? heap->count : 0, room = 2 * (count + more) + few;
  weir__bin_heap *grown = realloc(heap, sizeof *grown + room * sizeof grown->at[0]);
  if (!grown)
    return NULL;
  grown->count = count;
  grown->room = room;
  memset(grown->at + count, 0, (room - count) * sizeof grown->at[0]);
  group->heaps[bin] = grown;
  return grown;
}

weir__block *weir__index_lowest(weir__bin_group *group, uint64_t bin) {
  weir__block *first = weir__at(group->list[bin]);
  if (first->known == WEIR__ORDERED)
    return first;
  weir__block *best = lowest_of_few(first);
  if (best)
    return best;
  size_t fresh = 0; /* they are in front of all that the heap knows */
  for (const weir__block *block = first; block && block->known != WEIR__HEAPED; block = after(block))
    fresh++;
  weir__bin_heap *heap = heap_for(group, bin, fresh);
  if (!heap)
    return scan_list(group, bin);
  for (weir__block *block = first; block && block->known != WEIR__HEAPED; block = after(block)) {
    push(heap, block);
    block->known = WEIR__HEAPED;
  }
  while (!is_there(&heap->at[0], first->units)) {
    heap->at[0] = heap->at[--heap->count];
    sink(heap, 0);
  }
  return heap->at[0].block;
}

weir__block *weir__index_beyond(weir__index *index, uint64_t group) {
  uint64_t groups = index->groups & ~1ull << group;
  if (!groups)
    return first_of_rows(index, index->wide_rows);
  weir__bin_group *next = index->group[__builtin_ctzll(groups)];
  uint64_t row = (uint64_t)__builtin_ctzll(next->rows), bin = row * 64 + (uint64_t)__builtin_ctzll(next->used[row]);
  weir__block *block = weir__at(next->list[bin]);
  return block->after ? weir__index_lowest(next, bin) : block;
}

/* Sorts a list by merging ever longer runs of it. */
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

/* The list of a bin in the order of addresses; it may be empty. */
static weir__block *order_list(weir__bin_group *group, uint64_t bin) {
  weir__block *first = weir__block_at(group->list[bin]);
  if (!first || first->known == WEIR__ORDERED)
    return first;
  group->list[bin] = sort_list(group->list[bin]);
  for (weir__ref *link = &group->list[bin]; *link;) {
    weir__block *block = weir__at(*link);
    block->link = weir__ref_of(link);
    block->known = WEIR__ORDERED; /* and no longer in the heap: it would not be behind all new ones */
    link = &block->after;
  }
  if (group->heaps && group->heaps[bin])
    group->heaps[bin]->count = 0;
  return weir__at(group->list[bin]);
}

/* The last block of these bins of a row, of these rows of a group, of these groups; NULL: there are none. */
static weir__block *last_in_row(weir__bin_group *group, uint64_t row, uint64_t used) {
  if (!used)
    return NULL;
  weir__block *block = order_list(group, row * 64 + 63 - (unsigned)__builtin_clzll(used));
  while (block->after)
    block = after(block);
  return block;
}

static weir__block *last_in_group(weir__bin_group *group, uint64_t rows) {
  uint64_t row = rows ? 63 - (unsigned)__builtin_clzll(rows) : 0;
  return rows ? last_in_row(group, row, group->used[row]) : NULL;
}

static weir__block *last_narrow(const weir__index *index, uint64_t groups) {
  weir__bin_group *group = groups ? index->group[63 - __builtin_clzll(groups)] : NULL;
  return group ? last_in_group(group, group->rows) : NULL;
}

/* ---- All bins ---- */

enum { groups = WEIR__NARROW / WEIR__GROUP };

bool weir__index_prepare(weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT;
  for (unsigned i = 0; i < groups && i <= units / WEIR__GROUP; i++)
    if (!index->group[i] && !(index->group[i] = weir__region_take(sizeof *index->group[i])))
      return false;
  index->nobody = weir__ref_of(&index->group[0]->nobody);
  index->group[0]->nobody.state = WEIR__ALLOCATED;
  if (units < WEIR__NARROW)
    return true;
  if (units > weir__most_units)
    return false;
  for (unsigned row = 0; row <= row_of(units); row++)
    if (!index->wide[row] && !(index->wide[row] = calloc(1, sizeof *index->wide[row])))
      return false;
  return true;
}

/* In a treap, or NULL. */
static weir__block *behind(weir__ref root, const weir__block *block) {
  weir__block *best = NULL;
  for (weir__block *at = weir__block_at(root); at;) {
    bool is_behind = before_by_size(block, at);
    best = is_behind ? at : best;
    at = weir__block_at(is_behind ? at->left : at->right);
  }
  return best;
}

static weir__block *in_front(weir__ref root, const weir__block *block) {
  weir__block *best = NULL;
  for (weir__block *at = weir__block_at(root); at;) {
    bool is_in_front = before_by_size(at, block);
    best = is_in_front ? at : best;
    at = weir__block_at(is_in_front ? at->right : at->left);
  }
  return best;
}

weir__block *weir__index_next(weir__index *index, const weir__block *block) {
  uint64_t units = block->units;
  path p;
  if (units < WEIR__NARROW) {
    order_list(index->group[units / WEIR__GROUP], units % WEIR__GROUP);
    return block->after ? after(block) : weir__index_at_least(index, ((uint64_t)block->units + 1) * WEIR__UNIT);
  }
  find_bin(index, units, &p);
  weir__block *best = behind(*root_at(&p), block);
  return best ? best : first_behind(index, &p, row_of(units));
}

/* Before a block in a narrow bin. */
static weir__block *previous_narrow(const weir__index *index, const weir__block *block, uint64_t units) {
  uint64_t bin = units % WEIR__GROUP, row = bin / 64;
  weir__bin_group *group = index->group[units / WEIR__GROUP];
  order_list(group, bin);
  if (block->link != weir__ref_of(&group->list[bin]))
    return (weir__block *)((char *)weir__at(block->link) - offsetof(weir__block, after));
  weir__block *last = last_in_row(group, row, group->used[row] & ((1ull << bin % 64) - 1));
  if (!last)
    last = last_in_group(group, group->rows & ((1ull << row) - 1));
  return last ? last : last_narrow(index, index->groups & ((1ull << units / WEIR__GROUP) - 1));
}

weir__block *weir__index_previous(weir__index *index, const weir__block *block) {
  uint64_t units = block->units;
  if (units < WEIR__NARROW)
    return previous_narrow(index, block, units);
  path p;
  find_bin(index, units, &p);
  weir__block *best = in_front(*root_at(&p), block);
  if (best)
    return best;
  for (unsigned i = p.depth + 1; i-- > 0;) {
    uint64_t used = p.bins[i]->used & ((1ull << p.bin[i]) - 1);
    if (used)
      return last_of(p.bins[i], 63 - (unsigned)__builtin_clzll(used));
  }
  uint64_t rows = index->wide_rows & ((1ull << row_of(units)) - 1);
  if (!rows)
    return last_narrow(index, index->groups);
  const weir__wide_bins *bins = index->wide[63 - __builtin_clzll(rows)];
  return last_of(bins, 63 - (unsigned)__builtin_clzll(bins->used));
}

weir__block *weir__index_first(weir__index *index) { return weir__index_at_least(index, 0); }

weir__block *weir__index_last(weir__index *index) {
  if (!index->wide_rows)
    return last_narrow(index, index->groups);
  const weir__wide_bins *bins = index->wide[63 - __builtin_clzll(index->wide_rows)];
  return last_of(bins, 63 - (unsigned)__builtin_clzll(bins->used));
}

bool weir__index_has(const weir__index *index, const weir__block *block) {
  uint64_t units = block->units;
  const weir__block *at = NULL;
  if (units < WEIR__NARROW) {
    const weir__bin_group *group = index->group[units / WEIR__GROUP];
    at = group ? weir__block_at(group->list[units % WEIR__GROUP]) : NULL;
    while (at && at != block)
      at = after(at);
    return at != NULL;
  }
  if (!index->wide[row_of(units)])
    return false;
  path p;
  find_bin(index, units, &p);
  at = weir__block_at(*root_at(&p));
  while (at && at != block)
    at = weir__block_at(before_by_size(block, at) ? at->left : at->right);
  return at != NULL;
}

static void wide_delete(weir__wide_bins *bins) {
  for (unsigned bin = 0; bins && bin < WEIR__BINS; bin++)
    if (bins->divided >> bin & 1)
      wide_delete(bins->at[bin].finer);
  free(bins);
}

void weir__index_clear(weir__index *index) {
  for (unsigned i = 0; i < groups && index->group[i]; i++) {
    weir__bin_heap **heaps = index->group[i]->heaps;
    for (unsigned bin = 0; heaps && bin < WEIR__GROUP; bin++)
      free(heaps[bin]);
    free(heaps);
    weir__region_give(index->group[i], sizeof *index->group[i]);
  }
  for (unsigned row = 0; row < WEIR__WIDE_ROWS; row++)
    wide_delete(index->wide[row]);
  *index = (weir__index){0};
}

/* ---- The walker ---- */

/* Counts a treap's blocks, or returns -1 when one is out of place. */
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

/* The same of a bin, whose sizes are these. */
static long bin_count(weir__ref root, bool is_used, uint64_t least, uint64_t beyond) {
  long n = treap_count(root, NULL, NULL);
  if (is_used != (root != 0))
    return -1;
  if (n > 0 && (leftmost(root)->units < least || rightmost(root)->units >= beyond))
    return -1;
  return n;
}

/* The same of wide bins whose sizes begin with `from`, each 2^width units wide. */
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

/* The same of a narrow bin. New blocks are in front of those of which something is known, and that is the same of all these. */
static long narrow_count(const weir__bin_group *group, uint64_t bin, uint32_t units) {
  size_t known = 0, in_heap = 0;
  long n = 0;
  for (const weir__block *b = weir__block_at(group->list[bin]), *previous = NULL; b; previous = b, b = after(b), n++) {
    if (b->link != weir__ref_of(previous ? &previous->after : &group->list[bin]) || b->units != units)
      return -1;
    if (previous && ((previous->known && previous->known != b->known) ||
                     (previous->known == WEIR__ORDERED && previous->address > b->address)))
      return -1;
    known += b->known == WEIR__HEAPED;
  }
  const weir__bin_heap *heap = group->heaps ? group->heaps[bin] : NULL;
  for (size_t i = 0; heap && i < heap->count; i++) {
    if (i && heap->at[(i - 1) / 2].address > heap->at[i].address)
      return -1;
    in_heap += is_there(&heap->at[i], units);
  }
  return in_heap < known ? -1 : n; /* one that came, went and came again may be there twice */
}

/* The same of a group. Bins that are said to be empty are not looked at, there are too many: who compares the count with that of
 * all free blocks finds out. */
static long group_count(const weir__bin_group *group, uint64_t from) {
  long count = 0;
  for (uint64_t row = 0; row < WEIR__GROUP / 64; row++) {
    if ((group->rows >> row & 1) != (group->used[row] != 0))
      return -1;
    for (uint64_t used = group->used[row]; used; used &= used - 1) {
      uint64_t bin = row * 64 + (uint64_t)__builtin_ctzll(used);
      long n = narrow_count(group, bin, (uint32_t)(from + bin));
      if (n <= 0)
        return -1;
      count += n;
    }
  }
  return count;
}

long weir__index_count(const weir__index *index) {
  long count = 0;
  if (index->nobody &&
      (index->nobody != weir__ref_of(&index->group[0]->nobody) || index->group[0]->nobody.state != WEIR__ALLOCATED))
    return -1;
  for (unsigned i = 0; i < groups && index->group[i]; i++) {
    long n = group_count(index->group[i], (uint64_t)i * WEIR__GROUP);
    if (n < 0 || (index->groups >> i & 1) != (n > 0))
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

/* ---- Live blocks ---- */

static void insert_again(weir__live *live, const weir__live_bucket *bucket) {
  for (unsigned i = 0; i < WEIR__LIVE_SLOTS; i++)
    if (bucket->marks[i])
      weir__live_insert(live, bucket->blocks[i], weir__live_hash(bucket->blocks[i]->address));
}

bool weir__live_grow(weir__live *live) {
  weir__live grown = {.bits = live->buckets ? live->bits + 1 : 3};
  grown.shift = 64 - grown.bits;
  size_t count = (size_t)1 << grown.bits, bytes = count * sizeof *grown.buckets;
  grown.most = count * 5;
  grown.buckets = aligned_alloc(sizeof *grown.buckets, bytes);
  if (!grown.buckets)
    return false;
  memset(grown.buckets, 0, bytes);
  for (size_t i = 0; live->buckets && i < (size_t)1 << live->bits; i++)
    insert_again(&grown, &live->buckets[i]);
  free(live->buckets);
  *live = grown;
  return true;
}

static size_t next_bucket(const weir__live *live, size_t i) { return (i + 1) & (((size_t)1 << live->bits) - 1); }

void weir__live_insert_beyond(weir__live *live, weir__block *block, uint64_t hash) {
  size_t i = weir__live_home(live, hash);
  while (!weir__live_vacant(&live->buckets[i])) {
    if (live->buckets[i].passed < UINT8_MAX) /* there it stays: too many is only slow */
      live->buckets[i].passed++;
    i = next_bucket(live, i);
  }
  weir__live_put(&live->buckets[i], block, hash);
}

weir__block *weir__live_find_beyond(const weir__live *live, uint64_t address, uint64_t hash, weir__live_place *place) {
  size_t i = weir__live_home(live, hash);
  for (size_t left = (size_t)1 << live->bits; live->buckets[i].passed && left > 1; left--) {
    i = next_bucket(live, i);
    weir__block *block = weir__live_match(&live->buckets[i], address, hash, true, place);
    if (block)
      return block;
  }
  return NULL;
}

void weir__live_forget_passing(weir__live *live, uint64_t address, const weir__live_bucket *found) {
  for (size_t i = weir__live_home(live, weir__live_hash(address)); &live->buckets[i] != found; i = next_bucket(live, i))
    if (live->buckets[i].passed < UINT8_MAX)
      live->buckets[i].passed--;
}

void weir__live_clear(weir__live *live) {
  free(live->buckets);
  *live = (weir__live){0};
}

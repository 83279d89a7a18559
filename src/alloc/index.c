/*
 * The index of free blocks, the tree of unmapped ones, the table of live ones.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc/index.h"

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

/* Returns how many blocks it passed on its way. */
static inline __attribute__((always_inline)) unsigned treap_insert(weir__block **root, weir__block *block,
                                                                   bool by_size) {
  unsigned passed = 0;
  weir__block *rest = *root;
  if (!rest) {
    block->left = block->right = NULL;
    *root = block;
    return 0;
  }
  uint64_t mine = weight(block);
  weir__block **at = root;
  for (; rest && weight(rest) >= mine; rest = *at, passed++)
    at = before(block, rest, by_size) ? &rest->left : &rest->right;
  /* The rest of the path is split into what lies before the block and what lies behind it. */
  weir__block **low = &block->left, **high = &block->right;
  *at = block;
  for (; rest; passed++) {
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
  return passed;
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
    bins = bins->at[bin];
    width = finer(width);
    bin = bin_of(units, width);
    p->bins[++depth] = bins;
    p->bin[depth] = bin;
  }
  p->depth = depth;
  p->width = width;
}

static weir__block **root_at(const path *p) { return (weir__block **)&p->bins[p->depth]->at[p->bin[p->depth]]; }

static void move_blocks(weir__wide_bins *to, unsigned width, weir__block *block) {
  if (!block)
    return;
  weir__block *left = block->left, *right = block->right;
  unsigned bin = bin_of(block->bytes / WEIR__UNIT, width);
  treap_insert((weir__block **)&to->at[bin], block, true);
  to->used |= 1ull << bin;
  move_blocks(to, width, left);
  move_blocks(to, width, right);
}

/* Without host memory for it the bin stays as it is, and only slower. */
static void divide(weir__wide_bins *bins, unsigned bin, unsigned width) {
  weir__wide_bins *made = calloc(1, sizeof *made);
  if (!made)
    return;
  move_blocks(made, finer(width), bins->at[bin]);
  bins->at[bin] = made;
  bins->divided |= 1ull << bin;
}

void weir__index_insert_wide(weir__index *index, weir__block *block) {
  uint64_t units = block->bytes / WEIR__UNIT;
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
  uint64_t units = block->bytes / WEIR__UNIT;
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
    bins = bins->at[bin];
    bin = (unsigned)__builtin_ctzll(bins->used);
  }
  return leftmost(bins->at[bin]);
}

static weir__block *last_of(const weir__wide_bins *bins, unsigned bin) {
  while (bins->divided >> bin & 1) {
    bins = bins->at[bin];
    bin = 63 - (unsigned)__builtin_clzll(bins->used);
  }
  return rightmost(bins->at[bin]);
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
    for (weir__block *at = *root_at(&p); at;) {
      if (at->bytes >= bytes) {
        best = at;
        at = at->left;
      } else
        at = at->right;
    }
    if (best)
      return best;
  }
  return first_behind(index, &p, row);
}

/* ---- Narrow bins ---- */

/* So many blocks are looked at faster than a heap is kept. */
enum { few = 8 };

static weir__block *scan_list(const weir__bin_group *group, uint64_t bin) {
  weir__block *best = group->list[bin];
  for (weir__block *block = best->after; block; block = block->after)
    if (block->address < best->address)
      best = block;
  return best;
}

/* ... of a few. NULL: there are more. */
static weir__block *lowest_of_few(const weir__bin_group *group, uint64_t bin) {
  weir__block *best = group->list[bin], *block = best->after;
  for (int i = 1; block && i < few; i++, block = block->after)
    best = block->address < best->address ? block : best;
  return block ? NULL : best;
}

/* The block may be gone. Its memory is still that of a block, or of one that waits to be taken, which the sanitizer is told not
 * to be touched otherwise. */
static __attribute__((no_sanitize("address"))) bool is_there(const struct weir__bin_entry *entry, uint64_t bytes) {
  const weir__block *block = entry->block;
  return block->known == WEIR__HEAPED && block->address == entry->address && block->bytes == bytes;
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

static void drop_gone(weir__bin_heap *heap, uint64_t bytes) {
  size_t kept = 0;
  for (size_t i = 0; i < heap->count; i++)
    if (is_there(&heap->at[i], bytes))
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
    drop_gone(heap, group->list[bin]->bytes);
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
  weir__block *first = group->list[bin];
  if (first->known == WEIR__ORDERED)
    return first;
  weir__block *best = lowest_of_few(group, bin);
  if (best)
    return best;
  size_t fresh = 0; /* they are in front of all that the heap knows */
  for (const weir__block *block = first; block && block->known != WEIR__HEAPED; block = block->after)
    fresh++;
  weir__bin_heap *heap = heap_for(group, bin, fresh);
  if (!heap)
    return scan_list(group, bin);
  for (weir__block *block = first; block && block->known != WEIR__HEAPED; block = block->after) {
    push(heap, block);
    block->known = WEIR__HEAPED;
  }
  while (!is_there(&heap->at[0], first->bytes)) {
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
  weir__block *block = next->list[bin];
  return block->after ? weir__index_lowest(next, bin) : block;
}

/* Sorts a list by merging ever longer runs of it. */
static weir__block *sort_list(weir__block *list) {
  for (size_t run = 1;; run *= 2) {
    weir__block *rest = list, **tail = &list;
    size_t merges = 0;
    while (rest) {
      weir__block *a = rest, *b = rest;
      size_t a_left = run, b_left = run;
      for (size_t i = 0; b && i < run; i++)
        b = b->after;
      while ((a_left && a) || (b_left && b)) {
        bool from_a = a_left && a && (!b_left || !b || a->address < b->address);
        weir__block *next = from_a ? a : b;
        if (from_a) {
          a = a->after;
          a_left--;
        } else {
          b = b->after;
          b_left--;
        }
        *tail = next;
        tail = &next->after;
      }
      rest = b;
      merges++;
    }
    *tail = NULL;
    if (merges <= 1)
      return list;
  }
}

/* The list of a bin in the order of addresses; it may be empty. */
static weir__block *order_list(weir__bin_group *group, uint64_t bin) {
  if (!group->list[bin] || group->list[bin]->known == WEIR__ORDERED)
    return group->list[bin];
  group->list[bin] = sort_list(group->list[bin]);
  for (weir__block **link = &group->list[bin]; *link; link = &(*link)->after) {
    (*link)->link = link;
    (*link)->known = WEIR__ORDERED; /* and no longer in the heap: it would not be behind all new ones */
  }
  if (group->heaps && group->heaps[bin])
    group->heaps[bin]->count = 0;
  return group->list[bin];
}

/* The last block of these bins of a row, of these rows of a group, of these groups; NULL: there are none. */
static weir__block *last_in_row(weir__bin_group *group, uint64_t row, uint64_t used) {
  if (!used)
    return NULL;
  weir__block *block = order_list(group, row * 64 + 63 - (unsigned)__builtin_clzll(used));
  while (block->after)
    block = block->after;
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

/* All but the first group lie in address space of their own: most of its pages are never touched. */
static bool make_groups(weir__index *index) {
  size_t bytes = (groups - 1) * sizeof(weir__bin_group);
  void *space = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED)
    return false;
  index->space = space;
  for (unsigned i = 1; i < groups; i++)
    index->group[i] = (weir__bin_group *)space + i - 1;
  return true;
}

bool weir__index_prepare(weir__index *index, uint64_t bytes) {
  uint64_t units = bytes / WEIR__UNIT;
  if (!index->group[0] && !(index->group[0] = calloc(1, sizeof *index->group[0])))
    return false;
  if (units >= WEIR__GROUP && !index->space && !make_groups(index))
    return false;
  if (units < WEIR__NARROW)
    return true;
  if (row_of(units) >= WEIR__WIDE_ROWS)
    return false;
  for (unsigned row = 0; row <= row_of(units); row++)
    if (!index->wide[row] && !(index->wide[row] = calloc(1, sizeof *index->wide[row])))
      return false;
  return true;
}

/* In a treap, or NULL. */
static weir__block *behind(weir__block *at, const weir__block *block) {
  weir__block *best = NULL;
  while (at) {
    if (before_by_size(block, at)) {
      best = at;
      at = at->left;
    } else
      at = at->right;
  }
  return best;
}

static weir__block *in_front(weir__block *at, const weir__block *block) {
  weir__block *best = NULL;
  while (at) {
    if (before_by_size(at, block)) {
      best = at;
      at = at->right;
    } else
      at = at->left;
  }
  return best;
}

weir__block *weir__index_next(weir__index *index, const weir__block *block) {
  uint64_t units = block->bytes / WEIR__UNIT;
  path p;
  if (units < WEIR__NARROW) {
    order_list(index->group[units / WEIR__GROUP], units % WEIR__GROUP);
    return block->after ? block->after : weir__index_at_least(index, block->bytes + WEIR__UNIT);
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
  if (block->link != &group->list[bin])
    return (weir__block *)((char *)block->link - offsetof(weir__block, after));
  weir__block *last = last_in_row(group, row, group->used[row] & ((1ull << bin % 64) - 1));
  if (!last)
    last = last_in_group(group, group->rows & ((1ull << row) - 1));
  return last ? last : last_narrow(index, index->groups & ((1ull << units / WEIR__GROUP) - 1));
}

weir__block *weir__index_previous(weir__index *index, const weir__block *block) {
  uint64_t units = block->bytes / WEIR__UNIT;
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
  uint64_t units = block->bytes / WEIR__UNIT;
  const weir__block *at = NULL;
  if (units < WEIR__NARROW) {
    const weir__bin_group *group = index->group[units / WEIR__GROUP];
    at = group ? group->list[units % WEIR__GROUP] : NULL;
    while (at && at != block)
      at = at->after;
    return at != NULL;
  }
  if (!index->wide[row_of(units)])
    return false;
  path p;
  find_bin(index, units, &p);
  at = *root_at(&p);
  while (at && at != block)
    at = before_by_size(block, at) ? at->left : at->right;
  return at != NULL;
}

static void wide_delete(weir__wide_bins *bins) {
  for (unsigned bin = 0; bins && bin < WEIR__BINS; bin++)
    if (bins->divided >> bin & 1)
      wide_delete(bins->at[bin]);
  free(bins);
}

void weir__index_clear(weir__index *index) {
  for (unsigned i = 0; i < groups && index->group[i]; i++) {
    weir__bin_heap **heaps = index->group[i]->heaps;
    for (unsigned bin = 0; heaps && bin < WEIR__GROUP; bin++)
      free(heaps[bin]);
    free(heaps);
  }
  free(index->group[0]);
  if (index->space)
    munmap(index->space, (groups - 1) * sizeof(weir__bin_group));
  for (unsigned row = 0; row < WEIR__WIDE_ROWS; row++)
    wide_delete(index->wide[row]);
  *index = (weir__index){0};
}

/* ---- The walker ---- */

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

/* The same of a bin, whose sizes are these. */
static long bin_count(weir__block *root, bool is_used, uint64_t least, uint64_t beyond) {
  long n = treap_count(root, NULL, NULL);
  if (is_used != (root != NULL))
    return -1;
  if (n > 0 && (leftmost(root)->bytes / WEIR__UNIT < least || rightmost(root)->bytes / WEIR__UNIT >= beyond))
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
      const weir__wide_bins *inner = bins->at[bin];
      n = wide_count(inner, least & ~((64ull << finer(width)) - 1), finer(width));
      if (is_used != (inner->used != 0))
        return -1;
    } else
      n = bin_count(bins->at[bin], is_used, least, least + (1ull << width));
    if (n < 0)
      return -1;
    count += n;
  }
  return count;
}

/* The same of a narrow bin. New blocks are in front of those of which something is known, and that is the same of all these. */
static long narrow_count(const weir__bin_group *group, uint64_t bin, uint64_t bytes) {
  size_t known = 0, in_heap = 0;
  long n = 0;
  for (const weir__block *b = group->list[bin], *previous = NULL; b; previous = b, b = b->after, n++) {
    if (b->link != (previous ? &previous->after : &group->list[bin]) || b->bytes != bytes)
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
    in_heap += is_there(&heap->at[i], bytes);
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
      long n = narrow_count(group, bin, (from + bin) * WEIR__UNIT);
      if (n <= 0)
        return -1;
      count += n;
    }
  }
  return count;
}

long weir__index_count(const weir__index *index) {
  long count = 0;
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

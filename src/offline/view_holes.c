#include "offline/view_holes.h"

#include <stdlib.h>

#include "offline/view_axis.h"

/* The marks take at most 128 MiB, and the tree about as much. Where that is too little, places are larger: blocks grow
 * to whole places, and holes are a little too small. */
enum { MOST_PLACES_BITS = 30, MOST_LEAVES = 1 << 21, GROUP_WORDS = 8 };

static size_t first_place(const weir__holes *h, uint32_t y) { return y >> h->shift; }

static size_t end_place(const weir__holes *h, uint32_t y, uint32_t units) {
  return (size_t)(((uint64_t)y + units + ((1ull << h->shift) - 1)) >> h->shift);
}

static void set(weir__holes *h, size_t place) {
  size_t group = place / 64 / GROUP_WORDS;
  h->marks[place / 64] |= 1ull << (place % 64);
  h->groups[group / 64] |= 1ull << (group % 64);
}

/* The first group from `group` on that is not zero; false if there is none. */
static bool next_group(const weir__holes *h, size_t *group) {
  size_t words = h->mark_words / GROUP_WORDS / 64 + 1, word = *group / 64;
  uint64_t bits = word < words ? h->groups[word] >> (*group % 64) << (*group % 64) : 0;
  while (!bits && ++word < words)
    bits = h->groups[word];
  if (bits)
    *group = word * 64 + (size_t)__builtin_ctzll(bits);
  return bits != 0;
}

void weir__holes_mark(weir__holes *holes, uint32_t y, uint32_t units) {
  set(holes, first_place(holes, y));
  set(holes, end_place(holes, y, units));
}

/* The leaf that begins at a place. It is a boundary. */
static size_t leaf_at(const weir__holes *h, size_t place) {
  size_t word = place / 64, group = word / GROUP_WORDS, leaf = h->rank[group];
  for (size_t i = group * GROUP_WORDS; i < word; i++)
    leaf += (size_t)__builtin_popcountll(h->marks[i]);
  return leaf + (size_t)__builtin_popcountll(h->marks[word] & ((1ull << (place % 64)) - 1));
}

/* ---- The tree ---- */

/* Joins the children of a node. `wall` is whether a segment begins or ends between them. Returns whether it changed. */
static bool join(weir__holes_node *node, const weir__holes_node *left, const weir__holes_node *right, bool wall) {
  weir__holes_node n = {.length = left->length + right->length, .added = node->added};
  if (left->least < right->least) {
    n.prefix = left->prefix;
    n.best = left->best;
    n.least = left->least + n.added;
  } else if (right->least < left->least) {
    n.suffix = right->suffix;
    n.best = right->best;
    n.least = right->least + n.added;
  } else {
    uint32_t across = wall ? 0 : left->suffix + right->prefix;
    n.prefix = left->prefix == left->length && !wall ? left->length + right->prefix : left->prefix;
    n.suffix = right->suffix == right->length && !wall ? right->length + left->suffix : right->suffix;
    n.best = left->best > right->best ? left->best : right->best;
    n.best = across > n.best ? across : n.best;
    n.least = left->least + n.added;
  }
  bool is_same = n.prefix == node->prefix && n.suffix == node->suffix && n.best == node->best && n.least == node->least;
  *node = n;
  return !is_same;
}

/* `height` is that of the node above the leaves, at least 1: its right half begins with that leaf. */
static bool update(weir__holes *h, size_t node, unsigned height) {
  size_t middle = ((2 * node + 1) << (height - 1)) - h->leaves;
  return join(&h->nodes[node], &h->nodes[2 * node], &h->nodes[2 * node + 1], h->walls[middle] != 0);
}

static void add(weir__holes *h, size_t first, size_t end, int by) {
  size_t a = first + h->leaves, b = end + h->leaves;
  unsigned height = 0, top = 0; /* of the nodes that were added to */
  for (; a < b; a >>= 1, b >>= 1, top++) {
    if (a & 1) {
      h->nodes[a].least += by;
      h->nodes[a++].added += by;
    }
    if (b & 1) {
      h->nodes[--b].least += by;
      h->nodes[b].added += by;
    }
  }
  a = first + h->leaves;
  b = end - 1 + h->leaves;
  while (a >>= 1) {
    b >>= 1;
    height++;
    bool changed = update(h, a, height);
    if (b != a)
      changed |= update(h, b, height);
    if (!changed && height > top)
      return;
  }
}

/* Adds a wall before a leaf, or takes one away. */
static void add_wall(weir__holes *h, size_t leaf, int by) {
  h->walls[leaf] += (uint32_t)by;
  if (!leaf)
    return;
  unsigned height = (unsigned)__builtin_ctzll(leaf) + 1; /* of the node in whose middle it is */
  for (size_t node = (leaf + h->leaves) >> height; node && update(h, node, height); node >>= 1)
    height++;
}

static bool build_tree(weir__holes *h, size_t boundaries) {
  h->leaves = 2;
  while (h->leaves < boundaries + 1)
    h->leaves *= 2;
  h->nodes = calloc(2 * h->leaves, sizeof *h->nodes);
  h->walls = calloc(h->leaves + 1, sizeof *h->walls);
  if (!h->nodes || !h->walls)
    return false;
  size_t leaf = 0, last = 0;
  for (size_t group = 0; next_group(h, &group); group++)
    for (size_t i = group * GROUP_WORDS; i < (group + 1) * GROUP_WORDS; i++)
      for (uint64_t word = h->marks[i]; word; word &= word - 1) {
        size_t place = i * 64 + (size_t)__builtin_ctzll(word);
        if (leaf)
          h->nodes[h->leaves + leaf - 1].length = (uint32_t)(place - last);
        last = place;
        leaf++;
      }
  for (size_t i = h->leaves; i < 2 * h->leaves; i++) {
    weir__holes_node *n = &h->nodes[i];
    n->prefix = n->suffix = n->best = n->length;
    n->least = n->added = 1; /* not reserved */
  }
  unsigned height = 1;
  for (size_t width = h->leaves / 2; width; width /= 2, height++)
    for (size_t i = width; i < 2 * width; i++)
      update(h, i, height);
  return true;
}

/* false if there are too many boundaries, or no host memory. */
static bool make(weir__holes *h, uint32_t height, void (*mark)(void *context, weir__holes *holes), void *context,
                 bool *is_too_many) {
  *is_too_many = false;
  h->mark_words = (end_place(h, height, 0) / 64 / GROUP_WORDS + 1) * GROUP_WORDS;
  h->marks = calloc(h->mark_words, sizeof *h->marks);
  h->groups = calloc(h->mark_words / GROUP_WORDS / 64 + 1, sizeof *h->groups);
  h->rank = malloc(h->mark_words / GROUP_WORDS * sizeof *h->rank);
  if (!h->marks || !h->groups || !h->rank)
    return false;
  set(h, 0);
  mark(context, h);
  size_t count = 0;
  for (size_t group = 0; next_group(h, &group); group++) {
    h->rank[group] = (uint32_t)count;
    for (size_t i = group * GROUP_WORDS; i < (group + 1) * GROUP_WORDS; i++)
      count += (size_t)__builtin_popcountll(h->marks[i]);
  }
  *is_too_many = count > MOST_LEAVES;
  return !*is_too_many && build_tree(h, count);
}

bool weir__holes_make(weir__holes *holes, uint32_t height, void (*mark)(void *context, weir__holes *holes),
                      void *context) {
  unsigned shift = 0;
  bool is_too_many, ok;
  while (height >> shift >= 1u << MOST_PLACES_BITS)
    shift++;
  do {
    *holes = (weir__holes){.shift = shift++};
    ok = make(holes, height, mark, context, &is_too_many);
    if (!ok)
      weir__holes_clear(holes);
  } while (is_too_many);
  return ok;
}

void weir__holes_reserve(weir__holes *holes, uint32_t y, uint32_t units, bool is_begin, bool has_walls) {
  size_t first = leaf_at(holes, first_place(holes, y)), end = leaf_at(holes, end_place(holes, y, units));
  if (first >= end)
    return;
  if (has_walls) {
    add_wall(holes, first, is_begin ? 1 : -1);
    add_wall(holes, end, is_begin ? 1 : -1);
  }
  add(holes, first, end, is_begin ? -1 : 1);
}

void weir__holes_wall(weir__holes *holes, uint32_t y) { add_wall(holes, leaf_at(holes, first_place(holes, y)), 1); }

void weir__holes_cover(weir__holes *holes, uint32_t y, uint32_t units, bool is_begin) {
  size_t first = leaf_at(holes, first_place(holes, y)), end = leaf_at(holes, end_place(holes, y, units));
  if (first < end)
    add(holes, first, end, is_begin ? 1 : -1);
}

uint64_t weir__holes_largest(const weir__holes *holes) {
  const weir__holes_node *root = &holes->nodes[1];
  return root->least ? 0 : (uint64_t)root->best << holes->shift << WEIR__VIEW_UNIT_BITS;
}

void weir__holes_clear(weir__holes *holes) {
  free(holes->marks);
  free(holes->groups);
  free(holes->rank);
  free(holes->nodes);
  free(holes->walls);
  *holes = (weir__holes){0};
}

#include "offline/render/view_holes.h"

#include <stdlib.h>

#include "offline/render/view_axis.h"

/* With more boundaries, places are larger: blocks grow to whole places, and holes are a little too small. The map and
 * the tree take at most about 200 MiB. */
enum { MAX_LEAVES = 1 << 21 };

typedef struct boundary {
  uint64_t key; /* its place + 1 */
  uint32_t leaf;
} boundary;

static size_t first_place(const weir__holes *h, uint32_t y) { return y >> h->shift; }

static size_t end_place(const weir__holes *h, uint32_t y, uint32_t units) {
  return (size_t)(((uint64_t)y + units + ((1ull << h->shift) - 1)) >> h->shift);
}

static void set(weir__holes *h, size_t place) {
  if (h->boundaries.count <= MAX_LEAVES && !h->lacks_memory)
    h->lacks_memory = !weir__hash_map_put(&h->boundaries, sizeof(boundary), (uint64_t)place + 1);
}

void weir__holes_mark(weir__holes *holes, uint32_t y, uint32_t units) {
  set(holes, first_place(holes, y));
  set(holes, end_place(holes, y, units));
}

/* The leaf that begins at a place. It is a boundary. */
static uint32_t leaf_at(const weir__holes *h, size_t place) {
  return ((const boundary *)weir__hash_map_probe(&h->boundaries, sizeof(boundary), (uint64_t)place + 1))->leaf;
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

/* A range is a few whole nodes. Those on its left are below ancestors of the lowest of them, and so are those on its
 * right, so only these ancestors change. */
static void add(weir__holes *h, size_t first, size_t end, int by) {
  size_t a = first + h->leaves, b = end + h->leaves, left = 0, right = 0;
  unsigned height = 0, left_height = 0, right_height = 0, top = 0;
  for (; a < b; a >>= 1, b >>= 1, top++) {
    if (a & 1) {
      h->nodes[a].least += by;
      h->nodes[a].added += by;
      left_height = left ? left_height : top;
      left = left ? left : a;
      a++;
    }
    if (b & 1) {
      b--;
      h->nodes[b].least += by;
      h->nodes[b].added += by;
      right_height = right ? right_height : top;
      right = right ? right : b;
    }
  }
  height = !right || (left && left_height < right_height) ? left_height : right_height;
  for (;;) {
    height++;
    bool changed = false;
    size_t node = 0;
    if (left && height > left_height) {
      node = left >>= 1;
      changed = left && update(h, left, height);
    }
    if (right && height > right_height) {
      right >>= 1;
      changed |= right && right != node && update(h, right, height);
      node |= right;
    }
    if (!node || (!changed && height >= top))
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

static int by_place(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Numbers the leaves in the order of their places, and sets their lengths. */
static bool make_leaves(weir__holes *h) {
  size_t count = 0;
  uint64_t *places = malloc(h->boundaries.count * sizeof *places);
  boundary *one;
  if (!places)
    return false;
  for (size_t at = 0; (one = weir__hash_map_next(&h->boundaries, sizeof *one, &at));)
    places[count++] = one->key;
  qsort(places, count, sizeof *places, by_place);
  for (size_t i = 0; i < count; i++) {
    one = weir__hash_map_find(&h->boundaries, sizeof *one, places[i]);
    one->leaf = (uint32_t)i;
    h->nodes[h->leaves + i].length = i + 1 < count ? (uint32_t)(places[i + 1] - places[i]) : 0;
  }
  free(places);
  return true;
}

static bool build_tree(weir__holes *h) {
  h->leaves = 2;
  while (h->leaves < h->boundaries.count + 1)
    h->leaves *= 2;
  h->nodes = calloc(2 * h->leaves, sizeof *h->nodes);
  h->walls = calloc(h->leaves + 1, sizeof *h->walls);
  if (!h->nodes || !h->walls || !make_leaves(h))
    return false;
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

bool weir__holes_make(weir__holes *holes, void (*mark)(void *context, weir__holes *holes), void *context) {
  unsigned shift = 0;
  bool ok, is_too_many;
  do {
    *holes = (weir__holes){.shift = shift};
    shift++;
    set(holes, 0);
    mark(context, holes);
    is_too_many = !holes->lacks_memory && holes->boundaries.count > MAX_LEAVES;
    ok = !holes->lacks_memory && !is_too_many && build_tree(holes);
    if (!ok)
      weir__holes_clear(holes);
  } while (is_too_many);
  return ok;
}

weir__holes_range weir__holes_find(const weir__holes *holes, uint32_t y, uint32_t units) {
  return (weir__holes_range){leaf_at(holes, first_place(holes, y)), leaf_at(holes, end_place(holes, y, units))};
}

void weir__holes_reserve(weir__holes *holes, weir__holes_range range, bool is_begin, bool has_walls) {
  if (range.first >= range.end)
    return;
  if (has_walls) {
    add_wall(holes, range.first, is_begin ? 1 : -1);
    add_wall(holes, range.end, is_begin ? 1 : -1);
  }
  add(holes, range.first, range.end, is_begin ? -1 : 1);
}

void weir__holes_wall(weir__holes *holes, uint32_t y) { add_wall(holes, leaf_at(holes, first_place(holes, y)), 1); }

void weir__holes_cover(weir__holes *holes, weir__holes_range range, bool is_begin) {
  if (range.first < range.end)
    add(holes, range.first, range.end, is_begin ? 1 : -1);
}

uint64_t weir__holes_largest(const weir__holes *holes) {
  const weir__holes_node *root = &holes->nodes[1];
  return root->least ? 0 : (uint64_t)root->best << holes->shift << WEIR__VIEW_UNIT_BITS;
}

void weir__holes_clear(weir__holes *holes) {
  weir__hash_map_clear(&holes->boundaries);
  free(holes->nodes);
  free(holes->walls);
  *holes = (weir__holes){0};
}

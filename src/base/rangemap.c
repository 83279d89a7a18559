/*
 * A radix tree over the base addresses: a node covers six bits of the address and has up to 64 children. Levels at
 * which all addresses agree are left out, so a node always has two children or more, and the depth follows the number
 * of ranges, not the width of an address. A bit set tells which children exist: counting zeros in one word finds the
 * neighbour of an address, so ordered lookups are as cheap as exact ones.
 *
 * A link points to a node or, with its lowest bit set, to a leaf. 0 is no link.
 */
#include "base/rangemap.h"

enum { DIGIT = 6, WIDTH = 1 << DIGIT };

typedef struct leaf {
  uint64_t base;
  uint64_t size;
  void *value;
} leaf;

typedef struct node {
  uint64_t used;          /* bit d is set if child[d] exists */
  uint64_t key;           /* an address that went through this node */
  uint64_t shared;        /* a mask of the bits that all addresses of the subtree share: those above the node's own */
  unsigned shift;         /* the lowest of the node's own bits */
  uintptr_t child[WIDTH]; /* any content where `used` has no bit */
} node;

static bool is_leaf(uintptr_t link) { return link & 1; }
static leaf *as_leaf(uintptr_t link) { return (leaf *)(link - 1); }
static node *as_node(uintptr_t link) { return (node *)link; }

static unsigned lowest(uint64_t bits) { return (unsigned)__builtin_ctzll(bits); }
static unsigned highest(uint64_t bits) { return 63 - (unsigned)__builtin_clzll(bits); }

static unsigned digit_of(const node *n, uint64_t address) { return address >> n->shift & (WIDTH - 1); }

static bool belongs(const node *n, uint64_t address) { return ((address ^ n->key) & n->shared) == 0; }

/* Makes `n` the node that separates two different addresses. Digits begin at bits 3, 9, 15, 21, ..., because device
 * memory comes in units of 2 MiB and so fills whole nodes; the lowest digit has three bits of its own. */
static void look_between(node *n, uint64_t a, uint64_t b) {
  unsigned level = (highest(a ^ b) + 3) / DIGIT, above = level * DIGIT + 3;
  n->shift = level == 0 ? 0 : level * DIGIT - 3;
  n->shared = above > 63 ? 0 : ~(uint64_t)0 << above;
  n->key = a;
}

static leaf *first_of(uintptr_t link) {
  if (link == 0)
    return NULL;
  while (!is_leaf(link))
    link = as_node(link)->child[lowest(as_node(link)->used)];
  return as_leaf(link);
}

static leaf *last_of(uintptr_t link) {
  if (link == 0)
    return NULL;
  while (!is_leaf(link))
    link = as_node(link)->child[highest(as_node(link)->used)];
  return as_leaf(link);
}

/* The range with the highest base <= address. */
static leaf *at_or_before(const weir__rangemap *map, uint64_t address) {
  uintptr_t link = map->root, lower = 0; /* the nearest subtree whose addresses are all lower */
  while (link != 0 && !is_leaf(link)) {
    const node *n = as_node(link);
    if (!belongs(n, address))
      return last_of(n->key < address ? link : lower);
    unsigned digit = digit_of(n, address);
    uint64_t below = n->used & (((uint64_t)1 << digit) - 1);
    if (below != 0)
      lower = n->child[highest(below)];
    link = n->used >> digit & 1 ? n->child[digit] : 0;
  }
  if (link != 0 && as_leaf(link)->base <= address)
    return as_leaf(link);
  return last_of(lower);
}

/* The range with the lowest base >= address. */
static leaf *at_or_after(const weir__rangemap *map, uint64_t address) {
  uintptr_t link = map->root, higher = 0;
  while (link != 0 && !is_leaf(link)) {
    const node *n = as_node(link);
    if (!belongs(n, address))
      return first_of(n->key > address ? link : higher);
    unsigned digit = digit_of(n, address);
    uint64_t above = n->used >> digit >> 1;
    if (above != 0)
      higher = n->child[digit + 1 + lowest(above)];
    link = n->used >> digit & 1 ? n->child[digit] : 0;
  }
  if (link != 0 && as_leaf(link)->base >= address)
    return as_leaf(link);
  return first_of(higher);
}

static bool holds(const leaf *l, uint64_t address) { return address - l->base < l->size; }

static void *report(const leaf *l, uint64_t *base, uint64_t *size) {
  if (!l)
    return NULL;
  if (base)
    *base = l->base;
  if (size)
    *size = l->size;
  return l->value;
}

/* Where a new leaf for `address` goes: an unused link in `*in`; or, with *in NULL, a link that is empty, or whose
 * target a new node has to separate from the leaf. */
static uintptr_t *link_for(weir__rangemap *map, uint64_t address, node **in) {
  uintptr_t *link = &map->root;
  *in = NULL;
  while (*link != 0 && !is_leaf(*link) && belongs(as_node(*link), address)) {
    node *n = as_node(*link);
    unsigned digit = digit_of(n, address);
    link = &n->child[digit];
    if (!(n->used >> digit & 1)) {
      *in = n;
      break;
    }
  }
  return link;
}

/* A node with two children: `one` contains the address a, `other` the address b. NULL if the host has no memory. */
static node *make_node(weir__rangemap *map, uint64_t a, uintptr_t one, uint64_t b, uintptr_t other) {
  node *n = weir__slab_alloc(&map->nodes, sizeof(node));
  if (!n)
    return NULL;
  look_between(n, a, b);
  n->used = (uint64_t)1 << digit_of(n, a) | (uint64_t)1 << digit_of(n, b);
  n->child[digit_of(n, a)] = one;
  n->child[digit_of(n, b)] = other;
  return n;
}

bool weir__rangemap_insert(weir__rangemap *map, uint64_t base, uint64_t size, void *value) {
  uint64_t last = base + size - 1;
  if (size == 0 || last < base || !value)
    return false;
  const leaf *before = at_or_before(map, last);
  if (before && before->base + before->size - 1 >= base)
    return false;

  leaf *l = weir__slab_alloc(&map->leaves, sizeof(leaf));
  if (!l)
    return false;
  *l = (leaf){base, size, value};
  uintptr_t added = (uintptr_t)l + 1;
  node *in;
  uintptr_t *link = link_for(map, base, &in);
  if (in) {
    in->used |= (uint64_t)1 << digit_of(in, base);
  } else if (*link != 0) {
    uint64_t there = is_leaf(*link) ? as_leaf(*link)->base : as_node(*link)->key;
    added = (uintptr_t)make_node(map, base, added, there, *link);
    if (added == 0) {
      weir__slab_free(&map->leaves, l, sizeof(leaf));
      return false;
    }
  }
  *link = added;
  map->count++;
  return true;
}

void *weir__rangemap_find(const weir__rangemap *map, uint64_t address, uint64_t *base, uint64_t *size) {
  const leaf *l = at_or_before(map, address);
  return report(l && holds(l, address) ? l : NULL, base, size);
}

void *weir__rangemap_overlap(const weir__rangemap *map, uint64_t base, uint64_t size, uint64_t *found_base,
                             uint64_t *found_size) {
  if (size == 0)
    return NULL;
  const leaf *l = at_or_before(map, base);
  if (!l || !holds(l, base)) {
    l = at_or_after(map, base);
    if (l && l->base - base >= size)
      l = NULL;
  }
  return report(l, found_base, found_size);
}

void *weir__rangemap_remove(weir__rangemap *map, uint64_t base) {
  uintptr_t *link = &map->root, *above = NULL; /* the link to the node that contains `link` */
  while (*link != 0 && !is_leaf(*link)) {
    node *n = as_node(*link);
    unsigned digit = digit_of(n, base);
    if (!(n->used >> digit & 1))
      return NULL;
    above = link;
    link = &n->child[digit];
  }
  if (*link == 0 || as_leaf(*link)->base != base)
    return NULL;

  leaf *l = as_leaf(*link);
  void *value = l->value;
  weir__slab_free(&map->leaves, l, sizeof(leaf));
  map->count--;
  if (!above) {
    map->root = 0;
    return value;
  }
  node *n = as_node(*above);
  n->used &= ~((uint64_t)1 << digit_of(n, base));
  if ((n->used & (n->used - 1)) == 0) {
    *above = n->child[lowest(n->used)];
    weir__slab_free(&map->nodes, n, sizeof(node));
  }
  return value;
}

size_t weir__rangemap_count(const weir__rangemap *map) { return map->count; }

void *weir__rangemap_at_or_after(const weir__rangemap *map, uint64_t address, uint64_t *base, uint64_t *size) {
  return report(at_or_after(map, address), base, size);
}

void weir__rangemap_clear(weir__rangemap *map) {
  weir__slab_clear(&map->nodes);
  weir__slab_clear(&map->leaves);
  map->root = 0;
  map->count = 0;
}

/* Checks a subtree. *next is the lowest base that the next range may have, and `full` says that none may follow. */
static bool subtree_is_valid(uintptr_t link, uint64_t *next, bool *full, size_t *count) {
  if (is_leaf(link)) {
    const leaf *l = as_leaf(link);
    if (*full || l->base < *next || l->size == 0 || l->base + l->size - 1 < l->base || !l->value)
      return false;
    *next = l->base + l->size;
    *full = *next == 0;
    (*count)++;
    return true;
  }
  const node *n = as_node(link);
  if ((n->used & (n->used - 1)) == 0)
    return false;
  for (unsigned digit = 0; digit < WIDTH; digit++) {
    if (!(n->used >> digit & 1))
      continue;
    uintptr_t child = n->child[digit];
    if (child == 0 || (!is_leaf(child) && as_node(child)->shift >= n->shift))
      return false;
    uint64_t key = is_leaf(child) ? as_leaf(child)->base : as_node(child)->key;
    if (!belongs(n, key) || digit_of(n, key) != digit)
      return false;
    if (!subtree_is_valid(child, next, full, count))
      return false;
  }
  return true;
}

bool weir__rangemap_is_valid(const weir__rangemap *map) {
  uint64_t next = 0;
  bool full = false;
  size_t count = 0;
  return (map->root == 0 || subtree_is_valid(map->root, &next, &full, &count)) && count == map->count;
}
